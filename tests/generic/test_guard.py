"""Arrays that are not NumPy's: the whole table on the guard class of guard.py, and managers over it.

What would copy to the host implicitly, or mix two kinds of arrays, fails here.
"""

from __future__ import annotations

import sys
from typing import Any

import guard
import numpy as np
import pytest
from helpers import assert_allclose, each_case, host
from samples import CONSTANTS, SAMPLES, Sample, flat, gradients, tensors, twice_on_one_tape
from samples.gpu import COMPLEX_ON_GPU, FOR_THE_HOST, MADE_ON_HOST, REFUSED_ON_GPU, refusal, refused_call

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, tensor
from gradmgr._engine.custom import apply
from gradmgr._engine.op import Op
from gradmgr._transforms.gradcheck import gradcheck, jvp

pytestmark = pytest.mark.usefixtures("cupy")

ON_GPU = [s for s in SAMPLES if not s.repeats and refusal(s) is None]
BY_DTYPE = [(s, d) for s in SAMPLES if not s.repeats for d in [np.float64, np.complex128][: 1 + s.is_complex]]
each = each_case(ON_GPU)


def on_guard(sample: Sample, dtype: Any = np.float64) -> list[Any]:
    return [guard.cupy.asarray(a) for a in sample.make(dtype)]


def assert_all_guards(values: Any) -> None:
    assert all(isinstance(v._array if isinstance(v, Tensor) else v, guard.ndarray) for v in values)


def assert_equal(found: Any, expected: Any, name: str = "") -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for a, b in zip(map(host, found), map(host, expected), strict=True):
        if name in COMPLEX_ON_GPU and a.dtype.kind == "c":
            b = b.astype(a.dtype)
        assert (np.shape(a), np.asarray(a).dtype) == (np.shape(b), np.asarray(b).dtype)
        assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- the op table


@each_case([(s, d) for s, d in BY_DTYPE if refusal(s, d) is None])
def test_values_and_gradients_are_those_on_numpy(sample: Sample, dtype: Any) -> None:
    points = tensors(sample, on_guard(sample, dtype))
    found = flat(sample.call(gnp, *points))
    assert_all_guards(found)
    assert_equal(found, sample.call(gnp, *tensors(sample, sample.make(dtype))), sample.name)
    grads = gradients(sample, on_guard(sample, dtype))
    assert_all_guards(grads)
    assert_equal(grads, gradients(sample, sample.make(dtype)))
    assert guard.ndarray.copies_to_host == 0


@each_case([(s, d) for s, d in BY_DTYPE if refusal(s, d) is not None])
def test_what_cupy_lacks_is_refused_by_name(sample: Sample, dtype: Any) -> None:
    points = tensors(sample, on_guard(sample, dtype))
    for tracked in (False, True):
        manager = GradManager().attach([points[k] for k in sample.where] if tracked else [])
        with manager, pytest.raises(errors.UnsupportedFunctionError, match=r"\.to\('cpu'\)") as caught:
            sample.call(gnp, *points)
        place, _, name = sample.name.rpartition(".")
        assert place == "engine" or name in str(caught.value)
        assert refusal(sample, dtype).lacking in str(caught.value)
        assert guard.ndarray.copies_to_host == 0


CALLS = [(name, k) for name, calls in CONSTANTS.items() for k in range(len(calls))]


@pytest.mark.parametrize(("name", "k"), CALLS)
def test_functions_without_gradient_are_numpys_or_refused_by_name(name: str, k: int) -> None:
    random, call = np.random.default_rng(1), CONSTANTS[name][k]
    arrays = [np.round(random.uniform(-2, 2, (3, 4))) for _ in range(2)]
    expected, refused = flat(call(np, *arrays)), refused_call(name, k)
    for xp in (gnp, np):
        points = [tensor(guard.cupy.asarray(a)) for a in arrays]
        if refused is not None:
            with pytest.raises(errors.UnsupportedFunctionError, match=r"\.to\('cpu'\)") as caught:
                call(xp, *points)
            assert name in str(caught.value)
            assert refused.lacking in str(caught.value)
            continue
        for a, b in zip(flat(call(xp, *points)), expected, strict=True):
            if isinstance(b, (np.ndarray, np.generic)):
                np.testing.assert_array_equal(host(a), b)
            else:
                assert a == b
        assert guard.ndarray.copies_to_host == 0 or name in FOR_THE_HOST


