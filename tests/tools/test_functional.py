"""gradmgr.functional: torch's six, grad and value_and_grad over containers, and `Flattened` for SciPy."""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from typing import Any, NamedTuple

import guard
import numpy as np
import pytest
import scipy.optimize
from samples import SAMPLES, flat
from scipy.optimize import minimize

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, functional, no_grad, tensor
from gradmgr._engine.tensor import raw
from gradmgr._transforms import grad as one_tape
from gradmgr.functional import Flattened, grad, hessian, hvp, jacobian, jvp, value_and_grad, vhp, vjp

Array = Any

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)), RNG.normal(size=(4,))
X, V = tensor([0.3, -1.2, 0.7]), np.array([1.0, -2.0, 0.5])
WAYS = [(vectorize, strategy) for vectorize in (False, True) for strategy in ("reverse-mode", "forward-mode")]
each_way = pytest.mark.parametrize(("vectorize", "strategy"), WAYS)


def layer(x: Any) -> Any:
    return gnp.tanh(x @ A + B)


def layer_jacobian(x: Tensor) -> Array:
    t = np.tanh(x.numpy() @ A + B)
    return ((1 - t * t) * A).T


def energy(x: Any) -> Any:
    return (gnp.tanh(x @ A + B) ** 2).sum() + x[0] * x[1] ** 2


def energy_gradient(x: Array) -> Array:
    t = np.tanh(x @ A + B)
    return A @ (2 * t * (1 - t * t)) + np.array([x[1] ** 2, 2 * x[0] * x[1], 0])


def energy_hessian(x: Array) -> Array:
    t = np.tanh(x @ A + B)
    s = 1 - t * t
    made = (A * (2 * s * s - 4 * t * t * s)) @ A.T
    made[0, 1] += 2 * x[1]
    made[1, 0] += 2 * x[1]
    made[1, 1] += 2 * x[0]
    return made


def close(found: Any, expected: Any) -> None:
    found, expected = raw(found), raw(expected)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- products


def test_products_with_a_jacobian() -> None:
    u = np.array([1.0, 2.0, -1.0, 0.5])
    y, g = vjp(layer, X, u)
    close(y, np.tanh(X.numpy() @ A + B))
    close(g, u @ layer_jacobian(X))
    y, t = jvp(layer, X, V)
    close(y, np.tanh(X.numpy() @ A + B))
    close(t, layer_jacobian(X) @ V)


def test_products_with_a_hessian() -> None:
    for product in (hvp, vhp):
        y, g = product(energy, X, V)
        close(y, raw(energy(X)))
        close(g, energy_hessian(X.numpy()) @ V)


def test_the_forms_of_results() -> None:
    x, y = tensor([1.0, 2.0]), tensor(3.0)

    def func(x: Any, y: Any) -> Any:
        return x * y, (x * x).sum()

    outs, gs = vjp(func, (x, y), (np.ones(2), 1.0 * np.ones(())))
    assert isinstance(outs, tuple)
    assert [t.tolist() for t in outs] == [[3.0, 6.0], 5.0]
    assert [t.tolist() for t in gs] == [[5.0, 7.0], 3.0]
    outs, ts = jvp(func, (x, y), (np.array([1.0, 0.0]), np.array(1.0)))
    assert [t.tolist() for t in ts] == [[4.0, 2.0], 2.0]
    out, ts = vjp(lambda x: (x,), (x,), (np.ones(2),))
    assert isinstance(out, tuple)
    assert isinstance(ts, tuple)
    out, t = vjp(lambda x: x, x, np.ones(2))
    assert isinstance(out, Tensor)
    assert isinstance(t, Tensor)
    _, (g, h) = hvp(lambda x, y: (x * x).sum() * y, (x, y), (np.array([1.0, 0.0]), np.array(0.0)))
    assert (g.tolist(), h.tolist()) == ([6.0, 0.0], 2.0)
    assert [
        t.tolist() for t in vhp(lambda x, y: (x * x).sum() * y, (x, y), (np.array([1.0, 0.0]), np.array(0.0)))[1]
    ] == [
        [6.0, 0.0],
        2.0,
    ]


def test_v_may_be_left_out_of_one_number() -> None:
    x = tensor([3.0])
    assert vjp(lambda x: x**2, x)[1].tolist() == [6.0]
    assert jvp(lambda x: gnp.stack([x, x**2]), x)[1].tolist() == [[1.0], [6.0]]
    assert hvp(lambda x: x**3, x)[1].tolist() == [18.0]
    assert vhp(lambda x: x**3, tensor(3.0))[1].tolist() == 18.0


def test_what_does_not_depend_gives_zeros() -> None:
    x, y = tensor([1.0, 2.0]), tensor([3.0])
    _, (g, h) = vjp(lambda x, y: x * 2, (x, y), np.ones(2))
    assert (g.tolist(), h.tolist()) == ([2.0, 2.0], [0.0])
    constant = tensor([5.0, 6.0, 7.0])
    assert vjp(lambda x: constant, x, np.ones(3))[1].tolist() == [0.0, 0.0]
    assert jvp(lambda x: constant, x, np.ones(2))[1].tolist() == [0.0, 0.0, 0.0]
    for product in (hvp, vhp):
        assert product(lambda x: x.sum(), x, np.ones(2))[1].tolist() == [0.0, 0.0]
        assert product(lambda x: constant[0], x, np.ones(2))[1].tolist() == [0.0, 0.0]


def test_integer_outputs_are_constants() -> None:
    x = tensor([1.0, 3.0, 2.0])
    outs, g = vjp(lambda x: (x * 2, gnp.argmax(x)), x, (np.ones(3), np.array(1)))
    assert (outs[1].tolist(), g.tolist()) == (1, [2.0, 2.0, 2.0])
    outs, ts = jvp(lambda x: (x * 2, gnp.argmax(x)), x, np.ones(3))
    assert ts[1].tolist() == 0
    for vectorize, strategy in WAYS:
        made = jacobian(lambda x: (x * 2, gnp.argmax(x)), x, vectorize=vectorize, strategy=strategy)
        assert (made[0].tolist(), made[1].tolist()) == ((2 * np.eye(3)).tolist(), [0.0, 0.0, 0.0])


def test_complex_products() -> None:
    z, v = np.array([1 + 2j, -0.5 + 1j]), np.array([0.3 - 1j, 2 + 0.5j])
    _, t = jvp(lambda z: z**2, tensor(z), v)
    close(t, 2 * z * v)
    _, g = vjp(lambda z: z**2, tensor(z), v)
    close(g, np.conj(2 * z) * v)
    for product in (hvp, vhp):  # |z|^4 has the gradient 4 |z|^2 z
        _, h = product(lambda z: (gnp.abs(z) ** 4).sum(), tensor(z), v)
        step = 1e-6

        def slope(z: Array) -> Array:
            return 4 * np.abs(z) ** 2 * z

        np.testing.assert_allclose(raw(h), (slope(z + step * v) - slope(z - step * v)) / (2 * step), rtol=1e-8)


