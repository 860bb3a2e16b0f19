"""Averages, correlations, order statistics, reductions that ignore NaN, histograms.

Quantiles take elements of the sorted data; their derivative goes to those elements, the first of
equal ones in the order of the data being the lower: the order of a stable sort.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import broadcast_to, cast, is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj, conj_of
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.arithmetic import choose, fmax, fmin, multiply, real, sqrt
from gradmgr.ops.constant import constant
from gradmgr.ops.convert import (
    NOT_GIVEN,
    as_tensor,
    cast_to,
    constant_of,
    holds_tensor,
    is_plain,
    lift,
    together,
    untracked,
)
from gradmgr.ops.join import concatenate
from gradmgr.ops.order import library
from gradmgr.ops.products import matmul
from gradmgr.ops.reduce import (
    as_constant,
    axes_of,
    cumprod,
    cumsum,
    initial_of,
    is_constant,
    mask_of,
    masked,
    mean,
    root,
    running_axis,
    std,
    var,
    widened,
)
from gradmgr.ops.reduce import max as greatest
from gradmgr.ops.reduce import min as least
from gradmgr.ops.reduce import prod as product
from gradmgr.ops.reduce import sum as total
from gradmgr.ops.shape import broadcast_to as broadcast_any
from gradmgr.ops.shape import diag, ravel, reshape, squeeze, transpose

Axes = tuple[int, ...]

# NumPy's default for keywords of which every value means something.


def _given(**keywords: Any) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if value is not NOT_GIVEN}


def _axes(axis: Any, ndim: int, name: str, of_number: bool = False) -> Axes:
    return tuple(sorted(axes_of(axis, ndim, name, of_number)))


def _keeps(keepdims: Any) -> bool:
    return keepdims is not NOT_GIVEN and bool(keepdims)


def _reduced(shape: tuple[int, ...], axes: Axes, keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple([1 if k in axes else n for k, n in enumerate(shape)])
    return tuple([n for k, n in enumerate(shape) if k not in axes])


def _is_inexact(dtype: Any) -> bool:
    return libraries.is_differentiable(dtype)


def _finished(z: Any, out: Any, name: str) -> Any:
    return z if out is None else store(out, z, f"{name}(out=...)")


# ---------------------------------------------------------------- average, ptp


def _weights_beside(a: Any, weights: Any, axis: Axes | None, name: str) -> Any:
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
        more: Any = _given(keepdims=keepdims)
        return np.average(a, axis, weights, returned, **more)  # type: ignore[call-overload]  # a flag NumPy reads
    a, weights = together(a, weights)
    a = as_tensor(a)
    axis = None if axis is None else normalize_axis_tuple(axis, a.ndim, "average")
    keeps = _keeps(keepdims)
    if weights is None:
        z = mean(a, axis, keepdims=keeps)
        sums: Any = libraries.namespace(raw(z)).full(z.shape, a.size / z.size, z.dtype) if returned else None
    else:
        weights = _weights_beside(a, weights, axis, "average")
        dtype = np.result_type(a.dtype, weights.dtype, *([np.float64] if a.dtype.kind in "biu" else []))
        sums = weights.sum(axis=axis, dtype=dtype, keepdims=keeps)
        if (raw(sums) == 0).any():
            raise ZeroDivisionError("average: weights sum to zero, can't be normalized")
        z = total(multiply(cast_to(a, dtype), cast_to(weights, dtype)), axis, keepdims=keeps) / sums
    if not returned:
        return z
    sums = broadcast_to(sums, z.shape)
    return z, sums if isinstance(sums, Tensor) else wrap(sums)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NOT_GIVEN) -> Any:
    """Return greatest minus least as `numpy.ptp`; ties share the gradient evenly."""
    if is_plain(a, out):
        return np.ptp(a, axis, out, **_given(keepdims=keepdims))
    a, keeps = as_tensor(a), _keeps(keepdims)
    if a.dtype.kind == "b":
        raise TypeError("ptp: NumPy does not subtract booleans; cast them first")
    axes = _axes(axis, a.ndim, "ptp", of_number=True)
    if not _length(a.shape, axes):
        raise ValueError("ptp: zero-size array to reduction operation which has no identity")
    return _finished(greatest(a, axis, keepdims=keeps) - least(a, axis, keepdims=keeps), out, "ptp")


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
    ddof = untracked(ddof, "cov", "ddof")
    if ddof is not None and ddof != int(ddof):
        raise ValueError("cov: ddof must be integer")
    m, y, fweights, aweights = together(m, y, fweights, aweights)
    m = as_tensor(m)
    dtype = np.result_type(m.dtype, *([] if y is None else [y.dtype]), np.float64) if dtype is None else dtype
    if not _is_inexact(np.dtype(dtype)):
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
    fact = _degrees(count, both, w, (0 if bias else 1) if ddof is None else ddof)
    if both is None:
        off = x - mean(x, 1, keepdims=True)
        weighted = off
    else:
        off = cast_to(x - total(x * both, 1, keepdims=True) / both.sum(), x.dtype)
        weighted = off * both
    if batched.common(raw(fact) <= 0, "whether there are degrees of freedom"):
        errors.warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        fact = 0.0
    product = matmul(off, conj_of(transpose(weighted)))
    return squeeze(cast_to(product * (np.float64(1) / fact), product.dtype))


def _degrees(count: int, both: Any, aweights: Any, ddof: int) -> Any:
    """What the sum of squares is divided by."""
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
    spread = sqrt(real(diag(c)))
    return _within_one(c / reshape(spread, (-1, 1)) / spread)


# ---------------------------------------------------------------- order statistics


def _length(shape: tuple[int, ...], axes: Axes) -> int:
    count = 1
    for k in axes:
        count *= shape[k]
    return count


def _slices(a: Any, axes: Axes) -> Any:
    """A plain array with the given axes in one, which comes first, and the others in another."""
    kept = [k for k in range(a.ndim) if k not in axes]
    return a.transpose((*axes, *kept)).reshape(_length(a.shape, axes), _length(a.shape, tuple(kept)))


def _offsets(xp: Any, shape: tuple[int, ...], axes: Any) -> Any:
    """The positions in the flattened array of the elements along some axes, 0 in the others."""
    offsets = xp.zeros(1, dtype=np.intp)
    for k in axes:
        along = xp.arange(shape[k]) * _length(shape, tuple(range(k + 1, len(shape))))
        offsets = (offsets[:, None] + along).ravel()
    return offsets


def _stable_order(values: Any) -> Any:
    values = values.astype(np.float32) if values.dtype.kind == "V" else values  # bfloat16 would not put NaN last
    return values.argsort(axis=0, kind="stable")


def _places(values: Any, ranks: Any) -> Any:
    """Where along axis 0 the elements of these ranks stand, equal ones ranked in their order."""
    if libraries.namespace(values) is np and values.size >= _MANY and values.dtype.kind in "biufc":
        distinct = np.unique(ranks)
        if distinct.size <= _FEW_RANKS:
            wanted = np.take_along_axis(np.partition(values, distinct, axis=0), ranks, 0)
            if not np.isnan(wanted).any():
                return np.stack([_place_of(values, *row) for row in zip(wanted, ranks, strict=True)])
    return np.take_along_axis(_stable_order(values), ranks, 0)


# From so many elements on, up to so many ranks, a partition and a search are faster than a sort: 18 ms
# against 90 for the median of 1e6 numbers.
_MANY, _FEW_RANKS = 2000, 4


def _place_of(values: Any, wanted: Any, rank: Any) -> Any:
    """Where along axis 0 the value of a rank stands; of equal ones, the one that a stable sort puts there."""
    equal = values == wanted
    counts = np.count_nonzero(equal, axis=0)
    if (counts == 1).all():
        return equal.argmax(axis=0)
    among_equals = rank - np.count_nonzero(values < wanted, axis=0)
    return (equal.cumsum(axis=0) == among_equals + 1).argmax(axis=0)


def _picked(a: Any, axes: Axes, places: Any) -> Any:
    """The elements at these places along the given axes, one row for each rank."""
    xp, shape = libraries.namespace(raw(a)), a.shape
    others = [k for k in range(len(shape)) if k not in axes]
    return getitem(ravel(a), batched.read(_offsets(xp, shape, axes), places) + _offsets(xp, shape, others))


def _is_nan(values: Any) -> Any:
    """Where a plain array is NaN; None where it cannot be."""
    return np.isnan(values) if _is_inexact(values.dtype) else None


def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """Return the median as `numpy.median`; `overwrite_input` is a permission that is not made use of."""
    if is_plain(a, out):
        return np.median(a, axis, out, overwrite_input, keepdims)
    a = as_tensor(a)
    axes = _axes(axis, a.ndim, "median")
    n = _length(a.shape, axes)
    if n == 0:
        return _finished(mean(a, axes, keepdims=keepdims), out, "median")
    values = _slices(raw(a), axes)
    xp = libraries.namespace(values)
    ranks = xp.asarray([[n // 2]] if n % 2 else [[n // 2 - 1], [n // 2]])
    nan = _is_nan(values)
    ranks = xp.broadcast_to(ranks, (ranks.shape[0], values.shape[1]))
    if nan is not None and nan.any():
        ranks = xp.where(nan.any(axis=0), n - 1, ranks)
    z = mean(_picked(a, axes, _places(values, ranks)), 0)
    return _finished(reshape(z, _reduced(a.shape, axes, bool(keepdims))), out, "median")


def nanmedian(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = NOT_GIVEN
) -> Any:
    """Return the median of what is not NaN, as `numpy.nanmedian`."""
    if is_plain(a, out):
        return np.nanmedian(a, axis, out, overwrite_input, **_given(keepdims=keepdims))
    a = as_tensor(a)
    axes = _axes(axis, a.ndim, "nanmedian")
    if a.size == 0:
        return nanmean(a, axis, out=out, keepdims=keepdims)
    values = _slices(raw(a), axes)
    counts = _numbers_in(values)
    ranks = np.stack([(counts - 1) // 2, counts // 2])
    lower_upper = _picked(a, axes, _places(values, np.clip(ranks, 0, values.shape[0] - 1)))
    lower_upper = lower_upper if _is_inexact(a.dtype) else as_type(lower_upper, np.float64)
    half = constant_of(0.5, lower_upper.dtype)
    z = _nan_where(counts == 0, lower_upper[0] * half + lower_upper[1] * half, "All-NaN slice encountered")
    return _finished(reshape(z, _reduced(a.shape, axes, _keeps(keepdims))), out, "nanmedian")


def _numbers_in(values: Any) -> Any:
    """How many of each column are not NaN."""
    nan = _is_nan(values)
    xp = libraries.namespace(values)
    return xp.full(values.shape[1], values.shape[0]) if nan is None else (~nan).sum(axis=0)


def _nan_where(bad: Any, z: Any, warning: str) -> Any:
    """Return z with NaN, a constant, where there is nothing to reduce, and warn of that."""
    if not bad.any():
        return z
    errors.warn(warning, RuntimeWarning)
    return choose(bad, constant_of(np.nan, z.dtype), z)


# ---------------------------------------------------------------- quantiles
# R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50 (1996),
# with ranks from 0. `n` is the number of elements, or that of each column; `q` one row for each quantile.

# The continuous methods, by the parameters of their plotting positions.
_PLOTTING_POSITIONS = MappingProxyType(
    {
        "interpolated_inverted_cdf": (0, 1),
        "hazen": (0.5, 0.5),
        "weibull": (0, 0),
        "linear": (1, 1),
        "median_unbiased": (1 / 3.0, 1 / 3.0),
        "normal_unbiased": (3 / 8.0, 3 / 8.0),
    }
)


def _continuous_rank(method: str, n: Any, q: Any) -> Any:
    if method == "linear":
        return (n - 1) * q  # the same as below, with less rounding
    alpha, beta = _PLOTTING_POSITIONS[method]
    return n * q + (alpha + q * (1 - alpha - beta)) - 1


def _next_unless(stays: Any, rank: Any) -> Any:
    """Round up to the next rank, but leave one where it is where `stays` says so."""
    low = np.floor(rank)
    return np.maximum(np.where(stays(rank - low, low), low, low + 1), 0)


# The methods that take one element: their ranks.
_ONE_RANK: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "inverted_cdf": lambda n, q: _next_unless(lambda part, low: part == 0, n * q - 1),
        "closest_observation": lambda n, q: _next_unless(
            lambda part, low: (part == 0) & (low % 2 == 1), n * q - 1 - 0.5
        ),
        "lower": lambda n, q: np.floor((n - 1) * q),
        "higher": lambda n, q: np.ceil((n - 1) * q),
        "nearest": lambda n, q: np.around((n - 1) * q),
    }
)


def _middle_rank(n: Any, q: Any) -> Any:
    rank = (n - 1) * q
    return 0.5 * (np.floor(rank) + np.ceil(rank))


# The methods that take the mean of two elements at some ranks: the rank, the weight of the upper element.
_HALVES: Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = MappingProxyType(
    {
        "averaged_inverted_cdf": (lambda n, q: n * q - 1, lambda part: np.where(part == 0, 0.5, 1.0)),
        "midpoint": (_middle_rank, lambda part: np.where(part == 0, 0.0, 0.5)),
    }
)
_METHODS = (*_PLOTTING_POSITIONS, *_ONE_RANK, *_HALVES)


def _ranks(method: str, n: Any, q: Any) -> tuple[Any, Any]:
    """Return the ranks, from 0, and the weight of each element's upper neighbour, None where it has none."""
    if method in _ONE_RANK:
        return _ONE_RANK[method](n, raw(q)), None
    if method in _HALVES:
        rank, weigh = _HALVES[method]
        position = rank(n, raw(q))
        return position, weigh(position - np.floor(position)).astype(position.dtype)
    position = _continuous_rank(method, n, q)
    if method == "linear" and raw(position).dtype.kind in "iu":
        return raw(position), None
    return raw(position), position - np.floor(raw(position))


