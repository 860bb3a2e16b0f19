"""What code of the library tells a capture: on what a function depends, and which calls each replay must make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

import numpy as np

from gradmgr._arrays.libraries import is_array
from gradmgr._arrays.listening import listener
from gradmgr._engine.containers import leaves_of, rebuilt
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


class _Form:
    """A container without its arrays, `_ARRAY` in place of each; or what a call of `foreign` returned."""

    __slots__ = ("leaves", "tree")

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.leaves = leaves_of(tree)


_ARRAY = object()


def foreign(function: Callable[..., Any], *args: Any) -> Any:
    """Call code of the program's that computes with arrays, of which a listener sees nothing: a step, made each time.

    Arrays and numbers in what it returns are arrays while a function is captured.
    """
    capture = listener()
    if capture is None:
        return function(*args)
    leaves = leaves_of(args)
    form = rebuilt(args, iter([_ARRAY if is_array(leaf) else leaf for leaf in leaves]))
    arrays, made = capture.call(_call_foreign, (function, form, tuple(filter(is_array, leaves))), {})
    return rebuilt(made.tree, iter(arrays))


def _call_foreign(function: Callable[..., Any], form: Any, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], _Form]:
    given = iter(arrays)
    args = rebuilt(form, iter([next(given) if leaf is _ARRAY else leaf for leaf in leaves_of(form)]))
    made = _Form(function(*args))
    return tuple(
        [np.asarray(y) if isinstance(y, (bool, int, float, complex, np.generic)) else y for y in made.leaves]
    ), made


_call_foreign.runs_each_time = _call_foreign.is_foreign = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions
