"""How NumPy's functions of series and polynomials, and lookups, run on `Batched` arrays: see `batching_rules`.

Where one example is so large that its own call takes most of the time, the rules leave it to the loop over examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gradmgr._arrays.batched import (
    Batched,
    Level,
    any_batched,
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
        made: Any = Batched(level, _cross_of_rows(insert_axes(p, ndim), insert_axes(q, ndim)))
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
    is_host = is_numpy(innermost(p))  # CuPy has its own functions for these
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
    if not any(map(is_batched, (xp, fp, left, right, period))) and is_outermost_level(x, level):
        return Batched(level, np.interp(x._array, xp, fp, left, right, period))
    inner = [at_level(v if is_batched(v) else as_array(v), level)._array for v in (x, xp, fp)]
    if not (left is right is period is None and all(map(is_numpy, inner)) and inner[1].ndim == inner[2].ndim == 2):
        return NotImplemented
    places, knots, values = inner
    if knots.shape[1] != values.shape[1] or knots.shape[1] < 2 or knots.shape[1] * places[:1].size > _MANY:
        return NotImplemented
    if not (level.size and places.size):
        return NotImplemented
    rows = [np.broadcast_to(v.reshape(len(v), -1), (level.size, v[:1].size)) for v in (places, knots, values)]
    return Batched(level, _interp_rows(*rows).reshape(level.size, *places.shape[1:]))


def _interp_rows(x: Any, xp: Any, fp: Any) -> Any:
    """Return what `numpy.interp` gives for each row, by its formulas, those for infinite values included."""
    if fp.dtype.kind == "c":
        made = np.empty(x.shape, np.complex128)
        made.real, made.imag = _interp_rows(x, xp, fp.real), _interp_rows(x, xp, fp.imag)
        return made
    x, xp, fp = (v.astype(np.float64) for v in (x, xp, fp))
    known = np.sum(xp[:, None, :] <= x[:, :, None], axis=2)  # knots up to each x
    lower = np.clip(known - 1, 0, xp.shape[1] - 2)
    x0, x1, y0, y1 = (np.take_along_axis(v, k, 1) for v in (xp, fp) for k in (lower, lower + 1))
    with np.errstate(all="ignore"):
        slope = (y1 - y0) / (x1 - x0)
        made = slope * (x - x0) + y0
        made = np.where(np.isnan(made), slope * (x - x1) + y1, made)
    made = np.where((x == x0) | (np.isnan(made) & (y0 == y1)), y0, made)
    made = np.where(known == 0, fp[:, :1], made)
    made = np.where(known == xp.shape[1], fp[:, -1:], made)
    return np.where(np.isnan(x), x, made)


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


# ---------------------------------------------------------------- polynomials


def _rows_of_polynomials(level: Level, p: Any) -> Any:
    """Return the inner array of coefficients of floating point, of which no example has a zero at either end."""
    rows = at_level(p, level)._array
    if not is_numpy(rows) or rows.ndim != 2 or rows.shape[1] < 2 or not (rows[:, [0, -1]] != 0).all():
        return None
    return rows if rows.dtype.kind in "fc" else rows.astype(float)


@register(np.roots)
def _roots(level: Level, p: Any) -> Any:
    rows = _rows_of_polynomials(level, p)
    if rows is None:
        return NotImplemented
    size = rows.shape[1] - 1
    companions = np.zeros((len(rows), size, size), rows.dtype)
    companions[:] = np.eye(size, k=-1, dtype=rows.dtype)
    companions[:, 0, :] = -rows[:, 1:] / rows[:, :1]
    found = np.linalg.eigvals(companions)
    if (
        rows.dtype.kind == "f" and not found.imag.any()
    ):  # real where all are, as numpy.roots; eigvals is not from 2.5 on
        found = found.real.copy()
    return Batched(level, found)


@register(np.poly)
def _poly(level: Level, seq_of_zeros: Any) -> Any:
    matrices = at_level(seq_of_zeros, level)._array
    if not is_numpy(matrices) or matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        return NotImplemented
    zeros = np.linalg.eigvals(matrices)
    zeros = zeros.astype(np.mintypecode(zeros.dtype.char), copy=False)
    made = np.ones((len(zeros), 1), zeros.dtype)
    for k in range(zeros.shape[1]):
        made = np.pad(made, ((0, 0), (0, 1))) - np.pad(zeros[:, k : k + 1] * made, ((0, 0), (1, 0)))
    is_real = zeros.dtype.kind == "c" and (np.sort(zeros) == np.sort(zeros.conj())).all()
    return Batched(level, made.real.copy() if is_real else made)


# ---------------------------------------------------------------- histograms


@register(np.histogram)
def _histogram(
    level: Level,
    a: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002  # NumPy's name
    density: Any = None,
    weights: Any = None,
) -> Any:
    given = [a] if weights is None else [a, weights]
    if any_batched(bins, range) or isinstance(bins, str):
        return NotImplemented
    rows, *others = (at_level(v if is_batched(v) else as_array(v), level)._array for v in given)
    if not all(is_numpy(v) and v.dtype.kind in "iuf" and v.shape[1:] == rows.shape[1:] for v in (rows, *others)):
        return NotImplemented
    rows, *others = (v.reshape(len(v), -1) for v in (rows, *others))
    edges = _edges_of_rows(rows, bins, range) if np.isfinite(rows).all() else None
    if edges is None or edges.shape[1] * rows.shape[1] > _MANY:
        return NotImplemented
    counts = _weights_in_bins(rows, edges, others[0]) if others else _counts_in_bins(rows, edges)
    if density:
        counts = counts / np.diff(edges).astype(float) / np.sum(counts, axis=1, keepdims=True)
    return Batched(level, counts), Batched(level, edges)


def _edges_of_rows(rows: Any, bins: Any, limits: Any) -> Any:
    """Return the edges of bins, in one row or a row for each example; None if there are no numbers or bins."""
    if not isinstance(bins, (int, np.integer)) or isinstance(bins, bool) or limits is not None:
        return np.histogram_bin_edges(rows, bins, limits)[None]
    if not rows.shape[1] or bins <= 0:
        return None
    first, last = np.min(rows, axis=1), np.max(rows, axis=1)
    wider = np.where(first == last, 0.5, 0.0).astype(rows.dtype if rows.dtype.kind == "f" else float)
    dtype = np.result_type(first - wider, rows)
    return np.linspace(first - wider, last + wider, int(bins) + 1, axis=1, dtype=dtype)


def _counts_in_bins(rows: Any, edges: Any) -> Any:
    counts = np.diff(np.sum(rows[:, :, None] >= edges[:, None, :], axis=1), axis=1) * -1
    counts[:, -1] += np.sum(rows == edges[:, -1:], axis=1)  # the last bin holds its right edge, too
    return counts


def _weights_in_bins(rows: Any, edges: Any, weights: Any) -> Any:
    """Return the sums of the weights in each bin, of which the bins of all examples are added up at once."""
    examples, bins = max(len(rows), len(weights)), edges.shape[1] - 1
    places = np.sum(rows[:, :, None] >= edges[:, None, :], axis=2) - 1
    places = np.broadcast_to(places - (rows == edges[:, -1:]), (examples, rows.shape[1]))
    is_inside = (places >= 0) & (places < bins)
    chosen = (places + np.arange(examples)[:, None] * bins)[is_inside]
    added = np.broadcast_to(weights, places.shape)[is_inside]
    return np.bincount(chosen, added, examples * bins).reshape(examples, bins).astype(weights.dtype)
