"""Elementwise mathematics: arithmetic, powers, exponentials, trigonometry, choice.

Each rule gives the derivative's map for one input; see `_elementwise`. Rules are written so that
an intermediate that overflows where the derivative does not is avoided, and so is a difference that is rounded to 0
where the derivative is a small number: `tanh` goes from its output, but where that is 1. Where a function has a corner,
the subgradient is that of the table in the docs: halves at a tie, 0 at the kink of abs, 1 at the bound of a clip. A
Python number with a small array costs NumPy more than twice what a second array does, so `x + x` stands for `2 * x`.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.block_kernels import can_run_in_blocks, run_in_blocks
from gradmgr._arrays.blocks import BLOCK, mapped
from gradmgr._arrays.listening import asked
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import OpFunction, conj, conj_of, elementwise
from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import Tensor, bare, raw
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr._engine.views import view_of
from gradmgr.ops.where import MANY, choose, where_kernel

_SIMPLE = (libraries.F4, libraries.F8)
LN2 = math.log(2.0)
LN10 = math.log(10.0)


def sum_of(*parts: Any) -> Any:
    """Return the sum of those that are not None; None if all are."""
    there = [part for part in parts if part is not None]
    total = there[0] if there else None
    for part in there[1:]:
        total = total + part
    return total


def plain_zeros(g: Any) -> Any:
    """Return zeros of the shape and dtype of g as a plain array: a constant for every recorder."""
    a = raw(g)
    return libraries.namespace(a).zeros_like(a)


# ---------------------------------------------------------------- arithmetic

add = elementwise("add", np.add, "g", "g", operate="x + y")
subtract = elementwise(
    "subtract",
    np.subtract,
    "g",
    "-g",
    operate="x - y",
    into=(None, "negative(g, g)"),
    reduced=(None, "-unbroadcast(g, {shape}, {dtype})"),
)
multiply = elementwise(
    "multiply",
    np.multiply,
    "g * y",
    "g * x",
    operate="x * y",
    into=("multiply(g, y, g)", "multiply(g, x, g)"),
    reduced=("sum_of_products(g, y, {shape})", "sum_of_products(g, x, {shape})"),
)
divide = elementwise(
    "divide",
    np.divide,
    "g / y",
    "-(g * out / y)",
    operate="x / y",
    into=("divide(g, y, g)", "negative(divide(multiply(g, out, g), y, g), g)"),
)
negative = elementwise("negative", np.negative, "-g", operate="-x", into="negative(g, g)")
positive = elementwise("positive", np.positive, "g", operate="+x")
reciprocal = elementwise(
    "reciprocal", np.reciprocal, "-(g * out * out)", into="negative(multiply(multiply(g, out, g), out, g), g)"
)


def _times_subtracted(x: Any, y: Any, out: Any) -> Any:
    """Return how often y was subtracted from x, a constant.

    floor(x / y) is one more where the quotient is rounded up.
    """
    return np.rint((raw(x) - raw(out)) / raw(y))


remainder = elementwise(
    "remainder", np.remainder, lambda g: g, lambda g, x, y, out: -g * _times_subtracted(x, y, out), operate="x % y"
)
fmod = elementwise("fmod", np.fmod, lambda g: g, lambda g, x, y, out: -g * _times_subtracted(x, y, out))
floor_divide = elementwise("floor_divide", np.floor_divide, plain_zeros, plain_zeros, operate="x // y")

# ---------------------------------------------------------------- powers

_NUMBER: Any = (int, float, complex, np.generic)


def _power_x(g: Any, x: Any, y: Any) -> Any:
    """Return y x^(y-1), which is 0 for y = 0, even at x = 0."""
    if isinstance(y, _NUMBER):
        if y == 2:
            return g * (x + x)
        if y == 0.5 and (is_complex(x) or not is_complex(y)):  # a root takes a quarter of the time of a power
            root = sqrt(_in_result_precision(x, g))
            root = np.add(root, 0.0, out=root) if root.__class__ is np.ndarray else root + 0.0  # of -0.0 as of 0.0
            return g * 0.5 / root
        return g * (y * x ** (y - 1)) if y else g * 0
    zero, y = raw(y) == 0, _in_result_precision(y, g)
    if not libraries.may_hold(zero):
        return g * (y * x ** (y - 1))
    with np.errstate(all="ignore"):
        steep = zero & ~np.isfinite(1 / raw(x))  # 0 times inf; elsewhere the slope in y, 1 / x, is that of the product
    return g * choose(steep, 0.0, y * x ** choose(steep, 1.0, y - 1))


def _power_y(g: Any, x: Any, out: Any) -> Any:
    """Return g x^y log x: 0 where x^y is, even if the logarithm is infinite; at x = 0, 0 for y = 0, -inf for y < 0."""
    level = (raw(out) == 0) | ((raw(x) == 0) & (raw(out) == 1))  # 0^y is 1 for y = 0 alone
    return g * out * log(choose(level, 1.0, _as_result(x, out)))


def _in_result_precision(value: Any, like: Any) -> Any:
    """Return an operand in the precision of the result, as a rule would round it otherwise."""
    if not hasattr(value, "dtype") or value.dtype.kind not in "fc":
        return value
    wanted = like.dtype if value.dtype.kind == like.dtype.kind else raw(like).real.dtype
    narrower = value.dtype.kind == wanted.kind and value.dtype.itemsize < wanted.itemsize
    return as_type(value, wanted) if narrower else value


def _as_result(value: Any, like: Any) -> Any:
    """Return an operand in the precision of the result, and complex where that is: the log of -2 is then no NaN."""
    if not is_complex(like) or is_complex(value):
        return _in_result_precision(value, like)
    return as_type(value, like.dtype) if hasattr(value, "dtype") else complex(value)


power = elementwise("power", np.power, _power_x, _power_y, operate="x ** y")


def float_power(x1: Any, x2: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Raise to a power in float64 or complex128 as `numpy.float_power`."""
    if out is not None or where is not True or dtype is not None:
        if dtype is not None and np.dtype(dtype).char not in "dD":
            raise TypeError(f"float_power computes in float64 and complex128; found dtype={dtype}")
        return with_keywords(float_power, np.float_power, (x1, x2), out, where, dtype)
    if not (isinstance(x1, Tensor) or isinstance(x2, Tensor)):
        return np.float_power(x1, x2)
    return power(_as_double(x1), _as_double(x2))


