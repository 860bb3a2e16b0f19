"""Sums, means and maxima of rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.indexing import getitem
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr.nn._functions.arguments import check_inexact, check_word
from gradmgr.nn._functions.embedding import checked_places, look_up, read_table, refuse_max_norm, sum_rows
from gradmgr.ops.convert import lift
from gradmgr.ops.reduce import add_up, max, sum
from gradmgr.ops.shape import expand_dims, ravel, reshape
from gradmgr.ops.where import choose

_MODES = ("sum", "mean", "max")


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Return the sum, mean or maximum of rows of a table for each bag of indices, as torch's function of that name.

    Args:
        input: indices of rows, integers: (bags, length), or (n,) of all bags one after the other.
        weight: the table, (rows, columns).
        offsets: (bags,), where each bag begins in an input of one axis; ascending from 0. A bag may be empty.
        max_norm: not supported, see `embedding`.
        norm_type: the order of max_norm.
        scale_grad_by_freq: divide the gradient of each row by how often it is read; not with "max".
        mode: "sum", "mean" or "max"; where rows of a bag tie for the maximum, they share its gradient evenly.
        sparse: give a table that is attached a `sparse.RowSparse` as its gradient, see `embedding`.
        per_sample_weights: factors of the rows, in the shape of input; with "sum" alone.
        include_last_offset: whether offsets has one more element at its end, the length of the input.
        padding_idx: an index that is left out of its bag, and whose row gets no gradient.

    Returns:
        (bags, columns), in the dtype of the table; 0 for an empty bag.

    Raises:
        LabelError: an index is negative or not a row of the table.
        DtypeError: the indices or offsets are not integers, or the table's dtype cannot have gradients.
        ShapeError: the table does not have two axes, or the other shapes do not fit together.
        ValueError: the mode is unknown, or cannot be combined with another argument.
        UnsupportedFunctionError: max_norm is given.
        BatchedValueError: the offsets differ between examples of a vmap.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import embedding_bag
    >>> table = np.array([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])
    >>> embedding_bag(np.array([2, 0, 1]), table, np.array([0, 1]), mode="sum").tolist()
    [[2.0, 2.5], [1.0, 2.0]]
    """
    asked = "embedding_bag"
    refuse_max_norm(max_norm, asked)
    check_word(mode, _MODES, "mode", asked)
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"{asked}: per_sample_weights needs mode='sum'; found mode={mode!r}")
    if scale_grad_by_freq and mode == "max":
        raise ValueError(f"{asked}: scale_grad_by_freq cannot be combined with mode='max'")
    table, places, padding = read_table(input, weight, padding_idx, asked)
    weights = _weights(per_sample_weights, places)
    bags = _Bags(places, offsets, include_last_offset)
    wraps = isinstance(input, Tensor) or isinstance(weights, Tensor)
    table = wrap(table) if wraps and not isinstance(table, Tensor) else table
    flat = places.reshape(-1)
    read = look_up(table, flat, padding, bool(scale_grad_by_freq), sparse)
    kept = None if padding is None else flat != padding
    if mode == "max":
        return bags.largest(read, kept)
    if weights is not None:
        read = read * expand_dims(ravel(weights), -1)
    if kept is not None:
        read = choose(kept[:, None], read, read.dtype.type(0))
    total = bags.total(read)
    return total / np.maximum(bags.counts(kept, total.dtype), 1)[:, None] if mode == "mean" else total


def _weights(given: Any, places: Any) -> Any:
    if given is None:
        return None
    weights = lift(given)
    check_inexact("embedding_bag", per_sample_weights=weights)
    if weights.shape != places.shape:
        raise errors.ShapeError(
            f"embedding_bag takes per_sample_weights in the shape of input, {places.shape}; found {weights.shape}"
        )
    return weights


