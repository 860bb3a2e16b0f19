"""Conversions to and from Tensors, explicit and implicit, and which of them are refused."""

import copy
import pickle
import sys
import types
import warnings

import ml_dtypes
import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, from_dlpack, tensor

# ---------------------------------------------------------------- in


@pytest.mark.parametrize("make", [tensor, Tensor, gnp.array, lambda a: asarray(a, copy=True)])
def test_tensor_copies(make):
    a = np.array([1.0, 2.0])
    t = make(a)
    assert type(t) is Tensor
    a[0] = 9.0
    np.testing.assert_array_equal(t.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("make", [asarray, gnp.asarray, from_dlpack, lambda a: asarray(a, copy=False)])
def test_asarray_and_from_dlpack_share(make):
    a = np.array([1.0, 2.0])
    t = make(a)
    assert type(t) is Tensor
    assert np.shares_memory(t.numpy(), a)
    a[0] = 9.0
    np.testing.assert_array_equal(t.numpy(), [9.0, 2.0])


@pytest.mark.parametrize(
    "data",
    [
        1,
        2.5,
        True,
        1j,
        [1, 2],
        [1.0, 2],
        [[True], [False]],
        (1, 2.5),
        [],
        range(3),
        np.float32(1.5),
        np.int8(3),
        np.arange(6).reshape(2, 3)[:, ::-1],
        np.array([1, 2], ">f8"),
        np.zeros((0, 3)),
        np.array([1.5, 2.5], ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("make", [tensor, asarray, gnp.array, gnp.asarray])
def test_values_shape_and_dtype_are_those_numpy_gives(make, data):
    np.testing.assert_array_equal(make(data).numpy(), np.asarray(data), strict=True)


@pytest.mark.parametrize("make", [tensor, asarray, gnp.array, gnp.asarray])
@pytest.mark.parametrize("dtype", ["float32", np.float64, np.dtype("int16"), bool, complex, ml_dtypes.bfloat16])
def test_dtype_may_be_asked_for(make, dtype):
    t = make([0, 1, 2], dtype=dtype)
    assert t.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(t.numpy(), np.array([0, 1, 2], dtype), strict=True)


def test_tensor_of_a_tensor_copies_the_values():
    x = tensor([1.0, 2.0])
    y = tensor(x)
    assert y is not x
    assert not np.shares_memory(y.numpy(), x.numpy())


def test_asarray_of_a_tensor_is_that_tensor():
    x = tensor([1.0, 2.0])
    assert asarray(x) is x
    assert gnp.asarray(x) is x
    assert asarray(x, "float64", "cpu", copy=False) is x
    assert asarray(x, "float32") is not x


def test_copy_false_raises_where_a_copy_is_needed():
    with pytest.raises(ValueError, match="copy"):
        asarray([1.0, 2.0], copy=False)
    with pytest.raises(ValueError, match="copy"):
        asarray(np.zeros(2), "float32", copy=False)


def test_arrays_of_tensors_carry_gradients():
    x, y = tensor(1.0), tensor(2.0)
    gm = GradManager().attach([x, y])
    with gm:
        z = gnp.array([[x, y], [y * y, 0.5]])
        assert z.shape == (2, 2)
        gm.backward(z, np.array([[1.0, 10.0], [100.0, 1000.0]]))
    assert (x.grad.item(), y.grad.item()) == (1.0, 10.0 + 400.0)


def test_from_dlpack_accepts_any_exporter_and_shares():
    class Speaker:
        def __init__(self):
            self.array = np.arange(3.0)

        def __dlpack__(self, **kwargs):
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    speaker = Speaker()
    t = from_dlpack(speaker)
    assert t.tolist() == [0, 1, 2]
    assert np.shares_memory(t.numpy(), speaker.array)
    copied = from_dlpack(speaker, copy=True)
    assert not np.shares_memory(copied.numpy(), speaker.array)
    t += 1
    assert speaker.array.tolist() == [0, 1, 2]


# ---------------------------------------------------------------- devices


@pytest.fixture
def without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # so that `import cupy` fails, installed or not


@pytest.fixture
def without_gpu(monkeypatch):
    cupy = types.ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {})
    cupy.cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)


GPU_REQUESTS = {
    "tensor": lambda t: tensor([1.0], device="cuda:0"),
    "tensor of a tensor": lambda t: tensor(t, device="cuda"),
    "Tensor": lambda t: Tensor([1.0], device="cuda:0"),
    "asarray": lambda t: asarray([1.0], device="cuda:0"),
    "from_dlpack": lambda t: from_dlpack(np.ones(1), device="cuda:0"),
    "to": lambda t: t.to("cuda:0"),
    "to cuda": lambda t: t.to("cuda"),
    "cupy()": lambda t: t.cupy(),
    "zeros": lambda t: gnp.zeros(3, device="cuda:0"),
    "ones": lambda t: gnp.ones(3, device="cuda:0"),
    "empty": lambda t: gnp.empty(3, device="cuda:0"),
    "full": lambda t: gnp.full(3, 1.0, device="cuda:0"),
    "arange": lambda t: gnp.arange(3, device="cuda:0"),
    "linspace": lambda t: gnp.linspace(0, 1, 3, device="cuda:0"),
    "eye": lambda t: gnp.eye(3, device="cuda:0"),
    "zeros_like": lambda t: gnp.zeros_like(t, device="cuda:0"),
    "array": lambda t: gnp.array([1.0], device="cuda:0"),
}


@pytest.mark.parametrize("request_", GPU_REQUESTS)
@pytest.mark.usefixtures("without_cupy")
def test_a_gpu_without_cupy_is_an_error_that_names_the_extra(request_):
    t = tensor([1.0])
    with pytest.raises(errors.DeviceError, match=r"CuPy.*pip install -e \"\.\[cuda12\]\" or") as caught:
        GPU_REQUESTS[request_](t)
    assert isinstance(caught.value, RuntimeError)
    assert t.device == "cpu"
    assert t.tolist() == [1.0]


@pytest.mark.parametrize("request_", GPU_REQUESTS)
@pytest.mark.usefixtures("without_gpu")
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(request_):
    t = tensor([1.0])
    with pytest.raises(errors.DeviceError, match=r"no GPU.*device='cpu'"):
        GPU_REQUESTS[request_](t)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:-1", "cuda:0:1", "gpu", "", "CPU", 3])
def test_an_unknown_device_is_a_value_error(device):
    t = tensor([1.0])
    for ask in (lambda: tensor([1.0], device=device), lambda: t.to(device), lambda: gnp.zeros(2, device=device)):
        with pytest.raises(ValueError, match=r"not known; use 'cpu' or 'cuda:0'"):
            ask()


def test_cpu_is_where_tensors_live():
    t = tensor([1.0], device="cpu")
    assert t.device == "cpu"
    assert t.to("cpu") is t
    assert (t * 2).device == "cpu"
    assert gnp.zeros(2, device="cpu").device == "cpu"


def test_no_cuda_array_interface():
    assert not hasattr(tensor([1.0]), "__cuda_array_interface__")
    assert not hasattr(tensor([1.0]), "__array_interface__")
    assert not hasattr(tensor([1.0]), "__array_struct__")


# ---------------------------------------------------------------- out, explicitly: allowed while tracked


@pytest.fixture
def tracked():
    x = tensor([[1.5, -2.0]])
    gm = GradManager().attach(x)
    with gm:
        yield x, x * 2, gm


def test_explicit_conversions_are_allowed_while_tracked(tracked):
    for t in tracked[:2]:
        scale = t.item(0) / 1.5
        assert t.tolist() == [[1.5 * scale, -2.0 * scale]]
        assert type(t.numpy()) is np.ndarray
        assert t.numpy()[0, 1] == -2.0 * scale
        assert int(t[0, 1]) == -2 * scale
        assert bool(t[0, 0]) is True
        assert t[0, 1].item() == -2.0 * scale
        assert t.detach().tolist() == t.tolist()
        assert f"{t[0, 0]:.3f}" == f"{1.5 * scale:.3f}"
        assert repr(t)
        assert str(t)


def test_item_float_int_and_complex_give_python_numbers():
    for value, kind in ((2.5, float), (3, int), (True, bool), (1j, complex)):
        for t in (tensor(value), tensor([value])[0], tensor([[value]])[0, 0]):
            assert type(t.item()) is kind
            assert t.item() == value
            assert type(t.tolist()) is kind
    assert tensor([1, 2]).tolist() == [1, 2]
    assert tensor([[7]]).item() == 7
    assert tensor([7, 8]).item(1) == 8
    assert [0, 1, 2][tensor(1)] == 1
    assert list(range(tensor(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("convert", "error"), [(Tensor.item, ValueError), (float, TypeError), (int, TypeError), (complex, TypeError)]
)
@pytest.mark.parametrize("shape", [(2,), (2, 3), (0,)])
def test_a_conversion_of_many_numbers_to_one_says_how_else(convert, error, shape):
    said = (
        rf"{convert.__name__}\(\) is for a Tensor of one number; found a Tensor of shape \({shape[0]}.*t\[0\].*tolist"
    )
    with pytest.raises(error, match=said):
        convert(tensor(np.ones(shape)))


def test_conversions_that_make_no_sense_raise_as_numpys():
    two = tensor([1.0, 2.0])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(two)
    for convert in (float, int, complex):
        with pytest.raises(TypeError):
            convert(two)
    with pytest.raises(ValueError, match="one number"):
        two.item()
    with pytest.raises(TypeError):
        range(tensor(2.5))
    with pytest.raises(TypeError, match="0-d"):
        iter(tensor(1.0))
    with pytest.raises(TypeError, match="unsized"):
        len(tensor(1.0))


def test_numpy_is_a_read_only_view():
    x = tensor([1.0, 2.0])
    view = x.numpy()
    assert type(view) is np.ndarray
    assert not view.flags.writeable
    assert np.shares_memory(view, x.numpy())
    assert type(tensor(1.0).numpy()) is np.ndarray
    assert (tensor(1.0) * 2).numpy().shape == ()
    assert not (tensor(1.0) * 2).numpy().flags.writeable


def test_results_without_axes_are_tensors():
    x = tensor([1.0, 2.0])
    for t in (x.sum(), x[0], gnp.mean(x), x @ x, gnp.max(x), gnp.any(x > 1), gnp.argmax(x), x[0] * 2):
        assert type(t) is Tensor
        assert t.shape == ()
        assert t.ndim == 0


# ---------------------------------------------------------------- out, implicitly: refused while tracked

IMPLICIT = {
    "np.asarray": lambda t, a: np.asarray(t),
    "np.array": lambda t, a: np.array(t),
    "np.array with a dtype": lambda t, a: np.array(t, "float32"),
    "np.array of a list": lambda t, a: np.array([t, t]),
    "assignment": lambda t, a: a.__setitem__(..., t),
    "copyto": lambda t, a: np.copyto(a, t),
    "+=": lambda t, a: a.__iadd__(t),
    "out=": lambda t, a: np.multiply(t, 2.0, out=a),
    "np.from_dlpack": lambda t, a: np.from_dlpack(t),
    "ndarray.dot": lambda t, a: a.dot(t.T),
    "a ufunc's method": lambda t, a: np.add.at(a, (0, 0), t),
    "np.ma": lambda t, a: np.ma.masked_array(t),
}


@pytest.mark.parametrize("way", IMPLICIT)
@pytest.mark.parametrize("which", ["attached", "computed"])
def test_implicit_conversions_of_a_tracked_tensor_raise(way, which, tracked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y, gm = tracked
    a = np.zeros((1, 2))
    with pytest.raises(TypeError) as caught:
        IMPLICIT[way](x if which == "attached" else y, a)
    assert isinstance(caught.value, errors.GradmgrError)
    assert not np.any(a)
    gm.backward(y, np.ones((1, 2)))
    assert x.grad.tolist() == [[2.0, 2.0]]


def test_the_error_names_the_tensor_and_the_remedy(tracked):
    with pytest.raises(
        errors.TrackedConversionError,
        match=r"shape \(1, 2\) and dtype float64.*gradmgr.numpy.*t\.numpy\(\) or t\.detach\(\)",
    ):
        np.asarray(tracked[1])


def test_dlpack_export_of_a_tracked_tensor_names_the_remedy(tracked):
    with pytest.raises(errors.TrackedConversionError, match=r"t\.numpy\(\) or t\.detach\(\)"):
        np.from_dlpack(tracked[1])


def test_implicit_conversion_is_allowed_when_nothing_tracks(tracked):
    x, y, gm = tracked
    gm.release()
    for t in (x, y, x.detach()):
        np.testing.assert_array_equal(np.asarray(t), t.numpy())
        np.testing.assert_array_equal(np.array(t, "float32"), t.numpy().astype("float32"), strict=True)
        np.testing.assert_array_equal(np.array([t, t]), [t.numpy(), t.numpy()])


def test_what_asarray_shares_is_read_only_and_what_array_copies_is_not():
    t = tensor([1.0, 2.0])
    assert not np.asarray(t).flags.writeable
    a = np.array(t)
    a[0] = 5.0
    assert t.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, "float32", copy=False)


def test_dlpack_export_shares_read_only():
    t = tensor([1.0, 2.0])
    a = np.from_dlpack(t)
    assert np.shares_memory(a, t.numpy())
    assert not a.flags.writeable
    t += 1
    assert a.tolist() == [1.0, 2.0]
    assert t.__dlpack_device__() == np.ones(1).__dlpack_device__()


# ---------------------------------------------------------------- numpy's functions and operators on Tensors


def test_numpys_functions_and_operators_dispatch_to_gradmgr(tracked):
    x, _, gm = tracked
    a = np.array([[2.0, 3.0]])
    z = np.sum(np.sin(x) * a) + np.concatenate([x, a]).sum() + (a * x).sum() + (a - x).mean() + (a @ x.T).sum()
    assert type(z) is Tensor
    gm.backward(z)
    np.testing.assert_allclose(x.grad.numpy(), a * np.cos(x.numpy()) + 1 + a - 0.5 + a, rtol=1e-14)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda t: np.emath.log2(t), "lib.scimath.log2"),
        (lambda t: np.emath.power(t, 2), "lib.scimath.power"),
    ],
)
def test_a_numpy_function_we_lack_raises_naming_itself(call, name):
    with pytest.raises(errors.UnsupportedFunctionError, match=rf"numpy\.{name} .*t\.numpy\(\)") as caught:
        call(tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(caught.value, TypeError)


def test_the_namespace_says_which_functions_of_numpy_it_lacks():
    with pytest.raises(AttributeError, match=r"numpy\.frompyfunc is not in gradmgr\.numpy: .*use vectorize"):
        gnp.frompyfunc
    with pytest.raises(AttributeError, match="'no_such_thing', and neither has numpy"):
        gnp.no_such_thing
    assert "sin" in dir(gnp)
    assert all(hasattr(gnp, name) for name in gnp.__all__)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: gnp.sin(a),
        lambda a: gnp.add(a, 1),
        lambda a: gnp.sum(a, axis=0),
        lambda a: gnp.matmul(a, a),
        lambda a: gnp.reshape(a, (4,)),
        lambda a: gnp.concatenate([a, a]),
        lambda a: gnp.where(a > 1, a, 0.0),
        lambda a: gnp.max(a, axis=1),
        lambda a: gnp.clip(a, 1, 2),
        lambda a: gnp.cumsum(a),
        lambda a: gnp.einsum("ij->ji", a),
        lambda a: gnp.take(a, [0]),
        lambda a: gnp.less(a, 2),
        lambda a: gnp.round(a),
        lambda a: gnp.var(a),
        lambda a: gnp.tile(a, 2),
    ],
)
def test_plain_arrays_give_plain_arrays(call):
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = call(a)
    assert isinstance(found, (np.ndarray, np.generic))
    t = call(tensor(a))
    assert type(t) is Tensor
    np.testing.assert_array_equal(t.numpy(), found)


