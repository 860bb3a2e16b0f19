"""gradmgr.special: SciPy's values, dtypes and edges; derivatives where numbers end; what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
from helpers import tracks

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, special, tensor
from gradmgr._transforms.gradcheck import jvp
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.ops import bessel, gamma
from gradmgr.ops import special as ops
from gradmgr.profiler import profile

INF, NAN = np.inf, np.nan


def ulps(found: Any, expected: Any) -> float:
    """The largest distance, in units of the last place; equal infinities and NaN are none."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(same, 0, np.abs(found - expected) / np.spacing(np.abs(expected)))))


def first(f: Any, x: Any) -> np.ndarray:
    """The gradient of the sum of f(x)."""
    x = tensor(x)
    manager = GradManager().attach(x)
    with manager:
        manager.backward(f(x).sum())
    return x.grad.numpy()


def second(f: Any, x: Any) -> np.ndarray:
    """The gradient of the sum of that gradient."""
    x = tensor(x)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(f(x).sum())
        slope, x.grad = x.grad, None
        if not tracks(outer, slope):  # a constant
            return np.zeros(x.shape)
        outer.backward(slope.sum())
    return x.grad.numpy()


# ---------------------------------------------------------------- values of gradmgr's own kernels


def everywhere() -> np.ndarray:
    random = np.random.default_rng(0)
    parts = [random.normal(size=500) * scale for scale in (1e-8, 1, 10, 300)]
    return np.concatenate([*parts, [0, -0.0, 1, -1, INF, -INF, NAN, 1e300, -1e300, 1e-300]])


def probabilities() -> np.ndarray:
    random = np.random.default_rng(1)
    small = 10.0 ** random.uniform(-12, 0, size=300)
    return np.concatenate([random.uniform(size=500), small, 1 - small, [0, 1, 2, -1, 0.5, NAN, INF]])


OF_ONE = {
    "expit": everywhere,
    "log_expit": everywhere,
    "exprel": everywhere,
    "logit": probabilities,
    "entr": everywhere,
}
OF_TWO = ("xlogy", "xlog1py", "rel_entr", "kl_div")
DTYPES = [np.float64, np.float32, np.float16, np.int8, np.int16, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16]


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", OF_ONE)
def test_values_of_one_argument_are_scipys(name: str, dtype: Any) -> None:
    x = cast(OF_ONE[name](), dtype)
    assert ulps(getattr(special, name)(x), getattr(scipy.special, name)(x)) <= 4


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", OF_TWO)
def test_values_of_two_arguments_are_scipys(name: str, dtype: Any) -> None:
    x = everywhere()
    y = np.random.default_rng(2).permutation(np.abs(x))
    close = np.concatenate([x, np.abs(x)]), np.concatenate([y, np.abs(x) * (1 + 1e-5)])
    for a, b in (close, (x, np.abs(y)), (np.abs(x), -y)):
        a, b = cast(a, dtype), cast(b, dtype)
        found, expected = getattr(special, name)(a, b), getattr(scipy.special, name)(a, b)
        if name == "kl_div":  # a difference: exact to its largest part; where x / y overflows SciPy gives inf
            assert found.dtype == expected.dtype
            scale = np.maximum(np.abs(a.astype(found.dtype)), np.abs(b.astype(found.dtype)))
            finite = np.isfinite(expected)
            bound = 32 * np.finfo(found.dtype).eps * np.maximum(scale, np.abs(np.where(finite, expected, 0)))
            assert (np.abs(found[finite] - expected[finite]) <= bound[finite]).all()
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        else:
            assert ulps(found, expected) <= 4


@pytest.mark.parametrize("name", OF_TWO)
def test_special_pairs_are_scipys(name: str) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN])
    x, y = np.meshgrid(values, values)
    np.testing.assert_allclose(getattr(special, name)(x, y), getattr(scipy.special, name)(x, y), rtol=1e-15)


def test_quotients_that_overflow_have_a_logarithm() -> None:
    expected = np.log(3.0) - np.log(1e-320)
    for y in (1e-320, np.array([1e-320])):
        np.testing.assert_allclose(special.rel_entr(3.0, y), 3 * expected)
        np.testing.assert_allclose(special.kl_div(3.0, y), 3 * expected - 3)  # SciPy: inf
    np.testing.assert_allclose(first(lambda x: special.kl_div(x, 1e-320), [3.0]), expected)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_values_of_complex_arguments(name: str) -> None:
    x, y = np.array([0, 1j, 2 + 1j, 0.5]), np.array([0, -1 + 0.5j, 3j, -2 - 1e-3j])
    for dtype in (np.complex128, np.complex64):
        found, expected = (getattr(m, name)(x.astype(dtype), y.astype(dtype)) for m in (special, scipy.special))
        np.testing.assert_allclose(found, expected, rtol=1e-14 if dtype is np.complex128 else 1e-6, strict=True)