class _Bags:
    """Which elements of the flattened input belong to which bag.

    Attributes:
        number: how many bags there are.
        length: how many elements each has; None if they are told by `starts`.
        starts: (number,) where each begins.
    """

    def __init__(self, places: Any, offsets: Any, include_last: bool) -> None:
        self.xp = libraries.namespace(places)
        self.size = places.size
        if places.ndim == 2 and offsets is None:
            self.number, self.length = places.shape
            return
        if places.ndim != 1 or offsets is None:
            raise errors.ShapeError(
                "embedding_bag takes an input of two axes without offsets, or one of one axis with offsets; found "
                f"shape {places.shape} and {'no offsets' if offsets is None else 'offsets'}"
            )
        starts = _checked_starts(offsets, self.size)
        if include_last:
            if not len(starts) or int(starts[-1]) != self.size:
                raise ValueError(
                    f"embedding_bag: with include_last_offset the last offset is the length of input, {self.size}; "
                    f"found {'none' if not len(starts) else int(starts[-1])}"
                )
            starts = starts[:-1]
        self.number, self.length, self._given = len(starts), None, starts
        self.starts = libraries.place_indices(starts, places, "embedding_bag")

    def owners(self) -> Any:
        """Return the bag of each element."""
        elements = self.xp.arange(self.size)
        return elements // self.length if self.length else np.searchsorted(self.starts, elements, side="right") - 1

    def total(self, read: Any) -> Any:
        """Return the sum of the rows of each bag."""
        if self.length is not None:
            return add_up(reshape(read, (self.number, self.length, read.shape[-1])), (1,), False)
        return sum_rows(read, self.owners(), self.number)

    def counts(self, kept: Any, dtype: Any) -> Any:
        """Return how many rows of each bag are kept, as a plain array."""
        if kept is None and self.length is not None:
            return self.xp.full(self.number, self.length, dtype)
        counted = self.xp.ones(self.size, np.bool_) if kept is None else kept
        return self.total(counted.astype(np.float32)[:, None])[:, 0].astype(dtype)

    def largest(self, read: Any, kept: Any) -> Any:
        """Return the maximum of the rows of each bag."""
        at, is_there = self._grid()
        if at.size == 0:
            return sum(getitem(read, at), 1)
        if kept is not None:
            is_there = is_there & libraries.getitem(kept, at)
        rows = choose(is_there[..., None], getitem(read, at), read.dtype.type(-np.inf))
        return choose(is_there.any(axis=1)[:, None], max(rows, 1), read.dtype.type(0))

    def _grid(self) -> tuple[Any, Any]:
        """Return the elements of each bag as a row of (number, greatest length), and which of these there are."""
        if self.length is not None:
            at = self.xp.arange(self.size).reshape((self.number, self.length))
            return at, at >= 0
        counts = _differences(self._given, self.size)  # in the memory in which they were given
        longest = int(libraries.common_value(counts.max(), "the length of a bag")) if self.number else 0
        counts = libraries.place_indices(counts, self.starts, "embedding_bag")
        within = self.xp.arange(longest)
        at = np.minimum(self.starts[:, None] + within, self.size - 1 if self.size else 0)
        return at, within < counts[:, None]


def _differences(starts: Any, size: int) -> Any:
    """Return the lengths of the bags that begin there."""
    return np.concatenate([starts[1:], libraries.namespace(starts).asarray([size])]) - starts


def _checked_starts(offsets: Any, size: int) -> Any:
    starts = checked_places(offsets, None, "embedding_bag", "the input")
    if batched.is_batched(starts):
        raise errors.BatchedValueError("embedding_bag: offsets must be the same for all examples of a vmap")
    if starts.ndim != 1:
        raise errors.ShapeError(f"embedding_bag takes offsets of one axis; found shape {starts.shape}")
    if size and not len(starts):
        raise ValueError("embedding_bag: there are indices, and no offset says to which bag they belong")
    if len(starts) and bool((_differences(starts, size) < 0).any() | (starts[0] != 0)):  # one look, for a GPU's
        raise ValueError(
            f"embedding_bag takes offsets that begin with 0, ascend, and are at most the length of input, {size}"
        )
    return starts
