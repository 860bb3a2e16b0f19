"""Optimisers, without the numbers of steps: groups, state, errors, and that no value held elsewhere is written to."""

import copy
import gc
import operator
import pickle
import sys
import threading
import tracemalloc

import guard
import numpy as np
import pytest
from helpers import cupy_on_a_gpu

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, distributed, errors, grad, nn, no_grad, optim, tensor, vmap
from gradmgr.optim import _chunks

SMALL = [(8, 16), (16,), (), (0, 2), (16, 3)]
LONG = [(300, 300)]
SHAPES = pytest.mark.parametrize("shapes", [SMALL, LONG, SMALL + LONG], ids=["small", "long", "both"])
MAKERS = {
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: optim.Adam(params, lr=0.1, amsgrad=True),
    "AdamW": lambda params: optim.AdamW(params, lr=0.1),
    "RMSprop": lambda params: optim.RMSprop(params, centered=True, momentum=0.9),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "Lion": lambda params: optim.Lion(params, lr=0.1),
    "Adadelta": lambda params: optim.Adadelta(params, eps=1e-2),
    "Adamax": lambda params: optim.Adamax(params, lr=0.1),
    "NAdam": lambda params: optim.NAdam(params, lr=0.1),
    "RAdam": lambda params: optim.RAdam(params, lr=0.1),
}
EACH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def parameters(shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [tensor(np.asarray(rng.standard_normal(shape)).astype(dtype)) for shape in shapes]


def give_gradients(params, seed=1):
    for p, g in zip(params, parameters([p.shape for p in params], params[0].dtype, seed), strict=True):
        p.grad = g


def values(params):
    return [p.numpy().copy() for p in params]


def addresses(params):
    return [p._array.__array_interface__["data"][0] for p in params]


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_moved(found, before):
    assert all((a != b).all() for a, b in zip(found, before, strict=True) if a.size)


def loss_of(params):
    return sum([(p * p * p).sum() for p in params])


# ---------------------------------------------------------------- training


@EACH
def test_a_with_statement_loop_goes_down(make):
    w, b = parameters([(4, 3), (3,)])
    x, y = np.random.default_rng(2).standard_normal((2, 32, 4))
    y = np.tanh(y[:, :3])
    optimizer, gm = make([w, b]), GradManager().attach([w, b])
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with gm:
            loss = gnp.mean((gnp.tanh(x @ w + b) - y) ** 2)
            gm.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_a_step_inside_the_recording_after_backward():
    (w,) = parameters([(3,)])
    optimizer, gm = optim.SGD([w], lr=0.1), GradManager().attach(w)
    expected = w.numpy().copy()
    for _ in range(3):
        with gm:
            gm.backward((w * w).sum())
            optimizer.step()
            optimizer.zero_grad()
        expected = expected - 0.1 * 2 * expected
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-15)


def test_closure_is_called_first_and_its_loss_returned():
    w = tensor([1.0])
    optimizer = optim.SGD([w], lr=0.5)

    def closure():
        w.grad = tensor([2.0])
        return "loss"

    assert optimizer.step(closure) == "loss"
    assert w.item() == 0.0
    assert optimizer.step() is None


def test_zero_grad():
    w, v = parameters([(3,), (2,)])
    give_gradients([w])
    kept = w.grad
    optimizer = optim.SGD([w, v])
    optimizer.zero_grad(set_to_none=False)
    assert w.grad is kept
    assert w.grad.tolist() == [0, 0, 0]
    assert v.grad is None
    optimizer.zero_grad()
    assert w.grad is None


@SHAPES
@EACH
def test_a_parameter_without_a_gradient_is_left_alone(make, shapes):
    """Its value, its state and its number of steps, as if it had an optimiser of its own."""
    together, apart = parameters(shapes * 2), parameters(shapes * 2)
    optimizer, own = make(together), [make([p]) for p in apart]
    for k in range(6):
        for some in (together, apart):
            give_gradients(some, seed=k)
            for n, p in enumerate(some):
                if (k + n) % 3 == 0:
                    p.grad = None
        before = values(together)
        optimizer.step()
        for o in own:
            o.step()
        assert_equal(values(together), values(apart))
        assert_equal([a for n, a in enumerate(values(together)) if (k + n) % 3 == 0], before[-k % 3 :: 3])
    state = optimizer.state_dict()["state"]
    assert {n: s["step"] for n, s in state.items()} == dict.fromkeys(state, 4)


# ---------------------------------------------------------------- tensors are values


@SHAPES
@EACH
def test_what_somebody_holds_does_not_change(make, shapes):
    params = parameters(shapes)
    optimizer = make(params)
    for k in range(4):
        give_gradients(params, seed=k)
        before = values(params)
        held = [p.detach() for p in params], [p.numpy() for p in params], [p.reshape(-1)[:5] for p in params]
        optimizer.step()
        for kind in held[:2]:
            assert_equal([np.asarray(a) for a in kind], before)
        assert_equal([a.numpy() for a in held[2]], [b.reshape(-1)[:5] for b in before])
        assert_moved(values(params), before)


@SHAPES
@EACH
def test_memory_is_written_in_place_where_it_is_held_nowhere_else(make, shapes):
    params = parameters(shapes)
    optimizer = make(params)
    give_gradients(params)
    optimizer.step()
    for _ in range(3):
        before, where = values(params), addresses(params)
        optimizer.step()
        assert addresses(params) == where
        assert_moved(values(params), before)
    held = params[0].numpy()
    optimizer.step()
    assert addresses(params[:1]) != where[:1]
    del held
    where = addresses(params)
    optimizer.step()
    assert addresses(params) == where


@SHAPES
def test_one_held_view_of_one_parameter_is_enough(shapes):
    """A view of a view, a memoryview, what DLPack handed out: each holds the buffer."""
    params = parameters(shapes)
    optimizer = optim.SGD(params, lr=1.0)
    give_gradients(params)
    for hold in (
        lambda a: a[1:][1:],
        lambda a: memoryview(np.ascontiguousarray(a)),
        lambda a: np.from_dlpack(asarray(a)._array),
        lambda a: a.T,
    ):
        optimizer.step()
        held = hold(params[0]._array)
        before = np.array(held)
        optimizer.step()
        np.testing.assert_array_equal(np.asarray(held), before)


