"""GradManager: attaching, recording, backward. What one manager does, in one thread."""

import gc
import tracemalloc
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest
from helpers import identity, tracks

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import AttachSpec, GradManager, asarray, errors, inference_mode, no_grad, tensor


def memory_of(t):
    """A weak reference to the array that a tensor's values live in."""
    return weakref.ref(t._array)


def run_backward(function, x, dy=None):
    """Let a manager of its own add the gradient of `function` to x.grad."""
    gm = GradManager().attach(x)
    with gm:
        gm.backward(function(x), dy)


# ---------------------------------------------------------------- attach: what it takes


def test_attach_returns_the_manager():
    gm = GradManager()
    assert gm.attach(tensor([1.0])) is gm


def test_attach_accepts_one_tensor():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    assert gm.attached_tensors() == [x]


@pytest.mark.parametrize("form", [list, tuple, iter, lambda ts: (t for t in ts), lambda ts: {"a": ts[0], "b": ts[1]}])
def test_attach_accepts_any_iterable_of_tensors(form):
    a, b = tensor([1.0]), tensor([[2.0, 3.0]])
    gm = GradManager().attach(form([a, b]))
    assert [id(t) for t in gm.attached_tensors()] == [id(a), id(b)]


def test_attach_accepts_a_mapping_of_names():
    w, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach({"weight": w, "bias": b})
    assert [id(t) for t in gm.attached_tensors()] == [id(w), id(b)]
    with gm:
        gm.backward((w * b).sum())
    assert w.grad.tolist() == [2.0]
    assert b.grad.tolist() == [1.0]


def test_a_callback_added_to_one_tensor_is_not_added_to_those_attached_with_it():
    a, b = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach([a, b], [double]).attach(a, plus_one)
    with gm:
        gm.backward(a + b)
    assert (a.grad.tolist(), b.grad.tolist()) == ([3.0], [2.0])


def test_a_list_of_callbacks_is_neither_kept_nor_changed():
    x = tensor([1.0])
    mine = [double]
    gm = GradManager().attach(x, mine).attach(x, plus_one)
    mine.append(None)
    with gm:
        gm.backward(x * 1)
    assert mine == [double, None]
    assert x.grad.tolist() == [3.0]


def test_attach_accepts_an_empty_iterable():
    assert GradManager().attach([]).attached_tensors() == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16])
def test_attach_accepts_every_dtype_that_can_have_a_gradient(dtype):
    x = tensor([1.0, 2.0], dtype=dtype)
    assert GradManager().attach(x).attached_tensors() == [x]


def test_attach_accepts_one_callback_positionally_by_name_and_by_the_short_name():
    for attach in (
        lambda gm, x: gm.attach(x, double),
        lambda gm, x: gm.attach(x, callbacks=double),
        lambda gm, x: gm.attach(x, callback=double),
    ):
        x = tensor([1.0])
        gm = GradManager()
        attach(gm, x)
        with gm:
            gm.backward(x * 3)
        assert x.grad.tolist() == [6.0]


def double(t, grad):
    return grad * 2


def plus_one(t, grad):
    return grad + 1


@pytest.mark.parametrize("keyword", ["callbacks", "callback"])
@pytest.mark.parametrize("form", [list, tuple, iter, lambda cbs: (cb for cb in cbs)])
def test_attach_accepts_any_iterable_of_callbacks_in_order(form, keyword):
    x = tensor([1.0])
    gm = GradManager().attach(x, **{keyword: form([double, plus_one])})
    with gm:
        gm.backward(x * 3)
    assert x.grad.tolist() == [7.0]


def test_a_generator_of_callbacks_serves_every_tensor():
    a, b, c = tensor([1.0]), tensor([1.0]), tensor([1.0])
    gm = GradManager().attach([a, b, c], (cb for cb in [double, plus_one]))
    with gm:
        gm.backward(a + b + c)
    assert [t.grad.tolist() for t in (a, b, c)] == [[3.0]] * 3


def test_no_callbacks_is_the_same_as_none_and_an_empty_list():
    a, b = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach(a, None).attach(b, [])
    with gm:
        gm.backward(a * 2 + b * 3)
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0], [3.0])


def test_only_what_was_attached_receives_a_gradient():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach(a)
    with gm:
        gm.backward(a * b)
    assert a.grad.tolist() == [2.0]
    assert b.grad is None


# ---------------------------------------------------------------- attach: weak


def test_a_manager_keeps_no_attached_tensor_alive():
    gm = GradManager()
    x = tensor([1.0])
    gm.attach(x, identity)
    alive = weakref.ref(x)
    del x
    assert alive() is None
    assert gm.attached_tensors() == []


def test_the_specification_goes_with_its_tensor():
    gm = GradManager()
    x = tensor([1.0])

    def callback(t, grad):
        return grad

    gm.attach(x, callback)
    alive = weakref.ref(callback)
    del callback
    assert alive() is not None
    del x
    assert alive() is None


def test_temporaries_attached_in_a_loop_leave_nothing():
    w = tensor([1.0])
    gm = GradManager().attach(w)
    for _ in range(100):
        gm.attach(w * 2, identity)
    assert len(gm.attached_tensors()) == 1
    assert len(gm._attachments._specs) == 1


