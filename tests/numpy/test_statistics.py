"""Statistics and calculus beyond the table of samples: ties, NaN, warnings, edges, errors."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import gradient

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, tensor

NAN, INF = np.nan, np.inf


def assert_gradient(f: Any, point: Any, expected: Any) -> None:
    np.testing.assert_allclose(gradient(f, point), expected, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------- through the stable order


def test_a_tie_gives_the_gradient_to_the_one_that_a_stable_sort_puts_there() -> None:
    assert_gradient(gnp.median, [2.0, 1.0, 2.0, 2.0, 3.0], [0, 0, 1, 0, 0])
    assert_gradient(gnp.median, [2.0, 1.0, 2.0, 3.0], [0.5, 0, 0.5, 0])
    assert_gradient(lambda x: gnp.quantile(x, 0.25), [1.0, 1.0, 1.0, 1.0], [0.25, 0.75, 0, 0])
    assert_gradient(
        lambda x: gnp.quantile(x, 1.0, axis=(0, 1), method="lower"), [[3.0, 1.0], [3.0, 2.0]], [[0, 0], [1, 0]]
    )


@pytest.mark.parametrize("levels", [3, 40, 10**9])
@pytest.mark.parametrize(("shape", "axis"), [((5001,), 0), ((61, 50), 0), ((50, 60), 1), ((5, 30, 40), (0, 2))])
def test_large_arrays_go_through_the_same_order_as_small_ones(levels: int, shape: Any, axis: Any) -> None:
    """A partition and a search find what a stable sort would, at ties too."""
    values = np.random.default_rng(3).integers(0, levels, shape).astype(float)
    values[values == 1] = INF
    axes = axis if isinstance(axis, tuple) else (axis,)
    kept = [k for k in range(values.ndim) if k not in axes]
    columns = np.arange(values.size).reshape(shape).transpose((*axes, *kept)).reshape(-1, *[shape[k] for k in kept])
    order = np.take_along_axis(columns, values.ravel()[columns].argsort(axis=0, kind="stable"), 0)
    n = order.shape[0]
    for name, rank in (("lower", 0), ("lower", n // 3), ("lower", n - 1)):
        expected = np.zeros(values.size)
        expected[order[rank]] = 1
        q = rank / (n - 1) + 1e-9 * (rank < n - 1)
        found = gradient(lambda x, q=q, m=name: gnp.quantile(x, q, axis, method=m), values)
        np.testing.assert_array_equal(found.ravel(), expected)


def test_quantiles_of_many_columns_with_and_without_nan() -> None:
    values = np.random.default_rng(4).normal(size=(300, 12))
    values[:, 3] = NAN
    values[5:200, 7] = NAN
    x = tensor(values)
    for f in (gnp.median, lambda a, axis: gnp.quantile(a, [0.2, 0.8], axis)):
        numpys = np.median if f is gnp.median else lambda a, axis: np.quantile(a, [0.2, 0.8], axis)
        np.testing.assert_array_equal(f(x, axis=0).numpy(), numpys(values, axis=0))
    with pytest.warns(RuntimeWarning, match="All-NaN slice"):
        found = gnp.nanmedian(x, axis=0).numpy()
    with pytest.warns(RuntimeWarning, match="All-NaN slice"):
        np.testing.assert_allclose(found, np.nanmedian(values, axis=0), rtol=1e-15)


def test_nan_in_the_data_gives_nan() -> None:
    values = [[1.0, NAN, 0.5], [3.0, 2.0, 1.0]]
    for f in (
        lambda xp, a: xp.median(a, axis=1),
        lambda xp, a: xp.median(a),
        lambda xp, a: xp.quantile(a, [0.0, 0.3, 1.0], axis=1),
        lambda xp, a: xp.percentile(a, 30),
        lambda xp, a: xp.quantile(a, 0.5, axis=0, method="inverted_cdf", weights=[1.0, 2.0]),
        lambda xp, a: xp.quantile(a, 0.4, axis=0, method="nearest"),
    ):
        np.testing.assert_array_equal(f(gnp, tensor(values)).numpy(), f(np, np.array(values)))


def test_the_dtype_of_quantiles_is_numpys() -> None:
    qs = [0.3, np.float32(0.3), np.array([0.2, 0.7], np.float32)]
    # NumPy up to 2.3 takes a float64 for one of Python's, which widens nothing, and gives integers for some integers.
    if np.quantile(np.float16([1, 2]), np.float64(0.3)).dtype == np.float64:
        qs += [1, np.float64(0.3), np.array([0, 1])]
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.uint8):
        a = np.array([3, 1, 2, 5]).astype(dtype)
        for q in qs:
            for method in ("linear", "lower", "hazen", "midpoint", "weibull", "inverted_cdf"):
                for name in ("quantile", "nanquantile"):
                    expected = getattr(np, name)(a, q, method=method)
                    found = getattr(gnp, name)(tensor(a), q, method=method)
                    assert found.dtype == expected.dtype, (dtype, q, method, name)
                    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3)
        assert gnp.median(tensor(a)).dtype == np.median(a).dtype
        assert gnp.nanmedian(tensor(a)).dtype == np.nanmedian(a).dtype


def test_infinities_give_what_numpy_gives() -> None:
    a = [1.0, 2.0, INF, -INF, INF]
    with np.errstate(invalid="ignore"):
        for q in (0.0, 0.1, 0.5, 0.6, 0.9, 1.0):
            np.testing.assert_array_equal(gnp.quantile(tensor(a), q).numpy(), np.quantile(a, q))
        np.testing.assert_array_equal(gnp.nanmedian(tensor([*a, NAN])).numpy(), np.nanmedian([*a, NAN]))


def test_weights_choose_and_have_no_gradient() -> None:
    x, w = tensor([3.0, 1.0, 2.0]), tensor([1.0, 1.0, 5.0])
    with GradManager().attach([x, w]) as manager:
        z = gnp.quantile(x, 0.5, method="inverted_cdf", weights=w)
        manager.backward(z)
    assert z.item() == 2.0
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    assert w.grad is None
    assert isinstance(gnp.quantile([3.0, 1.0], 0.5, method="inverted_cdf", weights=tensor([1.0, 2.0])), Tensor)


def test_a_quantile_that_differs_moves_along_its_segment() -> None:
    a, q = tensor([0.0, 1.0, 10.0]), tensor(0.75)
    with GradManager().attach(q) as manager:
        manager.backward(gnp.quantile(a, q))
    assert q.grad.item() == 18.0  # two ranks a unit, 9 a rank
    with GradManager().attach([a, q]) as manager:
        manager.backward(gnp.quantile(a, q, method="lower"))
    assert a.grad.tolist() == [0.0, 1.0, 0.0]


# ---------------------------------------------------------------- nothing but NaN

ALL_NAN = [
    ("nanmean", "Mean of empty slice", 0.5),
    ("nanvar", "Degrees of freedom <= 0 for slice", None),
    ("nanstd", "Degrees of freedom <= 0 for slice", None),
    ("nanmax", "All-NaN", None),
    ("nanmin", "All-NaN", None),
    ("nanmedian", "All-NaN", 0.5),
]


@pytest.mark.parametrize(("name", "warning", "share"), ALL_NAN)
def test_nothing_but_nan_warns_as_numpy_and_has_no_gradient(name: str, warning: str, share: Any) -> None:
    values = np.array([[NAN, NAN, NAN], [1.0, NAN, 2.0]])
    x = tensor(values)
    with GradManager().attach(x) as manager:
        with pytest.warns(RuntimeWarning, match=warning) as caught:
            z = getattr(gnp, name)(x, axis=1)
        assert [w.filename for w in caught] == [__file__]  # it points at the user's line
        manager.backward(z, np.ones(2))  # and here nothing warns, of a division by 0 or else
    with pytest.warns(RuntimeWarning, match=warning):
        np.testing.assert_array_equal(z.numpy(), getattr(np, name)(values, axis=1))
    assert x.grad.numpy()[0].tolist() == [0.0, 0.0, 0.0]
    assert x.grad.numpy()[1, 1] == 0
    assert np.isfinite(x.grad.numpy()).all()
    if share is not None:
        assert x.grad.numpy()[1].tolist() == [share, 0.0, share]


@pytest.mark.parametrize("weights", [None, np.ones((2, 3))])
def test_quantiles_of_nothing_but_nan(weights: Any) -> None:
    values = np.array([[NAN, NAN, NAN], [1.0, NAN, 2.0]])
    with pytest.warns(RuntimeWarning, match="All-NaN"):
        found = gradient(lambda x: gnp.nanquantile(x, 0.9, 1, method="inverted_cdf", weights=weights)[1], values)
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 0, 1]])


def test_integers_have_no_nan() -> None:
    a = np.array([[1, 2, 3], [4, 5, 9]])
    for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian", "nancumsum"):
        found, expected = getattr(gnp, name)(tensor(a), axis=1), getattr(np, name)(a, axis=1)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.numpy(), expected)


def test_bfloat16_is_asked_for_nan_too() -> None:
    x = tensor(np.array([1.0, NAN, 3.0]).astype(ml_dtypes.bfloat16))
    expected_of = {"nansum": 4, "nanmean": 2, "nanmax": 3, "nanmin": 1, "nanmedian": 2, "nanstd": 1}
    for name, expected in expected_of.items():
        z = getattr(gnp, name)(x)
        assert (z.dtype, z.item()) == (ml_dtypes.bfloat16, expected)


def test_a_half_counts_far() -> None:
    values = np.ones((3, 5000), np.float16)
    values[0, 0] = NAN
    x = tensor(values)
    with GradManager().attach(x) as manager:
        z = gnp.nanmean(x[:, :3000] * np.float16(0.5), axis=0)
        manager.backward(z, np.ones(3000, np.float16))
    assert z.dtype == np.float16
    assert np.all(z.numpy() == 0.5)
    assert x.grad.numpy()[:2, 0].tolist() == [0.0, 0.25]


def test_nanvar_and_nanstd_of_one_number_and_of_none() -> None:
    values = np.array([[1.0, NAN], [NAN, NAN], [1.0, 3.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.nanvar(values, axis=1, ddof=1)
        np.testing.assert_array_equal(gnp.nanvar(tensor(values), axis=1, ddof=1).numpy(), expected)
        assert_gradient(lambda x: gnp.nanstd(x, axis=1, ddof=1)[2], values, [[0, 0], [0, 0], [-(0.5**0.5), 0.5**0.5]])


def test_extremes_of_nothing() -> None:
    for name in ("nanmax", "nanmin"):
        with pytest.raises(ValueError, match="zero-size"):
            getattr(gnp, name)(tensor(np.zeros((0, 3))), axis=0)
        with pytest.raises(ValueError, match="initial"):
            getattr(gnp, name)(tensor([1.0, 2.0]), where=[True, False])


# ---------------------------------------------------------------- averages, correlations


def test_perfect_correlation_stays_within_1_and_has_its_derivative() -> None:
    rows = np.random.default_rng(1).normal(size=(1, 7)) * [[1.0], [3.0], [-0.1]]
    x = tensor(rows)
    found = gnp.corrcoef(x).numpy()
    np.testing.assert_array_equal(found, np.corrcoef(rows))
    assert np.abs(found).max() <= 1
    assert gradcheck(gnp.corrcoef, x, order=2, fast_mode=True)


def test_too_few_samples_warn() -> None:
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"), np.errstate(all="ignore"):
        found = gnp.cov(tensor([[1.0], [2.0]])).numpy()
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"), np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.cov([[1.0], [2.0]]))


# ---------------------------------------------------------------- histograms


def test_histograms_accept_tensors_in_lists_and_are_constants() -> None:
    x, y = tensor([0.1, 0.7, 0.3]), tensor([1.0, 2.0, 1.5])
    with GradManager().attach([x, y]) as manager:
        counts, edges = gnp.histogramdd([x, y], bins=(2, tensor([1.0, 1.6, 2.0])))
        expected, expected_edges = np.histogramdd([x.numpy(), y.numpy()], bins=(2, [1.0, 1.6, 2.0]))
        plain_counts, _ = np.histogram(y, bins=x[[0, 2, 1]])
        with pytest.raises(errors.NotRecordedError):
            manager.backward(counts, np.ones((2, 2)))
    np.testing.assert_array_equal(counts.numpy(), expected)
    for a, b in zip(edges, expected_edges, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    np.testing.assert_array_equal(plain_counts.numpy(), np.histogram(y.numpy(), bins=[0.1, 0.3, 0.7])[0])


def test_weights_outside_every_bin_have_no_gradient() -> None:
    assert_gradient(
        lambda w: gnp.histogram([0.0, 0.5, 1.0, 1.5, NAN, -1.0], [0.0, 0.5, 1.0], weights=w)[0] * np.array([2.0, 3.0]),
        np.ones(6),
        [2, 3, 3, 0, 0, 0],
    )


# ---------------------------------------------------------------- calculus


def test_at_a_knot_the_derivative_is_that_of_the_segment_which_begins_there() -> None:
    xp, fp = [0.0, 1.0, 3.0], [0.0, 1.0, 9.0]
    assert_gradient(lambda x: gnp.interp(x, xp, fp), [0.0, 1.0, 3.0, -1.0, 4.0], [1, 4, 4, 0, 0])
    assert_gradient(lambda x: gnp.interp(x, xp, fp, left=-1.0, right=2.0), [-1.0, 0.0, 3.0, 4.0], [0, 1, 4, 0])
    assert_gradient(lambda f: gnp.interp([-1.0, 0.0, 1.0, 3.0, 4.0], xp, f), fp, [2, 1, 2])
    assert_gradient(lambda k: gnp.interp([-1.0, 4.0], k, fp), xp, [0, 0, 0])
    np.testing.assert_array_equal(gnp.interp(tensor([NAN, 1.0]), xp, fp).numpy(), [NAN, 1.0])


def test_interp_accepts_the_dtypes_numpy_accepts() -> None:
    x = tensor(np.float32([0.5, 1.5]))
    with GradManager().attach(x) as manager:
        z = gnp.interp(x, [0, 1, 2], [0, 10, 30])
        manager.backward(z, np.ones(2))
    assert z.dtype == np.float64
    assert (x.grad.dtype, x.grad.tolist()) == (np.float32, [10.0, 20.0])


def test_narrow_coordinates_do_not_round_a_wide_gradient() -> None:
    x = np.float32([0.1, 0.4, 1.3, 1.9])
    f = tensor([1.0, 2.0, 0.5, 0.7])
    found = gradient(lambda f: gnp.gradient(f, tensor(x))[1], f.numpy())
    expected = gradient(lambda f: gnp.gradient(f, tensor(x.astype(float)))[1], f.numpy())
    np.testing.assert_array_equal(found, expected)


def test_integers_and_booleans_flow_as_constants() -> None:
    for name, arguments in {
        "diff": ([True, False, False],),
        "ediff1d": ([3, 5, 4],),
        "gradient": ([3, 5, 4],),
        "trapezoid": ([3, 5, 4],),
        "convolve": ([3, 5, 4], [1, 2]),
        "correlate": ([3, 5, 4], [1, 2]),
        "unwrap": ([0, 5, 9, -4],),
        "cumulative_sum": (np.array([3, 5, 4], np.int8),),
        "average": ([3, 5, 4],),
        "cov": ([3, 5, 4],),
        "ptp": ([3, 5, 4],),
    }.items():
        found = getattr(gnp, name)(*[tensor(a) for a in arguments])
        expected = getattr(np, name)(*[np.array(a) for a in arguments])
        assert (found.dtype, found.shape) == (expected.dtype, np.shape(expected)), name
        np.testing.assert_allclose(found.numpy(), expected, err_msg=name)
    found = gnp.unwrap(tensor([0, 5, 9, -4]), period=4)
    np.testing.assert_array_equal(found.numpy(), np.unwrap([0, 5, 9, -4], period=4))
    assert found.dtype == np.int64


def test_gradient_gives_one_result_an_axis() -> None:
    x = tensor(np.arange(12.0).reshape(3, 4))
    assert isinstance(gnp.gradient(x), tuple)
    assert isinstance(gnp.gradient(x, axis=1), Tensor)
    assert gnp.gradient(tensor(2.0)) == ()


def test_convolution_of_long_by_short_keeps_the_cost_of_the_short() -> None:
    """The gradients have the sizes of a and v and are right where every mode cuts its piece."""
    a, v = np.random.default_rng(0).normal(size=400), np.random.default_rng(1).normal(size=7)
    for mode in ("full", "same", "valid"):
        x, y = tensor(a), tensor(v)
        g = np.random.default_rng(2).normal(size=np.convolve(a, v, mode).shape)
        with GradManager().attach([x, y]) as manager:
            manager.backward(gnp.convolve(x, y, mode), g)
        of_v = [g @ np.convolve(a, row, mode) for row in np.eye(7)]
        of_a = [g @ np.convolve(row, v, mode) for row in np.eye(400)]
        np.testing.assert_allclose(y.grad.numpy(), of_v, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(x.grad.numpy(), of_a, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- errors

X = np.arange(12.0).reshape(3, 4)
V = np.arange(4.0)

ERRORS: list[tuple[str, Any, type[Exception], str]] = [
    ("average", lambda f, x: f(x, weights=V), TypeError, "average"),
    ("average", lambda f, x: f(x, 0, weights=V), ValueError, "average"),
    ("average", lambda f, x: f(x, 1, weights=V * 0), ZeroDivisionError, "average"),
    ("average", lambda f, x: f(x, 5), np.exceptions.AxisError, "average"),
    ("cov", lambda f, x: f(gnp.reshape(x, (2, 2, 3))), ValueError, "cov"),
    ("cov", lambda f, x: f(x, np.zeros((2, 2, 3))), ValueError, "cov"),
    ("cov", lambda f, x: f(x, ddof=0.5), ValueError, "cov"),
    ("cov", lambda f, x: f(x, fweights=V + 0.5), TypeError, "cov"),
    ("cov", lambda f, x: f(x, fweights=-V), ValueError, "cov"),
    ("cov", lambda f, x: f(x, fweights=V[:2]), RuntimeError, "cov"),
    ("cov", lambda f, x: f(x, aweights=X), RuntimeError, "cov"),
    ("cov", lambda f, x: f(x, aweights=V * 0), ZeroDivisionError, "cov"),
    ("median", lambda f, x: f(x, 2), np.exceptions.AxisError, "median"),
    ("median", lambda f, x: f(x, (0, 0)), ValueError, "median"),
    ("quantile", lambda f, x: f(x, 1.1), ValueError, "quantile"),
    ("quantile", lambda f, x: f(x, NAN), ValueError, "quantile"),
    ("quantile", lambda f, x: f(x, [[[0.5]]]), ValueError, "quantile"),
    ("percentile", lambda f, x: f(x, -1), ValueError, "percentile"),
    ("quantile", lambda f, x: f(x, 0.5, method="mean"), ValueError, "quantile"),
    ("quantile", lambda f, x: f(x * 1j, 0.5), TypeError, "quantile"),
    ("quantile", lambda f, x: f(x[:0], 0.5), IndexError, "quantile"),
    ("quantile", lambda f, x: f(x, 0.5, weights=X), ValueError, "quantile"),
    ("quantile", lambda f, x: f(x, 0.5, method="inverted_cdf", weights=-X), ValueError, "quantile"),
    ("quantile", lambda f, x: f(x, 0.5, method="inverted_cdf", weights=X * 0), ValueError, "quantile"),
    ("nanmean", lambda f, x: f(x, dtype=int), TypeError, "nanmean"),
    ("nanvar", lambda f, x: f(x, out=gnp.zeros((), dtype=int)), TypeError, "nanvar"),
    ("nanstd", lambda f, x: f(x, ddof=1, correction=1), ValueError, "nanstd"),
    ("diff", lambda f, x: f(x, -1), ValueError, "diff"),
    ("diff", lambda f, x: f(x.sum()), ValueError, "diff"),
    ("diff", lambda f, x: f(x, axis=2), np.exceptions.AxisError, "diff"),
    ("ediff1d", lambda f, x: f(x, to_end=1j), TypeError, "ediff1d"),
    ("ediff1d", lambda f, x: f(x > 1), TypeError, "ediff1d"),
    ("gradient", lambda f, x: f(x, 1.0, 1.0, 1.0), TypeError, "gradient"),
    ("gradient", lambda f, x: f(x, V[:2], axis=1), ValueError, "gradient"),
    ("gradient", lambda f, x: f(x, X, axis=1), ValueError, "gradient"),
    ("gradient", lambda f, x: f(x, edge_order=3), ValueError, "gradient"),
    ("gradient", lambda f, x: f(x[:1]), ValueError, "gradient"),
    ("trapezoid", lambda f, x: f(x, axis=2), np.exceptions.AxisError, "trapezoid"),
    ("cumulative_sum", lambda f, x: f(x), ValueError, "cumulative_sum"),
    ("interp", lambda f, x: f(x, X, X), ValueError, "interp"),
    ("interp", lambda f, x: f(x, V, V[:2]), ValueError, "interp"),
    ("interp", lambda f, x: f(x, [], []), ValueError, "interp"),
    ("interp", lambda f, x: f(x * 1j, V, V), TypeError, "interp"),
    ("interp", lambda f, x: f(x, V, V, left=1j), TypeError, "interp"),
    ("interp", lambda f, x: f(x, V, V, right=[1.0]), TypeError, "interp"),
    ("interp", lambda f, x: f(x, V, V, period=0), ValueError, "interp"),
    ("convolve", lambda f, x: f(x, V), ValueError, "convolve"),
    ("convolve", lambda f, x: f(x[0], []), ValueError, "convolve"),
    ("correlate", lambda f, x: f(x[0], V, "most"), ValueError, "correlate"),
    ("unwrap", lambda f, x: f(x.sum()), ValueError, "unwrap"),
    ("unwrap", lambda f, x: f(x, axis=3), np.exceptions.AxisError, "unwrap"),
]


@pytest.mark.parametrize(("name", "call", "kind", "text"), ERRORS)
def test_errors_are_numpys_and_name_the_function(name: str, call: Any, kind: type[Exception], text: str) -> None:
    x = tensor(X)
    with GradManager().attach(x) as manager:
        with pytest.raises(kind, match=text):
            call(getattr(gnp, name), x)
        manager.backward(x.sum())  # still in order
    assert x.grad.tolist() == np.ones_like(X).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: gnp.median(x, 0, out),
        lambda x, out: gnp.quantile(x, 0.5, 0, out),
        lambda x, out: gnp.nanmean(x, 0, None, out),
        lambda x, out: gnp.ptp(x, 0, out),
    ],
)
def test_a_tracked_result_is_not_written_into_a_plain_array(call: Any) -> None:
    x, out = tensor(X), np.zeros(4)
    with GradManager().attach(x), pytest.raises(errors.TrackedConversionError):
        call(x, out)
    assert out.tolist() == [0.0] * 4


# ---------------------------------------------------------------- reductions, by every keyword

INTEGERS = np.array([[3, -1, 2], [0, 5, 2]])
MIXED = np.array([[True, False, True], [True, True, False]])


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "max", "min", "nansum", "nanmean", "nanvar"])
def test_reductions_of_integers_are_numpys(name: str, dtype: Any) -> None:
    """Their where= counted, cast and divided in the integer dtype; a sum took a dtype of booleans for a cast."""
    a = abs(INTEGERS).astype(dtype)
    cases: list[dict[str, Any]] = [{}, {"axis": 0}, {"keepdims": True}]
    if name in ("max", "min"):
        cases += [{"where": MIXED, "initial": 1}]
    else:
        cases += [{"where": MIXED}, {"dtype": np.float32, "where": MIXED, "axis": 1}]
    if name in ("sum", "prod", "nansum"):
        cases += [{"dtype": bool, "axis": 0}, {"initial": 2}]
    if name in ("var", "nanvar", "std"):
        cases += [{"where": MIXED, "ddof": 1, "axis": 1}, {"mean": np.array([[1.5]]), "where": MIXED}]
    for keywords in cases:
        found, expected = getattr(gnp, name)(tensor(a), **keywords), getattr(np, name)(a, **keywords)
        assert isinstance(found, Tensor)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_the_mean_given_for_integers_gets_a_gradient(name: str) -> None:
    assert gradcheck(lambda m: getattr(gnp, name)(tensor(INTEGERS), mean=m), tensor(0.7), order=2)
    assert gradcheck(lambda m: getattr(gnp, name)(INTEGERS, mean=m, where=MIXED), tensor(0.7))


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_degrees_of_freedom_that_are_a_tensor_get_a_gradient_where_the_data_is_plain(name: str) -> None:
    for keyword in ("ddof", "correction"):
        assert gradcheck(lambda d, k=keyword: getattr(gnp, name)(X, axis=0, **{k: d}), tensor(0.4), order=2)
    with pytest.raises(ValueError, match=f"{name}: ddof and correction"):
        getattr(gnp, name)(tensor(X), ddof=tensor(0.0), correction=1)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "nansum", "nanprod", "nanmean", "nanvar"])
def test_where_is_a_mask_that_broadcasts_to_the_data(name: str) -> None:
    x, f = tensor(np.ones((1, 4))), getattr(gnp, name)
    numpys = getattr(np, name)
    for mask, kind in ((np.ones((3, 4), bool), ValueError), (np.ones((2, 1, 4), bool), ValueError)):
        with pytest.raises(kind):
            numpys(np.ones((1, 4)), where=mask)
        with GradManager().attach(x), pytest.raises(kind, match=f"{name}: where"):
            f(x, where=mask)
    with GradManager().attach(x) as manager:
        for mask in (np.ones(4), np.ones(4, int), x):
            with pytest.raises(TypeError, match=f"{name}: where"):
                f(x, where=mask)
        with pytest.raises(np.exceptions.AxisError, match=f"{name}: axis 7"):
            f(x, axis=7, where=np.ones(4, bool))
        assert not manager._tape.entries


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nansum", "nanprod", "nanmax", "nanmin"])
def test_initial_is_a_number_of_the_kind_of_the_result(name: str) -> None:
    x, f = tensor(X), getattr(gnp, name)
    np.testing.assert_array_equal(f(x, axis=0, initial=None).numpy(), getattr(np, name)(X, axis=0, initial=None))
    with GradManager().attach(x) as manager:
        with pytest.raises(ValueError, match=f"{name}: initial must be a number"):
            f(x, axis=0, initial=tensor(np.ones(4)))
        with pytest.raises(TypeError, match=f"{name}: initial must be real"):
            f(x, initial=1j)
        assert not manager._tape.entries
    for keywords in ({"initial": None}, {"initial": None, "where": True}):
        with pytest.raises(ValueError, match=name):
            f(tensor(np.ones((0, 2))), **keywords)
    with pytest.raises(ValueError, match=name):
        f(x, initial=None, where=X > 0)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "ptp", "nansum", "nanmean", "nanvar", "nanmax"])
def test_the_first_and_the_last_axis_of_a_number(name: str) -> None:
    """NumPy's ufuncs take them for an array of no axes; others, such as mean, do not."""
    for axis in (0, -1):
        found = getattr(gnp, name)(tensor(2.5), axis=axis)
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(np.array(2.5), axis=axis))
        with pytest.raises(np.exceptions.AxisError):
            getattr(gnp, name)(tensor(2.5), axis=(axis,))
    with pytest.raises(np.exceptions.AxisError, match="mean"):
        gnp.mean(tensor(2.5), axis=0)
    with pytest.raises(TypeError, match=name):
        getattr(gnp, name)(tensor(X), axis=[0])


