"""Training steps for gradmgr.compile: models, optimisers, ways to use managers, and what users add to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from compiled_programs import CALLS, PROGRAMS, Program, call, calls_with, loss_of, program, tensors, wave, waves

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, graph, nn, optim, tensor
from gradmgr.function import Function
from gradmgr.nn import functional as F  # noqa: N812  # torch's name
from gradmgr.optim import lr_scheduler
from gradmgr.profiler import record_function

# ---------------------------------------------------------------- models


class Block(nn.Module):
    """Causal attention and a perceptron, with residual connections."""

    def __init__(self, width: int, heads: int, rng: Any) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width, rng=rng), nn.Linear(width, width, rng=rng)
        self.up, self.down = nn.Linear(width, 2 * width, rng=rng), nn.Linear(2 * width, width, rng=rng)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.into(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(0, 2, 1, 3).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(5, 4, rng=rng), nn.Embedding(3, 4, rng=rng)
        self.block, self.norm = Block(4, 2, rng), nn.LayerNorm(4)
        self.scores = nn.Linear(4, 5, bias=False, rng=rng)

    def forward(self, codes: Any) -> Any:
        x = self.letters(codes) + self.places(gnp.arange(codes.shape[1]))
        return self.scores(self.norm(self.block(x))).reshape(-1, 5)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, rng: Any) -> None:
        super().__init__()
        self.cells = kind(3, 2, num_layers=2, dropout=0.4, rng=rng)
        self.head = nn.Linear(2, 3, rng=rng)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][-1])


def _mlp(rng: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, rng=rng), nn.Tanh(), nn.Linear(5, 3, rng=rng))


def _norm_and_dropout(rng: Any) -> nn.Module:
    layers = nn.Linear(4, 5, rng=rng), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5, rng=rng), nn.Linear(5, 3, rng=rng)
    return nn.Sequential(*layers)


def _cnn(rng: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, rng=rng),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3, rng=rng),
    )


def _embedding(rng: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 2, padding_idx=0, rng=rng), nn.Flatten(), nn.Linear(6, 3, rng=rng))


def _labels(count: int, classes: int, k: int) -> np.ndarray:
    return (np.arange(count) * (k + 1) + k) % classes


def _codes(k: int) -> np.ndarray:
    return _labels(6, 5, k).reshape(2, 3)


# A model, and what it is given in the call of a number: an input and labels.
MODELS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[int], tuple[Any, Any]]]] = {
    "MLP": (_mlp, lambda k: (wave(6, 4, at=k, dtype="float32"), _labels(6, 3, k))),
    "BatchNorm and dropout": (_norm_and_dropout, lambda k: (wave(6, 4, at=k, dtype="float32"), _labels(6, 3, k))),
    "LSTM": (lambda rng: Recurrent(nn.LSTM, rng), lambda k: (wave(3, 2, 3, at=k, dtype="float32"), _labels(2, 3, k))),
    "GRU": (lambda rng: Recurrent(nn.GRU, rng), lambda k: (wave(3, 2, 3, at=k, dtype="float32"), _labels(2, 3, k))),
    "GPT": (GPT, lambda k: (_codes(k), _labels(6, 5, k + 1))),
    "CNN": (_cnn, lambda k: (wave(2, 1, 4, 4, at=k, dtype="float32"), _labels(2, 3, k))),
    "embedding": (_embedding, lambda k: (_codes(k), _labels(2, 3, k))),
}

OPTIMISERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "Nesterov": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adam": lambda params: optim.Adam(params, lr=0.1),
    "AMSGrad": lambda params: optim.Adam(params, lr=0.1, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda params: optim.AdamW(params, lr=0.1),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.1, momentum=0.5, centered=True),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1, lr_decay=0.1),
    "Lion": lambda params: optim.Lion(params, lr=0.1),
}


class Training:
    """What training loops are made of: a model, its optimiser, one manager, batches, and all of the state."""

    def __init__(self, model: str = "MLP", optimiser: str = "momentum", callbacks: Any = None) -> None:
        make, self.batch = MODELS[model]
        self.rng = np.random.default_rng(5)
        self.model = make(self.rng)
        self.params = list(self.model.parameters())
        self.gm = GradManager().attach(self.params, callbacks=callbacks)
        self.optimizer = OPTIMISERS[optimiser](self.params)
        self.more: dict[str, Any] = {}

    def loss(self, x: Any, y: Any) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, x: Any, y: Any) -> Tensor:
        with self.gm:
            loss = self.loss(x, y)
            self.gm.backward(loss)
        self.update()
        return loss

    def state(self) -> dict[str, Any]:
        return {
            "parameters": self.params,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng,
            "now attached": len(self.gm.attached_tensors()),
            **self.more,
        }

    def program(self, step: Callable[..., Any] | None = None, **options: Any) -> Program:
        calls = [call(*self.batch(k)) for k in range(CALLS)]
        return Program(step or self.step, options.pop("calls", calls), self.state, **options)

    def every_time(self, action: Callable[[], Any]) -> dict[int, Callable[[], Any]]:
        return dict.fromkeys(range(1, CALLS), action)


def _plain(model: str, optimiser: str) -> Callable[[], Program]:
    return lambda: Training(model, optimiser).program()


for _model in MODELS:
    for _optimiser in OPTIMISERS:
        if _model in ("MLP", "BatchNorm and dropout") or _optimiser in ("SGD", "Adam"):
            PROGRAMS[f"train {_model} with {_optimiser}"] = _plain(_model, _optimiser)


# ---------------------------------------------------------------- ways to use managers

WAYS: dict[str, Callable[[Training], Program]] = {}


def way(make: Callable[[Training], Program]) -> Callable[[Training], Program]:
    """Enter a way to train, which is tried with several models."""
    WAYS[make.__name__] = make
    for model in ("MLP", "BatchNorm and dropout", "GPT"):
        PROGRAMS[f"{make.__name__}, {model}"] = lambda model=model: make(Training(model, "Adam"))
    return make


@way
def record_and_release(t: Training) -> Program:
    def step(x: Any, y: Any) -> Tensor:
        t.gm.record()
        try:
            loss = t.loss(x, y)
            t.gm.backward(loss)
        finally:
            t.gm.release()
        t.optimizer.step()
        t.gm.clear_grad()
        return loss

    return t.program(step)


@way
def gradients_stay(t: Training) -> Program:
    """The gradients are left by the step, and dropped by the caller."""

    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            loss = t.loss(x, y)
            t.gm.backward(loss)
        return loss

    return t.program(step, between={2: t.update, 4: t.update, 5: t.optimizer.zero_grad})


@way
def manager_of_each_step(t: Training) -> Program:
    t.gm.detach(t.params)

    def step(x: Any, y: Any) -> Tensor:
        with GradManager().attach(t.params) as gm:
            loss = t.loss(x, y)
            gm.backward(loss)
        t.update()
        return loss

    return t.program(step)


@way
def backward_of_the_loss(t: Training) -> Program:
    def step(x: Any, y: Any) -> Tensor:
        t.optimizer.zero_grad()
        with t.gm:
            loss = t.loss(x, y)
            loss.backward()
        t.optimizer.step()
        return loss

    return t.program(step)


@way
def gradients_as_values(t: Training) -> Program:
    """gradmgr.grad, and the update by hand."""

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            loss = t.loss(x, y)
            found = gradmgr.grad(loss, t.params, allow_unused=True, materialize_grads=True)
        for p, g in zip(t.params, found, strict=True):
            p -= 0.1 * g
        return loss, found

    return t.program(step)


@way
def group_of_managers(t: Training) -> Program:
    t.gm.detach(t.params[1:])
    other = GradManager().attach(t.params[1:])

    def step(x: Any, y: Any) -> Tensor:
        with t.gm | other:
            loss = t.loss(x, y)
            t.gm.backward(loss)
            other.backward(loss * 2)
        t.update()
        return loss

    return t.program(step)


@way
def nothing_is_updated(t: Training) -> Program:
    """A recording without a backward, and the loss outside of any recording."""

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            first = t.loss(x, y)
        with gradmgr.no_grad():
            second = t.loss(x, y)
        with gradmgr.inference_mode():
            return first, second, t.loss(x, y)

    return t.program(step)


@program
def higher_order() -> Program:
    """Two nested managers: the gradient of the norm of a gradient."""
    w, v = tensor(wave(3)), tensor(wave(3, at=2))
    outer, inner = GradManager().attach({"w": w, "v": v}), GradManager().attach(w)

    def step(x: Any) -> Any:
        with outer:
            with inner:
                inner.backward(gnp.sum(gnp.sin(w * x) * v))
            g, w.grad = w.grad, None
            outer.backward(gnp.sum(g * g))
        w.__isub__(0.1 * w.grad)
        return g

    return Program(step, calls_with(*waves(3)), lambda: (w, v))


# ---------------------------------------------------------------- schedules, clipping, scaling

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 5]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
}


def schedule_inside(name: str) -> Program:
    t = Training("MLP", "AdamW")
    schedule = SCHEDULES[name](t.optimizer)

    def step(x: Any, y: Any) -> Tensor:
        loss = t.step(x, y)
        schedule.step()
        return loss

    made = t.program(step, may_warn=True)  # a schedule is Python code that counts: it may stay eager
    made.state = lambda: {**t.state(), "schedule": schedule.get_last_lr()}
    return made


def schedule_outside(name: str) -> Program:
    t = Training("MLP", "AdamW")
    return t.program(between=t.every_time(SCHEDULES[name](t.optimizer).step))


for _name in SCHEDULES:
    PROGRAMS[f"{_name} inside"] = lambda name=_name: schedule_inside(name)
    PROGRAMS[f"{_name} outside"] = lambda name=_name: schedule_outside(name)


def changed_step(before: Callable[[Training], Any] = lambda t: None, model: str = "MLP", **options: Any) -> Program:
    """A training step that does something between backward and update, and returns that too."""
    t = Training(model, "Adam", **options)

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            loss = t.loss(x, y)
            t.gm.backward(loss)
        more = before(t)
        t.update()
        return loss, more

    return t.program(step)


BEFORE_THE_UPDATE: dict[str, Callable[[Training], Any]] = {
    "clip the norm": lambda t: optim.clip_grad_norm_(t.params, 0.1),
    "clip the norm that is small": lambda t: optim.clip_grad_norm_(t.params, 1e3),
    "clip the largest": lambda t: optim.clip_grad_norm_(t.params, 0.1, norm_type=float("inf")),
    "clip each value": lambda t: optim.clip_grad_value_(t.params, 0.01),
    "total norm": lambda t: optim.get_total_norm([p.grad for p in t.params]),
    "scale gradients in place": lambda t: [p.grad.__imul__(0.5) for p in t.params][:1],
    "replace gradients": lambda t: [setattr(p, "grad", p.grad * 2 + p) for p in t.params],
    "return gradients": lambda t: [p.grad for p in t.params],
    "return parameters": lambda t: t.params,
    "return copies": lambda t: [p.copy() for p in t.params],
    "no gradient of one": lambda t: setattr(t.params[0], "grad", None),
    "decay in place": lambda t: [p.__imul__(0.99) for p in t.params] and None,
    "constant update": lambda t: t.params[0].__setitem__(0, 0.25),
    "detached view": lambda t: t.params[0].detach()[1:] * 2,
}

for _name, _before in BEFORE_THE_UPDATE.items():
    for _model in ("MLP", "BatchNorm and dropout"):
        PROGRAMS[f"{_name}, {_model}"] = lambda before=_before, model=_model: changed_step(before, model)


@program
def clipping_that_sometimes_acts() -> Program:
    """The gradient's norm is below the bound at some calls and above it at others."""
    w = tensor(wave(3))
    gm, optimizer = GradManager().attach(w), optim.SGD([w], lr=0.1)

    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(w * x))
        norm = optim.clip_grad_norm_([w], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return Program(step, calls_with(*[wave(3, at=k) * 10.0 ** (k % 3 - 1) for k in range(9)]), lambda: w)


def scaled(values: list[Any], **options: Any) -> Program:
    w = tensor(wave(4, dtype="float32"))
    gm, optimizer = GradManager().attach(w), optim.Adam([w], lr=0.1)
    scaler = optim.GradScaler(**options)

    def step(x: Any) -> Tensor:
        with gm:
            loss = gnp.sum(gnp.tanh(w * x))
            gm.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return Program(step, calls_with(*values), lambda: (w, optimizer.state_dict(), scaler.state_dict()))


@program
def grad_scaler() -> Program:
    return scaled(waves(4, dtype="float32"), init_scale=8.0)


@program
def grad_scaler_that_grows() -> Program:
    return scaled(waves(4, dtype="float32"), init_scale=8.0, growth_interval=2)


@program
def grad_scaler_that_skips_a_step() -> Program:
    values = waves(4, count=8, dtype="float32")
    values[3][1] = values[6][0] = np.inf
    return scaled(values, init_scale=8.0)


# ---------------------------------------------------------------- steps that do more than train


@program
def checkpointed_with_dropout() -> Program:
    """The numbers that are drawn again in backward are those of the same call, and the stream goes on behind them."""
    w, rng, other = tensor(wave(6)), np.random.default_rng(3), np.random.default_rng(4)
    gm = GradManager().attach(w)

    def block(x: Any) -> Tensor:
        return F.dropout(gnp.tanh(w * x), 0.5, rng=rng) + gnp.zeros(6).normal_(generator=other)

    def step(x: Any) -> Any:
        with gm:
            h = gradmgr.checkpoint(block, F.dropout(x, 0.2, rng=rng))
            h = gradmgr.checkpoint(lambda h: block(gradmgr.checkpoint(block, h)), h)
            loss = gnp.sum(h * gnp.zeros(6).normal_(generator=rng))
            gm.backward(loss)
        found, w.grad = w.grad, None
        return loss, found

    return Program(step, calls_with(*waves(6)), lambda: (rng, other))


def _with_hooks_made_in_the_step(register: Callable[[Tensor, Tensor, list[float]], Any], **options: Any) -> Program:
    w, factors = tensor(wave(3)), [2.0]

    def step(x: Tensor) -> Any:
        with GradManager().attach([w]) as gm:
            h = gnp.tanh(w * x)
            register(h, x, factors)
            gm.backward(gnp.sum(h * h))
        found, w.grad = w.grad, None
        return found

    between = {4: lambda: factors.__setitem__(0, 3.0)}
    return Program(step, calls_with(*tensors(3)), lambda: w, between=between, **options)


def _register_all(h: Tensor, x: Tensor, factors: list[float]) -> None:
    def hook(g: Any) -> Any:
        return g + 1

    h.register_hook(hook)
    h.register_hook(lambda g: g * 2)
    for k in range(2):
        h.register_hook(lambda g, k=k, *, more=0.5: g * (k + more))


@program
def hooks_made_in_the_step() -> Program:
    return _with_hooks_made_in_the_step(_register_all)


@program
def state_of_a_generator_is_set() -> Program:
    rng = np.random.default_rng(3)
    saved = rng.bit_generator.state

    def step(x: Any) -> Any:
        y = F.dropout(x, 0.5, rng=rng)
        rng.bit_generator.state = saved
        return y, F.dropout(x, 0.5, rng=rng)

    return Program(step, calls_with(*tensors(6)), lambda: rng, may_warn=True)  # it is not replayed


@program
def checkpointed_before_a_hook() -> Program:
    """The parameters are found again after the hook, which once writes to them: an error, as without compile."""
    t, writes = Training(), tensor(np.zeros(1))
    weight = t.params[0]

    def hook(g: Any) -> Any:
        if writes.numpy()[0]:
            weight[...] = 0.5 * weight
        return 2 * g

    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            h = gradmgr.checkpoint(t.model[0], x)
            h.register_hook(hook)
            loss = F.cross_entropy(t.model[2](gnp.tanh(h)), y)
            t.gm.backward(loss)
        t.update()
        return loss

    between = {4: lambda: writes.__setitem__(0, 1.0), 5: lambda: writes.__setitem__(0, 0.0)}
    return t.program(step, between=between, raises=(gradmgr.errors.CheckpointError,))


@program
def evaluation_inside_the_step() -> Program:
    t = Training("BatchNorm and dropout", "Adam")

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        t.model.eval()
        with gradmgr.no_grad():
            right = (t.model(x).argmax(axis=1) == y).mean()
        t.model.train()
        return loss, right

    return t.program(step, may_warn=True)


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


@program
def gradients_of_a_function_added_to_others() -> Program:
    """The rule of var rounds otherwise for a gradient that is a Tensor; so it must be one in both, or in neither."""
    w = tensor(wave(40, 33))

    def step(x: Tensor) -> Any:
        with GradManager().attach([w]) as gm:
            v = gnp.var(gnp.sin(w * x), axis=0, keepdims=True)
            doubled = Doubled.apply(v)
            gm.backward(gnp.sum(v * gnp.cos(v)) + gnp.sum(doubled * gnp.cos(doubled)))
        found, w.grad = w.grad, None
        return found

    return Program(step, calls_with(*tensors(33)))


# ---------------------------------------------------------------- hooks and callbacks


def logged(log: list[Any], factor: float = 1.0) -> Callable[..., Any]:
    """A hook or callback that notes what it is given, and returns the gradient times a number."""

    def note(*values: Any) -> Any:
        log.append([v.tolist() if isinstance(v, Tensor) else None for v in values])
        return values[-1] * factor

    return note


@program
def callbacks_of_the_manager() -> Program:
    log: list[Any] = []
    t = Training("MLP", "Adam", callbacks=[logged(log, 2.0), logged(log, 0.7)])
    t.gm.register_after_backward_callback(lambda: log.append("after"))
    t.more["log"] = log
    return t.program()


@program
def hooks_of_tensors() -> Program:
    log: list[Any] = []
    t = Training("MLP", "Adam")
    t.params[0].register_hook(logged(log, 2.0))
    t.params[1].register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
    t.more["log"] = log
    return t.program()


@program
def hooks_of_modules() -> Program:
    log: list[Any] = []
    t = Training("MLP", "Adam")
    t.model[0].register_forward_pre_hook(lambda module, args: log.append(len(args)))
    t.model[1].register_forward_hook(lambda module, args, out: log.append(out.tolist()) or out * 2)
    t.more["log"] = log
    made = t.program()
    made.may_warn = True
    return made


@program
def callback_that_uses_random_numbers() -> Program:
    noise = np.random.default_rng(3)
    t = Training("MLP", "SGD", callbacks=lambda p, g: g + 0.01 * noise.standard_normal(g.shape, "float32"))
    t.more["noise"] = noise
    return t.program()


# ---------------------------------------------------------------- training state that changes between calls

CHANGES: dict[str, Callable[[Training], Any]] = {
    "eval": lambda t: t.model.eval(),
    "eval of one layer": lambda t: t.model[1].eval(),
    "learning rate": lambda t: t.optimizer.param_groups[0].update(lr=0.01),
    "weight decay": lambda t: t.optimizer.param_groups[0].update(weight_decay=0.3),
    "betas": lambda t: t.optimizer.param_groups[0].update(betas=(0.5, 0.9)),
    "a parameter's values": lambda t: t.params[0].__imul__(0.5),
    "a parameter's values by copy": lambda t: t.params[0].copy_(wave(*t.params[0].shape, dtype="float32")),
    "a gradient left": lambda t: setattr(t.params[0], "grad", tensor(np.ones_like(t.params[0].numpy()))),
    "gradients left": lambda t: [setattr(p, "grad", p * 0.5) for p in t.params],
    "one detached": lambda t: t.gm.detach(t.gm.attached_tensors()[0]),
    "all attached again": lambda t: t.gm.attach(t.params),
    "a further Tensor attached": lambda t: t.gm.attach(tensor(np.ones(3))),
    "a callback attached": lambda t: t.gm.attach(t.params[0], callbacks=lambda p, g: g * 2),
    "an after-backward callback": lambda t: t.gm.register_after_backward_callback(lambda: t.params[0].__imul__(0.9)),
    "a hook": lambda t: t.params[0].register_hook(lambda g: g * 2),
    "a forward hook": lambda t: t.model[0].register_forward_hook(lambda module, args, out: out * 2),
    "a saved state of the optimiser": lambda t: t.optimizer.load_state_dict(t.first),
    "a saved state of the model": lambda t: t.model.load_state_dict(t.first_values),
    "another generator's state": lambda t: setattr(
        t.rng.bit_generator, "state", np.random.default_rng(9).bit_generator.state
    ),
    "numbers drawn": lambda t: t.rng.standard_normal(5),
    "a parameter replaced": lambda t: setattr(t.model[0], "weight", nn.Parameter(wave(5, 4, dtype="float32"))),
    "a parameter's bias removed": lambda t: setattr(t.model[0], "bias", None),
    "a layer replaced": lambda t: t.model.__setitem__(1, nn.ReLU()),
    "a layer appended": lambda t: t.model.append(nn.Tanh()),
    "a group of parameters": lambda t: t.optimizer.add_param_group({"params": [tensor(wave(3))], "lr": 1.0}),
    "a new optimiser": lambda t: setattr(t, "optimizer", optim.SGD(t.params, lr=0.05)),
    "a new manager": lambda t: setattr(t, "gm", GradManager().attach(t.params[1:])),
    "a buffer": lambda t: [b.__imul__(0) for b in t.model.buffers()],
}


def changing(change: Callable[[Training], Any], model: str) -> Program:
    t = Training(model, "Adam")
    t.first, t.first_values = t.optimizer.state_dict(), {k: v.copy() for k, v in t.model.state_dict().items()}
    calls = [call(*t.batch(k)) for k in range(9)]
    return t.program(calls=calls, between={4: lambda: change(t), 7: lambda: change(t)})


for _name, _change in CHANGES.items():
    for _model in ("MLP", "BatchNorm and dropout"):
        PROGRAMS[f"changed: {_name}, {_model}"] = lambda c=_change, m=_model: changing(c, m)


# ---------------------------------------------------------------- layers, each alone in a step

LAYERS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[int], Any]]] = {
    "LayerNorm": (lambda rng: nn.LayerNorm(4), lambda k: wave(2, 4, at=k)),
    "GroupNorm": (lambda rng: nn.GroupNorm(2, 4), lambda k: wave(2, 4, 3, at=k)),
    "RMSNorm": (lambda rng: nn.RMSNorm(4), lambda k: wave(2, 4, at=k)),
    "BatchNorm2d": (lambda rng: nn.BatchNorm2d(2), lambda k: wave(2, 2, 3, 3, at=k)),
    "BatchNorm, cumulative": (lambda rng: nn.BatchNorm1d(4, momentum=None), lambda k: wave(3, 4, at=k)),
    "Conv1d": (lambda rng: nn.Conv1d(1, 2, 3, padding=1, rng=rng), lambda k: wave(2, 1, 5, at=k)),
    "ConvTranspose2d": (lambda rng: nn.ConvTranspose2d(1, 2, 3, stride=2, rng=rng), lambda k: wave(2, 1, 3, 3, at=k)),
    "AvgPool2d": (lambda rng: nn.AvgPool2d(2), lambda k: wave(2, 1, 4, 4, at=k)),
    "AdaptiveAvgPool2d": (lambda rng: nn.AdaptiveAvgPool2d(2), lambda k: wave(2, 1, 5, 5, at=k)),
    "GRU both ways": (lambda rng: nn.GRU(3, 2, bidirectional=True, rng=rng), lambda k: wave(3, 2, 3, at=k)),
    "LSTMCell": (lambda rng: nn.LSTMCell(3, 2, rng=rng), lambda k: wave(2, 3, at=k)),
    "Dropout": (lambda rng: nn.Dropout(0.5, rng=rng), lambda k: wave(2, 3, at=k)),
    "Dropout of nothing": (lambda rng: nn.Dropout(0.0, rng=rng), lambda k: wave(2, 3, at=k)),
    "Softmax": (lambda rng: nn.Softmax(1), lambda k: wave(2, 3, at=k)),
    "GELU": (lambda rng: nn.GELU(), lambda k: wave(2, 3, at=k)),
    "Embedding": (lambda rng: nn.Embedding(5, 2, rng=rng), _codes),
}


