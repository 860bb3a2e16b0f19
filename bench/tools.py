"""The suite `tools`: what the tools of the torch.autograd page cost, each against the plain way."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np

import gradmgr
import gradmgr.numpy as gnp
from bench._measure import Answer, Contestant, Pace, Row, Table, Verdict, always, quartiles_of, race, ratio
from bench.layers import torch
from gradmgr import GradManager, Tensor, checkpoint, checkpoint_sequential, functional, special, tensor, vmap
from gradmgr.function import Function, custom_op

# ---------------------------------------------------------------- many derivatives at once


def jacobian(pace: Pace, width: int = 128) -> list[Row]:
    """The Jacobian of a network of two layers, by a loop of backward calls and by `functional.jacobian`."""
    return [_jacobian(pace, width, dtype) for dtype in ("float32", "float64")]


def _jacobian(pace: Pace, width: int, dtype: str) -> Row:
    rng = np.random.default_rng(0)
    w1, w2 = (rng.normal(0, width**-0.5, (width, width)).astype(dtype) for _ in range(2))
    x = tensor(rng.normal(size=width), dtype=dtype)

    def network(x: Tensor) -> Any:
        return gnp.tanh(x @ w1) @ w2

    def loop() -> Any:
        rows = []
        gm = GradManager().attach(x)
        with gm:
            y = network(x)
            for unit in np.eye(width, dtype=dtype):
                x.grad = None
                gm.backward(y, unit, retain=True)
                rows.append(x.grad)
        x.grad = None
        return np.stack([row.numpy() for row in rows])

    ways = [("loop", loop)]
    for strategy, label in (("forward-mode", "forward"), ("reverse-mode", "reverse")):
        ways.append((label, lambda s=strategy: functional.jacobian(network, x, vectorize=True, strategy=s)))
    return _against_the_first(f"jacobian of a network {width} -> {width}, {dtype}", ways, pace, 0.1)


def per_sample(pace: Pace, batch: int = 256) -> list[Row]:
    """The gradient of each sample's loss, by a loop and by vmap: the network of examples/digits.py, and a smaller one.

    In the larger one 39 MB of gradients are written, which bare NumPy's outer products take half of vmap's time for.
    """
    return [_per_sample(pace, batch, 256, 0.05), _per_sample(pace, batch, 32, None)]


def _per_sample(pace: Pace, batch: int, hidden: int, limit: float | None) -> Row:
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(batch, 64)), rng.integers(0, 10, batch)
    weights = [tensor(rng.normal(0, 0.2, shape)) for shape in ((64, hidden), (hidden,), (hidden, 10), (10,))]

    def loss(weights: Sequence[Any], image: Any, label: Any) -> Any:
        w1, b1, w2, b2 = weights
        z = gnp.maximum(image @ w1 + b1, 0) @ w2 + b2
        return special.logsumexp(z) - z[label]

    def loop() -> Any:
        gm = GradManager().attach(weights)
        found = []
        for image, label in zip(images, labels, strict=True):
            with gm:
                gm.backward(loss(weights, image, label))
            found.append([w.grad.numpy() for w in weights])
            gm.clear_grad()
        return [np.stack(parts) for parts in zip(*found, strict=True)]

    at_once = vmap(functional.grad(loss), in_dims=(None, 0, 0))
    ways = [("loop", loop), ("vmap", lambda: at_once(weights, images, labels))]
    return _against_the_first(f"per-sample gradients, network 64-{hidden}-10, batch {batch}", ways, pace, limit)


# ---------------------------------------------------------------- checkpoints


def _chain_of_layers(count: int, batch: int, width: int) -> tuple[list[Tensor], list[Callable[[Any], Any]], Tensor]:
    rng = np.random.default_rng(0)
    weights = [tensor(rng.normal(0, width**-0.5, (width, width)).astype(np.float32)) for _ in range(count)]
    layers = [lambda x, w=w: x @ w for w in weights]
    return weights, layers, tensor(rng.normal(size=(batch, width)).astype(np.float32))


def checkpoints(pace: Pace, count: int = 1000) -> list[Row]:
    """A chain of products, plain and in checkpoints of about the square root of its length.

    Memory is taken with few weights and many samples, where it is activations and not gradients of weights.
    """
    return [_checkpointed(count, 128, 128, pace), *_checkpointed_memory(count, 1024, 32)]


def _ways(count: int, batch: int, width: int) -> dict[str, Callable[[], Any]]:
    weights, layers, x = _chain_of_layers(count, batch, width)
    gm = GradManager().attach([*weights, x])

    def plain(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    def step(forward: Callable[[Any], Any]) -> Any:
        gm.clear_grad()
        with gm:
            gm.backward(forward(x).sum())
        return [x.grad.numpy(), weights[count // 2].grad.numpy()]

    segments = round(count**0.5)
    return {
        "plain": lambda: step(plain),
        "checkpoints": lambda: step(lambda x: checkpoint_sequential(layers, segments, x)),
    }


def _checkpointed(count: int, batch: int, width: int, pace: Pace) -> Row:
    label = f"{count} products of {batch}x{width} and {width}x{width}, time"
    return _against_the_first(label, list(_ways(count, batch, width).items()), pace, 1.6)


def _checkpointed_memory(count: int, batch: int, width: int) -> list[Row]:
    peaks = {name: _peak(step) for name, step in _ways(count, batch, width).items()}
    share = peaks["checkpoints"] / peaks["plain"]
    label = (
        f"{count} products of {batch}x{width} and {width}x{width}, peak memory: {peaks['plain'] / 2**20:.0f} MiB plain"
    )
    return [Row(label, {"checkpoints": share}, (Verdict("memory, checkpoints / plain", share, 0.10),))]


def _peak(step: Callable[[], Any]) -> int:
    """Return the most memory a step takes at once."""
    step()
    tracemalloc.start()
    step()  # the gradients from before, which it clears, were not traced
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


# ---------------------------------------------------------------- looking on


def _recording(size: int, around: Callable[[], AbstractContextManager[Any]], length: int = 50) -> Callable[[], Any]:
    """Record a chain of products of so many elements, in a block."""
    x, y = tensor(np.full(size, 1.001)), tensor(np.full(size, 0.999))
    gm = GradManager().attach([x, y])

    def forward() -> Any:
        with ExitStack() as stack:
            stack.enter_context(around())
            stack.enter_context(gm)
            z = x
            for _ in range(length):
                z = z * y
        return [z.numpy()]

    return forward


def profiler_and_anomaly_detection(pace: Pace) -> list[Row]:
    """A recorded chain of 50 products, plain, under the profiler and under anomaly detection."""
    blocks = {"profiler": gradmgr.profiler.profile, "anomaly": gradmgr.detect_anomaly}
    limits = {(100_000, "profiler"): 1.3, (10_000, "anomaly"): 1.5, (8, "anomaly"): 3.0}
    rows = []
    for size in (8, 10_000, 100_000):
        for name, block in blocks.items():
            ways = [("plain", _recording(size, gradmgr.enable_grad)), (name, _recording(size, block))]
            rows.append(_against_the_first(f"{name}, {size} elements", ways, pace, limits.get((size, name))))
    ways = [("plain", _recording(8, gradmgr.enable_grad)), ("profiler off", _after_profiling())]
    rows.append(_against_the_first("after a profiler was there, 8 elements", ways, pace, None))
    return rows


def _after_profiling() -> Callable[[], Any]:
    with gradmgr.profiler.profile():
        _recording(8, gradmgr.enable_grad)()
    return _recording(8, gradmgr.enable_grad)


# ---------------------------------------------------------------- the user's own code, against PyTorch


class _Square(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x + x)


@custom_op(derivative={"x": lambda t, x: t * (x + x)})
def _square(x: Any) -> Any:
    return x * x


def _halved(g: Any) -> Any:
    return g * 0.5


def _kept(t: Any) -> Any:
    return t


def _deep(x: Any, weights: Sequence[Any], tanh: Callable[[Any], Any]) -> Any:
    for w in weights:
        x = tanh(x @ w)
    return x


_LENGTH, _SIZE = 50, 8


def own_code(pace: Pace, threads: int) -> list[Row]:
    """Chains of 50 calls on 8 elements: Function, custom_op, hooks; and a checkpoint; each over PyTorch's own."""
    there = torch(threads)
    if there is None:
        return []

    class Square(there.autograd.Function):  # type: ignore[misc, name-defined]  # torch is imported where it is installed
        forward, backward = staticmethod(_Square.forward), staticmethod(_Square.backward)

    def hooked(z: Any) -> Any:
        z = z * 1.01
        z.register_hook(_halved)
        return z

    def product(z: Any) -> Any:
        return z * z

    ours_saved, theirs_saved = (h.saved_tensors_hooks for h in (gradmgr.graph, there.autograd.graph))
    rows = []
    for label, ours, theirs, ours_around, theirs_around, limit in (
        ("Function", _Square.apply, Square.apply, nullcontext, nullcontext, 1.5),
        ("custom_op over Function", _square, Square.apply, nullcontext, nullcontext, 1.5),
        ("hooks of Tensors", hooked, hooked, nullcontext, nullcontext, None),
        (
            "hooks of saved values",
            product,
            product,
            lambda: ours_saved(_kept, _kept),
            lambda: theirs_saved(_kept, _kept),
            None,
        ),
    ):
        for back in (False, True):
            ways = [
                ("PyTorch", _chain_in_torch(there, theirs, theirs_around, back=back)),
                ("gradmgr", _chain(ours, ours_around, back=back)),
            ]
            title = f"{label}, {'forward and backward' if back else 'forward'}"
            rows.append(_against_the_first(title, ways, pace, None if back else limit))
    return [*rows, _checkpoint_row(there, pace)]