def test_keywords_that_are_false_or_true_reach_numpy() -> None:
    a = np.array([1.0, 2.0])
    assert gnp.sum(a, where=False) == np.sum(a, where=False) == 0
    assert gnp.prod(a, initial=False) == np.prod(a, initial=False) == 0
    assert gnp.sum(a, initial=True) == np.sum(a, initial=True) == 4


@pytest.mark.parametrize("name", ["var", "std"])
def test_a_real_dtype_for_complex_data_is_that_of_the_mean(name: str) -> None:
    z = np.array([[1 + 2j, 0.5 - 1j], [2.0 + 0.3j, -1j]])
    with pytest.warns(np.exceptions.ComplexWarning):
        expected = getattr(np, name)(z, axis=0, dtype=np.float64)
    with pytest.warns(np.exceptions.ComplexWarning):
        found = getattr(gnp, name)(tensor(z), axis=0, dtype=np.float64)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, strict=True)
    for data in (z, z.real):
        expected = getattr(np, name)(data, axis=0, dtype=np.complex128)
        found = getattr(gnp, name)(tensor(data), axis=0, dtype=np.complex128)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, strict=True)
        assert gradcheck(lambda t: getattr(gnp, name)(t, axis=0, dtype=np.complex128), tensor(data))


def test_reductions_that_ignore_nan_in_the_dtype_asked_for() -> None:
    a = np.array([[1.0, NAN, 3.0], [2.0, 5.0, 7.0]], dtype=np.float32)
    for f in (np.nanmean, np.nanvar, np.nanstd):
        for dtype in (np.float16, np.float64):
            found = getattr(gnp, f.__name__)(tensor(a), axis=1, dtype=dtype)
            np.testing.assert_allclose(found.numpy(), f(a, axis=1, dtype=dtype), rtol=2e-3, strict=True)
    for ddof in (-1, -0.5):  # fewer than no degrees are taken off: NaN counted as if it were there
        found = gnp.nanvar(tensor(a), axis=1, ddof=ddof)
        np.testing.assert_allclose(found.numpy(), np.nanvar(a, axis=1, ddof=ddof), rtol=1e-6)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_a_running_sum_along_no_such_axis(name: str) -> None:
    x = tensor([[1.0, NAN], [2.0, 3.0]])
    with GradManager().attach(x) as manager:
        with pytest.raises(np.exceptions.AxisError, match=name):
            getattr(gnp, name)(x, axis=2)
        with pytest.raises(TypeError, match=name):
            getattr(gnp, name)(x, axis=(0, 1))
        assert not manager._tape.entries


