"""ZeroRedundancyOptimizer: the steps of one optimiser, its state divided among the ranks."""

import numpy as np
import pytest
from mpi import ranks

from gradmgr import distributed, errors, optim, tensor

SETUP = """
from gradmgr import nn, optim
Zero = dist.ZeroRedundancyOptimizer

def model(dtype="f4"):
    rng = np.random.default_rng(1)
    shapes = [(7, 5), (5,), (), (0, 3), (5, 2), (1,)]
    return [tensor(np.asarray(rng.normal(size=s)).astype(dtype)) for s in shapes]

def gradients(ws, seed, skip=()):
    rng = np.random.default_rng(seed)
    for k, w in enumerate(ws):
        g = np.asarray(rng.normal(size=w.shape)).astype(w.dtype)
        w.grad = None if k in skip else tensor(g)

def same(ones, others):
    for one, other in zip(ones, others):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes(), (one, other)

def same_state(one, other):
    assert one["state"].keys() == other["state"].keys(), (one["state"].keys(), other["state"].keys())
    for k, state in one["state"].items():
        assert state.keys() == other["state"][k].keys() and state["step"] == other["state"][k]["step"]
        same([v for name, v in state.items() if name != "step"], [other["state"][k][n] for n in state if n != "step"])
    assert one["param_groups"] == other["param_groups"], (one["param_groups"], other["param_groups"])
"""

EQUAL = """
kinds = [
    (optim.SGD, {"lr": 0.1}), (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}), (optim.Adam, {}),
    (optim.AdamW, {"lr": 0.01, "amsgrad": True}), (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (optim.Adagrad, {}), (optim.Lion, {}), (optim.Adadelta, {}), (optim.Adamax, {}), (optim.NAdam, {}),
    (optim.RAdam, {}),
]
for kind, options in kinds:
    for dtype in ("f4", "f8", "D", "e"):
        if dtype == "D" and kind is optim.Lion:
            continue
        plain, ws = model(dtype), model(dtype)
        one, divided = kind(plain, **options), Zero(ws, kind, **options)
        for step in range(4):
            for t in (plain, ws):
                gradients(t, step, skip={1, 2} if step == 1 else {4} if step == 2 else ())
            one.step(), divided.step()
            same(ws, plain)
            if step == 2:
                for group in (*one.param_groups, *divided.param_groups):
                    group["lr"] *= 0.5
        divided.consolidate_state_dict(to=1)
        if RANK == 1:
            same_state(divided.state_dict(), one.state_dict())
        else:
            raises(errors.StateError, f"consolidate_state_dict(to={RANK})", divided.state_dict)

# Values written to a parameter between two steps are what the next one starts from.
plain, ws = model(), model()
one, divided = optim.Adam(plain), Zero(ws, optim.Adam)
for step in range(3):
    for t in (plain, ws):
        gradients(t, step)
        t[0] *= 2
        t[1][...] = 5
    one.step(), divided.step()
    same(ws, plain)

# Groups, each with its options; a schedule; names.
def groups(ws):
    return [{"params": ws[:2], "lr": 0.5}, {"params": ws[2:]}]
plain, ws = model(), model()
one, divided = optim.SGD(groups(plain), lr=0.1, momentum=0.5), Zero(groups(ws), optim.SGD, lr=0.1, momentum=0.5)
more = [tensor(np.arange(10.0)) for _ in range(2)]
one.add_param_group({"params": [more[0]], "lr": 2.0}), divided.add_param_group({"params": [more[1]], "lr": 2.0})
plain.append(more[0]), ws.append(more[1])
schedules = [optim.lr_scheduler.StepLR(o, 2, 0.1) for o in (one, divided)]
for step in range(5):
    for t, o, s in zip((plain, ws), (one, divided), schedules):
        gradients(t, step)
        o.step(), s.step()
    same(ws, plain)
divided.zero_grad()
assert all(w.grad is None for w in ws)
raises(TypeError, "no option 'speed'", divided.add_param_group, {"params": [tensor([1.0])], "speed": 1})
raises(ValueError, "lr must be at least 0", Zero, [tensor([1.0])], optim.SGD, lr=-1)
raises(ValueError, "given twice", Zero, [ws[0], ws[0]], optim.SGD)
raises(TypeError, "takes a class of gradmgr.optim", Zero, ws, nn.Linear)
raises(TypeError, "found LBFGS: use that itself", Zero, ws, optim.LBFGS)
raises(TypeError, "found SparseAdam: use that itself", Zero, ws, optim.SparseAdam)
raises(ValueError, "found 9", divided.consolidate_state_dict, 9)
"""

MEMORY = """
# The state of a rank is its n-th part, though one parameter has most of the numbers.
ws = [tensor(np.ones((1000, 30), "f4")), tensor(np.ones(24, "f4"))]
gradients(ws, 0)
whole, divided = optim.Adam([tensor(w) for w in ws]), Zero(ws, optim.Adam)
divided.step()
state = [s for _, s in divided._inner.state_dict()["state"].items()]
found = sum(t.numpy().nbytes for s in state for name, t in s.items() if name != "step")
held = sum(b.nbytes for chunks in divided._inner._chunks for c in chunks for b in c.buffers.values())
assert found == 2 * 4 * 30024 // SIZE and held <= found + 64, (found, held)
"""

