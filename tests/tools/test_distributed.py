"""gradmgr.distributed: programs of several ranks under mpiexec, and what can be asked of one process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import ROOT
from mpi import cupy_with_nccl, launcher, run_ranks

from gradmgr import distributed, errors
from gradmgr.distributed import Group, _nccl, _work
from gradmgr.distributed._local_ranks import LocalRanks
from gradmgr.distributed._work import WatchdogBase

# What every program below begins with. `say` is what a test reads of a rank's output.
HEAD = """
import os, signal, sys, threading, time, warnings
import numpy as np
import gradmgr, gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, distributed as d, errors, forward_ad, tensor, vmap
from gradmgr.distributed import _wire, _world

def say(*words):
    print(*words, flush=True)

def refused(kind, f, *args, **keywords):
    try:
        f(*args, **keywords)
    except kind as error:
        return str(error)
    raise SystemExit(f"{f} of {args} was not refused")
"""


def ran(n: int, program: str, timeout: float = 60.0) -> Any:
    """Run a program that must end well on every rank, whose last line says so."""
    found = run_ranks(n, HEAD + program + "\nsay('done')\n", timeout)
    if found.rc != 0 or not all(out.endswith("done\n") for out in found.out) or any(found.err):
        pytest.fail(str(found))
    return found


# ---------------------------------------------------------------- values

VALUES = """
d.init()
me, n = d.rank(), d.size()
assert (n, d.is_initialized(), d.rank(None)) == (3, True, me)
group = _world.group()

def all_ranks(shape, dtype):
    made = [np.random.default_rng(k).normal(size=(*shape, 2)) * 3 for k in range(n)]
    return [(m[..., 0] + 1j * m[..., 1] if np.dtype(dtype).kind == "c" else m[..., 0]).astype(dtype) for m in made]

def same_bits(array):
    texts = group.exchange(array.tobytes().hex())
    assert len(set(texts)) == 1, texts

DTYPES = ["f4", "f8", "F", "D", "e", "i1", "u2", "i4", "i8", "u8"]
try:
    import ml_dtypes
except ImportError:
    pass
else:
    DTYPES.append(ml_dtypes.bfloat16)
HOW = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "mean": np.mean}

for shape in [(), (4,), (2, 3), (0, 2), (3000,)]:
    for dtype in DTYPES:
        xs = all_ranks(shape, dtype)
        narrow = xs[0].dtype.itemsize == 2 and xs[0].dtype.kind not in "iu"
        tolerance = 1e-2 if narrow else 1e-5 if xs[0].dtype.char in "fF" else 1e-12
        for op, how in HOW.items():
            kind = xs[0].dtype.kind
            if (kind in "iu" and op == "mean") or (kind == "c" and op in ("min", "max")):
                said = refused(errors.DtypeError, d.all_reduce, xs[me], op)
                assert ("mean" if kind in "iu" else "order") in said
                continue
            out = d.all_reduce(xs[me], op)
            assert type(out) is np.ndarray and out.shape == shape and out.dtype == xs[0].dtype, (out, dtype)
            keeps = {"dtype": dtype} if kind in "iu" and op in ("sum", "prod") else {}
            want = how(np.stack(xs).astype("f4") if narrow else np.stack(xs), axis=0, **keeps)
            assert np.allclose(out.astype(want.dtype), want, rtol=tolerance, atol=tolerance), (op, dtype, out, want)
            same_bits(out)
            rows = d.reduce_scatter(np.stack([xs[(me + k) % n] for k in range(n)]), op)
            want = np.stack([xs[(k + me) % n] for k in range(n)])
            want = how(want.astype("f4") if narrow else want, axis=0, **keeps)
            assert type(rows) is np.ndarray and rows.shape == shape and rows.dtype == xs[0].dtype
            assert np.allclose(rows.astype(want.dtype), want, rtol=tolerance, atol=tolerance), (op, dtype, rows, want)
        gathered = d.all_gather(xs[me])
        assert gathered.dtype == xs[0].dtype and gathered.tobytes() == np.stack(xs).tobytes()
        assert d.broadcast(xs[me], root=2).tobytes() == xs[2].tobytes()

# What is summed does not overflow on its way, and a mean is divided before it is rounded.
half = np.full(3, 60000, np.float16)
assert d.all_reduce(half, "mean").tolist() == [60000] * 3
assert d.all_reduce(half if me == 0 else -half).tolist() == [-60000] * 3

# NaN and the two zeros: the same on every rank.
odd = np.array([[np.nan, 1, -0.0, 2], [1, np.nan, 0.0, 1], [1, 1, -0.0, np.nan]])[me]
for op in ("min", "max"):
    out = d.all_reduce(odd, op)
    assert np.isnan(out).tolist() == [True, True, False, True]
    same_bits(out)