def _checked_q(q: Any, like: Any, scale: int, name: str) -> Any:
    """Lift what the user gave as q, to the library of `like`; divide percentages."""
    q = _in_precision(q, like.dtype) if isinstance(q, Tensor) else libraries.namespace(like).asarray(q)
    q = q if scale == 1 else q / scale
    a = raw(q)
    if not ((a >= 0) & (a <= 1)).all():
        raise ValueError(f"{name}: q must be in the range [0, {scale}]")
    if a.ndim > 2:
        raise ValueError(f"{name}: q must be a scalar or 1d; found shape {a.shape}")
    return q


def _in_precision(a: Any, dtype: Any) -> Any:
    """Widen to what the two dtypes give together, so that nothing is rounded on the way to a result of that."""
    return cast_to(a, np.result_type(a.dtype, dtype)) if _is_inexact(a.dtype) and _is_inexact(dtype) else a


def _interpolated(lower: Any, upper: Any, weight: Any, weak: bool) -> Any:
    """Go from lower to upper by the weight, from the nearer end, as NumPy."""
    if isinstance(weight, Tensor):
        lower, upper = _in_precision(lower, weight.dtype), _in_precision(upper, weight.dtype)
    rest = 1 - weight
    nearer = raw(weight) >= 0.5
    if weak:  # q was a Python number, which does not take part in promotion
        dtype = lower.dtype if _is_inexact(lower.dtype) else np.float64
        weight, rest = as_type(weight, dtype), as_type(rest, dtype)
    step = upper - lower
    if nearer.all():
        return upper - step * rest
    up = lower + step * weight
    return choose(nearer, upper - step * rest, up) if nearer.any() else up


