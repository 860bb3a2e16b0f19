"""Linear algebra where there is a choice, an edge or an error; the rest is in the table of samples."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from helpers import gradient

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, errors, functional, gradcheck, tensor, vmap
from gradmgr.ops import lapack, linalg

LinAlgError = np.linalg.LinAlgError
RANDOM = np.random.default_rng(7)
REGULAR = RANDOM.normal(size=(3, 3)) + 4 * np.eye(3)
# Of rank n - 1, n - 2 and 0.
ONE_SHORT = np.array([[1.0, 2, 0], [2, 4, 1], [3, 6, -1]])
TWO_SHORT = np.outer([1.0, -2, 1], [1, 3, 2])
ZERO = np.zeros((3, 3))


def hessian_times(f: Any, point: Any, direction: Any) -> np.ndarray:
    """By reverse mode over reverse mode."""
    x = tensor(point)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(gnp.sum(gnp.real(f(x))))
        slope, x.grad = gnp.sum(gnp.real(x.grad * np.conj(direction))), None
        outer.backward(slope)
    return x.grad.numpy()


# ---------------------------------------------------------------- determinants of singular matrices


def cofactors(a: np.ndarray) -> np.ndarray:
    n = len(a)
    found = np.empty_like(a)
    for i, j in itertools.product(range(n), repeat=2):
        minor = np.delete(np.delete(a, i, 0), j, 1)
        found[i, j] = (-1) ** (i + j) * (np.linalg.det(minor) if n > 1 else 1)
    return found


@pytest.mark.parametrize("a", [ONE_SHORT, TWO_SHORT, ZERO, np.zeros((1, 1)), np.zeros((2, 2)), ONE_SHORT + 1e-13])
def test_det_of_a_singular_matrix_has_the_cofactors_for_gradient(a: np.ndarray) -> None:
    np.testing.assert_allclose(gradient(gnp.linalg.det, a), cofactors(a), rtol=1e-12, atol=1e-12)


def test_det_of_a_stack_with_singular_matrices() -> None:
    a = np.stack([REGULAR, ONE_SHORT, TWO_SHORT, ZERO])
    np.testing.assert_allclose(gradient(gnp.linalg.det, a), [cofactors(m) for m in a], rtol=1e-12, atol=1e-12)


def test_det_of_complex_singular_matrices() -> None:
    a = ONE_SHORT + 1j * TWO_SHORT @ ONE_SHORT
    np.testing.assert_allclose(gradient(gnp.linalg.det, a), cofactors(a).conj(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("a", [REGULAR, ONE_SHORT, TWO_SHORT, ZERO])
def test_second_derivatives_of_det_are_exact_where_it_is_singular(a: np.ndarray) -> None:
    """det is a cubic here, so the central difference of its cofactors is exact."""
    t = RANDOM.normal(size=(3, 3))
    expected = (cofactors(a + t) - cofactors(a - t)) / 2
    np.testing.assert_allclose(hessian_times(gnp.linalg.det, a, t), expected, rtol=1e-11, atol=1e-11)


def test_third_derivatives_of_a_large_singular_matrix_raise_instead_of_losing_all_digits() -> None:
    n = 60
    u, s, vh = np.linalg.svd(RANDOM.normal(size=(n, n)))
    s[-1] = 0
    x, direction = tensor((u * s) @ vh / 6), RANDOM.normal(size=(n, n))
    managers = [GradManager().attach(x) for _ in range(3)]
    with managers[0], managers[1]:
        with managers[2]:
            managers[2].backward(gnp.linalg.det(x))
        slope, x.grad = gnp.sum(x.grad * direction), None
        with pytest.raises(LinAlgError, match="det: further derivatives of a singular matrix of 60 rows"):
            managers[1].backward(slope)


def test_slogdet_of_a_singular_matrix_goes_by_the_formula() -> None:
    """Cofactors over 0, and no exception; the other matrices of a stack are not touched by it."""
    a = np.stack([REGULAR, np.array([[1.0, 2, 0], [2, 4, 0], [0, 0, 1]])])
    with np.errstate(all="ignore"):
        found = gradient(lambda x: gnp.linalg.slogdet(x).logabsdet, a)
    np.testing.assert_allclose(found[0], np.linalg.inv(REGULAR).T, rtol=1e-12)
    assert found[1][:2, :2].tolist() == [[INF, -INF], [-INF, INF]]
    assert not np.isfinite(found[1]).any()


def test_slogdet_gives_a_named_pair() -> None:
    sign, log = found = gnp.linalg.slogdet(tensor(REGULAR))
    assert found.sign is sign
    assert found.logabsdet is log


# ---------------------------------------------------------------- norms at their edges

INF = np.inf
HALF = 0.5
EDGES: list[tuple[str, Any, Any, Any]] = [
    ("2 at 0", lambda x: gnp.linalg.norm(x), [0.0, 0.0], [0, 0]),
    ("2 at complex 0", lambda x: gnp.linalg.norm(x), [0j, 0j], [0, 0]),
    ("2 along an axis, a row of 0", lambda x: gnp.linalg.norm(x, axis=1), [[0.0, 0.0], [3, 4]], [[0, 0], [0.6, 0.8]]),
    ("fro at 0", lambda x: gnp.linalg.norm(x, "fro"), [[0.0, 0.0]], [[0, 0]]),
    ("3 at 0", lambda x: gnp.linalg.norm(x, 3), [0.0, 0.0], [0, 0]),
    ("3 with a 0", lambda x: gnp.linalg.norm(x, 3), [0.0, -2.0], [0, -1]),
    ("1.5 at 0", lambda x: gnp.linalg.norm(x, 1.5), [0.0, 0.0], [0, 0]),
    ("half with a 0", lambda x: gnp.linalg.norm(x, 0.5), [0.0, 2.0], [0, 1]),
    ("1", lambda x: gnp.linalg.norm(x, 1), [0.0, -2.0, 2.0], [0, -1, 1]),
    ("0", lambda x: gnp.linalg.norm(x, 0), [0.0, -2.0, 2.0], [0, 0, 0]),
    ("inf at a tie", lambda x: gnp.linalg.norm(x, INF), [1.0, -2.0, 2.0], [0, -HALF, HALF]),
    ("-inf at a tie", lambda x: gnp.linalg.norm(x, -INF), [1.0, -1.0, 2.0], [HALF, -HALF, 0]),
    ("inf at 0", lambda x: gnp.linalg.norm(x, INF), [0.0, 0.0], [0, 0]),
    ("matrix inf at a tie", lambda x: gnp.linalg.norm(x, INF), [[1.0, 2.0], [3.0, 0.0]], [[HALF, HALF], [HALF, 0]]),
    ("matrix 1 at a tie", lambda x: gnp.linalg.norm(x, 1), [[1.0, 2.0], [2.0, -1.0]], [[HALF, HALF], [HALF, -HALF]]),
    ("matrix 2 at a tie", lambda x: gnp.linalg.norm(x, 2), [[2.0, 0.0], [0.0, 2.0]], [[HALF, 0], [0, HALF]]),
    ("nuc at a tie", lambda x: gnp.linalg.norm(x, "nuc"), [[2.0, 0.0], [0.0, -2.0]], [[1, 0], [0, -1]]),
]


@pytest.mark.parametrize(("f", "point", "expected"), [e[1:] for e in EDGES], ids=[e[0] for e in EDGES])
def test_norms_at_the_edge(f: Any, point: Any, expected: Any) -> None:
    np.testing.assert_allclose(gradient(f, point), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("a", [TWO_SHORT, ZERO, ONE_SHORT])
def test_the_nuclear_norm_has_a_subgradient_at_lower_rank(a: np.ndarray) -> None:
    """Within the unit ball of the spectral norm, and supporting: <G, A> is the norm."""
    g = gradient(lambda x: gnp.linalg.norm(x, "nuc"), a)
    assert np.linalg.norm(g, 2) <= 1 + 1e-12
    np.testing.assert_allclose(np.sum(g * a), np.linalg.norm(a, "nuc"), rtol=1e-12, atol=1e-14)


def test_a_norm_of_0_has_a_second_derivative_of_0() -> None:
    assert hessian_times(gnp.linalg.norm, [0.0, 0.0], np.ones(2)).tolist() == [0, 0]


def test_norms_keep_halves_and_widen_integers() -> None:
    assert gnp.linalg.norm(tensor(np.float16([3, 4]))).dtype == np.float16
    assert gnp.linalg.norm(tensor([3, 4])).item() == 5.0
    assert gnp.linalg.norm(tensor([3, 4]), 3, 0).dtype == np.float64


# ---------------------------------------------------------------- one factorisation


class Counted:
    """LAPACK's functions, with the calls counted by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        original = lapack.routine

        def counted(name: str, dtype: Any, *arrays: Any) -> Any:
            function = original(name, dtype, *arrays)
            return lambda *args, **keywords: (self.calls.append(name), function(*args, **keywords))[1]

        def refused(*args: Any) -> Any:
            raise AssertionError("factored anew")

        monkeypatch.setattr(lapack, "routine", counted)
        monkeypatch.setattr(np.linalg, "solve", refused)
        monkeypatch.setattr(np.linalg, "inv", refused)
        monkeypatch.setattr(np.linalg, "det", refused)