class Unknown:
    """A class of another library that defines how it combines with a Tensor."""

    __array_ufunc__ = None

    def __radd__(self, other):
        return "reflected"

    __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = __rfloordiv__ = __rmod__ = __radd__
    __add__ = __sub__ = __mul__ = __radd__


def test_operators_leave_unknown_types_to_the_other_side():
    x = tensor([1.0])
    u = Unknown()
    found = [x + u, x - u, x * u, x / u, x**u, x @ u, x // u, x % u, u + x, u - x, u * x]
    assert found == ["reflected"] * 11
    assert (x == u) is False
    assert (x != u) is True


@pytest.mark.parametrize("value", [object(), "a", {1: 2}, None])
def test_operators_raise_for_unknown_types_and_functions_name_what_they_found(value):
    x = tensor([1.0])
    with pytest.raises(TypeError, match="unsupported operand"):
        x + value
    with pytest.raises(TypeError, match="unsupported operand"):
        value - x
    with pytest.raises(
        TypeError, match=f"add takes Tensors, arrays and numbers; found builtins.{type(value).__name__}"
    ):
        gnp.add(x, value)
    assert x.tolist() == [1.0]


# ---------------------------------------------------------------- clone, detach, equality


def test_clone_is_a_recorded_copy():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = x.clone()
        assert not np.shares_memory(y.numpy(), x.numpy())
        gm.backward((y * y).sum())
    assert x.grad.tolist() == [2.0, 4.0]


def test_detach_stops_gradients_for_every_manager():
    x = tensor([1.0, 2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        y = x.detach() * x
        assert x.detach() is not x
        inner.backward(y.sum(), retain=True)
        assert x.grad.tolist() == [1.0, 2.0]
        x.grad = None
        outer.backward(y.sum())
    assert x.grad.tolist() == [1.0, 2.0]


def test_equality_is_elementwise_and_hash_is_identity():
    x, y = tensor([1.0, 2.0]), tensor([1.0, 3.0])
    assert (x == y).tolist() == [True, False]
    assert (x != y).tolist() == [False, True]
    assert (x == 1).tolist() == [True, False]
    assert hash(x) == hash(x)
    assert len({x, y, x}) == 2
    assert {x: "x"}[x] == "x"


def test_shape_and_dtype_attributes():
    t = tensor(np.zeros((2, 3), "float32"))
    assert (t.shape, t.ndim, t.size, t.itemsize, t.nbytes, t.dtype, len(t)) == ((2, 3), 2, 6, 4, 24, np.float32, 2)
    assert [row.shape for row in t] == [(3,), (3,)]
    assert t.T.shape == (3, 2)
    assert t.mT.shape == (3, 2)
    with pytest.raises(AttributeError):
        t.something = 1


# ---------------------------------------------------------------- repr


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (tensor([1.0, 2.0]), "Tensor([1., 2.])"),
        (tensor([1, 2]), "Tensor([1, 2])"),
        (tensor([True]), "Tensor([ True])"),
        (tensor(2.5), "Tensor(2.5)"),
        (tensor([1j]), "Tensor([0.+1.j])"),
        (tensor([1.0], "float32"), "Tensor([1.], dtype=float32)"),
        (tensor([1], "int8"), "Tensor([1], dtype=int8)"),
        (tensor([]), "Tensor([], dtype=float64)"),
        (tensor([[1, 2], [3, 4]]), "Tensor([[1, 2],\n        [3, 4]])"),
        (tensor([1.0], ml_dtypes.bfloat16), "Tensor([1], dtype=bfloat16)"),
    ],
)
def test_repr(t, text):
    assert repr(t) == text
    assert str(t) == str(t.numpy())


def test_repr_of_much_is_short():
    assert len(repr(tensor(np.zeros((100, 100))))) < 1000


def test_format_of_one_number():
    assert f"{tensor(1.23456):.2f}" == "1.23"
    assert f"{tensor([1.0, 2.0])}" == "[1. 2.]"


# ---------------------------------------------------------------- pickle and copy


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "bool", ml_dtypes.bfloat16])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(dtype, protocol):
    t = tensor(np.arange(6).reshape(2, 3), dtype)
    again = pickle.loads(pickle.dumps(t, protocol))  # noqa: S301  # our own bytes
    assert type(again) is Tensor
    np.testing.assert_array_equal(again.numpy(), t.numpy(), strict=True)
    again += np.ones((), dtype)
    np.testing.assert_array_equal(t.numpy(), np.arange(6).reshape(2, 3).astype(dtype), strict=True)


