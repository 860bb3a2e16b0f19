"""Normalisation over a batch, over features, over groups of channels.

All are one computation: values, reshaped to (P, Q, S), are centred and scaled over P and S, for each of Q,
and then scaled and shifted by a weight and a bias. The derivatives keep the normalised values and 1/std, not the input
or the result; where kernels of gradmgr-native compute, they keep the input, mean and 1/std.
"""

from __future__ import annotations

import math
from typing import Any, Never, Protocol

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries, memory
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._arrays.captured import is_captured
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.context import rebind
from gradmgr._engine.custom import custom, several
from gradmgr._engine.mutation import as_type, calls_to_write
from gradmgr._engine.op import Function, zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.views import check_kept
from gradmgr._engine.wrong_calls import unexpected
from gradmgr.nn._functions import normalization_kernels as kernels
from gradmgr.nn._functions.arguments import check_floating, check_inexact, integer, one_array
from gradmgr.nn._functions.normalization_blocks import (
    SIZE,
    Layout,
    can_run_in_blocks,
    is_captured_block,
    normalise_groups,
    normalise_rows,
    reshape_to,
    slopes,
)
from gradmgr.ops.arithmetic import sum_of
from gradmgr.ops.convert import lift, wide_dtype, widen_half
from gradmgr.ops.extrema import maximum
from gradmgr.ops.join import concatenate
from gradmgr.ops.naming import named_errors
from gradmgr.ops.norms import norm
from gradmgr.ops.products import einsum

Shape = tuple[int, ...]


class Batches(Protocol):
    """Several batches that are normalised together, of which one is here."""

    def merge(self, mean: Any, var: Any, count: int) -> tuple[Any, Any, Any]:
        """Return mean, variance and count of all from those of this one, which are plain arrays."""

    def total(self, sums: Any) -> Any:
        """Return the sums over all batches of what each gives, differentiably."""


# ---------------------------------------------------------------- the computation


def _total(a: Any, over: str = "q") -> Any:
    """Sum over all axes of (P, Q, S) but one. With einsum it is three times as fast as numpy.add.reduce."""
    return _einsum_for(a)(f"pqs->{over}", a)


def _dot(a: Any, b: Any, over: str = "q") -> Any:
    return _einsum_for(a, b)(f"pqs,pqs->{over}", a, b)


def _einsum_for(a: Any, b: Any = None) -> Any:
    """Return numpy.einsum for plain arrays, which saves the checks of gradmgr's einsum."""
    return einsum if isinstance(a, Tensor) or isinstance(b, Tensor) else np.einsum


def _column(a: Any) -> Any:
    """Reshape numbers for each of Q so that they broadcast over (P, Q, S)."""
    return a.reshape((a.shape[0], 1))


def _apply_in_place(ufunc: Any, buffer: Any, other: Any) -> Any:
    """Return ufunc(buffer, other), written into the buffer if both are NumPy arrays of one dtype."""
    fits = buffer.__class__ is np.ndarray and other.__class__ is np.ndarray and buffer.dtype == other.dtype
    return ufunc(buffer, other, buffer) if fits else ufunc(buffer, other)


def _common_dtype(*arrays: Any) -> Any:
    dtypes = [a.dtype for a in arrays if a is not None]
    return dtypes[0] if all(dtype == dtypes[0] for dtype in dtypes) else np.result_type(*dtypes)


def _prepare(x: Any, weight: Any, bias: Any, layout: Layout) -> tuple[Any, Any]:
    """Return x in the dtype to compute in, as (P, Q, S), and the dtype of the result."""
    dtype = _common_dtype(x, weight, bias)
    inner = wide_dtype(dtype)
    return (x if x.dtype == inner else x.astype(inner)).reshape(layout.by_statistic), dtype


def _affine(a: Any, weight: Any, bias: Any, layout: Layout, shape: Shape) -> Any:
    """Return a * weight + bias in the given shape; weight and bias may be None."""
    y = a.reshape(layout.by_weight)
    if weight is not None:
        y = y * weight.reshape(layout.of_weight)
    if bias is not None:
        bias = bias.reshape(layout.of_weight)
        y = y + bias if weight is None else _apply_in_place(np.add, y, bias)
    return y.reshape(shape)


@libraries.keeps_nothing
def _kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, centred: bool) -> tuple[Any, ...]:
    """Return the result, the normalised values and 1/std for the rules; what else there is after them is of no use."""
    if can_run_in_blocks(x, weight, bias):
        if layout.letter == "s":
            return normalise_rows(x, weight, bias, layout, eps, centred)
        if layout.by_statistic[0] == 1 and layout.by_weight[2] >= SIZE:
            return normalise_groups(x, weight, bias, layout, eps)
    elif layout.letter == "s" and is_captured_block(x, weight, bias):
        return normalise_rows(x, weight, bias, layout, eps, centred)
    elif (one := libraries.in_one(_kernel, x, weight, bias)) is not None:
        return one(x, weight, bias, layout, eps, centred)  # type: ignore[no-any-return]  # what _kernel returns
    return _general_kernel(x, weight, bias, layout, eps, centred)


@libraries.keeps_nothing
def _batch_kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float) -> tuple[Any, ...]:
    """Return the result, the normalised values and 1/std for the rules, and mean and variance."""
    if (one := libraries.in_one(_batch_kernel, x, weight, bias)) is not None:
        return one(x, weight, bias, layout, eps)  # type: ignore[no-any-return]  # what this function returns
    return _general_kernel(x, weight, bias, layout, eps, True)