def test_every_refusal_is_of_a_sample() -> None:
    names = {s.name for s in SAMPLES} | {str(s) for s in SAMPLES} | set(CONSTANTS) | {f"{n}-{k}" for n, k in CALLS}
    assert set(REFUSED_ON_GPU) | set(FOR_THE_HOST) | set(MADE_ON_HOST) | set(COMPLEX_ON_GPU) <= names


@each
def test_no_saved_value_is_on_the_host(sample: Sample) -> None:
    points = tensors(sample, on_guard(sample))
    with GradManager().attach([points[k] for k in sample.where]) as manager:
        held = sample.call(gnp, *points)
        for entry in manager._tape.entries:
            kept = [v for v in entry[2:] if isinstance(v, np.ndarray)]
            assert not [v for v in kept if v.dtype.kind in "fc" and v.ndim > 0]
        del held


@each
def test_tangents_are_those_on_numpy(sample: Sample) -> None:
    def tangents(arrays: list[Any]) -> list[Tensor]:
        call = lambda *given: flat(sample.call(gnp, *given))
        vs = [arrays[k] * 0.5 + 1.0 for k in sample.where]
        return jvp(call, tensors(sample, arrays), sample.where, vs)

    finite = [np.nan_to_num(a, neginf=-3.0) if a.dtype.kind == "f" else a for a in sample.make()]
    found = tangents([guard.cupy.asarray(a) for a in finite])
    assert_all_guards(found)
    assert_equal(found, tangents(finite), sample.name)


@each_case([s for s in ON_GPU if s.smooth])
def test_second_derivatives_are_those_on_numpy(sample: Sample) -> None:
    if sample.name in COMPLEX_ON_GPU:  # the weights of complex results are others than those of real ones
        points = tensors(sample, on_guard(sample))
        assert gradcheck(lambda *given: sample.call(gnp, *given), points, order=2, fast_mode=True)
        return
    (first, second), expected = twice_on_one_tape(sample, on_guard(sample)), twice_on_one_tape(sample, sample.make())
    assert_all_guards(first + second)
    assert_equal([first, second], expected)


@each_case([s for s in ON_GPU if s.dispatches])
def test_numpys_functions_give_the_same_on_tensors(sample: Sample) -> None:
    if str(sample) in MADE_ON_HOST:
        with pytest.raises(errors.MixedArraysError):
            sample.call(np, *tensors(sample, on_guard(sample)))
        return
    found = flat(sample.call(np, *tensors(sample, on_guard(sample))))
    assert all(isinstance(y, Tensor) for y in found)
    assert_all_guards(found)


@each_case([s for s in SAMPLES if s.repeats])
def test_writing_one_element_twice_is_refused(sample: Sample) -> None:
    arrays = on_guard(sample)
    points = tensors(sample, arrays)
    with pytest.raises((ValueError, IndexError), match=r"(?i)order|twice|repeat|duplicate"):
        sample.call(gnp, *points)
    assert_equal(points, sample.make())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: np.unstack(a), "no unstack"),
        (lambda a: np.spacing(a), "no spacing"),
        (lambda a: np.logical_not(a + 1j), r"logical_not does not take .*complex128"),
        (lambda a: np.sum(a, where=a > 0), "sum has no keyword where"),
        (lambda a: np.asarray(a), "host memory"),
    ],
)
def test_a_kernel_that_cupy_lacks_is_said_so_in_one_place(call: Any, says: str) -> None:
    a = guard.cupy.asarray([1.0, 2.0])
    kernel = Op("some_op", lambda array: call(array))
    with GradManager(), pytest.raises(errors.UnsupportedFunctionError, match=rf"some_op.*{says}.*to\('cpu'\)"):
        apply(kernel, (tensor(a),), ())


