"""What is current: nothing, a lone recorder, or a Stack of several.

One ContextVar holds it, so threads and asyncio tasks each have their own. A lone `Tape` stands
there as itself and the hot templates deal with it inline; everything else (nesting, groups,
forward mode, no_grad) is a `Stack`, the slow road.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._engine.tensor import Tensor, wrap

Groups = tuple[tuple["Recorder", ...], ...]
Hearer = tuple["Recorder", tuple[Any, ...]]  # one that took an op down, and what it calls the inputs

_current: ContextVar[Any] = ContextVar("gradmgr_current", default=None)
current = _current.get
# What `during` does, for a road too hot for an object.
set_current, reset_current = _current.set, _current.reset

_new = object.__new__


class _RecordingThreads:
    """Which threads are recording; a write in place is allowed where no other is.

    Between asking whether a buffer is private and writing to it, another thread that records could
    take the buffer and keep it for a derivative. So the two happen under a lock that a recording
    needs to begin, and while other threads record, buffers are replaced instead of written to.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: dict[int, int] = {}  # by thread, how many of its recordings are open

    def begin(self) -> int:
        """Count a recording of this thread; returns the thread."""
        here = threading.get_ident()
        with self.lock:
            self._open[here] = self._open.get(here, 0) + 1
        return here

    def end(self, thread: int) -> None:
        """Count a recording no more."""
        with self.lock:
            left = self._open.get(thread, 0) - 1
            if left > 0:
                self._open[thread] = left
            else:
                self._open.pop(thread, None)

    def is_alone(self) -> bool:
        """Tell whether no other thread records; asked, and acted on, with the lock held."""
        return not self._open or (len(self._open) == 1 and threading.get_ident() in self._open)

    def may_write(self, t: Tensor) -> bool:
        """Tell whether to write to the buffer of `t` in place; asked, and acted on, with the lock held."""
        return self.is_alone() and memory.is_private(t)


recording_threads = _RecordingThreads()


