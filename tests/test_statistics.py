"""Statistics and calculus beyond the table of samples: ties, NaN, warnings, edges, errors."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, tensor

NAN, INF = np.nan, np.inf


def gradient_of(f: Any, point: Any) -> Any:
    """The gradient of the sum of f at a point."""
    x = tensor(point)
    with GradManager().attach(x) as manager:
        manager.backward(gnp.sum(f(x)))
    return x.grad.numpy()


def assert_gradient(f: Any, point: Any, expected: Any) -> None:
    np.testing.assert_allclose(gradient_of(f, point), expected, rtol=1e-12, atol=1e-14)


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
        found = gradient_of(lambda x, q=q, m=name: gnp.quantile(x, q, axis, method=m), values)
        np.testing.assert_array_equal(found.ravel(), expected)


def test_quantiles_of_many_columns_with_nan_beside_columns_without() -> None:
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
    # NumPy up to 2.2 takes a float64 for one of Python's, which widens nothing, and gives integers for some integers.
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


def test_weights_choose_and_take_no_gradient() -> None:
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
        found = gradient_of(lambda x: gnp.nanquantile(x, 0.9, 1, method="inverted_cdf", weights=weights)[1], values)
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


def test_a_spread_of_one_number_and_of_none() -> None:
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


def test_histograms_take_tensors_in_lists_and_are_constants() -> None:
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


def test_interp_takes_the_dtypes_numpy_takes() -> None:
    x = tensor(np.float32([0.5, 1.5]))
    with GradManager().attach(x) as manager:
        z = gnp.interp(x, [0, 1, 2], [0, 10, 30])
        manager.backward(z, np.ones(2))
    assert z.dtype == np.float64
    assert (x.grad.dtype, x.grad.tolist()) == (np.float32, [10.0, 20.0])


def test_narrow_coordinates_do_not_round_a_wide_gradient() -> None:
    x = np.float32([0.1, 0.4, 1.3, 1.9])
    f = tensor([1.0, 2.0, 0.5, 0.7])
    found = gradient_of(lambda f: gnp.gradient(f, tensor(x))[1], f.numpy())
    expected = gradient_of(lambda f: gnp.gradient(f, tensor(x.astype(float)))[1], f.numpy())
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