def _quantile(name: str, scale: int, skips_nan: bool) -> Any:
    numpys = getattr(np, name)

    def function(
        a: Any,
        q: Any,
        axis: Any = None,
        out: Any = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: Any = NOT_GIVEN if skips_nan else False,
        *,
        weights: Any = None,
    ) -> Any:
        if is_plain(a, q, out, weights):
            more = _given(keepdims=keepdims) | ({} if weights is None else {"weights": weights})
            return numpys(a, q, axis, out, overwrite_input, method, **more)
        weak = type(q) in (int, float)
        a, q, weights = together(a, q, weights)
        a = as_tensor(a)
        if a.dtype.kind == "c":
            raise TypeError(f"{name}: a must be an array of real numbers; found {a.dtype}")
        if method not in _METHODS:
            raise ValueError(f"{name}: {method!r} is not a valid method; use one of: {', '.join(sorted(_METHODS))}")
        q = _checked_q(q, raw(a), scale, name)
        axes = _axes(axis, a.ndim, name)
        weights = _checked_weights(a, weights, axis, method, name)
        if a.size == 0 and skips_nan:
            return nanmean(a, axis, out=out, keepdims=keepdims)
        if _length(a.shape, axes) == 0:
            raise IndexError(f"{name}: an array of shape {a.shape} has no elements along the axes {axes}")
        column = reshape(q, (-1, 1))
        if weights is None:
            z = _by_rank(a, axes, column, method, skips_nan, weak)
        else:
            spread = broadcast_any(raw(weights), a.shape)
            z = _by_weight(a, axes, raw(column), _slices(spread, axes), skips_nan, name)
        z = reshape(z, (*q.shape, *_reduced(a.shape, axes, _keeps(keepdims))))
        return _finished(z if isinstance(z, Tensor) else wrap(z), out, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Return {name.removeprefix('nan')}s as `numpy.{name}`, by each of its methods.\n\n"
        "    Gradients flow into the elements taken and, with a continuous method, into a Tensor `q`. `weights`\n"
        "    only decide which element is taken. `overwrite_input` is a permission that is not made use of.\n    "
    )
    return function


