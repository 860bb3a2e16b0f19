"""The Python Array API standard (2024.12): its reference namespace and ours compute the same, recording too.

`array_api_strict` is the reference: it has the standard's names, signatures and dtypes and nothing else. Which dtypes
a function takes is read from it; each call it takes must give the same values, dtypes and shapes here.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor

strict = pytest.importorskip("array_api_strict", reason="the reference of the standard is a test dependency")
strict.set_array_api_strict_flags(api_version="2024.12")

DTYPES = ("float64", "float32", "int64", "int8", "uint8", "bool", "complex128", "complex64")
TOLERANCE = {"float32": 2e-5, "complex64": 2e-5}

# ---------------------------------------------------------------- presence and signatures

# What array_api_strict adds to the standard to steer itself.
ITS_OWN = {
    *("Device", "ArrayAPIStrictFlags", "get_array_api_strict_flags", "reset_array_api_strict_flags"),
    *("set_array_api_strict_flags", "__array_api_version__", "__array_namespace_info__"),
    *("__version__", "broadcast_shapes", "isin"),  # the last two are of 2025.12
}


def standard_functions() -> list[Any]:
    found = []
    for prefix, module in (("", strict), ("linalg.", strict.linalg), ("fft.", strict.fft)):
        names = [name for name in module.__all__ if name not in ITS_OWN]
        found += [prefix + name for name in names if inspect.isfunction(getattr(module, name))]
    return found


FUNCTIONS = standard_functions()


def standard_methods() -> list[str]:
    from array_api_strict._array_object import Array

    names = [name for name, member in vars(Array).items() if inspect.isfunction(member) and name != "__init__"]
    dunder = [name for name in names if name.startswith("__") and name.endswith("__")]
    return [name for name in (*dunder, "to_device") if name not in ("__buffer__", "__array__", "__hash__")]


def find(namespace: Any, name: str) -> Any:
    return operator.attrgetter(name)(namespace)


def test_the_constants_and_dtypes_of_the_standard_are_there() -> None:
    for name in strict.__all__:
        if name not in ITS_OWN:
            assert hasattr(gnp, name), name
    for name in ("e", "inf", "nan", "pi"):
        np.testing.assert_equal(getattr(gnp, name), getattr(strict, name))
        assert isinstance(getattr(gnp, name), float)
    assert gnp.newaxis is None
    assert set(strict.__all__) <= set(dir(gnp)) | ITS_OWN


def test_every_function_of_the_standard_is_there() -> None:
    lacking = []
    for name in FUNCTIONS:
        try:
            find(gnp, name)
        except AttributeError:
            lacking.append(name)
    assert not lacking, f"functions of the standard that gradmgr.numpy lacks: {lacking}"


def by_name(parameters: Any) -> dict[str, Any]:
    return {p.name: object() for p in parameters}


def accepts(ours: Any, standards: inspect.Signature) -> list[str]:
    """What of a signature of the standard `ours` does not accept, in words."""
    try:
        signature = inspect.signature(ours)
    except ValueError:  # NumPy before 2.4 shows no signatures of its ufuncs
        return []
    found = []
    by_place, either, by_keyword, rest = [], [], [], []
    places = {
        inspect.Parameter.POSITIONAL_ONLY: by_place,
        inspect.Parameter.POSITIONAL_OR_KEYWORD: either,
        inspect.Parameter.KEYWORD_ONLY: by_keyword,
    }
    for parameter in standards.parameters.values():
        places.get(parameter.kind, rest).append(parameter)
    positional = [object() for _ in by_place]
    calls = {
        "by position": ([*positional, *(object() for _ in either)], by_name(by_keyword)),
        "by keyword": (positional, by_name([*either, *by_keyword])),
        "without what has a default": (positional, by_name([p for p in either if p.default is p.empty])),
    }
    for how, (args, keywords) in calls.items():
        try:
            signature.bind(*args, **keywords)
        except TypeError as error:
            found.append(f"{how}: {error}")
    # Where *args and **keywords take everything, the names must be shown nevertheless, for callers that inspect them.
    names = list(signature.parameters)
    found += [
        f"argument {place} is not {parameter.name!r}"
        for place, parameter in enumerate(either, start=len(by_place))
        if names[place : place + 1] != [parameter.name]
    ]
    found += [f"no argument is called {parameter.name!r}" for parameter in by_keyword if parameter.name not in names]
    return found


def test_signatures_that_do_not_conform_are_found() -> None:
    def standards(x: Any, /, axis: Any, *, keepdims: Any = False) -> None: ...

    wanted = inspect.signature(standards)
    assert accepts(lambda x, axis, out=None, keepdims=None: None, wanted) == []
    for wrong in (
        lambda x, axis: None,
        lambda x, dim, keepdims=False: None,
        lambda x, *, axis, keepdims=False: None,
        lambda x, axis, /, keepdims=False: None,
        lambda x, out, axis, keepdims=False: None,
        lambda x, axis, dtype, keepdims=False: None,
        lambda *args, **keywords: None,
    ):
        assert accepts(wrong, wanted), inspect.signature(wrong)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_accepts_what_the_standard_demands(name: str) -> None:
    assert accepts(find(gnp, name), inspect.signature(find(strict, name))) == []


@pytest.mark.parametrize("name", standard_methods())
def test_each_method_accepts_what_the_standard_demands(name: str) -> None:
    assert accepts(getattr(tensor(1.0), name), inspect.signature(getattr(strict.asarray(1.0), name))) == []


# ---------------------------------------------------------------- values, dtypes, shapes


def values(dtype: str, shape: tuple[int, ...], seed: int = 0, low: float = 0.2, high: float = 0.9) -> np.ndarray:
    """Distinct values in (low, high), or small positive integers."""
    random = np.random.default_rng([seed, *shape])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return random.integers(1, 7, shape).astype(dtype)
    real = random.uniform(low, high, shape)
    return (real + 1j * random.uniform(low, high, shape)).astype(dtype) if kind == "c" else real.astype(dtype)


def made(xp: Any, dtype: str, shapes: tuple[Any, ...]) -> list[Any]:
    arrays = [values(dtype, shape, seed) for seed, shape in enumerate(shapes) if shape is not None]
    return [xp.asarray(a) for a in arrays]


# How array_api_strict refuses a dtype: a complex number cast to a real one warns, which is an error in these tests.
REFUSALS = (TypeError, ValueError, AttributeError, OverflowError, np.exceptions.ComplexWarning)


def is_defined(call: Any, shapes: Any, dtype: str) -> bool:
    """Whether the standard defines this call for a dtype."""
    with np.errstate(all="ignore"):
        try:
            call(strict, *made(strict, dtype, shapes))
        except REFUSALS:
            return False
    return True


X, Y, ROW, CUBE, VECTOR, SQUARE, ONE = (3, 4), (3, 4), (4,), (2, 3, 4), (5,), (3, 3), ()

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]
CASES: list[Case] = []


def case(name: str, call: Callable[..., Any], *shapes: Any) -> None:
    CASES.append((name, call, shapes or (X,)))


def with_number(name: str, call: Callable[..., Any]) -> None:
    """A call with a Python number, where the standard takes its kind."""
    if any(is_defined(call, (X,), dtype) for dtype in DTYPES):
        case(name, call)


def call(name: str, *shapes: Any, **keywords: Any) -> None:
    """xp.name(arrays..., **keywords)."""
    asked = ", ".join(f"{k}={v}" for k, v in keywords.items())
    case(f"{name}({asked})", lambda xp, *arrays: find(xp, name)(*arrays, **keywords), *shapes)


UNARY = [
    *("abs", "acos", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos", "cosh", "exp", "expm1"),
    *("floor", "imag", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10", "logical_not", "negative"),
    *("positive", "real", "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
    "trunc",
]
BINARY = [
    *("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal"),
    *("logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter"),
    *("not_equal", "pow", "remainder", "subtract"),
]
for name in UNARY:
    call(name, X)
    call(name, ONE)
case("acosh", lambda xp, x: xp.acosh(x + xp.ones_like(x)))
for name in BINARY:
    call(name, X, Y)
    call(name, X, ROW)
    call(name, ONE, (0, 3))
    function = find(strict, name)
    for number in (1, 1.5, 1j, True):
        with_number(f"{name}(x, {number})", lambda xp, x, name=name, n=number: find(xp, name)(x, n))
        with_number(f"{name}({number}, x)", lambda xp, x, name=name, n=number: find(xp, name)(n, x))
case("atan2 of signs", lambda xp, x, y: xp.atan2(-x, -y), X, Y)
case("clip", lambda xp, x: xp.clip(x))
case("clip(min)", lambda xp, x: xp.clip(x, min=1))
case("clip(max)", lambda xp, x: xp.clip(x, max=0.5))
case("clip(min, max)", lambda xp, x: xp.clip(x, 1, 3))
case("clip by arrays", lambda xp, x, low: xp.clip(x, low, low + xp.ones_like(low)), X, ROW)

OPERATORS = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    **{name: getattr(operator, name) for name in ("and_", "or_", "xor", "lshift", "rshift")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
for name, op in OPERATORS.items():
    case(f"x {name} y", lambda xp, x, y, op=op: op(x, y), X, ROW)
    for number in (2, 0.5, True, 2j):
        with_number(f"x {name} {number}", lambda xp, x, op=op, n=number: op(x, n))
        with_number(f"{number} {name} x", lambda xp, x, op=op, n=number: op(n, x))


def in_place(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda xp, x, y: op(op(xp.asarray(x, copy=True), y), 1)


for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift"):
    case(f"x {name} y", in_place(getattr(operator, name)), X, ROW)
for op in (operator.neg, operator.pos, operator.invert, abs):
    case(f"{op.__name__} x", lambda xp, x, op=op: op(x))
case("x @ y", lambda xp, x, y: x @ y, X, (4, 2))
case("v @ v", lambda xp, x, y: x @ y, ROW, ROW)
case("in place @", lambda xp, x, y: operator.imatmul(xp.asarray(x, copy=True), y), X, (4, 4))
for convert in (bool, int, float, complex):
    case(f"{convert.__name__}(x)", lambda xp, x, f=convert: f(x), ONE)

# creation
case("arange(3)", lambda xp: xp.arange(3), None)
case("arange(3.)", lambda xp: xp.arange(3.0), None)
case("arange(1, 9, 2)", lambda xp: xp.arange(1, 9, 2), None)
case("arange(start, stop=, step=)", lambda xp: xp.arange(4, stop=1, step=-1, dtype=xp.float32), None)
case("asarray(list)", lambda xp: xp.asarray([[1, 2], [3, 4]]), None)
case("asarray(float)", lambda xp: xp.asarray(1.5), None)
case("asarray(complex)", lambda xp: xp.asarray([1, 2j]), None)
case("asarray(bool)", lambda xp: xp.asarray([True, False]), None)
case("asarray(dtype)", lambda xp, x: xp.asarray([[1, 0]], dtype=x.dtype))
case("asarray(x)", lambda xp, x: xp.asarray(x))
case("asarray(copy)", lambda xp, x: xp.asarray(x, copy=True))
case("asarray(copy=False)", lambda xp, x: xp.asarray(x, copy=False))
case("asarray(device)", lambda xp, x: xp.asarray(x, device=x.device))
for name in ("ones", "zeros"):
    case(f"{name}(int)", lambda xp, name=name: find(xp, name)(3), None)
    case(f"{name}(shape)", lambda xp, name=name: find(xp, name)((2, 3), dtype=None, device=None), None)
    case(f"{name}(dtype)", lambda xp, x, name=name: find(xp, name)((2, 0), dtype=x.dtype))
    case(f"{name}_like", lambda xp, x, name=name: find(xp, f"{name}_like")(x))
    case(f"{name}_like(dtype)", lambda xp, x, name=name: find(xp, f"{name}_like")(x, dtype=xp.int8, device=x.device))
case("empty", lambda xp, x: xp.empty((2, 3), dtype=x.dtype) * xp.zeros((2, 3), dtype=x.dtype))
case("empty_like", lambda xp, x: xp.isfinite(xp.empty_like(x, dtype=xp.int32)))
for number in (1, 1.5, 1j, True):
    case(f"full({number})", lambda xp, n=number: xp.full((2, 2), n), None)
    case(f"full_like({number})", lambda xp, x, n=number: xp.full_like(x, n))
case("full(dtype)", lambda xp, x: xp.full(3, 1, dtype=x.dtype))
case("eye", lambda xp: xp.eye(3), None)
case("eye(k)", lambda xp, x: xp.eye(2, 4, k=1, dtype=x.dtype))
case("eye(-k)", lambda xp, x: xp.eye(4, None, k=-2, dtype=x.dtype))
case("linspace", lambda xp: xp.linspace(0, 1, 5), None)
case("linspace(num=)", lambda xp: xp.linspace(0.0, 2.0, num=4, dtype=xp.float32, endpoint=False), None)
case("linspace complex", lambda xp: xp.linspace(0, 1j, 3), None)
for indexing in ("xy", "ij"):
    call("meshgrid", ROW, VECTOR, indexing=indexing)
call("meshgrid", ROW)
call("meshgrid", ROW, VECTOR, (2,))
for name in ("tril", "triu"):
    call(name, X)
    call(name, CUBE, k=1)
    call(name, CUBE, k=-1)

# dtypes
for dtype in ("float32", "float64", "complex128", "int32", "bool"):
    case(f"astype({dtype})", lambda xp, x, d=dtype: xp.astype(x, getattr(xp, d)))
case("astype(copy=False)", lambda xp, x: xp.astype(x, x.dtype, copy=False))
case("astype(device=)", lambda xp, x: xp.astype(x, x.dtype, copy=True, device=x.device))
case("broadcast_arrays", lambda xp, x, y: xp.broadcast_arrays(x, y), X, ROW)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, shape=(2, 3, 4)), X)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (0, 4)), ROW)
case("result_type", lambda xp, x: xp.result_type(x, xp.int8))
case("result_type of numbers", lambda xp, x: xp.result_type(x, 1))
case("result_type of arrays", lambda xp, x, y: xp.result_type(x, y), X, ROW)
case("can_cast", lambda xp, x: xp.can_cast(x, x.dtype))
for fact in ("bits", "eps", "max", "min", "smallest_normal", "dtype"):
    case(f"finfo.{fact}", lambda xp, x, f=fact: getattr(xp.finfo(x), f))
    case(f"finfo of dtype.{fact}", lambda xp, x, f=fact: getattr(xp.finfo(x.dtype), f))
for fact in ("bits", "max", "min", "dtype"):
    case(f"iinfo.{fact}", lambda xp, x, f=fact: getattr(xp.iinfo(x), f))
    case(f"iinfo of dtype.{fact}", lambda xp, x, f=fact: getattr(xp.iinfo(x.dtype), f))
for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric"):
    case(f"isdtype({kind})", lambda xp, x, k=kind: xp.isdtype(x.dtype, k))
case("isdtype(several)", lambda xp, x: xp.isdtype(x.dtype, ("bool", "integral", xp.float32)))
case("isdtype(dtype)", lambda xp, x: xp.isdtype(x.dtype, x.dtype))

# indexing
case("take", lambda xp, x: xp.take(x, xp.asarray([2, 0, 0]), axis=0))
case("take(axis=-1)", lambda xp, x: xp.take(x, xp.asarray([3, 1, -1]), axis=-1))
case("take of a vector", lambda xp, x: xp.take(x, xp.asarray([1])), VECTOR)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[1, 0], [2, 3], [0, 0]])))
case("take_along_axis(axis)", lambda xp, x: xp.take_along_axis(x, xp.asarray([[2, 0, 1, 1]]), axis=0))
INDICES: dict[str, Any] = {
    "0, ...": (0, ...),
    "1, 2": (1, 2),
    "1:, :": (slice(1, None), slice(None)),
    "::-1, -1": (slice(None, None, -1), -1),
    "..., 0": (..., 0),
    "None, ..., ::2": (None, ..., slice(None, None, 2)),
    "...": ...,
    "3:3, 1:9": (slice(3, 3), slice(1, 4)),
}


def write(index: Any) -> Callable[..., Any]:
    def run(xp: Any, x: Any) -> Any:
        z = xp.asarray(x, copy=True)
        z[index] = xp.zeros_like(z[index])
        return z

    return run


for name, index in INDICES.items():
    case(f"x[{name}]", lambda xp, x, i=index: x[i])
    if None not in (index if isinstance(index, tuple) else ()):
        case(f"x[{name}] = zeros", write(index))
case("x[array]", lambda xp, x: x[xp.asarray([1, 0, 1]), xp.asarray([0, 0, 3])])
case("x[mask]", lambda xp, x: x[xp.asarray([[True, False, True, True]] * 3)])
case("x[mask of all axes]", lambda xp, x: x[x == x])


def masked(xp: Any, x: Any, y: Any) -> Any:
    z = xp.asarray(x, copy=True)
    z[xp.asarray([[True, False, True, True], [False] * 4, [True] * 4])] = y
    return z


case("x[mask] = y", masked, X, ONE)
case("x[mask] = 1", lambda xp, x, y: masked(xp, x, 1), X, ONE)


def filled(xp: Any, x: Any, y: Any) -> Any:
    z = xp.asarray(x, copy=True)
    z[1, ...] = y
    z[:, 0] = 1
    z[..., -1] = y[-1]
    return z


case("x[i] = y", filled, X, ROW)

# linear algebra, sets, searching, sorting, statistics
call("matmul", X, (4, 2))
call("matmul", CUBE, (4, 3))
call("matmul", ROW, (4, 2))
call("matrix_transpose", CUBE)
case("mT", lambda xp, x: x.mT, CUBE)
case("T", lambda xp, x: x.T)
call("tensordot", CUBE, (3, 4, 2), axes=2)
call("tensordot", CUBE, (3, 2), axes=((1,), (0,)))
call("tensordot", X, (2,), axes=0)
call("vecdot", CUBE, ROW)
call("vecdot", CUBE, (3, 1), axis=-2)
for axis in (0, -1, None):
    case(f"concat(axis={axis})", lambda xp, x, y, a=axis: xp.concat([x, y], axis=a), X, Y)
case("concat of dtypes", lambda xp, x: xp.concat((x, xp.ones((1, 4), dtype=xp.float32)), axis=0))
case("stack", lambda xp, x, y: xp.stack([x, y]), X, Y)
case("stack(axis)", lambda xp, x, y: xp.stack((x, y), axis=-1), X, Y)
call("unstack", CUBE)
call("unstack", CUBE, axis=-1)
call("expand_dims", X, axis=0)
call("expand_dims", X, axis=-1)
call("flip", X)
call("flip", CUBE, axis=-1)
call("flip", CUBE, axis=(0, 1))
case("moveaxis", lambda xp, x: xp.moveaxis(x, 0, -1), CUBE)
case("moveaxis of several", lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)), CUBE)
call("permute_dims", CUBE, axes=(2, 0, 1))
case("repeat", lambda xp, x: xp.repeat(x, 2))
case("repeat(axis)", lambda xp, x: xp.repeat(x, 2, axis=1))
case("repeat by an array", lambda xp, x: xp.repeat(x, xp.asarray([1, 0, 2]), axis=0))
case("repeat by an array, flat", lambda xp, x: xp.repeat(x, xp.asarray([1, 0, 2, 0, 1])), VECTOR)
case("reshape", lambda xp, x: xp.reshape(x, (2, -1)))
case("reshape(copy=True)", lambda xp, x: xp.reshape(x, (4, 3), copy=True))
case("reshape(copy=False)", lambda xp, x: xp.reshape(x, shape=(4, 3), copy=False))
case("roll", lambda xp, x: xp.roll(x, 5))
case("roll(axis)", lambda xp, x: xp.roll(x, shift=-1, axis=1))
case("roll of several", lambda xp, x: xp.roll(x, (1, -2), axis=(0, 1)))
call("squeeze", (3, 1, 4), axis=1)
call("squeeze", (1, 3, 1), axis=(0, 2))
case("tile", lambda xp, x: xp.tile(x, (2, 1)))
case("tile, longer", lambda xp, x: xp.tile(x, (2, 1, 3)), X)
case("tile, shorter", lambda xp, x: xp.tile(x, (2,)), X)
for name in ("argmax", "argmin"):
    for keywords in ({}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"keepdims": True}):
        call(name, X, **keywords)
call("count_nonzero", X)
call("count_nonzero", CUBE, axis=(0, 2), keepdims=True)
call("count_nonzero", CUBE, axis=1)
call("nonzero", X)
case("nonzero of a mask", lambda xp, x: xp.nonzero(x > xp.asarray(0.5, dtype=x.dtype)))
case("where", lambda xp, x, y: xp.where(xp.asarray([True, False, True, False]), x, y), X, Y)
case("where of a number", lambda xp, x: xp.where(xp.asarray([True, False, True, False]), x, 1))
case("where of numbers first", lambda xp, x: xp.where(xp.asarray([True, False, True, False]), 0, x))
for side in ("left", "right"):
    case(f"searchsorted({side})", lambda xp, x, y, s=side: xp.searchsorted(xp.sort(x), y, side=s), VECTOR, X)
case("searchsorted(sorter)", lambda xp, x, y: xp.searchsorted(x, y, sorter=xp.argsort(x)), VECTOR, X)
for name in ("sort", "argsort"):
    for keywords in ({}, {"axis": 0}, {"descending": True}, {"axis": 1, "descending": True, "stable": True}):
        call(name, X, **keywords)
    call(name, X, axis=-1, descending=False, stable=True)
    call(name, (17,))
    call(name, (40,), descending=True)
case("sort, unstable", lambda xp, x: xp.sort(x, stable=False))
case("unique_all", lambda xp, x: xp.unique_all(x)[2:])
call("unique_counts", X)
case("unique_inverse", lambda xp, x: xp.unique_inverse(x))
call("unique_values", X)
case("unique fields", lambda xp, x: [xp.unique_all(x).indices.shape, xp.unique_counts(x).counts], X)
for name in ("cumulative_sum", "cumulative_prod"):
    call(name, VECTOR)
    call(name, X, axis=1)
    call(name, X, axis=-2, include_initial=True)
    case(f"{name}(dtype)", lambda xp, x, name=name: find(xp, name)(x, axis=0, dtype=xp.float32))
for name in ("max", "min", "mean", "prod", "std", "sum", "var", "all", "any"):
    for keywords in ({}, {"axis": 0}, {"axis": (0, -1), "keepdims": True}, {"axis": None, "keepdims": False}):
        call(name, CUBE, **keywords)
    call(name, ONE)
for name in ("sum", "prod"):
    for dtype in ("float32", "float64", "int64", "complex128"):
        case(f"{name}(dtype={dtype})", lambda xp, x, n=name, d=dtype: find(xp, n)(x, axis=1, dtype=getattr(xp, d)))
    case(f"{name}(dtype=None)", lambda xp, x, n=name: find(xp, n)(x, dtype=None))
    call(name, (0, 3), axis=0)
for name in ("std", "var"):
    call(name, X, correction=1.0)
    call(name, X, axis=0, correction=0.0)
    call(name, X, axis=1, correction=1.5, keepdims=True)
for name in ("all", "any"):
    call(name, (0, 3), axis=0)
call("diff", X)
call("diff", X, axis=0, n=2)
case("diff(prepend, append)", lambda xp, x, y: xp.diff(x, axis=0, prepend=y, append=y), X, (1, 4))

# linalg


def positive(xp: Any, x: Any) -> Any:
    """A Hermitian positive definite matrix from any."""
    adjoint = xp.conj(xp.matrix_transpose(x)) if xp.isdtype(x.dtype, "complex floating") else xp.matrix_transpose(x)
    return x @ adjoint + 2 * xp.eye(x.shape[-1], dtype=x.dtype)


BATCH = (2, 3, 3)
case("linalg.cholesky", lambda xp, x: xp.linalg.cholesky(positive(xp, x)), BATCH)
case("linalg.cholesky(upper)", lambda xp, x: xp.linalg.cholesky(positive(xp, x), upper=True), BATCH)
call("linalg.cross", (4, 3), (4, 3))
call("linalg.cross", (3, 4), (3, 4), axis=-2)
call("linalg.cross", (4, 3), (3,))
for name in ("det", "inv", "slogdet"):
    case(f"linalg.{name}", lambda xp, x, name=name: find(xp.linalg, name)(positive(xp, x)), BATCH)
call("linalg.diagonal", CUBE)
call("linalg.diagonal", CUBE, offset=1)
call("linalg.diagonal", CUBE, offset=-1)
case("linalg.eigvalsh", lambda xp, x: xp.linalg.eigvalsh(positive(xp, x)), BATCH)


def rebuilt_eigh(xp: Any, x: Any) -> Any:
    w, v = found = xp.linalg.eigh(positive(xp, x))
    adjoint = xp.conj(xp.matrix_transpose(v)) if xp.isdtype(v.dtype, "complex floating") else xp.matrix_transpose(v)
    return (
        w,
        (v * xp.expand_dims(xp.astype(w, v.dtype), axis=-2)) @ adjoint,
        found.eigenvalues,
        found.eigenvectors.shape,
    )


def rebuilt_svd(xp: Any, x: Any, full: bool) -> Any:
    found = xp.linalg.svd(x, full_matrices=full)
    u, s, vh = found
    k = s.shape[-1]
    again = (u[..., :k] * xp.expand_dims(xp.astype(s, u.dtype), axis=-2)) @ vh[..., :k, :]
    return s, again, found.U.shape, found.S, found.Vh.shape


def rebuilt_qr(xp: Any, x: Any, mode: str) -> Any:
    found = xp.linalg.qr(x, mode=mode)
    return found.Q @ found.R, found.Q.shape, found.R.shape


case("linalg.eigh", rebuilt_eigh, BATCH)
for full in (True, False):
    case(f"linalg.svd(full_matrices={full})", lambda xp, x, f=full: rebuilt_svd(xp, x, f), CUBE)
for mode in ("reduced", "complete"):
    case(f"linalg.qr({mode})", lambda xp, x, m=mode: rebuilt_qr(xp, x, m), (2, 4, 3))
case("linalg.qr", lambda xp, x: [part.shape for part in xp.linalg.qr(x)], (4, 3))
case("slogdet's names", lambda xp, x: [xp.linalg.slogdet(x).sign, xp.linalg.slogdet(x).logabsdet], SQUARE)
call("linalg.matmul", X, (4, 2))
for ord in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")):
    call("linalg.matrix_norm", CUBE, ord=ord)
call("linalg.matrix_norm", CUBE, keepdims=True)
for n in (0, 1, 3, -2):
    case(f"linalg.matrix_power({n})", lambda xp, x, n=n: xp.linalg.matrix_power(positive(xp, x), n), BATCH)
call("linalg.matrix_rank", CUBE)
call("linalg.matrix_rank", CUBE, rtol=0.9)
case("linalg.matrix_rank(rtol array)", lambda xp, x: xp.linalg.matrix_rank(x, rtol=xp.asarray([0.1, 0.9])), CUBE)
call("linalg.matrix_transpose", CUBE)
call("linalg.outer", ROW, VECTOR)
call("linalg.pinv", CUBE)
call("linalg.pinv", CUBE, rtol=0.5)
case("linalg.solve", lambda xp, x, y: xp.linalg.solve(positive(xp, x), y), BATCH, (2, 3, 2))
case("linalg.solve of a vector", lambda xp, x, y: xp.linalg.solve(positive(xp, x), y), BATCH, (3,))
call("linalg.svdvals", CUBE)
call("linalg.tensordot", CUBE, (3, 4, 2))
call("linalg.trace", CUBE)
call("linalg.trace", CUBE, offset=1)
case("linalg.trace(dtype)", lambda xp, x: xp.linalg.trace(x, dtype=xp.float32), CUBE)
call("linalg.vecdot", CUBE, ROW, axis=-1)
for ord in (0, 1, 2, 3.5, -1, float("inf"), -float("inf")):
    call("linalg.vector_norm", CUBE, axis=-1, ord=ord)
call("linalg.vector_norm", CUBE)
call("linalg.vector_norm", CUBE, axis=(0, 2), keepdims=True)

# fft
for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    call(f"fft.{name}", X)
    call(f"fft.{name}", (3, 5), axis=0, norm="ortho")
    call(f"fft.{name}", X, n=7, norm="forward")
    call(f"fft.{name}", X, n=2, axis=-1, norm="backward")
for name in ("fftn", "ifftn", "rfftn", "irfftn"):
    call(f"fft.{name}", CUBE)
    call(f"fft.{name}", CUBE, axes=(0, 1), norm="ortho")
    call(f"fft.{name}", CUBE, s=(3, 5), axes=(1, 2), norm="forward")
for name in ("fftfreq", "rfftfreq"):
    case(f"fft.{name}", lambda xp, name=name: find(xp.fft, name)(5), None)
    case(f"fft.{name}(d)", lambda xp, name=name: find(xp.fft, name)(6, d=0.5, dtype=xp.float32, device=None), None)
for name in ("fftshift", "ifftshift"):
    call(f"fft.{name}", X)
    call(f"fft.{name}", CUBE, axes=1)
    call(f"fft.{name}", CUBE, axes=(0, -1))


def dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def assert_agrees(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert isinstance(found, (list, tuple))
        assert len(found) == len(expected)
        assert getattr(found, "_fields", None) == getattr(expected, "_fields", None)
        for one, other in zip(found, expected, strict=True):
            assert_agrees(one, other)
    elif isinstance(expected, strict.asarray(0).__class__):
        assert type(found) is Tensor
        assert dtype_name(found.dtype) == dtype_name(expected.dtype)
        assert found.shape == expected.shape
        rtol = TOLERANCE.get(dtype_name(expected.dtype), 1e-11)
        np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=rtol, atol=rtol)
    elif isinstance(expected, (bool, int, float, complex)):
        assert isinstance(found, type(expected))
        assert found == pytest.approx(expected)
    else:
        assert dtype_name(np.dtype(found)) == dtype_name(expected)


def test_a_disagreement_is_found() -> None:
    right = strict.asarray([1.0, 2.0])
    assert_agrees(tensor([1.0, 2.0]), right)
    for wrong in (tensor([1.0, 2.1]), tensor([1.0, 2.0], "float32"), tensor([[1.0, 2.0]]), np.array([1.0, 2.0]), 1.0):
        with pytest.raises(AssertionError):
            assert_agrees(wrong, right)
    with pytest.raises(AssertionError):
        assert_agrees((tensor([1.0, 2.0]),), strict.unique_values(right))


@pytest.mark.parametrize(("name", "call", "shapes"), [pytest.param(*c, id=f"{c[0]}-{c[2]}") for c in CASES])
def test_agrees_with_the_standards_reference(name: str, call: Any, shapes: Any) -> None:
    dtypes = [d for d in DTYPES if is_defined(call, shapes, d)]
    assert dtypes, f"the reference takes {name} for no dtype"
    with np.errstate(all="ignore"):
        for dtype in dtypes[:1] if shapes == (None,) else dtypes:
            expected = call(strict, *made(strict, dtype, shapes))
            arrays = made(gnp, dtype, shapes)
            assert_agrees(call(gnp, *arrays), expected)
            with GradManager().attach([t for t in arrays if t.dtype.kind in "fc"]), warnings.catch_warnings():
                warnings.simplefilter("ignore", errors.TrackedConversionWarning)  # float(x), complex(x)
                assert_agrees(call(gnp, *arrays), expected)


@pytest.mark.parametrize("to", DTYPES)
def test_can_cast_allows_what_the_standard_allows(to: str) -> None:
    """Between kinds the standard leaves it open; there it is as NumPy's."""
    for dtype in DTYPES:
        x = gnp.ones(2, dtype=dtype)
        for given in (x, x.dtype):
            found = gnp.can_cast(given, getattr(gnp, to))
            assert found is np.can_cast(dtype, to)
            assert found or not strict.can_cast(getattr(strict, dtype), getattr(strict, to))


