"""Pooling over a given number of windows that cover the input evenly: means of lines and volumes, and maxima."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_floating, integer, one_array
from gradmgr.nn._functions.pooling import max_pool1d
from gradmgr.nn._functions.resampling import mean_of_windows
from gradmgr.ops.convert import narrow_to, widen_half
from gradmgr.ops.pick import take_along_axis
from gradmgr.ops.positions import gather
from gradmgr.ops.shape import moveaxis, reshape


def _numbers_of_windows(asked: str, x: Any, output_size: Any, axes: int) -> list[int]:
    """Return the number of windows of each of the last axes; check the input."""
    check_floating(asked, input=x)
    if x.ndim not in (axes + 1, axes + 2) or 0 in x.shape[-axes:]:
        raise errors.ShapeError(
            f"{asked} takes (batch, channels, ...) with {axes} further axes that are not empty, or without the batch; "
            f"found {x.shape}"
        )
    given = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * axes
    if len(given) != axes:
        raise errors.ShapeError(f"{asked}: output_size must be a number or {axes} of them; found {output_size!r}")
    lengths = x.shape[-axes:]
    counts = [n if m is None else integer(m, "output_size", asked) for m, n in zip(given, lengths, strict=True)]
    if min(counts) < 1:
        raise errors.ShapeError(f"{asked}: output_size must be at least 1; found {output_size!r}")
    return counts


def _adaptive_mean(asked: str, input: Any, output_size: Any, axes: int) -> Any:
    x = one_array(input)
    z = widen_half(x)
    for axis, count in enumerate(_numbers_of_windows(asked, x, output_size, axes), x.ndim - axes):
        z = mean_of_windows(z, axis, count)
    return narrow_to(z, x.dtype)


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """Return the means of a given number of windows that cover lines evenly, as adaptive_avg_pool2d for planes.

    Args:
        input: (batch, channels, length), or without the batch.
        output_size: the number of windows.

    Returns:
        (batch, channels, output_size), in the input's dtype.

    Raises:
        ShapeError, TypeError: as adaptive_avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.adaptive_avg_pool1d(np.array([[1.0, 2.0, 6.0]]), 2).tolist()
    [[1.5, 4.0]]
    """
    return _adaptive_mean("adaptive_avg_pool1d", input, output_size, 1)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """Return the means of a given number of windows that cover volumes evenly, as adaptive_avg_pool2d for planes.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        output_size: the numbers of windows, an integer or three; None keeps the input's number.

    Returns:
        (batch, channels, *output_size), in the input's dtype.

    Raises:
        ShapeError, TypeError: as adaptive_avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.adaptive_avg_pool3d(np.arange(8.0).reshape(1, 2, 2, 2), (1, None, 1)).tolist()
    [[[[2.5], [4.5]]]]
    """
    return _adaptive_mean("adaptive_avg_pool3d", input, output_size, 3)


def _largest_on_axis(x: Any, axis: int, count: int) -> tuple[Any, Any]:
    """Return the largest of each window of an axis, the first of equal ones, and its position on the axis."""
    n = x.shape[axis]
    begins = np.arange(count) * n // count
    ends = -(-(np.arange(count) + 1) * n // count)
    most = int((ends - begins).max())
    places = np.minimum(begins[:, None] + np.arange(most), ends[:, None] - 1).reshape(-1)  # the last may be repeated
    places = libraries.to_device(places, libraries.device_of(raw(x)))
    lines = moveaxis(gather(x, places, axis), axis, -1)
    z, which = max_pool1d(reshape(lines, (-1, 1, most * count)), most, return_indices=True)
    shape = (*lines.shape[:-1], count)
    offsets = libraries.to_device(begins - np.arange(count) * most, libraries.device_of(raw(x)))
    positions = reshape(raw(which), shape) + offsets  # the first of repeated numbers is chosen, so none is beyond
    return moveaxis(reshape(z, shape), -1, axis), moveaxis(positions, -1, axis)


def _adaptive_max(asked: str, input: Any, output_size: Any, axes: int, return_indices: bool) -> Any:
    z = x = one_array(input)
    counts = _numbers_of_windows(asked, x, output_size, axes)
    indices: Any = None
    step = 1
    for back in range(1, axes + 1):  # the last axis first, so that of equal numbers the first in memory is chosen
        axis = x.ndim - back
        z, which = _largest_on_axis(z, axis, counts[-back])
        indices = which if indices is None else take_along_axis(indices, which, axis) + which * step
        step *= x.shape[axis]
    if not return_indices:
        return z
    return z, wrap(indices) if isinstance(z, Tensor) else indices


def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest numbers of a given number of windows that cover lines evenly.

    Args:
        input: (batch, channels, length), or without the batch.
        output_size: the number of windows.
        return_indices: whether to return the position of each result as well.

    Returns:
        (batch, channels, output_size), in the input's dtype; with return_indices, this and int64 indices.

    Raises:
        ShapeError, TypeError: as adaptive_avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.adaptive_max_pool1d(np.array([[1.0, 2.0, 0.0]]), 2).tolist()
    [[2.0, 2.0]]
    """
    return _adaptive_max("adaptive_max_pool1d", input, output_size, 1, return_indices)


def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest numbers of a given number of windows that cover planes evenly.

    The gradient goes to the first of equal numbers, row by row.

    Args:
        input: (batch, channels, height, width), or without the batch.
        output_size: rows and columns of windows, an integer or a pair; None in a pair keeps the input's number.
        return_indices: whether to return the position of each result, too, counted row by row.

    Returns:
        (batch, channels, *output_size), in the input's dtype; with return_indices, this and int64 indices.

    Raises:
        ShapeError, TypeError: as adaptive_avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.adaptive_max_pool2d(np.array([[[1.0, 2.0], [4.0, 3.0]]]), (1, None)).tolist()
    [[[4.0, 3.0]]]
    """
    return _adaptive_max("adaptive_max_pool2d", input, output_size, 2, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the largest numbers of a given number of windows that cover volumes evenly.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        output_size: the numbers of windows, an integer or three; None keeps the input's number.
        return_indices: whether to return the position of each result, too, counted plane by plane and row by row.

    Returns:
        (batch, channels, *output_size), in the input's dtype; with return_indices, this and int64 indices.

    Raises:
        ShapeError, TypeError: as adaptive_avg_pool2d.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.adaptive_max_pool3d(np.arange(8.0).reshape(1, 2, 2, 2), 1).item()
    7.0
    """
    return _adaptive_max("adaptive_max_pool3d", input, output_size, 3, return_indices)
