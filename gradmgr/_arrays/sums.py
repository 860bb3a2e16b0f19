"""Sums over axes of NumPy's arrays: `sum_of_numpy` for values, `sum_by_groups` for gradients.

`numpy.add.reduce` restarts its innermost loop for each run of neighbouring numbers: of those of vectors in space, say,
three at a time, it takes ten times as long as for as many numbers in long rows. `sum_of_numpy` has its bits in less
time.

It adds by pairs along the last axis, and one row after the other along the others: the sum of 1e6 equal rows of float32
may be off by a hundredth. `sum_by_groups` loses no more digits than a sum by pairs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import blocks

Array = Any

# Of fewer numbers, or of rows longer than FEW, NumPy's sums are fastest.
NUMBERS, FEW = 512, 16
# The last axis is summed by columns if it is shorter than this: NumPy, too, adds so few one after the other.
_SHORT = 8
_ROWS = 200  # from which on that takes less time
# Another axis, of which NumPy adds runs of up to FEW numbers that follow it, is moved to the front.
_MANY = 2048  # of how many numbers in all
add_reduce: Any = np.add.reduce  # its stubs do not know a keepdims that is a variable


def sum_of_numpy(a: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum a NumPy array, of NUMBERS or more in rows of at most FEW, over axes."""
    if len(axes) == 1 and a.ndim > 1:
        shape, last = a.shape, a.ndim - 1
        axis = axes[0] % a.ndim
        if axis == last:
            if shape[last] < _SHORT and _is_short(a, shape[last], 1):  # asked first: most are longer
                made: Array = np.empty((*shape[:last], 1) if keepdims else shape[:last], a.dtype)
                _sum_columns(a.reshape((-1, shape[last])), made.reshape(-1))
                return made
        elif a.size >= _MANY and _is_short(a, shape[axis], rest := math.prod(shape[axis + 1 :])):
            made = np.empty((*shape[:axis], *(1,) * keepdims, *shape[axis + 1 :]), a.dtype)
            _sum_middle(a.reshape((-1, shape[axis], rest)), made.reshape((-1, rest)))
            return made
    return add_reduce(a, axis=axes, keepdims=keepdims)


def _is_short(a: Array, n: int, rest: int) -> bool:
    """Tell whether NumPy's loops are short for a sum of n numbers, each followed by `rest` others."""
    if n < 2 or a.dtype.char not in "fd" or not a.flags.c_contiguous or a.size == n * rest:
        return False
    return n < _SHORT and a.size >= n * _ROWS if rest == 1 else rest <= FEW


def _sum_columns(a: Array, made: Array) -> None:
    np.add(a[:, 0], a[:, 1], out=made)
    for k in range(2, a.shape[1]):
        made += a[:, k]
    made += 0.0  # NumPy's sums of -0.0 are 0.0


def _sum_middle(a: Array, made: Array) -> None:
    """Sum over the second axis of three, of blocks in which it is copied to the front."""
    if a.nbytes <= blocks.BLOCK:
        add_reduce(a.transpose(1, 0, 2).reshape(a.shape[1], -1), axis=0, out=made.reshape(-1))
        return
    for part in blocks.blocks(len(a), a.nbytes):
        some = np.ascontiguousarray(a[part].transpose(1, 0, 2))
        add_reduce(some.reshape((len(some), -1)), axis=0, out=made[part].reshape(-1))


# ---------------------------------------------------------------- long sums

# Up to so many numbers, a sum of gradients is NumPy's or BLAS's: of float32 it is off by 2e-5 at most. Of more, those
# at equal distances are added first, so many at most.
LONG, _AT_ONCE = 2048, 512


def sum_by_groups(a: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum a NumPy array over axes, along each of which numbers are added in groups if it is long."""
    axes = tuple(sorted([axis % a.ndim for axis in axes]))
    shape = tuple([1 if k in axes else n for k, n in enumerate(a.shape) if keepdims or k not in axes])
    if a.flags.c_contiguous and axes == tuple(range(len(axes))):
        a, axes = a.reshape((-1, math.prod(shape))), (0,)
        if a.dtype.char in "fd":
            return sum_rows(a).reshape(shape)
    for axis in reversed(axes):
        while a.shape[axis] > _AT_ONCE and a.strides[axis] != a.itemsize:  # along neighbours NumPy adds by pairs
            a = _sums_of_groups(a, axis)
        a = add_reduce(a, axis=axis, keepdims=True)
    return a.reshape(shape)[()]


def _sums_of_groups(a: Array, axis: int) -> Array:
    """Return the sums of numbers at equal distances along an axis."""
    head, n = (slice(None),) * axis, a.shape[axis]
    groups = -(-n // _AT_ONCE)
    whole = n - n % groups
    split = (*a.shape[:axis], n // groups, groups, *a.shape[axis + 1 :])
    made = add_reduce(a[(*head, slice(whole))].reshape(split), axis=axis)
    made[(*head, slice(n - whole))] += a[(*head, slice(whole, None))]
    return made


def sum_rows(a: Array) -> Array:
    """Add up the rows of a C-contiguous matrix of float32 or float64, as products with ones.

    BLAS takes half the time of NumPy's sum or less, and less still for fewer, longer rows.
    """
    n, width = a.shape
    groups = -(-n // LONG) or 1
    whole = n - n % groups
    ones = np.empty(n // groups, a.dtype)
    ones.fill(1)
    if groups == 1:
        return ones.dot(a)
    made = ones.dot(a[:whole].reshape((n // groups, groups * width))).reshape((groups, width))
    made[: n - whole] += a[whole:]
    return sum_rows(made)