def test_a_temporary_attached_while_recording_lives_until_the_recording_ends():
    gm = GradManager()
    seen = []
    with gm:
        x = tensor([1.0])
        gm.attach(x, lambda t, grad: (seen.append(grad.tolist()), grad)[1])
        alive = weakref.ref(x)
        y = x * 5
        del x
        assert alive() is not None
        gm.backward(y)
    assert seen == [[5.0]]
    assert alive() is None
    assert gm.attached_tensors() == []


def test_a_new_tensor_with_the_id_of_a_dead_one_is_not_attached():
    gm = GradManager()
    base = tensor([1.0])
    gone, count = set(), 0
    for _ in range(200):
        x = base.detach()
        gm.attach(x)
        gone.add(id(x))
        del x
        t = base.detach()
        if id(t) in gone:
            count += 1
            assert gm.attached_tensors() == []
            gm.record()
            assert not tracks(gm, t * 2)
            gm.release()
    assert count > 0  # else nothing was tried


def test_a_new_tensor_with_the_id_of_a_dead_one_does_not_receive_its_gradient():
    count, alive = 0, None
    for _ in range(50):
        gm = GradManager()
        x = tensor([1.0, 2.0])
        gm.attach(x)
        gm.record()
        y = (x * 3).sum()
        gm.detach(x)
        place, alive = id(x), weakref.ref(x)
        del x
        if alive() is not None:  # the recording keeps it: no other tensor can have its id
            gm.release()
            assert alive() is None
            continue
        for t in [tensor([1.0, 2.0, 3.0]) for _ in range(10)]:
            if id(t) == place:
                count += 1
                gm.attach(t)
                gm.backward(y)
                assert t.grad is None
                break
        gm.release()
        alive = None
    assert count > 0 or alive is not None  # else nothing was tried


def test_a_dead_tensor_leaves_the_order_of_the_others():
    gm = GradManager()
    a, b, c = tensor([1.0]), tensor([2.0]), tensor([3.0])
    gm.attach([a, b, c])
    del b
    assert [t.item() for t in gm.attached_tensors()] == [1.0, 3.0]


def test_attaching_does_not_change_the_tensor():
    x = tensor([1.0, 2.0])
    GradManager().attach(x)
    assert x.grad is None
    assert x.tolist() == [1.0, 2.0]


# ---------------------------------------------------------------- attach again


def test_attaching_again_concatenates_callbacks_and_keeps_one_entry():
    x = tensor([1.0])
    gm = GradManager().attach(x, double).attach(x, plus_one)
    assert len(gm.attached_tensors()) == 1
    with gm:
        gm.backward(x * 3)
    assert x.grad.tolist() == [7.0]


def test_attaching_again_keeps_the_place_in_the_order():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b]).attach(a, double)
    assert [t.item() for t in gm.attached_tensors()] == [1.0, 2.0]


def test_attaching_again_without_a_callback_changes_nothing_and_warns_of_nothing():
    x = tensor([1.0])
    gm = GradManager().attach(x, double)
    gm.attach(x)
    with gm:
        gm.backward(x * 3)
    assert x.grad.tolist() == [6.0]


def test_the_same_callback_attached_again_warns_once():
    x = tensor([1.0])
    gm = GradManager().attach(x, identity)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            gm.attach(x, identity)
    assert [w.category for w in caught] == [RuntimeWarning]
    text = str(caught[0].message)
    assert "(1,)" in text
    assert "outside the loop" in text
    assert caught[0].filename == __file__


def test_the_same_callback_attached_again_runs_again():
    x = tensor([1.0])
    gm = GradManager().attach(x, double)
    with pytest.warns(RuntimeWarning, match="attached again"):
        gm.attach(x, double)
    with gm:
        gm.backward(x * 1)
    assert x.grad.tolist() == [4.0]


def test_the_same_callback_on_another_tensor_does_not_warn():
    a, b = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach(a, identity).attach(b, identity)
    assert gm.attached_tensors() == [a, b]


# ---------------------------------------------------------------- attach while recording


def test_attach_takes_effect_at_once_while_recording():
    x = tensor([3.0])
    gm = GradManager()
    with gm:
        gm.attach(x)
        gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_what_was_computed_before_attach_is_ignored():
    w, x = tensor([2.0]), tensor([3.0])
    gm = GradManager().attach(w)
    with gm:
        before = w * x
        gm.attach(x)
        gm.backward(before + x * 10)
    assert w.grad.tolist() == [3.0]
    assert x.grad.tolist() == [10.0]


def test_an_attached_intermediate_and_its_ancestor_both_receive_gradients():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h)
        gm.backward(h * 5)
    assert h.grad.tolist() == [5.0]
    assert x.grad.tolist() == [30.0]


def test_the_callback_of_an_intermediate_changes_only_its_own_gradient():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h, lambda t, grad: grad * 100)
        gm.backward(h * 5)
    assert h.grad.tolist() == [500.0]
    assert x.grad.tolist() == [30.0]