class Recorder:
    """Listens to operations; a mark is what it calls a tensor."""

    __slots__ = ("_thread", "has_overflow_ids", "leaf_ids", "open", "outer", "trace_log")

    # Whether no_grad hides it and the hot templates may deal with it inline.
    is_tape = False

    def __init__(self, leaf_ids: dict[Tensor, Any] | None = None) -> None:
        self.outer: Any = None  # what was current when this recorder was entered
        self.leaf_ids = {} if leaf_ids is None else leaf_ids  # marks of attached tensors; also keeps them alive
        self.open = True
        self.trace_log: Any = None  # of a traced recording
        self.has_overflow_ids = False  # whether a mark was put where the hot templates do not look
        self._thread = recording_threads.begin()

    def close(self) -> None:
        """Forget everything and hear nothing more."""
        if self.open:
            self.open = False
            recording_threads.end(self._thread)
        self.leaf_ids.clear()

    def node_id_of(self, t: Tensor) -> Any:
        """Return what this recorder calls `t`, or None."""
        if t._rec is self:
            return t._node_id
        node_id = self.leaf_ids.get(t)
        return _overflow_id(t, self) if node_id is None and self.has_overflow_ids else node_id

    def node_ids_of(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return what this recorder calls the inputs of an op, None for each that it does not know; None of none."""
        node_ids = tuple([self.node_id_of(t) if isinstance(t, Tensor) else None for t in inputs])
        return node_ids if any(node_id is not None for node_id in node_ids) else None

    def track(self, t: Tensor, node_id: Any) -> None:
        """Make this recorder call `t` by `mark` from now on."""
        rec = t._rec  # once, as other threads set it; `is_free`, inlined
        if rec is None or rec is self or not rec.open:
            t._node_id = node_id
            t._rec = self
            return
        more = getattr(t, "_overflow_ids", None)
        t._overflow_ids = {rec: m for rec, m in more.items() if rec.open} | {self: node_id} if more else {self: node_id}
        self.has_overflow_ids = True

    def forget(self, t: Tensor) -> None:
        """Stop knowing `t`."""
        self.leaf_ids.pop(t, None)
        if t._rec is self:
            t._rec = None
        more = getattr(t, "_overflow_ids", None)
        if more and self in more:
            t._overflow_ids = {rec: m for rec, m in more.items() if rec is not self}

    def record_op(
        self, op: Any, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        """Take down that `op` made `z`, a Tensor or a tuple of them.

        `values` and `out` are handles for the recorders below.
        """
        raise NotImplementedError


class Interceptor:
    """Sees every operation of its context, whoever records it; the slow road only.

    A watcher stands on the Stack beside the recorders until it is closed.
    """

    __slots__ = ("open",)

    # Whether `pulling` and `pulled` are to be called; that takes the slow road through backward.
    follows_backward = True

    # Whether it has a part in what is computed: then it stands around what is computed again, too.
    counts = False

    def __init__(self) -> None:
        self.open = True

    def again(self) -> Interceptor:
        """Return an open one that does the same; of those that count."""
        raise NotImplementedError

    def given(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        """Called before `op` is computed; returns the inputs, or what is to stand for them."""
        return inputs

    def made(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        """Called with the array, or tuple of arrays, that `op` made; not where it raised."""

    def pulling(self, e: tuple[Any, ...]) -> None:
        """Called before an entry of a tape is pulled."""

    def pulled(self, e: tuple[Any, ...], g: Any, grads: dict[Any, Any]) -> None:
        """Called when that is done, with the gradient of the entry's result and all gradients there are."""


def compute(op: Any, arrays: list[Any], params: tuple[Any, ...]) -> Any:
    """Return what the kernel of an op makes of arrays; an error says which op it was."""
    try:
        return op.kernel(*arrays, *params)
    except errors.REJECTIONS as error:
        libraries.explain(error, op.name, *arrays)
        raise


class Stack:
    """Several recorders, or none that listens: immutable, replaced when one enters or leaves.

    `groups` holds those that listen, outermost group first; members of one group do not hear
    each other's derivatives. `everyone` also holds those that no_grad hides: a write in place
    must make its tensor unknown to them too. `watchers` stand in the order they entered.
    """

    __slots__ = ("everyone", "groups", "interceptors", "tapes")

    def __init__(self, groups: Groups, everyone: Groups, interceptors: tuple[Interceptor, ...] = ()) -> None:
        self.groups = groups
        self.everyone = everyone
        self.interceptors = interceptors
        # Those that listen, where they are nested tapes and nothing else: the shorter road of `call`.
        nested = not interceptors and all(len(group) == 1 and group[0].is_tape for group in groups)
        self.tapes: tuple[Any, ...] = tuple([group[0] for group in groups]) if nested else ()

    def call(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...] = ()) -> Any:
        """Compute `op` once and let every recorder that knows an input take it down, outermost first.

        An op of several results gives a tuple of Tensors.
        """
        if self.tapes and not params:
            if len(inputs) == 2:
                return self._call_of_two(op, *inputs)
            if len(inputs) == 1:
                return self._call_of_one(op, *inputs)
        for interceptor in self.interceptors:
            if interceptor.open:
                inputs = interceptor.given(op, inputs, params)
        arrays = [t._array if isinstance(t, Tensor) else t for t in inputs]
        made = compute(op, arrays, params)
        for interceptor in self.interceptors:
            if interceptor.open:
                interceptor.made(op, inputs, params, made)
        return self._told(op, inputs, arrays, made, params)

    def _told(self, op: Any, inputs: tuple[Any, ...], arrays: list[Any], made: Any, params: tuple[Any, ...]) -> Any:
        """Make Tensors of the results of an op, and let those take it down who know an input."""
        z = tuple([wrap(part) for part in made]) if made.__class__ is tuple else wrap(made)
        lower: list[Hearer] = []
        for group in self.groups:
            heard: list[Hearer] = []
            for rec in group:
                node_ids = rec.node_ids_of(inputs) if rec.open else None
                if node_ids is None:
                    continue
                values, out = arrays, made
                if lower and (op.keeps_inputs or not rec.is_tape):
                    values = [_handle(a, k, lower) for k, a in enumerate(arrays)]
                if lower and (op.keeps_out or not rec.is_tape):
                    out = snapshot(z, [hearer for hearer, _ in lower])
                rec.record_op(op, node_ids, tuple(values), out, params, z)
                heard.append((rec, node_ids))
            lower += heard
        return z

    # The next two do what `call` does, for ops of one and of two inputs under nested tapes: most of what second
    # order meets. With `marks_of`, `note`, `stamp` and the loops written out, two tapes and 8 float32 elements
    # take 2.0 us instead of the 3.0 of the road for all, where a lone tape takes 0.67.

    def _call_of_one(self, op: Any, x: Any) -> Any:
        a = x._array
        try:
            c = op.kernel(a)
        except errors.REJECTIONS as error:
            libraries.explain(error, op.name, a)
            raise
        if c.__class__ is tuple:
            return self._told(op, (x,), [a], c, ())
        z = _new(Tensor)
        z._array = c
        z._rec = None
        lower: list[Hearer] = []  # the tapes that took it down, and what they call input and result
        for rec in self.tapes:
            if not rec.open:
                continue
            i = x._node_id if x._rec is rec else rec.leaf_ids.get(x)
            if i is None and (not rec.has_overflow_ids or (i := _overflow_id(x, rec)) is None):
                continue
            own, entries = object(), rec.entries
            if lower:
                value = _handle(a, 0, lower) if op.keeps_inputs else a
                out = _handle(c, 1, lower) if op.keeps_out else c
                entries.append(op.entry(own, (i,), (value,), out, ()))
                if len(lower) == 1:
                    z._overflow_ids = {rec: own}
                    rec.has_overflow_ids = True
                else:
                    rec.track(z, own)
            else:
                entries.append(op.entry(own, (i,), (a,), c, ()))
                z._node_id = own
                z._rec = rec
            if len(entries) > rec.limit:
                rec.sweep()
            lower.append((rec, (i, own)))
        return z

    def _call_of_two(self, op: Any, x: Any, y: Any) -> Any:
        is_x, is_y = isinstance(x, Tensor), isinstance(y, Tensor)
        a = x._array if is_x else x
        b = y._array if is_y else y
        try:
            c = op.kernel(a, b)
        except errors.REJECTIONS as error:
            libraries.explain(error, op.name, a, b)
            raise
        if c.__class__ is tuple:
            return self._told(op, (x, y), [a, b], c, ())
        z = _new(Tensor)
        z._array = c
        z._rec = None
        lower: list[Hearer] = []  # the tapes that took it down, and what they call inputs and result
        for rec in self.tapes:
            if not rec.open:
                continue
            i = (x._node_id if x._rec is rec else rec.leaf_ids.get(x)) if is_x else None
            j = (y._node_id if y._rec is rec else rec.leaf_ids.get(y)) if is_y else None
            if rec.has_overflow_ids:
                i = _overflow_id(x, rec) if i is None and is_x else i
                j = _overflow_id(y, rec) if j is None and is_y else j
            if i is None and j is None:
                continue
            own, entries = object(), rec.entries
            if lower:
                values = (_handle(a, 0, lower), _handle(b, 1, lower)) if op.keeps_inputs else (a, b)
                out = _handle(c, 2, lower) if op.keeps_out else c
                entries.append(op.entry(own, (i, j), values, out, ()))
                if len(lower) == 1:
                    z._overflow_ids = {rec: own}
                    rec.has_overflow_ids = True
                else:
                    rec.track(z, own)
            else:
                entries.append(op.entry(own, (i, j), (a, b), c, ()))
                z._node_id = own
                z._rec = rec
            if len(entries) > rec.limit:
                rec.sweep()
            lower.append((rec, (i, j, own)))
        return z


