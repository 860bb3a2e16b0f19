"""Order: sorting, partitions, sets, and choosing by position or condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.context import is_tracked
from gradmgr._engine.custom import variadic
from gradmgr._engine.indexing import getitem
from gradmgr._engine.mutation import as_type, store, write_whole
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, bare, raw, wrap
from gradmgr._engine.views import as_new_array, check_kept
from gradmgr.ops.arithmetic import plain_zeros
from gradmgr.ops.constant import constant
from gradmgr.ops.convert import holds_tensor, library_of, lift, lift_like
from gradmgr.ops.join import concatenate, unstack
from gradmgr.ops.positions import lift_with_axis
from gradmgr.ops.shape import ravel
from gradmgr.ops.where import choose as pick_where

# ---------------------------------------------------------------- sorting


def _permute(a: Any, order: Any, axis: int) -> Any:
    return np.take_along_axis(a, order, axis)


def _undo_permutation(a: Any, order: Any, axis: int) -> Any:
    z = libraries.able_to_hold(libraries.namespace(a).empty_like(a), order)
    np.put_along_axis(z, order, a, axis)
    return z


# A permutation along an axis names no element twice, so its adjoint is one write.
permute: Function = linear("permute", _permute, lambda g, order, axis: unpermute(g, order, axis))
unpermute: Function = linear("unpermute", _undo_permutation, lambda g, order, axis: permute(g, order, axis))


def _check_kind(name: str, kind: Any, order: Any, stable: Any) -> None:
    """Let NumPy check the keywords; its errors begin with the function's name."""
    try:
        np.sort(np.zeros(0), kind=kind, order=order, stable=stable)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


# From this length on, the quick sort that uses the processor's vectors pays for the look for ties after it.
_LONG = 64


@libraries.captured_as_one()
def stable_order(a: Any, axis: int) -> Any:
    """Return the stable argsort of a plain array; where there are no ties, any order is the stable one."""
    if libraries.namespace(a) is np and a.shape[axis] >= _LONG:
        order = a.argsort(axis=axis)
        ordered = np.take_along_axis(a, order, axis)
        head: list[Any] = [slice(None)] * axis
        later, earlier = ordered[(*head, slice(1, None))], ordered[(*head, slice(None, -1))]
        last = ordered[(*head, -1)]
        tied = later == earlier
        ties = a.size if (last != last).any() else np.count_nonzero(tied)  # a NaN comes last
        if not ties:
            return order
        if 4 * ties < a.size and a.__class__ is np.ndarray and axis == a.ndim - 1:
            return _order_ties(order, tied)
    return a.argsort(axis=axis, kind="stable")


def _order_ties(order: Any, tied: Any) -> Any:
    """Make an argsort along the last axis stable, in place, that knows which elements equal the one before.

    Of 1e5 normal numbers in float32 some 300 are tied, and the stable sort of all takes ten times as long.
    """
    follows = np.zeros(order.shape, bool)
    follows[..., 1:] = tied
    member = follows.copy()
    member[..., :-1] |= tied
    chosen = np.flatnonzero(member)
    flat = order.reshape(-1)
    places, runs = flat[chosen], np.cumsum(~follows.reshape(-1)[chosen])
    flat[chosen] = places[np.lexsort((places, runs))]
    return order


def sort(a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None) -> Any:
    """Sort as `numpy.sort`; gradients go back through the stable order, whatever the kind."""
    if not holds_tensor(a):
        return np.sort(a, axis, kind, order, stable=stable)
    if (kind, order, stable) != (None, None, None):
        _check_kind("sort", kind, order, stable)
    a, axis = lift_with_axis(a, axis, "sort")
    values = raw(a)
    if is_tracked(a):
        return permute(a, stable_order(values, axis), axis)
    is_numpy = libraries.namespace(values) is np or libraries.is_numpy(values)
    return wrap(np.sort(values, axis=axis, kind=kind if is_numpy and not stable else "stable"))


def sort_in_place(
    a: Tensor, axis: int = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None
) -> None:
    """Sort in place as `numpy.ndarray.sort`; recorded."""
    check_kept(a, "sort()")
    write_whole(a, sort(a, -1 if axis is None else axis, kind, order, stable=stable))


def sort_complex(a: Any) -> Any:
    """Sort along the last axis and make complex, as `numpy.sort_complex`."""
    if not holds_tensor(a):
        return np.sort_complex(a)
    z = sort(a)
    if z.dtype.kind == "c":
        return z
    return as_type(z, np.complex64 if z.dtype.char in "bhBH" else np.complex128)


