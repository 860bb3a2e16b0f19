"""Modes such as `no_grad`: which recorders record, in a block, a function, or from here on.

Which recorders record follows from the modes in effect: each acts on the recorders that existed when it was
set, a later mode overriding an earlier one. So blocks may be left in any order, and a manager that starts to
record inside a block does record.
"""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from typing import Any, Self, TypeVar, overload

from gradmgr._engine.cleanup import ExitMethod, Scope, complete, make_room
from gradmgr._engine.context import Context, activate, activate_again, current, recorders
from gradmgr._engine.recorder import Recorder

F = TypeVar("F", bound=Callable[..., Any])


class _Setting:
    """One mode in effect: what it sets, and the recorders it applies to."""

    __slots__ = ("after", "before", "grad", "inference", "outside", "owner", "recorders", "within")

    def __init__(
        self, owner: Any, within: _Setting | None, grad: bool, inference: bool | None, affected: tuple[Recorder, ...]
    ) -> None:
        self.owner = owner  # the mode whose block it is; None for a plain call of set_grad_enabled
        self.within = within  # of a plain call: the block that it was made in, and with which it ends
        self.grad = grad  # whether managers record
        self.inference = inference  # whether all recorders, tangents too, are paused; None leaves that as it is
        self.recorders = affected  # those that recorded, or that only a mode had paused
        # Of a block: how many modes were in effect outside, and what was current there, and in it at first.
        self.outside = 0
        self.before = self.after = None


Settings = tuple[_Setting, ...]

# The modes in effect in this context, in the order they were set.
_modes: ContextVar[Settings] = ContextVar("gradmgr_modes", default=())
modes_in_effect = _modes.get  # the same object as long as no mode is set or withdrawn


def _affected_recorders(settings: Settings, state: Any) -> tuple[Recorder, ...]:
    """Return the recorders of a state that record, or that only modes have paused."""
    if state.__class__ is not Context:  # most often: nothing records, or one manager does
        return () if state is None else (state,)
    active = state.recording()
    # A recorder that is paused though the modes allow it, as inside a Function's forward, is left paused.
    return tuple([rec for rec in recorders(state) if rec in active or not _may_record(rec, settings)])


def _may_record(rec: Recorder, settings: Settings) -> bool:
    grad, inference = True, False
    for s in settings:
        if rec in s.recorders:
            grad = s.grad
            inference = inference if s.inference is None else s.inference
    return not inference and (grad or not rec.is_tape)


def _add(setting: _Setting, settings: Settings) -> None:
    """Put a mode into effect, after these; at first the mode, and then what it pauses, so that `_withdraw` finds it."""
    in_effect = (*settings, setting)
    _modes.set(in_effect)
    if setting.recorders:
        _pause_and_resume(in_effect, setting.recorders)


def _withdraw(kept: Settings) -> None:
    """Undo the modes in effect but these; called again where an exception interrupts it.

    The modes are changed last: until then they determine which recorders are to be resumed.
    """
    affected = _affected_recorders(_modes.get(), current())
    if affected:
        _pause_and_resume(kept, affected)
    _modes.set(kept)


def _pause_and_resume(settings: Settings, affected: tuple[Recorder, ...]) -> None:
    """Pause or resume the affected recorders, as these modes ask for."""
    state = current()
    wanted = [rec for rec in affected if _may_record(rec, settings)]
    if wanted == Context.of(state).recording():
        return
    activate(Context.of(state).recorded_by(wanted))


# ---------------------------------------------------------------- as context manager and decorator


class _Mode(Scope):
    """A context manager and decorator that changes which recorders record."""

    __slots__ = ()

    def _setting(self) -> tuple[bool, bool | None]:
        """Return `grad` and `inference` of its `_Setting`."""
        raise NotImplementedError

    def _begin(self) -> _Setting:
        return _Setting(self, None, *self._setting(), _affected_recorders(_modes.get(), current()))

    def _latest(self) -> _Setting | None:
        # None if a generator is finalised in another context than the one it entered in.
        settings = _modes.get()
        if settings and settings[-1].owner is self:  # the usual case, in a third of the time
            return settings[-1]
        return next((s for s in reversed(settings) if s.owner is self), None)

    def _open(self, opened: _Setting) -> None:
        settings = _modes.get()
        opened.outside, opened.before = len(settings), current()
        _add(opened, settings)
        opened.after = current()

    def _close_latest(self, found: list[Any]) -> None:
        settings = _modes.get()
        opened = settings[-1] if settings and not found else None
        is_usual = opened is not None and opened.owner is self and len(settings) == opened.outside + 1
        if opened is None or not is_usual or opened.after is not current():
            Scope._close_latest(self, found)
            return
        found.append(opened)  # of what was outside nothing has changed
        if opened.before is not opened.after:
            activate_again(opened.before)
        _modes.set(settings[:-1])

    def _close(self, opened: _Setting) -> None:
        settings = _modes.get()
        if opened in settings:
            _withdraw(tuple([s for s in settings if s is not opened and s.within is not opened]))

    def __call__(self, function: F) -> F:
        return decorate(type(self).__name__, lambda: self, function)


