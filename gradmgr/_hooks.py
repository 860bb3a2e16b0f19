"""Hooks: functions that see gradients on their way, with handles to take them off again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from gradmgr import errors
from gradmgr._tensor import Tensor, describe, wrap

Hook = Callable[..., Any]


class RemovableHandle:
    """Takes a hook off again; in a with block, at its end."""

    __slots__ = ("_places",)

    def __init__(self, places: list[tuple[Hooks, object]]) -> None:
        self._places = places

    def remove(self) -> None:
        """Take the hook off; a second time does nothing."""
        for hooks, key in self._places:
            hooks.discard(key)
        self._places = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


class Hooks:
    """Functions in the order they were registered."""

    __slots__ = ("_functions",)

    def __init__(self) -> None:
        self._functions: dict[object, Hook] = {}

    def add(self, hook: Hook) -> tuple[Hooks, object]:
        """Register a function; returns what a handle needs."""
        key = object()
        self._functions[key] = hook
        return self, key

    def discard(self, key: object) -> None:
        """Forget a function, if it is there."""
        self._functions.pop(key, None)

    def __iter__(self) -> Iterator[Hook]:
        return iter(list(self._functions.values()))

    def __bool__(self) -> bool:
        return bool(self._functions)


class LeafHooks:
    """What hangs on an attached tensor itself, for every backward of every manager that it is attached to."""

    __slots__ = ("managers", "post", "tensor")

    def __init__(self) -> None:
        self.managers: list[weakref.ref[Any]] = []
        self.tensor = Hooks()  # see the gradient, may replace it
        self.post = Hooks()  # see the tensor, when `.grad` is written


class ValueHooks:
    """What hangs on a value of a tape, and on the op that made it."""

    __slots__ = ("after", "before", "retained", "tensor")

    def __init__(self) -> None:
        self.tensor = Hooks()
        self.retained: list[weakref.ref[Tensor]] = []  # tensors that want the gradient in `.grad`
        self.before = Hooks()  # of the op: hook(grad_outputs)
        self.after = Hooks()  # of the op: hook(grad_inputs, grad_outputs)


def check_hook(hook: Any, asked: str) -> None:
    """Raise unless a hook can be called."""
    if not callable(hook):
        raise TypeError(f"{asked} takes a function; found {type(hook).__name__}")


def name_of(function: Any) -> str:
    """Return what to call a function in an error."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def run_tensor_hooks(hooks: Hooks, g: Any, what: str) -> Any:
    """Pass a gradient through the hooks of a tensor, each of which may replace it."""
    for hook in hooks:
        given = g if isinstance(g, Tensor) else wrap(g)
        g = replaced(given, hook(given), f"hook {name_of(hook)} on {what}")
    return g


def replaced(g: Tensor, new: Any, what: str) -> Tensor:
    """Return the gradient that a hook gave for `g`; None keeps it."""
    if new is None:
        return g
    if not isinstance(new, Tensor):
        raise errors.CallbackError(f"{what} gave {type(new).__name__}; return a Tensor, or None to keep the gradient")
    if new.shape != g.shape:
        raise errors.ShapeError(f"{what} gave a gradient of shape {new.shape}; it must have the shape {g.shape}")
    if new.dtype != g.dtype:
        raise errors.DtypeError(f"{what} gave a gradient of dtype {new.dtype}; it must have the dtype {g.dtype}")
    return new


def leaf_hooks_of(t: Tensor) -> LeafHooks | None:
    """Return the hooks on a tensor that was attached to a manager at some time."""
    return getattr(t, "_hooks", None)


def hooked_leaf(t: Tensor) -> LeafHooks:
    """Return the same, made where there are none."""
    hooks = leaf_hooks_of(t)
    if hooks is None:
        hooks = t._hooks = LeafHooks()
    return hooks


def run_post_hooks(t: Tensor) -> None:
    """Call the post-accumulate hooks of a leaf; their errors pass through, `.grad` is written."""
    hooks = leaf_hooks_of(t)
    for hook in () if hooks is None else hooks.post:
        result = hook(t)
        if result is not None:
            raise errors.CallbackError(
                f"post-accumulate hook {name_of(hook)} on {describe(t)} gave {type(result).__name__}; "
                "such a hook returns None: change t.grad itself"
            )