flags = [np.array([True, False, k == 1]) for k in range(n)]
assert d.all_reduce(flags[me], "max").tolist() == [True, False, True]
assert d.all_reduce(flags[me], "min").tolist() == [True, False, False]
assert "count" in refused(errors.DtypeError, d.all_reduce, flags[me])
assert d.all_gather(flags[me]).dtype == bool
assert d.reduce_scatter(np.stack(flags), "max").tolist() == flags[me].tolist()
assert "reduce_scatter: a sum of bool" in refused(errors.DtypeError, d.reduce_scatter, np.stack(flags))

# Any memory layout, which stays as it was; numbers and lists; Tensors give Tensors.
x = np.arange(24.0).reshape(2, 3, 4)
for view in [x[:, ::-1], x.T, x[1], x[::2, 1], np.broadcast_to(x[0, 0], (3, 4)), x.astype(">f8"), x[0, 0, 0]]:
    view = np.asarray(view)
    view.flags.writeable = False
    out = d.all_reduce(view)
    assert np.array_equal(out, view * 3) and out.flags.writeable and out.dtype.isnative
    assert np.array_equal(d.all_gather(view)[1], view)
    assert np.array_equal(d.broadcast(view), view)
    assert np.array_equal(d.reduce_scatter(np.stack([view] * n).swapaxes(0, -1).swapaxes(0, -1)), view * 3)
assert np.array_equal(x, np.arange(24.0).reshape(2, 3, 4))
assert d.all_reduce(2.5) == 7.5 and d.all_reduce([1, 2]).tolist() == [3, 6] and int(d.all_reduce(me)) == 3
t = tensor([1.0, me])
for out in (d.all_reduce(t), d.all_gather(t), d.broadcast(t, 1), d.reduce_scatter(tensor(np.ones((3, 2))))):
    assert type(out) is Tensor
assert d.broadcast(t, 1).numpy().tolist() == [1, 1] and t.numpy().tolist() == [1, me]

# What is larger than the memory that the ranks share goes by MPI.
big = np.arange(3 * 200_000.0).reshape(3, -1)
assert np.array_equal(d.all_reduce(big * (me + 1)), big * 6)
assert np.array_equal(d.reduce_scatter(big * (me + 1)), big[me] * 6)
assert np.array_equal(d.reduce_scatter(big * (me + 1), "max"), big[me] * 3)

# An array above the engine's largest call goes in pieces.
group._shared.max_bytes = 0
assert np.isnan(d.all_reduce(odd, "min")).tolist() == [True, True, False, True]
assert np.array_equal(d.reduce_scatter(x.reshape(3, 8), "prod"), x.reshape(3, 8)[me] ** 3)
_wire.MAX_BYTES = 1000
assert np.array_equal(d.reduce_scatter(big[:, :999] * (me + 1)), big[me, :999] * 6)
long = np.arange(1001, dtype="f8") * (me + 1)
assert np.array_equal(d.all_reduce(long), long / (me + 1) * 6)
assert np.array_equal(d.all_gather(long), np.stack([np.arange(1001) * (k + 1.0) for k in range(n)]))
assert np.array_equal(d.broadcast(long, 1), np.arange(1001) * 2.0)
out = np.zeros(1001)
work = group.start_recv(out, (me - 1) % n, tag=7)
group.start_send(long, (me + 1) % n, tag=7).wait()
work.wait()
assert np.array_equal(out, np.arange(1001) * ((me - 1) % n + 1.0))

# Begun early and ended in any order; let go of while under way.
parts = [np.full(50, float(k + me)) for k in range(8)]
works = [group.start_all_reduce(p, op) for p, op in zip(parts, ["sum", "mean"] * 4)]
group.start_all_reduce(np.ones(100_000))
for k in ((3, 1, 0, 2, 7, 6, 5, 4) if me else range(8)):
    works[k].wait()
    works[k].wait()
    assert works[k].done()
assert [p[0] for p in parts] == [(3 * k + 3) / (3 if k % 2 else 1) for k in range(8)]

# What is not asked for rightly is refused before anything is sent.
assert "'sum'" in refused(ValueError, d.all_reduce, x, "avg")
assert "0 to 2" in refused(ValueError, d.broadcast, x, 3)
assert "reduce_scatter knows the ops" in refused(ValueError, d.reduce_scatter, x, "avg")
for bad in (1.0, x, x[:0]):
    assert "one row for each of the 3 ranks" in refused(errors.ShapeError, d.reduce_scatter, bad)
