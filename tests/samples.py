"""The one table of samples: calls of every differentiable function, on which the generic tests run.

A sample's call takes a namespace `xp` and its arguments, so that the same call runs on Tensors
(`xp` is gradmgr.numpy, or plain numpy, which dispatches) and on NumPy's or CuPy's arrays. It leaves
its arguments as they are: what writes in place, writes to a copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, special
from gradmgr._broadcast import broadcast_to, cast, sum_to
from gradmgr._index import scatter
from gradmgr._xp import to_device
from gradmgr.ops.convert import _to
from gradmgr.ops.reduce import _recur

Array = Any

# real: real inputs only; complex: complex ones too, the derivative being real-linear;
# analytic: the complex step serves as well.
Field = Literal["real", "complex", "analytic"]


@dataclass(frozen=True)
class Arg:
    """One argument: uniform in [low, high] of a shape, or given values; constant if not differentiated."""

    shape: tuple[int, ...] = (3, 4)
    low: float = -2.0
    high: float = 2.0
    values: Any = None
    constant: bool = False

    def make(self, random: np.random.Generator, dtype: Any = np.float64) -> Array:
        """Return a new array. Given integers and booleans keep their dtype."""
        if self.values is not None:
            values = np.array(self.values)
            return values if values.dtype.kind in "biu" else values.astype(dtype)
        values = random.uniform(self.low, self.high, self.shape)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * random.uniform(-0.7, 0.7, self.shape)
        return np.array(values, dtype=dtype)


@dataclass(frozen=True)
class Sample:
    """One call of one function.

    `name` is a name of gradmgr.numpy, or begins with "Tensor.", "special." or "engine.".
    """

    name: str
    case: str
    call: Callable[..., Any]
    args: tuple[Arg, ...]
    field: Field = "real"
    smooth: bool = True  # whether numeric differences give the derivative here
    reference: Callable[..., Any] | None = None  # what it should compute, where the call cannot run on plain arrays
    dispatches: bool = True  # whether plain numpy functions bring the call to us
    repeats: bool = False  # whether it writes one element twice; refused on a GPU, where the order is undefined
    third: bool = False  # whether the third derivative is checked, too

    def __str__(self) -> str:
        return f"{self.name}-{self.case}"

    def make(self, dtype: Any = np.float64) -> list[Array]:
        """Return the arguments as new plain arrays, the same at every call."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [arg.make(random, dtype) for arg in self.args]

    @property
    def where(self) -> list[int]:
        """The positions of the arguments that are differentiated."""
        return [k for k, arg in enumerate(self.args) if not arg.constant]

    @property
    def is_complex(self) -> bool:
        """Whether it takes complex arguments."""
        return self.field != "real"

    def expected(self, *arrays: Array) -> Any:
        """What NumPy computes of these arrays."""
        return self.call(np, *arrays) if self.reference is None else self.reference(*arrays)


SAMPLES: list[Sample] = []
_taken: set[str] = set()

X = Arg()
POSITIVE = Arg(low=0.4, high=2.0)
CUBE = Arg((2, 3, 4))
MATRIX = Arg((3, 3))
VECTOR = Arg((4,))
SCALAR = Arg(())
EMPTY = Arg((0, 3))
MASK = Arg(values=[[True, False, True, True], [False, False, True, False], [True, True, True, False]], constant=True)
ROW_MASK = Arg(values=[True, False, True], constant=True)


def add(name: str, case: str, call: Callable[..., Any], *args: Arg, **facts: Any) -> None:
    """Enter one sample; its name and case stand in the table once."""
    sample = Sample(name, case, call, args, **facts)
    if str(sample) in _taken:
        raise ValueError(f"sample {sample} stands twice in the table")
    _taken.add(str(sample))
    SAMPLES.append(sample)


def function(name: str, case: str, *args: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Enter the call xp.name(*args, **keywords)."""
    add(name, case, lambda xp, *given: getattr(xp, name)(*given, **keywords), *args, **(facts or {}))


def method(name: str, case: str, *args: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Enter the call args[0].name(*args[1:], **keywords)."""
    add(f"Tensor.{name}", case, lambda xp, x, *more: getattr(x, name)(*more, **keywords), *args, **(facts or {}))


def given(values: Any) -> Arg:
    """A constant argument."""
    return Arg(values=values, constant=True)


def at(values: Any) -> Arg:
    """A differentiated argument with these values."""
    return Arg(values=values)


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
function("logaddexp", "one is -inf", at([-np.inf, 1.0, 2.0]), at([0.5, 1.0, -np.inf]))

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

# ---------------------------------------------------------------- reductions

_AXES: dict[str, Any] = {"all axes": None, "axis 0": 0, "axis -1": -1, "axes (0, 2)": (0, 2), "axes (-1, 0)": (-1, 0)}
_REDUCTIONS: dict[str, Field] = {
    "sum": "analytic",
    "mean": "analytic",
    "prod": "analytic",
    "max": "real",
    "min": "real",
    "var": "complex",
    "std": "complex",
}
for _name, _field in _REDUCTIONS.items():
    for _case, _axis in _AXES.items():
        function(_name, _case, CUBE, axis=_axis, facts={"field": _field})
        method(_name, _case, CUBE, axis=_axis, facts={"field": _field})
    function(_name, "keepdims", CUBE, axis=(0, -1), keepdims=True, facts={"field": _field})
    function(_name, "keepdims, all axes", CUBE, keepdims=True, facts={"field": _field})
    method(_name, "keepdims", CUBE, axis=1, keepdims=True, facts={"field": _field})
    # The spread of one value is 0 there and has a kink.
    _kink = _name == "std"
    function(_name, "no axes", X, axis=(), facts={"field": _field, "smooth": not _kink})
    function(_name, "0-d", SCALAR, facts={"field": _field, "smooth": not _kink})
    add(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, axis=0, out=xp.copy(o)), X, VECTOR)
for _name in ("sum", "prod"):
    _facts = {"field": "analytic"}
    function(_name, "zero-size", EMPTY, facts=_facts)
    function(_name, "zero-size, axis 0", EMPTY, axis=0, facts=_facts)
    function(_name, "initial=", X, axis=0, initial=2.5, facts=_facts)
    function(_name, "initial= is a NumPy number", X, axis=0, initial=np.float64(2.5), facts=_facts)
    add(
        _name,
        "initial= is an array",
        lambda xp, x, i, n=_name: getattr(xp, n)(x, axis=1, initial=i),
        X,
        Arg((), constant=True),
        field="analytic",
        reference=lambda x, i, n=_name: getattr(np, n)(x, axis=1, initial=i[()]),
    )
    add(
        _name,
        "initial= is a tensor",
        lambda xp, x, i, n=_name: getattr(xp, n)(x, axis=1, initial=i),
        X,
        SCALAR,
        field="analytic",
        reference=lambda x, i, n=_name: getattr(np, n)(x, axis=1, initial=i[()]),
    )
    function(_name, "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
for _name in ("sum", "prod", "mean", "var", "std"):
    _field = _REDUCTIONS[_name]
    add(
        _name,
        "where=",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m),
        X,
        given([[True], [False], [True]]),
        field=_field,
    )
    add(
        _name,
        "where= and keepdims",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, where=m, keepdims=True),
        X,
        MASK,
        field=_field,
    )