@SHAPES
def test_shared_memory_is_never_written_to(shapes):
    theirs = [np.ones(shape) for shape in shapes]
    big = np.ones((400, 300))
    params = [asarray(a) for a in theirs] + [asarray(big[:300])]
    optimizer = optim.Adam(params, lr=0.5)
    for _ in range(3):
        give_gradients(params)
        optimizer.step()
    assert all((a == 1).all() for a in (*theirs, big))
    assert_moved(values(params), [*theirs, big[:300]])


def test_memory_shared_only_with_the_library_that_owns_it():
    """The last reference to the owner of the memory is ours, and still it is not ours to write to."""
    owner = bytearray(np.ones(70_000).tobytes())
    p = asarray(np.frombuffer(owner))
    optimizer = optim.SGD([p], lr=1.0)
    give_gradients([p])
    optimizer.step()
    assert (np.frombuffer(owner) == 1).all()


@SHAPES
@EACH
def test_a_tape_that_needs_the_old_values(make, shapes):
    params = parameters(shapes)
    optimizer = make(params)
    give_gradients(params)
    optimizer.step()
    gm = GradManager().attach(params)
    with gm:
        y = loss_of(params)
        before = values(params)
        optimizer.step()
        optimizer.zero_grad()
        assert_moved(values(params), before)
        gm.backward(y)
    for p, value in zip(params, before, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), 3 * value * value, rtol=1e-14)


@SHAPES
def test_a_gradient_that_comes_to_an_unrecorded_step_is_an_error(shapes):
    """In each recording, and where the parameter was attached or computed; what had no gradient is not stepped."""
    params = parameters(shapes)
    stepped, rest = params[1:] or params, params[:1] if params[1:] else []
    optimizer = optim.SGD(params, lr=0.1)
    give_gradients(stepped)
    gm, outer = GradManager().attach(params), GradManager().attach(params)
    with outer, gm:
        optimizer.step()
        for p in rest:
            gm.backward((p * 2).sum(), retain=True)
            np.testing.assert_array_equal(p.grad.numpy(), np.full(p.shape, 2.0))
        before = [p.grad for p in params]
        for manager in (gm, outer):
            with pytest.raises(
                errors.RecordingError, match=r"step\(\) of an optimiser changed at .*test_optim.py:\d+, "
            ):
                manager.backward(loss_of(params))
    assert [p.grad for p in params] == before


def test_an_unrecorded_step_that_no_gradient_comes_to_is_no_error():
    """What is computed before it, or of parameters that this recording does not track, or of detached values."""
    w, v = parameters([(3,), (3,)])
    give_gradients([w, v])
    gm, inner = GradManager().attach(w), GradManager().attach([w, v])
    optimizer = optim.SGD([w, v], lr=0.1)
    with gm:
        y = (w * w).sum()
        before = w.numpy()
        optimizer.step()
        with inner:
            inner.backward((w**3).sum())  # to the inner manager the new value is a leaf
        w.grad = None
        gm.backward(y + (v * v).sum() + (w.detach() * 2).sum())
    np.testing.assert_array_equal(w.grad.numpy(), 2 * before)


def test_the_history_shows_an_unrecorded_step():
    (w,) = parameters([(3,)])
    give_gradients([w])
    gm = GradManager().attach({"w": w})
    with gm:
        optim.SGD([w]).step()
        y = w * w
        assert "unrecorded step" in gm.summary()
        assert {edge.node.name() for edge in y.grad_fn.next_functions} == {"unrecorded step"}


def test_a_gradient_that_comes_to_a_step_of_lbfgs_is_an_error():
    (w,) = parameters([(3,)])
    before = w.numpy()
    outer, inner = GradManager().attach(w), GradManager().attach(w)
    optimizer = optim.LBFGS([w], max_iter=3)

    def closure():
        optimizer.zero_grad()
        with inner:
            loss = ((w - 1) ** 2).sum()
            inner.backward(loss)
        return loss

    with outer:
        y = (w * w).sum()
        optimizer.step(closure)
        w.grad = None
        outer.backward(y, retain=True)
        with pytest.raises(errors.RecordingError, match="differentiable=True"):
            outer.backward(loss_of([w]))
    np.testing.assert_array_equal(w.grad.numpy(), 2 * before)
    np.testing.assert_allclose(w.numpy(), 1.0)


def test_a_gradient_that_comes_to_a_step_divided_among_ranks_is_an_error():
    w, rate = tensor([1.0, 2.0]), tensor(0.5)
    distributed.init()
    try:
        optimizer = distributed.ZeroRedundancyOptimizer([w], optim.SGD, lr=rate)
        for attached in (w, rate):
            gm = GradManager().attach(attached)
            with gm:
                w.grad = tensor([1.0, 1.0])
                optimizer.step()
                with pytest.raises(errors.RecordingError, match="differentiable=True"):
                    gm.backward((w * 2).sum())
        assert w.tolist() == [0.0, 1.0]
    finally:
        distributed.finalize()


def test_after_a_step_within_no_grad_parameters_are_constants():
    (w,) = parameters([(3,)])
    give_gradients([w])
    gm = GradManager().attach(w)
    with gm:
        with no_grad():
            optim.Adam([w]).step()
        assert not w.requires_grad
        with pytest.raises(errors.NotRecordedError):
            gm.backward((w * 2).sum())


@pytest.mark.parametrize("asked", ["backward", "grad"])
def test_a_learning_rate_that_is_tracked_is_an_input_of_a_step(asked):
    """Of which the derivative is asked for, and would be missing."""
    w, rate = tensor([1.0, 2.0]), tensor(0.1)
    give_gradients([w])
    gm = GradManager().attach(rate)
    with gm:
        optim.SGD([w], lr=rate).step()
        with pytest.raises(errors.RecordingError, match="differentiable=True"):
            gm.backward(w.sum()) if asked == "backward" else grad(w.sum(), [rate], allow_unused=True)


def test_an_outer_managers_derivative_through_an_inner_step():
    """The inner gradient is differentiated at the values before the step."""
    (w,) = parameters([(5,)])
    value = w.numpy().copy()
    optimizer = optim.SGD([w], lr=0.1)
    outer, inner = GradManager().attach(w), GradManager().attach(w)
    with outer:
        with inner:
            inner.backward((w**3).sum())
        first = w.grad
        optimizer.step()
        w.grad = None
        outer.backward(first.sum())
    np.testing.assert_allclose(w.grad.numpy(), 6 * value, rtol=1e-14)
    np.testing.assert_allclose(w.numpy(), value - 0.1 * 3 * value**2, rtol=1e-14)


