"""Adding and removing elements: insert, delete, append, resize, trim_zeros."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr._arrays import libraries
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.mutation import as_type, setitem
from gradmgr._engine.op import zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.views import as_new_array
from gradmgr.ops.convert import holds_tensor, lift, lift_like
from gradmgr.ops.join import concatenate
from gradmgr.ops.naming import named_errors
from gradmgr.ops.positions import check_broadcasts, index_on_axis, lift_with_axis
from gradmgr.ops.shape import lengths_of, moveaxis, ravel, reshape, tile


def _positions_on_host(obj: Any) -> Any:
    """Return what says where, on the host: NumPy reads it there."""
    if isinstance(obj, slice):
        return obj
    found = raw(lift(obj)) if not isinstance(obj, (int, np.integer)) else obj
    if not libraries.is_array(found):
        return found
    found = np.asarray(libraries.to_device(found, "cpu"))
    return found.astype(np.intp) if not found.size and isinstance(obj, (list, tuple)) else found


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """Insert values before positions along an axis, as `numpy.insert`."""
    if not any(holds_tensor(part) for part in (arr, obj, values)):
        return np.insert(arr, obj, values, axis)
    arr, axis = lift_with_axis(arr, axis, "insert")
    obj, length = _positions_on_host(obj), arr.shape[axis]
    values = lift_like(values, arr)
    values = values if values.dtype == arr.dtype else as_type(values, arr.dtype)
    with named_errors("insert"):
        count = np.insert(np.arange(length), obj, -1).size - length
        if count == 1:  # one position takes all that the values hold
            values = reshape(values, (1,) * (arr.ndim - values.ndim) + tuple(values.shape))
            values = values if isinstance(obj, slice) or np.ndim(obj) else moveaxis(values, 0, axis)
            count = values.shape[axis]
        # NumPy itself reads the positions: -1 - k marks the place of value k.
        order = np.insert(np.arange(length), obj, -1 - np.arange(count))
    shape = (*arr.shape[:axis], length + count, *arr.shape[axis + 1 :])
    check_broadcasts(values.shape, (*shape[:axis], count, *shape[axis + 1 :]), "insert")
    xp, new = libraries.namespace(raw(arr)), np.flatnonzero(order < 0)
    places = np.empty(count, dtype=np.intp)
    places[-1 - order[new]] = new
    z = scatter(arr, shape, index_on_axis(axis, xp.asarray(order >= 0)))
    z = z if isinstance(z, Tensor) else wrap(z)
    setitem(z, index_on_axis(axis, xp.asarray(places)), values)
    return z


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Return what is left without the positions along an axis, as `numpy.delete`."""
    if not holds_tensor(arr) and not holds_tensor(obj):
        return np.delete(arr, obj, axis)
    arr, axis = lift_with_axis(arr, axis, "delete")
    length = arr.shape[axis]
    if obj.__class__ is int and -length <= obj < length and arr.size > 1024:  # slices are copied faster than by a mask
        place, tensor = obj % length, arr if isinstance(arr, Tensor) else wrap(arr)
        ends = slice(0, place), slice(place + 1, length)
        return concatenate([getitem(tensor, index_on_axis(axis, end)) for end in ends], axis)
    kept = np.zeros(length, dtype=bool)
    with named_errors("delete"):
        kept[np.delete(np.arange(length), _positions_on_host(obj))] = True
    arr = arr if isinstance(arr, Tensor) else wrap(arr)
    return getitem(arr, index_on_axis(axis, libraries.namespace(arr._array).asarray(kept)))


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Join values at the end as `numpy.append`; flattened without an axis."""
    if not holds_tensor(arr) and not holds_tensor(values):
        return np.append(arr, values, axis)
    parts = [lift_like(arr, values), lift_like(values, arr)]
    if axis is not None:
        axis = normalize_axis_index(axis, parts[0].ndim, "append")
    with named_errors("append"):
        return concatenate([ravel(part) for part in parts] if axis is None else parts, axis or 0)


def resize(a: Any, new_shape: Any) -> Any:
    """Return the elements in a new shape, repeated as needed, as `numpy.resize`."""
    if not holds_tensor(a):
        return np.resize(a, new_shape)
    a = ravel(lift(a))
    shape = lengths_of(new_shape, "resize")
    if any(n < 0 for n in shape):
        raise ValueError("resize: all elements of `new_shape` must be non-negative")
    size = math.prod(shape)
    if not a.size:
        return wrap(zeros(a, shape, a.dtype))
    repeated = tile(a, -(-size // a.size)) if size > a.size else a
    return as_new_array(reshape(getitem(repeated, slice(0, size)), shape))


def trim_zeros(filt: Any, trim: Any = "fb", axis: Any = None) -> Any:
    """Trim zeros off the front and back, along one axis or several, as `numpy.trim_zeros`."""
    if not holds_tensor(filt):
        return np.trim_zeros(filt, trim) if axis is None else np.trim_zeros(filt, trim, axis)
    filt, trim = lift(filt), trim.lower()
    if trim not in ("fb", "bf", "f", "b"):
        raise ValueError(f"trim_zeros: unexpected character(s) in `trim`: {trim!r}")
    axes = range(filt.ndim) if axis is None else normalize_axis_tuple(axis, filt.ndim, "axis")
    nonzero: Any = raw(filt).nonzero() if filt.ndim else ()
    some = bool(nonzero) and nonzero[0].size > 0
    index: list[slice] = [slice(None)] * filt.ndim
    for k in axes:
        first, end = (_cut_position(nonzero[k].min()), _cut_position(nonzero[k].max()) + 1) if some else (0, 0)
        whole_front, whole_back = "f" not in trim, "b" not in trim
        first = filt.shape[k] if not some and whole_back else first
        index[k] = slice(None if whole_front else first, None if whole_back else end)
    return getitem(filt, tuple(index))


def _cut_position(place: Any) -> int:
    return int(libraries.common_value(place, "where trim_zeros cuts"))
