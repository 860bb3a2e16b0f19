"""Callbacks of a GradManager: chains, futures, callback objects, and the order of everything in a backward."""

import inspect
import sys
import weakref

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import BackwardRun, GradManager, get_backwarding_grad_manager, tensor
from gradmgr.graph import increment_version


def logging_callback(log, event, result=None):
    """Return a callback that appends `event` to the log, and returns its gradient or `result` of it."""

    def callback(t, grad):
        log.append(event)
        return grad if result is None else result(grad)

    return callback


class Future:
    """A gradient that arrives when it is asked for."""

    def __init__(self, value, log=None, event="get"):
        self.value, self.log, self.event = value, log, event

    def get(self):
        if self.log is not None:
            self.log.append(self.event)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class CallbackObject:
    """A callback object that logs the calls of its methods; `fail_in` names the one that raises."""

    def __init__(self, log, name="", fail_in=None):
        self.log, self.name, self.fail_in = log, name, fail_in

    def _log(self, what):
        self.log.append(self.name + what)
        if what == self.fail_in:
            raise OSError(f"in {what}")

    def begin(self, manager):
        self.manager = manager
        self._log("begin")

    def __call__(self, t, grad):
        self._log("call")
        return grad

    def finish(self, manager):
        assert manager is self.manager
        self._log("finish")

    def abort(self, manager):
        assert manager is self.manager
        self._log("abort")


# ---------------------------------------------------------------- chains


def test_a_callback_receives_the_tensor_and_its_gradient():
    x = tensor([3.0])
    received = []
    gm = GradManager().attach(x, lambda t, grad: (received.append((t, grad)), grad)[1])
    with gm:
        gm.backward(x * x)
    ((t, grad),) = received
    assert t is x
    assert type(grad) is type(x)
    assert grad.tolist() == [6.0]
    assert (grad.shape, grad.dtype) == (x.shape, x.dtype)


def test_callbacks_are_chained_and_the_last_result_goes_to_grad():
    x = tensor([3.0])
    gm = GradManager().attach(x, [lambda t, g: g * 2, lambda t, g: g + 1, lambda t, g: g * 10])
    with gm:
        gm.backward(x * x)
    assert x.grad.tolist() == [130.0]


def test_what_the_chain_gives_is_what_is_accumulated():
    x = tensor([3.0])
    gm = GradManager().attach(x, lambda t, g: g * 2)
    for k in (1, 2):
        with gm:
            gm.backward(x * x)
        assert x.grad.tolist() == [12.0 * k]


def test_the_chain_runs_once_with_the_complete_gradient():
    x = tensor([3.0])
    received = []
    gm = GradManager().attach(x, lambda t, g: (received.append(g.tolist()), g)[1])
    with gm:
        y = x * x
        z = gnp.exp(y * 0) * x
        gm.backward([y, z, x, y * z])
    assert received == [[6.0 + 1.0 + 1.0 + 27.0]]


def test_the_chain_runs_in_every_backward():
    x = tensor([3.0])
    log = []
    gm = GradManager().attach(x, logging_callback(log, "x"))
    with gm:
        y = x * x
        gm.backward(y, retain=True)
        gm.backward(y, retain=True)
        gm.backward(y)
    assert log == ["x"] * 3


def test_the_same_function_may_be_attached_to_many_tensors():
    tensors = [tensor([float(k)]) for k in range(4)]
    gm = GradManager().attach(tensors, lambda t, g: g * t)
    with gm:
        gm.backward(sum(tensors))
    assert [t.grad.tolist() for t in tensors] == [[0.0], [1.0], [2.0], [3.0]]


def test_a_callback_object_without_begin_finish_abort_is_a_plain_callback():
    class Scale:
        def __call__(self, t, grad):
            return grad * 5

    x = tensor([1.0])
    gm = GradManager().attach(x, Scale())
    with gm:
        gm.backward(x * 2)
    assert x.grad.tolist() == [10.0]


# ---------------------------------------------------------------- when a chain runs


def test_a_chain_runs_as_soon_as_the_last_entry_feeding_its_leaf_is_done():
    """A deep chain of layers: the last layer's callback runs before the rules of the first layer."""
    depth = 200
    weights = [tensor([1.0]) for _ in range(depth)]
    order = []
    alive_at_last = []

    def callback(t, grad):
        order.append(next(k for k, w in enumerate(weights) if w is t))
        if len(order) == 1:
            alive_at_last.extend(ref() is not None for ref in kept)
        return grad

    gm = GradManager().attach(weights, callback)
    with gm:
        h = tensor([1.0])
        kept = []
        for w in weights:
            h = gnp.exp(h * w - 1.0)
            kept.append(weakref.ref(h._array))
        gm.backward(h)
    assert order == list(range(depth))[::-1]
    # At the first callback, that of the last layer, all earlier layers' outputs still await their turn.
    assert all(alive_at_last[: depth - 1])
    assert [ref() for ref in kept[:-1]] == [None] * (depth - 1)


def test_a_shared_leaf_waits_for_its_first_use():
    shared, middle = tensor([2.0]), tensor([3.0])
    log = []
    gm = GradManager().attach(shared, logging_callback(log, "shared")).attach(middle, logging_callback(log, "middle"))
    with gm:
        h = shared * 2
        h = h * middle
        gm.backward(h * shared)
    assert log == ["middle", "shared"]
    assert shared.grad.tolist() == [2 * 2 * 3.0 * 2]


def test_the_callback_of_a_leaf_that_is_only_y_runs_before_any_vjp():
    x, w = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(w, logging_callback(log, "w")).attach(x, logging_callback(log, "x"))
    with gm:
        gm.backward([w * w, x])
    assert log == ["x", "w"]


def test_the_order_does_not_depend_on_the_order_of_attachment():
    for first_attached in (0, 1):
        a, b = tensor([2.0]), tensor([3.0])
        log = []
        gm = GradManager()
        pairs = [(a, "a"), (b, "b")]
        for t, event in (pairs[first_attached], pairs[1 - first_attached]):
            gm.attach(t, logging_callback(log, event))
        with gm:
            gm.backward((a * 2) * b)
        assert log == ["b", "a"]


def test_the_chain_of_an_attached_intermediate_runs_between_those_of_later_and_earlier_leaves():
    a, b = tensor([2.0]), tensor([3.0])
    log = []
    gm = GradManager().attach(a, logging_callback(log, "a")).attach(b, logging_callback(log, "b"))
    with gm:
        h = a * 2
        gm.attach(h, logging_callback(log, "h"))
        gm.backward(h * 5 * b)
    assert log == ["b", "h", "a"]


# ---------------------------------------------------------------- order of events


