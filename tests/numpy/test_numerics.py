"""Corners, conventions and dtypes: what the derivative is where a textbook would say "undefined"."""

import itertools
import operator

import ml_dtypes
import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, special, tensor, vmap
from gradmgr._transforms.gradcheck import jvp

INF, NAN = np.inf, np.nan


def reverse(function, *points, dy=None):
    """The gradients of sum(function(*points)), or of <dy, function>."""
    tensors = [tensor(p) for p in points]
    gm = GradManager().attach(tensors)
    with gm, np.errstate(all="ignore"):
        y = function(*tensors)
        gm.backward(y, np.ones(y.shape, y.dtype) if dy is None else dy)
    return [np.zeros(t.shape, t.dtype) if t.grad is None else t.grad.numpy() for t in tensors]


def forward(function, *points):
    """For points without axes: the derivative of the sum of the result in each of them, by forward mode."""
    found = []
    for k in range(len(points)):
        with np.errstate(all="ignore"):
            (tangent,) = jvp(function, [tensor(p) for p in points], [k], [np.ones(())])
            found.append(tangent.numpy().sum())
    return found


def second(function, x, direction):
    """The second derivative of sum(function) applied to a direction: outer entered first."""
    x = tensor(x)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner, np.errstate(all="ignore"):
        y = function(x)
        inner.backward(y, np.ones(y.shape))
        g, x.grad = x.grad, None
        try:
            outer.backward(g, direction)
        except errors.NotRecordedError:  # a gradient that does not depend on x at all
            return np.zeros(x.shape)
    return x.grad.numpy()


# ---------------------------------------------------------------- corners of elementwise functions

CORNERS = [
    # function, point, derivative in each argument
    (gnp.maximum, (1.0, 1.0), (0.5, 0.5)),
    (gnp.minimum, (1.0, 1.0), (0.5, 0.5)),
    (gnp.fmax, (1.0, 1.0), (0.5, 0.5)),
    (gnp.fmin, (1.0, 1.0), (0.5, 0.5)),
    (gnp.maximum, (2.0, 1.0), (1, 0)),
    (gnp.minimum, (2.0, 1.0), (0, 1)),
    (gnp.maximum, (INF, INF), (0.5, 0.5)),
    (gnp.fmax, (NAN, 1.0), (0, 1)),
    (gnp.fmin, (1.0, NAN), (1, 0)),
    (gnp.absolute, (0.0,), (0,)),
    (gnp.absolute, (-0.0,), (0,)),
    (gnp.absolute, (-2.0,), (-1,)),
    (gnp.fabs, (0.0,), (0,)),
    (gnp.sign, (0.0,), (0,)),
    (gnp.sign, (-3.0,), (0,)),
    (gnp.hypot, (0.0, 0.0), (0, 0)),
    (gnp.hypot, (0.0, 2.0), (0, 1)),
    (gnp.hypot, (3e200, 4e200), (0.6, 0.8)),
    (gnp.arctan2, (0.0, 0.0), (0, 0)),
    (gnp.arctan2, (0.0, 2.0), (0.5, 0)),
    (gnp.clip, (1.0, 1.0, 2.0), (1, 0, 0)),
    (gnp.clip, (2.0, 1.0, 2.0), (1, 0, 0)),
    (gnp.clip, (1.5, 1.0, 2.0), (1, 0, 0)),
    (gnp.clip, (0.5, 1.0, 2.0), (0, 1, 0)),
    (gnp.clip, (2.5, 1.0, 2.0), (0, 0, 1)),
    (gnp.clip, (1.0, 1.0, 1.0), (1, 0, 0)),
    (gnp.clip, (0.0, 3.0, 2.0), (0, 0, 1)),
    (lambda x: gnp.clip(x, 1.0, 2.0), (1.0,), (1,)),
    (lambda x: gnp.clip(x, None, 2.0), (2.0,), (1,)),
    (lambda x: gnp.clip(x, 1.0, None), (0.5,), (0,)),
    (lambda x: gnp.clip(x, min=1.0), (1.0,), (1,)),
    (lambda x: x.clip(max=1.0), (2.0,), (0,)),
    (gnp.sqrt, (0.0,), (INF,)),
    (gnp.cbrt, (0.0,), (INF,)),
    (gnp.log, (0.0,), (INF,)),
    (gnp.log2, (0.0,), (INF,)),
    (gnp.log10, (0.0,), (INF,)),
    (gnp.log1p, (-1.0,), (INF,)),
    (gnp.arcsin, (1.0,), (INF,)),
    (gnp.arccos, (-1.0,), (-INF,)),
    (gnp.arccosh, (1.0,), (INF,)),
    (gnp.arctanh, (1.0,), (INF,)),
    (gnp.reciprocal, (0.0,), (-INF,)),
    (operator.truediv, (0.0, 2.0), (0.5, 0)),
    (gnp.exp, (-1000.0,), (0,)),
    (gnp.exp, (1000.0,), (INF,)),
    (gnp.exp, (-INF,), (0,)),
    (gnp.exp2, (-2000.0,), (0,)),
    (gnp.exp2, (2000.0,), (INF,)),
    (gnp.expm1, (-1000.0,), (0,)),
    (gnp.expm1, (1000.0,), (INF,)),
    (gnp.tanh, (1000.0,), (0,)),
    (gnp.tanh, (-1000.0,), (0,)),
    (gnp.tanh, (INF,), (0,)),
    (gnp.arctan, (INF,), (0,)),
    (gnp.arccosh, (1e200,), (1e-200,)),
    (gnp.log, (5e-324,), (INF,)),
    (gnp.log1p, (1e-300,), (1,)),
    (gnp.square, (0.0,), (0,)),
    (gnp.logaddexp, (-INF, 1.0), (0, 1)),
    (gnp.logaddexp, (1.0, -INF), (1, 0)),
    (gnp.logaddexp, (-INF, -INF), (0, 0)),
    (gnp.logaddexp, (100.0, 100.0), (0.5, 0.5)),
    (gnp.logaddexp, (-2000.0, 2000.0), (0, 1)),
    (gnp.logaddexp2, (-INF, 1.0), (0, 1)),
    (gnp.logaddexp2, (-INF, -INF), (0, 0)),
    (gnp.logaddexp2, (3000.0, 3000.0), (0.5, 0.5)),
    (gnp.floor, (1.0,), (0,)),
    (gnp.ceil, (1.5,), (0,)),
    (gnp.rint, (0.5,), (0,)),
    (gnp.trunc, (-1.5,), (0,)),
    (gnp.round, (2.5,), (0,)),
    (lambda x: gnp.round(x, 1), (2.55,), (0,)),
    (operator.floordiv, (5.5, 2.0), (0, 0)),
    (operator.mod, (5.5, 2.0), (1, -2)),
    (operator.mod, (-5.5, 2.0), (1, 3)),
    (operator.mod, (5.5, -2.0), (1, 3)),
    (gnp.fmod, (-5.5, 2.0), (1, 2)),
    (operator.mod, (1.0, 0.1), (1, -9)),  # 1 / 0.1 is rounded to 10, but the remainder is not 0
    (gnp.fmod, (-1.0, 0.1), (1, 9)),
    (lambda x: gnp.where(True, x, 5.0), (3.0,), (1,)),
    (lambda x, y: gnp.where(x > 0, y, x), (0.0, 2.0), (1, 0)),
    (lambda x: x - x, (INF,), (0,)),
    (lambda x: x * 0.0, (3.0,), (0,)),
]

