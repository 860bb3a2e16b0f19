"""Gradients of rows: embedding(sparse=True), RowSparse, and all that takes it on its way to a step."""

import copy
import pickle

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, errors, functional, nn, optim, sparse, tensor, vmap
from gradmgr.nn.functional import embedding, embedding_bag

TABLE = np.random.default_rng(0).normal(size=(6, 3))
PLACES = np.array([[4, 1], [4, 0]])
LARGE = np.random.default_rng(1).normal(size=(9000, 4))  # too large to share a buffer with other parameters


def loss(w, is_sparse=True, places=PLACES):
    return (embedding(places, w, sparse=is_sparse) ** 3).sum()


def gradient(values=TABLE, is_sparse=True, times=1, **attached):
    w = tensor(values)
    gm = GradManager().attach(w, **attached)
    for _ in range(times):
        with gm:
            gm.backward(loss(w, is_sparse))
    return w.grad


# ---------------------------------------------------------------- what backward gives


def test_a_table_receives_the_rows_that_were_read():
    g, whole = gradient(), gradient(is_sparse=False)
    assert isinstance(g, sparse.RowSparse)
    assert g.is_sparse
    assert g.is_coalesced()
    assert g.rows.tolist() == [0, 1, 4]
    assert (g.shape, g.dtype, g.ndim, g.size, g.device, len(g)) == ((6, 3), TABLE.dtype, 2, 18, "cpu", 6)
    np.testing.assert_allclose(g.values, whole.numpy()[[0, 1, 4]], rtol=1e-14)
    np.testing.assert_allclose(g.to_dense(), whole, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["f2", "f4", "c16"])
def test_many_readings_of_one_row_are_summed_in_every_dtype(dtype):
    places = np.random.default_rng(2).integers(0, 6, 700)
    values = np.random.default_rng(3).normal(size=(700, 3)).astype(dtype)
    found = {}
    for is_sparse in (True, False):
        w = tensor(TABLE.astype(dtype))
        with GradManager().attach(w) as gm:
            gm.backward(embedding(places, w, sparse=is_sparse), values)
        found[is_sparse] = w.grad.to_dense() if is_sparse else w.grad
    assert found[True].dtype == dtype
    np.testing.assert_allclose(found[True], found[False], rtol=1e-3 if dtype == "f2" else 1e-5)


@pytest.mark.parametrize("places", [np.array([1, 2, 1]), np.zeros((0, 2), int), np.array(2)])
def test_a_table_without_columns_receives_rows_without_numbers(places):
    table = tensor(np.ones((3, 0)))
    with GradManager().attach(table) as gm:
        gm.backward(np.sum(embedding(places, table, sparse=True)))
    assert table.grad.to_dense().shape == (3, 0)


def test_gradients_of_several_readings_and_backwards_add_up():
    w = tensor(TABLE)
    gm = GradManager().attach(w)
    for _ in range(2):
        with gm:
            gm.backward(loss(w) + sum(embedding(np.array([k]), w, sparse=True).sum() for k in (1, 5, 5)))
        first = w.grad
    expected = 2 * gradient(is_sparse=False).numpy()
    expected[[1, 5]] += [[2], [4]]
    assert w.grad is first
    assert w.grad.rows.tolist() == [0, 1, 4, 5]
    np.testing.assert_allclose(w.grad.to_dense(), expected)


@pytest.mark.parametrize("order", [1, -1])
def test_rows_and_a_whole_gradient_make_a_whole_one(order):
    w = tensor(TABLE)
    terms = [lambda: loss(w), lambda: loss(w), lambda: (w * w).sum(), lambda: loss(w), lambda: (w * w).sum()]
    with GradManager().attach(w) as gm:
        gm.backward(sum(term() for term in terms[::order]))
    assert not w.grad.is_sparse
    np.testing.assert_allclose(w.grad, 3 * gradient(is_sparse=False).numpy() + 4 * TABLE)


def test_a_whole_gradient_added_to_rows_leaves_the_same_object():
    w = tensor(TABLE)
    gm = GradManager().attach(w)
    with gm:
        gm.backward(loss(w))
    before = w.grad
    with gm:
        gm.backward((w * w).sum())
    assert w.grad is before
    assert type(before) is gradmgr.Tensor
    with gm:
        gm.backward(loss(w))
    np.testing.assert_allclose(w.grad, 2 * gradient(is_sparse=False).numpy() + 2 * TABLE)