def _general_kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, centred: bool) -> tuple[Any, ...]:
    """Return what `_batch_kernel` does, of any arrays.

    Without centring the last two are None and the mean square. Inside vmap all are batched if an argument is.
    """
    x = libraries.able_to_hold(libraries.able_to_hold(x, weight), bias)
    a, dtype = _prepare(x, weight, bias, layout)
    number, mean = a.dtype.type, None
    if centred:
        mean = np.einsum("pqs->q", a) / number(layout.count)
        a = a - mean[:, None]
    var = np.einsum("pqs,pqs->q", a, a) / number(layout.count)
    rstd = 1 / np.sqrt(var + number(eps))
    a = _apply_in_place(np.multiply, a, rstd[:, None]) if centred else a * rstd[:, None]
    y = _affine(a, weight, bias, layout, x.shape)
    y, a = (z if z.dtype == dtype else z.astype(dtype) for z in (y, a))
    return y, a, rstd, mean, var


# ---------------------------------------------------------------- derivatives
# For the normalised values a: da = rstd * (dx - mean(dx) - a * mean(a * dx)), without mean(dx) if values are not
# centred; for rstd: -rstd**2 * mean(a * dx). The map from dx to da is its own adjoint.


def _combine_kernel(h: Any, a: Any, scale: Any, level: Any, slope: Any) -> Any:
    z = _apply_in_place(np.add, a * -slope[:, None], h)
    z = z if level is None else _apply_in_place(np.subtract, z, level[:, None])
    return _apply_in_place(np.multiply, z, scale[:, None])


def _combine_unscaled(h: Any, a: Any, level: Any, slope: Any) -> Any:
    z = h - a * _column(slope)
    return z if level is None else z - _column(level)


# scale * (h - level - slope * a), for h and a of shape (P, Q, S) and scale, level and slope for each of Q.
_combine: Function = custom(
    "nn.tilted",
    _combine_kernel,
    vjp={
        "h": lambda g, scale: g * _column(scale),
        "a": lambda g, scale, slope: g * _column(-(scale * slope)),
        "scale": lambda g, h, a, level, slope: _dot(g, _combine_unscaled(h, a, level, slope)),
        "level": lambda g, scale: _total(g) * -scale,
        "slope": lambda g, a, scale: _dot(g, a) * -scale,
    },
    jvp={
        "h": lambda t, scale: t * _column(scale),
        "a": lambda t, scale, slope: t * _column(-(scale * slope)),
        "scale": lambda t, h, a, level, slope: _column(t) * _combine_unscaled(h, a, level, slope),
        "level": lambda t, scale: _column(-(t * scale)),
        "slope": lambda t, a, scale: a * _column(-(t * scale)),
    },
)


def _divide_by_size(a: Any, layout: Layout) -> Any:
    """Divide sums by the number of values in each."""
    return a / a.dtype.type(layout.count)


def _normalisation_map(h: Any, a: Any, rstd: Any, layout: Layout, centred: bool) -> tuple[Any, Any]:
    """Apply the derivative of the normalisation, or its adjoint, to h; return the result and mean(a * h)."""
    level = _divide_by_size(_total(h), layout) if centred else None
    slope = _divide_by_size(_dot(h, a), layout)
    return _combine(h, a, rstd, level, slope), slope


def _normalised_cotangent(gy: Any, ga: Any, weight: Any, layout: Layout) -> Any:
    """Return the total cotangent of the normalised values: their own, and that of the result times the weight."""
    if gy is None:
        return None if ga is None else widen_half(ga)
    h = reshape_to(widen_half(gy), layout.by_weight)
    h = h if weight is None else h * reshape_to(widen_half(weight), layout.of_weight)
    h = reshape_to(h, layout.by_statistic)
    return h if ga is None else h + widen_half(ga)


def _x_vjp(g: Any, weight: Any, a: Any, rstd: Any, shape: Shape, layout: Layout, centred: bool, shared: Any) -> Any:
    if shared is not None:
        return reshape_to(shared[0], shape)
    h, a = _normalised_cotangent(g[0], g[1], weight, layout), widen_half(a)
    by_values = None if h is None else _normalisation_map(h, a, rstd, layout, centred)[0]
    by_rstd = None if g[2] is None else a * _column(_divide_by_size(-(g[2] * rstd * rstd), layout))
    dx = sum_of(by_values, by_rstd)
    return None if dx is None else reshape_to(dx, shape)


def _weight_vjp(g: Any, a: Any, shape: Shape, layout: Layout, shared: Any) -> Any:
    if shared is not None:
        return reshape_to(shared[1], shape)
    if g[0] is None:
        return None
    dw = _dot(
        reshape_to(widen_half(g[0]), layout.by_weight), reshape_to(widen_half(a), layout.by_weight), layout.letter
    )
    return reshape_to(dw, shape)


@libraries.keeps_nothing
def _bias_vjp(g: Any, shape: Shape, layout: Layout) -> Any:
    """Sum the cotangent. It uses no shared value, so that nothing is kept if the bias alone is tracked."""
    if layout.letter == "s" and (can_run_in_blocks(g[0]) or (g[0] is not None and is_captured_block(g[0]))):
        return reshape_to(libraries.sum_of_rows(reshape_to(g[0], layout.by_statistic[1:])), shape)
    if (one := libraries.in_one(_bias_vjp, *g)) is not None:
        return one(g, shape, layout)
    return (
        None
        if g[0] is None
        else reshape_to(_total(reshape_to(widen_half(g[0]), layout.by_weight), layout.letter), shape)
    )