def layer_alone(make: Callable[[Any], nn.Module], given: Callable[[int], Any], **options: Any) -> Program:
    rng = np.random.default_rng(0)
    layer = make(rng)
    gm = GradManager().attach(list(layer.parameters()))

    def step(x: Any) -> Any:
        x = tensor(x)
        if x.dtype.kind == "f":
            gm.attach(x)
        with gm:
            y = layer(x)
            while isinstance(y, tuple):
                y = y[0]
            gm.backward(gnp.sum(y * y))
        return y, x.grad

    inputs = [given(k) for k in range(CALLS)]
    inputs = [x.astype("float32") if x.dtype.kind == "f" else x for x in inputs]
    return Program(step, calls_with(*inputs), lambda: (layer, list(layer.parameters()), rng), **options)


for _name, (_layer, _given) in LAYERS.items():
    # The layer that drops nothing returns its argument, which is then still attached.
    PROGRAMS[f"layer: {_name}"] = lambda make=_layer, given=_given, name=_name: layer_alone(
        make, given, may_warn=name == "Dropout of nothing"
    )


# ---------------------------------------------------------------- callbacks that do more than look

MEDDLING: dict[str, Callable[[Training], Any]] = {
    "writes to its parameter": lambda t: t.params[-1].__imul__(0.9),
    "changes the learning rate": lambda t: t.optimizer.param_groups[0].update(
        lr=t.optimizer.param_groups[0]["lr"] * 0.9
    ),
    "draws random numbers": lambda t: t.rng.random(),
    "changes the mode": lambda t: t.model.train(not t.model.training),
    "writes to a buffer": lambda t: [b.__iadd__(1) for b in t.model.buffers()],
    "attaches a Tensor": lambda t: t.gm.attach(t.more.setdefault("new", tensor(wave(2)))),
    "registers a hook": lambda t: t.more.setdefault("hooks", t.params[0].register_hook(lambda g: g * 0.5)) and None,
    "trains another model": lambda t: t.more.setdefault("other", Training("MLP")).step(*t.batch(0)),
    "replaces a gradient": lambda t: setattr(t.params[0], "grad", t.params[0] * 2),
}


