"""Differences, integrals, interpolation and convolution along an axis."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.mutation import store
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, bare, raw
from gradmgr.ops.arithmetic import absolute, multiply, remainder
from gradmgr.ops.convert import NOT_GIVEN, as_tensor, cast_to, is_plain, lift, lift_together
from gradmgr.ops.join import concatenate
from gradmgr.ops.naming import named
from gradmgr.ops.pick import read_at
from gradmgr.ops.reduce import sum as total
from gradmgr.ops.running import cumprod, cumsum
from gradmgr.ops.shape import broadcast_to, ravel, reshape
from gradmgr.ops.where import choose

# NumPy's default for keywords of which every value means something.


def _operand(a: Any) -> Any:
    """Lift anything but Python numbers, which stay weak in promotion."""
    return a if isinstance(a, (int, float, complex)) else lift(a)


def _ndim(a: Any) -> int:
    return getattr(a, "ndim", 0)


def _promote_with(a: Any, other: Any) -> Any:
    """Widen to what the two give together, so that nothing is rounded on the way to a result of that."""
    pair = [t.dtype for t in (a, other) if hasattr(t, "dtype") and libraries.is_differentiable(t.dtype)]
    return cast_to(a, np.result_type(*pair)) if len(pair) == 2 else a


def _index_along(axis: int, part: Any) -> tuple[Any, ...]:
    """Return the index that takes a part along one axis."""
    return (*[slice(None)] * axis, part)


# ---------------------------------------------------------------- neighbours along an axis


def _neighbours_kernel(a: Any, axis: int, sign: int) -> Any:
    later, earlier = a[_index_along(axis, slice(1, None))], a[_index_along(axis, slice(None, -1))]
    if sign > 0:
        return later + earlier
    return later != earlier if a.dtype.kind == "b" else later - earlier


def _to_neighbours_kernel(g: Any, axis: int, sign: int, length: int) -> Any:
    z = libraries.namespace(g).zeros((*g.shape[:axis], length, *g.shape[axis + 1 :]), g.dtype)
    if length > 1:
        z[_index_along(axis, slice(1, None))] = g
        earlier = z[_index_along(axis, slice(None, -1))]
        if sign > 0:
            earlier += g
        else:
            earlier -= g
    return z


# a[k + 1] + sign a[k]: the differences, or the sums, of neighbours.
_neighbours: Function = linear(
    "neighbours",
    _neighbours_kernel,
    lambda g, shape, axis, sign: _to_neighbours(g, axis, sign, shape[axis]),
)
_to_neighbours: Function = linear(
    "to_neighbours", _to_neighbours_kernel, lambda g, axis, sign: _neighbours(g, axis, sign)
)


def _differences(a: Any, axis: int) -> Any:
    return _neighbours(a, axis, -1)


def _end_values(value: Any, a: Any, axis: int) -> Any:
    """Return what to put before or after a; a number is repeated over the other axes."""
    return broadcast_to(value, (*a.shape[:axis], 1, *a.shape[axis + 1 :])) if value.ndim == 0 else value


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = NOT_GIVEN, append: Any = NOT_GIVEN) -> Any:
    """Take differences of neighbours as `numpy.diff`; gradients flow into `prepend` and `append` too."""
    if is_plain(a, prepend, append):
        ends = {"prepend": prepend, "append": append}
        return np.diff(a, n, axis, **{name: end for name, end in ends.items() if end is not NOT_GIVEN})
    if n == 0:
        return as_tensor(a)
    if n < 0:
        raise ValueError(f"diff: order must be non-negative but got {n}")
    a, before, after = lift_together(a, *(None if end is NOT_GIVEN else end for end in (prepend, append)))
    a = as_tensor(a)
    if a.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    axis = normalize_axis_index(axis, a.ndim, "diff")
    parts = [] if before is None else [_end_values(before, a, axis)]
    parts += [a] if after is None else [a, _end_values(after, a, axis)]
    z = a if len(parts) == 1 else concatenate(parts, axis)
    for _ in range(n):
        z = _differences(z, axis)
    return z


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Take differences of the flattened array as `numpy.ediff1d`, with values to add at both ends."""
    if is_plain(ary, to_end, to_begin):
        return np.ediff1d(ary, to_end, to_begin)
    a, to_begin, to_end = lift_together(ary, to_begin, to_end)
    a = ravel(as_tensor(a))
    if a.dtype.kind == "b":
        raise TypeError("ediff1d: NumPy does not subtract booleans; cast them first")
    ends = []
    for name, end in (("to_begin", to_begin), ("to_end", to_end)):
        end = None if end is None else ravel(end)
        if end is not None and not np.can_cast(end.dtype, a.dtype, "same_kind"):
            raise TypeError(
                f"ediff1d: dtype of `{name}`, {end.dtype}, must be compatible with that of ary, {a.dtype}, "
                "under the `same_kind` rule"
            )
        ends.append([] if end is None else [cast_to(end, a.dtype)])
    z = _differences(a, 0)
    return concatenate([*ends[0], z, *ends[1]]) if to_end is not None or to_begin is not None else z


