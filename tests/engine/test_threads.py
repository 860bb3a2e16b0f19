"""Threads, asyncio tasks and contexts: each records for itself; what is shared stays whole."""

import asyncio
import contextvars
import gc
import os
import signal
import sys
import sysconfig
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import copies, in_a_thread, in_threads, pop_grad

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, get_backwarding_grad_manager, manager, no_grad, optim, tensor
from gradmgr._engine import write_lock
from gradmgr._engine.cleanup import owns
from gradmgr._engine.context import leave_recorders
from gradmgr._engine.turn_lock import new_turn_lock

# Free-threaded CPython lets a new thread inherit the context of the one that started it.
INHERITS = bool(getattr(sys.flags, "thread_inherit_context", 0))
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


# ---------------------------------------------------------------- a recording belongs to its thread


@pytest.mark.skipif(INHERITS, reason="here a thread inherits what was recording when it was started")
def test_another_thread_does_not_record():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        c = in_a_thread(lambda: x * x)
        gm.backward(c * x)
    assert x.grad.tolist() == [9.0]


@pytest.mark.skipif(not INHERITS, reason="here a thread starts with an empty context")
def test_another_thread_inherits_what_was_recording_when_it_was_started():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    results = []
    with gm:
        worker = threading.Thread(target=lambda: results.append(x * x))
        worker.start()
        worker.join()
        gm.backward(results[0] * x)
    assert x.grad.tolist() == [27.0]


def test_a_recording_started_in_another_thread_is_not_this_ones():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    started, ended = threading.Event(), threading.Event()

    def record():
        with gm:
            started.set()
            ended.wait()

    worker = threading.Thread(target=record)
    worker.start()
    started.wait()
    y = x * x
    assert not gradmgr._engine.context.is_tracked(y)
    with pytest.raises(RuntimeError, match="already"):
        gm.record()  # though in another thread, it does record
    ended.set()
    worker.join()


def test_no_grad_holds_in_its_own_thread_only():
    x = tensor([3.0])
    quiet, done = threading.Event(), threading.Event()

    def be_quiet():
        with no_grad():
            quiet.set()
            done.wait()

    worker = threading.Thread(target=be_quiet)
    worker.start()
    quiet.wait()
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * x)
    done.set()
    worker.join()
    assert x.grad.tolist() == [6.0]


def test_the_backwarding_manager_is_that_of_its_own_thread_only():
    x = tensor([3.0])
    seen = []

    def look(t, grad):
        seen.append(get_backwarding_grad_manager())
        seen.append(in_a_thread(get_backwarding_grad_manager))
        return grad

    gm = GradManager().attach(x, look)
    with gm:
        gm.backward(x * x)
    assert seen[0] is gm
    assert INHERITS or seen[1] is None


# ---------------------------------------------------------------- many threads, shared parameters


def test_each_thread_with_its_manager_over_a_shared_leaf(quick_switches):
    shared = tensor([2.0, 3.0])

    def work(k):
        own = tensor([float(k), 1.0])
        gm = GradManager().attach([shared, own])
        for _ in range(50):
            with gm:
                y = own
                for _ in range(10):
                    y = y * shared + own * 0.0
                gm.backward(y.sum())
        return own.grad.tolist()

    count = 8
    results = in_threads(count, work)
    assert results == [[50 * 2.0**10, 50 * 3.0**10]] * count
    expected = [50 * 10 * 2.0**9 * sum(range(count)), 50 * 10 * 3.0**9 * count]
    assert shared.grad.tolist() == expected


@pytest.mark.parametrize("shape", [(), (1,), (64,), (4000,)])
def test_no_update_of_a_shared_grad_is_lost(shape, quick_switches):
    shared = tensor(np.ones(shape))
    count, each = 16, 100

    def work(k):
        gm = GradManager().attach(shared)
        for _ in range(each):
            with gm:
                gm.backward((shared * float(k + 1)).sum())

    in_threads(count, work)
    total = each * count * (count + 1) / 2
    assert np.array_equal(shared.grad.numpy(), np.full(shape, total))


def test_no_update_is_lost_where_the_grad_is_seen_from_elsewhere_too(quick_switches):
    shared = tensor(np.zeros(500))
    views = []

    def work(k):
        gm = GradManager().attach(shared)
        for _ in range(100):
            with gm:
                gm.backward((shared * 1.0).sum())
            views.append(shared.grad.numpy())

    in_threads(8, work)
    assert (shared.grad.numpy() == 800.0).all()
    assert all((view == view[0]).all() for view in views)  # none was written to half-way


