"""Derivatives at the ends of the range: finite and right wherever the value is finite, however small they are.

The slopes are compared with mpmath's, at zeros, subnormal numbers, and far out where functions level off. Functions of
two arguments are searched for a NaN under a finite value; those that remain stand in `UNDEFINED`, with the reason.
"""

import itertools
from functools import cache

import mpmath as mp
import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, special, tensor
from gradmgr._transforms.gradcheck import jvp
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

DTYPES = ["float64", "float32", "float16"]

# ---------------------------------------------------------------- running


def by_reverse(function, k, *points):
    """The gradient of the sum in argument k, and its derivative in the same argument, elementwise."""
    tensors = [tensor(p) for p in points]
    x = tensors[k]
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        y = function(*tensors)
        inner.backward(y, np.ones(y.shape, y.dtype))
        first, x.grad = x.grad, None
        try:
            outer.backward(first, np.ones(first.shape, first.dtype))
        except errors.NotRecordedError:  # the slope is a constant
            return y.numpy(), first.numpy(), np.zeros(x.shape, x.dtype)
    return y.numpy(), first.numpy(), x.grad.numpy()


def by_one_manager(function, x):
    x = tensor(x)
    with GradManager().attach(x) as gm:
        y = function(x)
        gm.backward(y, np.ones(y.shape, y.dtype))
    return x.grad.numpy()


def by_forward(function, x):
    (tangent,) = jvp(function, [tensor(x)], [0], [np.ones(x.shape, x.dtype)])
    return tangent.numpy()


def second_in_direction(function, x, direction):
    """The gradient of a number, and the Hessian times a direction."""
    x = tensor(np.array(x))
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(function(x))
        first, x.grad = x.grad, None
        outer.backward(first, np.array(direction, x.dtype))
    return first.numpy(), x.grad.numpy()


def edges(dtype):
    """Numbers at both ends of the range, about 0 and 1, and from 17 on, where functions level off."""
    info = np.finfo(dtype)
    small, tiny, eps, most = map(float, (info.smallest_subnormal, info.tiny, info.eps, info.max))
    found = [0.0, small, 7 * small, tiny, eps, 1e-3, 0.5, 1 - eps / 2, 1.0, 1 + eps, 2.0, 3.0, 8.0, 9.5, 17.0, 20.0]
    found += [37.0, 40.0, 100.0, 700.0, 1000.0, 1023.0, 1e4, most / 2, most, np.inf]
    with np.errstate(over="ignore"):
        return np.array([s * v for v in found for s in (1, -1)]).astype(dtype)


# ---------------------------------------------------------------- one argument, against mpmath


def _logistic(x):
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


def _both_sides(x):
    return _logistic(x) * _logistic(-x)