def test_a_vector_is_cast_and_never_aliased() -> None:
    x = tensor([1.0, 2.0], dtype="float32")
    v = np.array([3, 4])
    _, g = vjp(lambda x: x, x, v)
    assert (g.dtype, g.tolist()) == (np.float32, [3.0, 4.0])
    v = np.array([3.0, 4.0])
    for made in (vjp(lambda x: x, tensor([1.0, 2.0]), v)[1], jvp(lambda x: x, tensor([1.0, 2.0]), v)[1]):
        v[:] = 9.0
        assert made.tolist() == [3.0, 4.0]
        v[:] = [3.0, 4.0]


# ---------------------------------------------------------------- jacobian and hessian


@each_way
def test_jacobian(vectorize: bool, strategy: str) -> None:
    close(jacobian(layer, X, vectorize=vectorize, strategy=strategy), layer_jacobian(X))


@each_way
def test_hessian(vectorize: bool, strategy: str) -> None:
    found = hessian(energy, X, vectorize=vectorize, outer_jacobian_strategy=strategy)
    close(found, energy_hessian(X.numpy()))


@each_way
def test_nested_results_and_shapes(vectorize: bool, strategy: str) -> None:
    x, y = tensor(RNG.normal(size=(2, 3))), tensor(RNG.normal(size=()))
    how = {"vectorize": vectorize, "strategy": strategy}

    def func(x: Any, y: Any) -> Any:
        return x.T * y, y**2, x[0]

    made = jacobian(func, (x, y), **how)
    assert [[t.shape for t in row] for row in made] == [[(3, 2, 2, 3), (3, 2)], [(2, 3), ()], [(3, 2, 3), (3,)]]
    close(made[0][0], np.einsum("jk,il->ijkl", np.eye(2), np.eye(3)) * y.item())
    close(made[0][1], x.numpy().T)
    close(made[1][0], np.zeros((2, 3)))
    close(made[1][1], np.array(2 * y.item()))
    close(made[2][0], np.einsum("k,il->ikl", [1.0, 0.0], np.eye(3)))
    assert isinstance(jacobian(lambda x: x, x, **how), Tensor)
    assert [t.shape for t in jacobian(lambda x, y: x * y, (x, y), **how)] == [(2, 3, 2, 3), (2, 3)]
    assert [t.shape for t in jacobian(lambda x: (x, x.sum()), x, **how)] == [(2, 3, 2, 3), (2, 3)]
    assert [[t.shape for t in row] for row in jacobian(lambda x: (x,), (x,), **how)] == [[(2, 3, 2, 3)]]
    rows = hessian(lambda x, y: (x**2).sum() * y, (x, y), vectorize=vectorize, outer_jacobian_strategy=strategy)
    assert [[t.shape for t in row] for row in rows] == [[(2, 3, 2, 3), (2, 3)], [(2, 3), ()]]
    close(rows[0][0], 2 * y.item() * np.eye(6).reshape(2, 3, 2, 3))
    close(rows[1][0], 2 * x.numpy())


@each_way
def test_zero_size(vectorize: bool, strategy: str) -> None:
    how = {"vectorize": vectorize, "strategy": strategy}
    empty, x = tensor(np.zeros((0, 2))), tensor([1.0, 2.0, 3.0])
    assert jacobian(lambda e: e * 2, empty, **how).shape == (0, 2, 0, 2)
    assert jacobian(lambda x: x[:0], x, **how).shape == (0, 3)
    assert jacobian(lambda e: gnp.zeros(3) + e.sum(), empty, **how).shape == (3, 0, 2)
    assert hessian(lambda e: e.sum(), empty, vectorize=vectorize, outer_jacobian_strategy=strategy).shape == (
        0,
        2,
        0,
        2,
    )


@each_way
def test_complex_jacobians(vectorize: bool, strategy: str) -> None:
    how = {"vectorize": vectorize, "strategy": strategy}
    z, x = tensor([1 + 2j, 0.5 - 1j]), tensor([0.3, -0.8])
    close(jacobian(lambda z: z**2, z, **how), np.diag(2 * z.numpy()))  # f'
    close(jacobian(lambda x: gnp.exp(x * 1j), x, **how), np.diag(1j * np.exp(1j * x.numpy())))
    close(jacobian(lambda z: gnp.abs(z) ** 2, z, **how), np.diag(2 * z.numpy()))  # the gradient
    close(jacobian(gnp.conj, z, **how), np.eye(2, dtype=complex))  # along the real axis
    mixed = jacobian(lambda z: (z * 1j, z.imag), z, **how)
    close(mixed[0], 1j * np.eye(2))
    close(mixed[1], 1j * np.eye(2))


@each_way
def test_dtypes(vectorize: bool, strategy: str) -> None:
    x = tensor([1.0, 2.0], dtype="float32")
    made = jacobian(lambda x: (x.astype("float64") * 2, x), x, vectorize=vectorize, strategy=strategy)
    wide = np.float32 if strategy == "reverse-mode" else np.float64
    assert [t.dtype for t in made] == [wide, np.float32]
    assert jacobian(lambda x: x * 1j, x, vectorize=vectorize, strategy=strategy).dtype == np.complex64


