"""The libraries compared, and the table."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from bench._measure import Answer, Contestant, Pace, Row, Table, Times, Verdict, always, quartiles_of, race, ratio
from bench.train.here import ByHand, Here, NumPyAlone, Plain, is_convolution_compiled
from bench.train.in_autograd import InAutograd
from bench.train.in_jax import InJax
from bench.train.in_torch import InTorch
from bench.train.models import MODELS, Array, Model


class Trainer(Protocol):
    """A model being trained."""

    def step(self) -> float: ...

    def parameters(self) -> list[Array]: ...


# By the name of the column; none imports its library before a trainer is made.
LIBRARIES: Mapping[str, Callable[[Model, int], Trainer]] = {
    kind.name: kind for kind in (InTorch, Here, NumPyAlone, Plain, ByHand, InAutograd, InJax)
}
_MODULES = {"PyTorch": "torch", "autograd": "autograd", "JAX": "jax"}  # of the peers

_NUMPY_ALONE = 2.5  # at most, of a model with convolutions over PyTorch
# By model: (over which library, at most), of gradmgr's time.
TARGETS: Mapping[str, Sequence[tuple[str, float]]] = {
    "MLP 8x16x3": [("PyTorch", 0.5), ("NumPy", 2.2), ("JAX", 1.0)],
    "MLP 32x64x3": [("JAX", 1.0)],
    "MLP 64x256x3": [("PyTorch", 0.85)],
    "MLP 128x1024x3": [("PyTorch", 0.9)],
    "LSTM cells T=50 B=8 H=64": [("PyTorch", 0.6)],
    "GPT block d=32 T=16 B=8": [("PyTorch", 0.9)],
    "GPT block d=128 T=64 B=16": [("PyTorch", 1.3)],
    "CNN 64x1x28x28": [("PyTorch", 1.1)],  # with oneDNN
}


def trainer(model: str | Model, library: str, threads: int = 1) -> Trainer:
    """Return a model, or that of a label of MODELS, to be trained in the library of that column.

    Raises:
        ImportError: the library is not installed.
        NotImplementedError: the column has no such model.
    """
    return LIBRARIES[library](MODELS[model]() if isinstance(model, str) else model, threads)


def has_model(library: str, model: Model) -> bool:
    """Tell whether a library is installed and has the model."""
    if library in ("NumPy", "plain"):
        return model.kind == "mlp"
    if library == "no oneDNN":
        return model.kind == "cnn" and is_convolution_compiled()
    if library == "autograd" and model.kind == "gpt" and importlib.util.find_spec("scipy") is None:
        return False
    return library not in _MODULES or importlib.util.find_spec(_MODULES[library]) is not None


def contestant(name: str, make: Callable[[], Trainer]) -> Contestant:
    """Return the steps of what `make` gives; the answer is of two steps."""
    timed = make()

    def run(n: int) -> None:
        for _ in range(n):
            timed.step()

    return Contestant(name, always(run), lambda: trained(make(), 2))


def trained(fresh: Trainer, steps: int) -> Answer:
    """Return the losses of so many steps, and the parameters after them."""
    return [*(fresh.step() for _ in range(steps)), *fresh.parameters()]


def contestants(model: Model, threads: int) -> list[Contestant]:
    """Return every library that can train a model, the one that the others are compared with first."""
    return [contestant(name, partial(trainer, model, name, threads)) for name in LIBRARIES if has_model(name, model)]


def _verdicts(label: str, kind: str, times: Times) -> tuple[Verdict, ...]:
    targets = [("gradmgr", *target) for target in TARGETS.get(label, ())]
    if kind == "cnn" and targets:
        compiled, alone = (targets, "no oneDNN") if "no oneDNN" in times else ([], "gradmgr")
        targets = [*compiled, (alone, "PyTorch", _NUMPY_ALONE)]
    return tuple(
        Verdict(f"{name} / {base}", ratio(times, name, base), at_most)
        for name, base, at_most in targets
        if base in times
    )


def row(label: str, model: Model, pace: Pace, threads: int) -> Row:
    """Time steps of one model: the first contestant's in microseconds, the others over them."""
    times = race(label, contestants(model, threads), pace)
    first, *others = times
    cells = {"µs": statistics.median(times[first]) * 1e6} | {name: ratio(times, name, first) for name in others}
    return Row(
        label, cells, _verdicts(label, model.kind, times), {name: quartiles_of(times, name, first) for name in others}
    )


def tables(
    pace: Pace, threads: int, only: str = "", models: Mapping[str, Callable[[], Model]] = MODELS
) -> Iterator[Table]:
    """Measure one table for each kind of model; `only` picks those whose title contains it."""
    by_title: dict[str, dict[str, Callable[[], Model]]] = {}
    for label, make in models.items():
        by_title.setdefault(f"Training steps, {label.partition(' ')[0]}", {})[label] = make
    note = "one optimiser step; µs of PyTorch, or of gradmgr where that is missing, and every other time over that"
    for title, makers in by_title.items():
        if only.lower() in title.lower():
            rows = [row(label, make(), pace, threads) for label, make in makers.items()]
            yield Table(title, _columns(rows), rows, note)


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """Return the columns in which there is a number."""
    found = {name for row in rows for name in row.cells}
    return {"µs": "{:.4g}"} | {name: "{:.2f}x" for name in LIBRARIES if name in found}
