"""make_allreduce_cb: every rank receives the mean of all gradients, whatever each reached, and no rank hangs."""

import textwrap

import numpy as np
import pytest
from mpi import PRELUDE, ranks, run_ranks

import gradmgr.distributed as dist
from gradmgr import GradManager, tensor

# ---------------------------------------------------------------- values


def test_the_mean_and_the_sum_for_any_size_of_bucket():
    ranks(
        3,
        """
        shapes = [(4, 5), (5,), (), (0, 3), (7,), (2, 2, 2)]
        dtypes = ["f4", ">f8", "f4", "f8", "c8", "f2"]
        rng = np.random.default_rng(0)
        values = [rng.normal(size=s).astype(d) for s, d in zip(shapes, dtypes)]
        for method in ("mean", "SUM", "sum", "MEAN"):
            for size in (1, 30, 100, 25 << 20):
                ws = [tensor(v) for v in values]
                gm = GradManager().attach(ws, dist.make_allreduce_cb(method, bucket_bytes=size))
                for step in range(3):
                    with gm:
                        gm.backward(sum([(w * w).real.sum() * (RANK + 1 + step) for w in ws]))
                    total = sum(r + 1 + step for r in range(SIZE)) / (SIZE if method.lower() == "mean" else 1)
                    for w, v in zip(ws, values):
                        assert (w.grad.shape, w.grad.dtype) == (w.shape, w.dtype)
                        rtol = 2e-3 if v.dtype == "f2" else 1e-5
                        np.testing.assert_allclose(w.grad.numpy(), 2 * v * total, rtol)
                        w.grad = None
        """,
    )


def test_float16_and_bfloat16_are_summed_without_overflow():
    ranks(
        2,
        """
        import ml_dtypes
        for dtype in ("float16", ml_dtypes.bfloat16):
            w = tensor(np.ones(3, dtype))
            gm = GradManager().attach(w, dist.make_allreduce_cb("mean"))
            with gm:
                gm.backward(w, np.full(3, 60000, dtype))
            assert w.grad.dtype == dtype
            assert (w.grad.numpy() == np.full(3, 60000, dtype)).all(), w.grad
        """,
    )


def test_data_parallel_training_equals_one_process():
    ranks(
        2,
        """
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(8, 6)), rng.normal(size=(8, 2))
        def model():
            rng = np.random.default_rng(1)
            return [tensor(rng.normal(size=s)) for s in ((6, 5), (5,), (5, 2))]
        def loss(ws, x, y):
            return gnp.mean((gnp.tanh(x @ ws[0] + ws[1]) @ ws[2] - y) ** 2)
        def train(ws, callbacks, x, y):
            gm = GradManager().attach(ws, callbacks)
            for _ in range(10):
                with gm:
                    gm.backward(loss(ws, x, y))
                for w in ws:
                    w -= 0.1 * w.grad
                    w.grad = None
            return ws
        own = slice(RANK * 4, RANK * 4 + 4)
        found = train(model(), dist.make_allreduce_cb("mean", bucket_bytes=100), x[own], y[own])
        for one, other in zip(found, train(model(), None, x, y)):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)
        same = dist.all_gather(np.concatenate([w.numpy().ravel() for w in found]))
        assert (same[0] == same[1]).all()
        """,
    )