def decorate(name: str, make: Callable[[], Scope], function: F, *, may_suspend: bool = True) -> F:
    """Return a function whose body runs inside a scope.

    Of a generator, a coroutine or an async generator each step runs inside, so that the context is left
    while the body is suspended and other code runs.

    Args:
        name: the decorator's name, for errors.
        make: returns the context manager, at each call or step.
        function: the function to decorate.
        may_suspend: whether the context may be left and a new one entered in the middle of a body.

    Raises:
        TypeError: `function` is a class, a staticmethod or classmethod object, or cannot be called.
    """
    import inspect  # deferred, as it takes 10 ms

    _check_decorates(name, function)
    is_function = isinstance(function, functools.partial) or inspect.isroutine(function)
    body = function if is_function else type(function).__call__
    if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        if not may_suspend:
            raise TypeError(
                f"{name} cannot decorate the generator function {_name_of(function)}: it would end at each yield; "
                f"write `with {name}():` around the loop that consumes it"
            )
        wrap = _wrap_async_generator if inspect.isasyncgenfunction(body) else _wrap_generator
    elif inspect.iscoroutinefunction(body):
        wrap = _wrap_coroutine_steps if may_suspend else _wrap_coroutine
    else:
        wrap = _wrap_function
    return functools.wraps(function)(wrap(make, function))  # type: ignore[return-value]  # the signature is kept