def test_every_function_of_the_standard_has_a_case() -> None:
    class LoggingNamespace:
        def __init__(self, namespace: Any, prefix: str, asked: set[str]) -> None:
            self.namespace, self.prefix, self.asked = namespace, prefix, asked

        def __getattr__(self, name: str) -> Any:
            if not self.prefix and name in ("linalg", "fft"):
                return LoggingNamespace(getattr(self.namespace, name), f"{name}.", self.asked)
            self.asked.add(self.prefix + name)
            return getattr(self.namespace, name)

    asked: set[str] = set()
    for _, call, shapes in CASES:
        for dtype in ("float64", "int64", "bool", "complex128"):
            with np.errstate(all="ignore"):
                try:
                    call(LoggingNamespace(strict, "", asked), *made(strict, dtype, shapes))
                except REFUSALS:
                    continue
    elsewhere = {"from_dlpack"}
    assert sorted(set(FUNCTIONS) - asked - elsewhere) == []


# ---------------------------------------------------------------- the namespace about itself


@pytest.mark.parametrize("version", [None, "2021.12", "2022.12", "2023.12", "2024.12"])
def test_the_namespace_of_a_tensor_serves_the_editions_of_the_standard(version: str | None) -> None:
    assert tensor(1.0).__array_namespace__(api_version=version) is gnp
    assert gnp.__array_api_version__ == "2024.12"


