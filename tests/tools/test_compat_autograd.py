"""gradmgr.compat.autograd: autograd's names, argument order and results, against formulas."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import gradmgr
import gradmgr.compat.autograd as ag
import gradmgr.compat.autograd.numpy as anp
from gradmgr.compat.autograd import builtins, core, extend, test_util, tracer, util
from gradmgr.compat.autograd.differential_operators import make_jvp_reversemode
from gradmgr.compat.autograd.misc import fixed_points, flatten, optimizers, tracers
from gradmgr.compat.autograd.misc.flatten import flatten_func

X = np.array([0.5, 1.2, 2.0])
M = np.array([[2.0, 0.3, -0.1], [0.5, 1.5, 0.2], [0.1, -0.4, 3.0]])
POSITIVE = M @ M.T


def cubes(x):
    return anp.sum(x**3)


def close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-9, "atol": 1e-12} | tolerance))


# ---------------------------------------------------------------- derivatives of functions


def test_grad_gives_plain_values_in_the_form_of_the_argument():
    slope = ag.grad(cubes)(X)
    assert type(slope) is np.ndarray
    close(slope, 3 * X**2)
    assert type(ag.grad(lambda x: x * x)(3.0)) is np.float64
    found = ag.grad(lambda p: anp.sum(p["w"]) * p["b"][0] * p["b"][1])({"w": X, "b": (2.0, [3.0][0])})
    assert list(found) == ["w", "b"]
    assert type(found["b"]) is tuple
    close(found["w"], 6.0)
    close(found["b"], (3 * X.sum(), 2 * X.sum()))


def test_derivatives_by_numbers_and_by_arrays_without_axes_are_scalars_of_numpy():
    for x in (2.0, np.float64(2.0), np.array(2.0)):
        for f in (lambda x: x * x, lambda x: x + 1.0, lambda x: 3.0 + 0 * x, lambda x: x):
            found = [ag.grad(f)(x), ag.value_and_grad(f)(x)[1], ag.elementwise_grad(f)(x), ag.make_vjp(f)(x)[0](1.0)]
            found += [ag.grad(lambda p, f=f: f(p["a"]))({"a": x})["a"], ag.make_jvp(f)(x)(1.0)[1]]
            assert {type(each) for each in found} == {np.float64}
    assert ag.jacobian(lambda x: x * X)(np.array(2.0)).tolist() == X.tolist()


def test_grad_by_another_argument_or_by_several():
    def f(a, b, scale=1.0):
        return anp.sum(a * b) * scale

    close(ag.grad(f, 1)(X, 2 * X), X)
    close(ag.grad(f, argnum=(1, 0))(X, 2 * X, scale=3.0), (3 * X, 6 * X))
    close(ag.grad_named(f, "b")(X, 2 * X), X)


def test_grad_of_integers_is_refused_for_numbers_and_converts_arrays():
    with pytest.raises(TypeError, match=r"pass floats, such as 3.0 for 3"):
        ag.grad(lambda x: x * 2.0)(3)
    with pytest.raises(TypeError, match=r"holds bool only"):
        ag.grad(cubes)(X > 1)
    close(ag.grad(cubes)(np.array([1, 2])), [3.0, 12.0])


def test_grad_of_an_array_or_a_truth_value_is_refused():
    for operator in (ag.grad, ag.value_and_grad):
        with pytest.raises(TypeError, match="one real number"):
            operator(lambda x: x * 2)(X)
        with pytest.raises(TypeError, match="bool"), pytest.warns(UserWarning, match="independent"):
            operator(lambda x: anp.allclose(x, X))(X)


@pytest.mark.parametrize("argnum", ["a", None, 1.0, True])
def test_a_wrong_argnum_is_refused(argnum):
    with pytest.raises(TypeError, match="argnum is an int or a tuple"):
        ag.grad(cubes, argnum)


def test_a_function_that_does_not_depend_on_its_argument_has_zeros_and_a_warning():
    for derivative in (ag.grad, ag.elementwise_grad, ag.jacobian):
        with pytest.warns(UserWarning, match="independent of input") as warned:
            assert derivative(lambda x: 3.0)(X).tolist() == [0.0, 0.0, 0.0]
        assert warned[0].filename == __file__


def test_value_and_grad():
    value, slope = ag.value_and_grad(cubes)(X)
    assert type(value) is np.float64
    close(value, np.sum(X**3))
    close(slope, 3 * X**2)


def test_jacobian_and_hessian():
    close(ag.jacobian(lambda x: anp.dot(M, x) * x[0])(X), M * X[0] + np.outer(M @ X, [1, 0, 0]))
    assert ag.jacobian(lambda x: anp.outer(x, x))(X).shape == (3, 3, 3)
    close(ag.hessian(cubes)(X), np.diag(6 * X))
    close(ag.hessian(lambda x: x**3)(2.0), 12.0)
    with pytest.raises(TypeError, match="container"):
        ag.jacobian(lambda p: p["a"])({"a": X})


def test_elementwise_grad_nests_to_the_sixth_order():
    f, t = anp.tanh, np.tanh(X)
    found = []
    for _ in range(6):
        f = ag.elementwise_grad(f)
        found.append(f(X))
    polynomial = np.polynomial.Polynomial([0.0, 1.0])  # the derivatives of t = tanh are polynomials in t; t' = 1 - t^2
    for slope in found:
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([1.0, 0.0, -1.0])
        close(slope, polynomial(t))
    close(ag.egrad(anp.tanh)(X), 1 - t**2)
    with pytest.raises(TypeError, match="complex"):
        ag.elementwise_grad(lambda x: x * 1j)(X)


@pytest.mark.parametrize("name", ["hessian_vector_product", "hessian_tensor_product", "hvp"])
def test_products_with_the_hessian(name):
    close(getattr(ag, name)(cubes)(X, M[0]), 6 * X * M[0])


@pytest.mark.parametrize("name", ["vector_jacobian_product", "tensor_jacobian_product"])
def test_products_with_the_jacobian(name):
    close(getattr(ag, name)(lambda x: anp.dot(M, x**2))(X, X), X @ (M * 2 * X))


def test_make_vjp_may_be_called_again_and_later():
    vjp, value = ag.make_vjp(lambda x: {"y": x**2, "z": (x[0],)})(X)
    close(value["y"], X**2)
    for scale in (1.0, 2.0):
        close(vjp({"y": scale * X, "z": (1.0,)}), 2 * scale * X**2 + np.array([1.0, 0, 0]))


def test_make_jvp_gives_value_and_tangent():
    value, tangent = ag.make_jvp(lambda x: anp.sin(x) * x[1])(X)(X)
    close(value, np.sin(X) * X[1])
    close(tangent, np.cos(X) * X * X[1] + np.sin(X) * X[1])
    close(ag.deriv(anp.sin)(0.3), np.cos(0.3))
    close(ag.make_jvp(lambda a, b: a * b, (0, 1))(2.0, 3.0)((1.0, 10.0))[1], 23.0)


def test_make_jvp_reversemode_is_the_jvp():
    close(make_jvp_reversemode(lambda x: anp.dot(M, x**2))(X)(M[1]), M @ (2 * X * M[1]))


def test_make_hvp_gives_the_product_and_the_gradient():
    hvp, slope = ag.make_hvp(cubes)(X)
    close(slope, 3 * X**2)
    close(hvp(M[0]), 6 * X * M[0])
    close(hvp(M[1]), 6 * X * M[1])


def test_make_ggnvp_is_the_gauss_newton_matrix():
    jacobian = M * (1 - np.tanh(X) ** 2)
    close(ag.make_ggnvp(lambda x: anp.dot(M, anp.tanh(x)))(X)(M[0]), jacobian.T @ jacobian @ M[0])
    hessian = np.diag(12 * (M @ np.tanh(X)) ** 2)
    found = ag.make_ggnvp(lambda x: anp.dot(M, anp.tanh(x)), lambda y: anp.sum(y**4))(X)(M[0])
    close(found, jacobian.T @ hessian @ jacobian @ M[0])


def test_grad_and_aux_passes_the_second_result():
    slope, aux = ag.grad_and_aux(lambda x: (cubes(x), {"doubled": 2 * x, "name": "n"}))(X)
    close(slope, 3 * X**2)
    assert type(aux["doubled"]) is np.ndarray
    assert aux["name"] == "n"
    close(aux["doubled"], 2 * X)


def test_multigrad_dict_names_every_argument():
    def f(a, b=2.0, *more, **named):
        return anp.sum(a) * b * more[0] * named["q"]

    found = ag.multigrad_dict(f)(X, 3.0, 4.0, q=5.0)
    assert list(found) == ["a", "b", "more", "named"]
    close(found["a"], 60.0)
    close(found["b"], 20 * X.sum())
    close(found["more"], (15 * X.sum(),))
    close(found["named"]["q"], 12 * X.sum())


def test_checkpoint_computes_the_same_and_calls_again_in_backward():
    calls = []

    @ag.checkpoint
    def f(x):
        calls.append(1)
        return anp.sin(x) * x

    close(f(X), np.sin(X) * X)
    assert len(calls) == 1
    close(ag.grad(lambda x: anp.sum(f(x)))(X), np.cos(X) * X + np.sin(X))
    assert len(calls) == 3


Z = np.array([0.3 + 1.0j, -0.5 + 0.2j])


def test_complex_gradients_follow_autograds_convention():
    """The gradient of u is du/dx - i du/dy, the conjugate of gradmgr's; the vjp of a holomorphic f is g f'."""
    close(ag.grad(lambda z: anp.sum(anp.abs(z) ** 2))(Z), 2 * np.conj(Z))
    close(ag.holomorphic_grad(lambda z: anp.exp(z) * z)(Z[0]), np.exp(Z[0]) * (1 + Z[0]))
    close(ag.make_vjp(lambda z: z**3)(Z)[0](1j * Z), 1j * Z * 3 * Z**2)
    close(ag.make_jvp(lambda z: z**3)(Z)(1j * Z)[1], 1j * Z * 3 * Z**2)
    with pytest.warns(UserWarning, match="not complex"):
        close(ag.holomorphic_grad(lambda x: x**2)(3.0), 6.0)


def test_an_error_in_the_function_leaves_nothing_recording():
    with pytest.raises(ZeroDivisionError):
        ag.grad(lambda x: anp.sum(x) * (1 / 0))(X)
    with gradmgr.GradManager().attach(t := gradmgr.tensor(2.0)) as gm:
        gm.backward(t * t)
    assert t.grad.item() == 4.0


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (
            lambda: ag.grad(cubes, 3)(X),
            IndexError,
            "^grad_of_cubes_wrt_argnum_3: there is no argument 3, as 1",
        ),
        (lambda: ag.grad(cubes)(), IndexError, "there is no argument 0, as 0 were given by position"),
        (lambda: ag.grad_named(cubes, "z"), ValueError, "^grad_named: the function has no argument 'z'; it has x"),
        (
            lambda: ag.make_vjp(anp.sin)(X)[0](X[:2]),
            ValueError,
            r"the shape of the value, \(3,\); found \(2,\)",
        ),
        (lambda: ag.make_jvp(anp.sin)(X)(X[:2]), ValueError, r"the shape of the point, \(3,\); found \(2,\)"),
        (lambda: ag.make_ggnvp(3), TypeError, "^make_ggnvp takes a function; found int"),
        (lambda: ag.grad_and_aux(cubes)(X), TypeError, r"functions that return \(value, aux\); found Tensor"),
        (lambda: util.subval((1, 2), 5, 0), IndexError, "there is no element 5 of 2"),
    ],
)
def test_wrong_calls_say_what_was_asked_and_found(call, kind, says):
    with pytest.raises(kind, match=says):
        call()


# ---------------------------------------------------------------- numpy


def test_functions_that_make_arrays_give_plain_ones_for_plain_values():
    made = (
        anp.array([1, 2]),
        anp.zeros(2),
        anp.ones_like(X),
        anp.arange(3),
        anp.linspace(0, 1, 3),
        anp.eye(2),
        anp.r_[X, 1.0],
    )
    made += (anp.full(2, 1.0), anp.fft.fftfreq(4), anp.fft.fft(X), anp.linalg.inv(M), anp.random.RandomState(0).rand(2))
    assert {type(a) for a in made} == {np.ndarray}
    assert anp.pi == np.pi
    assert anp.float64 is np.float64
    assert anp.any([False, True])


def test_functions_that_make_arrays_take_traced_values():
    close(ag.grad(lambda x: anp.sum(anp.array([x[0], 2.0, x[1] * x[0]]) ** 2))(X)[0], 2 * X[0] + 2 * X[0] * X[1] ** 2)
    close(ag.grad(lambda x: anp.sum(anp.r_[x, x] ** 2))(X), 4 * X)
    close(ag.grad(lambda x: anp.sum(anp.append(x, x[0]) ** 2))(X), 2 * X + [2 * X[0], 0, 0])
    close(ag.grad(lambda x: anp.sum(anp.full(3, x[0]) * anp.linspace(0, 1, 3)))(X), [1.5, 0, 0])
    close(ag.grad(lambda x: anp.sum((anp.zeros_like(x) + anp.ones(x.shape)) * x))(X), 1.0)
    close(ag.grad(lambda x: anp.sum(anp.concatenate([x, X]) ** 2) + anp.sum(anp.vstack((x, x))))(X), 2 * X + 2)
    close(ag.grad(lambda x: anp.sum(anp.make_diagonal(x, axis1=-1, axis2=-2) * M))(X), np.diag(M))
    close(ag.grad(lambda x: anp.sum(anp.array([x[0], 2 * x[1]], dtype=object).ravel() ** 2))(X), [1.0, 9.6, 0.0])


def test_linalg_and_fft_are_differentiable():
    close(ag.grad(lambda a: anp.linalg.slogdet(a)[1])(M), np.linalg.inv(M).T)
    close(ag.grad(lambda x: anp.sum(anp.abs(anp.fft.fft(x)) ** 2))(X), 6 * X)  # Parseval


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh_has_the_gradient_of_the_triangle_it_reads(uplo):
    for a in (POSITIVE, POSITIVE + 1j * (M - M.T)):
        values, vectors = np.linalg.eigh(a, uplo)
        projector = np.outer(vectors[:, 0], vectors[:, 0].conj())
        slope = ag.grad(lambda a: anp.linalg.eigh(a, uplo)[0][0])(a)
        expected = np.diag(np.diag(projector)) + 2 * (np.tril if uplo == "L" else np.triu)(
            projector, {"L": -1, "U": 1}[uplo]
        )
        close(slope, expected.conj())
    assert values[0] < values[1]


def test_where_keeps_numbers_and_lists():
    assert type(anp.where(True, 1, 2)) is int
    assert anp.where([True, False], [1, 2], [3.0, 4.0]) == [1.0, 4.0]
    assert anp.where(X > 1, x=X, y=0.0).tolist() == [0.0, 1.2, 2.0]
    close(ag.grad(lambda x: anp.sum(anp.where(x > 1, x**2, x)))(X), [1.0, 2.4, 4.0])
    assert anp.where(X > 1)[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="both or neither"):
        anp.where(True, 1)


def test_every_public_name_of_autograd_numpy_is_callable_or_a_value_of_numpys():
    for name in anp.__all__:
        assert hasattr(anp, name)
    assert {"sin", "where", "float32", "newaxis", "einsum", "linalg", "random", "fft"} <= set(anp.__all__)


# ---------------------------------------------------------------- extend, builtins, tracer


@extend.primitive
def logsumexp(x):
    """Return log(sum(exp(x))) of a plain array."""
    assert type(x) is np.ndarray
    top = np.max(x)
    return top + np.log(np.sum(np.exp(x - top)))


extend.defvjp(logsumexp, lambda ans, x: lambda g: anp.full(x.shape, g) * anp.exp(x - anp.full(x.shape, ans)))


def test_a_primitive_has_its_own_vjp_at_every_order():
    p = np.exp(X) / np.exp(X).sum()
    assert logsumexp.__name__ == "logsumexp"
    assert type(logsumexp(X)) is np.float64
    close(ag.grad(logsumexp)(X), p)
    close(ag.hessian(logsumexp)(X), np.diag(p) - np.outer(p, p))
    with pytest.raises(NotImplementedError, match="no jvp"):
        ag.make_jvp(logsumexp)(X)(X)


def test_a_primitive_of_containers_with_vjp_and_jvp():
    @extend.primitive
    def both(p, k, scale=1.0):
        return [p["a"] * k * scale, {"sum": p["a"] + k}]

    extend.defvjp(both, lambda ans, p, k, scale=1.0: lambda g: {"a": g[0] * k * scale + g[1]["sum"]}, None)
    extend.defjvp(both, lambda g, ans, p, k, scale=1.0: [g["a"] * k * scale, {"sum": g["a"]}], "same")

    def f(p):
        product, total = both(p, 3.0, scale=2.0)
        return anp.sum(product * total["sum"])

    close(ag.grad(f)({"a": X})["a"], 6 * (2 * X + 3))
    close(ag.make_jvp(f)({"a": X})({"a": X})[1], np.sum(X * 6 * (2 * X + 3)))


def test_the_tangent_of_a_constant_number_in_a_container_is_zero():
    product = extend.primitive(lambda pair: pair[0] * pair[1])
    extend.defjvp(product, lambda g, ans, pair: g[0] * pair[1] + pair[0] * g[1])
    assert ag.make_jvp(lambda x: product([x, 2.0]))(3.0)(1.0) == (6.0, 2.0)


def test_an_argument_whose_rule_is_none_has_a_tangent_of_zeros():
    pair = extend.primitive(lambda x, y: [3.0 * y, x])
    extend.defjvp(pair, None, lambda g, ans, x, y: [3.0 * g, 0.0 * g])
    assert ag.make_jvp(lambda x: pair(x, 2.0 * x))(1.0)(1.0) == ([6.0, 1.0], [6.0, 0.0])


def test_a_function_without_trace_takes_plain_values_and_gives_a_constant():
    @extend.notrace_primitive
    def total(pair, scale=1.0):
        return scale * float(sum(map(type(X).sum, pair)))

    close(ag.grad(lambda x: anp.sum(x) * total((x, 2 * x), scale=2.0))(X), np.full(3, 6 * X.sum()))
    with pytest.raises(TypeError, match="notrace_primitive"):
        extend.notrace_primitive(3)


def test_vjps_and_jvps_may_be_declared_for_chosen_arguments_and_for_all_at_once():
    def product():
        return extend.primitive(lambda a, b: a * b)

    one, each, every = product(), product(), product()
    extend.defvjp(one, lambda ans, a, b: lambda g: g * a, argnums=[1])
    extend.defjvp(one, lambda g, ans, a, b: g * a, argnums=[1])
    extend.defvjp_argnum(each, lambda argnum, ans, args, kwargs: lambda g: g * args[1 - argnum])
    extend.defjvp_argnum(each, lambda argnum, g, ans, args, kwargs: g * args[1 - argnum])
    extend.defvjp_argnums(every, lambda argnums, ans, args, kw: lambda g: [g * args[1 - k] for k in argnums])
    extend.defjvp_argnums(
        every, lambda argnums, gs, ans, args, kw: sum(g * args[1 - k] for k, g in zip(argnums, gs, strict=True))
    )
    close(ag.grad(one, 1)(2.0, 3.0), 2.0)
    with pytest.raises(NotImplementedError, match="argument 0 is not defined"):
        ag.grad(one)(2.0, 3.0)
    for f in (each, every):
        close(ag.grad(f, (0, 1))(2.0, 3.0), (3.0, 2.0))
        close(ag.make_jvp(f, (0, 1))(2.0, 3.0)((1.0, 10.0))[1], 23.0)
        close(ag.grad(ag.grad(lambda a, f=f: f(a, a)))(2.0), 2.0)
    linear = extend.primitive(lambda a: 3.0 * a)
    extend.def_linear(linear)
    close(ag.make_jvp(linear)(X)(X)[1], 3 * X)


@pytest.mark.parametrize("wrap", [lambda target, vjp: vjp, anp.numpy_vjps.unbroadcast_f])
def test_a_vjp_of_a_primitive_that_broadcasts_is_summed(wrap):
    scaled = extend.primitive(lambda a, b: a * b)
    extend.defvjp(scaled, lambda ans, a, b: wrap(a, lambda g: g * b), lambda ans, a, b: wrap(b, lambda g: g * a))
    of_row, of_number = ag.grad(lambda a, b: anp.sum(scaled(scaled(a, M), b)), (0, 1))(X[None], 2.0)
    close(of_row, 2 * M.sum(axis=0)[None])
    close(of_number, np.sum(X * M))


@extend.primitive
def power(x, exponent, scale=1.0):
    """Return scale * x**exponent of plain values."""
    assert not isinstance(x, gradmgr.Tensor)
    return scale * x**exponent


extend.defvjp(power, lambda ans, x, n, scale=1.0: lambda g: g * n * power(x, n - 1, scale=scale), None)
extend.defjvp(power, lambda g, ans, x, n, scale=1.0: g * n * power(x, n - 1, scale=scale), None)


@pytest.mark.parametrize(
    "way",
    [
        lambda f: ag.jacobian(f),
        lambda f: ag.jacobian(ag.checkpoint(f)),
        lambda f: ag.jacobian(tracers.const_graph(f)),
        lambda f: lambda x: np.diag(ag.make_jvp(f)(x)(np.ones(3))[1]),
        lambda f: lambda x: np.diag(gradmgr.vmap(gradmgr.functional.grad(f))(gradmgr.tensor(x)).numpy()),
    ],
    ids=["reverse", "checkpoint", "const_graph", "forward", "vmap"],
)
def test_a_primitive_is_differentiated_in_every_mode(way):
    def f(x):
        return power(x, 3.0, scale=2.0)

    close(way(f)(X), np.diag(6 * X**2))
    close(ag.jacobian(lambda x: ag.egrad(f)(x))(X), np.diag(12 * X))
    close(ag.make_jvp(ag.egrad(f))(X)(X)[1], 12 * X**2)
    close(ag.egrad(lambda x: ag.make_jvp(f)(x)(X)[1])(X), 12 * X**2)


def test_a_vjp_that_uses_the_result_is_differentiated_inside_vmap():
    exp = extend.primitive(np.exp)
    extend.defvjp(exp, lambda ans, x: lambda g: g * ans)
    second = gradmgr.functional.grad(gradmgr.functional.grad(lambda x: exp(2.0 * x)))
    close(gradmgr.vmap(second)(gradmgr.tensor(X)).numpy(), 4 * np.exp(2 * X))


def test_a_primitive_is_recorded_as_one_operation_of_its_name():
    x = gradmgr.tensor(X)
    kept = []

    def pack(t):
        kept.append(t.shape)
        return t.numpy() * 1.0

    with gradmgr.GradManager().attach(x) as gm:
        with gradmgr.graph.saved_tensors_hooks(pack, gradmgr.tensor):
            y = anp.sum(power(x, 2.0))
        (slope,) = gradmgr.grad(y, x, create_graph=True)
        gm.backward(anp.sum(slope * slope))  # of (2 x)^2
    close(x.grad.numpy(), 8 * X)
    assert kept[:2] == [(3,), (3,)]  # the argument, and the result
    failing = extend.primitive(lambda x: x)
    failing.fun.__name__ = "failing"
    extend.defvjp(failing, lambda ans, x: lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError) as found:
        ag.grad(lambda x: anp.sum(failing(x)))(X)
    assert found.value.__notes__ == ["(in the derivative of gradmgr op 'failing')"]


def test_a_primitive_with_a_result_of_integers_is_a_constant():
    count = extend.primitive(lambda x: np.sum(x > 1))
    close(ag.grad(lambda x: anp.sum(x) * count(x))(X), 2.0)


def test_a_gradient_of_a_primitive_has_the_dtype_of_its_argument():
    double = extend.primitive(lambda x: 2 * x)
    extend.defvjp(double, lambda ans, x: lambda g: 2 * np.asarray(g, np.float64))
    assert ag.grad(lambda x: anp.sum(double(x)))(np.ones(2, np.float32)).dtype == np.float32


def test_a_rule_or_what_it_is_declared_for_must_be_a_function():
    with pytest.raises(TypeError, match="defvjp takes a function; found int"):
        extend.defvjp(3, lambda ans, x: lambda g: g)
    with pytest.raises(TypeError, match="must be a function or None"):
        extend.defvjp(extend.primitive(abs), 3)


def test_a_derivative_for_a_function_that_is_no_primitive_is_not_used_and_warns():
    def zero(*args, **kwargs):
        return lambda g: 0.0 * g

    for declare, rule in [
        *[(declare, zero) for declare in (extend.defvjp, extend.defvjp_argnum, extend.defvjp_argnums)],
        *[(declare, zero()) for declare in (extend.defjvp, extend.defjvp_argnum, extend.defjvp_argnums)],
    ]:
        with pytest.warns(UserWarning, match=f"{declare.__name__}: the rule declared for sin is not used"):
            declare(anp.sin, rule)
    close(ag.elementwise_grad(anp.sin)(X), np.cos(X))
    close(ag.make_jvp(anp.sin)(X)(X)[1], X * np.cos(X))

    def of_the_program(x):
        return x**3

    with pytest.warns(UserWarning, match="the rule declared for of_the_program is not used") as warned:
        extend.defvjp(of_the_program, zero)
    assert warned[0].filename == __file__
    close(ag.elementwise_grad(of_the_program)(X), 3 * X**2)


def test_a_complex_primitive_follows_autograds_convention():
    square = extend.primitive(lambda z: z * z)
    extend.defvjp(square, lambda ans, z: lambda g: g * 2 * z)
    close(ag.holomorphic_grad(square)(Z[0]), 2 * Z[0])


def test_vector_spaces():
    space = extend.vspace({"a": X, "z": Z})
    assert space.size == 7
    assert space == extend.vspace({"a": 2 * X, "z": Z})
    assert space != extend.vspace({"a": X, "z": X[:2]})
    close(space.ones()["z"], [1 + 1j, 1 + 1j])
    close(space.inner_prod({"a": X, "z": Z}, {"a": X, "z": Z}), X @ X + np.sum(np.abs(Z) ** 2))
    close(space.add(space.scalar_mul(space.ones(), 2.0), space.zeros())["a"], 2.0)
    assert len(list(space.standard_basis())) == 7
    assert extend.vspace(Z).iscomplex
    close(extend.vspace(Z).covector(Z), np.conj(Z))
    with pytest.raises(TypeError, match="vector space"):
        extend.vspace("text")
    with pytest.raises(NotImplementedError, match="dataclass"):
        extend.VSpace.register(str)


def test_traced_values_are_seen_as_what_they_hold():
    seen = []

    def f(x):
        assert isinstance(x, anp.numpy_boxes.ArrayBox)
        assert isinstance(x, extend.Box)
        seen.extend([tracer.isbox(x), tracer.getval(x), builtins.isinstance(x, np.ndarray), builtins.type(x)])
        seen.append(type(anp.sum(x)._value))
        return anp.sum(x * x._value)

    assert ag.grad(f)(X).tolist() == X.tolist()
    assert seen[0] is True
    assert seen[1].tolist() == X.tolist()
    assert seen[2:] == [True, np.ndarray, np.float64]
    assert not tracer.isbox(X)
    assert not isinstance(X, extend.Box)
    assert issubclass(type(gradmgr.tensor(1.0)), extend.Box)
    assert extend.Box is core.Box is tracer.Box
    assert builtins.dict(a=1) == {"a": 1}
    assert builtins.tuple(builtins.list((1, 2))) == (1, 2)


# ---------------------------------------------------------------- misc


def test_flatten_and_back():
    params = {"b": [X, (2.0, 3.0)], "a": M[:1]}
    vector, unflatten = flatten(params)
    assert vector.tolist() == [*M[0], *X, 2.0, 3.0]
    made = unflatten(2 * vector)
    assert list(made) == ["b", "a"]
    close(made["a"], 2 * M[:1])
    assert made["b"][1] == (4.0, 6.0)
    assert flatten([])[0].shape == (0,)
    close(ag.grad(lambda x: anp.sum(flatten({"q": x, "p": [2 * x]})[0] ** 2))(X), 10 * X)
    close(ag.grad(lambda v: anp.sum(unflatten(v)["b"][0] ** 2))(vector), [0, 0, 0, *(2 * X), 0, 0])
    with pytest.raises(TypeError, match="flatten_func takes a function; found int"):
        flatten_func(3, 1.0)
    func, _, start = flatten_func(lambda p: {"s": p["a"] * 2}, {"a": X})
    close(func(start), 2 * X)


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [("sgd", -0.1 * 0.1 * 4.0), ("rmsprop", -0.1 * 4.0 / (0.9 + 0.1 * 16) ** 0.5), ("adam", -0.001)],
)
def test_optimizers_take_their_first_step_and_converge(optimizer, step):
    optimize, seen = getattr(optimizers, optimizer), []

    def slope(p, i):
        return ag.grad(lambda p: (p["x"] - 1.0) ** 2 + anp.sum((p["y"] - 2) ** 2))(p)

    start = {"x": 3.0, "y": X}
    close(optimize(slope, start, num_iters=1)["x"], 3.0 + step, rtol=1e-6)
    made = optimize(slope, start, lambda p, i, g: seen.append((p["x"], i, g["x"])), 300, 0.1)
    assert seen[0] == (3.0, 0, 4.0)
    close(made["x"], 1.0, atol=0.06)
    close(made["y"], [2.0, 2.0, 2.0], atol=0.06)


def test_an_optimizer_of_vectors_is_made_one_of_containers():
    seen = []

    @optimizers.unflatten_optimizer
    def newton(grad, x, callback=None, steps=1):
        for i in range(steps):
            g = grad(x, i)
            callback(x, i, g)
            x = x - g / 2  # of the sum of squares the Hessian is 2
        return x

    target = {"x": 1.0, "y": (2.0, M)}
    slope = ag.grad(lambda p, i: sum(anp.sum(d**2) for d in (p["x"] - 1.0, p["y"][0] - 2.0, p["y"][1] - M)))
    made = newton(slope, {"x": 5.0, "y": (0.0, 0 * M)}, lambda p, i, g: seen.append((p["x"], i, g["x"])), steps=2)
    assert seen == [(5.0, 0, 8.0), (1.0, 1, 0.0)]
    assert type(made["y"]) is tuple
    close(flatten(made)[0], flatten(target)[0])


def test_a_fixed_point_has_the_derivatives_of_what_it_converges_to():
    def root(a):
        return fixed_points.fixed_point(lambda a: lambda x: (x + a / x) / 2, a, 1.0, lambda x, y: abs(x - y), 1e-12)

    close(root(2.0), 2**0.5)
    close(ag.grad(root)(2.0), 0.5 / 2**0.5)
    close(ag.grad(ag.grad(root))(2.0), -0.25 * 2**-1.5, rtol=1e-6)


# ---------------------------------------------------------------- test_util


def test_check_grads_passes_right_derivatives_and_rejects_wrong_ones():
    np.random.seed(0)  # of 300 random directions one hardly shows an error of 0.05 %
    test_util.check_grads(lambda a, b: anp.sin(a) * b, argnum=(0, 1))(X, M[0])
    test_util.check_grads(lambda z: z**2)(Z)
    test_util.combo_check(lambda x, axis=0: anp.sum(x**2, axis=axis), [0], order=1)([M], axis=[0, 1])
    wrong = extend.primitive(lambda x: x**2)
    extend.defvjp(wrong, lambda ans, x: lambda g: g * 2.001 * x)
    extend.defjvp(wrong, lambda g, ans, x: g * 2.001 * x)
    for mode in ("rev", "fwd"):
        for error in (gradmgr.GradcheckError, AssertionError):
            with pytest.raises(error, match=r"\((VJP|JVP)\) check of <lambda> failed"):
                test_util.check_grads(wrong, modes=[mode], order=1)(X)
    doubled, passed = extend.primitive(lambda x: 2 * x), extend.primitive(lambda x: x)
    extend.defvjp(doubled, lambda ans, x: lambda g: 2 * passed(g))
    extend.defvjp(passed, lambda ans, x: lambda g: g * 1.001)
    doubled.__name__ = "doubled"
    with pytest.raises(AssertionError, match=r"\(VJP\) check of vjp_doubled failed"):
        test_util.check_grads(doubled, modes=["rev"])(1.0)
    with pytest.raises(ValueError, match="modes"):
        test_util.check_grads(anp.sin, modes=["back"])(X)


def test_single_checks_pass_what_agrees_and_reject_what_does_not():
    np.random.seed(0)
    assert test_util.scalar_close(2.0, 2.0 + 1e-7)
    assert not test_util.scalar_close(2.0, 2.0 + 1e-5)
    assert test_util.scalar_close(1e8, 1e8 + 1.0)  # relatively
    test_util.check_equivalent({"a": X}, {"a": X + 1e-9})
    for other in ({"a": X + 1e-3}, {"a": X.astype(np.float32)}, {"b": X}, [X]):
        with pytest.raises(AssertionError, match=r"differ|different spaces"):
            test_util.check_equivalent({"a": X}, other)
    wrong = extend.primitive(lambda x: anp.sin(x))
    extend.defvjp(wrong, lambda ans, x: lambda g: 1.01 * g * anp.cos(x))
    extend.defjvp(wrong, lambda g, ans, x: 1.01 * g * anp.cos(x))
    for check, said in ((test_util.check_vjp, "VJP"), (test_util.check_jvp, "JVP")):
        check(anp.sin, X)
        with pytest.raises(AssertionError, match=rf"\({said}\) check of <lambda> failed"):
            check(wrong, X)


# ---------------------------------------------------------------- names of old programs, and of autograd's inside


def test_methods_that_autograd_has_deprecated_declare_vjps_and_warn():
    product, scaled = core.primitive(lambda a, b: a * b), core.primitive_with_deprecation_warnings(lambda a, b: a * b)
    with pytest.warns(DeprecationWarning, match=r"defgrad of a primitive is deprecated; write .*defvjp"):
        product.defgrad(lambda ans, a, b: lambda g: g * b)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        product.defgrad(lambda ans, a, b: lambda g: g * a, argnum=1)
    spaces = []

    def by_a(g, ans, vs, gvs, a, b):
        spaces.append((vs.shape, gvs.shape))
        return g * b

    with pytest.warns(DeprecationWarning, match="deprecated"):
        scaled.defvjp(by_a)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        scaled.defvjp_is_zero([1])
    close(ag.grad(product, (0, 1))(2.0, 3.0), (3.0, 2.0))
    close(ag.grad(ag.grad(lambda a: product(a, a)))(2.0), 2.0)
    close(ag.grad(lambda a, b: anp.sum(scaled(a, b)), (0, 1))(X, 3.0)[0], [3.0] * 3)
    assert spaces == [((3,), (3,))]
    close(ag.grad(lambda b: anp.sum(scaled(X, b)) + b)(3.0), 1.0)


def test_rules_of_primitives_may_be_looked_up_and_taken_away():
    cube = extend.primitive(lambda x: x**3)
    assert cube not in core.primitive_vjps
    extend.defvjp(cube, lambda ans, x: lambda g: g * 3 * x**2)
    assert cube in core.primitive_vjps
    rule = core.primitive_vjps.pop(cube)
    with pytest.raises(NotImplementedError, match="no vjp"):
        ag.grad(cube)(2.0)
    core.primitive_vjps[cube] = rule
    close(ag.grad(cube)(2.0), 12.0)
    assert core.primitive_vjps.get(anp.iscomplex) is None
    assert core.primitive_jvps.pop(cube, "none") == "none"
    with pytest.raises(KeyError):
        del core.primitive_jvps[cube]
    with pytest.raises(TypeError, match="`primitive` made"):
        core.primitive_vjps[np.sin] = rule


@pytest.mark.parametrize("modes", [(extend.VJPNode,), (extend.VJPNode, extend.JVPNode)])
def test_a_primitive_registered_as_untraced_gives_plain_constants(modes):
    floor = extend.primitive(np.floor)
    for mode in modes:
        extend.register_notrace(mode, floor)
    found = []
    close(ag.grad(lambda x: anp.sum(x * floor(x)))(X), np.floor(X))
    ag.grad(lambda x: found.append(floor(x)) or anp.sum(x))(X)
    assert type(found[0]) is np.ndarray
    if extend.JVPNode in modes:
        close(ag.make_jvp(lambda x: x * floor(x))(X)(X)[1], X * np.floor(X))
    else:
        with pytest.raises(NotImplementedError, match="no jvp"):
            ag.make_jvp(floor)(X)(X)
    with pytest.raises(TypeError, match="VJPNode or JVPNode"):
        extend.register_notrace(tracer.Node, floor)
    with pytest.warns(UserWarning, match="register_notrace: the rule declared for floor is not used"):
        extend.register_notrace(extend.VJPNode, np.floor)


def test_a_vjp_may_return_a_sparse_object():
    @extend.primitive
    def put(g, index, vs):
        def add(a):
            np.add.at(a, index, g)
            return a

        return extend.SparseObject(vs, add)

    take = extend.primitive(lambda x, index: x[index])
    extend.defvjp(take, lambda ans, x, index: lambda g: put(g, index, extend.vspace(x)))
    extend.defvjp(put, lambda ans, g, index, vs: lambda u: take(u, index))
    index = np.array([0, 2, 0])
    close(ag.grad(lambda x: anp.sum(take(x, index) ** 3))(X), [6 * X[0] ** 2, 0, 3 * X[2] ** 2])
    close(ag.hessian(lambda x: anp.sum(take(x, index) ** 3))(X), np.diag([12 * X[0], 0, 6 * X[2]]))
    plain = extend.primitive(lambda x: x[1])
    extend.defvjp(
        plain, lambda ans, x: lambda g: extend.SparseObject(extend.vspace(x), lambda a: a + np.array([0, g, 0]))
    )
    close(ag.grad(plain)(X), [0.0, 1.0, 0.0])


def test_integer_types_make_constants_of_traced_values():
    found = []

    def f(x):
        index = anp.int64(x / 2)
        found.append(index)
        return anp.sum(x[index] * x)

    close(ag.grad(f)(X), [2 * X[0] + X[1], X[0] + X[2], X[1]])
    assert found[0].tolist() == [0, 0, 1]
    assert type(found[0]) is np.ndarray
    assert found[0].dtype == np.int64
    assert isinstance(anp.int8(3), anp.int8)
    assert isinstance(np.int64(3), anp.int64)
    assert not isinstance(3.0, anp.int64)
    assert np.zeros(2, anp.int32).dtype == anp.int32
    assert np.dtype(anp.int32) == np.int32
    assert np.issubdtype(np.int64, anp.int64)
    assert anp.int_ is anp.int64


def test_const_graph_gives_the_values_of_the_function():
    def f(a, x, b):
        return ag.grad(lambda x: anp.sum(a * anp.sin(x) + b * x))(x)

    replayed = tracers.const_graph(f, 2.0, b=3.0)
    for k in range(5):
        x = X + k
        found = replayed(x)
        assert type(found) is np.ndarray
        close(found, 2 * np.cos(x) + 3)
    assert type(tracers.const_graph_unary(anp.sin)(0.5)) is np.float64
    close(ag.grad(lambda x: anp.sum(tracers.const_graph(anp.sin)(x)))(X), np.cos(X))


@pytest.mark.parametrize(
    "use",
    [
        lambda: type("Own", (tracer.Node,), {}),
        lambda: tracer.trace(None, anp.sin, X),
        lambda: tracer.new_box(X, 0, None),
        lambda: tracers.full_graph(anp.sin, X),
        lambda: type("Own", (extend.Box, dict), {}),
        lambda: extend.Box.register(str),
    ],
)
def test_what_depends_on_autograds_nodes_and_boxes_is_refused_in_words(use):
    with pytest.raises(NotImplementedError, match="gradmgr"):
        use()


def test_small_functions_of_util_and_numpy_vjps():
    assert util.subval((1, 2), 0, 3) == (3, 2)
    assert util.subvals([1, 2, 3], [(0, "a"), (-1, "c")]) == ("a", 2, "c")
    with pytest.raises(IndexError, match="there is no element 2 of 2"):
        util.subvals((1, 2), [(2, 0)])
    assert util.func(anp.sin) is anp.sin
    with pytest.warns(DeprecationWarning, match="check_grads"):
        util.quick_grad_check(lambda x, y: x**2 * y, 1.0, (2.0,))
    wrong = extend.primitive(lambda x: x)
    extend.defvjp(wrong, lambda ans, x: lambda g: 1.1 * g)
    with pytest.warns(DeprecationWarning, match="check_grads"), pytest.raises(AssertionError, match="failed"):
        util.quick_grad_check(wrong, 1.0)
    rules = anp.numpy_vjps
    target = anp.metadata(np.ones((1, 3)))
    assert target == ((1, 3), 2, np.dtype(float), False)
    close(rules.unbroadcast(M, target), M.sum(axis=0)[None])
    assert anp.metadata(1j) == ((), 0, np.dtype(complex), True)
    assert rules.match_complex(1.0, 2.0 + 1j) == 2.0
    assert rules.match_complex(1j, 2.0) == 2.0 + 0j
    close(rules.balanced_eq(X, np.maximum(X, 1.2), np.full(3, 1.2)), [0.0, 0.5, 1.0])
    close(rules.replace_zero(np.array([0.0, 2.0]), 1.0), [1.0, 2.0])
    close(anp.linalg.T(M), M.T)
    assert isinstance({}, builtins.DictBox)
    assert isinstance([], builtins.SequenceBox)


def test_an_operator_of_functions_of_one_argument_takes_any_argument_or_several():
    at = ag.wrap_util.unary_to_nary(lambda f, x, factor=1: (f.__name__, x, factor * f(x)))

    def weigh(a, b, c, unit=0):
        return 100 * a + 10 * b + c + unit

    assert at(weigh)(1, 2, 3) == ("weigh", 1, 123)
    assert at(weigh, 2, factor=2)(1, 2, 3, unit=0.5) == ("weigh", 3, 247.0)
    assert at(weigh, (2, 0))(1, 2, 3) == ("weigh", (3, 1), 123)
    with pytest.raises(IndexError, match="there is no argument 3, as 3 were given by position"):
        at(weigh, 3)(1, 2, 3)


def test_a_derivative_is_named_by_its_function():
    def f(x):
        """Return something else."""

    assert ag.grad(f, 1).__name__ == "grad_of_f_wrt_argnum_1"
    assert "grad of function f with respect to argument 1" in ag.grad(f, 1).__doc__
    assert list(inspect.signature(ag.grad(f)).parameters) == ["x"]


# ---------------------------------------------------------------- install


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603  # ours
    return done.stdout + done.stderr


def test_install_lets_programs_import_autograd():
    program = """
