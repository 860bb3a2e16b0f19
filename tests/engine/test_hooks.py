"""Hooks of tensors and operations: their order, what they may do, and what they must not change."""

import gc
import threading
import weakref

import guard
import numpy as np
import pytest
from helpers import pop_grad

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, backward, errors, grad, no_grad, tensor
from gradmgr.graph import get_gradient_edge, register_multi_grad_hook


def times(factor, log=None, name=None):
    def hook(g):
        if log is not None:
            log.append(name or factor)
        return g * factor

    return hook


# ---------------------------------------------------------------- order


def test_tensor_hooks_then_retain_grad_then_pre_hooks_then_the_operation_then_its_hooks():
    a, log = tensor([1.0]), []
    gm = GradManager().attach(a)
    with gm:
        b = a * 3
        b.grad_fn.register_hook(lambda gi, go: log.append(("node", gi[0].tolist(), go[0].tolist())))
        b.register_hook(times(2, log))
        b.retain_grad()
        b.grad_fn.register_prehook(lambda gs: (times(7, log)(gs[0]),))
        b.register_hook(times(5, log))
        gm.backward(b)
    assert log == [2, 5, 7, ("node", [210.0], [70.0])]
    assert b.grad.tolist() == [10.0]
    assert a.grad.tolist() == [210.0]


def test_the_numbers_of_the_documented_example():
    a = tensor([1.0])
    gm = GradManager().attach(a)
    with gm:
        b = a * 1
        b.retain_grad()
        b.register_hook(times(2))
        b.grad_fn.register_prehook(lambda gs: (gs[0] * 7,))
        b.register_hook(times(5))
        gm.backward(b)
    assert (b.grad.tolist(), a.grad.tolist()) == ([10.0], [70.0])


def test_of_a_leaf_tensor_hooks_then_callbacks_then_grad_then_post_hooks():
    x, log = tensor([1.0]), []
    gm = GradManager().attach(x, lambda t, g: log.append(("callback", g.tolist(), t.grad)) or g + 1)
    x.register_post_accumulate_grad_hook(lambda t: log.append(("post", t.grad.tolist())))
    x.register_hook(times(10, log))
    x.register_hook(times(3, log))
    with gm:
        gm.backward(x * 1 + x * 1)
    assert log == [10, 3, ("callback", [60.0], None), ("post", [61.0])]


def test_a_leaf_hook_is_called_once_with_the_sum_before_backward_ends():
    x, w, log = tensor([2.0]), tensor([3.0]), []
    gm = GradManager().attach([x, w])
    with gm:
        early = w * 2
        early.register_hook(lambda g: log.append("early"))
        y = early * x + x * x
        x.register_hook(lambda g: log.append(g.tolist()))
        gm.backward(y)
    assert log == [[6.0 + 4.0], "early"]


def test_a_hook_sees_uses_from_before_it_was_registered():
    x, seen = tensor([1.0]), []
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        y = h * 3
        h.register_hook(lambda g: seen.append(g.tolist()))
        gm.backward(y + h * 4)
    assert seen == [[7.0]]


def test_hooks_on_what_backward_starts_from():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        y.register_hook(times(5))
        gm.backward([y, y], [np.ones(1), np.ones(1)])
    assert x.grad.tolist() == [20.0]


def test_a_leaf_that_backward_starts_from():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    x.register_hook(times(5))
    with gm:
        gm.backward(x)
    assert x.grad.tolist() == [5.0]


# ---------------------------------------------------------------- writes in place


def test_a_hook_belongs_to_the_value_retain_grad_to_the_tensor():
    a, seen = tensor([1.0]), []
    gm = GradManager().attach(a)
    with gm:
        b = a * 7
        b.register_hook(lambda g: seen.append(("first", g.tolist())))
        b.retain_grad()
        b *= 2
        b.register_hook(lambda g: seen.append(("second", g.tolist())))
        gm.backward(b * 3)
    assert seen == [("second", [3.0]), ("first", [6.0])]
    assert b.grad.tolist() == [3.0]


def test_retain_grad_of_what_became_a_constant_gives_nothing():
    a = tensor([1.0])
    gm = GradManager().attach(a)
    with gm:
        b = a * 7
        b.retain_grad()
        y = b * 2
        with no_grad():
            b[...] = 1.0
        gm.backward(y)
    assert b.grad is None
    assert a.grad.tolist() == [14.0]


def test_hooks_on_a_leaf_belong_to_the_value_it_was_recorded_with():
    x, seen = tensor([1.0]), []
    gm = GradManager().attach(x)
    x.register_hook(lambda g: seen.append(("leaf", g.tolist())))
    with gm:
        x *= 2
        x.register_hook(lambda g: seen.append(("result", g.tolist())))
        gm.backward(x * 3)
    assert seen == [("result", [3.0]), ("leaf", [6.0])]


