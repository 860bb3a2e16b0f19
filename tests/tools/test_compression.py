"""Gradients sent as float16, or as the greatest of them: values, residuals, failures, bytes."""

import pytest
from mpi import ranks

import gradmgr.distributed as dist

VALUES = """
from gradmgr.distributed import _world
shapes = [(4, 5), (), (0, 3), (7,)]
dtypes = ["f4", ">f8", "f4", "f2"]
N = sum(int(np.prod(s)) for s in shapes)

def parameters():
    return [tensor(np.ones(s, d)) for s, d in zip(shapes, dtypes)]

def drawn(rank, step, scale=1.0):
    rng = np.random.default_rng([rank, step])
    return [np.asarray(rng.normal(size=s) * scale).astype(d) for s, d in zip(shapes, dtypes)]

def backward(ws, gm, gs):
    with gm:
        gm.backward([w for w in ws], gs)

def same_everywhere(ws):
    flat = np.concatenate([w.grad.numpy().astype("f8").ravel() for w in ws])
    everyones = dist.all_gather(flat)
    assert (everyones == everyones[0]).all()

for way in ("shared memory", "MPI"):
    if way == "MPI":
        _world.group()._shared.max_bytes = 0
    for method in ("mean", "sum"):
        for scale in (1.0, 1e-6, 1e4):
            ws, callback = parameters(), dist.make_float16_allreduce_cb(method)
            gm = GradManager().attach(ws, callback)
            for step in range(2):
                terms = [drawn(r, step, scale) for r in range(SIZE)]
                backward(ws, gm, terms[RANK])
                for k, w in enumerate(ws):
                    assert (w.grad.shape, w.grad.dtype) == (w.shape, w.dtype)
                    parts = np.stack([t[k].astype("f8") for t in terms]) / (SIZE if method == "mean" else 1)
                    bound = 2 * SIZE * (2.0**-11 * np.abs(parts).sum(axis=0) + 2.0**-25)
                    assert (np.abs(w.grad.numpy() - parts.sum(axis=0)) <= bound).all(), (k, w.grad, parts.sum(axis=0))
                same_everywhere(ws)
                gm.clear_grad()
            assert callback.bytes_sent == 2 * 2 * (N + len(ws))

# What is too large for float16 is infinity; without the warning of a cast.
w = tensor([1.0])
gm = GradManager().attach(w, dist.make_float16_allreduce_cb("sum"))
with gm:
    gm.backward(w * 1e6)
assert w.grad.tolist() == [np.inf]

# All of the numbers, or those of greatest magnitude, with what was left of the steps before.
for fraction in (1.0, 0.2, 1e-9):
    for feedback in (True, False):
        ws = parameters()
        callback = dist.make_topk_allreduce_cb(fraction, "sum", error_feedback=feedback)
        gm = GradManager().attach(ws, callback)
        left = [np.zeros(N) for _ in range(SIZE)]  # by rank
        count = int(np.ceil(fraction * N))
        for step in range(3):
            terms = [drawn(r, step) for r in range(SIZE)]
            backward(ws, gm, terms[RANK])
            total = np.zeros(N)
            for r in range(SIZE):
                a = np.concatenate([t.astype("f8").ravel() for t in terms[r]]) + left[r] * feedback
                chosen = np.argsort(np.abs(a))[N - count :]
                total[chosen] += a[chosen]
                a[chosen] = 0
                left[r] = a
            found = np.concatenate([w.grad.numpy().astype("f8").ravel() for w in ws])
            np.testing.assert_allclose(found, total, rtol=2e-3, atol=1e-6)
            same_everywhere(ws)
            held = np.concatenate([callback.residual(w).astype("f8").ravel() for w in ws])
            np.testing.assert_allclose(held, left[RANK] * feedback, rtol=1e-6, atol=1e-6)
            gm.clear_grad()
        assert callback.bytes_sent == 3 * (count * (4 + 8) + len(ws))
"""

