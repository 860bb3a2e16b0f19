"""Forward mode as the user has it: levels, duals, nesting with managers in any order."""

import asyncio
import contextvars
import gc
import threading
import weakref

import guard
import numpy as np
import pytest
from helpers import pop_grad

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, no_grad, tensor
from gradmgr._engine.context import current, recorders
from gradmgr._engine.history.modes import inference_mode
from gradmgr._engine.op import OPS
from gradmgr._engine.tape import Tape
from gradmgr._transforms.grad import grad
from gradmgr.forward_ad import (
    UnpackedDualTensor,
    dual_level,
    enter_dual_level,
    exit_dual_level,
    make_dual,
    unpack_dual,
)


def f(v):
    """A scalar with a full Hessian and third derivative."""
    return gnp.sum(gnp.sin(v) * v**3) + gnp.exp(v[0] * v[1] * v[2])


POINT = np.array([0.7, -0.4, 1.1])
ALONG = np.array([1.0, 2.0, -0.5])
ACROSS = np.array([0.3, -1.0, 0.8])
THIRD = np.array([-0.6, 0.2, 1.5])


def value(v):
    return float(f(asarray(np.array(v))))


def slope(v, *along, step=1e-3):
    """The mixed derivative of f along these directions, from differences of high order."""
    if not along:
        return value(v)
    h, (u, *rest) = step, along
    a, b, c = ((slope(v + k * h * u, *rest) - slope(v - k * h * u, *rest)) / (2 * k * h) for k in (1, 2, 3))
    return (15 * a - 6 * b + c) / 10


def tangent_of(t, level=None):
    return unpack_dual(t, level=level).tangent


# ---------------------------------------------------------------- one level


def test_a_directional_derivative():
    x = tensor(POINT)
    with dual_level() as level:
        assert level == 0
        dual = make_dual(x, ALONG)
        unpacked = unpack_dual(f(dual))
    assert isinstance(unpacked, UnpackedDualTensor)
    primal, tangent = unpacked
    assert (unpacked.primal, unpacked.tangent) == (primal, tangent)
    assert primal.item() == value(POINT)
    np.testing.assert_allclose(tangent.item(), slope(POINT, ALONG), rtol=1e-9)


def test_a_dual_is_a_new_tensor_of_the_same_values():
    x = tensor(POINT)
    with dual_level():
        dual = make_dual(x, ALONG)
        assert dual is not x
        assert dual._array is x._array
        assert tangent_of(x) is None
        primal, tangent = unpack_dual(dual)
        assert primal is not dual
        assert primal._array is x._array
        assert tangent_of(primal) is None
        assert tangent.tolist() == ALONG.tolist()


def test_what_is_unpacked_of_a_tensor_without_tangent():
    x = tensor(POINT)
    primal, tangent = unpack_dual(x)  # outside of any level, as torch
    assert tangent is None
    assert primal.tolist() == x.tolist()
    with dual_level():
        assert unpack_dual(x).tangent is None
        assert unpack_dual(make_dual(x, ALONG).detach()).tangent is None
        assert unpack_dual(gnp.argsort(make_dual(x, ALONG))).tangent is None
        assert unpack_dual(make_dual(x, ALONG).astype("int64")).tangent is None
        assert unpack_dual(make_dual(x, ALONG) > 0).tangent is None


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 1, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_shapes_and_dtypes(shape, dtype):
    random = np.random.default_rng(3)
    a, v = random.uniform(0.5, 1, (2, *shape)).astype(dtype)
    if a.dtype.kind == "c":
        a, v = a + 1j * v, v - 2j * a
    with dual_level():
        primal, tangent = unpack_dual(gnp.exp(make_dual(tensor(a), v)) * 2)
        whole, of_sum = unpack_dual(make_dual(tensor(a), v).sum())
    assert (tangent.shape, tangent.dtype) == (primal.shape, primal.dtype) == (shape, np.dtype(dtype))
    np.testing.assert_allclose(tangent.numpy(), 2 * np.exp(a) * v, rtol=1e-5)
    assert (of_sum.shape, of_sum.dtype) == (whole.shape, whole.dtype) == ((), np.dtype(dtype))
    np.testing.assert_allclose(of_sum.numpy(), v.sum(), rtol=1e-5)


