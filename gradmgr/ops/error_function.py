"""The error function, its relatives, and the normal distribution.

Formulas are those of the NIST Digital Library of Mathematical Functions (DLMF), chapter 7.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import OpFunction, conj_of, elementwise
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops import normal_distribution
from gradmgr.ops.arithmetic import exp
from gradmgr.ops.special_kernels import (
    ROOT_2,
    ROOT_2PI,
    ROOT_PI,
    Kernel,
    call_with_keywords,
    library_function,
    loop_dtype,
    numpy_kernel,
    quiet,
    scipy_kernel,
    to_double,
)
from gradmgr.ops.where import choose


def _make_kernel(name: str, compute: Kernel, otherwise: Kernel | None = None) -> Kernel:
    """Make a kernel of one of `_normal`, which takes large arrays, and any real numbers where SciPy is missing.

    Args:
        name: the function's.
        compute: of arrays of NumPy's, in single or double precision.
        otherwise: the kernel for all else; SciPy's function of that name unless given.
    """
    otherwise = scipy_kernel(name) if otherwise is None else otherwise

    @libraries.keeps_nothing
    def kernel(x: Any, **keywords: Any) -> Any:
        if keywords:
            return call_with_keywords(name, kernel, (x,), **keywords)
        if normal_distribution.is_worthwhile(x):
            return compute(x)
        if x.__class__ is not np.ndarray and (one := libraries.in_one(kernel, x)) is not None:
            return one(x)
        try:
            return otherwise(x)
        except errors.MissingDependencyError:
            if is_complex(x):
                raise
        x = x if batched.any_batched(x) else np.asarray(x)
        return batched.call_elementwise(compute, x.astype(loop_dtype(name, "df", (x,)), copy=False))

    return kernel


# ---------------------------------------------------------------- the error function


@quiet
def _gauss_kernel(x: Any) -> Any:
    return np.exp(-x * x)


# exp(-x^2); infinitely far out nothing of any derivative is left.
_gauss: OpFunction = elementwise(
    "gauss",
    numpy_kernel("gauss", "dfDF", _gauss_kernel),
    lambda g, x, out: g * (choose(raw(out) == 0, 0.0, x) * out) * -2.0,
)


def _tail_product(x: Any, first: int, last: int) -> Any:
    """Return E_last / E_(first-1) of the E below, for Re x > 2: the product of the ratios E_k / E_(k-1).

    Each ratio follows from the next, as E_(k-1) = 2 x E_k + 2 (k+1) E_(k+1); the ratio that is set to 0 in
    the beginning has faded out by exp(-4 sqrt(2 * 60)).
    """
    ratio, product = np.zeros_like(x), np.ones_like(x)
    for k in range(60 + last, first - 1, -1):
        ratio = 1 / (2 * x + 2 * (k + 1) * ratio)
        if k <= last:
            product = product * ratio
    return product


@quiet
def _ierfcx_kernel(x: Any, n: int) -> Any:
    """E_n = exp(x^2) times the n-th repeated integral of erfc (DLMF 7.18); E_0 is erfcx.

    By the recurrence upwards, which loses more and more for large x: there from the tail.
    """
    x, dtype = to_double(x)
    before, now = 2 / ROOT_PI, library_function("erfcx", (x,))(x)
    for k in range(n):
        before, now = now, (before - 2 * x * now) / (2 * (k + 1))
    far = np.real(x) > 2
    tail = 2 / ROOT_PI * _tail_product(np.where(far, x, 2.0), 0, n)
    return np.where(far, tail, now).astype(dtype)


_ierfcx: Function = custom(
    "ierfcx",
    lambda x, n: _ierfcx_kernel(x, n),
    vjp={"x": lambda g, x, n: g * conj_of(_ierfcx(x, n + 1) * (-2.0 * (n + 1)))},
    jvp={"x": lambda t, x, n: t * _ierfcx(x, n + 1) * (-2.0 * (n + 1))},
)

erf = elementwise("erf", _make_kernel("erf", normal_distribution.erf), lambda g, x: g * (_gauss(x) * (2 / ROOT_PI)))
erfc = elementwise(
    "erfc", _make_kernel("erfc", normal_distribution.erfc), lambda g, x: g * (_gauss(x) * (-2 / ROOT_PI))
)
erfcx = elementwise("erfcx", scipy_kernel("erfcx"), lambda g, x: g * (_ierfcx(x, 1) * -2.0))
erfinv = elementwise("erfinv", scipy_kernel("erfinv"), lambda g, out: g * (exp(out * out) * (ROOT_PI / 2)))
erfcinv = elementwise("erfcinv", scipy_kernel("erfcinv"), lambda g, out: g * (exp(out * out) * (-ROOT_PI / 2)))

# ---------------------------------------------------------------- the normal distribution


@quiet
def _hazard_kernel(x: Any) -> Any:
    """Return the density over the distribution function; both underflow, their quotient does not."""
    return math.sqrt(2 / math.pi) / library_function("erfcx", (x,))(x * (-1 / ROOT_2))


@quiet
def _excess_kernel(x: Any) -> Any:
    """Return x + hazard(x), by which the mean of what lies below x is less than x; far down from the tail."""
    x, dtype = to_double(x)
    u = x * (-1 / ROOT_2)
    far = np.real(u) > 2
    return np.where(far, ROOT_2 * _tail_product(np.where(far, u, 2.0), 1, 1), x + _hazard.op.kernel(x)).astype(dtype)


def _hazard_rule(g: Any, x: Any, out: Any) -> Any:
    """Return -g out excess, where out has underflowed 0, and -g at -inf."""
    product = out * choose(raw(out) == 0, 1.0, _excess(x))
    return -g * choose(raw(x) == -np.inf, 1.0, product)


_hazard: OpFunction = elementwise(
    "normal_hazard",
    _make_kernel("log_ndtr", normal_distribution.hazard, numpy_kernel("log_ndtr", "dfDF", _hazard_kernel)),
    _hazard_rule,
)
_excess: OpFunction = elementwise(
    "normal_excess", numpy_kernel("log_ndtr", "dfDF", _excess_kernel), lambda g, x, out: g * (1 - _hazard(x) * out)
)
ndtr = elementwise(
    "ndtr",
    _make_kernel("ndtr", normal_distribution.ndtr),
    lambda g, x: g * (_gauss(x * (1 / ROOT_2)) * (1 / ROOT_2PI)),
)
log_ndtr = elementwise("log_ndtr", _make_kernel("log_ndtr", normal_distribution.log_ndtr), lambda g, x: g * _hazard(x))
ndtri = elementwise("ndtri", scipy_kernel("ndtri"), lambda g, out: g * (exp(out * out * 0.5) * ROOT_2PI))
