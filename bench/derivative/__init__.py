"""The suite `derivative`: value and gradient of ADBench's and GradBench's programs, against the function alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench._measure import (
    Answer,
    Contestant,
    Pace,
    Row,
    Table,
    Times,
    Verdict,
    always,
    check_agreement,
    quartiles_of,
    race,
    ratio,
)
from bench.derivative import libraries, programs
from bench.derivative.libraries import Library
from bench.derivative.programs import Array, Program

BASE = "NumPy µs"
_Limits = dict[str, float]  # over which library, at most

# What is measured: the program, gradmgr's targets, and which library is too slow for a quick run.
Entry = tuple[Callable[[], Program], _Limits, tuple[str, ...]]
PROGRAMS: tuple[Entry, ...] = (
    (programs.gmm, {BASE: 2.6}, ()),
    (programs.lstm, {"PyTorch": 0.7}, ("autograd",)),
    (programs.logsumexp, {BASE: 2.5}, ()),
    (programs.logsumexp_by_parts, {}, ()),
    (programs.kmeans, {BASE: 3.0}, ()),
    (programs.ode, {"PyTorch": 1.0}, ("autograd",)),
    (lambda: programs.determinant(5), {"PyTorch": 0.6}, ()),
    (lambda: programs.determinant(6), {"PyTorch": 0.6}, ("autograd", "JAX jit")),
)


def raced(program: Program, found: Sequence[Library], pace: Pace) -> Times:
    """Race the libraries' value and gradient against NumPy's value."""
    differentiated = [(library, library.differentiated(program)) for library in found]
    # In full among the libraries; NumPy, which has no gradient, then tells whether one direction is right.
    check_agreement(program.label, [_differentiating(*pair, lambda parts: parts) for pair in differentiated], 1e-7)
    contestants = [_alone(program)]
    contestants += [_differentiating(*pair, lambda parts: _along(program, parts)) for pair in differentiated]
    return race(program.label, contestants, pace)


def measured(program: Program, found: Sequence[Library], pace: Pace, limits: _Limits) -> Row:
    """Measure a row of the table."""
    times = raced(program, found, pace)
    names = [library.name for library in found]
    cells = {BASE: statistics.median(times[BASE]) * 1e6} | {name: ratio(times, name, BASE) for name in names}
    verdicts = tuple(
        Verdict(f"{names[0]} / {base.removesuffix(' µs')}", ratio(times, names[0], base), limit)
        for base, limit in limits.items()
        if base in times
    )
    return Row(program.label, cells, verdicts, {name: quartiles_of(times, name, BASE) for name in names})


def _differentiating(library: Library, run: Callable[[], list[Any]], shown: Callable[[list[Array]], Answer]) -> Any:
    return _contestant(library.name, run, lambda: shown([library.plain(part) for part in run()]))


def _alone(program: Program) -> Contestant:
    function = libraries.numpy_alone(program)
    return _contestant(BASE, lambda: function(*program.parameters), lambda: _expected(program))


def _contestant(name: str, once: Callable[[], Any], answer: Callable[[], Answer]) -> Contestant:
    def run(n: int) -> None:
        for _ in range(n):
            once()

    return Contestant(name, always(run), answer)


# ---------------------------------------------------------------- a direction by difference quotients


def _direction(program: Program) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=a.shape) for a in program.parameters]


def _along(program: Program, parts: Answer) -> Answer:
    """Reduce value, gradients and Hessian's diagonal to the value and what they say of one direction."""
    value, *gradients = parts
    direction = _direction(program)
    slope = sum(np.vdot(g, v) for g, v in zip(gradients, direction, strict=False))
    return [value, slope, np.vdot(gradients[1], direction[0] ** 2)] if program.second else [value, slope]


def _expected(program: Program, step: float = 1e-6) -> Answer:
    """The same of the function alone."""
    function, direction = libraries.numpy_alone(program), _direction(program)
    value, above, below = (
        function(*[a + move * v for a, v in zip(program.parameters, direction, strict=True)])
        for move in (0.0, step, -step)
    )
    slope = (above - below) / (2 * step)
    return [value, slope, _curvature(program)] if program.second else [value, slope]


def _curvature(program: Program) -> Array:
    """Of k-means: twice the number of points nearest to each centroid, along the direction."""
    (centroids,), points = program.parameters, program.constants["points"]
    distances = ((points[:, None, :] - centroids) ** 2).sum(-1)
    counts = np.bincount(distances.argmin(1), minlength=len(centroids))
    return np.vdot(2 * counts[:, None], (_direction(program)[0] ** 2).sum(1, keepdims=True))


# ---------------------------------------------------------------- the table


def _chosen(found: Sequence[Library], slow: Sequence[str], pace: Pace) -> list[Library]:
    """Leave out, in a quick run, the libraries that take seconds."""
    return [library for library in found if pace.long_rounds > 2 or library.name not in slow]


def shortened(pace: Pace, slow: Sequence[str]) -> Pace:
    """Of programs that take long: fewer rounds, of one try."""
    return replace(pace, rounds=pace.long_rounds, tries=1) if slow else pace


def tables(pace: Pace, threads: int, only: str = "", entries: Sequence[Entry] = PROGRAMS) -> Iterator[Table]:
    """Measure the programs; `only` picks by the table's title or, of its rows, by label."""
    title, found = "Derivatives", libraries.installed(threads)
    rows = []
    for made, limits, slow in entries:
        program = made()
        if only.lower() in title.lower() or only.lower() in program.label.lower():
            rows.append(measured(program, _chosen(found, slow, pace), shortened(pace, slow), limits))
    if rows:
        columns = {BASE: "{:.3g}"} | {library.name: "{:.2f}x" for library in found}
        yield Table(title, columns, rows, "value and gradient in float64 over the function alone, in NumPy")