def test_a_hook_may_write_to_its_gradient_in_place():
    x, kept = tensor([1.0, 2.0]), []

    def first(g):
        kept.append(g)

    def second(g):
        g *= 10

    gm = GradManager().attach(x)
    with gm:
        h, k = x * 1, x * 1
        h.register_hook(first)
        h.register_hook(second)
        k.register_hook(first)
        gm.backward((h + k).sum())
    assert x.grad.tolist() == [11.0, 11.0]
    assert [g.tolist() for g in kept] == [[1.0, 1.0], [1.0, 1.0]]


def test_a_kept_gradient_is_not_changed_by_what_follows():
    x, kept = tensor(np.ones(4)), []
    keep = kept.append
    gm = GradManager().attach(x)
    x.register_hook(lambda g: keep(g))
    with gm:
        h = x * 1
        h.register_hook(lambda g: keep(g))
        h.retain_grad()
        h.grad_fn.register_prehook(lambda gs: keep(gs[0]))
        h.grad_fn.register_hook(lambda gi, go: (keep(gi[0]), keep(go[0]), None)[2])
        y = (h * 2).sum() + (h * 3).sum() + (h * 4).sum() + (x * 5).sum() + (x * 6).sum() + h[1:].sum()
        gm.backward(y, retain=True)
        before = [g.numpy().copy() for g in kept]
        h.grad[...] = 77.0
        x.grad[...] = 88.0
        x.grad += 1
        for _ in range(2):
            gm.backward(y, retain=True)
    assert [g.tolist() for g in kept[: len(before)]] == [b.tolist() for b in before]
    assert [b.tolist() for b in before] == [[9.0, 10.0, 10.0, 10.0]] * 4 + [[20.0, 21.0, 21.0, 21.0]]


def test_a_gradient_that_a_hook_returned_is_not_written_to():
    mine = tensor([1.0, 1.0])
    a, b = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach([a, b])
    for t in (a, b):
        t.register_hook(lambda g: mine)
    for _ in range(2):
        with gm:
            h = a * b
            h.register_hook(lambda g: mine)
            h[0] = a[1]
            gm.backward(h.sum())
    assert mine.tolist() == [1.0, 1.0]
    assert a.grad is not b.grad
    a.grad[...] = 9.0
    assert b.grad.tolist() == [2.0, 2.0]
    assert mine.tolist() == [1.0, 1.0]


# ---------------------------------------------------------------- how long they last


def test_hooks_on_a_leaf_stay_over_recordings_and_can_be_removed():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    first, second = x.register_hook(times(2)), x.register_hook(times(3))
    found = []
    for handle in (None, first, first, second):
        if handle is not None:
            handle.remove()
        with gm:
            gm.backward(x * 1)
        found.append(pop_grad(x).tolist())
    assert found == [[6.0], [3.0], [3.0], [1.0]]


def test_a_handle_in_a_with_block():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with x.register_hook(times(2)), gm:
        gm.backward(x * 1)
    with gm:
        gm.backward(x * 1)
    assert x.grad.tolist() == [3.0]


def test_retain_runs_hooks_each_time():
    x, log = tensor([1.0]), []
    gm = GradManager().attach(x)
    x.register_hook(times(3, log, "leaf"))
    x.register_post_accumulate_grad_hook(lambda t: log.append(t.grad.tolist()))
    with gm:
        h = x * 2
        handle = h.register_hook(times(5, log, "value"))
        h.retain_grad()
        for _ in range(2):
            gm.backward(h, retain=True)
        handle.remove()
        gm.backward(h)
    assert log == ["value", "leaf", [30.0], "value", "leaf", [60.0], "leaf", [66.0]]
    assert h.grad.tolist() == [5.0 + 5.0 + 1.0]


@pytest.mark.parametrize("when", ["before attach", "after attach", "while recording", "after a backward"])
def test_a_leaf_hook_set_at_any_time_is_called(when):
    x = tensor([1.0])
    other = GradManager().attach(x) if when == "before attach" else None
    gm = GradManager()
    if other is not None:
        x.register_hook(times(5))
    gm.attach(x)
    if when == "after a backward":
        with gm:
            gm.backward(x * 1)
        x.grad = None
    if when in ("after attach", "after a backward"):
        x.register_hook(times(5))
    with gm:
        y = x * 2
        if when == "while recording":
            x.register_hook(times(5))
        gm.backward(y)
    assert x.grad.tolist() == [10.0]


def test_a_hook_on_a_leaf_is_for_every_manager_it_is_attached_to():
    x = tensor([1.0])
    first, second = GradManager().attach(x), GradManager().attach(x)
    x.register_hook(times(5))
    for gm in (first, second):
        with gm:
            gm.backward(x * 1)
    assert x.grad.tolist() == [10.0]


def test_hooks_on_a_leaf_run_for_each_manager_of_a_group_and_of_a_nest():
    x, log = tensor([3.0]), []
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer | inner:
        h = x * x
        h.register_hook(lambda g: log.append("group"))
        outer.backward(h)
        inner.backward(h)
    with outer, inner:
        h = x * x
        h.register_hook(lambda g: log.append("nested"))
        outer.backward(h)
        inner.backward(h)
    assert log == ["group", "group", "nested", "nested"]