def _check_partition(name: str, a: Any, kth: Any, axis: int, kind: Any, order: Any) -> Any:
    """Return kth as plain integers, checked as NumPy does."""
    length = a.shape[axis]
    if kth.__class__ is int and -length <= kth < length and kind == "introselect" and order is None:
        return kth
    kth = raw(kth)
    kth = np.asarray(libraries.to_device(kth, "cpu") if libraries.is_array(kth) else kth)
    try:
        np.argpartition(np.zeros(length), kth, kind=kind, order=order)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return int(kth) if kth.ndim == 0 else kth


def _partition_order(a: Any, kth: Any, axis: int) -> Any:
    return np.argpartition(a, kth if isinstance(kth, int) else tuple(kth.tolist()), axis=axis)


def partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Any:
    """Partition as `numpy.partition`, in the order of `argpartition`, by which gradients go back."""
    if not holds_tensor(a) and not isinstance(kth, Tensor):
        return np.partition(a, kth, axis, kind, order)
    a, axis = lift_with_axis(a, axis, "partition")
    kth = _check_partition("partition", a, kth, axis, kind, order)
    return permute(a if isinstance(a, Tensor) else wrap(a), _partition_order(raw(a), kth, axis), axis)


def partition_in_place(a: Tensor, kth: Any, axis: int = -1, kind: Any = "introselect", order: Any = None) -> None:
    """Partition in place as `numpy.ndarray.partition`; recorded."""
    check_kept(a, "partition()")
    write_whole(a, partition(a, kth, -1 if axis is None else axis, kind, order))


def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Any:
    """Return the order of `partition` as `numpy.argpartition`; integers carry no gradient."""
    if not holds_tensor(a) and not isinstance(kth, Tensor):
        return np.argpartition(a, kth, axis, kind, order)
    a = lift(a)
    a, axis = lift_with_axis(a if a.ndim else ravel(a), axis, "argpartition")
    kth = _check_partition("argpartition", a, kth, axis, kind, order)
    return wrap(_partition_order(raw(a), kth, axis))


def lexsort(keys: Any, axis: int = -1) -> Any:
    """Return the order by several keys as `numpy.lexsort`; integers carry no gradient."""
    if not holds_tensor(keys):
        return np.lexsort(keys, axis)
    rows = raw(keys) if isinstance(keys, Tensor) else [raw(lift(key)) for key in keys]
    if all(libraries.namespace(row) is np or libraries.is_numpy(row) for row in rows):
        return wrap(np.asarray(np.lexsort(rows, axis)))
    if axis not in (-1, 0) or any(row.ndim > 1 for row in rows):
        raise errors.UnsupportedFunctionError(
            "lexsort on a GPU takes keys of one axis, as CuPy's does; move to the CPU with .to('cpu') for others"
        )
    return wrap(np.lexsort(libraries.namespace(rows[0]).stack(list(rows))))


# ---------------------------------------------------------------- unique values and sets