POWERS = [
    # function of x (and p), point, derivative in each
    (lambda x: x**0, (0.0,), (0,)),
    (lambda x: x**1, (0.0,), (1,)),
    (lambda x: x**2, (0.0,), (0,)),
    (lambda x: x**0.0, (0.0,), (0,)),
    (lambda x: x**1.0, (0.0,), (1,)),
    (lambda x: x**2.0, (0.0,), (0,)),
    (lambda x: x**3, (0.0,), (0,)),
    (lambda x: x**0.5, (0.0,), (INF,)),
    (lambda x: x**1.5, (0.0,), (0,)),
    (lambda x: x**-1, (0.0,), (-INF,)),
    (lambda x: x ** np.array(0.0), (0.0,), (0,)),
    (lambda x: x ** np.array(1.0), (0.0,), (1,)),
    (lambda x: x ** np.array(2), (0.0,), (0,)),
    (lambda x: gnp.power(x, np.float64(0)), (0.0,), (0,)),
    (lambda x: x**0, (NAN,), (0,)),
    (lambda x: x**2, (-3.0,), (-6,)),
    (lambda x: x**3, (-3.0,), (27,)),
    (lambda x: x**-2, (-2.0,), (0.25,)),
    (operator.pow, (0.0, 0.0), (0, 0)),
    (operator.pow, (0.0, 1.0), (1, 0)),
    (operator.pow, (0.0, 2.0), (0, 0)),
    (operator.pow, (0.0, 0.5), (INF, 0)),
    (operator.pow, (0.0, -1.0), (-INF, -INF)),
    (operator.pow, (1.0, 5.0), (5, 0)),
    (operator.pow, (2.0, 3.0), (12, 8 * np.log(2))),
    (operator.pow, (2.0, 0.0), (0, np.log(2))),
    (lambda p: 0.0**p, (0.0,), (0,)),
    (lambda p: 0**p, (2.0,), (0,)),
    (lambda p: 0.0**p, (-1.0,), (-INF,)),
    (lambda p: 2**p, (3.0,), (8 * np.log(2),)),
]


@pytest.mark.parametrize(("function", "point", "expected"), CORNERS + POWERS)
def test_derivative_at_a_corner(function, point, expected):
    np.testing.assert_allclose(reverse(function, *point), expected, rtol=1e-13)
    np.testing.assert_allclose(forward(function, *point), expected, rtol=1e-13)


@pytest.mark.parametrize(("function", "point", "expected"), CORNERS + POWERS)
def test_derivative_at_a_corner_is_the_same_in_an_array(function, point, expected):
    """Together with ordinary numbers, and with each argument tracked alone."""
    ordinary = 1.75 if function is gnp.arccosh else 0.75
    arrays = [np.array([ordinary, p, ordinary]) for p in point]
    for k, a in enumerate(arrays):
        others = [tensor(b) for b in arrays]
        (g,) = reverse(lambda x, k=k, others=others: function(*others[:k], x, *others[k + 1 :]), a)
        np.testing.assert_allclose(g[1], expected[k], rtol=1e-13)
        assert np.isfinite(g[[0, 2]]).all()


def test_the_derivative_in_the_exponent_where_some_bases_are_zero():
    """Of 0**p and 2**p in one array: the corner concerns one element alone."""
    (g,) = reverse(lambda p: np.array([0.0, 2.0]) ** p, np.array(1.0))
    np.testing.assert_allclose(g, 2 * np.log(2), rtol=1e-15)


LARGE_AND_SMALL = {"float16": (600, 1e-3), "float32": (1e25, 1e-25), "float64": (1e200, 1e-200)}
SCALES = {
    # function, derivative in each argument where all arguments are s
    "arctan2": (gnp.arctan2, lambda s: (0.5 / s, -0.5 / s)),
    "hypot": (gnp.hypot, lambda s: (0.5**0.5, 0.5**0.5)),
    "divide": (operator.truediv, lambda s: (1 / s, -1 / s)),
    "log": (gnp.log, lambda s: (1 / s,)),
    "log2": (gnp.log2, lambda s: (1 / s / np.log(2),)),
    "log10": (gnp.log10, lambda s: (1 / s / np.log(10),)),
    "sqrt": (gnp.sqrt, lambda s: (0.5 / s**0.5,)),
    "cbrt": (gnp.cbrt, lambda s: (1 / (3 * np.cbrt(s) ** 2),)),
    "arctan": (gnp.arctan, lambda s: (1 / (1 + s**2) if s < 1e100 else 0,)),
    "arcsinh": (gnp.arcsinh, lambda s: (1 / (1 + s**2) ** 0.5 if s < 1e100 else 1 / s,)),
    "absolute": (gnp.absolute, lambda s: (1,)),
    "log1p": (gnp.log1p, lambda s: (1 / (1 + s),)),
    "tanh": (gnp.tanh, lambda s: (0.0 if s > 1 else 1 - s**2,)),
}


@pytest.mark.parametrize("dtype", LARGE_AND_SMALL)
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("size", [0, 1], ids=["large", "small"])
def test_no_intermediate_leaves_the_range_where_the_derivative_does_not(name, dtype, size):
    """At numbers whose squares overflow, or are lost below the smallest."""
    function, slopes = SCALES[name]
    s = np.array(LARGE_AND_SMALL[dtype][size], dtype)
    expected = slopes(float(s))
    info = np.finfo(dtype)
    for g, slope in zip(reverse(function, *[s] * len(expected)), expected, strict=True):
        np.testing.assert_allclose(g, slope, rtol=8 * info.eps, atol=float(info.smallest_subnormal))


@pytest.mark.parametrize(("dtype", "s"), [("complex64", 1e25), ("complex64", 1e-25), ("complex128", 1e-200)])
def test_parts_of_large_and_small_complex_numbers(dtype, s):
    z = np.array(s * (1 + 1j), dtype)
    rtol = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(reverse(gnp.angle, z)[0], (-1 + 1j) / (2 * s), rtol=rtol)
    np.testing.assert_allclose(reverse(gnp.abs, z)[0], (1 + 1j) / 2**0.5, rtol=rtol)


def test_log10_of_a_large_half():
    (g,) = reverse(gnp.log10, np.array(40000, "float16"))
    np.testing.assert_allclose(g, 1 / 40000 / np.log(10), rtol=0.01)


@pytest.mark.parametrize("axis", [None, 0])
def test_averages_of_more_halves_than_a_half_can_count(axis):
    n = 100_000
    x = np.linspace(0, 1, n).astype("float16").reshape(n, 1)
    (g,) = reverse(lambda t: gnp.mean(t, axis=axis), x)
    np.testing.assert_allclose(g, np.full((n, 1), 1 / n), rtol=0.01)
    (g,) = reverse(lambda t: gnp.std(t, axis=axis), x)
    np.testing.assert_allclose(g[[0, -1], 0], np.array([-0.5, 0.5]) / n / np.std(x.astype(float)), rtol=0.01)


@pytest.mark.parametrize("function", [gnp.sqrt, gnp.log])
def test_an_infinite_derivative_is_numpys_warning_and_no_exception(function):
    x = tensor([0.0, 4.0])
    gm = GradManager().attach(x)
    with gm, np.errstate(divide="warn"), pytest.warns(RuntimeWarning, match="divide by zero"):
        gm.backward(function(x), np.ones(2))
    assert x.grad.numpy()[0] == INF
    assert x.grad.numpy()[1] == 0.25


SECOND = [
    (lambda x: x**0, 0.0, 0),
    (lambda x: x**1, 0.0, 0),
    (lambda x: x**2, 0.0, 2),
    (lambda x: x**2.0, 0.0, 2),
    (lambda x: x**3, 0.0, 0),
    (lambda x: x**3, -2.0, -12),
    (lambda x: x**2.5, 0.0, 0),
    (lambda x: x**1.5, 0.0, INF),
    (lambda x: x ** np.array(2.0), 0.0, 2),
    (lambda x: x ** np.array(1.0), 0.0, 0),
    (gnp.square, 0.0, 2),
    (gnp.absolute, 0.0, 0),
    (lambda x: gnp.absolute(x) ** 2, 0.0, 0),
    (lambda x: gnp.maximum(x, 1.0), 1.0, 0),
    (lambda x: gnp.maximum(x, x) ** 2, 3.0, 2),
    (lambda x: gnp.clip(x, 0.0, 1.0) ** 2, 1.0, 2),
    (gnp.exp, -1000.0, 0),
    (gnp.tanh, 1000.0, 0),
    (gnp.floor, 1.5, 0),
    (gnp.sign, 0.0, 0),
    (lambda x: gnp.logaddexp(x, -INF), 1.0, 0),
    (lambda x: gnp.logaddexp(x, x), 1.0, 0),
    (lambda x: gnp.logaddexp(x, 1.0), 1.0, 0.25),
    (lambda x: x * gnp.floor(x), 2.5, 0),
    (lambda x: gnp.where(x > 0, x**3, 0.0), 2.0, 12),
    (lambda x: x / x, 2.0, 0),
]


@pytest.mark.parametrize(("function", "point", "expected"), SECOND)
def test_second_derivative_at_a_corner(function, point, expected):
    np.testing.assert_allclose(second(function, point, np.ones(())), expected, atol=1e-15)


