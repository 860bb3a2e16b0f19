"""Choosing between two arrays by a condition: the op of `numpy.where`, and the `choose` that rules are written with."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.tensor import raw


def choose(condition: Any, x: Any, y: Any) -> Any:
    """Choose as `numpy.where`; gradients flow into the branch taken."""
    return _where(x, y, raw(condition))


def where_kernel(x: Any, y: Any, condition: Any) -> Any:
    """Return numpy.where(condition, x, y) of plain arrays and numbers."""
    if condition.__class__ is np.ndarray and condition.size >= MANY and condition.dtype == np.bool_:
        made = _where_by_bits(x, y, condition)
        if made is not None:
            return made
    if condition.__class__ in (bool, int, float, complex):  # which CuPy does not take
        xp = libraries.namespace(x)
        condition = (libraries.namespace(y) if xp is np else xp).asarray(condition)
    return np.where(condition, x, y)


MANY = 1024  # elements, from which on the ways below are the faster ones
_BITS = MappingProxyType({np.dtype(np.float16): np.int16, libraries.F4: np.int32, libraries.F8: np.int64})


def _where_by_bits(x: Any, y: Any, condition: Any) -> Any:
    """Choose by integer arithmetic on the bits, or return None if x and y are not of one kind.

    numpy.where waits for each element whether its branch was guessed right: 3.7 ns an element where the condition is
    irregular. This takes 0.17 ns with a 0, 0.36 ns in float32 between two arrays. A product of the numbers
    themselves would not do: 0 * inf is NaN.
    """
    if x.__class__ is np.ndarray:
        integer = _BITS.get(x.dtype)
        if integer is None or x.shape != condition.shape:
            return None
        if y.__class__ is np.ndarray:
            if y.dtype != x.dtype or y.shape != x.shape:
                return None
            made = _empty_as_chosen(x, y, condition)
            if made is None:
                return None
            bits, others = made.view(integer), y.view(integer)
            np.bitwise_xor(x.view(integer), others, out=bits)
            np.multiply(bits, condition, out=bits)
            np.bitwise_xor(bits, others, out=bits)
            return made
        return _times(x, condition, _empty_as_chosen(x, condition), integer) if _is_zero(y) else None
    if y.__class__ is np.ndarray and _is_zero(x):
        integer = _BITS.get(y.dtype)
        if integer is not None and y.shape == condition.shape:
            return _times(y, ~condition, _empty_as_chosen(y, condition), integer)
    return None


def _is_zero(value: Any) -> bool:
    """Tell whether a value is Python's 0 or 0.0, all bits of which are 0."""
    return value.__class__ in (int, float) and value == 0 and math.copysign(1.0, value) > 0


def _times(x: Any, bits: Any, made: Any, integer: Any) -> Any:
    """Write x where bits are 1, and 0 elsewhere, into an array and return it; or return None if there is none."""
    if made is not None:
        np.multiply(x.view(integer), bits, out=made.view(integer))
    return made


def _empty_as_chosen(x: Any, *others: Any) -> Any:
    """Return an empty array in the order of what numpy.where makes of x and others; None if it is no simple one.

    The order of C wins there, and sums of the elements are rounded by their order.
    """
    if x.flags.c_contiguous or any(a.flags.c_contiguous for a in others):
        return np.empty(x.shape, x.dtype)
    if x.flags.f_contiguous and all(a.flags.f_contiguous for a in others):
        return np.empty_like(x)
    return None


_where = custom(
    "where",
    where_kernel,
    vjp={
        "x": lambda g, condition: choose(condition, g, 0.0),
        "y": lambda g, condition: choose(condition, 0.0, g),
    },
    jvp={
        "x": lambda t, condition: choose(condition, t, 0.0),
        "y": lambda t, condition: choose(condition, 0.0, t),
    },
)
