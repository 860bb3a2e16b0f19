"""Pooling over windows: the largest, the mean.

The largest keeps which tap of each window it was, in one byte for all but huge windows, and not its input. Given
these, it is a linear map that picks; the adjoint scatters, and what overlapping windows scatter to one place
adds up. The mean is linear by itself. Each map stands beside its adjoint, so derivatives of any order are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_floating, integer
from gradmgr.nn._functions.windows import Geometry, Layout, as_given, as_planes, geometry_of, new, sizes, working
from gradmgr.ops.convert import lift, narrowed, widened
from gradmgr.ops.join import stack
from gradmgr.ops.reduce import mean

# ---------------------------------------------------------------- blocks of planes

# How many arrays of a result's size are at work beside a block's planes.
_BESIDE = 4


class _Walk:
    """The blocks of planes that a call goes through, each as an image of one channel, and their buffer."""

    def __init__(self, geometry: Geometry, count: int, dtype: Any, fill: float, *arrays: Any) -> None:
        self.layout = Layout(geometry)
        phases = len(self.layout.phases)
        (self.images, self.lines), self.blocks = self.layout.blocks(count, phases + _BESIDE, *arrays)
        self.planes = self.layout.planes(1, self.images, dtype, fill, *arrays)
        self.apart = phases == len(self.layout.taps)  # no element is in two windows
        self.height = geometry.out[0]

    def reading(self, x: Any) -> Iterator[tuple[slice, slice, Iterator[Any]]]:
        """Give each block's planes and lines, and what each tap reads of x."""
        for some, part in self.blocks:
            if part.start == 0:
                self.layout.put(self.planes, x[some])
            yield some, part, self.layout.runs(self.planes, some.stop - some.start, part)

    def writing(self, z: Any) -> Iterator[tuple[slice, slice, Iterator[Any]]]:
        """Give each block's planes and lines, and for each tap where to add what belongs into z."""
        for some, part in self.blocks:
            if part.start == 0 and not self.apart:
                for plane in self.planes.values():
                    plane[...] = 0
            yield some, part, self.layout.runs(self.planes, some.stop - some.start, part)
            if part.stop == self.height:
                self.layout.get(self.planes, z[some])

    def room(self, dtype: Any, *arrays: Any) -> Any:
        """Make zeros for what has the result's shape, with gaps as the runs have them."""
        return new("zeros", (1, self.images, self.lines, self.layout.row), dtype, *arrays)

    def spaced(self, g: Any, room: Any, some: slice, part: slice) -> Any:
        """Copy a block of what has the result's shape into such a room."""
        images, lines = some.stop - some.start, part.stop - part.start
        room = room[:, :images, :lines]
        room[..., : self.layout.out[1]] = g[some, :, part].transpose(1, 0, 2, 3)
        return room.reshape((1, images, lines * self.layout.row))

    def keep(self, z: Any, runs: Any, some: slice, part: slice) -> None:
        """Copy a block of runs to where it belongs in z."""
        images = some.stop - some.start
        z[some, :, part] = self.layout.of_result(runs.reshape((1, runs.shape[1] * runs.shape[2])), images, part)


def _planes_of(x: Any) -> Any:
    """View each channel of each image as an image of its own."""
    return x.reshape((x.shape[0] * x.shape[1], 1, *x.shape[2:]))


def _images_of(x: Any, like: Any) -> Any:
    return x.reshape((*like.shape[:2], *x.shape[2:]))


# ---------------------------------------------------------------- the largest


def _only(a: Any, mask: Any, out: Any = None) -> Any:
    """Return a where the mask is true, zeros elsewhere, of NaN too: by its bits, as a mask at random misleads where."""
    if a.__class__ is np.ndarray is mask.__class__ and a.itemsize in (2, 4, 8):
        bits = np.dtype(f"i{a.itemsize}")
        ones = np.negative(mask.view(np.int8)).astype(bits)
        return np.bitwise_and(a.view(bits), ones, out=ones if out is None else out.view(bits)).view(a.dtype)
    found = np.where(mask, a, np.zeros((), a.dtype)[()])
    if out is not None:
        out[...] = found
    return found