def test_a_gradient_does_not_share_memory_with_the_seed():
    w, dy = tensor(TABLE), np.ones((2, 3))
    with GradManager().attach(w) as gm:
        gm.backward(embedding(np.array([3, 1]), w, sparse=True), dy)
    dy[:] = 7
    assert w.grad.values.tolist() == [[1.0] * 3] * 2


def test_a_table_that_is_computed_and_a_recorded_gradient_are_whole():
    w = tensor(TABLE)
    with GradManager().attach(w) as gm:
        gm.backward(loss(w * 2))
    assert not w.grad.is_sparse
    np.testing.assert_allclose(w.grad, 8 * gradient(is_sparse=False).numpy())
    hessian = functional.hessian(loss, tensor(TABLE)).numpy()
    np.testing.assert_allclose(hessian, functional.hessian(lambda w: loss(w, False), tensor(TABLE)))
    with GradManager().attach(w):
        (rows,) = gradmgr.grad(loss(w), w, retain_graph=True)
        (slope,) = gradmgr.grad(loss(w), w, create_graph=True)
        (curvature,) = gradmgr.grad((slope * slope).sum(), w)
    assert (rows.is_sparse, slope.is_sparse) == (True, False)
    np.testing.assert_allclose(rows, slope)
    np.testing.assert_allclose(curvature, 2 * np.einsum("ijkl,kl->ij", hessian, slope))


def test_inside_vmap_gradients_are_whole():
    found = vmap(functional.grad(loss), in_dims=(None, None, 0))(tensor(TABLE), True, np.stack([PLACES, PLACES + 1]))
    np.testing.assert_allclose(found[0], gradient(is_sparse=False))


def test_checkpoints_and_padding_and_frequency():
    w = tensor(TABLE)
    with GradManager().attach(w) as gm:
        gm.backward(gradmgr.checkpoint(loss, w))
    np.testing.assert_allclose(np.asarray(w.grad.to_dense() if w.grad.is_sparse else w.grad), gradient().to_dense())
    found = []
    for is_sparse in (True, False):
        w = tensor(TABLE)
        with GradManager().attach(w) as gm:
            y = embedding(PLACES, w, padding_idx=1, scale_grad_by_freq=True, sparse=is_sparse)
            gm.backward((y**3).sum())
        found.append(w.grad)
    assert found[0].rows.tolist() == [0, 4]
    np.testing.assert_allclose(found[0].to_dense(), found[1])


def test_a_compiled_step_runs_eagerly_and_says_why():
    w = tensor(TABLE)
    gm, optimizer = GradManager().attach(w), optim.SparseAdam([w])

    @gradmgr.compile
    def step():
        optimizer.zero_grad()
        with gm:
            gm.backward(loss(w))
        optimizer.step()

    with pytest.warns(errors.CompileWarning, match=r"embedding\(sparse=True\) gives a gradient of rows"):
        step()
    for _ in range(3):
        assert w.grad.is_sparse
        step()
    other = tensor(TABLE)
    again = optim.SparseAdam([other])
    for _ in range(4):
        other.grad = None
        with GradManager().attach(other) as one:
            one.backward(loss(other))
        again.step()
    np.testing.assert_array_equal(w, other)


# ---------------------------------------------------------------- callbacks and hooks


def test_callbacks_and_hooks_see_rows_and_may_replace_them():
    seen = []

    def halve(t, g):
        seen.append(g)
        return g * 0.5

    g = gradient(callbacks=halve)
    assert seen[0].is_sparse
    assert g.is_sparse
    np.testing.assert_allclose(g.to_dense(), gradient().to_dense().numpy() / 2)
    w = tensor(TABLE)
    gm = GradManager().attach(w)
    w.register_hook(lambda g: -g)
    with gm:
        gm.backward(loss(w))
    assert w.grad.is_sparse
    np.testing.assert_allclose(w.grad.to_dense(), -gradient().to_dense().numpy())
    whole = gradient(callbacks=lambda t, g: g.to_dense())
    assert not whole.is_sparse


# ---------------------------------------------------------------- RowSparse


def test_arithmetic_keeps_to_the_rows():
    g = sparse.RowSparse([2, 0, 2], np.arange(6.0).reshape(3, 2), (4, 2))
    dense = g.to_dense().numpy()
    for found, expected in (
        (g * 2, dense * 2),
        (0.5 * g, dense / 2),
        (g / 4, dense / 4),
        (-g, -dense),
        (g + g, 2 * dense),
    ):
        assert found.is_sparse
        np.testing.assert_array_equal(found.to_dense(), expected)
    kept = g
    g += g
    g *= 3
    g /= 2
    assert g is kept
    assert g.is_sparse
    np.testing.assert_array_equal(g.to_dense(), 3 * dense)
    assert not (g * 0 + dense).is_sparse


