"""Programs for gradmgr.compile: steps as users write them, and how to see whether two runs of one left the same.

A factory makes a program with fresh state, the same at every call: a step, the arguments of its successive calls, what
happens between the calls, and a function that gives all that the step may have changed. Nothing here knows how
compiling works: a run of the plain function says what is right.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, forward_ad, functional, nn, optim, tensor
from gradmgr.function import Function, custom_op
from gradmgr.nn import functional as F  # noqa: N812  # torch's name
from gradmgr.optim import lr_scheduler

CALLS = 7  # of each program: the first records, the second compares, and there are enough of the later ones


@dataclass
class Program:
    """A step with all that a test needs to run it.

    Attributes:
        step: the function that is compiled.
        calls: the arguments of successive calls, made by `call`.
        state: gives whatever the step may change, besides its arguments and results.
        between: what is done before the call of this number.
        may_warn: whether the step may stay eager with a CompileWarning; its results are right nevertheless.
        raises: the errors that some of the calls end with.
    """

    step: Callable[..., Any]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    state: Callable[[], Any] = lambda: None
    between: dict[int, Callable[[], Any]] = field(default_factory=dict)
    may_warn: bool = False
    raises: tuple[type[BaseException], ...] = ()


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Enter a program under the name of its factory."""
    PROGRAMS[make.__name__] = make
    return make


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def calls_with(*values: Any) -> list[Any]:
    """Calls with one argument each."""
    return [call(v) for v in values]


# ---------------------------------------------------------------- what a run leaves