def meddled(action: Callable[[Training], Any], place: str) -> Program:
    t = Training("BatchNorm and dropout", "Adam")

    def act(*given: Any) -> Any:
        action(t)
        return given[-1] if place == "callback" else None

    if place == "callback":
        t.gm.attach(t.params[-1], callbacks=act)
    else:
        t.gm.register_after_backward_callback(act)
    t.batch = MODELS["MLP"][1]

    def state() -> Any:
        values = t.params, t.model.state_dict(), t.optimizer.state_dict(), t.optimizer.param_groups[0]["lr"], t.rng
        return *values, t.model.training, len(t.gm.attached_tensors())

    return Program(t.step, [call(*t.batch(k)) for k in range(CALLS)], state, may_warn=True)


for _name, _action in MEDDLING.items():
    for _place in ("callback", "after-backward callback"):
        PROGRAMS[f"{_place} that {_name}"] = lambda a=_action, place=_place: meddled(a, place)


# ---------------------------------------------------------------- what else a recording may have


def recorded(body: Callable[[GradManager, Tensor, Any], Any], **options: Any) -> Program:
    """A step that calls body(manager, attached Tensor, input) inside a recording."""
    w = tensor(wave(3))
    gm = GradManager(**options).attach({"w": w})

    def step(x: Any) -> Any:
        with gm:
            return body(gm, w, x)

    return Program(step, calls_with(*waves(3)), lambda: w, may_warn=True)


