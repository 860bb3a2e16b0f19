"""Tape: notes what tracked tensors go through, pulls gradients back, and forgets."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from threading import Lock, get_ident
from typing import Any

from gradmgr import errors
from gradmgr._arrays.libraries import is_array, is_differentiable, namespace
from gradmgr._arrays.memory import shares_memory
from gradmgr._engine.custom import Result
from gradmgr._engine.hooks import ValueHooks, checked, handle, name_of, run_tensor_hooks
from gradmgr._engine.observers import ObservedEntries, Observer, Place, SavedValuePlaceholder, observers, user_location
from gradmgr._engine.op import (
    INPUTS,
    METADATA,
    NAMES,
    PULLS,
    RETRACKS,
    ByExample,
    Grads,
    Op,
    Owned,
    accumulate,
    one_input,
    op_of,
)
from gradmgr._engine.recorder import (
    Interceptor,
    Recorder,
    above,
    activated,
    beside,
    current,
    interceptors_of,
    is_untracked,
    recorders,
    recording_threads,
    reset_current,
    set_current,
    snapshot,
    told,
)
from gradmgr._engine.tensor import Tensor, raw, wrap

Entry = tuple[Any, ...]

# A sweep comes after this many entries, or sooner where results nobody holds may be this many bytes:
# then a sweep costs some 2 % of the operations between two of them, whatever the size of their arrays.
_MANY = 64
_AT_FIRST = 16  # entries before the size of any is looked at
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


def _is_only_annotated(notes: Annotations, e: Entry) -> bool:
    """Tell whether only its entry and the notes hold a mark; they then forget it."""
    held = notes.holds(e[1])
    if held == 0 or sys.getrefcount(e[1]) > _UNHELD + held:
        return False
    notes.drop(e[1])
    return True


class _Inert(list[Any]):
    """The entries of a closed tape: whoever still has it as current notes into nothing."""

    __slots__ = ()

    def append(self, entry: Any) -> None:
        pass


class _NotOwned(set[Any]):
    """Who owns gradient buffers when gradients are themselves recorded: nobody.

    They may then be Tensors, whose history names every contribution. The index ops, which
    make Tensors of their own to add into, enter them by `set.add`.
    """

    def add(self, node_id: Any) -> None:
        pass


class _NotOwnedByExample(_NotOwned, ByExample):
    """The same under vmap: a buffer that is one for all examples cannot take what differs."""


def _nobody() -> None:
    """Stand for the manager of a tape that has none."""


class Annotations:
    """What is known of the values on a tape beyond its entries, by mark; most tapes have none."""

    __slots__ = ("endings", "gathered", "hooks", "index", "indexed", "metadata", "retained", "retaining", "roots")

    def __init__(self) -> None:
        self.hooks: dict[Any, ValueHooks] = {}
        self.metadata: dict[Any, dict[Any, Any]] = {}  # of graph nodes
        self.retaining: list[weakref.ref[Tensor]] = []  # tensors that want their gradient in `.grad`
        self.retained: list[tuple[Tensor, Any]] = []  # those of them that this walk reached, and the gradients
        self.gathered: dict[Any, list[Any]] = {}  # what hooks on several tensors have seen in this walk
        self.endings: list[Callable[[], Any]] = []  # what is to be called when this walk is done
        self.roots: list[tuple[Any, Any]] = []  # (mark, zeros): where every walk begins too, whatever it is given
        # Where entries stand, by id of their marks, for the first `indexed`: guesses, since a sweep moves them.
        self.index: dict[int, int] = {}
        self.indexed = 0

    def __bool__(self) -> bool:
        return bool(self.hooks or self.metadata or self.retaining)

    def holds(self, node_id: Any) -> int:
        """Return how often a mark is held here, which a sweep must not take for somebody's interest."""
        return (node_id in self.hooks) + (node_id in self.metadata)

    def drop(self, node_id: Any) -> None:
        """Forget a value."""
        for known in (self.hooks, self.metadata):
            known.pop(node_id, None)

    def wanting(self, tape: Tape) -> dict[Any, list[Tensor]]:
        """Return the tensors under retain_grad by the marks that they have now, leaves aside."""
        found: dict[Any, list[Tensor]] = {}
        for ref in self.retaining:
            t = ref()
            if t is not None and (node_id := tape.node_id_of(t)) is not None and tape.leaf_ids.get(t) != node_id:
                found.setdefault(node_id, []).append(t)
        return found


