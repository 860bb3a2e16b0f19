"""The suite `compiled`: programs of `train` and `derivative` under `gradmgr.compile`, and what compiling costs."""

from __future__ import annotations

from collections.abc import Iterator

from bench._measure import Pace, Table
from bench.compiled import costs, speed


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks by title. Derivatives come after steps: for them JAX computes in float64."""
    yield from speed.steps(pace, threads, only)
    yield from speed.derivatives(pace, threads, only)
    yield from costs.tables(pace, threads, only)
