"""Linear algebra: solving, inverses, determinants, norms, products of several matrices, functions of a matrix.

In the comments X^H is the conjugate transpose, which is also how a rule of a complex matrix is got from that of a
real one. The rules are those of M. B. Giles, "An extended collection of matrix derivative results" (2008), where
no other source is named.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import math
import operator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.linalg import LinAlgError

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.broadcast import broadcast_like, is_complex, unbroadcast
from gradmgr._engine.custom import apply, custom, several
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.op import INPUTS, PULLS, RETRACKS, Function, Grads, Op, Owned, Retrack, accumulate, register
from gradmgr._engine.recorder import is_tracked
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import products, reduce, shape
from gradmgr.ops.arithmetic import absolute, choose, divide, imag, plain_zeros, power, real
from gradmgr.ops.convert import NOT_GIVEN, cast_to, is_plain, lift, untracked
from gradmgr.ops.decompose import svd, svdvals
from gradmgr.ops.join import concatenate
from gradmgr.ops.products import dot
from gradmgr.ops.shape import expand_dims, moveaxis, ravel, reshape, tril, triu

_HAS_SCIPY = importlib.machinery.PathFinder.find_spec("scipy") is not None
# Below this size NumPy's loop over a stack of matrices in C beats one LAPACK call for each: for 64 matrices of 10 rows
# 47 us to factor and solve against 110, for 16 of 100 rows 670 us against 620, then 85 for each further solve.
_LARGE = 32


# ---------------------------------------------------------------- checks


def _linalg_dtype(name: str, *arrays: Any) -> Any:
    """The dtype numpy.linalg computes in: integers count as float64, halves are not taken."""
    for a in arrays:
        if a.dtype.kind not in "biu" and a.dtype.char not in "fdFD":
            raise TypeError(f"{name}: array type {a.dtype.name} is unsupported in linalg")
    return np.result_type(*[np.float64 if a.dtype.kind in "biu" else a.dtype for a in arrays])


def _lifted(name: str, *given: Any) -> tuple[list[Any], Any]:
    """Lift the arguments; return them and the one dtype that numpy.linalg would compute in."""
    arrays = [lift(a) for a in given]
    dtype = arrays[0].dtype
    if dtype.char not in "fdFD" or any(a.dtype != dtype for a in arrays):
        dtype = _linalg_dtype(name, *arrays)
    return arrays, dtype


def _check_matrix(name: str, a: Any) -> None:
    if a.ndim < 2:
        raise LinAlgError(f"{name}: {a.ndim}-dimensional array given. Array must be at least two-dimensional")


def _check_square(name: str, a: Any) -> None:
    _check_matrix(name, a)
    if a.shape[-1] != a.shape[-2]:
        raise LinAlgError(f"{name}: Last 2 dimensions of the array must be square; found shape {a.shape}")


def _square(name: str, a: Any) -> Any:
    (a,), dtype = _lifted(name, a)
    _check_square(name, a)
    return cast_to(a, dtype)


# ---------------------------------------------------------------- small pieces of algebra


def _t(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _h(x: Any) -> Any:
    return conj_of(x.swapaxes(-1, -2))


def _hermitian_part(x: Any) -> Any:
    return (x + _h(x)) * 0.5


def _on_matrices(g: Any) -> Any:
    """One number for each matrix of a stack, so that it multiplies the matrices."""
    return reshape(g, (*g.shape, 1, 1))


def _inner(x: Any, y: Any) -> Any:
    """Return sum of conj(x) y for each matrix of a stack."""
    return reduce.sum(conj_of(x) * y, (-2, -1))


def _three(x: Any, y: Any, z: Any) -> Any:
    """Return x @ y @ z, multiplied in the cheaper order."""
    (rows, inner), (other, columns) = x.shape[-2:], z.shape[-2:]
    left, right = rows * other * (inner + columns), inner * columns * (other + rows)
    return (x @ y) @ z if left <= right else x @ (y @ z)


def _eye_like(a: Any) -> Any:
    """The identity, plain, of the size and dtype of a stack of matrices."""
    return libraries.namespace(raw(a)).eye(a.shape[-1], dtype=a.dtype)


# ---------------------------------------------------------------- LU factors, computed once


class _LU(NamedTuple):
    """What LAPACK's getrf gives for each matrix of a stack, in order."""

    lu: tuple[Any, ...]
    pivots: tuple[Any, ...]
    singular: bool


_LETTER = {"f": "s", "d": "d", "F": "c", "D": "z"}


def _lapack(name: str, dtype: Any) -> Any:
    import scipy.linalg.lapack

    return getattr(scipy.linalg.lapack, _LETTER[dtype.char] + name)


def _factor(a: Any) -> _LU | None:
    """Factor plain matrices for `_solve`, or return None where NumPy's own solve serves better.

    By LAPACK itself: of 3 rows numpy.linalg.solve takes 3.0 us, scipy.linalg.lu_factor and lu_solve 4.1 and 6.3,
    getrf and getrs 0.5 each; of 300 rows 510 us, 490 and 19, 470 and 13.
    """
    if a.size == 0:
        return None
    if libraries.root(a) is not np:
        return _factor_on_gpu(a) if a.ndim == 2 and not batched.is_batched(a) else None
    if not _HAS_SCIPY or batched.is_batched(a) or (a.ndim > 2 and a.shape[-1] < _LARGE):
        return None
    getrf = _lapack("getrf", a.dtype)
    done = [getrf(m) for m in ([a] if a.ndim == 2 else a.reshape(-1, *a.shape[-2:]))]
    lus, pivots, infos = zip(*done, strict=True)
    return _LU(lus, pivots, any(info > 0 for info in infos))


def _factor_on_gpu(a: Any) -> _LU:
    import cupyx.scipy.linalg

    lu, pivots = cupyx.scipy.linalg.lu_factor(a, check_finite=False)
    return _LU((lu,), (pivots,), singular=False)


def _solve_by_lu(lu: Any, pivots: Any, b: Any, adjoint: bool) -> Any:
    """Solve one system with b of two axes."""
    if libraries.namespace(lu) is not np:
        import cupyx.scipy.linalg

        return cupyx.scipy.linalg.lu_solve((lu, pivots), b, trans=2 if adjoint else 0, check_finite=False)
    x, _ = _lapack("getrs", lu.dtype)(lu, pivots, b, trans=2 if adjoint else 0)
    return x


