"""Sums in rules: of thousands of halves, of ties, and along long axes of float32, as with more digits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import each_case, tracks
from machine import needs_machine
from samples import SAMPLES, Sample, flat, tensors

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, functional, tensor, vmap
from gradmgr._transforms.gradcheck import jvp
from gradmgr.nn import functional as F  # noqa: N812  # torch's name

Array = Any
HALVES = (np.float16, ml_dtypes.bfloat16)
MANY = 3000  # ones of float16 stop at 2048, of bfloat16 at 256
EPS = {np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}

# ---------------------------------------------------------------- every op


def longer(a: Array, axis: int) -> Array:
    """The array repeated along an axis, up to MANY elements there."""
    return np.take(a, np.arange(MANY) % a.shape[axis], axis)


def is_much(arrays: list[Array]) -> bool:
    """Tell whether there are many elements, or would be if all were combined with all."""
    try:
        together = np.broadcast_shapes(*[a.shape for a in arrays])
    except ValueError:
        together = ()
    return max(math.prod(together), sum([a.size for a in arrays])) > 20_000


def stretched(arrays: list[Array]) -> Iterator[list[Array]]:
    """The arguments, of which all axes of one length, one axis of one of them, or a new one in front are long."""
    for length in {n for a in arrays for n in a.shape if n}:
        yield [longer(a, a.shape.index(length)) if length in a.shape else a for a in arrays]
    for i, one in enumerate(arrays):
        made = [longer(one, axis) for axis in range(one.ndim) if one.shape[axis]]
        for other in (*made, np.broadcast_to(one, (MANY, *one.shape)).copy()):
            yield [other if j == i else a for j, a in enumerate(arrays)]


def cast(arrays: list[Array], dtype: Any) -> list[Array]:
    return [a if a.dtype.kind in "biu" else a.astype(dtype) for a in arrays]


def derivatives(sample: Sample, arrays: list[Array]) -> list[Any] | None:
    """The gradients where that of each result is 1, and the tangents where that of each argument is.

    None if the sample does not take these arguments, has no gradient for them, or too much to compute.
    """
    points = tensors(sample, arrays)
    attached = [points[k] for k in sample.where]
    try:
        with GradManager().attach(attached) as gm:
            outs = [y for y in flat(sample.call(gnp, *points)) if tracks(gm, y)]
            if not outs or sum([y.size for y in outs]) > 100_000:
                return None
            gm.backward(outs, [np.ones(y.shape, y.dtype) for y in outs])
    except (TypeError, ValueError, IndexError, OverflowError, RuntimeError, ArithmeticError):
        return None
    along = [np.ones(t.shape, t.dtype) for t in attached]
    tangents = jvp(lambda *given: flat(sample.call(gnp, *given)), tensors(sample, arrays), sample.where, along)
    return [None if t.grad is None else t.grad.numpy() for t in attached] + [t.numpy() for t in tangents]


def assert_nothing_stopped(sample: Sample, dtype: Any) -> None:
    """Compare numbers that are large enough for a sum to have stopped with those that float64 gives."""
    for arrays in stretched(sample.make()):
        if is_much(arrays):
            continue
        narrow = cast(arrays, dtype)
        found, expected = derivatives(sample, narrow), derivatives(sample, cast(narrow, np.float64))
        if found is None or expected is None:
            continue
        for one, other in zip(found, expected, strict=True):
            if one is None or one.dtype != dtype or one.shape != other.shape:
                continue
            one, other = one.astype(np.float64), np.asarray(other)
            stops = (abs(other) >= 256) & (abs(other) < 6e4) & np.isfinite(one)  # a half may overflow on the way
            np.testing.assert_allclose(one[stops], other[stops], rtol=24 * EPS[dtype])


# Loops of Python's over each element, each of which adds to one gradient by itself; and what takes long to compute.
LOOPS = ("accumulate", "reduce", "vectorize", "apply_", "piecewise", "ndenumerate", "__iter__", "broadcast-two")
SLOW = ("eig", "svd", "qr", "roots", "polydiv", "cholesky", "solve", "inv", "det", "betainc", "gru", "__setitem__")
SLOW += ("3d", "transpose1d", "adaptive_max", "diagflat", "unstack")


def is_one_call(sample: Sample) -> bool:
    return not any(part in str(sample) for part in LOOPS)


def is_fast(sample: Sample) -> bool:
    return is_one_call(sample) and not any(part in sample.name for part in SLOW)


ONE_OF_EACH = {s.name: s for s in filter(is_fast, SAMPLES)}.values()


@each_case([(s, d) for s in ONE_OF_EACH for d in HALVES])
@pytest.mark.filterwarnings("ignore")
def test_thousands_of_halves_are_added_up_in_derivatives_of_every_function(sample: Sample, dtype: Any) -> None:
    assert_nothing_stopped(sample, dtype)


@pytest.mark.slow  # of all samples, where the test above has one for each function
@each_case([(s, d) for s in filter(is_one_call, SAMPLES) for d in HALVES])
@pytest.mark.filterwarnings("ignore")
def test_thousands_of_halves_are_added_up_in_derivatives_of_every_sample(sample: Sample, dtype: Any) -> None:
    assert_nothing_stopped(sample, dtype)


# ---------------------------------------------------------------- what the table's arguments do not reach


def zeros(*shape: int, dtype: Any = np.intp) -> Tensor:
    return gnp.zeros(shape, dtype)


COLUMNS = np.arange(4)


# By what adds up: a function of a weight of shape (4,), and of x, (many, 4).
SUMS = {
    "+": lambda w, x: x + w,
    "-": lambda w, x: x - w,
    "*": lambda w, x: x * w,
    "/": lambda w, x: x / w,
    "a scalar": lambda w, x: x * w[0],
    "maximum": lambda w, x: gnp.maximum(x * 0, w),
    "where": lambda w, x: gnp.where(x < 0, x, w),
    "broadcast_to": lambda w, x: gnp.broadcast_to(w, x.shape),
    "tile": lambda w, x: gnp.tile(w, (len(x), 1)),
    "repeat": lambda w, x: gnp.repeat(w[None], len(x), axis=0),
    "cumsum": lambda w, x: gnp.cumsum(gnp.broadcast_to(w, x.shape), axis=0)[-1:],
    "a stack of products": lambda w, x: x[:, None] @ gnp.diag(w),
    "einsum": lambda w, x: gnp.einsum("ni,i->ni", x, w),
    "w[rows]": lambda w, x: w[None][zeros(len(x))],
    "w[rows, columns]": lambda w, x: w[None][zeros(len(x), 1), COLUMNS],
    "take": lambda w, x: gnp.take(w[None], zeros(len(x)), axis=0),
    "take_along_axis": lambda w, x: gnp.take_along_axis(w[None], zeros(len(x), 1), axis=0),
    "pad": lambda w, x: gnp.pad(w[None], ((0, len(x) - 1), (0, 0)), mode="edge"),
    "embedding": lambda w, x: F.embedding(zeros(len(x)), w[None]),
    "linear": lambda w, x: F.linear(x, zeros(4, 4, dtype=x.dtype), w),
    "layer_norm": lambda w, x: F.layer_norm(x, (4,), None, w),
    "conv2d": lambda w, x: F.conv2d(x[:, :, None, None], zeros(4, 4, 1, 1, dtype=x.dtype), w),
    "vmap": lambda w, x: vmap(lambda row: row * w)(x),
}
each_sum = pytest.mark.parametrize("name", SUMS)


def halves(name: str) -> tuple[Any, ...]:
    """The halves that a function takes: numpy.einsum knows no bfloat16."""
    return HALVES[: 1 if name == "einsum" else 2]


def gradient(name: str, dtype: Any, count: int, value: float = 1.0) -> Array:
    """What the weight receives, ones, where x is of ones and the cotangent of `value`."""
    w = tensor(np.ones(4, dtype))
    with GradManager().attach(w) as gm:
        y = SUMS[name](w, np.ones((count, 4), dtype))
        gm.backward(y, np.full(y.shape, value, dtype))
    return w.grad.numpy()


@each_sum
def test_ones_do_not_stop(name: str) -> None:
    for dtype in halves(name):
        found, expected = gradient(name, dtype, MANY), gradient(name, np.float64, MANY)
        assert abs(expected).max() >= MANY
        np.testing.assert_array_equal(found, expected.astype(dtype), strict=True)


@each_sum
@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_machine)], ids=["plain", "native"])
def test_compiled_functions_add_them_up_so_too(name: str, native: bool) -> None:
    for dtype, value in (*[(half, 1.0) for half in halves(name)], (np.float32, 0.1)):
        w, gm = tensor(np.ones(4, dtype)), GradManager()
        gm.attach(w)

        def step(x: Array, dy: Array, w: Tensor = w, gm: GradManager = gm) -> None:
            with gm:
                gm.backward(SUMS[name](w, x), dy)

        count = MANY if dtype != np.float32 else 3 * MANY
        y, x = SUMS[name](w, np.ones((count, 4), dtype)), np.ones((count, 4), dtype)
        compiled = compile(step, native=native)
        for _ in range(5):
            w.grad = None
            compiled(x, np.full(y.shape, value, dtype))
        np.testing.assert_array_equal(w.grad.numpy(), gradient(name, dtype, count, value), strict=True)


@each_sum
def test_many_equal_rows_of_float32_are_not_added_one_by_one(name: str) -> None:
    """A tenth has no exact binary form: a sum of 300,000, one after the other, is off by 1e-3."""
    found = gradient(name, np.float32, 300_000, 0.1)
    expected = gradient(name, np.float64, 300_000, np.float32(0.1))
    np.testing.assert_allclose(found, expected, rtol=1e-4 if name == "layer_norm" else 1e-5)  # torch's: 2e-3


# ---------------------------------------------------------------- ties


TIES = {
    "max": lambda x: gnp.max(x, axis=0),
    "min": lambda x: gnp.min(x),
    "amax": lambda x: gnp.amax(x, axis=0, keepdims=True),
    "nanmax": lambda x: gnp.nanmax(x, axis=0),
    "nanmin": lambda x: gnp.nanmin(x),
    "norm": lambda x: gnp.linalg.norm(x, np.inf),
}


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("dtype", HALVES)
def test_more_ties_than_a_half_can_count_share_evenly(name: str, dtype: Any) -> None:
    x, count = np.ones(70_000, dtype), 70_000
    point = tensor(x)
    with GradManager().attach(point) as gm:
        y = TIES[name](point)
        gm.backward(y, np.full(y.shape, 1000, dtype))
    np.testing.assert_array_equal(point.grad.numpy(), np.full(x.shape, 1000 / count).astype(dtype))
    _, along = functional.jvp(TIES[name], tensor(x), tensor(x))
    np.testing.assert_allclose(along.numpy().astype(np.float64), 1, rtol=EPS[dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_ties_of_both_ends_cancel(dtype: Any) -> None:
    point = tensor(np.ones(70_000, dtype))
    with GradManager().attach(point) as gm:
        gm.backward(gnp.ptp(point))
    assert not point.grad.numpy().any()


# ---------------------------------------------------------------- values of bfloat16

REDUCTIONS = {
    "sum": lambda x: gnp.sum(x, axis=0),
    "mean": lambda x: gnp.mean(x, axis=0),
    "mean where": lambda x: gnp.mean(x, axis=0, where=np.arange(MANY)[:, None] > 9),
    "var": lambda x: gnp.var(x, axis=0),
    "std": lambda x: gnp.std(x),
    "trace": lambda x: gnp.trace(gnp.broadcast_to(x[:, :1], (MANY, MANY))),
    "cumsum": lambda x: gnp.cumsum(x, axis=0),
    "average": lambda x: gnp.average(x, axis=0),
    "nansum": lambda x: gnp.nansum(x, axis=0),
    "nanmean": lambda x: gnp.nanmean(x),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_values_of_bfloat16_are_summed_in_float32(name: str) -> None:
    x = np.random.default_rng(0).integers(1, 4, (MANY, 4)).astype(ml_dtypes.bfloat16)
    found = REDUCTIONS[name](tensor(x)).numpy()
    expected = REDUCTIONS[name](x.astype(np.float64))
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2.0**-8)


def test_values_of_float16_are_numpys() -> None:
    x = np.ones((MANY, 4), np.float16)
    for function in (gnp.sum, gnp.mean, gnp.var, gnp.cumsum):
        expected = getattr(np, function.__name__)(x, axis=0)
        np.testing.assert_array_equal(function(tensor(x), axis=0).numpy(), expected, strict=True)
    _, along = functional.jvp(lambda x: gnp.sum(x, axis=0), tensor(x), tensor(x))
    assert along.tolist() == [MANY] * 4  # the derivative of the sum is right all the same