@pytest.mark.parametrize("version", ["2025.12", "2024.13", "", 2024.12])
def test_an_unknown_edition_is_refused(version: Any) -> None:
    with pytest.raises(ValueError, match=r"the Array API standard of 2021\.12, .*; asked for was"):
        tensor(1.0).__array_namespace__(api_version=version)


def test_info_gives_capabilities_and_devices() -> None:
    info = gnp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert gnp.zeros((1,) * 64).ndim == 64
    assert info.default_device() == gnp.zeros(1).device == "cpu"
    assert "cpu" in info.devices()
    assert all(gnp.zeros(1, device=device).device == device for device in info.devices())


@pytest.mark.parametrize("device", [None, "cpu"])
def test_info_gives_the_default_dtypes(device: str | None) -> None:
    assert gnp.__array_namespace_info__().default_dtypes(device=device) == {
        "real floating": gnp.asarray(1.0).dtype,
        "complex floating": gnp.asarray(1j).dtype,
        "integral": gnp.asarray(1).dtype,
        "indexing": gnp.argmax(gnp.asarray([1.0])).dtype,
    }


KINDS = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")


@pytest.mark.parametrize("kind", [None, *KINDS, ("bool", "integral"), ("real floating", "numeric"), ()])
def test_info_gives_the_dtypes_of_a_kind(kind: Any) -> None:
    found = gnp.__array_namespace_info__().dtypes(kind=kind)
    assert set(found) == set(strict.__array_namespace_info__().dtypes(kind=kind))
    for name, dtype in found.items():
        assert gnp.empty(1, dtype=dtype).dtype == getattr(gnp, name)