# ---------------------------------------------------------------- managers


def squares() -> Tensor:
    return tensor(guard.cupy.asarray([[1.0, -2.0], [3.0, 0.5]]))


def test_grad_lives_where_the_tensor_does() -> None:
    x = squares()
    assert x.device == "cuda:0"
    manager = GradManager().attach(x)
    for _ in range(2):  # the second time it accumulates
        with manager:
            manager.backward((x * x).sum())
    assert x.grad.device == "cuda:0"
    assert_all_guards([x.grad])
    np.testing.assert_array_equal(host(x.grad), 4 * host(x))
    assert guard.ndarray.copies_to_host == 0


def test_accumulation_keeps_the_grad_object() -> None:
    x = squares()
    manager = GradManager().attach(x)
    with manager:
        manager.backward((x * x).sum())
    before = x.grad
    with manager:
        manager.backward(x.sum())
    assert x.grad is before
    np.testing.assert_array_equal(host(before), 2 * host(x) + 1)


def test_tensor_copies_and_asarray_shares() -> None:
    a = guard.cupy.asarray([1.0, 2.0])
    assert tensor(a)._array is not a
    assert asarray(a)._array is a
    t = asarray(a)
    t += 1.0
    np.testing.assert_array_equal(host(a), [1.0, 2.0])
    np.testing.assert_array_equal(host(t), [2.0, 3.0])


def test_a_slice_does_not_change_with_its_tensor() -> None:
    x = squares() * 1.0
    row, flipped = x[0], x[::-1]
    x[0] = 9.0
    x *= 2.0
    np.testing.assert_array_equal(host(row), [1.0, -2.0])
    np.testing.assert_array_equal(host(flipped), [[3.0, 0.5], [1.0, -2.0]])
    np.testing.assert_array_equal(host(x), [[18.0, 18.0], [6.0, 1.0]])


def test_a_private_buffer_is_written_in_place() -> None:
    x = gnp.exp(squares())
    buffer = x._array
    address = id(buffer)
    del buffer
    x[0] = 1.0
    assert id(x._array) == address


def test_writing_to_a_broadcast_tensor_writes_one_element() -> None:
    """CuPy's broadcast views are writeable, every repetition of an element being the same memory."""
    x = gnp.broadcast_to(gnp.exp(squares()[0]), (3, 2))
    expected = host(x).copy()
    x[0, 1] = 7.0
    expected[0, 1] = 7.0
    np.testing.assert_array_equal(host(x), expected)


def test_updates_of_a_broadcast_tensor_count_once() -> None:
    x = gnp.broadcast_to(gnp.exp(gnp.zeros((1, 1), device="cuda:0")), (40, 40))  # large enough to be updated in place
    x += 1.0
    np.testing.assert_array_equal(host(x), np.full((40, 40), 2.0))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, a: x + a,
        lambda x, a: a * x,
        lambda x, a: gnp.maximum(x, a),
        lambda x, a: np.subtract(a, x),
        lambda x, a: x @ a,
        lambda x, a: gnp.where(x > 0, x, a),
        lambda x, a: gnp.concatenate([x, a]),
        lambda x, a: gnp.clip(x, a, None),
        lambda x, a: x > a,
        lambda x, a: x + tensor(a),
        lambda x, a: gnp.einsum("ij,jk", x, tensor(a)),
        lambda x, a: gnp.stack([x, tensor(a)]),
        lambda x, a: x.__setitem__(0, a[0]),
        lambda x, a: x.__iadd__(a),
    ],
)
def test_mixing_with_numpy_arrays_is_refused_by_name(mix: Any) -> None:
    x, a = squares(), np.ones((2, 2))
    with (
        GradManager().attach(x),
        pytest.raises(errors.MixedArraysError, match=r"both NumPy and CuPy; .*to\('cuda:0'\)"),
    ):
        mix(x, a)
    np.testing.assert_array_equal(host(x), [[1.0, -2.0], [3.0, 0.5]])
    np.testing.assert_array_equal(a, np.ones((2, 2)))


