"""HIPS autograd: the formulas in NumPy's functions, and the optimisers' formulas in place."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from bench.train import formulas
from bench.train.models import Array, Model


class InAutograd:
    """Every model in HIPS autograd."""

    name = "autograd"

    def __init__(self, model: Model, threads: int) -> None:
        autograd, anp = (importlib.import_module(name) for name in ("autograd", "autograd.numpy"))
        # Only the gelu needs it, and autograd has it where SciPy is installed.
        erf = importlib.import_module("autograd.scipy.special").erf if model.kind == "gpt" else None
        loss = formulas.LOSSES[model.kind]
        self.value_and_grad = autograd.value_and_grad(lambda p: loss(anp, erf, p, model.x, model.target))
        self.learned = {name: a.copy() for name, a in model.values.items()}
        self.update = Update(model)

    def step(self) -> float:
        loss, slopes = self.value_and_grad(self.learned)
        self.update(self.learned, slopes)
        return float(loss)

    def parameters(self) -> list[Array]:
        return list(self.learned.values())


class Update:
    """SGD, Adam and AdamW by hand, in place."""

    def __init__(self, model: Model) -> None:
        self.adaptive = model.optimiser != "SGD"
        self.rate, self.eps = model.options["lr"], model.options.get("eps", 0.0)
        self.decay = model.options.get("weight_decay", 0.0)
        self.first, self.second = ({name: np.zeros_like(a) for name, a in model.values.items()} for _ in range(2))
        self.steps = 0

    def __call__(self, values: dict[str, Array], slopes: dict[str, Any]) -> None:
        self.steps += 1
        for name, p in values.items():
            if self.adaptive:
                self._adam(p, slopes[name], self.first[name], self.second[name])
            else:
                p -= self.rate * slopes[name]

    def _adam(self, p: Array, g: Array, m: Array, v: Array) -> None:
        if self.decay:
            p *= 1 - self.rate * self.decay
        m += 0.1 * (g - m)
        v += 0.001 * (g * g - v)
        p -= self.rate / (1 - 0.9**self.steps) * m / (np.sqrt(v / (1 - 0.999**self.steps)) + self.eps)
