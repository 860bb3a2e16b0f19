"""Attention of NumPy arrays block by block, and its gradients: the fast path of the op in `attention`.

A block is a few matrices of scores, or some rows of one. It stays in the processor's cache from the first product to
the last, so that scores and weights are never written to main memory. Threads take blocks in turn. Only the
logarithm of each row's sum of exponentials is kept: the gradients compute the scores again, as a product takes no
longer than reading them from newly allocated memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays import native_kernels
from gradmgr._arrays.blocks import BLOCK, run
from gradmgr._arrays.libraries import empty

Index = tuple[Any, ...]
Part = tuple[int, int, int]  # of a matrix of scores: first row, last row and last column, both exclusive

# Bytes of scores in a block: together with their cotangents they take half of a core's cache.
_BLOCK_BYTES = BLOCK
# Rows of causal scores that are computed at a time, or half of a short sequence: columns to their right are skipped.
_CAUSAL_ROWS = 64
# The least number of rows of a matrix that is larger than a block.
_FEWEST_ROWS = 16

# A row need not be shifted by its maximum before the exponential if all its scores are below this and the sum of
# exponentials is above exp(-this): nothing overflows, and no digit is lost. In NumPy finding the maximum of each row
# takes longer than a matrix product.
_LARGEST_SCORE = 24.0
_LEAST_SUM = math.exp(-_LARGEST_SCORE)

_maximum: Any = np.maximum.reduce
_minimum: Any = np.minimum.reduce


class Operands(NamedTuple):
    """What attention is computed of: arrays, of which three may be None, and how."""

    query: Any
    key: Any
    value: Any
    bias: Any
    masked: Any
    drop: Any
    scale: float
    causal: bool


class _Scores:
    """The matrices of scores of one call, with broadcast leading axes, and their division into blocks."""

    def __init__(self, operands: Operands) -> None:
        query, key, value, bias, masked, drop, _, causal = operands
        lead = query.shape[:-2]
        if not lead == key.shape[:-2] == value.shape[:-2]:
            lead = np.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])
            query, key, value = (np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (query, key, value))
        rows, columns = query.shape[-2], key.shape[-2]
        self.query, self.key, self.value, self.rows = query, key, value, rows
        self.bias, self.masked, self.drop = bias, masked, drop
        if not bias is masked is drop is None:
            self.bias, self.masked, self.drop = (
                None if a is None else np.broadcast_to(a, (*lead, rows, columns)) for a in (bias, masked, drop)
            )
        self.sums_shape = (*lead, rows, 1)
        self.ones = np.empty(max(columns, value.shape[-1]), query.dtype)
        self.ones.fill(1)
        each = _BLOCK_BYTES // max(1, rows * columns * query.itemsize)
        self.tasks = _cut(lead, max(each, 1))
        high = rows if each else max(_FEWEST_ROWS, _BLOCK_BYTES // (columns * query.itemsize))
        if causal and rows >= _CAUSAL_ROWS:
            high = min(high, _CAUSAL_ROWS, rows // 2)
        self.parts = _parts(rows, columns, high, causal)
        self.is_causal, self.is_unmasked = causal, masked is None and not causal
        self.kernel: Any = native_kernels.find("attention", query, key, value)
        self.vjp_kernel: Any = native_kernels.find("attention_vjp", query, key, value)
        # 1 where a query attends to a key, relative to the first row of a part; numpy.tri takes three times as long
        is_needed = causal and self.kernel is None
        self.causal = np.greater_equal.outer(*[np.arange(high)] * 2).astype(query.dtype) if is_needed else None

    def run_tasks(self, work: Callable[[Index], None]) -> None:
        """Call work(task) for all tasks, which are indices of a block of matrices."""
        tasks = self.tasks

        def some(which: slice) -> None:
            for task in tasks[which]:
                work(task)

        if len(tasks) == 1:
            work(tasks[0])
        else:
            run(some, [slice(k, k + 1) for k in range(len(tasks))])

    def compute(self, query: Any, key: Any, task: Index, part: Part) -> Any:
        """Return the unmasked scores of scaled queries and keys of a task."""
        first, last, end = part
        made = np.matmul(query[..., first:last, :], key[..., :end, :].swapaxes(-1, -2))
        if self.bias is not None:
            made += self.bias[task][..., first:last, :end]
        return made

    def mask(self, scores: Any, task: Index, part: Part) -> None:
        """Set the masked scores to -inf."""
        first, last, end = part
        if self.masked is not None:
            np.copyto(scores, -np.inf, where=self.masked[task][..., first:last, :end])
        if self.causal is not None and first < end:
            np.copyto(scores[..., first:], -np.inf, where=self.causal[: last - first, : end - first] == 0)

    def zero(self, exponentials: Any, task: Index, part: Part) -> None:
        """Set the exponentials of masked scores to 0; all of them are finite."""
        first, last, end = part
        if self.masked is not None:
            exponentials *= ~self.masked[task][..., first:last, :end]
        if self.causal is not None and first < end:
            some = exponentials[..., first:]
            some *= self.causal[: last - first, : end - first]

    def for_kernel(self, like: Any, task: Index, part: Part) -> tuple[Any, tuple[int, ...], tuple[float, ...]]:
        """Return what a kernel is given of a part's scores: a mask, or any array; lengths; and numbers."""
        first, last, end = part
        mask = like
        if self.masked is not None:
            mask = native_kernels.contiguous(self.masked[task][..., first:last, :end])
        lengths = math.prod(like.shape[:-1]), end, last - first
        return mask, lengths, (float(self.is_causal), float(first), float(self.masked is not None))

    def apply_dropout(self, weights: Any, task: Index, part: Part) -> Any:
        """Return weights times the factors of dropout."""
        first, last, end = part
        return weights if self.drop is None else weights * self.drop[task][..., first:last, :end]

    def sum_rows(self, rows: Any) -> Any:
        """Return the sum of each row, as a product with ones, which takes a seventh of the time of numpy.add.reduce."""
        width = rows.shape[-1]
        return rows.reshape(-1, width).dot(self.ones[:width]).reshape(*rows.shape[:-1], 1)


