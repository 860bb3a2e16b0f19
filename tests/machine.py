"""The machine of native replays, for tests that need it, and arrays of the layouts that a capture was made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.native import found
from gradmgr._replay.native_test import check_machine

MACHINE = found.get(check_machine)
WHY_NOT = f"needs the machine of native replays: {found.reason}"
needs_machine = pytest.mark.native  # by which `conftest.py` skips it


def in_layouts_of(capture: Capture, arrays: list[Any]) -> list[Any]:
    """Copy arrays into memory of the strides that the inputs of a capture had, as a replay's caller must."""
    return [
        _in_layout(np.asarray(a), capture.layouts[slot.number]) for a, slot in zip(arrays, capture.inputs, strict=True)
    ]


def _in_layout(a: Any, layout: Any) -> Any:
    assert (a.shape, a.dtype) == (layout.shape, layout.dtype)
    if not a.size:
        return a.copy()
    moves = [(n - 1) * stride for n, stride in zip(layout.shape, layout.strides, strict=True)]
    low = -sum([min(0, move) for move in moves])
    memory = np.zeros(sum(map(abs, moves)) + a.itemsize, np.uint8)
    made: Any = np.ndarray(layout.shape, layout.dtype, memory, low, layout.strides)
    made[...] = a
    return made[()] if layout.is_scalar else made


def assert_same_bits(found: Any, expected: Any) -> None:
    """Compare types, dtypes, shapes and bytes."""
    assert (found is None) == (expected is None)
    if found is not None:
        assert (type(found), found.dtype, found.shape) == (type(expected), expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
