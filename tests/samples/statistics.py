"""Averages, correlations, order statistics, reductions that ignore NaN, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.ops.convert import library_of
from samples._table import (
    ANALYTIC,
    CONSTANTS,
    CUBE,
    EMPTY,
    MASK,
    POSITIVE,
    SCALAR,
    VECTOR,
    Arg,
    Field,
    X,
    add,
    at,
    function,
    given,
)

# ---------------------------------------------------------------- average, ptp

_WEIGHTS = Arg((4,), low=0.4, high=2.0)

function("average", "all axes", X, facts=ANALYTIC)
function("average", "axes and keepdims", CUBE, axis=(0, -1), keepdims=True, facts=ANALYTIC)
add(
    "average",
    "weights of one axis",
    lambda xp, x, w: xp.average(x, -1, w),
    X,
    _WEIGHTS,
    third=True,
    **ANALYTIC,
)
add("average", "weights of all", lambda xp, x, w: xp.average(x, weights=w), X, POSITIVE, **ANALYTIC)
add(
    "average",
    "weights of two axes",
    lambda xp, x, w: xp.average(x, (2, 0), w, keepdims=True),
    CUBE,
    Arg((4, 2), low=0.4, high=2.0),
    **ANALYTIC,
)
add("average", "constant weights", lambda xp, x: xp.average(x, 1, [1, 2, 0, 3]), X, **ANALYTIC)
add("average", "only weights differ", lambda xp, w: xp.average([0, 1, 2, 3], weights=w), _WEIGHTS, **ANALYTIC)
add("average", "returned", lambda xp, x, w: xp.average(x, 0, w, True)[0], X, Arg((3,), 0.4, 2.0), **ANALYTIC)
add("average", "the sum of weights", lambda xp, x, w: xp.average(x, 0, w, True)[1], X, Arg((3,), 0.4, 2.0), **ANALYTIC)
function("ptp", "all axes", CUBE, facts={"third": True})
function("ptp", "axes and keepdims", CUBE, axis=(0, -1), keepdims=True)
function("ptp", "ties", at([[1.0, 2.0, 2.0], [0.5, 0.5, 0.5]]), axis=1, facts={"smooth": False})
add("ptp", "out=", lambda xp, x, o: xp.ptp(x, 0, out=xp.copy(o)), X, VECTOR)

# ---------------------------------------------------------------- covariance

_COMPLEX: dict[str, Any] = {"field": "complex"}
_F = given([2, 1, 0, 3])

function("cov", "rows", X, facts={"field": "complex", "third": True})
function("cov", "one row", VECTOR, facts=_COMPLEX)
function("cov", "columns, biased", X, rowvar=False, bias=True, facts=_COMPLEX)
function("cov", "ddof=0 and dtype=", X, ddof=0, dtype=np.complex128, facts=_COMPLEX)
function("cov", "no rows", Arg((0, 3)))
add("cov", "y", lambda xp, x, y: xp.cov(x, y), X, VECTOR, **_COMPLEX)
add("cov", "y, columns", lambda xp, x, y: xp.cov(x, y, rowvar=False), X, Arg((3, 2)), **_COMPLEX)
add("cov", "y is one row of columns", lambda xp, x, y: xp.cov(x, y, False), Arg((4, 2)), Arg((1, 4)))
add("cov", "fweights", lambda xp, x, f: xp.cov(x, fweights=f), X, _F, **_COMPLEX)
add("cov", "aweights", lambda xp, x, w: xp.cov(x, aweights=w), X, _WEIGHTS)
add(
    "cov",
    "both weights",
    lambda xp, x, f, w: xp.cov(x, ddof=2, fweights=f, aweights=w),
    X,
    _F,
    _WEIGHTS,
    third=True,
)
add("cov", "weights, ddof=0", lambda xp, x, w: xp.cov(x, ddof=0, aweights=w), X, _WEIGHTS)
function("corrcoef", "rows", X, facts={"field": "complex", "third": True})
function("corrcoef", "columns", X, rowvar=False, dtype=np.float64)
add("corrcoef", "y", lambda xp, x, y: xp.corrcoef(x, y), VECTOR, VECTOR, **_COMPLEX)
add("corrcoef", "one row", lambda xp, x: xp.corrcoef(x), VECTOR)
add("corrcoef", "aligned", lambda xp, x: xp.corrcoef(xp.stack([x, 3.0 * x])), VECTOR)

# ---------------------------------------------------------------- median and quantiles

_ODD = Arg((3, 5))
_TIES = at([[1.0, 2.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]])

function("median", "odd", _ODD, facts={"third": True})
function("median", "even", X, axis=-1)
function("median", "axes and keepdims", CUBE, axis=(0, -1), keepdims=True)
function("median", "no axes", X, axis=())
function("median", "ties", _TIES, axis=1, facts={"smooth": False})
function("median", "overwrite_input", X, axis=0, overwrite_input=True, facts={"reference": lambda x: np.median(x, 0)})
function("median", "nothing left", Arg((3, 0)), axis=0)
add("median", "out=", lambda xp, x, o: xp.median(x, 0, out=xp.copy(o)), X, VECTOR)

_METHODS = (
    *("inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen"),
    *("weibull", "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest"),
)
for _method in _METHODS:
    function("quantile", _method, Arg((2, 7)), q=[0.0, 0.11, 0.5, 0.86, 1.0], axis=1, method=_method)
function("quantile", "one number", X, q=0.3, facts={"third": True})
function("quantile", "axes and keepdims", CUBE, q=[[0.2, 0.9]], axis=(-1, 0), keepdims=True)
function("quantile", "ends", X, q=np.array([0, 1]), axis=0)
function("quantile", "ties", _TIES, q=0.4, axis=-1, facts={"smooth": False})
function("quantile", "0-d", SCALAR, q=0.5)
add("quantile", "q differs", lambda xp, x, q: xp.quantile(x, q, 0, method="hazen"), Arg((5, 2)), at([0.33, 0.71, 0.02]))
add("quantile", "out=", lambda xp, x, o: xp.quantile(x, 0.7, 0, xp.copy(o)), X, VECTOR)
for _name in ("quantile", "nanquantile"):
    add(
        _name,
        "weights",
        lambda xp, x, w, n=_name: getattr(xp, n)(x, [0.0, 0.4, 1.0], method="inverted_cdf", weights=w),
        X,
        given([[0.0, 2, 1, 3], [1, 1, 0, 2], [0.5, 1, 1, 0]]),
    )
add(
    "quantile",
    "weights of one axis",
    lambda xp, x, w: xp.quantile(x, np.array([0.2, 0.6]), 0, method="inverted_cdf", weights=w, keepdims=True),
    X,
    given([0.0, 2.0, 1.0]),
)
add(
    "percentile",
    "weights of two axes",
    lambda xp, x, w: xp.percentile(x, 45, (2, 0), method="inverted_cdf", weights=w),
    CUBE,
    given(np.arange(8.0).reshape(4, 2)),
    reference=lambda x, w: np.percentile(  # NumPy up to 2.3 takes other weights where axes are not in order
        x.transpose(1, 2, 0).reshape(3, 8), 45, 1, method="inverted_cdf", weights=w.ravel()
    ),
)
function("percentile", "one number", X, q=30)
function("percentile", "several, axis", X, q=[5.0, 95.0], axis=0, method="median_unbiased")
add("percentile", "q differs", lambda xp, x, q: xp.percentile(x, q), Arg((5,)), at([33.0, 71.0]))

# ---------------------------------------------------------------- reductions that ignore NaN

_NAN = np.nan
_HOLES = at([[1.5, _NAN, -0.7, 0.3], [_NAN, _NAN, 2.0, 1.1], [0.9, -1.3, _NAN, 0.2]])


def _in_wide(call: Any) -> Any:
    """What NumPy gives; bfloat16 in float32, for NumPy does not look for NaN in dtypes that are not its own."""

    def reference(x: Any, *more: Any) -> Any:
        if x.dtype.kind != "V":
            return call(np, x, *more)
        z = call(np, *(a.astype(np.float32) if a.dtype.kind == "V" else a for a in (x, *more)))
        return z.astype(x.dtype) if z.dtype == np.float32 else z

    return reference


def _holes(name: str, case: str, call: Any, *more: Arg, x: Arg = _HOLES, **facts: Any) -> None:
    """Enter a call on data with NaN."""
    add(name, case, call, x, *more, reference=_in_wide(call), **facts)


_FIELDS: dict[str, Field] = {
    "nansum": "analytic",
    "nanprod": "analytic",
    "nanmean": "analytic",
    "nanvar": "complex",
    "nanstd": "complex",
    "nanmax": "real",
    "nanmin": "real",
    "nanmedian": "real",
}
for _name, _field in _FIELDS.items():
    function(_name, "without NaN", CUBE, axis=(0, -1), facts={"field": _field})
    _holes(_name, "with NaN", lambda xp, x, n=_name: getattr(xp, n)(x), field=_field, third=_name == "nanstd")
    _holes(
        _name,
        "axis and keepdims",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=-1, keepdims=True),
        field=_field,
    )
    _holes(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, axis=0, out=xp.copy(o)), VECTOR)
    if _name not in ("nanmax", "nanmin", "nanmedian"):
        _holes(
            _name,
            "where=",
            lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=1, where=m),
            MASK,
            field=_field,
            x=at([[1.5, _NAN, -0.7, 0.3], [0.1, _NAN, 2.0, 1.1], [0.9, -1.3, _NAN, 0.2]]),
            smooth=_name != "nanstd",  # one number is left of a row, whose standard deviation has a kink
        )
for _name in ("nansum", "nanprod"):
    _holes(_name, "initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=2.5), **ANALYTIC)
    function(_name, "zero-size", EMPTY, axis=0)
for _name in ("nansum", "nanprod", "nanmean"):
    _holes(_name, "dtype=", lambda xp, x, n=_name: getattr(xp, n)(x, 0, dtype=np.complex128), field="complex")
for _name in ("nanvar", "nanstd"):
    _holes(_name, "ddof=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=1, ddof=1), **_COMPLEX)
    _holes(_name, "correction=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=1, correction=0.5), **_COMPLEX)
    _holes(_name, "ddof= is a tensor", lambda xp, x, d, n=_name: getattr(xp, n)(x, axis=1, ddof=d), at(0.4))
    _holes(
        _name,
        "mean=",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=1, mean=xp.nanmean(x, axis=1, keepdims=True)),
        **_COMPLEX,
    )
_holes("nanstd", "all equal", lambda xp, x: xp.nanstd(x), x=at([1.5, _NAN, 1.5]), smooth=False)
for _name in ("nanmax", "nanmin"):
    _holes(_name, "initial=", lambda xp, x, n=_name: getattr(xp, n)(x, axis=0, initial=0.1))
    _holes(
        _name, "where= and initial=", lambda xp, x, m, n=_name: getattr(xp, n)(x, axis=0, where=m, initial=0.1), MASK
    )
    function(_name, "zero-size with initial=", EMPTY, axis=0, initial=0.1)
    _holes(
        _name,
        "ties and infinity",
        lambda xp, x, n=_name: getattr(xp, n)(x, axis=1),
        x=at([[1.0, _NAN, 1.0], [-np.inf, _NAN, -np.inf], [np.inf, _NAN, np.inf]]),
        smooth=False,
    )
_holes("nanmedian", "axes", lambda xp, x: xp.nanmedian(x, axis=(1, 0), overwrite_input=False))
for _name in ("nanquantile", "nanpercentile"):
    _scale = 1 if _name == "nanquantile" else 100
    _holes(_name, "one number", lambda xp, x, n=_name, s=_scale: getattr(xp, n)(x, 0.3 * s), third=True)
    _holes(
        _name,
        "several, axis",
        lambda xp, x, n=_name, s=_scale: getattr(xp, n)(x, np.array([0.1, 0.5, 0.9]) * s, axis=1, keepdims=True),
    )
    function(_name, "without NaN", CUBE, q=0.35 * _scale, axis=(0, -1))
for _method in ("inverted_cdf", "averaged_inverted_cdf", "closest_observation", "weibull", "midpoint", "nearest"):
    _holes("nanquantile", _method, lambda xp, x, m=_method: xp.nanquantile(x, [0.2, 0.5, 0.9], axis=1, method=m))
_holes("nanquantile", "out=", lambda xp, x, o: xp.nanquantile(x, 0.6, 0, xp.copy(o)), VECTOR)
_holes(
    "nanquantile",
    "weights beside NaN",
    lambda xp, x, w: xp.nanquantile(x, [0.3, 0.8], method="inverted_cdf", weights=w),
    given([[1.0, 2, 1, 3], [1, 1, 0, 2], [0.5, 1, 1, 0]]),
)
for _name in ("nancumsum", "nancumprod"):
    for _case, _axis in {"flattened": None, "axis 0": 0, "axis -1": -1}.items():
        _holes(_name, _case, lambda xp, x, n=_name, k=_axis: getattr(xp, n)(x, axis=k), **ANALYTIC)
    function(_name, "without NaN", X, axis=1, facts=ANALYTIC)
    _holes(_name, "dtype=", lambda xp, x, n=_name: getattr(xp, n)(x, 0, dtype=np.complex128), field="complex")
    _holes(_name, "out=", lambda xp, x, o, n=_name: getattr(xp, n)(x, 0, out=xp.copy(o)), X)

# ---------------------------------------------------------------- histograms: linear in the weights

_POINTS = given([0.0, 0.3, 1.0, 0.9, 0.5, 2.0, -0.1])
_EDGES = [0.0, 0.5, 0.7, 1.0]
_SEVEN = Arg((7,))
add("histogram", "weights", lambda xp, x, w: xp.histogram(x, _EDGES, weights=w)[0], _POINTS, _SEVEN, third=True)
add(
    "histogram",
    "weights and density",
    lambda xp, x, w: xp.histogram(x, 3, (0, 2), True, w)[0],
    _POINTS,
    Arg((7,), 0.4, 2.0),
)
add(
    "histogram2d",
    "weights",
    lambda xp, x, y, w: xp.histogram2d(x, y, [3, _EDGES], weights=w)[0],
    _POINTS,
    given(np.linspace(0, 1, 7)),
    _SEVEN,
)
add(
    "histogramdd",
    "weights and density",
    lambda xp, x, w: xp.histogramdd(x, 2, density=True, weights=w)[0],
    given(np.linspace(0, 1, 21).reshape(7, 3) ** 2),
    Arg((7,), 0.4, 2.0),
)

CONSTANTS.update(
    {
        "digitize": [
            lambda xp, x, y: xp.digitize(x, [-1.0, 0.0, 1.0]),
            lambda xp, x, y: xp.digitize(x, library_of(x).arange(3.0), right=True),
        ],
        "histogram_bin_edges": [lambda xp, x, y: xp.histogram_bin_edges(x, 4)],
        "nanargmax": [lambda xp, x, y: xp.nanargmax(x), lambda xp, x, y: xp.nanargmax(x, axis=1, keepdims=True)],
        "nanargmin": [lambda xp, x, y: xp.nanargmin(x, 0)],
        "histogram": [lambda xp, x, y: xp.histogram(x), lambda xp, x, y: xp.histogram(x, 3, density=True)],
        "histogram2d": [lambda xp, x, y: xp.histogram2d(x.ravel(), y.ravel(), 3)],
        "histogramdd": [lambda xp, x, y: xp.histogramdd((x.ravel(), y.ravel()), bins=2)],
    }
)