def test_what_no_rank_not_every_rank_and_every_rank_reached():
    ranks(
        3,
        """
        a, b, c, d = (tensor([1.0, 2.0]) for _ in range(4))
        for size in (1, 1 << 20):
            after = []
            def clip(t, g):
                after.append(t)
                return g * 10
            cb = dist.make_allreduce_cb("sum", bucket_bytes=size)
            gm = GradManager().attach([a, b, c, d], [lambda t, g: g * 2, cb, clip])
            for step in range(2):
                after.clear()
                with gm:
                    y = (a * 3).sum()
                    if RANK == 1:
                        y = y + (b * 5).sum()
                    if RANK != 1:
                        y = y + (c * 7).sum()
                    gm.backward(y)
                assert grads(a, b, c, d) == [[180.0] * 2, [100.0] * 2, [280.0] * 2, None], grads(a, b, c, d)
                assert sorted(map(id, after)) == sorted(map(id, (a, b, c)))
                gm.clear_grad()
            # a rank whose backward starts from nothing at all
            with gm:
                gm.backward((a * 3).sum() if RANK == 2 else None)
            assert grads(a, b, c, d) == [[60.0] * 2, None, None, None], grads(a, b, c, d)
            gm.clear_grad()
            with gm:
                gm.backward()
            assert grads(a, b, c, d) == [None] * 4
            # inputs=: only some receive, and the others' share is dropped
            with gm:
                gradmgr.backward((a * b * 2).sum(), inputs=[a] if RANK == 0 else [a, b])
            assert a.grad is not None and (b.grad is None) == (RANK == 0)
            gm.clear_grad()
            gm.detach([a, b, c, d])
        """,
    )


def test_it_may_be_anywhere_in_the_chain_and_with_other_futures():
    ranks(
        4,
        """
        class Future:
            def __init__(self, g): self.g = g
            def get(self): return self.g
        w, u = tensor([1.0, -1.0]), tensor([2.0])
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        # first within pairs, then across: the mean of all, each with buckets of its own
        near = dist.make_allreduce_cb("mean", bucket_bytes=1, group=pairs[RANK // 2])
        far = dist.make_allreduce_cb("mean", group=across[RANK % 2])
        chain = [lambda t, g: Future(g), near, lambda t, g: Future(g + 0), far, lambda t, g: -g]
        gm = GradManager().attach([w, u], chain)
        for k in range(2):
            with gm:
                gm.backward((w * (RANK + 1)).sum() + (u.sum() * 8 if RANK == 3 else 0))
            assert grads(w, u) == [[-2.5, -2.5], [-2.0]], grads(w, u)
            gm.clear_grad()
        # a rank outside of the group gets an error, also of a group of one rank
        one = dist.new_group([0])
        gm = GradManager().attach(w, dist.make_allreduce_cb(group=one))
        with gm:
            if RANK:
                raises(errors.DistributedError, "does not belong", gm.backward, w.sum())
            else:
                gm.backward(w.sum())
        assert grads(w) == [None if RANK else [1.0, 1.0]]
        """,
    )


def test_a_chain_that_cannot_be_ordered_is_an_error():
    ranks(
        2,
        """
        class Future:
            def __init__(self, g): self.g = g
            def get(self): return self.g
        cb = dist.make_allreduce_cb()
        a, b = tensor([1.0]), tensor([1.0])
        gm = GradManager().attach({"a": a}, cb).attach({"b": b}, [lambda t, g: Future(g), cb])
        with gm:
            raises(errors.DistributedError, "'b'", gm.backward, (b.sum() * a.sum()))
        assert grads(a, b) == [None, None]
        """,
    )


