"""Sparse matrices beside Tensors, measured by dense ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from gradmgr import sparse
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import raw
from gradmgr.ops.sparse_arrays import as_operand, sample
from samples._table import ANALYTIC, Arg, Array, Field, add, wide

# Four rows of which the last is empty, and five columns.
_PLACES = (np.array([0, 2, 1, 0, 2, 2]), np.array([1, 0, 3, 4, 4, 0]))
_WIDE = scipy.sparse.coo_array((np.arange(1.0, 7.0), _PLACES), (4, 5))  # (2, 0) stands there twice
_SQUARE = scipy.sparse.csr_array([[4.0, 1.0, 0.0], [0.0, 5.0, -1.0], [2.0, 0.0, 6.0]])
VALUES = Arg((6,))
NEAR_1 = Arg((6,), 0.8, 1.2)  # factors of the nonzeros of the square one, which is then regular


def beside(x: Any, matrix: Any) -> Any:
    """Return a copy of the matrix in the library of an array or Tensor."""
    xp = libraries.root(raw(x))
    if xp is np:
        return matrix.copy()
    library = importlib.import_module("cupyx.scipy.sparse")
    if matrix.format == "coo":
        places = xp.asarray(matrix.row), xp.asarray(matrix.col)
        return library.coo_matrix((xp.asarray(matrix.data), places), matrix.shape)
    parts = [xp.asarray(part) for part in (matrix.data, matrix.indices, matrix.indptr)]
    return getattr(library, f"{matrix.format}_matrix")(tuple(parts), shape=matrix.shape)


def dense(matrix: Any, values: Array) -> Array:
    """Return the matrix with other values as an array."""
    matrix = matrix.tocoo()
    made = np.zeros(matrix.shape, values.dtype)
    np.add.at(made, (matrix.row, matrix.col), values)
    return made


def enter(
    name: str,
    case: str,
    call: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Arg,
    field: Field = "analytic",
) -> None:
    """Enter a call of a function of gradmgr.sparse."""

    def run(xp: Any, *given: Any) -> Any:
        return call(*given)

    add(f"sparse.{name}", case, run, *args, reference=reference, dispatches=False, field=field)


# ---------------------------------------------------------------- products


def operand(values: Any, matrix: Any = _WIDE) -> Any:
    return sparse.with_data(beside(values, matrix), values)


for _format in ("coo", "csr", "csc"):
    _matrix = _WIDE if _format == "coo" else _SQUARE.asformat(_format)
    _rows, _columns = _matrix.shape
    for _case, _more in (("vector", ()), ("columns", (2,))):
        enter(
            "with_data",
            f"{_format}, {_case}",
            lambda v, x, m=_matrix: operand(v, m) @ x,
            lambda v, x, m=_matrix: dense(m, v) @ x,
            VALUES,
            Arg((_columns, *_more)),
        )
    enter(
        "with_data",
        f"{_format}, on the right",
        lambda v, x, m=_matrix: x @ operand(v, m),
        lambda v, x, m=_matrix: x @ dense(m, v),
        VALUES,
        Arg((2, _rows)),
    )
enter(
    "with_data",
    "transposed",
    lambda v, x: operand(v).T.dot(x),
    lambda v, x: dense(_WIDE, v).T @ x,
    VALUES,
    Arg((4,)),
)
enter("with_data", "dense", lambda v: operand(v).toarray(), lambda v: dense(_WIDE, v), VALUES)
enter(
    "with_data",
    "a matrix of the library",
    lambda x: beside(x, _SQUARE) @ x,
    lambda x: _SQUARE.toarray() @ x,
    Arg((3,)),
)
for _case, _more in (("vectors", ()), ("columns", (2,))):
    add(
        "sparse.sampled_product",
        _case,
        lambda xp, u, v: sample(u, v, as_operand(beside(u, _WIDE), "sample").pattern),
        Arg((4, *_more)),
        Arg((5, *_more)),
        reference=lambda u, v: (
            u[_PLACES[0]] * v[_PLACES[1]] if u.ndim == 1 else (u[_PLACES[0]] * v[_PLACES[1]]).sum(axis=1)
        ),
        dispatches=False,
        **ANALYTIC,
    )

# ---------------------------------------------------------------- solving


def system(factors: Any) -> Any:
    """Return the square matrix with its values times these."""
    matrix, factors = beside(factors, _SQUARE), wide(factors)
    return sparse.with_data(matrix, factors * matrix.data)


def solved(factors: Array, b: Array) -> Array:
    factors = wide(factors)
    return np.linalg.solve(dense(_SQUARE, factors * _SQUARE.data), wide(b))


for _case, _more in (("vector", ()), ("columns", (2,)), ("no columns", (0,))):
    enter("spsolve", _case, lambda f, b: sparse.spsolve(system(f), wide(b)), solved, NEAR_1, Arg((3, *_more)))
for _way in "NTH":
    enter(
        "splu",
        _way,
        lambda f, b, way=_way: sparse.splu(system(f)).solve(wide(b), way),
        lambda f, b, way=_way: np.linalg.solve(
            {"N": lambda a: a, "T": np.transpose, "H": lambda a: a.conj().T}[way](
                dense(_SQUARE, wide(f) * _SQUARE.data)
            ),
            wide(b),
        ),
        NEAR_1,
        Arg((3,)),
        field="complex" if _way == "H" else "analytic",
    )
enter("factorized", "vector", lambda f, b: sparse.factorized(system(f))(wide(b)), solved, NEAR_1, Arg((3,)))
enter(
    "gmres",
    "vector",
    lambda f, b: sparse.gmres(system(f), wide(b), rtol=1e-14)[0],
    solved,
    NEAR_1,
    Arg((3,)),
)


def definite(factors: Any) -> Any:
    """Return a positive definite matrix that depends on three numbers, one for each row and column."""
    places = scipy.sparse.csr_array([[4.0, 1.0, 0.0], [1.0, 5.0, -1.0], [0.0, -1.0, 6.0]])
    rows, columns = as_operand(places, "definite").pattern.places
    factors = wide(factors)
    xp = libraries.namespace(raw(factors))
    matrix = beside(factors, places)
    return sparse.with_data(matrix, matrix.data * factors[xp.asarray(rows)] * factors[xp.asarray(columns)])


add(
    "sparse.cg",
    "vector",
    lambda xp, f, b: sparse.cg(definite(f), wide(b), rtol=1e-14)[0],
    Arg((3,), 0.8, 1.2),
    Arg((3,)),
    reference=lambda f, b: np.linalg.solve(definite(f).toarray(), wide(b)),
    dispatches=False,
)
