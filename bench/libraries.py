"""NumPy by hand and gradmgr, each doing the same programs; `peers` has the other libraries.

A library offers:

    idle(operation, arrays)                 the op with nothing recorded, or None where that is bare NumPy
    recorded(operation, arrays, leaves)     the op recorded, on leaves or on intermediates
    gradients(operation, arrays)            value and gradients of the summed result
    backward(operation, arrays, dy, count)  f() -> seconds of a backward through so many of the op, all of the same
                                            inputs; or None where the library cannot tell that by itself
    chain(program)                          f() -> z and the gradients, in the library's own type: forward and
                                            backward once
    arrays(values)                          those as NumPy arrays
    network(program)                        step() -> loss, and parameters(): one optimiser step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import numpy as np

import gradmgr.numpy as gnp
from bench._measure import Answer, Run, Session, always
from bench.operations import Array, Chain, Network, Operation
from gradmgr import GradManager, tensor


class Trained(Protocol):
    """A network being trained."""

    def step(self) -> Any: ...

    def parameters(self) -> list[Array]: ...


class Library(Protocol):
    """What `atoms` asks of each library."""

    name: str

    def idle(self, operation: Operation, arrays: list[Array]) -> Session | None: ...

    def recorded(self, operation: Operation, arrays: list[Array], *, leaves: bool) -> Session: ...

    def gradients(self, operation: Operation, arrays: list[Array]) -> Answer: ...

    def backward(
        self, operation: Operation, arrays: list[Array], dy: Array, count: int
    ) -> Callable[[], float] | None: ...

    def chain(self, program: Chain) -> Callable[[], list[Any]]: ...

    def arrays(self, values: list[Any]) -> Answer: ...

    def network(self, program: Network) -> Trained: ...


# ---------------------------------------------------------------- NumPy by hand


def gradient_of(t: Any) -> Array:
    """Return the values of a Tensor's gradient, which is there after a backward."""
    return t.grad.numpy()


def bare(operation: Operation, arrays: list[Array]) -> Session:
    """Return the op on plain arrays."""
    return always(lambda n: operation.times(np, n, *arrays))


def by_hand(operation: Operation, arrays: list[Array]) -> Answer:
    """Return value and gradients of the summed result."""
    return [operation.once(np, *arrays), *operation.gradients(*arrays)]


def backward_by_hand(operation: Operation, arrays: list[Array], dy: Array, count: int) -> Callable[[], float]:
    """Return the arithmetic of the op's rule, so many times, and that of adding up what it gives."""
    out, rule = operation.once(np, *arrays), operation.rule

    def seconds() -> float:
        start = perf_counter()
        sums = [np.array(d) for d in rule(dy, out, *arrays)]
        for _ in range(count - 1):
            for total, d in zip(sums, rule(dy, out, *arrays), strict=True):
                total += d
        return perf_counter() - start

    return seconds


def chain_by_hand(program: Chain) -> Callable[[], Answer]:
    """Return what a person would write: the values kept where the derivative needs them, and no more."""
    x, y, length = program.x, program.y, program.length

    def to_x() -> Answer:
        z = x
        for _ in range(length):
            z = z * y
        g = program.dy
        for _ in range(length):
            g = g * y
        return [z, g]

    def to_both() -> Answer:
        z, kept = x, []
        for _ in range(length):
            kept.append(z)
            z = z * y
        g = program.dy
        of_y = g * kept.pop()
        g = g * y
        while kept:
            of_y += g * kept.pop()
            g = g * y
        return [z, g, of_y]

    return to_both if program.both else to_x