def test_no_sync_accumulates_and_the_next_backward_reduces_all_of_it():
    ranks(
        2,
        """
        rng = np.random.default_rng(0)
        x = rng.normal(size=(12, 3))
        for method, held in (("mean", None), ("sum", None), ("mean", 2.0), ("sum", 2.0)):
            w, u, v = (tensor(np.ones(3)) for _ in range(3))
            start = 0
            if held:
                w.grad = tensor(np.full(3, held))  # the same on all ranks, reduced before
                start = held
            cb = dist.make_allreduce_cb(method, bucket_bytes=24)
            gm = GradManager().attach([w, u, v], cb)
            own = x[RANK * 6 : RANK * 6 + 6]
            with cb.no_sync():
                for k in range(2):
                    with gm:
                        gm.backward(((own[2 * k : 2 * k + 2] @ w) ** 2).sum() + (u * (RANK + 1)).sum())
            local = w.grad.tolist()
            assert u.grad.tolist() == [2.0 * (RANK + 1)] * 3
            held_object = u.grad
            with gm:
                gm.backward(((own[4:] @ w) ** 2).sum())
            share = 1 if method == "sum" else 2
            np.testing.assert_allclose(w.grad.numpy(), start + 2 * x.T @ (x @ np.ones(3)) / share)
            assert u.grad.tolist() == [6.0 / share] * 3  # reached on no rank in the last backward
            assert u.grad is held_object
            assert v.grad is None
            # the next one is on its own again: what is there is the same on all ranks, and stays
            with gm:
                gm.backward((u * (RANK + 1)).sum())
            assert u.grad.tolist() == [9.0 / share] * 3
            # cleared between: nothing of what was accumulated comes back
            with cb.no_sync(), gm:
                gm.backward((u * 100).sum())
            gm.clear_grad()
            with gm:
                gm.backward((u * 2).sum())
            assert u.grad.tolist() == [4.0 / share] * 3
            # cleared, and accumulated anew: what stood there before counts no more
            for k in range(2):
                with cb.no_sync(), gm:
                    gm.backward((u * (RANK + 1)).sum())
                if k == 0:
                    gm.clear_grad()
            with gm:
                gm.backward((w * 0).sum())
            assert u.grad.tolist() == [3.0 / share] * 3
            # what does not receive keeps what it has, to be reduced when it does
            gm.clear_grad()
            with cb.no_sync(), gm:
                gm.backward((u * (RANK + 1)).sum())
            with gm:
                gradmgr.backward((w * u).sum(), inputs=[w])
            assert u.grad.tolist() == [RANK + 1.0] * 3
            with gm:
                gm.backward((w * 0).sum())
            assert u.grad.tolist() == [3.0 / share] * 3
            # parameters that come and go, each perhaps at the address of another that accumulated
            for k in range(20):
                new = tensor([1.0])
                gm.attach(new, cb)
                with cb.no_sync(), gm:
                    gm.backward((new * (RANK + 1)).sum())
                if k % 2:
                    with gm:
                        gm.backward((new * 0).sum())
                    assert new.grad.tolist() == [3.0 / share]
                del new
            assert len(cb._local) < 10
        """,
    )


def test_all_at_once_or_one_by_one_gives_the_same_bits():
    """One bucket under a callback alone is reduced at once; chains and small buckets take another path."""
    ranks(
        2,
        """
        paths = [(lambda cb: [cb], 1 << 20), (lambda cb: [cb, lambda t, g: g], 1 << 20), (lambda cb: [cb], 1)]
        for seed in range(12):
            found = []
            for chain, size in paths:
                shared, own = np.random.default_rng(seed), np.random.default_rng([seed, RANK])
                shapes = [(), (0,), (3,), (2, 3)]
                ws = [tensor(np.array(shared.normal(size=s), order="F")) for s in shapes]
                cb = dist.make_allreduce_cb("mean", bucket_bytes=size)
                gm, other = GradManager().attach(ws, chain(cb)), GradManager().attach(tensor([1.0]))
                ws[3].register_post_accumulate_grad_hook(lambda t: found.append(t.grad.tolist()))
                for step in range(4):
                    inputs = [ws[int(k)] for k in shared.integers(0, 4, 2)] if shared.random() < 0.3 else None
                    hooked, fails, twice = shared.random(3) < 0.3
                    hook = ws[2].register_hook(lambda g: g * 3) if hooked else None
                    with other, gm:
                        parts = [(w * w * w * own.normal()).sum() for w in ws if own.random() < 0.8]
                        y = sum(parts, (ws[0] * 0).sum())
                        if fails and RANK == step % 2:
                            y.register_hook(lambda g: 1 / 0)
                        try:
                            for k in range(1 + twice):
                                if inputs is None:
                                    gm.backward(y, retain=not k and bool(twice))
                                else:
                                    gradmgr.backward(y, inputs=inputs, retain_graph=not k and bool(twice))
                        except (ZeroDivisionError, errors.DistributedError) as error:
                            found.append(type(error).__name__)
                    if hook is not None:
                        hook.remove()
                    found.append(grads(*ws))
                    if shared.random() < 0.5:
                        gm.clear_grad()
            third = len(found) // 3
            assert found[:third] == found[third : 2 * third] == found[2 * third :], found
            sums = [[] if g is None else g for g in found[third - 1]]
            flat = np.concatenate([np.ravel(g) for g in sums])
            everywhere = dist.all_gather(flat)
            assert (everywhere == everywhere[0]).all()
        """,
    )


