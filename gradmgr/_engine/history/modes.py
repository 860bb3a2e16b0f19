"""Modes: what listens to what is computed, in a block, a function, or from here on.

Who listens follows from the modes that hold: each acts on the recorders that were there when it was
set, a later one over an earlier. So blocks may be left in any order, and what starts to record inside
a block does record: that was said later.
"""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from gradmgr._engine.recorder import Recorder, Stack, activate, current, interceptors_of, recorders, shown

F = TypeVar("F", bound=Callable[..., Any])


class _Setting:
    """One mode that holds: what it sets, and whom it was said to."""

    __slots__ = ("base", "grad", "inference", "owner", "within")

    def __init__(
        self, owner: Any, within: _Setting | None, grad: bool, inference: bool | None, base: tuple[Recorder, ...]
    ) -> None:
        self.owner = owner  # the mode whose block it is; None for a plain call of set_grad_enabled
        self.within = within  # of a plain call: the block it was made in, at whose end it ends
        self.grad = grad  # whether managers record
        self.inference = inference  # whether nothing listens at all; None leaves that as it is
        self.base = base  # the recorders that listened, or would have but for a mode


Settings = tuple[_Setting, ...]

# The modes that hold in this context, in the order they were set.
_modes: ContextVar[Settings] = ContextVar("gradmgr_modes", default=())


def _listening(state: Any) -> list[Recorder]:
    return [rec for group in state.groups for rec in group] if isinstance(state, Stack) else recorders(state)


def _base(settings: Settings, state: Any) -> tuple[Recorder, ...]:
    """Return the recorders of a state that listen, or would if no mode held."""
    if state.__class__ is not Stack:  # most often: nothing records, or one manager, which listens
        return () if state is None else (state,)
    observing = _listening(state)
    # Who does not listen though the modes let it, as inside a Function's forward, is not theirs to wake.
    return tuple([rec for rec in recorders(state) if rec in observing or not _may_listen(rec, settings)])


def _may_listen(rec: Recorder, settings: Settings) -> bool:
    grad, inference = True, False
    for s in settings:
        if rec in s.base:
            grad = s.grad
            inference = inference if s.inference is None else s.inference
    return not inference and (grad or not rec.is_tape)


def _settle(settings: Settings, base: tuple[Recorder, ...]) -> None:
    """Let these modes hold from here on."""
    _modes.set(settings)
    if not base:
        return  # nobody whom a mode could stop or let go on
    state = current()
    wanted = [rec for rec in base if _may_listen(rec, settings)]
    if wanted == _listening(state):
        return
    everyone = state.everyone if isinstance(state, Stack) else ((state,),)
    groups = tuple([kept for group in everyone if (kept := tuple([rec for rec in group if rec in wanted]))])
    changed = Stack(groups, everyone, interceptors_of(state))
    activate(shown(changed) if groups == everyone else changed)


# ---------------------------------------------------------------- as context manager and decorator


class _Mode:
    """A context manager and decorator that changes what listens."""

    __slots__ = ()

    def _effect(self) -> tuple[bool, bool | None]:
        """Return what `_Setting` calls grad and inference."""
        raise NotImplementedError

    def __enter__(self) -> None:
        settings = _modes.get()
        base = _base(settings, current())
        _settle((*settings, _Setting(self, None, *self._effect(), base)), base)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        settings = _modes.get()
        mine = next((s for s in reversed(settings) if s.owner is self), None)
        if mine is not None:  # a generator may be finalised in another context than the one it entered in
            kept = tuple([s for s in settings if s is not mine and s.within is not mine])
            _settle(kept, _base(settings, current()))

    def __call__(self, function: F) -> F:
        return decorated(type(self).__name__, lambda: self, function)