NUMBERS = {
    "right": (np.float32([2, 3]), 2.0),
    "left": (2.0, np.float32([2, 3])),
    "both": (2, 3.0),
    "list": (np.float32(2), [1.0, 2.0]),
    "NumPy's": (np.float32([2, 3]), np.float64(2)),
}


@pytest.mark.parametrize("name", [*OF_TWO, "beta"])
@pytest.mark.parametrize("arguments", NUMBERS.values(), ids=NUMBERS)
def test_results_of_numbers_with_arrays_have_scipys_dtype(name: str, arguments: Any) -> None:
    found, expected = (getattr(m, name)(*arguments) for m in (special, scipy.special))
    assert type(found) is type(expected)
    assert ulps(found, expected) <= (16 if name == "kl_div" else 2)  # kl_div is a difference


def test_plain_arguments_give_plain_results() -> None:
    for name in ("expit", "erf", "entr", "exprel", "softmax", "log_softmax", "logsumexp", "expm1", "log1p"):
        for x in (0.25, [0.25, 0.5], np.float32([0.25, 0.5])):
            found, expected = getattr(special, name)(x), getattr(scipy.special, name)(x)
            assert type(found) is type(expected)
            np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-14, strict=True)


def test_float64_is_what_halves_and_short_integers_become() -> None:
    for name in ("expm1", "log1p", "erf", "expit"):
        for dtype in (np.float16, np.int8, np.int16, np.bool_):
            x = tensor(np.array([0, 1], dtype))
            found, expected = getattr(special, name)(x).numpy(), getattr(scipy.special, name)(x.numpy())
            assert ulps(found, expected) <= 1
    assert first(special.expm1, np.float16([0.5])).dtype == np.float16


# ---------------------------------------------------------------- keywords


@pytest.mark.parametrize("name", ["expit", "erf"])
def test_out_where_and_dtype(name: str) -> None:
    ours, scipys = getattr(special, name), getattr(scipy.special, name)
    x = np.array([0.5, -1.0, 2.0])
    mask = np.array([True, False, True])
    out = np.full(3, 7.0)
    assert ours(x, out=out) is out
    np.testing.assert_allclose(out, scipys(x), rtol=1e-15)
    out = np.full(3, 7.0)
    ours(x, out=out, where=mask)
    np.testing.assert_allclose(out, np.where(mask, scipys(x), 7.0), rtol=1e-15)  # SciPy's own where= corrupts memory
    assert ours(x, dtype=np.float32).dtype == np.float32
    with pytest.raises((ValueError, TypeError)):
        ours(x, out=np.zeros(2))
    with pytest.raises(TypeError):
        ours(x, casting="no")
    t, target = tensor(x), tensor([7.0, 7.0, 7.0])
    manager = GradManager().attach(t)
    with manager:
        y = ours(t, out=target, where=mask)
        assert y is target
        manager.backward(y.sum())
    np.testing.assert_allclose(target.numpy(), out, rtol=1e-15)
    assert t.grad.numpy()[1] == 0
    assert (t.grad.numpy()[mask] > 0).all()


def test_out_of_two_arguments() -> None:
    out = np.zeros(2, np.float32)
    assert special.xlogy(2.0, np.array([1.0, 2.0]), out=out) is out
    np.testing.assert_allclose(out, [0, 2 * np.log(2)], rtol=1e-6)
    z = special.jv(0, tensor([0.5, 1.0]), out=tensor([0.0, 0.0]))
    np.testing.assert_allclose(z.numpy(), scipy.special.j0([0.5, 1.0]))
    target = tensor([0.0, 0.0])
    assert special.zeta(2.0, tensor([0.5, 1.0]), out=target) is target
    np.testing.assert_allclose(target.numpy(), scipy.special.zeta(2.0, [0.5, 1.0]))
    out = np.zeros(2)
    assert special.zeta(2.0, np.array([0.5, 1.0]), out=out) is out


# ---------------------------------------------------------------- the edges

