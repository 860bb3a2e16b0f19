"""What is computed, in words that every library shares: single ops, and the data of the programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Operation:
    """One op: written once for the answer, and once in a loop whose own cost is the least Python has.

    Attributes:
        label: how a user writes it.
        once: once(xp, *inputs), `xp` being the library's NumPy-like module.
        times: times(xp, n, *inputs), n results made and dropped.
        gradients: of the sum of the result, by hand, for each input.
        inputs: how many.
    """

    label: str
    once: Callable[..., Any]
    times: Callable[..., None]
    gradients: Callable[..., list[Array]]
    inputs: int


def _product_times(xp: Any, n: int, x: Any, y: Any) -> None:
    for _ in repeat(None, n):
        x * y  # made and dropped, as the bare call is


def _multiply_times(xp: Any, n: int, x: Any, y: Any) -> None:
    multiply = xp.multiply
    for _ in repeat(None, n):
        multiply(x, y)


def _exp_times(xp: Any, n: int, x: Any) -> None:
    exp = xp.exp
    for _ in repeat(None, n):
        exp(x)


PRODUCT = Operation("x * y", lambda xp, x, y: x * y, _product_times, lambda x, y: [y, x], 2)
MULTIPLY = Operation("np.multiply(x, y)", lambda xp, x, y: xp.multiply(x, y), _multiply_times, lambda x, y: [y, x], 2)
EXP = Operation("np.exp(x)", lambda xp, x: xp.exp(x), _exp_times, lambda x: [np.exp(x)], 1)


def inputs(operation: Operation, size: int) -> list[Array]:
    """Return float32 inputs in (0, 1)."""
    rng = np.random.default_rng(size)
    return [rng.uniform(0.1, 0.9, size).astype(np.float32) for _ in range(operation.inputs)]


@dataclass(frozen=True)
class Chain:
    """z = x, then z = z * y `length` times; dy flows back to x, and to y too where `both`."""

    length: int
    both: bool
    x: Array
    y: Array
    dy: Array


def chain(length: int, *, both: bool) -> Chain:
    along = np.linspace(-1, 1, 8, dtype=np.float32)
    # So near to 1 that a million factors neither overflow nor reach the slow subnormal numbers.
    return Chain(length, both, 1 + along / 10, 1 + along * np.float32(2e-6), 1 - along / 10)


@dataclass(frozen=True)
class Network:
    """Square linear layers with tanh between, mean squared error, plain gradient descent."""

    x: Array
    target: Array
    layers: list[tuple[Array, Array]]
    rate: float = 0.01


def network(batch: int, width: int, depth: int) -> Network:
    rng = np.random.default_rng(width)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    layers = [(normal(width, width) / np.float32(width**0.5), normal(width) / 10) for _ in range(depth)]
    return Network(normal(batch, width), normal(batch, width), layers)