def test_a_result_for_one_manager_and_a_leaf_for_another():
    x = tensor([1.0])
    outer, inner = GradManager().attach(x), GradManager()
    with outer:
        h = x * 2
        with inner.attach(h):
            y = h * 3
            h.register_hook(times(10))
            inner.backward(y)
        assert pop_grad(h).tolist() == [30.0]
        outer.backward(y)
    assert x.grad.tolist() == [60.0]


def test_of_an_attached_result_a_hook_changes_only_its_own_grad():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        gm.attach(h)
        h.register_hook(times(10))
        gm.backward(h * 3)
    assert (h.grad.tolist(), x.grad.tolist()) == ([30.0], [6.0])


def test_hooks_on_a_result_from_before_it_was_attached_change_what_flows_on():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        h.register_hook(times(10))
        gm.attach(h)
        gm.backward(h * 3)
    assert (h.grad.tolist(), x.grad.tolist()) == ([3.0], [60.0])


# ---------------------------------------------------------------- derivatives of derivatives


def test_what_a_hook_computes_is_recorded_by_outer_managers():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            y = x**3
            y.register_hook(lambda g: g * x)
            inner.backward(y)
        first, x.grad = x.grad, None
        outer.backward(first)
    assert first.tolist() == [3 * 9.0 * 3]
    assert x.grad.tolist() == [3 * 3 * 9.0]  # of 3 x^3


def test_what_a_leaf_hook_computes_is_recorded_by_outer_managers():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            handle = x.register_hook(lambda g: g * g)
            inner.backward(x**3)
        handle.remove()
        first, x.grad = x.grad, None
        outer.backward(first)
    assert first.tolist() == [9.0 * 81]
    assert x.grad.tolist() == [9.0 * 4 * 27]  # of 9 x^4


def test_what_a_hook_computes_is_not_recorded_by_the_manager_in_backward():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        y.register_hook(lambda g: g * x)
        x.register_hook(lambda g: g * x)
        gm.backward(y, retain=True)
        assert not x.grad.requires_grad


def test_hooks_with_create_graph():
    a = tensor([3.0])
    with GradManager().attach(a):
        b = a**2
        b.register_hook(lambda g: g * a)
        backward(b * b, create_graph=True)
        first, a.grad = a.grad, None
        backward(first)
    assert first.tolist() == [324.0]  # as torch: 2 b * a * 2 a = 4 a^4
    assert a.grad.tolist() == [864.0]  # as torch


def test_leaf_hooks_with_create_graph():
    a = tensor([3.0])
    with GradManager().attach(a):
        a.register_hook(lambda g: g * g)
        (first,) = grad(a**3, a, create_graph=True)
        assert first.tolist() == [729.0]
        (second,) = grad(first, a)
    assert second.tolist() == [944784.0]  # as torch: the hook runs again, on 9 * 4 * 27


def test_callbacks_with_create_graph_are_differentiated():
    a = tensor([3.0])
    gm = GradManager().attach(a, lambda t, g: g * t)
    with gm:
        backward(a * a, create_graph=True)
        first, a.grad = a.grad, None
        assert first.tolist() == [18.0]
        (second,) = grad(first, a)
    assert second.tolist() == [12.0]  # of 2 a^2, without callbacks


def test_hooks_of_operations_with_create_graph():
    a = tensor([3.0])
    with GradManager().attach(a):
        b = a * a
        b.grad_fn.register_prehook(lambda gs: (gs[0] * a,))
        b.grad_fn.register_hook(lambda gi, go: (gi[0] * a,))
        (first,) = grad(b, a, create_graph=True)
        assert first.tolist() == [2 * 27.0]
        (second,) = grad(first, a)
    assert second.tolist() == [54.0]  # as torch: of 2 a^3


def test_grad_runs_hooks_and_touches_no_grad():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    x.register_hook(times(10))
    x.register_post_accumulate_grad_hook(lambda t: pytest.fail("no .grad is written"))
    with gm:
        b = x * 7
        b.retain_grad()
        b.register_hook(times(2))
        b.grad_fn.register_prehook(lambda gs: (gs[0] * 7,))
        of_b, of_x = grad(b * 1, [b, x])
    assert (of_b.tolist(), of_x.tolist()) == ([2.0], [980.0])
    assert b.grad is None
    assert x.grad is None


def test_grad_of_a_result_alone_runs_its_hooks_but_not_its_operation():
    x = tensor([1.0])
    with GradManager().attach(x):
        b = x * 7
        b.register_hook(times(2))
        b.grad_fn.register_prehook(lambda gs: pytest.fail("the operation is not computed"))
        (of_b,) = grad(b * 3, b)
    assert of_b.tolist() == [6.0]