assert "numbers" in refused(errors.DtypeError, d.all_gather, np.array(["a"]))
refused(errors.DtypeError, d.all_reduce, np.array(["a"]))
refused(TypeError, d.all_reduce, "a")
assert "called already" in refused(errors.DistributedError, d.init)
"""


def test_values() -> None:
    ran(3, VALUES)


GROUPS = """
d.init("mpi", timeout=30)
me = d.rank()
pair, other = d.new_group([2, 0]), d.new_group([1])
assert (d.rank(pair), d.size(pair)) == ([1, -1, 0][me], 2)
assert (d.rank(other), d.size(other)) == ([-1, 0, -1][me], 1)
if me == 1:
    for f in (d.all_reduce, d.all_gather, d.broadcast):
        assert "ranks 2, 0" in refused(errors.DistributedError, f, np.ones(2), group=pair)
    assert "ranks 2, 0" in refused(errors.DistributedError, d.barrier, pair)
    assert d.all_gather(np.ones(2), group=other).shape == (1, 2)
else:
    assert d.all_gather(np.array(me), group=pair).tolist() == [2, 0]
    assert d.broadcast(np.array(me), root=0, group=pair) == 2
    d.barrier(pair)
    said = refused(errors.DistributedError, d.all_reduce, np.ones(me + 1), group=pair)
    assert "rank 2: all_reduce(op='sum') of a numpy array of shape (3,)" in said and "rank 0: " in said, said
d.barrier()
for bad in ([], [0, 0], [3], [-1]):
    assert "0 to 2" in refused(ValueError, d.new_group, bad)
refused(TypeError, d.new_group, [0.5, 1])
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of a fork beside the engine's threads
if (child := os.fork()) == 0:
    os._exit(0 if "made by fork" in refused(errors.DistributedError, d.barrier) and d.rank() == me else 1)
assert os.waitpid(child, 0)[1] == 0
assert "ranks [0]" in refused(errors.DistributedError, d.new_group, [min(me, 1)])
refused(TypeError, d.rank, [0, 1])
assert "CuPy" in refused(TypeError, _world.group, 1) or True

# Threads of one rank, each with a group of its own.
groups = [d.new_group(range(3)) for _ in range(4)]
found = [None] * 4

def work(k):
    for j in range(20):
        found[k] = d.all_reduce(np.full(100, float(j + k)), group=groups[k])[0]

threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert found == [3 * (19.0 + k) for k in range(4)]

# A signal gets through to a rank that waits.
class Alarm(Exception): ...
def ring(*_): raise Alarm
if me == 0:
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.perf_counter()
    refused(Alarm, d.barrier)
    assert time.perf_counter() - began < 5
else:
    time.sleep(0.6)
    d.barrier()

# Connected again, after all have said that they are done.
d.finalize()
assert not d.is_initialized() and sys.excepthook is sys.__excepthook__
assert "init()" in refused(errors.DistributedError, d.all_reduce, np.ones(2))
assert "init (backend mpi, timeout 4 s)" in refused(errors.DistributedError, d.init, timeout=4 + me)
assert not d.is_initialized() and sys.excepthook is sys.__excepthook__
assert "CuPy" in refused(errors.GradmgrError, d.init, "nccl") or me == -1
d.init()
assert d.all_reduce(1) == 3
"""


def test_groups_threads_and_signals() -> None:
    ran(3, GROUPS)


# ---------------------------------------------------------------- derivatives

DERIVATIVES = """
d.init(timeout=20)
me, n = d.rank(), d.size()
rng = np.random.default_rng(0)
X, V, T = rng.normal(size=(3, n, 2, 3))
C = rng.normal(size=n)

def post(y, r):
    return gnp.sum(y**3 * C[r] + gnp.sin(y) * (r + 1)) if r != 1 else gnp.sum(y**2)

# By name: what the ranks do, and the same in one process with a list of what all of them have.
CASES = {
    "sum": (lambda x: d.all_reduce(x), lambda xs: [sum(xs[1:], xs[0])] * n),
    "mean": (lambda x: d.all_reduce(x, "mean"), lambda xs: [sum(xs[1:], xs[0]) / n] * n),
    "gather": (lambda x: d.all_gather(x), lambda xs: [gnp.stack(xs)] * n),
    "broadcast": (lambda x: d.broadcast(x, 1), lambda xs: [xs[1]] * n),
    "scatter": (
        lambda x: d.reduce_scatter(gnp.stack([x * (k + 1) for k in range(n)])),
        lambda xs: [sum((x * (k + 1) for x in xs[1:]), xs[0] * (k + 1)) for k in range(n)],
    ),
    "mean of rows": (
        lambda x: d.reduce_scatter(gnp.stack([gnp.cos(x) + k for k in range(n)]), "mean"),
        lambda xs: [sum((gnp.cos(x) + k for x in xs[1:]), gnp.cos(xs[0]) + k) / n for k in range(n)],
    ),
    "twice": (
        lambda x: gnp.tanh(d.all_gather(d.all_reduce(x * x)))[me] * d.broadcast(x, 2),
        lambda xs: [gnp.tanh(sum((x * x for x in xs[1:]), xs[0] ** 2)) * xs[2]] * n,
    ),
}

