"""Picking elements by position, and rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import _xp
from gradmgr._custom import custom
from gradmgr._index import getitem, normalized, scatter
from gradmgr._inplace import store
from gradmgr._tensor import Tensor, raw
from gradmgr.ops.arithmetic import choose, plain_zeros
from gradmgr.ops.constant import constant, nonzero
from gradmgr.ops.convert import lift
from gradmgr.ops.shape import ravel


def item_of(x: Tensor, index: Any, /) -> Any:
    """Read x[index] with every kind of index NumPy takes; gradients of a repeated element add."""
    return getitem(x, index if index.__class__ in _SIMPLE else normalized(index))


_SIMPLE = frozenset((int, slice))


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """Take elements along an axis as `numpy.take`; of the flat array without `axis`."""
    a = lift(a)
    if axis is None:
        a, axis = (a if a.ndim == 1 else ravel(a)), 0
    axis = normalize_axis_index(axis, a.ndim)
    xp = _xp.namespace(raw(a))
    places = xp.asarray(raw(indices))
    if places.dtype.kind == "b" or not places.size:
        places = places.astype(np.intp)  # as NumPy: positions, not a mask
    if mode == "wrap":
        places = places % a.shape[axis]
    elif mode == "clip":
        places = xp.clip(places, 0, a.shape[axis] - 1)
    elif mode != "raise":
        raise ValueError(f"take's mode is 'raise', 'wrap' or 'clip'; found {mode!r}")
    z = getitem(a, (*[slice(None)] * axis, normalized(places)))
    return z if out is None else store(out, z, "take(out=...)")


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    """Take matching elements along an axis as `numpy.take_along_axis`."""
    arr = lift(arr)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis_index(axis, arr.ndim)
    xp = _xp.namespace(raw(arr))
    places = normalized(xp.asarray(raw(indices)))
    if places.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if places.ndim != arr.ndim:
        raise ValueError(f"`indices` and `arr` must have the same number of dimensions: {places.ndim}, {arr.ndim}")
    index = [
        places if k == axis else xp.arange(n).reshape([-1 if j == k else 1 for j in range(arr.ndim)])
        for k, n in enumerate(arr.shape)
    ]
    return getitem(arr, tuple(index))


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Choose as `numpy.where`; with one argument, `nonzero`.

    A NaN in the branch not taken can reach the gradient (0 times inf is NaN); compute that branch
    with `where=` instead: `np.log(x, where=mask, out=...)` has exact zeros there.
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ValueError("either both or neither of x and y should be given")
    return choose(condition, _lift_operand(x), _lift_operand(y))


def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """Count, or add up the weights of, each value as `numpy.bincount`; gradients flow into the weights."""
    if not isinstance(weights, Tensor):
        return _counts(x, weights, minlength) if weights is not None else _counts(x, minlength=minlength)
    xp = _xp.namespace(raw(weights))
    places = normalized(xp.asarray(raw(x)))
    if places.ndim != 1 or places.shape != weights.shape:
        raise ValueError(f"bincount takes x and weights of one axis and length; found {places.shape}, {weights.shape}")
    length = max(int(places.max()) + 1 if places.size else 0, minlength)
    if places.size and int(places.min()) < 0:
        raise ValueError("'list' argument must have no negative elements")
    return scatter(weights, (length,), places)


_counts = constant(np.bincount)


def _lift_operand(a: Any) -> Any:
    """Lift anything but Python numbers, which stay weak in promotion."""
    return a if isinstance(a, (int, float, complex)) else lift(a)


_round = custom("round", lambda x, decimals: np.round(x, decimals), vjp={"x": plain_zeros}, jvp={"x": plain_zeros})


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Round as `numpy.round`; the derivative is zero."""
    z = _round(lift(a), decimals)
    return z if out is None else store(out, z, "round(out=...)")
