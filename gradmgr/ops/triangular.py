"""Triangular systems and the Cholesky factorisation."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from gradmgr.ops.matrices import conj_t, eye_like, from_triangle, lift_matrices, lift_square, to_triangle
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
    if _are_small_and_many(a) and libraries.is_numpy(a) and libraries.is_numpy(b):
        return _substitute(a, b, lower, unit, adjoint)
    if not lapack.HAS_SCIPY or not a.size or not b.size or is_batched or (a.ndim > 2 and a.shape[-1] < _LARGE):
        m = _dense_triangle(a, lower, unit)
        return lapack.solve_unfactored(conj_t(m) if adjoint else m, b)
    matrices = a.reshape(-1, *a.shape[-2:])
    dtype = np.result_type(a, b)
    solve_one = (_real_solver if dtype.kind == "f" else _complex_solver)(dtype, a, b, lower, unit, adjoint)
    return lapack.solve_stack(a.shape, b, lambda k, one: solve_one(matrices[k], one))


# For 32 matrices of 16 rows a call of LAPACK for each takes as long as NumPy's solve, which does not use triangles.
_LARGE = 16


def _real_solver(dtype: Any, a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Callable[[Any, Any], Any]:
    """Return what solves one real system by LAPACK, which reads NumPy's rows as columns of the transposed matrix.

    So nothing is copied: for 300 rows and one column that takes 8 us instead of 42. Many columns are solved for from
    the right, where they need not be copied either.
    """
    if b.shape[-1] > 8 and a.flags.c_contiguous:
        trsm = lapack.blas_routine("trsm", dtype, a, b)

        def solve_many(m: Any, b: Any) -> Any:
            if not unit:
                zeros = np.flatnonzero(np.diagonal(m) == 0)
                _check_diagonal(zeros[0] + 1 if len(zeros) else 0)
            return trsm(1.0, m.T, b.T, side=1, lower=not lower, trans_a=1 if adjoint else 0, diag=unit).T

        return solve_many
    trtrs, is_transposed = lapack.routine("trtrs", dtype, a, b), a.ndim == 2 and not a.flags.c_contiguous
    triangle, trans = int(lower is is_transposed), int(adjoint is is_transposed)

    def solve_few(m: Any, b: Any) -> Any:
        x, info = trtrs(m if is_transposed else m.T, b, triangle, trans, unit)
        if info:
            _check_diagonal(info)
        return x

    return solve_few


def _complex_solver(dtype: Any, a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Callable[[Any, Any], Any]:
    trtrs = lapack.routine("trtrs", dtype, a, b)

    def solve_columns(m: Any, b: Any) -> Any:
        x, info = trtrs(m, b, lower=lower, trans=2 if adjoint else 0, unitdiag=unit)
        _check_diagonal(info)
        return x

    return solve_columns


def _check_diagonal(info: Any) -> None:
    if info > 0:
        raise LinAlgError(f"singular matrix: resolution failed at diagonal {info - 1}")


# ---------------------------------------------------------------- stacks of small matrices


def _are_small_and_many(a: Any) -> bool:
    """Tell whether substitution in all matrices at once is the quickest: for 1,000 of 8 rows 150 us, not 530."""
    n = a.shape[-1]
    return bool(a.ndim > 2 and 0 < n <= 16 and a.size >= 64 * n * n)


def _examples_last(a: Any) -> Any:
    """Return a stack of matrices with the axis of the stack as the last one, in contiguous memory."""
    rows, columns = a.shape[-2:]
    return np.ascontiguousarray(a.reshape(-1, rows * columns).T).reshape(rows, columns, -1)


def _examples_first(x: Any, shape: tuple[int, ...]) -> Any:
    """Undo `_examples_last`."""
    return np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T).reshape(shape)


@libraries.captured_as_one()
def _substitute(a: Any, b: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    """Solve for a stack of small matrices by substitution, row by row in all of them at once."""
    dtype = np.result_type(a, b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = batch + b.shape[-2:]
    if adjoint:
        a, lower = np.conjugate(a.swapaxes(-1, -2)), not lower
    if not unit and (np.diagonal(a, 0, -2, -1) == 0).any():
        raise LinAlgError("singular matrix: a diagonal element is 0")
    m = _examples_last(np.broadcast_to(a, batch + a.shape[-2:]).astype(dtype, copy=False))
    x = _examples_last(np.broadcast_to(b, shape).astype(dtype, copy=False))
    x = x if x.base is None else x.copy()
    rows = range(len(m))
    for i in rows if lower else reversed(rows):
        known = slice(0, i) if lower else slice(i + 1, None)
        x[i] -= np.einsum("kn,kjn->jn", m[i, known], x[known])
        if not unit:
            x[i] /= m[i, i]
    return _examples_first(x, shape)


def _inverses(lower: Any) -> Any:
    """Return the inverses of a stack of lower triangles with nothing above."""
    n = lower.shape[-1]
    if _are_small_and_many(lower) or not lapack.HAS_SCIPY:
        eye = np.broadcast_to(np.eye(n, dtype=lower.dtype), lower.shape)
        return _triangular_kernel(lower, eye, True, False, False)
    trtri, made = lapack.routine("trtri", lower.dtype, lower), np.empty(lower.shape, lower.dtype)
    for m, inverse in zip(lower.reshape(-1, n, n), made.reshape(-1, n, n), strict=True):
        inverse[...] = trtri(m.T, lower=0)[0].T
    return made


def _triangle_of(m: Any, lower: bool, unit: bool) -> Any:
    return (tril if lower else triu)(m, (-1 if lower else 1) if unit else 0)


def _triangular_vjp(out: Any, lower: bool, unit: bool, adjoint: bool, shared: Any) -> Any:
    """Return the cotangent of a, given that of b in `shared`."""
    d = -shared
    product = out @ conj_t(d) if adjoint else d @ conj_t(out)
    if product.__class__ is not np.ndarray:
        return _triangle_of(product, lower, unit)
    offset = (-1 if lower else 1) if unit else 0
    read = np.tri(product.shape[-1], k=offset if lower else offset - 1, dtype=bool)
    np.copyto(product, 0, where=~read if lower else read)  # in place: half of tril's time
    return product


def _triangular_jvp(t: Any, a: Any, out: Any, lower: bool, unit: bool, adjoint: bool) -> Any:
    t = _triangle_of(t, lower, unit)
    return -_triangular(a, (conj_t(t) if adjoint else t) @ out, lower, unit, adjoint)


_triangular: Function = custom(
    "solve_triangular",
    _triangular_kernel,
    shared=lambda g, a, lower, unit, adjoint: _triangular(a, g, lower, unit, not adjoint),
    vjp={
        "a": lambda g, out, lower, unit, adjoint, shared: _triangular_vjp(out, lower, unit, adjoint, shared),
        "b": lambda g, shared: shared,
    },
    jvp={
        "a": _triangular_jvp,
        "b": lambda t, a, lower, unit, adjoint: _triangular(a, t, lower, unit, adjoint),
    },
)

_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def _are_finite(a: Any) -> bool:
    """Tell whether all numbers are finite: by the sum of their squares, which takes 9 us for 300 x 300 and not 20."""
    if a.__class__ is np.ndarray and a.dtype.char in "fdFD":
        numbers = a.ravel("K")  # a view, where they lie together
        if math.isfinite(np.vdot(numbers, numbers).real):
            return True
    return bool(np.isfinite(a).all())  # squares may overflow


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
    if check_finite and not (_are_finite(raw(a)) and _are_finite(raw(b))):
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
    return conj_t(lapack.cholesky(conj_t(a))) if upper else lapack.cholesky(a)  # CuPy's has no `upper`


def _cholesky_vjp(g: Any, out: Any, upper: bool) -> Any:
    g, out = (conj_t(g), conj_t(out)) if upper else (g, out)
    plain = libraries.is_numpy(out) and libraries.is_numpy(g)
    if plain and out.ndim > 2 and 0 < out.shape[-1] < lapack.LARGE:
        made = _cholesky_vjp_of_stack(g, out)
    elif plain and out.ndim == 2 and len(out) > _BLOCK:
        made = _cholesky_vjp_by_halves(g, out)
    else:
        y = _triangular(out, _half_triangle(conj_t(out) @ g), True, False, True)
        made = conj_t(_triangular(out, conj_t(y), True, False, True))
    return to_triangle(made, not upper)


@libraries.captured_as_one()
def _cholesky_vjp_of_stack(g: Any, out: Any) -> Any:
    """Return the same by products with the inverses, which two solutions with all columns would compute twice.

    An explicit inverse of a triangle is as accurate as substitution (Higham, "Accuracy and Stability of Numerical
    Algorithms", section 14.2). For 32 matrices of 16 rows it takes a third of the time. Of transposed matrices
    `numpy.matmul` computes small ones in slow loops: they are copied.
    """
    out = np.ascontiguousarray(out)
    inverses = _inverses(out)
    inner = np.ascontiguousarray(conj_t(out)) @ np.ascontiguousarray(g)
    n = out.shape[-1]
    inner *= np.tri(n, dtype=inner.real.dtype) - 0.5 * np.eye(n, dtype=inner.real.dtype)
    return np.ascontiguousarray(conj_t(inverses)) @ inner @ inverses


# Of up to so many rows the derivative of a factorisation is computed by solutions with all columns.
_BLOCK = 96


@libraries.captured_as_one()
def _cholesky_vjp_by_halves(g: Any, out: Any) -> Any:
    """Return the same by halves of rows and columns: 5/6 n^3 operations, not 3 n^3; for 300 rows .3 of the time."""
    made = np.empty(out.shape, out.dtype)
    _store_twice_cholesky_vjp(g, out, made)
    made *= 0.5
    return made


def _store_twice_cholesky_vjp(g: Any, out: Any, made: Any) -> None:
    """Write twice the cotangent of A = L L^H, given that of L, of which the lower triangle is read.

    With the halves A = [A1, .; B, A2] and L = [L1, 0; C, L2], C = B L1^-H, and L2 is the factor of A2 - C C^H.
    """
    half = len(out) // 2
    if len(out) <= _BLOCK:
        y = _triangular_kernel(out, _half_triangle(conj_t(out) @ g), True, False, True)
        z = _triangular_kernel(out, conj_t(y), True, False, True)
        np.add(z, conj_t(z), out=made)
        return
    first, c = np.ascontiguousarray(out[:half, :half]), out[half:, :half]
    last = made[half:, half:]
    _store_twice_cholesky_vjp(g[half:, half:], np.ascontiguousarray(out[half:, half:]), last)
    of_b = _triangular_kernel(first, conj_t(g[half:, :half] - last @ c), True, False, True)
    _store_twice_cholesky_vjp(g[:half, :half] - of_b @ c, first, made[:half, :half])
    made[:half, half:] = of_b
    made[half:, :half] = conj_t(of_b)


def _cholesky_jvp(t: Any, out: Any, upper: bool) -> Any:
    out = conj_t(out) if upper else out
    y = _triangular(out, from_triangle(t, not upper), True, False, False)
    z = out @ _half_triangle(_triangular(out, conj_t(y), True, False, False))
    return conj_t(z) if upper else z


# I. Murray, "Differentiation of the Cholesky decomposition" (2016).
_cholesky = custom("cholesky", _cholesky_kernel, vjp={"a": _cholesky_vjp}, jvp={"a": _cholesky_jvp})


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Factor as `numpy.linalg.cholesky`; one triangle is read, and receives all of the gradient."""
    if is_plain(a):
        return np.linalg.cholesky(a, upper=True) if upper else np.linalg.cholesky(a)  # CuPy has no upper
    return _cholesky(lift_square("cholesky", a), bool(upper))
