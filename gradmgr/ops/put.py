"""Writes in place by position or mask: put, put_along_axis, place, putmask, copyto, fill_diagonal."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.conversion import tracking
from gradmgr._engine.indexing import getitem
from gradmgr._engine.mutation import setitem, store
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr.ops.convert import holds_tensor, lift, lift_like
from gradmgr.ops.naming import named_errors
from gradmgr.ops.positions import align_with_axis, check_broadcasts, gather
from gradmgr.ops.shape import ravel, reshape
from gradmgr.ops.where import choose


def _untracked_values(name: str, *sources: Any) -> list[Any]:
    """Return the values of what goes into a plain array.

    Raises:
        TrackedConversionError: a manager tracks one of them.
    """
    lifted = [lift(s) if holds_tensor(s) else s for s in sources]
    for t in lifted:
        if isinstance(t, Tensor) and tracking(t):
            raise errors.TrackedConversionError(
                f"{name} would write {describe(t)}, which a manager tracks, into a plain array and lose its "
                "history; write into a Tensor, or pass t.numpy() explicitly"
            )
    return [raw(t) for t in lifted]


def _repeat_cyclically(values: Any, count: int) -> Any:
    """Return the first `count` of flat values that are repeated for as long as needed; one value as 0-d."""
    values = ravel(values)
    if values.size == 1:
        return reshape(values, ())
    if values.size >= count:
        return values if values.size == count else getitem(values, slice(0, count))
    return gather(values, libraries.namespace(raw(values)).arange(count) % values.size, 0)


def _put_flat(a: Tensor, places: Any, values: Any) -> None:
    """Write flat values, in cycles, at flat positions, which are known to be within."""
    values = _repeat_cyclically(values, places.size)
    if a.ndim == 0:
        setitem(a, (), values if values.ndim == 0 else getitem(values, -1))
    else:
        setitem(a, places if a.ndim == 1 else libraries.namespace(a._array).unravel_index(places, a.shape), values)


def put(a: Any, ind: Any, v: Any, mode: Any = "raise") -> None:
    """Write flat values, in cycles, at flat positions of `a` in place, as `numpy.put`; recorded.

    Of several writes to one element the last gets the gradient.
    """
    if not isinstance(a, Tensor):
        ind, v = _untracked_values("put", ind, v)
        np.put(a, ind, v, mode)
        return
    with named_errors("put"):
        np.put(np.zeros(1), 0, 0, mode)
    found, v = raw(lift(ind)), lift_like(v, a)
    xp = libraries.namespace_of(a._array, found)
    if libraries.is_array(raw(ind)) and not np.can_cast(found.dtype, np.intp, "safe"):
        raise TypeError(f"put: cannot cast the positions from {found.dtype} to {np.dtype(np.intp)} safely")
    places = xp.asarray(found).astype(np.intp).ravel()
    if places.size and not a.size:
        raise IndexError("put: cannot replace elements of an empty array")
    if not places.size or not v.size:
        return
    if mode == "wrap":
        places = places % a.size
    elif mode == "clip":
        places = places.clip(0, a.size - 1)
    else:
        outside = places[(places < -a.size) | (places >= a.size)]
        if outside.size:
            raise IndexError(f"put: index {int(outside[0])} is out of bounds for axis 0 with size {a.size}")
        places = xp.where(places < 0, places + a.size, places)
    _put_flat(a, places, v)


def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """Write at matching positions along an axis in place, as `numpy.put_along_axis`; recorded."""
    if not isinstance(arr, Tensor):
        indices, values = _untracked_values("put_along_axis", indices, values)
        np.put_along_axis(arr, indices, values, axis)
        return
    places, values = raw(lift(indices)), lift_like(values, arr)
    xp = libraries.namespace_of(arr._array, places)
    places = xp.asarray(places)
    shape = (arr.size,) if axis is None else arr.shape
    at = 0 if axis is None else normalize_axis_index(axis, arr.ndim, "put_along_axis")
    if places.dtype.kind not in "iu":
        raise IndexError("put_along_axis: `indices` must be an integer array")
    if places.ndim != len(shape):
        raise ValueError(
            f"put_along_axis: `indices` and `arr` must have the same number of dimensions: {places.ndim}, {len(shape)}"
        )
    if axis is not None:
        setitem(
            arr,
            tuple([places if k == at else align_with_axis(xp.arange(n), k, len(shape)) for k, n in enumerate(shape)]),
            values,
        )
        return
    check_broadcasts(values.shape, places.shape, "put_along_axis")
    setitem(arr, xp.unravel_index(_nonnegative_positions(places, arr.size, "put_along_axis"), arr.shape), values)


def _nonnegative_positions(places: Any, count: int, name: str) -> Any:
    """Return flat positions counted from the start."""
    seen = batched.innermost(places)
    if seen.size and (seen.min() < -count or seen.max() >= count):
        raise IndexError(f"{name}: an index is out of bounds for axis 0 with size {count}")
    return places % count if count else places


def _mask_for(a: Tensor, mask: Any, name: str) -> Any:
    chosen = raw(lift(mask))
    chosen = libraries.namespace_of(a._array, chosen).asarray(chosen).astype(bool)
    if chosen.size != a.size:
        raise ValueError(f"{name}: mask and data must be the same size")
    return chosen.reshape(a.shape)


def _check_safe(a: Tensor, values: Any, name: str) -> None:
    """Raise as NumPy where an array, not a number or list, would lose by the cast."""
    if libraries.is_array(raw(values)) and values.ndim and not np.can_cast(values.dtype, a.dtype, "safe"):
        raise TypeError(f"{name}: Cannot cast array data from {values.dtype} to {a.dtype} according to the rule 'safe'")


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Write flat values, in cycles, where a mask holds, in place, as `numpy.place`; recorded."""
    if not isinstance(arr, Tensor):
        np.place(arr, *_untracked_values("place", mask, vals))
        return
    _check_safe(arr, vals, "place")
    chosen, vals = _mask_for(arr, mask, "place"), lift_like(vals, arr)
    count = int(libraries.common_value(chosen.sum(), "how many elements the mask chooses"))
    if not count:
        return
    if not vals.size:
        raise ValueError("place: Cannot insert from an empty array!")
    setitem(arr, chosen, _repeat_cyclically(vals, count))


