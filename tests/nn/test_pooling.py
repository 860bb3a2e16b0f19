"""Pooling: values, ties, sweeps against loops, dtypes, what is kept, what is refused."""

import weakref
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from helpers import gradient, normal, value_and_gradients
from samples.nn_pooling import largest, mean, pooled

from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import windows

# ---------------------------------------------------------------- values


def test_numbers_of_torch():
    """The numbers are those of torch 2.13."""
    x = np.array([[[1.0, 3.0, 2.0, 0.0, 1.0], [4.0, 3.0, 5.0, 5.0, 2.0], [4.0, 0.0, 5.0, 6.0, -1.0]]])
    z, (g,) = value_and_gradients(lambda t: F.max_pool2d(t, 2, 1), x)
    assert z.tolist() == [[[4, 5, 5, 5], [4, 5, 6, 6]]]
    assert g.tolist() == [[[0, 0, 0, 0, 0], [2, 0, 3, 1, 0], [0, 0, 0, 2, 0]]]
    z, where = F.max_pool2d(x, (2, 3), (2, 2), (1, 1), ceil_mode=True, return_indices=True)
    assert z.tolist() == [[[3, 3, 1], [4, 6, 6]]]
    assert where.tolist() == [[[1, 1, 4], [5, 13, 13]]]
    assert where.dtype == np.int64
    z, (g,) = value_and_gradients(lambda t: F.avg_pool2d(t, (2, 3), (2, 2), (1, 1), ceil_mode=True), x)
    assert np.allclose(z, [[[0.6667, 0.8333, 0.1667], [1.8333, 4.0, 2.0]]], atol=1e-4)
    sixth = np.ones((3, 5)) / 6
    sixth[:, [1, 3]] += 1 / 6
    assert np.allclose(g, sixth)
    assert np.allclose(F.avg_pool2d(x, (2, 3), 2, 1, count_include_pad=False), [[[2, 5 / 3, 0.5], [2.75, 4, 3]]])


