"""logsumexp of NumPy's float32 and float64, and its slope, in few passes over memory: the kernels of the op's fast way.

Large arrays are taken in blocks: exp(x - top) of a block, and the largest of it, never leave the cache. Of 1.28
million float64 the value takes 0.6 of the time of whole passes and the slope 0.45; 0.33 and 0.22 where freed memory
goes back to the system. A kernel in C, where gradmgr-native is installed, takes half of that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import blocks, native_kernels

Axes = tuple[int, ...]

# Bytes of a block: little else is in the cache, and with blocks of half this size calls take a tenth of the time.
_BLOCK = blocks.BLOCK
# From so many bytes on, an array is taken in blocks.
_LARGE = 2 * _BLOCK
# Rows up to this length are turned to columns, block by block: NumPy restarts its loop for each row that it reduces,
# which takes 30 ns, the time of 30 numbers.
_SHORT = 64
# Blocks of whole columns have at least so many: of 300 at a time NumPy's exp takes half as long again.
_NARROW = 2048
# The kernel in C computes logarithms one by one: it takes as long as NumPy for rows of this length.
_FOR_KERNEL = 32

_maximum: Any = np.maximum.reduce  # their stubs do not know a keepdims that is a variable
_sum: Any = np.add.reduce
_all: Any = np.logical_and.reduce


def is_large(x: Any) -> bool:
    """Tell whether an array is taken in blocks, where it can be."""
    return bool(x.nbytes > _LARGE)


def value(x: Any, axes: Axes, keepdims: bool) -> Any:
    """Return log(sum(exp(x))) along axes; x is not empty."""
    folded = _as_three_axes(x, axes) if is_large(x) else None
    if folded is None:
        z = _reduce_small(x, axes)
    else:
        z = _reduce_large(folded).reshape([1 if k in axes else n for k, n in enumerate(x.shape)])
    return z if keepdims else z.reshape([n for k, n in enumerate(x.shape) if k not in axes])[()]


def slope(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Return g times exp(x - out), divided by its sum, which takes out the rounding error of out; all are finite.

    `g` and `out` have the axes that were summed over, of length 1.
    """
    folded = _as_three_axes(x, axes) if is_large(x) else None
    if folded is None:
        e = x - out
        np.exp(e, out=e)
        e *= g / _sum(e, axis=axes, keepdims=True)
        return e
    rows, _, columns = folded.shape
    d = np.empty(x.shape, x.dtype)  # which is returned, and no view of it: a gradient need not be copied then
    _put_large_slope(d.reshape(folded.shape), g.reshape((rows, 1, columns)), folded, out.reshape((rows, 1, columns)))
    return d


def native_value(x: Any, axes: Axes, keepdims: bool) -> Any:
    """Return log(sum(exp(x))) along axes by a kernel in C; None if there is none or it is not for such an array."""
    kernel = native_kernels.find("logsumexp", x)
    lengths = None if kernel is None else _lengths_for_kernel(x, axes)
    if lengths is None:
        return None
    kept = tuple([1 if k in axes else n for k, n in enumerate(x.shape)])
    z = native_kernels.empty(kept, x)
    _run(kernel, lengths, native_kernels.contiguous(x), z)
    return z if keepdims else z.reshape([n for k, n in enumerate(x.shape) if k not in axes])[()]


