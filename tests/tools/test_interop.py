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


def test_torch_function_of_a_laplacian_has_torchs_derivatives(torch):
    def curvature(x, y):
        return gnp.trace(functional.hessian(lambda x: total(ours, x, y), x))

    def torchs_curvature(x, y):
        return torch.trace(torch.func.hessian(lambda x: total(torchs, x, y))(x))

    found, expected = [
        torch.autograd.grad(f(*(inputs := torch_inputs(torch))), inputs)
        for f in (interop.torch_function(curvature), torchs_curvature)
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)


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


def test_torch_function_needs_no_garbage_collection(torch):
    f, x = interop.torch_function(lambda x: gnp.exp(x) * x), torch.tensor(X, requires_grad=True)
    f(x).sum().backward()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(20):
            f(x).sum().backward()
        assert len(gc.get_objects()) < before + 20
    finally:
        gc.enable()


def test_torch_frees_what_torch_function_recorded_after_backward_though_the_result_lives(torch):
    kept = []

    def f(x):
        y = gnp.exp(x)
        kept.append(weakref.ref(y._array))
        return gnp.sin(y)

    loss = interop.torch_function(f)(torch.tensor(X, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    assert kept[0]() is not None
    loss.backward()
    assert kept[0]() is None


def test_torch_function_under_hooks_on_saved_tensors(torch):
    x = torch.tensor(X, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = interop.torch_function(lambda x: gnp.exp(x))(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.exp(x.detach()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, of the compiler that it imports
def test_torch_compile_leaves_torch_function_uncompiled(torch):
    f, x = interop.torch_function(lambda x: gnp.exp(x)), torch.tensor(X, requires_grad=True)
    torch.compile(lambda x: (f(2 * x) * 3).sum(), backend="aot_eager")(x).backward()
    torch.testing.assert_close(x.grad, 6 * torch.exp(2 * x.detach()))


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_torch_function_refuses_to_become_a_constant_of_a_trace(torch):
    with pytest.raises(RuntimeError, match=r"exp: torch traces this call .* or use torch\.func\.jvp"):
        torch.func.linearize(interop.torch_function(gnp.exp), torch.tensor(X))


def test_functions_may_be_passed_on_to_another_library(torch, jax):
    def f(x):
        return (gnp.exp(x) * x).sum()

    expected = np.exp(X) * (X + 1)
    np.testing.assert_allclose(functional.grad(interop.from_jax(interop.jax_function(f)))(X), expected, rtol=1e-14)
    through_torch = interop.from_torch(interop.torch_function(f))
    slope = jax.grad(interop.jax_function(interop.from_jax(interop.jax_function(through_torch))))
    for call in slope, jax.jit(slope):
        np.testing.assert_allclose(call(jax.numpy.array(X)), expected, rtol=1e-14)


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
    with pytest.raises(errors.DtypeError, match="NumPy has no float8_e5m2"):
        f(torch.zeros(2).to(torch.float8_e5m2))
    with pytest.raises(TypeError, match="found one on meta"):
        f(torch.zeros(2, device="meta"))
    with pytest.raises(errors.FunctionError, match=r"found torch\.Tensor"):
        interop.torch_function(lambda x: torch.zeros(2))(torch.zeros(2))
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
    both(lambda f: functional.jacobian(functional.hessian(lambda x: total(f, x, Y)))(X))
    both(lambda f: functional.grad(lambda y: gnp.trace(functional.hessian(lambda x: total(f, x, y), X)))(Y))


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


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_another_librarys_function_of_complex_numbers_has_the_derivatives_of_ours(library, request):
    request.getfixturevalue(library)
    wrap = {"torch": interop.from_torch, "jax": interop.from_jax}[library]
    f = wrap(lambda z: (abs(z * z * z.conj() - 1) ** 3).sum())

    def g(z):
        return (abs(z * z * z.conj() - 1) ** 3).sum()

    def lengths(function):
        return lambda z: (abs(functional.grad(function)(z)) ** 2).sum()

    for point in np.array([1 + 2j, 0.3 - 1j]), X:
        np.testing.assert_allclose(functional.grad(f)(point), functional.grad(g)(point), rtol=1e-12)
        np.testing.assert_allclose(functional.grad(lengths(f))(point), functional.grad(lengths(g))(point), rtol=1e-12)


def test_another_librarys_function_takes_numbers_of_any_byte_order_and_strides(theirs):
    np.testing.assert_array_equal(theirs(X.astype(">f8")[::-1], Y)[0], np.sin(X)[::-1] * Y)


def test_another_librarys_function_is_given_an_array_of_no_numbers_as_it_is(torch):
    names = np.array(["a"])
    assert interop.from_torch(lambda x, names: (x, names))(X, names)[1] is names


def test_another_librarys_function_keeps_its_name(torch):
    f, x = interop.from_torch(torchs), tensor(X)
    assert f.__name__ == "torchs"
    with GradManager().attach(x):
        assert f(x, Y)[0].grad_fn.name() == "torchs"


def test_from_torch_is_differentiable_in_torchs_inference_mode(torch):
    x = tensor(X)
    with torch.inference_mode(), GradManager().attach(x) as gm:
        gm.backward(interop.from_torch(torch.exp)(x).sum())
    np.testing.assert_allclose(x.grad.numpy(), np.exp(X), rtol=1e-14)


def test_from_torch_names_the_dtype_that_torch_lacks(torch):
    with pytest.raises(errors.DtypeError, match="torch takes no array of"):
        interop.from_torch(torch.exp)(X.astype(np.longdouble))


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


def test_jax_function_of_complex_numbers_has_jaxs_derivatives(jax):
    z, real = jax.numpy.array([1 + 2j, 0.3 - 1j]), jax.numpy.array(X)
    f = interop.jax_function(lambda z: z * z * gnp.conj(z) + 1j * z)
    for point in z, real:
        found, expected = (
            [jax.vjp(g, point)[1](jax.numpy.ones(point.shape) * (1 - 2j))[0], jax.grad(lengths)(point)]
            for g, lengths in (
                (g, lambda z, g=g: (abs(jax.grad(lambda z: (abs(g(z)) ** 3).sum())(z)) ** 2).sum())
                for g in (f, lambda z: z * z * z.conj() + 1j * z)
            )
        )
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_jax_function_takes_a_number(jax):
    assert jax.grad(interop.jax_function(lambda x: x**2))(3.0) == 6


def test_jax_function_without_tracing_is_called_with_the_values_alone(jax):
    seen = []

    def f(x):
        seen.append(x.tolist())
        return x[x.numpy() > 0]

    np.testing.assert_array_equal(interop.jax_function(f)(jax.numpy.array(X)), X[X > 0])
    assert seen == [X.tolist()]


def test_jax_function_finds_shapes_where_zeros_have_no_result(jax):
    f = jax.jit(interop.jax_function(lambda x: gnp.log(gnp.linalg.det(gnp.linalg.cholesky(x))).sum()))
    np.testing.assert_allclose(f(jax.numpy.array([4 * np.eye(2), 9 * np.eye(2)])), np.log(4 * 9), rtol=1e-14)


def test_jax_function_says_how_it_was_called_in_tracing(jax):
    def f(x):
        if (x.numpy() == 1).all():
            raise ZeroDivisionError
        return x[x.numpy() > 0]

    with pytest.raises(ZeroDivisionError) as caught:
        jax.jit(interop.jax_function(f))(jax.numpy.array(X))
    assert "JAX traces f before there are values" in caught.value.__notes__[0]


def test_jax_function_refuses_shapes_that_depend_on_values_in_tracing(jax):
    f = interop.jax_function(lambda x: x[x.numpy() > 0])
    with pytest.raises(Exception, match=r"a result has shape \(2,\); it had \(3,\) when JAX traced"):
        np.asarray(jax.jit(f)(jax.numpy.array(X)))


def test_jax_function_leaves_nothing_behind(jax):
    slope, x = jax.grad(interop.jax_function(lambda x: (gnp.exp(x) * x).sum())), jax.numpy.array(X)
    slope(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10):
        slope(x)
    gc.collect()
    assert len(gc.get_objects()) < before + 10


def test_jax_function_refuses_what_would_lose_a_gradient(jax):
    w = tensor(X)
    f = interop.jax_function(lambda x: x * w)
    for call in f, jax.jit(f):
        with GradManager().attach(w), pytest.raises(errors.TrackedConversionError, match="pass what it depends on"):
            call(jax.numpy.array(X))