def test_second_order_in_many_threads_over_a_shared_leaf(quick_switches):
    shared = tensor([2.0])

    def work(k):
        own = tensor([float(k + 1)])
        outer, inner = GradManager().attach(own), GradManager().attach(own)
        for _ in range(20):
            with outer, inner:
                inner.backward(own * own * own * shared)
                first, own.grad = own.grad, None
                outer.backward(first)
            second, own.grad = own.grad, None
            assert second.tolist() == [6 * (k + 1) * 2.0]

    in_threads(6, work)
    assert shared.grad is None


def test_a_group_in_each_of_many_threads_over_a_shared_leaf(quick_switches):
    shared = tensor([3.0])

    def work(k):
        a, b = GradManager().attach(shared), GradManager().attach(shared)
        for _ in range(20):
            with a | b:
                y = shared * shared
                a.backward(y)
                b.backward(y)

    in_threads(6, work)
    assert shared.grad.tolist() == [6 * 20 * 2 * 6.0]


def test_attaching_a_shared_tensor_to_one_manager_from_many_threads(quick_switches):
    gm = GradManager()
    tensors = [tensor([float(k)]) for k in range(400)]

    def work(k):
        for t in tensors[k::8]:
            gm.attach(t)

    in_threads(8, work)
    assert {id(t) for t in gm.attached_tensors()} == {id(t) for t in tensors}


@pytest.mark.parametrize("size", [8, 50_000])
def test_writing_in_place_from_many_threads_corrupts_no_tape(size, quick_switches):
    """Hogwild: which value a thread sees is chance; that its derivative is taken at that value is not."""
    shared = tensor(np.zeros(size))
    stop = threading.Event()

    def write(k):
        while not stop.is_set():
            shared.__iadd__(1.0)

    def read():
        own = tensor(np.ones(size))
        gm = GradManager().attach(own)
        wrong = 0
        for _ in range(1000):
            own.grad = None
            with gm:
                y = own * shared  # the derivative by own is the value of shared that was used, and so is y
                seen = y.numpy().copy()
                gm.backward(y.sum())
            wrong += not np.array_equal(own.grad.numpy(), seen)
        return wrong

    def work(k):
        if k:
            write(k)
            return 0
        try:
            return read()
        finally:
            stop.set()

    assert in_threads(3, work)[0] == 0
    assert shared.shape == (size,)


def test_learning_by_many_threads_that_write_to_one_parameter(quick_switches):
    w = tensor(np.zeros(4))
    target = np.array([1.0, -2.0, 3.0, 0.5])

    def work(k):
        mine = []
        gm = GradManager().attach(w, lambda t, grad: (mine.append(grad), grad)[1])
        for _ in range(400):
            with gm:
                gm.backward(((w - target) ** 2).sum())
            w.__isub__(0.02 * mine.pop())

    in_threads(4, work)
    np.testing.assert_allclose(w.numpy(), target, atol=1e-3)


# ---------------------------------------------------------------- one recording, many workers


def test_workers_that_carry_the_context_record_into_one_tape():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with ThreadPoolExecutor(4) as pool, gm:
        parts = copies(pool, lambda k: (x * float(k)).sum(), 10)
        gm.backward(sum(parts))
    assert x.grad.tolist() == [45.0, 45.0]


def test_workers_record_while_dead_work_is_swept(quick_switches):
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)

    def work(k):
        total = x * 0.0
        for j in range(300):
            gnp.exp(gnp.exp(x * 0.1))  # dropped
            total = total + x * float((j + k) % 5)
        return total.sum()

    with ThreadPoolExecutor(8) as pool, gm:
        parts = copies(pool, work, 8)
        assert len(gm._tape.entries) < 8 * 300 * 5  # some of it was swept
        gm.backward(sum(parts))
    assert x.grad.tolist() == [8 * 600.0] * 2