LOG2 = np.log(2)
# f, x, the derivative of f there, and the second.
EDGES: dict[str, tuple[Any, list[float], list[float], list[float]]] = {
    "erf": (special.erf, [INF, -INF, 1e200, 0], [0, 0, 0, 2 / np.pi**0.5], [0, 0, 0, 0]),
    "erfc": (special.erfc, [INF, -INF], [0, 0], [0, 0]),
    "ndtr": (special.ndtr, [INF, -INF, 50], [0, 0, 0], [0, 0, 0]),
    "expit": (special.expit, [-1e4, 1e4, -INF, INF, 0], [0, 0, 0, 0, 0.25], [0, 0, 0, 0, 0]),
    "log_expit": (special.log_expit, [-1e4, 1e4, -INF, INF, 0], [1, 0, 1, 0, 0.5], [0, 0, 0, 0, -0.25]),
    "log_ndtr": (special.log_ndtr, [INF, 60, -1e10, -INF], [0, 0, 1e10, INF], [0, 0, -1, -1]),
    "exprel": (special.exprel, [0, 1e-12, -INF, INF], [0.5, 0.5, 0, INF], [1 / 3, 1 / 3, 0, INF]),
    "sinc": (special.sinc, [0.0], [0], [-(np.pi**2) / 3]),
    "i0e": (special.i0e, [0.0], [0], [0]),
    "i1e": (special.i1e, [0.0], [0.5], [0]),
    "i0": (special.i0, [0.0], [0], [0.5]),
    "i1": (special.i1, [0.0], [0.5], [0]),
    "numpy.i0": (gnp.i0, [0.0], [0], [0.5]),
    "j0": (special.j0, [0.0], [0], [-0.5]),
    "j1": (special.j1, [0.0], [0.5], [0]),
    "xlogy in x": (lambda x: special.xlogy(x, np.array([0, 2, -1])), [0, 0, 0], [0, LOG2, 0], [0, 0, 0]),
    "xlogy in y": (lambda y: special.xlogy(0.0, y), [0, 2, -1], [0, 0, 0], [0, 0, 0]),
    "xlogy in both": (lambda x: special.xlogy(x, x), [0.0], [0], [0]),
    "xlog1py in x": (lambda x: special.xlog1py(x, np.array([-1, 1, -2])), [0, 0, 0], [0, LOG2, 0], [0, 0, 0]),
    "xlog1py in y": (lambda y: special.xlog1py(0.0, y), [-1, 1, -2], [0, 0, 0], [0, 0, 0]),
    "rel_entr in y": (lambda y: special.rel_entr(0.0, y), [0, 2], [0, 0], [0, 0]),
    "rel_entr in both": (lambda x: special.rel_entr(x, x), [0.0, 2.0], [0, 0], [0, 0]),
    "kl_div in y": (lambda y: special.kl_div(0.0, y), [0, 2], [1, 1], [0, 0]),
}


