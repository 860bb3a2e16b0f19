"""Sums, means, variances and extremes, by NumPy's keywords."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from gradmgr._arrays import blocks, libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.ops.arithmetic import add, real, sqrt
from gradmgr.ops.convert import NOT_GIVEN, cast_to, constant_of, is_plain, lift
from gradmgr.ops.extrema import maximum, minimum
from gradmgr.ops.naming import named
from gradmgr.ops.reduction_arguments import (
    COMMON,
    FEW,
    Axes,
    are_floats,
    axes_of,
    axes_of_floats,
    broadcast_back,
    check_not_empty,
    count_along,
    gives_constant,
    kept_shape,
    masked,
    read_ddof,
    read_initial,
    read_where,
    reduce_constant,
    reduce_plain,
    store_result,
)
from gradmgr.ops.shape import reshape
from gradmgr.ops.where import choose

sum_op = linear(
    "sum",
    lambda a, axes, keepdims: libraries.sum_over(a, axes, keepdims),
    lambda g, shape, axes: broadcast_back(g, shape, axes),
)


def _divide_by_count(g: Any, count: int) -> Any:
    """Return g / count, where a float16 can hold neither a large count nor its reciprocal."""
    return g / count if g.dtype.itemsize > 2 else as_type(as_type(g, np.float32) / count, g.dtype)


def _factor_for(x: Any, value: float) -> Any:
    """Return a factor in the real dtype of x; in float32 for float16, in which 1/n may round to 0."""
    dtype = raw(x).real.dtype
    return np.float32(value) if dtype.itemsize == 2 else dtype.type(value)


def _widen_half(a: Any) -> Any:
    """Return float16 in float32, in which sums and counts of many elements are exact enough."""
    return as_type(a, np.float32) if a.dtype == np.float16 else a


def _mean_kernel(a: Any, axes: Axes, keepdims: bool) -> Any:
    """Compute numpy.mean, bit for bit, without the 2 us its Python code takes.

    float16 and integers go to numpy.mean; so does complex64, whose sums it divides in complex128.
    """
    if a.__class__ is np.ndarray and a.dtype.char in "fdD" and a.size:
        return libraries.sum_over(a, axes, keepdims) / count_along(a.shape, axes)
    return a.mean(axis=axes, keepdims=keepdims)


_mean = linear(
    "mean",
    _mean_kernel,
    lambda g, shape, axes: broadcast_back(_divide_by_count(g, count_along(shape, axes)), shape, axes),
)


def _subtract_mean(x: Any, axes: Axes) -> Any:
    return x - _mean(x, axes, True)


def _degrees_of_freedom(x: Any, axes: Axes, correction: float) -> float:
    return builtins.max(count_along(x.shape, axes) - correction, 0)


def _dot_along(t: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    """Return the real inner product along axes of a tangent with x."""
    return sum_op(real(t * conj(x)) if is_complex(x) else t * x, axes, keepdims)


def _var_slope(x: Any, axes: Axes, correction: float) -> Any:
    return _subtract_mean(x, axes) * _factor_for(x, 2 / np.float64(_degrees_of_freedom(x, axes, correction)))


def _std_slope(x: Any, out: Any, axes: Axes, correction: float) -> Any:
    """Return (x - mean) / (n std); 0, with derivative 0, where all values are equal."""
    centred, std_of_all = _subtract_mean(x, axes), broadcast_back(out, x.shape, axes)
    equal = raw(std_of_all) == 0
    if libraries.may_hold(equal):
        centred, std_of_all = choose(equal, 0.0, centred), choose(equal, 1.0, std_of_all)
    return centred / std_of_all * _factor_for(x, 1 / np.float64(_degrees_of_freedom(x, axes, correction)))


def _var_kernel(x: Any, axes: Axes, correction: Any, keepdims: Any) -> Any:
    """Compute numpy.var, bit for bit, without the 4 us its Python code takes."""
    if x.__class__ is np.ndarray and x.dtype in COMMON:
        count = count_along(x.shape, axes)
        if count > correction and x.size and x.ndim:
            centred = x - libraries.sum_over(x, axes, True) / count
            np.multiply(centred, centred, out=centred)
            return libraries.sum_over(centred, axes, keepdims) / (count - correction)
    return np.var(x, axis=axes, ddof=correction, keepdims=keepdims)


def _std_kernel(x: Any, axes: Axes, correction: Any, keepdims: Any) -> Any:
    if x.__class__ is np.ndarray and x.dtype in COMMON:
        return np.sqrt(_var_kernel(x, axes, correction, keepdims))
    return np.std(x, axis=axes, ddof=correction, keepdims=keepdims)


@libraries.captured_as_one(unless=lambda g, x, *_: libraries.are_captured(x))
def _var_vjp(g: Any, x: Any, axes: Axes, correction: float) -> Any:
    if are_floats(g, x):
        d = _subtract_mean(x, axes)
        d *= g.reshape(kept_shape(x.shape, axes)) * _factor_for(
            x, 2 / np.float64(_degrees_of_freedom(x, axes, correction))
        )
        return d
    return broadcast_back(g, x.shape, axes) * _var_slope(x, axes, correction)


@libraries.captured_as_one(unless=lambda g, x, *_: libraries.are_captured(x), decides=True)
def _std_vjp(g: Any, x: Any, out: Any, axes: Axes, correction: float) -> Any:
    if are_floats(g, x) and np.all(out):
        kept = kept_shape(x.shape, axes)
        d = _subtract_mean(x, axes)
        d /= out.reshape(kept)  # before it is multiplied, as g / out may overflow
        d *= g.reshape(kept) * _factor_for(x, 1 / np.float64(_degrees_of_freedom(x, axes, correction)))
        return d
    return broadcast_back(g, x.shape, axes) * _std_slope(x, out, axes, correction)


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


def _tie_shares(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Return each element's share in an extreme, a plain array: ties share evenly, and so do NaN, if that is one."""
    a, top = raw(x), broadcast_back(raw(out), raw(x).shape, axes)
    ties = ((a == top) | ((a != a) & (top != top))).astype(raw(g).dtype)
    return ties / ties.sum(axis=axes, keepdims=True)


