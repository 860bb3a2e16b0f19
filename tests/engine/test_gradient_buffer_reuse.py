"""Backward writes into gradients that nobody else holds, and into no others: large arrays, where it does so at all."""

import tracemalloc

import numpy as np
import pytest
from helpers import gradients

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, special, tensor
from gradmgr.nn import functional

SHAPE = (100, 100)  # more elements than the templates ask for


def some(seed=0, low=0.5, high=1.5):
    return np.random.default_rng(seed).uniform(low, high, SHAPE)


def test_a_chain_needs_the_memory_of_one_gradient():
    gradients(lambda x: -(gnp.exp(x * 1.0 / 3.0)), some())  # compiles what it needs
    x, c = tensor(some()), some(1)
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(4):
            y = -(gnp.exp(y * c / 3.0) * c)
        tracemalloc.start()
        gm.backward(y, c)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1.5 * c.nbytes


def test_a_dy_of_the_caller_is_not_written_to():
    for dy in (some(2), tensor(some(2)), some(2).T, some(2)[::-1]):
        before = np.array(gradmgr.asarray(dy).numpy())
        gradients(lambda x: x * 2.0, some(), dy=dy)
        np.testing.assert_array_equal(gradmgr.asarray(dy).numpy(), before)


def test_gradients_kept_by_hooks_are_not_overwritten():
    x, c, seen = tensor(some()), some(1), []
    gm = GradManager().attach(x)
    with gm:
        y = x * c
        z = y * c
        y.register_hook(seen.append)
        z.retain_grad()
        y.retain_grad()
        gm.backward(z * c, np.ones(SHAPE))
    np.testing.assert_array_equal(z.grad.numpy(), c)
    np.testing.assert_array_equal(y.grad.numpy(), c * c)
    np.testing.assert_array_equal(seen[0].numpy(), c * c)
    np.testing.assert_array_equal(x.grad.numpy(), c * c * c)


def test_a_gradient_that_goes_to_two_inputs_is_not_overwritten():
    x, y, c = some(), some(1), some(2)
    dx, dy = gradients(lambda x, y: x * 3.0 + -(y * c), x, y)
    np.testing.assert_array_equal(dx, np.full(SHAPE, 3.0))
    np.testing.assert_array_equal(dy, -c)
    dx, dy = gradients(lambda x, y: (x + y) * (x + y), x, y)
    np.testing.assert_allclose(dx, 2 * (x + y))
    np.testing.assert_allclose(dy, 2 * (x + y))
    assert not np.shares_memory(dx, dy)


def test_a_value_used_several_times_gets_the_sum_of_gradients():
    x = some()
    (found,) = gradients(lambda x: gnp.exp(x) * gnp.exp(x) * x / (x * x), x)
    e = np.exp(2 * x)
    np.testing.assert_allclose(found, 2 * e / x - e / x**2, rtol=1e-12)


def test_a_retained_history_gives_the_same_gradients_again():
    x, c = tensor(some()), some(1)
    gm = GradManager().attach(x)
    found = []
    with gm:
        y = gnp.exp(x * c) * c
        for _ in range(3):
            gm.backward(y, c, retain=True)
            found.append(x.grad.numpy().copy())
            x.grad = None
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_an_intermediate_that_is_attached_keeps_its_gradient():
    x, c = tensor(some()), some(1)
    gm = GradManager().attach(x)
    with gm:
        y = x * c
        gm.attach(y)
        gm.backward(y * c, np.ones(SHAPE))
    np.testing.assert_array_equal(y.grad.numpy(), c)
    np.testing.assert_array_equal(x.grad.numpy(), c * c)


def test_gradients_kept_by_callbacks_are_not_overwritten():
    x, c, kept = tensor(some()), some(1), []
    gm = GradManager()
    with gm:
        gm.attach(x)
        y = x * c
        gm.attach(y, callbacks=lambda t, g: kept.append(g) or g)
        gm.backward(y * c, np.ones(SHAPE))
    np.testing.assert_array_equal(kept[0].numpy(), c)
    np.testing.assert_array_equal(x.grad.numpy(), c * c)


def test_a_users_function_may_keep_its_gradient():
    held = []

    class Twice(gradmgr.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            d = g * 2.0
            held.append(d)
            return d

    c = some(1)
    (found,) = gradients(lambda x: Twice.apply(x * c) * c, some())
    np.testing.assert_array_equal(held[0].numpy(), 2 * c)
    np.testing.assert_array_equal(found, 2 * c * c)


def test_recorded_gradients_are_not_written_to():
    x, c = tensor(some()), some(1)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(gnp.exp(x * c) * c, np.ones(SHAPE))
        first, x.grad = x.grad, None
        outer.backward(first, np.ones(SHAPE))
    np.testing.assert_allclose(first.numpy(), c * c * np.exp(x.numpy() * c))
    np.testing.assert_allclose(x.grad.numpy(), c**3 * np.exp(x.numpy() * c))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
def test_buffers_are_reused_in_other_dtypes_too(dtype):
    x, c = some().astype(dtype), some(1).astype(dtype)
    (found,) = gradients(lambda x: -(x * c) / c, x, dy=np.ones(SHAPE, dtype))
    np.testing.assert_allclose(found, -np.ones(SHAPE, dtype), rtol=1e-2)
    (found,) = gradients(lambda x: x * some(3) * c, x, dy=np.ones(SHAPE, np.result_type(dtype, "f8")))
    assert found.dtype == dtype


@pytest.mark.parametrize(
    "name",
    [
        "subtract",
        "multiply",
        "divide",
        "negative",
        "reciprocal",
        "square",
        "sqrt",
        "exp",
        "log",
        "log1p",
        "tanh",
        "logit",
        "relu",
        "gelu",
    ],
)
def test_a_declared_in_place_rule_gives_what_the_rule_gives(name):
    """Of many elements the gradient is computed in the memory of the result's; of few it is not."""
    functions = {"logit": special.logit, "relu": functional.relu, "gelu": functional.gelu}
    f = functions.get(name) or getattr(gnp, name)
    n = 300_000 if name == "gelu" else 20_000
    values = np.linspace(0.01, 0.99, n)
    arguments = [values, values[::-1].copy()][: 2 if name in ("subtract", "multiply", "divide") else 1]
    for k in range(len(arguments)):

        def gradient_of(part, k=k):
            given = [a[part] for a in arguments]
            x = tensor(given[k])
            with GradManager().attach(x) as gm:
                gm.backward(f(*given[:k], x, *given[k + 1 :]) * 1.0, np.cos(given[k]))
            return x.grad.numpy()

        whole = gradient_of(slice(None))
        for start in range(0, n, n // 5):
            part = slice(start, start + 100)
            np.testing.assert_allclose(whole[part], gradient_of(part), rtol=1e-12, atol=1e-14)