def test_abs_squared_of_zero_is_a_kink_of_abs():
    """|x|^2 computed by abs has slope 0 and, its kink being flat, 0 curvature; x**2 has 2."""
    assert second(lambda x: gnp.absolute(x) ** 2, 0.0, np.ones(())) == 0
    assert second(lambda x: x * x, 0.0, np.ones(())) == 2


# ---------------------------------------------------------------- values not chosen


def test_where_with_nan_in_the_branch_not_chosen_is_nan():
    """0 times inf: as documented, and as every library that computes both branches has it."""
    x = np.array([0.0, 2.0])
    (g,) = reverse(lambda t: gnp.where(t > 0, gnp.log(t), 0.0), x)
    np.testing.assert_array_equal(g, [NAN, 0.5])


@pytest.mark.parametrize("namespace", [np, gnp])
def test_a_function_with_where_and_out_has_exact_zeros_elsewhere(namespace):
    x0 = np.array([0.0, 2.0, -1.0])
    x = tensor(x0)
    gm = GradManager().attach(x)
    with gm, np.errstate(all="raise"):
        y = namespace.log(x, where=x0 > 0, out=gnp.zeros(3))
        gm.backward(y, np.ones(3))
    np.testing.assert_array_equal(y.numpy(), [0.0, np.log(2.0), 0.0])
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.5, 0.0])


def test_where_and_out_in_two_arguments_and_second_order():
    x0, y0 = np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 4.0])
    mask = y0 != 0

    def ratio(x, y):
        return gnp.divide(x, y, where=mask, out=gnp.full(3, 7.0))

    gx, gy = reverse(ratio, x0, y0)
    np.testing.assert_array_equal(gx, [0.5, 0.0, 0.25])
    np.testing.assert_array_equal(gy, [-0.25, 0.0, -3 / 16])
    with np.errstate(all="raise"):
        h = second(lambda y: gnp.divide(tensor(x0), y, where=mask, out=gnp.zeros(3)), y0, np.ones(3))
    np.testing.assert_allclose(h, [2 / 8, 0, 6 / 64])


def test_the_mask_may_be_a_tensor_and_broadcast():
    x0 = np.array([[4.0, -1.0], [9.0, 0.0]])
    (g,) = reverse(lambda x: gnp.sqrt(x, where=tensor([True, False]), out=gnp.zeros((2, 2))), x0)
    np.testing.assert_allclose(g, [[0.25, 0], [1 / 6, 0]])


# ---------------------------------------------------------------- extremes


@pytest.mark.parametrize("function", [gnp.max, gnp.amax, gnp.min, gnp.amin])
def test_ties_share_evenly(function):
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]) * (1 if function in (gnp.max, gnp.amax) else -1)
    (g,) = reverse(lambda t: function(t, axis=1), x)
    np.testing.assert_array_equal(g, [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    (g,) = reverse(lambda t: function(t, axis=0), x)
    np.testing.assert_array_equal(g, [[0, 1, 1], [1, 0, 0]])
    (g,) = reverse(function, x)
    np.testing.assert_array_equal(g, [[0, 0.5, 0.5], [0, 0, 0]])
    (g,) = reverse(lambda t: function(t, axis=(0, 1), keepdims=True), np.ones((2, 2)))
    np.testing.assert_array_equal(g, np.full((2, 2), 0.25))


def test_an_infinite_extreme():
    (g,) = reverse(gnp.max, np.array([INF, 1.0]))
    np.testing.assert_array_equal(g, [1, 0])
    (g,) = reverse(gnp.max, np.array([-INF, -INF]))
    np.testing.assert_array_equal(g, [0.5, 0.5])


@pytest.mark.parametrize("function", [gnp.argmax, gnp.argmin, gnp.argsort, gnp.count_nonzero, gnp.isfinite])
def test_integers_and_bools_flow_as_constants(function):
    x0 = np.array([3.0, 1.0, 2.0])
    x = tensor(x0)
    gm = GradManager().attach(x)
    with gm:
        k = function(x)
        np.testing.assert_array_equal(k.numpy(), function(x0))
        assert k.dtype.kind in "iub"
        gm.backward((x * k).sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(k.numpy(), (3,)))


# ---------------------------------------------------------------- products with zeros


def products_of_others(x):
    return np.array([np.prod(np.delete(x, k)) for k in range(x.size)])


@pytest.mark.parametrize("x", [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 4.0, 3.0], [0.0, 0.0, 0.0], [0.0], [5.0], []])
def test_prod_is_exact_where_factors_are_zero(x):
    x = np.array(x)
    (g,) = reverse(gnp.prod, x)
    np.testing.assert_array_equal(g, products_of_others(x))
    v = np.arange(1.0, x.size + 1)
    pairs = [[0 if i == j else np.prod(np.delete(x, [i, j])) for j in range(x.size)] for i in range(x.size)]
    np.testing.assert_array_equal(second(gnp.prod, x, v), np.array(pairs).reshape(x.size, x.size) @ v)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (2, 1), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_prod_with_zeros_along_axes(axis, keepdims):
    x = np.random.default_rng(0).integers(-1, 3, (2, 3, 2)).astype(float)
    assert (x == 0).any()
    assert gradcheck(lambda t: gnp.prod(t, axis=axis, keepdims=keepdims), tensor(x), order=2)


def test_cumprod_of_the_documents():
    (g,) = reverse(gnp.cumprod, np.array([2.0, 0.0, 3.0, 4.0]))
    np.testing.assert_array_equal(g, [1, 32, 0, 0])


@pytest.mark.parametrize("x", [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [0.0, 5.0, 0.0], [2.0, 4.0, 3.0]])
def test_cumprod_is_exact_where_factors_are_zero_second_order_too(x):
    a, b, c = x
    (g,) = reverse(gnp.cumprod, np.array(x))  # of a + ab + abc
    np.testing.assert_allclose(g, [1 + b + b * c, a + a * c, a * b], rtol=1e-15)
    h = np.array([[0, 1 + c, b], [1 + c, 0, a], [b, a, 0]])
    v = np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(second(gnp.cumprod, x, v), h @ v, rtol=1e-14)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_cumprod_with_zeros_along_axes(axis):
    x = np.random.default_rng(0).integers(-1, 3, (3, 4)).astype(float)
    assert (x == 0).any()
    assert gradcheck(lambda t: gnp.cumprod(t, axis=axis), tensor(x), order=2)


# ---------------------------------------------------------------- logsumexp


@pytest.mark.parametrize(
    ("x", "value", "expected"),
    [
        ([-INF, 0.0, 0.0], np.log(2.0), [0, 0.5, 0.5]),
        ([-INF, 5.0], 5.0, [0, 1]),
        ([-INF, -INF], -INF, [0, 0]),
        ([1000.0, 1000.0], 1000 + np.log(2.0), [0.5, 0.5]),
        ([-1000.0, -1000.0], -1000 + np.log(2.0), [0.5, 0.5]),
        ([0.0, 2000.0], 2000.0, [0, 1]),
        ([7.0], 7.0, [1]),
        ([-INF], -INF, [0]),
    ],
)
def test_logsumexp(x, value, expected):
    found = special.logsumexp(tensor(x))
    np.testing.assert_allclose(found.numpy(), value, rtol=1e-15)
    (g,) = reverse(special.logsumexp, np.array(x))
    np.testing.assert_allclose(g, expected, rtol=1e-16 * max(100, 2 * abs(value) if np.isfinite(value) else 0))
    p, v = np.array(expected, float), np.arange(1.0, len(x) + 1)
    np.testing.assert_allclose(second(special.logsumexp, x, v), p * v - p * (p @ v), atol=1e-12)


def test_logsumexp_of_masked_rows():
    x = np.array([[0.0, -INF, 0.0], [-INF, -INF, -INF], [1.0, 2.0, 3.0]])
    (g,) = reverse(lambda t: special.logsumexp(t, axis=1), x)
    e = np.exp([1.0, 2.0, 3.0])
    np.testing.assert_allclose(g, [[0.5, 0, 0.5], [0, 0, 0], e / e.sum()], rtol=1e-14)
    assert not np.isnan(second(lambda t: special.logsumexp(t, axis=1), x, np.ones((3, 3)))).any()


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp_along_axes(axis, keepdims):
    scipy_special = pytest.importorskip("scipy.special", reason="SciPy, which comes with scikit-learn, is the measure")
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    found = special.logsumexp(tensor(x), axis, keepdims=keepdims)
    expected = scipy_special.logsumexp(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)
    assert gradcheck(lambda t: special.logsumexp(t, axis=axis, keepdims=keepdims), tensor(x), order=2, fast_mode=True)


def test_logsumexp_of_integers():
    np.testing.assert_allclose(special.logsumexp(tensor([1, 2])).numpy(), np.logaddexp(1, 2), strict=True)


# ---------------------------------------------------------------- reductions by their keywords

MASK = np.array([[True, False, True], [True, True, False]])

REDUCTIONS = {
    "sum": [{}, {"axis": 0}, {"axis": -1}, {"axis": (0, 1)}, {"axis": (-1, 0)}, {"axis": ()}, {"keepdims": True}],
    "mean": [{}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"axis": (0, -1)}, {"where": MASK}],
    "prod": [{}, {"axis": 1}, {"axis": (1, 0), "keepdims": True}, {"initial": 2.0}, {"where": MASK, "axis": 0}],
    "max": [{}, {"axis": 0}, {"axis": (0, -1)}, {"initial": 0.9}, {"where": MASK, "initial": -9.0, "axis": 1}],
    "min": [{}, {"axis": -1, "keepdims": True}, {"initial": 0.2}, {"where": MASK, "initial": 9.0, "keepdims": True}],
    "var": [{}, {"axis": 1}, {"ddof": 1}, {"correction": 1, "axis": 0}, {"axis": (0, 1), "keepdims": True}],
    "std": [{}, {"axis": 1, "ddof": 1}, {"keepdims": True}, {"where": MASK, "axis": 1, "keepdims": True}],
    "cumsum": [{}, {"axis": 0}, {"axis": -1}],
    "cumprod": [{}, {"axis": 1}],
    "trace": [{}, {"offset": 1}, {"offset": -1}],
}
REDUCTIONS["sum"] += [{"where": MASK}, {"where": MASK, "axis": 1, "initial": 3.0}, {"initial": 2.0, "axis": 0}]
REDUCTIONS["var"] += [{"where": MASK}, {"where": MASK, "axis": 1, "ddof": 0.5}, {"mean": np.array(0.7)}]
REDUCTIONS["mean"] += [{"where": MASK, "axis": 1, "keepdims": True}, {"where": np.array([True, False, True])}]


