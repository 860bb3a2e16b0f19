"""LU factors and other calls of LAPACK, by SciPy or CuPy where they are installed."""

from __future__ import annotations

import importlib.machinery
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr import errors
from gradmgr._arrays import batched, libraries, small_systems
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.tensor import raw

HAS_SCIPY = importlib.machinery.PathFinder.find_spec("scipy") is not None
# Below this size NumPy's loop over a stack of matrices in C beats one LAPACK call for each: for 64 matrices of 10 rows
# 47 us to factor and solve against 110, for 16 of 100 rows 670 us against 620, then 85 for each further solve.
LARGE = 32
_PANEL = 64  # columns that getri computes together, for which it needs memory: for 300 rows 1.6 ms, with 3 of them 1.9


# ---------------------------------------------------------------- LU factors, computed once


class LU(NamedTuple):
    """What LAPACK's getrf gives for each matrix of a stack, in order."""

    lu: tuple[Any, ...]
    pivots: tuple[Any, ...]
    singular: bool


_LETTER = {"f": "s", "d": "d", "F": "c", "D": "z"}


def routine(name: str, dtype: Any, *arrays: Any) -> Any:
    """Return LAPACK's routine for a dtype, to be called with arrays like these."""
    import scipy.linalg.lapack

    return libraries.foreign(getattr(scipy.linalg.lapack, _LETTER[dtype.char] + name), *arrays)


def blas_routine(name: str, dtype: Any, *arrays: Any) -> Any:
    """Return BLAS's routine for a dtype, to be called with arrays like these."""
    import scipy.linalg.blas

    return libraries.foreign(getattr(scipy.linalg.blas, _LETTER[dtype.char] + name), *arrays)


def factor(a: Any) -> LU | None:
    """Factor plain matrices for `solve_by_factors`, or return None if NumPy's own solve serves better.

    LAPACK is called directly: for 3 rows numpy.linalg.solve takes 3.0 us, scipy.linalg's lu_factor and lu_solve 4.1 and
    6.3, getrf and getrs 0.5 each; for 300 rows 510 us, 490 and 19, 470 and 13.
    """
    if a.size == 0:
        return None
    if not isinstance(a, np.ndarray) and libraries.root(a) is not np:
        return _factor_on_gpu(a) if a.ndim == 2 and not batched.is_batched(a) else None
    if not HAS_SCIPY or isinstance(a, batched.Batched) or (a.ndim > 2 and a.shape[-1] < LARGE):
        return None
    getrf = routine("getrf", a.dtype, a)
    if a.ndim == 2:
        lu, pivots, info = getrf(a)
        return LU((lu,), (pivots,), info > 0)
    lus, all_pivots, infos = zip(*[getrf(m) for m in a.reshape(-1, *a.shape[-2:])], strict=True)
    return LU(lus, all_pivots, max(infos) > 0)


def _factor_on_gpu(a: Any) -> LU:
    import cupyx.scipy.linalg

    lu, pivots = libraries.foreign(cupyx.scipy.linalg.lu_factor, a)(a, check_finite=False)
    return LU((lu,), (pivots,), singular=False)


def solve_by_lu(lu: Any, pivots: Any, b: Any, adjoint: bool) -> Any:
    """Solve one system; b is a vector or has two axes."""
    if not isinstance(lu, np.ndarray) and libraries.root(lu) is not np:
        import cupyx.scipy.linalg

        solve = libraries.foreign(cupyx.scipy.linalg.lu_solve, lu, b)
        return solve((lu, pivots), b, trans=2 if adjoint else 0, check_finite=False)
    x, _ = routine("getrs", lu.dtype, lu, b)(lu, pivots, b, trans=2 if adjoint else 0)
    return x


def adjoint_of_inverse(factor: LU) -> Any:
    """Return A^-H of one matrix that is factored and not singular, by LAPACK's getri.

    For 300 rows it takes two thirds of the time of a solution with all columns of the identity. LAPACK's columns are
    the rows of the transposed matrix, so nothing is copied.
    """
    lu = factor.lu[0]
    inverse, _ = routine("getri", lu.dtype, lu)(lu, factor.pivots[0], lwork=len(lu) * _PANEL)
    return conj_of(inverse.T)


def cholesky(a: Any) -> Any:
    """Return the lower factor of one matrix as numpy.linalg.cholesky; one of many rows by LAPACK's potrf.

    NumPy reorders its memory before and after, which for 300 rows takes longer than to factor. Here the rows of the
    lower triangle are read as columns of the upper one.

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    if HAS_SCIPY and a.ndim == 2 and len(a) >= LARGE and libraries.is_numpy(a):
        return _cholesky_by_columns(a)
    return np.linalg.cholesky(a)


@libraries.captured_as_one()
def _cholesky_by_columns(a: Any) -> Any:
    upper, info = routine("potrf", a.dtype)(np.ascontiguousarray(a).T, lower=0)
    if info:
        raise LinAlgError("Matrix is not positive definite")
    return upper.T


def solve_stack(a_shape: tuple[int, ...], b: Any, solve_one: Any) -> Any:
    """Solve for each matrix of a stack by solve_one(k, b of two axes), with broadcasting."""
    if len(a_shape) == 2:
        if b.ndim == 2:
            return solve_one(0, b)
        columns = np.moveaxis(b, -2, 0)
        return np.moveaxis(solve_one(0, columns.reshape(len(columns), -1)).reshape(columns.shape), 0, -2)
    batch = np.broadcast_shapes(a_shape[:-2], b.shape[:-2])
    which = np.broadcast_to(np.arange(math.prod(a_shape[:-2])).reshape(a_shape[:-2]), batch).ravel()
    x = libraries.namespace(b).empty(batch + b.shape[-2:], b.dtype)
    for k, one, to in zip(
        which, np.broadcast_to(b, x.shape).reshape(-1, *b.shape[-2:]), x.reshape(-1, *b.shape[-2:]), strict=True
    ):
        to[...] = solve_one(k, one)
    return x


def solve_unfactored(a: Any, b: Any) -> Any:
    """Solve by numpy.linalg.solve or a kernel, with b as columns; CuPy's does not broadcast stacks."""
    if libraries.root(a) is not np:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(m, batch + m.shape[-2:]) for m in (a, b))
    return small_systems.solve(a, b)


def _scipy_linalg(asked: str) -> Any:
    try:
        import scipy.linalg
    except ImportError as error:
        raise errors.MissingDependencyError(
            f"linalg.{asked} needs SciPy, which is not installed; pip install scipy"
        ) from error
    return scipy.linalg


def linalg_library(asked: str, *given: Any) -> Any:
    """Return scipy.linalg, or CuPy's for arrays on a GPU."""
    if all(not libraries.is_array(raw(t)) or libraries.root(raw(t)) is np for t in given):
        return _scipy_linalg(asked)
    import cupyx.scipy.linalg

    return cupyx.scipy.linalg
