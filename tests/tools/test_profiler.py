"""The profiler: what it records, how it adds up, what it writes, and that it leaves nothing behind."""

import asyncio
import contextvars
import copy
import gc
import json
import pickle
import re
import sys
import threading
import time
import types
import weakref

import guard
import numpy as np
import pytest
from helpers import ROOT, cupy_on_a_gpu
from trace_format import problems

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, nn, no_grad, profiler, tensor
from gradmgr._engine import context
from gradmgr._engine.op import OPS
from gradmgr._transforms.checkpoint import checkpoint
from gradmgr._transforms.grad import grad
from gradmgr._transforms.vmap import vmap
from gradmgr.forward_ad import dual_level, make_dual, unpack_dual
from gradmgr.function import Function
from gradmgr.functional import jacobian
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.profiler import emit_itt, emit_nvtx, profile, record_function
from gradmgr.profiler._flops import flops_of


def names(prof):
    return [event.name for event in prof.function_events]


def counts(prof):
    return {event.key: event.count for event in prof.key_averages()}


def event(prof, name, which=0):
    return [e for e in prof.function_events if e.name == name][which]


def leaf(*shape):
    return tensor(np.random.default_rng(0).uniform(0.5, 1.5, shape))


def step(gm, w):
    with gm:
        gm.backward((gnp.tanh(w * w) * 2.0).sum())
    w.grad = None


def assert_sums(prof):
    """Self times add up to the time of what stands in nothing else, and every event to its own."""
    events = prof.function_events
    top = [e.cpu_time_total for e in events if e.cpu_parent is None]
    assert prof.self_cpu_time_total == pytest.approx(sum(top))
    for e in events:
        assert e.self_cpu_time_total >= 0
        assert e.cpu_time_total == pytest.approx(
            e.self_cpu_time_total + sum(child.cpu_time_total for child in e.cpu_children)
        )
        if e.cpu_parent is not None:
            assert e.cpu_parent.time_range.start <= e.time_range.start
            assert e.time_range.end <= e.cpu_parent.time_range.end


# ---------------------------------------------------------------- what is recorded


def test_counts_of_a_training_step():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof:
        for _ in range(3):
            step(gm, w)
    assert counts(prof) == {
        "multiply": 6,
        "tanh": 3,
        "sum": 3,
        "backward": 3,
        "sum_backward": 3,
        "multiply_backward": 6,
        "tanh_backward": 3,
    }
    assert_sums(prof)
    assert [e.name for e in prof.function_events if e.cpu_parent is None] == [
        *("multiply", "tanh", "multiply", "sum", "backward")
    ] * 3


def test_without_a_manager_and_under_no_grad():
    w = leaf(3)
    with profile() as prof:
        gnp.exp(w)
        with GradManager().attach(w), no_grad():
            w + 1
    assert names(prof) == ["exp", "add"]
    assert [e.sequence_nr for e in prof.function_events] == [-1, -1]


def test_derivatives_carry_the_number_of_their_operation():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof:
        step(gm, w)
        step(gm, w)
    forward = {e.sequence_nr: e.name for e in prof.function_events if e.scope == 0}
    assert sorted(forward) == list(range(8))
    backward = [e for e in prof.function_events if e.name.endswith("_backward")]
    assert len(backward) == 8
    for e in backward:
        assert e.name == f"{forward[e.sequence_nr]}_backward"
        assert e.scope == 1
        assert e.fwd_thread == 1
        assert e.cpu_parent.name == "backward"


def test_numbers_survive_a_sweep_and_the_sweep_survives_the_profiler():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof, gm:
        y = w * w
        for _ in range(2000):
            gnp.sin(w)  # it is not held
        assert len(gm._tape.entries) < 300
        gm.backward(gnp.cos(y).sum())
    assert event(prof, "multiply_backward").sequence_nr == event(prof, "multiply").sequence_nr
    assert event(prof, "cos_backward").sequence_nr == event(prof, "cos").sequence_nr
    assert counts(prof)["sin"] == 2000
    assert "sin_backward" not in counts(prof)


def test_two_backwards_of_a_retained_history():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with gm, profile() as prof:
        y = (w * w).sum()
        gm.backward(y, retain=True)
        gm.backward(y, retain=True)
    assert counts(prof)["backward"] == 2
    assert [e.sequence_nr for e in prof.function_events if e.name == "multiply_backward"] == [0, 0]
    assert_sums(prof)


def test_operations_recorded_before_have_no_number():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with gm:
        y = w * w
        with profile() as prof:
            gm.backward(y.sum())
    assert names(prof) == ["sum", "backward", "sum_backward", "multiply_backward"]
    assert [e.sequence_nr for e in prof.function_events] == [0, -1, 0, -1]


def test_a_derivative_that_is_recorded_shows_its_operations():
    w = leaf(3)
    outer, inner = GradManager().attach(w), GradManager().attach(w)
    with profile(with_flops=True) as prof, outer:
        with inner:
            inner.backward((w * w).sum())
        outer.backward(w.grad.sum())
    rule = event(prof, "multiply_backward")
    assert [child.name for child in rule.cpu_children] == ["multiply", "multiply", "add"]
    assert rule.flops == 0  # the operations in it are counted by themselves
    assert [child.flops for child in rule.cpu_children] == [3, 3, 3]
    recorded = {child.sequence_nr for child in rule.cpu_children}
    again = {e.sequence_nr for e in prof.function_events if e.scope == 1}
    assert recorded <= again
    assert_sums(prof)


def test_a_function_is_one_operation_with_its_own_inside():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3.0 * x * x

    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof, gm:
        gm.backward(Cube.apply(w).sum())
    assert [child.name for child in event(prof, "Cube").cpu_children] == ["multiply", "multiply"]
    assert event(prof, "Cube_backward").sequence_nr == event(prof, "Cube").sequence_nr >= 0
    assert [child.name for child in event(prof, "Cube_backward").cpu_children] == ["multiply"] * 3
    assert_sums(prof)


class Slow(Function):
    @staticmethod
    def forward(ctx, x):
        made = x * 2.0
        time.sleep(0.01)
        return made

    @staticmethod
    def backward(ctx, g):
        return g * 2.0

    @staticmethod
    def vmap(info, in_dims, x):
        return Slow.apply(x), in_dims[0]


@pytest.mark.parametrize("call", [Slow.apply, vmap(Slow.apply)], ids=["plain", "its own vmap"])
def test_a_function_ends_when_its_forward_does(call):
    w = leaf(2, 3)
    with profile(profile_memory=True) as prof, GradManager().attach(w) as gm:
        gm.backward(call(w).sum())
    assert not any(e.raised for e in prof.function_events)
    for e in prof.function_events:
        if e.name == "Slow":
            assert e.cpu_time_total >= 10e3
    inner = event(prof, "multiply").cpu_parent
    assert (inner.name, inner.cpu_memory_usage, inner.self_cpu_memory_usage) == ("Slow", 48, 0)  # counted once
    assert event(prof, "sum").cpu_parent is None
    assert_sums(prof)


