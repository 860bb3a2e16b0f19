"""Random training compared with plain computations: values, networks, checkpoints, memory.

Programs around optimisers are compared with a model in which every tensor is a NumPy array of its own: a value that is
held stays as it was in every step. Random networks are differentiated in every way there is; all must agree, with
central differences too, and a failure in the middle must leave nothing behind. Random trainings are saved, killed and
resumed, and must come to the same bits.
"""

import copy
import gc
import os
import random
import sys
import threading
import tracemalloc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
from helpers import assert_allclose, seeded_random

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, forward_ad, functional, graph, nn, no_grad, optim, serialization, tensor, vmap
from gradmgr._engine import context, observers
from gradmgr._engine.entry import VJPS as RULES
from gradmgr._engine.history import modes
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.optim import lr_scheduler
from gradmgr.profiler import profile


def check_each(check, seeds):
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


# ---------------------------------------------------------------- values under optimisers

SHAPES = [(), (3,), (2, 3), (4, 1, 2), (0, 2), (130, 130)]  # the last is a chunk by itself
CLOSE = {"float64": 1e-9, "float32": 2e-4, "float16": 2e-2, "complex128": 1e-9}


def _sgd(group, step, p, g, s):
    momentum = group["momentum"]
    if not momentum:
        s.clear()
        return p - group["lr"] * g
    b = g if step == 1 else momentum * s["momentum_buffer"] + (1 - group["dampening"]) * g
    s["momentum_buffer"] = b
    return p - group["lr"] * (g + momentum * b if group["nesterov"] else b)


def _adam(group, step, p, g, s):
    b1, b2 = group["betas"]
    m = s["exp_avg"] = b1 * s.get("exp_avg", 0) + (1 - b1) * g
    v = s["exp_avg_sq"] = b2 * s.get("exp_avg_sq", 0) + (1 - b2) * g * g
    if group["amsgrad"]:
        v = s["max_exp_avg_sq"] = np.maximum(s.get("max_exp_avg_sq", 0), v)
    return p - group["lr"] * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + group["eps"])


def _rmsprop(group, step, p, g, s):
    alpha = group["alpha"]
    v = s["square_avg"] = alpha * s.get("square_avg", 0) + (1 - alpha) * g * g
    if group["centered"]:
        mean = s["grad_avg"] = alpha * s.get("grad_avg", 0) + (1 - alpha) * g
        v = v - mean * mean
    b = s["momentum_buffer"] = group["momentum"] * s.get("momentum_buffer", 0) + g / (np.sqrt(v) + group["eps"])
    return p - group["lr"] * b


def _adagrad(group, step, p, g, s):
    total = s["sum"] = s.get("sum", group["initial_accumulator_value"]) + g * g
    return p - group["lr"] / (1 + (step - 1) * group["lr_decay"]) * g / (np.sqrt(total) + group["eps"])


def _lion(group, step, p, g, s):
    b1, b2 = group["betas"]
    m = s.get("exp_avg", np.zeros_like(g))
    s["exp_avg"] = b2 * m + (1 - b2) * g
    return p - group["lr"] * np.sign(b1 * m + (1 - b1) * g)


FORMULAS = {"SGD": _sgd, "Adam": _adam, "AdamW": _adam, "RMSprop": _rmsprop, "Adagrad": _adagrad, "Lion": _lion}
OPTIMISERS = [
    lambda ps: optim.SGD(ps, 0.1, weight_decay=0.1),
    lambda ps: optim.SGD(ps, 0.1, momentum=0.9, dampening=0.3, maximize=True),
    lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    lambda ps: optim.Adam(ps, 0.1, (0.8, 0.9), 1e-3, amsgrad=True),
    lambda ps: optim.AdamW(ps, 0.01, (0.8, 0.9), 1e-3, 0.1),
    lambda ps: optim.RMSprop(ps, 0.05, 0.9, 0.1, momentum=0.5, centered=True),
    lambda ps: optim.Adagrad(ps, 0.1, 0.1, 0.1, 0.5, 1e-3),
    lambda ps: optim.Lion(ps, 0.01, (0.8, 0.9), 0.1),
]


def reals(a):
    """Return an array as real numbers, wide enough to compute with: complex ones as pairs."""
    a = np.ascontiguousarray(a).reshape(a.shape)
    if a.dtype.kind == "c":
        return a.reshape(*a.shape, 1).view(a.real.dtype)
    return a.astype(np.float32) if a.itemsize == 2 else a


def plain_step(kind, group, p, g, s):
    """Return what a parameter becomes; write to its state."""
    dtype, s["step"] = p.dtype, s.get("step", 0) + 1
    p, g = reals(p), -reals(g) if group["maximize"] else reals(g)
    s.update({name: reals(value) for name, value in s.items() if name != "step"})
    if kind in ("AdamW", "Lion"):
        p = p * (1 - group["lr"] * group["weight_decay"])
    else:
        g = g + group["weight_decay"] * p
    p = FORMULAS[kind](group, s.get("step"), p, g, s)
    if dtype.kind == "c":
        s.update({name: value.view(dtype)[..., 0] for name, value in s.items() if name != "step"})
        return p.view(dtype)[..., 0]
    return p.astype(dtype)