def test_pickle_of_a_slice_holds_the_slice_only():
    t = tensor(np.zeros(100_000))[:3]
    assert len(pickle.dumps(t)) < 1000


def test_copies_are_values():
    t = tensor([1.0, 2.0])
    t.grad = tensor([5.0, 6.0])
    shallow, deep = copy.copy(t), copy.deepcopy(t)
    for made in (shallow, deep):
        assert type(made) is Tensor
        assert made is not t
        assert made.tolist() == [1.0, 2.0]
    assert deep.grad.tolist() == [5.0, 6.0]
    assert deep.grad is not t.grad
    t += 10
    t.grad += 10
    assert shallow.tolist() == [1.0, 2.0]
    assert deep.tolist() == [1.0, 2.0]
    assert deep.grad.tolist() == [5.0, 6.0]


def test_deepcopy_keeps_one_tensor_one():
    t = tensor([1.0])
    a, b = copy.deepcopy([t, t])
    assert a is b
    assert a is not t


# ---------------------------------------------------------------- .grad


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.ones(2, "float32"), TypeError, r"shape \(2,\) and dtype float32.*Tensor or None.*ndarray.*gradmgr\.tensor"),
        (1.0, TypeError, r"Tensor or None; found float"),
        ([1.0, 1.0], TypeError, r"Tensor or None; found list"),
        (tensor([1.0], "float32"), ValueError, r"shape \(2,\); found shape \(1,\)"),
        (tensor(1.0, "float32"), ValueError, r"shape \(2,\); found shape \(\)"),
        (tensor([[1.0, 2.0]], "float32"), ValueError, r"found shape \(1, 2\)"),
        (tensor([1.0, 2.0]), TypeError, r"dtype float32; found float64; convert.*astype\('float32'\)"),
        (tensor([1, 2]), TypeError, r"found int64"),
        (tensor([1j, 2j], "complex64"), TypeError, r"found complex64"),
    ],
)
@pytest.mark.parametrize("held", [None, [3.0, 4.0]])
def test_a_wrong_grad_is_refused(value, error, text, held):
    t = tensor([1.0, 2.0], "float32")
    before = t.grad = None if held is None else tensor(held, "float32")
    with pytest.raises(error, match=text) as caught:
        t.grad = value
    assert isinstance(caught.value, errors.GradmgrError)
    assert t.grad is before
    if held is not None:
        assert t.grad.tolist() == held