def test_info_refuses_unknown_kinds_and_devices() -> None:
    info = gnp.__array_namespace_info__()
    with pytest.raises(ValueError, match=r"knows the kinds bool, .*; found 'real'"):
        info.dtypes(kind="real")
    for ask in (info.dtypes, info.default_dtypes):
        with pytest.raises(ValueError, match="'tpu:0'"):
            ask(device="tpu:0")
        with pytest.raises(ValueError, match=r"'cuda:99' is not among the devices \['cpu'"):
            ask(device="cuda:99")


def test_limits_of_dtypes_are_python_numbers() -> None:
    for dtype in ("float16", "float32", "complex64", "float64"):
        found, numpys = gnp.finfo(dtype), np.finfo(dtype)
        for fact in ("eps", "epsneg", "max", "min", "tiny", "smallest_normal", "smallest_subnormal", "resolution"):
            with np.errstate(all="ignore"):
                assert type(getattr(found, fact)) is float
                assert getattr(found, fact) == float(getattr(numpys, fact))
        assert (found.bits, found.nmant, found.dtype) == (numpys.bits, numpys.nmant, numpys.dtype)
        assert repr(found) == repr(numpys)
        assert str(found) == str(numpys)
        assert found == gnp.finfo(gnp.zeros(2, dtype=dtype))
        assert hash(found) == hash(gnp.finfo(np.dtype(dtype)))
    assert gnp.finfo("float32") != gnp.finfo("float64")
    assert isinstance(gnp.finfo("float32"), gnp.finfo)
    with pytest.raises(ValueError, match=r"not inexact|not compatible with finfo"):
        gnp.finfo(gnp.asarray([1]))
    with pytest.raises(AttributeError):
        gnp.finfo("float32").epsilon
    half = gnp.ones(2, dtype="float16")
    assert (half * gnp.finfo("float32").eps).dtype == np.float16  # a Python number promotes nothing


