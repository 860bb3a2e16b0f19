"""The calls of every op and its derivative, captured and made again on other values: what the op gives, bit by bit."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from helpers import each_case, tracks
from machine import MACHINE, assert_same_bits, in_layouts_of, needs_machine
from samples import SAMPLES, Sample, flat, seeds

import gradmgr.numpy as gnp
from gradmgr import GradManager, asarray
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._replay import strips
from gradmgr._replay.replay import Options, compile_replay

# Sets, whose sizes depend on ties, which other values break.
OTHER_SHAPES = (
    *("intersect1d-ties", "intersect1d-return_indices=", "union1d-ties", "setdiff1d-ties"),
    *("setxor1d-ties", "setxor1d-assume_unique="),
)
# Those that draw: a replay goes on with the generator's stream, where the sample begins with a new one.
DRAWS = ("nn.dropout-0.3", "nn.scaled_dot_product_attention-dropout")


def program(sample: Sample, arrays: list[Any], capture: Capture | None = None) -> list[Any]:
    """The arrays that a sample gives, and those of the gradients; captured, the cotangents are further inputs."""
    points = [a if arg.constant else asarray(a) for arg, a in zip(sample.args, arrays, strict=True)]
    attached = [points[k] for k in sample.where]
    gm = GradManager().attach(attached)
    with gm:
        outs = [y for y in flat(sample.call(gnp, *points)) if tracks(gm, y)]
        dys: list[Any] = list(seeds(outs))
        gm.backward(outs, dys if capture is None else [capture.add_input(dy) for dy in dys])
    return [y._array for y in outs] + [None if t.grad is None else t.grad._array for t in attached]


def changed(sample: Sample) -> list[Any]:
    """The arguments of a sample with slightly other values; constants, integers and booleans as they are."""
    return [
        np.array(a * (1 + 1e-3) if a.dtype.kind in "fc" and not arg.constant else a)
        for arg, a in zip(sample.args, sample.make(), strict=True)
    ]


def captured(sample: Sample) -> tuple[Capture, list[Any], list[Any], list[Any]]:
    """The capture of a sample, what it found, and for other values: what it should find, and the inputs."""
    capture = Capture()
    inputs = [a if arg.constant else capture.add_input(a) for arg, a in zip(sample.args, sample.make(), strict=True)]
    found = program(sample, inputs, capture)
    others = changed(sample)
    expected = program(sample, [np.array(a) for a in others])
    given = [np.array(a) for arg, a in zip(sample.args, others, strict=True) if not arg.constant]
    given += seeds([asarray(y) for y in expected[: len(capture.inputs) - len(given)]])
    return capture, found, expected, given


@each_case(SAMPLES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_replayed_calls_compute_what_the_op_does(sample: Sample) -> None:
    capture, found, expected, given = captured(sample)
    assert not capture.obstacles
    if str(sample) in OTHER_SHAPES:
        with pytest.raises(CaptureError, match=r"gave \(.*, and \(.* now"):
            capture.replay(*given)
        return
    values = capture.replay(*[np.array(a) for a in given])
    compiled = compile_replay(capture, found, options=Options(native=False))(*[np.array(a) for a in given])
    in_buffers = compile_replay(capture, found, buffers_from=1, options=Options(native=False))
    in_buffers(*[np.array(a) for a in given])  # the second time they hold what the first left
    for y, z, same, too in zip(found, expected, compiled, in_buffers(*given), strict=True):
        assert (y is None) == (z is None) == (same is None)
        if y is not None:
            again = values[y.slot.number] if isinstance(y, CapturedArray) else y
            assert (again.shape, again.dtype) == (z.shape, z.dtype)
            for made in (again, same, too) if str(sample) not in DRAWS else ():
                np.testing.assert_array_equal(made, z)


@needs_machine
@each_case(SAMPLES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_native_replays_compute_what_plain_ones_do_bit_for_bit(sample: Sample) -> None:
    capture, found, _, given = captured(sample)
    if str(sample) in (*OTHER_SHAPES, *DRAWS):
        return
    plain = compile_replay(capture, found, options=Options(native=False))(*in_layouts_of(capture, given))
    native = compile_replay(capture, found, options=Options(native=MACHINE))
    first = native(*in_layouts_of(capture, given))
    again = native(*in_layouts_of(capture, given))  # then the arena holds what the first left
    with patch.multiple(strips, _STRIP=2, _VECTORS=1):
        in_strips = compile_replay(capture, found, options=Options(native=MACHINE))(*in_layouts_of(capture, given))
    for made in (first, again, in_strips):
        for y, z in zip(made, plain, strict=True):
            assert_same_bits(y, z)