for _name in ("max", "min"):
    add(_name, "initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=0.1), X)
    add(_name, "initial= is a NumPy number", lambda xp, x, n=_name: getattr(xp, n)(x, initial=np.float64(0.1)), X)
    add(
        _name, "where= and initial=", lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m, initial=0.1), X, MASK
    )
    for _wins in (-5.0, 5.0):
        add(
            _name,
            f"where= and initial= is a tensor, {_wins}",
            lambda xp, x, m, i, n=_name: getattr(xp, n)(x, axis=0, where=m, initial=i),
            X,
            MASK,
            at(_wins),
            reference=lambda x, m, i, n=_name: getattr(np, n)(x, axis=0, where=m, initial=i[()]),
        )
    add(_name, "zero-size with initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=0.1), EMPTY)
    add(_name, "ties", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0), at([[1.0, 2.0], [1.0, 1.0]]), smooth=False)
    function(f"a{_name}", "alias", X, axis=0)
function("mean", "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
for _name in ("var", "std"):
    function(_name, "ddof=1", X, axis=0, ddof=1, facts={"field": "complex", "third": True})
    function(_name, "correction=1", X, axis=0, correction=1, facts={"field": "complex"})
    add(
        _name,
        "mean=",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, mean=xp.mean(x, axis=0, keepdims=True)),
        X,
        field="complex",
    )
    add(
        _name,
        "where= and ddof=",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m, ddof=0.5),
        X,
        given([[True], [False], [True]]),
        field="complex",
    )
add(
    "std",
    "where= leaves one",
    lambda xp, x, m: xp.std(x, where=m),
    Arg((3,)),
    given([True, False, False]),
    smooth=False,
)
add("std", "all equal", lambda xp, x: xp.std(x), at([1.5, 1.5, 1.5]), smooth=False)
for _case, _values in {
    "one 0": [2.0, 0, 3, 4],
    "two 0s": [2.0, 0, 3, 0],
    "all 0": [0.0, 0, 0],
    "no 0": [2.0, 1, 3],
}.items():
    _facts = {"field": "analytic", "third": True}
    function("prod", _case, at(_values), facts=_facts)
    function("cumprod", _case, at(_values), facts=_facts)
function(
    "prod", "0s along axes", at([[[1.0, 0], [2, 3]], [[0, 0], [1.5, 2]]]), axis=(0, 2), facts={"field": "analytic"}
)
function("cumprod", "0s along an axis", at([[1.0, 0, 2], [0, 3, 0]]), axis=1, facts={"field": "analytic"})
for _name in ("cumsum", "cumprod"):
    for _case, _axis in {"flattened": None, "axis 0": 0, "axis -1": -1}.items():
        function(_name, _case, CUBE, axis=_axis, facts={"field": "analytic"})
        method(_name, _case, X, axis=_axis, facts={"field": "analytic"})
    function(_name, "0-d", SCALAR, facts={"field": "analytic"})
    function(_name, "zero-size", EMPTY, axis=0, facts={"field": "analytic"})
    function(_name, "one element", Arg((1,)), facts={"field": "analytic"})
    function(_name, "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
    add(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, 0, out=xp.copy(o)), X, X)


