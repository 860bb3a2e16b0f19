"""Derivatives where mathematics leaves a choice or numbers end: the rows of docs/conventions.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import gradient

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, special, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

INF, NAN = np.inf, np.nan
# What the derivative is where mathematics leaves a choice or numbers end: f, the point, the gradient of f's sum.
ROWS: list[tuple[str, Any, Any, Any]] = [
    ("maximum at a tie", lambda x: gnp.maximum(x, 1.0), [1.0, 2.0, 0.0], [0.5, 1, 0]),
    ("minimum at a tie", lambda x: gnp.minimum(1.0, x), [1.0, 2.0, 0.0], [0.5, 0, 1]),
    ("fmax at a tie and a NaN", lambda x: gnp.fmax(x, np.array([1.0, NAN, 5.0])), [1.0, 2.0, NAN], [0.5, 1, 0]),
    ("max with ties", gnp.max, [3.0, 1.0, 3.0, 3.0], [1 / 3, 0, 1 / 3, 1 / 3]),
    ("min with ties along an axis", lambda x: gnp.min(x, 1), [[1.0, 1.0], [2.0, 1.0]], [[0.5, 0.5], [0, 1]]),
    ("abs at 0", gnp.abs, [0.0, -2.0, 2.0], [0, -1, 1]),
    ("fabs at 0", gnp.fabs, [0.0, -2.0], [0, -1]),
    ("abs at complex 0", gnp.abs, [0j, 3 + 4j], [0, 0.6 + 0.8j]),
    ("sign", gnp.sign, [0.0, -2.0, 2.0], [0, 0, 0]),
    ("hypot at 0", lambda x: gnp.hypot(x, 0.0), [0.0, 2.0], [0, 1]),
    ("arctan2 at 0", lambda x: gnp.arctan2(x, 0.0), [0.0], [0]),
    ("relu at 0", F.relu, [0.0, -0.0, 2.0], [0, 0, 1]),
    ("leaky_relu at 0", lambda x: F.leaky_relu(x, 0.1), [0.0, 2.0], [0.1, 1]),
    ("elu at 0", lambda x: F.elu(x, 0.5), [0.0, 2.0], [0.5, 1]),
    ("l1_loss at 0", lambda x: F.l1_loss(x, np.zeros(2)), [0.0, 1.0], [0, 0.5]),
    ("max_pool2d with ties", lambda x: F.max_pool2d(x[None], 2), [[1.0, 1.0], [1.0, 0.0]], [[1, 0], [0, 0]]),
    ("cross_entropy of no label", lambda x: F.cross_entropy(x, np.array([-100])), [[0.0, 1.0]], [[0, 0]]),
    ("nll_loss of no label", lambda x: F.nll_loss(x, np.array([-100])), [[0.0, 1.0]], [[0, 0]]),
    ("clip at its bounds", lambda x: gnp.clip(x, -1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 1, 1, 1, 0]),
    ("the bound of a clip", lambda x: gnp.clip(np.array([0.0, 1.0, 2.0]), x, None), [1.0, 1.0, 1.0], [1, 0, 0]),
    ("sqrt at 0", gnp.sqrt, [0.0, 4.0], [INF, 0.25]),
    ("log at 0", gnp.log, [0.0, 4.0], [INF, 0.25]),
    ("0 to the 0", lambda x: x**0, [0.0, 2.0], [0, 0]),
    ("0 to the 1", lambda x: x**1.0, [0.0, 2.0], [1, 1]),
    ("0 to the 2", lambda x: x**2, [0.0, 2.0], [0, 4]),
    ("0 to a tensor", lambda x: x ** tensor([0.0, 1.0, 2.0]), [0.0, 0.0, 0.0], [0, 1, 0]),
    ("powers of 0", lambda p: 0.0**p, [0.0, 0.5, 2.0, -1.0], [0, 0, 0, -INF]),
    ("powers of an array of 0s", lambda p: np.zeros(4) ** p, [0.0, 0.5, 2.0, -1.0], [0, 0, 0, -INF]),
    ("prod with a 0", gnp.prod, [2.0, 0.0, 3.0, 4.0], [0, 24, 0, 0]),
    ("prod with two 0s", gnp.prod, [2.0, 0.0, 3.0, 0.0], [0, 0, 0, 0]),
    ("cumprod with a 0", gnp.cumprod, [2.0, 0.0, 3.0, 4.0], [1, 32, 0, 0]),
    ("where with NaN beside", lambda x: gnp.where(x > 0, gnp.log(x), 0.0), [0.0, 2.0], [NAN, 0.5]),
    ("log with where=", lambda x: gnp.log(x, where=x > 0, out=gnp.zeros(2)), [0.0, 2.0], [0, 0.5]),
    ("logsumexp with -inf", gradmgr.special.logsumexp, [-INF, 1.0, -INF], [0, 1, 0]),
    ("logsumexp of -inf", gradmgr.special.logsumexp, [-INF, -INF], [0, 0]),
    ("logsumexp of large values", gradmgr.special.logsumexp, [1e308, 1e308], [0.5, 0.5]),
    ("logaddexp with -inf", lambda x: gnp.logaddexp(x, -INF), [-INF, 1.0], [0, 1]),
    ("exp underflowing, overflowing", gnp.exp, [-1e4, 1e4], [0, INF]),
    ("tanh saturated", gnp.tanh, [-1e4, 1e4], [0, 0]),
    ("logaddexp of far values", lambda x: gnp.logaddexp(x, 0.0), [-1e4, 1e4], [0, 1]),
    ("steps", lambda x: gnp.round(x) + gnp.floor(x) + gnp.ceil(x) + gnp.rint(x) + gnp.trunc(x), [0.3, 2.0], [0, 0]),
    ("std of equal values", gnp.std, [1.5, 1.5], [0, 0]),
    ("an element got twice", lambda x: x[[0, 0, 1]], [1.0, 2.0, 3.0], [2, 1, 0]),
    ("sinc at 0", gnp.sinc, [0.0, 0.5], [0, -4 / np.pi]),
    ("xlogy at 0", lambda x: special.xlogy(x, x), [0.0, 1.0], [0, 1]),
    ("0 log y at y = 0", lambda y: special.xlogy(0.0, y), [0.0, 2.0], [0, 0]),
    ("softmax of a masked row", lambda x: special.softmax(x)[0], [1.0, -INF, 1.0], [0.25, 0, -0.25]),
    ("expit saturated", special.expit, [-1e4, 1e4, 0.0], [0, 0, 0.25]),
    ("norm at 0", gnp.linalg.norm, [0.0, 0.0], [0, 0]),
    ("norm of order 3 at 0", lambda x: gnp.linalg.norm(x, 3), [0.0, 0.0], [0, 0]),
    ("norm of order inf with ties", lambda x: gnp.linalg.norm(x, INF), [2.0, -2.0, 1.0], [0.5, -0.5, 0]),
    ("norm of order -inf with ties", lambda x: gnp.linalg.norm(x, -INF), [2.0, -1.0, 1.0], [0, -0.5, 0.5]),
    ("norm of order 1 at 0", lambda x: gnp.linalg.norm(x, 1), [0.0, -2.0], [0, -1]),
    ("norm of order 0", lambda x: gnp.linalg.norm(x, 0), [0.0, -2.0], [0, 0]),
    ("sort with ties", lambda x: gnp.sort(x) * np.array([1.0, 2.0, 3.0]), [2.0, 1.0, 1.0], [3, 1, 2]),
    ("median of an even number", gnp.median, [3.0, 1.0, 2.0, 9.0], [0.5, 0, 0.5, 0]),
    ("median with ties", gnp.median, [1.0, 1.0, 2.0], [0, 1, 0]),
    ("quantile between two", lambda x: gnp.quantile(x, 0.25), [0.0, 4.0, 1.0], [0.5, 0, 0.5]),
    ("nansum", gnp.nansum, [NAN, 1.0], [0, 1]),
    ("nanmean", gnp.nanmean, [NAN, 1.0, 3.0], [0, 0.5, 0.5]),
    ("nanmax", gnp.nanmax, [NAN, 1.0, 3.0], [0, 0, 1]),
    ("nanprod", gnp.nanprod, [NAN, 2.0, 3.0], [0, 3, 2]),
    ("nanvar", gnp.nanvar, [NAN, 1.0, 3.0], [0, -1, 1]),
    ("nancumsum", gnp.nancumsum, [1.0, NAN, 3.0], [3, 0, 1]),
    ("nanmedian", gnp.nanmedian, [NAN, 2.0, 5.0, 9.0], [0, 0, 1, 0]),
    ("nan_to_num", gnp.nan_to_num, [NAN, INF, 3.0], [0, 0, 1]),
    ("heaviside", lambda x: gnp.heaviside(x, 0.5), [0.0, 1.0], [0, 0]),
    ("det of rank 1", gnp.linalg.det, [[1.0, 2.0], [2.0, 4.0]], [[4, -2], [-2, 1]]),
    ("det of zeros", gnp.linalg.det, [[0.0, 0.0], [0.0, 0.0]], [[0, 0], [0, 0]]),
    ("det of one number", gnp.linalg.det, [[0.0]], [[1]]),
    ("eigenvalues of the identity", lambda x: gnp.linalg.eigvalsh(x), [[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1]]),
    (
        "squared singular values, equal",
        lambda x: gnp.linalg.svdvals(x) ** 2,
        [[2.0, 0.0], [0.0, 2.0]],
        [[4, 0], [0, 4]],
    ),
]


@pytest.mark.parametrize(("f", "point", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_gradients_at_the_edge(f: Any, point: Any, expected: Any) -> None:
    x = tensor(point)
    manager = GradManager().attach(x)
    with manager, np.errstate(all="ignore"):
        manager.backward(gnp.sum(gnp.real(f(x))))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-12)


def test_the_last_of_several_writes_gets_the_gradient() -> None:
    x, v = tensor([1.0, 1.0]), tensor([2.0, 3.0])
    manager = GradManager().attach([x, v])
    with manager:
        x[[0, 0]] = v
        manager.backward(x.sum())
    assert v.grad.tolist() == [0.0, 1.0]
    assert x.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("small", [0.0, 1e-6, 1e-100])
def test_second_derivatives_of_products_are_exact_near_0(small: float) -> None:
    x = tensor([2.0, small, 3.0, 4.0])
    first, second = GradManager().attach(x), GradManager().attach(x)
    for f, expected in ((gnp.prod, [12, 0, 8, 6]), (gnp.cumprod, [16, 0, 10, 6])):
        with first:
            with second:
                second.backward(f(x).sum())
            slope, x.grad = x.grad[1], None
            first.backward(slope)
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-12, atol=1e-12)
        x.grad = None


def second_derivatives(f: Any, point: list[float]) -> np.ndarray:
    """The diagonal of the Hessian of f's sum, for f that works element by element."""
    x = tensor(point)
    first, second = GradManager().attach(x), GradManager().attach(x)
    with first:
        with second:
            second.backward(gnp.sum(f(x)))
        slope, x.grad = x.grad, None
        first.backward(gnp.sum(slope))
    return x.grad.numpy()