import gradmgr
assert not any(name.startswith("gradmgr.compat") for name in __import__("sys").modules)
import gradmgr.compat.autograd
assert "scipy" not in __import__("sys").modules
gradmgr.compat.autograd.install()
gradmgr.compat.autograd.install()
import autograd, autograd.numpy as anp, autograd.numpy.random as npr, autograd.scipy.stats.norm as norm
from autograd import grad, multigrad_dict
from autograd.misc.optimizers import adam
from autograd.extend import primitive
from autograd.numpy.linalg import slogdet
from autograd.scipy.special import gammaln
from autograd.scipy.integrate import odeint
from autograd.builtins import tuple
assert autograd.__name__ == "gradmgr.compat.autograd", autograd
gradmgr.compat.autograd.uninstall()
assert not any(name.split(".")[0] == "autograd" for name in __import__("sys").modules)
print(grad(anp.tanh)(0.0))
"""
    assert run(program).strip() == "1.0"


def test_install_is_refused_where_autograd_is_imported():
    program = """
import sys, types
sys.modules["autograd"] = types.ModuleType("autograd")
from gradmgr.compat import autograd
try:
    autograd.install()
except RuntimeError as error:
    print(error)
print("autograd.numpy" in sys.modules)
"""
    message = run(program)
    assert "autograd is imported already" in message
    assert message.strip().endswith("False")


def public_modules():
    """Every public module of the layer, by its name behind the layer's own."""
    found = [module.name.removeprefix(ag.__name__) for module in pkgutil.walk_packages(ag.__path__, f"{ag.__name__}.")]
    return ["", *[name for name in found if "._" not in name]]