def _single_extremes(x: Any, out: Any, axes: Axes) -> Any:
    """Tell where the extremes are, if there is one for each result, as mostly; else None."""
    top = out.reshape(kept_shape(x.shape, axes))
    ties = x == top
    single = np.count_nonzero(ties) == top.size and (top.size == 1 or not np.isnan(top).any())
    return ties if single else None


@libraries.captured_as_one()
def _share_out_kernel(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Give each extreme its share of g."""
    ties = _single_extremes(x, out, axes) if axes and are_floats(g, x) else None
    if ties is None:
        return broadcast_back(g, x.shape, axes) * _tie_shares(g, x, out, axes)
    d = np.zeros(x.shape, x.dtype)
    np.copyto(d, g.reshape(kept_shape(x.shape, axes)), where=ties)
    return d


@libraries.captured_as_one()
def _gather_kernel(t: Any, x: Any, out: Any, axes: Axes, keepdims: bool) -> Any:
    """Add up t at the extremes by their shares."""
    ties = _single_extremes(x, out, axes) if axes and are_floats(t, x) else None
    if ties is None:
        return sum_op(t * _tie_shares(t, x, out, axes), axes, keepdims)
    places = np.unravel_index(np.flatnonzero(ties), x.shape)  # a sixth of the time of numpy.nonzero of two axes
    z = np.empty(kept_shape(x.shape, axes), x.dtype)
    if z.size == 1:
        z[...] = t[places]
    else:
        z[tuple([0 if k in axes else along for k, along in enumerate(places)])] = t[places]
    return z if keepdims else z.reshape(out.shape)[()]


# Both are linear in what they give or take; where the extremes are is a constant.
_share_out: Function = linear(
    "share_among_extremes",
    _share_out_kernel,
    lambda g, shape, x, out, axes: reshape(_gather(g, x, out, axes, True), shape),
)
_gather: Function = linear("gather_from_extremes", _gather_kernel, lambda g, x, out, axes: _share_out(g, x, out, axes))


# NumPy restarts its loop for each row that it reduces: of rows up to this length, it is faster along columns, by 1.3 to
# 30.
_SHORT = 64


def _reduce_short_rows(x: Any, ufunc: Any, keepdims: bool) -> Any:
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
        if x.__class__ is np.ndarray:  # without the 1 us of NumPy's Python code
            if x.ndim > 1 and axes == (x.ndim - 1,) and x.shape[-1] <= _SHORT and x.size >= FEW:
                return _reduce_short_rows(x, ufunc, keepdims)
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


def _check_no_initial(a: Any, axes: Axes, where: Any, name: str) -> None:
    """Raise where initial=None leaves nothing to begin with."""
    if where is not True:
        raise ValueError(f"{name} with where= and initial=None has nothing to begin with; give an initial value")
    check_not_empty(a, axes, name)


def total_function(op: Any, name: str, neutral: int, combine: Any, summary: str) -> Any:
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
            axes = axes_of_floats(a, axis)
            if axes is not None:
                return op(a, axes, bool(keepdims))
        if not isinstance(a, Tensor) and is_plain(a, out, initial, where):
            return reduce_plain(name, a, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)
        a = lift(a)
        axes = axes_of(axis, a.ndim, name, of_number=True)
        if gives_constant(a, dtype):
            return reduce_constant(name, a, axis, out, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        if initial is None:
            _check_no_initial(a, axes, where, name)
            initial = NOT_GIVEN
        mask = read_where(where, a, name)
        initial = read_initial(initial, a.dtype if dtype is None else np.dtype(dtype), name)
        a = cast_to(a, dtype)
        z = op(a if mask is None else masked(mask, a, neutral), axes, bool(keepdims))
        z = z if initial is NOT_GIVEN else combine(z, initial)
        return store_result(z, out, name)

    return named(function, name, summary)


sum = total_function(sum_op, "sum", 0, add, "Add up the elements along axes as `numpy.sum`.")


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    """Average as `numpy.mean`."""
    if where is True and dtype is out is None:
        axes = axes_of_floats(a, axis)
        if axes is not None:
            return _mean(a, axes, bool(keepdims))
    if not isinstance(a, Tensor) and is_plain(a, out, where):
        return reduce_plain("mean", a, axis, dtype=dtype, out=out, keepdims=keepdims, where=where)
    a = lift(a)
    axes = axes_of(axis, a.ndim, "mean")
    if gives_constant(a, dtype):
        return reduce_constant("mean", a, axis, out, dtype=dtype, keepdims=keepdims, where=where)
    mask = read_where(where, a, "mean")
    a = cast_to(a, dtype)
    if mask is None:
        z = _mean(a, axes, bool(keepdims))
    else:
        total, count = _sum_and_count(_widen_half(a), axes, keepdims, mask)
        z = cast_to(total / count, a.dtype) if a.dtype == np.float16 else total / count
    return store_result(z, out, "mean")


def _sum_and_count(a: Any, axes: Axes, keepdims: Any, mask: Any) -> tuple[Any, Any]:
    chosen = masked(mask, a, 0)
    counted = libraries.namespace(raw(chosen)).broadcast_to(mask, chosen.shape)
    count = counted.sum(axis=axes, keepdims=bool(keepdims), dtype=raw(chosen).real.dtype)
    return sum_op(chosen, axes, bool(keepdims)), count


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
            return reduce_plain(name, a, axis, dtype=dtype, keepdims=keepdims, where=where, **given)
        ddof = read_ddof(ddof, NOT_GIVEN if correction is None else correction, name)
        a, mean = lift(a), None if mean is None or mean is NOT_GIVEN else lift(mean)
        axes = axes_of(axis, a.ndim, name)
        through_others = any(isinstance(t, Tensor) and libraries.is_differentiable(t.dtype) for t in (mean, ddof))
        if gives_constant(a, dtype) and not (dtype is None and through_others):
            given = {"dtype": dtype, "ddof": ddof, "keepdims": keepdims, "where": where, "mean": mean}
            return reduce_constant(name, a, axis, out, **given)
        mask = read_where(where, a, name)
        a = a if libraries.is_differentiable(a.dtype) else as_type(a, np.float64)
        to_real = dtype is not None and is_complex(raw(a)) and np.dtype(dtype).kind != "c"
        a = a if to_real else cast_to(a, dtype)
        if mask is None and mean is None and not to_real and not isinstance(ddof, Tensor):
            z = op(a, axes, ddof, bool(keepdims))
        else:
            # NumPy casts the mean alone to a real dtype, so that what varies in the imaginary part counts, as a whole.
            mean = cast_to(_mean(a, axes, True), dtype) if to_real and mean is None else mean
            dtype = _real_dtype(a, mean) if dtype is None else dtype
            z = finish(_masked_var(promote_with(a, ddof), axes, ddof, keepdims, mask, mean))
        return store_result(cast_to(z, dtype), out, name)

    what = "variance" if name == "var" else "standard deviation"
    doc = f"""Return the {what} as `numpy.{name}`; gradients flow into a
    Tensor given as `mean`, `ddof` or `correction` too.
    """
    return named(function, name, doc)


def _real_dtype(a: Any, mean: Any) -> np.dtype[Any]:
    """Return the dtype of the distances between two arrays, of which `mean` may be None."""
    dtype = a.dtype if mean is None else np.result_type(a.dtype, mean.dtype)
    return np.empty(0, dtype).real.dtype


def promote_with(a: Any, parameter: Any) -> Any:
    """Return a in the common dtype of it and a Tensor parameter, so that nothing is rounded before the result."""
    if not isinstance(parameter, Tensor) or not libraries.is_differentiable(parameter.dtype):
        return a
    return cast_to(a, np.result_type(a.dtype, parameter.dtype))


def _masked_var(a: Any, axes: Axes, ddof: Any, keepdims: Any, mask: Any, centre: Any) -> Any:
    mask = libraries.namespace(raw(a)).ones(a.shape, dtype=bool) if mask is None else mask
    a = _widen_half(a)
    if centre is None:
        total, count = _sum_and_count(a, axes, True, mask)
        centre = total / count
    off = a - centre
    size_squared = real(off * conj(off)) if is_complex(off) else off * off
    total, count = _sum_and_count(size_squared, axes, keepdims, mask)
    return total / maximum(count - ddof, 0)


def sqrt_or_zero(z: Any) -> Any:
    """Return the square root, with derivative 0 at 0, where all values are equal."""
    zero = raw(z) == 0
    return choose(zero, constant_of(0, z.dtype), sqrt(choose(zero, constant_of(1, z.dtype), z)))


var = _dispersion(_var, "var", lambda z: z)
std = _dispersion(_std, "std", sqrt_or_zero)


def read_initial_of_extreme(initial: Any, where: Any, name: str) -> Any:
    """Read initial= of a maximum or minimum, where None means none; where= needs one."""
    if initial is not None and initial is not NOT_GIVEN:
        return initial
    if where is not True and where is not NOT_GIVEN:
        raise ValueError(f"{name} with where= needs initial=, as NumPy's: no value is neutral for it")
    return NOT_GIVEN


def reduce_with_initial(op: Any, combine: Any, a: Any, axes: Axes, keepdims: bool, initial: Any) -> Any:
    """Reduce by an op and combine the result with the initial value, if there is one."""
    if initial is NOT_GIVEN:
        return op(a, axes, keepdims)
    if count_along(a.shape, axes) == 0:  # the initial value alone; a sum of nothing, 0, has the shape and the history
        return sum_op(a, axes, keepdims) + initial
    return combine(op(a, axes, keepdims), initial)


def _extreme_function(op: Any, name: str, pick: Any, pick_sign: int) -> Any:
    def function(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NOT_GIVEN,
        where: Any = True,
    ) -> Any:
        if where is True and initial is NOT_GIVEN and out is None:
            axes = axes_of_floats(a, axis)
            if axes is not None:
                return op(a, axes, bool(keepdims))
        if is_plain(a, out, initial, where):
            return reduce_plain(name, a, axis, out=out, keepdims=keepdims, initial=initial, where=where)
        a = lift(a)
        axes = axes_of(axis, a.ndim, name, of_number=True)
        initial = read_initial_of_extreme(initial, where, name)
        if gives_constant(a, None):
            return reduce_constant(name, a, axis, out, keepdims=keepdims, initial=initial, where=where)
        mask = read_where(where, a, name)
        initial = read_initial(initial, a.dtype, name)
        if mask is not None:
            # What loses against everything, so that it takes no share of a gradient that is due to `initial`.
            floating = libraries.is_differentiable(a.dtype) and a.dtype.kind != "c"
            a = masked(mask, a, constant_of(-pick_sign * np.inf, a.dtype) if floating else raw(initial))
        return store_result(reduce_with_initial(op, pick, a, axes, bool(keepdims), initial), out, name)

    return named(function, name, f"Return the {name}imum along axes as `numpy.{name}`; ties share the gradient evenly.")


max = _extreme_function(_max, "max", maximum, 1)
min = _extreme_function(_min, "min", minimum, -1)
