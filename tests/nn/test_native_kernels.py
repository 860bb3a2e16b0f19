"""Kernels in C of gradmgr-native: what they compute against NumPy's way and against exact values, and in replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
from machine import MACHINE, assert_same_bits, needs_machine

import gradmgr
from gradmgr import GradManager, tensor
from gradmgr._arrays import native_kernels
from gradmgr.nn import functional as F  # noqa: N812  # torch's name

Function = Callable[..., Any]

pytestmark = [needs_machine, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

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
    x = np.concatenate([np.linspace(low, 13, 2001), normal(1000), np.geomspace(1e-30, 1, 100)]).astype(dtype)
    assert exact_ulps(F.gelu(x, name), x, exact) < limit


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["none", "tanh"])
def test_slopes_of_gelu_are_exact_to_a_few_ulps_of_1(name: str, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-13, 13, 1001), normal(500)]).astype(dtype)
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


CASES: dict[str, tuple[Function, Sequence[tuple[int, ...]]]] = {
    "softmax": (lambda x: F.softmax(x, -1), [(37, 129)]),
    "softmax of long rows": (lambda x: F.softmax(x, -1), [(3, 9001)]),
    "softmax of a row": (lambda x: F.softmax(x, 0), [(5,)]),
    "softmax of stacks": (lambda x: F.softmax(x, 2), [(2, 3, 17)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [(37, 129)]),
    "log_softmax of scipy": (lambda x: gradmgr.special.log_softmax(x, -1), [(37, 129)]),
    "log_softmax of long rows": (lambda x: F.log_softmax(x, -1), [(3, 9001)]),
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
    "batch_norm of one image": (batch_norm, [(1, 3, 40), (3,), (3,)]),
    "batch_norm without weight": (batch_norm, [(3, 6, 35)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 6, 5, 7), (6,), (6,)]),
    "group_norm without weight": (lambda x: F.group_norm(x, 3), [(3, 6, 35)]),
    "group_norm of few values": (lambda x, w: F.group_norm(x, 3, w), [(5, 6, 2), (6,)]),
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
            np.testing.assert_array_equal(one, other)


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


# ---------------------------------------------------------------- the library


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