def test_every_module_is_importable_and_says_what_it_exports():
    names = public_modules()
    assert {".numpy.linalg", ".scipy.stats.norm", ".misc.optimizers", ".util"} <= set(names)
    for name in names:
        module = importlib.import_module(f"gradmgr.compat.autograd{name}")
        assert all(hasattr(module, each) for each in module.__all__)
        assert inspect.getdoc(module)


def test_install_names_every_module_that_is_importable_and_no_other():
    before = dict(sys.modules)
    try:
        for name in [each for each in sys.modules if each.split(".")[0] == "autograd"]:
            del sys.modules[name]  # autograd's own, where something has imported it
        ag.install()
        installed = {name for name in sys.modules if name.split(".")[0] == "autograd"}
        assert installed == {f"autograd{name}" for name in public_modules()}
        for name in public_modules():
            ours = importlib.import_module(f"gradmgr.compat.autograd{name}")
            assert importlib.import_module(f"autograd{name}") is ours
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("autograd.numpy.numpy_boxen")
        ag.uninstall()
        assert not any(name.split(".")[0] == "autograd" for name in sys.modules)
    finally:
        sys.modules.update(before)


# ---------------------------------------------------------------- scipy


def quotient(f, args, k, step=1e-6):
    """The central difference quotients of the sum of f by each number of argument k."""
    at = np.array(args[k], dtype=float)
    found = np.zeros(at.shape)
    for index in np.ndindex(*at.shape):
        sums = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] += sign * step
            sums.append(np.sum(f(*args[:k], moved, *args[k + 1 :])))
        found[index] = (sums[0] - sums[1]) / (2 * step)
    return found


