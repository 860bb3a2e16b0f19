"""Decompositions beyond the samples: equal values, free phases, null spaces, errors, cost."""

import ml_dtypes
import numpy as np
import pytest
from helpers import gradient

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, tensor
from gradmgr._transforms.gradcheck import jvp
from gradmgr.errors import GaugeError
from gradmgr.ops.decompose import _drop

linalg = gnp.linalg
RANDOM = np.random.default_rng(3)
ROTATION = np.linalg.qr(RANDOM.normal(size=(3, 3)))[0]
WEIGHTS = RANDOM.normal(size=(3, 3)) + np.diag([1.0, 2.0, 3.0])
SYMMETRIC = WEIGHTS + WEIGHTS.T
ONE_PAIR = (ROTATION * [1.0, 1.0, 4.0]) @ ROTATION.T  # eigenvalues 1, 1, 4
ONE_PAIR = (ONE_PAIR + ONE_PAIR.T) / 2
RANK_1 = np.outer([1.0, -2.0, 0.5, 1.0], [0.3, 1.0, -1.0])


def along(function, a, direction):
    (t,) = jvp(function, [tensor(a)], [0], [direction])
    return t.numpy()


def reverse_over_reverse(function, a, direction):
    x = tensor(a)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(function(x))
        g, x.grad = x.grad, None
        outer.backward(g, direction)
    return x.grad.numpy()


def forward_over_reverse(function, a, direction):
    def slope(x):
        manager = GradManager().attach(x)
        with manager:
            manager.backward(function(x))
        g, x.grad = x.grad, None
        return g

    return along(slope, a, direction)


def difference(function, a, direction, h=1e-5):
    return (function(a + h * direction) - function(a - h * direction)) / (2 * h)


def of_eigh(rule, xp=gnp):
    return lambda x: rule(xp, *xp.linalg.eigh(x))


def of_svd(rule, xp=gnp, **options):
    return lambda x: rule(xp, *xp.linalg.svd(x, **options))


def random_matrix(*shape, dtype=float):
    a = RANDOM.normal(size=shape)
    return (a + 1j * RANDOM.normal(size=shape)).astype(dtype) if np.dtype(dtype).kind == "c" else a.astype(dtype)


def h(x):
    return np.conj(x).swapaxes(-1, -2)


def in_triangle(g):
    """Return what the lower triangle receives of the gradient by a Hermitian matrix, of which it alone is read."""
    return np.tril(g + h(g), -1) + np.diag(np.diag(g).real)


# ---------------------------------------------------------------- what is known beforehand


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2)])
def test_put_together_again_the_derivative_is_the_identity(shape, dtype):
    a, c = random_matrix(*shape, dtype=dtype), random_matrix(*shape, dtype=dtype)

    def weighed(z):
        return gnp.sum(gnp.real(c.conj() * z))

    k = min(shape[-2:])
    thin = of_svd(lambda xp, u, s, v: weighed((u * s[..., None, :]) @ v), full_matrices=False)
    assert np.allclose(gradient(thin, a), c)
    full = of_svd(lambda xp, u, s, v: weighed((u[..., :k] * s[..., None, :]) @ v[..., :k, :]))
    assert np.allclose(gradient(full, a), c)
    assert np.allclose(gradient(lambda x: weighed(gnp.matmul(*linalg.qr(x))), a), c)
    if shape[-1] == shape[-2]:
        assert np.allclose(gradient(lambda x: weighed(gnp.matmul(*linalg.qr(x, "complete"))), a), c)
        together = of_eigh(lambda xp, w, v: weighed((v * w[..., None, :]) @ xp.conj(v).T))
        assert np.allclose(gradient(together, a + h(a)), in_triangle((c + h(c)) / 2))