def is_one_block(query: Any, key: Any) -> bool:
    """Tell whether all scores of queries and keys whose leading axes are the same are a block."""
    return bool(math.prod(query.shape[:-1]) * key.shape[-2] * query.itemsize <= _BLOCK_BYTES)


def _cut(lead: tuple[int, ...], each: int) -> list[Index]:
    """Return indices that cut the leading axes into blocks of at most this many matrices."""
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
    """Return parts of at most this many rows that cover a matrix, or its lower triangle."""
    ends = [(first, min(first + high, rows)) for first in range(0, rows, high)]
    return [(first, last, min(last, columns) if causal else columns) for first, last in ends]


# ---------------------------------------------------------------- values


def attend_in_blocks(operands: Operands) -> tuple[Any, Any]:
    """Return the attended values, and the logarithm of each row's sum of exponentials: inf where all is masked."""
    scores, scale = _Scores(operands), operands.scale
    query, key, value = scores.query, scores.key, scores.value
    output = np.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))
    sums = empty(scores.sums_shape, query)

    is_native = scores.kernel is not None and scale > 0 and operands.bias is None

    def work(task: Index) -> None:
        q, k, v, o, s = query[task], key[task], value[task], output[task], sums[task]
        if not is_native:
            q = q * scale
        for part in scores.parts:
            first, last, end = part
            here = o[..., first:last, :]
            if scores.kernel is not None:
                factor = scale if is_native else 1.0
                weights, total, top = _exponentials_by_kernel(scores, q, k, factor, task, part)
            else:
                weights, total, top = _exponentials(scores, q, k, task, part)
            np.matmul(scores.apply_dropout(weights, task, part), v[..., :end, :], here)
            if scores.kernel is not None:
                here /= total
                np.add(np.log(total, out=total), top, out=s[..., first:last, :])
            elif top is None:
                here /= total
                np.log(total, s[..., first:last, :])
            else:
                nothing = total == 0
                here /= total + nothing
                s[..., first:last, :] = np.where(nothing, np.inf, np.log(total + nothing) + top)

    scores.run_tasks(work)
    return output, sums


def _exponentials_by_kernel(
    scores: _Scores, q: Any, k: Any, factor: float, task: Index, part: Part
) -> tuple[Any, Any, Any]:
    """Return the exponentials of scores times a factor, their sums, and the maxima subtracted before the exponential.

    Of a row where all is masked the maximum is inf, and the sum 1.
    """
    made = native_kernels.contiguous(scores.compute(q, k, task, part))
    total, top = (native_kernels.empty((*made.shape[:-1], 1), made) for _ in range(2))
    mask, lengths, numbers = scores.for_kernel(made, task, part)
    scores.kernel(mask, made, total, top, *lengths, factor, *numbers)
    return made, total, top


