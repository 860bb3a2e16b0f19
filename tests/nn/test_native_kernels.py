"""Kernels in C of gradmgr-native: what they compute against NumPy's way and against exact values, and in replays."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from machine import MACHINE, assert_same_bits, needs_machine

import gradmgr
from gradmgr import GradManager, optim, tensor
from gradmgr._arrays import native_kernels
from gradmgr.nn import functional as F  # noqa: N812  # torch's name
from gradmgr.special import logsumexp
from gradmgr.vmap import vmap

Function = Callable[..., Any]

HAS_KERNELS = native_kernels.kernels.get("gelu", np.dtype(np.float32)) is not None
pytestmark = [
    needs_machine,
    pytest.mark.skipif(not HAS_KERNELS, reason=f"needs kernels: {native_kernels.kernels.reason}"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

TYPES = [np.float32, np.float64]
NAN, INF = np.nan, np.inf


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function from whose call on there are no kernels."""
    return lambda: monkeypatch.setattr(native_kernels.kernels, "_found", {})


def results(function: Function, arrays: Sequence[Any], seed: int = 7) -> list[Any]:
    """The result of a function of arrays, and the derivatives of it times random numbers."""
    given = [tensor(a) for a in arrays]
    gm = GradManager().attach(given)
    with gm:
        y = function(*given)
        g = np.random.default_rng(seed).normal(size=y.shape).astype(y.dtype)
        gm.backward(y, tensor(g))
    return [y.numpy(), *[t.grad.numpy() for t in given]]


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def ulps(found: Any, expected: Any) -> float:
    """The largest difference in units of the last place of the largest expected number nearby: of the whole array."""
    return float(np.max(np.abs(found - expected)) / np.spacing(np.max(np.abs(expected))))


def exact_ulps(found: Any, x: Any, exact: Callable[[Any], Any]) -> float:
    """The largest difference from exact values, each in units of its own last place."""
    worst = 0.0
    with mpmath.workdps(40):
        for number, value in zip(found, x, strict=True):
            wanted = exact(mpmath.mpf(float(value)))
            unit = float(np.spacing(found.dtype.type(abs(float(wanted)))))
            worst = max(worst, float(abs(mpmath.mpf(float(number)) - wanted)) / unit)
    return worst


# ---------------------------------------------------------------- look-ups


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 5, 16, 40])
def test_gradients_of_look_ups_are_added_in_order(dtype, columns, without_kernels):
    table, g = normal(9, columns, dtype=dtype), normal(60, columns, dtype=dtype, seed=1)
    places = np.random.default_rng(2).integers(0, 9, (6, 10)).astype(np.int32)[:, ::-1]

    def gradient() -> Any:
        w = tensor(table)
        with GradManager().attach(w) as gm:
            gm.backward(F.embedding(places, w), g.reshape(6, 10, columns))
        return w.grad.numpy()

    expected = np.zeros_like(table)
    np.add.at(expected, places.ravel(), g)  # one after the other
    assert gradient().tobytes() == expected.tobytes()
    without_kernels()
    assert ulps(gradient(), expected) <= 4


# ---------------------------------------------------------------- gelu


def exact_gelu(x: Any) -> Any:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def exact_gelu_tanh(x: Any) -> Any:
    return x / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "exact", "low", "limit"), [("none", exact_gelu, -13, 8), ("tanh", exact_gelu_tanh, -3, 10)]
)
def test_gelu_is_exact_to_a_few_ulps(name: str, exact: Any, low: float, limit: float, dtype: Any) -> None:
    x = np.concatenate([np.linspace(low, 13, 1001), normal(500), np.geomspace(1e-30, 1, 100)]).astype(dtype)
    assert exact_ulps(F.gelu(x, name), x, exact) < limit


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["none", "tanh"])
def test_slopes_of_gelu_are_exact_to_a_few_ulps_of_1(name: str, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-13, 13, 401), normal(100)]).astype(dtype)
    exact = exact_gelu if name == "none" else exact_gelu_tanh
    slope = np.array([float(mpmath.diff(exact, float(value))) for value in x])
    found = [results(lambda t: F.gelu(t, name), [x])[1] / normal_seed(x)]
    if name == "none":  # for the other one there is no kernel of the slope alone
        found.append(slopes_recorded(x))
    for one in found:
        assert np.abs(one - slope).max() < 3 * np.finfo(dtype).eps


def normal_seed(x: Any) -> Any:
    return np.random.default_rng(7).normal(size=x.shape).astype(x.dtype)


def slopes_recorded(x: Any) -> Any:
    """Derivatives computed by operations that could be differentiated again."""
    t = tensor(x)
    outer, inner = GradManager().attach([t]), GradManager().attach([t])
    with outer, inner:
        y = F.gelu(t)
        inner.backward(y, tensor(np.ones_like(x)))
    return t.grad.numpy()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["none", "tanh"])
