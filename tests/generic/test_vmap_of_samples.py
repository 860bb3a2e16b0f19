"""vmap against a loop: every op of the table, its derivatives of both modes, managers around."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import guard
import numpy as np
import pytest
from helpers import assert_allclose, each_case
from samples import SAMPLES, Sample, flat, seeds
from samples.gpu import refusal

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr._engine.context import current
from gradmgr._transforms.gradcheck import jvp, vjp
from gradmgr._transforms.vmap import vmap

EXAMPLES = 3

# What one call cannot do for several examples at once, and how the error says so.
REFUSED = {
    "piecewise-functions and a rest": "different number of elements",  # a function sees the elements it is for
    "piecewise-one condition": "different number of elements",
    "piecewise-arguments": "different number of elements",
    "piecewise-overlapping": "different number of elements",
    "setdiff1d-ties": "different number of elements|different shapes",  # sets of different sizes
    "intersect1d-ties": "different shapes",
    "intersect1d-return_indices=": "different shapes",
    "union1d-ties": "different shapes",
    "setxor1d-ties": "different shapes|different number",
    "setxor1d-assume_unique=": "different shapes|different number",
    "vectorize-by element": "the truth of a tensor",  # its function branches
}
# The kind of result, real or complex, or its shape depends on the values: the examples must be alike.
ALIKE = ("linalg.eig", "roots", "extract-a computed mask", "Tensor.__getitem__-a computed mask")


def examples(sample: Sample) -> list[list[Any]]:
    """The arguments, by example; given values are scaled, others drawn anew."""
    alike = str(sample).startswith(ALIKE)
    rows = []
    for k in range(EXAMPLES):
        random = np.random.default_rng(zlib.crc32(str(sample).encode()) + (0 if alike else k))
        row = [arg.make(random) for arg in sample.args]
        scaled = [
            (alike or arg.values is not None) and a.dtype.kind in "fc" for arg, a in zip(sample.args, row, strict=True)
        ]
        rows.append(
            [
                a * (1 + 0.125 * k) if s and not arg.constant else a
                for a, s, arg in zip(row, scaled, sample.args, strict=True)
            ]
        )
    return rows


class Case:
    """One sample with some of its arguments mapped, by turns all of them or one."""

    def __init__(self, sample: Sample, turn: int) -> None:
        self.sample = sample
        self.where = where = sample.where
        self.mapped = where if turn % 3 == 0 else [where[turn % len(where)]]
        rows = examples(sample)
        self.args: list[Any] = []
        for k, arg in enumerate(sample.args):
            if k in self.mapped:
                self.args.append(tensor(np.stack([row[k] for row in rows])))
            else:
                self.args.append(rows[0][k] if arg.constant else tensor(rows[0][k]))
        self.dims = tuple([0 if k in self.mapped else None for k in range(len(self.args))])
        first = self.call(*self.example(0))
        self.us = [u for u, y in zip(seeds(first), first, strict=True) if y.dtype.kind in "fc"]
        self.vs = seeds([self.example(0)[k] for k in where])

    def call(self, *given: Any) -> list[Tensor]:
        return flat(self.sample.call(gnp, *given))

    def vjp_of_call(self, *given: Any) -> list[Tensor]:
        return vjp(self.call, list(given), self.where, self.us)

    def jvp_of_call(self, *given: Any) -> list[Tensor]:
        return jvp(self.call, list(given), self.where, self.vs)

    def example(self, k: int) -> list[Any]:
        return [a[k] if j in self.mapped else a for j, a in enumerate(self.args)]

    def at_once(self, function: Callable[..., Any]) -> tuple[Tensor, ...]:
        return vmap(lambda *given: tuple(function(*given)), self.dims, randomness="same")(*self.args)  # of dropout

    def in_a_loop(self, function: Callable[..., Any]) -> list[list[Tensor]]:
        return [list(function(*self.example(k))) for k in range(EXAMPLES)]

    def assert_alike(self, function: Callable[..., Any]) -> None:
        for found, *expected in zip(self.at_once(function), *self.in_a_loop(function), strict=True):
            assert_same(found, np.stack([y.numpy() for y in expected]))

    def gradients(self, run: Callable[[], Any]) -> list[Any]:
        """What a manager around gives to each argument."""
        attached = [self.args[k] for k in self.where]
        manager = GradManager().attach(attached)
        with manager:
            ys = [y for y in run() if manager._tape.node_id_of(y) is not None]
            manager.backward(ys, [np.ones(y.shape, y.dtype) for y in ys])
        found = [np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in attached]
        for t in attached:
            t.grad = None
        return found

    def assert_alike_for_a_manager_around(self, function: Callable[..., Any]) -> None:
        found = self.gradients(lambda: self.at_once(function))
        expected = self.gradients(lambda: [y for row in self.in_a_loop(function) for y in row])
        for a, b in zip(found, expected, strict=True):
            assert_allclose(a, b, rtol=1e-8, atol=1e-9)


def assert_same(found: Tensor, expected: np.ndarray) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-10)


TURNS = [(s, turn) for turn, s in enumerate(SAMPLES) if str(s) not in REFUSED]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the loop has them too: domains, overflows
@each_case(TURNS)
def test_every_op_is_what_a_loop_gives(sample: Sample, turn: int) -> None:
    case = Case(sample, turn)
    case.assert_alike(case.call)
    case.assert_alike(case.vjp_of_call)
    case.assert_alike(case.jvp_of_call)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
@each_case(TURNS)
def test_outer_managers_and_forward_mode_differentiate_it_as_a_loop(sample: Sample, turn: int) -> None:
    case = Case(sample, turn)
    case.assert_alike_for_a_manager_around(case.call)
    tangents = seeds([case.args[k] for k in case.where])
    found = jvp(
        lambda *given: list(vmap(lambda *a: tuple(case.call(*a)), case.dims, randomness="same")(*given)),
        case.args,
        case.where,
        tangents,
    )
    for k in range(EXAMPLES):
        own = [v[k] if j in case.mapped else v for j, v in zip(case.where, tangents, strict=True)]
        for y, one in zip(found, jvp(case.call, case.example(k), case.where, own), strict=True):
            assert_allclose(y.numpy()[k], one.numpy(), rtol=1e-9, atol=1e-10)
    if sample.smooth:
        case.assert_alike_for_a_manager_around(case.vjp_of_call)
        case.assert_alike_for_a_manager_around(case.jvp_of_call)


PAIRS = [(s, turn) for s, turn in TURNS if len(s.where) > 1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
@each_case(PAIRS)
def test_two_levels_each_over_an_argument_of_its_own(sample: Sample, turn: int) -> None:
    case, rows = Case(sample, turn), examples(sample)
    i, j = case.where[turn % len(case.where)], case.where[(turn + 1) % len(case.where)]
    args = [a if arg.constant else tensor(a) for a, arg in zip(rows[0], sample.args, strict=True)]
    args[i], args[j] = (tensor(np.stack([rows[0][k], rows[1][k]])) for k in (i, j))
    of_i, of_j = (tuple([0 if k == mapped else None for k in range(len(args))]) for mapped in (i, j))
    for function in (case.call, case.vjp_of_call):
        for outer, inner in ((of_i, of_j), (of_j, of_i)):
            within = vmap(lambda *given, f=function: tuple(f(*given)), inner, randomness="same")
            found = vmap(within, outer, randomness="same")(*args)
            for a, b in ((0, 1), (1, 0)):
                at = {outer.index(0): a, inner.index(0): b}
                one = function(*[x[at[k]] if k in at else x for k, x in enumerate(args)])
                for y, expected in zip(found, one, strict=True):
                    assert_allclose(y.numpy()[a, b], expected.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_at_once_is_refused(name: str) -> None:
    (sample,) = [s for s in SAMPLES if str(s) == name]
    case = Case(sample, 0)
    with pytest.raises(errors.BatchedValueError, match=REFUSED[name]):
        case.at_once(case.call)
    assert current() is None


# The size of the result is looked up on the host.
REFUSED_ON_GPU = ("roots", "engine.sliding_window_view")
ON_GPU = [
    (s, t) for s, t in TURNS if t % 4 == 0 and refusal(s) is None and not s.repeats and s.name not in REFUSED_ON_GPU
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
@each_case(ON_GPU)
def test_arrays_of_another_library_give_the_same(
    sample: Sample, turn: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(sample, turn)
    with monkeypatch.context() as without_gpu:  # NumPy's values, computed where no CuPy was imported
        for name in ("cupy", *guard.cupyx_modules()):
            without_gpu.delitem(sys.modules, name)
        expected = [[y.numpy() for y in case.at_once(f)] for f in (case.call, case.vjp_of_call)]
    case.args = [tensor(moved(t._array)) if isinstance(t, Tensor) else moved(t) for t in case.args]
    case.us = [moved(u) for u in case.us]
    for f, values in zip((case.call, case.vjp_of_call), expected, strict=True):
        for y, value in zip(case.at_once(f), values, strict=True):
            assert isinstance(y._array, guard.ndarray)
            assert_allclose(y._array._host, value, rtol=1e-8, atol=1e-9)


def moved(a: Any) -> Any:
    return guard.cupy.asarray(a) if isinstance(a, (np.ndarray, np.generic)) else a