# ---------------------------------------------------------------- memory, order


def test_buckets_are_used_again_and_what_somebody_holds_is_not_overwritten():
    ranks(
        2,
        """
        held, seen = [], []
        cb = dist.make_allreduce_cb("sum")
        def look(t, g):
            seen.append(g._array.__array_interface__["data"][0])
            if keep:
                held.append(g)
            return g
        w = tensor(np.ones(1000))
        keep = False
        gm = GradManager().attach(w, [cb, look])
        for k in range(4):
            with gm:
                gm.backward((w * (k + 1)).sum())
            w.grad = None
        assert len(set(seen)) == 1, seen
        keep = True
        for k in range(3):
            with gm:
                gm.backward((w * (k + 1)).sum())
        assert [g.tolist()[0] for g in held] == [2.0, 4.0, 6.0]
        assert w.grad.tolist()[0] == 12.0
        """,
    )


def test_nothing_is_kept_alive():
    ranks(
        2,
        """
        cb = dist.make_allreduce_cb("sum")
        gm = GradManager()
        gc.disable()
        for k in range(3):
            w = tensor(np.ones(10))
            gm.attach(w, cb)
            with gm:
                gm.backward(w.sum() * (RANK + 1))
            assert grads(w) == [[3.0] * 10]
            refs = [weakref.ref(w), weakref.ref(gm), weakref.ref(cb)]
            del w
            assert refs[0]() is None
        del gm, cb
        assert refs[1]() is refs[2]() is None
        """,
    )


@pytest.mark.parametrize("bucket_bytes", [30, 25 << 20])
def test_a_loop_makes_no_objects_that_stay_and_no_cycles(bucket_bytes):
    ranks(
        2,
        f"""
        ws = [tensor(np.ones(n)) for n in (3, 5, 2)]
        cb = dist.make_allreduce_cb("mean", bucket_bytes={bucket_bytes})
        gm = GradManager().attach(ws, cb)
        def step(k):
            with gm:
                gm.backward(sum([(w * w).sum() for w in ws]) * (RANK + 1))
            if k % 3 == 0:  # the next one is not reduced, and is so by the one after it
                with cb.no_sync(), gm:
                    gm.backward(ws[0].sum())
            for w in ws:
                w.grad = None
        gc.collect()
        gc.disable()
        for k in range(60):
            step(k)
        before = len(gc.get_objects())
        for k in range(600):
            step(k)
        assert len(gc.get_objects()) == before, len(gc.get_objects()) - before
        assert gc.collect() == 0
        """,
    )


def test_buckets_start_while_backward_goes_on():
    """The layer attached last is done first: its bucket is sent before the rules of the first layer run."""
    ranks(
        2,
        """
        from gradmgr.distributed import _world
        group, log = _world.group(), []
        start = group.start_all_reduce
        def started(array, *args, **kw):
            log.append(("start", array.size - 1))
            return start(array, *args, **kw)
        group.start_all_reduce = started
        ws = [tensor(np.ones(k + 1)) for k in range(4)]
        def log_call(t, g):
            log.append(("callback", t.size))
            time.sleep(0.05)  # the ranks find out meanwhile that they agree
            return g
        gm = GradManager().attach(ws, [log_call, dist.make_allreduce_cb(bucket_bytes=1)])
        with gm:
            y = 1.0
            for w in ws:
                y = y * w.sum()
            gm.backward(y)
        starts = [n for what, n in log if what == "start"]
        assert starts == [4, 3, 2, 1], log  # in reverse order of attachment
        assert log.index(("start", 4)) < log.index(("callback", 1)), log
        # reached in another order on each rank, they start in the same
        log.clear()
        order = ws if RANK else ws[::-1]
        with gm:
            y = 1.0
            for w in order:
                y = y * w.sum()
            gm.backward(y)
        assert [n for what, n in log if what == "start"] == [4, 3, 2, 1], log
        """,
    )