def test_operations_of_several_results():
    m, gm = leaf(3, 3), GradManager()
    gm.attach(m)
    with profile() as prof, gm:
        u, s, _ = gnp.linalg.svd(m)
        gm.backward(s.sum() + u[0, 0] * 0.0)
    assert counts(prof)["svd"] == counts(prof)["svd_backward"] == 1
    assert event(prof, "svd_backward").sequence_nr == event(prof, "svd").sequence_nr
    assert not [name for name in names(prof) if name.startswith(("result", "attach"))]


def test_forward_mode_and_vmap():
    w = leaf(3)
    with profile() as prof, dual_level():
        z = gnp.sin(make_dual(w, tensor(np.ones(3))))
        np.testing.assert_allclose(unpack_dual(z).tangent.numpy(), np.cos(w.numpy()))
    assert counts(prof)["sin"] == 1
    with profile() as prof:
        found = vmap(lambda v: gnp.sin(v) * v)(leaf(4, 3))
    np.testing.assert_allclose(found.numpy(), np.sin(leaf(4, 3).numpy()) * leaf(4, 3).numpy())
    assert counts(prof)["sin"] == counts(prof)["multiply"] == 1


def test_derivatives_in_batches():
    w, x = leaf(3), leaf(3)
    with profile() as prof, GradManager().attach(w):
        y = w * w
        (rows,) = grad(y, w, np.eye(3), is_grads_batched=True)
    np.testing.assert_allclose(rows.numpy(), np.diag(2 * w.numpy()))
    assert event(prof, "multiply_backward").sequence_nr == event(prof, "multiply").sequence_nr
    with profile() as prof:
        found = jacobian(lambda x: gnp.sin(x) * x, x, vectorize=True)
    np.testing.assert_allclose(found.numpy(), np.diag(np.cos(x.numpy()) * x.numpy() + np.sin(x.numpy())))
    assert counts(prof)["sin_backward"] == 1
    assert_sums(prof)


def test_both_modes_number_the_operation_itself():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof, gm, dual_level():
        x = make_dual(w, tensor(np.ones(3)))
        gm.backward((x * w).sum())
    retracked = {e.sequence_nr: e.name for e in prof.function_events if e.scope == 0 and e.sequence_nr >= 0}
    for e in prof.function_events:
        if e.name.endswith("_backward"):
            assert retracked[e.sequence_nr] == e.name.removesuffix("_backward")


def test_values_are_those_without_a_profiler():
    w, gm = leaf(3, 3), GradManager()
    gm.attach(w)

    def gradient():
        with gm:
            gm.backward(gnp.linalg.inv(gnp.tanh(w) @ w + 3 * gnp.eye(3)).sum())
        found, w.grad = w.grad.numpy().copy(), None
        return found

    plain = gradient()
    with profile(record_shapes=True, with_flops=True, profile_memory=True, with_stack=True, with_modules=True):
        assert np.array_equal(gradient(), plain)


# ---------------------------------------------------------------- regions


def test_regions_nest():
    w = leaf(3)
    with profile() as prof:
        with record_function("outer", "of two"):
            w * w
            with record_function("inner"):
                w + w
        w - w
    outer, inner = event(prof, "outer"), event(prof, "inner")
    assert [child.name for child in outer.cpu_children] == ["multiply", "inner"]
    assert [child.name for child in inner.cpu_children] == ["add"]
    assert outer.args == "of two"
    assert outer.is_user_annotation
    assert not outer.is_async
    assert event(prof, "subtract").cpu_parent is None
    assert_sums(prof)


def test_a_region_times_the_operations_in_it():
    with profile() as prof, record_function("sleep"):
        time.sleep(0.02)
    assert 20e3 <= event(prof, "sleep").cpu_time_total < 2e6
    assert event(prof, "sleep").self_cpu_time_total == event(prof, "sleep").cpu_time_total


def test_decorated_functions():
    w = leaf(3)

    @record_function("twice")
    def twice(depth=1):
        """Say so."""
        return w * 2 if depth == 0 else twice(depth - 1)

    @record_function("steps")
    def steps():
        yield w * 2
        yield w + 2

    assert twice.__doc__ == "Say so."
    twice()  # no profiler: nothing
    with profile() as prof:
        twice()
        for _ in steps():
            w - 1
    assert [e.name for e in prof.function_events if e.cpu_parent is None] == [
        *("twice", "steps", "subtract", "steps", "subtract", "steps")
    ]
    assert event(prof, "twice", 1).cpu_parent is event(prof, "twice")
    assert_sums(prof)


def test_wrong_regions():
    with pytest.raises(TypeError, match=r"record_function\(name\) takes a string; found int"):
        record_function(3)
    with pytest.raises(TypeError, match=r"record_function\(args\) takes a string; found list"):
        record_function("a", [])
    with pytest.raises(TypeError, match="class"):
        record_function("a")(type("C", (), {}))


# ---------------------------------------------------------------- errors


def test_an_operation_that_raises():
    w = leaf(3)
    with profile() as prof:
        with pytest.raises(ValueError, match="matmul"), record_function("region"):
            w @ leaf(4)
        w * w
    failed = event(prof, "matmul")
    assert failed.raised
    assert failed.cpu_time_total == 0
    assert failed.cpu_parent.name == "region"
    assert not event(prof, "region").raised
    assert event(prof, "multiply").cpu_parent is None
    assert_sums(prof)


def test_an_exception_closes_the_block():
    w = leaf(3)
    prof = profile()
    with pytest.raises(KeyError), prof, record_function("region"):
        {}[(w * w).shape]
    w + w
    assert context.current() is None
    assert names(prof) == ["region", "multiply"]