def test_everything_else_takes_it_as_the_tensor_it_stands_for():
    g = gradient()
    dense = g.to_dense()
    for function in (np.exp, np.sum, lambda t: t @ t.T, lambda t: t[1:3], lambda t: t - 1, lambda t: TABLE + t):
        found = function(g)
        assert type(found) is gradmgr.Tensor
        np.testing.assert_array_equal(found, function(dense))
    assert g.numpy().tolist() == dense.tolist()
    assert g.is_sparse
    g[0] = 7.0  # a write in place makes it whole
    assert type(g) is gradmgr.Tensor
    assert g[0].tolist() == [7.0] * 3
    assert g[4].tolist() == dense[4].tolist()


def test_it_is_copied_pickled_and_printed_by_its_rows():
    g = gradient()
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(g)), g.detach()):  # noqa: S301  # our own
        assert other is not g
        assert other.is_sparse
        np.testing.assert_array_equal(other.to_dense(), g.to_dense())
    w = nn.Parameter(TABLE)
    w.grad = g
    assert copy.deepcopy(w).grad.is_sparse
    assert repr(sparse.RowSparse([1], [[2.0]], (3, 1))) == (
        "RowSparse(rows=Tensor([1]), values=Tensor([[2.]]), shape=(3, 1))"
    )


def test_what_it_refuses():
    with pytest.raises(errors.DtypeError, match="takes rows of an integer dtype; found float64"):
        sparse.RowSparse([0.5], [[1.0]], (3, 1))
    with pytest.raises(errors.DtypeError, match="values of a dtype that can have gradients; found int64"):
        sparse.RowSparse([0], [[1]], (3, 1))
    with pytest.raises(errors.ShapeError, match=r"rows of shape \(1,\), values of shape \(1, 2\) and shape=\(3, 1\)"):
        sparse.RowSparse([0], [[1.0, 2.0]], (3, 1))
    with pytest.raises(errors.LabelError, match="3 is not a row of a table of 3"):
        sparse.RowSparse([3], [[1.0]], (3, 1))


# ---------------------------------------------------------------- steps

SAME_AS_WHOLE = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "maximize": True}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    (optim.Adagrad, {"lr": 0.1, "weight_decay": 0.1}),
]


def trained(values, kind, is_sparse, options, steps=3):
    w, b = nn.Parameter(values), nn.Parameter(np.ones(2))
    gm, optimizer = GradManager().attach([w, b]), kind([w, b], **options)
    for k in range(steps):
        optimizer.zero_grad(set_to_none=k == 1)
        with gm:
            gm.backward(loss(w, is_sparse, (PLACES + k) % 6).real + (b * b).sum())
        assert w.grad.is_sparse == is_sparse
        optimizer.step()
    return w.numpy(), b.numpy()


@pytest.mark.parametrize(("kind", "options"), SAME_AS_WHOLE, ids=lambda value: str(value))
@pytest.mark.parametrize("values", [TABLE, LARGE, LARGE.astype("f4"), LARGE.astype("f2"), LARGE.astype("c16")])
def test_a_step_by_rows_is_that_of_the_whole_gradient(values, kind, options):
    found, expected = trained(values, kind, True, options), trained(values, kind, False, options)
    for one, other in zip(found, expected, strict=True):
        tolerance = {2: 1e-2, 4: 1e-5}.get(one.dtype.itemsize, 1e-10)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_sparse_adam_is_adam_on_the_rows_that_are_read():
    lr, beta1, beta2, eps = 0.1, 0.8, 0.9, 1e-2
    p, m, v = LARGE.copy(), np.zeros_like(LARGE), np.zeros_like(LARGE)
    w = nn.Parameter(LARGE)
    gm, optimizer = GradManager().attach(w), optim.SparseAdam([w], lr, (beta1, beta2), eps)
    for step in (1, 2, 3):
        places = PLACES + step
        rows = np.unique(places)
        g = gradient_of_cubes(p, places)[rows]
        m[rows] += (1 - beta1) * (g - m[rows])
        v[rows] += (1 - beta2) * (g * g - v[rows])
        rate = lr * np.sqrt(1 - beta2**step) / (1 - beta1**step)
        p[rows] -= rate * m[rows] / (np.sqrt(v[rows]) + eps)
        optimizer.zero_grad()
        with gm:
            gm.backward(loss(w, True, places))
        optimizer.step()
        np.testing.assert_allclose(w, p, rtol=1e-12)
    state = optimizer.state_dict()["state"][0]
    assert state["step"] == 3
    np.testing.assert_allclose(state["exp_avg"], m, rtol=1e-12, atol=1e-15)
    other = optim.SparseAdam([nn.Parameter(p)], lr, (beta1, beta2), eps)
    other.load_state_dict(optimizer.state_dict())
    np.testing.assert_array_equal(other.state_dict()["state"][0]["exp_avg_sq"], state["exp_avg_sq"])


