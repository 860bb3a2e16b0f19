"""Gradients that repeat a short row are copied in pieces, and are what they would be."""

import numpy as np
import pytest

from gradmgr import GradManager, tensor
from gradmgr._arrays.repeated_rows import copy_into


@pytest.mark.parametrize("dtype", ["f4", "f8", "D", "e"])
@pytest.mark.parametrize(
    "shape", [(5000, 1), (4097, 1), (700, 7), (2, 4000, 3), (513, 8), (3, 2000), (9000, 1, 64), (90, 50)]
)
def test_a_sum_of_rows_gives_each_row_the_weights(shape, dtype):
    x, weights = tensor(np.ones(shape, dtype)), np.arange(np.prod(shape[1:])).reshape(shape[1:]).astype(dtype)
    with GradManager().attach(x) as gm:
        gm.backward(np.sum(x, axis=0), weights)
    expected = np.empty(shape, dtype)
    for k in range(len(expected)):
        expected[k] = weights
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    x.grad[0] = 0  # which writes to no other row
    np.testing.assert_array_equal(x.grad.numpy()[1:], expected[1:])


@pytest.mark.parametrize(
    ("given", "like"),
    [
        (np.broadcast_to(np.arange(3.0), (4, 2000, 3)), np.empty((4, 2000, 3))),
        (np.broadcast_to(np.arange(6.0)[::-2], (2000, 3)), np.empty((2000, 3))),
        (np.broadcast_to(np.arange(3.0), (2000, 3)), np.empty((2000, 3), order="F")),
        (np.broadcast_to(np.arange(3.0), (2000, 3)), np.empty((2000, 6))[:, ::2]),
        (np.broadcast_to(np.arange(6.0).reshape(2, 3).T, (2000, 3, 2)), np.empty((2000, 3, 2))),
        (np.broadcast_to(2.0, (3, 5000)), np.empty((3, 5000))),
        (np.broadcast_to(np.arange(4.0)[:, None], (7, 4, 3000)), np.empty((7, 4, 3000))),
        (np.broadcast_to(np.arange(3.0), (0, 3)), np.empty((0, 3))),
        (np.broadcast_to(np.ones((3, 0)), (9000, 3, 0)), np.empty((9000, 3, 0))),
    ],
)
def test_all_layouts_are_copied_as_numpy_copies_them(given, like):
    copy_into(like, given)
    np.testing.assert_array_equal(like, given)