class Broken(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        g * 2.0
        raise ArithmeticError("mine")


def test_a_derivative_that_raises_and_what_comes_after():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof:
        with pytest.raises(ArithmeticError, match="mine"), gm:
            gm.backward(Broken.apply(w).sum())
        w + w
        step(gm, w)
    failed = event(prof, "Broken_backward")
    assert failed.raised
    assert failed.cpu_parent is event(prof, "backward")
    assert [child.name for child in failed.cpu_children] == ["multiply"]
    assert event(prof, "add").cpu_parent is None
    assert event(prof, "backward", 1).cpu_parent is None
    assert event(prof, "tanh_backward").cpu_parent is event(prof, "backward", 1)
    assert_sums(prof)


def test_a_function_whose_forward_raises():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            raise ArithmeticError(str((x * x).sum()))

    with profile() as prof:
        with pytest.raises(ArithmeticError):
            Bad.apply(leaf(2))
        leaf(2) + 1
    assert event(prof, "Bad").raised
    assert [child.name for child in event(prof, "Bad").cpu_children] == ["multiply", "sum"]
    assert event(prof, "add").cpu_parent is None
    assert_sums(prof)


def test_results_are_refused_before_the_block_is_over():
    prof = profile()
    with pytest.raises(RuntimeError, match="no results: it was never entered"):
        prof.key_averages()
    with prof, pytest.raises(errors.RecordingError, match="its block is not over"):
        prof.table()
    off = profile(enabled=False)
    with off:
        leaf(2) * 2
    with pytest.raises(RuntimeError, match="made with enabled=False"):
        off.total_average()
    assert repr(off) == "<profile, not enabled>"


def test_not_reentrant():
    prof = profile()
    with prof:
        leaf(2) * 2
        with pytest.raises(RuntimeError, match="not reentrant"), prof:
            pass
        leaf(2) + 2
    with pytest.raises(RuntimeError, match="not reentrant"), prof:
        pass
    assert names(prof) == ["multiply", "add"]


def test_arguments_that_are_refused():
    with pytest.raises(ValueError, match=r"use_kineto=True.*Kineto"):
        profile(use_kineto=True)
    with pytest.raises(ValueError, match="experimental_config"):
        profile(experimental_config=object())
    with pytest.raises(TypeError, match="unexpected keyword argument 'with_stakc'"):
        profile(with_stakc=True)
    with pytest.raises(ValueError, match="use_device='xpu'"):
        profile(use_device="xpu")
    with pytest.raises(ValueError, match="contradicts"):
        profile(use_device="cpu", use_cuda=True)
    profile(use_kineto=False, acc_events=False, use_device="cpu")


def test_names_that_are_refused():
    for name in ("load_nvprof", "parse_nvprof_trace", "EnforceUnique"):
        with pytest.raises(AttributeError, match=rf"{name}.*nvprof"):
            getattr(profiler, name)
    for name in ("KinetoStepTracker", "MemRecordsAcc"):
        with pytest.raises(AttributeError, match=rf"{name}.*Kineto"):
            getattr(profiler, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        profiler.nothing


# ---------------------------------------------------------------- adding up


def test_averages_and_totals():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile(with_flops=True, profile_memory=True) as prof:
        step(gm, w)
        step(gm, w)
    events, total = prof.function_events, prof.total_average()
    for field in ("count", "cpu_time_total", "self_cpu_time_total", "flops", "self_cpu_memory_usage"):
        whole = sum(getattr(e, field) for e in events)
        assert getattr(total, field) == pytest.approx(whole)
        assert sum(getattr(e, field) for e in prof.key_averages()) == pytest.approx(whole)
    assert total.key == "Total"
    assert total.self_cpu_time_total == pytest.approx(prof.self_cpu_time_total)
    (multiply,) = [e for e in prof.key_averages() if e.key == "multiply"]
    assert multiply.count == 4
    assert multiply.cpu_time == pytest.approx(multiply.cpu_time_total / 4)


def test_averages_by_shape_and_by_place():
    a, b = leaf(3), leaf(2, 2)
    with profile(record_shapes=True, with_stack=True) as prof:
        a * a
        b * b; b * b  # fmt: skip  # noqa: E702  # one line, two calls
        b * b
    by_shape = {(e.key, str(e.input_shapes)): e.count for e in prof.key_averages(group_by_input_shape=True)}
    assert by_shape == {("multiply", "[[3], [3]]"): 1, ("multiply", "[[2, 2], [2, 2]]"): 3}
    assert [e.count for e in prof.key_averages(group_by_stack_n=1)] == [1, 2, 1]
    assert [e.count for e in prof.key_averages()] == [4]


def test_two_profilers_at_once():
    w = leaf(3)
    with profile() as outer:
        w * w
        with profile() as inner, record_function("both"):
            w + w
        w - w
    assert names(outer) == ["multiply", "both", "add", "subtract"]
    assert names(inner) == ["both", "add"]
    assert_sums(outer)
    assert_sums(inner)


def test_profilers_that_end_in_the_other_order():
    w = leaf(3)
    first, second = profile(), profile()
    first.__enter__()
    second.__enter__()
    w * w
    first.__exit__(None, None, None)
    w + w
    second.__exit__(None, None, None)
    assert (names(first), names(second)) == (["multiply"], ["multiply", "add"])


# ---------------------------------------------------------------- threads and tasks


def test_threads_that_inherit_the_context():
    w = leaf(3)

    def work():
        with record_function("work"):
            gm = GradManager().attach(t := leaf(2))
            with gm:
                gm.backward((t * t).sum())

    def alone():
        w - w

    with profile() as prof, record_function("outer"):
        inheriting = [
            threading.Thread(target=contextvars.copy_context().run, args=(work,), name=f"w{k}") for k in range(3)
        ]
        for thread in (*inheriting, threading.Thread(target=alone)):
            thread.start()
            thread.join()
        w * w
    assert "subtract" not in names(prof)  # a thread without the context is on its own
    assert [child.name for child in event(prof, "outer").cpu_children] == ["multiply"]
    works = [e for e in prof.function_events if e.name == "work"]
    assert [e.thread for e in works] == [2, 3, 4]
    assert [e.thread_name for e in works] == ["w0", "w1", "w2"]
    for e in works:
        assert e.cpu_parent is None
        assert [child.name for child in e.cpu_children] == ["multiply", "sum", "backward"]
        assert all(child.thread == e.thread for child in e.cpu_children)
    assert len({e.sequence_nr for e in prof.function_events if e.scope == 0 and e.sequence_nr >= 0}) == 6
    assert_sums(prof)


def test_a_thread_that_outlives_the_block():
    w, go = leaf(3), threading.Event()

    def work():
        w * w
        go.wait(10)
        w + w

    with profile() as prof:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        while not prof._profiler.nodes:
            time.sleep(0.001)
    go.set()
    thread.join()
    assert names(prof) == ["multiply"]


def test_tasks():
    w = leaf(3)

    async def work(name):
        with record_function(name):
            w * w
            await asyncio.sleep(0.005)
            w + w

    async def main():
        with record_function("main"):
            await asyncio.gather(work("one"), work("two"))

    with profile() as prof:
        asyncio.run(main())
    for name in ("one", "two"):
        assert [child.name for child in event(prof, name).cpu_children] == ["multiply", "add"]
        assert event(prof, name).is_async
        assert event(prof, name).cpu_parent.name == "main"
    assert not event(prof, "main").is_async
    assert event(prof, "main").self_cpu_time_total >= 0


def test_in_a_task_of_its_own():
    w = leaf(3)

    async def profiled():
        with profile() as prof:
            w * w
            await asyncio.sleep(0.005)
            w + w
        return prof

    async def other():
        for _ in range(5):
            w - w
            await asyncio.sleep(0.001)

    async def main():
        prof, _ = await asyncio.gather(profiled(), other())
        return prof

    assert names(asyncio.run(main())) == ["multiply", "add"]


# ---------------------------------------------------------------- shapes, bytes, FLOPs, places


def test_shapes():
    a, b = leaf(3, 4), leaf(4)
    gm = GradManager().attach(a)
    with profile(record_shapes=True) as prof, gm:
        gm.backward((a @ b * 2.0).sum())
    assert event(prof, "matmul").input_shapes == [[3, 4], [4]]
    assert event(prof, "multiply").input_shapes == [[3], []]
    assert event(prof, "matmul_backward").input_shapes == [[3]]
    with profile() as prof:
        a + 1
    assert event(prof, "add").input_shapes == []


def flops(f, *tensors):
    """What each op counts, and each derivative with what stands in it."""
    gm = GradManager().attach(tensors)
    with profile(with_flops=True) as prof, gm:
        y = f(*tensors)
        gm.backward(y, np.ones(y.shape, y.dtype))
    found = {}
    for e in prof.function_events:
        if e.cpu_parent is None or e.scope == 1:
            own = e.flops + sum(child.flops for child in e.cpu_children if child.scope == 0)
            found[e.name] = found.get(e.name, 0) + own
    return {name: count for name, count in found.items() if count}


def test_flops_of_products():
    a, b, batch = leaf(3, 4), leaf(4, 5), leaf(7, 3, 4)
    assert flops(lambda a, b: a @ b, a, b) == {"matmul": 120, "matmul_backward": 240}
    assert flops(lambda x: x @ b, batch) == {"matmul": 840, "matmul_backward": 840}
    assert flops(lambda a, b: gnp.einsum("ij,jk->ik", a, b), a, b) == {"einsum": 120, "einsum_backward": 240}
    for f in (lambda a, b: gnp.tensordot(a, b, 1), gnp.dot):
        assert flops(f, a, b)["matmul"] == 120
    assert flops(lambda a: gnp.inner(a, a), a)["matmul"] == 2 * 3 * 3 * 4
    assert flops(lambda a: gnp.vecdot(a, a), a)["matmul"] == 2 * 3 * 4
    assert flops(lambda a, b: gnp.outer(a, b), leaf(3), leaf(4))["multiply"] == 12
    z = tensor(np.ones((2, 2), complex))
    assert flops(lambda z: z @ z, z)["matmul"] == 4 * 16


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("sizes", [(7, 3), (7, 4), (4, 4)])
def test_flops_of_convolutions(mode, name, sizes):
    a, v = leaf(sizes[0]), leaf(sizes[1])
    overlaps = int(getattr(np, name)(np.ones(sizes[0]), np.ones(sizes[1]), mode).sum())
    assert flops(lambda a, v: getattr(gnp, name)(a, v, mode), a, v)[name] == 2 * overlaps


def test_flops_of_planes():
    x, w, b = leaf(2, 6, 5, 4), leaf(8, 3, 3, 2), leaf(8)
    count = 2 * (2 * 8 * 3 * 3) * (3 * 3 * 2)  # two for each tap and channel within a group at each of 3 x 3 places
    assert flops(lambda x, w: F.conv2d(x, w, groups=2), x, w) == {"nn.conv2d": count, "nn.conv2d_backward": 2 * count}
    biased = {"nn.conv2d_bias": count, "nn.conv2d_bias_backward": 2 * count}
    assert flops(lambda x, w, b: F.conv2d(x, w, b, groups=2), x, w, b) == biased
    biased["nn.conv2d_bias_backward"] = count
    assert flops(lambda w, b: F.conv2d(x.numpy(), w, b, groups=2), w, b) == biased
    g = leaf(2, 8, 3, 3)
    assert flops(lambda g, w: F.conv_transpose2d(g, w, groups=2), g, w) == {
        "nn.conv_transpose2d": count,
        "nn.conv_transpose2d_backward": 2 * count,
    }
    assert flops_of("nn.conv2d_weight", (x, g), (None,), w)[0] == count


def test_flops_of_layers():
    x, w, b = leaf(5, 2, 3), leaf(4, 3), leaf(4)
    count = 2 * (5 * 2 * 4) * 3  # two for each of 3 features that go into each number
    assert flops(F.linear, x, w, b) == {"nn.linear": count, "nn.linear_backward": 2 * count}
    assert flops(lambda w, b: F.linear(x.numpy(), w, b), w, b)["nn.linear_backward"] == count
    n = 2 * 6 * 4 * 4
    image = leaf(2, 6, 4, 4)
    assert flops(lambda x: F.avg_pool2d(x, 2), image) == {"nn.avg_pool2d": n}  # 3 additions, 1 multiplication of 4
    assert flops(lambda x: F.max_pool2d(x, 2), image) == {}
    assert flops(lambda w: F.embedding(np.array([1, 2]), w), w) == {}
    for name, each, function, given in (
        ("group_norm", 5, lambda x: F.group_norm(x, 3), (image,)),
        ("layer_norm", 5, lambda x: F.layer_norm(x, (4,)), (image,)),
        ("layer_norm", 7, lambda x, w, b: F.layer_norm(x, (4,), b, b), (image, w, b)),
        ("rms_norm", 4, lambda x, b: F.rms_norm(x, (4,), b), (image, b)),
        ("batch_norm", 5, lambda x: F.batch_norm(x, None, None, training=True), (image,)),
    ):  # by NumPy, or by a kernel in C
        assert flops(function, *given) in ({f"nn.{name}": each * n}, {f"nn.{name}_of_input": each * n})
    fixed = np.ones((2, 6))
    assert flops(lambda x: F.batch_norm(x, *fixed), image) == {"nn.batch_norm_given": 2 * n}


def test_flops_of_attention():
    q, k, v = leaf(2, 5, 3), leaf(2, 7, 3), leaf(2, 7, 4)
    count = 2 * (2 * 5 * 7) * (3 + 4)  # a product over 3 features for each score, and one over 7 keys for each result
    name = "nn.scaled_dot_product_attention"
    attend = F.scaled_dot_product_attention
    assert flops(attend, q, k, v) == {name: count, f"{name}_backward": 2 * count}
    assert flops(lambda v: attend(q.numpy(), k.numpy(), v), v)[f"{name}_backward"] == 2 * (2 * 5 * 7) * 4


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3)])
def test_flops_of_recurrent_networks(name, gates):
    rows, features, hidden, steps = 5, 2, 3, 6
    x, h = leaf(rows, features), leaf(rows, hidden)
    w_ih, w_hh = leaf(gates * hidden, features), leaf(gates * hidden, hidden)
    state = (h, h) if name == "lstm" else h
    of_input, of_state = 2 * rows * gates * hidden * features, 2 * rows * gates * hidden * hidden

    def cell(x, *weights):
        made = getattr(F, f"{name}_cell")(x, state, *weights)
        return made[0] if name == "lstm" else made

    whole = 2 * (of_input + of_state)
    found = flops(cell, x, w_ih, w_hh)
    assert found == {f"nn.{name}_cell": of_input + of_state, f"nn.{name}_cell_backward": whole - of_state}  # h is fixed
    layer = getattr(nn, name.upper())(features, hidden, dtype=float, rng=np.random.default_rng(0))
    found = flops(lambda x, *weights: layer(x)[0], leaf(steps, rows, features), *layer.parameters())
    found.pop("add", None)  # of two biases, once for all steps
    assert found == {
        "nn.linear": steps * of_input,
        "nn.linear_backward": 2 * steps * of_input,
        f"nn.{name}": steps * of_state,
        f"nn.{name}_backward": 2 * steps * of_state,
    }