def test_the_order_of_everything_in_a_backward():
    a, b, c = tensor([2.0]), tensor([3.0]), tensor([5.0])
    log = []

    def grads():
        return [None if t.grad is None else t.grad.tolist() for t in (a, b, c)]

    def later(t, grad):
        log.append("b starts")
        return Future(grad, log, f"b arrives, {grads()}")

    gm = GradManager()
    gm.attach(a, logging_callback(log, "a"))
    gm.attach(b, [later, logging_callback(log, "b goes on")])
    gm.attach(c)
    gm.register_after_backward_callback(lambda: log.append(f"after 1, {grads()}"))
    gm.register_after_backward_callback(lambda: log.append("after 2"))
    with gm:
        gm.backward((a * 1) * b * c)
    nothing = [None, None, None]
    assert log == ["b starts", "a", f"after 1, {nothing}", "after 2", f"b arrives, {nothing}", "b goes on"]
    assert grads() == [[15.0], [10.0], [6.0]]


def test_after_backward_callbacks_run_in_every_backward_with_retain_too():
    x = tensor([3.0])
    log = []
    gm = GradManager().attach(x)
    gm.register_after_backward_callback(lambda: log.append("after"))
    for _ in range(2):
        with gm:
            y = x * x
            gm.backward(y, retain=True)
            gm.backward(y)
    assert log == ["after"] * 4


def test_after_backward_callbacks_run_where_no_tensor_has_callbacks():
    log = []
    gm = GradManager()
    gm.register_after_backward_callback(lambda: log.append("after"))
    with gm:
        gm.backward()
    assert log == ["after"]


def test_an_after_backward_callback_is_not_run_by_release():
    gm = GradManager()
    gm.register_after_backward_callback(lambda: pytest.fail("no backward ran"))
    with gm:
        pass


# ---------------------------------------------------------------- futures


def test_a_future_gives_the_gradient():
    x = tensor([3.0])
    gm = GradManager().attach(x, lambda t, g: Future(g * 2))
    with gm:
        gm.backward(x * x)
    assert x.grad.tolist() == [12.0]


def test_a_future_suspends_its_chain_which_goes_on_when_it_resolves():
    """Clipping after an all-reduce sees the reduced gradient."""
    x = tensor([3.0, 4.0])
    gm = GradManager().attach(x, [lambda t, g: Future(g * 100), lambda t, g: gnp.clip(g, -50, 500)])
    with gm:
        gm.backward((x * np.array([-1.0, 2.0])).sum())
    assert x.grad.tolist() == [-50.0, 200.0]


def test_futures_are_all_started_before_any_is_awaited():
    log = []
    tensors = [tensor([1.0]) for _ in range(4)]

    def start(t, grad):
        log.append("start")
        return Future(grad, log)

    gm = GradManager().attach(tensors, start)
    with gm:
        h = tensor([1.0])
        for t in tensors:
            h = h * t
        gm.backward(h)
    assert log == ["start"] * 4 + ["get"] * 4


def test_several_futures_in_one_chain():
    x = tensor([1.0])
    log = []
    gm = GradManager().attach(
        x, [lambda t, g: Future(g * 2, log), lambda t, g: g + 1, lambda t, g: Future(g * 10, log), lambda t, g: g + 5]
    )
    with gm:
        gm.backward(x * 1)
    assert log == ["get", "get"]
    assert x.grad.tolist() == [35.0]


def test_chains_of_different_length_behind_futures():
    a, b = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach(a, [lambda t, g: Future(g + 1), lambda t, g: Future(g * 10)])
    gm.attach(b, lambda t, g: Future(g * 7))
    with gm:
        gm.backward(a + b)
    assert (a.grad.tolist(), b.grad.tolist()) == ([20.0], [7.0])


def test_a_future_of_one_shared_result_is_not_aliased():
    a, b = tensor([1.0, 1.0]), tensor([1.0, 1.0])
    shared = Future(tensor([5.0, 6.0]))
    gm = GradManager().attach([a, b], lambda t, g: shared)
    with gm:
        gm.backward(a + b, np.ones(2))
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())
    assert a.grad.tolist() == b.grad.tolist() == [5.0, 6.0]


# ---------------------------------------------------------------- begin, finish, abort


def test_begin_and_finish_are_called_around_each_backward():
    x = tensor([3.0])
    log = []
    gm = GradManager().attach(x, CallbackObject(log))
    for _ in range(2):
        with gm:
            gm.backward(x * x)
    assert log == ["begin", "call", "finish"] * 2


def test_begin_and_finish_run_once_for_an_object_on_many_tensors():
    a, b = tensor([3.0]), tensor([3.0])
    log = []
    gm = GradManager().attach([a, b], CallbackObject(log))
    with gm:
        gm.backward(a + b)
    assert log == ["begin", "call", "call", "finish"]


def test_begin_and_finish_run_though_nothing_is_seeded():
    x = tensor([3.0])
    log = []
    gm = GradManager().attach(x, CallbackObject(log))
    with gm:
        gm.backward()
    assert log == ["begin", "finish"]


def test_begin_and_finish_run_though_the_tensor_is_not_reached():
    x, unused = tensor([3.0]), tensor([1.0])
    log = []
    gm = GradManager().attach(x).attach(unused, CallbackObject(log))
    with gm:
        gm.backward(x * x)
    assert log == ["begin", "finish"]


def test_finish_comes_before_grad_is_written():
    x = tensor([3.0])
    seen = []

    class Look:
        def __call__(self, t, grad):
            return grad

        def finish(self, manager):
            seen.append(x.grad)

    gm = GradManager().attach(x, Look())
    with gm:
        gm.backward(x * x)
    assert seen == [None]
    assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize(("method", "called"), [("begin", True), ("finish", True), ("abort", False)])
def test_a_callback_object_may_have_any_one_of_the_three_methods(method, called):
    log = []

    class One:
        def __call__(self, t, grad):
            return grad

    setattr(One, method, lambda self, manager: log.append(method))
    x = tensor([3.0])
    gm = GradManager().attach(x, One())
    with gm:
        gm.backward(x * x)
    assert log == ([method] if called else [])
    assert x.grad.tolist() == [6.0]


def test_a_callback_object_attached_while_recording_is_begun_too():
    x = tensor([3.0])
    log = []
    gm = GradManager()
    with gm:
        gm.attach(x, CallbackObject(log))
        gm.backward(x * x)
    assert log == ["begin", "call", "finish"]


def test_rejected_arguments_call_neither_begin_nor_abort():
    x = tensor([3.0, 4.0])
    log = []
    gm = GradManager().attach(x, CallbackObject(log))
    with gm:
        with pytest.raises(ValueError, match="one real number"):
            gm.backward(x * x)
        assert log == []


# ---------------------------------------------------------------- failures


def fail(*_):
    raise LookupError("mine")


