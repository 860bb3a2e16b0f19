"""What the table of samples is made of, and how its samples are run.

A sample's call takes a namespace `xp` and its arguments, so that the same call runs on Tensors
(`xp` is gradmgr.numpy, or plain numpy, which dispatches) and on NumPy's or CuPy's arrays. It leaves
its arguments as they are: what writes in place, writes to a copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from helpers import pop_grad, tracks

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray
from gradmgr._arrays.libraries import to_device
from gradmgr._transforms.grad import grad

Array = Any

# real: real inputs only; complex: complex ones too, the derivative being real-linear;
# analytic: the complex step serves as well.
Field = Literal["real", "complex", "analytic"]


@dataclass(frozen=True)
class Arg:
    """One argument: uniform in [low, high] of a shape, or given values; constant if not differentiated."""

    shape: tuple[int, ...] = (3, 4)
    low: float = -2.0
    high: float = 2.0
    values: Any = None
    constant: bool = False

    def make(self, random: np.random.Generator, dtype: Any = np.float64) -> Array:
        """Return a new array. Given integers and booleans keep their dtype."""
        if self.values is not None:
            values = np.array(self.values)
            return values if values.dtype.kind in "biu" else values.astype(dtype)
        values = random.uniform(self.low, self.high, self.shape)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * random.uniform(-0.7, 0.7, self.shape)
        return np.array(values, dtype=dtype)


@dataclass(frozen=True)
class Sample:
    """One call of one function.

    `name` is a name of gradmgr.numpy, or begins with "Tensor.", "special.", "sparse.", "nn." or "engine.".
    """

    name: str
    case: str
    call: Callable[..., Any]
    args: tuple[Arg, ...]
    field: Field = "real"
    smooth: bool = True  # whether numeric differences give the derivative here
    reference: Callable[..., Any] | None = None  # what it should compute, where the call cannot run on plain arrays
    dispatches: bool = True  # whether plain numpy functions bring the call to us
    repeats: bool = False  # whether it writes one element twice; refused on a GPU, where the order is undefined
    writes: bool = False  # whether it writes into a copy of its first argument, whose dtype stays
    third: bool = False  # whether the third derivative is checked, too

    def __str__(self) -> str:
        return f"{self.name}-{self.case}"

    def make(self, dtype: Any = np.float64) -> list[Array]:
        """Return the arguments as new plain arrays, the same at every call."""
        key = str(self), dtype
        if key not in _made:
            random = np.random.default_rng(zlib.crc32(key[0].encode()))
            _made[key] = [arg.make(random, dtype) for arg in self.args]
        return [a.copy() for a in _made[key]]

    @property
    def where(self) -> list[int]:
        """The positions of the arguments that are differentiated."""
        return [k for k, arg in enumerate(self.args) if not arg.constant]

    @property
    def is_complex(self) -> bool:
        """Whether it takes complex arguments."""
        return self.field != "real"

    def expected(self, *arrays: Array) -> Any:
        """What NumPy computes of these arrays."""
        return self.call(np, *arrays) if self.reference is None else self.reference(*arrays)


SAMPLES: list[Sample] = []
_entered: set[str] = set()
_made: dict[tuple[str, Any], list[Array]] = {}  # by sample and dtype: each is asked for some forty times

X = Arg()
POSITIVE = Arg(low=0.4, high=2.0)
CUBE = Arg((2, 3, 4))
MATRIX = Arg((3, 3))
VECTOR = Arg((4,))
SCALAR = Arg(())
EMPTY = Arg((0, 3))
MASK = Arg(values=[[True, False, True, True], [False, False, True, False], [True, True, True, False]], constant=True)
ROW_MASK = Arg(values=[True, False, True], constant=True)


# What is said of a sample that takes complex arguments and of which the complex step gives the derivative.
ANALYTIC: dict[str, Any] = {"field": "analytic"}


def add(name: str, case: str, call: Callable[..., Any], *args: Arg, **facts: Any) -> None:
    """Enter one sample; a name and case may be in the table only once."""
    sample = Sample(name, case, call, args, **facts)
    if str(sample) in _entered:
        raise ValueError(f"sample {sample} is in the table twice")
    _entered.add(str(sample))
    SAMPLES.append(sample)


def function(name: str, case: str, *args: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Enter the call xp.name(*args, **keywords); the name may have a dot, as "linalg.inv"."""
    find = attrgetter(name)
    add(name, case, lambda xp, *given: find(xp)(*given, **keywords), *args, **(facts or {}))


