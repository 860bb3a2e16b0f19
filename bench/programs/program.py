"""What a program of the suite is, and the training loop that several share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmgr import GradManager, nn, optim

Array = Any
Step = Callable[[], list[Any]]
F32 = np.float32
# A gradient of this size is rounding, and must not decide a step of Adam: its sign differs from library to library.
EPS = 1e-4


@dataclass(frozen=True)
class Program:
    """One program, written for gradmgr and for PyTorch.

    Attributes:
        label: what it is, with the sizes that decide.
        here: makes it afresh; each call of what it returns does the work once and returns what shows that it is right.
        in_torch: the same, given the module torch.
    """

    label: str
    here: Callable[[], Step]
    in_torch: Callable[[Any], Step]


def training(model: nn.Module, loss_of: Callable[[], Any], algorithm: str = "Adam") -> Step:
    """Return one step of an optimiser on the parameters of a model."""
    gm = GradManager().attach(model.parameters())
    optimizer = getattr(optim, algorithm)(model.parameters(), lr=1e-3, eps=EPS)

    def step() -> list[Any]:
        with gm:
            loss = loss_of()
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return [loss]

    return step


def training_in_torch(torch: Any, model: Any, loss_of: Callable[[], Any], algorithm: str = "Adam") -> Step:
    """Return the same in PyTorch, with its fused optimiser."""
    optimizer = getattr(torch.optim, algorithm)(model.parameters(), lr=1e-3, eps=EPS, fused=True)

    def step() -> list[Any]:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss]

    return step


def copied(torch: Any, made: Any, model: nn.Module) -> Any:
    """Give a module of PyTorch's the values of a model of gradmgr's, whose parameters have the same names."""
    made.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in model.state_dict().items()})
    return made