def test_the_second_derivative_of_sinc_at_0() -> None:
    found = second_derivatives(gnp.sinc, [0.0, 1e-9, 1e-4])
    np.testing.assert_allclose(found, -(np.pi**2) / 3, rtol=1e-6)


def test_solve_reads_b_as_a_vector_only_where_it_has_one_axis() -> None:
    a = np.stack([np.eye(2) * 2, np.eye(2) * 4])
    for b, expected in ((np.ones(2), [0.75, 0.75]), (np.ones((2, 2)), np.full((2, 2), 0.75))):
        t = tensor(b)
        assert gnp.linalg.solve(a, t).shape == np.linalg.solve(a, b).shape
        np.testing.assert_allclose(gradient(lambda t: gnp.linalg.solve(a, t).sum(), t), expected)


@pytest.mark.parametrize("values", [[[2.0, 1.0], [4.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_the_nuclear_norm_of_lower_rank_has_a_subgradient(values: Any) -> None:
    g = gradient(lambda x: gnp.linalg.norm(x, "nuc"), tensor(values))
    assert np.linalg.norm(g, 2) <= 1 + 1e-12
    np.testing.assert_allclose((g * values).sum(), np.linalg.norm(values, "nuc"), rtol=1e-12)


def test_slogdet_of_a_singular_matrix_is_as_its_formula() -> None:
    with np.errstate(all="ignore"):
        x = tensor(np.zeros((2, 2)))
        sign, logdet = gnp.linalg.slogdet(x)
        assert (sign.item(), logdet.item()) == (0, -np.inf)


def test_unused_null_space_vectors_of_a_full_svd_do_no_harm() -> None:
    x = tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    full = gradient(lambda x: (gnp.linalg.svd(x, full_matrices=True)[0][:, :2] ** 2)[0].sum(), x)
    x.grad = None
    thin = gradient(lambda x: (gnp.linalg.svd(x, full_matrices=False)[0] ** 2)[0].sum(), x)
    np.testing.assert_allclose(full, thin, rtol=1e-12)
    with pytest.raises(RuntimeError, match="null"):
        gradient(lambda x: (gnp.linalg.svd(x, full_matrices=True)[0] ** 2)[0, 2], x)


# A function of eigenvalues, its slope between 1 and 2, and its derivative at 2.
@pytest.mark.parametrize(("of_values", "slope", "at_2"), [(gnp.positive, 1, 1), (gnp.log, np.log(2), 0.5)])
def test_a_function_of_a_matrix_with_equal_eigenvalues_is_nan_and_never_wrong(
    of_values: Any, slope: float, at_2: float
) -> None:
    def rebuilt(x: Any) -> Any:
        w, v = gnp.linalg.eigh(x)
        return ((v * of_values(w)) @ v.T * np.array([[1.0, 2.0], [2.0, 5.0]])).sum()

    with np.errstate(all="ignore"):
        assert np.isnan(gradient(rebuilt, tensor(np.eye(2)))).any()
    expected = [[1, 0], [4 * slope, 5 * at_2]]
    np.testing.assert_allclose(gradient(rebuilt, tensor(np.diag([1.0, 2.0]))), expected, atol=1e-12)


def test_qr_of_dependent_columns_has_no_derivative() -> None:
    with np.errstate(all="ignore"):
        assert np.isnan(gradient(lambda x: gnp.matmul(*gnp.linalg.qr(x)).sum(), tensor([[1.0, 2.0], [2.0, 4.0]]))).all()