def test_numbers_combine_with_gpu_tensors() -> None:
    x = squares()
    for number in (2, 2.0, np.float32(2), np.int64(2), True):
        assert_all_guards([x * number, number * x, x + number, number - x])


def test_guard_arrays_combine_with_tensors_on_both_sides() -> None:
    x, a = squares(), guard.cupy.asarray([[2.0, 2.0], [4.0, 4.0]])
    manager = GradManager().attach(x)
    for y in (lambda: a * x, lambda: x * a, lambda: guard.cupy.multiply(a, x), lambda: np.multiply(a, x)):
        with manager:
            manager.backward(y().sum())
        np.testing.assert_array_equal(host(x.grad), host(a))
        x.grad = None


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (lambda a, x: guard.cupy.true_divide(a, x), lambda a, x: a / x),
        (lambda a, x: guard.cupy.divide(a, x), lambda a, x: a / x),
        (lambda a, x: guard.cupy.power(a, x), lambda a, x: a**x),
        (lambda a, x: guard.cupy.subtract(a, x), lambda a, x: a - x),
        (lambda a, x: guard.cupy.conjugate(x), lambda a, x: x),
        (lambda a, x: guard.cupy.abs(x), lambda a, x: abs(x)),
        (lambda a, x: guard.cupy.greater(a, x), lambda a, x: a > x),
        (lambda a, x: a / x, lambda a, x: a / x),
        (lambda a, x: a @ x, lambda a, x: a @ x),
        (lambda a, x: a > x, lambda a, x: a > x),
    ],
)
def test_cupys_ufuncs_dispatch_to_gradmgr(ours: Any, numpys: Any) -> None:
    x, a = squares(), guard.cupy.asarray([[2.0, 2.0], [4.0, 4.0]])
    found = ours(a, x)
    assert isinstance(found, Tensor)
    assert_equal(found, numpys(host(a), host(x)))


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x, v, w, out: xp.matvec(x, v),
        lambda xp, x, v, w, out: xp.matvec(x, v, out=out),
        lambda xp, x, v, w, out: xp.vecmat(w, x),
        lambda xp, x, v, w, out: xp.vecdot(x * 1j, v),
        lambda xp, x, v, w, out: xp.vecdot(w, x, axis=0),
        lambda xp, x, v, w, out: xp.vecdot(x, v, keepdims=True),
        lambda xp, x, v, w, out: xp.linalg.vecdot(x, v),
    ],
)
def test_products_of_plain_arrays_that_cupy_lacks(call: Any) -> None:
    """CuPy takes part in no gufunc but matmul."""
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(3.0), np.arange(2.0)[:, None], np.zeros(2)]
    if "vecmat" in call.__code__.co_names:
        arrays[2] = arrays[2][:, 0]
    found = call(gnp, *map(guard.cupy.asarray, arrays))
    assert isinstance(found, guard.ndarray)
    assert guard.ndarray.copies_to_host == 0
    np.testing.assert_array_equal(found._host, call(gnp, *arrays))


def test_numpy_copies_and_implicit_conversion_raises() -> None:
    x = squares()
    a = x.numpy()
    assert isinstance(a, np.ndarray)
    assert guard.ndarray.copies_to_host == 1
    a = a.copy()
    a[0] = 5.0
    np.testing.assert_array_equal(host(x)[0], [1.0, -2.0])
    with pytest.raises(TypeError, match=r"cuda:0.*numpy\(\)"):
        np.asarray(x)
    with GradManager().attach(x), pytest.raises(errors.TrackedConversionError, match=r"numpy\(\)"):
        np.asarray(x)