@SHAPES
@EACH
def test_what_was_written_to_a_parameter_between_steps_counts(make, shapes):
    params, plain = parameters(shapes), parameters(shapes)
    optimizer, own = make(params), [make([p]) for p in plain]
    for k in range(5):
        for some in (params, plain):
            give_gradients(some, seed=k)
            if k == 2:
                some[0] *= 0.5
            if k == 3:
                some[-1][...] = 1.5
        optimizer.step()
        for o in own:
            o.step()
        assert_equal(values(params), values(plain))


def test_a_write_to_one_parameter_does_not_change_the_others():
    params = parameters(SMALL)
    optimizer = optim.SGD(params, lr=0.1)
    give_gradients(params)
    optimizer.step()
    before = values(params)
    params[0][...] = 7.0
    params[1] += 1.0
    assert (params[0].numpy() == 7).all()
    assert_equal(values(params[2:]), before[2:])


def test_optimisers_that_share_parameters():
    shared, reference = parameters(SMALL), parameters(SMALL)
    a, b = optim.SGD(shared, lr=0.1), optim.SGD(shared[::-1], lr=0.2)
    give_gradients(shared)
    give_gradients(reference)
    for _ in range(3):
        a.step()
        b.step()
        for p in reference:
            p -= 0.1 * p.grad
            p -= 0.2 * p.grad
    for p, q in zip(shared, reference, strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-14)


def test_a_gradient_that_is_the_parameter_itself():
    for shape in ((3,), (300, 300)):
        p = tensor(np.ones(shape))
        p.grad = p.detach()
        g = p.grad
        optimizer = optim.SGD([p], lr=0.25)
        optimizer.step()
        optimizer.step()
        assert (p.numpy() == 0.5).all()
        assert (g.numpy() == 1).all()


@SHAPES
def test_gradients_are_not_written_to(shapes):
    params = parameters(shapes)
    optimizer = optim.Adam(params, weight_decay=0.1, maximize=True)
    give_gradients(params)
    before = [p.grad.numpy().copy() for p in params]
    optimizer.step()
    assert_equal([p.grad.numpy() for p in params], before)


def test_no_step_allocates_as_much_as_the_parameters():
    params = parameters([(1000,)] * 100 + [(400, 400)])
    optimizer = optim.AdamW(params)
    give_gradients(params)
    for _ in range(3):
        optimizer.step()
    tracemalloc.start()
    try:
        optimizer.step()
        base = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(5):
            optimizer.step()
        end, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    total = sum(p.nbytes for p in params)
    assert peak - base < total / 50
    assert end - base < 4096


def test_it_keeps_nothing_alive_and_needs_no_collector():
    gc.collect()
    gc.disable()
    try:
        params = parameters(SMALL + LONG)
        optimizer = optim.Adam(params)
        give_gradients(params)
        optimizer.step()
        array = params[0]._array
        flat, count = array.base, sys.getrefcount(array)
        del params, optimizer
        assert sys.getrefcount(array) < count
        assert sys.getrefcount(flat) == 3  # here, in the view, and as the argument
    finally:
        gc.enable()


# ---------------------------------------------------------------- threads


def run_threads(*functions):
    faults = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # a thread's failure, whatever it is, is the test's
            faults.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def test_threads_that_step_one_optimiser_wait_for_each_other():
    for _ in range(20):
        params = parameters([(3,), (200, 200), (4, 4)])
        optimizer = optim.Adam(params)
        give_gradients(params)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            run_threads(*[lambda optimizer=optimizer: [optimizer.step() for _ in range(3)]] * 3)
        finally:
            sys.setswitchinterval(before)
        assert [state["step"] for state in optimizer.state_dict()["state"].values()] == [9, 9, 9]


def test_threads_that_train_copies_of_their_own_do_not_meet():
    def train(seed, found):
        (w,) = parameters([(20,)], seed=seed)
        optimizer, gm = optim.Adam([w], lr=0.1), GradManager().attach(w)
        for _ in range(100):
            optimizer.zero_grad()
            with gm:
                gm.backward((w * w).sum())
            optimizer.step()
        found[seed] = w.numpy()

    alone, together = {}, {}
    for seed in range(3):
        train(seed, alone)
    run_threads(*[lambda seed=seed: train(seed, together) for seed in range(3)])
    for seed in range(3):
        np.testing.assert_array_equal(together[seed], alone[seed])


@SHAPES
def test_a_step_corrupts_no_tape_of_another_thread(shapes):
    """One thread steps, others differentiate cubes of the same parameters, whose elements are all one number."""
    params = [tensor(np.ones(shape)) for shape in shapes]
    optimizer = optim.SGD(params, lr=0.001)
    for p in params:
        p.grad = tensor(np.ones(p.shape))
    done = threading.Event()

    def step():
        try:
            for _ in range(150):
                optimizer.step()
        finally:
            done.set()

    def differentiate():
        while not done.is_set():
            gm = GradManager().attach(params)
            with gm:
                cubes = [p * p * p for p in params]
                found = grad(cubes, params, [np.ones(c.shape) for c in cubes])
            for t in (*cubes, *found):
                assert len(np.unique(t.numpy())) <= 1

    run_threads(step, differentiate, differentiate)
    for p in params:
        np.testing.assert_allclose(p.numpy(), 1 - 150 * 0.001, rtol=1e-12)


# ---------------------------------------------------------------- parameters and groups


def test_groups_have_their_own_options_which_may_change():
    a, b, c = tensor([1.0]), tensor([1.0]), tensor([1.0])
    optimizer = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.25}], lr=0.5)
    optimizer.add_param_group({"params": [c], "lr": 1.0, "weight_decay": 1.0})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25, 1.0]
    assert optimizer.param_groups[1]["params"] == [b]
    for p in (a, b, c):
        p.grad = tensor([1.0])
    optimizer.step()
    assert [p.item() for p in (a, b, c)] == [0.5, 0.75, -1.0]
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    assert [p.item() for p in (a, b, c)] == [0.375, 0.5, -1.0]


