"""autograd.misc.optimizers: gradient descent on nested containers, by a function grad(x, iteration)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr.compat.autograd.misc.flatten import flatten

__all__ = ["adam", "rmsprop", "sgd", "unflatten_optimizer"]

Gradient = Callable[[Any, int], Any]
Callback = Callable[[Any, int, Any], Any]


def unflatten_optimizer(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Make an optimiser of containers of one of vectors: optimize(grad, x0, callback, ...).

    Raises:
        TypeError: `optimize` is not a function.

    >>> from gradmgr.compat.autograd.misc.optimizers import unflatten_optimizer
    >>> @unflatten_optimizer
    ... def one_step(grad, x, callback=None):
    ...     return x - 0.25 * grad(x, 0)
    >>> one_step(lambda p, i: {"a": 2.0 * p["a"], "b": 2.0 * p["b"]}, {"a": 1.0, "b": 4.0})
    {'a': np.float64(0.5), 'b': np.float64(2.0)}
    """
    errors.check_function(optimize, "unflatten_optimizer")

    @functools.wraps(optimize)
    def of_containers(grad: Gradient, x0: Any, callback: Callback | None = None, *args: Any, **kwargs: Any) -> Any:
        vector, unflatten = flatten(x0)

        def gradient(x: Any, i: int) -> Any:
            return flatten(grad(unflatten(x), i))[0]

        def report(x: Any, i: int, g: Any) -> None:
            if callback is not None:
                callback(unflatten(x), i, unflatten(g))

        return unflatten(optimize(gradient, vector, None if callback is None else report, *args, **kwargs))

    return of_containers


def _descend(grad: Gradient, x: Any, callback: Callback | None, num_iters: int, step: Gradient) -> Any:
    """Add step(g, i) to x in each iteration."""
    for i in range(num_iters):
        g = grad(x, i)
        if callback is not None:
            callback(x, i, g)
        x = x + step(g, i)
    return x


@unflatten_optimizer
def sgd(
    grad: Gradient,
    x: Any,
    callback: Callback | None = None,
    num_iters: int = 200,
    step_size: float = 0.1,
    mass: float = 0.9,
) -> Any:
    """Return the point after so many steps of gradient descent with momentum.

    Raises:
        ValueError: the gradient has another number of elements than `x`.

    >>> from gradmgr.compat.autograd.misc.optimizers import sgd
    >>> sgd(lambda x, i: 2 * (x - 3.0), 0.0).round(3)
    np.float64(3.0)
    """
    velocity = np.zeros(len(x))

    def step(g: Any, i: int) -> Any:
        nonlocal velocity
        velocity = mass * velocity - (1.0 - mass) * g
        return step_size * velocity

    return _descend(grad, x, callback, num_iters, step)


@unflatten_optimizer
def rmsprop(
    grad: Gradient,
    x: Any,
    callback: Callback | None = None,
    num_iters: int = 100,
    step_size: float = 0.1,
    gamma: float = 0.9,
    eps: float = 1e-8,
) -> Any:
    """Return the point after so many steps of RMSprop: steps over the root of a running mean of squared gradients.

    Raises:
        ValueError: the gradient has another number of elements than `x`.

    >>> import numpy
    >>> from gradmgr.compat.autograd.misc.optimizers import rmsprop
    >>> abs(rmsprop(lambda x, i: 2.0 * (x - 3.0), numpy.array([0.0]), num_iters=300) - 3.0) < 0.1
    array([ True])
    """
    squares = np.ones(len(x))

    def step(g: Any, i: int) -> Any:
        nonlocal squares
        squares = gamma * squares + (1 - gamma) * g**2
        return -step_size * g / (np.sqrt(squares) + eps)

    return _descend(grad, x, callback, num_iters, step)


@unflatten_optimizer
def adam(
    grad: Gradient,
    x: Any,
    callback: Callback | None = None,
    num_iters: int = 100,
    step_size: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Any:
    """Return the point after so many steps of Adam (Kingma and Ba, 2015, algorithm 1).

    Raises:
        ValueError: the gradient has another number of elements than `x`.

    >>> import numpy
    >>> from gradmgr.compat.autograd.misc.optimizers import adam
    >>> adam(lambda x, i: 2.0 * (x - 3.0), numpy.array([0.0]), num_iters=300, step_size=0.1).round(2)
    array([3.])
    """
    mean, squares = np.zeros(len(x)), np.zeros(len(x))

    def step(g: Any, i: int) -> Any:
        nonlocal mean, squares
        mean = b1 * mean + (1 - b1) * g
        squares = b2 * squares + (1 - b2) * g**2
        unbiased = squares / (1 - b2 ** (i + 1))
        return -step_size * mean / (1 - b1 ** (i + 1)) / (np.sqrt(unbiased) + eps)

    return _descend(grad, x, callback, num_iters, step)