@pytest.mark.parametrize(
    ("name", "keywords"), [(name, keywords) for name, many in REDUCTIONS.items() for keywords in many]
)
def test_reductions_by_their_keywords(name, keywords):
    x = np.random.default_rng(0).uniform(0.3, 1.7, (2, 3))
    expected = getattr(np, name)(x, **keywords)
    found = getattr(gnp, name)(tensor(x), **keywords)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, strict=True)
    if "axis" not in keywords or name != "trace":
        method = getattr(tensor(x), name)(**keywords)
        np.testing.assert_allclose(method.numpy(), expected, rtol=1e-14, strict=True)
    assert gradcheck(lambda t: getattr(gnp, name)(t, **keywords), tensor(x), order=2)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "var", "std", "cumsum", "cumprod"])
@pytest.mark.parametrize(("origin", "dtype"), [("float32", "float64"), ("float64", "float32"), ("int64", "float32")])
def test_dtype_of_a_reduction(name, origin, dtype):
    x0 = np.array([1, 2, 3], origin)
    x = tensor(x0)
    found = getattr(gnp, name)(x, dtype=dtype)
    np.testing.assert_allclose(found.numpy(), getattr(np, name)(x0, dtype=dtype), rtol=1e-6, strict=True)
    if origin != "int64":
        (g,) = reverse(lambda t: getattr(gnp, name)(t, dtype=dtype), x0)
        assert g.dtype == origin


def test_tensors_in_initial_and_where_and_mean():
    x, start = tensor([1.0, 2.0]), tensor(5.0)
    gm = GradManager().attach([x, start])
    with gm:
        y = gnp.sum(x, initial=start, where=tensor([True, False])) + gnp.max(x, initial=start)
        gm.backward(y)
    assert y.item() == 11.0
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, 0.0])
    assert start.grad.item() == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda x: gnp.sum(x, axes=0),
        lambda x: gnp.sum(x, correction=1),
        lambda x: gnp.max(x, dtype="float32"),
        lambda x: gnp.mean(x, initial=1.0),
        lambda x: gnp.var(x, nonsense=1),
        lambda x: gnp.cumsum(x, keepdims=True),
        lambda x: gnp.sin(x, axis=0),
        lambda x: gnp.add(x, x, nonsense=True),
        lambda x: gnp.reshape(x, (2,), nonsense=True),
        lambda x: gnp.concatenate([x, x], nonsense=True),
        lambda x: gnp.matmul(x, x, nonsense=True),
        lambda x: gnp.clip(x, 0, 1, nonsense=True),
        lambda x: gnp.einsum("i->", x, nonsense=True),
        lambda x: np.sum(x, nonsense=True),
        lambda x: np.sin(x, nonsense=True),
        lambda x: x.sum(nonsense=True),
        lambda x: special.logsumexp(x, nonsense=True),
    ],
)
def test_an_unknown_keyword_raises(call):
    with pytest.raises(TypeError, match="argument"):
        call(tensor([1.0, 2.0]))


def test_misuse_of_reductions_raises_as_numpy():
    x = tensor([[1.0, 2.0]])
    for call in (
        lambda: gnp.sum(x, axis=2),
        lambda: gnp.max(x, axis=(0, -3)),
        lambda: gnp.cumsum(x, axis=2),
        lambda: special.logsumexp(x, axis=5),
    ):
        with pytest.raises(np.exceptions.AxisError):
            call()
    with pytest.raises(ValueError, match=r"repeated axis|duplicate"):
        gnp.sum(x, axis=(0, 0))
    with pytest.raises(ValueError, match="initial"):
        gnp.max(x, where=MASK[:1, :2])
    with pytest.raises(ValueError, match="ddof and correction"):
        gnp.var(x, ddof=1, correction=1)


@pytest.mark.parametrize("function", [gnp.std, gnp.var])
def test_std_and_var_of_equal_values_have_derivative_zero(function):
    (g,) = reverse(function, np.full(3, 2.0))
    np.testing.assert_array_equal(g, [0, 0, 0])


def test_var_of_one_value_with_ddof_one_is_nan_as_numpys():
    x = tensor([2.0])
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        y = gnp.var(x, ddof=1)
    assert np.isnan(y.item())


# ---------------------------------------------------------------- indexing


def test_getitem_and_setitem_with_one_element_named_twice():
    (g,) = reverse(lambda x: x[[0, 0, 1]], np.array([5.0, 6.0]), dy=np.array([1.0, 10.0, 100.0]))
    np.testing.assert_array_equal(g, [11.0, 100.0])

    def write(x, v):
        z = x * 1.0
        z[[0, 0]] = v
        return z

    gx, gv = reverse(write, np.array([5.0, 6.0]), np.array([2.0, 3.0]))
    np.testing.assert_array_equal(gx, [0.0, 1.0])
    np.testing.assert_array_equal(gv, [0.0, 1.0])


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_take_with_repeated_positions(mode):
    x = np.array([1.0, 2.0, 3.0])
    places = [0, 2, 0] if mode == "raise" else [0, 4, -7]
    found = gnp.take(tensor(x), places, mode=mode)
    np.testing.assert_array_equal(found.numpy(), np.take(x, places, mode=mode))
    assert gradcheck(lambda t: gnp.take(t, places, mode=mode) ** 2, tensor(x), order=2)


# ---------------------------------------------------------------- einsum

