"""Reductions that ignore NaN."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops.arithmetic import real
from gradmgr.ops.constant import constant
from gradmgr.ops.convert import NOT_GIVEN, as_tensor, cast_to, constant_of, is_plain, wide_dtype
from gradmgr.ops.extrema import fmax, fmin
from gradmgr.ops.naming import named
from gradmgr.ops.reduce import (
    add_up,
    mean,
    promote_with,
    read_initial_of_extreme,
    reduce_with_initial,
    sqrt_or_zero,
    std,
    var,
)
from gradmgr.ops.reduce import sum as sum_of
from gradmgr.ops.reduction_arguments import (
    Axes,
    axes_of,
    check_not_empty,
    count_along,
    gives_constant,
    kept_shape,
    masked,
    read_ddof,
    read_initial,
    read_keepdims,
    read_where,
    reduce_constant,
    reduce_plain,
    running_axis,
    store_result,
)
from gradmgr.ops.running import cumprod, cumsum
from gradmgr.ops.running import prod as prod_of
from gradmgr.ops.shape import reshape
from gradmgr.ops.where import choose


def nan_mask(values: Any) -> Any:
    """Return a mask of the NaN in a plain array; None if its dtype has none."""
    return np.isnan(values) if libraries.is_differentiable(values.dtype) else None


def nan_where(bad: Any, z: Any, warning: str) -> Any:
    """Return z with NaN, a constant, where there is nothing to reduce, and warn of that."""
    if not bad.any():
        return z
    errors.warn(warning, RuntimeWarning)
    return choose(bad, constant_of(np.nan, z.dtype), z)


# ---------------------------------------------------------------- sums and products


def _without_nan(a: Any, neutral: float) -> Any:
    """Return a with a constant for each NaN, so that what is there has no part in any derivative."""
    nan = nan_mask(raw(a))
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
            return reduce_plain(name, a, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)
        a = as_tensor(a)
        axes_of(axis, a.ndim, name, of_number=True)
        if gives_constant(a, dtype):
            return reduce_constant(name, a, axis, out, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        mask = read_where(where, a, name)
        if initial is not None:
            initial = read_initial(initial, a.dtype if dtype is None else np.dtype(dtype), name)
        numbers, where = _without_nan(a, neutral), True if mask is None else mask
        return op(numbers, axis, dtype, out, read_keepdims(keepdims), initial, where)

    return named(function, name, f"Return the {name.removeprefix('nan')} of what is not NaN, as `numpy.{name}`.")


nansum = _nan_total(sum_of, "nansum", 0)
nanprod = _nan_total(prod_of, "nanprod", 1)


def _nan_running(op: Any, name: str, neutral: int) -> Any:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        if is_plain(a, out):
            return reduce_plain(name, a, axis, dtype=dtype, out=out)
        a = as_tensor(a)
        running_axis(axis, a.ndim, name)
        return op(_without_nan(a, neutral), axis, dtype, out)

    what = "sums" if neutral == 0 else "products"
    return named(function, name, f"Return running {what}, NaN left out, as `numpy.{name}`.")


nancumsum = _nan_running(cumsum, "nancumsum", 0)
nancumprod = _nan_running(cumprod, "nancumprod", 1)


def _number_mask(a: Any, where: Any, name: str) -> Any:
    """Return a mask of the elements that are reduced: those that are not NaN and that where= selects."""
    here = ~np.isnan(raw(a))
    mask = read_where(where, a, name)
    return here if mask is None else here & mask


def _all_count(here: Any, shape: tuple[int, ...], axes: Axes) -> int:
    """Return how many elements are reduced to each result, if no element is left out; else 0."""
    return count_along(shape, axes) if here.shape == shape and here.all() else 0


def _divide_by_counts(sums: Any, count: Any, warning: str) -> Any:
    """Divide by counts, NaN where there is nothing to divide, without a division by 0 on any way."""
    bad = raw(count) <= 0
    safe = as_type(choose(bad, 1, count), _count_dtype(sums))
    z = (sums if raw(sums).dtype.itemsize > 2 else as_type(sums, np.float32)) / safe
    return nan_where(bad, cast_to(z, sums.dtype), warning)


def _count_dtype(sums: Any) -> Any:
    """Return the dtype for counts by which these sums are divided; float16 cannot hold a large one."""
    dtype = raw(sums).real.dtype
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _check_inexact(name: str, dtype: Any, out: Any) -> None:
    for what, given in (("dtype", dtype), ("out", None if out is None else out.dtype)):
        if given is not None and not libraries.is_differentiable(np.dtype(given)):
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
        return reduce_plain("nanmean", a, axis, dtype=dtype, out=out, keepdims=keepdims, where=where)
    a = as_tensor(a)
    if not libraries.is_differentiable(a.dtype):
        return mean(a, axis, dtype, out, read_keepdims(keepdims), where=True if where is NOT_GIVEN else where)
    _check_inexact("nanmean", dtype, out)
    axes = axes_of(axis, a.ndim, "nanmean", of_number=True)
    here, keeps = _number_mask(a, where, "nanmean"), read_keepdims(keepdims)
    if _all_count(here, a.shape, axes) > 0:
        return mean(a, axes, dtype, out, keeps)
    a = cast_to(a, dtype)
    sums = sum_of(masked(here, a, constant_of(0, a.dtype)), axes, keepdims=keeps)
    count = here.sum(axis=axes, keepdims=keeps)
    return store_result(_divide_by_counts(sums, count, "Mean of empty slice"), out, "nanmean")


def _nan_var(a: Any, here: Any, axes: Axes, ddof: Any, keeps: bool, centre: Any) -> Any:
    zero = constant_of(0, a.dtype)
    a = masked(here, a, zero)
    if centre is NOT_GIVEN:
        count = np.maximum(here.sum(axis=axes, keepdims=True), 1)
        centre = sum_of(a, axes, keepdims=True) / count.astype(_count_dtype(a))
    off = masked(here, cast_to(a - centre, a.dtype), zero)
    squares = real(off * conj(off)) if is_complex(off) else off * off
    degrees = here.sum(axis=axes, keepdims=keeps) - ddof
    return _divide_by_counts(sum_of(squares, axes, keepdims=keeps), degrees, "Degrees of freedom <= 0 for slice.")


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
        given: Any = {"where": where, "mean": mean, "correction": correction}
        if is_plain(a, out, ddof, *given.values()):
            return reduce_plain(name, a, axis, dtype=dtype, out=out, ddof=ddof, keepdims=keepdims, **given)
        a = as_tensor(a)
        if not libraries.is_differentiable(a.dtype):
            given = {key: value for key, value in given.items() if value is not NOT_GIVEN}
            return of_numbers(a, axis, dtype, out, ddof, read_keepdims(keepdims), **given)
        _check_inexact(name, dtype, out)
        ddof = read_ddof(ddof, correction, name)
        axes = axes_of(axis, a.ndim, name, of_number=True)
        here, keeps = _number_mask(a, where, name), read_keepdims(keepdims)
        if mean is NOT_GIVEN and (_all_count(here, a.shape, axes) > np.maximum(raw(ddof), 0)).all():
            return of_numbers(a, axes, dtype, out, ddof, keeps)
        a = cast_to(a, dtype)
        dtype = raw(a).real.dtype if dtype is None else dtype
        z = cast_to(finish(_nan_var(promote_with(a, ddof), here, axes, ddof, keeps, mean)), dtype)
        return store_result(z, out, name)

    what = "variance" if name == "nanvar" else "standard deviation"
    return named(function, name, f"Return the {what} of what is not NaN, as `numpy.{name}`.")


nanvar = _nan_dispersion("nanvar", var, lambda z: z)
nanstd = _nan_dispersion("nanstd", std, sqrt_or_zero)


def _nan_shares(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Return each element's share in an extreme, a plain array: ties share evenly, a NaN has none."""
    a = raw(x)
    ties = a == raw(out).reshape(kept_shape(a.shape, axes))
    shares = ties / np.maximum(ties.sum(axis=axes, keepdims=True), 1)
    return shares.astype(wide_dtype(raw(g).real.dtype), copy=False)


