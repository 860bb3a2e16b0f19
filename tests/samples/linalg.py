"""Linear algebra: solving, inverses, determinants, norms, products of several matrices, functions of a matrix.

numpy.linalg refuses halves, so the calls widen them first; where a matrix must be regular or positive
definite the call makes it so, with the identity as a constant argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from gradmgr.ops.determinant import _adjugate
from samples._table import ANALYTIC, CONSTANTS, CUBE, VECTOR, Arg, X, add, at, function, given, wide

COMPLEX: dict[str, Any] = {"field": "complex"}
KINK: dict[str, Any] = {"field": "complex", "smooth": False}

M = Arg((3, 3), -1, 1)
STACK = Arg((2, 3, 3), -1, 1)
NO_STACK = Arg((0, 3, 3))
NOTHING = Arg((0, 0))
TALL = Arg((4, 3))
WIDE = Arg((2, 4))
EYE = given(np.eye(3))
EYE_2 = given(np.eye(2))
EYE_0 = given(np.zeros((0, 0)))
# Large enough for the LU factors that forward and backward share; of two numbers, so that the Jacobians stay small.
LARGE = Arg((2, 33, 33), -0.2, 0.2, constant=True)
LARGE_EYE = given(np.eye(33))
SCALES = Arg((2, 1, 1), 0.5, 1)


def regular(x: Any, eye: Any) -> Any:
    return wide(x) + 4 * wide(eye)


def definite(x: Any, eye: Any) -> Any:
    x = wide(x)
    return x @ x.swapaxes(-1, -2).conj() + 2 * wide(eye)


# ---------------------------------------------------------------- solving and inverting

_RIGHT_SIDES: dict[str, tuple[Arg, Arg]] = {
    "vector": (M, Arg((3,))),
    "columns": (M, Arg((3, 2))),
    "stacks": (STACK, Arg((2, 3, 2))),
    "stack of matrices, vector": (STACK, Arg((3,))),
    "stack of matrices, columns": (STACK, Arg((3, 2))),
    "matrix, stack of columns": (M, Arg((2, 3, 2))),
    "stacks that broadcast": (Arg((2, 1, 3, 3), -1, 1), Arg((1, 2, 3, 1))),
    "no stack": (NO_STACK, Arg((0, 3, 2))),
    "no columns": (M, Arg((3, 0))),
}
for _case, (_a, _b) in _RIGHT_SIDES.items():
    add(
        "linalg.solve",
        _case,
        lambda xp, a, b, e: xp.linalg.solve(regular(a, e), wide(b)),
        _a,
        _b,
        EYE,
        **ANALYTIC,
        third=_case == "vector",
    )
add("linalg.solve", "no rows", lambda xp, a, b: xp.linalg.solve(wide(a), wide(b)), NOTHING, Arg((0, 2)), **ANALYTIC)
add("linalg.solve", "itself", lambda xp, a, e: xp.linalg.solve(regular(a, e), a @ wide(a)), M, EYE, **ANALYTIC)
add(
    "linalg.solve",
    "large matrices",
    lambda xp, s, b, m, e: xp.linalg.solve(regular(s * m, e), wide(b) * wide(m[0, :, :2])),
    SCALES,
    Arg((2,)),
    LARGE,
    LARGE_EYE,
    **ANALYTIC,
)
for _case, _a in {"matrix": M, "stack": STACK, "no stack": NO_STACK}.items():
    _third = {"third": _case == "matrix"}
    add("linalg.inv", _case, lambda xp, a, e: xp.linalg.inv(regular(a, e)), _a, EYE, **ANALYTIC, **_third)
    add("linalg.det", _case, lambda xp, a, e: xp.linalg.det(regular(a, e)), _a, EYE, **ANALYTIC, **_third)
    add("linalg.slogdet", _case, lambda xp, a, e: xp.linalg.slogdet(regular(a, e)), _a, EYE, **COMPLEX, **_third)
    # Of a matrix that is not Hermitian: one triangle is read, and differences say so.
    add("linalg.cholesky", _case, lambda xp, a, e: xp.linalg.cholesky(regular(a, e)), _a, EYE, **COMPLEX, **_third)
    add("linalg.cholesky", f"of a Hermitian {_case}", lambda xp, a, e: xp.linalg.cholesky(definite(a, e)), _a, EYE,
        **COMPLEX)  # fmt: skip
    add(
        "linalg.matrix_power",
        f"{_case}, negative",
        lambda xp, a, e: xp.linalg.matrix_power(regular(a, e), -3),
        _a,
        EYE,
        **ANALYTIC,
    )
    add("linalg.expm", _case, lambda xp, a: xp.linalg.expm(wide(a)), _a, **ANALYTIC, dispatches=False, **_third,
        reference=lambda a: scipy.linalg.expm(wide(a)))  # fmt: skip
for _name, _make in {"inv": regular, "det": regular, "slogdet": regular, "cholesky": regular}.items():
    add(
        f"linalg.{_name}",
        "no rows",
        lambda xp, a, e, n=_name, make=_make: getattr(xp.linalg, n)(make(a, e)),
        NOTHING,
        EYE_0,
        **COMPLEX,
    )
add("linalg.det", "one row", lambda xp, a: xp.linalg.det(wide(a)), Arg((1, 1)), **ANALYTIC)
add("linalg.det", "singular", lambda xp, a: xp.linalg.det(wide(a)), at(np.arange(9.0).reshape(3, 3)), **COMPLEX)
add(
    "linalg.det",
    "of rank n - 2",
    lambda xp, a: xp.linalg.det(wide(a)),
    at(np.ones((3, 3))),
    third=True,
    **COMPLEX,
)
add(
    "linalg.det",
    "stack with singular ones",
    lambda xp, a: xp.linalg.det(wide(a)),
    at([np.eye(2), [[1, 2], [2, 4]], np.zeros((2, 2))]),
    **COMPLEX,
)
add(
    "linalg.det",
    "large",
    lambda xp, s, m, e: xp.linalg.det(0.2 * wide(s[0]) * wide(m[0]) + wide(e)),
    SCALES,
    LARGE,
    LARGE_EYE,
    **ANALYTIC,
)


def _cofactors(a: Any) -> Any:
    """The transposed matrix of cofactors, by its definition."""
    a, n = wide(a), a.shape[-1]
    minors = [
        np.linalg.det(np.delete(np.delete(a, i, -2), j, -1)) * (-1) ** (i + j) for j in range(n) for i in range(n)
    ]
    return np.stack(minors, -1).reshape(a.shape)


# What det's derivative is where there is no inverse; its own derivatives are those of det one order up.
for _case, _a in {
    "regular": Arg((2, 3, 3)),
    "of rank n - 1": at([[1.0, 2, 0], [2, 4, 1], [3, 6, -1]]),
    "of rank n - 2": at(np.outer([1.0, -2, 1], [1, 3, 2])),
    "of rank n - 3": at(np.outer([1.0, -2, 1, 1], [1, 3, 2, 1])),
    "zero": at(np.zeros((3, 3))),
    "one row": Arg((1, 1)),
    "no stack": NO_STACK,
}.items():
    _facts = COMPLEX | {"third": "n" in _case, "reference": _cofactors, "dispatches": False}
    add("engine.adjugate", _case, lambda xp, a: _adjugate(wide(a)), _a, **_facts)
add(
    "linalg.slogdet",
    "large",
    lambda xp, s, m, e: xp.linalg.slogdet(wide(s) * wide(m) - 4 * wide(e)),
    SCALES,
    LARGE,
    LARGE_EYE,
    **COMPLEX,
)
add("linalg.slogdet", "sign alone", lambda xp, a, e: xp.linalg.slogdet(regular(a, e))[0] * 2, M, EYE, **COMPLEX)
add("linalg.slogdet", "logabsdet alone", lambda xp, a, e: xp.linalg.slogdet(-regular(a, e))[1], M, EYE, **COMPLEX)
add(
    "linalg.cholesky",
    "upper",
    lambda xp, a, e: xp.linalg.cholesky(regular(a, e), upper=True),
    STACK,
    EYE,
    **COMPLEX,
)

# ---------------------------------------------------------------- least squares

for _case, _a in {"tall": TALL, "wide": WIDE, "square": Arg((2, 2))}.items():
    add("linalg.pinv", _case, lambda xp, a: xp.linalg.pinv(wide(a)), _a, **COMPLEX, third=_case == "tall")
add("linalg.pinv", "stack", lambda xp, a: xp.linalg.pinv(wide(a)), Arg((2, 3, 2)), **COMPLEX)
add("linalg.pinv", "zero-size", lambda xp, a: xp.linalg.pinv(wide(a)), Arg((0, 3)), **COMPLEX)
add("linalg.pinv", "rcond of each", lambda xp, a, r: xp.linalg.pinv(wide(a), wide(r)), Arg((2, 3, 2)),
    given([1e-4, 1e-3]), **COMPLEX)  # fmt: skip
add("linalg.pinv", "rtol=", lambda xp, a: xp.linalg.pinv(wide(a), rtol=1e-3), TALL, **COMPLEX)
add("linalg.pinv", "rtol=None", lambda xp, a: xp.linalg.pinv(wide(a), rtol=None), TALL, **COMPLEX)
# Of rank 1, and kept so: a product of a column and a row.
add(
    "linalg.pinv",
    "lower rank",
    lambda xp, x, y: xp.linalg.pinv(wide(x)[:, None] * wide(y), 1e-5),
    Arg((3,), 0.5, 2),
    Arg((2,), 0.5, 2),
    **COMPLEX,
)
add(
    "linalg.pinv",
    "hermitian",
    lambda xp, a: xp.linalg.pinv(wide(a), hermitian=True),
    Arg((2, 2), 0.5, 2),
    **COMPLEX,
)
for _case, _a, _b in (
    ("vector", TALL, Arg((4,))),
    ("columns", TALL, Arg((4, 2))),
    ("wide", WIDE, Arg((2, 2))),
    ("square", Arg((2, 2)), Arg((2,))),
    ("no columns", TALL, Arg((4, 0))),
    ("no unknowns", Arg((3, 0)), Arg((3, 2))),
    ("no equations", Arg((0, 2)), Arg((0, 2))),
):
    add("linalg.lstsq", _case, lambda xp, a, b: xp.linalg.lstsq(wide(a), wide(b))[::3], _a, _b, **COMPLEX)
add("linalg.lstsq", "residuals", lambda xp, a, b: xp.linalg.lstsq(wide(a), wide(b))[1], TALL, Arg((4, 2)), **COMPLEX)
add("linalg.lstsq", "one residual", lambda xp, a, b: xp.linalg.lstsq(wide(a), wide(b))[1], TALL, VECTOR, **COMPLEX)
add("linalg.lstsq", "no residuals", lambda xp, a, b: xp.linalg.lstsq(wide(a), wide(b))[1], WIDE, Arg((2,)), **COMPLEX)
add(
    "linalg.lstsq",
    "lower rank, rcond=",
    lambda xp, x, y, b: xp.linalg.lstsq(wide(x)[:, None] * wide(y), wide(b), rcond=1e-4)[0],
    Arg((3,), 0.5, 2),
    Arg((2,), 0.5, 2),
    Arg((3, 2)),
    **COMPLEX,
)
add("linalg.lstsq", "rcond=-1", lambda xp, a, b: xp.linalg.lstsq(wide(a), wide(b), -1)[0], TALL, VECTOR, **COMPLEX)

# ---------------------------------------------------------------- triangles


def _solved(a: Any, b: Any, **keywords: Any) -> Any:
    """What scipy.linalg.solve_triangular computes; it takes no empty stacks."""
    a, b = wide(a), wide(b)
    if not a.size:
        return np.linalg.solve(a, b)
    return scipy.linalg.solve_triangular(a, b, **keywords)


def _triangular(case: str, a: Arg, b: Arg, eye: Arg = EYE, facts: dict[str, Any] = ANALYTIC, **keywords: Any) -> None:
    add(
        "linalg.solve_triangular",
        case,
        lambda xp, a, b, e: xp.linalg.solve_triangular(regular(a, e), wide(b), **keywords),
        a,
        b,
        eye,
        reference=lambda a, b, e: _solved(regular(a, e), b, **keywords),
        dispatches=False,
        **facts,
    )


_triangular("vector", M, Arg((3,)), facts=ANALYTIC | {"third": True})
_triangular("lower, columns", M, Arg((3, 2)), lower=True)
_triangular("transposed", M, Arg((3, 2)), trans=1)
_triangular("transposed, by name", M, Arg((3, 2)), trans="T", lower=True, unit_diagonal=True)
_triangular("adjoint", M, Arg((3,)), trans="C", facts=COMPLEX)
_triangular("adjoint, unit diagonal", M, Arg((3, 2)), trans=2, unit_diagonal=True, facts=COMPLEX)
_triangular("unit diagonal", M, Arg((3, 2)), unit_diagonal=True, check_finite=False)
_triangular("stacks", STACK, Arg((2, 3, 2)), lower=True)
_triangular("stack, vector", STACK, Arg((3,)))
add(
    "linalg.solve_triangular",
    "large matrices",
    lambda xp, s, b, m, e: xp.linalg.solve_triangular(regular(s * m, e), wide(b) * wide(m[0, :, :2])),
    SCALES,
    Arg((2,)),
    LARGE,
    LARGE_EYE,
    reference=lambda s, b, m, e: _solved(regular(s * m, e), wide(b) * wide(m[0, :, :2])),
    dispatches=False,
    **ANALYTIC,
)
_triangular("no stack", NO_STACK, Arg((0, 3, 2)))

# ---------------------------------------------------------------- powers

for _n in (1, 2, 3, 5):
    add("linalg.matrix_power", str(_n), lambda xp, a, n=_n: xp.linalg.matrix_power(a, n), M, **ANALYTIC)
add("linalg.matrix_power", "-1", lambda xp, a, e: xp.linalg.matrix_power(regular(a, e), -1), M, EYE, **ANALYTIC)
add("linalg.expm", "large", lambda xp, a: xp.linalg.expm(5 * wide(a)), Arg((2, 2), -1, 1), dispatches=False,
    reference=lambda a: scipy.linalg.expm(5 * wide(a)), **ANALYTIC)  # fmt: skip
add("linalg.expm", "no rows", lambda xp, a: xp.linalg.expm(wide(a)), NOTHING, dispatches=False,
    reference=wide, **ANALYTIC)  # fmt: skip

# ---------------------------------------------------------------- norms

for _case, _x, _keywords in (
    ("of a vector", VECTOR, {}),
    ("of a cube", CUBE, {}),
    ("keepdims", CUBE, {"keepdims": True}),
    ("fro", X, {"ord": "fro"}),
    ("f, axes", CUBE, {"ord": "f", "axis": (2, 0)}),
    ("fro, keepdims", CUBE, {"ord": "fro", "axis": (0, -1), "keepdims": True}),
    ("2 of a vector", VECTOR, {"ord": 2}),
    ("axis", X, {"axis": 1}),
    ("axis of one, keepdims", CUBE, {"axis": (-1,), "keepdims": True}),
    ("3", X, {"ord": 3, "axis": 0}),
    ("2.5, keepdims", X, {"ord": 2.5, "axis": -1, "keepdims": True}),
    ("half", X, {"ord": 0.5, "axis": 0}),
    ("-1 of a vector", VECTOR, {"ord": -1}),
    ("inf of a vector", VECTOR, {"ord": np.inf}),
    ("-inf of a vector", VECTOR, {"ord": -np.inf, "keepdims": True}),
    ("1 of a vector", VECTOR, {"ord": 1}),
    ("0", VECTOR, {"ord": 0}),
    ("1", X, {"ord": 1}),
    ("-1, axes", CUBE, {"ord": -1, "axis": (2, 1)}),
    ("inf, axes", CUBE, {"ord": np.inf, "axis": (0, 2), "keepdims": True}),
    ("-inf", X, {"ord": -np.inf}),
    ("1 of nothing", Arg((0, 2)), {"ord": 1}),
):
    _third = {"third": _case in ("of a cube", "3")}
    function("linalg.norm", _case, _x, facts=COMPLEX | _third, **_keywords)
add(
    "linalg.norm",
    "inf of nothing",
    lambda xp, x: xp.linalg.norm(x, np.inf),
    Arg((0,)),
    reference=lambda x: np.linalg.norm(x, 1),  # for inf NumPy up to 2.2 raises
    **COMPLEX,
)
for _case, _x, _keywords in (
    ("2", X, {"ord": 2}),
    ("-2, axes", CUBE, {"ord": -2, "axis": (0, 2), "keepdims": True}),
    ("nuc, axes", CUBE, {"ord": "nuc", "axis": (2, 1)}),
    ("nuc of nothing", EYE_0, {"ord": "nuc"}),
):
    add(
        "linalg.norm",
        _case,
        lambda xp, x, k=_keywords: xp.linalg.norm(wide(x), **k),
        Arg(_x.shape) if _x is not EYE_0 else NOTHING,
        **COMPLEX,
    )
for _case, _ord in {"of zeros": None, "of zeros, 3": 3, "of zeros, 1": 1, "of zeros, inf": np.inf}.items():
    function("linalg.norm", _case, at(np.zeros(3)), ord=_ord, facts=KINK)
for _case, _ord in {
    "with a zero, 3": 3,
    "with a zero, half": 0.5,
    "with a tie, inf": np.inf,
    "with a tie, -inf": -np.inf,
}.items():
    function("linalg.norm", _case, at([0.0, -2.0, 2.0, 0.0]), ord=_ord, facts=KINK)
function("linalg.norm", "axis with zeros", at([[0.0, 0.0], [3.0, 4.0]]), axis=1, facts=KINK)
function("linalg.matrix_norm", "stack", CUBE, facts=COMPLEX)
function("linalg.matrix_norm", "ord=, keepdims=", CUBE, ord=1, keepdims=True, facts=COMPLEX)
function("linalg.vector_norm", "all", CUBE, facts=COMPLEX)
function("linalg.vector_norm", "axes", CUBE, axis=(0, -1), facts=COMPLEX)
function("linalg.vector_norm", "axes, keepdims, ord=", CUBE, axis=(2, 0), keepdims=True, ord=3, facts=COMPLEX)
function("linalg.vector_norm", "axis, keepdims", CUBE, axis=1, keepdims=True, ord=np.inf, facts=COMPLEX)
function("linalg.vector_norm", "of a number", Arg((), 0.5, 2), facts=COMPLEX)
for _case, _a, _p in (*((str(p), M, p) for p in (None, 2, -2, 1, -1, np.inf, -np.inf, "fro")), ("stack", STACK, "fro")):
    add(
        "linalg.cond",
        _case,
        lambda xp, a, e, p=_p: xp.linalg.cond(regular(a, e), p),
        _a,
        EYE,
        reference=lambda a, e, p=_p: np.real(np.linalg.cond(regular(a, e), p)),  # NumPy up to 2.2 makes it complex
        **COMPLEX,
        third=_case == "fro",
    )
add("linalg.cond", "tall", lambda xp, a: xp.linalg.cond(wide(a)), TALL, **COMPLEX)

# ---------------------------------------------------------------- tensors, and products of several

add(
    "linalg.tensorsolve",
    "matrix of axes",
    lambda xp, a, b, e: xp.linalg.tensorsolve(wide(a) + 6 * wide(e), wide(b)),
    Arg((2, 2, 4), -1, 1),
    Arg((2, 2)),
    given(np.eye(4).reshape(2, 2, 4)),
    **ANALYTIC,
)
add(
    "linalg.tensorsolve",
    "axes=",
    lambda xp, a, b, e: xp.linalg.tensorsolve(wide(a) + 6 * wide(e), wide(b), axes=(0, 2)),
    Arg((2, 4, 2), -1, 1),
    Arg((4,)),
    given(np.moveaxis(np.eye(4).reshape(4, 2, 2), 1, 0)),
    **ANALYTIC,
)
add(
    "linalg.tensorinv",
    "two and one",
    lambda xp, a, e: xp.linalg.tensorinv(wide(a) + 6 * wide(e)),
    Arg((2, 2, 4), -1, 1),
    given(np.eye(4).reshape(2, 2, 4)),
    **ANALYTIC,
)
add(
    "linalg.tensorinv",
    "ind=1",
    lambda xp, a, e: xp.linalg.tensorinv(wide(a) + 6 * wide(e), ind=1),
    Arg((4, 2, 2), -1, 1),
    given(np.eye(4).reshape(4, 2, 2)),
    **ANALYTIC,
)
for _case, _shapes in {
    "two": [(2, 3), (3, 4)],
    "three": [(2, 3), (3, 4), (4, 2)],
    "four": [(3, 5), (5, 1), (1, 4), (4, 2)],
    "vectors at both ends": [(3,), (3, 2), (2, 2), (2,)],
    "vector first": [(3,), (3, 2), (2, 4)],
    "vector last": [(2, 3), (3, 2), (2,)],
    "inner length 0": [(2, 3), (3, 0), (0, 2)],
}.items():
    add("linalg.multi_dot", _case, lambda xp, *a: xp.linalg.multi_dot(a), *map(Arg, _shapes), **ANALYTIC)
add(
    "linalg.multi_dot",
    "out=",
    lambda xp, x, y, z, o: xp.linalg.multi_dot([x, y, z], out=xp.copy(o)),
    M,
    M,
    M,
    M,
    **ANALYTIC,
)

# ---------------------------------------------------------------- numpy.linalg's own forms

function("linalg.matmul", "stacks", CUBE, Arg((4, 2)), facts=ANALYTIC)
function("linalg.tensordot", "two axes", CUBE, Arg((3, 4, 2)), facts=ANALYTIC)
function("linalg.tensordot", "axes=", X, X, axes=([0, 1], [0, 1]), facts=ANALYTIC)
function("linalg.vecdot", "axis=", X, X, axis=0, facts=COMPLEX)
function("linalg.outer", "vectors", Arg((3,)), VECTOR, facts=ANALYTIC)
function("linalg.cross", "vectors", Arg((3,)), Arg((3,)), facts=ANALYTIC | {"third": True})
function("linalg.cross", "axis=, broadcast", Arg((3, 4)), Arg((2, 3, 1)), axis=-2, facts=ANALYTIC)
function("linalg.matrix_transpose", "stack", CUBE, facts=ANALYTIC)
function("linalg.diagonal", "stack", CUBE, facts=ANALYTIC)
function("linalg.diagonal", "offset=", CUBE, offset=-1, facts=ANALYTIC)
function("linalg.trace", "stack", CUBE, facts=ANALYTIC)
function("linalg.trace", "offset=", X, offset=1, facts=ANALYTIC)
add("linalg.trace", "dtype=", lambda xp, x: xp.linalg.trace(x, dtype=np.complex128), X, **COMPLEX)

CONSTANTS.update(
    {
        "linalg.matrix_rank": [
            lambda xp, x, y: xp.linalg.matrix_rank(x),
            lambda xp, x, y: xp.linalg.matrix_rank(x, tol=1.0),
            lambda xp, x, y: xp.linalg.matrix_rank(x[:, :3] + x[:, :3].T, hermitian=True, rtol=0.5),
            lambda xp, x, y: xp.linalg.matrix_rank(x[0]),
        ],
        "linalg.matrix_power": [lambda xp, x, y: xp.linalg.matrix_power(x[:, :3], 0)],
    }
)
