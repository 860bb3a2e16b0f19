"""Modes: no_grad, enable_grad, set_grad_enabled, inference_mode, in blocks, decorators and plain calls."""

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import sys
import threading
import weakref

import numpy as np
import pytest

from gradmgr import GradManager, detect_anomaly, tensor
from gradmgr._engine.context import Context, current, enter_recorders, leave_recorders, run_in
from gradmgr._engine.forward import Forward
from gradmgr._engine.history.modes import (
    _modes,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from gradmgr._engine.tape import Tape
from gradmgr.anomaly import is_anomaly_enabled
from gradmgr.forward_ad import dual_level


@pytest.fixture(autouse=True)
def no_mode_left():
    yield
    left = _modes.get()
    _modes.set(())
    assert left == ()


def recorded(gm, t):
    """Whether gm records what is computed of t now."""
    return gm._tape.node_id_of(t * 2) is not None


@contextlib.contextmanager
def forward_level(t):
    """Enter a level of forward mode in which t has a tangent; yield a function that says whether it is recorded."""
    level = Forward()
    level.add_dual(t, t.numpy())
    enter_recorders(level)
    try:
        yield lambda: level.node_id_of(t * 2) is not None
    finally:
        leave_recorders(level)
        level.close()


PAUSING = [no_grad, lambda: set_grad_enabled(False), inference_mode, lambda: inference_mode(True)]
RESUMING = [enable_grad, lambda: set_grad_enabled(True), lambda: inference_mode(False)]
pausing_modes = pytest.mark.parametrize("pausing", PAUSING, ids=["no_grad", "set", "inference", "inference_true"])
resuming_modes = pytest.mark.parametrize("resuming", RESUMING, ids=["enable_grad", "set", "inference_false"])


# ---------------------------------------------------------------- blocks


@pausing_modes
def test_a_block_stops_managers_and_its_end_restores_them(pausing):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        tape = current()
        with pausing():
            c = x * x
            assert not recorded(gm, x)
            assert not is_grad_enabled()
        assert current() is tape  # the fast path
        assert is_grad_enabled()
        gm.backward(c * x)
    assert x.grad.tolist() == [9.0]


@resuming_modes
def test_a_block_in_no_grad_lets_managers_record_again(resuming):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            with resuming():
                assert recorded(gm, x)
                assert is_grad_enabled()
            assert not recorded(gm, x)
            assert not is_grad_enabled()
        assert recorded(gm, x)


@resuming_modes
def test_letting_record_changes_nothing_where_nothing_was_stopped(resuming):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with resuming():
        assert current() is None
    with gm:
        tape = current()
        with resuming():
            assert current() is tape
        assert current() is tape


def test_without_a_recording_a_block_leaves_the_context_empty():
    for make in PAUSING:
        with make():
            assert current() is None


def test_tangents_go_on_under_no_grad_and_stop_under_inference_mode():
    x = tensor([3.0])
    with forward_level(x) as flows:
        for pausing in (no_grad, lambda: set_grad_enabled(False)):
            with pausing():
                assert flows()
        with inference_mode():
            assert not flows()
            assert is_inference_mode_enabled()
            with enable_grad():
                assert not flows()
                assert is_inference_mode_enabled()
            with inference_mode(False):
                assert flows()
                assert not is_inference_mode_enabled()
            with no_grad():
                assert not flows()
            assert not flows()
        assert flows()
        with no_grad(), inference_mode(False):
            assert flows()
    assert not is_inference_mode_enabled()


def test_enable_grad_does_not_undo_inference_mode():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with inference_mode():
            with enable_grad():
                assert not recorded(gm, x)
            with inference_mode(False):
                assert recorded(gm, x)
                with no_grad():
                    assert not recorded(gm, x)
            assert not recorded(gm, x)
        with no_grad(), inference_mode(False):
            assert recorded(gm, x)


@pytest.mark.parametrize("first", [*PAUSING, *RESUMING])
@pytest.mark.parametrize("second", [*PAUSING, *RESUMING])
def test_blocks_may_be_left_in_any_order(first, second):
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def alone(make):
        with make():
            return recorded(gm, x), is_grad_enabled(), is_inference_mode_enabled()

    with gm:
        tape = current()
        expected = alone(second)
        one = first()
        one.__enter__()
        two = second()
        two.__enter__()
        one.__exit__(None, None, None)
        assert (recorded(gm, x), is_grad_enabled(), is_inference_mode_enabled()) == expected
        two.__exit__(None, None, None)
        assert current() is tape
        assert (is_grad_enabled(), is_inference_mode_enabled()) == (True, False)


def test_what_starts_to_record_inside_a_block_records():
    x = tensor([3.0])
    early, late = GradManager().attach(x), GradManager().attach(x)
    with early, no_grad():
        with late:
            assert is_grad_enabled()  # a recorder that records
            assert (recorded(early, x), recorded(late, x)) == (False, True)
            with no_grad():
                assert (recorded(early, x), recorded(late, x)) == (False, False)
                with enable_grad():
                    assert (recorded(early, x), recorded(late, x)) == (True, True)
            assert (recorded(early, x), recorded(late, x)) == (False, True)
        assert not is_grad_enabled()


def test_blocks_between_which_a_manager_entered_may_be_left_in_any_order():
    x = tensor([3.0])
    early, late = GradManager().attach(x), GradManager().attach(x)
    outer, inner = no_grad(), no_grad()
    with early:
        outer.__enter__()
        late.record()
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert (recorded(early, x), recorded(late, x)) == (False, False)
        inner.__exit__(None, None, None)
        assert (recorded(early, x), recorded(late, x)) == (True, True)
        outer.__enter__()
        inner.__enter__()
        inner.__exit__(None, None, None)
        late.release()
        assert not recorded(early, x)
        outer.__exit__(None, None, None)
        assert current() is early._tape


@pausing_modes
def test_what_is_released_inside_a_block_stays_released(pausing):
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        inner.record()
        with pausing():
            inner.release()
        assert current() is outer._tape
        outer.backward(x * x)
    assert x.grad.tolist() == [6.0]


@pausing_modes
def test_an_exception_leaves_the_block(pausing):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(LookupError), pausing():
            raise LookupError
        gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_a_block_left_in_another_context_changes_nothing_there():
    """As a generator does that is finalised elsewhere."""
    x = tensor([3.0])
    gm = GradManager().attach(x)
    mode = no_grad()
    inside = contextvars.copy_context()
    with gm:
        inside.run(mode.__enter__)
        tape = current()
        mode.__exit__(None, None, None)
        assert current() is tape


@pausing_modes
def test_a_write_in_place_makes_a_constant(pausing):
    x = tensor([3.0, 4.0])
    gm = GradManager().attach(x)
    with gm:
        with pausing():
            x[0] = 10.0
            x *= 2
        y = x * x
        assert gm._tape.node_id_of(y) is None
    assert x.tolist() == [20.0, 8.0]


def test_a_write_in_place_under_inference_mode_is_a_constant_for_forward_mode_too():
    for mode, known in ((no_grad, True), (inference_mode, False)):
        x = tensor([3.0])
        with forward_level(x):
            y = x * x
            with mode():
                y += x
            level = current().with_paused[0][0]
            assert (level.node_id_of(y) is not None) == known
            if known:
                assert level.node_id_of(y).tolist() == [21.0]


def test_modes_keep_nothing_of_a_released_manager_alive():
    def run():
        x = tensor([3.0])
        gm = GradManager().attach(x)
        alive = [weakref.ref(x), weakref.ref(gm)]
        gm.record()
        set_grad_enabled(False)
        with enable_grad():
            y = x * x
            gm.release()
            del x, gm
            gc.collect()
            assert [ref() for ref in alive] == [None, None]
        assert y.tolist() == [9.0]

    contextvars.Context().run(run)


@pytest.mark.parametrize("inside", [no_grad, enable_grad, inference_mode, lambda: set_grad_enabled(True)])
@pytest.mark.parametrize("outside", [enable_grad, lambda: inference_mode(False), contextlib.nullcontext])
def test_a_recorder_paused_for_another_reason_stays_paused(outside, inside):
    """As inside a Function's forward, which is recorded as one op."""
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def inside_paused():
        with inside():
            assert not recorded(gm, x)
        assert not recorded(gm, x)

    with gm, outside():
        run_in(Context.of(current()).paused(), inside_paused)
        assert recorded(gm, x)


def test_callbacks_compute_as_before_the_recording_whatever_mode_they_use():
    x = tensor([3.0])
    seen = []

    def look(t, g):
        for mode in (enable_grad, no_grad):
            with mode():
                seen.append(len(gm._tape.entries))
                y = t * g
                seen.append(len(gm._tape.entries))
        return g + 0 * y

    gm = GradManager().attach(x, look)
    with gm, enable_grad():
        gm.backward(x * x * x, retain=True)
        assert len(set(seen)) == 1
    assert x.grad.tolist() == [27.0]


# ---------------------------------------------------------------- plain calls


def test_a_plain_call_of_set_grad_enabled_acts_at_once_and_stays():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def run():
        with gm:
            tape = current()
            set_grad_enabled(False)
            assert not recorded(gm, x)
            assert not is_grad_enabled()
            set_grad_enabled(True)
            assert is_grad_enabled()
            assert current() is tape
            set_grad_enabled(False)
        assert not is_grad_enabled()

    contextvars.Context().run(run)
    assert is_grad_enabled()


def test_a_plain_call_of_set_grad_enabled_in_a_block_ends_with_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        with no_grad():
            set_grad_enabled(True)
            assert recorded(gm, x)
            with no_grad():
                set_grad_enabled(True)
                set_grad_enabled(False)
                assert not recorded(gm, x)
            assert recorded(gm, x)
        assert recorded(gm, x)
        with enable_grad():
            set_grad_enabled(False)
            assert not is_grad_enabled()
        assert recorded(gm, x)
        assert is_grad_enabled()


def test_plain_calls_do_not_pile_up():
    def run():
        for k in range(100):
            set_grad_enabled(k % 2 == 0)
            assert is_grad_enabled() == (k % 2 == 0)
        assert len(_modes.get()) == 1

    contextvars.Context().run(run)


def test_a_block_of_set_grad_enabled_restores_what_held_before_the_call():
    def run():
        set_grad_enabled(False)
        with set_grad_enabled(True):
            assert is_grad_enabled()
        assert not is_grad_enabled()
        mode = set_grad_enabled(True)
        assert is_grad_enabled()
        with mode:
            assert is_grad_enabled()
        assert not is_grad_enabled()
        with mode:
            assert is_grad_enabled()
        assert not is_grad_enabled()

    contextvars.Context().run(run)


def test_a_block_of_set_grad_enabled_entered_after_other_modes():
    def run():
        mode = set_grad_enabled(False)
        with enable_grad():
            with mode:
                assert not is_grad_enabled()
            assert is_grad_enabled()
        assert is_grad_enabled()

    contextvars.Context().run(run)


def test_set_grad_enabled_has_no_effect_at_decoration():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        tape = current()

        @set_grad_enabled(False)
        def pausing():
            return recorded(gm, x)

        assert current() is tape
        with no_grad():

            @set_grad_enabled(True)
            def resuming():
                return recorded(gm, x)

            assert not recorded(gm, x)
            assert (pausing(), resuming()) == (False, True)
        assert (pausing(), resuming()) == (False, True)
        assert current() is tape


def test_a_mode_is_a_bool():
    with pytest.raises(TypeError, match=r"set_grad_enabled\(mode\) takes True or False; found int"):
        set_grad_enabled(1)
    with pytest.raises(TypeError, match=r"set_grad_enabled\(mode\) takes True or False; found function"):
        set_grad_enabled(lambda: 1)
    with pytest.raises(TypeError, match=r"inference_mode\(mode\) takes True or False; found str"):
        inference_mode("on")
    assert is_grad_enabled()


# ---------------------------------------------------------------- decorators


DECORATORS = [no_grad, no_grad(), inference_mode, inference_mode(), inference_mode(mode=True)]
decorators = pytest.mark.parametrize("decorate", DECORATORS)


@decorators
def test_decorated_functions(decorate):
    @decorate
    def square(t, *, extra=0.0):
        """Of a number."""
        assert not is_grad_enabled()
        return t * t + extra

    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(square(x, extra=1.0) * x)
    assert x.grad.tolist() == [10.0]
    assert (square.__name__, square.__doc__) == ("square", "Of a number.")
    assert list(inspect.signature(square).parameters) == ["t", "extra"]


@pytest.mark.parametrize("decorate", [enable_grad, enable_grad(), inference_mode(False)])
def test_decorated_functions_that_record(decorate):
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm, no_grad():
        assert decorate(lambda: recorded(gm, x))()
        assert not recorded(gm, x)


def test_a_decorated_method_and_a_decorated_call():
    class Model:
        @no_grad()
        def predict(self, k):
            return is_grad_enabled(), k

        @staticmethod
        @no_grad
        def plain(k):
            return is_grad_enabled(), k

        def __call__(self, k):
            return is_grad_enabled(), k

    assert Model().predict(1) == Model.plain(1) == no_grad(Model())(1) == (False, 1)
    assert no_grad(functools.partial(Model().predict, 2))() == (False, 2)


@decorators
def test_decorated_generators_hold_the_mode_only_while_they_run(decorate):
    seen = []

    @decorate
    def count(n):
        total = 0
        for k in range(n):
            seen.append(is_grad_enabled())
            total += yield k
        seen.append(is_grad_enabled())
        return total

    assert inspect.isgeneratorfunction(count)
    steps = count(2)
    assert next(steps) == 0
    assert is_grad_enabled()
    assert steps.send(10) == 1
    assert is_grad_enabled()
    with pytest.raises(StopIteration) as stopped:
        steps.send(5)
    assert stopped.value.value == 15
    assert seen == [False, False, False]
    assert is_grad_enabled()


def test_generators_of_two_modes_may_alternate():
    @no_grad
    def pausing():
        while True:
            yield is_grad_enabled()

    @enable_grad
    def resuming():
        while True:
            yield is_grad_enabled()

    with no_grad():
        assert [pair for _, pair in zip(range(3), zip(pausing(), resuming(), strict=False), strict=False)] == [
            (False, True)
        ] * 3
        assert not is_grad_enabled()


def test_what_is_thrown_into_a_generator_reaches_it():
    caught = []

    @no_grad
    def stubborn():
        while True:
            try:
                yield "waiting"
            except LookupError as error:
                caught.append((error, is_grad_enabled()))
                yield "caught"
            except StopIteration:
                return "stopped"

    steps = stubborn()
    next(steps)
    error = LookupError()
    assert steps.throw(error) == "caught"
    assert caught == [(error, False)]
    next(steps)
    with pytest.raises(StopIteration) as stopped:
        steps.throw(StopIteration())
    assert stopped.value.value == "stopped"
    steps = stubborn()
    next(steps)
    with pytest.raises(ValueError, match="not caught"):
        steps.throw(ValueError("not caught"))
    assert is_grad_enabled()


def test_a_generator_is_closed_in_its_mode():
    seen = []

    @no_grad
    def tidy():
        try:
            yield
        finally:
            seen.append(is_grad_enabled())

    steps = tidy()
    next(steps)
    steps.close()
    assert seen == [False]
    steps = tidy()
    next(steps)
    del steps
    gc.collect()
    assert seen == [False, False]

    @no_grad
    def ignores():
        with contextlib.suppress(GeneratorExit):
            yield 1
        yield 2

    steps = ignores()
    next(steps)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        steps.close()
    assert is_grad_enabled()


def test_an_exception_in_a_generator_leaves_the_mode():
    @no_grad
    def fails():
        yield 1
        raise LookupError

    steps = fails()
    next(steps)
    with pytest.raises(LookupError):
        next(steps)
    assert is_grad_enabled()


def test_what_a_generator_records_it_goes_on_recording():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    @no_grad
    def recording():
        gm.record()
        yield
        gm.release()
        yield

    steps = recording()
    next(steps)
    assert recorded(gm, x)
    assert current() is gm._tape
    next(steps)
    assert current() is None


@decorators
def test_decorated_coroutines_hold_the_mode_only_while_they_run(decorate):
    seen, turn = [], []

    @decorate
    async def pausing():
        for _ in range(3):
            seen.append(is_grad_enabled())
            await asyncio.sleep(0)
        return "done"

    async def other():
        for _ in range(3):
            turn.append(is_grad_enabled())
            await asyncio.sleep(0)

    async def main():
        direct = pausing()  # by hand, in this very context
        direct.send(None)
        turn.append(is_grad_enabled())
        direct.close()
        found, _ = await asyncio.gather(pausing(), other())
        return found, await pausing()

    assert inspect.iscoroutinefunction(pausing)
    assert asyncio.run(main()) == ("done", "done")
    assert set(seen) == {False}
    assert turn == [True] * 4


def test_a_coroutine_is_cancelled_in_its_mode():
    seen = []

    @no_grad
    async def waits():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(is_grad_enabled())
            raise

    async def main():
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == [False]


@decorators
def test_decorated_async_generators_hold_the_mode_only_while_they_run(decorate):
    seen = []

    @decorate
    async def count(n):
        total = 0
        try:
            for k in range(n):
                seen.append(is_grad_enabled())
                await asyncio.sleep(0)
                seen.append(is_grad_enabled())
                try:
                    total += (yield k) or 0
                except LookupError:
                    total += 100
        finally:
            seen.append(is_grad_enabled())
            await asyncio.sleep(0)
            seen.append(total)

    async def main():
        steps = count(3)
        assert await anext(steps) == 0
        assert is_grad_enabled()
        assert await steps.asend(7) == 1
        assert await steps.athrow(LookupError()) == 2
        await steps.aclose()
        assert seen == [False] * 7 + [107]
        assert is_grad_enabled()
        return [k async for k in count(4)]

    assert inspect.isasyncgenfunction(count)
    assert asyncio.run(main()) == [0, 1, 2, 3]


@pytest.mark.parametrize("decorate", [no_grad(), no_grad, enable_grad(), inference_mode(), inference_mode])
def test_a_decorator_refuses_what_it_cannot_hold_for(decorate):
    class Model:
        pass

    with pytest.raises(TypeError, match=r"decorates functions; .*Model is a class: decorate its methods, or write"):
        decorate(Model)
    with pytest.raises(TypeError, match=r"decorates functions; write @staticmethod above it, not below"):
        decorate(staticmethod(abs))
    assert is_grad_enabled()


@pytest.mark.parametrize("mode", [no_grad, enable_grad, inference_mode, lambda: set_grad_enabled(True)])
def test_a_decorator_refuses_what_cannot_be_called(mode):
    with pytest.raises(TypeError, match=r"decorates functions; found int"):
        mode()(3)
    with pytest.raises(TypeError, match=r"write @classmethod above it, not below"):
        mode()(classmethod(abs))
    assert is_grad_enabled()


# ---------------------------------------------------------------- threads and tasks


def test_modes_hold_in_their_own_thread():
    seen = []

    def other():
        seen.append((is_grad_enabled(), is_inference_mode_enabled()))
        set_grad_enabled(False)
        seen.append(is_grad_enabled())

    with inference_mode():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert is_inference_mode_enabled()
    assert seen == [(True, False), False]
    assert is_grad_enabled()


def test_a_task_inherits_modes_and_keeps_its_own():
    async def child():
        before = is_grad_enabled()
        set_grad_enabled(True)
        await asyncio.sleep(0)
        return before, is_grad_enabled()

    async def main():
        with no_grad():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            assert not is_grad_enabled()
            found = await task
            assert not is_grad_enabled()
        return found

    assert asyncio.run(main()) == (False, True)


def test_one_decorated_function_may_run_in_several_threads():
    entered, leave_now = threading.Event(), threading.Event()
    seen = []

    @no_grad()
    def wait():
        entered.set()
        leave_now.wait()
        seen.append(is_grad_enabled())

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    assert is_grad_enabled()
    assert no_grad(is_grad_enabled)() is False
    leave_now.set()
    thread.join()
    assert seen == [False]


def test_members_of_a_group_pause_and_resume_together():
    x = tensor([3.0])
    one, two = GradManager().attach(x), GradManager().attach(x)
    with one | two:
        groups = current().groups
        with no_grad():
            assert not recorded(one, x)
            two.release()
            with enable_grad():
                assert recorded(one, x)
        assert len(groups[0]) == 2
        assert isinstance(current(), Tape)
        assert recorded(one, x)


# ---------------------------------------------------------------- any order


BLOCKS = {
    "no_grad": (no_grad, False, None),
    "enable_grad": (enable_grad, True, None),
    "set_false": (lambda: set_grad_enabled(False), False, None),
    "set_true": (lambda: set_grad_enabled(True), True, None),
    "inference": (inference_mode, False, True),
    "inference_false": (lambda: inference_mode(False), True, False),
}


def is_to_record(is_manager, modes):
    grad, inference = True, False
    for name in modes:
        _, grad, says = BLOCKS[name]
        inference = inference if says is None else says
    return not inference and (grad or not is_manager)


def started(random, x):
    """Enter a block, a manager or a level, at random; what it is, its name, and the thing itself."""
    kind = random.choice(["block", "manager", "level"], p=[0.6, 0.25, 0.15])
    if kind == "block":
        name = str(random.choice(list(BLOCKS)))
        block = BLOCKS[name][0]()
        block.__enter__()
        return kind, name, block
    if kind == "manager":
        manager = GradManager().attach(x)
        manager.record()
        return kind, "", manager
    level = Forward()
    level.add_dual(x, x.numpy())
    enter_recorders(level)
    return kind, "", level


def ended(kind, thing):
    if kind == "block":
        thing.__exit__(None, None, None)
    elif kind == "manager":
        thing.release()
    else:
        thing.close()
        leave_recorders(thing)


def has_recorded(kind, thing, y):
    return (thing._tape if kind == "manager" else thing).node_id_of(y) is not None


@pytest.mark.parametrize("seed", range(40))
def test_the_open_blocks_decide_which_recorders_record(seed):
    """Managers, levels and blocks entered and left in a random order, against the rule as the module states it."""
    random = np.random.default_rng(seed)
    x = tensor([3.0])
    open_now = []  # in the order they were entered
    for _ in range(60):
        if open_now and random.random() < 0.45:
            kind, _, thing = open_now.pop(random.integers(len(open_now)))
            ended(kind, thing)
        else:
            open_now.append(started(random, x))
        y = x * x
        blocks = [(k, name) for k, (kind, name, _) in enumerate(open_now) if kind == "block"]
        for k, (kind, _, thing) in enumerate(open_now):
            if kind != "block":
                assert has_recorded(kind, thing, y) == is_to_record(
                    kind == "manager", [name for j, name in blocks if j > k]
                )
        assert is_inference_mode_enabled() == (not is_to_record(False, [name for _, name in blocks]))
    for kind, _, thing in [event for event in open_now if event[0] == "block"]:
        ended(kind, thing)
    recorders_left = [(kind, thing) for kind, _, thing in open_now if kind != "block"]
    y = x * x
    assert all(has_recorded(kind, thing, y) for kind, thing in recorders_left)
    for kind, thing in recorders_left:
        ended(kind, thing)
    assert current() is None


# ---------------------------------------------------------------- at the recursion limit


@pytest.mark.parametrize(
    "make", [no_grad, enable_grad, inference_mode, lambda: set_grad_enabled(False), dual_level, detect_anomaly]
)
def test_a_block_at_the_recursion_limit_is_left_or_not_entered(make):
    """It is tried at each depth, from the limit on outwards."""
    x = tensor([2.0])
    left_open = []

    def descend():
        with contextlib.suppress(RecursionError):
            descend()
        with contextlib.suppress(RecursionError), make():
            x * x
        left_open.append(not is_grad_enabled() or is_inference_mode_enabled())
        left_open[-1] |= current() is not None or is_anomaly_enabled()

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 80)
    try:
        with contextlib.suppress(RecursionError):
            descend()
    finally:
        sys.setrecursionlimit(before)
    assert len(left_open) > 20
    assert not any(left_open)
