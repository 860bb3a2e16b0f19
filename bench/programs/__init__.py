"""The suite `programs`: programs of many fields, as people write them, each in gradmgr and in PyTorch eager."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench._measure import Answer, Contestant, Pace, Row, Table, Verdict, always, quartiles_of, race, ratio
from bench.layers import torch
from bench.programs import inference, learning, physics, vision
from bench.programs.program import Program, Step

PROGRAMS: Sequence[Callable[[], Program]] = (
    vision.bundle_adjustment,
    vision.registration,
    vision.resnet,
    learning.matrix_factorisation,
    learning.vae,
    learning.nano_gpt,
    learning.maml,
    inference.gaussian_process,
    inference.gaussian_process_by_slogdet,
    inference.kalman_filter,
    inference.hmc,
    physics.n_body,
    physics.neural_ode,
    physics.tensor_network,
)
_EACH, _ALL = 1.0, 0.7  # at most, over PyTorch: every program, and their geometric mean
_STEPS = 3  # that are compared: a wrong gradient shows in the next loss


def contestants(program: Program, threads: int) -> list[Contestant]:
    """Return PyTorch, where it is installed, and gradmgr."""
    there = torch(threads)
    ours = _contestant("gradmgr", program.here)
    return [ours] if there is None else [_contestant("PyTorch", lambda: program.in_torch(there)), ours]


def _contestant(name: str, made: Callable[[], Step]) -> Contestant:
    timed = made()

    def run(n: int) -> None:
        for _ in range(n):
            timed()

    def answer() -> Answer:
        step = made()
        return [_array(part) for _ in range(_STEPS) for part in step()]

    return Contestant(name, always(run), answer)


def _array(value: Any) -> Any:
    value = value.detach() if hasattr(value, "detach") else value
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def measured(program: Program, pace: Pace, threads: int) -> Row:
    """Measure a row of the table."""
    times = race(program.label, contestants(program, threads), pace)
    first = next(iter(times))
    cells = {"µs": statistics.median(times[first]) * 1e6}
    if first == "gradmgr":
        return Row(program.label, cells)
    cells["gradmgr"] = ratio(times, "gradmgr", first)
    verdict = Verdict(f"gradmgr / {first}", cells["gradmgr"], _EACH)
    return Row(program.label, cells, (verdict,), {"gradmgr": quartiles_of(times, "gradmgr", first)})


def tables(
    pace: Pace, threads: int, only: str = "", programs: Sequence[Callable[[], Program]] = PROGRAMS
) -> Iterator[Table]:
    """Measure the programs; `only` picks by the table's title or, of its rows, by label."""
    title = "Programs"
    chosen = [p for p in (made() for made in programs) if only.lower() in f"{title} {p.label}".lower()]
    rows = [measured(program, pace, threads) for program in chosen]
    ratios = [row.cells["gradmgr"] for row in rows if "gradmgr" in row.cells]
    if len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        verdicts = (Verdict("gradmgr / PyTorch", mean, _ALL),)
        rows.append(Row("geometric mean", {"gradmgr": mean}, verdicts if len(ratios) == len(programs) else ()))
    if rows:
        note = "value and gradient, or a step of training; µs of PyTorch, or of gradmgr where that is missing"
        yield Table(title, {"µs": "{:.4g}", "gradmgr": "{:.2f}x"}, rows, note)
