"""gradmgr.compile on a GPU's arrays, those of the guard: a replay leaves every bit that the eager step leaves."""

from __future__ import annotations

from types import ModuleType

import compiled_functions
import compiled_training
import pytest
from compiled_programs import PROGRAMS, first_difference
from moved_programs import NOT_ON_GPU, history_on

import gradmgr

MODULES_OF_PROGRAMS = compiled_training, compiled_functions  # each enters its own into PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_equals_eager_on_a_gpu_bit_for_bit(name: str, cupy: ModuleType) -> None:
    try:
        expected = history_on(cupy, PROGRAMS[name])
    except Exception as e:
        import traceback
        traceback.print_exc()
        pytest.skip(f"eager {type(e).__name__} {str(e)[:150]}")
    assert first_difference(history_on(cupy, PROGRAMS[name], gradmgr.compile), expected) == ""