@pytest.mark.parametrize("dtype", [float, complex])
def test_sums_of_values_have_the_derivative_of_the_trace(dtype):
    a = random_matrix(4, 4, dtype=dtype)
    eye = np.eye(4)
    assert np.allclose(gradient(lambda x: gnp.sum(linalg.eigvalsh(x)), a + h(a)), eye)
    assert np.allclose(gradient(lambda x: gnp.real(gnp.sum(linalg.eigvals(x))), a), eye)
    assert np.allclose(gradient(lambda x: gnp.real(gnp.sum(linalg.eigvals(x) ** 3)), a), 3 * h(a @ a))
    assert np.allclose(gradient(lambda x: gnp.sum(linalg.svdvals(x) ** 2), a), 2 * a)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_the_triangle_that_eigh_reads_receives_all_of_the_gradient(uplo):
    a = random_matrix(3, 3, dtype=complex)
    g = gradient(lambda x: gnp.sum(linalg.eigvalsh(x, uplo) ** 2), a)  # tr A^2 = |A|^2
    read = np.tril(a, -1) if uplo == "L" else np.triu(a, 1)
    assert np.allclose(g, 4 * read + 2 * np.diag(np.diag(a).real))


def test_stacks_give_what_a_loop_gives():
    a = random_matrix(2, 3, 3)
    for function in (
        lambda x: gnp.sum(gnp.sin(linalg.eigh(x + gnp.swapaxes(x, -1, -2))[0])),
        lambda x: gnp.sum(gnp.abs(linalg.eig(x)[1])),
        lambda x: gnp.sum(gnp.abs(linalg.svd(x)[2]) ** 3),
        lambda x: gnp.sum(linalg.qr(x)[0] ** 3),
    ):
        assert np.allclose(gradient(function, a), [gradient(function, one) for one in a])


def test_one_degenerate_matrix_in_a_stack_leaves_the_others_alone():
    together = of_eigh(lambda xp, w, v: xp.sum((v * w[..., None, :]) @ xp.swapaxes(v, -1, -2)))
    g = gradient(together, np.stack([np.eye(3), SYMMETRIC]))
    assert np.isnan(g[0]).any()
    assert np.allclose(g[1], in_triangle(np.ones((3, 3))))


# ---------------------------------------------------------------- equal eigenvalues


@pytest.mark.parametrize("a", [np.eye(3), np.zeros((3, 3)), ONE_PAIR, np.ones((3, 3))])
def test_symmetric_functions_of_equal_eigenvalues(a):
    """tr f(A) is differentiable everywhere, f'(A) being its gradient."""
    for function in (
        lambda x: gnp.sum(linalg.eigvalsh(x) ** 3),
        of_eigh(lambda xp, w, v: xp.sum(w**3)),
    ):
        assert np.allclose(gradient(function, a), in_triangle(3 * a @ a))
        assert np.allclose(along(function, a, SYMMETRIC), np.sum(3 * a @ a * SYMMETRIC))
    of_any = lambda x: gnp.real(gnp.sum(linalg.eigvals(x) ** 3))  # complex from NumPy 2.5 on
    assert np.allclose(gradient(of_any, a), 3 * a @ a)
    assert np.allclose(along(of_any, a, SYMMETRIC), np.sum(3 * a @ a * SYMMETRIC))


@pytest.mark.parametrize("a", [np.eye(3), ONE_PAIR])
def test_second_derivatives_at_equal_eigenvalues_are_right_or_nan(a):
    def cube(x):
        return gnp.sum(linalg.eigvalsh(x) ** 3)

    expected = 3 * (a @ SYMMETRIC + SYMMETRIC @ a)
    for second in (reverse_over_reverse, forward_over_reverse):
        found = second(cube, a, SYMMETRIC)
        assert np.isnan(found).any() or np.allclose(found, in_triangle(expected))
        trace = second(lambda x: gnp.sum(linalg.eigvalsh(x)), a, SYMMETRIC)
        assert np.isnan(trace).any() or np.allclose(trace, 0)
    found = forward_over_reverse(cube, np.eye(3), np.diag([1.0, 2.0, 3.0]))  # a direction that turns no vector
    assert np.allclose(found, np.diag([6.0, 12.0, 18.0]))
    assert np.allclose(reverse_over_reverse(lambda x: gnp.sum(linalg.eigvalsh(x)), a, SYMMETRIC), 0)


def test_a_projector_on_the_vectors_of_equal_eigenvalues():
    def projected(xp, w, v):
        return xp.sum(WEIGHTS * (v[:, :2] @ v[:, :2].T))

    expected = difference(of_eigh(projected, np), ONE_PAIR, SYMMETRIC)
    assert np.isclose(np.sum(gradient(of_eigh(projected), ONE_PAIR) * SYMMETRIC), expected)
    assert np.isnan(along(of_eigh(projected), ONE_PAIR, SYMMETRIC))  # cannot know what is done with the vectors