EINSUMS = [
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->j", (2, 2, 3)),
    ("iij->ij", (2, 2, 3)),
    ("iii->i", (2, 2, 2)),
    ("ij", (2, 3)),
    ("ji", (2, 3)),
    ("ba", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("i->", (3,)),
    ("->", ()),
    ("...->...", (2, 3)),
    ("...i->i...", (2, 3, 4)),
    ("i...->...", (2, 3)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    (" ij , jk -> ik ", (2, 3), (3, 4)),
    ("i,i", (3,), (3,)),
    ("i,j", (2,), (3,)),
    ("i,j->", (2,), (3,)),
    ("i,j->i", (2,), (3,)),
    (",i->i", (), (3,)),
    (",", (), ()),
    ("ii,i->i", (3, 3), (3,)),
    ("ii,jj->ij", (2, 2), (3, 3)),
    ("ij,ij->ij", (2, 1), (2, 3)),
    ("ij,ij->i", (1, 3), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->", (1, 1), (2, 3)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
    ("...ij,...jk", (5, 1, 2, 3), (4, 3, 2)),
    ("i...,i...", (2, 3), (2, 1)),
    ("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)),
    ("i,i,i->i", (3,), (3,), (3,)),
    ("ab,b,ab->a", (2, 3), (3,), (2, 3)),
    ("Ij,jA->IA", (2, 3), (3, 2)),
    ("ij,jk->ik", (0, 3), (3, 2)),
    ("ij,jk->ik", (2, 0), (0, 2)),
]


@pytest.mark.parametrize("form", EINSUMS)
@pytest.mark.parametrize("optimize", [False, True])
def test_einsum(form, optimize):
    subscripts, *shapes = form
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, shape) for shape in shapes]
    found = gnp.einsum(subscripts, *[tensor(a) for a in arrays], optimize=optimize)
    np.testing.assert_allclose(found.numpy(), np.einsum(subscripts, *arrays, optimize=optimize), rtol=1e-13)
    assert gradcheck(lambda *ts: gnp.einsum(subscripts, *ts, optimize=optimize), [tensor(a) for a in arrays], order=2)


CHAINS = [
    ("bi,ioj,bj->bo", (2, 3), (3, 4, 2), (2, 2)),
    ("ti,tj,tk->ijk", (2, 3), (2, 2), (2, 3)),
    ("iij,jk->k", (2, 2, 3), (3, 2)),
    ("abc,cba->b", (2, 3, 4), (4, 3, 2)),
    ("bij,bjk->bik", (1, 2, 3), (2, 3, 2)),
]


LONG = ("abcd,de,ce,be,ae->e", (2, 3, 2, 2), (2, 3), (2, 3), (3, 3), (2, 3))


@pytest.mark.parametrize(
    ("form", "has_opt_einsum"), [*[(form, False) for form in (*EINSUMS, *CHAINS, LONG)], (LONG, True)]
)
def test_einsum_by_pairs(form, has_opt_einsum, monkeypatch):
    """As for arrays with many products, which are contracted pair by pair."""
    subscripts, *shapes = form
    if has_opt_einsum:
        pytest.importorskip("opt_einsum")
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("gradmgr.ops.products._MANY_PRODUCTS", 0)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, shape) for shape in shapes]
    tensors = [tensor(a) for a in arrays]
    expected = np.einsum(subscripts, *arrays)
    np.testing.assert_allclose(gnp.einsum(subscripts, *tensors).numpy(), expected, rtol=1e-13, atol=1e-15)
    stacked = [tensor(np.stack([a, 2 * a])) for a in arrays]
    both = vmap(lambda *ts: gnp.einsum(subscripts, *ts))(*stacked)
    np.testing.assert_allclose(both.numpy()[1], expected * 2 ** len(arrays), rtol=1e-13, atol=1e-14)
    assert gradcheck(lambda *ts: gnp.einsum(subscripts, *ts), tensors, order=2)


@pytest.mark.parametrize(
    "operands",
    [
        lambda a, b: (a, [0, 1], b, [1, 2], [0, 2]),
        lambda a, b: (a, [0, 1], b, [1, 2]),
        lambda a, b: (a, [5, 1], b, [1, 3], [3, 5]),
        lambda a, b: (a, [..., 1], b, [1, 2], [..., 2]),
        lambda a, b: (b, [0, 0]),
        lambda a, b: (b, [0, 0], [0]),
        lambda a, b: (a, [1, 0]),
        lambda a, b: (a, [26, 0], b, [0, 27], [26, 27]),
    ],
)
def test_einsum_of_sublists(operands):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 3)), rng.uniform(-1, 1, (3, 3))
    found = gnp.einsum(*operands(tensor(a), tensor(b)))
    np.testing.assert_allclose(found.numpy(), np.einsum(*operands(a, b)), rtol=1e-14, strict=True)
    assert gradcheck(lambda x, y: gnp.einsum(*operands(x, y)), [tensor(a), tensor(b)], order=2)


def test_einsum_of_one_tensor_twice_and_of_complex_numbers():
    x = np.array([1.0, 2.0])
    (g,) = reverse(lambda t: gnp.einsum("i,i", t, t), x)
    np.testing.assert_array_equal(g, 2 * x)
    z = np.array([[1 + 1j, 2 - 1j], [0.5j, 3]])
    assert gradcheck(lambda t: gnp.einsum("ij,jk->ik", t, t), tensor(z), order=2)


@pytest.mark.parametrize(
    "operands",
    [("ij", 1.0), ("i,j", [1.0]), ("i->ij", [1.0]), ("ij,jk", [[1.0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])],
)
def test_einsum_misused_raises_as_numpys(operands):
    arrays = [np.array(a) for a in operands[1:]]
    try:
        expected = np.einsum(operands[0], *arrays)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011  # the texts are NumPy's own
            gnp.einsum(operands[0], *[tensor(a) for a in arrays])
    else:
        np.testing.assert_allclose(gnp.einsum(operands[0], *[tensor(a) for a in arrays]).numpy(), expected)


def test_einsum_of_sublists_sorts_by_the_numbers():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    found = gnp.einsum(tensor(a), [26, 1], tensor(b), [1, 0])
    np.testing.assert_array_equal(found.numpy(), np.einsum(a, [26, 1], b, [1, 0]))
    assert found.shape == (4, 2)
    for number in (-1, 52):
        with pytest.raises(ValueError, match="einsum: subscript"):
            gnp.einsum(tensor(a), [number, 1])


@pytest.mark.parametrize("wrapped", [tensor, np.array])
def test_einsum_by_every_keyword(wrapped):
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    x, y = wrapped(a), wrapped(b)
    z = gnp.einsum("ij,jk->ik", x, y, order="F")
    assert np.asarray(z.numpy() if isinstance(z, Tensor) else z).flags.f_contiguous
    assert gnp.einsum("ij,jk->ik", x, y, dtype=np.float32, casting="same_kind").dtype == np.float32
    assert gnp.einsum("ij,jk->ik", x, y, dtype=np.complex128).dtype == np.complex128
    with pytest.raises(TypeError):
        gnp.einsum("ij,jk->ik", x, y, dtype=np.float32)
    with pytest.raises(ValueError, match="order"):
        gnp.einsum("ij,jk->ik", x, y, order="Q")


# ---------------------------------------------------------------- shapes of every kind

ELEMENTWISE = [
    *(gnp.exp, gnp.sin, gnp.tanh, gnp.sqrt, gnp.log, gnp.absolute, gnp.square, gnp.floor, operator.neg),
    *(lambda x: x * 2, lambda x: 2 - x, lambda x: x**2, lambda x: x.clip(0, 1), lambda x: gnp.where(x > 1, x, 0.0)),
]
LAYOUTS = {
    "0-d": lambda a: a[0, 0],
    "empty": lambda a: a[:0],
    "empty inside": lambda a: a[:, :0],
    "negative strides": lambda a: a[::-1, ::-1],
    "every other": lambda a: a[::2, ::3],
    "transposed": lambda a: a.T,
    "Fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 4)),
    "new axes": lambda a: a[:, None, :, None],
    "three axes": lambda a: a.reshape(2, 2, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", ELEMENTWISE)
def test_elementwise_functions_in_every_layout(function, layout):
    base = np.linspace(0.3, 1.7, 16).reshape(4, 4)
    a = LAYOUTS[layout](base)
    shared = around(a)
    np.testing.assert_array_equal(shared.numpy(), a)
    gm = GradManager().attach(shared)
    with gm:
        y = function(shared)
        assert y.shape == a.shape
        gm.backward(y, np.ones(a.shape))
    contiguous = np.ascontiguousarray(a).reshape(a.shape)
    (g,) = reverse(function, contiguous)
    np.testing.assert_allclose(y.numpy(), function(tensor(contiguous)).numpy(), rtol=1e-15)
    np.testing.assert_allclose(shared.grad.numpy(), g, rtol=1e-15, strict=True)


def around(a):
    """A Tensor around this very array, strides and all."""
    t = tensor(0.0)
    t._array = a
    return t


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 0, 3)])
@pytest.mark.parametrize(
    "function",
    [
        gnp.sum,
        gnp.prod,
        lambda x: gnp.sum(x, axis=0),
        lambda x: gnp.sum(x, axis=-1, keepdims=True),
        lambda x: gnp.prod(x, axis=0),
        lambda x: gnp.max(x, axis=0, initial=1.0),
        lambda x: gnp.max(x, initial=1.0),
        gnp.cumsum,
        gnp.cumprod,
        lambda x: x.T,
        lambda x: x.reshape(-1),
        lambda x: x[:0],
        lambda x: x[..., None],
        lambda x: x[x > 0],
        lambda x: x[[]],
        lambda x: gnp.concatenate([x, x]),
        lambda x: gnp.stack([x, x]),
        lambda x: gnp.broadcast_to(x, (4, *x.shape)),
        lambda x: gnp.flip(x),
        lambda x: gnp.roll(x, 1),
        lambda x: gnp.tile(x, 2),
        lambda x: gnp.repeat(x, 3),
        lambda x: gnp.outer(x, x),
        lambda x: gnp.tensordot(x, x, x.ndim),
        lambda x: x @ gnp.ones(x.shape[-1]),
        lambda x: gnp.dot(gnp.ones((2, x.shape[0])), x) if x.ndim < 3 else x,
        lambda x: gnp.einsum("...i->...", x),
        lambda x: gnp.where(x > 0, x, 1.0),
        lambda x: x.astype("float32"),
    ],
)
def test_zero_size(function, shape):
    x0 = np.zeros(shape)
    x = tensor(x0)
    gm = GradManager().attach(x)
    with gm:
        y = function(x)
        gm.backward(y, np.ones(y.shape))
    assert x.grad is not None
    assert x.grad.shape == shape
    if shape:
        assert x.grad.dtype == np.float64