def test_gelu_of_special_values(name: str, dtype: Any, without_kernels: Callable[[], None]) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([NAN, INF, -INF, 0.0, -0.0, tiny, -tiny, 1e30, -1e30, 88, -88, *np.arange(21.0) - 10], dtype)
    found = results(lambda t: F.gelu(t, name), [x])
    assert np.isnan(found[0][0])
    assert found[0][1] == INF
    assert found[0][2] == 0
    np.testing.assert_array_equal(np.signbit(found[0][3:5]), [False, True])
    without_kernels()
    eps = np.finfo(dtype).eps
    for one, other in zip(found, results(lambda t: F.gelu(t, name), [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=40 * eps, atol=8 * eps)


# ---------------------------------------------------------------- all kernels, as functions of arrays


def gelu(x: Any) -> Any:
    return F.gelu(x)


def gelu_tanh(x: Any) -> Any:
    return F.gelu(x, "tanh")


def rows_and_weights(function: Function, *more: Any) -> Function:
    return lambda x, *weights: function(x, x.shape[-1:], *weights, *more)


def batch_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
    return F.batch_norm(x, None, None, weight, bias, training=True)


LABELS = np.random.default_rng(3).integers(0, 33, 129)


def loss(reduction: str) -> Function:
    return lambda x: F.cross_entropy(x, LABELS[: len(x)] % x.shape[1], reduction=reduction)


MASK = np.random.default_rng(5).random((9, 20)) < 0.6
MASK[2] = False  # all is masked


def attention(**options: Any) -> Function:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def attention_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, bias)


GRID = np.random.default_rng(6).uniform(-1.6, 1.6, (2, 37, 11, 2))  # some of it outside
VOLUME = np.random.default_rng(6).uniform(-1.4, 1.4, (2, 5, 3, 7, 3))


def sampled(mode: str, padding_mode: str, corners: bool, grid: Any = GRID) -> Function:
    """Sampling at given positions, moved by the second argument, if there is one."""

    def function(x: Any, *moves: Any) -> Any:
        places = np.asarray(grid, x.dtype)
        return F.grid_sample(x, places + moves[0] * 0.03 if moves else places, mode, padding_mode, corners)

    return function


def regular(a: Any) -> Any:
    """Matrices of which rounding errors are not made larger."""
    return a + 4 * np.sqrt(a.shape[-1]) * np.eye(a.shape[-1], dtype=a.dtype)[::-1]


def resized(mode: str, size: Any, corners: bool | None = None) -> Function:
    return lambda x: F.interpolate(x, size, mode=mode, align_corners=corners)


CASES: dict[str, tuple[Function, Sequence[tuple[int, ...]]]] = {
    "softmax": (lambda x: F.softmax(x, -1), [(37, 129)]),
    "softmax of long rows": (lambda x: F.softmax(x, -1), [(3, 9001)]),
    "softmax of a row": (lambda x: F.softmax(x, 0), [(5,)]),
    "softmax of stacks": (lambda x: F.softmax(x, 2), [(2, 3, 17)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [(37, 129)]),
    "log_softmax of scipy": (lambda x: gradmgr.special.log_softmax(x, -1), [(37, 129)]),
    "log_softmax of long rows": (lambda x: F.log_softmax(x, -1), [(3, 9001)]),
    "logsumexp": (lambda x: logsumexp(x, -1), [(37, 129)]),
    "logsumexp of a long row": (lambda x: logsumexp(x, None), [(3, 9001)]),
    "logsumexp of columns": (lambda x: logsumexp(x, 0), [(300, 70)]),
    "logsumexp of stacks": (lambda x: logsumexp(x, 1, keepdims=True), [(4, 33, 5)]),
    "cross_entropy": (loss("mean"), [(129, 33)]),
    "cross_entropy of rows": (loss("none"), [(129, 33)]),
    "cross_entropy summed": (loss("sum"), [(129, 700)]),
    "cross_entropy of one row": (loss("mean"), [(1, 3)]),
    "layer_norm": (rows_and_weights(F.layer_norm), [(130, 37), (37,), (37,)]),
    "layer_norm of long rows": (rows_and_weights(F.layer_norm), [(3, 9001), (9001,), (9001,)]),
    "layer_norm of stacks": (lambda x, w: F.layer_norm(x, (3, 5), w), [(2, 4, 3, 5), (3, 5)]),
    "layer_norm without weight": (rows_and_weights(F.layer_norm), [(130, 37)]),
    "layer_norm with a bias": (lambda x, b: F.layer_norm(x, (16,), None, b), [(4, 16), (16,)]),
    "rms_norm": (rows_and_weights(F.rms_norm), [(130, 37), (37,)]),
    "rms_norm without weight": (rows_and_weights(F.rms_norm), [(2, 37)]),
    "batch_norm": (batch_norm, [(3, 6, 5, 7), (6,), (6,)]),
    "batch_norm of many small images": (batch_norm, [(300, 2, 3, 7), (2,), (2,)]),
    "batch_norm of one image": (batch_norm, [(1, 3, 40), (3,), (3,)]),
    "batch_norm without weight": (batch_norm, [(3, 6, 35)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), [(3, 4, 10, 12)]),
    "max_pool2d overlapping": (lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, ceil_mode=True), [(3, 4, 10, 7)]),
    "max_pool2d dilated": (lambda x: F.max_pool2d(x, 3, 1, 1, (2, 3)), [(2, 1, 9, 11)]),
    "max_pool2d of gaps": (lambda x: F.max_pool2d(x, 2, 5), [(1, 2, 13, 14)]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2), [(3, 4, 12)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), [(3, 4, 10, 12)]),
    "avg_pool2d overlapping": (lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, ceil_mode=True), [(3, 4, 10, 7)]),
    "avg_pool2d without padding": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), [(2, 3, 9, 40)]),
    "avg_pool2d of gaps": (lambda x: F.avg_pool2d(x, 2, 5, divisor_override=3), [(1, 2, 13, 84)]),
    "avg_pool2d of wide windows": (lambda x: F.avg_pool2d(x, (2, 37), (3, 3), (1, 18)), [(2, 2, 7, 90)]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2), [(3, 4, 12)]),
    **{
        f"grid_sample, {mode}, {padding_mode}, {corners}": (
            sampled(mode, padding_mode, corners),
            [(2, 3, 9, 14), *[(2, 37, 11, 2)] * (mode != "nearest")],
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding_mode, corners in (("zeros", False), ("border", True), ("reflection", False), ("reflection", True))
    },
    "grid_sample of volumes": (sampled("bilinear", "zeros", False, VOLUME), [(2, 3, 4, 6, 5), (2, 5, 3, 7, 3)]),
    "grid_sample of volumes, reflected": (
        sampled("bilinear", "reflection", True, VOLUME),
        [(2, 3, 4, 6, 5), (2, 5, 3, 7, 3)],
    ),
    "grid_sample of the images alone": (sampled("bilinear", "border", False), [(2, 300, 2, 3)]),
    "grid_sample of one number": (sampled("bilinear", "reflection", True), [(2, 1, 1, 1), (2, 37, 11, 2)]),
    "interpolate, nearest": (resized("nearest", (20, 31)), [(2, 3, 10, 13)]),
    "interpolate, nearest-exact, fewer": (resized("nearest-exact", 7), [(2, 3, 10, 13)]),
    "interpolate, linear": (resized("linear", 31), [(2, 3, 13)]),
    "interpolate, bilinear": (resized("bilinear", (20, 700)), [(2, 3, 10, 33)]),
    "interpolate, bilinear, one axis": (resized("bilinear", (20, 33), True), [(2, 3, 10, 33)]),
    "interpolate, bilinear, fewer": (resized("bilinear", 5, True), [(2, 3, 10, 13)]),
    "interpolate, bicubic": (resized("bicubic", (23, 11)), [(2, 3, 10, 13)]),
    "interpolate, trilinear": (resized("trilinear", (3, 9, 8)), [(2, 2, 5, 4, 7)]),
    "interpolate, trilinear, two axes": (resized("trilinear", (5, 4, 8)), [(2, 2, 5, 4, 7)]),
    "interpolate, to the same": (resized("bilinear", (4, 7)), [(2, 2, 4, 7)]),
    "solve": (lambda a, b: np.linalg.solve(regular(a), b), [(37, 4, 4), (37, 4, 2)]),
    "solve of vectors": (lambda a, b: np.linalg.solve(regular(a), b[..., None])[..., 0], [(2, 9, 3, 3), (9, 3)]),
    "solve, transposed": (lambda a, b: np.linalg.solve(regular(a).swapaxes(-1, -2), b), [(20, 16, 16), (20, 16, 1)]),
    "inv": (lambda a: np.linalg.inv(regular(a)), [(37, 5, 5)]),
    "inv of numbers": (np.linalg.inv, [(5, 1, 1)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 6, 5, 7), (6,), (6,)]),
    "group_norm without weight": (lambda x: F.group_norm(x, 3), [(3, 6, 35)]),
    "group_norm of few values": (lambda x, w: F.group_norm(x, 3, w), [(5, 6, 2), (6,)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 9, 5), (2, 3, 11, 5), (2, 3, 11, 4)]),
    "attention, causal": (attention(is_causal=True), [(2, 70, 8)] * 3),
    "attention, of many rows": (attention(is_causal=True), [(3, 200, 16)] * 3),
    "attention, masked": (attention(attn_mask=MASK), [(2, 2, 9, 5), (2, 2, 20, 5), (2, 2, 20, 3)]),
    "attention, biased": (attention_with_bias, [(2, 9, 5), (2, 9, 5), (2, 9, 5), (9, 9)]),
    "attention, scaled": (attention(scale=-0.3), [(4, 8)] * 3),
    "gelu": (gelu, [(37, 129)]),
    "gelu of one": (gelu, [(1,)]),
    "gelu of a scalar": (gelu, [()]),
    "gelu of none": (gelu, [(0, 3)]),
    "gelu of many": (gelu, [(600, 513)]),
    "gelu_tanh": (gelu_tanh, [(5, 7, 3)]),
    "gelu_tanh of many": (gelu_tanh, [(600, 513)]),
}
cases = pytest.mark.parametrize("case", CASES)