@pytest.mark.parametrize("shape", [(3, 3), (2, lapack.LARGE, lapack.LARGE)])
def test_solve_factors_once_for_derivatives_of_every_order(shape: tuple[int, ...], monkeypatch: Any) -> None:
    a = RANDOM.normal(size=shape) + 9 * np.eye(shape[-1])
    x = tensor(a)
    counted = Counted(monkeypatch)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(gnp.sum(gnp.linalg.solve(x, np.ones((shape[-1], 2))) ** 2))
        slope, x.grad = gnp.sum(x.grad**2), None
        outer.backward(slope)
    matrices = len(a) if a.ndim == 3 else 1
    assert counted.calls.count("getrf") == matrices
    # Forward; backward; backward of both. One solution serves the cotangents of a and of b.
    assert counted.calls.count("getrs") == 4 * matrices


def test_det_shares_its_factors(monkeypatch: Any) -> None:
    x = tensor(RANDOM.normal(size=(40, 40)) / 40 + np.eye(40))
    counted = Counted(monkeypatch)
    for f in (gnp.linalg.det, lambda t: gnp.linalg.slogdet(t).logabsdet):
        manager = GradManager().attach(x)
        with manager:
            manager.backward(f(x))
    assert counted.calls == ["getrf", "getri"] * 2