def _checked_weights(a: Any, weights: Any, axis: Any, method: str, name: str) -> Any:
    if weights is None:
        return None
    if method != "inverted_cdf":
        raise ValueError(f"{name}: only method 'inverted_cdf' supports weights; found {method!r}")
    axis = None if axis is None else normalize_axis_tuple(axis, a.ndim, name)
    weights = _weights_beside(a, weights, axis, name)
    if (raw(weights) < 0).any():
        raise ValueError(f"{name}: weights must be non-negative")
    return weights


def _by_rank(a: Any, axes: Axes, q: Any, method: str, skips_nan: bool, weak: bool) -> Any:
    values = _slices(raw(a), axes)
    n, columns = values.shape
    counts: Any = _numbers_in(values) if skips_nan else n
    rank, weight = _ranks(method, counts, q)
    if skips_nan and weight is not None:
        weight = cast_to(weight, raw(_ranks(method, n, q)[1]).dtype)
    low = np.clip(np.floor(rank), 0, np.maximum(counts - 1, 0)).astype(np.intp)
    high = np.where((rank < 0) | (rank >= counts - 1), low, low + 1)
    taken = low if weight is None else np.concatenate([low, high])
    taken = np.broadcast_to(taken, (taken.shape[0], columns))
    nan = None if skips_nan else _is_nan(values)
    if nan is not None and nan.any():
        taken = np.where(nan.any(axis=0), n - 1, taken)
    found = _picked(a, axes, _places(values, taken))
    if weight is not None:
        half = found.shape[0] // 2
        found = _interpolated(found[:half], found[half:], weight, weak)
    return _nan_where(counts == 0, found, "All-NaN slice encountered") if skips_nan else found