def losses(x_by_rank, alone):
    return [post(y, r) for r, y in enumerate(alone([gnp.sin(x) * (r + 1) for r, x in enumerate(x_by_rank)]))]

def loss(x, together):
    return post(together(gnp.sin(x) * (me + 1)), me)

def numbers(t):
    return np.zeros((2, 3)) if t is None else t.numpy()

def tangent(t):
    return None if t is None else forward_ad.unpack_dual(t).tangent

def close(found, want, what):
    assert np.allclose(numbers(found), numbers(want), rtol=1e-10, atol=1e-10), (what, found, want)

for name, (together, alone) in CASES.items():
    xs = [tensor(a) for a in X]
    x = tensor(X[me])

    # First and second order, reverse over reverse.
    outer, inner = GradManager().attach(xs), GradManager().attach(xs)
    with outer:
        with inner:
            inner.backward(sum(losses(xs, alone)))
        first = [t.grad for t in xs]
        for t in xs: t.grad = None
        outer.backward(sum(gnp.sum(g * v) for g, v in zip(first, V) if g is not None))
    second = [t.grad for t in xs]
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(loss(x, together))
        found, x.grad = x.grad, None
        close(found, first[me], name)
        outer.backward(gnp.sum(found * V[me]))
    close(x.grad, second[me], name)

    # The same on one tape.
    x.grad = None
    gm = GradManager().attach(x)
    with gm:
        (found,) = gradmgr.grad(loss(x, together), [x], create_graph=True)
        gm.backward(gnp.sum(found * V[me]))
    close(x.grad, second[me], name)

    # Forward, and reverse over forward.
    for t in (*xs, x): t.grad = None
    gm = GradManager().attach(xs)
    with gm, forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, tensor(a)) for t, a in zip(xs, T)]
        along = [tangent(y) for y in losses(duals, alone)]
        gm.backward(sum(along))
    gm = GradManager().attach(x)
    with gm, forward_ad.dual_level():
        found = tangent(loss(forward_ad.make_dual(x, tensor(T[me])), together))
        close(found, along[me], name)
        gm.backward(found)
    close(x.grad, xs[me].grad, name)

    # Forward over reverse.
    for t in (*xs, x): t.grad = None
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, tensor(a)) for t, a in zip(xs, T)]
        gm = GradManager().attach(duals)
        with gm:
            gm.backward(sum(losses(duals, alone)))
        want = tangent(duals[me].grad)
        dual = forward_ad.make_dual(x, tensor(T[me]))
        gm = GradManager().attach(dual)
        with gm:
            gm.backward(loss(dual, together))
        close(tangent(dual.grad), want, name)

    # A rank whose loss does not depend on what came out runs backward with the others: here all but the last.
    for t in (*xs, x): t.grad = None
    gm = GradManager().attach(xs)
    with gm:
        gm.backward(losses(xs, alone)[-1])
    want = xs[me].grad
    gm = GradManager().attach(x)
    with gm:
        y = loss(x, together)
        if me == n - 1:
            gm.backward(y)
        elif me == 0:
            del y
            gm.backward()
        else:
            gm.backward(gnp.sum(x * 0))
    close(x.grad, want, name)

    # The same one order up: what the others' backward computed is followed by their outer managers.
    for t in (*xs, x): t.grad = None
    outer, inner = GradManager().attach(xs), GradManager().attach(xs)
    with outer:
        with inner:
            inner.backward(losses(xs, alone)[-1])
        first = [t.grad for t in xs]
        for t in xs: t.grad = None
        outer.backward(sum(gnp.sum(g * g) for g in first if g is not None))
    second = xs[me].grad
    for t in (*xs, x): t.grad = None
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            y = loss(x, together)
            inner.backward(y if me == n - 1 else None)
        found, x.grad = x.grad, None
        close(found, first[me], name)
        outer.backward(None if found is None else gnp.sum(found * found))
    close(x.grad, second, name)
    x.grad = None
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tensor(T[me]))
        gm = GradManager().attach(dual)
        with gm:
            y = loss(dual, together)
            gm.backward(y if me == n - 1 else None)
        close(dual.grad, first[me], name)

    # Under vmap each example goes its way.
    mapped = vmap(together)(tensor(np.stack([X[me], X[me] * 2])))
    for k in range(2):
        close(mapped[k], together(tensor(X[me] * (k + 1))), name)

