"""Editing: writes in place, insert, delete, pad, block, grids, layouts, r_ and c_."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr.ops.convert import library_of
from gradmgr.ops.positions import gather_back
from samples._table import (
    ANALYTIC,
    CONSTANTS,
    CREATION,
    CUBE,
    EMPTY,
    MASK,
    MATRIX,
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

PAIR = Arg((2,))
HAS_AXES_OF_TRIM = np.lib.NumpyVersion(np.__version__) >= "2.2.0"

# ---------------------------------------------------------------- writes in place, to a copy


# The result has the dtype of the first argument, into which the second is written.
WRITTEN: dict[str, Any] = {**ANALYTIC, "writes": True}


def write(name: str, case: str, *args: Arg, keywords: dict[str, Any] | None = None, **facts: Any) -> None:
    """Enter the call xp.name(a copy of args[0], *args[1:], **keywords), which writes to that copy."""

    def call(xp: Any, x: Array, *more: Any) -> Array:
        y = xp.copy(x)
        assert getattr(xp, name)(y, *more, **(keywords or {})) is None
        return y

    add(name, case, call, *args, **{**WRITTEN, **facts})


write("put", "positions", X, given([0, -1, 5]), Arg((3,)), third=True)
write("put", "in cycles", X, given([[0, 7], [2, 3], [4, 9]]), PAIR)
write("put", "one value", VECTOR, given(2), SCALAR)
write("put", "more values than places", X, given([3, 1]), VECTOR)
write("put", "wrap", X, given([13, -14]), PAIR, keywords={"mode": "wrap"})
write("put", "clip", X, given([99, -99]), PAIR, keywords={"mode": "clip"})
write("put", "the last wins", X, given([0, 2, 0]), Arg((3,)), repeats=True)
write("put", "0-d", SCALAR, given([0]), Arg((1,)))
write("put_along_axis", "axis 0", X, given([[2, 0, 1, 1]]), Arg((1, 4)), keywords={"axis": 0})
write("put_along_axis", "axis -1", CUBE, given(np.arange(6).reshape(2, 3, 1) % 4), SCALAR, keywords={"axis": -1})
write("put_along_axis", "flattened", X, given([3, -1]), PAIR, keywords={"axis": None})
write(
    "put_along_axis",
    "the last wins",
    X,
    given([[1, 1], [0, 2], [3, 3]]),
    Arg((3, 2)),
    keywords={"axis": 1},
    repeats=True,
)
write("place", "values", X, MASK, Arg((7,)))
write("place", "in cycles", X, MASK, PAIR)
write("place", "one value", X, MASK, SCALAR)
write("place", "nowhere", X, given(np.zeros((3, 4), bool)), PAIR)
write("putmask", "values", X, MASK, X)
write("putmask", "in cycles", X, MASK, Arg((5,)))
write("putmask", "one value", X, MASK, SCALAR)
write("copyto", "broadcast", X, VECTOR)
write("copyto", "where=", X, Arg((3, 1)), keywords={"where": MASK.values})
write("copyto", "a number where a row", X, SCALAR, keywords={"where": [True, False, True, False]})
write("copyto", "leading axes of length 1", X, Arg((1, 3, 4)), keywords={"where": MASK.values})
write("copyto", "casting=", X, Arg((3, 4)), keywords={"casting": "unsafe"})
write("fill_diagonal", "a number", X, SCALAR)
write("fill_diagonal", "in cycles", MATRIX, PAIR)
write("fill_diagonal", "wrap", Arg((7, 2)), PAIR, keywords={"wrap": True})
write("fill_diagonal", "tall", Arg((5, 2)), PAIR)
write("fill_diagonal", "three axes", Arg((2, 2, 2)), PAIR)

# ---------------------------------------------------------------- insert, delete, append, resize

_INSERTIONS: dict[str, tuple[Arg, Any, Arg, Any]] = {
    "flattened": (X, 5, SCALAR, None),
    "several at one place": (VECTOR, 1, Arg((3,)), None),
    "a row": (X, -1, VECTOR, 0),
    "a column of one position": (X, [1], Arg((3, 2)), 1),
    "a line at a number": (X, 2, Arg((3,)), 1),
    "positions": (X, [3, 0, 3], Arg((3, 3)), 1),
    "positions, one value": (CUBE, [0, 2], SCALAR, 1),
    "a slice": (X, slice(None, None, 2), Arg((2, 4)), 0),
    "a mask": (X, np.array([True, False, True]), VECTOR, 0),
    "nothing": (X, [], SCALAR, 0),
}
for _case, (_arr, _obj, _values, _axis) in _INSERTIONS.items():
    if _case == "a mask" and not HAS_AXES_OF_TRIM:
        continue  # NumPy 2.1 still took a mask for integers, and warned
    add("insert", _case, lambda xp, x, v, o=_obj, k=_axis: xp.insert(x, o, v, k), _arr, _values, **WRITTEN)
add("insert", "a number", lambda xp, x: xp.insert(x, [1, 2], 5.0, axis=1), X, **ANALYTIC, third=True)
_DELETIONS: dict[str, tuple[Arg, Any, Any]] = {
    "flattened": (X, 5, None),
    "a row": (X, -1, 0),
    "positions": (CUBE, [0, 2, -1], 2),
    "a slice": (X, slice(None, None, 2), 1),
    "a mask": (X, [True, False, False, True], 1),
    "nothing": (X, [], 0),
}
for _case, (_arr, _obj, _axis) in _DELETIONS.items():
    add("delete", _case, lambda xp, x, o=_obj, k=_axis: xp.delete(x, o, k), _arr, **ANALYTIC)
function("append", "flattened", X, SCALAR, facts=ANALYTIC)
function("append", "rows", X, Arg((1, 4)), axis=0, facts=ANALYTIC)
function("resize", "larger", Arg((5,)), new_shape=(3, 4), facts=ANALYTIC)
function("resize", "smaller", X, new_shape=(2, 2), facts=ANALYTIC)
function("resize", "a number", X, new_shape=30, facts=ANALYTIC)
_HOLES = given([0, 0, 1, 0, 2, 0])
add("trim_zeros", "both ends", lambda xp, x, k: xp.trim_zeros(x * k), Arg((6,)), _HOLES, **ANALYTIC)
add("trim_zeros", "the front", lambda xp, x, k: xp.trim_zeros(x * k, "F"), Arg((6,)), _HOLES, **ANALYTIC)
add("trim_zeros", "the back", lambda xp, x, k: xp.trim_zeros(x * k, trim="b"), Arg((6,)), _HOLES, **ANALYTIC)
add("trim_zeros", "all", lambda xp, x: xp.trim_zeros(x * 0, trim="f"), VECTOR, **ANALYTIC)
if HAS_AXES_OF_TRIM:
    _HOLE = given([[0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]])
    add("trim_zeros", "two axes", lambda xp, x, k: xp.trim_zeros(x * k), X, _HOLE, **ANALYTIC)
    add("trim_zeros", "one axis of two", lambda xp, x, k: xp.trim_zeros(x * k, axis=-1), X, _HOLE, **ANALYTIC)

# ---------------------------------------------------------------- pad


def _doubling(vector: Array, widths: Any, axis: int, options: dict[str, Any]) -> None:
    before, after = widths
    if before:
        vector[:before] = vector[before] * options["factor"]
    if after:
        vector[-after:] = vector[-after - 1] ** 2


WIDE = ((2, 0), (5, 7))
_PADDINGS: list[tuple[str, Arg, Any, str | Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    ("zeros", X, 1, "constant", {}, {**ANALYTIC, "third": True}),
    ("zero widths", X, 0, "constant", {}, ANALYTIC),
    ("numbers", X, ((1, 2), (0, 3)), "constant", {"constant_values": ((1, 2), (3, 4.5))}, ANALYTIC),
    ("zero-size", EMPTY, (1, 2), "constant", {"constant_values": 2}, ANALYTIC),
    ("of 0-d", SCALAR, 3, "constant", {}, ANALYTIC),
    ("edge", X, ((1, 2), (0, 3)), "edge", {}, ANALYTIC),
    ("wrap", X, WIDE, "wrap", {}, ANALYTIC),
    ("reflect", X, WIDE, "reflect", {}, ANALYTIC),
    ("symmetric", X, WIDE, "symmetric", {"reflect_type": "even"}, ANALYTIC),
    ("reflect, odd", Arg((4, 3)), ((2, 2), (5, 7)), "reflect", {"reflect_type": "odd"}, ANALYTIC),
    ("symmetric, odd", Arg((2, 3)), ((3, 1), (5, 7)), "symmetric", {"reflect_type": "odd"}, ANALYTIC),
    ("reflect of one", Arg((1, 3)), 1, "reflect", {"reflect_type": "odd"}, ANALYTIC),
    ("linear_ramp", X, ((1, 2), (0, 3)), "linear_ramp", {}, ANALYTIC),
    ("linear_ramp to numbers", X, 2, "linear_ramp", {"end_values": (1, -2.5)}, ANALYTIC),
    ("mean", X, (1, 2), "mean", {}, ANALYTIC),
    ("mean of some", X, (1, 2), "mean", {"stat_length": ((2, 1), (9, 3))}, ANALYTIC),
    ("median", X, (1, 2), "median", {}, {}),
    ("median of some", Arg((5,)), 2, "median", {"stat_length": (3, 2)}, {}),
    ("maximum", X, (1, 2), "maximum", {"stat_length": 2}, {}),
    ("minimum", X, (1, 2), "minimum", {}, {}),
    ("maximum at ties", at([1.0, 2.0, 2.0, 0.0]), 1, "maximum", {}, {"smooth": False}),
    ("median with NaN", at([1.0, np.nan, 2.0]), 1, "median", {}, {"smooth": False}),
    ("a function", X, ((1, 2), (0, 2)), _doubling, {"factor": 2.0}, ANALYTIC),
]
for _case, _arr, _width, _mode, _options, _facts in _PADDINGS:
    function("pad", _case, _arr, pad_width=_width, mode=_mode, facts=_facts, **_options)
add("pad", "empty", lambda xp, x: xp.pad(x, 1, "empty")[1:-1, 1:-1], X, **ANALYTIC)
add(
    "pad",
    "a dict of widths",
    lambda xp, x: xp.pad(x, {-1: (1, 2)}, "edge"),
    X,
    reference=lambda x: np.pad(x, ((0, 0), (1, 2)), "edge"),  # NumPy up to 2.3 takes no dict
    **ANALYTIC,
)


def _pad_by_tensors(mode: str, keyword: str) -> Callable[..., Any]:
    return lambda xp, x, v: xp.pad(x, ((1, 2), (2, 0)), mode, **{keyword: v})


add("pad", "a Tensor as constant", _pad_by_tensors("constant", "constant_values"), X, SCALAR, **WRITTEN)
add("pad", "Tensors as constants", _pad_by_tensors("constant", "constant_values"), X, Arg((2, 2)), **WRITTEN)
add("pad", "Tensors as ends", _pad_by_tensors("linear_ramp", "end_values"), X, PAIR, **WRITTEN)

# ---------------------------------------------------------------- block, grids, products

add("block", "rows and columns", lambda xp, x, y: xp.block([[x, y], [y, x]]), X, X, **ANALYTIC)
add("block", "numbers and vectors", lambda xp, x, s: xp.block([s, x, 2.0]), VECTOR, SCALAR, **ANALYTIC)
add("block", "of mixed axes", lambda xp, x, v: xp.block([[x], [v]]), X, VECTOR, **ANALYTIC)
add("block", "one", lambda xp, x: xp.block(x), X, **ANALYTIC)
add("meshgrid", "several", lambda xp, x, y: xp.meshgrid(x, y), VECTOR, PAIR, **ANALYTIC)
add(
    "meshgrid",
    "several, ij",
    lambda xp, x, y: xp.meshgrid(x, [1.0, 2.0], y, indexing="ij")[::2],
    VECTOR,
    SCALAR,
    **ANALYTIC,
)
add("meshgrid", "several, sparse", lambda xp, x, y: xp.meshgrid(x, y, sparse=True), VECTOR, PAIR, **ANALYTIC)
add("meshgrid", "several, copy=False", lambda xp, x, y: xp.meshgrid(x, y, y, copy=False), VECTOR, PAIR, **ANALYTIC)
add("ix_", "several floats", lambda xp, x, y: xp.ix_(x, y), VECTOR, PAIR, **ANALYTIC)
function("diagflat", "a matrix", Arg((2, 2)), k=-1, facts=ANALYTIC)
function("kron", "matrices", Arg((2, 3)), Arg((3, 2)), facts={**ANALYTIC, "third": True})
function("kron", "a vector and a cube", PAIR, Arg((2, 1, 2)), facts=ANALYTIC)
function("kron", "0-d", SCALAR, X, facts=ANALYTIC)
function("kron", "zero-size", EMPTY, PAIR, facts=ANALYTIC)
SPACE = Arg((4, 3))
function("cross", "vectors", SPACE, SPACE, facts={**ANALYTIC, "third": True})
function("cross", "with a constant", SPACE, Arg((4, 3), constant=True), facts=ANALYTIC)
function("cross", "of a constant", Arg((4, 3), constant=True), SPACE, facts=ANALYTIC)
function("cross", "broadcast", Arg((3,)), Arg((2, 4, 3)), facts=ANALYTIC)
function("cross", "axes", Arg((3, 4)), SPACE, axisa=0, axisc=0, facts=ANALYTIC)
function("cross", "axis=", Arg((3, 2)), Arg((3, 2)), axis=0, facts=ANALYTIC)
function("vander", "square", Arg((3,)), facts=ANALYTIC)
function("vander", "increasing", VECTOR, N=3, increasing=True, facts=ANALYTIC)
add("vander", "at 0", lambda xp, x: xp.vander(x, 4), at([0.0, -1.0, 2.0]), **ANALYTIC)


def _row_stack(xp: Any, x: Array, y: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return xp.row_stack([x, y]) if hasattr(np, "row_stack") or xp is not np else xp.vstack([x, y])


add("row_stack", "rows", _row_stack, VECTOR, X, **ANALYTIC)

# ---------------------------------------------------------------- layouts, which give Tensors; r_ and c_


def layout(name: str, case: str, arg: Arg, *more: Any, field: Any = "analytic", **keywords: Any) -> None:
    """Enter the call xp.name(transposed, ...), which gives a Tensor of anything."""
    add(
        name,
        case,
        lambda xp, x: getattr(xp, name)(x.T, *more, **keywords) * 2,
        arg,
        reference=lambda x: getattr(np, name)(x.T, *more, **keywords) * 2,
        field=field,
        dispatches=False,
    )


layout("ascontiguousarray", "of a transpose", X)
layout("ascontiguousarray", "0-d", SCALAR)
layout("asfortranarray", "of a transpose", CUBE)
layout("asanyarray", "order=", X, order="C")
layout("asanyarray", "dtype=", X, np.complex128, field="complex")
layout("asarray_chkfinite", "order=", X, None, "F")
layout("require", "C", X, None, ["C", "W"])
layout("require", "its own", X, np.complex128, "FOA", field="complex")

JOINED: dict[str, Any] = {**ANALYTIC, "dispatches": False}
for _name, _case, _call, _args in [
    ("r_", "vectors and numbers", lambda xp, x, s: xp.r_[x, 1, s, x], (VECTOR, SCALAR)),
    ("r_", "a range", lambda xp, x: xp.r_[x, 0:3, -1:1:3j], (VECTOR,)),
    ("r_", "an axis", lambda xp, x, y: xp.r_["1", x, y], (X, X)),
    ("r_", "axis and axes", lambda xp, x, y: xp.r_["0,2", x, y], (VECTOR, VECTOR)),
    ("r_", "axes behind", lambda xp, x, y: xp.r_["0,3,0", x, y], (VECTOR, Arg((2, 1)))),
    ("r_", "matrices", lambda xp, x, y: xp.r_[x, y], (X, X)),
    ("c_", "vectors", lambda xp, x, y: xp.c_[x, y, x], (VECTOR, VECTOR)),
    ("c_", "a vector and a matrix", lambda xp, x, y: xp.c_[x, y], (X, Arg((3,)))),
]:
    add(_name, _case, _call, *_args, **JOINED)

# ---------------------------------------------------------------- ops that only derivatives call

_READ = np.array([0, 2, 0, 0, 2])


def _added_up(x: Array) -> Array:
    z = np.zeros((3, 3), x.dtype)
    np.add.at(z, (slice(None), _READ), x)
    return z


add(
    "engine.gather_back",
    "repeats",
    lambda xp, x: gather_back(x, library_of(x).asarray(_READ), 3, 1),
    Arg((3, 5)),
    reference=_added_up,
    dispatches=False,
    **ANALYTIC,
)
add(
    "engine.gather_back",
    "nothing",
    lambda xp, x: gather_back(x, library_of(x).asarray(_READ[:0]), 2, 0),
    EMPTY,
    reference=lambda x: np.zeros((2, 3), x.dtype),
    dispatches=False,
    **ANALYTIC,
)

CONSTANTS.update(
    {
        "ix_": [lambda xp, x, y: xp.ix_(x[0] > 0, [0, 1], []), lambda xp, x, y: xp.ix_([2, 0], x[:, 0] < 9)],
        "broadcast_shapes": [lambda xp, x, y: xp.broadcast_shapes(x.shape, (1,), 4)],
        "pad": [lambda xp, x, y: xp.pad(x.astype(int), 2, "mean"), lambda xp, x, y: xp.pad(x > 0, 1)],
    }
)
CREATION.update({"tri": [lambda xp: xp.tri(3), lambda xp: xp.tri(2, 4, k=1, dtype="float32")]})