@each_way
def test_a_network_by_loops_over_rows(vectorize: bool, strategy: str) -> None:
    """The function of the figures: 128 to 128, through tanh; a row at a time is what the others are held to."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(128, 128)) / 11, rng.normal(size=(128, 128)) / 11
    x = tensor(rng.normal(size=128))
    t = np.tanh(x.numpy() @ first)
    close(
        jacobian(lambda x: gnp.tanh(x @ first) @ second, x, vectorize=vectorize, strategy=strategy),
        (first * (1 - t * t) @ second).T,
    )


@each_way
def test_products_with_unit_vectors_give_memory_of_their_own(vectorize: bool, strategy: str) -> None:
    """Where they stand for what they would give: of any dtype and layout, once, twice, and written to."""
    x, w = tensor([1.0, -2.0, 0.5]), np.asfortranarray(A)
    for f, expected in (
        (lambda x: x @ A, A.T),
        (lambda x: A.T @ x, A.T),
        (lambda x: x @ w[:, ::-1], A.T[::-1]),
        (lambda x: x @ A.astype(np.float32), A.astype(np.float32).T),
        (lambda x: x @ A.astype(complex), A.T.astype(complex)),
        (lambda x: x @ np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4).T),
        (lambda x: x @ A + 2 * (x @ A) * 3, 7 * A.T),
        (lambda x: x @ tensor(A), A.T),
        (lambda x: x * 1.0 @ A, A.T),
        (lambda x: x, np.eye(3)),
    ):
        made = jacobian(f, x, vectorize=vectorize, strategy=strategy)
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-14)
        before = A.copy()
        made += 1
        made[0] = 5
        np.testing.assert_array_equal(A, before)
        np.testing.assert_array_equal(w, before)


@each_way
def test_functions_that_write_in_place(vectorize: bool, strategy: str) -> None:
    def func(x: Any) -> Any:
        y = gnp.zeros(3)
        y[:] = x
        y[1] *= x[0]
        x += 1.0  # of the function's own
        y[2] = x[2] * x[2]
        return y

    a = X.numpy().copy()
    expected = np.array([[1, 0, 0], [a[1], a[0], 0], [0, 0, 2 * (a[2] + 1)]])
    close(jacobian(func, X, vectorize=vectorize, strategy=strategy), expected)
    assert X.numpy().tolist() == a.tolist()


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("part", range(4))
def test_all_strategies_agree_on_the_table_of_samples(part: int) -> None:
    """Every twentieth sample; that each op may be mapped, and its rules are right, is tested elsewhere."""
    compared = 0
    for sample in SAMPLES[part::20]:
        arrays = sample.make(np.complex128 if sample.is_complex else np.float64)
        xs = tuple(asarray(arrays[k]) for k in sample.where)

        def func(*xs: Any, sample: Any = sample, arrays: Any = arrays) -> Any:
            args = [xs[sample.where.index(k)] if k in sample.where else a for k, a in enumerate(arrays)]
            return tuple(y if isinstance(y, Tensor) else asarray(y) for y in flat(sample.call(gnp, *args)))

        if sum(x.size for x in xs) > 60:
            continue
        expected = jacobian(func, xs)
        for vectorize, strategy in WAYS[1:]:
            found = jacobian(func, xs, vectorize=vectorize, strategy=strategy)
            for row, expected_row in zip(found, expected, strict=True):
                for block, expected_block in zip(row, expected_row, strict=True):
                    np.testing.assert_allclose(
                        raw(block), raw(expected_block), rtol=1e-7, atol=1e-9, err_msg=str(sample)
                    )
                    compared += 1
    assert compared > 200


def test_func_is_called_as_often_as_is_said() -> None:
    calls = []

    def func(x: Any, y: Any) -> Any:
        calls.append(1)
        return x * y

    x, y = tensor([1.0, 2.0, 3.0]), tensor(2.0)
    for (vectorize, strategy), count in zip(WAYS, [1, 4, 1, 2], strict=True):
        calls.clear()
        jacobian(func, (x, y), vectorize=vectorize, strategy=strategy)
        assert len(calls) == count


# ---------------------------------------------------------------- create_graph


def test_with_create_graph_false_results_are_constants() -> None:
    x = tensor([1.0, 2.0])
    cut: Any = {"create_graph": False}
    with GradManager().attach(x) as gm:
        results = [
            *vjp(lambda x: x**2, x, np.ones(2), **cut),
            *jvp(lambda x: x**2, x, np.ones(2), **cut),
            *hvp(lambda x: (x**3).sum(), x, np.ones(2), **cut),
            *vhp(lambda x: (x**3).sum(), x, np.ones(2), **cut),
            jacobian(lambda x: x**2, x, **cut),
            jacobian(lambda x: x**2, x, vectorize=True, strategy="forward-mode", **cut),
            hessian(lambda x: (x**3).sum(), x, **cut),
            vjp(lambda y: x, tensor(1.0), np.ones(2), **cut)[0],
        ]
        assert gm._tape.entries == []
        assert all(gm._tape.node_id_of(t) is None for t in results)


@each_way
def test_create_graph_of_matrices(vectorize: bool, strategy: str) -> None:
    x = tensor([0.5, 1.5, -0.3])
    weights = RNG.normal(size=(4, 3))

    def weighed(x: Any) -> Any:
        return (jacobian(layer, x, create_graph=True, vectorize=vectorize, strategy=strategy) * weights).sum()

    with GradManager().attach(x) as gm:
        gm.backward(weighed(x))
    # d/dx_k sum_ij w_ij (1 - t_i^2) A_ji = sum_ij w_ij A_ji (-2 t_i s_i) A_ki
    t = np.tanh(x.numpy() @ A + B)
    close(x.grad, A @ (-2 * t * (1 - t * t) * np.einsum("ij,ji->i", weights, A)))


@each_way
def test_create_graph_of_hessians(vectorize: bool, strategy: str) -> None:
    x = tensor([0.5, 1.5, -0.3])
    weights = RNG.normal(size=(3, 3))
    with GradManager().attach(x) as gm:
        h = hessian(energy, x, create_graph=True, vectorize=vectorize, outer_jacobian_strategy=strategy)
        gm.backward((h * weights).sum())
    step = 1e-5
    moved = [
        (energy_hessian(x.numpy() + step * e) - energy_hessian(x.numpy() - step * e)) / (2 * step) for e in np.eye(3)
    ]
    np.testing.assert_allclose(x.grad.numpy(), [(m * weights).sum() for m in moved], rtol=1e-7)


@pytest.mark.parametrize("outer", ["reverse", "forward", "jacobian", "grad"])
@pytest.mark.parametrize("product", [vjp, jvp, hvp, vhp])
def test_create_graph_of_products(product: Any, outer: str) -> None:
    """The derivative of each by x and by v, computed in all ways."""
    func: Any = (lambda x: gnp.sin(x) * x[0]) if product in (vjp, jvp) else energy
    x, v = tensor([0.5, 1.5, -0.3]), tensor([1.0, -1.0, 2.0])

    def of(x: Any, v: Any) -> Any:
        y, g = product(func, x, v, create_graph=True)
        return (g * g).sum() + y.sum()

    def plain(x: Array, v: Array) -> float:
        return float(raw(of(tensor(x), tensor(v))))

    step, unit = 1e-5, np.eye(3)
    a, b = x.numpy(), v.numpy()
    expected = (
        [(plain(a + step * e, b) - plain(a - step * e, b)) / (2 * step) for e in unit],
        [(plain(a, b + step * e) - plain(a, b - step * e)) / (2 * step) for e in unit],
    )
    if outer == "reverse":
        with GradManager().attach([x, v]) as gm:
            gm.backward(of(x, v))
        found = [x.grad, v.grad]
    elif outer == "forward":
        found = [
            np.array([raw(jvp(of, (x, v), (e, 0 * e))[1]) for e in unit]),
            np.array([raw(jvp(of, (x, v), (0 * e, e))[1]) for e in unit]),
        ]
    elif outer == "jacobian":
        found = list(jacobian(of, (x, v), vectorize=True, strategy="forward-mode"))
    else:
        found = list(grad(of, (0, 1))(x, v))
    for one, numeric in zip(found, expected, strict=True):
        np.testing.assert_allclose(raw(one), numeric, rtol=1e-6, atol=1e-8)


def test_captured_tensors_are_followed_with_create_graph() -> None:
    w, x = tensor([2.0]), tensor([3.0])
    with GradManager().attach(w) as gm:
        y, g = vjp(lambda x: x**2 * w, x, create_graph=True)
        gm.backward(g + y)
    assert w.grad.tolist() == [6.0 + 9.0]


def test_vectorized_inside_a_mapped_function() -> None:
    from gradmgr._transforms.vmap import vmap

    x = tensor(RNG.normal(size=(5, 3)))
    found = vmap(lambda row: jacobian(layer, row, vectorize=True))(x)
    close(found, np.stack([layer_jacobian(tensor(row)) for row in x.numpy()]))
    found = vmap(grad(energy))(x)
    close(found, np.stack([energy_gradient(row) for row in x.numpy()]))


# ---------------------------------------------------------------- what is left alone


def test_grads_hooks_callbacks_and_managers_are_left_alone(unchanged: Any) -> None:
    x = tensor([1.0, 2.0])
    x.grad = tensor([5.0, 5.0])
    calls: list[Any] = []

    def callback(t: Tensor, g: Tensor) -> Tensor:
        calls.append(t)
        return g

    gm = GradManager().attach(x, callback)
    with gm:
        x.register_hook(calls.append)
        with unchanged([gm], [x]):
            vjp(lambda x: x**2, x, np.ones(2), create_graph=False)
            hvp(lambda x: (x**3).sum(), x, np.ones(2), create_graph=False)
            jacobian(lambda x: x**2, x, create_graph=False)
            hessian(lambda x: (x**3).sum(), x, create_graph=False, vectorize=True)
        hessian(lambda x: (x**3).sum(), x)
        grad(lambda x: (x**3).sum())(x)
    assert calls == []
    assert x.grad.tolist() == [5.0, 5.0]


def test_a_function_that_computes_derivatives_itself() -> None:
    def force(x: Any) -> Any:
        y = (x**4).sum()
        (g,) = one_tape.grad(y, x, create_graph=True)
        return g * y

    def scaled(x: Any, **how: Any) -> Any:
        (g,) = one_tape.grad((x**2).sum(), x, **how)
        return x * g

    x = tensor([2.0])
    assert jacobian(force, x).tolist() == [[48.0 * 16 + 32.0 * 32]]
    assert jacobian(scaled, x).tolist() == [[8.0]]
    assert jacobian(lambda x: scaled(x, create_graph=False), x).tolist() == [[4.0]]  # and the recording goes on

    def by_manager(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            gm.backward(x**3)
        return x.grad

    assert jacobian(by_manager, x).tolist() == [[12.0]]
    assert grad(lambda x: by_manager(x).sum())(x).tolist() == [12.0]
    assert x.grad is None


def test_under_no_grad() -> None:
    x = tensor([2.0])
    with no_grad():
        assert vjp(lambda x: x**3, x)[1].tolist() == [12.0]
        assert grad(lambda x: (x**3).sum())(x).tolist() == [12.0]


def test_an_error_in_func_leaves_nothing_current_and_frees_everything() -> None:
    kept: list[Any] = []

    def fail(x: Any) -> Any:
        y = gnp.exp(x)
        kept.append(weakref.ref(y))
        raise ZeroDivisionError("in func")

    for function in (vjp, jvp, jacobian, hessian, hvp, vhp):
        v = (np.ones(3),) if function in (jvp, hvp, vhp) else ()
        with pytest.raises(ZeroDivisionError, match="in func"):
            function(fail, X, *v)
    with pytest.raises(ZeroDivisionError, match="in func"):
        grad(fail)(X)
    assert len(kept) == 7
    assert all(ref() is None for ref in kept)


def test_the_saved_values_of_a_derivative_are_freed() -> None:
    kept = []

    def func(x: Any) -> Any:
        y = gnp.exp(x)
        kept.append(weakref.ref(y._array))
        return gnp.sin(y).sum()

    results = [vjp(func, X), jvp(func, X, V), hvp(func, X, V), vhp(func, X, V), jacobian(func, X), grad(func)(X)]
    assert len(results) == 6
    assert all(ref() is None for ref in kept)


def test_memory_falls_as_a_derivative_is_computed() -> None:
    alive: list[bool] = []

    def func(x: Any) -> Any:
        y = gnp.exp(x)
        z = gnp.sin(gnp.exp(y))
        late = weakref.ref(z._array)
        y.register_hook(lambda g: alive.append(late() is not None))
        return gnp.cos(z).sum()

    for derivative in (lambda: vjp(func, X), lambda: grad(func)(X), lambda: grad(func)(X.numpy())):
        derivative()
    assert alive == [False, False, False]


def test_a_function_may_set_hooks_on_what_it_computes() -> None:
    """In forward mode they are not called, as no gradient arrives; in reverse mode they are."""
    seen: list[Any] = []

    def f(x: Tensor) -> Any:
        y = gnp.sin(x)
        y.register_hook(seen.append)
        y.retain_grad()
        return y * y

    def scalar(x: Tensor) -> Any:
        return f(x).sum()

    x = X.numpy()
    np.testing.assert_allclose(jvp(f, X, V)[1].numpy(), np.sin(2 * x) * V)
    assert not seen
    for vectorize, strategy in WAYS:
        found = jacobian(f, X, vectorize=vectorize, strategy=strategy)
        np.testing.assert_allclose(found.numpy(), np.diag(np.sin(2 * x)), atol=1e-15)
        found = hessian(scalar, X, vectorize=vectorize, outer_jacobian_strategy=strategy)
        np.testing.assert_allclose(found.numpy(), np.diag(2 * np.cos(2 * x)), atol=1e-15)
    np.testing.assert_allclose(hvp(scalar, X, V)[1].numpy(), 2 * np.cos(2 * x) * V)
    assert seen


# ---------------------------------------------------------------- strict


def test_strict_outputs_must_depend() -> None:
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])

    def first(x: Any, y: Any) -> Any:
        return x * 2

    text = r"output 0 of func does not depend on input 1, a Tensor of shape \(2,\)"
    with pytest.raises(RuntimeError, match="vjp: " + text):
        vjp(first, (x, y), np.ones(2), strict=True)
    with pytest.raises(RuntimeError, match="jvp: " + text):
        jvp(first, (x, y), (np.ones(2), np.ones(2)), strict=True)
    for vectorize, strategy in WAYS:
        with pytest.raises(RuntimeError, match="jacobian: " + text):
            jacobian(first, (x, y), strict=True, vectorize=vectorize, strategy=strategy)
    with pytest.raises(RuntimeError, match="output 1 of func does not depend on input 0"):
        vjp(lambda x: (x, tensor([1.0])), x, (np.ones(2), np.ones(1)), strict=True)
    for product in (hvp, vhp):
        with pytest.raises(RuntimeError, match="output 0 of func does not depend on input 1"):
            product(lambda x, y: (x**3).sum(), (x, y), (np.ones(2), np.ones(2)), strict=True)
        with pytest.raises(RuntimeError, match="gradient by input 1 does not depend on the inputs"):
            product(lambda x, y: (x**3).sum() + y.sum(), (x, y), (np.ones(2), np.ones(2)), strict=True)
    for vectorize, strategy in WAYS:
        how: Any = {"vectorize": vectorize, "outer_jacobian_strategy": strategy, "strict": True}
        with pytest.raises(RuntimeError, match="output 0 of func does not depend on input 0"):
            hessian(lambda x: tensor(1.0), x, **how)
        with pytest.raises(RuntimeError, match="gradient by input 0 does not depend on the inputs"):
            hessian(lambda x: x.sum(), x, **how)
        with pytest.raises(RuntimeError, match="gradient by input 0 of func does not depend on input 1"):
            hessian(lambda x, y: (x**2).sum() + (y**2).sum(), (x, y), **how)


def test_strict_with_create_graph_derivatives_must_vary() -> None:
    x = tensor([1.0, 2.0])

    def linear(x: Any) -> Any:
        return x * 3

    text = "derivative by input 0 does not depend on the inputs"
    with pytest.raises(RuntimeError, match=text):
        vjp(linear, x, np.ones(2), create_graph=True, strict=True)
    with pytest.raises(RuntimeError, match=text):
        jvp(linear, x, np.ones(2), create_graph=True, strict=True)
    for vectorize, strategy in WAYS:
        with pytest.raises(RuntimeError, match=text):
            jacobian(linear, x, create_graph=True, strict=True, vectorize=vectorize, strategy=strategy)


def test_strict_is_not_deceived_by_gradients_that_are_materialized() -> None:
    x, unused = tensor([1.0, 2.0]), tensor([3.0])

    def slope(x: Any, unused: Any) -> Any:
        return one_tape.grad((x * x).sum(), [x, unused], create_graph=True, materialize_grads=True)[1]

    assert vjp(slope, (x, unused), np.ones(1))[1][0].tolist() == [0.0, 0.0]
    for product, v in (vjp, np.ones(1)), (jvp, (np.ones(2), np.ones(1))):
        with pytest.raises(RuntimeError, match="output 0 of func does not depend on input 0"):
            product(slope, (x, unused), v, strict=True)

    def linear(x: Any) -> Any:
        y = (3 * x).sum()
        return one_tape.grad(y, x, create_graph=True, materialize_grads=True)[0] * x

    with pytest.raises(RuntimeError, match="does not depend on the inputs"):
        vjp(linear, x, np.ones(2), strict=True, create_graph=True)


def test_strict_accepts_what_depends() -> None:
    x = tensor([1.0, 2.0])
    for create_graph in (False, True):
        how = {"strict": True, "create_graph": create_graph}
        with GradManager().attach(x) as gm:
            results = [
                vjp(lambda x: x**3, x, np.ones(2), **how)[1],
                jvp(lambda x: x**3, x, np.ones(2), **how)[1],
                *[jacobian(lambda x: x**3, x, vectorize=v, strategy=s, **how).sum(0) for v, s in WAYS],
                hvp(lambda x: (x**4).sum() / 4, x, np.ones(2), **how)[1],
                vhp(lambda x: (x**4).sum() / 4, x, np.ones(2), **how)[1],
                *[
                    hessian(lambda x: (x**4).sum() / 4, x, vectorize=v, outer_jacobian_strategy=s, **how).sum(0)
                    for v, s in WAYS
                ],
            ]
            for found in results:
                close(found, 3 * x.numpy() ** 2)
                assert (gm._tape.node_id_of(found) is not None) == create_graph


# ---------------------------------------------------------------- plain arrays, and functions of the inputs


def leaves(found: Any) -> list[Any]:
    return [leaf for part in found for leaf in leaves(part)] if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("function", [vjp, jvp, hvp, vhp, jacobian, hessian])
def test_plain_inputs_give_plain_results(function: Any) -> None:
    x, y, more = np.array([1.0, 2.0]), 3.0, ()
    if function in (jvp, hvp, vhp):
        more = ((np.array([1.0, -1.0]), np.array(2.0)),)

    def f(x: Any, y: Any) -> Any:
        return (x**3).sum() * y**2

    plain, expected = function(f, (x, y), *more), function(f, (tensor(x), tensor(y)), *more)
    assert [type(leaf) for leaf in leaves(plain)] == [
        np.ndarray if leaf.ndim else np.float64 for leaf in leaves(expected)
    ]
    for found, leaf in zip(leaves(plain), leaves(expected), strict=True):
        np.testing.assert_array_equal(found, leaf.numpy())
    options = {"v": more[0]} if more else {}
    for found, leaf in zip(leaves(function(f)(x, y, **options)), leaves(expected), strict=True):
        np.testing.assert_array_equal(found, leaf.numpy())
    assert function(f, **options).__name__ == "f"
    with pytest.raises(TypeError, match=f"{function.__name__} of .* takes its inputs; none were given"):
        function(f)()
    with pytest.raises(TypeError, match=f"{function.__name__} takes a function; found int"):
        function(3)


def test_of_mixed_inputs_a_derivative_is_of_the_kind_of_its_input() -> None:
    value, (by_x, by_y) = vjp(lambda x, y: (x * y).sum(), (np.array([1.0, 2.0]), tensor([3.0, 4.0])))
    assert (type(value), type(by_x), type(by_y)) == (Tensor, np.ndarray, Tensor)


def test_what_an_outer_manager_tracks_stays_a_tensor() -> None:
    w = tensor(2.0)
    gm = GradManager().attach(w)
    with gm:
        slope = jacobian(lambda x: w * x**2, np.array([1.0, 2.0]), create_graph=True)
        gm.backward(np.trace(slope))
    close(w.grad, 6.0)


# ---------------------------------------------------------------- wrong arguments


SIX: list[tuple[Any, bool]] = [(vjp, False), (jvp, True), (hvp, True), (vhp, True), (jacobian, False), (hessian, False)]


@pytest.mark.parametrize(("function", "needs"), SIX)
def test_inputs_and_outputs_must_be_tensors(function: Any, needs: bool) -> None:
    more = (np.ones(3),) if needs else ()
    name = function.__name__
    for inputs, text in (("x", "; it is str"), ((X, [2.0]), "; element 1 is list"), ((), "is empty")):
        with pytest.raises(TypeError, match=f"{name}: inputs.*{text}"):
            function(energy, inputs, *more)
    for inputs in (tensor([1, 2, 3]), np.array([1, 2, 3]), 3):
        with pytest.raises(errors.DtypeError, match=rf"{name}: input 0 has dtype int64"):
            function(energy, inputs, *more)
    with pytest.raises(TypeError, match=f"{name}: what func returns must be .* is float"):
        function(lambda x: 3.0, X, *more)
    with pytest.raises(TypeError, match=f"{name}: what func returns must be .*element 1 is int"):
        function(lambda x: (x.sum(), 1), X, *more)


@pytest.mark.parametrize("function", [jacobian, hessian])
def test_several_inputs_are_one_tuple(function: Any) -> None:
    """Given one by one, the second would be read as `create_graph`."""
    with pytest.raises(TypeError, match=rf"{function.__name__}: create_graph .* inputs=\(x, y\)"):
        function(lambda x, y: (x * y).sum(), X, X)


@pytest.mark.parametrize("function", [hvp, vhp, hessian])
def test_second_order_needs_one_real_number(function: Any) -> None:
    more = () if function is hessian else (np.ones(3),)
    for func in (lambda x: x, lambda x: (x.sum(), x.sum()), lambda x: x.sum() * 1j, lambda x: (x.sum(),)):
        with pytest.raises(ValueError, match=f"{function.__name__}: func must return one Tensor of one real number"):
            function(func, X, *more)
    assert function(lambda x: (x**2).sum(keepdims=True), X, *more)[0].shape == ((3,) if function is hessian else (1,))


def test_vectors_of_the_wrong_shape_are_refused() -> None:
    for function in (vjp, jvp):
        name = function.__name__
        with pytest.raises(ValueError, match=f"{name}: v may be left out only where"):
            function(lambda x: x * 2, X)
        with pytest.raises(errors.ShapeError, match=rf"{name}: v number 0 has shape \(2,\); .* \(3,\)"):
            function(lambda x: x * 2, X, np.ones(2))
        with pytest.raises(ValueError, match=f"{name}: v holds 2 Tensors; .* holds 1"):
            function(lambda x: x * 2, X, (V, V))
        with pytest.raises(errors.DtypeError, match=f"{name}: v number 0 has dtype complex128"):
            function(lambda x: x * 2, X, V * 1j)
        with pytest.raises(TypeError, match=f"{name}: v must hold Tensors or arrays; number 0 is float"):
            function(lambda x: x * 2, X, 1.0)
    for product in (hvp, vhp):
        with pytest.raises(ValueError, match="v may be left out only where the input"):
            product(energy, X)


def test_strategies_have_names() -> None:
    with pytest.raises(ValueError, match="jacobian: strategy is 'reverse-mode' or 'forward-mode'; found 'reverse'"):
        jacobian(layer, X, strategy="reverse")
    with pytest.raises(ValueError, match="hessian: outer_jacobian_strategy is"):
        hessian(energy, X, outer_jacobian_strategy="forward")


def test_a_hessian_of_complex_inputs_is_refused() -> None:
    with pytest.raises(errors.DtypeError, match=r"hessian: input 0 is complex.*take hvp"):
        hessian(lambda z: (gnp.abs(z) ** 2).sum(), tensor([1j]))


# ---------------------------------------------------------------- grad and value_and_grad


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any
    name: str = "layer"


@dataclasses.dataclass(slots=True)
class Slotted:
    weight: Any
    steps: int = 3
    made: Any = dataclasses.field(default=None, init=False)


def test_grad_of_plain_arrays_and_numbers() -> None:
    a = X.numpy().copy()
    found = grad(energy)(a)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, energy_gradient(a), rtol=1e-12)
    value, found = value_and_grad(energy)(a)
    assert isinstance(value, np.float64)
    assert found.dtype == np.float64
    slope = grad(lambda x: x**3)(2.0)
    assert isinstance(slope, np.float64)
    assert slope == 12.0
    assert grad(lambda x: x**3)(np.float32(2.0)).dtype == np.float32
    assert isinstance(grad(lambda x: x**3)(np.array(2.0)), np.ndarray)
    assert isinstance(grad(energy)(X), Tensor)


def test_derivatives_of_derivatives() -> None:
    third = grad(grad(grad(lambda x: x**5)))
    assert third(2.0) == 60 * 4.0
    assert third(tensor(2.0)).tolist() == 240.0
    close(jacobian(grad(energy), X), energy_hessian(X.numpy()))
    close(jacobian(grad(energy), X, vectorize=True, strategy="forward-mode"), energy_hessian(X.numpy()))
    x = tensor(2.0)
    with GradManager().attach(x) as gm:
        value, slope = value_and_grad(lambda x: x**3)(x)
        gm.backward(slope * value)  # 3 x^2 x^3
    assert x.grad.tolist() == 15 * 16.0


def test_plain_arguments_where_a_manager_follows_what_is_captured() -> None:
    w = tensor([2.0, 3.0])
    with GradManager().attach(w) as gm:
        value, g = value_and_grad(lambda x: (w * x * x).sum())(np.array([1.0, 2.0]))
        assert isinstance(value, Tensor)
        assert isinstance(g, Tensor)
        gm.backward(value + g.sum())
    assert w.grad.tolist() == [1.0 + 2.0, 4.0 + 4.0]


def test_containers() -> None:
    params = {
        "layers": [Layer(tensor([1.0, 2.0]), np.array(3.0)), Layer(tensor([3.0, 4.0], dtype="float32"), 2.0, "last")],
        "pair": Pair(tensor([1, 2]), (None, "text", tensor([5.0]))),
        "slotted": Slotted(np.array([2.0])),
        "ordered": collections.OrderedDict(b=1.5, a=True),
        "empty": [],
    }

    def loss(p: Any, factor: Any, *, shift: Any = 0.0) -> Any:
        assert p["layers"][0].name == "layer"
        assert p["pair"].right[:2] == (None, "text")
        assert p["pair"].left.dtype == np.int64
        assert p["slotted"].steps == 3
        assert list(p["ordered"]) == ["b", "a"]
        total = sum((layer.weight**2).sum() * layer.bias for layer in p["layers"])
        return (total + p["slotted"].weight.sum() ** 2 * p["ordered"]["b"] + p["pair"].right[2].sum() * shift) * factor

    g = grad(loss)(params, 2.0, shift=3.0)
    one, two = g["layers"]
    assert type(one) is type(two) is Layer
    assert (one.weight.tolist(), one.bias.tolist(), one.name) == ([12.0, 24.0], 10.0, None)
    assert (two.weight.tolist(), two.weight.dtype, two.bias) == ([24.0, 32.0], np.float32, 50.0)
    assert type(g["pair"]) is Pair
    assert (g["pair"].left, g["pair"].right[:2], g["pair"].right[2].tolist()) == (None, (None, None), [6.0])
    assert type(g["slotted"]) is Slotted
    assert (g["slotted"].weight.tolist(), g["slotted"].steps) == ([12.0], None)
    assert type(g["ordered"]) is collections.OrderedDict
    assert (g["ordered"]["b"], g["ordered"]["a"]) == (8.0, None)
    assert g["empty"] == []
    assert params["layers"][0].weight.grad is None
    assert params["slotted"].steps == 3


def test_argnums() -> None:
    def func(x: Any, y: Any, z: Any) -> Any:
        return x * y**2 * z**3

    assert grad(func)(2.0, 3.0, 1.0) == 9.0
    assert grad(func, 1)(2.0, 3.0, 1.0) == 12.0
    assert grad(func, -1)(2.0, 3.0, 1.0) == 54.0
    assert grad(func, (2, 0))(2.0, 3.0, 1.0) == (54.0, 9.0)
    assert grad(func, [0])(2.0, 3.0, 1.0) == (9.0,)
    value, (g,) = value_and_grad(func, (1,))(2.0, 3.0, 1.0)
    assert (value, g) == (18.0, 12.0)


def test_aux() -> None:
    def func(x: Any) -> Any:
        return (x**2).sum(), {"kept": x * 2, "n": 3}

    x = np.array([1.0, 2.0])
    g, aux = grad(func, has_aux=True)(x)
    assert (g.tolist(), aux["kept"].tolist(), aux["n"]) == ([2.0, 4.0], [2.0, 4.0], 3)
    (value, aux), g = value_and_grad(func, has_aux=True)(x)
    assert (value, aux["n"], g.tolist()) == (5.0, 3, [2.0, 4.0])
    with pytest.raises(TypeError, match=r"has_aux=True func returns a pair"):
        grad(energy, has_aux=True)(X)


def test_what_does_not_depend_has_zeros() -> None:
    g = grad(lambda p: (p[0] ** 2).sum())([tensor([1.0]), np.ones((2, 2)), 3.0])
    assert g[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert g[2] == 0.0
    assert grad(lambda x: tensor(1.0))(2.0) == 0.0


def test_complex_gradients_descend() -> None:
    z = np.array([1 + 2j])
    np.testing.assert_allclose(grad(lambda z: (gnp.abs(z) ** 2).sum())(z), 2 * z)


def test_func_may_write_to_what_it_is_given() -> None:
    def func(x: Any) -> Any:
        x *= 2.0
        x[0] = x[1]
        return (x**2).sum()

    a, t = np.array([1.0, 3.0]), tensor([1.0, 3.0])
    assert grad(func)(a).tolist() == [0.0, 48.0]
    assert grad(func)(t).tolist() == [0.0, 48.0]
    assert a.tolist() == t.tolist() == [1.0, 3.0]


def test_names_are_kept() -> None:
    assert grad(energy).__name__ == "energy"
    assert grad(energy).__wrapped__ is energy


def test_wrong_arguments_of_grad() -> None:
    with pytest.raises(TypeError, match="takes a function; found int"):
        grad(3)
    for argnums in ("0", 1.0, (), (0, "1"), True):
        with pytest.raises(TypeError, match="argnums is an int or a tuple"):
            grad(energy, argnums)
    with pytest.raises(ValueError, match="asks for argument 1, and 1 positional arguments were given"):
        grad(energy, 1)(X)
    with pytest.raises(ValueError, match="passed by position"):
        grad(energy)(x=X)
    with pytest.raises(ValueError, match="names an argument twice"):
        grad(lambda x, y: x, (0, -2))(1.0, 2.0)
    with pytest.raises(errors.DtypeError, match=r"holds nothing to differentiate by, only int; .* 3\.0 for 3"):
        grad(lambda x: x**2)(3)
    with pytest.raises(errors.DtypeError, match="only int64"):
        grad(lambda x: x**2)(np.arange(3))
    with pytest.raises(errors.DtypeError, match="which cannot be differentiated"):
        grad(lambda x: x**2)(np.longdouble(3))
    with pytest.raises(TypeError, match=r"must return a Tensor; found float: float\(\)"):
        grad(lambda x: (x**2).sum().item())(np.ones(2))
    with pytest.raises(ValueError, match="one real number"):
        grad(lambda x: x**2)(np.ones(2))


# ---------------------------------------------------------------- SciPy


def rosenbrock(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def test_value_and_grad_plugs_into_minimize() -> None:
    found = minimize(value_and_grad(rosenbrock), np.zeros(6), jac=True, method="L-BFGS-B", tol=1e-12)
    np.testing.assert_allclose(found.x, np.ones(6), atol=1e-5)


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG", "trust-krylov", "trust-ncg", "trust-exact"])
def test_rosenbrock(method: str) -> None:
    problem = Flattened(rosenbrock, tensor([1.3, 0.7, 0.8, 1.9, 1.2]))
    second: dict[str, Any] = {}
    if method == "trust-exact":
        second = {"hess": problem.hess}
    elif method != "L-BFGS-B":
        second = {"hessp": problem.hessp}
    found = minimize(problem.value_and_grad, problem.x0, jac=True, method=method, tol=1e-9, **second)
    assert found.success or found.fun < 1e-15
    np.testing.assert_allclose(found.x, np.ones(5), atol=1e-5)
    np.testing.assert_allclose(problem.grad(problem.x0), scipy.optimize.rosen_der(problem.x0), rtol=1e-12)
    np.testing.assert_allclose(
        problem.hessp(problem.x0, np.arange(5.0)),
        scipy.optimize.rosen_hess_prod(problem.x0, np.arange(5.0)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(problem.hess(problem.x0), scipy.optimize.rosen_hess(problem.x0), rtol=1e-12)


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG", "trust-krylov"])
def test_logistic_regression(method: str) -> None:
    """Breast cancer, against scikit-learn's own solver of the same problem."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x, y)
    signs = 2.0 * y - 1

    def loss(p: Any) -> Any:
        margins = (asarray(x) @ p["w"] + p["b"]) * signs
        return gnp.logaddexp(0, -margins).sum() + 0.5 * (p["w"] ** 2).sum()

    problem = Flattened(loss, {"w": tensor(np.zeros(30)), "b": 0.0})
    hessp = {} if method == "L-BFGS-B" else {"hessp": problem.hessp}
    tol = {"options": {"ftol": 1e-15, "gtol": 1e-8}} if method == "L-BFGS-B" else {"tol": 1e-9}
    with np.errstate(invalid="ignore"):  # trust-krylov multiplies memory that it has not written yet by 0
        found = minimize(problem.value_and_grad, problem.x0, jac=True, method=method, **hessp, **tol)
    fitted = problem.unflatten(found.x)
    expected = {"w": tensor(reference.coef_[0]), "b": float(reference.intercept_[0])}
    assert found.fun <= problem.value(problem.flatten(expected)) * (1 + 1e-9)
    np.testing.assert_allclose(fitted["w"].numpy(), reference.coef_[0], atol=1e-4)
    np.testing.assert_allclose(fitted["b"], reference.intercept_[0], atol=1e-4)