REACHED = """
# What no rank, not every rank, and every rank reached; inputs=; chains with futures.
class Future:
    def __init__(self, g): self.g = g
    def get(self): return self.g
for make in (lambda: dist.make_float16_allreduce_cb("sum"), lambda: dist.make_topk_allreduce_cb(1.0, "sum")):
    for chain in (lambda cb: [cb], lambda cb: [lambda t, g: Future(g * 2), cb, lambda t, g: Future(g / 2)]):
        a, b, c = (tensor([1.0, 2.0]) for _ in range(3))
        callback = make()
        gm = GradManager().attach({"a": a, "b": b, "c": c}, chain(callback))
        for step in range(2):
            with gm:
                gm.backward((a * 3).sum() + ((b * 5).sum() if RANK == 1 else 0))
            assert grads(a, b, c) == [[9.0, 9.0], [5.0, 5.0], None], grads(a, b, c)
            gm.clear_grad()
        with gm:
            gm.backward((c * RANK).sum() if RANK else None)
        assert grads(a, b, c) == [None, None, [3.0, 3.0]], grads(a, b, c)
        gm.clear_grad()
        with gm:
            gradmgr.backward((a * b).sum(), inputs=[b])
        assert grads(a, b, c) == [None, [3.0, 6.0], None], grads(a, b, c)

# A rank that fails: an error on the others, residuals as they were, and the next backward works.
ws = [tensor(np.arange(1.0, k + 2)) for k in range(3)]
def fail(t, g):
    if broken and RANK == 1 and t is ws[where]:
        raise OSError("here")
    return g
for make in (lambda: dist.make_topk_allreduce_cb(0.5, "sum"), lambda: dist.make_float16_allreduce_cb("sum")):
    callback, broken = make(), False
    gm = GradManager().attach(ws, [fail, callback])
    def backward():
        with gm:
            gm.backward(sum([(w * w).sum() for w in ws]))
    def residuals():
        return [callback.residual(w).tolist() for w in ws] if hasattr(callback, "residual") else []
    backward()
    before, first = residuals(), grads(*ws)
    gm.clear_grad()
    assert not before or any(map(any, before))
    for where in (0, 2):
        broken = True
        kind, text = (OSError, "here") if RANK == 1 else (errors.DistributedError, "the rest of a backward that failed")
        raises(kind, text, backward)
        assert residuals() == before and grads(*ws) == [None] * 3
    broken = False
    backward()
    assert residuals() != before or not before
    gm.clear_grad()

# An overflow on one rank, whose step a scaler skips, is in no residual: the next backward is finite again.
w, feedback = tensor(np.ones(40, "f4")), dist.make_topk_allreduce_cb(0.1)
gm = GradManager().attach(w, feedback)
for scale, is_finite in ((1.0, True), (np.inf if RANK == 1 else 1.0, False), (1.0, True)):
    before = feedback.residual(w)
    with gm:
        gm.backward((w * np.arange(1, 41, dtype="f4") * scale).sum())
    assert np.isfinite(w.grad.numpy()).all() == is_finite
    assert (feedback.residual(w) == before).all() != is_finite and np.isfinite(feedback.residual(w)).all()
    gm.clear_grad()

# What differs, what cannot be sent, and what follows the gradients.
w = tensor(np.ones(2 + RANK))
gm = GradManager().attach({"w": w}, dist.make_topk_allreduce_cb())
with gm:
    text = "attached different parameters to make_topk_allreduce_cb"
    error = raises(errors.DistributedError, text, gm.backward, w.sum())
assert "rank 0: 'w', float64(2,)" in str(error), str(error)
z = tensor([1j])
gm = GradManager().attach(z, dist.make_float16_allreduce_cb())
with gm:
    raises(errors.DtypeError, "use make_allreduce_cb", gm.backward, gnp.abs(z).sum())
x, cb = tensor([3.0]), dist.make_float16_allreduce_cb()
gm = GradManager().attach(x, [cb, cb])
with gm:
    raises(errors.DistributedError, "more than once in the chain", gm.backward, x.sum())
outer, inner = GradManager().attach(x), GradManager().attach(x, dist.make_float16_allreduce_cb())
with outer:
    with inner:
        raises(errors.DistributedError, "a recording around this backward", inner.backward, (x * x).sum())
"""

QUADRATIC = """
# Of two numbers one is sent. In the first, the ranks pull with great strength in opposite directions.
def descend(feedback):
    x = tensor([1.0, 0.0])
    callback = dist.make_topk_allreduce_cb(0.5, "mean", error_feedback=feedback)
    gm = GradManager().attach(x, callback)
    for step in range(800):
        with gm:
            gm.backward(gnp.sum((x - np.array([0.0, 3.0])) ** 2) / 2 + x[0] * (5 if RANK else -5))
        x -= 0.02 * x.grad
        gm.clear_grad()
    return x.numpy()

found = descend(True)
assert np.abs(found - [0, 3]).max() < 0.1, found
assert descend(False)[1] == 0.0
"""


def test_values_on_three_ranks():
    ranks(3, VALUES + REACHED)


def test_error_feedback_converges_where_it_does_not_without():
    ranks(2, QUADRATIC)


def test_one_rank_sends_nothing():
    ranks(
        1,
        """
        for callback in (dist.make_topk_allreduce_cb(0.5), dist.make_float16_allreduce_cb()):
            w = tensor([1.0, 1e-9])
            gm = GradManager().attach(w, callback)
            with gm:
                gm.backward((w * w).sum())
            assert grads(w) == [[2.0, 2e-9]] and callback.bytes_sent == 0
        """,
    )


@pytest.mark.parametrize("make", [dist.make_float16_allreduce_cb, lambda m: dist.make_topk_allreduce_cb(0.1, m)])
def test_a_wrong_method_is_refused(make):
    with pytest.raises(ValueError, match="allreduce_cb takes the methods 'mean' and 'sum'; found 'max'"):
        make("max")


@pytest.mark.parametrize("fraction", [0, -1, 1.5, float("nan")])
def test_a_wrong_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        dist.make_topk_allreduce_cb(fraction)
