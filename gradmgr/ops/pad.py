"""Padding, in each of NumPy's modes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.mutation import as_type, copied, setitem
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.views import as_new_array
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.join import concatenate
from gradmgr.ops.naming import named_errors
from gradmgr.ops.order import sort
from gradmgr.ops.positions import align_with_axis, check_broadcasts, gather, index_on_axis
from gradmgr.ops.reduce import max, mean, min
from gradmgr.ops.shape import flip
from gradmgr.ops.where import choose


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Pad as `numpy.pad`, in every mode; gradients flow through what the padding is made of.

    With mode="empty" the padding is zero. A user's function as the mode gets each vector as a
    Tensor, which it writes to in place.
    """
    if not callable(mode):
        with named_errors("pad"):  # only here: the errors of a user's function stay as they are
            return as_new_array(_pad(array, pad_width, mode, kwargs))
    if not any(holds_tensor(part) for part in (array, pad_width, *kwargs.values())):
        return np.pad(array, pad_width, mode, **kwargs)
    array = lift(array)
    array = array if isinstance(array, Tensor) else wrap(array)
    return _pad_by_function(mode, array, _read_widths(pad_width, array.ndim), kwargs)


def _pad(array: Any, pad_width: Any, mode: Any, kwargs: dict[str, Any]) -> Any:
    if not any(holds_tensor(part) for part in (array, pad_width, *kwargs.values())):
        return np.pad(array, pad_width, mode, **kwargs)
    array = lift(array)
    array = array if isinstance(array, Tensor) else wrap(array)
    widths = _read_widths(pad_width, array.ndim)
    if mode not in _PADDINGS:
        raise ValueError(f"pad: mode {mode!r} is not supported")
    padding, allowed = _PADDINGS[mode]
    unknown = set(kwargs) - set(allowed)
    if unknown:
        raise ValueError(f"pad: unsupported keyword arguments for mode {mode!r}: {unknown}")
    for k, (before, after) in enumerate(widths):
        if array.shape[k] == 0 and before + after and mode not in ("constant", "empty"):
            raise ValueError(f"pad: can't extend empty axis {k} using modes other than 'constant' or 'empty'")
    if not libraries.is_differentiable(array.dtype):  # a constant, and rounded in ways that only NumPy knows
        return wrap(np.pad(raw(array), widths or 0, mode, **{key: _values_of(value) for key, value in kwargs.items()}))
    return padding(array, widths, mode, kwargs)


def _values_of(option: Any) -> Any:
    return raw(lift(option)) if holds_tensor(option) else option


def _read_widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    """Read a pad_width in any of its forms."""
    if isinstance(pad_width, dict):
        by_axis: list[Any] = [(0, 0)] * ndim
        for k, width in pad_width.items():
            by_axis[k] = width if isinstance(width, tuple) else (width, width)
        pad_width = by_axis
    if _are_widths(pad_width, ndim):
        return list(pad_width)
    widths = np.asarray(raw(pad_width))
    if widths.dtype.kind not in "iu":
        raise TypeError("pad: `pad_width` must be of integral type.")
    if (widths < 0).any():
        raise ValueError("pad: index can't contain negative values")
    with named_errors("pad"):
        return [(int(before), int(after)) for before, after in np.broadcast_to(widths, (ndim, 2))]


def _are_widths(pad_width: Any, ndim: int) -> bool:
    """Tell whether it is a pair of ints for each axis, as in most calls; NumPy takes 6 us to read it."""
    if pad_width.__class__ not in (list, tuple) or not 0 < len(pad_width) == ndim:
        return False
    for pair in pad_width:
        if pair.__class__ is not tuple or len(pair) != 2:
            return False
        for width in pair:
            if width.__class__ is not int or width < 0:
                return False
    return True


def _pairs(option: Any, ndim: int) -> list[list[Any]]:
    """Read an option as a pair for each axis: numbers, or 0-d Tensors out of a Tensor."""
    if option.__class__ in (int, float):
        return [[option, option]] * ndim
    values = lift(option)
    if not isinstance(values, Tensor):
        with named_errors("pad"):
            pairs: list[list[Any]] = np.broadcast_to(values, (ndim, 2)).tolist()
        return pairs
    check_broadcasts(values.shape, (ndim, 2), "pad")
    both_sides = broadcast_to(values, (ndim, 2))
    return [[getitem(both_sides, (k, side)) for side in (0, 1)] for k in range(ndim)]