@pytest.mark.parametrize("block", [2**19, 60, 5])
def test_random_windows(monkeypatch, block):
    """Blocks of many planes, of one, and of a few lines of one give what loops give; the derivatives are adjoint."""
    monkeypatch.setattr(windows, "_BLOCK", block)
    monkeypatch.setattr(windows, "_FEWEST", 1 if block < 100 else 512)
    random, met = np.random.default_rng(block), 0
    for _ in range(120):
        kernel, stride, dilation = (tuple(int(n) for n in random.integers(1, 4, 2)) for _ in range(3))
        padding = tuple(int(random.integers(0, k // 2 + 1)) for k in kernel)
        x = random.standard_normal((*random.integers(1, 4, 2), *random.integers(1, 9, 2)))
        options = {"stride": stride, "padding": padding, "ceil_mode": bool(random.integers(2))}
        for name, of, more in (("max_pool2d", largest, {"dilation": dilation}), ("avg_pool2d", mean, {})):
            call = partial(getattr(F, name), kernel_size=kernel, **options, **more)
            try:
                z = call(x)
            except errors.ShapeError:
                continue
            met += 1
            expected = pooled(x, of, kernel, **(options | more))
            assert np.allclose(z, expected), (name, x.shape, kernel, options, more)
            g = np.cos(np.arange(z.size)).reshape(z.shape)
            gx = gradient(call, x, g)
            step = 1e-6 * random.standard_normal(x.shape)
            moved = pooled(x + step, of, kernel, **(options | more)) - expected
            assert np.isclose((gx * step).sum(), (g * moved).sum(), rtol=1e-4, atol=1e-12)
    assert met > 120


def test_lines():
    x = normal(2, 3, 9)
    for name in ("max_pool1d", "avg_pool1d"):
        line, plane = getattr(F, name), getattr(F, name.replace("1", "2"))
        z = line(x, 3, 2, 1, ceil_mode=True)
        assert np.array_equal(z, plane(x[:, :, None], (1, 3), (1, 2), (0, 1), ceil_mode=True)[:, :, 0])
        assert np.array_equal(line(x[0], 3, 2, 1, ceil_mode=True), z[0])
    z, where = F.max_pool1d(x, 2, return_indices=True)
    assert np.array_equal(np.take_along_axis(x, where, 2), z)


def test_what_comes_in_comes_out():
    x = normal(2, 3, 4, 4)
    assert type(F.max_pool2d(x, 2)) is type(F.avg_pool2d(x, 2)) is np.ndarray
    found = F.max_pool2d(tensor(x), 2, return_indices=True)
    assert [type(part) for part in found] == [Tensor, Tensor]
    assert isinstance(F.avg_pool2d(tensor(x), 2), Tensor)
    assert np.array_equal(F.max_pool2d(x[0].tolist(), 2), F.max_pool2d(x, 2)[0])


# ---------------------------------------------------------------- the largest


def test_the_first_of_equal_numbers_gets_the_gradient():
    g = gradient(lambda t: F.max_pool2d(t, 2), np.zeros((1, 1, 4, 4)))
    assert g.tolist() == [[[[1, 0, 1, 0], [0, 0, 0, 0]] * 2]]
    x = np.array([[[0.0, 7.0], [7.0, 1.0]]])  # by rows, not by columns
    assert gradient(lambda t: F.max_pool2d(t, 2), x).tolist() == [[[0, 1], [0, 0]]]


def test_windows_of_minus_infinity():
    """Nothing in the padding is taken for the largest, though it equals what is in the plane."""
    x = np.full((1, 2, 3), -np.inf)
    z, (g,) = value_and_gradients(lambda t: F.max_pool2d(t, 3, 1, 1), x)
    assert (z == -np.inf).all()
    assert g.tolist() == [[[4, 2, 0], [0, 0, 0]]]
    assert F.max_pool2d(x, 3, 1, 1, return_indices=True)[1].tolist() == [[[0, 0, 1], [0, 0, 1]]]


@pytest.mark.parametrize("kernel", [2, 3])
def test_nan_is_the_result_and_gets_the_gradient(kernel):
    x = normal(2, 2, 6, 6)
    x[1, 0, 3, 2] = np.nan
    z, (g,) = value_and_gradients(lambda t: F.max_pool2d(t, kernel), x)
    lost = np.zeros(z.shape, bool)
    lost[1, 0, 3 // kernel, 2 // kernel] = True
    assert np.array_equal(np.isnan(z), lost)
    assert g[1, 0, 3, 2] == 1


def test_gradients_that_are_not_finite_stay_where_they_belong():
    x, g = normal(1, 1, 4, 4), np.array([[[[np.nan, 1.0], [np.inf, 2.0]]]])
    found = gradient(lambda t: F.max_pool2d(t, 2), x, g)
    assert np.isfinite(found).sum() == 14
    assert found[np.isfinite(found)].sum() == 3
    assert np.isfinite(gradient(lambda t: F.max_pool2d(t, (2, 3), (2, 1)), x, g)).sum() == 14  # these overlap


def test_large_windows():
    """More taps than one byte counts."""
    x = normal(1, 2, 20, 34)
    z, where = F.max_pool2d(x, 17, return_indices=True)
    assert np.array_equal(np.take_along_axis(x.reshape(1, 2, -1), where.reshape(1, 2, -1), 2), z.reshape(1, 2, -1))
    g = gradient(lambda t: F.max_pool2d(t, 17), x)
    assert np.array_equal(np.flatnonzero(g[0, 1]), np.sort(where[0, 1].ravel()))


def test_the_input_is_not_kept():
    x = tensor(normal(1, 2, 8, 8))
    with GradManager().attach(x) as gm:
        h = x * 2
        kept = weakref.ref(h._array)
        z = F.avg_pool2d(F.max_pool2d(h, 2), 2)
        del h
        assert kept() is None
        gm.backward(z.sum())
    assert sorted(set(x.grad.numpy().ravel())) == [0, 0.5]


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_dtypes(dtype):
    x = np.full((1, 2, 16, 16), 1024, dtype)  # 256 of them are more than a half can hold
    for call in (lambda t: F.avg_pool2d(t, 16), lambda t: F.avg_pool2d(t, 8, 4), lambda t: F.max_pool2d(t, 3, 2, 1)):
        z, (g,) = value_and_gradients(call, x)
        assert z.dtype == g.dtype == dtype
        assert (z == 1024).all()
    assert np.isclose(gradient(lambda t: F.avg_pool2d(t, 8, 4), x).astype(float).sum(), 18)


def test_whole_planes_are_their_means():
    x = normal(2, 3, 5, 4)
    z, (g,) = value_and_gradients(lambda t: F.avg_pool2d(t, (5, 4)), x)
    assert np.allclose(z[:, :, 0, 0], x.mean((2, 3)))
    assert np.allclose(g, 1 / 20)


# ---------------------------------------------------------------- what is refused

X = np.ones((2, 3, 5, 5))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: F.max_pool2d(X[0, 0], 2), errors.ShapeError, r"shape \(batch, channels, height, width\).*\(5, 5\)"),
        (lambda: F.avg_pool1d(X, 2), errors.ShapeError, r"shape \(batch, channels, length\).*\(2, 3, 5, 5\)"),
        (lambda: F.max_pool2d(X[:, :0], 2), errors.ShapeError, r"at least one channel.*\(2, 0, 5, 5\)"),
        (lambda: F.max_pool2d(X, 6), errors.ShapeError, r"windows of \(6, 6\) do not fit in planes of \(5, 5\)"),
        (
            lambda: F.avg_pool2d(X, 3, padding=2),
            errors.ShapeError,
            "half of kernel_size; found padding 2, kernel_size 3",
        ),
        (lambda: F.max_pool2d(X, 2, 0), errors.ShapeError, "stride must be at least 1; found 0"),
        (lambda: F.max_pool2d(X, 0), errors.ShapeError, "kernel_size must be at least 1; found 0"),
        (lambda: F.max_pool2d(X, 2, padding=-1), errors.ShapeError, "padding must be at least 0; found -1"),
        (lambda: F.max_pool2d(X, 2.0), TypeError, "kernel_size must be an integer; found 2.0"),
        (lambda: F.max_pool2d(X, 2, (1, 1.5)), TypeError, "stride must be an integer; found 1.5"),
        (lambda: F.avg_pool2d(X, (1, 2, 3)), ValueError, "kernel_size must be an integer or 2"),
        (lambda: F.max_pool2d(X[..., :1], (1, 2), 1, (0, 1), 2), errors.ShapeError, "all of its taps outside"),
        (lambda: F.avg_pool2d(X, 2, divisor_override=0), ValueError, "divisor_override must not be 0"),
        (lambda: F.avg_pool2d(X, 2, divisor_override=1.5), TypeError, "divisor_override must be an integer"),
        (lambda: F.max_pool2d(X.astype(int), 2), errors.DtypeError, "input of dtype int64"),
        (
            lambda: F.avg_pool2d(X * 1j, 2),
            errors.DtypeError,
            "real floating-point numbers; found input of dtype complex",
        ),
    ],
)
def test_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_adaptive_pooling_is_torchs():
    x = np.arange(35.0).reshape(1, 5, 7) ** 2
    expected = [
        [97.3333333333, 133.333333333, 177.333333333],
        [517.333333333, 609.333333333, 709.333333333],
    ]  # torch 2.13's
    assert np.allclose(F.adaptive_avg_pool2d(x, (2, 3))[0], expected)
    assert F.adaptive_avg_pool2d(x, (None, 1)).shape == (1, 5, 1)
    assert np.allclose(F.adaptive_avg_pool2d(x, (None, 7)), x)
    half = np.full((1, 5, 7), 60000, np.float16)
    assert (F.adaptive_avg_pool2d(half, 2) == half[:, :2, :2]).all()
    for size, kind, says in (
        (0, errors.ShapeError, "output_size must be at least 1; found 0"),
        (1.5, TypeError, "output_size must be an integer"),
        ((1, 2, 3), ValueError, "output_size must be an integer or 2"),
    ):
        with pytest.raises(kind, match=says):
            F.adaptive_avg_pool2d(x, size)
    with pytest.raises(errors.ShapeError, match="adaptive_avg_pool2d takes an input of shape"):
        F.adaptive_avg_pool2d(x[0], 1)