def _solve_stack(a_shape: tuple[int, ...], b: Any, solve_one: Any) -> Any:
    """Solve for each matrix of a stack by solve_one(k, b of two axes), with broadcasting."""
    if len(a_shape) == 2:
        if b.ndim == 2:
            return solve_one(0, b)
        columns = np.moveaxis(b, -2, 0)
        return np.moveaxis(solve_one(0, columns.reshape(len(columns), -1)).reshape(columns.shape), 0, -2)
    batch = np.broadcast_shapes(a_shape[:-2], b.shape[:-2])
    which = np.broadcast_to(np.arange(math.prod(a_shape[:-2])).reshape(a_shape[:-2]), batch).ravel()
    x = np.empty(batch + b.shape[-2:], b.dtype)
    for k, one, to in zip(
        which, np.broadcast_to(b, x.shape).reshape(-1, *b.shape[-2:]), x.reshape(-1, *b.shape[-2:]), strict=True
    ):
        to[...] = solve_one(k, one)
    return x


def _solve_at_once(a: Any, b: Any) -> Any:
    """numpy.linalg.solve of columns; CuPy's does not broadcast stacks."""
    xp = libraries.namespace(a)
    if xp is not np:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(m, batch + m.shape[-2:]) for m in (a, b))
    return np.linalg.solve(a, b)


def _solve_kernel(a: Any, b: Any, factor: _LU | None, adjoint: bool, vector: bool) -> Any:
    if vector:
        b = b[..., None]
    if factor is None or not b.size or b.dtype != a.dtype or batched.is_batched(a) or batched.is_batched(b):
        x = _solve_at_once(_h(a) if adjoint else a, b)
    else:
        x = _solve_stack(a.shape, b, lambda k, one: _solve_by_lu(factor.lu[k], factor.pivots[k], one, adjoint))
    return x[..., 0] if vector else x


# Written out rather than declared by `custom`: both cotangents need the same solution, which costs as much as forward.
_solve_op = register(Op("solve", _solve_kernel))


def _solve(a: Any, b: Any, factor: _LU | None, adjoint: bool, vector: bool) -> Any:
    """Return A^-1 b, or A^-H b, where b holds columns, or vectors in its last axis."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return apply(_solve_op, (a, b), (factor, adjoint, vector))
    return _solve_kernel(a, b, factor, adjoint, vector)


def _solve_entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
    a, b = values
    i, j = node_ids
    return ("solve", m, i, j, a, b.shape, b.dtype, None if i is None else out, params)


def _solve_pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
    _, _, i, j, a, b_shape, b_dtype, x, (factor, adjoint, vector) = e
    d = _solve(a, g, factor, not adjoint, vector)
    if j is not None:
        accumulate(grads, owned, j, unbroadcast(d, b_shape, b_dtype))
    if i is not None:
        d, x = (-expand_dims(d, -1), expand_dims(x, -1)) if vector else (-d, x)
        accumulate(grads, owned, i, unbroadcast(x @ _h(d) if adjoint else d @ _h(x), a.shape, a.dtype))


def _solve_push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
    ta, tb = tangents
    a, _ = values
    _, adjoint, vector = params
    right = tb
    if ta is not None:
        m = _h(ta) if adjoint else ta
        moved = (m @ expand_dims(out, -1))[..., 0] if vector else m @ out
        right = -moved if tb is None else tb - moved
    return broadcast_like(_solve(a, right, *params), out)


def _solve_link(e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
    code, m, i, j, a, b_shape, b_dtype, x, params = e
    return (code, m, i, j, to(a, i), b_shape, b_dtype, to(x, m), params)


_solve_op.entry, _solve_op.push = _solve_entry, _solve_push
PULLS["solve"] = _solve_pull
INPUTS["solve"] = lambda e: e[2:4]
RETRACKS["solve"] = _solve_link


def _check_columns(name: str, a: Any, b: Any) -> None:
    """Raise where the rows or the stacks of a and b do not fit, by NumPy 2's rule: only a b of one axis is a vector."""
    vector = b.ndim == 1
    if b.ndim == 0 or b.shape[-1 if vector else -2] != a.shape[-1]:
        raise ValueError(f"{name}: a of shape {a.shape} does not fit b of shape {b.shape}")
    if a.ndim > 2 and b.ndim > 2:
        try:
            np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise ValueError(f"{name}: the stacks of shapes {a.shape} and {b.shape} do not broadcast") from None


def solve(a: Any, b: Any) -> Any:
    """Solve a x = b as `numpy.linalg.solve`; b is a vector where it has one axis, else columns.

    The LU factors are kept for the derivatives of every order where SciPy or, for a single matrix, CuPy gives them.
    """
    if is_plain(a, b):
        return np.linalg.solve(a, b)
    (a, b), dtype = _lifted("solve", a, b)
    _check_square("solve", a)
    _check_columns("solve", a, b)
    factor = _factor(cast_to(raw(a), dtype))
    if factor is not None and factor.singular:
        raise LinAlgError("solve: Singular matrix")
    return _solve(cast_to(a, dtype), cast_to(b, dtype), factor, False, b.ndim == 1)


# ---------------------------------------------------------------- inverses

_inv = custom(
    "inv",
    lambda a: np.linalg.inv(a),
    vjp={"a": lambda g, out: -_three(_h(out), g, _h(out))},
    jvp={"a": lambda t, out: -_three(out, t, out)},
)


def inv(a: Any) -> Any:
    """Invert as `numpy.linalg.inv`."""
    if is_plain(a):
        return np.linalg.inv(a)
    return _inv(_square("inv", a))


def _pinv_kernel(a: Any, rtol: Any, hermitian: bool, usv: Any) -> Any:
    xp = libraries.namespace(a)
    if a.size == 0:
        return xp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    if hermitian:
        s, u = np.linalg.eigh(a)
        vh = _h(u)
    else:
        u, s, vh = np.linalg.svd(a, full_matrices=False) if usv is None else usv
    sizes = abs(s)
    kept = sizes > rtol * sizes.max(axis=-1, keepdims=True)
    inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(s.dtype, copy=False)
    return _h(vh) @ (inverse[..., None] * _h(u))


def _from_lower_kernel(a: Any) -> Any:
    lower = np.tril(a, -1)
    return lower + _h(lower) + np.tril(np.triu(a)).real