HOLDS = {
    "slice": lambda p: p[1:] if p.ndim else p[...],
    "transposed": lambda p: p.T,
    "detached": lambda p: p.detach(),
    "array": lambda p: p.numpy(),
    "view of the array": lambda p: p.numpy().T[...],
    "copy": copy.copy,
    "flat": lambda p: p.reshape(-1),
    "broadcast": lambda p: gnp.broadcast_to(p, (2, *p.shape)),
    "memory": lambda p: memoryview(p.numpy()) if p.size else p.numpy(),
    "real": lambda p: p.real,
}


class World:
    """Parameters and optimisers, and what they must be: NumPy arrays."""

    def __init__(self, seed):
        self.rng, self.draw = seeded_random(seed), np.random.default_rng(seed)
        self.dtype = np.dtype(self.rng.choice(["float64", "float64", "float32", "float16", "complex128"]))
        self.params, self.values, self.grads = [], [], []
        self.module = nn.ParameterList()
        for _ in range(self.rng.randint(2, 6)):
            self.add_parameter()
        self.optimisers = [self.optimiser() for _ in range(self.rng.randint(1, 3))]
        self.states = [{} for _ in self.optimisers]
        self.held, self.recordings, self.saved = [], [], []
        self.close = CLOSE[self.dtype.name]

    def numbers(self, shape):
        a = self.draw.standard_normal(shape)
        return np.asarray(a + 1j * self.draw.standard_normal(shape) if self.dtype.kind == "c" else a).astype(self.dtype)

    def add_parameter(self):
        a = self.numbers(self.rng.choice(SHAPES))
        self.params.append(nn.Parameter(np.asfortranarray(a) if a.ndim > 1 and self.rng.random() < 0.2 else a))
        self.module.append(self.params[-1])
        self.values.append(a)
        self.grads.append(None)

    def optimiser(self):
        some = self.rng.sample(self.params, self.rng.randint(1, len(self.params)))
        make, cut = self.rng.choice(OPTIMISERS), self.rng.randint(0, len(some) - 1)
        return make([{"params": some[:cut]}, {"params": some[cut:], "lr": 0.02}] if cut else some)

    def index(self, p):
        return next(k for k, other in enumerate(self.params) if other is p)

    def of(self, k):
        """Return the groups of an optimiser with each of its parameters, by number."""
        return [(group, self.index(p)) for group in self.optimisers[k].param_groups for p in group["params"]]

    def near(self, t, expected, what):
        """Compare to rounding; return the bits that are there, to go on with."""
        a = np.array(t.numpy())
        one, other = reals(a), reals(np.asarray(expected, self.dtype))
        scale = max(1.0, np.max(np.abs(other), initial=0, where=np.isfinite(other)))
        is_close = (np.abs(one - other) <= self.close * scale) | ~np.isfinite(one) | ~np.isfinite(other)
        assert a.shape == expected.shape, what
        assert is_close.all(), what
        return a

    def stepped(self, k):
        """Let the model take the step that an optimiser has taken, and compare."""
        states, kind = self.states[k], type(self.optimisers[k]).__name__
        found = self.optimisers[k].state_dict()["state"]
        for number, (group, j) in enumerate(self.of(k)):
            state = states.setdefault(j, {})
            if self.grads[j] is not None:
                new = plain_step(kind, group, self.values[j], self.grads[j], state)
                self.values[j] = self.near(self.params[j], new, f"parameter {j} after a step of {k}")
                self.cut(j)
            assert state.keys() == found.get(number, {}).keys()
            for name in state:
                there = found[number][name]
                assert name != "step" or state[name] == there
                state[name] = there if name == "step" else self.near(there, state[name], f"{name} of {j}")

    def cut(self, j):
        for recording in self.recordings:
            recording.factors[j] = None

    def keep(self, text, made):
        self.held.append((text, made, np.array(made.numpy() if isinstance(made, Tensor) else made)))

    # ------------------------------------------------ statements

    def do_hold(self):
        k, name = self.rng.randrange(len(self.params)), self.rng.choice(list(HOLDS))
        self.keep(f"{name} of {k}", HOLDS[name](self.params[k]))

    def do_hold_states(self):
        k = self.rng.randrange(len(self.optimisers))
        optimiser = self.optimisers[k]
        state = optimiser.state_dict()
        self.saved.append((k, state, copy.deepcopy(self.states[k]), len(optimiser.param_groups), self.dtype))
        for one in state["state"].values():
            for name in one.keys() - {"step"}:
                self.keep(f"{name} of an optimiser", one[name])
        for name, t in self.module.state_dict().items():
            self.keep(f"state {name}", t)

    def do_hold_gradient(self):
        k = self.rng.randrange(len(self.params))
        if self.grads[k] is not None:
            self.keep(f"gradient of {k}", self.params[k].grad.detach())

    def do_drop(self):
        self.rng.shuffle(self.held)
        del self.held[len(self.held) // 2 :]

    def do_gradients(self):
        for k, p in enumerate(self.params):
            way = self.rng.random()
            like = self.rng.choice([j for j, q in enumerate(self.params) if q.shape == p.shape])
            if way < 0.2:
                p.grad, self.grads[k] = None, None
            elif way < 0.4:  # memory of a parameter
                p.grad, self.grads[k] = self.params[like].detach(), self.values[like]
            else:
                g = self.numbers((*p.shape[:-1], 2 * p.shape[-1]))[..., ::2] if p.ndim else self.numbers(())
                p.grad, self.grads[k] = tensor(g), g

    def do_step(self):
        k = self.rng.randrange(len(self.optimisers))
        with no_grad() if self.recordings else nullcontext():  # the new values are constants for what records
            self.optimisers[k].step()
        self.stepped(k)

    def do_write(self):
        k = self.rng.randrange(len(self.params))
        p, way = self.params[k], self.rng.choice(["add", "double", "set", "part", "hidden"])
        if way == "add":
            p += np.ones(p.shape, self.dtype)
            self.values[k] = self.values[k] + self.dtype.type(1)
        elif way == "double":
            p *= 2
            self.values[k] = self.values[k] * self.dtype.type(2)
            for recording in self.recordings:
                if recording.factors[k] is not None:
                    recording.factors[k] = recording.factors[k] * 2
        elif way == "set":
            p[...] = self.values[k] = self.numbers(p.shape)
            self.cut(k)
        elif way == "part" and p.size and p.ndim:
            p[..., :1] = 7
            self.values[k] = self.values[k].copy()
            self.values[k][..., :1] = 7
            for recording in self.recordings:
                if recording.factors[k] is not None:
                    recording.factors[k] = recording.factors[k].copy()
                    recording.factors[k][..., :1] = 0
        elif way == "hidden":
            with no_grad():
                p -= 1
            self.values[k] = self.values[k] - self.dtype.type(1)
            self.cut(k)

    def do_record(self):
        if len(self.recordings) < 3:
            self.recordings.append(Recording(self.params))

    def do_compute(self):
        weights = [self.numbers(p.shape) for p in self.params]
        y = sum([gnp.sum((p * p * w).real) for p, w in zip(self.params, weights, strict=True)])
        for recording in self.recordings:
            factors = [None if f is None else f.copy() for f in recording.factors]
            if any(f is not None for f in factors):
                recording.made.append((y, list(self.values), factors, weights))

    def do_backward(self):
        if not self.recordings:
            return
        recording = self.rng.choice(self.recordings)
        retain = self.rng.random() < 0.3
        for p in self.params:
            p.grad = None
        if recording.made:
            recording.gm.backward([made[0] for made in recording.made], retain=retain)
        if not retain:
            recording.gm.release()
            self.recordings.remove(recording)
        for k, p in enumerate(self.params):
            expected = np.zeros(p.shape, reals(self.values[k]).dtype)
            for _, values, factors, weights in recording.made:
                if k < len(factors) and factors[k] is not None:
                    wide = np.result_type(self.dtype, np.float32)
                    expected = expected + 2 * np.conj(values[k].astype(wide) * weights[k].astype(wide)) * factors[k]
            self.grads[k] = None if p.grad is None else self.near(p.grad, expected, f"gradient of {k}")
            assert p.grad is not None or not expected.any()

    def do_second_order(self):
        """An outer manager records how an inner one's gradients are computed; a step comes between."""
        if self.recordings or self.dtype not in (np.float32, np.float64):
            return
        before = list(self.values)
        outer, inner = GradManager().attach(self.params), GradManager().attach(self.params)
        for p in self.params:
            p.grad = None
        with outer:
            with inner:
                inner.backward(sum([gnp.sum(p**3) for p in self.params]))
            gradients = [p.grad for p in self.params]
            self.grads = [np.array(g.numpy()) for g in gradients]
            self.do_step()
            for p in self.params:
                p.grad = None
            outer.backward(sum([gnp.sum(g * (1.0 + k)) for k, g in enumerate(gradients)]))
        for k, p in enumerate(self.params):
            self.near(gradients[k], 3 * before[k] ** 2, f"first order of {k}")
            self.grads[k] = self.near(p.grad, 6 * before[k] * (1 + k), f"second order of {k}")

    def do_zero(self):
        k, to_none = self.rng.randrange(len(self.optimisers)), self.rng.random() < 0.5
        self.optimisers[k].zero_grad(set_to_none=to_none)
        for _, j in self.of(k):
            self.grads[j] = None if to_none or self.grads[j] is None else np.zeros_like(self.grads[j])

    def do_clip(self):
        optim.clip_grad_norm_(self.params, 1.0)
        self.grads = [None if p.grad is None else np.array(p.grad.numpy()) for p in self.params]

    def do_load(self):
        self.values = [self.numbers(p.shape) for p in self.params]
        self.module.load_state_dict({str(k): a for k, a in enumerate(self.values)})
        for k in range(len(self.params)):
            self.cut(k)

    def do_load_optimiser(self):
        fitting = [s for s in self.saved if s[3] == len(self.optimisers[s[0]].param_groups) and s[4] == self.dtype]
        if fitting:
            k, state, states, _, _ = self.rng.choice(fitting)
            self.optimisers[k].load_state_dict(state)
            self.states[k] = copy.deepcopy(states)

    def do_add_group(self):
        self.add_parameter()
        self.rng.choice(self.optimisers).add_param_group({"params": self.params[-1:]})
        for recording in self.recordings:
            recording.factors.append(None)

    def do_cast(self):
        if self.dtype not in (np.float32, np.float64):
            return
        self.dtype = np.dtype("float32" if self.dtype == np.float64 else "float64")
        self.close = CLOSE["float32"]
        self.module.to(dtype=self.dtype)
        self.values = [a.astype(self.dtype) for a in self.values]
        self.grads = [None if g is None else g.astype(self.dtype) for g in self.grads]
        for recording in self.recordings:
            recording.gm.release()
        self.recordings = []

    def do_fail(self):
        k = self.rng.randrange(len(self.optimisers))
        groups, last = self.of(k), self.optimisers[k].param_groups[-1]
        if any(self.grads[j] is not None for group, j in groups if group is last):
            lr, last["lr"] = last["lr"], "much"
            with pytest.raises((TypeError, ValueError), match="much"):
                self.optimisers[k].step()
            last["lr"] = lr

    def do_threads(self):
        """Optimisers over different parameters step at once."""
        for recording in self.recordings:
            recording.gm.release()
        self.recordings = []
        apart, seen = [], set()
        for k in range(len(self.optimisers)):
            own = {j for _, j in self.of(k)}
            if not own & seen:
                apart.append(k)
                seen |= own
        threads = [threading.Thread(target=self.optimisers[k].step) for k in apart]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k in apart:
            self.stepped(k)

    def check(self):
        for k, (p, a, g) in enumerate(zip(self.params, self.values, self.grads, strict=True)):
            assert p.dtype == self.dtype
            assert p.numpy().tobytes() == a.tobytes(), f"parameter {k}"
            assert (p.grad is None) == (g is None), f"gradient of {k}"
            assert g is None or p.grad.numpy().tobytes() == g.tobytes(), f"gradient of {k}"
        for text, made, a in self.held:
            now = np.array(made.numpy() if isinstance(made, Tensor) else made)
            assert now.tobytes() == a.tobytes(), f"{text} changed"


class Recording:
    """An open recording, and for each parameter the derivative of its value by what it was at first; None: constant."""

    def __init__(self, params):
        self.gm = GradManager().attach(params)
        self.gm.record()
        self.factors = [np.ones(p.shape) for p in params]
        self.made = []


OFTEN = ["do_step"] * 8 + ["do_hold", "do_gradients", "do_write"] * 3 + ["do_compute", "do_backward"] * 2


def check_world(seed):
    world, last = World(seed), []
    names = [name for name in dir(World) if name.startswith("do_")] + OFTEN
    with np.errstate(all="ignore"):
        for _ in range(30):
            last.append(world.rng.choice(names))
            try:
                getattr(world, last[-1])()
                world.check()
            except Exception as error:
                error.add_note(f"{world.dtype}: {', '.join(last)}")
                raise
    for recording in world.recordings:
        recording.gm.release()


@pytest.mark.parametrize("block", range(4))
def test_values_under_optimisers(block):
    check_each(check_world, range(block * 25, block * 25 + 25))


@pytest.mark.slow
def test_more_values_under_optimisers():
    check_each(check_world, range(1000, 1500))


def test_a_step_into_what_others_hold_is_noticed(monkeypatch):
    monkeypatch.setattr(optim._chunks.Chunk, "_is_unshared", lambda chunk: True)
    with pytest.raises(AssertionError, match=r"changed|parameter|gradient"):
        check_each(check_world, range(10))


# ---------------------------------------------------------------- random networks

ACTIVATIONS = [F.relu, F.gelu, F.silu, F.tanh, F.softplus, F.elu, F.logsigmoid, lambda x: F.softmax(x, 1), F.normalize]


class Apply(nn.Module):
    """A function of what a module gives."""

    def __init__(self, function, module=None):
        super().__init__()
        self.function, self.module = function, module

    def forward(self, x):
        return self.function(x) if self.module is None else self.function(self.module, x)


def _attend(module, x):
    mask = np.triu(np.ones((x.shape[1], x.shape[1]), bool), 1)
    return module(x, x, x, attn_mask=mask)[0]


def _through_cell(module, x):
    h, outs = None, []
    for k in range(x.shape[1]):
        h = module(x[:, k], h)
        outs.append(h[0] if isinstance(h, tuple) else h)
    return gnp.stack(outs, axis=1)


def image_layers(rng, c, o):
    g = rng.choice([1, c])
    return [
        lambda: nn.Conv2d(c, 2 * g, 2, stride=rng.randint(1, 2), padding=1, groups=g, padding_mode="reflect", **o),
        lambda: nn.Conv2d(c, g, 3, padding="same", groups=g, bias=False, **o),
        lambda: nn.ConvTranspose2d(c, g, 2, stride=rng.randint(1, 2), groups=g, **o),
        lambda: nn.MaxPool2d(2, stride=rng.choice([None, 1]), ceil_mode=True),
        lambda: nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
        lambda: nn.BatchNorm2d(c, momentum=None, dtype=o["dtype"]),
        lambda: nn.GroupNorm(g, c, dtype=o["dtype"]),
        lambda: nn.Flatten(),
    ]


def sequence_layers(rng, d, o):
    return [
        lambda: nn.Linear(d, 4, **o),
        lambda: Apply(
            lambda m, x: m(x)[0], nn.LSTM(d, 4, 2, batch_first=True, dropout=0.3, proj_size=rng.choice([0, 2]), **o)
        ),
        lambda: Apply(lambda m, x: m(x)[0], nn.GRU(d, 2, batch_first=True, bidirectional=True, **o)),
        lambda: Apply(_through_cell, rng.choice([nn.LSTMCell, nn.GRUCell])(d, 4, **o)),
        lambda: Apply(_attend, nn.MultiheadAttention(d, 2, dropout=rng.choice([0, 0.3]), batch_first=True, **o)),
        lambda: nn.LayerNorm(d, dtype=o["dtype"]),
        lambda: nn.RMSNorm(d, dtype=o["dtype"]),
        lambda: Apply(lambda m, x: gnp.swapaxes(m(gnp.swapaxes(x, 1, 2)), 1, 2), nn.Conv1d(d, 2, 2, padding=1, **o)),
    ]


def flat_layers(rng, d, o):
    return [
        lambda: nn.Linear(d, 4, **o),
        lambda: nn.BatchNorm1d(d, dtype=o["dtype"]),
        lambda: nn.LayerNorm(d, dtype=o["dtype"]),
    ]


LOSSES = {
    "cross_entropy": lambda y, labels, soft: F.cross_entropy(y, labels, label_smoothing=0.1),
    "of distributions": lambda y, labels, soft: F.cross_entropy(y, soft, reduction="sum"),
    "mse": lambda y, labels, soft: F.mse_loss(y, soft, reduction="sum"),
    "huber": lambda y, labels, soft: F.huber_loss(y, soft, delta=0.7),
    "bce": lambda y, labels, soft: F.binary_cross_entropy_with_logits(y, soft, reduction="sum"),
    "kl": lambda y, labels, soft: F.kl_div(F.log_softmax(y, -1), soft, reduction="sum"),
}


class Net(nn.Module):
    """Blocks, some of them under a checkpoint."""

    def __init__(self, blocks, checkpointed):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.checkpointed = checkpointed
        self.between = None
        self.made = []  # weak references

    def forward(self, x):
        for k, block in enumerate(self.blocks):
            x = gradmgr.checkpoint(block, x) if k in self.checkpointed else block(x)
            self.made.append(weakref.ref(x))
            x = x if self.between is None else self.between(x)
        return x


class Failed(Exception):  # noqa: N818  # a word is enough
    """What is made to happen."""


class Case:
    """A random network with a loss, and all ways to differentiate it; numbers of dropout start anew with each."""

    def __init__(self, seed):
        rng, draw = seeded_random(seed), np.random.default_rng(seed)
        self.drops, self.way = np.random.default_rng(seed + 1), seeded_random(seed + 2)
        options = {"dtype": np.float64, "rng": self.drops}
        kind = rng.choice(["image", "sequence", "flat", "tokens"])
        shape = {"image": (3, 2, 4, 5), "sequence": (3, 3, 4), "flat": (3, 4), "tokens": (3, 3)}[kind]
        self.x = draw.integers(0, 6, shape) if kind == "tokens" else draw.standard_normal(shape)
        blocks, at = [], self.x
        if kind == "tokens":
            blocks.append(nn.Embedding(6, 4, **options))
        for _ in range(rng.randint(2, 4)):
            at = self.shape_after(blocks)
            layers = {4: image_layers, 3: sequence_layers, 2: flat_layers}[len(at)]
            make = rng.choice([*layers(rng, at[1 if len(at) == 4 else -1], options), None, None])
            if make is None:
                make = rng.choice([lambda: Apply(rng.choice(ACTIVATIONS)), lambda: nn.Dropout(0.4, rng=self.drops)])
            blocks.append(make())
        if len(self.shape_after(blocks)) > 2:
            blocks.append(nn.Flatten())
        blocks.append(nn.Linear(self.shape_after(blocks)[1], 3, **options))
        self.net = Net(blocks, {k for k in range(len(blocks)) if rng.random() < 0.3})
        self.net.train(rng.random() < 0.8)
        self.targets = draw.integers(0, 3, 3), draw.dirichlet(np.ones(3), 3)
        self.loss_name = rng.choice(list(LOSSES))
        self.params = dict(self.net.named_parameters())
        for p in self.params.values():
            p += 0.1 * draw.standard_normal(p.shape)
        self.input = tensor(self.x) if self.x.dtype == float else None
        self.leaves = [*self.params.values(), *([] if self.input is None else [self.input])]
        self.along = [draw.standard_normal(t.shape) for t in self.leaves]
        self.first = [np.array(t.numpy()) for t in self.leaves]
        self.buffers = [(b, np.array(b.numpy())) for b in self.net.buffers()]
        self.state = self.drops.bit_generator.state

    def shape_after(self, blocks):
        x = tensor(self.x) if self.x.dtype == float else self.x
        for block in blocks:
            buffers = [(b, np.array(b.numpy())) for b in block.buffers()]
            x = block(x)
            for b, a in buffers:
                b[...] = a
        return x.shape

    def begin(self):
        self.drops.bit_generator.state = self.state
        for t, a in [*zip(self.leaves, self.first, strict=True), *self.buffers]:
            t[...] = a
        for t in self.leaves:
            t.grad = None
        self.net.between = None

    def loss(self, y, targets=None):
        return LOSSES[self.loss_name](y, *(self.targets if targets is None else targets))

    def compute(self):
        return self.loss(self.net(self.x if self.input is None else self.input))

    def at(self, leaves):
        given = dict(zip(self.params, leaves, strict=False))
        x = self.x if self.input is None else leaves[-1]
        return self.loss(nn.functional_call(self.net, given, (x,)))

    def pop_gradients(self):
        """Take the gradients off the leaves."""
        found = [t.grad for t in self.leaves]
        for t in self.leaves:
            t.grad = None
        return [np.zeros(t.shape) if g is None else g for g, t in zip(found, self.leaves, strict=True)]

    def gradients(self, gm=None):
        gm = gm or GradManager().attach(self.leaves)
        with gm:
            gm.backward(self.compute())
        return self.pop_gradients()

    # ------------------------------------------------ first order

    def one_spilled(self):
        return self.gradients(GradManager(budget=0, spill="disk").attach(self.leaves))

    def one_with_anomaly_detection(self):
        with gradmgr.detect_anomaly(), profile(), graph.saved_tensors_hooks(lambda t: t.numpy(), tensor):
            return self.gradients()

    def one_grad(self):
        with GradManager().attach(self.leaves):
            return gradmgr.grad(self.compute(), self.leaves, create_graph=True, materialize_grads=True)

    def one_retained(self):
        gm = GradManager().attach(self.leaves)
        with gm:
            y = self.compute()
            gm.backward(y, retain=True)
            once = self.pop_gradients()
            gm.backward(y)
        for a, b in zip(once, self.pop_gradients(), strict=True):
            assert_allclose(a, b)
        return once

    def one_hooked(self):
        def between(x):
            if not x.requires_grad or x is self.input:
                return x
            x.register_hook(lambda g: g * 2)
            z = gnp.sin(x) * 0 + x
            z.register_hook(lambda g: g / 2)
            with self.way.choice([no_grad, gradmgr.inference_mode])():
                x.clone().mul_(3)
            return z

        self.net.between = between
        return self.gradients()

    def one_overwritten(self):
        """What was used is written to before the derivatives are taken."""
        kept, self.net.checkpointed = self.net.checkpointed, set()
        gm = GradManager().attach(self.leaves)
        try:
            with gm:
                y = self.compute()
                for t in [*self.leaves, *self.net.buffers()]:
                    t[...] = 7
                gm.backward(y)
        finally:
            self.net.checkpointed = kept
        return self.pop_gradients()

    def one_of_tracked(self):
        gm = GradManager().attach(self.leaves)
        with gm:
            gm.backward(self.at([t * 1.0 for t in self.leaves]))
        return self.pop_gradients()

    def one_vjp(self):
        return functional.vjp(lambda *ts: self.at(ts), tuple(self.leaves))[1]

    def one_by_example(self):
        """Gradients of each example by vmap, summed; where examples have nothing to do with each other."""
        drops = any(isinstance(m, (nn.Dropout, nn.LSTM, nn.MultiheadAttention)) for m in self.net.modules())
        mixed = any(isinstance(m, nn.BatchNorm) for m in self.net.modules())
        if (self.net.training and (drops or mixed)) or self.loss_name in ("cross_entropy", "huber"):
            return self.gradients()

        def one(x, *targets):
            leaves = [*self.params.values(), *([] if self.input is None else [x])]
            with GradManager().attach(leaves):
                y = self.loss(self.net(gnp.expand_dims(x, 0)), [gnp.expand_dims(t, 0) for t in targets])
                return tuple(gradmgr.grad(y, leaves, materialize_grads=True))

        found = vmap(one)(tensor(self.x), *map(tensor, self.targets))
        count = len(self.params)
        return [g.sum(0) for g in found[:count]] + list(found[count:])

    # ------------------------------------------------ second order, along a direction

    def slope(self, gradients):
        return sum([gnp.sum(g * d) for g, d in zip(gradients, self.along, strict=True)])

    def duals(self):
        return [forward_ad.make_dual(t, tensor(d)) for t, d in zip(self.leaves, self.along, strict=True)]

    def two_nested(self):
        outer = GradManager().attach(self.leaves)
        with outer:
            slope = self.slope(self.gradients())
            outer.backward(slope)
        return self.pop_gradients()

    def two_created(self):
        with GradManager(budget=0, spill="disk").attach(self.leaves):
            gradients = gradmgr.grad(self.compute(), self.leaves, create_graph=True, materialize_grads=True)
            return gradmgr.grad(self.slope(gradients), self.leaves, materialize_grads=True)

    def two_forward_over_reverse(self):
        with forward_ad.dual_level():
            duals = self.duals()
            with GradManager().attach(duals):
                gradients = gradmgr.grad(self.at(duals), duals, materialize_grads=True)
            found = [forward_ad.unpack_dual(g).tangent for g in gradients]
        return [np.zeros(t.shape) if g is None else g for g, t in zip(found, self.leaves, strict=True)]

    def two_reverse_over_forward(self):
        gm = GradManager().attach(self.leaves)
        with gm:
            with forward_ad.dual_level():
                slope = forward_ad.unpack_dual(self.at(self.duals())).tangent
            gm.backward(slope)
        return self.pop_gradients()

    def numeric(self, compute, step=1e-6):
        """Return how what is computed changes along the direction."""
        found = []
        for sign in (step, -step):
            self.begin()
            for t, a, d in zip(self.leaves, self.first, self.along, strict=True):
                t[...] = a + sign * d
            found.append([np.array(part) for part in compute()])
        return [(high - low) / (2 * step) for high, low in zip(*found, strict=True)]


def library_state():
    """What a call must leave as it was."""
    now = context.current()
    groups = (now.groups, now.with_paused, now.interceptors) if isinstance(now, context.Context) else now
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return groups, modes._modes.get(), observers.observers(), descriptors


def compare(found, expected, tolerance, what):
    scale = max([1e-2] + [np.max(np.abs(b), initial=0) for b in expected])
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert np.max(np.abs(np.asarray(a) - b), initial=0) <= tolerance * scale, (what, k)


def compare_numerically(case, compute, expected, what):
    """Compare with central differences; a kink within the step gives another one at a smaller step."""
    try:
        compare(case.numeric(compute), expected, 1e-4, what)
    except AssertionError:
        compare(case.numeric(compute, 1e-7), expected, 1e-3, what)
    case.net.made.clear()


def run(case, name, before):
    case.begin()
    try:
        found = [np.array(g) for g in getattr(case, name)()]
    except Exception as error:
        error.add_note(f"{name}: {case.net}")
        raise
    check_over(case, name, before)
    return found


def check_over(case, name, before):
    assert library_state() == before, name
    assert not [ref for ref in case.net.made if ref() is not None and ref() is not case.input], f"{name}: {case.net}"
    case.net.made.clear()


def check_network(seed):
    case, before = Case(seed), library_state()
    case.net.made.clear()
    ones, twos = ([name for name in dir(Case) if name.startswith(part)] for part in ("one_", "two_"))
    first = run(case, "gradients", before)
    for name in ones:
        compare(run(case, name, before), first, 1e-8, f"{name}: {case.net}")
    slope = float(case.slope(first))
    compare_numerically(case, lambda: [case.compute().item()], [slope], f"slope: {case.net}")
    second = run(case, twos[0], before)
    for name in twos[1:]:
        compare(run(case, name, before), second, 1e-7, f"{name}: {case.net}")
    compare_numerically(case, case.gradients, second, f"second: {case.net}")


def check_failing_network(seed, fuse):
    case, before = Case(seed), library_state()
    for module in case.net.modules():
        module.register_forward_hook(lambda *args: fuse())
    names = [name for name in dir(Case) if name.startswith(("one_", "two_"))]
    for name in case.way.sample(names, 3):
        fuse.count, fuse.at = 0, None
        first = run(case, name, before)
        case.begin()
        ones = [tensor(np.ones(t.shape)) for t in case.leaves]
        if name not in ("one_retained", "two_nested"):  # which take gradients off half-way
            for t, g in zip(case.leaves, ones, strict=True):
                t.grad = g
        fuse.count, fuse.at = 0, case.way.randint(1, fuse.count)
        with pytest.raises(Failed):
            getattr(case, name)()
        check_over(case, name, before)
        for t, g in zip(case.leaves, ones, strict=True):
            assert t.grad is None or (t.grad is g and bool((g == 1).all())), name
        fuse.at = None
        for a, b in zip(run(case, name, before), first, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("block", range(4))
def test_all_derivatives_of_networks_agree(block, no_cyclic_collector):
    check_each(check_network, range(block * 6, block * 6 + 6))


@pytest.mark.slow
def test_all_derivatives_of_more_networks_agree(no_cyclic_collector):
    check_each(check_network, range(1000, 1150))


class Fuse:
    """Counts, and raises at one of them."""

    count, at = 0, None

    def __call__(self):
        self.count += 1
        if self.count == self.at:
            raise Failed


def test_networks_that_fail(monkeypatch, no_cyclic_collector):
    fuse = Fuse()

    def fused(rule):
        def rule_or_fail(e, g, grads, owned):
            fuse()
            rule(e, g, grads, owned)

        return rule_or_fail

    for code, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, code, fused(rule))
    check_each(lambda seed: check_failing_network(seed, fuse), range(100, 112))


def test_a_rule_a_thousandth_off_is_noticed(monkeypatch):
    def wrong_vjp(e, g, grads, owned, rule=RULES["nn.linear"]):
        rule(e, g * 1.001, grads, owned)

    monkeypatch.setitem(RULES, "nn.linear", wrong_vjp)
    with pytest.raises(AssertionError):
        check_each(check_network, range(3))


# ---------------------------------------------------------------- save, kill, resume

SCHEDULES = [
    lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=200, cycle_momentum=False),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 2, 0.5)]),
]