def _chain(
    f: Callable[[Any], Any], around: Callable[[], AbstractContextManager[Any]], *, back: bool
) -> Callable[[], Any]:
    x = tensor(np.linspace(0.9, 1, _SIZE))
    gm = GradManager().attach(x)

    def run() -> Any:
        x.grad = None
        with around(), gm:
            z = x
            for _ in range(_LENGTH):
                z = f(z)
            if back:
                gm.backward(z, np.ones(_SIZE))
        return [z, x.grad] if back else [z]

    return run


def _chain_in_torch(
    torch: Any, f: Callable[[Any], Any], around: Callable[[], AbstractContextManager[Any]], *, back: bool
) -> Callable[[], Any]:
    x = torch.linspace(0.9, 1, _SIZE, dtype=torch.float64).requires_grad_()
    dy = torch.ones(_SIZE, dtype=torch.float64)

    def run() -> Any:
        x.grad = None
        with around():
            z = x
            for _ in range(_LENGTH):
                z = f(z)
            if back:
                z.backward(dy)
        return [z.detach(), x.grad] if back else [z.detach()]

    return run


def _checkpoint_row(there: Any, pace: Pace) -> Row:
    """A checkpoint of ten small layers, forward and backward."""
    rng = np.random.default_rng(0)
    values, start = rng.normal(0, 0.2, (10, 16, 16)), rng.normal(size=(8, 16))
    weights, x = [tensor(w) for w in values], tensor(start)
    gm = GradManager().attach([*weights, x])

    def ours() -> Any:
        gm.clear_grad()
        with gm:
            gm.backward(checkpoint(lambda x: _deep(x, weights, gnp.tanh), x).sum())
        return [x.grad, weights[0].grad]

    from torch.utils.checkpoint import checkpoint as checkpoint_in_torch

    learned, given = [there.tensor(w).requires_grad_() for w in values], there.tensor(start).requires_grad_()

    def theirs() -> Any:
        for t in (given, *learned):
            t.grad = None
        checkpoint_in_torch(lambda x: _deep(x, learned, there.tanh), given, use_reentrant=False).sum().backward()
        return [given.grad, learned[0].grad]

    return _against_the_first("checkpoint of ten layers 8x16", [("PyTorch", theirs), ("gradmgr", ours)], pace, None)