def test_complex_tangents_are_plain_directional_derivatives():
    z, v = np.array([1 + 2j, -0.5 + 1j]), np.array([0.3 - 1j, 2 + 0.5j])

    def g(t):
        return gnp.conj(t) * gnp.exp(t) + gnp.abs(t) ** 2

    with dual_level():
        found = tangent_of(g(make_dual(tensor(z), v))).numpy()
    h = 1e-6
    numeric = (g(asarray(z + h * v)).numpy() - g(asarray(z - h * v)).numpy()) / (2 * h)
    np.testing.assert_allclose(found, numeric, rtol=1e-8)


# ---------------------------------------------------------------- tangents given


def test_what_may_be_given_as_a_tangent():
    x = tensor(np.float32([1.0, 2.0]))
    with dual_level():
        for tangent in ([1, 2], (1.0, 2.0), np.float32([1, 2]), tensor(np.float32([1, 2]))):
            found = tangent_of(make_dual(x, tangent))
            assert (found.tolist(), found.dtype) == ([1.0, 2.0], np.float32)
        assert tangent_of(make_dual(tensor(3.0), 1)).item() == 1.0
        assert tangent_of(make_dual(tensor(3j), 1j)).item() == 1j


def test_a_tangent_is_not_aliased():
    x, v = tensor([1.0, 2.0, 3.0]), np.ones(3)
    given = tensor([1.0, 1.0, 1.0])
    with dual_level():
        by_array, by_tensor = make_dual(x, v), make_dual(x, given)
        v[:] = 7
        given[0] = 7.0
        given *= 7
        for dual in (by_array, by_tensor):
            assert tangent_of(dual).tolist() == [1, 1, 1]
            taken_out = tangent_of(dual)
            taken_out += 5
            taken_out[0] = 9.0
            assert tangent_of(dual).tolist() == [1, 1, 1]
        y = by_array * 2
        by_array *= 10
        x[:] = 0.0
        assert (y.tolist(), tangent_of(y).tolist()) == ([2, 4, 6], [2, 2, 2])
        assert (by_tensor.tolist(), tangent_of(by_tensor).tolist()) == ([1, 2, 3], [1, 1, 1])
    assert given.tolist() == [49, 7, 7]
    assert v.tolist() == [7, 7, 7]


# ---------------------------------------------------------------- in place


def test_writes_in_place_carry_tangents():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])
    u, v = np.array([1.0, -1.0, 0.5]), np.array([2.0, 0.0, 1.0])
    with dual_level():
        a, b = make_dual(tensor(x), u), make_dual(tensor(y), v)
        a += b
        assert tangent_of(a).tolist() == (u + v).tolist()
        a *= b
        np.testing.assert_allclose(tangent_of(a).numpy(), (u + v) * y + (x + y) * v)
        c = tensor(np.zeros(3))
        c[1:] = b[:2]
        assert tangent_of(c).tolist() == [0, *v[:2]]
        c[0] = 5.0
        c[1] = 5.0
        assert tangent_of(c).tolist() == [0, 0, v[1]]
        c[...] = 1.0
        assert not tangent_of(c).numpy().any()
        out = tensor(np.zeros(3))
        gnp.sin(b, out=out)
        np.testing.assert_allclose(tangent_of(out).numpy(), np.cos(y) * v)
        gnp.multiply(out, 2.0, out=out, where=np.array([True, False, True]))
        np.testing.assert_allclose(tangent_of(out).numpy(), np.cos(y) * v * [2, 1, 2])
        gnp.add(1.0, 2.0, out=out)
        assert tangent_of(out) is None


def test_a_plain_tensor_written_to_with_a_dual_has_a_tangent_until_the_level_ends():
    total = tensor(0.0)
    with dual_level():
        x = make_dual(tensor(2.0), 1.0)
        for _ in range(3):
            total += x * x
        assert tangent_of(total).item() == 12.0
    assert total.item() == 12.0
    assert tangent_of(total) is None


def test_a_loop_of_writes():
    n = 50
    with dual_level():
        r = make_dual(tensor(0.9), 1.0)
        x = gnp.ones(n)
        for k in range(1, n):
            x[k] = x[k - 1] * r
        found = tangent_of(x).numpy()
    np.testing.assert_allclose(found, [k * 0.9 ** max(k - 1, 0) for k in range(n)], rtol=1e-13)


# ---------------------------------------------------------------- with managers, two orders


def reverse_over_reverse():
    x = tensor(POINT)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(f(x))
        outer.backward((pop_grad(x) * ALONG).sum())
    return pop_grad(x).numpy()