def decay(p: Any, t: Any) -> Any:
    return p["scale"] * gnp.exp(-p["rate"] * t) + p["floor"]


def test_least_squares() -> None:
    t = np.linspace(0, 4, 40)
    truth = {"scale": 2.5, "rate": 1.3, "floor": 0.5}
    noise = np.random.default_rng(1).normal(scale=0.02, size=40)
    seen = 2.5 * np.exp(-1.3 * t) + 0.5 + noise
    problem = Flattened(lambda p, t: decay(p, t) - seen, dict.fromkeys(truth, 1.0))
    found = scipy.optimize.least_squares(problem.value, problem.x0, jac=problem.jac, args=(t,), xtol=1e-14, ftol=1e-14)
    reference, _ = scipy.optimize.curve_fit(lambda t, a, b, c: a * np.exp(-b * t) + c, t, seen, [1, 1, 1])
    np.testing.assert_allclose(found.x, reference, rtol=1e-5)
    np.testing.assert_allclose(list(problem.unflatten(found.x).values()), list(truth.values()), rtol=0.05)


def test_root() -> None:
    def equations(p: Any) -> Any:
        x, y = p
        return [x + 0.5 * (x - y) ** 3 - 1.0, 0.5 * (y - x) ** 3 + y]

    problem = Flattened(equations, (tensor(0.0), tensor(0.0)))
    found = scipy.optimize.root(problem.value, problem.x0, jac=problem.jac, method="hybr")
    assert found.success
    np.testing.assert_allclose(found.x, [0.8411639, 0.1588361], atol=1e-7)