def test_explicit_conversions() -> None:
    x = squares()
    assert x.tolist() == [[1.0, -2.0], [3.0, 0.5]]
    assert x[0, 1].item() == -2.0
    assert float(x[0, 1]) == -2.0
    assert int(x[1, 0]) == 3
    assert bool(x[0, 0] > 0)
    assert x.item(3) == 0.5
    assert repr(x[0]) == "Tensor([ 1., -2.], device='cuda:0')"
    assert x.cupy() is not x._array
    np.testing.assert_array_equal(x.cupy()._host, host(x))


def test_a_float_is_no_index() -> None:
    with pytest.raises(TypeError, match=r"index|integer"):
        range(squares()[0, 0])
    assert list(range(tensor(guard.cupy.asarray(3)))) == [0, 1, 2]


def test_gradients_travel_between_devices() -> None:
    x = squares()
    manager = GradManager().attach(x)
    with manager:
        on_host = x.to("cpu")
        assert on_host.device == "cpu"
        back = (on_host * on_host).to("cuda:0")
        manager.backward((back * x).sum())
    assert_all_guards([x.grad])
    assert_allclose(host(x.grad), 3 * host(x) ** 2)


def test_the_move_has_derivatives_of_second_order() -> None:
    assert gradcheck(lambda x: (x.to("cpu") ** 3).to("cuda:0") * x, squares(), order=2)
    assert gradcheck(lambda x: (x.to("cuda:0") ** 3).to("cpu") * x, tensor([1.0, 2.0]), order=2)


def test_moving_where_it_is_gives_itself() -> None:
    x = squares()
    assert x.to("cuda:0") is x
    assert x.to("cuda") is x


def test_creation_on_the_gpu() -> None:
    made = [gnp.zeros(2, device="cuda:0"), gnp.ones((2, 3), device="cuda"), gnp.arange(3, device="cuda:0")]
    made += [tensor([1.0, 2.0], device="cuda:0"), asarray([1.0], device="cuda:0"), gnp.eye(2, device="cuda:0")]
    made += [gnp.full(2, 1.5, device="cuda:0"), gnp.linspace(0, 1, 3, device="cuda:0"), gnp.zeros_like(squares())]
    assert_all_guards(made)
    assert {t.device for t in made} == {"cuda:0"}


def test_a_dy_on_the_wrong_device_is_refused_before_anything_changes() -> None:
    x = squares()
    manager = GradManager().attach(x)
    with manager:
        y = x * x
        with pytest.raises(errors.MixedArraysError, match="cuda:0"):
            manager.backward(y, np.ones((2, 2)))
        assert x.grad is None
        manager.backward(y, guard.cupy.asarray(np.ones((2, 2))))
    np.testing.assert_array_equal(host(x.grad), 2 * host(x))


def test_a_grad_on_the_wrong_device_is_refused() -> None:
    x = squares()
    with pytest.raises(TypeError, match="must live on cuda:0"):
        x.grad = tensor(np.zeros((2, 2)))
    assert x.grad is None


