"""Editing: writes in place by position or mask, insert, delete, pad, block, grids, layouts, r_ and c_."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.elementwise import OpFunction, multilinear
from gradmgr._engine.indexing import add_at, getitem, scatter
from gradmgr._engine.mutation import as_type, copied, setitem
from gradmgr._engine.op import Function, linear, zeros
from gradmgr._engine.recorder import is_tracked
from gradmgr._engine.tensor import Tensor, describe, raw, wrap
from gradmgr.ops.arithmetic import choose, power
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.create import arange, asarray, copy_asked, device_for, linspace
from gradmgr.ops.create import in_order as _in_order
from gradmgr.ops.join import concatenate, vstack
from gradmgr.ops.order import along, beside, library, sort
from gradmgr.ops.reduce import max, mean, min
from gradmgr.ops.shape import diag, flip, lengths_of, moveaxis, ravel, reshape, tile, transpose

# NumPy's own, which compute on shapes and slices.
broadcast_shapes = np.broadcast_shapes
index_exp, mgrid, ogrid, s_ = np.index_exp, np.mgrid, np.ogrid, np.s_


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put our function's name before what NumPy says is wrong with positions or axes."""
    try:
        yield
    except errors.REJECTIONS as error:
        errors.put_name(error, name)
        raise


def _on_axis(axis: int, part: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, part)


def _columns(values: Any, axis: int, ndim: int) -> Any:
    """Return a vector's values along an axis of so many."""
    return values.reshape([-1 if k == axis else 1 for k in range(ndim)])


def _fits(shape: tuple[int, ...], target: tuple[int, ...], name: str) -> None:
    """Raise unless a value of this shape broadcasts into the target, axes of length 1 in front aside."""
    extra = len(shape) - len(target)
    tail = shape[extra:] if extra > 0 and all(n == 1 for n in shape[:extra]) else shape
    same = len(tail) <= len(target) and all(n in (1, m) for n, m in zip(tail[::-1], target[::-1], strict=False))
    if not same:
        raise ValueError(f"{name}: could not broadcast input array from shape {shape} into shape {target}")


# ---------------------------------------------------------------- reading positions along one axis


def _gather(a: Any, index: Any, axis: int) -> Any:
    return batched.read(a, _on_axis(axis, index)) if batched.differs(index) else a.take(index, axis)


def _add_up(g: Any, index: Any, length: int, axis: int) -> Any:
    """Add up what was read from each position; on NumPy, one write, and one reduceat for the repeats."""
    xp = libraries.namespace_of(g, index)
    z = xp.zeros((*g.shape[:axis], length, *g.shape[axis + 1 :]), g.dtype)
    if xp is not np:
        add_at(z, _on_axis(axis, index), g)
        return z
    places, first = np.unique(index, return_index=True)
    z[_on_axis(axis, places)] = g.take(first, axis)
    again = np.ones(index.size, dtype=bool)
    again[first] = False
    if again.any() and g.size:
        rest = np.flatnonzero(again)
        rest = rest[index[rest].argsort(kind="stable")]
        ordered = index[rest]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        z[_on_axis(axis, ordered[starts])] += np.add.reduceat(g.take(rest, axis), starts, axis)
    return z


# take() along one axis for positions that repeat; numpy.add.at, which getitem's adjoint needs, is 10-50x slower.
gather: Function = linear("gather", _gather, lambda g, shape, index, axis: gather_back(g, index, shape[axis], axis))
gather_back: Function = linear("gather_back", _add_up, lambda g, index, axis: gather(g, index, axis))


# ---------------------------------------------------------------- writes in place


def _refuse_tracked(name: str, *sources: Any) -> list[Any]:
    """Return the values of what goes into a plain array.

    Raises:
        TrackedConversionError: a manager tracks one of them.
    """
    lifted = [lift(s) if holds_tensor(s) else s for s in sources]
    for t in lifted:
        if isinstance(t, Tensor) and is_tracked(t):
            raise errors.TrackedConversionError(
                f"{name} would write {describe(t)}, which a manager tracks, into a plain array and lose its "
                "history; write into a Tensor, or pass t.numpy() explicitly"
            )
    return [raw(t) for t in lifted]


def _in_cycle(values: Any, count: int) -> Any:
    """Return the first `count` of flat values that are repeated for as long as needed; one value as 0-d."""
    values = ravel(values)
    if values.size == 1:
        return reshape(values, ())
    if values.size >= count:
        return values if values.size == count else getitem(values, slice(0, count))
    return gather(values, libraries.namespace(raw(values)).arange(count) % values.size, 0)