def _as_double(value: Any) -> Any:
    """Return an operand in double precision; a Python number takes that of the other operand."""
    if isinstance(value, bool | int):
        return float(value)
    value = value if isinstance(value, Tensor) else libraries.need_operand(value, "float_power")
    if not hasattr(value, "dtype") or value.dtype.char in "dD":
        return value
    return as_type(value, np.complex128 if value.dtype.kind == "c" else np.float64)


square = elementwise("square", np.square, "g * (x + x)", into="multiply(g, x + x, g)")
sqrt = elementwise("sqrt", np.sqrt, "g / (out + out)", into="divide(g, out + out, g)")
cbrt = elementwise("cbrt", np.cbrt, lambda g, out: g / (3 * out * out))

# ---------------------------------------------------------------- exponentials and logarithms

exp = elementwise("exp", np.exp, "g * out", into="multiply(g, out, g)")
exp2: OpFunction = elementwise("exp2", np.exp2, lambda g, x: g * (exp2(x - 1) * (2 * LN2)))  # finite up to 1024.5
expm1 = elementwise("expm1", np.expm1, lambda g, x: g * exp(x))
log = elementwise("log", np.log, "g / x", into="divide(g, x, g)")
log2 = elementwise("log2", np.log2, lambda g, x: g / x * (1 / LN2))
log10 = elementwise("log10", np.log10, lambda g, x: g / x * (1 / LN10))
log1p = elementwise("log1p", np.log1p, "g / (x + 1)", into="divide(g, x + 1, g)")