def forward_over_reverse():
    x = tensor(POINT)
    with dual_level():
        dual = make_dual(x, ALONG)
        gm = GradManager().attach(dual)
        with gm:
            gm.backward(f(dual))
        return tangent_of(pop_grad(dual)).numpy()


def forward_over_reverse_of_the_tensor_itself():
    """The manager tracks x; what is computed from its dual counts for x."""
    x = tensor(POINT)
    gm = GradManager().attach(x)
    with dual_level(), gm:
        gm.backward(f(make_dual(x, ALONG)))
        return tangent_of(pop_grad(x)).numpy()


def reverse_over_forward():
    x = tensor(POINT)
    gm = GradManager().attach(x)
    with gm, dual_level():
        gm.backward(tangent_of(f(make_dual(x, ALONG))))
    return pop_grad(x).numpy()


def reverse_over_forward_after_the_level():
    x = tensor(POINT)
    gm = GradManager().attach(x)
    with gm:
        with dual_level():
            tangent = tangent_of(f(make_dual(x, ALONG)))
        gm.backward(tangent)
    return pop_grad(x).numpy()


def forward_over_forward():
    x, rows = tensor(POINT), []
    for unit in np.eye(3):
        with dual_level():
            outer = make_dual(x, unit)
            with dual_level():
                tangent = tangent_of(f(make_dual(outer, ALONG)))
            rows.append(tangent_of(tangent).item())
    return np.array(rows)


SECOND = [
    reverse_over_reverse,
    forward_over_reverse,
    forward_over_reverse_of_the_tensor_itself,
    reverse_over_forward,
    reverse_over_forward_after_the_level,
    forward_over_forward,
]


@pytest.mark.parametrize("way", SECOND)
def test_second_derivatives_agree(way):
    numeric = [slope(POINT, ALONG, unit) for unit in np.eye(3)]
    found = way()
    np.testing.assert_allclose(found, numeric, rtol=1e-6)
    np.testing.assert_allclose(found, reverse_over_reverse(), rtol=1e-12)


def third_by(kinds):
    """The third derivative along three directions, each by a level or by a manager, outermost first."""
    point = tensor(POINT)

    def along(function, kind, direction):
        def forward(t):
            with dual_level():
                return tangent_of(function(make_dual(t, direction)))

        def reverse(t):
            t = t * 1.0
            with GradManager().attach(t) as gm:
                gm.backward(function(t))
            return (pop_grad(t) * direction).sum()

        return forward if kind == "forward" else reverse

    function = f
    for kind, direction in zip(reversed(kinds), (ALONG, ACROSS, THIRD), strict=True):
        function = along(function, kind, direction)
    return function(point).item()


@pytest.mark.parametrize("outer", ["forward", "reverse"])
@pytest.mark.parametrize("middle", ["forward", "reverse"])
@pytest.mark.parametrize("inner", ["forward", "reverse"])
def test_third_derivatives_agree(outer, middle, inner):
    exact = third_by(["reverse"] * 3)
    np.testing.assert_allclose(third_by([outer, middle, inner]), exact, rtol=1e-12)
    np.testing.assert_allclose(exact, slope(POINT, ALONG, ACROSS, THIRD, step=2e-2), rtol=1e-5)


def test_three_levels_at_once_give_all_mixed_derivatives():
    with dual_level() as a, dual_level() as b, dual_level() as c:
        assert (a, b, c) == (0, 1, 2)
        x = make_dual(tensor(POINT), ALONG, level=a)
        x = make_dual(x, ACROSS, level=b)
        y = f(make_dual(x, THIRD, level=c))
        assert unpack_dual(y, level=c).primal.item() == value(POINT)
        for level, direction in ((a, ALONG), (b, ACROSS), (c, THIRD)):
            np.testing.assert_allclose(tangent_of(y, level).item(), slope(POINT, direction), rtol=1e-9)
        for outer, inner, pair in ((a, b, (ALONG, ACROSS)), (a, c, (ALONG, THIRD)), (b, c, (ACROSS, THIRD))):
            np.testing.assert_allclose(tangent_of(tangent_of(y, inner), outer).item(), slope(POINT, *pair), rtol=1e-7)
            assert tangent_of(tangent_of(y, outer), inner) is None  # an outer level's tangents are not recorded inside
        third = tangent_of(tangent_of(tangent_of(y, c), b), a).item()
        np.testing.assert_allclose(third, third_by(["reverse"] * 3), rtol=1e-12)
        np.testing.assert_allclose(third, slope(POINT, ALONG, ACROSS, THIRD, step=2e-2), rtol=1e-5)