@pytest.mark.parametrize("a", [ONE_PAIR, np.diag([0.0, 0.0, 4.0])])
def test_vectors_of_distinct_eigenvalues_keep_their_derivative_where_others_are_equal(a):
    def largest(xp, w, v):
        return xp.sum(WEIGHTS[0] * v[:, -1]) ** 2 * w[-1]

    expected = difference(of_eigh(largest, np), a, SYMMETRIC)
    assert np.isclose(np.sum(gradient(of_eigh(largest), a) * SYMMETRIC), expected)
    assert np.isclose(along(of_eigh(largest), a, SYMMETRIC), expected)


def test_a_share_of_the_sum_with_equal_eigenvalues_that_differ_by_rounding():
    rotations = [np.linalg.qr(RANDOM.normal(size=(3, 3)))[0] for _ in range(20)]
    matrices = [(q * [1.0, 1.0, 4.0]) @ q.T for q in rotations]
    matrices = [a for a in matrices if np.diff(np.linalg.eigvalsh(a))[0] > 0]
    assert matrices

    def share(xp, w, v):
        return xp.sum(WEIGHTS[0] * v[:, -1]) ** 2 * w[-1] / xp.sum(w)

    for a in matrices:
        expected = difference(of_eigh(share, np), a, SYMMETRIC)
        assert np.isclose(np.sum(gradient(of_eigh(share), a) * SYMMETRIC), expected)


def test_what_equal_eigenvalues_leave_open_is_nan():
    def together(xp, w, v):
        return xp.sum(WEIGHTS * ((v * w) @ v.T))

    def of_0(xp, w, v):  # the vectors' cotangents are 0, but not because they are not used
        return xp.sum((v * (w - w[0])) @ v.T)

    for a in (np.eye(3), np.zeros((3, 3)), ONE_PAIR):
        for rule in (together, of_0, lambda xp, w, v: xp.sum(WEIGHTS * v[:, :1] * v[:, :1].T)):
            assert np.isnan(gradient(of_eigh(rule), a)).any()
        assert np.isnan(along(of_eigh(together), a, SYMMETRIC))
    assert np.isclose(along(of_eigh(together), np.eye(3), np.diag([1.0, 2, 3])), WEIGHTS.diagonal() @ [1, 2, 3])
    for a in (np.eye(2), np.zeros((2, 2))):  # the eigenvalues' cotangents are equal, too
        assert np.isnan(gradient(of_eigh(lambda xp, w, v, a=a: xp.sum((v * (w - a[0, 0])) @ v.T)), a)).any()


def test_a_forward_derivative_in_a_direction_that_turns_equal_eigenvalues_only_at_second_order_is_nan():
    """Neither direction turns the first two vectors, but together they do: by s t / (s + t)."""
    a = np.diag([1.0, 1.0, 4.0])
    one, other = np.zeros((2, 3, 3))
    one[0, 2] = one[2, 0] = one[0, 0] = 1.0
    other[1, 2] = other[2, 1] = 1.0
    other[1, 1] = 0.5

    def moved(x):
        return along_tensor(lambda y: linalg.eigh(y)[1] ** 2, x, one)

    (t,) = jvp(moved, [tensor(a)], [0], [other])
    assert np.isnan(t.numpy()).any()


def along_tensor(function, x, direction):
    return jvp(function, [x], [0], [direction])[0]


@pytest.mark.parametrize("n", [30, 200])
def test_close_eigenvalues_do_not_count_as_equal(n):
    a = random_matrix(n, n, dtype=np.float32)
    together = of_eigh(lambda xp, w, v: xp.sum((v * xp.sin(w)) @ v.T))
    g = gradient(together, a + a.T)
    wide = gradient(together, (a + a.T).astype(float))
    assert np.abs(g - wide).max() < 1e-3 * np.abs(wide).max()


