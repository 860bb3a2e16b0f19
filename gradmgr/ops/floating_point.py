"""Parts of floating-point numbers, and other ufuncs of two results: modf, frexp, ldexp, divmod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.custom import custom, several
from gradmgr._engine.mutation import store
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr.ops.arithmetic import floor_divide, plain_zeros, remainder
from gradmgr.ops.naming import named


def _two_results(name: str, ufunc: Any, compute: Callable[..., tuple[Any, Any]], summary: str) -> Any:
    """Make the public function of a ufunc of two results; with where= both results are computed once for each."""
    count = ufunc.nin

    def function(*args: Any, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Any, Any]:
        if len(args) > count and out is None:
            args, out = args[:count], args[count:]
        if len(args) != count or (isinstance(out, tuple) and len(out) > 2):
            raise TypeError(f"{name}() takes {count} positional arguments and up to two outs; found {len(args)}")
        if out is not None and not isinstance(out, tuple):
            raise TypeError(f"{name}: 'out' must be a tuple of two Tensors or arrays; found {type(out).__name__}")
        outs = (None, None) if out is None else (*out, None)[:2]
        for t in outs:
            if t is not None and not isinstance(t, Tensor) and not libraries.is_array(t):
                raise TypeError(f"{name}: each of 'out' must be a Tensor or an array; found {type(t).__name__}")
        if not any(isinstance(t, Tensor) for t in (*args, *outs, where)):
            found: tuple[Any, Any] = ufunc(*args, out=outs, where=where, dtype=dtype)
            return found
        if dtype is not None:
            raise TypeError(f"{name}(dtype=...) is not for Tensors; cast the arguments with .astype({str(dtype)!r})")
        args = tuple([t if isinstance(t, Tensor) else libraries.need_operand(t, name) for t in args])
        if where is True:
            results = compute(*args)
        else:
            args = (args[0] if isinstance(args[0], Tensor) else wrap(np.asarray(args[0])), *args[1:])
            results = _part(name, compute, args, outs, where, 0), _part(name, compute, args, outs, where, 1)
        asked = f"{name}(out=...)"
        pairs = zip(results, outs, strict=True)
        one, two = [z if o is None else store(o, z, asked, may_broadcast=True) for z, o in pairs]
        return one, two

    return named(function, name, summary)


def _part(name: str, compute: Any, args: Any, outs: Any, where: Any, k: int) -> Any:
    """Compute one of the results where the mask is set; elsewhere it is the value of its out=, or 0."""

    def one_result(*picked: Any) -> Any:
        return compute(*picked)[k]

    one_result.__name__ = name
    kept = outs[k]
    start = None if kept is None else kept.clone() if isinstance(kept, Tensor) else wrap(kept.copy())
    return with_keywords(one_result, None, args, start, where, None)


_modf = several(
    "modf",
    lambda x: np.modf(x),
    ("fraction", "whole"),
    vjp=lambda g: plain_zeros(g[1]) if g[0] is None else g[0],
    jvp=lambda t: (t, plain_zeros(t)),
)
modf = _two_results("modf", np.modf, _modf, "Split into fraction and whole as `numpy.modf`: derivatives 1 and 0.")
_ldexp: Function = custom(
    "ldexp",
    lambda x, exponent: np.ldexp(x, exponent),
    vjp={"x": lambda g, exponent: _ldexp(g, exponent)},
    jvp={"x": lambda t, exponent: _ldexp(t, exponent)},
)


def ldexp(x1: Any, x2: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Return x1 * 2**x2 as `numpy.ldexp`, exactly; gradients flow into x1."""
    if out is not None or where is not True or dtype is not None:
        return with_keywords(ldexp, np.ldexp, (x1, x2), out, where, dtype)
    if not (isinstance(x1, Tensor) or isinstance(x2, Tensor)):
        return np.ldexp(x1, x2)
    exponent = libraries.need_operand(raw(x2), "ldexp")
    if not np.can_cast(np.result_type(exponent), np.int64):
        raise TypeError(f"ldexp takes integers as its exponents x2; found dtype {np.result_type(exponent)}")
    z = _ldexp(x1 if isinstance(x1, Tensor) else libraries.need_operand(x1, "ldexp"), exponent)
    return z if isinstance(z, Tensor) else wrap(z)


def _mantissa_and_exponent(x: Any) -> tuple[Any, Any]:
    _, exponent = np.frexp(raw(x))
    return ldexp(x, -exponent), wrap(exponent)


frexp = _two_results(
    "frexp",
    np.frexp,
    _mantissa_and_exponent,
    "Split into mantissa and exponent as `numpy.frexp`; the exponent, an integer, carries no gradient.",
)


def _quotient_and_remainder(x: Any, y: Any) -> tuple[Any, Any]:
    return floor_divide(x, y), remainder(x, y)


divmod = _two_results(
    "divmod", np.divmod, _quotient_and_remainder, "Return `floor_divide` and `remainder` as `numpy.divmod`."
)


def divmod_operator(x: Tensor, y: Any, /) -> Any:
    """Return divmod(x, y); NotImplemented for a y of another type."""
    quotient = floor_divide.operator(x, y)
    return quotient if quotient is NotImplemented else (quotient, remainder.operator(x, y))


def divmod_reflected(y: Tensor, x: Any, /) -> Any:
    """Return the same with the operands exchanged."""
    quotient = floor_divide.reflected(y, x)
    return quotient if quotient is NotImplemented else (quotient, remainder.reflected(y, x))
