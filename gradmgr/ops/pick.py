"""Picking elements by position, and rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.context import is_tracked
from gradmgr._engine.custom import custom
from gradmgr._engine.indexing import getitem, is_simple, item_method, normalized, scatter
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.tensor import Tensor, bare, raw, wrap
from gradmgr._engine.views import as_new_array
from gradmgr.ops.arithmetic import plain_zeros
from gradmgr.ops.constant import constant, nonzero
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.shape import ravel
from gradmgr.ops.where import choose


def _other_item(x: Tensor, index: Any, /) -> Any:
    """Read x[index] with every kind of index NumPy takes; gradients of a repeated element add."""
    if index.__class__ is np.ndarray:
        return getitem(x, index.copy())  # as `normalized` has it
    return getitem(x, index) if is_simple(index) else read_at(x, normalized(index))


item_of = item_method(_other_item)


def read_at(x: Any, index: Any) -> Any:
    """Read x[index] at an index that may hold captured arrays where x is none: of a table that is a constant."""
    a = raw(x)
    held = libraries.beside(a, index)
    if held is a or (isinstance(x, Tensor) and is_tracked(x)):
        return getitem(x, index)
    return getitem(wrap(held) if isinstance(x, Tensor) else held, index)


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """Take elements along an axis as `numpy.take`; of the flat array without `axis`."""
    a = lift(a)
    a = wrap(a) if not isinstance(a, Tensor) and (holds_tensor(indices) or isinstance(out, Tensor)) else a
    if axis is None or (a.ndim == 0 and isinstance(axis, (int, np.integer)) and axis in (0, -1)):
        a, axis = (a if a.ndim == 1 else ravel(a)), 0
    axis = normalize_axis_index(axis, a.ndim)
    places = _positions(a, indices)
    if places.size and not a.shape[axis]:
        raise IndexError("take: cannot do a non-empty take from an empty axes.")
    if mode == "wrap":
        places = places % a.shape[axis]
    elif mode == "clip":
        places = places.clip(0, a.shape[axis] - 1)
    elif mode != "raise":
        raise ValueError(f"take's mode is 'raise', 'wrap' or 'clip'; found {mode!r}")
    z = read_at(a, (*[slice(None)] * axis, normalized(places)))
    return z if out is None else store(out, z, "take(out=...)")


def _positions(a: Any, indices: Any) -> Any:
    """Read positions as `numpy.take` does: a mask is zeros and ones, and a list may hold 1.0."""
    given = raw(lift(indices))
    if not (isinstance(indices, Tensor) or libraries.is_array(indices)):
        given = given.astype(np.intp)
    elif not np.can_cast(given.dtype, np.intp, "same_kind"):
        raise TypeError(f"take: cannot cast indices from {given.dtype} to {np.dtype(np.intp)} by the rule 'same_kind'")
    places = libraries.namespace_of(raw(a), given).asarray(given)
    return places.astype(np.intp) if places.dtype.kind == "b" else places


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    """Take matching elements along an axis as `numpy.take_along_axis`."""
    arr = lift(arr)
    arr = wrap(arr) if holds_tensor(indices) and not isinstance(arr, Tensor) else arr
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis_index(axis, arr.ndim)
    places = computed(_copied_beside, bare(arr), bare(lift(indices)))
    xp = libraries.namespace_of(bare(arr), places)
    if places.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if places.ndim != arr.ndim:
        raise ValueError(f"`indices` and `arr` must have the same number of dimensions: {places.ndim}, {arr.ndim}")
    index = [
        places if k == axis else xp.arange(n).reshape([-1 if j == k else 1 for j in range(arr.ndim)])
        for k, n in enumerate(arr.shape)
    ]
    return getitem(arr, tuple(index))


def _copied_beside(a: Any, positions: Any) -> Any:
    """Return a copy of positions, of the library of an array that is read at them."""
    return normalized(libraries.namespace_of(a, positions).asarray(positions))


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Choose as `numpy.where`; with one argument, `nonzero`.

    A NaN in the branch not taken can reach the gradient (0 times inf is NaN); compute that branch
    with `where=` instead: `np.log(x, where=mask, out=...)` has exact zeros there.
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ValueError("either both or neither of x and y should be given")
    if not (condition.__class__ is np.ndarray or isinstance(condition, Tensor)):
        libraries.check_plain(condition)
    return as_new_array(choose(condition, _lift_operand(x), _lift_operand(y)))


def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """Count, or add up the weights of, each value as `numpy.bincount`; gradients flow into the weights."""
    if not isinstance(weights, Tensor):
        return _counts(x, weights, minlength) if weights is not None else _counts(x, minlength=minlength)
    counts = raw(_counts(x, minlength=minlength))  # NumPy checks x
    places = raw(lift(x))
    places = libraries.namespace_of(raw(weights), places).asarray(places).astype(np.intp)
    if places.shape != weights.shape:
        raise ValueError(f"bincount takes x and weights of one axis and length; found {places.shape}, {weights.shape}")
    if not np.can_cast(weights.dtype, np.float64):
        raise TypeError(f"bincount: Cannot cast weights from {weights.dtype} to float64 according to the rule 'safe'")
    if not places.size:
        return wrap(counts)  # integers, as NumPy's
    return scatter(as_type(weights, np.float64), counts.shape, places)


_counts = constant(np.bincount)


def _lift_operand(a: Any) -> Any:
    """Lift anything but Python numbers, which stay weak in promotion."""
    return a if isinstance(a, (int, float, complex)) else lift(a)


_round = custom("round", lambda x, decimals: np.round(x, decimals), vjp={"x": plain_zeros}, jvp={"x": plain_zeros})


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Round as `numpy.round`; the derivative is zero."""
    z = _round(lift(a), decimals)
    return z if out is None else store(out, z, "round(out=...)")