def _logsumexp(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def _logsumexp_sample(case: str, x: Arg, axis: Any = None, keepdims: bool = False, **facts: Any) -> None:
    add(
        "special.logsumexp",
        case,
        lambda xp, x: special.logsumexp(x, axis, keepdims=keepdims),
        x,
        reference=lambda x: _logsumexp(x, axis, keepdims),
        **facts,
    )


for _case, _axis in _AXES.items():
    _logsumexp_sample(_case, CUBE, _axis)
_logsumexp_sample("keepdims", CUBE, 1, True, third=True)
_logsumexp_sample("0-d", SCALAR)
_logsumexp_sample("one element", Arg((1,)))
_logsumexp_sample("some -inf", at([[-np.inf, 1.0, 2.0], [0.5, -np.inf, -np.inf]]), -1)
_logsumexp_sample("a row of -inf", at([[-np.inf, -np.inf], [0.5, 1.0]]), -1, smooth=False)

# ---------------------------------------------------------------- shapes

_ANALYTIC: dict[str, Any] = {"field": "analytic"}
_X_SHAPES: list[tuple[str, str, Callable[..., Any], Arg]] = [
    ("reshape", "to (2, 6)", lambda xp, x: xp.reshape(x, (2, 6)), X),
    ("reshape", "with -1", lambda xp, x: xp.reshape(x, (2, -1, 2)), X),
    ("reshape", "an int", lambda xp, x: xp.reshape(x, -1), X),
    ("reshape", "order F", lambda xp, x: xp.reshape(x, (2, 6), order="F"), X),
    ("reshape", "to 0-d", lambda xp, x: xp.reshape(x, ()), Arg((1, 1))),
    ("reshape", "zero-size", lambda xp, x: xp.reshape(x, (3, 0, 2)), EMPTY),
    ("reshape", "of a transpose", lambda xp, x: xp.reshape(x.T, (6, 2)), X),
    ("ravel", "C", lambda xp, x: xp.ravel(x), X),
    ("ravel", "F", lambda xp, x: xp.ravel(x, order="F"), CUBE),
    ("ravel", "0-d", lambda xp, x: xp.ravel(x), SCALAR),
    ("transpose", "reversed", lambda xp, x: xp.transpose(x), CUBE),
    ("transpose", "axes", lambda xp, x: xp.transpose(x, (1, 2, 0)), CUBE),
    ("transpose", "negative axes", lambda xp, x: xp.transpose(x, (-1, 0, -2)), CUBE),
    ("transpose", "0-d", lambda xp, x: xp.transpose(x), SCALAR),
    ("permute_dims", "alias", lambda xp, x: xp.permute_dims(x, (2, 0, 1)), CUBE),
    ("matrix_transpose", "stack", lambda xp, x: xp.matrix_transpose(x), CUBE),
    ("swapaxes", "0 and -1", lambda xp, x: xp.swapaxes(x, 0, -1), CUBE),
    ("moveaxis", "one", lambda xp, x: xp.moveaxis(x, 0, -1), CUBE),
    ("moveaxis", "several", lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)), CUBE),
    ("rollaxis", "to the front", lambda xp, x: xp.rollaxis(x, 2), CUBE),
    ("rollaxis", "start", lambda xp, x: xp.rollaxis(x, 0, 3), CUBE),
    ("squeeze", "all", lambda xp, x: xp.squeeze(x), Arg((1, 3, 1))),
    ("squeeze", "axis", lambda xp, x: xp.squeeze(x, axis=-1), Arg((1, 3, 1))),
    ("squeeze", "axes", lambda xp, x: xp.squeeze(x, axis=(0, 2)), Arg((1, 3, 1))),
    ("expand_dims", "one", lambda xp, x: xp.expand_dims(x, 1), X),
    ("expand_dims", "several", lambda xp, x: xp.expand_dims(x, (0, -1)), X),
    ("atleast_1d", "of 0-d", lambda xp, x: xp.atleast_1d(x), SCALAR),
    ("atleast_2d", "of 1-d", lambda xp, x: xp.atleast_2d(x), VECTOR),
    ("atleast_2d", "of 0-d", lambda xp, x: xp.atleast_2d(x), SCALAR),
    ("atleast_3d", "of 1-d", lambda xp, x: xp.atleast_3d(x), VECTOR),
    ("atleast_3d", "of 2-d", lambda xp, x: xp.atleast_3d(x), X),
    ("atleast_3d", "zero-size", lambda xp, x: xp.atleast_3d(x), Arg((0,))),
    ("broadcast_to", "new axes", lambda xp, x: xp.broadcast_to(x, (2, 3, 4)), Arg((3, 1))),
    ("broadcast_to", "of 0-d", lambda xp, x: xp.broadcast_to(x, (2, 3)), SCALAR),
    ("broadcast_to", "an int", lambda xp, x: xp.broadcast_to(x, 3), Arg((1,))),
    ("broadcast_to", "to zero-size", lambda xp, x: xp.broadcast_to(x, (0, 3)), Arg((1, 3))),
    ("flip", "all", lambda xp, x: xp.flip(x), CUBE),
    ("flip", "axis", lambda xp, x: xp.flip(x, -1), CUBE),
    ("flip", "axes", lambda xp, x: xp.flip(x, (0, 2)), CUBE),
    ("fliplr", "matrix", lambda xp, x: xp.fliplr(x), X),
    ("flipud", "matrix", lambda xp, x: xp.flipud(x), X),
    ("rot90", "once", lambda xp, x: xp.rot90(x), X),
    ("rot90", "twice", lambda xp, x: xp.rot90(x, 2), X),
    ("rot90", "back", lambda xp, x: xp.rot90(x, -1), X),
    ("rot90", "not at all", lambda xp, x: xp.rot90(x, 4), X),
    ("rot90", "axes", lambda xp, x: xp.rot90(x, 1, axes=(2, 0)), CUBE),
    ("roll", "flattened", lambda xp, x: xp.roll(x, 5), X),
    ("roll", "axis", lambda xp, x: xp.roll(x, -1, axis=1), X),
    ("roll", "axes", lambda xp, x: xp.roll(x, (1, 2), axis=(0, -1)), CUBE),
    ("roll", "one shift, several axes", lambda xp, x: xp.roll(x, 1, axis=(0, 1)), CUBE),
    ("roll", "one axis twice", lambda xp, x: xp.roll(x, (1, 1), axis=(0, 0)), X),
    ("repeat", "flattened", lambda xp, x: xp.repeat(x, 2), X),
    ("repeat", "axis", lambda xp, x: xp.repeat(x, 3, axis=-1), X),
    ("repeat", "counts", lambda xp, x: xp.repeat(x, [1, 0, 2], axis=0), X),
    ("repeat", "of 0-d", lambda xp, x: xp.repeat(x, 3), SCALAR),
    ("tile", "an int", lambda xp, x: xp.tile(x, 2), X),
    ("tile", "more axes than it has", lambda xp, x: xp.tile(x, (2, 1, 3)), X),
    ("tile", "fewer axes than it has", lambda xp, x: xp.tile(x, (2,)), CUBE),
    ("tile", "not at all", lambda xp, x: xp.tile(x, (2, 0)), X),
    ("diagonal", "main", lambda xp, x: xp.diagonal(x), X),
    ("diagonal", "offset", lambda xp, x: xp.diagonal(x, 1), X),
    ("diagonal", "below", lambda xp, x: xp.diagonal(x, -1), X),
    ("diagonal", "past the corner", lambda xp, x: xp.diagonal(x, 9), X),
    ("diagonal", "axes", lambda xp, x: xp.diagonal(x, 0, 2, 0), CUBE),
    ("diag", "of a matrix", lambda xp, x: xp.diag(x), X),
    ("diag", "of a matrix, offset", lambda xp, x: xp.diag(x, k=-1), X),
    ("diag", "of a vector", lambda xp, x: xp.diag(x), VECTOR),
    ("diag", "of a vector, offset", lambda xp, x: xp.diag(x, k=-2), VECTOR),
    ("trace", "main", lambda xp, x: xp.trace(x), X),
    ("trace", "offset and axes", lambda xp, x: xp.trace(x, 1, 1, 2), CUBE),
    ("tril", "matrix", lambda xp, x: xp.tril(x), X),
    ("tril", "offset", lambda xp, x: xp.tril(x, k=1), CUBE),
    ("triu", "matrix", lambda xp, x: xp.triu(x), X),
    ("triu", "offset", lambda xp, x: xp.triu(x, k=-1), CUBE),
    ("split", "equal parts", lambda xp, x: xp.split(x, 2, axis=1), X),
    ("split", "at indices", lambda xp, x: xp.split(x, [1, 1, 3], axis=-1), X),
    ("array_split", "unequal parts", lambda xp, x: xp.array_split(x, 3, axis=1), X),
    ("array_split", "at indices", lambda xp, x: xp.array_split(x, [2, 9]), X),
    ("hsplit", "matrix", lambda xp, x: xp.hsplit(x, 2), X),
    ("hsplit", "vector", lambda xp, x: xp.hsplit(x, [1]), VECTOR),
    ("vsplit", "matrix", lambda xp, x: xp.vsplit(x, 3), X),
    ("dsplit", "cube", lambda xp, x: xp.dsplit(x, [1, 3]), CUBE),
    ("unstack", "axis 0", lambda xp, x: xp.unstack(x), X),
    ("unstack", "axis -1", lambda xp, x: xp.unstack(x, axis=-1), CUBE),
    ("copy", "matrix", lambda xp, x: xp.copy(x), X),
    ("copy", "0-d", lambda xp, x: xp.copy(x), SCALAR),
    ("Tensor.reshape", "numbers", lambda xp, x: x.reshape(4, -1), X),
    ("Tensor.reshape", "order F", lambda xp, x: x.reshape((4, 3), order="F"), X),
    ("Tensor.transpose", "no axes", lambda xp, x: x.transpose(), CUBE),
    ("Tensor.transpose", "numbers", lambda xp, x: x.transpose(1, 0, 2), CUBE),
    ("Tensor.transpose", "tuple", lambda xp, x: x.transpose((2, 0, 1)), CUBE),
    ("Tensor.transpose", "None", lambda xp, x: x.transpose(None), CUBE),
    ("Tensor.T", "cube", lambda xp, x: x.T, CUBE),
    ("Tensor.mT", "cube", lambda xp, x: x.mT, CUBE),
    ("Tensor.flatten", "order F", lambda xp, x: x.flatten(order="F"), CUBE),
    ("Tensor.ravel", "cube", lambda xp, x: x.ravel(), CUBE),
    ("Tensor.squeeze", "axis", lambda xp, x: x.squeeze(0), Arg((1, 3))),
    ("Tensor.swapaxes", "0 and 1", lambda xp, x: x.swapaxes(0, 1), CUBE),
    ("Tensor.diagonal", "offset", lambda xp, x: x.diagonal(1), X),
    ("Tensor.trace", "offset", lambda xp, x: x.trace(-1), X),
    ("Tensor.repeat", "axis", lambda xp, x: x.repeat(2, axis=0), X),
    ("Tensor.copy", "matrix", lambda xp, x: x.copy(), X),
    ("Tensor.__iter__", "rows", lambda xp, x: [row * row for row in x], X),
]
for _name, _case, _call, _arg in _X_SHAPES:
    add(_name, _case, _call, _arg, **_ANALYTIC)
