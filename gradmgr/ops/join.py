"""Joining and splitting along axes."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterator
from itertools import accumulate as running
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.custom import apply, variadic
from gradmgr._engine.entry import Kind, declare_kind, metadata_of_one, one_input
from gradmgr._engine.indexing import getitem
from gradmgr._engine.mutation import as_type, copied, store
from gradmgr._engine.op import Op, register
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.views import linked
from gradmgr.ops.convert import holds_tensor, library_of, lift
from gradmgr.ops.naming import named_errors
from gradmgr.ops.shape import atleast_1d, atleast_2d, atleast_3d, expand_dims, moveaxis, ravel, reshape


def _part_of_cotangent(g: Any, k: int, values: Any, shapes: Any, axis: int, ends: tuple[int, ...]) -> Any:
    index = (*[slice(None)] * axis, slice(ends[k], ends[k + 1]))
    return g[index] if g.__class__ is np.ndarray else getitem(g, index)  # a plain view needs no op


def _all_tangents(tangents: Any, values: Any, axis: int, ends: tuple[int, ...]) -> Any:
    filled = [
        libraries.namespace(raw(v)).zeros_like(raw(v)) if t is None else t
        for t, v in zip(tangents, values, strict=True)
    ]
    return _concatenate(filled, axis, ends)


# `ends` is where each array ends, after a 0: computed once, as adding up again for each takes quadratic time.
_concatenate = variadic(
    "concatenate",
    lambda arrays, axis, ends: np.concatenate(arrays, axis),
    vjp=_part_of_cotangent,
    jvp=_all_tangents,
    keeps="nothing",
)


# Python numbers leave the dtype to the arrays that they are joined with.
_WEAK: frozenset[Any] = frozenset((int, float, complex))


def _cast_part(a: Any, dtype: np.dtype[Any], casting: Any) -> Any:
    if not np.can_cast(a.dtype, dtype, casting):
        raise TypeError(f"concatenate cannot cast {a.dtype} to {dtype} by casting={casting!r}")
    return a if a.dtype == dtype else as_type(a, dtype)


def _lifted(arrays: Any) -> list[Any]:
    return [a if a.__class__ is Tensor else lift(a) for a in arrays]  # most are, and there may be many


def concatenate(
    arrays: Any, /, axis: int | None = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Join along an axis as `numpy.concatenate`; flattened with axis=None."""
    given = list(arrays)
    if not isinstance(out, Tensor) and not holds_tensor(given):
        return np.concatenate(given, axis, out, dtype=dtype, casting=casting)  # type: ignore[call-overload]  # a dtype of None
    if out is not None and not isinstance(out, Tensor) and not libraries.is_array(out):
        raise TypeError(f"concatenate: 'out' must be an array or a Tensor; found {type(out).__name__}")
    if out is not None and dtype is not None:
        raise TypeError("concatenate() only takes `out` or `dtype` as an argument, but both were provided.")
    parts = _lifted(given)
    if not parts:
        raise ValueError("need at least one array to concatenate")
    if axis is None:
        parts, axis = [ravel(a) for a in parts], 0
    if parts[0].ndim == 0:
        raise ValueError("zero-dimensional arrays cannot be concatenated; use stack")
    axis = normalize_axis_index(axis, parts[0].ndim)
    weak = not _WEAK.isdisjoint([a.__class__ for a in given])
    if weak or dtype is not None or out is not None or casting != "same_kind":
        found = dtype if out is None else out.dtype
        if found is None:
            found = np.result_type(*[a if a.__class__ in _WEAK else b for a, b in zip(given, parts, strict=True)])
        parts = [_cast_part(a, np.dtype(found), casting) for a in parts]
    lengths = [shape[axis] if len(shape) > axis else 0 for shape in [a.shape for a in parts]]  # else NumPy raises
    z = _concatenate(parts, axis, tuple(running(lengths, initial=0)))
    return z if out is None else store(out, z, "concatenate(out=...)")


