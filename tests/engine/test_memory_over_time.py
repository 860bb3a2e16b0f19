"""Loops over every public feature leave nothing behind: no object, no cycle, no memory, step after step.

The cyclic collector is off, so that everything a step made must be freed by reference counting.
"""

import contextvars
import gc
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import steps
from helpers import each_case
from samples import SAMPLES, Sample, gradients

import gradmgr
from gradmgr import anomaly, forward_ad, function, functional, graph, nn, optim, profiler
from gradmgr.optim import lr_scheduler

# By how many blocks memory may grow while a loop runs, however many its steps: a count of steps is an object of its
# own from 257 on.
A_FEW_BLOCKS = 2

# How often a loop is looked at until memory grows no more: CPython and NumPy keep some of what is freed, of each kind
# up to a number. What leaks grows every time.
TIMES = 60

# Bytes that the process may gain, whatever the number of steps: pages that the C library keeps for what it frees.
A_FEW_PAGES = 1 << 20

STATM = Path("/proc/self/statm")


@pytest.fixture(scope="module")
def frozen_heap() -> Iterator[None]:
    """Switch the cyclic collector off; all there is may be frozen, so that a collection takes no time."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what pytest made while it collected the tests; see conftest.py


def settled_free_lists() -> list[Any]:
    """Bring CPython's lists of freed objects into a state that steps which leave nothing do not change.

    CPython keeps up to 2000 freed tuples of each short length, up to 255 contexts, and some 100 lists, dicts and
    floats, and counts them as allocated. Some come back to another list than they were taken from: a tuple of an
    iterator, as NumPy makes some, is taken from the tens and shortened; `dict()` takes none, but gives one back. So the
    lists of what the collector counts as objects are filled, all but the tens. Those of what it may not count are
    emptied, as long as what is returned lives: else what a step leaves could be taken from them.
    """
    for length in range(1, 11):
        [tuple([0] * length) for _ in range(2100)]  # not (0,) * 1, which is the same tuple again
    for make in (contextvars.Context, list):
        [make() for _ in range(300)]
    return [[make(k) for k in range(number)] for make, number in EMPTIED]


# Makers of objects of whose kind CPython keeps some, and how many are more than it keeps.
EMPTIED = ((lambda k: (k,) * 10, 2100), (lambda k: {"": k}, 300), (float, 300))


def forget_names() -> None:
    """Clear CPython's cache of attributes of types, which holds the names that were looked up, by their addresses.

    NumPy makes such a name anew at each call, as "accumulate" in `cumsum`: up to 4096 of them stay.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.13 on, where there is nothing else for it yet
        sys._clear_type_cache()


def check(step: Callable[[], Any], number: int) -> None:
    """Run a step so many times again and again until memory stands still; nothing may have been left behind.

    What leaves something does so every time. Once may be another thread's, such as that which brings pytest-xdist its
    messages.
    """
    for _ in range(number):
        step()
    gc.collect()
    gc.freeze()
    held_back = settled_free_lists()
    seen: Any = []  # numbers of objects, blocks and objects in cycles
    for k in range(1 + TIMES):
        for _ in range(number):
            step()
        forget_names()
        seen.append((len(gc.get_objects()), sys.getallocatedblocks(), gc.collect()))
        objects, blocks, cycles = np.subtract(seen[-1], (*seen[-2][:2], 0)) if k > 1 else (1, 0, 0)
        if objects == 0 and blocks <= A_FEW_BLOCKS and cycles == 0:
            break
    assert held_back
    assert k < TIMES, seen


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("name", steps.STEPS)
@pytest.mark.usefixtures("frozen_heap")
def test_a_step_leaves_nothing(name: str) -> None:
    check(steps.STEPS[name](), 15)


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="the size of the process is read from Linux's /proc")
@pytest.mark.parametrize("name", steps.STEPS)
@pytest.mark.usefixtures("frozen_heap")
def test_twenty_thousand_steps_need_no_more_memory_than_two_thousand(name: str) -> None:
    step = steps.STEPS[name]()
    for _ in range(2_000):
        step()
    check(step, 15)  # which needs memory itself
    before = resident()
    check(step, 6_000)
    assert resident() - before < A_FEW_PAGES


def resident() -> int:
    """The bytes of memory that the process occupies."""
    return int(STATM.read_text().split()[1]) * 4096


# Public names that are in no step: types of what steps make, and what does nothing again and again.
ELSEWHERE = {
    *("AttachSpec", "BackwardRun", "EventList", "FunctionCtx", "FunctionEvent", "FunctionEventAvg", "Interval", "Node"),
    *("FLOPS", "convolution_library", "keep_freed_memory", "register_einops"),
    "distributed",  # needs ranks: tests/tools/test_allreduce.py
    "interop",  # needs PyTorch or JAX: tests/tools/test_interop.py
    "emit_nvtx",  # needs CuPy; emit_itt, which shares its code, is in a step
    "serialization",  # the module of save and load
}


def public_names() -> Iterator[str]:
    for module in (gradmgr, anomaly, forward_ad, function, functional, graph, nn, optim, lr_scheduler, profiler):
        yield from module.__all__


@pytest.mark.parametrize("name", sorted({*public_names()} - ELSEWHERE))
def test_every_public_name_is_used_in_a_step(name: str) -> None:
    assert re.search(rf"\b{name}\b", Path(steps.__file__).read_text())


# ---------------------------------------------------------------- ops

FIRST = {sample.name: sample for sample in reversed(SAMPLES)}


def check_op(sample: Sample) -> None:
    arrays = sample.make()
    with np.errstate(all="ignore"):
        check(lambda: gradients(sample, arrays), 6)


@pytest.mark.usefixtures("frozen_heap")
@each_case(FIRST.values())
def test_an_op_leaves_nothing(sample: Sample) -> None:
    check_op(sample)


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_heap")
@each_case(SAMPLES)
def test_an_op_leaves_nothing_in_any_case(sample: Sample) -> None:
    check_op(sample)


# ---------------------------------------------------------------- the check itself

held: list[Any] = []


def leave_an_object() -> None:
    held.append([])


def leave_a_cycle() -> None:
    made: list[Any] = []
    made.append(made)


def leave_a_block() -> None:
    held.append(len(held) + 0.5)


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("step", [leave_an_object, leave_a_cycle, leave_a_block])
def test_what_is_left_is_noticed(step: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        check(step, 15)
    held.clear()