def _put_flat(a: Tensor, places: Any, values: Any) -> None:
    """Write flat values, in cycles, at flat positions, which are known to be within."""
    values = _in_cycle(values, places.size)
    if a.ndim == 0:
        setitem(a, (), values if values.ndim == 0 else getitem(values, -1))
    else:
        setitem(a, places if a.ndim == 1 else libraries.namespace(a._array).unravel_index(places, a.shape), values)


def put(a: Any, ind: Any, v: Any, mode: Any = "raise") -> None:
    """Write flat values, in cycles, at flat positions of `a` in place, as `numpy.put`; recorded.

    Of several writes to one element the last gets the gradient.
    """
    if not isinstance(a, Tensor):
        ind, v = _refuse_tracked("put", ind, v)
        np.put(a, ind, v, mode)
        return
    with _naming("put"):
        np.put(np.zeros(1), 0, 0, mode)
    found, v = raw(lift(ind)), beside(v, a)
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
        indices, values = _refuse_tracked("put_along_axis", indices, values)
        np.put_along_axis(arr, indices, values, axis)
        return
    places, values = raw(lift(indices)), beside(values, arr)
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
            tuple([places if k == at else _columns(xp.arange(n), k, len(shape)) for k, n in enumerate(shape)]),
            values,
        )
        return
    _fits(values.shape, places.shape, "put_along_axis")
    setitem(arr, xp.unravel_index(_inside(places, arr.size, "put_along_axis"), arr.shape), values)


def _inside(places: Any, count: int, name: str) -> Any:
    """Return flat positions counted from the start."""
    seen = batched.innermost(places)
    if seen.size and (int(seen.min()) < -count or int(seen.max()) >= count):
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
        np.place(arr, *_refuse_tracked("place", mask, vals))
        return
    _check_safe(arr, vals, "place")
    chosen, vals = _mask_for(arr, mask, "place"), beside(vals, arr)
    count = int(chosen.sum())
    if not count:
        return
    if not vals.size:
        raise ValueError("place: Cannot insert from an empty array!")
    setitem(arr, chosen, _in_cycle(vals, count))