def arrays_of(case: str, dtype: Any) -> list[Any]:
    return [normal(*shape, dtype=dtype, seed=k) * dtype(1.5) for k, shape in enumerate(CASES[case][1])]


@cases
@pytest.mark.parametrize("dtype", TYPES)
def test_agrees_with_numpy(case: str, dtype: Any, without_kernels: Callable[[], None]) -> None:
    function, arrays = CASES[case][0], arrays_of(case, dtype)
    found = results(function, arrays)
    without_kernels()
    for one, other in zip(found, results(function, arrays), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert not one.size or ulps(one, other) < 32  # what NumPy computes is off by most of it


@cases
def test_of_any_layout_gives_the_same_bits(case: str) -> None:
    function, arrays = CASES[case][0], arrays_of(case, np.float32)
    expected = results(function, arrays)
    for laid_out in (np.asfortranarray, lambda a: np.repeat(a, 2, -1)[..., ::2] if a.ndim else a, unaligned):
        for one, other in zip(results(function, [laid_out(a) for a in arrays]), expected, strict=True):
            if case.startswith(("attention", "batch_norm")):  # BLAS computes products, kernels sums in another order
                assert ulps(one, other) < 8
            else:
                np.testing.assert_array_equal(one, other)


OF_IMAGES = [case for case in CASES if case.startswith(("batch_norm", "max_pool", "avg_pool", "gelu_tanh"))]


@pytest.mark.parametrize("case", OF_IMAGES)
@pytest.mark.parametrize("channels", [1, 3, 16, 37])
def test_channels_that_are_last_give_the_same_and_stay_last(case: str, channels: int) -> None:
    function, (shape, *others) = CASES[case]
    shapes = [(shape[0], channels, *shape[2:]), *[(channels,) for _ in others]]
    x, *rest = [normal(*shape, seed=k).astype(np.float32) for k, shape in enumerate(shapes)]
    expected = results(function, [x, *rest])
    found = results(function, [np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1), *rest])
    for one, other in zip(found, expected, strict=True):
        if case.startswith(("max_pool", "gelu")):
            np.testing.assert_array_equal(one, other)
        else:  # sums in another order
            assert ulps(one, other) < 8
    assert np.moveaxis(found[0], 1, -1).flags.c_contiguous


