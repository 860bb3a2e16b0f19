"""The programs of the suite, each written once, in functions that every library has: see `libraries.Namespace`.

A program is a function f(words, *parameters, **constants) that returns a number. What it computes is what ADBench and
GradBench define; the code is ours. Parameters are what is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any
Namespace = Any


@dataclass(frozen=True)
class Program:
    """A function and what it is computed of.

    Attributes:
        label: how the row is called.
        function: function(words, *parameters, **constants) -> a number.
        parameters: float64 arrays.
        constants: float64 arrays and settings by keyword.
        second: whether the diagonal of a diagonal Hessian is wanted too, of the only parameter.
    """

    label: str
    function: Callable[..., Any]
    parameters: Sequence[Array]
    constants: dict[str, Any] = field(default_factory=dict)
    second: bool = False


# ---------------------------------------------------------------- Gaussian mixture: ADBench's GMM


def gmm(d: int = 20, k: int = 50, n: int = 1000, seed: int = 0) -> Program:
    """The log-likelihood of n points of d numbers under k Gaussians, with a Wishart prior (gamma 1, m 0)."""
    rng = np.random.default_rng(seed)
    alphas, means = rng.normal(size=k), rng.uniform(size=(k, d))
    diagonals, below = rng.normal(size=(k, d)), rng.normal(size=(k, d * (d - 1) // 2))
    constants = {"x": rng.normal(size=(n, d)), "place": _below_diagonal(d), "gamma": 1.0, "m": 0}
    return Program(f"GMM d={d} k={k} n={n}", _gmm, [alphas, means, np.hstack([diagonals, below])], constants)


def _below_diagonal(d: int) -> Array:
    """Tell where in a row of d diagonal elements, those below it column by column, and a 0 each element stands."""
    place = np.full((d, d), d + d * (d - 1) // 2)
    rows, columns = np.tril_indices(d, -1)
    order = np.lexsort((rows, columns))
    place[rows[order], columns[order]] = np.arange(d, d + len(rows))
    return place


def _gmm(xp: Namespace, alphas: Any, means: Any, icf: Any, *, x: Any, place: Any, gamma: float, m: int) -> Any:
    """`icf` holds the logarithms of the diagonals of the inverse covariances' factors, and what is below them."""
    (n, d), k = x.shape, means.shape[0]
    logs, below = icf[:, :d], icf[:, d:]
    diagonals, sum_of_logs = xp.exp(logs), xp.sum(logs, 1)
    factors = xp.concatenate([icf, xp.zeros((k, 1))], 1)[:, place]
    centred = x.T[None, :, :] - means[:, :, None]  # the points last: short inner loops are slow
    scaled = diagonals[:, :, None] * centred + factors @ centred
    inner = (alphas + sum_of_logs)[:, None] - 0.5 * xp.sum(scaled**2, 1)
    likelihood = xp.sum(xp.logsumexp(inner, 0), None) - n * xp.logsumexp(alphas, 0)
    squares = xp.sum(diagonals**2, None) + xp.sum(below**2, None)
    prior = 0.5 * gamma**2 * squares - m * xp.sum(sum_of_logs, None)
    freedom = d + m + 1
    norm = freedom * d * (math.log(gamma) - 0.5 * math.log(2)) - _log_gamma(0.5 * freedom, d)
    return likelihood - 0.5 * n * d * math.log(2 * math.pi) + prior - k * norm


def _log_gamma(a: float, p: int) -> float:
    """The logarithm of the gamma function of p dimensions."""
    return 0.25 * p * (p - 1) * math.log(math.pi) + sum(math.lgamma(a + 0.5 * (1 - j)) for j in range(1, p + 1))


# ---------------------------------------------------------------- long short-term memory: ADBench's LSTM


def lstm(layers: int = 2, characters: int = 1024, bits: int = 14, seed: int = 0) -> Program:
    """A network of diagonal weights that predicts each character of a text from those before it."""
    rng = np.random.default_rng(seed)
    main, extra = rng.normal(size=(2 * layers, 4 * bits)), rng.normal(size=(3, bits))
    text = (rng.random((characters, bits)) < 0.5).astype(float)
    constants = {"state": rng.normal(size=(2 * layers, bits)), "text": text}
    return Program(f"LSTM l={layers} c={characters}", _lstm, [main, extra], constants)


