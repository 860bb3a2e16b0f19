"""Gradients of `table[indices]`: of rows where the table is large, else as the whole gradient."""

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, Tensor, errors, functional, graph, nn, optim, profiler, sparse, tensor, vmap
from gradmgr._arrays import table_rows
from gradmgr.nn.functional import embedding

# Too large to share a buffer with other parameters. Up to 1125 rows of it are few, as the limits are set here.
TABLE = np.random.default_rng(0).normal(size=(9000, 4))
PLACES = np.random.default_rng(1).integers(-9000, 9000, (5, 7))
REPEATED = np.concatenate([np.full(20, -3), PLACES[0], np.full(40, 5), [-3, 8997, 5]])
NEVER = 1 << 60


@pytest.fixture(autouse=True)
def _tables_of_any_size(monkeypatch):
    monkeypatch.setattr(table_rows, "_LARGE_TABLE", 0)
    monkeypatch.setattr(table_rows, "_SORTING", 0)


def both(run, monkeypatch):
    """Return what is found where gradients of look-ups are of rows, and where they are whole."""
    found = run()
    monkeypatch.setattr(table_rows, "_LARGE_TABLE", NEVER)
    expected = run()
    monkeypatch.setattr(table_rows, "_LARGE_TABLE", 0)
    return found, expected