# NumPy's function in C, which takes 50 ns; numpy.count_nonzero takes 500. NumPy has no public name for it.
count_nonzero: Any = getattr(sys.modules.get("numpy._core.multiarray"), "count_nonzero", np.count_nonzero)


def at_the_end(end: Any, d: Any, g: Any, x: Any, tail: Any) -> Any:
    """Return a gradient, and g tail(x) where a function that levels off has a result that is rounded to its bound.

    The slope, computed from the result, is 0 there; `tail` is what is left of its closed form. A capture has both, and
    no guard: whether a network's numbers reach the bound changes from one step to the next.

    Args:
        end: a mask of the results that are rounded to the bound.
        d: the gradient by the slope computed from the result, in memory of its own.
        g: the cotangent.
        x: the input.
        tail: the slope at the end, as a function of x.
    """
    if not (libraries.is_captured(end) or libraries.may_hold(end)):
        return d
    is_plain = d.__class__ is g.__class__ is x.__class__ is np.ndarray and d.shape == g.shape == x.shape
    if is_plain and 4 * count_nonzero(end) < d.size:  # as mostly
        places = np.nonzero(end)
        d[places] = g[places] * tail(x[places])
        return d
    return choose(end, g * tail(choose(end, x, 0.0)), d)


def is_captured_block(g: Any, *_: Any) -> bool:
    """Return True if a gradient that is captured is one block."""
    return bool(g.nbytes <= BLOCK)


def _exponential_share(x: Any, y: Any, out: Any, exponential: Any) -> Any:
    """Return the share of exp(x) in exp(x) + exp(y); 0 where both are -inf; those that are inf share evenly.

    exp(x - out) has the rounding error of out; divided by the sum of both shares it has not.
    """
    infinite = np.isinf(raw(out))
    if libraries.may_hold(infinite):
        nothing = raw(out) == -np.inf
        x, y = (choose(infinite, _zero_where_infinite(t), t) for t in (x, y))
        out = choose(infinite, 0.0, out)
        part = exponential(x - out)
        return part / choose(nothing, 1.0, part + exponential(y - out))
    part = exponential(x - out)
    return part / (part + exponential(y - out))


def _zero_where_infinite(t: Any) -> Any:
    """Return 0 where an operand, which may be a number, is inf, and -inf elsewhere."""
    if isinstance(t, _NUMBER):
        return 0.0 if t == np.inf else -np.inf
    return choose(raw(t) == np.inf, 0.0, -np.inf)


def _share_times(g: Any, x: Any, y: Any, out: Any) -> Any:
    return g * _exponential_share(x, y, out, exp)


def _is_large(x: Any, y: Any) -> bool:
    """Tell whether two operands are large arrays of NumPy's of one shape and dtype, of single or double precision."""
    return (
        (x.__class__ is y.__class__ is np.ndarray or (libraries.is_numpy(x) and libraries.is_numpy(y)))
        and x.size >= MANY
        and x.shape == y.shape
        and x.dtype == y.dtype
        and x.dtype in (libraries.F4, libraries.F8)
    )


def _logaddexp_kernel(x: Any, y: Any, **keywords: Any) -> Any:
    """Compute numpy.logaddexp by NumPy's vectorised loops, in a tenth of the 18 ns it takes for each element."""
    return np.logaddexp(x, y, **keywords) if keywords or not _is_large(x, y) else _large_logaddexp(x, y)


@libraries.captured_as_one()
def _large_logaddexp(x: Any, y: Any) -> Any:
    return mapped(_logaddexp_piece, x, y)


