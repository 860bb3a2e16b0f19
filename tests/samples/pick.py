"""Reading and writing elements by position: take, take_along_axis, choose, indexing."""

from __future__ import annotations

from typing import Any

import numpy as np

from samples._table import ANALYTIC, CUBE, EMPTY, MASK, ROW_MASK, SCALAR, VECTOR, Arg, Array, X, add, given, method

# ---------------------------------------------------------------- reading by position

add("take", "flattened", lambda xp, x, i: xp.take(x, i), X, given([0, 5, 5, -1]), **ANALYTIC)
add("take", "axis", lambda xp, x, i: xp.take(x, i, axis=-1), X, given([[0, 2], [2, 3]]), **ANALYTIC)
add("take", "a number", lambda xp, x: xp.take(x, 1, axis=0), X, **ANALYTIC)
add("take", "wrap", lambda xp, x, i: xp.take(x, i, axis=0, mode="wrap"), X, given([4, -5]), **ANALYTIC)
add("take", "clip", lambda xp, x, i: xp.take(x, i, axis=0, mode="clip"), X, given([4, -5]), **ANALYTIC)
add("take", "none", lambda xp, x, i: xp.take(x, i), X, given(np.zeros(0, int)), **ANALYTIC)
add("bincount", "weights", lambda xp, w: xp.bincount([0, 2, 0, 1], w), VECTOR)
add("bincount", "minlength", lambda xp, i, w: xp.bincount(i, weights=w, minlength=5), given([3, 3, 0]), Arg((3,)))
add(
    "take_along_axis",
    "axis 0",
    lambda xp, x, i: xp.take_along_axis(x, i, axis=0),
    X,
    given([[0, 2, 1, 0], [0, 0, 2, 1]]),
    **ANALYTIC,
)
add(
    "take_along_axis",
    "axis -1",
    lambda xp, x, i: xp.take_along_axis(x, i, axis=-1),
    X,
    given([[0], [3], [3]]),
    **ANALYTIC,
)
add("take_along_axis", "flattened", lambda xp, x, i: xp.take_along_axis(x, i, axis=None), X, given([0, 7]), **ANALYTIC)
add("take_along_axis", "by argsort", lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1), X)
method("take", "axis", X, given([2, 0]), axis=1, facts=ANALYTIC)

_INDICES: dict[str, tuple[Arg, Any]] = {
    "an integer": (X, 1),
    "a negative integer": (X, -1),
    "a NumPy integer": (X, np.int64(2)),
    "two integers": (X, (1, -2)),
    "a slice": (X, slice(1, 3)),
    "a negative step": (X, slice(None, None, -1)),
    "a step": (X, (slice(None, None, 2), slice(3, 0, -2))),
    "an empty slice": (X, slice(2, 2)),
    "nothing": (X, ()),
    "an ellipsis": (CUBE, (..., 0)),
    "an ellipsis alone": (X, ...),
    "a new axis": (X, (None, slice(None), None, 1)),
    "0-d": (SCALAR, ()),
    "0-d and a new axis": (SCALAR, None),
    "a list": (X, [0, 2]),
    "a list with repeats": (X, [0, 0, 2]),
    "an empty list": (X, []),
    "lists": (X, ([0, 1, 0], [1, 1, 1])),
    "lists that broadcast": (X, ([[0], [2]], [1, 3])),
    "a list and a slice": (X, (slice(1, None), [3, 3])),
    "an integer and a list": (CUBE, (0, slice(None), [0, 1, 1])),
    "lists apart": (CUBE, ([0, 1, 1], slice(None), [2, 2, 0])),
    "a list and a new axis": (X, ([0, 2], None)),
    "zero-size": (EMPTY, (slice(None), 1)),
}
for _case, (_arg, _index) in _INDICES.items():
    add("Tensor.__getitem__", _case, lambda xp, x, i=_index: x[i], _arg, **ANALYTIC)
