"""Training steps and derivatives, compiled: by each level, against eager, PyTorch, torch.compile and JAX."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench import _measure, derivative, train
from bench._measure import Answer, Contestant, Pace, Row, Table, Times, Verdict
from bench.compiled.levels import FUSED, PLAIN, levels
from bench.derivative import libraries
from bench.derivative.programs import Program
from bench.train import here, in_jax, in_torch, suite
from bench.train.models import Model
from gradmgr import errors

EAGER, TORCH, TORCH_COMPILED, JAX = "gradmgr", "PyTorch", "torch.compile", "JAX jit"
_STEPS = 6  # two that are captured, and replays

_PLAIN_OVER_JAX = 1.1  # at most, on every training step
_WORST, _MEAN = 1.2, 0.55  # of the last level's derivatives over JAX: each, and the geometric mean
# By label: of the last level's time over a library's, at most.
FIGURES: Mapping[str, Mapping[str, float]] = {
    "MLP 8x16x3": {JAX: 0.1},
    "MLP 64x256x3": {JAX: 0.65},
    "MLP 128x1024x3": {JAX: 0.9},
    "LSTM cells T=50 B=8 H=64": {JAX: 0.5},
    "GPT block d=32 T=16 B=8": {JAX: 0.45},
    "GPT block d=128 T=64 B=16": {JAX: 0.85},
    "CNN 64x1x28x28": {JAX: 0.4, TORCH: 1.0},  # with oneDNN
    "GMM d=20 k=50 n=1000": {TORCH: 0.7},
    "logsumexp n=1280000": {TORCH: 0.65},
}
# What torch.compile does not take, or takes minutes for: loops of a thousand steps, second derivatives.
_NOT_BY_TORCH = ("LSTM l=2 c=1024", "k-means k=100 n=10000", "determinant n=6")
_LONG_TO_CAPTURE = ("LSTM l=2 c=1024",)  # 183,000 calls, and it is captured four times: left out of a quick run

NOTE = (
    "µs of JAX, or of PyTorch, or of gradmgr eager where others are missing, and every other time over that; the last\n"
    "two: the last level's time over PyTorch's, and over gradmgr's eager. Compiled values equal eager ones bit by bit\n"
    "but for the rounding of products in float32 at level fused"
)


def is_quick(pace: Pace) -> bool:
    """Tell whether what takes a minute to compile is left out."""
    return pace.long_rounds <= 2


# ---------------------------------------------------------------- equal, and replayed


def check_replays(label: str, eager: Contestant, compiled: Sequence[Contestant]) -> str:
    """Raise unless all answers are equal, level fused's but for rounding; mark the label where one is not replayed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _measure.check_agreement(label, [eager, *[one for one in compiled if one.name != FUSED]], rtol=0.0)
        _measure.check_agreement(label, [eager, *[one for one in compiled if one.name == FUSED]])
    refused = [w for w in found if issubclass(w.category, errors.CompileWarning)]
    return f"{label}: NOT REPLAYED" if refused else label


def _exact(name: str, answer: Callable[[], Answer]) -> Contestant:
    return Contestant(name, _measure.always(lambda n: None), answer)


# ---------------------------------------------------------------- rows


def _row(label: str, times: Times, figures: Sequence[Verdict]) -> Row:
    base = next(name for name in (JAX, TORCH, EAGER) if name in times)
    others = [name for name in times if name not in (base, derivative.BASE)]
    last = _last_level()
    cells = {"µs": statistics.median(times[base]) * 1e6} | {name: _measure.ratio(times, name, base) for name in others}
    cells |= {f"last/{name}": _measure.ratio(times, last, name) for name in (TORCH, EAGER) if name in times}
    return Row(label, cells, tuple(figures), {name: _measure.quartiles_of(times, name, base) for name in others})


def _last_level() -> str:
    return list(levels())[-1]


def _judged() -> str:
    """Return the level that the figures are for; none of them is for the plain one."""
    last = _last_level()
    return "" if last == PLAIN else last


def _verdicts(times: Times, figures: Sequence[tuple[str, str, float]]) -> list[Verdict]:
    return [
        Verdict(f"{name} / {base}", _measure.ratio(times, name, base), at_most)
        for name, base, at_most in figures
        if name in times and base in times
    ]


def _table(title: str, rows: Sequence[Row]) -> Table:
    found = {name for row in rows for name in row.cells}
    names = [EAGER, *levels(), TORCH, TORCH_COMPILED, JAX, f"last/{TORCH}", f"last/{EAGER}"]
    return Table(title, {"µs": "{:.4g}"} | {name: "{:.2f}x" for name in names if name in found}, list(rows), NOTE)


def _of_last(label: str) -> list[tuple[str, str, float]]:
    return [(_judged(), base, at_most) for base, at_most in FIGURES.get(label, {}).items()]