def check_scipy(ours, theirs, args, argnums):
    """Compare values with SciPy's, plain and traced, and gradients with its difference quotients."""
    np.testing.assert_array_equal(ours(*args), theirs(*args))
    for k in argnums:
        value, slope = ag.value_and_grad(lambda *a: anp.sum(ours(*a)), k)(*args)
        close(value, np.sum(theirs(*args)), rtol=1e-10)
        close(slope, quotient(theirs, args, k), rtol=2e-6, atol=1e-7)


Y = np.array([0.2, 0.5, 0.7])

DISTRIBUTIONS = [
    ("norm", "pdf logpdf cdf sf logcdf logsf", (X, Y, Y + 1), (0, 1, 2)),
    ("t", "pdf logpdf", (X, Y + 2, Y, Y + 1), (0, 1, 2, 3)),
    ("t", "cdf logcdf", (X, Y + 2, Y, Y + 1), (0, 2, 3)),
    ("beta", "pdf logpdf", (Y, Y + 2, X), (0, 1, 2)),
    ("beta", "cdf", (Y, Y + 2, X), (0,)),
    ("gamma", "pdf logpdf cdf", (X, Y + 2), (0,)),
    ("gamma", "pdf logpdf", (X, Y + 2), (1,)),
    ("chi2", "pdf logpdf cdf", (X, Y + 3), (0,)),
    ("chi2", "pdf logpdf", (X, Y + 3), (1,)),
    ("poisson", "pmf logpmf cdf", (np.array([0.0, 2.0, 5.0]), X), (1,)),
    ("multivariate_normal", "pdf logpdf", (X, Y), (0, 1)),
    ("multivariate_normal", "pdf logpdf", (M, Y, 2.0 * np.eye(3)), (0, 1)),
    ("multivariate_normal", "pdf logpdf", (X, 0.5, 2.0), (0, 1, 2)),
]


