"""What all tests share: no test leaves a recorder current; a failed call changes nothing."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import pytest

# NumPy reads it when it is imported. With pytest-xdist there are as many processes as cores, whose further threads
# would wait for one another; and which products oneDNN computes depends on it, so tests mean the same without xdist.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if sys.dont_write_bytecode:  # hundreds of processes that tests start would each compile the package, for half a second
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests send it and wait for it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import guard
import machine
from helpers import assert_no_recorder

import gradmgr
from gradmgr import GradManager, Tensor
from gradmgr._engine import context


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let idle processes of `-n` take tests from busy ones: the default deals them out in parts of unequal length."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what collecting makes from the cyclic garbage collector.

    It is a million objects, which live until the end. Looking at them takes 0.4 seconds, in every one of the thousand
    collections that tests ask for.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        _frozen_modules[0] = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Keep what tests and fixtures imported from the collector, too: after JAX's a collection lasts 0.3 seconds."""
    if len(sys.modules) > _frozen_modules[0] + 100:
        gc.collect()  # garbage must not be kept
        gc.freeze()
        _frozen_modules[0] = len(sys.modules)


_frozen_modules = [sys.maxsize]  # how many there were when objects were kept last; none before tests are collected


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Keep what earlier tests left alive (pytest's records, caches) from the collector, too.

    Towards the end of the suite it made each collection last 1.1 seconds. Between two tests, so that no test's own
    objects are frozen.
    """
    _tests_begun[0] += 1
    if _tests_begun[0] % 500 == 0:
        gc.collect()  # garbage must not be kept
        gc.freeze()


_tests_begun = [0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked native where gradmgr-native is not installed, or does not work."""
    marked = [item for item in items if item.get_closest_marker("native") is not None]
    if marked and machine.MACHINE is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=machine.WHY_NOT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped for lack of gradmgr-native and not marked so: `-m native` would leave it out."""
    report = yield
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if "gradmgr-native" in reason and item.get_closest_marker("native") is None:
        report.outcome = "failed"
        report.longrepr = (
            f"a test that needs gradmgr-native is to be marked by `needs_machine`; this one is not: {reason}"
        )
    return report


@pytest.fixture(autouse=True)
def no_recorder_left() -> Iterator[None]:
    """Fail a test that leaves a recorder current, and mend it so that the next test starts clean."""
    yield
    assert_no_recorder()


def _facts_of_array(t: Tensor | None) -> Any:
    return None if t is None else (id(t), t.shape, t.dtype, t.numpy().strides, t.numpy().tobytes())


def _facts_of_tensor(t: Tensor) -> Any:
    return _facts_of_array(t), _facts_of_array(t.grad)


def _facts_of_manager(gm: GradManager) -> Any:
    tape = gm._tape
    recording = tape is not None and tape.open
    noted = (id(tape), [id(e) for e in tape.entries], {id(t): m for t, m in tape.leaves.items()}) if recording else None
    specs = {
        key: (id(spec), id(spec.tensor()), [id(cb) for cb in spec.callbacks], spec.name)
        for key, spec in gm._attachments._specs.items()
    }
    return recording, noted, list(specs), specs, [id(f) for f in gm._after_backward]


@contextmanager
def _unchanged(managers: Iterable[GradManager], tensors: Iterable[Tensor]) -> Iterator[None]:
    managers, tensors = list(managers), list(tensors)

    def facts() -> Any:
        return (
            [_facts_of_manager(gm) for gm in managers],
            [_facts_of_tensor(t) for t in tensors],
            id(context.current()),
        )

    before = facts()
    yield
    assert facts() == before


@pytest.fixture
def unchanged() -> Callable[[Iterable[GradManager], Iterable[Tensor]], AbstractContextManager[None]]:
    """Return unchanged(managers, tensors): a with block that must leave all of them, and what is current, as before.

    Of a manager: whether it records, its tape entry by entry, its attachments and callbacks. Of a tensor: its
    values and memory layout and the same of its `.grad`, and the `.grad` object's identity.
    """
    return _unchanged


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads as often as the interpreter can, so that a race is met."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the guard of guard.py, which is the CuPy of the program during the test."""
    monkeypatch.setitem(sys.modules, "cupy", guard.cupy)
    for name, module in guard.cupyx_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(guard.ndarray, "copies_to_host", 0)
    monkeypatch.setattr(guard.ndarray, "waits", 0)
    return guard.cupy


@pytest.fixture
def no_cyclic_collector() -> Iterator[None]:
    """Disable the cyclic garbage collector: what a test finds freed was freed by reference counting alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Return gradmgr.set_num_threads; the number is restored afterwards."""
    before = gradmgr.get_num_threads()
    yield gradmgr.set_num_threads
    gradmgr.set_num_threads(before)
