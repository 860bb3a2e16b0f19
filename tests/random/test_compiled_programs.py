"""Programs of people's and random ones, compiled: each call gives the bits of the eager one, and most are replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from test_numpy_programs import PROGRAMS, results

import gradmgr
import gradmgr.numpy
import gradmgr.special
from gradmgr import GradManager, Tensor, tensor
from tools.fuzz.generate import generate
from tools.fuzz.subject import Run

CALLS = 5


def bits_of(value: Any) -> Any:
    """What can be compared of a value, every bit."""
    if isinstance(value, (list, tuple)):
        return [bits_of(part) for part in value]
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        a = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        return a.dtype.str, a.shape, a.tobytes()
    return value


def outcome(function: Callable[..., Any], points: Sequence[Tensor]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return bits_of(function(*points))
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]


def check(function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Call a function and its compiled form with changing values; tell whether it was replayed."""
    compiled = gradmgr.compile(function, exact=True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for k in range(CALLS):
            some = [a * (1 + 1e-3 * k) if a.dtype.kind in "fc" else a for a in inputs]
            expected = outcome(function, [tensor(a, dtype=a.dtype) for a in some])
            assert outcome(compiled, [tensor(a, dtype=a.dtype) for a in some]) == expected
    return "calls:" in compiled.explain()


def with_gradients(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """A function that returns results and gradients of their sum, in which each element counts differently."""
    with np.errstate(all="ignore"):
        found = [y for y in results(function(*map(tensor, inputs))) if isinstance(y, Tensor)]
    weights = [np.cos(np.arange(y.size, dtype=float)).reshape(y.shape) for y in found]

    def step(*points: Tensor) -> Any:
        with GradManager().attach(points) as gm:
            outs = [y for y in results(function(*points)) if isinstance(y, Tensor)]
            gm.backward(outs, weights)
        return outs, [t.grad for t in points]

    return step


def test_programs_of_people() -> None:
    replayed = []
    for name, this in PROGRAMS.items():
        function = this.on(gradmgr.numpy, gradmgr.special)
        try:
            replayed.append(check(with_gradients(function, this.inputs()), this.inputs()))
        except AssertionError as error:
            error.add_note(name)
            raise
    assert 2 * sum(replayed) >= len(replayed), f"{sum(replayed)} of {len(replayed)} are replayed"


class Values:
    """A random program as a function of its leaves: what it computes, and gradients of its outputs."""

    def __init__(self, seed: int) -> None:
        self.program = generate(seed)
        self.run = Run(self.program)

    def __call__(self, *leaves: Tensor) -> Any:
        with GradManager().attach(leaves) as gm:
            names = self.run.run(leaves)
            outs = [(names[name], weight) for name, weight in self.program.outputs]
            tracked = [(y, w) for y, w in outs if isinstance(y, Tensor) and y.requires_grad]
            gm.backward([y for y, _ in tracked], [w for _, w in tracked])
        return [y for y, _ in outs], [t.grad for t in leaves]


def replays(seeds: Iterable[int]) -> int:
    """Check random programs; return how many were replayed."""
    replayed = 0
    for seed in seeds:
        values = Values(seed)
        try:
            replayed += check(values, [values.program.inputs[name].array for name in values.program.leaves])
        except AssertionError as error:
            error.add_note(f"seed {seed}\n{values.program}")
            raise
    return replayed


@pytest.mark.parametrize("block", range(4))
def test_random_programs(block: int) -> None:
    assert replays(range(block * 40, block * 40 + 40)) >= 10


def test_random_programs_planned_as_those_of_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done for large arrays alone, as it takes time, must be right for any."""
    monkeypatch.setattr("gradmgr._replay.ordering._LEAST", 1)
    monkeypatch.setattr("gradmgr._replay.packing._NEARLY", 0)
    monkeypatch.setattr("gradmgr._replay.native_replay._LARGE", 8)
    monkeypatch.setattr("gradmgr._replay.native_replay.CLEARLY", np.inf)
    assert replays(range(2065, 2095)) >= 10
