"""The suite `layers`: a step of each optimiser, the functions of `nn`, steps by the rows of a table."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import gradmgr
from bench._measure import Answer, Contestant, Pace, Row, Table, Verdict, always, quartiles_of, race, ratio
from gradmgr import GradManager, Tensor, optim
from gradmgr.nn import functional

Array = Any
Shapes = Sequence[tuple[int, ...]]


def torch(threads: int) -> ModuleType | None:
    """Return PyTorch, told how many threads to use, or None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(threads)
    return torch


def _row(label: str, contestants: Sequence[Contestant], pace: Pace, limits: dict[str, tuple[str, float]]) -> Row:
    """Race contestants: the first in microseconds, the others over it; `limits` maps names to (base, its limit)."""
    times = race(label, contestants, pace)
    first, *others = [c.name for c in contestants]
    cells = {"µs": statistics.median(times[first]) * 1e6} | {name: ratio(times, name, first) for name in others}
    verdicts = tuple(
        Verdict(f"{name} / {base}", ratio(times, name, base), limit)
        for name, (base, limit) in limits.items()
        if base in times
    )
    return Row(label, cells, verdicts, {name: quartiles_of(times, name, first) for name in others})


# ---------------------------------------------------------------- optimisers

ALGORITHMS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3},
    "SGD, momentum": {"lr": 1e-3, "momentum": 0.9},
    "Adam": {"lr": 1e-3},
    "AdamW": {"lr": 1e-3},
}
PARAMETERS: dict[str, Shapes] = {
    "100 x 1,000": [(1000,)] * 100,
    "1,000 x 1,000": [(1000, 1000)],
    "8x16x3": [(8, 16), (16,), (16, 16), (16,), (16, 1), (1,)],
}


