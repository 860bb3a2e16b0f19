"""Differences, integrals, interpolation and convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.ops.calculus import _slopes_adjoint, _to_neighbours
from samples._table import ANALYTIC, CUBE, EMPTY, MATRIX, SCALAR, VECTOR, Arg, X, add, at, function

_COMPLEX: dict[str, Any] = {"field": "complex"}

# ---------------------------------------------------------------- differences

function("diff", "last axis", CUBE, facts=ANALYTIC | {"third": True})
function("diff", "twice, axis 0", X, n=2, axis=0, facts=ANALYTIC)
function("diff", "not at all", X, n=0)
function("diff", "more often than there are elements", X, n=5, axis=-1)
function("diff", "zero-size", EMPTY, axis=0)
add("diff", "prepend a number", lambda xp, x: xp.diff(x, axis=0, prepend=0.5, append=[[1.0] * 4]), X, **ANALYTIC)
add("diff", "prepend and append", lambda xp, x, p, q: xp.diff(x, 2, 1, p, q), X, SCALAR, Arg((3, 2)), **ANALYTIC)
function("ediff1d", "flattened", X, facts=ANALYTIC)
function("ediff1d", "one element", Arg((1,)))
add("ediff1d", "ends", lambda xp, x, e, b: xp.ediff1d(x, e, b), X, Arg((2, 2)), SCALAR, **ANALYTIC)
add("ediff1d", "numbers at the ends", lambda xp, x: xp.ediff1d(x, to_begin=[1, 2], to_end=3), VECTOR)

# ---------------------------------------------------------------- gradient

_WIDE = Arg((4, 5))
_COORDINATES = at([0.0, 0.4, 1.3, 1.9, 3.1])
for _order in (1, 2):
    function("gradient", f"all axes, order {_order}", _WIDE, edge_order=_order, facts=_COMPLEX)
    function("gradient", f"shortest, order {_order}", Arg((_order + 1,)), edge_order=_order)
    add(
        "gradient",
        f"several coordinates, order {_order}",
        lambda xp, f, x, k=_order: xp.gradient(f, x, axis=1, edge_order=k),
        _WIDE,
        _COORDINATES,
        third=_order == 2,
        field="analytic",
    )
    add(
        "gradient",
        f"constant coordinates, order {_order}",
        lambda xp, f, k=_order: xp.gradient(f, [0, 1, 3, 4], [0.0, 0.5, 1.0, 1.5, 2.0], edge_order=k),
        _WIDE,
    )
    add(
        "gradient",
        f"the fewest of several coordinates, order {_order}",
        lambda xp, f, x, k=_order: xp.gradient(f, x, edge_order=k),
        Arg((_order + 1,)),
        at([0.3, 1.0, 1.9][: _order + 1]),
    )
add(
    "gradient",
    "one spacing for several axes",
    lambda xp, f, h: xp.gradient(f, h, axis=(-1, 0)),
    _WIDE,
    at(0.7),
    **ANALYTIC,
)
add("gradient", "spacing and several coordinates", lambda xp, f, x: xp.gradient(f, 2.0, x), _WIDE, _COORDINATES)
add(
    "gradient",
    "several even coordinates",
    lambda xp, f, x: xp.gradient(f, x),
    Arg((3,)),
    at([0.0, 0.5, 1.0]),
    third=True,
)

# ---------------------------------------------------------------- integrals and running totals

function("trapezoid", "last axis", CUBE, facts=ANALYTIC)
function("trapezoid", "axis and dx", CUBE, dx=0.5, axis=1, facts=ANALYTIC)
function("trapezoid", "one element", Arg((3, 1)))
add("trapezoid", "dx differs", lambda xp, y, h: xp.trapezoid(y, dx=h, axis=0), X, SCALAR, **ANALYTIC)
add(
    "trapezoid",
    "x of one axis",
    lambda xp, y, x: xp.trapezoid(y, x, axis=1),
    CUBE,
    Arg((3,)),
    third=True,
    **ANALYTIC,
)
add("trapezoid", "x of all axes", lambda xp, y, x: xp.trapezoid(y, x, axis=0), X, X, **ANALYTIC)
add("trapezoid", "constant x", lambda xp, y: xp.trapezoid(y, [0, 1, 3, 4]), X)
for _name in ("cumulative_sum", "cumulative_prod"):
    function(_name, "one axis", VECTOR, facts=ANALYTIC)
    function(_name, "axis 0, with the initial value", X, axis=0, include_initial=True, facts=ANALYTIC)
    function(_name, "0-d", SCALAR, facts=ANALYTIC)
    function(_name, "dtype=", X, axis=-1, dtype=np.complex128, facts=_COMPLEX)
    add(
        _name,
        "out=",
        lambda xp, x, o, n=_name: getattr(xp, n)(x, axis=1, out=xp.copy(o), include_initial=True),
        MATRIX,
        X,
    )

# ---------------------------------------------------------------- interpolation

_KNOTS = at([-1.5, -0.2, 0.4, 1.7])
_POINTS = at([[-1.0, 0.0], [0.1, 1.6], [-3.0, 2.5]])


def _complex_values(fp: Any) -> Any:
    return fp * (1.0 + 0.5j)


add("interp", "points", lambda xp, x, k, f: xp.interp(x, k, f), _POINTS, _KNOTS, VECTOR, third=True)
add("interp", "0-d", lambda xp, x, k, f: xp.interp(x, k, f), at(0.3), _KNOTS, VECTOR)
add("interp", "no points", lambda xp, x, k, f: xp.interp(x, k, f), Arg((0,)), _KNOTS, VECTOR)
add("interp", "one knot", lambda xp, x, k, f: xp.interp(x, k, f), _POINTS, at([0.5]), Arg((1,)))
add("interp", "complex values", lambda xp, x, k, f: xp.interp(x, k, _complex_values(f)), _POINTS, _KNOTS, VECTOR)
add("interp", "only values differ", lambda xp, f: xp.interp([0.2, 5.0], [-1, 0, 1, 2], f, right=0.5), VECTOR)
add(
    "interp",
    "left and right",
    lambda xp, x, f, a, b: xp.interp(x, [-1.5, -0.2, 0.4, 1.7], f, left=a, right=b),
    _POINTS,
    VECTOR,
    SCALAR,
    SCALAR,
    reference=lambda x, f, a, b: np.interp(x, [-1.5, -0.2, 0.4, 1.7], f, left=a[()], right=b[()]),
)
add("interp", "at knots", lambda xp, x, k, f: xp.interp(x, k, f), _KNOTS, _KNOTS, VECTOR, smooth=False)
add(
    "interp",
    "a knot twice",
    lambda xp, x, k, f: xp.interp(x, k, f),
    at([0.0, 0.5, 1.0]),
    at([0.0, 0.5, 0.5, 1.0]),
    VECTOR,
    smooth=False,
)
add(
    "interp",
    "period",
    lambda xp, x, k, f: xp.interp(x, k, f, period=3.0),
    _POINTS,
    at([2.2, -0.1, 4.3, 0.7]),
    VECTOR,
)
add(
    "interp",
    "the period differs",
    lambda xp, x, f, p: xp.interp(x, [2.2, -0.1, 4.3, 0.7], f, period=p),
    _POINTS,
    VECTOR,
    at(-3.0),
)

# ---------------------------------------------------------------- convolution and correlation

for _name in ("convolve", "correlate"):
    for _mode in ("full", "same", "valid"):
        for _n, _m in ((5, 3), (3, 5), (4, 2), (2, 4)):
            add(
                _name,
                f"{_mode}, {_n} and {_m}",
                lambda xp, a, v, f=_name, m=_mode: getattr(xp, f)(a, v, m),
                Arg((_n,)),
                Arg((_m,)),
                field="analytic" if _name == "convolve" else "complex",
                third=(_mode, _n, _m) == ("same", 2, 4),
            )
    add(_name, "one side differs", lambda xp, v, f=_name: getattr(xp, f)([1, 0, -2], v), VECTOR, **_COMPLEX)
    add(
        _name,
        "of itself, default mode",
        lambda xp, a, f=_name: getattr(xp, f)(a, a),
        VECTOR,
        field="analytic" if _name == "convolve" else "complex",
    )
add("convolve", "numbers", lambda xp, a, v: xp.convolve(a, v), SCALAR, VECTOR)
add("convolve", "a complex side", lambda xp, a, v: xp.convolve(a * 1j, v), VECTOR, Arg((2,)))

# ---------------------------------------------------------------- unwrap

_PHASES = at([[0.3, 3.1, -2.6, -0.1], [0.0, 4.0, 8.5, -5.0]])
function("unwrap", "last axis", _PHASES, facts={"third": True})
function("unwrap", "axis 0", _PHASES, axis=0)
function("unwrap", "one element", Arg((1,)))
function("unwrap", "discont and period", _PHASES, discont=1.2, period=2.0)
add("unwrap", "the period differs", lambda xp, p, t: xp.unwrap(p, period=t), _PHASES, at(2.3))
function("unwrap", "half a turn", at([0.0, 1.0, 3.0]), period=2, facts={"smooth": False})

# ---------------------------------------------------------------- the adjoints, which only derivatives call


def _adjoint(name: str, case: str, op: Any, matrix: np.ndarray, *params: Any) -> None:
    """Enter an op that multiplies by a matrix along axis 0."""
    add(
        f"engine.{name}",
        case,
        lambda xp, g: op(g, *params),
        Arg((matrix.shape[1], 2)),
        reference=lambda g: (matrix @ g.astype(np.result_type(g, np.float64))).astype(g.dtype),
        dispatches=False,
        third=True,
        **ANALYTIC,
    )


for _sign in (-1, 1):
    _adjoint("to_neighbours", f"sign {_sign}", _to_neighbours, (np.eye(3, 4, 1) + _sign * np.eye(3, 4)).T, 0, _sign, 4)
for _order in (1, 2):
    _matrix = np.gradient(np.eye(4), axis=0, edge_order=_order).T
    _adjoint("gradient_adjoint", f"order {_order}", _slopes_adjoint, _matrix, 0, _order)