class Training:
    """All of a training: one seed decides what it is made of, another its numbers."""

    def __init__(self, structure, numbers):
        rng, self.case = seeded_random(structure), Case(structure)
        self.net = self.case.net
        for p in self.net.parameters():
            p[...] = np.random.default_rng(numbers).standard_normal(p.shape)
        kind = rng.choice([np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64])
        self.rng, self.python = np.random.Generator(kind(numbers)), random.Random(numbers)  # noqa: S311  # no secret
        self.case.drops.bit_generator.state = np.random.default_rng(numbers).bit_generator.state
        params = list(self.net.named_parameters())
        cut = rng.randint(0, len(params) - 1)
        make = rng.choice(OPTIMISERS)
        if cut and rng.random() < 0.5:
            self.optimisers = [make(params[:cut]), rng.choice(OPTIMISERS)(params[cut:])]
        else:
            self.optimisers = [
                make([{"params": params[:cut]}, {"params": params[cut:], "lr": 0.02}] if cut else params)
            ]
        self.schedules = [rng.choice(SCHEDULES)(optimiser) for optimiser in self.optimisers]
        self.scaler = optim.GradScaler(256.0, growth_interval=2)
        self.average = {name: tensor(p.numpy()) for name, p in self.net.named_parameters()}
        self.gm = GradManager().attach(dict(self.net.named_parameters()))
        self.losses = []

    def everything(self):
        return {
            "net": self.net,
            "optimisers": self.optimisers,
            "schedules": self.schedules,
            "scaler": self.scaler,
            "random": [self.rng, self.python, self.case.drops],
            "average": self.average,
        }

    def step(self):
        x = self.case.x
        x = tensor(self.rng.standard_normal(x.shape)) if x.dtype == float else self.rng.integers(0, 6, x.shape)
        with self.gm:
            loss = self.case.loss(self.net(x))
            self.gm.backward(self.scaler.scale(loss))
        self.losses.append(loss.item())
        for optimiser in self.optimisers:
            for p in optimiser.param_groups[0]["params"][1:]:
                if self.python.random() < 0.2:
                    p.grad = None
            self.scaler.step(optimiser)
        self.scaler.update()
        for optimiser, schedule in zip(self.optimisers, self.schedules, strict=True):
            optimiser.zero_grad()
            schedule.step(*[loss.item()] * isinstance(schedule, lr_scheduler.ReduceLROnPlateau))
        for name, p in self.net.named_parameters():
            self.average[name] *= 0.9
            self.average[name] += 0.1 * p.numpy()

    def bits(self):
        """Return all that there is, in an order, as text: floats and states to the last bit."""
        with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
            states = [o.state_dict() for o in (self.net, *self.optimisers, *self.schedules, self.scaler)]
            drawn = [self.rng.random(3), self.python.random(), self.case.drops.random(3)]
            return repr((self.losses, states, self.average, drawn))


