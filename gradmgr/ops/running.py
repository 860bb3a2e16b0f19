"""Running sums and products, and the product along axes; the derivatives of products are exact where factors are 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.arithmetic import multiply
from gradmgr.ops.convert import cast_to, is_plain, lift
from gradmgr.ops.join import concatenate
from gradmgr.ops.naming import named
from gradmgr.ops.reduce import sum_op, total_function
from gradmgr.ops.reduction_arguments import (
    Axes,
    broadcast_back,
    gives_constant,
    reduce_constant,
    reduce_plain,
    running_axis,
    store_result,
)
from gradmgr.ops.shape import flip, ravel, reshape


def _cumsum_back(g: Any, axis: int) -> Any:
    if g.__class__ is np.ndarray:
        backwards = (*[slice(None)] * axis, slice(None, None, -1))
        return np.cumsum(g[backwards], axis)[backwards]
    return flip(_cumsum(flip(g, axis), axis), axis)


_cumsum: Function = linear("cumsum", lambda a, axis: np.cumsum(a, axis), _cumsum_back)


# ---------------------------------------------------------------- products, exact where factors are 0


def _recur_kernel(b: Any, a: Any, axis: int) -> Any:
    """Compute s[k] = b[k] + a[k] s[k-1] along an axis, by a loop over it."""
    out = libraries.able_to_hold(b.astype(np.result_type(a.dtype, b.dtype)), a)
    s, factor = np.moveaxis(out, axis, 0), np.moveaxis(a, axis, 0)
    for k in range(1, s.shape[0]):
        s[k] += factor[k] * s[k - 1]
    return out


def _shift(x: Any, axis: int, first: float) -> Any:
    """Return x shifted one later along an axis, with `first` in front."""
    head: list[Any] = [slice(None)] * axis
    z = raw(x)
    shifted = libraries.namespace(z).full_like(z, first)
    if x.shape[axis] < 2:
        return shifted
    result = wrap(shifted) if isinstance(x, Tensor) else shifted
    result[(*head, slice(1, None))] = x[(*head, slice(None, -1))]
    return result


def _recur_adjoint(g: Any, a: Any, axis: int) -> Any:
    """Return the adjoint in b: s[k] = g[k] + a[k+1] s[k+1]."""
    return flip(_recur(flip(g, axis), _shift(flip(conj_of(a), axis), axis, 0.0), axis), axis)


_recur: Function = custom(
    "linear_recurrence",
    _recur_kernel,
    vjp={
        "b": lambda g, a, axis: _recur_adjoint(g, a, axis),
        "a": lambda g, a, out, axis: _recur_adjoint(g, a, axis) * conj_of(_shift(out, axis, 0.0)),
    },
    jvp={
        "b": lambda t, a, axis: _recur(t, a, axis),
        "a": lambda t, a, out, axis: _recur(t * _shift(out, axis, 0.0), a, axis),
    },
)


def _can_divide(x: Any, out: Any) -> bool:
    """Tell whether dividing a product by a factor gives the product of the others.

    Not where a product is 0 or has overflowed, and not where the quotient is to be differentiated
    again: near 0 that would take the difference of huge numbers.
    """
    if isinstance(x, Tensor) or isinstance(out, Tensor):
        return False
    return bool((np.isfinite(out) & (out != 0)).all())


def _cumprod_vjp(g: Any, x: Any, out: Any, axis: int) -> Any:
    if _can_divide(x, out):
        return flip(_cumsum(flip(g * conj_of(out), axis), axis), axis) / conj_of(x)
    return _recur_adjoint(g, x, axis) * conj_of(_shift(out, axis, 1.0))


_cumprod = custom(
    "cumprod",
    lambda x, axis: np.cumprod(x, axis),
    vjp={"x": _cumprod_vjp},
    jvp={"x": lambda t, x, out, axis: _recur(t * _shift(out, axis, 1.0), x, axis)},
)


def _product_of_others(x: Any, out: Any, axes: Axes) -> Any:
    """Return for each element the product of the others along the axes."""
    if _can_divide(x, out):
        return broadcast_back(out, x.shape, axes) / x
    order = (*[k for k in range(x.ndim) if k not in axes], *axes)
    lead = len(order) - len(axes)
    back = tuple(np.argsort(order).tolist())
    moved = x.transpose(order)
    flat = reshape(moved, (*moved.shape[:lead], math.prod(moved.shape[lead:])))  # no -1, as there may be no elements
    before, after = _product_of_those_before(flat, lead), flip(_product_of_those_before(flip(flat, lead), lead), lead)
    return reshape(before * after, moved.shape).transpose(back)


def _product_of_those_before(x: Any, axis: int) -> Any:
    """Return for each element the product of those before it on the last axis.

    The last has no part in it: with that the product may overflow.
    """
    one = libraries.namespace(raw(x)).ones_like(raw(x)[..., :1])
    return concatenate([one, _cumprod(x[..., :-1], axis)], axis)


_prod = custom(
    "prod",
    lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims),
    vjp={"x": lambda g, x, out, axes: broadcast_back(g, x.shape, axes) * conj_of(_product_of_others(x, out, axes))},
    jvp={"x": lambda t, x, out, axes, keepdims: sum_op(t * _product_of_others(x, out, axes), axes, keepdims)},
)
prod = total_function(
    _prod,
    "prod",
    1,
    multiply,
    "Multiply the elements along axes as `numpy.prod`; derivatives are exact where elements are 0, too.",
)


def _running_function(op: Any, name: str) -> Any:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        if is_plain(a, out):
            return reduce_plain(name, a, axis, dtype=dtype, out=out)
        a = lift(a)
        along = running_axis(axis, a.ndim, name)
        if gives_constant(a, dtype):
            return reduce_constant(name, a, axis, out, dtype=dtype)
        a = cast_to(a, dtype)
        if axis is None:
            a = ravel(a)
        elif a.ndim == 0:
            a = reshape(a, (1,))
        z = op(a, along)
        return store_result(z, out, name)

    return named(function, name, f"Return running {'sums' if name == 'cumsum' else 'products'} as `numpy.{name}`.")


cumsum = _running_function(_cumsum, "cumsum")
cumprod = _running_function(_cumprod, "cumprod")
