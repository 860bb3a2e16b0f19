"""The op table captured on a GPU's arrays, those of the guard: calls made again on other values give the op's bits."""

from __future__ import annotations

from typing import Any

import guard
import numpy as np
import pytest
from helpers import each_case, host, tracks
from samples import SAMPLES, Sample, flat, seeds
from samples.gpu import refusal
from test_captured_samples import DRAWS, OTHER_SHAPES, changed

import gradmgr.numpy as gnp
from gradmgr import GradManager, asarray
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._replay.replay import compile_replay

pytestmark = pytest.mark.usefixtures("cupy")

ON_GPU = [s for s in SAMPLES if not s.repeats and refusal(s) is None and str(s) not in DRAWS]


def program(sample: Sample, arrays: list[Any], dys: list[Any], capture: Capture | None = None) -> list[Any]:
    """The arrays that a sample gives, and those of the gradients."""
    points = [a if arg.constant else asarray(a) for arg, a in zip(sample.args, arrays, strict=True)]
    attached = [points[k] for k in sample.where]
    gm = GradManager().attach(attached)
    with gm:
        outs = [y for y in flat(sample.call(gnp, *points)) if tracks(gm, y)]
        given = dys or [guard.cupy.asarray(dy) for dy in seeds(outs)]
        gm.backward(outs, given if capture is None else [capture.add_input(dy) for dy in given])
    dys[:] = given
    return [y._array for y in outs] + [None if t.grad is None else t.grad._array for t in attached]


@each_case(ON_GPU)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_calls_made_again_compute_what_the_op_does(sample: Sample) -> None:
    def on_guard(arrays: list[Any]) -> list[Any]:
        return [guard.cupy.asarray(np.array(a)) for a in arrays]

    dys: list[Any] = []
    program(sample, on_guard(sample.make()), dys)
    capture = Capture()
    inputs = [
        a if arg.constant else capture.add_input(a) for arg, a in zip(sample.args, on_guard(sample.make()), strict=True)
    ]
    found = program(sample, inputs, dys, capture)
    assert not capture.obstacles
    assert capture.is_on_gpu()
    others = on_guard(changed(sample))
    other_dys: list[Any] = []
    expected = program(sample, others, other_dys)
    given = [a for arg, a in zip(sample.args, others, strict=True) if not arg.constant] + other_dys
    replay = compile_replay(capture, found)
    if str(sample) in OTHER_SHAPES:
        with pytest.raises(CaptureError, match=r"gave \(.*, and \(.* now"):
            replay(*given)
        return
    values = capture.replay(*given)
    for y, z, same in zip(found, expected, replay(*given), strict=True):
        assert (y is None) == (z is None) == (same is None)
        if y is not None:
            again = values[y.slot.number] if isinstance(y, CapturedArray) else y
            for made in (again, same):
                assert (made.shape, made.dtype) == (z.shape, z.dtype)
                np.testing.assert_array_equal(host(made), host(z))
    assert guard.ndarray.copies_to_host == 0