def _values(shapes: Shapes) -> tuple[list[Array], list[Array]]:
    rng = np.random.default_rng(0)
    values, slopes = ([rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(2))
    return values, slopes


def _ours(name: str, shapes: Shapes) -> Contestant:
    def made() -> tuple[list[Tensor], optim.Optimizer]:
        values, slopes = _values(shapes)
        parameters = [gradmgr.tensor(a) for a in values]
        for p, g in zip(parameters, slopes, strict=True):
            p.grad = gradmgr.tensor(g)
        return parameters, getattr(optim, name.partition(",")[0])(parameters, **ALGORITHMS[name])

    return _stepping("gradmgr", made, lambda p: p.numpy())


def _torchs(name: str, shapes: Shapes, torch: Any, label: str, **how: Any) -> Contestant:
    def made() -> tuple[list[Any], Any]:
        values, slopes = _values(shapes)
        parameters = [torch.nn.Parameter(torch.tensor(a)) for a in values]
        for p, g in zip(parameters, slopes, strict=True):
            p.grad = torch.tensor(g)
        return parameters, getattr(torch.optim, name.partition(",")[0])(parameters, **ALGORITHMS[name], **how)

    return _stepping(label, made, lambda p: p.detach().numpy())


def _stepping(label: str, made: Callable[[], tuple[list[Any], Any]], array: Callable[[Any], Array]) -> Contestant:
    _, timed = made()

    def run(n: int) -> None:
        for _ in range(n):
            timed.step()

    def answer() -> Answer:
        parameters, optimizer = made()
        for _ in range(3):
            optimizer.step()
        return [array(p) for p in parameters]

    return Contestant(label, always(run), answer)


class ByHand:
    """The formulas in NumPy, parameter by parameter, in place."""

    def __init__(self, name: str, values: list[Array], slopes: list[Array]) -> None:
        self.update = getattr(self, f"_{name.partition(',')[0].lower()}")
        self.options = ALGORITHMS[name]
        self.parameters, self.slopes = values, slopes
        self.first = [np.zeros_like(p) for p in values]
        self.second = [np.zeros_like(p) for p in values]
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        for parts in zip(self.parameters, self.slopes, self.first, self.second, strict=True):
            self.update(*parts)

    def _sgd(self, p: Array, g: Array, m: Array, _: Array) -> None:
        if "momentum" in self.options:
            m *= self.options["momentum"]
            m += g
            g = m
        p -= self.options["lr"] * g

    def _adam(self, p: Array, g: Array, m: Array, v: Array) -> None:
        m += 0.1 * (g - m)
        v += 0.001 * (g * g - v)
        p -= self.options["lr"] / (1 - 0.9**self.steps) * m / (np.sqrt(v / (1 - 0.999**self.steps)) + 1e-8)

    def _adamw(self, p: Array, g: Array, m: Array, v: Array) -> None:
        p *= 1 - self.options["lr"] * 0.01
        self._adam(p, g, m, v)


def _by_hand(name: str, shapes: Shapes) -> Contestant:
    def made() -> tuple[list[Array], ByHand]:
        values, slopes = _values(shapes)
        return values, ByHand(name, values, slopes)

    return _stepping("NumPy", made, lambda p: p)


def optimisers(pace: Pace, threads: int, parameters: dict[str, Shapes] = PARAMETERS) -> list[Row]:
    """One step with gradients that are there; PyTorch's default loops over the parameters, `fused` is one kernel."""
    rows = []
    there = torch(threads)
    for label, shapes in parameters.items():
        for name in ALGORITHMS:
            contestants = [_by_hand(name, shapes), _ours(name, shapes)]
            if there is not None:
                contestants = [_torchs(name, shapes, there, "PyTorch"), *contestants]
                contestants.append(_torchs(name, shapes, there, "fused", fused=True))
            limits = {"gradmgr": ("PyTorch", 0.3)} if (label, name) == ("100 x 1,000", "Adam") else {}
            rows.append(_row(f"{name}, {label}", contestants, pace, limits))
    return rows


# ---------------------------------------------------------------- functions

_BATCH, _WIDE = 128, 1024


def _calls() -> dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], dict[str, Array]]]:
    """Shapes of what is differentiated, the call on a namespace of functions and arrays, constants by name."""
    rng = np.random.default_rng(1)
    labels, codes = rng.integers(0, _WIDE, _BATCH), rng.integers(0, 65, (16, 64))
    grid = rng.uniform(-1.1, 1.1, (8, 32, 32, 2)).astype(np.float32)
    return {
        "linear 128x1024x1024": (
            [(_BATCH, _WIDE), (_WIDE, _WIDE), (_WIDE,)],
            lambda f, x, w, b: f.linear(x, w, b),
            {},
        ),
        "conv2d 64x16x14x14, 32 of 3x3": (
            [(64, 16, 14, 14), (32, 16, 3, 3), (32,)],
            lambda f, x, w, b: f.conv2d(x, w, b, padding=1),
            {},
        ),
        "max_pool2d 64x16x28x28": ([(64, 16, 28, 28)], lambda f, x: f.max_pool2d(x, 2), {}),
        "avg_pool2d 64x16x28x28": ([(64, 16, 28, 28)], lambda f, x: f.avg_pool2d(x, 2), {}),
        "interpolate 8x16x32x32 to 64x64": (
            [(8, 16, 32, 32)],
            lambda f, x: f.interpolate(x, scale_factor=2, mode="bilinear"),
            {},
        ),
        "grid_sample 8x16x32x32": (
            [(8, 16, 32, 32)],
            lambda f, x, grid: f.grid_sample(x, grid, align_corners=False),
            {"grid": grid},
        ),
        "batch_norm 64x32x14x14": (
            [(64, 32, 14, 14), (32,), (32,)],
            lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
            {},
        ),
        "layer_norm 128x1024": (
            [(_BATCH, _WIDE), (_WIDE,), (_WIDE,)],
            lambda f, x, w, b: f.layer_norm(x, (_WIDE,), w, b),
            {},
        ),
        "relu 128x1024": ([(_BATCH, _WIDE)], lambda f, x: f.relu(x), {}),
        "gelu 128x1024": ([(_BATCH, _WIDE)], lambda f, x: f.gelu(x), {}),
        "softmax 128x1024": ([(_BATCH, _WIDE)], lambda f, x: f.softmax(x, dim=-1), {}),
        "cross_entropy 128x1024": (
            [(_BATCH, _WIDE)],
            lambda f, x, labels: f.cross_entropy(x, labels),
            {"labels": labels},
        ),
        "embedding 65x128, 1024 codes": (
            [(65, 128)],
            lambda f, w, codes: f.embedding(codes, w),
            {"codes": codes},
        ),
        "attention 16x4x64x32, causal": (
            [(16, 4, 64, 32)] * 3,
            lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
            {},
        ),
    }


# Of which PyTorch takes a half to an eighth of the time where its images have the channels last.
_OF_IMAGES = ("conv2d", "max_pool2d", "avg_pool2d", "batch_norm")


def functions(pace: Pace, threads: int) -> list[Row]:
    """Forward and backward, from a gradient that is there."""
    there, rows = torch(threads), []
    for label, (shapes, call, constants) in _calls().items():
        rng = np.random.default_rng(2)
        arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
        contestants = [_forward_backward(arrays, call, constants)]
        if there is not None:
            laid_out = there.channels_last if label.startswith(_OF_IMAGES) else there.contiguous_format
            contestants = [_forward_backward_in_torch(arrays, call, constants, there, laid_out), *contestants]
        rows.append(_row(label, contestants, pace, {}))
    return rows


def _slope(y: Any) -> Array:
    return np.random.default_rng(3).normal(size=tuple(y.shape)).astype(np.float32)


