"""Programs as people write them, for the contract of `compile`: a table of factories, each with fresh state."""

from __future__ import annotations

import contextlib
import copy
import heapq
import json
import time
import types
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from contract_harness import Program

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, distributions, functional, nn, optim, tensor
from gradmgr.function import Function, custom_op
from gradmgr.nn import functional as F  # noqa: N812  # torch's name
from gradmgr.optim import lr_scheduler

PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Enter a program under the name of its factory."""
    PROGRAMS[make.__name__] = make
    return make


def wave(*shape: int, at: float = 0.0, dtype: Any = "float64") -> np.ndarray:
    """Return an array whose numbers are known and all different."""
    return np.sin(np.arange(1, 1 + np.prod(shape, dtype=int)) * 0.7 + at).reshape(shape).astype(dtype)


def arrays(*shapes: Any) -> Callable[[int], tuple[Any, ...]]:
    """Return what makes the arrays that are the arguments of a call."""
    return lambda k: tuple([wave(*shape, at=k + j / 7) for j, shape in enumerate(shapes)])


def tensors(*shapes: Any) -> Callable[[int], tuple[Any, ...]]:
    return lambda k: tuple([tensor(a) for a in arrays(*shapes)(k)])


def batch(k: int, size: int = 6) -> tuple[Any, Any]:
    """Return inputs and labels, for the models below."""
    return wave(size, 4, at=k, dtype="float32"), (np.arange(size) * 7 + k) % 3


def mlp(rng: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, rng=rng), nn.Tanh(), nn.Linear(5, 3, rng=rng))


def noisy(rng: Any) -> nn.Module:
    layers = nn.Linear(4, 5, rng=rng), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5, rng=rng), nn.Linear(5, 3, rng=rng)
    return nn.Sequential(*layers)


def sgd(params: Any) -> optim.Optimizer:
    return optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params: Any) -> optim.Optimizer:
    return optim.Adam(params, lr=0.05)


class Task:
    """A model, its manager and its optimiser."""

    def __init__(
        self, optimizer: Callable[[Any], Any] = adam, model: Callable[[Any], Any] = mlp, **attach: Any
    ) -> None:
        self.rng = np.random.default_rng(5)
        self.model = model(self.rng)
        self.params = list(self.model.parameters())
        self.gm = GradManager().attach(self.params, **attach)
        self.optimizer = optimizer(self.params)

    def backward(self, x: Any, y: Any, scale: float = 1.0) -> Tensor:
        with self.gm:
            loss = F.cross_entropy(self.model(x), y)
            self.gm.backward(loss * scale)
        return loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, x: Any, y: Any) -> Tensor:
        loss = self.backward(x, y)
        self.update()
        return loss


# ---------------------------------------------------------------- training loops


@program
def gradient_descent_by_hand() -> Program:
    w, b = tensor(wave(3, 1)), tensor([0.0])
    gm = GradManager().attach([w, b])

    def step(x: Any, y: Any) -> Any:
        with gm:
            loss = np.mean((np.tanh(x @ w + b) - y) ** 2)
            gm.backward(loss)
        for p in (w, b):
            p -= 0.1 * p.grad
            p.grad = None
        return loss

    return Program(step, arrays((5, 3), (5, 1)))


@program
def schedule_outside() -> Program:
    t = Task(adam)
    schedule = lr_scheduler.StepLR(t.optimizer, 2, gamma=0.5)
    return Program(t.step, batch, between=lambda k: k and schedule.step())


@program
def schedule_inside() -> Program:
    t = Task(sgd)
    schedule = lr_scheduler.CosineAnnealingLR(t.optimizer, 10)

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        schedule.step()
        return loss

    return Program(step, batch)


@program
def warm_up_by_hand() -> Program:
    t = Task(adam)

    def warm_up(k: int) -> None:
        for group in t.optimizer.param_groups:
            group["lr"] = 0.01 * min(1 + k, 5)

    return Program(t.step, batch, between=warm_up)


@program
def average_of_weights() -> Program:
    t = Task(adam)
    average = [p.copy() for p in t.params]

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        for a, p in zip(average, t.params, strict=True):
            a[...] = 0.9 * a + 0.1 * p
        return loss

    return Program(step, batch)


@program
def accumulation_by_an_argument() -> Program:
    t = Task(adam)

    def step(x: Any, y: Any, is_last: bool) -> Any:
        loss = t.backward(x, y, 1 / 3)
        if is_last:
            t.update()
        return loss

    return Program(step, lambda k: (*batch(k), k % 3 == 2), replays=4)


@program
def accumulation_by_the_caller() -> Program:
    t = Task(adam)
    return Program(t.backward, batch, between=lambda k: k % 3 == 2 and t.update(), replays=2)


@program
def accumulation_over_a_list() -> Program:
    t = Task(sgd)

    def step(batches: Any) -> Any:
        losses = [t.backward(x, y, 1 / len(batches)) for x, y in batches]
        t.update()
        return {"losses": losses, "mean": sum(losses) / len(losses)}

    return Program(step, lambda k: ([batch(3 * k + j) for j in range(3)],))


@program
def early_stopping() -> Program:
    t = Task(adam)
    seen: dict[str, Any] = {"best": np.inf, "since": 0, "state": None}

    def after(loss: Any) -> Any:
        value = loss.item()
        if value < seen["best"]:
            seen.update(best=value, since=0, state=copy.deepcopy(t.model.state_dict()))
        else:
            seen["since"] += 1
        if seen["since"] == 2:
            t.model.load_state_dict(seen["state"])
        return seen

    return Program(t.step, batch, after=after, replays=3)


@program
def freezing_and_unfreezing() -> Program:
    t = Task(sgd)

    def freeze(k: int) -> None:
        if k == 4:
            t.gm.detach(t.params[:2])
        elif k == 7:
            t.gm.attach(t.params[:2])

    return Program(t.step, batch, between=freeze, replays=2)


@program
def curriculum_of_lengths() -> Program:
    t = Task(adam)
    return Program(t.step, lambda k: batch(k, 4 if k < 5 else 8), replays=3)


@program
def resumed_state() -> Program:
    t = Task(adam)
    saved: list[Any] = []

    def between(k: int) -> None:
        if k == 3:
            saved.extend(copy.deepcopy([t.model.state_dict(), t.optimizer.state_dict()]))
        elif k == 6:
            t.model.load_state_dict(saved[0])
            t.optimizer.load_state_dict(saved[1])

    return Program(t.step, batch, between=between, replays=3)


@program
def loss_is_logged_outside() -> Program:
    t, log = Task(adam), []

    def after(loss: Any) -> Any:
        log.append(loss.item())
        return log

    return Program(t.step, batch, after=after)


@program
def loss_is_logged_inside() -> Program:
    t, log = Task(adam), []

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        log.append(loss)  # refused
        return loss

    return Program(step, batch, replays=0, says="log")


@program
def total_as_a_tensor() -> Program:
    t, total, right = Task(adam), tensor(0.0), tensor(0, dtype="int64")

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        total.__iadd__(loss)
        right.__iadd__(gnp.sum(gnp.argmax(t.model(x), axis=1) == y))
        return total / 2, right

    return Program(step, batch)


class Trainer:
    """A trainer that counts its steps in a number, and a loop that reads the clock."""

    def __init__(self, model: Callable[[Any], Any] = noisy) -> None:
        self.task = Task(adam, model)
        self.model = self.task.model
        self.steps, self.started, self.last = 0, 0.0, None

    def training_step(self, x: Any, y: Any) -> Any:
        self.model.train()
        return self.task.step(x, y)

    def counted_step(self, x: Any, y: Any) -> Any:
        self.steps += 1  # refused
        return self.task.step(x, y)

    def step_that_keeps_its_loss(self, x: Any, y: Any) -> Any:
        self.last = self.task.step(x, y)  # refused
        return self.last * 2

    def train(self, batches: Any) -> float:
        """Train, and return the time; `training_step` never calls this."""
        self.started = time.perf_counter()
        for x, y in batches:
            self.training_step(x, y)
        return time.perf_counter() - self.started


@program
def trainer_that_calls_train_of_its_model() -> Program:
    trainer = Trainer()
    return Program(trainer.training_step, batch)


@program
def trainer_whose_model_is_evaluated_between() -> Program:
    trainer = Trainer()
    return Program(trainer.training_step, batch, between=lambda k: k in (3, 7) and trainer.model.eval(), replays=3)


@program
def trainer_that_counts() -> Program:
    return Program(Trainer(mlp).counted_step, batch, replays=0, says="steps")


@program
def trainer_that_keeps_its_loss() -> Program:
    return Program(Trainer(mlp).step_that_keeps_its_loss, batch, replays=0, says="last")


@program
def trainer_as_an_argument() -> Program:
    trainer = Trainer(mlp)
    return Program(Trainer.training_step, lambda k: (trainer, *batch(k)))


@dataclass
class Config:
    rate: float = 0.1
    clip: float | None = 1.0
    sizes: tuple[int, ...] = (4, 5)
    names: list[str] = field(default_factory=lambda: ["w"])


@program
def dataclass_of_settings() -> Program:
    w, config = tensor(wave(4)), Config()
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(gnp.tanh(w * x) ** 2) * len(config.names))
        g, w.grad = w.grad, None
        if config.clip is not None:
            g = gnp.clip(g, -config.clip, config.clip)
        w[...] -= config.rate * g
        return g

    def between(k: int) -> None:
        if k == 5:
            config.rate, config.clip = 0.01, 0.25

    return Program(step, arrays((4,)), between=between, replays=3)


@program
def global_rate_that_changes() -> Program:
    global RATE  # what the program is about
    RATE = 0.1
    t = Task(sgd)

    def step(x: Any, y: Any) -> Any:
        loss = t.backward(x, y)
        for p in t.params:
            p -= RATE * p.grad
            p.grad = None
        return loss

    return Program(step, batch, between=lambda k: k == 5 and globals().update(RATE=0.01), replays=3)


@program
def mode_as_a_text() -> Program:
    t = Task(adam, noisy)

    def step(x: Any, y: Any, *, mode: str = "train") -> Any:
        match mode:
            case "train":
                return t.step(x, y)
            case _:
                with gradmgr.no_grad():
                    return {"loss": F.cross_entropy(t.model(x), y), "mode": mode}

    return Program(
        lambda x, y, mode: step(x, y, mode=mode), lambda k: (*batch(k), "eval" if k % 4 == 3 else "train"), replays=3
    )


@program
def train_and_eval_between() -> Program:
    t = Task(adam, noisy)
    return Program(
        lambda x: t.model(x) * 2, lambda k: batch(k)[:1], between=lambda k: t.model.train(k % 3 != 2), replays=4
    )


@program
def grad_scaler_and_clipping() -> Program:
    t, scaler = Task(adam), optim.GradScaler(init_scale=8.0, growth_interval=3)

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            loss = F.cross_entropy(t.model(x), y)
            t.gm.backward(scaler.scale(loss))
        scaler.unscale_(t.optimizer)
        norm = optim.clip_grad_norm_(t.params, 0.5)
        scaler.step(t.optimizer)
        scaler.update()
        t.optimizer.zero_grad()
        return loss, norm

    def args(k: int) -> Any:
        x, y = batch(k)
        return x * np.float32(np.inf if k == 4 else 1), y  # in that call the step is skipped

    return Program(step, args, replays=3)


@program
def quasi_newton_with_a_closure() -> Program:
    w = tensor(wave(3))
    gm, optimizer = GradManager().attach(w), optim.LBFGS([w], lr=0.5, max_iter=3)

    def step(target: Any) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            with gm:
                loss = gnp.sum((gnp.exp(w) - target) ** 2)
                gm.backward(loss)
            return loss

        return optimizer.step(closure)

    return Program(step, lambda k: (np.abs(wave(3)) + 0.5,), replays=None)


@program
def batches_as_dicts() -> Program:
    t = Task(adam)

    def step(batch: dict[str, Any]) -> Any:
        loss = t.step(batch["x"] / 2, batch["y"])
        return {"loss": loss, "size": len(batch["x"])}

    return Program(step, lambda k: (dict(zip("xy", batch(k), strict=True)),))


@program
def batch_of_arrays_is_changed() -> Program:
    t = Task(adam)

    def step(batch: dict[str, Any]) -> Any:
        batch["x"] = batch["x"] / 255  # refused
        return t.step(batch["x"], batch["y"])

    return Program(step, lambda k: (dict(zip("xy", batch(k), strict=True)),), replays=0, says="batch")


@program
def batch_of_tensors_is_changed() -> Program:
    def step(batch: dict[str, Any]) -> Any:
        batch["x"] = batch["x"] / 255  # refused
        batch["sum"] = gnp.sum(batch["x"])  # refused
        return batch["sum"]

    return Program(step, lambda k: ({"x": tensor(wave(3, at=k))},), replays=0, says="batch")


@program
def list_argument_gets_results() -> Program:
    def step(x: Any, out: list[Any]) -> None:
        out.append(gnp.tanh(x))  # refused
        out.append(gnp.sum(x))  # refused

    return Program(step, lambda k: (wave(3, at=k), [wave(2), wave(1, at=k)]), replays=0, says="out")


@program
def list_argument_is_popped_and_sorted() -> Program:
    def step(values: list[Any]) -> Any:
        last = values.pop()  # refused
        values.sort(key=gnp.sum)  # refused
        return last * values[0]

    return Program(step, lambda k: ([wave(3, at=j - k) for j in range(4)],), replays=0, says="values")


@program
def dataclass_argument_is_set() -> Program:
    def step(config: Any, x: Any) -> Any:
        config.rate = config.rate * gnp.tanh(x)  # refused
        return config.rate * 2

    return Program(step, lambda k: (Config(wave(3)), wave(3, at=k)), replays=0, says="config")


@program
def list_of_parameters_as_an_argument() -> Program:
    params = [tensor(wave(3)), tensor(wave(2, 3))]

    def step(params: Any, x: Any, rate: float = 0.1) -> Any:
        with GradManager().attach(params) as gm:
            loss = sum([gnp.sum(gnp.tanh(p * x)) for p in params])
            gm.backward(loss)
        for p in params:
            p -= rate * p.grad
            p.grad = None
        return loss

    return Program(step, lambda k: (params, wave(3, at=k)))


# ---------------------------------------------------------------- models


class LanguageModel(nn.Module):
    """Attention over letters, with tied weights."""

    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.letters, self.norm = nn.Embedding(5, 4, rng=rng), nn.LayerNorm(4)
        self.into, self.mix = nn.Linear(4, 12, rng=rng), nn.ModuleList([nn.Linear(4, 4, rng=rng) for _ in range(2)])

    def forward(self, codes: Any) -> Any:
        x = self.letters(codes)
        q, k, v = self.into(self.norm(x)).reshape(*x.shape[:2], 3, 2, 2).transpose(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(0, 2, 1, 3).reshape(x.shape)
        for layer in self.mix:
            x = x + F.gelu(layer(x))
        return (x @ self.letters.weight.T).reshape(-1, 5)


@program
def attention() -> Program:
    t = Task(lambda params: optim.AdamW(params, lr=0.01), LanguageModel)
    return Program(t.step, lambda k: ((np.arange(6).reshape(2, 3) + k) % 5, (np.arange(6) + k) % 5))


class Recurrent(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 2, rng=rng), nn.Linear(2, 3, rng=rng)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][-1])


@program
def recurrent_network() -> Program:
    t = Task(sgd, Recurrent)
    return Program(t.step, lambda k: (wave(3, 2, 3, at=k, dtype="float32"), np.array([k % 3, 1])))


def _cnn(rng: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, rng=rng), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3, rng=rng)
    )


@program
def convolutions() -> Program:
    t = Task(adam, _cnn)
    return Program(t.step, lambda k: (wave(2, 1, 4, 4, at=k, dtype="float32"), np.array([k % 3, 1])))


@program
def dropout_and_batch_norm() -> Program:
    return Program(Task(adam, noisy).step, batch)


class Scaled(nn.Module):
    """A module whose property is made of a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(wave(3))
        self._epoch = 0

    @property
    def scale(self) -> float:
        return 1 / (1 + self._epoch)

    def forward(self, x: Any) -> Any:
        return gnp.tanh(self.weight * x) * self.scale