# ---------------------------------------------------------------- gradient


def _slopes_kernel(f: Any, axis: int, edge_order: int) -> Any:
    z = np.gradient(f, axis=axis, edge_order=edge_order)  # type: ignore[call-overload]  # any integer
    return z if z.dtype == f.dtype else z.astype(f.dtype)  # NumPy gives float64 for a bfloat16


# The weights of the first three (from the end: the last three) values in the slope at an end.
_END_WEIGHTS = MappingProxyType({1: (-1.0, 1.0), 2: (-1.5, 2.0, -0.5)})


def _slopes_adjoint_kernel(g: Any, axis: int, edge_order: int) -> Any:
    z = np.zeros_like(g)
    inner = g[_index_along(axis, slice(1, -1))] / 2
    z[_index_along(axis, slice(2, None))] += inner
    z[_index_along(axis, slice(None, -2))] -= inner
    for k, weight in enumerate(_END_WEIGHTS[edge_order]):
        z[_index_along(axis, k)] += weight * g[_index_along(axis, 0)]
        z[_index_along(axis, -1 - k)] -= weight * g[_index_along(axis, -1)]
    return z


# Central differences at unit spacing.
_slopes: Function = linear("gradient", _slopes_kernel, lambda g, axis, edge_order: _slopes_adjoint(g, axis, edge_order))
_slopes_adjoint: Function = linear(
    "gradient_adjoint", _slopes_adjoint_kernel, lambda g, axis, edge_order: _slopes(g, axis, edge_order)
)


def _uneven_slopes(f: Any, steps: Any, axis: int, edge_order: int) -> Any:
    """Return the slope at each point of the parabola through it and its neighbours; steps of one axis.

    It is the mean of the slopes of the segments on either side, each weighted by the other's length.
    """
    h = reshape(steps, [-1 if k == axis else 1 for k in range(f.ndim)])
    s = _differences(f, axis) / h
    first, last = _index_along(axis, slice(None, 1)), _index_along(axis, slice(-1, None))
    before, after = _index_along(axis, slice(None, -1)), _index_along(axis, slice(1, None))
    ends = [s[first], s[last]]
    if edge_order != 1:
        bend = _differences(s, axis) / _neighbours(h, axis, 1)
        ends = [ends[0] - h[first] * bend[first], ends[1] + h[last] * bend[last]]
    inner = (h[after] * s[before] + h[before] * s[after]) / (h[before] + h[after])
    return concatenate([ends[0], inner, ends[1]], axis)


def _spacings(f: Any, axes: tuple[int, ...], given: list[Any]) -> list[Any]:
    """Return the spacing of each axis: a number, or the steps between coordinates."""
    if not given:
        return [1.0] * len(axes)
    if len(given) == 1 and _ndim(given[0]) == 0:
        return given * len(axes)
    if len(given) != len(axes):
        raise TypeError(f"gradient: invalid number of arguments: {len(given)} spacings for {len(axes)} axes")
    spacings = []
    for axis, x in zip(axes, given, strict=True):
        ndim = _ndim(x)
        if ndim > 1:
            raise ValueError(f"gradient: distances must be either scalars or 1d; found shape {x.shape}")
        if ndim and x.shape[0] != f.shape[axis]:
            raise ValueError(
                "gradient: when 1d, distances must match the length of the corresponding dimension; "
                f"found {x.shape[0]} for {f.shape[axis]} along axis {axis}"
            )
        spacings.append(_steps_between(_promote_with(x, f)) if ndim else x)
    return spacings