def _x_jvp(t: Any, weight: Any, y: Any, a: Any, rstd: Any, layout: Layout, centred: bool) -> list[Any]:
    t, wide = reshape_to(widen_half(t), layout.by_statistic), widen_half(a)
    ta, slope = _normalisation_map(t, wide, rstd, layout, centred)
    return [_add_weight_term(ta, weight, y, layout), ta, -(slope * rstd * rstd)]


def _add_weight_term(ta: Any, weight: Any, y: Any, layout: Layout) -> Any:
    ty = ta if weight is None else reshape_to(ta, layout.by_weight) * reshape_to(widen_half(weight), layout.of_weight)
    return reshape_to(ty, y.shape)


def _weight_jvp(t: Any, y: Any, a: Any, rstd: Any, layout: Layout) -> list[Any]:
    ty = reshape_to(widen_half(a), layout.by_weight) * reshape_to(widen_half(t), layout.of_weight)
    return [reshape_to(ty, y.shape), *_zero_tangents(a, rstd)]


def _bias_jvp(t: Any, y: Any, a: Any, rstd: Any, layout: Layout) -> list[Any]:
    ty = broadcast_to(reshape_to(t, layout.of_weight), layout.by_weight)
    return [reshape_to(ty, y.shape), *_zero_tangents(a, rstd)]


def _zero_tangents(*results: Any) -> list[Any]:
    """Return tangents of zeros for results that do not depend on the argument."""
    return [zeros(z, z.shape, z.dtype) for z in results]


def _declared(name: str) -> Function:
    """Declare a normalisation that does not return mean and variance."""

    def kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, centred: bool) -> tuple[Any, ...]:
        return _kernel(x, weight, bias, layout, eps, centred)[:3]

    return several(
        name,
        kernel,
        ("y", "a", "rstd"),
        vjp={"x": _x_vjp, "weight": _weight_vjp, "bias": _bias_vjp},
        jvp={"x": _x_jvp, "weight": _weight_jvp, "bias": _bias_jvp},
        shared=slopes,
    )


_layer_norm: Function = _declared("nn.layer_norm")
_group_norm: Function = _declared("nn.group_norm")
_rms_norm: Function = _declared("nn.rms_norm")


# ---------------------------------------------------------------- batch normalisation


def _batch_sums(g: Any, a: Any, layout: Layout) -> Any:
    """Return the cotangent of the result as (P, Q, S) and the two sums that all three rules use."""
    if g[0] is None:
        return None
    gy, a = reshape_to(widen_half(g[0]), layout.by_statistic), widen_half(a)
    return gy, _total(gy), _dot(gy, a)


def _batch_x_vjp(g: Any, weight: Any, a: Any, rstd: Any, shape: Shape, layout: Layout, shared: Any) -> Any:
    """Return the cotangent of x; the weight, one number for each statistic, is combined with 1/std."""
    a, by_result = widen_half(a), None
    if shared is not None:
        gy, level, slope = shared
        scale = rstd if weight is None else rstd * widen_half(weight)
        by_result = _combine(gy, a, scale, _divide_by_size(level, layout), _divide_by_size(slope, layout))
    by_values = None if g[1] is None else _normalisation_map(widen_half(g[1]), a, rstd, layout, True)[0]
    slope = sum_of(
        None if g[2] is None else -(g[2] * rstd * rstd),
        None if g[4] is None else 2 * (g[4] / rstd),
    )
    by_variance = None if slope is None else a * _column(_divide_by_size(slope, layout))
    dx = sum_of(by_result, by_values, by_variance)
    if g[3] is not None:
        by_mean = broadcast_to(_column(_divide_by_size(g[3], layout)), layout.by_statistic)
        dx = by_mean if dx is None else dx + by_mean
    return None if dx is None else reshape_to(dx, shape)


def _batch_x_jvp(t: Any, weight: Any, y: Any, a: Any, rstd: Any, layout: Layout) -> list[Any]:
    t, wide = reshape_to(widen_half(t), layout.by_statistic), widen_half(a)
    ta, slope = _normalisation_map(t, wide, rstd, layout, True)
    return [
        _add_weight_term(ta, weight, y, layout),
        ta,
        -(slope * rstd * rstd),
        _divide_by_size(_total(t), layout),
        2 * slope / rstd,
    ]


_batch_norm: Function = several(
    "nn.batch_norm",
    _batch_kernel,
    ("y", "a", "rstd", "mean", "var"),
    vjp={
        "x": _batch_x_vjp,
        "weight": lambda g, shared: None if shared is None else shared[2],
        "bias": lambda g, shared: None if shared is None else shared[1],
    },
    jvp={
        "x": _batch_x_jvp,
        "weight": lambda t, y, a, rstd, layout: [*_weight_jvp(t, y, a, rstd, layout), *_zero_tangents(rstd, rstd)],
        "bias": lambda t, y, a, rstd, layout: [*_bias_jvp(t, y, a, rstd, layout), *_zero_tangents(rstd, rstd)],
    },
    shared=_batch_sums,
)


