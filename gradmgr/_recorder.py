"""What is current: nothing, a lone recorder, or a Stack of several.

One ContextVar holds it, so threads and asyncio tasks each have their own. A lone `Tape` stands
there as itself and the hot templates deal with it inline; everything else (nesting, groups,
forward mode, no_grad) is a `Stack`, the slow road.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from gradmgr import _xp, errors
from gradmgr._tensor import Tensor, wrap

F = TypeVar("F", bound=Callable[..., Any])
Groups = tuple[tuple["Recorder", ...], ...]

_current: ContextVar[Any] = ContextVar("gradmgr_current", default=None)
current = _current.get
# The no_grad and enable_grad blocks entered in this context, each with what was current before.
_modes: ContextVar[tuple[Any, ...]] = ContextVar("gradmgr_modes", default=())


class _Crowd:
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

    def may_write(self, t: Tensor) -> bool:
        """Tell whether to write to the buffer of `t` in place; asked, and acted on, with the lock held."""
        alone = not self._open or (len(self._open) == 1 and threading.get_ident() in self._open)
        return alone and _xp.is_private(t)


crowd = _Crowd()


class Recorder:
    """Listens to operations; a mark is what it calls a tensor."""

    __slots__ = ("_thread", "below", "guests", "open", "strays")

    # Whether no_grad hides it and the hot templates may deal with it inline.
    is_tape = False

    def __init__(self) -> None:
        self.below: Any = None  # what was current when this recorder was entered
        self.guests: dict[Tensor, Any] = {}  # marks of attached tensors; also keeps them alive
        self.open = True
        self.strays = False  # whether a mark was put where the hot templates do not look
        self._thread = crowd.begin()

    def close(self) -> None:
        """Forget everything and hear nothing more."""
        if self.open:
            self.open = False
            crowd.end(self._thread)
        self.guests.clear()

    def known(self, t: Tensor) -> Any:
        """Return what this recorder calls `t`, or None."""
        if t._rec is self:
            return t._mark
        mark = self.guests.get(t)
        if mark is None and self.strays:
            more = getattr(t, "_more", None)
            if more:
                return more.get(self)
        return mark

    def stamp(self, t: Tensor, mark: Any) -> None:
        """Make this recorder call `t` by `mark` from now on."""
        if t._rec is None or t._rec is self or not t._rec.open:
            t._mark = mark
            t._rec = self
            return
        more = getattr(t, "_more", {})
        t._more = {rec: m for rec, m in more.items() if rec.open} | {self: mark}
        self.strays = True

    def forget(self, t: Tensor) -> None:
        """Stop knowing `t`."""
        self.guests.pop(t, None)
        if t._rec is self:
            t._rec = None
        more = getattr(t, "_more", None)
        if more and self in more:
            t._more = {rec: m for rec, m in more.items() if rec is not self}

    def note(
        self, op: Any, marks: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        """Take down that `op` made `z`, a Tensor or a tuple of them.

        `values` and `out` are handles for the recorders below.
        """
        raise NotImplementedError


class Stack:
    """Several recorders, or none that listens: immutable, replaced when one enters or leaves.

    `groups` holds those that listen, outermost group first; members of one group do not hear
    each other's derivatives. `everyone` also holds those that no_grad hides: a write in place
    must make its tensor unknown to them too.
    """

    __slots__ = ("everyone", "groups")

    def __init__(self, groups: Groups, everyone: Groups) -> None:
        self.groups = groups
        self.everyone = everyone

    def call(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...] = ()) -> Any:
        """Compute `op` once and let every recorder that knows an input take it down, outermost first.

        An op of several results gives a tuple of Tensors.
        """
        arrays = [t._array if isinstance(t, Tensor) else t for t in inputs]
        try:
            made = op.kernel(*arrays, *params)
        except errors.REJECTIONS as error:
            _xp.explain(error, op.name, *arrays)
            raise
        z = tuple([wrap(part) for part in made]) if made.__class__ is tuple else wrap(made)
        lower: list[Recorder] = []
        for group in self.groups:
            for rec in group:
                if not rec.open:
                    continue
                marks = tuple([rec.known(t) if isinstance(t, Tensor) else None for t in inputs])
                if any(m is not None for m in marks):
                    values = tuple([snapshot(t, lower) for t in inputs])
                    rec.note(op, marks, values, snapshot(z, lower), params, z)
            lower.extend(group)
        return z


def snapshot(t: Any, recorders: Iterable[Recorder]) -> Any:
    """Return what to keep of `t` now: a handle that these recorders know, or the bare array.

    A fresh handle, never `t` itself: the user may write to `t` in place afterwards. Of a tuple, the
    results of an op of several, each.
    """
    if not isinstance(t, Tensor):
        return tuple([snapshot(part, recorders) for part in t]) if t.__class__ is tuple else t
    handle = None
    for rec in recorders:
        mark = rec.known(t) if rec.open else None
        if mark is not None:
            if handle is None:
                handle = wrap(t._array)
            rec.stamp(handle, mark)
    return t._array if handle is None else handle


def _groups_of(state: Any) -> tuple[Groups, Groups]:
    if state is None:
        return (), ()
    if isinstance(state, Stack):
        return state.groups, state.everyone
    return ((state,),), ((state,),)


def _without(groups: Groups, gone: Iterable[Recorder]) -> Groups:
    kept = (tuple(rec for rec in group if rec.open and rec not in gone) for group in groups)
    return tuple(group for group in kept if group)


def _state(groups: Groups, everyone: Groups) -> Any:
    """Return the simplest thing that says the same: None, a lone tape, or a Stack."""
    if groups == everyone:
        if not groups:
            return None
        if len(groups) == 1 and len(groups[0]) == 1:
            lone = groups[0][0]
            if lone.is_tape and not lone.strays:
                return lone
    return Stack(groups, everyone)


def recorders(state: Any) -> list[Recorder]:
    """Return every recorder in a state, hidden ones too, outermost first."""
    return [rec for group in _groups_of(state)[1] for rec in group]


def is_tracked(t: Tensor) -> bool:
    """Tell whether a recorder that is open in this context knows `t`."""
    return any(rec.open and rec.known(t) is not None for rec in recorders(current()))


def enter(*group: Recorder) -> None:
    """Make these recorders, as one group, current above what is."""
    state = current()
    if state is None and len(group) == 1 and group[0].is_tape:  # the common case, without the tuples
        _current.set(group[0])
        return
    groups, everyone = (_without(part, ()) for part in _groups_of(state))
    below = _state(groups, everyone)  # without what was released in another context
    for rec in group:
        rec.below = below
    _current.set(_state((*groups, group), (*everyone, group)))


def leave(*gone: Recorder) -> None:
    """Take these recorders, and any that is closed, out of what is current, in any order."""
    state = current()
    if state is None:
        return
    if len(gone) == 1 and state is gone[0]:
        _current.set(None)
        return
    groups, everyone = _groups_of(state)
    _current.set(_state(_without(groups, gone), _without(everyone, gone)))


def rebind(x: Tensor, z: Tensor) -> Tensor:
    """Let `x` be `z` from now on, in value and for every recorder: what an in-place write means."""
    state = current()
    x._array = z._array
    if state is None:
        x._rec = None
        return x
    for rec in recorders(state):
        rec.forget(x)
    x._rec = z._rec
    if z._rec is not None:
        x._mark = z._mark
        x._more = getattr(z, "_more", {})
    return x


class during:  # noqa: N801  # reads as a statement: `with during(state):`
    """Make `state` current in a with block."""

    __slots__ = ("state", "token")

    def __init__(self, state: Any) -> None:
        self.state = state

    def __enter__(self) -> None:
        self.token = _current.set(self.state)

    def __exit__(self, *exc: object) -> None:
        _current.reset(self.token)


def hidden(state: Any) -> Any:
    """Return `state` with its tapes hidden: forward mode goes on, writes are still told to all."""
    groups, everyone = _groups_of(state)
    listening = (tuple(rec for rec in group if not rec.is_tape) for group in groups)
    return _state(tuple(group for group in listening if group), everyone)


def told(below: Any, now: Any) -> Any:
    """Return the state for callbacks: who listens is as in `below`, writes in place are told to all of `now`."""
    groups, _ = _groups_of(below)
    _, everyone = _groups_of(now)
    return _state(_without(groups, ()), everyone)


def carry_over(before: Any, after: Any) -> None:
    """Enter what was entered between two states of another place: recordings a callback left open."""
    known = recorders(before)
    for group in _groups_of(after)[1]:
        new = tuple(rec for rec in group if rec.open and rec not in known)
        if new:
            enter(*new)


class _Mode:
    """A context manager and decorator that changes what listens."""

    __slots__ = ()

    def _wanted(self, state: Any) -> Any:
        raise NotImplementedError

    def __enter__(self) -> None:
        state = current()
        _modes.set((*_modes.get(), (self, state)))
        _current.set(self._wanted(state))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What was entered or released inside the block stays so.
        entered = _modes.get()
        last = max(k for k, (mode, _) in enumerate(entered) if mode is self)
        _modes.set(entered[:last] + entered[last + 1 :])
        before, now = entered[last][1], current()
        groups, _ = _groups_of(before)
        _, everyone = _groups_of(now)
        listening = [rec for group in groups for rec in group]
        earlier = recorders(before)
        kept = (tuple(rec for rec in group if rec in listening or rec not in earlier) for group in everyone)
        _current.set(_state(tuple(group for group in kept if group), everyone))

    def __call__(self, function: F) -> F:
        import inspect

        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{type(self).__name__} decorates plain functions; {function.__qualname__} is a generator or "
                f"coroutine function; write `with {type(self).__name__}():` in its body"
            )
        make = type(self)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with make():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature


class no_grad(_Mode):  # noqa: N801  # torch's spelling
    """Stop every manager from recording, in a with block or a decorated function.

    A write in place under no_grad makes its tensor a constant from there on.

    >>> import gradmgr
    >>> x = gradmgr.tensor([3.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     with gradmgr.no_grad():
    ...         c = x * x
    ...     gm.backward(c * x)
    >>> x.grad
    Tensor([9.])
    """

    __slots__ = ()

    def _wanted(self, state: Any) -> Any:
        return hidden(state)


class enable_grad(_Mode):  # noqa: N801  # torch's spelling
    """Let the managers that `no_grad` stopped record again, in a with block or a decorated function.

    >>> import gradmgr
    >>> x = gradmgr.tensor([3.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm, gradmgr.no_grad():
    ...     with gradmgr.enable_grad():
    ...         y = x * x
    ...     gm.backward(y)
    >>> x.grad
    Tensor([6.])
    """

    __slots__ = ()

    def _wanted(self, state: Any) -> Any:
        _, everyone = _groups_of(state)
        return _state(_without(everyone, ()), _without(everyone, ()))