def test_the_callback_of_an_intermediate_may_not_even_by_writing_in_place_change_what_flows_on():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def overwrite(t, grad):
        grad *= 100
        return grad

    with gm:
        h = x * x
        gm.attach(h, overwrite)
        gm.backward(h * 5)
    assert h.grad.tolist() == [500.0]
    assert x.grad.tolist() == [30.0]


def test_what_was_computed_from_an_intermediate_before_it_was_attached_counts_for_its_ancestors_only():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        before = h * 7
        gm.attach(h)
        gm.backward(before + h * 5)
    assert h.grad.tolist() == [5.0]
    assert x.grad.tolist() == [12.0 * 6.0]


def test_a_chain_of_attached_intermediates():
    x = tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        h1 = x * x
        gm.attach(h1)
        h2 = h1 * h1
        gm.attach(h2)
        gm.backward(h2 * h2)
    assert h2.grad.tolist() == [32.0]
    assert h1.grad.tolist() == [32.0 * 8.0]
    assert x.grad.tolist() == [32.0 * 8.0 * 4.0]


def test_an_intermediate_attached_twice_receives_its_gradient_once():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h).attach(h)
        gm.backward(h * 5)
    assert h.grad.tolist() == [5.0]
    assert x.grad.tolist() == [30.0]


def test_a_leaf_attached_again_while_recording_keeps_what_was_computed_from_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.attach(x)
        gm.backward(y)
    assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("write", ["recorded", "constant", "unrecorded"])
def test_a_leaf_attached_again_after_a_write_loses_nothing_that_is_computed_before_or_after(write):
    """After one under no_grad its derivative at the present value is added, as in torch; a recorded one goes on."""
    x, seen = tensor([3.0]), []
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        if write == "recorded":
            x *= 2
        elif write == "constant":
            x[...] = 6.0
        else:
            with no_grad():
                x *= 2
        gm.attach(x, callbacks=lambda t, grad: seen.append(grad.tolist()))
        gm.backward((y + x * 10).sum())
    assert x.grad.tolist() == [{"recorded": 26.0, "constant": 6.0, "unrecorded": 16.0}[write]]
    assert seen == [x.grad.tolist()]


@pytest.mark.parametrize("mode", [no_grad, inference_mode])
@pytest.mark.parametrize("order", ["one", "two managers", "retain"])
def test_steps_within_a_recording_go_on_where_the_variable_is_attached_again(mode, order):
    x, outer, gm = tensor([3.0]), GradManager(), GradManager()
    gm.attach(x)
    if order == "two managers":
        outer.attach(x)
    with outer, gm:
        for value in (3.0, 2.0, 1.0):
            assert x.tolist() == [value]
            gm.backward(x * x, retain=True)
            assert x.grad.tolist() == [2 * value]
            with mode():
                x -= 1.0
            for backward in (gm.backward, gradmgr.backward):
                with pytest.raises(
                    errors.NotRecordedError, match=r"shape \(1,\).* no_grad\(\), .*; attach it again after"
                ):
                    backward(x * x)
            x.grad = None
            gm.attach(x)
            if order == "two managers":
                outer.attach(x)


def test_a_leaf_detached_and_attached_begins_anew_at_its_present_value():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        x *= 2
        gm.detach(x).attach(x)
        gm.backward((y + x * 10).sum())
    assert x.grad.tolist() == [10.0]


def test_attach_to_an_outer_manager_after_an_inner_does_not_detach_the_inner():
    x = tensor([3.0])
    outer, inner = GradManager(), GradManager()
    with outer, inner:
        inner.attach(x)
        outer.attach(x)
        y = x * x
        inner.backward(y)
        assert x.grad.tolist() == [6.0]
        x.grad = None
        outer.backward(y)
        assert x.grad.tolist() == [6.0]


def test_attach_to_an_outer_manager_after_what_the_inner_recorded():
    x = tensor([3.0])
    outer, inner = GradManager(), GradManager().attach(x)
    with outer, inner:
        y = x * x
        outer.attach(x)
        inner.backward(y + x * 2)
        assert x.grad.tolist() == [8.0]


# ---------------------------------------------------------------- AttachSpec, detach, clear_grad


def test_an_attach_spec_has_slots_a_weak_reference_and_a_list():
    x = tensor([1.0])
    spec = AttachSpec(weakref.ref(x), [identity])
    assert not hasattr(spec, "__dict__")
    assert spec.tensor() is x
    assert spec.callbacks == [identity]
    del x
    assert spec.tensor() is None


def test_detach_stops_the_gradient():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b])
    gm.detach(a)
    assert gm.attached_tensors() == [b]
    with gm:
        gm.backward(a * b)
    assert a.grad is None
    assert b.grad.tolist() == [1.0]


@pytest.mark.parametrize("form", [list, tuple, iter, lambda ts: {"a": ts[0], "b": ts[1]}])
def test_detach_accepts_what_attach_accepts(form):
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b], identity)
    gm.detach(form([a, b]))
    assert gm.attached_tensors() == []


def test_detach_drops_the_callbacks():
    x = tensor([1.0])
    gm = GradManager().attach(x, double)
    gm.detach(x)
    gm.attach(x)
    with gm:
        gm.backward(x * 3)
    assert x.grad.tolist() == [3.0]


