"""Tape: notes what tracked tensors go through, pulls gradients back, and forgets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from gradmgr import errors
from gradmgr._op import INPUTS, PULLS, Grads, Op, Owned, accumulate, one_input
from gradmgr._recorder import Recorder, during
from gradmgr._tensor import Tensor
from gradmgr._xp import is_array, is_differentiable, shares_memory

Entry = tuple[Any, ...]

# A sweep comes after this many entries, or sooner where results nobody holds may be this many bytes:
# then a sweep costs some 2 % of the operations between two of them, whatever the size of their arrays.
_MANY = 64
_BYTES = 1 << 25


# The reference count of a mark that only its own entry holds, measured the way it is used.
_UNHELD = next(sys.getrefcount(entry[1]) for entry in [("", object())])


def _patience(entries: list[Any]) -> int:
    """Return how many more entries to wait for, judging their size by the last one's."""
    size = 1
    for kept in entries[-1] if entries else ():
        for part in kept if kept.__class__ is tuple else (kept,):
            size += getattr(part, "nbytes", 0)
    return max(1, min(_MANY, _BYTES // size))


class _Inert(list[Any]):
    """The entries of a closed tape: whoever still has it as current notes into nothing."""

    def append(self, entry: Any) -> None:
        pass


class _NotOwned(set[Any]):
    """Who owns gradient buffers when gradients are themselves recorded: nobody.

    They may then be Tensors, whose history names every contribution. The index ops, which
    make Tensors of their own to add into, enter them by `set.add`.
    """

    def add(self, mark: Any) -> None:
        pass


class Tape(Recorder):
    """Reverse mode: a mark names a value on the tape.

    A leaf shared by threads is stamped by each of their tapes. That its mark, id(t), is the same for
    all of them keeps a reader right that sees one tape's stamp and another's mark.
    """

    __slots__ = ("_all_at", "_seen", "_sweeping", "entries", "leaves", "left", "limit")

    is_tape = True

    def __init__(self, leaves: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.guests = {t: id(t) for t in leaves}
        self.entries: list[Any] = []
        self.leaves = self.guests.copy()  # every attached tensor seen, and the mark its gradient goes to
        self.left: set[Tensor] = set()  # leaves that were detached; kept alive, since an id names a mark
        self.limit = _MANY  # entries at which to sweep
        self._seen = 0  # entries that a sweep has looked at
        self._all_at = 2 * _MANY  # entries at which to look at all
        self._sweeping = threading.Lock()
        for t, mark in self.guests.items():
            if t._rec is None or not t._rec.open:
                t._mark = mark
                t._rec = self

    # ------------------------------------------------------------ noting

    def watch(self, t: Tensor) -> None:
        """Take `t` as a leaf from here on: what was computed from it before does not count."""
        known = self.known(t)
        if known is not None:
            if self.leaves.get(t) == known:
                return
            mark: Any = object()
            self.entries.append(("attach", mark, known))
            self.forget(t)
        else:
            mark = object() if t in self.leaves or t in self.left else id(t)
        self.leaves[t] = self.guests[t] = mark
        if mark.__class__ is int and (t._rec is None or not t._rec.open):
            t._mark = mark
            t._rec = self

    def unwatch(self, t: Tensor) -> None:
        """Stop taking `t` as a leaf; what flows through it to its ancestors still does."""
        if self.leaves.pop(t, None) is not None:
            self.left.add(t)

    def note(
        self, op: Op, marks: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        mark = object()
        self.entries.append(op.entry(mark, marks, values, out, params))
        if z.__class__ is tuple:
            for k, result in enumerate(z):
                if is_differentiable(result.dtype):
                    self.stamp(result, own := object())
                    self.entries.append(("result", own, mark, k))
        else:
            self.stamp(z, mark)
        if len(self.entries) > self.limit:
            self.sweep()

    # ------------------------------------------------------------ forgetting

    def sweep(self, *, everything: bool = False) -> None:
        """Drop the entries whose results nobody holds any more.

        Most results that are dropped at all are dropped soon, so every few entries only the newest
        are looked at, and all of them when their number has doubled. From the end to the start, so
        that a dropped entry's inputs can follow. Other threads may append meanwhile: only the
        entries seen at the start are touched.
        """
        if not self.open or not self._sweeping.acquire(blocking=False):
            return
        entries, end = self.entries, len(self.entries)
        start = 0 if everything or end > self._all_at else self._seen
        try:
            for k in range(end - 1, start - 1, -1):
                if sys.getrefcount(entries[k][1]) <= _UNHELD:
                    entries[k] = None
        finally:
            entries[start:end] = filter(None, entries[start:end])
            self._seen = kept = len(entries)
            if start == 0:
                self._all_at = 2 * kept + _MANY
            self.limit = kept + _patience(entries)
            self._sweeping.release()

    def close(self) -> None:
        """Forget everything; a tape that still stands somewhere as current notes nothing more."""
        self.entries = _Inert()
        for t in list(self.guests):
            if t._rec is self:
                t._rec = None
        super().close()
        self.leaves.clear()
        self.left.clear()
        self.below = None

    def spoil(self, array: Any) -> None:
        """Make every entry that keeps a value in this memory raise when it is used."""
        for k, e in enumerate(self.entries):
            if any(is_array(kept) and shares_memory(kept, array) for kept in _flat(e[2:])):
                self.entries[k] = ("stale", e[1], INPUTS[e[0]](e), e[0])

    def nbytes(self) -> int:
        """Return the bytes of the distinct arrays that entries keep."""
        kept = {id(a): a for e in list(self.entries) for a in _flat(e[2:]) if is_array(a) and a.ndim > 0}
        return sum(int(a.nbytes) for a in kept.values())

    # ------------------------------------------------------------ pulling

    def first_uses(self, leaves: Iterable[Tensor]) -> dict[int, list[Tensor]]:
        """Map the index of the earliest entry that feeds on a leaf to the leaves it completes.

        Walking back, a leaf's gradient is complete when that entry is done. A leaf that no entry
        feeds on is complete before the walk, at the index past the end.
        """
        waiting = {self.leaves[t]: t for t in leaves}
        found: dict[int, list[Tensor]] = {}
        for k, e in enumerate(self.entries):
            if not waiting:
                break
            for mark in INPUTS[e[0]](e):
                t = waiting.pop(mark, None)
                if t is not None:
                    found.setdefault(k, []).append(t)
        if waiting:
            found[len(self.entries)] = list(waiting.values())
        return found

    def walk(
        self,
        seeds: list[tuple[Any, Any]],
        *,
        retain: bool,
        awaited: Iterable[Tensor] = (),
        report: Callable[[Tensor, Any], None] | None = None,
    ) -> Grads:
        """Pull the seeds back through the entries; without `retain` each is freed when it is done.

        Threads that still record into the tape may append meanwhile; that is not walked.

        Args:
            seeds: (mark, cotangent) pairs.
            retain: keep the entries for another walk.
            awaited: leaves for which `report(leaf, gradient)` is called as soon as the gradient is complete.
            report: called only for leaves that received a gradient.

        Returns:
            The gradients by mark; those of leaves are what is left.
        """
        grads: Grads = {}
        owned: Owned = set() if self.below is None else _NotOwned()
        with self._sweeping, during(self.below):  # nobody must sweep meanwhile
            entries = self.entries.copy() if retain else self.entries
            for mark, dy in seeds:
                accumulate(grads, owned, mark, dy)
            if report is not None:
                completed = self.first_uses(awaited)
                for start in sorted(completed, reverse=True):
                    part = entries[start:]
                    del entries[start:]
                    _pull_all(part, grads, owned)
                    for t in completed[start]:
                        g = grads.get(self.leaves.get(t))
                        if g is not None:
                            report(t, g)
            _pull_all(entries, grads, owned)
        return grads


def _pull_all(entries: list[Any], grads: Grads, owned: Owned) -> None:
    """Pop and pull the entries, from the end to the start."""
    take, pop, pulls = grads.pop, entries.pop, PULLS
    e: Any = ("",)
    try:
        while entries:
            e = pop()
            g = take(e[1], None)
            if g is not None:
                pulls[e[0]](e, g, grads, owned)
    except errors.GradmgrError:
        raise
    except Exception as error:  # whatever it is, it goes on, with the op's name
        error.add_note(f"(in the derivative of gradmgr op {e[0].partition('.')[0]!r})")
        raise


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value._array if isinstance(value, Tensor) else value


def _pull_stale(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    raise errors.StaleValueError(
        f"the derivative of op {e[3].partition('.')[0]!r} needs a value in memory that increment_version declared "
        "overwritten after it was used; write to it after backward(), or compute on a copy"
    )


def _pull_attach(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    grads[e[1]] = g  # complete, and kept: it is a leaf's
    accumulate(grads, owned, e[2], g)


def _pull_result(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    grads.setdefault(e[2], {})[e[3]] = g


# Each result of an op of several has an entry of its own, after the op's. Walking back they come
# first and collect their gradients, by position, in what the op's own entry then finds as its gradient.
PULLS["result"] = _pull_result
INPUTS["result"] = one_input

# An intermediate that is attached gets a mark of its own through this op, so that what was
# computed from it before is told apart from what comes after.
PULLS["attach"] = _pull_attach
INPUTS["attach"] = one_input
PULLS["stale"] = _pull_stale
INPUTS["stale"] = lambda e: tuple(e[2])
