"""An exception at any place leaves everything as it was before or as it is afterwards, and nothing behind."""

from __future__ import annotations

import datetime as dt
import functools
import signal
import zlib
from collections.abc import Callable, Iterable

import pytest

from faults.harness import Outcome, Reference, interrupted_at, reference
from faults.programs import PROGRAMS, SCHEDULES

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="a run is limited by a timer of Unix")

# Another tenth of the places each day, all of them in ten days, and then again with another exception.
DAY = dt.datetime.now(dt.UTC).date().toordinal()
ERRORS: tuple[Callable[[str], BaseException], ...] = (MemoryError, KeyboardInterrupt)

READY = [
    name for name in PROGRAMS if name.split()[0] in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "zero_grad")
]

each_program = pytest.mark.parametrize("name", [*READY, *SCHEDULES])


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


@each_program
def test_a_tenth_of_the_places(name: str) -> None:
    start = (DAY + zlib.crc32(name.encode())) % 10 + 1
    places = range(start, uninterrupted(name).places + 1, 10)
    assert_whole(name, (at(name, [k], DAY // 10 + k) for k in places))