def failing_rule(x):
    """An op whose derivative raises: its saved value is declared overwritten."""
    buffer = np.array([2.0])
    y = x * buffer
    increment_version(buffer)
    return y


PLACES = {
    "a callback": (LookupError, lambda gm, x: gm.attach(x, fail)),
    "a later callback of the chain": (LookupError, lambda gm, x: gm.attach(x, [lambda t, g: g, fail])),
    "a future": (LookupError, lambda gm, x: gm.attach(x, lambda t, g: Future(LookupError("mine")))),
    "behind a future": (LookupError, lambda gm, x: gm.attach(x, [lambda t, g: Future(g), fail])),
    "an after-backward callback": (LookupError, lambda gm, x: gm.register_after_backward_callback(fail)),
    "begin": (OSError, lambda gm, x: gm.attach(x, CallbackObject([], fail_in="begin"))),
    "finish": (OSError, lambda gm, x: gm.attach(x, CallbackObject([], fail_in="finish"))),
    "a number from a callback": (TypeError, lambda gm, x: gm.attach(x, lambda t, g: 3.0)),
    "None from a future": (TypeError, lambda gm, x: gm.attach(x, lambda t, g: Future(None))),
    "a wrong shape from a callback": (ValueError, lambda gm, x: gm.attach(x, lambda t, g: g.sum())),
    "a wrong dtype from a callback": (TypeError, lambda gm, x: gm.attach(x, lambda t, g: g.astype("float32"))),
    "Ctrl-C in a callback": (KeyboardInterrupt, lambda gm, x: gm.attach(x, interrupt)),
    "Ctrl-C in a future": (KeyboardInterrupt, lambda gm, x: gm.attach(x, lambda t, g: Future(KeyboardInterrupt()))),
}


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_error_leaves_every_grad_as_it_was_and_the_manager_idle(place, retain):
    kind, arrange = PLACES[place]
    x, other = tensor([3.0]), tensor([4.0])
    x.grad = held = tensor([100.0])
    gm = GradManager().attach(other)
    arrange(gm, x)
    gm.attach(x)
    gm.record()
    y = x * other
    with pytest.raises(kind):
        gm.backward(y, retain=retain)
    assert x.grad is held
    assert held.tolist() == [100.0]
    assert other.grad is None
    assert get_backwarding_grad_manager() is None
    with pytest.raises(RuntimeError, match="idle"):
        gm.backward(y)
    gm.detach(x)  # and with it the fault, but for that of the after-backward callback
    if place != "an after-backward callback":
        with gm:
            gm.backward(x * other)
        assert other.grad.tolist() == [3.0]


def test_an_error_in_a_derivative_leaves_every_grad_as_it_was_and_the_manager_reusable():
    x, other = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(x, CallbackObject(log)).attach(other, CallbackObject(log, "other "))
    with gm:
        y = failing_rule(x) * other
        with pytest.raises(RuntimeError, match="increment_version"):
            gm.backward(y)
        assert (x.grad, other.grad) == (None, None)
        assert log == ["begin", "other begin", "other call", "abort", "other abort"]
        gm.record()
        gm.backward(x * other)
    assert (x.grad.tolist(), other.grad.tolist()) == ([4.0], [3.0])


@pytest.mark.parametrize("kind", [ValueError, ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_the_exception_of_a_callback_is_raised_unchanged(kind):
    error = kind("mine")

    def callback(t, grad):
        raise error

    x = tensor([3.0])
    gm = GradManager().attach(x, callback)
    with gm, pytest.raises(kind) as caught:
        gm.backward(x * x)
    assert caught.value is error


def test_abort_is_called_after_a_failure_and_finish_is_not():
    a, b = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(a, fail).attach(b, CallbackObject(log))
    with gm, pytest.raises(LookupError):
        gm.backward((a * 2) * b)
    assert log == ["begin", "call", "abort"]


def test_abort_is_called_after_a_future_failed():
    a, b = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(a, lambda t, g: Future(LookupError("mine"))).attach(b, CallbackObject(log))
    with gm, pytest.raises(LookupError):
        gm.backward(a * b)
    assert log[-1] == "abort"


def test_abort_is_called_on_ctrl_c():
    a, b = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(a, interrupt).attach(b, CallbackObject(log))
    with gm, pytest.raises(KeyboardInterrupt):
        gm.backward((a * 2) * b)
    assert log == ["begin", "call", "abort"]


def test_abort_may_record_and_release_as_it_likes():
    x = tensor([3.0])

    class Again:
        def __call__(self, t, grad):
            raise LookupError("mine")

        def abort(self, manager):
            manager.release()

    gm = GradManager().attach(x, Again())
    with gm, pytest.raises(LookupError, match="mine"):
        gm.backward(x * x)


def test_an_error_in_abort_does_not_replace_the_first_one():
    x = tensor([3.0])
    log = []

    class Bad(CallbackObject):
        def __call__(self, t, grad):
            raise LookupError("the first")

    gm = GradManager().attach(x, [Bad(log, "1 ", fail_in="abort"), CallbackObject(log, "2 ")])
    with gm, pytest.raises(LookupError, match="the first") as caught:
        gm.backward(x * x)
    assert "2 abort" in log
    assert any("in abort" in note for note in caught.value.__notes__)


def test_a_failure_in_begin_aborts_those_that_had_begun():
    a, b = tensor([3.0]), tensor([4.0])
    log = []
    gm = GradManager().attach(a, CallbackObject(log, "a ")).attach(b, CallbackObject(log, "b ", fail_in="begin"))
    with gm, pytest.raises(OSError, match="in begin"):
        gm.backward(a * b)
    assert log[:2] == ["a begin", "b begin"]
    assert "a abort" in log
    assert "a call" not in log
    assert "a finish" not in log


# ---------------------------------------------------------------- results are not aliased


def test_one_result_returned_for_two_tensors_is_not_aliased():
    a, b = tensor([1.0, 1.0]), tensor([1.0, 1.0])
    shared = tensor([5.0, 6.0])
    gm = GradManager().attach([a, b], lambda t, g: shared)
    for k in (1, 2):
        with gm:
            gm.backward(a + b, np.ones(2))
        assert a.grad is not b.grad
        assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())
        assert not np.shares_memory(a.grad.numpy(), shared.numpy())
        assert a.grad.tolist() == b.grad.tolist() == [5.0 * k, 6.0 * k]
    assert shared.tolist() == [5.0, 6.0]


def test_a_result_held_nowhere_else_is_not_aliased_either():
    a, b = tensor([1.0, 1.0]), tensor([1.0, 1.0])
    first = []

    def same(t, grad):
        if not first:
            first.append(grad)
            return grad
        return first.pop()

    gm = GradManager().attach([a, b], same)
    with gm:
        gm.backward(a + b, np.ones(2))
    assert a.grad is not b.grad
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())


