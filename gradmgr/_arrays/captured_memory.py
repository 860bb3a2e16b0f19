"""In whose memory the arrays of a capture lie."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from sys import getrefcount
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.refcounts import BASE_GIVEN


class Memory:
    """Which slots' arrays lie where, so that views are known whatever made them."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[weakref.ref[Any], int]] = {}  # arrays with memory of their own, by identity
        self._starts: list[int] = []  # of the memory of inputs that are views of other arrays, sorted
        self._ends: dict[int, tuple[int, int]] = {}  # by start: the end, and the input's slot
        self._regions = gpu.Regions()

    def owner_of(self, array: Any, number: int, *, is_input: bool) -> tuple[int | None, int]:
        """Return the slot in whose memory an array lies, and where; enter one with memory of its own, or an input."""
        if not isinstance(array, np.ndarray):
            is_scalar = isinstance(array, np.generic)
            return (None, 0) if is_scalar else self._regions.owner_of(array, number, is_input=is_input)
        if array.base is None:
            return self.enter(array, number), 0
        if not array.size:
            return None, 0
        start, end = _bounds_of(array)
        if is_input:
            self._enter_input(start, end, number)
            return number, 0
        at = bisect_right(self._starts, start)
        known = self._ends[self._starts[at - 1]] if at else None
        if known is not None and known[0] >= end:
            return known[1], start - self._starts[at - 1]
        return self._found(array, number, start, end)

    def enter(self, array: Any, number: int) -> int | None:
        """Enter an array of NumPy's with memory of its own; return the slot in whose memory it lies, if it has any."""
        if not array.size:
            return None
        self._owners[id(array)] = weakref.ref(array), number
        return number

    def _enter_input(self, start: int, end: int, number: int) -> None:
        at = bisect_right(self._starts, start)
        while at and self._ends[self._starts[at - 1]][0] > start:  # was freed since
            at -= 1
            del self._ends[self._starts.pop(at)]
        while at < len(self._starts) and self._starts[at] < end:
            del self._ends[self._starts.pop(at)]
        self._starts.insert(at, start)
        self._ends[start] = end, number

    def _found(self, array: Any, number: int, start: int, end: int) -> tuple[int | None, int]:
        """Return in whose memory a view lies, and where.

        That of a whole array which no slot held, and to which nothing else refers, is its own: of a copy that `reshape`
        has made.
        """
        candidates = self._candidates(array)
        for owner, slot in candidates:
            one = owner()
            low, high = (0, 0) if one is None else _bounds_of(one)
            if low <= start and end <= high:
                return slot, start - low
        if not candidates and _holds_alone(array) and array.base.nbytes == end - start:
            self._owners[id(array.base)] = weakref.ref(array.base), number
            return number, 0
        return None, 0

    def _candidates(self, view: Any) -> list[tuple[weakref.ref[Any], int]]:
        """Return the arrays in whose memory a view may lie, and their slots."""
        base = view.base
        while (outer := getattr(base, "base", None)) is not None:
            base = outer
        if isinstance(base, np.ndarray):
            known = self._owners.get(id(base))
            return [known] if known is not None and known[0]() is base else []
        return list(self._owners.values())  # a memoryview, say, does not tell whose memory it shows


def _holds_alone(view: Any) -> bool:
    """Tell whether nothing but a view refers to the array that owns its memory."""
    base = view.base
    return getrefcount(base) == BASE_GIVEN and base.__class__ is np.ndarray and base.flags.owndata


def _bounds_of(array: Any) -> tuple[int, int]:
    """Return the address of the lowest byte, and of the one after the highest."""
    if array.flags.forc:  # without gaps; a third of the time
        start = array.__array_interface__["data"][0]
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)
