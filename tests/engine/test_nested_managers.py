"""Several managers at once: what each records, in every nesting; no_grad and enable_grad."""

import asyncio
import contextlib
import contextvars
import itertools
import weakref

import numpy as np
import pytest
from helpers import pop_grad
from hypothesis import given
from hypothesis import strategies as st

import gradmgr.numpy as gnp
from gradmgr import GradManager, GradManagerGroup, Tensor, enable_grad, errors, no_grad, tensor
from gradmgr._engine.context import Context, current

# ---------------------------------------------------------------- second order and higher


def test_second_order():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(x * x * x)
        first = pop_grad(x)
        outer.backward(first)
    assert first.tolist() == [27.0]
    assert x.grad.tolist() == [18.0]


def test_second_order_in_one_with_statement():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x * x)
        outer.backward(pop_grad(x))
    assert x.grad.tolist() == [18.0]


def test_without_clearing_the_results_add():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x * x)
        outer.backward(x.grad)
    assert x.grad.tolist() == [27.0 + 18.0]


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_any_order_of_a_power(order):
    x = tensor([2.0])
    managers = [GradManager().attach(x) for _ in range(order)]
    for gm in managers:
        gm.record()
    y = x**6.0
    expected = 1.0
    for k, gm in enumerate(reversed(managers)):
        gm.backward(y)
        y = pop_grad(x)
        expected *= 6 - k
        assert y.tolist() == pytest.approx([expected * 2.0 ** (5 - k)], rel=1e-14)


def test_third_order_of_a_sine_and_an_exponential():
    x = tensor([0.3, 1.1])
    managers = [GradManager().attach(x) for _ in range(3)]
    a = x.numpy()
    # f = sin(x) exp(2x), whose k-th derivative is the imaginary part of (2 + i)^k exp((2 + i) x)
    with managers[0], managers[1], managers[2]:
        y = gnp.sin(x) * gnp.exp(x * 2)
        for k, gm in enumerate(reversed(managers), start=1):
            gm.backward(y.sum())
            y = pop_grad(x)
            np.testing.assert_allclose(y.numpy(), ((2 + 1j) ** k * np.exp((2 + 1j) * a)).imag, rtol=1e-13)


def test_mixed_partial_derivatives():
    x, y = tensor([2.0]), tensor([3.0])
    outer, inner = GradManager().attach(y), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x * y * y * y)
        outer.backward(x.grad)  # d/dy of 2 x y^3
    assert y.grad.tolist() == [6 * 2.0 * 9.0]
    assert x.grad.tolist() == [2 * 2.0 * 27.0]


def test_a_whole_hessian():
    def function(v):
        return gnp.exp(v[0] * v[1]) + v[2] ** 3 * v[0]

    v = tensor([0.5, 1.5, 2.0])
    outer, inner = GradManager().attach(v), GradManager().attach(v)
    rows = []
    with outer, inner:
        inner.backward(function(v))
        first = pop_grad(v)
        for row in np.eye(3):
            outer.backward(first, row, retain=True)
            rows.append(pop_grad(v).tolist())
    a, b, c = 0.5, 1.5, 2.0
    e = np.exp(a * b)
    expected = [[b * b * e, e + a * b * e, 3 * c * c], [e + a * b * e, a * a * e, 0], [3 * c * c, 0, 6 * c * a]]
    np.testing.assert_allclose(rows, expected, rtol=1e-13)


def test_a_hessian_vector_product():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4, 4))
    v = rng.normal(size=4)
    x = tensor(rng.normal(size=4))
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward((gnp.tanh(x @ matrix) ** 2).sum())
        outer.backward((pop_grad(x) * v).sum())

    def first(a):
        t = np.tanh(a @ matrix)
        return matrix @ (2 * t * (1 - t * t))

    step = 1e-5
    numeric = (first(x.numpy() + step * v) - first(x.numpy() - step * v)) / (2 * step)
    np.testing.assert_allclose(x.grad.numpy(), numeric, rtol=1e-6)