@program
def property_of_a_module() -> Program:
    module = Scaled()
    return Program(lambda x: module(x), arrays((3,)), between=lambda k: setattr(module, "_epoch", k // 5), replays=3)


@program
def module_itself_is_the_step() -> Program:
    module = Scaled()
    return Program(module, tensors((3,)), code=Scaled.forward)


@program
def teacher_and_student() -> Program:
    teacher, t = mlp(np.random.default_rng(1)), Task(adam)

    def step(x: Any) -> Any:
        with gradmgr.no_grad():
            target = F.softmax(teacher(x), 1)
        with t.gm:
            loss = -gnp.mean(gnp.sum(target * F.log_softmax(t.model(x), 1), axis=1))
            t.gm.backward(loss)
        t.update()
        return loss

    return Program(step, lambda k: batch(k)[:1])


@program
def generator_and_critic() -> Program:
    maker, critic = Task(adam), Task(sgd, lambda rng: nn.Linear(3, 1, rng=rng))

    def step(noise: Any, real: Any) -> Any:
        for task, sign in ((critic, 1), (maker, -1)):
            with task.gm:
                worth = sign * gnp.mean(critic.model(maker.model(noise)) - critic.model(real))
                task.gm.backward(worth)
            task.update()
        return worth

    return Program(step, lambda k: (batch(k)[0], wave(6, 3, at=k, dtype="float32")))


# ---------------------------------------------------------------- random numbers


@program
def augmentation_by_a_generator_argument() -> Program:
    t, rng = Task(adam), np.random.default_rng(2)

    def step(x: Any, y: Any, rng: Any) -> Any:
        x = x + 0.1 * rng.standard_normal(x.shape).astype(x.dtype)
        x = gnp.where(rng.random((len(x), 1)) < 0.5, -x, x)
        return t.step(x, y), x

    return Program(step, lambda k: (*batch(k), rng))


@program
def generator_of_a_closure() -> Program:
    t, rng = Task(adam), np.random.default_rng(2)

    def step(x: Any, y: Any) -> Any:
        x = x + rng.standard_normal(x.shape).astype(x.dtype)  # refused
        return t.step(x, y)

    return Program(step, batch, replays=0, says="rng")


@program
def samples_of_a_distribution() -> Program:
    mean, rng = tensor(wave(3)), np.random.default_rng(2)

    def step(x: Any, rng: Any) -> Any:
        with GradManager().attach(mean) as gm:
            sample = distributions.Normal(mean, 0.5).rsample(rng, (4,))
            gm.backward(gnp.sum((sample - x) ** 2))
        g, mean.grad = mean.grad, None
        return sample, g

    return Program(step, lambda k: (tensor(wave(3, at=k)), rng))


# ---------------------------------------------------------------- how functions are written


def _two_layers(w: Tensor, v: Tensor) -> Callable[[Any], Any]:
    def hidden(x: Any) -> Any:
        return gnp.tanh(x @ w)

    return lambda x: hidden(x) @ v


@program
def closures_in_closures() -> Program:
    net = _two_layers(tensor(wave(3, 2)), tensor(wave(2, at=1)))

    def step(x: Any, power: int = 2, *more: Any, scale: float | None = None) -> Any:
        return net(x) ** power * (1 if scale is None else scale)

    return Program(step, tensors((4, 3)))


class Objective:
    """A callable object with slots."""

    __slots__ = ("power", "w")

    def __init__(self) -> None:
        self.w, self.power = tensor(wave(3)), 2

    def __call__(self, x: Any) -> Any:
        return gnp.sum((self.w * x) ** self.power)

    @classmethod
    def twice(cls, x: Any) -> Any:
        return gnp.exp(x) * 2


@program
def callable_object() -> Program:
    made = Objective()
    return Program(made, tensors((3,)), between=lambda k: k == 5 and setattr(made, "power", 3), replays=3)


class Point(NamedTuple):
    value: Any
    slope: Any


class Output:
    """What a model returns, as an object."""

    def __init__(self, mse: Any) -> None:
        self.mse = mse


@program
def result_is_an_object_of_the_users() -> Program:
    return Program(lambda x: Output(gnp.mean(x * x)), tensors((3,)), replays=None)


@program
def returned_values_are_used_by_other_libraries() -> Program:
    def step(x: Any) -> Any:
        return gnp.tanh(x), gnp.sum(x), gnp.argmax(x)

    def after(result: Any) -> Any:
        y, total, place = result
        torch = _torch()
        return [
            json.dumps({"y": y.tolist(), "total": float(total), "place": int(place)}),
            round(float(total), 3),
            hash(total.item()),
            [memoryview(np.asarray(y)).nbytes, np.asarray(y).copy()],
            torch.from_numpy(np.array(y)).tolist() if torch else None,
            isinstance(y, np.ndarray),
        ]

    return Program(step, arrays((3,)), after=after)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


SMALL, LARGE = wave(3), wave(3, 1000)  # below and above 2 kB


def _energy(x: Any) -> Any:
    return gnp.sum(gnp.sin(x) * x**2) + gnp.prod(x)


# Functions without state, and their arguments.
PURE: dict[str, tuple[Callable[..., Any], Any]] = {
    "partial_of_a_class_method": (partial(Objective.twice), tensors((3,))),
    "named_tuple_and_dict_results": (
        lambda x: (Point(gnp.sum(x), x * 2), {"parts": [x[:1], (x[1:], None)], "name": "sin", "size": x.size}),
        tensors((3,)),
    ),
    "arrays_alone": (
        lambda x, y: (x @ y, np.sum(x), (x > 0.5).any(), np.linalg.norm(x, axis=0), x.T[0], gnp.sqrt(np.abs(y))),
        arrays((2, 3), (3,)),
    ),
    "constants_of_numpy_inside": (
        lambda x: (
            x @ np.eye(3) * (np.arange(3) / 2) + np.zeros(3),
            np.linspace(0, 1, 3) * gnp.sum(x),
            x * np.float32(2),
        ),
        tensors((2, 3)),
    ),
    "plain_arrays_as_globals": (lambda x: (x * SMALL, x @ LARGE, SMALL[:2] * gnp.sum(x)), arrays((3,))),
    "forward_mode": (lambda x, v: functional.jvp(lambda x: gnp.tanh(x) * x, x, v), tensors((3,), (3,))),
    "hessian_vector_product": (lambda x, v: functional.hvp(_energy, x, v), tensors((3,), (3,))),
    "jacobian_and_hessian": (
        lambda x: (functional.jacobian(lambda x: gnp.outer(x, x).ravel(), x), functional.hessian(_energy, x)),
        tensors((3,)),
    ),
    "spectra_and_complex_numbers": (
        lambda x: (
            np.abs(np.fft.rfft(x)) ** 2 / np.sum(x * x),
            np.einsum("i,j->ij", x, np.conj(1j * x)),
            np.linalg.solve(np.eye(4) * 3 + x, x),
        ),
        arrays((4,)),
    ),
}
PROGRAMS |= {name: partial(Program, function, args) for name, (function, args) in PURE.items()}


@program
def small_global_array_that_changes() -> Program:
    global WEIGHTS  # what the program is about
    WEIGHTS = wave(3)

    def change(k: int) -> None:
        if k == 4:
            WEIGHTS[0] = 5.0
        elif k == 7:
            globals().update(WEIGHTS=wave(3, at=1))

    return Program(lambda x: gnp.sum(x * WEIGHTS), tensors((3,)), between=change, replays=1)


@program
def error_states_inside() -> Program:
    def step(x: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            y = gnp.log(x) / x
        return gnp.where(gnp.isfinite(y), y, 0.0)

    return Program(step, arrays((3,)))


@program
def error_state_that_raises_inside() -> Program:
    def step(x: Any) -> Any:
        with np.errstate(divide="raise"):
            return 1 / x

    return Program(step, lambda k: (tensor([1.0, k - 5.0]),), raises=(FloatingPointError,), replays=None)


@program
def asks_whether_gradients_are_enabled() -> Program:
    def step(x: Any) -> Any:
        return x * 2 if gradmgr.is_grad_enabled() else x * 3

    def around(k: int) -> Any:
        return gradmgr.no_grad() if k in (3, 6, 8) else contextlib.nullcontext()

    return Program(step, tensors((3,)), around=around, replays=3)


@program
def identity_of_an_argument() -> Program:
    x = tensor(wave(3))
    return Program(lambda y: y * (2.0 if id(y) == id(x) else 3.0), lambda k: (x,))


@program
def decorated_with_a_context() -> Program:
    w = tensor(wave(3))

    @contextlib.contextmanager
    def recording() -> Any:
        gm = GradManager().attach(w)
        gm.record()
        try:
            yield gm
        finally:
            gm.release()

    @gradmgr.no_grad()
    def update() -> None:
        w.__isub__(0.1 * w.grad)
        w.grad = None

    def step(x: Any) -> Any:
        with recording() as gm:
            loss = gnp.sum(gnp.exp(w * x))
            gm.backward(loss)
        update()
        return loss

    return Program(step, arrays((3,)))


@program
def compiled_within_compiled() -> Program:
    inner = gradmgr.compile(lambda x: gnp.tanh(x) * 2)

    def step(x: Any) -> Any:
        return inner(x) + inner(x + 1)

    return Program(step, tensors((3,)))


# ---------------------------------------------------------------- values that decide


@program
def branch_by_a_loss() -> Program:
    t = Task(sgd)

    def step(x: Any, y: Any) -> Any:
        loss = t.backward(x, y)
        if loss > 1.15:
            t.optimizer.step()
        t.optimizer.zero_grad()
        return loss

    return Program(step, batch, replays=3)


@program
def count_that_a_value_gives() -> Program:
    def step(x: Any, n: Any) -> Any:
        for _ in range(int(n)):
            x = gnp.tanh(x) + 0.1
        return x

    return Program(step, lambda k: (tensor(wave(3, at=k)), tensor(3 if k < 6 else 2)), replays=3)


@program
def k_means_until_it_rests() -> Program:
    points = np.concatenate([wave(20, 2) * 0.2 + c for c in (0.0, 2.0, 4.0)])

    def step(points: Any, centres: Any) -> Any:
        moved = tensor(np.inf)
        while moved > 1e-9:
            nearest = gnp.argmin(gnp.sum((points[:, None] - centres) ** 2, axis=2), axis=1)
            found = gnp.stack([gnp.mean(points[nearest == c], axis=0) for c in range(len(centres))])
            moved, centres = gnp.max(gnp.abs(found - centres)), found
        return centres

    return Program(step, lambda k: (tensor(points + k), tensor(points[[0, 25, 50]] + k)), replays=None)


@program
def newton_until_it_converges() -> Program:
    def step(a: Any) -> Any:
        x = a
        while gnp.abs(x * x - a) > 1e-9:
            x = 0.5 * (x + a / x)
        return x

    return Program(step, lambda k: (tensor(2.0 + 0.01 * (k % 3)),), replays=4)


@program
def largest_element_by_its_index() -> Program:
    return Program(lambda x: x[int(gnp.argmax(x))] * 2, lambda k: (tensor(np.roll(wave(4), k // 5)),), replays=3)


@program
def error_in_the_third_call() -> Program:
    t = Task(adam)
    return Program(
        t.step, lambda k: batch(k) if k != 2 else (batch(k)[0][:, :3], batch(k)[1]), raises=(ValueError,), replays=4
    )


@program
def error_of_the_program_itself() -> Program:
    t = Task(adam)

    def step(x: Any, y: Any, limit: float) -> Any:
        loss = t.backward(x, y)
        if loss > limit:
            raise OverflowError("the loss grows")
        t.update()
        return loss

    return Program(
        step, lambda k: (*batch(k), tensor(0.0 if k in (2, 7) else 10.0)), raises=(OverflowError,), replays=3
    )


@program
def lengths_that_vary_call_by_call() -> Program:
    t = Task(adam)
    return Program(t.step, lambda k: batch(k, 3 + k), replays=None)


# ---------------------------------------------------------------- functions and hooks of the user's


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


@program
def function_class() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            loss = gnp.sum(Cube.apply(w * x))
            gm.backward(loss)
        w[...] -= 0.01 * w.grad
        g, w.grad = w.grad, None
        return loss, g

    return Program(step, arrays((3,)))


@program
def custom_operation() -> Program:
    @custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
    def growth(x: Any, rate: float = 1.0) -> Any:
        return np.exp(rate * x)

    return Program(lambda x: functional.value_and_grad(lambda x: gnp.sum(growth(x, rate=2.0)))(x), tensors((3,)))


@program
def hooks_and_callbacks_that_log() -> Program:
    log: list[Any] = []

    def note(p: Any, g: Any) -> Any:
        log.append((p.shape, float(gnp.sum(g))))
        return g * 0.5

    t = Task(sgd, callbacks=note)
    t.gm.register_after_backward_callback(lambda: log.append("after"))
    t.params[0].register_hook(lambda g: g * 2)
    t.model[1].register_forward_hook(lambda module, args, out: out * 0.9)
    return Program(t.step, batch)


@program
def hook_that_is_removed() -> Program:
    t = Task(sgd)
    handle = t.params[0].register_hook(lambda g: g * 0)
    return Program(t.step, batch, between=lambda k: k == 4 and handle.remove(), replays=3)


@program
def checkpointed_block() -> Program:
    t = Task(adam, noisy)

    def step(x: Any, y: Any) -> Any:
        with t.gm:
            h = gradmgr.checkpoint(lambda x: gnp.tanh(t.model[0](x)), x)
            loss = F.cross_entropy(t.model[4](h), y)
            t.gm.backward(loss)
        t.update()
        return loss

    return Program(step, batch)


# ---------------------------------------------------------------- derivatives of many kinds


@program
def map_outside() -> Program:
    gradient = functional.grad(_energy)
    return Program(gradmgr.vmap(gradient), tensors((4, 3)), code=_energy)


@program
def map_inside() -> Program:
    w = tensor(wave(3))

    def step(x: Any) -> Any:
        each = gradmgr.vmap(functional.grad(lambda w, x: gnp.sum(gnp.tanh(w * x)) ** 2), in_dims=(None, 0))(w, x)
        w[...] -= 0.1 * gnp.mean(each, axis=0)
        return each

    return Program(step, tensors((4, 3)))


@program
def meta_learning() -> Program:
    weights = [tensor(wave(1, 3)), tensor(wave(3, 1, at=1))]
    outer, optimizer = GradManager().attach(weights), adam(weights)

    def error(weights: Any, x: Any) -> Any:
        return gnp.sum((gnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

    def step(x: Any) -> Any:
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

    return Program(step, arrays((4, 1)))


@program
def gradient_penalty() -> Program:
    t, inner = Task(adam), GradManager()

    def step(x: Any, y: Any) -> Any:
        x = tensor(x)
        with t.gm:
            inner.attach(x)
            with inner:
                inner.backward(F.cross_entropy(t.model(x), y))
            penalty = gnp.mean((gnp.sqrt(gnp.sum(x.grad**2, axis=1) + 1e-6) - 1) ** 2)
            t.gm.backward(F.cross_entropy(t.model(x), y) + penalty)
        inner.detach(x)
        t.update()
        return penalty

    return Program(step, batch)


@program
def graph_of_the_gradient() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            (g,) = gradmgr.grad(gnp.sum(gnp.exp(w * x)), [w], create_graph=True)
            gm.backward(gnp.sum(g * g))
        w[...] -= 0.01 * w.grad
        w.grad = None
        return g

    return Program(step, arrays((3,)))


@program
def two_managers_in_a_group() -> Program:
    w, v = tensor(wave(3)), tensor(wave(3, at=1))
    one, other = GradManager().attach(w), GradManager().attach(v)

    def step(x: Any) -> Any:
        with one | other:
            loss = gnp.sum(gnp.tanh(w * x) * v)
            one.backward(loss)
            other.backward(loss * 2)
        found = w.grad, v.grad
        w.grad = v.grad = None
        return found

    return Program(step, arrays((3,)))


# ---------------------------------------------------------------- numerical programs


@program
def ode_in_a_loop() -> Program:
    rates = tensor([0.5, 0.1])

    def field_of(y: Any) -> Any:
        return gnp.stack([rates[0] * y[0] - y[0] * y[1], y[0] * y[1] - rates[1] * y[1]])

    def step(y: Any, h: float = 0.05) -> Any:
        with GradManager().attach(rates) as gm:
            for _ in range(8):
                k1 = field_of(y)
                k2 = field_of(y + h / 2 * k1)
                y = y + h * k2
            gm.backward(gnp.sum(y))
        g, rates.grad = rates.grad, None
        return y, g

    return Program(step, lambda k: (np.array([1.0 + k / 9, 0.5]),))


@program
def heat_equation_by_slices() -> Program:
    source = tensor(wave(12))

    def step(u: Any) -> Any:
        with GradManager().attach(source) as gm:
            u = u + 0 * source
            for _ in range(5):
                u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]) + 0.01 * source[1:-1]
                u[0] = u[-1]
            gm.backward(gnp.sum(u * u))
        g, source.grad = source.grad, None
        return u, g

    return Program(step, arrays((12,)))


@program
def linear_regression_by_normal_equations() -> Program:
    def step(x: Any, y: Any) -> Any:
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        w = np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ y)
        return w, np.sqrt(np.mean((x @ w - y) ** 2)), np.sort(w), np.median(y)

    return Program(step, arrays((8, 2), (8,)))


@program
def cotangents_of_a_pipeline() -> Program:
    """The gradient comes from the caller and goes back to it."""
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Tensor, dy: Any) -> Any:
        gm.attach(x)
        with gm:
            y = gnp.tanh(x * w)
            gm.backward(y, dy)
        gm.detach(x)
        return y, x.grad

    return Program(step, tensors((3,), (3,)))


# ---------------------------------------------------------------- what is kept outside, and is refused

NOW: ContextVar[Any] = ContextVar("NOW", default=None)


def _changing(make_step: Callable[[Any], Callable[[Any], Any]], says: str, **names: Callable[[], Any]) -> Any:
    """Return what makes a program whose step changes a box, which holds what `names` make."""

    def make() -> Program:
        box = types.SimpleNamespace(**{name: make() for name, make in names.items()})
        return Program(make_step(box), tensors((3,)), after=lambda y: (box, NOW), replays=0, says=says)

    return make


# A step that changes something outside, what the warning is to name, and what the box holds at first.
CHANGES: dict[str, Any] = {
    "attribute": (lambda box: lambda x: (y := gnp.tanh(x), setattr(box, "last", y))[0], "last", {}),
    "counter": (lambda box: lambda x: (gnp.tanh(x), box.__dict__.update(n=box.n + 1))[0], "box", {"n": int}),
    "deque": (lambda box: lambda x: (y := gnp.tanh(x), box.ring.append(y))[0], "ring", {"ring": partial(deque, (), 2)}),
    "heap": (lambda box: lambda x: heapq.heappush(box.heap, (len(box.heap), gnp.tanh(x))), "heap", {"heap": list}),
    "set": (lambda box: lambda x: (gnp.tanh(x), box.sizes.add(len(box.sizes)))[0], "sizes", {"sizes": set}),
    "dict": (lambda box: lambda x: box.found.setdefault(len(box.found), gnp.tanh(x)), "found", {"found": dict}),
    "context variable": (lambda box: lambda x: (y := gnp.tanh(x), NOW.set(y))[0], "NOW", {}),
    "weak dictionary": (
        lambda box: lambda x: (y := gnp.tanh(x), box.weak.update(y=y))[0],
        "weak",
        {"weak": weakref.WeakValueDictionary},
    ),
    "array of objects": (
        lambda box: lambda x: (y := gnp.tanh(x), box.objects.__setitem__(0, y))[0],
        "objects",
        {"objects": lambda: np.array([None, None])},
    ),
    "nested list": (
        lambda box: lambda x: (y := gnp.tanh(x), box.history["loss"].append({"y": y}))[0],
        "history",
        {"history": lambda: {"loss": []}},
    ),
    "numbers in a list": (lambda box: lambda x: (box.k.append(len(box.k)), x * box.k[-1])[1], "k", {"k": list}),
    "plain array": (
        lambda box: lambda x: (gnp.tanh(x), box.plain.__iadd__(1))[0],
        "plain",
        {"plain": partial(np.zeros, 3)},
    ),
}
PROGRAMS |= {f"changes: {name}": _changing(make, says, **held) for name, (make, says, held) in CHANGES.items()}