@pytest.mark.parametrize(
    ("distribution", "name", "args", "argnums"),
    [(one, name, args, argnums) for one, names, args, argnums in DISTRIBUTIONS for name in names.split()],
)
def test_distributions_are_scipys_and_differentiable(distribution, name, args, argnums):
    stats = pytest.importorskip("scipy.stats")
    ours = getattr(getattr(ag.scipy.stats, distribution), name)
    check_scipy(ours, getattr(getattr(stats, distribution), name), args, argnums)


def test_the_normal_distribution_is_differentiable_in_its_covariance():
    pytest.importorskip("scipy")
    inverse, d = np.linalg.inv(POSITIVE), X - Y
    expected = (np.outer(inverse @ d, inverse @ d) - inverse) / 2
    read = np.tril(np.full((3, 3), 2.0), -1) + np.eye(3)  # SciPy reads one triangle; autograd shares with the other
    normal = ag.scipy.stats.multivariate_normal
    close(ag.grad(normal.logpdf, 2)(X, Y, POSITIVE), expected * read, rtol=1e-7)
    close(ag.grad(normal.entropy, 1)(Y, POSITIVE), inverse / 2 * read, rtol=1e-7)
    one_triangle = np.tril(POSITIVE)
    close(ag.value_and_grad(lambda c: normal.logpdf(X, Y, c))(one_triangle)[0], normal.logpdf(X, Y, POSITIVE))
    direction = np.array([1.0, 2.0, 2.0])
    singular = np.outer(direction, direction)
    slope = ag.grad(lambda x: normal.logpdf(x, Y, singular, allow_singular=True))(Y + direction)
    close(slope, -direction / 9)  # the pseudoinverse of d d^T is d d^T / |d|^4
    with pytest.raises(NotImplementedError, match="allow_singular"):
        ag.grad(lambda cov: normal.logpdf(X, Y, cov, allow_singular=True))(POSITIVE)