def _saved_by_hooks(gm: GradManager, w: Tensor, x: Any) -> Any:
    with graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        y = gnp.sum(gnp.exp(w * x) * w)
    gm.backward(y)
    return y


def _saved_as_text(gm: GradManager, w: Tensor, x: Any) -> Any:
    with graph.saved_tensors_hooks(lambda t: t.tolist(), tensor):
        y = gnp.sum(gnp.exp(w * x) * w)
    gm.backward(y)
    return y


def _edges(gm: GradManager, w: Tensor, x: Any) -> Any:
    h = w * x
    return gradmgr.grad(loss_of(h), [graph.get_gradient_edge(h), graph.get_gradient_edge(w)])


def _anomaly(gm: GradManager, w: Tensor, x: Any) -> Any:
    with gradmgr.detect_anomaly():
        y = loss_of(w * x)
        gm.backward(y)
    return y


def _region(gm: GradManager, w: Tensor, x: Any) -> Any:
    with record_function("region"):
        y = loss_of(w * x)
    gm.backward(y)
    return y


def _texts(gm: GradManager, w: Tensor, x: Any) -> Any:
    y = loss_of(w * x)
    name = y.grad_fn.name()
    gm.backward(y)
    return name, w.is_leaf, w.requires_grad, y.is_leaf