def _steps_between(x: Any) -> Any:
    """Return the steps between coordinates; one number where they are constant and equal."""
    steps = _differences(cast_to(x, np.float64) if x.dtype.kind in "iu" else x, 0)
    if isinstance(steps, Tensor) or not steps.size or not (steps == steps[0]).all():
        return steps
    return steps[0]


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Take central differences as `numpy.gradient`; gradients flow into spacings and coordinates too."""
    if is_plain(f, *varargs):
        return np.gradient(f, *varargs, axis=axis, edge_order=edge_order)  # type: ignore[call-overload]  # any integer
    f, *lifted = lift_together(f, *varargs)
    f = as_tensor(f)
    if f.dtype.kind == "b":
        raise TypeError("gradient: NumPy does not subtract booleans; cast them first")
    axes = tuple(range(f.ndim)) if axis is None else normalize_axis_tuple(axis, f.ndim, "gradient")
    numbers = (int, float, complex)  # these stay as they are, weak in promotion
    given = [v if isinstance(v, numbers) else t for v, t in zip(varargs, lifted, strict=True)]
    spacings = _spacings(f, axes, given)
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: 'edge_order' is 1 or 2; found {edge_order!r}")
    if any(f.shape[k] < edge_order + 1 for k in axes):
        raise ValueError(
            "gradient: shape of array too small to calculate a numerical gradient, at least (edge_order + 1) elements "
            f"are required; found {f.shape}"
        )
    f = f if f.dtype.kind not in "biu" else cast_to(f, np.float64)
    results = []
    for k, h in zip(axes, spacings, strict=True):
        wide = _promote_with(f, h)
        if _ndim(h):
            z = _uneven_slopes(wide, h, k, edge_order)
        else:
            z = _slopes(wide, k, edge_order)
            z = z if varargs == () else z / h
        results.append(cast_to(z, f.dtype))
    return results[0] if len(axes) == 1 else tuple(results)


# ---------------------------------------------------------------- integrals and running totals


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Integrate by the trapezoidal rule as `numpy.trapezoid`; gradients flow into `x` and `dx` too."""
    if is_plain(y, x, dx):
        return np.trapezoid(y, x, dx, axis)
    y, x = lift_together(y, x)
    y = as_tensor(y)
    axis = normalize_axis_index(axis, y.ndim, "trapezoid")
    if x is None:
        d = _operand(dx)
    else:
        x = _promote_with(x, y)
        if x.ndim == 1:
            d = reshape(_differences(x, 0), [-1 if k == axis else 1 for k in range(y.ndim)])
        else:
            d = _differences(x, normalize_axis_index(axis - y.ndim, x.ndim, "trapezoid"))
    y = _promote_with(y, d)
    return total(_neighbours(y, axis, 1) * (d / 2.0), axis)


def _cumulative_function(name: str, op: Any, first: int) -> Any:
    def function(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, out: Any = None, include_initial: bool = False
    ) -> Any:
        if is_plain(x, out):
            return getattr(np, name)(x, axis=axis, dtype=dtype, out=out, include_initial=include_initial)
        x = as_tensor(x)
        x = x if x.ndim else reshape(x, (1,))
        if axis is None:
            if x.ndim > 1:
                raise ValueError(f"{name}: for arrays which have more than one dimension axis= is required")
            axis = 0
        axis = normalize_axis_index(axis, x.ndim, name)
        z = op(x, axis, dtype)
        if include_initial:
            begin = (*z.shape[:axis], 1, *z.shape[axis + 1 :])
            z = concatenate([libraries.namespace(raw(z)).full(begin, first, z.dtype), z], axis)
        return z if out is None else store(out, z, f"{name}(out=...)")

    return named(function, name, f"Return running {'sums' if first == 0 else 'products'} as `numpy.{name}`.")