# Gradients have the primal's dtype, and sums of them do not overflow on the way.
h = tensor(np.array([1.0, 2.0], np.float16))
gm = GradManager().attach(h)
with gm:
    gm.backward(d.all_reduce(h, "mean"), tensor(np.full(2, 60000, np.float16)))
assert h.grad.dtype == np.float16 and h.grad.numpy().tolist() == [60000, 60000]
z = tensor(np.array([1 + 2j, 3j]))
gm = GradManager().attach(z)
with gm:
    gm.backward(gnp.sum(gnp.abs(d.all_reduce(z)) ** 2))
assert np.allclose(z.grad.numpy(), 2 * n * n * z.numpy())

# What has no derivative says so; what only some ranks record is an error on all of them.
x = tensor(X[me])
gm = GradManager().attach(x)
with gm:
    for op in ("min", "max", "prod"):
        assert "x.detach()" in refused(errors.UnsupportedFunctionError, d.all_reduce, x, op)
        assert d.all_reduce(x.detach(), op).shape == (2, 3)
        assert "x.detach()" in refused(errors.UnsupportedFunctionError, d.reduce_scatter, gnp.stack([x] * n), op)
        with gradmgr.no_grad():
            assert d.all_reduce(x, op).shape == (2, 3)
    for f in (d.all_reduce, d.all_gather, d.broadcast):
        said = refused(errors.DistributedError, f, x if me == 0 else x.detach())
        assert "rank 0: " in said and "which 1 managers track" in said, said
    gm.backward(d.all_reduce(x * x, "sum").sum())
assert np.allclose(x.grad.numpy(), 2 * n * X[me])
"""


def test_derivatives() -> None:
    ran(3, DERIVATIVES)


# ---------------------------------------------------------------- failures

MISMATCHES = """
d.init(timeout=20)
me = d.rank()
x, t = np.ones(4), tensor(np.ones(4))
began = time.perf_counter()
for f, words in [
    (lambda: d.all_reduce(np.ones(4 + me)), "shape (4,)|shape (5,)"),
    (lambda: d.all_reduce(np.ones(4, "f4" if me else "f8")), "float32|float64"),
    (lambda: d.all_reduce(x, "mean" if me else "sum"), "op='mean'|op='sum'"),
    (lambda: d.all_gather(np.ones((2, 2 + me))), "shape (2, 2)|shape (2, 3)"),
    (lambda: d.broadcast(x, me), "from rank 0|from rank 1"),
    (lambda: d.reduce_scatter(np.ones((2, 2 + me))), "reduce_scatter(op='sum')|shape (2, 3)"),
    (lambda: d.all_gather(x) if me else d.all_reduce(x), "all_gather|all_reduce"),
    (lambda: d.barrier() if me else d.broadcast(x), "barrier|broadcast"),
    (lambda: _world.group().agree("parameters", "ab"[me]), "parameters (a)|parameters (b)"),
]:
    said = refused(errors.DistributedError, f)
    assert all(word in said for word in words.split("|")), said
    assert "rank 0: " in said and "rank 1: " in said
    assert d.all_reduce(x).tolist() == [2] * 4  # as if nothing had been
assert time.perf_counter() - began < 10

# Several under way, of which one in the middle does not fit.
g = _world.group()
works = [g.start_all_reduce(np.ones(3 + (me if k == 2 else 0))) for k in range(5)]
for k in (4, 3, 2, 1, 0):
    if k == 2:
        refused(errors.DistributedError, works[k].wait)
        refused(errors.DistributedError, works[k].done)
    else:
        works[k].wait()

# A message of another size than was awaited.
if me == 0:
    g.start_send(np.ones(3), 1).wait()
else:
    work = g.start_recv(np.ones(5), 0)
    for again in range(2):
        assert "expected 40 bytes, and 24 came" in refused(errors.DistributedError, work.wait)

# An error in backward leaves the manager idle, and the ranks in step.
gm = GradManager().attach(t)
with gm:
    y = d.all_reduce(t)
    z = d.all_gather(t)
    gm.backward([y[0], z[0, 0]])
t.grad = None
with gm:
    a = d.all_reduce(t)
    b = d.all_reduce(t * 2)
    gm.backward(gnp.sum(a) + gnp.sum(b))