def _by_weight(a: Any, axes: Axes, q: Any, weights: Any, skips_nan: bool, name: str) -> Any:
    """The first element at which the running sum of the sorted weights reaches q of their sum."""
    values = _slices(raw(a), axes)
    xp, n = libraries.namespace(values), values.shape[0]
    nan = _is_nan(values)
    nan = xp.zeros(values.shape, dtype=bool) if nan is None else nan
    counts = (~nan).sum(axis=0) if skips_nan else xp.full(values.shape[1], n)
    order = _stable_order(values)
    sorted_weights = np.take_along_axis(np.where(nan, 0, weights) if skips_nan else weights, order, 0)
    reached = np.cumsum(sorted_weights, axis=0, dtype=np.float64)
    whole = np.where(counts == 0, 1.0, reached[-1])
    if not (np.isfinite(whole) & (whole > 0)).all():
        raise ValueError(f"{name}: weights included NaN, inf or were all zero")
    reached = reached / whole
    reached = reached.astype(q.dtype) if q.dtype.kind == "f" else reached
    reached = np.where(reached == 0, -1, reached)  # an element of weight 0 is not the first to reach q = 0
    rank = np.stack([(reached < one).sum(axis=0) for one in q])
    rank = np.minimum(rank, np.maximum(counts - 1, 0))
    if not skips_nan:
        rank = np.where(nan.any(axis=0), n - 1, rank)
    found = _picked(a, axes, np.take_along_axis(order, rank, 0))
    return _nan_where(counts == 0, found, "All-NaN slice encountered")


quantile = _quantile("quantile", 1, skips_nan=False)
percentile = _quantile("percentile", 100, skips_nan=False)
nanquantile = _quantile("nanquantile", 1, skips_nan=True)
nanpercentile = _quantile("nanpercentile", 100, skips_nan=True)

# ---------------------------------------------------------------- reductions that ignore NaN


def _without_nan(a: Any, neutral: float) -> Any:
    """Return a with a constant for each NaN, so that what is there has no part in any derivative."""
    nan = _is_nan(raw(a))
    return a if nan is None or not nan.any() else choose(nan, constant_of(neutral, a.dtype), a)


def _nan_total(op: Any, name: str, neutral: int) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = NOT_GIVEN,
        initial: Any = NOT_GIVEN,
        where: Any = NOT_GIVEN,
    ) -> Any:
        if is_plain(a, out, initial, where):
            return getattr(np, name)(a, axis, dtype, out, **_given(keepdims=keepdims, initial=initial, where=where))
        a = as_tensor(a)
        _axes(axis, a.ndim, name, of_number=True)
        if is_constant(a, dtype):
            given = {"dtype": dtype, "keepdims": keepdims, "initial": initial, "where": where}
            return as_constant(name, a, axis, out, **_given(**given))
        if where is not NOT_GIVEN and where is not True:
            where = mask_of(where, a, name)
        if initial is not NOT_GIVEN and initial is not None:
            initial = initial_of(initial, a.dtype if dtype is None else np.dtype(dtype), name)
        return op(_without_nan(a, neutral), axis, dtype, out, _keeps(keepdims), **_given(initial=initial, where=where))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name.removeprefix('nan')} of what is not NaN, as `numpy.{name}`."
    return function


nansum = _nan_total(total, "nansum", 0)
nanprod = _nan_total(product, "nanprod", 1)