def test_the_primal_stays_tracked_by_other_levels_and_managers():
    x = tensor(POINT)
    gm = GradManager().attach(x)
    with dual_level() as outer, gm, dual_level() as inner:
        y = make_dual(make_dual(x, ALONG, level=outer), ACROSS, level=inner)
        of_inner, of_outer = unpack_dual(y * y, level=inner), unpack_dual(y * y, level=outer)
        assert tangent_of(of_inner.primal, inner) is None
        np.testing.assert_allclose(tangent_of(of_inner.primal, outer).numpy(), 2 * POINT * ALONG)
        assert tangent_of(of_outer.primal, outer) is None
        np.testing.assert_allclose(tangent_of(of_outer.primal, inner).numpy(), 2 * POINT * ACROSS)
        np.testing.assert_allclose(tangent_of(of_inner.tangent, outer).numpy(), 2 * ALONG * ACROSS)
        assert gm._tape.node_id_of(of_inner.primal) is not None
        assert gm._tape.node_id_of(of_outer.primal) is not None
        assert gm._tape.node_id_of(of_inner.tangent) is not None
        assert gm._tape.node_id_of(of_outer.tangent) is None
        gm.backward(of_inner.tangent.sum())
    np.testing.assert_allclose(pop_grad(x).numpy(), 2 * ACROSS)


def test_gradients_of_a_dual_reach_the_tensor_it_was_made_of():
    x, w = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach([x, w])
    with gm, dual_level():
        dual = make_dual(x * w, [1.0, 1.0])
        y = dual * dual
        gm.backward(y.sum() + x.sum())
    assert x.grad.tolist() == [2 * 3 * 3 + 1.0, 2 * 8 * 4 + 1.0]
    assert w.grad.tolist() == [2 * 3 * 1.0, 2 * 8 * 2.0]


def test_a_dual_may_be_attached_and_its_gradient_flows_on():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm, dual_level():
        dual = make_dual(x, [1.0, 0.0])
        gm.attach(dual)
        gm.backward((dual * dual).sum())
    assert (x.grad.tolist(), dual.grad.tolist()) == ([2.0, 4.0], [2.0, 4.0])


def test_a_tangent_has_its_own_history():
    x, v = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach([x, v])
    with gm, dual_level():
        y = make_dual(x, v) ** 3
        gm.backward(tangent_of(y).sum())  # 3 x^2 v
    assert x.grad.tolist() == [18.0, 48.0]
    assert v.grad.tolist() == [3.0, 12.0]