@pytest.mark.parametrize("name", EDGES)
def test_derivatives_at_the_edge(name: str) -> None:
    f, x, slope, bend = EDGES[name]
    with np.errstate(all="ignore"):
        x = np.array(x, float)
        np.testing.assert_allclose(first(f, x), slope, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(second(f, x), bend, rtol=1e-9, atol=1e-11)
        tangent = jvp(f, [tensor(x)], [0], [np.ones_like(x)])[0].numpy()
        np.testing.assert_allclose(tangent, slope, rtol=1e-12, atol=1e-300)


def test_derivatives_are_infinite_where_the_slope_is() -> None:
    with np.errstate(all="ignore"):
        assert first(special.logit, [0.0, 1.0]).tolist() == [INF, INF]
        assert first(special.entr, [0.0]).tolist() == [INF]
        assert first(special.erfinv, [-1.0, 1.0]).tolist() == [INF, INF]
        assert first(special.ndtri, [0.0, 1.0]).tolist() == [INF, INF]
        assert first(lambda x: special.xlogy(x, 0.0), [1.0]).tolist() == [-INF]
        assert first(lambda y: special.xlogy(1.0, y), [0.0]).tolist() == [INF]
        assert first(lambda x: special.rel_entr(x, 2.0), [0.0]).tolist() == [-INF]


def test_outside_of_the_domain_there_is_no_derivative() -> None:
    with np.errstate(all="ignore"):
        for f in (
            special.entr,
            special.loggamma,
            lambda x: special.rel_entr(x, 1.0),
            lambda y: special.rel_entr(1.0, y),
            lambda x: special.kl_div(x, 1.0),
            lambda y: special.kl_div(1.0, y),
        ):
            assert np.isnan(first(f, [-0.5])).all()


def test_quiet_as_scipy() -> None:
    """Infinities and NaN come without a warning; the suite makes errors of warnings."""
    special.expit(np.array([-1e4, INF, NAN]))
    special.logit(np.array([0.0, 1.0, 2.0]))
    special.xlogy(tensor([1.0, 0.0, 1.0]), tensor([0.0, 0.0, -1.0]))
    special.rel_entr(tensor([1.0, -1.0]), tensor([0.0, 1.0]))
    special.exprel(tensor([1e4, -1e4]))
    first(special.erf, [1e200, INF])
    first(special.log_ndtr, [1e200, -1e200])


# ---------------------------------------------------------------- accuracy where the textbook form cancels


def test_the_slope_of_erfcx_far_out() -> None:
    x = np.array([1e3, 1e6, 1e12])
    np.testing.assert_allclose(first(special.erfcx, x), -1 / (np.pi**0.5 * x * x), rtol=2e-6)
    np.testing.assert_allclose(first(special.erfcx, x[1:]), -1 / (np.pi**0.5 * x[1:] ** 2), rtol=1e-11)
    np.testing.assert_allclose(second(special.erfcx, x[1:]), 2 / (np.pi**0.5 * x[1:] ** 3), rtol=1e-11)


def test_log_ndtr_far_down() -> None:
    x = np.array([-10.0, -1e3, -1e6, -1e9])
    hazard = -x - 1 / x + 2 / x**3 - 10 / x**5 + 74 / x**7  # the asymptotic series of the inverse Mills ratio
    np.testing.assert_allclose(first(special.log_ndtr, x[1:]), hazard[1:], rtol=1e-13)
    np.testing.assert_allclose(first(special.log_ndtr, x[:1]), hazard[:1], rtol=1e-7)
    np.testing.assert_allclose(second(special.log_ndtr, x[1:]), -1 + 1 / x[1:] ** 2, rtol=1e-11)


def test_the_slope_of_exprel_near_0() -> None:
    x = np.array([1e-3, -1e-5, 1e-9, -1e-13])
    np.testing.assert_allclose(first(special.exprel, x), 1 / 2 + x / 3 + x * x / 8, rtol=1e-10)
    np.testing.assert_allclose(second(special.exprel, x), 1 / 3 + x / 4 + x * x / 10, rtol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_derivatives_of_exprel(k: int) -> None:
    bound = 4 + 2 * k
    x = np.array([-300.0, -30, -bound - 0.01, -bound + 0.01, -1, 0, 0.5, bound - 0.01, bound + 0.01, 30, 300, 600])
    expected = scipy.special.hyp1f1(k + 1, k + 2, x) / (k + 1)
    np.testing.assert_allclose(ops._exprel_slope(x, k), expected, rtol=1e-11)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_derivatives_of_i0(k: int) -> None:
    x = np.array([-60.0, -49.9, -3, -1e-3, 0, 1e-8, 1, 20, 49.9, 50.1, 300, 700])
    found = bessel._i0_slope(x, k)
    expected = scipy.special.ivp(0, x, k)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-17)
    limits = bessel._i0_slope(np.array([720.0, INF, -INF, NAN]), k)
    np.testing.assert_array_equal(limits, [INF, INF, INF * (-1) ** k, NAN])


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_derivatives_of_i0e(k: int) -> None:
    for x in (0.0, 1e-3, 1.0, 20.0, 49.9, 50.1, 400.0):
        expected, _ = scipy.integrate.quad(
            lambda t, x=x: (1 - np.cos(t)) ** k * np.exp(-x * (1 - np.cos(t))) / np.pi, 0, np.pi, epsabs=0, limit=500
        )
        np.testing.assert_allclose(bessel._fall(np.array(x), k), expected, rtol=1e-12)
    assert bessel._fall(np.array(INF), k) == 0


def test_slopes_of_large_bessel_functions() -> None:
    x = np.array([60.0, 1e3, 1e6])
    np.testing.assert_allclose(first(special.i0e, x), -scipy.special.i0e(x) / (2 * x), rtol=1.5e-2)
    np.testing.assert_allclose(first(special.i0e, x[2:]), -scipy.special.i0e(x[2:]) / (2 * x[2:]), rtol=2e-6)
    for name in ("i0", "i1"):
        x = np.array([49.0, 51.0, -51.0])
        np.testing.assert_allclose(first(getattr(special, name), x), scipy.special.ivp(int(name[1]), x), rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_polygamma_in_the_plane(n: int) -> None:
    x = np.array([0.1, 0.7, 3.2, 30.0, 1e5, -0.3, -2.5, -20.4])
    on_the_line = gamma._polygamma(x + 0j, n)
    np.testing.assert_allclose(on_the_line, scipy.special.polygamma(n, x), rtol=1e-11)
    z = np.array([0.3 + 0.1j, -5.4 + 2j, 3 - 4j, 0.5 + 300j, -2.99 + 0.01j])
    found = gamma._polygamma(z, n)
    np.testing.assert_allclose(np.conj(found), gamma._polygamma(np.conj(z), n), rtol=1e-13)
    step = (-1) ** n * scipy.special.factorial(n) / z ** (n + 1)
    np.testing.assert_allclose(gamma._polygamma(z + 1, n), found + step, rtol=1e-9, atol=1e-13)
    if n == 1:
        h = 1e-4
        slope = (scipy.special.digamma(z + h) - scipy.special.digamma(z - h)) / (2 * h)
        np.testing.assert_allclose(found, slope, rtol=1e-3)


def test_higher_derivatives_of_complex_gamma() -> None:
    z = tensor([0.7 + 0.5j, -1.3 + 0.4j])
    for f in (special.gamma, special.loggamma, special.digamma):
        assert gradcheck(f, z, order=3, fast_mode=True)


@pytest.mark.parametrize("f", [special.i0, special.i1, gnp.i0], ids=["i0", "i1", "numpy.i0"])
def test_large_modified_bessel_functions(f: Any) -> None:
    assert gradcheck(lambda x: f(x) * np.exp(-51.0), tensor([49.0, 51.0, -52.0]), order=3)


# ---------------------------------------------------------------- softmax and logsumexp


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_masked_rows(name: str) -> None:
    ours, scipys = getattr(special, name), getattr(scipy.special, name)
    x = np.array([[-INF, 0.5, 1.0], [-INF, -INF, 2.0], [-INF, -INF, -INF]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(ours(tensor(x), axis=1).numpy(), scipys(x, axis=1), rtol=1e-14)
    weights = np.array([0.0, 2.0, -1.0]) if name == "log_softmax" else np.array([3.0, 2.0, -1.0])
    finite = x[:2]

    def loss(t: Tensor) -> Tensor:
        y = ours(t, axis=1)
        return gnp.where(np.isfinite(finite), y, 0.0) * weights

    found, kept = first(loss, finite), first(lambda t: ours(t, axis=1) * weights[1:], finite[:1, 1:])
    np.testing.assert_allclose(found[:1, 1:], kept, rtol=1e-14)
    assert (found[np.isinf(finite)] == 0).all()
    assert found[1, 2] == 0
    assert not np.isnan(second(loss, finite)).any()


def test_softmax_neither_over_nor_underflows() -> None:
    x = np.array([1e300, 0.0, -1e300])
    assert special.softmax(x).tolist() == [1, 0, 0]
    np.testing.assert_array_equal(special.log_softmax(np.array([1e4, 0.0])), [0, -1e4])
    np.testing.assert_array_equal(first(lambda t: special.log_softmax(t)[1], [1e4, 0.0]), [-1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.complex64, ml_dtypes.bfloat16])
def test_softmax_has_scipys_dtype(dtype: Any) -> None:
    for name in ("softmax", "log_softmax"):
        x = np.array([1, 2], dtype)
        assert getattr(special, name)(tensor(x)).dtype == getattr(scipy.special, name)(x).dtype


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_rows_with_inf_or_nan_is_scipys(name: str) -> None:
    x = np.array([[1.0, INF, 0.0], [1.0, NAN, 0.0]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(getattr(special, name)(tensor(x), 1).numpy(), getattr(scipy.special, name)(x, 1))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_one_op_for_scipys_name_and_torchs(name: str) -> None:
    x = tensor(np.array([[0.5, -1.0, 7.0], [0.0, 0.0, 3.0]], np.float16))
    with profile() as prof:
        one, other = getattr(special, name)(x, 1), getattr(F, name)(x, 1)
    assert [e.name for e in prof.function_events] == [name, name]
    np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_integers_of_softmax_do_not_wrap_around() -> None:
    x = np.array([-128, 127], np.int8)
    np.testing.assert_array_equal(special.softmax(x), [0, 1])
    assert special.softmax(tensor(x)).dtype == np.float16


def test_axes_of_softmax_are_checked() -> None:
    for f in (special.softmax, special.log_softmax, special.logsumexp):
        with pytest.raises(np.exceptions.AxisError):
            f(tensor([1.0]), axis=1)
    with pytest.raises(ValueError, match="zero-size"):
        special.softmax(tensor(np.zeros((0, 3))))


A = np.array([[0.3, -1.0, 2.0], [0.1, 0.7, -0.4]])
WEIGHTS = {
    "array": np.array([[1.0, 2.0, 0.5], [0.3, 1.0, 3.0]]),
    "row": np.array([1.0, 2.0, 0.5]),
    "number": 2.0,
    "signs": np.array([-1.0, 2.0, -0.5]),
    "zeros": np.array([0.0, 2.0, 0.0]),
    "integers": np.array([1, 2, 3]),
    "all zeros": np.zeros(3),
}


@pytest.mark.parametrize("return_sign", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)], ids=str)
@pytest.mark.parametrize("b", WEIGHTS)
def test_weights_of_logsumexp(b: str, axis: Any, return_sign: bool) -> None:
    for a in (A, A + 0.5j, A.astype(np.float32)):
        options = {"axis": axis, "b": WEIGHTS[b], "keepdims": True, "return_sign": return_sign}
        expected = scipy.special.logsumexp(a, **options)
        for found in (special.logsumexp(a, **options), special.logsumexp(tensor(a), **options)):
            pairs = zip(found, expected, strict=True) if return_sign else [(found, expected)]
            for ours, scipys in pairs:
                ours = ours.numpy() if isinstance(ours, Tensor) else ours
                assert ours.dtype == scipys.dtype
                np.testing.assert_allclose(ours, scipys, rtol=1e-5 if a.dtype == np.float32 else 1e-13, atol=1e-14)


def test_infinite_elements_of_weight_0_add_nothing() -> None:
    a, b = tensor([INF, NAN, -INF, 1.0]), tensor([0.0, 0.0, 0.0, 2.0])
    manager = GradManager().attach([a, b])
    with manager:
        z = special.logsumexp(a, b=b)
        manager.backward(z)
    np.testing.assert_allclose(z.item(), 1 + np.log(2))
    np.testing.assert_allclose(a.grad.numpy(), [0, 0, 0, 1])
    np.testing.assert_allclose(b.grad.numpy()[[2, 3]], [0, 0.5])


def test_weighted_rows_of_minus_infinity() -> None:
    a = np.array([[-INF, -INF], [0.0, -INF]])
    np.testing.assert_allclose(first(lambda t: special.logsumexp(t, 1, [1.0, 2.0]), a), [[0, 0], [1, 0]])


def test_a_negative_sum_has_no_logarithm() -> None:
    a = tensor([0.0, 1.0])
    assert np.isnan(special.logsumexp(a, b=[1.0, -1.0]).item())
    z, sign = special.logsumexp(a, b=[1.0, -1.0], return_sign=True)
    np.testing.assert_allclose([z.item(), sign.item()], [np.log(np.e - 1), -1])
    assert gradcheck(lambda t: special.logsumexp(t, b=np.array([1.0, -1.0]), return_sign=True)[0], a, order=2)


def test_signs_of_complex_sums_are_differentiated() -> None:
    a, b = tensor(A + 0.5j * A**2), tensor([1 + 1j, -0.5, 2j])

    def parts(a: Tensor, b: Tensor) -> Any:
        return special.logsumexp(a, 1, b, return_sign=True)

    assert gradcheck(parts, [a, b], order=2, fast_mode=True)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda t: special.jv(t, 1.0), "v"),
        (lambda t: special.iv(t, tensor([1.0])), "v"),
        (lambda t: special.zeta(t, 2.0), "x"),
        (lambda t: special.zeta(t), "x"),
        (lambda t: special.polygamma(t, 2.0), "n"),
    ],
    ids=["jv", "iv", "zeta", "riemann", "polygamma"],
)
def test_tracked_parameters_are_refused(f: Any, name: str, unchanged: Any) -> None:
    t = tensor([2.0])
    expected = f(t).numpy()  # untracked it is a constant
    manager = GradManager().attach(t)
    with manager:
        with unchanged([manager], [t]), pytest.raises(errors.UnsupportedFunctionError, match=f"derivative in {name}"):
            f(t)
        np.testing.assert_array_equal(f(t.detach()).numpy(), expected)
    with pytest.raises(errors.UnsupportedFunctionError, match=f"derivative in {name}"):
        jvp(f, [t], [0], [np.ones(1)])


def test_parameters_give_scipys_values() -> None:
    for found, expected in [
        (special.jv(np.uint8([0, 3]), tensor([1.0, 2.0])), scipy.special.jv([0, 3], [1.0, 2.0])),
        (special.jv([0, 3], tensor([1.0, 2.0])), scipy.special.jv([0, 3], [1.0, 2.0])),
        (special.iv(tensor([0.5]), 2.0), scipy.special.iv([0.5], 2.0)),
        (special.zeta(tensor([2.0, 3.0])), scipy.special.zeta([2.0, 3.0])),
        (special.zeta(tensor([2.0, 3.0]), 1.5), scipy.special.zeta([2.0, 3.0], 1.5)),
        (special.polygamma(tensor([1, 2]), 1.5), scipy.special.polygamma([1, 2], 1.5)),
    ]:
        assert isinstance(found, Tensor)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, strict=True)
    np.testing.assert_allclose(special.zeta(2.0), scipy.special.zeta(2.0))
    np.testing.assert_allclose(special.jv(1, 2.0), scipy.special.jv(1, 2.0))
    order = np.uint8([0])  # the slope asks for order -1
    np.testing.assert_allclose(first(lambda z: special.jv(order, z), [1.0]), scipy.special.jvp(0, [1.0]))