# The Hermitian matrix of which the lower triangle is given; its derivative is that along Hermitian changes.
_from_lower = custom("hermitian_from_lower", _from_lower_kernel, vjp={"a": _hermitian_part}, jvp={"a": _hermitian_part})


def _pinv_vjp(g: Any, a: Any, out: Any) -> Any:
    ph, gh = _h(out), _h(g)
    y, z = _three(gh, out, ph), _three(ph, out, gh)
    return y - _three(a, out, y) + z - _three(z, out, a) - _three(ph, g, ph)


def _pinv_jvp(t: Any, a: Any, out: Any) -> Any:
    ph, th = _h(out), _h(t)
    y, z = _three(out, ph, th), _three(th, ph, out)
    return y - _three(y, a, out) + z - _three(out, a, z) - _three(out, t, out)


# G. H. Golub, V. Pereyra, SIAM J. Numer. Anal. 10 (1973) 413: the derivative at constant rank. `usv` is the singular
# value decomposition where the caller has it.
_pinv = custom("pinv", _pinv_kernel, vjp={"a": _pinv_vjp}, jvp={"a": _pinv_jvp})


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = NOT_GIVEN) -> Any:
    """Pseudo-invert as `numpy.linalg.pinv`; the derivative is that at constant rank.

    With `hermitian=True` one triangle is read and the gradient is Hermitian, that of a Hermitian change.
    """
    if is_plain(a, rcond, rtol):
        return np.linalg.pinv(a, rcond, hermitian, **({} if rtol is NOT_GIVEN else {"rtol": rtol}))
    (a,), dtype = _lifted("pinv", a)
    (_check_square if hermitian else _check_matrix)("pinv", a)
    if rcond is not None and rtol is not NOT_GIVEN:
        raise ValueError("pinv: `rtol` and `rcond` can't be both set.")
    if rcond is None:
        rcond = 1e-15 if rtol is NOT_GIVEN else rtol
    if rcond is None:
        rcond = max(a.shape[-2:]) * np.finfo(dtype).eps
    a = _beside(a, rcond)
    rcond = libraries.namespace_of(raw(a), raw(rcond)).asarray(raw(rcond))
    if rcond.ndim and np.broadcast_shapes(rcond.shape, a.shape[:-2]) != a.shape[:-2]:
        raise ValueError(f"pinv: a cutoff of shape {rcond.shape} does not fit the stack of shape {a.shape[:-2]}")
    a = _from_lower(cast_to(a, dtype)) if hermitian else cast_to(a, dtype)
    return _pinv(a, rcond[..., None], bool(hermitian), None)


def lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Solve by least squares as `numpy.linalg.lstsq`: the solution, residuals, rank and singular values, as Tensors.

    One singular value decomposition serves all results and their derivatives; that of the solution is the one at
    constant rank, so it is right where singular values repeat.
    """
    if is_plain(a, b, rcond):
        return np.linalg.lstsq(a, b, rcond)
    (a, b), dtype = _lifted("lstsq", a, b)
    rcond = raw(rcond)
    vector = b.ndim == 1
    if a.ndim != 2 or b.ndim not in (1, 2):
        wrong = a if a.ndim != 2 else b
        raise LinAlgError(f"lstsq: {wrong.ndim}-dimensional array given. Array must be two-dimensional")
    rows, columns = a.shape
    if b.shape[0] != rows:
        raise LinAlgError(f"lstsq: Incompatible dimensions {a.shape} and {b.shape}")
    a, b = cast_to(a, dtype), cast_to(expand_dims(b, -1) if vector else b, dtype)
    eps = np.finfo(dtype).eps
    rtol = max(rows, columns) * eps if rcond is None else eps if rcond < 0 else rcond
    a = a if isinstance(a, Tensor) else wrap(a)
    u, s, vh = svd(a, full_matrices=False)
    x = _pinv(a, rtol, False, (raw(u), raw(s), raw(vh))) @ b
    rank = int(batched.common((raw(s) > rtol * raw(s)[:1]).sum(), "the rank"))
    off = b - a @ x
    if rank < columns or rows <= columns:
        off = off[:, :0]
    residuals = reduce.sum(real(conj_of(off) * off), 0)
    return x[:, 0] if vector else x, residuals, wrap(libraries.namespace(raw(s)).asarray(rank, np.int32)), s


# ---------------------------------------------------------------- determinants


def _factor_to_share(a: Any) -> _LU | None:
    """Factor where a derivative may ask for it and factoring is what takes the time."""
    return _factor(raw(a)) if a.shape[-1] >= _LARGE and is_tracked(a) else None


def _pivot_signs(factor: _LU, like: Any) -> tuple[Any, Any]:
    """The diagonals of U, and the signs of the row permutations, for a stack."""
    xp, batch = libraries.namespace(like), like.shape[:-2]
    diagonals = xp.stack([lu.diagonal() for lu in factor.lu]).reshape(*batch, -1)
    swaps = xp.stack([(p != xp.arange(len(p))).sum() for p in factor.pivots]).reshape(batch)
    return diagonals, (1 - 2 * (swaps % 2)).astype(like.dtype)


def _det_kernel(a: Any, factor: _LU | None) -> Any:
    if factor is None:
        return np.linalg.det(a)
    diagonals, signs = _pivot_signs(factor, a)
    return signs * diagonals.prod(axis=-1)


def _inverse_adjoint(a: Any, regular: bool, factor: _LU | None, limit: float) -> Any:
    """Return A^-H, or None where a matrix of the stack has a condition number above eps^-limit."""
    if not regular:
        return None
    try:
        x = _solve(a, _eye_like(a), factor, True, False)
    except LinAlgError:
        return None
    with np.errstate(all="ignore"):
        size = np.linalg.norm(raw(a), axis=(-2, -1)) * np.linalg.norm(raw(x), axis=(-2, -1))
    return x if (size < np.finfo(a.dtype).eps ** -limit).all() else None


def _det_slope(a: Any, out: Any, factor: _LU | None) -> Any:
    """The gradient of Re det A, conj(det A) A^-H, which for a singular A is the conjugate matrix of cofactors."""
    inverse = _inverse_adjoint(a, bool(raw(out).all()), factor, 3 / 8)
    return _h(_adjugate(a)) if inverse is None else _on_matrices(conj_of(out)) * inverse


_det = custom(
    "det",
    _det_kernel,
    vjp={"a": lambda g, a, out, factor: _on_matrices(g) * _det_slope(a, out, factor)},
    jvp={"a": lambda t, a, out, factor: _inner(_det_slope(a, out, factor), t)},
)


def det(a: Any) -> Any:
    """Return determinants as `numpy.linalg.det`; the derivatives of a singular matrix are exact, whatever its rank."""
    if is_plain(a):
        return np.linalg.det(a)
    a = _square("det", a)
    return _det(a, _factor_to_share(a))


# The adjugate, the transposed matrix of cofactors: det's derivative where there is no inverse. With A = U S V^H it is
# det(U) det(V^H) V adj(S) U^H, and its first derivative is as short in the same coordinates, exact for any rank.


def _others(s: Any) -> Any:
    """For each singular value the product of the others."""
    ones = libraries.namespace(s).ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    return before * after


def _others_of_two(s: Any) -> Any:
    """For each pair of singular values the product of the others; 0 for a pair of one with itself."""
    xp, n = libraries.namespace(s), s.shape[-1]
    ones = xp.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)[..., :, None]
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., None, ::-1]
    above = np.triu(xp.ones((n, n), dtype=bool), 1)
    # Row i runs over the products of s[i + 1 : j].
    shifted = np.concatenate([ones, s[..., :-1]], -1)[..., None, :]
    between = np.cumprod(xp.where(np.triu(above, 2), shifted, xp.ones_like(shifted)), -1)
    upper = xp.where(above, before * between * after, xp.zeros_like(shifted))
    return upper + _t(upper)


def _turned(a: Any) -> tuple[Any, Any, Any, Any]:
    """U, S, V^H of plain matrices, and det(U) det(V^H)."""
    u, s, vh = np.linalg.svd(a)
    return u, s, vh, (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]


def _adjugate_kernel(a: Any) -> Any:
    if a.size == 0:
        return a.copy()
    u, s, vh, turn = _turned(a)
    return turn * (_h(vh) * _others(s)[..., None, :]) @ _h(u)


def _adjugate_slope(a: Any, t: Any) -> Any:
    """The derivative of adj(A) in the direction t."""
    if isinstance(a, Tensor) or isinstance(t, Tensor):
        return _further_adjugate_slope(a, t)
    if a.size == 0:
        return t
    u, s, vh, turn = _turned(a)
    e = _h(u) @ t @ _h(vh)
    pairs = _others_of_two(s)
    d = -pairs * e
    k = libraries.namespace(a).arange(a.shape[-1])
    d[..., k, k] = (pairs @ e[..., k, k][..., None])[..., 0]
    return turn * (_h(vh) @ d @ _h(u))


def _further_adjugate_slope(a: Any, t: Any) -> Any:
    """The same in operations that can be recorded: products with the inverse, or without one the recursion."""
    inverse = _inverse_adjoint(a, True, None, 1 / 4)
    if inverse is None:
        return _adjugate_slope_by_recursion(a, t)
    x = _h(inverse)
    return _on_matrices(_det(a, None)) * (_on_matrices(_inner(inverse, t)) * x - x @ t @ x)


def _adjugate_slope_by_recursion(a: Any, t: Any) -> Any:
    """The same by differentiating the recursion of Faddeev and LeVerrier, for singular matrices.

    It takes products and sums only, so it has every derivative, but loses digits as matrices grow.

    Raises:
        LinAlgError: it lost half of the digits.
    """
    n, eye = a.shape[-1], _eye_like(a)
    m, dm = eye, eye * 0
    for k in range(1, n):
        am, dam = a @ m, t @ m + a @ dm
        m = am - _on_matrices(_trace(am) / k) * eye
        dm = dam - _on_matrices(_trace(dam) / k) * eye
    found = dm if n % 2 else -dm
    off = np.linalg.norm(raw(found) - _adjugate_slope(raw(a), raw(t)), axis=(-2, -1))
    if (off > np.finfo(a.dtype).eps ** 0.5 * _size_of_slope(raw(a)) * np.linalg.norm(raw(t), axis=(-2, -1))).any():
        raise LinAlgError(
            f"det: further derivatives of a singular matrix of {n} rows cannot be computed precisely in {a.dtype}"
        )
    return found


def _size_of_slope(a: Any) -> Any:
    """The product of all but the two least singular values, those that are 0 counting as the least that is not."""
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
    vjp={"a": lambda g, a: _h(_adjugate_slope(a, _h(g)))},
    jvp={"a": lambda t, a: _adjugate_slope(a, t)},
)


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Any
    logabsdet: Any


def _slogdet_kernel(a: Any, factor: _LU | None) -> tuple[Any, Any]:
    if factor is None:
        sign, log = np.linalg.slogdet(a)
        return sign, log
    diagonals, signs = _pivot_signs(factor, a)
    with np.errstate(divide="ignore"):
        return signs * np.sign(diagonals).prod(axis=-1), np.log(abs(diagonals)).sum(axis=-1)


def _log_slope(a: Any, sign: Any, factor: _LU | None) -> Any:
    """The gradient of log |det A|, A^-H; of a singular matrix, cofactors over 0."""
    singular = raw(sign) == 0
    if not singular.any():
        return _solve(a, _eye_like(a), factor, True, False)
    singular = singular[..., None, None]
    regular = _solve(choose(singular, _eye_like(a), a), _eye_like(a), None, True, False)
    over_0 = divide(_h(_adjugate(a)), choose(singular, 0.0, 1.0))
    return choose(singular, over_0, regular)


def _slogdet_vjp(g: Any, a: Any, sign: Any, factor: _LU | None) -> Any:
    """With tr(A^-1 dA) = x + iy, d log|det| = x and d sign = i sign y."""
    of_sign, of_log = g
    weight = of_log
    if of_sign is not None and is_complex(a):
        turn = imag(conj_of(of_sign) * sign) * -1j
        weight = turn if of_log is None else of_log + turn
    return plain_zeros(a) if weight is None else _on_matrices(weight) * _log_slope(a, sign, factor)


def _slogdet_jvp(t: Any, a: Any, sign: Any, factor: _LU | None) -> tuple[Any, Any]:
    change = _inner(_log_slope(a, sign, factor), t)
    if not is_complex(a):
        return plain_zeros(sign), change
    return sign * imag(change) * 1j, real(change)


_slogdet = several("slogdet", _slogdet_kernel, ("sign", "logabsdet"), vjp=_slogdet_vjp, jvp=_slogdet_jvp)


def slogdet(a: Any) -> Any:
    """Return sign and log of the absolute determinant as `numpy.linalg.slogdet`; a complex sign has a gradient, too."""
    if is_plain(a):
        return np.linalg.slogdet(a)
    a = _square("slogdet", a)
    return SlogdetResult(*_slogdet(a, _factor_to_share(a)))


# ---------------------------------------------------------------- triangles


def _dense_triangle(a: Any, lower: bool, unit: bool) -> Any:
    """The triangle that is read, plain, with zeros elsewhere."""
    m = (np.tril if lower else np.triu)(a, (-1 if lower else 1) if unit else 0)
    return m + _eye_like(a) if unit else m


def _triangular_on_gpu(a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    import cupyx.scipy.linalg

    xp = libraries.namespace(a)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = xp.broadcast_to(a, batch + a.shape[-2:]), xp.broadcast_to(b, batch + b.shape[-2:])
    solve_on_gpu = cupyx.scipy.linalg.solve_triangular
    return solve_on_gpu(a, b, trans=2 if adjoint else 0, lower=lower, unit_diagonal=unit, check_finite=False)


def _triangular_kernel(a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    is_batched = batched.is_batched(a) or batched.is_batched(b)
    if libraries.root(a) is not np and a.size and b.size and not is_batched:
        return _triangular_on_gpu(a, b, lower, unit, adjoint)
    if not _HAS_SCIPY or not a.size or not b.size or is_batched or (a.ndim > 2 and a.shape[-1] < _LARGE):
        m = _dense_triangle(a, lower, unit)
        return _solve_at_once(_h(m) if adjoint else m, b)
    trtrs = _lapack("trtrs", np.result_type(a, b))
    matrices = a.reshape(-1, *a.shape[-2:])

    def solve_one(k: Any, one: Any) -> Any:
        x, info = trtrs(matrices[k], one, lower=lower, trans=2 if adjoint else 0, unitdiag=unit)
        if info > 0:
            raise LinAlgError(f"singular matrix: resolution failed at diagonal {info - 1}")
        return x

    return _solve_stack(a.shape, b, solve_one)


def _triangle_of(m: Any, lower: bool, unit: bool) -> Any:
    return (tril if lower else triu)(m, (-1 if lower else 1) if unit else 0)


def _triangular_vjp(g: Any, a: Any, out: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    d = _triangular(a, g, lower, unit, not adjoint)
    return _triangle_of(-(out @ _h(d)) if adjoint else -(d @ _h(out)), lower, unit)


def _triangular_jvp(t: Any, a: Any, out: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    t = _triangle_of(t, lower, unit)
    return -_triangular(a, (_h(t) if adjoint else t) @ out, lower, unit, adjoint)


_triangular: Function = custom(
    "solve_triangular",
    _triangular_kernel,
    vjp={
        "a": _triangular_vjp,
        "b": lambda g, a, lower, unit, adjoint: _triangular(a, g, lower, unit, not adjoint),
    },
    jvp={
        "a": _triangular_jvp,
        "b": lambda t, a, lower, unit, adjoint: _triangular(a, t, lower, unit, adjoint),
    },
)

_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def _scipy_linalg(asked: str) -> Any:
    try:
        import scipy.linalg
    except ImportError as error:
        raise errors.MissingDependencyError(
            f"linalg.{asked} needs SciPy, which is not installed; pip install scipy"
        ) from error
    return scipy.linalg


def _library(asked: str, *given: Any) -> Any:
    """Return scipy.linalg, or CuPy's for arrays on a GPU."""
    if all(not libraries.is_array(raw(t)) or libraries.root(raw(t)) is np for t in given):
        return _scipy_linalg(asked)
    import cupyx.scipy.linalg

    return cupyx.scipy.linalg