def test_workers_attach_and_detach_while_others_look_at_the_history(quick_switches):
    x = tensor([1.0, 2.0])
    gm = GradManager(with_stack=True).attach(x)

    def work(k):
        for _ in range(20):
            own = tensor([1.0, 1.0])
            gm.attach(own, callbacks=lambda t, grad: grad)
            y = gradmgr.checkpoint(lambda a, own=own: a * own * x, x * 1.0)
            y.register_hook(lambda grad: None)
            assert y.grad_fn.next_functions
            assert "checkpoint" in gm.summary()
            assert gm.explain(own)
            gm.detach(own)

    for _ in range(5):
        with ThreadPoolExecutor(3) as pool, gm:
            copies(pool, work, 3)
            gm.backward((x * x).sum())
        assert x.grad.tolist() == [2.0, 4.0]
        x.grad = None


def test_workers_record_for_every_manager_that_was_recording():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with ThreadPoolExecutor(4) as pool, outer, inner:
        parts = copies(pool, lambda k: x * x * x * float(k), 4)
        inner.backward(sum(parts))
        first, x.grad = x.grad, None
        outer.backward(first)
    assert x.grad.tolist() == [18.0 * 6]


def test_what_a_worker_records_itself_stays_its_own():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    def work(k):
        own = tensor([5.0])
        mine = GradManager().attach(own)
        mine.record()  # and is not released: the context goes, and the recording with the manager
        mine.backward(own * own * x)
        return own.grad

    with ThreadPoolExecutor(2) as pool, gm:
        grads = copies(pool, work, 2)
        y = x * x
        gm.backward([y, *grads])  # the workers' managers came after gm, which recorded their backward: 10 x
    assert x.grad.tolist() == [6.0 + 2 * 10.0]


def test_backward_may_run_in_a_worker():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    y = x * x
    in_a_thread(gm.backward, y)
    assert x.grad.tolist() == [6.0]
    with gm:  # the inert tape is gone with the next recording
        gm.backward(x * 10)
    assert x.grad.tolist() == [16.0]


# ---------------------------------------------------------------- released elsewhere


def test_a_manager_released_in_another_thread_leaves_an_inert_tape():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    known = x * x
    in_a_thread(gm.release)
    with pytest.raises(RuntimeError, match="idle"):
        gm.backward(known)
    y = x * x * known  # what stands as current notes nothing and does no harm
    y += 1
    y[0] = x[0]
    assert y.tolist() == [3.0]
    assert not gradmgr._engine.context.is_tracked(y)
    assert np.asarray(y).tolist() == [3.0]
    with gm:
        gm.backward(x * known)
    assert x.grad.tolist() == [9.0]


def test_an_inert_tape_holds_nothing():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    tape = gm._tape
    in_a_thread(gm.release)
    for _ in range(1000):
        x * x
    assert len(tape.entries) == 0
    assert not tape.leaf_ids
    assert not tape.leaves
    gm.record()
    gm.release()


def test_an_outer_manager_released_in_another_thread():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    outer.record()
    with inner:
        y = x * x
        in_a_thread(outer.release)
        inner.backward(y * x)
        assert x.grad.tolist() == [27.0]


def test_an_inner_manager_released_in_another_thread():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        inner.record()
        y = x * x
        in_a_thread(inner.release)
        outer.backward(y * x)
    assert x.grad.tolist() == [27.0]


def test_a_manager_dropped_in_another_thread():
    x = tensor([3.0])
    holder = [GradManager().attach(x)]
    holder[0].record()
    y = x * x
    in_a_thread(holder.clear)
    assert not gradmgr._engine.context.is_tracked(y)
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * y)
    assert x.grad.tolist() == [9.0]


class Cycle:
    """An object that only the collector frees, and with it a manager that records."""

    def __init__(self, gm):
        self.itself = self
        self.gm = gm


def test_the_collector_ends_a_recording_wherever_it_runs(no_cyclic_collector, monkeypatch):
    x = tensor([3.0])
    left = []
    monkeypatch.setattr(manager, "leave_recorders", lambda *gone: left.extend(gone) or leave_recorders(*gone))
    gm = GradManager().attach(x)
    gm.record()
    tape = gm._tape
    cycle = Cycle(gm)
    del gm, cycle
    assert tape.open
    gc.collect()
    assert not tape.open
    # Before Python 3.12 the collector may run while a ContextVar is being set, and must set none.
    assert left == ([tape] if sys.version_info >= (3, 12) else [])
    y = x * x
    assert not gradmgr._engine.context.is_tracked(y)
    with GradManager().attach(x) as again:
        again.backward(x * y)
    assert x.grad.tolist() == [9.0]
    assert gradmgr._engine.context.current() is None