def gradient_of_cubes(table, places):
    g = np.zeros_like(table)
    np.add.at(g, places, 3 * table[places] ** 2)
    return g


def test_sparse_adam_equals_torchs():
    w = nn.Parameter([[1.0], [2.0], [-3.0]])
    gm, optimizer = GradManager().attach(w), optim.SparseAdam([w], 0.1, (0.8, 0.9), 1e-2)
    for places in ([0, 2, 0], [2], [0, 1]):
        optimizer.zero_grad()
        with gm:
            gm.backward(loss(w, True, np.array(places)))
        optimizer.step()
    torchs = [0.8220937764353121, 1.9327097939792868, -3.1999387792685057]  # by torch 2.13
    np.testing.assert_allclose(w.numpy().ravel(), torchs, rtol=1e-12)


def test_a_held_value_does_not_change_by_a_step():
    w = nn.Parameter(LARGE)
    before, held = w.numpy(), w[:2]
    w.grad = sparse.RowSparse([0], np.ones((1, 4)), w.shape)
    optim.SGD([w], lr=1.0).step()
    assert before[0].tolist() == held[0].tolist() == LARGE[0].tolist()
    assert w[0].tolist() == (LARGE[0] - 1).tolist()
    assert w[1].tolist() == LARGE[1].tolist()


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.RMSprop, optim.Lion])
@pytest.mark.parametrize("values", [TABLE, LARGE])
def test_other_optimisers_name_what_to_use(kind, values):
    w, b = nn.Parameter(values), nn.Parameter([1.0])
    w.grad, b.grad = sparse.RowSparse([0], np.ones((1, values.shape[1])), w.shape), tensor([1.0])
    optimizer = kind([w, b])
    with pytest.raises(errors.UnsupportedFunctionError, match=r"of rows.*use SparseAdam, SGD or Adagrad, or make it"):
        optimizer.step()
    assert w.numpy().tolist() == values.tolist()
    assert b.tolist() == [1.0]
    w.grad = w.grad.to_dense()
    optimizer.step()


def test_sparse_adam_refuses_the_gradient_of_a_whole_table():
    w = nn.Parameter(TABLE)
    w.grad = tensor(TABLE)
    with pytest.raises(errors.UnsupportedFunctionError, match=r"is that of the whole table; .*pass sparse=True"):
        optim.SparseAdam([w]).step()


# ---------------------------------------------------------------- clipping, scaling, zeros


def with_gradients(is_sparse, values=TABLE):
    w, b = nn.Parameter(values), nn.Parameter(np.ones(3))
    with GradManager().attach([w, b]) as gm:
        gm.backward(loss(w, is_sparse) + (b * b).sum())
    return [w, b]


@pytest.mark.parametrize("order", [1, 2, 3.0, np.inf])
def test_clipping_by_norm_keeps_rows(order):
    found, expected = with_gradients(True), with_gradients(False)
    total = optim.clip_grad_norm_(found, 0.5, order)
    np.testing.assert_allclose(total, optim.clip_grad_norm_(expected, 0.5, order))
    assert found[0].grad.is_sparse
    np.testing.assert_allclose(found[0].grad.to_dense(), expected[0].grad)
    np.testing.assert_allclose(found[1].grad, expected[1].grad)


def test_clipping_by_value_keeps_rows():
    found, expected = with_gradients(True), with_gradients(False)
    optim.clip_grad_value_(found, 0.3)
    optim.clip_grad_value_(expected, 0.3)
    assert found[0].grad.is_sparse
    np.testing.assert_array_equal(found[0].grad.to_dense(), expected[0].grad)


def test_a_norm_that_is_not_finite_is_described():
    w = nn.Parameter(TABLE)
    w.grad = sparse.RowSparse([1, 2], [[1.0, np.nan, 1.0], [1.0, 1.0, 1.0]], (6, 3))
    with pytest.raises(errors.NonFiniteError, match="has 1 of 18 numbers infinite or NaN"):
        optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)
    assert w.grad.values[1].tolist() == [1.0] * 3