def test_a_result_may_be_the_parameter_itself():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x, lambda t, g: t)
    for k in (1, 2):
        with gm:
            gm.backward((x * 3).sum())
        assert x.grad is not x
        assert not np.shares_memory(x.grad.numpy(), x.numpy())
        assert x.grad.tolist() == [1.0 * k, 2.0 * k]
    assert x.tolist() == [1.0, 2.0]


def test_a_gradient_that_the_callback_keeps_does_not_change_later():
    x = tensor([1.0, 2.0])
    kept = []
    gm = GradManager().attach(x, lambda t, g: (kept.append(g), g)[1])
    for _ in range(3):
        with gm:
            gm.backward((x * 3).sum())
    assert [g.tolist() for g in kept] == [[3.0, 3.0]] * 3
    assert x.grad.tolist() == [9.0, 9.0]


def test_a_callback_that_writes_into_its_gradient_changes_only_its_own():
    a, b = tensor([1.0, 1.0]), tensor([1.0, 1.0])
    dy = np.ones(2)

    def scale(t, grad):
        grad *= 10
        return grad

    gm = GradManager().attach(a, scale).attach(b)
    with gm:
        gm.backward(a + b, dy)
    assert a.grad.tolist() == [10.0, 10.0]
    assert b.grad.tolist() == [1.0, 1.0]
    assert dy.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("piece", [lambda g: g[...], lambda g: g.T, lambda g: gnp.broadcast_to(g[:1], (3, 3))])
def test_a_view_as_result_gets_memory_of_its_own(piece):
    x = tensor(np.ones((3, 3)))
    kept = []
    gm = GradManager().attach(x, lambda t, g: (kept.append(g), piece(g))[1])
    for k in (1, 2):
        with gm:
            gm.backward((x * 2).sum())
        assert not np.shares_memory(x.grad.numpy(), kept[-1].numpy())
        assert (x.grad == 2.0 * k).all()


# ---------------------------------------------------------------- everything is allowed inside


def test_a_callback_may_record_with_another_manager():
    x = tensor([3.0])
    penalty = tensor([2.0])
    other = GradManager().attach(penalty)

    def callback(t, grad):
        with other:
            other.backward(penalty * penalty * grad)
        return grad

    gm = GradManager().attach(x, callback)
    with gm:
        gm.backward(x * x)
    assert x.grad.tolist() == [6.0]
    assert penalty.grad.tolist() == [24.0]


def test_a_callback_may_differentiate_the_very_parameter_by_another_manager():
    x = tensor([3.0])
    other = GradManager().attach(x)
    inside = []

    def callback(t, grad):
        with other:
            other.backward(t * t * t)
        inside.append(t.grad.tolist())
        t.grad = None
        return grad

    gm = GradManager().attach(x, callback)
    with gm:
        gm.backward(x * x)
    assert inside == [[27.0]]
    assert x.grad.tolist() == [6.0]


def test_a_callback_may_attach_tensors_for_the_next_time():
    x, late = tensor([3.0]), tensor([4.0])
    gm = GradManager()
    gm.attach(x, lambda t, grad: (gm.attach(late), grad)[1])
    with gm:
        gm.backward(x * late)
    assert x.grad.tolist() == [4.0]
    assert late.grad is None
    with gm:
        gm.backward(late * 5)
    assert late.grad.tolist() == [5.0]


def test_a_callback_may_attach_a_tensor_that_backward_has_not_reached_yet():
    a, b = tensor([3.0]), tensor([4.0])
    gm = GradManager().attach(a)
    with gm:
        h = a * 2
        gm.attach(b, lambda t, grad: (gm.attach(h), grad)[1])
        gm.backward(h * b, retain=True)
        assert (a.grad.tolist(), b.grad.tolist()) == ([8.0], [6.0])
        gm.clear_grad()
        gm.backward(h * 10)
    assert h.grad.tolist() == [10.0]
    assert a.grad.tolist() == [20.0]


def test_a_callback_may_detach_a_tensor_that_backward_has_not_reached_yet():
    a, b = tensor([3.0]), tensor([4.0])
    gm = GradManager().attach(a)
    gm.attach(b, lambda t, grad: (gm.detach(a), grad)[1])
    with gm:
        gm.backward((a * 2) * b)
    assert b.grad.tolist() == [6.0]
    assert a.grad is None


def test_a_callback_may_update_its_parameter_in_place():
    """An optimiser fused with backward: the parameter moves, the gradients of the others do not."""
    w, x = tensor(np.array([2.0, 5.0])), tensor(np.array([3.0, 7.0]))

    def step(t, grad):
        t -= 0.5 * grad
        return grad

    gm = GradManager().attach([w, x], step)
    with gm:
        h = x * w
        gm.backward((h * w).sum())  # x w^2
    assert w.grad.tolist() == [2 * 3.0 * 2.0, 2 * 7.0 * 5.0]
    assert x.grad.tolist() == [4.0, 25.0]
    assert w.tolist() == [2.0 - 6.0, 5.0 - 35.0]
    assert x.tolist() == [3.0 - 2.0, 7.0 - 12.5]


def test_a_parameter_written_in_a_callback_is_a_constant_for_the_retained_recording():
    x = tensor([3.0])

    def step(t, grad):
        t -= 1.0
        return grad

    gm = GradManager().attach(x, step)
    with gm:
        y = x * x
        gm.backward(y, retain=True)
        gm.backward(y, retain=True)
        assert x.grad.tolist() == [12.0]  # both at the snapshot, 3
        assert x.tolist() == [1.0]
        with pytest.raises(RuntimeError, match="does not know"):
            gm.backward(x * 2)


def test_a_callback_may_set_grad():
    x = tensor([3.0])

    def clear(t, grad):
        t.grad = None
        return grad

    gm = GradManager().attach(x, clear)
    for _ in range(2):
        with gm:
            gm.backward(x * x)
        assert x.grad.tolist() == [6.0]


def test_a_callback_may_compute_with_intermediates_of_the_recording():
    x = tensor([3.0])
    gm = GradManager()
    with gm:
        gm.attach(x, lambda t, grad: grad + h)
        h = x * x
        gm.backward(h)
    assert x.grad.tolist() == [15.0]


def test_what_a_callback_computes_is_not_recorded_by_its_own_manager():
    x = tensor([3.0])
    made = []
    gm = GradManager().attach(x, lambda t, grad: (made.append(t * grad), grad)[1])
    with gm:
        y = x * x
        gm.backward(y, retain=True)
        with pytest.raises(RuntimeError, match="does not know"):
            gm.backward(made[0])