def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Join along a new axis as `numpy.stack`."""
    parts = _lifted(arrays)
    if not parts:
        raise ValueError("need at least one array to stack")
    if len({a.shape for a in parts}) > 1:
        raise ValueError(f"all input arrays must have the same shape; found {[a.shape for a in parts]}")
    shape, where = parts[0].shape, normalize_axis_index(axis, parts[0].ndim + 1)
    if out is not None or where == len(shape):
        return concatenate([expand_dims(a, where) for a in parts], where, out, dtype=dtype, casting=casting)
    # Two ops for all of them, not one for each: what comes after the new axis lies together once they are joined.
    if dtype is None and casting == "same_kind":
        length = shape[where]
        joined = _concatenate(parts, where, tuple([k * length for k in range(len(parts) + 1)]))
    else:
        joined = concatenate(parts, where, dtype=dtype, casting=casting)
    return reshape(joined, (*shape[:where], len(parts), *shape[where:]))


def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Join as rows, as `numpy.vstack`."""
    return concatenate([atleast_2d(a) for a in tup], 0, dtype=dtype, casting=casting)


def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Join as columns, as `numpy.hstack`."""
    parts = [atleast_1d(a) for a in tup]
    axis = 0 if parts and parts[0].ndim == 1 else 1
    return concatenate(parts, axis, dtype=dtype, casting=casting)


def dstack(tup: Any) -> Any:
    """Join along the third axis, as `numpy.dstack`."""
    return concatenate([atleast_3d(a) for a in tup], 2)


def column_stack(tup: Any) -> Any:
    """Join 1-d arrays as columns, as `numpy.column_stack`."""
    parts = [lift(a) for a in tup]
    return concatenate([expand_dims(atleast_1d(a), 1) if a.ndim < 2 else a for a in parts], 1)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split as `numpy.array_split`; the number of parts need not divide the length."""
    ary = lift(ary)
    axis = normalize_axis_index(axis, ary.ndim)
    length = ary.shape[axis]
    cuts = raw(indices_or_sections)
    if np.ndim(cuts) == 0:
        count = int(cuts)
        if count <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, more = divmod(length, count)
        ends = np.cumsum([each + 1] * more + [each] * (count - more)).tolist()
        starts = [0, *ends[:-1]]
    else:
        cuts = [operator.index(cut) for cut in cuts]
        starts, ends = [0, *cuts], [*cuts, length]
    ary = wrap(ary) if isinstance(indices_or_sections, Tensor) and not isinstance(ary, Tensor) else ary
    head = [slice(None)] * axis
    return [getitem(ary, (*head, slice(start, end))) for start, end in zip(starts, ends, strict=True)]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split as `numpy.split`, into equal parts or at indices."""
    ary = lift(ary)
    sections = raw(indices_or_sections)
    if np.ndim(sections) == 0 and ary.shape[axis] % sections:
        raise ValueError("array split does not result in an equal division")
    return array_split(ary, indices_or_sections, axis)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the second axis, or the only one."""
    ary = lift(ary)
    if ary.ndim == 0:
        raise ValueError("hsplit only works on arrays of 1 or more dimensions")
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the first axis."""
    ary = lift(ary)
    if ary.ndim < 2:
        raise ValueError("vsplit only works on arrays of 2 or more dimensions")
    return split(ary, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the third axis."""
    ary = lift(ary)
    if ary.ndim < 3:
        raise ValueError("dsplit only works on arrays of 3 or more dimensions")
    return split(ary, indices_or_sections, 2)


def _pieces(a: Any) -> tuple[Any, ...]:
    return tuple([a[k] for k in range(a.shape[0])])