def test_detach_while_recording_holds_for_what_is_recorded_already():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b])
    with gm:
        y = a * b
        gm.detach(a)
        gm.backward(y)
    assert a.grad is None
    assert b.grad.tolist() == [1.0]


def test_detach_and_attach_while_recording_counts_from_the_second_attach_on():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        before = x * 2
        gm.detach(x)
        gm.attach(x)
        gm.backward(before + x * 10)
    assert x.grad.tolist() == [10.0]


def test_detaching_an_intermediate_leaves_the_gradients_of_its_ancestors():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h)
        gm.detach(h)
        gm.backward(h * 5)
    assert h.grad is None
    assert x.grad.tolist() == [30.0]


def test_detaching_an_intermediate_keeps_what_was_computed_from_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h)
        y = h * 5
        gm.detach(h)
        gm.backward(y)
    assert h.grad is None
    assert x.grad.tolist() == [30.0]


def test_clear_grad_sets_none_on_all_attached_and_on_nothing_else():
    a, b, other = tensor([1.0]), tensor([2.0]), tensor([3.0])
    for t in (a, b, other):
        t.grad = tensor([9.0])
    GradManager().attach([a, b]).clear_grad()
    assert a.grad is None
    assert b.grad is None
    assert other.grad.tolist() == [9.0]


# ---------------------------------------------------------------- record, release, with


def test_nothing_is_recorded_outside_a_recording():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    before = x * 2
    with gm:
        activated = x * 3
    after = x * 4
    gm.record()
    for y in (before, activated, after):
        assert not tracks(gm, y)
    gm.release()


def test_record_and_release_without_with():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    y = x * x
    gm.backward(y)
    gm.release()
    assert x.grad.tolist() == [6.0]


def test_backward_ends_the_recording():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    gm.backward(x * x)
    assert not gradmgr._engine.context.is_tracked(x * x)
    gm.record()  # would raise, were it recording
    gm.release()


def test_release_is_idempotent_and_legal_when_idle():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.release()
    gm.release()
    gm.record()
    assert gradmgr._engine.context.is_tracked(x * x)
    gm.release()
    gm.release()
    assert not gradmgr._engine.context.is_tracked(x * x)


def test_a_with_block_releases_on_a_normal_exit():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm as entered:
        assert entered is gm
        assert gradmgr._engine.context.is_tracked(x * x)
    assert not gradmgr._engine.context.is_tracked(x * x)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_with_block_releases_on_an_exception_and_lets_it_propagate(kind):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    error = kind("mine")
    with pytest.raises(kind) as caught, gm:
        raise error
    assert caught.value is error
    with gm:  # reusable
        gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_a_with_block_releases_on_return_and_break():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def leave_early():
        with gm:
            return gradmgr._engine.context.is_tracked(x * x)

    for _ in range(2):
        with gm:
            break
    assert not gradmgr._engine.context.is_tracked(x * x)
    assert leave_early()
    assert not gradmgr._engine.context.is_tracked(x * x)


def test_a_manager_is_reusable_and_gradients_add():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    for k in range(1, 4):
        with gm:
            gm.backward(x * x)
        assert x.grad.tolist() == [6.0 * k]


def test_a_manager_may_record_again_inside_its_own_with():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * x)
        gm.record()
        gm.backward(x * 10)
    assert x.grad.tolist() == [16.0]


def test_a_tensor_of_an_earlier_recording_is_a_constant():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        old = x * x
    with gm:
        gm.backward(old * x)
    assert x.grad.tolist() == [9.0]


def test_a_manager_dropped_while_recording_is_freed_and_stops_recording():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    gm.record()
    y = gnp.exp(x * 2)
    kept = memory_of(y)
    alive = weakref.ref(gm)
    del gm
    assert alive() is None
    assert not gradmgr._engine.context.is_tracked(y)
    del y
    assert kept() is None


def test_a_manager_dropped_while_recording_lets_an_outer_one_go_on():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    outer.record()
    inner.record()
    h = x * x
    alive = weakref.ref(inner)
    del inner
    assert alive() is None
    outer.backward(h * x)
    assert x.grad.tolist() == [27.0]


def test_a_manager_is_freed_by_reference_counting_alone():
    x = tensor([1.0])
    gc.disable()
    try:
        gm = GradManager().attach(x, identity)
        with gm:
            gm.backward(x * 2)
        alive = weakref.ref(gm)
        del gm
        assert alive() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------- nothing is held afterwards


def test_after_backward_nothing_is_kept_though_the_output_lives():
    x = tensor(np.ones(100))
    gm = GradManager().attach(x)
    with gm:
        h = gnp.exp(x)
        y = gnp.tanh(h)
        loss = y.sum()
        kept = [memory_of(h), memory_of(y)]
        del h, y
        assert all(ref() is not None for ref in kept)  # the derivatives need them
        gm.backward(loss)
        assert [ref() for ref in kept] == [None, None]
    assert loss.item() > 0


def test_after_release_nothing_is_kept_though_the_output_lives():
    x = tensor(np.ones(100))
    gm = GradManager().attach(x)
    gm.record()
    h = gnp.exp(x)
    loss = h.sum()
    kept = memory_of(h)
    del h
    assert kept() is not None
    gm.release()
    assert kept() is None
    assert loss.item() > 0