# ---------------------------------------------------------------- training steps


def makers(model: Model, threads: int, pace: Pace) -> dict[str, Callable[[], suite.Trainer]]:
    """Return what makes the trainers of a model, by column."""
    found: dict[str, Callable[[], suite.Trainer]] = {EAGER: partial(here.Here, model, threads)}
    found |= {name: partial(here.Compiled, model, threads, how) for name, how in levels().items()}
    if suite.has_model("PyTorch", model):
        found[TORCH] = partial(in_torch.InTorch, model, threads)
        if not is_quick(pace) and in_torch.has_compiler():
            found[TORCH_COMPILED] = partial(in_torch.CompiledTorch, model, threads)
    if suite.has_model("JAX", model):
        found[JAX] = partial(in_jax.InJax, model, threads)
    return found


def step_row(label: str, model: Model, pace: Pace, threads: int) -> Row:
    """Time whole steps of one model: forward, backward, optimiser."""
    made = makers(model, threads, pace)
    eager, *compiled = (_exact(name, partial(_many_steps, made[name])) for name in (EAGER, *levels()))
    shown = check_replays(label, eager, compiled)
    times = _measure.race(label, [suite.contestant(name, make) for name, make in made.items()], pace)
    return _row(shown, times, _verdicts(times, [(PLAIN, JAX, _PLAIN_OVER_JAX), *_of_last(label)]))


def _many_steps(make: Callable[[], suite.Trainer]) -> Answer:
    return suite.trained(make(), _STEPS)


def steps(
    pace: Pace, threads: int, only: str = "", models: Mapping[str, Callable[[], Model]] = train.MODELS
) -> Iterator[Table]:
    """Measure the training steps."""
    title = "Compiled training steps"
    if only.lower() in title.lower():
        yield _table(title, [step_row(label, make(), pace, threads) for label, make in models.items()])


# ---------------------------------------------------------------- derivatives


def contestants_of(program: Program, slow: Sequence[str], threads: int, pace: Pace) -> list[libraries.Library]:
    """Return gradmgr, its levels, and the libraries that can take a program."""
    found = [libraries.Gradmgr(threads), *(libraries.Gradmgr(threads, name, how) for name, how in levels().items())]
    peers: list[Any] = [libraries.PyTorch, libraries.Jax]
    if not is_quick(pace) and in_torch.has_compiler() and program.label not in _NOT_BY_TORCH:
        peers.append(libraries.CompiledTorch)
    peers = [peer for peer in peers if not is_quick(pace) or peer.name not in slow]
    return [*found, *libraries.importable(peers, threads)]


def derivative_row(program: Program, slow: Sequence[str], pace: Pace, threads: int) -> tuple[Row, Times]:
    """Time value and gradient of one program."""
    found = contestants_of(program, slow, threads, pace)
    eager, *compiled = (_exact(one.name, partial(_last_answer, one, program)) for one in found[: 1 + len(levels())])
    shown = check_replays(program.label, eager, compiled)
    times = derivative.raced(program, found, derivative.shortened(pace, slow))
    figures = [(_judged(), JAX, _WORST), *_of_last(program.label)]
    return _row(shown, times, _verdicts(times, figures)), times


def _last_answer(library: libraries.Library, program: Program) -> Answer:
    run = library.differentiated(program)
    for _ in range(3):
        found = run()
    return [library.plain(part) for part in found]


def derivatives(
    pace: Pace, threads: int, only: str = "", entries: Sequence[derivative.Entry] = derivative.PROGRAMS
) -> Iterator[Table]:
    """Measure the programs of the suite `derivative`."""
    title = "Compiled derivatives"
    if only.lower() not in title.lower():
        return
    rows, all_times = [], []
    for made, _, slow in entries:
        program = made()
        if is_quick(pace) and program.label in _LONG_TO_CAPTURE:
            continue
        row, times = derivative_row(program, slow, pace, threads)
        rows.append(row)
        all_times.append(times)
    yield _table(title, [*rows, *_mean_row(all_times)])


def _mean_row(all_times: Sequence[Times]) -> list[Row]:
    """Return the geometric means over JAX, of the programs that JAX computed."""
    with_jax = [times for times in all_times if JAX in times]
    if not with_jax:
        return []
    cells = {
        name: statistics.geometric_mean([_measure.ratio(times, name, JAX) for times in with_jax])
        for name in (EAGER, *levels(), TORCH)
        if all(name in times for times in with_jax)
    }
    last = _judged()
    verdicts = [Verdict(f"{last} / {JAX}", cells[last], _MEAN)] if last in cells else []
    return [Row(f"geometric mean of {len(with_jax)}", cells, tuple(verdicts))]