# ---------------------------------------------------------------- what else NumPy does with the arguments


def test_covariances_in_the_dtype_asked_for() -> None:
    for dtype in (np.float32, np.complex64):
        found = gnp.cov(tensor(X), dtype=dtype)
        np.testing.assert_allclose(found.numpy(), np.cov(X, dtype=dtype), rtol=1e-5, strict=True)
    with pytest.raises(TypeError):
        gnp.cov(tensor(X), dtype=np.int64)


def test_degrees_of_freedom_of_a_covariance_carry_no_gradient_and_say_so() -> None:
    d = tensor(1.0)
    for data in (X, tensor(X)):
        np.testing.assert_allclose(gnp.cov(data, ddof=d).numpy(), np.cov(X, ddof=1), rtol=1e-14)
        with GradManager().attach(d), pytest.raises(errors.UnsupportedFunctionError, match="cov has no derivative"):
            gnp.cov(data, ddof=d)


def test_weights_of_a_histogram_in_a_list_get_their_gradients() -> None:
    s = tensor(2.0)
    with GradManager().attach(s) as manager:
        counts, _ = gnp.histogram([0.5, 1.5, 2.5], bins=3, weights=[s, 1.0, s])
        manager.backward(counts, np.array([1.0, 10.0, 100.0]))
    assert counts.tolist() == [2.0, 1.0, 2.0]
    assert s.grad.item() == 101.0