assert t.grad.numpy().tolist() == [6] * 4
"""


def test_ranks_that_do_not_ask_for_the_same() -> None:
    ran(2, MISMATCHES)


def failing(n: int, program: str, timeout: float = 40.0, rc: int | None = None) -> Any:
    found = run_ranks(n, HEAD + program, timeout)
    assert found.rc != 0 if rc is None else found.rc == rc, found
    return found


def test_a_rank_that_raises_ends_the_others_with_its_error() -> None:
    found = failing(
        3,
        """
        d.init()
        x = tensor(np.ones(3))
        gm = GradManager().attach(x)
        if d.rank() == 1:
            d.barrier()
            raise ValueError("bad apple")
        d.barrier()
        with gm:
            if d.rank() == 2:
                time.sleep(1)
            gm.backward(d.all_reduce(x).sum())
        """.replace("\n        ", "\n"),
    )
    assert "ValueError: bad apple" in found.err[1], found
    for err in (found.err[0], found.err[2]):
        assert "RankFailedError: rank 1 ended with ValueError: bad apple" in err, found
    assert found.seconds < 30, found


def test_a_rank_that_gets_the_error_of_another_may_save_its_work() -> None:
    found = failing(
        2,
        """
d.init()
if d.rank() == 1:
    raise KeyError("gone")
try:
    d.barrier()
except errors.RankFailedError as error:
    say("saved", error)
try:
    d.barrier()
except errors.RankFailedError as error:
    say("still", error)
""",
    )
    message = "rank 1 ended with KeyError: 'gone'"
    assert found.out[0].splitlines() == [f"saved {message}", f"still {message}"], found


def test_a_rank_that_is_killed_does_not_leave_the_others_waiting() -> None:
    found = failing(
        2,
        """
d.init(timeout=20)
x = np.ones(1 << 20)
for k in range(10_000):
    d.all_reduce(x)
    if d.rank() == 1 and k == 5:
        os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert found.seconds < 30, found


def test_a_rank_that_does_not_come_in_time() -> None:
    found = failing(
        3,
        """
d.init(timeout=2)
d.barrier()
if d.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)  # a machine that is gone: the launcher does not notice
elif d.rank() == 2:
    time.sleep(0.5)
    d.barrier()
d.all_reduce(np.ones(3))
""",
    )
    # Which of the two that wait is the first to have waited enough depends on the machine; the other gets its error.
    message = found.err[0] + found.err[2]
    assert "the timeout being 2 s" in message, found
    assert "rank 1 had not arrived and did not answer" in message, found
    assert "RankFailedError" in found.err[0], found
    assert "RankFailedError" in found.err[2] or "DistributedError" in found.err[2], found
    assert found.seconds < 30, found


def test_a_rank_that_comes_to_its_end_too_early() -> None:
    found = failing(
        2,
        """
d.init(timeout=20)
if d.rank() == 1:
    sys.exit(0)
d.all_reduce(np.ones(3))
""",
    )
    assert "rank 0: all_reduce(op='sum')" in found.err[0], found
    assert "rank 1: the end of the program" in found.err[0], found
    found = failing(
        2,
        """
d.init(timeout=20)
if d.rank() == 0:
    _world.group().start_recv(np.ones(3), 1).wait()
""",
    )
    assert "waits for rank 1, which came to the end of the program" in found.err[0], found
    assert found.seconds < 30, found


def test_a_program_that_just_ends_is_clean() -> None:
    ran(
        2,
        """
d.init(timeout=1)
x = np.ones(3)
d.all_reduce(x)
_world.group().start_all_reduce(x)  # without waiting for it
time.sleep(1.5 * d.rank())  # the end is not under the timeout: a rank may still write its checkpoint
""",
    )


# ---------------------------------------------------------------- one process