# ---------------------------------------------------------------- several batches together
# The vjp and the jvp by x add up two numbers for each channel over the batches once, whatever cotangents there are: so
# that wherever batches are, the same is done.


def _joint_kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, batches: Batches) -> tuple[Any, ...]:
    """Return the result, the normalised values, and 1/std, mean, variance and count of all batches.

    This batch, which may be empty, is centred by its own mean and then shifted, so that no digits are lost.
    """
    a, dtype = _prepare(libraries.able_to_hold(libraries.able_to_hold(x, weight), bias), weight, bias, layout)
    number = a.dtype.type
    mean = np.einsum("pqs->q", a) / number(layout.count)
    a = a - mean[:, None]
    var = np.einsum("pqs,pqs->q", a, a) / number(layout.count)
    of_all, var, count = batches.merge(mean, var, layout.by_statistic[0] * layout.by_statistic[2])
    rstd = 1 / np.sqrt(var + number(eps))
    a = _apply_in_place(np.add, a, (mean - of_all)[:, None])
    a = _apply_in_place(np.multiply, a, rstd[:, None])
    y = _affine(a, weight, bias, layout, x.shape)
    y, a = (z if z.dtype == dtype else z.astype(dtype) for z in (y, a))
    return y, a, rstd, of_all, var, count


def _joint_means(level: Any, slope: Any, count: Any, batches: Batches) -> tuple[Any, Any]:
    """Return the means over all batches of two sums over this one."""
    total = batches.total(concatenate([level, slope])) / count
    channels = level.shape[0]
    return total[:channels], total[channels:]


def _joint_x_vjp(
    g: Any, weight: Any, a: Any, rstd: Any, count: Any, shape: Shape, layout: Layout, batches: Batches, shared: Any
) -> Any:
    """Return rstd * (h - mean(h) - a * mean(a * h)), h being the cotangent of the normalised values.

    Those of mean, 1/std and variance are added to the sums over h, by the derivatives of these by x.
    """
    a = widen_half(a)
    if shared is None:
        h = zeros(a, a.shape, a.dtype)
        level = slope = zeros(rstd, rstd.shape, rstd.dtype)
    else:
        h, level, slope = shared
        if weight is not None:
            w = widen_half(weight)
            h, level, slope = h * _column(w), level * w, slope * w
    if g[1] is not None:
        of_a = widen_half(g[1])
        h, level, slope = h + of_a, level + _total(of_a), slope + _dot(of_a, a)
    level = level if g[3] is None else level - g[3] / rstd
    slope = slope if g[2] is None else slope + g[2] * rstd
    slope = slope if g[4] is None else slope - 2 * (g[4] / (rstd * rstd))
    return reshape_to(_combine(h, a, rstd, *_joint_means(level, slope, count, batches)), shape)


def _joint_x_jvp(
    t: Any, weight: Any, y: Any, a: Any, rstd: Any, count: Any, layout: Layout, batches: Batches
) -> list[Any]:
    t, wide = reshape_to(widen_half(t), layout.by_statistic), widen_half(a)
    level, slope = _joint_means(_total(t), _dot(t, wide), count, batches)
    ta = _combine(t, wide, rstd, level, slope)
    of_statistics = [-(slope * rstd * rstd), level, 2 * slope / rstd, *_zero_tangents(count)]
    return [_add_weight_term(ta, weight, y, layout), ta, *of_statistics]


joint_batch_norm: Function = several(
    "nn.joint_batch_norm",
    _joint_kernel,
    ("y", "a", "rstd", "mean", "var", "count"),
    vjp={
        "x": _joint_x_vjp,
        "weight": lambda g, shared: None if shared is None else shared[2],
        "bias": lambda g, shared: None if shared is None else shared[1],
    },
    jvp={
        "x": _joint_x_jvp,
        "weight": lambda t, y, a, rstd, count, layout: [
            *_weight_jvp(t, y, a, rstd, layout),
            *_zero_tangents(rstd, rstd, count),
        ],
        "bias": lambda t, y, a, rstd, count, layout: [
            *_bias_jvp(t, y, a, rstd, layout),
            *_zero_tangents(rstd, rstd, count),
        ],
    },
    shared=_batch_sums,
)


# ---------------------------------------------------------------- the same by kernels, keeping the input


def _values(x: Any, mean: Any, rstd: Any, layout: Layout) -> Any:
    """Return the normalised values."""
    return (reshape_to(widen_half(x), layout.by_statistic) - _column(mean)) * _column(rstd)


def _mean_tangent(t: Any, mean: Any, layout: Layout, centred: bool) -> Any:
    t = reshape_to(widen_half(t), layout.by_statistic)
    return _divide_by_size(_total(t), layout) if centred else zeros(mean, mean.shape, mean.dtype)


def _x_vjp_of_input(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, shape: Shape, layout: Layout, centred: bool, shared: Any
) -> Any:
    if shared is not None:
        return reshape_to(shared[0], shape)
    a = _values(x, mean, rstd, layout)
    by_rest = _x_vjp((g[0], None, g[2]), weight, a, rstd, shape, layout, centred, None)
    if g[1] is None or not centred:
        return by_rest
    by_mean = broadcast_to(_column(_divide_by_size(g[1], layout)), layout.by_statistic)
    return sum_of(by_rest, reshape_to(by_mean, shape))