def test_after_a_failed_backward_nothing_is_kept():
    x = tensor(np.ones(100))

    def fail(t, grad):
        raise ValueError("mine")

    gm = GradManager().attach(x, fail)
    gm.record()
    h = gnp.exp(x)
    loss = h.sum()
    kept = memory_of(h)
    del h
    with pytest.raises(ValueError, match="mine"):
        gm.backward(loss)
    assert kept() is None


def test_the_history_is_freed_when_outputs_and_gradients_are_all_alive():
    x = tensor(np.ones(100))
    gm = GradManager().attach(x)
    gm.record()
    hs = [gnp.exp(x * k) for k in range(10)]
    tape = gm._tape
    assert tape.nbytes() > 0
    gm.backward(sum(h.sum() for h in hs))
    assert tape.nbytes() == 0
    assert len(tape.entries) == 0
    assert len(hs) == 10


def test_retain_keeps_the_history_until_release():
    x = tensor(np.ones(100))
    gm = GradManager().attach(x)
    gm.record()
    h = gnp.exp(x)
    loss = h.sum()
    kept = memory_of(h)
    del h
    gm.backward(loss, retain=True)
    assert kept() is not None
    gm.release()
    assert kept() is None


def test_memory_falls_as_backward_goes():
    x, w = tensor(np.ones(100)), tensor(np.ones(100))
    alive_at = {}

    def look(t, grad):
        alive_at["w" if t is w else "x"] = [ref() is not None for ref in kept]
        return grad

    gm = GradManager().attach([x, w], look)
    with gm:
        early = gnp.exp(x)
        late = gnp.exp(early * w)
        kept = [memory_of(early), memory_of(late)]
        loss = late.sum()
        del early, late
        gm.backward(loss)
    assert alive_at["w"][1] is False
    assert alive_at["x"] == [False, False]


@pytest.mark.parametrize("nested", [False, True])
def test_dropped_results_do_not_pile_up_within_one_recording(nested):
    x = tensor(np.ones(1000))  # exp keeps 8 kB
    outer, gm = GradManager().attach(x), GradManager().attach(x)
    if nested:
        outer.record()
    tracemalloc.start()
    with gm:
        for _ in range(10_000):
            gnp.exp(gnp.exp(x) * 1e-3)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gm.backward((x * 2).sum())
    outer.release()
    assert peak < 30e6  # all of it would be 160 MB
    assert held < 30e6
    assert x.grad.tolist() == [2.0] * 1000


def test_what_is_still_needed_survives_the_dropping_of_what_is_not():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        total = x * 0
        for k in range(3000):
            gnp.exp(x)  # dropped
            total = total + x * (k % 7)
        gm.backward(total.sum())
    assert x.grad.tolist() == [float(sum(k % 7 for k in range(3000)))] * 2


# ---------------------------------------------------------------- snapshots


def test_doubling_in_place_after_record_is_differentiated_through():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        x *= 2
        gm.backward(x * x)  # (2 x0)^2
    assert x.tolist() == [6.0]
    assert x.grad.tolist() == [8.0 * 3.0]


def test_a_value_recorded_before_a_write_in_place_is_not_changed_by_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        x *= 100
        gm.backward(y)
    assert x.grad.tolist() == [6.0]


def test_uses_before_and_after_a_write_in_place_add():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 5
        x *= 2
        gm.backward(y + x * 7)
    assert x.grad.tolist() == [5.0 + 14.0]