def _check_decorates(name: str, function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(
            f"{name} decorates functions; {function.__qualname__} is a class: decorate its methods, or write "
            f"`with {name}():` where it is used"
        )
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"{name} decorates functions; write @{type(function).__name__} above it, not below")
    if not callable(function):
        raise TypeError(f"{name} decorates functions; found {type(function).__name__}")


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _wrap_function(make: Callable[[], Scope], function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return make().run(function, *args, **kwargs)

    return wrapped


def _wrap_coroutine(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        with make():
            return await function(*args, **kwargs)

    return wrapped


def _wrap_generator(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator that runs each step of the one that `function` returns inside the context manager."""

    def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = function(*args, **kwargs)
        step, sent = body.send, None
        while True:
            try:
                yielded = make().run(step, sent)
            except StopIteration as stop:
                return stop.value
            finally:
                sent = None  # an error that was thrown in: its traceback refers to this frame
            try:
                sent = yield yielded
                step = body.send
            except BaseException as error:  # whatever is thrown in, GeneratorExit too, goes to the body
                step, sent = body.throw, error

    return wrapped


def _wrap_coroutine_steps(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    run: Callable[..., Any] = types.coroutine(_wrap_generator(make, function))

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await run(*args, **kwargs)

    return wrapped


def _wrap_async_generator(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    run: Callable[..., Any] = types.coroutine(_wrap_generator(make, lambda step, sent: step(sent)))

    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = function(*args, **kwargs)
        step, sent = body.asend, None
        while True:
            try:
                yielded = await run(step, sent)
            except StopAsyncIteration:
                return
            finally:
                sent = None  # as in `_wrap_generator`
            try:
                sent = yield yielded
                step = body.asend
            except BaseException as error:  # as in `_wrap_generator`
                step, sent = body.athrow, error

    return wrapped


# ---------------------------------------------------------------- the modes


class _PlainMode(_Mode):
    """A mode without arguments, which decorates a function with and without parentheses."""

    __slots__ = ()

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]  # @no_grad gives a function
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)


class no_grad(_PlainMode):  # noqa: N801  # torch's spelling
    """Stop every manager from recording, in a with block or a decorated function.

    A write in place under no_grad makes its tensor a constant from there on. The tangents of
    `forward_ad` go on. A manager that starts to record inside the block does record.

    Decorates, with or without parentheses, functions, generators, coroutines and async generators; it
    is in effect while their body runs, not while it is suspended. Blocks may be left in any order, and each
    thread and asyncio task has its own.

    Raises:
        TypeError: `function` is not a function.

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

    def _setting(self) -> tuple[bool, bool | None]:
        return False, None


class enable_grad(_PlainMode):  # noqa: N801  # torch's spelling
    """Let managers paused by `no_grad` record again, in a with block or a decorated function.

    It starts no manager, and does not undo `inference_mode`. It decorates what `no_grad` decorates.

    Raises:
        TypeError: `function` is not a function.

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

    def _setting(self) -> tuple[bool, bool | None]:
        return True, None


class set_grad_enabled(_Mode):  # noqa: N801  # torch's spelling
    """Act as `enable_grad` if `mode`, else as `no_grad`: in a with block, a decorated function, or from here on.

    Called by itself it takes effect at once, until the end of the enclosing block of a mode, or of the thread
    or task. The end of a with block restores what was in effect before the call. As a decorator it has an
    effect only in the function.

    Args:
        mode: whether managers record.

    Raises:
        TypeError: `mode` is not a bool.

    >>> import gradmgr
    >>> x = gradmgr.tensor([3.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     with gradmgr.set_grad_enabled(False):
    ...         c = x * x
    ...     gm.backward(c * x)
    >>> x.grad
    Tensor([9.])
    """

    __slots__ = ("_mode", "_own", "_replaced")

    def __init__(self, mode: bool) -> None:
        _check_mode("set_grad_enabled", mode)
        make_room()
        self._mode = mode
        settings = _modes.get()
        affected = _affected_recorders(settings, current())
        within = next((s for s in reversed(settings) if s.owner is not None), None)
        last = settings[-1] if settings else None
        # Of several calls in one block only the last counts and is kept; else a loop of calls would pile up.
        self._replaced = last if last is not None and last.owner is None and last.within is within else None
        self._own = _Setting(None, within, mode, None, affected)
        try:
            try:
                _add(self._own, settings if self._replaced is None else settings[:-1])
            except BaseException:
                complete(self._undo_call)
                raise
        except BaseException:
            complete(self._undo_call)
            raise

    def _setting(self) -> tuple[bool, bool | None]:
        return self._mode, None

    def _undo_call(self) -> None:
        """Undo the call of the constructor, if it is still in effect here."""
        settings = _modes.get()
        if self._own in settings:
            changed = [self._replaced if s is self._own else s for s in settings]
            _withdraw(tuple([s for s in changed if s is not None]))

    def __enter__(self) -> None:
        try:
            try:
                self._undo_call()
                super().__enter__()
            except BaseException:
                complete(self._undo_call)
                raise
        except BaseException:
            complete(self._undo_call)
            raise

    def _latest(self) -> _Setting:
        return super()._latest() or self._own  # the call's where an exception struck before the block began

    def _close(self, opened: _Setting) -> None:
        if opened is self._own:
            self._undo_call()
        else:
            super()._close(opened)

    __exit__ = ExitMethod(_undo_call)

    def __call__(self, function: F) -> F:
        complete(self._undo_call)
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801  # torch's spelling
    """Stop all recording: that of managers and, unlike `no_grad`, that of tangents.

    A write in place makes its tensor a constant from there on, for every manager and level. `enable_grad`
    inside does not undo it, `inference_mode(False)` does. It decorates what `no_grad` decorates.

    Args:
        mode: whether to stop; False resumes, in the block, everything that modes have stopped.

    Raises:
        TypeError: `mode` is neither a bool nor a function to decorate.

    >>> import gradmgr
    >>> @gradmgr.inference_mode
    ... def predict(x):
    ...     return x * x
    >>> x = gradmgr.tensor([3.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     gm.backward(predict(x) * x)
    >>> x.grad
    Tensor([9.])
    """

    __slots__ = ("_mode",)

    _mode: bool

    @overload
    def __new__(cls, mode: bool = True) -> inference_mode: ...
    @overload
    def __new__(cls, mode: F) -> F: ...  # type: ignore[misc]  # @inference_mode gives a function
    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):
            return cls()(mode)
        _check_mode("inference_mode", mode)
        made = super().__new__(cls)
        made._mode = mode
        return made

    def _setting(self) -> tuple[bool, bool | None]:
        return not self._mode, self._mode


def _check_mode(name: str, mode: Any) -> None:
    if not isinstance(mode, bool):
        raise TypeError(f"{name}(mode) takes True or False; found {type(mode).__name__}")


def is_grad_enabled() -> bool:
    """Return whether managers record at this point of the program; True if no mode is in effect.

    Where a manager is paused for a while, as in the `forward` of a `Function` and in hooks, it is False.

    >>> import gradmgr
    >>> with gradmgr.no_grad():
    ...     gradmgr.is_grad_enabled()
    False
    """
    state = Context.of(current())
    recording = state.recording()
    if any(rec.is_tape and rec.open for rec in recording):
        return True
    settings = _modes.get()
    if settings and not settings[-1].grad:
        return False
    return not any(rec.is_tape and rec.open for rec in recorders(state))


def is_inference_mode_enabled() -> bool:
    """Return whether `inference_mode` is in effect.

    >>> import gradmgr
    >>> with gradmgr.inference_mode():
    ...     gradmgr.is_inference_mode_enabled()
    True
    """
    return next((s.inference for s in reversed(_modes.get()) if s.inference is not None), False)