def _weight_vjp_of_input(g: Any, x: Any, mean: Any, rstd: Any, shape: Shape, layout: Layout, shared: Any) -> Any:
    if shared is not None:
        return reshape_to(shared[1], shape)
    return _weight_vjp(g, _values(x, mean, rstd, layout), shape, layout, None)


def _x_jvp_of_input(
    t: Any, weight: Any, y: Any, x: Any, mean: Any, rstd: Any, layout: Layout, centred: bool
) -> list[Any]:
    ty, _, of_rstd = _x_jvp(t, weight, y, _values(x, mean, rstd, layout), rstd, layout, centred)
    return [ty, _mean_tangent(t, mean, layout, centred), of_rstd]


def _affine_jvps(statistics: int) -> dict[str, Any]:
    """Return the forward rules of weight and bias, of which the mean and the other statistics do not depend."""
    return {
        "weight": lambda t, x, y, mean, rstd, layout: [
            _weight_jvp(t, y, _values(x, mean, rstd, layout), rstd, layout)[0],
            *_zero_tangents(mean, *[rstd] * (statistics - 1)),
        ],
        "bias": lambda t, y, mean, rstd, layout: [
            _bias_jvp(t, y, mean, rstd, layout)[0],
            *_zero_tangents(mean, *[rstd] * (statistics - 1)),
        ],
    }


def _declared_of_input(name: str, kernel_name: str) -> Function:
    """Declare a normalisation by a kernel; without one, as in second derivatives, by the rules above."""

    @libraries.keeps_nothing
    def kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, centred: bool) -> tuple[Any, ...]:
        found = kernels.normalise(kernel_name, x, weight, bias, layout, eps, centred)
        if found is not None:
            return found
        y, _, rstd, mean, _ = _general_kernel(x, weight, bias, layout, eps, centred)
        return y, rstd * 0 if mean is None else mean, rstd

    def shared(g: Any, weight: Any, x: Any, mean: Any, rstd: Any, layout: Layout, centred: bool) -> Any:
        if g[0] is None or g[1] is not None or g[2] is not None:
            return None
        return kernels.slopes(kernel_name, g[0], weight, x, mean, rstd, layout, centred)

    return several(
        name,
        kernel,
        ("y", "mean", "rstd"),
        vjp={
            "x": _x_vjp_of_input,
            "weight": _weight_vjp_of_input,
            "bias": lambda g, shape, layout, shared: (
                _bias_vjp(g, shape, layout) if shared is None else reshape_to(shared[2], shape)
            ),
        },
        jvp={"x": _x_jvp_of_input, **_affine_jvps(2)},
        shared=shared,
    )


_layer_norm_of_input: Function = _declared_of_input("nn.layer_norm_of_input", "norm_rows")
_rms_norm_of_input: Function = _declared_of_input("nn.rms_norm_of_input", "norm_rows")
_group_norm_of_input: Function = _declared_of_input("nn.group_norm_of_input", "norm_groups")


@libraries.keeps_nothing
def _batch_of_input_kernel(x: Any, weight: Any, bias: Any, layout: Layout, eps: float) -> tuple[Any, ...]:
    """Return the result, mean, 1/std and variance."""
    found = kernels.normalise("norm_channels", x, weight, bias, layout, eps, True)
    if found is not None:
        return found
    y, _, rstd, mean, var = _general_kernel(x, weight, bias, layout, eps, True)
    return y, mean, rstd, var


def _batch_slopes(g: Any, weight: Any, x: Any, mean: Any, rstd: Any, layout: Layout) -> Any:
    """Return the cotangents of x, weight and bias, for that of the result; None if no kernel computes them."""
    if g[0] is None or g[1] is not None or g[2] is not None or g[3] is not None:
        return None
    return kernels.slopes("norm_channels", g[0], weight, x, mean, rstd, layout, True)


def _batch_x_vjp_of_input(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, shape: Shape, layout: Layout, shared: Any
) -> Any:
    if shared is not None:
        return reshape_to(shared[0], shape)
    a, (of_y, of_mean, of_rstd, of_var) = _values(x, mean, rstd, layout), g
    sums = _batch_sums((of_y,), a, layout)
    return _batch_x_vjp((of_y, None, of_rstd, of_mean, of_var), weight, a, rstd, shape, layout, sums)


def _batch_weight_vjp_of_input(g: Any, x: Any, mean: Any, rstd: Any, shape: Shape, layout: Layout, shared: Any) -> Any:
    return shared[1] if shared is not None else _weight_vjp(g, _values(x, mean, rstd, layout), shape, layout, None)


def _batch_x_jvp_of_input(t: Any, weight: Any, y: Any, x: Any, mean: Any, rstd: Any, layout: Layout) -> list[Any]:
    ty, _, *rest = _batch_x_jvp(t, weight, y, _values(x, mean, rstd, layout), rstd, layout)
    return [ty, rest[1], rest[0], rest[2]]


_batch_norm_of_input: Function = several(
    "nn.batch_norm_of_input",
    _batch_of_input_kernel,
    ("y", "mean", "rstd", "var"),
    vjp={
        "x": _batch_x_vjp_of_input,
        "weight": _batch_weight_vjp_of_input,
        "bias": lambda g, shape, layout, shared: _bias_vjp(g, shape, layout) if shared is None else shared[2],
    },
    jvp={"x": _batch_x_jvp_of_input, **_affine_jvps(3)},
    shared=_batch_slopes,
)


