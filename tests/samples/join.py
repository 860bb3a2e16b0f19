"""Joining and splitting arrays."""

from __future__ import annotations

import numpy as np

from samples._table import ANALYTIC, CUBE, SCALAR, VECTOR, Arg, X, add

# ---------------------------------------------------------------- joining

add("concatenate", "axis 0", lambda xp, x, y: xp.concatenate([x, y]), X, Arg((2, 4)), **ANALYTIC, third=True)
add("concatenate", "axis -1", lambda xp, x, y: xp.concatenate((x, y), axis=-1), X, Arg((3, 1)), **ANALYTIC)
add("concatenate", "flattened", lambda xp, x, y: xp.concatenate([x, y], axis=None), X, VECTOR, **ANALYTIC)
add("concatenate", "itself twice", lambda xp, x: xp.concatenate([x, x]), X, **ANALYTIC)
add(
    "concatenate",
    "with an array",
    lambda xp, x, a: xp.concatenate([a, x, a]),
    X,
    Arg((2, 4), constant=True),
    **ANALYTIC,
)
add("concatenate", "one", lambda xp, x: xp.concatenate([x]), X, **ANALYTIC)
add("concatenate", "a zero-size one", lambda xp, x, y: xp.concatenate([x, y]), Arg((0, 4)), X, **ANALYTIC)
add("concatenate", "dtype=complex", lambda xp, x, y: xp.concatenate([x, y], dtype=np.complex128), X, X, field="complex")
add(
    "concatenate",
    "out=",
    lambda xp, x, y, o: xp.concatenate([x, y], out=xp.copy(o)),
    VECTOR,
    VECTOR,
    Arg((8,)),
    **ANALYTIC,
)
add("concatenate", "of rows", lambda xp, x: xp.concatenate(x, axis=0), CUBE, **ANALYTIC)
add("concat", "alias", lambda xp, x, y: xp.concat([x, y], axis=1), X, X, **ANALYTIC)
add("stack", "axis 0", lambda xp, x, y: xp.stack([x, y]), X, X, **ANALYTIC)
add("stack", "axis 1", lambda xp, x, y: xp.stack([x, y, x], axis=1), CUBE, CUBE, **ANALYTIC)
add("stack", "zero-size", lambda xp, x: xp.stack([x, x], axis=1), Arg((2, 0)), **ANALYTIC)
add("stack", "axis -1", lambda xp, x, y: xp.stack([x, y], axis=-1), X, X, **ANALYTIC)
add("stack", "0-d", lambda xp, x, y: xp.stack([x, y, x]), SCALAR, SCALAR, **ANALYTIC)
add("vstack", "rows", lambda xp, x, y: xp.vstack([x, y]), VECTOR, X, **ANALYTIC)
add("hstack", "vectors", lambda xp, x, y: xp.hstack([x, y]), VECTOR, Arg((2,)), **ANALYTIC)
add("hstack", "matrices", lambda xp, x, y: xp.hstack([x, y]), X, Arg((3, 1)), **ANALYTIC)
add("hstack", "0-d", lambda xp, x, y: xp.hstack([x, y]), SCALAR, SCALAR, **ANALYTIC)
add("dstack", "matrices", lambda xp, x, y: xp.dstack([x, y]), X, X, **ANALYTIC)
add("column_stack", "vector and matrix", lambda xp, x, y: xp.column_stack([x, y]), Arg((3,)), X, **ANALYTIC)