def test_backward_with_inputs_and_retain_grad():
    def run(which):
        a = tensor([1.0])
        with GradManager().attach(a):
            b = a * 7
            b.retain_grad()
            c = b * 3
            c.retain_grad()
            backward(c * 2, inputs=[{"a": a, "c": c}[which]])
        return [None if t.grad is None else t.grad.tolist() for t in (a, b, c)]

    assert run("a") == [[42.0], [6.0], [2.0]]
    assert run("c") == [None, None, [2.0]]


def test_backward_with_inputs_runs_leaf_hooks_of_these_alone():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b])
    a.register_hook(times(10))
    b.register_hook(lambda g: pytest.fail("not asked for"))
    with gm:
        backward(a * b, inputs=[a])
    assert (a.grad.tolist(), b.grad) == ([20.0], None)


# ---------------------------------------------------------------- hooks that change nothing


def index_and_write(x, w, see):
    h = see(x * w)
    h[1:] = see(gnp.tanh(x[:2]))
    h = see(h) + see(x[[0, 0, 2]])
    h *= w
    return see(see(h)[::-1] * w).sum()


def join_and_several(x, w, see):
    both = see(gnp.stack([x, see(w), x * w]))
    values, vectors = gnp.linalg.eigh(see(both + both.T))
    return see(see(values) ** 2).sum() + see(see(vectors) * see(vectors)[0]).sum()


def shared(x, w, see):
    a = see(x + w)
    b = see(a + a)
    return (see(a * b) + see(b - a) + b[0] * a[1]).sum()


def kept_as_is(g):
    return g


