"""What is trained: data, first values, and the optimiser, as arrays and numbers that every library reads.

Weights are stored as torch.nn.functional wants them: (out, in), and (out, in, rows, columns) of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench import operations

Array = Any

HEADS = 4  # of the attention
CLASSES = 10
# A gradient of this size is rounding, and must not decide a step: its sign differs from library to library.
_EPS = 1e-4


@dataclass(frozen=True, eq=False)
class Model:
    """One thing to train.

    Attributes:
        kind: mlp, lstm, gpt or cnn: which formula.
        values: first values of the parameters, by name; libraries take and give them in this order.
        x: the input.
        target: what the loss compares with; labels for the cnn.
        optimiser: SGD, Adam or AdamW.
        options: of the optimiser, by torch's names.
    """

    kind: str
    values: Mapping[str, Array]
    x: Array
    target: Array
    optimiser: str = "Adam"
    options: Mapping[str, Any] = field(default_factory=lambda: {"lr": 3e-3, "eps": _EPS})


class _Draw:
    """Normal numbers in float32, of a standard deviation that keeps activations at about 1."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def weight(self, out: int, *inputs: int) -> Array:
        return self(out, *inputs, scale=float(np.prod(inputs)) ** -0.5)


def mlp(batch: int, width: int, depth: int) -> Model:
    """Make square linear layers with tanh between, mean squared error."""
    program = operations.network(batch, width, depth)
    values: dict[str, Array] = {}
    for k, (w, b) in enumerate(program.layers):
        values |= {f"weight{k}": w.T.copy(), f"bias{k}": b.copy()}
    return Model("mlp", values, program.x, program.target, "SGD", {"lr": program.rate})


def lstm(steps: int, batch: int, hidden: int) -> Model:
    """Make an LSTM cell that reads a sequence of as many features as it has units; mean squared error of every h."""
    draw = _Draw(1)
    values = {
        "weight_ih": draw.weight(4 * hidden, hidden),
        "weight_hh": draw.weight(4 * hidden, hidden),
        "bias_ih": draw(4 * hidden, scale=0.1),
        "bias_hh": draw(4 * hidden, scale=0.1),
    }
    return Model("lstm", values, draw(steps, batch, hidden), draw(steps, batch, hidden))


def gpt(width: int, length: int, batch: int) -> Model:
    """Make a block of a transformer: layer norm, causal attention, layer norm, MLP with gelu; mean squared error."""
    draw = _Draw(2)

    def near_one() -> Array:
        return 1 + draw(width, scale=0.1)

    values = {
        "norm1_weight": near_one(),
        "norm1_bias": draw(width, scale=0.1),
        "qkv": draw.weight(3 * width, width),
        "out_weight": draw.weight(width, width),
        "out_bias": draw(width, scale=0.1),
        "norm2_weight": near_one(),
        "norm2_bias": draw(width, scale=0.1),
        "up_weight": draw.weight(4 * width, width),
        "up_bias": draw(4 * width, scale=0.1),
        "down_weight": draw.weight(width, 4 * width),
        "down_bias": draw(width, scale=0.1),
    }
    options = {"lr": 3e-3, "eps": _EPS, "weight_decay": 0.01}
    return Model("gpt", values, draw(batch, length, width), draw(batch, length, width), "AdamW", options)


def cnn(batch: int, side: int, channels: tuple[int, int] = (16, 32)) -> Model:
    """Make two convolutions 3x3, each with relu and a max pool of 2, and a linear layer; cross entropy."""
    draw, (first, second) = _Draw(3), channels
    values = {
        "conv1_weight": draw.weight(first, 1, 3, 3),
        "conv1_bias": draw(first, scale=0.1),
        "conv2_weight": draw.weight(second, first, 3, 3),
        "conv2_bias": draw(second, scale=0.1),
        "linear_weight": draw.weight(CLASSES, second * (side // 4) ** 2),
        "linear_bias": draw(CLASSES, scale=0.1),
    }
    # Smaller steps: after the first, rounding decides which of two nearly equal numbers is the largest of a pool.
    options = {"lr": 1e-3, "eps": 1e-3}
    return Model("cnn", values, draw(batch, 1, side, side), draw.rng.integers(0, CLASSES, batch), options=options)


MODELS: Mapping[str, Callable[[], Model]] = {
    "MLP 8x16x3": partial(mlp, 8, 16, 3),
    "MLP 32x64x3": partial(mlp, 32, 64, 3),
    "MLP 64x256x3": partial(mlp, 64, 256, 3),
    "MLP 128x1024x3": partial(mlp, 128, 1024, 3),
    "LSTM cells T=50 B=8 H=64": partial(lstm, 50, 8, 64),
    "GPT block d=32 T=16 B=8": partial(gpt, 32, 16, 8),
    "GPT block d=128 T=64 B=16": partial(gpt, 128, 64, 16),
    "CNN 64x1x28x28": partial(cnn, 64, 28),
}
