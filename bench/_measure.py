"""Interleaved timing of contestants that must first give the same answer.

In each try every contestant has one short turn, in an order that rotates, so that a slow moment
of the machine falls on all of them. A round is a few tries and counts the best of each contestant,
so that a turn another process broke into does not count. A ratio is taken within a round, and the
median over the rounds is reported. The cyclic collector stays on, as in a user's program.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Answer = Sequence[Any]
Run = Callable[[int], object]
Session = Callable[[], AbstractContextManager[Run]]


@dataclass(frozen=True)
class Pace:
    """How long to measure: rounds of tries of turns of so many seconds; rounds of programs that take seconds."""

    rounds: int
    tries: int
    turn: float
    long_rounds: int


FULL = Pace(rounds=15, tries=7, turn=0.0025, long_rounds=9)
QUICK = Pace(rounds=7, tries=3, turn=0.0015, long_rounds=2)


@dataclass(frozen=True)
class Contestant:
    """One way to do the work of a row.

    Attributes:
        name: the column.
        session: a context that gives run(n), which does the work n times; what entering and leaving cost, such
            as making inputs, is not timed.
        answer: does it once, on inputs of its own, and returns the value and the gradients.
    """

    name: str
    session: Session
    answer: Callable[[], Answer]


def always(run: Run) -> Session:
    """Return the session of work that needs no preparation."""
    return lambda: nullcontext(run)


class WrongAnswerError(Exception):
    """A contestant computes something else than the first one."""


def check_agreement(label: str, contestants: Sequence[Contestant], rtol: float = 1e-4) -> None:
    """Raise unless all contestants give the answer of the first.

    The tolerance is for float32 sums taken in another order.
    """
    expected = contestants[0].answer()
    for contestant in contestants[1:]:
        found = contestant.answer()
        if len(found) != len(expected):
            raise WrongAnswerError(f"{label}: {contestant.name} gives {len(found)} arrays, not {len(expected)}")
        for k, (one, other) in enumerate(zip(expected, found, strict=True)):
            one, other = np.asarray(one), np.asarray(other)
            scale = float(np.abs(one).max(initial=0.0))
            if one.shape != other.shape or not np.allclose(other, one, rtol=rtol, atol=rtol * scale):
                raise WrongAnswerError(f"{label}: array {k} of {contestant.name} differs from {contestants[0].name}'s")


def _seconds(contestant: Contestant, n: int) -> float:
    with contestant.session() as run:
        start = perf_counter()
        run(n)
        return perf_counter() - start


def _repetitions(contestant: Contestant, turn: float) -> int:
    """Find how often the work fits in a turn; the best of three, so that one hiccup does not make it once."""
    _seconds(contestant, 2)  # what only the first call does must not count
    n = 1
    while (spent := min(_seconds(contestant, n) for _ in range(3))) < turn / 2:
        n = max(2 * n, int(0.8 * n * turn / max(spent, 1e-9)))
    return max(1, round(n * turn / spent))


Times = dict[str, list[float]]  # seconds by contestant and round


def race(label: str, contestants: Sequence[Contestant], pace: Pace) -> Times:
    """Check the answers, then time the contestants: seconds per repetition, one number for each round."""
    check_agreement(label, contestants)
    counts = {c.name: _repetitions(c, pace.turn) for c in contestants}
    times: Times = {c.name: [] for c in contestants}
    gc.collect()
    for _ in range(pace.rounds):
        best = dict.fromkeys(times, float("inf"))
        for k in range(pace.tries):
            for c in rotated(contestants, k):
                best[c.name] = min(best[c.name], _seconds(c, counts[c.name]) / counts[c.name])
        for name, seconds in best.items():
            times[name].append(seconds)
    return times


def rotated(items: Sequence[T], k: int) -> list[T]:
    """Return the items in the order of turn k."""
    start = k % len(items)
    return [*items[start:], *items[:start]]


def ratio(times: Times, name: str, base: str) -> float:
    """Return the median over the rounds of how much longer `name` took than `base`."""
    return statistics.median(_ratios(times, name, base))


def quartiles_of(times: Times, name: str, base: str) -> list[float]:
    """Return the quartiles of the ratio over the rounds."""
    ratios = _ratios(times, name, base)
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def _ratios(times: Times, name: str, base: str) -> list[float]:
    return [one / other for one, other in zip(times[name], times[base], strict=True)]


# ---------------------------------------------------------------- what is reported


@dataclass(frozen=True)
class Verdict:
    """A figure with its target."""

    what: str
    value: float
    at_most: float

    @property
    def reached(self) -> bool:
        return self.value <= self.at_most


@dataclass(frozen=True)
class Row:
    """One line: a number for each column, targets, and the quartiles of those numbers that are ratios."""

    label: str
    cells: dict[str, float]
    verdicts: tuple[Verdict, ...] = ()
    quartiles: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows under the same columns; `columns` maps each name to how its numbers are printed."""

    title: str
    columns: dict[str, str]
    rows: list[Row]
    note: str = ""
