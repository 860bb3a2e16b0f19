"""Polynomials given by their coefficients, highest power first, as NumPy's older functions take them.

`numpy.poly1d` is NumPy's own class. One that holds a Tensor works through these functions: its operators and
methods give Tensors and polynomials that hold Tensors, and what cannot, such as its `/`, raises (`polydiv` does it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import is_batched
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.arithmetic import real, sqrt
from gradmgr.ops.calculus import convolve
from gradmgr.ops.convert import astype, holds_tensor, lift, lift_like
from gradmgr.ops.create import vander
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.products import outer
from gradmgr.ops.reduce import sum
from gradmgr.ops.shape import atleast_1d, expand_dims, transpose
from gradmgr.ops.solve import inv, lstsq


def _coefficients(p: Any, *others: Any) -> Any:
    """Return the coefficients; numbers and lists on the device of the other arguments."""
    return lift_like(p.coeffs if isinstance(p, np.poly1d) else p, *[_coefficients_of(q) for q in others])


def _coefficients_of(p: Any) -> Any:
    """Return the coefficients of a poly1d; a list of Tensors as one Tensor."""
    p = p.coeffs if isinstance(p, np.poly1d) else p
    return lift(p) if holds_tensor(p) else p


def _have_tensors(*arguments: Any) -> bool:
    return any(holds_tensor(p.coeffs if isinstance(p, np.poly1d) else p) for p in arguments)


def _as_poly1d_if_given(z: Any, *arguments: Any) -> Any:
    """Return a result as NumPy does: a poly1d where an argument is one."""
    return np.poly1d(z) if any(isinstance(p, np.poly1d) for p in arguments) else z


# ---------------------------------------------------------------- values, derivatives, integrals


def polyval(p: Any, x: Any) -> Any:
    """Evaluate at x as `numpy.polyval`, by Horner's rule; gradients flow into p and x."""
    if not _have_tensors(p, x):
        return np.polyval(p, x)
    p = _coefficients(p, x)
    if isinstance(x, np.poly1d):
        y: Any = 0
        for k in range(len(p)):
            y = y * x + p[k]
        return y
    y = _horner(p, lift_like(x, p))
    return y if isinstance(y, Tensor) else wrap(y)


def _horner(p: Any, x: Any) -> Any:
    y = raw(x)
    y = y * y.dtype.type(0)  # not finite where x is not, as NumPy's; of booleans a boolean
    for k in range(len(p)):
        y = (y * x if k else y) + p[k]
    return y


def _order(m: Any, name: str) -> int:
    order = int(m)
    if order < 0:
        raise ValueError(f"{name}: the order must be positive or 0; found {order}")
    return order


def polyder(p: Any, m: int = 1) -> Any:
    """Differentiate m times as `numpy.polyder`."""
    if not _have_tensors(p):
        return np.polyder(p, m)
    z = _coefficients(p)
    for _ in range(_order(m, "polyder")):
        z = _derivative(z)
    return _as_poly1d_if_given(z, p)


def _derivative(p: Any) -> Any:
    return p[:-1] * libraries.namespace(raw(p)).arange(len(p) - 1, 0, -1)


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """Integrate m times as `numpy.polyint`; gradients flow into the constants k, too."""
    if not _have_tensors(p, k):
        return np.polyint(p, m, k)
    m, z = _order(m, "polyint"), _coefficients(p)
    constants = atleast_1d(np.zeros(m) if k is None else lift(k))
    if len(constants) == 1 and m > 1:
        constants = constants * libraries.namespace(raw(constants)).ones(m)
    if len(constants) < m:
        raise ValueError("k must be a scalar or a rank-1 array of length 1 or >m.")
    xp = libraries.namespace(raw(z))
    for j in range(m):
        constant = constants[j : j + 1]
        constant = constant if isinstance(constant, Tensor) else xp.asarray(constant)
        z = concatenate([z / xp.arange(len(z), 0, -1), constant])
    return _as_poly1d_if_given(z, p)


# ---------------------------------------------------------------- arithmetic


def _align(a1: Any, a2: Any) -> tuple[Any, Any]:
    """Return both polynomials, the shorter one with zeros before it."""
    x, y = atleast_1d(_coefficients(a1, a2)), atleast_1d(_coefficients(a2, a1))
    return _pad_front(x, len(y)), _pad_front(y, len(x))


def _pad_front(x: Any, length: int) -> Any:
    more = length - len(x)
    return concatenate([zeros(x, (more,), x.dtype), x]) if more > 0 else x


