"""Functions of large plain arrays, which take other paths than those of few elements: the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import gradient, value_and_gradients

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, special, tensor
from gradmgr._arrays.blocks import mapped
from gradmgr.ops.order import stable_order
from gradmgr.ops.where import where_kernel

INF, NAN = np.inf, np.nan
FEW, MANY = 500, 40001  # fewer and more elements than where the paths differ; more than a block


def repeated(values: Any, dtype: Any) -> np.ndarray:
    return np.resize(np.asarray(values, dtype), MANY)


# ---------------------------------------------------------------- the choice by bits


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_choice_by_bits_is_numpys(dtype: Any) -> None:
    random = np.random.default_rng(0)
    odd = [INF, -INF, NAN, 0.0, -0.0, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max]
    x, y = (random.permutation(np.resize(np.array([*odd, 1.5, -2.5], dtype), MANY)) for _ in range(2))
    condition = random.random(MANY) < 0.5
    for one, other in ((x, y), (x, 0.0), (x, 0), (0.0, y), (x, -0.0), (x, 1.0), (x, dtype(0)), (x, np.float64(0))):
        found, expected = where_kernel(one, other, condition), np.where(condition, one, other)
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("x", "y", "condition"),
    [
        (np.ones((60, 70), np.float32), np.zeros(70, np.float32), np.arange(70) > 3),
        (np.ones((60, 70), np.float32), np.zeros((60, 70)), np.ones((60, 70), bool)),
        (np.ones((60, 70), np.float32), 2.0, np.arange(4200).reshape(60, 70) % 3 > 0),
        (np.ones((60, 70), int), np.zeros((60, 70), int), np.arange(4200).reshape(60, 70) % 3 > 0),
        (np.ones((60, 70), np.float16), 0.0, np.arange(4200).reshape(60, 70) % 3 > 0),
        (np.ones((60, 70)), 0.0, np.arange(4200).reshape(60, 70) % 3),
        (np.ones((60, 70)), 0.0j, np.arange(4200).reshape(60, 70) % 3 > 0),
        (1.0, 0.0, np.arange(4200) % 3 > 0),
        (np.broadcast_to(np.float32(7), (60, 70)), 0.0, np.arange(4200).reshape(60, 70) % 3 > 0),
        (np.arange(8400.0).reshape(60, 140)[:, ::2], np.ones((70, 60)).T, np.arange(4200).reshape(60, 70) % 3 > 0),
    ],
)
def test_other_choices_are_numpys(x: Any, y: Any, condition: Any) -> None:
    found, expected = where_kernel(x, y, condition), np.where(condition, x, y)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


ORDERS: dict[str, Callable[[Any], Any]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "other": lambda a: np.ascontiguousarray(a.transpose(1, 0, 2)).transpose(1, 0, 2),
    "strided": lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
}


@pytest.mark.parametrize("first", ORDERS)
@pytest.mark.parametrize("second", ORDERS)
def test_a_choice_lies_in_memory_as_numpys(first: str, second: str) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 12, 10, 11))
    one, other = ORDERS[first](x), ORDERS[second](y)
    for mask in [order(random.random((12, 10, 11)) < 0.5) for order in ORDERS.values()]:
        for a, b in ((one, other), (one, 0.0), (0.0, other)):
            found, expected = where_kernel(a, b, mask), np.where(mask, a, b)
            assert found.strides == expected.strides
            assert found.tobytes() == expected.tobytes()


def test_what_is_chosen_may_be_written_to() -> None:
    x, g = np.ones(MANY), np.full(MANY, INF)
    condition = np.arange(MANY) % 2 == 0
    made = gnp.where(condition, tensor(x), 0.0)
    made += 1
    assert made.numpy()[:2].tolist() == [2, 1]
    to_x = gradient(lambda t: gnp.where(condition, t, 0.0), x, dy=g)
    assert to_x[:2].tolist() == [INF, 0]  # not NaN, as a product would give


# ---------------------------------------------------------------- many as few

CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "arctan": (gnp.arctan, 1),
    "arcsinh": (gnp.arcsinh, 1),
    "arctan2": (gnp.arctan2, 2),
    "clip": (lambda x: gnp.clip(x, -1, 1), 1),
    "copysign": (gnp.copysign, 2),
    "fmax": (gnp.fmax, 2),
    "fmin": (gnp.fmin, 2),
    "hypot": (gnp.hypot, 2),
    "logaddexp": (gnp.logaddexp, 2),
    "maximum": (gnp.maximum, 2),
    "minimum": (gnp.minimum, 2),
    "sinc": (gnp.sinc, 1),
    "root": (lambda x: abs(x) ** 0.5, 1),
    "entr": (lambda x: special.entr(abs(x)), 1),
    "expit": (special.expit, 1),
    "log_expit": (special.log_expit, 1),
    "logit": (lambda x: special.logit(special.expit(x)), 1),
    "rel_entr": (lambda x, y: special.rel_entr(abs(x), abs(y)), 2),
    "xlogy": (lambda x, y: special.xlogy(x, abs(y)), 2),
    "xlog1py": (lambda x, y: special.xlog1py(x, abs(y)), 2),
}
ODD = {
    "tame": [1.5, -0.3, 2.0, 0.7, -4.0],
    "with zeros and ties": [1.5, 0.0, -0.3, 1.5, 0.0, 2.0],
    "that leave the range when squared": [1e25, -3e30, 1e-30, 1.0],
    "infinite": [INF, -INF, 1.0, -2.0],
    "with NaN": [NAN, 1.0, -2.0, 0.5],
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_many_are_as_few(name: str, dtype: Any, kind: str) -> None:
    f, count = CASES[name]
    values = np.array(ODD[kind], dtype)
    pairs = np.array([(a, b) for a in values for b in values[::-1]], dtype).T
    arrays = list(pairs[:count]) if count == 2 else [values]
    with np.errstate(all="ignore"):
        value_of_few, few = value_and_gradients(f, *arrays)
        value_of_many, many = value_and_gradients(f, *[np.tile(a, MANY // a.size + 1) for a in arrays])
    for one, other in zip([value_of_many, *many], [value_of_few, *few], strict=True):
        tolerance = 16 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(one[: other.size], other, rtol=tolerance, atol=float(np.finfo(dtype).tiny))
        np.testing.assert_array_equal(one[: other.size], one[other.size : 2 * other.size])


def slope_of_slope(f: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    """The gradient of half of the squared gradient."""
    t = tensor(x)
    outer, inner = GradManager().attach(t), GradManager().attach(t)
    with outer:
        with inner:
            inner.backward(f(t).sum())
        slope, t.grad = t.grad, None
        outer.backward((slope * slope).sum() * 0.5)
    return t.grad.numpy()


@pytest.mark.parametrize("name", ["arctan", "arcsinh", "sinc", "erf", "log_ndtr"])
def test_second_order_of_many_is_that_of_few(name: str) -> None:
    f = getattr(special if name in special.__all__ else gnp, name)
    x = np.random.default_rng(0).normal(size=MANY)
    np.testing.assert_allclose(slope_of_slope(f, x)[:FEW], slope_of_slope(f, x[:FEW]), rtol=1e-10, atol=1e-13)


# ---------------------------------------------------------------- block by block


# Of smaller ones numpy.sin itself raises, in the forward of sinc.
@pytest.mark.parametrize(("name", "smallest"), [("arctan", 1e-25), ("arcsinh", 1e-25), ("sinc", 1e-10)])
def test_small_numbers_among_many_raise_no_error(name: str, smallest: float) -> None:
    x = repeated([smallest, 1e-5, 0.5], np.float32)
    with np.errstate(all="raise"):
        few, many = (gradient(getattr(gnp, name), a) for a in (x[:3], x))
    np.testing.assert_allclose(many[:3], few, rtol=1e-6)


def test_a_root_as_a_power_has_the_slope_of_powers() -> None:
    with np.errstate(divide="ignore"):
        slope = gradient(lambda x: x**0.5, np.array([0.0, -0.0, 4.0]))
    np.testing.assert_array_equal(slope, [INF, INF, 0.25])


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_are_put_together(threads: int) -> None:
    before = gradmgr.get_num_threads()
    gradmgr.set_num_threads(threads)
    try:
        for count in (0, 1, 16383, 16384, 16385, 5 * 16384 + 7):
            x = np.arange(count, dtype=np.float64)
            np.testing.assert_array_equal(mapped(lambda a, b: (a < b) | (a > 3), x, x[::-1]), (x < x[::-1]) | (x > 3))
        table = np.arange(60000.0).reshape(200, 300)
        for given in (table, table.T, table[:, ::2], np.broadcast_to(np.float64(2), (200, 300))):
            np.testing.assert_array_equal(mapped(lambda a: a * 2, given), given * 2)
    finally:
        gradmgr.set_num_threads(before)


def test_what_is_not_of_one_shape_goes_as_it_is() -> None:
    seen = []
    x, y = np.ones((2, 20000)), np.ones(20000)

    def add(a: Any, b: Any) -> Any:
        seen.append(a.shape)
        return a + b

    assert mapped(add, x, y).shape == mapped(add, x, 1.0).shape == mapped(add, tensor(x), y).shape == x.shape
    assert seen == [x.shape] * 3


# ---------------------------------------------------------------- orders


@pytest.mark.parametrize("shape", [(70,), (3, 70), (2, 3, 100), (500,)])
@pytest.mark.parametrize("kinds", [2, 40, 5000])  # mostly ties, some, few
def test_orders_of_tied_values_are_stable(shape: tuple[int, ...], kinds: int) -> None:
    random = np.random.default_rng(kinds)
    for dtype in (np.float32, np.float64, np.int64):
        x = random.integers(0, kinds, shape).astype(dtype)
        for values in (x, np.where(random.random(shape) < 0.02, NAN, x)):
            for axis in range(x.ndim):
                np.testing.assert_array_equal(stable_order(values, axis), values.argsort(axis=axis, kind="stable"))
