"""Derivatives of functions: torch.autograd.functional's, `grad` and `value_and_grad` as in JAX, `Flattened` for SciPy.

Each is recorded by its own manager, on handles of the inputs: no `.grad`, hook or callback of the user's is touched.
They nest: what records where one is called, a manager, a level of forward mode or another of them, records its results.

Inputs that are plain arrays and numbers are Tensors for the function, and its outputs and derivatives then come back as
arrays, 0-d ones as NumPy scalars; where some are Tensors, a derivative is of the kind of its input. What an outer
manager tracks stays a Tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.history.modes import inference_mode
from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.wrong_calls import explained
from gradmgr._transforms.container_grad import ContainerGradient
from gradmgr._transforms.derivative import (
    DerivativeCall,
    Function,
    Pullback,
    Tensors,
    as_kind_of,
    check_varies,
    fill_zeros,
    forward_derivative,
    is_differentiable_leaf,
    leaf_as_tensor,
    one_real_output,
)
from gradmgr._transforms.jacobian import Gradient, jacobian_blocks
from gradmgr.ops.convert import to
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.shape import reshape

__all__ = ["Flattened", "grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vhp", "vjp"]

T = TypeVar("T")  # what is given in one form comes back in it
R = TypeVar("R")  # what the function returns


def _at_inputs(derivative: Function, func: Function, **options: Any) -> Function:
    """Return a derivative as a function of the inputs, and of options by name."""
    errors.check_function(func, derivative.__name__)

    @functools.wraps(func, updated=())
    def at(*inputs: Any, **more: Any) -> Any:
        if not inputs:
            raise TypeError(f"{derivative.__name__} of {func!r} takes its inputs; none were given")
        return derivative(func, inputs[0] if len(inputs) == 1 else inputs, **options | more)

    return at


# ---------------------------------------------------------------- products


@overload
def vjp(
    func: Callable[..., R], inputs: None = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Callable[..., tuple[R, Any]]: ...
@overload
def vjp(
    func: Callable[..., R], inputs: T, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> tuple[R, T]: ...
@explained
def vjp(
    func: Callable[..., Any], inputs: Any = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Any:
    """Return the outputs of a function and the product of a vector with its Jacobian.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor, an array or a number, or a tuple of them; None for a function of them.
        v: Tensors or arrays of the shapes of the outputs; None if there is one output of one real number.
        create_graph: whether outer managers, levels and transforms record the results; False makes them constants.
            None: those that record here do.
        strict: raise where an output does not depend on an input, instead of giving zeros; with `create_graph=True`
            also where the result does not depend on the inputs.

    Returns:
        The outputs, as `func` returned them, and the products, in the form, shapes and dtypes of `inputs`.

    Raises:
        TypeError: inputs are not Tensors, arrays or numbers, or outputs are not Tensors; or they hold integers.
        ValueError: `v` does not fit the outputs.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.vjp(lambda x: x**3, x, gradmgr.tensor([1.0, 10.0]))
    (Tensor([1., 8.]), Tensor([  3., 120.]))
    >>> gradmgr.functional.vjp(lambda x: (x**3).sum())(x.numpy())
    (np.float64(9.0), array([ 3., 12.]))
    """
    if inputs is None:
        return _at_inputs(vjp, func, v=v, create_graph=create_graph, strict=strict)
    call = DerivativeCall("vjp", func, inputs, create_graph, strict)

    def gradients() -> list[Any]:
        back = Pullback(call.call_func, call.xs)
        found = back.run(gradients_of, back)
        call.check_derivatives(found)
        return found

    def gradients_of(back: Pullback) -> list[Any]:
        call.outs = outs = back.made
        call.check_depends(back.tape, outs, back.leaves)
        return back.vjp(outs, call.vectors(v, outs, "the output"), last=True)

    found = call.run(gradients)
    return call.outputs(), call.results(found)


@overload
def jvp(
    func: Callable[..., R], inputs: None = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Callable[..., tuple[R, R]]: ...
@overload
def jvp(
    func: Callable[..., R], inputs: Tensors, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> tuple[R, R]: ...
@explained
def jvp(
    func: Callable[..., Any], inputs: Any = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Any:
    """Return the outputs of a function and the product of its Jacobian with a vector, by forward mode.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor, an array or a number, or a tuple of them; None for a function of them.
        v: Tensors or arrays of the shapes of `inputs`; None if that is one Tensor of one real number.
        create_graph: as in `vjp`.
        strict: as in `vjp`.

    Returns:
        The outputs, as `func` returned them, and the products, in the form, shapes and dtypes of the outputs.

    Raises:
        TypeError: inputs are not Tensors, arrays or numbers, or outputs are not Tensors; or they hold integers.
        ValueError: `v` does not fit the inputs.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.jvp(lambda x: x**3, x, gradmgr.tensor([1.0, 10.0]))
    (Tensor([1., 8.]), Tensor([  3., 120.]))
    """
    if inputs is None:
        return _at_inputs(jvp, func, v=v, create_graph=create_graph, strict=strict)
    call = DerivativeCall("jvp", func, inputs, create_graph, strict)

    def tangents() -> list[Any]:
        call.outs, found = forward_derivative(call, call.call_func, call.vectors(v, call.given, "the input"))
        call.check_derivatives(found)
        return found

    found = call.run(tangents)
    return call.outputs(), call.tangents(found)


@overload
def vhp(
    func: Callable[..., R], inputs: None = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Callable[..., tuple[R, Any]]: ...
@overload
def vhp(
    func: Callable[..., R], inputs: T, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> tuple[R, T]: ...
@explained
def vhp(
    func: Callable[..., Any], inputs: Any = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Any:
    """Return the output of a scalar function and the product of a vector with its Hessian, by two reverse modes.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor, an array or a number, or a tuple of them; None for a function of them.
        v: Tensors or arrays of the shapes of `inputs`; None if that is one Tensor of one real number.
        create_graph: as in `vjp`.
        strict: raise where the output does not depend on an input, or its gradient by one does not on the inputs.

    Returns:
        The output, and the product in the form, shapes and dtypes of `inputs`. Of complex inputs it is the
        derivative of the gradient, dL/dx + i dL/dy, along `v`.

    Raises:
        TypeError, ValueError, RuntimeError: as `vjp`; the output is not one real number.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.vhp(lambda x: (x**3).sum(), x, gradmgr.tensor([1.0, 10.0]))
    (Tensor(9.), Tensor([  6., 120.]))
    """
    if inputs is None:
        return _at_inputs(vhp, func, v=v, create_graph=create_graph, strict=strict)
    call = DerivativeCall("vhp", func, inputs, create_graph, strict)
    return _hessian_product(call, v)


def _hessian_product(call: DerivativeCall, v: Any) -> tuple[Any, Any]:
    def product() -> list[Any]:
        vs = call.vectors(v, call.given, "the input")
        back = Pullback(Gradient(call).call_func, call.xs)
        found = back.run(product_of, back, vs)
        call.check_derivatives(found)
        return found

    def product_of(back: Pullback, vs: list[Any]) -> list[Any]:
        if call.strict:
            check_varies(call.name, back.tape, back.made, "the gradient")
        return back.vjp(fill_zeros(back.made, call.given), vs, last=True)

    found = call.run(product)
    return call.outputs(), call.results(found)


@overload
def hvp(
    func: Callable[..., R], inputs: None = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Callable[..., tuple[R, Any]]: ...
@overload
def hvp(
    func: Callable[..., R], inputs: T, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> tuple[R, T]: ...
@explained
def hvp(
    func: Callable[..., Any], inputs: Any = None, v: Any = None, create_graph: bool | None = None, strict: bool = False
) -> Any:
    """Return the output of a scalar function and the product of its Hessian with a vector, by forward over reverse.

    The same product as `vhp`, since a Hessian is symmetric.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor, an array or a number, or a tuple of them; None for a function of them.
        v: Tensors or arrays of the shapes of `inputs`; None if that is one Tensor of one real number.
        create_graph: as in `vjp`.
        strict: as in `vhp`.

    Returns:
        The output, and the product in the form, shapes and dtypes of `inputs`; complex inputs as in `vhp`.

    Raises:
        TypeError, ValueError, RuntimeError: as `vjp`; the output is not one real number.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.hvp(lambda x: (x**3).sum(), x, gradmgr.tensor([1.0, 10.0]))
    (Tensor(9.), Tensor([  6., 120.]))
    """
    if inputs is None:
        return _at_inputs(hvp, func, v=v, create_graph=create_graph, strict=strict)
    call = DerivativeCall("hvp", func, inputs, create_graph, strict)
    if strict:  # what depends on what can be seen on a tape only
        return _hessian_product(call, v)

    def product() -> list[Any]:
        vs = call.vectors(v, call.given, "the input")
        gradient = Gradient(call)
        return forward_derivative(call, lambda xs: fill_zeros(gradient.call_func(xs), xs), vs)[1]

    found = call.run(product)
    return call.outputs(), call.results(found)


# ---------------------------------------------------------------- whole matrices


@explained
def jacobian(
    func: Function,
    inputs: Tensors = None,
    create_graph: bool | None = None,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of a function: the derivative of each element of its outputs by each element of its inputs.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor, an array or a number, or a tuple of them; None for a function of them.
        create_graph: as in `vjp`.
        strict: as in `vjp`.
        vectorize: compute all rows, or columns, at once by `vmap`, instead of one at a time.
        strategy: "reverse-mode" takes a row at a time and calls `func` once; "forward-mode" a column at a time,
            and is faster where there are fewer inputs than outputs. With `vectorize` it calls `func` once
            for each Tensor of `inputs`, else once for each number in them.

    Returns:
        For one output and one input a Tensor of shape `output.shape + input.shape`; where the outputs or the
        inputs are a tuple, a tuple of such; where both are, a tuple for each output of one for each input.
        Forward mode gives the dtype of the output, reverse mode that of the input.

        Of a complex output it is the derivative along the real axis of the input: f' where f is holomorphic.
        Of a real output by a complex input it is the gradient, dL/dx + i dL/dy.

    Raises:
        TypeError: inputs are not Tensors, arrays or numbers, or outputs are not Tensors; or they hold integers.
        ValueError: `strategy` is not one of the two.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.jacobian(lambda x: x * x.sum(), x)
    Tensor([[4., 1.],
            [2., 5.]])
    >>> third = gradmgr.functional.jacobian(gradmgr.functional.hessian(lambda x: x**4))
    >>> third(2.0)
    np.float64(48.0)
    """
    _check_strategy("jacobian", "strategy", strategy)
    if inputs is None:
        options = {"create_graph": create_graph, "strict": strict, "vectorize": vectorize, "strategy": strategy}
        return _at_inputs(jacobian, func, **options)
    call = DerivativeCall("jacobian", func, inputs, create_graph, strict)
    blocks = call.run(_checked_blocks, call, call.call_func, vectorize, strategy, "output")
    rows = [call.results(row) for row in blocks]
    return rows[0] if call.one_output else tuple(rows)


