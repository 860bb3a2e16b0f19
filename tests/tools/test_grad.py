"""gradmgr.grad and gradmgr.backward: what they promise."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import assert_close, tracks

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, no_grad, tensor
from gradmgr._engine.context import enter_recorders, leave_recorders
from gradmgr._engine.forward import Forward
from gradmgr._engine.tensor import raw
from gradmgr._transforms.grad import backward, grad
from gradmgr._transforms.gradcheck import vjp
from gradmgr.manager import get_backwarding_grad_manager
from gradmgr.nn import functional

Array = Any

quiet = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")


# ---------------------------------------------------------------- inputs


def test_intermediates_as_inputs() -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x):
        y = x * x
        z = y * y
        found = grad((z * y).sum(), [z, x, y], retain_graph=True)
        assert [g.tolist() for g in found] == [[1.0, 4.0], [6.0, 192.0], [3.0, 48.0]]
        assert grad(z.sum(), z)[0].tolist() == [1.0, 1.0]


def test_a_dict_of_inputs_gives_a_dict() -> None:
    x, w = tensor([1.0, 2.0]), tensor(3.0)
    with GradManager().attach([x, w]):
        y = (x * x * w).sum()
        found = grad(y, {"w": w, "x": x}, retain_graph=True)
        assert list(found) == ["w", "x"]
        assert found["w"].tolist() == 5.0  # type: ignore[union-attr]  # None would fail the test
        assert found["x"].tolist() == [6.0, 12.0]  # type: ignore[union-attr]  # None would fail the test
        filled = grad(x.sum(), {"w": w}, materialize_grads=True, retain_graph=True)
        assert filled["w"].tolist() == 0.0  # type: ignore[union-attr]  # None would fail the test
        assert grad(x.sum(), {0: w}, allow_unused=True, retain_graph=True) == {0: None}
        with pytest.raises(ValueError, match="inputs is empty"):
            grad(y, {})


def test_an_input_that_is_an_output() -> None:
    x, v = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    with GradManager().attach(x):
        (g,) = grad(x, x, v)
    assert g.tolist() == [3.0, 4.0]
    g += 1.0
    assert v.tolist() == [3.0, 4.0]


def test_a_gradient_is_no_alias_of_a_plain_array_of_weights() -> None:
    x, v = tensor([1.0, 2.0]), np.array([3.0, 4.0])
    with GradManager().attach(x):
        (g,) = grad(x.reshape(2, 1).reshape(2), x, v)
    v[:] = 0
    assert g.tolist() == [3.0, 4.0]


def test_two_inputs_with_one_gradient_get_two_tensors() -> None:
    a, b = tensor([1.0, 2.0]), tensor([1.0, 2.0])
    for create_graph in (False, True):
        with GradManager().attach([a, b]):
            g, h, k = grad((a + b).sum(), [a, b, a], create_graph=create_graph)
        g += 5.0
        assert g.tolist() == [6.0, 6.0]
        assert h.tolist() == k.tolist() == [1.0, 1.0]


def test_the_gradient_of_an_attached_tensor_is_at_its_recorded_value() -> None:
    """As in GradManager.backward; of an intermediate it is the gradient of what it is now."""
    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        y = x * 1.0
        x *= 2.0
        y *= 2.0
        out = (x * x + y * y).sum()
        found = grad(out, [x, y], retain_graph=True)
        assert [g.tolist() for g in found] == [[2 * 6 * 2.0 + 2 * 6 * 2.0], [12.0]]
        gm.backward(out)
    assert x.grad.tolist() == [48.0]


def test_writes_in_place_between() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=4)
    x = tensor(a)
    with GradManager().attach(x):
        y = x * 1.0
        z = gnp.sin(y)
        y[1] = z[0] * z[2]
        y += z
        y[::2] *= x[1]
        (first,) = grad((y * y).sum(), x, create_graph=True)
        (second,) = grad(first, x, np.ones(4))

    def value(a: Array) -> Any:
        z = np.sin(a)
        y = a.copy()
        y[1] = z[0] * z[2]
        y = y + z
        y = y * np.array([a[1], 1, a[1], 1])
        return (y * y).sum()

    unit, h = np.eye(4), 1e-4
    close_numeric = [(value(a + h * e) - value(a - h * e)) / (2 * h) for e in unit]
    np.testing.assert_allclose(first.numpy(), close_numeric, rtol=1e-6)
    hessian = [
        [
            (value(a + h * (e + f)) - value(a + h * (e - f)) - value(a - h * (e - f)) + value(a - h * (e + f)))
            / (4 * h * h)
            for e in unit
        ]
        for f in unit
    ]
    np.testing.assert_allclose(second.numpy(), np.sum(hessian, axis=0), rtol=1e-4, atol=1e-5)


def test_loops_of_getitem_and_setitem() -> None:
    n = 200
    x = tensor(np.linspace(0.1, 1.0, n))
    with GradManager().attach(x):
        y = gnp.zeros(n)
        y[0] = x[0]
        for k in range(1, n):
            y[k] = y[k - 1] * 0.5 + x[k] * x[k]
        (first,) = grad(y.sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
    sums = np.array([2 - 0.5 ** (n - 1 - k) for k in range(n)])  # of 0.5^j over what follows
    expected = 2 * x.numpy() * sums
    expected[0] = sums[0]
    assert_close(first, expected)
    assert_close(second, np.where(np.arange(n) == 0, 0, 2 * sums))


def test_unused_inputs() -> None:
    x, unused, foreign = tensor([1.0]), tensor([2.0, 3.0]), tensor([4.0])
    with GradManager().attach([x, unused]) as gm:
        y = x * x
        late = y * 2.0
        for bad, why in ((unused, "has no part"), (foreign, "not tracked"), (late, "has no part")):
            with pytest.raises(errors.NotRecordedError, match=rf"input number 1, .*{why}.*allow_unused=True"):
                grad(y, [x, bad])
            assert gm._recording()
        found = grad(y, [x, unused, foreign], allow_unused=True, retain_graph=True)
        assert found[0].tolist() == [2.0]
        assert found[1:] == (None, None)
        zeros = grad(y, [unused, foreign, x], materialize_grads=True)
    assert [g.tolist() for g in zeros] == [[0.0, 0.0], [0.0], [2.0]]


@pytest.mark.parametrize("order", [3, 5])
def test_a_loop_of_derivatives_with_materialize_grads_goes_on_with_zeros(order: int) -> None:
    x, unused = tensor([3.0, -1.0]), tensor([[1.0]])
    expected = [lambda a: 3 * a**2, lambda a: 6 * a, lambda a: 6 + 0 * a, np.zeros_like, np.zeros_like]
    with GradManager().attach([x, unused]):
        y, others = x**3, []
        for k in range(order):
            y, other = grad(y, [x, unused], np.ones(2), create_graph=True, materialize_grads=True)
            assert_close(y, expected[k](x.numpy()))
            others.append(other)
        weights = [np.ones((1, 1))] * order
        assert grad(others, [x, unused], weights, create_graph=True, allow_unused=True) == (None, None)
        (zeros,) = grad(others[-1].sum() + y.sum(), x, materialize_grads=True)
    assert zeros.tolist() == [0.0, 0.0]


def test_a_constant_gradient_is_a_constant_in_the_history() -> None:
    x, unused = tensor([3.0]), tensor([1.0])
    with GradManager().attach([x, unused]) as gm:
        slope, zero = grad(x * 2, [x, unused], create_graph=True, materialize_grads=True)
        for g in (slope, zero):
            assert g.requires_grad
            assert g.grad_fn is not None
            assert (g.grad_fn.name(), g.grad_fn.next_functions) == ("constant", ())
        held = len(gm._open_tape().entries)
        del slope, zero, g
        gm._open_tape().sweep(everything=True)
        assert len(gm._open_tape().entries) == held - 3  # with the product, whose result is not held


def test_materialize_grads_excludes_forbidding_unused() -> None:
    with pytest.raises(ValueError, match="materialize_grads=True gives zeros"):
        grad(tensor(1.0), tensor(1.0), allow_unused=False, materialize_grads=True)


def test_dtypes_of_gradients() -> None:
    x, y = tensor([1.0], dtype="float32"), tensor([2.0], dtype="complex128")
    with GradManager().attach([x, y]):
        z = x * y
        found = grad(z, [x, y], np.array([1 + 1j]))
    assert [g.dtype for g in found] == [np.float32, np.complex128]
    assert [g.tolist() for g in found] == [[2.0], [1 + 1j]]


# ---------------------------------------------------------------- history


def test_released_unless_retained(unchanged: Any) -> None:
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = (x * x).sum()
        with unchanged([gm], [x]):
            grad(y, x, retain_graph=True)
        grad(y, x, create_graph=True)
        assert gm._recording()
        grad(y, x)
        assert not gm._recording()
        with pytest.raises(errors.NotRecordedError, match=r"no manager records here.* number 0.*retain_graph=True"):
            grad(y, x)


def test_nothing_is_written_and_no_callback_runs() -> None:
    calls = []

    def callback(t: Tensor, g: Tensor) -> Tensor:
        calls.append("callback")
        return g

    x = tensor([1.0])
    x.grad = tensor([7.0])
    gm = GradManager().attach(x, callback)
    gm.register_after_backward_callback(lambda: calls.append("after"))
    with gm:
        grad(x * x, x)
    assert calls == []
    assert x.grad.tolist() == [7.0]
    with gm:
        backward(x * x)
    assert calls == ["callback", "after"]
    assert x.grad.tolist() == [9.0]


def test_memory_is_freed() -> None:
    gm = GradManager()
    x = tensor(np.ones(1000))
    gm.attach(x)
    with gm:
        y = gnp.exp(x)
        z = gnp.sin(y)
        kept = weakref.ref(y._array)
        (g,) = grad(z.sum(), x)
        del y, z
        assert kept() is None
    with gm:
        (g,) = grad(gnp.exp(x).sum(), x, create_graph=True)
        grown = len(gm._tape.entries)
        assert gm._tape.nbytes() > 0
    del g
    assert gm._tape is None
    assert grown > 0
    gc.collect()


@pytest.mark.parametrize("every", [False, True])
def test_memory_falls_as_grad_proceeds(every: bool) -> None:
    x, w = tensor(np.ones(1000)), tensor(np.ones(1000))
    alive = []
    with GradManager().attach([x, w]):
        y = gnp.exp(x)
        y.register_hook(lambda g: alive.append(late() is not None))
        z = gnp.exp(y * w)
        late = weakref.ref(z._array)
        out = z.sum()
        del z
        assert late() is not None
        grad(out, [x, w] if every else x)
    assert alive == [False]


def test_what_create_graph_records_is_dropped_with_its_results() -> None:
    """A loop that takes derivatives of one history does not pile them up."""
    x = tensor(np.linspace(0.0, 1.0, 5))
    with GradManager().attach(x) as gm:
        y = gnp.sin(x).sum()
        for _ in range(500):
            grad(y, x, create_graph=True)
        assert len(gm._tape.entries) < 400


def test_a_chain_of_100_000_ops_with_create_graph() -> None:
    n = 100_000
    x = tensor([1.0])
    start = time.perf_counter()
    with GradManager().attach(x):
        y = x
        for _ in range(n):
            y = y * 1.00001
        z = y * y
        (first,) = grad(z, x, create_graph=True)
        (second,) = grad(first, x)
    factor = 1.00001**n
    np.testing.assert_allclose(first.numpy(), [2 * factor**2], rtol=1e-9)
    np.testing.assert_allclose(second.numpy(), [2 * factor**2], rtol=1e-9)
    assert time.perf_counter() - start < 30


# ---------------------------------------------------------------- several managers


def test_the_innermost_manager_that_tracks_the_outputs_is_differentiated() -> None:
    x, w = tensor([2.0]), tensor([3.0])
    outer, inner = GradManager().attach([x, w]), GradManager().attach(x)
    with outer, inner:
        y = x**3 * w
        (g,) = grad(y, x, retain_graph=True)
        assert inner._recording()
        assert outer._recording()
        (h,) = grad(g, x, retain_graph=True)  # inner does not know g
        assert h.tolist() == [36.0]
        grad(y, x)
        assert not inner._recording()
        assert outer._recording()
        (k,) = grad(y, w)
        assert k.tolist() == [8.0]
        assert not outer._recording()


def test_outputs_tracked_by_different_managers_are_refused() -> None:
    x, w = tensor([2.0]), tensor([3.0])
    outer, inner = GradManager().attach(w), GradManager().attach(x)
    with outer, inner, pytest.raises(errors.NotRecordedError, match="no one manager tracks all 2 outputs"):
        grad([x * 2, w * 2], x)


def test_groups() -> None:
    x = tensor([2.0])
    one, two = GradManager().attach(x), GradManager().attach(x)
    with one | two:
        y = x**3
        (g,) = grad(y, x, create_graph=True)
        assert tracks(two, g)
        assert not tracks(one, g)  # neither records the other's derivative
        assert grad(g, x, retain_graph=True)[0].tolist() == [12.0]
        two.release()
        assert grad(y, x)[0].tolist() == [12.0]


def test_create_graph_is_recorded_by_outer_managers() -> None:
    x = tensor([2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        (g,) = grad(x**4, x, create_graph=True)
        (h,) = grad(g, x, create_graph=True)
        (k,) = grad(h, x)  # 24 x
        outer.backward(k)
    assert (g.tolist(), h.tolist(), k.tolist(), x.grad.tolist()) == ([32.0], [48.0], [48.0], [24.0])


def test_manager_backward_of_a_recorded_derivative() -> None:
    x = tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        (g,) = grad(x**3, x, create_graph=True)
        gm.backward(g)
    assert x.grad.tolist() == [12.0]


def test_forward_mode_outside_and_inside_of_the_manager() -> None:
    x = tensor([2.0])

    def level() -> Forward:
        made = Forward()
        made.add_dual(x, np.array([1.0]))
        enter_recorders(made)
        return made

    outside = level()
    with GradManager().attach(x):
        (g,) = grad(x**3, x)
        assert raw(outside.node_id_of(g)).tolist() == [12.0]
    leave_recorders(outside)
    outside.close()
    with GradManager().attach(x):
        inside = level()
        y = x**3
        assert raw(inside.node_id_of(y)).tolist() == [12.0]
        (g,) = grad(y, x)
        assert g.tolist() == [12.0]
        assert inside.node_id_of(g) is None
        leave_recorders(inside)
        inside.close()


def test_under_no_grad() -> None:
    x = tensor([2.0])
    with GradManager().attach(x):
        y = x**3
        with no_grad():
            (g,) = grad(y, x, create_graph=True)
        assert grad(g, x, retain_graph=True)[0].tolist() == [12.0]
        with no_grad(), pytest.raises(errors.NotRecordedError, match="under no_grad"):
            grad(x**3, x)


def test_ops_of_several_results() -> None:
    a = np.array([[2.0, 0.5], [0.5, 1.0]])
    x = tensor(a)
    with GradManager().attach(x):
        values, vectors = gnp.linalg.eigh(x)
        (g,) = grad([values, gnp.abs(vectors)], x, [np.array([1.0, 3.0]), np.ones((2, 2))], create_graph=True)
        (h,) = grad(g.sum(), x)

    def nested(x: Tensor) -> list[Tensor]:
        values, vectors = gnp.linalg.eigh(x)
        return [values, gnp.abs(vectors)]

    us = [np.array([1.0, 3.0]), np.ones((2, 2))]
    assert_close(g, vjp(nested, [x], [0], us)[0])
    assert_close(h, vjp(lambda x: vjp(nested, [x], [0], us), [x], [0], [np.ones((2, 2))])[0])


def test_inside_a_callback_the_manager_in_backward_is_refused(unchanged: Any) -> None:
    x = tensor([2.0])
    said = []

    def callback(t: Tensor, g: Tensor) -> Tensor:
        with pytest.raises(RuntimeError) as caught:
            grad(y, x)
        said.append(str(caught.value))
        return g

    with GradManager().attach(x, callback) as gm:
        y = x * x
        gm.backward(y)
    assert len(said) == 1
    assert x.grad.tolist() == [4.0]


def test_the_backwarding_manager_is_that_of_grad() -> None:
    x = tensor([2.0])
    seen = []
    with GradManager().attach(x) as gm:
        y = x * x
        x.register_hook(lambda g: seen.append(get_backwarding_grad_manager()))
        grad(y, x)
    assert seen == [gm]
    assert get_backwarding_grad_manager() is None


# ---------------------------------------------------------------- hooks


def test_hooks_see_and_replace() -> None:
    x = tensor([3.0])
    seen = []

    def leaf(g: Tensor) -> Tensor:
        seen.append(("leaf", g.tolist()))
        return g * 10.0

    def middle(g: Tensor) -> Tensor:
        seen.append(("middle", g.tolist()))
        return g * 2.0

    with GradManager().attach(x):
        x.register_post_accumulate_grad_hook(lambda t: seen.append(("post", [])))
        y = x * x
        y.register_hook(middle)
        x.register_hook(leaf)
        z = y * 5.0
        found = grad(z, [x, y], retain_graph=True)
        assert [g.tolist() for g in found] == [[600.0], [10.0]]
        assert seen == [("middle", [5.0]), ("leaf", [60.0])]
        seen.clear()
        assert grad(z, y)[0].tolist() == [10.0]
    assert seen == [("middle", [5.0])]  # what was not asked for is not computed


def test_a_hook_under_create_graph_is_differentiated() -> None:
    x = tensor([3.0])
    with GradManager().attach(x):
        y = x * x
        y.register_hook(lambda g: g * x)
        (g,) = grad(y, x, create_graph=True)  # 2 x * x
        assert g.tolist() == [18.0]
        (h,) = grad(g, x)
    assert h.tolist() == [12.0]


# ---------------------------------------------------------------- batched weights


def test_is_grads_batched() -> None:
    a = np.array([0.3, 1.1, -0.4])
    x, w = tensor(a), tensor([2.0])
    vs = np.random.default_rng(0).normal(size=(5, 3))
    expected = vs * np.cos(a)
    with GradManager().attach([x, w]) as gm:
        y = gnp.sin(x) * w
        g, h = grad(y, [x, w], vs, is_grads_batched=True, retain_graph=True)
        assert_close(g, 2 * expected)
        assert_close(h, (vs @ np.sin(a))[:, None])
        (zero,) = grad(gnp.sin(x), w, tensor(vs), is_grads_batched=True, materialize_grads=True, retain_graph=True)
        assert (zero.shape, zero.dtype) == ((5, 1), np.float64)
        assert grad(gnp.sin(x), w, vs, is_grads_batched=True, allow_unused=True, retain_graph=True) == (None,)
        assert gm._recording()
        grad(y, x, vs, is_grads_batched=True)
        assert not gm._recording()


def test_is_grads_batched_with_create_graph() -> None:
    a = np.array([0.3, 1.1, -0.4])
    x = tensor(a)
    vs = np.random.default_rng(0).normal(size=(5, 3))
    with GradManager().attach(x):
        (g,) = grad(gnp.sin(x) * x, x, vs, is_grads_batched=True, create_graph=True)
        (h,) = grad(g.sum(), x)
    assert_close(g, vs * (np.sin(a) + a * np.cos(a)))
    assert_close(h, vs.sum(0) * (2 * np.cos(a) - a * np.sin(a)))


def test_is_grads_batched_of_several_outputs_matches_a_loop() -> None:
    rng = np.random.default_rng(1)
    x, w = tensor(rng.normal(size=(4, 3))), tensor(rng.normal(size=(3, 2)))
    us, vs = rng.normal(size=(6, 4, 2)), rng.normal(size=(6,))
    with GradManager().attach([x, w]):
        y = gnp.tanh(x @ w)
        z = (y * y).sum()
        found = grad([y, z], [x, w], [us, vs], is_grads_batched=True, retain_graph=True)
        loop = [grad([y, z], [x, w], [u, v], retain_graph=True) for u, v in zip(us, vs, strict=True)]
    for k in range(2):
        assert_close(found[k], np.stack([g[k].numpy() for g in loop]))


def test_batched_weights_of_the_wrong_shape_are_refused(unchanged: Any) -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        y, z = x * x, (x * x).sum()
        with unchanged([gm], [x]):
            with pytest.raises(ValueError, match="needs grad_outputs, one batch of vectors"):
                grad(y, x, is_grads_batched=True)
            with pytest.raises(errors.ShapeError, match=r"number 0 must have the shape \('batch', 2\)"):
                grad(y, x, np.ones(2), is_grads_batched=True)
            with pytest.raises(errors.ShapeError, match="number 1 must have the shape"):
                grad([y, z], x, [np.ones((3, 2)), np.ones(2)], is_grads_batched=True)
            with pytest.raises(errors.DtypeError, match="complex"):
                grad(y, x, np.ones((3, 2), complex), is_grads_batched=True)


# ---------------------------------------------------------------- errors change nothing


def test_wrong_arguments(unchanged: Any) -> None:
    x, unknown = tensor([1.0, 2.0]), tensor([3.0])
    with GradManager().attach(x) as gm:
        y, two = x * x, np.ones(2)
        bad: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
            (TypeError, "outputs must be Tensors; number 0 is float", (1.0, x)),
            (TypeError, "outputs must be Tensors; number 1 is ndarray", ([x, two], x)),
            (TypeError, "inputs must be Tensors; number 0 is NoneType", (y, None)),
            (errors.NotRecordedError, "no manager that records here tracks output number 0", (unknown, x)),
            (errors.NotRecordedError, "tracks output number 1", ([y, unknown], x)),
            (errors.NotRecordedError, "do not depend on input number 0", (y, unknown, two)),
            (ValueError, "one real number", (y, x)),
            (errors.ShapeError, r"shape of its y, \(2,\); found \(3,\)", (y, x, np.ones(3))),
            (errors.DtypeError, "complex", (y, x, two * 1j)),
            (ValueError, "2 dy", (y, x, [two, two])),
            (ValueError, "only_inputs=False", (y, x, two, None, False, False)),
            (ValueError, "inputs is empty", (y, [], two)),
            (ValueError, "outputs is empty", ([], x)),
            (TypeError, "must be a Tensor or an array of numbers.*found str", (y, x, "two")),
        ]
        for kind, text, args in bad:
            with unchanged([gm], [x, unknown]), pytest.raises(kind, match=text):
                grad(*args)


def test_wrong_arguments_of_backward(unchanged: Any) -> None:
    x, unknown = tensor([1.0, 2.0]), tensor([3.0])
    with GradManager().attach(x) as gm:
        y, two = x * x, np.ones(2)
        bad: list[tuple[type[Exception], str, tuple[Any, ...], Any]] = [
            (TypeError, "tensors must be Tensors; number 0 is float", (1.0,), None),
            (errors.NotRecordedError, "no manager that records here tracks output number 0", (unknown,), None),
            (ValueError, "one real number", (y,), None),
            (errors.ShapeError, r"shape of its y, \(2,\); found \(3,\)", (y, np.ones(3)), None),
            (TypeError, "inputs must be Tensors; number 1 is int", (y, two), [x, 3]),
            (ValueError, "inputs is empty", (y, two), []),
            (errors.NotRecordedError, "does not track input number 0", (y, two), unknown),
        ]
        for kind, text, args, inputs in bad:
            with unchanged([gm], [x, unknown]), pytest.raises(kind, match=text):
                backward(*args, inputs=inputs)


def test_without_a_manager() -> None:
    with pytest.raises(errors.NotRecordedError, match=r"grad: no manager records here.*`with gm:`"):
        grad(tensor(1.0), tensor(1.0))


def test_an_error_in_a_hook_leaves_the_manager_idle_and_grads_as_they_were() -> None:
    x = tensor([2.0])
    x.grad = tensor([5.0])
    gm = GradManager().attach(x)

    def fail(g: Tensor) -> None:
        raise ZeroDivisionError("in a hook")

    with gm:
        y = x * x
        y.register_hook(fail)
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            grad(y * 2.0, x, retain_graph=True)
        assert not gm._recording()
    assert x.grad.tolist() == [5.0]
    with gm:
        assert grad(x * x, x)[0].tolist() == [4.0]


# ---------------------------------------------------------------- backward


def test_backward_writes_into_all_attached_tensors() -> None:
    x, w = tensor([2.0]), tensor([3.0])
    with GradManager().attach([x, w]) as gm:
        backward(x * w, retain_graph=True)
        assert gm._recording()
        backward([x * w, x * x], [np.array([1.0]), tensor([2.0])])
        assert not gm._recording()
    assert (x.grad.tolist(), w.grad.tolist()) == ([3.0 + 3.0 + 8.0], [2.0 + 2.0])


def test_backward_with_inputs() -> None:
    calls = []

    def note(t: Tensor, g: Tensor) -> Tensor:
        calls.append(g.tolist())
        return g

    x, w = tensor([2.0]), tensor([3.0])
    with GradManager().attach([x, w], note):
        y = x * w
        z = y * y
        backward(z, inputs=[x, y])
    assert (x.grad.tolist(), y.grad.tolist(), w.grad) == ([36.0], [12.0], None)
    assert calls == [[36.0]]


def test_backward_with_inputs_of_an_attached_tensor_that_was_written_to() -> None:
    x = tensor([2.0])
    with GradManager().attach(x):
        x *= 3.0
        backward(x * x, inputs=x)
    assert x.grad.tolist() == [36.0]


def test_backward_with_create_graph() -> None:
    x = tensor([2.0])
    with GradManager().attach(x) as gm:
        backward(x**3, create_graph=True)
        assert gm._recording()
        g, x.grad = x.grad, None
        backward(g)
    assert (g.tolist(), x.grad.tolist()) == ([12.0], [12.0])


def test_backward_with_create_graph_accumulates_as_recorded() -> None:
    x = tensor([2.0])
    with GradManager().attach(x):
        backward(x**3, create_graph=True)
        backward(x**2, create_graph=True)
        g, x.grad = x.grad, None
        assert g.tolist() == [16.0]
        assert grad(g, x)[0].tolist() == [14.0]


@pytest.mark.parametrize("outer", ["create_graph", "a manager", "a manager, paused", "none"])
@pytest.mark.parametrize("kind", ["constant", "recorded", "rows"])
def test_where_the_derivative_is_recorded_the_gradient_held_is_not_changed(outer: str, kind: str) -> None:
    x, w = tensor(np.ones((200, 2))), tensor(np.full((200, 2), 3.0))
    with contextlib.ExitStack() as entered:
        if outer.startswith("a manager"):
            entered.enter_context(GradManager().attach(x))
        if outer == "a manager, paused":
            entered.enter_context(no_grad())
        entered.enter_context(GradManager().attach(x))
        first = [(x * w).sum(), (x * x * w).sum(), functional.embedding(np.array([1, 1]), x, sparse=True).sum()]
        y = dict(zip(("constant", "recorded", "rows"), first, strict=True))[kind]
        backward(y, create_graph=outer == "create_graph", retain_graph=True)
        held, before = x.grad, x.grad.numpy().copy()
        backward(y, create_graph=outer == "create_graph")
    renewed = outer in ("create_graph", "a manager")
    assert (x.grad is not held) == renewed
    np.testing.assert_array_equal(x.grad.numpy(), 2 * before)
    np.testing.assert_array_equal(held.numpy(), before if renewed else 2 * before)


# ---------------------------------------------------------------- threads and tasks


def test_each_thread_differentiates_its_own_recording() -> None:
    x = tensor(np.linspace(0.0, 1.0, 50))
    found: dict[int, Array] = {}

    def work(k: int) -> None:
        for _ in range(20):
            with GradManager().attach(x):
                (g,) = grad((gnp.sin(x) * k).sum(), x, create_graph=True)
                (h,) = grad(g.sum(), x)
        found[k] = h.numpy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(4):
        assert_close(found[k], -k * np.sin(x.numpy()))


def test_each_task_differentiates_its_own_recording() -> None:
    x = tensor([2.0])

    async def work(k: int) -> Any:
        with GradManager().attach(x):
            y = x**k
            await asyncio.sleep(0)
            (g,) = grad(y, x)
            return g.tolist()

    async def both() -> list[Any]:
        return await asyncio.gather(work(2), work(3))

    assert asyncio.run(both()) == [[4.0], [12.0]]
