"""Triangular systems and the Cholesky factorisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr._arrays import batched, libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops import lapack
from gradmgr.ops.convert import cast_to, is_plain
from gradmgr.ops.matrices import conj_t, eye_like, hermitian_part, lift_matrices, lift_square
from gradmgr.ops.shape import expand_dims, tril, triu
from gradmgr.ops.solve import check_columns


def _dense_triangle(a: Any, lower: bool, unit: bool) -> Any:
    """Return the triangle that is read as a plain array, with zeros elsewhere."""
    m = (np.tril if lower else np.triu)(a, (-1 if lower else 1) if unit else 0)
    return m + eye_like(a) if unit else m


def _triangular_on_gpu(a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    import cupyx.scipy.linalg

    xp = libraries.namespace(a)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = xp.broadcast_to(a, batch + a.shape[-2:]), xp.broadcast_to(b, batch + b.shape[-2:])
    solve_on_gpu = libraries.foreign(cupyx.scipy.linalg.solve_triangular, a, b)
    return solve_on_gpu(a, b, trans=2 if adjoint else 0, lower=lower, unit_diagonal=unit, check_finite=False)


def _triangular_kernel(a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    is_batched = batched.is_batched(a) or batched.is_batched(b)
    if libraries.root(a) is not np and a.size and b.size and not is_batched:
        return _triangular_on_gpu(a, b, lower, unit, adjoint)
    if not lapack.HAS_SCIPY or not a.size or not b.size or is_batched or (a.ndim > 2 and a.shape[-1] < lapack.LARGE):
        m = _dense_triangle(a, lower, unit)
        return lapack.solve_unfactored(conj_t(m) if adjoint else m, b)
    trtrs = lapack.routine("trtrs", np.result_type(a, b), a, b)
    matrices = a.reshape(-1, *a.shape[-2:])

    def solve_one(k: Any, one: Any) -> Any:
        x, info = trtrs(matrices[k], one, lower=lower, trans=2 if adjoint else 0, unitdiag=unit)
        if info > 0:
            raise LinAlgError(f"singular matrix: resolution failed at diagonal {info - 1}")
        return x

    return lapack.solve_stack(a.shape, b, solve_one)


def _triangle_of(m: Any, lower: bool, unit: bool) -> Any:
    return (tril if lower else triu)(m, (-1 if lower else 1) if unit else 0)


def _triangular_vjp(g: Any, a: Any, out: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    d = _triangular(a, g, lower, unit, not adjoint)
    return _triangle_of(-(out @ conj_t(d)) if adjoint else -(d @ conj_t(out)), lower, unit)


def _triangular_jvp(t: Any, a: Any, out: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    t = _triangle_of(t, lower, unit)
    return -_triangular(a, (conj_t(t) if adjoint else t) @ out, lower, unit, adjoint)


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
    library = lapack.linalg_library("solve_triangular", a, b)
    if is_plain(a, b):
        return library.solve_triangular(a, b, trans, lower, unit_diagonal, overwrite_b, check_finite)
    if overwrite_b:
        raise ValueError("solve_triangular(overwrite_b=True) has no meaning for Tensors: they are values")
    if trans not in _TRANS:
        raise ValueError(f"solve_triangular's trans is 0, 1, 2, 'N', 'T' or 'C'; found {trans!r}")
    (a, b), dtype = lift_matrices("solve_triangular", a, b)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"solve_triangular: expected square matrix; found shape {a.shape}")
    check_columns("solve_triangular", a, b)
    if check_finite and not (np.isfinite(raw(a)).all() and np.isfinite(raw(b)).all()):
        raise ValueError("solve_triangular: array must not contain infs or NaNs")
    vector, way = b.ndim == 1, _TRANS[trans]
    a, b = cast_to(a, dtype), cast_to(expand_dims(b, -1) if vector else b, dtype)
    # A^-T b is the conjugate of A^-H conj(b)
    x = _triangular(a, conj_of(b) if way == 1 else b, bool(lower), bool(unit_diagonal), way > 0)
    x = conj_of(x) if way == 1 else x
    return x[..., 0] if vector else x


def _half_triangle(m: Any) -> Any:
    """Return the lower triangle with half the diagonal; it and its ^H add up to a Hermitian m."""
    xp = libraries.namespace(raw(m))
    n = m.shape[-1]
    return m * (xp.tri(n, dtype=raw(m).real.dtype) - 0.5 * xp.eye(n, dtype=raw(m).real.dtype))


def _cholesky_kernel(a: Any, upper: bool) -> Any:
    return conj_t(np.linalg.cholesky(conj_t(a))) if upper else np.linalg.cholesky(a)  # CuPy's has no `upper`


def _cholesky_vjp(g: Any, out: Any, upper: bool) -> Any:
    g, out = (conj_t(g), conj_t(out)) if upper else (g, out)
    y = _triangular(out, _half_triangle(conj_t(out) @ g), True, False, True)
    return hermitian_part(conj_t(_triangular(out, conj_t(y), True, False, True)))


def _cholesky_jvp(t: Any, out: Any, upper: bool) -> Any:
    out = conj_t(out) if upper else out
    y = _triangular(out, hermitian_part(t), True, False, False)
    z = out @ _half_triangle(_triangular(out, conj_t(y), True, False, False))
    return conj_t(z) if upper else z


# I. Murray, "Differentiation of the Cholesky decomposition" (2016).
_cholesky = custom("cholesky", _cholesky_kernel, vjp={"a": _cholesky_vjp}, jvp={"a": _cholesky_jvp})


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Factor as `numpy.linalg.cholesky`; one triangle is read, and the gradient is that of a Hermitian change."""
    if is_plain(a):
        return np.linalg.cholesky(a, upper=upper)
    return _cholesky(lift_square("cholesky", a), bool(upper))