@pytest.mark.parametrize("d", [0, 1.5, np.array([1, 2])], ids=str)
def test_multigammaln_checks_its_dimension(d: Any) -> None:
    with pytest.raises(ValueError, match="multigammaln"):
        special.multigammaln(tensor([3.0]), d)


def test_multigammaln_checks_its_argument() -> None:
    with pytest.raises(ValueError, match="multigammaln"):
        special.multigammaln(tensor([3.0, 1.0]), 3)


REAL_ONLY = ["expit", "logit", "log_expit", "entr", "exprel", "erfinv", "gammaln", "ndtri", "i0", "i0e", "j0"]


@pytest.mark.parametrize("name", REAL_ONLY)
def test_complex_is_refused_where_scipy_refuses_it(name: str, unchanged: Any) -> None:
    t = tensor([0.5 + 1j])
    with pytest.raises(TypeError):
        getattr(scipy.special, name)(t.numpy())
    manager = GradManager().attach(t)
    with manager, unchanged([manager], [t]), pytest.raises(TypeError, match=name):
        getattr(special, name)(t)


def test_complex_is_refused_by_functions_of_two() -> None:
    for name in ("rel_entr", "kl_div", "beta", "polygamma"):
        with pytest.raises(TypeError, match=name):
            getattr(special, name)(1, tensor([0.5 + 1j]))
    with pytest.raises(TypeError, match="complex"):
        gnp.i0(tensor([1j]))