def _nan_extreme_op(name: str, ufunc: Any) -> Function:
    def kernel(x: Any, axes: Axes, keepdims: bool) -> Any:
        if libraries.namespace(x) is np:
            with np.errstate(invalid="ignore"):  # bfloat16 tells of every NaN
                return ufunc.reduce(x, axis=axes, keepdims=keepdims)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # given below, for either library
            return getattr(np, name)(x, axis=axes, keepdims=keepdims)

    def vjp(g: Any, x: Any, out: Any, axes: Axes) -> Any:
        return reshape(g, kept_shape(x.shape, axes)) * _nan_shares(g, x, out, axes)

    def jvp(t: Any, x: Any, out: Any, axes: Axes, keepdims: bool) -> Any:
        return add_up(t * _nan_shares(t, x, out, axes), axes, keepdims)

    return custom(name, kernel, vjp={"x": vjp}, jvp={"x": jvp})


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
            return reduce_plain(name, a, axis, out=out, keepdims=keepdims, initial=initial, where=where)
        a = as_tensor(a)
        axes, keeps = axes_of(axis, a.ndim, name, of_number=True), read_keepdims(keepdims)
        initial = read_initial_of_extreme(initial, where, name)
        if gives_constant(a, None):
            return reduce_constant(name, a, axis, out, keepdims=keeps, initial=initial, where=where)
        mask, initial = read_where(where, a, name), read_initial(initial, a.dtype, name)
        if initial is NOT_GIVEN:
            check_not_empty(a, axes, name)
        if mask is not None:
            # NaN loses against everything; an integer array has none, and needs none but the initial value.
            a = masked(mask, a, constant_of(np.nan if libraries.is_differentiable(a.dtype) else raw(initial), a.dtype))
        z = reduce_with_initial(op, combine, a, axes, keeps, initial)
        nan = nan_mask(raw(z))
        if nan is not None and nan.any():
            errors.warn("All-NaN slice encountered", RuntimeWarning)
        return store_result(z, out, name)

    return named(function, name, f"Return the {name[3:]}imum of what is not NaN, as `numpy.{name}`; ties share evenly.")


nanmax = _nan_extreme("nanmax", fmax)
nanmin = _nan_extreme("nanmin", fmin)
nanargmax = constant(np.nanargmax)
nanargmin = constant(np.nanargmin)
