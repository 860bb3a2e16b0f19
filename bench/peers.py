"""PyTorch eager, HIPS autograd and MyGrad, each where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from bench._measure import Answer, Run, Session, always
from bench.libraries import Library, Trained
from bench.operations import Array, Chain, Network, Operation


class PyTorch:
    name = "PyTorch"

    def __init__(self, threads: int) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(threads)

    def _leaf(self, array: Array) -> Any:
        return self.torch.tensor(array, requires_grad=True)

    def idle(self, operation: Operation, arrays: list[Array]) -> Session:
        tensors = [self.torch.tensor(a) for a in arrays]
        return always(lambda n: operation.times(self.torch, n, *tensors))

    def recorded(self, operation: Operation, arrays: list[Array], *, leaves: bool) -> Session:
        tensors = [self._leaf(a) for a in arrays]
        tensors = tensors if leaves else [t * 1.0 for t in tensors]
        return always(lambda n: operation.times(self.torch, n, *tensors))

    def gradients(self, operation: Operation, arrays: list[Array]) -> Answer:
        tensors = [self._leaf(a) for a in arrays]
        z = operation.once(self.torch, *tensors)
        z.sum().backward()
        return [z.detach().numpy(), *(t.grad.numpy() for t in tensors)]

    def backward(self, operation: Operation, arrays: list[Array], dy: Array, count: int) -> Callable[[], float]:
        tensors, seed = [self._leaf(a) for a in arrays], self.torch.tensor(dy)

        def seconds() -> float:
            results = [operation.once(self.torch, *tensors) for _ in range(count)]
            start = perf_counter()
            self.torch.autograd.backward(results, [seed] * count)
            spent = perf_counter() - start
            for t in tensors:
                t.grad = None
            return spent

        return seconds

    def chain(self, program: Chain) -> Callable[[], list[Any]]:
        x, dy, length = self._leaf(program.x), self.torch.tensor(program.dy), program.length
        y = self._leaf(program.y) if program.both else self.torch.tensor(program.y)
        leaves = [x, y] if program.both else [x]

        def forward_backward() -> list[Any]:
            z = x
            for _ in range(length):
                z = z * y
            z.backward(dy)
            gradients = [t.grad for t in leaves]
            for t in leaves:
                t.grad = None
            return [z, *gradients]

        return forward_backward

    def arrays(self, values: list[Any]) -> Answer:
        return [t.detach().numpy() for t in values]

    def network(self, program: Network) -> Trained:
        return _NetworkInTorch(self.torch, program)


class _NetworkInTorch:
    """With the fused linear layer, loss and optimiser, and without the overhead of `nn.Module`."""

    def __init__(self, torch: Any, program: Network) -> None:
        self.tanh, self.functional = torch.tanh, torch.nn.functional
        self.x, self.target = torch.tensor(program.x), torch.tensor(program.target)
        self.layers = [
            (torch.tensor(w.T.copy(), requires_grad=True), torch.tensor(b, requires_grad=True))
            for w, b in program.layers
        ]
        self.optimiser = torch.optim.SGD([p for layer in self.layers for p in layer], lr=program.rate, fused=True)

    def step(self) -> Any:
        linear = self.functional.linear
        h = self.x
        for w, b in self.layers[:-1]:
            h = self.tanh(linear(h, w, b))
        w, b = self.layers[-1]
        loss = self.functional.mse_loss(linear(h, w, b), self.target)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.item()

    def parameters(self) -> list[Array]:
        return [p.detach().numpy() for w, b in self.layers for p in (w.T, b)]


class Autograd:
    name = "autograd"

    def __init__(self, threads: int) -> None:
        self.autograd = importlib.import_module("autograd")
        self.numpy = importlib.import_module("autograd.numpy")
        self.tracer = importlib.import_module("autograd.tracer")
        self.node = importlib.import_module("autograd.core").VJPNode

    def idle(self, operation: Operation, arrays: list[Array]) -> None:
        return None  # its idle values are plain arrays

    def recorded(self, operation: Operation, arrays: list[Array], *, leaves: bool) -> Session:
        @contextmanager
        def session() -> Iterator[Run]:
            with self.tracer.trace_stack.new_trace() as trace:
                boxes = [self.tracer.new_box(a, trace, self.node.new_root()) for a in arrays]
                operands = boxes if leaves else [box * 1.0 for box in boxes]
                yield lambda n: operation.times(self.numpy, n, *operands)

        return session

    def gradients(self, operation: Operation, arrays: list[Array]) -> Answer:
        vjp, z = self.autograd.make_vjp(lambda *t: operation.once(self.numpy, *t), tuple(range(len(arrays))))(*arrays)
        return [z, *vjp(np.ones_like(z))]

    def backward(self, operation: Operation, arrays: list[Array], dy: Array, count: int) -> None:
        return None  # forward and backward are one call

    def chain(self, program: Chain) -> Callable[[], list[Any]]:
        def forward(x: Any, y: Any) -> Any:
            z = x
            for _ in range(program.length):
                z = z * y
            return z

        differentiated = self.autograd.make_vjp(forward, (0, 1) if program.both else (0,))

        def forward_backward() -> list[Any]:
            vjp, z = differentiated(program.x, program.y)
            return [z, *vjp(program.dy)]

        return forward_backward

    def arrays(self, values: list[Any]) -> Answer:
        return values

    def network(self, program: Network) -> Trained:
        return _NetworkInAutograd(self.autograd, self.numpy, program)


class _NetworkInAutograd:
    def __init__(self, autograd: Any, anp: Any, program: Network) -> None:
        self.rate = program.rate
        self.layers = [(w.copy(), b.copy()) for w, b in program.layers]

        def loss(layers: Any) -> Any:
            h = program.x
            for w, b in layers[:-1]:
                h = anp.tanh(h @ w + b)
            w, b = layers[-1]
            return anp.mean((h @ w + b - program.target) ** 2)

        self.value_and_grad = autograd.value_and_grad(loss)

    def step(self) -> Any:
        loss, gradients = self.value_and_grad(self.layers)
        for layer, of_layer in zip(self.layers, gradients, strict=True):
            for p, g in zip(layer, of_layer, strict=True):
                p -= self.rate * g
        return loss

    def parameters(self) -> list[Array]:
        return [p for layer in self.layers for p in layer]


class MyGrad:
    name = "MyGrad"

    def __init__(self, threads: int) -> None:
        self.mygrad = importlib.import_module("mygrad")

    def idle(self, operation: Operation, arrays: list[Array]) -> Session:
        tensors = [self.mygrad.tensor(a) for a in arrays]

        @contextmanager
        def session() -> Iterator[Run]:
            with self.mygrad.no_autodiff:
                yield lambda n: operation.times(self.mygrad, n, *tensors)

        return session

    def recorded(self, operation: Operation, arrays: list[Array], *, leaves: bool) -> Session:
        @contextmanager
        def session() -> Iterator[Run]:
            # Made anew each time: a tensor remembers every op it had a part in.
            tensors = [self.mygrad.tensor(a) for a in arrays]
            operands = tensors if leaves else [t * np.float32(1) for t in tensors]
            yield lambda n: operation.times(self.mygrad, n, *operands)

        return session

    def gradients(self, operation: Operation, arrays: list[Array]) -> Answer:
        tensors = [self.mygrad.tensor(a) for a in arrays]
        z = operation.once(self.mygrad, *tensors)
        z.backward()
        return [z.data, *(t.grad for t in tensors)]

    def backward(self, operation: Operation, arrays: list[Array], dy: Array, count: int) -> None:
        return None  # it begins from one result

    def chain(self, program: Chain) -> Callable[[], list[Any]]:
        x, y = self.mygrad.tensor(program.x), self.mygrad.tensor(program.y, constant=not program.both)
        leaves = [x, y] if program.both else [x]

        def forward_backward() -> list[Any]:
            z = x
            for _ in range(program.length):
                z = z * y
            z.backward(program.dy)
            gradients = [t.grad for t in leaves]
            for t in leaves:
                t.null_grad()
            return [z.data, *gradients]

        return forward_backward

    def arrays(self, values: list[Any]) -> Answer:
        return values

    def network(self, program: Network) -> Trained:
        return _NetworkInMyGrad(self.mygrad, program)


class _NetworkInMyGrad:
    def __init__(self, mygrad: Any, program: Network) -> None:
        self.mygrad, self.program = mygrad, program
        self.layers = [(mygrad.tensor(w), mygrad.tensor(b)) for w, b in program.layers]

    def step(self) -> Any:
        h = self.program.x
        for w, b in self.layers[:-1]:
            h = self.mygrad.tanh(self.mygrad.matmul(h, w) + b)
        w, b = self.layers[-1]
        loss = self.mygrad.mean((self.mygrad.matmul(h, w) + b - self.program.target) ** 2)
        loss.backward()
        for layer in self.layers:
            for p in layer:
                p.data -= self.program.rate * p.grad
                p.null_grad()
        return loss.item()

    def parameters(self) -> list[Array]:
        return [p.data for layer in self.layers for p in layer]


def installed(threads: int) -> list[Library]:
    """Return the peers that can be imported; the others' columns stay empty."""
    found: list[Library] = []
    for peer in (PyTorch, Autograd, MyGrad):
        try:
            found.append(peer(threads))
        except ImportError:
            continue
    return found