def test_flops_of_linear_algebra():
    a, b = leaf(4, 4) + 4 * np.eye(4), leaf(4, 3)
    n = 4
    lu = 2 * n**3 / 3 - n**2 / 2 + 5 * n / 6
    solve = {flops(gnp.linalg.solve, a, b)["solve"], flops_of("solve", (a, b), (None, False, False), b)[0]}
    assert solve <= {3 * (2 * n**2 - n), round(lu) + 3 * (2 * n**2 - n)}  # factored before, or not
    assert round(lu) + 3 * (2 * n**2 - n) in solve
    assert flops(gnp.linalg.inv, a)["inv"] == 2 * n**3 - round(1.5 * n**2) + round(2.5 * n)
    assert flops(gnp.linalg.det, a)["det"] == round(lu + n)
    spd = tensor(np.eye(4) * 3)
    assert flops(gnp.linalg.cholesky, spd)["cholesky"] == round(n**3 / 3 + n**2 / 2 + n / 6)
    assert flops(lambda a: gnp.linalg.eigh(a)[0], spd)["eigh"] == 9 * n**3
    assert flops(gnp.linalg.solve_triangular, a, b)["solve_triangular"] == 3 * n**2


@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5)])
def test_flops_of_decompositions_of_matrices_that_are_not_square(m, n):
    """By LAPACK's Working Note 41, and by Golub and Van Loan, 8.6."""
    more = m * n + n**2 if m >= n else 3 * m * n - m**2
    factor = 2 * 5 * 3**2 - 2 * 3**3 / 3 + more + 14 * 3 / 3
    assert flops(lambda a: gnp.linalg.qr(a.mT if m < n else a)[1], leaf(5, 3))["qr"] == factor
    of_svd = lambda **options: flops(lambda a: gnp.linalg.svd(a, **options)[1], leaf(m, n))["svd"]
    assert of_svd(full_matrices=False) == 6 * 5 * 3**2 + 20 * 3**3
    assert of_svd() == 4 * 5**2 * 3 + 22 * 3**3