def test_forward_mode_by_two_reverse_modes():
    """The vjp is linear in its cotangent, so its derivative by the cotangent is the jvp."""
    rng = np.random.default_rng(1)
    matrix, direction = rng.normal(size=(3, 5)), rng.normal(size=3)
    x, u = tensor(rng.normal(size=3)), tensor(np.zeros(5))
    outer, inner = GradManager().attach(u), GradManager().attach(x)
    with outer, inner:
        inner.backward(gnp.tanh(x @ matrix), u)
        outer.backward(x.grad, direction)
    expected = (1 - np.tanh(x.numpy() @ matrix) ** 2) * (direction @ matrix)
    np.testing.assert_allclose(u.grad.numpy(), expected, rtol=1e-13)


def test_a_dy_that_the_outer_manager_tracks_is_differentiated_through():
    x, u = tensor([3.0]), tensor([5.0])
    outer, inner = GradManager().attach(u), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x, u * u)
        outer.backward(x.grad)  # 2 x u^2
    assert u.grad.tolist() == [2 * 3.0 * 2 * 5.0]


def test_a_dy_of_another_dtype_is_differentiated_through_its_cast():
    x, u = tensor([3.0], dtype="float32"), tensor([5.0], dtype="float64")
    outer, inner = GradManager().attach(u), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x, u * u)
        outer.backward(x.grad)
    assert x.grad.dtype == np.float32
    assert u.grad.dtype == np.float64
    assert u.grad.tolist() == [60.0]


def test_a_dy_tracked_by_the_same_manager_alone_is_a_constant():
    x, u = tensor([3.0]), tensor([5.0])
    gm = GradManager().attach([x, u])
    with gm:
        gm.backward(x * x, u * u, retain=True)
        assert x.grad.tolist() == [150.0]
        assert u.grad is None
        with pytest.raises(RuntimeError, match="does not know"):
            gm.backward(x.grad)


def test_a_dy_tracked_by_an_inner_manager_alone_is_a_constant_for_it():
    x, u = tensor([3.0]), tensor([5.0])
    outer, inner = GradManager().attach(x), GradManager().attach(u)
    with outer, inner:
        outer.backward(x * x, u * u)
        with pytest.raises(RuntimeError, match="does not know"):
            inner.backward(x.grad)
    assert x.grad.tolist() == [150.0]


def test_an_inner_manager_does_not_record_the_backward_of_an_outer_one_and_says_so():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        y = x * x
        outer.backward(y)
        with pytest.raises(RuntimeError, match="another manager's backward"):
            inner.backward(x.grad)
        inner.backward(y)  # it still records what was computed forward
    assert x.grad.tolist() == [12.0]


def test_a_manager_does_not_record_its_own_backward():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * x * x, retain=True)
        with pytest.raises(RuntimeError, match="does not know"):
            gm.backward(x.grad)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3), 2)))
def test_of_three_managers_those_entered_before_record_a_backward(order):
    first, second = order
    x = tensor([3.0])
    managers = [GradManager().attach(x) for _ in range(3)]
    for gm in managers:
        gm.record()
    managers[first].backward(x * x * x)
    derivative = pop_grad(x)
    if second < first:
        managers[second].backward(derivative)
        assert x.grad.tolist() == [18.0]
    else:
        with pytest.raises(RuntimeError, match="does not know"):
            managers[second].backward(derivative)
    for gm in managers:
        gm.release()


def test_forward_operations_are_recorded_by_every_manager():
    x = tensor([3.0])
    managers = [GradManager().attach(x) for _ in range(4)]
    for gm in managers:
        gm.record()
    y = x * x
    for gm in managers:
        gm.backward(y)
        assert pop_grad(x).tolist() == [6.0]


def test_a_manager_records_only_what_follows_its_record():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        before = x * x
        with inner:
            y = before * x
            inner.backward(y)
            assert pop_grad(x).tolist() == [9.0]  # before is a constant to it
        outer.backward(y)
    assert x.grad.tolist() == [27.0]


