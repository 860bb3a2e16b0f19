"""The order in which the axes of an array lie in memory, other than C's.

Images have the shape (batch, channels, rows, columns). Convolutions by oneDNN return them with the channels last in
memory, as if they were a transposed array (batch, rows, columns, channels): this is how the library reads and writes
them fastest, and NumPy's functions of elements keep such an order. The functions here tell which order an array has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays.captured import inner_of

Array = Any
Axes = tuple[int, ...]


def memory_order(array: Array) -> Axes:
    """Return the axes from the slowest to the fastest in memory; a dense array transposed so is C-contiguous."""
    strides = array.strides
    return tuple(sorted(range(array.ndim), key=lambda k: (-abs(strides[k]), k)))


def with_channels_last(array: Array) -> Array | None:
    """Return a view (batch, ..., channels) that is C-contiguous, of an array (batch, channels, ...) of that order.

    None of all others: of those that are C-contiguous as they are, and of what is not NumPy's, by itself or captured.
    """
    if array.ndim < 3:  # most of those that are not images
        return None
    inner = array if array.__class__ is np.ndarray else inner_of(array)
    if inner.__class__ is not np.ndarray or inner.flags.c_contiguous:
        return None
    axes = (0, *range(2, inner.ndim), 1)
    return array.transpose(axes) if inner.transpose(axes).flags.c_contiguous else None


def empty_with_channels_last(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a new NumPy array of a shape (batch, channels, rows, columns), with the channels last in memory.

    It is no view of another one, so that what owns a gradient may be written to.
    """
    _, channels, rows, columns = shape
    pixel = channels * dtype.itemsize
    strides = rows * columns * pixel, dtype.itemsize, columns * pixel, pixel
    return np.ndarray(shape, dtype, None, 0, strides)


def in_c_order(made: Array, arrays: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    """Transpose arrays of one shape so that the first, which is dense, is C-contiguous."""
    if made.flags.c_contiguous:
        return made, arrays
    axes = memory_order(made)
    return made.transpose(axes), tuple([a.transpose(axes) for a in arrays])