def method(name: str, case: str, *args: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Enter the call args[0].name(*args[1:], **keywords)."""
    add(f"Tensor.{name}", case, lambda xp, x, *more: getattr(x, name)(*more, **keywords), *args, **(facts or {}))


def given(values: Any) -> Arg:
    """A constant argument."""
    return Arg(values=values, constant=True)


def at(values: Any) -> Arg:
    """A differentiated argument with these values."""
    return Arg(values=values)


# Functions whose results carry no gradient: name -> calls on two real matrices; the result must be NumPy's and
# unknown to every manager.
CONSTANTS: dict[str, list[Callable[..., Any]]] = {}
# Creation functions: name -> calls; gradmgr.numpy's give Tensors of NumPy's values.
CREATION: dict[str, list[Callable[..., Any]]] = {}

# ---------------------------------------------------------------- running samples


def flat(result: Any) -> list[Any]:
    """All results of a call: it may return one, or a list or tuple of them."""
    return [part for one in result for part in flat(one)] if isinstance(result, (list, tuple)) else [result]


def tensors(sample: Sample, arrays: list[Array]) -> list[Any]:
    """The arguments with those that are differentiated as Tensors, which share the arrays."""
    return [a if arg.constant else asarray(a) for arg, a in zip(sample.args, arrays, strict=True)]


def seeds(outs: list[Any]) -> list[np.ndarray]:
    """A cotangent for each result, on the host."""
    return [_seed(5 + k, y.shape, y.dtype).copy() for k, y in enumerate(outs)]


@cache
def _seed(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = np.asarray(random.uniform(0.5, 1.5, shape))
    values = values + 1j * random.uniform(-1, 1, shape) if dtype.kind == "c" else values
    return values.astype(dtype)


def gradients(sample: Sample, arrays: list[Array]) -> list[Any]:
    """What one manager gives to each argument that is differentiated: arrays, zeros where it gives none."""
    points = tensors(sample, arrays)
    attached = [points[k] for k in sample.where]
    manager = GradManager().attach(attached)
    with manager:
        outs = [y for y in flat(sample.call(gnp, *points)) if tracks(manager, y)]
        manager.backward(outs, _seeds_beside(outs))
    return [pop_gradient_array(t) for t in attached]


def twice_on_one_tape(sample: Sample, arrays: list[Array]) -> tuple[list[Any], list[Any]]:
    """First and second derivatives by grad(create_graph=True); the second with respect to the cotangents, too."""
    points = tensors(sample, arrays)
    xs = [points[k] for k in sample.where]
    gm = GradManager().attach(xs)
    with gm:
        made = flat(sample.call(gnp, *points))
        us = [asarray(u) for u in _seeds_beside(made)]
        gm.attach(us)
        pairs = [(y, u) for y, u in zip(made, us, strict=True) if tracks(gm, y)]
        outs, dys = [y for y, _ in pairs], [u for _, u in pairs]
        # A sample whose results are all constants has no outputs, which grad() refuses: its gradients are None.
        first = grad(outs, xs, dys, create_graph=True, allow_unused=True) if outs else [None] * len(xs)
        weights = [u * 0.7 for u in _seeds_beside(xs)]
        weighted = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and tracks(gm, g)]
        there, along = [g for g, _ in weighted], [w for _, w in weighted]
        second = grad(there, [*xs, *us], along, create_graph=True, materialize_grads=True) if there else []
        assert gm._recording()
    return [_zeros_for(g, x) for g, x in zip(first, xs, strict=True)], list(second) or [*map(gnp.zeros_like, xs + us)]


def _seeds_beside(outs: list[Any]) -> list[Array]:
    """A cotangent for each result, on its device."""
    return [to_device(u, y.device) for u, y in zip(seeds(outs), outs, strict=True)]


def _zeros_for(g: Tensor | None, x: Tensor) -> Tensor:
    return gnp.zeros_like(x) if g is None else g


def wide(x: Any) -> Any:
    """Return a half in float32, the narrowest dtype that numpy.linalg and scipy.special compute in."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def pop_gradient_array(t: Tensor) -> Any:
    """Return the array in `.grad`, zeros for None; `.grad` is None afterwards."""
    g = pop_grad(t)
    return gnp.zeros_like(t)._array if g is None else g._array