def _exponentials(scores: _Scores, q: Any, k: Any, task: Index, part: Part) -> tuple[Any, Any, Any]:
    """Return the exponentials, their sums, and the maxima subtracted before the exponential, or None."""
    made = scores.compute(q, k, task, part)
    if _maximum(made, None) < _LARGEST_SCORE:
        np.exp(made, made)
        scores.zero(made, task, part)
        total = scores.sum_rows(made)
        if _minimum(total, None) > _LEAST_SUM:
            return made, total, None
        made = scores.compute(q, k, task, part)
    scores.mask(made, task, part)
    top = _maximum(made, -1, keepdims=True)
    top[top == -np.inf] = 0
    made -= top
    np.exp(made, made)
    return made, scores.sum_rows(made), top


# ---------------------------------------------------------------- gradients


def gradients(of_output: Any, of_sums: Any, operands: Operands, output: Any, sums: Any) -> tuple[Any, Any, Any]:
    """Return the cotangents of query, key and value, with all leading axes.

    The cotangent of a score is its weight times d - t, where d is the cotangent of the weight, and t the sum of d times
    weight over the row, which equals the sum of cotangent times output over the features.
    """
    scores, scale = _Scores(operands), operands.scale
    query, key, value = scores.query, scores.key, scores.value
    made = np.empty_like(query), np.empty_like(key), np.empty_like(value)
    near = scores.vjp_kernel is None and bool(_maximum(np.abs(sums), None) < _LARGEST_SCORE)

    def work(task: Index) -> None:
        q, k, v, g = query[task] * scale, key[task], value[task], of_output[task]
        of_q, of_k, of_v = (a[task] for a in made)
        s, t = sums[task], scores.sum_rows(g * output[task])
        if of_sums is not None:
            t -= of_sums[task]
        if near:  # divide g by the sums of exponentials, instead of each exponential
            share = np.exp(-s)
            g, t, s = g * share, t * share, None
        for part in reversed(scores.parts):  # begins with the part that has the most columns
            first, last, end = part
            rows = slice(first, last)
            g_rows = g[..., rows, :]
            d = scores.apply_dropout(np.matmul(g_rows, v[..., :end, :].swapaxes(-1, -2)), task, part)
            if scores.vjp_kernel is not None:
                weights, d = map(native_kernels.contiguous, (scores.compute(q, k, task, part), d))
                mask, lengths, numbers = scores.for_kernel(weights, task, part)
                given = mask, *[native_kernels.contiguous(a[..., rows, :]) for a in (s, t)], weights
                scores.vjp_kernel(*given, d, *lengths, *numbers)
            else:
                weights = _weights(scores, q, k, s, task, part)
                d -= t[..., rows, :]
                d *= weights
            np.matmul(d, k[..., :end, :], of_q[..., rows, :])
            _accumulate(of_k, d, q[..., rows, :], end, last == scores.rows)
            _accumulate(of_v, scores.apply_dropout(weights, task, part), g_rows, end, last == scores.rows)
        of_q *= scale

    scores.run_tasks(work)
    return made


def _weights(scores: _Scores, q: Any, k: Any, s: Any, task: Index, part: Part) -> Any:
    """Return the weights; without the sums `s` the exponentials, of which no unhidden one is large."""
    made = scores.compute(q, k, task, part)
    if s is None and (scores.is_unmasked or _maximum(made, None) < _LARGEST_SCORE):
        np.exp(made, made)
        scores.zero(made, task, part)
        return made
    scores.mask(made, task, part)
    if s is not None:
        made -= s[..., part[0] : part[1], :]
    return np.exp(made, made)


def _accumulate(total: Any, weights: Any, rows: Any, end: int, begins: bool) -> None:
    """Add weights^T rows to the first rows of a total, or, at the beginning, write them there and 0 elsewhere."""
    transposed = weights.swapaxes(-1, -2)
    if begins:
        np.matmul(transposed, rows, total[..., :end, :])
        if end < total.shape[-2]:
            total[..., end:, :] = 0
    else:
        some = total[..., :end, :]
        some += np.matmul(transposed, rows)