@pytest.mark.parametrize("program", [index_and_write, join_and_several, shared])
@pytest.mark.parametrize("hooked", ["value", "retain", "before", "after", "all", "everything"])
@pytest.mark.parametrize("order", ["first", "nested", "create_graph"])
def test_hooks_that_change_nothing_change_no_gradient(program, hooked, order):
    def run(hooked):
        x, w = tensor([0.5, -1.0, 2.0]), tensor([1.5, 0.7, -0.3])

        def see(t):
            node = t.grad_fn
            if hooked in ("value", "everything"):
                t.register_hook(lambda g: None)
                t.register_hook(kept_as_is)
            if hooked in ("retain", "everything"):
                t.retain_grad()
            if hooked in ("before", "everything") and node is not None:
                node.register_prehook(lambda gs: None)
                node.register_prehook(kept_as_is)
            if hooked in ("after", "everything") and node is not None:
                node.register_hook(lambda gi, go: None)
                node.register_hook(lambda gi, go: gi)
            if hooked in ("all", "everything"):
                register_multi_grad_hook([t], lambda gs: None)
            return t

        outer, inner = GradManager().attach([x, w]), GradManager().attach([x, w])
        if order == "first":
            with inner:
                inner.backward(program(x, w, see))
            return x.grad.numpy(), w.grad.numpy()
        if order == "nested":
            with outer:
                with inner:
                    inner.backward(program(x, w, see))
                first = x.grad * w.grad
                x.grad = w.grad = None
                outer.backward(first.sum())
            return x.grad.numpy(), w.grad.numpy()
        with inner:
            of_x, of_w = grad(program(x, w, see), [x, w], create_graph=True)
            return tuple(g.numpy() for g in grad((of_x * of_w).sum(), [x, w]))

    for found, expected in zip(run(hooked), run(None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)  # an operand that stands twice is summed first
        assert np.isfinite(found).all()
        assert found.any()


# ---------------------------------------------------------------- wrong hooks


BAD = [
    (lambda g: 3, errors.CallbackError, TypeError, "gave int"),
    (lambda g: g.numpy(), errors.CallbackError, TypeError, "gave ndarray"),
    (lambda g: g.reshape(1, 2), errors.ShapeError, ValueError, r"shape \(1, 2\); it must have the shape \(2,\)"),
    (lambda g: g.astype("float32"), errors.DtypeError, TypeError, "dtype float32; it must have the dtype float64"),
]


@pytest.mark.parametrize("where", ["value", "leaf", "before", "after"])
@pytest.mark.parametrize(("bad", "kind", "builtin", "text"), BAD)
def test_a_wrong_result_is_an_error_and_nothing_changed(where, bad, kind, builtin, text):
    x, w = tensor([1.0, 2.0]), tensor([5.0, 6.0])
    gm = GradManager().attach([x, w])
    x.grad = tensor([7.0, 7.0])
    with gm:
        h = x * w
        h.retain_grad()
        if where == "value":
            h.register_hook(bad)
        elif where == "before":
            h.grad_fn.register_prehook(lambda gs: (bad(gs[0]),))
        elif where == "after":
            h.grad_fn.register_hook(lambda gi, go: (gi[0], bad(gi[1])))
        handle = x.register_hook(bad) if where == "leaf" else None
        with pytest.raises(kind, match=text) as caught:
            gm.backward(h.sum())
    assert isinstance(caught.value, builtin)
    assert "<lambda>" in str(caught.value)
    assert (x.grad.tolist(), w.grad, h.grad) == ([7.0, 7.0], None, None)
    if handle is not None:
        handle.remove()
    with gm:
        gm.backward((x * w).sum())
    assert x.grad.tolist() == [12.0, 13.0]


@pytest.mark.parametrize("where", ["value", "leaf", "before", "after", "all", "any"])
def test_a_hook_that_raises_leaves_every_grad_and_an_idle_manager(where):
    def bad(*args):
        raise KeyError("mine")

    x, w = tensor([1.0, 2.0]), tensor([5.0, 6.0])
    gm = GradManager().attach([x, w])
    w.grad = tensor([7.0, 7.0])
    with gm:
        h = x * w
        h.retain_grad()
        handle = {
            "value": lambda: h.register_hook(bad),
            "leaf": lambda: x.register_hook(bad),
            "before": lambda: h.grad_fn.register_prehook(bad),
            "after": lambda: h.grad_fn.register_hook(bad),
            "all": lambda: register_multi_grad_hook([x, w], bad),
            "any": lambda: register_multi_grad_hook([x, w], bad, mode="any"),
        }[where]()
        with pytest.raises(KeyError, match="mine"):
            gm.backward(h.sum())
    assert (x.grad, w.grad.tolist(), h.grad) == (None, [7.0, 7.0], None)
    handle.remove()
    with gm:
        gm.backward((x * w).sum())
    assert (x.grad.tolist(), w.grad.tolist()) == ([5.0, 6.0], [8.0, 9.0])


@pytest.mark.parametrize(
    ("result", "text"), [((), "gave 0 gradients for 1"), ((1, 2), "gave 2 gradients for 1"), (3, "gave int")]
)
def test_hooks_of_operations_return_as_many_as_they_took(result, text):
    x = tensor([1.0])
    for register in ("register_hook", "register_prehook"):
        gm = GradManager().attach(x)
        with gm:
            h = x * 2
            getattr(h.grad_fn, register)(lambda *args: result)
            with pytest.raises(errors.CallbackError, match=text):
                gm.backward(h)
    assert x.grad is None


@pytest.mark.parametrize("hook", [None, 3, "f"])
def test_a_hook_must_be_a_function(hook):
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        for register in (
            x.register_hook,
            h.register_hook,
            x.register_post_accumulate_grad_hook,
            h.grad_fn.register_hook,
            h.grad_fn.register_prehook,
            lambda f: register_multi_grad_hook([x], f),
        ):
            with pytest.raises(TypeError, match=f"takes a function; found {type(hook).__name__}"):
                register(hook)
        gm.backward(h)
    assert x.grad.tolist() == [2.0]


def test_hooks_on_an_untracked_tensor_are_refused():
    loose = tensor([1.0])
    asks = {
        "register_hook": lambda t: t.register_hook(lambda g: g),
        "retain_grad": lambda t: t.retain_grad(),
        "register_post_accumulate_grad_hook": lambda t: t.register_post_accumulate_grad_hook(lambda t: None),
        "register_multi_grad_hook, tensor number 1": lambda t: register_multi_grad_hook([attached, t], print),
    }
    attached = tensor([1.0])
    gm = GradManager().attach(attached)
    for name, ask in asks.items():
        with pytest.raises(errors.NotRecordedError, match=f"{name}: .*shape \\(1,\\).*float64.*attach"):
            ask(loose)
    with gm:
        gm.backward(attached * 1)  # the hook on several was set on none
    assert isinstance(errors.NotRecordedError("x"), RuntimeError)


def test_hooks_after_the_manager_is_gone_or_detached():
    x, y = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach([x, y])
    gm.detach(x)
    with pytest.raises(errors.NotRecordedError):
        x.register_hook(print)
    y.register_hook(print)
    del gm
    with pytest.raises(errors.NotRecordedError):
        y.register_hook(print)


def test_a_post_hook_on_a_result_is_refused():
    x = tensor([1.0])
    with GradManager().attach(x), pytest.raises(RuntimeError, match=r"attached to no manager.*register_hook"):
        (x * 2).register_post_accumulate_grad_hook(lambda t: None)


# ---------------------------------------------------------------- post-accumulate hooks


def test_a_post_hook_must_return_none_and_its_errors_come_when_grad_is_written():
    for hook, kind, text in (
        (lambda t: 3, errors.CallbackError, "gave int"),
        (lambda t: {}["missing"], KeyError, "missing"),
    ):
        x, w = tensor([1.0]), tensor([2.0])
        gm = GradManager().attach([x, w])
        handle = x.register_post_accumulate_grad_hook(hook)
        with gm, pytest.raises(kind, match=text):
            gm.backward(x * w)
        assert (x.grad.tolist(), w.grad.tolist()) == ([2.0], [1.0])
        handle.remove()
        with gm:
            gm.backward(x * w)
        assert (x.grad.tolist(), w.grad.tolist()) == ([4.0], [2.0])


def test_a_post_hook_sees_all_grads_written_and_may_step():
    x, w, seen = tensor([1.0]), tensor([2.0]), []

    def step(t):
        seen.append((x.grad.tolist() if x.grad else None, w.grad.tolist() if w.grad else None))
        t -= 0.5 * t.grad
        t.grad = None

    gm = GradManager().attach([x, w])
    for t in (x, w):
        t.register_post_accumulate_grad_hook(step)
    with gm:
        y = x * w
        gm.backward(y, retain=True)
        assert not x.requires_grad
    assert seen[0] == ([2.0], [1.0])
    assert (x.tolist(), w.tolist(), x.grad, w.grad) == ([0.0], [1.5], None, None)


def test_a_post_hook_may_use_the_manager_and_a_recording_it_leaves_open_goes_on():
    x, other = tensor([3.0]), tensor([4.0])
    gm, further = GradManager().attach(x), GradManager().attach(other)

    def hook(t):
        handle.remove()
        with gm:
            gm.backward(t * t)
        further.record()

    handle = x.register_post_accumulate_grad_hook(hook)
    with gm:
        gm.backward(x * 1)
    further.backward(other * other)
    assert (x.grad.tolist(), other.grad.tolist()) == ([7.0], [8.0])


def test_a_leaf_that_is_not_reached_has_no_hook_called():
    x, w = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([x, w])
    w.register_hook(lambda g: pytest.fail("not reached"))
    w.register_post_accumulate_grad_hook(lambda t: pytest.fail("not reached"))
    with gm:
        gm.backward(x * 1)
    assert w.grad is None


# ---------------------------------------------------------------- retain_grad


def test_retain_grad_of_leaves_does_nothing_and_twice_counts_once():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    x.retain_grad()
    with gm:
        x.retain_grad()
        h = x * 2
        assert not h.retains_grad
        h.retain_grad()
        h.retain_grad()
        assert h.retains_grad
        assert not x.retains_grad
        gm.backward(h * 3)
    assert (x.grad.tolist(), h.grad.tolist()) == ([6.0], [3.0])
    assert not h.retains_grad


def test_retain_grad_of_results_of_an_op_of_several():
    x = tensor([[2.0, 1.0], [1.0, 3.0]])
    gm = GradManager().attach(x)
    with gm:
        w, _ = gnp.linalg.eigh(x)
        w.retain_grad()
        w.register_hook(times(3))
        gm.backward((w * w).sum())
    np.testing.assert_allclose(w.grad.numpy(), 6 * w.numpy())
    np.testing.assert_allclose(x.grad.numpy(), [[12, 0], [12, 18]])  # 6 x, in the triangle that eigh reads


def test_retain_grad_keeps_dead_results_from_nothing():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        h.retain_grad()
        y = h * 3
        ref = weakref.ref(h)
        del h
        assert ref() is None
        gm.backward(y)
    assert x.grad.tolist() == [6.0]


def test_retain_grad_with_create_graph():
    x = tensor([3.0])
    with GradManager().attach(x):
        h = x * x
        h.retain_grad()
        backward(h * h, create_graph=True)
        assert h.grad.tolist() == [18.0]
        (second,) = grad(h.grad, x)
    assert second.tolist() == [12.0]  # h.grad is 2 h = 2 x^2


# ---------------------------------------------------------------- hooks of operations


def test_none_in_the_tuple_stops_the_gradient():
    a, b = tensor([2.0]), tensor([3.0])
    gm = GradManager().attach([a, b])
    with gm:
        c = a * b
        c.grad_fn.register_hook(lambda gi, go: (None, gi[1] * 10))
        gm.backward(c * 1)
    assert (a.grad, b.grad.tolist()) == (None, [20.0])
    with gm:
        c = a * b
        c.grad_fn.register_prehook(lambda go: (None,))
        gm.backward(c * 1 + a)
    assert (a.grad.tolist(), b.grad.tolist()) == ([1.0], [20.0])


def test_an_operand_used_twice_in_an_op_has_one_gradient():
    a, seen = tensor([3.0]), []
    gm = GradManager().attach(a)
    with gm:
        c = a * a
        c.grad_fn.register_hook(lambda gi, go: seen.append([g.tolist() for g in gi]))
        gm.backward(c)
    assert seen == [[[6.0]]]


def test_hooks_of_an_operation_of_several_results():
    x, seen = tensor([[2.0, 1.0], [1.0, 3.0]]), []
    gm = GradManager().attach(x)
    with gm:
        w, v = gnp.linalg.eigh(x)
        assert w.grad_fn == v.grad_fn
        w.grad_fn.register_prehook(lambda go: seen.append([g is None for g in go]))
        w.grad_fn.register_hook(lambda gi, go: seen.append((len(gi), [g is None for g in go])))
        w.grad_fn.register_prehook(lambda go: (None if go[0] is None else go[0] * 2, None))
        gm.backward(w.sum(), retain=True)
        gm.backward((v * v).sum())
    assert seen[:2] == [[False, True], (1, [False, True])]
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.eye(2), atol=1e-12)


