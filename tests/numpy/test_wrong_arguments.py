"""Wrong arguments: NumPy's own exception type, our function's name in the text, and nothing has happened.

The same call is made on NumPy's arrays and on tracked Tensors. What NumPy takes, and these tests once
found refused or read otherwise, stands in the second part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, nn, tensor

X = np.arange(6.0).reshape(2, 3)
V = np.array([1.0, 2.0, 4.0])
M = np.array([[True, False, True], [False, False, True]])

# Each call takes the namespace, a matrix of shape (2, 3) and a vector of length 3.
WRONG: dict[str, list[Callable[..., Any]]] = {
    "reshape": [
        lambda xp, x, v: xp.reshape(x, (4, 4)),
        lambda xp, x, v: xp.reshape(x, (-1, -1)),
        lambda xp, x, v: xp.reshape(x, (2.0, 3)),
        lambda xp, x, v: xp.reshape(x, (6,), order="Z"),
        lambda xp, x, v: xp.reshape(x, (6,), order="K"),
        lambda xp, x, v: xp.reshape(x, (6,), order=1),
        lambda xp, x, v: xp.reshape(x, (6,), wrong=1),
        lambda xp, x, v: xp.reshape([v, v], (4, 4)),
    ],
    "ravel": [lambda xp, x, v: xp.ravel(x, "Z"), lambda xp, x, v: xp.ravel(x, 1)],
    "transpose": [
        lambda xp, x, v: xp.transpose(x, 0),
        lambda xp, x, v: xp.transpose(x, (0, 2)),
        lambda xp, x, v: xp.transpose(x, (0, 0)),
        lambda xp, x, v: xp.transpose([v, v], (0, 2)),
    ],
    "squeeze": [lambda xp, x, v: xp.squeeze(x, 0), lambda xp, x, v: xp.squeeze(x, [0])],
    "expand_dims": [lambda xp, x, v: xp.expand_dims(x, 5), lambda xp, x, v: xp.expand_dims(x, (0, 0))],
    "swapaxes": [lambda xp, x, v: xp.swapaxes(x, 0, 2), lambda xp, x, v: xp.swapaxes(x, True, "a")],
    "moveaxis": [lambda xp, x, v: xp.moveaxis(x, 0, (0, 1)), lambda xp, x, v: xp.moveaxis(x, 3, 0)],
    "rot90": [lambda xp, x, v: xp.rot90(x, axes=0), lambda xp, x, v: xp.rot90(x, axes=(0, 0))],
    "roll": [lambda xp, x, v: xp.roll(x, None), lambda xp, x, v: xp.roll(x, 1, 5)],
    "repeat": [
        lambda xp, x, v: xp.repeat(x, -1),
        lambda xp, x, v: xp.repeat(x, [1, 2], 1),
        lambda xp, x, v: xp.repeat(x, None),
    ],
    "tile": [lambda xp, x, v: xp.tile(x, (1.0, 3)), lambda xp, x, v: xp.tile(x, -1)],
    "broadcast_to": [lambda xp, x, v: xp.broadcast_to(x, (3, 3)), lambda xp, x, v: xp.broadcast_to(x, (2.0, 3))],
    "diag": [lambda xp, x, v: xp.diag(x, 1.5), lambda xp, x, v: xp.diag(xp.zeros((1, 2, 3)))],
    "trace": [
        lambda xp, x, v: xp.trace(v),
        lambda xp, x, v: xp.trace(x, "a"),
        lambda xp, x, v: xp.trace(x, axis1=7),
        lambda xp, x, v: xp.trace(x, out=xp.zeros(3)),
    ],
    "concatenate": [
        lambda xp, x, v: xp.concatenate([x, v]),
        lambda xp, x, v: xp.concatenate([x, xp.zeros((2, 2))]),
        lambda xp, x, v: xp.concatenate([x, x], 2),
        lambda xp, x, v: xp.concatenate([x, x], out=xp.zeros((4, 3)), dtype=float),
        lambda xp, x, v: xp.concatenate([x, x], dtype=int),
        lambda xp, x, v: xp.concatenate([x, x], casting="wrong"),
        lambda xp, x, v: xp.concatenate([x, xp.zeros((2, 3), np.float32)], casting="no"),
        lambda xp, x, v: xp.concatenate([x, x], out="x"),
        lambda xp, x, v: xp.concatenate([]),
        lambda xp, x, v: xp.concatenate([xp.zeros(()), 1.0]),
    ],
    "stack": [lambda xp, x, v: xp.stack([x, v]), lambda xp, x, v: xp.stack([v, v], 5)],
    "split": [lambda xp, x, v: xp.split(v, 2), lambda xp, x, v: xp.split(v, 2.5), lambda xp, x, v: xp.split(v, 0)],
    "array_split": [lambda xp, x, v: xp.array_split(v, 0), lambda xp, x, v: xp.array_split(v, [1.5])],
    "take": [
        lambda xp, x, v: xp.take(v, 9),
        lambda xp, x, v: xp.take(v, np.array([0.0])),
        lambda xp, x, v: xp.take(v, 0, 3),
        lambda xp, x, v: xp.take(v, 0, mode="wrong"),
        lambda xp, x, v: xp.take(xp.zeros(0), 0),
        lambda xp, x, v: xp.take(v, [0, 1], out=xp.zeros((2, 2))),
    ],
    "where": [lambda xp, x, v: xp.where(x > 1, x), lambda xp, x, v: xp.where(x > 1, x, np.zeros(2))],
    "round": [lambda xp, x, v: xp.round(x, "a"), lambda xp, x, v: xp.round(v, out=xp.zeros((2, 3)))],
    "sort": [lambda xp, x, v: xp.sort(x, 2), lambda xp, x, v: xp.sort(x, kind="wrong")],
    "choose": [lambda xp, x, v: xp.choose([0, 1, 3], [v, v])],
    "compress": [lambda xp, x, v: xp.compress([True, False], v, out=xp.zeros(3))],
    "put": [
        lambda xp, x, v: xp.put(v, [9], 1.0),
        lambda xp, x, v: xp.put(v, np.array([0.0]), 1.0),
        lambda xp, x, v: xp.put(xp.zeros(0), [0], v),
    ],
    "insert": [lambda xp, x, v: xp.insert(x, 9, v, 0)],
    "delete": [lambda xp, x, v: xp.delete(v, 9)],
    "resize": [lambda xp, x, v: xp.resize(v, (1.0, 3))],
    "pad": [
        lambda xp, x, v: xp.pad(x, -1),
        lambda xp, x, v: xp.pad(x, 1.5),
        lambda xp, x, v: xp.pad(x, 1, stat_length=1),
        lambda xp, x, v: xp.pad(x, {5: 1}),
    ],
    "nan_to_num": [lambda xp, x, v: xp.nan_to_num(x, nan="a")],
    "clip": [lambda xp, x, v: xp.clip(x, 0, 1, min=0), lambda xp, x, v: xp.clip(x, 0, np.zeros(2))],
    "arange": [lambda xp, x, v: xp.arange(), lambda xp, x, v: xp.arange("a")],
    "linspace": [lambda xp, x, v: xp.linspace(v, v, -1), lambda xp, x, v: xp.linspace(v, v, 2.5)],
    "full": [lambda xp, x, v: xp.full((2, 2), v)],
    "vecdot": [lambda xp, x, v: xp.vecdot(x, np.zeros(2)), lambda xp, x, v: xp.vecdot(x, v, axis=0, axes=[0, 0, ()])],
    "matvec": [lambda xp, x, v: xp.matvec(x, v, dtype=np.int8)],
    "sin": [
        lambda xp, x, v: xp.sin(x, out=xp.zeros(2)),
        lambda xp, x, v: xp.sin(x, out=np.zeros(2)),
        lambda xp, x, v: xp.sin(x, out="x"),
        lambda xp, x, v: xp.sin(x, out=xp.zeros((2, 3), int)),
        lambda xp, x, v: xp.sin(x, dtype=int),
        lambda xp, x, v: xp.sin(x, where=np.array([1, 0, 1]), out=xp.zeros((2, 3))),
        lambda xp, x, v: xp.sin(x, where=[True, False], out=xp.zeros((2, 3))),
        lambda xp, x, v: xp.sin(x, wrong=1),
    ],
    "modf": [lambda xp, x, v: xp.modf(x, out=xp.zeros((2, 3))), lambda xp, x, v: xp.modf(x, out=("a", None))],
    "isnan": [lambda xp, x, v: xp.isnan(x, xp.zeros((2, 3), bool), out=xp.zeros((2, 3), bool))],
    "add.reduce": [
        lambda xp, x, v: xp.add.reduce(x, 2),
        lambda xp, x, v: xp.add.reduce(x, out=xp.zeros(2)),
        lambda xp, x, v: xp.add.reduce(x, where=np.array([1, 0, 1])),
        lambda xp, x, v: xp.add.reduce([v, v], (0, 0)),
    ],
    "maximum.accumulate": [
        lambda xp, x, v: xp.maximum.accumulate(x, 2),
        lambda xp, x, v: xp.maximum.accumulate(x, out=xp.zeros(2)),
        lambda xp, x, v: xp.maximum.accumulate(x, out="x"),
    ],
    "multiply.reduceat": [
        lambda xp, x, v: xp.multiply.reduceat(x, [9]),
        lambda xp, x, v: xp.multiply.reduceat(x, np.array([0.0, 1.0])),
    ],
    "multiply.at": [lambda xp, x, v: xp.multiply.at(v, [9], 2.0), lambda xp, x, v: xp.multiply.at(v, [0], x)],
    "subtract.outer": [lambda xp, x, v: xp.subtract.outer(x, v, out=xp.zeros(2))],
    "flatten": [lambda xp, x, v: x.flatten("Z")],
    "astype": [lambda xp, x, v: x.astype(np.float32, casting="safe"), lambda xp, x, v: x.astype("wrong")],
    "cumsum": [lambda xp, x, v: x.cumsum(5)],
    "partition": [lambda xp, x, v: x.partition(9)],
    # operators have no name to be called by
    "": [
        lambda xp, x, v: operator_add(x, np.zeros(2)),
        lambda xp, x, v: operator_add(v, x),
        lambda xp, x, v: operator_add(v, 1j),
        lambda xp, x, v: x.__setitem__(5, 1.0),
        lambda xp, x, v: x.__setitem__([0, 1], xp.zeros((2, 2), np.float32)),
        lambda xp, x, v: v[[True, False]],
    ],
}


def operator_add(x: Any, y: Any) -> Any:
    x += y
    return x


if not hasattr(np, "matvec"):  # before NumPy 2.2
    del WRONG["matvec"]
if np.lib.NumpyVersion(np.__version__) < "2.3.0":  # takes "wrong" for wrap
    del WRONG["take"][3]
if np.lib.NumpyVersion(np.__version__) < "2.4.0":  # knows no widths by axis
    del WRONG["pad"][3]
CASES = [(name, k, call) for name, calls in WRONG.items() for k, call in enumerate(calls)]


@pytest.mark.parametrize(("name", "k", "call"), CASES, ids=[f"{name}-{k}" for name, k, _ in CASES])
def test_wrong_arguments(name: str, k: int, call: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as numpys:  # noqa: PT011  # whatever it is, ours must be of it
        call(np, X.copy(), V.copy())
    kinds = (np.exceptions.AxisError, IndexError, ValueError, TypeError, ZeroDivisionError)
    kind = next(kind for kind in kinds if isinstance(numpys.value, kind))
    x, v = tensor(X), tensor(V)
    manager = GradManager().attach([x, v])
    with manager:
        before = len(manager._tape.entries)
        with pytest.raises(kind) as ours:
            call(gnp, x, v)
        assert len(manager._tape.entries) == before
        np.testing.assert_array_equal(x.numpy(), X)
        np.testing.assert_array_equal(v.numpy(), V)
        manager.backward(gnp.sum(x) + gnp.sum(v))  # both are what the manager knew them as
    assert x.grad.tolist() == np.ones((2, 3)).tolist()
    assert v.grad.tolist() == [1, 1, 1]
    assert name in str(ours.value)


def test_an_error_within_a_function_of_the_users_is_the_users() -> None:
    def wrong(*args: Any) -> Any:
        raise ValueError("mine")

    t = tensor(X)
    for call in (
        lambda: gnp.apply_along_axis(wrong, 0, t),
        lambda: gnp.apply_over_axes(wrong, t, 0),
        lambda: gnp.piecewise(t, [t > 1], [wrong]),
        lambda: gnp.pad(t, 1, wrong),
        lambda: gnp.fromfunction(wrong, (2, 2)),
        lambda: gnp.vectorize(wrong)(t),
    ):
        with pytest.raises(ValueError, match=r"^mine$"):
            call()


def test_an_error_keeps_its_attributes() -> None:
    t = tensor(X)
    with pytest.raises(np.exceptions.AxisError, match=r"^sort: axis 4 is out of bounds") as error:
        gnp.sort(t, 4)
    assert (error.value.axis, error.value.ndim) == (4, 2)
    with pytest.raises(ValueError, match=r"^dstack: all the input"):
        gnp.dstack([t, X[0]])
    with pytest.raises(IndexError, match=r"^take: index 9"):
        gnp.take(t, 9)
    assert t.size == 6


def test_objects_are_refused_by_name() -> None:
    for call, name in ((lambda: gnp.flip(object()), "flip"), (lambda: gnp.tril({"a": 1}), "tril")):
        with pytest.raises(errors.DtypeError, match=f"^{name}: expected Tensors, arrays or numbers"):
            call()
    with pytest.raises(errors.DtypeError, match="cannot be cast to datetime64"):
        tensor(X).astype("M8[s]")


def test_a_large_argument_is_not_copied_to_name_an_error() -> None:
    large = tensor(np.zeros(1 << 22))
    with pytest.raises(ValueError, match=r"^rot90: "):
        gnp.rot90(large)


# ---------------------------------------------------------------- what NumPy takes

RIGHT: list[Callable[..., Any]] = [
    lambda xp, x, v: xp.ravel(x.T, "K"),
    lambda xp, x, v: xp.ravel(x.T, "A"),
    lambda xp, x, v: xp.ravel(x[::-1], "K"),
    lambda xp, x, v: xp.reshape(x, (3, 2), order="A"),
    lambda xp, x, v: xp.reshape(x, (3, 2), order=None),
    lambda xp, x, v: xp.reshape(x, np.array([3, 2])),
    lambda xp, x, v: x.flatten("K"),
    lambda xp, x, v: xp.squeeze(v[0], 0),
    lambda xp, x, v: xp.expand_dims(x, np.array(1)),
    lambda xp, x, v: xp.roll(x, 1, np.array(1)),
    lambda xp, x, v: xp.repeat(x, [1.5]),
    lambda xp, x, v: xp.repeat(v[0], 2, 0),
    lambda xp, x, v: xp.trace(x, dtype=np.float32),
    lambda xp, x, v: xp.trace(x, out=xp.zeros(())),
    lambda xp, x, v: xp.broadcast_to(v, (2, 3), subok=True),
    lambda xp, x, v: xp.array_split(v, 1.5),
    lambda xp, x, v: xp.split(v, np.array(3)),
    lambda xp, x, v: xp.take(v, [1.0, True]),
    lambda xp, x, v: xp.take(v[0], 0, -1),
    lambda xp, x, v: xp.concatenate((2, xp.astype(v, np.float32)), axis=None),
    lambda xp, x, v: xp.concatenate([v, v], casting="unsafe", dtype=int),
    lambda xp, x, v: xp.argpartition(v[0], 0),
    lambda xp, x, v: xp.union1d(xp.array([1.0, 2.0], np.float16), 2),
    lambda xp, x, v: xp.copy(x.T, "F"),
    lambda xp, x, v: x.copy("F"),
    lambda xp, x, v: x.astype(np.float32, "F", "same_kind"),
    lambda xp, x, v: xp.array(x, order="F", subok=True),
    lambda xp, x, v: xp.asarray(x, np.float32, "F"),
    lambda xp, x, v: xp.zeros_like(x, float, "C", True, (2, 2)),
    lambda xp, x, v: xp.full_like(x, range(3)),
    lambda xp, x, v: xp.full((2, 3), [1.0, 2.0, 4.0]),
    lambda xp, x, v: xp.zeros(3, None),
    lambda xp, x, v: xp.clip(x, a_min=1, a_max=2, where=[True, False, True], out=xp.zeros((2, 3))),
    lambda xp, x, v: xp.clip(x, 1, 2, dtype=np.float32),
    lambda xp, x, v: xp.real(val=x),
    lambda xp, x, v: xp.imag(val=x),
    lambda xp, x, v: xp.sin(x, out=xp.zeros((2, 2, 3))),
    lambda xp, x, v: xp.sin(v, where=[True, False, True], out=xp.ones((2, 3))),
    lambda xp, x, v: xp.multiply(2.0, V, out=xp.zeros(3)),
    lambda xp, x, v: xp.log1p(v, where=[1, 0, 1], out=xp.zeros(3)),
    lambda xp, x, v: xp.exp(3, dtype=np.float32, out=xp.zeros(2, np.float32)),
    lambda xp, x, v: xp.vecdot(x, x, axis=0, keepdims=True),
    lambda xp, x, v: xp.vecdot(x, x, axes=[0, 0, ()]),
    lambda xp, x, v: xp.vecdot(x, v, xp.zeros(2)),
    lambda xp, x, v: xp.vecdot(x, v, dtype=np.complex64),
    lambda xp, x, v: xp.add.reduce(x, where=1),
    lambda xp, x, v: xp.add.reduceat(v, [0.0, 1.0]),
    lambda xp, x, v: xp.isneginf(v, xp.zeros((2, 3))),
    lambda xp, x, v: (v > 1).conj(),
    lambda xp, x, v: 4.0 in v,
    lambda xp, x, v: 5.5 in x,
    lambda xp, x, v: v < [v[0], v[2], 0],
    lambda xp, x, v: xp.bartlett(M=3),
]


@pytest.mark.parametrize("k", range(len(RIGHT)))
def test_what_numpy_accepts_is_accepted(k: int) -> None:
    found, expected = RIGHT[k](gnp, tensor(X), tensor(V)), RIGHT[k](np, X.copy(), V.copy())
    for a, b in zip(*[z if isinstance(z, list) else [z] for z in (found, expected)], strict=True):
        if isinstance(b, bool):
            assert a is b
            continue
        assert isinstance(a, Tensor)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b)
        if np.ndim(b) > 1 and b.flags.f_contiguous:
            assert a._array.flags.f_contiguous


def test_one_tensor_among_the_arguments_makes_the_results_tensors() -> None:
    i, plain = tensor([0, 1]), np.array([3.0, 4.0])
    for z in (
        gnp.take(plain, i),
        gnp.take_along_axis(plain, i, 0),
        *gnp.split(plain, tensor([1])),
        *gnp.atleast_2d(plain, i),
        gnp.pad(plain, i),
        gnp.add.reduceat(plain, i),
    ):
        assert isinstance(z, Tensor)


def test_like_says_where_a_tensor_is_made() -> None:
    for made in (
        gnp.zeros(2, like=tensor(V)),
        gnp.arange(3, like=V),
        gnp.eye(2, like=tensor(V)),
        gnp.array([1.0], like=tensor(V)),
        gnp.asarray([1.0], like=tensor(V)),
        gnp.frombuffer(b"12", dtype=np.uint8, like=tensor(V)),
    ):
        assert isinstance(made, Tensor)
        assert made.device == "cpu"
    with pytest.raises(TypeError, match="like"):
        gnp.zeros(2, like=3)
    with pytest.raises(TypeError, match="like"):
        gnp.load("nowhere", like=tensor(V))


def test_a_copy_in_another_order_is_differentiable() -> None:
    x = tensor(X)
    with GradManager().attach(x) as manager:
        manager.backward(gnp.sum(gnp.array(x, order="F") * X) + gnp.sum(gnp.ravel(x.T, "K") * gnp.arange(6.0)))
    np.testing.assert_array_equal(x.grad.numpy(), X + np.arange(6.0).reshape(2, 3))


def test_plain_arguments_with_a_tensor_as_out_end() -> None:
    """NumPy puts out= in a tuple before it calls us."""
    t = tensor(np.zeros(3))
    assert np.multiply(V, 2.0, out=t) is t
    assert np.exp2(2.0, out=(t,)) is t
    assert t.tolist() == [4, 4, 4]


def test_asarray_of_gradmgr_has_its_own_arguments() -> None:
    assert gradmgr.asarray([1.0], None, "cpu").device == "cpu"
    assert gnp.asarray([1.0], None, "F", device="cpu").device == "cpu"


@pytest.mark.parametrize("make", [tensor, gradmgr.asarray, gnp.array, gnp.zeros, gnp.ones_like])
def test_requires_grad_is_refused_with_the_way_to_attach(make: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{make.__name__}\b.*requires_grad.*GradManager\(\)\.attach"):
        make(2, requires_grad=True)


def test_a_parameter_is_frozen_by_not_attaching_it() -> None:
    nn.Parameter([1.0], requires_grad=True)
    with pytest.raises(TypeError, match="requires_grad=False is not supported; a frozen parameter is one that no"):
        nn.Parameter([1.0], requires_grad=False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.sort(dim=0), r"^sort\(\) got .* NumPy's keyword for it is axis="),
        (lambda t: gnp.zeros_like(t, nothing=1), r"^zeros_like\(\) got an unexpected keyword"),
        (lambda t: gnp.array_equal(t, t, out=t), r"^array_equal\(\) got an unexpected keyword argument 'out'"),
        (lambda t: gnp.argwhere(t, out=t), r"^argwhere\(\) got an unexpected keyword argument 'out'"),
    ],
)
def test_keywords_that_a_function_lacks_are_refused_under_its_own_name(call: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(tensor(V))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: gnp.tensordot(t, t, 2), r"axes=2 sums over the last 2 axes .* found shapes \(3,\) and \(3,\)"),
        (lambda t: gnp.linalg.cross(t, t, axis=1), "^cross: axis 1 is out of bounds for array of dimension 1"),
        (lambda t: gnp.linalg.cross(t, t[0]), "^cross: axis -1 is out of bounds for array of dimension 0"),
        (lambda t: gnp.fft.fftshift(t, 1), "^fftshift: axis 1 is out of bounds for array of dimension 1"),
        (lambda t: gnp.fft.ifftshift(t, (0, -2)), "^ifftshift: axis -2 is out of bounds for array of dimension 1"),
    ],
)
def test_too_few_axes_are_named(call: Any, said: str) -> None:
    with pytest.raises(IndexError, match=said):  # NumPy's type; AxisError is one
        call(tensor(V))
