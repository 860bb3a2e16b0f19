"""What code of the library tells a capture: on what a function depends, and which calls each replay must make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

from gradmgr._arrays.listening import listener
from gradmgr._engine.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def see(owner: Any, read: Callable[[Any], Any], what: str) -> None:
    """Note, while a function is captured, that it depends on `read(owner)`."""
    capture = listener()
    if capture is not None:
        capture.see(owner, read, what)


def refuse_in_replay(what: str) -> None:
    """Note, while a function is captured, that its calls cannot be made again because of what it reads now."""
    capture = listener()
    if capture is not None:
        capture.add_obstacle(f"it asks for {what}; do that outside of the function,")


def call_whole(function: Callable[..., Any], *args: Any, changes: Iterable[Tensor] | None = None) -> Any:
    """Call a function whose Python code must run each time, also when the program that calls it is replayed.

    `changes` names the tensors whose arrays it may change; None for all.
    """
    capture = listener()
    return function(*args) if capture is None else capture.call_whole(function, args, changes)


def runs_each_time(method: F) -> F:
    """Decorate a method whose Python code must run each time; it may change any tensor."""
    return _decorated(method, None)  # type: ignore[no-any-return]  # the same signature


def runs_each_time_without_tensors(method: F) -> F:
    """Decorate a method whose Python code must run each time; it changes no tensor."""
    return _decorated(method, ())  # type: ignore[no-any-return]  # as above


def _decorated(method: Any, changes: Iterable[Tensor] | None) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        capture = listener()
        if capture is None:
            return method(self, *args, **keywords)
        return capture.call_whole(MethodType(call, self), args, changes, keywords)

    return call
