"""Reading and writing elements of batched arrays, by indices of one example that may be batched themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched
from gradmgr._arrays.batched import (
    Batched,
    Level,
    at_level,
    batch_to_hold,
    highest_level,
    innermost,
    insert_axes,
    is_batched,
    is_batched_at,
    ndim_of,
    repeat_examples,
)


def _parts(index: Any, ndim: int) -> list[Any]:
    """Return an index as a list with a part for each axis: lists become arrays, the ellipsis slices."""
    parts = [np.asarray(p) if isinstance(p, list) else p for p in (index if isinstance(index, tuple) else (index,))]
    taken = sum(p.ndim if _is_mask(p) else p is not None and p is not Ellipsis for p in parts)
    if taken > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {taken} were indexed")
    missing = [slice(None)] * (ndim - taken)
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return [*parts[: dots[0]], *missing, *parts[dots[0] + 1 :]] if dots else [*parts, *missing]


_NO_DTYPE = np.dtype("V")


def _is_mask(part: Any) -> bool:
    return getattr(part, "dtype", _NO_DTYPE).kind == "b"


def _is_advanced(part: Any) -> bool:
    return not (part is None or isinstance(part, slice))


class _Layout:
    """Where the axes of integer arrays are in an indexed result: in their place, or in front of all others."""

    def __init__(self, parts: list[Any]) -> None:
        arrays = [p for p in parts if _is_advanced(p)]
        places = [k for k, p in enumerate(parts) if _is_advanced(p)]
        self.any_array = any(not isinstance(p, (int, np.integer)) for p in arrays)
        self.broadcast = max([1 if _is_mask(p) else ndim_of(p) for p in arrays], default=0)
        self.adjacent = not places or places[-1] - places[0] == len(places) - 1
        self.before = places[0] if places and self.adjacent else 0
        self.ndim = self.broadcast + len(parts) - len(places)


def _is_simple(index: Any) -> bool:
    """Tell whether an index has only integers, slices, None and the ellipsis."""
    if index.__class__ is not tuple:
        return index.__class__ in _SIMPLE or isinstance(index, np.integer)
    return _SIMPLE.issuperset(map(type, index)) or all(
        p.__class__ in _SIMPLE or isinstance(p, np.integer) for p in index
    )


_SIMPLE = frozenset((int, slice, type(None), type(Ellipsis)))


def _needs_loop(parts: Iterable[Any]) -> bool:
    """Tell whether an index needs a loop over the examples, as a truth value and a batched mask do."""
    return any(p is True or p is False or (_is_mask(p) and (ndim_of(p) == 0 or is_batched(p))) for p in parts)


# ---------------------------------------------------------------- reading


def getitem_of(a: Any, index: Any) -> Any:
    """Return a[index], where either may be batched."""
    return get_item(a, index) if highest_level((index,)) is not None else a[index]


def get_item(a: Any, index: Any) -> Any:
    """Return a[index], where at least one of the two is batched."""
    parts = index if isinstance(index, tuple) else (index,)
    if isinstance(a, Batched) and _is_simple(index):
        return Batched(a.level, a._array[(slice(None), *parts)])
    level = highest_level((a, index))
    if level is None:
        return a[index]
    if _needs_loop(parts):
        _check_mask_counts(parts, level)
        return batched.loop_over_examples(level, operator.getitem, (a, index), {})
    is_at_level = isinstance(a, Batched) and a.level is level
    if is_at_level and not any(is_batched_at(p, level) for p in parts):
        written = _parts(index, a.ndim)
        layout, made = _Layout(written), getitem_of(a._array, (slice(None), *written))
        in_front = layout.any_array and not layout.adjacent
        return Batched(level, np.moveaxis(made, layout.broadcast, 0) if in_front else made)
    written = _parts(index, ndim_of(a))
    layout = _Layout(written)
    arrays = [
        insert_axes(p._array, layout.broadcast) if is_batched_at(p, level) and p.level is level else p for p in written
    ]
    if not is_at_level:
        made = getitem_of(a, tuple(arrays))
        return Batched(level, np.moveaxis(made, layout.before, 0) if layout.before else made)
    p = repeat_examples(a._array, level.size)
    made = getitem_of(p, (_examples(level, layout), *arrays))
    return Batched(level, _move_indexed_axes(made, layout))


def _examples(level: Level, layout: _Layout) -> Any:
    return level.root.arange(level.size).reshape((level.size,) + (1,) * layout.broadcast)


def _move_indexed_axes(made: Any, layout: _Layout) -> Any:
    """Move the axes of index arrays from after the batch axis to their place in one example."""
    if not (layout.before and layout.broadcast):
        return made
    count = layout.broadcast
    return np.moveaxis(made, tuple(range(1, 1 + count)), tuple(range(1 + layout.before, 1 + layout.before + count)))


def _check_mask_counts(parts: Iterable[Any], level: Level) -> None:
    for p in parts:
        if _is_mask(p) and is_batched_at(p, level):
            counts = np.sum(innermost(p), axis=tuple(range(1, innermost(p).ndim)))
            if (counts != counts.ravel()[:1]).any():
                raise errors.BatchedValueError(
                    "x[mask] inside vmap: the mask picks a different number of elements in each example, and arrays "
                    "of different lengths do not make one; use where(mask, x, ...) instead"
                )


# ---------------------------------------------------------------- writing


def locate(a: Batched, index: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return the inner array, the index into it, and a function that brings a value into the layout of the result."""
    level = a.level
    parts = _parts(index, a.ndim)
    layout = _Layout(parts)
    if any(is_batched_at(p, level) for p in parts):
        arrays = [
            insert_axes(p._array, layout.broadcast) if isinstance(p, Batched) and p.level is level else p for p in parts
        ]
        place: Any = (_examples(level, layout), *arrays)
        count, before = layout.broadcast, layout.before

        def move(v: Any) -> Any:
            if not (before and count):
                return v
            return np.moveaxis(v, tuple(range(1 + before, 1 + before + count)), tuple(range(1, 1 + count)))
    else:
        place = (slice(None), *parts)

        def move(v: Any) -> Any:
            return np.moveaxis(v, 0, layout.broadcast) if layout.any_array and not layout.adjacent else v

    def lay_out(value: Any) -> Any:
        if not is_batched(value) and np.ndim(value) == 0:
            return value
        v = at_level(value, level)._array
        while v.ndim - 1 > layout.ndim and v.shape[1] == 1:
            v = v[:, 0]
        return move(insert_axes(v, layout.ndim))

    return a._array, place, lay_out


def set_item(a: Batched, index: Any, value: Any) -> None:
    """Write a[index] = value, where index and value may be batched too."""
    if value.__class__ is Batched and value.level is a.level and _is_simple(index):
        p, v = a._array, value._array
        if p.__class__ is v.__class__ is np.ndarray and len(p) == len(v):
            target = p[(slice(None), *(index if isinstance(index, tuple) else (index,)))]
            if target.ndim == v.ndim and target.shape == v.shape:
                target[...] = v
                return
    batch_to_hold(a, (index, value), "x[index] = v")
    if _needs_loop(index if isinstance(index, tuple) else (index,)):
        batched.loop_over_examples(a.level, _write, (a, index, value), {})
        return
    p, place, layout = locate(a, index)
    p[place] = layout(value)


def _write(a: Any, index: Any, value: Any) -> None:
    a[index] = value


Batched.__getitem__ = get_item
Batched.__setitem__ = set_item