def _overflow_id(t: Tensor, rec: Recorder) -> Any:
    """Return what a recorder calls a tensor by a mark that stands where the hot templates do not look."""
    more = getattr(t, "_overflow_ids", None)
    return more.get(rec) if more else None


def _handle(array: Any, k: int, lower: list[Hearer]) -> Any:
    """Return what to keep of value k, whose array this is: what `snapshot` gives, of marks found already."""
    handle = None
    for rec, node_ids in lower:
        node_id = node_ids[k]
        if node_id is None:
            continue
        if handle is None:
            handle = _new(Tensor)
            handle._array = array
            if rec.is_tape:  # `stamp`, written out
                handle._node_id = node_id
                handle._rec = rec
                continue
            handle._rec = None
        rec.track(handle, node_id)
    return array if handle is None else handle


def is_untracked(t: Tensor) -> bool:
    """Tell whether the link of a tensor to a recorder may be taken: read once, as other threads set it."""
    rec = t._rec
    return rec is None or not rec.open


def snapshot(t: Any, recorders: Iterable[Recorder]) -> Any:
    """Return what to keep of `t` now: a handle that these recorders know, or the bare array.

    A fresh handle, never `t` itself: the user may write to `t` in place afterwards. Of a tuple, the
    results of an op of several, each.
    """
    if not isinstance(t, Tensor):
        return tuple([snapshot(part, recorders) for part in t]) if t.__class__ is tuple else t
    handle = None
    for rec in recorders:
        node_id = rec.node_id_of(t) if rec.open else None
        if node_id is not None:
            if handle is None:
                handle = wrap(t._array)
            rec.track(handle, node_id)
    return t._array if handle is None else handle


