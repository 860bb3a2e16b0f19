"""Sparse matrices of SciPy beside Tensors, and solvers by scipy.sparse.linalg's names."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg

import gradmgr
from gradmgr import GradManager, Tensor, errors, functional, gradcheck, gradgradcheck, sparse, tensor, vmap

RANDOM = np.random.default_rng(0)
DENSE = RANDOM.normal(size=(4, 6)) * (RANDOM.random((4, 6)) < 0.6)
SQUARE = RANDOM.normal(size=(6, 6)) * (RANDOM.random((6, 6)) < 0.4) + 4 * np.eye(6)
A = sp.csr_array(SQUARE)
DEFINITE = sp.csr_array(SQUARE @ SQUARE.T)
B = RANDOM.normal(size=6)


def made(dense, name):
    """The dense array in a format of SciPy's, "csr_array" or "csr_matrix" and so on."""
    return getattr(sp, name)(dense)


FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
KINDS = [f"{name}_{kind}" for name in FORMATS for kind in ("array", "matrix")]

# ---------------------------------------------------------------- products


@pytest.mark.parametrize("name", KINDS)
def test_products_of_scipys_matrices_have_derivatives(name):
    matrix = made(DENSE, name)
    for call, expected, shape in (
        (lambda x: matrix @ x, lambda x: DENSE @ x, (6,)),
        (lambda x: matrix @ x, lambda x: DENSE @ x, (6, 2)),
        (lambda x: matrix.dot(x), lambda x: DENSE @ x, (6, 1)),
        (lambda x: x @ matrix, lambda x: x @ DENSE, (4,)),
        (lambda x: x @ matrix, lambda x: x @ DENSE, (2, 4)),
    ):
        x = RANDOM.normal(size=shape)
        y = call(tensor(x))
        assert type(y) is Tensor
        np.testing.assert_allclose(y, expected(x), rtol=1e-13)
        assert gradcheck(call, [tensor(x)], check_forward_ad=True)
        with GradManager().attach(t := tensor(x)) as gm:
            y = call(t)
            gm.backward(y, np.ones(y.shape))
        np.testing.assert_allclose(t.grad, functional.vjp(expected, tensor(x), np.ones(y.shape))[1])


@pytest.mark.parametrize("dtype", ["f4", "i4", "c16", "f2"])
def test_dtypes_of_products_are_numpys(dtype):
    x = np.ones(6, dtype)
    for other in ("f8", "f4", "i8"):
        matrix = A.astype(other)
        y = matrix @ tensor(x)
        assert y.dtype == np.result_type(dtype, other)
        np.testing.assert_allclose(y, matrix @ x.astype("c16" if dtype == "c16" else "f8"), rtol=1e-5)


@pytest.mark.parametrize("name", [kind for kind in KINDS if kind[:3] in ("csr", "csc", "coo", "bsr")])
def test_nonzeros_may_be_a_tensor(name):
    matrix = made(DENSE, name)
    values = RANDOM.normal(size=matrix.data.shape)
    other = matrix.copy()
    other.data[...] = values
    operand = sparse.with_data(matrix, tensor(values))
    assert (operand.shape, operand.ndim, operand.nnz, operand.dtype) == ((4, 6), 2, values.size, np.dtype("f8"))
    np.testing.assert_array_equal(operand.toarray(), other.toarray())
    np.testing.assert_array_equal(operand.T.toarray(), other.toarray().T)
    x, z = RANDOM.normal(size=(6, 2)), RANDOM.normal(size=4)
    np.testing.assert_allclose(operand @ x, other @ x)
    np.testing.assert_allclose(z @ operand, other.T @ z)  # an array leaves it to the operand
    calls = [lambda v, x: sparse.with_data(matrix, v) @ x, lambda v, x: x.T @ sparse.with_data(matrix, v).T]
    for call in calls:
        assert gradcheck(call, [tensor(values), tensor(x)], check_forward_ad=True)
        assert gradgradcheck(call, [tensor(values), tensor(x)])


def test_plain_values_give_plain_results():
    operand = sparse.with_data(A, 2 * A.data)
    for found in (operand @ B, B @ operand.T, operand.toarray() @ B, sparse.spsolve(A, A @ B) @ A.toarray().T * 2):
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, 2 * SQUARE @ B)
    assert repr(operand) == f"SparseArray({A.nnz} nonzeros of dtype float64, shape=(6, 6))"