class Killed(BaseException):
    """As if the program ended."""


def _kill(*args, **keywords):
    raise Killed


def save_or_be_killed(training, step, path, rng, monkeypatch):
    """Save; or be killed in the middle of it: what stood there before still does."""
    state = {**training.everything(), "step": step, "losses": training.losses}
    if rng.random() < 0.6:
        gradmgr.save(state, path)
        return
    with monkeypatch.context() as patch:
        patch.setattr(*rng.choice([(serialization, "_write_file"), (os, "fsync"), (os, "replace")]), _kill)
        with pytest.raises(Killed):
            gradmgr.save(state, path)
    assert os.listdir(os.path.dirname(path)) == ["run"]


def resumed(seed, numbers, path, rng):
    """Make all anew, perhaps used already, and load: into it, or part by part."""
    training = Training(seed, numbers)
    for _ in range(rng.randint(0, 2)):
        training.step()
    if rng.random() < 0.5:
        rest = gradmgr.load(path, into=training.everything())
    else:
        rest = gradmgr.load(path)
        for one, state in zip(
            [training.net, *training.optimisers, *training.schedules, training.scaler],
            [rest["net"], *rest["optimisers"], *rest["schedules"], rest["scaler"]],
            strict=True,
        ):
            one.load_state_dict(state)
        data, python, drops = rest["random"]
        training.rng.bit_generator.state = data.bit_generator.state
        training.python.setstate(python.getstate())
        training.case.drops.bit_generator.state = drops.bit_generator.state
        for name, t in rest["average"].items():
            training.average[name][...] = t
    training.losses = rest["losses"]
    return training, rest["step"]


