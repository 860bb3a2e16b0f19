"""Rows of a table that is 0 elsewhere, and sums of rows of equal index: what gradients of look-ups are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries

Array = Any

# The least number of rows for which all runs are summed at once.
_MANY_ROWS = 512


def sum_equal_rows(rows: Array, values: Array) -> tuple[Array, Array]:
    """Return the distinct indices in ascending order, and for each the sum of the values with that index; new arrays.

    On the CPU the sums are the same in every run.

    Args:
        rows: (n,) integers.
        values: (n, ...) numbers.
    """
    xp = libraries.namespace(values)
    if xp is not np:
        distinct, places = xp.unique(rows, return_inverse=True)
        total = xp.zeros((len(distinct), *values.shape[1:]), values.dtype)
        libraries.add_atomically(total, places, values)
        return distinct, total
    order = np.argsort(rows, kind="stable")
    rows = rows.take(order)
    is_first = np.empty(len(rows), np.bool_)
    is_first[:1] = True
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    values = values.take(order, 0)
    starts = np.flatnonzero(is_first)
    if len(starts) == len(rows):
        return rows, values
    if len(rows) < _MANY_ROWS:
        return rows.take(starts), np.add.reduceat(values, starts, axis=0, dtype=values.dtype)
    counts = np.diff(starts, append=len(rows))
    by_count = np.argsort(-counts, kind="stable")
    total = np.empty((len(starts), *values.shape[1:]), values.dtype)
    total[by_count] = _sum_of_runs(values, starts.take(by_count), counts.take(by_count))
    return rows.take(starts), total


def _sum_of_runs(values: Array, starts: Array, counts: Array) -> Array:
    """Return the sum of each run of rows, the longest run first.

    The first rows of all runs are added at once, then the second rows of the runs that have two, and so on.
    numpy.add.reduceat would sum each column of each run by itself; it is used for the rest of a few long runs.
    """
    having = (len(counts) - np.cumsum(np.bincount(counts))).tolist()  # having[k] runs have more than k rows
    rounds = max(1, int(np.argmin(np.add(having, range(len(having))))))
    total = values.take(starts, 0)
    for k in range(1, rounds):
        total[: having[k]] += values.take(starts[: having[k]] + k, 0)
    for k in range(having[rounds]):
        total[k] += np.add.reduceat(values[starts[k] + rounds : starts[k] + counts[k]], (0,), axis=0)[0]
    return total


class TableRows:
    """Some rows of a table of which all others are 0; a row that stands there several times is the sum of these.

    It never changes, and nothing writes to its arrays.

    Attributes:
        shape: of the table.
        dtype: of the values.
        parts: (indices, values) pairs: sums keep the arrays of their terms, and are computed when they are needed, so
            that adding the gradients of many look-ups takes time in proportion to their rows.
        is_coalesced: whether there is one part, whose indices ascend and are distinct.
    """

    __slots__ = ("dtype", "is_coalesced", "parts", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, parts: tuple[tuple[Array, Array], ...], is_coalesced: bool = False
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.parts = parts
        self.is_coalesced = is_coalesced

    def joined(self) -> tuple[Array, Array]:
        """Return the indices and the values of all parts."""
        if len(self.parts) == 1:
            return self.parts[0]
        xp = libraries.namespace(self.parts[0][1])
        rows, values = zip(*self.parts, strict=True)
        return xp.concatenate(rows), xp.concatenate(values)

    def coalesced(self) -> TableRows:
        """Return the same rows, each once and in ascending order; half precision is summed in float32."""
        if self.is_coalesced:
            return self
        rows, values = self.joined()
        wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
        rows, total = sum_equal_rows(rows, wide)
        return TableRows(self.shape, self.dtype, ((rows, total.astype(self.dtype, copy=False)),), is_coalesced=True)

    def owned(self) -> TableRows:
        """Return the rows coalesced, in memory of their own."""
        if not self.is_coalesced:
            return self.coalesced()
        ((rows, values),) = self.parts
        return TableRows(self.shape, self.dtype, ((rows.copy(), values.copy()),), is_coalesced=True)

    def plus(self, other: TableRows) -> TableRows:
        """Return the sum with other rows of the same table."""
        return TableRows(self.shape, self.dtype, (*self.parts, *other.parts))

    def times(self, factor: float) -> TableRows:
        """Return all values multiplied by a number."""
        return self._with_values([values * float(factor) for _, values in self.parts])

    def over(self, divisor: float) -> TableRows:
        """Return all values divided by a number."""
        return self._with_values([values / float(divisor) for _, values in self.parts])

    def _with_values(self, made: list[Array]) -> TableRows:
        parts = tuple([(rows, values) for (rows, _), values in zip(self.parts, made, strict=True)])
        return TableRows(self.shape, self.dtype, parts, self.is_coalesced)

    def none(self) -> TableRows:
        """Return a table of zeros, with no rows."""
        rows, values = self.parts[0]
        return TableRows(self.shape, self.dtype, ((rows[:0].copy(), values[:0].copy()),), is_coalesced=True)

    def add_to(self, table: Array) -> Array:
        """Add the rows to a table in place, and return it."""
        ((rows, values),) = self.coalesced().parts
        table[rows] += values
        return table

    def dense(self) -> Array:
        """Return the whole table as a new array."""
        ((rows, values),) = self.coalesced().parts
        table = libraries.namespace(values).zeros(self.shape, self.dtype)
        table[rows] = values
        return table