def _write_to_the_leaf(gm: GradManager, w: Tensor, x: Any) -> Any:
    y = loss_of(w * x)
    w *= 0.5
    w[0] = 0.25
    gm.backward(y + loss_of(w))
    return y


def _write_to_intermediates(gm: GradManager, w: Tensor, x: Any) -> Any:
    h = w * x
    part = h[1:].copy()
    part *= 2
    h[1:] += part
    h[0] = w[1] * x[2]
    gm.backward(gnp.sum(h * h))
    return h


def _several_seeds(gm: GradManager, w: Tensor, x: Any) -> Any:
    h = w * x
    gm.backward([h, gnp.sum(h), *gnp.split(h, 3)], [x, None, *np.ones((3, 1))])
    return h


def _attached_intermediate(gm: GradManager, w: Tensor, x: Any) -> Any:
    h = w * x
    gm.attach(h)
    gm.backward(loss_of(h))
    return h.grad


def _detached_on_the_way(gm: GradManager, w: Tensor, x: Any) -> Any:
    h = gnp.tanh(w * x)
    with gradmgr.no_grad():
        k = h * 2
        with gradmgr.enable_grad():
            m = h * 3
    gm.backward(gnp.sum(h * h.detach() + k + m))
    return k


def _unused(gm: GradManager, w: Tensor, x: Any) -> Any:
    gm.backward(gnp.sum(w * 0 + x) if x.ndim > 1 else gnp.sum(w))
    return loss_of(w * x)


