"""Activations and softmax: known values, far out, dtypes, memory, what is refused. The generic tests are elsewhere."""

import sys

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, errors, tensor
from gradmgr._arrays.blocks import BLOCK
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import activation

INF = np.inf
POINTS = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])


def slopes(function, x, seed=1.0):
    """The value and the derivative of an elementwise function."""
    t = tensor(x)
    gm = GradManager().attach(t)
    with gm:
        y = function(t)
        gm.backward(y, np.full(y.shape, seed, y.dtype))
    return y.numpy(), t.grad.numpy()


# What torch 2.13 gives in double precision at POINTS: values, then derivatives.
KNOWN = {
    "gelu": (
        F.gelu,
        [-0.004049694095, -0.158655253931, -0.154268769363, 0.0, 0.345731230637, 0.841344746069, 2.995950305905],
        [-0.011945647204, -0.083315470588, 0.132504875344, 0.5, 0.867495124656, 1.083315470588, 1.011945647204],
    ),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        [-0.003637392082, -0.158808009392, -0.154285990175, 0.0, 0.345714009825, 0.841191990608, 2.996362607918],
        [-0.011584166631, -0.082964083846, 0.132630096465, 0.5, 0.867369903535, 1.082964083846, 1.011584166631],
    ),
    "silu": (
        F.silu,
        [-0.142277619533, -0.26894142137, -0.188770334399, 0.0, 0.311229665601, 0.73105857863, 2.857722380467],
        [-0.088104106015, 0.072329488129, 0.260038812697, 0.5, 0.739961187303, 0.927670511871, 1.088104106015],
    ),
    "softplus": (
        lambda x: F.softplus(x, 2.0, 1.5),
        [0.001237842569, 0.063464005521, 0.156630843759, 0.34657359028, 0.656630843759, 1.0, 3.0],
        [0.002472623157, 0.119202922022, 0.26894142137, 0.5, 0.73105857863, 1.0, 1.0],
    ),
    "elu": (
        lambda x: F.elu(x, 0.5),
        [-0.475106465816, -0.316060279414, -0.196734670144, 0.0, 0.5, 1.0, 3.0],
        [0.024893534184, 0.183939720586, 0.303265329856, 0.5, 1.0, 1.0, 1.0],
    ),
    "logsigmoid": (
        F.logsigmoid,
        [
            *(-3.048587351574, -1.313261687518, -0.97407698418, -0.69314718056),
            *(-0.47407698418, -0.313261687518, -0.048587351574),
        ],
        [0.952574126822, 0.73105857863, 0.622459331202, 0.5, 0.377540668798, 0.26894142137, 0.047425873178],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_torchs_numbers(name):
    function, values, derivatives = KNOWN[name]
    y, dy = slopes(function, POINTS)
    np.testing.assert_allclose(y, values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(dy, derivatives, rtol=0, atol=1e-12)


def test_gelu_is_exact_far_out():
    # x Phi(x), computed with mpmath in 40 digits; 1 + erf(x) would leave no digit at -9.
    x = np.array([-2.0, -9.0, -20.0, -36.0])
    expected = [-0.045500263896358414, -1.0157295653584566e-18, -5.5072482372124674e-88, -1.505744663687022e-282]
    np.testing.assert_allclose(F.gelu(x), expected, rtol=2e-15)
    np.testing.assert_allclose(F.gelu(x[:2].astype(np.float32)), expected[:2], rtol=3e-6)
    y, dy = slopes(F.gelu, np.array([-INF, -1e30, 1e30, INF, np.nan]))
    np.testing.assert_array_equal(y, [0, 0, 1e30, INF, np.nan])
    np.testing.assert_array_equal(dy, [0, 0, 1, 1, np.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_of_large_is_that_of_small(dtype):
    x = np.random.default_rng(0).normal(0, 4, (600, 500)).astype(dtype)  # more than a megabyte
    x[0, :5] = [-INF, INF, np.nan, 0, -0.0]
    large = slopes(F.gelu, x)
    small = [
        np.concatenate(rows) for rows in zip(*[slopes(F.gelu, x[k : k + 50]) for k in range(0, 600, 50)], strict=True)
    ]
    for found, expected in zip(large, small, strict=True):
        np.testing.assert_allclose(
            found, expected, rtol=1e-5 if dtype is np.float32 else 1e-13, atol=np.finfo(dtype).eps
        )


def test_gelu_in_single_precision():
    x = np.concatenate([np.linspace(-12.5, -1e-3, 5001), np.linspace(1e-3, 12.5, 5001)]).astype(np.float32)
    for found, expected in zip(slopes(F.gelu, x), slopes(F.gelu, x.astype(float)), strict=True):
        size = np.abs(x) * np.exp(-(x.astype(float) ** 2) / 2) + np.abs(expected)  # of what is added up
        far = np.abs(x) > 6
        assert np.max(np.abs(found - expected)[~far] / size[~far]) < 2e-6
        assert np.max(np.abs(found - expected)[far] / size[far]) < 1e-5


IN_BLOCKS = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "silu": F.silu,
    "softplus": F.softplus,
    "gelu": activation._gelu,
    "gelu of its input": activation._gelu_of_input,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "slope of gelu": activation._gelu_slope,
}


@pytest.fixture(params=[1, 3])
def threads(request, set_threads):
    set_threads(request.param)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_computing_in_blocks_gives_the_same(name, dtype):
    """Of rows that are smaller than a block, of five blocks and a rest; however the memory lies."""
    function = IN_BLOCKS[name]
    x = np.random.default_rng(0).normal(size=(7, BLOCK // np.dtype(dtype).itemsize * 3 // 4 + 5)).astype(dtype)
    x[1, 3:7] = [0, -0.0, 1e-42, -1e-42]
    parts = [slopes(function, row, seed=2.0) for row in x]
    for laid_out in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        for found, rows in zip(slopes(function, laid_out, seed=2.0), zip(*parts, strict=True), strict=True):
            np.testing.assert_array_equal(found, np.stack(rows))


@pytest.mark.parametrize("name", ["gelu", "gelu by tanh", "silu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_slope_from_the_result_is_that_from_x(name, dtype):
    x = np.linspace(-40, 40, 4001).astype(dtype)
    x[:6] = [0, -0.0, 1e-42, -1e-42, 1e-30, -3e-38]
    function = IN_BLOCKS[name]
    _, expected = slopes(function, np.append(x, dtype(-INF)))  # with which all goes the general path
    # The general path takes 1 - s from its closed form. Here it is off by up to two roundings of 1, and is multiplied
    # by the slope of the argument times x, which is 42 at x = 7, where s is still below 1.
    np.testing.assert_allclose(slopes(function, x)[1], expected[:-1], rtol=0, atol=2 * 42 * np.finfo(dtype).eps)


def test_relu_lets_no_nan_through_where_it_is_0():
    y, dy = slopes(F.relu, np.array([-1.0, 0.0, 2.0, np.nan]), seed=INF)
    np.testing.assert_array_equal(y, [0, 0, 2, np.nan])
    np.testing.assert_array_equal(dy, [0, 0, INF, INF])
    assert F.relu(np.array([-2, 3])).dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(BLOCK // 4, 3), (BLOCK // 2 + 5,)])
def test_relu_of_a_large_array_is_that_of_its_parts(shape, order, dtype):
    x = np.arange(-(np.prod(shape) // 2), np.prod(shape) - np.prod(shape) // 2).reshape(shape)
    x = np.asarray((x * 7 % 2003 - 1001), dtype, order=order)
    if dtype is not np.int64:
        x[::1009] = np.nan
    y = F.relu(x)
    assert y.dtype == dtype
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(y, np.where(x < 0, 0, x))


@pytest.mark.parametrize(
    ("function", "also"),
    [(F.relu, []), (F.leaky_relu, []), (F.elu, [True]), (F.sigmoid, [True]), (F.tanh, [True])],
)
def test_the_result_is_kept_and_the_input_only_where_a_result_that_is_rounded_to_a_bound_has_lost_it(function, also):
    x = tensor(np.ones(1000, np.float32))
    with GradManager().attach(x) as gm:
        y = function(x)
        parts = [part for field in gm._tape.entries[-1] for part in (field if isinstance(field, tuple) else (field,))]
        kept = [getattr(part, "_array", part) for part in parts if getattr(part, "size", 0) == 1000]
        assert [a is y._array for a in kept if a is not x._array] == [True]
        assert [a is x._array for a in kept if a is not y._array] == also


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "function",
    [
        *(F.relu, F.leaky_relu, F.elu, F.sigmoid, F.logsigmoid, F.tanh, F.silu, F.softplus, F.gelu),
        *(lambda x: F.gelu(x, approximate="tanh"), lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, 0)),
    ],
)
def test_dtypes_stay_and_lists_and_arrays_are_accepted(function, dtype):
    y, dy = slopes(function, POINTS.astype(dtype))
    assert (y.dtype, dy.dtype) == (dtype, dtype)
    plain = function(POINTS.astype(dtype))
    assert type(plain) is np.ndarray
    np.testing.assert_array_equal(plain, y)
    np.testing.assert_allclose(function(POINTS.tolist()), function(POINTS))


def test_softmax_of_halves_sums_in_singles():
    x = np.zeros(100_000, np.float16)  # whose sum of exponentials float16 cannot hold
    np.testing.assert_allclose(F.softmax(x, 0).astype(float), 1e-5, rtol=1e-2)
    np.testing.assert_allclose(F.log_softmax(x, 0).astype(float), -np.log(1e5), rtol=1e-3)
    y, _ = slopes(lambda t: F.softmax(t, -1), np.array([60000, -60000], np.float16))
    np.testing.assert_array_equal(y, [1, 0])


def test_softmax_of_infinities():
    x = np.array([[-INF, 1.0, 1.0], [-INF, -INF, -INF], [INF, 0.0, 0.0]])
    y, dy = slopes(lambda t: F.softmax(t, 1), x)
    np.testing.assert_array_equal(y[0], [0, 0.5, 0.5])
    np.testing.assert_array_equal(dy[0], 0)
    assert np.isnan(y[1:]).all()
    y, _ = slopes(lambda t: F.log_softmax(t, 1), x)
    np.testing.assert_array_equal(y[0], [-INF, -np.log(2), -np.log(2)])
    assert np.isnan(y[1:]).all()


@pytest.mark.parametrize("columns", [1, 65, 700])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_softmax_of_blocks_of_rows(function, dtype, columns):
    """With numbers whose exponentials can be taken as they are, and with others; of any number of threads."""
    rng = np.random.default_rng(0)
    rows = 5 * BLOCK // (np.dtype(dtype).itemsize * columns) // 2 + 3
    x, g = (rng.normal(size=(2, rows, columns)).astype(dtype) for _ in range(2))
    for change in (lambda x: x, lambda x: np.where(rng.random(x.shape) < 0.1, -20, x) * 30, lambda x: x - 200):
        x = change(x).astype(dtype)
        if columns > 1:
            x[1, 5, 3] = -INF
        t, found = tensor(x), []
        for threads in (1, 3):
            before = gradmgr.get_num_threads()
            gradmgr.set_num_threads(threads)
            with GradManager().attach(t) as gm:
                y = function(t, -1)
                gm.backward(y, g)
            gradmgr.set_num_threads(before)
            found.append((y.numpy(), t.grad.numpy().copy()))
            t.grad = None
        wide = x.astype(np.longdouble)
        logs = wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)
        share = np.exp(logs)
        slope = g - share * g.sum(-1, keepdims=True)
        if function is F.softmax:
            slope = share * (g - (share * g).sum(-1, keepdims=True))
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(found[0][0], share if function is F.softmax else logs, rtol=64 * eps, atol=4 * eps)
        np.testing.assert_allclose(found[0][1], slope, rtol=0, atol=256 * eps)
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_log_softmax_keeps_what_is_small():
    x = np.zeros((2000, 3), np.float32)
    x[:, 0] = 30.0
    x[:, 1:] = 20.0
    np.testing.assert_allclose(F.log_softmax(x, -1)[:, 0], -np.log1p(2 * np.exp(-10.0)), rtol=2e-3)


def test_softmax_casts_first():
    y = F.softmax(np.arange(3), 0, dtype=np.float32)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, [0.09003057, 0.24472848, 0.66524094], rtol=1e-6)
    half = tensor(np.zeros(4, np.float16))
    assert F.log_softmax(half, 0, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_softmax_says_what_it_needs(function):
    with pytest.raises(TypeError, match="axis along which to normalise; pass dim=-1"):
        function(np.zeros(3))
    with pytest.raises(errors.DtypeError, match="int64; pass dtype="):
        function(np.arange(3), 0)
    with pytest.raises(np.exceptions.AxisError):
        function(np.zeros(3), 1)
    with pytest.raises(TypeError, match=r"dim must be an integer; found 0\.5"):
        function(np.zeros(3), 0.5)


def test_what_is_refused():
    with pytest.raises(ValueError, match="approximate must be one of 'none' 'tanh'; found 'erf'"):
        F.gelu(np.zeros(3), approximate="erf")
    for function in (F.gelu, F.relu, F.silu, F.sigmoid):
        with pytest.raises(errors.DtypeError, match="real floating-point numbers; found input of dtype complex128"):
            function(np.zeros(3, complex))
    with pytest.raises(errors.DtypeError, match=r"gelu .* int64"):
        F.gelu(np.arange(3))
    with pytest.raises(ValueError, match="beta must not be 0"):
        F.softplus(np.zeros(3), beta=0)
    with pytest.raises(TypeError, match="negative_slope must be a number; found 'a'"):
        F.leaky_relu(np.zeros(3), "a")


def test_a_nan_is_traced_to_the_op_and_its_line():
    x = tensor([[1.0, INF], [0.0, 1.0]])
    gm = GradManager().attach(x)
    with gradmgr.detect_anomaly(), gm:
        y = F.softmax(x, 1)
        with pytest.raises(errors.AnomalyError, match=r"'softmax' is NaN .*test_activation\.py:\d+"):
            gm.backward(y, np.ones((2, 2)))
    assert x.grad is None


def test_gelu_needs_no_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)  # importing it raises
    y, dy = slopes(F.gelu, POINTS)
    np.testing.assert_allclose(y, KNOWN["gelu"][1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(dy, KNOWN["gelu"][2], rtol=0, atol=1e-12)