def test_an_inner_manager_may_record_again_and_again():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        total = tensor([0.0])
        for k in range(1, 4):
            with inner:
                inner.backward(x * x * k)
            total = total + pop_grad(x)
        outer.backward(total)  # 2 x (1 + 2 + 3)
    assert x.grad.tolist() == [12.0]


def test_different_attached_sets():
    a, b = tensor([2.0]), tensor([5.0])
    outer, inner = GradManager().attach(a), GradManager().attach(b)
    with outer, inner:
        y = a * b * b
        inner.backward(y)
        assert a.grad is None
        assert b.grad.tolist() == [20.0]
        outer.backward(y)
    assert a.grad.tolist() == [25.0]
    assert b.grad.tolist() == [20.0]
    assert outer.attached_tensors() == [a]
    assert inner.attached_tensors() == [b]


def test_an_intermediate_of_the_outer_manager_is_a_leaf_of_the_inner():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager()
    with outer:
        h = x * x
        with inner.attach(h):
            inner.backward(h * h * h)
        outer.backward(h.grad)  # d/dx of 3 h^2 = 3 x^4
    assert h.grad.tolist() == [243.0]
    assert x.grad.tolist() == [12 * 27.0]


def test_an_intermediate_attached_to_both():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        h = x * x
        outer.attach(h)
        inner.attach(h)
        inner.backward(h * h * h)
        assert pop_grad(h).tolist() == [243.0]
        first = pop_grad(x)
        assert first.tolist() == [243.0 * 6]
        outer.backward(first)  # of 3 h^2 * 2 x: by h, and in all by x
    # The derivative of h itself, 2 x, and h's own cotangent both lead back to x.
    assert h.grad.tolist() == [6 * 9.0 * 6.0]
    assert x.grad.tolist() == [30 * 81.0]


def test_second_order_through_a_write_in_place():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        z = x * 1
        z *= x
        z *= z
        inner.backward(z)  # x^4
        outer.backward(pop_grad(x))
    assert x.grad.tolist() == [12 * 9.0]


def test_second_order_where_the_attached_tensor_is_written_to():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        x *= x
        inner.backward(x * x)  # x0^4
        first = pop_grad(x)
        assert first.tolist() == [4 * 27.0]
        outer.backward(first)
    assert x.grad.tolist() == [12 * 9.0]


def test_learning_to_learn_through_writes_in_place():
    """Steps of gradient descent on w, differentiated by the start and the learning rate."""

    def final(w, rate, steps=3):
        inner = GradManager().attach(w)
        for _ in range(steps):
            with inner:
                inner.backward((gnp.sin(w) ** 2).sum())
            w -= rate * pop_grad(w)
        return (w * w).sum()

    def final_of(start, rate):
        return final(tensor(start), tensor(rate)).item()

    start, rate = np.array([0.4, 1.2]), 0.3
    w, r = tensor(start), tensor(rate)
    outer = GradManager().attach([w, r])
    with outer:
        outer.backward(final(w, r))
    step = 1e-6
    by_rate = (final_of(start, rate + step) - final_of(start, rate - step)) / (2 * step)
    by_start = [(final_of(start + d, rate) - final_of(start - d, rate)) / (2 * step) for d in np.eye(2) * step]
    np.testing.assert_allclose(r.grad.item(), by_rate, rtol=1e-7)
    np.testing.assert_allclose(w.grad.numpy(), by_start, rtol=1e-7)


def test_a_gradient_penalty():
    rng = np.random.default_rng(2)
    w, x = tensor(rng.normal(size=(3, 2))), tensor(rng.normal(size=(4, 3)))

    def penalty(weights):
        inner = GradManager().attach(x)
        with inner:
            inner.backward(gnp.tanh(x @ weights).sum())
        return (pop_grad(x) ** 2).sum()

    outer = GradManager().attach(w)
    with outer:
        outer.backward(penalty(w))
    step = 1e-6
    for k in np.ndindex(3, 2):
        d = np.zeros((3, 2))
        d[k] = step
        numeric = (penalty(tensor(w.numpy() + d)).item() - penalty(tensor(w.numpy() - d)).item()) / (2 * step)
        assert w.grad.numpy()[k] == pytest.approx(numeric, rel=1e-6)