def _groups_of(state: Any) -> tuple[Groups, Groups]:
    if state is None:
        return (), ()
    if isinstance(state, Stack):
        return state.groups, state.everyone
    return ((state,),), ((state,),)


def interceptors_of(state: Any) -> tuple[Interceptor, ...]:
    """Return the watchers in a state that are open, the one that entered last last."""
    if state.__class__ is not Stack or not state.interceptors:
        return ()
    return tuple([w for w in state.interceptors if w.open])


def _without(groups: Groups, gone: Iterable[Recorder]) -> Groups:
    if not groups:
        return ()
    kept = (tuple([rec for rec in group if rec.open and rec not in gone]) for group in groups)
    return tuple([group for group in kept if group])


def _state(groups: Groups, everyone: Groups, interceptors: tuple[Interceptor, ...]) -> Any:
    """Return the simplest thing that says the same: None, a lone tape, or a Stack."""
    if groups == everyone and not interceptors:
        if not groups:
            return None
        if len(groups) == 1 and len(groups[0]) == 1:
            lone = groups[0][0]
            if lone.is_tape and not lone.has_overflow_ids:
                return lone
    return Stack(groups, everyone, interceptors)


def recorders(state: Any) -> list[Recorder]:
    """Return every recorder in a state, hidden ones too, outermost first."""
    return [] if state is None else [rec for group in _groups_of(state)[1] for rec in group]


def is_tracked(t: Tensor) -> bool:
    """Tell whether a recorder that is open in this context knows `t`."""
    return any(rec.open and rec.node_id_of(t) is not None for rec in recorders(current()))


def is_recording(rec: Recorder) -> bool:
    """Tell whether a recorder hears what is computed in this context now."""
    return any(rec in group for group in _groups_of(current())[0])


def enter(*group: Recorder) -> None:
    """Make these recorders, as one group, current above what is."""
    state = current()
    if state is None and len(group) == 1 and group[0].is_tape:  # the common case, without the tuples
        _current.set(group[0])
        return
    groups, everyone = (_without(part, ()) for part in _groups_of(state))
    interceptors = interceptors_of(state)
    below = _state(groups, everyone, interceptors)  # without what was released in another context
    for rec in group:
        rec.outer = below
    _current.set(_state((*groups, group), (*everyone, group), interceptors))