def test_an_unrecorded_determinant_is_not_factored(monkeypatch: Any) -> None:
    monkeypatch.setattr(lapack, "factor", None)
    assert isinstance(gnp.linalg.det(tensor(np.eye(40))), Tensor)


def derivatives_of_all() -> list[np.ndarray]:
    """Gradients through everything that asks SciPy for LAPACK, and Hessians."""
    large = 0.1 * np.random.default_rng(3).normal(size=(2, 40, 40)) + np.eye(40)
    found = []
    for a in (REGULAR, large, large[0], np.stack([REGULAR, REGULAR.T])):
        b = np.linspace(0, 1, a.shape[-1])
        for f in (
            lambda x, b=b: gnp.sum(gnp.linalg.solve(x, b) ** 2),
            lambda x: gnp.sum(gnp.linalg.det(x)),
            lambda x: gnp.sum(gnp.linalg.slogdet(x)[1]),
            lambda x: gnp.sum(gnp.linalg.cholesky(x @ x.mT + gnp.eye(x.shape[-1])) ** 2),
        ):
            found += [gradient(f, a), hessian_times(f, a, np.ones(a.shape))]
    return found


def test_without_scipy_the_derivatives_are_the_same(monkeypatch: Any) -> None:
    expected = derivatives_of_all()
    monkeypatch.setattr(lapack, "HAS_SCIPY", False)
    monkeypatch.setattr(lapack, "routine", None)
    for found, wanted in zip(derivatives_of_all(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["expm", "solve_triangular"])
@pytest.mark.parametrize("argument", [np.eye(2), tensor(np.eye(2))], ids=["array", "tensor"])
def test_what_needs_scipy_says_so(name: str, argument: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    given = (argument,) if name == "expm" else (argument, np.ones(2))
    with pytest.raises(errors.MissingDependencyError, match=f"linalg.{name} needs SciPy.*pip install scipy"):
        getattr(gnp.linalg, name)(*given)


def test_importing_gradmgr_does_not_import_scipy() -> None:
    code = "import gradmgr.numpy, sys; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # our own text
    assert done.stdout == "False\n"


# ---------------------------------------------------------------- conventions


def test_cholesky_reads_one_triangle_which_receives_all_of_the_gradient() -> None:
    a = REGULAR @ REGULAR.T + 1j * (REGULAR - REGULAR.T)
    junk = np.tril(a) + np.triu(np.full((3, 3), 7 + 2j), 1)
    for upper, given in ((False, junk), (True, junk.conj().T)):
        found = gnp.linalg.cholesky(tensor(given), upper=upper)
        np.testing.assert_allclose(found.numpy(), np.linalg.cholesky(given, upper=upper), rtol=1e-12, atol=1e-12)
        g = gradient(lambda x, upper=upper: gnp.linalg.cholesky(x, upper=upper) * (1 + 2j), given)
        unread = np.triu_indices(3, 1) if not upper else np.tril_indices(3, -1)
        assert not g[unread].any()
        assert not g.diagonal().imag.any()
        of_a = gradient(lambda x, upper=upper: gnp.linalg.cholesky(x, upper=upper) * (1 + 2j), a)
        np.testing.assert_array_equal(g, of_a)


def of_pinv(x: Any) -> Any:
    return gnp.linalg.pinv(x, hermitian=True) * (1 + 2j)


def test_the_lower_triangle_of_a_hermitian_matrix_receives_all_of_the_gradient_of_pinv() -> None:
    a = REGULAR + REGULAR.T + 1j * (REGULAR - REGULAR.T)
    unread = np.triu_indices(3, 1)
    assert not gradient(of_pinv, a)[unread].any()
    direction = np.tril(a, -1) * (2 + 1j)
    h = hessian_times(of_pinv, a, direction)
    assert not h[unread].any()
    np.testing.assert_array_equal(h, hessian_times(of_pinv, a, direction + np.triu(a, 1)))  # what is not read, added


def test_pinv_of_a_hermitian_matrix_reads_one_triangle_in_its_derivatives_too() -> None:
    a = REGULAR + REGULAR.T + 1j * (REGULAR - REGULAR.T)
    junk = np.tril(a) + np.triu(np.full((3, 3), 7 + 2j), 1) + 3j * np.eye(3)
    np.testing.assert_allclose(of_pinv(tensor(junk)).numpy(), of_pinv(tensor(a)).numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradient(of_pinv, junk), gradient(of_pinv, a), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(hessian_times(of_pinv, junk, a), hessian_times(of_pinv, a, a), rtol=1e-12, atol=1e-14)


def test_solve_reads_b_as_a_vector_only_where_it_has_one_axis() -> None:
    """NumPy 2's rule."""
    stack = tensor(np.stack([REGULAR, REGULAR]))
    assert gnp.linalg.solve(stack, np.ones(3)).shape == (2, 3)
    assert gnp.linalg.solve(stack, np.ones((3, 3))).shape == (2, 3, 3)
    with pytest.raises(ValueError, match=r"solve: a of shape \(2, 3, 3\) does not fit b of shape \(2, 3\)"):
        gnp.linalg.solve(stack, np.ones((2, 3)))


def test_lstsq_gives_all_of_numpys_results() -> None:
    b = RANDOM.normal(size=(4, 2))
    full = RANDOM.normal(size=(4, 3))
    for a in (full, full[:, [0, 1, 1]], full[:3], full.astype(np.float32)):
        for right in (b[: len(a)], b[: len(a), 0]):
            expected = np.linalg.lstsq(a, right)
            for found, wanted in zip(gnp.linalg.lstsq(tensor(a), right), expected, strict=True):
                assert isinstance(found, Tensor)
                assert (found.shape, found.dtype) == (np.shape(wanted), wanted.dtype)
                tolerance = 1e-5 if wanted.dtype == np.float32 else 1e-12
                np.testing.assert_allclose(found.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_lstsq_with_equal_singular_values_has_derivatives_of_two_orders() -> None:
    """The singular vectors are then not determined, but the solution is."""
    assert gradcheck(lambda a: gnp.linalg.lstsq(a, np.arange(4.0))[0], tensor(np.eye(4, 3)), order=2)


def test_cond_of_a_singular_matrix_is_infinite_and_that_of_a_nan_is_nan() -> None:
    a = np.stack([REGULAR, TWO_SHORT, ZERO, np.full((3, 3), np.nan)])
    with np.errstate(all="ignore"):
        for p in ("fro", 1, -INF):
            expected = np.linalg.cond(a, p)
            np.testing.assert_allclose(gnp.linalg.cond(tensor(a), p).numpy(), expected, rtol=1e-10)
        assert gnp.linalg.cond(tensor(ZERO)).item() == INF
        assert gnp.linalg.cond(tensor(ZERO), -2).item() == INF
        g = gradient(lambda x: gnp.linalg.cond(x, 1)[0], a)
    assert np.isfinite(g[0]).all()
    assert (g[1:3] == 0).all()


def test_integers_become_float64_and_are_constants() -> None:
    a = tensor([[2, 1], [1, 3]])
    for found, wanted in (
        (gnp.linalg.inv(a), np.linalg.inv([[2, 1], [1, 3]])),
        (gnp.linalg.det(a), np.float64(5)),
        (gnp.linalg.solve(a, tensor([3, 5])), np.array([0.8, 1.4])),
        (gnp.linalg.solve(a, np.float32([3, 5])), np.array([0.8, 1.4])),
        (gnp.linalg.matrix_power(a, -1), np.linalg.inv([[2, 1], [1, 3]])),
    ):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    assert gnp.linalg.matrix_power(a, 3).dtype == np.int64
    assert gnp.linalg.matrix_power(a, 0).tolist() == [[1, 0], [0, 1]]
    assert gnp.linalg.trace(a).dtype == np.int64


def test_lists_that_hold_tensors_are_matrices() -> None:
    t = tensor(2.0)
    manager = GradManager().attach(t)
    with manager:
        manager.backward(gnp.linalg.det([[t, 1.0], [1.0, t]]))
    np.testing.assert_allclose(t.grad.item(), 4, rtol=1e-12)


def test_plain_arrays_give_numpys_own_results() -> None:
    assert type(gnp.linalg.slogdet(REGULAR)) is type(np.linalg.slogdet(REGULAR))
    assert type(gnp.linalg.matrix_rank(REGULAR)) is type(np.linalg.matrix_rank(REGULAR))
    assert type(gnp.linalg.lstsq(REGULAR, np.ones(3))) is tuple
    assert isinstance(gnp.linalg.expm(REGULAR), np.ndarray)
    found = gnp.linalg.solve_triangular(REGULAR, np.ones(3), lower=True)
    np.testing.assert_array_equal(found, scipy.linalg.solve_triangular(REGULAR, np.ones(3), lower=True))


def test_a_long_cotangent_costs_expm_no_precision() -> None:
    g = gradient(gnp.linalg.expm, REGULAR)
    np.testing.assert_allclose(gradient(lambda x: gnp.linalg.expm(x) * 1e12, REGULAR), g * 1e12, rtol=1e-12)


def test_matrix_rank_counts_as_numpy() -> None:
    stack = np.stack([REGULAR, ONE_SHORT, TWO_SHORT, ZERO])
    for a in (stack, ONE_SHORT, np.zeros((0, 3, 3)), np.ones(3), np.zeros(2)):
        found = gnp.linalg.matrix_rank(tensor(a))
        assert isinstance(found, Tensor)
        np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_rank(a))
    assert gnp.linalg.matrix_rank(tensor(np.zeros((3, 0)))).item() == 0  # NumPy up to 2.3 raises
    for keywords in ({"tol": [1.0, 2.0, 9.0, 0.0]}, {"rtol": [0.5, 0.1, 0.0, 1.0]}, {"tol": 3.0}):
        found = gnp.linalg.matrix_rank(tensor(stack), **keywords)
        np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_rank(stack, **keywords))


def test_the_order_of_a_chain_is_the_cheapest() -> None:
    """The example of Cormen et al., Introduction to Algorithms, 15.2."""
    splits = linalg._cheapest_splits([30, 35, 15, 5, 10, 20, 25])
    assert (splits[0, 5], splits[0, 2], splits[3, 5]) == (2, 0, 4)


# ---------------------------------------------------------------- errors

SQUARE, FLAT, OBLONG, HALVES = np.eye(3), np.ones(3), np.ones((2, 3)), np.eye(2, dtype=np.float16)
SINGULAR = np.ones((2, 2))
CUBE = np.ones((2, 2, 4))
L = gnp.linalg
REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    *[(f, FLAT, LinAlgError, "1-dimensional") for f in (L.inv, L.det, L.slogdet, L.cholesky, L.pinv, L.cond)],
    *[(f, OBLONG, LinAlgError, r"square.*\(2, 3\)") for f in (L.inv, L.det, L.slogdet, L.cholesky, L.expm)],
    *[
        (f, HALVES, TypeError, "float16 is unsupported in linalg")
        for f in (L.inv, L.det, L.slogdet, L.cholesky, L.pinv, L.expm, L.cond, L.matrix_rank)
    ],
    (lambda a: L.solve(a, FLAT), OBLONG, LinAlgError, "solve: .*square"),
    (lambda a: L.solve(a, 1.0), SQUARE, ValueError, "solve: "),
    (lambda a: L.solve(a, np.ones((2, 2))), SQUARE, ValueError, "solve: "),
    (lambda a: L.solve(np.ones((2, 3, 3)), a), np.ones((5, 3, 3)), ValueError, "solve: the stacks .* broadcast"),
    (lambda a: L.solve(a, HALVES), np.eye(2), TypeError, "solve: array type float16"),
    (lambda a: L.solve(a, np.ones(2)), SINGULAR, LinAlgError, "solve: Singular matrix"),
    (lambda a: L.solve(a, np.ones(2)), np.stack([np.eye(2), SINGULAR]), LinAlgError, "solve: Singular matrix"),
    (lambda a: L.solve(a, np.ones(40)), np.ones((2, 40, 40)), LinAlgError, "solve: Singular matrix"),
    (L.inv, SINGULAR, LinAlgError, "inv: Singular matrix"),
    (lambda a: L.matrix_power(a, -1), SINGULAR, LinAlgError, "Singular matrix"),
    (lambda a: L.matrix_power(a, 0.5), SQUARE, TypeError, "matrix_power: exponent must be an integer"),
    (lambda a: L.matrix_power(a, 2), OBLONG, LinAlgError, "matrix_power: .*square"),
    (L.cholesky, -SQUARE, LinAlgError, "cholesky: .*positive definite"),
    (lambda a: L.cholesky(a, upper=True), -SQUARE, LinAlgError, "cholesky: .*positive definite"),
    (lambda a: L.pinv(a, 1e-3, rtol=1e-3), SQUARE, ValueError, "pinv: `rtol` and `rcond`"),
    (lambda a: L.pinv(a, hermitian=True), OBLONG, LinAlgError, "pinv: .*square"),
    (lambda a: L.lstsq(a, np.ones(3)), OBLONG, LinAlgError, "lstsq: Incompatible dimensions"),
    (lambda a: L.lstsq(a, np.ones(2)), CUBE, LinAlgError, "lstsq: 3-dimensional array given"),
    (lambda a: L.norm(a, "nuc"), FLAT, ValueError, "norm: Invalid norm order 'nuc' for vectors"),
    (lambda a: L.norm(a, 3), OBLONG, ValueError, "norm: Invalid norm order 3 for matrices"),
    (lambda a: L.norm(a, 2), CUBE, ValueError, "norm: Improper number of dimensions"),
    (lambda a: L.norm(a, axis=(0, 0)), CUBE, ValueError, "norm: Duplicate axes"),
    (lambda a: L.norm(a, axis=(0, -2)), OBLONG, ValueError, "norm: Duplicate axes"),
    (lambda a: L.norm(a, axis="x"), OBLONG, (TypeError, ValueError), "axis|invalid literal"),
    (lambda a: L.norm(a, axis=5), OBLONG, np.exceptions.AxisError, "axis 5 is out of bounds"),
    *[
        (lambda a, o=o: L.norm(a, o), np.ones(of), ValueError, "norm: zero-size")
        for o, of in ((-INF, 0), (-INF, (0, 2)), (-1, (2, 0)), (-2, (0, 2)))
    ],
    (lambda a: L.matrix_norm(a, ord="x"), CUBE, ValueError, "matrix_norm: Invalid norm order 'x' for matrices"),
    (lambda a: L.vector_norm(a, ord="fro"), CUBE, ValueError, "vector_norm: Invalid norm order 'fro' for vectors"),
    (L.cond, np.ones((0, 0)), LinAlgError, "cond: .*empty"),
    (lambda a: L.cond(a, 1), OBLONG, LinAlgError, "cond: .*square"),
    (lambda a: L.tensorsolve(a, np.ones(3)), CUBE, LinAlgError, "tensorsolve: .*requirement"),
    (lambda a: L.tensorinv(a, 0), CUBE, ValueError, "tensorinv: Invalid ind"),
    (lambda a: L.tensorinv(a, 1), CUBE, LinAlgError, "tensorinv: .*square"),
    (lambda a: L.multi_dot([a]), OBLONG, ValueError, "multi_dot: Expecting at least two"),
    (lambda a: L.multi_dot([a, a, a]), OBLONG, ValueError, "multi_dot: shapes .* not aligned"),
    (lambda a: L.multi_dot([SQUARE, a, SQUARE]), FLAT, LinAlgError, "multi_dot: 1-dimensional"),
    (lambda a: L.outer(a, FLAT), OBLONG, ValueError, "outer: .*one-dimensional"),
    (lambda a: L.cross(a, np.ones(2)), FLAT, ValueError, "cross: .*3-dimensional"),
    (lambda a: L.matrix_rank(a, 1.0, rtol=1.0), OBLONG, ValueError, "matrix_rank: `tol` and `rtol`"),
    (lambda a: L.solve_triangular(a, FLAT), OBLONG, ValueError, "solve_triangular: expected square"),
    (lambda a: L.solve_triangular(a, np.ones(2)), SQUARE, ValueError, "solve_triangular: "),
    (
        lambda a: L.solve_triangular(a, FLAT),
        np.tril(np.ones((3, 3)), -1),
        LinAlgError,
        "solve_triangular: .*diagonal 0",
    ),
    (lambda a: L.solve_triangular(a, np.ones(2)), np.zeros((2, 2, 2)), LinAlgError, "solve_triangular: [Ss]ingular"),
    (lambda a: L.solve_triangular(a, FLAT * np.nan), SQUARE, ValueError, "must not contain infs or NaNs"),
    (lambda a: L.solve_triangular(a, FLAT, trans=3), SQUARE, ValueError, "trans is 0, 1, 2"),
    (lambda a: L.solve_triangular(a, FLAT, overwrite_b=True), SQUARE, ValueError, "overwrite_b"),
]


@pytest.mark.parametrize(("f", "a", "kind", "text"), REFUSED)
def test_wrong_shapes_raise_and_record_nothing(f: Any, a: Any, kind: Any, text: str) -> None:
    x = tensor(a)
    with GradManager().attach(x) as manager:
        before = len(manager._tape.entries)
        with pytest.raises(kind, match=text):
            f(x)
        assert len(manager._tape.entries) == before


@pytest.mark.parametrize(("f", "a", "kind", "text"), REFUSED)
def test_numpy_refuses_the_same(f: Any, a: Any, kind: Any, text: str) -> None:
    if "overwrite_b" in text or "trans is" in text or (HALVES is a and f is L.expm):
        pytest.skip("SciPy takes it")
    with pytest.raises(kind):
        f(a)


@pytest.mark.parametrize(
    "call", ["inv(a)", "solve(a, b)", "cholesky(-a)", "solve_triangular(0 * a, b)", "matrix_power(a, -1)"]
)
def test_an_error_of_lapack_names_the_function_once(call):
    a, b = tensor([[1.0, 1.0], [1.0, 1.0]]), tensor([1.0, 2.0])
    name = call.partition("(")[0]
    with GradManager().attach(a), pytest.raises(np.linalg.LinAlgError) as caught:
        eval(f"gnp.linalg.{call}", {"gnp": gnp, "a": a, "b": b})  # noqa: S307  # our own text
    assert str(caught.value).startswith(f"{name}: ")
    assert str(caught.value).count(name) == 1


def test_the_order_of_a_norm_has_no_derivative_and_says_so() -> None:
    x, p = tensor(np.arange(1.0, 5.0, dtype=np.float32)), tensor(3.0)
    for f in (L.norm, L.vector_norm):
        assert isinstance(f(x.numpy(), ord=p), Tensor)
        for order in (p, np.array(3.0), np.float64(3.0)):
            found = f(x, ord=order)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found.numpy(), np.linalg.norm(x.numpy(), 3), rtol=1e-6)
        for data in (x, x.numpy()):
            with GradManager().attach(p), pytest.raises(errors.UnsupportedFunctionError, match="no derivative in ord"):
                f(data, ord=p)
    square = tensor(np.eye(2))
    with GradManager().attach(p), pytest.raises(errors.UnsupportedFunctionError, match="no derivative in ord"):
        L.matrix_norm(square, ord=p)
    with GradManager().attach(p), pytest.raises(errors.UnsupportedFunctionError, match="cond has no derivative in p"):
        L.cond(square, p)


