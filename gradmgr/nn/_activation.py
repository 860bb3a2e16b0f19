"""Activations and softmax, as ops of the table.

Halves (float16, bfloat16) are computed in float32 inside; results have the input's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._custom import custom
from gradmgr._elementwise import elementwise
from gradmgr._op import Function
from gradmgr._tensor import Tensor, raw
from gradmgr.nn._arguments import check_floating, check_word, integer, number, one_array
from gradmgr.ops import arithmetic, special
from gradmgr.ops.arithmetic import choose
from gradmgr.ops.convert import cast_to, copy, is_floating, narrowed, wide_dtype, widened
from gradmgr.ops.reduce import axes_of
from gradmgr.ops.softmax import log_softmax_along, softmax_along


def _lifted(name: str, input: Any) -> Any:
    """Return the input as a Tensor or array of real floating-point numbers."""
    input = one_array(input)
    check_floating(name, input=input)
    return input


# ---------------------------------------------------------------- choosing
# On a condition that is random, numpy.where and masked copies take 4 ns for each element, as the processor cannot
# foresee it. A NumPy array of floating-point numbers is chosen by its bits, in 0.3 ns.

_BITS = MappingProxyType({2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)})


def _bits(condition: Any, dtype: Any) -> Any:
    """Return integers, as wide as a dtype, of which all bits are set where the condition holds."""
    made = condition.astype(_BITS[dtype.itemsize])
    return np.negative(made, out=made)


def _by_bits(condition: Any, *arrays: Any) -> bool:
    """Tell whether all are NumPy's arrays, of one shape, and those to choose from of a dtype with such integers."""
    return (
        condition.__class__ is np.ndarray
        and condition.ndim > 0
        and all(a.__class__ is np.ndarray and a.shape == condition.shape and a.dtype.itemsize in _BITS for a in arrays)
        and all(a.dtype == arrays[0].dtype for a in arrays)
    )


def _keep(condition: Any, x: Any) -> Any:
    """Return x where the condition holds and 0 elsewhere, even if x is NaN or inf there; for plain arrays."""
    if not _by_bits(condition, x):
        return np.where(condition, x, x.dtype.type(0))
    made = _bits(condition, x.dtype)
    made &= x.view(made.dtype)
    return made.view(x.dtype)


def _select(condition: Any, x: Any, y: Any) -> Any:
    """Return numpy.where(condition, x, y) of plain arrays."""
    if not _by_bits(condition, x, y):
        return np.where(condition, x, y)
    made = _bits(condition, x.dtype)
    made &= x.view(made.dtype) ^ y.view(made.dtype)
    made ^= y.view(made.dtype)
    return made.view(x.dtype)


