"""Sorting, partitions, sets, and choosing by position or condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.ops.convert import library_of
from gradmgr.ops.order import unpermute
from samples._table import (
    ANALYTIC,
    CONSTANTS,
    CUBE,
    EMPTY,
    MASK,
    ROW_MASK,
    SCALAR,
    VECTOR,
    Arg,
    Array,
    X,
    add,
    at,
    function,
    given,
)

TIES = at([[2.0, 1.0, 2.0, -1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 3.0, 1.0]])
KINKED: dict[str, Any] = {"smooth": False}

# ---------------------------------------------------------------- sorting

function("sort", "last axis", X, facts={"field": "complex", "third": True})
function("sort", "axis 0", CUBE, axis=0)
function("sort", "flattened", X, axis=None, facts={"field": "complex"})
function("sort", "kind=", X, kind="heapsort", axis=-2)
function("sort", "stable=", X, stable=True)
function("sort", "ties", TIES, facts=KINKED)
function("sort", "zero-size", EMPTY)
function("sort", "0-d flattened", SCALAR, axis=None)
function("sort_complex", "of complex", X, facts={"field": "complex"})
function("sort_complex", "ties", TIES, facts=KINKED)


def _settled(xp: Any, p: Array, kth: int, axis: int = -1) -> Array:
    """A partition with what NumPy leaves open, the order on both sides, settled."""
    left, middle, right = xp.split(p, [kth, kth + 1], axis=axis)
    return xp.concatenate([xp.sort(left, axis=axis), middle, xp.sort(right, axis=axis)], axis=axis)


LONG = Arg((70, 2))
function("sort", "long", LONG, axis=0)
function("sort", "long, ties", at(np.arange(80.0) // 2 % 7), facts=KINKED)
function("sort", "long, NaNs", at(np.where(np.arange(80) % 9 == 0, np.nan, np.arange(80.0))), facts=KINKED)
_ORDER = np.argsort([[2, 0, 1, 3], [3, 2, 1, 0], [0, 1, 3, 2]])


def _in_original_order(x: Array) -> Array:
    z = np.zeros_like(x)
    np.put_along_axis(z, _ORDER, x, 1)
    return z


add(
    "engine.unpermute",
    "rows",
    lambda xp, x: unpermute(x, library_of(x).asarray(_ORDER), 1),
    X,
    reference=_in_original_order,
    dispatches=False,
    **ANALYTIC,
)
FIVE = Arg((3, 9))
add(
    "partition",
    "last axis",
    lambda xp, x: _settled(xp, xp.partition(x, 4), 4),
    FIVE,
    field="complex",
    third=True,
)
add("partition", "axis 0", lambda xp, x: _settled(xp, xp.partition(x, 1, axis=0), 1, 0), CUBE)
add("partition", "flattened", lambda xp, x: _settled(xp, xp.partition(x, -2, axis=None), 10), X)
add("partition", "several", lambda xp, x: xp.partition(x, [1, 6])[:, [1, 6]], FIVE)
add("partition", "kind=", lambda xp, x: xp.partition(x, 0, kind="introselect")[:, 0], X)
add("partition", "ties", lambda xp, x: _settled(xp, xp.partition(x, 2), 2), TIES, **KINKED)


def _distinct(x: Array) -> Array:
    """Integers without ties, of which the order leaves nothing open."""
    return x.astype(int) * 100 + library_of(x).arange(12).reshape(3, 4)


CONSTANTS.update(
    {
        "argpartition": [
            lambda xp, x, y: xp.argpartition(_distinct(x), 5, axis=None)[5],
            lambda xp, x, y: xp.argpartition(_distinct(x), [0, 2], axis=0)[[0, 2]],
        ],
        "unique": [
            lambda xp, x, y: xp.unique(x, return_index=True, return_inverse=True, return_counts=True)[1:],
            lambda xp, x, y: xp.unique(x, return_inverse=True, return_counts=True, axis=1)[1:],
            lambda xp, x, y: xp.unique(x, return_counts=True)[1],
        ],
        "unique_counts": [lambda xp, x, y: xp.unique_counts(x).counts],
        "unique_inverse": [lambda xp, x, y: xp.unique_inverse(x).inverse_indices],
        "unique_all": [lambda xp, x, y: xp.unique_all(x)[1:]],
        "intersect1d": [lambda xp, x, y: xp.intersect1d(x, y, return_indices=True)[1:]],
        "lexsort": [
            lambda xp, x, y: xp.lexsort((x[0], y[0])),
            lambda xp, x, y: xp.lexsort(x),
            lambda xp, x, y: xp.lexsort((x, y), axis=0),
        ],
        "isin": [
            lambda xp, x, y: xp.isin(x, y),
            lambda xp, x, y: xp.isin(x, [0.0, 1.0], invert=True),
            lambda xp, x, y: xp.isin(x.astype(int), y.astype(int), kind="table"),
        ],
    }
)

# ---------------------------------------------------------------- unique values and sets

function("unique", "distinct", X, facts={"field": "complex"})
function("unique", "ties", TIES, facts=KINKED)
function("unique", "rows", at([[2.0, 1.0], [0.5, 1.0], [2.0, 1.0], [0.5, 0.0]]), axis=0, facts=KINKED)
function("unique", "columns", X, axis=-1)
add("unique", "sorted=", lambda xp, x: xp.sort(xp.unique(x, sorted=False) if _HAS_SORTED else xp.unique(x)), X)
add("unique", "NaNs apart", lambda xp, x: xp.unique(x, equal_nan=False), at([np.nan, 1.0, np.nan]), **KINKED)
add("unique", "NaNs as one", lambda xp, x: xp.unique(x), at([np.nan, 1.0, np.nan]), **KINKED)
add("unique", "beside integers", lambda xp, x: xp.unique(x, True, True, True)[0], TIES, **KINKED)
add("unique_values", "distinct", lambda xp, x: xp.sort(xp.unique_values(x)), X)
add("unique_counts", "ties", lambda xp, x: xp.unique_counts(x).values, TIES, **KINKED)
add("unique_inverse", "ties", lambda xp, x: xp.unique_inverse(x).values, TIES, **KINKED)
add("unique_all", "ties", lambda xp, x: xp.unique_all(x).values, TIES, **KINKED)

_HAS_SORTED = np.lib.NumpyVersion(np.__version__) >= "2.3.0"
THREE = given([2.0, 0.0, -1.0])
function("intersect1d", "ties", TIES, THREE, facts=KINKED)
add(
    "intersect1d",
    "return_indices=",
    lambda xp, x, y: xp.intersect1d(x, y, assume_unique=True, return_indices=True)[0],
    at([3.0, 0.0, 2.0]),
    THREE,
    **KINKED,
)
function("union1d", "distinct", X, VECTOR)
function("union1d", "ties", TIES, THREE, facts=KINKED)
function("setdiff1d", "ties", TIES, THREE, facts=KINKED)
function("setdiff1d", "assume_unique=", X, THREE, assume_unique=True)
function("setxor1d", "distinct", X, VECTOR)
function("setxor1d", "ties", TIES, THREE, facts=KINKED)
function("setxor1d", "assume_unique=", at([3.0, 0.0, 2.0]), THREE, assume_unique=True, facts=KINKED)

# ---------------------------------------------------------------- choosing

WHICH = given([[0, 1, 2, 0], [2, 2, 1, 0], [1, 1, 0, 0]])
add("choose", "of three", lambda xp, x, y, i: xp.choose(i, [x, y, 1.5]), X, X, WHICH, **ANALYTIC, third=True)
add("choose", "broadcast", lambda xp, x, y, i: xp.choose(i, (x, y)), VECTOR, SCALAR, given([[0], [1]]), **ANALYTIC)
add("choose", "of the rows", lambda xp, x, i: xp.choose(i, x), X, given([2, 0, 1, 2]), **ANALYTIC)
add("choose", "wrap", lambda xp, x, y, i: xp.choose(i, [x, y], mode="wrap"), VECTOR, VECTOR, given([-1, 2, 3, 0]))
add("choose", "clip", lambda xp, x, y, i: xp.choose(i, [x, y], mode="clip"), VECTOR, VECTOR, given([-1, 2, 3, 0]))
add("choose", "out=", lambda xp, x, y, o, i: xp.choose(i, [x, y, y], out=xp.copy(o)), X, X, X, WHICH, **ANALYTIC)
add(
    "select",
    "two conditions",
    lambda xp, x, y, m: xp.select([m, x[:1] > -9], [x, y], 3),
    X,
    VECTOR,
    MASK,
    third=True,
)
add("select", "a default", lambda xp, x, d, m: xp.select([m], [x], d), X, SCALAR, MASK, **ANALYTIC)
add("select", "the first wins", lambda xp, x, y: xp.select([x > 0, x > -1], [x * x, y], 0.0), X, X)
add(
    "select",
    "a condition for rows",
    lambda xp, x, y, m: xp.select([m], [x], default=y),
    X,
    X,
    given([[True], [False], [True]]),
)
add("compress", "rows", lambda xp, x, m: xp.compress(m, x, axis=0), X, ROW_MASK, **ANALYTIC)
add("compress", "flattened, short", lambda xp, x, m: xp.compress(m, x), X, ROW_MASK, **ANALYTIC)
add(
    "compress", "axis -1", lambda xp, x, m: xp.compress(m, x, axis=-1), X, given([False, True, False, True]), **ANALYTIC
)
add("compress", "out=", lambda xp, x, o, m: xp.compress(m, x, 0, xp.copy(o)), X, Arg((2, 4)), ROW_MASK, **ANALYTIC)
add("extract", "a mask", lambda xp, x, m: xp.extract(m, x), X, MASK, **ANALYTIC)
add("extract", "a computed mask", lambda xp, x: xp.extract(x > 0, x * x), X)