function("atleast_1d", "several", SCALAR, VECTOR, facts=_ANALYTIC)
function("atleast_2d", "several", SCALAR, X, facts=_ANALYTIC)
function("atleast_3d", "several", VECTOR, CUBE, facts=_ANALYTIC)
function("broadcast_arrays", "three", Arg((3, 1)), VECTOR, SCALAR, facts=_ANALYTIC)
function("broadcast_arrays", "tensor and array", Arg((3, 1)), Arg((4,), constant=True), facts=_ANALYTIC)

# ---------------------------------------------------------------- joining

add("concatenate", "axis 0", lambda xp, x, y: xp.concatenate([x, y]), X, Arg((2, 4)), **_ANALYTIC, third=True)
add("concatenate", "axis -1", lambda xp, x, y: xp.concatenate((x, y), axis=-1), X, Arg((3, 1)), **_ANALYTIC)
add("concatenate", "flattened", lambda xp, x, y: xp.concatenate([x, y], axis=None), X, VECTOR, **_ANALYTIC)
add("concatenate", "itself twice", lambda xp, x: xp.concatenate([x, x]), X, **_ANALYTIC)
add(
    "concatenate",
    "with an array",
    lambda xp, x, a: xp.concatenate([a, x, a]),
    X,
    Arg((2, 4), constant=True),
    **_ANALYTIC,
)
add("concatenate", "one", lambda xp, x: xp.concatenate([x]), X, **_ANALYTIC)
add("concatenate", "a zero-size one", lambda xp, x, y: xp.concatenate([x, y]), Arg((0, 4)), X, **_ANALYTIC)
add("concatenate", "dtype=complex", lambda xp, x, y: xp.concatenate([x, y], dtype=np.complex128), X, X, field="complex")
add(
    "concatenate",
    "out=",
    lambda xp, x, y, o: xp.concatenate([x, y], out=xp.copy(o)),
    VECTOR,
    VECTOR,
    Arg((8,)),
    **_ANALYTIC,
)
add("concatenate", "of rows", lambda xp, x: xp.concatenate(x, axis=0), CUBE, **_ANALYTIC)
add("concat", "alias", lambda xp, x, y: xp.concat([x, y], axis=1), X, X, **_ANALYTIC)
add("stack", "axis 0", lambda xp, x, y: xp.stack([x, y]), X, X, **_ANALYTIC)
add("stack", "axis -1", lambda xp, x, y: xp.stack([x, y], axis=-1), X, X, **_ANALYTIC)
add("stack", "0-d", lambda xp, x, y: xp.stack([x, y, x]), SCALAR, SCALAR, **_ANALYTIC)
add("vstack", "rows", lambda xp, x, y: xp.vstack([x, y]), VECTOR, X, **_ANALYTIC)
add("hstack", "vectors", lambda xp, x, y: xp.hstack([x, y]), VECTOR, Arg((2,)), **_ANALYTIC)
add("hstack", "matrices", lambda xp, x, y: xp.hstack([x, y]), X, Arg((3, 1)), **_ANALYTIC)
add("hstack", "0-d", lambda xp, x, y: xp.hstack([x, y]), SCALAR, SCALAR, **_ANALYTIC)
add("dstack", "matrices", lambda xp, x, y: xp.dstack([x, y]), X, X, **_ANALYTIC)
add("column_stack", "vector and matrix", lambda xp, x, y: xp.column_stack([x, y]), Arg((3,)), X, **_ANALYTIC)

# ---------------------------------------------------------------- picking

add("take", "flattened", lambda xp, x, i: xp.take(x, i), X, given([0, 5, 5, -1]), **_ANALYTIC)
add("take", "axis", lambda xp, x, i: xp.take(x, i, axis=-1), X, given([[0, 2], [2, 3]]), **_ANALYTIC)
add("take", "a number", lambda xp, x: xp.take(x, 1, axis=0), X, **_ANALYTIC)
add("take", "wrap", lambda xp, x, i: xp.take(x, i, axis=0, mode="wrap"), X, given([4, -5]), **_ANALYTIC)
add("take", "clip", lambda xp, x, i: xp.take(x, i, axis=0, mode="clip"), X, given([4, -5]), **_ANALYTIC)
add("take", "none", lambda xp, x, i: xp.take(x, i), X, given(np.zeros(0, int)), **_ANALYTIC)
add(
    "take_along_axis",
    "axis 0",
    lambda xp, x, i: xp.take_along_axis(x, i, axis=0),
    X,
    given([[0, 2, 1, 0], [0, 0, 2, 1]]),
    **_ANALYTIC,
)
add(
    "take_along_axis",
    "axis -1",
    lambda xp, x, i: xp.take_along_axis(x, i, axis=-1),
    X,
    given([[0], [3], [3]]),
    **_ANALYTIC,
)
add("take_along_axis", "flattened", lambda xp, x, i: xp.take_along_axis(x, i, axis=None), X, given([0, 7]), **_ANALYTIC)
add("take_along_axis", "by argsort", lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1), X)
method("take", "axis", X, given([2, 0]), axis=1, facts=_ANALYTIC)

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
    add("Tensor.__getitem__", _case, lambda xp, x, i=_index: x[i], _arg, **_ANALYTIC)