def test_the_dirichlet_distribution():
    special = pytest.importorskip("scipy.special")
    dirichlet, x, alpha = ag.scipy.stats.dirichlet, X / X.sum(), Y + 1
    close(ag.grad(dirichlet.logpdf)(x, alpha), (alpha - 1) / x)
    close(ag.grad(dirichlet.logpdf, 1)(x, alpha), special.digamma(alpha.sum()) - special.digamma(alpha) + np.log(x))
    close(ag.grad(dirichlet.pdf)(x, alpha), dirichlet.pdf(x, alpha) * (alpha - 1) / x)
    assert dirichlet.rvs(alpha, random_state=0).shape == (1, 3)


@pytest.mark.parametrize("name", ["gammaln", "psi", "erf", "expit", "j0", "y0", "y1", "rgamma", "logit", "i0"])
def test_special_functions(name):
    special = pytest.importorskip("scipy.special")
    check_scipy(getattr(ag.scipy.special, name), getattr(special, name), (Y,), (0,))


def test_special_functions_of_several_arguments():
    special = pytest.importorskip("scipy.special")
    for name, first in (
        ("betainc", (2.0, 3.0)),
        ("yn", (2,)),
        ("jn", (2,)),
        ("ive", (2,)),
        ("polygamma", (1,)),
        ("gammainc", (2.0,)),
    ):
        theirs = getattr(special, name)
        check_scipy(getattr(ag.scipy.special, name), theirs, (*first, Y), (len(first),))
    close(ag.grad(ag.scipy.misc.logsumexp)(X), np.exp(X) / np.exp(X).sum())
    assert ag.scipy.special.gammasgn(-0.5) == -1.0
    close(ag.scipy.special.zetac(2.0), special.zetac(2.0))  # no derivative, but a value
    with pytest.raises(NotImplementedError, match="no vjp"):
        ag.grad(ag.scipy.special.zetac)(2.0)


