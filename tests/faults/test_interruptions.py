"""An exception at any place leaves everything as it was before or as it is afterwards, and nothing behind."""

from __future__ import annotations

import datetime as dt
import functools
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import gradmgr
from faults.harness import Outcome, Reference, alarmed, interrupted_at, quiet, reference, what_is_left
from faults.programs import PROGRAMS
from gradmgr import GradManager, distributed, forward_ad, graph, profiler, tensor

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="a run is limited by a timer of Unix")

# Another tenth of the places each day, all of them in ten days, and then again with another exception.
DAY = dt.datetime.now(dt.UTC).date().toordinal()
ERRORS: tuple[Callable[[str], BaseException], ...] = (MemoryError, KeyboardInterrupt)

# Of long programs no more than so many: what all of a tenth takes grows with the square of the number of places, and
# four programs of ninety would take half of the time.
MOST = 200

PARTS = 10  # in which all places of a program are visited

ALARMS = 100
MANY_ALARMS = 10_000
PAIRS = 50  # of each program

each_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture(autouse=True)
def not_connected() -> Iterator[None]:
    """Leave the ranks, which is one here, as other tests expect them: not connected."""
    yield
    if distributed.is_initialized():
        distributed.finalize()


def drawing(name: str) -> np.random.Generator:
    """Return a generator that draws something else each day."""
    return np.random.default_rng([DAY, zlib.crc32(name.encode())])


@functools.cache
def uninterrupted(name: str) -> Reference:
    return reference(PROGRAMS[name])


def assert_whole(name: str, outcomes: Iterable[tuple[str, Outcome]]) -> None:
    """Raise with all that is wrong; each outcome comes with the call that repeats it."""
    wrong = [
        f"{call}: {' then '.join(map(str, outcome.struck))}: {'; '.join(outcome.faults)}"
        for call, outcome in outcomes
        if outcome.faults
    ]
    listed = "\n  ".join(wrong[:20])
    assert not wrong, f"day {DAY}, program {name!r}: {len(wrong)} interrupted runs left something wrong:\n  {listed}"


def at(name: str, places: list[int], kind: int) -> tuple[str, Outcome]:
    error = ERRORS[kind % 2]
    return f"interrupted_at({places}, {error.__name__})", interrupted_at(uninterrupted(name), places, error)


def after(name: str, part: float) -> tuple[str, Outcome]:
    """Send a signal when this part of the time of a run is over."""
    found = uninterrupted(name)
    seconds = max(part * found.seconds, 1e-6)  # 0 would set no timer
    return f"alarmed(after {seconds:.2g} s)", alarmed(found, seconds)


@each_program
def test_a_tenth_of_the_places(name: str) -> None:
    start = (DAY + zlib.crc32(name.encode())) % 10 + 1
    places = range(start, uninterrupted(name).places + 1, 10)
    if len(places) > MOST:
        drawn = drawing(name).choice(places, MOST, replace=False)
        places = sorted(drawn.tolist())
    assert_whole(name, (at(name, [k], DAY // 10 + k // 10) for k in places))


def test_signals_at_random_times() -> None:
    drawn = drawing("signals")
    for name in drawn.choice(list(PROGRAMS), ALARMS).tolist():
        assert_whole(name, [after(name, drawn.random())])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS + 1))
@each_program
def test_all_places(name: str, part: int) -> None:
    """In parts, each a test of its own, since all 25,000 places of a compiled step take 40 minutes."""
    places = range(part, uninterrupted(name).places + 1, PARTS)
    assert_whole(name, (at(name, [k], kind) for k in places for kind in range(2)))


@pytest.mark.slow
@each_program
def test_many_signals_at_random_times(name: str) -> None:
    drawn = drawing(name)
    assert_whole(name, (after(name, drawn.random()) for _ in range(-(-MANY_ALARMS // len(PROGRAMS)))))


@pytest.mark.slow
@each_program
def test_a_second_exception_during_clean_up(name: str) -> None:
    drawn = drawing(name)
    first = drawn.integers(1, uninterrupted(name).places, PAIRS, endpoint=True)
    pairs = [[int(k), int(k + drawn.integers(1, 40))] for k in first]
    outcomes = (at(name, pair, kind) for kind, pair in enumerate(pairs))
    assert_whole(name, (each for each in outcomes if not _struck_all_that_is_called(each[1])))


def _struck_all_that_is_called(outcome: Outcome) -> bool:
    """Tell whether exceptions struck both functions that CPython calls when a manager dies, at their beginnings."""
    entered = [place.code.co_name for place in outcome.struck if place.is_entry]
    return entered == ["__del__", "close_recorders_of"]


# ---------------------------------------------------------------- signals that strike as blocks begin and end

SIGNALS = 500  # for each kind of block; one in 25 came at the first instruction of `__exit__` while that was a function


def blocks() -> dict[str, Callable[[], Any]]:
    """Return what makes the object of a with block. Those that take effect when they are made are not among them."""
    managers = GradManager(), GradManager()
    x = tensor([1.0])
    managers[0].attach(x)
    made_once = gradmgr.no_grad()
    return {
        "a manager": lambda: managers[0],
        "a group": lambda: managers[0] | managers[1],
        "no_grad": gradmgr.no_grad,
        "no_grad, made once": lambda: made_once,
        "enable_grad": gradmgr.enable_grad,
        "inference_mode": gradmgr.inference_mode,
        "a level": forward_ad.dual_level,
        "hooks of saved tensors": lambda: graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        "no hooks of saved tensors": lambda: graph.disable_saved_tensors_hooks("none"),
        "anomaly detection": gradmgr.detect_anomaly,
        "a search for promotions": gradmgr.detect_promotion,
        "a profile": profiler.profile,
        "the handle of a hook": lambda _keeping=managers: x.register_hook(lambda g: g),
    }


@pytest.mark.parametrize("name", blocks())
@pytest.mark.parametrize("is_recording", [False, True])
def test_a_block_is_closed_whenever_a_signal_strikes(name: str, is_recording: bool) -> None:
    make = blocks()[name]
    random = drawing(name)

    def work() -> None:
        with make():
            pass

    def work_while_recording() -> None:
        with GradManager().attach(tensor([1.0])):
            while True:
                work()

    runs = False

    def on_alarm(number: int, frame: Any) -> None:
        if runs:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for _ in range(SIGNALS):
            try:
                with quiet():
                    runs = True
                    # Once more where what the signal raises is lost, as in a function called when an object is freed.
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 4e-5), 0.1)
                    while True:
                        (work_while_recording if is_recording else work)()
            except KeyboardInterrupt:
                runs = False
            assert what_is_left() == []
    finally:
        runs = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- objects that were not made to the end


def ending() -> list[type]:
    """Return the classes of gradmgr that are told when an object is freed."""
    modules = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] == "gradmgr"]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    return sorted((kind for kind in kinds if "__del__" in vars(kind)), key=lambda kind: kind.__qualname__)


def test_an_object_whose_making_failed_is_freed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory runs out before the first attribute is set."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    kinds = ending()
    assert {"GradManager", "_Buffer", "_DiskCopy", "_SpillFile", "_Level"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        made = kind.__new__(kind)
        del made
    assert [str(each.object) for each in said] == []