SCALED = """
# Data parallel, with clipping and a scaler, one step of which overflows.
def train(make):
    ws = model()[:2]
    optimizer, scaler = make(ws), optim.GradScaler(init_scale=4.0, growth_interval=2)
    gm = GradManager().attach(ws, dist.make_allreduce_cb("mean"))
    for step in range(5):
        x = np.random.default_rng([step, RANK]).normal(size=(3, 7)).astype("f4")
        if (step, RANK) == (2, 1):
            x *= np.inf
        with gm:
            gm.backward(scaler.scale(gnp.sum(gnp.tanh(x @ ws[0] + ws[1]) ** 2)))
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(ws, 0.5)
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
    return [*ws, scaler.get_scale()]

with np.errstate(all="ignore"):
    same(train(lambda ws: Zero(ws, optim.AdamW, lr=0.1)), train(lambda ws: optim.AdamW(ws, lr=0.1)))
"""

MISFITS = """
def refused_option_of_one_rank(optimizer):
    optimizer.param_groups[0]["lr"] = "fast" if RANK == 0 else 0.1
    if RANK == 0:
        raises(TypeError, "lr must be a number", optimizer.step)
    else:
        raises(errors.DistributedError, "the rest of a step of ZeroRedundancyOptimizer that failed", optimizer.step)

# What the ranks do not have in common is an error on all of them, and changes no parameter.
ws = model()
optimizer = Zero(ws, optim.SGD, lr=0.1, momentum=0.9)
before = [w.numpy() for w in ws]
gradients(ws, 0, skip={1} if RANK == 0 else ())
error = raises(errors.DistributedError, "ZeroRedundancyOptimizer of SGD", optimizer.step)
assert "without gradients for those at [1]" in str(error), str(error)
same(ws, before)
gradients(ws, 0)
optimizer.param_groups[0]["lr"] = 0.1 + RANK
raises(errors.DistributedError, "lr=1.1", optimizer.step)
same(ws, before)
refused_option_of_one_rank(optimizer)
same(ws, before)
optimizer.param_groups[0]["lr"] = 0.1
optimizer.step()

# So it is where a rank has no gradient at all, or none of one dtype; where none has any, nothing happens.
ws = model() + model("f8")
optimizer = Zero(ws, optim.Adam)
before = [w.numpy() for w in ws]
for lacking in (range(12), range(6), range(6, 12)):
    gradients(ws, 0, skip=lacking if RANK == 0 else ())
    error = raises(errors.DistributedError, "ZeroRedundancyOptimizer", optimizer.step)
    assert f"without gradients for those at {list(lacking)}" in str(error), str(error)
    same(ws, before)
gradients(ws, 0, skip=range(12))
optimizer.step()
same(ws, before)
refused_option_of_one_rank(optimizer)
dist.barrier()
optimizer = Zero(model(), optim.SGD)
saved = {"state": {9: {"step": 1}}, "param_groups": []}
raises(errors.StateError, "it has 0 parameter groups", optimizer.load_state_dict, saved)
"""

# A run that is stopped after three steps of 3 ranks, and goes on with another number, or undivided.
RUN = """
def run(optimizer, ws, steps):
    for step in steps:
        gradients(ws, step)
        optimizer.step()
"""

FIRST = """
ws = model()
optimizer = Zero(ws, optim.Adam, lr=0.05)
run(optimizer, ws, range(3))
optimizer.consolidate_state_dict()
dist.save({{"ws": ws, "optimizer": optimizer}}, {path!r})
plain = model()
one = optim.Adam(plain, lr=0.05)
gradmgr.load({path!r}, into={{"ws": plain, "optimizer": one}})
run(one, plain, range(3, 6)), run(optimizer, ws, range(3, 6))
same(ws, plain)
"""

SECOND = """
ws, plain, other = model(), model(), model()
optimizer, one = Zero(ws, optim.Adam), optim.Adam(plain, lr=0.05)
gradmgr.load({path!r}, into={{"ws": ws, "optimizer": optimizer}})
run(one, plain, range(3))
same(ws, plain)
run(optimizer, ws, range(3, 6)), run(one, plain, range(3, 6))
same(ws, plain)
optimizer.consolidate_state_dict(to=SIZE - 1)
if RANK == SIZE - 1:
    same_state(optimizer.state_dict(), one.state_dict())
"""


def test_three_ranks_take_the_steps_of_one_optimiser(tmp_path):
    path = str(tmp_path / "run")
    ranks(3, SETUP + RUN + EQUAL + MEMORY + MISFITS + FIRST.format(path=path))
    ranks(2, SETUP + RUN + SCALED + MEMORY + SECOND.format(path=path))


def test_one_rank_is_a_plain_optimiser():
    ranks(1, SETUP + RUN + EQUAL.replace("to=1", "to=0").replace("RANK == 1", "RANK == 0") + MEMORY + SCALED)


def test_without_init_it_says_what_to_call():
    with pytest.raises(errors.DistributedError, match="init"):
        distributed.ZeroRedundancyOptimizer([tensor(np.ones(2))], optim.Adam)