def test_linear_algebra_of_scipy():
    linalg, ours = pytest.importorskip("scipy.linalg"), ag.scipy.linalg
    check_scipy(ours.sqrtm, linalg.sqrtm, (POSITIVE + 0.1 * M,), (0,))
    check_scipy(ours.expm, linalg.expm, (M,), (0,))
    test_util.check_grads(ours.solve_sylvester, (0, 1, 2))(M, POSITIVE, M.T)
    check_scipy(ours.solve_sylvester, linalg.solve_sylvester, (M, POSITIVE, M.T), (0, 1, 2))
    for lower in (False, True):
        check_scipy(
            lambda a, b, lower=lower: ours.solve_triangular(a, b, lower=lower),
            lambda a, b, lower=lower: linalg.solve_triangular(a, b, lower=lower),
            (M, X),
            (0, 1),
        )
    bands = np.arange(20.0).reshape(4, 5) / 20 + np.array([0, 4.0, 0, 0])[:, None]
    for b in (bands[0], bands.T[:, :2]):
        check_scipy(
            lambda a, b: ours.solve_banded((2, 1), a, b),
            lambda a, b: linalg.solve_banded((2, 1), a, b),
            (bands, b),
            (0, 1),
        )
    close(ours.inv(M), np.linalg.inv(M))


def test_convolve_along_chosen_axes():
    a, b = np.arange(24.0).reshape(2, 3, 4) / 10, np.array([[1.0, -2.0], [0.5, 3.0]])
    convolve = ag.scipy.signal.convolve
    for mode in ("full", "same", "valid"):
        found = convolve(a, b, axes=([2], [1]), dot_axes=([0], [0]), mode=mode)
        expected = [sum(np.convolve(a[k, i], b[k], mode) for k in range(2)) for i in range(3)]
        close(found, expected)
        test_util.check_grads(lambda a, b, m=mode: convolve(a, b, axes=([2], [1]), mode=m), (0, 1), order=1)(a, b)
    swapped = convolve(b, a, axes=([1], [2]), mode="valid")
    close(swapped, convolve(a, b, axes=([2], [1]), mode="valid").transpose(2, 0, 1, 3))
    with pytest.raises(ValueError, match="lie within"):
        convolve(a[0], np.ones((5, 1)), mode="valid")
    with pytest.raises(ValueError, match="'full', 'same' or 'valid'"):
        convolve(a, b, mode="circular")


def test_odeint_is_differentiable_in_start_times_and_arguments():
    pytest.importorskip("scipy")
    times, y0, rate = np.array([0.1, 0.4, 1.0]), np.array([1.0, 2.0]), 0.7

    def end(y0, times, rate):
        def decay(y, t, rate):
            return -rate * y

        return anp.sum(ag.scipy.integrate.odeint(decay, y0, times, (rate,), rtol=1e-10, atol=1e-10)[-1])

    decayed = np.exp(-rate * (times[-1] - times[0]))
    of_y0, of_times, of_rate = ag.grad(end, (0, 1, 2))(y0, times, rate)
    close(of_y0, [decayed, decayed], rtol=1e-7)
    close(of_times, y0.sum() * decayed * rate * np.array([1.0, 0.0, -1.0]), rtol=1e-7, atol=1e-8)
    close(of_rate, -y0.sum() * decayed * (times[-1] - times[0]), rtol=1e-7)
    second = ag.grad(ag.grad(end, 2), 2)(y0, times, rate)
    close(second, y0.sum() * decayed * (times[-1] - times[0]) ** 2, rtol=1e-6)


# ---------------------------------------------------------------- whole programs


def test_a_series_summed_until_its_terms_are_small_is_differentiated():
    """autograd's tutorial: a loop that is left by a traced value; the terms of the derivative are those of cosine."""

    def sine(x):
        total = term = x
        n = 1
        while anp.abs(term) > 1e-12:
            term = -term * x**2 / ((n + 1) * (n + 2))
            total = total + term
            n += 2
        return total

    close(ag.grad(sine)(np.pi), -1.0, rtol=1e-10)
    close(ag.grad(ag.grad(sine))(np.pi / 2), -1.0, rtol=1e-8)