def _bell(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def _normal(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _hazard(x):
    return _bell(x) / _normal(x)


def _sech2(x):
    return 4 * _both_sides(2 * x)


def _of_tanh(x):
    return -2 * mp.tanh(x) * _sech2(x)


def _arc(x):
    return 1 / mp.sqrt((1 - x) * (1 + x))


def _only(number):
    return lambda x: mp.mpf(number)


_LINEAR, _CUBIC = 2 * mp.sqrt(2 / mp.pi), 2 * mp.sqrt(2 / mp.pi) * mp.mpf("0.044715")

# By function: its first derivative, its second.
SLOPES = {
    "sqrt": (gnp.sqrt, lambda x: 1 / (2 * mp.sqrt(x)), lambda x: -1 / (4 * x * mp.sqrt(x))),
    "square": (gnp.square, lambda x: 2 * x, _only(2)),
    "cbrt": (
        gnp.cbrt,
        lambda x: 1 / (3 * mp.cbrt(abs(x)) ** 2),
        lambda x: -2 / (9 * mp.sign(x) * mp.cbrt(abs(x)) ** 5),
    ),
    "reciprocal": (gnp.reciprocal, lambda x: -1 / x**2, lambda x: 2 / x**3),
    "exp": (gnp.exp, mp.exp, mp.exp),
    "exp2": (gnp.exp2, lambda x: mp.log(2) * mp.mpf(2) ** x, lambda x: mp.log(2) ** 2 * mp.mpf(2) ** x),
    "expm1": (gnp.expm1, mp.exp, mp.exp),
    "log": (gnp.log, lambda x: 1 / x, lambda x: -1 / x**2),
    "log2": (gnp.log2, lambda x: 1 / (x * mp.log(2)), lambda x: -1 / (x**2 * mp.log(2))),
    "log10": (gnp.log10, lambda x: 1 / (x * mp.log(10)), lambda x: -1 / (x**2 * mp.log(10))),
    "log1p": (gnp.log1p, lambda x: 1 / (1 + x), lambda x: -1 / (1 + x) ** 2),
    "sin": (gnp.sin, mp.cos, lambda x: -mp.sin(x)),
    "cos": (gnp.cos, lambda x: -mp.sin(x), lambda x: -mp.cos(x)),
    "tan": (gnp.tan, lambda x: mp.sec(x) ** 2, lambda x: 2 * mp.tan(x) * mp.sec(x) ** 2),
    "arcsin": (gnp.arcsin, _arc, lambda x: x * _arc(x) ** 3),
    "arccos": (gnp.arccos, lambda x: -_arc(x), lambda x: -x * _arc(x) ** 3),
    "arctan": (gnp.arctan, lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2),
    "sinh": (gnp.sinh, mp.cosh, mp.sinh),
    "cosh": (gnp.cosh, mp.sinh, mp.cosh),
    "tanh": (gnp.tanh, _sech2, _of_tanh),
    "arcsinh": (gnp.arcsinh, lambda x: 1 / mp.sqrt(1 + x * x), lambda x: -x / mp.sqrt(1 + x * x) ** 3),
    "arccosh": (gnp.arccosh, lambda x: 1 / mp.sqrt(x * x - 1), lambda x: -x / mp.sqrt(x * x - 1) ** 3),
    "arctanh": (gnp.arctanh, lambda x: _arc(x) ** 2, lambda x: 2 * x * _arc(x) ** 4),
    "special.digamma": (special.digamma, lambda x: mp.psi(1, x), lambda x: mp.psi(2, x)),
    "special.gammaln": (special.gammaln, lambda x: mp.psi(0, x), lambda x: mp.psi(1, x)),
    "special.gamma": (
        special.gamma,
        lambda x: mp.gamma(x) * mp.psi(0, x),
        lambda x: mp.gamma(x) * (mp.psi(0, x) ** 2 + mp.psi(1, x)),
    ),
    "special.entr": (special.entr, lambda x: -mp.log(x) - 1, lambda x: -1 / x),
    "special.erf": (special.erf, lambda x: 2 * _bell(x * mp.sqrt(2)) * mp.sqrt(2), None),
    "special.erfc": (special.erfc, lambda x: -2 * _bell(x * mp.sqrt(2)) * mp.sqrt(2), None),
    "special.ndtr": (special.ndtr, _bell, lambda x: -x * _bell(x)),
    "special.log_ndtr": (special.log_ndtr, _hazard, lambda x: -_hazard(x) * (x + _hazard(x))),
    "special.expit": (special.expit, _both_sides, lambda x: -_both_sides(x) * mp.tanh(x / 2)),
    "special.log_expit": (special.log_expit, lambda x: _logistic(-x), lambda x: -_both_sides(x)),
    "special.logit": (
        special.logit,
        lambda x: 1 / (x * (1 - x)),
        lambda x: (2 * x - 1) / (x * (1 - x)) ** 2,
    ),
    "nn.elu": (F.elu, lambda x: mp.exp(min(x, 0)), lambda x: mp.exp(x) if x <= 0 else mp.mpf(0)),
    "nn.elu, alpha": (
        lambda x: F.elu(x, 0.5),
        lambda x: mp.exp(x) / 2 if x <= 0 else mp.mpf(1),
        lambda x: mp.exp(x) / 2 if x <= 0 else mp.mpf(0),
    ),
    "nn.sigmoid": (F.sigmoid, _both_sides, lambda x: -_both_sides(x) * mp.tanh(x / 2)),
    "nn.logsigmoid": (F.logsigmoid, lambda x: _logistic(-x), lambda x: -_both_sides(x)),
    "nn.tanh": (F.tanh, _sech2, _of_tanh),
    "nn.silu": (
        F.silu,
        lambda x: _logistic(x) * (1 + x * _logistic(-x)),
        lambda x: _both_sides(x) * (2 - x * mp.tanh(x / 2)),
    ),
    "nn.softplus": (lambda x: F.softplus(x, threshold=np.inf), _logistic, _both_sides),
    "nn.bce": (
        lambda x: F.binary_cross_entropy_with_logits(x, gnp.ones_like(x), reduction="none"),
        lambda x: -_logistic(-x),
        _both_sides,
    ),
    "nn.gelu": (F.gelu, lambda x: _normal(x) + x * _bell(x), lambda x: _bell(x) * (2 - x * x)),
    "nn.gelu, tanh": (
        lambda x: F.gelu(x, "tanh"),
        lambda x: (
            _logistic(_LINEAR * x + _CUBIC * x**3)
            + x * _both_sides(_LINEAR * x + _CUBIC * x**3) * (_LINEAR + 3 * _CUBIC * x * x)
        ),
        None,
    ),
}

# Of these the bell is exp(-x^2), whose relative error grows as the rounding of x^2 does.
_BELLS = ("special.erf", "special.erfc", "special.ndtr", "special.log_ndtr", "nn.gelu", "nn.gelu, tanh")
# Numbers at which SciPy's functions lose digits: next to the poles of the gamma function.
_LOST = {"special.digamma": (-3, 0), "special.gammaln": (-3, 0), "special.gamma": (-3, 0)}


@cache
def _expected(name, order, x):
    """The derivative at a number; None where there is none, or it is not to be had."""
    low, high = _LOST.get(name, (0, 0))
    derivative = SLOPES[name][order]
    if (
        derivative is None or low < x < high or (name.startswith("special.") and abs(x) > 1e4)
    ):  # mpmath takes long there
        return None
    with mp.workdps(40):
        try:
            found = derivative(mp.mpf(x))
        except (ZeroDivisionError, ValueError, OverflowError):  # a pole
            return None
        return None if mp.im(found) or mp.isnan(mp.re(found)) else float(mp.re(found))


def _is_right(name, order, at, slope, wanted, info):
    eps, most = float(info.eps), float(info.max)
    if abs(wanted) > most and not np.isfinite(slope):  # some results are in a wider dtype
        return slope == np.sign(wanted) * np.inf
    tolerance = 64 + (2 * at * at if name in _BELLS and abs(at) < 100 else 0)
    # Results as near to a bound as rounding can be off, and the second derivative about a point of symmetry.
    near_bound = abs(wanted) >= eps / 32 or (name in ("special.expit", "nn.sigmoid") and order == 2 and abs(at) < 1)
    least = 4 * float(info.smallest_subnormal) if info.bits == 16 else float(info.tiny)
    return abs(slope - wanted) <= tolerance * eps * abs(wanted) + least + (4 * eps if near_bound else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_are_the_true_numbers_however_small(name, dtype):
    """In reverse and forward mode, and in second order, wherever the value is finite.

    Where a slope is the difference of a result from its bound, as 1 - y^2, it is exact to some units of the last place
    of 1, and as exact as any number where the result is rounded to the bound. Subnormal slopes of singles and doubles
    may be 0.
    """
    function, x, info = SLOPES[name][0], edges(dtype), np.finfo(dtype)
    with np.errstate(all="ignore"):
        y, first, second = by_reverse(function, 0, x)
        found = [(1, first), (1, by_one_manager(function, x)), (1, by_forward(function, x)), (2, second)]
    wrong = []
    for order, slopes in found:
        for at, value, slope in zip(x.tolist(), y.tolist(), slopes.tolist(), strict=True):
            wanted = _expected(name, order, at) if np.isfinite([at, value]).all() else None
            if wanted is not None and not _is_right(name, order, at, slope, wanted, info):
                wrong.append((order, at, slope, wanted))
    assert not wrong


# ---------------------------------------------------------------- two arguments: no NaN under a finite value


def _of_each(loss):
    return lambda x, y: loss(x, y, reduction="none")


PAIRS = {
    **{name: getattr(gnp, name) for name in (
        "add", "subtract", "multiply", "divide", "power", "hypot", "arctan2", "logaddexp", "logaddexp2", "maximum",
        "minimum", "fmax", "fmin", "remainder", "fmod", "copysign", "heaviside", "nextafter",
    )},
    **{f"special.{name}": getattr(special, name) for name in (
        "beta", "betaln", "gammainc", "gammaincc", "gammaincinv", "gammainccinv", "kl_div", "rel_entr", "xlogy",
        "xlog1py",
    )},
    **{f"nn.{name}": _of_each(getattr(F, name)) for name in (
        "binary_cross_entropy_with_logits", "kl_div", "huber_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
    )},
}  # fmt: skip


def _is_subnormal(v):
    return 0 < abs(v) < 1e-300


# By function: where its derivative is undefined, or its formula needs a number that the dtype has not, and why.
UNDEFINED = {
    "arctan2": ("the reciprocal of the length overflows", lambda x, y: abs(x) + abs(y) < 1e-300),
    "divide": ("1 / y overflows", lambda x, y: _is_subnormal(y)),
    "power": (
        "complex for a negative base; of an infinite exponent; 1 / x^2 overflows",
        lambda x, y: x < 0 or np.isinf(y) or _is_subnormal(x),
    ),
    "special.beta": (
        "poles of the gamma function",
        lambda x, y: min(x, y) <= 0 or max(x, y) == np.inf or _is_subnormal(min(x, y)),
    ),
    "special.betaln": ("poles of the gamma function", lambda x, y: min(x, y) <= 0 or _is_subnormal(min(x, y))),
    **{
        f"special.{name}": ("a = 0 is outside; a or x at both ends", lambda a, x: a < 1e-15 or a > 1e300)
        for name in ("gammainc", "gammaincc")
    },
    **{
        f"special.{name}": (
            "a = 0 is outside; y at an end, where the quantile has no slope",
            lambda a, y: a < 1e-15 or a > 1e300 or not 1e-300 < y < 1,
        )
        for name in ("gammaincinv", "gammainccinv")
    },
    "nn.kl_div": ("1 / y overflows", lambda x, y: _is_subnormal(y)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_finite_value_of_two_arguments_has_no_derivative_that_is_nan(name):
    """First derivatives, and second where the first is finite, in each argument."""
    numbers = [0.0, -0.0, 5e-324, 2.3e-308, 2.3e-16, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 17.0, -17.0, 40.0, -40.0]
    numbers += [1000.0, -1000.0, 1e4, 1e308, -1e308, np.inf, -np.inf]
    x, y = (np.array(column) for column in zip(*itertools.product(numbers, numbers), strict=True))
    _, is_undefined = UNDEFINED.get(name, ("", lambda x, y: False))
    wrong = []
    for k in (0, 1):
        with np.errstate(all="ignore"):
            value, first, second = by_reverse(PAIRS[name], k, x, y)
        lost = np.isfinite(value) & (np.isnan(first) | (np.isfinite(first) & np.isnan(second)))
        wrong += [
            (k, *point) for point in zip(x[lost].tolist(), y[lost].tolist(), strict=True) if not is_undefined(*point)
        ]
    assert not wrong


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_said_to_be_undefined_is_so_somewhere(name):
    x, y = np.array(
        [[a, b] for a in (-0.5, 0.0, 5e-324, 0.5, 1.0, 2.0) for b in (-0.5, 0.0, 5e-324, 0.5, 1.0, np.inf)]
    ).T
    with np.errstate(all="ignore"):
        found = [d for k in (0, 1) for d in by_reverse(PAIRS[name], k, x, y)[1:]]
    assert any(np.isnan(d).any() for d in found)


# ---------------------------------------------------------------- at the ends of the domain

POINTS = [
    # function, arguments, the one differentiated, first and second derivative there
    (special.gammainc, (2.0, 0.0), 1, 0.0, 1.0),
    (special.gammainc, (1.0, 0.0), 1, 1.0, -1.0),
    (special.gammainc, (3.0, 0.0), 1, 0.0, 0.0),
    (special.gammaincc, (2.0, 0.0), 1, 0.0, -1.0),
    (special.gammainc, (2.0, np.inf), 1, 0.0, 0.0),
    (special.gammaincc, (2.0, np.inf), 1, 0.0, 0.0),
    (special.gammaincc, (17.0, np.inf), 1, 0.0, 0.0),
    (special.betainc, (2.0, 3.0, 0.0), 2, 0.0, 12.0),
    (special.betainc, (2.0, 3.0, 1.0), 2, 0.0, 0.0),
    (special.betainc, (3.0, 2.0, 1.0), 2, 0.0, -12.0),
    (special.betainc, (1.0, 2.0, 0.0), 2, 2.0, -2.0),
    (special.betainc, (1.0, 1.0, 0.0), 2, 1.0, 0.0),
    (gnp.hypot, (1e9, 1.0), 0, 1.0, 1e-27),
    (gnp.hypot, (1.0, 1e9), 0, 1e-9, 1e-9),
    (gnp.hypot, (5e-324, 0.0), 0, 1.0, 0.0),
    (gnp.arctan, (np.inf,), 0, 0.0, 0.0),
    (gnp.arctan2, (1.0, np.inf), 0, 0.0, 0.0),
    (gnp.arctan2, (1.0, -np.inf), 1, 0.0, 0.0),
    (gnp.arctan2, (np.inf, 1.0), 0, 0.0, 0.0),
    (gnp.exp2, (1024.0,), 0, np.log(2) * 2.0**1023 * 2, np.log(2) ** 2 * 2.0**1023 * 2),
    (gnp.logaddexp, (np.inf, 1.0), 0, 1.0, 0.0),
    (gnp.logaddexp, (np.inf, 1.0), 1, 0.0, 0.0),
    (gnp.logaddexp2, (1.0, np.inf), 1, 1.0, 0.0),
    (gnp.logaddexp, (np.inf, np.inf), 0, 0.5, 0.0),
    (gnp.power, (np.inf, -2.0), 1, 0.0, 0.0),
]


@pytest.mark.parametrize(("function", "at", "k", "first", "second"), POINTS)
def test_derivatives_at_an_end_of_the_domain(function, at, k, first, second):
    with np.errstate(all="ignore"):
        _, one, two = by_reverse(function, k, *[np.array([v, v]) for v in at])
        others = [tensor(np.array(v)) for v in at]
        along = by_forward(lambda x: function(*others[:k], x, *others[k + 1 :]), np.array(at[k]))
    np.testing.assert_allclose(one, [first] * 2, rtol=1e-14)
    np.testing.assert_allclose(two, [second] * 2, rtol=1e-14)
    np.testing.assert_allclose(along, first, rtol=1e-14)


@pytest.mark.parametrize("k", [0, 1])
def test_mixed_second_derivatives_of_the_incomplete_functions_at_0_are_0(k):
    for function, at in ((special.gammainc, (2.5, 0.0)), (special.betainc, (2.5, 3.0, 0.0))):
        found = gradmgr.functional.hessian(lambda p, function=function: function(*p), np.array(at))
        assert found[-1, k if len(at) == 3 else 0] == 0


# ---------------------------------------------------------------- of whole rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [2, 5, 40, 600])
def test_the_gradient_of_a_probability_that_is_rounded_to_1_is_the_true_small_number(columns, dtype):
    """Of softmax, its logarithm and cross entropy, by each of their ways: few and many columns, C, compiled."""
    random = np.random.default_rng(columns)
    x = random.normal(size=(64, columns)).astype(dtype)
    x[::2, 0] += np.array(45, dtype)
    g = random.normal(size=x.shape).astype(dtype)
    only = np.zeros_like(x)
    only[:, 0] = 1
    wide, dy = x.astype(np.longdouble), g.astype(np.longdouble)
    p = np.exp(wide - wide.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    of_softmax = p * ((dy[:, :, None] - dy[:, None, :]) * p[:, None, :]).sum(-1)
    of_logarithm = only - p
    of_logarithm[:, 0] = p[:, 1:].sum(1)
    labels, others = np.zeros(64, int), (p.sum(1, keepdims=True) - p)[::2]
    cases = [
        (lambda t: F.softmax(t, -1), g, of_softmax, 1e3),
        (lambda t: F.log_softmax(t, -1), only, of_logarithm, 64),
        (lambda t: F.cross_entropy(t, labels, reduction="sum"), None, -of_logarithm, 64),
        (lambda t: F.cross_entropy(t, only, reduction="sum"), None, -of_logarithm, 64),
    ]
    for function, dy, wanted, units in cases:
        t = tensor(x)

        def gradient(t, function=function, dy=dy):
            with GradManager().attach(t) as gm:
                gm.backward(function(t), dy)
            found, t.grad = t.grad, None
            return found

        compiled = gradmgr.compile(gradient)
        for found in (gradient(t), *(compiled(t) for _ in range(4))):
            size = np.finfo(dtype).eps * np.abs(wanted[::2]) + np.finfo(dtype).tiny
            # a softmax's gradient is a difference of the given numbers, of any size
            size = size + (np.finfo(dtype).eps * np.minimum(p[::2], others) if units > 64 else 0)
            assert (np.abs(found.numpy()[::2] - wanted[::2]) <= units * size).all()


SMALL = 1 / (1 + np.exp(40.0))


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (lambda x: F.softmax(x, -1)[0], [SMALL, -SMALL], [-SMALL, SMALL]),
        (lambda x: F.softmax(x, -1)[1], [-SMALL, SMALL], [SMALL, -SMALL]),
        (lambda x: F.log_softmax(x, -1)[0], [SMALL, -SMALL], [-SMALL, SMALL]),
        (lambda x: special.softmax(x)[0], [SMALL, -SMALL], [-SMALL, SMALL]),
        (lambda x: special.logsumexp(x), [1, SMALL], [SMALL, -SMALL]),
        (lambda x: gnp.logaddexp(x[0], x[1]), [1, SMALL], [SMALL, -SMALL]),
        (lambda x: F.cross_entropy(x[None], np.array([0])), [-SMALL, SMALL], [SMALL, -SMALL]),
        (lambda x: F.cross_entropy(x[None], np.array([1])), [1, -1], [SMALL, -SMALL]),
    ],
)
def test_derivatives_of_the_larger_of_two_logits_that_are_40_apart(function, first, second):
    found = second_in_direction(function, [40.0, 0.0], [1.0, 0.0])
    np.testing.assert_allclose(found[0], first, rtol=1e-13)
    np.testing.assert_allclose(found[1], second, rtol=1e-13)
    x = np.array([40.0, 0.0])
    along = [by_forward_in(function, x, d) for d in np.eye(2)]
    np.testing.assert_allclose(along, first, rtol=1e-13)


def by_forward_in(function, x, direction):
    (tangent,) = jvp(function, [tensor(x)], [0], [direction])
    return tangent.numpy()


@pytest.mark.parametrize("n", [2, 100, 20_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinite_terms_of_a_logsumexp_share_its_gradient(n, dtype):
    x = np.zeros((2, n), dtype)
    x[0, -1] = np.inf
    x[1, :2] = np.inf
    found = by_one_manager(lambda t: special.logsumexp(t, axis=1), x)
    expected = np.zeros_like(x)
    expected[0, -1], expected[1, :2] = 1, 0.5
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(by_forward_in(lambda t: special.logsumexp(t, axis=1), x, np.ones_like(x)), [1, 1])


def test_second_derivatives_of_a_product_are_exact_where_it_overflows():
    with np.errstate(over="ignore", invalid="ignore"):
        _, found = second_in_direction(gnp.prod, [1e160, 1e160, 1e160], [1.0, 2.0, 0.0])
    np.testing.assert_allclose(found, [2e160, 1e160, 3e160], rtol=1e-15)


@pytest.mark.parametrize("function", [gnp.max, gnp.min, gnp.amax, gnp.amin, lambda x: np.maximum.reduce(x)])
@pytest.mark.parametrize("n", [3, 5000])
def test_the_gradient_of_an_extreme_that_is_nan_is_shared_among_the_nan(function, n):
    x = np.ones(n)
    x[[1, -1]] = np.nan
    expected = np.where(np.isnan(x), 0.5, 0.0)
    np.testing.assert_array_equal(by_one_manager(function, x), expected)
    np.testing.assert_array_equal(by_forward_in(function, x, expected), 0.5)