def test_setting_by_mask_and_array() -> None:
    x = squares()
    manager = GradManager().attach(x)
    with manager:
        y = x.copy()
        y[x < 0] = 0.0
        y[guard.cupy.asarray([1, 0])] = y * 2.0
        manager.backward(y.sum())
    np.testing.assert_array_equal(host(y), [[6.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(host(x.grad), [[2.0, 0.0], [2.0, 2.0]])


def test_no_gpu_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.cupy.cuda, "is_available", lambda: False)
    with pytest.raises(errors.DeviceError, match="no GPU"):
        tensor([1.0], device="cuda:0")


def test_no_cupy_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # import cupy then raises ImportError
    with pytest.raises(errors.DeviceError, match=r"pip install -e \"\.\[cuda12\]\""):
        tensor([1.0], device="cuda:0")
    with pytest.raises(ValueError, match="device 'gpu'"):
        tensor([1.0]).to("gpu")


# ---------------------------------------------------------------- the guard itself refuses what CuPy refuses


@pytest.mark.parametrize(
    "refused",
    [
        lambda a: np.asarray(a),
        lambda a: np.array([a, a]),
        lambda a: a + np.ones(3),
        lambda a: np.ones(3) * a,
        lambda a: np.add(a, np.ones(3)),
        lambda a: a * [1.0, 2.0, 3.0],
        lambda a: a.__iadd__(np.ones(3)),
        lambda a: np.where(a > 0, a, np.ones(3)),
        lambda a: np.concatenate([a, np.ones(3)]),
        lambda a: np.sum(a, where=a > 0),
        lambda a: np.sum(a, initial=1.0),
        lambda a: np.exp(a, where=a > 0),
        lambda a: np.add.reduce(a, where=a > 0),
        lambda a: np.unstack(a),
        lambda a: np.vecdot(a, a),
        lambda a: np.logical_not(a + 1j),
        lambda a: guard.cupy.add.at(a + 1j, guard.cupy.asarray([0, 0]), 1.0),
    ],
)
def test_the_guard_refuses(refused: Any) -> None:
    with pytest.raises(TypeError):
        refused(guard.cupy.asarray([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (NotImplementedError, lambda a: np.maximum.reduce(a)),
        (NotImplementedError, lambda a: np.multiply.reduceat(a, guard.cupy.asarray([0]))),
        (NotImplementedError, lambda a: guard.cupy.multiply.at(a, [0], 1.0)),
        (ValueError, lambda a: np.modf(a, out=(a, a))),
        (ValueError, lambda a: a.__setitem__(slice(2), np.ones(2))),
    ],
)
def test_the_guard_refuses_with_cupys_errors(error: Any, refused: Any) -> None:
    with pytest.raises(error):
        refused(guard.cupy.asarray([1.0, 2.0, 3.0]))


def test_the_guard_behaves_as_cupy() -> None:
    a = guard.cupy.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(a.sum(), guard.ndarray)
    assert isinstance(np.max(a), guard.ndarray)
    assert isinstance(a[0, 0], guard.ndarray)
    view = a[0].reshape(2, 1)
    assert view.base is a
    assert not view.flags.owndata
    assert (a * 2).base is None
    a[guard.cupy.asarray([0, 0])] = guard.cupy.asarray([[5.0, 5.0], [6.0, 6.0]])
    np.testing.assert_array_equal(a._host[0], [5.0, 5.0])  # not the last, as NumPy would have it
    guard.cupy.add.at(a, [0, 0], 1.0)
    np.testing.assert_array_equal(a._host[0], [7.0, 7.0])
    wide = guard.cupy.broadcast_to(a[0], (3, 2))
    wide[0] = 0.0
    np.testing.assert_array_equal(wide._host, np.zeros((3, 2)))
    assert gradmgr._arrays.libraries.namespace(a) is guard.cupy


def test_the_guard_counts_waits_for_the_device_and_wraps_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.ndarray, "waits", 0)
    a = guard.cupy.asarray([1.0, 2.0, 3.0])
    a[guard.cupy.asarray([True, False, True])] = 4.0
    row = a[guard.cupy.asarray([5, -1])]  # out of range, which CuPy does not look for
    np.testing.assert_array_equal(row._host, [4.0, 4.0])
    assert a.view(np.int64).base is a
    assert guard.ndarray.waits == 0
    for waiting in (lambda: float(a[0]), lambda: bool(a.any()), lambda: a[a > 1], lambda: np.flatnonzero(a), a.get):
        before = guard.ndarray.waits
        waiting()
        assert guard.ndarray.waits == before + 1