cumulative_sum = _cumulative_function("cumulative_sum", cumsum, 0)
cumulative_prod = _cumulative_function("cumulative_prod", cumprod, 1)

# ---------------------------------------------------------------- interpolation


class _Segments:
    """Where each x lies between the knots; found when a rule first asks, for all rules of one call.

    As NumPy, at a knot it is the segment that begins there; at the last knot the one that ends there.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: tuple[Any, Any, tuple[Any, Any, Any, Any]] | None = None  # with the arrays of which it was found

    def ends(self, x: Any, knots: Any) -> tuple[Any, Any, Any, Any]:
        """Return each segment's ends, by number; whether x is in it; 1 where x is at or beyond the last knot."""
        a, b = raw(x), raw(knots)
        if self._found is None or self._found[0] is not a or self._found[1] is not b:
            last = b.shape[0] - 1
            lower = np.clip(np.searchsorted(b, a, side="right") - 1, 0, max(last - 1, 0))
            upper = np.minimum(lower + 1, last)
            inside = ~((a < b[0]) | (a > b[-1])) & (libraries.getitem(b, upper) > libraries.getitem(b, lower))
            self._found = a, b, (lower, upper, inside, (a >= b[-1]).astype(np.float64))
        return self._found[2]


def _fraction_in_segment(x: Any, xp: Any, segments: _Segments) -> tuple[Any, Any, Any]:
    """Return the segment's ends and the share of the upper one in the result."""
    lower, upper, inside, beyond = segments.ends(x, xp)
    start = read_at(xp, lower)
    return lower, upper, choose(inside, (x - start) / _segment_width(x, xp, segments), beyond)


def _segment_width(x: Any, xp: Any, segments: _Segments) -> Any:
    lower, upper, inside, _ = segments.ends(x, xp)
    return choose(inside, read_at(xp, upper) - read_at(xp, lower), 1.0)


def _segment_slope(x: Any, xp: Any, fp: Any, segments: _Segments) -> Any:
    lower, upper, inside, _ = segments.ends(x, xp)
    return choose(inside, (read_at(fp, upper) - read_at(fp, lower)) / _segment_width(x, xp, segments), 0.0)


def _distribute_to_knots(g: Any, x: Any, xp: Any, shape: tuple[int, ...], segments: _Segments) -> Any:
    """Share a gradient out to the knots on either side of each x."""
    lower, upper, share = _fraction_in_segment(x, xp, segments)
    upper_part = g * share
    return scatter(g - upper_part, shape, lower) + scatter(upper_part, shape, upper)


def _interpolate(t: Any, x: Any, xp: Any, segments: _Segments) -> Any:
    lower, upper, share = _fraction_in_segment(x, xp, segments)
    return getitem(t, lower) * (1 - share) + getitem(t, upper) * share


def _interp_kernel(x: Any, xp: Any, fp: Any, segments: _Segments) -> Any:
    return np.interp(x if libraries.namespace(x) is np else x.copy(order="C"), xp, fp)


_interp = custom(
    "interp",
    _interp_kernel,
    vjp={
        "x": lambda g, x, xp, fp, segments: g * conj_of(_segment_slope(x, xp, fp, segments)),
        "xp": lambda g, x, xp, fp, shape, segments: _distribute_to_knots(
            -g * conj_of(_segment_slope(x, xp, fp, segments)), x, xp, shape, segments
        ),
        "fp": lambda g, x, xp, shape, segments: _distribute_to_knots(g, x, xp, shape, segments),
    },
    jvp={
        "x": lambda t, x, xp, fp, segments: t * _segment_slope(x, xp, fp, segments),
        "xp": lambda t, x, xp, fp, segments: -_segment_slope(x, xp, fp, segments) * _interpolate(t, x, xp, segments),
        "fp": lambda t, x, xp, segments: _interpolate(t, x, xp, segments),
    },
)