def test_jacobian_plugs_in_by_a_lambda() -> None:
    def func(x: Any) -> Any:
        return gnp.stack([x[0] ** 2 + x[1] ** 2 - 4, x[0] * x[1] - 1])

    found = scipy.optimize.root(
        lambda x: func(asarray(x)).numpy(), [2.0, 0.3], jac=lambda x: jacobian(func, asarray(x)).numpy()
    )
    np.testing.assert_allclose(func(tensor(found.x)).numpy(), [0, 0], atol=1e-10)


def test_parameters_of_every_kind() -> None:
    frozen = tensor([9.0, 9.0])
    params = {
        "single": tensor([[1.0, 2.0], [3.0, 4.0]], dtype="float32"),
        "complex": tensor([3 + 1j, -1j], dtype="complex64"),
        "plain": np.array([5.0]),
        "number": 6.0,
        "count": 7,
        "frozen": frozen,
        "more": Layer(tensor(0.5), None),
    }
    kinds = {}

    def loss(p: Any, factor: float = 1.0) -> Any:
        kinds.update({key: getattr(p[key], "dtype", type(p[key])) for key in p})
        assert p["frozen"] is frozen
        squares = [(p["single"] ** 2).sum(), (gnp.abs(p["complex"] - 1j) ** 2).sum(), (p["plain"] ** 2).sum()]
        rest = p["number"] ** 2 + p["more"].weight ** 2 + (p["frozen"] * p["plain"]).sum()
        return (sum(squares[1:], start=squares[0]) + rest) * factor

    problem = Flattened(loss, params, frozen=[frozen])
    assert problem.x0.dtype == np.float64
    assert problem.x0.flags.c_contiguous
    assert problem.x0.tolist() == [1, 2, 3, 4, 3, 1, 0, -1, 5, 6, 0.5]
    value, g = problem.value_and_grad(problem.x0, 2.0)
    assert isinstance(value, float)
    assert g.dtype == np.float64
    assert g.tolist() == [4, 8, 12, 16, 12, 0, 0, -8, 56, 24, 2]
    assert kinds["single"] == np.float32
    assert kinds["complex"] == np.complex64
    assert kinds["count"] is int
    assert value == problem.value(problem.x0, 2.0)
    close(problem.hessp(problem.x0, np.arange(11.0)), 2 * np.arange(11.0))
    found = minimize(problem.value_and_grad, problem.x0, jac=True, hessp=problem.hessp, method="trust-krylov")
    best = problem.unflatten(found.x)
    assert best["single"].dtype == np.float32
    np.testing.assert_allclose(best["complex"].numpy(), [1j, 1j], atol=1e-6)
    assert best["complex"].dtype == np.complex64
    assert type(best["plain"]) is np.ndarray
    np.testing.assert_allclose(best["plain"], [-9.0], rtol=1e-6)
    assert isinstance(best["number"], float)
    assert best["count"] == 7
    assert best["frozen"] is frozen
    assert type(best["more"]) is Layer
    assert problem.flatten(best).shape == problem.x0.shape
    np.testing.assert_array_equal(problem.flatten(params), problem.x0)


