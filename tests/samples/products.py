"""Products."""

from __future__ import annotations

from samples._table import ANALYTIC, CUBE, MATRIX, SCALAR, VECTOR, Arg, X, add, function, method

# ---------------------------------------------------------------- products

_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((2, 3), (3, 4)),
    "vectors": ((3,), (3,)),
    "vector and matrix": ((3,), (3, 2)),
    "matrix and vector": ((2, 3), (3,)),
    "inner length 0": ((2, 0), (0, 3)),
    "no rows": ((0, 3), (3, 2)),
    "inner length 1": ((2, 1), (1, 3)),
}
for _case, (_one, _other) in _PRODUCTS.items():
    _third = _case == "matrices"
    function("matmul", _case, Arg(_one), Arg(_other), facts=ANALYTIC | {"third": _third})
    function("dot", _case, Arg(_one), Arg(_other), facts=ANALYTIC)
for _case, (_one, _other) in {
    "stacks": ((2, 3, 4), (2, 4, 2)),
    "stack and matrix": ((2, 3, 4), (4, 2)),
    "matrix and stack": ((3, 4), (2, 4, 2)),
    "stacks that broadcast": ((2, 1, 3, 4), (3, 4, 2)),
    "stack and vector": ((2, 3, 4), (4,)),
    "vector and stack": ((4,), (2, 4, 3)),
    "empty stack": ((0, 3, 4), (4, 2)),
}.items():
    function("matmul", _case, Arg(_one), Arg(_other), facts=ANALYTIC)
function("matmul", "array on the left", Arg((2, 3), constant=True), Arg((3, 2)), facts=ANALYTIC)
function("matmul", "array on the right", Arg((2, 3)), Arg((3, 2), constant=True), facts=ANALYTIC)
add("matmul", "itself twice", lambda xp, x: xp.matmul(x, x), MATRIX, **ANALYTIC)
add("matmul", "itself and its transpose", lambda xp, x: xp.matmul(x, x.T), X, **ANALYTIC)
add("matmul", "out=", lambda xp, x, y, o: xp.matmul(x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **ANALYTIC)
for _case, (_one, _other) in {"0-d": ((), (3, 2)), "0-d right": ((3,), ()), "cubes": ((2, 3, 4), (3, 4, 2))}.items():
    function("dot", _case, Arg(_one), Arg(_other), facts=ANALYTIC)
add("dot", "out=", lambda xp, x, y, o: xp.dot(x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **ANALYTIC)
method("dot", "matrix and vector", X, VECTOR, facts=ANALYTIC)
function("vdot", "vectors", VECTOR, VECTOR, facts={"field": "complex"})
function("vdot", "matrices", X, X, facts={"field": "complex"})
function("vecdot", "stacks", CUBE, VECTOR, facts={"field": "complex"})
function("vecdot", "axis", X, X, axis=0, facts={"field": "complex"})
function("inner", "vectors", VECTOR, VECTOR, facts=ANALYTIC)
function("inner", "cube and matrix", CUBE, X, facts=ANALYTIC)
function("inner", "0-d", SCALAR, X, facts=ANALYTIC)
function("outer", "vectors", Arg((3,)), VECTOR, facts=ANALYTIC)
function("outer", "of a matrix", MATRIX, Arg((2,)), facts=ANALYTIC)
add("outer", "itself twice", lambda xp, x: xp.outer(x, x), VECTOR, **ANALYTIC)
add("outer", "out=", lambda xp, x, y, o: xp.outer(x, y, out=xp.copy(o)), Arg((3,)), VECTOR, X, **ANALYTIC)
add("tensordot", "two axes", lambda xp, x, y: xp.tensordot(x, y), CUBE, Arg((3, 4, 2)), **ANALYTIC)
add("tensordot", "one axis", lambda xp, x, y: xp.tensordot(x, y, axes=1), CUBE, Arg((4, 2)), **ANALYTIC)
add("tensordot", "no axes", lambda xp, x, y: xp.tensordot(x, y, axes=0), VECTOR, Arg((2, 3)), **ANALYTIC)
add(
    "tensordot",
    "axis pairs",
    lambda xp, x, y: xp.tensordot(x, y, axes=([0, 2], [1, 0])),
    CUBE,
    Arg((4, 2)),
    **ANALYTIC,
)
add("tensordot", "negative axes", lambda xp, x, y: xp.tensordot(x, y, axes=(-1, -2)), CUBE, Arg((4, 2)), **ANALYTIC)

_EINSUMS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "matmul": ("ij,jk->ik", [(2, 3), (3, 4)]),
    "implicit output": ("ij,jk", [(2, 3), (3, 4)]),
    "implicit transpose": ("ba", [(2, 3)]),
    "trace": ("ii", [(3, 3)]),
    "diagonal": ("ii->i", [(3, 3)]),
    "diagonal of a stack": ("...ii->...i", [(2, 3, 3)]),
    "three times one letter": ("iii->i", [(3, 3, 3)]),
    "diagonal and another": ("iij,j->i", [(3, 3, 2), (2,)]),
    "sum over a lone letter": ("ij->j", [(2, 3)]),
    "lone letters on both": ("ij,kl->ik", [(2, 3), (4, 2)]),
    "total": ("ij->", [(2, 3)]),
    "outer": ("i,j->ij", [(2,), (3,)]),
    "three": ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    "ellipsis": ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    "ellipsis, implicit output": ("...i,i", [(2, 3), (3,)]),
    "ellipsis on one only": ("...i,i->...", [(2, 4, 3), (3,)]),
    "length 1 broadcasts": ("ij,ij->ij", [(1, 3), (2, 3)]),
    "length 1 is summed": ("ij,ij->i", [(2, 1), (2, 3)]),
    "spaces": (" i j , j -> i ", [(2, 3), (3,)]),
    "0-d operand": (",i->i", [(), (3,)]),
    "zero-size": ("ij,jk->ik", [(2, 0), (0, 3)]),
}
for _case, (_subscripts, _shapes) in _EINSUMS.items():
    add(
        "einsum",
        _case,
        lambda xp, *a, s=_subscripts: xp.einsum(s, *a),
        *map(Arg, _shapes),
        **ANALYTIC,
        third=_case == "matmul",
    )
add(
    "einsum",
    "optimize",
    lambda xp, x, y, z: xp.einsum("ij,jk,kl->il", x, y, z, optimize=True),
    Arg((2, 3)),
    X,
    Arg((4, 2)),
    **ANALYTIC,
)
add("einsum", "sublists", lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2], [2, 0]), Arg((2, 3)), X, **ANALYTIC)
add("einsum", "sublists, implicit output", lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2]), Arg((2, 3)), X, **ANALYTIC)
add("einsum", "sublists with ellipsis", lambda xp, x, y: xp.einsum(x, [..., 0], y, [0], [...]), X, VECTOR, **ANALYTIC)
add("einsum", "itself twice", lambda xp, x: xp.einsum("i,i", x, x), VECTOR, **ANALYTIC, third=True)
add(
    "einsum",
    "broadcast to no elements",
    lambda xp, x, y: xp.einsum("...ij,...kj->...ik", x, y),
    Arg((1, 2, 3)),
    Arg((1, 0, 2, 3)),
    **ANALYTIC,
)
add("einsum", "with an array", lambda xp, x, a: xp.einsum("ij,j", x, a), X, Arg((4,), constant=True), **ANALYTIC)
add("einsum", "out=", lambda xp, x, y, o: xp.einsum("ij,jk", x, y, out=xp.copy(o)), MATRIX, MATRIX, MATRIX, **ANALYTIC)
