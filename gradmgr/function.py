"""User-defined operations: `Function`, as torch has it, and `custom_op`, the short form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

from gradmgr import errors
from gradmgr._transforms.custom_op import custom_op
from gradmgr._transforms.function_apply import apply
from gradmgr._transforms.function_context import FunctionCtx
from gradmgr._transforms.function_node import placeholder

__all__ = ["Function", "FunctionCtx", "custom_op", "once_differentiable"]

F = TypeVar("F", bound=Callable[..., Any])


class Function:
    """An operation with its own derivative: subclass it, write the static methods, call `apply`.

    `forward(ctx, *args)` computes the result and saves in ctx what `backward` needs; or `forward(*args)`
    computes, and `setup_context(ctx, inputs, output)` saves. `backward(ctx, *grad_outputs)`, which may also be
    called `vjp`, returns a gradient for each argument; `jvp(ctx, *tangents)` returns a tangent for each result,
    for forward mode, and receives None for an argument that has no tangent: integers, and what is not a Tensor. Both
    are differentiable themselves, to any order, as far as they are written with gradmgr's or NumPy's functions on the
    tensors given and saved.

    * Tensors among the arguments come into forward as new, untracked Tensors of the same values; so
      whatever forward does, the caller's are as they were, unless `ctx.mark_dirty` says otherwise. Everything
      else is passed as it is. Plain arrays are constants; so are the values in lists and dicts.
    * forward returns one result or a tuple; arrays among them become Tensors, anything else is passed through.
      An argument returned as it is becomes another Tensor of the same values. Anything else returned twice is one
      Tensor, twice: its gradient comes, and its tangent is taken, at its last place.
    * backward returns one gradient for each positional argument, of the argument's shape and of a dtype that casts
      to the argument's within the same kind; None means zero, and is required for an argument that is not a Tensor
      or array.

    Raises:
        NotImplementedError: a method that is needed is not defined.
        ValueError: in a backward, a gradient has another shape than the argument.
        TypeError: in a backward, a gradient is not an array, or its dtype does not cast to that of the argument.
        RuntimeError: the class is instantiated, instead of `apply` called; `jvp` gives a tangent to a constant result.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from gradmgr.function import Function
    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x**2
    >>> x = gradmgr.tensor([2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     gm.backward(Cube.apply(x))
    >>> x.grad
    Tensor([12.])
    """

    # torch's switch; here vmap runs forward and the derivatives of every class that defines no `vmap`.
    generate_vmap_rule = False
    _checked_methods: tuple[Any, ...] = ()  # see `apply`

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise errors.FunctionError(
            f"{cls.__name__} is a Function and has no instances: its methods are static; call {cls.__name__}.apply(...)"
        )

    @staticmethod
    @placeholder
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute: `forward(ctx, *args)`, or `forward(*args)` together with `setup_context`."""
        raise errors.MissingRuleError("a Function must define the static method forward(ctx, *args)")

    @staticmethod
    @placeholder
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save in ctx what the derivatives need, given the positional arguments of forward and what it returned."""
        raise errors.MissingRuleError("setup_context is not defined")

    @staticmethod
    @placeholder
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        """Return the gradient of each argument, given that of each result."""
        raise errors.MissingRuleError("a Function must define the static method backward(ctx, *grad_outputs)")

    # JAX's name of the same method; a class defines one of the two.
    vjp = backward

    @staticmethod
    @placeholder
    def jvp(ctx: FunctionCtx, *grad_inputs: Any) -> Any:
        """Return the tangent of each result, given that of each argument."""
        raise errors.MissingRuleError("a Function must define the static method jvp(ctx, *grad_inputs)")

    @staticmethod
    @placeholder
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Compute a batch: given where each argument has its batch axis, return (output, out_dims)."""
        raise errors.MissingRuleError("vmap is not defined")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute, and let every manager that tracks an argument record it as one operation.

        Args:
            args: what forward takes.
            kwargs: the same by name. Those that forward takes by name only get no gradient.

        Returns:
            What forward returned, its arrays as Tensors.

        Raises:
            TypeError, RuntimeError: a method does not do what `Function` asks of it.
        """
        return apply(cls, args, kwargs)


def once_differentiable(fn: F) -> F:
    """Declare that a `backward` (or `vjp`) cannot itself be differentiated, as it computes outside gradmgr.

    It is given untracked tensors, and what it returns raises where a further derivative would flow through it.

    Raises:
        RuntimeError: in a backward, what the function returned is to be differentiated.

    >>> import numpy, gradmgr
    >>> from gradmgr.function import Function, once_differentiable
    >>> class Sine(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return numpy.sin(x.numpy())
    ...
    ...     @staticmethod
    ...     @once_differentiable
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g.numpy() * numpy.cos(x.numpy())
    >>> x = gradmgr.tensor([0.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     gm.backward(Sine.apply(x))
    >>> x.grad
    Tensor([1.])
    """
    if isinstance(fn, staticmethod):
        return staticmethod(once_differentiable(fn.__func__))  # type: ignore[return-value]  # of the type of `fn`

    @functools.wraps(fn)
    def once(*args: Any) -> Any:
        return fn(*args)

    once._once_differentiable = True  # type: ignore[attr-defined]  # read by `FunctionNode.gradients`
    return once  # type: ignore[return-value]  # functools.wraps keeps the signature


def __getattr__(name: str) -> NoReturn:
    raise errors.lacking(name, "gradmgr.function")