add("Tensor.__getitem__", "an array", lambda xp, x, i: x[i], X, given([[0, 2], [2, 2]]), **_ANALYTIC, third=True)
add("Tensor.__getitem__", "arrays", lambda xp, x, i, j: x[i, j], X, given([0, 2, 0]), given([1, 1, 1]), **_ANALYTIC)
add("Tensor.__getitem__", "a mask", lambda xp, x, m: x[m], X, MASK, **_ANALYTIC)
add("Tensor.__getitem__", "a mask of rows", lambda xp, x, m: x[m, 1:], X, ROW_MASK, **_ANALYTIC)
add("Tensor.__getitem__", "a computed mask", lambda xp, x: x[x > 0], X)
add("Tensor.__getitem__", "a computed position", lambda xp, x: x[xp.argmax(x, axis=0), 1], X)
add("Tensor.__getitem__", "the same piece twice", lambda xp, x: x[1] * x[1] + x[:, 1].sum(), X, **_ANALYTIC, third=True)


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
    add("Tensor.__setitem__", _case, lambda xp, x, v, i=_index: _put(x, i, v), _arg, _value, **_ANALYTIC)
add("Tensor.__setitem__", "a mask", lambda xp, x, v, m: _put(x, m, v), X, Arg((7,)), MASK, **_ANALYTIC)
add("Tensor.__setitem__", "a mask and a number", lambda xp, x, m: _put(x, m, 2.5), X, MASK, **_ANALYTIC)
add("Tensor.__setitem__", "a mask of rows", lambda xp, x, v, m: _put(x, m, v), X, VECTOR, ROW_MASK, **_ANALYTIC)
add(
    "Tensor.__setitem__",
    "an array",
    lambda xp, x, v, i: _put(x, i, v),
    X,
    VECTOR,
    given([2, 0]),
    **_ANALYTIC,
    third=True,
)
add("Tensor.__setitem__", "a constant", lambda xp, x, v: _put(x, 0, v), X, Arg((4,), constant=True), **_ANALYTIC)
add(
    "Tensor.__setitem__",
    "repeats: the last wins",
    lambda xp, x, v: _put(x, [0, 2, 0], v),
    X,
    Arg((3, 4)),
    **_ANALYTIC,
    repeats=True,
)
add(
    "Tensor.__setitem__",
    "repeats that broadcast",
    lambda xp, x, v: _put(x, ([[0], [0]], [1, 3]), v),
    X,
    Arg((2,)),
    **_ANALYTIC,
    repeats=True,
)
add("Tensor.__setitem__", "from itself", lambda xp, x: _put(x, slice(1, None), x[:-1] * x[0]), X, **_ANALYTIC)
add("Tensor.__setitem__", "itself", lambda xp, x: _put(x, ..., x), X, **_ANALYTIC)


def _running_product(xp: Any, x: Array) -> Array:
    y = xp.copy(x)
    for k in range(1, len(x)):
        y[k] = y[k - 1] * x[k]
    return y


add("Tensor.__setitem__", "in a loop", _running_product, VECTOR, **_ANALYTIC, third=True)

# ---------------------------------------------------------------- products

_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((2, 3), (3, 4)),
    "vectors": ((3,), (3,)),
    "vector and matrix": ((3,), (3, 2)),
    "matrix and vector": ((2, 3), (3,)),
    "inner length 0": ((2, 0), (0, 3)),
    "no rows": ((0, 3), (3, 2)),
    "inner length 1": ((2, 1), (1, 3)),
}
for _case, (_one, _other) in _PRODUCTS.items():
    _third = _case == "matrices"
    function("matmul", _case, Arg(_one), Arg(_other), facts=_ANALYTIC | {"third": _third})
    function("dot", _case, Arg(_one), Arg(_other), facts=_ANALYTIC)
for _case, (_one, _other) in {
    "stacks": ((2, 3, 4), (2, 4, 2)),
    "stack and matrix": ((2, 3, 4), (4, 2)),
    "matrix and stack": ((3, 4), (2, 4, 2)),
    "stacks that broadcast": ((2, 1, 3, 4), (3, 4, 2)),
    "stack and vector": ((2, 3, 4), (4,)),
    "vector and stack": ((4,), (2, 4, 3)),
    "empty stack": ((0, 3, 4), (4, 2)),
}.items():
    function("matmul", _case, Arg(_one), Arg(_other), facts=_ANALYTIC)