def test_a_manager_that_is_older_than_what_is_collected_is_released_by_the_collector_too(
    no_cyclic_collector, monkeypatch
):
    x = tensor([3.0])
    left = []
    monkeypatch.setattr(manager, "leave_recorders", lambda *gone: left.extend(gone) or leave_recorders(*gone))
    gm = GradManager().attach(x)
    gm.record()
    tape = gm._tape
    gc.collect()  # after which the manager is of the oldest generation
    cycle = Cycle(gm)
    del gm, cycle
    gc.collect(0)
    assert not tape.open
    assert left == ([tape] if sys.version_info >= (3, 12) else [])  # as above
    with GradManager().attach(x) as again:
        again.backward(x * x)
    assert x.grad.tolist() == [6.0]
    assert gradmgr._engine.context.current() is None


@pytest.mark.slow
def test_the_collector_frees_managers_in_the_middle_of_anything(quick_switches):
    def work(k):
        x = tensor(np.full(3, float(k)))
        for j in range(3000):
            gm = GradManager().attach(x)
            gm.record()
            cycle = Cycle(gm)
            del gm, cycle
            if j % 50 == 0:
                gc.collect()

            def gradient():
                own = GradManager().attach(tensor(2.0))
                with own, no_grad():
                    x * x
                with GradManager().attach(x) as again:
                    again.backward((x * x).sum())

            contextvars.copy_context().run(gradient)
            assert pop_grad(x).tolist() == [2.0 * k] * 3
        gc.collect()
        with GradManager():  # where nothing is left to be freed
            pass
        return gradmgr._engine.context.current()

    assert in_threads(3, lambda k: contextvars.copy_context().run(work, k)) == [None] * 3


def test_a_manager_whose_last_reference_goes_leaves_nothing_current():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    gm.record()
    del gm
    assert gradmgr._engine.context.current() is None


# ---------------------------------------------------------------- serialised backward


def most_at_once(count):
    """How many of `count` threads were inside their backward at once."""
    lock = threading.Lock()
    inside, most = 0, 0

    def linger(t, grad):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1
        return grad

    def work(k):
        x = tensor([3.0])
        gm = GradManager().attach(x, linger)
        with gm:
            gm.backward(x * x)
        assert x.grad.tolist() == [6.0]

    in_threads(count, work)
    return most


def test_backward_runs_in_several_threads_at_once():
    assert most_at_once(4) > 1


def test_backward_is_serialised_where_multithreading_is_disabled():
    gradmgr.set_multithreading_enabled(False)
    try:
        assert most_at_once(4) == 1
    finally:
        gradmgr.set_multithreading_enabled(True)
    assert most_at_once(4) > 1


def test_multithreading_is_disabled_for_the_time_of_a_with_block():
    with gradmgr.set_multithreading_enabled(False):
        assert most_at_once(4) == 1
    assert most_at_once(4) > 1
    with pytest.raises(LookupError), gradmgr.set_multithreading_enabled(False):
        raise LookupError
    assert most_at_once(4) > 1


def test_a_backward_that_fails_lets_the_next_one_begin_where_multithreading_is_disabled():
    def fail(t, grad):
        raise LookupError

    x = tensor([3.0])
    gm = GradManager().attach(x, fail)
    with gradmgr.set_multithreading_enabled(False):
        with gm, pytest.raises(LookupError):
            gm.backward(x * x)
        assert most_at_once(2) == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no way here to interrupt a thread that waits")
def test_ctrl_c_while_waiting_for_another_backward_leaves_the_manager_reusable():
    x, other = tensor([3.0]), tensor([5.0])
    inside, go_on = threading.Event(), threading.Event()

    def hold(t, grad):
        inside.set()
        go_on.wait()
        return grad

    def work():
        holder = GradManager().attach(other, hold)
        with holder:
            holder.backward(other * other)

    def interrupt():
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    gm = GradManager().attach(x)
    with gradmgr.set_multithreading_enabled(False):
        threads = [threading.Thread(target=work), threading.Thread(target=interrupt)]
        threads[0].start()
        inside.wait()
        with gm:
            y = x * x
            threads[1].start()
            try:
                with pytest.raises(KeyboardInterrupt):
                    gm.backward(y)
            finally:
                go_on.set()
                for thread in threads:
                    thread.join()
        assert get_backwarding_grad_manager() is None
        assert x.grad is None
        with gm:
            gm.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_a_backward_inside_a_callback_is_no_deadlock_where_multithreading_is_disabled():
    x, p = tensor([3.0]), tensor([5.0])
    other = GradManager().attach(p)

    def callback(t, grad):
        with other:
            other.backward(p * p)
        return grad

    gm = GradManager().attach(x, callback)
    gradmgr.set_multithreading_enabled(False)
    try:
        with gm:
            gm.backward(x * x)
    finally:
        gradmgr.set_multithreading_enabled(True)
    assert (x.grad.tolist(), p.grad.tolist()) == ([6.0], [10.0])


