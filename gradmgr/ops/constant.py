"""Functions whose results carry no gradient: comparisons, logic, tests, positions, integers."""

from __future__ import annotations

import inspect
from builtins import any as _any
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import _xp
from gradmgr._inplace import store
from gradmgr._tensor import Tensor, raw, wrap


def _results(z: Any) -> Any:
    if isinstance(z, tuple):
        return tuple([_results(part) for part in z])
    if z.__class__ is int:  # count_nonzero, before NumPy 2.3
        return wrap(np.asarray(z))
    return wrap(z) if _xp.is_array(z) else z


def _place_of_out(function: Callable[..., Any]) -> tuple[int, tuple[str, ...]] | None:
    """Return where `out` may stand by position, and the names of the parameters from there on."""
    if isinstance(function, np.ufunc):
        return function.nin, ("out",)
    try:
        names = tuple(inspect.signature(function).parameters)
    except ValueError:  # written in C, without a signature, and without out=
        return None
    return (names.index("out"), names[names.index("out") :]) if "out" in names else None


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a NumPy function take Tensors: computed on the values, never recorded."""
    name = function.__name__
    place: Any = ...  # looked up when it is first asked for: reading signatures takes 3 ms of the import

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal place
        if len(args) > 1:
            place = _place_of_out(function) if place is ... else place
            if place is not None and len(args) > place[0]:
                kwargs = dict(zip(place[1], args[place[0] :], strict=False)) | kwargs
                args = args[: place[0]]
        out = kwargs.get("out")
        if isinstance(out, (Tensor, tuple)):
            del kwargs["out"]
            return store(out, call(*args, **kwargs), f"{name}(out=...)")
        if not _any(isinstance(t, Tensor) for t in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        arrays = [raw(t) for t in args]
        try:
            return _results(function(*arrays, **{key: raw(value) for key, value in kwargs.items()}))
        except TypeError:
            _xp.check_mixed(name, *arrays)
            raise

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`numpy.{name}` on the values; the result carries no gradient."
    return call


def valued_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the operator of a comparison or bitwise function: NotImplemented for what we do not know."""
    door = constant(function)

    def operate(x: Tensor, y: Any, /) -> Any:
        other = y if isinstance(y, Tensor) else _xp.operand(y)
        return other if other is NotImplemented else door(x, other)

    operate.__name__ = operate.__qualname__ = function.__name__
    return operate


def reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with the operands the other way round."""
    door = constant(function)

    def operate(y: Tensor, x: Any, /) -> Any:
        other = _xp.operand(x)
        return other if other is NotImplemented else door(other, y)

    operate.__name__ = operate.__qualname__ = function.__name__
    return operate


equal = constant(np.equal)
not_equal = constant(np.not_equal)
less = constant(np.less)
less_equal = constant(np.less_equal)
greater = constant(np.greater)
greater_equal = constant(np.greater_equal)
logical_and = constant(np.logical_and)
logical_or = constant(np.logical_or)
logical_xor = constant(np.logical_xor)
logical_not = constant(np.logical_not)
bitwise_and = constant(np.bitwise_and)
bitwise_or = constant(np.bitwise_or)
bitwise_xor = constant(np.bitwise_xor)
invert = constant(np.invert)
left_shift = constant(np.left_shift)
right_shift = constant(np.right_shift)
isnan = constant(np.isnan)
isinf = constant(np.isinf)
isfinite = constant(np.isfinite)
signbit = constant(np.signbit)
isclose = constant(np.isclose)
iscomplexobj = constant(np.iscomplexobj)
isrealobj = constant(np.isrealobj)
allclose = constant(np.allclose)
array_equal = constant(np.array_equal)
all = constant(np.all)
any = constant(np.any)
count_nonzero = constant(np.count_nonzero)
nonzero = constant(np.nonzero)
flatnonzero = constant(np.flatnonzero)
argwhere = constant(np.argwhere)
argmax = constant(np.argmax)
argmin = constant(np.argmin)
argsort = constant(np.argsort)
searchsorted = constant(np.searchsorted)
result_type = constant(np.result_type)
