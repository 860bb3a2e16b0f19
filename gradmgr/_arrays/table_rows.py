"""Rows of a table that is 0 elsewhere, and sums of rows of equal index: what gradients of look-ups are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries

Array = Any

# The least number of rows for which all runs are summed at once.
_MANY_ROWS = 512


# Rows that were not asked for are kept where a table has so many bytes, and they have at most such a part of them. To
# find equal rows takes the time in which a whole table is made and taken through a step of SGD for so many more bytes
# of each. With these limits backward and step take .9 of the time of the whole table for 4 MB, .5 for 32 MB, and much
# less for fewer rows; without them, with a table of 1 MB or an eighth of rows of 32 bytes, 1.3 to 2 times the time.
_LARGE_TABLE = 1 << 22
_PART = 8
_SORTING = 1 << 11


def are_few(count: int, shape: tuple[int, ...], itemsize: int) -> bool:
    """Tell whether so many rows of a table, repeated ones counted, take less time than the whole table."""
    nbytes = math.prod(shape) * itemsize
    return nbytes >= _LARGE_TABLE and count * (_PART * nbytes // shape[0] + _SORTING) <= nbytes


def sum_equal_rows(rows: Array, values: Array, in_order: bool = False) -> tuple[Array, Array]:
    """Return the distinct indices in ascending order, and for each the sum of the values with that index; new arrays.

    On the CPU the sums are the same in every run.

    Args:
        rows: (n,) integers.
        values: (n, ...) numbers.
        in_order: on the CPU, add the values of a row in their order, as adding them to a table does, bit for bit.
    """
    xp = libraries.namespace(values)
    if xp is not np:
        distinct, places = xp.unique(rows, return_inverse=True)
        total = xp.zeros((len(distinct), *values.shape[1:]), values.dtype)
        libraries.add_atomically(total, places, values)
        return distinct, total
    order = _stable_order(rows)
    rows = rows.take(order)
    is_first = np.empty(len(rows), np.bool_)
    is_first[:1] = True
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    if len(starts) == len(rows):
        return rows, values.take(order, 0)
    if len(rows) < _MANY_ROWS and not in_order:
        return rows.take(starts), np.add.reduceat(values.take(order, 0), starts, axis=0, dtype=values.dtype.type)
    counts = np.diff(starts, append=len(rows))
    several = np.flatnonzero(counts > 1)
    several = several.take(np.argsort(-counts.take(several), kind="stable"))
    total = values.take(order.take(starts), 0)
    total[several] = _sum_of_runs(values, order, starts.take(several), counts.take(several), in_order)
    return rows.take(starts), total


# Up to so many rows of one index are added one after the other, which loses less than a digit of float32's seven.
MANY_EQUAL = 1 << 12


def counted_from_0(indices: Array, length: int) -> Array:
    """Return the positions, in an axis of this length, of integers of which negative ones count from its end."""
    indices = indices.astype(np.intp, copy=False)
    if indices.size and indices.min() < 0:
        indices = np.where(indices < 0, indices + length, indices)
    return indices


def sum_first(rows: Array, values: Array) -> tuple[Array, Array] | None:
    """Sum what NumPy's table rows of equal index receive before it is added to a table, where digits would be lost.

    Those are halves, which are summed in float32, and in single precision more than MANY_EQUAL rows of one index.

    Returns:
        The distinct indices and their sums; None where the rows are to be added to the table in their order.
    """
    is_half = libraries.is_half(values.dtype)
    if not is_half and (len(rows) <= MANY_EQUAL or values.dtype.char not in "fF"):
        return None
    # To count all indices up to the largest takes less time than to sort those that are there.
    counts = np.bincount(rows) if len(rows) > _MANY_ROWS and int(rows.max()) < 4 * len(rows) else None
    if is_half:
        distinct, total = _sum_widely(rows, values.astype(np.float32), counts)
        return distinct, total.astype(values.dtype)
    if counts is not None:
        are_many = int(counts.max()) > MANY_EQUAL
    else:
        ascending = np.sort(rows)
        are_many = bool((ascending[MANY_EQUAL:] == ascending[:-MANY_EQUAL]).any())
    return _sum_widely(rows, values, counts) if are_many else None


_FEW_COLUMNS = 16  # up to which numpy.bincount, which adds in float64, takes less time than to sort rows


def _sum_widely(rows: Array, values: Array, counts: Array | None) -> tuple[Array, Array]:
    columns = values.reshape((len(rows), math.prod(values.shape[1:])))
    if values.dtype != libraries.F4 or columns.shape[1] > _FEW_COLUMNS or counts is None:
        return sum_equal_rows(rows, values)
    distinct = np.flatnonzero(counts)
    total = np.stack([np.bincount(rows, column)[distinct] for column in columns.T], 1)
    return distinct, total.astype(values.dtype).reshape((len(distinct), *values.shape[1:]))


# The least number of rows that are sorted by 16 bits at a time, for which NumPy has a radix sort: 16,384 indices take a
# sixth of the time, and with fewer than these both take the same.
_MANY_TO_SORT = 1 << 11


def _stable_order(rows: Array) -> Array:
    """Return where the indices stand that ascend, equal ones in their order."""
    if len(rows) < _MANY_TO_SORT or rows.dtype.itemsize <= 2 or int(rows.max()) >> 32:
        return np.argsort(rows, kind="stable")
    order = np.argsort(rows.astype(np.uint16), kind="stable")  # of the lower bits
    return order.take(np.argsort((rows.take(order) >> 16).astype(np.uint16), kind="stable"))


def _sum_of_runs(values: Array, order: Array, starts: Array, counts: Array, in_order: bool) -> Array:
    """Return the sum of each run of rows in this order, the longest run first.

    The first rows of all runs are added at once, then the second rows of the runs that have two, and so on.
    numpy.add.reduceat would sum each column of each run by itself; it is used for the rest of a few long runs. It adds
    in pairs; what is to be added in order is added by numpy.add.accumulate.
    """
    having = (len(counts) - np.cumsum(np.bincount(counts))).tolist()  # having[k] runs have more than k rows
    rounds = max(1, int(np.argmin(np.add(having, range(len(having))))))
    total = values.take(order.take(starts), 0)
    for k in range(1, rounds):
        total[: having[k]] += values.take(order.take(starts[: having[k]] + k), 0)
    for k in range(having[rounds]):
        rest = values.take(order[starts[k] + rounds : starts[k] + counts[k]], 0)
        if in_order:
            total[k] = np.add.accumulate(np.concatenate([total[k : k + 1], rest]), axis=0)[-1]
        else:
            total[k] += np.add.reduceat(rest, (0,), axis=0)[0]
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
        on_request: whether the user asked for rows, as by `sparse=True`. Others stand for a whole table: they become
            one where it is asked for, and have its numbers, bit for bit.
    """

    __slots__ = ("dtype", "is_coalesced", "on_request", "parts", "shape")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        parts: tuple[tuple[Array, Array], ...],
        is_coalesced: bool = False,
        on_request: bool = True,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.parts = parts
        self.is_coalesced = is_coalesced
        self.on_request = on_request

    def _like(self, parts: tuple[tuple[Array, Array], ...], is_coalesced: bool) -> TableRows:
        return TableRows(self.shape, self.dtype, parts, is_coalesced, self.on_request)

    def are_few(self) -> bool:
        """Tell whether rows of a large table that were not asked for are few enough to be worth it, see `are_few`."""
        return are_few(sum([len(rows) for rows, _ in self.parts]), self.shape, self.dtype.itemsize)

    def joined(self) -> tuple[Array, Array]:
        """Return the indices and the values of all parts."""
        if len(self.parts) == 1:
            return self.parts[0]
        xp = libraries.namespace(self.parts[0][1])
        rows, values = zip(*self.parts, strict=True)
        return xp.concatenate(rows), xp.concatenate(values)

    def coalesced(self) -> TableRows:
        """Return the same rows, each once and in ascending order.

        Half precision is summed in float32. Where the rows stand for a whole table, the sums of the parts are then
        added in their dtype, as they would be to the table.
        """
        if self.is_coalesced:
            return self
        if self.on_request:
            rows, values = self.joined()
        else:
            parts = tuple([sum_first(*part) or part for part in self.parts])
            rows, values = self._like(parts, is_coalesced=False).joined()
        wide = values.astype(np.float32) if libraries.is_half(values.dtype) and self.on_request else values
        rows, total = sum_equal_rows(rows, wide, in_order=not self.on_request)
        return self._like(((rows, total.astype(self.dtype, copy=False)),), is_coalesced=True)

    def owned(self) -> TableRows:
        """Return the rows coalesced, in their own memory."""
        if not self.is_coalesced:
            return self.coalesced()
        ((rows, values),) = self.parts
        return self._like(((rows.copy(), values.copy()),), is_coalesced=True)

    def plus(self, other: TableRows) -> TableRows:
        """Return the sum with other rows of the same table."""
        made = self._like((*self.parts, *other.parts), is_coalesced=False)
        made.on_request = self.on_request or other.on_request
        return made

    def times(self, factor: float) -> TableRows:
        """Return all values multiplied by a number."""
        return self.with_values([values * float(factor) for _, values in self.parts])

    def over(self, divisor: float) -> TableRows:
        """Return all values divided by a number."""
        return self.with_values([values / float(divisor) for _, values in self.parts])

    def with_values(self, values: list[Array]) -> TableRows:
        """Return other values in the same rows, those of each part."""
        parts = tuple([(rows, new) for (rows, _), new in zip(self.parts, values, strict=True)])
        return self._like(parts, self.is_coalesced)

    def none(self) -> TableRows:
        """Return a table of zeros, with no rows."""
        rows, values = self.parts[0]
        return self._like(((rows[:0].copy(), values[:0].copy()),), is_coalesced=True)

    def add_to(self, table: Array) -> Array:
        """Add the rows to a table in place, and return it."""
        if not self.on_request:  # of -0 in another row it makes 0, too
            table += self.dense()
            return table
        ((rows, values),) = self.coalesced().parts
        table[rows] += values
        return table

    def dense(self) -> Array:
        """Return the whole table as a new array."""
        ((rows, values),) = self.coalesced().parts
        table = libraries.namespace(values).zeros(self.shape, self.dtype)
        table[rows] = values if self.on_request else values + 0  # as added to zeros: of -0 it makes 0
        return table
