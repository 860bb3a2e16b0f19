"""Steps in strips of rows: random programs with broadcasting, bit for bit; what is joined, and what may not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from helpers import normal
from machine import MACHINE, assert_same_bits, in_layouts_of, needs_machine

from gradmgr._arrays.capture import Capture
from gradmgr._replay import native_replay, strips
from gradmgr._replay.replay import Options, compile_replay

Program = Callable[..., Sequence[Any]]
Group = tuple[int, int, int, int]  # rows, of a strip, steps, memories of one strip

pytestmark = [needs_machine, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def checked(program: Program, *arrays: Any, strip: int = 2) -> list[Group]:
    """Check that a replay in short strips gives the bits of the plain one, twice; return the groups."""
    capture = Capture()
    found = program(*[capture.add_input(a) for a in arrays])
    plain = compile_replay(capture, found, options=Options(native=False))
    groups: list[Group] = []

    class Watched(strips.Strips):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            each = {id(group): group for group in self.groups.values()}.values()
            groups.extend([(group.rows, group.strip, len(group.steps), len(group.local)) for group in each])

    with patch.multiple(strips, _STRIP=strip, _VECTORS=1), patch.object(native_replay, "Strips", Watched):
        native = compile_replay(capture, found, options=Options(native=MACHINE))
    expected_inputs = in_layouts_of(capture, list(arrays))
    expected = plain(*expected_inputs)
    for _ in range(2):  # then the arena holds what the first left
        inputs = in_layouts_of(capture, list(arrays))
        for one, other in zip(native(*inputs), expected, strict=True):
            assert_same_bits(one, other)
        for one, other in zip(inputs, expected_inputs, strict=True):
            assert_same_bits(one, other)
    return groups


# ---------------------------------------------------------------- random programs


class Random:
    """A program of random steps on stacks of matrices, of the rows of which some are broadcast."""

    ROWS, INNER, COLUMNS = 6, 4, 5

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def arrays(self) -> list[Any]:
        shape = self.ROWS, self.INNER, self.COLUMNS
        x, y = normal(*shape, seed=self.seed), normal(*shape, seed=self.seed + 1)
        y = np.asfortranarray(y) if self.seed % 2 else y.transpose(0, 2, 1).copy().transpose(0, 2, 1)
        return [x, y, normal(self.ROWS, 1, self.COLUMNS), normal(self.COLUMNS), normal(self.INNER, self.INNER)]

    def __call__(self, *arrays: Any) -> list[Any]:
        rng = np.random.default_rng(self.seed)
        x, y, *others, square = arrays
        held = [x, y]
        for _ in range(12):
            self._step(rng, held, others, square)
        picked = [held[k] for k in rng.permutation(len(held))[:3]]
        return [*picked, others[-1], held[-1].sum(axis=0), held[-1].max(axis=0)]

    def _step(self, rng: Any, held: list[Any], others: list[Any], square: Any) -> None:
        a, b = (held[rng.integers(len(held))] for _ in range(2))
        c = others[rng.integers(len(others))]
        match rng.integers(11):
            case 0:
                held.append(a * c)
            case 1:
                held.append(a - b)
            case 2:
                held.append(np.tanh(a + b[:1]))
            case 3:
                held.append(square @ a)
            case 4:
                others.append(a.sum(axis=rng.integers(3), keepdims=True))
            case 5:
                others.append(a.min(axis=rng.integers(3), keepdims=True))
            case 6:
                held[-1] *= c  # in place
            case 7:
                held.append(np.where(a > b, a, 0.5))
            case 8:
                made = np.zeros_like(a)
                made[1:] = b[:-1]
                held.append(made)
            case 9:
                held.append(a[::-1] + b)
            case _:
                others.append(np.mean(a * b, axis=-1, keepdims=True))


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_in_strips_give_the_bits_of_numpy(seed: int) -> None:
    program = Random(seed)
    assert any(checked(program, *program.arrays(), strip=strip) for strip in (1, 2, 40))


# ---------------------------------------------------------------- what is joined


def likelihood(x: Any, means: Any, scales: Any, factors: Any) -> list[Any]:
    """Points under Gaussians, as in a mixture of them."""
    centred = x.T[None, :, :] - means[:, :, None]
    scaled = scales[:, :, None] * centred + factors @ centred
    inner = -0.5 * np.sum(scaled**2, axis=1)
    slope = 2 * scaled * inner[:, None, :]
    return [inner.max(axis=0), slope.sum(axis=2), slope @ centred.transpose(0, 2, 1)]


def test_a_mixture_is_one_group_with_products_and_sums() -> None:
    x, means, scales, factors = normal(30, 4), normal(7, 4), normal(7, 4, seed=1), normal(7, 4, 4)
    (group,) = checked(likelihood, x, means, scales, factors)
    rows, strip, steps, local = group
    assert (rows, strip) == (7, 1)
    assert steps >= 12
    assert local >= 6


def test_minima_by_rows_join_what_computes_the_rows() -> None:
    def distances(x: Any, y: Any) -> list[Any]:
        return [((x * x)[:, None] - 2 * (x[:, None] * y)).min(axis=0)]

    (group,) = checked(distances, normal(9), normal(20), strip=20)
    assert group[0] == 9
    assert group[3] >= 2


def test_what_only_strips_use_takes_the_memory_of_one() -> None:
    def chain(x: Any, y: Any) -> list[Any]:
        return [np.sum(np.exp(x * y) - y, axis=1)]

    x, y = normal(640, 64), normal(64)
    capture = Capture()
    found = chain(capture.add_input(x), capture.add_input(y))
    native: Any = compile_replay(capture, found, options=Options(native=MACHINE))
    assert native.nbytes < 4 * strips._STRIP * 8  # an array has 40,960 elements


# ---------------------------------------------------------------- what may not be


def shifted(x: Any, y: Any) -> list[Any]:
    z = x * y
    return [z[1:] + z[:-1]]


def reversed_rows(x: Any, y: Any) -> list[Any]:
    z = x * y
    return [z[::-1] - y]


def of_all_rows(x: Any, y: Any) -> list[Any]:
    z = x * y
    return [z - z.sum(axis=0), z.sum()]


def written_later(x: Any, y: Any) -> list[Any]:
    z = x * y
    w = z + 1.0
    z[0] = 5.0  # after it was read
    return [w, z * y]


def across(x: Any, y: Any) -> list[Any]:
    z = x * y
    return [z + z.T, z.T * y]


def in_turn(x: Any, y: Any) -> list[Any]:
    x += y
    w = x[:, ::2] * 3
    x[:, ::2] = w
    x *= 2
    return [w, x]


def through_python(x: Any, y: Any) -> list[Any]:
    z = x * y
    picked = z[np.array([1, 0, 2])][:, ::-1]  # made by Python
    z += 1.0
    return [picked * 2 + z[:3], z]


@pytest.mark.parametrize(
    "program", [shifted, reversed_rows, of_all_rows, written_later, across, in_turn, through_python]
)
@pytest.mark.parametrize("strip", [1, 3, 8, 24])
def test_rows_that_need_others(program: Program, strip: int) -> None:
    checked(program, normal(8, 8), normal(8, 8, seed=1), strip=strip)


def runs(n: int) -> Iterator[tuple[Any, Any]]:
    for dtype in (np.float64, np.float32):
        yield (normal(n) * 3).astype(dtype), normal(n, seed=1).astype(dtype)


@pytest.mark.parametrize("n", [4097, 20_003])
def test_loops_over_elements_are_cut_between_whole_vectors(n: int) -> None:
    def program(x: Any, y: Any) -> list[Any]:
        z = np.tanh(x) * np.exp(-y)
        return [np.sin(z) + np.log1p(np.abs(x)), z]

    for x, y in runs(n):
        for strip in (64, 4096):
            capture = Capture()
            found = program(capture.add_input(x), capture.add_input(y))
            with patch.object(strips, "_STRIP", strip):
                native = compile_replay(capture, found, options=Options(native=MACHINE))
            for one, other in zip(native(x, y), program(x, y), strict=True):
                assert_same_bits(one, other)