# ---------------------------------------------------------------- .grad under an outer recorder


def test_under_an_outer_recorder_accumulation_makes_a_new_tensor():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(x * x * x)
        first = x.grad
        with inner:
            inner.backward(x * x)
        assert x.grad is not first
        assert first.tolist() == [27.0]
        second = pop_grad(x)
        assert second.tolist() == [33.0]
        outer.backward(second, retain=True)
        assert pop_grad(x).tolist() == [18.0 + 2.0]
        outer.backward(first)
    assert x.grad.tolist() == [18.0]


def test_a_grad_tracked_by_the_outer_manager_stays_tracked_through_accumulation():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        x.grad = x * x * 5
        with inner:
            inner.backward(x * 7)  # a constant to the outer manager
        outer.backward(pop_grad(x))
    assert x.grad.tolist() == [30.0]


def test_the_gradient_under_an_outer_recorder_has_the_shape_and_dtype_of_its_tensor():
    x, w = tensor([3.0], dtype="float32"), tensor([[1.0, 2.0]], dtype="float64")
    outer, inner = GradManager().attach([x, w]), GradManager().attach([x, w])
    with outer, inner:
        inner.backward((x * w * w).sum())
        assert (x.grad.shape, x.grad.dtype) == ((1,), np.float32)
        assert (w.grad.shape, w.grad.dtype) == ((1, 2), np.float64)
        by_w = pop_grad(w)
        x.grad = None
        outer.backward(by_w.sum())
    assert (x.grad.shape, x.grad.dtype) == ((1,), np.float32)
    assert x.grad.tolist() == [6.0]
    assert w.grad.tolist() == [[6.0, 6.0]]


def test_a_gradient_of_the_outer_manager_is_not_a_live_view_of_the_users_dy():
    x, u = tensor([3.0, 4.0]), tensor([5.0, 6.0])
    outer, inner = GradManager().attach(u), GradManager().attach(x)
    with outer, inner:
        inner.backward(x, u)
        assert x.grad is not u
        u *= 2
        assert x.grad.tolist() == [5.0, 6.0]
        outer.backward(x.grad, np.array([1.0, 10.0]))
    assert u.grad.tolist() == [1.0, 10.0]


# ---------------------------------------------------------------- callbacks under an outer manager


def test_what_a_callback_computes_is_recorded_by_the_outer_manager():
    x = tensor([3.0])
    outer = GradManager().attach(x)
    inner = GradManager().attach(x, lambda t, grad: grad * t)
    with outer, inner:
        inner.backward(x * x * x)
        outer.backward(pop_grad(x))  # d/dx of 3 x^2 * x
    assert x.grad.tolist() == [81.0]


def test_what_a_future_computes_is_recorded_by_the_outer_manager():
    class Future:
        def __init__(self, grad):
            self.grad = grad

        def get(self):
            return self.grad * x

    x = tensor([3.0])
    outer = GradManager().attach(x)
    inner = GradManager().attach(x, [lambda t, grad: Future(grad), lambda t, grad: grad * 2])
    with outer, inner:
        inner.backward(x * x * x)
        outer.backward(pop_grad(x))  # d/dx of 6 x^3
    assert x.grad.tolist() == [162.0]


def test_a_write_in_a_callback_under_an_outer_manager():
    x, w = tensor([3.0]), tensor([2.0])

    def step(t, grad):
        t -= 0.5 * grad
        return grad

    outer = GradManager().attach(x)
    inner = GradManager().attach(w, step)
    with outer:
        with inner:
            inner.backward(x * w * w)
        assert w.tolist() == [2.0 - 0.5 * 12.0]
        outer.backward(w * w)  # w = 2 - 2 x, so w^2 has the derivative -4 w
    assert x.grad.tolist() == [16.0]


