"""The op table and the managers on CuPy's arrays, compared with NumPy. Skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import cupy_on_a_gpu, each_case
from samples import CONSTANTS, SAMPLES, Sample, flat, gradients, tensors
from samples.gpu import COMPLEX_ON_GPU, MADE_ON_HOST, refusal, refused_call

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, gradcheck, tensor
from gradmgr._transforms.gradcheck import jvp

cupy = cupy_on_a_gpu()

pytestmark = pytest.mark.gpu

DTYPES = [np.float64, np.float32, np.complex128]
TOLERANCE = {"e": 2e-2, "f": 2e-4, "d": 1e-10, "F": 2e-4, "D": 1e-10}
ON_GPU = [s for s in SAMPLES if not s.repeats and refusal(s) is None]
BY_DTYPE = [(s, d) for s in SAMPLES if not s.repeats for d in DTYPES if s.is_complex or d is not np.complex128]

# What cuSOLVER may choose otherwise than LAPACK: signs and phases of vectors, the order of eigenvalues that have none.
# Only numeric differences on the GPU itself tell something of these.
FREE = ("linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.qr", "linalg.svd", "roots")
COMPARED = [s for s in ON_GPU if s.name not in FREE]


def on_gpu(sample: Sample, dtype: Any = np.float64) -> list[Any]:
    return [cupy.asarray(a) for a in sample.make(dtype)]


def host(value: Any) -> Any:
    value = value._array if isinstance(value, Tensor) else value
    return value.get() if isinstance(value, cupy.ndarray) else np.asarray(value)


def assert_all_on_gpu(values: Any) -> None:
    assert all(isinstance(v._array if isinstance(v, Tensor) else v, cupy.ndarray) for v in values)


def assert_close(found: Any, expected: Any) -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for a, b in zip(map(host, found), map(host, expected), strict=True):
        assert (a.shape, a.dtype) == (np.shape(b), np.asarray(b).dtype)
        tolerance = TOLERANCE.get(a.dtype.char, 0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@each_case([(s, d) for s, d in BY_DTYPE if refusal(s, d) is None and s.name not in FREE])
def test_values_and_gradients_are_those_on_numpy(sample: Sample, dtype: Any) -> None:
    found = flat(sample.call(gnp, *tensors(sample, on_gpu(sample, dtype))))
    assert_all_on_gpu(found)
    assert_close(found, sample.call(gnp, *tensors(sample, sample.make(dtype))))
    grads = gradients(sample, on_gpu(sample, dtype))
    assert_all_on_gpu(grads)
    assert_close(grads, gradients(sample, sample.make(dtype)))


@each_case([(s, d) for s, d in BY_DTYPE if refusal(s, d) is None and s.name in FREE])
def test_what_is_free_to_choose_stays_on_the_gpu(sample: Sample, dtype: Any) -> None:
    found = flat(sample.call(gnp, *tensors(sample, on_gpu(sample, dtype))))
    assert_all_on_gpu(found)
    expected = flat(sample.call(gnp, *tensors(sample, sample.make(dtype))))
    for a, b in zip(found, expected, strict=True):
        wide = np.result_type(b.dtype, np.complex64) if sample.name in COMPLEX_ON_GPU else b.dtype
        assert (a.shape, a.dtype) in ((b.shape, b.dtype), (b.shape, wide))
    assert_all_on_gpu(gradients(sample, on_gpu(sample, dtype)))


@each_case([(s, d) for s, d in BY_DTYPE if refusal(s, d) is not None])
def test_what_cupy_lacks_is_refused_by_name(sample: Sample, dtype: Any) -> None:
    with pytest.raises(errors.UnsupportedFunctionError, match=refusal(sample, dtype).lacking):
        sample.call(gnp, *tensors(sample, on_gpu(sample, dtype)))


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, calls in CONSTANTS.items() for k in range(len(calls))])
def test_functions_without_gradient_are_numpys_or_refused_by_name(name: str, k: int) -> None:
    random, call = np.random.default_rng(1), CONSTANTS[name][k]
    arrays = [np.round(random.uniform(-2, 2, (3, 4))) for _ in range(2)]
    points = [tensor(cupy.asarray(a)) for a in arrays]
    refused = refused_call(name, k)
    if refused is not None:
        with pytest.raises(errors.UnsupportedFunctionError, match=refused.lacking):
            call(gnp, *points)
        return
    for a, b in zip(flat(call(gnp, *points)), flat(call(np, *arrays)), strict=True):
        if isinstance(b, (np.ndarray, np.generic)):
            np.testing.assert_allclose(host(a), b, rtol=1e-10)
        else:
            assert a == b


@each_case(COMPARED)
def test_tangents_are_those_on_numpy(sample: Sample) -> None:
    def tangents(arrays: list[Any]) -> list[Tensor]:
        vs = [arrays[k] * 0.5 + 1.0 for k in sample.where]
        return jvp(lambda *given: flat(sample.call(gnp, *given)), tensors(sample, arrays), sample.where, vs)

    finite = [np.nan_to_num(a, neginf=-3.0) if a.dtype.kind == "f" else a for a in sample.make()]
    found = tangents([cupy.asarray(a) for a in finite])
    assert_all_on_gpu(found)
    assert_close(found, tangents(finite))


@each_case([s for s in ON_GPU if s.smooth])
def test_second_derivatives_agree(sample: Sample) -> None:
    points = tensors(sample, on_gpu(sample))
    assert gradcheck(lambda *given: sample.call(gnp, *given), points, order=2, fast_mode=True)


@each_case([s for s in ON_GPU if s.dispatches and str(s) not in MADE_ON_HOST])
def test_numpys_functions_give_the_same_on_tensors(sample: Sample) -> None:
    found = flat(sample.call(np, *tensors(sample, on_gpu(sample))))
    assert all(isinstance(y, Tensor) for y in found)
    assert_all_on_gpu(found)


@each_case([s for s in SAMPLES if s.repeats])
def test_writing_one_element_twice_is_refused(sample: Sample) -> None:
    points = tensors(sample, on_gpu(sample))
    with pytest.raises((ValueError, IndexError), match=r"(?i)order|twice|repeat|duplicate"):
        sample.call(gnp, *points)
    assert_close(points, sample.make())


VALUES = [[1.0, -2.0], [3.0, 0.5]]


def test_a_training_step_stays_on_the_gpu() -> None:
    w, x = tensor(cupy.asarray(VALUES)), cupy.asarray([[1.0, 2.0], [0.5, -1.0], [3.0, 1.0]])
    plain_w, plain_x = tensor(VALUES), x.get()
    for weights, inputs in ((w, x), (plain_w, plain_x)):
        manager = GradManager().attach(weights)
        for _ in range(3):
            with manager:
                manager.backward(gnp.mean(gnp.tanh(inputs @ weights) ** 2))
            weights -= 0.1 * weights.grad
            weights.grad = None
    assert w.device == "cuda:0"
    assert_close(w, plain_w)


def test_arrays_on_both_sides() -> None:
    x, a = tensor(cupy.asarray(VALUES)), cupy.asarray([[2.0, 2.0], [4.0, 4.0]])
    manager = GradManager().attach(x)
    for y in (lambda: a * x, lambda: x * a, lambda: cupy.multiply(a, x), lambda: np.multiply(a, x)):
        with manager:
            manager.backward(y().sum())
        assert_close(x.grad, a)
        x.grad = None
    assert_close(cupy.true_divide(a, x), host(a) / host(x))


def test_mixing_is_refused_by_name() -> None:
    x = tensor(cupy.asarray(VALUES))
    for mix in (lambda: x + np.ones((2, 2)), lambda: np.ones((2, 2)) * x, lambda: x @ tensor(VALUES)):
        with pytest.raises(errors.MixedArraysError, match="both NumPy and CuPy"):
            mix()


def test_writing_in_place() -> None:
    x = gnp.exp(tensor(cupy.asarray(VALUES)))
    row, expected = x[0], np.exp(VALUES)
    x[0, 1] = 7.0
    x *= 2.0
    assert_close(row, expected[0])
    expected[0, 1] = 7.0
    assert_close(x, 2 * expected)
    wide = gnp.broadcast_to(gnp.exp(tensor(cupy.asarray([1.0, 2.0]))), (3, 2))
    wide[0] = 0.0
    assert_close(wide, np.array([[0.0, 0.0], *[np.exp([1.0, 2.0])] * 2]))
    shared = cupy.asarray(VALUES)
    t = asarray(shared)
    t += 1.0
    assert_close(shared, np.asarray(VALUES))


def test_gradients_travel_between_devices() -> None:
    x = tensor(VALUES, device="cuda:0")
    manager = GradManager().attach(x)
    with manager:
        manager.backward(((x.to("cpu") ** 2).to("cuda:0") * x).sum())
    assert_all_on_gpu([x.grad])
    assert_close(x.grad, 3 * np.square(VALUES))
    with pytest.raises(TypeError, match=r"numpy\(\)"):
        np.asarray(x)
    assert x.numpy().tolist() == VALUES