def test_handles_of_operations_are_removed():
    a = tensor([1.0])
    gm = GradManager().attach(a)
    with gm:
        c = a * 2
        first = c.grad_fn.register_hook(lambda gi, go: (gi[0] * 10,))
        second = c.grad_fn.register_prehook(lambda go: (go[0] * 10,))
        gm.backward(c, retain=True)
        assert pop_grad(a).tolist() == [200.0]
        for handle in (first, second):
            handle.remove()
            handle.remove()
        gm.backward(c)
    assert a.grad.tolist() == [2.0]


# ---------------------------------------------------------------- several tensors


def test_a_multi_grad_hook_in_mode_all_is_called_once_before_grad_is_written():
    a, b, c = tensor([1.0]), tensor([2.0]), tensor([3.0])
    gm, seen = GradManager().attach([a, b, c]), []

    def note(gs):
        seen.append(([g if g is None else g.tolist() for g in gs], a.grad))

    handle = register_multi_grad_hook([a, b, c], note)
    for _ in range(2):
        with gm:
            gm.backward(a * b)
        a.grad = None
    assert seen == [([[2.0], [1.0], None], None)] * 2
    with gm:
        grad(a * b, a)
    assert seen[2:] == [([[2.0], None, None], None)]
    with gm:
        gm.backward(tensor([1.0]) * c, retain=True)
        handle.remove()
        handle.remove()
        gm.backward(c * 1)
    assert seen[3:] == [([None, None, [1.0]], None)]


