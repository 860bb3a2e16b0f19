"""Convolutions: three bilinear ops, the derivatives of each of which are the other two.

The first op is the cross-correlation z of x with a kernel w. The second is its adjoint in x: from a cotangent of z and
w it computes an array of x's shape. The third is its adjoint in w: from x and a cotangent of z it computes an array of
w's shape. Each is the same trilinear form with respect to one of its arguments, so derivatives of all orders are
compositions of the three. Sizes follow Dumoulin and Visin, A guide to convolution arithmetic for deep learning (2016).

The sum over taps and channels is one matrix product for each group and block of images, with columns that are
copies of long runs (`windows`). One product per tap, which needs no columns, was a tenth quicker for one shape
of eight, and took up to twice as long for the others. Depthwise convolutions use a loop over taps; float32 uses
oneDNN where it is installed (`onednn`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import blocks, libraries
from gradmgr._arrays.memory_order import with_channels_last
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function
from gradmgr.nn._functions import onednn
from gradmgr.nn._functions.arguments import check_inexact, integer
from gradmgr.nn._functions.windows import (
    Geometry,
    Layout,
    accumulation_dtype,
    as_planes,
    geometry_of,
    new_array,
    restore_shape,
    sizes,
)
from gradmgr.ops import reduce
from gradmgr.ops.convert import lift_together, no_array
from gradmgr.ops.shape import reshape

# ---------------------------------------------------------------- kernels


def _is_pointwise(geometry: Geometry) -> bool:
    """Tell whether each position of the result depends on the same position of the plane alone."""
    return geometry.kernel == (1, 1) == geometry.stride and geometry.out == geometry.size and not any(geometry.padding)


def _common_dtype(*arrays: Any) -> Any:
    """Return the dtype to which NumPy promotes those of the arrays."""
    dtype = arrays[0].dtype
    for a in arrays:
        if a.dtype is not dtype or not dtype.isnative:
            return np.result_type(*[one.dtype for one in arrays])
    return dtype


def _kernel_matrices(w: Any, geometry: Geometry, dtype: Any) -> Any:
    """Return w as one matrix for each group."""
    outputs, inputs = w.shape[0] // geometry.groups, w.shape[1] * w.shape[2] * w.shape[3]
    return w.reshape((geometry.groups, outputs, inputs)).astype(dtype, copy=False)


def _pointwise(x: Any, matrices: Any, b: Any, dtype: Any) -> Any:
    """Multiply every pixel's channels by the matrices of their groups."""
    count, _, height, width = x.shape
    groups, outputs, inputs = matrices.shape
    pixels = x.reshape((count, groups, inputs, height * width)).astype(matrices.dtype, copy=False)
    z = np.matmul(matrices, pixels).reshape((count, groups * outputs, height, width))
    if b is not None:
        z = z + b.reshape((-1, 1, 1))
    return z.astype(dtype, copy=False)


