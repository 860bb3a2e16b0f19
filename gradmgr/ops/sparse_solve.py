"""Systems of linear equations with a sparse matrix: by factors, and by iteration.

The solution of A x = b is differentiated as what it is, whatever finds it: the cotangent of b solves the adjoint
system, and that of each nonzero is minus its product with the solution, at that place. See P. Plessix, "A review of
the adjoint-state method for computing the gradient of a functional with geophysical applications" (2006).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._arrays.listening import listener
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops.convert import cast_to, lift
from gradmgr.ops.matrices import common_dtype
from gradmgr.ops.sparse_arrays import (
    Array,
    Pattern,
    SparseArray,
    as_operand,
    call_on_columns,
    check_library,
    multiply,
    sample,
    sparse_library,
)


def _linalg(pattern: Pattern) -> Any:
    """Return the module of solvers for a matrix: that of SciPy, or of CuPy."""
    return importlib.import_module(f"{pattern.library.__name__}.linalg")


# ---------------------------------------------------------------- how a system is solved


class Factors:
    """The LU factors of a matrix, by which every system with it is solved.

    Attributes:
        lu: what SciPy's or CuPy's splu returns.
    """

    def __init__(self, asked: str, matrix: Any, library: Any, options: dict[str, Any]) -> None:
        self._is_complex = matrix.dtype.kind == "c"
        try:
            self.lu = library.splu(matrix.tocsc(), **options)
        except RuntimeError as error:
            if "singular" not in str(error):
                raise
            raise LinAlgError(f"{asked}: the matrix of shape {matrix.shape} is singular") from None

    def __call__(self, values: Array, b: Array, pattern: Pattern, adjoint: bool) -> Array:
        """Solve for plain arrays; the values are those of the factors already."""
        way = "H" if adjoint else "N"
        if b.dtype.kind == "c" and not self._is_complex:
            return self.lu.solve(b.real.copy(), way) + 1j * self.lu.solve(b.imag.copy(), way)
        return self.lu.solve(b, way)

    def for_derivatives(self) -> Factors:
        """Return what solves the systems of derivatives."""
        return self


class Direct:
    """Factors that are computed for each system: where the values differ between examples of a vmap, or replays."""

    def __init__(self, asked: str, options: dict[str, Any]) -> None:
        self.asked = asked
        self.options = options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Direct) and (self.asked, self.options) == (other.asked, other.options)

    __hash__ = None  # type: ignore[assignment]  # it holds a dict

    def __call__(self, values: Array, b: Array, pattern: Pattern, adjoint: bool) -> Array:
        """Solve for plain arrays."""
        factors = Factors(self.asked, pattern.matrix(values), _linalg(pattern), self.options)
        return factors(values, b, pattern, adjoint)

    def for_derivatives(self) -> Direct:
        """Return what solves the systems of derivatives."""
        return self


class Iteration:
    """A solver by iteration; each column of b by itself.

    Attributes:
        infos: where this is a list, what SciPy says of each solution; else one that has not converged is an error.
    """

    def __init__(self, asked: str, options: dict[str, Any], preconditioner: Any, first: dict[str, Any] | None) -> None:
        self.asked = asked
        self.options = options
        self.preconditioner = preconditioner
        self.first = first or {}  # further arguments of the first solution: where to begin, what to call
        self.infos: list[int] | None = None if first is None else []

    def __call__(self, values: Array, b: Array, pattern: Pattern, adjoint: bool) -> Array:
        """Solve for plain arrays."""
        library = _linalg(pattern)
        matrix, m = pattern.matrix(values), self.preconditioner
        if adjoint:
            matrix = matrix.T.conj() if values.dtype.kind == "c" else matrix.T
            m = None if m is None else library.aslinearoperator(m).H
        solve = getattr(library, self.asked)
        columns = [b] if b.ndim == 1 else [b[:, k].copy() for k in range(b.shape[1])]
        found = [self._checked(*solve(matrix, column, M=m, **self.options, **self.first)) for column in columns]
        if b.ndim == 1:
            return found[0]
        return np.stack(found, axis=1) if found else b.copy()

    def _checked(self, x: Array, info: int) -> Array:
        if self.infos is not None:
            self.infos.append(int(info))
        elif info:
            raise LinAlgError(
                f"the derivative of {self.asked}: the adjoint system was not solved to rtol={self.options['rtol']:g} "
                f"(info={info}); raise maxiter, or pass a preconditioner M"
            )
        return x

    def for_derivatives(self) -> Iteration:
        """Return what solves the systems of derivatives."""
        return self if self.infos is None else Iteration(self.asked, self.options, self.preconditioner, None)


Solver = Factors | Direct | Iteration


# ---------------------------------------------------------------- the op


def _solve_plain(values: Array, b: Array, pattern: Pattern, solver: Solver, adjoint: bool) -> Array:
    if not b.size:
        return b.copy()
    return solver(values, b, pattern, adjoint).astype(b.dtype, copy=False)


def _shared(g: Any, values: Any, pattern: Pattern, solver: Solver, adjoint: bool) -> Any:
    return solve(values, g, pattern, solver.for_derivatives(), not adjoint)


def _values_vjp(g: Any, out: Any, pattern: Pattern, adjoint: bool, shared: Any) -> Any:
    return -sample(out, conj_of(shared), pattern) if adjoint else -sample(shared, conj_of(out), pattern)


def _values_jvp(t: Any, values: Any, out: Any, pattern: Pattern, solver: Solver, adjoint: bool) -> Any:
    return -solve(values, multiply(t, out, pattern, adjoint), pattern, solver.for_derivatives(), adjoint)


# A^-1 b, or A^-H b where `adjoint`, for a matrix A with these values and b of their dtype, a vector or columns.
# Both cotangents need the same solution, which costs as much as the op itself: it is shared.
solve: Function = custom(
    "sparse.solve",
    lambda values, b, pattern, solver, adjoint: call_on_columns(_solve_plain, values, b, pattern, solver, adjoint),
    shared=_shared,
    vjp={"values": _values_vjp, "b": lambda g, shared: shared},
    jvp={
        "values": _values_jvp,
        "b": lambda t, values, pattern, solver, adjoint: solve(values, t, pattern, solver.for_derivatives(), adjoint),
    },
)


def _square(a: Any, asked: str) -> SparseArray:
    if not isinstance(a, SparseArray) and sparse_library(a) is None:
        _check_scipy(asked)
    operand = as_operand(a, asked)
    if operand.shape[0] != operand.shape[1]:
        raise errors.ShapeError(f"{asked} takes a square matrix; found shape {operand.shape}")
    return operand


def _check_scipy(asked: str) -> None:
    try:
        import scipy.sparse  # noqa: F401  # whether it is there
    except ImportError as error:
        raise errors.MissingDependencyError(
            f"sparse.{asked} needs SciPy, which is not installed; pip install scipy"
        ) from error


def _right_side(b: Any, operand: SparseArray, asked: str) -> Any:
    if sparse_library(b) is not None or isinstance(b, SparseArray):
        raise TypeError(f"{asked} takes a dense b; found a sparse one; pass b.toarray()")
    b = lift(b)
    if b.ndim not in (1, 2) or b.shape[0] != operand.shape[0]:
        raise errors.ShapeError(
            f"{asked}: a matrix of shape {operand.shape} does not fit b of shape {b.shape}; b must be a vector or have "
            "two axes"
        )
    check_library(asked, operand.pattern, b)
    return b


def _solved(operand: SparseArray, b: Any, solver: Solver, adjoint: bool = False, asked: str = "") -> Any:
    dtype = common_dtype(asked, raw(operand.data), raw(b))
    return solve(cast_to(operand.data, dtype), cast_to(b, dtype), operand.pattern, solver, adjoint)


# ---------------------------------------------------------------- by factors


def _factors_of(operand: SparseArray, asked: str, options: dict[str, Any], *right: Any) -> Factors | Direct:
    """Return the factors, computed now unless they differ between examples of a vmap, or between replays.

    They have the precision that is common to the matrix and to `right`, the right side if it is known.
    """
    values = raw(operand.data)
    dtype = common_dtype(asked, values, *[raw(b).real for b in right])
    if batched.is_batched(values) or libraries.is_captured(values):
        return Direct(asked, options)
    matrix = operand.pattern.matrix(values.astype(dtype, copy=False))
    return Factors(asked, matrix, _linalg(operand.pattern), options)


def spsolve(A: Any, b: Any, permc_spec: str | None = None, use_umfpack: bool = True) -> Any:  # noqa: N803  # SciPy's
    """Solve A x = b for a sparse A as `scipy.sparse.linalg.spsolve`; differentiable by b and the nonzeros of A.

    Args:
        A: a square sparse array of SciPy or CuPy, or what `with_data` makes of one.
        b: (n,) or (n, k), dense.
        permc_spec: how to permute the columns, see SciPy.
        use_umfpack: has no meaning here, as factors are SuperLU's.

    Returns:
        x in the shape of b, a Tensor where b or the nonzeros are one. One factorisation serves derivatives of every
        order.

    Raises:
        LinAlgError: A is singular.
        TypeError: A is no sparse array, or b is one; a dtype is of half precision.
        ShapeError: A is not square, or b does not fit it.

    >>> import scipy.sparse, gradmgr
    >>> A = scipy.sparse.csr_array([[2.0, 0.0], [1.0, 4.0]])
    >>> b = gradmgr.tensor([2.0, 5.0])
    >>> with gradmgr.GradManager().attach(b) as gm:
    ...     x = gradmgr.sparse.spsolve(A, b)
    ...     gm.backward(x[1])
    >>> x.tolist(), b.grad.tolist()
    ([1.0, 1.0], [-0.125, 0.25])
    """
    operand = _square(A, "spsolve")
    b = _right_side(b, operand, "spsolve")
    options = {} if permc_spec is None else {"permc_spec": permc_spec}
    return _solved(operand, b, _factors_of(operand, "spsolve", options, b), asked="spsolve")


class SuperLU:
    """The LU factors of a sparse matrix, as `splu` makes them.

    Attributes:
        shape: of the matrix.

    Raises:
        ValueError: in `solve`, the right-hand side has another number of rows.

    >>> import scipy.sparse
    >>> from gradmgr import sparse, tensor
    >>> lu = sparse.splu(scipy.sparse.csc_array([[2.0, 0.0], [0.0, 4.0]]))
    >>> lu.solve(tensor([2.0, 8.0]))
    Tensor([1., 2.])
    """

    __slots__ = ("_operand", "_solver", "shape")

    def __init__(self, operand: SparseArray, solver: Factors | Direct) -> None:
        self._operand = operand
        self._solver = solver
        self.shape = operand.shape

    def solve(self, b: Any, trans: str = "N") -> Any:
        """Solve A x = b, or with A^T ("T") or A^H ("H") in place of A; differentiable by b and the nonzeros of A.

        Raises:
            ValueError: trans is another.
            ShapeError: b does not fit the matrix.
        """
        if trans not in ("N", "T", "H"):
            raise ValueError(f"SuperLU.solve: trans must be 'N', 'T' or 'H'; found {trans!r}")
        b = _right_side(b, self._operand, "SuperLU.solve")
        if trans == "T":  # A^-T b is the conjugate of A^-H conj(b)
            return conj_of(_solved(self._operand, conj_of(b), self._solver, True, "SuperLU.solve"))
        return _solved(self._operand, b, self._solver, trans == "H", "SuperLU.solve")


def splu(A: Any, permc_spec: str | None = None, **options: Any) -> SuperLU:  # noqa: N803  # SciPy's name
    """Factor a sparse matrix as `scipy.sparse.linalg.splu`; what it returns solves systems with it.

    Args:
        A: a square sparse array of SciPy or CuPy, or what `with_data` makes of one.
        permc_spec: how to permute the columns, see SciPy.
        **options: further arguments of SciPy's function.

    Raises:
        LinAlgError: A is singular.
        TypeError: A is no sparse array, or of half precision.
        ShapeError: A is not square.

    >>> import scipy.sparse, gradmgr
    >>> lu = gradmgr.sparse.splu(scipy.sparse.csc_array([[2.0, 0.0], [1.0, 4.0]]))
    >>> lu.solve(gradmgr.tensor([2.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    operand = _square(A, "splu")
    return SuperLU(operand, _factors_of(operand, "splu", {"permc_spec": permc_spec, **options}))


def factorized(A: Any) -> Callable[[Any], Any]:  # noqa: N803  # SciPy's name
    """Return a function that solves A x = b for each b it is given, as `scipy.sparse.linalg.factorized`.

    Raises:
        LinAlgError, TypeError, ShapeError: see `splu`.

    >>> import scipy.sparse, gradmgr
    >>> solve = gradmgr.sparse.factorized(scipy.sparse.csc_array([[2.0, 0.0], [1.0, 4.0]]))
    >>> solve(gradmgr.tensor([2.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    operand = _square(A, "factorized")
    return SuperLU(operand, _factors_of(operand, "factorized", {})).solve


# ---------------------------------------------------------------- by iteration


def _iterated(asked: str, a: Any, b: Any, m: Any, options: dict[str, Any], first: dict[str, Any]) -> tuple[Any, int]:
    operand = _square(a, asked)
    b = _right_side(b, operand, asked)
    if b.ndim != 1:
        raise errors.ShapeError(f"{asked} takes b of one axis; found shape {b.shape}; use vmap over its columns")
    heard = listener()
    if heard is not None:
        what = f"{asked} says whether it has converged, which a replay cannot; call it outside of the function,"
        heard.leave(what, None)
    solver = Iteration(asked, options, raw(m), {name: raw(value) for name, value in first.items() if value is not None})
    x = _solved(operand, b, solver, asked=asked)
    return x, next(filter(None, solver.infos or ()), 0)


def cg(
    A: Any,  # noqa: N803  # SciPy's name
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,  # noqa: N803  # as above
    callback: Callable[[Any], Any] | None = None,
) -> tuple[Any, int]:
    """Solve A x = b for a Hermitian positive definite A by conjugate gradients, as `scipy.sparse.linalg.cg`.

    The solution is differentiated as that of the system, by solving the adjoint one likewise: derivatives are as exact
    as the residual allows, so choose rtol for them, too. Nothing of the iteration is recorded.

    Args:
        A: a sparse array of SciPy or CuPy, or what `with_data` makes of one.
        b: (n,).
        x0: where to begin; a constant.
        rtol: it ends when norm(b - A x) <= max(rtol * norm(b), atol).
        atol: likewise.
        maxiter: the greatest number of iterations; None for SciPy's choice.
        M: approximates the inverse of A: a matrix or LinearOperator; a constant.
        callback: called with the current x, an array, after each iteration of this system, not of adjoint ones.

    Returns:
        x, a Tensor where b or the nonzeros are one, and 0, or as SciPy's function where it has not converged; inside
        vmap the first such number of any example.

    Raises:
        LinAlgError: in a derivative: the adjoint system was not solved.
        TypeError: A is no sparse array; a dtype is of half precision.
        ShapeError: A is not square, or b does not fit it.

    >>> import scipy.sparse, gradmgr
    >>> A = scipy.sparse.csr_array([[2.0, 1.0], [1.0, 4.0]])
    >>> x, info = gradmgr.sparse.cg(A, gradmgr.tensor([3.0, 5.0]), rtol=1e-12)
    >>> x.numpy().round(9).tolist(), info
    ([1.0, 1.0], 0)
    """
    options = {"rtol": rtol, "atol": atol, "maxiter": maxiter}
    return _iterated("cg", A, b, M, options, {"x0": x0, "callback": callback})


def gmres(
    A: Any,  # noqa: N803  # SciPy's name
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,  # noqa: N803  # as above
    callback: Callable[[Any], Any] | None = None,
    callback_type: str | None = None,
) -> tuple[Any, int]:
    """Solve A x = b by generalised minimal residuals, as `scipy.sparse.linalg.gmres`; see `cg` for derivatives.

    Args:
        A: a square sparse array of SciPy or CuPy, or what `with_data` makes of one.
        b: (n,).
        x0: where to begin; a constant.
        rtol: it ends when norm(b - A x) <= max(rtol * norm(b), atol).
        atol: likewise.
        restart: iterations between restarts; None for SciPy's choice.
        maxiter: the greatest number of restarts; None for SciPy's choice.
        M: approximates the inverse of A: a matrix or LinearOperator; a constant.
        callback: called in iterations of this system, not of adjoint ones.
        callback_type: what it is called with, see SciPy.

    Returns:
        As `cg`.

    Raises:
        LinAlgError, TypeError, ShapeError: see `cg`.

    >>> import scipy.sparse, gradmgr
    >>> A = scipy.sparse.csr_array([[2.0, 0.0], [1.0, 4.0]])
    >>> x, info = gradmgr.sparse.gmres(A, gradmgr.tensor([2.0, 5.0]), rtol=1e-12)
    >>> x.numpy().round(9).tolist(), info
    ([1.0, 1.0], 0)
    """
    options = {"rtol": rtol, "atol": atol, "restart": restart, "maxiter": maxiter}
    return _iterated("gmres", A, b, M, options, {"x0": x0, "callback": callback, "callback_type": callback_type})
