"""stack and concatenate of many arrays, and the gradients of the pieces."""

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, tensor


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("order", ["C", "F"])
def test_stack_is_numpys_along_every_axis(axis, order):
    arrays = [np.asarray(a, order=order) for a in np.random.default_rng(0).standard_normal((5, 2, 3, 4))]
    tensors = [tensor(a) for a in arrays]
    dy = np.random.default_rng(1).standard_normal(np.stack(arrays, axis).shape)
    with GradManager().attach(tensors) as gm:
        z = gnp.stack(tensors, axis)
        gm.backward(z, dy)
    np.testing.assert_array_equal(z.numpy(), np.stack(arrays, axis))
    for k, t in enumerate(tensors):
        np.testing.assert_array_equal(t.grad.numpy(), np.take(dy, k, axis))


def test_a_gradient_of_a_piece_is_memory_of_its_own():
    x, y = tensor(np.zeros(3)), tensor(np.zeros(3))
    with GradManager().attach([x, y]) as gm:
        gm.backward(gnp.concatenate([x, y]), np.arange(6.0))
    x.grad += 10
    np.testing.assert_array_equal(x.grad.numpy(), [10, 11, 12])
    np.testing.assert_array_equal(y.grad.numpy(), [3, 4, 5])


def test_arrays_of_the_wrong_shape_are_refused_by_name():
    x = tensor(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="same shape"):
        gnp.stack([x, np.zeros((3, 2))])
    with pytest.raises(ValueError, match="number of dimensions"):
        gnp.concatenate([x, np.zeros(3)], axis=1)
    with pytest.raises(ValueError, match="must match exactly"):
        gnp.concatenate([x, np.zeros((2, 4))])


def test_the_gradient_of_each_of_many_arrays_has_its_length():
    lengths = [k % 7 for k in range(1000)]
    parts = [tensor(np.zeros(length)) for length in lengths]
    dy = np.arange(float(sum(lengths)))
    with GradManager().attach(parts) as gm:
        gm.backward(gnp.concatenate(parts), dy)
    np.testing.assert_array_equal(np.concatenate([t.grad.numpy() for t in parts]), dy)