def check_resumed(seed, folder, monkeypatch):
    rng, path = seeded_random(seed), os.path.join(folder, str(seed), "run")
    os.mkdir(os.path.dirname(path))
    if rng.random() < 0.4:
        monkeypatch.setattr(serialization, "_import_safetensors", lambda: None)
    total = rng.randint(3, 7)
    with np.errstate(all="ignore"):
        through = Training(seed, 1)
        for _ in range(total):
            through.step()
        training, step, numbers = Training(seed, 1), 0, 1
        gradmgr.save({**training.everything(), "step": 0, "losses": []}, path)
        while step < total:
            if rng.random() < 0.5:
                save_or_be_killed(training, step, path, rng, monkeypatch)
            if rng.random() < 0.4:
                numbers += 1
                training, step = resumed(seed, numbers, path, rng)
            training.step()
            step += 1
        assert training.bits() == through.bits()


def test_resumed_trainings_come_to_the_same_bits(tmp_path, monkeypatch):
    check_each(lambda seed: check_resumed(seed, tmp_path, monkeypatch), range(10))


@pytest.mark.slow
def test_more_resumed_trainings(tmp_path, monkeypatch):
    check_each(lambda seed: check_resumed(seed, tmp_path, monkeypatch), range(1000, 1120))


def test_a_state_that_is_not_loaded_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(optim.Optimizer, "_fill", lambda *args: None)
    with pytest.raises(AssertionError):
        check_each(lambda seed: check_resumed(seed, tmp_path, monkeypatch), range(20))


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("seed", range(3))
def test_steps_leave_nothing_behind(seed, no_cyclic_collector):
    training = Training(seed, 1)
    training.net.made = training.losses = type("Forgetting", (list,), {"append": lambda self, x: None})()
    with np.errstate(all="ignore"):
        for _ in range(23):  # by then there is a plan of each step
            training.step()
        gc.collect()
        objects = len(gc.get_objects())
        for _ in range(20):
            training.step()
        assert len(gc.get_objects()) < objects + 20  # not one for each step; a plan for a new rate comes and goes
        tracemalloc.start()
        try:
            sizes = []
            for _ in range(4):
                for _ in range(8):
                    training.step()
                gc.collect()  # which also empties Python's free lists
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert sizes[-1] - sizes[-2] < 8 * 2048, sizes
