"""Triangular systems and Cholesky factors: every way in which they are computed, by size, stack and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import gradient, gradients

import gradmgr.numpy as gnp
from gradmgr import GradManager, compile, functional, tensor, vmap

scipy_linalg = pytest.importorskip("scipy.linalg")

# Stacks: small and many, by substitution; middle-sized, by NumPy; large, by LAPACK; one matrix.
SHAPES = {"many of 3": (70, 3, 3), "few of 3": (2, 3, 3), "few of 20": (3, 20, 20), "one of 5": (5, 5)}


def _matrices(shape: tuple[int, ...], dtype: Any = float) -> Any:
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype is complex else 0)
    return a / shape[-1] + 2 * np.eye(shape[-1])


def _right(shape: tuple[int, ...], columns: int, dtype: Any = float) -> Any:
    rng = np.random.default_rng(1)
    b = rng.normal(size=(*shape[:-1], columns))
    return b + 1j * rng.normal(size=b.shape) if dtype is complex else b


def _dense(a: Any, lower: bool, unit: bool, trans: str) -> Any:
    m = np.tril(a) if lower else np.triu(a)
    if unit:
        k = np.arange(a.shape[-1])
        m[..., k, k] = 1
    return {"N": m, "T": m.swapaxes(-1, -2), "C": m.conj().swapaxes(-1, -2)}[trans]


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("columns", [1, 12])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_kind_of_triangle_is_solved(shape, columns, dtype):
    a, b = _matrices(shape, dtype), _right(shape, columns, dtype)
    for lower in (True, False):
        for unit in (True, False):
            for trans in "NTC":
                expected = np.linalg.solve(_dense(a, lower, unit, trans), b)
                found = gnp.linalg.solve_triangular(tensor(a), b, trans, lower, unit)
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 12])
def test_the_layout_in_memory_does_not_matter(columns):
    a, b = _matrices((7, 7)), _right((7, 7), columns)
    for laid_out in (a, np.asfortranarray(a), np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2]):
        for trans in "NT":
            found = gnp.linalg.solve_triangular(tensor(laid_out), tensor(np.asfortranarray(b)), trans, True)
            np.testing.assert_allclose(found.numpy(), np.linalg.solve(_dense(a, True, False, trans), b), rtol=1e-11)


@pytest.mark.parametrize(("lower", "unit", "trans"), [(True, False, "N"), (False, True, "T")])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_those_of_the_dense_system(shape, lower, unit, trans):
    a, b = _matrices(shape), _right(shape, 2)
    one = np.eye(shape[-1]) * unit
    read = _dense(np.ones(shape[-2:]), lower, unit, "N") - one

    def dense(x: Any, y: Any) -> Any:
        m = x * read + one
        return gnp.linalg.solve(m.mT if trans == "T" else m, y) ** 2

    found = gradients(lambda x, y: gnp.linalg.solve_triangular(x, y, trans, lower, unit) ** 2, a, b)
    for mine, other in zip(found, gradients(dense, a, b), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("columns", [1, 12])
def test_a_zero_on_the_diagonal_is_an_error(shape, columns):
    a = _matrices(shape)
    a[..., 1, 1] = 0
    with pytest.raises(np.linalg.LinAlgError, match=r"solve_triangular: .*[Ss]ingular"):
        gnp.linalg.solve_triangular(tensor(a), _right(shape, columns), lower=True)
    gnp.linalg.solve_triangular(tensor(a), _right(shape, columns), lower=True, unit_diagonal=True)


def test_stacks_broadcast():
    a, b = _matrices((70, 3, 3)), _right((2, 1, 3, 3), 2)
    found = gnp.linalg.solve_triangular(tensor(a), b, lower=True)
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(np.tril(a), b), rtol=1e-10)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", [(70, 3, 3), (3, 20, 20), (2, 3, 3, 3)], ids=str)
def test_the_gradient_of_a_stack_of_cholesky_factors_is_that_of_each(shape, upper, dtype):
    m = _matrices(shape, dtype)
    a = m @ m.conj().swapaxes(-1, -2)
    weights = _right(shape, shape[-1], dtype)

    def gradient_of(matrices: Any, slopes: Any) -> Any:
        return gradient(lambda x: gnp.linalg.cholesky(x, upper=upper) * slopes, matrices)

    found = gradient_of(a, weights)
    last = (-1,) * (len(shape) - 2)
    for which in ((0,) * len(last), last):
        np.testing.assert_allclose(found[which], gradient_of(a[which], weights[which]), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("rows", [97, 201])  # more than are taken at once; an odd number of them, halved twice
def test_a_large_cholesky_factor_has_the_gradient_of_the_formula(rows, upper, dtype):
    m, weights = _matrices((rows, rows), dtype), _right((rows, rows), rows, dtype)
    a = m @ m.conj().T
    x = tensor(a)
    gm = GradManager().attach(x)
    with gm:
        factor = gnp.linalg.cholesky(x, upper=upper)
        gm.backward(factor, weights)
    lower, slope = (factor.numpy(), weights) if not upper else (factor.numpy().conj().T, weights.conj().T)
    np.testing.assert_allclose(lower, np.linalg.cholesky(a), rtol=1e-12, atol=1e-12)
    inner = np.tril(lower.conj().T @ slope)
    inner[np.diag_indices(rows)] /= 2
    inverse = np.linalg.inv(lower)
    expected = inverse.conj().T @ inner @ inverse
    expected += expected.conj().T
    expected[np.diag_indices(rows)] /= 2
    read = np.triu(expected) if upper else np.tril(expected)
    np.testing.assert_allclose(x.grad.numpy(), read, rtol=1e-10, atol=1e-11)


def test_a_large_matrix_that_is_not_positive_definite_has_no_cholesky_factor():
    a = np.eye(100)
    a[-1, -1] = -1
    with pytest.raises(np.linalg.LinAlgError, match="cholesky: Matrix is not positive definite"):
        gnp.linalg.cholesky(tensor(a))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_that_are_not_finite_are_refused_and_large_ones_are_not(wrong, dtype, order):
    a, b = np.asarray(np.eye(4), dtype, order=order), np.ones((4, 1), dtype)
    large = np.finfo(dtype).max / 4  # whose square is infinite
    found = gnp.linalg.solve_triangular(tensor(a * large), b, lower=True)
    np.testing.assert_allclose(found, 1 / large * b)
    a[1, 3] = wrong  # above the diagonal, where SciPy looks, too
    for given in ((a, b), (np.eye(4), np.full_like(b, wrong))):
        with pytest.raises(ValueError, match="solve_triangular: array must not contain infs or NaNs"):
            gnp.linalg.solve_triangular(tensor(given[0]), given[1], lower=True)


@pytest.mark.parametrize("count", [2, 70])
def test_the_gradient_of_ill_conditioned_factors_is_as_accurate_in_a_stack(count):
    """Against the formula in extended precision: the error of both ways grows with the condition number, 1e10."""
    n = 5
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1) + 1e-10 * np.eye(n)
    gm = GradManager()
    errors = []
    for a in (hilbert, np.broadcast_to(hilbert, (count, n, n)).copy()):
        x = tensor(a)
        with gm.attach(x):
            gm.backward(gnp.sum(gnp.linalg.cholesky(x)))
        found, x.grad = x.grad.numpy(), None
        exact = _exact_gradient(hilbert)
        errors.append(np.abs(found - exact).max() / np.abs(exact).max())
    assert errors[1] < 10 * errors[0] + 1e-14


def _exact_gradient(a: Any) -> Any:
    """Return the gradient of the sum of the Cholesky factor's elements, by the formula in fractions."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        lower = mpmath.cholesky(mpmath.matrix(a.tolist()))
        n = lower.rows
        inner = lower.T * mpmath.matrix([[1 if j <= i else 0 for j in range(n)] for i in range(n)])
        for i in range(n):
            for j in range(n):
                inner[i, j] *= 0 if j > i else mpmath.mpf(1) / 2 if i == j else 1
        inverse = lower**-1
        made = inverse.T * inner * inverse
        return np.array([[float((made[i, j] + made[j, i]) / 2) for j in range(n)] for i in range(n)])