def leave(*gone: Recorder) -> None:
    """Take these recorders, and any that is closed, out of what is current, in any order."""
    state = current()
    if state is None:
        return
    if len(gone) == 1 and state is gone[0]:
        _current.set(None)
        return
    groups, everyone = _groups_of(state)
    _current.set(_state(_without(groups, gone), _without(everyone, gone), interceptors_of(state)))


def watch(interceptor: Interceptor) -> None:
    """Let a watcher see what is computed from here on in this context, and in those made of it."""
    state = current()
    groups, everyone = _groups_of(state)
    _current.set(_state(groups, everyone, (*interceptors_of(state), interceptor)))


def remove_interceptor(interceptor: Interceptor) -> None:
    """Close a watcher, and take every closed one out of what is current."""
    interceptor.open = False
    state = current()
    if isinstance(state, Stack):
        _current.set(_state(state.groups, state.everyone, interceptors_of(state)))


def rebind(x: Tensor, z: Tensor) -> Tensor:
    """Let `x` be `z` from now on, in value and for every recorder: what an in-place write means."""
    state = current()
    x._array = z._array
    if state is None:
        x._rec = None
        return x
    for rec in recorders(state):
        if rec.trace_log is not None and (node_id := rec.node_id_of(x)) is not None:
            rec.trace_log.record_write(x, node_id)
        rec.forget(x)
    x._rec = rec = z._rec
    if rec is not None:
        x._node_id = z._node_id
        x._overflow_ids = getattr(z, "_overflow_ids", {})
    return x


def activate(state: Any) -> None:
    """Make `state` current from here on."""
    _current.set(state)


class activated:  # noqa: N801  # reads as a statement: `with during(state):`
    """Make `state` current in a with block."""

    __slots__ = ("state", "token")

    def __init__(self, state: Any) -> None:
        self.state = state

    def __enter__(self) -> None:
        self.token = _current.set(self.state)

    def __exit__(self, *exc: object) -> None:
        _current.reset(self.token)


def hidden(state: Any) -> Any:
    """Return `state` with nobody listening; writes in place are still told to all."""
    return _state((), _groups_of(state)[1], interceptors_of(state))


def shown(state: Any) -> Any:
    """Return `state` with everyone listening who was hidden."""
    everyone = _without(_groups_of(state)[1], ())
    return _state(everyone, everyone, interceptors_of(state))


def above(below: Any, rec: Recorder) -> Any:
    """Return the state in which `rec` listens above `below`."""
    groups, everyone = (_without(part, ()) for part in _groups_of(below))
    return _state((*groups, (rec,)), (*everyone, (rec,)), interceptors_of(below))


def beside(state: Any, now: Any) -> Any:
    """Return `state` with the watchers of `now` added to its own."""
    own = interceptors_of(state)
    more = tuple(w for w in interceptors_of(now) if w not in own)
    if not more:
        return state
    return _state(*_groups_of(state), (*own, *more))


def again_under(interceptors: Iterable[Interceptor], state: Any) -> Any:
    """Return `state` with these watchers too, and for those that are closed by now others that do the same."""
    own = interceptors_of(state)
    more = tuple([w if w.open else w.again() for w in interceptors if w not in own])
    return _state(*_groups_of(state), (*own, *more)) if more else state


def told(below: Any, now: Any) -> Any:
    """Return the state for callbacks: who listens is as in `below`, writes in place are told to all of `now`."""
    groups, _ = _groups_of(below)
    _, everyone = _groups_of(now)
    return _state(_without(groups, ()), everyone, interceptors_of(now))


def carry_over(before: Any, after: Any) -> None:
    """Enter what was entered between two states of another place: recordings a callback left open."""
    known = recorders(before)
    for group in _groups_of(after)[1]:
        new = tuple(rec for rec in group if rec.open and rec not in known)
        if new:
            enter(*new)