def assert_same_bits(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def gradient(loss, values=TABLE, times=1, **attached):
    w = tensor(values)
    gm = GradManager().attach(w, **attached)
    for _ in range(times):
        with gm:
            gm.backward(loss(w))
    return w.grad


def cubes(w):
    return (w[PLACES] ** 3).sum()


# ---------------------------------------------------------------- what backward gives


def test_from_which_size_on_rows_are_given(monkeypatch):
    monkeypatch.undo()
    w, smaller = tensor(np.ones((2048, 512), "f4")), tensor(np.ones((2047, 512), "f4"))
    for table, count, is_sparse in ((w, 200, True), (w, 400, False), (smaller, 2, False)):
        table.grad = None
        with GradManager().attach(table) as gm:
            gm.backward(table[np.arange(count)].sum())
        assert table.grad.is_sparse == is_sparse
        assert table.grad[:, 0].tolist() == [1.0] * count + [0.0] * (len(table) - count)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
@pytest.mark.parametrize(
    "index",
    [PLACES, PLACES[0].tolist(), REPEATED, PLACES.astype("i2") % 300, abs(PLACES).astype("u8"), np.array([], int)],
    ids=["two axes", "a list", "repeated", "int16", "uint64", "none"],
)
@pytest.mark.parametrize("tail", [(), (slice(None),), (...,), (..., slice(None))], ids=str)
def test_its_numbers_are_those_of_the_whole_gradient(dtype, index, tail):
    values = np.random.default_rng(2).normal(size=(*np.shape(index), 4)).astype(dtype)
    values.reshape(-1)[:3] = -0.0
    w = tensor(TABLE.astype(dtype))
    with GradManager().attach(w) as gm:
        gm.backward(w[(index, *tail)] if tail else w[index], values)
    expected = np.zeros(TABLE.shape, "f4" if dtype == "f2" else dtype)  # halves are added in float32
    np.add.at(expected, np.asarray(index), values)
    assert w.grad.is_sparse
    assert_same_bits(w.grad, expected.astype(dtype))


@pytest.mark.parametrize("shape", [(9000,), (2000, 2, 3)])
def test_vectors_and_tables_of_more_axes(shape):
    places = np.array([3, -1, 3])
    g = gradient(lambda w: (w[places] * 2.0).sum(), np.ones(shape))
    expected = np.zeros(shape)
    np.add.at(expected, places, 2.0)
    assert g.is_sparse
    assert_same_bits(g, expected)


@pytest.mark.parametrize(
    "index",
    [3, slice(1, 9), (PLACES, 1), (PLACES, slice(1, 3)), (slice(None), [0, 2]), TABLE[:, 0] > 2, (None, PLACES)],
)
def test_other_indices_give_the_whole_gradient(index):
    g = gradient(lambda w: (w[index] ** 2).sum())
    numbers = np.arange(TABLE.size).reshape(TABLE.shape)[index]
    expected = 2 * TABLE * np.bincount(numbers.ravel(), minlength=TABLE.size).reshape(TABLE.shape)
    if index.__class__ is tuple and index[0] is None:
        assert_same_bits(g, gradient(lambda w: (w[PLACES] ** 2).sum()))
    assert not g.is_sparse
    np.testing.assert_allclose(g, expected, rtol=1e-14)


def test_a_computed_table_and_one_in_another_order_have_whole_gradients():
    assert not gradient(lambda w: cubes(w * 2)).is_sparse
    g = gradient(cubes, np.asfortranarray(TABLE))
    assert not g.is_sparse
    assert g.numpy().flags.f_contiguous
    assert_same_bits(g, gradient(cubes))


LOSSES = {
    "two look-ups": lambda w: cubes(w) + (w[REPEATED] ** 2).sum(),
    "one after a whole one": lambda w: (w * w).sum() + cubes(w),
    "one before a whole one": lambda w: cubes(w) + (w * w).sum(),
    "between whole ones": lambda w: (w * w).sum() + cubes(w) + (w**3).sum(),
    "with rows by number": lambda w: cubes(w) + (w[3] ** 2).sum() + (w[5] * w[3]).sum() + (w[REPEATED] ** 2).sum(),
    "before rows by number": lambda w: (w[3] ** 2).sum() + (w[5] * w[3]).sum() + cubes(w),
    "with a mask": lambda w: (w[w[:, 0] > 1] ** 2).sum() + cubes(w),
    "of one number": lambda w: w[3, 1] ** 2 + cubes(w) + w[4, 2],
    "many": lambda w: sum((w[REPEATED - k] ** 2).sum() for k in range(20)),
    "of one shape": lambda w: (nn.functional.relu(w[PLACES]) * w[PLACES + 1] + w[PLACES]).sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("times", [1, 3])
def test_sums_are_those_of_whole_gradients(loss, times, monkeypatch):
    for dtype in ("f8", "f4"):
        found, expected = both(lambda dtype=dtype: gradient(loss, TABLE.astype(dtype), times), monkeypatch)
        assert_same_bits(found, expected)


def test_gradients_of_rows_and_whole_ones_of_several_backwards():
    for losses in ((cubes, LOSSES["between whole ones"]), (LOSSES["between whole ones"], cubes)):
        w = tensor(TABLE)
        gm = GradManager().attach(w)
        expected = np.zeros_like(TABLE)
        for loss in losses:
            with gm:
                gm.backward(loss(w))
            expected = expected + gradient(loss).numpy()
        assert_same_bits(w.grad, expected)
        assert not w.grad.is_sparse


def test_they_stay_rows_as_long_as_they_are_few():
    w = tensor(TABLE)
    gm = GradManager().attach(w)
    is_sparse = []
    for k in range(6):
        with gm:
            gm.backward(w[np.arange(300) + 300 * k].sum())
        is_sparse.append(w.grad.is_sparse)
    assert is_sparse == [True] * 3 + [False] * 3
    assert w.grad[:, 0].tolist() == [1.0] * 1800 + [0.0] * 7200
    assert gradient(lambda w: w[PLACES].sum() + w[PLACES + 1].sum()).is_sparse
    assert not gradient(LOSSES["many"]).is_sparse


def test_with_rows_that_were_asked_for_it_is_rows_that_were_asked_for():
    for loss in (
        lambda w: cubes(w) + embedding(np.array([1, 1]), w, sparse=True).sum(),
        lambda w: embedding(np.array([1, 1]), w, sparse=True).sum() + cubes(w),
    ):
        g = gradient(loss, times=2)
        expected = gradient(cubes).numpy() * 2
        expected[1] += 4
        np.testing.assert_allclose(g.numpy(), expected)
        assert g.is_sparse  # after it was read, too


# ---------------------------------------------------------------- the whole gradient that it stands for


def test_once_read_it_is_an_ordinary_tensor():
    g = gradient(cubes)
    assert isinstance(g, Tensor)
    assert isinstance(g, sparse.RowSparse)
    assert (g.shape, g.dtype, g.ndim, len(g), g.is_sparse) == (TABLE.shape, TABLE.dtype, 2, 9000, True)
    first = g.numpy()
    assert type(g) is Tensor
    assert not g.is_sparse
    assert np.shares_memory(first, g.numpy())
    g[2] += 5.0
    assert g[2].tolist() == [5.0] * 4
    assert first[2].tolist() == [0.0] * 4


def test_a_read_by_several_threads_makes_one_table():
    for _ in range(5):
        g, start, found = gradient(cubes), threading.Barrier(4), []

        def read(g=g, start=start, found=found):
            start.wait()
            found.append(g.numpy())

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.shares_memory(found[0], each) for each in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g * 2,
        lambda g: -3 * g / 7,
        lambda g: g * np.float64(0.1),
        lambda g: g * np.float32(0.1),
        lambda g: g * np.array(0.1),
        lambda g: g * 1e300,
        lambda g: g * 0,
        lambda g: g / 0.3,
        lambda g: g + g * 2,
        lambda g: g + TABLE.astype("f4"),
        lambda g: TABLE + g,
        lambda g: np.square(g),
        lambda g: g.T @ g,
        lambda g: g.detach()[3:5],
        lambda g: copy.copy(g),
    ],
)
def test_functions_of_it(change, monkeypatch):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found, expected = both(lambda: change(gradient(cubes, TABLE.astype("f4"))), monkeypatch)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_writes_in_place(monkeypatch):
    def run():
        g = kept = gradient(cubes)
        g *= 0.5
        g += g
        g += TABLE
        g[PLACES] = 1.0
        g -= 3
        assert g is kept
        return g

    assert_same_bits(*both(run, monkeypatch))