# ---------------------------------------------------------------- ranks that differ


SETS = [  # what the ranks attach, and what is said of it
    (
        "{'a': tensor([1.0]), 'b': tensor(np.ones(2 + RANK))}",
        "place 1 rank 0: 'b', float64(2,); rank 1: 'b', float64(3,)",
    ),
    ("{'a': tensor(np.ones(3, 'f4' if RANK else 'f8'))}", "place 0 rank 0: 'a', float64(3,); rank 1: 'a', float32(3,)"),
    ("{'a': tensor([1.0]), **({} if RANK else {'b': tensor([1.0])})}", "rank 0: 'b', float64(1,); rank 1: nothing"),
    ("{'a': tensor([1.0])} if RANK else {'b': tensor([1.0])}", "rank 0: 'b', float64(1,); rank 1: 'a', float64(1,)"),
    ("[tensor([1.0]), tensor(np.ones((1, 1 + RANK)))]", "rank 0: float64(1, 1); rank 1: float64(1, 2)"),
]


def test_collectives_in_the_model_and_buckets_under_way_need_no_order():
    """Buckets start when they can, so that on one rank they may come before a collective of backward, on others not."""
    ranks(
        2,
        """
        ws = [tensor(np.eye(4) * 0.9) for _ in range(12)]
        gm = GradManager().attach(ws, callbacks=dist.make_allreduce_cb("mean", bucket_bytes=64))
        for _ in range(20):
            with gm:
                y = np.ones((3, 4))
                for n, w in enumerate(ws):
                    y = y @ w
                    y = y + dist.all_reduce(y.mean(0), "mean") if n % 2 else y
                gm.backward((y**2).sum())
            assert len({w.grad.numpy().tobytes() for w in ws}) > 1
            for w in ws:
                assert np.array_equal(*dist.all_gather(w.grad))
                w.grad = None
        """,
    )


def test_a_rank_dependent_parameter_set_is_an_error_on_every_rank():
    """It is named, nothing hangs, nothing has changed, and the ranks are in step afterwards; with many buckets too."""
    ranks(
        2,
        f"""
        for own, text in {SETS!r}:
            for size in (1, 1 << 20):
                own = eval(own) if isinstance(own, str) else own
                ts = list(own.values() if isinstance(own, dict) else own)
                gm = GradManager().attach(own, dist.make_allreduce_cb(bucket_bytes=size))
                before, start = grads(*ts), time.perf_counter()
                with gm:
                    raises(errors.DistributedError, text, gm.backward, sum([t.sum() for t in ts]))
                assert grads(*ts) == before and not gm._in_backward.locked() and time.perf_counter() - start < 5
                w = tensor([RANK + 1.0])
                gm = GradManager().attach(w, dist.make_allreduce_cb("sum"))
                with gm:
                    gm.backward((w * w).sum())
                assert grads(w) == [[6.0]]
        """,
    )


def test_different_methods_and_sizes_of_buckets_are_an_error():
    ranks(
        2,
        """
        w = tensor([1.0])
        gm = GradManager().attach(w, dist.make_allreduce_cb("sum" if RANK else "mean"))
        with gm:
            raises(errors.DistributedError, "rank 0: all_reduce(op='mean')", gm.backward, w.sum())
        gm.detach(w).attach(w, dist.make_allreduce_cb("sum", bucket_bytes=10 + RANK))
        with gm:
            raises(errors.DistributedError, "11 bytes each", gm.backward, w.sum())
        """,
    )