def unaligned(a: Any) -> Any:
    """The same array at an odd address."""
    made = np.frombuffer(bytearray(a.nbytes + 1), np.uint8)[1:].view(a.dtype).reshape(a.shape)
    made[...] = a
    return made


@cases
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("native", [False, True])
def test_a_compiled_step_gives_the_bits_of_eager(case: str, dtype: Any, native: bool) -> None:
    function, arrays = CASES[case][0], arrays_of(case, dtype)
    given = [tensor(a) for a in arrays]
    gm = GradManager().attach(given)

    def step(*values: Any) -> list[Any]:
        with gm:
            y = function(*[t * v for t, v in zip(given, values, strict=True)])
            gm.backward(y, y * 0.5)
        return [y, *[t.grad for t in given]]

    compiled = gradmgr.compile(step, native=native)
    for k in range(4):
        values = [normal(*a.shape, dtype=dtype, seed=10 + k) for a in arrays]
        found = [t.numpy() for t in compiled(*values)]
        for t in given:
            t.grad = None
        expected = [t.numpy() for t in step(*values)]
        for t in given:
            t.grad = None
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other)
    assert "variant" in compiled.explain()
    assert "eagerly" not in compiled.explain()


@cases
def test_threads_do_not_change_a_bit(case: str) -> None:
    function, arrays = CASES[case][0], arrays_of(case, np.float32)
    expected = results(function, arrays)
    gradmgr.set_num_threads(2)
    try:
        for one, other in zip(results(function, arrays), expected, strict=True):
            assert_same_bits(one, other)
    finally:
        gradmgr.set_num_threads(1)


# ---------------------------------------------------------------- rows of special values


ROWS = [
    [1.0, 2.0, 3.0],
    [5.0, 5.0, 5.0],
    [1000.0, 0.0, -1000.0],
    [-1000.0, -1001.0, -1002.0],
    [1e30, -1e30, 0.0],
    [0.0, -0.0, 1e-40],
    [-INF, 0.0, 1.0],
    [-INF, -INF, -INF],
    [INF, 0.0, 1.0],
    [INF, INF, 0.0],
    [NAN, 0.0, 1.0],
    [-NAN, 3.0, 1.0],
    [3.0, 1.0, NAN],
    [-INF, NAN, INF],
]
OF_ROWS = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "log_softmax of scipy": lambda x: gradmgr.special.log_softmax(x, -1),
    "logsumexp": lambda x: logsumexp(x, -1),
    "logsumexp of columns": lambda x: logsumexp(x.T, 0),
    "cross_entropy": lambda x: F.cross_entropy(x, np.arange(len(ROWS)) % 3, reduction="none"),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("repeat", [1, 29])
def test_rows_of_special_values_are_as_without_kernels(
    name: str, dtype: Any, repeat: int, without_kernels: Callable[[], None]
) -> None:
    x = np.repeat(np.array(ROWS, dtype), repeat, axis=1)
    found = results(OF_ROWS[name], [x])
    without_kernels()
    eps = np.finfo(dtype).eps
    for one, other in zip(found, results(OF_ROWS[name], [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=16 * eps, atol=4 * eps * (1 if name == "softmax" else 10))


@pytest.mark.parametrize("dtype", TYPES)
def test_softmax_is_exact_to_a_few_ulps(dtype: Any) -> None:
    x = normal(512, dtype=dtype)  # the difference from the largest is rounded: half an ulp for each 1 that it is
    found = F.softmax(x, -1)
    with mpmath.workdps(40):
        total = mpmath.fsum([mpmath.exp(mpmath.mpf(float(v))) for v in x])
        assert exact_ulps(found, x, lambda v: mpmath.exp(v) / total) < 7
        assert exact_ulps(F.log_softmax(x, -1), x, lambda v: v - mpmath.log(total)) < 3


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), [((9001,), 0), ((7, 40), 1), ((300, 70), 0)])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_logsumexp_is_exact_to_a_few_ulps(shape: tuple[int, ...], axis: int, shift: float, dtype: Any) -> None:
    x = normal(*shape, dtype=dtype) * 5 + dtype(shift)
    wide = x.astype(np.longdouble)
    top = wide.max(axis, keepdims=True)
    share = np.exp(wide - top)
    total = share.sum(axis, keepdims=True)
    found, slope = results(lambda t: logsumexp(t, axis), [x])
    exact = (np.log(total) + top).reshape(found.shape)
    assert np.all(np.abs(found - exact) <= 3 * np.spacing(np.maximum(abs(top.reshape(found.shape)), 1).astype(dtype)))
    weights = normal_seed(found)
    exact = share / total * np.expand_dims(weights, axis)
    eps = np.finfo(dtype).eps
    of_difference = np.abs(wide - np.expand_dims(found, axis)) * eps  # which is rounded
    assert np.all(np.abs(slope - exact) <= np.abs(exact) * (12 * eps + of_difference) + np.finfo(dtype).tiny)
    sums = slope.sum(axis, dtype=np.longdouble)
    assert np.all(np.abs(sums - weights) <= 10 * eps * np.abs(weights))


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_attention_are_exact_to_a_few_ulps(dtype: Any) -> None:
    x = normal(300, dtype=dtype)
    given = np.full((1, 1), 3, dtype), x[:, None], np.eye(300, dtype=dtype)  # of which the weights are the result
    with mpmath.workdps(40):
        total = mpmath.fsum([mpmath.exp(mpmath.mpf(float(v))) for v in x])
        found = F.scaled_dot_product_attention(*given, scale=1 / 3)
        # The factor is rounded once: by half an ulp of what the number is below the largest.
        assert exact_ulps(found[0], x, lambda v: mpmath.exp(v) / total) < 10


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 16, 37, 5000])
def test_layer_norm_is_exact_to_a_few_ulps(columns: int, dtype: Any) -> None:
    x = (normal(5, columns, dtype=dtype) + 3) * np.array([[1], [1e-3], [1e3], [1], [1e9]], dtype)
    exact = x.astype(np.longdouble)
    exact = exact - exact.mean(1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5)
    found = F.layer_norm(x, (columns,))
    # The values are about 1; the mean, which is three times as large as they are spread, is rounded once.
    assert np.abs(found - exact).max() <= 24 * np.finfo(dtype).eps


