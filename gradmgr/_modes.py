"""Modes: what listens to what is computed, in a block, a function, or from here on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from gradmgr._recorder import back_to, become, current, hidden, shown

F = TypeVar("F", bound=Callable[..., Any])

# The no_grad and enable_grad blocks entered in this context, each with what was current before.
_modes: ContextVar[tuple[Any, ...]] = ContextVar("gradmgr_modes", default=())


class _Mode:
    """A context manager and decorator that changes what listens."""

    __slots__ = ()

    def _wanted(self, state: Any) -> Any:
        raise NotImplementedError

    def __enter__(self) -> None:
        state = current()
        _modes.set((*_modes.get(), (self, state)))
        become(self._wanted(state))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What was entered or released inside the block stays so.
        entered = _modes.get()
        last = max(k for k, (mode, _) in enumerate(entered) if mode is self)
        _modes.set(entered[:last] + entered[last + 1 :])
        become(back_to(entered[last][1], current()))

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
        return shown(state)
