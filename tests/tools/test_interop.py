"""Functions of torch and JAX in a program of gradmgr, and the other way round."""

import gc
import weakref

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, functional, gradcheck, gradgradcheck, interop, tensor, vmap

X, Y = np.array([0.3, -1.2, 0.8]), np.array([1.1, 0.4, -0.7])
BATCH = np.array([[0.3, -1.2, 0.8], [0.5, 0.1, -0.4]])


# torch gives it when forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def ours(x, y):
    return gnp.sin(x) * y, {"sum": gnp.exp(x).sum(), "count": 3, "largest": gnp.argmax(x)}


def torchs(x, y):
    import torch

    return torch.sin(x) * y, {"sum": torch.exp(x).sum(), "count": 3, "largest": torch.argmax(x)}


def jaxs(x, y):
    import jax.numpy as jnp

    return jnp.sin(x) * y, {"sum": jnp.exp(x).sum(), "count": 3, "largest": jnp.argmax(x)}


def total(f, x, y):
    first, rest = f(x, y)
    return (first**2).sum() + rest["sum"] ** 2


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="compared with PyTorch, which is of the extra bench")


@pytest.fixture
def jax():
    found = pytest.importorskip("jax", reason="compared with JAX, which is of the extra bench")
    with found.enable_x64():
        yield found


# ---------------------------------------------------------------- gradmgr's functions for torch


def torch_inputs(torch):
    return torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=True)


def test_torch_function_has_the_values_and_derivatives_of_torchs_own(torch):
    f = interop.torch_function(ours)
    x, y = torch_inputs(torch)
    first, rest = f(x, y)
    assert torch.equal(first, torch.from_numpy(np.sin(X) * Y))
    assert rest["count"] == 3
    assert rest["largest"].item() == 2
    assert not rest["largest"].requires_grad
    assert first.grad_fn.name() == "oursBackward"
    found = torch.autograd.grad(total(f, x, y), (x, y), create_graph=True)
    expected = torch.autograd.grad(total(torchs, x, y), (x, y), create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    second = torch.autograd.grad(sum(g.sum() for g in found), (x, y))
    for one, other in zip(second, torch.autograd.grad(sum(g.sum() for g in expected), (x, y)), strict=True):
        torch.testing.assert_close(one, other)


def test_torch_function_passes_torchs_gradchecks(torch):
    f = interop.torch_function(ours)
    assert torch.autograd.gradcheck(lambda x, y: total(f, x, y), torch_inputs(torch), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, y: total(f, x, y), torch_inputs(torch))


@pytest.mark.parametrize("derivative", ["grad", "hessian", "jacfwd"])
def test_torch_function_under_torch_func(torch, derivative):
    f = interop.torch_function(ours)
    transform, y = getattr(torch.func, derivative), torch.tensor(Y)
    for call in torch.tensor(X), torch.tensor(-X):
        expected = transform(lambda x: total(torchs, x, y))(call)
        torch.testing.assert_close(transform(lambda x: total(f, x, y))(call), expected)
    batch = torch.tensor(BATCH)
    found = torch.func.vmap(torch.func.grad(lambda x: total(f, x, y)))(batch)
    torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(lambda x: total(torchs, x, y)))(batch))


def test_torch_function_takes_backward_again_and_notices_writes(torch):
    f = interop.torch_function(lambda x: gnp.exp(x))
    x = torch.tensor(X, requires_grad=True)
    h = x * 1
    y = f(h)
    y.mul_(2)  # its own memory
    y.sum().backward(retain_graph=True)
    y.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 4 * torch.exp(x.detach()))
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_torch_function_takes_complex_and_strided_tensors(torch):
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    f = interop.torch_function(lambda z: gnp.abs(z) ** 2)
    f(z.conj()).sum().backward()
    torch.testing.assert_close(z.grad, 2 * z.detach())
    x = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    interop.torch_function(lambda x: x**2)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_torch_function_frees_what_it_recorded_with_torchs_graph(torch):
    kept = []

    def f(x):
        y = gnp.exp(x)
        kept.append(weakref.ref(y))
        return y * 2

    y = interop.torch_function(f)(torch.tensor(X, requires_grad=True))
    del y
    gc.collect()
    assert kept[0]() is None


def test_torch_function_refuses_what_would_lose_a_gradient(torch):
    w = tensor(X)
    f = interop.torch_function(lambda x: x * w)
    with GradManager().attach(w), pytest.raises(errors.TrackedConversionError, match="pass what it depends on"):
        f(torch.tensor(X))
    torch.testing.assert_close(f(torch.tensor(X)), torch.tensor(X * X))


