"""Averages, covariance and correlation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.arithmetic import multiply, real, sqrt
from gradmgr.ops.convert import NOT_GIVEN, as_tensor, cast_to, is_plain, lift_together, untracked_value
from gradmgr.ops.join import concatenate
from gradmgr.ops.products import matmul
from gradmgr.ops.reduce import max as max_of
from gradmgr.ops.reduce import mean
from gradmgr.ops.reduce import min as min_of
from gradmgr.ops.reduce import sum as sum_of
from gradmgr.ops.reduction_arguments import Axes, axes_of, count_along, read_keepdims, reduce_plain, store_result
from gradmgr.ops.shape import diag, reshape, squeeze, transpose

# ---------------------------------------------------------------- average, ptp


def weights_for(a: Any, weights: Any, axis: Axes | None, name: str) -> Any:
    """Weights in a shape that broadcasts against a; `axis` as the user ordered it."""
    if weights.shape == a.shape:
        return weights
    if axis is None:
        raise TypeError(f"{name}: axis must be specified when shapes of a and weights differ")
    if weights.shape != tuple([a.shape[k] for k in axis]):
        raise ValueError(
            f"{name}: shape of weights must be consistent with shape of a along specified axis; found {weights.shape} "
            f"for axis {axis} of {a.shape}"
        )
    ordered = transpose(weights, tuple(np.argsort(axis).tolist()))
    return reshape(ordered, tuple([n if k in axis else 1 for k, n in enumerate(a.shape)]))


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = NOT_GIVEN) -> Any:
    """Average as `numpy.average`; gradients flow into the weights too."""
    if is_plain(a, weights):
        return reduce_plain("average", a, axis, weights=weights, returned=returned, keepdims=keepdims)
    a, weights = lift_together(a, weights)
    a = as_tensor(a)
    axis = None if axis is None else normalize_axis_tuple(axis, a.ndim, "average")
    keeps = read_keepdims(keepdims)
    if weights is None:
        z = mean(a, axis, keepdims=keeps)
        sums: Any = libraries.namespace(raw(z)).full(z.shape, a.size / z.size, z.dtype) if returned else None
    else:
        weights = weights_for(a, weights, axis, "average")
        dtype = np.result_type(a.dtype, weights.dtype, *([np.float64] if a.dtype.kind in "biu" else []))
        sums = weights.sum(axis=axis, dtype=dtype, keepdims=keeps)
        if (raw(sums) == 0).any():
            raise ZeroDivisionError("average: weights sum to zero, can't be normalized")
        z = sum_of(multiply(cast_to(a, dtype), cast_to(weights, dtype)), axis, keepdims=keeps) / sums
    if not returned:
        return z
    sums = broadcast_to(sums, z.shape)
    return z, sums if isinstance(sums, Tensor) else wrap(sums)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NOT_GIVEN) -> Any:
    """Return greatest minus least as `numpy.ptp`; ties share the gradient evenly."""
    if is_plain(a, out):
        return reduce_plain("ptp", a, axis, out=out, keepdims=keepdims)
    a, keeps = as_tensor(a), read_keepdims(keepdims)
    if a.dtype.kind == "b":
        raise TypeError("ptp: NumPy does not subtract booleans; cast them first")
    if not count_along(a.shape, axes_of(axis, a.ndim, "ptp", of_number=True)):
        raise ValueError("ptp: zero-size array to reduction operation which has no identity")
    return store_result(max_of(a, axis, keepdims=keeps) - min_of(a, axis, keepdims=keeps), out, "ptp")


# ---------------------------------------------------------------- covariance and correlation


def _as_rows(m: Any, rowvar: bool, dtype: Any, name: str) -> Any:
    if m.ndim > 2:
        raise ValueError(f"cov: {name} has more than 2 dimensions")
    m = cast_to(m, dtype)
    return reshape(m, (1, -1)) if m.ndim < 2 else m if rowvar else transpose(m)


def _sample_weights(weights: Any, count: int, name: str) -> Any:
    weights = cast_to(weights, np.float64)
    a = raw(weights)
    if name == "fweights" and not (a == a.round()).all():
        raise TypeError("cov: fweights must be integer")
    if a.ndim > 1:
        raise RuntimeError(f"cov: cannot handle multidimensional {name}")
    if a.shape != (count,):
        raise RuntimeError(f"cov: incompatible numbers of samples and {name}: {count}, {a.shape}")
    if (a < 0).any():
        raise ValueError(f"cov: {name} cannot be negative")
    return weights


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    """Return the covariance matrix as `numpy.cov`; gradients flow into the weights too."""
    if is_plain(m, y, fweights, aweights, ddof):
        return np.cov(m, y, rowvar, bias, ddof, fweights, aweights, dtype=dtype)
    ddof = untracked_value(ddof, "cov", "ddof")
    if ddof is not None and ddof != int(ddof):
        raise ValueError("cov: ddof must be integer")
    m, y, fweights, aweights = lift_together(m, y, fweights, aweights)
    m = as_tensor(m)
    dtype = np.result_type(m.dtype, *([] if y is None else [y.dtype]), np.float64) if dtype is None else dtype
    if not libraries.is_differentiable(np.dtype(dtype)):
        raise TypeError(f"cov: dtype must be inexact, as the means are; found {np.dtype(dtype)}")
    x = _as_rows(m, rowvar, dtype, "m")
    if x.shape[0] == 0:
        return wrap(libraries.namespace(raw(x)).zeros((0, 0)))
    if y is not None:
        x = concatenate([x, _as_rows(y, rowvar or (y.ndim == 2 and y.shape[0] == 1), dtype, "y")])
    count = x.shape[1]
    f = None if fweights is None else _sample_weights(fweights, count, "fweights")
    w = None if aweights is None else _sample_weights(aweights, count, "aweights")
    both = f if w is None else w if f is None else f * w
    if both is not None and (raw(both).sum() == 0).any():
        raise ZeroDivisionError("cov: weights sum to zero, can't be normalized")
    fact = _degrees_of_freedom(count, both, w, (0 if bias else 1) if ddof is None else ddof)
    if both is None:
        off = x - mean(x, 1, keepdims=True)
        weighted = off
    else:
        off = cast_to(x - sum_of(x * both, 1, keepdims=True) / both.sum(), x.dtype)
        weighted = off * both
    if libraries.common_value(raw(fact) <= 0, "whether there are degrees of freedom"):
        errors.warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        fact = 0.0
    product = matmul(off, conj_of(transpose(weighted)))
    return squeeze(cast_to(product * (np.float64(1) / fact), product.dtype))


def _degrees_of_freedom(count: int, both: Any, aweights: Any, ddof: int) -> Any:
    """Return what the sum of squares is divided by."""
    if both is None:
        return float(count - ddof)
    sums = both.sum()
    if ddof == 0:
        return sums
    return sums - ddof if aweights is None else sums - ddof * (both * aweights).sum() / sums


def _clip_parts(c: Any) -> Any:
    clipped = c.real.clip(-1, 1)
    return clipped + 1j * c.imag.clip(-1, 1) if c.dtype.kind == "c" else clipped


# A correlation leaves [-1, 1] by rounding alone, so that cutting that off does not touch the derivative.
_within_one = custom("clip_rounding", _clip_parts, vjp={"c": lambda g: g}, jvp={"c": lambda t: t})


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return correlation coefficients as `numpy.corrcoef`."""
    if is_plain(x, y):
        return np.corrcoef(x, y, rowvar, dtype=dtype)
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    deviations = sqrt(real(diag(c)))
    return _within_one(c / reshape(deviations, (-1, 1)) / deviations)
