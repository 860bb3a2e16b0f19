"""Reductions and running sums, by NumPy's keywords; logsumexp."""

from __future__ import annotations

import builtins
import math
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from gradmgr._arrays import batched, blocks, libraries
from gradmgr._engine.broadcast import broadcast_to, is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj, conj_of
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import _logsumexp as _logsumexp_of_floats
from gradmgr.ops.arithmetic import add, choose, exp, imag, maximum, minimum, multiply, real, sqrt
from gradmgr.ops.convert import NOT_GIVEN, cast_to, constant_of, is_plain, lift
from gradmgr.ops.shape import broadcast_to as broadcast_any
from gradmgr.ops.shape import flip, ravel, reshape

Axes = tuple[int, ...]


def axes_of(axis: Any, ndim: int, name: str, of_number: bool = False) -> Axes:
    """Read axis=; with `of_number` 0 and -1 serve for an array of no axes too, as NumPy's ufuncs have it."""
    if axis is None:
        return tuple(range(ndim))
    if axis.__class__ is int and 0 <= axis < ndim:
        return (axis,)
    if isinstance(axis, list):
        raise TypeError(f"{name}: axis must be None, an integer or a tuple of integers; found the list {axis}")
    if of_number and ndim == 0 and not isinstance(axis, tuple) and axis in (0, -1):
        return ()
    try:
        return tuple(normalize_axis_tuple(axis, ndim, name))
    except TypeError as error:
        raise TypeError(f"{name}: axis must be None, an integer or a tuple of integers: {error}") from None


# Up to so many elements a spread gradient has memory of its own.
_FEW = 4096


def _axes_soon(a: Any, axis: Any) -> Axes | None:
    """Read axis= in the usual case, a Tensor of a common dtype; None in others, which take 0.7 us more."""
    if isinstance(a, Tensor) and ((t := a._array.dtype) is libraries.F8 or t is libraries.F4):
        ndim: int = a._array.ndim
        if axis is None:
            return tuple(range(ndim))
        if axis.__class__ is int and -ndim <= axis < ndim:
            return (axis % ndim,)
    return None