def test_a_wait_for_small_gradients_that_is_interrupted_is_made_good():
    """Before the ranks have agreed, and after: rank 0 gets the exception, rank 1 its gradient, the next is right."""
    ranks(
        2,
        """
        from gradmgr.distributed import _shared_memory
        from gradmgr.distributed._shared_memory import SharedMemory
        w, spins = tensor([1.0, 2.0]), _shared_memory._SPINS
        gm = GradManager().attach(w, dist.make_allreduce_cb("mean"))
        def backward(k):
            gm.clear_grad()
            with gm:
                gm.backward((w * (RANK + k)).sum())
        def interrupted(*args):
            raise KeyboardInterrupt
        for name in ("await_agreement", "await_reduction"):
            awaited = getattr(SharedMemory, name)
            if RANK == 0:
                setattr(SharedMemory, name, interrupted)
                _shared_memory._SPINS = 10**9  # for certain until rank 1 comes
                raises(KeyboardInterrupt, "", backward, 1.0)
                setattr(SharedMemory, name, awaited)
                _shared_memory._SPINS = spins
                assert w.grad is None
            else:
                backward(1.0)
                assert w.grad.tolist() == [1.5, 1.5], w.grad
            for k in range(1, 5):
                if k == 3 and RANK == 0:
                    time.sleep(0.01)  # longer than the ranks look for each other before they wait
                backward(k)
                assert w.grad.tolist() == [k + 0.5] * 2, (name, k, w.grad)
        """,
    )


def test_a_backward_that_fails_on_one_rank_fails_on_all_and_the_next_one_works():
    """Wherever rank 1 fails: rank 0 gets an error, no `.grad` has changed, the next backward is right on both."""
    ranks(
        2,
        """
        ws = [tensor(np.ones(k + 1)) for k in range(5)]
        def fail(t, g):
            if broken and RANK == 1 and ((where == "first" and t is ws[4]) or (where == "last" and t is ws[0])):
                raise OSError("here")
            return g
        def fail_after(t, g):
            if broken and RANK == 1 and where == "after" and t is ws[2]:
                raise OSError("here")
            return g
        class Late:
            def finish(self, manager):
                if broken and RANK == 1 and where == "finish":
                    raise OSError("here")
            def __call__(self, t, g):
                return g
        cb = dist.make_allreduce_cb("sum", bucket_bytes=16)
        gm = GradManager().attach(ws, [Late(), fail, cb, fail_after])
        def backward(k):
            with gm:
                y = 1.0
                for w in ws:
                    y = y + w.sum() * (RANK + k)
                gm.backward(y)
        for where, k in [(where, k) for where in ("first", "last", "after", "finish") for k in range(3)]:
            broken, start = True, time.perf_counter()
            if RANK == 1:
                raises(OSError, "here", backward, 1)
            elif where in ("first", "last"):
                raises(errors.DistributedError, "the rest of a backward that failed", backward, 1)
            else:  # rank 1 may have given all it had before it failed
                try:
                    backward(1)
                except errors.DistributedError:
                    pass
                else:
                    gm.clear_grad()
            assert grads(*ws) == [None] * 5
            broken = False
            for step in range(2):
                backward(k)
                assert grads(*ws) == [[2.0 * k + 1.0] * w.size for w in ws], grads(*ws)
                gm.clear_grad()
            assert time.perf_counter() - start < 5
        """,
    )