def _logaddexp_piece(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        high = np.maximum(x, y)
        gap = np.subtract(x, y)
        np.abs(gap, out=gap)
        np.negative(gap, out=gap)
        np.exp(gap, out=gap)
        np.log1p(gap, out=gap)
        gap += high
    if not np.isfinite(gap).all():  # the difference of equal infinities is NaN
        return np.logaddexp(x, y)
    return gap


logaddexp = elementwise(
    "logaddexp",
    _logaddexp_kernel,
    lambda g, x, y, out: mapped(_share_times, g, x, y, out),
    lambda g, x, y, out: mapped(_share_times, g, y, x, out),
)
logaddexp2 = elementwise(
    "logaddexp2",
    np.logaddexp2,
    lambda g, x, y, out: g * _exponential_share(x, y, out, exp2),
    lambda g, x, y, out: g * _exponential_share(y, x, out, exp2),
)

# ---------------------------------------------------------------- trigonometric and hyperbolic


def _sqrt_of_1_plus_square(x: Any) -> Any:
    """Return sqrt(1 + x^2), where x^2 may overflow."""
    if is_complex(x):
        return sqrt(x * x + 1)
    return _length_of_many(x) if _are_many(raw(x)) else hypot(x, 1.0)


def _are_many(a: Any) -> bool:
    """Tell whether squares are quicker than numpy.hypot, which takes 3 ns for each element."""
    return libraries.is_numpy(a) and a.size >= MANY and a.dtype in (libraries.F4, libraries.F8)


@libraries.captured_as_one(unless=lambda x: True, decides=True)
def _length_of_many(x: Any) -> Any:
    square = _square_and_1(x)
    return hypot(x, 1.0) if square is None else sqrt(square)


def _square_and_1(x: Any) -> Any:
    """Return x^2 + 1; None if it overflows."""
    with np.errstate(over="ignore", under="ignore"):
        square = x * x + 1
    return None if libraries.may_hold(np.isinf(raw(square))) else square


def _arctan_rule(g: Any, x: Any) -> Any:
    if is_complex(x):
        return g / (x * x + 1)
    if _are_many(raw(x)):
        return _arctan_rule_of_many(g, x)
    length = hypot(x, 1.0)
    return g / length / length


@libraries.captured_as_one(unless=lambda g, x: True, decides=True)
def _arctan_rule_of_many(g: Any, x: Any) -> Any:
    square = _square_and_1(x)
    if square is None:
        length = hypot(x, 1.0)
        return g / length / length
    return g / square


sin = elementwise("sin", np.sin, lambda g, x: g * cos(x))
cos: OpFunction = elementwise("cos", np.cos, lambda g, x: -g * sin(x))
tan = elementwise("tan", np.tan, lambda g, out: g * (1 + out * out))
_one_minus_square = elementwise("one_minus_square", lambda x: (1 - x) * (1 + x), lambda g, x: -g * (x + x))
arcsin = elementwise("arcsin", np.arcsin, lambda g, x: g / sqrt(_one_minus_square(x)))
arccos = elementwise("arccos", np.arccos, lambda g, x: -g / sqrt(_one_minus_square(x)))
arctan = elementwise("arctan", np.arctan, _arctan_rule)
sinh = elementwise("sinh", np.sinh, lambda g, x: g * cosh(x))
cosh: OpFunction = elementwise("cosh", np.cosh, lambda g, x: g * sinh(x))


@libraries.captured_as_one(unless=is_captured_block)
def _tanh_rule(g: Any, x: Any, out: Any) -> Any:
    square = out * out
    return at_the_end(raw(square) == 1, g - square * g, g, x, _tanh_tail)


def _tanh_tail(x: Any) -> Any:
    return exp(absolute(x) * -2.0) * 4.0


def _tanh_into(g: Any, x: Any, out: Any) -> Any:
    return run_in_blocks(_tanh_piece, g, (g, x, out), 1)


def _tanh_piece(made: Any, g: Any, x: Any, out: Any, square: Any) -> None:
    np.multiply(out, out, out=square)
    if square.item(square.argmax()) < 1:
        np.subtract(g, np.multiply(square, g, out=square), out=made)
    else:
        made[...] = _tanh_rule(g, x, out)


# g (1 - out^2), mostly without a call of Python's. NumPy's quickest test of all elements is `argmax`.
_TANH_RULE = (
    "subtract(g, multiply(s, g, s), s) if (s := multiply(out, out)).__class__ is g.__class__ is ndarray and "
    "(s.dtype is F4 or s.dtype is F8) and s.size and s.item(s.argmax()) < 1 else tanh_rule(g, x, out)"
)
tanh = elementwise(
    "tanh",
    np.tanh,
    _TANH_RULE,
    into=f"tanh_into(g, x, out) if g.nbytes > {4 * BLOCK} and can_run_in_blocks(g, x, out) else {_TANH_RULE}",
    names={"tanh_rule": _tanh_rule, "tanh_into": _tanh_into, "can_run_in_blocks": can_run_in_blocks},
)
arcsinh = elementwise("arcsinh", np.arcsinh, lambda g, x: g / _sqrt_of_1_plus_square(x))
arccosh = elementwise("arccosh", np.arccosh, lambda g, x: g / (sqrt(x - 1) * sqrt(x + 1)))
arctanh = elementwise("arctanh", np.arctanh, lambda g, x: g / _one_minus_square(x))


def _divide_or_zero(value: Any, divisor: Any) -> Any:
    """Return value / divisor, and 0 where the divisor is 0, in every derivative, too."""
    zero = raw(divisor) == 0
    return choose(zero, 0.0, value) / choose(zero, 1.0, divisor) if libraries.may_hold(zero) else value / divisor


def _divide_by_square(g: Any, value: Any, length: Any) -> Any:
    """Return g value / length^2, and 0 where the length is 0 or infinite; the square itself may overflow."""
    infinite = np.isinf(raw(length))
    value = choose(infinite, 0.0, value) if libraries.may_hold(infinite) else value
    return g * _divide_or_zero(_divide_or_zero(value, length), length)


def _divide_by_sum_of_squares(g: Any, value: Any, x: Any, y: Any) -> Any:
    """Return g value / (x^2 + y^2), by way of the length where the sum might leave the range."""
    if _is_large(raw(x), raw(y)):
        return _divide_many(g, value, x, y)
    return _divide_by_square(g, value, hypot(x, y))


@libraries.captured_as_one(unless=lambda *_: True, decides=True)
def _divide_many(g: Any, value: Any, x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        total = x * x + y * y
    if _are_squares_exact(raw(total)):
        return g * (value / total)
    return _divide_by_square(g, value, hypot(x, y))


def _are_squares_exact(a: Any) -> bool:
    """Tell whether sums of two squares are far from the ends of the range, and so as exact as any; not those of NaN."""
    info = np.finfo(a.dtype)
    return bool(a.min() > info.tiny / info.eps and a.max() <= info.max)


def _hypot_kernel(x: Any, y: Any, **keywords: Any) -> Any:
    """Compute numpy.hypot, which takes 3 ns for each element, by squares where these neither over- nor underflow."""
    return np.hypot(x, y, **keywords) if keywords or not _is_large(x, y) else _large_hypot(x, y)


@libraries.captured_as_one()
def _large_hypot(x: Any, y: Any) -> Any:
    return mapped(_hypot_piece, x, y)


def _hypot_piece(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        total = x * x
        total += y * y
    return np.sqrt(total, out=total) if _are_squares_exact(total) else np.hypot(x, y)


arctan2 = elementwise(
    "arctan2",
    np.arctan2,
    lambda g, x, y: _divide_by_sum_of_squares(g, y, x, y),
    lambda g, x, y: -_divide_by_sum_of_squares(g, x, x, y),
)
hypot: OpFunction = elementwise(
    "hypot",
    _hypot_kernel,
    lambda g, x, y, out: g * _cosine_of(x, y, out),
    lambda g, x, y, out: g * _cosine_of(y, x, out),
)


def _cosine_of(x: Any, y: Any, length: Any) -> Any:
    """Return x / length, 0 where that is 0; where it is infinite, the limit, which asks which of both are."""
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return _cosine(x, y)
    infinite = np.isinf(length)
    if libraries.may_hold(infinite):
        x, y = (libraries.namespace(length).asarray(t, length.dtype) for t in (x, y))
        limit = where_kernel(np.sign(x), 0.0, np.isinf(x)) * where_kernel(math.sqrt(0.5), 1.0, np.isinf(y))
        x, length = where_kernel(limit, x, infinite), where_kernel(1.0, length, infinite)
    return _divide_or_zero(x, length)


# Its derivative, the square of the sine over the length, is no difference of nearly equal numbers.
_cosine: OpFunction = elementwise(
    "cosine",
    lambda x, y: _cosine_of(x, y, _hypot_kernel(x, y)),
    lambda g, x, y: g * _divide_or_zero(square(_cosine(y, x)), hypot(x, y)),
    lambda g, x, y, out: -g * _divide_or_zero(out * _cosine(y, x), hypot(x, y)),
)
deg2rad = elementwise("deg2rad", np.deg2rad, lambda g: g * (math.pi / 180))
rad2deg = elementwise("rad2deg", np.rad2deg, lambda g: g * (180 / math.pi))

# ---------------------------------------------------------------- sinc
# With z = pi x, sinc(x) = j0(z), a spherical Bessel function. The functions phi_n(z) = j_n(z) / z^n are entire,
# and phi_n'(z) = -z phi_(n+1)(z) (DLMF 10.51.6): derivatives of every order without a division by z.


def _sinc_kernel(x: Any, order: int) -> Any:
    """Return phi_order(pi x)."""
    return mapped(lambda part: _phi(part, order), x)


def _phi(x: Any, order: int) -> Any:
    if order == 0:
        z = np.pi * x
        tiny = float(np.finfo(z.dtype).eps) if z.dtype.kind == "f" else 1e-20
        z = np.where(z == 0, tiny, z)  # numpy.sinc of 2.2 and before gives NaN for a 0 in float16
        return np.sin(z) / z
    z = np.pi * (x.astype(np.float32) if x.dtype.itemsize == 2 else x)
    near = np.abs(z) < order + 1
    inside, outside = where_kernel(z, 0.0, near), np.where(near, 1, z)
    with np.errstate(under="ignore"):  # the last terms of the series
        inside = _phi_by_series(inside, order)
    phi = where_kernel(inside, _phi_by_recurrence(outside, order), near)
    return phi.astype(x.dtype)


def _phi_by_series(z: Any, order: int) -> Any:
    """Return the power series in z^2 by Horner's rule.

    It has enough terms to be exact to rounding for |z| < order + 1.
    """
    coefficients = [1 / math.prod(range(1, 2 * order + 2, 2))]
    for k in range(1, 13 + order):
        coefficients.append(-coefficients[-1] / (2 * k * (2 * (order + k) + 1)))
    square = z * z
    total = square * coefficients.pop()
    total += coefficients.pop()
    while coefficients:
        total *= square
        total += coefficients.pop()
    return total


def _phi_by_recurrence(z: Any, order: int) -> Any:
    """Return phi_order by the recurrence upwards from phi_-1 = cos and phi_0.

    It is stable while the order is less than |z|.
    """
    before, phi = np.cos(z), np.sin(z) / z
    for n in range(order):
        before, phi = phi, ((2 * n + 1) * phi - before) / (z * z)
    return phi


def _sinc_slope(x: Any, order: int) -> Any:
    return x * _sinc(x, order + 1) * (-math.pi * math.pi)


_sinc = custom(
    "sinc",
    _sinc_kernel,
    vjp={"x": lambda g, x, order: g * conj_of(_sinc_slope(x, order))},
    jvp={"x": lambda t, x, order: t * _sinc_slope(x, order)},
)


def sinc(x: Any) -> Any:
    """Return sin(pi x) / (pi x) as `numpy.sinc`; exact derivatives of every order at and near 0."""
    return _sinc(x, 0) if isinstance(x, Tensor) else np.sinc(x)


# ---------------------------------------------------------------- parts of complex numbers, size and sign


def _real_of_product(t: Any, z: Any) -> Any:
    """Return Re(conj(z) t), the component of t along z, times |z|."""
    return real(t * conj(z)) if is_complex(z) else t * z


def _sign_map(g: Any, x: Any, out: Any) -> Any:
    """Apply the derivative of z/|z|: the part of g orthogonal to z, over |z|; self-adjoint; 0 for real z and at 0."""
    if not is_complex(x):
        return plain_zeros(g)
    across = g - out * _real_of_product(g, out)
    return _divide_or_zero(across, absolute(x))


real: OpFunction = elementwise("real", np.real, lambda g: g, jvp=(lambda t: real(t),), view_of=view_of)
imag: OpFunction = elementwise("imag", np.imag, lambda g: g * 1j, jvp=(lambda t: imag(t),), view_of=view_of)
absolute = elementwise(
    "absolute",
    np.absolute,
    lambda g, x: g * sign(x),
    operate="abs(x)",
    jvp=(lambda t, x: _real_of_product(t, sign(x)),),
)
fabs = elementwise("fabs", np.fabs, lambda g, x: g * sign(x))


def _sign_of_copysign(x: Any, y: Any) -> Any:
    """Return the derivative in x of |x| with the sign of y: piecewise constant, 0 at the kink."""
    return np.sign(x) * np.copysign(1.0, y)


copysign = elementwise(
    "copysign",
    np.copysign,
    lambda g, x, y: g * _sign_of_copysign(raw(x), raw(y)),
    plain_zeros,
)
sign: OpFunction = elementwise("sign", np.sign, _sign_map, jvp=(_sign_map,))


def _angle_vjp(g: Any, x: Any) -> Any:
    return _divide_by_square(g, x * 1j, absolute(x)) if is_complex(x) else plain_zeros(g)


def _angle_jvp(t: Any, x: Any) -> Any:
    if not is_complex(x):
        return plain_zeros(t)
    length = absolute(x)
    return _divide_or_zero(imag(t * _divide_or_zero(conj(x), length)), length)


angle = elementwise("angle", np.angle, _angle_vjp, jvp=(_angle_jvp,))


def _are_all_below(a: Any, bound: float) -> bool:
    return bool((np.absolute(a.imag) < bound).all())


def real_if_close(a: Any, tol: float = 100) -> Any:
    """Return the real part where all imaginary parts are close to 0, else `a`, as `numpy.real_if_close`."""
    if not isinstance(a, Tensor) or not is_complex(a):
        return a if isinstance(a, Tensor) else np.real_if_close(a, tol)
    bound = np.finfo(a.dtype).eps * tol if tol > 1 else tol
    return real(a) if asked(_are_all_below, bare(a), bound) else a


# ---------------------------------------------------------------- steps: zero derivative, not an error

floor: OpFunction = elementwise("floor", np.floor, plain_zeros)
ceil = elementwise("ceil", np.ceil, plain_zeros)
rint = elementwise("rint", np.rint, plain_zeros)
trunc: OpFunction = elementwise("trunc", np.trunc, plain_zeros)
heaviside = elementwise("heaviside", np.heaviside, plain_zeros, lambda g, x: choose(raw(x) == 0, g, 0.0))


def fix(x: Any, out: Any = None) -> Any:
    """Round towards zero as `numpy.fix`, which NumPy 2.5 deprecates for `trunc`; the derivative is zero."""
    if not (isinstance(x, Tensor) or isinstance(out, Tensor)):
        libraries.check_plain(None if out is None else x)  # of which NumPy's returns another one than out
        return np.trunc(x, out=out)
    return trunc(x, out=out)


def _spacing_kernel(a: Any, **keywords: Any) -> Any:
    xp = libraries.namespace(a)
    if xp is np or libraries.is_numpy(a):
        return np.spacing(a, **keywords)
    size = xp.abs(a)  # CuPy has no spacing
    return xp.copysign(xp.nextafter(size, xp.asarray(np.inf, a.dtype)) - size, a)


spacing = elementwise("spacing", _spacing_kernel, plain_zeros)
nextafter = elementwise("nextafter", np.nextafter, "g", plain_zeros)