def test_managers_of_a_group_track_a_dual():
    x = tensor([2.0])
    one, two = GradManager().attach(x), GradManager().attach(x)
    with dual_level(), one | two:
        y = make_dual(x, [1.0]) ** 2
        one.backward(y)
        assert tangent_of(pop_grad(x)).tolist() == [2.0]
        two.backward(y)
        assert tangent_of(pop_grad(x)).tolist() == [2.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_that_are_returned(create_graph):
    """As by `backward`: gradients have tangents, tangents have gradients, in whichever order they were entered."""
    x, numeric = tensor(POINT), [slope(POINT, ALONG, unit) for unit in np.eye(3)]
    with dual_level(), GradManager().attach(x):
        dual = make_dual(x, ALONG)
        (g,) = grad(f(dual), dual, create_graph=create_graph)
        np.testing.assert_allclose(tangent_of(g).numpy(), numeric, rtol=1e-6)
    with GradManager().attach(x), dual_level():
        (g,) = grad(tangent_of(f(make_dual(x, ALONG))), x, create_graph=create_graph)
        np.testing.assert_allclose(g.numpy(), numeric, rtol=1e-6)
        assert tangent_of(g) is None


def test_a_tangent_of_a_gradient_that_is_recorded_has_a_gradient():
    """Reverse over forward over reverse, on one tape."""
    x = tensor(POINT)
    with GradManager().attach(x), dual_level(), GradManager().attach(x) as inner:
        dual = make_dual(x, ALONG)
        inner.backward(f(dual))
        (g,) = grad((tangent_of(pop_grad(x)) * ACROSS).sum(), x)
    numeric = [slope(POINT, ALONG, ACROSS, unit, step=2e-2) for unit in np.eye(3)]
    np.testing.assert_allclose(g.numpy(), numeric, rtol=1e-5)


# ---------------------------------------------------------------- modes


def test_no_grad_does_not_stop_tangents():
    with dual_level(), no_grad():
        x = make_dual(tensor(3.0), 1.0)
        assert tangent_of(x * x).item() == 6.0


def test_inference_mode_stops_tangents_but_not_make_dual_and_unpack_dual():
    with dual_level():
        x = make_dual(tensor(3.0), 1.0)
        with inference_mode():
            assert tangent_of(x * x) is None
            y = make_dual(tensor(4.0), 1.0)
            assert tangent_of(x).item() == 1.0
        assert tangent_of(x * y).item() == 7.0


def test_tangents_computed_under_no_grad_are_constants_for_a_manager():
    """As the values are: half a history would give a wrong derivative without a word."""
    x = tensor(3.0)
    gm = GradManager().attach(x)
    with gm, dual_level():
        dual = make_dual(x, x * x)
        with no_grad():
            quiet = tangent_of(dual * dual)
        assert quiet.item() == 54.0
        assert gm._tape.node_id_of(quiet) is None
        gm.backward(quiet * tangent_of(dual * dual))  # 54 * 2 x^3
    assert x.grad.item() == 54.0 * 6 * 9


def test_tangents_of_a_level_entered_under_no_grad_are_recorded_after_it():
    x = tensor(3.0)
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            enter_dual_level()
        gm.backward(tangent_of(make_dual(x, 1.0) ** 3))
        exit_dual_level()
    assert x.grad.item() == 18.0


# ---------------------------------------------------------------- the life of a level


def test_levels_are_numbered_from_the_outermost():
    assert enter_dual_level() == 0
    assert enter_dual_level() == 1
    with dual_level() as third:
        assert third == 2
    with dual_level() as third:
        assert third == 2
    exit_dual_level(level=0)
    assert enter_dual_level() == 2
    exit_dual_level()
    exit_dual_level()
    assert current() is None
    assert enter_dual_level() == 0
    exit_dual_level()


def test_tangents_vanish_with_the_level():
    made = []

    class Held(np.ndarray):
        """An array to which there are weak references."""

    with dual_level():
        x = make_dual(tensor(POINT), ALONG)
        y = x * 2
        z = tensor(POINT)
        z += y
        for t in (x, y, z):
            level = current().with_paused[0][0]
            tangent = level.node_id_of(t)
            made.append(weakref.ref(tangent))
            del tangent
        del level
        assert all(ref() is not None for ref in made)
    gc.collect()
    assert all(ref() is None for ref in made)
    with dual_level():
        assert [tangent_of(t) for t in (x, y, z, x * y)] == [None] * 4
    assert unpack_dual(x).tangent is None


def test_a_level_is_freed_and_dead_tensors_leave_nothing_in_an_open_one():
    with dual_level():
        level = current().with_paused[0][0]
        x = make_dual(tensor(np.ones(1000)), np.ones(1000))
        first = weakref.ref(level.node_id_of(x * 2))
        assert first() is None
        for _ in range(2000):
            x * x
        assert len(level._cells) < 400
        assert level.leaf_ids == {}
        kept = [x * k for k in range(500)]
        assert len(level._cells) < 1500
    assert (level._cells, level._outer_contexts, level.outer) == ([], {}, None)
    assert tangent_of(kept[3]) is None


def test_tapes_recorded_around_a_level_do_not_keep_tangents():
    x = tensor(np.ones(1000))
    gm = GradManager().attach(x)
    with gm:
        tape = gm._tape
        with dual_level():
            y = f(make_dual(x, np.ones(1000)))
        del y
        tape.sweep(everything=True)
        assert tape.entries == []
        gm.backward((x * x).sum())


def test_an_exception_closes_the_level():
    made = []

    def fails():
        with dual_level():
            made.append(make_dual(tensor(3.0), 1.0))
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert current() is None
    assert tangent_of(made[0]) is None


def test_levels_may_be_closed_in_any_order():
    outer, inner = enter_dual_level(), enter_dual_level()
    x = make_dual(make_dual(tensor(3.0), 1.0, level=outer), 1.0, level=inner)
    y = x**3
    exit_dual_level(level=outer)
    with pytest.raises(RuntimeError, match="level 0 is not open"):
        unpack_dual(y, level=outer)
    first = tangent_of(y)
    assert first.item() == 27.0
    assert tangent_of(x * y).item() == 4 * 27
    exit_dual_level(level=inner)
    assert current() is None


def test_a_level_and_a_manager_may_be_closed_in_any_order():
    x = tensor(3.0)
    for first, second in (("level", "manager"), ("manager", "level")):
        for leaves_first in ("level", "manager"):
            gm = GradManager().attach(x)
            for what in (first, second):
                enter_dual_level() if what == "level" else gm.record()
            y = make_dual(x, 1.0) ** 3
            if leaves_first == "level":
                exit_dual_level()
                gm.backward(y * x)
                assert pop_grad(x).item() == 4 * 27
            else:
                gm.release()
                assert tangent_of(y).item() == 27.0
                assert tangent_of(y * y).item() == 6 * 243
                exit_dual_level()
            assert current() is None


def test_the_context_is_the_tape_again_after_a_level_inside_a_recording():
    x = tensor(3.0)
    gm = GradManager().attach(x)
    with gm:
        with dual_level():
            y = make_dual(x, 1.0) * x
        assert current() is gm._tape
        gm.backward(y)
    assert x.grad.item() == 6.0


def test_a_level_exited_in_the_block_stays_so():
    with dual_level() as level:
        exit_dual_level(level=level)
        with dual_level():
            x = make_dual(tensor(3.0), 1.0)
            assert tangent_of(x * x).item() == 6.0
    assert current() is None


def test_one_object_may_be_entered_inside_itself():
    level = dual_level()
    with level as outer:
        x = make_dual(tensor(3.0), 1.0)
        with level as inner:
            assert (outer, inner) == (0, 1)
            second = tangent_of(make_dual(x, 1.0) ** 3)
        assert tangent_of(second).item() == 18.0
    assert current() is None


def test_a_decorated_function_and_coroutine():
    @dual_level()
    def slope_of(function, a):
        return tangent_of(function(make_dual(a, 1.0)))

    assert slope_of(lambda t: t**3, tensor(2.0)).item() == 12.0
    assert slope_of(lambda t: slope_of(lambda u: u**3, t), tensor(2.0)).item() == 12.0

    @dual_level()
    async def slowly(a):
        dual = make_dual(tensor(a), 1.0)
        await asyncio.sleep(0)
        return tangent_of(dual**2).item()

    async def main():
        return await asyncio.gather(slowly(1.0), slowly(5.0))

    assert asyncio.run(main()) == [2.0, 10.0]
    assert current() is None


def test_calls_that_overlap_have_levels_of_their_own():
    @dual_level()
    async def exits_early(a):
        dual = make_dual(tensor(a), 1.0)
        await asyncio.sleep(0)
        found = tangent_of(dual**2).item()
        exit_dual_level()
        await asyncio.sleep(0)
        return found

    async def main():
        return await asyncio.gather(*map(exits_early, [1.0, 2.0, 3.0]))

    assert asyncio.run(main()) == [2.0, 4.0, 6.0]


def test_one_object_may_be_entered_in_several_threads():
    shared, entered, leave_now = dual_level(), threading.Event(), threading.Event()
    found = []

    def other():
        with shared:
            x = make_dual(tensor(3.0), 1.0)
            entered.set()
            leave_now.wait()
            found.append(tangent_of(x * x).item())

    thread = threading.Thread(target=other)
    with shared:
        thread.start()
        entered.wait()
        x = make_dual(tensor(5.0), 1.0)
        assert tangent_of(x * x).item() == 10.0
    leave_now.set()
    thread.join()
    assert found == [6.0]
    assert shared._entered == []


def test_a_block_that_is_left_in_another_context_closes_its_level():
    def steps():
        with dual_level():
            yield make_dual(tensor(3.0), 1.0)

    suspended = steps()
    elsewhere = contextvars.copy_context()
    x = elsewhere.run(next, suspended)
    assert elsewhere.run(lambda: tangent_of(x * x).item()) == 6.0
    suspended.close()
    assert elsewhere.run(lambda: unpack_dual(x).tangent) is None


def test_a_generator_is_not_decorated():
    def steps():
        yield 1

    with pytest.raises(TypeError, match=r"dual_level cannot decorate the generator function .*steps: it would end"):
        dual_level()(steps)


# ---------------------------------------------------------------- threads and tasks


def test_levels_belong_to_their_thread():
    seen = []
    with dual_level():
        x = make_dual(tensor(3.0), 1.0)

        def other():
            seen.append(tangent_of(x))
            try:
                make_dual(tensor(1.0), 1.0)
            except errors.RecordingError as error:
                seen.append(str(error))
            with dual_level() as level:
                seen.append((level, tangent_of(make_dual(x, 2.0) ** 2).item()))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert tangent_of(x * x).item() == 6.0
    assert seen[0] is None
    assert "none is open in this thread or task" in seen[1]
    assert seen[2] == (0, 12.0)


def test_a_level_carried_into_another_context_is_the_same():
    with dual_level():
        x = make_dual(tensor(3.0), 1.0)
        assert contextvars.copy_context().run(lambda: tangent_of(x * x).item()) == 6.0
        elsewhere = contextvars.copy_context()
        elsewhere.run(enter_dual_level)
        assert len(recorders(current())) == 1  # its own stays its own
    assert elsewhere.run(lambda: tangent_of(x * x)) is None


def test_a_level_that_was_never_exited_ends_with_its_thread():
    levels = []

    def enter():
        enter_dual_level()
        levels.extend(map(weakref.ref, recorders(current())))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    gc.collect()
    assert [level() for level in levels] == [None]


def test_levels_of_tasks_do_not_mix():
    async def slope_at(a):
        with dual_level() as level:
            dual = make_dual(tensor(a), 1.0)
            await asyncio.sleep(0)
            y = dual**2
            await asyncio.sleep(0)
            return level, tangent_of(y).item()

    async def main():
        return await asyncio.gather(*map(slope_at, [1.0, 2.0, 3.0]))

    assert asyncio.run(main()) == [(0, 2.0), (0, 4.0), (0, 6.0)]


def test_many_threads_with_levels_over_a_shared_tensor():
    shared = tensor(POINT)
    gm = GradManager().attach(shared)
    expected, found = slope(POINT, ALONG), []

    def work():
        for _ in range(20):
            with dual_level():
                found.append(tangent_of(f(make_dual(shared, ALONG))).item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with gm:
            gm.backward(f(shared))
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, [expected] * 80, rtol=1e-9)
    np.testing.assert_allclose(shared.grad.numpy(), 20 * np.array([slope(POINT, u) for u in np.eye(3)]), rtol=1e-8)


# ---------------------------------------------------------------- misuse


def facts(state):
    """What a call must not change: of a level the tangents it keeps, of a tape the entries."""
    return [list(rec.entries if isinstance(rec, Tape) else rec._cells) for rec in recorders(state)]


def refused(call, kind, builtin, text):
    before = current()
    known = facts(before)
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert current() is before
    assert facts(before) == known


def test_without_a_level():
    x = tensor([1.0])
    refused(lambda: make_dual(x, [1.0]), errors.RecordingError, RuntimeError, "make_dual needs a dual level, and none")
    refused(lambda: exit_dual_level(), errors.RecordingError, RuntimeError, "exit_dual_level needs a dual level")
    refused(lambda: unpack_dual(x, level=0), errors.RecordingError, RuntimeError, "unpack_dual needs a dual level")


def test_a_level_that_is_not_open():
    x = tensor([1.0])
    with dual_level(), dual_level():
        for level in (2, -1):
            for call in (
                lambda k: make_dual(x, [1.0], level=k),
                lambda k: unpack_dual(x, level=k),
                lambda k: exit_dual_level(level=k),
            ):
                text = rf"level {level} is not open in this thread or task.*exited already; open: 0, 1"
                refused(lambda c=call, k=level: c(k), errors.RecordingError, RuntimeError, text)
        for level in ("0", 0.0, True):
            refused(lambda k=level: make_dual(x, [1.0], level=k), TypeError, TypeError, "level= is a number that")


@pytest.mark.parametrize(
    ("tangent", "kind", "builtin", "text"),
    [
        (np.ones(3), errors.ShapeError, ValueError, r"must have its shape \(2,\); found \(3,\)"),
        (1.0, errors.ShapeError, ValueError, r"must have its shape \(2,\); found \(\)"),
        (np.ones((1, 2)), errors.ShapeError, ValueError, r"found \(1, 2\)"),
        (np.ones(2, "float32"), errors.DtypeError, TypeError, r"dtype float64; found float32.*astype\('float64'\)"),
        (tensor(np.ones(2, "float32")), errors.DtypeError, TypeError, "found float32"),
        (np.ones(2, int), errors.DtypeError, TypeError, "found int64"),
        (np.ones(2, complex), errors.DtypeError, TypeError, "found complex128"),
        ([1j, 0], errors.DtypeError, TypeError, "found complex128"),
        ("north", errors.DtypeError, TypeError, "make_dual: a Tensor holds numbers; str"),
        (None, errors.DtypeError, TypeError, "make_dual: a Tensor holds numbers; NoneType"),
        ([[1.0], [1.0, 2.0]], ValueError, ValueError, "make_dual: .*inhomogeneous"),
    ],
)
def test_a_tangent_of_the_wrong_shape_or_dtype(tangent, kind, builtin, text):
    x = tensor([1.0, 2.0])
    with dual_level():
        refused(lambda: make_dual(x, tangent), kind, builtin, text)
        assert tangent_of(x) is None


def test_a_primal_that_has_no_tangent():
    with dual_level():
        for dtype in ("int64", "bool"):
            x = tensor(np.ones(2), dtype=dtype)
            refused(lambda x=x: make_dual(x, [1, 1]), errors.DtypeError, TypeError, f"dtype {dtype} cannot have a tan")
        refused(lambda: make_dual(np.ones(2), np.ones(2)), TypeError, TypeError, "takes a Tensor.*found ndarray")
        refused(lambda: unpack_dual(np.ones(2)), TypeError, TypeError, "unpack_dual takes a Tensor; found ndarray")


def test_a_second_tangent_at_the_same_level():
    with dual_level() as outer:
        x = make_dual(tensor([1.0]), [1.0])
        text = "has a tangent at level 0 already.*open a level inside"
        refused(lambda: make_dual(x, [2.0]), errors.RecordingError, RuntimeError, text)
        with dual_level():
            refused(lambda: make_dual(x, [2.0], level=outer), errors.RecordingError, RuntimeError, text)
            make_dual(x, [2.0])
        assert tangent_of(make_dual(unpack_dual(x).primal, [2.0])).tolist() == [2.0]


def test_a_tangent_whose_history_would_be_lost():
    x, w = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach(w)
    with dual_level() as outer:
        dual = make_dual(x, [1.0])
        refused(lambda: make_dual(x, dual), errors.RecordingError, RuntimeError, "history with the level itself")
        with gm:
            text = r"history with a manager or level that was entered after.*detach\(\), or enter the level last"
            refused(lambda: make_dual(x, w), errors.RecordingError, RuntimeError, text)
            assert tangent_of(make_dual(x, w.detach())).tolist() == [2.0]
        with dual_level():
            inner = make_dual(x, [1.0])
            refused(lambda: make_dual(x, inner, level=outer), errors.RecordingError, RuntimeError, text)
            assert isinstance(make_dual(x, inner.detach(), level=outer), Tensor)


def test_arrays_that_are_not_numpys(cupy):
    x, v = asarray(cupy.asarray(POINT)), cupy.asarray(ALONG)
    with dual_level() as outer:
        for tangent in (v, asarray(v), ALONG.tolist()):
            primal, found = unpack_dual(gnp.sin(make_dual(x, tangent)) * x)
            assert isinstance(primal._array, guard.ndarray)
            assert isinstance(found._array, guard.ndarray)
            np.testing.assert_allclose(found._array._host, np.cos(POINT) * POINT * ALONG)
        with dual_level():
            second = tangent_of(make_dual(make_dual(x, v, level=outer), v) ** 3)
        np.testing.assert_allclose(tangent_of(second)._array._host, 6 * POINT * ALONG**2)
        text = r"must live on cuda:0; found cpu; move one of them"
        refused(lambda: make_dual(x, ALONG), errors.MixedArraysError, TypeError, text)
        refused(lambda: make_dual(x, tensor(ALONG)), errors.MixedArraysError, TypeError, text)
        text = r"must live on cpu; found cuda:0"
        refused(lambda: make_dual(tensor(POINT), v), errors.MixedArraysError, TypeError, text)
    assert guard.ndarray.copies_to_host == 0


def test_implicit_conversion_of_a_dual_is_refused():
    with dual_level():
        x = make_dual(tensor([1.0]), [1.0])
        with pytest.raises(errors.TrackedConversionError):
            np.asarray(x)
        assert x.numpy().tolist() == [1.0]


def test_an_error_in_a_forward_rule_names_the_op_and_changes_nothing(monkeypatch):

    def broken(*args):
        raise LookupError("broken")

    monkeypatch.setattr(OPS["sin"], "jvp", broken)
    with dual_level():
        x = make_dual(tensor([1.0]), [1.0])
        before = current()
        with pytest.raises(LookupError, match="broken") as caught:
            gnp.sin(x)
        assert any("forward derivative of gradmgr op 'sin'" in note for note in caught.value.__notes__)
        assert current() is before
        assert tangent_of(gnp.cos(x)).tolist() == [-np.sin(1.0)]