def _nan_running(op: Any, name: str, neutral: int) -> Any:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        if is_plain(a, out):
            return getattr(np, name)(a, axis, dtype, out)
        a = as_tensor(a)
        running_axis(axis, a.ndim, name)
        return op(_without_nan(a, neutral), axis, dtype, out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return running {'sums' if neutral == 0 else 'products'}, NaN left out, as `numpy.{name}`."
    return function


nancumsum = _nan_running(cumsum, "nancumsum", 0)
nancumprod = _nan_running(cumprod, "nancumprod", 1)


def _numbers(a: Any, where: Any, name: str) -> Any:
    """The mask of the elements that take part."""
    here = ~np.isnan(raw(a))
    return here if where is NOT_GIVEN or where is True else here & mask_of(where, a, name)


def _all_count(here: Any, shape: tuple[int, ...], axes: Axes) -> int:
    """How many are reduced to each result where every element takes part; else 0."""
    return _length(shape, axes) if here.shape == shape and here.all() else 0


def _over_counts(sums: Any, count: Any, warning: str) -> Any:
    """Divide by counts, NaN where there is nothing to divide, without a division by 0 on any way."""
    bad = raw(count) <= 0
    safe = as_type(choose(bad, 1, count), _count_dtype(sums))
    z = (sums if raw(sums).dtype.itemsize > 2 else as_type(sums, np.float32)) / safe
    return _nan_where(bad, cast_to(z, sums.dtype), warning)


def _count_dtype(sums: Any) -> Any:
    """The dtype for counts beside these sums; a half cannot hold a large one."""
    dtype = raw(sums).real.dtype
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _check_inexact(name: str, dtype: Any, out: Any) -> None:
    for what, given in (("dtype", dtype), ("out", None if out is None else out.dtype)):
        if given is not None and not _is_inexact(np.dtype(given)):
            raise TypeError(f"{name}: if a is inexact, then {what} must be inexact; found {np.dtype(given)}")


def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NOT_GIVEN,
    *,
    where: Any = NOT_GIVEN,
) -> Any:
    """Average what is not NaN, as `numpy.nanmean`."""
    if is_plain(a, out, where):
        return np.nanmean(a, axis, dtype, out, **_given(keepdims=keepdims, where=where))
    a = as_tensor(a)
    if not _is_inexact(a.dtype):
        return mean(a, axis, dtype, out, _keeps(keepdims), **_given(where=where))
    _check_inexact("nanmean", dtype, out)
    axes = _axes(axis, a.ndim, "nanmean", of_number=True)
    here, keeps = _numbers(a, where, "nanmean"), _keeps(keepdims)
    if _all_count(here, a.shape, axes) > 0:
        return mean(a, axes, dtype, out, keeps)
    a = cast_to(a, dtype)
    sums = total(masked(here, a, constant_of(0, a.dtype)), axes, keepdims=keeps)
    count = here.sum(axis=axes, keepdims=keeps)
    return _finished(_over_counts(sums, count, "Mean of empty slice"), out, "nanmean")


def _nan_var(a: Any, here: Any, axes: Axes, ddof: Any, keeps: bool, centre: Any) -> Any:
    zero = constant_of(0, a.dtype)
    a = masked(here, a, zero)
    if centre is NOT_GIVEN:
        count = np.maximum(here.sum(axis=axes, keepdims=True), 1)
        centre = total(a, axes, keepdims=True) / count.astype(_count_dtype(a))
    off = masked(here, cast_to(a - centre, a.dtype), zero)
    squares = real(off * conj(off)) if is_complex(off) else off * off
    degrees = here.sum(axis=axes, keepdims=keeps) - ddof
    return _over_counts(total(squares, axes, keepdims=keeps), degrees, "Degrees of freedom <= 0 for slice.")


def _nan_dispersion(name: str, of_numbers: Any, finish: Any) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: Any = NOT_GIVEN,
        *,
        where: Any = NOT_GIVEN,
        mean: Any = NOT_GIVEN,
        correction: Any = NOT_GIVEN,
    ) -> Any:
        more = _given(where=where, mean=mean, correction=correction)
        if is_plain(a, out, where, mean, ddof, correction):
            return getattr(np, name)(a, axis, dtype, out, ddof, **_given(keepdims=keepdims), **more)
        a = as_tensor(a)
        if not _is_inexact(a.dtype):
            return of_numbers(a, axis, dtype, out, ddof, _keeps(keepdims), **more)
        _check_inexact(name, dtype, out)
        if correction is not NOT_GIVEN:
            if isinstance(ddof, Tensor) or ddof != 0:
                raise ValueError(f"{name}: ddof and correction can't be provided simultaneously.")
            ddof = correction
        axes = _axes(axis, a.ndim, name, of_number=True)
        here, keeps = _numbers(a, where, name), _keeps(keepdims)
        if mean is NOT_GIVEN and (_all_count(here, a.shape, axes) > np.maximum(raw(ddof), 0)).all():
            return of_numbers(a, axes, dtype, out, ddof, keeps)
        a = cast_to(a, dtype)
        dtype = raw(a).real.dtype if dtype is None else dtype
        z = cast_to(finish(_nan_var(widened(a, ddof), here, axes, ddof, keeps, mean)), dtype)
        return _finished(z, out, name)

    function.__name__ = function.__qualname__ = name
    what = "variance" if name == "nanvar" else "standard deviation"
    function.__doc__ = f"Return the {what} of what is not NaN, as `numpy.{name}`."
    return function