def test_copies_stand_for_the_whole_gradient():
    g = gradient(cubes)
    for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g), g.detach()):  # noqa: S301  # our own
        assert other.is_sparse
        assert_same_bits(other, g.detach())
        assert not other.is_sparse
    assert g.is_sparse


def test_derivatives_by_a_gradient_that_is_attached():
    found = []
    for g in (gradient(cubes), tensor(gradient(cubes).numpy())):
        with GradManager().attach(g) as gm:
            gm.backward((g * 2 + g[PLACES].sum()).sum())
        found.append(g.grad)
    assert_same_bits(*found)


def test_it_is_set_to_zero_and_moved(monkeypatch):
    def run():
        layer = nn.Embedding(9000, 4, rng=np.random.default_rng(3))
        found = []
        for change in (
            lambda: layer.zero_grad(set_to_none=False),
            lambda: optim.SGD(layer.parameters(), 0.1).zero_grad(set_to_none=False),
            lambda: layer.to(dtype=np.float32),
        ):
            with GradManager().attach(layer.weight) as gm:
                gm.backward(cubes(layer.weight))
            change()
            found.append(layer.weight.grad.numpy().copy())
        return np.stack(found)

    assert_same_bits(*both(run, monkeypatch))


# ---------------------------------------------------------------- callbacks, hooks, observers


def test_callbacks_and_hooks():
    seen = []

    def keep(t, g):
        seen.append(g)

    def keep_grad(t):
        seen.append(t.grad)

    dy = np.ones((5, 7, 4))
    w = tensor(TABLE)
    gm = GradManager().attach(w, callbacks=[keep, lambda t, g: g + g])
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(keep_grad)
    with gm:
        gm.backward(w[PLACES], dy)
    dy[:] = 7
    expected = np.zeros_like(TABLE)
    np.add.at(expected, PLACES, 1)
    assert [g.is_sparse for g in seen] == [True, True]
    np.testing.assert_array_equal(seen[0], 2 * expected)
    np.testing.assert_array_equal(w.grad, 4 * expected)


@pytest.mark.parametrize(
    "callbacks",
    [[lambda t, g: np.cos(g)], [lambda t, g: g.numpy() is None or None], [lambda t, g: g.numpy() is None or g]],
    ids=["a function of it", "read", "read and returned"],
)
def test_callbacks_that_read_it(callbacks, monkeypatch):
    assert_same_bits(*both(lambda: gradient(cubes, times=2, callbacks=callbacks), monkeypatch))


def test_observers_see_what_is_right(monkeypatch):
    def run():
        w = tensor(TABLE)
        with profiler.profile() as seen, gradmgr.detect_anomaly(), GradManager().attach(w) as gm:
            gm.backward(cubes(w) + (w[3] * w[PLACES[0]]).sum())
        assert seen.key_averages()
        return w.grad

    np.testing.assert_allclose(*both(run, monkeypatch), rtol=1e-14)