def test_a_world_of_one() -> None:
    launcher()  # skips where there is no MPI
    program = (
        HEAD
        + """
d.init()
assert (d.rank(), d.size()) == (0, 1)
x = tensor([1.0, 2.0])
gm = GradManager().attach(x)
with gm:
    y = d.all_reduce(d.broadcast(x), "mean") + d.all_gather(x)[0]
    gm.backward(gnp.sum(y * y))
assert x.grad.numpy().tolist() == [8, 16]
d.barrier()
assert d.new_group([0]).size == 1
say("done")
"""
    )
    done = subprocess.run(  # noqa: S603  # our own interpreter, our own text
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize(
    "call",
    [
        distributed.rank,
        distributed.size,
        distributed.barrier,
        distributed.finalize,
        lambda: distributed.new_group([0]),
        lambda: distributed.all_reduce(np.ones(2)),
        lambda: distributed.all_gather(np.ones(2)),
        lambda: distributed.broadcast(np.ones(2)),
    ],
)
def test_before_init(call: Any) -> None:
    assert not distributed.is_initialized()
    with pytest.raises(errors.DistributedError, match=r"call gradmgr\.distributed\.init\(\)"):
        call()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = sys.excepthook
    for name in [m for m in sys.modules if m.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install -e \"\.\[mpich\]\""):
        distributed.init("mpi")
    assert not distributed.is_initialized()
    assert sys.excepthook is hook


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_a_mean_is_the_quotient_to_the_bit(size: int, dtype: str) -> None:
    from gradmgr.distributed._wire import from_wire

    tiny = np.finfo(dtype).smallest_subnormal
    values = [1.0, -3.0, tiny, 3 * tiny, 5 * tiny, 7 * tiny, np.finfo(dtype).max, np.inf, -np.inf, -0.0]
    wire = np.array(values, "float32" if dtype == "float16" else dtype)
    out = np.empty(len(values), dtype) if dtype == "float16" else wire
    with np.errstate(all="ignore"):
        wanted = (wire / size).astype(dtype)
        from_wire(out, wire, "mean", size)
    assert out.tobytes() == wanted.tobytes()


def test_wrong_arguments_of_init() -> None:
    with pytest.raises(ValueError, match="'mpi' and 'nccl'"):
        distributed.init("gloo")
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout in seconds above 0"):
            distributed.init(timeout=timeout)
    assert not distributed.is_initialized()


# ---------------------------------------------------------------- GPUs


def test_each_rank_has_a_gpu_of_its_own() -> None:
    places = ["a:0:2", "a:0:2", "b:1:4"]
    assert [_nccl.device_for(k, places) for k in range(3)] == [0, 1, 1]
    chosen = ["a:3:4", "a:1:4"]
    assert [_nccl.device_for(k, chosen) for k in range(2)] == [3, 1]
    with pytest.raises(errors.DistributedError, match="machine a has 1, and 2 ranks"):
        _nccl.device_for(0, ["a:0:1", "a:0:1"])


@pytest.fixture
def one_gpu() -> Any:
    cupy = cupy_with_nccl()
    distributed.init("nccl")
    yield cupy
    distributed.finalize()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D", "e", "i1", "u2", "i4", "i8"])
def test_nccl_with_one_gpu(one_gpu: Any, dtype: str) -> None:
    x = one_gpu.asarray((np.random.default_rng(0).normal(size=(3, 4)) * 3).astype(dtype))
    assert (distributed.rank(), distributed.size()) == (0, 1)
    for op in ("sum", "mean", "min", "max", "prod"):
        if (op == "mean" and x.dtype.kind in "iu") or (x.dtype.kind == "c" and op in ("min", "max", "prod")):
            continue
        for array in (x, x.T, x[::2], x[0, 0], x[:0]):
            out = distributed.all_reduce(array, op)
            assert isinstance(out, one_gpu.ndarray)
            assert out.dtype == x.dtype
            assert one_gpu.array_equal(out, array)
    assert one_gpu.array_equal(distributed.all_gather(x.T), x.T[None])
    assert one_gpu.array_equal(distributed.reduce_scatter(x[None]), x)
    assert one_gpu.array_equal(distributed.broadcast(x[::2]), x[::2])
    assert isinstance(distributed.all_reduce(x.get()), np.ndarray)


@pytest.mark.gpu
def test_derivatives_over_nccl(one_gpu: Any) -> None:
    from gradmgr import GradManager, tensor

    x = tensor(one_gpu.arange(6.0).reshape(2, 3))
    gm = GradManager().attach(x)
    with gm:
        y = distributed.all_reduce(x * x, "mean") + distributed.all_gather(x)[0] + distributed.broadcast(x)
        gm.backward(y.sum())
    assert isinstance(x.grad.cupy(), one_gpu.ndarray)
    assert one_gpu.array_equal(x.grad.cupy(), 2 * x.cupy() + 2)


@pytest.mark.gpu
def test_nccl_keeps_nan(one_gpu: Any) -> None:
    found = distributed.all_reduce(one_gpu.array([np.nan, 1.0]), "max")
    assert one_gpu.isnan(found).tolist() == [True, False]


class DeviceArray(np.ndarray):
    """Stands for an array on a GPU."""

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=0)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class TwoRanks(_nccl.NCCLGroup):
    """Rank 1 of two, the other of which has all that this one has, over an NCCL that adds up in this process."""

    def __init__(self) -> None:
        Group.__init__(self, (0, 1), 1, WatchdogBase(LocalRanks()))
        self.reduceScatter, self._wire, self._nccl, self._device = self.reduce, self, self, Device()
        self._cupy = SimpleNamespace(ndarray=DeviceArray, empty=lambda *of: np.empty(*of).view(DeviceArray))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NCCL_"):
            return name.removeprefix("NCCL_").lower()
        raise AttributeError(name)

    def _posted(self, call: Any) -> Any:
        return lambda: call(0)

    def _start(self, key: Any, post: Any, finish: Any = tuple) -> Any:
        return SimpleNamespace(wait=lambda: (post(), finish()))

    def reduce(self, sent: int, found: int, count: int, dtype: str, op: str, stream: int) -> None:
        itemsize = np.dtype(dtype).itemsize
        rows = np.frombuffer((ctypes.c_char * (2 * count * itemsize)).from_address(sent), dtype).reshape(2, count)
        into = np.frombuffer((ctypes.c_char * (count * itemsize)).from_address(found), dtype)
        into[...] = {"sum": np.add, "prod": np.multiply, "min": np.minimum}[op](rows[1], rows[1])


