"""Hooks: functions that see gradients during backward, with handles that remove them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine import write_lock
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.cleanup import ExitMethod, complete
from gradmgr._engine.recorder import Recorder, snapshot
from gradmgr._engine.row_sparse import memory_of
from gradmgr._engine.tensor import Tensor, describe, wrap

Hook = Callable[..., Any]


class RemovableHandle:
    """Removes a hook; in a with block, at its end."""

    __slots__ = ("_places",)

    def __init__(self, wanted: Iterable[HookPlace]) -> None:
        """Register functions; the handle notes each before it is registered, so that all that are can be removed."""
        wanted = list(wanted)
        self._places = [(place.hooks, object()) for place in wanted]
        try:
            with write_lock.lock:
                self._add(wanted)
        except BaseException:
            complete(self._remove)
            raise

    def _add(self, wanted: list[HookPlace]) -> None:
        for place, (hooks, key) in zip(wanted, self._places, strict=True):
            (hooks.add_first if place.is_first else hooks.add)(key, place.hook)
            if place.leaf is not None:
                place.leaf.tell_managers()

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        try:
            self._remove()
        except BaseException:
            complete(self._remove)
            raise

    def _remove(self) -> None:
        for hooks, key in self._places:
            hooks.discard(key)
        self._places = []

    def __enter__(self) -> Self:
        return self

    def _close_latest(self, found: Any) -> None:
        self._remove()

    __exit__ = ExitMethod(_remove)


class Hooks:
    """Functions in the order they were registered."""

    __slots__ = ("_functions",)

    def __init__(self) -> None:
        self._functions: dict[object, Hook] = {}

    def add(self, key: object, hook: Hook) -> None:
        """Register a function; the key is to remove it by."""
        self._functions[key] = hook

    def add_first(self, key: object, hook: Hook) -> None:
        """Register a function before the others."""
        self._functions = {key: hook, **self._functions}

    def discard(self, key: object) -> None:
        """Remove a function, if it is there."""
        self._functions.pop(key, None)

    def __iter__(self) -> Iterator[Hook]:
        return iter(list(self._functions.values()))

    def __bool__(self) -> bool:
        return bool(self._functions)


class LeafHooks:
    """The hooks of an attached tensor, called in every backward of every manager that it is attached to.

    Threads may attach one tensor to their managers at once: a lock makes sure that each manager sees each hook.
    """

    __slots__ = ("_managers", "post", "tensor")

    def __init__(self, *managers: weakref.ref[Any]) -> None:
        self._managers = list(managers)
        self.tensor = Hooks()  # hook(grad), may replace the gradient
        self.post = Hooks()  # hook(tensor), when `.grad` is written

    def managers(self) -> list[Any]:
        """Return the living managers that the tensor is attached to."""
        return [manager for ref in list(self._managers) if (manager := ref()) is not None]

    def add_manager(self, ref: weakref.ref[Any]) -> bool:
        """Enter a manager that the tensor is attached to; return whether there are hooks for its backward to call."""
        with write_lock.lock:
            self._managers = [*self._without(ref), ref]
            return bool(self.tensor or self.post)

    def remove_manager(self, ref: weakref.ref[Any]) -> None:
        """Remove a manager that the tensor is attached to no more."""
        with write_lock.lock:
            self._managers = self._without(ref)

    def _without(self, gone: weakref.ref[Any]) -> list[weakref.ref[Any]]:
        return [ref for ref in self._managers if ref is not gone and ref() is not None]

    def tell_managers(self) -> None:
        """Tell every manager that its backward has hooks to call."""
        for manager in self.managers():
            manager._has_callbacks = True


class HookPlace(NamedTuple):
    """Where a function is to be registered: among which hooks, and whose they are where that is an attached tensor."""

    hooks: Hooks
    hook: Hook
    leaf: LeafHooks | None = None
    is_first: bool = False  # whether it is called before those that are there


class ValueHooks:
    """The hooks of a value on a tape, and of the op that made it."""

    __slots__ = ("after", "before", "count", "tensor")

    def __init__(self) -> None:
        self.tensor = Hooks()
        self.before = Hooks()  # of the op: hook(grad_outputs)
        self.after = Hooks()  # of the op: hook(grad_inputs, grad_outputs)
        self.count = 1  # number of the results of the op that are tracked

    def joined(self, first: ValueHooks | None) -> ValueHooks:
        """Return the hooks of `first`, followed by these."""
        made = ValueHooks()
        for each in (self,) if first is None else (first, self):
            for name in ("tensor", "before", "after"):
                getattr(made, name)._functions.update(getattr(each, name)._functions)
            made.count = max(made.count, each.count)
        return made


def name_of(function: Any) -> str:
    """Return the name of a function for an error."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def handle(g: Any, outer_recorders: Iterable[Recorder]) -> Tensor:
    """Return a new Tensor for a gradient, which a hook may keep: later changes to the gradient do not show in it.

    Args:
        g: an array or a Tensor.
        outer_recorders: the recorders that are to track the new Tensor as they track `g`.
    """
    kept = snapshot(g, outer_recorders)
    return kept if isinstance(kept, Tensor) else wrap(kept)


