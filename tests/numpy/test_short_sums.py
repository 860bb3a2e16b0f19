"""Sums over axes for which NumPy's loops would be short."""

import numpy as np
import pytest

from gradmgr import vmap
from gradmgr._arrays import blocks, sums

SHAPES = [
    *[(64, 2), (400, 2), (200, 7), (200, 8), (700, 3), (300, 7, 1, 1), (40, 8, 5)],
    *[(5, 30, 3), (1000, 2, 3), (32, 32, 3), (64, 50, 4), (9, 9, 9, 9), (40, 5, 1, 16), (40, 5, 17, 16)],
    *[(2048, 1, 2), (3, 1000, 1), (100, 30, 1), (1, 1000, 4), (3000,), (0, 3), (300, 0)],
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16", "i4"])
def test_sums_are_numpys_bits(monkeypatch, shape, dtype):
    random = np.random.default_rng(len(shape))
    a = (random.normal(size=shape) * 10.0 ** random.integers(-3, 4, shape)).astype(dtype)
    a[random.random(shape) < 0.1] = -0.0
    a[random.random(shape) < 0.001] = np.inf if a.dtype.kind == "f" else 7
    for block in (blocks.BLOCK, 1000):
        monkeypatch.setattr(sums.blocks, "blocks", lambda n, nbytes, size=block: blocks_of(n, nbytes, size))
        for axis in range(-a.ndim, a.ndim):
            for keepdims in (False, True):
                found = sums.sum_of_numpy(a, (axis,), keepdims)
                expected = np.add.reduce(a, axis=axis, keepdims=keepdims)
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
                assert found.tobytes() == expected.tobytes()


blocks_of = blocks.blocks


def test_a_sum_is_in_memory_of_its_own():
    a = np.ones((100, 3))
    total = sums.sum_of_numpy(a, (1,), True)
    assert total.flags.owndata
    assert not np.may_share_memory(total, a)
    total[...] = 0
    assert a.all()


def test_sums_of_large_numbers_warn_as_numpy_does():
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(sums.sum_of_numpy(np.full((100, 3), 1.7e308), (1,))).all()


def test_examples_of_vmap_are_summed_so_too():
    a = np.random.default_rng(0).normal(size=(100, 3))
    assert np.array_equal(vmap(lambda x: x.sum())(a), np.add.reduce(a, axis=1))


def test_rows_of_few_numbers_are_not_left_to_numpys_loop(monkeypatch):
    monkeypatch.setattr(sums, "add_reduce", None)
    assert sums.sum_of_numpy(np.ones((700, 3)), (1,)).tolist() == [3.0] * 700