def test_a_rank_that_dies_in_backward_ends_the_others_with_an_error():
    ran = run_ranks(
        2,
        PRELUDE
        + textwrap.dedent("""
        import os
        w, u = tensor([1.0]), tensor([1.0])
        def die(t, g):
            if RANK == 1:
                raise ZeroDivisionError("by nought")
            return g
        gm = GradManager().attach([w, u], [die, dist.make_allreduce_cb(bucket_bytes=1)])
        with gm:
            gm.backward((w * u).sum())
        """),
        timeout=40,
    )
    assert ran.rc != 0
    assert "ZeroDivisionError" in ran.err[1]
    assert "DistributedError" in ran.err[0] or "RankFailedError" in ran.err[0], str(ran)
    assert ran.seconds < 30


# ---------------------------------------------------------------- several managers, recordings around


def test_several_managers_share_a_callback():
    ranks(
        2,
        """
        a, b = tensor([1.0]), tensor([2.0])
        cb = dist.make_allreduce_cb("sum")
        one, two = GradManager().attach(a, cb), GradManager().attach([a, b], cb)
        def inner(t, g):
            if t is a:
                with two:
                    two.backward((b * (RANK + 1)).sum())
            return g
        three = GradManager().attach(a, [cb, inner])
        with one | two:
            y = (a * b * (RANK + 1)).sum()
            one.backward(y)
            two.backward(y)
        assert grads(a, b) == [[12.0], [3.0]]
        one.clear_grad(); two.clear_grad()
        with three:
            three.backward((a * (RANK + 1)).sum())
        assert grads(a, b) == [[3.0], [3.0]]
        """,
    )


def test_a_recording_that_follows_the_gradients_is_refused():
    ranks(
        2,
        """
        x, w = tensor([3.0]), tensor([2.0])
        outer = GradManager().attach(x)
        inner = GradManager().attach([x, w], dist.make_allreduce_cb("sum"))
        with outer:
            with inner:
                y = (x * x * w).sum() * (RANK + 1)
                raises(errors.DistributedError, "a recording around this backward", inner.backward, y)
            assert grads(x, w) == [None, None]
        # the way that is named there
        plain = GradManager().attach(x)
        with outer:
            with plain:
                plain.backward((x * x * x).sum() * (RANK + 1))
            g = dist.all_reduce(x.grad)
            x.grad = None
            outer.backward((g * (RANK + 1)).sum())
        assert grads(x) == [[18.0 * (RANK + 1) * 3]], grads(x)
        # one that does not follow them is no hindrance
        other = GradManager().attach(tensor([1.0]))
        inner.clear_grad()
        with other, inner:
            inner.backward((x * w * w).sum())
        assert grads(x, w) == [[8.0], [24.0]], grads(x, w)
        """,
    )


def test_a_callback_that_is_attached_twice_is_an_error():
    ranks(
        2,
        """
        w, cb = tensor([1.0]), dist.make_allreduce_cb()
        gm = GradManager().attach({"w": w}, [cb, cb])
        with gm:
            raises(errors.DistributedError, "more than once in the chain of Tensor 'w'", gm.backward, w.sum())
        other = dist.make_allreduce_cb()
        gm = GradManager().attach(w, other)
        for k in range(2):
            with gm:
                gm.backward(w.sum())
        gm.attach(w, [lambda t, g: g, other])
        with gm:
            raises(errors.DistributedError, "more than once", gm.backward, w.sum())
        """,
    )


# ---------------------------------------------------------------- arguments, one rank


@pytest.mark.parametrize("method", ["max", "", None, 3])
def test_a_wrong_method_is_refused(method):
    with pytest.raises(ValueError, match="'mean' and 'sum'"):
        dist.make_allreduce_cb(method)


@pytest.mark.parametrize("size", [0, -1])
def test_a_bucket_of_no_bytes_is_refused(size):
    with pytest.raises(ValueError, match="at least one byte"):
        dist.make_allreduce_cb(bucket_bytes=size)


def test_without_init_backward_says_what_to_call():
    w = tensor(np.ones(2))
    gm = GradManager().attach(w, dist.make_allreduce_cb())
    with gm, pytest.raises(dist_error(), match="init"):
        gm.backward(w.sum())
    assert w.grad is None


