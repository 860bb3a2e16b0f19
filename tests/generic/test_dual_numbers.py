"""Forward mode as the user calls it, with dual numbers: every op of the table."""

from __future__ import annotations

import numpy as np
from helpers import each_case
from samples import SAMPLES, Sample, flat, seeds, tensors

import gradmgr.numpy as gnp
from gradmgr._transforms.gradcheck import jvp
from gradmgr.forward_ad import dual_level, make_dual, unpack_dual


@each_case(SAMPLES)
def test_tangents_of_every_op_are_those_of_jvp(sample: Sample) -> None:
    arrays = sample.make()
    points = tensors(sample, arrays)
    vs = seeds([points[k] for k in sample.where])
    expected = jvp(lambda *given: flat(sample.call(gnp, *given)), points, sample.where, vs)
    with dual_level():
        duals = list(points)
        for k, v in zip(sample.where, vs, strict=True):
            duals[k] = make_dual(points[k], v)
        found = [unpack_dual(y) for y in flat(sample.call(gnp, *duals)) if y.dtype.kind in "fc"]
    assert len(found) == len(expected)
    for (primal, tangent), e in zip(found, expected, strict=True):
        if tangent is None:
            assert not e.numpy().any()
        else:
            assert (tangent.shape, tangent.dtype) == (primal.shape, primal.dtype)
            np.testing.assert_array_equal(tangent.numpy(), e.numpy())
