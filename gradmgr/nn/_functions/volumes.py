"""Convolution and pooling of volumes, made of those of planes and lines.

A convolution of volumes is one of planes, whose channels are those of all the planes that a window reaches: one product
for all taps. A maximum or mean over a window is one over its planes of those over the windows of each plane.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_inexact, check_word, integer, one_array, triple
from gradmgr.nn._functions.convolution import conv2d, conv_transpose2d
from gradmgr.nn._functions.pooling import avg_pool1d, avg_pool2d, check_divisor, check_windows, max_pool1d, max_pool2d
from gradmgr.nn._functions.resampling import pad
from gradmgr.ops.pick import take_along_axis
from gradmgr.ops.positions import gather, gather_back
from gradmgr.ops.shape import expand_dims, moveaxis, reshape, transpose

# ---------------------------------------------------------------- convolution


def _as_volumes(asked: str, input: Any, weight: Any, channel_axis: int, groups: int) -> tuple[Any, Any, bool]:
    """Return the input with a batch axis, the weight, and whether the input had a batch axis."""
    x, w = one_array(input), one_array(weight)
    check_inexact(asked, input=x, weight=w)
    needed = w.shape[channel_axis] * (groups if channel_axis == 1 else 1) if w.ndim == 5 else 0
    if x.ndim not in (4, 5) or w.ndim != 5 or x.shape[-4] != needed or 0 in w.shape:
        says = (
            "(out, in / groups, depth, height, width)" if channel_axis else "(in, out / groups, depth, height, width)"
        )
        raise errors.ShapeError(
            f"{asked} takes an input (batch, channels, depth, height, width), or without the batch, and a weight "
            f"{says}; found {x.shape} and {w.shape}, for {groups} groups"
        )
    return (x if x.ndim == 5 else expand_dims(x, 0)), w, x.ndim == 5


def _steps(asked: str, **given: Any) -> list[tuple[int, int, int]]:
    """Return three integers for each argument; padding may be 0, the others not."""
    read = []
    for name, value in given.items():
        steps = triple(value, name, asked)
        least = 0 if "padding" in name else 1
        if min(steps) < least:
            raise errors.ShapeError(f"{asked}: {name} must be at least {least}; found {value!r}")
        read.append(steps)
    return read


def _positions(x: Any, windows: int, taps: int, stride: int, dilation: int) -> Any:
    """Return the plane that each tap of each window reads, as one row."""
    places = np.arange(windows)[:, None] * stride + np.arange(taps) * dilation
    return libraries.to_device(places.reshape(-1), libraries.device_of(raw(x)))


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlate volumes with a kernel, as torch.nn.functional.conv3d.

    The planes that a window reaches are copied once for each window, so memory for `weight.shape[2]` inputs is needed.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        weight: (out, channels / groups, depth, height, width).
        bias: (out,), or None.
        stride: the distances between windows; this and the next arguments are an integer or three.
        padding: how many zeros to add on each side; "valid" for none, "same" to keep the lengths.
        dilation: the distances between the numbers of a window.
        groups: the number of groups into which channels are divided; groups do not mix.

    Returns:
        (batch, out, depth, height, width), in the common dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is not an integer; a dtype is neither floating nor complex (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.conv3d(np.ones((1, 3, 3, 3)), np.ones((1, 1, 3, 2, 2))).shape
    (1, 1, 2, 2)
    """
    groups = integer(groups, "groups", "conv3d")
    x, w, has_batch = _as_volumes("conv3d", input, weight, 1, groups)
    stride, dilation = _steps("conv3d", stride=stride, dilation=dilation)
    x, padding = _padded(x, w.shape[2:], padding, stride, dilation)
    taps, depth = w.shape[2], x.shape[2]
    windows = (depth - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    if windows < 1:
        raise errors.ShapeError(f"conv3d: a kernel of depth {taps} does not fit into {depth} planes, padding included")
    read = gather(x, _positions(x, windows, taps, stride[0], dilation[0]), 2)
    read = transpose(reshape(read, (*x.shape[:2], windows, taps, *x.shape[3:])), (0, 2, 1, 3, 4, 5))
    planes = reshape(read, (x.shape[0] * windows, x.shape[1] * taps, *x.shape[3:]))
    kernel = reshape(w, (w.shape[0], w.shape[1] * taps, *w.shape[3:]))
    z = conv2d(planes, kernel, bias, stride[1:], padding, dilation[1:], groups)
    z = moveaxis(reshape(z, (x.shape[0], windows, *z.shape[1:])), 1, 2)
    return z if has_batch else z[0]


def _padded(x: Any, kernel: Any, padding: Any, stride: Any, dilation: Any) -> tuple[Any, Any]:
    """Return the volumes padded in depth, or in all axes for "same", and the padding that is left for the planes."""
    if not isinstance(padding, str):
        (widths,) = _steps("conv3d", padding=padding)
        return (pad(x, (0, 0, 0, 0, widths[0], widths[0])) if widths[0] else x), widths[1:]
    check_word(padding, ("same", "valid"), "padding", "conv3d")
    if padding == "valid":
        return x, 0
    if any(step != 1 for step in stride):
        raise ValueError(f"conv3d: padding='same' needs stride 1; found {stride}")
    whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return pad(x, [width for n in whole[::-1] for width in (n // 2, n - n // 2)]), 0


def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Return the adjoint of conv3d, as torch.nn.functional.conv_transpose3d.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        weight: (channels, out / groups, depth, height, width).
        bias: (out,), or None.
        stride: the distances between windows; this and the next arguments are an integer or three.
        padding: how many numbers to leave out on each side of the result.
        output_padding: how many to add at the ends, less than stride or dilation.
        groups: the number of groups into which channels are divided; groups do not mix.
        dilation: the distances between the numbers of a window.

    Returns:
        (batch, out, depth, height, width), in the common dtype.

    Raises:
        ShapeError: axes or sizes do not fit.
        TypeError: a size is not an integer; a dtype is neither floating nor complex (DtypeError).

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.conv_transpose3d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 2, 2)), stride=2).shape
    (1, 3, 4, 4)
    """
    asked = "conv_transpose3d"
    groups = integer(groups, "groups", asked)
    x, w, has_batch = _as_volumes(asked, input, weight, 0, groups)
    stride, cut, more, dilation = _steps(
        asked, stride=stride, padding=padding, output_padding=output_padding, dilation=dilation
    )
    count, channels, depth = x.shape[:3]
    taps = w.shape[2]
    full = (depth - 1) * stride[0] + dilation[0] * (taps - 1) + 1 + more[0]
    if more[0] >= max(stride[0], dilation[0]) or full <= 2 * cut[0]:
        raise errors.ShapeError(
            f"{asked}: output_padding must be less than stride or dilation, and padding leave something of a depth "
            f"{full}; found {output_padding!r} and {padding!r}"
        )
    planes = reshape(moveaxis(x, 2, 1), (count * depth, channels, *x.shape[3:]))
    kernel = reshape(w, (channels, w.shape[1] * taps, *w.shape[3:]))
    z = conv_transpose2d(planes, kernel, None, stride[1:], cut[1:], more[1:], groups, dilation[1:])
    z = transpose(reshape(z, (count, depth, w.shape[1] * groups, taps, *z.shape[2:])), (0, 2, 1, 3, 4, 5))
    z = reshape(z, (*z.shape[:2], depth * taps, *z.shape[4:]))
    z = gather_back(z, _positions(x, depth, taps, stride[0], dilation[0]), full, 2)[:, :, cut[0] : full - cut[0]]
    if bias is not None:
        z = z + reshape(one_array(bias), (-1, 1, 1, 1))
    return z if has_batch else z[0]


# ---------------------------------------------------------------- pooling


def _by_depth(x: Any) -> tuple[Any, Any]:
    """Return the lines along the depth as (..., depth), and what shape to give the result."""
    lines = moveaxis(x, -3, -1)
    return reshape(lines, (-1, 1, lines.shape[-1])), lines.shape[:-1]


def _from_depth(z: Any, lead: tuple[int, ...]) -> Any:
    return moveaxis(reshape(z, (*lead, z.shape[-1])), -1, -3)


def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest number of each window of volumes, as max_pool2d for planes.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        kernel_size: the lengths of a window; this and the next arguments are an integer or three.
        stride: the distances between windows; by default kernel_size.
        padding: how many positions of the first and last windows may lie outside.
        dilation: the distances between the numbers of a window.
        ceil_mode: whether to add windows for the elements left over at the ends.
        return_indices: whether to return the position of each result, too, counted plane by plane and row by row.

    Returns:
        (batch, channels, and the numbers of windows), in the input's dtype; with return_indices, this and int64
        indices.

    Raises:
        ShapeError, TypeError: as max_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.max_pool3d(np.arange(8.0).reshape(1, 2, 2, 2), 2).item()
    7.0
    """
    x = one_array(input)
    _, size, _, step, edge, gap = check_windows("max_pool3d", 3, x, kernel_size, stride, padding, dilation, ceil_mode)
    planes = reshape(x, (-1, 1, *x.shape[-2:]))
    found = max_pool2d(planes, size[1:], step[1:], edge[1:], gap[1:], ceil_mode, return_indices)
    z, within = found if return_indices else (found, found)
    lines, lead = _by_depth(reshape(z, (*x.shape[:-2], *z.shape[-2:])))
    found = max_pool1d(lines, size[0], step[0], edge[0], gap[0], ceil_mode, return_indices)
    if not return_indices:
        return _from_depth(found, lead)
    z, plane = found
    z = _from_depth(z, lead)
    inner, _ = _by_depth(reshape(within, (*x.shape[:-2], *within.shape[-2:])))
    indices = take_along_axis(raw(inner), raw(plane), -1) + raw(plane) * (x.shape[-2] * x.shape[-1])
    indices = _from_depth(indices, lead)
    return z, wrap(indices) if isinstance(z, Tensor) else indices


def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window of volumes, as avg_pool2d for planes.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        kernel_size: the lengths of a window; this and the next arguments are an integer or three.
        stride: the distances between windows; by default kernel_size.
        padding: how many zeros to add on each side.
        ceil_mode: whether to add windows for the elements left over at the ends.
        count_include_pad: whether the zeros count.
        divisor_override: the divisor of the sums, instead of the number of elements.

    Returns:
        (batch, channels, and the numbers of windows), in the input's dtype.

    Raises:
        ShapeError, TypeError, ValueError: as avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.avg_pool3d(np.arange(8.0).reshape(1, 2, 2, 2), 2).item()
    3.5
    """
    x = one_array(input)
    _, size, _, step, edge, _ = check_windows("avg_pool3d", 3, x, kernel_size, stride, padding, 1, ceil_mode)
    divisor = check_divisor(divisor_override, "avg_pool3d")
    planes = reshape(x, (-1, 1, *x.shape[-2:]))
    z = avg_pool2d(planes, size[1:], step[1:], edge[1:], ceil_mode, count_include_pad, divisor)
    lines, lead = _by_depth(reshape(z, (*x.shape[:-2], *z.shape[-2:])))
    if divisor is None:
        return _from_depth(avg_pool1d(lines, size[0], step[0], edge[0], ceil_mode, count_include_pad), lead)
    rows = expand_dims(lines, -2)  # lines have no other divisor, planes of one row have
    z = avg_pool2d(rows, (1, size[0]), (1, step[0]), (0, edge[0]), ceil_mode, True, 1)
    return _from_depth(z, lead)