def test_saved_tensors_hooks_and_retained_gradients(monkeypatch):
    def run():
        w = tensor(TABLE)
        with graph.saved_tensors_hooks(lambda t: t.numpy(), tensor), GradManager().attach(w) as gm:
            y = w[PLACES]
            y.retain_grad()
            w.retain_grad()
            gm.backward((y**3).sum(), retain=True)
            gm.backward((y**3).sum())
        np.testing.assert_allclose(y.grad, 6 * TABLE[PLACES] ** 2)
        return w.grad

    assert_same_bits(*both(run, monkeypatch))


def test_several_managers(monkeypatch):
    def run():
        w = tensor(TABLE)
        one, other = GradManager().attach(w), GradManager().attach(w)
        with one, other:
            y = cubes(w)
            one.backward(y)
            other.backward(y)
        return w.grad

    assert_same_bits(*both(run, monkeypatch))


# ---------------------------------------------------------------- functions that return gradients


def test_functions_return_whole_gradients():
    w = tensor(TABLE)
    with GradManager().attach(w):
        (of_grad,) = gradmgr.grad(cubes(w), w)
    for g in (
        functional.grad(cubes)(w),
        functional.value_and_grad(cubes)(w)[1],
        functional.vjp(cubes, w, tensor(1.0))[1],
        of_grad,
    ):
        assert type(g) is Tensor
        assert_same_bits(g, gradient(cubes))


def test_higher_orders_and_other_modes():
    w, t = tensor(TABLE), np.ones_like(TABLE)
    np.add.at(t, PLACES, 0.5)
    counts = np.zeros(9000)
    np.add.at(counts, PLACES % 9000, 1)
    slope, curvature = 3 * counts[:, None] * TABLE**2, 6 * counts[:, None] * TABLE
    np.testing.assert_allclose(functional.jvp(cubes, (w,), (tensor(t),))[1], (slope * t).sum())
    np.testing.assert_allclose(functional.jvp(functional.grad(cubes), (w,), (tensor(t),))[1], curvature * t)
    with GradManager().attach(w) as outer:
        with GradManager().attach(w) as inner:
            inner.backward(cubes(w))
        outer.backward((w.grad * t).sum())
    np.testing.assert_allclose(w.grad, slope + curvature * t)
    found = vmap(lambda places: functional.grad(lambda w: (w[places] ** 2).sum())(w))(PLACES)
    for places, each in zip(PLACES, np.asarray(found), strict=True):
        np.testing.assert_allclose(each, gradient(lambda w, places=places: (w[places] ** 2).sum()))
    np.testing.assert_array_equal(gradient(lambda w: gradmgr.checkpoint(cubes, w)), gradient(cubes))
    np.testing.assert_allclose(gradient(lambda w: gradmgr.checkpoint(cubes, w * 2)), 8 * gradient(cubes).numpy())


def test_a_compiled_program_runs_as_before(monkeypatch):
    def run(decorate, first):
        w, b = tensor(TABLE), tensor(np.ones(4))
        gm, optimizer = GradManager().attach([w, b]), optim.SGD([w, b], lr=0.1)
        if first:  # a gradient of rows is there when the function is first called
            with gm:
                gm.backward(cubes(w))

        @decorate
        def step(places):
            with gm:
                gm.backward(((w[places] * b) ** 2).sum())

        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.CompileWarning)
            for k in range(4):
                step(PLACES + k)
                found.append(w.grad.numpy().copy())
                if k % 2:
                    optimizer.step()
                    optimizer.zero_grad()
        return np.stack([*found, w.numpy()])

    for first in (False, True):
        found, expected = both(lambda first=first: run(gradmgr.compile, first), monkeypatch)
        np.testing.assert_allclose(found, expected, rtol=1e-13)
        np.testing.assert_allclose(found, run(lambda f: f, first), rtol=1e-13)


# ---------------------------------------------------------------- steps, clipping, scaling

OPTIONS = {
    optim.SGD: [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}, {"momentum": 0.9, "nesterov": True}],
    optim.Adagrad: [{}, {"weight_decay": 0.1}, {"lr_decay": 0.1, "maximize": True}],
    optim.Adam: [{}, {"amsgrad": True}],
    optim.LBFGS: [{"max_iter": 2}],
}
OPTIMIZERS = [
    getattr(optim, name)
    for name in optim.__all__
    if isinstance(getattr(optim, name), type) and name not in ("Optimizer", "GradScaler", "SparseAdam")
]
CASES = [(kind, options) for kind in OPTIMIZERS for options in OPTIONS.get(kind, [{}])]