class UniqueAllResult(NamedTuple):
    """What `unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


# NumPy 2.3 and later; before, and in CuPy, the values come sorted in any case.
_HAS_SORTED = np.lib.NumpyVersion(np.__version__) >= "2.3.0"


def _sorted_keyword(xp: Any, sorted: bool) -> dict[str, Any]:
    return {"sorted": False} if not sorted and _HAS_SORTED and xp is np else {}


def unique(
    ar: Any,
    return_index: Any = False,
    return_inverse: Any = False,
    return_counts: Any = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """Return the unique values as `numpy.unique`.

    Each value is taken where it first occurs, and its gradient goes there; indices, inverse and
    counts are integers without gradient.
    """
    if not holds_tensor(ar):
        more = _sorted_keyword(libraries.namespace(ar), sorted)
        return np.unique(ar, return_index, return_inverse, return_counts, axis, equal_nan=equal_nan, **more)
    a = lift(ar)
    if axis is not None:
        axis = normalize_axis_index(axis, a.ndim, "unique")
    found: Any = np.unique(
        raw(a),
        True,
        return_inverse,
        return_counts,
        axis,
        equal_nan=equal_nan,
        **_sorted_keyword(libraries.namespace(raw(a)), sorted),
    )
    _, first, *rest = found
    values = getitem(ravel(a), first) if axis is None else getitem(a, (*[slice(None)] * axis, first))
    results = [values, *([wrap(first)] if return_index else []), *[wrap(part) for part in rest]]
    return results[0] if len(results) == 1 else tuple(results)


def unique_values(x: Any) -> Any:
    """Return the unique values as `numpy.unique_values`: NaNs apart, gradients to the first of each."""
    return unique(x, equal_nan=False) if holds_tensor(x) else np.unique_values(x)


def unique_counts(x: Any) -> Any:
    """Return the unique values and their counts as `numpy.unique_counts`."""
    if not holds_tensor(x):
        return np.unique_counts(x)
    return UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x: Any) -> Any:
    """Return the unique values, and where each element went, as `numpy.unique_inverse`."""
    if not holds_tensor(x):
        return np.unique_inverse(x)
    return UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False))


def unique_all(x: Any) -> Any:
    """Return the unique values, first positions, inverse and counts as `numpy.unique_all`."""
    if not holds_tensor(x):
        return np.unique_all(x)
    return UniqueAllResult(*unique(x, True, True, True, equal_nan=False))


def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: Any = False) -> Any:
    """Return the values in both as `numpy.intersect1d`; they are those of `ar1`, and so is their gradient."""
    if not holds_tensor(ar1) and not holds_tensor(ar2):
        return np.intersect1d(ar1, ar2, assume_unique, return_indices)
    one, other = lift_like(ar1, ar2), lift_like(ar2, ar1)
    values, first, second = np.intersect1d(raw(one), raw(other), assume_unique, return_indices=True)
    z = getitem(ravel(one if isinstance(one, Tensor) else wrap(one)), first)
    z = z if z.dtype == values.dtype else as_type(z, values.dtype)
    return (z, wrap(first), wrap(second)) if return_indices else z


def union1d(ar1: Any, ar2: Any) -> Any:
    """Return the values in either as `numpy.union1d`; one in both is that of `ar1`."""
    if not holds_tensor(ar1) and not holds_tensor(ar2):
        return np.union1d(ar1, ar2)
    pairs = (ar1, ar2), (ar2, ar1)  # Python's numbers stay, for concatenate to find the dtype
    return unique(concatenate([a if a.__class__ in _NUMBERS else lift_like(a, b) for a, b in pairs], axis=None))


def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the values of `ar1` that are not in `ar2`, as `numpy.setdiff1d`."""
    if not holds_tensor(ar1) and not holds_tensor(ar2):
        return np.setdiff1d(ar1, ar2, assume_unique)
    one, other = lift_like(ar1, ar2), lift_like(ar2, ar1)
    one = ravel(one) if assume_unique else unique(one)
    apart = np.isin(raw(one), raw(other), assume_unique=assume_unique, invert=True)
    return getitem(one if isinstance(one, Tensor) else wrap(one), apart)