def putmask(a: Any, /, mask: Any, values: Any) -> None:
    """Write values.flat[n % size] at each a.flat[n] where a mask holds, as `numpy.putmask`; recorded."""
    if not isinstance(a, Tensor):
        np.putmask(a, *_refuse_tracked("putmask", mask, values))
        return
    _check_safe(a, values, "putmask")
    chosen, values = _mask_for(a, mask, "putmask"), ravel(beside(values, a))
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
        src, where = _refuse_tracked("copyto", src, where)
        np.copyto(dst, src, casting, where)
        return
    src = src if src.__class__ in (int, float, complex, bool) else beside(src, dst)
    probe = src if not hasattr(src, "dtype") else np.zeros((), src.dtype)
    with _naming("copyto"):
        np.copyto(np.zeros((), dst.dtype), probe, casting)
    _fits(np.shape(raw(src)), dst.shape, "copyto")
    if where is True:
        setitem(dst, ..., src)
        return
    xp = libraries.namespace(dst._array)
    mask = xp.asarray(raw(lift(where))).astype(bool)
    _fits(mask.shape, dst.shape, "copyto: where mask")
    chosen = xp.broadcast_to(mask, dst.shape)
    if np.shape(raw(src)):
        extra = src.ndim - dst.ndim
        src = reshape(src, src.shape[extra:]) if extra > 0 else src
        src = getitem(broadcast_to(src, dst.shape), chosen)
    setitem(dst, chosen, src)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write flat values, in cycles, onto the main diagonal in place, as `numpy.fill_diagonal`; recorded."""
    if not isinstance(a, Tensor):
        (val,) = _refuse_tracked("fill_diagonal", val)
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
    val = beside(val, a)
    places = libraries.namespace(a._array).arange(0, builtins.min(end, a.size), step)
    if places.size and val.size:
        _put_flat(a, places, val)


# ---------------------------------------------------------------- insert, delete, append, resize


def _positions(obj: Any) -> Any:
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
    arr, axis = along(arr, axis, "insert")
    obj, length = _positions(obj), arr.shape[axis]
    values = beside(values, arr)
    values = values if values.dtype == arr.dtype else as_type(values, arr.dtype)
    with _naming("insert"):
        count = np.insert(np.arange(length), obj, -1).size - length
        if count == 1:  # one position takes all that the values hold
            values = reshape(values, (1,) * (arr.ndim - values.ndim) + tuple(values.shape))
            values = values if isinstance(obj, slice) or np.ndim(obj) else moveaxis(values, 0, axis)
            count = values.shape[axis]
        # NumPy's own reading of the positions: -1 - k stands where value k goes.
        order = np.insert(np.arange(length), obj, -1 - np.arange(count))
    shape = (*arr.shape[:axis], length + count, *arr.shape[axis + 1 :])
    _fits(values.shape, (*shape[:axis], count, *shape[axis + 1 :]), "insert")
    xp, new = libraries.namespace(raw(arr)), np.flatnonzero(order < 0)
    places = np.empty(count, dtype=np.intp)
    places[-1 - order[new]] = new
    z = scatter(arr, shape, _on_axis(axis, xp.asarray(order >= 0)))
    z = z if isinstance(z, Tensor) else wrap(z)
    setitem(z, _on_axis(axis, xp.asarray(places)), values)
    return z


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Return what is left without the positions along an axis, as `numpy.delete`."""
    if not holds_tensor(arr) and not holds_tensor(obj):
        return np.delete(arr, obj, axis)
    arr, axis = along(arr, axis, "delete")
    length = arr.shape[axis]
    if obj.__class__ is int and -length <= obj < length and arr.size > 1024:  # slices are copied faster than by a mask
        place, tensor = obj % length, arr if isinstance(arr, Tensor) else wrap(arr)
        ends = slice(0, place), slice(place + 1, length)
        return concatenate([getitem(tensor, _on_axis(axis, end)) for end in ends], axis)
    kept = np.zeros(length, dtype=bool)
    with _naming("delete"):
        kept[np.delete(np.arange(length), _positions(obj))] = True
    arr = arr if isinstance(arr, Tensor) else wrap(arr)
    return getitem(arr, _on_axis(axis, libraries.namespace(arr._array).asarray(kept)))


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Join values at the end as `numpy.append`; flattened without an axis."""
    if not holds_tensor(arr) and not holds_tensor(values):
        return np.append(arr, values, axis)
    parts = [beside(arr, values), beside(values, arr)]
    if axis is not None:
        axis = normalize_axis_index(axis, parts[0].ndim, "append")
    with _naming("append"):
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
    return reshape(getitem(repeated, slice(0, size)), shape)


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
        first, end = (_end(nonzero[k].min()), _end(nonzero[k].max()) + 1) if some else (0, 0)
        whole_front, whole_back = "f" not in trim, "b" not in trim
        first = filt.shape[k] if not some and whole_back else first
        index[k] = slice(None if whole_front else first, None if whole_back else end)
    return getitem(filt, tuple(index))


def _end(place: Any) -> int:
    return int(batched.common(place, "where trim_zeros cuts"))


# ---------------------------------------------------------------- pad


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Pad as `numpy.pad`, in every mode; gradients flow through what the padding is made of.

    With mode="empty" the padding is zero. A user's function as the mode gets each vector as a
    Tensor, which it writes to in place.
    """
    if not callable(mode):
        with _naming("pad"):  # here, and not by the door: the errors of a user's function are the user's
            return _padded(array, pad_width, mode, kwargs)
    if not any(holds_tensor(part) for part in (array, pad_width, *kwargs.values())):
        return np.pad(array, pad_width, mode, **kwargs)
    array = lift(array)
    array = array if isinstance(array, Tensor) else wrap(array)
    return _padded_by(mode, array, _widths(pad_width, array.ndim), kwargs)


def _padded(array: Any, pad_width: Any, mode: Any, kwargs: dict[str, Any]) -> Any:
    if not any(holds_tensor(part) for part in (array, pad_width, *kwargs.values())):
        return np.pad(array, pad_width, mode, **kwargs)
    array = lift(array)
    array = array if isinstance(array, Tensor) else wrap(array)
    widths = _widths(pad_width, array.ndim)
    if mode not in _PADDINGS:
        raise ValueError(f"pad: mode {mode!r} is not supported")
    padding, allowed = _PADDINGS[mode]
    unknown = set(kwargs) - set(allowed)
    if unknown:
        raise ValueError(f"pad: unsupported keyword arguments for mode {mode!r}: {unknown}")
    for k, (before, after) in enumerate(widths):
        if array.shape[k] == 0 and before + after and mode not in ("constant", "empty"):
            raise ValueError(f"pad: can't extend empty axis {k} using modes other than 'constant' or 'empty'")
    if not libraries.is_differentiable(array.dtype):  # a constant, and rounded in ways that only NumPy knows
        return wrap(np.pad(raw(array), widths, mode, **{key: _values_of(value) for key, value in kwargs.items()}))
    return padding(array, widths, mode, kwargs)