def test_extremes_of_nothing_raise_as_numpys():
    for function in (gnp.max, gnp.min, gnp.argmax):
        with pytest.raises(ValueError, match=r"zero-size|empty"):
            function(tensor([]))


def test_mean_of_nothing_is_nan_as_numpys():
    x = tensor([])
    gm = GradManager().attach(x)
    with gm, np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="empty"):
        y = gnp.mean(x)
    assert np.isnan(y.item())


SAME_TWICE = [
    (lambda x: x * x, lambda x: 2 * x),
    (lambda x: x + x, lambda x: 2 + 0 * x),
    (lambda x: x - x, lambda x: 0 * x),
    (lambda x: x / x, lambda x: 0 * x),
    (lambda x: x**x, lambda x: x**x * (np.log(x) + 1)),
    (lambda x: gnp.maximum(x, x), lambda x: 1 + 0 * x),
    (lambda x: gnp.minimum(x, x), lambda x: 1 + 0 * x),
    (lambda x: gnp.hypot(x, x), lambda x: np.sqrt(2.0) + 0 * x),
    (lambda x: gnp.arctan2(x, x), lambda x: 0 * x),
    (lambda x: gnp.logaddexp(x, x), lambda x: 1 + 0 * x),
    (lambda x: gnp.where(x > 1, x, x), lambda x: 1 + 0 * x),
    (lambda x: gnp.clip(x, x, x), lambda x: 1 + 0 * x),
    (lambda x: x @ x, lambda x: 2 * x),
    (lambda x: gnp.dot(x, x), lambda x: 2 * x),
    (lambda x: gnp.inner(x, x), lambda x: 2 * x),
    (lambda x: gnp.vdot(x, x), lambda x: 2 * x),
    (lambda x: gnp.outer(x, x), lambda x: 2 * x.sum() + 0 * x),
    (lambda x: gnp.einsum("i,i->", x, x), lambda x: 2 * x),
    (lambda x: gnp.tensordot(x, x, 1), lambda x: 2 * x),
    (lambda x: gnp.concatenate([x, x, x]), lambda x: 3 + 0 * x),
    (lambda x: gnp.stack([x, x]), lambda x: 2 + 0 * x),
]


@pytest.mark.parametrize(("function", "expected"), SAME_TWICE)
def test_the_same_tensor_twice(function, expected):
    x = np.array([0.5, 1.5, 2.5])
    (g,) = reverse(function, x)
    np.testing.assert_allclose(g, expected(x), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((), (2, 3)),
        ((2, 3), ()),
        ((3,), (2, 3)),
        ((2, 1), (1, 3)),
        ((2, 1, 3), (4, 1)),
        ((1, 1), (3,)),
        ((0, 1), (1, 3)),
    ],
)
@pytest.mark.parametrize(
    "function", [operator.add, operator.sub, operator.mul, operator.truediv, gnp.maximum, gnp.arctan2, gnp.logaddexp]
)
def test_broadcasting_in_both_directions(function, one, other):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 1.5, one), rng.uniform(0.5, 1.5, other)
    y = function(tensor(a), tensor(b))
    assert y.shape == np.broadcast_shapes(one, other)
    ga, gb = reverse(function, a, b)
    full = [np.broadcast_to(v, y.shape).copy() for v in (a, b)]
    fa, fb = reverse(function, *full)
    for g, f, shape in ((ga, fa, one), (gb, fb, other)):
        lead = len(y.shape) - len(shape)
        axes = tuple(range(lead)) + tuple(k + lead for k, n in enumerate(shape) if n == 1)
        np.testing.assert_allclose(g, f.sum(axis=axes, keepdims=True).reshape(shape), rtol=1e-13, strict=True)


# ---------------------------------------------------------------- promotion: NumPy's

DTYPES = ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex64", "complex128"]
SCALARS = [True, 2, 300, -1, 2.5, 1j, np.bool_(True), np.int8(2), np.int64(2), np.float16(2), np.float32(2.5)]
SCALARS += [np.float64(2.5), np.complex64(1j)]
BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.mod),
    *(operator.eq, operator.lt, operator.and_),
]


def outcome(call):
    """The result as an array, or the type of what was raised."""
    try:
        with np.errstate(all="ignore"):
            found = call()
    except (TypeError, ValueError, OverflowError) as error:
        return next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
    assert type(found) is Tensor or not isinstance(found, Tensor)
    return found.numpy() if isinstance(found, Tensor) else np.asarray(found)


def assert_same_outcome(found, expected):
    if isinstance(expected, type):
        assert found is expected
    else:
        assert not isinstance(found, type), f"raised {found}, NumPy did not"
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("function", BINARY)
@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_promotion_with_scalars_on_both_sides(function, dtype, shape):
    a = np.ones(shape, dtype)
    for scalar in SCALARS:
        assert_same_outcome(outcome(lambda s=scalar: function(tensor(a), s)), outcome(lambda s=scalar: function(a, s)))
        assert_same_outcome(outcome(lambda s=scalar: function(s, tensor(a))), outcome(lambda s=scalar: function(s, a)))


@pytest.mark.parametrize("function", BINARY)
@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_promotion_with_arrays_and_tensors_on_both_sides(function, dtype):
    for other, shape_a, shape_b in itertools.product([*DTYPES, ml_dtypes.bfloat16], [(), (3,)], [(), (3,)]):
        a, b = np.ones(shape_a, dtype), np.full(shape_b, 2, other)
        if function is operator.pow and b.ndim == 0 and np.lib.NumpyVersion(np.__version__) < "2.3.0":
            continue  # there array ** array looks at the value of a 0-d exponent, and numpy.power at its dtype
        expected = outcome(lambda a=a, b=b: function(a, b))
        assert_same_outcome(outcome(lambda a=a, b=b: function(tensor(a), tensor(b))), expected)
        assert_same_outcome(outcome(lambda a=a, b=b: function(tensor(a), b)), expected)
        assert_same_outcome(outcome(lambda a=a, b=b: function(a, tensor(b))), expected)


UNARY = [
    *(gnp.exp, gnp.sin, gnp.sqrt, gnp.absolute, gnp.sign, gnp.square, gnp.floor, gnp.tanh, gnp.conjugate, gnp.real),
    *(gnp.log, gnp.sum, gnp.mean, gnp.prod, gnp.max, gnp.var, gnp.std, gnp.cumsum, gnp.round, gnp.negative, gnp.angle),
    *(gnp.arctan, gnp.exp2, gnp.deg2rad, gnp.cbrt, gnp.imag, gnp.reciprocal, gnp.expm1, gnp.log1p, gnp.positive),
]


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_result_dtype_of_one_input(function, dtype):
    a = np.array([1, 0, 1]).astype(dtype)
    plain = getattr(np, function.__name__)
    if dtype is ml_dtypes.bfloat16 and function in (gnp.sum, gnp.mean, gnp.var, gnp.std, gnp.cumsum):
        expected = outcome(lambda: plain(a.astype(np.float32)).astype(dtype))  # in which NumPy would sum a half
    else:
        expected = outcome(lambda: plain(a))
    assert_same_outcome(outcome(lambda: function(tensor(a))), expected)