@pytest.mark.parametrize("value", [0.0, 7.0, 1e30, NAN, INF])
def test_layer_norm_of_equal_and_of_special_values(value: float, without_kernels: Callable[[], None]) -> None:
    x = np.full((3, 24), value, np.float32)
    x[2, 1] = 1
    found = [F.layer_norm(x, (24,)), F.group_norm(x.reshape(3, 1, 24), 1)]
    without_kernels()
    expected = [F.layer_norm(x, (24,)), F.group_norm(x.reshape(3, 1, 24), 1)]
    for one, other in zip(found, [a.reshape(3, 24) for a in expected], strict=True):
        one = one.reshape(3, 24)
        if np.isfinite(value):  # without kernels what rounding leaves is scaled by 1 / sqrt(eps)
            np.testing.assert_array_equal(one[:2], 0)
            np.testing.assert_allclose(other[:2], 0, atol=1e-3 if value < 1e6 else np.inf)
            assert np.isfinite(one).all()
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size"),
    [
        *[(2, 2, 0, 1, size) for size in [(4, 4), (28, 30), (7, 9), (2, 34), (33, 2)]],
        *[(3, 2, 1, 1, size) for size in [(5, 5), (16, 32), (19, 41)]],
        *[((3, 2), (1, 3), (1, 0), (2, 1), (12, 35)), (5, 1, 2, 1, (9, 20)), (2, 5, 0, 1, (20, 23))],
        *[((1, 4), (1, 2), (0, 2), (1, 3), (3, 40)), ((16, 16), 16, 8, 1, (20, 50)), (1, 2, 0, 1, (5, 40))],
    ],
)
def test_max_pool2d_finds_the_same_elements(
    kernel: Any, stride: Any, padding: Any, dilation: Any, size: tuple[int, int], dtype: Any,
    without_kernels: Callable[[], None],
) -> None:  # fmt: skip
    x = np.random.default_rng(0).integers(0, 4, (2, 3, *size)).astype(dtype)  # of which many are equal
    x[0, 1].reshape(-1)[::7] = NAN
    x[1, 1] = -INF
    x[1, 2].reshape(-1)[::3] = INF
    options = {"padding": padding, "dilation": dilation, "ceil_mode": True, "return_indices": True}
    found = F.max_pool2d(x, kernel, stride, **options)
    without_kernels()
    for one, other in zip(found, F.max_pool2d(x, kernel, stride, **options), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", TYPES)
def test_small_systems_are_as_exact_as_numpys(dtype: Any) -> None:
    a, b = normal(200, 6, 6, dtype=dtype), normal(200, 6, 2, dtype=dtype)
    exact = a.astype(np.longdouble)
    for x, unit in (
        (gradmgr.numpy.linalg.solve(tensor(a), b).numpy(), b),
        (np.linalg.inv(tensor(a)).numpy(), np.eye(6)),
    ):
        rest = np.abs(exact @ x - unit).max((1, 2))
        size = np.abs(a).max((1, 2)) * np.abs(x).max((1, 2))
        assert (rest <= 6 * np.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_small_systems_of_plain_arrays_are_solved_as_those_of_tensors(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("solve", "inv"):
        monkeypatch.setattr(np.linalg, name, None)  # which is not called
    a, b = normal(200, 6, 6, dtype=dtype), normal(200, 6, 2, dtype=dtype)
    solve, inv = gradmgr.numpy.linalg.solve, gradmgr.numpy.linalg.inv
    for plain, of_tensor in (
        (solve(a, b), solve(tensor(a), b)),
        (solve(a, b[0]), solve(tensor(a), b[0])),
        (solve(a, b[None]), solve(tensor(a), b[None])),
        (inv(a), inv(tensor(a))),
    ):
        assert type(plain) is np.ndarray
        np.testing.assert_array_equal(plain, of_tensor.numpy())


@pytest.mark.parametrize("dtype", TYPES)
def test_small_systems_under_vmap_are_solved_as_those_of_stacks(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    solve, inv = gradmgr.numpy.linalg.solve, gradmgr.numpy.linalg.inv
    a, b = tensor(normal(6, 40, 3, 3, dtype=dtype)), tensor(normal(6, 40, 3, 2, dtype=dtype))
    monkeypatch.setattr(np.linalg._linalg, "_umath_linalg", None)  # by which NumPy calls LAPACK
    for mapped, of_stack in (
        (vmap(inv)(a[0]), inv(a[0])),
        (vmap(vmap(inv))(a), inv(a)),
        (vmap(inv, in_dims=1)(a), inv(a).swapaxes(0, 1)),
        (vmap(solve)(a[0], b[0]), solve(a[0], b[0])),
        (vmap(solve)(a[0], b[0, :, :, 0]), solve(a[0], b[0, :, :, :1])[..., 0]),
        (vmap(solve, in_dims=(0, None))(a[0], b[0, 0]), solve(a[0], b[0, 0])),
        (vmap(solve, in_dims=(None, 0))(a[0], b), solve(a[0], b)),
        (vmap(vmap(solve), in_dims=(0, None))(a, b[0]), solve(a, b[0])),
    ):
        np.testing.assert_array_equal(mapped.numpy(), of_stack.numpy())


def test_derivatives_of_small_systems_under_vmap_are_those_of_stacks() -> None:
    a, b = normal(40, 3, 3, dtype=np.float64), normal(40, 3, 2, dtype=np.float64)
    solve = gradmgr.numpy.linalg.solve
    for one, other in zip(results(vmap(solve), (a, b)), results(solve, (a, b)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_singular_matrix_under_vmap_is_an_error_as_in_numpy(dtype: Any) -> None:
    a = normal(20, 3, 3, dtype=dtype)
    a[7] = 1
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        vmap(np.linalg.inv)(tensor(a))


@pytest.mark.parametrize("of", [tensor, np.asarray], ids=["Tensor", "array"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_singular_matrix_of_a_stack_is_an_error_as_in_numpy(dtype: Any, of: Any) -> None:
    a = normal(20, 3, 3, dtype=dtype)
    a[7] = [[1, 2, 3], [2, 4, 6], [0, 1, 1]]
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        gradmgr.numpy.linalg.solve(of(a), np.ones((3, 1), dtype))
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        gradmgr.numpy.linalg.inv(of(a))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((20, 3, 4), (3, 1)),
        ((20, 3, 3), (4, 1)),
        ((20, 3, 3), (19, 3, 1)),
        ((20, 3, 3), (3,)),
        ((20, 3, 3), (0, 3, 1)),
        ((20, 3, 3), (3, 0)),
    ],
)
def test_systems_of_plain_arrays_that_no_kernel_takes_are_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    def outcome(solve: Function) -> Any:
        try:
            return solve(normal(*a), normal(*b)).tolist()
        except ValueError as error:
            return type(error)

    assert outcome(gradmgr.numpy.linalg.solve) == outcome(np.linalg.solve)


def test_a_stack_with_a_matrix_near_a_singular_one_gives_numpys_numbers() -> None:
    a = normal(20, 3, 3, dtype=np.float64)
    a[3] = [[1, 2, 3], [4, 5, 6], [7, 8, 9 + 1e-14]]
    np.testing.assert_array_equal(np.linalg.inv(tensor(a)).numpy(), np.linalg.inv(a))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_positions_that_are_no_numbers_give_what_numpy_gives(
    mode: str, padding_mode: str, without_kernels: Callable[[], None]
) -> None:
    far = np.array([NAN, INF, -INF, 1e30, -1e30, 3e9, 0.2], np.float32)
    grid = np.stack(np.meshgrid(far, far), -1)[None]
    x = normal(1, 2, 5, 6)
    found = results(lambda t: F.grid_sample(t, grid, mode, padding_mode, False), [x])
    without_kernels()
    for one, other in zip(
        found, results(lambda t: F.grid_sample(t, grid, mode, padding_mode, False), [x]), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_positions_on_edges_have_numpys_slopes(
    mode: str, padding_mode: str, without_kernels: Callable[[], None]
) -> None:
    edges = np.array([-3, -1.25, -1, -0.75, 0, 0.75, 1, 1.25, 3], np.float32)
    grid, x = np.stack(np.meshgrid(edges, edges), -1)[None], normal(1, 2, 4, 4)
    functions = [
        lambda *given, corners=corners: F.grid_sample(*given, mode, padding_mode, corners) for corners in (False, True)
    ]
    found = [a for function in functions for a in results(function, [x, grid])]
    without_kernels()
    expected = [a for function in functions for a in results(function, [x, grid])]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_labels_that_change_are_checked_in_a_replay() -> None:
    x = tensor(normal(4, 3))
    compiled = gradmgr.compile(lambda labels: F.cross_entropy(x, labels))
    for _ in range(4):
        compiled(np.array([0, 1, 2, 0]))
    with pytest.raises(gradmgr.errors.LabelError):
        compiled(np.array([0, 1, 3, 0]))
    assert compiled(np.array([2, 1, 2, 0])).item() == F.cross_entropy(x, np.array([2, 1, 2, 0])).item()


@pytest.mark.parametrize(
    "more", [{"ignore_index": 1}, {"label_smoothing": 0.1}, {"weight": np.array([1.0, 2.0, 0.5], np.float32)}]
)
def test_other_losses_of_labels_are_those_without_kernels(
    more: dict[str, Any], without_kernels: Callable[[], None]
) -> None:
    def function(x: Any) -> Any:
        return F.cross_entropy(x, np.array([0, 1, 2, 1]), **more)

    found = results(function, [normal(4, 3)])
    without_kernels()
    for one, other in zip(found, results(function, [normal(4, 3)]), strict=True):
        assert_same_bits(one, other)


# ---------------------------------------------------------------- optimisers


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd with decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.01),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "momentum with decay, up": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, maximize=True),
    "dampened": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p),
    "adam with decay, up": lambda p: optim.Adam(p, weight_decay=0.1, maximize=True),
    "adamw": lambda p: optim.AdamW(p, weight_decay=0.1),
    "adamw up": lambda p: optim.AdamW(p, weight_decay=0.1, maximize=True),
    "amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "adam without a rate": lambda p: optim.Adam(p, lr=0.0),
}


def trained(make: Callable[[Any], Any], shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[Any]:
    """Parameters after some steps, of random gradients with special values among them; and the optimiser's state."""
    params = [tensor(normal(*shape, dtype=dtype, seed=k)) for k, shape in enumerate(shapes)]
    optimizer = make(params)
    for step in range(4):
        for k, p in enumerate(params):
            g = normal(*p.shape, dtype=dtype, seed=100 * step + k)
            g.reshape(-1)[:8] = [0, -0.0, 1e-40, 1e30, -1e30, 1, 1, 1]
            if step == 3:
                g.reshape(-1)[-3:] = [NAN, INF, -INF]
            p.grad = tensor(g)
        optimizer.step()
    state = optimizer.state_dict()["state"]
    return [*[p.numpy() for p in params], *[a for k in sorted(state) for a in state[k].values() if np.ndim(a)]]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shapes", [[(3, 7), (11,), (5, 5)], [(700, 701)], [(300_000,), (9,)]])
@pytest.mark.parametrize("threads", [1, 2])
def test_optimisers_give_the_bits_of_numpy(
    name: str, shapes: list[tuple[int, ...]], dtype: Any, threads: int, without_kernels: Callable[[], None]
) -> None:
    gradmgr.set_num_threads(threads)
    try:
        found = trained(OPTIMIZERS[name], shapes, dtype)
    finally:
        gradmgr.set_num_threads(1)
    without_kernels()
    for one, other in zip(found, trained(OPTIMIZERS[name], shapes, dtype), strict=True):
        np.testing.assert_array_equal(one, other)  # as NaN has several
        np.testing.assert_array_equal(np.signbit(one[one == 0]), np.signbit(other[one == 0]))


# ---------------------------------------------------------------- the library


def inputs_of_kernels(dtype: Any) -> dict[str, tuple[list[Any], tuple[int, ...], list[float]]]:
    """Arrays, lengths and numbers for each kernel."""
    x, g, w = (normal(12, 10 * 7, dtype=dtype, seed=k) * 2 for k in range(3))
    row, labels, pair = np.abs(normal(120, dtype=dtype)), np.arange(12) * 5, np.zeros(140, dtype)
    made: dict[str, tuple[list[Any], tuple[int, ...], list[float]]]
    made = {name: ([x, g], (840,), []) for name in ("gelu", "gelu_slope", "gelu_tanh")}
    made |= {name: ([g, x, w], (840,), []) for name in ("gelu_vjp", "gelu_tanh_vjp")}
    made |= {name: ([x, g], (12, 70), [1.0]) for name in ("softmax", "log_softmax")}
    made |= {name: ([g, -np.abs(x), w], (12, 70), [1.0]) for name in ("softmax_vjp", "log_softmax_vjp")}
    made |= {"logsumexp": ([x, row.copy()], (2, 35, 12), [])}
    made |= {"logsumexp_vjp": ([g, x, row + 4, w], (2, 35, 12), [])}
    tops = [row[:12], row[12:24], row[24:36]]
    places, shares = (np.arange(18) % 15).astype(f"i{np.dtype(dtype).itemsize}"), np.linspace(0, 1, 18).astype(dtype)
    made |= {
        "cross_entropy": ([x, labels, *tops], (12, 70), []),
        "cross_entropy_vjp": ([row, x, labels, *tops[:2], w], (12, 70), [1.0]),
        "attention": ([g > 0, x, row, row[12:]], (12, 70, 6), [0.7, 1, 3, 1]),
        "attention_vjp": ([g > 0, row + 9, row, x, w], (12, 70, 6), [1, 3, 1]),
        "norm_rows": ([x, row, row[1:], g, row[2:], row[100:]], (12, 70), [1e-5, 1, 1, 1]),
        "norm_rows_vjp": ([g, row, x, row[9:], row[7:], w, pair, pair], (12, 70), [1, 1]),
        "norm_groups": ([x, row, row[1:], g, row[2:], row[100:]], (12, 5, 14, 15), [1e-5, 1, 1]),
        "norm_groups_vjp": ([g, row, x, row[7:], row[9:], w, pair], (12, 5, 14, 15), [1]),
        "norm_channels": ([x, row, row[1:], g, *[np.zeros(10, dtype) for _ in range(3)]], (12, 10, 7), [1e-5, 1, 1]),
        "norm_channels_vjp": ([g, row, x, row[9:], row[8:], w, pair, pair], (12, 10, 7), [1]),
        "norm_columns": ([x, row, row[1:], g, *[np.zeros(21, dtype) for _ in range(3)]], (40, 21), [1e-5, 1, 1]),
        "norm_columns_vjp": ([g, row, x, row[9:], row[8:], w, pair, pair], (40, 21), [1]),
        "max_pool2d_columns": (
            [x, np.zeros(4 * 40, dtype), np.zeros(4 * 40, np.uint8)],
            (2, 6, 3, 2, 2, 4, 2, 20),
            [3, 1, 1, 0, 1, 1],
        ),
        "max_pool2d_columns_vjp": (
            [g, np.arange(840, dtype=np.uint8).reshape(12, 70) % 4, w],
            (2, 6, 3, 2, 2, 4, 2, 20),
            [2, 1, 0, 0, 1, 1],
        ),
        "avg_pool2d_columns": ([x, np.full(4, 7, dtype), w], (2, 6, 3, 2, 2, 4, 2, 20), [3, 1, 1, 0]),
        "avg_pool2d_columns_vjp": ([g, np.full(4, 7, dtype), w], (2, 6, 3, 2, 2, 4, 2, 20), [3, 1, 1, 0]),
        "max_pool2d": (
            [x, np.zeros(2 * 30, dtype), np.zeros(2 * 30, np.uint8), np.zeros(2000, dtype)],
            (2, 14, 20, 5, 6, 4, 5),
            [3, 3, 1, 1, 1, 1],
        ),
        "max_pool2d_vjp": (
            [g[:3], np.arange(210, dtype=np.uint8).reshape(3, 70) % 4, w],
            (3, 14, 20, 7, 10, 2, 2),
            [2, 2, 0, 0, 1, 1],
        ),
        "avg_pool2d": (
            [x, np.full(140, 4, dtype), np.zeros(9000, dtype), np.zeros(60, dtype)],
            (2, 14, 20, 5, 6, 4, 5),
            [3, 3, 1, 1],
        ),
        "avg_pool2d_vjp": (
            [g, np.full(140, 4, dtype), np.zeros(9000, dtype), w],
            (2, 14, 20, 5, 6, 4, 5),
            [3, 3, 1, 1],
        ),
        "grid_sample": ([x, g / 2, w], (1, 2, 1, 20, 21, 420), [2, 4, 0, 1]),
        "grid_slopes": ([g, x, g / 2, w], (1, 2, 1, 20, 21, 420), [2, 2, 2, 1]),
        "grid_spread": ([g, x / 2, w], (1, 2, 1, 20, 21, 420), [2, 2, 1, 0]),
        "resize": ([x, places, shares, places, shares, np.zeros(99, dtype), w], (2, 20, 15, 9, 9, 2, 2), []),
        "resize_vjp": ([g, places, shares, places, shares, np.zeros(999, dtype), w], (2, 20, 15, 9, 9, 2, 2), []),
        "solve": ([x, g, w, pair], (20, 5, 5), [1, 0]),
        "add_rows": ([g, np.arange(20) % 7, w], (20, 42, 20), []),
        "adam": ([g, x, w, np.abs(w) + 1], (840,), [5, 0.1, 0.9, 0.1, 0.99, 0.01, 2.0, 1e-8]),
        "sgd": ([g, x], (840,), [7, 0.1, 0.9, 0.1]),
        "sgd_momentum": ([g, x, w], (840,), [6, 0.1, 0.9, 0.1, 0.9]),
        "send": ([g, w], (840,), []),
    }
    assert made.keys() == native_kernels._SIGNATURES.keys()
    return made


def processors() -> list[str]:
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]  # NumPy's, of this processor
    return ["x86-64", *["x86-64-v3"] * bool(features.get("AVX2")), *["x86-64-v4"] * bool(features.get("AVX512_SKX"))]


# To compile the kernels for a processor takes 5 s: of those between the first and the last the slow test alone does.
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux" or shutil.which("gcc") is None,
    reason="compiles kernels for several processors of x86-64, with gcc on Linux",
)
@pytest.mark.parametrize("compared", ["the least and the most able", pytest.param("all", marks=pytest.mark.slow)])
def test_every_processor_gives_the_same_bits(compared: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "native" / "src" / "kernels.c"
    flags = ["-std=c11", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fno-math-errno"]
    flags += ["-fno-trapping-math", "-ffp-contract=off", "-fPIC", "-shared", "-DFOR_EACH_PROCESSOR="]
    found = []
    for processor in processors() if compared == "all" else (processors()[0], processors()[-1]):
        path = tmp_path / f"{processor}.so"
        command = ["gcc", *flags, f"-march={processor}", str(source), "-o", str(path), "-lm"]
        subprocess.run(command, check=True)  # noqa: S603  # a compiler, our own source
        library = ctypes.CDLL(str(path))
        found.append([written for dtype in TYPES for written in computed_by(library, dtype)])
    assert len(found) > 1
    for others in found[1:]:
        assert others == found[0]


def in_a_line(a: Any) -> Any:
    """A copy that begins a line of the cache, as scratch is used from the next one on."""
    memory = np.empty(a.nbytes + 64, np.uint8)
    made = memory[-memory.ctypes.data % 64 :][: a.nbytes].view(a.dtype).reshape(a.shape)
    made[...] = a
    return made


def computed_by(library: Any, dtype: Any) -> Iterator[bytes]:
    """The bytes of all arrays after each kernel has been run by its address."""
    for name, (given, lengths, numbers) in inputs_of_kernels(dtype).items():
        arrays = [in_a_line(a) for a in given]
        function = getattr(library, f"gradmgr_{name}_f{np.dtype(dtype).itemsize}")
        function.argtypes = [ctypes.c_void_p] * 5
        data = (ctypes.c_void_p * 8)(*[a.ctypes.data for a in arrays])
        dims, context = (ctypes.c_int64 * 8)(*lengths), (ctypes.c_double * 8)(*numbers)
        assert function(ctypes.addressof(context), ctypes.addressof(data), ctypes.addressof(dims), None, None) == 0
        yield b"".join([a.tobytes() for a in arrays])


def test_the_library_is_loaded_when_a_kernel_is_first_used() -> None:
    program = (
        "import sys, numpy, gradmgr; from gradmgr.nn import functional as F;"
        "print('gradmgr_native' in sys.modules); F.gelu(numpy.ones(3)); print('gradmgr_native' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603  # our own program
    assert done.stdout.split() == ["False", "True"]


def test_a_library_without_kernels_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        class _library:  # noqa: N801  # stands in for a CDLL
            pass

    monkeypatch.setattr(native_kernels.native, "load", Old)
    made = native_kernels._Kernels()
    assert made.get("gelu", np.dtype(np.float32)) is None
    assert "has no kernels" in made.reason


def test_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_kernels, "VERSION", 99)
    made = native_kernels._Kernels()
    assert made.get("gelu", np.dtype(np.float32)) is None
    assert "needs 99" in made.reason


def test_no_kernel_for_other_arrays() -> None:
    assert MACHINE is not None
    x = normal(3)
    assert native_kernels.find("gelu", x) is not None
    for other in (x.astype(np.float16), x.astype(">f4"), x.astype(complex), x[:0], x[0], normal(3, dtype=np.float64)):
        assert native_kernels.find("gelu", other, x) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 7, 16, 33, 1000])
@pytest.mark.parametrize("start", [0, 1, 15])
def test_what_is_sent_past_the_caches_arrives_and_nothing_else_changes(count: int, start: int, dtype: Any) -> None:
    given, into = normal(count, dtype=dtype), np.full(count + 40, 7, dtype)
    kernel = native_kernels.find("send", given)
    assert kernel is not None
    kernel(given, into[start : start + count], count)
    assert np.array_equal(into[start : start + count], given)
    assert (np.delete(into, np.s_[start : start + count]) == 7).all()
