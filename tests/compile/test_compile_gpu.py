"""gradmgr.compile on a GPU's arrays, those of the guard: a replay leaves every bit that the eager step leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import compiled_functions
import compiled_training
import guard
import numpy as np
import pytest
from compiled_programs import PROGRAMS, first_difference, two_layers, wave
from helpers import host
from moved_programs import outcome
from test_compile import runs_of

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import optim, special, tensor
from gradmgr._arrays.gpu import Regions, checksum_of, have_same_bits
from gradmgr._compile.program import Program

MODULES_OF_PROGRAMS = compiled_training, compiled_functions  # each enters its own into PROGRAMS

# Each op is replayed in test_captured_gpu_samples, each program on NumPy's arrays in test_compile; here, a third.
# Where plain arrays of a GPU are asked for their values, CuPy's errors and a Tensor's are not the same.
FITTING = [name for name in PROGRAMS if not (name.startswith("by value") and name.endswith("array"))]
SOME_PROGRAMS = [name if k % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for k, name in enumerate(FITTING)]

pytestmark = [
    pytest.mark.usefixtures("cupy"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, of the rubbish that the guard computes with
]


@pytest.mark.parametrize("name", SOME_PROGRAMS)
def test_compiled_equals_eager_bit_for_bit(name: str, cupy: ModuleType) -> None:
    expected = outcome(cupy, PROGRAMS[name])
    found = outcome(cupy, PROGRAMS[name], gradmgr.compile)
    if isinstance(expected, type):  # it mixes host memory and a GPU's, or needs what CuPy lacks
        assert isinstance(found, type)
        assert issubclass(found, expected)  # an array among the arguments arrives as a Tensor, whose errors say more
    else:
        assert first_difference(found, expected) == ""


def test_most_programs_are_replayed(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare eager steps with one another."""
    faults: list[str | None] = []
    verify = Program.verify

    def noted(self: Program, *args: Any) -> Any:
        faults.append(verify(self, *args))
        return faults[-1]

    monkeypatch.setattr(Program, "verify", noted)
    chosen = [name for name in PROGRAMS if name.startswith(("train ", "layer: "))]
    for name in chosen:
        outcome(cupy, PROGRAMS[name], gradmgr.compile)
    assert faults.count(None) >= 0.9 * len(chosen)  # some mix host memory and a GPU's, which is an error


# ---------------------------------------------------------------- a step by hand


def trained(compiled: Callable[[Any], Any], calls: int = 6) -> tuple[list[bytes], Any, list[int]]:
    """Train two layers; return the bits of the losses and the parameters, the step, and the waits of each call."""
    w, v = (tensor(guard.cupy.asarray(wave(*shape, dtype="float32"))) for shape in ((3, 8), (8, 1)))
    made, losses, waits = compiled(two_layers(w, v, optim.SGD([w, v], lr=0.05))), [], []
    for k in range(calls):
        x, y = (guard.cupy.asarray(wave(*shape, at=k, dtype="float32")) for shape in ((5, 3), (5, 1)))
        before = guard.ndarray.waits
        losses.append(made(x, y))
        waits.append(guard.ndarray.waits - before)
    return [host(t).tobytes() for t in (*losses, w, v)], made, waits


def eager(step: Any) -> Any:
    return step


def test_a_replay_does_not_wait_for_the_gpu() -> None:
    found, step, waits = trained(gradmgr.compile)
    assert found == trained(eager)[0]
    assert [waits[k] for k in (2, 4, 5)] == [0, 0, 0]  # the second and the fourth call run as written
    assert guard.ndarray.copies_to_host == 0
    assert step.explain().startswith("two_layers.<locals>.step: 1 variant")


def test_explain_tells_who_makes_the_calls() -> None:
    assert "\n    Python makes the calls, on a GPU; 0 bytes in buffers" in trained(gradmgr.compile)[1].explain()


def test_each_way_that_a_value_on_a_gpu_decides_is_replayed() -> None:
    def step(x: Any) -> Any:
        y = gnp.tanh(x * 2) + 1
        return y * 3 - 1 if gnp.sum(y) > 3 else y / 3 + 1

    compiled = gradmgr.compile(step)
    with runs_of(step) as runs:
        for k in range(14):
            x = np.full(4, 1.0 if k % 3 else -1.0)
            y = np.tanh(x * 2) + 1
            expected = y * 3 - 1 if np.sum(y) > 3 else y / 3 + 1
            assert host(compiled(tensor(guard.cupy.asarray(x)))).tobytes() == expected.tobytes()
    assert runs[0] <= 8