def test_writing_a_constant_stops_the_gradient():
    x = tensor([3.0, 4.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 5
        x[...] = 1.0
        gm.backward((y + x * 7).sum())
    assert x.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [5.0, 5.0]


def test_writing_a_constant_at_an_index_stops_the_gradient_there():
    x = tensor([3.0, 4.0])
    gm = GradManager().attach(x)
    with gm:
        x[0] = 1.0
        gm.backward((x * 7).sum())
    assert x.grad.tolist() == [0.0, 7.0]


def test_a_write_under_no_grad_makes_it_a_constant_from_there_on():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        with no_grad():
            x *= 2
        assert not tracks(gm, x)
        gm.backward(y + x)
    assert x.tolist() == [6.0]
    assert x.grad.tolist() == [6.0]


def test_the_next_record_starts_from_the_present_value():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    for value in (3.0, 30.0):
        x[...] = value
        with gm:
            gm.backward(x * x)
        assert x.grad.tolist() == [2 * value]
        x.grad = None


def test_a_training_loop_that_writes_inside_the_with_block():
    w = tensor([1.0])
    gm = GradManager().attach(w)
    for _ in range(50):
        with gm:
            gm.backward((w - 3) ** 2)
            w -= 0.1 * w.grad
            w.grad = None
    assert w.item() == pytest.approx(3.0, abs=1e-4)


# ---------------------------------------------------------------- backward: y and dy


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_dy_may_be_omitted_for_one_real_number(shape):
    x = tensor(np.full(shape, 3.0))
    run_backward(lambda x: x * x, x)
    assert x.grad.tolist() == np.full(shape, 6.0).tolist()


@pytest.mark.parametrize("form", [tensor, np.asarray, lambda a: [np.asarray(a)], lambda a: (tensor(a),)])
def test_dy_is_a_tensor_an_array_or_a_sequence_of_them(form):
    x = tensor([1.0, 2.0])
    run_backward(lambda x: x * 3, x, form([10.0, 100.0]))
    assert x.grad.tolist() == [30.0, 300.0]


@pytest.mark.parametrize("form", [lambda y: y, lambda y: [y], lambda y: (y,)])
def test_y_is_a_tensor_or_a_sequence_of_them(form):
    x = tensor([3.0])
    run_backward(lambda x: form(x * x), x)
    assert x.grad.tolist() == [6.0]


def test_dy_may_be_a_python_number_for_a_scalar_y():
    x = tensor(3.0)
    run_backward(lambda x: x * x, x, 10.0)
    assert x.grad.item() == 60.0


def test_several_y_add():
    x = tensor([3.0])
    run_backward(lambda x: (x * x, x * 10), x)
    assert x.grad.tolist() == [16.0]


def test_several_y_with_their_dy():
    x = tensor([1.0, 2.0])
    run_backward(lambda x: [x * 2, x.sum()], x, [np.array([1.0, 10.0]), np.array(100.0)])
    assert x.grad.tolist() == [102.0, 120.0]


def test_the_same_y_twice_adds():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.backward([y, y])
    assert x.grad.tolist() == [12.0]


def test_the_same_y_twice_adds_with_different_dy():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.backward([y, y, y], [np.array([1.0]), np.array([10.0]), np.array([100.0])])
    assert x.grad.tolist() == [6.0 * 111.0]


def test_a_y_and_an_ancestor_of_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.backward([h * h, h], [np.array([1.0]), np.array([1000.0])])
    assert x.grad.tolist() == [4 * 27.0 + 6000.0]


def test_y_itself_attached_receives_dy():
    x = tensor([1.0, 2.0])
    run_backward(lambda x: x, x, np.array([5.0, 6.0]))
    assert x.grad.tolist() == [5.0, 6.0]


def test_a_y_that_is_attached_and_also_used():
    x = tensor([3.0])
    run_backward(lambda x: [x, x * x], x)
    assert x.grad.tolist() == [7.0]


def test_an_attached_intermediate_as_y_receives_dy_and_so_do_its_ancestors():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h)
        gm.backward(h, np.array([5.0]))
    assert h.grad.tolist() == [5.0]
    assert x.grad.tolist() == [30.0]


def test_backward_without_y_runs_callbacks_and_releases():
    x = tensor([3.0])
    x.grad = held = tensor([9.0])
    ran = []
    gm = GradManager().attach(x, lambda t, grad: ran.append(t))
    gm.register_after_backward_callback(lambda: ran.append("after"))
    with gm:
        x * x
        gm.backward()
        gm.record()  # it was released
    assert ran == ["after"]
    assert x.grad is held
    assert held.tolist() == [9.0]


def test_an_empty_list_of_y_seeds_nothing():
    x = tensor([3.0])
    run_backward(lambda x: [], x)
    assert x.grad is None


@pytest.mark.parametrize("dy_dtype", ["float16", "float32", "float64", "int64", "int8", "bool"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_dy_is_cast_to_the_dtype_of_y(dtype, dy_dtype):
    x = tensor([1.0, 2.0], dtype=dtype)
    run_backward(lambda x: x * 1, x, np.array([1, 0], dtype=dy_dtype))
    assert x.grad.dtype == dtype
    assert x.grad.astype("float64").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dy_dtype", ["complex64", "complex128", "float32", "int32"])
def test_dy_of_a_complex_y_may_be_complex_or_real(dy_dtype):
    x = tensor([1.0 + 1j, 2.0], dtype="complex64")
    run_backward(lambda x: x * 1, x, np.array([1, 2], dtype=dy_dtype))
    assert x.grad.dtype == "complex64"
    assert x.grad.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("make", [np.array, tensor, asarray])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x + x,
        lambda x: x + 0.0,
        lambda x: x[...],
        lambda x: x.reshape(3),
        lambda x: x * x,
        lambda x: x + x + x + x,
    ],
)
def test_dy_is_neither_modified_nor_aliased_into_grad(function, make):
    dy = make([1.0, 2.0, 3.0])
    x = tensor([1.0, 1.0, 1.0])
    gm = GradManager().attach(x)
    for _ in range(3):
        with gm:
            gm.backward(function(x), dy)
        assert not np.shares_memory(x.grad.numpy(), np.asarray(dy))
        assert x.grad is not dy
    assert np.asarray(dy).tolist() == [1.0, 2.0, 3.0]


def test_dy_is_not_aliased_when_it_is_a_view_of_memory_the_user_holds():
    base = np.arange(6.0)
    x = tensor([1.0, 1.0, 1.0])
    run_backward(lambda x: x, x, base[::2])
    assert not np.shares_memory(x.grad.numpy(), base)
    run_backward(lambda x: x, x, base[:3])
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert x.grad.tolist() == [0.0, 3.0, 6.0]


def test_dy_may_be_a_read_only_broadcast():
    x = tensor([1.0, 1.0, 1.0])
    for k in (1, 2):
        run_backward(lambda x: x, x, np.broadcast_to(2.0, (3,)))
        assert x.grad.tolist() == [2.0 * k] * 3


def test_one_dy_array_for_two_attached_y_does_not_alias_their_gradients():
    dy = np.array([1.0, 2.0])
    a, b = tensor([0.0, 0.0]), tensor([0.0, 0.0])
    gm = GradManager().attach([a, b])
    with gm:
        gm.backward([a, b], [dy, dy])
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())


