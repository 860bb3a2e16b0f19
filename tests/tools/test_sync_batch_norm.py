"""SyncBatchNorm: against BatchNorm over the whole batch, on two ranks and on one; conversion; what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from mpi import ranks

from gradmgr import GradManager, distributed, errors, nn, tensor
from gradmgr.distributed import SyncBatchNorm

# The rows of each rank's part of a batch, and one BatchNorm over the whole of it, on every rank.
SETUP = """
from gradmgr import forward_ad, gradcheck, nn, optim, vmap

MINE = lambda whole, counts: whole[sum(counts[:RANK]) : sum(counts[:RANK + 1])]
WHOLE = 3 + 2 * np.random.default_rng(0).normal(size=(7, 3, 2, 2))
WEIGHTS = np.random.default_rng(1).normal(size=WHOLE.shape)

def layers(**options):
    both = dist.SyncBatchNorm(3, dtype="f8", **options), nn.BatchNorm(3, dtype="f8", **options)
    for layer in both:
        if layer.weight is not None:
            layer.weight[...], layer.bias[...] = [0.5, 1.0, -2.0], [1.0, 0.0, 3.0]
    return both

def close(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)

def in_training(layer, x, weights):
    xs = tensor(x)
    with GradManager().attach([xs, *layer.parameters()]) as gm:
        y = layer(xs)
        gm.backward((y**2 * weights).sum())
    return y, xs.grad, [p.grad for p in layer.parameters()]
"""

VALUES = """
for counts in ([3, 4], [1, 6], [7, 0]):
    for options in ({}, {"affine": False}, {"momentum": None, "eps": 0.0}, {"track_running_stats": False}):
        layer, whole = layers(**options)
        for step in range(2):
            x, weights = WHOLE + step, WEIGHTS
            y, dx, of_parameters = in_training(whole, x, weights)
            mine, of_x, of_mine = in_training(layer, MINE(x, counts), MINE(weights, counts))
            close(mine, MINE(y.numpy(), counts))
            close(of_x, MINE(dx.numpy(), counts), 1e-11)
            for one, other in zip(of_mine, of_parameters, strict=True):
                close(dist.all_reduce(one), other, 1e-11)
            layer.zero_grad(), whole.zero_grad()
        for name, buffer in whole.named_buffers():
            found = layer.get_buffer(name)
            close(found, buffer)
            assert len({row.tobytes() for row in dist.all_gather(found).numpy()}) == 1  # the same bits
        part = MINE(WHOLE, counts)
        if len(part) > 1:  # in evaluation each rank by itself
            close(layer.eval()(part), whole.eval()(part))

# Halves are summed in float32; a mean far from zero costs no digits.
layer = dist.SyncBatchNorm(3, dtype="f2")
assert layer(MINE(WHOLE.astype("f2"), [3, 4])).dtype == np.float16
far = (WHOLE + 1e4).astype("f4")
close(dist.SyncBatchNorm(3)(MINE(far, [3, 4])), MINE(nn.BatchNorm(3)(far).numpy(), [3, 4]), 2e-3)
"""

DERIVATIVES = """
counts = [3, 4]
layer, whole = layers(track_running_stats=False)

# The second derivative: a penalty on the gradient by the input.
def penalty(layer, x, weights):
    xs = tensor(x)
    outer, inner = GradManager().attach([xs, *layer.parameters()]), GradManager().attach(xs)
    with outer:
        with inner:
            inner.backward((layer(xs) ** 3 * weights).sum())
        slope, xs.grad = xs.grad, None
        outer.backward((slope**2).sum())
    return [xs.grad, *[p.grad for p in layer.parameters()]]

dx, *of_parameters = penalty(whole, WHOLE, WEIGHTS)
of_x, *of_mine = penalty(layer, MINE(WHOLE, counts), MINE(WEIGHTS, counts))
close(of_x, MINE(dx.numpy(), counts), 1e-9)
for one, other in zip(of_mine, of_parameters, strict=True):
    close(dist.all_reduce(one), other, 1e-9)

# Forward mode, and vmap over pairs of batches.
tangent = np.cos(WHOLE)
with forward_ad.dual_level():
    found, expected = (
        forward_ad.unpack_dual(which(forward_ad.make_dual(tensor(x), tensor(t)))).tangent
        for which, x, t in ((layer, MINE(WHOLE, counts), MINE(tangent, counts)), (whole, WHOLE, tangent))
    )
    close(found, MINE(expected.numpy(), counts), 1e-11)
found = vmap(layer)(tensor(np.stack([MINE(WHOLE, counts), MINE(WHOLE**2, counts)])))
close(found, np.stack([MINE(whole(x).numpy(), counts) for x in (WHOLE, WHOLE**2)]))

# A loss on one rank alone: its cotangents reach the other's input.
x = tensor(MINE(WHOLE, counts))
with GradManager().attach(x) as gm:
    y = layer(x)
    gm.backward((y**3).sum() if RANK == 0 else None)
xs = tensor(WHOLE)
with GradManager().attach(xs) as gm:
    gm.backward((whole(xs)[:3] ** 3).sum())
close(x.grad, MINE(xs.grad.numpy(), counts), 1e-11)
"""

TRAINING = """
# A network in which it is converted, trained with the callback, is that of one process.
rng = np.random.default_rng(0)
def network():
    rng = np.random.default_rng(0)
    return nn.Sequential(nn.Linear(3, 4, rng=rng, dtype="f8"), nn.BatchNorm1d(4, dtype="f8"), nn.Tanh(),
                         nn.Linear(4, 4, rng=rng, dtype="f8"), nn.BatchNorm1d(4, dtype="f8"))