class NetworkByHand:
    """The step a person would write, in place where that is easy to see."""

    def __init__(self, program: Network) -> None:
        self.program = program
        self.layers = [(w.copy(), b.copy()) for w, b in program.layers]

    def step(self) -> Any:
        program, layers = self.program, self.layers
        h, kept = program.x, []
        for w, b in layers[:-1]:
            kept.append(h)
            h = h @ w
            h += b
            np.tanh(h, out=h)
        kept.append(h)
        w, b = layers[-1]
        d = h @ w
        d += b
        d -= program.target
        loss = (d * d).mean()
        d *= 2 / d.size
        for k in reversed(range(len(layers))):
            w, b = layers[k]
            h = kept[k]
            of_w, of_b = h.T @ d, d.sum(axis=0)
            if k:
                d = d @ w.T
                h *= h
                np.subtract(1, h, out=h)
                d *= h
            of_w *= program.rate
            of_b *= program.rate
            w -= of_w
            b -= of_b
        return loss

    def parameters(self) -> list[Array]:
        return [p for layer in self.layers for p in layer]


# ---------------------------------------------------------------- gradmgr


class Gradmgr:
    """The library that this repository holds."""

    name = "gradmgr"

    def idle(self, operation: Operation, arrays: list[Array]) -> Session:
        tensors = [tensor(a) for a in arrays]
        return always(lambda n: operation.times(gnp, n, *tensors))

    def recorded(self, operation: Operation, arrays: list[Array], *, leaves: bool) -> Session:
        tensors = [tensor(a) for a in arrays]
        gm = GradManager().attach(tensors)

        @contextmanager
        def session() -> Iterator[Run]:
            with gm:
                operands = tensors if leaves else [t * 1.0 for t in tensors]
                yield lambda n: operation.times(gnp, n, *operands)

        return session

    def gradients(self, operation: Operation, arrays: list[Array]) -> Answer:
        tensors = [tensor(a) for a in arrays]
        gm = GradManager().attach(tensors)
        with gm:
            z = operation.once(gnp, *tensors)
            gm.backward(z, np.ones_like(z.numpy()))
        return [z.numpy(), *(gradient_of(t) for t in tensors)]

    def backward(
        self,
        operation: Operation,
        arrays: list[Array],
        dy: Array,
        count: int,
        keep: Callable[[list[Array]], None] = lambda gradients: None,
    ) -> Callable[[], float]:
        tensors = [tensor(a) for a in arrays]
        gm = GradManager().attach(tensors)

        def seconds() -> float:
            with gm:
                results = [operation.once(gnp, *tensors) for _ in range(count)]
                start = perf_counter()
                gm.backward(results, [dy] * count)
                spent = perf_counter() - start
            keep([gradient_of(t) for t in tensors])
            gm.clear_grad()
            return spent

        return seconds

    def chain(self, program: Chain) -> Callable[[], list[Any]]:
        x, y, dy, length = tensor(program.x), tensor(program.y), tensor(program.dy), program.length
        attached = [x, y] if program.both else [x]
        gm = GradManager().attach(attached)

        def forward_backward() -> list[Any]:
            with gm:
                z = x
                for _ in range(length):
                    z = z * y
                gm.backward(z, dy)
            gradients = [t.grad for t in attached]
            for t in attached:
                t.grad = None
            return [z, *gradients]

        return forward_backward

    def arrays(self, values: list[Any]) -> Answer:
        return [t.numpy() for t in values]

    def network(self, program: Network) -> Trained:
        return _NetworkHere(program)


class _NetworkHere:
    def __init__(self, program: Network) -> None:
        self.rate = program.rate
        self.x, self.target = tensor(program.x), tensor(program.target)
        self.layers = [(tensor(w), tensor(b)) for w, b in program.layers]
        self.attached: list[Any] = [p for layer in self.layers for p in layer]
        self.gm = GradManager().attach(self.attached)

    def step(self) -> Any:
        with self.gm as gm:
            h = self.x
            for w, b in self.layers[:-1]:
                h = gnp.tanh(h @ w + b)
            w, b = self.layers[-1]
            loss = gnp.mean((h @ w + b - self.target) ** 2)
            gm.backward(loss)
        for p in self.attached:
            p -= self.rate * p.grad
            p.grad = None
        return loss.item()

    def parameters(self) -> list[Array]:
        return [p.numpy() for p in self.attached]