def _has_kernel(name: str, layout: Layout, x: Any, weight: Any, bias: Any) -> bool:
    arrays = [None if z is None else raw(z) for z in (x, weight, bias)]
    return kernels.find(kernels.name_for(name, arrays[0], layout), layout, *arrays) is not None


# ---------------------------------------------------------------- by given statistics


def _given_kernel(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, layout: Layout) -> Any:
    a, dtype = _prepare(x, weight, bias, layout)
    scale = rstd if weight is None else weight * rstd
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = (z if z.dtype == a.dtype else z.astype(a.dtype) for z in (scale, shift))
    y = _apply_in_place(np.add, a * scale[:, None], shift[:, None])
    return (y if y.dtype == dtype else y.astype(dtype)).reshape(x.shape)


def _given_values(x: Any, mean: Any, rstd: Any, layout: Layout) -> Any:
    return (reshape_to(widen_half(x), layout.by_statistic) - mean[:, None]) * rstd[:, None]


def _given_scaled(g: Any, weight: Any, rstd: Any, layout: Layout) -> Any:
    scale = rstd if weight is None else widen_half(weight) * rstd
    return reshape_to(reshape_to(widen_half(g), layout.by_statistic) * _column(scale), g.shape)


# Normalisation by a given mean and 1/std, which are constants.
_batch_norm_given: Function = custom(
    "nn.batch_norm_given",
    _given_kernel,
    vjp={
        "x": _given_scaled,
        "weight": lambda g, x, mean, rstd, layout: _dot(
            reshape_to(widen_half(g), layout.by_statistic), _given_values(x, mean, rstd, layout)
        ),
        "bias": lambda g, layout: _total(reshape_to(widen_half(g), layout.by_statistic)),
    },
    jvp={
        "x": lambda t, weight, rstd, layout: _given_scaled(t, weight, rstd, layout),
        "weight": lambda t, x, mean, rstd, layout: reshape_to(
            _given_values(x, mean, rstd, layout) * _column(widen_half(t)), x.shape
        ),
        "bias": lambda t, x, layout: reshape_to(broadcast_to(_column(t), layout.by_statistic), x.shape),
    },
)