def _conv(x: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Cross-correlate; b is None or has a number for each output channel."""
    arrays = (x, w) if b is None else (x, w, b)
    dtype = _common_dtype(*arrays)
    work = accumulation_dtype(dtype)
    matrices = _kernel_matrices(w, geometry, work)
    if _is_pointwise(geometry):
        return _pointwise(x, matrices, b, dtype)
    if x.size >= _MANY_NUMBERS and _is_by_channel(w.shape, geometry.groups, _FEW_OUTPUTS, *arrays):
        return _conv_by_channel(x, w, b, geometry, dtype)
    groups, outputs, inputs = matrices.shape
    if b is not None:  # the bias is one more column of the matrices, times a row of ones
        matrices = np.concatenate([matrices, b.reshape((groups, outputs, 1)).astype(work)], 2)
    layout, count = geometry.layout, x.shape[0]
    (images, lines), blocks = layout.blocks(count, groups * matrices.shape[2], x, w)
    planes = layout.planes(x.shape[1], images, work, 0, x)
    columns = new_array("empty", (groups, matrices.shape[2], images * lines * layout.row), work, x)
    if b is not None:
        columns[:, inputs] = 1
    z = new_array("empty", (count, w.shape[0], *geometry.out), dtype, *arrays)
    for some, part in blocks:
        if part.start == 0:
            layout.put(planes, x[some])
        taken = some.stop - some.start
        width = _im2col(layout, planes, columns[:, :inputs], taken, part)
        runs = np.matmul(matrices, columns[..., :width]).reshape((w.shape[0], width))
        z[some, :, part] = layout.of_result(runs, taken, part)
    return z


def _im2col(layout: Layout, planes: dict[Any, Any], columns: Any, images: int, lines: slice) -> int:
    """Copy the runs of all taps into the columns, and return their length."""
    for to, run in zip(_split_by_tap(layout, columns, images, lines), layout.runs(planes, images, lines), strict=True):
        to[...] = run.reshape(to.shape)
    return images * layout.row * int(lines.stop - lines.start)


def _split_by_tap(layout: Layout, columns: Any, images: int, lines: slice) -> list[Any]:
    """Return the rows of the columns that belong to each tap, as (group, channel of the group, image, position)."""
    groups, rows = columns.shape[:2]
    taps, length = len(layout.taps), (lines.stop - lines.start) * layout.row
    of_taps = columns[..., : images * length].reshape((groups, rows // taps, taps, images, length))
    return [of_taps[:, :, tap] for tap in range(taps)]


def _copy_with_gaps(layout: Layout, g: Any, workspace: Any, some: slice, lines: slice) -> Any:
    """Copy a part of an array of the result's shape into a workspace of zeros, with gaps as in the runs."""
    images, height = some.stop - some.start, lines.stop - lines.start
    workspace = workspace[:, :images, :height]
    workspace[..., : layout.out[1]] = g[some, :, lines].transpose(1, 0, 2, 3)
    return workspace.reshape((workspace.shape[0], images * height * layout.row))


def _adjoint_kernel(w: Any, groups: int) -> Any:
    """Return the kernel of the adjoint: inputs and outputs exchanged within each group, taps in reverse order."""
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    turned = w[:, :, ::-1, ::-1].reshape((groups, outputs, *w.shape[1:]))
    return turned.transpose(0, 2, 1, 3, 4).reshape((groups * inputs, outputs, *w.shape[2:]))


def _adjoint_geometry(geometry: Geometry) -> Geometry:
    """Return the geometry by which the adjoint reads an array of the result's shape; the stride is 1."""
    reach = [(k - 1) * d - p for k, d, p in zip(geometry.kernel, geometry.dilation, geometry.padding, strict=True)]
    return geometry._replace(size=geometry.out, out=geometry.size, padding=(reach[0], reach[1]))


def _conv_x(g: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Return the adjoint in x: from g, of the result's shape, and w an array of x's shape; plus b for each channel."""
    arrays = (g, w) if b is None else (g, w, b)
    dtype = _common_dtype(*arrays)
    work = accumulation_dtype(dtype)
    matrices = _kernel_matrices(w, geometry, work).swapaxes(1, 2)
    if _is_pointwise(geometry):
        return _pointwise(g, matrices, b, dtype)
    if _is_by_channel(w.shape, geometry.groups, _FEW_OUTPUTS, *arrays):
        return _conv_x_by_channel(g, w, b, geometry, dtype)
    groups, inputs, outputs = matrices.shape
    # A convolution only reads, which is quicker than adding to runs, unless it has to read more than twice as much.
    read, added = outputs * math.prod(geometry.size), w.shape[1] * math.prod(geometry.out)
    if geometry.stride == (1, 1) and outputs > 1 and read <= 2 * added:
        return _conv(g, _adjoint_kernel(w, groups), b, _adjoint_geometry(geometry))
    layout, count, channels = geometry.layout, g.shape[0], w.shape[1] * groups
    (images, lines), blocks = layout.blocks(count, groups * inputs, g, w)
    planes = layout.planes(channels, images, work, 0, g, w)
    workspace = new_array("zeros", (g.shape[1], images, lines, layout.row), work, g)
    z = new_array("empty" if layout.covers else "zeros", (count, channels, *geometry.size), dtype, *arrays)
    for some, part in blocks:
        if part.start == 0:
            for plane in planes.values():
                plane[...] = 0
        spaced = _copy_with_gaps(layout, g, workspace, some, part)
        spaced = spaced.reshape((groups, outputs, spaced.shape[1]))
        columns = (
            matrices * spaced if outputs == 1 else np.matmul(matrices, spaced)
        )  # a matrix product over one row is slow
        taken = some.stop - some.start
        by_tap = _split_by_tap(layout, columns, taken, part)
        for run, more in zip(layout.runs(planes, taken, part), by_tap, strict=True):
            run += more.reshape(run.shape)
        if part.stop == geometry.out[0]:
            layout.get(planes, z[some])
    return z if b is None else (z + b.reshape((-1, 1, 1))).astype(dtype, copy=False)


def _conv_w(x: Any, g: Any, geometry: Geometry) -> Any:
    """Return the adjoint in w: from x and g, of the result's shape, an array of w's shape."""
    dtype = _common_dtype(x, g)
    work = accumulation_dtype(dtype)
    groups, channels = geometry.groups, x.shape[1]
    if _is_by_channel((g.shape[1], channels // groups, *geometry.kernel), groups, _FEW_OUTPUTS_OF_WEIGHTS, x, g):
        return _conv_w_by_channel(x, g, geometry, dtype)
    layout, count, taps = geometry.layout, x.shape[0], geometry.kernel[0] * geometry.kernel[1]
    inputs, outputs = channels // groups * taps, g.shape[1] // groups
    (images, lines), blocks = layout.blocks(count, groups * inputs, x, g)
    planes = layout.planes(channels, images, work, 0, x)
    columns = new_array("empty", (groups, inputs, images * lines * layout.row), work, x)
    workspace = new_array("zeros", (g.shape[1], images, lines, layout.row), work, g)
    z = new_array("zeros", (g.shape[1], channels // groups, *geometry.kernel), work, x, g)
    sums = z.reshape((groups, outputs, inputs))
    for some, part in blocks:
        if part.start == 0:
            layout.put(planes, x[some])
        width = _im2col(layout, planes, columns, some.stop - some.start, part)
        spaced = _copy_with_gaps(layout, g, workspace, some, part).reshape((groups, outputs, width))
        sums += np.matmul(spaced, columns[..., :width].swapaxes(1, 2))
    return z.astype(dtype, copy=False)


# ---------------------------------------------------------------- depthwise kernels: channels do not mix

# Numbers in each buffer of a block, so that images, sum and the product added to it are in the cache together.
_LINE = 1 << 16
# Results per channel up to which these kernels are quicker than a matrix product: for both adjoints and forward, and
# for weights. Forward is as quick as a product on one thread, and slower for images with fewer numbers than the third.
_FEW_OUTPUTS, _FEW_OUTPUTS_OF_WEIGHTS, _MANY_NUMBERS = 1, 3, 1 << 18
# Parts of the list of blocks, of which a thread takes one at a time.
_PARTS = 8


class _ByChannel:
    """A depthwise convolution, in blocks of a few channels of many images.

    Matrix products with one row or column are slow, and so is copying columns for them. With one column, which the
    adjoint needs, a product takes three times as long as this loop over the taps, with one multiplication and one
    addition each. The images of a channel follow one another as one long line of numbers, because NumPy needs 0.1 us
    for each inner loop.
    """

    def __init__(self, geometry: Geometry, shape: tuple[int, ...], outputs: int, dtype: Any) -> None:
        """Prepare for images of this shape, each channel of which has this number of outputs."""
        self.layout, self.dtype, self.outputs = geometry.layout, accumulation_dtype(dtype), outputs
        count, self.channels = shape[:2]
        self.plane = self.layout.height * self.layout.row
        images = min(count, max(1, _LINE // self.plane))
        channels = min(self.channels, max(1, _LINE // (images * self.plane)))
        self.blocks = [
            (slice(n, min(n + images, count)), slice(c, min(c + channels, self.channels)))
            for n in range(0, count, images)
            for c in range(0, self.channels, channels)
        ]

    def run(self, work: Callable[[_Workspace, slice, slice], None]) -> None:
        """Call work(workspace, images, channels) for each block."""

        def some(part: slice) -> None:
            workspace = _Workspace(self)
            for images, channels in self.blocks[part]:
                workspace.prepare(images.stop - images.start, channels.stop - channels.start)
                work(workspace, images, channels)

        each = -(-len(self.blocks) // _PARTS)
        blocks.run(some, [slice(n, n + each) for n in range(0, len(self.blocks), each)])

    def kernels(self, w: Any) -> Any:
        """Return the numbers of the kernels, as (output of a channel, tap, channel, 1)."""
        by_channel = w.reshape((self.channels, self.outputs, -1, 1)).transpose(1, 2, 0, 3)
        return np.ascontiguousarray(by_channel, self.dtype)

    def of_channel(self, a: Any) -> Any:
        """View an array with the result's channels as (image, output of a channel, channel, row, column)."""
        return a.reshape((a.shape[0], self.channels, self.outputs, *a.shape[2:])).swapaxes(1, 2)


class _Workspace:
    """The memory of one thread for its blocks, made once: allocating it for each costs as much as the arithmetic."""

    def __init__(self, by: _ByChannel) -> None:
        self.by, self.shape = by, (0, 0)
        self.planes: dict[Any, Any] = {}

    def prepare(self, images: int, channels: int) -> None:
        """Make the arrays for a block of this size, unless they are there."""
        if self.shape == (images, channels):
            return
        self.shape, layout = (images, channels), self.by.layout
        shape = (channels, images, layout.height, layout.row)
        self.planes = {phase: np.zeros(shape, self.by.dtype) for phase in layout.phases}
        flat = {phase: plane.reshape((channels, -1)) for phase, plane in self.planes.items()}
        length = images * self.by.plane - max([offset for _, offset in layout.taps])
        # The numbers that each tap reads, as (channel, position in one of the images).
        self.runs = [flat[phase][:, offset : offset + length] for phase, offset in layout.taps]
        # Numbers in the layout of the runs, and a view of them as (image, channel, row, column) of the result.
        numbers = np.zeros(shape, self.by.dtype)
        self.numbers = numbers.reshape((channels, -1))[:, :length]
        self.view = numbers.swapaxes(0, 1)[:, :, : layout.out[0], : layout.out[1]]
        self.more = np.empty_like(self.numbers)


def _is_by_channel(w: tuple[int, ...], groups: int, few: int, *arrays: Any) -> bool:
    """Tell whether the convolution is depthwise, with few outputs per channel, and on NumPy arrays."""
    alone = w[1] == 1 and w[0] <= few * groups and w[2] * w[3] > 1
    return alone and all(a.__class__ is np.ndarray and a.size for a in arrays)


def _conv_by_channel(x: Any, w: Any, b: Any, geometry: Geometry, dtype: Any) -> Any:
    by = _ByChannel(geometry, x.shape, w.shape[0] // geometry.groups, dtype)
    kernels = by.kernels(w)
    bias = None if b is None else by.kernels(b)
    z = np.empty((x.shape[0], w.shape[0], *geometry.out), dtype)
    parts = by.of_channel(z)

    def work(workspace: _Workspace, images: slice, channels: slice) -> None:
        by.layout.put(workspace.planes, x[images, channels])
        total, more = workspace.numbers, workspace.more
        for m, taps in enumerate(kernels[:, :, channels]):
            np.multiply(workspace.runs[0], taps[0], out=total)
            for run, tap in zip(workspace.runs[1:], taps[1:], strict=True):
                np.add(total, np.multiply(run, tap, out=more), out=total)
            if bias is not None:
                np.add(total, bias[m, 0, channels], out=total)
            parts[images, m, channels] = workspace.view

    by.run(work)
    return z


def _conv_x_by_channel(g: Any, w: Any, b: Any, geometry: Geometry, dtype: Any) -> Any:
    by = _ByChannel(geometry, (g.shape[0], geometry.groups), w.shape[0] // geometry.groups, dtype)
    kernels, parts = by.kernels(w), by.of_channel(g)
    z = (np.empty if by.layout.covers else np.zeros)((g.shape[0], geometry.groups, *geometry.size), dtype)

    def work(workspace: _Workspace, images: slice, channels: slice) -> None:
        for plane in workspace.planes.values():
            plane[...] = 0
        for m, taps in enumerate(kernels[:, :, channels]):
            workspace.view[...] = parts[images, m, channels]
            for run, tap in zip(workspace.runs, taps, strict=True):
                np.add(run, np.multiply(workspace.numbers, tap, out=workspace.more), out=run)
        by.layout.get(workspace.planes, z[images, channels])

    by.run(work)
    return z if b is None else (z + b.reshape((-1, 1, 1))).astype(dtype, copy=False)


def _conv_w_by_channel(x: Any, g: Any, geometry: Geometry, dtype: Any) -> Any:
    by = _ByChannel(geometry, x.shape, g.shape[1] // x.shape[1], dtype)
    parts, taps = by.of_channel(g), len(by.layout.taps)
    found: dict[int, dict[int, Any]] = {}  # by first channel and first image of a block

    def work(workspace: _Workspace, images: slice, channels: slice) -> None:
        by.layout.put(workspace.planes, x[images, channels])
        sums = np.empty((len(workspace.numbers), by.outputs, taps), by.dtype)
        for m in range(by.outputs):
            workspace.view[...] = parts[images, m, channels]
            for k, run in enumerate(workspace.runs):
                sums[:, m, k] = np.matmul(run[:, None], workspace.numbers[:, :, None])[:, 0, 0]
        found.setdefault(channels.start, {})[images.start] = sums

    by.run(work)
    starts = sorted(found)
    total = [sum([found[c][n] for n in sorted(found[c])]) for c in starts]
    return np.concatenate(total).reshape((g.shape[1], 1, *geometry.kernel)).astype(dtype, copy=False)


# ---------------------------------------------------------------- the kernels, with oneDNN where it is available


@libraries.captured_as_one()
def _correlate_kernel(x: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    z = onednn.forward(x, w, b, geometry)
    return _conv(x, w, b, geometry) if z is None else z


@libraries.captured_as_one()
def _transpose_kernel(g: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    z = onednn.data(g, w, b, geometry)
    return _conv_x(g, w, b, geometry) if z is None else z


@libraries.captured_as_one()
def _weight_kernel(x: Any, g: Any, geometry: Geometry) -> Any:
    z = onednn.weights(x, g, geometry)
    return _conv_w(x, g, geometry) if z is None else z


# ---------------------------------------------------------------- the ops


def _sum_to_channels(g: Any) -> Any:
    """Sum images over all axes but the channels."""
    last = with_channels_last(g)
    if not (libraries.is_numpy(g) and g.dtype.char in "fd" and g.size) or (last is None and not g.flags.c_contiguous):
        return reduce.add_up(g, (0, 2, 3), False)
    # NumPy sums several axes at a third of the speed of a matrix product with ones.
    ones, (count, channels) = np.empty(g.shape[2] * g.shape[3], g.dtype), g.shape[:2]
    ones.fill(1)
    if last is not None:
        of_images = np.matmul(ones[None], last.reshape((count, len(ones), channels)))[:, 0]
    else:
        of_images = np.matmul(g.reshape((-1, len(ones))), ones).reshape((count, channels))
    return libraries.add_up(of_images, (0,))


def _declare(
    name: str, kernel: Function, vjp: dict[str, Function], jvp: dict[str, Function]
) -> tuple[Function, Function]:
    """Declare an op of x and w, and the same op plus a bias b."""

    def plain(x: Any, w: Any, geometry: Geometry) -> Any:
        return kernel(x, w, None, geometry)

    def biased(x: Any, w: Any, b: Any, geometry: Geometry) -> Any:
        return kernel(x, w, b, geometry)

    return custom(name, plain, vjp=vjp, jvp=jvp), custom(
        f"{name}_bias",
        biased,
        vjp={**vjp, "b": _sum_to_channels},
        jvp={**jvp, "b": lambda t: reshape(t, (-1, 1, 1))},
    )


_correlate: Function
_correlate_and_add: Function
_transpose: Function
_transpose_and_add: Function
_correlate, _correlate_and_add = _declare(
    "nn.conv2d",
    _correlate_kernel,
    vjp={
        "x": lambda g, w, geometry: _transpose(g, conj_of(w), geometry),
        "w": lambda g, x, geometry: _weight(conj_of(x), g, geometry),
    },
    jvp={
        "x": lambda t, w, geometry: _correlate(t, w, geometry),
        "w": lambda t, x, geometry: _correlate(x, t, geometry),
    },
)
_transpose, _transpose_and_add = _declare(
    "nn.conv_transpose2d",
    _transpose_kernel,
    vjp={
        "x": lambda g, w, geometry: _correlate(g, conj_of(w), geometry),
        "w": lambda g, x, geometry: _weight(g, conj_of(x), geometry),
    },
    jvp={
        "x": lambda t, w, geometry: _transpose(t, w, geometry),
        "w": lambda t, x, geometry: _transpose(x, t, geometry),
    },
)
_weight: Function = custom(
    "nn.conv2d_weight",
    _weight_kernel,
    vjp={
        "x": lambda c, g, geometry: _transpose(conj_of(g), c, geometry),
        "g": lambda c, x, geometry: _correlate(conj_of(x), c, geometry),
    },
    jvp={
        "x": lambda t, g, geometry: _weight(t, g, geometry),
        "g": lambda t, x, geometry: _weight(x, t, geometry),
    },
)

# ---------------------------------------------------------------- public functions


def _operands(asked: str, axes: int, x: Any, w: Any, b: Any, groups: Any) -> tuple[Any, ...]:
    """Lift input, weight and bias, check them, and return them, the shapes of input and weight, and groups."""
    if x is None or w is None:
        raise no_array(None)
    x, w, b = lift_together(x, w, b)
    check_inexact(asked, input=x, weight=w, bias=b)
    plane = "height, width" if axes == 2 else "length"
    of_x, of_w = x.shape, w.shape
    if len(of_x) not in (axes + 1, axes + 2):
        raise errors.ShapeError(
            f"{asked} takes an input of shape (batch, channels, {plane}), or without the batch; found {of_x}"
        )
    if len(of_w) != axes + 2 or 0 in of_w[2:]:
        raise errors.ShapeError(
            f"{asked} takes a weight of {axes + 2} axes, the last {axes} those of a kernel, not empty; found {of_w}"
        )
    groups = integer(groups, "groups", asked)
    if groups < 1:
        raise errors.ShapeError(f"{asked}: groups must be at least 1; found {groups}")
    return x, w, b, of_x, of_w, groups


def _check_channels(
    asked: str,
    of_x: tuple[int, ...],
    of_w: tuple[int, ...],
    b: Any,
    groups: int,
    channels: int,
    inputs: int,
    outputs: int,
) -> None:
    """Raise unless the channels of input, weight and bias fit each other and the groups."""
    if channels != inputs or of_w[0] % groups:
        raise errors.ShapeError(
            f"{asked}: a weight of shape {of_w} in {groups} group{'s' * (groups > 1)} takes {inputs} channels"
            + (f", and its {of_w[0]} must be a multiple of groups" if of_w[0] % groups else "")
            + f"; found an input of shape {of_x}, with {channels}"
        )
    if b is not None and b.shape != (outputs,):
        raise errors.ShapeError(f"{asked}: bias must have shape ({outputs},), one for each channel; found {b.shape}")


def _paddings(
    padding: Any, axes: int, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], asked: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of zeros before the axes of a plane, and those after them."""
    if not isinstance(padding, str):
        zeros = sizes(padding, 0, axes, "padding", asked)
        return zeros, zeros
    if padding == "valid":
        return (0,) * axes, (0,) * axes
    if padding != "same":
        raise ValueError(f"{asked}: padding is an integer, a pair, 'same' or 'valid'; found {padding!r}")
    if any(n != 1 for n in stride):
        raise errors.ShapeError(f"{asked}: padding='same' needs stride 1; found stride {stride}")
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple([total // 2 for total in totals]), tuple([total - total // 2 for total in totals])


def _convolve(
    asked: str,
    axes: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    x, w, b, of_x, of_w, groups = _operands(asked, axes, input, weight, bias, groups)
    steps, gaps = sizes(stride, 1, axes, "stride", asked), sizes(dilation, 1, axes, "dilation", asked)
    size, kernel = of_x[-axes:], of_w[2:]
    before, after = _paddings(padding, axes, kernel, steps, gaps, asked)
    _check_channels(asked, of_x, of_w, b, groups, of_x[-axes - 1], of_w[1] * groups, of_w[0])
    spans, padded, out = [], [], []
    for n, k, step, first, last, gap in zip(size, kernel, steps, before, after, gaps, strict=True):
        spans.append(gap * (k - 1) + 1)
        padded.append(n + first + last)
        out.append((padded[-1] - spans[-1]) // step + 1)
    if min(out) < 1:
        raise errors.ShapeError(
            f"{asked}: the kernel spans {tuple(spans)}, more than the padded input's {tuple(padded)}; input {of_x}, "
            f"weight {of_w}, padding {padding!r}, dilation {dilation!r}"
        )
    geometry = geometry_of(size, kernel, tuple(out), steps, before, gaps, groups)
    x, w = as_planes(x, axes), as_planes(w, axes)
    z = _correlate(x, w, geometry) if b is None else _correlate_and_add(x, w, b, geometry)
    return restore_shape(z, axes, len(of_x) == axes + 2)


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve lines of several channels with kernels, as conv2d does planes.

    Args:
        input: (batch, channels, length), or without the batch.
        weight: (channels of the result, channels // groups, length of a kernel).
        bias: one number for each channel of the result.
        stride: the distance between windows.
        padding: how many zeros to add at both ends of a line; "valid" for none, "same" for a result of the
            input's length.
        dilation: the distance between the taps of a kernel.
        groups: the number of groups into which channels are divided; groups do not mix.

    Returns:
        (batch, channels of the result, windows), in the dtype to which NumPy promotes those of the arguments.

    Raises:
        ShapeError, TypeError, ValueError: as conv2d.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import conv1d
    >>> conv1d(np.array([[1.0, 2.0, 4.0, 8.0]]), np.array([[[-1.0, 1.0]]])).tolist()
    [[1.0, 2.0, 4.0]]
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve planes of several channels with kernels: the cross-correlation that networks call convolution.

    For the backward pass input and weight are kept. Besides the result it needs memory for blocks of columns only
    (2 MiB in float32, or 512 columns if a kernel has more than 1024 numbers for a channel of the result). Half
    precision is multiplied and summed in float32.

    If oneDNN is installed (the extra `onednn`), all but small convolutions in float32 are computed with it,
    in half the time or less; `gradmgr.nn.convolution_library()` tells. The results differ by rounding. Besides the
    result it needs copies of the weight and of blocks of images (2 MiB, or one image). Where gradmgr-native is
    installed, too, such a result has the channels last in memory: transposed to (batch, rows, columns, channels) it is
    C-contiguous.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        weight: (channels of the result, channels // groups, height and width of a kernel).
        bias: one number for each channel of the result.
        stride: the distance between windows; this, padding and dilation are an integer, or a pair for rows and columns.
        padding: how many zeros to add on each side of a plane; "valid" for none, "same" for a result of the input's
            size, where an odd zero is added at the end.
        dilation: the distance between the taps of a kernel.
        groups: the number of groups into which channels are divided; groups do not mix.

    Returns:
        (batch, channels of the result, rows of windows, columns of windows), in the dtype to which NumPy promotes
        those of the arguments; real or complex.

    Raises:
        ShapeError: axes, channels, groups or sizes do not fit.
        TypeError: a size is not an integer; a dtype is not floating or complex (DtypeError).
        ValueError: padding is an unknown word.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import conv2d
    >>> image, edges = np.zeros((1, 4, 4)), np.array([[[[-1.0, 1.0]]]])
    >>> image[:, :, 2:] = 1
    >>> conv2d(image, edges)[0, 0].tolist()
    [0.0, 1.0, 0.0]
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def _convolve_transposed(
    asked: str,
    axes: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> Any:
    x, w, b, of_x, of_w, groups = _operands(asked, axes, input, weight, bias, groups)
    steps, gaps = sizes(stride, 1, axes, "stride", asked), sizes(dilation, 1, axes, "dilation", asked)
    before, more = sizes(padding, 0, axes, "padding", asked), sizes(output_padding, 0, axes, "output_padding", asked)
    if any(extra >= max(step, gap) for extra, step, gap in zip(more, steps, gaps, strict=True)):
        raise errors.ShapeError(
            f"{asked}: output_padding must be smaller than stride or dilation; found output_padding "
            f"{output_padding!r}, stride {stride!r}, dilation {dilation!r}"
        )
    size, kernel = of_x[-axes:], of_w[2:]
    _check_channels(asked, of_x, of_w, b, groups, of_x[-axes - 1], of_w[0], of_w[1] * groups)
    axis_by_axis = zip(size, kernel, steps, before, more, gaps, strict=True)
    out = tuple([(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, extra, d in axis_by_axis])
    if min(*out, *size) < 1:
        raise errors.ShapeError(
            f"{asked}: the result's planes would be of size {out}; input {of_x}, weight {of_w}, stride "
            f"{stride!r}, padding {padding!r}, output_padding {output_padding!r}, dilation {dilation!r}"
        )
    geometry = geometry_of(out, kernel, size, steps, before, gaps, groups)
    x, w = as_planes(x, axes), as_planes(w, axes)
    z = _transpose(x, w, geometry) if b is None else _transpose_and_add(x, w, b, geometry)
    return restore_shape(z, axes, len(of_x) == axes + 2)


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Apply the adjoint of conv1d in its input, as conv_transpose2d that of conv2d.

    Args:
        input: (batch, channels, length), or without the batch.
        weight: (channels, channels of the result // groups, length of a kernel).
        bias: one number for each channel of the result.
        stride: this, padding and dilation are those of the conv1d whose adjoint this is.
        padding: how many positions to remove at both ends of a line.
        output_padding: by how much the result is longer than the shortest line that conv1d maps to this length.
        groups: the number of groups into which channels are divided; groups do not mix.
        dilation: the distance between the taps of a kernel.

    Returns:
        (batch, channels of the result, length), in the dtype to which NumPy promotes those of the arguments.

    Raises:
        ShapeError, TypeError: as conv_transpose2d.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import conv_transpose1d
    >>> conv_transpose1d(np.array([[1.0, 2.0]]), np.array([[[1.0, 0.5]]]), stride=2).tolist()
    [[1.0, 0.5, 2.0, 1.0]]
    """
    return _convolve_transposed(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Apply the adjoint of conv2d in its input: every number of the input adds a multiple of the kernel to the result.

    Args:
        input: (batch, channels, height, width), or without the batch; the batch may be empty.
        weight: (channels, channels of the result // groups, height and width of a kernel).
        bias: one number for each channel of the result.
        stride: this, padding and dilation are those of the conv2d whose adjoint this is; an integer, or a pair for rows
            and columns.
        padding: how many positions to remove on each side of a plane.
        output_padding: by how much the result is larger than the smallest plane that conv2d maps to this size.
        groups: the number of groups into which channels are divided; groups do not mix.
        dilation: the distance between the taps of a kernel.

    Returns:
        (batch, channels of the result, height, width), with (n - 1) stride - 2 padding + dilation (k - 1) +
        output_padding + 1 rows for n of the input and k of a kernel; columns likewise. The dtype is that to which
        NumPy promotes those of the arguments.

    Raises:
        ShapeError: axes, channels, groups or sizes do not fit.
        TypeError: a size is not an integer; a dtype is not floating or complex (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn.functional import conv_transpose2d
    >>> conv_transpose2d(np.array([[[1.0, 2.0]]]), np.ones((1, 1, 2, 2)), stride=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]]
    """
    return _convolve_transposed(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )
