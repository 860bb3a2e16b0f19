"""Tape: records the operations on tracked tensors for backward, and drops those that backward cannot need."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from threading import RLock
from typing import Any

from gradmgr._arrays.libraries import is_array, is_differentiable, namespace
from gradmgr._arrays.memory import shares_memory
from gradmgr._arrays.refcounts import NODE_ID_IN_ENTRY
from gradmgr._engine import write_lock
from gradmgr._engine.annotations import Annotations
from gradmgr._engine.cleanup import call_if_free
from gradmgr._engine.context import current, recorders
from gradmgr._engine.entry import Entry, input_ids, input_metadata, kept_values
from gradmgr._engine.observers import ObservedEntries, Observer, SourceLocation, observers, user_location
from gradmgr._engine.op import Op
from gradmgr._engine.recorder import Recorder, is_untracked
from gradmgr._engine.tensor import Tensor

# A sweep comes after this many entries, or sooner where unreferenced results may be this many bytes: then a
# sweep costs some 2 % of the operations between two of them, whatever the size of their arrays.
_MANY = 64
_AT_FIRST = 16  # entries before the size of any is looked at
_BYTES = 1 << 25


def _no_owner() -> None:
    """Return None, as a weak reference does that is dead: the owner of a tape without a manager."""


class Tape(Recorder):
    """Reverse mode: each node id names a value; `entries` says how it was computed and what its vjp needs.

    A leaf that threads share is tracked by each of their tapes. Its node id, id(t), is the same for all of them: so a
    reader that sees one tape in `_rec` and another's `_node_id` is still right.

    Attributes:
        entries: in the order of recording. A closed tape that is still current somewhere, as in another thread, is
            appended to and clears them in `sweep`.
        leaves: every attached tensor seen, and the node id that its gradient goes to.
        limit: number of entries above which the code that appends calls `sweep`; below 0 for a closed tape.
        owner: a weak reference to the manager.
        observed_pass: the backward pass that runs, where it is not the fast loop.
        sweeping: held by the thread that sweeps, or runs a backward pass: entries keep their places meanwhile.
    """

    __slots__ = (
        "_all_at",
        "_detached",
        "_seen",
        "annotations",
        "entries",
        "leaves",
        "limit",
        "observed_pass",
        "observers",
        "owner",
        "sweeping",
    )

    is_tape = True

    def __init__(
        self, leaves: Iterable[Tensor] = (), owner: Any = _no_owner, own_observers: tuple[Observer, ...] = ()
    ) -> None:
        super().__init__({t: id(t) for t in leaves})
        self.owner = owner
        self.observers = own_observers
        self.annotations: Annotations | None = None
        self.observed_pass: Any = None
        self.entries: list[Any] = []
        self.leaves = self.leaf_ids.copy()
        self._detached: set[Tensor] = set()  # leaves that were detached; kept alive, since an id names a node
        self.limit = _AT_FIRST
        self._seen = 0  # entries that a sweep has looked at
        self._all_at = 2 * _MANY  # entries at which a sweep looks at all
        self.sweeping = RLock()
        for t, node_id in self.leaf_ids.items():
            rec = t._rec  # `is_untracked`, inlined
            if rec is None or not rec.open:
                t._node_id = node_id
                t._rec = self
        if own_observers or observers():
            self.start_observing()

    @property
    def is_of_transform(self) -> bool:  # type: ignore[override]  # asked for where something converts, and rarely
        return getattr(self.owner(), "is_of_transform", False)

    # ------------------------------------------------------------ recording

    def add_leaf(self, t: Tensor) -> None:
        """Make `t` a leaf from here on, unless it is one: what was computed from it before gives it no gradient.

        A leaf that a write has made a constant is one again, under its node id: what was computed from it before the
        write is not lost.
        """
        known = self.node_id_of(t)
        if t in self.leaves:
            if known is not None:  # of the value it had; to take the present one would lose what was computed from that
                return
            node_id: Any = self.leaves[t]
        elif known is not None:
            node_id = object()
            self.entries.append(("attach", node_id, known))
            self.untrack(t)
        else:
            node_id = object() if t in self._detached else id(t)
        self.leaves[t] = self.leaf_ids[t] = node_id
        if self.trace_log is not None:
            self.trace_log.record_attached(t, node_id, user_location())
        if node_id.__class__ is int and is_untracked(t):
            t._node_id = node_id
            t._rec = self

    def remove_leaf(self, t: Tensor) -> None:
        """Stop taking `t` as a leaf; what flows through it to its ancestors still does."""
        if self.leaves.pop(t, None) is not None:
            self._detached.add(t)

    def record_op(
        self, op: Op, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        node_id = object()
        entries = self.entries
        entries.append(op.entry(node_id, node_ids, values, out, params))
        if z.__class__ is tuple:
            for k, result in enumerate(z):
                if is_differentiable(result._array.dtype):
                    own = object()
                    if result._rec is None:
                        result._node_id = own
                        result._rec = self
                    else:
                        self.track(result, own)
                    entries.append(("result", own, node_id, k))
        elif z._rec is None:
            z._node_id = node_id
            z._rec = self
        else:
            self.track(z, node_id)
        if len(entries) > self.limit:
            self.sweep()

    def node_ids_of(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        node_ids, is_tracked, leaf_ids, overflow = [], False, self.leaf_ids, self.has_overflow_ids
        for t in inputs:  # `node_id_of`, written out
            node_id = None
            if isinstance(t, Tensor):
                node_id = t._node_id if t._rec is self else leaf_ids.get(t)
                if node_id is None and overflow:
                    node_id = self.node_id_of(t)
                is_tracked = is_tracked or node_id is not None
            node_ids.append(node_id)
        return tuple(node_ids) if is_tracked else None

    def record_unrecorded_step(self, inputs: Iterable[Tensor], z: Tensor) -> None:
        """Let `z` be what a step that is not recorded made of these tensors: to differentiate it is an error."""
        node_ids = tuple([node_id for t in inputs if (node_id := self.node_id_of(t)) is not None])
        if node_ids:
            node_id, found = object(), user_location()
            self.entries.append(("unrecorded step", node_id, node_ids, found and SourceLocation(*found)))
            self.track(z, node_id)

    def start_observing(self) -> None:
        """Let the observers of the contexts that record see each entry from here on."""
        if self.entries.__class__ is list:
            with self.sweeping:
                if self.limit >= 0 and self.entries.__class__ is list:  # not of a tape that was closed
                    self.entries = observed = ObservedEntries(self.entries, self)
                    observed.catch_up()
        for observer in (*self.observers, *observers()):
            observer.attached_to(self)

    def location_of(self, node_id: Any) -> SourceLocation | None:
        """Return where in the user's program a value was computed, if a trace log is kept."""
        found: SourceLocation | None = None if self.trace_log is None else self.trace_log.location_of(node_id)
        return found

    def ensure_annotations(self) -> Annotations:
        """Return the annotations, made when first asked for."""
        if self.annotations is None:
            with write_lock.lock:  # threads that share the tape share its annotations
                if self.annotations is None:
                    self.annotations = Annotations()
        return self.annotations

    # ------------------------------------------------------------ dropping entries

    def sweep(self, *, everything: bool = False) -> None:
        """Drop the entries whose results are not referenced any more.

        Most unreferenced results are recent ones, so every few entries only the newest are looked at,
        and all of them when their number has doubled. From the end to the start, so that a dropped entry's inputs can
        follow. Other threads may append meanwhile: only the entries seen at the start are touched.
        """
        if not self.open:
            self.entries.clear()
            return
        # Not within a backward pass, nor within a sweep, that dropped something with a `__del__`.
        call_if_free(self.sweeping, partial(self._sweep_entries, everything))

    def _sweep_entries(self, everything: bool) -> None:
        entries, end = self.entries, len(self.entries)
        if self.limit == _AT_FIRST and not everything and _entries_until_sweep(entries) == _MANY:
            self.limit = _MANY  # small arrays, which can wait
            return
        start = 0 if everything or end > self._all_at else self._seen
        kept = self._drop_unheld(entries, start, end)
        self._seen = max(kept - 1, 0)  # the calling operation holds the last result, so that one is looked at again
        if start == 0:
            self._all_at = 2 * kept + _MANY
        self.limit = kept + _entries_until_sweep(entries)

    def _drop_unheld(self, entries: list[Any], start: int, end: int) -> int:
        """Drop the unreferenced entries between two positions; return how many entries are left."""
        try:
            self._mark_unheld(entries, start, end)
        finally:
            entries[start:end] = filter(None, entries[start:end])
        return len(entries)

    def _mark_unheld(self, entries: list[Any], start: int, end: int) -> None:
        """Put None in place of the unreferenced entries."""
        annotations = self.annotations
        for k in range(end - 1, start - 1, -1):
            if sys.getrefcount(entries[k][1]) <= NODE_ID_IN_ENTRY or (
                annotations and _is_only_annotated(annotations, entries[k])
            ):
                entries[k] = None

    def close(self) -> None:
        """Forget everything; a tape that is still current somewhere records nothing more."""
        self.open = False  # first: see `Recorder.close`
        self.entries, self.limit = [], -1
        for t in list(self.leaf_ids):
            if t._rec is self:
                t._rec = None
        self.leaf_ids.clear()
        self.leaves.clear()
        self._detached.clear()
        self.annotations = None
        for observer in self.observers:
            observer.tape_closed(self)
        self.observers = ()
        self.outer = None

    def invalidate(self, array: Any) -> None:
        """Make every entry that keeps a value in this memory raise when it is used."""
        with self.sweeping:  # which moves entries
            self._invalidate(array)

    def _invalidate(self, array: Any) -> None:
        entries = self.entries
        for k, e in enumerate(entries[:]):  # others may append faster than this looks
            if any(is_array(kept) and shares_memory(kept, array) for kept in kept_values(e)):
                entries[k] = ("stale", e[1], input_ids(e), e[0])

    # ------------------------------------------------------------ what it holds

    def kept_entries(self) -> list[Entry]:
        """Return the entries as they are now, except for those that a sweep in another thread is dropping."""
        return [e for e in list(self.entries) if e is not None]

    def nbytes(self) -> int:
        """Return the bytes of the distinct arrays that entries keep."""
        kept = {id(a): a for e in self.kept_entries() for a in kept_values(e) if is_array(a) and a.ndim > 0}
        return sum(int(a.nbytes) for a in kept.values())

    def metadata(self) -> dict[Any, tuple[Any, Any]]:
        """Map node ids to shape and dtype, as far as the entries that use them tell."""
        return {i: (shape, dtype) for e in self.kept_entries() for i, shape, dtype in input_metadata(e)}


def _entries_until_sweep(entries: list[Any]) -> int:
    """Return how many more entries to wait for, judging their size by the last one's."""
    size = 1
    for kept in entries[-1] if entries else ():
        for part in kept if kept.__class__ is tuple else (kept,):
            size += getattr(part, "nbytes", 0)
    return max(1, min(_MANY, _BYTES // size))


def _is_only_annotated(annotations: Annotations, e: Entry) -> bool:
    """Tell whether only its entry and the annotations hold a node id; drop it from these if so."""
    references = annotations.references(e[1])
    if references == 0 or sys.getrefcount(e[1]) > NODE_ID_IN_ENTRY + references:
        return False
    annotations.drop(e[1])
    return True


def add_root(t: Tensor) -> None:
    """Let every backward of the tapes that record here begin at `t` too, with zeros.

    For what must be done in backward though no gradient may reach it: another process waits for it.
    """
    a = t._array
    for tape in recorders(current()):
        node_id = tape.node_id_of(t) if isinstance(tape, Tape) and tape.open else None
        if isinstance(tape, Tape) and node_id is not None:
            tape.ensure_annotations().roots.append((node_id, namespace(a).zeros(a.shape, a.dtype)))