def solve_triangular(
    a: Any,
    b: Any,
    trans: Any = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """Solve a x = b for a triangular a as `scipy.linalg.solve_triangular`, which is needed for it; stacks broadcast.

    >>> import gradmgr
    >>> gradmgr.numpy.linalg.solve_triangular(gradmgr.tensor([[2.0, 5.0], [1.0, 1.0]]), [4.0, 3.0], lower=True).tolist()
    [2.0, 1.0]
    """
    library = _library("solve_triangular", a, b)
    if is_plain(a, b):
        return library.solve_triangular(a, b, trans, lower, unit_diagonal, overwrite_b, check_finite)
    if overwrite_b:
        raise ValueError("solve_triangular(overwrite_b=True) has no meaning for Tensors: they are values")
    if trans not in _TRANS:
        raise ValueError(f"solve_triangular's trans is 0, 1, 2, 'N', 'T' or 'C'; found {trans!r}")
    (a, b), dtype = _lifted("solve_triangular", a, b)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"solve_triangular: expected square matrix; found shape {a.shape}")
    _check_columns("solve_triangular", a, b)
    if check_finite and not (np.isfinite(raw(a)).all() and np.isfinite(raw(b)).all()):
        raise ValueError("solve_triangular: array must not contain infs or NaNs")
    vector, way = b.ndim == 1, _TRANS[trans]
    a, b = cast_to(a, dtype), cast_to(expand_dims(b, -1) if vector else b, dtype)
    # A^-T b is the conjugate of A^-H conj(b)
    x = _triangular(a, conj_of(b) if way == 1 else b, bool(lower), bool(unit_diagonal), way > 0)
    x = conj_of(x) if way == 1 else x
    return x[..., 0] if vector else x


def _half_triangle(m: Any) -> Any:
    """The lower triangle with half the diagonal: what sums with its ^H to a Hermitian m."""
    xp = libraries.namespace(raw(m))
    n = m.shape[-1]
    return m * (xp.tri(n, dtype=raw(m).real.dtype) - 0.5 * xp.eye(n, dtype=raw(m).real.dtype))


def _cholesky_kernel(a: Any, upper: bool) -> Any:
    return _h(np.linalg.cholesky(_h(a))) if upper else np.linalg.cholesky(a)  # CuPy's has no `upper`


def _cholesky_vjp(g: Any, out: Any, upper: bool) -> Any:
    g, out = (_h(g), _h(out)) if upper else (g, out)
    y = _triangular(out, _half_triangle(_h(out) @ g), True, False, True)
    return _hermitian_part(_h(_triangular(out, _h(y), True, False, True)))