def _branch(condition: Any, x: Any, y: Any) -> Any:
    """Do the same in a rule, for Tensors and plain arrays."""
    return choose(condition, x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else _select(condition, x, y)


# ---------------------------------------------------------------- piecewise linear and exponential


def _relu_kernel(x: Any) -> Any:
    """Compute max(x, 0), on NumPy into a buffer of zeros: beside a number, its loop takes three times as long."""
    if x.__class__ is not np.ndarray:
        return np.maximum(x, 0)
    made = np.zeros(x.shape, x.dtype)
    return np.maximum(x, made, out=made)


def _relu_rule(g: Any, out: Any) -> Any:
    """Let g pass where out is not 0; a NaN or inf in g stays out where it is, while times 0 it would be NaN."""
    on = raw(out) != 0
    return choose(on, g, g.dtype.type(0)) if isinstance(g, Tensor) else _keep(on, g)


_relu = elementwise("nn.relu", _relu_kernel, _relu_rule)


def relu(input: Any) -> Any:
    """Return max(x, 0), elementwise; NaN stays NaN.

    The derivative at 0 is 0. Of the values only the result is kept for it.

    Args:
        input: of real floating-point numbers or integers.

    Raises:
        DtypeError: the input is complex or boolean.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import relu
    >>> relu(np.array([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """
    input = one_array(input)
    if input.dtype.kind not in "iu":
        check_floating("relu", input=input)
    return _relu.door(input)


def _either(x: Any, y: Any) -> Any:
    """Return x where it is positive, else y; in its dtype."""
    return choose(raw(x) > 0, x, y if y.dtype == x.dtype else cast_to(y, x.dtype))


def _leaky_rule(g: Any, positive: Any, negative_slope: float) -> Any:
    g = widened(g)
    return _branch(raw(positive) > 0, g, g * negative_slope)


def _leaky_kernel(x: Any, negative_slope: float) -> Any:
    wide = widened(x)
    return _select(x > 0, wide, wide * negative_slope).astype(x.dtype, copy=False)


# Where the slope is not negative the result tells the sign of x, and the next layer keeps the result anyhow.
_leaky_relu = custom(
    "nn.leaky_relu",
    _leaky_kernel,
    vjp={"x": lambda g, out, negative_slope: _leaky_rule(g, out, negative_slope)},
    jvp={"x": lambda t, out, negative_slope: _leaky_rule(t, out, negative_slope)},
)


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is positive, else negative_slope * x; the derivative at 0 is negative_slope.

    Args:
        input: of real floating-point numbers.
        negative_slope: a number.

    Raises:
        DtypeError: the input is not floating.
        TypeError: negative_slope is no number.
    """
    input, slope = _lifted("leaky_relu", input), number(negative_slope, "negative_slope", "leaky_relu")
    return _leaky_relu(input, slope) if slope >= 0 else _either(input, input * slope)


def _elu_kernel(x: Any, alpha: float) -> Any:
    with np.errstate(all="ignore"):  # an overflow where x is positive, which is not taken
        wide = widened(x)
        return _select(x > 0, wide, np.expm1(wide) * alpha).astype(x.dtype, copy=False)


def _elu_rule(g: Any, out: Any, alpha: float) -> Any:
    g = widened(g)
    return _branch(raw(out) > 0, g, g * (widened(out) + alpha))


_elu = custom(
    "nn.elu",
    _elu_kernel,
    vjp={"x": lambda g, out, alpha: _elu_rule(g, out, alpha)},
    jvp={"x": lambda t, out, alpha: _elu_rule(t, out, alpha)},
)


def elu(input: Any, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else alpha * (exp(x) - 1).

    The derivative comes from the result, as out + alpha: to within one rounding of alpha.

    Args:
        input: of real floating-point numbers.
        alpha: a number.

    Raises:
        DtypeError: the input is not floating.
        TypeError: alpha is no number.
    """
    input, alpha = _lifted("elu", input), number(alpha, "alpha", "elu")
    if alpha >= 0:
        return _elu(input, alpha)
    low = arithmetic.minimum.door(input, 0.0)
    return _either(input, arithmetic.expm1.door(low) * alpha)


# ---------------------------------------------------------------- sigmoid and kin


def _in_single(door: Function, input: Any) -> Any:
    """Call an op on halves in float32."""
    return narrowed(door(widened(input)), input.dtype)


def sigmoid(input: Any) -> Any:
    """Return 1 / (1 + exp(-x)), elementwise; exact to rounding for small and for large results.

    Args:
        input: of real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.
    """
    return _in_single(special.expit, _lifted("sigmoid", input))


def logsigmoid(input: Any) -> Any:
    """Return log(1 / (1 + exp(-x))), elementwise, without under- or overflow.

    Args:
        input: of real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.
    """
    return _in_single(special.log_expit, _lifted("logsigmoid", input))


def tanh(input: Any) -> Any:
    """Return the hyperbolic tangent, elementwise.

    Args:
        input: of real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.
    """
    return arithmetic.tanh.door(_lifted("tanh", input))


_PIECE = 16384  # numbers computed at a time, in scratch memory that stays in the processor's cache


def _rule_by_pieces(rule: Function, g: Any, x: Any) -> Any:
    """Return rule(g, x), of large arrays of NumPy's by pieces; see `_by_pieces`."""
    if not (g.__class__ is x.__class__ is np.ndarray and g.shape == x.shape and x.size > _PIECE):
        return rule(g, x)
    made, flat_g, flat_x = np.empty(x.size, wide_dtype(x.dtype)), g.reshape(-1), x.reshape(-1)
    for start in range(0, x.size, _PIECE):
        part = slice(start, start + _PIECE)
        made[part] = rule(flat_g[part], flat_x[part])
    return made.reshape(x.shape)


def _silu_kernel(x: Any) -> Any:
    wide = widened(x)
    with np.errstate(all="ignore"):
        made = np.exp(-wide)
        made += 1
        made = wide / made
    return made.astype(x.dtype, copy=False)


def _silu_rule(g: Any, x: Any) -> Any:
    x = widened(x)
    s = special.expit(x)
    slope = (1 - s) * x
    slope += 1
    slope *= s
    slope *= g
    return slope


_silu = custom(
    "nn.silu",
    _silu_kernel,
    vjp={"x": lambda g, x: _rule_by_pieces(_silu_rule, g, x)},
    jvp={"x": lambda t, x: _silu_rule(t, x)},
)


def silu(input: Any) -> Any:
    """Return x * sigmoid(x), elementwise.

    Args:
        input: of real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import silu
    >>> silu(np.array([-100.0, 0.0, 100.0])).round(3).tolist()
    [-0.0, 0.0, 100.0]
    """
    return _silu(_lifted("silu", input))


def _softplus_kernel(x: Any, beta: float, threshold: float) -> Any:
    wide = widened(x)
    z = wide * beta
    with np.errstate(all="ignore"):
        made = np.log1p(np.exp(-np.abs(z)))
        made += np.maximum(z, 0)
        made /= beta
    return _select(z > threshold, wide, made).astype(x.dtype, copy=False)


def _softplus_rule(g: Any, x: Any, beta: float, threshold: float) -> Any:
    z = widened(x) * beta
    return g * _branch(raw(z) > threshold, z.dtype.type(1), special.expit(z))


_softplus = custom(
    "nn.softplus",
    _softplus_kernel,
    vjp={"x": lambda g, x, beta, threshold: _softplus_rule(g, x, beta, threshold)},
    jvp={"x": lambda t, x, beta, threshold: _softplus_rule(t, x, beta, threshold)},
)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + exp(beta * x)) / beta; x itself, with derivative 1, where beta * x > threshold.

    Args:
        input: of real floating-point numbers.
        beta: how sharply it turns at 0.
        threshold: beyond it the result is x.

    Raises:
        DtypeError: the input is not floating.
        TypeError: beta or threshold is no number.
        ValueError: beta is 0.
    """
    input, beta = _lifted("softplus", input), number(beta, "beta", "softplus")
    if beta == 0:
        raise ValueError("softplus: beta must not be 0; found 0")
    return _softplus(input, beta, number(threshold, "threshold", "softplus"))


# ---------------------------------------------------------------- gelu
# The tail of the normal distribution is Phi(-a) = exp(-a^2 / 2) T(a) for a >= 0, with a T that falls smoothly from 1/2
# like 1 / (a sqrt(2 pi)): a quotient of polynomials gives it for all a at once. W. J. Cody (Rational Chebyshev
# approximations for the error function, Math. Comp. 23, 1969) splits off the exponential in the same way. The
# coefficients are our own: T interpolated, in 60 digits, at the Chebyshev nodes of (a - c) / (a + c); all of them are
# positive, so nothing cancels. Largest relative error of T: 7e-9 up to a = 14 (c = 3), 9e-17 up to a = 39 (c = 4).
# Beyond, the tail is 0 in these precisions.

_SINGLE = (
    (0.3989474035, 3.963998848, 17.95355815, 43.09520264, 49.36949432),
    (9.9369522, 45.98731247, 118.1664697, 164.9727488, 98.73898827),
    14.0,
)
_DOUBLE = (
    (
        *(0.398942280400452644, 10.7138328951895869, 140.882525191226147, 1173.46816580191511, 6771.51826077550299),
        *(27977.1519989202436, 82768.4191572706256, 169761.479610198821, 221197.301559300855, 142550.170991309582),
    ),
    (
        *(26.8555964642346496, 354.140121095223809, 2968.30407740956092, 17324.8193654769779, 73016.0544591701326),
        *(223747.123652492666, 490041.833272030444, 731453.126654889819, 669871.764266148648, 285100.341982619173),
    ),
    39.0,
)
_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2 * math.pi)


def _by_pieces(kernel: Function, x: Any) -> Any:
    """Call kernel(x, out, a, b, c), which fills `out` from x with scratch memory a, b, c, on pieces of a NumPy array.

    Memory newly asked for is cleared by the system page by page, which took longer than to compute here.
    """
    xp, wide = _xp.namespace(x), wide_dtype(x.dtype)
    made, given = xp.empty(x.shape, wide), x
    if x.__class__ is not np.ndarray or not x.flags.c_contiguous or x.size <= _PIECE:
        if not x.ndim:  # out= takes no numbers
            made, x = made.reshape((1,)), x.reshape((1,))
        kernel(x, made, *[xp.empty(x.shape, wide) for _ in range(3)])
    else:
        flat, out, scratch = x.reshape(-1), made.reshape(-1), np.empty((3, _PIECE), wide)
        for start in range(0, x.size, _PIECE):
            piece = flat[start : start + _PIECE]
            kernel(piece, out[start : start + _PIECE], *scratch[:, : piece.size])
    return made.reshape(given.shape).astype(given.dtype, copy=False)


def _horner(a: Any, made: Any, coefficients: Sequence[float]) -> None:
    """Go on evaluating a polynomial of a, highest powers first, from its leading part, in place."""
    for c in coefficients[:-1]:
        made += c
        made *= a
    made += coefficients[-1]


def _normal_tail(x: Any, tail: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute Phi(-a), a = |x|, within bounds, and exp(-a^2 / 2); `work` is overwritten."""
    single = a.dtype.itemsize == 4
    above, below, bound = _SINGLE if single else _DOUBLE
    np.abs(x, out=a)
    np.clip(a, 0, bound, out=a)  # for a NumPy array four times as fast as minimum
    np.multiply(a, above[0], out=tail)
    _horner(a, tail, above[1:])
    np.add(a, below[0], out=work)
    work *= a
    _horner(a, work, below[1:])
    tail /= work
    if single:
        np.multiply(a, a, out=bell)
    else:
        _split_square(a, bell, work)
        np.exp(work, out=work)
        tail *= work
    bell *= -0.5
    np.exp(bell, out=bell)
    tail *= bell
    if not single:
        bell *= work