class Tape(Recorder):
    """Reverse mode: a mark names a value on the tape.

    A leaf shared by threads is stamped by each of their tapes. That its mark, id(t), is the same for
    all of them keeps a reader right that sees one tape's stamp and another's mark.
    """

    __slots__ = (
        "__weakref__",
        "_all_at",
        "_seen",
        "_sweeping",
        "annotations",
        "entries",
        "leaves",
        "left",
        "limit",
        "observers",
        "owner",
        "walker",
        "walking",
    )

    is_tape = True

    def __init__(
        self, leaves: Iterable[Tensor] = (), owner: Any = _nobody, own_observers: tuple[Observer, ...] = ()
    ) -> None:
        super().__init__({t: id(t) for t in leaves})
        self.owner = owner  # a weak reference to the manager
        self.observers = own_observers
        self.annotations: Annotations | None = None
        self.walker: _Walk | None = None  # what pulls in the present walk, where that is not the fast loop
        self.walking: int | None = None  # the thread that walks
        self.entries: list[Any] = []
        self.leaves = self.leaf_ids.copy()  # every attached tensor seen, and the mark its gradient goes to
        self.left: set[Tensor] = set()  # leaves that were detached; kept alive, since an id names a mark
        self.limit = _AT_FIRST  # entries at which to sweep
        self._seen = 0  # entries that a sweep has looked at
        self._all_at = 2 * _MANY  # entries at which to look at all
        self._sweeping = Lock()
        for t, node_id in self.leaf_ids.items():
            rec = t._rec  # once, as other threads set it; `is_free`, inlined
            if rec is None or not rec.open:
                t._node_id = node_id
                t._rec = self
        if own_observers or observers():
            self.start_observing()

    # ------------------------------------------------------------ noting

    def watch(self, t: Tensor) -> None:
        """Take `t` as a leaf from here on: what was computed from it before does not count."""
        known = self.node_id_of(t)
        if known is not None:
            if self.leaves.get(t) == known:
                return
            node_id: Any = object()
            self.entries.append(("attach", node_id, known))
            self.forget(t)
        else:
            node_id = object() if t in self.leaves or t in self.left else id(t)
        self.leaves[t] = self.leaf_ids[t] = node_id
        if self.trace_log is not None:
            self.trace_log.record_attached(t, node_id, user_location())
        if node_id.__class__ is int and is_untracked(t):
            t._node_id = node_id
            t._rec = self

    def remove_interceptor(self, t: Tensor) -> None:
        """Stop taking `t` as a leaf; what flows through it to its ancestors still does."""
        if self.leaves.pop(t, None) is not None:
            self.left.add(t)

    def record_op(
        self, op: Op, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        node_id = object()
        entries = self.entries
        entries.append(op.entry(node_id, node_ids, values, out, params))
        if z.__class__ is tuple:
            for k, result in enumerate(z):
                if is_differentiable(result.dtype):
                    self.track(result, own := object())
                    entries.append(("result", own, node_id, k))
        elif z._rec is None:
            z._node_id = node_id
            z._rec = self
        else:
            self.track(z, node_id)
        if len(entries) > self.limit:
            self.sweep()

    def node_ids_of(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        node_ids, heard, leaf_ids, has_overflow_ids = [], False, self.leaf_ids, self.has_overflow_ids
        for t in inputs:  # `known`, written out
            node_id = None
            if isinstance(t, Tensor):
                node_id = t._node_id if t._rec is self else leaf_ids.get(t)
                if node_id is None and has_overflow_ids:
                    node_id = self.node_id_of(t)
                heard = heard or node_id is not None
            node_ids.append(node_id)
        return tuple(node_ids) if heard else None

    def start_observing(self) -> None:
        """Let the listeners of the contexts that record hear what is noted from here on."""
        if self.entries.__class__ is list:
            if self.walking == get_ident():  # it walks over a copy, else nobody here could record
                self._hear()
            else:
                with self._sweeping:
                    self._hear()
        for observer in (*self.observers, *observers()):
            observer.attached_to(self)

    def _hear(self) -> None:
        if self.open and self.entries.__class__ is list:
            self.entries = heard = ObservedEntries(self.entries, self)
            heard.catch_up()

    def location_of(self, node_id: Any) -> Place | None:
        """Return where in the user's program a value was computed, if a diary is kept."""
        found: Place | None = None if self.trace_log is None else self.trace_log.location_of(node_id)
        return found

    def ensure_annotations(self) -> Annotations:
        """Return the notes, made when first asked for."""
        notes = self.annotations
        if notes is None:
            with recording_threads.lock:  # threads that share the tape share its notes
                notes = self.annotations
                if notes is None:
                    notes = self.annotations = Annotations()
        return notes

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
        if self.limit == _AT_FIRST and not everything and _patience(entries) == _MANY:  # small arrays: no haste
            self.limit = _MANY
            self._sweeping.release()
            return
        start = 0 if everything or end > self._all_at else self._seen
        notes = self.annotations
        try:
            for k in range(end - 1, start - 1, -1):
                if sys.getrefcount(entries[k][1]) <= _UNHELD or (notes and _is_only_annotated(notes, entries[k])):
                    entries[k] = None
        finally:
            entries[start:end] = filter(None, entries[start:end])
            kept = len(entries)
            self._seen = max(kept - 1, 0)  # the last one is held by the operation that calls, and looked at again
            if start == 0:
                self._all_at = 2 * kept + _MANY
            self.limit = kept + _patience(entries)
            self._sweeping.release()

    def close(self) -> None:
        """Forget everything; a tape that still stands somewhere as current notes nothing more."""
        self.entries = _Inert()
        for t in list(self.leaf_ids):
            if t._rec is self:
                t._rec = None
        super().close()
        self.leaves.clear()
        self.left.clear()
        self.annotations = None
        for observer in self.observers:
            observer.tape_closed(self)
        self.observers = ()
        self.outer = None

    def invalidate(self, array: Any) -> None:
        """Make every entry that keeps a value in this memory raise when it is used."""
        with nullcontext() if self.walking == get_ident() else self._sweeping:  # which moves entries
            entries = self.entries
            for k, e in enumerate(entries[:]):  # others may append faster than we look
                if any(is_array(kept) and shares_memory(kept, array) for kept in flat(e[2:])):
                    entries[k] = ("stale", e[1], INPUTS[e[0]](e), e[0])

    def nbytes(self) -> int:
        """Return the bytes of the distinct arrays that entries keep."""
        kept = {id(a): a for e in list(self.entries) for a in flat(e[2:]) if is_array(a) and a.ndim > 0}
        return sum(int(a.nbytes) for a in kept.values())

    # ------------------------------------------------------------ pulling

    def first_uses(self, leaves: Iterable[Tensor], entries: list[Any]) -> dict[int, list[Tensor]]:
        """Map the index of the earliest entry that feeds on a leaf to the leaves it completes.

        Walking back, a leaf's gradient is complete when that entry is done. A leaf that no entry
        feeds on is complete before the walk, at the index past the end.
        """
        waiting = {self.leaves[t]: t for t in leaves}
        found: dict[int, list[Tensor]] = {}
        for k, e in enumerate(entries):
            if not waiting:
                break
            for node_id in INPUTS[e[0]](e):
                t = waiting.pop(node_id, None)
                if t is not None:
                    found.setdefault(k, []).append(t)
        if waiting:
            found[len(entries)] = list(waiting.values())
        return found

    def walk(
        self,
        seeds: list[tuple[Any, Any]],
        *,
        retain: bool,
        awaited: Iterable[Tensor] = (),
        report: Callable[[Tensor, Any], None] | None = None,
        create_graph: bool = False,
        wanted: Iterable[Any] | None = None,
    ) -> Grads:
        """Pull the seeds back through the entries; without `retain` each is freed when it is done.

        Threads that still record into the tape may append meanwhile; that is not walked.

        Args:
            seeds: (mark, cotangent) pairs.
            retain: keep the entries for another walk.
            awaited: leaves for which `report(leaf, gradient)` is called as soon as the gradient is complete.
            report: called only for leaves that received a gradient.
            create_graph: let this tape itself hear what is computed, for derivatives of the derivative; retains.
            wanted: marks, the only ones whose gradients matter: what does not lead to them is not computed.

        Returns:
            The gradients by mark; those of leaves, and of `wanted`, are what is left.
        """
        grads: Grads = {}
        owned: Owned = set() if self.outer is None and not create_graph else _owners(self.outer, create_graph)
        now = current()
        # Nobody else in sight: the common case, which asks no further.
        alone = now is self and not (
            create_graph or wanted is not None or self.annotations or self.observers or observers()
        )
        state = self.outer if alone else beside(above(self.outer, self) if create_graph else self.outer, now)
        with self._sweeping:  # nobody must sweep meanwhile
            token = set_current(state)
            try:
                if self.entries.__class__ is ObservedEntries:
                    self.entries.catch_up()
                entries = list(self.entries) if retain or create_graph else self.entries
                if wanted is not None:
                    entries, all_of_them = _leading_to(wanted, entries), entries
                    all_of_them.clear()  # or memory would not fall as the walk goes
                pull = _pull_all if alone else self._puller(now, create_graph, wanted)
                self.walking = get_ident()
                for node_id, dy in seeds:
                    grads[node_id] = grads[node_id] + dy if node_id in grads else dy
                if report is not None:
                    self._pull_to_leaves(entries, grads, owned, pull, awaited, report)
                pull(entries, grads, owned)
            finally:
                self.walker = self.walking = None
                reset_current(token)
        return grads

    def _pull_to_leaves(
        self,
        entries: list[Any],
        grads: Grads,
        owned: Owned,
        pull: Callable[[list[Any], Grads, Owned], None],
        awaited: Iterable[Tensor],
        report: Callable[[Tensor, Any], None],
    ) -> None:
        """Pull back to the last leaf that is awaited, reporting each as soon as its gradient is complete."""
        completed = self.first_uses(awaited, entries)
        for start in sorted(completed, reverse=True):
            part = list(entries[start:])
            del entries[start:]
            pull(part, grads, owned)
            for t in completed[start]:
                g = grads.get(self.leaves.get(t))
                if g is not None:
                    report(t, g)

    def _puller(
        self, now: Any, create_graph: bool, wanted: Iterable[Any] | None
    ) -> Callable[[list[Any], Grads, Owned], None]:
        """Return what pulls entries: the fast loop unless somebody hangs on it."""
        for observer in observers():
            observer.backward_started(self)
        followers = [observer for observer in (*self.observers, *observers()) if observer.follows_backward]
        interceptors = tuple([interceptor for interceptor in interceptors_of(now) if interceptor.follows_backward])
        if not (create_graph or wanted is not None or self.annotations or followers or interceptors):
            return _pull_all
        below = above(self.outer, self) if create_graph else self.outer  # whom hooks compute for
        self.walker = _Walk(self, below, now, create_graph, set(wanted or ()), followers, interceptors)
        return self.walker.pull_all

    def pull_hooked(self, entries: list[Any], grads: Grads, owned: Owned) -> None:
        """Pull entries on whose values there are hooks, in a walk that had met none so far."""
        self.walker = _Walk(self, self.outer, current(), False, set(), [], ())
        try:
            self.walker.pull(entries, grads, owned)
        finally:
            self.walker = None

    def facts(self) -> dict[Any, tuple[Any, Any]]:
        """Map marks to shape and dtype, as far as what was computed from them tells."""
        return {node_id: (shape, dtype) for e in list(self.entries) for node_id, shape, dtype in metadata_of(e)}


def _owners(below: Any, create_graph: bool) -> Owned:
    """Return the set of marks whose gradient buffers will be ours, fit for who hears the gradients."""
    if create_graph or (below is not None and recorders(below)):
        return _NotOwned()
    return _NotOwnedByExample() if below is not None and any(w.counts for w in interceptors_of(below)) else set()


def add_root(t: Tensor) -> None:
    """Let whoever records walk back from `t` in every backward, with zeros, whatever else that begins at.

    For what must be done in backward though no gradient may reach it: another process waits for it.
    """
    a = t._array
    for tape in recorders(current()):
        node_id = tape.node_id_of(t) if isinstance(tape, Tape) and tape.open else None
        if isinstance(tape, Tape) and node_id is not None:
            tape.ensure_annotations().roots.append((node_id, namespace(a).zeros(a.shape, a.dtype)))


def inputs_of(e: Entry) -> tuple[Any, ...]:
    """Return the marks of the tracked inputs of an entry."""
    return tuple([node_id for node_id in INPUTS[e[0]](e) if node_id is not None])


def metadata_of(e: Entry) -> tuple[Any, ...]:
    """Return (mark, shape, dtype) of the tracked inputs of an entry, as far as it knows them."""
    read = METADATA.get(e[0])
    return () if read is None else read(e)


def op_name(e: Entry) -> str:
    """Return the name of the op of an entry, which keeps its code."""
    if e[0] in NAMES:
        return NAMES[e[0]](e)
    return op_of(e[2][0] if e[0] == "capture" else e[0])


def is_inside(e: Entry) -> bool:
    """Tell whether an entry's value was made inside what is computed again: see `gradmgr.checkpoint`."""
    return len(e) == 5 and e[0] == "result"


def _leading_to(wanted: Iterable[Any], entries: list[Any]) -> list[Any]:
    """Return the entries through which gradients reach the wanted marks."""
    downstream = set(wanted)
    inside = {e[2] for e in entries if is_inside(e) and e[1] in downstream}
    kept = []
    for e in entries:
        if e[1] in inside or not downstream.isdisjoint(INPUTS[e[0]](e)):
            downstream.add(e[1])
            kept.append(e)
        elif e[1] in downstream:  # wanted, and not on the way to another: it has hooks, perhaps
            kept.append(("capture", e[1], e))
    return kept


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
        error.add_note(f"(in the derivative of gradmgr op {op_name(e)!r})")
        raise


class _Walk:
    """A walk on which somebody hangs: hooks, a profiler, anomaly detection, or the tape itself."""

    def __init__(
        self,
        tape: Tape,
        below: Any,
        now: Any,
        create_graph: bool,
        wanted: set[Any],
        followers: list[Observer],
        interceptors: tuple[Interceptor, ...],
    ) -> None:
        self.tape = tape
        self.outside = told(below, now)  # the state for hooks
        self.outer_recorders = recorders(below)
        self.create_graph = create_graph
        self.wanted = wanted
        self.followers = followers
        self.interceptors = interceptors
        notes = tape.annotations
        self.hooks: dict[Any, ValueHooks] = {} if notes is None else notes.hooks
        self.retained = {} if notes is None else notes.wanting(tape)
        self.found: Grads = {}  # gradients of wanted values that are no leaves
        # By the mark of what computes them again, the marks of values that have their whole gradient only then.
        self.inside: dict[Any, dict[int, Any]] = {}

    def pull_all(self, entries: list[Any], grads: Grads, owned: Owned) -> None:
        """Pull the entries, and add the gradients that were asked for to those that are left."""
        self.pull(entries, grads, owned)
        for node_id, g in self.found.items():
            grads[node_id] = g

    def pull(self, entries: list[Any], grads: Grads, owned: Owned) -> None:
        """Pop and pull the entries, from the end to the start."""
        while entries:
            e = entries.pop()
            if is_inside(e):
                self.inside.setdefault(e[2], {})[e[3]] = e[1]
            g = grads.pop(e[1], None)
            if g is None:
                continue
            try:
                self._pull(e, g, grads, owned)
            except errors.AnomalyError:
                raise
            except Exception as error:  # whatever it is, it goes on, with the op's name and place
                error.add_note(self._in_the_derivative_of(e))
                raise

    def found_again(self, bundle: Any, node_ids: list[Any]) -> Callable[[], None]:
        """Let who waits for the gradient of a value wait for it under the mark that it has when computed again.

        Args:
            bundle: the mark of what computes it again.
            node_ids: the new marks, by number of the result.

        Returns:
            What is to be called when these are pulled.
        """
        moved = {own: node_ids[k] for k, own in self.inside.pop(bundle, {}).items()}
        for own, node_id in moved.items():
            if own in self.hooks:
                self.hooks[node_id] = self.hooks[own].joined(self.hooks.get(node_id))
            if own in self.retained:
                self.retained[node_id] = self.retained[own]
            if own in self.wanted:
                self.wanted.add(node_id)

        def done() -> None:
            for own, node_id in moved.items():
                self.retained.pop(node_id, None)
                if own in self.wanted:
                    self.wanted.discard(node_id)
                    if node_id in self.found:
                        self.found[own] = self.found.pop(node_id)

        return done

    def _in_the_derivative_of(self, e: Entry) -> str:
        place = self.tape.location_of(e[1])
        at = f", computed at {place}" if place is not None else ""
        return f"(in the derivative of gradmgr op {op_name(e)!r}{at})"

    def _pull(self, e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
        if is_inside(e):
            PULLS["result"](e, g, grads, owned)
            return
        hooks = self.hooks.get(e[1])
        if hooks is not None or e[1] in self.retained or e[1] in self.wanted:
            owned.discard(e[1])  # somebody may keep it
            g = self._seen(hooks, e, g)
        if e[0] == "capture":
            return
        if hooks is not None and hooks.before:
            g = self._pre_hooked(hooks, e, g)
            if g is None:
                return
        if self.create_graph:
            e = self._retracked(e)
        for interceptor in self.interceptors:
            interceptor.pulling(e)
        self._way_of(hooks, e, owned)(hooks, e, g, grads, owned)
        for interceptor in self.interceptors:
            interceptor.pulled(e, g, grads)

    # ------------------------------------------------------------ hooks

    def _seen(self, hooks: ValueHooks | None, e: Entry, g: Any) -> Any:
        """Run the hooks of a value, then show its gradient to whoever asked for it."""
        if hooks is not None and hooks.tensor:
            with activated(self.outside):
                g = run_tensor_hooks(hooks.tensor, g, f"the result of {op_name(e)!r}", self.outer_recorders)
        for t in self.retained.get(e[1], ()):
            self.tape.ensure_annotations().retained.append((t, g))
        if e[1] in self.wanted:
            self.found[e[1]] = g
        return g

    def _pre_hooked(self, hooks: ValueHooks, e: Entry, g: Any) -> Any:
        """Run the pre-hooks of an op on the gradients of its results; None where none of them is left."""
        several = g.__class__ is dict
        gs = tuple([g.get(k) for k in range(max(hooks.count, *[k + 1 for k in g]))]) if several else (g,)
        for hook in hooks.before:
            gs = self._replaced(gs, hook, f"pre-hook {name_of(hook)} on op {op_name(e)!r}")
        if not several:
            return gs[0]
        return {k: part for k, part in enumerate(gs) if part is not None} or None

    def _replaced(self, gs: tuple[Any, ...], hook: Any, what: str, *further: Any) -> tuple[Any, ...]:
        """Return the gradients that a hook of an op gives for these: as many; None in the tuple lets nothing flow."""
        with activated(self.outside):
            given = self._handles(gs)
            new = hook(given, *further)
            if new is None:
                new = given
            elif not isinstance(new, (tuple, list)):
                new = (new,)
            if len(new) != len(given):
                raise errors.CallbackError(
                    f"{what} gave {len(new)} gradients for {len(given)}; return as many, or None to keep them"
                )
            found: list[Any] = []
            for k, (g, part) in enumerate(zip(gs, new, strict=True)):
                if part is not None and g is None:
                    raise errors.CallbackError(f"{what} gave a gradient in place {k}, where there was none; give None")
                found.append(None if part is None else snapshot(checked(g, part, what), self.outer_recorders))
            return tuple(found)

    def _handles(self, gs: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([None if g is None else handle(g, self.outer_recorders) for g in gs])

    def _way_of(self, hooks: ValueHooks | None, e: Entry, owned: Owned) -> Callable[..., None]:
        """Return how to pull an entry: with what it gives seen by itself, where somebody wants to see it."""
        if e[0] in ("result", "attach"):
            return self._pull_plainly
        if hooks is not None and hooks.after:
            return self._vjp_apart
        if not self.followers:
            return self._pull_plainly
        return self._pull_followed if owned.__class__ is _NotOwned else self._vjp_apart

    def _pull_plainly(self, hooks: ValueHooks | None, e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
        PULLS[e[0]](e, g, grads, owned)

    def _pull_followed(self, hooks: ValueHooks | None, e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
        """Pull as if nobody followed: what is recorded must be the same, or a checkpoint is not computed as before."""
        several = g.__class__ is dict
        before = {k: wrap(raw(part)) for k, part in g.items()} if several else wrap(raw(g))  # the pull may write to g
        PULLS[e[0]](e, g, grads, owned)
        for follower in self.followers:
            follower.pulled(self.tape, e, before, grads)

    def _vjp_apart(self, hooks: ValueHooks | None, e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
        """Pull, and show what it gives before it is added to what is there."""
        parts: Grads = {}
        ours: Owned = type(owned)()
        PULLS[e[0]](e, g, parts, ours)
        for follower in self.followers:
            follower.pulled(self.tape, e, g, parts)
        if hooks is not None and hooks.after:
            ours.clear()
            parts = self._post_hooked(hooks, e, g, parts)
        for node_id, part in parts.items():
            if node_id not in grads and node_id in ours:
                set.add(owned, node_id)
                grads[node_id] = part
            else:
                accumulate(grads, owned, node_id, part)

    def _post_hooked(self, hooks: ValueHooks, e: Entry, g: Any, parts: Grads) -> Grads:
        """Run the hooks of an op on what it gave its inputs; an input that stands there twice has one gradient."""
        node_ids = tuple(dict.fromkeys(inputs_of(e)))
        gs = tuple([parts.get(node_id) for node_id in node_ids])
        several = g.__class__ is dict
        outputs = [g.get(k) for k in range(max(hooks.count, *[k + 1 for k in g]))] if several else [g]
        for hook in hooks.after:
            gs = self._replaced(gs, hook, f"hook {name_of(hook)} on op {op_name(e)!r}", self._handles(outputs))
        return {node_id: part for node_id, part in zip(node_ids, gs, strict=True) if part is not None}

    # ------------------------------------------------------------ derivatives of the derivative

    def _retracked(self, e: Entry) -> Entry:
        link = RETRACKS.get(e[0])
        if link is None:
            return e
        results: dict[int, Any] = {}

        def to(value: Any, node_id: Any) -> Any:
            if node_id is None or not (is_array(value) or isinstance(value, Tensor)):
                return value
            if isinstance(node_id, Result):
                node_id = self._result(e[1], node_id.k, results)
            handle = value if isinstance(value, Tensor) else wrap(value)
            if self.tape.node_id_of(handle) is None:
                self.tape.track(handle, node_id)
            return handle

        return link(e, to)

    def _result(self, bundle: Any, k: int, results: dict[int, Any]) -> Any:
        """Return a mark for result k of an op of several, by a new entry: the first one may be swept."""
        if k not in results:
            results[k] = object()
            self.tape.entries.append(("result", results[k], bundle, k))
        return results[k]


def flat(values: Iterable[Any]) -> Iterable[Any]:
    """Yield what nested tuples hold, Tensors as their arrays."""
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        elif isinstance(value, SavedValuePlaceholder):
            yield from flat((value.kept,))
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
    parts = grads.setdefault(e[2], {})
    parts[e[3]] = parts[e[3]] + g if e[3] in parts else g


# Each result of an op of several has an entry of its own, after the op's. Walking back they come
# first and collect their gradients, by position, in what the op's own entry then finds as its gradient.
PULLS["result"] = _pull_result
INPUTS["result"] = one_input

# An intermediate that is attached gets a mark of its own through this op, so that what was
# computed from it before is told apart from what comes after.
PULLS["attach"] = _pull_attach
INPUTS["attach"] = one_input
PULLS["stale"] = _pull_stale

# Where a walk ends: a value whose gradient is wanted, with the entry that made it.
INPUTS["capture"] = lambda e: ()
INPUTS["stale"] = lambda e: tuple(e[2])
