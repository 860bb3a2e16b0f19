"""The tools of torch.autograd in many threads and tasks at once: each keeps to its own context, none loses anything."""

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import copies, in_a_thread, in_threads

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, anomaly, errors, forward_ad, functional, graph, no_grad, tensor, vmap
from gradmgr._engine.elementwise import elementwise
from gradmgr._engine.entry import KINDS, VJPS
from gradmgr._engine.observers import ObservedEntries, Observer, observing
from gradmgr._engine.op import OPS
from gradmgr._transforms.checkpoint import checkpoint
from gradmgr.function import Function, custom_op
from gradmgr.profiler import profile, record_function

pytestmark = pytest.mark.usefixtures("quick_switches")

THREADS = 6


class Square(Function):
    """x * x, with a note on ctx that only its own backward may see."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.save_for_backward(x)
        ctx.record_op = note
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.record_op == threading.get_ident()
        return 2 * x * g, None


@custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
def growth(x, rate):
    return np.exp(rate * x)


# ---------------------------------------------------------------- hooks


def test_hooks_on_a_shared_leaf_fire_in_the_backward_of_every_thread():
    shared = tensor([2.0, 3.0])
    keeper = GradManager().attach(shared)
    fired = {"tensor": [], "post": [], "node": [], "result": []}
    shared.register_hook(lambda g: (fired["tensor"].append(threading.get_ident()), g * 2)[1])
    shared.register_post_accumulate_grad_hook(lambda t: fired["post"].append(threading.get_ident()))

    def work(k):
        gm = GradManager().attach(shared)
        for _ in range(30):
            with gm:
                y = shared * float(k)
                y.register_hook(lambda g: fired["result"].append(threading.get_ident()))
                y.grad_fn.register_hook(lambda gs, _: (fired["node"].append(threading.get_ident()), (gs[0] * 5,))[1])
                gm.backward(y.sum())
        return threading.get_ident()

    threads = in_threads(THREADS, work)
    assert shared.grad.tolist() == [30 * 2 * 5 * sum(range(THREADS))] * 2
    assert {name: sorted(seen) for name, seen in fired.items()} == dict.fromkeys(fired, sorted(threads * 30))
    assert keeper.attached_tensors() == [shared]


def test_a_multi_grad_hook_on_shared_leaves_gathers_for_each_thread_by_itself():
    a, b = tensor([2.0]), tensor([3.0])
    keeper = GradManager().attach([a, b])
    seen, first = [], []
    graph.register_multi_grad_hook([a, b], lambda gs: seen.append(tuple(g if g is None else g.item() for g in gs)))
    graph.register_multi_grad_hook([a, b], lambda g: first.append(g.item()), mode="any")

    def work(k):
        gm = GradManager().attach([a, b])
        for _ in range(30):
            with gm:
                y = a * float(k)
                gm.backward(y + b * float(10 * k) if k % 2 else y)

    in_threads(THREADS, work)
    expected = [(float(k), 10.0 * k if k % 2 else None) for k in range(THREADS) for _ in range(30)]
    assert sorted(seen, key=str) == sorted(expected, key=str)
    assert len(first) == THREADS * 30
    assert len(keeper.attached_tensors()) == 2


def test_hooks_come_and_go_while_other_threads_are_in_backward():
    shared = tensor(np.ones(3))
    keeper = GradManager().attach(shared)
    training = threading.Semaphore(0)

    def come_and_go():
        while not training.acquire(blocking=False):
            with shared.register_hook(lambda g: g * 1), shared.register_post_accumulate_grad_hook(lambda t: None):
                pass

    def train():
        try:
            gm = GradManager().attach(shared)
            for _ in range(100):
                with gm:
                    gm.backward((shared * 2.0).sum())
        finally:
            training.release()

    in_threads(6, lambda k: train() if k % 2 else come_and_go())
    assert shared.grad.tolist() == [3 * 100 * 2.0] * 3
    assert len(keeper.attached_tensors()) == 1


def test_no_callback_is_lost_that_threads_attach_to_one_tensor_at_once():
    for _ in range(50):
        x, gm, seen = tensor([3.0]), GradManager(), []

        def work(k, gm=gm, x=x, seen=seen):
            gm.attach(x, lambda t, g: (seen.append(k), g)[1])

        in_threads(4, work)
        with gm:
            gm.backward(x * x)
        assert sorted(seen) == [0, 1, 2, 3]


def test_workers_that_record_into_one_tape_may_register_hooks_at_once():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(30):
            gate, seen = threading.Barrier(8), []

            def work(k, gate=gate, seen=seen):
                y, z = x * float(k), x * 1.0
                gate.wait()
                y.register_hook(lambda g: seen.append(k))
                z.retain_grad()
                y.grad_fn.metadata["k"] = k
                return y, z

            with gm:
                made = copies(pool, work, 8)
                assert [y.grad_fn.metadata["k"] for y, _ in made] == list(range(8))
                gm.backward([y for y, _ in made] + [z for _, z in made])
            assert sorted(seen) == list(range(8))
            assert [z.grad.item() for _, z in made] == [1.0] * 8


# ---------------------------------------------------------------- Functions and ops


def test_one_function_class_is_applied_in_many_threads():
    shared = tensor([2.0, 3.0])

    def work(k):
        own = tensor([float(k), 1.0])
        gm = GradManager().attach([shared, own])
        for _ in range(30):
            with gm:
                y = Square.apply(own, threading.get_ident()) * growth(shared, 0.0)
                gm.backward((y + Square.apply(shared, threading.get_ident())).sum())
        return own.grad.tolist()

    assert in_threads(THREADS, work) == [[30 * 2.0 * k, 30 * 2.0] for k in range(THREADS)]
    assert shared.grad.tolist() == [THREADS * 30 * 4.0, THREADS * 30 * 6.0]


def test_a_custom_op_is_declared_used_and_dropped_in_every_thread():
    def work(k):
        x = tensor([0.5])
        gm = GradManager().attach(x)
        for _ in range(10):
            cube = custom_op(lambda x: x**3, derivative={"x": lambda t, x: t * 3 * x**2}, name="cube")
            with gm:
                gm.backward(cube(x) * float(k))
        return x.grad.item()

    assert in_threads(THREADS, work) == [10 * k * 0.75 for k in range(THREADS)]


@pytest.fixture
def fresh_op():
    """Declare an op whose templates are not compiled yet; it is struck off the table afterwards."""
    names = []

    def make(name):
        names.append(name)
        return elementwise(name, np.multiply, "g * y", "g * x", operate="x * y")

    yield make
    for name in names:
        del OPS[name]
        for table in (VJPS, KINDS):
            for code in [code for code in table if code.partition(".")[0] == name]:
                del table[code]


def test_templates_are_compiled_by_the_first_calls_of_many_threads_at_once(fresh_op):
    for n in range(20):
        made = fresh_op(f"fresh{n}")

        def work(k, made=made):
            x, y = tensor([3.0]), tensor([5.0])
            outer, gm = GradManager().attach([x, y]), GradManager().attach([x, y])
            with gm:
                gm.backward(made(x, y) + made.operator(x, 2.0) + made.reflected(y, 7.0))
            first = x.grad.item(), y.grad.item()
            x.grad = y.grad = None
            with outer, gm:
                gm.backward(made(x, y))
                slope, x.grad = x.grad, None
                y.grad = None
                outer.backward(slope)
            return (*first, y.grad.item(), x.grad)

        assert in_threads(THREADS, work) == [(7.0, 10.0, 1.0, None)] * THREADS


# ---------------------------------------------------------------- derivatives of derivatives


def test_create_graph_in_many_threads_over_a_shared_leaf():
    shared = tensor([2.0, 3.0])

    def work(k):
        gm = GradManager().attach(shared)
        for _ in range(20):
            with gm:
                y = (shared**3).sum() * float(k + 1)
                (first,) = gradmgr.grad(y, shared, create_graph=True)
                (second,) = gradmgr.grad(first.sum(), shared, create_graph=True)
                (third,) = gradmgr.grad(second.sum(), shared)
            assert second.tolist() == [12.0 * (k + 1), 18.0 * (k + 1)]
            assert third.tolist() == [6.0 * (k + 1)] * 2

    in_threads(THREADS, work)
    assert shared.grad is None


def test_functional_and_vmap_in_many_threads():
    shared = tensor([1.0, 2.0, 3.0])

    def work(k):
        def f(x):
            return (x**3).sum() * float(k + 1)

        for _ in range(5):
            assert functional.hessian(f, shared).tolist() == np.diag(6.0 * (k + 1) * shared.numpy()).tolist()
            jacobian = functional.jacobian(lambda x: x * x * float(k), shared, vectorize=True)
            assert jacobian.tolist() == np.diag(2.0 * k * shared.numpy()).tolist()
            rows = vmap(vmap(lambda a, b: a * b + float(k), in_dims=(None, 0)), in_dims=(0, None))(shared, shared)
            assert rows.tolist() == (np.outer(shared.numpy(), shared.numpy()) + k).tolist()

    in_threads(THREADS, work)


# ---------------------------------------------------------------- levels and modes


def test_forward_levels_belong_to_their_thread():
    shared = tensor([2.0])

    def work(k):
        for _ in range(30):
            with forward_ad.dual_level() as number:
                assert number == 0
                x = forward_ad.make_dual(shared, tensor([float(k)]))
                with forward_ad.dual_level() as inner:
                    assert inner == 1
                    y = forward_ad.make_dual(x, tensor([1.0])) ** 3
                    slope = forward_ad.unpack_dual(y).tangent
                assert slope.tolist() == [12.0]
                assert forward_ad.unpack_dual(slope).tangent.tolist() == [12.0 * k]
                assert forward_ad.unpack_dual(shared).tangent is None
        with pytest.raises(RuntimeError, match="none is open"):
            forward_ad.make_dual(shared, tensor([1.0]))

    in_threads(THREADS, work)


def test_modes_hold_in_their_own_thread():
    shared = tensor([3.0])
    modes = [
        lambda: gradmgr.no_grad(),
        lambda: gradmgr.inference_mode(),
        lambda: gradmgr.set_grad_enabled(False),
        lambda: gradmgr.enable_grad(),
        lambda: gradmgr.set_grad_enabled(True),
        lambda: gradmgr.inference_mode(False),
    ]

    def work(k):
        gm, records = GradManager().attach(shared), k >= 3
        for _ in range(30):
            with gm:
                with modes[k]():
                    constant = shared * shared
                    assert gradmgr.is_grad_enabled() is records
                    assert gradmgr.is_inference_mode_enabled() is (k == 1)
                assert gradmgr.is_grad_enabled()
                (g,) = gradmgr.grad(constant * shared, shared)
            assert g.tolist() == [27.0 if records else 9.0]
        gradmgr.set_grad_enabled(records)  # and stays, in this thread
        return gradmgr.is_grad_enabled()

    assert in_threads(THREADS, work) == [False] * 3 + [True] * 3
    assert gradmgr.is_grad_enabled()


# ---------------------------------------------------------------- memory


def layer(x, w):
    return gnp.tanh(x @ w) + np.random.default_rng(0).random()


def test_checkpoints_in_many_threads_over_a_shared_parameter():
    w = tensor(np.eye(3) * 0.5)
    x = np.arange(6.0).reshape(2, 3)

    def work(k):
        gm, grads = GradManager().attach(w), []
        for f in (checkpoint, lambda f, *args: f(*args)):
            with gm:
                y = tensor(x * (k + 1))
                for _ in range(4):
                    y = f(layer, y, w)
                grads.append(gradmgr.grad(y.sum(), w)[0].numpy())
        return np.array_equal(*grads)

    assert in_threads(THREADS, work) == [True] * THREADS


def test_workers_checkpoint_into_one_tape():
    w = tensor(np.eye(3) * 0.5)
    x = np.arange(6.0).reshape(2, 3)
    gm = GradManager().attach(w)

    def through(f):
        def work(k):
            y = tensor(x * (k + 1))
            for _ in range(4):
                y = f(layer, y, w)
                gnp.exp(gnp.exp(w * 0.1))  # dropped, so that sweeps come
            return y.sum()

        return work

    found = []
    with ThreadPoolExecutor(4) as pool:
        for f in (checkpoint, lambda f, *args: f(*args)):
            for _ in range(5):
                with gm:
                    parts = copies(pool, through(f), 8)
                    found.append(gradmgr.grad(parts, w)[0].numpy())
    for g in found:
        np.testing.assert_allclose(g, found[-1], rtol=1e-13)  # the order of the sum is chance


def test_hooks_on_saved_values_are_those_of_their_thread():
    shared = tensor([2.0, 3.0])

    def work(k):
        packed = []

        def pack(t):
            packed.append(threading.get_ident())
            return (t.numpy(), k)

        def unpack(form):
            assert form[1] == k
            return tensor(form[0])

        gm = GradManager().attach(shared)
        for _ in range(20):
            with gm, graph.saved_tensors_hooks(pack, unpack):
                (g,) = gradmgr.grad((shared**2 * float(k)).sum(), shared)
            assert g.tolist() == [4.0 * k, 6.0 * k]
        return set(packed) == {threading.get_ident()}

    assert in_threads(THREADS, work) == [True] * THREADS


def test_disabled_hooks_are_disabled_in_one_thread_only():
    with graph.disable_saved_tensors_hooks("not here"):
        with pytest.raises(errors.HooksDisabledError), graph.save_on_cpu():
            pass

        def elsewhere():
            with graph.save_on_cpu():
                return True

        assert in_a_thread(elsewhere)


def test_workers_record_while_an_observer_is_added():
    """What they append to the list that was there before arrives once, before what depends on it."""
    for _ in range(30):
        x = tensor([1.0])
        gm = GradManager().attach(x)
        gate = threading.Barrier(5)

        def work(k, x=x, gate=gate):
            gate.wait()
            y = x * 1.0
            for _ in range(100):
                y = y + x
            return y

        with ThreadPoolExecutor(4) as pool, gm:
            futures = [pool.submit(contextvars.copy_context().run, work, k) for k in range(4)]
            gate.wait()
            with observing(Observer(), [gm._tape]):
                parts = [future.result() for future in futures]
            assert gm._tape.entries.__class__ is ObservedEntries
            gm.backward(sum(parts))
        assert x.grad.tolist() == [4 * 101.0]


def test_entries_appended_to_a_replaced_list_arrive_once_and_in_order():
    for _ in range(20):
        before, count, each = [], 4, 50
        entries = ObservedEntries(before, SimpleNamespace(observers=()))
        gate = threading.Barrier(count)

        def work(k, before=before, entries=entries, gate=gate, each=each):
            gate.wait()
            for i in range(each):
                (before if i % 3 else entries).append((k, i))

        in_threads(count, work)
        entries.catch_up()
        assert [[i for thread, i in entries if thread == k] for k in range(count)] == [list(range(each))] * count


def test_increment_version_while_workers_record_invalidates_what_it_should_and_nothing_else():
    x, buffer = tensor(np.ones(4)), np.ones(4)
    gm = GradManager().attach(x)
    for _ in range(20):
        stop = threading.Event()

        def work(k, stop=stop):
            y = x + 1.0
            for _ in range(1000):
                gnp.exp(gnp.exp(x * 0.1))  # dropped, so that sweeps come
                y = y + x
                if stop.is_set():
                    break
            return y.sum()

        with ThreadPoolExecutor(2) as pool, gm:
            futures = [pool.submit(contextvars.copy_context().run, work, k) for k in range(2)]
            stale = [(x * buffer).sum() for _ in range(20)]
            graph.increment_version(buffer)
            stop.set()
            parts = [future.result() for future in futures]
            gradmgr.grad(parts, x, retain_graph=True)  # none of these was declared overwritten
            assert sum(e[0] == "stale" for e in gm._tape.entries) == len(stale)
            with pytest.raises(errors.StaleValueError):
                gm.backward(stale)


# ---------------------------------------------------------------- debugging


def test_anomaly_detection_is_on_in_its_own_thread_only():
    shared, quiet = tensor([0.0]), partial(np.errstate, all="ignore")

    def work(k):
        gm = GradManager().attach(shared)
        for _ in range(20):
            if k % 2:
                found = pytest.raises(errors.AnomalyError, match=r"'sqrt'.*NaN")
                with quiet(), anomaly.detect_anomaly(), gm, found:
                    gradmgr.grad(gnp.sqrt(shared) * shared, shared)
            else:
                with quiet(), gm:
                    (g,) = gradmgr.grad(gnp.sqrt(shared) * shared, shared)
                assert np.isnan(g.item())
            assert not anomaly.is_anomaly_enabled()

    in_threads(THREADS, work)


def test_one_detect_anomaly_may_be_entered_in_several_threads():
    shared = anomaly.detect_anomaly()
    entered, left = threading.Event(), threading.Event()

    def other():
        with shared:
            entered.set()
            left.wait()
            on = anomaly.is_anomaly_enabled()
        return on, anomaly.is_anomaly_enabled()

    with ThreadPoolExecutor(1) as pool:
        with shared:
            future = pool.submit(other)
            entered.wait()
        on = anomaly.is_anomaly_enabled()
        left.set()
        assert (on, future.result()) == (False, (True, False))


def test_a_profile_sees_its_own_thread_only():
    shared = tensor(np.ones(3))

    def work(k):
        gm = GradManager().attach(shared)
        op = (gnp.sin, gnp.cos, gnp.tanh, gnp.exp, gnp.sqrt, gnp.log)[k]
        with np.errstate(all="ignore"), profile() as prof:
            for _ in range(20):
                with record_function(f"step {k}"), gm:
                    gm.backward(op(shared).sum())
        counts = {e.key: e.count for e in prof.key_averages()}
        names = {op.__name__, "sum", "sum_backward", f"{op.__name__}_backward", "backward", f"step {k}"}
        return counts == dict.fromkeys(names, 20)

    assert in_threads(THREADS, work) == [True] * THREADS
    sums = sum(f(1.0) for f in (np.cos, lambda x: -np.sin(x), lambda x: 1 - np.tanh(x) ** 2, np.exp))
    np.testing.assert_allclose(shared.grad.numpy(), 20 * (sums + 0.5 + 1.0), rtol=1e-12)


# ---------------------------------------------------------------- one backward after another


def most_inside(count):
    """How many of `count` threads were at once inside each: a hook, a Function's backward, a post-accumulate hook."""
    lock, inside, most = threading.Lock(), {}, {}

    def linger(where):
        with lock:
            inside[where] = inside.get(where, 0) + 1
            inside["any"] = inside.get("any", 0) + 1
            for name in (where, "any"):
                most[name] = max(most.get(name, 0), inside[name])
        time.sleep(0.01)
        with lock:
            inside[where] -= 1
            inside["any"] -= 1

    class Linger(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            linger("function")
            return g

    def work(k):
        x = tensor([3.0])
        gm = GradManager().attach(x)
        x.register_hook(lambda g: linger("tensor"))
        x.register_post_accumulate_grad_hook(lambda t: linger("post"))
        with gm:
            y = Linger.apply(x)
            y.register_hook(lambda g: linger("result"))
            y.grad_fn.register_prehook(lambda gs: linger("node"))
            gradmgr.backward(y)
        assert x.grad.tolist() == [1.0]

    in_threads(count, work)
    return most


def test_what_hooks_and_functions_do_in_backward_is_serialised_where_multithreading_is_disabled():
    with gradmgr.set_multithreading_enabled(False):
        assert most_inside(4) == dict.fromkeys(("function", "tensor", "post", "result", "node", "any"), 1)
    assert most_inside(4)["any"] > 1


def test_a_post_accumulate_hook_that_fails_lets_the_next_backward_begin_where_multithreading_is_disabled():
    def fail(t):
        raise LookupError

    x = tensor([3.0])
    gm = GradManager().attach(x)
    x.register_post_accumulate_grad_hook(fail)
    with gradmgr.set_multithreading_enabled(False):
        with gm, pytest.raises(LookupError):
            gm.backward(x * x)
        assert most_inside(2)["any"] == 1


def test_of_two_threads_that_call_backward_of_one_recording_one_gets_an_error():
    for serial in (True, False):
        for _ in range(20):
            x = tensor(np.ones(50))
            gm = GradManager().attach(x)
            with gm:
                y = (x * 2.0).sum()

                def work(k, gm=gm, y=y):
                    try:
                        gm.backward(y)
                    except RuntimeError:
                        return False
                    return True

                with gradmgr.set_multithreading_enabled(not serial):
                    assert sum(in_threads(2, work)) == 1
            assert x.grad.tolist() == [2.0] * 50
            with gm:
                pass  # so that what stood as current here is gone, too


def test_a_backward_that_waited_while_another_freed_the_history_says_so():
    x, other = tensor([3.0]), tensor([5.0])
    inside, go_on = threading.Event(), threading.Event()
    holder, gm = GradManager().attach(other, lambda t, g: (inside.set(), go_on.wait(), g)[2]), GradManager().attach(x)

    def hold():
        with holder:
            holder.backward(other * other)

    def wait(y):
        with pytest.raises(errors.RecordingError, match="another thread came before"):
            gm.backward(y)

    with gradmgr.set_multithreading_enabled(False), ThreadPoolExecutor(2) as pool:
        first = pool.submit(hold)
        inside.wait()
        with gm:
            second = pool.submit(wait, x * x)
            time.sleep(0.05)  # it waits for its turn
        with gm:  # the next recording
            go_on.set()
            first.result()
            second.result()
            gm.backward(x * 10.0)
    assert x.grad.tolist() == [10.0]


def test_of_two_threads_that_start_one_manager_one_gets_an_error():
    for _ in range(100):
        gm = GradManager().attach(tensor([3.0]))

        def work(k, gm=gm):
            try:
                gm.record()
            except RuntimeError:
                return False
            return True

        assert sum(in_threads(2, work)) == 1
        gm.release()


# ---------------------------------------------------------------- learning by many threads that write to one parameter


def test_learning_the_diabetes_data_by_many_threads_that_write_to_one_parameter():
    """Hogwild: the loss comes to within 2 % of the least there is; each gradient is that at the value that was seen."""
    x, y = pytest.importorskip("sklearn.datasets").load_diabetes(return_X_y=True)
    x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
    least = np.mean((x @ np.linalg.lstsq(x, y, rcond=None)[0] - y) ** 2)
    w = tensor(np.zeros(x.shape[1]))
    keeper = GradManager().attach(w)
    count, steps = 4, 400
    hooked, written = [], []
    w.register_hook(lambda g: (hooked.append(0), gnp.clip(g, -10.0, 10.0))[1])
    w.register_post_accumulate_grad_hook(lambda t: written.append(0))

    def work(k):
        mine = []
        gm = GradManager().attach(w, lambda t, g: (mine.append(g), g)[1])
        for step in range(steps):
            part = slice((k + step) % 4, None, 4)
            with gm:
                error = tensor(x[part]) @ w - y[part]
                seen = error.numpy()
                gm.backward(gnp.mean(Square.apply(error, threading.get_ident())))
            g = mine.pop()
            np.testing.assert_allclose(g.numpy(), 2 / len(seen) * x[part].T @ seen, rtol=1e-9, atol=1e-12)
            w.__isub__(0.05 * g)

    in_threads(count, work)
    assert np.mean((x @ w.numpy() - y) ** 2) < 1.02 * least
    assert len(hooked) == len(written) == count * steps
    assert len(keeper.attached_tensors()) == 1


# ---------------------------------------------------------------- tasks


def test_tasks_interleave_inside_managers_hooks_levels_and_modes():
    shared = tensor([2.0])
    keeper = GradManager().attach(shared)
    shared.register_hook(lambda g: g * 3)

    async def train(k):
        own, seen = tensor([float(k + 1)]), []
        gm = GradManager().attach([own, shared])
        for _ in range(3):
            with gm:
                y = own * shared
                await asyncio.sleep(0)
                y.register_hook(lambda g: (seen.append(k), g * 2)[1])
                y.retain_grad()
                with no_grad():
                    await asyncio.sleep(0)
                    constant = y * 1.0
                    assert not gradmgr.is_grad_enabled()
                await asyncio.sleep(0)
                with graph.saved_tensors_hooks(lambda t: (k, t), lambda form: form[1] if form[0] == k else None):
                    await asyncio.sleep(0)
                    z = y * constant
                await asyncio.sleep(0)
                with forward_ad.dual_level():
                    await asyncio.sleep(0)
                    dual = forward_ad.make_dual(own, tensor([1.0]))
                    await asyncio.sleep(0)
                    assert forward_ad.unpack_dual(dual * dual).tangent.tolist() == [2.0 * (k + 1)]
                await asyncio.sleep(0)
                gm.backward(z + checkpoint(lambda t: t**2, own))
            assert y.grad.tolist() == [2 * constant.item()]
        assert seen == [k] * 3
        return own.grad.item()

    async def main():
        found = await asyncio.gather(*[train(k) for k in range(5)])
        assert gradmgr._engine.context.current() is None
        return found

    # d/d own of own * shared * constant, doubled by its hook, with constant = own * shared; and of own squared
    assert asyncio.run(main()) == [3 * (2 * 2.0 * 2.0 * (k + 1) + 2.0 * (k + 1)) for k in range(5)]
    assert shared.grad.item() == 3 * sum(3 * 2 * (k + 1) * 2.0 * (k + 1) for k in range(5))
    assert len(keeper.attached_tensors()) == 1


def test_tasks_profile_and_detect_anomalies_each_for_itself():
    async def work(k):
        x = tensor([float(k)])
        op = (gnp.sin, gnp.cos, gnp.tanh)[k]
        gm = GradManager().attach(x)
        with profile() as prof:
            for _ in range(3):
                with gm, record_function("step"):
                    await asyncio.sleep(0)
                    y = op(x)
                    await asyncio.sleep(0)
                    gm.backward(y)
        with anomaly.detect_anomaly() if k == 0 else no_grad():
            await asyncio.sleep(0)
            on = anomaly.is_anomaly_enabled(), gradmgr.is_grad_enabled()
            await asyncio.sleep(0)
        assert on == (k == 0, k == 0)
        return {e.key: e.count for e in prof.key_averages()}, op.__name__

    async def main():
        return await asyncio.gather(*[work(k) for k in range(3)])

    for counts, name in asyncio.run(main()):
        assert counts == dict.fromkeys(("step", name, "backward", f"{name}_backward"), 3)
    assert not anomaly.is_anomaly_enabled()