@pytest.mark.parametrize(
    "form",
    [
        lambda a, b: [a, b],
        lambda a, b: (p for p in (a, b)),
        lambda a, b: {"a": a, "b": b},
        lambda a, b: [("a", a), ("b", b)],
        lambda a, b: {"a": a, "b": b}.items(),
        lambda a, b: [{"params": [("a", a)]}, {"params": {"b": b}}],
    ],
)
def test_parameters_come_in_many_forms(form):
    a, b = tensor([1.0]), tensor([2.0])
    optimizer = optim.SGD(form(a, b), lr=1.0)
    a.grad = b.grad = tensor([1.0])
    optimizer.step()
    assert (a.item(), b.item()) == (0.0, 1.0)
    names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    assert names in ([], ["a", "b"])


def test_repr_shows_options():
    text = repr(optim.SGD([tensor([1.0, 2.0])], lr=0.5))
    assert text.startswith("SGD (\n  group 0: 1 parameters of 2 numbers\n    lr: 0.5")


def test_a_parameter_that_is_cast_after_steps_goes_on_in_its_new_dtype():
    p, q = parameters([(3,), (4,)])
    optimizer = optim.SGD([p, q], lr=0.5, momentum=0.5)
    p.grad, q.grad = tensor(np.ones(3)), tensor(np.ones(4))
    optimizer.step()
    start = p.numpy().astype("f4")
    p._array, p._grad = p._array.astype("f4"), None
    p.grad = tensor(np.ones(3, "f4"))
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), start - np.float32(0.5 * 1.5), strict=True)
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].dtype == np.float32
    assert optimizer.state_dict()["state"][1]["momentum_buffer"].dtype == np.float64


# ---------------------------------------------------------------- state


@SHAPES
@EACH
def test_a_resume_is_exact(make, shapes):
    params = parameters(shapes)
    optimizer = make(params)
    for k in range(3):
        give_gradients(params, seed=k)
        params[0].grad = None if k == 1 else params[0].grad
        optimizer.step()
    saved, there = copy.deepcopy(optimizer.state_dict()), values(params)
    resumed = [tensor(a) for a in there]
    other = make(resumed)
    other.load_state_dict(saved)
    for k in range(3, 6):
        for some, o in ((params, optimizer), (resumed, other)):
            give_gradients(some, seed=k)
            o.step()
    assert_equal(values(resumed), values(params))


def test_state_dict_is_a_copy_by_the_parameters_numbers():
    a, b, c = parameters([(2,), (3,), (300, 300)])
    optimizer = optim.Adam([{"params": [a, b]}, {"params": [c], "lr": 0.5}])
    give_gradients([a, b, c])
    b.grad = None
    optimizer.step()
    saved = optimizer.state_dict()
    assert set(saved) == {"state", "param_groups"}
    assert set(saved["state"]) == {0, 2}
    assert set(saved["state"][2]) == {"step", "exp_avg", "exp_avg_sq"}
    assert saved["state"][0]["step"] == 1
    assert isinstance(saved["state"][0]["exp_avg"], Tensor)
    assert saved["state"][2]["exp_avg"].shape == (300, 300)
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1], [2]]
    assert saved["param_groups"][1]["lr"] == 0.5
    before = saved["state"][2]["exp_avg"].numpy().copy()
    optimizer.step()
    np.testing.assert_array_equal(saved["state"][2]["exp_avg"].numpy(), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])  # noqa: S301  # our own
def test_an_optimiser_is_copied_with_its_parameters(copied):
    params = parameters(SMALL + LONG)
    optimizer = optim.Adam(params, lr=0.1)
    give_gradients(params)
    optimizer.step()
    others, other = copied((params, optimizer))
    for some, o in ((params, optimizer), (others, other)):
        give_gradients(some, seed=2)
        o.step()
    assert not {id(p) for p in params} & {id(p) for p in others}
    assert_equal(values(others), values(params))


def test_a_loaded_state_is_a_copy_and_may_hold_arrays_and_numbers_of_files():
    (p,) = parameters([(2,)])
    optimizer = optim.SGD([p], lr=1.0, momentum=0.5)
    buffer = np.array([2.0, 4.0], "f4")
    saved = optimizer.state_dict()
    saved["state"] = {"0": {"step": np.int64(1), "momentum_buffer": buffer}}
    optimizer.load_state_dict(saved)
    start = p.numpy().copy()
    p.grad = tensor([0.0, 0.0])
    optimizer.step()
    np.testing.assert_array_equal(p.numpy(), start - [1, 2])
    assert buffer.tolist() == [2, 4]


TORCHS = [
    *[
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {}),
        ("Adagrad", {}),
        ("NAdam", {}),
    ],
    *[("RMSprop", {"centered": True, "momentum": 0.9}), ("RAdam", {}), ("Adadelta", {}), ("Adamax", {})],
]


@pytest.mark.parametrize(("name", "options"), TORCHS)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_the_state_of_torchs_optimiser_goes_on(name, options, as_arrays):
    torch = pytest.importorskip("torch", reason="its state is loaded")
    theirs = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, name)([theirs], lr=0.1, **options)

    def steps(count, p, optimizer, made):
        for k in range(count):
            p.grad = made(np.cos(k + np.arange(3.0)))
            optimizer.step()

    steps(3, theirs, optimizer, torch.tensor)
    state = copy.deepcopy(optimizer.state_dict())
    if as_arrays:
        state["state"] = {
            k: {key: np.asarray(value) if torch.is_tensor(value) else value for key, value in one.items()}
            for k, one in state["state"].items()
        }
    p = tensor(theirs.detach().numpy())
    ours = getattr(optim, name)([p])
    ours.load_state_dict(state)
    steps(2, theirs, optimizer, torch.tensor)
    steps(2, p, ours, tensor)
    np.testing.assert_allclose(p.numpy(), theirs.detach().numpy(), rtol=1e-7)  # torch keeps a product in float32


def test_missing_attributes_say_what_to_use():
    optimizer = optim.SGD([tensor(1.0)])
    with pytest.raises(AttributeError, match=r"'SGD' object has no attribute 'state'; use state_dict\(\)\['state'\]"):
        _ = optimizer.state
    with pytest.raises(AttributeError, match=r"'clear_grad'; use zero_grad\(\)"):
        optimizer.clear_grad()
    with pytest.raises(AttributeError, match=r"has no attribute 'rate'$"):
        _ = optimizer.rate


