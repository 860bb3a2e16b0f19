"""How NumPy's functions of series, and lookups in sorted values, run on `Batched` arrays: see `batching_rules`.

Where one example is so large that its own call takes most of the time, the rules leave it to the loop over examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradmgr._arrays.batched import (
    Batched,
    Level,
    as_array,
    at_level,
    inner_axes,
    innermost,
    insert_axes,
    is_batched,
    is_batched_at,
)
from gradmgr._arrays.batching_rules import is_outermost_level, register
from gradmgr._arrays.captured import is_numpy

# Products of an example from which a call of its own is no slower: NumPy's loop needs a nanosecond for each, a call
# with all that comes with it some ten microseconds.
_MANY = 20_000


@register(np.cross)
def _cross(
    level: Level, a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    x, y = (p if is_batched(p) else as_array(p) for p in (a, b))
    x, y = (p if k == -1 else np.moveaxis(p, k, -1) for p, k in ((x, axisa), (y, axisb)))
    if (x.shape[-1], y.shape[-1]) != (3, 3):
        return NotImplemented  # NumPy refuses, or warns of, vectors of two elements
    p, q = (at_level(v, level)._array for v in (x, y))
    if p.__class__ is q.__class__ is np.ndarray:
        ndim = max(p.ndim, q.ndim) - 1
        made = Batched(level, _cross_of_rows(insert_axes(p, ndim), insert_axes(q, ndim)))
        return made if axisc in (-1, made.ndim - 1) else np.moveaxis(made, -1, axisc)
    x0, x1, x2, y0, y1, y2 = (p[..., k] for p in (x, y) for k in range(3))
    return np.stack([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], axis=axisc)


def _cross_of_rows(p: Any, q: Any) -> Any:
    """Return the cross products of the last axes, of three elements, by the same formulas as `numpy.cross`."""
    made = np.empty(np.broadcast_shapes(p.shape, q.shape), np.result_type(p, q))
    x, y = ([a[..., k] for k in range(3)] for a in (p, q))
    for k, i, j in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        part = made[..., k]
        np.multiply(x[i], y[j], out=part)
        part -= x[j] * y[i]
    return made


# ---------------------------------------------------------------- sliding products


def _series(level: Level, a: Any) -> Any:
    """Return the inner array of a series of numbers for each example; None of anything else."""
    p = at_level(a if is_batched(a) else as_array(a), level)._array
    is_host = is_numpy(innermost(p))  # CuPy has functions of its own for these
    return p if is_host and p.ndim == 2 and p.shape[1] > 0 and p.dtype.kind in "iufc" else None


def _slide(p: Any, q: Any, mode: Any) -> Any:
    """Return the products of the rows of `p` with those of `q`, conjugated, at each place where they overlap.

    Args:
        p: of shape (examples or 1, n), with n >= m.
        q: of shape (examples or 1, m).
        mode: "valid", "same" or "full", or its first letter.
    """
    m = q.shape[1]
    left, right = {"v": (0, 0), "s": (m // 2, m - m // 2 - 1), "f": (m - 1, m - 1)}[mode[0]]
    zeros = (np.zeros((p.shape[0], count), p.dtype) for count in (left, right))
    padded = np.concatenate([next(zeros), p, next(zeros)], axis=1)
    return np.vecdot(q[:, None, :], sliding_window_view(padded, m, axis=1))


def _correlate_rows(level: Level, a: Any, v: Any, mode: Any, reverse: bool) -> Any:
    p, q = _series(level, a), _series(level, v)
    if p is None or q is None or not isinstance(mode, str) or mode[:1] not in ("v", "s", "f"):
        return NotImplemented
    if min(p.shape[1], q.shape[1]) * max(p.shape[1], q.shape[1]) > _MANY:
        return NotImplemented
    if reverse:  # a convolution, of which the longer series is the first one
        p, q = (p, q) if p.shape[1] >= q.shape[1] else (q, p)
        return Batched(level, _slide(p, np.conjugate(q[:, ::-1]), mode))
    if p.shape[1] >= q.shape[1]:
        return Batched(level, _slide(p, q, mode))
    return Batched(level, _slide(np.conjugate(q), np.conjugate(p), mode)[:, ::-1])


@register(np.correlate)
def _correlate(level: Level, a: Any, v: Any, mode: Any = "valid") -> Any:
    return _correlate_rows(level, a, v, mode, reverse=False)


@register(np.convolve)
def _convolve(level: Level, a: Any, v: Any, mode: Any = "full") -> Any:
    return _correlate_rows(level, a, v, mode, reverse=True)


@register(sliding_window_view)
def _sliding_window_view(level: Level, x: Any, window_shape: Any, axis: Any = None, **keywords: Any) -> Any:
    if not is_outermost_level(x, level):
        return NotImplemented
    window = tuple(window_shape) if np.iterable(window_shape) else (window_shape,)
    if axis is None and len(window) != x.ndim:
        return NotImplemented  # which raises
    axes = inner_axes(axis, x.ndim)
    return Batched(level, sliding_window_view(x._array, window, axes, **keywords))


# ---------------------------------------------------------------- differences and powers


@register(np.gradient)
def _gradient(level: Level, f: Any, *varargs: Any, axis: Any = None, edge_order: Any = 1) -> Any:
    if not is_outermost_level(f, level) or any(is_batched_at(h, level) for h in varargs):
        return NotImplemented
    made = np.gradient(f._array, *varargs, axis=inner_axes(axis, f.ndim), edge_order=edge_order)
    return tuple([Batched(level, part) for part in made]) if isinstance(made, (tuple, list)) else Batched(level, made)


@register(np.vander)
def _vander(level: Level, x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803  # NumPy's name
    if x.ndim != 1:
        return NotImplemented
    count = x.shape[0] if N is None else N
    made = np.ones_like(x, shape=(x.shape[0], count), dtype=np.promote_types(x.dtype, int))
    if count > 1:
        made[:, 1:] = np.multiply.accumulate(np.broadcast_to(x[:, None], (x.shape[0], count - 1)), axis=1)
    return made if increasing else made[:, ::-1]


# ---------------------------------------------------------------- lookups


@register(np.interp)
def _interp(level: Level, x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if not is_outermost_level(x, level) or any(map(is_batched, (xp, fp, left, right, period))):
        return NotImplemented
    return Batched(level, np.interp(x._array, xp, fp, left, right, period))


@register(np.searchsorted)
def _searchsorted(level: Level, a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    if is_batched(sorter):
        return NotImplemented
    if not is_batched_at(a, level):
        return Batched(level, np.searchsorted(a, v._array, side, sorter))
    v = v if is_batched(v) else as_array(v)
    if sorter is not None or a.ndim != 1 or a.size * v.size > _MANY or side not in ("left", "right"):
        return NotImplemented
    values = v.reshape((*v.shape, 1))
    below = np.less(a, values) if side == "left" else np.less_equal(a, values)
    if a.dtype.kind in "fc":  # NaNs come last
        is_nan = np.isnan(values)
        below = below | (is_nan & ~np.isnan(a) if side == "left" else is_nan)
    return np.sum(below, axis=-1)


@register(np.isin)
def _isin(level: Level, element: Any, test_elements: Any, **keywords: Any) -> Any:
    if not is_outermost_level(element, level) or is_batched(test_elements):
        return NotImplemented
    return Batched(level, np.isin(element._array, test_elements, **keywords))
