"""What the machine must compute before it is used: programs of each kind, bit for bit as NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.native import Machine, MachineError
from gradmgr._replay.native_replay import NativeWriter

Array = Any


def _elementwise(x: Array, y: Array) -> list[Any]:
    z = x * y[:1] + y[:, 1:2] / 3
    w = np.exp(-np.abs(z)) + np.log(np.abs(y) + 1)
    w = np.tanh(w) * np.sin(x) + np.power(np.abs(y), 0.3)
    w -= z.T.copy().T
    return [z, w, np.sqrt(np.abs(w)), np.maximum(z, 0), np.where(z > w, z, 1.0)]


def _reductions(x: Array, y: Array) -> list[Any]:
    summed = [a.sum(axis=axis) for a in (x, y.T, x[::2]) for axis in (0, 1)]
    return [*summed, x.sum(), y.max(axis=1), y.min(), x.mean(axis=0), x.mean(), (x > y).any()]


def _products(x: Array, y: Array) -> list[Any]:
    stacked = np.stack([x, y])
    return [x @ y.T, x.T @ y, x.T @ x, x[0] @ y[0], x @ y[1], y[:, 2] @ x, stacked @ x.T, x[::2] @ y.T]


def _copies(x: Array, y: Array) -> list[Any]:
    z = np.zeros_like(x)
    z[1:] = y[:-1]
    z[0, ::2] = x[0, 0]
    return [z, x.T.reshape(-1), x.astype(np.float32), (x > 0).astype(x.dtype), np.concatenate([x, z], axis=1)]


def check_machine(machine: Machine) -> None:
    """Raise MachineError unless it computes, bit for bit, what NumPy does."""
    for program in (_elementwise, _reductions, _products, _copies):
        for x, y in _arrays():
            message = _difference(machine, program, x, y)
            if message is not None:
                raise MachineError(f"gradmgr-native does not compute what NumPy {np.__version__} does here: {message}")


def _arrays() -> Iterator[tuple[Array, Array]]:
    """Yield arrays of which loops have a whole number of vectors, a rest, or nothing but a rest."""
    for rows, columns in ((3, 5), (16, 32), (70, 131)):
        for dtype in (np.float64, np.float32):
            angles = np.arange(rows * columns).reshape(rows, columns)
            yield (np.cos(angles * 1.7) * 3).astype(dtype), (np.cos(angles * 0.9 + 1) * 2).astype(dtype)


def _difference(machine: Machine, program: Callable[..., list[Any]], x: Array, y: Array) -> str | None:
    capture = Capture()
    with np.errstate(all="ignore"):
        found = program(capture.add_input(x), capture.add_input(y))
        replay = NativeWriter(capture, found, machine).function()
        x, y = x * x.dtype.type(1.1), y - y.dtype.type(0.1)
        expected = program(x.copy(), y.copy())
        replay(x, y)  # the second time the arena holds what the first left
        last = replay(x, y)
    for number, (one, other) in enumerate(zip(last, expected, strict=True)):
        if one.dtype != other.dtype or one.tobytes() != other.tobytes():
            return f"result {number} of {program.__name__[1:]} for {x.dtype} {x.shape}"
    return None