def test_every_misfit_of_a_state_is_listed_and_nothing_loaded():
    a, b = tensor(np.ones(2)), tensor(np.ones(3))
    optimizer = optim.Adam([("a", a), ("b", b)], lr=0.5)
    give_gradients([a, b])
    optimizer.step()
    good = optimizer.state_dict()
    bad = copy.deepcopy(good)
    bad["param_groups"][0] |= {"lr": -1.0, "param_names": ["a", "c"]}
    bad["param_groups"][0].pop("eps")
    bad["param_groups"][0]["unheard_of"] = 1
    bad["state"][0]["exp_avg"] = tensor(np.ones(5))
    bad["state"][0]["momentum_buffer"] = tensor(np.ones(2))
    bad["state"][0]["exp_avg_sq"] = "none"
    bad["state"][1]["exp_avg_sq"] = tensor(np.ones(3) * 1j)
    bad["state"][1].pop("step")
    bad["state"][7] = {"step": 1}
    with pytest.raises(errors.StateError) as caught:
        optimizer.load_state_dict(bad)
    text = str(caught.value)
    for said in (
        "option 'eps' is missing",
        "option 'unheard_of' is not known",
        "the name of a parameter is 'c', here 'b'",
        "parameter 0: 'exp_avg' has shape (5,), the parameter (2,)",
        "parameter 0: 'exp_avg_sq' is neither Tensor nor array; found builtins.str",
        "parameter 0: 'momentum_buffer' is not of this algorithm",
        "parameter 1: 'exp_avg_sq' has dtype complex128, the parameter float64",
        "parameter 1: 'step' is missing",
        "parameter 7: the optimiser has none of this number",
    ):
        assert said in text
    now = optimizer.state_dict()
    assert now["param_groups"] == good["param_groups"]
    for k in good["state"]:
        assert_equal(
            [np.asarray(v) for v in now["state"][k].values()], [np.asarray(v) for v in good["state"][k].values()]
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda saved: {}, "not a dict with 'state' and 'param_groups'"),
        (lambda saved: {**saved, "param_groups": saved["param_groups"] * 2}, "2 parameter groups, the optimiser 1"),
        (lambda saved: {**saved, "param_groups": [{**saved["param_groups"][0], "params": [0]}]}, "has 1 parameters"),
        (lambda saved: {**saved, "param_groups": [{**saved["param_groups"][0], "lr": -1}]}, "lr must be at least 0"),
    ],
)
def test_a_state_of_another_form_is_refused(change, said):
    params = parameters([(2,), (3,)])
    optimizer = optim.SGD(params)
    with pytest.raises(errors.StateError, match=said):
        optimizer.load_state_dict(change(optimizer.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 1e-3


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda p: optim.SGD([]), ValueError, "no parameters"),
        (lambda p: optim.SGD(p), TypeError, "takes several parameters"),
        (lambda p: optim.SGD(3), TypeError, "iterable of Tensors"),
        (lambda p: optim.SGD([p, np.ones(2)]), TypeError, "parameter 1 is not a Tensor; found ndarray"),
        (lambda p: optim.SGD([p, p]), ValueError, "twice"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}]), ValueError, "in group 0 already"),
        (lambda p: optim.SGD([{"parameters": [p]}]), TypeError, "a dict with 'params'"),
        (lambda p: optim.SGD([{"params": [p], "rate": 1}]), TypeError, "no option 'rate'"),
        (lambda p: optim.SGD([p, ("b", p)]), ValueError, "either all parameters are given"),
        (lambda p: optim.SGD({"i": tensor([1, 2])}), errors.DtypeError, "parameter 'i'.*int64.*cannot have a gradient"),
        (lambda p: optim.SGD([p], lr=-0.1), ValueError, "lr must be at least 0; found -0.1"),
        (lambda p: optim.SGD([p], lr=float("nan")), ValueError, "lr must be at least 0; found nan"),
        (lambda p: optim.SGD([p], lr="fast"), TypeError, "lr must be a number; found 'fast'"),
        (lambda p: optim.SGD([p], lr="0.1"), TypeError, "lr must be a number; found '0.1'"),
        (lambda p: optim.SGD(nn.Sequential(nn.Tanh())), TypeError, "found Tanh; pass model.parameters()"),
        (lambda p: optim.SGD([p], momentum=-1), ValueError, "momentum"),
        (lambda p: optim.SGD([p], nesterov=True), ValueError, "needs a momentum above 0"),
        (lambda p: optim.SGD([p], momentum=0.9, dampening=0.1, nesterov=True), ValueError, "dampening of 0"),
        (
            lambda p: optim.Adam([p], betas=(0.9, 1.0)),
            ValueError,
            r"betas\[1\] must be at least 0 and below 1; found 1",
        ),
        (lambda p: optim.Adam([p], betas=0.9), ValueError, "a pair of numbers; found 0.9"),
        (lambda p: optim.AdamW([p], eps=-1), ValueError, "eps"),
        (lambda p: optim.AdamW([p], weight_decay=-1), ValueError, "weight_decay"),
        (lambda p: optim.RMSprop([p], alpha=-1), ValueError, "alpha"),
        (lambda p: optim.Adagrad([p], lr_decay=-1), ValueError, "lr_decay"),
        (lambda p: optim.Adagrad([p], initial_accumulator_value=-1), ValueError, "initial_accumulator_value"),
        (lambda p: optim.Lion([p], betas=(-0.1, 0.9)), ValueError, r"betas\[0\]"),
    ],
)
def test_wrong_arguments(call, kind, said):
    with pytest.raises(kind, match=said):
        call(tensor([1.0]))


def test_a_refused_group_is_not_added():
    optimizer = optim.SGD([tensor([1.0])])
    with pytest.raises(ValueError, match="lr must be"):
        optimizer.add_param_group({"params": [tensor([2.0])], "lr": -1})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="no parameters"):
        optimizer.add_param_group({"params": []})
    assert len(optimizer.param_groups) == 1