def _empty_with_strides(shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Any:
    """Return new memory whose axes follow each other as these strides do: to transpose it back then copies nothing."""
    order = sorted(range(len(shape)), key=lambda k: -abs(strides[k]))
    places = sorted(range(len(shape)), key=order.__getitem__)
    return np.empty([shape[k] for k in order], dtype).transpose(places)


def _gather_gradients(parts: list[Any], shape: tuple[int, ...], dtype: Any, strides: Any) -> Any:
    """Return gradients of the pieces as one, None if there is none."""
    if all(part is None or part.__class__ is np.ndarray for part in parts):
        whole = _empty_with_strides(shape, dtype, strides)
        for k, part in enumerate(parts):
            whole[k] = 0 if part is None else part
        return whole
    like = raw(next(part for part in parts if part is not None))
    nothing = libraries.namespace(like).zeros(shape[1:], dtype)
    return stack([nothing if part is None else part for part in parts])


def _vjp_of_unstack(e: tuple[Any, ...], g: Any, grads: Grads, owned: Ownership) -> None:
    _, _, node_id, shape, dtype, strides = e
    accumulate(grads, owned, node_id, _gather_gradients([g.get(k) for k in range(shape[0])], shape, dtype, strides))


def _unstack_entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
    a = raw(values[0])
    return ("unstack", m, node_ids[0], a.shape, a.dtype, getattr(a, "strides", None))


_unstack = register(Op("unstack", _pieces))
_unstack.entry, _unstack.jvp = _unstack_entry, lambda tangents, values, out, params: split_first_axis(tangents[0])
_unstack.keeps_inputs = _unstack.keeps_out = False
_unstack.view_of = lambda x, a, c: linked(x) if c.ndim else None
declare_kind("unstack", Kind("unstack", one_input, metadata_of_one), _vjp_of_unstack)


def split_first_axis(x: Any) -> tuple[Any, ...]:
    """Split into the pieces along the first axis, which is removed: one op, whose vjp has one buffer for all."""
    return apply(_unstack, (x,), ()) if isinstance(x, Tensor) else _pieces(x)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Split into the pieces along an axis, which is removed."""
    moved = moveaxis(x, axis, 0)
    if moved.ndim == 0:
        raise ValueError("Input array must be at least 1-d.")
    return split_first_axis(moved)


# ---------------------------------------------------------------- block, grids, products


def block(arrays: Any) -> Any:
    """Join nested lists of blocks as `numpy.block`."""
    if not holds_tensor(arrays):
        return np.block(arrays)
    depth = _nesting_depth(arrays, "arrays")
    leaves = list(_nested_arrays(arrays))
    ndim = builtins.max(depth, *(lift(leaf).ndim for leaf in leaves))
    return _join_blocks(arrays, depth, ndim, library_of(*leaves))


def _nesting_depth(arrays: Any, where: str) -> int:
    """Return how deep the lists are, which must be one and the same everywhere."""
    if isinstance(arrays, tuple):
        raise TypeError(f"block: {where} is a tuple. Only lists can be used to arrange blocks")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError(f"block: List at {where} cannot be empty")
    depths = [_nesting_depth(part, f"{where}[{k}]") for k, part in enumerate(arrays)]
    for k, depth in enumerate(depths):
        if depth != depths[0]:
            raise ValueError(f"block: List depths are mismatched: {depths[0] + 1} first, {depth + 1} at {where}[{k}]")
    return depths[0] + 1


def _nested_arrays(arrays: Any) -> Iterator[Any]:
    if isinstance(arrays, list):
        for part in arrays:
            yield from _nested_arrays(part)
    else:
        yield arrays


def _join_blocks(arrays: Any, depth: int, ndim: int, xp: Any) -> Any:
    if depth == 0:
        a = lift(arrays) if holds_tensor(arrays) or libraries.is_array(arrays) else xp.asarray(arrays)
        return copied(a) if a.ndim == ndim else reshape(a, (1,) * (ndim - a.ndim) + tuple(a.shape))
    with named_errors("block"):
        return concatenate([_join_blocks(part, depth - 1, ndim, xp) for part in arrays], ndim - depth)


def row_stack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    """Join as rows, as `vstack`, of which this is NumPy's deprecated alias."""
    errors.warn("`row_stack` alias is deprecated. Use `vstack` directly.", DeprecationWarning)
    return vstack(tup, dtype=dtype, casting=casting)