def dist_error():
    from gradmgr.errors import DistributedError

    return DistributedError


def test_one_rank_alone():
    """Nothing to reduce: the gradient stays the same; and the general path gives the same."""
    ranks(
        1,
        """
        for even_alone in (False, True):
            a, b = tensor([1.0]), tensor([2.0])
            cb = dist.make_allreduce_cb("mean")
            cb._even_alone = even_alone
            gm = GradManager().attach([a, b], [cb, lambda t, g: g * 2])
            with cb.no_sync(), gm:
                gm.backward((a * 3).sum())
            with gm:
                gm.backward((a * 5).sum())
            assert grads(a, b) == [[16.0] if not even_alone else [22.0], None] or even_alone, grads(a, b)
        """,
    )


# ---------------------------------------------------------------- gradients of rows


def test_rows_of_tables_are_exchanged_whatever_each_rank_reached():
    ranks(
        3,
        """
        from gradmgr.nn import functional as F
        rng = np.random.default_rng(0)
        tables = [rng.normal(size=(9, 4)).astype("f4"), rng.normal(size=(5, 2)), np.ones((3, 1))]
        def loss(ws, r, sparse):  # table 1 is reached by rank 0 alone, table 2 by none
            found = (F.embedding(np.array([r, 2 * r, 2 * r]), ws[0], sparse=sparse) ** 2).sum() * (r + 1)
            return found + F.embedding(np.array([4, 4]), ws[1], sparse=sparse).sum() if r == 0 else found
        for method, count in (("sum", 1), ("mean", SIZE)):
            ws = [tensor(v) for v in tables]
            dense = tensor(np.ones(3))
            gm = GradManager().attach(ws, dist.make_allreduce_cb(method, sparse=True))
            gm.attach(dense, dist.make_allreduce_cb(method))
            for step in (1, 2):
                with gm:
                    gm.backward(loss(ws, RANK, True) + dense.sum())
                alone = [tensor(v) for v in tables]
                with GradManager().attach(alone) as one:
                    one.backward(sum(loss(alone, r, False) for r in range(SIZE)))
                for w, v in zip(ws[:2], alone):
                    assert w.grad.is_sparse and w.grad.is_coalesced()
                    np.testing.assert_allclose(w.grad.to_dense(), step * v.grad / count, rtol=1e-6)
                assert ws[2].grad is None
                assert dense.grad.tolist() == [step * SIZE / count] * 3
        from gradmgr._arrays import table_rows
        table_rows._LARGE_TABLE = table_rows._SORTING = 0
        for sparse in (True, False):  # rows that were not asked for are exchanged as such where that is asked for
            w = tensor(np.ones((400, 3)))
            with GradManager().attach(w, dist.make_allreduce_cb("sum", sparse=sparse)) as gm:
                gm.backward(w[np.array([RANK, 7])].sum())
            assert w.grad.is_sparse == sparse
            assert w.grad.numpy()[:9, 0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0]
        w = tensor(tables[0])  # a callback of whole gradients takes rows, too
        with GradManager().attach(w, dist.make_allreduce_cb("sum")) as gm:
            gm.backward(F.embedding(np.array([RANK]), w, sparse=True).sum())
        assert not w.grad.is_sparse and w.grad.tolist() == [[1.0] * 4] * 3 + [[0.0] * 4] * 6
        gm = GradManager().attach(w, dist.make_allreduce_cb("sum", sparse=True))
        def fails(t, g):
            raise ZeroDivisionError
        if RANK == 1:
            gm = GradManager().attach(w, [fails, dist.make_allreduce_cb("sum", sparse=True)])
        try:
            with gm:
                gm.backward(F.embedding(np.array([RANK]), w, sparse=True).sum())
        except (errors.DistributedError, ZeroDivisionError) as error:
            assert isinstance(error, ZeroDivisionError) == (RANK == 1)
        else:
            raise AssertionError("no rank may end this backward")
        """,
    )