model, alone = dist.SyncBatchNorm.convert_sync_batchnorm(network()), network()
average = dist.make_allreduce_cb("mean", bucket_bytes=64)  # several, some of them under way while layers communicate
gms = GradManager().attach(model.parameters(), callbacks=average), GradManager().attach(alone.parameters())
optimizers = [optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone)]
for step in range(3):
    x = rng.normal(size=(6, 3))
    for m, gm, optimizer, part in zip((model, alone), gms, optimizers, (MINE(x, [3, 3]), x)):
        with gm:
            gm.backward((m(part) ** 2 * np.arange(4)).mean())
        optimizer.step()
        optimizer.zero_grad()
for one, other in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
    close(one, other, 1e-9)

# Groups of one rank are each BatchNorm; both ranks in one group are as all.
pairs = [dist.new_group([k]) for k in range(2)]
x = MINE(WHOLE, [3, 4])
assert np.array_equal(dist.SyncBatchNorm(3, process_group=pairs[RANK])(x), nn.BatchNorm(3)(x))
both = dist.new_group([1, 0])
close(dist.SyncBatchNorm(3, dtype="f8", process_group=both)(x), dist.SyncBatchNorm(3, dtype="f8")(x))

# What does not fit is an error on both ranks, and changes nothing.
layer = dist.SyncBatchNorm(3)
raises(errors.ShapeError, "found 1 on 2 ranks together", layer, np.ones((1 - RANK, 3)))
raises(errors.ShapeError, "found 0 on 2 ranks together", layer, np.ones((0, 3)))
assert layer.num_batches_tracked.item() == 0 and not layer.running_mean.numpy().any()
x = tensor(np.ones((2, 3)))
with GradManager().attach(x if RANK else layer.bias):
    raises(errors.DistributedError, "which 1 managers track", layer, x)
raises(errors.DistributedError, "called different operations", layer if RANK else lambda x: dist.barrier(), x)
assert layer.num_batches_tracked.item() == 0
assert layer(x).shape == (2, 3)

# Inside a checkpointed function forward is run in backward, too.
x, xs = tensor(MINE(WHOLE, [3, 4])), tensor(WHOLE)
layer, whole = layers()
for t, module, manager in ((x, layer, GradManager()), (xs, whole, GradManager())):
    with manager.attach(t) as gm:
        gm.backward((gradmgr.checkpoint(module, t * 2) ** 3).sum())
close(x.grad, MINE(xs.grad.numpy(), [3, 4]), 1e-11)
close(layer.running_var, whole.running_var)
"""


def test_two_ranks_are_batch_norm_over_the_whole_batch() -> None:
    ranks(2, SETUP + VALUES + DERIVATIVES + TRAINING)


def test_one_rank_is_batch_norm_bit_by_bit() -> None:
    x, found = np.random.default_rng(0).normal(size=(4, 3, 5)).astype("f4"), []
    for connected, kind in ((False, nn.BatchNorm1d), (False, SyncBatchNorm), (True, SyncBatchNorm)):
        if connected:
            pytest.importorskip("mpi4py", reason="mpi4py is not installed: it is of the extra mpich")
            distributed.init("mpi")
        try:
            layer, t = kind(3), tensor(x)
            with GradManager().attach([t, *layer.parameters()]) as gm:
                y = layer(t)
                gm.backward((y**3).sum())
            found.append([y, t.grad, *[p.grad for p in layer.parameters()], *layer.state_dict().values()])
            found[-1].append(layer.eval()(x))
            if connected:
                layer.process_group = distributed.new_group([0])
                assert copy.deepcopy(layer).process_group is layer.process_group
                with pytest.raises(TypeError, match=r"a Group is a connection of processes .* cannot be pickled"):
                    pickle.dumps(layer)
        finally:
            if connected:
                distributed.finalize()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_conversion_keeps_parameters_settings_and_what_is_no_batch_norm() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, x):
            return x

    shared = nn.BatchNorm2d(3, eps=0.5, momentum=None, bias=False)
    model = nn.ModuleDict(
        {"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": nn.InstanceNorm1d(3, affine=True), "d": Own(3)}
    )
    model["b"].eval()
    kept = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    assert SyncBatchNorm.convert_sync_batchnorm(model) is model
    made = model["b"]
    assert type(made) is SyncBatchNorm
    assert made is model["a"][0]
    assert (made.eps, made.momentum, made.bias, made.training) == (0.5, None, None, False)
    assert type(model["c"]) is nn.InstanceNorm1d
    assert type(model["d"]) is Own
    assert all(p is kept[name] for name, p in model.named_parameters())
    assert all(b is buffers[name] for name, b in model.named_buffers())
    alone = nn.BatchNorm1d(2, track_running_stats=False, affine=False)
    made = SyncBatchNorm.convert_sync_batchnorm(alone)
    assert type(made) is SyncBatchNorm
    assert made.running_mean is made.weight is None
    assert repr(made) == repr(alone).replace("BatchNorm1d", "SyncBatchNorm")


def test_wrong_arguments() -> None:
    with pytest.raises(
        TypeError, match=r"SyncBatchNorm: process_group must come from distributed.new_group; found int"
    ):
        SyncBatchNorm(3, process_group=1)
    with pytest.raises(TypeError, match="convert_sync_batchnorm takes a Module; found int"):
        SyncBatchNorm.convert_sync_batchnorm(1)
    with pytest.raises(errors.ShapeError, match=r"SyncBatchNorm takes \(N, C, ...\); found shape \(3,\)"):
        SyncBatchNorm(3)(np.ones(3))
    with pytest.raises(AttributeError, match=r"'SyncBatchNorm': it is gradmgr.distributed.SyncBatchNorm, as layers do"):
        _ = nn.SyncBatchNorm