def test_solvers_vectors_are_neither_kept_nor_written() -> None:
    problem = Flattened(lambda x: (x**2).sum(), np.ones(2))
    x = np.array([1.0, 2.0])
    back = problem.unflatten(x)
    _, g = problem.value_and_grad(x)
    x[:] = 9.0
    assert (back.tolist(), g.tolist(), problem.x0.tolist()) == ([1.0, 2.0], [2.0, 4.0], [1.0, 1.0])
    assert problem.value(np.array([1, 2], np.float32)) == 5.0


def test_a_problem_is_not_recorded_outside() -> None:
    w = tensor([1.0])
    problem = Flattened(lambda x: (x**2 * w).sum(), np.ones(2))
    with GradManager().attach(w) as gm:
        problem.value(problem.x0)
        problem.value_and_grad(problem.x0)
        problem.hessp(problem.x0, problem.x0)
        problem.jac(problem.x0)
        problem.unflatten(problem.x0)
        assert gm._tape.entries == []


def test_wrong_arguments_of_flattened() -> None:
    problem = Flattened(lambda p: p["x"] ** 2, {"x": np.ones(2)})
    with pytest.raises(TypeError, match="takes a function"):
        Flattened(1, {"x": 1.0})
    with pytest.raises(TypeError, match="holds no floating or complex leaf"):
        Flattened(rosenbrock, {"x": 1})
    with pytest.raises(ValueError, match="element 0 of frozen is not a leaf"):
        Flattened(rosenbrock, {"x": np.ones(2)}, frozen=[np.ones(2)])
    with pytest.raises(errors.ShapeError, match=r"value: the vector must have shape \(2,\); found \(3,\)"):
        problem.value(np.ones(3))
    with pytest.raises(errors.ShapeError, match=r"flatten: params .*\[\(2,\)\]; found \[\(3,\)\]"):
        problem.flatten({"x": np.ones(3)})
    with pytest.raises(ValueError, match="value_and_grad: func must return one Tensor of one real number"):
        problem.value_and_grad(np.ones(2))
    with pytest.raises(TypeError, match="func must return Tensors; found float"):
        Flattened(lambda p: 3.0, 1.0).value(np.ones(1))
    with pytest.raises(TypeError, match="func must return a Tensor; found float"):
        Flattened(lambda p: 3.0, 1.0).value_and_grad(np.ones(1))