def test_a_callback_may_release_its_own_manager():
    """release() is legal at any time; the backward pass in progress still completes, for all or for none."""
    a, b = tensor([3.0]), tensor([4.0])
    gm = GradManager().attach(a)
    gm.attach(b, lambda t, grad: (gm.release(), grad)[1])
    with gm:
        gm.backward((a * 2) * b)
    assert b.grad.tolist() == [6.0]
    assert a.grad.tolist() == [8.0]


def test_a_manager_released_by_its_callback_is_idle_after_backward_though_retain_was_asked():
    a, b = tensor([3.0]), tensor([4.0])
    gm = GradManager().attach(a)
    gm.attach(b, lambda t, grad: (gm.release(), grad)[1])
    with gm:
        y = (a * 2) * b
        gm.backward(y, retain=True)
        with pytest.raises(RuntimeError, match="idle"):
            gm.backward(y)


def test_a_callback_may_release_an_outer_manager():
    x = tensor([3.0])
    outer = GradManager().attach(x)
    gm = GradManager().attach(x, lambda t, grad: (outer.release(), grad)[1])
    with outer, gm:
        y = x * x
        gm.backward(y)
        with pytest.raises(RuntimeError, match="idle"):
            outer.backward(y)
        outer.record()
        x.grad = None
        outer.backward(x * 5)
    assert x.grad.tolist() == [5.0]


def test_a_recording_that_a_callback_starts_goes_on_after_backward():
    x = tensor([3.0])
    other = GradManager().attach(x)
    gm = GradManager().attach(x, lambda t, grad: (other.record(), grad)[1])
    with gm:
        gm.backward(x * x)
    x.grad = None
    y = x * 5
    try:
        other.backward(y)
    finally:
        other.release()
    assert x.grad.tolist() == [5.0]


@pytest.mark.parametrize("call", [lambda gm, y: gm.record(), lambda gm, y: gm.backward(y)])
def test_a_manager_cannot_be_entered_again_from_its_own_callback(call):
    x = tensor([3.0])
    refused = []

    def callback(t, grad):
        with pytest.raises(RuntimeError, match="own backward"):
            call(gm, y)
        refused.append(True)
        return grad

    gm = GradManager().attach(x, callback)
    with gm:
        y = x * x
        gm.backward(y)
    assert refused == [True]
    assert x.grad.tolist() == [6.0]


def test_a_callback_may_call_backward_of_an_outer_manager():
    x, p = tensor([3.0]), tensor([5.0])
    outer = GradManager().attach(p)
    gm = GradManager().attach(x, lambda t, grad: (outer.backward(q, retain=True), grad)[1])
    with outer:
        q = p * p
        with gm:
            gm.backward(x * x)
        assert p.grad.tolist() == [10.0]
        outer.backward(q)
    assert p.grad.tolist() == [20.0]
    assert x.grad.tolist() == [6.0]


# ---------------------------------------------------------------- get_backwarding_grad_manager


def test_every_kind_of_callback_can_ask_for_the_backwarding_manager():
    x = tensor([3.0])
    seen = []

    def look(*_):
        seen.append(get_backwarding_grad_manager())

    class Object:
        def __call__(self, t, grad):
            look()
            return Future(grad)

        def begin(self, manager):
            look()

        def finish(self, manager):
            look()

    gm = GradManager().attach(x, [Object(), lambda t, g: (look(), g)[1]])
    gm.register_after_backward_callback(look)
    with gm:
        assert get_backwarding_grad_manager() is None
        gm.backward(x * x)
        assert get_backwarding_grad_manager() is None
    assert seen == [gm] * 5


def test_abort_can_ask_for_the_backwarding_manager():
    x = tensor([3.0])
    seen = []

    class Object:
        def __call__(self, t, grad):
            raise LookupError

        def abort(self, manager):
            seen.append(get_backwarding_grad_manager())

    gm = GradManager().attach(x, Object())
    with gm, pytest.raises(LookupError):
        gm.backward(x * x)
    assert seen == [gm]


def test_a_backward_inside_a_callback_is_the_backwarding_one_for_its_time():
    x, p = tensor([3.0]), tensor([5.0])
    seen = []

    def look(t, grad):
        seen.append(get_backwarding_grad_manager())
        return grad

    other = GradManager().attach(p, look)

    def callback(t, grad):
        look(t, grad)
        with other:
            other.backward(p * p)
        return look(t, grad)

    gm = GradManager().attach(x, callback)
    with gm:
        gm.backward(x * x)
    assert seen == [gm, other, gm]
    assert get_backwarding_grad_manager() is None


def test_there_is_no_backwarding_manager_outside_of_backward():
    assert get_backwarding_grad_manager() is None


def test_a_recording_that_a_failing_callback_started_stays_open():
    x = tensor([3.0])
    other = GradManager().attach(x)

    def callback(t, grad):
        other.record()
        raise LookupError("mine")

    gm = GradManager().attach(x, callback)
    with gm, pytest.raises(LookupError, match="mine"):
        gm.backward(x * x)
    other.backward(x * 5)
    assert x.grad.tolist() == [5.0]


# ---------------------------------------------------------------- gradients that callbacks deliver


class Delivering:
    """A callback object that delivers gradients for leaves that backward did not reach, as an all-reduce does."""

    def __init__(self, found, replaces=()):
        self.found, self.replaces = found, replaces

    def __call__(self, t, grad):
        return grad

    def finish(self, manager):
        run = manager.current_run()
        for t in self.replaces:
            run.replace(t)
        for t, future in self.found:
            run.deliver(t, future, callback=self)


def test_a_callback_object_may_deliver_a_gradient_to_a_leaf_that_was_not_reached():
    """Earlier callbacks of the leaf's chain do not run, later ones do; None gives nothing."""
    x, y, z = (tensor([1.0]) for _ in range(3))
    log = []
    delivering = Delivering([(y, Future(tensor([5.0]), log)), (z, Future(None, log))])
    gm = GradManager().attach(
        [x, y, z], [logging_callback(log, "before"), delivering, logging_callback(log, "after", lambda g: g * 2)]
    )
    with gm:
        gm.backward(x * 3)
    assert [t.grad if t.grad is None else t.grad.tolist() for t in (x, y, z)] == [[6.0], [10.0], None]
    assert log == ["before", "after", "get", "after", "get"]


def test_what_is_delivered_must_be_a_gradient():
    x, y = tensor([1.0]), tensor([1.0])
    gm = GradManager().attach([x, y], Delivering([(y, Future(tensor([5.0, 6.0])))]))
    with gm, pytest.raises(ValueError, match="the future of callback"):
        gm.backward(x * 3)
    assert (x.grad, y.grad) == (None, None)


