"""The error function and the normal distribution by our own approximations: how exact, and the borders of blocks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.special

import gradmgr
from gradmgr import GradManager, special, tensor
from gradmgr.ops import normal_distribution

INF, NAN = np.inf, np.nan


def _hazard(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        below = np.sqrt(2 / np.pi) / scipy.special.erfcx(-x / np.sqrt(2))
        return np.where(x < 0, below, np.exp(-x * x / 2) / np.sqrt(2 * np.pi) / scipy.special.ndtr(x))


SCIPYS = {
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "ndtr": scipy.special.ndtr,
    "log_ndtr": scipy.special.log_ndtr,
    "hazard": _hazard,
}
ULPS = {"erf": 5, "erfc": 10, "ndtr": 10, "log_ndtr": 10, "hazard": 10}  # as the docstrings say
BLOCK = {np.float32: 32768, np.float64: 16384}


def everywhere(dtype: Any) -> np.ndarray:
    """Densely where the functions are curved, their tails, all sizes down to the smallest, and what is no number."""
    info = np.finfo(dtype)
    sizes = 2.0 ** np.linspace(np.log2(float(info.smallest_subnormal)), np.log2(float(info.max)) - 1e-9, 20001)
    parts = [np.linspace(-6, 6, 200001), np.linspace(-40, 40, 100001), sizes, -sizes, [0.0, -0.0, INF, -INF, NAN]]
    return np.concatenate(parts).astype(dtype)


def ulps(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distances in units of the last place of what is expected, rounded."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(found.dtype)
        apart = np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(rounded)).astype(np.float64)
    return np.where((found == rounded) | (np.isnan(found) & np.isnan(rounded)), 0.0, apart)


@pytest.mark.parametrize("name", SCIPYS)
def test_single_precision_everywhere(name: str) -> None:
    x = everywhere(np.float32)
    found = getattr(normal_distribution, name)(x)
    assert found.dtype == np.float32
    assert ulps(found, SCIPYS[name](x.astype(np.float64))).max() <= ULPS[name]


@pytest.mark.parametrize("name", SCIPYS)
def test_double_precision_where_scipys_is_exact(name: str) -> None:
    """SciPy's lose digits in their tails, where one takes the square of a rounded number."""
    x = everywhere(np.float64)
    found, expected = getattr(normal_distribution, name)(x), SCIPYS[name](x)
    near = ~(np.abs(x) > 1)
    assert ulps(found[near], expected[near]).max() <= 2 * ULPS[name]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


# By mpmath, in 50 digits.
POINTS = {
    "erf": {
        1e-300: 1.1283791670955126e-300,
        1e-08: 1.1283791670955126e-08,
        0.01: 0.011283415555849618,
        0.1: 0.1124629160182849,
        0.3: 0.3286267594591274,
        0.7: 0.6778011938374184,
        1.5: 0.9661051464753108,
        -2.5: -0.999593047982555,
        4.0: 0.9999999845827421,
        5.5: 0.9999999999999927,
    },
    "erfc": {
        -3.0: 1.9999779095030015,
        1e-09: 0.9999999988716208,
        0.3: 0.6713732405408726,
        1.0: 0.15729920705028513,
        3.0: 2.209049699858544e-05,
        6.0: 2.1519736712498913e-17,
        12.0: 1.3562611692059042e-64,
        20.0: 5.395865611607901e-176,
        25.3: 2.293036860845902e-280,
    },
    "ndtr": {
        4.0: 0.9999683287581669,
        0.7: 0.758036347776927,
        1e-09: 0.5000000003989423,
        -0.3: 0.3820885778110474,
        -1.0: 0.15865525393145705,
        -5.0: 2.866515718791939e-07,
        -12.0: 1.776482112077679e-33,
        -25.0: 3.056696706382561e-138,
        -36.6: 1.4300370427625566e-293,
    },
    "log_ndtr": {
        30.0: -4.906713927148187e-198,
        8.0: -6.220960574271786e-16,
        0.7: -0.2770239422771313,
        1e-09: -0.6931471797620608,
        -0.3: -0.9621028181688507,
        -5.0: -15.064998393988725,
        -36.6: -674.2997318992893,
        -60.0: -1805.0135606805673,
        -1000.0: -500007.82669481216,
        -100000000.0: -5000000000000019.0,
        -1000000000000.0: -5e23,
    },
    "hazard": {
        30.0: 1.4736461348785476e-196,
        8.0: 5.052271083536895e-15,
        0.7: 0.41192475041929066,
        1e-09: 0.7978845601662455,
        -0.3: 0.9981659688584833,
        -5.0: 5.186503967125842,
        -36.6: 36.62728176269669,
        -60.0: 60.016657420241124,
        -1000.0: 1000.000999998,
        -100000000.0: 100000000.00000001,
        -1000000000000.0: 1000000000000.0,
    },
}