# ---------------------------------------------------------------- devices, copies, DLPack


def test_to_device_returns_the_tensor_itself_or_says_why_not() -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as manager:
        y = (x * 2).to_device("cpu", stream=None)
        manager.backward(y.sum())
    assert x.grad.tolist() == [2.0, 2.0]
    assert x.to_device("cpu") is x
    with pytest.raises(ValueError, match="'tpu' is not known"):
        x.to_device("tpu")
    with pytest.raises(ValueError, match="takes no stream; found 7"):
        x.to_device("cpu", stream=7)


@pytest.mark.parametrize("copy", [True, False, None])
def test_asarray_astype_and_reshape_copy_as_asked(copy: bool | None) -> None:
    x = tensor([1.0, 2.0])
    calls: dict[str, Callable[[], Any]] = {
        "asarray": lambda: gnp.asarray(x, copy=copy),
        "astype": lambda: gnp.astype(x, x.dtype, copy=bool(copy)),
        "astype to its device": lambda: gnp.astype(x, x.dtype, copy=bool(copy), device="cpu"),
        "reshape": lambda: gnp.reshape(x, (2, 1), copy=copy),
        "from_dlpack": lambda: gnp.from_dlpack(x, copy=copy),
        "from_dlpack to its device": lambda: gnp.from_dlpack(x, device="cpu", copy=copy),
    }
    for name, make in calls.items():
        assert np.shares_memory(make().numpy(), x.numpy()) is (not copy), name


