"""Polynomials given by their coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from samples._table import ANALYTIC, MATRIX, SCALAR, VECTOR, Arg, X, add, at, given

LONG = Arg((5,), low=0.5)
SHORT = Arg((3,), low=0.5)


def wide(xp: Any, x: Any) -> Any:
    """Halves in a dtype that LAPACK has."""
    return x if x.dtype.itemsize > 2 else xp.astype(x, np.float32)


def last_two(parts: Any) -> Any:
    """Quotient and remainder, without what rounding leaves before the remainder."""
    return parts[0], parts[1][-2:]


add("polyval", "both", lambda xp, p, x: xp.polyval(p, x), VECTOR, X, **ANALYTIC, third=True)
add("polyval", "at numbers", lambda xp, p: xp.polyval(p, 1.5), VECTOR, **ANALYTIC)
add("polyval", "of numbers", lambda xp, x: xp.polyval([3.0, -1.0, 2.0], x), X, **ANALYTIC)
add("polyval", "0-d", lambda xp, p, x: xp.polyval(p, x), Arg((1,)), SCALAR, **ANALYTIC)
add("polyval", "of several polynomials", lambda xp, p, x: xp.polyval(p, x), Arg((3, 4)), VECTOR, **ANALYTIC)
add("polyval", "of none", lambda xp, p, x: xp.polyval(p, x), Arg((0,)), VECTOR, **ANALYTIC)
add("polyder", "once", lambda xp, p: xp.polyder(p) * 1, LONG, **ANALYTIC)
add("polyder", "m=3", lambda xp, p: xp.polyder(p, m=3), LONG, **ANALYTIC)
add("polyder", "m=0", lambda xp, p: xp.polyder(p, 0) * 1, VECTOR, **ANALYTIC)
add("polyint", "once", lambda xp, p: xp.polyint(p), VECTOR, **ANALYTIC)
add("polyint", "m=2, k=", lambda xp, p, k: xp.polyint(p, 2, k), VECTOR, Arg((2,)), **ANALYTIC)
add("polyint", "one k", lambda xp, p, k: xp.polyint(p, m=3, k=k), VECTOR, SCALAR, **ANALYTIC)
add("polyint", "k of numbers", lambda xp, p: xp.polyint(p, 2, k=[1.0, 2.0]), VECTOR, **ANALYTIC)
add("polyadd", "longer first", lambda xp, p, q: xp.polyadd(p, q), LONG, SHORT, **ANALYTIC)
add("polyadd", "with a number", lambda xp, p: xp.polyadd(2.0, p), SHORT, **ANALYTIC)
add("polysub", "longer second", lambda xp, p, q: xp.polysub(p, q), SHORT, LONG, **ANALYTIC)
add("polysub", "one length", lambda xp, p, q: xp.polysub(p, q), SHORT, SHORT, **ANALYTIC)
add("polymul", "two", lambda xp, p, q: xp.polymul(p, q), SHORT, LONG, **ANALYTIC, third=True)
add("polymul", "leading zeros", lambda xp, p: xp.polymul([0.0, 0.0, 2.0, 1.0], p), SHORT, **ANALYTIC)
add("polymul", "by 0", lambda xp, p: xp.polymul([0.0], p), SHORT, **ANALYTIC)
add(
    "polydiv",
    "with remainder",
    lambda xp, u, v: last_two(xp.polydiv(u, v)),
    LONG,
    SHORT,
    **ANALYTIC,
    third=True,
)
add("polydiv", "by a longer one", lambda xp, u, v: xp.polydiv(u, v)[1], SHORT, LONG, **ANALYTIC)
add(
    "polydiv",
    "of numbers",
    lambda xp, v: xp.polydiv([1.0, 2.0, 3.0, 5.0], v)[0].astype(v.dtype),
    Arg((2,), low=0.5),
    **ANALYTIC,
)
add("polydiv", "without remainder", lambda xp, u, v: xp.polydiv(u, v)[0], at([2.0, 5.0, 2.0]), given([2.0, 1.0]))
add("roots", "real", lambda xp, p: xp.roots(wide(xp, p)), at([1.0, -2.0, -5.0, 6.0]), third=True)
add("roots", "complex pair", lambda xp, p: xp.roots(wide(xp, p)), at([2.0, 1.0, 3.0, 1.0]))
add("roots", "of complex", lambda xp, p: xp.roots(wide(xp, p)), VECTOR, field="complex")
add("roots", "zeros at both ends", lambda xp, p: xp.roots(wide(xp, p)), at([0.0, 1.0, 3.0, 2.0, 0.0]), smooth=False)
add("roots", "none", lambda xp, p: xp.roots(wide(xp, p)), at([3.0]))
add("poly", "of roots", lambda xp, z: xp.poly(z), VECTOR, **ANALYTIC, third=True)
add("poly", "of a matrix", lambda xp, a: xp.poly(wide(xp, a)), MATRIX, field="complex", third=True)
add("poly", "where eigenvalues meet", lambda xp, a: xp.poly(wide(xp, a)), at([[2.0, 0.0], [0.0, 2.0]]))

POINTS, ABSCISSAE, WEIGHTS = Arg((6,)), at([-2.0, -1.2, -0.3, 0.4, 1.1, 2.1]), Arg((6,), low=0.5)


def fitted(xp: Any, x: Any, y: Any, deg: int, **keywords: Any) -> Any:
    """What can be differentiated of a fit."""
    found = xp.polyfit(x, wide(xp, y), deg, **keywords)
    return (found[0], found[1], found[3]) if keywords.get("full") else found  # the rank is an integer


add("polyfit", "a line", lambda xp, x, y: fitted(xp, x, y, 1), ABSCISSAE, POINTS, third=True)
add("polyfit", "exact", lambda xp, x, y: fitted(xp, x, y, 3), at([-1.0, 0.5, 1.0, 2.0]), VECTOR)
add("polyfit", "of a matrix", lambda xp, x, y: fitted(xp, x, y, 2), ABSCISSAE, Arg((6, 2)))
add("polyfit", "complex values", lambda xp, x, y: fitted(xp, x, y, 2), given(np.arange(6)), POINTS, field="complex")
add("polyfit", "several: w=", lambda xp, x, y, w: fitted(xp, x, y, 2, w=w), ABSCISSAE, POINTS, WEIGHTS)
add("polyfit", "several: full=", lambda xp, x, y: fitted(xp, x, y, 2, full=True, rcond=1e-10), ABSCISSAE, POINTS)
add("polyfit", "several: cov=", lambda xp, x, y: fitted(xp, x, y, 2, cov=True), ABSCISSAE, POINTS)
add(
    "polyfit",
    "several: cov of a matrix, w=",
    lambda xp, x, y, w: fitted(xp, x, y, 1, cov=True, w=w),
    ABSCISSAE,
    Arg((6, 2)),
    WEIGHTS,
)
add("polyfit", "several: cov unscaled", lambda xp, x, y: fitted(xp, x, y, 1, cov="unscaled"), ABSCISSAE, POINTS)
