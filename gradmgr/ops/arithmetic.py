"""Elementwise mathematics: arithmetic, powers, exponentials, trigonometry, choice.

Each rule gives the derivative's map for one input; see `_elementwise`. Rules are written so that
an intermediate that overflows where the derivative does not is avoided: `exp` and `tanh` go from
their output. Where a function has a corner, the subgradient is that of the table in the docs:
halves at a tie, 0 at the kink of abs, 1 at the bound of a clip. A Python number beside a small array costs
NumPy more than twice what a second array does, so `x + x` stands for `2 * x`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import _xp
from gradmgr._broadcast import is_complex
from gradmgr._custom import custom
from gradmgr._elementwise import Made, conj, elementwise
from gradmgr._inplace import as_type, store
from gradmgr._tensor import Tensor, raw, wrap

LN2 = math.log(2.0)
LN10 = math.log(10.0)


def choose(condition: Any, x: Any, y: Any) -> Any:
    """Choose as `numpy.where`; gradients flow into the branch taken."""
    return _where(x, y, raw(condition))


def _where_kernel(x: Any, y: Any, condition: Any) -> Any:
    return np.where(condition, x, y)


def plain_zeros(g: Any) -> Any:
    """Zeros of the shape and dtype of g, a plain array: a constant for every recorder."""
    a = raw(g)
    return _xp.namespace(a).zeros_like(a)


_where = custom(
    "where",
    _where_kernel,
    vjp={
        "x": lambda g, condition: choose(condition, g, plain_zeros(g)),
        "y": lambda g, condition: choose(condition, plain_zeros(g), g),
    },
    jvp={
        "x": lambda t, condition: choose(condition, t, plain_zeros(t)),
        "y": lambda t, condition: choose(condition, plain_zeros(t), t),
    },
)

# ---------------------------------------------------------------- arithmetic

add = elementwise("add", np.add, "g", "g", operate="a + b")
subtract = elementwise("subtract", np.subtract, "g", "-g", operate="a - b")
multiply = elementwise("multiply", np.multiply, "g * y", "g * x", operate="a * b")
divide = elementwise("divide", np.divide, "g / y", "-g * out / y", operate="a / b")
negative = elementwise("negative", np.negative, "-g", operate="-a")
positive = elementwise("positive", np.positive, "g", operate="+a")
reciprocal = elementwise("reciprocal", np.reciprocal, lambda g, out: -g * out * out)
remainder = elementwise("remainder", np.remainder, lambda g: g, lambda g, x, y: -g * floor.door(x / y), operate="a % b")
fmod = elementwise("fmod", np.fmod, lambda g: g, lambda g, x, y: -g * trunc.door(x / y))
floor_divide = elementwise("floor_divide", np.floor_divide, plain_zeros, plain_zeros, operate="a // b")

# ---------------------------------------------------------------- powers

_NUMBER: Any = (int, float, complex, np.generic)


def _power_x(g: Any, x: Any, y: Any) -> Any:
    """Return y x^(y-1), which is 0 for y = 0, even at x = 0."""
    if isinstance(y, _NUMBER):
        if y == 2:
            return g * (x + x)
        return g * (y * x ** (y - 1)) if y else g * 0
    zero, y = raw(y) == 0, _as_precise(y, g)
    return g * choose(zero, 0.0, y * x ** choose(zero, 1.0, y - 1))


def _power_y(g: Any, x: Any, y: Any, out: Any) -> Any:
    """x^y log x, which at x = 0 is 0 for y >= 0 and -inf for y < 0."""
    at_zero = (raw(x) == 0) & (raw(y).real >= 0)
    return g * out * log.door(choose(at_zero, 1.0, _as_precise(x, out)))


def _as_precise(value: Any, like: Any) -> Any:
    """An operand in the precision of the result, where a rule rounds it."""
    if not hasattr(value, "dtype") or value.dtype.kind not in "fc":
        return value
    wanted = like.dtype if value.dtype.kind == like.dtype.kind else raw(like).real.dtype
    narrower = value.dtype.kind == wanted.kind and value.dtype.itemsize < wanted.itemsize
    return as_type(value, wanted) if narrower else value


power = elementwise("power", np.power, _power_x, _power_y, operate="a ** b")
square = elementwise("square", np.square, "g * (x + x)")
sqrt = elementwise("sqrt", np.sqrt, "g / (out + out)")
cbrt = elementwise("cbrt", np.cbrt, lambda g, out: g / (3 * out * out))

# ---------------------------------------------------------------- exponentials and logarithms

exp = elementwise("exp", np.exp, "g * out")
exp2 = elementwise("exp2", np.exp2, lambda g, out: g * (out * LN2))
expm1 = elementwise("expm1", np.expm1, lambda g, out: g * (out + 1))
log = elementwise("log", np.log, "g / x")
log2 = elementwise("log2", np.log2, lambda g, x: g / x * (1 / LN2))
log10 = elementwise("log10", np.log10, lambda g, x: g / x * (1 / LN10))
log1p = elementwise("log1p", np.log1p, lambda g, x: g / (x + 1))


def _share_of(x: Any, y: Any, out: Any, exponential: Any) -> Any:
    """The share of x in exp(x) + exp(y); 0 where both are -inf.

    exp(x - out) has the rounding error of out; divided by the sum of both shares it has not.
    """
    out = choose(raw(out) == -np.inf, 0.0, out)
    part = exponential(x - out)
    whole = part + exponential(y - out)
    return part / choose(raw(whole) == 0, 1.0, whole)


logaddexp = elementwise(
    "logaddexp",
    np.logaddexp,
    lambda g, x, y, out: g * _share_of(x, y, out, exp.door),
    lambda g, x, y, out: g * _share_of(y, x, out, exp.door),
)
logaddexp2 = elementwise(
    "logaddexp2",
    np.logaddexp2,
    lambda g, x, y, out: g * _share_of(x, y, out, exp2.door),
    lambda g, x, y, out: g * _share_of(y, x, out, exp2.door),
)

# ---------------------------------------------------------------- trigonometric and hyperbolic


def _length(x: Any) -> Any:
    """sqrt(1 + x^2), where x^2 may overflow."""
    return sqrt.door(x * x + 1) if is_complex(x) else hypot.door(x, 1.0)


sin = elementwise("sin", np.sin, lambda g, x: g * cos.door(x))
cos: Made = elementwise("cos", np.cos, lambda g, x: -g * sin.door(x))
tan = elementwise("tan", np.tan, lambda g, out: g * (1 + out * out))
arcsin = elementwise("arcsin", np.arcsin, lambda g, x: g / sqrt.door((1 - x) * (1 + x)))
arccos = elementwise("arccos", np.arccos, lambda g, x: -g / sqrt.door((1 - x) * (1 + x)))
arctan = elementwise("arctan", np.arctan, lambda g, x: g / _length(x) / _length(x))
sinh = elementwise("sinh", np.sinh, lambda g, x: g * cosh.door(x))
cosh: Made = elementwise("cosh", np.cosh, lambda g, x: g * sinh.door(x))
tanh = elementwise("tanh", np.tanh, "g - g * out * out")
arcsinh = elementwise("arcsinh", np.arcsinh, lambda g, x: g / _length(x))
arccosh = elementwise("arccosh", np.arccosh, lambda g, x: g / (sqrt.door(x - 1) * sqrt.door(x + 1)))
arctanh = elementwise("arctanh", np.arctanh, lambda g, x: g / ((1 - x) * (1 + x)))


def _over_or_zero(value: Any, divisor: Any) -> Any:
    """Return value / divisor, and 0 where the divisor is 0 (there value is 0 too)."""
    return value / choose(raw(divisor) == 0, 1.0, divisor)


def _over_square(g: Any, value: Any, length: Any) -> Any:
    """Return g value / length^2, and 0 where the length is 0; the square itself may overflow."""
    return g * _over_or_zero(_over_or_zero(value, length), length)


arctan2 = elementwise(
    "arctan2",
    np.arctan2,
    lambda g, x, y: _over_square(g, y, hypot.door(x, y)),
    lambda g, x, y: -_over_square(g, x, hypot.door(x, y)),
)
hypot: Made = elementwise(
    "hypot",
    np.hypot,
    lambda g, x, out: g * _over_or_zero(x, out),
    lambda g, y, out: g * _over_or_zero(y, out),
)
deg2rad = elementwise("deg2rad", np.deg2rad, lambda g: g * (math.pi / 180))
rad2deg = elementwise("rad2deg", np.rad2deg, lambda g: g * (180 / math.pi))

# ---------------------------------------------------------------- parts of complex numbers, size and sign


def _real_of_product(t: Any, z: Any) -> Any:
    """Re(conj(z) t): how far t points along z."""
    return real.door(t * conj.door(z)) if is_complex(z) else t * z


def _sign_map(g: Any, x: Any, out: Any) -> Any:
    """The derivative of z/|z|: what of g is across z, over |z|; its own adjoint; 0 for real z and at 0."""
    if not is_complex(x):
        return plain_zeros(g)
    across = g - out * _real_of_product(g, out)
    return _over_or_zero(choose(raw(x) == 0, 0.0, across), absolute.door(x))


real: Made = elementwise("real", np.real, lambda g: g, jvp=(lambda t: real.door(t),))
imag: Made = elementwise("imag", np.imag, lambda g: g * 1j, jvp=(lambda t: imag.door(t),))
absolute = elementwise(
    "absolute",
    np.absolute,
    lambda g, x: g * sign.door(x),
    operate="abs(a)",
    jvp=(lambda t, x: _real_of_product(t, sign.door(x)),),
)
fabs = elementwise("fabs", np.fabs, lambda g, x: g * sign.door(x))
sign: Made = elementwise("sign", np.sign, _sign_map, jvp=(_sign_map,))


def _angle_vjp(g: Any, x: Any) -> Any:
    return _over_square(g, x * 1j, absolute.door(x)) if is_complex(x) else plain_zeros(g)


def _angle_jvp(t: Any, x: Any) -> Any:
    if not is_complex(x):
        return plain_zeros(t)
    length = absolute.door(x)
    return _over_or_zero(imag.door(t * _over_or_zero(conj.door(x), length)), length)


angle = elementwise("angle", np.angle, _angle_vjp, jvp=(_angle_jvp,))

# ---------------------------------------------------------------- steps: zero derivative, not an error

floor: Made = elementwise("floor", np.floor, plain_zeros)
ceil = elementwise("ceil", np.ceil, plain_zeros)
rint = elementwise("rint", np.rint, plain_zeros)
trunc: Made = elementwise("trunc", np.trunc, plain_zeros)

# ---------------------------------------------------------------- choice


def _where_ahead(g: Any, x: Any, y: Any) -> Any:
    """Return g where x > y, half of it at a tie. A choice, not a product: g may be infinite where it is dropped."""
    a, b = raw(x), raw(y)
    won, tied = choose(a > b, g, 0.0), a == b
    return choose(tied, g / 2, won) if np.any(tied) else won


def _where_first(g: Any, x: Any, y: Any, ahead: Any, behind: Any) -> Any:
    """The same for fmax and fmin, where a number is ahead of a NaN, and x of y if both are."""
    a, b = raw(x), raw(y)
    return choose(b != b, g, choose(a != a, 0.0, _where_ahead(g, ahead, behind)))  # b != b: is NaN


def _where_second(g: Any, x: Any, y: Any, ahead: Any, behind: Any) -> Any:
    a, b = raw(x), raw(y)
    return choose(b != b, 0.0, choose(a != a, g, _where_ahead(g, ahead, behind)))


maximum = elementwise("maximum", np.maximum, _where_ahead, lambda g, x, y: _where_ahead(g, y, x))
minimum = elementwise("minimum", np.minimum, lambda g, x, y: _where_ahead(g, y, x), _where_ahead)
fmax = elementwise(
    "fmax",
    np.fmax,
    lambda g, x, y: _where_first(g, x, y, x, y),
    lambda g, x, y: _where_second(g, x, y, y, x),
)
fmin = elementwise(
    "fmin",
    np.fmin,
    lambda g, x, y: _where_first(g, x, y, y, x),
    lambda g, x, y: _where_second(g, x, y, x, y),
)


def _clip(x: Any, low: Any, high: Any) -> Any:
    return np.clip(x, low, high)


def _inside(g: Any, x: Any, low: Any, high: Any) -> Any:
    a = raw(x)
    return choose((a >= raw(low)) & (a <= raw(high)), g, 0.0)


def _below(g: Any, x: Any, low: Any, high: Any) -> Any:
    return choose((raw(x) < raw(low)) & (raw(low) <= raw(high)), g, 0.0)


def _above(g: Any, x: Any, low: Any, high: Any) -> Any:
    return choose((raw(x) > raw(high)) | (raw(low) > raw(high)), g, 0.0)


clip_between = custom(
    "clip",
    _clip,
    vjp={"x": _inside, "low": _below, "high": _above},
    jvp={"x": _inside, "low": _below, "high": _above},
)


def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Clip as `numpy.clip`: the derivative is 1 at a bound, and outside it goes to the bound."""
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError("clip takes a_min and a_max or min and max, not both")
    low = a_min if min is None else min
    high = a_max if max is None else max
    if not any(isinstance(t, Tensor) for t in (a, low, high, out)):
        return np.clip(a, low, high, out=out)
    a, low, high = (t if t is None or isinstance(t, Tensor) else _xp.need_operand(t, "clip") for t in (a, low, high))
    if any(isinstance(t, Tensor) and _xp.is_differentiable(t.dtype) for t in (a, low, high)):
        z = clip_between(a, -np.inf if low is None else low, np.inf if high is None else high)
    else:
        z = wrap(np.clip(raw(a), raw(low), raw(high)))
    return z if out is None else store(out, z, "clip(out=...)")
