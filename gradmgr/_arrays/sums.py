"""Sums over axes of NumPy's arrays: the bits of numpy.add.reduce, in less time where its loops are short.

It restarts its innermost loop for each run of neighbouring numbers: of those of vectors in space, say, three at a time,
it takes ten times as long as for as many numbers in long rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import blocks

Array = Any

# The last axis is summed by columns if it is shorter than this: NumPy, too, adds so few one after the other.
_SHORT = 8
_ROWS = 64  # from which on that takes less time
# Another axis, of which NumPy adds runs of so few numbers that follow it, is moved to the front.
_FEW, _NUMBERS = 16, 2048  # and of how many numbers in all
_add_reduce: Any = np.add.reduce  # its stubs do not know a keepdims that is a variable


def sum_of_numpy(a: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum a NumPy array over axes."""
    if a.size >= _ROWS and len(axes) == 1 and a.ndim > 1:
        shape, axis = a.shape, axes[0] % a.ndim
        rest = math.prod(shape[axis + 1 :])
        if _is_short(a, shape[axis], rest):
            made: Array = np.empty((*shape[:axis], *(1,) * keepdims, *shape[axis + 1 :]), a.dtype)
            if rest == 1:
                _sum_columns(a.reshape((-1, shape[axis])), made.reshape(-1))
            else:
                _sum_middle(a.reshape((-1, shape[axis], rest)), made.reshape((-1, rest)))
            return made
    return _add_reduce(a, axis=axes, keepdims=keepdims)


def _is_short(a: Array, n: int, rest: int) -> bool:
    """Tell whether NumPy's loops are short for a sum of n numbers, each followed by `rest` others."""
    if n < 2 or a.dtype.char not in "fd" or not a.flags.c_contiguous:
        return False
    if rest == 1:
        return n < _SHORT and a.size >= n * _ROWS
    return rest <= _FEW and a.size >= _NUMBERS and a.size > n * rest


def _sum_columns(a: Array, made: Array) -> None:
    np.add(a[:, 0], a[:, 1], out=made)
    for k in range(2, a.shape[1]):
        made += a[:, k]
    made += 0.0  # NumPy's sums of -0.0 are 0.0


def _sum_middle(a: Array, made: Array) -> None:
    """Sum over the second axis of three, of blocks in which it is copied to the front."""
    for part in blocks.blocks(len(a), a.nbytes):
        some = np.ascontiguousarray(a[part].transpose(1, 0, 2))
        _add_reduce(some.reshape((len(some), -1)), axis=0, out=made[part].reshape(-1))