def decorated(name: str, make: Callable[[], Any], function: F, *, may_suspend: bool = True) -> F:
    """Return a function whose body runs inside a context manager.

    Of a generator, a coroutine and an async generator each step runs inside, so that nothing holds
    while it is suspended and others run.

    Args:
        name: of the decorator, for errors.
        make: gives the context manager, at each call or step.
        function: what is decorated.
        may_suspend: whether one can be left and the next one entered in the middle of a body.

    Raises:
        TypeError: a class, a staticmethod or classmethod object, or nothing that can be called.
    """
    import inspect  # late, as it takes 10 ms

    _check_decorates(name, function)
    own = isinstance(function, functools.partial) or inspect.isroutine(function)
    body = function if own else type(function).__call__
    if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        if not may_suspend:
            raise TypeError(
                f"{name} cannot decorate the generator function {_called(function)}: it would end at each yield; "
                f"write `with {name}():` around the loop that consumes it"
            )
        way = _of_async_generator if inspect.isasyncgenfunction(body) else _in_steps
    elif inspect.iscoroutinefunction(body):
        way = _of_coroutine if may_suspend else _of_whole_coroutine
    else:
        way = _of_function
    return functools.wraps(function)(way(make, function))  # type: ignore[return-value]  # the signature is kept


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


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _of_function(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with make():
            return function(*args, **kwargs)

    return wrapped


def _of_whole_coroutine(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        with make():
            return await function(*args, **kwargs)

    return wrapped


def _in_steps(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """Drive what `function` makes, anything with send() and throw(), each step inside."""

    def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = function(*args, **kwargs)
        step, given = body.send, None
        while True:
            try:
                with make():
                    got = step(given)
            except StopIteration as stop:
                return stop.value
            try:
                given = yield got
                step = body.send
            except BaseException as error:  # whatever is thrown in, GeneratorExit too, is the body's to answer
                step, given = body.throw, error

    return wrapped


def _of_coroutine(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    run: Callable[..., Any] = types.coroutine(_in_steps(make, function))

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await run(*args, **kwargs)

    return wrapped


def _of_async_generator(make: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    run: Callable[..., Any] = types.coroutine(_in_steps(make, lambda step, given: step(given)))

    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = function(*args, **kwargs)
        step, given = body.asend, None
        while True:
            try:
                got = await run(step, given)
            except StopAsyncIteration:
                return
            try:
                given = yield got
                step = body.asend
            except BaseException as error:  # as in `_in_steps`
                step, given = body.athrow, error

    return wrapped


# ---------------------------------------------------------------- the modes


class no_grad(_Mode):  # noqa: N801  # torch's spelling
    """Stop every manager from recording, in a with block or a decorated function.

    A write in place under no_grad makes its tensor a constant from there on. The tangents of
    `forward_ad` go on. A manager that starts to record inside the block does record.

    Decorates, with or without parentheses, functions, generators, coroutines and async generators; it
    holds while their body runs, not while it is suspended. Blocks may be left in any order, and each
    thread and asyncio task has its own.

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

    @overload
    def __new__(cls) -> no_grad: ...
    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]  # @no_grad gives a function
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)

    def _effect(self) -> tuple[bool, bool | None]:
        return False, None


class enable_grad(_Mode):  # noqa: N801  # torch's spelling
    """Let the managers that `no_grad` stopped record again, in a with block or a decorated function.

    It starts no manager, and does not undo `inference_mode`. Decorates what `no_grad` does.

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

    @overload
    def __new__(cls) -> enable_grad: ...
    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]  # @enable_grad gives a function
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)

    def _effect(self) -> tuple[bool, bool | None]:
        return True, None


class set_grad_enabled(_Mode):  # noqa: N801  # torch's spelling
    """Be `enable_grad` or `no_grad`, as `mode` says: in a with block, a decorated function, or from here on.

    Called by itself it takes effect at once and stays, until the end of the block of a mode that it stands
    in, or of the thread or task. In a with block what held before the call is restored at the end. As a
    decorator it has no effect but in the function.

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

    __slots__ = ("_mine", "_mode", "_replaced")

    def __init__(self, mode: bool) -> None:
        _check_mode("set_grad_enabled", mode)
        self._mode = mode
        settings = _modes.get()
        base = _base(settings, current())
        within = next((s for s in reversed(settings) if s.owner is not None), None)
        last = settings[-1] if settings else None
        # The last of several calls in one block says all; else a loop of calls would pile up.
        self._replaced = last if last is not None and last.owner is None and last.within is within else None
        self._mine = _Setting(None, within, mode, None, base)
        _settle((*(settings if self._replaced is None else settings[:-1]), self._mine), base)

    def _effect(self) -> tuple[bool, bool | None]:
        return self._mode, None

    def _take_back(self) -> None:
        """Undo the call, if it still holds here."""
        settings = _modes.get()
        if self._mine in settings:
            changed = [self._replaced if s is self._mine else s for s in settings]
            _settle(tuple([s for s in changed if s is not None]), _base(settings, current()))

    def __enter__(self) -> None:
        self._take_back()
        super().__enter__()

    def __call__(self, function: F) -> F:
        self._take_back()
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801  # torch's spelling
    """Stop everything that follows the operations: managers and, unlike `no_grad`, tangents too.

    A write in place makes its tensor a constant from there on, for every manager and level. `enable_grad`
    inside does not undo it, `inference_mode(False)` does. Decorates what `no_grad` does.

    Args:
        mode: whether to stop; False lets all go on that a mode stopped, in the block.

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

    def _effect(self) -> tuple[bool, bool | None]:
        return not self._mode, self._mode


def _check_mode(name: str, mode: Any) -> None:
    if not isinstance(mode, bool):
        raise TypeError(f"{name}(mode) takes True or False; found {type(mode).__name__}")


def is_grad_enabled() -> bool:
    """Tell whether the managers that record hear what is computed now; True where no mode says otherwise.

    >>> import gradmgr
    >>> with gradmgr.no_grad():
    ...     gradmgr.is_grad_enabled()
    False
    """
    settings = _modes.get()
    return not settings or settings[-1].grad or any(rec.is_tape and rec.open for rec in _listening(current()))


def is_inference_mode_enabled() -> bool:
    """Tell whether `inference_mode` holds.

    >>> import gradmgr
    >>> with gradmgr.inference_mode():
    ...     gradmgr.is_inference_mode_enabled()
    True
    """
    return next((s.inference for s in reversed(_modes.get()) if s.inference is not None), False)