class Device(nullcontext):  # type: ignore[type-arg]  # enters with itself
    """The GPU that is current."""

    id = 0


@pytest.mark.parametrize("dtype", ["f4", "f8", "D", "e", "i2", "i4"])
def test_a_row_over_nccl(dtype: str) -> None:
    """What is given to NCCL: pointers, how many numbers, of which type; half precision goes as single."""
    group, x = TwoRanks(), np.arange(1, 13).reshape(2, 2, 3).astype(dtype).view(DeviceArray)
    assert group.reduce_scatter(x).tolist() == (2 * x[1]).tolist()
    if dtype not in ("i2", "i4"):
        assert group.reduce_scatter(x, "mean").tolist() == x[1].tolist()
    if dtype != "D":
        assert group.reduce_scatter(x, "prod").tolist() == (x[1] ** 2).tolist()
    assert group.reduce_scatter(x[:, :0]).shape == (0, 3)
    assert group.reduce_scatter(x).dtype == dtype


def test_unfinished_operations_at_the_end_raise_nothing() -> None:
    """The engine, which is shut down after Python's memory is freed, finds nothing to go on with."""
    ran(
        2,
        """
d.init(timeout=30)
group = _world.group()
for k in range(20):
    group.start_all_reduce(np.ones(200_000))
    group.start_send(np.ones(100_000), 1 - d.rank(), tag=k)
waiting = [group.start_recv(np.empty(100_000), 1 - d.rank(), tag=k) for k in range(20)]
if d.rank() == 0:
    time.sleep(0.2)
assert _world._state.world.watchdog.pending
_world._state.world.leave()
assert not _world._state.world.watchdog.pending, _world._state.world.watchdog.pending
""",
    )


# ---------------------------------------------------------------- waiting


class _Late(_work.Work):
    """Work that is complete at a time."""

    clock: Any

    def progress(self, tries: int) -> bool:
        return bool(self.clock.now > self.clock.end)


def _pauses_of(monkeypatch: Any, watchdog: WatchdogBase, clock: Any, yielding: float) -> list[str]:
    """Return the pauses of a wait of 0.1 ms on a core where a yield takes so many seconds."""
    pauses: list[str] = []

    def pause(kind: str, seconds: float) -> None:
        pauses.append(kind)
        clock.now += seconds

    times = SimpleNamespace(perf_counter=lambda: clock.now, sleep=lambda seconds: pause("sleep", seconds + 5e-5))
    monkeypatch.setattr(_work, "time", times)
    monkeypatch.setattr(_work, "_yield_core", lambda: pause("yield", yielding))
    late = _Late("a test", (0,), watchdog)
    late.clock, clock.end = clock, clock.now + 1e-4
    late.wait()
    return pauses


def test_a_wait_sleeps_at_once_after_a_yield_gave_the_core_to_another_process(monkeypatch: Any) -> None:
    watchdog, clock = WatchdogBase(LocalRanks()), SimpleNamespace(now=1.0, end=0.0)
    assert set(_pauses_of(monkeypatch, watchdog, clock, 1e-6)) == {"yield"}
    assert _pauses_of(monkeypatch, watchdog, clock, 3e-3) == ["yield"]
    assert set(_pauses_of(monkeypatch, watchdog, clock, 3e-3)) == {"sleep"}
    clock.now += 1
    assert set(_pauses_of(monkeypatch, watchdog, clock, 1e-6)) == {"yield"}