def test_an_array_of_a_gpu_that_is_read_by_name_is_a_constant_until_it_is_replaced() -> None:
    values = guard.cupy.asarray(wave(3))
    step = gradmgr.compile(lambda x: x * values)
    for k in range(8):
        if k == 5:
            values = guard.cupy.asarray(wave(3, at=5))
        x = tensor(guard.cupy.asarray(wave(3, at=k)))
        assert host(step(x)).tobytes() == (wave(3, at=k) * wave(3, at=5 if k >= 5 else 0)).tobytes()
    assert ": 2 variants" in step.explain()


@pytest.mark.parametrize("transform", [lambda f: f, gradmgr.vmap], ids=["alone", "vmap"])
def test_arrays_of_the_host_beside_cupy_are_not_given_to_it(transform: Any) -> None:
    step = gradmgr.compile(transform(special.digamma))
    for k in range(4):
        x = wave(2, 3, at=k) ** 2 + 1
        assert step(tensor(x)).numpy().tobytes() == special.digamma(x).tobytes()
    assert ": 1 variant" in step.explain()


def test_a_function_may_move_between_the_host_and_a_gpu() -> None:
    def step(x: Any, y: Any) -> Any:
        on_host = gnp.tanh(x * 2 + 1).to("cpu") * y
        return on_host, gnp.exp(on_host.to("cuda:0") * 2 + 1) - 1

    made = gradmgr.compile(step)
    for k in range(5):
        x, y = wave(3, at=k), wave(3, at=2 * k)
        first, second = made(tensor(guard.cupy.asarray(x)), tensor(y))
        expected = np.tanh(x * 2 + 1) * y
        assert first._array.tobytes() == expected.tobytes()
        assert host(second).tobytes() == (np.exp(expected * 2 + 1) - 1).tobytes()
    assert ": 1 variant" in made.explain()


# ---------------------------------------------------------------- devices


def test_another_gpu_is_another_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    @gradmgr.compile
    def step(x: Any) -> Any:
        return gnp.tanh(x)

    for number in (0, 1):
        monkeypatch.setattr(guard.ndarray, "device", property(lambda self, number=number: SimpleNamespace(id=number)))
        for k in range(3):
            step(tensor(guard.cupy.asarray(wave(3, at=k))))
    assert step.explain().startswith("test_another_gpu_is_another_variant.<locals>.step: 2 variants")
    assert "x: Tensor (3,) float64 cuda:1" in step.explain()


def test_a_parameter_that_moves_is_captured_anew() -> None:
    w = tensor(guard.cupy.asarray(wave(3)))

    @gradmgr.compile
    def step() -> Any:
        return gnp.tanh(w * 2)

    for _ in range(4):
        assert isinstance(step()._array, guard.ndarray)
    w._array = wave(3)
    for _ in range(4):
        assert step()._array.tobytes() == np.tanh(wave(3) * 2).tobytes()


# ---------------------------------------------------------------- memory and bits


def test_memory_is_known_by_its_addresses() -> None:
    found, cupy = Regions(), guard.cupy
    a = cupy.asarray(wave(4, 6))
    assert found.owner_of(a, 0, is_input=False) == (0, 0)
    assert found.owner_of(a[1:, 2:], 1, is_input=False) == (0, 64)
    assert found.owner_of(a[::-1], 2, is_input=False) == (0, 0)
    hidden = cupy.lib.stride_tricks.as_strided(a[2:], (2, 2), (8, 8))
    assert hidden.base is None
    assert found.owner_of(hidden, 3, is_input=False) == (0, 96)
    other = cupy.asarray(wave(4, 6))
    assert found.owner_of(other[1:], 4, is_input=False) == (None, 0)  # of an array that was never seen
    assert found.owner_of(other, 5, is_input=True) == (5, 0)
    assert found.owner_of(cupy.asarray(np.zeros((0, 3))), 6, is_input=False) == (None, 0)


def test_an_address_that_is_given_out_again_is_another_memory() -> None:
    found, memory = Regions(), np.zeros(8)
    first = guard.ndarray(memory)
    assert found.owner_of(first, 0, is_input=False) == (0, 0)
    del first
    again = guard.ndarray(memory[:4])
    assert found.owner_of(again, 1, is_input=False) == (1, 0)


@pytest.mark.parametrize("dtype", ["b1", "i1", "u2", "f4", "f8", "c8", "c16"])
def test_arrays_are_compared_where_they_are(dtype: str) -> None:
    a = (wave(3, 4) * 100).astype(dtype)
    one, other = guard.cupy.asarray(a), guard.cupy.asarray(a.copy())
    assert have_same_bits(one, other)
    assert have_same_bits(one.T, other.T)
    assert checksum_of(one) == checksum_of(other)
    b = a.copy()
    b[0, 0], b[1, 1] = (b[1, 1], b[0, 0]) if dtype != "b1" else (~b[0, 0], b[1, 1])
    changed = guard.cupy.asarray(b)
    assert not have_same_bits(one, changed)
    assert checksum_of(one) != checksum_of(changed)
    assert guard.ndarray.copies_to_host == 0