@EACH
def test_a_step_that_fails_changes_nothing(make, unchanged):
    params = parameters(SMALL + LONG)
    optimizer = make(params)
    give_gradients(params)
    optimizer.step()
    state = optimizer.state_dict()
    params[-1]._grad = tensor(np.ones(3))  # past the check of the property
    with unchanged([], params), pytest.raises(errors.ShapeError, match=r"has shape \(3,\)"):
        optimizer.step()
    params[-1]._grad = None
    optimizer.param_groups[0]["lr"] = "fast"
    with unchanged([], params), pytest.raises((TypeError, ValueError)):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = state["param_groups"][0]["lr"]
    for k, saved in optimizer.state_dict()["state"].items():
        assert_equal(map(np.asarray, saved.values()), map(np.asarray, state["state"][k].values()))


def test_floating_point_errors_do_not_stop_half_way():
    p, q = tensor(np.full(3, 1e308)), tensor(np.ones(300 * 300))
    optimizer = optim.Adam([p, q], lr=0.1)
    p.grad, q.grad = tensor(np.full(3, 1e308)), tensor(np.zeros(300 * 300))
    with np.errstate(all="raise"):
        optimizer.step()
    assert optimizer.state_dict()["state"][1]["step"] == 1


def test_the_state_of_floating_point_errors_is_as_before_a_step(monkeypatch):
    p = tensor(np.full(3, 1e308))
    optimizer = optim.SGD([p], lr=1e300)
    p.grad = tensor(np.full(3, 1e308))
    with np.errstate(over="raise", divide="print"):
        before = np.geterr()
        optimizer.step()
        assert np.geterr() == before
        monkeypatch.setattr(_chunks.Chunk, "step_calls", lambda *args: [(operator.truediv, 1, 0)])
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        assert np.geterr() == before
    assert (p.numpy() == -np.inf).all()


def test_gradients_are_looked_at_in_each_step(unchanged):
    """Those of small parameters too, after steps that were all alike; past the check of the property."""
    params = parameters(SMALL)
    optimizer = optim.SGD(params, lr=1.0)
    give_gradients(params)
    for _ in range(3):
        optimizer.step()
    for wrong in (np.ones(128), np.ones((16, 8))):
        params[0]._grad = tensor(wrong)
        with unchanged([], params), pytest.raises(errors.ShapeError, match=r"has shape \("):
            optimizer.step()
    good, before = tensor(np.ones((8, 16))), values(params)

    def inside(x):
        params[0]._grad = x * good
        with pytest.raises(errors.BatchedValueError, match="step outside of it"):
            optimizer.step()
        return x

    vmap(inside)(tensor(np.ones((3, 8, 16))))
    assert_equal(values(params), before)


def test_a_gradient_that_differs_by_example_is_refused():
    p = tensor([1.0, 2.0])
    optimizer = optim.SGD([p], lr=1.0)

    def inside(x):
        p._grad = x * p
        with pytest.raises(errors.BatchedValueError, match="step outside of it"):
            optimizer.step()
        p._grad = None
        return x

    vmap(inside)(tensor(np.ones((3, 2))))
    assert p.tolist() == [1, 2]


def test_a_later_gradient_that_differs_by_example_is_refused():
    p, q = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    optimizer = optim.SGD([p, q], lr=1.0)

    def inside(x):
        p._grad, q._grad = tensor([1.0, 1.0]), x * q
        with pytest.raises(errors.BatchedValueError, match="step outside of it"):
            optimizer.step()
        return x

    vmap(inside)(tensor(np.ones((3, 2))))
    assert p.tolist() == [1, 2]
    assert q.tolist() == [3, 4]


def test_a_parameter_that_differs_by_example_is_refused():
    p = tensor([1.0, 2.0])
    p.grad = tensor([1.0, 1.0])

    def inside(x):
        q = tensor([3.0, 4.0]) * x
        q._grad = tensor([1.0, 1.0])
        with pytest.raises(errors.BatchedValueError, match="step outside of it"):
            optim.SGD([p, q], lr=1.0).step()
        return x

    vmap(inside)(tensor(np.ones((3, 2))))
    assert p.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["lr", "weight_decay", "momentum"])
def test_an_option_of_the_last_group_that_is_no_number_changes_nothing(name):
    params = parameters([(3,), (300, 300), (4,)])
    optimizer = optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=0.1, momentum=0.5)
    give_gradients(params)
    before = values(params)
    optimizer.param_groups[1][name] = "much"
    with pytest.raises(TypeError, match=f"{name} must be a number; found 'much'"):
        optimizer.step()
    assert_equal(values(params), before)
    assert not optimizer.state_dict()["state"]


# ---------------------------------------------------------------- clipping

CLIPPED = [
    (1.0, 19.0, [0.39473676681518555, -0.5263156890869141, 1.5789470672607422, 0.0]),
    (2.0, 13.0, [0.5769230127334595, -0.7692307233810425, 2.307692050933838, 0.0]),
    (3.0, 12.207056999206543, [0.6143986582756042, -0.8191981911659241, 2.457594633102417, 0.0]),
    (float("inf"), 12.0, [0.6249999403953552, -0.8333332538604736, 2.499999761581421, 0.0]),
    (0.5, 51.78461456298828, [0.14483067393302917, -0.19310756027698517, 0.5793226957321167, 0.0]),
]


@pytest.mark.parametrize(("order", "total", "expected"), CLIPPED)
def test_clip_grad_norm_is_torchs(order, total, expected):
    a, b, c = tensor(np.zeros(2, "f4")), tensor(np.zeros((1, 2), "f4")), tensor(np.zeros(3, "f4"))
    a.grad, b.grad = tensor(np.array([3, -4], "f4")), tensor(np.array([[12, 0]], "f4"))
    grads = a.grad, b.grad
    found = optim.clip_grad_norm_([a, b, c], 2.5, order)
    assert isinstance(found, Tensor)
    assert (found.shape, found.dtype) == ((), np.float32)
    assert found.item() == pytest.approx(total, rel=1e-6)
    assert (a.grad, b.grad, c.grad) == (*grads, None)
    np.testing.assert_allclose([*a.grad.tolist(), *b.grad.tolist()[0]], expected, rtol=1e-6)