def test_a_callback_that_returns_none_leaves_the_gradient_as_it_is():
    x, seen = tensor([1.0, 2.0]), []

    def look(t, grad):
        seen.append(grad.tolist())

    def write(t, grad):
        grad += 1.0

    gm = GradManager().attach(x, [look, lambda t, grad: grad * 2, look, lambda t, grad: Future(grad * 5), look, write])
    with gm:
        gm.backward((x * x).sum())
    assert seen == [[2.0, 4.0], [4.0, 8.0], [20.0, 40.0]]
    assert x.grad.tolist() == [21.0, 41.0]


def test_a_callback_that_returns_none_keeps_the_history_of_the_gradient():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x, lambda t, grad: None)
    with outer, inner:
        inner.backward(x**3)
        slope, x.grad = x.grad, None
        outer.backward(slope)
    assert (slope.tolist(), x.grad.tolist()) == ([27.0], [18.0])


def test_none_from_the_future_of_a_leaf_that_was_reached_is_an_error():
    x = tensor([1.0])
    gm = GradManager().attach(x, lambda t, g: Future(None))
    with gm, pytest.raises(TypeError, match="gave None"):
        gm.backward(x * 3)


def test_a_callback_may_replace_what_grad_holds():
    """`.grad` stays the same object, a snapshot of it what it was; when something fails nothing has changed."""
    x, y = tensor([1.0, 2.0]), tensor([1.0])
    x.grad = held = tensor([10.0, 20.0])
    before = held.detach()
    fail = Future(OSError("late"))
    for delivering in (Delivering([(y, fail)], replaces=[x, y]), Delivering([], replaces=[x, y])):
        gm = GradManager().attach([x, y], delivering)
        with gm:
            if delivering.found:
                with pytest.raises(OSError, match="late"):
                    gm.backward((x * 3).sum())
                assert held.tolist() == [10.0, 20.0]
            else:
                gm.backward((x * 3).sum())
    assert x.grad is held
    assert held.tolist() == [3.0, 3.0]
    assert before.tolist() == [10.0, 20.0]
    assert y.grad is None


def test_futures_are_asked_in_the_order_in_which_they_came():
    """A future that a later callback of the chain gives waits behind those that wait already."""
    x, y = tensor([1.0]), tensor([1.0])
    log = []

    def first(t, g):
        return Future(g, log, "x1" if t is x else "y1")

    def second(t, g):
        return Future(g, log, "x2" if t is x else "y2")

    gm = GradManager().attach([x, y], [first, second])
    with gm:
        gm.backward(x * y)
    assert log in (["x1", "y1", "x2", "y2"], ["y1", "x1", "y2", "x2"])


class Collecting:
    """Doubles all gradients at once and adds one for `more`; or doubles one by one, where it does not collect."""

    def __init__(self, more=None, willing=True):
        self.more = more
        self.willing = willing
        self.asked = []

    def begin(self, manager):
        self.asked.clear()
        if self.willing:
            manager.current_run().collect(self, self.take)

    def take(self, gradients):
        self.asked.append("all")
        for t in list(gradients):
            gradients[t] = gradients[t] * 2
        if self.more is not None:
            gradients[self.more] = tensor(np.full(self.more.shape, 7.0))

    def __call__(self, t, g):
        self.asked.append("one")
        return g * 2


def test_a_callback_alone_on_its_tensors_may_collect_all_gradients():
    x, y, z, plain = tensor([1.0]), tensor([2.0]), tensor([3.0]), tensor([4.0])
    collecting = Collecting(more=z)
    gm = GradManager().attach([x, y, z], collecting).attach(plain)
    for _ in range(2):  # the second adds
        with gm:
            gm.backward(x * y + plain)
        assert collecting.asked == ["all"]
    assert [t.grad.tolist() for t in (x, y, z, plain)] == [[8.0], [4.0], [14.0], [2.0]]


@pytest.mark.parametrize("reason", ["another callback", "a hook", "unwilling", "a leaf of another's"])
def test_a_callback_that_is_not_alone_gets_gradients_one_by_one(reason):
    x, y = tensor([1.0]), tensor([2.0])
    collecting = Collecting(willing=reason != "unwilling")
    gm = GradManager().attach(y, collecting)
    gm.attach(x, [lambda t, g: g] if reason == "a leaf of another's" else collecting)
    if reason == "another callback":
        gm.attach(x, lambda t, g: g + 1)
    with gm:
        if reason == "a hook":
            x.register_hook(lambda g: g * 10)
        gm.backward(x * y)
    assert set(collecting.asked) == {"one"}
    assert y.grad.tolist() == [2.0]
    expected = {"another callback": 5.0, "a hook": 40.0, "unwilling": 4.0, "a leaf of another's": 2.0}
    assert x.grad.tolist() == [expected[reason]]


def test_an_error_of_a_collector_changes_no_grad():
    x = tensor([1.0])
    collecting = Collecting(more=tensor([1.0, 2.0]))
    collecting.take = lambda gradients: 1 / 0
    gm = GradManager().attach(x, collecting)
    with gm, pytest.raises(ZeroDivisionError):
        gm.backward(x * 3)
    assert x.grad is None


# ---------------------------------------------------------------- BackwardRun


class Watching:
    """A callback object that calls functions of the run, and keeps it."""

    def __init__(self, begin=None, call=None, finish=None):
        self.functions = {"begin": begin, "call": call, "finish": finish}

    def _do(self, when, *args):
        if self.functions[when] is not None:
            self.functions[when](self.run, *args)

    def begin(self, manager):
        self.run = manager.current_run()
        assert isinstance(self.run, BackwardRun)
        assert self.run.manager is manager
        self._do("begin")

    def __call__(self, t, grad):
        assert get_backwarding_grad_manager().current_run() is self.run
        self._do("call", t)
        return grad

    def finish(self, manager):
        assert manager.current_run() is self.run
        self._do("finish")


def test_there_is_no_run_outside_of_a_backward_with_callbacks():
    x = tensor([1.0])
    gm = GradManager().attach(x, lambda t, g: g)
    with pytest.raises(RuntimeError, match=r"current_run\(\) is for callbacks"):
        gm.current_run()
    with gm:
        with pytest.raises(RuntimeError, match=r"current_run\(\) is for callbacks"):
            gm.current_run()
        y = x * 2
        y.register_hook(lambda g: gm.current_run())
        with pytest.raises(RuntimeError, match=r"current_run\(\) is for callbacks"):
            gradmgr.grad(y, x)
    assert x.grad is None