function("matmul", "array on the left", Arg((2, 3), constant=True), Arg((3, 2)), facts=_ANALYTIC)
function("matmul", "array on the right", Arg((2, 3)), Arg((3, 2), constant=True), facts=_ANALYTIC)
add("matmul", "itself twice", lambda xp, x: xp.matmul(x, x), MATRIX, **_ANALYTIC)
add("matmul", "itself and its transpose", lambda xp, x: xp.matmul(x, x.T), X, **_ANALYTIC)
add("matmul", "out=", lambda xp, x, y, o: xp.matmul(x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **_ANALYTIC)
for _case, (_one, _other) in {"0-d": ((), (3, 2)), "0-d right": ((3,), ()), "cubes": ((2, 3, 4), (3, 4, 2))}.items():
    function("dot", _case, Arg(_one), Arg(_other), facts=_ANALYTIC)
add("dot", "out=", lambda xp, x, y, o: xp.dot(x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **_ANALYTIC)
method("dot", "matrix and vector", X, VECTOR, facts=_ANALYTIC)
function("vdot", "vectors", VECTOR, VECTOR, facts={"field": "complex"})
function("vdot", "matrices", X, X, facts={"field": "complex"})
function("vecdot", "stacks", CUBE, VECTOR, facts={"field": "complex"})
function("vecdot", "axis", X, X, axis=0, facts={"field": "complex"})
function("inner", "vectors", VECTOR, VECTOR, facts=_ANALYTIC)
function("inner", "cube and matrix", CUBE, X, facts=_ANALYTIC)
function("inner", "0-d", SCALAR, X, facts=_ANALYTIC)
function("outer", "vectors", Arg((3,)), VECTOR, facts=_ANALYTIC)
function("outer", "of a matrix", MATRIX, Arg((2,)), facts=_ANALYTIC)
add("outer", "itself twice", lambda xp, x: xp.outer(x, x), VECTOR, **_ANALYTIC)
add("outer", "out=", lambda xp, x, y, o: xp.outer(x, y, out=xp.copy(o)), Arg((3,)), VECTOR, X, **_ANALYTIC)
add("tensordot", "two axes", lambda xp, x, y: xp.tensordot(x, y), CUBE, Arg((3, 4, 2)), **_ANALYTIC)
add("tensordot", "one axis", lambda xp, x, y: xp.tensordot(x, y, axes=1), CUBE, Arg((4, 2)), **_ANALYTIC)
add("tensordot", "no axes", lambda xp, x, y: xp.tensordot(x, y, axes=0), VECTOR, Arg((2, 3)), **_ANALYTIC)
add(
    "tensordot",
    "axis pairs",
    lambda xp, x, y: xp.tensordot(x, y, axes=([0, 2], [1, 0])),
    CUBE,
    Arg((4, 2)),
    **_ANALYTIC,
)
add("tensordot", "negative axes", lambda xp, x, y: xp.tensordot(x, y, axes=(-1, -2)), CUBE, Arg((4, 2)), **_ANALYTIC)

_EINSUMS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "matmul": ("ij,jk->ik", [(2, 3), (3, 4)]),
    "implicit output": ("ij,jk", [(2, 3), (3, 4)]),
    "implicit transpose": ("ba", [(2, 3)]),
    "trace": ("ii", [(3, 3)]),
    "diagonal": ("ii->i", [(3, 3)]),
    "diagonal of a stack": ("...ii->...i", [(2, 3, 3)]),
    "three times one letter": ("iii->i", [(3, 3, 3)]),
    "diagonal and another": ("iij,j->i", [(3, 3, 2), (2,)]),
    "sum over a lone letter": ("ij->j", [(2, 3)]),
    "lone letters on both": ("ij,kl->ik", [(2, 3), (4, 2)]),
    "total": ("ij->", [(2, 3)]),
    "outer": ("i,j->ij", [(2,), (3,)]),
    "three": ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    "ellipsis": ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    "ellipsis, implicit output": ("...i,i", [(2, 3), (3,)]),
    "ellipsis on one only": ("...i,i->...", [(2, 4, 3), (3,)]),
    "length 1 broadcasts": ("ij,ij->ij", [(1, 3), (2, 3)]),
    "length 1 is summed": ("ij,ij->i", [(2, 1), (2, 3)]),
    "spaces": (" i j , j -> i ", [(2, 3), (3,)]),
    "0-d operand": (",i->i", [(), (3,)]),
    "zero-size": ("ij,jk->ik", [(2, 0), (0, 3)]),
}
for _case, (_subscripts, _shapes) in _EINSUMS.items():
    add(
        "einsum",
        _case,
        lambda xp, *a, s=_subscripts: xp.einsum(s, *a),
        *map(Arg, _shapes),
        **_ANALYTIC,
        third=_case == "matmul",
    )
add(
    "einsum",
    "optimize",
    lambda xp, x, y, z: xp.einsum("ij,jk,kl->il", x, y, z, optimize=True),
    Arg((2, 3)),
    X,
    Arg((4, 2)),
    **_ANALYTIC,
)
add("einsum", "sublists", lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2], [2, 0]), Arg((2, 3)), X, **_ANALYTIC)
add(
    "einsum", "sublists, implicit output", lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2]), Arg((2, 3)), X, **_ANALYTIC
)
add("einsum", "sublists with ellipsis", lambda xp, x, y: xp.einsum(x, [..., 0], y, [0], [...]), X, VECTOR, **_ANALYTIC)
add("einsum", "itself twice", lambda xp, x: xp.einsum("i,i", x, x), VECTOR, **_ANALYTIC, third=True)
add("einsum", "with an array", lambda xp, x, a: xp.einsum("ij,j", x, a), X, Arg((4,), constant=True), **_ANALYTIC)
add("einsum", "out=", lambda xp, x, y, o: xp.einsum("ij,jk", x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **_ANALYTIC)

# ---------------------------------------------------------------- operators

_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Arg, Arg, Field]] = {
    "add": (lambda x, y: x + y, X, VECTOR, "analytic"),
    "sub": (lambda x, y: x - y, X, VECTOR, "analytic"),
    "mul": (lambda x, y: x * y, X, VECTOR, "analytic"),
    "truediv": (lambda x, y: x / y, POSITIVE, Arg((4,), 0.4, 2), "analytic"),
    "pow": (lambda x, y: x**y, POSITIVE, Arg((4,), 0.4, 2), "analytic"),
    "matmul": (lambda x, y: x @ y, X, Arg((4, 2)), "analytic"),
    "mod": (lambda x, y: x % y, POSITIVE, Arg((4,), 0.4, 2), "real"),
    "floordiv": (lambda x, y: x // y, POSITIVE, Arg((4,), 0.4, 2), "real"),
}
for _name, (_operate, _of_x, _of_y, _field) in _OPERATORS.items():
    _facts = {"field": _field}
    _fixed_x = Arg(_of_x.shape, _of_x.low, _of_x.high, constant=True)
    _fixed_y = Arg(_of_y.shape, _of_y.low, _of_y.high, constant=True)
    add(f"Tensor.__{_name}__", "tensors", lambda xp, x, y, op=_operate: op(x, y), _of_x, _of_y, **_facts)
    add(f"Tensor.__{_name}__", "tensor and array", lambda xp, x, y, op=_operate: op(x, y), _of_x, _fixed_y, **_facts)
    add(f"Tensor.__r{_name}__", "array and tensor", lambda xp, x, y, op=_operate: op(x, y), _fixed_x, _of_y, **_facts)
    if _name != "matmul":
        _numbers = {"float": 1.5, "integer": 2, "NumPy number": np.float32(1.5)}
        for _case, _number in _numbers.items():
            add(
                f"Tensor.__{_name}__",
                f"tensor and {_case}",
                lambda xp, x, op=_operate, n=_number: op(x, n),
                _of_x,
                **_facts,
            )
            add(
                f"Tensor.__r{_name}__",
                f"{_case} and tensor",
                lambda xp, y, op=_operate, n=_number: op(n, y),
                _of_y,
                **_facts,
            )
add(
    "Tensor.__rmatmul__",
    "called",
    lambda xp, x, y: y.__rmatmul__(x),
    Arg((3, 4), constant=True),
    Arg((4, 2)),
    field="analytic",
)
add("Tensor.__neg__", "matrix", lambda xp, x: -x, X, **_ANALYTIC)
add("Tensor.__pos__", "matrix", lambda xp, x: +x, X, **_ANALYTIC)
add("Tensor.__abs__", "matrix", lambda xp, x: abs(x), X, field="complex")
add("Tensor.__round__", "decimals", lambda xp, x: round(x, 1), X, reference=lambda x: np.round(x, 1))
add("Tensor.__mul__", "tensor and complex number", lambda xp, x: x * (1.0 + 2.0j), X, field="complex")
for _name in ("add", "sub", "mul", "truediv", "pow"):
    _operate = _OPERATORS[_name][0]
    add(
        f"Tensor.__r{_name}__",
        "complex number and 0-d",
        lambda xp, x, op=_operate: op(1.0 + 2.0j, x.sum()),
        VECTOR,
        field="complex",
    )
add("Tensor.__rmul__", "complex number and tensor", lambda xp, x: (1.0 + 2.0j) * x, X, field="complex")


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """y op= x as a function that leaves y alone."""

    def update(y: Array, x: Array) -> Array:
        y = y.copy()
        return getattr(y, f"__i{name}__")(x)

    return update


_UPDATES: dict[str, Field] = {
    "add": "analytic",
    "sub": "analytic",
    "mul": "analytic",
    "truediv": "analytic",
    "pow": "analytic",
    "mod": "real",
    "floordiv": "real",
}
for _name, _field in _UPDATES.items():
    _update = _in_place(_name)
    _facts = {"field": _field}
    add(f"Tensor.__i{_name}__", "same shape", lambda xp, x, y, u=_update: u(x, y), POSITIVE, POSITIVE, **_facts)
    add(f"Tensor.__i{_name}__", "broadcast", lambda xp, x, y, u=_update: u(x, y), POSITIVE, Arg((4,), 0.4, 2), **_facts)
    add(f"Tensor.__i{_name}__", "number", lambda xp, x, u=_update: u(x, 1.5), POSITIVE, **_facts)
    add(f"Tensor.__i{_name}__", "itself", lambda xp, x, u=_update: u(x, x), POSITIVE, **_facts)
    add(
        f"Tensor.__i{_name}__",
        "array",
        lambda xp, x, y, u=_update: u(x, y),
        POSITIVE,
        Arg((3, 1), 0.4, 2, constant=True),
        **_facts,
    )
add("Tensor.__imatmul__", "same shape", lambda xp, x, y: _in_place("matmul")(x, y), MATRIX, MATRIX, **_ANALYTIC)

# ---------------------------------------------------------------- methods and properties not met above

add("Tensor.real", "matrix", lambda xp, x: x.real, X, field="complex")
add("Tensor.imag", "matrix", lambda xp, x: x.imag, X, field="complex")
add("Tensor.conj", "matrix", lambda xp, x: x.conj(), X, field="complex")
add("Tensor.conjugate", "matrix", lambda xp, x: x.conjugate(), X, field="complex")
add("Tensor.clip", "both", lambda xp, x: x.clip(-1.0, 1.0), X)
add("Tensor.clip", "max=", lambda xp, x: x.clip(max=0.5), X)
add("Tensor.round", "decimals", lambda xp, x: x.round(1), X)
add("Tensor.clone", "matrix", lambda xp, x: x.clone(), X, reference=lambda x: x.copy(), **_ANALYTIC)
add("Tensor.to", "where it is", lambda xp, x: x.to(x.device), X, reference=lambda x: x, **_ANALYTIC)
add("Tensor.astype", "to complex", lambda xp, x: x.astype(np.complex128) * 1j, X, field="complex")
add("Tensor.astype", "to the same", lambda xp, x: x.astype(x.dtype), X, **_ANALYTIC)
add("astype", "to complex", lambda xp, x: xp.astype(x, np.complex128) * x, X, field="complex")
add("astype", "without a copy", lambda xp, x: xp.astype(x, x.dtype, copy=False) * 2, X, **_ANALYTIC)

# ---------------------------------------------------------------- creation from tensors; NumPy dispatches few of these

add(
    "full",
    "of a tensor",
    lambda xp, v: xp.full((2, 3), v),
    SCALAR,
    reference=lambda v: np.full((2, 3), v),
    dispatches=False,
    **_ANALYTIC,
)
add(
    "full",
    "of a row",
    lambda xp, v: xp.full((3, 4), v),
    VECTOR,
    reference=lambda v: np.broadcast_to(v, (3, 4)).copy(),
    dispatches=False,
    **_ANALYTIC,
)
add(
    "full_like",
    "of a tensor",
    lambda xp, x, v: xp.full_like(x, v),
    Arg(constant=True),
    SCALAR,
    field="complex",
    dispatches=False,
)
add("linspace", "between numbers", lambda xp, x, y: xp.linspace(x, y, 5), SCALAR, SCALAR, **_ANALYTIC)
add("linspace", "between vectors", lambda xp, x, y: xp.linspace(x, y, 4, endpoint=False), VECTOR, VECTOR, **_ANALYTIC)
add("linspace", "the step, too", lambda xp, x: xp.linspace(x, 3.0, 5, retstep=True), SCALAR, **_ANALYTIC)
add("linspace", "one point", lambda xp, x, y: xp.linspace(x, y, 1), SCALAR, SCALAR, **_ANALYTIC)
add("array", "of a tensor", lambda xp, x: xp.array(x) * 2, X, dispatches=False, **_ANALYTIC)
add("array", "of a list", lambda xp, x, y: xp.array([x, y, x]), X, X, dispatches=False, **_ANALYTIC)
add(
    "array",
    "of nested lists",
    lambda xp, x, y: xp.array([[x, 1.0], [y, x]]),
    SCALAR,
    SCALAR,
    dispatches=False,
    **_ANALYTIC,
)
add("array", "ndmin=", lambda xp, x: xp.array(x, ndmin=3), VECTOR, dispatches=False, **_ANALYTIC)
add("asarray", "of a tensor", lambda xp, x: xp.asarray(x) * 2, X, dispatches=False, **_ANALYTIC)
add("asarray", "dtype=", lambda xp, x: xp.asarray(x, dtype=np.complex128), X, dispatches=False, field="complex")

# ---------------------------------------------------------------- ops that only the engine calls


def _recurrence(b: Array, a: Array) -> Array:
    out = b.astype(np.result_type(a, b))
    for k in range(1, out.shape[-1]):
        out[..., k] += a[..., k] * out[..., k - 1]
    return out


def _scattered(x: Array) -> Array:
    out = np.zeros((3, 4), x.dtype)
    np.add.at(out, ([0, 2, 0], slice(1, None)), x)
    return out


def engine(
    name: str, call: Callable[..., Any], reference: Callable[..., Any], *args: Arg, field: Field = "analytic"
) -> None:
    """Enter an op that has no public name of its own."""
    add(f"engine.{name}", "as called", call, *args, reference=reference, dispatches=False, third=True, field=field)


engine("sum_to", lambda xp, x: sum_to(x, (3, 1)), lambda x: x.sum(axis=(0, 2))[:, None], CUBE)
engine("broadcast_to", lambda xp, x: broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), Arg((3, 1)))
engine("astype", lambda xp, x: cast(x, np.dtype(np.complex128)), lambda x: x.astype(np.complex128), X, field="complex")
engine("scatter", lambda xp, x: scatter(x, (3, 4), (np.array([0, 2, 0]), slice(1, None))), _scattered, Arg((3, 3)))
engine("to", lambda xp, x: _to(x, x.device, x.device), lambda x: x, X)
engine("linear_recurrence", lambda xp, b, a: _recur(b, a, 1), _recurrence, X, X)