nanvar = _nan_dispersion("nanvar", var, lambda z: z)
nanstd = _nan_dispersion("nanstd", std, root)


def _nan_shares(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Each element's share in an extreme: ties share evenly, a NaN takes none. A constant for every recorder."""
    a = raw(x)
    ties = (a == raw(out).reshape(_reduced(a.shape, axes, True))).astype(raw(g).dtype)
    return ties / np.maximum(ties.real.sum(axis=axes, keepdims=True), 1)


def _nan_extreme_op(name: str, ufunc: Any) -> Function:
    def kernel(x: Any, axes: Axes, keepdims: bool) -> Any:
        if libraries.namespace(x) is np:
            with np.errstate(invalid="ignore"):  # bfloat16 tells of every NaN
                return ufunc.reduce(x, axis=axes, keepdims=keepdims)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # given below, for either library
            return getattr(np, name)(x, axis=axes, keepdims=keepdims)

    def pull(g: Any, x: Any, out: Any, axes: Axes) -> Any:
        return reshape(g, _reduced(x.shape, axes, True)) * _nan_shares(g, x, out, axes)

    def push(t: Any, x: Any, out: Any, axes: Axes, keepdims: bool) -> Any:
        return total(t * _nan_shares(t, x, out, axes), axes, keepdims=keepdims)

    return custom(name, kernel, vjp={"x": pull}, jvp={"x": push})


def _nan_extreme(name: str, combine: Any) -> Any:
    op = _nan_extreme_op(name, getattr(np, combine.op.name))

    def function(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = NOT_GIVEN,
        initial: Any = NOT_GIVEN,
        where: Any = NOT_GIVEN,
    ) -> Any:
        if is_plain(a, out, initial, where):
            return getattr(np, name)(a, axis, out, **_given(keepdims=keepdims, initial=initial, where=where))
        a = as_tensor(a)
        axes, keeps = _axes(axis, a.ndim, name, of_number=True), _keeps(keepdims)
        initial = NOT_GIVEN if initial is None else initial
        where = True if where is NOT_GIVEN else where
        if where is not True and initial is NOT_GIVEN:
            raise ValueError(f"{name} with where= needs initial=, as NumPy's: no value is neutral for it")
        if is_constant(a, None):
            return as_constant(name, a, axis, out, keepdims=keeps, where=where, **_given(initial=initial))
        mask = None if where is True else mask_of(where, a, name)
        if initial is not NOT_GIVEN:
            initial = initial_of(initial, a.dtype, name)
        elif not _length(a.shape, axes) and _length(_reduced(a.shape, axes, False), tuple(range(a.ndim - len(axes)))):
            raise ValueError(f"{name}: zero-size array to reduction operation which has no identity")
        if mask is not None:
            # NaN loses against everything; an integer array has none, and needs none but the initial value.
            a = masked(mask, a, constant_of(np.nan if _is_inexact(a.dtype) else raw(initial), a.dtype))
        if initial is not NOT_GIVEN and _length(a.shape, axes) == 0:
            z = total(a, axes, keepdims=keeps) + initial  # a sum of nothing has the history
        else:
            z = op(a, axes, keeps)
            z = z if initial is NOT_GIVEN else combine(z, initial)
        nan = _is_nan(raw(z))
        if nan is not None and nan.any():
            errors.warn("All-NaN slice encountered", RuntimeWarning)
        return _finished(z, out, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name[3:]}imum of what is not NaN, as `numpy.{name}`; ties share evenly."
    return function


nanmax = _nan_extreme("nanmax", fmax)
nanmin = _nan_extreme("nanmin", fmin)
nanargmax = constant(np.nanargmax)
nanargmin = constant(np.nanargmin)

# ---------------------------------------------------------------- histograms


def _bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    if libraries.namespace(a) is np:
        return np.histogram_bin_edges(a, bins, range, weights)
    return np.histogram(a, bins, range)[1]  # CuPy has no histogram_bin_edges


_bin_edges.__name__ = "histogram_bin_edges"
histogram_bin_edges = constant(_bin_edges)
digitize = constant(np.digitize, 2)


def _values_of(a: Any) -> Any:
    """Strip the Tensors in nested lists and tuples to their arrays."""
    if isinstance(a, (list, tuple)):
        return type(a)([_values_of(part) for part in a])
    return raw(a)


def _edges_of(bins: Any, points: Any) -> Any:
    """Edges in a list as an array where the points live; a number of bins as it is."""
    if not isinstance(bins, (list, tuple)):
        return raw(bins)
    return library(*points).asarray(_values_of(bins)) if isinstance(points, list) else _edges_of(bins, [points])


def _edges_by_axis(bins: Any, points: Any) -> Any:
    return [_edges_of(part, points) for part in bins] if isinstance(bins, (list, tuple)) else raw(bins)


def _flat_values(a: Any) -> Any:
    return (a if libraries.is_array(a) else np.asarray(a)).ravel()


def _weighted_counts(weights: Any, samples: list[Any], edges: Any) -> Any:
    """Add up the weights in each bin. A bin holds its left edge, the last one its right edge too."""
    xp, shape = libraries.namespace(samples[0]), tuple([len(edge) - 1 for edge in edges])
    inside, place = xp.ones(samples[0].shape, dtype=bool), xp.zeros(samples[0].shape, dtype=np.intp)
    for values, edge, count in zip(samples, edges, shape, strict=True):
        k = np.searchsorted(edge, values, side="right") - 1 - (values == edge[-1])
        inside = inside & (k >= 0) & (k < count)
        place = place * count + k
    wide = cast(ravel(weights), np.dtype(np.complex128 if is_complex(weights) else np.float64))
    return reshape(scatter(getitem(wide, inside), (_length(shape, tuple(range(len(shape)))),), place[inside]), shape)


def _per_volume(counts: Any, edges: Any) -> Any:
    z = counts
    for k, edge in enumerate(edges):
        z = z / np.diff(edge).astype(np.float64).reshape([-1 if j == k else 1 for j in range(counts.ndim)])
    return z / total(counts)


def _as_histogram(counts: Any, samples: list[Any], edges: Any, density: Any, weights: Any, dtype: Any) -> Any:
    """Wrap NumPy's counts; compute them again, recorded, where weights can carry a gradient."""
    if not (isinstance(weights, Tensor) and _is_inexact(weights.dtype)):
        return wrap(counts)
    summed = cast_to(_weighted_counts(weights, samples, edges), dtype)
    return cast_to(_per_volume(summed, edges), counts.dtype) if density else summed


def histogram(a: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None) -> Any:
    """Count as `numpy.histogram`: a constant, but for the weights, into which gradients flow."""
    if is_plain(a, bins, range, weights):
        return np.histogram(a, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    values = _values_of(a)
    counts, edges = np.histogram(
        values, _edges_of(bins, values), _values_of(range), density=density, weights=raw(weights)
    )
    dtype = getattr(weights, "dtype", None)
    return _as_histogram(counts, [_flat_values(values)], [edges], density, weights, dtype), wrap(edges)


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> Any:
    """Count as `numpy.histogram2d`: a constant, but for the weights, into which gradients flow."""
    if is_plain(x, y, bins, range, weights):
        return np.histogram2d(x, y, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    points = [_values_of(x), _values_of(y)]
    both = isinstance(bins, (list, tuple)) and len(bins) == 2
    edges_of = _edges_by_axis(bins, points) if both else _edges_of(bins, points)
    settings: Any = {"bins": edges_of, "range": _values_of(range), "density": density, "weights": raw(weights)}
    counts, *edges = np.histogram2d(*points, **settings)
    samples = [_flat_values(part) for part in points]
    counts = _as_histogram(counts, samples, edges, density, weights, np.float64)
    return (counts, *[wrap(edge) for edge in edges])


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> Any:
    """Count as `numpy.histogramdd`: a constant, but for the weights, into which gradients flow."""
    if is_plain(sample, bins, range, weights):
        return np.histogramdd(sample, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    points = _values_of(sample)
    counts, edges = np.histogramdd(
        points, _edges_by_axis(bins, points), _values_of(range), density=density, weights=raw(weights)
    )
    if not libraries.is_array(points):
        samples = [_flat_values(part) for part in points]  # a sequence holds one array an axis
    else:
        samples = [points] if points.ndim == 1 else list(points.T)
    counts = _as_histogram(counts, samples, edges, density, weights, np.float64)
    return counts, [wrap(edge) for edge in edges]