def test_tanh_of_exponentials_has_its_derivatives_with_branches_and_containers():
    """autograd's first example, and the tutorial's control flow on arguments of nested containers."""

    def tanh(x):
        if x < 0:
            return -tanh(-x)
        shrunk = anp.exp(-2 * x)
        return (1.0 - shrunk) / (1.0 + shrunk)

    for x in (-1.5, 1.5):
        close(ag.grad(tanh)(x), 1 - np.tanh(x) ** 2)
        close(ag.grad(ag.grad(tanh))(x), -2 * np.tanh(x) * (1 - np.tanh(x) ** 2))
    of_pairs = ag.grad(lambda p: tanh(p[0]["x"]) * p[1])(({"x": 1.5}, 2.0))
    close(of_pairs[0]["x"], 2 * (1 - np.tanh(1.5) ** 2))
    close(of_pairs[1], np.tanh(1.5))


def test_logistic_regression_learns_to_separate():
    rng = np.random.RandomState(0)
    inputs = rng.randn(20, 3)
    targets = (inputs @ [1.0, -2.0, 0.5] > 0).astype(float)

    def loss(weights):
        p = 0.5 * (anp.tanh(anp.dot(inputs, weights) / 2) + 1)
        return -anp.sum(anp.log(p * targets + (1 - p) * (1 - targets)))

    weights = np.zeros(3)
    close(ag.grad(loss)(weights), inputs.T @ (0.5 - targets))
    test_util.check_grads(loss, modes=["rev"])(weights)
    for _ in range(60):
        weights = weights - ag.grad(loss)(weights) * 0.2
    assert loss(weights) < 0.3 * loss(np.zeros(3))


def test_a_neural_network_fits_by_adam_on_a_list_of_layers():
    rng = np.random.RandomState(0)
    params = [(rng.randn(m, n) * 0.5, rng.randn(n) * 0.1) for m, n in ((1, 8), (8, 8), (8, 1))]
    inputs = np.linspace(-2, 2, 20)[:, None]
    targets = np.sin(2 * inputs)

    def predict(params, x):
        for w, b in params[:-1]:
            x = anp.tanh(anp.dot(x, w) + b)
        w, b = params[-1]
        return anp.dot(x, w) + b

    def loss(params, i=0):
        return anp.mean((predict(params, inputs) - targets) ** 2)

    assert loss(optimizers.adam(ag.grad(loss), params, num_iters=250, step_size=0.03)) < 0.02 * loss(params)


def test_a_bayesian_network_raises_the_bound_on_its_evidence():
    """Variational inference by samples of the weights, all networks in one call, as autograd's example has it."""
    npr = anp.random.RandomState(0)
    shapes = ((1, 5), (5, 1))
    size = sum((m + 1) * n for m, n in shapes)
    inputs = np.linspace(-1, 1, 12)[:, None]
    targets = np.cos(3 * inputs) + 0.05 * npr.randn(12, 1)

    def predict(weights):
        x, start = anp.expand_dims(inputs, 0), 0
        for m, n in shapes:
            w = anp.reshape(weights[:, start : start + m * n], (-1, m, n))
            b = anp.reshape(weights[:, start + m * n : start + (m + 1) * n], (-1, 1, n))
            pre, start = anp.einsum("kbm,kmn->kbn", x, w) + b, start + (m + 1) * n
            x = anp.exp(-(pre**2))
        return pre

    def log_density(weights):
        misfit = anp.sum((predict(weights) - targets) ** 2, axis=(1, 2)) / 0.02
        return -anp.sum(weights**2, axis=1) / 2 - misfit

    def bound(q, noise):
        mean, log_std = q
        return anp.sum(log_std) + anp.mean(log_density(mean + noise * anp.exp(log_std)))

    q, noise = [0.3 * npr.randn(size), np.full(size, -3.0)], npr.randn(6, size)
    of_mean, of_log_std = ag.grad(bound)(q, noise)
    close(of_mean, quotient(lambda m: bound([m, q[1]], noise), (q[0],), 0), rtol=1e-5, atol=1e-6)
    close(of_log_std, quotient(lambda s: bound([q[0], s], noise), (q[1],), 0), rtol=1e-5, atol=1e-6)
    fitted = optimizers.adam(lambda q, i: ag.grad(lambda q: -bound(q, npr.randn(6, size)))(q), q, None, 120, 0.05)
    assert bound(fitted, noise) > bound(q, noise) / 5  # both are negative
    assert np.std(predict(fitted[0][None])[0] - targets) < 0.3 * np.std(targets)


def test_a_fluid_is_steered_through_its_simulation():
    rng = np.random.RandomState(0)
    smoke, target = rng.rand(6, 6), rng.rand(6, 6)

    def advect(f, vx, vy):
        return f - vx * (anp.roll(f, -1, 0) - anp.roll(f, 1, 0)) / 2 - vy * (anp.roll(f, -1, 1) - anp.roll(f, 1, 1)) / 2

    def project(vx, vy):
        h, p = 1.0 / 6, anp.zeros((6, 6))
        div = -0.5 * h * (anp.roll(vx, -1, 0) - anp.roll(vx, 1, 0) + anp.roll(vy, -1, 1) - anp.roll(vy, 1, 1))
        for _ in range(3):
            p = (div + sum(anp.roll(p, shift, axis) for shift in (1, -1) for axis in (0, 1))) / 4
        return vx - 0.5 * (anp.roll(p, -1, 0) - anp.roll(p, 1, 0)) / h, vy - 0.5 * (
            anp.roll(p, -1, 1) - anp.roll(p, 1, 1)
        ) / h

    def distance(v):
        vx, vy, f = anp.reshape(v[:36], (6, 6)), anp.reshape(v[36:], (6, 6)), smoke
        for _ in range(3):
            vx, vy = project(advect(vx, vx, vy), advect(vy, vx, vy))
            f = advect(f, vx, vy)
        return anp.mean((f - target) ** 2)

    v = rng.randn(72) * 0.1
    value, slope = ag.value_and_grad(distance)(v)
    close(slope, quotient(distance, (v,), 0), rtol=1e-5, atol=1e-9)
    assert distance(v - 0.5 * slope) < value


def test_a_recurrent_network_has_the_gradients_of_its_unrolled_steps():
    rng = np.random.RandomState(0)
    params = {"start": rng.randn(4), "change": rng.randn(6, 4) * 0.5}
    inputs = rng.randn(5, 2)

    def run(params):
        h = params["start"]
        for x in inputs:
            h = anp.tanh(anp.dot(anp.concatenate((x, h)), params["change"]))
        return anp.sum(h**2)

    found = ag.grad(run)(params)
    close(found["start"], quotient(lambda s: run({**params, "start": s}), (params["start"],), 0), rtol=1e-5, atol=1e-9)
    weights = quotient(lambda w: run({**params, "change": w}), (params["change"],), 0)
    close(found["change"], weights, rtol=1e-5, atol=1e-9)


def test_a_network_inside_a_differential_equation_is_trained_through_the_solver():
    pytest.importorskip("scipy")
    rng = np.random.RandomState(0)
    params = [(rng.randn(2, 4) * 0.1, np.zeros(4)), (rng.randn(4, 2) * 0.1, np.zeros(2))]
    times, spiral = np.linspace(0, 1, 4), np.array([[-0.1, 2.0], [-2.0, -0.1]])

    def slope(y, t, params):
        (w, b), (v, c) = params
        return anp.dot(anp.tanh(anp.dot(y, w) + b), v) + c

    y0 = np.array([2.0, 0.0])
    true = ag.scipy.integrate.odeint(lambda y, t: spiral.T @ y, y0, times)

    def loss(params, i=0):
        return anp.mean((ag.scipy.integrate.odeint(slope, y0, times, (params,)) - true) ** 2)

    assert loss(optimizers.adam(ag.grad(loss), params, num_iters=15, step_size=0.1)) < 0.5 * loss(params)