def test_defective_matrices_give_nan():
    for a in ([[1.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]):
        assert np.isnan(gradient(lambda x: gnp.real(gnp.sum(linalg.eigvals(x) ** 2)), np.array(a))).all()


# ---------------------------------------------------------------- equal and vanishing singular values


def test_singular_values_at_0_have_the_subgradient():
    for a in (RANK_1, np.zeros((4, 3)), ROTATION):
        u, _, v = np.linalg.svd(a, full_matrices=False)
        assert np.allclose(gradient(lambda x: gnp.sum(linalg.svdvals(x)), a), u @ v)


def test_the_first_singular_triplets_have_derivatives_where_others_vanish():
    def cut(xp, u, s, v):
        return xp.sum(((u[:, :1] * s[:1]) @ v[:1]) ** 2)

    for options in ({}, {"full_matrices": False}):
        assert np.allclose(gradient(of_svd(cut, **options), RANK_1), 2 * RANK_1)

    def share(xp, u, s, v):
        return xp.sum(u[:, 0] ** 4) + s[0] / xp.sum(s**2)

    direction = np.outer(np.arange(4.0), np.arange(3.0)) + RANK_1
    found = np.sum(gradient(of_svd(share, full_matrices=False), RANK_1) * direction)
    assert np.isclose(found, difference(of_svd(share, np, full_matrices=False), RANK_1, direction))


def test_the_unitary_factor_at_equal_singular_values():
    def polar(xp, u, s, v):
        return xp.sum(WEIGHTS * (u @ v))

    expected = difference(of_svd(polar, np), ROTATION, WEIGHTS.T)
    assert np.isclose(np.sum(gradient(of_svd(polar), ROTATION) * WEIGHTS.T), expected)


def test_what_vanishing_and_equal_singular_values_leave_open_is_nan():
    def together(xp, u, s, v):
        return xp.sum((u * s) @ v)

    one_zero = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    for a in (RANK_1, np.zeros((4, 3)), ROTATION, RANK_1.T, np.zeros((2, 2)), one_zero, one_zero.T):
        assert np.isnan(gradient(of_svd(together, full_matrices=False), a)).any()
        direction = random_matrix(*a.shape)
        assert np.isnan(along(of_svd(together, full_matrices=False), a, direction))


def test_dependent_columns_have_no_derivative_of_qr():
    for a in ([[1.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]):
        for k in (0, 1):
            assert np.isnan(gradient(lambda x, k=k: gnp.sum(linalg.qr(x)[k]), np.array(a))).all()
    small = np.array([[1.0, 1.0], [0.0, 1e-12]])  # small, but not by rounding
    assert np.allclose(gradient(lambda x: linalg.qr(x)[1][1, 1], small), [[0, 0], [-1e12 * small[1, 1], 1]], atol=1e-3)


# ---------------------------------------------------------------- free phases and bases


PHASES = [
    ("eigh", lambda x: linalg.eigh(x)[1]),
    ("eig", lambda x: linalg.eig(x)[1]),
    ("svd", lambda x: linalg.svd(x)[0]),
    ("svd", lambda x: linalg.svd(x)[2]),
]


@pytest.mark.parametrize(("name", "vectors"), PHASES)
def test_a_result_that_depends_on_a_phase_raises(name, vectors):
    a = random_matrix(3, 3, dtype=complex)
    x = tensor(a + h(a))
    manager = GradManager().attach(x)
    with manager, pytest.raises(GaugeError, match=f"derivative of {name} .*phase"):
        manager.backward(gnp.sum(gnp.real(vectors(x))))
    assert x.grad is None
    for scale in (1e-9, 1e9):
        with manager, pytest.raises(RuntimeError, match="phase"):
            manager.backward(gnp.sum(gnp.real(vectors(x)) * scale + gnp.abs(vectors(x)) * scale * 1e3))


@pytest.mark.parametrize(("name", "vectors"), PHASES[:2])
def test_a_result_that_fixes_the_phase_has_a_derivative(name, vectors):
    def fixed(x):
        v = vectors(x + gnp.conj(x).T)
        return v / gnp.sign(v[0])

    assert gradcheck(fixed, tensor(random_matrix(3, 3, dtype=complex)), order=2)


def test_a_cotangent_that_is_rounding_does_not_count_as_a_phase():
    a = random_matrix(3, 3, dtype=complex)
    for dtype in (np.complex128, np.complex64):

        def penalty(x):
            v = linalg.eigh(x)[1]
            return gnp.sum(gnp.abs(gnp.conj(v).T @ v - np.eye(3, dtype=v.dtype)) ** 2)

        assert np.abs(gradient(penalty, (a + h(a)).astype(dtype))).max() < 1e-4


def test_vectors_of_a_null_space_must_not_be_used():
    a = random_matrix(4, 2)
    for name, function in {
        "svd": lambda x: linalg.svd(x)[0],
        "svd ": lambda x: linalg.svd(x.T)[2],
        "qr": lambda x: linalg.qr(x, mode="complete")[0],
    }.items():
        x = tensor(a)
        manager = GradManager().attach(x)
        with manager, pytest.raises(GaugeError, match=f"derivative of {name.strip()}: .*null space"):
            manager.backward(gnp.sum(function(x)))
        assert x.grad is None


def test_forward_mode_turns_the_basis_of_a_null_space():
    """What does not depend on the basis, such as the projector on the null space, has its derivative."""

    def svd_null(xp, x):
        u = xp.linalg.svd(x)[0][:, 2:]
        v = xp.linalg.svd(x.T)[2][2:]
        return xp.stack([u @ u.T, v.T @ v])

    def qr_null(xp, x):
        q = xp.linalg.qr(x, "complete")[0][:, 2:]
        return q @ q.T

    a, t = random_matrix(4, 2), random_matrix(4, 2)
    for null in (svd_null, qr_null):
        found = along(lambda x, f=null: f(gnp, x), a, t)
        assert np.allclose(found, difference(lambda x, f=null: f(np, x), a, t), atol=1e-8)


def test_what_is_dropped_is_nan_where_a_derivative_asks_for_it():
    equal = np.eye(3, dtype=bool)
    x = WEIGHTS * ~equal
    found = gradient(lambda t: gnp.sum(_drop(t, equal, ~equal & equal)), x)
    np.testing.assert_array_equal(found, np.where(equal, np.nan, 1.0))
    found = along(lambda t: _drop(t, equal, ~equal & equal), x, x)
    np.testing.assert_array_equal(found, x)
    assert np.isnan(along(lambda t: _drop(t, equal, ~equal & equal), x, WEIGHTS)[equal]).all()


@pytest.mark.parametrize("name", ["eig", "eigh"])
def test_forward_mode_turns_no_phase(name):
    a, t = random_matrix(3, 3, dtype=complex), random_matrix(3, 3, dtype=complex)
    if name == "eigh":
        a, t = a + h(a), t + h(t)
    v = getattr(np.linalg, name)(a)[1]
    dv = along(lambda x: getattr(linalg, name)(x)[1], a, t)
    assert np.allclose(np.diag(h(v) @ dv), 0)


# ---------------------------------------------------------------- results, errors, cost

ALL = ["eig", "eigh", "eigvals", "eigvalsh", "qr", "svd", "svdvals"]


def test_results_have_numpys_names():
    a = SYMMETRIC
    for name in ("eig", "eigh", "svd", "qr"):
        expected = getattr(np.linalg, name)(a)
        for found in (getattr(linalg, name)(tensor(a)), getattr(np.linalg, name)(tensor(a))):
            assert type(found).__name__ == type(expected).__name__
            assert found._fields == expected._fields
            assert all(isinstance(part, Tensor) for part in found)
        assert type(getattr(linalg, name)(a)) is type(expected)


@pytest.mark.parametrize("name", ALL)
def test_lists_and_integers(name):
    function, numpys = getattr(linalg, name), getattr(np.linalg, name)
    a = [[2, 1], [1, 3]]
    x = tensor(2.0)
    manager = GradManager().attach(x)
    with manager:
        for found in (function(tensor(a)), function([[x, 1], [1, 3]])):
            parts = found if isinstance(found, tuple) else [found]
            expected = numpys(a)
            for part, value in zip(parts, expected if isinstance(expected, tuple) else [expected], strict=True):
                assert part.dtype == value.dtype
                assert np.allclose(part.numpy(), value)
        manager.backward(gnp.real(gnp.sum(found[0])))
    assert x.grad.shape == ()


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_is_computed_in_float64_as_numpy_does(name):
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    narrow = a.astype(ml_dtypes.bfloat16)

    def first(x):
        found = getattr(linalg, name)(x)
        return gnp.sum(gnp.abs(found[0] if isinstance(found, tuple) else found) ** 3)

    expected, direction = gradient(first, a), np.array([[1.0, 0.5], [0.5, -2.0]])
    found = gradient(first, narrow)
    assert found.dtype == narrow.dtype
    assert np.allclose(found.astype(float), expected, rtol=0.01, atol=0.01)
    tangent = along(first, narrow, direction.astype(narrow.dtype))
    assert tangent.dtype == np.float64
    assert np.isclose(tangent, np.sum(expected * direction))


@pytest.mark.parametrize("name", ALL)
def test_errors_name_the_function_and_record_nothing(name):
    function = getattr(linalg, name)
    cases = [(np.ones(3), np.linalg.LinAlgError), (np.ones((2, 2), np.float16), TypeError)]
    if name.startswith("eig"):
        cases.append((np.ones((2, 3)), np.linalg.LinAlgError))
    if name in ("eig", "eigvals"):
        cases.append((np.array([[1.0, np.nan], [0.0, 1.0]]), np.linalg.LinAlgError))
    for a, kind in cases:
        with pytest.raises(kind):
            getattr(np.linalg, name)(a)
        x = tensor(a)
        with GradManager().attach(x) as manager:
            with pytest.raises(kind, match=name.removesuffix("vals").removesuffix("valsh")):
                function(x)
            assert not manager._tape.entries
        with pytest.raises(kind, match=name.removesuffix("vals").removesuffix("valsh")):
            function(x)


def test_unknown_keywords_are_refused():
    x = tensor(SYMMETRIC)
    for function in (linalg.eigh, linalg.eigvalsh):
        with pytest.raises(ValueError, match="UPLO"):
            function(x, "N")
    with pytest.raises(ValueError, match="mode 'full'"):
        linalg.qr(x, "full")
    with pytest.raises(errors.UnsupportedFunctionError, match="raw"):
        linalg.qr(x, mode="raw")
    assert len(linalg.qr(SYMMETRIC, mode="raw")) == 2


class Counted:
    """A function of numpy.linalg, counting its calls."""

    def __init__(self, monkeypatch, name):
        self.calls, function = 0, getattr(np.linalg, name)

        def counting(*args, **kwargs):
            self.calls += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(np.linalg, name, counting)


@pytest.mark.parametrize(
    ("name", "factorised_by", "keywords"),
    [
        ("eigvalsh", "eigh", {}),
        ("eigvals", "eig", {}),
        ("svdvals", "svd", {}),
        ("qr", "qr", {"mode": "r"}),
        ("svd", "svd", {"compute_uv": False}),
    ],
)
def test_forward_and_backward_share_one_factorisation(monkeypatch, name, factorised_by, keywords):
    counted = Counted(monkeypatch, factorised_by)
    gradient(lambda x: gnp.real(gnp.sum(getattr(linalg, name)(x, **keywords))), SYMMETRIC)
    assert counted.calls == 1


@pytest.mark.parametrize(("name", "not_called"), [("eigvalsh", "eigh"), ("eigvals", "eig")])
def test_vectors_are_not_computed_where_nothing_records(monkeypatch, name, not_called):
    counted = Counted(monkeypatch, not_called)
    found = getattr(linalg, name)(tensor(SYMMETRIC))
    assert counted.calls == 0
    assert np.allclose(found.numpy(), getattr(np.linalg, name)(SYMMETRIC))


def test_signs_of_a_hermitian_svd():
    a = np.diag([1.0, -3.0, 0.0, 2.0])
    for found in (linalg.svd(tensor(a), hermitian=True), linalg.svd(a, hermitian=True)):
        u, s, vh = (gnp.asarray(part).numpy() for part in found)
        expected_u, expected_s, expected_vh = np.linalg.svd(a, hermitian=True)
        np.testing.assert_array_equal(s, expected_s)
        np.testing.assert_array_equal(u, expected_u)
        made = expected_vh.any(axis=1)  # NumPy up to 2.3 leaves a row of zeros where s is 0
        np.testing.assert_array_equal(vh[made], expected_vh[made])