def test_grad_is_assigned_read_and_deleted():
    t, g = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    assert t.grad is None
    t.grad = g
    assert t.grad is g
    t.grad = None
    assert t.grad is None
    t.grad = g
    del t.grad
    assert t.grad is None


# ---------------------------------------------------------------- creation


@pytest.mark.parametrize(
    "make",
    [
        lambda np: np.zeros(3),
        lambda np: np.zeros((2, 3), "float32"),
        lambda np: np.zeros((), dtype=int),
        lambda np: np.ones((2, 0)),
        lambda np: np.ones([2, 3], bool, "F"),
        lambda np: np.full((2, 2), 7),
        lambda np: np.full(2, 2.5, "float32"),
        lambda np: np.full((2, 2), [1, 2]),
        lambda np: np.arange(5),
        lambda np: np.arange(1, 5),
        lambda np: np.arange(1, 5, 2, dtype="float32"),
        lambda np: np.arange(5.0),
        lambda np: np.arange(5, 1, -1.5),
        lambda np: np.linspace(0, 1, 5),
        lambda np: np.linspace(0, 1, 5, endpoint=False, dtype="float32"),
        lambda np: np.linspace(0, 1),
        lambda np: np.eye(3),
        lambda np: np.eye(2, 4, 1, dtype="float32"),
        lambda np: np.eye(3, k=-1),
        lambda np: np.identity(2),
        lambda np: np.zeros_like(np.arange(3)),
        lambda np: np.ones_like(np.eye(2), dtype="int8"),
        lambda np: np.full_like(np.eye(2), 3),
        lambda np: np.full_like(np.arange(2), 3.7),
        lambda np: np.zeros_like(np.eye(2), shape=(4,)),
        lambda np: np.empty_like(np.eye(2)) * 0,
        lambda np: np.empty((2, 3), "float32") * 0,
        lambda np: np.array([1, 2], ndmin=3),
        lambda np: np.array(5),
        lambda np: np.asarray([[1.0]], dtype="complex64"),
    ],
)
def test_creation_functions_give_tensors_of_numpys_values(make):
    with np.errstate(all="ignore"):  # 0 * what empty found in memory
        t, expected = make(gnp), make(np)
    assert type(t) is Tensor
    assert t.dtype == expected.dtype
    assert t.shape == expected.shape
    np.testing.assert_array_equal(np.nan_to_num(t.numpy()), np.nan_to_num(expected), strict=True)