# ---------------------------------------------------------------- functions whose results carry no gradient

# name -> calls on two real matrices; the result must be NumPy's and unknown to every manager.
CONSTANTS: dict[str, list[Callable[..., Any]]] = {
    name: [lambda xp, x, y, n=name: getattr(xp, n)(x, y), lambda xp, x, y, n=name: getattr(xp, n)(x, 0.5)]
    for name in (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isclose"),
        *("logical_and", "logical_or", "logical_xor", "allclose", "array_equal"),
    )
}
CONSTANTS |= {
    name: [lambda xp, x, y, n=name: getattr(xp, n)(x)]
    for name in (
        *("logical_not", "isnan", "isinf", "isfinite", "signbit", "iscomplexobj", "isrealobj"),
        *("argwhere", "flatnonzero", "nonzero", "shape", "ndim", "zeros_like", "ones_like"),
    )
}
CONSTANTS |= {
    name: [
        lambda xp, x, y, n=name: getattr(xp, n)(x),
        lambda xp, x, y, n=name: getattr(xp, n)(x, axis=0),
        lambda xp, x, y, n=name: getattr(xp, n)(x, axis=-1, keepdims=True),
    ]
    for name in ("all", "any", "argmax", "argmin", "count_nonzero")
}
CONSTANTS |= {
    name: [lambda xp, x, y, n=name: getattr(xp, n)(x > 0, y > 0)]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
}
CONSTANTS |= {name: [lambda xp, x, y, n=name: getattr(xp, n)(x > 0, 2)] for name in ("left_shift", "right_shift")}
CONSTANTS |= {
    "result_type": [lambda xp, x, y: xp.zeros(2, xp.result_type(x, y, "float32"))],
    "invert": [lambda xp, x, y: xp.invert(x > 0)],
    "argsort": [lambda xp, x, y: xp.argsort(x), lambda xp, x, y: xp.argsort(x, axis=0, kind="stable")],
    "bincount": [lambda xp, x, y: xp.bincount(xp.argmax(x, axis=0), minlength=5)],
    "searchsorted": [lambda xp, x, y: xp.searchsorted(xp.ravel(x), y), lambda xp, x, y: xp.searchsorted(x[0], 0.5)],
    "size": [lambda xp, x, y: xp.size(x), lambda xp, x, y: xp.size(x, 0)],
    "empty_like": [lambda xp, x, y: xp.empty_like(x).shape],
}
# Creation functions: name -> calls; gradmgr.numpy's give Tensors of NumPy's values.
CREATION: dict[str, list[Callable[..., Any]]] = {
    "zeros": [lambda xp: xp.zeros((2, 3)), lambda xp: xp.zeros(3, dtype="float32")],
    "ones": [lambda xp: xp.ones((2, 3)), lambda xp: xp.ones((), dtype=np.complex64)],
    "empty": [lambda xp: xp.empty((2, 3)) * 0 == 1],
    "full": [lambda xp: xp.full((2, 3), 1.5), lambda xp: xp.full(2, 1, dtype="float32")],
    "full_like": [lambda xp: xp.full_like(np.ones(3, np.float32), 2)],
    "arange": [lambda xp: xp.arange(5), lambda xp: xp.arange(1, 4, 0.5), lambda xp: xp.arange(3, dtype="float32")],
    "linspace": [lambda xp: xp.linspace(0, 1, 5), lambda xp: xp.linspace(0, 1, 5, endpoint=False)],
    "eye": [lambda xp: xp.eye(3), lambda xp: xp.eye(2, 3, k=1, dtype="float32")],
    "identity": [lambda xp: xp.identity(3), lambda xp: xp.identity(2, dtype="float32")],
    "array": [lambda xp: xp.array([[1, 2], [3, 4]]), lambda xp: xp.array(1.5, ndmin=2)],
    "asarray": [lambda xp: xp.asarray([1.0, 2.0]), lambda xp: xp.asarray([1, 2], dtype="float32")],
}

