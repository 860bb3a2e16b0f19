"""What functions that read and write by position share: indices along one axis, gathering, and checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr._arrays import batched, libraries
from gradmgr._engine.indexing import add_at
from gradmgr._engine.op import Function, linear
from gradmgr.ops.convert import lift
from gradmgr.ops.shape import ravel


def index_on_axis(axis: int, part: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, part)


def align_with_axis(values: Any, axis: int, ndim: int) -> Any:
    """Return a vector's values along an axis of so many."""
    return values.reshape([-1 if k == axis else 1 for k in range(ndim)])


def check_broadcasts(shape: tuple[int, ...], target: tuple[int, ...], name: str) -> None:
    """Raise unless a value of this shape broadcasts into the target, axes of length 1 in front aside."""
    extra = len(shape) - len(target)
    tail = shape[extra:] if extra > 0 and all(n == 1 for n in shape[:extra]) else shape
    same = len(tail) <= len(target) and all(n in (1, m) for n, m in zip(tail[::-1], target[::-1], strict=False))
    if not same:
        raise ValueError(f"{name}: could not broadcast input array from shape {shape} into shape {target}")


# ---------------------------------------------------------------- reading positions along one axis


def _gather(a: Any, index: Any, axis: int) -> Any:
    return libraries.getitem(a, index_on_axis(axis, index)) if batched.any_batched(index) else a.take(index, axis)


@libraries.captured_as_one()
@libraries.adds_in_float32
def _sum_by_position(g: Any, index: Any, length: int, axis: int) -> Any:
    """Add up what was read from each position; on NumPy, one write, and one reduceat for the repeats."""
    xp = libraries.namespace_of(g, index)
    z = xp.zeros((*g.shape[:axis], length, *g.shape[axis + 1 :]), g.dtype)
    if xp is not np:
        add_at(z, index_on_axis(axis, index), g)
        return z
    places, first = np.unique(index, return_index=True)
    z[index_on_axis(axis, places)] = g.take(first, axis)
    again = np.ones(index.size, dtype=bool)
    again[first] = False
    if again.any() and g.size:
        rest = np.flatnonzero(again)
        rest = rest[index[rest].argsort(kind="stable")]
        ordered = index[rest]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        z[index_on_axis(axis, ordered[starts])] += np.add.reduceat(g.take(rest, axis), starts, axis)
    return z


# take() along one axis for positions that repeat; numpy.add.at, which getitem's adjoint needs, is 10-50x slower.
gather: Function = linear("gather", _gather, lambda g, shape, index, axis: gather_back(g, index, shape[axis], axis))
gather_back: Function = linear("gather_back", _sum_by_position, lambda g, index, axis: gather(g, index, axis))


def lift_with_axis(a: Any, axis: Any, name: str) -> tuple[Any, int]:
    """Return a flattened without an axis, and the axis as a position."""
    a = lift(a)
    if axis is None:
        return ravel(a), 0
    return a, normalize_axis_index(axis, a.ndim, name)