# ---------------------------------------------------------------- public functions


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel over the batch and all further axes, as torch.nn.functional.batch_norm.

    (x - mean) / sqrt(var + eps) * weight + bias; S. Ioffe and C. Szegedy, Batch Normalization (2015).

    Args:
        input: (N, C, ...). Half precision is summed in float32.
        running_mean: (C,), or None. With `training` it is set, without being recorded, to (1 - momentum) * running_mean
            + momentum * mean. Under `gradmgr.checkpoint`, which runs a function twice, it is updated twice.
        running_var: the same for the variance of the batch, the unbiased one.
        weight: (C,), or None.
        bias: (C,), or None.
        training: normalise by the mean and (biased) variance of the batch; else by the running ones, which are
            constants for derivatives.
        momentum: the fraction of the running statistics that is replaced.
        eps: added to the variance.

    Returns:
        The shape of `input`; the dtype to which NumPy promotes input, weight and bias.

    Raises:
        ShapeError: a shape does not fit, or there is only one value per channel.
        DtypeError: an argument is not of real floating-point numbers.
        ValueError: not `training`, and running_mean or running_var is None; a running array is read-only.
        BatchedWriteError: inside vmap, the running statistics would become different for each example.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import batch_norm
    >>> batch_norm(np.array([[1.0], [3.0]]), None, None, training=True, eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    return normalise_batch(None, input, running_mean, running_var, weight, bias, training, momentum, eps)


def normalise_batch(
    batches: Batches | None,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: Any,
    eps: float,
    counted: Tensor | None = None,
) -> Any:
    """Compute `batch_norm`; with `batches` in training by the statistics of all of these, of which this is one.

    The number of batches in `counted` changes together with the running statistics.
    """
    x, weight, bias = _lift_arguments("batch_norm", input, weight, bias)
    if x.ndim < 2:
        raise errors.ShapeError(f"batch_norm takes input (N, C, ...); found shape {x.shape}")
    form = (*x.shape[:2], math.prod(x.shape[2:]))
    running = [None if stat is None else _check_running(stat) for stat in (running_mean, running_var)]
    _check_statistics(x, weight, bias, running)
    layout = Layout(form, form, per_channel=True)
    if not training:
        return _normalise_by_running(x, weight, bias, running, layout, eps)
    _check_update(running, momentum)
    if batches is not None:
        y, _, _, mean, var, count = joint_batch_norm(x, weight, bias, layout, eps, batches)
        unbiased = raw(var) * (raw(count) / (raw(count) - 1))
    else:
        _check_several(x.shape, form[0] * form[2], "batch_norm", "each channel")
        if _has_kernel("norm_channels", layout, x, weight, bias):
            y, mean, _, var = _batch_norm_of_input(x, weight, bias, layout, eps)
        else:
            y, _, _, mean, var = _batch_norm(x, weight, bias, layout, eps)
        if not form[0] * form[2]:
            _update([], (), momentum, counted)
            return y
        unbiased = raw(var) * (layout.count / (layout.count - 1))
    _update(running, (raw(mean), unbiased), momentum if is_captured(momentum) else float(momentum), counted)
    return y


def _check_statistics(x: Any, weight: Any, bias: Any, running: list[Any]) -> None:
    """Raise unless there is one number for each channel, of running statistics in memory of the input's kind."""
    named = {"running_mean": running[0], "running_var": running[1]}
    _check_channels("batch_norm", x.shape, weight=weight, bias=bias, **named)
    check_floating("batch_norm", **named)
    values = [raw(x), *[raw(stat) for stat in running if stat is not None]]
    if {value.__class__ for value in values} == {np.ndarray}:
        return  # as mostly: to ask for the library of each takes 1 us
    if any(libraries.root(value) is not libraries.root(values[0]) for value in values):
        raise libraries.mixed("batch_norm")


def _check_update(running: list[Any], momentum: Any) -> None:
    """Raise unless the running statistics can be updated."""
    if not (isinstance(momentum, (int, float, np.number)) or is_captured(momentum)):
        raise TypeError(f"batch_norm: momentum must be a number; found {momentum!r}")
    for name, stat in zip(("running_mean", "running_var"), running, strict=True):
        if stat is not None and not isinstance(stat, Tensor) and not memory.is_writeable(stat):
            raise ValueError(f"batch_norm writes to {name} where training=True; found a read-only array")


def _check_running(stat: Any) -> Any:
    """Return running statistics if they are a tensor or array that can be written to; raise otherwise."""
    if isinstance(stat, Tensor) or libraries.is_array(stat):
        libraries.check_plain(stat)
        return stat
    raise TypeError(
        f"batch_norm takes running statistics as Tensors, arrays or None; found {type(stat).__name__}, which it could "
        "not write to"
    )


def _normalise_by_running(x: Any, weight: Any, bias: Any, running: list[Any], layout: Layout, eps: float) -> Any:
    if running[0] is None or running[1] is None:
        raise ValueError(
            "batch_norm with training=False normalises by running_mean and running_var; found None; pass both, or "
            "training=True to normalise by the batch"
        )
    dtype = _common_dtype(x, weight, bias)
    mean, var = (raw(stat).astype(wide_dtype(dtype)) for stat in running)
    rstd = 1 / np.sqrt(var + var.dtype.type(eps))
    return _batch_norm_given(x, weight, bias, mean, rstd, layout)


def _update(running: list[Any], found: tuple[Any, ...], momentum: Any, counted: Tensor | None) -> None:
    """Update the running statistics by those of a batch, and the number of batches; all are computed, then written.

    In a compiled function the momentum may be an array, as it changes with each call.
    """
    made = []
    for stat, value in zip(running, found, strict=True):
        if stat is not None:
            if isinstance(stat, Tensor):
                check_kept(stat, "batch_norm")
            old = raw(stat)
            if value.__class__ is not np.ndarray and batched.any_batched(value) and not batched.any_batched(old):
                raise errors.BatchedWriteError(
                    "batch_norm inside vmap: statistics that differ between examples would be written to "
                    "running_mean and running_var, which are the same for all; pass None for both, or training=False"
                )
            keep, take = 1 - momentum, momentum
            if is_captured(momentum):  # NumPy casts Python's numbers to the dtype of an array, but no arrays
                keep, take = keep.astype(old.dtype), take.astype(value.dtype)
            made.append((stat, (keep * old + take * value).astype(old.dtype)))
    if counted is not None:
        more = raw(counted).reshape(1) + 1  # of an array without axes it would be a scalar
        made.append((counted, more.reshape(())))
    run_atomically([call for stat, new in made for call in _calls_to_set(stat, new)])


def _calls_to_set(stat: Any, new: Any) -> list[Call]:
    """Return the calls that give a tensor, or an array, other numbers."""
    if not isinstance(stat, Tensor):
        return [(stat.__setitem__, ..., new)]
    if new.__class__ is not np.ndarray and batched.any_batched(new):
        return [(rebind, stat, wrap(new))]  # which `vmap` notes
    return calls_to_write(stat, new)


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalise over the last axes, as torch.nn.functional.layer_norm.

    (x - mean) / sqrt(var + eps) * weight + bias; J. L. Ba and others, Layer Normalization (2016).

    Args:
        input: (..., *normalized_shape). Half precision is summed in float32.
        normalized_shape: the lengths of the axes to normalise over together; an integer for the last one.
        weight: of shape normalized_shape, or None.
        bias: of shape normalized_shape, or None.
        eps: added to the (biased) variance.

    Returns:
        The shape of `input`; the dtype to which NumPy promotes input, weight and bias.

    Raises:
        ShapeError: a shape does not fit.
        DtypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import layer_norm
    >>> layer_norm(np.array([[1.0, 3.0], [6.0, 2.0]]), (2,), eps=0.0).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    x, weight, bias = _lift_arguments("layer_norm", input, weight, bias)
    layout = _rows_layout(x, normalized_shape, "layer_norm", weight, bias)
    chosen = _layer_norm_of_input if _has_kernel("norm_rows", layout, x, weight, bias) else _layer_norm
    return chosen(x, weight, bias, layout, eps, True)[0]


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Scale by the root of the mean square over the last axes, as torch.nn.functional.rms_norm.

    x / sqrt(mean(x**2) + eps) * weight; B. Zhang and R. Sennrich, Root Mean Square Layer Normalization (2019).

    Args:
        input: (..., *normalized_shape). Half precision is summed in float32.
        normalized_shape: the lengths of the axes to normalise over together; an integer for the last one.
        weight: of shape normalized_shape, or None.
        eps: added to the mean square; by default the spacing of the input's dtype at 1.

    Returns:
        The shape of `input`; the dtype to which NumPy promotes input and weight.

    Raises:
        ShapeError: a shape does not fit.
        DtypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import rms_norm
    >>> rms_norm(np.array([3.0, -3.0]), 2, eps=0.0).tolist()
    [1.0, -1.0]
    """
    x, weight, _ = _lift_arguments("rms_norm", input, weight, None)
    layout = _rows_layout(x, normalized_shape, "rms_norm", weight, None)
    if eps is None:
        eps = 2.0**-7 if x.dtype.name == "bfloat16" else float(np.finfo(x.dtype).eps)
    chosen = _rms_norm_of_input if _has_kernel("norm_rows", layout, x, weight, None) else _rms_norm
    return chosen(x, weight, None, layout, eps, False)[0]


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalise over groups of channels and all further axes, as torch.nn.functional.group_norm.

    (x - mean) / sqrt(var + eps) * weight + bias; Y. Wu and K. He, Group Normalization (2018).

    Args:
        input: (N, C, ...). Half precision is summed in float32.
        num_groups: the number of groups of neighbouring channels.
        weight: (C,), or None.
        bias: (C,), or None.
        eps: added to the (biased) variance.

    Returns:
        The shape of `input`; the dtype to which NumPy promotes input, weight and bias.

    Raises:
        ShapeError: a shape does not fit, num_groups does not divide C, or there is only one value per group in the
            whole batch.
        DtypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import group_norm
    >>> group_norm(np.array([[1.0, 3.0, 6.0, 2.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, 1.0, -1.0]]
    """
    x, weight, bias = _lift_arguments("group_norm", input, weight, bias)
    groups = integer(num_groups, "num_groups", "group_norm")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise errors.ShapeError(
            "group_norm takes input (N, C, ...) with C a multiple of num_groups; found shape "
            f"{x.shape}, num_groups {groups}"
        )
    n, channels = x.shape[:2]
    _check_channels("group_norm", x.shape, weight=weight, bias=bias)
    size, each = math.prod(x.shape[2:]), channels // groups
    _check_several(x.shape, n * each * size, "group_norm", "each group")
    layout = Layout((1, n * groups, each * size), (n, channels, size), per_channel=True)
    chosen = _group_norm_of_input if _has_kernel("norm_groups", layout, x, weight, bias) else _group_norm
    return chosen(x, weight, bias, layout, eps, True)[0]


def _lift_arguments(asked: str, x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    x, weight, bias = one_array(x), None if weight is None else lift(weight), None if bias is None else lift(bias)
    for a in (x, weight, bias):
        if a is not None and a.dtype.kind != "f":
            check_floating(asked, input=x, weight=weight, bias=bias)
    return x, weight, bias


def _rows_layout(x: Any, normalized_shape: Any, asked: str, weight: Any, bias: Any) -> Layout:
    """Check the shapes of a normalisation over the last axes, and return its layout."""
    many = isinstance(normalized_shape, (tuple, list))
    over = tuple([integer(n, "normalized_shape", asked) for n in (normalized_shape if many else (normalized_shape,))])
    shape = x.shape
    lead = len(shape) - len(over)
    if not over or lead < 0 or shape[lead:] != over:
        raise errors.ShapeError(
            f"{asked} normalises over the last axes, whose lengths are to be normalized_shape; found normalized_shape "
            f"{over} and input {shape}"
        )
    if (weight is not None and weight.shape != over) or (bias is not None and bias.shape != over):
        name, a = ("bias", bias) if weight is None or weight.shape == over else ("weight", weight)
        raise errors.ShapeError(f"{asked} takes {name} of the shape normalized_shape, {over}; found {a.shape}")
    form = (1, math.prod(shape[:lead]), math.prod(over))
    return Layout(form, form, per_channel=False)


def _check_channels(asked: str, shape: Shape, **arrays: Any) -> None:
    for name, a in arrays.items():
        if a is not None and a.shape != shape[1:2]:
            raise errors.ShapeError(f"{asked} of input {shape} takes {name} of shape ({shape[1]},); found {a.shape}")


def _check_several(shape: Shape, count: int, asked: str, of: str) -> None:
    if count == 1:
        raise errors.ShapeError(
            f"{asked} normalises over several values of {of}; found one, in input {shape}; pass a larger batch"
        )


def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_wrong: Never) -> Any:
    """Divide by the p-norm along an axis, or by eps where that is larger, as torch.nn.functional.normalize.

    Args:
        input: floating-point or complex numbers. Norms of float16 and bfloat16 are computed in float32.
        p: the exponent of the norm.
        dim: the axis.
        eps: the least divisor.

    Returns:
        The shape and dtype of `input`.

    Raises:
        DtypeError: the input is of integers or booleans.
        AxisError: there is no such axis.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import normalize
    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    if _wrong:
        raise unexpected(normalize, _wrong)
    x = one_array(input)
    check_inexact("normalize", input=x)
    wide = widen_half(x)
    with named_errors("normalize"):
        y = wide / maximum(norm(wide, p, integer(dim, "dim", "normalize"), True), eps)
    return y if y.dtype == x.dtype else as_type(y, x.dtype)