def test_differences_of_order_0_of_a_plain_array_with_a_tensor_prepended() -> None:
    z = gnp.diff(np.arange(3.0), n=0, prepend=tensor(1.0))
    assert isinstance(z, Tensor)
    assert z.tolist() == [0.0, 1.0, 2.0]


def test_slopes_of_booleans_are_refused_as_by_numpy() -> None:
    for f, a in ((np.gradient, X > 0), (gnp.gradient, tensor(X > 0))):
        with pytest.raises(TypeError):
            f(a)


def test_modes_of_convolution_by_number() -> None:
    a, v = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0])
    for mode in (0, 1, 2):
        for name in ("convolve", "correlate"):
            found = getattr(gnp, name)(tensor(a), v, mode)
            np.testing.assert_array_equal(found.numpy(), getattr(np, name)(a, v, mode))
    with pytest.raises(ValueError, match="correlate: object of too small depth"):
        gnp.correlate(tensor(1.0), v)


def test_what_lies_beyond_the_knots_is_checked_before_anything_is_recorded() -> None:
    fp = tensor([1.0, 2.0])
    with GradManager().attach(fp) as manager:
        with pytest.raises(TypeError, match="left must be real"):
            gnp.interp(0.5, [0.0, 1.0], fp, left=1j)
        with pytest.raises(TypeError, match="right must be a number"):
            gnp.interp(0.5, [0.0, 1.0], fp, right=[1.0])
        assert not manager._tape.entries


def test_polynomials_of_booleans_and_of_nothing() -> None:
    p, x = np.array([True, True]), np.array([True, False])
    np.testing.assert_array_equal(gnp.polyval(tensor(p), x).numpy(), np.polyval(p, x), strict=True)
    for pair in (([], [1.0, 2.0]), ([1.0, 2.0], []), ([], [])):
        a, b = (np.array(side) for side in pair)
        np.testing.assert_array_equal(gnp.polymul(tensor(a), tensor(b)).numpy(), np.polymul(a, b), strict=True)


def test_a_cutoff_that_is_a_tensor() -> None:
    x, y = np.arange(5.0), np.arange(5.0) ** 2
    np.testing.assert_allclose(gnp.polyfit(x, y, 2, rcond=tensor(1e-3)).numpy(), np.polyfit(x, y, 2, 1e-3), atol=1e-12)