def test_linspace_retstep():
    t, step = gnp.linspace(0, 1, 5, retstep=True)
    assert t.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert step.item() == 0.25


def test_creation_from_tensors_carries_gradients():
    x, y = tensor(2.0), tensor(3.0)
    gm = GradManager().attach([x, y])
    with gm:
        z = gnp.full((2, 2), x).sum() + (gnp.linspace(x, y, 3) * np.array([1.0, 10.0, 100.0])).sum()
        z = z + gnp.full_like(np.ones(3), y).sum()
        gm.backward(z)
    assert x.grad.item() == 4 + 1 + 5
    assert y.grad.item() == 5 + 100 + 3


def test_like_functions_accept_tensors_and_are_not_recorded():
    x = tensor([1.0, 2.0], "float32")
    gm = GradManager().attach(x)
    with gm:
        for t in (gnp.zeros_like(x), gnp.ones_like(x), gnp.empty_like(x), gnp.full_like(x, 2)):
            assert (t.shape, t.dtype) == ((2,), np.float32)
            with pytest.raises(errors.NotRecordedError):
                gm.backward(t.sum())


# ---------------------------------------------------------------- casts

FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]
COMPLEX = ["complex64", "complex128"]


@pytest.mark.parametrize("origin", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("target", [*FLOATS, *COMPLEX])
def test_casts_between_dtypes_with_gradients_carry_them(origin, target):
    origin, target = np.dtype(origin), np.dtype(target)
    x = tensor([1.0, 2.0], origin)
    gm = GradManager().attach(x)
    dy = np.array([1.0, 3.0]) + (np.array([5.0, 7.0]) * 1j if target.kind == "c" else 0)
    with gm:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            y = x.astype(target)
        assert y.dtype == target
        gm.backward(y, dy.astype(target))
    expected = dy if origin.kind == "c" else dy.real
    np.testing.assert_array_equal(x.grad.numpy(), expected.astype(origin), strict=True)


@pytest.mark.parametrize("target", ["float64", "int64"])
def test_a_cast_that_drops_the_imaginary_part_warns_as_numpys(target):
    with pytest.warns(np.exceptions.ComplexWarning):
        tensor([1j]).astype(target)


@pytest.mark.parametrize("target", ["int8", "int64", "uint8", "bool"])
def test_casts_to_integers_and_bools_give_constants(target):
    x = tensor([1.5, 0.0])
    gm = GradManager().attach(x)
    with gm:
        y = x.astype(target)
        np.testing.assert_array_equal(y.numpy(), x.numpy().astype(target), strict=True)
        with pytest.raises(errors.NotRecordedError, match="integer"):
            gm.backward(y.astype("float64").sum())
        gm.backward((x * y).sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.array([1.5, 0.0]).astype(target).astype(float))


def test_a_cast_to_the_same_dtype_copies_or_not():
    x = tensor([1.0])
    assert not np.shares_memory(x.astype("float64").numpy(), x.numpy())
    assert np.shares_memory(x.astype("float64", copy=False).numpy(), x.numpy())
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x.astype("float64") * 3 + gnp.astype(x, np.float64, copy=False))
    assert x.grad.tolist() == [4.0]


def test_gradmgr_names_what_it_promises():
    for name in gradmgr.__all__:
        assert hasattr(gradmgr, name)
    for name in ("Tensor", "tensor", "asarray", "from_dlpack", "GradManager", "AttachSpec", "no_grad", "gradcheck"):
        assert name in gradmgr.__all__


@pytest.mark.parametrize("convert", [lambda t: asarray(t, "float32"), lambda t: asarray(t, copy=True)])
def test_asarray_of_a_tracked_tensor_keeps_its_history(convert):
    t = tensor([1.0, 2.0])
    gm = GradManager().attach(t)
    with gm:
        gm.backward((convert(t * 3)).sum())
    assert t.grad.tolist() == [3.0, 3.0]


def test_arange_does_not_silently_detach():
    t = tensor(2.0)
    gm = GradManager().attach(t)
    with gm, pytest.raises(errors.TrackedConversionError, match=r"arange.*item"):
        gnp.arange(t, 5)
    assert gnp.arange(t, 5).tolist() == [2.0, 3.0, 4.0]
