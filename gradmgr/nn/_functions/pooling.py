"""Max and average pooling over windows.

Max pooling keeps for its rules which tap of each window was the largest, in one byte for windows of up to 256 numbers,
and not its input. Given these taps, it is a linear map that picks elements; its adjoint scatters, and adds where
windows overlap. Average pooling is linear itself. Each linear map is declared with its adjoint, so derivatives of all
orders are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, native_kernels
from gradmgr._arrays.memory_order import with_channels_last
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_floating, integer
from gradmgr.nn._functions.windows import (
    Geometry,
    accumulation_dtype,
    as_planes,
    geometry_of,
    new_array,
    restore_shape,
    sizes,
)
from gradmgr.ops.convert import lift, narrow_to, widen_half
from gradmgr.ops.join import stack
from gradmgr.ops.reduce import mean

# ---------------------------------------------------------------- blocks of planes

# Arrays of the result's size that a block uses besides its planes.
_MORE_ARRAYS = 4


class _BlockLoop:
    """A loop over the blocks of planes of a call, each plane as an image of one channel, and their buffer."""

    def __init__(self, geometry: Geometry, count: int, dtype: Any, fill: float, *arrays: Any) -> None:
        self.layout = geometry.layout
        phases = len(self.layout.phases)
        (self.images, self.lines), self.blocks = self.layout.blocks(count, phases + _MORE_ARRAYS, *arrays)
        self.planes = self.layout.planes(1, self.images, dtype, fill, *arrays)
        self.is_disjoint = phases == len(self.layout.taps)  # no element is in two windows
        self.height = geometry.out[0]

    def read_blocks(self, x: Any) -> Iterator[tuple[slice, slice, Iterator[Any]]]:
        """Yield the planes and lines of each block, and the elements of x that each tap reads."""
        for some, part in self.blocks:
            if part.start == 0:
                self.layout.put(self.planes, x[some])
            yield some, part, self.layout.runs(self.planes, some.stop - some.start, part)

    def write_blocks(self, z: Any) -> Iterator[tuple[slice, slice, Iterator[Any]]]:
        """Yield the planes and lines of each block, and for each tap the memory to add its part of z to."""
        for some, part in self.blocks:
            if part.start == 0 and not self.is_disjoint:
                for plane in self.planes.values():
                    plane[...] = 0
            yield some, part, self.layout.runs(self.planes, some.stop - some.start, part)
            if part.stop == self.height:
                self.layout.get(self.planes, z[some])

    def workspace(self, dtype: Any, *arrays: Any) -> Any:
        """Return zeros in the result's shape, with gaps between rows as in the runs."""
        return new_array("zeros", (1, self.images, self.lines, self.layout.row), dtype, *arrays)

    def copy_with_gaps(self, g: Any, workspace: Any, some: slice, part: slice) -> Any:
        """Copy a block of an array of the result's shape into such a workspace."""
        images, lines = some.stop - some.start, part.stop - part.start
        workspace = workspace[:, :images, :lines]
        workspace[..., : self.layout.out[1]] = g[some, :, part].transpose(1, 0, 2, 3)
        return workspace.reshape((1, images, lines * self.layout.row))

    def store(self, z: Any, runs: Any, some: slice, part: slice) -> None:
        """Copy a block of runs to its position in z."""
        images = some.stop - some.start
        z[some, :, part] = self.layout.of_result(runs.reshape((1, runs.shape[1] * runs.shape[2])), images, part)


def _planes_of(x: Any) -> Any:
    """View each channel of each image as an image of its own."""
    return x.reshape((x.shape[0] * x.shape[1], 1, *x.shape[2:]))


def _images_of(x: Any, like: Any) -> Any:
    return x.reshape((*like.shape[:2], *x.shape[2:]))


# ---------------------------------------------------------------- max pooling


