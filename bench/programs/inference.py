"""Programs of statistics: Gaussian processes, a Kalman filter, Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from bench.programs.program import Program, Step
from gradmgr import GradManager, functional, tensor

_HALF_LOG_TWO_PI = 0.9189385332046727


def _value_and_gradient(function: Any, first: list[Any]) -> Step:
    parameters = [tensor(a) for a in first]
    gm = GradManager().attach(parameters)

    def step() -> list[Any]:
        with gm:
            value = function(*parameters)
            gm.backward(value)
        found = [value, *[p.grad for p in parameters]]
        gm.clear_grad()
        return found

    return step


def _value_and_gradient_in_torch(torch: Any, function: Any, first: list[Any]) -> Step:
    parameters = [torch.tensor(a, dtype=torch.float64).requires_grad_() for a in first]

    def step() -> list[Any]:
        value = function(*parameters)
        return [value, *torch.autograd.grad(value, parameters)]

    return step


# ---------------------------------------------------------------- Gaussian processes


def _data(points: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (points, 4))
    y = np.sin(x).sum(1) + rng.normal(0, 0.1, points)
    return ((x[:, None] - x) ** 2).sum(-1), y, np.eye(points)


def gaussian_process(points: int = 300) -> Program:
    """The marginal likelihood of a Gaussian process and its gradient: kernel, cholesky, solve_triangular."""
    squares, y, eye = _data(points)
    first = [0.3, 0.1, -2.0]  # logarithms of length, amplitude, noise

    def here() -> Step:
        def loss(length: Any, amplitude: Any, noise: Any) -> Any:
            kernel = gnp.exp(2 * amplitude) * gnp.exp(-0.5 * squares * gnp.exp(-2 * length)) + gnp.exp(2 * noise) * eye
            root = gnp.linalg.cholesky(kernel)
            white = gnp.linalg.solve_triangular(root, y, lower=True)
            return 0.5 * (white @ white) + gnp.sum(gnp.log(gnp.diagonal(root))) + points * _HALF_LOG_TWO_PI

        return _value_and_gradient(loss, first)

    def in_torch(torch: Any) -> Step:
        distances, target, one = map(torch.tensor, (squares, y, eye))

        def loss(length: Any, amplitude: Any, noise: Any) -> Any:
            kernel = torch.exp(2 * amplitude) * torch.exp(-0.5 * distances * torch.exp(-2 * length))
            root = torch.linalg.cholesky(kernel + torch.exp(2 * noise) * one)
            white = torch.linalg.solve_triangular(root, target[:, None], upper=False)[:, 0]
            return 0.5 * (white @ white) + torch.log(root.diagonal()).sum() + points * _HALF_LOG_TWO_PI

        return _value_and_gradient_in_torch(torch, loss, first)

    return Program(f"Gaussian process, {points} points, by cholesky", here, in_torch)


def gaussian_process_by_slogdet(points: int = 300) -> Program:
    """The same written with solve and slogdet."""
    squares, y, eye = _data(points)
    first = [0.3, 0.1, -2.0]

    def here() -> Step:
        def loss(length: Any, amplitude: Any, noise: Any) -> Any:
            kernel = gnp.exp(2 * amplitude) * gnp.exp(-0.5 * squares * gnp.exp(-2 * length)) + gnp.exp(2 * noise) * eye
            fit = y @ gnp.linalg.solve(kernel, y)
            return 0.5 * (fit + gnp.linalg.slogdet(kernel)[1]) + points * _HALF_LOG_TWO_PI

        return _value_and_gradient(loss, first)

    def in_torch(torch: Any) -> Step:
        distances, target, one = map(torch.tensor, (squares, y, eye))

        def loss(length: Any, amplitude: Any, noise: Any) -> Any:
            kernel = torch.exp(2 * amplitude) * torch.exp(-0.5 * distances * torch.exp(-2 * length))
            kernel = kernel + torch.exp(2 * noise) * one
            fit = target @ torch.linalg.solve(kernel, target)
            return 0.5 * (fit + torch.linalg.slogdet(kernel)[1]) + points * _HALF_LOG_TWO_PI

        return _value_and_gradient_in_torch(torch, loss, first)

    return Program(f"Gaussian process, {points} points, by slogdet", here, in_torch)


# ---------------------------------------------------------------- Kalman filter


def kalman_filter(steps: int = 50) -> Program:
    """The likelihood of a track of positions, by a Kalman filter of position and velocity, and its gradient."""
    rng = np.random.default_rng(0)
    track = np.cumsum(rng.normal(0.3, 0.2, (steps, 2)), 0)
    move = np.eye(4) + np.eye(4, k=2)
    see, push = np.eye(2, 4), np.diag([0.25, 0.25, 1.0, 1.0])
    first = [-1.0, -0.5]  # logarithms of the deviations of velocity and of what is seen

    def here() -> Step:
        def loss(drift: Any, noise: Any) -> Any:
            pushed, blurred = gnp.exp(2 * drift) * push, gnp.exp(2 * noise) * np.eye(2)
            state, spread, total = np.zeros(4), np.eye(4), 0.0
            for seen in track:
                state, spread = move @ state, move @ spread @ move.T + pushed
                surprise, scatter = seen - see @ state, see @ spread @ see.T + blurred
                gain = gnp.linalg.solve(scatter, see @ spread).T
                total = total + 0.5 * (surprise @ gnp.linalg.solve(scatter, surprise) + gnp.linalg.slogdet(scatter)[1])
                state, spread = state + gain @ surprise, spread - gain @ see @ spread
            return total

        return _value_and_gradient(loss, first)

    def in_torch(torch: Any) -> Step:
        seen_all, moving, seeing, pushing, eye = map(torch.tensor, (track, move, see, push, np.eye(2)))
        zero, one = torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)

        def loss(drift: Any, noise: Any) -> Any:
            pushed, blurred = torch.exp(2 * drift) * pushing, torch.exp(2 * noise) * eye
            state, spread, total = zero, one, 0.0
            for seen in seen_all:
                state, spread = moving @ state, moving @ spread @ moving.T + pushed
                surprise, scatter = seen - seeing @ state, seeing @ spread @ seeing.T + blurred
                gain = torch.linalg.solve(scatter, seeing @ spread).T
                fit = surprise @ torch.linalg.solve(scatter, surprise)
                total = total + 0.5 * (fit + torch.linalg.slogdet(scatter)[1])
                state, spread = state + gain @ surprise, spread - gain @ seeing @ spread
            return total

        return _value_and_gradient_in_torch(torch, loss, first)

    return Program(f"Kalman filter, {steps} steps of 4 numbers", here, in_torch)


# ---------------------------------------------------------------- Hamiltonian Monte Carlo


def hmc(points: int = 500, features: int = 20, leaps: int = 10) -> Program:
    """A proposal of Hamiltonian Monte Carlo for a logistic regression: leapfrog steps along the gradient."""
    rng, size = np.random.default_rng(0), 0.02
    x, first, momentum = rng.normal(size=(points, features)), rng.normal(size=features), rng.normal(size=features)
    y = (rng.uniform(size=points) < 1 / (1 + np.exp(-x @ first))).astype(float)

    def leapfrog(slope: Any, weights: Any, speed: Any) -> list[Any]:
        speed = speed - size / 2 * slope(weights)
        for _ in range(leaps - 1):
            weights = weights + size * speed
            speed = speed - size * slope(weights)
        weights = weights + size * speed
        return [weights, speed - size / 2 * slope(weights)]

    def here() -> Step:
        def energy(weights: Any) -> Any:
            z = x @ weights
            return gnp.sum(gnp.logaddexp(0, z) - y * z) + 0.5 * gnp.sum(weights**2)

        slope = functional.grad(energy)
        return lambda: leapfrog(slope, first, momentum)

    def in_torch(torch: Any) -> Step:
        inputs, labels, start, pushed = map(torch.tensor, (x, y, first, momentum))

        def slope(weights: Any) -> Any:
            weights = weights.detach().requires_grad_()
            z = inputs @ weights
            energy = torch.sum(torch.nn.functional.softplus(z) - labels * z) + 0.5 * torch.sum(weights**2)
            return torch.autograd.grad(energy, weights)[0]

        return lambda: leapfrog(slope, start, pushed)

    return Program(f"HMC, logistic regression of {points} x {features}", here, in_torch)