def test_a_failed_inner_backward_leaves_the_outer_manager_recording():
    def fail(t, grad):
        raise LookupError("mine")

    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x, fail)
    with outer:
        with inner:
            y = x * x
            with pytest.raises(LookupError):
                inner.backward(y)
        outer.backward(y * x)
    assert x.grad.tolist() == [27.0]


# ---------------------------------------------------------------- detach


def test_detach_stops_gradients_for_every_manager():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        cut = (x * x).detach()
        y = cut * x
        inner.backward(y)
        assert pop_grad(x).tolist() == [9.0]
        outer.backward(y)
        assert x.grad.tolist() == [9.0]
        for gm in (inner, outer):
            gm.release()
            gm.record()
        with pytest.raises(RuntimeError, match="detach"):
            inner.backward(cut)
        with pytest.raises(RuntimeError, match="detach"):
            outer.backward(cut)


def test_a_detached_first_derivative_is_a_constant_of_the_outer_manager():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(x * x * x)
        outer.backward(pop_grad(x).detach() * x)
    assert x.grad.tolist() == [27.0]


# ---------------------------------------------------------------- record and release in any order


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_release_in_any_order(order):
    x = tensor([3.0])
    managers = [GradManager().attach(x) for _ in range(3)]
    for gm in managers:
        gm.record()
    left = list(managers)
    for k in order:
        managers[k].release()
        left.remove(managers[k])
        y = x * x
        for gm in left:
            gm.backward(y, retain=True)
            assert pop_grad(x).tolist() == [6.0]
        with pytest.raises(RuntimeError, match="idle"):
            managers[k].backward(y)


def test_the_inner_manager_goes_on_after_the_outer_was_released():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    outer.record()
    inner.record()
    y = x * x
    outer.release()
    inner.backward(y * x)
    assert x.grad.tolist() == [27.0]


def test_an_outer_manager_recorded_again_is_the_innermost():
    x = tensor([3.0])
    a, b = GradManager().attach(x), GradManager().attach(x)
    a.record()
    b.record()
    a.release()
    a.record()  # now recorded after b
    a.backward(x * x * x)
    b.backward(pop_grad(x))
    assert x.grad.tolist() == [18.0]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["record", "release", "backward", "compute", "write", "write under no_grad"]),
            st.integers(0, 2),
        ),
        max_size=25,
    )
)
def test_any_program_of_records_releases_and_backwards(steps):
    """Against a model: for each manager, whether it records, and dy/dx as it has recorded it."""
    x = tensor([3.0])
    managers = [GradManager().attach(x) for _ in range(3)]
    dx = [0.0] * 3  # derivative of the present x by x at record()
    dy = [None] * 3  # derivative of y, None where unknown
    recording = [False] * 3
    y, y_value = tensor([1.0]), 1.0
    x_value = 3.0
    try:
        for what, k in steps:
            if what == "record" and not recording[k]:
                managers[k].record()
                recording[k], dx[k], dy[k] = True, 1.0, None
            elif what == "release":
                managers[k].release()
                recording[k] = False
            elif what == "compute":
                for m in range(3):
                    if recording[m] and (dy[m] is not None or dx[m] is not None):
                        dy[m] = (dy[m] or 0.0) * x_value / 4 + y_value * (dx[m] or 0.0) / 4
                y, y_value = y * x / 4, y_value * x_value / 4
            elif what == "write":
                x *= 1.5
                x_value *= 1.5
                dx = [None if d is None else d * 1.5 for d in dx]
            elif what == "write under no_grad":
                with no_grad():
                    x *= 0.5
                x_value *= 0.5
                dx = [None] * 3
            elif what == "backward" and recording[k]:
                if dy[k] is None:
                    with pytest.raises(RuntimeError, match="does not know"):
                        managers[k].backward(y)
                else:
                    managers[k].backward(y)
                    recording[k] = False
                    assert pop_grad(x).tolist() == pytest.approx([dy[k]], rel=1e-12)
            assert x.tolist() == pytest.approx([x_value])
            assert y.tolist() == pytest.approx([y_value])
    finally:
        for gm in managers:
            gm.release()