def putmask(a: Any, /, mask: Any, values: Any) -> None:
    """Write values.flat[n % size] at each a.flat[n] where a mask holds, as `numpy.putmask`; recorded."""
    if not isinstance(a, Tensor):
        np.putmask(a, *_untracked_values("putmask", mask, values))
        return
    _check_safe(a, values, "putmask")
    chosen, values = _mask_for(a, mask, "putmask"), ravel(lift_like(values, a))
    if not values.size:
        return
    if values.size == 1:
        taken = reshape(values, ())
    elif values.size >= a.size:
        taken = getitem(getitem(values, slice(0, a.size)), chosen.ravel())
    else:
        taken = gather(values, libraries.namespace(chosen).flatnonzero(chosen) % values.size, 0)
    setitem(a, chosen, taken)


def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """Write one array into another in place, as `numpy.copyto`; recorded.

    Raises:
        TrackedConversionError: `dst` is a plain array and a manager tracks `src`.
    """
    if not isinstance(dst, Tensor):
        src, where = _untracked_values("copyto", src, where)
        np.copyto(dst, src, casting, where)
        return
    src = src if src.__class__ in (int, float, complex, bool) else lift_like(src, dst)
    probe = src if not hasattr(src, "dtype") else np.zeros((), src.dtype)
    with named_errors("copyto"):
        np.copyto(np.zeros((), dst.dtype), probe, casting)
    check_broadcasts(np.shape(raw(src)), dst.shape, "copyto")
    if where is True:
        setitem(dst, ..., src)
        return
    where = raw(lift(where))
    xp = libraries.namespace_of(dst._array, where)
    mask = xp.asarray(where).astype(bool)
    check_broadcasts(mask.shape, dst.shape, "copyto: where mask")
    if batched.any_batched(mask):  # inside vmap it picks other elements in each example
        store(dst, choose(mask, src, dst), "copyto")
        return
    chosen = xp.broadcast_to(mask, dst.shape)
    if np.shape(raw(src)):
        extra = src.ndim - dst.ndim
        src = reshape(src, src.shape[extra:]) if extra > 0 else src
        src = getitem(broadcast_to(src, dst.shape), chosen)
    setitem(dst, chosen, src)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write flat values, in cycles, onto the main diagonal in place, as `numpy.fill_diagonal`; recorded."""
    if not isinstance(a, Tensor):
        (val,) = _untracked_values("fill_diagonal", val)
        np.fill_diagonal(a, val, wrap)
        return
    if a.ndim < 2:
        raise ValueError("fill_diagonal: array must be at least 2-d")
    if a.ndim == 2:
        step, end = a.shape[1] + 1, a.size if wrap else a.shape[1] ** 2
    elif len(set(a.shape)) > 1:
        raise ValueError("fill_diagonal: All dimensions of input must be of equal length")
    else:
        step, end = 1 + sum(a.shape[0] ** k for k in range(1, a.ndim)), a.size
    val = lift_like(val, a)
    places = libraries.namespace(a._array).arange(0, builtins.min(end, a.size), step)
    if places.size and val.size:
        _put_flat(a, places, val)
