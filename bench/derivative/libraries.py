"""NumPy, which computes the function alone, and the libraries that differentiate it.

A program is written in NumPy's own functions where all libraries have them with the same arguments. A library is
made with the number of threads and offers `differentiated(program)`: f() that gives value and gradients, and the
diagonal of the Hessian where the program wants it, in the library's own type, and `plain`, that as NumPy's.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

import gradmgr.numpy as gnp
from bench.derivative.programs import Array, Program
from bench.train.in_torch import compiled
from gradmgr import GradManager, Tensor, special, tensor


class Library(Protocol):
    """What differentiates a program."""

    name: str

    def differentiated(self, program: Program) -> Callable[[], list[Any]]: ...

    def plain(self, value: Any) -> Array: ...


class Namespace:
    """The functions that programs are written in, of NumPy and of libraries that mirror it."""

    def __init__(self, xp: Any, logsumexp: Callable[..., Any], sigmoid: Callable[..., Any]) -> None:
        self.exp, self.log, self.tanh = xp.exp, xp.log, xp.tanh
        self.sum, self.swapaxes, self.concatenate = xp.sum, xp.swapaxes, xp.concatenate
        self.least, self.largest = xp.min, xp.max
        self.logsumexp, self.sigmoid = logsumexp, sigmoid
        self.zeros, self.ones = np.zeros, np.ones

    def constant(self, x: Any) -> Any:
        """Return x as something that nothing is differentiated through."""
        return x

    def loop(self, step: Callable[..., Any], state: Any, seen: Any, wanted: Any) -> Any:
        """Return the sum of what step(state, seen, wanted) gives besides the next state."""
        total = 0.0
        for one, other in zip(seen, wanted, strict=True):
            state, part = step(state, one, other)
            total = total + part
        return total


def _function(program: Program, xp: Any, array: Callable[[Array], Any]) -> Callable[..., Any]:
    """Return the program as a function of its parameters, its constants being the library's."""
    constants = {
        key: array(value) if isinstance(value, np.ndarray) else value for key, value in program.constants.items()
    }
    return partial(program.function, xp, **constants)


# ---------------------------------------------------------------- the function alone


def _logsumexp_by_hand(x: Array, axis: int) -> Array:
    top = x.max(axis, keepdims=True)
    return np.log(np.sum(np.exp(x - top), axis)) + top.squeeze(axis)


def numpy_alone(program: Program) -> Callable[..., Array]:
    """Return the function of plain arrays."""
    xp = Namespace(np, _logsumexp_by_hand, lambda x: 1 / (1 + np.exp(-x)))
    return _function(program, xp, lambda a: a)


# ---------------------------------------------------------------- gradmgr


class _GradmgrNamespace(Namespace):
    def __init__(self) -> None:
        super().__init__(gnp, special.logsumexp, special.expit)
        self.zeros, self.ones = gnp.zeros, gnp.ones

    def constant(self, x: Any) -> Any:
        return x.detach()


class Gradmgr:
    """gradmgr; `how` makes what is timed of a function that takes the program's constants."""

    def __init__(
        self, threads: int, name: str = "gradmgr", how: Callable[..., Any] = lambda function: function
    ) -> None:
        self.name, self.xp, self.how = name, _GradmgrNamespace(), how

    def differentiated(self, program: Program) -> Callable[[], list[Any]]:
        function = partial(program.function, self.xp)
        leaves = [tensor(a) for a in program.parameters]
        outer, gm = GradManager().attach(leaves), GradManager().attach(leaves)

        def first(**constants: Any) -> list[Any]:
            with gm:
                value = function(*leaves, **constants)
                gm.backward(value)
            gradients = [t.grad for t in leaves]
            gm.clear_grad()
            return [value, *gradients]

        def second(**constants: Any) -> list[Any]:
            (x,) = leaves
            with outer:
                with gm:
                    value = function(x, **constants)
                    gm.backward(value)
                gradient, x.grad = x.grad, None
                outer.backward(gradient, ones)
            diagonal, x.grad = x.grad, None
            return [value, gradient, diagonal]

        ones = tensor(np.ones_like(program.parameters[0]))
        return partial(self.how(second if program.second else first), **program.constants)

    def plain(self, value: Any) -> Array:
        return value.numpy() if isinstance(value, Tensor) else np.asarray(value)


# ---------------------------------------------------------------- the others


