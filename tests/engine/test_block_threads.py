"""Work in blocks: all of it is done, by any number of threads, and what one block raises is raised."""

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

import gradmgr
from gradmgr._arrays import blocks as module
from gradmgr._arrays.blocks import BLOCK, blocks, run, run_lanes


@pytest.fixture(params=[1, 2, 3])
def threads(request, set_threads):
    set_threads(request.param)
    return request.param


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("each", [1, 1000, BLOCK, 3 * BLOCK])
def test_blocks_cover_the_axis_once_and_are_of_their_size(count, each):
    parts = blocks(count, count * each)
    covered = [k for part in parts for k in range(count)[part]]
    assert covered == list(range(count))
    assert all(len(range(count)[part]) * each <= max(BLOCK, each) for part in parts)


def test_blocks_do_not_depend_on_the_number_of_threads(threads):
    assert blocks(1000, 64 * BLOCK) == [slice(k, k + 15) for k in range(0, 1000, 15)]


def test_every_part_is_done_once(threads):
    a, parts = np.zeros((64, 100)), [slice(k, k + 1) for k in range(64)]

    def work(part):
        a[part] += 1

    run(work, parts)
    np.testing.assert_array_equal(a, 1)


def test_as_many_threads_as_asked_for_take_part(threads):
    together = threading.Barrier(threads, timeout=10)
    seen = set()

    def work(part):
        together.wait()  # passes only when so many threads are inside at once
        seen.add(threading.get_ident())

    run(work, [slice(k, k + 1) for k in range(12)])
    assert len(seen) == threads
    assert threading.get_ident() in seen


def test_what_a_part_raises_is_raised_and_the_rest_is_left(threads):
    done = []

    def work(part):
        if part.start == 5:
            raise ZeroDivisionError("part 5")
        done.append(part.start)

    with pytest.raises(ZeroDivisionError, match="part 5"):
        run(work, [slice(k, k + 1) for k in range(1000)])
    assert len(done) < 1000
    run(done.append, [slice(0, 1)] * 8)  # and the threads go on
    assert done[-8:] == [slice(0, 1)] * 8


def in_parts(work):
    run(lambda part: work(), [slice(k, k + 1) for k in range(12)])


def in_lanes(work):
    run_lanes([[(work,)], [(work,)]], [])


@pytest.mark.parametrize("share", [in_parts, in_lanes])
def test_the_error_of_another_thread_is_freed_by_reference_counting(share, set_threads, no_cyclic_collector):
    set_threads(2)
    failed, here = threading.Event(), threading.get_ident()

    def work():
        if threading.get_ident() == here:
            assert failed.wait(10)
        else:
            failed.set()
            raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        share(work)
    assert failed.is_set()
    assert gc.collect() == 0


def test_blocks_begun_before_the_pool_refuses_are_waited_for(monkeypatch):
    """The pool may end, as another thread asks for another number, when some are at work already."""
    begun, done = threading.Event(), []

    class Ending:
        def submit(self, *given):
            if begun.is_set():
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = pool.submit(*given)
            assert begun.wait(10)
            return future

    def work(part):
        is_helper = threading.current_thread() is not threading.main_thread()
        begun.set()
        if is_helper:
            time.sleep(0.05)
        done.append(part.start)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(module, "_team", SimpleNamespace(size=3, helpers=Ending))
        run(work, [slice(k, k + 1) for k in range(8)])
        assert sorted(done) == list(range(8))


def test_the_error_state_is_that_of_the_caller(threads):
    zeros, parts = np.zeros((64, 10)), [slice(k, k + 1) for k in range(64)]
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        run(lambda part: np.log(zeros[part]), parts)
    with np.errstate(divide="ignore"):  # a warning would be an error
        run(lambda part: np.log(zeros[part]), parts)


def test_calls_from_several_threads_share_the_workers(threads):
    a = np.zeros((4, 64, 10))

    def mine(k):
        def work(part):
            a[k][part] += 1

        for _ in range(50):
            run(work, [slice(i, i + 1) for i in range(64)])

    callers = [threading.Thread(target=mine, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    np.testing.assert_array_equal(a, 50)


def test_the_number_may_change_while_others_compute():
    stop, a = threading.Event(), np.zeros((16, 10))

    def change():
        while not stop.is_set():
            for n in (1, 2, 3):
                gradmgr.set_num_threads(n)

    def work(part):
        a[part] += 1

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(200):
            run(work, [slice(k, k + 1) for k in range(16)])
    finally:
        stop.set()
        changing.join()
        gradmgr.set_num_threads(1)
    np.testing.assert_array_equal(a, 200)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # just what is tried here
def test_a_child_process_makes_threads_of_its_own():
    gradmgr.set_num_threads(2)
    parts = [slice(k, k + 1) for k in range(16)]
    try:
        run(lambda part: None, parts)
        child = os.fork()
        if child == 0:
            done = []
            run(done.append, parts)
            os._exit(0 if sorted(p.start for p in done) == list(range(16)) else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
    finally:
        gradmgr.set_num_threads(1)


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (-2, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_number_of_threads_is_a_positive_integer(given, error):
    with pytest.raises(error, match="set_num_threads takes a number of threads"):
        gradmgr.set_num_threads(given)
    assert gradmgr.get_num_threads() == 1
