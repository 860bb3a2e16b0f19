"""Solving systems of linear equations, inverses and pseudo-inverses, least squares.

The rules are those of M. B. Giles, "An extended collection of matrix derivative results" (2008), where no other
source is named.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr._arrays import batched, libraries, small_systems
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import lapack, reduce, shape
from gradmgr.ops.arithmetic import real
from gradmgr.ops.convert import NOT_GIVEN, cast_to, is_plain, lift
from gradmgr.ops.decompose import svd
from gradmgr.ops.matrices import (
    check_matrix,
    check_square,
    common_dtype,
    conj_t,
    from_triangle,
    lift_matrices,
    lift_square,
    multiply_three,
    wrap_like,
)
from gradmgr.ops.shape import expand_dims, ravel, reshape


def _solve_kernel(a: Any, b: Any, factor: lapack.LU | None, adjoint: bool, vector: bool) -> Any:
    is_batched = isinstance(a, batched.Batched) or isinstance(b, batched.Batched)
    if factor is not None and b.size and b.dtype == a.dtype and not is_batched:
        if a.ndim == 2 and b.ndim == (1 if vector else 2):
            return lapack.solve_by_lu(factor.lu[0], factor.pivots[0], b, adjoint)
        x = lapack.solve_stack(
            a.shape,
            b[..., None] if vector else b,
            lambda k, one: lapack.solve_by_lu(factor.lu[k], factor.pivots[k], one, adjoint),
        )
    else:
        x = lapack.solve_unfactored(conj_t(a) if adjoint else a, b[..., None] if vector else b)
    return x[..., 0] if vector else x


def _as_columns(x: Any, vector: bool) -> Any:
    return x.reshape((*x.shape, 1)) if vector else x


def _solve_vjp(g: Any, out: Any, adjoint: bool, vector: bool, shared: Any) -> Any:
    """Return the cotangent of a, given that of b in `shared`."""
    d, x = _as_columns(-shared, vector), _as_columns(out, vector)
    return x @ conj_t(d) if adjoint else d @ conj_t(x)


def _solve_jvp(t: Any, a: Any, out: Any, factor: lapack.LU | None, adjoint: bool, vector: bool) -> Any:
    moved = (conj_t(t) if adjoint else t) @ _as_columns(out, vector)
    return -solve_by_factors(a, moved[..., 0] if vector else moved, factor, adjoint, vector)


# A^-1 b, or A^-H b where `adjoint`, of columns b, or of vectors in its last axis where `vector`.
# Both cotangents need the same solution, which costs as much as the op itself: it is shared.
solve_by_factors: Function = custom(
    "solve",
    _solve_kernel,
    shared=lambda g, a, factor, adjoint, vector: solve_by_factors(a, g, factor, not adjoint, vector),
    vjp={"a": _solve_vjp, "b": lambda g, shared: shared},
    jvp={
        "a": _solve_jvp,
        "b": lambda t, a, factor, adjoint, vector: solve_by_factors(a, t, factor, adjoint, vector),
    },
)


def check_columns(name: str, a: Any, b: Any) -> None:
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
        return small_systems.solve(a, b)
    a, b = lift(a), lift(b)
    matrix, right = raw(a), raw(b)
    dtype = common_dtype("solve", matrix, right)
    check_square("solve", matrix)
    check_columns("solve", matrix, right)
    factor = lapack.factor(cast_to(matrix, dtype))
    if factor is not None and factor.singular:
        raise LinAlgError("solve: Singular matrix")
    return solve_by_factors(cast_to(a, dtype), cast_to(b, dtype), factor, False, right.ndim == 1)


# ---------------------------------------------------------------- inverses

invert = custom(
    "inv",
    lambda a: small_systems.inverses(a),
    vjp={"a": lambda g, out: -multiply_three(conj_t(out), g, conj_t(out))},
    jvp={"a": lambda t, out: -multiply_three(out, t, out)},
)


def inv(a: Any) -> Any:
    """Invert as `numpy.linalg.inv`."""
    if is_plain(a):
        return small_systems.inverses(a)
    return invert(lift_square("inv", a))


def _pinv_kernel(a: Any, rtol: Any, hermitian: bool, usv: Any) -> Any:
    xp = libraries.namespace(a)
    if a.size == 0:
        return xp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    if hermitian:
        s, u = np.linalg.eigh(a)
        vh = conj_t(u)
    else:
        u, s, vh = np.linalg.svd(a, full_matrices=False) if usv is None else usv
    sizes = abs(s)
    kept = sizes > rtol * sizes.max(axis=-1, keepdims=True)
    inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(s.dtype, copy=False)
    return conj_t(vh) @ (inverse[..., None] * conj_t(u))


def _pinv_vjp(g: Any, a: Any, out: Any) -> Any:
    ph, gh = conj_t(out), conj_t(g)
    y, z = multiply_three(gh, out, ph), multiply_three(ph, out, gh)
    return y - multiply_three(a, out, y) + z - multiply_three(z, out, a) - multiply_three(ph, g, ph)


def _pinv_jvp(t: Any, a: Any, out: Any) -> Any:
    ph, th = conj_t(out), conj_t(t)
    y, z = multiply_three(out, ph, th), multiply_three(th, ph, out)
    return y - multiply_three(y, a, out) + z - multiply_three(out, a, z) - multiply_three(out, t, out)


# G. H. Golub, V. Pereyra, SIAM J. Numer. Anal. 10 (1973) 413: the derivative at constant rank. `usv` is the singular
# value decomposition where the caller has it.
_pinv = custom("pinv", _pinv_kernel, vjp={"a": _pinv_vjp}, jvp={"a": _pinv_jvp})


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = NOT_GIVEN) -> Any:
    """Pseudo-invert as `numpy.linalg.pinv`; the derivative is that at constant rank.

    With `hermitian=True` the lower triangle is read, and receives all of the gradient.
    """
    if is_plain(a, rcond, rtol):
        return np.linalg.pinv(a, rcond, hermitian, **({} if rtol is NOT_GIVEN else {"rtol": rtol}))
    (a,), dtype = lift_matrices("pinv", a)
    (check_square if hermitian else check_matrix)("pinv", a)
    if rcond is not None and rtol is not NOT_GIVEN:
        raise ValueError("pinv: `rtol` and `rcond` can't be both set.")
    if rcond is None:
        rcond = 1e-15 if rtol is NOT_GIVEN else rtol
    if rcond is None:
        rcond = max(a.shape[-2:]) * np.finfo(dtype).eps
    a = wrap_like(a, rcond)
    rcond = libraries.namespace_of(raw(a), raw(rcond)).asarray(raw(rcond))
    if rcond.ndim and np.broadcast_shapes(rcond.shape, a.shape[:-2]) != a.shape[:-2]:
        raise ValueError(f"pinv: a cutoff of shape {rcond.shape} does not fit the stack of shape {a.shape[:-2]}")
    a = from_triangle(cast_to(a, dtype), True) if hermitian else cast_to(a, dtype)
    return _pinv(a, rcond[..., None], bool(hermitian), None)


def lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Solve by least squares as `numpy.linalg.lstsq`: the solution, residuals, rank and singular values, as Tensors.

    One singular value decomposition serves all results and their derivatives; that of the solution is the one at
    constant rank, so it is right where singular values repeat.
    """
    if is_plain(a, b, rcond):
        return np.linalg.lstsq(a, b, rcond)
    (a, b), dtype = lift_matrices("lstsq", a, b)
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
    rank = int(libraries.common_value((raw(s) > rtol * raw(s)[:1]).sum(), "the rank"))
    off = b - a @ x
    if rank < columns or rows <= columns:
        off = off[:, :0]
    residuals = reduce.sum(real(conj_of(off) * off), 0)
    return x[:, 0] if vector else x, residuals, wrap(libraries.namespace(raw(s)).asarray(rank, np.int32)), s


# ---------------------------------------------------------------- tensors, and products of several


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Solve a tensor equation as `numpy.linalg.tensorsolve`."""
    if is_plain(a, b):
        return np.linalg.tensorsolve(a, b, axes)
    (a, b), _ = lift_matrices("tensorsolve", a, b)
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
    (a,), _ = lift_matrices("tensorinv", a)
    if ind <= 0:
        raise ValueError(f"tensorinv: Invalid ind argument; found {ind}")
    size = math.prod(a.shape[ind:])
    if math.prod(a.shape[:ind]) != size:
        raise LinAlgError(f"tensorinv: shape {a.shape} with ind={ind} is not that of a square matrix")
    return reshape(inv(reshape(a, (size, size))), a.shape[ind:] + a.shape[:ind])
