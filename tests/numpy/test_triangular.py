"""Triangular systems and Cholesky factors: every way in which they are computed, by size, stack and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import gradient, gradients

import gradmgr.numpy as gnp
from gradmgr import GradManager, tensor

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
    np.testing.assert_allclose(x.grad.numpy(), (expected + expected.conj().T) / 2, rtol=1e-10, atol=1e-11)


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
