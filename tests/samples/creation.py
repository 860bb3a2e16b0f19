"""Creation functions that tensors flow into."""

from __future__ import annotations

import numpy as np

from samples._table import ANALYTIC, SCALAR, VECTOR, Arg, X, add

# ---------------------------------------------------------------- creation from tensors; NumPy dispatches few of these

add(
    "full",
    "of a tensor",
    lambda xp, v: xp.full((2, 3), v),
    SCALAR,
    reference=lambda v: np.full((2, 3), v),
    dispatches=False,
    **ANALYTIC,
)
add(
    "full",
    "of a row",
    lambda xp, v: xp.full((3, 4), v),
    VECTOR,
    reference=lambda v: np.broadcast_to(v, (3, 4)).copy(),
    dispatches=False,
    **ANALYTIC,
)
add(
    "full_like",
    "of a tensor",
    lambda xp, x, v: xp.full_like(x, v),
    Arg(constant=True),
    SCALAR,
    field="complex",
    dispatches=False,
)
add("linspace", "between numbers", lambda xp, x, y: xp.linspace(x, y, 5), SCALAR, SCALAR, **ANALYTIC)
add("linspace", "between vectors", lambda xp, x, y: xp.linspace(x, y, 4, endpoint=False), VECTOR, VECTOR, **ANALYTIC)
add("linspace", "the step, too", lambda xp, x: xp.linspace(x, 3.0, 5, retstep=True), SCALAR, **ANALYTIC)
add("linspace", "one point", lambda xp, x, y: xp.linspace(x, y, 1), SCALAR, SCALAR, **ANALYTIC)
add("array", "of a tensor", lambda xp, x: xp.array(x) * 2, X, dispatches=False, **ANALYTIC)
add("array", "of a list", lambda xp, x, y: xp.array([x, y, x]), X, X, dispatches=False, **ANALYTIC)
add(
    "array",
    "of nested lists",
    lambda xp, x, y: xp.array([[x, 1.0], [y, x]]),
    SCALAR,
    SCALAR,
    dispatches=False,
    **ANALYTIC,
)
add("array", "ndmin=", lambda xp, x: xp.array(x, ndmin=3), VECTOR, dispatches=False, **ANALYTIC)
add("asarray", "of a tensor", lambda xp, x: xp.asarray(x) * 2, X, dispatches=False, **ANALYTIC)
add("asarray", "dtype=", lambda xp, x: xp.asarray(x, dtype=np.complex128), X, dispatches=False, field="complex")