def test_what_is_short_enough_is_not_touched():
    p = tensor(np.zeros(2))
    p.grad = tensor([3.0, 4.0])
    array = p.grad._array
    assert optim.clip_grad_norm_([p], 6.0).item() == 5.0
    assert p.grad._array is array


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("order", [0.5, 1, 2, 3, np.inf])
def test_norms_of_small_and_long_gradients_together(dtype, order):
    params = parameters([(3, 4), (), (0,), (300, 300)], dtype)
    if dtype[0] == "c":
        params = [tensor(p.numpy() * np.exp(1j).astype(dtype)) for p in params]
    for p in params:
        p.grad = tensor(p.numpy())
    flat = np.concatenate([p.grad.numpy().ravel() for p in params]).astype("c16")
    expected = np.linalg.norm(flat, order)
    tolerance = {"f2": 2e-3, "f4": 1e-5, "c8": 1e-5}.get(dtype, 1e-12)
    assert optim.get_total_norm([p.grad for p in params], order).item() == pytest.approx(expected, rel=tolerance)
    held = params[3].grad.numpy()
    copied = held.copy()
    optim.clip_grad_norm_(params, expected / 2, order)
    np.testing.assert_array_equal(held, copied)
    after = np.concatenate([p.grad.numpy().ravel() for p in params])
    assert after.dtype == dtype
    expected = flat * (expected / 2) / (expected + 1e-6)
    np.testing.assert_allclose(after, expected, rtol=tolerance, atol=1e-3 if dtype == "f2" else 1e-12)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_norms_do_not_overflow_or_vanish_in_between(dtype):
    big, tiny = np.finfo(dtype).max / 4, np.finfo(dtype).tiny * 4
    for size in (big, tiny):
        t = tensor(np.array([3, 4], dtype) * (np.asarray(size, dtype) / 4))
        assert optim.get_total_norm([t]).item() == pytest.approx(float(size) / 4 * 5, rel=1e-2)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_norms_that_are_not_finite(bad, unchanged):
    a, b = tensor(np.zeros(2)), tensor(np.zeros(300 * 300))
    a.grad, b.grad = tensor([1.0, 2.0]), tensor(np.ones(300 * 300))
    b.grad[7] = bad
    with (
        unchanged([], [a, b]),
        pytest.raises(
            errors.NonFiniteError, match=r"gradient 1, .*\(90000,\).* has 1 of 90000 numbers infinite or NaN"
        ),
    ):
        optim.clip_grad_norm_([a, b], 1.0, error_if_nonfinite=True)
    assert not np.isfinite(optim.clip_grad_norm_([a, b], 1.0).item())
    assert np.isnan(b.grad.numpy()[7])
    assert np.isnan(a.grad.numpy()).all() if np.isnan(bad) else (a.grad.numpy() == 0).all()


def test_clip_grad_value():
    a, b = tensor(np.zeros(3)), tensor(np.zeros(70_000))
    c = tensor(np.zeros(1) * 1j)
    a.grad, b.grad, c.grad = tensor([0.5, -3.0, 3.0]), tensor(np.full(70_000, -9.0)), tensor([3 - 0.25j])
    grads, held = (a.grad, b.grad, c.grad), b.grad.numpy()
    assert optim.clip_grad_value_([a, b, c, tensor([1.0])], 1) is None
    assert (a.grad, b.grad, c.grad) == grads
    assert a.grad.tolist() == [0.5, -1.0, 1.0]
    assert (b.grad.numpy() == -1).all()
    assert (held == -9).all()
    assert c.grad.tolist() == [1 - 0.25j]


def test_clip_grad_value_to_two_bounds():
    a = tensor(np.zeros(4))
    a.grad = tensor([0.5, -3.0, 3.0, -0.1])
    optim.clip_grad_value_([a], (-0.25, 2.0))
    assert a.grad.tolist() == [0.5, -0.25, 2.0, -0.1]


def test_long_gradients_are_clipped_in_place():
    p = tensor(np.zeros(300 * 300))
    p.grad = tensor(np.ones(300 * 300))
    where = addresses([p.grad])
    optim.clip_grad_norm_(p, 1.0)
    optim.clip_grad_value_(p, 1e-3)
    assert addresses([p.grad]) == where
    np.testing.assert_array_equal(p.grad.numpy(), 1e-3)