def _kept(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a reduction with keepdims."""
    return tuple([1 if k in axes else n for k, n in enumerate(shape)])


def _count(shape: tuple[int, ...], axes: Axes) -> int:
    count = 1
    for k in axes:
        count *= shape[k]
    return count


def _spread(g: Any, shape: tuple[int, ...], axes: Axes) -> Any:
    """A reduced array back in its full shape."""
    if g.__class__ is np.ndarray and math.prod(shape) <= _FEW:
        full = np.empty(shape, g.dtype)  # a view of strides 0 takes 2 us to make, and NumPy's loops longer to read
        full[...] = g if len(axes) == len(shape) else g.reshape(_kept(shape, axes))
        return full
    if g.ndim and len(axes) != len(shape):
        kept = _kept(shape, axes)
        g = g if g.shape == kept else reshape(g, kept)
    return broadcast_to(g, shape)


def _are_floats(g: Any, x: Any) -> bool:
    """Tell whether a gradient and a value are NumPy's own, of the same common dtype: what fast ways take."""
    return x.__class__ is np.ndarray and isinstance(g, (np.ndarray, np.generic)) and g.dtype == x.dtype in _COMMON


_COMMON = (libraries.F4, libraries.F8)

# ---------------------------------------------------------------- the ops

_sum = linear(
    "sum",
    lambda a, axes, keepdims: libraries.sum_over(a, axes, keepdims),
    lambda g, shape, axes: _spread(g, shape, axes),
)


def _over_count(g: Any, count: int) -> Any:
    """Return g / count, where a float16 can hold neither a large count nor its reciprocal."""
    return g / count if g.dtype.itemsize > 2 else as_type(as_type(g, np.float32) / count, g.dtype)


def _number_for(x: Any, value: float) -> Any:
    """A factor in the real dtype of x; in float32 for a half, which would round 1/n to nothing."""
    dtype = raw(x).real.dtype
    return np.float32(value) if dtype.itemsize == 2 else dtype.type(value)


def _wide(a: Any) -> Any:
    """A half in float32, where sums and counts of many are exact enough."""
    return as_type(a, np.float32) if a.dtype == np.float16 else a


def _mean_kernel(a: Any, axes: Axes, keepdims: bool) -> Any:
    """What numpy.mean computes, bit for bit, without its 2 us of Python; float16 and integers go to it."""
    if a.__class__ is np.ndarray and a.dtype.char in "fdFD" and a.size:
        return libraries.sum_over(a, axes, keepdims) / _count(a.shape, axes)
    return a.mean(axis=axes, keepdims=keepdims)


_mean = linear(
    "mean",
    _mean_kernel,
    lambda g, shape, axes: _spread(_over_count(g, _count(shape, axes)), shape, axes),
)


def _cumsum_back(g: Any, axis: int) -> Any:
    if g.__class__ is np.ndarray:
        backwards = (*[slice(None)] * axis, slice(None, None, -1))
        return np.cumsum(g[backwards], axis)[backwards]
    return flip(_cumsum(flip(g, axis), axis), axis)


_cumsum: Function = linear("cumsum", lambda a, axis: np.cumsum(a, axis), _cumsum_back)


def _centred(x: Any, axes: Axes) -> Any:
    return x - _mean(x, axes, True)


def _degrees(x: Any, axes: Axes, correction: float) -> float:
    return builtins.max(_count(x.shape, axes) - correction, 0)


def _dot_along(t: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    """The real inner product along axes of a tangent with x."""
    return _sum(real(t * conj(x)) if is_complex(x) else t * x, axes, keepdims)


def _var_slope(x: Any, axes: Axes, correction: float) -> Any:
    return _centred(x, axes) * _number_for(x, 2 / np.float64(_degrees(x, axes, correction)))


def _std_slope(x: Any, out: Any, axes: Axes, correction: float) -> Any:
    """(x - mean) / (n std); 0 where all values are equal, in the derivative, too."""
    centred, spread = _centred(x, axes), _spread(out, x.shape, axes)
    equal = raw(spread) == 0
    if libraries.may_hold(equal):
        centred, spread = choose(equal, 0.0, centred), choose(equal, 1.0, spread)
    return centred / spread * _number_for(x, 1 / np.float64(_degrees(x, axes, correction)))


def _var_kernel(x: Any, axes: Axes, correction: Any, keepdims: bool) -> Any:
    """What numpy.var computes, bit for bit, without its 4 us of Python."""
    if x.__class__ is np.ndarray and x.dtype in _COMMON:
        count = _count(x.shape, axes)
        if count > correction and x.size and x.ndim:
            centred = x - libraries.sum_over(x, axes, True) / count
            np.multiply(centred, centred, out=centred)
            return libraries.sum_over(centred, axes, keepdims) / (count - correction)
    return np.var(x, axis=axes, ddof=correction, keepdims=keepdims)


def _std_kernel(x: Any, axes: Axes, correction: Any, keepdims: bool) -> Any:
    if x.__class__ is np.ndarray and x.dtype in _COMMON:
        return np.sqrt(_var_kernel(x, axes, correction, keepdims))
    return np.std(x, axis=axes, ddof=correction, keepdims=keepdims)


def _var_vjp(g: Any, x: Any, axes: Axes, correction: float) -> Any:
    if _are_floats(g, x):
        d = _centred(x, axes)
        d *= g.reshape(_kept(x.shape, axes)) * _number_for(x, 2 / np.float64(_degrees(x, axes, correction)))
        return d
    return _spread(g, x.shape, axes) * _var_slope(x, axes, correction)


def _std_vjp(g: Any, x: Any, out: Any, axes: Axes, correction: float) -> Any:
    if _are_floats(g, x) and np.all(out):
        kept = _kept(x.shape, axes)
        d = _centred(x, axes)
        d /= out.reshape(kept)  # before it is multiplied, as g / out may overflow
        d *= g.reshape(kept) * _number_for(x, 1 / np.float64(_degrees(x, axes, correction)))
        return d
    return _spread(g, x.shape, axes) * _std_slope(x, out, axes, correction)


_var = custom(
    "var",
    _var_kernel,
    vjp={"x": _var_vjp},
    jvp={"x": lambda t, x, axes, correction, keepdims: _dot_along(t, _var_slope(x, axes, correction), axes, keepdims)},
)
_std = custom(
    "std",
    _std_kernel,
    vjp={"x": _std_vjp},
    jvp={
        "x": lambda t, x, out, axes, correction, keepdims: _dot_along(
            t, _std_slope(x, out, axes, correction), axes, keepdims
        )
    },
)


def _shares(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Each element's share in an extreme: ties share evenly. A constant for every recorder."""
    a = raw(x)
    ties = (a == _spread(raw(out), a.shape, axes)).astype(raw(g).dtype)
    return ties / ties.sum(axis=axes, keepdims=True)


def _single(x: Any, out: Any, axes: Axes) -> Any:
    """Tell where the extremes are, if there is one for each result, as mostly; else None."""
    top = out.reshape(_kept(x.shape, axes))
    ties = x == top
    single = np.count_nonzero(ties) == top.size and (top.size == 1 or not np.isnan(top).any())
    return ties if single else None


def _shared_out(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Give each extreme its share of g."""
    ties = _single(x, out, axes) if axes and _are_floats(g, x) else None
    if ties is None:
        return _spread(g, x.shape, axes) * _shares(g, x, out, axes)
    d = np.zeros(x.shape, x.dtype)
    np.copyto(d, g.reshape(_kept(x.shape, axes)), where=ties)
    return d


def _gathered(t: Any, x: Any, out: Any, axes: Axes, keepdims: bool) -> Any:
    """Add up t at the extremes by their shares."""
    ties = _single(x, out, axes) if axes and _are_floats(t, x) else None
    if ties is None:
        return _sum(t * _shares(t, x, out, axes), axes, keepdims)
    places = np.unravel_index(np.flatnonzero(ties), x.shape)  # a sixth of the time of numpy.nonzero of two axes
    z = np.empty(_kept(x.shape, axes), x.dtype)
    if z.size == 1:
        z[...] = t[places]
    else:
        z[tuple([0 if k in axes else along for k, along in enumerate(places)])] = t[places]
    return z if keepdims else z.reshape(out.shape)[()]


# Both are linear in what they give or take; where the extremes are is a constant.
_share_out: Function = linear(
    "share_among_extremes",
    _shared_out,
    lambda g, shape, x, out, axes: reshape(_gather(g, x, out, axes, True), shape),
)
_gather: Function = linear("gather_from_extremes", _gathered, lambda g, x, out, axes: _share_out(g, x, out, axes))


# NumPy begins anew for each row that it reduces: of rows up to this length, it is faster along columns, by 1.3 to 30.
_SHORT = 64


def _of_short_rows(x: Any, ufunc: Any, keepdims: bool) -> Any:
    """Reduce the last axis of a large array, a block of rows being turned to columns."""
    shape = x.shape[:-1]
    rows = x.reshape((-1, x.shape[-1]))
    out = np.empty(len(rows), x.dtype)

    def work(part: slice) -> None:
        ufunc.reduce(np.ascontiguousarray(rows[part].T), axis=0, out=out[part])

    blocks.run(work, blocks.blocks(len(rows), rows.nbytes))
    return out.reshape((*shape, 1) if keepdims else shape)


def _extreme_op(name: str, function: Function, ufunc: Any) -> Function:
    def kernel(x: Any, axes: Axes, keepdims: bool) -> Any:
        if x.__class__ is np.ndarray:  # without the 1 us of Python around it
            if x.ndim > 1 and axes == (x.ndim - 1,) and x.shape[-1] <= _SHORT and x.size >= _FEW:
                return _of_short_rows(x, ufunc, keepdims)
            return ufunc.reduce(x, axis=axes, keepdims=keepdims)
        return function(x, axis=axes, keepdims=keepdims)

    return custom(
        name,
        kernel,
        vjp={"x": lambda g, x, out, axes: _share_out(g, raw(x), raw(out), axes)},
        jvp={"x": lambda t, x, out, axes, keepdims: _gather(t, raw(x), raw(out), axes, keepdims)},
    )


_max = _extreme_op("max", np.max, np.maximum)
_min = _extreme_op("min", np.min, np.minimum)


def _softmax(x: Any, out: Any, axes: Axes) -> Any:
    """exp(x - logsumexp): 0 throughout where everything is -inf (a fully masked row).

    Divided by its own sum, which takes out the rounding error of the logsumexp.
    """
    total = _spread(out, x.shape, axes)
    share = exp(x - choose(raw(total) == -np.inf, 0.0, total))
    whole = _sum(share, axes, True)
    return share / choose(raw(whole) == 0, 1.0, whole)


def _top(x: Any, axes: Axes) -> Any:
    """The largest (real part) along axes, kept; 0 where that is infinite, or where there is nothing."""
    z = x.real if is_complex(x) else x
    if not z.size:
        return libraries.namespace(z).zeros(_kept(z.shape, axes), z.dtype)
    top = np.max(z, axis=axes, keepdims=True)
    return np.where(np.isfinite(top), top, np.zeros_like(top))


def _logsumexp_kernel(x: Any, axes: Axes, keepdims: bool) -> Any:
    if x.__class__ is np.ndarray and x.dtype.char in "fd" and x.size and axes:
        return _logsumexp_of_floats.value(x, axes, keepdims)
    top = _top(x, axes)
    with np.errstate(divide="ignore", over="ignore"):  # log(0) = -inf is the right answer, and so is inf
        total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axes)[()]


def _logsumexp_vjp(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    if _are_floats(g, x) and axes:
        kept = _kept(x.shape, axes)
        total = out.reshape(kept)
        if np.isfinite(total).all():
            return _logsumexp_of_floats.slope(g.reshape(kept), x, total, axes)
    return _spread(g, x.shape, axes) * conj_of(_softmax(x, out, axes))


_logsumexp = custom(
    "logsumexp",
    _logsumexp_kernel,
    vjp={"x": _logsumexp_vjp},
    jvp={"x": lambda t, x, out, axes, keepdims: _sum(t * _softmax(x, out, axes), axes, keepdims)},
)


def _log_of_weighted(x: Any, b: Any, axes: Axes, signed: bool) -> tuple[Any, Any]:
    """Return log(sum(b exp(x))) and the sign of the sum, kept: of |sum| if `signed`, else NaN if that is negative.

    An element of weight 0 adds nothing, even if it is infinite.
    """
    nothing = b == 0
    x = np.where(nothing, -np.inf, x)
    top = _top(x, axes)
    total = np.sum(np.where(nothing, 0, b) * np.exp(x - top), axis=axes, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # of 0, and of what is negative
        return np.log(abs(total) if signed else total) + top, np.sign(total)


def _share_of_weighted(x: Any, out: Any, axes: Axes, sign_of_sum: Any) -> Any:
    """exp(x) / sum(b exp(x)); 0 where x is -inf."""
    total = _spread(out, x.shape, axes)
    gone = raw(x) == -np.inf
    share = exp(choose(gone, -np.inf, x) - choose(gone, 0.0, total))
    return share if is_complex(raw(out)) else share * sign_of_sum


def _weighted_slope(x: Any, b: Any, out: Any, axes: Axes, sign_of_sum: Any) -> Any:
    """The slope in x: the weight times the share, and 0 where that would be 0 times inf."""
    share = _share_of_weighted(x, out, axes, sign_of_sum)
    return choose((raw(b) == 0) & ~np.isfinite(raw(share)), 0.0, share) * b


def _weighted_kernel(x: Any, b: Any, value: Any, sign_of_sum: Any, axes: Axes, keepdims: bool) -> Any:
    """The value that was found before, with the sign that the rules need."""
    return value if keepdims else np.squeeze(value, axis=axes)[()]


_weighted = custom(
    "weighted_logsumexp",
    _weighted_kernel,
    vjp={
        "x": lambda g, x, b, out, axes, sign_of_sum: (
            _spread(g, x.shape, axes) * conj_of(_weighted_slope(x, b, out, axes, sign_of_sum))
        ),
        "b": lambda g, x, out, axes, sign_of_sum: (
            _spread(g, x.shape, axes) * conj_of(_share_of_weighted(x, out, axes, sign_of_sum))
        ),
    },
    jvp={
        "x": lambda t, x, b, out, axes, sign_of_sum, keepdims: _sum(
            t * _weighted_slope(x, b, out, axes, sign_of_sum), axes, keepdims
        ),
        "b": lambda t, x, out, axes, sign_of_sum, keepdims: _sum(
            t * _share_of_weighted(x, out, axes, sign_of_sum), axes, keepdims
        ),
    },
)


# ---------------------------------------------------------------- products, exact where factors are 0


def _recur_kernel(b: Any, a: Any, axis: int) -> Any:
    """s[k] = b[k] + a[k] s[k-1] along an axis, by a loop over it."""
    out = batched.spacious(b.astype(np.result_type(a.dtype, b.dtype)), a)
    s, factor = np.moveaxis(out, axis, 0), np.moveaxis(a, axis, 0)
    for k in range(1, s.shape[0]):
        s[k] += factor[k] * s[k - 1]
    return out


def _before(x: Any, axis: int, first: float) -> Any:
    """Return x shifted one later along an axis, with `first` in front."""
    head: list[Any] = [slice(None)] * axis
    z = raw(x)
    shifted = libraries.namespace(z).full_like(z, first)
    if x.shape[axis] < 2:
        return shifted
    result = wrap(shifted) if isinstance(x, Tensor) else shifted
    result[(*head, slice(1, None))] = x[(*head, slice(None, -1))]
    return result


def _recur_back(g: Any, a: Any, axis: int) -> Any:
    """The adjoint in b: s[k] = g[k] + a[k+1] s[k+1]."""
    return flip(_recur(flip(g, axis), _before(flip(conj_of(a), axis), axis, 0.0), axis), axis)


_recur: Function = custom(
    "linear_recurrence",
    _recur_kernel,
    vjp={
        "b": lambda g, a, axis: _recur_back(g, a, axis),
        "a": lambda g, a, out, axis: _recur_back(g, a, axis) * conj_of(_before(out, axis, 0.0)),
    },
    jvp={
        "b": lambda t, a, axis: _recur(t, a, axis),
        "a": lambda t, a, out, axis: _recur(t * _before(out, axis, 0.0), a, axis),
    },
)


def _divides(x: Any, out: Any) -> bool:
    """Tell whether dividing a product by a factor gives the product of the others.

    Not where a product is 0 or has overflowed, and not where the quotient is to be differentiated
    again: near 0 that would take the difference of huge numbers.
    """
    if isinstance(x, Tensor) or isinstance(out, Tensor):
        return False
    return bool((np.isfinite(out) & (out != 0)).all())


def _cumprod_vjp(g: Any, x: Any, out: Any, axis: int) -> Any:
    if _divides(x, out):
        return flip(_cumsum(flip(g * conj_of(out), axis), axis), axis) / conj_of(x)
    return _recur_back(g, x, axis) * conj_of(_before(out, axis, 1.0))


_cumprod = custom(
    "cumprod",
    lambda x, axis: np.cumprod(x, axis),
    vjp={"x": _cumprod_vjp},
    jvp={"x": lambda t, x, out, axis: _recur(t * _before(out, axis, 1.0), x, axis)},
)


def _product_of_others(x: Any, out: Any, axes: Axes) -> Any:
    """For each element, the product of the others along the axes."""
    if _divides(x, out):
        return _spread(out, x.shape, axes) / x
    order = (*[k for k in range(x.ndim) if k not in axes], *axes)
    lead = len(order) - len(axes)
    back = tuple(np.argsort(order).tolist())
    moved = x.transpose(order)
    flat = reshape(moved, (*moved.shape[:lead], -1))
    before = _before(_cumprod(flat, lead), lead, 1.0)
    after = flip(_before(_cumprod(flip(flat, lead), lead), lead, 1.0), lead)
    return reshape(before * after, moved.shape).transpose(back)


_prod = custom(
    "prod",
    lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims),
    vjp={"x": lambda g, x, out, axes: _spread(g, x.shape, axes) * conj_of(_product_of_others(x, out, axes))},
    jvp={"x": lambda t, x, out, axes, keepdims: _sum(t * _product_of_others(x, out, axes), axes, keepdims)},
)


# ---------------------------------------------------------------- the doors


# NumPy's defaults, by keyword; that of those that are not here is None or `NOT_GIVEN`.
_DEFAULTS = MappingProxyType({"keepdims": False, "initial": NOT_GIVEN, "where": True, "ddof": 0})


def _of_plain(name: str, a: Any, axis: Any, **keywords: Any) -> Any:
    """What NumPy or CuPy, which has fewer keywords, makes of plain arrays: only what was asked for is handed on."""
    asked = {key: value for key, value in keywords.items() if value is not _DEFAULTS.get(key)}
    return getattr(np, name)(a, axis, **asked)


def is_constant(a: Any, dtype: Any) -> bool:
    """Tell whether the result for a Tensor carries no gradient by its dtype, and NumPy is there to compute it."""
    result = a.dtype if dtype is None else np.dtype(dtype)
    return not libraries.is_differentiable(result) and libraries.namespace(raw(a)) is np


def as_constant(name: str, a: Any, axis: Any, out: Any, **keywords: Any) -> Any:
    """What NumPy makes of the values alone."""
    try:
        z = _of_plain(name, raw(a), axis, **{key: raw(value) for key, value in keywords.items()})
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))
        raise kind(f"{name}: {error}") from None
    return wrap(z) if out is None else store(out, wrap(z), f"{name}(out=...)")


def initial_of(value: Any, dtype: Any, name: str) -> Any:
    """The initial value in the dtype of the result, as NumPy takes it."""
    value = value if isinstance(value, Tensor) or libraries.is_array(value) else np.asarray(value)
    if value.shape != ():
        raise ValueError(f"{name}: initial must be a number; found an array of shape {value.shape}")
    if value.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"{name}: initial must be real, as the result; found {value.dtype}")
    value = cast_to(value, dtype)
    return value[()] if value.__class__ is np.ndarray else value  # as a number it may stand beside CuPy's arrays


def mask_of(where: Any, a: Any, name: str) -> Any:
    """Read where=, a plain array: booleans that broadcast to the shape of a, as NumPy asks."""
    where = raw(where)
    mask = where if libraries.is_array(where) else libraries.namespace(raw(a)).asarray(where, dtype=bool)
    if mask.dtype != bool:
        raise TypeError(f"{name}: where must hold booleans; found {mask.dtype}")
    try:
        if np.broadcast_shapes(mask.shape, a.shape) == a.shape:
            return mask
    except ValueError:
        pass
    raise ValueError(f"{name}: where must broadcast to the shape {a.shape}; found {mask.shape}")


def _without_initial(a: Any, axes: Axes, where: Any, name: str) -> None:
    """Raise where initial=None leaves nothing to begin with."""
    if where is not True:
        raise ValueError(f"{name} with where= and initial=None has nothing to begin with; give an initial value")
    if not _count(a.shape, axes) and _count(a.shape, tuple([k for k in range(a.ndim) if k not in axes])):
        raise ValueError(f"{name}: zero-size array to reduction operation which has no identity")


def _total(op: Any, name: str, neutral: int, combine: Any) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NOT_GIVEN,
        where: Any = True,
    ) -> Any:
        if where is True and initial is NOT_GIVEN and dtype is out is None:
            soon = _axes_soon(a, axis)
            if soon is not None:
                return op(a, soon, bool(keepdims))
        if not isinstance(a, Tensor) and is_plain(a, out, initial, where):
            return _of_plain(name, a, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)
        a = lift(a)
        axes = axes_of(axis, a.ndim, name, of_number=True)
        if is_constant(a, dtype):
            given: Any = {"dtype": dtype, "keepdims": keepdims, "initial": initial, "where": where}
            return as_constant(name, a, axis, out, **given)
        if initial is None:
            _without_initial(a, axes, where, name)
            initial = NOT_GIVEN
        mask = None if where is True else mask_of(where, a, name)
        if initial is not NOT_GIVEN:
            initial = initial_of(initial, a.dtype if dtype is None else np.dtype(dtype), name)
        a = cast_to(a, dtype)
        z = op(a if mask is None else masked(mask, a, neutral), axes, bool(keepdims))
        z = z if initial is NOT_GIVEN else combine(z, initial)
        return z if out is None else store(out, z, f"{name}(out=...)")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name} along axes as `numpy.{name}`; exact derivatives, at zeros too."
    return function


sum = _total(_sum, "sum", 0, add)
prod = _total(_prod, "prod", 1, multiply)


def masked(mask: Any, a: Any, neutral: Any) -> Any:
    """Return a with a neutral value where the mask is not set, broadcast to the mask."""
    shape = np.broadcast_shapes(np.shape(raw(mask)), a.shape)
    return choose(mask, broadcast_any(a, shape), neutral)


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    """Average as `numpy.mean`."""
    if where is True and dtype is out is None:
        soon = _axes_soon(a, axis)
        if soon is not None:
            return _mean(a, soon, bool(keepdims))
    if not isinstance(a, Tensor) and is_plain(a, out, where):
        return _of_plain("mean", a, axis, dtype=dtype, out=out, keepdims=keepdims, where=where)
    a = lift(a)
    axes = axes_of(axis, a.ndim, "mean")
    if is_constant(a, dtype):
        return as_constant("mean", a, axis, out, dtype=dtype, keepdims=keepdims, where=where)
    mask = None if where is True else mask_of(where, a, "mean")
    a = cast_to(a, dtype)
    if mask is None:
        z = _mean(a, axes, bool(keepdims))
    else:
        total, count = _sum_and_count(_wide(a), axes, keepdims, mask)
        z = cast_to(total / count, a.dtype) if a.dtype == np.float16 else total / count
    return z if out is None else store(out, z, "mean(out=...)")


def _sum_and_count(a: Any, axes: Axes, keepdims: Any, mask: Any) -> tuple[Any, Any]:
    chosen = masked(mask, a, 0)
    counted = libraries.namespace(raw(chosen)).broadcast_to(mask, chosen.shape)
    count = counted.sum(axis=axes, keepdims=bool(keepdims), dtype=raw(chosen).real.dtype)
    return _sum(chosen, axes, bool(keepdims)), count


def _dispersion(op: Any, name: str, finish: Any) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: Any = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Any:
        if is_plain(a, out, where, mean, ddof, correction):
            given: Any = {"out": out, "ddof": ddof, "correction": correction, "mean": mean}
            return _of_plain(name, a, axis, dtype=dtype, keepdims=keepdims, where=where, **given)
        if correction is not None:
            if not isinstance(ddof, Tensor) and ddof == 0:
                ddof = correction
            else:
                raise ValueError(f"{name}: ddof and correction can't be provided simultaneously.")
        a, mean = lift(a), None if mean is None or mean is NOT_GIVEN else lift(mean)
        axes = axes_of(axis, a.ndim, name)
        through_others = any(isinstance(t, Tensor) and libraries.is_differentiable(t.dtype) for t in (mean, ddof))
        if is_constant(a, dtype) and not (dtype is None and through_others):
            given = {"dtype": dtype, "ddof": ddof, "keepdims": keepdims, "where": where, "mean": mean}
            return as_constant(name, a, axis, out, **given)
        mask = None if where is True else mask_of(where, a, name)
        a = a if libraries.is_differentiable(a.dtype) else as_type(a, np.float64)
        to_real = dtype is not None and is_complex(raw(a)) and np.dtype(dtype).kind != "c"
        a = a if to_real else cast_to(a, dtype)
        if mask is None and mean is None and not to_real and not isinstance(ddof, Tensor):
            z = op(a, axes, ddof, bool(keepdims))
        else:
            # NumPy casts the mean alone to a real dtype, so that what varies in the imaginary part counts, as a whole.
            mean = cast_to(_mean(a, axes, True), dtype) if to_real and mean is None else mean
            if dtype is None:
                of = a.dtype if mean is None else np.result_type(a.dtype, mean.dtype)
                dtype = np.empty(0, of).real.dtype
            z = finish(_masked_var(widened(a, ddof), axes, ddof, keepdims, mask, mean))
        z = cast_to(z, dtype)
        return z if out is None else store(out, z, f"{name}(out=...)")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Return the {'variance' if name == 'var' else 'standard deviation'} as `numpy.{name}`; gradients flow into a\n"
        "    Tensor given as `mean`, `ddof` or `correction` too.\n    "
    )
    return function


def widened(a: Any, parameter: Any) -> Any:
    """Return a in the dtype in which a Tensor beside it is computed with, so that nothing is rounded on the way."""
    if not isinstance(parameter, Tensor) or not libraries.is_differentiable(parameter.dtype):
        return a
    return cast_to(a, np.result_type(a.dtype, parameter.dtype))


def _masked_var(a: Any, axes: Axes, ddof: Any, keepdims: Any, mask: Any, centre: Any) -> Any:
    mask = libraries.namespace(raw(a)).ones(a.shape, dtype=bool) if mask is None else mask
    a = _wide(a)
    if centre is None:
        total, count = _sum_and_count(a, axes, True, mask)
        centre = total / count
    off = a - centre
    size_squared = real(off * conj(off)) if is_complex(off) else off * off
    total, count = _sum_and_count(size_squared, axes, keepdims, mask)
    return total / maximum(count - ddof, 0)


def root(z: Any) -> Any:
    """The square root, with derivative 0 at 0: all values are equal there."""
    zero = raw(z) == 0
    return choose(zero, constant_of(0, z.dtype), sqrt(choose(zero, constant_of(1, z.dtype), z)))


var = _dispersion(_var, "var", lambda z: z)
std = _dispersion(_std, "std", root)


def _extreme(op: Any, name: str, pick: Any, pick_sign: int) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NOT_GIVEN,
        where: Any = True,
    ) -> Any:
        if where is True and initial is NOT_GIVEN and out is None:
            soon = _axes_soon(a, axis)
            if soon is not None:
                return op(a, soon, bool(keepdims))
        if is_plain(a, out, initial, where):
            return _of_plain(name, a, axis, out=out, keepdims=keepdims, initial=initial, where=where)
        a = lift(a)
        axes = axes_of(axis, a.ndim, name, of_number=True)
        initial = NOT_GIVEN if initial is None else initial
        if where is not True and initial is NOT_GIVEN:
            raise ValueError(f"{name} with where= needs initial=, as NumPy's: no value is neutral for it")
        if is_constant(a, None):
            return as_constant(name, a, axis, out, keepdims=keepdims, initial=initial, where=where)
        mask = None if where is True else mask_of(where, a, name)
        if initial is not NOT_GIVEN:
            initial = initial_of(initial, a.dtype, name)
        if mask is not None:
            # What loses against everything, so that it takes no share of a gradient that is due to `initial`.
            floating = libraries.is_differentiable(a.dtype) and a.dtype.kind != "c"
            a = masked(mask, a, constant_of(-pick_sign * np.inf, a.dtype) if floating else raw(initial))
        if initial is not NOT_GIVEN and _count(a.shape, axes) == 0:
            # There is nothing but the initial value; a sum of nothing, 0, has the shape and the history.
            z = _sum(a, axes, bool(keepdims)) + initial
        else:
            z = op(a, axes, bool(keepdims))
            z = z if initial is NOT_GIVEN else pick(z, initial)
        return z if out is None else store(out, z, f"{name}(out=...)")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name}imum along axes as `numpy.{name}`; ties share the gradient evenly."
    return function


max = _extreme(_max, "max", maximum, 1)
min = _extreme(_min, "min", minimum, -1)


def running_axis(axis: Any, ndim: int, name: str) -> int:
    """Read axis= of a running sum; without one the array is flattened."""
    if isinstance(axis, tuple):
        raise TypeError(f"{name}: axis must be None or an integer; found {axis}")
    return 0 if axis is None else axes_of(axis, builtins.max(ndim, 1), name)[0]


def _running(op: Any, name: str) -> Any:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        if is_plain(a, out):
            return _of_plain(name, a, axis, dtype=dtype, out=out)
        a = lift(a)
        along = running_axis(axis, a.ndim, name)
        if is_constant(a, dtype):
            return as_constant(name, a, axis, out, dtype=dtype)
        a = cast_to(a, dtype)
        if axis is None:
            a = ravel(a)
        elif a.ndim == 0:
            a = reshape(a, (1,))
        z = op(a, along)
        return z if out is None else store(out, z, f"{name}(out=...)")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return running {'sums' if name == 'cumsum' else 'products'} as `numpy.{name}`."
    return function


cumsum = _running(_cumsum, "cumsum")
cumprod = _running(_cumprod, "cumprod")


def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    """Return log(sum(b exp(a))) along axes without overflow, with return_sign=True that of |sum| and the sign.

    The derivative is softmax(a); where every a is -inf the result is -inf and the derivative 0,
    as a fully masked row wants it. Integers are taken as float64.

    >>> import gradmgr
    >>> gradmgr.special.logsumexp(gradmgr.tensor([1000.0, -1000.0])).item()
    1000.0
    """
    if b is None and not return_sign:
        soon = _axes_soon(a, axis)
        if soon is not None:
            return _logsumexp(a, soon, keepdims)
    a = lift(a)
    a = a if a.dtype.kind in "fcV" else as_type(a, np.float64)
    if b is None and not return_sign:
        return _logsumexp(a, axes_of(axis, a.ndim, "logsumexp", of_number=True), keepdims)
    a, b = _in_one_dtype(a, 1.0 if b is None else b)
    axes = axes_of(axis, a.ndim, "logsumexp", of_number=True)
    signed = return_sign and not is_complex(raw(a))
    value, sign_of_sum = _log_of_weighted(raw(a), raw(b), axes, signed)
    z = _weighted(a, b, value, sign_of_sum, axes, keepdims)
    if not return_sign:
        return z
    if not signed:
        return real(z), _phase(z)
    found = sign_of_sum if keepdims else np.squeeze(sign_of_sum, axis=axes)[()]
    return z, wrap(found) if isinstance(z, Tensor) else found


def _phase(z: Any) -> Any:
    """The phase of exp(z), 0 where that is 0."""
    return choose(raw(z).real == -np.inf, 0.0, exp(imag(z) * 1j))


def _in_one_dtype(a: Any, b: Any) -> tuple[Any, Any]:
    """Broadcast a and its weights, and cast both to the dtype in which they meet."""
    b = b if isinstance(b, (int, float, complex)) else lift(b)
    dtype = np.result_type(a.dtype, getattr(b, "dtype", b))
    b = libraries.namespace(raw(a)).asarray(b, dtype) if not hasattr(b, "dtype") else b
    shape = np.broadcast_shapes(a.shape, b.shape)
    return broadcast_any(cast_to(a, dtype), shape), broadcast_any(cast_to(b, dtype), shape)