def facts(value: Any, path: str = "", seen: dict[int, tuple[str, Any]] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield each part of a value with its path: types, dtypes, shapes, every bit, and which objects are the same."""
    seen = {} if seen is None else seen
    if isinstance(value, (Tensor, np.ndarray)) and id(value) in seen:
        yield path, ("the same object as", seen[id(value)][0])
        return
    seen[id(value)] = path, value  # which keeps it alive, and the id its own
    name = type(value).__name__
    if isinstance(value, Tensor):
        yield path, (name, *_bits(value._array))
        yield from facts(value.grad, f"{path}.grad", seen)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield path, (name, *_bits(np.asarray(value)))
    elif isinstance(value, np.random.Generator):
        yield from facts(value.bit_generator.state, f"{path}.state", seen)
    else:
        parts = _parts(value)
        yield path, (name, _text(value) if parts is None else len(parts))
        for key, part in parts or ():
            yield from facts(part, f"{path}[{key!r}]", seen)


def _bits(array: np.ndarray) -> tuple[Any, ...]:
    data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
    return str(array.dtype), array.shape, data


def _shown(fact: Any) -> Any:
    """A fact for people: numbers instead of bytes."""
    if fact and isinstance(fact[-1], bytes):
        *rest, dtype, shape, data = fact
        return (*rest, dtype, np.frombuffer(data, dtype).reshape(shape).tolist())
    return fact


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, nn.Module):
        return [*value.state_dict().items()]
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, SimpleNamespace):
        return [*vars(value).items()]
    return None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    return repr(value) if isinstance(value, (str, int, complex, bool, type(None), slice)) else ""


def first_difference(found: list[Any], expected: list[Any]) -> str:
    """Say where two runs differ first, or return an empty text."""
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        for path in {**a, **b}:
            if a.get(path) != b.get(path):
                return f"after call {k}, {path}: {_shown(a.get(path))} instead of {_shown(b.get(path))}"
    return ""


def history(made: Program, transform: Callable[[Any], Any] = lambda step: step) -> list[dict[str, Any]]:
    """Run a program; return the facts after every call, and at the end those of everything that a user has kept."""
    step, kept, found = transform(made.step), [], []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        if made.may_warn:
            warnings.simplefilter("ignore", getattr(errors, "CompileWarning", UserWarning))
        for k, (args, kwargs) in enumerate(made.calls):
            made.between.get(k, lambda: None)()
            try:
                result = step(*args, **kwargs)
            except made.raises as error:
                result = f"{type(error).__name__}: {error}"
            now = {"result": result, "args": args, "kwargs": kwargs, "state": made.state()}
            found.append(dict(facts(now)))
            kept.append((now, _gradients_in(now["state"])))
        found.append(dict(facts(kept)))
    return found


def _gradients_in(value: Any) -> list[Any]:
    """The .grad of each Tensor in the state, as a user may hold it."""
    if isinstance(value, Tensor):
        return [value.grad]
    return [g for _, part in _parts(value) or () for g in _gradients_in(part)]


# ---------------------------------------------------------------- data


def wave(*shape: int, at: float = 0.0, dtype: Any = "float64") -> np.ndarray:
    """An array whose numbers are known and all different."""
    return np.sin(np.arange(1, 1 + np.prod(shape, dtype=int)) * 0.7 + at).reshape(shape).astype(dtype)


def waves(*shape: int, count: int = CALLS, dtype: Any = "float64") -> list[np.ndarray]:
    """Different arrays for successive calls."""
    return [wave(*shape, at=k, dtype=dtype) for k in range(count)]


def tensors(*shape: int, count: int = CALLS, dtype: Any = "float64") -> list[Tensor]:
    return [tensor(a) for a in waves(*shape, count=count, dtype=dtype)]


def loss_of(x: Any) -> Any:
    return gnp.sum(gnp.tanh(x) * x)


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
        x = self.letters(codes) + self.places(np.arange(codes.shape[1]))
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
def accumulation_by_the_caller(t: Training) -> Program:
    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            loss = t.loss(x, y) / 3
            t.gm.backward(loss)
        return loss

    return t.program(step, between={3: t.update, 6: t.update})


@way
def accumulation_by_an_argument(t: Training) -> Program:
    def step(x: Any, y: Any, last: bool) -> Tensor:
        with t.gm:
            loss = t.loss(x, y) / 3
            t.gm.backward(loss)
        if last:
            t.update()
        return loss

    return t.program(step, calls=[call(*t.batch(k), k % 3 == 2) for k in range(9)])


@way
def accumulation_in_one_step(t: Training) -> Program:
    def step(batches: Any) -> list[Tensor]:
        losses = []
        for x, y in batches:
            with t.gm:
                losses.append(t.loss(x, y))
                t.gm.backward(losses[-1] / len(batches))
        t.update()
        return losses

    lengths = [3, 3, 3, 2, 3, 2, 2]
    return t.program(step, calls=[call([t.batch(3 * k + j) for j in range(n)]) for k, n in enumerate(lengths)])


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
def retained(t: Training) -> Program:
    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            loss = t.loss(x, y)
            t.gm.backward(loss, retain=True)
            t.gm.backward(loss, 0.5)
        t.update()
        return loss

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
def two_losses_in_turn(t: Training) -> Program:
    """Two recordings in one step, with an update after each."""
    return t.program(lambda x, y: (t.step(x, y), t.step(x, y)))


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


@program
def third_order() -> Program:
    x = tensor(wave(3))
    managers = [GradManager().attach(x) for _ in range(3)]

    def step(scale: Any) -> Any:
        with managers[0]:
            with managers[1]:
                with managers[2]:
                    managers[2].backward(gnp.sum(gnp.sin(x * scale)))
                g, x.grad = x.grad, None
                managers[1].backward(gnp.sum(g))
            g, x.grad = x.grad, None
            managers[0].backward(gnp.sum(g))
        g, x.grad = x.grad, None
        return g

    return Program(step, calls_with(*waves(3)), lambda: x)


@program
def gradient_penalty() -> Program:
    t = Training("MLP", "Adam")
    inner = GradManager()

    def step(x: Any, y: Any) -> Any:
        x = tensor(x)
        with t.gm:
            inner.attach(x)
            with inner:
                loss = t.loss(x, y)
                inner.backward(loss)
            penalty = gnp.mean((gnp.sqrt(gnp.sum(x.grad**2, axis=1) + 1e-6) - 1) ** 2)
            t.gm.backward(t.loss(x, y) + 10 * penalty)
        inner.detach(x)
        t.update()
        return loss, penalty

    return t.program(step)


@program
def gradient_penalty_with_create_graph() -> Program:
    t = Training("MLP", "Adam")

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            loss = t.loss(x, y)
            found = gradmgr.grad(loss, t.params, create_graph=True)
            t.gm.backward(loss + sum(gnp.sum(g * g) for g in found))
        t.update()
        return loss

    return t.program(step)


@program
def meta_learning() -> Program:
    weights = [tensor(wave(1, 3)), tensor(wave(3, 1, at=1))]
    outer, optimizer = GradManager().attach(weights), optim.Adam(weights, lr=0.1)

    def error(weights: Any, x: Any) -> Any:
        return gnp.sum((gnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

    def step(x: Any) -> Tensor:
        with outer:
            own = [w * 1 for w in weights]
            for _ in range(2):
                with GradManager().attach(own) as inner:
                    inner.backward(error(own, x))
                own = [w - 0.05 * w.grad for w in own]
            loss = error(own, x + 1)
            outer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Program(step, calls_with(*waves(4, 1)), lambda: (weights, optimizer.state_dict()))


@program
def two_models_in_turn() -> Program:
    """A generator and a critic, each with its manager and optimiser, and noise."""
    maker, critic, noise = Training("MLP", "Adam"), Training("MLP", "RMSprop"), np.random.default_rng(1)
    critic.model = nn.Linear(3, 1, rng=noise)
    critic.params = list(critic.model.parameters())
    critic.gm, critic.optimizer = GradManager().attach(critic.params), optim.RMSprop(critic.params, lr=0.1)

    def step(x: Any, y: Any) -> Any:
        with critic.gm:
            fake = maker.model(noise.standard_normal(x.shape, "float32"))
            worth = gnp.mean(critic.model(fake)) - gnp.mean(critic.model(x[:, :3]))
            critic.gm.backward(worth)
        critic.update()
        with maker.gm:
            made = -gnp.mean(critic.model(maker.model(noise.standard_normal(x.shape, "float32"))))
            maker.gm.backward(made)
        maker.update()
        return {"critic": worth, "maker": made}

    maker.more = {"critic": (critic.params, critic.optimizer.state_dict), "noise": noise}
    return maker.program(step)


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

    t.more["lr"] = schedule.get_last_lr
    made = t.program(step)
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


@program
def grad_scaler_that_is_off() -> Program:
    return scaled(waves(4, dtype="float32"), enabled=False)


# ---------------------------------------------------------------- steps that do more than train


@program
def average_of_weights_in_place() -> Program:
    t = Training("MLP", "Adam")
    average = [p.copy() for p in t.params]

    def step(x: Any, y: Any) -> Tensor:
        loss = t.step(x, y)
        for a, p in zip(average, t.params, strict=True):
            a *= 0.9
            a += 0.1 * p
        return loss

    t.more["average"] = average
    return t.program(step)


@program
def running_statistics_of_plain_arrays() -> Program:
    mean, count = np.zeros(3), np.zeros((), int)

    def step(x: np.ndarray) -> np.ndarray:
        count.__iadd__(1)
        mean.__iadd__((x.mean(0) - mean) / count)
        return x - mean

    return Program(step, calls_with(*waves(4, 3)), lambda: (mean, count))


@program
def history_in_a_ring() -> Program:
    """Writes to a place that moves: the position is an array."""
    ring, place = np.zeros((3, 2)), np.zeros(1, int)

    def step(x: np.ndarray) -> np.ndarray:
        ring[place] = x
        place[...] = (place + 1) % 3
        return ring.sum(0)

    return Program(step, calls_with(*waves(2)), lambda: (ring, place))


@program
def checkpointed() -> Program:
    t = Training("BatchNorm and dropout", "Adam")

    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            h = gradmgr.checkpoint(lambda a: gnp.tanh(t.model[0](a)), x)
            loss = F.cross_entropy(t.model[4](h), y)
            t.gm.backward(loss)
        t.update()
        return loss

    return t.program(step)


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

    return t.program(step)


@program
def per_example_gradients() -> Program:
    w, rng = tensor(wave(3)), np.random.default_rng(0)

    def loss(w: Any, x: Any) -> Any:
        return gnp.sum(gnp.tanh(w * x)) ** 2

    def step(x: Any) -> Any:
        found = gradmgr.vmap(functional.grad(loss), in_dims=(None, 0))(w, x)
        noisy = found.mean(axis=0) + 0.1 * rng.standard_normal(3)
        w.__isub__(noisy)
        return found

    return Program(step, calls_with(*tensors(4, 3)), lambda: (w, rng))


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


@program
def function_of_the_users() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            y = gnp.sum(Cube.apply(w * x))
            gm.backward(y)
        return y

    return Program(step, calls_with(*waves(3)), lambda: w)


@program
def function_that_reads_values() -> Program:
    """A Function may do in Python what it likes: it is called each time."""
    log: list[Any] = []

    class Logged(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.largest = float(x.numpy().max())
            log.append(("forward", x.tolist()))
            return x * ctx.largest

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            log.append(("backward", g.tolist()))
            return g * ctx.largest

    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            y = gnp.sum(Logged.apply(w * x))
            gm.backward(y)
        return y

    return Program(step, calls_with(*waves(3)), lambda: (w, log))


@program
def custom_operation() -> Program:
    log: list[Any] = []

    @custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
    def growth(x: Any, rate: float = 1.0) -> Any:
        log.append(x.tolist())
        return np.exp(rate * x)

    def step(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            y = gnp.sum(growth(x, rate=2.0))
            gm.backward(y)
        return y

    return Program(step, calls_with(*tensors(3)), lambda: log)


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
def hook_that_the_step_registers() -> Program:
    log: list[Any] = []
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            h = w * x
            h.register_hook(logged(log, 3.0))
            h.retain_grad()
            gm.backward(loss_of(h))
        return h.grad

    return Program(step, calls_with(*waves(3)), lambda: (w, log))


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
def hook_added_and_removed_between_calls() -> Program:
    log: list[Any] = []
    t = Training("MLP", "Adam")
    t.more["log"] = log
    handles: list[Any] = []

    def add() -> None:
        handles.append(t.params[0].register_hook(logged(log, 2.0)))

    return t.program(between={3: add, 5: lambda: handles.pop().remove()})


@program
def callback_that_uses_random_numbers() -> Program:
    noise = np.random.default_rng(3)
    t = Training("MLP", "SGD", callbacks=lambda p, g: g + 0.01 * noise.standard_normal(g.shape, "float32"))
    t.more["noise"] = noise
    return t.program()


@program
def callback_that_changes_between_calls() -> Program:
    rate = SimpleNamespace(factor=1.0)
    t = Training("MLP", "SGD", callbacks=lambda p, g: g * rate.factor)
    return t.program(between={3: lambda: setattr(rate, "factor", 0.25), 5: lambda: setattr(rate, "factor", 2.0)})


# ---------------------------------------------------------------- functions without a manager


def pure(function: Callable[..., Any], *values: Any, **options: Any) -> Callable[[], Program]:
    return lambda: Program(function, calls_with(*(values or tensors(3))), **options)


PURE: dict[str, Callable[..., Any]] = {
    "value_and_grad": functional.value_and_grad(loss_of),
    "value_and_grad with more": functional.value_and_grad(lambda x: (loss_of(x), {"twice": x * 2}), has_aux=True),
    "grad of grad": functional.grad(lambda x: gnp.sum(functional.grad(loss_of)(x) ** 2)),
    "hessian": lambda x: functional.hessian(loss_of, x),
    "hessian, vectorised": lambda x: functional.hessian(
        loss_of, x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "jacobian": lambda x: functional.jacobian(lambda a: gnp.tanh(a) * a[::-1], x),
    "jacobian, forward": lambda x: functional.jacobian(gnp.tanh, x, strategy="forward-mode", vectorize=True),
    "vjp": lambda x: functional.vjp(gnp.tanh, x, x * 2),
    "jvp": lambda x: functional.jvp(gnp.tanh, x, x * 2),
    "vhp": lambda x: functional.vhp(loss_of, x, x),
    "hvp": lambda x: functional.hvp(loss_of, x, x),
    "vmap": gradmgr.vmap(lambda a: gnp.exp(a) * a),
    "vmap of grad": gradmgr.vmap(functional.grad(lambda a: gnp.sin(a) * a)),
    "no derivative": lambda x: gnp.tanh(x) * x + 1,
    "plain NumPy functions": lambda x: np.concatenate([np.sin(x), np.cumsum(x)]) / np.linalg.norm(x),
    "sorted": lambda x: (gnp.sort(x), gnp.argsort(x), gnp.max(x)),
    "einsum": lambda x: gnp.einsum("i,j->ij", x, x),
    "linear algebra": lambda x: gnp.linalg.solve(gnp.eye(3) * 9 + gnp.outer(x, x), x),
    "made inside": lambda x: x * gnp.ones(3) + gnp.arange(3) + gnp.zeros_like(x),
    "in place on a copy": lambda x: _written(x.copy()),
    "forward mode": lambda x: _tangent(x),
    "several outputs": lambda x: [*gnp.split(x, 3), x.mean(), gnp.divmod(x, 0.3)],
    "masked": lambda x: x[x > 0],
    "non-zero": lambda x: gnp.nonzero(x > 0),
    "unique": lambda x: gnp.unique(gnp.round(x)),
}


def _written(x: Any) -> Any:
    x[1:] *= x[:-1]
    x[0] = 3.0
    x += 1
    return x


def _tangent(x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(loss_of(forward_ad.make_dual(x, x * 2))).tangent


for _name, _function in PURE.items():
    PROGRAMS[f"pure: {_name}"] = lambda f=_function: Program(f, calls_with(*tensors(3)))


# ---------------------------------------------------------------- what is given and what comes back


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Batch:
    x: Any
    scale: float = 1.0


def square_norm(x: Any) -> Any:
    return gnp.sum(x * x)


def _writes(x: Any) -> Any:
    x *= 2
    x[0] = 1.0
    return gnp.sum(x)


def _writes_first(x: Any, y: Any) -> Any:
    """What y is afterwards depends on whether it shares memory with x."""
    x *= 2
    return x + y


def _swapped(x: Any, y: Any) -> Any:
    a, b = x + 0, y + 0
    x[...], y[...] = b, a
    return gnp.sum(x * 2 - y)


def _shared() -> list[Any]:
    """Arguments apart, then the same, then overlapping, then apart again, all of one shape."""
    both = [wave(6, at=k) for k in range(8)]
    apart = [call(a[:4].copy(), a[:4] + 1) for a in both]
    same = [call(a[:4], a[:4]) for a in both[4:]]
    overlapping = [call(a[:4], a[1:5]) for a in both]
    x = both[7][:4].copy()
    return [*apart[:3], same[0], overlapping[1], apart[3], overlapping[2], call(x, x), apart[4], overlapping[3]]


def _of_container(value: Any) -> Any:
    """A function of any nesting, that tells the kinds of containers apart."""
    if isinstance(value, dict):
        return {key: _of_container(v) for key, v in value.items()}
    if isinstance(value, Pair):
        return Pair(_of_container(value.first), value.second)
    if isinstance(value, (list, tuple)):
        return type(value)(_of_container(v) for v in value)
    if isinstance(value, Batch):
        return Batch(value.x * value.scale, value.scale + 1)
    return value if value is None else value * 2


def _nestings() -> list[Any]:
    return [
        {"a": wave(2), "b": (wave(2), None)},
        {"a": wave(2, at=1), "b": (wave(2, at=2), None)},
        {"a": wave(2, at=3), "b": (wave(2, at=4), None)},
        {"b": (wave(2, at=4), None), "a": wave(2, at=3)},
        [wave(2), [wave(2)]],
        (wave(2), [wave(2)]),
        Pair(wave(2), tensor(wave(2))),
        Pair(tensor(wave(2)), wave(2)),
    ]


ARGUMENTS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "other values": (square_norm, lambda: calls_with(*waves(3))),
    "other shapes": (square_norm, lambda: calls_with(*[wave(2 + k % 3) for k in range(12)])),
    "other dtypes": (
        lambda x: x * 2 + x.sum(),
        lambda: calls_with(*[wave(3, at=k, dtype=d) for k in range(3) for d in ("float32", "float64", "int64")]),
    ),
    "other strides": (
        lambda x: (x @ x, gnp.sum(x, axis=0)),
        lambda: calls_with(*[a for k in range(3) for x in [wave(3, 3, at=k)] for a in (x, x.T, x[::-1])]),
    ),
    "Tensor and array": (
        square_norm,
        lambda: calls_with(*[tensor(wave(3, at=k)) if k % 2 else wave(3, at=k) for k in range(8)]),
    ),
    "numbers": (lambda x, k: x * k, lambda: [call(wave(2, at=n), n % 3) for n in range(9)]),
    "1, 1.0 and True": (
        lambda x, k: (x * k, x**k, k),
        lambda: [call(np.arange(3), k) for _ in range(3) for k in (1, 1.0, True)],
    ),
    "0.0 and -0.0": (
        lambda x, k: np.copysign(x, k),
        lambda: [call(wave(3, at=n), k) for n in range(3) for k in (0.0, -0.0)],
    ),
    "NaN": (lambda x, k: x * k, lambda: [call(wave(3, at=n), float("nan")) for n in range(5)]),
    "NumPy scalars": (
        lambda x, k: x * k,
        lambda: [call(wave(3, at=n, dtype="float32"), t(n + 1)) for n in range(4) for t in (np.float64, np.float32)],
    ),
    "None and Tensor": (
        lambda x, mask: x if mask is None else x * mask,
        lambda: [call(wave(3, at=k), None if k % 3 else wave(3) > 0) for k in range(9)],
    ),
    "texts": (
        lambda x, how: getattr(gnp, how)(x),
        lambda: [call(wave(3), h) for _ in range(3) for h in ("sum", "max")],
    ),
    "functions": (
        lambda x, how: how(x),
        lambda: [call(wave(3, at=k), h) for k in range(3) for h in (gnp.tanh, gnp.sin)],
    ),
    "slices": (
        lambda x, where: x[where],
        lambda: [call(wave(5, at=k), s) for k in range(4) for s in (slice(0, 3), slice(1, 4))],
    ),
    "dtypes": (
        lambda x, d: x.astype(d),
        lambda: [call(wave(3, at=k), d) for k in range(3) for d in ("float32", np.float64, np.dtype("int8"))],
    ),
    "keywords": (
        lambda x, y=2.0, *, z=None: x * y if z is None else x * y + z,
        lambda: [c for k in range(3) for c in (call(wave(2, at=k)), call(x=wave(2, at=k), y=3.0), call(wave(2), z=1))],
    ),
    "any number": (
        lambda *xs, **more: sum(xs) + sum(more.values()),
        lambda: [call(*waves(2, count=1 + k % 3), a=wave(2, at=k)) for k in range(9)],
    ),
    "names in another order": (
        lambda **more: list(more.values()),
        lambda: [c for k in range(3) for c in (call(a=wave(2, at=k), b=1), call(b=1, a=wave(2, at=k)))],
    ),
    "list of another length": (
        lambda xs: sum(gnp.sum(x) for x in xs),
        lambda: [call(waves(2, count=1 + k % 3)) for k in range(9)],
    ),
    "containers": (_of_container, lambda: calls_with(*_nestings(), *_nestings())),
    "data class": (_of_container, lambda: calls_with(*[Batch(wave(2, at=k), 1.0 + k % 2) for k in range(8)])),
    "iterator": (lambda xs: sum(gnp.sum(x) for x in xs), lambda: [call(iter(waves(2 + k, count=3))) for k in range(5)]),
    "generator": (
        lambda xs: gnp.stack([x * 2 for x in xs]),
        lambda: [call(wave(2, at=k + j) for j in range(3)) for k in range(5)],
    ),
    "range": (lambda ks: gnp.arange(3) + sum(ks), lambda: calls_with(*[range(k % 3) for k in range(9)])),
    "Python lists of numbers": (gnp.sum, lambda: calls_with(*[[1.0, 2.0 + k % 3] for k in range(9)])),
    "scalars with no axis": (lambda x: x * x, lambda: calls_with(*[np.array(float(k)) for k in range(7)])),
    "empty arrays": (lambda x: x.sum() + x, lambda: calls_with(*[np.zeros((0, 2)) for _ in range(4)])),
    "read-only": (lambda x: x * 2, lambda: calls_with(*[np.broadcast_to(wave(3, at=k), (2, 3)) for k in range(5)])),
    "not contiguous": (lambda x: x.reshape(-1) * 2, lambda: calls_with(*[wave(4, 4, at=k)[::2, 1:] for k in range(5)])),
    "byte order": (lambda x: x * 2, lambda: calls_with(*[wave(3, at=k).astype(">f8") for k in range(5)])),
    "complex": (lambda x: abs(x) * x.conj(), lambda: calls_with(*[wave(3, at=k) + 1j for k in range(5)])),
    "written in place": (_writes, lambda: calls_with(*waves(3), *tensors(3))),
    "shared memory": (_writes_first, _shared),
    "shared memory, both written": (_swapped, _shared),
    "one Tensor twice": (lambda x, y: x * y, lambda: [call(*[tensor(wave(3, at=k))] * 2) for k in range(5)]),
    "given back": (lambda x: x, lambda: calls_with(*tensors(3))),
    "given back in a container": (lambda x: {"x": x, "y": [x, x * 2]}, lambda: calls_with(*tensors(3))),
    "one result twice": (lambda x: (lambda y: (y, y, {"y": y}))(x * 2), lambda: calls_with(*tensors(3))),
    "a constant result": (lambda x: (3, "text", None, 2.5, True), lambda: calls_with(*tensors(3))),
    "no result": (lambda x: None, lambda: calls_with(*tensors(3))),
    "a shape as a result": (
        lambda x: (x.shape, x.size, x.dtype.name),
        lambda: calls_with(*[wave(2 + k % 2, 1 + k // 4) for k in range(8)]),
    ),
    "a named tuple as a result": (lambda x: Pair(x * 2, 1), lambda: calls_with(*tensors(3))),
    "a data class as a result": (lambda x: Batch(x * 2, 0.5), lambda: calls_with(*tensors(3))),
    "views of an argument": (lambda x: (x[1:], x.T, x.reshape(3, 1)), lambda: calls_with(*tensors(3))),
    "views of a result": (lambda x: (lambda y: (y, y[1:]))(x * 2), lambda: calls_with(*tensors(3))),
    "no arguments": (lambda: gnp.arange(3) * 2, lambda: [call()] * 5),
    "loop by a number": (
        lambda x, n: [x := x * 1.5 for _ in range(n)][-1],
        lambda: [call(wave(2), 1 + k % 3) for k in range(9)],
    ),
}

for _name, (_function, _given) in ARGUMENTS.items():
    PROGRAMS[f"given: {_name}"] = lambda f=_function, given=_given: Program(f, given())


@program
def argument_that_is_a_parameter() -> Program:
    w, v = nn.Parameter(wave(3)), nn.Parameter(wave(3, at=1))
    gm = GradManager().attach([w, v])

    def step(p: Any) -> Any:
        with gm:
            gm.backward(loss_of(p * w))
        p -= 0.1 * p.grad
        return gnp.sum(p)

    return Program(step, calls_with(w, w, w, v, v, w, tensor(wave(3)), w)[:6], lambda: (w, v))


@program
def argument_that_has_a_gradient() -> Program:
    xs = tensors(3)
    for k, x in enumerate(xs):
        if k % 2:
            x.grad = tensor(wave(3, at=9))

    def step(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            gm.backward(loss_of(x))
        return x.grad

    return Program(step, calls_with(*xs, *xs))


# ---------------------------------------------------------------- branches


def _by_sign(x: Any) -> Any:
    return x * 2 if gnp.sum(x) > 0 else x - 1


def _by_three_signs(x: Any) -> Any:
    return [v * 2 if v > 0 else v - 1 for v in x]


def _until_small(x: Any) -> Any:
    while gnp.sum(x * x) > 1:
        x = x * 0.6
    return x


def _by_python_functions(x: Any) -> Any:
    """Truth asked for by Python itself, not by an if."""
    return max(x[0], x[1]), min(x[1], x[2]), x[0] > 0 and x[1], not x[2] > 0, any(x > 0), all(x > 0), 0 in x


def _equal_to(x: Any) -> Any:
    return x * 2 if x[0] == x[1] or (x < 0.5).any() else x


BRANCHES: dict[str, Callable[[Any], Any]] = {
    "a sign": _by_sign,
    "several signs": _by_three_signs,
    "a loop": _until_small,
    "Python functions": _by_python_functions,
    "any and equal": _equal_to,
    "assert": lambda x: (lambda ok: x if ok else -x)(bool((x * x).sum() < 1.5)),
    "inside a derivative": functional.value_and_grad(lambda x: gnp.sum(_by_sign(x) * x)),
    "array_equal": lambda x: x if np.array_equal(x > 0, np.ones(3, bool)) else -x,
    "allclose": lambda x: x if gnp.allclose(x, 0.5, atol=1.0) else -x,
}

for _name, _function in BRANCHES.items():
    PROGRAMS[f"branch: {_name}"] = lambda f=_function: Program(f, calls_with(*tensors(3, count=8), *tensors(3)))
    PROGRAMS[f"branch: {_name}, array"] = lambda f=_function: Program(f, calls_with(*waves(3, count=8), *waves(3)))


@program
def branch_after_writes() -> Program:
    """What a replay finds out late: an array, a parameter, a generator and a log were changed before the branch."""
    w, rng, total, log = tensor(wave(3)), np.random.default_rng(0), np.zeros(3), []
    gm = GradManager().attach(w, callbacks=logged(log, 2.0))

    def step(x: Any) -> Any:
        total.__iadd__(x)
        noise = rng.standard_normal(3)
        with gm:
            loss = gnp.sum(w * x * noise)
            gm.backward(loss)
        w.__isub__(w.grad * 0.1)
        w.grad = None
        if loss > 0:
            w.__imul__(0.5)
            return loss * 2
        return loss

    return Program(step, calls_with(*waves(3, count=12)), lambda: (w, rng, total, log))


@program
def branch_on_random_numbers() -> Program:
    rng, drawn = np.random.default_rng(1), np.random.default_rng(2)

    def step(x: Any) -> Any:
        noise = rng.standard_normal(3)
        if noise.sum() > 0:
            return x * drawn.uniform(size=3)
        return x - noise

    return Program(step, calls_with(*tensors(3, count=12)), lambda: (rng, drawn))


@program
def early_stop_on_a_bad_loss() -> Program:
    """As users skip a batch whose loss is not finite: neither update nor gradient."""
    t = Training("MLP", "Adam")

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            loss = t.loss(x, y)
            if not np.isfinite(loss):
                return None
            t.gm.backward(loss)
        t.update()
        return loss

    made = t.program(step)
    made.calls[3][0][0][0, 0] = np.nan
    made.calls[5][0][0][1, 2] = np.inf
    return made


@program
def best_so_far() -> Program:
    """The step keeps a Tensor in Python state, and compares with it."""
    best = SimpleNamespace(loss=None, x=None)

    def step(x: Any) -> Any:
        loss = gnp.sum(x)
        if best.loss is None or loss < best.loss:
            best.loss, best.x = loss, x.copy()
        return loss

    return Program(step, calls_with(*tensors(3, count=10)), lambda: best, may_warn=True)


# ---------------------------------------------------------------- Python state that the step reads

RATE = 2.0


class Settings:
    """Numbers in all the places where a step may find them."""

    shared = 2.0

    def __init__(self) -> None:
        self.rate, self.table, self.rates = 2.0, {"rate": 2.0}, [2.0, 3.0]
        self.array, self.tensor, self.inner = np.full(3, 2.0), tensor(np.full(3, 2.0)), SimpleNamespace(rate=2.0)

    @property
    def doubled(self) -> float:
        return self.rate * 2


def _read_global(x: Any) -> Any:
    return x * RATE


def _set_global(value: float) -> None:
    global RATE
    RATE = value


def _inner_function(settings: Settings) -> Callable[[], float]:
    return lambda: settings.rate


READS: dict[str, Callable[[Settings, Any], Any]] = {
    "an attribute": lambda s, x: x * s.rate,
    "an attribute of an attribute": lambda s, x: x * s.inner.rate,
    "an item of a dict": lambda s, x: x * s.table["rate"],
    "get of a dict": lambda s, x: x * s.table.get("other", s.table["rate"]),
    "an item of a list": lambda s, x: x * s.rates[0],
    "the length of a list": lambda s, x: x * len(s.rates),
    "the sum of a list": lambda s, x: x * sum(s.rates),
    "a property": lambda s, x: x * s.doubled,
    "a class attribute": lambda s, x: x * s.shared,
    "a function's closure": lambda s, x: x * _inner_function(s)(),
    "getattr": lambda s, x: x * getattr(s, "ra" + "te"),
    "vars": lambda s, x: x * vars(s)["rate"],
    "a global": lambda s, x: x * RATE,
    "a global that another function reads": lambda s, x: _read_global(x),
    "an array": lambda s, x: x * s.array,
    "an array's item": lambda s, x: x * s.array[1],
    "a Tensor": lambda s, x: x * s.tensor,
    "a branch": lambda s, x: x * 2 if s.rate > 2 else x - 1,
    "a membership": lambda s, x: x * 2 if "extra" in s.table else x - 1,
    "a NumPy scalar in a Python expression": lambda s, x: x * (s.rate**2 + 1),
    "a comprehension": lambda s, x: [x * r for r in s.rates],
    "keys of a dict": lambda s, x: dict.fromkeys(s.table, x),
}


def _changes(s: Settings) -> dict[int, Callable[[], Any]]:
    """Change everything that can be read, after replays have begun: by assignment first, then in place."""

    def assign() -> None:
        s.rate, s.table, s.rates = 3.0, {"rate": 3.0}, [3.0, 4.0, 5.0]
        s.array, s.tensor, s.inner = np.full(3, 3.0), tensor(np.full(3, 3.0)), SimpleNamespace(rate=3.0)
        Settings.shared = 3.0
        _set_global(3.0)

    def write() -> None:
        s.table["rate"], s.rates[0], s.inner.rate = 4.0, 4.0, 4.0
        s.array[...] = s.tensor[...] = 4.0
        s.table["extra"] = 1
        s.rates.append(1.0)

    return {3: assign, 6: write}


def reading(read: Callable[[Settings, Any], Any]) -> Program:
    s = Settings()
    Settings.shared = 2.0
    _set_global(2.0)
    return Program(lambda x: read(s, x), calls_with(*tensors(3, count=9)), lambda: s.tensor, _changes(s))


for _name, _read in READS.items():
    PROGRAMS[f"reads {_name}"] = lambda read=_read: reading(read)


@program
def closure_variable_that_is_rebound() -> Program:
    rate, w = 2.0, tensor(wave(3))

    def change() -> None:
        nonlocal rate, w
        rate, w = 3.0, tensor(wave(3, at=4))

    return Program(lambda x: x * rate + w, calls_with(*tensors(3)), between={3: change, 5: change})


@program
def default_argument_that_is_written_to() -> Program:
    table = {"rate": 2.0}

    def step(x: Any, table: Any = table, ys: Any = (1.0, 2.0)) -> Any:
        return x * table["rate"] + len(ys)

    return Program(step, calls_with(*tensors(3)), between={4: lambda: table.update(rate=5.0)})


@program
def function_that_is_replaced() -> Program:
    tools = SimpleNamespace(act=gnp.tanh)
    change = lambda: setattr(tools, "act", gnp.sin)
    return Program(lambda x: tools.act(x), calls_with(*tensors(3)), between={4: change})


# Python state that the step itself changes. Users of torch.compile expect that it goes on as in eager.


@program
def counter_of_the_step() -> Program:
    s = SimpleNamespace(count=0)

    def step(x: Any) -> Any:
        s.count += 1
        return x * 1.0

    return Program(step, calls_with(*tensors(3)), lambda: s, may_warn=True)


@program
def counter_that_is_used() -> Program:
    s = SimpleNamespace(count=0)

    def step(x: Any) -> Any:
        s.count += 1
        return x / s.count

    return Program(step, calls_with(*tensors(3, count=12)), lambda: s, may_warn=True)


@program
def accumulation_by_a_counter() -> Program:
    t = Training("MLP", "Adam")
    seen = t.more["seen"] = SimpleNamespace(count=0)

    def step(x: Any, y: Any) -> Tensor:
        with t.gm:
            loss = t.loss(x, y) / 3
            t.gm.backward(loss)
        seen.count += 1
        if seen.count % 3 == 0:
            t.update()
        return loss

    made = t.program(step, calls=[call(*t.batch(k)) for k in range(12)])
    made.may_warn = True
    return made


@program
def list_of_losses() -> Program:
    """Every call appends its own loss."""
    t = Training("MLP", "Adam")
    losses = t.more["losses"] = []

    def step(x: Any, y: Any) -> None:
        losses.append(t.step(x, y))

    made = t.program(step)
    made.may_warn = True
    return made


@program
def state_that_is_rebound_by_the_step() -> Program:
    """A recurrent state: the step reads the Tensor that the last call has made."""
    s = SimpleNamespace(h=tensor(wave(3)))

    def step(x: Any) -> Any:
        s.h = gnp.tanh(s.h + x)
        return s.h * 2

    return Program(step, calls_with(*tensors(3)), lambda: s, may_warn=True)


@program
def cache_of_the_step() -> Program:
    cache: dict[Any, Any] = {}

    def step(x: Any) -> Any:
        if x.shape not in cache:
            cache[x.shape] = x * 2
        return cache[x.shape] + x

    return Program(step, calls_with(*[wave(2 + k % 2, at=k) for k in range(8)]), lambda: cache, may_warn=True)


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


@program
def train_and_eval_in_turn() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    turn = {k: (t.model.eval if k % 2 else t.model.train) for k in range(CALLS)}
    return t.program(between=turn)


@program
def memory_that_a_user_holds() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    held = t.more["held"] = []

    def hold() -> None:
        w = t.params[0]
        held.extend([w.numpy(), w[1:], w.T, w.detach(), t.model.state_dict(), t.optimizer.state_dict()])
        held.append([p.grad for p in t.params])

    return t.program(between={0: hold, 2: hold, 4: hold})


# ---------------------------------------------------------------- random numbers


@program
def generators_in_turn() -> Program:
    a, b = np.random.default_rng(0), np.random.default_rng(0)

    def step(x: Any) -> Any:
        y = x + a.standard_normal(3)
        y = y * b.uniform(size=3) + a.normal(1.0, 0.1, size=3)
        return gnp.where(b.random(3) < 0.5, y, 0)

    return Program(step, calls_with(*tensors(3)), lambda: (a, b), between={4: a.random})


@program
def generator_as_an_argument() -> Program:
    a, b = np.random.default_rng(0), np.random.default_rng(1)
    step = lambda x, rng: x + rng.standard_normal(3)
    return Program(step, [call(tensor(wave(3, at=k)), b if k % 3 == 2 else a) for k in range(9)], lambda: (a, b))


@program
def generator_of_the_step() -> Program:
    step = lambda x: x + np.random.default_rng(7).standard_normal(3)
    return Program(step, calls_with(*tensors(3)), may_warn=True)


@program
def generator_that_is_replaced() -> Program:
    s = SimpleNamespace(rng=np.random.default_rng(0))
    change = lambda: setattr(s, "rng", np.random.default_rng(5))
    return Program(lambda x: x * s.rng.uniform(size=3), calls_with(*tensors(3)), lambda: s.rng, between={4: change})


@program
def shuffled() -> Program:
    rng, order = np.random.default_rng(0), np.arange(5)

    def step(x: Any) -> Any:
        rng.shuffle(order)
        return x[order], x[rng.permutation(5)[:2]], x[rng.integers(0, 5, 3)], rng.choice(order, 2)

    return Program(step, calls_with(*tensors(5)), lambda: (rng, order), may_warn=True)


@program
def random_number_in_python() -> Program:
    """A number drawn as a Python float or int is no constant."""
    rng = np.random.default_rng(0)
    step = lambda x: x[rng.integers(3)] * rng.random()
    return Program(step, calls_with(*tensors(3)), lambda: rng, may_warn=True)


@program
def numpys_own_generator() -> Program:
    np.random.seed(0)
    step = lambda x: x + np.random.standard_normal(3) * np.random.uniform()
    return Program(step, calls_with(*tensors(3)), may_warn=True)


@program
def drawn_into_an_array() -> Program:
    rng, noise = np.random.default_rng(0), np.zeros(3)

    def step(x: Any) -> Any:
        rng.standard_normal(out=noise)
        return x + noise

    return Program(step, calls_with(*tensors(3)), lambda: (rng, noise), may_warn=True)


# ---------------------------------------------------------------- values that decide shapes, places and Python numbers


def _index_of(x: Any) -> Any:
    return ["a", "b", "c"][gnp.argmax(x).astype(int)]


BY_VALUE: dict[str, Callable[[Any], Any]] = {
    "size of a selection": lambda x: x * x[x > 0].size,
    "length of a selection": lambda x: x * len(x[x > 0]),
    "count_nonzero": lambda x: x * np.count_nonzero(x > 0),
    "size of nonzero": lambda x: x * gnp.nonzero(x > 0)[0].size,
    "size of unique": lambda x: x * gnp.unique(gnp.round(x * 2)).size,
    "zeros of a size": lambda x: np.zeros(x[x > 0].shape) + x.sum(),
    "bincount": lambda x: np.bincount((x > 0).astype(int)) * 2,
    "histogram": lambda x: np.histogram(x, bins=3),
    "repeat": lambda x: gnp.repeat(x, (x > 0).astype(int) + 1),
    "a slice": lambda x: x[: (x > 0).sum()],
    "an index of an array": lambda x: x[gnp.argmax(x)] * x[gnp.argsort(x)[0]],
    "an index of a list": _index_of,
    "a shift": lambda x: gnp.roll(x, (x > 0).sum()),
    "arange": lambda x: np.arange((x > 0).sum()),
    "linspace": lambda x: np.linspace(x[0], x[1], 3),
    "full": lambda x: np.full(2, x[0]),
    "split": lambda x: [part * 2 for part in gnp.split(x, [(x[:1] > 0).sum()])],
    "a mask of writes": lambda x: _masked_write(x),
    "where of one argument": lambda x: gnp.where(x > 0)[0] * 2,
    "a key of a dict": lambda x: {(x > 0).sum().item(): x * 2},
    "isclose": lambda x: [k for k, v in enumerate(gnp.isclose(x, 0, atol=0.7)) if v],
    "max of Python": lambda x: max(enumerate(x), key=lambda pair: pair[1])[0] * x,
    "sorted of Python": lambda x: sorted(x, key=lambda v: -v),
    "a list in a Tensor": lambda x: tensor([x[2], x[0]]) * 2,
}


def _masked_write(x: Any) -> Any:
    y = x.copy()
    y[y > 0] *= 3
    y[y < -0.5] = 0
    return y


for _name, _function in BY_VALUE.items():
    for _kind, _made in (("Tensor", tensors), ("array", waves)):
        PROGRAMS[f"by value: {_name}, {_kind}"] = lambda f=_function, made=_made: Program(
            f, calls_with(*made(3, count=10)), may_warn=True, raises=(errors.GradmgrError, TypeError)
        )


@program
def labels_that_decide_a_shape() -> Program:
    step = lambda y: F.one_hot(y) * 2
    return Program(step, calls_with(*[np.array([0, 1, 1 + k % 3]) for k in range(10)]), may_warn=True)


@program
def error_that_the_step_catches() -> Program:
    """The values decide whether NumPy raises."""

    def step(a: Any) -> Any:
        try:
            return gnp.linalg.inv(a)
        except np.linalg.LinAlgError:
            return a - 1

    matrices = [np.zeros((2, 2)) if k in (4, 7) else np.eye(2) * (k + 1) for k in range(10)]
    return Program(step, calls_with(*matrices), may_warn=True)


@program
def error_that_the_step_caught_at_first() -> Program:
    def step(a: Any) -> Any:
        try:
            return gnp.linalg.inv(a)
        except np.linalg.LinAlgError:
            return a - 1

    matrices = [np.eye(2) * k if k > 3 else np.zeros((2, 2)) for k in range(8)]
    return Program(step, calls_with(*matrices), may_warn=True)


# ---------------------------------------------------------------- which objects are the same


@program
def identity_of_arguments() -> Program:
    x, y = tensor(wave(3)), tensor(wave(3, at=1))
    step = lambda a, b: a * 2 if a is b else a + b
    return Program(step, [call(x, y if k % 3 else x) for k in range(9)])


@program
def identity_of_an_argument_and_the_state() -> Program:
    w = tensor(wave(3))
    step = lambda x: x * 2 if x is w else x + w
    return Program(step, calls_with(*[w if k % 3 == 2 else tensor(wave(3)) for k in range(9)]), lambda: w)


@program
def argument_that_shares_memory_with_the_state() -> Program:
    """The same shapes, dtypes and strides: once apart, once a part of what the step writes to."""
    total = np.arange(6.0)

    def step(x: Any) -> Any:
        total[:3] += 1
        total[1:4] *= x
        return total + x.sum()

    parts = [wave(3, at=k) if k % 3 else total[k // 3 : k // 3 + 3] for k in range(10)]
    return Program(step, calls_with(*parts), lambda: total)


@program
def argument_that_is_a_running_mean() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    mean = t.model[1].running_mean

    def step(x: Any, y: Any, seen: Any) -> Any:
        return t.step(x, y), gnp.sum(seen * 2)

    given = [call(*t.batch(k), mean if k % 2 else tensor(wave(5, dtype="float32"))) for k in range(8)]
    return t.program(step, calls=given)


@program
def argument_that_is_a_gradient() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)
    w.grad = tensor(wave(3, at=5))
    g = w.grad

    def step(x: Any, g: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(w * x))
        return w.grad + g

    return Program(step, [call(wave(3, at=k), g) for k in range(6)], lambda: (w, g))


@program
def one_gradient_of_two_parameters() -> Program:
    w, v = tensor(wave(3)), tensor(wave(3, at=1))
    gm = GradManager().attach([w, v])

    def share() -> None:
        w.grad = v.grad = tensor(wave(3, at=2))

    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(w * x + gnp.tanh(v)))
        return w.grad * v.grad

    return Program(step, calls_with(*waves(3, count=9)), lambda: (w, v), {3: share, 6: share})


class Tied(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 4, rng=rng), nn.Linear(4, 4, rng=rng)
        self.out.weight = self.into.weight

    def forward(self, x: Any) -> Any:
        return self.out(gnp.tanh(self.into(x)))


def _tied() -> Training:
    t = Training("MLP", "Adam")
    t.gm.detach(t.params)
    t.model = Tied(t.rng)
    t.params = list(t.model.parameters())
    t.gm.attach(t.params)
    t.optimizer = optim.Adam(t.params, lr=0.1)
    return t


@program
def tied_weights() -> Program:
    return _tied().program()


@program
def tied_weights_that_are_untied() -> Program:
    """The copy has the same shape and values, and is not trained."""
    t = _tied()
    return t.program(between={4: lambda: setattr(t.model.out, "weight", nn.Parameter(t.model.into.weight.copy()))})


@program
def two_parameters_that_change_places() -> Program:
    t = _tied()
    t.model.out.weight = nn.Parameter(wave(4, 4, dtype="float32"))
    t.gm.attach(t.model.out.weight)

    def swap() -> None:
        a, b = t.model.into, t.model.out
        a.weight, b.weight = b.weight, a.weight

    made = t.program(between={3: swap, 6: swap})
    made.state = lambda: [t.params, list(t.model.parameters()), t.optimizer.state_dict()]
    return made


@program
def two_buffers_that_the_step_swaps() -> Program:
    s = SimpleNamespace(now=np.zeros(3), then=np.ones(3))

    def step(x: Any) -> Any:
        s.then[...] = s.now * 0.5 + x
        s.now, s.then = s.then, s.now
        return s.now - s.then

    return Program(step, calls_with(*waves(3, count=10)), lambda: s, may_warn=True)


@program
def object_whose_attributes_change() -> Program:
    s = SimpleNamespace(rate=2.0, w=tensor(wave(3)), more={"k": 1})
    change = lambda: (setattr(s, "rate", 3.0), setattr(s, "w", tensor(wave(3, at=3))), s.more.update(k=5))
    step = lambda s, x: s.w * s.rate * x + s.more["k"]
    return Program(step, [call(s, wave(3, at=k)) for k in range(CALLS)], lambda: s.w, {4: change})


@program
def objects_of_one_class() -> Program:
    objects = [SimpleNamespace(rate=float(k), w=tensor(wave(3, at=k))) for k in range(3)]
    step = lambda s, x: s.w * s.rate * x
    return Program(step, [call(objects[k % 3], wave(3, at=k)) for k in range(12)])


# ---------------------------------------------------------------- data


@program
def last_batch_is_smaller() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    batches = [t.batch(k) for k in range(12)]
    return t.program(
        calls=[call(x[: 6 - 2 * (k % 3 == 2)], y[: 6 - 2 * (k % 3 == 2)]) for k, (x, y) in enumerate(batches)]
    )


@program
def batches_by_number() -> Program:
    """More numbers than variants are kept."""
    t, data = Training("MLP", "Adam"), wave(40, 4, dtype="float32")
    step = lambda k: t.step(data[4 * k : 4 * k + 4], np.arange(4) % 3)
    return t.program(step, calls=calls_with(*range(10), *range(4)), may_warn=True)


@program
def batches_by_index_arrays() -> Program:
    t, data, labels = Training("MLP", "Adam"), wave(40, 4, dtype="float32"), np.arange(40) % 3
    step = lambda where: t.step(data[where], labels[where])
    rng = np.random.default_rng(4)
    return t.program(step, calls=calls_with(*[rng.permutation(40)[:5] for _ in range(CALLS)]))


@program
def batches_of_an_iterator() -> Program:
    """The step takes its next batch itself."""
    t = Training("MLP", "Adam")
    batches = iter([t.batch(k) for k in range(20)])
    return t.program(lambda: t.step(*next(batches)), calls=[call()] * 8, may_warn=True)


@program
def batches_by_a_counter_of_the_step() -> Program:
    s = SimpleNamespace(k=0, data=waves(3, count=20))

    def step() -> Any:
        x = s.data[s.k]
        s.k += 1
        return x * 2

    return Program(step, [call()] * 12, lambda: s.k, may_warn=True)


@program
def buffer_that_the_caller_fills() -> Program:
    t, (x, y) = Training("MLP", "Adam"), Training("MLP").batch(0)

    def fill() -> None:
        x.__imul__(0.7)
        y[...] = (y + 1) % 3

    return t.program(calls=[call(x, y)] * CALLS, between=t.every_time(fill))


DTYPES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "booleans": (lambda x: ~x | (x & True), lambda: calls_with(*[wave(4, at=k) > 0 for k in range(6)])),
    "small integers": (
        lambda x: x * 100 + x,
        lambda: calls_with(*[np.arange(k, k + 4, dtype="int8") for k in range(6)]),
    ),
    "unsigned": (lambda x: x - 3, lambda: calls_with(*[np.arange(k, k + 4, dtype="uint8") for k in range(6)])),
    "half": (
        lambda x: x * x + x.sum(),
        lambda: calls_with(*[tensor(wave(4, at=k, dtype="float16")) for k in range(6)]),
    ),
    "dates": (
        lambda x: x - x[0] + np.timedelta64(1, "D"),
        lambda: calls_with(*[np.array(["2020-01-01", "2020-01-03"], "M8[D]") + k * k for k in range(6)]),
    ),
    "objects": (lambda x: x + x, lambda: calls_with(*[np.array([k, 2.5, "a" * k], object) for k in range(6)])),
    "texts": (lambda x: x == "b1", lambda: calls_with(*[np.array([f"a{k}", f"b{k % 2}"]) for k in range(6)])),
    "records": (
        lambda x: x["a"] * x["b"],
        lambda: calls_with(
            *[np.array([(k, 2.0), (1, k)], "i4,f8").astype([("a", "i4"), ("b", "f8")]) for k in range(6)]
        ),
    ),
    "long numbers": (
        lambda x, k: x * k,
        lambda: [call(wave(2, at=n), k) for n in range(3) for k in (2**62, 1e300, 2j)],
    ),
    "negative zero": (lambda x: (x * 0, -x, 1 / x), lambda: calls_with(*[wave(3, at=k) * 0 for k in range(6)])),
    "subnormal": (lambda x: x * 1e-310 * 1e5, lambda: calls_with(*waves(3))),
    "infinite": (lambda x: x / 0 - np.inf, lambda: calls_with(*waves(3))),
}

for _name, (_function, _given) in DTYPES.items():
    PROGRAMS[f"dtype: {_name}"] = lambda f=_function, given=_given: Program(f, given(), may_warn=True)


# ---------------------------------------------------------------- more of what steps write to Python state


@program
def rate_that_the_step_changes() -> Program:
    t = Training("MLP", "SGD")

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        t.optimizer.param_groups[0]["lr"] *= 0.9
        return loss

    made = t.program(step, calls=[call(*t.batch(k)) for k in range(12)])
    made.may_warn = True
    return made


@program
def plateau_inside() -> Program:
    t = Training("MLP", "SGD")
    schedule = lr_scheduler.ReduceLROnPlateau(t.optimizer, patience=0)

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        schedule.step(float(loss))
        return loss

    made = t.program(step, calls=[call(*t.batch(k)) for k in range(12)])
    made.may_warn = True
    return made


@program
def closure_variable_that_the_step_rebinds() -> Program:
    n, h = 0, tensor(wave(3))

    def step(x: Any) -> Any:
        nonlocal n, h
        n += 1
        h = gnp.tanh(h * x + n)
        return h

    return Program(step, calls_with(*waves(3, count=12)), lambda: (n, h), may_warn=True)


@program
def global_that_the_step_rebinds() -> Program:
    _set_global(1.0)

    def step(x: Any) -> Any:
        _set_global(RATE + 1)
        return x * RATE

    return Program(step, calls_with(*waves(3, count=12)), lambda: RATE, may_warn=True)


@program
def gradient_that_the_step_looks_for() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        if w.grad is None:
            w.grad = gnp.ones(3)
        with gm:
            gm.backward(gnp.sum(w * x))
        return w.grad * 2

    drop = lambda: setattr(w, "grad", None)
    return Program(step, calls_with(*waves(3, count=9)), lambda: w, {3: drop, 4: drop, 7: drop})


@program
def attachments_that_the_step_changes() -> Program:
    w, v, gm = tensor(wave(3)), tensor(wave(3, at=1)), GradManager()
    gm.attach(w)

    def step(x: Any) -> Any:
        gm.attach(v)
        with gm:
            gm.backward(gnp.sum(w * v * x))
            count = len(gm.attached_tensors())
        gm.detach(v)
        return count, len(gm.attached_tensors())

    return Program(step, calls_with(*waves(3)), lambda: (w, v, len(gm.attached_tensors())))


@program
def training_mode_that_the_step_changes_and_leaves() -> Program:
    t = Training("BatchNorm and dropout", "Adam")

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        t.model.train(not t.model.training)
        return loss

    return t.program(step, calls=[call(*t.batch(k)) for k in range(10)], may_warn=True)


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


def layer_alone(make: Callable[[Any], nn.Module], given: Callable[[int], Any]) -> Program:
    rng = np.random.default_rng(0)
    layer = make(rng)
    gm = GradManager().attach(list(layer.parameters()))

    def step(x: Any) -> Any:
        x = tensor(x) if x.dtype.kind == "f" else x
        if isinstance(x, Tensor):
            gm.attach(x)
        with gm:
            y = layer(x)
            while isinstance(y, tuple):
                y = y[0]
            gm.backward(gnp.sum(y * y))
        return y, getattr(x, "grad", None)

    inputs = [given(k) for k in range(CALLS)]
    inputs = [x.astype("float32") if x.dtype.kind == "f" else x for x in inputs]
    return Program(step, calls_with(*inputs), lambda: (layer, list(layer.parameters()), rng))


for _name, (_layer, _given) in LAYERS.items():
    PROGRAMS[f"layer: {_name}"] = lambda make=_layer, given=_given: layer_alone(make, given)
