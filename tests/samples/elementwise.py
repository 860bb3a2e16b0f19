"""Elementwise functions, clip and where."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.ops import arithmetic
from samples._table import EMPTY, MASK, POSITIVE, SCALAR, VECTOR, Arg, Field, X, add, at, function, given

# ---------------------------------------------------------------- elementwise, one input

_UNARY: dict[str, tuple[float, float, Field]] = {
    "absolute": (-2, 2, "complex"),
    "angle": (-2, 2, "complex"),
    "arccos": (-0.8, 0.8, "analytic"),
    "arccosh": (1.2, 3, "analytic"),
    "arcsin": (-0.8, 0.8, "analytic"),
    "arcsinh": (-2, 2, "analytic"),
    "arctan": (-2, 2, "analytic"),
    "arctanh": (-0.8, 0.8, "analytic"),
    "cbrt": (0.3, 3, "real"),
    "ceil": (-2, 2, "real"),
    "conjugate": (-2, 2, "complex"),
    "cos": (-2, 2, "analytic"),
    "cosh": (-2, 2, "analytic"),
    "deg2rad": (-200, 200, "real"),
    "exp": (-2, 2, "analytic"),
    "exp2": (-2, 2, "analytic"),
    "expm1": (-2, 2, "analytic"),
    "fabs": (-2, 2, "real"),
    "floor": (-2, 2, "real"),
    "imag": (-2, 2, "complex"),
    "log": (0.3, 3, "analytic"),
    "log10": (0.3, 3, "analytic"),
    "log1p": (-0.5, 3, "analytic"),
    "log2": (0.3, 3, "analytic"),
    "negative": (-2, 2, "analytic"),
    "positive": (-2, 2, "analytic"),
    "rad2deg": (-2, 2, "real"),
    "real": (-2, 2, "complex"),
    "reciprocal": (0.4, 2, "analytic"),
    "rint": (-2, 2, "complex"),
    "sign": (-2, 2, "complex"),
    "sin": (-2, 2, "analytic"),
    "sinh": (-2, 2, "analytic"),
    "sqrt": (0.3, 3, "analytic"),
    "square": (-2, 2, "analytic"),
    "tan": (-1.2, 1.2, "analytic"),
    "tanh": (-2, 2, "analytic"),
    "trunc": (-2, 2, "real"),
}
for _name, (_low, _high, _field) in _UNARY.items():
    _facts = {"field": _field}
    function(_name, "matrix", Arg((3, 4), _low, _high), facts=_facts | {"third": _name in ("tanh", "arcsin", "sqrt")})
    function(_name, "0-d", Arg((), _low, _high), facts=_facts)
    function(_name, "zero-size", Arg((0, 3), _low, _high), facts=_facts)

function("cbrt", "negative", Arg((3,), -3, -0.3))
function("tanh", "far out", at([20.0, -30.0, 0.3]), facts={"field": "analytic"})
function("reciprocal", "negative", Arg((3,), -3, -0.3), facts={"field": "analytic"})
function("absolute", "at 0", at([0.0, -1.0, 2.0]), facts={"smooth": False, "field": "complex"})
function("sign", "at 0", at([0.0, -1.0, 2.0]), facts={"smooth": False, "field": "complex"})
function("angle", "degrees", X, deg=True, facts={"field": "complex"})
function("conj", "alias", X, facts={"field": "complex"})
add("round", "decimals", lambda xp, x: xp.round(x, 1), X, field="complex")
add("round", "negative decimals", lambda xp, x: xp.round(x, -1), Arg((3,), 1.0, 4.0))
add("round", "0-d", lambda xp, x: xp.round(x), SCALAR)
add("around", "alias", lambda xp, x: xp.around(x, 1), X)

# ---------------------------------------------------------------- elementwise, two inputs

_BINARY: dict[str, tuple[tuple[float, float], tuple[float, float], Field]] = {
    "add": ((-2, 2), (-2, 2), "analytic"),
    "arctan2": ((-2, 2), (0.3, 2), "real"),
    "divide": ((-2, 2), (0.4, 2), "analytic"),
    "floor_divide": ((-3, 3), (0.4, 2), "real"),
    "fmax": ((-2, 2), (-2, 2), "real"),
    "fmin": ((-2, 2), (-2, 2), "real"),
    "fmod": ((-3, 3), (0.4, 2), "real"),
    "hypot": ((-2, 2), (-2, 2), "real"),
    "logaddexp": ((-2, 2), (-2, 2), "real"),
    "logaddexp2": ((-2, 2), (-2, 2), "real"),
    "maximum": ((-2, 2), (-2, 2), "real"),
    "minimum": ((-2, 2), (-2, 2), "real"),
    "multiply": ((-2, 2), (-2, 2), "analytic"),
    "power": ((0.4, 2), (-2, 2), "analytic"),
    "remainder": ((-3, 3), (0.4, 2), "real"),
    "subtract": ((-2, 2), (-2, 2), "analytic"),
}


def _binary_samples(name: str, of_x: tuple[float, float], of_y: tuple[float, float], facts: dict[str, Any]) -> None:
    def two(case: str, one: tuple[int, ...], other: tuple[int, ...], **more: Any) -> None:
        function(name, case, Arg(one, *of_x), Arg(other, *of_y), facts=facts | more)

    two("same shape", (3, 4), (3, 4), third=name in ("multiply", "divide", "power", "hypot"))
    two("broadcast both", (3, 1), (4,))
    two("new axes", (3,), (2, 1, 3))
    two("0-d and vector", (), (3,))
    two("vector and 0-d", (3,), ())
    two("both 0-d", (), ())
    two("zero-size", (0, 3), (3,))
    two("length 1 and length 0", (1, 3), (0, 3))
    function(name, "array on the right", Arg((3, 4), *of_x), Arg((4,), *of_y, constant=True), facts=facts)
    function(name, "array on the left", Arg((3, 1), *of_x, constant=True), Arg((4,), *of_y), facts=facts)
    add(name, "number on the right", lambda xp, x: getattr(xp, name)(x, 1.5), Arg((3, 4), *of_x), **facts)
    add(name, "number on the left", lambda xp, y: getattr(xp, name)(1.25, y), Arg((3, 4), *of_y), **facts)
    number = np.float64(1.25)
    add(name, "NumPy number on the right", lambda xp, x: getattr(xp, name)(x, number), Arg((3,), *of_x), **facts)
    add(name, "NumPy number on the left", lambda xp, y: getattr(xp, name)(number, y), Arg((3,), *of_y), **facts)
    add(name, "integer on the right", lambda xp, x: getattr(xp, name)(x, 2), Arg((3,), *of_x), **facts)
    both = Arg((3, 4), 0.4, 2)
    add(name, "itself twice", lambda xp, x: getattr(xp, name)(x, x), both, **facts)


for _name, (_of_x, _of_y, _field) in _BINARY.items():
    _binary_samples(_name, _of_x, _of_y, {"field": _field})

function("arctan2", "all quadrants", at([1.0, 1.0, -1.0, -1.0]), at([2.0, -2.0, 2.0, -2.0]))
function("arctan2", "at 0", at([0.0, 1.0]), at([0.0, 1.0]), facts={"smooth": False})
function("hypot", "at 0", at([0.0, 1.0]), at([0.0, 1.0]), facts={"smooth": False})
function("divide", "negative divisor", X, Arg((4,), -2, -0.4), facts={"field": "analytic"})
function("remainder", "negative divisor", Arg((3, 4), -3, 3), Arg((4,), -2, -0.4))
function("fmod", "negative divisor", Arg((3, 4), -3, 3), Arg((4,), -2, -0.4))
function("floor_divide", "negative divisor", Arg((3, 4), -3, 3), Arg((4,), -2, -0.4))
for _name in ("maximum", "minimum", "fmax", "fmin"):
    function(_name, "ties", at([1.0, 2.0, 3.0]), at([1.0, 3.0, 3.0]), facts={"smooth": False})
for _exponent in (-1, 0, 1, 2, 3, 0.5):
    add("power", f"to the {_exponent}", lambda xp, x, p=_exponent: xp.power(x, p), POSITIVE, field="analytic")
for _exponent in (0, 1, 2, 3):
    add("power", f"0 to the {_exponent}", lambda xp, x, p=_exponent: xp.power(x, p), at([0.0, -1.5, 2.0]))
function("power", "integer array exponents", at([0.0, -1.5, 2.0]), given([2, 3, 0]), facts={"field": "analytic"})
function(
    "power", "exponents of 0", at([0.5, 2.0, 3.0]), at([0.0, 0.0, 1.5]), facts={"field": "analytic", "third": True}
)
add(
    "power",
    "negative base, complex exponents",
    lambda xp, x, y, z: xp.power(x, y + 1j * z),
    *(Arg((3,), -2, -0.4), Arg((2, 1), -2, 2), Arg((3,), -1, 1)),
    third=True,
)
add("power", "-1 to complex exponents", lambda xp, y, z: xp.power(-1, y + 1j * z), Arg((2, 1), -2, 2), Arg((3,), -1, 1))
add("power", "negative base to 0.5 + 0j", lambda xp, x: xp.power(x, 0.5 + 0j), Arg((3,), -2, -0.4), third=True)
function("power", "array with a 0 on the left", given([0.0, 2.0]), at([1.5, 1.0]), facts={"field": "analytic"})
function("logaddexp", "one is -inf", at([-np.inf, 1.0, 2.0]), at([0.5, 1.0, -np.inf]))

# What only rules call.
add(
    "engine.one_minus_square",
    "as called",
    lambda xp, x: arithmetic._one_minus_square(x),
    Arg((3, 4), -0.9, 0.9),
    reference=lambda x: (1 - x) * (1 + x),
    dispatches=False,
    field="analytic",
    third=True,
)
for _case, _x, _y in (
    ("same shape", X, X),
    ("broadcast", VECTOR, X),
    ("array on the right", X, Arg((4,), constant=True)),
    ("array on the left", Arg((4,), constant=True), X),
):
    add(
        "engine.cosine",
        _case,
        lambda xp, x, y: arithmetic._cosine(x, y),
        _x,
        _y,
        reference=lambda x, y: x / np.hypot(x, y),
        dispatches=False,
        third=_case == "same shape",
    )

# The keywords of ufuncs.
add("exp", "where= and out=", lambda xp, x, o, m: xp.exp(x, out=xp.copy(o), where=m), X, X, MASK)
add(
    "log",
    "where= hides bad values",
    lambda xp, x, o, m: xp.log(x, where=m, out=xp.copy(o)),
    at([0.0, 1.0, -1.0]),
    Arg((3,)),
    given([False, True, False]),
)
add("add", "out=", lambda xp, x, y, o: xp.add(x, y, out=xp.copy(o)), X, VECTOR, X, field="analytic")
add("add", "out= in a tuple", lambda xp, x, y, o: xp.add(x, y, out=(xp.copy(o),)), X, VECTOR, X, field="analytic")
add(
    "multiply",
    "where= broadcasts",
    lambda xp, x, y, o, m: xp.multiply(x, y, out=xp.copy(o), where=m),
    Arg((3, 1)),
    VECTOR,
    X,
    MASK,
)
add("multiply", "dtype=complex", lambda xp, x, y: xp.multiply(x, y, dtype=np.complex128), X, VECTOR, field="complex")
add("subtract", "dtype=float64", lambda xp, x, y: xp.subtract(x, y, dtype="float64"), X, VECTOR)
add("sin", "dtype=float64", lambda xp, x: xp.sin(x, dtype=np.float64), X)

# ---------------------------------------------------------------- clip and where

add("clip", "numbers", lambda xp, x: xp.clip(x, -1.0, 1.0), X)
add("clip", "low only", lambda xp, x: xp.clip(x, -1.0, None), X)
add("clip", "high only", lambda xp, x: xp.clip(x, None, 0.5), X)
add("clip", "min and max", lambda xp, x: xp.clip(x, min=-1.0, max=1.0), X)
add("clip", "tensors", lambda xp, x, a, b: xp.clip(x, a, b), X, Arg((4,), -1, -0.5), Arg((3, 1), 0.5, 1))
add("clip", "array and tensor", lambda xp, x, a, b: xp.clip(x, a, b), X, Arg((4,), -1, -0.5, constant=True), SCALAR)
add("clip", "out=", lambda xp, x, o: xp.clip(x, -1.0, 1.0, out=xp.copy(o)), X, X)
add("clip", "at the bounds", lambda xp, x: xp.clip(x, -1.0, 1.0), at([-1.0, 0.0, 1.0]), smooth=False)
add("clip", "0-d", lambda xp, x: xp.clip(x, -1.0, 1.0), SCALAR)
add("clip", "zero-size", lambda xp, x: xp.clip(x, -1.0, 1.0), EMPTY)
function("where", "same shape", MASK, X, X, facts={"field": "analytic", "third": True})
function("where", "broadcast", MASK, Arg((3, 1)), VECTOR, facts={"field": "analytic"})
function(
    "where", "condition is broadcast", given([[True], [False]]), Arg((3,)), Arg((2, 1)), facts={"field": "analytic"}
)
add("where", "number on the left", lambda xp, m, x: xp.where(m, 1.5, x), MASK, VECTOR, field="analytic")
add("where", "number on the right", lambda xp, m, x: xp.where(m, x, 2), MASK, VECTOR, field="analytic")
add(
    "where",
    "array and tensor",
    lambda xp, m, a, x: xp.where(m, a, x),
    MASK,
    Arg(constant=True),
    VECTOR,
    field="analytic",
)
add("where", "condition computed", lambda xp, x: xp.where(x > 0, x * x, -x), X)
add("where", "itself twice", lambda xp, m, x: xp.where(m, x, x), MASK, X, field="analytic")
add("where", "zero-size", lambda xp, m, x: xp.where(m, x, 1.0), given(np.ones((0, 3), bool)), EMPTY, field="analytic")