# ---------------------------------------------------------------- functions that read one triangle

# By name: the function, of values that no phase of a vector changes, and the triangle that it reads.
READS = {
    "cholesky": (lambda xp, a: xp.linalg.cholesky(a), np.tril),
    "cholesky(upper)": (lambda xp, a: xp.linalg.cholesky(a, upper=True), np.triu),
    "eigvalsh": (lambda xp, a: xp.linalg.eigvalsh(a), np.tril),
    "eigvalsh(U)": (lambda xp, a: xp.linalg.eigvalsh(a, "U"), np.triu),
    "eigh": (lambda xp, a: xp.abs(xp.linalg.eigh(a)[1]), np.tril),
    "eigh(u)": (lambda xp, a: xp.abs(xp.linalg.eigh(a, UPLO="u")[1]), np.triu),
    "svd(hermitian)": (lambda xp, a: xp.abs(xp.linalg.svd(a, hermitian=True)[2]), np.tril),
    "svd(hermitian, values)": (lambda xp, a: xp.linalg.svd(a, compute_uv=False, hermitian=True), np.tril),
    "pinv(hermitian)": (lambda xp, a: xp.linalg.pinv(a, hermitian=True), np.tril),
}


def _weighed(z):
    return gnp.sum(gnp.real(z * gnp.reshape(gnp.arange(1.0, z.size + 1), z.shape)))


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("name", READS)
def test_nan_in_the_triangle_that_is_not_read_changes_no_derivative(name, dtype):
    function, keep = READS[name]
    a = _matrices((2, 3, 3), dtype) / 4 + np.diag([2.0, 3.0, 4.5])
    direction, unread = _right((2, 3, 3), 3, dtype), keep(np.ones((3, 3))) == 0
    filled, moved = np.where(unread, np.nan, a), np.where(unread, np.nan, direction)

    def weighed(x):
        return _weighed(function(gnp, x))

    slope = functional.grad(weighed)
    np.testing.assert_allclose(function(gnp, tensor(filled)).numpy(), function(np, filled), rtol=1e-12, atol=1e-14)
    for given, step in ((a, direction), (filled, moved)):
        first = slope(tensor(given))
        assert not first.numpy()[:, unread].any()
        h = 1e-6 * np.where(unread, 0, direction)
        difference = [(weighed(tensor(given + s * h))).item() for s in (1, -1)]
        along = np.sum((np.conj(first.numpy()) * np.where(unread, 0, direction)).real)
        np.testing.assert_allclose(along, (difference[0] - difference[1]) / 2e-6, rtol=1e-6)
        _, forward = functional.jvp(weighed, tensor(given), tensor(step))
        np.testing.assert_allclose(forward.item(), along, rtol=1e-9)
        _, second = functional.jvp(slope, tensor(given), tensor(step))
        assert not second.numpy()[:, unread].any()
        ahead, behind = (slope(tensor(given + s * h)).numpy() for s in (1, -1))
        np.testing.assert_allclose(second.numpy(), (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-6)
        each = vmap(slope)(tensor(given))
        np.testing.assert_allclose(each[1].numpy(), slope(tensor(given[1])).numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", READS)
def test_a_compiled_step_gives_the_triangle_that_is_read_the_same_gradient(name):
    function, keep = READS[name]
    a = np.where(keep(np.ones((3, 3))) == 0, 7.0, _matrices((3, 3)) / 4 + np.diag([2.0, 3.0, 4.5]))

    step = functional.grad(lambda m: _weighed(function(gnp, m)))
    compiled = compile(step)
    for k in range(4):
        x = tensor(a + k * np.eye(3) / 10)
        np.testing.assert_allclose(compiled(x).numpy(), step(x).numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", READS)
def test_a_program_that_makes_a_symmetric_matrix_has_the_gradient_of_calculus(name):
    """The sum over both triangles is what counts: x -> x x^T + D is symmetric, however it is read."""
    function = READS[name][0]
    shift = np.diag([2.0, 3.0, 4.5])
    m = _matrices((3, 3)) / 4

    def weighed(x):
        return _weighed(function(gnp, x @ x.T + shift))

    found = functional.grad(weighed)(tensor(m)).numpy()
    for i in np.ndindex(m.shape):
        h = np.zeros_like(m)
        h[i] = 1e-6
        difference = (weighed(tensor(m + h)) - weighed(tensor(m - h))).item() / 2e-6
        np.testing.assert_allclose(found[i], difference, rtol=1e-6, atol=1e-7)
    whole = m @ m.T + shift
    of_whole = functional.grad(lambda a: _weighed(function(gnp, (a + a.T) / 2)))(tensor(whole)).numpy()
    np.testing.assert_allclose(of_whole, of_whole.T, rtol=1e-12)  # symmetrised first, the gradient is symmetric
    read = functional.grad(lambda a: _weighed(function(gnp, a)))(tensor(whole)).numpy()
    np.testing.assert_allclose(of_whole, (read + read.T) / 2, rtol=1e-10, atol=1e-12)