def test_the_public_names() -> None:
    assert sorted(functional.__all__) == functional.__all__
    assert set(functional.__all__) == {
        "Flattened",
        "grad",
        "hessian",
        "hvp",
        "jacobian",
        "jvp",
        "value_and_grad",
        "vhp",
        "vjp",
    }


# ---------------------------------------------------------------- arrays that are not NumPy's


def test_derivatives_stay_where_the_inputs_are(cupy: Any) -> None:
    def moved(a: Any) -> Tensor:
        return asarray(cupy.asarray(a))

    a, b = moved(A), moved(B)

    def there(x: Any) -> Any:
        return gnp.tanh(x @ a + b)

    def scalar(x: Any) -> Any:
        return (there(x) ** 2).sum()

    x, v, u = moved(X.numpy()), cupy.asarray(V), cupy.asarray(np.ones(4))
    on_host = X.numpy()
    expected: list[Any] = [
        *vjp(layer, X, np.ones(4)),
        *jvp(layer, X, V),
        *[part for product in (hvp, vhp) for part in product(lambda x: (layer(x) ** 2).sum(), X, V)],
        grad(lambda x: (layer(x) ** 2).sum())(X),
        jacobian(layer, X),
        jacobian(layer, X, strategy="forward-mode"),
        hessian(lambda x: (layer(x) ** 2).sum(), X),
    ]
    found: list[Any] = [
        *vjp(there, x, u),
        *jvp(there, x, v),
        *[part for product in (hvp, vhp) for part in product(scalar, x, v)],
        grad(scalar)(x),
        jacobian(there, x),
        jacobian(there, x, vectorize=True, strategy="forward-mode"),
        hessian(scalar, x, vectorize=True),
    ]
    for one, other in zip(found, expected, strict=True):
        assert isinstance(raw(one), guard.ndarray)
        np.testing.assert_allclose(raw(one).get(), raw(other), rtol=1e-12)
    assert isinstance(grad(scalar)(cupy.asarray(on_host)), guard.ndarray)
    with pytest.raises(errors.MixedArraysError, match="vjp: v number 0 lives on cpu, the output on cuda:0; move v"):
        vjp(there, x, np.ones(4))