# ---------------------------------------------------------------- groups


def test_members_of_a_group_record_forward_operations():
    x = tensor([3.0])
    a, b, c = (GradManager().attach(x) for _ in range(3))
    with a | b | c:
        y = x * x
        for gm in (b, a, c):
            gm.backward(y)
            assert pop_grad(x).tolist() == [6.0]


@pytest.mark.parametrize("first", [0, 1])
def test_members_of_a_group_do_not_record_one_anothers_backward(first):
    x = tensor([3.0])
    pair = [GradManager().attach(x), GradManager().attach(x)]
    with pair[0] | pair[1]:
        pair[first].backward(x * x * x)
        with pytest.raises(RuntimeError, match="another manager's backward"):
            pair[1 - first].backward(pop_grad(x))


def test_a_manager_outside_of_a_group_records_the_backward_of_its_members():
    x = tensor([3.0])
    outer, a, b = (GradManager().attach(x) for _ in range(3))
    with outer, a | b:
        y = x * x * x
        a.backward(y)
        by_a = pop_grad(x)
        b.backward(y)
        outer.backward(by_a + pop_grad(x))
    assert x.grad.tolist() == [36.0]


def test_members_of_a_group_record_the_backward_of_an_inner_manager():
    x = tensor([3.0])
    a, b, inner = (GradManager().attach(x) for _ in range(3))
    with a | b, inner:
        inner.backward(x * x * x)
        first = pop_grad(x)
        a.backward(first)
        assert pop_grad(x).tolist() == [18.0]
        b.backward(first)
        assert x.grad.tolist() == [18.0]


def test_a_group_releases_all_on_exit_and_lets_exceptions_propagate():
    a, b = GradManager(), GradManager()
    with pytest.raises(LookupError), a | b:
        raise LookupError
    with a, b:
        pass


def test_a_group_is_reusable_and_its_members_are_usable_alone():
    x = tensor([3.0])
    a, b = GradManager().attach(x), GradManager().attach(x)
    group = a | b
    for _ in range(2):
        with group:
            a.backward(x * x)
            assert pop_grad(x).tolist() == [6.0]
    with a:
        a.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_a_member_of_a_group_may_be_released_before_the_others():
    x = tensor([3.0])
    a, b = GradManager().attach(x), GradManager().attach(x)
    with a | b:
        a.release()
        b.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_groups_join():
    x = tensor([3.0])
    managers = [GradManager().attach(x) for _ in range(4)]
    a, b, c, d = managers
    with (a | b) | (c | d):
        y = x * x * x
        for gm in managers:
            gm.backward(y, retain=True)
            derivative = pop_grad(x)
            assert derivative.tolist() == [27.0]
            for other in managers:
                with pytest.raises(RuntimeError, match="does not know"):
                    other.backward(derivative)


# ---------------------------------------------------------------- memory


def test_nothing_is_kept_of_either_recording_though_the_outputs_live():
    x = tensor(np.ones(100))
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        h = gnp.exp(x)
        loss = h.sum()
        kept = weakref.ref(h._array)
        del h
        inner.backward(loss)
        first = pop_grad(x)
        assert kept() is not None  # the outer manager needs it
        outer.backward(first.sum())
        assert kept() is None
    assert isinstance(loss, Tensor)


def test_a_manager_released_inside_another_frees_what_only_it_needed():
    x, w = tensor(np.ones(100)), tensor(np.ones(100))
    outer, inner = GradManager().attach(w), GradManager().attach(x)
    with outer:
        inner.record()
        h = gnp.exp(x)  # of no interest to the outer manager
        kept = weakref.ref(h._array)
        y = h.sum() + w.sum()
        del h
        assert kept() is not None
        inner.release()
        assert kept() is None
        outer.backward(y)


