"""One's own operations as torch writes them: `Function` and its context; the short form is `custom_op`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

from gradmgr import errors
from gradmgr._transforms.custom_op import custom_op
from gradmgr._transforms.function import Application, FunctionCtx, absent

__all__ = ["Function", "FunctionCtx", "custom_op", "once_differentiable"]

F = TypeVar("F", bound=Callable[..., Any])


class Function:
    """An operation with a derivative of its own: subclass it, write the static methods, call `apply`.

    `forward(ctx, *args)` computes the result and saves in ctx what `backward` needs; or `forward(*args)`
    computes, and `setup_context(ctx, inputs, output)` saves. `backward(ctx, *grad_outputs)`, or by its other
    name `vjp`, gives a gradient for each argument; `jvp(ctx, *tangents)` gives a tangent for each result,
    for forward mode. Both are differentiable themselves, to any order, as far as they are
    written with gradmgr's or NumPy's functions on the tensors given and saved.

    * Tensors among the arguments come into forward as new Tensors of the same values that nobody tracks; so
      whatever forward does, the caller's are as they were, unless `ctx.mark_dirty` says otherwise. Everything
      else comes as it is. Plain arrays are constants; so is what stands in lists and dicts.
    * forward returns one result or a tuple; arrays among them become Tensors, anything else is passed through.
      An argument returned as it is comes out as another Tensor of the same values.
    * backward returns one gradient for each positional argument, of its shape and of a dtype that casts to
      its within kind; None is zero, and must be what stands for an argument that is no Tensor or array.

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

    # Whether `vmap` is made from forward and the derivatives, as it is too where a class has no `vmap` of its own.
    generate_vmap_rule = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise errors.FunctionError(
            f"{cls.__name__} is a Function and has no instances: its methods are static; call {cls.__name__}.apply(...)"
        )

    @staticmethod
    @absent
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute: `forward(ctx, *args)`, or `forward(*args)` beside `setup_context`."""
        raise errors.MissingRuleError("a Function must define the static method forward(ctx, *args)")

    @staticmethod
    @absent
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save in ctx what the derivatives need, given the positional arguments of forward and what it returned."""
        raise errors.MissingRuleError("setup_context is not defined")

    @staticmethod
    @absent
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        """Give the gradient of each argument, given that of each result."""
        raise errors.MissingRuleError("a Function must define the static method backward(ctx, *grad_outputs)")

    # The same by its other name; a class defines one of the two.
    vjp = backward

    @staticmethod
    @absent
    def jvp(ctx: FunctionCtx, *grad_inputs: Any) -> Any:
        """Give the tangent of each result, given that of each argument."""
        raise errors.MissingRuleError("a Function must define the static method jvp(ctx, *grad_inputs)")

    @staticmethod
    @absent
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Compute a batch: given where each argument has its batch axis, return (output, out_dims)."""
        raise errors.MissingRuleError("vmap is not defined")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute, and let every manager that knows an argument record it as one operation.

        Args:
            args: what forward takes.
            kwargs: the same by name. Those that forward takes by name only get no gradient.

        Returns:
            What forward returned, its arrays as Tensors.

        Raises:
            TypeError, RuntimeError: a method does not keep to what is asked of it; see `Function`.
        """
        return Application(cls, args, kwargs).run()


def once_differentiable(fn: F) -> F:
    """Declare that a `backward` (or `vjp`) may not be differentiated itself: it computes outside of gradmgr.

    It is given tensors that nobody tracks, and what it returns raises where a further derivative would flow
    through it.

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
        return staticmethod(once_differentiable(fn.__func__))  # type: ignore[return-value]  # it is what came

    @functools.wraps(fn)
    def once(*args: Any) -> Any:
        return fn(*args)

    once._once_differentiable = True  # type: ignore[attr-defined]  # what the engine asks for
    return once  # type: ignore[return-value]  # functools.wraps keeps the signature


def __getattr__(name: str) -> NoReturn:
    raise errors.lacking(name, "gradmgr.function")