def test_problems_with_parameters_on_two_devices(cupy: Any) -> None:
    params = [
        asarray(cupy.asarray(np.array([1.0, 2.0], np.float32))),
        asarray(cupy.asarray(np.array([1 + 1j]))),
        tensor(3.0),
    ]

    def loss(p: Any) -> Any:
        assert [t.device for t in p] == ["cuda:0", "cuda:0", "cpu"]
        return ((p[0] ** 2).sum().astype("float64") + (gnp.abs(p[1]) ** 2).sum()).to("cpu") + p[2] ** 2

    problem = Flattened(loss, params)
    assert problem.x0.tolist() == [1.0, 2.0, 1.0, 1.0, 3.0]
    value, g = problem.value_and_grad(problem.x0)
    assert (value, g.tolist()) == (pytest.approx(16.0), pytest.approx([2.0, 4.0, 2.0, 2.0, 6.0]))
    back = problem.unflatten(g)
    assert [(t.device, t.dtype) for t in back] == [(t.device, t.dtype) for t in params]
    np.testing.assert_allclose(problem.hessp(problem.x0, np.ones(5)), 2 * np.ones(5), atol=1e-6)


# ---------------------------------------------------------------- threads


def test_threads_take_derivatives_of_shared_tensors_at_once() -> None:
    x = tensor(X.numpy().copy())
    found: list[Any] = []

    def work() -> None:
        for _ in range(5):
            found.append(hessian(energy, x, vectorize=True, outer_jacobian_strategy="forward-mode"))
            found.append(jacobian(grad(energy), x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for one in found:
        close(one, energy_hessian(X.numpy()))