def run_tensor_hooks(hooks: Hooks, g: Any, what: str, outer_recorders: Iterable[Recorder]) -> Any:
    """Pass a gradient through the hooks of a tensor, each of which may replace it.

    Returns:
        A Tensor where one of `outer_recorders` tracks it, else an array.
    """
    for hook in hooks:
        given = handle(g, outer_recorders)
        new = call_whole(hook, given)
        g = snapshot(given if new is None else checked(g, new, f"hook {name_of(hook)} on {what}"), outer_recorders)
    return g


def checked(g: Any, new: Any, what: str) -> Tensor:
    """Check that the gradient `new` which a hook gave can replace `g`, an array or a Tensor; return it."""
    if not isinstance(new, Tensor):
        raise errors.CallbackError(f"{what} gave {type(new).__name__}; return a Tensor, or None to keep the gradient")
    check_like(new, g, what)
    held = memory_of(g)
    if libraries.root(memory_of(new)) is not libraries.root(held):
        where = libraries.device_of(held)
        raise errors.MixedArraysError(f"{what} gave a gradient on {new.device}; it must live on {where}")
    return new


def check_like(new: Tensor, like: Any, what: str) -> None:
    """Raise unless a gradient that a callback or hook gave has the shape and dtype of `like`, an array or a Tensor."""
    if new.shape != like.shape:
        raise errors.ShapeError(f"{what} gave a gradient of shape {new.shape}; it must have the shape {like.shape}")
    if new.dtype != like.dtype:
        raise errors.DtypeError(f"{what} gave a gradient of dtype {new.dtype}; it must have the dtype {like.dtype}")


def leaf_hooks_of(t: Tensor) -> LeafHooks | None:
    """Return the hooks of a tensor, None if it never was attached nor had a hook."""
    return getattr(t, "_hooks", None)


def select_tensor_hooked(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors with hooks on their gradients. Without calls, as every backward with callbacks asks."""
    return [t for t in tensors if (hooks := getattr(t, "_hooks", None)) is not None and hooks.tensor._functions]


def select_post_hooked(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors with post-accumulate hooks, which are called when `.grad` is written."""
    return [t for t in tensors if (hooks := getattr(t, "_hooks", None)) is not None and hooks.post._functions]


def hooked_leaf(t: Tensor) -> LeafHooks:
    """Return the hooks of a tensor; make them if there are none."""
    with write_lock.lock:
        hooks = leaf_hooks_of(t)
        if hooks is None:
            hooks = t._hooks = LeafHooks()
    return hooks


def run_post_hooks(t: Tensor) -> None:
    """Call the post-accumulate hooks of a leaf; `.grad` is written by then, whatever they raise."""
    hooks = leaf_hooks_of(t)
    for hook in () if hooks is None else hooks.post:
        result = call_whole(hook, t)
        if result is not None:
            raise errors.CallbackError(
                f"post-accumulate hook {name_of(hook)} on {describe(t)} gave {type(result).__name__}; "
                "such a hook returns None: change t.grad itself"
            )