# ---------------------------------------------------------------- running samples


def flat(result: Any) -> list[Any]:
    """All results of a call: it may return one, or a list or tuple of them."""
    return [part for one in result for part in flat(one)] if isinstance(result, (list, tuple)) else [result]


def tensors(sample: Sample, arrays: list[Array]) -> list[Any]:
    """The arguments with those that are differentiated as Tensors, which share the arrays."""
    return [a if arg.constant else asarray(a) for arg, a in zip(sample.args, arrays, strict=True)]


def seeds(outs: list[Any]) -> list[np.ndarray]:
    """A cotangent for each result, on the host."""
    random = np.random.default_rng(5)
    made = []
    for y in outs:
        values = np.asarray(random.uniform(0.5, 1.5, y.shape))
        values = values + 1j * random.uniform(-1, 1, y.shape) if y.dtype.kind == "c" else values
        made.append(values.astype(y.dtype))
    return made


def gradients(sample: Sample, arrays: list[Array]) -> list[Any]:
    """What one manager gives to each argument that is differentiated: arrays, zeros where it gives none."""
    points = tensors(sample, arrays)
    attached = [points[k] for k in sample.where]
    manager = GradManager().attach(attached)
    with manager:
        outs = [y for y in flat(sample.call(gnp, *points)) if knows(manager, y)]
        dys = [to_device(u, y.device) for u, y in zip(seeds(outs), outs, strict=True)]
        manager.backward(outs, dys)
    return [taken(t) for t in attached]


def knows(manager: GradManager, y: Tensor) -> bool:
    """Whether a manager recorded how y came about; some results of some samples are constants."""
    return manager._tape.known(y) is not None


def taken(t: Tensor) -> Any:
    """The array in `.grad`, zeros for None; `.grad` is None afterwards."""
    g, t.grad = t.grad, None
    return gnp.zeros_like(t)._array if g is None else g._array