def _first_taps(geometry: Geometry, dtype: Any) -> Any:
    """Return for each window the first tap that is not in the padding."""
    facts = zip(geometry.out, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    down, right = (np.maximum(0, -((np.arange(n) * s - p) // d)) for n, s, p, d in facts)
    return (down[:, None] * geometry.kernel[1] + right).astype(dtype)


def _largest_of(runs: Iterator[Any], tap: Any, careful: bool) -> tuple[Any, Any]:
    """Return the largest of what the taps read, and which tap it is, given the first; careful finds a NaN's, too."""
    best, small = next(runs).copy(), tap.dtype.type
    ours, tap_too = (best, tap) if best.__class__ is np.ndarray is tap.__class__ else (None, None)
    for k, run in enumerate(runs, 1):
        larger = run > best
        if careful:
            larger = larger | (run != run)
        best = np.maximum(best, run, out=ours)
        # Taps come in order, so that the last that was larger is the highest: no branch for each element.
        tap = np.maximum(tap, larger * small(k), out=tap_too)
    return best, tap


def _max_pool(x: Any, geometry: Geometry) -> tuple[Any, Any]:
    """Return the largest of each window, NaN where there is one, and which tap it is: the first of equal ones."""
    planes, taps = _planes_of(x), math.prod(geometry.kernel)
    small = np.dtype(np.uint8 if taps <= 256 else np.int32)
    walk = _Walk(geometry, len(planes), working(x.dtype), -math.inf, x)
    z = new("empty", (len(planes), 1, *geometry.out), x.dtype, x)
    which = new("zeros", z.shape, small, x)
    if any(geometry.padding):
        which[...] = libraries.root(x).asarray(_first_taps(geometry, small))
    room, is_plain = walk.room(small, x), x.__class__ is np.ndarray
    for some, part, runs in walk.reading(planes):
        best, tap = _largest_of(runs, walk.spaced(which, room, some, part), not is_plain)
        if is_plain and np.isnan(best).any():
            again = walk.layout.runs(walk.planes, some.stop - some.start, part)
            best, tap = _largest_of(again, walk.spaced(which, room, some, part), True)
        walk.keep(z, best, some, part)
        walk.keep(which, tap, some, part)
    return _images_of(z, x), _images_of(which, x)


def _pick_kernel(x: Any, which: Any, geometry: Geometry) -> Any:
    """Return of each window the tap that is named."""
    planes, named = _planes_of(x), _planes_of(which)
    walk = _Walk(geometry, len(planes), x.dtype, 0, x, which)
    z = new("empty", named.shape, x.dtype, x, which)
    room = walk.room(which.dtype, which)
    for some, part, runs in walk.reading(planes):
        tap = walk.spaced(named, room, some, part)
        total = _only(next(runs), tap == 0)
        for k, run in enumerate(runs, 1):
            total = total + _only(run, tap == k)
        walk.keep(z, total, some, part)
    return _images_of(z, x)


def _scatter_kernel(g: Any, which: Any, geometry: Geometry) -> Any:
    """Add each number to the tap of its window that is named."""
    planes, named, work = _planes_of(g), _planes_of(which), working(g.dtype)
    walk = _Walk(geometry, len(planes), work, 0, g, which)
    shape = (len(planes), 1, *geometry.size)
    z = new("empty" if walk.layout.covers else "zeros", shape, g.dtype, g, which)
    rooms = walk.room(work, g), walk.room(which.dtype, which)
    for some, part, runs in walk.writing(z):
        numbers, tap = (walk.spaced(a, room, some, part) for a, room in zip((planes, named), rooms, strict=True))
        for k, run in enumerate(runs):
            if walk.apart:
                _only(numbers, tap == k, run)
            else:
                run += _only(numbers, tap == k)
    return _images_of(z, g)


_pick: Function = linear("nn.max_pool2d_pick", _pick_kernel, lambda g, which, geometry: _scatter(g, which, geometry))
_scatter: Function = linear(
    "nn.max_pool2d_scatter", _scatter_kernel, lambda g, which, geometry: _pick(g, which, geometry)
)
_largest: Function = several(
    "nn.max_pool2d",
    _max_pool,
    ("out", "which"),
    vjp=lambda g, which, geometry: None if g[0] is None else _scatter(g[0], raw(which), geometry),
    jvp=lambda t, which, geometry: (_pick(t, raw(which), geometry), None),
)

# ---------------------------------------------------------------- the mean


def _counts(geometry: Geometry, include_padding: bool) -> Any:
    """Return how many numbers are in each window: one integer, or an array where windows differ."""
    along = []
    for n, k, m, s, p in zip(*geometry[:5], strict=True):
        begin = np.arange(m) * s - p
        end = np.minimum(begin + k, n + p)
        along.append(end - begin if include_padding else np.minimum(end, n) - np.maximum(begin, 0))
    down, right = along
    alike = (down == down[0]).all() and (right == right[0]).all()
    return int(down[0] * right[0]) if alike else down[:, None] * right


def _divided(a: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    """Divide what has the result's shape by the size of the windows."""
    by = _counts(geometry, include_padding) if divisor is None else divisor
    return a / (by if isinstance(by, int) else libraries.root(a).asarray(by.astype(a.dtype)))


def _is_whole(geometry: Geometry) -> bool:
    """Tell whether there is one window, which is the plane."""
    return geometry.kernel == geometry.size and geometry.out == (1, 1) and not any(geometry.padding)


def _mean_kernel(x: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    work = working(x.dtype)
    if _is_whole(geometry):
        total = libraries.sum_over(x.astype(work, copy=False), (2, 3), True)
    else:
        planes = _planes_of(x)
        walk = _Walk(geometry, len(planes), work, 0, x)
        made = new("empty", (len(planes), 1, *geometry.out), work, x)
        for some, part, runs in walk.reading(planes):
            sums = next(runs).copy()
            for run in runs:
                sums += run
            walk.keep(made, sums, some, part)
        total = _images_of(made, x)
    return _divided(total, geometry, divisor, include_padding).astype(x.dtype, copy=False)


def _spread_kernel(g: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    """Give each number, divided, to all of its window: the adjoint of the mean."""
    work = working(g.dtype)
    shares = _divided(g.astype(work, copy=False), geometry, divisor, include_padding)
    if _is_whole(geometry):
        z = new("empty", (*g.shape[:2], *geometry.size), g.dtype, g)
        z[...] = shares
        return z
    planes = _planes_of(shares)
    walk = _Walk(geometry, len(planes), work, 0, g)
    z = new("empty" if walk.layout.covers else "zeros", (len(planes), 1, *geometry.size), g.dtype, g)
    room = walk.room(work, g)
    for some, part, runs in walk.writing(z):
        numbers = walk.spaced(planes, room, some, part)
        for run in runs:
            if walk.apart:
                run[...] = numbers
            else:
                run += numbers
    return _images_of(z, g)


_mean: Function = linear(
    "nn.avg_pool2d",
    _mean_kernel,
    lambda g, geometry, divisor, include_padding: _spread(g, geometry, divisor, include_padding),
)
_spread: Function = linear(
    "nn.avg_pool2d_spread",
    _spread_kernel,
    lambda g, geometry, divisor, include_padding: _mean(g, geometry, divisor, include_padding),
)

# ---------------------------------------------------------------- the doors


def _windows(
    asked: str, axes: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Geometry:
    """Read and check the arguments that say where windows lie."""
    check_floating(asked, input=x)
    plane = "height, width" if axes == 2 else "length"
    if x.ndim not in (axes + 1, axes + 2) or 0 in x.shape[-axes - 1 :]:
        raise errors.ShapeError(
            f"{asked} takes an input of shape (batch, channels, {plane}), or without the batch, with at least one "
            f"channel and number in each; found {x.shape}"
        )
    kernel = sizes(kernel_size, 1, axes, "kernel_size", asked)
    steps = kernel if stride is None else sizes(stride, 1, axes, "stride", asked)
    zeros, gaps = sizes(padding, 0, axes, "padding", asked), sizes(dilation, 1, axes, "dilation", asked)
    spans = tuple([d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True)])
    if any(2 * p > k for p, k in zip(zeros, kernel, strict=True)):
        raise errors.ShapeError(
            f"{asked}: padding may be at most half of kernel_size; found padding {padding!r}, kernel_size "
            f"{kernel_size!r}"
        )
    size = x.shape[-axes:]
    out = tuple([_count(*facts, ceil_mode) for facts in zip(size, spans, steps, zeros, strict=True)])
    if any(n < 1 for n in out):
        raise errors.ShapeError(
            f"{asked}: windows of {spans} do not fit in planes of {size}; input {x.shape}, kernel_size "
            f"{kernel_size!r}, padding {padding!r}, dilation {dilation!r}"
        )
    if any(_has_empty(*facts) for facts in zip(size, kernel, out, steps, zeros, gaps, strict=True)):
        raise errors.ShapeError(
            f"{asked}: a window would have all of its taps outside of the plane; input {x.shape}, kernel_size "
            f"{kernel_size!r}, stride {stride!r}, padding {padding!r}, dilation {dilation!r}"
        )
    return geometry_of(size, kernel, out, steps, zeros, gaps)


def _has_empty(size: int, kernel: int, out: int, stride: int, padding: int, dilation: int) -> bool:
    """Tell whether some window has no tap in its axis, which only dilation can bring about."""
    begins = np.arange(out) * stride - padding
    first = np.maximum(0, -(begins // dilation))
    return bool((first >= kernel).any() or (begins + first * dilation >= size).any())


def _count(size: int, span: int, step: int, padding: int, ceil_mode: bool) -> int:
    """Return how many windows there are; one more with ceil_mode, where it begins within plane or padding before it."""
    over = size + 2 * padding - span
    count = -(-over // step) + 1 if ceil_mode else over // step + 1
    return count - 1 if ceil_mode and (count - 1) * step >= size + padding else count


def _indices(which: Any, geometry: Geometry) -> Any:
    """Return where in its plane, flattened, the tap of each window is."""
    down, right = which // geometry.kernel[1], which % geometry.kernel[1]
    xp, place = libraries.root(which), []
    for tap, n, s, p, d in zip((down, right), geometry.out, *geometry[3:6], strict=True):
        place.append((xp.arange(n) * s - p).reshape((-1, 1) if tap is down else (1, -1)) + tap.astype(np.int64) * d)
    return place[0] * geometry.size[1] + place[1]


def _max_pooled(asked: str, axes: int, x: Any, geometry: Geometry, return_indices: bool) -> Any:
    z, which = _largest(as_planes(x, axes), geometry)
    batched = x.ndim == axes + 2
    z = as_given(z, axes, batched)
    if not return_indices:
        return z
    indices = as_given(_indices(raw(which), geometry), axes, batched)
    return z, wrap(indices) if isinstance(z, Tensor) else indices


def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest number of each window of a line, as max_pool2d for planes.

    Args:
        input: (batch, channels, length), or without the batch.
        kernel_size: how many numbers are in a window.
        stride: how far windows are apart; by default, kernel_size.
        padding: how much of the first and last window may be outside of the line.
        dilation: how far the numbers of a window are apart.
        ceil_mode: whether to add a window for what is left at the end.
        return_indices: whether to return where each number was, too.

    Returns:
        (batch, channels, windows), in the input's dtype; with return_indices, this and int64 indices.

    Raises:
        ShapeError, TypeError: as max_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import max_pool1d
    >>> max_pool1d(np.array([[1.0, 5.0, 2.0, 3.0]]), 2).tolist()
    [[5.0, 3.0]]
    """
    x = lift(input)
    geometry = _windows("max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pooled("max_pool1d", 1, x, geometry, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest number of each window.

    The gradient goes to the first of equal numbers, row by row; a NaN in a window is its result. What is kept for
    the backward pass is one byte for each window of up to 256 numbers.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        kernel_size: rows and columns of a window; here and below an integer, or a pair.
        stride: how far windows are apart; by default, kernel_size.
        padding: how much of the first and last windows may be outside of the plane, where nothing is larger than
            anything; at most half of kernel_size.
        dilation: how far the numbers of a window are apart.
        ceil_mode: whether to add windows for what is left at the ends.
        return_indices: whether to return where each number was, too, counted row by row in its plane.

    Returns:
        (batch, channels, rows of windows, columns of windows), in the input's dtype; with return_indices, this
        and int64 indices.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is no integer; the dtype is not real floating (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn.functional import max_pool2d
    >>> max_pool2d(np.array([[[1.0, 2.0, 0.0], [4.0, 3.0, 5.0]]]), 2, stride=1).tolist()
    [[[4.0, 5.0]]]
    """
    x = lift(input)
    geometry = _windows("max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pooled("max_pool2d", 2, x, geometry, return_indices)


def _mean_pooled(axes: int, x: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    z = _mean(as_planes(x, axes), geometry, divisor, bool(include_padding))
    return as_given(z, axes, x.ndim == axes + 2)


def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Return the mean of each window of a line, as avg_pool2d for planes.

    Args:
        input: (batch, channels, length), or without the batch.
        kernel_size: how many numbers are in a window.
        stride: how far windows are apart; by default, kernel_size.
        padding: how many zeros to put before and behind a line.
        ceil_mode: whether to add a window for what is left at the end.
        count_include_pad: whether the zeros count.

    Returns:
        (batch, channels, windows), in the input's dtype.

    Raises:
        ShapeError, TypeError: as avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import avg_pool1d
    >>> avg_pool1d(np.array([[1.0, 5.0, 2.0, 3.0]]), 2).tolist()
    [[3.0, 2.5]]
    """
    x = lift(input)
    geometry = _windows("avg_pool1d", 1, x, kernel_size, stride, padding, 1, ceil_mode)
    return _mean_pooled(1, x, geometry, None, count_include_pad)


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window. Halves are summed in float32.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        kernel_size: rows and columns of a window; here and below an integer, or a pair.
        stride: how far windows are apart; by default, kernel_size.
        padding: how many zeros to put on each side of a plane; at most half of kernel_size.
        ceil_mode: whether to add windows for what is left at the ends; what is beyond the padding does not count.
        count_include_pad: whether the zeros count.
        divisor_override: by what to divide the sums instead.

    Returns:
        (batch, channels, rows of windows, columns of windows), in the input's dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is no integer; the dtype is not real floating (DtypeError).
        ValueError: divisor_override is 0.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import avg_pool2d
    >>> avg_pool2d(np.array([[[1.0, 2.0], [4.0, 5.0]]]), 2).tolist()
    [[[3.0]]]
    """
    x = lift(input)
    geometry = _windows("avg_pool2d", 2, x, kernel_size, stride, padding, 1, ceil_mode)
    divisor = None if divisor_override is None else integer(divisor_override, "divisor_override", "avg_pool2d")
    if divisor == 0:
        raise ValueError("avg_pool2d: divisor_override must not be 0")
    return _mean_pooled(2, x, geometry, divisor, count_include_pad)


def _evenly(x: Any, axis: int, parts: int) -> Any:
    """Average an axis over windows that cover it evenly, each from the floor of its begin to the ceiling of its end."""
    length, free = x.shape[axis], (slice(None),) * (x.ndim + axis)
    windows = [slice(k * length // parts, -(-(k + 1) * length // parts)) for k in range(parts)]
    return stack([mean(x[(*free, window)], axis=axis) for window in windows], axis=axis)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return the means of so many windows as are asked for, spread evenly. Halves are summed in float32.

    Where the numbers of windows divide those of rows and columns, this is avg_pool2d; else neighbours overlap.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        output_size: rows and columns of windows, an integer or a pair; None in a pair keeps the input's number.

    Returns:
        (batch, channels, *output_size), in the input's dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is no integer; the dtype is not real floating (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn.functional import adaptive_avg_pool2d
    >>> adaptive_avg_pool2d(np.array([[[1.0, 2.0], [4.0, 5.0]]]), (1, None)).tolist()
    [[[2.5, 3.5]]]
    """
    x = lift(input)
    _windows("adaptive_avg_pool2d", 2, x, 1, None, 0, 1, False)  # which checks the input
    height, width = x.shape[-2:]
    if isinstance(output_size, (tuple, list)) and len(output_size) == 2:
        output_size = tuple([n if m is None else m for m, n in zip(output_size, (height, width), strict=True)])
    rows, columns = sizes(output_size, 1, 2, "output_size", "adaptive_avg_pool2d")
    if height % rows == 0 and width % columns == 0:
        return avg_pool2d(x, (height // rows, width // columns))
    return narrowed(_evenly(_evenly(widened(x), -2, rows), -1, columns), x.dtype)