def test_a_run_lists_the_leaves_reached_in_the_order_in_which_their_gradients_were_complete():
    x, y, z, plain, unused = (tensor([1.0]) for _ in range(5))
    seen = []
    watching = Watching(
        begin=lambda run: seen.append(list(run.leaves)),
        call=lambda run, t: seen.append(list(run.leaves)),
        finish=lambda run: seen.append([t in run.leaves for t in (x, y, z, plain, unused)]),
    )
    gm = GradManager().attach({"x": x, "y": y, "z": z}, watching).attach(plain).attach(unused, watching)
    with gm:
        gm.backward(((x * plain) * y) * z)
    assert [[id(t) for t in leaves] for leaves in seen[:-1]] == [
        [],
        [id(z)],
        [id(z), id(y)],
        [id(z), id(y), id(x)],
    ]
    assert seen[-1] == [True, True, True, False, False]


def test_a_run_lists_the_tensors_attached_with_a_callback_and_their_names():
    x, y, z = tensor([1.0]), tensor([2.0]), tensor([3.0])

    def other(t, g):
        return g

    def look(run):
        assert run.attached(watching) == {x: "x", z: None}
        assert list(run.attached(other)) == [x, y]
        assert run.attached(print) == {}
        assert run.chain(x) == (other, watching)
        assert run.chain(tensor(1.0)) == ()

    watching = Watching(begin=look, finish=look)
    gm = GradManager().attach({"x": x, "y": y}, other).attach([x, z], watching)
    with gm:
        gm.backward(x * 3)
    assert watching.run.is_over


def test_a_run_gives_the_inputs_that_backward_is_restricted_to():
    x, y, z = tensor([1.0]), tensor([2.0]), tensor([3.0])
    seen = []

    def finish(run):
        seen.append(None if run.inputs is None else list(run.inputs))
        run.deliver(z, tensor([5.0]), callback=watching)  # it is left out in the second backward

    watching = Watching(finish=finish)
    gm = GradManager().attach([x, y, z], watching)
    for options in ({}, {"inputs": [x]}):
        with gm:
            gradmgr.backward(x * y, **options)
    assert seen[0] is None
    assert [id(t) for t in seen[1]] == [id(x)]
    assert [t.grad.tolist() for t in (x, y, z)] == [[4.0], [1.0], [5.0]]


def test_a_run_says_whether_an_outer_manager_records_the_gradients():
    x = tensor([1.0])
    seen = []
    inner = GradManager().attach(x, Watching(begin=lambda run: seen.append(run.is_recorded)))
    with inner:
        inner.backward(x * x)
    with GradManager().attach(x), inner:
        inner.backward(x * x)
    with inner:
        gradmgr.backward(x * x, create_graph=True)
    assert seen == [False, True, True]


def test_a_run_lists_the_tensors_whose_gradients_wait_for_the_future_of_an_earlier_callback():
    x, y = tensor([1.0]), tensor([1.0])
    seen = []
    watching = Watching(finish=lambda run: seen.append([id(t) for t in run.pending(watching)]))
    gm = GradManager().attach(x, [lambda t, g: Future(g), watching]).attach(y, [watching, lambda t, g: Future(g)])
    with gm:
        gm.backward(x * y)
    assert seen == [[id(x)]]
    assert (x.grad.tolist(), y.grad.tolist()) == ([1.0], [1.0])


def test_a_gradient_that_is_delivered_goes_through_the_rest_of_the_chain():
    x, y, z = (tensor([1.0]) for _ in range(3))
    log = []

    def finish(run):
        run.deliver(y, tensor([5.0]), callback=watching)
        run.deliver(z, None, callback=watching)
        log.append("finish")

    watching = Watching(finish=finish)
    gm = GradManager().attach(
        [x, y, z], [logging_callback(log, "before"), watching, logging_callback(log, "after", lambda g: Future(g * 2))]
    )
    with gm:
        gm.backward(x * 3)
    assert [t.grad if t.grad is None else t.grad.tolist() for t in (x, y, z)] == [[6.0], [10.0], None]
    assert log == ["before", "after", "after", "finish"]


def test_where_one_callback_has_no_gradient_after_all_another_may_deliver_one():
    x, y, z = (tensor([1.0]) for _ in range(3))
    log = []

    class Second(Watching):
        def get(self):  # the future of z, asked after that of y
            log.append("z")
            self.run.deliver(y, tensor([7.0]), callback=self)
            return tensor([2.0])

    def finish(run):
        run.deliver(y, Future(None, log, "y"), callback=first)
        run.deliver(z, second, callback=first)

    first, second = Watching(finish=finish), Second()
    gm = GradManager().attach([x, y, z], [first, second])
    with gm:
        gm.backward(x * 3)
    assert log == ["y", "z"]
    assert [t.grad.tolist() for t in (x, y, z)] == [[3.0], [7.0], [2.0]]


def test_one_gradient_delivered_to_two_tensors_is_not_shared():
    x, y, z = (tensor([1.0]) for _ in range(3))
    g = tensor([5.0])

    def finish(run):
        run.deliver(y, g, callback=watching)
        run.deliver(z, g, callback=watching)

    watching = Watching(finish=finish)
    gm = GradManager().attach([x, y, z], watching)
    with gm:
        gm.backward(x * 3)
    y.grad += 1
    assert (y.grad.tolist(), z.grad.tolist(), g.tolist()) == ([6.0], [5.0], [5.0])


@pytest.mark.parametrize(
    ("kind", "text", "deliver"),
    [
        (ValueError, "has no callback", lambda run, t, cb: run.deliver(tensor([1.0]), tensor([1.0]), cb)),
        (ValueError, "has no callback print", lambda run, t, cb: run.deliver(t["unused"], tensor([1.0]), print)),
        (ValueError, "'x'.*this backward reached it", lambda run, t, cb: run.deliver(t["x"], tensor([1.0]), cb)),
        (
            ValueError,
            "'unused'.*was given one for it before",
            lambda run, t, cb: [run.deliver(t["unused"], tensor([1.0]), cb) for _ in range(2)],
        ),
        (ValueError, r"shape \(2,\)", lambda run, t, cb: run.deliver(t["unused"], tensor([1.0, 2.0]), cb)),
        (TypeError, "dtype float32", lambda run, t, cb: run.deliver(t["unused"], tensor([1.0], "float32"), cb)),
        (TypeError, "gave ndarray", lambda run, t, cb: run.deliver(t["unused"], np.ones(1), cb)),
        (RuntimeError, "gradients are on their way already", lambda run, t, cb: run.collect(cb, print)),
    ],
)
def test_what_cannot_be_delivered_is_an_error_and_changes_nothing(kind, text, deliver):
    x, unused = tensor([1.0]), tensor([1.0])
    ts = {"x": x, "unused": unused}
    watching = Watching(finish=lambda run: deliver(run, ts, watching))
    gm = GradManager().attach(ts, watching)
    with gm, pytest.raises(kind, match=text):
        gm.backward(x * 3)
    assert (x.grad, unused.grad) == (None, None)
    assert watching.run.is_over
    watching.functions["finish"] = None
    with gm:
        gm.backward(x * 3)
    assert x.grad.tolist() == [3.0]