def test_gradients_that_reach_two_leaves_by_reference_are_not_aliased():
    a, b = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach([a, b])
    for _ in range(2):
        with gm:
            gm.backward(a + b, np.array([1.0, 1.0]))
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())
    a.grad *= 100
    assert b.grad.tolist() == [2.0, 2.0]


# ---------------------------------------------------------------- retain


def test_retain_allows_a_second_backward_that_adds():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.backward(y, retain=True)
        gm.backward(y, retain=True)
        gm.backward(y)
    assert x.grad.tolist() == [18.0]


def test_retain_lets_the_recording_go_on():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.backward(y, retain=True)
        gm.backward(y * x)
    assert x.grad.tolist() == [6.0 + 27.0]


def test_retain_gives_every_row_of_a_jacobian():
    x = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(x)
    rows = []
    with gm:
        y = gnp.cumsum(x * x)
        for row in np.eye(3):
            gm.backward(y, row, retain=True)
            rows.append(x.grad.tolist())
            gm.clear_grad()
    assert rows == [[2, 0, 0], [2, 4, 0], [2, 4, 6]]


def test_retain_with_writes_at_an_index_gives_the_same_gradients_again():
    x = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        y[0] = x[1] * 5
        loss = (y * y).sum()
        gm.backward(loss, retain=True)
        first = x.grad.tolist()
        gm.clear_grad()
        gm.backward(loss)
    assert x.grad.tolist() == first == [0.0, 8 * 2.0 + 50 * 2.0, 8 * 3.0]


def test_retain_is_keyword_only():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm, pytest.raises(TypeError):
        gm.backward(x * x, None, True)


# ---------------------------------------------------------------- how .grad is written


def test_accumulation_keeps_the_identity_of_grad():
    x = tensor([1.0, 2.0])
    run_backward(lambda x: (x * x).sum(), x)
    first = x.grad
    run_backward(lambda x: (x * x).sum(), x)
    assert x.grad is first
    assert first.tolist() == [4.0, 8.0]


def test_accumulation_keeps_the_identity_of_a_scalars_grad():
    x = tensor(3.0)
    run_backward(lambda x: x * x, x)
    first = x.grad
    run_backward(lambda x: x * x, x)
    assert x.grad is first
    assert first.item() == 12.0


def test_accumulation_into_a_grad_the_user_assigned_keeps_its_identity():
    x = tensor([1.0, 2.0])
    x.grad = mine = tensor([100.0, 100.0])
    run_backward(lambda x: (x * x).sum(), x)
    assert x.grad is mine
    assert mine.tolist() == [102.0, 104.0]


def test_accumulation_into_memory_shared_with_the_user_leaves_that_memory_alone():
    x = tensor([1.0, 2.0])
    shared = np.array([100.0, 100.0])
    x.grad = asarray(shared)
    run_backward(lambda x: (x * x).sum(), x)
    assert shared.tolist() == [100.0, 100.0]
    assert x.grad.tolist() == [102.0, 104.0]


def test_accumulation_does_not_change_an_array_read_from_grad_before():
    x = tensor([1.0, 2.0])
    run_backward(lambda x: (x * x).sum(), x)
    before = x.grad.numpy()
    piece = x.grad[1:]
    run_backward(lambda x: (x * x).sum(), x)
    assert before.tolist() == [2.0, 4.0]
    assert piece.tolist() == [4.0]
    assert x.grad.tolist() == [4.0, 8.0]