def native_slope(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    """Return what `slope` does, and the right slopes where results are not finite, by a kernel in C; else None.

    The sum of exp(x - out) is divided by where it differs from 1 by more than 4 eps: errors of the exponentials are as
    large, and a second time over memory is saved.
    """
    kernel = native_kernels.find("logsumexp_vjp", x, g, out)
    lengths = None if kernel is None else _lengths_for_kernel(x, axes)
    if lengths is None:
        return None
    d = native_kernels.empty(x.shape, x, g)
    _run(kernel, lengths, *map(native_kernels.contiguous, (g, x, out)), d)
    return d


def _lengths_for_kernel(x: Any, axes: Axes) -> tuple[int, int, int] | None:
    """Return the three lengths of an array for the kernel in C, None if it is not for that one."""
    lengths = _three_lengths(x, axes) if axes else None
    return lengths if lengths is not None and lengths[1] >= _FOR_KERNEL else None


def _run(kernel: Any, lengths: tuple[int, int, int], *arrays: Any) -> None:
    """Run a kernel; where several threads may compute, they share the rows of large arrays."""
    rows, nbytes = lengths[0], math.prod(lengths) * arrays[0].itemsize
    if rows == 1 or nbytes <= _LARGE or blocks.get_num_threads() == 1 or arrays[0].__class__ is not np.ndarray:
        kernel(*arrays, *lengths)
        return
    by_rows = [a.reshape((rows, -1)) for a in arrays]
    parts = blocks.blocks(rows, nbytes, _BLOCK)
    blocks.run(lambda part: kernel(*[a[part] for a in by_rows], len(by_rows[0][part]), *lengths[1:]), parts)


def _reduce_small(x: Any, axes: Axes) -> Any:
    """Compute the logsumexp of a small array; the axes are kept."""
    top, regular = _finite_maximum(x, axes)
    e = x - top
    if regular:
        z = np.log(_sum(np.exp(e, out=e), axis=axes, keepdims=True))
    else:
        with np.errstate(divide="ignore", over="ignore"):  # log(0) = -inf is the right answer, and so is inf
            z = np.log(_sum(np.exp(e, out=e), axis=axes, keepdims=True))
    z += top
    return z


def _finite_maximum(x: Any, axes: Axes) -> tuple[Any, bool]:
    """Return the largest along axes, 0 in place of what is not finite, and whether all are."""
    top = _maximum(x, axis=axes, keepdims=True)
    if _all(np.isfinite(top), axis=None):
        return top, True
    return np.where(np.isfinite(top), top, np.zeros_like(top)), False


# ---------------------------------------------------------------- in blocks


def _as_three_axes(x: Any, axes: Axes) -> Any:
    """Return x as three axes of which the one in the middle is summed over; None if that takes a copy."""
    lengths = _three_lengths(x, axes) if x.flags.c_contiguous else None
    return None if lengths is None else x.reshape(lengths)


def _three_lengths(x: Any, axes: Axes) -> tuple[int, int, int] | None:
    first, end = min(axes), max(axes) + 1
    if end - first != len(axes):
        return None
    return math.prod(x.shape[:first]), math.prod(x.shape[first:end]), math.prod(x.shape[end:])


def _is_tall(x: Any) -> bool:
    """Tell whether there is one row, of columns so long that a block would be narrow: then the columns are cut."""
    rows, length, columns = x.shape
    return bool(rows == 1 and columns > 1 and length * _NARROW * x.itemsize > _BLOCK)


def _parts(x: Any) -> list[slice]:
    """Cut the rows; the columns if there is one row."""
    rows, _, columns = x.shape
    return blocks.blocks(rows if rows > 1 else columns, x.nbytes, _BLOCK)


def _places(part: slice, rows: int) -> tuple[slice, ...]:
    return (part,) if rows > 1 else (slice(None), slice(None), part)


def _is_transposed(x: Any) -> bool:
    return bool(x.shape[2] == 1 and x.shape[1] <= _SHORT)


def _reduce_large(x: Any) -> Any:
    rows, length, columns = x.shape
    if rows == columns == 1:
        return _reduce_one_row(x.reshape(length)).reshape((1, 1, 1))
    if _is_tall(x):
        top, regular = _finite_maximum(x, (1,))
        if regular:
            return np.log(_sum_tall(x[0], top[0], None)) + top
    z = np.empty((rows, 1, columns), x.dtype)
    transposed = _is_transposed(x)

    def work(part: slice) -> None:
        if transposed:
            z[part, 0, 0] = _reduce_small(np.ascontiguousarray(x[part, :, 0].T), (0,))[0]
        else:
            where = _places(part, rows)
            z[where] = _reduce_small(x[where], (1,))

    blocks.run(work, _parts(x))
    return z


def _put_large_slope(d: Any, g: Any, x: Any, out: Any) -> None:
    rows, length, columns = x.shape
    if rows == columns == 1 or _is_tall(x):
        tall = d.reshape((length, columns))
        factor = g[0] / _sum_tall(x.reshape(tall.shape), out[0], tall)
        blocks.run(lambda part: _scale(tall[part], factor), blocks.blocks(length, x.nbytes, _BLOCK))
        return
    transposed = _is_transposed(x)

    def work(part: slice) -> None:
        if transposed:
            e = np.ascontiguousarray(x[part, :, 0].T)
            e -= out[part, 0, 0]
            np.exp(e, out=e)
            e *= g[part, 0, 0] / _sum(e, axis=0)
            d[part, :, 0] = e.T
        else:
            where = _places(part, rows)
            e = np.subtract(x[where], out[where], out=d[where])
            np.exp(e, out=e)
            e *= g[where] / _sum(e, axis=1, keepdims=True)

    blocks.run(work, _parts(x))


def _scale(d: Any, factor: Any) -> None:
    d *= factor


def _sum_tall(x: Any, top: Any, to: Any) -> Any:
    """Return the sum of exp(x - top) over the first axis, kept, and put what is summed into `to`, if that is there."""
    parts = blocks.blocks(len(x), x.nbytes, _BLOCK)
    sums = np.empty((len(parts), x.shape[1]), x.dtype)
    numbers = {part.start: k for k, part in enumerate(parts)}

    def work(part: slice) -> None:
        e = np.subtract(x[part], top, out=None if to is None else to[part])
        _sum(np.exp(e, out=e), axis=0, out=sums[numbers[part.start]])

    blocks.run(work, parts)
    return _sum(sums, axis=0, keepdims=True)


def _reduce_one_row(x: Any) -> Any:
    """Reduce one long row, which is read once: the sum of each block is over exp(x - its own top)."""
    parts = blocks.blocks(len(x), x.nbytes, _BLOCK)
    tops, sums = np.empty((2, len(parts)), x.dtype)
    numbers = {part.start: k for k, part in enumerate(parts)}

    def work(part: slice) -> None:
        k, block = numbers[part.start], x[part]
        top = _maximum(block)
        if math.isfinite(top):
            e = block - top
            tops[k], sums[k] = top, _sum(np.exp(e, out=e))
        else:
            tops[k], sums[k] = _reduce_small(block, (0,))[0], 1

    blocks.run(work, parts)
    top = tops.max()
    if not math.isfinite(top):
        return _reduce_small(tops, (0,))
    sums *= np.exp(tops - top)
    return np.log(sums.sum(keepdims=True)) + top