add("Tensor.__getitem__", "an array", lambda xp, x, i: x[i], X, given([[0, 2], [2, 2]]), **ANALYTIC, third=True)
add("Tensor.__getitem__", "arrays", lambda xp, x, i, j: x[i, j], X, given([0, 2, 0]), given([1, 1, 1]), **ANALYTIC)
add("Tensor.__getitem__", "a mask", lambda xp, x, m: x[m], X, MASK, **ANALYTIC)
add("Tensor.__getitem__", "a mask of rows", lambda xp, x, m: x[m, 1:], X, ROW_MASK, **ANALYTIC)
add("Tensor.__getitem__", "a computed mask", lambda xp, x: x[x > 0], X)
add("Tensor.__getitem__", "a computed position", lambda xp, x: x[xp.argmax(x, axis=0), 1], X)
add(
    "Tensor.__getitem__",
    "the same piece twice",
    lambda xp, x: x[1] * x[1] + x[:, 1].sum(),
    X,
    **ANALYTIC,
    third=True,
)


def _put(x: Array, index: Any, v: Array) -> Array:
    y = x.copy()
    y[index] = v
    return y


_SETS: dict[str, tuple[Arg, Any, Arg]] = {
    "an integer": (X, 1, VECTOR),
    "an element": (X, (1, -1), SCALAR),
    "a slice": (X, slice(0, 2), Arg((2, 4))),
    "a negative step": (X, slice(None, None, -1), X),
    "broadcast over rows": (X, slice(1, None), VECTOR),
    "a 0-d over all": (X, ..., SCALAR),
    "leading axes of length 1": (X, 2, Arg((1, 1, 4))),
    "columns": (X, (slice(None), slice(1, 3)), Arg((3, 1))),
    "a list": (X, [0, 2], Arg((2, 4))),
    "lists": (X, ([0, 1], [1, 3]), Arg((2,))),
    "a list and a slice": (X, (slice(None), [3, 0]), Arg((3, 2))),
    "a new axis": (X, (None, 1), Arg((1, 4))),
    "an empty slice": (X, slice(1, 1), VECTOR),
    "0-d": (SCALAR, (), SCALAR),
    "zero-size": (EMPTY, ..., Arg((3,))),
}
for _case, (_arg, _index, _value) in _SETS.items():
    add("Tensor.__setitem__", _case, lambda xp, x, v, i=_index: _put(x, i, v), _arg, _value, **ANALYTIC)
add("Tensor.__setitem__", "a mask", lambda xp, x, v, m: _put(x, m, v), X, Arg((7,)), MASK, **ANALYTIC)
add("Tensor.__setitem__", "a mask and a number", lambda xp, x, m: _put(x, m, 2.5), X, MASK, **ANALYTIC)
add("Tensor.__setitem__", "a mask of rows", lambda xp, x, v, m: _put(x, m, v), X, VECTOR, ROW_MASK, **ANALYTIC)
add(
    "Tensor.__setitem__",
    "an array",
    lambda xp, x, v, i: _put(x, i, v),
    X,
    VECTOR,
    given([2, 0]),
    **ANALYTIC,
    third=True,
)
add("Tensor.__setitem__", "a constant", lambda xp, x, v: _put(x, 0, v), X, Arg((4,), constant=True), **ANALYTIC)
add(
    "Tensor.__setitem__",
    "repeats: the last wins",
    lambda xp, x, v: _put(x, [0, 2, 0], v),
    X,
    Arg((3, 4)),
    **ANALYTIC,
    repeats=True,
)
add(
    "Tensor.__setitem__",
    "repeats that broadcast",
    lambda xp, x, v: _put(x, ([[0], [0]], [1, 3]), v),
    X,
    Arg((2,)),
    **ANALYTIC,
    repeats=True,
)
add("Tensor.__setitem__", "from itself", lambda xp, x: _put(x, slice(1, None), x[:-1] * x[0]), X, **ANALYTIC)
add("Tensor.__setitem__", "itself", lambda xp, x: _put(x, ..., x), X, **ANALYTIC)


def _running_product(xp: Any, x: Array) -> Array:
    y = xp.copy(x)
    for k in range(1, len(x)):
        y[k] = y[k - 1] * x[k]
    return y


add("Tensor.__setitem__", "in a loop", _running_product, VECTOR, **ANALYTIC, third=True)