def test_a_copy_that_was_forbidden_is_refused() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    for needs_one in (
        lambda: gnp.asarray(x, dtype="float32", copy=False),
        lambda: gnp.asarray([1.0], copy=False),
        lambda: gnp.reshape(x.T, (4,), copy=False),
    ):
        with pytest.raises(ValueError, match="copy"):
            needs_one()


def test_gradients_flow_through_copies_and_casts() -> None:
    x = tensor([1.0, 2.0])
    calls = (
        lambda: gnp.asarray(x, copy=True),
        lambda: gnp.asarray(x, dtype="float32"),
        lambda: gnp.astype(x, "float32", device="cpu"),
        lambda: gnp.astype(x, x.dtype, copy=True, device="cpu"),
        lambda: gnp.reshape(x, (2, 1), copy=True),
    )
    for make in calls:
        with GradManager().attach(x) as manager:
            manager.backward(make().sum())
        assert x.grad.tolist() == [1.0, 1.0]
        x.grad = None


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (2, 0)])
@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("dl_device", [None, (1, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex128"])
def test_dlpack_exports_whatever_is_asked(dtype: str, dl_device: Any, copy: bool | None, max_version: Any) -> None:
    x = gnp.ones(3, dtype=dtype)
    assert x.__dlpack_device__() == (1, 0)
    assert type(x.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)).__name__ == "PyCapsule"


class Consumer:
    """Hands an importer what a tensor exports when it is asked in one way, whatever the importer asks for."""

    def __init__(self, x: Tensor, **asked: Any) -> None:
        self.x, self.asked = x, asked

    def __dlpack__(self, **_: Any) -> Any:
        return self.x.__dlpack__(**self.asked)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def test_dlpack_shares_where_it_can_export_read_only_or_must_not_copy() -> None:
    """A consumer of the old protocol cannot be told "read-only": it gets a copy unless it forbids one."""
    x = tensor([1.0, 2.0])
    for asked, shares in (
        ({"max_version": (1, 0)}, True),
        ({"max_version": (1, 0), "copy": False}, True),
        ({"max_version": (1, 0), "copy": True}, False),
        ({}, False),
        ({"copy": True}, False),
        ({"copy": False}, True),
    ):
        a = np.from_dlpack(Consumer(x, **asked))
        assert np.shares_memory(a, x.numpy()) is shares, asked
        if "max_version" in asked and np.lib.NumpyVersion(np.__version__) >= "2.2.0":  # 2.1 takes all for read-only
            assert a.flags.writeable is not shares, asked
    x += 1  # what was exported keeps its values
    assert a.tolist() == [1.0, 2.0]
    with pytest.raises(BufferError, match="readonly"):
        gnp.asarray(np.broadcast_to(1.0, (3,))).__dlpack__(copy=False)


def test_dlpack_is_refused_while_tracked_and_for_devices_without() -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x):
        for copy in (None, True, False):
            with pytest.raises(TypeError, match=r"export through DLPack.*t\.numpy\(\) or t\.detach\(\)"):
                x.__dlpack__(copy=copy)
        assert gnp.from_dlpack(x.detach()).tolist() == [1.0, 2.0]
    with pytest.raises((RuntimeError, ValueError), match="stream"):  # since NumPy 2.5 the latter
        x.__dlpack__(stream=1)


# ---------------------------------------------------------------- order


def test_argsort_is_stable_and_the_largest_first_too() -> None:
    values = np.tile([1.0, 0.0, 2.0], 40)
    x = gnp.asarray(values)
    np.testing.assert_array_equal(gnp.argsort(x).numpy(), np.argsort(values, stable=True))
    np.testing.assert_array_equal(gnp.argsort(x, descending=True).numpy(), np.argsort(-values, stable=True))
    np.testing.assert_array_equal(np.argsort(x).numpy(), np.argsort(values, stable=True))
    for places in (gnp.argsort(values, descending=True), gnp.argsort(list(values), descending=True)):
        assert type(places) is np.ndarray
        np.testing.assert_array_equal(places, np.argsort(-values, stable=True))


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, NAN, 3.0, NAN, 2.0], [2, 4, 0, 1, 3]),
        ([[0.0, 2.0, NAN], [NAN, NAN, 1.0]], [[1, 0, 2], [2, 0, 1]]),
        ([1 + 1j, complex(2, NAN), complex(NAN, 1), 3 + 0j, 3 + 2j, complex(NAN, 5)], [4, 3, 0, 1, 5, 2]),
        (np.array([1, 0, 2, 255], np.uint8), [3, 2, 0, 1]),
        (np.array([0, -128, 127, 0], np.int8), [2, 0, 3, 1]),
        ([False, True, False], [1, 0, 2]),
        (np.array([1, NAN, 3], ml_dtypes.bfloat16), [2, 0, 1]),
    ],
)
def test_nan_comes_last_in_both_orders(values: Any, expected: Any) -> None:
    a = np.asarray(values)
    for x in (a, tensor(a)):
        np.testing.assert_array_equal(np.asarray(gnp.argsort(x, descending=True)), expected)
        found = np.asarray(gnp.sort(x, descending=True))
        assert found.dtype == a.dtype
        picked = np.take_along_axis(a, np.array(expected), -1)
        np.testing.assert_array_equal(found.astype(complex), picked.astype(complex))  # in bfloat16 NaN is no NaN to it
    with GradManager().attach(x) if a.dtype.kind == "f" else nullcontext():
        np.testing.assert_array_equal(gnp.sort(x, descending=True).numpy().astype(complex), found.astype(complex))
    if np.lib.NumpyVersion(np.__version__) >= "2.5.0" and a.dtype.kind != "V":
        np.testing.assert_array_equal(found, np.sort(a, descending=True), strict=True)
        np.testing.assert_array_equal(np.sort(x, descending=True).numpy(), found)
        np.testing.assert_array_equal(np.argsort(x, descending=True).numpy(), expected)


