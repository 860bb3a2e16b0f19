"""Programs of physics: bodies under gravity, a neural ODE, a network of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from bench.programs.program import F32, Program, Step, copied, training, training_in_torch
from gradmgr import GradManager, nn, tensor

# ---------------------------------------------------------------- bodies under gravity


def n_body(bodies: int = 32, steps: int = 20) -> Program:
    """How far bodies get under gravity, differentiated by their first velocities, through leapfrog steps."""
    rng, dt, softening = np.random.default_rng(0), 0.01, 0.05
    place, speed = rng.normal(size=(bodies, 3)), rng.normal(0, 0.3, (bodies, 3))
    mass = rng.uniform(0.5, 1.5, bodies) / bodies

    def moved(pull: Any, x: Any, v: Any) -> Any:
        for _ in range(steps):
            v = v + dt / 2 * pull(x)
            x = x + dt * v
            v = v + dt / 2 * pull(x)
        return (x * x).sum()

    def here() -> Step:
        def pull(x: Any) -> Any:
            away = x[None, :, :] - x[:, None, :]
            return gnp.sum(away * (mass * (gnp.sum(away**2, axis=-1) + softening) ** -1.5)[..., None], axis=1)

        first = tensor(speed)
        gm = GradManager().attach(first)

        def step() -> list[Any]:
            with gm:
                reach = moved(pull, place, first)
                gm.backward(reach)
            slope, first.grad = first.grad, None
            return [reach, slope]

        return step

    def in_torch(torch: Any) -> Step:
        weight, start, first = torch.tensor(mass), torch.tensor(place), torch.tensor(speed).requires_grad_()

        def pull(x: Any) -> Any:
            away = x[None, :, :] - x[:, None, :]
            return (away * (weight * ((away**2).sum(-1) + softening) ** -1.5)[..., None]).sum(1)

        def step() -> list[Any]:
            reach = moved(pull, start, first)
            return [reach, *torch.autograd.grad(reach, first)]

        return step

    return Program(f"N-body, {bodies} bodies, {steps} steps", here, in_torch)


# ---------------------------------------------------------------- neural ODE


def _integrated(field: Any, y: Any, steps: int, dt: float) -> list[Any]:
    """Return the states after each step of the classical method of Runge and Kutta."""
    states = []
    for _ in range(steps):
        k1 = field(y)
        k2 = field(y + dt / 2 * k1)
        k3 = field(y + dt / 2 * k2)
        k4 = field(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(y)
    return states


def neural_ode(batch: int = 64, hidden: int = 50, steps: int = 20) -> Program:
    """A step of Adam on the right-hand side of an equation, a network, through steps of Runge and Kutta."""
    rng, dt = np.random.default_rng(0), 0.05
    start, wanted = rng.normal(size=(batch, 2)).astype(F32), rng.normal(size=(steps, batch, 2)).astype(F32)

    def made() -> nn.Sequential:
        draw = np.random.default_rng(1)
        return nn.Sequential(nn.Linear(2, hidden, rng=draw), nn.Tanh(), nn.Linear(hidden, 2, rng=draw))

    def here() -> Step:
        model = made()
        return training(model, lambda: nn.functional.mse_loss(gnp.stack(_integrated(model, start, steps, dt)), wanted))

    def in_torch(torch: Any) -> Step:
        layers = (torch.nn.Linear(2, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))
        model, y, target = (
            copied(torch, torch.nn.Sequential(*layers), made()),
            torch.tensor(start),
            torch.tensor(wanted),
        )

        def loss() -> Any:
            return torch.nn.functional.mse_loss(torch.stack(_integrated(model, y, steps, dt)), target)

        return training_in_torch(torch, model, loss)

    return Program(f"neural ODE, {steps} steps of RK4, batch {batch}", here, in_torch)


# ---------------------------------------------------------------- tensor network


def tensor_network(batch: int = 256, rank: int = 32) -> Program:
    """A bilinear layer as a network of three tensors, bi,ioj,bj->bo, and the gradients of all."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(F32) for s in ((batch, rank), (rank, rank, rank), (batch, rank))]
    slope = rng.normal(size=(batch, rank)).astype(F32)

    def here() -> Step:
        tensors = [tensor(a) for a in arrays]
        gm = GradManager().attach(tensors)

        def step() -> list[Any]:
            with gm:
                out = gnp.einsum("bi,ioj,bj->bo", *tensors)
                gm.backward(out, slope)
            found = [out, *[t.grad for t in tensors]]
            gm.clear_grad()
            return found

        return step

    def in_torch(torch: Any) -> Step:
        tensors = [torch.tensor(a).requires_grad_() for a in arrays]
        dy = torch.tensor(slope)

        def step() -> list[Any]:
            out = torch.einsum("bi,ioj,bj->bo", *tensors)
            return [out, *torch.autograd.grad(out, tensors, dy)]

        return step

    return Program(f"tensor network bi,ioj,bj->bo of {batch} and {rank}", here, in_torch)