def test_a_multi_grad_hook_in_mode_any_is_called_once_with_the_first_gradient():
    a, b, seen = tensor([1.0]), tensor([2.0]), []
    gm = GradManager().attach([a, b])
    with gm:
        h = a * b
        register_multi_grad_hook([a, h, b], lambda g: seen.append(g.tolist()), mode="any")
        y = h * 3
        gm.backward(y, retain=True)
        gm.backward(y)
    assert seen == [[3.0], [3.0]]


def test_a_multi_grad_hook_of_which_no_tensor_is_reached():
    a, b = tensor([1.0]), tensor([2.0])
    gm = GradManager().attach([a, b])
    for mode in ("all", "any"):
        register_multi_grad_hook([b], lambda g: pytest.fail("not reached"), mode=mode)
    with gm:
        gm.backward(a * 1)
    assert a.grad.tolist() == [1.0]


def test_multi_grad_hooks_on_leaves_and_results_see_what_earlier_hooks_gave():
    a, seen = tensor([1.0]), []
    gm = GradManager().attach(a)
    with gm:
        h = a * 2
        h.register_hook(times(10))
        register_multi_grad_hook([h, a, h], lambda gs: seen.append([g.tolist() for g in gs]))
        h.register_hook(times(10))
        gm.backward(h * 1)
    assert seen == [[[10.0], [200.0], [10.0]]]


def test_multi_grad_hooks_count_for_each_of_nested_managers():
    a, seen = tensor([3.0]), []
    outer, inner = GradManager().attach(a), GradManager().attach(a)
    register_multi_grad_hook([a], lambda gs: seen.append(gs[0].tolist()))
    with outer, inner:
        inner.backward(a * a)
        first, a.grad = a.grad, None
        outer.backward(first)
    assert seen == [[6.0], [2.0]]


def test_multi_grad_hooks_refuse_wrong_arguments():
    a = tensor([1.0])
    recording_ = GradManager().attach(a)
    with pytest.raises(ValueError, match='mode is "all" or "any"; found \'some\''):
        register_multi_grad_hook([a], print, mode="some")
    with pytest.raises(ValueError, match="there are no tensors"):
        register_multi_grad_hook([], print)
    with pytest.raises(TypeError, match="tensor number 1 is for Tensors; found int"):
        register_multi_grad_hook([a, 3], print)
    with recording_:
        recording_.backward(a * 1)


# ---------------------------------------------------------------- threads and memory


def test_hooks_from_many_threads_on_one_leaf():
    x = tensor(np.zeros(3))
    calls, failures, start = [], [], threading.Barrier(6)

    def work(k):
        try:
            gm = GradManager().attach(x)
            start.wait()
            for _ in range(30):
                with x.register_hook(lambda g: calls.append(k)), gm:
                    h = x * (k + 1)
                    h.register_hook(lambda g: g * 0 + 1)
                    gm.backward(h.sum())
        except BaseException as error:  # the test raises any error of a thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert x.grad.tolist() == [30.0 * (1 + 2 + 3 + 4 + 5 + 6)] * 3
    assert all(calls.count(k) >= 30 for k in range(6))