def test_flops_of_elements():
    w = leaf(5)
    assert flops(lambda w: (w + 1) * w / 2 - w, w) == {
        "add": 5,
        "multiply": 5,
        "divide": 5,
        "subtract": 5,
        "multiply_backward": 10,
    }
    assert flops(lambda w: w.sum(), w) == {"sum": 4}


def test_times_as_text():
    with profile() as prof:
        leaf(1) + 1
    (of_add,) = [e for e in prof.key_averages() if e.key == "add"]
    of_add.count = 2
    for kind, total, own in (("cpu", 3e6, 1500.0), ("device", 0.5, 0.25)):
        setattr(of_add, f"{kind}_time_total", total)
        setattr(of_add, f"self_{kind}_time_total", own)
    texts = of_add.cpu_time_total_str, of_add.cpu_time_str, of_add.self_cpu_time_total_str
    assert texts == ("3.000s", "1.500s", "1.500ms")
    texts = of_add.device_time_total_str, of_add.device_time_str, of_add.self_device_time_total_str
    assert texts == ("0.500us", "0.250us", "0.250us")
    assert (of_add.cuda_time_total, of_add.cuda_time, of_add.self_cuda_time_total) == (0.5, 0.25, 0.25)
    assert f"{of_add!r}".startswith("<FunctionEventAvg key=add count=2 self_cpu_time=1.500ms cpu_time=1.500s ")


def test_every_counted_op_is_in_the_table():
    assert set(profiler.FLOPS) <= set(OPS)


def test_bytes():
    a, gm = leaf(10, 10), GradManager()
    gm.attach(a)
    with profile(profile_memory=True) as prof, gm:
        with record_function("region"):
            b = a * 2.0
            b.T  # a view
        gm.backward(b.sum())
    assert event(prof, "multiply").cpu_memory_usage == 800
    assert event(prof, "transpose").cpu_memory_usage == 0
    assert event(prof, "region").cpu_memory_usage == 800
    assert event(prof, "region").self_cpu_memory_usage == 0
    assert event(prof, "multiply_backward").cpu_memory_usage == 800
    assert event(prof, "backward").cpu_memory_usage == sum(
        child.cpu_memory_usage for child in event(prof, "backward").cpu_children
    )


class Net:
    def __init__(self, *layers):
        self.layers = layers

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


class Layer:
    def forward(self, x):
        return x * 2.0


def line_of(function):
    return function.__code__.co_firstlineno


def test_places_and_modules(tmp_path):
    w = leaf(3)
    gm = GradManager().attach(w)
    with profile(with_stack=True, with_modules=True) as prof, gm:
        gm.backward(Net(Layer()).forward(w).sum())
    at = f"{__file__}({line_of(Layer.forward) + 1}): Layer.forward"
    for e in (event(prof, "multiply"), event(prof, "multiply_backward")):
        assert e.stack[0] == at
        assert e.stack[1].endswith(": Net.forward")
        assert e.stack[2].endswith(": test_places_and_modules")
        assert e.module_hierarchy == "Net/Layer"
    assert event(prof, "sum").module_hierarchy == ""
    prof.export_stacks(tmp_path / "stacks.txt")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.rpartition(" ")[0].endswith(";multiply")]
    frames, _, value = line.rpartition(" ")
    assert " " not in frames
    assert frames.split(";")[-2] == at.replace(" ", "_")
    assert int(value) == int(event(prof, "multiply").self_cpu_time_total)