def _checked_blocks(call: DerivativeCall, *args: Any) -> list[list[Any]]:
    blocks = jacobian_blocks(call, *args)
    for row in blocks if call.strict else ():
        call.check_derivatives(row)
    return blocks


def _check_strategy(name: str, argument: str, strategy: str) -> None:
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ValueError(f"{name}: {argument} is 'reverse-mode' or 'forward-mode'; found {strategy!r}")


@explained
def hessian(
    func: Function,
    inputs: Tensors = None,
    create_graph: bool | None = None,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of a scalar function: the Jacobian of its gradient.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor, an array or a number, or a tuple of them, real; None for a function of them.
        create_graph: as in `vjp`.
        strict: as in `vhp`.
        vectorize: compute all rows, or columns, at once by `vmap`, instead of one at a time.
        outer_jacobian_strategy: how the gradient is differentiated: "reverse-mode" calls `func` once, for
            "forward-mode" see `jacobian`.

    Returns:
        For one input a Tensor of shape `input.shape + input.shape`; for a tuple of them a tuple of tuples.

    Raises:
        TypeError: an input is complex: its second derivatives are not one complex number for each pair of elements.
            Pass real and imaginary parts as two inputs, or take `hvp`.
        ValueError: the output is not one real number; `outer_jacobian_strategy` is not one of the two.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.hessian(lambda x: (x**3).sum() + x[0] * x[1], x)
    Tensor([[ 6.,  1.],
            [ 1., 12.]])
    >>> hessian_of = gradmgr.functional.hessian(lambda x, y: x * x * y)  # by both
    >>> hessian_of(3.0, 5.0)
    ((np.float64(10.0), np.float64(6.0)), (np.float64(6.0), np.float64(0.0)))
    """
    _check_strategy("hessian", "outer_jacobian_strategy", outer_jacobian_strategy)
    if inputs is None:
        options = {"create_graph": create_graph, "strict": strict, "vectorize": vectorize}
        return _at_inputs(hessian, func, **options, outer_jacobian_strategy=outer_jacobian_strategy)
    call = DerivativeCall("hessian", func, inputs, create_graph, strict)
    for k, x in enumerate(call.given):
        if x.dtype.kind == "c":
            raise errors.DtypeError(
                f"hessian: input {k} is complex, {x.dtype}, and has no one complex second derivative for each pair of "
                "elements; pass real and imaginary parts as two inputs, or take hvp"
            )
    gradient = Gradient(call)

    def filled(xs: list[Tensor]) -> list[Any]:
        return fill_zeros(gradient.call_func(xs), xs)

    blocks = call.run(_checked_blocks, call, filled, vectorize, outer_jacobian_strategy, "the gradient by input")
    rows = [call.results(row) for row in blocks]
    return rows[0] if call.one_input else tuple(rows)


# ---------------------------------------------------------------- functions of containers


@explained
def grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of the scalar function `func`, as `jax.grad` does.

    Arguments may be Tensors, plain arrays, numbers, or nested lists, tuples, dicts and dataclasses of them.
    Every floating or complex leaf of the chosen arguments is differentiated; `func` receives it as a Tensor.
    Other leaves (integers, strings, None) and other arguments reach `func` as they are. `grad`s nest, and
    outer managers record what is computed.

    Args:
        func: returns one real number as a Tensor; with `has_aux` a pair of that and anything.
        argnums: which positional argument to differentiate by, or several; negative ones count from the end.
        has_aux: whether `func` returns a pair.

    Returns:
        A function of the arguments of `func` that returns the gradient in the form of the chosen argument, or a
        tuple of such for several; with `has_aux` a pair of that and the second element `func` returned. The gradient
        of a Tensor is a Tensor, of a plain array an array, of a number a NumPy scalar; each is a Tensor if an
        outer manager tracks it. A leaf that is not differentiated has None in its place.

    Raises:
        TypeError: at the call: `func` does not return a Tensor, or an argument holds nothing to differentiate by.
        ValueError: at the call: `func` returns more than one number, or there is no such argument.

    >>> import numpy, gradmgr, gradmgr.numpy as np
    >>> gradmgr.functional.grad(lambda p: np.sum(np.sin(p["w"])) * p["n"])({"w": numpy.zeros(2), "n": 3})
    {'w': array([3., 3.]), 'n': None}
    >>> gradmgr.functional.grad(gradmgr.functional.grad(lambda x: x**3))(2.0)
    np.float64(12.0)
    """
    errors.check_function(func, "grad")
    both = value_and_grad(func, argnums, has_aux)

    @functools.wraps(func, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


@explained
def value_and_grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the value and the gradient of a scalar function; see `grad`.

    With plain arrays it fits SciPy: `scipy.optimize.minimize(value_and_grad(f), x0, jac=True)`.

    Args:
        func: as in `grad`.
        argnums: as in `grad`.
        has_aux: as in `grad`.

    Returns:
        A function that returns (value, gradient); with `has_aux` ((value, aux), gradient). The value is a Tensor,
        or a NumPy scalar where the chosen arguments hold no Tensor and no outer manager tracks the value.

    Raises:
        TypeError, ValueError: as `grad`.

    >>> import numpy, gradmgr
    >>> gradmgr.functional.value_and_grad(lambda x: (x * x).sum())(numpy.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """
    errors.check_function(func, "value_and_grad")
    many, one = _argnums(argnums), not isinstance(argnums, Sequence)

    @functools.wraps(func, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        return ContainerGradient(func, args, kwargs, many, has_aux).value_and_grad(one)

    return both


def _argnums(argnums: int | Sequence[int]) -> list[int]:
    many = list(argnums) if isinstance(argnums, Sequence) else [argnums]
    if not many or any(isinstance(k, bool) or not isinstance(k, (int, np.integer)) for k in many):
        raise TypeError(f"argnums is an int or a tuple of them; found {argnums!r}")
    return many


# ---------------------------------------------------------------- SciPy


class Flattened:
    """A function of nested containers, wrapped as functions of one vector for SciPy's optimisers and solvers.

    Args:
        func: called with containers like `params`, and the further arguments of the solver. It returns one real
            number as a Tensor, to minimise; or, for least squares and roots, Tensors in any containers.
        params: nested lists, tuples, dicts and dataclasses. Floating and complex leaves (Tensors, arrays, numbers)
            are varied, and reach `func` as Tensors of their dtype and device. In the vector a complex number
            is a pair of real ones.
        frozen: leaves of `params`, the objects themselves, that stay as they are.

    Attributes:
        x0: the values in `params`, a contiguous float64 vector.

    Raises:
        TypeError: `params` holds nothing to vary.
        ValueError: something in `frozen` is not a leaf of `params`.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from scipy.optimize import minimize
    >>> params = {"centre": gradmgr.tensor([3.0, -1.0], dtype="float32"), "scale": 2.0}
    >>> problem = gradmgr.functional.Flattened(
    ...     lambda p: np.sum((p["centre"] - 1.0) ** 2) + p["scale"] ** 2, params
    ... )
    >>> found = minimize(problem.value_and_grad, problem.x0, jac=True, hessp=problem.hessp, method="trust-krylov")
    >>> problem.unflatten(found.x.round(6))["centre"]
    Tensor([1., 1.], dtype=float32)
    """

    def __init__(self, func: Function, params: Any, frozen: Sequence[Any] = ()) -> None:
        if not callable(func):
            raise TypeError(f"Flattened takes a function and its parameters; found {type(func).__name__}")
        self._func = func
        self._params = params
        self._leaves = leaves_of(params)
        for k, t in enumerate(frozen):
            if not any(t is leaf for leaf in self._leaves):
                raise ValueError(f"Flattened: element {k} of frozen is not a leaf of params")
        self._varied = [is_differentiable_leaf(leaf) and not any(leaf is t for t in frozen) for leaf in self._leaves]
        self._templates = [
            leaf_as_tensor(leaf) for leaf, varied in zip(self._leaves, self._varied, strict=True) if varied
        ]
        if not self._templates:
            raise TypeError("Flattened: params holds no floating or complex leaf that could be varied")
        sizes = [t.size * (2 if t.dtype.kind == "c" else 1) for t in self._templates]
        self._ends = np.cumsum(sizes).tolist()
        self.x0 = np.concatenate([_real_vector(t._array) for t in self._templates])

    # ------------------------------------------------------------ containers and vectors

    def flatten(self, params: Any) -> np.ndarray[Any, Any]:
        """Return the vector of containers like `params`.

        Raises:
            ValueError: they differ from `params` in structure or shapes.
        """
        leaves = leaves_of(params)
        shapes = [np.shape(raw(leaf)) for leaf, varied in zip(leaves, self._varied, strict=False) if varied]
        if len(leaves) != len(self._leaves) or shapes != [t.shape for t in self._templates]:
            raise errors.ShapeError(
                f"flatten: params must be like those given at first, with leaves of shapes "
                f"{[t.shape for t in self._templates]}; found {shapes}"
            )
        chosen = [leaf for leaf, varied in zip(leaves, self._varied, strict=True) if varied]
        return np.concatenate([_real_vector(leaf_as_tensor(leaf)._array) for leaf in chosen])

    def unflatten(self, x: Any) -> Any:
        """Return containers with the values of a vector: Tensors, arrays and numbers where `params` has such.

        Raises:
            ValueError: the vector has another length.
        """
        made = iter(inference_mode().run(self._split, self._vector(x, "unflatten")))
        leaves = [
            as_kind_of(next(made), leaf) if varied else leaf
            for leaf, varied in zip(self._leaves, self._varied, strict=True)
        ]
        return rebuilt(self._params, iter(leaves))

    def _vector(self, x: Any, asked: str) -> Tensor:
        values = np.array(raw(x), dtype=np.float64)  # a copy: a solver may go on writing to its own
        if values.shape != self.x0.shape:
            raise errors.ShapeError(f"{asked}: the vector must have shape {self.x0.shape}; found {values.shape}")
        return wrap(values)

    def _split(self, x: Tensor) -> list[Tensor]:
        starts = [0, *self._ends[:-1]]
        return [_as_leaf(x[start:end], t) for start, end, t in zip(starts, self._ends, self._templates, strict=True)]

    def _apply_func(self, x: Tensor, args: tuple[Any, ...]) -> Any:
        made = iter(self._split(x))
        leaves = [next(made) if v else leaf for leaf, v in zip(self._leaves, self._varied, strict=True)]
        return self._func(rebuilt(self._params, iter(leaves)), *args)

    def _outputs(self, x: Tensor, args: tuple[Any, ...]) -> Tensor:
        """Return all numbers of the outputs as one float64 vector."""
        return _flatten_outputs(self._apply_func(x, args))

    def _scalar(self, asked: str, args: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
        def scalar(x: Tensor) -> Tensor:
            y = self._apply_func(x, args)
            if not isinstance(y, Tensor):
                raise TypeError(f"Flattened.{asked}: func must return a Tensor; found {type(y).__name__}")
            return _as_reals(one_real_output(f"Flattened.{asked}", [y]))

        return scalar

    # ------------------------------------------------------------ functions for SciPy

    def value(self, x: Any, *args: Any) -> Any:
        """Return the output at a vector: a float if it is one real number, else all its numbers as a float64 vector."""
        return inference_mode().run(self._value, self._vector(x, "value"), args)

    def _value(self, x: Tensor, args: tuple[Any, ...]) -> Any:
        made = self._apply_func(x, args)
        if isinstance(made, Tensor) and made.ndim == 0 and made.dtype.kind != "c":
            return float(made)
        return np.array(_flatten_outputs(made)._array)

    def value_and_grad(self, x: Any, *args: Any) -> tuple[float, np.ndarray[Any, Any]]:
        """Return the output and its gradient at a vector, a float and a float64 vector: for `jac=True`.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        point = self._vector(x, "value_and_grad")
        y, g = vjp(self._scalar("value_and_grad", args), point, create_graph=False)
        return float(raw(y)[0]), raw(g)

    def grad(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the gradient at a vector, a float64 vector.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        return self.value_and_grad(x, *args)[1]

    def hessp(self, x: Any, p: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the product of the Hessian at a vector with another, a float64 vector.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        scalar, point, along = self._scalar("hessp", args), self._vector(x, "hessp"), self._vector(p, "hessp")
        made: np.ndarray[Any, Any] = raw(vhp(scalar, point, along, create_graph=False)[1])
        return made

    def hess(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the Hessian at a vector, a float64 matrix.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        scalar, point = self._scalar("hess", args), self._vector(x, "hess")
        made: np.ndarray[Any, Any] = raw(hessian(scalar, point, create_graph=False, vectorize=True))
        return made

    def jac(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the Jacobian at a vector, a float64 matrix: for `scipy.optimize.least_squares` and `root`.

        Rows are in the order of `value`.
        """
        point = self._vector(x, "jac")
        blocks = jacobian(lambda t: self._outputs(t, args), point, create_graph=False, vectorize=True)
        made: np.ndarray[Any, Any] = raw(blocks)
        return made


def _real_vector(a: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array as reals, a complex number as a pair, on the host in float64."""
    values = np.asarray(libraries.to_device(a, "cpu"))
    if values.dtype.kind == "c":
        return np.ascontiguousarray(values, np.complex128).reshape(-1).view(np.float64)
    return values.astype(np.float64).reshape(-1)


def _as_reals(t: Tensor) -> Tensor:
    """Return a Tensor as one real float64 vector, recorded; see `_real_vector`."""
    if t.dtype.kind == "c":
        t = stack([t.real, t.imag], axis=-1)
    t = reshape(t, (-1,))
    return _with_dtype(t if t.device == "cpu" else to(t, "cpu"), np.dtype(np.float64))


def _flatten_outputs(made: Any) -> Tensor:
    parts = leaves_of(made)
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(f"Flattened: func must return Tensors; found {type(part).__name__}")
    flat = [_as_reals(part) for part in parts]
    return flat[0] if len(flat) == 1 else concatenate(flat)


def _as_leaf(values: Tensor, like: Tensor) -> Tensor:
    """Return a part of a vector in the shape, dtype and device of a leaf, recorded."""
    if like.dtype.kind == "c":
        pairs = reshape(values, (*like.shape, 2))
        values = pairs[..., 0] + pairs[..., 1] * 1j
    else:
        values = reshape(values, like.shape)
    values = _with_dtype(values, like.dtype)
    return values if like.device == "cpu" else to(values, like.device)


def _with_dtype(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    return t if t.dtype == dtype else as_type(t, dtype)