def test_vmap_over_columns_and_over_values():
    xs, vs = tensor(RANDOM.normal(size=(5, 6))), tensor(RANDOM.normal(size=(5, A.nnz)) * 0.01 + A.data)
    np.testing.assert_allclose(vmap(lambda x: A @ x)(xs), xs.numpy() @ SQUARE.T)
    np.testing.assert_allclose(vmap(lambda x: sparse.spsolve(A, x))(xs), np.linalg.solve(SQUARE, xs.numpy().T).T)
    found = vmap(lambda v, x: sparse.spsolve(sparse.with_data(A, v), x))(vs, xs)
    for v, x, y in zip(vs, xs, found, strict=True):
        np.testing.assert_allclose(sparse.with_data(A, v) @ y, x)
    slopes = vmap(functional.grad(lambda x: (sparse.spsolve(A, x) ** 2).sum()))(xs)
    inverse = np.linalg.inv(SQUARE)
    np.testing.assert_allclose(slopes, 2 * xs.numpy() @ inverse.T @ inverse)
    np.testing.assert_allclose(vmap(lambda x: sparse.gmres(A, x, rtol=1e-12)[0])(xs), xs.numpy() @ inverse.T)


# ---------------------------------------------------------------- solving


def test_one_factorisation_serves_derivatives_of_every_order(monkeypatch):
    calls = []
    real = scipy.sparse.linalg.splu
    monkeypatch.setattr(scipy.sparse.linalg, "splu", lambda *a, **k: calls.append(1) or real(*a, **k))
    found = functional.hessian(lambda b: (sparse.spsolve(A, b) ** 3).sum(), tensor(B))
    inverse = np.linalg.inv(SQUARE)
    np.testing.assert_allclose(found, inverse.T @ np.diag(6 * inverse @ B) @ inverse)
    assert len(calls) == 1


def test_factors_solve_with_the_transposed_and_the_adjoint():
    values = A.data + 1j * RANDOM.normal(size=A.nnz)
    dense = sp.csr_array((values, A.indices, A.indptr), A.shape).toarray()
    for b in (B, RANDOM.normal(size=(6, 2)) + 1j):
        for way, matrix in (("N", dense), ("T", dense.T), ("H", dense.conj().T)):
            lu = sparse.splu(sparse.with_data(A, tensor(values)))
            assert lu.shape == (6, 6)
            np.testing.assert_allclose(lu.solve(b, way), np.linalg.solve(matrix, b))
    np.testing.assert_allclose(sparse.factorized(A)(tensor(B)), np.linalg.solve(SQUARE, B))


def test_dtypes_of_solutions_are_those_of_linalg():
    for of_a, of_b in (("f4", "f8"), ("f8", "f4"), ("f4", "f4"), ("f8", "c16"), ("f4", "c16"), ("i8", "f4")):
        matrix = A.astype(of_a) if of_a != "i8" else sp.csr_array(np.eye(6, dtype=int) * 2)
        b = B.astype(of_b)
        found, expected = sparse.spsolve(matrix, tensor(b)), np.linalg.solve(matrix.toarray(), b)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5 if found.dtype == "f4" else 1e-12)


@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_iterations_take_scipys_arguments(name):
    solve = getattr(sparse, name)
    seen = []
    more = {"callback_type": "x"} if name == "gmres" else {}
    m = sp.diags_array(1 / DEFINITE.diagonal())
    expected = np.linalg.solve(DEFINITE.toarray(), B)
    x, info = solve(DEFINITE, tensor(B), tensor(expected + 1e-3), rtol=1e-12, M=m, callback=seen.append, **more)
    assert info == 0
    assert seen[-1].shape == (6,)
    np.testing.assert_allclose(x, expected, rtol=1e-9)
    operand = lambda v: sparse.with_data(DEFINITE, v)
    symmetric = lambda v: operand(v + 0) if name == "gmres" else _symmetrised(v)
    call = lambda v, b: solve(symmetric(v), b, rtol=1e-14, M=m)[0]
    assert gradcheck(call, [tensor(DEFINITE.data), tensor(B)], check_forward_ad=True)
    assert gradgradcheck(call, [tensor(DEFINITE.data), tensor(B)])


def _symmetrised(v):
    """The definite matrix with the mean of its values and those of its transpose."""
    numbers = sp.csr_array((np.arange(1.0, 1 + DEFINITE.nnz), DEFINITE.indices, DEFINITE.indptr), DEFINITE.shape)
    partner = numbers.T.tocsr()
    partner.sort_indices()
    return sparse.with_data(DEFINITE, (v + v[partner.data.astype(int) - 1]) / 2)


def test_an_iteration_that_has_not_converged_says_so():
    x, info = sparse.cg(DEFINITE, tensor(B), rtol=1e-12, maxiter=1)
    assert info == 1
    b = tensor(B)
    with GradManager().attach(b) as gm:
        x, info = sparse.cg(DEFINITE, b, rtol=1e-12, maxiter=1)
        with pytest.raises(np.linalg.LinAlgError, match=r"derivative of cg: .* not solved to rtol=1e-12 \(info=1\)"):
            gm.backward(x.sum())
    assert b.grad is None