RECORDED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "hooks on saved Tensors": (_saved_by_hooks, {}),
    "saved Tensors as text": (_saved_as_text, {}),
    "edges": (_edges, {}),
    "anomaly detection": (_anomaly, {}),
    "a region of the profiler": (_region, {}),
    "texts": (_texts, {}),
    "a write to the leaf": (_write_to_the_leaf, {}),
    "writes to intermediates": (_write_to_intermediates, {}),
    "several seeds": (_several_seeds, {}),
    "an attached intermediate": (_attached_intermediate, {}),
    "detached on the way": (_detached_on_the_way, {}),
    "a result that is not used": (_unused, {}),
    "a budget": (_write_to_intermediates, {"budget": 64}),
    "a stack": (_several_seeds, {"with_stack": True}),
}

for _name, (_body, _options) in RECORDED.items():
    PROGRAMS[f"recorded: {_name}"] = lambda body=_body, options=_options: recorded(body, **options)


@program
def parameter_that_some_calls_do_not_reach() -> Program:
    w, v = tensor(wave(3)), tensor(wave(3, at=1))
    gm, optimizer = GradManager().attach([w, v]), optim.Adam([w, v], lr=0.1)

    def step(x: Any, both: bool) -> Any:
        with gm:
            gm.backward(gnp.sum(gnp.tanh(w * x) * v) if both else gnp.sum(w * x))
        found = w.grad, v.grad
        optimizer.step()
        optimizer.zero_grad()
        return found

    return Program(step, [call(wave(3, at=k), k % 3 == 0) for k in range(10)], lambda: (w, v, optimizer.state_dict()))


@program
def complex_parameters() -> Program:
    w = tensor(wave(3) + 1j * wave(3, at=1))
    gm, optimizer = GradManager().attach(w), optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        with gm:
            loss = gnp.sum(abs(w * x - 1) ** 2)
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Program(step, calls_with(*waves(3)), lambda: (w, optimizer.state_dict()))
