"""A function of another library as one operation of gradmgr, whatever the library.

Its values, pullback, and the functions that compute its derivatives come from the library; an operation of the same
kind computes those derivatives, so that they have their own derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import listener
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr.function import Function
from gradmgr.interop._flat import FlatCall

Arrays = Sequence[Any]
Compute = Callable[..., tuple[Any, ...]]  # of the library's arrays


class Library(Protocol):
    """What another library does for a function of its arrays, which returns a tuple of them."""

    name: str

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is one of the library's arrays."""

    def from_array(self, array: Any) -> Any:
        """Copy an array of NumPy's or CuPy's into one of the library's."""

    def to_array(self, foreign: Any) -> Any:
        """Copy one of the library's arrays into one of NumPy's or CuPy's."""

    def values_and_pullback(
        self, compute: Compute, xs: Arrays, needed: Sequence[bool]
    ) -> tuple[Arrays, Callable[[Arrays], Arrays]]:
        """Return the results, and a function of their cotangents; it returns a gradient, or None, for each input."""

    def vjp_of(self, compute: Compute, count: int, needed: Sequence[int]) -> Compute:
        """Return a function of `count` inputs and of the cotangents: the gradients by the inputs numbered `needed`."""

    def jvp_of(self, compute: Compute, count: int, varied: Sequence[int]) -> Compute:
        """Return a function of `count` inputs and of tangents of those numbered `varied`: the results' tangents."""

    def batched(self, compute: Compute, in_dims: tuple[int | None, ...]) -> Compute:
        """Return the function over a batch, whose results have it as first axis."""


def wrapped(func: Callable[..., Any], library: Library) -> Callable[..., Any]:
    """Return the function of gradmgr's Tensors, arrays and other values that calls one of another library's arrays."""
    name = getattr(func, "__name__", type(func).__name__)
    operation: Any = type(name, (_Operation,), {})  # by whose name graphs and errors show it

    @functools.wraps(func, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        flat = FlatCall(func, args, kwargs, _is_array)

        def compute(*arrays: Any) -> tuple[Any, ...]:
            return flat(arrays, library.is_array, f"arrays of {library.name}")

        results = operation.apply(_Call(compute, library, operation), *flat.arrays)
        return flat.as_returned(results)

    return call


def _is_array(value: Any) -> bool:
    """Tell whether it is a Tensor or an array of numbers; one of strings or objects is passed as it is."""
    if isinstance(value, Tensor):
        return True
    return libraries.is_array(value) and (value.dtype.kind in "biufc" or libraries.is_differentiable(value.dtype))


class _Call:
    """A function of another library's arrays, which returns a tuple of them, and the class of its operations."""

    __slots__ = ("compute", "library", "operation")

    def __init__(self, compute: Compute, library: Library, operation: type[Function]) -> None:
        self.compute = compute
        self.library = library
        self.operation = operation

    def apply(self, compute: Compute, *inputs: Any) -> Any:
        """Record another function as an operation of the same kind: a derivative of this one, or the batch."""
        return self.operation.apply(_Call(compute, self.library, self.operation), *inputs)


class _Operation(Function):
    """What records a call: apply(call, *arrays); each function has its own class."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *xs: Any) -> Any:
        heard = listener()
        if heard is not None:
            heard.leave(f"a function of {call.library.name} is called", None)
        foreign = [call.library.from_array(x._array if isinstance(x, Tensor) else x) for x in xs]
        needed = [bool(need) and _is_differentiable(x) for need, x in zip(ctx.needs_input_grad[1:], xs, strict=True)]
        if any(needed):
            made, ctx.pullback = call.library.values_and_pullback(call.compute, foreign, needed)
        else:
            made, ctx.pullback = call.compute(*foreign), None
        results = tuple([wrap(call.library.to_array(y)) for y in made])
        ctx.call = call
        ctx.needed = [k for k, need in enumerate(needed) if need]
        ctx.is_differentiable = [_is_differentiable(y) for y in results]
        ctx.mark_non_differentiable(*[y for y in results if not _is_differentiable(y)])
        ctx.constants = [None if isinstance(x, Tensor) else x for x in xs]
        ctx.save_for_backward(*[x for x in xs if isinstance(x, Tensor)])
        return results

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        call: _Call = ctx.call
        xs = _inputs(ctx)
        gs = tuple([g for g, differentiable in zip(gs, ctx.is_differentiable, strict=True) if differentiable])
        found: list[Any] = [None] * len(xs)
        if any(isinstance(t, Tensor) and is_tracked(t) for t in (*xs, *gs)):
            compute = call.library.vjp_of(call.compute, len(xs), ctx.needed)
            gradients = call.apply(compute, *xs, *gs)
        else:
            given = [call.library.from_array(g._array if isinstance(g, Tensor) else g) for g in gs]
            made = ctx.pullback(given)
            gradients = [None if g is None else call.library.to_array(g) for g in made]
        for k, gradient in zip(ctx.needed, gradients, strict=True):
            found[k] = gradient
        return (None, *found)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        call: _Call = ctx.call
        xs = _inputs(ctx)
        varied = [k for k, t in enumerate(tangents) if t is not None and _is_differentiable(xs[k])]
        compute = call.library.jvp_of(call.compute, len(xs), varied)
        made = iter(call.apply(compute, *xs, *[tangents[k] for k in varied]))
        return tuple([next(made) if differentiable else None for differentiable in ctx.is_differentiable])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, *xs: Any) -> Any:
        results = call.apply(call.library.batched(call.compute, in_dims[1:]), *xs)
        return results, (0,) * len(results)


def _inputs(ctx: Any) -> list[Any]:
    saved = iter(ctx.saved_tensors)
    return [next(saved) if x is None else x for x in ctx.constants]


def _is_differentiable(value: Any) -> bool:
    return libraries.is_differentiable(value.dtype)
