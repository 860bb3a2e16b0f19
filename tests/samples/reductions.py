"""Reductions and running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from samples._table import CUBE, EMPTY, MASK, SCALAR, VECTOR, Arg, Field, X, add, at, function, given, method

# ---------------------------------------------------------------- reductions

_AXES: dict[str, Any] = {"all axes": None, "axis 0": 0, "axis -1": -1, "axes (0, 2)": (0, 2), "axes (-1, 0)": (-1, 0)}
_REDUCTIONS: dict[str, Field] = {
    "sum": "analytic",
    "mean": "analytic",
    "prod": "analytic",
    "max": "real",
    "min": "real",
    "var": "complex",
    "std": "complex",
}
for _name, _field in _REDUCTIONS.items():
    for _case, _axis in _AXES.items():
        function(_name, _case, CUBE, axis=_axis, facts={"field": _field})
        method(_name, _case, CUBE, axis=_axis, facts={"field": _field})
    function(_name, "keepdims", CUBE, axis=(0, -1), keepdims=True, facts={"field": _field})
    function(_name, "keepdims, all axes", CUBE, keepdims=True, facts={"field": _field})
    method(_name, "keepdims", CUBE, axis=1, keepdims=True, facts={"field": _field})
    # The standard deviation of one value is 0 and has a kink.
    _kink = _name == "std"
    function(_name, "no axes", X, axis=(), facts={"field": _field, "smooth": not _kink})
    function(_name, "0-d", SCALAR, facts={"field": _field, "smooth": not _kink})
    add(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, axis=0, out=xp.copy(o)), X, VECTOR)
for _name in ("sum", "prod"):
    _facts = {"field": "analytic"}
    function(_name, "zero-size", EMPTY, facts=_facts)
    function(_name, "zero-size, axis 0", EMPTY, axis=0, facts=_facts)
    function(_name, "zero-size, axis 1", EMPTY, axis=1, facts=_facts)
    function(_name, "initial=", X, axis=0, initial=2.5, facts=_facts)
    function(_name, "initial= is a NumPy number", X, axis=0, initial=np.float64(2.5), facts=_facts)
    add(
        _name,
        "initial= is an array",
        lambda xp, x, i, n=_name: getattr(xp, n)(x, axis=1, initial=i),
        X,
        Arg((), constant=True),
        field="analytic",
        reference=lambda x, i, n=_name: getattr(np, n)(x, axis=1, initial=i[()]),
    )
    add(
        _name,
        "initial= is a tensor",
        lambda xp, x, i, n=_name: getattr(xp, n)(x, axis=1, initial=i),
        X,
        SCALAR,
        field="analytic",
        reference=lambda x, i, n=_name: getattr(np, n)(x, axis=1, initial=i[()]),
    )
    function(_name, "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
for _name in ("sum", "prod", "mean", "var", "std"):
    _field = _REDUCTIONS[_name]
    add(
        _name,
        "where=",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m),
        X,
        given([[True], [False], [True]]),
        field=_field,
    )
    add(
        _name,
        "where= and keepdims",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, where=m, keepdims=True),
        X,
        MASK,
        field=_field,
    )
for _name in ("max", "min"):
    add(_name, "initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=0.1), X)
    add(_name, "initial= is a NumPy number", lambda xp, x, n=_name: getattr(xp, n)(x, initial=np.float64(0.1)), X)
    add(
        _name, "where= and initial=", lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m, initial=0.1), X, MASK
    )
    for _wins in (-5.0, 5.0):
        add(
            _name,
            f"where= and initial= is a tensor, {_wins}",
            lambda xp, x, m, i, n=_name: getattr(xp, n)(x, axis=0, where=m, initial=i),
            X,
            MASK,
            at(_wins),
            reference=lambda x, m, i, n=_name: getattr(np, n)(x, axis=0, where=m, initial=i[()]),
        )
    add(_name, "zero-size with initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=0.1), EMPTY)
    add(_name, "ties", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0), at([[1.0, 2.0], [1.0, 1.0]]), smooth=False)
    function(f"a{_name}", "alias", X, axis=0)
function("mean", "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
for _name in ("var", "std"):
    function(_name, "ddof=1", X, axis=0, ddof=1, facts={"field": "complex", "third": True})
    function(_name, "correction=1", X, axis=0, correction=1, facts={"field": "complex"})
    add(
        _name,
        "ddof= is a tensor",
        lambda xp, x, d, n=_name: getattr(xp, n)(x, axis=0, ddof=d),
        X,
        Arg((), low=0.2, high=0.8),
        third=_name == "var",
    )
    function(_name, "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
    add(
        _name,
        "mean=",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, mean=xp.mean(x, axis=0, keepdims=True)),
        X,
        field="complex",
    )
    add(
        _name,
        "where= and ddof=",
        lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m, ddof=0.5),
        X,
        given([[True], [False], [True]]),
        field="complex",
    )
add(
    "std",
    "where= leaves one",
    lambda xp, x, m: xp.std(x, where=m),
    Arg((3,)),
    given([True, False, False]),
    smooth=False,
)
add("std", "all equal", lambda xp, x: xp.std(x), at([1.5, 1.5, 1.5]), smooth=False)
for _case, _values in {
    "one 0": [2.0, 0, 3, 4],
    "two 0s": [2.0, 0, 3, 0],
    "all 0": [0.0, 0, 0],
    "no 0": [2.0, 1, 3],
}.items():
    _facts = {"field": "analytic", "third": True}
    function("prod", _case, at(_values), facts=_facts)
    function("cumprod", _case, at(_values), facts=_facts)
function(
    "prod", "0s along axes", at([[[1.0, 0], [2, 3]], [[0, 0], [1.5, 2]]]), axis=(0, 2), facts={"field": "analytic"}
)
function("cumprod", "0s along an axis", at([[1.0, 0, 2], [0, 3, 0]]), axis=1, facts={"field": "analytic"})
for _name in ("cumsum", "cumprod"):
    for _case, _axis in {"flattened": None, "axis 0": 0, "axis -1": -1}.items():
        function(_name, _case, CUBE, axis=_axis, facts={"field": "analytic"})
        method(_name, _case, X, axis=_axis, facts={"field": "analytic"})
    function(_name, "0-d", SCALAR, facts={"field": "analytic"})
    function(_name, "zero-size", EMPTY, axis=0, facts={"field": "analytic"})
    function(_name, "one element", Arg((1,)), facts={"field": "analytic"})
    function(_name, "dtype=complex", X, axis=0, dtype=np.complex128, facts={"field": "complex"})
    add(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, 0, out=xp.copy(o)), X, X)
