"""Arrays of a GPU, CuPy's: which arrays are, whose memory they lie in, and whether two hold the same bits.

CuPy is looked up among the modules that the program has imported. Nothing here copies an array to the host.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right, insort
from typing import Any

import numpy as np

Array = Any


def loaded_cupy() -> Any | None:
    """Return the CuPy module if the user's program has imported it."""
    module = sys.modules.get("cupy")
    return module if hasattr(module, "ndarray") else None


def is_on_gpu(value: object) -> bool:
    """Tell whether a value is CuPy's array."""
    cupy = loaded_cupy()
    return cupy is not None and isinstance(value, cupy.ndarray)


def is_plain(value: object) -> bool:
    """Tell whether a value is an array or scalar of NumPy's, or an array of CuPy's."""
    return isinstance(value, (np.ndarray, np.generic)) or is_on_gpu(value)


def device_of(value: Array) -> int | None:
    """Return the number of the GPU that an array is on; None in the memory of the host."""
    return int(value.device.id) if is_on_gpu(value) else None


# ---------------------------------------------------------------- memory


class Regions:
    """Which slots' arrays lie where in the memory of GPUs.

    An array of CuPy's does not always say that it is a view: `base` is None for one made by `as_strided`, and for one
    taken over by DLPack. So memory is known by its addresses. The pool gives an address out again when all arrays in
    it are gone; a region represents one memory as long as one of those that were found in it is alive.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._found: dict[int, tuple[int, int, list[weakref.ref[Any]]]] = {}  # by start: the end, the slot, the arrays

    def owner_of(self, array: Array, number: int, *, is_input: bool) -> tuple[int | None, int]:
        """Return the slot in whose memory an array lies, and where; enter one with its own memory, or an input."""
        if not array.size:
            return None, 0
        start, end = bounds_of(array)
        at = bisect_right(self._starts, start)
        region = self._found[self._starts[at - 1]] if at else None
        is_alive = region is not None and region[0] >= end and any(ref() is not None for ref in region[2])
        if region is not None and is_alive and not is_input:
            region[2].append(weakref.ref(array))
            return region[1], start - self._starts[at - 1]
        if array.base is not None and not is_input:
            return None, 0
        self._enter(start, end, number, array)
        return number, 0

    def _enter(self, start: int, end: int, number: int, array: Array) -> None:
        at = bisect_right(self._starts, start)
        while at and self._found[self._starts[at - 1]][0] > start:  # was freed since, or is an input
            at -= 1
            del self._found[self._starts.pop(at)]
        while at < len(self._starts) and self._starts[at] < end:
            del self._found[self._starts.pop(at)]
        insort(self._starts, start)
        self._found[start] = end, number, [weakref.ref(array)]


def bounds_of(array: Array) -> tuple[int, int]:
    """Return the address of the lowest byte, and of the one after the highest."""
    low = high = array.data.ptr
    for n, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, stride) * (n - 1)
        high += max(0, stride) * (n - 1)
    return low, high + array.itemsize


# ---------------------------------------------------------------- values


def words_of(array: Array) -> Array:
    """Return the bits of an array as a row of unsigned numbers."""
    width = min(8, array.itemsize & -array.itemsize)
    row = array.reshape(-1)
    row = row.copy() if row.strides != (array.itemsize,) else row  # a broadcast view has no rows of bits
    return row.view(np.dtype(f"u{width}"))


def have_same_bits(one: Array, other: Array) -> bool:
    """Tell whether two arrays of the same shape hold the same bits; the program waits for the GPU to know."""
    return not one.size or bool((words_of(one) == words_of(other)).all())


def checksum_of(array: Array) -> tuple[int, int]:
    """Return numbers that change with the values and their order; the program waits for the GPU to know them."""
    if not array.size:
        return 0, 0
    words = words_of(array)
    return int(words.sum(dtype=np.uint64)), int(words.cumsum(dtype=np.uint64).sum(dtype=np.uint64))