def _values_of(option: Any) -> Any:
    return raw(lift(option)) if holds_tensor(option) else option


def _widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    """Read a pad_width in any of its forms."""
    if isinstance(pad_width, dict):
        by_axis: list[Any] = [(0, 0)] * ndim
        for k, width in pad_width.items():
            by_axis[k] = width if isinstance(width, tuple) else (width, width)
        pad_width = by_axis
    widths = np.asarray(raw(pad_width))
    if widths.dtype.kind not in "iu":
        raise TypeError("pad: `pad_width` must be of integral type.")
    if (widths < 0).any():
        raise ValueError("pad: index can't contain negative values")
    with _naming("pad"):
        return [(int(before), int(after)) for before, after in np.broadcast_to(widths, (ndim, 2))]


def _pairs(option: Any, ndim: int) -> list[list[Any]]:
    """Read an option as a pair for each axis: numbers, or 0-d Tensors out of a Tensor."""
    values = lift(option)
    if not isinstance(values, Tensor):
        with _naming("pad"):
            pairs: list[list[Any]] = np.broadcast_to(values, (ndim, 2)).tolist()
        return pairs
    _fits(values.shape, (ndim, 2), "pad")
    spread = broadcast_to(values, (ndim, 2))
    return [[getitem(spread, (k, side)) for side in (0, 1)] for k in range(ndim)]


def _lengths(option: Any, ndim: int) -> list[list[Any]]:
    """Read stat_length: positive integers, or None for all there is."""
    if option is None:
        return [[None, None]] * ndim
    lengths = np.round(np.asarray(_values_of(option))).astype(np.intp)
    if (lengths < 0).any():
        raise ValueError("pad: index can't contain negative values")
    with _naming("pad"):
        pairs: list[list[Any]] = np.broadcast_to(lengths, (ndim, 2)).tolist()
    return pairs


def _surrounded(a: Any, widths: Any) -> tuple[Any, tuple[slice, ...]]:
    """Return the array amid zeros, and where it lies in them."""
    shape = tuple([before + n + after for n, (before, after) in zip(a.shape, widths, strict=True)])
    inner = tuple([slice(before, before + n) for n, (before, _) in zip(a.shape, widths, strict=True)])
    return scatter(a, shape, inner), inner