def test_compiled_functions_replay_products_and_solutions():
    x, lu = tensor(B), sparse.splu(A)
    gm = GradManager().attach(x)

    @gradmgr.compile
    def step(b):
        with gm:
            y = sparse.spsolve(sparse.with_data(A, (1 + x[0] ** 2) * A.data), x)
            gm.backward(((A @ x - b) ** 2).sum() + (lu.solve(x) ** 2).sum() + y.sum())
        found, x.grad = x.grad, None
        return found

    for k in range(4):
        found = step(np.full(6, k / 2))
        np.testing.assert_array_equal(found, step.function(np.full(6, k / 2)))
    assert "1 variant" in step.explain()


def test_a_compiled_iteration_runs_eagerly_and_says_why():
    @gradmgr.compile
    def solve(b):
        return sparse.cg(DEFINITE, b, rtol=1e-12)[0]

    with pytest.warns(errors.CompileWarning, match="cg says whether it has converged"):
        solve(tensor(B))
    np.testing.assert_allclose(solve(tensor(B)), np.linalg.solve(DEFINITE.toarray(), B))


# ---------------------------------------------------------------- errors


def test_what_is_refused():
    singular, wide, singular_error = sp.csr_array(np.ones((2, 2))), sp.csr_array(DENSE), np.linalg.LinAlgError
    x = tensor(np.ones(3))
    with_data = sparse.with_data
    for kind, text, call in (
        (ValueError, r"A @ x: a sparse array of shape \(6, 6\) does not fit x of shape \(3,\)", lambda: A @ x),
        (ValueError, r"x @ A: .* does not fit x of shape \(2, 3\)", lambda: tensor(np.ones((2, 3))) @ A),
        (ValueError, r"x must be a vector or have two axes", lambda: A @ tensor(np.ones((6, 1, 1)))),
        (TypeError, "the product of two sparse arrays", lambda: with_data(A, A.data) @ A),
        (TypeError, "unsupported operand", lambda: x @ "text"),
        (ValueError, r"with_data takes values in the shape of A\.data", lambda: with_data(A, np.ones(3))),
        (
            TypeError,
            "a dtype that can have gradients; found int64",
            lambda: with_data(A, A.data.astype(int)),
        ),
        (TypeError, r"found format 'dia'; convert it with A\.tocsr\(\)", lambda: with_data(A.todia(), A.data)),
        (TypeError, "with_data takes a sparse array of SciPy or CuPy", lambda: with_data(SQUARE, A.data)),
        (ValueError, r"takes a sparse array of two axes; found shape \(3,\)", lambda: sp.coo_array(np.ones(3)) @ x),
        (
            singular_error,
            r"spsolve: the matrix .* is singular",
            lambda: sparse.spsolve(singular, x[:2]),
        ),
        (singular_error, "splu: the matrix", lambda: sparse.splu(singular)),
        (
            TypeError,
            r"numpy\.ndarray; for dense matrices there is gradmgr\.numpy",
            lambda: sparse.spsolve(SQUARE, B),
        ),
        (
            ValueError,
            r"spsolve takes a square matrix; found shape \(4, 6\)",
            lambda: sparse.spsolve(wide, B),
        ),
        (
            ValueError,
            r"spsolve: a matrix .* does not fit b of shape \(3,\)",
            lambda: sparse.spsolve(A, x),
        ),
        (TypeError, "spsolve takes a dense b", lambda: sparse.spsolve(A, A)),
        (TypeError, "array type float16 is unsupported", lambda: sparse.spsolve(A, B.astype("f2"))),
        (ValueError, "trans must be 'N', 'T' or 'H'; found 'C'", lambda: sparse.splu(A).solve(B, "C")),
        (ValueError, "cg takes b of one axis", lambda: sparse.cg(DEFINITE, np.ones((6, 2)))),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_arrays_of_a_gpu_do_not_meet_scipys_matrices(cupy):
    x = gradmgr.asarray(cupy.asarray(B))
    for call in (
        lambda: A @ x,
        lambda: x @ A,
        lambda: sparse.spsolve(A, x),
        lambda: sparse.with_data(A, cupy.ones(A.nnz)),
    ):
        with pytest.raises(errors.MixedArraysError, match="arrays of both NumPy and CuPy"):
            call()


def test_without_scipy_the_error_names_it(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("scipy"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(errors.MissingDependencyError, match=r"sparse\.spsolve needs SciPy, .*pip install scipy"):
        sparse.spsolve(object(), B)


def test_other_conversions_of_a_tracked_tensor_still_raise():
    x = tensor(B)
    with GradManager().attach(x):
        y = x * 2
        with pytest.raises(errors.TrackedConversionError):
            A.multiply(y)
        with pytest.raises(errors.TrackedConversionError):
            np.asarray(y)
