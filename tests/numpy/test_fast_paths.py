"""Reductions, products and positions have fast paths for plain arrays: they give what the general paths give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import value_and_gradients

import gradmgr.numpy as gnp
from gradmgr import GradManager, functional, set_num_threads, special, tensor
from gradmgr.ops import logsumexp_kernels

BLOCK = logsumexp_kernels._BLOCK // 8  # numbers in a block
LARGE = logsumexp_kernels._LARGE // 8


@pytest.fixture
def threads(set_threads):
    """Compute in three threads."""
    set_threads(3)


def weighted(f, *arrays):
    """Return the value of f and the gradients of its sum, weighted so that no two elements count alike."""
    return value_and_gradients(f, *arrays, dy=weights)


def weights(z):
    return (1 + np.arange(z.size) % 7).reshape(z.shape).astype(z.dtype)


# ---------------------------------------------------------------- logsumexp


def naive(x, axis):
    """By numbers of more digits, over whole arrays."""
    wide = x.astype(np.longdouble)
    top = wide.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(wide - top).sum(axis, keepdims=True)) + top


SHAPES = [
    *[((LARGE + more,), 0) for more in (-1, 0, 1, BLOCK - 1, BLOCK, BLOCK + 1)],
    *[((LARGE // width + 1, width), 1) for width in (1, 3, logsumexp_kernels._SHORT, logsumexp_kernels._SHORT + 1)],
    ((3, LARGE // 3 + 1), 1),
    ((LARGE // 3 + 1, 3), 0),
    ((3, LARGE // 3 + 1), 0),
    ((3, LARGE // 3 + 1), None),
    ((5, 7, LARGE // 35 + 1), 1),
    ((5, 7, LARGE // 35 + 1), (0, 1)),
    ((5, 7, LARGE // 35 + 1), (2, 1)),
    ((5, 7, LARGE // 35 + 1), (0, 2)),  # not adjacent
    ((1, LARGE + 9, 1), 1),
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_logsumexp_in_blocks(shape, axis, dtype):
    x = np.random.default_rng(0).normal(scale=30, size=shape).astype(dtype)
    value, (slope,) = weighted(lambda t: special.logsumexp(t, axis), x)
    total = naive(x, axis)
    g = weights(value).reshape(total.shape)
    digits = 1e-13 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(value, total.reshape(value.shape).astype(float), rtol=digits, atol=digits)
    tiny = float(np.finfo(dtype).tiny) * 10
    np.testing.assert_allclose(slope, (g * np.exp(x - total)).astype(float), rtol=20 * digits, atol=tiny)
    assert value.dtype == slope.dtype == x.dtype


def test_logsumexp_of_what_does_not_lie_together():
    x = np.random.default_rng(0).normal(size=(300, 500))
    for view, axis in itertools.product((x.T, x[:, ::2], x[::-1, :300]), (0, 1, None)):
        value, (slope,) = weighted(lambda t, axis=axis: special.logsumexp(t, axis), view)
        expected, (slope_of_copy,) = weighted(lambda t, axis=axis: special.logsumexp(t, axis), view.copy())
        np.testing.assert_allclose(value, expected, rtol=1e-13)
        np.testing.assert_allclose(slope, slope_of_copy, rtol=1e-12)
        np.testing.assert_allclose(special.logsumexp(view, axis), expected, rtol=1e-13)


@pytest.mark.parametrize("shape", [(6,), (LARGE + BLOCK,)], ids=["small", "in blocks"])
def test_logsumexp_of_infinities(shape):
    x = np.zeros(shape)
    for places, value in (((0, -1), -np.inf), ((0,), np.inf), ((0,), np.nan)):
        y = x.copy()
        y[list(places)] = value
        expected = np.log(len(x) - 2) if value == -np.inf else value
        np.testing.assert_allclose(special.logsumexp(y), expected)
        with np.errstate(invalid="ignore"):  # inf - inf, in backward from an infinite result
            z, (slope,) = weighted(special.logsumexp, y)
        np.testing.assert_allclose(z, expected)
        if value == -np.inf:
            np.testing.assert_allclose(slope, np.where(y == 0, 1 / (len(x) - 2), 0))
    value, (slope,) = weighted(special.logsumexp, np.full(shape, -np.inf))
    assert value == -np.inf
    assert not slope.any()


def test_logsumexp_where_some_rows_are_masked():
    x = np.random.default_rng(0).normal(size=(LARGE // 50, 60))
    x[::3] = -np.inf
    x[1::3, 5:] = -np.inf
    value, (slope,) = weighted(lambda t: special.logsumexp(t, 1), x)
    assert np.array_equal(np.isneginf(value), np.arange(len(x)) % 3 == 0)
    assert not slope[::3].any()
    np.testing.assert_allclose(slope.sum(1)[1::3], weights(value)[1::3])


@pytest.mark.parametrize(("shape", "axis"), [((5 * LARGE,), 0), ((9, LARGE), 0), ((LARGE, 9), 1)], ids=str)
def test_threads_change_no_bit(shape, axis, threads):
    x = np.random.default_rng(0).normal(size=shape)
    found = [weighted(lambda t: special.logsumexp(t, axis), x)]
    set_num_threads(1)
    found.append(weighted(lambda t: special.logsumexp(t, axis), x))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1][0], found[1][1][0])


def test_the_derivative_of_a_large_logsumexp_has_a_derivative():
    x, v = np.random.default_rng(0).normal(size=(2, LARGE + 5))
    share = np.exp(x - naive(x, 0)).astype(float)
    _, product = functional.hvp(special.logsumexp, tensor(x), tensor(v))
    np.testing.assert_allclose(product.numpy(), share * (v - share @ v), rtol=1e-9, atol=1e-16)
    _, tangent = functional.jvp(special.logsumexp, tensor(x), tensor(v))
    np.testing.assert_allclose(tangent.numpy(), share @ v)


# ---------------------------------------------------------------- extremes


def shares(x, out, axis, g):
    ties = x == np.expand_dims(out, axis)
    return ties / ties.sum(axis, keepdims=True) * np.expand_dims(g, axis)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("function", [gnp.max, gnp.min])
@pytest.mark.parametrize("axis", [0, 1, (0, 1), (0, 2)], ids=str)
def test_the_gradient_goes_to_the_extreme(function, axis, dtype):
    x = np.random.default_rng(0).permutation(3 * 4 * 50).reshape(3, 4, 50).astype(dtype)
    for ties in (False, True):
        x = np.round(x / 20) if ties else x
        out, (slope,) = weighted(lambda t: function(t, axis), x)
        np.testing.assert_allclose(slope, shares(x, out, axis, weights(out)), rtol=1e-3 if dtype == "float16" else 1e-6)
        assert slope.dtype == x.dtype


@pytest.mark.parametrize("width", [1, 2, 10, 64, 65])
@pytest.mark.parametrize("keepdims", [False, True])
def test_extremes_of_short_rows(width, keepdims, threads):
    x = np.random.default_rng(0).normal(size=(3, 100_000 // width, width))
    x[1, 5, -1] = np.nan
    for view in (x, x[:, ::2], x[..., ::-1], x.astype(np.float32), np.nan_to_num(x * 100).astype(int)):
        for function, by_numpy in ((gnp.max, np.max), (gnp.min, np.min)):
            found = function(tensor(view), -1, keepdims=keepdims).numpy()
            np.testing.assert_array_equal(found, by_numpy(view, -1, keepdims=keepdims))
            assert found.dtype == view.dtype


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_the_tangent_of_an_extreme_is_that_of_its_element(axis, keepdims):
    distinct = np.random.default_rng(0).permutation(60).reshape(3, 4, 5).astype(float)
    v = np.random.default_rng(1).normal(size=distinct.shape)
    for x in (distinct, np.round(distinct / 9)):
        out = x.max(axis, keepdims=True)
        ties = x == out
        expected = (v * ties).sum(axis, keepdims=keepdims) / ties.sum(axis, keepdims=keepdims)
        _, tangent = functional.jvp(lambda t: gnp.max(t, axis, keepdims=keepdims), tensor(x), tensor(v))
        np.testing.assert_allclose(tangent.numpy(), expected)


def test_of_two_ties_and_a_nan_the_ties_share():
    """As many ties as results, but not one for each; a NaN is the maximum, and receives all of its gradient."""
    x = np.array([[1.0, 3.0, 3.0], [np.nan, 1.0, 2.0]])
    _, (slope,) = weighted(lambda t: gnp.max(t, 1), x)
    np.testing.assert_array_equal(slope, [[0, 0.5, 0.5], [2, 0, 0]])


def test_the_gradient_of_an_extreme_is_linear_in_its_cotangent():
    x, v = np.random.default_rng(0).normal(size=(2, 30, 40))

    def f(t):
        return (gnp.max(t, 1) ** 3).sum()

    _, product = functional.hvp(f, tensor(x), tensor(v))
    at = (np.arange(30), x.argmax(1))
    expected = np.zeros_like(x)
    expected[at] = 6 * x[at] * v[at]
    np.testing.assert_allclose(product.numpy(), expected)


# ---------------------------------------------------------------- deviations


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)], ids=str)
@pytest.mark.parametrize("ddof", [0, 1, 0.5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_deviations_are_numpys_to_the_last_bit(axis, ddof, dtype):
    x = np.random.default_rng(0).normal(size=(3, 20, 70)).astype(dtype)
    for name in ("var", "std"):
        for view in (x, x.T, x[..., ::-2]):
            found, (slope,) = weighted(lambda t, n=name: getattr(gnp, n)(t, axis, ddof=ddof), view)
            np.testing.assert_array_equal(found, getattr(np, name)(view, axis, ddof=ddof))
            kept = tuple(range(3)) if axis is None else axis
            count = np.prod([view.shape[k] for k in np.atleast_1d(kept)]) - ddof
            off = view.astype(float) - view.astype(float).mean(axis, keepdims=True)
            by = 2 if name == "var" else 1 / view.astype(float).std(axis, ddof=ddof, keepdims=True)
            expected = off / count * by * np.expand_dims(weights(found), kept)
            np.testing.assert_allclose(slope, expected, rtol=1e-3 if dtype == "float32" else 1e-10, atol=1e-6)
            assert slope.dtype == dtype


def test_a_deviation_of_what_is_tiny_or_equal():
    x = np.array([[1e-150, 3e-150], [1.0, 1.0], [1.0, 3.0]])
    for rows, expected in (([0, 2], [[-0.5, 0.5], [-0.5, 0.5]]), ([1, 2], [[0, 0], [-0.5, 0.5]])):
        leaf = tensor(x[rows])
        gm = GradManager().attach(leaf)
        with gm:
            gm.backward(gnp.std(leaf, 1), np.full(2, 1e200))  # over a deviation of 1e-150 that is infinite
        np.testing.assert_allclose(leaf.grad.numpy(), 1e200 * np.array(expected))


# ---------------------------------------------------------------- places


INDICES = [
    0,
    -1,
    slice(1, 3),
    slice(None, None, -2),
    (1, 2),
    (slice(None), 2),
    (None, 1),
    (..., 0),
    (slice(None), None, slice(1, None)),
    (),
    ...,
    np.intp(1),
    (np.intp(1), slice(2)),
    [0, 2, 0],
    (slice(None), np.array([1, 1, 3])),
    np.arange(12).reshape(3, 4) % 5 == 0,
    True,
]


@pytest.mark.parametrize("indices", [*[[index] for index in INDICES], INDICES], ids=lambda indices: str(len(indices)))
def test_pieces_of_one_array_add_up(indices):
    x = np.random.default_rng(0).normal(size=(3, 4))
    expected = np.zeros_like(x)
    for index in indices:
        piece = x[index]
        np.add.at(expected, index, 2 * piece)
    leaf = tensor(x)
    gm = GradManager().attach(leaf)
    with gm:
        total = sum((leaf[index] ** 2).sum() for index in indices)
        gm.backward(total)
    np.testing.assert_allclose(leaf.grad.numpy(), expected)


@pytest.mark.parametrize(
    "index",
    [
        np.random.default_rng(1).integers(-5, 5, 40),
        np.random.default_rng(1).integers(0, 5, 40).astype(np.uint8),
        np.random.default_rng(1).integers(-5, 5, (4, 10)),
        (np.random.default_rng(1).integers(-5, 5, 400), 2),
        (slice(None), np.random.default_rng(1).integers(-60, 60, 100)),
        (slice(1, 4), None, np.random.default_rng(1).integers(0, 60, 7)),
        (np.random.default_rng(1).integers(0, 5, (9, 1)), np.arange(60)),
    ],
    ids=lambda index: str(np.shape(index)) if isinstance(index, np.ndarray) else "several",
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_many_pieces_that_repeat(index, dtype):
    x = np.random.default_rng(0).normal(size=(5, 60)).astype(dtype)
    value, (slope,) = weighted(lambda t: t[index], x)
    expected = np.zeros_like(x)
    np.add.at(expected, index, weights(value))
    np.testing.assert_array_equal(slope, expected)
    assert slope.dtype == x.dtype


def test_a_piece_and_the_whole():
    leaf = tensor(np.arange(6.0))
    gm = GradManager().attach(leaf)
    with gm:
        whole = leaf * 1.0
        gm.backward((whole * whole).sum() + whole[2:4].sum() + whole[3] + whole[2:4].sum())
    np.testing.assert_array_equal(leaf.grad.numpy(), [0, 2, 6, 9, 8, 10])


def test_a_cotangent_of_a_piece_is_not_written_to():
    g = np.ones(4)
    leaf = tensor(np.zeros((2, 4)))
    gm = GradManager().attach(leaf)
    with gm:
        gm.backward([leaf[0], leaf[0], leaf[1]], [g, g, g])
    np.testing.assert_array_equal(leaf.grad.numpy(), [[2] * 4, [1] * 4])
    assert (g == 1).all()


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(40, 50), (50, 60)]),
        ("bij,bjk->bik", [(4, 20, 30), (4, 30, 20)]),
        ("ijk,mik->mij", [(5, 20, 20), (30, 5, 20)]),
        ("bij,bjk->ki", [(4, 20, 30), (1, 30, 20)]),
        ("...j,jk->...k", [(3, 50, 20), (20, 40)]),
        ("ij,jk,kl->il", [(20, 30), (30, 20), (20, 30)]),
        ("iij,jk", [(20, 20, 30), (30, 25)]),
        ("i,j->ij", [(300,), (200,)]),
        ("ij,k->i", [(60, 50), (60,)]),
    ],
)
def test_large_contractions_are_those_of_the_loop(subscripts, shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    value, slopes = weighted(lambda *t: gnp.einsum(subscripts, *t), *arrays)
    np.testing.assert_allclose(value, np.einsum(subscripts, *arrays), rtol=1e-10, atol=1e-10)
    for k, slope in enumerate(slopes):
        v = rng.normal(size=shapes[k])
        moved = [v if j == k else a for j, a in enumerate(arrays)]
        along = (np.einsum(subscripts, *moved) * weights(value)).sum()
        assert np.vdot(slope, v) == pytest.approx(along, rel=1e-9)


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((6, 2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((0, 3, 4), (4, 5)),
        ((2, 0, 4), (4, 5)),
        ((2, 3, 0), (0, 5)),
        ((2, 3, 4), (4, 0)),
    ],
    ids=str,
)
def test_products_of_vectors_and_of_stacks(x_shape, y_shape):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=x_shape), rng.normal(size=y_shape)
    value, slopes = weighted(lambda x, y: x @ y, x, y)
    for slope, a, along in zip(slopes, (x, y), (lambda v: v @ y, lambda v: x @ v), strict=True):
        v = rng.normal(size=a.shape)
        assert np.sum(slope * v) == pytest.approx(np.sum(along(v) * weights(value)))


@pytest.mark.parametrize("axes", [0, 1, 2, ([1], [0]), ([0, 1], [1, 0]), ([1, 0], [0, 1])], ids=str)
def test_tensordot_with_and_without_something_to_arrange(axes):
    rng = np.random.default_rng(0)
    x, y, v = rng.normal(size=(3, 4, 4))
    value, slopes = weighted(lambda x, y: gnp.tensordot(x, y, axes), x, y)
    np.testing.assert_allclose(value, np.tensordot(x, y, axes))
    for slope, along in zip(slopes, (np.tensordot(v, y, axes), np.tensordot(x, v, axes)), strict=True):
        assert np.sum(slope * v) == pytest.approx(np.sum(along * weights(value)))