def test_a_scaler_unscales_rows_and_skips_what_is_not_finite():
    w = nn.Parameter(LARGE.astype("f4"))
    scaler, optimizer = optim.GradScaler(init_scale=8.0), optim.SGD([w], lr=1.0)
    gm = GradManager().attach(w)
    with gm:
        gm.backward(scaler.scale(embedding(np.array([5, 5]), w, sparse=True).sum()))
    scaler.step(optimizer)
    scaler.update()
    assert w.grad.is_sparse
    assert w.grad.values.tolist() == [[2.0] * 4]
    np.testing.assert_array_equal(w.numpy()[5], LARGE.astype("f4")[5] - 2)
    w.grad = sparse.RowSparse([0], np.full((1, 4), np.inf, "f4"), w.shape)
    scaler.step(optimizer)
    scaler.update()
    assert np.isfinite(w.numpy()).all()
    assert scaler.get_scale() == 4.0


def test_gradients_of_rows_are_set_to_zero_as_rows():
    for clear in (lambda w: optim.SGD([w]).zero_grad(set_to_none=False), cleared_by_module):
        w = nn.Parameter(TABLE)
        w.grad = sparse.RowSparse([1], np.ones((1, 3)), w.shape)
        clear(w)
        assert w.grad.is_sparse
        assert w.grad.rows.size == 0
        assert not w.grad.to_dense().numpy().any()


def cleared_by_module(w):
    module = nn.Embedding(6, 3)
    module.weight = w
    module.zero_grad(set_to_none=False)


# ---------------------------------------------------------------- layers


def test_layers_pass_their_settings_on():
    layer = nn.Embedding(6, 3, padding_idx=1, scale_grad_by_freq=True, sparse=True)
    assert repr(layer) == "Embedding(6, 3, padding_idx=1, scale_grad_by_freq=True, sparse=True)"
    bag = nn.EmbeddingBag(6, 3, mode="sum", sparse=True, padding_idx=-1)
    assert repr(bag) == "EmbeddingBag(6, 3, padding_idx=5, mode='sum', sparse=True)"
    assert not bag.weight[5].numpy().any()
    with GradManager().attach([layer.weight, bag.weight]) as gm:
        y, z = layer(np.array([1, 2, 2])), bag(np.array([1, 2, 5]), np.array([0, 1]), tensor(np.array([2.0, 3.0, 1.0])))
        gm.backward([y, z], [np.ones((3, 3), "f4"), np.ones(z.shape)])
    assert layer.weight.grad.rows.tolist() == [2]
    assert layer.weight.grad.values.tolist() == [[1.0] * 3]
    assert bag.weight.grad.rows.tolist() == [1, 2]
    assert bag.weight.grad.values.tolist() == [[2.0] * 3, [3.0] * 3]


def test_what_bags_refuse():
    for text, args, keywords in (
        ("max_norm would write", ([[0]], TABLE), {"max_norm": 1.0}),
        ("mode must be one of 'sum' 'mean' 'max'; found 'min'", ([[0]], TABLE), {"mode": "min"}),
        ("per_sample_weights needs mode='sum'", ([[0]], TABLE), {"per_sample_weights": [[1.0]]}),
        ("freq cannot be combined with mode='max'", ([[0]], TABLE), {"scale_grad_by_freq": True, "mode": "max"}),
        (r"takes an input of two axes without offsets.*found shape \(1,\) and no offsets", ([0], TABLE), {}),
        (r"found shape \(1, 1\) and offsets", ([[0]], TABLE, [0]), {}),
        ("offsets that begin with 0, ascend", ([0, 1], TABLE, [1]), {}),
        ("offsets that begin with 0, ascend", ([0, 1], TABLE, [0, 2, 1]), {}),
        ("no offset says to which bag", ([0, 1], TABLE, np.zeros(0, int)), {}),
        ("the last offset is the length of input, 2; found 1", ([0, 1], TABLE, [0, 1]), {"include_last_offset": True}),
        (
            r"in the shape of input, \(1, 1\); found \(1,\)",
            ([[0]], TABLE),
            {"mode": "sum", "per_sample_weights": [1.0]},
        ),
        ("index 6 at position", ([[6]], TABLE), {}),
    ):
        with pytest.raises((ValueError, TypeError, IndexError), match=text):
            embedding_bag(*args, **keywords)
    with pytest.raises(ValueError, match="mode must be one of"):
        nn.EmbeddingBag(3, 2, mode="min")
    with pytest.raises(errors.UnsupportedFunctionError, match="Embedding: max_norm"):
        nn.Embedding(3, 2, max_norm=1.0)
