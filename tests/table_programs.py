"""Programs made of the table of samples: each step feeds a sample with what came out of earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample, flat

import gradmgr.numpy as gnp
from gradmgr import Tensor, no_grad, tensor
from gradmgr._engine.tensor import raw

Array = Any

SMOOTH = [s for s in SAMPLES if s.smooth]
SHAPES: list[tuple[int, ...]] = [(3, 4), (4,), (3, 3), ()]
LENGTH = 4  # steps of a program


def fitted(v: Tensor, shape: tuple[int, ...], stride: int) -> Tensor:
    """The elements of v, again and again in some order, in a shape."""
    places = (np.arange(int(np.prod(shape))) * stride + stride) % v.size
    return gnp.take(v.reshape(-1), places).reshape(shape)


class Program:
    """A scalar function of Tensors of SHAPES; its first call fixes what later ones do, whatever the values.

    `cut` says how some steps make constants: "detach" or "no_grad". These constants depend on the point; to
    take differences, they are kept `frozen` at what they were first.
    """

    def __init__(self, seed: int, cut: str | None = None, dtype: Any = np.float64) -> None:
        self.seed, self.cut, self.dtype = seed, cut, dtype
        random = np.random.default_rng((seed, 0))
        self.points = [np.asarray(random.uniform(-1, 1, shape), dtype) for shape in SHAPES]
        self.used: dict[int, list[int]] = {}  # by step, which results of its sample go on
        self.constants: dict[int, Array] = {}
        self.frozen = False
        self.first = SMOOTH[seed % len(SMOOTH)]
        self.names: list[str] = []

    def __call__(self, *points: Tensor) -> Tensor:
        pool = list(points)
        for step in range(LENGTH):
            random = np.random.default_rng((self.seed, 1, step))
            kind = random.random()
            if step and kind < 0.2:
                self.write(random, pool)
            elif step and self.cut and kind < 0.4:
                pool.append(self.constant(step, pick(random, pool)) * pick(random, pool).sum())
            else:
                self.sample(step, random, pool)
        random = np.random.default_rng((self.seed, 2))
        return sum(
            ((v * random.uniform(0.5, 1.5, v.shape).astype(self.dtype)).sum() for v in pool),
            start=tensor(self.dtype(0)),
        )

    def constant(self, step: int, v: Tensor) -> Tensor:
        if self.frozen:
            return tensor(self.constants[step])
        if self.cut == "detach":
            made = gnp.sin(v).detach()
        else:
            with no_grad():
                made = gnp.sin(v)
        self.constants.setdefault(step, made.numpy().copy())
        return made

    def write(self, random: Any, pool: list[Tensor]) -> None:
        """Write into a copy of something, with a slice and the original in use."""
        b, other = pick(random, pool).copy(), pick(random, pool)
        kind = random.integers(4)
        if kind == 0 or not b.ndim:
            b *= other.sum() * self.dtype(0.1)
        elif kind == 1:
            b[0] = fitted(other, b.shape[1:], 1)
        elif kind == 2:
            piece = b[::-1].copy()
            piece *= self.dtype(0.5)
            b += piece
        else:
            b[tuple([np.zeros(3, int)] * b.ndim)] = fitted(other, (3,), 1)
        pool += [b, b[..., -1:] * self.dtype(0.3)] if b.ndim else [b]

    def sample(self, step: int, random: Any, pool: list[Tensor]) -> None:
        sample = self.first if step == 0 else SMOOTH[random.integers(len(SMOOTH))]
        is_complex = sample.is_complex and random.random() < 0.4
        dtype = np.result_type(self.dtype, np.complex64) if is_complex else self.dtype
        arguments: list[Any] = sample.make(dtype)
        for k in sample.where:
            arguments[k] = self.argument(random, pool, arguments[k], sample, k)
        if self.used.get(step) == []:
            return
        try:
            results = flat(sample.call(gnp, *arguments))
        except ValueError:  # the arguments were moved out of what it takes
            self.used[step] = []
            with pytest.raises(ValueError):  # noqa: PT011  # NumPy says why
                sample.expected(*map(raw, arguments))
            return
        if step not in self.used:
            usable = [k for k, y in enumerate(results) if y.dtype.kind in "fc" and 0 < y.size < 400]
            usable = [k for k in usable if np.isfinite(results[k].numpy()).all()]
            self.used[step] = [k for k in usable if random.random() < 0.6] or usable[:1]
            self.names.append(str(sample))
        for k in self.used[step]:
            y = results[k]
            y = y.real * 0.7 + y.imag * 0.4 if y.dtype.kind == "c" else y
            y = y if y.dtype == self.dtype else y.astype(self.dtype)
            pool.append(y / gnp.sqrt(1 + 0.1 * y * y))

    def argument(self, random: Any, pool: list[Tensor], base: Array, sample: Sample, k: int) -> Any:
        """What the sample takes, moved a little by something that was computed."""
        if base.dtype.kind not in "fc" or not base.size:
            return tensor(base)
        arg = sample.args[k]
        scale = 0.04 * (arg.high - arg.low if arg.values is None else 1.0)
        move = gnp.sin(fitted(pick(random, pool), base.shape, int(random.integers(1, 5))))
        if base.dtype.kind == "c":
            move = move + gnp.cos(fitted(pick(random, pool), base.shape, 1)) * base.dtype.type(1j)
        return move * base.dtype.type(scale) + base


def pick(random: Any, pool: list[Tensor]) -> Tensor:
    return pool[random.integers(len(pool))]
