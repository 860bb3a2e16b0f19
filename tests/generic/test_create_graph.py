"""gradmgr.grad with create_graph: every op of the table, and programs made of it, against nested managers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import assert_allclose, assert_close, each_case, tracks
from samples import SAMPLES, Sample, flat, seeds, tensors, twice_on_one_tape
from table_programs import Program

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, tensor
from gradmgr._transforms.grad import grad
from gradmgr._transforms.gradcheck import vjp

Array = Any

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")


def twice_nested(sample: Sample, arrays: list[Array]) -> tuple[list[Any], list[Any]]:
    where = sample.where
    points = tensors(sample, arrays)
    us = [asarray(u) for u in seeds(flat(sample.call(gnp, *points)))]
    count = len(points)

    def first(*args: Any) -> list[Any]:
        points, us = args[:count], args[count:]

        def floating(*points: Any) -> list[Any]:
            return [y for y in flat(sample.call(gnp, *points)) if y.dtype.kind in "fc"]

        kept = [u for u, y in zip(us, flat(sample.call(gnp, *points)), strict=True) if y.dtype.kind in "fc"]
        return vjp(floating, points, where, kept)

    xs = [points[k] for k in where]
    places = [*where, *[k for k, u in enumerate(us, start=count) if u.dtype.kind in "fc"]]
    second = dict(zip(places, vjp(first, [*points, *us], places, [u * 0.7 for u in seeds(xs)]), strict=True))
    every = [*where, *range(count, count + len(us))]
    return first(*points, *us), [second.get(k, gnp.zeros_like((points + us)[k])) for k in every]


@each_case(SAMPLES)
def test_create_graph_against_nested_managers(sample: Sample) -> None:
    for dtype in (np.float64, np.complex128)[: 1 + sample.is_complex]:
        arrays = sample.make(dtype)
        (first, second), (first_nested, second_nested) = twice_on_one_tape(sample, arrays), twice_nested(sample, arrays)
        for found, expected in zip(first + second, first_nested + second_nested, strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert_close(found, expected)


def along(gm: GradManager, gs: tuple[Tensor | None, ...], weights: list[Array]) -> tuple[list[Tensor], list[Array]]:
    """The gradients that were recorded themselves, and what to weight them with."""
    pairs = [(g, w) for g, w in zip(gs, weights, strict=True) if g is not None and tracks(gm, g)]
    return [g for g, _ in pairs], [w for _, w in pairs]


@pytest.mark.parametrize("cut", [None, "detach", "no_grad"])
@pytest.mark.parametrize("part", range(4))
def test_programs_against_nested_managers_to_third_order(part: int, cut: str | None) -> None:
    """Programs that write in place, cut, use things twice and drop results between the ops of the table."""
    for seed in range(part, 24, 4):
        program = Program(seed, cut)
        random = np.random.default_rng(seed)
        first, second = ([random.normal(size=a.shape) for a in program.points] for _ in range(2))
        where = list(range(len(program.points)))

        def once(*xs: Any, program: Any = program, where: Any = where) -> Any:
            return vjp(lambda *xs: [program(*xs)], xs, where, [np.float64(1.0)])

        def twice(*xs: Any, once: Any = once, where: Any = where, first: Any = first) -> Any:
            return vjp(once, xs, where, first)

        points = [tensor(a) for a in program.points]
        expected = [once(*points), twice(*points), vjp(twice, points, where, second)]
        xs = [tensor(a) for a in program.points]
        with GradManager().attach(xs) as gm:
            found = [grad(program(*xs), xs, create_graph=True, materialize_grads=True)]
            for weights in (first, second):
                ys, us = along(gm, found[-1], weights)
                if not ys:  # linear: what follows is 0
                    break
                found.append(grad(ys, xs, us, create_graph=True, materialize_grads=True))
        for order, (gs, es) in enumerate(zip(found, expected, strict=False), start=1):
            for g, e in zip(gs, es, strict=True):
                scale = 1 + np.max(np.abs(e.numpy()), initial=0)
                assert_allclose(
                    g.numpy() / scale,
                    e.numpy() / scale,
                    rtol=1e-6,
                    atol=1e-8,
                    err_msg=f"{seed} {order} {program.names}",
                )
        for es in expected[len(found) :]:
            assert all(not e.numpy().any() for e in es)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_any_order_of_a_power(order: int) -> None:
    x = tensor([2.0])
    with GradManager().attach(x):
        y, expected = x**6.0, 1.0
        for k in range(order):
            (y,) = grad(y, x, create_graph=True)
            expected *= 6 - k
            assert y.tolist() == pytest.approx([expected * 2.0 ** (5 - k)], rel=1e-14)


def test_third_order_of_a_sine_and_an_exponential() -> None:
    x = tensor([0.3, 1.1])
    a = x.numpy()
    # f = sin(x) exp(2x), whose k-th derivative is the imaginary part of (2 + i)^k exp((2 + i) x)
    with GradManager().attach(x):
        y = gnp.sin(x) * gnp.exp(x * 2)
        for k in range(1, 5):
            (y,) = grad(y.sum(), x, create_graph=True)
            assert_allclose(y.numpy(), ((2 + 1j) ** k * np.exp((2 + 1j) * a)).imag, rtol=1e-13)


def test_the_derivative_and_the_value_in_one_loss() -> None:
    """A gradient penalty: the loss contains a value and its derivative."""
    w, x = tensor([0.5, -0.3]), tensor([1.0, 2.0])
    gm = GradManager().attach([w, x])
    with gm:
        y = gnp.tanh(w * x).sum()
        (slope,) = grad(y, x, create_graph=True)
        gm.backward(y + (slope**2).sum())
    a, b = np.array([0.5, -0.3]), np.array([1.0, 2.0])
    t = np.tanh(a * b)
    s = 1 - t * t
    # d/dw of tanh(wx) + (w s)^2
    assert_close(w.grad, b * s + 2 * a * s * (s + a * (-2 * t * s * b)))
