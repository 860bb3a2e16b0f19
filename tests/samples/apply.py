"""Functions given by the user: along axes, by pieces, element by element."""

from __future__ import annotations

import numpy as np

from samples._table import ANALYTIC, CUBE, MATRIX, SCALAR, VECTOR, Arg, X, add, given

add(
    "apply_along_axis",
    "to scalars",
    lambda xp, x: xp.apply_along_axis(lambda v: (v * v).sum() / v[0], 0, x),
    Arg(low=0.5),
    **ANALYTIC,
    third=True,
)
add("apply_along_axis", "axis=-1", lambda xp, x: xp.apply_along_axis(lambda v: v[::-1] * v[0], -1, x), CUBE, **ANALYTIC)
add("apply_along_axis", "axis 1", lambda xp, x: xp.apply_along_axis(lambda v: v[:2] * v[2], 1, x), CUBE, **ANALYTIC)
add(
    "apply_along_axis",
    "to matrices, with arguments",
    lambda xp, x, y: xp.apply_along_axis(lambda v, w, power: xp.outer(v, w) ** power, 1, x, y, power=2),
    X,
    Arg((2,)),
    **ANALYTIC,
)
add("apply_along_axis", "1-d", lambda xp, x: xp.apply_along_axis(lambda v: v * v, 0, x), VECTOR, **ANALYTIC)
add(
    "apply_over_axes",
    "two",
    lambda xp, x: xp.apply_over_axes(lambda a, axis: xp.sum(a * a, axis), x, (0, -1)),
    CUBE,
    **ANALYTIC,
    third=True,
)
add("apply_over_axes", "one", lambda xp, x: xp.apply_over_axes(xp.mean, x, 1), X, **ANALYTIC)
add(
    "apply_over_axes",
    "keeping the axis",
    lambda xp, x: xp.apply_over_axes(lambda a, axis: a * xp.sum(a, axis, keepdims=True), x, [0, 1]),
    X,
    **ANALYTIC,
)

# ---------------------------------------------------------------- by pieces

add(
    "piecewise",
    "functions and a rest",
    lambda xp, x: xp.piecewise(x, [x < -1, x > 0.5], [lambda v: v * v, xp.sqrt, 3.0]),
    X,
    third=True,
)
add("piecewise", "one condition", lambda xp, x: xp.piecewise(x, x > 0, [xp.log, lambda v: v**3]), VECTOR)
add(
    "piecewise",
    "arguments",
    lambda xp, x, y: xp.piecewise(x, [x > 0], [lambda v, w, k: v * w + k, lambda v, w, k: v - w], y, k=2.0),
    X,
    SCALAR,
    writes=True,
)
add(
    "piecewise",
    "overlapping",
    lambda xp, x: xp.piecewise(x, [x > -1, x > 1], [lambda v: v * v, lambda v: -v]),
    VECTOR,
)
add(
    "piecewise",
    "plain conditions, complex",
    lambda xp, x, m: xp.piecewise(x, [m[0], m[1], m[2]], [xp.exp, xp.cos, 0.5]),
    VECTOR,
    given([[True, False, False, False], [False, True, True, False], [False, False, False, True]]),
    **ANALYTIC,
)
add("piecewise", "0-d", lambda xp, x: xp.piecewise(x, [x < 0, x >= 0], [lambda v: v * v, lambda v: v**3]), SCALAR)
add("piecewise", "no elements", lambda xp, x: xp.piecewise(x, [x < 0], [lambda v: 1 / v, 2.0]), Arg((0, 3)))

# ---------------------------------------------------------------- element by element

add(
    "vectorize",
    "by element",
    lambda xp, x: xp.vectorize(lambda v: v * v if v > 0 else v**3)(x),
    X,
    dispatches=False,
    reference=lambda x: np.where(x > 0, x * x, x**3).astype(x.dtype),
    third=True,
)
add(
    "vectorize",
    "broadcast, two results",
    lambda xp, x, y: xp.vectorize(lambda a, b: (a * b, xp.exp(a)))(x, b=y),
    X,
    VECTOR,
    dispatches=False,
    reference=lambda x, y: (x * y, np.broadcast_to(np.exp(x), x.shape)),
    **ANALYTIC,
)
add(
    "vectorize",
    "excluded",
    lambda xp, x, y: xp.vectorize(lambda v, p: xp.polyval(p, v), excluded=[1])(x, y),
    X,
    VECTOR,
    dispatches=False,
    reference=lambda x, y: np.polyval(y, x),
    **ANALYTIC,
)
add(
    "vectorize",
    "otypes",
    lambda xp, x: xp.vectorize(lambda v: v * 1j, otypes=[np.complex128])(x),
    VECTOR,
    dispatches=False,
    reference=lambda x: (x * 1j).astype(np.complex128),
    field="complex",
)
add(
    "vectorize",
    "signature to 0-d",
    lambda xp, x, y: xp.vectorize(lambda a, b: xp.sum(a * b) / a[0], signature="(n),(n)->()")(x, y),
    Arg((2, 1, 3), low=0.5),
    Arg((4, 3)),
    dispatches=False,
    reference=lambda x, y: (x * y).sum(-1) / x[..., 0],
    **ANALYTIC,
)
add(
    "vectorize",
    "signature to matrices and vectors",
    lambda xp, x, y: xp.vectorize(lambda a, b: (a[:, None] * b, a * 2), signature="(m),(n)->(m,n),(m)")(x, y),
    Arg((2, 3)),
    Arg((2,)),
    dispatches=False,
    reference=lambda x, y: (x[:, :, None] * y, x * 2),
    **ANALYTIC,
)
add(
    "vectorize",
    "0-d",
    lambda xp, x: xp.vectorize(lambda v: v * v)(x),
    SCALAR,
    dispatches=False,
    reference=lambda x: x * x,
    **ANALYTIC,
)
add(
    "fromfunction",
    "of a tensor",
    lambda xp, x: xp.fromfunction(lambda i, j: xp.sin(x * i) + j, (3, 3), like=x),
    MATRIX,
    dispatches=False,
    reference=lambda x: np.fromfunction(lambda i, j: np.sin(x * i) + j, (3, 3)),
    **ANALYTIC,
)

# ---------------------------------------------------------------- walking over elements

add(
    "broadcast",
    "two",
    lambda xp, x, y: xp.stack([a * b for a, b in xp.broadcast(x, y)]),
    Arg((2, 1)),
    Arg((3,)),
    dispatches=False,
    **ANALYTIC,
)
add(
    "ndenumerate",
    "matrix",
    lambda xp, x: xp.stack([v * v if i == j else v for (i, j), v in xp.ndenumerate(x)]),
    Arg((2, 3)),
    dispatches=False,
    **ANALYTIC,
)