# ---------------------------------------------------------------- asyncio


def test_a_task_inherits_what_was_recording_when_it_was_made():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def part(k):
        await asyncio.sleep(0)
        return x * float(k)

    async def main():
        with gm:
            parts = await asyncio.gather(*[part(k) for k in range(5)])
            gm.backward(sum(parts))

    asyncio.run(main())
    assert x.grad.tolist() == [10.0]


def test_work_handed_to_a_thread_by_a_task_is_recorded_with_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def main():
        with gm:
            y = await asyncio.to_thread(lambda: x * x)
            gm.backward(y * x)

    asyncio.run(main())
    assert x.grad.tolist() == [27.0]


def test_a_task_does_not_record_for_a_manager_entered_after_it_was_made():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def square(started):
        await started.wait()
        return x * x

    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(square(started))
        await asyncio.sleep(0)
        with gm:
            started.set()
            gm.backward((await task) * x)

    asyncio.run(main())
    assert x.grad.tolist() == [9.0]


def test_what_a_task_records_itself_stays_its_own():
    shared = tensor([2.0])

    async def train(k, results):
        own = tensor([float(k)])
        gm = GradManager().attach([own, shared])
        with gm:
            y = own
            for _ in range(3):
                y = y * shared
                await asyncio.sleep(0)  # the others go on meanwhile
            gm.backward(y)
        results[k] = own.grad.tolist()

    async def main():
        results = {}
        async with asyncio.TaskGroup() as group:
            for k in range(4):
                group.create_task(train(k, results))
        assert gradmgr._engine.context.current() is None
        return results

    assert asyncio.run(main()) == {k: [8.0] for k in range(4)}
    assert shared.grad.tolist() == [12.0 * (0 + 1 + 2 + 3)]


def test_a_recording_begun_in_a_task_is_not_that_of_the_one_that_made_it():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def child(begun, done):
        with gm:
            begun.set()
            await done.wait()

    async def main():
        begun, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(child(begun, done))
        await begun.wait()
        y = x * x
        assert not gradmgr._engine.context.is_tracked(y)
        done.set()
        await task

    asyncio.run(main())


def test_a_task_that_outlives_the_recording_it_inherited_has_an_inert_tape():
    x = tensor([3.0])
    gm, late = GradManager().attach(x), GradManager().attach(x)

    async def child(ended):
        before = x * x
        await ended.wait()
        y = before * x
        assert not gradmgr._engine.context.is_tracked(y)
        with late:
            late.backward(x * before)
        return y.tolist()

    async def main():
        ended = asyncio.Event()
        with gm:
            task = asyncio.create_task(child(ended))
            await asyncio.sleep(0)
        ended.set()
        return await task

    assert asyncio.run(main()) == [27.0]
    assert x.grad.tolist() == [9.0]


def test_second_order_in_tasks():
    async def work(k):
        x = tensor([float(k)])
        outer, inner = GradManager().attach(x), GradManager().attach(x)
        with outer:
            await asyncio.sleep(0)
            with inner:
                y = x * x * x
                await asyncio.sleep(0)
                inner.backward(y)
            first, x.grad = x.grad, None
            await asyncio.sleep(0)
            outer.backward(first)
        return x.grad.tolist()

    async def main():
        return await asyncio.gather(*[work(k) for k in range(5)])

    assert asyncio.run(main()) == [[6.0 * k] for k in range(5)]


def test_a_cancelled_task_releases_its_recording():
    x = tensor([3.0])
    gm = GradManager().attach(x)

    async def child():
        with gm:
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with gm:
            gm.backward(x * x)

    asyncio.run(main())
    assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("retain", [False, True])