def _outside_value(value: Any, dtype: Any, name: str) -> Any:
    """Return the result outside the knots, which must be one number that the result can hold."""
    if value.ndim:
        raise TypeError(f"interp: {name} must be a number or an array with no axes; found shape {value.shape}")
    if value.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"interp: {name} must be real, as fp; found {value.dtype}")
    return cast_to(value, dtype)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Interpolate linearly as `numpy.interp`; gradients flow into every argument.

    At a knot the derivative in x is the slope of the segment that begins there, at the last knot of
    the one that ends there; outside it is 0.
    """
    if is_plain(x, xp, fp, left, right, period):
        return np.interp(x, xp, fp, left, right, period)
    x, xp, fp, left, right, _ = lift_together(x, xp, fp, left, right, period)
    x = as_tensor(x)
    if xp.ndim != 1 or fp.ndim != 1:
        raise ValueError(f"interp: data points must be 1-D sequences; found shapes {xp.shape}, {fp.shape}")
    if xp.shape != fp.shape:
        raise ValueError(f"interp: fp and xp are not of the same length; found {xp.shape[0]}, {fp.shape[0]}")
    if xp.shape[0] == 0:
        raise ValueError("interp: array of sample points is empty")
    if x.dtype.kind == "c" or xp.dtype.kind == "c":
        raise TypeError(f"interp: x and xp must be real; found {x.dtype}, {xp.dtype}")
    if period is not None:
        return _extend_periodically(x, xp, fp, _operand(period))
    dtype = np.dtype(np.complex128 if fp.dtype.kind == "c" else np.float64)
    ends = [
        None if end is None else _outside_value(end, dtype, name) for name, end in (("left", left), ("right", right))
    ]
    z = _interp(x, xp, fp, _Segments())
    if ends[0] is not None:
        z = choose(raw(x) < raw(xp)[0], ends[0], z)
    return z if ends[1] is None else choose(raw(x) > raw(xp)[-1], ends[1], z)


def _extend_periodically(x: Any, xp: Any, fp: Any, period: Any) -> Any:
    if np.any(libraries.common_value(raw(period) == 0, "whether the period is 0")):
        raise ValueError("interp: period must be a non-zero value")
    period = absolute(period)
    x, xp = (remainder(cast_to(t, np.float64), period) for t in (x, xp))
    order = raw(xp).argsort()
    xp, fp = getitem(xp, order), getitem(fp, order)
    xp = concatenate([xp[-1:] - period, xp, xp[:1] + period])
    fp = concatenate([fp[-1:], fp, fp[:1]])
    return _interp(x, xp, fp, _Segments())


# ---------------------------------------------------------------- convolution and correlation
# Every mode is a piece of the full result, so a gradient is put back into the full length; what is
# left to do then is a "valid" product of the one kind or the other.


def _embed_in_full(g: Any, mode: str, a_length: int, v_length: int, turned: bool) -> Any:
    """Put a gradient at its place in the full result; `turned` if NumPy swaps the sides and turns the result."""
    if mode == "full":
        return g
    short = min(a_length, v_length)
    start = short - 1
    if mode == "same":
        start = short // 2 if turned else start - short // 2
    return scatter(g, (a_length + v_length - 1,), slice(start, start + g.shape[0]))


def _full_cotangent_of_convolution(g: Any, a: Any, v: Any, mode: str) -> Any:
    return _embed_in_full(g, mode, a.shape[0], v.shape[0], turned=False)


def _full_cotangent_of_correlation(g: Any, a: Any, v: Any, mode: str) -> Any:
    return _embed_in_full(g, mode, a.shape[0], v.shape[0], turned=a.shape[0] < v.shape[0])


_convolve: Function = custom(
    "convolve",
    lambda a, v, mode: np.convolve(a, v, mode),
    vjp={
        "a": lambda g, a, v, mode: _correlate(_full_cotangent_of_convolution(g, a, v, mode), v, "valid"),
        "v": lambda g, a, v, mode: _correlate(_full_cotangent_of_convolution(g, a, v, mode), a, "valid"),
    },
    jvp={"a": lambda t, v, mode: _convolve(t, v, mode), "v": lambda t, a, mode: _convolve(a, t, mode)},
)
_correlate: Function = custom(
    "correlate",
    lambda a, v, mode: np.correlate(a, v, mode),
    vjp={
        "a": lambda g, a, v, mode: _convolve(_full_cotangent_of_correlation(g, a, v, mode), v, "valid"),
        "v": lambda g, a, v, mode: _correlate(a, _full_cotangent_of_correlation(g, a, v, mode), "valid"),
    },
    jvp={"a": lambda t, v, mode: _correlate(t, v, mode), "v": lambda t, a, mode: _correlate(a, t, mode)},
)


def _mode_number(mode: Any) -> Any:
    """NumPy's numbers for the modes by their names."""
    return ("valid", "same", "full")[mode] if isinstance(mode, int) and 0 <= mode <= 2 else mode