LAYOUTS = {
    "C": np.ones((3, 4)),
    "Fortran": np.asfortranarray(np.ones((3, 4))),
    "permuted": np.ones((4, 2, 3)).transpose(2, 0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gradient_order", ["C", "F"])
def test_the_strides_of_grad_follow_a_dense_parameter(layout, gradient_order):
    x = asarray(LAYOUTS[layout])
    dy = np.array(np.random.default_rng(0).normal(size=x.shape), order=gradient_order)
    views = []  # a grad that is seen elsewhere cannot be written in place, and keeps its strides all the same
    for k in range(1, 5):
        run_backward(lambda x: x * 1.0, x, dy)
        assert x.grad.numpy().strides == x.numpy().strides
        np.testing.assert_allclose(x.grad.numpy(), k * dy, rtol=1e-15)
        if k % 2:
            views.append(x.grad.numpy())


def test_the_strides_of_grad_are_kept_where_floating_point_errors_raise():
    x = asarray(LAYOUTS["Fortran"])
    with np.errstate(all="raise"):
        for _ in range(3):
            run_backward(lambda x: x * 1.0, x, np.ones((3, 4)))
            assert x.grad.numpy().strides == x.numpy().strides
    assert (x.grad == 3).all()


@pytest.mark.parametrize("view", [np.ones((3, 8))[:, ::2], np.broadcast_to(1.0, (3, 4)), np.ones((3, 4))[::-1]])
def test_the_grad_of_a_parameter_that_is_not_dense_has_memory_of_its_own(view):
    x = asarray(view)
    for k in (1, 2):
        run_backward(lambda x: (x * x).sum(), x)
        assert np.array_equal(x.grad.numpy(), np.full((3, 4), 2.0 * k))


@pytest.mark.parametrize("nothing", [None, [9.0]])
def test_a_tensor_not_reached_gets_no_callback_and_keeps_its_grad(nothing):
    x, unused = tensor([3.0]), tensor([1.0])
    unused.grad = held = None if nothing is None else tensor(nothing)
    called = []
    gm = GradManager().attach([x, unused], lambda t, grad: (called.append(t), grad)[1])
    with gm:
        unused * 2
        gm.backward(x * x)
    assert [id(t) for t in called] == [id(x)]
    assert unused.grad is held
    assert held is None or held.tolist() == nothing


def test_a_tensor_reached_by_a_zero_gradient_is_reached():
    x = tensor([3.0])
    run_backward(lambda x: x * 0, x)
    assert x.grad.tolist() == [0.0]


def test_grad_is_not_written_before_the_end_of_backward():
    a, b = tensor([3.0]), tensor([4.0])
    seen = []
    gm = GradManager().attach(a).attach(b, lambda t, grad: (seen.append((a.grad, b.grad)), grad)[1])
    gm.register_after_backward_callback(lambda: seen.append((a.grad, b.grad)))
    with gm:
        gm.backward(a * b)
    assert seen == [(None, None), (None, None)]
    assert (a.grad.tolist(), b.grad.tolist()) == ([4.0], [3.0])


# ---------------------------------------------------------------- shapes and dtypes


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0)])
def test_the_gradient_has_the_shape_and_dtype_of_its_tensor(shape, dtype):
    x = tensor(np.ones(shape), dtype=dtype)
    for _ in range(2):
        run_backward(lambda x: x * x, x, np.ones(shape))
        assert x.grad.shape == shape
        assert x.grad.dtype == x.dtype


@pytest.mark.parametrize("other", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mixed_dtypes_give_each_its_own(dtype, other):
    a, b = tensor([2.0], dtype=dtype), tensor([3.0], dtype=other)
    gm = GradManager().attach([a, b])
    for _ in range(2):
        with gm:
            gm.backward(a * b)
    assert (a.grad.dtype, b.grad.dtype) == (a.dtype, b.dtype)
    assert (a.grad.tolist(), b.grad.tolist()) == ([6.0], [4.0])


def test_bfloat16_together_with_float32():
    a, b = tensor([2.0], dtype=ml_dtypes.bfloat16), tensor([3.0], dtype="float32")
    gm = GradManager().attach([a, b])
    with gm:
        gm.backward((a.astype("float32") * b).sum())
    assert (a.grad.dtype, b.grad.dtype) == (ml_dtypes.bfloat16, np.float32)
    assert (float(a.grad[0]), b.grad.tolist()) == (3.0, [2.0])


def test_broadcasting_gives_each_its_own_shape():
    a, b, c = tensor(np.ones((2, 1))), tensor(np.ones(3)), tensor(1.0)
    gm = GradManager().attach([a, b, c])
    for k in (1, 2):
        with gm:
            gm.backward((a * b * c).sum())
        assert a.grad.tolist() == [[3.0 * k]] * 2
        assert b.grad.tolist() == [2.0 * k] * 3
        assert c.grad.tolist() == 6.0 * k


def test_a_real_tensor_in_a_complex_program_receives_the_real_part():
    x = tensor([3.0])
    w = tensor([1.0 + 2.0j])
    gm = GradManager().attach([x, w])
    with gm:
        gm.backward(x * w, np.array([1.0 + 1.0j]))
    assert x.grad.dtype == np.float64
    assert x.grad.tolist() == [3.0]  # Re((1+1j) conj(1+2j))
    assert w.grad.tolist() == [3.0 + 3.0j]


def test_the_gradient_of_a_complex_tensor_is_the_direction_of_steepest_ascent():
    z = tensor([3.0 + 4.0j])
    run_backward(lambda z: (z * gnp.conj(z)).real.sum(), z)
    assert z.grad.tolist() == [6.0 + 8.0j]


# ---------------------------------------------------------------- deep


@pytest.mark.slow
@pytest.mark.parametrize("end", ["backward", "release", "drop the manager"])
def test_a_chain_of_a_million_ops(end):
    x = tensor(1.0, dtype="float64")
    gm = GradManager().attach(x)
    gm.record()
    y = x
    for _ in range(1_000_000):
        y = y * 1.0
    if end == "backward":
        gm.backward(y)
        assert x.grad.item() == 1.0
    elif end == "release":
        gm.release()
    else:
        del gm
    assert y.item() == 1.0


def test_a_deep_chain_on_two_tapes():
    x = tensor(1.0)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        y = x
        for _ in range(200_000):
            y = y * 1.0
        inner.backward(y)
        assert x.grad.item() == 1.0
        x.grad = None
        outer.backward(y)
    assert x.grad.item() == 1.0
