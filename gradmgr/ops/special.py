"""Special functions under scipy.special's names and definitions: logistic functions, entropies, exprel.

A derivative whose textbook form would take the difference of nearly equal numbers goes through a family of functions
instead, each the derivative of the one before; the kernels of these families are written out here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import elementwise
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops import arithmetic
from gradmgr.ops.arithmetic import at_the_end, is_captured_block, log
from gradmgr.ops.special_kernels import loop_dtype, narrow_dtype, numpy_kernel, quiet, to_double
from gradmgr.ops.where import choose, where_kernel

# ---------------------------------------------------------------- the logistic function


@quiet
def _expit_kernel(x: Any) -> Any:
    z = np.exp(-x)
    z += 1
    return np.reciprocal(z)


@quiet
def _logit_kernel(x: Any) -> Any:
    """Compute log(x / (1 - x)); near 1/2 by arctanh, which is exact where the quotient is rounded to 1."""
    return where_kernel(2 * np.arctanh(2 * x - 1), np.log(x / (1 - x)), np.abs(x - 0.5) < 0.2)


@quiet
def _log_expit_kernel(x: Any) -> Any:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


@libraries.captured_as_one(unless=is_captured_block)
def _expit_rule(g: Any, x: Any, out: Any) -> Any:
    x = x if not hasattr(x, "dtype") or x.dtype == out.dtype else as_type(x, out.dtype)
    return at_the_end(raw(out) == 1, (out - out * out) * g, g, x, lambda x: arithmetic.exp(-x))


# g (out - out^2), mostly without a call of Python's.
expit = elementwise(
    "expit",
    numpy_kernel("expit", "dfg", _expit_kernel),
    "multiply(subtract(out, s, s), g, s) if out.__class__ is g.__class__ is ndarray and "
    "(out.dtype is F4 or out.dtype is F8) and out.size and out.item(out.argmax()) < 1 and "
    "(s := multiply(out, out)).__class__ is ndarray else expit_rule(g, x, out)",
    names={"expit_rule": _expit_rule},
)
logit = elementwise(
    "logit",
    numpy_kernel("logit", "dfg", _logit_kernel),
    lambda g, x: g / x + g / (1 - x),
)
log_expit = elementwise("log_expit", numpy_kernel("log_expit", "dfg", _log_expit_kernel), lambda g, x: g * expit(-x))

# ---------------------------------------------------------------- x log y, entropies


def _is_zero_at_edge(x: Any, y: Any, edge: float) -> Any:
    """Return a mask where x is 0 and log y has no derivative: the product and its derivatives are 0 there."""
    a, b = raw(x), raw(y)
    at_edge = b == edge if is_complex(a) or is_complex(b) else b <= edge
    return (a == 0) & at_edge


def _replace_where(nothing: Any, value: float, x: Any) -> Any:
    """Return x, and `value` where there is nothing."""
    return choose(nothing, value, x) if libraries.may_hold(nothing) else x


def _as_result(name: str, g: Any, y: Any, neutral: float, nothing: Any) -> Any:
    """Return y, neutral where there is nothing, in the dtype of the result: more precise, or complex.

    g is a cotangent, of that dtype, or a tangent of the dtype of the other operand.
    """
    dtype = loop_dtype(name, "dfDF", (g, y))
    y = _replace_where(nothing, neutral, y) if hasattr(y, "dtype") else choose(nothing, neutral, y)
    return y if y.dtype == dtype else as_type(y, dtype)


def _xlogy_y(g: Any, x: Any, y: Any) -> Any:
    nothing = _is_zero_at_edge(x, y, 0)
    return g * (_replace_where(nothing, 0.0, x) / _replace_where(nothing, 1.0, y))


def _xlog1py_y(g: Any, x: Any, y: Any) -> Any:
    nothing = _is_zero_at_edge(x, y, -1)
    return g * (_replace_where(nothing, 0.0, x) / (_replace_where(nothing, 0.0, y) + 1))


@quiet
def _xlogy_kernel(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log(y))  # y == y: is no NaN


@quiet
def _xlog1py_kernel(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log1p(y))


xlogy = elementwise(
    "xlogy",
    numpy_kernel("xlogy", "dfDF", _xlogy_kernel),
    lambda g, x, y: g * log(_as_result("xlogy", g, y, 1.0, _is_zero_at_edge(x, y, 0))),
    _xlogy_y,
)
xlog1py = elementwise(
    "xlog1py",
    numpy_kernel("xlog1py", "dfDF", _xlog1py_kernel),
    lambda g, x, y: g * arithmetic.log1p(_as_result("xlog1py", g, y, 0.0, _is_zero_at_edge(x, y, -1))),
    _xlog1py_y,
)


@quiet
def _log_ratio_kernel(x: Any, y: Any) -> Any:
    """Compute log(x / y), exactly where the quotient is near 1, and where it over- or underflows."""
    ratio = x / y
    lost, far = (ratio == 0) | (ratio == np.inf), np.log(ratio)
    far = np.where(lost, np.log(x) - np.log(y), far) if libraries.may_hold(lost) else far
    return where_kernel(np.log1p((x - y) / y), far, np.abs(ratio - 1) < 0.5)


_log_ratio = elementwise(
    "log_ratio",
    numpy_kernel("log_ratio", "fd", _log_ratio_kernel),
    "g / x",
    "-g / y",
    into=("divide(g, x, g)", None),
)


@quiet
def _entr_kernel(x: Any) -> Any:
    return np.where(x > 0, -x * np.log(x), np.where(x == 0, 0.0, np.where(x < 0, -np.inf, x)))


def _restrict_to_domain(x: Any, y: Any, inside: Any, at_0: Any) -> Any:
    """Return the value inside the domain, that at x = 0, and inf where x or y is negative or y alone is 0."""
    z = np.where((x > 0) & (y > 0), inside, np.where((x == 0) & (y >= 0), at_0, np.inf))
    return np.where((x != x) | (y != y), np.nan, z)


@quiet
def _rel_entr_kernel(x: Any, y: Any) -> Any:
    return _restrict_to_domain(x, y, x * _log_ratio_kernel(x, y), 0.0).astype(x.dtype, copy=False)


@quiet
def _kl_div_kernel(x: Any, y: Any) -> Any:
    return _restrict_to_domain(x, y, x * _log_ratio_kernel(x, y) - x + y, y).astype(x.dtype, copy=False)


def _are_both_zero(x: Any, y: Any) -> Any:
    return (raw(x) == 0) & (raw(y) == 0)


def _log_of_ratio(x: Any, y: Any) -> Any:
    """Return log(x / y), 0 where both are 0."""
    both = _are_both_zero(x, y)
    return _log_ratio(_replace_where(both, 1.0, x), _replace_where(both, 1.0, y))


def _ratio(x: Any, y: Any) -> Any:
    """Return x / y, 0 where both are 0; NaN outside the domain, where the functions below are inf."""
    both, outside = _are_both_zero(x, y), (raw(x) < 0) | (raw(y) < 0)
    return _replace_where(outside, np.nan, _replace_where(both, 0.0, x)) / _replace_where(both, 1.0, y)


entr = elementwise("entr", numpy_kernel("entr", "fd", _entr_kernel), lambda g, x: -g * (log(x) + 1))
rel_entr = elementwise(
    "rel_entr",
    numpy_kernel("rel_entr", "fd", _rel_entr_kernel),
    lambda g, x, y: g * _replace_where(_are_both_zero(x, y), 0.0, _log_of_ratio(x, y) + 1),
    lambda g, x, y: -g * _ratio(x, y),
)
kl_div = elementwise(
    "kl_div",
    numpy_kernel("kl_div", "fd", _kl_div_kernel),
    lambda g, x, y: g * _log_of_ratio(x, y),
    lambda g, x, y: g * (1 - _ratio(x, y)),
)

# ---------------------------------------------------------------- exp(x) - 1 and log(1 + x), and over x


def _in_single_or_double(x: Any) -> Any:
    """SciPy computes these in single or double where NumPy would in half."""
    narrow = hasattr(x, "dtype") and x.dtype.itemsize <= 2
    return as_type(x, narrow_dtype()) if narrow else x


@quiet
def expm1(x: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Return exp(x) - 1, exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
    return arithmetic.expm1(_in_single_or_double(x), out, where, dtype)


@quiet
def log1p(x: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Return log(1 + x), exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
    return arithmetic.log1p(_in_single_or_double(x), out, where, dtype)


@quiet
def _exprel_kernel(x: Any) -> Any:
    """Compute in double precision, as SciPy does: in single precision expm1 overflows before the quotient does."""
    z, dtype = to_double(x)
    quotient = np.expm1(z) / np.where(z == 0, 1.0, z)
    return np.where(z == 0, 1.0, np.where(z == np.inf, np.inf, quotient)).astype(dtype)


@quiet
def _exprel_slope_kernel(x: Any, k: int) -> Any:
    """Compute the k-th derivative of exprel, the integral of t^k exp(x t) over [0, 1].

    Near 0 by the power series, for negative x by that of the integral over exp(x): all terms are
    positive, so nothing cancels. Further out by parts, k times, which is stable there; divided by
    exp(x) where that is large.
    """
    x, dtype = to_double(x)
    bound, negative = 4.0 + 2 * k, x < 0
    size = np.minimum(np.abs(x), bound)
    near = np.zeros_like(x)
    for j in range(32 + 6 * k, -1, -1):
        right = 1 / (math.factorial(j) * (j + k + 1))
        left = math.factorial(k) / math.factorial(j + k + 1)
        near = near * size + np.where(negative, left, right)
    near = np.where(negative, np.exp(-size), 1.0) * near
    z = np.where(np.abs(x) < bound, 1.0, x)
    ahead, behind = -np.expm1(-z) / z, np.expm1(z) / z
    for j in range(1, k + 1):
        ahead, behind = (1 - j * ahead) / z, (np.exp(z) - j * behind) / z
    far = np.where(x > 0, np.where(x == np.inf, x, np.exp(x) * ahead), behind)
    return np.where(np.abs(x) < bound, near, far).astype(dtype)


_exprel_slope: Function = custom(
    "exprel_slope",
    lambda x, k: _exprel_slope_kernel(x, k),
    vjp={"x": lambda g, x, k: g * _exprel_slope(x, k + 1)},
    jvp={"x": lambda t, x, k: t * _exprel_slope(x, k + 1)},
)
exprel = elementwise("exprel", numpy_kernel("exprel", "df", _exprel_kernel), lambda g, x: g * _exprel_slope(x, 1))
