"""Wrong calls, as those make who come from NumPy or PyTorch: the error says what to write instead."""

import copy
import pickle

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, functional, nn, optim, tensor
from gradmgr._transforms.tensor_methods import _REPLACEMENTS
from gradmgr.nn import functional as F  # noqa: N812  # torch's idiom

X = tensor([[1.0, 4.0], [2.0, 3.0]])


@pytest.mark.parametrize("name", _REPLACEMENTS)
def test_a_method_of_torchs_tensors_names_what_there_is_instead(name):
    instead = _REPLACEMENTS[name]
    with pytest.raises(AttributeError, match=rf"\.{name} is torch's: write ") as found:
        getattr(X, name)
    assert str(found.value).endswith(instead)
    assert name == "view" or not hasattr(np.ndarray, name)  # NumPy's view takes a dtype
    if instead.startswith("gradmgr."):
        path, _, _ = instead.removeprefix("gradmgr.").partition("(")
        found = gradmgr
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found)


@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("is_floating_point", lambda t: t.dtype.kind == "f"),
        ("rsqrt", lambda t: (1 / gnp.sqrt(t)).tolist()),
        ("topk", lambda t: gnp.sort(t, descending=True)[..., :1].tolist()),
        ("scatter", lambda t: t.clone().scatter_(0, np.array([[0, 1]]), tensor([[5.0, 6.0]])).tolist()),
        ("scatter_add", lambda t: t.clone().scatter_add_(0, np.array([[0, 1]]), tensor([[5.0, 6.0]])).tolist()),
        ("unbind", lambda t: [row.tolist() for row in gnp.unstack(t, axis=0)]),
    ],
)
def test_what_is_named_instead_of_a_method_gives_torchs_values(name, computed):
    torch = pytest.importorskip("torch")
    t = torch.tensor(X.numpy().copy())
    index, values = torch.tensor([[0, 1]]), torch.tensor([[5.0, 6.0]], dtype=torch.float64)
    expected = {
        "is_floating_point": t.is_floating_point,
        "rsqrt": lambda: t.rsqrt().tolist(),
        "topk": lambda: t.topk(1).values.tolist(),
        "scatter": lambda: t.scatter(0, index, values).tolist(),
        "scatter_add": lambda: t.scatter_add(0, index, values).tolist(),
        "unbind": lambda: [row.tolist() for row in t.unbind()],
    }
    np.testing.assert_allclose(computed(X), expected[name]())


@pytest.mark.parametrize("name", gnp._refused.TORCHS)
def test_a_function_of_torchs_names_numpys_function(name):
    instead = gnp._refused.TORCHS[name]
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'.*: write ") as found:
        getattr(gnp, name)
    assert instead in str(found.value)
    found = gradmgr
    for part in instead.removeprefix("1 / ").partition("(")[0].removeprefix("gradmgr.").split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zeros", "write gradmgr.numpy.zeros"),
        ("float32", "write gradmgr.numpy.float32"),
        ("manual_seed", r"rng = numpy.random.default_rng\(0\)"),
        ("randn", "Generator"),
        ("cuda", r"t.to\('cuda:0'\)"),
        ("device", "a device is a string"),
        ("from_numpy", "gradmgr.asarray"),
        ("jit", "gradmgr.compile"),
    ],
)
def test_a_name_that_gradmgr_lacks_says_where_it_is(name, says):
    with pytest.raises(AttributeError, match=f"'gradmgr' has no attribute '{name}': .*{says}"):
        getattr(gradmgr, name)


def set_attribute(name, value):
    return lambda: setattr(tensor([1.0]), name, value)