# ---------------------------------------------------------------- tables


def _against_the_first(label: str, ways: Sequence[tuple[str, Callable[[], Any]]], pace: Pace, limit: Any) -> Row:
    """Race ways to compute the same; what counts is the fastest of the others over the first."""
    contestants = [Contestant(name, _session(f), lambda f=f: _answer(f())) for name, f in ways]
    times = race(label, contestants, pace)
    first, *others = [name for name, _ in ways]
    cells = {"µs": statistics.median(times[first]) * 1e6} | {name: ratio(times, name, first) for name in others}
    best = min(others, key=cells.__getitem__)
    verdicts = () if limit is None else (Verdict(f"{best} / {first}", cells[best], limit),)
    return Row(label, cells, verdicts, {name: quartiles_of(times, name, first) for name in others})


def _session(f: Callable[[], Any]) -> Any:
    def run(n: int) -> None:
        for _ in range(n):
            f()

    return always(run)


def _answer(found: Any) -> Answer:
    many = found if isinstance(found, (list, tuple)) else [found]
    return [part.numpy() if isinstance(part, Tensor) else np.asarray(part) for part in many]


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks those whose title contains it."""
    sections: list[tuple[str, list[str], Callable[[Pace], list[Row]]]] = [
        ("Jacobian", ["forward", "reverse"], jacobian),
        ("Per-sample gradients", ["vmap"], per_sample),
        ("Checkpoints", ["checkpoints"], checkpoints),
        ("Profiler and anomaly detection", ["profiler", "anomaly", "profiler off"], profiler_and_anomaly_detection),
        ("Own operations, hooks, checkpoints", ["gradmgr"], partial(own_code, threads=threads)),
    ]
    note = (
        "time over that of the first way, which is in microseconds; where there is only gradmgr, PyTorch is the first"
    )
    for title, columns, measure in sections:
        if only.lower() in title.lower():
            formats = {"µs": "{:.3g}"} | dict.fromkeys(columns, "{:.3f}x")
            yield Table(title, formats, measure(pace), note)