PAIRS = [("float32", "float64"), ("float16", "float32"), ("float64", "complex64"), ("float32", "int64")]
PAIRS += [("float32", "complex128"), ("float16", "int8"), (ml_dtypes.bfloat16, "float32"), ("float16", "bool")]
MIXED = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "power": lambda x, y: x**y,
    "maximum": gnp.maximum,
    "arctan2": gnp.arctan2,
    "hypot": gnp.hypot,
    "logaddexp": gnp.logaddexp,
    "where": lambda x, y: gnp.where(np.array([[True, False], [False, True]]), x, y),
    "matmul": lambda x, y: x @ y,
    "dot": gnp.dot,
    "outer": gnp.outer,
    "tensordot": lambda x, y: gnp.tensordot(x, y, 1),
    "einsum": lambda x, y: gnp.einsum("ij,jk->ik", x, y),
    "concatenate": lambda x, y: gnp.concatenate([x, y]),
    "stack": lambda x, y: gnp.stack([x, y], axis=1),
    "clip": lambda x, y: gnp.clip(x, y, y + y),
    "remainder": lambda x, y: x % y,
}
REAL_ONLY = ("arctan2", "hypot", "logaddexp", "remainder")


def has_a_loop(name, pair):
    return name not in REAL_ONLY or not any(np.dtype(dtype).kind == "c" for dtype in pair)


@pytest.mark.parametrize(("name", "pair"), [one for one in itertools.product(MIXED, PAIRS) if has_a_loop(*one)])
def test_gradients_of_mixed_precision_have_the_primals_dtype(name, pair):
    values = np.array([[1, 2], [3, 4]])
    if name in ("logaddexp", "arctan2", "hypot") and np.dtype("bool") in map(np.dtype, pair):
        values = values > 0
    for first, other in (pair, pair[::-1]):
        x, y = tensor(values, first), tensor(values, other)
        tracked = [t for t in (x, y) if t.dtype.kind not in "iub"]
        gm = GradManager().attach(tracked)
        with gm:
            z = MIXED[name](x, y)
            gm.backward(z, np.ones(z.shape, z.dtype))
        for t in tracked:
            assert t.grad.dtype == t.dtype
            assert t.grad.shape == t.shape
            assert np.isfinite(t.grad.numpy().astype(complex)).all()


def test_gradient_of_a_half_precision_sum_is_computed_in_the_results_precision():
    """1 + 2^-11 is not a float16: the float32 branch keeps it, and only the result is rounded."""
    x = tensor(np.ones(2, "float16"))
    gm = GradManager().attach(x)
    with gm:
        y = x * np.array([1 + 2**-12, 1 + 2**-12], "float32") * np.float32(2**12)
        gm.backward((y - np.float32(2**12)).sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.full(2, np.float16(2**12 + 1)), strict=True)


def test_python_numbers_keep_half_precision_in_the_gradient_too():
    for dtype in ("float16", "float32", ml_dtypes.bfloat16):
        x = tensor([1.0, 2.0], dtype)
        gm = GradManager().attach(x)
        with gm:
            y = ((x * 2 + 1) / 3 - 1) ** 2  # of 4/9 (x - 1)^2; with Python floats NumPy takes bfloat16 to float32
            assert y.dtype == np.dtype(dtype)
            gm.backward(y, np.ones(2, dtype))
        assert x.grad.dtype == np.dtype(dtype)
        np.testing.assert_allclose(x.grad.numpy().astype(float), [0.0, 8 / 9], rtol=0.02, atol=0.02)


# ---------------------------------------------------------------- bfloat16

BF = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x,
        lambda x: x / (x + 1),
        lambda x: x - 2.0,
        lambda x: x**2,
        lambda x: gnp.exp(x) * gnp.tanh(x),
        gnp.sin,
        gnp.sqrt,
        gnp.log,
        gnp.absolute,
        gnp.sum,
        gnp.mean,
        gnp.max,
        gnp.prod,
        gnp.cumsum,
        special.logsumexp,
        lambda x: x[::-1] * x[0],
        lambda x: x[[0, 0, 1]],
        lambda x: gnp.maximum(x, 1.0),
        lambda x: gnp.clip(x, 0.5, 1.5),
        lambda x: gnp.where(x > 1, x, 0.0),
        lambda x: gnp.concatenate([x, x]),
        lambda x: x @ x,
        lambda x: gnp.outer(x, x),
        lambda x: gnp.var(x),
        lambda x: gnp.broadcast_to(x, (2, 3)),
        lambda x: x.astype("float32") * 2,
    ],
)
def test_bfloat16(function):
    x0 = np.array([0.5, 1.0, 1.75])
    x = tensor(x0, BF)
    gm = GradManager().attach(x)
    with gm:
        y = function(x)
        gm.backward(y, np.ones(y.shape, y.dtype))
    assert x.grad.dtype == BF
    (expected,) = reverse(function, x0)
    np.testing.assert_allclose(x.grad.numpy().astype(float), expected, rtol=0.03, atol=0.03)


def test_bfloat16_dy_is_cast_to_it():
    x = tensor([1.0, 2.0], BF)
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * x, np.array([1.0, 3.0]))
    np.testing.assert_array_equal(x.grad.numpy(), np.array([2.0, 12.0], BF), strict=True)


# ---------------------------------------------------------------- complex: grad = dL/dx + i dL/dy


def numeric_gradient(loss, z, step=1e-6):
    """dL/dx + i dL/dy by central differences; loss takes and gives plain numbers."""
    g = np.zeros(z.shape, complex)
    for k in np.ndindex(z.shape):
        for unit in (1, 1j):
            up, down = z.copy(), z.copy()
            up[k] += step * unit
            down[k] -= step * unit
            g[k] += unit * (loss(up) - loss(down)) / (2 * step)
    return g


COMPLEX = {
    "product": lambda z, w: z * w,
    "square": lambda z, w: z * z,
    "quotient": lambda z, w: w / z,
    "difference": lambda z, w: w - z,
    "reciprocal": lambda z, w: 1 / z,
    "integer power": lambda z, w: z**3,
    "real power": lambda z, w: z**2.5,
    "complex power": lambda z, w: z**w,
    "power of": lambda z, w: w**z,
    "exp": lambda z, w: gnp.exp(z),
    "log": lambda z, w: gnp.log(z),
    "sqrt": lambda z, w: gnp.sqrt(z),
    "sin": lambda z, w: gnp.sin(z),
    "tanh": lambda z, w: gnp.tanh(z),
    "arctan": lambda z, w: gnp.arctan(z),
    "arcsin": lambda z, w: gnp.arcsin(z),
    "arccosh": lambda z, w: gnp.arccosh(z),
    "log1p": lambda z, w: gnp.log1p(z),
    "conjugate": lambda z, w: gnp.conjugate(z) * z,
    "real": lambda z, w: z.real,
    "imag": lambda z, w: z.imag,
    "imag of product": lambda z, w: gnp.imag(z * w),
    "abs": lambda z, w: gnp.abs(z),
    "abs squared": lambda z, w: abs(z) ** 2,
    "angle": lambda z, w: gnp.angle(z),
    "angle in degrees": lambda z, w: gnp.angle(z, deg=True),
    "sign": lambda z, w: gnp.sign(z),
    "sum": lambda z, w: gnp.sum(z),
    "mean": lambda z, w: gnp.mean(z, axis=0),
    "prod": lambda z, w: gnp.prod(z),
    "cumsum": lambda z, w: gnp.cumsum(z),
    "cumprod": lambda z, w: gnp.cumprod(z),
    "var": lambda z, w: gnp.var(z),
    "std": lambda z, w: gnp.std(z),
    "matmul": lambda z, w: z @ w,
    "matmul other": lambda z, w: w @ z,
    "dot": lambda z, w: gnp.dot(z, w),
    "vdot": lambda z, w: gnp.vdot(z, w),
    "vdot other": lambda z, w: gnp.vdot(w, z),
    "vecdot": lambda z, w: gnp.vecdot(z, w),
    "outer": lambda z, w: gnp.outer(z, w),
    "einsum": lambda z, w: gnp.einsum("ij,jk->ik", z, w),
    "tensordot": lambda z, w: gnp.tensordot(z, w, 1),
    "where": lambda z, w: gnp.where(np.array([[True, False], [False, True]]), z, w),
    "get": lambda z, w: z[[0, 0, 1], 1],
    "put": lambda z, w: put(z, w),
    "concatenate": lambda z, w: gnp.concatenate([z, w * z]),
    "transpose": lambda z, w: z.T * w,
    "times real": lambda z, w: z * w.real,
    "conj chain": lambda z, w: gnp.exp(1j * gnp.conj(z)) * w,
    "logsumexp": lambda z, w: special.logsumexp(z, axis=1),
}