def test_clipping_under_a_manager_makes_constants():
    (w,) = parameters([(3,)])
    outer, inner = GradManager().attach(w), GradManager().attach(w)
    with outer:
        with inner:
            inner.backward((w**3).sum())
        assert w.grad.requires_grad
        optim.clip_grad_norm_([w], 0.1)
        assert not w.grad.requires_grad
    with no_grad():
        optim.clip_grad_value_([w], 0.01)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: optim.clip_grad_norm_([np.ones(2)], 1.0), TypeError, "element 0 is ndarray$"),
        (lambda: optim.clip_grad_norm_([nn.Tanh()], 1.0), TypeError, "element 0 is Tanh; pass model.parameters"),
        (lambda: optim.clip_grad_norm_(3, 1.0), TypeError, "iterable of Tensors; found int"),
        (lambda: optim.clip_grad_norm_([], 1.0, 0), ValueError, "norm_type must be above 0"),
        (lambda: optim.get_total_norm([tensor([1])]), TypeError, "floating Tensors"),
        (lambda: optim.clip_grad_value_([tensor([1.0])], (1.0, -1.0)), ValueError, "lower bound must not be above"),
        (lambda: optim.clip_grad_value_([tensor([1.0])], [1.0]), ValueError, "a number or a pair of bounds; found"),
    ],
)
def test_wrong_arguments_of_clipping(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


def test_no_gradients_have_norm_0():
    assert optim.clip_grad_norm_([tensor([1.0])], 1.0).item() == 0.0
    assert optim.get_total_norm([]).item() == 0.0


# ---------------------------------------------------------------- what a GPU would run


@pytest.fixture
def cupy_with_small_chunks(cupy, monkeypatch):
    monkeypatch.setattr(_chunks, "_GPU_SMALL", 1000)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@EACH
@pytest.mark.usefixtures("cupy_with_small_chunks")
def test_steps_on_arrays_that_are_not_numpys(make, dtype):
    shapes = [(3, 4), (), (0,), (60, 50)]
    host = parameters(shapes, dtype)
    device = [asarray(guard.cupy.asarray(p.numpy().copy())) for p in host]
    both = make(host), make(device)
    for k in range(4):
        give_gradients(host, seed=k)
        for p, q in zip(host, device, strict=True):
            q.grad = asarray(guard.cupy.asarray(p.grad.numpy().copy()))
        for n, params in enumerate((host, device)):
            params[0].grad = None if k == 2 else params[0].grad
            optim.clip_grad_norm_(params, 30.0)
            optim.clip_grad_value_(params, 2.0)
            both[n].step()
        for p, q in zip(host, device, strict=True):
            assert isinstance(q._array, guard.ndarray)
            tolerance = {"f2": 5e-3, "f4": 1e-5, "f8": 1e-12}[dtype]
            np.testing.assert_allclose(q._array._host, p.numpy(), rtol=tolerance, atol=tolerance)
    both[0].load_state_dict(both[1].state_dict())
    both[1].load_state_dict(both[0].state_dict())
    held, where = device[0].detach(), id(device[-1]._array)
    kept = held._array._host.copy()
    both[1].step()
    np.testing.assert_array_equal(held._array._host, kept)
    assert id(device[-1]._array) == where  # written in place, as it was not held


@pytest.mark.usefixtures("cupy_with_small_chunks")
def test_a_scaler_on_arrays_that_are_not_numpys():
    w = asarray(guard.cupy.asarray(np.ones(3, "f4")))
    optimizer, scaler, gm = optim.SGD([w], lr=0.5), optim.GradScaler(), GradManager().attach(w)
    with gm:
        gm.backward(scaler.scale(gnp.sum(w)))
    scaler.step(optimizer)
    scaler.update()
    assert w._array._host.tolist() == [0.5] * 3


# ---------------------------------------------------------------- states that options and files bring in another order


@pytest.mark.parametrize("shapes", [SMALL, LONG], ids=["small", "long"])
def test_an_option_that_needs_no_state_any_more(shapes):
    for make, name, value in (
        (lambda params: optim.SGD(params, lr=0.1, momentum=0.9), "momentum", 0),
        (lambda params: optim.Adam(params, lr=0.1, amsgrad=True), "amsgrad", False),
        (lambda params: optim.RMSprop(params, lr=0.1, momentum=0.9), "momentum", 0),
    ):
        params, twins = parameters(shapes), parameters(shapes)
        one = make(params)
        give_gradients(params)
        one.step()
        for p, q in zip(params, twins, strict=True):
            q[...] = p
        other = make(twins)
        other.load_state_dict(one.state_dict())
        for optimizer, given in ((one, params), (other, twins)):
            optimizer.param_groups[0][name] = value
            give_gradients(given, seed=2)
            optimizer.step()
        assert_equal(values(params), values(twins))
        if name == "momentum" and isinstance(one, optim.SGD):
            before = values(params)
            one.step()
            assert_equal(values(params), [b - 0.1 * p.grad.numpy() for b, p in zip(before, params, strict=True)])


@pytest.mark.parametrize("shapes", [SMALL, LONG], ids=["small", "long"])
def test_states_are_found_by_name_in_any_order(shapes):
    def made():
        params = parameters(shapes)
        return params, optim.Adam(params, lr=0.1, amsgrad=True)

    (params, one), (twins, other) = made(), made()
    give_gradients(params)
    give_gradients(twins)
    one.step()
    other.step()
    saved = other.state_dict()
    saved["state"] = {number: dict(reversed(state.items())) for number, state in saved["state"].items()}
    other.load_state_dict(saved)
    one.step()
    other.step()
    assert_equal(values(params), values(twins))


@pytest.mark.parametrize("shapes", [SMALL, LONG], ids=["small", "long"])
def test_a_state_that_an_option_needs_later_is_not_mixed_up_with_another(shapes):
    params, twins = parameters(shapes), parameters(shapes)
    one = optim.RMSprop(params, lr=0.1, momentum=0.9)
    give_gradients(params)
    one.step()
    for p, q in zip(params, twins, strict=True):
        q[...] = p
    other = optim.RMSprop(twins, lr=0.1, momentum=0.9, centered=True)
    saved = one.state_dict()
    saved["param_groups"][0]["centered"] = one.param_groups[0]["centered"] = True
    other.load_state_dict(saved)
    for optimizer, given in ((one, params), (other, twins)):
        give_gradients(given, seed=2)
        optimizer.step()
    state = one.state_dict()["state"][0]
    assert_equal(values(params), values(twins))
    np.testing.assert_allclose(state["grad_avg"].numpy(), 0.01 * params[0].grad.numpy(), rtol=1e-12)


def test_what_cupy_is_given_for_a_step():
    """One kernel: the types of arrays and constants, the state in and out."""
    given, changed, text = _chunks.kernel_text("W d = y - s0; x -= c2 * d; s0 = d;", 3, 1, "float", decays=True)
    assert given == "T g, float32 sign, float32 c0, float32 c1, float32 c2"
    assert changed == "T p, T r0"
    assert text == (
        "float x = (float)p * c1; float y = (float)g * sign + c0 * x; float s0 = (float)r0; "
        "float d = y - s0; x -= c2 * d; s0 = d; p = (T)x; r0 = (T)s0;"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@EACH
def test_steps_on_a_gpu_are_those_on_the_cpu(make, dtype):
    cupy_on_a_gpu()
    host = parameters([(3, 4), (), (0,), (1100, 1000)], dtype)
    device = [tensor(p.numpy(), device="cuda:0") for p in host]
    optimizers = make(host), make(device)
    tolerance = {"f2": 2e-2, "f8": 1e-10}.get(dtype, 1e-4)
    for k in range(5):
        give_gradients(host, seed=k)
        for p, q in zip(host, device, strict=True):
            q.grad = p.grad.to("cuda:0")
        norms = [optim.clip_grad_norm_(params, 30.0).item() for params in (host, device)]
        assert norms[0] == pytest.approx(norms[1], rel=tolerance)
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(host, device, strict=True):
            assert q.device == "cuda:0"
            np.testing.assert_allclose(q.to("cpu").numpy(), p.numpy(), rtol=tolerance, atol=tolerance)
    before = [q.detach() for q in device]
    kept = [q.to("cpu").numpy() for q in device]
    optimizers[1].step()
    assert_equal([q.to("cpu").numpy() for q in before], kept)
    saved = optimizers[1].state_dict()
    optimizers[0].load_state_dict(saved)