def _cholesky_jvp(t: Any, out: Any, upper: bool) -> Any:
    out = _h(out) if upper else out
    y = _triangular(out, _hermitian_part(t), True, False, False)
    z = out @ _half_triangle(_triangular(out, _h(y), True, False, False))
    return _h(z) if upper else z


# I. Murray, "Differentiation of the Cholesky decomposition" (2016).
_cholesky = custom("cholesky", _cholesky_kernel, vjp={"a": _cholesky_vjp}, jvp={"a": _cholesky_jvp})


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Factor as `numpy.linalg.cholesky`; one triangle is read, and the gradient is that of a Hermitian change."""
    if is_plain(a):
        return np.linalg.cholesky(a, upper=upper)
    return _cholesky(_square("cholesky", a), bool(upper))


# ---------------------------------------------------------------- functions of a matrix


def _expm_kernel(a: Any) -> Any:
    if a.size == 0:
        return a.copy()
    if batched.is_batched(a):
        return batched.within(_expm_kernel, a)
    expm_of = _library("expm", a).expm
    if libraries.namespace(a) is np or a.ndim == 2:
        return expm_of(a)
    return libraries.namespace(a).stack([expm_of(m) for m in a.reshape(-1, *a.shape[-2:])]).reshape(a.shape)


def _expm_slope(a: Any, t: Any) -> Any:
    """The derivative of expm at A in the direction t: a block of expm([[A, t], [0, A]]).

    C. Van Loan, IEEE Trans. Autom. Control 23 (1978) 395. The direction is scaled, since a long one would cost the
    blocks of A their precision.
    """
    if raw(a).size == 0:
        return t
    xp, n = libraries.namespace(raw(a)), a.shape[-1]
    length = xp.maximum(abs(raw(t)).max(axis=(-2, -1), keepdims=True), 1)
    above = concatenate([a, t / length], -1)
    below = concatenate([xp.zeros(a.shape, a.dtype), a], -1)
    return _expm(concatenate([above, below], -2))[..., :n, n:] * length


_expm = custom(
    "expm",
    _expm_kernel,
    vjp={"a": lambda g, a: _expm_slope(_h(a), g)},
    jvp={"a": lambda t, a: _expm_slope(a, t)},
)


def expm(A: Any) -> Any:  # noqa: N803  # SciPy's name
    """Return the exponential of matrices as `scipy.linalg.expm`, which is needed for it.

    >>> import gradmgr
    >>> gradmgr.numpy.linalg.expm(gradmgr.tensor([[0.0, 1.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    library = _library("expm", A)
    if is_plain(A):
        return library.expm(A)
    return _expm(_square("expm", A))


def matrix_power(a: Any, n: int) -> Any:
    """Raise to an integer power as `numpy.linalg.matrix_power`, 0 and negative ones included."""
    if is_plain(a):
        return np.linalg.matrix_power(a, n)
    a = lift(a)
    _check_square("matrix_power", a)
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: exponent must be an integer; found {n!r}") from None
    if n == 0:
        return wrap(libraries.namespace(raw(a)).zeros(a.shape, a.dtype) + _eye_like(a))
    if n < 0:
        a, n = inv(a), -n
    result = None
    while True:
        if n % 2:
            result = a if result is None else result @ a
        n //= 2
        if not n:
            return result
        a = a @ a


# ---------------------------------------------------------------- norms


def _kept(of: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([1 if k in axes else n for k, n in enumerate(of)])


def _length_kernel(x: Any, axes: tuple[int, ...]) -> Any:
    """Keeps the axes, with length 1."""
    squares = real(conj_of(x) * x)
    return np.sqrt(libraries.sum_over(squares, axes, True))


def _direction(x: Any, out: Any) -> Any:
    """Return x / |x|; 0 at 0, in the derivative, too."""
    zero = raw(out) == 0
    return x * choose(zero, 0.0, 1.0 / choose(zero, 1.0, out)) if libraries.may_hold(zero) else x / out


_length = custom(
    "norm",
    _length_kernel,
    vjp={"x": lambda g, x, out: g * _direction(x, out)},
    jvp={"x": lambda t, x, out, axes: reduce.sum(real(conj_of(_direction(x, out)) * t), axes, keepdims=True)},
)


def _power_length_kernel(x: Any, p: float, axes: tuple[int, ...]) -> Any:
    """The p-norm of what is not negative; keeps the axes, with length 1."""
    total = libraries.sum_over(x**p, axes, True)
    return total ** total.dtype.type(1 / p)


def _power_length_slope(x: Any, out: Any, p: float) -> Any:
    """Return (x / |x|)^(p - 1); 0 where the norm or, for p < 1, where x is 0, which is between its two slopes there."""
    at_0 = (raw(x) == 0) | (raw(out) == 0) if p < 1 else raw(out) == 0
    if not libraries.may_hold(at_0):
        return power(x / out, p - 1)
    return choose(at_0, 0.0, power(choose(at_0, 1.0, x) / choose(raw(out) == 0, 1.0, out), p - 1))


_power_length = custom(
    "norm of order p",
    _power_length_kernel,
    vjp={"x": lambda g, x, out, p: g * _power_length_slope(x, out, p)},
    jvp={"x": lambda t, x, out, p, axes: reduce.sum(t * _power_length_slope(x, out, p), axes, keepdims=True)},
)


def _dropped(z: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    """Take away the axes of length 1 that a norm kept, unless they are wanted."""
    return z if keepdims else reshape(z, tuple([n for k, n in enumerate(z.shape) if k not in axes]))


def _vector_norm(x: Any, order: Any, axes: tuple[int, ...], keepdims: Any, name: str) -> Any:
    if order is None or order == 2:
        return _dropped(_length(x, axes), axes, keepdims)
    if isinstance(order, str):
        raise ValueError(f"{name}: Invalid norm order '{order}' for vectors")
    if order == np.inf:
        return _largest(absolute(x), axes, keepdims)
    if order == -np.inf:
        _check_some(x, axes, name)
        return reduce.min(absolute(x), axes, keepdims=keepdims)
    if order == 0:
        # Where x is not 0 the constant 1; elsewhere |x|, whose derivative is 0 there.
        return reduce.sum(choose(raw(x) != 0, _one_like(x), absolute(x)), axes, keepdims=keepdims)
    if order == 1:
        return reduce.sum(absolute(x), axes, keepdims=keepdims)
    return _dropped(_power_length(absolute(x), order, axes), axes, keepdims)


def _check_some(x: Any, axes: tuple[int, ...], name: str) -> None:
    if any(x.shape[k] == 0 for k in axes):
        raise ValueError(f"{name}: zero-size array has no minimum")


def _one_like(x: Any) -> Any:
    return raw(x).real.dtype.type(1)


def _largest(x: Any, axes: Any, keepdims: Any = False) -> Any:
    """The maximum, 0 of nothing, as NumPy's norms have it."""
    empty = raw(x).size == 0
    return reduce.max(x, axes, keepdims=keepdims, initial=0) if empty else reduce.max(x, axes, keepdims=keepdims)


def _matrix_norm(x: Any, order: Any, axes: tuple[int, int], keepdims: Any, name: str) -> Any:
    row, column = axes
    if order is None or order in ("fro", "f"):
        return _dropped(_length(x, axes), axes, keepdims)
    if order in (2, -2, "nuc"):
        if order == -2:
            _check_some(x, axes, name)
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        z = reduce.sum(s, -1) if order == "nuc" else _largest(s, -1) if order == 2 else reduce.min(s, -1)
    elif order in (1, -1, np.inf, -np.inf):
        over, along = (row, column) if abs(order) == 1 else (column, row)
        if order < 0:
            _check_some(x, (along,), name)
        sums = reduce.sum(absolute(x), over)
        along -= along > over
        z = _largest(sums, along) if order > 0 else reduce.min(sums, along)
    else:
        raise ValueError(f"{name}: Invalid norm order {order!r} for matrices.")
    return reshape(z, _kept(x.shape, axes)) if keepdims else z


def _floating(x: Any) -> Any:
    x = lift(x)
    return x if x.dtype.kind in "fc" else as_type(x, np.float64)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return vector or matrix norms as `numpy.linalg.norm`, of every order.

    The derivative at 0 is 0; maxima and minima share it evenly at ties; that of the nuclear norm of a matrix of
    lower rank is a subgradient.
    """
    if is_plain(x, ord):
        return np.linalg.norm(x, ord, axis, keepdims)
    return _norm(_beside(_floating(x), ord), _order(ord, "norm", "ord"), axis, keepdims, "norm")


def _beside(x: Any, parameter: Any) -> Any:
    """Return x, a Tensor if the parameter beside it is one."""
    return wrap(x) if isinstance(parameter, Tensor) and not isinstance(x, Tensor) else x


def _order(order: Any, name: str, parameter: str) -> Any:
    """Return the order of a norm as a Python number or string."""
    order = untracked(order, name, parameter)
    return order.item() if libraries.is_array(order) and not order.ndim else order


def _norm(x: Any, order: Any, axis: Any, keepdims: Any, name: str) -> Any:
    if axis is None:
        axes = tuple(range(x.ndim))
        if order is None or (order in ("f", "fro") and x.ndim == 2) or (order == 2 and x.ndim == 1):
            return _dropped(_length(x, axes), axes, keepdims)
    elif isinstance(axis, tuple):
        axes = tuple([normalize_axis_index(k, x.ndim) for k in axis])
    else:
        try:
            axes = (normalize_axis_index(int(axis), x.ndim),)
        except TypeError:
            raise TypeError(f"{name}: 'axis' must be None, an integer or a tuple of integers; found {axis!r}") from None
    if len(axes) == 1:
        return _vector_norm(x, order, axes, keepdims, name)
    if len(axes) != 2:
        raise ValueError(f"{name}: Improper number of dimensions to norm.")
    if axes[0] == axes[1]:
        raise ValueError(f"{name}: Duplicate axes given.")
    return _matrix_norm(x, order, axes, keepdims, name)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return norms of the matrices in the last two axes as `numpy.linalg.matrix_norm`."""
    if is_plain(x, ord):
        return np.linalg.matrix_norm(x, keepdims=keepdims, ord=ord)
    return _norm(_beside(_floating(x), ord), _order(ord, "matrix_norm", "ord"), (-2, -1), keepdims, "matrix_norm")


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return norms over any number of axes as `numpy.linalg.vector_norm`."""
    if is_plain(x, ord):
        return np.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    x, ord = _beside(_floating(x), ord), _order(ord, "vector_norm", "ord")
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    return _vector_norm(x, ord, axes, keepdims, "vector_norm")


def cond(x: Any, p: Any = None) -> Any:
    """Return condition numbers as `numpy.linalg.cond`; inf for a singular matrix, without a derivative there."""
    if is_plain(x, p):
        return np.linalg.cond(x, p)
    (x,), dtype = _lifted("cond", x)
    x, p = _beside(x, p), _order(p, "cond", "p")
    (_check_matrix if p is None or p in (2, -2) else _check_square)("cond", x)
    if 0 in x.shape[-2:]:
        raise LinAlgError("cond: cond is not defined on empty arrays")
    x = cast_to(x, dtype)
    with np.errstate(all="ignore"):
        r = _cond_by_values(x, p) if p is None or p in (2, -2) else _cond_by_inverse(x, p)
    odd = np.isnan(raw(r)) & ~np.isnan(raw(x)).any(axis=(-2, -1))
    return choose(odd, raw(r).dtype.type(np.inf), r) if odd.any() else r


def _cond_by_values(x: Any, p: Any) -> Any:
    s = svdvals(x)
    return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]


def _cond_by_inverse(x: Any, p: Any) -> Any:
    singular = _is_singular(raw(x))
    safe = choose(singular[..., None, None], _eye_like(x), x) if singular.any() else x
    r = _norm(x, p, (-2, -1), False, "cond") * _norm(_inv(safe), p, (-2, -1), False, "cond")
    return choose(singular, raw(r).dtype.type(np.nan), r) if singular.any() else r


def _is_singular(a: Any) -> Any:
    """Tell for each plain matrix whether LAPACK's LU meets an exact 0, as numpy.linalg.inv does."""
    sign, _ = np.linalg.slogdet(a)
    return np.asarray(sign == 0) if libraries.namespace(a) is np else sign == 0


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:  # noqa: N803  # NumPy's
    """Count the singular values above a tolerance as `numpy.linalg.matrix_rank`; the result carries no gradient."""
    if is_plain(A, tol, rtol):
        return np.linalg.matrix_rank(A, tol, hermitian, rtol=rtol)
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank: `tol` and `rtol` can't be both set.")
    a = raw(lift(A))
    xp = libraries.namespace(a)
    if a.ndim < 2:
        return wrap(xp.asarray((a != 0).any().astype(np.intp)))
    (a,), dtype = _lifted("matrix_rank", a)
    a = cast_to(a, dtype)
    s = abs(np.linalg.eigvalsh(a)) if hermitian else np.linalg.svd(a, compute_uv=False)
    if tol is None:
        rtol = max(a.shape[-2:]) * np.finfo(s.dtype).eps if rtol is None else xp.asarray(raw(rtol))[..., None]
        tol = (s.max(axis=-1, keepdims=True) if s.size else 0.0) * rtol
    else:
        tol = xp.asarray(raw(tol))[..., None]
    return wrap(xp.asarray(xp.count_nonzero(s > tol, axis=-1)))


# ---------------------------------------------------------------- tensors, and products of several


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Solve a tensor equation as `numpy.linalg.tensorsolve`."""
    if is_plain(a, b):
        return np.linalg.tensorsolve(a, b, axes)
    (a, b), _ = _lifted("tensorsolve", a, b)
    order = list(range(a.ndim))
    for k in () if axes is None else axes:
        order.remove(k)
        order.append(k)
    unknown = tuple([a.shape[k] for k in order[-(a.ndim - b.ndim) :]])
    size = math.prod(unknown)
    if math.prod(a.shape) != size**2 or math.prod(b.shape) != size:
        raise LinAlgError(
            "tensorsolve: Input arrays must satisfy the requirement prod(a.shape[b.ndim:]) == "
            f"prod(a.shape[:b.ndim]); found shapes {a.shape} and {b.shape}"
        )
    a = a if axes is None else shape.transpose(a, order)
    return reshape(solve(reshape(a, (size, size)), ravel(b)), unknown)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """Invert a tensor as `numpy.linalg.tensorinv`."""
    if is_plain(a):
        return np.linalg.tensorinv(a, ind)
    (a,), _ = _lifted("tensorinv", a)
    if ind <= 0:
        raise ValueError(f"tensorinv: Invalid ind argument; found {ind}")
    size = math.prod(a.shape[ind:])
    if math.prod(a.shape[:ind]) != size:
        raise LinAlgError(f"tensorinv: shape {a.shape} with ind={ind} is not that of a square matrix")
    return reshape(inv(reshape(a, (size, size))), a.shape[ind:] + a.shape[:ind])


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Multiply a chain in the cheapest order as `numpy.linalg.multi_dot`."""
    if is_plain(list(arrays), out):
        return np.linalg.multi_dot(arrays, out=out)
    parts = [lift(a) for a in arrays]
    if len(parts) < 2:
        raise ValueError("multi_dot: Expecting at least two arrays.")
    z = dot(*parts) if len(parts) == 2 else _product_of_chain(parts)
    return z if out is None else store(out, z, "multi_dot(out=...)")


def _product_of_chain(parts: list[Any]) -> Any:
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    parts = [
        expand_dims(parts[0], 0) if row else parts[0],
        *parts[1:-1],
        expand_dims(parts[-1], 1) if column else parts[-1],
    ]
    for a in parts:
        if a.ndim != 2:
            raise LinAlgError(f"multi_dot: {a.ndim}-dimensional array given. Array must be two-dimensional")
    for a, b in itertools.pairwise(parts):
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"multi_dot: shapes {a.shape} and {b.shape} not aligned")
    splits = _cheapest_splits([parts[0].shape[0], *[a.shape[1] for a in parts]])
    z = _product_from(parts, splits, 0, len(parts) - 1)
    return z[(0 if row else slice(None)), (0 if column else slice(None))] if row or column else z


def _product_from(parts: list[Any], splits: dict[tuple[int, int], int], first: int, last: int) -> Any:
    """The product of a stretch; no inner function, which by naming itself would outlive the call with all parts."""
    if first == last:
        return parts[first]
    k = splits[first, last]
    return dot(_product_from(parts, splits, first, k), _product_from(parts, splits, k + 1, last))


def _cheapest_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """For each stretch of a chain of matrices, where to split it; Cormen et al., Introduction to Algorithms, 15.2."""
    count = len(sizes) - 1
    cost = {(k, k): 0 for k in range(count)}
    splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            splits[i, j] = min(costs, key=costs.__getitem__)
            cost[i, j] = costs[splits[i, j]]
    return splits


# ---------------------------------------------------------------- numpy.linalg's own forms of functions of numpy


def matmul(x1: Any, x2: Any, /) -> Any:
    """Multiply matrices as `numpy.linalg.matmul`."""
    return products.matmul(x1, x2)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """Contract axes as `numpy.linalg.tensordot`."""
    return products.tensordot(x1, x2, axes)


def outer(x1: Any, x2: Any, /) -> Any:
    """Outer product of two vectors as `numpy.linalg.outer`."""
    if is_plain(x1, x2):
        return np.linalg.outer(x1, x2)
    x1, x2 = lift(x1), lift(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: Input arrays must be one-dimensional, but they are {x1.ndim=} and {x2.ndim=}.")
    return products.outer(x1, x2)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross product of vectors of three elements as `numpy.linalg.cross`."""
    if is_plain(x1, x2):
        return np.linalg.cross(x1, x2, axis=axis)
    x1, x2 = lift(x1), lift(x2)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(
            "cross: Both input arrays must be (arrays of) 3-dimensional vectors, but they are "
            f"{x1.shape[axis]} and {x2.shape[axis]} dimensional instead."
        )
    x, y = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    following, before = [1, 2, 0], [2, 0, 1]
    z = x[..., following] * y[..., before] - x[..., before] * y[..., following]
    return moveaxis(z, -1, axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Take the diagonals of the matrices in the last two axes as `numpy.linalg.diagonal`."""
    return shape.diagonal(x, offset, -2, -1) if not is_plain(x) else np.linalg.diagonal(x, offset=offset)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sum the diagonals of the matrices in the last two axes as `numpy.linalg.trace`."""
    if is_plain(x):
        return np.linalg.trace(x, offset=offset, dtype=dtype)
    return reduce.sum(shape.diagonal(x, offset, -2, -1), -1, dtype)