def test_cutoffs_that_are_tensors_and_cutoffs_of_the_wrong_shape() -> None:
    a, b = np.array([[2.0, 0.0], [0.0, 0.1]]), np.array([1.0, 1.0])
    r = tensor(0.5)
    with GradManager().attach(r):
        np.testing.assert_array_equal(L.pinv(a, r).numpy(), np.linalg.pinv(a, 0.5))
        np.testing.assert_array_equal(L.pinv(a, rtol=r).numpy(), np.linalg.pinv(a, 0.5))
        np.testing.assert_allclose(L.lstsq(a, b, r)[0].numpy(), np.linalg.lstsq(a, b, 0.5)[0], rtol=1e-14)
    for f, m in ((np.linalg.pinv, a), (L.pinv, tensor(a))):
        with pytest.raises(ValueError):  # noqa: PT011  # NumPy's text is another
            f(m, rtol=np.array([0.1, 0.2]))


def test_the_rank_of_a_vector_of_halves() -> None:
    assert L.matrix_rank(tensor(np.ones(3, np.float16))).item() == np.linalg.matrix_rank(np.ones(3, np.float16)) == 1


# By name: functions that are homogeneous, f(s x) = s f(x), so that their gradient does not depend on the scale.
HOMOGENEOUS = {
    "norm": lambda x: L.norm(x),
    "norm of columns": lambda x: L.norm(x, axis=0).sum(),
    "norm of order 3": lambda x: L.norm(x.ravel(), 3),
    "norm of order 1.5": lambda x: L.norm(x, 1.5, axis=1).sum(),
    "vector_norm": lambda x: L.vector_norm(x, ord=2.5),
    "matrix_norm": lambda x: L.matrix_norm(x),
    "std": gnp.std,
    "std along an axis": lambda x: gnp.std(x, axis=1, ddof=1).sum(),
}
SCALES = [("f2", 200.0), ("f2", 2.0**-12), ("f4", 1e20), ("f4", 1e-22), ("f8", 1e200), ("f8", 1e-180)]


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_squares_that_overflow_or_vanish_harm_no_norm(name: str, dtype: str, scale: float) -> None:
    function = HOMOGENEOUS[name]
    near_1 = np.array([[3.0, -4.0, 0.5], [1.0, 2.0, -1.5]])
    x = (near_1 * scale).astype(dtype)
    expected = functional.grad(function)(tensor(near_1)).numpy()
    tolerance = {"rtol": 1e-2 if dtype == "f2" else 1e-5, "atol": 1e-3 if dtype == "f2" else 1e-6}
    direction = np.array([[1.0, -0.5, 0.25], [0.5, 2.0, 1.0]])
    for call in (function, compile(function), lambda x: vmap(function)(x[None])[0]):
        np.testing.assert_allclose(call(tensor(x)).numpy() / scale, function(tensor(near_1)).numpy(), **tolerance)
        np.testing.assert_allclose(functional.grad(call)(tensor(x)).numpy(), expected, **tolerance)
    _, forward = functional.jvp(function, tensor(x), tensor(direction.astype(dtype)))
    np.testing.assert_allclose(forward.numpy(), np.sum(expected * direction), **tolerance)


