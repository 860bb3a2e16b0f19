"""Attention of NumPy's arrays block by block, and its gradients: the fast way of the op in `_attention`.

A block is a few matrices of scores, or some rows of one. It stays in the processor's cache from the first
product to the last, so that numbers of which there is one for each query and key never go to memory; and
threads take blocks in turn. What is kept of them is the logarithm of each row's sum of exponentials: the
gradients compute the scores again, since a product takes no longer than to fetch them from new memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.blocks import BLOCK, run

Index = tuple[Any, ...]
Part = tuple[int, int, int]  # of a matrix of scores: first row, last row and last column, exclusive

# Bytes of scores in a block: with the cotangents beside them half of the cache that a core has.
_ROOM = BLOCK
# So many rows of causal scores are computed at a time, of short sequences half: what lies to the right is left out.
_ROWS = 64
# And at least so many rows of a matrix that is larger than a block.
_FEW = 16

# A row of scores need not be shifted before the exponential if all are below this and its sum is above 1 / e to
# this: nothing overflows, and no digit is lost. NumPy takes longer to find each row's maximum than for a product.
_FAR = 24.0
_LITTLE = math.exp(-_FAR)

_maximum: Any = np.maximum.reduce
_minimum: Any = np.minimum.reduce


class _Scores:
    """The matrices of scores of one call, their leading axes written out, and how they are cut."""

    def __init__(self, query: Any, key: Any, value: Any, bias: Any, hidden: Any, drop: Any, causal: bool) -> None:
        lead = query.shape[:-2]
        if not lead == key.shape[:-2] == value.shape[:-2]:
            lead = np.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])
            query, key, value = (np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (query, key, value))
        rows, columns = query.shape[-2], key.shape[-2]
        self.query, self.key, self.value, self.rows = query, key, value, rows
        self.bias, self.hidden, self.drop = bias, hidden, drop
        if not bias is hidden is drop is None:
            self.bias, self.hidden, self.drop = (
                None if a is None else np.broadcast_to(a, (*lead, rows, columns)) for a in (bias, hidden, drop)
            )
        self.sums_shape = (*lead, rows, 1)
        self.ones = np.empty(max(columns, value.shape[-1]), query.dtype)
        self.ones.fill(1)
        each = _ROOM // max(1, rows * columns * query.itemsize)
        self.tasks = _cut(lead, max(each, 1))
        high = rows if each else max(_FEW, _ROOM // (columns * query.itemsize))
        if causal and rows >= _ROWS:
            high = min(high, _ROWS, rows // 2)
        self.parts = _parts(rows, columns, high, causal)
        # 1 where a query sees a key, relative to the first row of a part; numpy.tri takes three times as long
        self.seen = np.greater_equal.outer(*[np.arange(high)] * 2).astype(query.dtype) if causal else None
        self.shows_all = hidden is None and not causal

    def each(self, work: Callable[[Index], None]) -> None:
        """Call work(index of matrices) for all of them."""
        tasks = self.tasks

        def some(which: slice) -> None:
            for task in tasks[which]:
                work(task)

        if len(tasks) == 1:
            work(tasks[0])
        else:
            run(some, [slice(k, k + 1) for k in range(len(tasks))])

    def of(self, query: Any, key: Any, task: Index, part: Part) -> Any:
        """Return scores with nothing hidden, for the queries, times the scale, and keys of a task."""
        first, last, end = part
        made = np.matmul(query[..., first:last, :], key[..., :end, :].swapaxes(-1, -2))
        if self.bias is not None:
            made += self.bias[task][..., first:last, :end]
        return made

    def hide(self, scores: Any, task: Index, part: Part) -> None:
        """Set the scores of what is hidden to -inf."""
        first, last, end = part
        if self.hidden is not None:
            np.copyto(scores, -np.inf, where=self.hidden[task][..., first:last, :end])
        if self.seen is not None and first < end:
            np.copyto(scores[..., first:], -np.inf, where=self.seen[: last - first, : end - first] == 0)

    def clear(self, exponentials: Any, task: Index, part: Part) -> None:
        """Set the exponentials of what is hidden, all of them being finite, to 0."""
        first, last, end = part
        if self.hidden is not None:
            exponentials *= ~self.hidden[task][..., first:last, :end]
        if self.seen is not None and first < end:
            exponentials[..., first:] *= self.seen[: last - first, : end - first]

    def dropped(self, weights: Any, task: Index, part: Part) -> Any:
        """Return weights times the factors of dropout."""
        first, last, end = part
        return weights if self.drop is None else weights * self.drop[task][..., first:last, :end]

    def total(self, rows: Any) -> Any:
        """Return the sum of each row; as a product it takes BLAS a seventh of the time of numpy.add.reduce."""
        width = rows.shape[-1]
        return rows.reshape(-1, width).dot(self.ones[:width]).reshape(*rows.shape[:-1], 1)


def _cut(lead: tuple[int, ...], each: int) -> list[Index]:
    """Return indices that cut leading axes into blocks of so many matrices, or fewer."""
    axis, whole = len(lead), 1
    while axis and whole * lead[axis - 1] <= each:
        axis -= 1
        whole *= lead[axis]
    if not axis:
        return [()]
    step = each // whole
    starts = range(0, lead[axis - 1], step)
    return [(*outer, slice(start, start + step)) for outer in np.ndindex(lead[: axis - 1]) for start in starts]


def _parts(rows: int, columns: int, high: int, causal: bool) -> list[Part]:
    """Return parts of so many rows that cover a matrix, or its lower triangle."""
    ends = [(first, min(first + high, rows)) for first in range(0, rows, high)]
    return [(first, last, min(last, columns) if causal else columns) for first, last in ends]


# ---------------------------------------------------------------- values


def attended(
    query: Any, key: Any, value: Any, bias: Any, hidden: Any, drop: Any, scale: float, causal: bool
) -> tuple[Any, Any]:
    """Return the attended values, and the logarithm of each row's sum of exponentials: inf where all is hidden."""
    scores = _Scores(query, key, value, bias, hidden, drop, causal)
    query, key, value = scores.query, scores.key, scores.value
    output = np.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))
    sums = np.empty(scores.sums_shape, query.dtype)

    def work(task: Index) -> None:
        q, k, v, o, s = query[task] * scale, key[task], value[task], output[task], sums[task]
        for part in scores.parts:
            first, last, end = part
            weights, total, top = _exponentials(scores, q, k, task, part)
            here = o[..., first:last, :]
            np.matmul(scores.dropped(weights, task, part), v[..., :end, :], here)
            if top is None:
                here /= total
                np.log(total, s[..., first:last, :])
            else:
                nothing = total == 0
                here /= total + nothing
                s[..., first:last, :] = np.where(nothing, np.inf, np.log(total + nothing) + top)

    scores.each(work)
    return output, sums


