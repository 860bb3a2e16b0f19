"""Normalisation of NumPy arrays in blocks, and its gradients: the fast path of the ops in `normalization`.

Each block of rows goes through the whole computation while it is in the processor's cache: no array is allocated but
the results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr.ops.softmax import LONG, by_rows, fewest_rows, row_dots, row_sums, rows_for_blocks

Shape = tuple[int, ...]


class Layout:
    """The three-axis shapes of an array: (P, Q, S) for its statistics, and another for its weight."""

    __slots__ = ("by_statistic", "by_weight", "count", "letter", "of_weight")

    def __init__(self, by_statistic: Shape, by_weight: Shape, *, per_channel: bool) -> None:
        self.by_statistic = by_statistic
        self.by_weight = by_weight
        self.count = max(by_statistic[0] * by_statistic[2], 1)  # of the values of each statistic
        self.of_weight = (by_weight[1], 1) if per_channel else (by_weight[2],)
        self.letter = "q" if per_channel else "s"  # the axis of the weight

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[Any, ...]:
        return self.by_statistic, self.by_weight, self.letter


def reshape_to(a: Any, shape: Shape) -> Any:
    return a if a.shape == shape else a.reshape(shape)


SIZE = 16  # the least number of values of a channel for which computing in rows is faster
_FEW = 8192  # arrays of at most this size are computed as one block


def can_run_in_blocks(x: Any, *others: Any) -> bool:
    """Tell whether all are None or NumPy arrays of one dtype, float32 or float64, and x is contiguous and not empty."""
    if x.__class__ is not np.ndarray or not x.flags.c_contiguous or not x.size:
        return False
    dtype = x.dtype
    if dtype is not libraries.F4 and dtype is not libraries.F8:
        return False
    for a in others:  # noqa: SIM110  # all(...) of a generator takes twice as long
        if a is not None and (a.__class__ is not np.ndarray or a.dtype is not dtype):
            return False
    return True


def is_captured_block(x: Any, *others: Any) -> bool:
    """Tell whether `can_run_in_blocks` would hold of captured arrays, and there is one block, computed call by call."""
    if x.__class__ is np.ndarray or not libraries.are_captured_from(x, *others):
        return False
    dtype = x.dtype
    if not x.flags.c_contiguous or not 0 < x.size <= _FEW or (dtype is not libraries.F4 and dtype is not libraries.F8):
        return False
    return all(a is None or a.dtype is dtype for a in others)


def _normalise(x: Any, out: Any, rstd: Any, eps: float, centred: bool, each: Any) -> None:
    """Write the normalised rows of x into `out`, and 1/std into `rstd`; `each` holds 1 / count for each column."""
    if centred:
        x = np.subtract(x, row_dots(x, each)[:, None], out=out)
    var = row_dots(x, x)
    var *= each[:1]
    var += var.dtype.type(eps)
    np.sqrt(var, out=var)
    np.reciprocal(var, out=rstd)
    np.multiply(x, rstd[:, None], out=out)


def normalise_rows(x: Any, weight: Any, bias: Any, layout: Layout, eps: float, centred: bool) -> tuple[Any, ...]:
    """Normalise rows, with a weight and a bias for each number of a row."""
    form = layout.by_statistic[1:]
    rows, dtype = reshape_to(x, form), x.dtype
    whole, a, rstd = libraries.empty(x.shape, x), libraries.empty(form, x), libraries.empty(form[:1], x)
    y, each = reshape_to(whole, form), np.full(form[1], 1 / form[1], dtype)
    if x.size <= _FEW:
        _normalise(rows, a, rstd, eps, centred, each)
        found = a if weight is None else np.multiply(a, weight.reshape(-1), out=y)
        if bias is not None:
            np.add(found, bias.reshape(-1), out=y)
        elif weight is None:
            np.copyto(y, a)
        return whole, a.reshape(layout.by_statistic), rstd, None, None
    weight, bias = (None if z is None else rows_for_blocks(z.reshape(1, -1), rows) for z in (weight, bias))

    def work(part: slice) -> None:
        here, to = a[part], y[part]
        _normalise(rows[part], here, rstd[part], eps, centred, each)
        if weight is not None:
            here = np.multiply(here, weight[: len(to)], out=to)
        if bias is not None:
            np.add(here, bias[: len(to)], out=to)
        elif weight is None:
            np.copyto(to, here)

    by_rows(work, rows, quiet=False)
    return whole, a.reshape(layout.by_statistic), rstd, None, None


def normalise_groups(x: Any, weight: Any, bias: Any, layout: Layout, eps: float) -> tuple[Any, ...]:
    """Normalise rows of several channels, with a weight and a bias for each channel."""
    rows, (n, channels, size) = x.reshape(layout.by_statistic[1:]), layout.by_weight
    each = n * channels // rows.shape[0]
    a, whole = np.empty(rows.shape, x.dtype), np.empty(x.shape, x.dtype)
    y, rstd = whole.reshape(-1, size), np.empty(rows.shape[0], x.dtype)
    share = np.full(rows.shape[1], 1 / rows.shape[1], x.dtype)
    weight, bias = (None if z is None else np.tile(z, n)[:, None] for z in (weight, bias))

    def work(part: slice) -> None:
        here, channels_of_part = a[part], slice(part.start * each, part.stop * each)
        to = y[channels_of_part]
        _normalise(rows[part], here, rstd[part], eps, True, share)
        here = here.reshape(to.shape)
        if weight is None:
            np.copyto(to, here) if bias is None else np.add(here, bias[channels_of_part], out=to)
            return
        np.multiply(here, weight[channels_of_part], out=to)
        if bias is not None:
            to += bias[channels_of_part]

    by_rows(work, rows, size, quiet=False)
    return whole, a.reshape(layout.by_statistic), rstd, None, None


@libraries.keeps_nothing
def slopes(g: Any, weight: Any, a: Any, rstd: Any, layout: Layout, centred: bool) -> Any:
    """Return the cotangents of x and weight, for arrays that can be computed in blocks; else None.

    The rules in `normalization` use them if they are there, and compute the same for all other arrays.
    """
    gy = g[0]
    fits = can_run_in_blocks(gy, a, rstd, weight) or (
        layout.letter == "s" and gy is not None and is_captured_block(gy, a, rstd, weight)
    )
    if g[1] is not None or g[2] is not None or not fits or not a.flags.c_contiguous:
        one = libraries.in_one(slopes, *g, weight, a, rstd)
        return None if one is None else one(g, weight, a, rstd, layout, centred)
    if layout.letter == "s":
        return _slopes_of_long_rows(gy, weight, a, rstd, layout, centred)
    if layout.by_statistic[0] == 1 and layout.by_weight[2] >= SIZE:
        return _slopes_of_groups(gy, weight, a, rstd, layout)
    return None


def _slopes_of_long_rows(gy: Any, weight: Any, a: Any, rstd: Any, layout: Layout, centred: bool) -> Any:
    form, dtype = layout.by_statistic[1:], gy.dtype
    whole = libraries.empty(gy.shape, gy)
    gy, a, weight = reshape_to(gy, form), a.reshape(form), None if weight is None else weight.reshape(1, -1)
    dx = reshape_to(whole, form)
    # The weights divided by the number of columns, and 1/std of each row, are factors of the sums, not of the arrays.
    each = np.full(form[1], 1 / form[1], dtype) if weight is None else weight[0] * dtype.type(1 / form[1])
    compute = _write_slopes if dx.size <= _FEW else _write_slopes_in_blocks
    return whole, compute(dx, gy, weight, a, rstd, each, centred)


def _write_slopes(dx: Any, gy: Any, weight: Any, a: Any, rstd: Any, each: Any, centred: bool) -> Any:
    """Write the cotangent of x into `dx`, and return that of weight; `each` are the factors of the sums of rows."""
    both = gy * a
    slope = row_dots(both, each)
    slope *= rstd
    of_weight = None if weight is None else _column_sums(both)
    if weight is None:
        np.multiply(gy, rstd[:, None], out=dx)
    else:
        np.dot(rstd[:, None], weight, out=dx)
        dx *= gy
    dx -= np.multiply(a, slope[:, None], out=both)
    if centred:
        level = row_dots(gy, each)
        level *= rstd
        dx -= level[:, None]
    return of_weight


def _write_slopes_in_blocks(dx: Any, gy: Any, weight: Any, a: Any, rstd: Any, each: Any, centred: bool) -> Any:
    """Do the same on several threads."""
    row, weight, few = weight, rows_for_blocks(weight, dx), fewest_rows(dx)
    columns = dx.shape[1]
    workspace, by_weight = np.empty((min(few, len(dx)), columns), dx.dtype), {}

    def work(part: slice) -> None:
        here, values, to, scale = gy[part], a[part], dx[part], rstd[part]
        subs = [slice(start, min(start + few, len(to))) for start in range(0, len(to), few)]
        slope = np.empty(len(to), dx.dtype)
        for sub in subs:  # so that the sums of columns do not depend on how the array is cut into parts
            both = np.multiply(here[sub], values[sub], out=workspace[: sub.stop - sub.start])
            slope[sub] = row_dots(both, each)
            if row is not None:
                by_weight[part.start + sub.start] = _column_sums(both)
        slope *= scale
        if row is None:
            np.multiply(here, scale[:, None], out=to)
        elif columns < LONG:  # a matrix product takes 0.12 ns per number, a broadcast product 0.15
            np.dot(scale[:, None], row, out=to)
            to *= here
        else:
            np.multiply(here, weight[: len(to)], out=to)
            to *= scale[:, None]
        column = slope[:, None]
        for sub in subs:
            to[sub] -= np.multiply(values[sub], column[sub], out=workspace[: sub.stop - sub.start])
        if centred:
            level = row_dots(here, each)
            level *= scale
            to -= level[:, None]

    by_rows(work, dx, quiet=False)
    return None if row is None else _sum_in_order(by_weight)


def _column_sums(a: Any) -> Any:
    """Return the sum of each column; neighbouring rows are joined, as long rows are added faster."""
    rows, columns = a.shape
    while columns < 512 and rows % 2 == 0:
        rows, columns = rows // 2, columns * 2
    total = np.add.reduce(a.reshape(rows, columns), axis=0)
    return total if columns == a.shape[1] else np.add.reduce(total.reshape(-1, a.shape[1]), axis=0)


def _sum_in_order(found: dict[int, Any]) -> Any:
    """Return the sum of the blocks' results, added in the order of the blocks."""
    parts = [found[start] for start in sorted(found)]
    return parts[0] if len(parts) == 1 else np.add.reduce(parts, axis=0)