class PyTorch:
    name = "PyTorch"

    def __init__(self, threads: int) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(threads)

    def made(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called for a program's function."""
        return function

    def differentiated(self, program: Program) -> Callable[[], list[Any]]:
        torch = self.torch
        function = self.made(_function(program, _TorchNamespace(torch), torch.tensor))
        leaves = [torch.tensor(a, requires_grad=True) for a in program.parameters]

        def first() -> list[Any]:
            value = function(*leaves)
            value.backward()
            gradients = [t.grad for t in leaves]
            for t in leaves:
                t.grad = None
            return [value, *gradients]

        def second() -> list[Any]:
            value = function(*leaves)
            (gradient,) = torch.autograd.grad(value, leaves, create_graph=True)
            (diagonal,) = torch.autograd.grad(gradient, leaves, ones)
            return [value, gradient, diagonal]

        ones = torch.ones_like(leaves[0])
        return second if program.second else first

    def plain(self, value: Any) -> Array:
        return value.detach().numpy()


class CompiledTorch(PyTorch):
    """The same, the function and its gradient by torch.compile."""

    name = "torch.compile"

    def made(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compiled(self.torch, function)


class _TorchNamespace(Namespace):
    def __init__(self, torch: Any) -> None:
        super().__init__(_TorchsNames(torch), torch.logsumexp, torch.sigmoid)
        self.zeros, self.ones = (partial(f, dtype=torch.float64) for f in (torch.zeros, torch.ones))

    def constant(self, x: Any) -> Any:
        return x.detach()


class _TorchsNames:
    """NumPy's names for what PyTorch calls otherwise."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def min(self, x: Any, axis: int) -> Any:
        return self.torch.min(x, axis).values

    def max(self, x: Any) -> Any:
        return self.torch.max(x)


class Autograd:
    name = "autograd"

    def __init__(self, threads: int) -> None:
        self.autograd = importlib.import_module("autograd")
        self.numpy = importlib.import_module("autograd.numpy")
        special = importlib.import_module("autograd.scipy.special")
        self.xp = _AutogradNamespace(self.numpy, special.logsumexp, special.expit)
        self.xp.unbox = importlib.import_module("autograd.tracer").getval

    def differentiated(self, program: Program) -> Callable[[], list[Any]]:
        function = _function(program, self.xp, lambda a: a)
        parameters = list(program.parameters)
        make_vjp = self.autograd.make_vjp

        def first() -> list[Any]:
            vjp, value = make_vjp(function, tuple(range(len(parameters))))(*parameters)
            return [value, *vjp(1.0)]

        def second() -> list[Any]:
            def gradient(x: Any) -> Any:
                vjp, value = make_vjp(function)(x)
                values.append(value)
                return vjp(1.0)

            values: list[Any] = []
            vjp, found = make_vjp(gradient)(*parameters)
            return [self.xp.unbox(values[0]), found, vjp(np.ones_like(parameters[0]))]

        return second if program.second else first

    def plain(self, value: Any) -> Array:
        return np.asarray(value)


class _AutogradNamespace(Namespace):
    unbox: Callable[[Any], Any]

    def constant(self, x: Any) -> Any:
        return self.unbox(x)


class Jax:
    name = "JAX jit"

    def __init__(self, threads: int) -> None:
        self.jax = importlib.import_module("jax")
        os.environ["PJRT_NPROC"] = str(threads)  # XLA asks it, and no other, when it begins its first computation
        self.jax.config.update("jax_enable_x64", True)
        self.xp = _JaxNamespace(self.jax)

    def differentiated(self, program: Program) -> Callable[[], list[Any]]:
        jax = self.jax
        function = _function(program, self.xp, jax.numpy.asarray)
        parameters = [jax.numpy.asarray(a) for a in program.parameters]
        both = jax.value_and_grad(function, tuple(range(len(parameters))))

        def second(x: Any) -> Any:
            (value, (gradient,)), (_, (diagonal,)) = jax.jvp(both, (x,), (jax.numpy.ones_like(x),))
            return value, (gradient, diagonal)

        compiled = jax.jit(second if program.second else both)

        def run() -> list[Any]:
            value, gradients = jax.block_until_ready(compiled(*parameters))
            return [value, *gradients]

        return run

    def plain(self, value: Any) -> Array:
        return np.asarray(value)


class _JaxNamespace(Namespace):
    def __init__(self, jax: Any) -> None:
        super().__init__(jax.numpy, jax.nn.logsumexp, jax.nn.sigmoid)
        self.zeros, self.ones = jax.numpy.zeros, jax.numpy.ones
        self.jax = jax

    def constant(self, x: Any) -> Any:
        return self.jax.lax.stop_gradient(x)

    def loop(self, step: Callable[..., Any], state: Any, seen: Any, wanted: Any) -> Any:
        """By `scan`: a loop of a thousand steps would take minutes to compile."""
        _, parts = self.jax.lax.scan(lambda state, pair: step(state, *pair), state, (seen, wanted))
        return parts.sum()


def installed(threads: int) -> list[Library]:
    """Return gradmgr and the peers that can be imported; the others' columns stay empty."""
    return [Gradmgr(threads), *importable([PyTorch, Autograd, Jax], threads)]


def importable(peers: Sequence[Callable[[int], Library]], threads: int) -> list[Library]:
    """Return those of the libraries that are installed."""
    found = []
    for peer in peers:
        try:
            found.append(peer(threads))
        except ImportError:
            continue
    return found