@pytest.mark.parametrize("when", ["begin", "call"])
def test_nothing_can_be_delivered_while_the_leaf_may_still_be_reached(when):
    x, unused = tensor([1.0]), tensor([1.0])
    deliver = {when: lambda run, *t: run.deliver(unused, tensor([1.0]), callback=watching)}
    watching = Watching(**deliver)
    gm = GradManager().attach([x, unused], watching)
    with gm, pytest.raises(RuntimeError, match=r"may still reach the tensor: deliver in finish\(manager\)"):
        gm.backward(x * 3)
    assert (x.grad, unused.grad) == (None, None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_is_over_keeps_nothing_alive_and_accepts_nothing(fails):
    x, unused = tensor([1.0]), tensor([1.0])
    watching = Watching(finish=lambda run: fails and 1 / 0)
    gm = GradManager().attach([x, unused], watching)
    with gm:
        if fails:
            with pytest.raises(ZeroDivisionError):
                gm.backward(x * 3)
        else:
            gm.backward(x * 3)
    run = watching.run
    assert run.is_over
    assert (list(run.leaves), run.inputs, run.is_recorded, run.attached(watching), run.pending(watching)) == (
        *([], None, False, {}, []),
    )
    with pytest.raises(RuntimeError, match="this backward is over"):
        run.deliver(unused, tensor([1.0]), callback=watching)
    with pytest.raises(RuntimeError, match="or gone"):
        run.collect(watching, print)
    with pytest.raises(RuntimeError, match="current_run"):
        gm.current_run()
    gone = weakref.ref(gm)
    del gm
    assert gone() is None
    assert run.manager is None


def test_a_backward_inside_a_callback_has_a_run_of_its_own():
    x, y = tensor([1.0]), tensor([2.0])
    inner_watching = Watching()
    inner = GradManager().attach(y, inner_watching)

    def other_backward(run, t):
        with inner:
            inner.backward(y * 3)
        assert inner_watching.run is not run
        assert inner_watching.run.is_over
        assert not run.is_over

    gm = GradManager().attach(x, Watching(call=other_backward))
    with gm:
        gm.backward(x * 3)
    assert (x.grad.tolist(), y.grad.tolist()) == ([3.0], [3.0])


def test_a_collector_may_change_add_and_remove_gradients():
    x, y, z = tensor([1.0]), tensor([2.0]), tensor([3.0])
    seen = []

    def change(gradients):
        seen.append([list(gradients), list(watching.run.leaves)])
        del gradients[x]
        gradients[z] = gradients[y]

    watching = Watching(begin=lambda run: run.collect(watching, change), finish=lambda run: seen.append("finish"))
    gm = GradManager().attach([x, y, z], watching)
    with gm:
        gm.backward(x * y)
    assert [[id(t) for t in part] for part in seen[0]] == [[id(x), id(y)]] * 2
    assert seen[1] == "finish"
    assert (x.grad, y.grad.tolist(), z.grad.tolist()) == (None, [1.0], [1.0])
    y.grad += 1
    assert z.grad.tolist() == [1.0]  # one gradient for two tensors is not shared


def test_a_collector_gives_nothing_to_what_backward_leaves_out():
    x, y = tensor([1.0]), tensor([2.0])

    def change(gradients):
        assert [id(t) for t in gradients] == [id(x)]
        gradients[y] = tensor([7.0])

    watching = Watching(begin=lambda run: run.collect(watching, change))
    gm = GradManager().attach([x, y], watching)
    with gm:
        gradmgr.backward(x * y, inputs=x)
    assert (x.grad.tolist(), y.grad) == ([2.0], None)


@pytest.mark.parametrize(
    ("kind", "text", "given"),
    [
        (
            TypeError,
            "collected a gradient for .* which has not this callback",
            lambda x: {tensor([1.0]): tensor([1.0])},
        ),
        (ValueError, r"gave a gradient of shape \(2,\)", lambda x: {x: tensor([1.0, 2.0])}),
        (TypeError, "gave a gradient of dtype float32", lambda x: {x: tensor([1.0], "float32")}),
        (TypeError, "gave ndarray", lambda x: {x: np.ones(1)}),
        (TypeError, "gave None", lambda x: {x: None}),
    ],
)
def test_what_a_collector_gives_must_be_gradients_of_its_tensors(kind, text, given):
    x, y = tensor([1.0]), tensor([2.0])
    watching = Watching(begin=lambda run: run.collect(watching, lambda gradients: gradients.update(given(x))))
    gm = GradManager().attach([x, y], watching)
    with gm, pytest.raises(kind, match=text):
        gm.backward(x * y)
    assert (x.grad, y.grad) == (None, None)


def run_nested_backwards(levels, gradients, managers):
    """Let a callback run the backward of another manager, whose callback does so too, and so on."""
    w = tensor([1.0, 2.0])

    def go_down(t, grad):
        if levels > 1:
            run_nested_backwards(levels - 1, gradients, managers)

    gm = GradManager().attach(w, callbacks=go_down)
    managers.append(gm)
    with gm:
        gm.backward((w * w * levels).sum())
    gradients.append(w.grad.tolist())


def with_room_for(calls, function, *args):
    """Call a function that has room for so many calls in each other."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + calls)
    try:
        function(*args)
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(("levels", "calls"), [(70, 1000), (700, 10_000)])
def test_backwards_nest_in_callbacks_as_deep_as_the_recursion_limit_lets_them(levels, calls):
    gradients = []
    with_room_for(calls, run_nested_backwards, levels, gradients, [])
    assert gradients == [[2.0 * k, 4.0 * k] for k in range(1, levels + 1)]


@pytest.mark.parametrize("calls", range(200, 230))  # so that each of the calls of a level is once the last one
def test_backwards_nested_too_deep_leave_every_manager_idle(calls):
    gradients, managers = [], []
    with pytest.raises(RecursionError):
        with_room_for(calls, run_nested_backwards, 1000, gradients, managers)
    assert gradients == []
    assert len(managers) > 10
    assert get_backwarding_grad_manager() is None
    for gm in managers:
        with gm:
            pass


def test_a_callback_object_may_detach_a_tensor_before_gradients_are_computed():
    x, y = tensor([3.0]), tensor([5.0])

    class Detach:
        """Detaches y when backward begins, as another thread may."""

        def begin(self, manager):
            if y in manager.attached_tensors():
                manager.detach(y)

        def __call__(self, t, grad):
            return grad

    gm = GradManager().attach([x, y], callbacks=Detach())
    with gm:
        gm.backward(x * y)
    assert x.grad.tolist() == [5.0]
    assert y.grad is None