def trained(kind, options, dtype="f8", look_up=lambda w, places: w[places], of=lambda w, b: [w, b]):
    w, b = nn.Parameter(TABLE.astype(dtype)), nn.Parameter(np.ones(4, dtype))
    gm, optimizer = GradManager().attach([w, b]), kind(of(w, b), lr=0.1, **options)
    is_sparse = []
    for k in range(3):

        def closure(k=k):
            optimizer.zero_grad(set_to_none=k == 1)
            with gm:
                y = ((look_up(w, REPEATED - k) - 1) ** 2 * b**2).sum() + (b * b).sum()
                gm.backward(y)
            is_sparse.append(w.grad.is_sparse)
            return y

        if kind is optim.LBFGS:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return w.numpy(), b.numpy(), is_sparse[0]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
def test_each_optimiser_steps_as_by_the_whole_gradient(kind, options, dtype, monkeypatch):
    with np.errstate(all="ignore"):
        (*found, is_sparse), (*expected, is_also) = both(lambda: trained(kind, options, dtype), monkeypatch)
    assert (is_sparse, is_also) == (True, False)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sparse_adam_takes_them():
    found, expected = (
        trained(optim.SparseAdam, {}, look_up=look_up, of=lambda w, b: [w])
        for look_up in (lambda w, places: w[places], lambda w, places: embedding(places % 9000, w, sparse=True))
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-13)


def test_a_step_that_is_recorded_takes_the_whole_gradient(monkeypatch):
    def run():
        w = tensor(TABLE)
        optimizer = optim.SGD([w], lr=0.1, differentiable=True)
        with GradManager().attach(w) as gm:
            gm.backward(cubes(w))
        optimizer.step()
        return w

    assert_same_bits(*both(run, monkeypatch))


def test_a_step_by_rows_leaves_other_memory_alone():
    w = nn.Parameter(TABLE)
    with GradManager().attach(w) as gm:
        gm.backward(cubes(w))
    optim.SGD([w], lr=0.1).step()
    assert w.grad.is_sparse
    optim.Adam([w], lr=0.1).step()
    assert not w.grad.is_sparse


@pytest.mark.parametrize("order", [1, 2, np.inf])
def test_clipping_by_norm(order, monkeypatch):
    def run():
        g = gradient(cubes)
        w = tensor(TABLE)
        w.grad = g
        total = optim.clip_grad_norm_(w, 0.5, order)
        return total.item(), w.grad.is_sparse, w.grad.numpy()

    found, expected = both(run, monkeypatch)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-15)
    assert found[1:2] == (True,)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-15)


@pytest.mark.parametrize("bounds", [0.3, (-0.1, 0.2), (0.1, 0.2), (-0.2, -0.1)])
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_clipping_by_value(bounds, is_asked_for):
    def loss(w):
        return (embedding(PLACES % 9000, w, sparse=True) ** 3).sum() if is_asked_for else cubes(w)

    w = tensor(TABLE)
    with GradManager().attach(w) as gm:
        gm.backward(loss(w))
    low, high = bounds if isinstance(bounds, tuple) else (-bounds, bounds)
    expected = np.clip(gradient(loss).numpy(), low, high)
    optim.clip_grad_value_([w], bounds)
    assert w.grad.is_sparse == (low <= 0 <= high)
    np.testing.assert_array_equal(w.grad, expected)


def test_a_scaler(monkeypatch):
    def run():
        w = tensor(TABLE.astype("f4"))
        scaler, optimizer = optim.GradScaler(init_scale=8.0), optim.Adam([w], lr=0.1)
        gm = GradManager().attach(w)
        for factor in (1.0, np.inf, 2.0):
            optimizer.zero_grad()
            with gm:
                gm.backward(scaler.scale(cubes(w) * factor))
            scaler.step(optimizer)
            scaler.update()
        return np.append(w.numpy().ravel(), np.float32(scaler.get_scale()))

    assert_same_bits(*both(run, monkeypatch))