def _sum_function(function: Callable[..., Any], operate: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def call(a1: Any, a2: Any) -> Any:
        if not _have_tensors(a1, a2):
            return function(a1, a2)
        return _as_poly1d_if_given(operate(*_align(a1, a2)), a1, a2)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = f"`numpy.{function.__name__}` of coefficients of any two lengths."
    return call


polyadd = _sum_function(np.polyadd, lambda x, y: x + y)
polysub = _sum_function(np.polysub, lambda x, y: x - y)


def _trim(p: Any, other: Any) -> Any:
    """Coefficients without leading zeros, at least one."""
    p = atleast_1d(_coefficients(p, other))
    if not len(p):
        nothing = zeros(p, (1,), p.dtype)
        return wrap(nothing) if isinstance(p, Tensor) else nothing
    values = raw(p)
    if is_batched(values) and (values[:1] != 0).all():  # of every example: there is nothing to look for
        return p
    (places,) = np.nonzero(values)
    return p[int(libraries.common_value(places[0], "the first coefficient's place")) :] if len(places) else p[-1:]


def polymul(a1: Any, a2: Any) -> Any:
    """Multiply as `numpy.polymul`. Leading zeros are trimmed, and get no gradient."""
    if not _have_tensors(a1, a2):
        return np.polymul(a1, a2)
    x, y = _trim(a1, a2), _trim(a2, a1)
    return _as_poly1d_if_given(convolve(x, y), a1, a2)


def polydiv(u: Any, v: Any) -> Any:
    """Divide with remainder as `numpy.polydiv`; gradients flow into the quotient's and the remainder's part."""
    if not _have_tensors(u, v):
        return np.polydiv(u, v)
    x, y = atleast_1d(_coefficients(u, v)), atleast_1d(_coefficients(v, u))
    dtype = np.result_type(x.dtype, y.dtype, 0.0)
    quotients = max(len(x) - len(y) + 1, 0)
    q = wrap(zeros(x, (max(quotients, 1),), dtype))
    r, y = astype(x, dtype), astype(y, dtype)
    r = r if isinstance(r, Tensor) else wrap(r)
    scale = 1.0 / y[0]
    for k in range(quotients):
        d = scale * r[k]
        q[k] = d
        r[k : k + len(y)] -= d * y
    values = raw(r)
    first = 0
    while first < len(values) - 1 and libraries.common_value(
        np.allclose(values[first], 0, rtol=1e-14), "the length of the remainder"
    ):
        first += 1
    r = r[first:] if first else r
    return _as_poly1d_if_given(q, u, v), _as_poly1d_if_given(r, u, v)


# ---------------------------------------------------------------- roots


def _companion_roots(p: Any) -> Any:
    """Compute numpy.roots for CuPy, whose own takes symmetric companion matrices only."""
    xp = libraries.namespace(p)
    (places,) = xp.nonzero(p)
    if not len(places):
        return xp.zeros(0)
    end = int(places[-1]) + 1
    q = p[int(places[0]) : end]
    q = q if q.dtype.kind in "fc" else q.astype(float)
    found = xp.zeros(0)
    if len(q) > 1:
        companion = xp.diag(xp.ones(len(q) - 2, q.dtype), -1)
        companion[0, :] = -q[1:] / q[0]
        found = xp.linalg.eigvals(companion)
    return xp.concatenate([found, xp.zeros(len(p) - end, found.dtype)])


def _roots_kernel(p: Any) -> Any:
    return np.roots(p) if libraries.root(p) is np else _companion_roots(p)


# Where P(r) = 0, dr/dp_j = -r^(n-j) / P'(r): at simple roots, also at 0 and with leading zeros.
_roots = custom(
    "roots",
    _roots_kernel,
    vjp={"p": lambda g, p, out: -(transpose(conj_of(vander(out, len(p)))) @ (g / conj_of(_slope_at_roots(p, out))))},
    jvp={"p": lambda t, p, out: -(vander(out, len(p)) @ t) / _slope_at_roots(p, out)},
)


def _slope_at_roots(p: Any, roots_: Any) -> Any:
    return _horner(_derivative(p), roots_)


def _check_lapack(name: str, a: Any) -> None:
    if a.dtype.itemsize == 2 and libraries.is_differentiable(a.dtype):
        raise TypeError(f"{name}: array type {a.dtype} is unsupported in linalg; cast to float32 first")


def roots(p: Any) -> Any:
    """Find the roots as `numpy.roots`; the derivative is that of simple roots, infinite at a multiple one."""
    if not _have_tensors(p):
        return np.roots(p)
    p = atleast_1d(_coefficients(p))
    if p.ndim != 1:
        raise ValueError("roots: Input must be a rank-1 array.")
    _check_lapack("roots", p)
    return _roots(p)


def _characteristic_polynomial(x: Any) -> Any:
    if libraries.root(x) is np:
        return np.poly(x)
    return raw(_from_roots(wrap(libraries.namespace(x).linalg.eigvals(x))))


def _adjugate_terms(x: Any, out: Any) -> list[Any]:
    """Return the matrices of adj(zI - x) by powers of z, the highest first (Faddeev and LeVerrier's recursion)."""
    one = libraries.namespace(raw(x)).eye(len(x), dtype=x.dtype)
    terms = [one]
    for k in range(1, len(x)):
        terms.append(x @ terms[-1] + out[k] * one)
    return terms


def _characteristic_vjp(g: Any, x: Any, out: Any) -> Any:
    terms = stack([transpose(conj_of(term)) for term in _adjugate_terms(x, out)])
    return -sum(expand_dims(g[1:], (1, 2)) * terms, axis=0)


def _characteristic_jvp(t: Any, x: Any, out: Any) -> Any:
    slopes = -sum(stack([transpose(term) for term in _adjugate_terms(x, out)]) * t, axis=(1, 2))
    return concatenate([zeros(slopes, (1,), slopes.dtype), slopes])


# det(zI - x), whose derivative is -tr(adj(zI - x) dx): smooth where eigenvalues meet, too.
_charpoly = custom("poly", _characteristic_polynomial, vjp={"x": _characteristic_vjp}, jvp={"x": _characteristic_jvp})


def _from_roots(zs: Any) -> Any:
    zs = as_type(zs, np.mintypecode(zs.dtype.char))
    one = libraries.namespace(raw(zs)).ones(1, zs.dtype)
    a = one
    for k in range(len(zs)):
        a = concatenate([a, 0 * one]) - concatenate([0 * one, a * zs[k]])
    values = raw(zs)
    if values.dtype.kind == "c" and (np.sort(values) == np.sort(values.conj())).all():
        a = real(a)
    return a


def poly(seq_of_zeros: Any) -> Any:
    """Return the polynomial with these roots, or a matrix's characteristic polynomial, as `numpy.poly`."""
    if not holds_tensor(seq_of_zeros):
        return np.poly(seq_of_zeros)
    zs = atleast_1d(lift(seq_of_zeros))
    if zs.ndim == 2 and zs.shape[0] == zs.shape[1] != 0:
        _check_lapack("poly", zs)
        return _charpoly(zs)
    if zs.ndim != 1:
        raise ValueError("poly: input must be 1d or non-empty square 2d array.")
    return _from_roots(zs) if len(zs) else 1.0


# ---------------------------------------------------------------- fitting


def _check_points(x: Any, y: Any, deg: int) -> None:
    if deg < 0:
        raise ValueError("polyfit: expected deg >= 0")
    if x.ndim != 1:
        raise TypeError("polyfit: expected 1D vector for x")
    if x.size == 0:
        raise TypeError("polyfit: expected non-empty vector for x")
    if y.ndim < 1 or y.ndim > 2:
        raise TypeError("polyfit: expected 1D or 2D array for y")
    if len(x) != len(y):
        raise TypeError("polyfit: expected x and y to have same length")


def _multiply_by_weights(lhs: Any, rhs: Any, w: Any) -> tuple[Any, Any]:
    w = lift(w) + 0.0
    if w.ndim != 1:
        raise TypeError("polyfit: expected a 1-d array for weights")
    if len(w) != len(rhs):
        raise TypeError("polyfit: expected w and y to have the same length")
    column = expand_dims(w, 1)
    return lhs * column, rhs * (column if rhs.ndim == 2 else w)


def polyfit(x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    """Fit by least squares as `numpy.polyfit`; gradients flow into x, y and the weights."""
    if not _have_tensors(x, y, w, rcond):
        plain: Any = np.polyfit  # its stubs tell the results of full and cov apart
        return plain(x, y, deg, rcond, full, w, cov)
    x, y, order = lift(x) + 0.0, lift(y) + 0.0, int(deg) + 1
    x = x if isinstance(x, Tensor) else wrap(x)
    _check_points(x, y, order - 1)
    rcond = len(x) * np.finfo(x.dtype).eps if rcond is None else raw(rcond)
    lhs, rhs = vander(x, order), y
    if w is not None:
        lhs, rhs = _multiply_by_weights(lhs, rhs, w)
    scale = sqrt(sum(lhs * lhs, axis=0))
    lhs = lhs / scale
    c, residuals, rank, s = lstsq(lhs, rhs, rcond)
    c = transpose(transpose(c) / scale)
    if libraries.common_value(raw(rank), "the rank") != order and not full:
        errors.warn("Polyfit may be poorly conditioned", np.exceptions.RankWarning)
    if full:
        return c, residuals, rank, s, rcond
    return (c, _covariance(lhs, scale, residuals, y, cov)) if cov else c


def _covariance(lhs: Any, scale: Any, residuals: Any, y: Any, cov: Any) -> Any:
    """Return the covariance of the coefficients: by the residuals, or with cov="unscaled" by the weights alone."""
    base = inv(transpose(lhs) @ lhs) / outer(scale, scale)
    factor: Any = 1
    if cov != "unscaled":
        points, order = lhs.shape
        if points <= order:
            raise ValueError("polyfit: the number of data points must exceed order to scale the covariance matrix")
        factor = residuals / (points - order)
    return base * factor if y.ndim == 1 else expand_dims(base, 2) * factor
