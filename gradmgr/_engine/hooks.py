"""Hooks: functions that see gradients on their way, with handles to take them off again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.recorder import Recorder, recording_threads, snapshot
from gradmgr._engine.tensor import Tensor, describe, raw, wrap

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
    """What hangs on an attached tensor itself, for every backward of every manager that it is attached to.

    Threads may attach one tensor to their managers at once; a lock keeps every manager told of every hook.
    """

    __slots__ = ("_managers", "post", "tensor")

    def __init__(self) -> None:
        self._managers: list[weakref.ref[Any]] = []
        self.tensor = Hooks()  # see the gradient, may replace it
        self.post = Hooks()  # see the tensor, when `.grad` is written

    def managers(self) -> list[Any]:
        """Return the living managers that the tensor is attached to."""
        return [manager for ref in list(self._managers) if (manager := ref()) is not None]

    def attached_to(self, ref: weakref.ref[Any]) -> bool:
        """Take down that the tensor is attached to a manager; tell whether hooks wait for its backward."""
        with recording_threads.lock:
            self._managers = [*self._without(ref), ref]
            return bool(self.tensor or self.post)

    def detached_from(self, ref: weakref.ref[Any]) -> None:
        """Take down that it is not any more."""
        with recording_threads.lock:
            self._managers = self._without(ref)

    def _without(self, gone: weakref.ref[Any]) -> list[weakref.ref[Any]]:
        return [ref for ref in self._managers if ref is not gone and ref() is not None]

    def add(self, hooks: Hooks, hook: Hook) -> tuple[Hooks, object]:
        """Register a function, and let every manager know that its backward has hooks to call."""
        with recording_threads.lock:
            place = hooks.add(hook)
            for manager in self.managers():
                manager._has_callbacks = True
        return place


class ValueHooks:
    """What hangs on a value of a tape, and on the op that made it."""

    __slots__ = ("after", "before", "count", "tensor")

    def __init__(self) -> None:
        self.tensor = Hooks()
        self.before = Hooks()  # of the op: hook(grad_outputs)
        self.after = Hooks()  # of the op: hook(grad_inputs, grad_outputs)
        self.count = 1  # results of the op, as far as they are followed

    def joined(self, first: ValueHooks | None) -> ValueHooks:
        """Return these hooks behind those that came first."""
        made = ValueHooks()
        for each in (self,) if first is None else (first, self):
            for name in ("tensor", "before", "after"):
                getattr(made, name)._functions.update(getattr(each, name)._functions)
            made.count = max(made.count, each.count)
        return made


def check_hook(hook: Any, asked: str) -> None:
    """Raise unless a hook can be called."""
    if not callable(hook):
        raise TypeError(f"{asked} takes a function; found {type(hook).__name__}")


def name_of(function: Any) -> str:
    """Return what to call a function in an error."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def handle(g: Any, outer_recorders: Iterable[Recorder]) -> Tensor:
    """Return a new Tensor for a gradient, so that nobody who keeps one sees what is made of it later.

    Args:
        g: an array or a Tensor.
        outer_recorders: the recorders that are to know the new one as they know `g`.
    """
    kept = snapshot(g, outer_recorders)
    return kept if isinstance(kept, Tensor) else wrap(kept)


def run_tensor_hooks(hooks: Hooks, g: Any, what: str, outer_recorders: Iterable[Recorder]) -> Any:
    """Pass a gradient through the hooks of a tensor, each of which may replace it.

    Returns:
        A Tensor where one of `hearers` knows it, else an array.
    """
    for hook in hooks:
        given = handle(g, outer_recorders)
        new = hook(given)
        g = snapshot(given if new is None else checked(g, new, f"hook {name_of(hook)} on {what}"), outer_recorders)
    return g


def checked(g: Any, new: Any, what: str) -> Tensor:
    """Return the gradient that a hook gave for `g`, an array or a Tensor, if it can stand for it."""
    if not isinstance(new, Tensor):
        raise errors.CallbackError(f"{what} gave {type(new).__name__}; return a Tensor, or None to keep the gradient")
    if new.shape != g.shape:
        raise errors.ShapeError(f"{what} gave a gradient of shape {new.shape}; it must have the shape {g.shape}")
    if new.dtype != g.dtype:
        raise errors.DtypeError(f"{what} gave a gradient of dtype {new.dtype}; it must have the dtype {g.dtype}")
    if libraries.root(new._array) is not libraries.root(raw(g)):
        where = libraries.device_of(raw(g))
        raise errors.MixedArraysError(f"{what} gave a gradient on {new.device}; it must live on {where}")
    return new


def leaf_hooks_of(t: Tensor) -> LeafHooks | None:
    """Return the hooks on a tensor that was attached to a manager at some time."""
    return getattr(t, "_hooks", None)


def with_tensor_hooks(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return those whose gradients hooks are to see. Without calls, as every backward with callbacks asks."""
    return [t for t in tensors if (hooks := getattr(t, "_hooks", None)) is not None and hooks.tensor._functions]


def with_post_hooks(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return those whose hooks wait for `.grad` to be written."""
    return [t for t in tensors if (hooks := getattr(t, "_hooks", None)) is not None and hooks.post._functions]


def hooked_leaf(t: Tensor) -> LeafHooks:
    """Return the same, made where there are none."""
    with recording_threads.lock:
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