def _forward_backward(arrays: list[Array], call: Callable[..., Any], constants: dict[str, Array]) -> Contestant:
    inputs = [gradmgr.tensor(a) for a in arrays]
    gm = GradManager().attach(inputs)
    dy = _slope(call(functional, *inputs, **constants))

    def once() -> Any:
        gm.clear_grad()
        with gm:
            y = call(functional, *inputs, **constants)
            gm.backward(y, dy)
        return y

    return _once("gradmgr", once, lambda: [t.grad.numpy() for t in inputs], lambda y: y.numpy())


def _forward_backward_in_torch(
    arrays: list[Array], call: Callable[..., Any], constants: dict[str, Array], torch: Any, laid_out: Any
) -> Contestant:
    def made(a: Array) -> Any:
        return torch.tensor(a).to(memory_format=laid_out) if a.ndim == 4 else torch.tensor(a)

    inputs = [made(a).requires_grad_() for a in arrays]
    fixed = {name: torch.tensor(a) for name, a in constants.items()}
    dy = made(_slope(call(torch.nn.functional, *inputs, **fixed)))

    def once() -> Any:
        for t in inputs:
            t.grad = None
        y = call(torch.nn.functional, *inputs, **fixed)
        y.backward(dy)
        return y

    return _once("PyTorch", once, lambda: [t.grad.numpy() for t in inputs], lambda y: y.detach().numpy())


def _once(
    name: str, once: Callable[[], Any], gradients: Callable[[], list[Array]], array: Callable[[Any], Array]
) -> Contestant:
    def run(n: int) -> None:
        for _ in range(n):
            once()

    def answer() -> Answer:
        y = once()
        return [array(y), *gradients()]

    return Contestant(name, always(run), answer)


# ---------------------------------------------------------------- look-ups

_TABLE = (200_000, 32)
BATCHES = (512, 1280, 4096)


def look_ups(pace: Pace, threads: int, shape: tuple[int, int] = _TABLE, batches: Sequence[int] = BATCHES) -> list[Row]:
    """Forward, backward and a step of SGD by the rows that were read of a table; PyTorch's embedding is sparse."""
    there, rng = torch(threads), np.random.default_rng(4)
    values, rows = rng.normal(size=shape).astype(np.float32), []
    for count in batches:
        places = rng.integers(0, shape[0], count)
        contestants = [
            _looking_up("gradmgr", values, places, lambda w, k: w[k]),
            _looking_up("embedding", values, places, lambda w, k: functional.embedding(k, w, sparse=True)),
        ]
        if there is not None:
            contestants.insert(0, _looking_up_in_torch(values, places, there))
        limits = {"gradmgr": ("PyTorch", 1.2), "embedding": ("PyTorch", 1.2)}
        rows.append(_row(f"{count:,} of {shape[0]:,} x {shape[1]}", contestants, pace, limits))
    return rows


_RATE = 1e-2


def _looking_up(name: str, values: Array, places: Array, read: Callable[[Tensor, Array], Any]) -> Contestant:
    def made() -> tuple[list[Tensor], Any]:
        w = gradmgr.tensor(values)
        gm, optimizer = GradManager().attach(w), optim.SGD([w], lr=_RATE)

        def step() -> None:
            optimizer.zero_grad()
            with gm:
                gm.backward((read(w, places) ** 2).sum())
            optimizer.step()

        return [w], SimpleNamespace(step=step)

    return _stepping(name, made, lambda w: w.numpy())


def _looking_up_in_torch(values: Array, places: Array, torch: Any) -> Contestant:
    def made() -> tuple[list[Any], Any]:
        w = torch.nn.Parameter(torch.tensor(values))
        k, optimizer = torch.tensor(places), torch.optim.SGD([w], lr=_RATE)

        def step() -> None:
            optimizer.zero_grad()
            (torch.nn.functional.embedding(k, w, sparse=True) ** 2).sum().backward()
            optimizer.step()

        return [w], SimpleNamespace(step=step)

    return _stepping("PyTorch", made, lambda w: w.detach().numpy())


_OVER = "µs of PyTorch, or of {} where that is missing, and every other time over that"
_LAST = ";\nPyTorch's images have their channels last, which it computes quickest"


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks those whose title contains it."""
    sections: list[tuple[str, list[str], Callable[[Pace, int], list[Row]], str]] = [
        (
            "Optimisers",
            ["NumPy", "gradmgr", "fused"],
            optimisers,
            f"a step, PyTorch's as it is by default; {_OVER.format('NumPy')}",
        ),
        ("Functions", ["gradmgr"], functions, f"forward and backward; {_OVER.format('gradmgr')}{_LAST}"),
        (
            "Look-ups",
            ["gradmgr", "embedding"],
            look_ups,
            "forward, backward and a step of SGD by rows of a table: table[indices], and embedding(sparse=True) as in "
            f"PyTorch;\n{_OVER.format('gradmgr')}",
        ),
    ]
    for title, columns, measure, note in sections:
        if only.lower() in title.lower():
            formats = {"µs": "{:.3g}"} | dict.fromkeys(columns, "{:.3f}x")
            yield Table(title, formats, measure(pace, threads), note)