# ---------------------------------------------------------------- no_grad and enable_grad


def test_no_grad_stops_recording():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            c = x * x
        gm.backward(c * x)
    assert x.grad.tolist() == [9.0]


def test_no_grad_stops_every_manager():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        with no_grad():
            c = x * x
        y = c * x
        inner.backward(y)
        assert pop_grad(x).tolist() == [9.0]
        outer.backward(y)
    assert x.grad.tolist() == [9.0]


def test_what_was_computed_under_no_grad_is_untracked():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            y = x * x
        with pytest.raises(RuntimeError, match="no_grad"):
            gm.backward(y)


def test_no_grad_decorates_a_function():
    @no_grad()
    def square(t, *, extra=0.0):
        """Of a number."""
        return t * t + extra

    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(square(x, extra=1.0) * x)
    assert x.grad.tolist() == [10.0]
    assert square.__name__ == "square"
    assert square.__doc__ == "Of a number."


def test_a_decorated_function_may_call_itself():
    @no_grad()
    def power(t, n):
        return t if n == 1 else t * power(t, n - 1)

    x = tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(power(x, 5) * x)
    assert x.grad.tolist() == [32.0]


def test_enable_grad_decorates_a_function():
    @enable_grad()
    def square(t):
        return t * t

    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            y = square(x)
        gm.backward(y)
    assert x.grad.tolist() == [6.0]


def test_enable_grad_undoes_no_grad_for_every_manager():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        with no_grad():
            quiet = x * x
            with enable_grad():
                y = quiet * x
            still_quiet = x * 100
        inner.backward(y + still_quiet)
        assert pop_grad(x).tolist() == [9.0]
        outer.backward(y)
    assert x.grad.tolist() == [9.0]


def test_enable_grad_records_nothing_where_no_manager_records():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with enable_grad():
        y = x * x
    with gm, pytest.raises(RuntimeError, match="does not know"):
        gm.backward(y)


def test_no_grad_and_enable_grad_without_a_recording_change_no_values():
    x = tensor([3.0])
    with no_grad(), enable_grad(), no_grad():
        assert (x * x).tolist() == [9.0]


def test_no_grad_nests():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            with no_grad():
                pass
            c = x * x
        gm.backward(c * x)
    assert x.grad.tolist() == [9.0]


def test_one_no_grad_object_may_be_entered_again_inside_itself():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    quiet = no_grad()
    with gm:
        with quiet:
            with quiet:
                pass
            c = x * x
        gm.backward(c * x)
    assert x.grad.tolist() == [9.0]


def test_recording_goes_on_after_an_exception_under_no_grad():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(LookupError), no_grad():
            raise LookupError
        gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_a_manager_released_under_no_grad_stays_released():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        inner.record()
        with no_grad():
            inner.release()
        y = x * x
        with pytest.raises(RuntimeError, match="idle"):
            inner.backward(y)
        outer.backward(y)
    assert x.grad.tolist() == [6.0]


def test_a_manager_recorded_under_no_grad_goes_on_recording_afterwards():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with no_grad():
        gm.record()
    gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_backward_under_no_grad():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        with no_grad():
            gm.backward(y)
    assert x.grad.tolist() == [6.0]


def test_an_update_under_no_grad_keeps_the_parameter_attached():
    w = tensor([1.0])
    gm = GradManager().attach(w)
    for _ in range(50):
        with gm:
            gm.backward((w - 3) ** 2)
            with no_grad():
                w -= 0.1 * pop_grad(w)
    assert w.item() == pytest.approx(3.0, abs=1e-4)


def test_no_grad_holds_in_the_body_of_a_coroutine():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def quiet():
        with no_grad():
            c = x * x
            await asyncio.sleep(0)
            return c * x

    async def main():
        with gm:
            c = await asyncio.create_task(quiet())
            gm.backward(c * x)

    asyncio.run(main())
    assert x.grad.tolist() == [27.0]


