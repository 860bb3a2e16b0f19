"""JAX: the whole step under jit, the old values given up to the new."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache, partial
from typing import Any

from bench.train import formulas
from bench.train.models import Array, Model


def _lstm(jax: Any, p: dict[str, Any], x: Any, target: Any) -> Any:
    jnp = jax.numpy

    def step(state: Any, x: Any) -> Any:
        h, c = formulas.lstm_cell(jnp, p, x, *state)
        return (h, c), h

    zeros = jnp.zeros(x.shape[1:])
    _, seen = jax.lax.scan(step, (zeros, zeros), x)
    return jnp.mean((seen - target) ** 2)


def _cnn(jax: Any, p: dict[str, Any], x: Any, target: Any) -> Any:
    for k in (1, 2):
        x = jax.lax.conv(x, p[f"conv{k}_weight"], (1, 1), "SAME") + p[f"conv{k}_bias"][:, None, None]
        x = formulas.pooled(jax.numpy, jax.nn.relu(x))
    return formulas.cnn_head(jax.numpy, p, x, target)


def _in_numpy(kind: str, jax: Any, p: dict[str, Any], x: Any, target: Any) -> Any:
    return formulas.LOSSES[kind](jax.numpy, jax.scipy.special.erf, p, x, target)


def _loss(kind: str) -> Any:
    return {"lstm": _lstm, "cnn": _cnn}.get(kind) or partial(_in_numpy, kind)


class InJax:
    """Every model in JAX."""

    name = "JAX"

    def __init__(self, model: Model, threads: int) -> None:
        # XLA makes one thread for each core it may run on, whatever OMP_NUM_THREADS and XLA_FLAGS say. It asks this
        # variable first, when the first array is made: one process can measure with one number only.
        os.environ["PJRT_NPROC"] = str(threads)
        self.jax = jax = importlib.import_module("jax")
        jax.config.update("jax_enable_x64", False)  # the suite `derivative` sets it
        x, target = jax.numpy.asarray(model.x), jax.numpy.asarray(model.target)
        learned = {name: jax.numpy.array(a) for name, a in model.values.items()}
        zeros = [jax.tree.map(jax.numpy.zeros_like, learned) for _ in range(0 if model.optimiser == "SGD" else 2)]
        self.state = (learned, *zeros, jax.numpy.zeros(()))
        self.data, self.names = (x, target), list(model.values)
        self.compiled = _compiled(model)

    def step(self) -> float:
        loss, self.state = self.jax.block_until_ready(self.compiled(self.state, *self.data))
        return float(loss)

    def parameters(self) -> list[Array]:
        return [self.jax.device_get(self.state[0][name]) for name in self.names]  # jit sorts them


@lru_cache(maxsize=1)
def _compiled(model: Model) -> Any:
    """Return a model's step under jit, the same for all that train it: a compilation takes a second."""
    jax, loss = importlib.import_module("jax"), _loss(model.kind)

    def step(state: Any, x: Any, target: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda p: loss(jax, p, x, target))(state[0])
        return value, _updated(jax, model, state, slopes)

    return jax.jit(step, donate_argnums=0)


def _updated(jax: Any, model: Model, state: Any, slopes: Any) -> Any:
    """Return values, averages and number of steps after one more."""
    values, *averages, steps = state
    rate, steps = model.options["lr"], steps + 1
    if not averages:
        return jax.tree.map(lambda p, g: p - rate * g, values, slopes), steps
    eps, decay = model.options["eps"], model.options.get("weight_decay", 0.0)
    first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), averages[0], slopes)
    second = jax.tree.map(lambda v, g: v + 0.001 * (g * g - v), averages[1], slopes)
    a, b = rate / (1 - 0.9**steps), 1 / (1 - 0.999**steps)

    def new(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - rate * decay) - a * m / (jax.numpy.sqrt(v * b) + eps)

    return jax.tree.map(new, values, first, second), first, second, steps