def _slopes_of_groups(gy: Any, weight: Any, a: Any, rstd: Any, layout: Layout) -> Any:
    """Return the cotangents for groups: sums over channels, times their weights, add up to the sums of a group."""
    (n, channels, size), groups, dtype = layout.by_weight, layout.by_statistic[1], gy.dtype
    each = n * channels // groups
    whole = np.empty(gy.shape, dtype)
    gy, a = gy.reshape(-1, size), a.reshape(-1, size)
    dx = whole.reshape(-1, size)
    few = fewest_rows(dx)
    workspace = np.empty((min(few, len(dx)), size), dtype)
    by_weight, by_bias = np.empty(n * channels, dtype), np.empty(n * channels, dtype)
    factor = np.ones(n * channels, dtype) if weight is None else np.tile(weight, n)
    inverse = dtype.type(1 / (each * size))

    def work(part: slice) -> None:
        part = slice(part.start * each, part.stop * each)
        here, values, to, w = gy[part], a[part], dx[part], factor[part]
        scale = np.repeat(rstd[part.start // each : part.stop // each], each)
        by_weight[part], by_bias[part] = row_dots(here, values), row_sums(here)
        slope, level = (
            np.repeat(np.add.reduce((found[part] * w).reshape(-1, each), axis=1), each)[:, None]
            for found in (by_weight, by_bias)
        )
        np.multiply(here, (w * scale)[:, None], out=to)
        scale *= inverse
        slope *= scale[:, None]
        level *= scale[:, None]
        for start in range(0, len(to), few):
            sub = slice(start, start + few)
            into = to[sub]
            into -= np.multiply(values[sub], slope[sub], out=workspace[: len(into)])
            into -= level[sub]

    by_rows(work, dx.reshape(groups, -1), size, quiet=False)
    return whole, np.add.reduce(by_weight.reshape(n, channels), axis=0)