def test_multi_grad_hooks_in_many_threads():
    x, w = tensor([1.0]), tensor([2.0])
    seen, failures = [], []
    register_to_be = GradManager().attach([x, w])  # alive, so that the hook can be set before the threads attach
    register_multi_grad_hook([x, w], lambda gs: seen.append([g.item() for g in gs]))

    def work(k):
        try:
            gm = GradManager().attach([x, w])
            for _ in range(30):
                with gm:
                    gm.backward((x * w * k).sum())
        except BaseException as error:  # the test raises any error of a thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(seen) == sorted([[2.0 * k, 1.0 * k] for k in range(1, 5) for _ in range(30)])
    assert len(register_to_be.attached_tensors()) == 2


def test_hooks_are_freed_with_the_history_though_the_result_lives():
    class Big:
        def __call__(self, g):
            return None

    x = tensor([1.0])
    gm = GradManager().attach(x)
    hooks = [Big() for _ in range(4)]
    refs = [weakref.ref(h) for h in hooks]
    with gm:
        h = x * 2
        h.register_hook(hooks[0])
        h.grad_fn.register_prehook(hooks[1])
        register_multi_grad_hook([h], hooks[2])
        h.retain_grad()
        gm.backward(h)
    leaf = x.register_hook(hooks[3])
    del hooks
    assert [ref() is None for ref in refs] == [True, True, True, False]
    leaf.remove()
    assert refs[3]() is None
    assert h.tolist() == [2.0]


def test_gradients_that_hooks_saw_are_freed():
    seen = []
    x = tensor(np.ones(4))
    gm = GradManager().attach(x)
    x.register_hook(lambda g: seen.append(weakref.ref(g)))
    register_multi_grad_hook([x], lambda gs: seen.extend(map(weakref.ref, gs)))
    with gm:
        h = x * 2
        h.register_hook(lambda g: seen.append(weakref.ref(g)))
        register_multi_grad_hook([h], lambda gs: seen.extend(map(weakref.ref, gs)))
        gm.backward(h.sum(), retain=True)
        assert len(seen) == 4
        assert [ref() for ref in seen] == [None] * 4


def test_the_hooks_of_a_swept_value_are_freed():
    gc.collect()
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        for _ in range(500):
            (x * 2).register_hook(lambda g: g)
        gm._tape.sweep(everything=True)
        assert gm._tape.entries == []
        assert gm._tape.annotations.hooks == {}
        y = x * 3
        y.register_hook(times(2))
        z = y * 1
        del y
        gm._tape.sweep(everything=True)
        gm.backward(z)
    assert x.grad.tolist() == [6.0]


def test_without_hooks_backward_runs_the_fast_loop(monkeypatch):
    from gradmgr._engine import backward_pass

    def slow(*args, **kwargs):
        raise RuntimeError("the general path")

    monkeypatch.setattr(backward_pass, "ObservedPass", slow)
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        assert y.grad_fn.name() == "multiply"
        assert y.grad_fn.next_functions[0][0].variable is x
        gm.backward(y)
    assert isinstance(x.grad, Tensor)
    with gm:
        y = x * 2
        y.register_hook(print)
        with pytest.raises(RuntimeError, match="the general path"):
            gm.backward(y)


# ---------------------------------------------------------------- arrays that are not NumPy's


def test_hooks_and_edges_on_a_gpu(cupy):
    x, seen = tensor(cupy.asarray(np.array([1.0, 2.0]))), []
    gm = GradManager().attach(x)
    x.register_hook(times(2))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(type(t.grad._array)))
    register_multi_grad_hook([x], lambda gs: seen.append(type(gs[0]._array)))
    with gm:
        h = x * x
        h.register_hook(times(3))
        h.retain_grad()
        h.grad_fn.register_prehook(lambda gs: (gs[0] * 5,))
        h.grad_fn.register_hook(lambda gi, go: (gi[0] * go[0],))
        edge = get_gradient_edge(h)
        y = (h * 1).sum()
        gm.backward(y, retain=True)
        (of_h,) = grad(y, edge, retain_graph=True)
        (of_x,) = grad(edge, x, cupy.ones(2))
    assert seen == [guard.ndarray] * 2 + [guard.ndarray]
    assert guard.ndarray.copies_to_host == 0
    assert x.grad.tolist() == [2.0 * 15 * 15 * 2, 4.0 * 15 * 15 * 2]
    assert (h.grad.tolist(), of_h.tolist()) == ([3.0, 3.0], [3.0, 3.0])
    assert of_x.tolist() == x.grad.tolist()


def test_a_hook_that_returns_an_array_of_another_device(cupy):
    x = tensor(cupy.asarray(np.array([1.0, 2.0])))
    gm = GradManager().attach(x)
    x.register_hook(lambda g: tensor([1.0, 1.0]))
    with gm, pytest.raises(errors.MixedArraysError, match="gave a gradient on cpu; it must live on cuda:0"):
        gm.backward((x * x).sum())
    assert x.grad is None
