"""Activation functions and softmax.

Half precision (float16, bfloat16) is computed in float32; results have the input's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Never

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, native_kernels
from gradmgr._arrays.block_kernels import can_run_in_blocks, run_in_blocks
from gradmgr._arrays.blocks import BLOCK, blocks
from gradmgr._arrays.memory_order import in_c_order, with_channels_last
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import elementwise
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr._engine.wrong_calls import unexpected
from gradmgr.nn._functions.arguments import check_floating, check_not_in_place, check_word, integer, number, one_array
from gradmgr.ops import arithmetic, error_function, extrema, special
from gradmgr.ops.convert import cast_to, copy, is_floating, narrow_to, wide_dtype, widen_half
from gradmgr.ops.reduction_arguments import axes_of
from gradmgr.ops.softmax import log_softmax_along, softmax_along
from gradmgr.ops.where import choose


def _lift_input(name: str, input: Any) -> Any:
    """Return the input as a Tensor or array of real floating-point numbers."""
    input = one_array(input)
    if input.dtype.kind != "f":
        check_floating(name, input=input)
    return input


# ---------------------------------------------------------------- large arrays


def _is_captured_block(x: Any, *others: Any) -> bool:
    """Tell whether all are captured arrays that would be one block, in which `run_in_blocks` takes them, too."""
    if x.__class__ is np.ndarray or not libraries.are_captured_from(x, *others) or x.nbytes > BLOCK or not x.ndim:
        return False
    dtype, shape = x.dtype, x.shape
    if dtype is not libraries.F4 and dtype is not libraries.F8:
        return False
    return all(a is not None and a.dtype is dtype and a.shape == shape for a in others)


def _empty_as(value: Any, g: Any) -> Any:
    """Return an uninitialised array for the cotangent of a value, in its order in memory; captured where g is."""
    return libraries.empty_like(value if g.__class__ is np.ndarray or value.__class__ is not np.ndarray else g)


def _integers(x: Any) -> Any:
    """View the bits of an array of floating-point numbers as integers."""
    return x.view(np.int32 if x.dtype is libraries.F4 else np.int64)


# ---------------------------------------------------------------- piecewise linear and exponential


_LONG_ROW = 1 << 10  # numbers of a row that NumPy compares with zeros in half the time that it takes with the number 0


def _relu_kernel(x: Any) -> Any:
    """Compute max(x, 0); with NumPy against an array of zeros, as a scalar takes three times as long."""
    if x.__class__ is not np.ndarray:
        return np.maximum(x, _zeros_of_row(x))
    is_last = x.ndim > 2 and with_channels_last(x) is not None
    if x.nbytes > BLOCK and (is_last or x.flags.c_contiguous):
        return _relu_in_blocks(x)
    made = np.zeros_like(x) if is_last else np.zeros(x.shape, x.dtype)
    return np.maximum(x, made, out=made)


def _relu_in_blocks(x: Any) -> Any:
    """Compute max(x, 0) of a large array against zeros of one block.

    Zeros of its size in new memory are read before they are written: two page faults for each page, where the result
    alone takes one.
    """
    made = libraries.empty_like(x)
    whole, (given,) = in_c_order(made, (x,))
    flat, out, parts = given.reshape(-1), whole.reshape(-1), blocks(x.size, x.nbytes)
    zeros = np.zeros(parts[0].stop, x.dtype)
    for part in parts:
        here = out[part]
        np.maximum(flat[part], zeros[: here.size], out=here)
    return made


def _zeros_of_row(x: Any) -> Any:
    """Return zeros for the last axes of a large captured array, which a replay compares it with; else the number 0."""
    if libraries.are_captured_from(x) and x.nbytes > BLOCK:
        if with_channels_last(x) is not None:
            zeros = libraries.namespace(x).zeros((*x.shape[2:], x.shape[1]), x.dtype)
            return zeros.transpose(-1, *range(x.ndim - 2))
        for first in range(x.ndim - 1, 0, -1):
            if math.prod(x.shape[first:]) >= _LONG_ROW:
                return libraries.namespace(x).zeros(x.shape[first:], x.dtype)
    return 0


@libraries.captured_as_one(unless=_is_captured_block)
def _relu_rule(g: Any, out: Any) -> Any:
    """Return g where out is not 0, and 0 elsewhere, even where g is inf or NaN, which times 0 would be NaN."""
    if not can_run_in_blocks(g, out):
        return choose(raw(out) != 0, g, g.dtype.type(0))
    made = _empty_as(out, g)
    run_in_blocks(_where_not_0, _integers(made), (_integers(g), out))
    return made


def _relu_into(g: Any, out: Any) -> Any:
    if can_run_in_blocks(g, out):
        run_in_blocks(_where_not_0, _integers(g), (_integers(g), out))
        return g
    return _relu_rule(g, out)


def _where_not_0(bits: Any, g: Any, out: Any) -> None:
    """Multiply the bits by 0 or 1: numpy.where takes 4 ns per element, as its branches are mispredicted."""
    np.multiply(g, out != 0, out=bits)


_relu = elementwise("nn.relu", _relu_kernel, _relu_rule, into=_relu_into)
libraries.computes_over(_relu_rule, _relu_into)


def relu(input: Any, inplace: bool = False) -> Any:
    """Return max(x, 0), elementwise; NaN stays NaN.

    The derivative at 0 is 0. The backward pass keeps the result only, not the input.

    Args:
        input: real floating-point numbers or integers.
        inplace: exists for programs written for torch; must be False.

    Raises:
        DtypeError: the input is complex or boolean.
        ValueError: inplace is True.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import relu
    >>> relu(np.array([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """
    if inplace:
        check_not_in_place(inplace, "relu")
    input = one_array(input)
    if input.dtype.kind not in "fiu":
        check_floating("relu", input=input)
    return _relu(input)


def _positive_or(x: Any, y: Any) -> Any:
    """Return x where it is positive, else y, in the dtype of x."""
    return choose(raw(x) > 0, x, y if y.dtype == x.dtype else cast_to(y, x.dtype))


@libraries.captured_as_one(unless=lambda g, positive, _: _is_captured_block(g, positive))
def _leaky_rule(g: Any, positive: Any, negative_slope: float) -> Any:
    if can_run_in_blocks(g, positive):
        made = _empty_as(positive, g)
        return run_in_blocks(lambda out, g, y: _leaky_piece(out, g, y, negative_slope), made, (g, positive))
    g = widen_half(g)
    return choose(raw(positive) > 0, g, g * negative_slope)


def _leaky_piece(out: Any, g: Any, positive: Any, slope: float) -> None:
    """Compute g times 1 or the slope, selected by arithmetic on their bits, without branches."""
    bits = _integers(out)
    one, other = (int(_integers(np.full(1, value, out.dtype))[0]) for value in (1, slope))
    np.multiply(positive > 0, bits.dtype.type(one - other), out=bits)
    bits += bits.dtype.type(other)
    out *= g


def _leaky_kernel(x: Any, negative_slope: float) -> Any:
    if 0 < negative_slope <= 1 and can_run_in_blocks(x):
        return run_in_blocks(lambda out, x: _greater_piece(out, x, negative_slope), libraries.empty_like(x), (x,))
    wide = widen_half(x)
    return choose(x > 0, wide, wide * negative_slope).astype(x.dtype, copy=False)


def _greater_piece(out: Any, x: Any, slope: float) -> None:
    np.multiply(x, slope, out=out)
    np.maximum(x, out, out=out)


# If the slope is not negative, the result has the sign of x, and the next layer usually keeps the result anyway.
_leaky_relu = custom(
    "nn.leaky_relu",
    _leaky_kernel,
    vjp={"x": lambda g, out, negative_slope: _leaky_rule(g, out, negative_slope)},
    jvp={"x": lambda t, out, negative_slope: _leaky_rule(t, out, negative_slope)},
)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return x where it is positive, else negative_slope * x; the derivative at 0 is negative_slope.

    Args:
        input: real floating-point numbers.
        negative_slope: a number.
        inplace: exists for programs written for torch; must be False.

    Raises:
        DtypeError: the input is not floating.
        TypeError: negative_slope is not a number.
        ValueError: inplace is True.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import leaky_relu
    >>> leaky_relu(np.array([-2.0, 3.0]), negative_slope=0.25).tolist()
    [-0.5, 3.0]
    """
    if inplace:
        check_not_in_place(inplace, "leaky_relu")
    input, slope = _lift_input("leaky_relu", input), number(negative_slope, "negative_slope", "leaky_relu")
    return _leaky_relu(input, slope) if slope >= 0 else _positive_or(input, input * slope)


@libraries.captured_as_one(unless=lambda x, _: _is_captured_block(x))
def _elu_kernel(x: Any, alpha: float) -> Any:
    with np.errstate(all="ignore"):  # expm1 overflows for large positive x, where its value is not used
        if can_run_in_blocks(x) or _is_captured_block(x):
            return run_in_blocks(lambda out, x, low: _elu_piece(out, x, low, alpha), libraries.empty_like(x), (x,), 1)
        wide = widen_half(x)
        return choose(x > 0, wide, np.expm1(wide) * alpha).astype(x.dtype, copy=False)


def _elu_piece(out: Any, x: Any, low: Any, alpha: float) -> None:
    """Compute max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    low.fill(0)
    np.maximum(x, low, out=out)
    np.minimum(x, low, out=low)
    np.expm1(low, out=low)
    low *= alpha
    out += low


@libraries.captured_as_one(unless=lambda g, x, out, alpha: _is_captured_block(g, out))
def _elu_rule(g: Any, x: Any, out: Any, alpha: float) -> Any:
    """Return g (out + alpha) where x is negative, and where that is rounded to 0, g alpha exp(x)."""
    if alpha == 1 and can_run_in_blocks(g, out) and out.size and out.item(out.argmin()) > -1:
        return run_in_blocks(_elu_slope_piece, _empty_as(out, g), (g, out))
    g, slope = widen_half(g), widen_half(out) + alpha
    end = (raw(slope) == 0) & (raw(out) <= 0)
    d = choose(raw(out) > 0, g, g * slope)
    return arithmetic.at_the_end(end, d, g, widen_half(x), lambda x: arithmetic.exp(x) * alpha)


def _elu_slope_piece(made: Any, g: Any, out: Any) -> None:
    made.fill(0)
    np.minimum(out, made, out=made)
    made += 1
    made *= g


_elu = custom(
    "nn.elu",
    _elu_kernel,
    vjp={"x": lambda g, x, out, alpha: _elu_rule(g, x, out, alpha)},
    jvp={"x": lambda t, x, out, alpha: _elu_rule(t, x, out, alpha)},
)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return x where it is positive, else alpha * (exp(x) - 1).

    The derivative for negative x is computed from the result as out + alpha, which is exact to one rounding of alpha;
    where that is 0, it is alpha * exp(x).

    Args:
        input: real floating-point numbers.
        alpha: a number.
        inplace: exists for programs written for torch; must be False.

    Raises:
        DtypeError: the input is not floating.
        TypeError: alpha is not a number.
        ValueError: inplace is True.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import elu
    >>> elu(np.array([np.log(0.25), 0.0, 3.0]), alpha=2.0).round(6).tolist()
    [-1.5, 0.0, 3.0]
    """
    if inplace:
        check_not_in_place(inplace, "elu")
    input, alpha = _lift_input("elu", input), number(alpha, "alpha", "elu")
    if alpha >= 0:
        return _elu(input, alpha)
    low = extrema.minimum(input, 0.0)
    return _positive_or(input, arithmetic.expm1(low) * alpha)


# ---------------------------------------------------------------- sigmoid, silu, softplus


def _call_widened(op: Function, input: Any) -> Any:
    """Call an op, with half precision computed in float32."""
    return narrow_to(op(widen_half(input)), input.dtype) if input.dtype.itemsize <= 2 else op(input)


def sigmoid(input: Any) -> Any:
    """Return 1 / (1 + exp(-x)), elementwise; exact to rounding for small and for large results.

    Args:
        input: real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import sigmoid
    >>> sigmoid(np.log([1.0, 3.0])).round(6).tolist()
    [0.5, 0.75]
    """
    return _call_widened(special.expit, _lift_input("sigmoid", input))


def logsigmoid(input: Any) -> Any:
    """Return log(1 / (1 + exp(-x))), elementwise, without under- or overflow.

    Args:
        input: real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import logsigmoid
    >>> logsigmoid(np.array([-1000.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    return _call_widened(special.log_expit, _lift_input("logsigmoid", input))


def tanh(input: Any) -> Any:
    """Return the hyperbolic tangent, elementwise.

    Args:
        input: real floating-point numbers.

    Raises:
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import tanh
    >>> tanh(np.log([0.5, 1.0, 2.0])).round(6).tolist()
    [-0.6, 0.0, 0.6]
    """
    return arithmetic.tanh(_lift_input("tanh", input))


# silu and gelu are x s(x), where s rises from 0 to 1 and s(0) = 1/2. Their derivative is s + x s'. The cheapest way to
# s is the quotient of result and x, with a tiny number added to both: it matters only for an x as tiny, where it makes
# the quotient 1/2. At infinity the quotient is NaN; a block that holds one uses the general rule. For this the result
# is kept as well as x; the product that usually follows keeps it anyway.
# The sum s + x s' loses no precision: where s is small, x s' has the opposite sign and is larger.

_TINIES = tuple(
    [(t.type(tiny), t.type(tiny / 2)) for t, tiny in ((libraries.F4, 2.0**-125), (libraries.F8, 2.0**-1021))]
)


def _is_finite(a: Any) -> bool:
    """Tell whether nothing is NaN or positively infinite."""
    return not a.size or math.isfinite(np.maximum.reduce(a, axis=None))


@libraries.captured_as_one()
def _times(made: Any, g: Any, x: Any, rule: Function) -> Any:
    return made * g if _is_finite(made) else rule(g, x)


@libraries.captured_as_one(unless=lambda g, x, out, *_: _is_captured_block(g, x, out))
def _gated_rule(g: Any, x: Any, out: Any, piece: Function, rule: Function) -> Any:
    """Return g (s + x s'): piece(made, x, out, s, work) writes x s' into `made`; rule(g, x) is the general rule."""
    if not (can_run_in_blocks(g, x, out) or _is_captured_block(g, x, out)):
        return rule(g, x)

    def work(made: Any, g: Any, x: Any, out: Any, s: Any, more: Any) -> None:
        tiny, half = _TINIES[0 if made.dtype is libraries.F4 else 1]
        np.add(out, half, out=s)
        np.add(x, tiny, out=made)
        s /= made
        piece(made, x, out, s, more)
        made += s
        if made.__class__ is not np.ndarray:
            made[...] = _times(made, g, x, rule)  # no guard, which would be refused after what has effects
        elif _is_finite(made):
            made *= g
        else:
            made[...] = rule(g, x)

    with np.errstate(all="ignore"):
        return run_in_blocks(work, _empty_as(x, g), (g, x, out), 2)


@libraries.captured_as_one(unless=_is_captured_block)
def _silu_kernel(x: Any) -> Any:
    with np.errstate(all="ignore"):
        if can_run_in_blocks(x) or _is_captured_block(x):
            return run_in_blocks(_silu_piece, libraries.empty_like(x), (x,))
        wide = widen_half(x)
        made = np.exp(-wide)
        made += 1
        made = wide / made
    return made.astype(x.dtype, copy=False)


def _silu_piece(out: Any, x: Any) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.divide(x, out, out=out)


def _silu_rule(g: Any, x: Any) -> Any:
    x = widen_half(x)
    slope = special.expit(-x) * x
    slope += 1
    slope *= special.expit(x)
    return slope * g  # which may be recorded where x is not


def _silu_slope_piece(made: Any, x: Any, out: Any, s: Any, work: Any) -> None:
    """Compute x s (1 - s)."""
    np.subtract(1, s, out=made)
    made *= out


_silu = custom(
    "nn.silu",
    _silu_kernel,
    vjp={"x": lambda g, x, out: _gated_rule(g, x, out, _silu_slope_piece, _silu_rule)},
    jvp={"x": lambda t, x: _silu_rule(t, x)},
)


def silu(input: Any, inplace: bool = False) -> Any:
    """Return x * sigmoid(x), elementwise.

    Args:
        input: real floating-point numbers.
        inplace: exists for programs written for torch; must be False.

    Raises:
        DtypeError: the input is not floating.
        ValueError: inplace is True.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import silu
    >>> silu(np.array([-100.0, 0.0, 100.0])).round(3).tolist()
    [-0.0, 0.0, 100.0]
    """
    if inplace:
        check_not_in_place(inplace, "silu")
    return _silu(_lift_input("silu", input))


@libraries.captured_as_one(unless=lambda x, *more: _is_plain_softplus(x, *more) and _is_captured_block(x))
def _softplus_kernel(x: Any, beta: float, threshold: float) -> Any:
    with np.errstate(all="ignore"):
        if _is_plain_softplus(x, beta, threshold) and (can_run_in_blocks(x) or _is_captured_block(x)):
            return run_in_blocks(_softplus_piece, libraries.empty_like(x), (x,), 1)
        wide = widen_half(x)
        z = wide * beta
        made = np.log1p(np.exp(-np.abs(z)))
        made += np.maximum(z, 0)
        made /= beta
    return choose(z > threshold, wide, made).astype(x.dtype, copy=False)


def _is_plain_softplus(x: Any, beta: float, threshold: float) -> bool:
    """Tell whether the threshold has no effect: in float32 the formula itself gives x and slope 1 beyond 18."""
    return beta == 1 and threshold >= 18 and x.dtype is libraries.F4


def _softplus_piece(out: Any, x: Any, work: Any) -> None:
    np.abs(x, out=work)
    np.negative(work, out=work)
    np.exp(work, out=work)
    np.log1p(work, out=work)
    out.fill(0)
    np.maximum(x, out, out=out)
    out += work


@libraries.captured_as_one(unless=lambda g, x, *more: _is_plain_softplus(x, *more) and _is_captured_block(g, x))
def _softplus_rule(g: Any, x: Any, beta: float, threshold: float) -> Any:
    if _is_plain_softplus(x, beta, threshold) and (can_run_in_blocks(g, x) or _is_captured_block(g, x)):
        with np.errstate(all="ignore"):
            return run_in_blocks(_softplus_slope_piece, _empty_as(x, g), (g, x))
    z = widen_half(x) * beta
    return g * choose(raw(z) > threshold, z.dtype.type(1), special.expit(z))


def _softplus_slope_piece(out: Any, g: Any, x: Any) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.divide(g, out, out=out)


_softplus = custom(
    "nn.softplus",
    _softplus_kernel,
    vjp={"x": lambda g, x, beta, threshold: _softplus_rule(g, x, beta, threshold)},
    jvp={"x": lambda t, x, beta, threshold: _softplus_rule(t, x, beta, threshold)},
)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + exp(beta * x)) / beta; x itself, with derivative 1, where beta * x > threshold.

    Args:
        input: real floating-point numbers.
        beta: the sharpness of the bend at 0.
        threshold: the result is x where beta * x is above it.

    Raises:
        DtypeError: the input is not floating.
        TypeError: beta or threshold is not a number.
        ValueError: beta is 0.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import softplus
    >>> np.exp(softplus(np.log([1.0, 3.0]))).round(6).tolist()
    [2.0, 4.0]
    """
    input, beta = _lift_input("softplus", input), number(beta, "beta", "softplus")
    if beta == 0:
        raise ValueError("softplus: beta must not be 0; found 0")
    return _softplus(input, beta, number(threshold, "threshold", "softplus"))


# ---------------------------------------------------------------- gelu
# The tail of the normal distribution is Phi(-a) = exp(-a^2 / 2) T(a) for a >= 0, where T falls smoothly from 1/2 and is
# close to 1 / (a sqrt(2 pi)) for large a. One rational function approximates T for all a. W. J. Cody (Rational
# Chebyshev approximations for the error function, Math. Comp. 23, 1969) splits off the exponential in the same way. The
# coefficients were computed for this module.
# In double precision T was interpolated, with 60 digits, at the Chebyshev nodes of (a - c) / (a + c), c = 4. All
# coefficients are positive, so nothing cancels. The largest relative error of T up to a = 39 is 9e-17.
# In single precision it is a quotient of degrees 3 and 4 that minimises the largest error divided by 1 + a^2 / 4 (the
# error that rounding a^2 / 2 causes), by Lawson's iteration. It is evaluated as a continued fraction, in 11 passes over
# memory where polynomials take 15. Relative error of T, with all roundings: 3e-7 up to a = 3, 7e-7 up to 6, 5e-6 up to
# 14.
# Beyond 39 and 14 the tail is 0 in these precisions.

# T = scale / (a + b0 + c1 / (a + b1 + c2 / (a + b2 + c3 / (a + b3))))
# These are NumPy scalars, as NumPy's loops start sooner with them than with Python's floats.
_SCALE = 0.3988313814482294
_FRACTION = (
    (np.float32(17.671401120213776), np.float32(4.314920765282451)),
    (np.float32(-10.017647763163424), np.float32(1.9975958182364575)),
    (np.float32(1.2146484459557596), np.float32(-0.011581271213014378)),
)
_LAST, _HALF, _LOG_SCALE = np.float32(1.1144673832003937), np.float32(-0.5), np.float32(math.log(_SCALE))
_QUOTIENT = (
    (
        *(0.398942280400452644, 10.7138328951895869, 140.882525191226147, 1173.46816580191511, 6771.51826077550299),
        *(27977.1519989202436, 82768.4191572706256, 169761.479610198821, 221197.301559300855, 142550.170991309582),
    ),
    (
        *(26.8555964642346496, 354.140121095223809, 2968.30407740956092, 17324.8193654769779, 73016.0544591701326),
        *(223747.123652492666, 490041.833272030444, 731453.126654889819, 669871.764266148648, 285100.341982619173),
    ),
)
_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2 * math.pi)
_LOG_ROOT_2PI = np.float32(math.log(_ROOT_2PI))


@libraries.captured_as_one(unless=lambda _, x: _is_captured_block(x))
def _compute(kernel: Function, x: Any) -> Any:
    """Call kernel(out, x, *scratch) with three scratch arrays and return `out`; half precision becomes float32."""
    with np.errstate(all="ignore"):
        if can_run_in_blocks(x) or _is_captured_block(x):
            return run_in_blocks(kernel, libraries.empty_like(x), (x,), 3)
        xp, wide = libraries.namespace(x), wide_dtype(x.dtype)
        made = xp.empty(x.shape or (1,), wide)  # out= takes no scalars
        kernel(made, x.reshape(made.shape), *[xp.empty(made.shape, wide) for _ in range(3)])
        return made.reshape(x.shape).astype(x.dtype, copy=False)


def _horner(a: Any, made: Any, coefficients: Sequence[float]) -> None:
    """Evaluate a polynomial of a in place by Horner's rule; `made` holds the leading part, `coefficients` the rest."""
    for c in coefficients[:-1]:
        made += c
        made *= a
    made += coefficients[-1]


def _bounded(x: Any, a: Any, work: Any, bound: float) -> None:
    """Write min(|x|, bound) into `a`. The bound is an array, as with a scalar NumPy's loop takes five times as long."""
    np.abs(x, out=a)
    work.fill(bound)
    np.minimum(a, work, out=a)


def _single_fraction(a: Any, fraction: Any) -> None:
    """Compute scale / T(a)."""
    np.add(a, _LAST, out=fraction)
    for c, b in _FRACTION:
        np.divide(c, fraction, out=fraction)
        fraction += a
        fraction += b


def _single_bell(a: Any, bell: Any) -> None:
    """Write scale exp(-a^2 / 2) into `bell`, which may be `a`."""
    np.multiply(a, a, out=bell)
    bell *= _HALF
    bell += _LOG_SCALE
    np.exp(bell, out=bell)


def _double_tail(x: Any, tail: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute a = min(|x|, 39), tail = Phi(-a) and bell = exp(-a^2 / 2)."""
    above, below = _QUOTIENT
    _bounded(x, a, work, 39.0)
    np.multiply(a, above[0], out=tail)
    _horner(a, tail, above[1:])
    np.add(a, below[0], out=work)
    work *= a
    _horner(a, work, below[1:])
    tail /= work
    _bell(a, bell, work)
    tail *= bell


def _bell(x: Any, bell: Any, work: Any) -> None:
    """Write exp(-x^2 / 2) into `bell`.

    As in Cody's paper, x is split into x rounded to sixteenths, whose square is exact, and the rest: rounding x^2 / 2
    itself would cause a relative error of up to x^2 / 2 roundings.
    """
    np.multiply(x, 16, out=bell)
    np.rint(bell, out=bell)
    bell *= 1 / 16
    np.subtract(x, bell, out=work)
    work *= x + bell
    work *= -0.5
    np.exp(work, out=work)
    bell *= bell
    bell *= -0.5
    np.exp(bell, out=bell)
    bell *= work


def _gelu_piece(out: Any, x: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute x Phi(x) as max(x, 0) - |x| Phi(-|x|), which is exact to rounding on both sides."""
    if out.dtype.itemsize == 4:
        _bounded(x, a, work, 14.0)
        _single_fraction(a, out)
        np.divide(a, out, out=out)
        _single_bell(a, a)  # into `a`, which is in the cache, not into `bell`
        out *= a
    else:
        _double_tail(x, out, a, bell, work)
        out *= a
    work.fill(0)
    np.maximum(x, work, out=work)
    np.subtract(work, out, out=out)


def _slope_piece(out: Any, x: Any, a: Any, bell: Any, work: Any) -> None:
    """Compute Phi(x) + x phi(x); for positive x as 1 minus that of -x."""
    if out.dtype.itemsize == 4:
        _bounded(x, a, work, 14.0)
        _single_fraction(a, out)
        _single_bell(a, bell)
        np.divide(bell, out, out=out)
        bell *= 1 / (_SCALE * _ROOT_2PI)
    else:
        _double_tail(x, out, a, bell, work)
        bell *= 1 / _ROOT_2PI
    bell *= a
    out -= bell
    np.subtract(1, out, out=work)
    out[...] = choose(x > 0, work, out)


def _gelu_kernel(x: Any) -> Any:
    made = native_kernels.elementwise("gelu", x)
    return _compute(_gelu_piece, x) if made is None else made


def _gelu_slope_kernel(x: Any) -> Any:
    made = native_kernels.elementwise("gelu_slope", x)
    return _compute(_slope_piece, x) if made is None else made


def _gelu_second_derivative(x: Any) -> Any:
    """Return phi(x) (2 - x^2), the second derivative, which is 0 where phi(x) underflows, also at infinity."""
    x = widen_half(x)
    bell = error_function._gauss(x / _ROOT_2)
    near = choose(raw(bell) == 0, x.dtype.type(0), x)
    return bell * (2 - near * near) / _ROOT_2PI


def _gelu_slope_piece(made: Any, x: Any, out: Any, s: Any, work: Any) -> None:
    """Compute x phi(x)."""
    if made.dtype is libraries.F4:
        np.multiply(x, x, out=made)
        made *= _HALF
        made -= _LOG_ROOT_2PI
        np.exp(made, out=made)
    else:
        _bell(x, made, work)
        made *= 1 / _ROOT_2PI
    made *= x


_gelu_slope = elementwise("nn.gelu_slope", _gelu_slope_kernel, lambda g, x: g * _gelu_second_derivative(x))
_gelu = elementwise(
    "nn.gelu",
    _gelu_kernel,
    lambda g, x, out: _gated_rule(g, x, out, _gelu_slope_piece, _gelu_rule),
)


def _gelu_rule(g: Any, x: Any) -> Any:
    made = native_kernels.elementwise("gelu_vjp", g, x)
    return g * _gelu_slope(x) if made is None else made


def _gelu_into(g: Any, x: Any) -> Any:
    kernel = native_kernels.find("gelu_vjp", g, x)
    if kernel is not None and can_run_in_blocks(g, x) and g.flags.c_contiguous:
        native_kernels.run_elementwise(kernel, g, native_kernels.contiguous(x), g)
        return g
    if not can_run_in_blocks(g, x):
        return _gelu_rule(g, x)

    def work(made: Any, x: Any, a: Any, bell: Any, more: Any, slope: Any) -> None:
        _slope_piece(slope, x, a, bell, more)
        made *= slope

    with np.errstate(all="ignore"):
        return run_in_blocks(work, g, (x,), 4)


# The same, keeping its input alone: where a kernel in C computes the backward, and for large arrays. For these it takes
# twice the time otherwise, 5 % of a transformer's step, but the result can be freed once the backward of the following
# op is done. At that point a step uses the most memory.
_gelu_of_input = elementwise("nn.gelu_of_input", _gelu_kernel, _gelu_rule, into=_gelu_into)
_LARGE = 1 << 20  # bytes

# The tanh approximation: x / 2 (1 + tanh(u)) = x s(2 u), with the logistic function s and
# u = sqrt(2 / pi) (x + 0.044715 x^3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715
_FAR = 50.0  # where s is 0 or 1 in every precision


@libraries.keeps_nothing
def _gelu_tanh_kernel(x: Any) -> Any:
    if (made := native_kernels.elementwise("gelu_tanh", x)) is not None:
        return made
    with np.errstate(all="ignore"):
        if can_run_in_blocks(x) or _is_captured_block(x):
            return run_in_blocks(_gelu_tanh_piece, libraries.empty_like(x), (x,), 1)
        if (one := libraries.in_one(_gelu_tanh_kernel, x)) is not None:
            return one(x)
        wide = widen_half(x)
        z = wide * wide
        z *= -_CUBIC
        z -= _LINEAR
        z *= wide
        z = np.exp(z)
        z += 1
        made = np.maximum(wide, -_FAR) / z
    return made.astype(x.dtype, copy=False)


def _gelu_tanh_piece(out: Any, x: Any, work: Any) -> None:
    np.multiply(x, x, out=out)
    out *= -_CUBIC
    out -= _LINEAR
    out *= x
    np.exp(out, out=out)
    out += 1
    work.fill(-_FAR)
    np.maximum(x, work, out=work)
    np.divide(work, out, out=out)


def _gelu_tanh_rule(g: Any, x: Any) -> Any:
    x = extrema.clip(widen_half(x), -_FAR, _FAR)
    square = x * x
    u = (square * _CUBIC + _LINEAR) * x
    slope = (square * (3 * _CUBIC) + _LINEAR) * x
    slope *= special.expit(-u)
    slope += 1
    slope *= special.expit(u)
    return slope * g  # which may be recorded where x is not


def _gelu_tanh_slope_piece(made: Any, x: Any, out: Any, s: Any, work: Any) -> None:
    """Compute x s (1 - s) times the slope of 2 u."""
    np.multiply(x, x, out=made)
    made *= 3 * _CUBIC
    made += _LINEAR
    made *= out
    np.subtract(1, s, out=work)
    made *= work


_gelu_tanh = custom(
    "nn.gelu_tanh",
    _gelu_tanh_kernel,
    vjp={"x": lambda g, x, out: _gated_rule(g, x, out, _gelu_tanh_slope_piece, _gelu_tanh_rule)},
    jvp={"x": lambda t, x: _gelu_tanh_rule(t, x)},
)


def _gelu_tanh_of_input_rule(g: Any, x: Any) -> Any:
    made = native_kernels.elementwise("gelu_tanh_vjp", g, x)
    return _gelu_tanh_rule(g, x) if made is None else made


_gelu_tanh_of_input = elementwise("nn.gelu_tanh_of_input", _gelu_tanh_kernel, _gelu_tanh_of_input_rule)


def gelu(input: Any, approximate: str = "none") -> Any:
    """Return x * Phi(x), elementwise, with the normal distribution's Phi; needs no SciPy.

    Results and derivatives are exact to a few roundings for negative and positive x, also for large negative x, where
    1 + erf(x / sqrt(2)) would lose all digits; at infinity they are the limits. (In float32 the relative error is at
    most 2e-6 up to |x| = 6, which rounding x^2 causes anyway, and 1e-5 beyond; with the extra `native` 1e-6.)

    Args:
        input: real floating-point numbers.
        approximate: "none", or "tanh" for x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    Raises:
        ValueError: `approximate` is another word.
        DtypeError: the input is not floating.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import gelu
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4).tolist()
    [-0.1587, 0.0, 0.8413]
    """
    if approximate != "none":
        check_word(approximate, ("none", "tanh"), "approximate", "gelu")
        input = _lift_input("gelu", input)
        has_kernel = native_kernels.find("gelu_tanh_vjp", raw(input)) is not None
        return (_gelu_tanh_of_input if has_kernel else _gelu_tanh)(input)
    input = _lift_input("gelu", input)
    has_kernel = native_kernels.find("gelu_vjp", raw(input)) is not None
    return (_gelu_of_input if has_kernel or input.nbytes >= _LARGE else _gelu)(input)


# ---------------------------------------------------------------- softmax


def _softmax(name: str, op: Function, input: Any, dim: Any, dtype: Any, *more: Any) -> Any:
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


def softmax(input: Any, dim: int | None = None, dtype: Any = None, **_wrong: Never) -> Any:
    """Return exp(x) / sum(exp(x)) along an axis, without overflow.

    A row of -inf only, or one with an inf, gives NaN, as in torch; elements that are -inf in other rows get exactly 0.

    Args:
        input: real floating-point numbers.
        dim: the axis along which the results add up to 1; it must be given.
        dtype: cast the input to it first.

    Raises:
        TypeError: `dim` is not given.
        DtypeError: the input is not floating.
        numpy.exceptions.AxisError: there is no such axis.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import softmax
    >>> softmax(np.log(np.array([[1.0, 1.0, 2.0]])), dim=1).round(4).tolist()
    [[0.25, 0.25, 0.5]]
    """
    if _wrong:
        raise unexpected(softmax, _wrong)
    return _softmax("softmax", softmax_along, input, dim, dtype)


def log_softmax(input: Any, dim: int | None = None, dtype: Any = None, **_wrong: Never) -> Any:
    """Return log(softmax(x)) along an axis, without under- or overflow; -inf where x is.

    A row of -inf only, or one with an inf, gives NaN, as in torch. Arguments and errors are those of `softmax`.

    Raises:
        TypeError: `input` is not of real floating-point numbers.
        numpy.exceptions.AxisError: `input` has no axis `dim`.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import log_softmax
    >>> np.exp(log_softmax(np.log([1.0, 3.0]), dim=0)).round(6).tolist()
    [0.25, 0.75]
    """
    if _wrong:
        raise unexpected(log_softmax, _wrong)
    return _softmax("log_softmax", log_softmax_along, input, dim, dtype, False)
