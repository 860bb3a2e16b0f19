"""Whether cost per step stays the same as programs grow: long chains, loops over `x[i]`."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from bench import programs
from bench._measure import Answer, Contestant, Pace, Row, Times, Verdict, always, check_agreement, ratio, rotated
from bench.libraries import Gradmgr, Library, chain_by_hand, gradient_of
from gradmgr import GradManager, tensor

NOTE = "per op or per turn of the loop, at n and at N; growth is N's cost over n's, 1 where time is linear"
COLUMNS = {
    "n µs": "{:.3g}",
    "N µs": "{:.3g}",
    "growth": "{:.2f}x",
    "NumPy N µs": "{:.3g}",
    "over NumPy": "{:.2f}x",
    "torch N µs": "{:.3g}",
}

# What one run of a program gives: seconds of each of its parts.
Parts = dict[str, float]
Program = Callable[[int], Parts]

_UNTIMED = always(lambda n: None)  # of contestants whose answers alone are compared


def _measure(programs_by_name: dict[str, Program], lengths: Sequence[int], rounds: int) -> Times:
    """Run every program at every length in turn; seconds per step by "name part length"."""
    times: Times = {}
    for k in range(rounds):
        jobs = [(name, program, n) for name, program in programs_by_name.items() for n in lengths]
        for name, program, n in rotated(jobs, k):
            gc.collect()  # each starts with the same heap; the collector then runs as it likes
            for part, seconds in program(n).items():
                times.setdefault(f"{name} {part} {n}", []).append(seconds / n)
    return times


def _row(label: str, times: Times, part: str, lengths: Sequence[int], target: float | None) -> Row:
    n, large = lengths

    def micro(name: str) -> float:
        return statistics.median(times[name]) * 1e6

    here, here_large = f"gradmgr {part} {n}", f"gradmgr {part} {large}"
    by_hand, torch = f"NumPy {part} {large}", f"PyTorch {part} {large}"
    growth = ratio(times, here_large, here)
    cells = {"n µs": micro(here), "N µs": micro(here_large), "growth": growth}
    if by_hand in times:
        cells |= {"NumPy N µs": micro(by_hand), "over NumPy": ratio(times, here_large, by_hand)}
    if torch in times:
        cells["torch N µs"] = micro(torch)
    verdicts = () if target is None else (Verdict(f"cost per step at {large:,} / at {n:,}", growth, target),)
    return Row(label, cells, verdicts)


# ---------------------------------------------------------------- a long chain


def _chain_here(length: int) -> Parts:
    program = programs.chain(length, both=False)
    x, y, dy = tensor(program.x), tensor(program.y), tensor(program.dy)
    gm = GradManager().attach(x)
    gm.record()
    start = perf_counter()
    z = x
    for _ in range(length):
        z = z * y
    walked = perf_counter()
    gm.backward(z, dy)
    done = perf_counter()
    gm.record()
    z = x
    for _ in range(length):
        z = z * y
    full = perf_counter()
    gm.release()
    empty = perf_counter()
    forward, backward = walked - start, done - walked
    return {"forward": forward, "backward": backward, "both": forward + backward, "release": empty - full}


def _chain_in_numpy(length: int) -> Parts:
    program = programs.chain(length, both=False)
    y = program.y
    start = perf_counter()
    z, held = program.x, []
    for _ in range(length):
        z = z * y
        held.append(z)
    walked = perf_counter()
    g = program.dy
    while held:
        held.pop()
        g = g * y
    done = perf_counter()
    return {"forward": walked - start, "backward": done - walked, "both": done - start}


def chain_rows(lengths: Sequence[int], rounds: int) -> list[Row]:
    """Time a chain of multiplies whose every value the tape holds."""
    program, here = programs.chain(lengths[0], both=False), Gradmgr()
    check_agreement(
        "chain",
        [
            Contestant("NumPy", _UNTIMED, chain_by_hand(program)),
            Contestant("gradmgr", _UNTIMED, lambda: here.arrays(here.chain(program)())),
        ],
    )
    times = _measure({"NumPy": _chain_in_numpy, "gradmgr": _chain_here}, lengths, rounds)
    return [
        _row(f"chain of {lengths[0]:,} and {lengths[1]:,}, forward", times, "forward", lengths, None),
        _row("chain, backward, which releases", times, "backward", lengths, None),
        _row("chain, forward and backward", times, "both", lengths, 1.2),
        _row("chain, release without backward", times, "release", lengths, None),
    ]


# ---------------------------------------------------------------- loops over x[i]


class _Loop:
    """A loop over the elements of x, forward and backward; `body` is the same text for all libraries."""

    def __init__(self, body: Callable[[Any, int], Any]) -> None:
        self.body = body

    def in_torch(self, torch: Any) -> Callable[[int], Answer]:
        def run(length: int) -> Answer:
            x = torch.tensor(_start(length), requires_grad=True)
            z = self.body(x.clone(), length)
            z.backward()
            return [z.detach().numpy(), x.grad.numpy()]

        return run

    def here(self, length: int) -> Answer:
        x = tensor(_start(length))
        gm = GradManager().attach(x)
        with gm:
            z = self.body(x * 1.0, length)
            gm.backward(z)
        return [z.numpy(), gradient_of(x)]


_FACTOR = np.float32(0.75)


def _start(length: int) -> Any:
    return np.linspace(0.5, 1.5, length, dtype=np.float32)


def _read(x: Any, length: int) -> Any:
    total = x[0]
    for k in range(1, length):
        total = total + x[k]
    return total


def _write(x: Any, length: int) -> Any:
    for k in range(1, length):
        x[k] = x[k - 1] * 0.75
        x[k] += 1.0
    return x.sum()


def _read_by_hand(length: int) -> Answer:
    x = _start(length)
    total = _read(x, length)
    g = np.zeros_like(x)
    for k in reversed(range(length)):
        g[k] += 1.0
    return [total, g]


def _write_by_hand(length: int) -> Answer:
    x = _start(length).copy()
    z = _write(x, length)
    g = np.ones_like(x)
    for k in range(length - 1, 0, -1):
        g[k - 1] += g[k] * _FACTOR
        g[k] = 0
    return [z, g]


def _timed(run: Callable[[int], Answer]) -> Program:
    def program(length: int) -> Parts:
        start = perf_counter()
        run(length)
        return {"both": perf_counter() - start}

    return program


def loop_rows(lengths: Sequence[int], libraries: Sequence[Library], rounds: int) -> list[Row]:
    """Time loops that read, and that write, an array element by element."""
    torch = next((lib.torch for lib in libraries if lib.name == "PyTorch"), None)
    rows = []
    for label, body, by_hand in (
        ("total = total + x[k]", _read, _read_by_hand),
        ("x[k] = x[k - 1] * c; x[k] += 1", _write, _write_by_hand),
    ):
        loop = _Loop(body)
        runs: dict[str, Callable[[int], Answer]] = {"NumPy": by_hand, "gradmgr": loop.here}
        if torch is not None:
            runs["PyTorch"] = loop.in_torch(torch)
        contestants = [Contestant(name, _UNTIMED, lambda run=run: run(lengths[0])) for name, run in runs.items()]
        check_agreement(label, contestants)
        times = _measure({name: _timed(run) for name, run in runs.items()}, lengths, rounds)
        rows.append(_row(f"{label}, {lengths[0]:,} and {lengths[1]:,}", times, "both", lengths, 1.2))
    return rows


def rows(
    libraries: Sequence[Library],
    pace: Pace,
    chain_lengths: Sequence[int] = (100_000, 1_000_000),
    loop_lengths: Sequence[int] = (2_500, 10_000),
) -> list[Row]:
    """Measure what grows."""
    return [
        *chain_rows(chain_lengths, pace.long_rounds),
        *loop_rows(loop_lengths, libraries, pace.long_rounds),
    ]