def test_export_stacks_needs_with_stack(tmp_path):
    with profile() as prof:
        leaf(2) * 2
    with pytest.raises(RuntimeError, match="with_stack=True"):
        prof.export_stacks(tmp_path / "stacks.txt")
    with profile(with_stack=True) as prof:
        leaf(2) * 2
    with pytest.raises(ValueError, match=r"metric must be one of.*'calls'"):
        prof.export_stacks(tmp_path / "stacks.txt", "calls")
    assert not (tmp_path / "stacks.txt").exists()


# ---------------------------------------------------------------- tables


def test_the_table():
    a = leaf(64, 64)
    gm = GradManager().attach(a)
    with profile(record_shapes=True, with_flops=True, profile_memory=True, with_stack=True) as prof, gm:
        with record_function("a region whose name is far too long for a column that has no room"):
            y = (a @ a * 2.0).sum()
        gm.backward(y)
    averages = prof.key_averages(group_by_input_shape=True, group_by_stack_n=1)
    table = averages.table(sort_by="flops", header="Mine")
    lines = table.splitlines()
    assert lines[1] == "Mine"
    titles = [title.strip() for title in lines[3].split("  ") if title.strip()]
    assert titles == [
        *("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "CPU Mem", "Self CPU Mem"),
        *("# of Calls", "Input Shapes", "Source Location", "Total KFLOPs"),
    ]
    rows = lines[5:-2]
    assert [row.split()[0] for row in rows[:2]] == ["matmul_backward", "matmul"]
    assert rows[1].split()[-1] == "524.288"
    assert "[[64, 64], [64, 64]]" in rows[1]
    assert "32.00 KB" in rows[1]
    assert len(rows) == len(averages) == 8
    assert "a region whose name is far too long for a column tha..." in table
    assert len({len(line) for line in lines[2:-1]}) == 1
    assert lines[-1].startswith("Self CPU time total: ")
    shares = [float(row.split("%")[0].split()[-1]) for row in rows]
    assert sum(shares) == pytest.approx(100, abs=0.1)


def test_tables_are_sorted_and_cut():
    w = leaf(3)
    with profile() as prof, record_function("region"):
        for _ in range(3):
            w * w
        w + w
    by_count = prof.key_averages().table(sort_by="count").splitlines()[3:-2]
    assert by_count[0].split()[0] == "multiply"
    assert len(prof.table(row_limit=2).splitlines()) == 3 + 2 + 2
    assert len(prof.table(row_limit=-1).splitlines()) == 3 + 5 + 2
    assert [row.split()[0] for row in prof.table(top_level_events_only=True).splitlines()[3:-2]] == ["region"]
    assert "Input Shapes" not in prof.table()
    assert repr(prof) == prof.table()
    assert "ms" not in prof.table(time_unit="us")
    with pytest.raises(ValueError, match=r"sort_by must be one of count.*'speed'"):
        prof.table(sort_by="speed")
    with pytest.raises(ValueError, match="time_unit"):
        prof.table(time_unit="h")


def test_an_empty_profile(tmp_path):
    with profile(with_flops=True) as prof:
        pass
    assert prof.self_cpu_time_total == 0
    assert prof.total_average().count == 0
    assert "Self CPU time total: 0.000us" in prof.key_averages().table(sort_by="cpu_time")
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert [e["ph"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]] == ["M"]


# ---------------------------------------------------------------- the trace


def test_the_trace(tmp_path):
    w, gm = leaf(3), GradManager()
    gm.attach(w)

    def work():
        w + w

    with profile(record_shapes=True, with_stack=True) as prof:
        with record_function("region", "mine"):
            step(gm, w)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="helper")
        thread.start()
        thread.join()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    entries = trace["traceEvents"]
    spans = [e for e in entries if e["ph"] == "X"]
    assert [e["name"] for e in spans] == names(prof)
    for e in spans:
        assert e["dur"] >= 0
        assert {"ts", "pid", "tid", "cat", "args"} <= e.keys()
    threads = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    assert threads[2].startswith("helper")
    assert [e["tid"] for e in spans if e["name"] == "add"] == [2]
    assert spans[0]["cat"] == "user_annotation"
    assert spans[0]["args"]["Arguments"] == "mine"
    assert spans[1]["args"]["Input Dims"] == [[3], [3]]
    assert spans[1]["args"]["Sequence number"] == 0

    # On each track spans stand one in the other.
    for tid in threads:
        opened = []
        for e in sorted((e for e in spans if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            while opened and opened[-1]["ts"] + opened[-1]["dur"] <= e["ts"]:
                opened.pop()
            assert not opened or e["ts"] + e["dur"] <= opened[-1]["ts"] + opened[-1]["dur"] + 1e-6
            opened.append(e)

    # An arrow for each derivative, from an operation to it, in time.
    starts = {e["id"]: e for e in entries if e["ph"] == "s"}
    ends = {e["id"]: e for e in entries if e["ph"] == "f"}
    assert len(starts) == len(ends) == 4
    begun = {(e["tid"], e["ts"]): e for e in spans}
    for key, start in starts.items():
        operation, derivative = begun[start["tid"], start["ts"]], begun[ends[key]["tid"], ends[key]["ts"]]
        assert derivative["name"] == f"{operation['name']}_backward"
        assert derivative["args"]["Sequence number"] == operation["args"]["Sequence number"]
        assert start["ts"] < ends[key]["ts"]
        assert ends[key]["bp"] == "e"


def read_trace(prof, folder):
    """Write a profile as a trace and read it as strictly as a browser does."""
    prof.export_chrome_trace(folder / "trace.json")

    def refuse(number):
        raise AssertionError(f"{number} is not JSON")

    return json.loads((folder / "trace.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def rich_trace(tmp_path_factory):
    """Second derivatives, another thread, a region and an exception."""
    w, inner, outer = leaf(3), GradManager(), GradManager()
    inner.attach(w)
    outer.attach(w)
    with profile(record_shapes=True, with_stack=True, with_flops=True, profile_memory=True) as prof:
        with record_function("region", "mine"), outer:
            step_kept = gnp.tanh(w * w).sum()
            with inner:
                inner.backward((gnp.tanh(w * w) * 2.0).sum())
            outer.backward(step_kept + (w.grad**2).sum())
        with pytest.raises(ValueError, match="shape"), record_function("it fails"):
            w + gnp.ones(2)
        thread = threading.Thread(target=lambda: w + w, name="helper")
        thread.start()
        thread.join()
    return read_trace(prof, tmp_path_factory.mktemp("trace"))


def test_the_trace_is_in_the_trace_event_format(rich_trace):
    """Perfetto's own page, opened in a browser with such a trace, shows the same spans and arrows, and no error."""
    assert problems(rich_trace) == []
    assert {event["ph"] for event in rich_trace["traceEvents"]} == {"M", "X", "s", "f"}


def change(phase, **values):
    """Return a function that gives the first event of a phase other values, or takes keys from it: those of None."""

    def changed(trace):
        event = next(e for e in trace["traceEvents"] if e["ph"] == phase)
        event.update(values)
        for key in [key for key, value in values.items() if value is None]:
            del event[key]

    return changed


def repeat(phase):
    def changed(trace):
        trace["traceEvents"].append(next(e for e in trace["traceEvents"] if e["ph"] == phase))

    return changed


def end_region_in_backward(trace):
    region, backward = (next(e for e in trace["traceEvents"] if e["name"] == name) for name in ("region", "backward"))
    region["dur"] = backward["ts"] + backward["dur"] / 2 - region["ts"]


def drop(phase):
    def changed(trace):
        trace["traceEvents"].remove(next(e for e in trace["traceEvents"] if e["ph"] == phase))

    return changed


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change("X", dur=None), "X needs dur"),
        (change("X", ts="12"), "ts is no number"),
        (change("X", dur=-1.0), "dur is negative"),
        (end_region_in_backward, "backward begins in region and ends after it"),
        (change("X", tid="main"), "tid is 'main'"),
        (change("X", args=[1]), r"args is \[1\]"),
        (change("X", ph="Q"), "no known phase"),
        (change("X", ph="B", dur=None), "region has no end"),
        (change("X", ph="E", dur=None), "the end of region has no begin"),
        (change("M", args={}), "metadata 'process_name'"),
        (change("M", name="colour"), "metadata 'colour'"),
        (change("s", id=None), "s needs id"),
        (change("s", tid=99), "touches no span"),
        (change("f", ts=0.0), "touches no span|goes back in time"),
        (change("f", bp="x"), "unknown binding point"),
        (repeat("s"), "has not one start and one end"),
        (drop("f"), "has not one start and one end"),
        (lambda trace: trace.update(displayTimeUnit="s"), "displayTimeUnit"),
        (lambda trace: trace.update(traceEvents={}), "a list"),
    ],
)
def test_a_spoilt_trace_is_not(rich_trace, spoil, words):
    trace = copy.deepcopy(rich_trace)
    spoil(trace)
    found = problems(trace)
    assert found
    assert re.search(words, found[0]), found


# ---------------------------------------------------------------- nothing is left


def test_the_context_is_the_tape_again_after_the_block():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile():
        pass
    assert context.current() is None
    with gm:
        with profile():
            w * w
        assert context.current() is gm._tape
    with gm:
        assert type(gm._tape.entries) is list
        assert context.current() is gm._tape


def test_memory_is_freed():
    class Array(np.ndarray):
        pass

    w, gm = leaf(3), GradManager()
    gm.attach(w)
    gc.collect()
    gc.disable()
    try:
        with profile(record_shapes=True, with_flops=True, profile_memory=True, with_stack=True) as prof:
            with gm:
                y = gnp.tanh(w * w)
                held, tape = weakref.ref(y), weakref.ref(gm._tape)
                gm.backward(y.sum())
            del y
            assert held() is None
            assert tape() is None
        collector, one = weakref.ref(prof._profiler), weakref.ref(prof.function_events[-1])
        assert one() in one().cpu_parent.cpu_children
        del prof
        assert collector() is None
        assert one() is None
    finally:
        gc.enable()


def test_an_event_knows_where_it_stands_when_the_profile_is_gone():
    w = leaf(3)
    with profile() as prof, record_function("outer"), record_function("inner"):
        w * w
        w + w
    multiply = event(prof, "multiply")
    multiply.note = "mine"
    del prof
    inner = multiply.cpu_parent
    assert (inner.name, inner.cpu_parent.name, inner.cpu_parent.cpu_parent) == ("inner", "outer", None)
    assert [child.name for child in inner.cpu_children] == ["multiply", "add"]
    assert inner.cpu_children[0] is multiply
    del multiply
    assert inner.cpu_children[0].note == "mine"


def pickled(events):
    return pickle.loads(pickle.dumps(events))  # noqa: S301  # our own bytes


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_of_events_stand_in_each_other_too(copied):
    w = leaf(3)
    with profile() as prof, record_function("outer"):
        w * w
    outer, multiply = copied(prof.function_events)
    assert multiply.cpu_parent is outer
    assert outer.cpu_children == [multiply]
    assert multiply.cpu_time_total == event(prof, "multiply").cpu_time_total


def test_events_outlive_nothing():
    w = leaf(3)
    with profile() as prof:
        kept = w * w
        gone = weakref.ref(kept)
        del kept
    assert gone() is None
    assert len(prof.function_events) == 1


# ---------------------------------------------------------------- checkpoint


def test_what_a_checkpoint_computes_again_is_part_of_its_derivative():
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with profile() as prof, gm:
        gm.backward(checkpoint(lambda x: gnp.sin(x) * x, w).sum())
    assert counts(prof)["sin"] == 2
    inner = event(prof, "sin", 1)
    while inner.cpu_parent is not None:
        inner = inner.cpu_parent
    assert inner.name == "backward"
    assert_sums(prof)


# ---------------------------------------------------------------- the GPU, and tools


class FakeCuda:
    """CUDA's clock: it advances by a millisecond with every event."""

    def __init__(self):
        self.now = 0
        self.ranges = []
        self.synchronized = []
        self.current = 0
        cuda = self

        class Event:
            def record(self):
                cuda.now += 1
                self.at, self.device = cuda.now, cuda.current

            def synchronize(self):
                cuda.synchronized.append(self)

        self.Event = Event
        self.runtime = types.SimpleNamespace(getDevice=lambda: cuda.current)
        self.nvtx = types.SimpleNamespace(RangePush=self.push, RangePop=self.pop)

    def is_available(self):
        return True

    def get_elapsed_time(self, begin, end):
        assert begin.device == end.device  # CUDA refuses others
        return float(end.at - begin.at)

    def push(self, name):
        self.ranges.append(("push", name))

    def pop(self):
        self.ranges.append(("pop",))

    Device = guard.Device


@pytest.fixture
def cuda(cupy, monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(cupy, "cuda", fake, raising=False)
    return fake


def on_guard(*shape):
    return tensor(guard.cupy.asarray(np.ones(shape)))


@pytest.mark.parametrize("options", [{"use_device": "cuda"}, {"use_cuda": True}])
def test_gpu_time(cuda, options, tmp_path):
    w, host, gm = on_guard(3), leaf(3), GradManager()
    gm.attach(w)
    with profile(profile_memory=True, **options) as prof:
        with gm, record_function("region"):
            gm.backward((w * w).sum())
        host * host
    assert len(cuda.synchronized) == 4  # the times are those of work that is done
    for name in ("sum", "multiply_backward", "sum_backward"):
        assert event(prof, name).device_time_total == pytest.approx(1000)
    on_gpu, on_cpu = (e for e in prof.function_events if e.name == "multiply")
    assert (on_gpu.device_time_total, on_cpu.device_time_total) == (pytest.approx(1000), 0)
    assert (on_gpu.device_memory_usage, on_gpu.cpu_memory_usage) == (24, 0)
    assert (on_cpu.device_memory_usage, on_cpu.cpu_memory_usage) == (0, 24)
    assert event(prof, "region").device_time_total == pytest.approx(4000)
    assert event(prof, "region").self_device_time_total == 0
    table = prof.key_averages().table(sort_by="cuda_time_total")
    assert "CUDA total" in table
    assert "Self CUDA Mem" in table
    assert "Self CUDA time total: 4.000ms" in table
    trace = read_trace(prof, tmp_path)
    assert problems(trace) == []
    entries = trace["traceEvents"]
    kernels = [e for e in entries if e.get("cat") == "kernel"]
    assert [e["name"] for e in kernels] == ["multiply", "sum", "sum_backward", "multiply_backward"]
    assert [e["dur"] for e in kernels] == pytest.approx([1000] * 4)
    assert kernels == sorted(kernels, key=lambda e: e["ts"])


def test_two_gpus(cuda, tmp_path):
    w = on_guard(3)
    with profile(use_device="cuda") as prof:
        w * w
        cuda.current = 1
        w + w
        cuda.current = 0
        w - w
    assert [e.device_index for e in prof.function_events] == [0, 1, 0]
    assert [e.device_time_total for e in prof.function_events] == pytest.approx([1000] * 3)
    trace = read_trace(prof, tmp_path)
    assert problems(trace) == []
    entries = trace["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    assert [tracks[e["tid"]] for e in entries if e.get("cat") == "kernel"] == ["GPU 0", "GPU 1", "GPU 0"]


def test_a_cupy_without_nvtx(cuda):
    cuda.nvtx = types.SimpleNamespace(available=False)
    with pytest.raises(errors.DeviceError, match="built without NVTX"):
        emit_nvtx()


def test_the_gpu_is_not_timed_unasked(cuda):
    w = on_guard(3)
    with profile() as prof:
        w * w
    assert cuda.now == 0
    assert "CUDA" not in prof.table()


def test_no_gpu_to_time(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if not installed
    for make in (lambda: profile(use_device="cuda"), lambda: profile(use_cuda=True), emit_nvtx):
        with pytest.raises(errors.DeviceError, match="needs CuPy, which is not installed"):
            make()
    profile(enabled=False, use_cuda=True)
    emit_nvtx(enabled=False)
    assert context.current() is None


def test_nvtx(cuda):
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with emit_nvtx(record_shapes=True):
        with record_function("region"), pytest.raises(ValueError, match="matmul"):
            w @ leaf(4)
        with gm:
            gm.backward((w * w).sum())
    w * w
    depth = 0
    for what, *_ in cuda.ranges:
        depth += 1 if what == "push" else -1
        assert depth >= 0
    assert depth == 0
    assert [name for what, *name in cuda.ranges if what == "push"] == [
        ["region"],
        ["matmul, sizes = [[3], [4]]"],
        ["multiply, sizes = [[3], [3]]"],
        ["sum, sizes = [[3]]"],
        ["sum_backward, seq = 1"],
        ["multiply_backward, seq = 0"],
    ]
    assert cuda.ranges[:4] == [("push", "region"), ("push", "matmul, sizes = [[3], [4]]"), ("pop",), ("pop",)]


def test_nvtx_after_a_derivative_that_raised(cuda):
    w, gm = leaf(3), GradManager()
    gm.attach(w)
    with emit_nvtx():
        with pytest.raises(ArithmeticError), gm:
            gm.backward(Broken.apply(w).sum())
        w + w
        step(gm, w)
    depth = [0]
    for what, *_ in cuda.ranges:
        depth.append(depth[-1] + (1 if what == "push" else -1))
    assert depth[-1] == 0
    assert depth[cuda.ranges.index(("push", "add"))] == 0


def test_markers_are_not_reentrant(cuda):
    node_ids = emit_nvtx()
    with node_ids, pytest.raises(RuntimeError, match="emit_nvtx is not reentrant"), node_ids:
        pass
    with pytest.raises(RuntimeError, match="emit_nvtx is not reentrant"), node_ids:
        pass


def test_itt(monkeypatch):
    seen = []

    class Task:
        def __init__(self, name, domain=None):
            self.name, self.domain = name, domain

        def begin(self):
            seen.append(("begin", self.name, self.domain))

        def end(self):
            seen.append(("end", self.name, self.domain))

    monkeypatch.setitem(sys.modules, "ittapi", types.SimpleNamespace(task=Task))
    with emit_itt(), record_function("region"):
        leaf(3) * 2
    begun, ended = (("region", "gradmgr"), ("multiply", "gradmgr")), (("multiply", "gradmgr"), ("region", "gradmgr"))
    assert seen == [*(("begin", *task) for task in begun), *(("end", *task) for task in ended)]


def test_itt_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ittapi", None)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install -e \"\.\[itt\]\""):
        emit_itt()
    with emit_itt(enabled=False):
        leaf(3) * 2


def test_itt_itself():
    pytest.importorskip("ittapi", reason="ittapi is not installed")
    with emit_itt(record_shapes=True), record_function("region"):
        assert (leaf(3) * 2).shape == (3,)


# ---------------------------------------------------------------- the page in docs


def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "profiler.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})  # noqa: S102  # our own page
    table = capsys.readouterr().out
    assert "matmul_backward" in table
    assert "[[256, 64], [64, 64]]" in table
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_gpu_time_on_a_gpu():
    cupy = cupy_on_a_gpu()
    a = tensor(cupy.random.standard_normal((2048, 2048)))
    gm = GradManager().attach(a)
    with gm:
        gm.backward((a @ a).sum())  # compiles
    a.grad = None
    with profile(use_device="cuda", profile_memory=True) as prof, gm:
        gm.backward((a @ a).sum())
    product = event(prof, "matmul")
    assert product.device_memory_usage == a.numpy().nbytes
    assert 2 * 2048**3 / product.device_time_total < 1e9  # below 1000 TFLOP/s of float64: it waited for the kernel
    assert event(prof, "matmul_backward").device_time_total > product.device_time_total
    assert "Self CUDA time total" in prof.key_averages().table(sort_by="cuda_time_total")


@pytest.mark.gpu
def test_nvtx_on_a_gpu():
    cupy = cupy_on_a_gpu()
    a = tensor(cupy.ones(3))
    with emit_nvtx(record_shapes=True), record_function("region"):
        assert float((a * a).sum()) == 3
