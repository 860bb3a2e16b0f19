"""What is computed, in functions that every library shares: single ops, and the data of the programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

Array = Any


def _of_one_size(count: int) -> Callable[[int], list[Array]]:
    """Return what makes so many float32 inputs in (0, 1), one-dimensional."""

    def make(size: int) -> list[Array]:
        rng = np.random.default_rng(size)
        return [rng.uniform(0.1, 0.9, size).astype(np.float32) for _ in range(count)]

    return make


@dataclass(frozen=True)
class Operation:
    """One op: written once for the answer, and once in a loop whose own cost is the least Python has.

    Attributes:
        label: how a user writes it.
        once: once(xp, *inputs), `xp` being the library's NumPy-like module.
        times: times(xp, n, *inputs), n results made and dropped.
        rule: rule(g, out, *inputs), by hand: the gradients of the inputs, given that of the result.
        make: make(size), the inputs; the first is of about so many elements.
    """

    label: str
    once: Callable[..., Any]
    times: Callable[..., None]
    rule: Callable[..., list[Array]]
    make: Callable[[int], list[Array]]

    @property
    def inputs(self) -> int:
        return len(self.make(8))

    def gradients(self, *arrays: Array) -> list[Array]:
        """Return the gradients of the sum of the result."""
        out = self.once(np, *arrays)
        return self.rule(np.ones_like(out), out, *arrays)


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


def _tanh_times(xp: Any, n: int, x: Any) -> None:
    tanh = xp.tanh
    for _ in repeat(None, n):
        tanh(x)


def _maximum_times(xp: Any, n: int, x: Any, y: Any) -> None:
    maximum = xp.maximum
    for _ in repeat(None, n):
        maximum(x, y)


def _add_times(xp: Any, n: int, x: Any, y: Any) -> None:
    for _ in repeat(None, n):
        x + y


def _add_number_times(xp: Any, n: int, x: Any) -> None:
    for _ in repeat(None, n):
        x + 1.0


def _sum_times(xp: Any, n: int, x: Any) -> None:
    total = xp.sum
    for _ in repeat(None, n):
        total(x)


def _sum_of_rows_times(xp: Any, n: int, x: Any) -> None:
    total = xp.sum
    for _ in repeat(None, n):
        total(x, axis=0)


def _matmul_times(xp: Any, n: int, x: Any, w: Any) -> None:
    for _ in repeat(None, n):
        x @ w


def _slice_times(xp: Any, n: int, x: Any) -> None:
    for _ in repeat(None, n):
        x[1:]


def _behind_zero(g: Array, out: Array, x: Array) -> list[Array]:
    of_x = np.zeros_like(x)
    of_x[1:] = g
    return [of_x]


_SIDE = 8


def _rows(size: int) -> Array:
    return _of_one_size(1)(size)[0].reshape(-1, _SIDE)


def _rows_and_row(size: int) -> list[Array]:
    return [_rows(size), _of_one_size(1)(_SIDE)[0]]


def _rows_and_matrix(size: int) -> list[Array]:
    return [_rows(size), _rows(_SIDE * _SIDE)]


PRODUCT = Operation("x * y", lambda xp, x, y: x * y, _product_times, lambda g, z, x, y: [g * y, g * x], _of_one_size(2))
MULTIPLY = Operation(
    "np.multiply(x, y)", lambda xp, x, y: xp.multiply(x, y), _multiply_times, PRODUCT.rule, _of_one_size(2)
)
EXP = Operation("np.exp(x)", lambda xp, x: xp.exp(x), _exp_times, lambda g, z, x: [g * z], _of_one_size(1))

# Ten kinds of op: what they do to memory, and in Python, is different.
KINDS = (
    PRODUCT,
    Operation("x + 1.0", lambda xp, x: x + 1.0, _add_number_times, lambda g, z, x: [g], _of_one_size(1)),
    Operation("x + row", lambda xp, x, y: x + y, _add_times, lambda g, z, x, y: [g, g.sum(axis=0)], _rows_and_row),
    EXP,
    Operation("np.tanh(x)", lambda xp, x: xp.tanh(x), _tanh_times, lambda g, z, x: [g * (1 - z * z)], _of_one_size(1)),
    Operation(
        "np.maximum(x, y)",
        lambda xp, x, y: xp.maximum(x, y),
        _maximum_times,
        lambda g, z, x, y: [g * (x > y), g * (x < y)],
        _of_one_size(2),
    ),
    Operation("np.sum(x)", lambda xp, x: xp.sum(x), _sum_times, lambda g, z, x: [np.full_like(x, g)], _of_one_size(1)),
    Operation(
        "np.sum(x, axis=0)",
        lambda xp, x: xp.sum(x, axis=0),
        _sum_of_rows_times,
        lambda g, z, x: [np.broadcast_to(g, x.shape)],
        lambda size: [_rows(size)],
    ),
    Operation(
        "x @ w, 8x8", lambda xp, x, w: x @ w, _matmul_times, lambda g, z, x, w: [g @ w.T, x.T @ g], _rows_and_matrix
    ),
    Operation("x[1:]", lambda xp, x: x[1:], _slice_times, _behind_zero, _of_one_size(1)),
)


def inputs(operation: Operation, size: int) -> list[Array]:
    """Return float32 inputs in (0, 1)."""
    return operation.make(size)


@dataclass(frozen=True)
class Chain:
    """z = x, then z = z * y `length` times; dy flows back to x, and to y too where `both`."""

    length: int
    both: bool
    x: Array
    y: Array
    dy: Array


def chain(length: int, *, both: bool, size: int = 8) -> Chain:
    along = np.linspace(-1, 1, size, dtype=np.float32)
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