def _pad_empty(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    return _surrounded(a, widths)[0]


def _pad_constant(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    z, inner = _surrounded(a, widths)
    pairs = _pairs(options.get("constant_values", 0), a.ndim)
    for k, (before, after) in enumerate(widths):  # later axes fill the corners
        rest = inner[k + 1 :]
        for value, part, count in zip(
            pairs[k], (slice(0, before), slice(z.shape[k] - after, None)), (before, after), strict=True
        ):
            if count and not (isinstance(value, (int, float, complex)) and value == 0):
                setitem(z, (*_on_axis(k, part), *rest), value)
    return z


def _pad_from_within(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    """Pad with elements of the array itself; odd reflections are mirrored in the edges' values, too."""
    z = copied(a)
    for k, (before, after) in enumerate(widths):
        if before + after == 0:
            continue
        length = a.shape[k]
        if options.get("reflect_type", "even") == "odd" and length > 1:
            z = _reflected_oddly(z, k, before, after, mode == "symmetric")
        else:
            places = np.pad(np.arange(length), (before, after), mode)
            z = gather(z, libraries.namespace(raw(z)).asarray(places), k)
    return z


def _reflected_oddly(z: Any, axis: int, before: int, after: int, with_edge: bool) -> Any:
    """Continue each line so that it is symmetric about the points at its ends.

    Both symmetries together make f(x + period) = f(x) + 2 (last - first).
    """
    xp, dtype, n = libraries.namespace(raw(z)), raw(z).real.dtype, z.shape[axis]
    period = 2 * n if with_edge else 2 * n - 2
    x = np.concatenate([np.arange(-before, 0), np.arange(n, n + after)])
    turns, rest = np.divmod(x, period)
    mirrored = rest >= n
    places = np.where(mirrored, period - with_edge - rest, rest)
    sign, of_first, of_last = [
        _columns(xp.asarray(c, dtype=dtype), axis, z.ndim)
        for c in (np.where(mirrored, -1, 1), -2 * turns, 2 * turns + 2 * mirrored)
    ]
    first, last = getitem(z, _on_axis(axis, slice(0, 1))), getitem(z, _on_axis(axis, slice(n - 1, n)))
    outside = gather(z, xp.asarray(places), axis) * sign + first * of_first + last * of_last
    left, right = (
        getitem(outside, _on_axis(axis, slice(0, before))),
        getitem(outside, _on_axis(axis, slice(before, None))),
    )
    return concatenate([left, z, right], axis)


def _pad_by_ramp(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    ends = _pairs(options.get("end_values", 0), a.ndim)
    z = a
    for k, (before, after) in enumerate(widths):
        left = _ramp(getitem(z, _on_axis(k, slice(0, 1))), ends[k][0], before, k)
        right = _ramp(getitem(z, _on_axis(k, slice(z.shape[k] - 1, None))), ends[k][1], after, k)
        z = concatenate([left, z, flip(right, k)], k)
    return z


def _ramp(edge: Any, end: Any, width: int, axis: int) -> Any:
    """Go from the end value, included, to the edge, which is not."""
    xp = libraries.namespace(raw(edge))
    steps = _columns(xp.arange(width, dtype=raw(edge).real.dtype), axis, edge.ndim)
    ramp = (edge - end) / builtins.max(width, 1) * steps + end
    return ramp if ramp.dtype == edge.dtype else as_type(ramp, edge.dtype)


def _median(a: Any, axis: int, keepdims: bool) -> Any:
    """The median along an axis that stays; NaN where there is a NaN, which sorting puts last."""
    length = a.shape[axis]
    if not length:
        return mean(a, axis, keepdims=keepdims)
    ordered = sort(a, axis)
    middle = getitem(ordered, _on_axis(axis, slice((length - 1) // 2, length // 2 + 1)))
    last = getitem(ordered, _on_axis(axis, slice(length - 1, None)))
    return choose(raw(last) != raw(last), last, mean(middle, axis, keepdims=keepdims))


def _pad_by_statistic(a: Any, widths: Any, mode: Any, options: Any) -> Any:
    statistic = _STATISTICS[mode]
    lengths = _lengths(options.get("stat_length"), a.ndim)
    if mode in ("maximum", "minimum") and any(n == 0 for pair in lengths for n in pair):
        raise ValueError("pad: stat_length of 0 yields no value for padding")
    z = a
    for k, (before, after) in enumerate(widths):
        n = a.shape[k]
        left, right = [n if length is None else builtins.min(length, n) for length in lengths[k]]
        front = statistic(getitem(z, _on_axis(k, slice(0, left))), k, keepdims=True)
        back = (
            front
            if left == right == n
            else statistic(getitem(z, _on_axis(k, slice(n - right, None))), k, keepdims=True)
        )
        parts = [(front, before), (z, None), (back, after)]
        z = concatenate([part if width is None else _widened(part, width, k) for part, width in parts], k)
    return z


def _widened(part: Any, width: int, axis: int) -> Any:
    return broadcast_to(part, (*part.shape[:axis], width, *part.shape[axis + 1 :]))


def _padded_by(function: Callable[..., Any], a: Any, widths: Any, kwargs: dict[str, Any]) -> Any:
    """Let a user's function write the padding into each vector along each axis."""
    z, _ = _surrounded(a, widths)
    for axis in range(a.ndim):
        for place in np.ndindex(*z.shape[:axis], *z.shape[axis + 1 :]):
            index = (*place[:axis], slice(None), *place[axis:])
            vector = getitem(z, index)
            function(vector, widths[axis], axis, kwargs)
            setitem(z, index, vector)
    return z


_STATISTICS = MappingProxyType({"maximum": max, "mean": mean, "median": _median, "minimum": min})
# By mode: what pads, and the keywords it takes.
_PADDINGS: MappingProxyType[Any, tuple[Any, tuple[str, ...]]] = MappingProxyType(
    {
        "constant": (_pad_constant, ("constant_values",)),
        "empty": (_pad_empty, ()),
        "edge": (_pad_from_within, ()),
        "wrap": (_pad_from_within, ()),
        "reflect": (_pad_from_within, ("reflect_type",)),
        "symmetric": (_pad_from_within, ("reflect_type",)),
        "linear_ramp": (_pad_by_ramp, ("end_values",)),
        **dict.fromkeys(_STATISTICS, (_pad_by_statistic, ("stat_length",))),
    }
)

# ---------------------------------------------------------------- block, grids, products


def block(arrays: Any) -> Any:
    """Join nested lists of blocks as `numpy.block`."""
    if not holds_tensor(arrays):
        return np.block(arrays)
    depth = _depth(arrays, "arrays")
    leaves = list(_leaves(arrays))
    ndim = builtins.max(depth, *(lift(leaf).ndim for leaf in leaves))
    return _joined(arrays, depth, ndim, library(*leaves))


def _depth(arrays: Any, where: str) -> int:
    """Return how deep the lists are, which must be one and the same everywhere."""
    if isinstance(arrays, tuple):
        raise TypeError(f"block: {where} is a tuple. Only lists can be used to arrange blocks")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError(f"block: List at {where} cannot be empty")
    depths = [_depth(part, f"{where}[{k}]") for k, part in enumerate(arrays)]
    for k, depth in enumerate(depths):
        if depth != depths[0]:
            raise ValueError(f"block: List depths are mismatched: {depths[0] + 1} first, {depth + 1} at {where}[{k}]")
    return depths[0] + 1


def _leaves(arrays: Any) -> Iterator[Any]:
    if isinstance(arrays, list):
        for part in arrays:
            yield from _leaves(part)
    else:
        yield arrays


def _joined(arrays: Any, depth: int, ndim: int, xp: Any) -> Any:
    if depth == 0:
        a = lift(arrays) if holds_tensor(arrays) or libraries.is_array(arrays) else xp.asarray(arrays)
        return copied(a) if a.ndim == ndim else reshape(a, (1,) * (ndim - a.ndim) + tuple(a.shape))
    with _naming("block"):
        return concatenate([_joined(part, depth - 1, ndim, xp) for part in arrays], ndim - depth)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: Any = "xy") -> tuple[Any, ...]:
    """Make grids of coordinates out of vectors, as `numpy.meshgrid`."""
    if not any(holds_tensor(x) for x in xi):
        return np.meshgrid(*xi, copy=copy, sparse=sparse, indexing=indexing)
    if indexing not in ("xy", "ij"):
        raise ValueError("meshgrid: Valid values for `indexing` are 'xy' and 'ij'.")
    vectors = [ravel(beside(x, *xi)) for x in xi]
    count = len(vectors)
    axes = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    grids = [reshape(x, [-1 if j == k else 1 for j in range(count)]) for k, x in zip(axes, vectors, strict=True)]
    grids = [g if isinstance(g, Tensor) else wrap(g) for g in grids]
    if not sparse:
        shape = np.broadcast_shapes(*(g.shape for g in grids))
        grids = [broadcast_to(g, shape) for g in grids]
    return tuple([copied(g) for g in grids] if copy else grids)


def ix_(*args: Any) -> tuple[Any, ...]:
    """Make an open mesh out of vectors of positions, or masks, as `numpy.ix_`."""
    if not any(holds_tensor(x) for x in args):
        return np.ix_(*args)
    made = []
    for k, arg in enumerate(args):
        x = beside(arg, *args)
        if x.ndim != 1:
            raise ValueError("ix_: Cross index must be 1 dimensional")
        if x.dtype.kind == "b":
            x = raw(x).nonzero()[0]
        elif not x.size and not libraries.is_array(raw(arg)):
            x = x.astype(np.intp)
        x = x if isinstance(x, Tensor) else wrap(x)
        made.append(reshape(x, [-1 if j == k else 1 for j in range(len(args))]))
    return tuple(made)


def diagflat(v: Any, k: int = 0) -> Any:
    """Make a matrix with the flattened input on a diagonal, as `numpy.diagflat`."""
    return diag(ravel(lift(v)), k) if holds_tensor(v) else np.diagflat(v, k)


def kron(a: Any, b: Any) -> Any:
    """Return the Kronecker product as `numpy.kron`."""
    if not holds_tensor(a) and not holds_tensor(b):
        return np.kron(a, b)
    x, y = beside(a, b), beside(b, a)
    ndim = builtins.max(x.ndim, y.ndim)
    m, n = [(1,) * (ndim - t.ndim) + tuple(t.shape) for t in (x, y)]
    rows = reshape(x, [size for length in m for size in (length, 1)])
    columns = reshape(y, [size for length in n for size in (1, length)])
    return reshape(rows * columns, [i * j for i, j in zip(m, n, strict=True)])


_cross: OpFunction = multilinear(
    "cross",
    lambda x, y: np.cross(x, y),
    lambda g, y: _cross(y, g),
    lambda g, x: _cross(g, x),
)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Return the cross product of vectors as `numpy.cross`; those of 2 elements only where NumPy still takes them."""
    if not holds_tensor(a) and not holds_tensor(b):
        return np.cross(a, b, axisa, axisb, axisc, axis)
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = beside(a, b), beside(b, a)
    if a.ndim < 1 or b.ndim < 1:
        raise ValueError("cross: At least one array has zero dimension")
    x = moveaxis(a, normalize_axis_index(axisa, a.ndim, "axisa"), -1)
    y = moveaxis(b, normalize_axis_index(axisb, b.ndim, "axisb"), -1)
    lengths = x.shape[-1], y.shape[-1]
    if lengths != (3, 3):
        with _naming("cross"):
            np.cross(np.zeros(lengths[0]), np.zeros(lengths[1]))  # raises or warns, as this NumPy does
        if lengths == (2, 2):
            return x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]
        x, y = _in_space(x), _in_space(y)
    with _naming("cross"):
        ndim = len(np.broadcast_shapes(x.shape, y.shape))
    return moveaxis(_cross(x, y), -1, normalize_axis_index(axisc, ndim, "axisc"))


def _in_space(x: Any) -> Any:
    """Give vectors of 2 elements a third, 0."""
    if x.shape[-1] == 3:
        return x
    return scatter(x, (*x.shape[:-1], 3), (..., slice(0, 2)))


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803  # NumPy's name
    """Return the matrix of powers as `numpy.vander`."""
    if not holds_tensor(x):
        return np.vander(x, N, increasing)
    x = lift(x)
    if x.ndim != 1:
        raise ValueError("vander: x must be a one-dimensional array or sequence.")
    count = x.shape[0] if N is None else int(N)
    if count < 0:
        raise ValueError("vander: negative dimensions are not allowed")
    dtype = np.promote_types(x.dtype, int)
    x = x if x.dtype == dtype else as_type(x, dtype)
    powers = libraries.namespace(raw(x)).arange(count)
    return power(reshape(x, (-1, 1)), powers if increasing else powers[::-1])


def tri(
    N: int,  # noqa: N803  # NumPy's names
    M: int | None = None,  # noqa: N803  # NumPy's name
    k: int = 0,
    dtype: Any = float,
    *,
    like: Any = None,
) -> Tensor:
    """Return ones at and below a diagonal, zeros above it, as `numpy.tri`; on the device of `like`."""
    return asarray(np.tri(N, M, k, dtype), device=_device_of(like))


def row_stack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    """Join as rows, as `vstack`, of which this is NumPy's deprecated alias."""
    errors.warn("`row_stack` alias is deprecated. Use `vstack` directly.", DeprecationWarning)
    return vstack(tup, dtype=dtype, casting=casting)


# ---------------------------------------------------------------- layouts


def _device_of(like: Any) -> str | None:
    return device_for(None, like)


def _at_least_one_axis(t: Tensor) -> Any:
    return t if t.ndim else reshape(t, (1,))


def ascontiguousarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return a Tensor in C order, of at least one axis, as `numpy.ascontiguousarray`; gradients flow through."""
    return _at_least_one_axis(_in_order(asarray(a, dtype, _device_of(like)), "C"))


def asfortranarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return a Tensor in Fortran order, of at least one axis, as `numpy.asfortranarray`; gradients flow through."""
    return _at_least_one_axis(_in_order(asarray(a, dtype, _device_of(like)), "F"))


def _as_tensor(name: str) -> Callable[..., Tensor]:
    def function(
        a: Any,
        dtype: Any = None,
        order: str | None = None,
        *,
        device: str | None = None,
        copy: bool | None = None,
        like: Any = None,
    ) -> Tensor:
        copy = copy_asked(copy)
        t = asarray(a, dtype, device_for(device, like), copy=copy)
        made = _in_order(t, order)
        if copy is False and made is not t:
            raise ValueError(f"{name} with copy=False would need a copy for order {order!r}")
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return a Tensor as `gradmgr.asarray` does, by the arguments of `numpy.{name}`."
    return function


asanyarray = _as_tensor("asanyarray")
numpys_asarray = _as_tensor("asarray")


def asarray_chkfinite(a: Any, dtype: Any = None, order: str | None = None) -> Tensor:
    """Return a Tensor of finite values; gradients flow through.

    Raises:
        ValueError: there is an infinity or a NaN.
    """
    t = asanyarray(a, dtype, order)
    if t.dtype.kind not in "biu" and not bool(libraries.namespace(t._array).isfinite(t._array).all()):
        raise ValueError("asarray_chkfinite: array must not contain infs or NaNs")
    return t


# What NumPy calls each requirement.
_REQUIREMENTS = MappingProxyType(
    {
        **dict.fromkeys(("C", "C_CONTIGUOUS", "CONTIGUOUS"), "C"),
        **dict.fromkeys(("F", "F_CONTIGUOUS", "FORTRAN"), "F"),
        **dict.fromkeys(("A", "ALIGNED"), "A"),
        **dict.fromkeys(("W", "WRITEABLE"), "W"),
        **dict.fromkeys(("O", "OWNDATA"), "O"),
        **dict.fromkeys(("E", "ENSUREARRAY"), "E"),
    }
)


def require(a: Any, dtype: Any = None, requirements: Any = None, *, like: Any = None) -> Tensor:
    """Return a Tensor whose memory is as required, as `numpy.require`; gradients flow through.

    A Tensor can always be written to and is always aligned; "O" makes a copy where the memory
    belongs to another array.
    """
    asked = {_REQUIREMENTS[word.upper()] for word in requirements or ()}
    if {"C", "F"} <= asked:
        raise ValueError('require: Cannot specify both "C" and "F" order')
    t = asarray(a, dtype, _device_of(like))
    made = _in_order(t, "F" if "F" in asked else "C" if "C" in asked else None)
    aligned = getattr(made._array.flags, "aligned", True)
    return copied(made) if not aligned or ("O" in asked and not made._array.flags.owndata) else made


# ---------------------------------------------------------------- r_ and c_


class _Joiner:
    """What `r_` and `c_` are: joins what stands in its brackets, as NumPy's, differentiably."""

    __slots__ = ("_axis", "_ndmin", "_new_axes", "_numpys")

    def __init__(self, numpys: Any, axis: int, ndmin: int, new_axes: int) -> None:
        self._numpys = numpys
        self._axis = axis
        self._ndmin = ndmin
        self._new_axes = new_axes

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not any(_holds_tensor(part) for part in parts):
            return self._numpys[key]
        axis, ndmin, new_axes = self._axis, self._ndmin, self._new_axes
        if isinstance(parts[0], str):
            axis, ndmin, new_axes = self._directive(parts[0])
            parts = parts[1:]
        if any(isinstance(part, str) for part in parts):
            raise ValueError("special directives must be the first entry.")
        xp = library(*parts)
        items = [_range(part, xp) if isinstance(part, slice) else part for part in parts]
        dtype = np.result_type(*[item if np.isscalar(item) else lift(item).dtype for item in items])
        arrays = [_with_axes(beside(item, *parts), ndmin, new_axes) for item in items]
        return concatenate([a if a.dtype == dtype else as_type(a, dtype) for a in arrays], axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        """Read 'axis', 'axis,ndmin' or 'axis,ndmin,where the new axes go'."""
        if text in ("r", "c"):
            raise ValueError(f"directive {text!r} makes a numpy.matrix, which a Tensor is not; use stack or reshape")
        try:
            numbers = [int(word) for word in text.split(",")[:3]]
        except ValueError as error:
            raise ValueError(f"unknown special directive {text!r}") from error
        axis, ndmin, new_axes, *_ = (*numbers, *(self._axis, self._ndmin, self._new_axes)[len(numbers) :])
        return axis, ndmin, new_axes


def _holds_tensor(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return any(holds_tensor(end) for end in ends)


def _range(part: slice, xp: Any) -> Any:
    """What start:stop:step stands for; with an imaginary step, so many values, both ends included."""
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    count = int(abs(step)) if isinstance(step, complex) else None
    if _holds_tensor(part):
        return arange(start, part.stop, step) if count is None else linspace(start, part.stop, count)
    return xp.asarray(np.arange(start, part.stop, step) if count is None else np.linspace(start, part.stop, count))


def _with_axes(a: Any, ndmin: int, new_axes: int) -> Any:
    """Give an array at least `ndmin` axes; its own come at `new_axes` among the new ones, last with -1."""
    lacking = ndmin - a.ndim
    if lacking <= 0:
        return a
    start = new_axes if new_axes >= 0 else new_axes + lacking + 1
    a = reshape(a, (1,) * lacking + tuple(a.shape))
    order = list(range(ndmin))
    return transpose(a, order[:start] + order[lacking:] + order[start:lacking])


r_ = _Joiner(np.r_, 0, 1, -1)
c_ = _Joiner(np.c_, -1, 2, 0)
