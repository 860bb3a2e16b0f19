"""Further ufuncs: parts of floating-point numbers, steps, sinc; and the methods that every ufunc has."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from samples._table import (
    ANALYTIC,
    CUBE,
    EMPTY,
    MASK,
    POSITIVE,
    SCALAR,
    VECTOR,
    Arg,
    Field,
    X,
    add,
    at,
    function,
    given,
)

INTEGERS = given([[0, -2, 3, 1], [5, 0, -1, 2], [1, 1, -3, 0]])
SPECIAL = at([[np.nan, 1.0, -np.inf], [np.inf, -2.0, 0.5]])

# ---------------------------------------------------------------- powers in double precision

function("float_power", "two arrays", POSITIVE, Arg((3, 1)), facts=ANALYTIC)
function("float_power", "array on the left", Arg((3, 4), 0.4, 2, constant=True), VECTOR, facts=ANALYTIC)
add(
    "float_power",
    "negative base, complex exponents",
    lambda xp, x, y, z: xp.float_power(x, y + 1j * z),
    *(Arg((3,), -2, -0.4), Arg((2, 1), -2, 2), Arg((3,), -1, 1)),
)
add("float_power", "number on the right", lambda xp, x: xp.float_power(x, 3), X, **ANALYTIC)
add("float_power", "number on the left", lambda xp, y: xp.float_power(2, y), X, **ANALYTIC)
function("float_power", "integers on the left", given([1, 2, 3, 4]), X, facts=ANALYTIC)
add("float_power", "where=", lambda xp, x, m, o: xp.float_power(x, 2, where=m, out=xp.copy(o)), POSITIVE, MASK, X)
add("float_power", "dtype=", lambda xp, x: xp.float_power(x, 2.0, dtype=np.complex128), POSITIVE)

# ---------------------------------------------------------------- parts of floating-point numbers

function("ldexp", "same shape", X, INTEGERS, facts={"third": True})
function("ldexp", "broadcast", Arg((3, 1)), given([1, -2]))
function("ldexp", "0-d", SCALAR, given(3))
function("ldexp", "zero-size", EMPTY, given(1))
add("ldexp", "out=", lambda xp, x, o: xp.ldexp(x, 2, out=xp.copy(o)), X, X)
add("frexp", "mantissa", lambda xp, x: xp.frexp(x)[0], X, third=True)
add("frexp", "put together again", lambda xp, x: xp.ldexp(*xp.frexp(x)), X)
add("frexp", "0-d", lambda xp, x: xp.frexp(x)[0], SCALAR)
add("frexp", "at 0", lambda xp, x: xp.frexp(x)[0], at([0.0, -0.0, 1.0, -1e-3]), smooth=False)
add(
    "frexp",
    "where=",
    lambda xp, x, o, m: xp.frexp(x, out=(xp.copy(o), xp.zeros_like(x, np.int32)), where=m)[0],
    *(X, X, MASK),
)
add("frexp", "out=", lambda xp, x, o: xp.frexp(x, out=(xp.copy(o), xp.zeros_like(x, np.int32)))[0], X, X)
function("modf", "matrix", X, facts={"third": True})
function("modf", "0-d", SCALAR)
function("modf", "zero-size", EMPTY)
function("modf", "at integers and infinity", at([0.0, -2.0, 3.0, -np.inf]), facts={"smooth": False})
add("modf", "one of two", lambda xp, x: xp.modf(x)[0] * x, X)
add("modf", "the other of two", lambda xp, x: xp.modf(x)[1] * x, X)
add("modf", "out= by position", lambda xp, x, o: xp.modf(x, xp.copy(o), xp.copy(o)), X, X)
function("divmod", "two arrays", Arg((3, 4), -3, 3), Arg((4,), 0.4, 2))
function("divmod", "0-d", SCALAR, Arg((), 0.4, 2))
add("divmod", "number on the right", lambda xp, x: xp.divmod(x, 1.5), X)
add("divmod", "number on the left", lambda xp, y: xp.divmod(2.5, y), POSITIVE)
function("nextafter", "broadcast", X, VECTOR, facts={"smooth": False})
function("nextafter", "array on the left", Arg(constant=True), VECTOR, facts={"smooth": False})
function("nextafter", "array on the right", X, Arg((4,), constant=True), facts={"smooth": False})
function("spacing", "matrix", X, facts={"smooth": False})

# ---------------------------------------------------------------- sign and steps

function("copysign", "broadcast", X, VECTOR)
function("copysign", "array on the left", Arg(constant=True), VECTOR)
function("copysign", "array on the right", X, Arg((4,), constant=True), facts={"third": True})
function("copysign", "at 0", at([0.0, 1.0, -0.0]), at([-1.0, 0.0, -0.0]), facts={"smooth": False})
function("heaviside", "broadcast", X, VECTOR)
function("heaviside", "array on the left", given([[-1.0, 0.0, 2.0, 0.0]]), Arg((3, 1)))
function("heaviside", "array on the right", X, Arg((4,), constant=True))
function("heaviside", "at 0", at([0.0, -1.0, -0.0]), at([0.5, 2.0, 0.25]), facts={"smooth": False})
function("sinc", "matrix", X, facts=ANALYTIC | {"third": True})
add(
    "sinc",
    "at and near 0",
    lambda xp, x: xp.sinc(x),
    at([0.0, 1e-9, -1e-3, 0.1]),
    # Of a 0 in float16 NumPy up to 2.2 makes NaN.
    reference=lambda x: np.sinc(x.astype(float)).astype(x.dtype) if x.dtype == np.float16 else np.sinc(x),
)
function("sinc", "far away", Arg((5,), 3, 20), facts=ANALYTIC)
function("sinc", "0-d", SCALAR, facts=ANALYTIC)
function("sinc", "zero-size", EMPTY, facts=ANALYTIC)
# NumPy 2.5 deprecates its fix for trunc, which does the same.
add("fix", "matrix", lambda xp, x: xp.fix(x), X, reference=np.trunc)
add("fix", "out=", lambda xp, x, o: xp.fix(x, out=xp.copy(o)), X, X, reference=lambda x, o: np.trunc(x))

# ---------------------------------------------------------------- what replaces NaN, infinities and complex numbers

function("nan_to_num", "finite", X, facts={"field": "complex", "third": True})
function("nan_to_num", "defaults", SPECIAL, facts={"field": "complex", "smooth": False})
function("nan_to_num", "given", SPECIAL, nan=7.0, posinf=8.0, neginf=-9.0, facts={"field": "complex", "smooth": False})
function("nan_to_num", "0-d", at(np.nan), nan=2.0, facts={"smooth": False})
add("nan_to_num", "copy=False", lambda xp, x: xp.nan_to_num(xp.copy(x), copy=False), X, field="complex")
add(
    "nan_to_num",
    "tensors replace",
    lambda xp, x, a, b, c: xp.nan_to_num(x, True, a, b, c),
    Arg(values=[[np.nan, 1.0, -np.inf], [np.inf, -2.0, 0.5]], constant=True),
    Arg((3,)),
    SCALAR,
    SCALAR,
    dispatches=False,
    reference=lambda x, a, b, c: np.where(
        np.isnan(x), a, np.where(np.isposinf(x), b, np.where(np.isneginf(x), c, x))
    ).astype(a.dtype),
)
function("real_if_close", "as it is", X, facts={"field": "complex"})
add("real_if_close", "close", lambda xp, x: xp.real_if_close(xp.real(x) + 1e-18j), X, field="real")

# ---------------------------------------------------------------- stacks of matrices and vectors, NumPy's from 2.2 on

_HAS = hasattr(np, "matvec")
_STACKS = {"field": "complex", "dispatches": _HAS}
_OF_MATVEC: dict[str, Any] = _STACKS | {"reference": lambda x, v: np.einsum("...ij,...j->...i", x, v)}
_OF_VECMAT: dict[str, Any] = _STACKS | {"reference": lambda v, x: np.einsum("...i,...ij->...j", np.conj(v), x)}
function("matvec", "one", X, VECTOR, facts=_OF_MATVEC)
function("matvec", "stacks", Arg((2, 1, 3, 4)), Arg((5, 4)), facts=_OF_MATVEC)
function("matvec", "array on the left", Arg(constant=True), VECTOR, facts=_OF_MATVEC)
function("matvec", "zero-size", EMPTY, Arg((3,)), facts=_OF_MATVEC)
function("vecmat", "one", Arg((3,)), X, facts=_OF_VECMAT)
function("vecmat", "stacks", Arg((5, 3)), Arg((2, 1, 3, 4)), facts=_OF_VECMAT)
function("vecmat", "array on the right", Arg((3,)), Arg(constant=True), facts=_OF_VECMAT)
add(
    "matvec",
    "axes=",
    lambda xp, x, v: xp.matvec(x, v, axes=[(0, 2), 0, 0]),
    Arg((3, 2, 4)),
    Arg((4, 2)),
    **_STACKS,
    reference=lambda x, v: np.einsum("akb,bk->ak", x, v),
)
add(
    "vecmat",
    "axes=",
    lambda xp, v, x: xp.vecmat(v, x, axes=[0, (-1, -3), -1]),
    Arg((4, 2)),
    Arg((3, 2, 4)),
    **_STACKS,
    reference=lambda v, x: np.einsum("bk,akb->ka", np.conj(v), x),
)

# ---------------------------------------------------------------- reduce, accumulate, reduceat


def _method(name: str, method: str, case: str, of_x: Arg, *args: Any, **more: Any) -> None:
    facts = {key: more.pop(key) for key in ("field", "smooth", "third", "reference") if key in more}
    add(
        name,
        f"{method}, {case}",
        lambda xp, x: getattr(getattr(xp, name), method)(x, *args, **more),
        of_x,
        **facts,
    )


# Ranges where no step, tie or pole is near, whatever is combined first.
_COMBINED: dict[str, tuple[float, float, Field]] = {
    "add": (-2, 2, "analytic"),
    "arctan2": (0.4, 2, "real"),
    "copysign": (-2, 2, "real"),
    "divide": (0.4, 2, "analytic"),
    "fmax": (-2, 2, "real"),
    "fmin": (-2, 2, "real"),
    "hypot": (-2, 2, "real"),
    "logaddexp": (-2, 2, "real"),
    "logaddexp2": (-2, 2, "real"),
    "maximum": (-2, 2, "real"),
    "minimum": (-2, 2, "real"),
    "multiply": (-2, 2, "analytic"),
    "power": (0.4, 2, "real"),
    "subtract": (-2, 2, "analytic"),
}
# With AVX-512, NumPy 2.4 reads stale values in power.reduce and arctan2.reduce along a contiguous axis.
_WRONG_IN_NUMPY = ("arctan2", "power")
for _name, (_low, _high, _field) in _COMBINED.items():
    _x = Arg((3, 4), _low, _high)
    _third = _name in ("divide", "hypot")
    _method(_name, "reduce", "first axis", _x, field=_field, third=_third)
    if _name not in _WRONG_IN_NUMPY:
        _method(_name, "reduce", "last axis, kept", _x, axis=-1, keepdims=True, field=_field)
    _method(_name, "reduce", "where= and initial=", _x, where=MASK.values, initial=0.75, field=_field)
    _method(_name, "reduce", "of one", Arg((1, 3), _low, _high), field=_field)
    _method(_name, "accumulate", "last axis", _x, -1, field=_field, third=_third)
    _method(_name, "reduceat", "second axis", _x, [0, 2, 1, 3], 1, field=_field)
for _name in _WRONG_IN_NUMPY:
    _method(
        _name,
        "reduce",
        "last axis, kept",
        Arg((3, 4), 0.4, 2),
        axis=-1,
        keepdims=True,
        reference=lambda x, n=_name: functools.reduce(getattr(np, n), x.T)[:, None],
    )
_method("float_power", "reduce", "first axis", Arg((3, 4), 0.4, 2))
_method("float_power", "accumulate", "first axis", Arg((3, 4), 0.4, 2))
_method("remainder", "reduce", "first axis", Arg((2, 3), 0.4, 2))
_method("fmod", "accumulate", "first axis", Arg((2, 3), 0.4, 2))
for _name in ("add", "multiply", "maximum", "fmin", "hypot", "logaddexp", "logaddexp2"):
    _method(_name, "reduce", "all axes", CUBE, axis=None)
    _method(_name, "reduce", "two axes", CUBE, axis=(2, 0))
    _method(_name, "reduce", "0-d", SCALAR)
    _method(_name, "reduce", "no axes", X, axis=())
for _name in ("add", "multiply", "hypot", "logaddexp", "logaddexp2"):
    _method(_name, "reduce", "of nothing", EMPTY, smooth=_name in ("add", "multiply", "hypot"))  # else of -inf
    _method(_name, "reduce", "where=", X, 1, where=MASK.values)
_method("maximum", "reduce", "of nothing", EMPTY, initial=2.0)
_method("subtract", "reduce", "of nothing", EMPTY, initial=2.0)
_method("add", "accumulate", "of nothing", EMPTY)
_method("subtract", "accumulate", "of nothing", EMPTY)
_method("subtract", "accumulate", "of one", Arg((1, 3)))
_method("subtract", "reduceat", "nowhere", X, [])
_method("add", "reduceat", "nowhere", X, [])
_method("hypot", "reduce", "five", Arg((5, 2)))
_method("maximum", "reduce", "with ties", at([2.0, 1.0, 2.0]), smooth=False)
_method("fmax", "reduce", "with ties and NaN", at([2.0, np.nan, 2.0]), smooth=False)
_method("fmin", "reduce", "of NaN", at([np.nan, np.nan]), smooth=False)
_method("multiply", "reduce", "with zeros", at([2.0, 0.0, 3.0]))
_method("add", "reduce", "dtype=", X, dtype=np.complex128)
_method("subtract", "reduce", "dtype=", X, dtype=np.complex128)
_method("divide", "accumulate", "dtype=", POSITIVE, dtype=np.complex128)
_method("add", "reduceat", "dtype=", X, [0, 1], dtype=np.complex128)
_method("multiply", "reduce", "initial=None", X, initial=None)
for _name, _call in {
    "add": lambda xp, x, o: xp.add.reduce(x, out=xp.copy(o)),
    "subtract": lambda xp, x, o: xp.subtract.reduce(x, 0, out=xp.copy(o)),
}.items():
    add(_name, "reduce, out=", _call, X, VECTOR)
add("subtract", "accumulate, out=", lambda xp, x, o: xp.subtract.accumulate(x, out=xp.copy(o)), X, X)
add("add", "reduce, initial= is a tensor", lambda xp, x, i: xp.multiply.reduce(xp.add(x, x), initial=i), X, SCALAR)

# ---------------------------------------------------------------- outer


for _name, _args in {"subtract": (X, Arg((2,))), "hypot": (VECTOR, SCALAR), "multiply": (VECTOR, VECTOR)}.items():
    add(_name, "outer", lambda xp, x, y, n=_name: getattr(xp, n).outer(x, y), *_args)
add("divide", "outer with a list", lambda xp, x: xp.divide.outer(x, [1.0, 2.0]), X, **ANALYTIC)
add("power", "outer, array on the left", lambda xp, a, x: xp.power.outer(a, x), given([1.5, 2.0]), X, **ANALYTIC)
add("divmod", "outer", lambda xp, x, y: xp.divmod.outer(x, y), Arg((3,), -3, 3), Arg((2,), 0.4, 2))
add(
    "add",
    "outer, out=",
    lambda xp, x, k, o: xp.add.outer(x, k, out=xp.copy(o)),
    *(Arg((3,)), given([0, 1, 2, 3]), X),
)

# ---------------------------------------------------------------- at


def _at_samples(name: str, case: str, index: Any, of_x: Arg, *of_v: Arg, **facts: Any) -> None:
    def call(xp: Any, x: Any, *v: Any) -> Any:
        made = x.astype(xp.result_type(x, *v))  # a copy, which holds what is computed
        getattr(xp, name).at(made, index, *v)
        return made

    add(name, f"at, {case}", call, of_x, *of_v, **facts)


_AGAIN = np.array([0, 2, 0, 0])
_PAIR = (np.array([0, 2, 0]), np.array([1, 1, 1]))
for _name in ("add", "subtract", "multiply", "divide", "hypot", "logaddexp", "maximum"):
    _of = Arg((5,), 0.4, 2)
    _at_samples(_name, "an element again", _AGAIN, _of, Arg((4,), 0.4, 2), third=_name == "multiply")
    _at_samples(_name, "rows, broadcast", np.array([0, 2, 2]), Arg((3, 4), 0.4, 2), Arg((4,), 0.4, 2))
    _at_samples(_name, "a slice", (slice(None), slice(1, 3)), Arg((3, 4), 0.4, 2), Arg((3, 1), 0.4, 2))
    _at_samples(_name, "array on the right", _AGAIN, _of, Arg((), 0.4, 2, constant=True))
for _name in ("add", "multiply"):
    _at_samples(_name, "a mask", np.array([True, False, True]), X, VECTOR, field="analytic")
    _at_samples(_name, "pairs", _PAIR, X, Arg((3,)), field="analytic")
    _at_samples(_name, "0-d", (), SCALAR, SCALAR, field="analytic")
    _at_samples(_name, "nowhere", np.array([], np.intp), X, SCALAR, field="analytic")
_at_samples("negative", "an element again", _AGAIN, Arg((5,)), field="analytic")
_at_samples("square", "an element again", _AGAIN, Arg((5,)), field="analytic")
_at_samples("logical_and", "cuts what it writes", _AGAIN, Arg((5,)), given([1.0, 0.0, 1.0, 1.0]), smooth=False)