def test_a_manager_cannot_be_in_a_group_twice():
    gm = GradManager()
    with pytest.raises(ValueError, match="twice"):
        gm | gm
    with pytest.raises(ValueError, match="twice"):
        GradManagerGroup([gm, gm])
    with pytest.raises(TypeError, match="element 1"):
        GradManagerGroup([gm, 3])
    with gm:
        pass


def test_a_tape_released_in_another_context_is_no_outer_tape():
    """A tape that stays current in a context it was not released in must not chain up."""
    x = tensor([1.0])
    for _ in range(5):
        gm = GradManager().attach(x)
        gm.record()
        contextvars.copy_context().run(gm.release)
    last = GradManager().attach(x)
    with last:
        assert last._tape.outer is None
        last.backward(x * x)
    assert x.grad.tolist() == [2.0]


# ---------------------------------------------------------------- the fast path of nested tapes


def without_fast_path(state):
    """Remove from a Context what lets ops of one and two inputs take the fast path."""
    if isinstance(state, Context):
        state.tapes = ()


PROGRAMS = {
    "two inputs, each kept": lambda x, y, c: (x * y) * x,
    "nothing kept": lambda x, y, c: (x + y) + (x - c),
    "the result kept": lambda x, y, c: gnp.exp(gnp.tanh(x)) / y,
    "a plain array": lambda x, y, c: (c.numpy() * x) * (y * 2.0),
    "tracked by none": lambda x, y, c: c * c + c * x + y * y,
    "tracked by one alone": lambda x, y, c: (y * y) * gnp.sqrt(y) + x,
    "results of two kinds": lambda x, y, c: gnp.sum(gnp.frexp(x)[0] * y) + gnp.reshape(x * y, (1, 3)),
    "in place": lambda x, y, c: written(x * y, y),
    "broadcast": lambda x, y, c: x * y[0] + gnp.reshape(y, (3, 1)) @ gnp.reshape(x, (1, 3)),
}


def written(z, y):
    z += y
    z[0] = y[1] * z[2]
    return z * y


def nested_gradients(program, count, *, fast):
    """Each manager's gradients, innermost first, of a program and of the gradients of the manager inside it."""
    x, y, c = tensor([1.0, 2.0, 3.0]), tensor([0.5, 1.5, 2.5]), tensor([2.0, 3.0, 4.0])
    nested = [GradManager().attach([x, y] if k % 2 == 0 else y) for k in range(count)]
    found = []
    with contextlib.ExitStack() as stack:
        for gm in nested:
            stack.enter_context(gm)
        if not fast:
            without_fast_path(current())
        value = program(x, y, c).sum()
        found.append(value.numpy())
        for gm in reversed(nested):
            try:
                gm.backward(value)
            except errors.NotRecordedError:  # a constant, from this order on
                found.append(None)
                break
            gradients = [pop_grad(t) for t in (x, y)]
            found += [None if g is None else g.numpy() for g in gradients]
            value = sum((g * g).sum() for g in gradients if g is not None)
    return found


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nested_tapes_give_the_same_on_the_fast_and_the_general_path(name, count):
    fast, general = (nested_gradients(PROGRAMS[name], count, fast=choice) for choice in (True, False))
    assert len(fast) > 2
    for one, other in zip(fast, general, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_fast_path_of_nested_tapes_records_nothing_on_a_released_tape():
    x = tensor([2.0])
    first, second, third = (GradManager().attach(x) for _ in range(3))
    with first, second, third:
        z = x * x
        contextvars.copy_context().run(second.release)
        z = gnp.exp(z) * x
        third.backward(z)
        second_order = pop_grad(x)
        first.backward(second_order.sum())
    e = np.exp(4.0)
    assert second_order.item() == pytest.approx((2 * 2 * 2 + 1) * e)
    assert x.grad.item() == pytest.approx((4 * 2 + (2 * 4 + 1) * 2 * 2) * e)