def test_errors_of_torch_function_say_what_to_do(torch):
    f = interop.torch_function(lambda x: x * 1)
    with pytest.raises(errors.DtypeError, match=r"convert it with \.float\(\)"):
        f(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"use its to_dense\(\)"):
        f(torch.eye(2).to_sparse())
    with pytest.raises(errors.FunctionError, match="it must return Tensors of gradmgr, or containers of them"):
        interop.torch_function(lambda x: None)(torch.zeros(2))
    with pytest.raises(TypeError, match="takes a function"):
        interop.torch_function(3)


# ---------------------------------------------------------------- other libraries' functions for gradmgr


def from_library(name):
    function = {"torch": torchs, "jax": jaxs}[name]
    return {"torch": interop.from_torch, "jax": interop.from_jax}[name](function)


@pytest.fixture(params=["torch", "jax"])
def theirs(request):
    request.getfixturevalue(request.param)
    return from_library(request.param)


def test_another_librarys_function_has_the_values_and_derivatives_of_ours(theirs):
    first, rest = theirs(tensor(X), Y)
    np.testing.assert_allclose(first.numpy(), np.sin(X) * Y, rtol=1e-15)
    assert rest["count"] == 3
    assert rest["largest"].item() == 2

    def both(derivative):
        one, other = derivative(theirs), derivative(ours)
        np.testing.assert_allclose(np.stack(one), np.stack(other), rtol=1e-12, atol=1e-12)

    both(lambda f: functional.grad(lambda x, y: total(f, x, y), argnums=(0, 1))(X, Y))
    both(lambda f: functional.hessian(lambda x: total(f, x, Y), X))
    both(lambda f: functional.jvp(lambda x: total(f, x, Y), X, Y))
    both(lambda f: vmap(functional.grad(lambda x: total(f, x, Y)))(BATCH))
    both(lambda f: vmap(lambda x: total(f, x, Y))(BATCH))


def test_another_librarys_function_passes_our_gradchecks(theirs):
    assert gradcheck(lambda x, y: total(theirs, x, y), (tensor(X), tensor(Y)))
    assert gradgradcheck(lambda x, y: total(theirs, x, y), (tensor(X), tensor(Y)))


def test_another_librarys_function_does_not_write_to_our_memory(torch):
    def f(x, y):
        y.mul_(2)
        return x * y

    x, y = tensor(X), tensor(Y)
    with GradManager().attach(x) as gm:
        gm.backward(interop.from_torch(f)(x, y).sum())
    assert y.tolist() == Y.tolist()
    assert x.grad.tolist() == (2 * Y).tolist()


def test_an_argument_that_is_not_used_gets_zeros(theirs):
    x, y = tensor(X), tensor(Y)
    with GradManager().attach([x, y]) as gm:
        gm.backward(theirs(x, y)[1]["sum"])
    np.testing.assert_allclose(x.grad.numpy(), np.exp(X), rtol=1e-14)
    assert y.grad.tolist() == [0, 0, 0]


def test_another_librarys_function_must_return_its_arrays(torch):
    with pytest.raises(errors.FunctionError, match="it must return arrays of torch, or containers of them"):
        interop.from_torch(lambda x: x.tolist())(tensor(X))


# ---------------------------------------------------------------- gradmgr's functions for JAX


def test_jax_function_has_the_derivatives_of_jaxs_own(jax):
    f = interop.jax_function(ours)
    x, y = jax.numpy.array(X), jax.numpy.array(Y)
    assert f(x, y)[1]["count"] == 3

    def both(derivative):
        found, expected = (derivative(lambda x, y, g=g: total(g, x, y)) for g in (f, jaxs))
        np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-12, atol=1e-12)

    both(lambda g: jax.grad(g, argnums=(0, 1))(x, y))
    both(lambda g: jax.jit(jax.grad(g))(x, y))
    both(lambda g: jax.jacrev(jax.grad(g))(x, y))
    both(lambda g: jax.vmap(jax.grad(g), in_axes=(0, None))(jax.numpy.array(BATCH), y))


def test_jax_function_refuses_what_would_lose_a_gradient(jax):
    w = tensor(X)
    f = interop.jax_function(lambda x: x * w)
    with GradManager().attach(w), pytest.raises(Exception, match="pass what it depends on"):
        np.asarray(f(jax.numpy.array(X)))