def put(z, w):
    made = z * 1.0
    made[0] = w[1] * z[1]
    return made


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradient_is_that_of_a_real_loss_in_both_parts(name):
    rng = np.random.default_rng(0)
    z0, w0 = rng.uniform(0.3, 1.2, (2, 2, 2)) + 1j * rng.uniform(0.3, 1.2, (2, 2, 2))
    function = COMPLEX[name]
    y = function(tensor(z0), tensor(w0))
    u = rng.uniform(-1, 1, y.shape) + (1j * rng.uniform(-1, 1, y.shape) if y.dtype.kind == "c" else 0)

    def loss(z, w):
        return np.sum((np.conj(u) * function(tensor(z), tensor(w)).numpy()).real)

    gz, gw = reverse(function, z0, w0, dy=u)
    np.testing.assert_allclose(gz, numeric_gradient(lambda z: loss(z, w0), z0), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(gw, numeric_gradient(lambda w: loss(z0, w), w0), rtol=1e-6, atol=1e-8)


REAL_IN_COMPLEX = {
    "times": lambda x, w: x * w,
    "times on the right": lambda x, w: w * x,
    "over": lambda x, w: w / x,
    "plus": lambda x, w: x + w,
    "power": lambda x, w: x**w,
    "base": lambda x, w: w**x,
    "matmul": lambda x, w: x @ w,
    "matmul on the right": lambda x, w: w @ x,
    "cast": lambda x, w: x.astype(complex) * w,
    "phase": lambda x, w: gnp.exp(1j * x),
    "stack": lambda x, w: gnp.stack([x, w]),
    "where": lambda x, w: gnp.where(np.array([[True, False], [False, True]]), x, w),
    "einsum": lambda x, w: gnp.einsum("ij,jk->ik", x, w),
    "abs": lambda x, w: abs(x * w),
}


@pytest.mark.parametrize("name", REAL_IN_COMPLEX)
def test_a_real_primal_gets_the_real_part(name):
    rng = np.random.default_rng(0)
    x0, w0 = rng.uniform(0.3, 1.2, (2, 2)), rng.uniform(0.3, 1.2, (2, 2)) + 1j * rng.uniform(0.3, 1.2, (2, 2))
    function = REAL_IN_COMPLEX[name]
    y = function(tensor(x0), tensor(w0))
    u = rng.uniform(-1, 1, y.shape) + (1j * rng.uniform(-1, 1, y.shape) if y.dtype.kind == "c" else 0)

    def loss(x, w):
        return np.sum((np.conj(u) * function(tensor(x), tensor(w)).numpy()).real)

    gx, gw = reverse(function, x0, w0, dy=u)
    assert gx.dtype == np.float64
    assert gw.dtype == np.complex128
    np.testing.assert_allclose(gx, numeric_gradient(lambda x: loss(x.real, w0), x0 + 0j).real, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(gw, numeric_gradient(lambda w: loss(x0, w), w0), rtol=1e-6, atol=1e-8)


def test_gradient_descent_on_a_distance_descends():
    c = np.array([1 - 2j, 0.5 + 3j])
    z = tensor(np.zeros(2, complex))
    gm = GradManager().attach(z)
    losses = []
    for _ in range(60):
        with gm:
            loss = (abs(z - c) ** 2).sum()
            gm.backward(loss)
        losses.append(loss.item())
        z -= 0.1 * z.grad
        z.grad = None
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    np.testing.assert_allclose(z.numpy(), c, atol=1e-4)


def test_known_values_of_the_convention():
    """L = Re(a z) has dL/dx = Re a, dL/dy = -Im a: the gradient is conj(a)."""
    a = 2 + 3j
    (g,) = reverse(lambda z: (a * z).real, np.array(1 + 1j))
    assert g == np.conj(a)
    (g,) = reverse(lambda z: abs(z) ** 2, np.array(1 + 1j))
    np.testing.assert_allclose(g, 2 + 2j, rtol=1e-15)
    (g,) = reverse(lambda z: z.imag, np.array(1 + 1j))
    assert g == 1j
    (g,) = reverse(gnp.abs, np.array(0j))
    assert g == 0
    (g,) = reverse(gnp.angle, np.array(0j))
    assert g == 0
    (g,) = reverse(gnp.sign, np.array(0j))
    assert g == 0


def test_complex_needs_a_dy():
    z = tensor(1 + 1j)
    gm = GradManager().attach(z)
    with gm:
        with pytest.raises(ValueError, match="one real number"):
            gm.backward(z * z)
        with pytest.raises(TypeError, match=r"complex128.*float64"):
            gm.backward(abs(z), 1j)
        gm.backward(z * z, 1.0)
    assert z.grad.item() == 2 * (1 - 1j)


@pytest.mark.parametrize("function", [lambda z: z**2, lambda z: gnp.exp(z) * z, lambda z: abs(z) ** 2, lambda z: 1 / z])
def test_complex_second_order(function):
    assert gradcheck(function, tensor(np.array([0.7 + 0.4j, -0.3 + 1.1j])), order=2)


@pytest.mark.parametrize("exponent", [0, 1, 2, 0.0, 1.0, 2.0])
def test_complex_powers_at_zero(exponent):
    (g,) = reverse(lambda z: z**exponent, np.array([0j, 1 + 1j]))
    expected = {0: [0, 0], 1: [1, 1], 2: [0, 2 - 2j]}[exponent]
    np.testing.assert_allclose(g, expected, rtol=1e-14)


def test_a_negative_base_and_a_complex_exponent():
    """The numbers are torch's."""
    x, w = tensor([-2.0, 3.0]), tensor([0.3 + 0.2j, -0.5j])
    with GradManager().attach([x, w]) as gm:
        gm.backward(x**w, np.ones(2, complex))
    np.testing.assert_allclose(x.grad.numpy(), [0.011622211227850293, -0.08701592903133296], rtol=1e-12)
    expected = [-1.6067760874941674 - 1.3722809336717563j, 0.9369921240029256 + 0.5735806136621672j]
    np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["triu", "tril"])
def test_what_a_triangle_drops_may_be_infinite(name):
    a = np.full((3, 3), -np.inf)
    expected = getattr(np, name)(a)
    np.testing.assert_array_equal(getattr(gnp, name)(tensor(a)).numpy(), expected)
    np.testing.assert_array_equal(getattr(gnp, name)(a), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: gnp.sqrt(gnp.clip(x, 0.0, 1.0)),
        lambda x: gnp.sqrt(gnp.maximum(x, 0.0)),
        lambda x: gnp.sqrt(gnp.fmax(x, 0.0)),
        lambda x: gnp.sqrt(-gnp.minimum(-x, 0.0)),
    ],
)
def test_an_infinite_slope_is_dropped_with_the_branch_not_chosen(function):
    x = tensor([-1.0, 0.25])
    gm = GradManager().attach(x)
    with gm, np.errstate(divide="ignore"):
        gm.backward(function(x).sum())
    assert x.grad.tolist() == [0.0, 1.0]


def test_a_masked_average_of_many_halves():
    a = np.ones(70_000, np.float16)
    x = tensor(a)
    gm = GradManager().attach(x)
    with gm:
        y = gnp.mean(x, where=np.ones(a.shape, bool))
        gm.backward(y, np.float16(1000))
    assert (y.item(), y.dtype) == (1.0, np.float16)
    np.testing.assert_allclose(x.grad.numpy().astype(float), 1 / 70, rtol=1e-3)


def test_an_average_of_a_million_halves_has_an_exact_gradient():
    x = tensor(np.ones(1_000_000, np.float16))
    gm = GradManager().attach(x)
    with gm:
        gm.backward(gnp.mean(x), np.float16(1000))
    np.testing.assert_allclose(x.grad.numpy().astype(float), 1e-3, rtol=1e-3)