def _exponentials(scores: _Scores, q: Any, k: Any, task: Index, part: Part) -> tuple[Any, Any, Any]:
    """Return the exponentials, their sums, and what was subtracted before, if anything."""
    made = scores.of(q, k, task, part)
    if _maximum(made, None) < _FAR:
        np.exp(made, made)
        scores.clear(made, task, part)
        total = scores.total(made)
        if _minimum(total, None) > _LITTLE:
            return made, total, None
        made = scores.of(q, k, task, part)
    scores.hide(made, task, part)
    top = _maximum(made, -1, keepdims=True)
    top[top == -np.inf] = 0
    made -= top
    np.exp(made, made)
    return made, scores.total(made), top


# ---------------------------------------------------------------- gradients


def gradients(
    of_output: Any,
    of_sums: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    hidden: Any,
    drop: Any,
    scale: float,
    causal: bool,
    output: Any,
    sums: Any,
) -> tuple[Any, Any, Any]:
    """Return the cotangents of query, key and value, with all leading axes.

    The cotangent of a score is its weight times d - t, where d is that of the weight, and t the sum of d times
    weight over the row: the one of cotangent times output over the features.
    """
    scores = _Scores(query, key, value, bias, hidden, drop, causal)
    query, key, value = scores.query, scores.key, scores.value
    made = np.empty_like(query), np.empty_like(key), np.empty_like(value)
    near = bool(_maximum(np.abs(sums), None) < _FAR)

    def work(task: Index) -> None:
        q, k, v, g = query[task] * scale, key[task], value[task], of_output[task]
        of_q, of_k, of_v = (a[task] for a in made)
        s, t = sums[task], scores.total(g * output[task])
        if of_sums is not None:
            t -= of_sums[task]
        if near:  # the weights are exponentials over their sum: here the sum goes with g
            share = np.exp(-s)
            g, t, s = g * share, t * share, None
        for part in reversed(scores.parts):  # the first one to be computed has the most columns
            first, last, end = part
            weights = _weights(scores, q, k, s, task, part)
            rows = slice(first, last)
            g_rows = g[..., rows, :]
            d = scores.dropped(np.matmul(g_rows, v[..., :end, :].swapaxes(-1, -2)), task, part)
            d -= t[..., rows, :]
            d *= weights
            np.matmul(d, k[..., :end, :], of_q[..., rows, :])
            _gather(of_k, d, q[..., rows, :], end, last == scores.rows)
            _gather(of_v, scores.dropped(weights, task, part), g_rows, end, last == scores.rows)
        of_q *= scale

    scores.each(work)
    return made


def _weights(scores: _Scores, q: Any, k: Any, s: Any, task: Index, part: Part) -> Any:
    """Return the weights; without the sums `s` the exponentials, of which no unhidden one is large."""
    made = scores.of(q, k, task, part)
    if s is None and (scores.shows_all or _maximum(made, None) < _FAR):
        np.exp(made, made)
        scores.clear(made, task, part)
        return made
    scores.hide(made, task, part)
    if s is not None:
        made -= s[..., part[0] : part[1], :]
    return np.exp(made, made)


def _gather(total: Any, weights: Any, rows: Any, end: int, begins: bool) -> None:
    """Add weights^T rows to the first rows of a total, or begin it with that."""
    turned = weights.swapaxes(-1, -2)
    if begins:
        np.matmul(turned, rows, total[..., :end, :])
        total[..., end:, :] = 0
    else:
        total[..., :end, :] += np.matmul(turned, rows)