def _pair(a: Any, v: Any, mode: Any, name: str) -> tuple[Any, Any]:
    """Lift and check what is convolved."""
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"{name}: mode is 'full', 'same' or 'valid'; found {mode!r}")
    a, v = lift_together(a, v)
    if name == "convolve":
        a, v = (reshape(t, (1,)) if t.ndim == 0 else t for t in (a, v))
    elif not a.ndim or not v.ndim:
        raise ValueError(f"{name}: object of too small depth for desired array: an array has no axis")
    for side, t in (("a", a), ("v", v)):
        if t.ndim > 1:
            raise ValueError(f"{name}: object too deep for desired array: {side} has shape {t.shape}, not one axis")
        if t.shape[0] == 0:
            raise ValueError(f"{name}: {side} cannot be empty")
    if a.dtype != v.dtype and "V" in (
        a.dtype.kind,
        v.dtype.kind,
    ):  # with bfloat16 NumPy would compute in Python objects
        dtype = np.multiply.resolve_dtypes((a.dtype, v.dtype, None))[-1]
        a, v = cast_to(a, dtype), cast_to(v, dtype)
    return as_tensor(a), v


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Convolve as `numpy.convolve`."""
    if is_plain(a, v):
        return np.convolve(a, v, mode)  # type: ignore[call-overload]  # a string NumPy checks
    mode = _mode_number(mode)
    return _convolve(*_pair(a, v, mode, "convolve"), mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Correlate as `numpy.correlate`, v conjugated."""
    if is_plain(a, v):
        return np.correlate(a, v, mode)  # type: ignore[call-overload]  # a string NumPy checks
    mode = _mode_number(mode)
    return _correlate(*_pair(a, v, mode, "correlate"), mode)


# ---------------------------------------------------------------- unwrap


def _unwrap_corrections(p: Any, discont: Any, axis: int, period: Any) -> tuple[Any, Any]:
    """Return what unwrapping adds to all elements after the first: in total, and as a number of periods."""
    steps = np.diff(p, axis=axis)
    dtype = np.result_type(steps, period)
    if dtype.kind in "iu":
        high, odd = divmod(period, 2)
        ambiguous = odd == 0
    else:
        high, ambiguous = period / 2, True
    within = (steps + high) % period - high
    if ambiguous:
        within = np.where((within == -high) & (steps > 0), high, within)
    change = np.where(np.abs(steps) < (period / 2 if discont is None else discont), 0, within - steps)
    return change.cumsum(axis=axis), np.rint(change / period).cumsum(axis=axis)


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * np.pi) -> Any:
    """Unwrap as `numpy.unwrap`: adds whole periods; gradients flow into `p` and a Tensor as `period`."""
    if is_plain(p, discont, period):
        return np.unwrap(p, discont, axis, period=period)
    p = as_tensor(p)
    if p.ndim == 0:
        raise ValueError("unwrap requires input that is at least one dimensional")
    axis = normalize_axis_index(axis, p.ndim, "unwrap")
    values, length = raw(p), _operand(period)
    if _ndim(length):
        raise ValueError(f"unwrap: period must be a number; found shape {length.shape}")
    added, count = computed(_unwrap_corrections, values, bare(discont), axis, bare(length))
    xp = libraries.namespace(values)
    before = xp.zeros((*values.shape[:axis], min(values.shape[axis], 1), *values.shape[axis + 1 :]), dtype=bool)
    dtype = np.result_type(values, raw(length))
    if isinstance(length, Tensor):
        z = p + multiply(np.concatenate([before, count.astype(dtype)], axis=axis), length)
    else:
        z = p + np.concatenate([before, added.astype(dtype)], axis=axis)
    return cast_to(z, dtype)