def _split_square(a: Any, near: Any, rest: Any) -> None:
    """Put into `near` the square of a rounded to sixteenths, which is exact, and into `rest` what lacks, times -1/2.

    As in Cody's: the exponential of half a rounded square would be off by up to a^2 / 2 roundings.
    """
    np.multiply(a, 16, out=near)
    np.rint(near, out=near)
    near *= 1 / 16
    np.subtract(a, near, out=rest)
    rest *= a + near
    rest *= -0.5
    near *= near


def _gelu_piece(x: Any, out: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute x Phi(x) as max(x, 0) - |x| Phi(-|x|), which is exact to rounding on both sides."""
    _normal_tail(x, out, a, bell, work)
    out *= a
    bell[...] = 0
    np.maximum(x, bell, out=bell)
    np.subtract(bell, out, out=out)


def _slope_piece(x: Any, out: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute Phi(x) + x phi(x); for positive x as 1 minus that of -x."""
    _normal_tail(x, out, a, bell, work)
    bell *= a
    bell *= 1 / _ROOT_2PI
    out -= bell
    np.subtract(1, out, out=work)
    out[...] = _select(x > 0, work, out)


def _gelu_kernel(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return _by_pieces(_gelu_piece, x)


def _gelu_slope_kernel(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return _by_pieces(_slope_piece, x)


def _gelu_bend(x: Any) -> Any:
    """phi(x) (2 - x^2), the second derivative; infinitely far out nothing of it is left."""
    x = widened(x)
    bell = special._gauss.door(x / _ROOT_2)
    near = choose(raw(bell) == 0, x.dtype.type(0), x)
    return bell * (2 - near * near) / _ROOT_2PI


_gelu_slope = elementwise("nn.gelu_slope", _gelu_slope_kernel, lambda g, x: g * _gelu_bend(x))
_gelu = elementwise("nn.gelu", _gelu_kernel, lambda g, x: g * _gelu_slope.door(x))

# By its tanh: x / 2 (1 + tanh(u)) = x s(2 u), with the logistic function s, u = sqrt(2 / pi) (x + 0.044715 x^3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715
_FAR = 50.0  # where s is 0 or 1 in every precision


def _gelu_tanh_kernel(x: Any) -> Any:
    wide = widened(x)
    with np.errstate(all="ignore"):
        z = wide * wide
        z *= -_CUBIC
        z -= _LINEAR
        z *= wide
        z = np.exp(z)
        z += 1
        made = np.maximum(wide, -_FAR) / z
    return made.astype(x.dtype, copy=False)


def _gelu_tanh_rule(g: Any, x: Any) -> Any:
    x = arithmetic.clip(widened(x), -_FAR, _FAR)
    square = x * x
    s = special.expit((square * _CUBIC + _LINEAR) * x)
    slope = (square * (3 * _CUBIC) + _LINEAR) * x
    slope *= 1 - s
    slope += 1
    slope *= s
    slope *= g
    return slope


_gelu_tanh = custom(
    "nn.gelu_tanh",
    _gelu_tanh_kernel,
    vjp={"x": lambda g, x: _rule_by_pieces(_gelu_tanh_rule, g, x)},
    jvp={"x": lambda t, x: _gelu_tanh_rule(t, x)},
)


def gelu(input: Any, approximate: str = "none") -> Any:
    """Return x * Phi(x), elementwise, with the normal distribution's Phi; needs no SciPy.

    Results and derivatives are exact to rounding on both sides, also far out, where 1 + erf(x) has lost all digits;
    and at infinity, where they are the limits 0 and inf.

    Args:
        input: of real floating-point numbers.
        approximate: "none", or "tanh" for x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    Raises:
        ValueError: another word for `approximate`.
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import gelu
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4).tolist()
    [-0.1587, 0.0, 0.8413]
    """
    check_word(approximate, ("none", "tanh"), "approximate", "gelu")
    input = _lifted("gelu", input)
    return _gelu.door(input) if approximate == "none" else _gelu_tanh(input)


# ---------------------------------------------------------------- softmax


def _normalised(name: str, op: Function, input: Any, dim: Any, dtype: Any, *more: Any) -> Any:
    if dim is None:
        raise TypeError(f"{name} needs the axis along which to normalise; pass dim=-1 for the last")
    input = one_array(input)
    input = cast_to(input, dtype)
    if not is_floating(input.dtype):
        raise errors.DtypeError(
            f"{name} takes real floating-point numbers; found input of dtype {input.dtype}; pass dtype=numpy.float32"
        )
    axes = axes_of(integer(dim, "dim", name), input.ndim, name, of_number=True)
    return op(input, axes, *more) if input.size else copy(input)


def softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """Return exp(x) / sum(exp(x)) along an axis, without overflow.

    A row of which all are -inf, or one is inf, gives NaN, as in torch; where some are -inf, they get exactly 0.

    Args:
        input: of real floating-point numbers.
        dim: the axis along which the results add up to 1; it must be given.
        dtype: cast the input to it first.

    Raises:
        TypeError: no `dim`.
        DtypeError: the input is not floating.
        numpy.exceptions.AxisError: there is no such axis.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import softmax
    >>> softmax(np.log(np.array([[1.0, 1.0, 2.0]])), dim=1).round(4).tolist()
    [[0.25, 0.25, 0.5]]
    """
    return _normalised("softmax", softmax_along, input, dim, dtype)


def log_softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """Return log(softmax(x)) along an axis, without under- or overflow; -inf where x is.

    A row of which all are -inf, or one is inf, gives NaN, as in torch. Arguments and errors as of `softmax`.
    """
    return _normalised("log_softmax", log_softmax_along, input, dim, dtype, False)
