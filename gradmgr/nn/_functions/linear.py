"""Affine maps: `linear`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import large_products, libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.nn._functions.arguments import check_inexact, one_array
from gradmgr.ops.convert import lift, widen_half
from gradmgr.ops.products import matmul
from gradmgr.ops.shape import reshape

Shape = tuple[int, ...]


def _as_rows(x: Any) -> Any:
    """Return x with one leading axis, for one product: numpy.matmul multiplies the matrices of a stack one by one."""
    if x.ndim == 2:
        return x
    columns = x.shape[-1]
    if columns and (x.__class__ is np.ndarray or libraries.is_numpy(x)):
        return x.reshape(-1, columns)
    return reshape(x, (math.prod(x.shape[:-1]), columns))


def _linear_kernel(x: Any, weight: Any, bias: Any) -> Any:
    of_w, dtype, rows = weight.shape, x.dtype, x if x.ndim == 2 or not x.ndim else _as_rows(x)
    if libraries.are_matrices(rows, weight) and rows.shape[1] == of_w[1]:
        if bias is None:
            return _product(x, rows, weight)
        if bias.dtype is dtype and bias.shape == of_w[:1] and bias.__class__ is np.ndarray:
            y = _product(x, rows, weight)
            y += bias
            return y
    if len(of_w) != 2 or x.shape[-1:] != of_w[1:] or (bias is not None and bias.shape != of_w[:1]):
        raise _shape_error(x.shape, of_w, None if bias is None else bias.shape)
    if dtype.kind not in "fc" or weight.dtype.kind not in "fc" or (bias is not None and bias.dtype.kind not in "fc"):
        check_inexact("nn.linear", input=x, weight=weight, bias=bias)  # bfloat16 has another dtype kind
    if weight.dtype != dtype or (bias is not None and bias.dtype != dtype):
        dtype = np.result_type(dtype, weight.dtype, *(() if bias is None else (bias.dtype,)))
    y = large_products.product(widen_half(rows), widen_half(weight).T)
    if bias is not None:
        y = y + bias
    y = y if y.dtype == dtype else y.astype(dtype)
    return y if x.ndim == 2 else y.reshape((*x.shape[:-1], weight.shape[0]))


def _product(x: Any, rows: Any, weight: Any) -> Any:
    """Return rows @ weight.T with the leading axes of x, in a new array that owns its memory."""
    if rows is not x:
        return _product_in_shape(x, rows, weight.T)
    return rows.dot(weight.T) if rows.size < large_products.FEW else large_products.multiply(rows, weight.T)


def _product_in_shape(x: Any, rows: Any, matrix: Any) -> Any:
    columns = matrix.shape[1]
    made = np.empty((*x.shape[:-1], columns), x.dtype)
    large_products.multiply(rows, matrix, made.reshape(rows.shape[0], columns))
    return made


def _shape_error(x: Shape, weight: Shape, bias: Shape | None) -> errors.ShapeError:
    return errors.ShapeError(
        "nn.linear takes input (..., in_features), weight (out_features, in_features) and bias (out_features,); "
        f"found input {x}, weight {weight}, bias {bias}"
    )


def _x_vjp(g: Any, weight: Any) -> Any:
    if libraries.are_matrices(g, weight):
        return g.dot(weight) if g.size < large_products.FEW else large_products.multiply(g, weight)
    if g.ndim > 2 and g.__class__ is np.ndarray:
        rows = _as_rows(g)
        if libraries.are_matrices(rows, weight):
            return _product_in_shape(g, rows, weight)
    return _linear(g, conj_of(weight).T, None)


def _weight_vjp(g: Any, x: Any) -> Any:
    if g.ndim != 2:
        g, x = _as_rows(g), _as_rows(x)
    if libraries.are_matrices(g, x):
        return g.T.dot(x) if g.size < large_products.FEW else large_products.multiply(g.T, x)
    return large_products.product(widen_half(g).T, widen_half(conj_of(x)))


def _bias_vjp(g: Any) -> Any:
    """Return the sum over rows, as a product with ones: BLAS takes half the time of numpy.add.reduce."""
    rows = g if g.ndim == 2 else _as_rows(g)
    if libraries.is_matrix(rows):
        return libraries.sum_of_rows(rows)
    rows = widen_half(rows)
    return matmul(libraries.namespace(raw(rows)).ones(rows.shape[0], rows.dtype), rows)


_linear: Function = custom(
    "nn.linear",
    _linear_kernel,
    vjp={"x": _x_vjp, "weight": _weight_vjp, "bias": _bias_vjp},
    jvp={
        "x": lambda t, weight: _linear(t, weight, None),
        "weight": lambda t, x: _linear(x, t, None),
        "bias": lambda t: t,
    },
)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return `input @ weight.T + bias`, as torch.nn.functional.linear.

    Args:
        input: (..., in_features).
        weight: (out_features, in_features); or (in_features,), and the result has no last axis.
        bias: (out_features,), or None.

    Returns:
        (..., out_features), in the dtype to which NumPy promotes the three. Half precision is summed in float32.

    Raises:
        ShapeError: the shapes do not fit.
        DtypeError: an argument is of integers or booleans.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import linear
    >>> linear(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]), np.array([0.5, 0.0]))
    array([[11.5,  2. ]])
    """
    x, weight, bias = one_array(input), lift(weight), None if bias is None else lift(bias)
    if weight.ndim != 1:
        return _linear(x, weight, bias)
    if bias is not None and bias.ndim:
        raise _shape_error(x.shape, weight.shape, bias.shape)
    bias = None if bias is None else reshape(bias, (1,))
    return _linear(x, reshape(weight, (1, weight.shape[0])), bias)[..., 0]