@pytest.mark.parametrize("name", POINTS)
def test_double_precision_at_known_points(name: str) -> None:
    x, expected = np.array(list(POINTS[name])), np.array(list(POINTS[name].values()))
    assert ulps(getattr(normal_distribution, name)(x), expected).max() <= ULPS[name]


@pytest.mark.parametrize("name", ["erf", "erfc", "ndtr", "log_ndtr"])
def test_the_ends_are_exact(name: str) -> None:
    x = np.array([INF, -INF, NAN, 0.0, -0.0])
    for dtype in (np.float32, np.float64):
        found, expected = getattr(normal_distribution, name)(x.astype(dtype)), SCIPYS[name](x).astype(dtype)
        np.testing.assert_allclose(found, expected, rtol=np.finfo(dtype).eps)
        assert np.signbit(found[-1]) == np.signbit(expected[-1])


@pytest.mark.parametrize("dtype", BLOCK)
@pytest.mark.parametrize("name", ["erf", "ndtr", "log_ndtr"])
def test_borders_of_blocks_layouts_and_threads(name: str, dtype: Any) -> None:
    block, f = BLOCK[dtype], getattr(special, name)
    random, threads = np.random.default_rng(0), gradmgr.get_num_threads()
    x = random.normal(size=5 * block + 3).astype(dtype)
    try:
        gradmgr.set_num_threads(1)
        whole = f(x)
        gradmgr.set_num_threads(3)
        np.testing.assert_array_equal(f(x), whole)
    finally:
        gradmgr.set_num_threads(threads)
    for count in (block - 1, block, block + 1):
        np.testing.assert_array_equal(f(x[:count]), whole[:count])
    np.testing.assert_array_equal(f(x[::2]), whole[::2])
    table = x[: 6 * 7000].reshape(6, 7000)
    for given in (table.T, table[:, ::-1], table.reshape(2, 3, 7000).swapaxes(0, 2)):
        np.testing.assert_array_equal(f(given), f(np.ascontiguousarray(given)))
    assert f(np.zeros((0, 3), dtype)).shape == (0, 3)
    assert not x.flags.owndata or x.flags.writeable
    broadcast = np.broadcast_to(dtype(0.5), (3, 5000))
    np.testing.assert_array_equal(f(broadcast), np.full((3, 5000), f(np.full(15000, 0.5, dtype))[0]))


@pytest.mark.parametrize("name", ["erf", "erfc", "ndtr", "log_ndtr"])
def test_few_and_many_agree_with_their_derivatives(name: str) -> None:
    """Few numbers go to SciPy."""
    x = np.random.default_rng(1).normal(size=20000).astype(np.float32)
    found = {}
    for label, value in (("many", x), ("few", x[:100])):
        t = tensor(value)
        manager = GradManager().attach(t)
        with manager:
            y = getattr(special, name)(t)
            manager.backward(y, np.ones(y.shape, y.dtype))
        found[label] = y.numpy()[:100], t.grad.numpy()[:100]
    for many, few in zip(found["many"], found["few"], strict=True):
        np.testing.assert_allclose(many, few, rtol=2e-6)


WITHOUT_SCIPY = """
import sys

sys.modules["scipy"] = None  # what Python takes for a module that is not there
import numpy as np
from gradmgr import errors, special, tensor, vmap

assert abs(special.erf(0.5) - 0.5204998778130465) < 1e-15
assert special.erf(np.float32(0.5)).dtype == np.float32
assert special.erf(np.int64(1)) == special.erf(1.0)
assert special.ndtr(tensor([0.0])).numpy().tolist() == [0.5]
assert special.erfc(np.zeros((2, 0))).shape == (2, 0)
np.testing.assert_array_equal(vmap(special.erf)(np.array([[0.5, 1.0]])), [[special.erf(0.5), special.erf(1.0)]])
out = np.zeros(2)
assert special.erf(np.ones(2), out=out) is out and out[0] == special.erf(1.0)
try:
    special.erf(1j)
except errors.MissingDependencyError:
    pass
else:
    raise SystemExit("complex numbers need SciPy")
"""


def test_without_scipy() -> None:
    command = [sys.executable, "-c", WITHOUT_SCIPY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a program of ours
    assert done.returncode == 0, done.stderr
