"""Decompositions. Vectors whose phase is free stand in samples as abs(v), or v @ f(w) @ v^H.

numpy.linalg refuses halves, so the calls widen them first. Of what NumPy reads one triangle, the other holds other
numbers: numeric differences then say which derivative each element has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.ops.decompose import _drop, _inverse
from gradmgr.ops.matrices import from_triangle, to_triangle
from samples._table import ANALYTIC, Arg, Array, add, given, wide

_COMPLEX: dict[str, Any] = {"field": "complex"}
_M = Arg((3, 3))
_STACK = Arg((2, 3, 3))
_APART = np.diag([-6.0, 0.0, 6.0])  # added to a matrix of small elements: its eigenvalues are real and far apart


def _h(xp: Any, x: Array) -> Array:
    return xp.conj(xp.swapaxes(x, -1, -2))


def _sizes(xp: Any, vectors: Array, values: Array) -> list[Array]:
    return [xp.abs(vectors), values]


# ---------------------------------------------------------------- eigh, eigvalsh

for _case, _arg in {
    "a matrix": _M,
    "a stack": _STACK,
    "1 by 1": Arg((1, 1)),
    "0 by 0": Arg((0, 0)),
    "an empty stack": Arg((0, 3, 3)),
}.items():
    add(
        "linalg.eigh",
        _case,
        lambda xp, x: _sizes(xp, *xp.linalg.eigh(wide(x))[::-1]),
        _arg,
        **_COMPLEX,
        third=_case == "a matrix",
    )
    add("linalg.eigvalsh", _case, lambda xp, x: xp.linalg.eigvalsh(wide(x)), _arg, **_COMPLEX)


def _exp_of_hermitian(xp: Any, x: Array) -> Array:
    w, v = xp.linalg.eigh(wide(x), UPLO="U")
    return (v * xp.exp(w)[..., None, :]) @ _h(xp, v)


add("linalg.eigh", "a function of a matrix", _exp_of_hermitian, _STACK, **_COMPLEX)
add("linalg.eigh", "the vectors with their sign", lambda xp, x: xp.linalg.eigh(wide(x)).eigenvectors, _M)
add("linalg.eigh", "vectors only", lambda xp, x: xp.abs(xp.linalg.eigh(wide(x))[1]), _M, **_COMPLEX)
for _uplo in ("L", "u"):
    add("linalg.eigh", f"UPLO={_uplo}", lambda xp, x, k=_uplo: tuple(xp.linalg.eigh(wide(x), k)), _M)
    add("linalg.eigvalsh", f"UPLO={_uplo}", lambda xp, x, k=_uplo: xp.linalg.eigvalsh(wide(x), k), _STACK, **_COMPLEX)
add(
    "linalg.eigvalsh",
    "of equal eigenvalues",
    lambda xp, x, e: xp.linalg.eigvalsh(wide(x * e)),
    Arg(()),
    given(np.eye(3, dtype=int)),
    **_COMPLEX,
)

# ---------------------------------------------------------------- eig, eigvals

for _case, _arg in {
    "a matrix": _M,
    "a stack": _STACK,
    "1 by 1": Arg((1, 1)),
    "0 by 0": Arg((0, 0)),
    "an empty stack": Arg((0, 3, 3)),
}.items():
    add(
        "linalg.eig",
        _case,
        lambda xp, x: _sizes(xp, *xp.linalg.eig(wide(x))[::-1]),
        _arg,
        **_COMPLEX,
        third=_case == "a matrix",
    )
    add("linalg.eigvals", _case, lambda xp, x: xp.linalg.eigvals(wide(x)), _arg, **_COMPLEX)


def _exp(xp: Any, x: Array) -> Array:
    w, v = xp.linalg.eig(wide(x))
    return (v[:, None, :] * xp.exp(w) * _h(xp, v).T[None]).sum(-1)


add("linalg.eig", "length and phase cancel", _exp, _M, **_COMPLEX)
add("linalg.eig", "of real eigenvalues", lambda xp, x, d: tuple(xp.linalg.eig(wide(x + d))), Arg((3, 3)), given(_APART))
add(
    "linalg.eigvals",
    "of real eigenvalues",
    lambda xp, x, d: xp.linalg.eigvals(wide(x + d)),
    _M,
    given(_APART),
    third=True,
)

# ---------------------------------------------------------------- svd, svdvals

_SHAPES = {
    "square": (3, 3),
    "tall": (4, 2),
    "wide": (2, 4),
    "a column": (3, 1),
    "a stack": (2, 3, 2),
    "no columns": (2, 0),
    "an empty stack": (0, 2, 3),
}


def _thin(xp: Any, x: Array) -> list[Array]:
    u, s, vh = xp.linalg.svd(wide(x), full_matrices=False)
    return [xp.abs(u), s, xp.abs(vh)]


def _full(xp: Any, x: Array) -> list[Array]:
    u, s, vh = xp.linalg.svd(wide(x))
    k = s.shape[-1]
    return [xp.abs(u[..., :k]), s, xp.abs(vh[..., :k, :])]


for _case, _shape in _SHAPES.items():
    add("linalg.svd", f"thin, {_case}", _thin, Arg(_shape), **_COMPLEX, third=_case == "tall")
    add("linalg.svdvals", _case, lambda xp, x: xp.linalg.svdvals(wide(x)), Arg(_shape), **_COMPLEX)
    if _case in ("square", "tall", "wide", "a stack"):
        add("linalg.svd", f"full, {_case}", _full, Arg(_shape), **_COMPLEX)


def _tanh_of_values(xp: Any, x: Array) -> Array:
    u, s, vh = xp.linalg.svd(wide(x), full_matrices=False)
    return (u * xp.tanh(s)[..., None, :]) @ vh


def _polar(xp: Any, x: Array) -> Array:
    u, _, vh = xp.linalg.svd(wide(x), False)
    return u @ vh


def _of_hermitian(xp: Any, x: Array) -> list[Array]:
    u, s, vh = xp.linalg.svd(wide(x), hermitian=True)
    return [xp.abs(u), s, (u * s[..., None, :]) @ vh]


add("linalg.svd", "the vectors with their signs", lambda xp, x: tuple(xp.linalg.svd(wide(x), False)), Arg((4, 3)))
add("linalg.svd", "a function of the values", _tanh_of_values, Arg((2, 3, 4)), **_COMPLEX)
add("linalg.svd", "the unitary factor", _polar, Arg((3, 2)), **_COMPLEX, third=True)
add("linalg.svd", "compute_uv=False", lambda xp, x: xp.linalg.svd(wide(x), compute_uv=False), Arg((2, 3)), **_COMPLEX)
add("linalg.svd", "hermitian=True", _of_hermitian, _STACK, **_COMPLEX)
add(
    "linalg.svd",
    "hermitian=True, compute_uv=False",
    lambda xp, x: xp.linalg.svd(wide(x), compute_uv=False, hermitian=True),
    _M,
    **_COMPLEX,
)

# ---------------------------------------------------------------- qr

for _case, _shape in _SHAPES.items():
    add(
        "linalg.qr",
        _case,
        lambda xp, x: tuple(xp.linalg.qr(wide(x))),
        Arg(_shape),
        **_COMPLEX,
        third=_case == "wide",
    )
    if _case in ("square", "tall", "wide"):
        add("linalg.qr", f"mode r, {_case}", lambda xp, x: xp.linalg.qr(wide(x), mode="r"), Arg(_shape), **_COMPLEX)


def _complete(xp: Any, x: Array) -> list[Array]:
    q, r = xp.linalg.qr(wide(x), mode="complete")
    return [q[..., : min(x.shape[-2:])], r]


for _case in ("tall", "wide", "a stack"):
    add("linalg.qr", f"mode complete, {_case}", _complete, Arg(_SHAPES[_case]), **_COMPLEX)

# ---------------------------------------------------------------- ops that only the rules call

_LOWER, _NOWHERE = np.tri(3, k=-1, dtype=bool), np.zeros((3, 3), dtype=bool)
_EYE = given(4 * np.eye(3))

add(
    "engine.inverse_of_factor",
    "vectors",
    lambda xp, x, e: _inverse(wide(x + e), None),
    _STACK,
    _EYE,
    **ANALYTIC,
    reference=lambda x, e: np.linalg.inv(wide(x + e)),
    dispatches=False,
    third=True,
)
add(
    "engine.inverse_of_factor",
    "a triangle",
    lambda xp, x, e: _inverse(wide(xp.triu(x + e)), 1e-9),
    _M,
    _EYE,
    **ANALYTIC,
    reference=lambda x, e: np.linalg.inv(wide(np.triu(x + e))),
    dispatches=False,
)


def _whole(x: Array, lower: bool) -> Array:
    """Return a stack of Hermitian matrices, element by element, from one triangle."""
    made = np.empty_like(x)
    for i, j in np.ndindex(x.shape[-2:]):
        one = x[..., i, j] if (i > j) == lower else x[..., j, i].conj()
        made[..., i, j] = one if i != j else x[..., i, i].real
    return made


def _collected(g: Array, lower: bool) -> Array:
    """Return in one triangle what both hold."""
    made = np.zeros_like(g)
    for i, j in np.ndindex(g.shape[-2:]):
        if i == j or (i > j) == lower:
            made[..., i, j] = g[..., i, j] + g[..., j, i].conj() if i != j else g[..., i, i].real
    return made


for _lower in (True, False):
    for _name, _op, _of in (("from", from_triangle, _whole), ("to", to_triangle, _collected)):
        add(
            f"engine.{_name}_triangle",
            "lower" if _lower else "upper",
            lambda xp, x, f=_op, k=_lower: f(x, k),
            _STACK,
            **_COMPLEX,
            reference=lambda x, f=_of, k=_lower: f(x, k),
            dispatches=False,
        )
for _case, _equal in {"nothing is 0": _NOWHERE, "0 over 0": _LOWER}.items():
    add(
        "engine.drop_degenerate",
        _case,
        lambda xp, x, equal, unknown: _drop(wide(xp.triu(x)), equal, unknown),
        _M,
        given(_equal),
        given(_NOWHERE),
        **ANALYTIC,
        reference=lambda x, *_: np.triu(wide(x)),
        dispatches=False,
        smooth=not _equal.any(),  # what stands over 0 has no derivative
        third=True,
    )