def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the values in one but not both as `numpy.setxor1d`."""
    if not holds_tensor(ar1) and not holds_tensor(ar2):
        return np.setxor1d(ar1, ar2, assume_unique)
    both = lift_like(ar1, ar2), lift_like(ar2, ar1)
    z = sort(concatenate(both if assume_unique else [unique(part) for part in both], axis=None))
    if not z.size:
        return z
    return getitem(z, computed(_which_stand_alone, bare(z)))


def _which_stand_alone(ordered: Any) -> Any:
    differs = libraries.namespace(ordered).ones(ordered.size + 1, dtype=bool)
    differs[1:-1] = ordered[1:] != ordered[:-1]
    return differs[1:] & differs[:-1]


isin = constant(np.isin, 2)


# ---------------------------------------------------------------- choosing


def _choose_kernel(arrays: Any, index: Any, dtype: Any) -> Any:
    xp = libraries.namespace(index)
    z = libraries.able_to_hold(xp.empty(index.shape, dtype), *arrays)
    for k, a in enumerate(arrays):
        np.copyto(z, a, casting="unsafe", where=index == k)  # dtype is what all promote to
    return z


def _choose_tangent(tangents: Any, values: Any, index: Any, dtype: Any) -> Any:
    zero = libraries.namespace(index).zeros((), dtype)
    return _choose([zero if t is None else t for t in tangents], index, dtype)


_choose: Function = variadic(
    "choose",
    _choose_kernel,
    vjp=lambda g, k, values, shapes, index, dtype: pick_where(index == k, g, plain_zeros(g)),
    jvp=_choose_tangent,
    keeps="nothing",
)


_NUMBERS = (int, float, complex)


def _choose_elements(index: Any, choices: Sequence[Any], name: str) -> Any:
    """Return at each place the element of choices[index]; broadcast, in the dtype that all promote to."""
    dtype = np.result_type(*[c if c.__class__ in _NUMBERS else lift(c).dtype for c in choices])  # weak numbers
    xp = library_of(index, *choices)
    arrays = [xp.asarray(c, dtype) if c.__class__ in _NUMBERS else lift_like(c, *choices) for c in choices]
    try:
        shape = np.broadcast_shapes(index.shape, *(a.shape for a in arrays))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    arrays = [a if isinstance(a, Tensor) else wrap(a) for a in arrays]
    return _choose(arrays, xp.broadcast_to(xp.asarray(index), shape), dtype)


def choose(a: Any, choices: Any, out: Any = None, mode: Any = "raise") -> Any:
    """Build from the choices that the integers in `a` name, as `numpy.choose`; gradients go to what is chosen."""
    if not any(holds_tensor(part) for part in (a, choices, out)):
        return np.choose(a, choices, out, mode)
    index = raw(lift(a))
    if not np.can_cast(index.dtype, np.intp, "safe"):
        raise TypeError(f"choose: cannot cast the positions from {index.dtype} to {np.dtype(np.intp)} safely")
    parts = unstack(choices) if isinstance(choices, Tensor) else choices
    if not len(parts):
        raise ValueError("choose: 0-length sequence of choices")
    z = _choose_elements(_map_into_range(index, len(parts), mode), parts, "choose")
    return z if out is None else store(out, z, "choose(out=...)")


def _map_into_range(index: Any, count: int, mode: str) -> Any:
    """Bring positions into range(count), as the mode says."""
    index = index.astype(np.intp)
    if mode == "wrap":
        return index % count
    if mode == "clip":
        return index.clip(0, count - 1)
    if mode != "raise":
        raise ValueError(f"choose: clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    if ((index < 0) | (index >= count)).any():
        raise ValueError(f"choose: invalid entry in choice array: positions must be in range({count})")
    return index


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Choose at each place by the first condition that holds, as `numpy.select`.

    As with `where`, a NaN in a choice not taken can reach the gradient.
    """
    if not any(holds_tensor(part) for part in (list(condlist), list(choicelist), default)):
        return np.select(condlist, choicelist, default)
    if len(condlist) != len(choicelist):
        raise ValueError("select: list of cases must be same length as list of conditions")
    if not len(condlist):
        raise ValueError("select with an empty condition list is not possible")
    conditions = [raw(lift(condition)) for condition in condlist]
    for k, condition in enumerate(conditions):
        if condition.dtype != np.bool_:
            raise TypeError(f"select: invalid entry {k} in condlist: should be boolean ndarray")
    index = computed(_first_that_holds, *conditions)
    return as_new_array(_choose_elements(index, [*choicelist, default], "select"))


def _first_that_holds(*conditions: Any) -> Any:
    """Return for each place the number of the first condition that holds there, their number if none does."""
    xp = library_of(*conditions)
    index = xp.full(np.broadcast_shapes(*(c.shape for c in conditions)), len(conditions))
    for k in reversed(range(len(conditions))):
        xp.copyto(index, k, where=xp.asarray(conditions[k]))
    return index


def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Take the slices along an axis where a condition holds, as `numpy.compress`."""
    if not any(holds_tensor(part) for part in (condition, a, out)):
        return np.compress(condition, a, axis, out)
    a = lift(a)
    a, axis = lift_with_axis(ravel(a) if a.ndim == 0 else a, axis, "compress")
    chosen = raw(lift(condition)).astype(bool)
    if chosen.ndim != 1:
        raise ValueError(f"compress: condition must be a 1-d array; found shape {chosen.shape}")
    z = _pick_by_mask(a, chosen, axis, "compress")
    return z if out is None else store(out, z, "compress(out=...)")


def _pick_by_mask(a: Any, chosen: Any, axis: int, name: str) -> Any:
    """Pick along an axis by a mask, which may be shorter, or longer by what it does not pick."""
    length = a.shape[axis]
    if chosen.size > length and bool(chosen[length:].any()):
        raise IndexError(f"{name}: index out of bounds: the condition picks beyond the axis of length {length}")
    mask = computed(_mask_of_length, bare(a), chosen, length)
    return getitem(a if isinstance(a, Tensor) else wrap(a), (*[slice(None)] * axis, mask))


def _mask_of_length(a: Any, chosen: Any, length: int) -> Any:
    xp = libraries.namespace_of(a, chosen)
    mask = xp.zeros(length, dtype=bool)
    mask[: chosen.size] = xp.asarray(chosen)[:length]
    return mask


def extract(condition: Any, arr: Any) -> Any:
    """Take the elements where a condition holds, flattened, as `numpy.extract`."""
    if not holds_tensor(condition) and not holds_tensor(arr):
        return np.extract(condition, arr)
    chosen = raw(lift(condition)).astype(bool).ravel()
    return _pick_by_mask(ravel(lift(arr)), chosen, 0, "extract")