# a, b and x, and the accuracy: the difference of two values of digamma limits the last.
BETAINC = {
    (0.02, 3.0, 1e-3): 1e-11,
    (0.3, 0.05, 0.99): 1e-11,
    (1e-3, 1e-3, 0.4): 1e-10,
    (40.0, 20.0, 0.9): 1e-11,
    (5.0, 900.0, 0.002): 1e-11,
    (2.0, 0.5, 1 - 1e-9): 1e-10,
    (1000.0, 1e-3, 0.999): 1e-9,
}


@pytest.mark.parametrize(("point", "accuracy"), BETAINC.items(), ids=str)
def test_betainc_has_exact_derivatives_in_the_tails(point: tuple[float, ...], accuracy: float) -> None:
    def exact(a: Any, b: Any, x: Any) -> Any:
        return mpmath.betainc(a, b, 0, x, regularized=True)

    given = [tensor(v) for v in point]
    with GradManager().attach(given) as gm:
        gm.backward(special.betainc(*given))
    with mpmath.workdps(30):
        expected = [float(mpmath.diff(exact, point, order)) for order in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    np.testing.assert_allclose([t.grad.item() for t in given], expected, rtol=accuracy)


def test_betaincinv_is_the_inverse_and_moves_as_it() -> None:
    a, b, y = tensor([0.3, 2.0, 60.0]), tensor([0.7, 0.5, 40.0]), tensor([0.2, 0.9, 0.01])
    np.testing.assert_allclose(special.betainc(a, b, special.betaincinv(a, b, y)).numpy(), y.numpy(), rtol=1e-12)
    with GradManager().attach([a, b, y]) as gm:
        gm.backward(gnp.sum(special.betainc(a, b, special.betaincinv(a, b, y))))
    np.testing.assert_allclose(y.grad.numpy(), 1, rtol=1e-12)
    np.testing.assert_allclose([a.grad.numpy(), b.grad.numpy()], 0, atol=1e-12)


@pytest.mark.parametrize(("function", "inverse"), [("gammainc", "gammaincinv"), ("gammaincc", "gammainccinv")])
def test_inverses_of_gammainc_move_as_they_must(function: str, inverse: str) -> None:
    a, y = tensor([0.01, 0.3, 2.0, 900.0]), tensor([0.2, 0.9, 1e-6, 0.5])
    with GradManager().attach([a, y]) as gm:
        there_and_back = getattr(special, function)(a, getattr(special, inverse)(a, y))
        gm.backward(gnp.sum(there_and_back))
    np.testing.assert_allclose(there_and_back.numpy(), y.numpy(), rtol=1e-11)
    np.testing.assert_allclose(y.grad.numpy(), 1, rtol=1e-11)
    np.testing.assert_allclose(a.grad.numpy(), 0, atol=1e-10)


def test_every_public_name_is_scipys() -> None:
    for name in special.__all__:
        assert hasattr(scipy.special, name)
    assert special.psi is special.digamma
    assert special.sinc is gnp.sinc


# ---------------------------------------------------------------- without SciPy

WITHOUT_SCIPY = """
import sys

sys.modules["scipy"] = None  # what Python takes for a module that is not there
import numpy as np
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, special, tensor

x, y = tensor([0.25, 0.5]), tensor([0.5, 0.75])
one = "expit logit log_expit softmax log_softmax entr expm1 log1p sinc exprel logsumexp erf erfc ndtr log_ndtr".split()
two = "xlogy xlog1py rel_entr kl_div".split()
calls = [lambda n=n: getattr(special, n)(x) for n in one]
calls += [lambda n=n: getattr(special, n)(x, y) for n in two]
calls += [lambda: special.logsumexp(x, b=y), lambda: gnp.i0(x)]
for call in calls:
    outer, inner = GradManager().attach([x, y]), GradManager().attach([x, y])
    with outer:
        with inner:
            inner.backward(call().sum())
        slope, x.grad = x.grad, None
        outer.backward((slope * slope).sum())
    found = [t.grad.numpy() for t in (x, y) if t.grad is not None]
    assert found and np.isfinite(found).all()
    x.grad = y.grad = None
of_two = "beta betaln gammainc gammaincc gammainccinv gammaincinv iv jv polygamma multigammaln zeta".split()
of_three = ["betainc", "betaincinv"]
lacking = [n for n in special.__all__ if n not in one + two]
for name in lacking:
    for given in ((1, x), (1, x.numpy())):
        given = given[::-1] if name == "multigammaln" else given
        try:
            getattr(special, name)(*(given if name in of_two else (1, *given) if name in of_three else given[1:]))
        except errors.MissingDependencyError as error:
            assert isinstance(error, ImportError)
            print(error)
        else:
            raise SystemExit(f"{name} works without SciPy")
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a program of ours
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_scipy() -> None:
    said = run(WITHOUT_SCIPY)
    assert "special.erfinv needs SciPy, which is not installed; pip install scipy\n" in said
    named = set(re.findall(r"special\.(\w+) needs SciPy", said))
    assert {"erfcx", "gammaln", "jv", "zeta", "ndtri"} <= named


def test_scipy_is_imported_when_it_is_needed() -> None:
    run("""
    import sys
    import gradmgr
    assert not any(name.partition(".")[0] == "scipy" for name in sys.modules)
    gradmgr.special.expit(gradmgr.tensor([1.0]))
    assert not any(name.partition(".")[0] == "scipy" for name in sys.modules)
    gradmgr.special.erf(1.0)
    assert "scipy.special" in sys.modules
    """)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_the_first_and_the_last_axis_of_a_number(name: str) -> None:
    for axis in (0, -1):
        found = getattr(special, name)(tensor(2.5), axis=axis)
        np.testing.assert_array_equal(found.numpy(), getattr(scipy.special, name)(2.5, axis=axis))
    with pytest.raises(np.exceptions.AxisError, match=name):
        getattr(special, name)(tensor(2.5), axis=1)


def test_overflow_gives_infinity_without_a_warning_as_scipys() -> None:
    x = tensor([1e4, -1.0])
    assert special.expm1(x).tolist()[0] == np.inf
    assert special.log1p(x).tolist()[1] == -np.inf
    assert special.logsumexp(tensor([np.inf, 1e4])).item() == np.inf


def test_the_dimension_of_the_multivariate_gamma_function_has_no_derivative() -> None:
    d = tensor(2.0)
    assert special.multigammaln(tensor(3.0), d).item() == special.multigammaln(tensor(3.0), 2).item()
    with GradManager().attach(d), pytest.raises(errors.UnsupportedFunctionError, match="no derivative in d"):
        special.multigammaln(3.0, d)