@pytest.mark.parametrize("size", [0.0, INF, np.nan])
def test_norms_of_numbers_without_a_scale_are_as_numpys(size: float) -> None:
    for x in (np.full(3, size), np.array([1.0, size, -2.0])):
        for order in (None, 3, 1.5):
            np.testing.assert_array_equal(L.norm(tensor(x), order).numpy(), np.linalg.norm(x, order))
    assert L.norm(tensor(np.zeros((0, 2))), axis=0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_the_hessian_of_a_norm_is_nan_at_most_in_the_row_and_column_of_an_element_that_is_0(strategy: str) -> None:
    """Of order p it is (p - 1) (diag(x^(p-2)) - (x x^T)^(p-1) n^-p) n^(1-p), infinite where x is 0 and p < 2."""
    x = np.array([1.0, 0.0, 2.0])
    with np.errstate(all="ignore"):
        found = functional.hessian(lambda t: L.norm(t, 1.5), tensor(x), outer_jacobian_strategy=strategy).numpy()
    n, some = np.linalg.norm(x, 1.5), x[[0, 2]]
    expected = 0.5 * (np.diag(some**-0.5) - np.outer(some, some) ** 0.5 * n**-1.5) * n**-0.5
    np.testing.assert_allclose(found[np.ix_([0, 2], [0, 2])], expected, rtol=1e-12)
