"""gradmgr.compile on a real GPU: what test_compile_gpu.py asks of the guard. Skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import compiled_functions
import compiled_training
import pytest
from compiled_programs import PROGRAMS, first_difference, on_host, two_layers, wave
from helpers import cupy_on_a_gpu
from moved_programs import outcome

import gradmgr
from gradmgr import optim, tensor

cupy = cupy_on_a_gpu()

pytestmark = pytest.mark.gpu

MODULES_OF_PROGRAMS = compiled_training, compiled_functions  # each enters its own into PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_equals_eager_bit_for_bit(name: str) -> None:
    expected, again = outcome(cupy, PROGRAMS[name]), outcome(cupy, PROGRAMS[name])
    found = outcome(cupy, PROGRAMS[name], gradmgr.compile)
    if isinstance(expected, type):  # it mixes host memory and a GPU's, or needs what CuPy lacks
        assert found is expected
    elif first_difference(again, expected) == "":  # where the GPU adds in a changing order, eager is not the same
        assert first_difference(found, expected) == ""


def trained(compiled: Any, calls: int) -> list[bytes]:
    """Train two layers on a stream of their own; return the bits of the losses and parameters."""
    w, v = (tensor(cupy.asarray(wave(*shape, dtype="float32"))) for shape in ((64, 128), (128, 1)))
    made = compiled(two_layers(w, v, optim.Adam([w, v], lr=0.01)))
    losses, streams = [], [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for k in range(calls):
        x, y = (cupy.asarray(wave(*shape, at=k, dtype="float32")) for shape in ((32, 64), (32, 1)))
        cupy.cuda.get_current_stream().synchronize()
        with streams[k % 7 == 3]:
            losses.append(made(x, y))
            if k % 7 in (2, 3):  # before and after the one call on the other stream
                cupy.cuda.get_current_stream().synchronize()
    for stream in streams:
        stream.synchronize()
    return [on_host(t._array).tobytes() for t in (*losses, w, v)]


def test_training_over_many_calls_and_streams() -> None:
    assert trained(gradmgr.compile, 200) == trained(lambda step: step, 200)