def _where_or_zero(a: Any, mask: Any, out: Any = None) -> Any:
    """Return `a` where the mask is True, else 0; on its bits, as branches of numpy.where are mispredicted."""
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
    axes = zip(geometry.out, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    down, right = (np.maximum(0, -((np.arange(n) * s - p) // d)) for n, s, p, d in axes)
    return (down[:, None] * geometry.kernel[1] + right).astype(dtype)


def _largest_of(runs: Iterator[Any], tap: Any, careful: bool) -> tuple[Any, Any]:
    """Return the largest of the elements that the taps read, and its tap; with careful also the tap of a NaN."""
    best, small = next(runs).copy(), tap.dtype.type
    best_out, tap_out = (best, tap) if best.__class__ is np.ndarray is tap.__class__ else (None, None)
    for k, run in enumerate(runs, 1):
        larger = run > best
        if careful:
            larger = larger | (run != run)
        best = np.maximum(best, run, out=best_out)
        # Taps come in order, so the last tap with a larger element is the maximum: no branch per element.
        tap = np.maximum(tap, larger * small(k), out=tap_out)
    return best, tap


def _find_kernel(name: str, x: Any, geometry: Geometry) -> Any:
    """Return a kernel of gradmgr-native, which keeps the number of a tap in a byte; None if there is none."""
    return native_kernels.find(name, x) if math.prod(geometry.kernel) <= 256 else None


def _lengths_and_numbers(geometry: Geometry) -> tuple[Any, ...]:
    """Return what a kernel is given of windows."""
    numbers = map(float, (*geometry.stride, *geometry.padding, *geometry.dilation))
    return *geometry.size, *geometry.out, *geometry.kernel, *numbers


def _size_of_scratch(geometry: Geometry) -> int:
    """Return how many numbers the kernel of max_pool2d needs besides its results; `native/src` says for what."""
    height, stride, reach = geometry.size[0], geometry.stride[1], (geometry.kernel[1] - 1) * geometry.dilation[1]
    columns = geometry.out[1]
    line = stride * (columns + reach // stride + native_kernels.LANES)
    return 2 * height * line + 3 * (height * columns + native_kernels.LANES)


def _max_pool_natively(x: Any, geometry: Geometry) -> Any:
    """Return what `_max_pool` does, by a kernel of gradmgr-native; None if there is none."""
    kernel = _find_kernel("max_pool2d", x, geometry)
    if kernel is None:
        return None
    if (last := with_channels_last(x)) is not None:
        return _max_pool_columns(x, last, geometry)
    z = native_kernels.empty((*x.shape[:2], *geometry.out), x)
    which = new_array("empty", z.shape, np.uint8, x)
    scratch = native_kernels.empty((_size_of_scratch(geometry),), x)
    given = native_kernels.contiguous(x), z, which, scratch
    kernel(*given, x.shape[0] * x.shape[1], *_lengths_and_numbers(geometry))
    return z, which


def _max_pool_columns(x: Any, last: Any, geometry: Geometry) -> Any:
    """Return the same with the channels last, as they are in x; `last` is the view (batch, rows, columns, channels)."""
    shape = (*x.shape[:2], *geometry.out)
    z, which = native_kernels.empty_images(shape, x.dtype, x), native_kernels.empty_images(shape, np.uint8, x)
    kernel = _kernel("max_pool2d_columns", x)
    kernel(last, *map(_channels_last, (z, which)), *_lengths_of_columns(x, geometry))
    return z, which


def _kernel(name: str, x: Any) -> Any:
    """Return a kernel, which there is, as another one was found."""
    return native_kernels.find(name, x)


def _channels_last(x: Any) -> Any:
    """Return a view, or a copy in that order, of images as (batch, rows, columns, channels)."""
    return native_kernels.contiguous(x.transpose(0, 2, 3, 1))


def _lengths_of_columns(x: Any, geometry: Geometry) -> tuple[Any, ...]:
    """Return what a kernel for images with the channels last is given of them and of windows."""
    lengths = _lengths_and_numbers(geometry)
    return x.shape[0], *lengths[:6], x.shape[1], *lengths[6:]


@libraries.captured_as_one(unless=lambda x, geometry: _find_kernel("max_pool2d", x, geometry) is not None)
def _max_pool(x: Any, geometry: Geometry) -> tuple[Any, Any]:
    """Return the largest of each window, or NaN if it holds one, and its tap: the first of equal ones."""
    if (found := _max_pool_natively(x, geometry)) is not None:
        return found  # type: ignore[no-any-return]  # two arrays
    planes, taps = _planes_of(x), math.prod(geometry.kernel)
    small = np.dtype(np.uint8 if taps <= 256 else np.int32)
    loop = _BlockLoop(geometry, len(planes), accumulation_dtype(x.dtype), -math.inf, x)
    z = new_array("empty", (len(planes), 1, *geometry.out), x.dtype, x)
    which = new_array("zeros", z.shape, small, x)
    if any(geometry.padding):
        which[...] = libraries.root(x).asarray(_first_taps(geometry, small))
    workspace, is_plain = loop.workspace(small, x), x.__class__ is np.ndarray
    for some, part, runs in loop.read_blocks(planes):
        best, tap = _largest_of(runs, loop.copy_with_gaps(which, workspace, some, part), not is_plain)
        if is_plain and np.isnan(best).any():
            again = loop.layout.runs(loop.planes, some.stop - some.start, part)
            best, tap = _largest_of(again, loop.copy_with_gaps(which, workspace, some, part), True)
        loop.store(z, best, some, part)
        loop.store(which, tap, some, part)
    return _images_of(z, x), _images_of(which, x)


@libraries.captured_as_one()
def _pick_kernel(x: Any, which: Any, geometry: Geometry) -> Any:
    """Return the element of each window at the given tap."""
    planes, named = _planes_of(x), _planes_of(which)
    loop = _BlockLoop(geometry, len(planes), x.dtype, 0, x, which)
    z = new_array("empty", named.shape, x.dtype, x, which)
    workspace = loop.workspace(which.dtype, which)
    for some, part, runs in loop.read_blocks(planes):
        tap = loop.copy_with_gaps(named, workspace, some, part)
        total = _where_or_zero(next(runs), tap == 0)
        for k, run in enumerate(runs, 1):
            total = total + _where_or_zero(run, tap == k)
        loop.store(z, total, some, part)
    return _images_of(z, x)


def _find_scatter(g: Any, which: Any) -> Any:
    """Return the kernel that scatters; None if there is none."""
    fits = libraries.is_numpy(which) and which.dtype == np.uint8 and which.shape == g.shape
    return native_kernels.find("max_pool2d_vjp", g) if fits else None


@libraries.captured_as_one(unless=lambda g, which, geometry: _find_scatter(g, which) is not None)
def _scatter_kernel(g: Any, which: Any, geometry: Geometry) -> Any:
    """Add each number to the given tap of its window: the adjoint of picking."""
    kernel = _find_scatter(g, which)
    if kernel is not None and with_channels_last(which) is not None:
        made = native_kernels.empty_images((*g.shape[:2], *geometry.size), g.dtype, g, which)
        kernel = _kernel("max_pool2d_columns_vjp", g)
        kernel(*map(_channels_last, (g, which, made)), *_lengths_of_columns(g, geometry))
        return made
    if kernel is not None:
        made = native_kernels.empty((*g.shape[:2], *geometry.size), g, which)
        given = native_kernels.contiguous(g), native_kernels.contiguous(which), made
        kernel(*given, g.shape[0] * g.shape[1], *_lengths_and_numbers(geometry))
        return made
    planes, named, work = _planes_of(g), _planes_of(which), accumulation_dtype(g.dtype)
    loop = _BlockLoop(geometry, len(planes), work, 0, g, which)
    shape = (len(planes), 1, *geometry.size)
    z = new_array("empty" if loop.layout.covers else "zeros", shape, g.dtype, g, which)
    workspaces = loop.workspace(work, g), loop.workspace(which.dtype, which)
    for some, part, runs in loop.write_blocks(z):
        numbers, tap = (
            loop.copy_with_gaps(a, workspace, some, part)
            for a, workspace in zip((planes, named), workspaces, strict=True)
        )
        for k, run in enumerate(runs):
            if loop.is_disjoint:
                _where_or_zero(numbers, tap == k, run)
            else:
                run += _where_or_zero(numbers, tap == k)
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

# ---------------------------------------------------------------- average pooling


def _are_alike(geometry: Geometry, include_padding: bool) -> bool:
    """Tell whether all windows count all of their taps, by their first and last ones: as most do, in plain numbers."""
    for n, k, m, s, p in zip(*geometry[:5], strict=True):
        if (m - 1) * s + k > n + (2 * p if include_padding else p) or (p and not include_padding):
            return False
    return True


def _window_sizes(geometry: Geometry, include_padding: bool) -> Any:
    """Return the number of elements of each window: an integer, or an array where windows differ."""
    if _are_alike(geometry, include_padding):
        return math.prod(geometry.kernel)
    along = []
    for n, k, m, s, p in zip(*geometry[:5], strict=True):
        begin = np.arange(m) * s - p
        end = np.minimum(begin + k, n + p)
        along.append(end - begin if include_padding else np.minimum(end, n) - np.maximum(begin, 0))
    down, right = along
    alike = (down == down[0]).all() and (right == right[0]).all()
    return int(down[0] * right[0]) if alike else down[:, None] * right


def _divide(a: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    """Divide an array of the result's shape by the sizes of the windows."""
    by = _window_sizes(geometry, include_padding) if divisor is None else divisor
    return a / (by if isinstance(by, int) else libraries.root(a).asarray(by.astype(a.dtype)))


def _is_whole(geometry: Geometry) -> bool:
    """Tell whether the only window is the whole plane."""
    return geometry.kernel == geometry.size and geometry.out == (1, 1) and not any(geometry.padding)


def _find_kernel_of_means(name: str, x: Any, geometry: Geometry) -> Any:
    """Return a kernel of gradmgr-native; None if there is none."""
    return None if _is_whole(geometry) else native_kernels.find(name, x)


def _has_kernel(x: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> bool:
    return _find_kernel_of_means("avg_pool2d", x, geometry) is not None


def _divisors(geometry: Geometry, divisor: int | None, include_padding: bool, dtype: Any) -> Any:
    """Return what the sum of each window is divided by, and more such numbers, which a kernel reads after them."""
    sizes_of_windows = _window_sizes(geometry, include_padding) if divisor is None else divisor
    count = math.prod(geometry.out)
    by = np.empty(count + native_kernels.LANES, dtype)
    if isinstance(sizes_of_windows, int):
        by.fill(sizes_of_windows)
    else:
        by[:count].reshape(geometry.out)[...] = sizes_of_windows
        by[count:] = 1
    return by


def _run_natively(
    name: str, x: Any, made: tuple[int, ...], geometry: Geometry, divisor: int | None, include_padding: bool
) -> Any:
    """Return what a kernel makes of x, the images or cotangents of the means; in planes of the shape `made`."""
    by = _divisors(geometry, divisor, include_padding, x.dtype)
    if (last := with_channels_last(x)) is not None:
        z = native_kernels.empty_images((*x.shape[:2], *made), x.dtype, x)
        kernel = _kernel(name.replace("2d", "2d_columns"), x)
        kernel(last, by, _channels_last(z), *_lengths_of_columns(x, geometry))
        return z
    z, kernel = native_kernels.empty((*x.shape[:2], *made), x), _kernel(name, x)
    scratch = native_kernels.empty((_size_of_scratch_of_means(geometry),), x)
    lengths = x.shape[0] * x.shape[1], *geometry.size, *geometry.out, *geometry.kernel
    numbers = map(float, (*geometry.stride, *geometry.padding))
    kernel(native_kernels.contiguous(x), by, scratch, z, *lengths, *numbers)
    return z


def _size_of_scratch_of_means(geometry: Geometry) -> int:
    """Return how many numbers both kernels need besides their results; `native/src` says for what."""
    lanes, (rows, columns), stride = native_kernels.LANES, geometry.out, geometry.stride[1]
    slots = max(columns, -(-(geometry.padding[1] + geometry.size[1]) // stride)) + geometry.kernel[1] + 3 * lanes
    return (rows + 1) * (slots + 2 * (slots * stride + lanes)) + 2 * lanes


@libraries.captured_as_one(unless=_has_kernel)
def _mean_kernel(x: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    if _find_kernel_of_means("avg_pool2d", x, geometry) is not None:
        return _run_natively("avg_pool2d", x, geometry.out, geometry, divisor, include_padding)
    work = accumulation_dtype(x.dtype)
    if _is_whole(geometry):
        total = libraries.sum_over(x.astype(work, copy=False), (2, 3), True)
    else:
        planes = _planes_of(x)
        loop = _BlockLoop(geometry, len(planes), work, 0, x)
        made = new_array("empty", (len(planes), 1, *geometry.out), work, x)
        for some, part, runs in loop.read_blocks(planes):
            sums = next(runs).copy()
            for run in runs:
                sums += run
            loop.store(made, sums, some, part)
        total = _images_of(made, x)
    return _divide(total, geometry, divisor, include_padding).astype(x.dtype, copy=False)


@libraries.captured_as_one(unless=_has_kernel)
def _mean_adjoint_kernel(g: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    """Add each number, divided by the window's size, to all elements of its window: the adjoint of the mean."""
    if _find_kernel_of_means("avg_pool2d_vjp", g, geometry) is not None:
        return _run_natively("avg_pool2d_vjp", g, geometry.size, geometry, divisor, include_padding)
    work = accumulation_dtype(g.dtype)
    shares = _divide(g.astype(work, copy=False), geometry, divisor, include_padding)
    if _is_whole(geometry):
        z = new_array("empty", (*g.shape[:2], *geometry.size), g.dtype, g)
        z[...] = shares
        return z
    planes = _planes_of(shares)
    loop = _BlockLoop(geometry, len(planes), work, 0, g)
    z = new_array("empty" if loop.layout.covers else "zeros", (len(planes), 1, *geometry.size), g.dtype, g)
    workspace = loop.workspace(work, g)
    for some, part, runs in loop.write_blocks(z):
        numbers = loop.copy_with_gaps(planes, workspace, some, part)
        for run in runs:
            if loop.is_disjoint:
                run[...] = numbers
            else:
                run += numbers
    return _images_of(z, g)


_mean: Function = linear(
    "nn.avg_pool2d",
    _mean_kernel,
    lambda g, geometry, divisor, include_padding: _mean_adjoint(g, geometry, divisor, include_padding),
)
_mean_adjoint: Function = linear(
    "nn.avg_pool2d_spread",
    _mean_adjoint_kernel,
    lambda g, geometry, divisor, include_padding: _mean(g, geometry, divisor, include_padding),
)

# ---------------------------------------------------------------- public functions


class Windows(NamedTuple):
    """The windows of a pooling function, each attribute by axis; `out` is how many there are."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def check_windows(
    asked: str, axes: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Windows:
    """Check the arguments of a pooling function and return its windows."""
    check_floating(asked, input=x)
    plane = ("length", "height, width", "depth, height, width")[axes - 1]
    if x.ndim not in (axes + 1, axes + 2) or 0 in x.shape[-axes - 1 :]:
        raise errors.ShapeError(
            f"{asked} takes an input of shape (batch, channels, {plane}), or without the batch, with at least one "
            f"channel and number in each; found {x.shape}"
        )
    kernel = sizes(kernel_size, 1, axes, "kernel_size", asked)
    steps = kernel if stride is None else sizes(stride, 1, axes, "stride", asked)
    zeros, gaps = sizes(padding, 0, axes, "padding", asked), sizes(dilation, 1, axes, "dilation", asked)
    are_dilated = max(gaps) > 1
    spans = tuple([d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True)]) if are_dilated else kernel
    if any(zeros) and any(2 * p > k for p, k in zip(zeros, kernel, strict=True)):
        raise errors.ShapeError(
            f"{asked}: padding may be at most half of kernel_size; found padding {padding!r}, kernel_size "
            f"{kernel_size!r}"
        )
    size = x.shape[-axes:]
    out = tuple([_window_count(*axis, ceil_mode) for axis in zip(size, spans, steps, zeros, strict=True)])
    if min(out) < 1:
        raise errors.ShapeError(
            f"{asked}: windows of {spans} do not fit in planes of {size}; input {x.shape}, kernel_size "
            f"{kernel_size!r}, padding {padding!r}, dilation {dilation!r}"
        )
    along_axes = zip(size, kernel, out, steps, zeros, gaps, strict=True)
    if are_dilated and any(_has_empty(*axis) for axis in along_axes):
        raise errors.ShapeError(
            f"{asked}: a window would have all of its taps outside of the plane; input {x.shape}, kernel_size "
            f"{kernel_size!r}, stride {stride!r}, padding {padding!r}, dilation {dilation!r}"
        )
    return Windows(size, kernel, out, steps, zeros, gaps)


def _windows(asked: str, axes: int, x: Any, *settings: Any) -> Geometry:
    """Check the arguments, those of `check_windows`, and return the geometry of the windows."""
    size, kernel, out, stride, padding, dilation = check_windows(asked, axes, x, *settings)
    return geometry_of(size, kernel, out, stride, padding, dilation)


def check_divisor(divisor_override: Any, asked: str) -> int | None:
    """Return a divisor of sums, which is None or an integer other than 0."""
    divisor = None if divisor_override is None else integer(divisor_override, "divisor_override", asked)
    if divisor == 0:
        raise ValueError(f"{asked}: divisor_override must not be 0")
    return divisor


def _has_empty(size: int, kernel: int, out: int, stride: int, padding: int, dilation: int) -> bool:
    """Tell whether a window has no tap inside its axis, which is possible only with dilation."""
    begins = np.arange(out) * stride - padding
    first = np.maximum(0, -(begins // dilation))
    return bool((first >= kernel).any() or (begins + first * dilation >= size).any())


def _window_count(size: int, span: int, step: int, padding: int, ceil_mode: bool) -> int:
    """Return the number of windows; with ceil_mode a last one may reach over the end if it begins before it."""
    over = size + 2 * padding - span
    count = -(-over // step) + 1 if ceil_mode else over // step + 1
    return count - 1 if ceil_mode and (count - 1) * step >= size + padding else count


def _flat_indices(which: Any, geometry: Geometry) -> Any:
    """Return the position of each window's tap in its flattened plane."""
    down, right = which // geometry.kernel[1], which % geometry.kernel[1]
    xp, place = libraries.root(which), []
    for tap, n, s, p, d in zip((down, right), geometry.out, *geometry[3:6], strict=True):
        place.append((xp.arange(n) * s - p).reshape((-1, 1) if tap is down else (1, -1)) + tap.astype(np.int64) * d)
    return place[0] * geometry.size[1] + place[1]


def _apply_max_pool(asked: str, axes: int, x: Any, geometry: Geometry, return_indices: bool) -> Any:
    z, which = _largest(as_planes(x, axes), geometry)
    batched = x.ndim == axes + 2
    z = restore_shape(z, axes, batched)
    if not return_indices:
        return z
    indices = restore_shape(_flat_indices(raw(which), geometry), axes, batched)
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
        kernel_size: the length of a window.
        stride: the distance between windows; by default kernel_size.
        padding: how many positions of the first and last window may lie outside of the line.
        dilation: the distance between the numbers of a window.
        ceil_mode: whether to add a window for the elements left over at the end.
        return_indices: whether to return the position of each result as well.

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
    return _apply_max_pool("max_pool1d", 1, x, geometry, return_indices)


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

    The gradient goes to the first of equal numbers, row by row; a window with a NaN gives NaN. For the backward pass
    one byte is kept for each window of up to 256 numbers.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        kernel_size: rows and columns of a window; this and the next arguments are an integer or a pair.
        stride: the distance between windows; by default kernel_size.
        padding: how many positions of the first and last windows may lie outside of the plane, where the values are
            -inf; at most half of kernel_size.
        dilation: the distance between the numbers of a window.
        ceil_mode: whether to add windows for the elements left over at the ends.
        return_indices: whether to return the position of each result, too, counted row by row in its plane.

    Returns:
        (batch, channels, rows of windows, columns of windows), in the input's dtype; with return_indices, this
        and int64 indices.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is not an integer; the dtype is not real floating (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn.functional import max_pool2d
    >>> max_pool2d(np.array([[[1.0, 2.0, 0.0], [4.0, 3.0, 5.0]]]), 2, stride=1).tolist()
    [[[4.0, 5.0]]]
    """
    x = lift(input)
    geometry = _windows("max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode)
    return _apply_max_pool("max_pool2d", 2, x, geometry, return_indices)


def _apply_mean_pool(axes: int, x: Any, geometry: Geometry, divisor: int | None, include_padding: bool) -> Any:
    z = _mean(as_planes(x, axes), geometry, divisor, bool(include_padding))
    return restore_shape(z, axes, x.ndim == axes + 2)


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
        kernel_size: the length of a window.
        stride: the distance between windows; by default kernel_size.
        padding: how many zeros to add at both ends of a line.
        ceil_mode: whether to add a window for the elements left over at the end.
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
    return _apply_mean_pool(1, x, geometry, None, count_include_pad)


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window. Half precision is summed in float32.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        kernel_size: rows and columns of a window; this and the next arguments are an integer or a pair.
        stride: the distance between windows; by default kernel_size.
        padding: how many zeros to add on each side of a plane; at most half of kernel_size.
        ceil_mode: whether to add windows for the elements left over at the ends; positions beyond the padding do not
            count.
        count_include_pad: whether the zeros count.
        divisor_override: the divisor of the sums, instead of the number of elements.

    Returns:
        (batch, channels, rows of windows, columns of windows), in the input's dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is not an integer; the dtype is not real floating (DtypeError).
        ValueError: divisor_override is 0.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import avg_pool2d
    >>> avg_pool2d(np.array([[[1.0, 2.0], [4.0, 5.0]]]), 2).tolist()
    [[[3.0]]]
    """
    x = lift(input)
    geometry = _windows("avg_pool2d", 2, x, kernel_size, stride, padding, 1, ceil_mode)
    divisor = check_divisor(divisor_override, "avg_pool2d")
    return _apply_mean_pool(2, x, geometry, divisor, count_include_pad)


def _mean_over_even_windows(x: Any, axis: int, parts: int) -> Any:
    """Average an axis over windows that cover it evenly, with begins rounded down and ends rounded up."""
    length, free = x.shape[axis], (slice(None),) * (x.ndim + axis)
    windows = [slice(k * length // parts, -(-(k + 1) * length // parts)) for k in range(parts)]
    return stack([mean(x[(*free, window)], axis=axis) for window in windows], axis=axis)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return the means of a given number of windows that cover the input evenly. Half precision is summed in float32.

    If the numbers of windows divide those of rows and columns, this is avg_pool2d; else neighbouring windows overlap.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        output_size: rows and columns of windows, an integer or a pair; None in a pair keeps the input's number.

    Returns:
        (batch, channels, *output_size), in the input's dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is not an integer; the dtype is not real floating (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn.functional import adaptive_avg_pool2d
    >>> adaptive_avg_pool2d(np.array([[[1.0, 2.0], [4.0, 5.0]]]), (1, None)).tolist()
    [[[2.5, 3.5]]]
    """
    x = lift(input)
    _windows("adaptive_avg_pool2d", 2, x, 1, None, 0, 1, False)  # to check the input
    height, width = x.shape[-2:]
    if isinstance(output_size, (tuple, list)) and len(output_size) == 2:
        output_size = tuple([n if m is None else m for m, n in zip(output_size, (height, width), strict=True)])
    rows, columns = sizes(output_size, 1, 2, "output_size", "adaptive_avg_pool2d")
    if height % rows == 0 and width % columns == 0:
        return avg_pool2d(x, (height // rows, width // columns))
    return narrow_to(_mean_over_even_windows(_mean_over_even_windows(widen_half(x), -2, rows), -1, columns), x.dtype)