def _lstm(xp: Namespace, main: Any, extra: Any, *, state: Any, text: Any) -> Any:
    bits, layers = text.shape[1], len(main) // 2
    weights, first = [(main[2 * k], main[2 * k + 1]) for k in range(layers)], [*state]
    into, out, bias = extra[0], extra[1], extra[2]

    def step(state: Any, seen: Any, wanted: Any) -> tuple[list[Any], Any]:
        """One character: the new state, and how well it was foreseen."""
        new, h = [], seen * into
        for k, (weight, offset) in enumerate(weights):
            hidden, cell = state[2 * k], state[2 * k + 1]
            gates = xp.concatenate([h, hidden, h, hidden], 0) * weight + offset
            forget, ingate = xp.sigmoid(gates[:bits]), xp.sigmoid(gates[bits : 2 * bits])
            outgate, change = xp.sigmoid(gates[2 * bits : 3 * bits]), xp.tanh(gates[3 * bits :])
            cell = cell * forget + ingate * change
            h = outgate * xp.tanh(cell)
            new += [h, cell]
        y = h * out + bias
        return new, xp.sum(wanted * (y - xp.log(xp.sum(xp.exp(y), 0) + 2)), 0)

    return -xp.loop(step, first, text[:-1], text[1:]) / ((len(text) - 1) * bits)


# ---------------------------------------------------------------- GradBench's logsumexp, k-means, ODE, determinant


def logsumexp(n: int = 1_280_000, seed: int = 0) -> Program:
    """The library's own function of n numbers."""
    x = np.random.default_rng(seed).uniform(size=n)
    return Program(f"logsumexp n={n}", lambda xp, x: xp.logsumexp(x, 0), [x])


def logsumexp_by_parts(n: int = 1_280_000, seed: int = 0) -> Program:
    """The same out of maximum, exp, sum and log."""

    def function(xp: Namespace, x: Any) -> Any:
        top = xp.constant(xp.largest(xp.constant(x)))
        return xp.log(xp.sum(xp.exp(x - top), 0)) + top

    x = np.random.default_rng(seed).uniform(size=n)
    return Program(f"logsumexp by parts n={n}", function, [x])


def kmeans(k: int = 100, n: int = 10_000, d: int = 8, seed: int = 0) -> Program:
    """The sum of the squared distances of n points from the nearest of k centroids; the Hessian is diagonal."""
    points = np.random.default_rng(seed).uniform(size=(n, d))
    return Program(f"k-means k={k} n={n}", _kmeans, [points[-k:].copy()], {"points": points}, second=True)


def _kmeans(xp: Namespace, centroids: Any, *, points: Any) -> Any:
    squares = xp.sum(points**2, 1)[None, :] + xp.sum(centroids**2, 1)[:, None]
    return xp.sum(xp.least(squares - 2 * (centroids @ points.T), 0), 0)


def ode(n: int = 100_000, steps: int = 10, seed: int = 0) -> Program:
    """y[0]' = x[0], y[i]' = x[i] y[i - 1] from y = 0 at 0 to 2, by so many steps of Runge and Kutta's fourth order.

    The sum of y is differentiated: the last element, as GradBench has it, does not depend on x for n over 4 s.
    """
    x = np.random.default_rng(seed).uniform(size=n)
    return Program(f"ODE n={n} s={steps}", _ode, [x], {"steps": steps})


def _ode(xp: Namespace, x: Any, *, steps: int) -> Any:
    h, y, one = 2 / steps, xp.zeros(x.shape), xp.ones((1,))

    def slope(y: Any) -> Any:
        return x * xp.concatenate([one, y[:-1]], 0)

    for _ in range(steps):
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return xp.sum(y, 0)


def determinant(n: int = 6, seed: int = 0) -> Program:
    """By expansion along the first row, number by number."""
    a = np.random.default_rng(seed).uniform(size=(n, n))
    return Program(f"determinant n={n}", _determinant, [a])


def _determinant(xp: Namespace, a: Any) -> Any:
    n = len(a)
    elements = [[a[i, j] for j in range(n)] for i in range(n)]

    def minor(row: int, columns: tuple[int, ...]) -> Any:
        if len(columns) == 1:
            return elements[row][columns[0]]
        total = None
        for k, column in enumerate(columns):
            part = elements[row][column] * minor(row + 1, columns[:k] + columns[k + 1 :])
            total = part if total is None else total - part if k % 2 else total + part
        return total

    return minor(0, tuple(range(n)))
