"""The gamma and beta functions and their logarithms, polygamma, and the zeta function.

Formulas are those of the NIST Digital Library of Mathematical Functions (DLMF), chapter 5.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of, elementwise
from gradmgr._engine.mutation import store
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.convert import lift, untracked_value
from gradmgr.ops.reduce import sum
from gradmgr.ops.shape import expand_dims
from gradmgr.ops.special_kernels import (
    call_with_parameter,
    constant_parameter,
    library_function,
    quiet,
    scipy_kernel,
    to_double,
)
from gradmgr.ops.where import choose

# ---------------------------------------------------------------- the gamma function

# The Bernoulli numbers B_2, B_4, ...
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510),
    *(43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730),
)


def _complex_polygamma(z: Any, n: int) -> Any:
    """Compute the polygamma function of order n >= 1 in the complex plane; SciPy has it on the real line only.

    From the left half to the right by reflection (DLMF 5.15.6), on from there by 20 steps of the
    recurrence (5.15.5), and then by the asymptotic series (5.15.8).
    """
    left = z.real < 0
    w = np.where(left, 1 - z, z)
    total = np.zeros_like(w)
    for _ in range(20 + n):
        total = total + math.factorial(n) * w ** (-n - 1)
        w = w + 1
    series = math.factorial(n - 1) + math.factorial(n) / (2 * w)
    for k, b in enumerate(_BERNOULLI, start=1):
        series = series + b * (math.factorial(2 * k + n - 1) / math.factorial(2 * k)) * w ** (-2 * k)
    right = (total + series * w ** (-n)) * (-1) ** (n + 1)
    return np.where(left, right * (-1) ** n - math.pi * _cot_slope(np.where(left, z, -0.5), n), right)


def _cot_slope(z: Any, n: int) -> Any:
    """Return the n-th derivative of cot(pi z), n >= 1: a polynomial in the cotangent over the squared sine.

    More than 100 away from the real line, where it is negligible compared with a polygamma function, it is cut off.
    """
    pi, polynomial = math.pi, np.polynomial.Polynomial
    z = z.real - np.round(z.real) + 1j * np.clip(z.imag, -100, 100)
    sine, factor = np.sin(pi * z), polynomial([-pi])
    for _ in range(n - 1):
        factor = -pi * (polynomial([0, 2]) * factor + polynomial([1, 0, 1]) * factor.deriv())
    total, cot = np.zeros_like(z), np.cos(pi * z) / sine
    for c in factor.coef[::-1]:
        total = total * cot + float(c)
    return total / (sine * sine)


@quiet
def _polygamma_kernel(x: Any, n: Any) -> Any:
    if is_complex(x):
        return _complex_polygamma(*to_double(x)[:1], n).astype(x.dtype)
    if batched.any_batched(x, n):
        return batched.call_elementwise(_polygamma_kernel, x, n)
    xp = libraries.namespace(x)
    polygamma = libraries.foreign(library_function("polygamma", (x,)), n, x)
    return polygamma(n if xp is np else xp.asarray(n), x)  # CuPy's asks n for its shape


_polygamma: Function = custom(
    "polygamma",
    lambda x, n: _polygamma_kernel(x, n),
    vjp={"x": lambda g, x, n: g * conj_of(_polygamma(x, n + 1))},
    jvp={"x": lambda t, x, n: t * _polygamma(x, n + 1)},
)
digamma = elementwise("digamma", scipy_kernel("digamma"), lambda g, x: g * _polygamma(x, 1))
gamma = elementwise("gamma", scipy_kernel("gamma"), lambda g, x, out: g * (out * digamma(x)))
gammaln = elementwise("gammaln", scipy_kernel("gammaln"), lambda g, x: g * digamma(x))
loggamma = elementwise("loggamma", scipy_kernel("loggamma"), lambda g, x: g * digamma(_on_principal_branch(x)))


def _on_principal_branch(x: Any) -> Any:
    """NaN for negative real x, where loggamma is NaN."""
    return x if is_complex(x) else choose(raw(x) < 0, np.nan, x)


def _beta_slope(x: Any, y: Any) -> Any:
    return digamma(x) - digamma(x + y)


beta = elementwise(
    "beta",
    scipy_kernel("beta"),
    lambda g, x, y, out: g * (out * _beta_slope(x, y)),
    lambda g, x, y, out: g * (out * _beta_slope(y, x)),
)
betaln = elementwise(
    "betaln",
    scipy_kernel("betaln"),
    lambda g, x, y: g * _beta_slope(x, y),
    lambda g, x, y: g * _beta_slope(y, x),
)
psi = digamma


def polygamma(n: Any, x: Any) -> Any:
    """Return the n-th derivative of digamma, in float64 as SciPy; n is a constant."""
    order = constant_parameter(n, "polygamma", "n")
    x = lift(x)
    if is_complex(x):
        raise TypeError("special.polygamma takes real x, as SciPy's; found complex values")
    return call_with_parameter(_polygamma, x, order, n)


def multigammaln(a: Any, d: Any) -> Any:
    """Return the logarithm of the multivariate gamma function of dimension d.

    Raises:
        ValueError: d is no positive integer, or some a is not above (d - 1) / 2.
    """
    a, d = lift(a), untracked_value(d, "special.multigammaln", "d")
    if np.ndim(d) or d != int(d) or d < 1:
        raise ValueError(f"multigammaln: d should be a positive integer (dimension); found {d!r}")
    if (raw(a) <= (d - 1) / 2).any():
        raise ValueError(f"multigammaln: condition a > 0.5 * (d-1) not met for d = {d}")
    xp = libraries.namespace(raw(a))
    steps = xp.arange(int(d)).astype(a.dtype if a.dtype.kind == "f" else np.float64) / 2
    terms = gammaln(expand_dims(a, -1) - steps)
    return sum(terms, -1) + np.float64(d * (d - 1) / 4 * math.log(math.pi))


# ---------------------------------------------------------------- the zeta function


def _zeta_kernel(q: Any, x: Any) -> Any:
    return library_function("zeta", (q, x))(x, q)


_zeta: Function = custom(
    "zeta",
    _zeta_kernel,
    vjp={"q": lambda g, q, x: g * (_zeta(q, x + 1) * -x)},
    jvp={"q": lambda t, q, x: t * (_zeta(q, x + 1) * -x)},
)


def zeta(x: Any, q: Any = None, out: Any = None) -> Any:
    """Return the Hurwitz zeta function, Riemann's without q; differentiable in q, x is a constant."""
    if q is None and libraries.root(raw(x)) is not np:
        raise errors.UnsupportedFunctionError("special.zeta needs q on a GPU: cupyx.scipy.special has no Riemann zeta")
    if not any(isinstance(t, Tensor) for t in (x, q, out)):
        return library_function("zeta", (x, q))(x, q, **({} if out is None else {"out": out}))
    exponent = constant_parameter(x, "zeta", "x")
    if q is None:
        z = wrap(library_function("zeta", (exponent,))(exponent))
    else:
        z = call_with_parameter(_zeta, q if isinstance(q, Tensor) else libraries.need_operand(q, "zeta"), exponent, x)
    return z if out is None else store(out, z, "zeta(out=...)", may_broadcast=True)