def _lengths(option: Any, ndim: int) -> list[list[Any]]:
    """Read stat_length: positive integers, or None for all there is."""
    if option is None:
        return [[None, None]] * ndim
    lengths = np.round(np.asarray(_values_of(option))).astype(np.intp)
    if (lengths < 0).any():
        raise ValueError("pad: index can't contain negative values")
    with named_errors("pad"):
        pairs: list[list[Any]] = np.broadcast_to(lengths, (ndim, 2)).tolist()
    return pairs


def _surround_with_zeros(a: Any, widths: Any) -> tuple[Any, tuple[slice, ...]]:
    """Return the array amid zeros, and where it lies in them."""
    shape = tuple([before + n + after for n, (before, after) in zip(a.shape, widths, strict=True)])
    inner = tuple([slice(before, before + n) for n, (before, _) in zip(a.shape, widths, strict=True)])
    return scatter(a, shape, inner), inner


def _pad_empty(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    return _surround_with_zeros(a, widths)[0]


def _pad_constant(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    z, inner = _surround_with_zeros(a, widths)
    pairs = _pairs(options.get("constant_values", 0), a.ndim)
    for k, (before, after) in enumerate(widths):  # later axes fill the corners
        rest = inner[k + 1 :]
        for value, part, count in zip(
            pairs[k], (slice(0, before), slice(z.shape[k] - after, None)), (before, after), strict=True
        ):
            if count and not (isinstance(value, (int, float, complex)) and value == 0):
                setitem(z, (*index_on_axis(k, part), *rest), value)
    return z


# Where padding comes from, along one axis: (start in the padded axis, start in the array, step, count) of each stretch.
# The step is 1, -1 where it is mirrored, and 0 where one element is repeated.
Stretches = tuple[tuple[int, int, int, int], ...]
# For each axis, the length of the padding before the array, and the stretches.
Sources = tuple[tuple[int, Stretches], ...]


def _stretches(length: int, before: int, after: int, mode: str) -> Stretches:
    """Return where the padding of an axis comes from: a row of copies, of which each second one may be mirrored."""
    if mode == "edge":
        sides = (0, 0, 0, before), (before + length, length - 1, 0, after)
        return tuple([stretch for stretch in sides if stretch[3]])
    period = length - 1 if mode == "reflect" and length > 1 else length
    found = []
    for start, end in ((-before, 0), (length, length + after)):
        while start < end:
            number, within = divmod(start, period)
            stop = builtins.min(end, (number + 1) * period)
            first, step = (length - 1 - within, -1) if number % 2 and mode != "wrap" else (within, 1)
            found.append((start + before, first, step, stop - start))
            start = stop
    return tuple(found)


# Of the last axis, so many elements at most are copied column by column: NumPy's loop goes over all rows then, where it
# would make one of two numbers for each row. (8, 16, 32, 32) by 2 takes 85 us and not 150.
_FEW_COLUMNS = 8


def _stretches_of_axis(ndim: int, axis: int, sources: Sources, with_repeats: bool) -> Stretches:
    """Return the stretches of an axis, of the last one in single columns where they are short.

    With repeats, those of one element that is repeated are so, too.
    """
    stretches = sources[axis][1]
    if ndim == 1 or axis < ndim - 1:
        return stretches
    found: list[tuple[int, int, int, int]] = []
    for start, first, step, count in stretches:
        if (step or with_repeats) and count <= _FEW_COLUMNS:
            found += [(start + k, first + k * step, 1, 1) for k in range(count)]
        else:
            found.append((start, first, step, count))
    return tuple(found)


def _regions(
    shape: tuple[int, ...], axis: int, sources: Sources, *, with_repeats: bool
) -> Iterator[tuple[Any, Any, int]]:
    """Yield for each stretch its index and its origin's in the padded array, whose later axes are not padded yet.

    With them comes the step; where it is 0, the origin is one element along the axis.
    """
    before, ndim = sources[axis][0], len(shape)
    head = [slice(None)] * axis
    rest = [slice(sources[k][0], sources[k][0] + shape[k]) for k in range(axis + 1, ndim)]
    for start, first, step, count in _stretches_of_axis(ndim, axis, sources, with_repeats):
        low = before + first
        if step >= 0:
            origin = slice(low, low + (count if step else 1))
        else:
            stop = low - count
            origin = slice(low, stop if stop >= 0 else None, -1)
        yield (*head, slice(start, start + count), *rest), (*head, origin, *rest), step


def _padded(a: Any, padded_shape: tuple[int, ...], sources: Sources) -> Any:
    """Return an array of this shape with `a` in it, and around it what `sources` says."""
    z = libraries.namespace(a).empty(padded_shape, a.dtype)
    z[tuple([slice(before, before + n) for n, (before, _) in zip(a.shape, sources, strict=True)])] = a
    for axis in range(len(sources)):
        for to, origin, _ in _regions(a.shape, axis, sources, with_repeats=True):
            z[to] = z[origin]
    return z


def _sum_along(a: Any, axis: int) -> Any:
    """Sum along an axis and keep it; few columns are added one after the other, in a seventh of the time or less."""
    count = a.shape[axis]
    if axis < a.ndim - 1 or count > _FEW_COLUMNS:
        return libraries.add_up(a, (axis,), True)
    total = a[..., :1]
    for k in range(1, count):
        total = total + a[..., k : k + 1]
    return total


@libraries.adds_in_float32
def _folded(g: Any, inner_shape: tuple[int, ...], sources: Sources) -> Any:
    """Return for each element of an array of this shape the sum of all elements of `g` that come from it."""
    g = g.copy()
    for axis in reversed(range(len(inner_shape))):
        for to, origin, step in _regions(inner_shape, axis, sources, with_repeats=False):
            g[origin] += g[to] if step else _sum_along(g[to], axis)
    return g[tuple([slice(before, before + n) for n, (before, _) in zip(inner_shape, sources, strict=True)])].copy()


_pad_within: Function = linear("pad_within", _padded, lambda g, shape, sources: _fold_padding(g, shape, sources))
_fold_padding: Function = linear("fold_padding", _folded, lambda g, shape, sources: _pad_within(g, shape, sources))


def _pad_from_within(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    """Pad with elements of the array itself; odd reflections are mirrored in the edges' values, too."""
    if options.get("reflect_type", "even") == "odd":
        return _pad_odd(a, widths, mode)
    sources = tuple(
        [(before, _stretches(n, before, after, mode)) for n, (before, after) in zip(a.shape, widths, strict=True)]
    )
    shape = tuple([before + n + after for n, (before, after) in zip(a.shape, widths, strict=True)])
    return _pad_within(a, shape, sources)


def _pad_odd(a: Any, widths: Any, mode: str) -> Any:
    z = copied(a)
    for axis, (before, after) in enumerate(widths):
        if before + after and a.shape[axis] > 1:
            z = _reflect_odd(z, axis, before, after, mode == "symmetric")
        elif before + after:  # one element, which has no other side
            z = _pad_from_within(z, [(before, after) if k == axis else (0, 0) for k in range(a.ndim)], mode, {})
    return z


def _reflect_odd(z: Any, axis: int, before: int, after: int, with_edge: bool) -> Any:
    """Continue each line so that it is symmetric about the points at its ends.

    Both symmetries together make f(x + period) = f(x) + 2 (last - first).
    """
    xp, dtype, n = libraries.namespace(raw(z)), raw(z).real.dtype, z.shape[axis]
    period = 2 * n if with_edge else 2 * n - 2
    x = np.concatenate([np.arange(-before, 0), np.arange(n, n + after)])
    turns, rest = np.divmod(x, period)
    mirrored = rest >= n
    places = np.where(mirrored, period - with_edge - rest, rest)
    sign, of_first, of_last = [
        align_with_axis(xp.asarray(c, dtype=dtype), axis, z.ndim)
        for c in (np.where(mirrored, -1, 1), -2 * turns, 2 * turns + 2 * mirrored)
    ]
    first, last = getitem(z, index_on_axis(axis, slice(0, 1))), getitem(z, index_on_axis(axis, slice(n - 1, n)))
    outside = gather(z, xp.asarray(places), axis) * sign + first * of_first + last * of_last
    left, right = (
        getitem(outside, index_on_axis(axis, slice(0, before))),
        getitem(outside, index_on_axis(axis, slice(before, None))),
    )
    return concatenate([left, z, right], axis)


def _pad_by_ramp(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    ends = _pairs(options.get("end_values", 0), a.ndim)
    z = a
    for k, (before, after) in enumerate(widths):
        left = _ramp(getitem(z, index_on_axis(k, slice(0, 1))), ends[k][0], before, k)
        right = _ramp(getitem(z, index_on_axis(k, slice(z.shape[k] - 1, None))), ends[k][1], after, k)
        z = concatenate([left, z, flip(right, k)], k)
    return z


def _ramp(edge: Any, end: Any, width: int, axis: int) -> Any:
    """Go from the end value, included, to the edge, which is not."""
    xp = libraries.namespace(raw(edge))
    steps = align_with_axis(xp.arange(width, dtype=raw(edge).real.dtype), axis, edge.ndim)
    ramp = (edge - end) / builtins.max(width, 1) * steps + end
    return ramp if ramp.dtype == edge.dtype else as_type(ramp, edge.dtype)


def _median(a: Any, axis: int, keepdims: bool) -> Any:
    """Return the median along an axis; NaN where there is a NaN, which sorting puts last."""
    length = a.shape[axis]
    if not length:
        return mean(a, axis, keepdims=keepdims)
    ordered = sort(a, axis)
    middle = getitem(ordered, index_on_axis(axis, slice((length - 1) // 2, length // 2 + 1)))
    last = getitem(ordered, index_on_axis(axis, slice(length - 1, None)))
    return choose(raw(last) != raw(last), last, mean(middle, axis, keepdims=keepdims))


def _pad_by_statistic(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    statistic = _STATISTICS[mode]
    lengths = _lengths(options.get("stat_length"), a.ndim)
    if mode in ("maximum", "minimum") and any(n == 0 for pair in lengths for n in pair):
        raise ValueError("pad: stat_length of 0 yields no value for padding")
    z = a
    for k, (before, after) in enumerate(widths):
        n = a.shape[k]
        left, right = [n if length is None else builtins.min(length, n) for length in lengths[k]]
        front = statistic(getitem(z, index_on_axis(k, slice(0, left))), k, keepdims=True)
        back = (
            front
            if left == right == n
            else statistic(getitem(z, index_on_axis(k, slice(n - right, None))), k, keepdims=True)
        )
        parts = [(front, before), (z, None), (back, after)]
        z = concatenate([part if width is None else _repeat_edge(part, width, k) for part, width in parts], k)
    return z


def _repeat_edge(part: Any, width: int, axis: int) -> Any:
    return broadcast_to(part, (*part.shape[:axis], width, *part.shape[axis + 1 :]))


def _pad_by_function(function: Callable[..., Any], a: Any, widths: Any, kwargs: dict[str, Any]) -> Any:
    """Let a user's function write the padding into each vector along each axis."""
    z, _ = _surround_with_zeros(a, widths)
    for axis in range(a.ndim):
        for place in np.ndindex(*z.shape[:axis], *z.shape[axis + 1 :]):
            index = (*place[:axis], slice(None), *place[axis:])
            vector = getitem(z, index)
            vector._view_of = ()  # what the function writes to it is assigned below
            function(vector, widths[axis], axis, kwargs)
            setitem(z, index, vector)
    return z


_STATISTICS = MappingProxyType({"maximum": max, "mean": mean, "median": _median, "minimum": min})
# By mode: what pads, and the keywords it takes.
_PADDINGS: MappingProxyType[Any, tuple[Any, tuple[str, ...]]] = MappingProxyType(
    {
        "constant": (_pad_constant, ("constant_values",)),
        "empty": (_pad_empty, ()),
        "edge": (_pad_from_within, ()),
        "wrap": (_pad_from_within, ()),
        "reflect": (_pad_from_within, ("reflect_type",)),
        "symmetric": (_pad_from_within, ("reflect_type",)),
        "linear_ramp": (_pad_by_ramp, ("end_values",)),
        **dict.fromkeys(_STATISTICS, (_pad_by_statistic, ("stat_length",))),
    }
)