def test_argsort_accepts_numpys_keywords_and_checks_them() -> None:
    values = np.random.default_rng(0).uniform(size=(4, 5))
    x = tensor(values)
    for keywords in ({"kind": "mergesort"}, {"stable": False}, {"stable": True, "axis": 0}, {"axis": None}):
        expected = np.argsort(values, **keywords)
        np.testing.assert_array_equal(gnp.argsort(x, **keywords).numpy(), expected)
        backwards = gnp.argsort(x, descending=True, **keywords).numpy()
        np.testing.assert_array_equal(backwards, np.flip(expected, keywords.get("axis", -1) or 0))
    assert gnp.argsort(tensor(1.0)).shape == np.argsort(1.0).shape == (1,)
    for wrong in ({"kind": "bubble"}, {"kind": "stable", "stable": True}, {"order": "f"}, {"axis": 2}):
        for descending in (False, True):
            with pytest.raises(ValueError, match="argsort: "):
                gnp.argsort(x, descending=descending, **wrong)
            with pytest.raises(ValueError, match="sort: "):
                gnp.sort(x, descending=descending, **wrong)


def test_the_gradient_of_a_descending_sort_goes_where_the_values_came_from() -> None:
    x = tensor([2.0, 5.0, 2.0, 7.0])
    with GradManager().attach(x) as manager:
        y = gnp.sort(x, descending=True)
        assert y.tolist() == [7.0, 5.0, 2.0, 2.0]
        manager.backward(y @ np.array([1.0, 2.0, 3.0, 4.0]))
    assert x.grad.tolist() == [3.0, 2.0, 4.0, 1.0]  # equal elements stay in their order


# ---------------------------------------------------------------- a GPU


@pytest.mark.gpu
def test_a_gpu_is_a_device_with_streams() -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    if not cupy.cuda.is_available():
        pytest.skip("needs a GPU")
    info = gnp.__array_namespace_info__()
    assert "cuda:0" in info.devices()
    assert info.dtypes(device="cuda:0") == info.dtypes()
    x = tensor([1.0, 2.0])
    stream = cupy.cuda.Stream(non_blocking=True)
    for given in (None, stream, stream.ptr):
        with GradManager().attach(x) as manager:
            y = x.to_device("cuda:0", stream=given) * 2
            manager.backward(y.sum())
        assert y.device == "cuda:0"
        assert y.to_device("cpu", stream=given).tolist() == [2.0, 4.0]
        assert x.grad.tolist() == [2.0, 2.0]
        x.grad = None
    there = gnp.astype(x, "float32", device="cuda:0")
    assert (there.device, there.dtype) == ("cuda:0", np.float32)
    assert there.__dlpack_device__()[0] == 2