def test_workers_that_still_record_do_not_disturb_backward(retain, quick_switches):
    x = tensor(np.ones(3))
    for _ in range(10):
        gm = GradManager().attach(x)
        stop = threading.Event()

        def work(stop=stop):
            while not stop.is_set():
                x * 2 * x  # dropped at once, so that sweeps come

        with gm:
            workers = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(2)]
            for worker in workers:
                worker.start()
            try:
                y = x * 1
                for _ in range(100):
                    y = y * x
                gm.backward(y.sum(), retain=retain)
            finally:
                stop.set()
                for worker in workers:
                    worker.join()
        assert x.grad.tolist() == [101.0] * 3
        x.grad = None


def test_one_no_grad_may_be_entered_in_several_threads():
    shared = no_grad()
    x = tensor([3.0])
    gm = GradManager().attach(x)
    tracked = []
    entered, left = threading.Event(), threading.Event()

    def other():
        with shared:
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    with gm, no_grad():
        with shared:
            thread.start()
            entered.wait()
        tracked.append(gm._tape.node_id_of(x * x) is not None)
        left.set()
        thread.join()
        tracked.append(gm._tape.node_id_of(x * x) is not None)
    assert tracked == [False, False]


@pytest.mark.skipif(FREE_THREADED, reason="without the GIL writes copy while any other thread runs")
def test_a_thread_that_recorded_once_does_not_make_writes_copy():
    x = tensor(np.zeros(1000))

    def once():
        with GradManager().attach(tensor([1.0])):
            pass
        finished.set()
        stop.wait()

    finished, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=once)
    thread.start()
    finished.wait()
    try:
        place = x._array.__array_interface__["data"][0]
        x[0] = 1.0
        assert x._array.__array_interface__["data"][0] == place
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------- fork


def _while_writing(amid):
    """Be in another thread where a tensor is written; that is over soon, so that a fork can wait for it."""
    with write_lock.lock:
        amid(0.02)


def _in_the_only_backward(amid):
    x = tensor([3.0])
    with GradManager().attach(x, callbacks=lambda t, grad: (amid(), grad)[1]) as gm:
        gm.backward(x * x)


def _while_captured(amid):
    gradmgr.compile(lambda x: (amid(), x * 2)[1])(tensor([3.0]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize("work", [_while_writing, _in_the_only_backward, _while_captured])
def test_a_child_process_waits_for_no_thread_of_its_parent(work):
    reached, forked, thresholds = threading.Event(), threading.Event(), gc.get_threshold()

    def amid(seconds=10.0):
        reached.set()
        forked.wait(seconds)

    def train():
        x = tensor([3.0])
        with GradManager().attach(x) as gm:
            gm.backward(x * x)
        step = gradmgr.compile(lambda x: x * 2)
        results = [step(x).item() for _ in range(3)]
        found = x.grad.item(), *results, "variant for" in step.explain(), gc.get_threshold()
        return found == (6.0, 6.0, 6.0, 6.0, True, thresholds)

    with gradmgr.set_multithreading_enabled(False):
        thread = threading.Thread(target=work, args=(amid,))
        thread.start()
        reached.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of a fork beside threads
            child = os.fork()
        if child == 0:
            signal.alarm(5)  # which ends a process that waits for ever
            os._exit(not train())
        status = os.waitpid(child, 0)[1]
        forked.set()
        thread.join()
    assert status == 0
    assert train()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_child_process_forked_amid_a_step_of_another_thread_steps_the_same_optimiser():
    within, forked = threading.Event(), threading.Event()

    class Slow(optim.SGD):
        def _recorded_calls(self):  # called with the optimiser's lock, without the other
            within.set()
            forked.wait(10)
            return super()._recorded_calls()

    w = tensor([1.0, 2.0])
    w.grad = tensor([1.0, 1.0])
    optimizer = Slow([w], lr=0.5, momentum=0.5, differentiable=True)

    def step():
        with GradManager().attach(w):
            optimizer.step()

    thread = threading.Thread(target=step)
    thread.start()
    assert within.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of a fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(5)  # which ends a process that waits for ever
        optimizer.step()
        optimizer.step()
        found = w.tolist(), optimizer.state_dict()["state"][0]["step"]
        os._exit(found != ([-0.25, 0.75], 2))  # two steps of its own: 0.5 and then 0.5 * 1.5
    status = os.waitpid(child, 0)[1]
    forked.set()
    thread.join()
    assert status == 0
    assert w.tolist() == [0.5, 1.5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_lock_that_the_forking_thread_holds_stays_its_own_in_the_child_process():
    lock = new_turn_lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(not owns(lock))
        assert os.waitpid(child, 0)[1] == 0