def delete_an_element():
    t = tensor([1.0, 2.0])
    del t[0]


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (set_attribute("shape", (1, 1)), AttributeError, r"write t.reshape\(shape\)"),
        (set_attribute("dtype", np.float32), AttributeError, r"write t.astype\(dtype\)"),
        (set_attribute("device", "cpu"), AttributeError, r"write t.to\(device\)"),
        (delete_an_element, ValueError, r"write gradmgr.numpy.delete\(t, index, axis=0\)"),
        (lambda: X.to(np.float32), ValueError, r"t.astype\(dtype\) for another dtype"),
        (lambda: tensor([[1.0], [1.0, 2.0]]), ValueError, "^tensor: setting an array element with a sequence"),
        (lambda: tensor([1.0], dtype="flaot32"), TypeError, "^tensor: data type 'flaot32' not understood"),
        (lambda: gradmgr.asarray("text"), errors.DtypeError, "^asarray: a Tensor holds numbers; str gives"),
        (lambda: gnp.concatenate(X, X), TypeError, r"passed as one list, as in concatenate\(\[a, b\]\)"),
        (lambda: gnp.stack(X, X), TypeError, "passed as one list"),
        (lambda: functional.grad(X), TypeError, "^grad takes a function; found Tensor"),
        (lambda: functional.value_and_grad(X), TypeError, "^value_and_grad takes a function; found Tensor"),
        (lambda: functional.jacobian(X, X), TypeError, "^jacobian takes a function; found Tensor"),
        (lambda: functional.vjp(3, X), TypeError, "^vjp takes a function; found int"),
        (lambda: gradmgr.vmap(3), TypeError, "^vmap takes a function; found int"),
        (lambda: gradmgr.gradcheck(3, X), TypeError, "^gradcheck takes a function; found int"),
        (lambda: gradmgr.gradcheck(abs, 3), TypeError, "^gradcheck: inputs are Tensors or arrays, .*; found int"),
        (lambda: gradmgr.gradgradcheck(3, X), TypeError, "^gradgradcheck takes a function; found int"),
        (lambda: pickle.dumps(GradManager()), TypeError, "a GradManager is not copied or pickled"),
        (lambda: copy.copy(GradManager()), TypeError, "a GradManager is not copied or pickled"),
        (lambda: copy.deepcopy(GradManager()), TypeError, "a GradManager is not copied or pickled"),
        (
            lambda: nn.ReLU(X),
            TypeError,
            r"ReLU: inplace must be False; .* made first and then called, as in ReLU\(\)\(",
        ),
        (lambda: nn.Sequential([nn.ReLU()]), TypeError, r"found a list: unpack it, as in Sequential\(\*layers\)"),
        (lambda: nn.Sequential((nn.ReLU(),)), TypeError, "found a tuple: unpack it"),
        (lambda: optim.SGD(nn.Linear(1, 1)), TypeError, r"found Linear; pass model.parameters\(\)"),
        (
            lambda: optim.SGD([X]).step(3),
            TypeError,
            "^step takes a function that computes the loss, or None; found int",
        ),
        (lambda: F.normalize(X[0]), np.exceptions.AxisError, "^normalize: axis 1 is out of bounds"),
    ],
)
def test_the_error_of_a_wrong_call_says_what_to_write(call, kind, says):
    with pytest.raises(kind, match=says):
        call()


def test_backward_of_a_number_says_what_leaves_the_history_behind():
    x = tensor(2.0)
    with GradManager().attach(x) as gm, pytest.raises(TypeError, match=r"float\(\), .item\(\) and .numpy\(\) leave"):
        gm.backward((x * x).item())


def test_a_callback_of_one_argument_is_told_of_both():
    x = tensor(2.0)
    with GradManager().attach(x, callbacks=lambda grad: grad) as gm, pytest.raises(TypeError) as found:
        gm.backward(x * x)
    assert found.value.__notes__ == ["a callback of attach is called with two arguments: callback(tensor, grad)"]


def test_a_type_error_inside_a_callback_has_no_such_note():
    x = tensor(2.0)
    with GradManager().attach(x, callbacks=lambda tensor, grad: len(3)) as gm, pytest.raises(TypeError) as found:
        gm.backward(x * x)
    assert not hasattr(found.value, "__notes__")


@pytest.mark.parametrize("operate", [lambda t, u: t + u, lambda t, u: u - t, lambda t, u: t < u, lambda t, u: t @ u])
def test_a_tensor_of_torch_beside_ours_is_refused_by_its_full_name(operate):
    torch = pytest.importorskip("torch")
    with pytest.raises(
        TypeError, match=r"a gradmgr.Tensor and a torch.Tensor have no operations in common: convert one"
    ):
        operate(tensor([1.0]), torch.ones(1))


def test_a_tensor_of_torch_is_equal_to_none_of_ours():
    torch = pytest.importorskip("torch")
    t, u = tensor([1.0]), torch.ones(1)
    assert (t == u) is False
    assert (u != t) is True
    assert t not in [u]


def test_operators_of_other_classes_of_the_name_tensor_are_tried():
    class Tensor:
        def __radd__(self, other):
            return "added"

        def __rmatmul__(self, other):
            return "multiplied"

        def __gt__(self, other):
            return "compared"

    t = tensor([1.0])
    assert (t + Tensor(), t @ Tensor(), t < Tensor(), t == Tensor()) == ("added", "multiplied", "compared", False)


def test_a_dtype_of_torch_names_numpys():
    torch = pytest.importorskip("torch")
    for call in (lambda: tensor([1.0], dtype=torch.float32), lambda: X.astype(torch.float32)):
        with pytest.raises(TypeError, match=r"dtypes are NumPy's: write numpy.float32"):
            call()


REFLECTED = ["add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor", "lshift"]


@pytest.mark.parametrize("name", REFLECTED)
def test_a_reflected_operator_that_is_called_with_two_tensors_is_numpys(name: str) -> None:
    x, y = np.array([[5, 2], [3, 4]]), np.array([[1, 2], [2, 1]])
    method = f"__r{name}__"
    np.testing.assert_array_equal(getattr(tensor(x), method)(tensor(y)), getattr(x, method)(y))
