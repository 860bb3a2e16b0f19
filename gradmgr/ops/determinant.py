"""Determinants and their logarithms, with derivatives that are exact for singular matrices too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.context import is_tracked
from gradmgr._engine.custom import custom, several
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.ops import lapack, reduce, shape
from gradmgr.ops.arithmetic import divide, imag, plain_zeros, real
from gradmgr.ops.convert import is_plain
from gradmgr.ops.matrices import append_matrix_axes, conj_t, eye_like, inner_product, lift_square, swap_last_axes
from gradmgr.ops.solve import solve_by_factors
from gradmgr.ops.where import choose


def _factor_for_derivatives(a: Any) -> lapack.LU | None:
    """Factor where a derivative may ask for it and factoring is what takes the time."""
    return lapack.factor(raw(a)) if a.shape[-1] >= lapack.LARGE and is_tracked(a) else None


def _pivot_signs(factor: lapack.LU, like: Any) -> tuple[Any, Any]:
    """Return the diagonals of U and the signs of the row permutations, for a stack."""
    xp, batch = libraries.namespace(like), like.shape[:-2]
    diagonals = xp.stack([lu.diagonal() for lu in factor.lu]).reshape(*batch, -1)
    swaps = xp.stack([(p != xp.arange(len(p))).sum() for p in factor.pivots]).reshape(batch)
    return diagonals, (1 - 2 * (swaps % 2)).astype(like.dtype)


def _det_kernel(a: Any, factor: lapack.LU | None) -> Any:
    if factor is None:
        return np.linalg.det(a)
    diagonals, signs = _pivot_signs(factor, a)
    return signs * diagonals.prod(axis=-1)


def _adjoint_of_inverse(a: Any, factor: lapack.LU | None) -> Any:
    """Return A^-H of matrices that are not singular."""
    if factor is not None and a.ndim == 2 and libraries.is_numpy(a):
        return lapack.adjoint_of_inverse(factor)
    return solve_by_factors(a, eye_like(a), factor, True, False)


def _inverse_adjoint(a: Any, regular: bool, factor: lapack.LU | None, limit: float) -> Any:
    """Return A^-H, or None if a matrix of the stack has a condition number above eps^-limit."""
    if not regular:
        return None
    try:
        x = _adjoint_of_inverse(a, factor)
    except LinAlgError:
        return None
    with np.errstate(all="ignore"):
        size = np.linalg.norm(raw(a), axis=(-2, -1)) * np.linalg.norm(raw(x), axis=(-2, -1))
    return x if (size < np.finfo(a.dtype).eps ** -limit).all() else None


def _det_slope(a: Any, out: Any, factor: lapack.LU | None) -> Any:
    """Return the gradient of Re det A: conj(det A) A^-H, or for a singular A the conjugate matrix of cofactors."""
    inverse = _inverse_adjoint(a, bool(raw(out).all()), factor, 3 / 8)
    return conj_t(_adjugate(a)) if inverse is None else append_matrix_axes(conj_of(out)) * inverse


_det = custom(
    "det",
    _det_kernel,
    vjp={"a": lambda g, a, out, factor: append_matrix_axes(g) * _det_slope(a, out, factor)},
    jvp={"a": lambda t, a, out, factor: inner_product(_det_slope(a, out, factor), t)},
)


def det(a: Any) -> Any:
    """Return determinants as `numpy.linalg.det`; the derivatives of a singular matrix are exact, whatever its rank."""
    if is_plain(a):
        return np.linalg.det(a)
    a = lift_square("det", a)
    return _det(a, _factor_for_derivatives(a))


# The adjugate, the transposed matrix of cofactors: det's derivative where there is no inverse. With A = U S V^H it is
# det(U) det(V^H) V adj(S) U^H, and its first derivative is as short in the same coordinates, exact for any rank.


def _products_of_others(s: Any) -> Any:
    """Return for each singular value the product of the others."""
    ones = libraries.namespace(s).ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    return before * after


def _products_of_others_of_pairs(s: Any) -> Any:
    """Return for each pair of singular values the product of the others; 0 for a value with itself."""
    xp, n = libraries.namespace(s), s.shape[-1]
    ones = xp.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)[..., :, None]
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., None, ::-1]
    above = np.triu(xp.ones((n, n), dtype=bool), 1)
    # Row i runs over the products of s[i + 1 : j].
    shifted = np.concatenate([ones, s[..., :-1]], -1)[..., None, :]
    between = np.cumprod(xp.where(np.triu(above, 2), shifted, xp.ones_like(shifted)), -1)
    upper = xp.where(above, before * between * after, xp.zeros_like(shifted))
    return upper + swap_last_axes(upper)


def _svd_and_sign(a: Any) -> tuple[Any, Any, Any, Any]:
    """Return U, S, V^H of plain matrices, and det(U) det(V^H)."""
    u, s, vh = np.linalg.svd(a)
    return u, s, vh, (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]


def _adjugate_kernel(a: Any) -> Any:
    if a.size == 0:
        return a.copy()
    u, s, vh, turn = _svd_and_sign(a)
    return turn * (conj_t(vh) * _products_of_others(s)[..., None, :]) @ conj_t(u)


def _adjugate_slope(a: Any, t: Any) -> Any:
    """Return the derivative of adj(A) in the direction t."""
    if isinstance(a, Tensor) or isinstance(t, Tensor):
        return _further_adjugate_slope(a, t)
    if a.size == 0:
        return t
    u, s, vh, turn = _svd_and_sign(a)
    e = conj_t(u) @ t @ conj_t(vh)
    pairs = _products_of_others_of_pairs(s)
    d = -pairs * e
    k = libraries.namespace(a).arange(a.shape[-1])
    d[..., k, k] = (pairs @ e[..., k, k][..., None])[..., 0]
    return turn * (conj_t(vh) @ d @ conj_t(u))


def _further_adjugate_slope(a: Any, t: Any) -> Any:
    """Return that derivative by operations that can be recorded.

    These are products with the inverse, or without an inverse the recursion.
    """
    inverse = _inverse_adjoint(a, True, None, 1 / 4)
    if inverse is None:
        return _adjugate_slope_by_recursion(a, t)
    x = conj_t(inverse)
    return append_matrix_axes(_det(a, None)) * (append_matrix_axes(inner_product(inverse, t)) * x - x @ t @ x)


def _adjugate_slope_by_recursion(a: Any, t: Any) -> Any:
    """Return that derivative by differentiating the recursion of Faddeev and LeVerrier, for singular matrices.

    It takes products and sums only, so it has every derivative, but loses digits as matrices grow.

    Raises:
        LinAlgError: it lost half of the digits.
    """
    n, eye = a.shape[-1], eye_like(a)
    m, dm = eye, eye * 0
    for k in range(1, n):
        am, dam = a @ m, t @ m + a @ dm
        m = am - append_matrix_axes(_trace(am) / k) * eye
        dm = dam - append_matrix_axes(_trace(dam) / k) * eye
    found = dm if n % 2 else -dm
    off = np.linalg.norm(raw(found) - _adjugate_slope(raw(a), raw(t)), axis=(-2, -1))
    if (off > np.finfo(a.dtype).eps ** 0.5 * _size_of_slope(raw(a)) * np.linalg.norm(raw(t), axis=(-2, -1))).any():
        raise LinAlgError(
            f"det: further derivatives of a singular matrix of {n} rows cannot be computed precisely in {a.dtype}"
        )
    return found


def _size_of_slope(a: Any) -> Any:
    """Return the product of all but the two smallest singular values, where 0 counts as the smallest that is not 0."""
    s = np.linalg.svd(a, compute_uv=False)
    n = s.shape[-1]
    some = s > n * np.finfo(s.dtype).eps * s[..., :1]
    least = libraries.namespace(s).where(some, s, s[..., :1]).min(axis=-1, keepdims=True)
    return np.maximum(s, least)[..., : max(n - 2, 0)].prod(axis=-1)


def _trace(a: Any) -> Any:
    return reduce.sum(shape.diagonal(a, 0, -2, -1), -1)


# That tr(adj'(A)[E] F) is a second derivative, so symmetric in E and F, makes the map its own adjoint up to ^H.
_adjugate = custom(
    "adjugate",
    _adjugate_kernel,
    vjp={"a": lambda g, a: conj_t(_adjugate_slope(a, conj_t(g)))},
    jvp={"a": lambda t, a: _adjugate_slope(a, t)},
)


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Tensor
    logabsdet: Tensor


def _slogdet_kernel(a: Any, factor: lapack.LU | None) -> tuple[Any, Any]:
    if factor is None:
        sign, log = np.linalg.slogdet(a)
        return sign, log
    diagonals, signs = _pivot_signs(factor, a)
    with np.errstate(divide="ignore"):
        return signs * np.sign(diagonals).prod(axis=-1), np.log(abs(diagonals)).sum(axis=-1)


def _log_slope(a: Any, sign: Any, factor: lapack.LU | None) -> Any:
    """Return the gradient of log |det A|: A^-H, or for a singular matrix cofactors over 0."""
    singular = raw(sign) == 0
    if not singular.any():
        return _adjoint_of_inverse(a, factor)
    singular = singular[..., None, None]
    regular = solve_by_factors(choose(singular, eye_like(a), a), eye_like(a), None, True, False)
    over_0 = divide(conj_t(_adjugate(a)), choose(singular, 0.0, 1.0))
    return choose(singular, over_0, regular)


def _slogdet_vjp(g: Any, a: Any, sign: Any, factor: lapack.LU | None) -> Any:
    """With tr(A^-1 dA) = x + iy, d log|det| = x and d sign = i sign y."""
    of_sign, of_log = g
    weight = of_log
    if of_sign is not None and is_complex(a):
        turn = imag(conj_of(of_sign) * sign) * -1j
        weight = turn if of_log is None else of_log + turn
    return plain_zeros(a) if weight is None else append_matrix_axes(weight) * _log_slope(a, sign, factor)


def _slogdet_jvp(t: Any, a: Any, sign: Any, factor: lapack.LU | None) -> tuple[Any, Any]:
    change = inner_product(_log_slope(a, sign, factor), t)
    if not is_complex(a):
        return plain_zeros(sign), change
    return sign * imag(change) * 1j, real(change)


_slogdet = several("slogdet", _slogdet_kernel, ("sign", "logabsdet"), vjp=_slogdet_vjp, jvp=_slogdet_jvp)


def slogdet(a: Any) -> Any:
    """Return sign and log of the absolute determinant as `numpy.linalg.slogdet`; a complex sign has a gradient, too."""
    if is_plain(a):
        return np.linalg.slogdet(a)
    a = lift_square("slogdet", a)
    return SlogdetResult(*_slogdet(a, _factor_for_derivatives(a)))
