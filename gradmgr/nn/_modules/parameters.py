"""Make and initialise the parameters of layers.

Parameters are float32 unless `dtype` says otherwise, as in torch, although NumPy's default is float64. They are drawn
from `rng`, a numpy.random.Generator, from the distributions that torch uses: one Generator given to all layers makes
a model reproducible from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmgr._engine.parameter import Parameter
from gradmgr.nn import init
from gradmgr.nn._functions.arguments import length

Rng = np.random.Generator | None
Size = int | tuple[int, ...]


def empty_parameter(shape: tuple[int, ...], dtype: Any, device: str | None) -> Parameter:
    """Return a Parameter whose values are still to be set."""
    return Parameter(np.empty(shape, np.float32 if dtype is None else dtype), device=device)


def constant(shape: tuple[int, ...], value: float, dtype: Any, device: str | None) -> Parameter:
    """Return a Parameter filled with one value."""
    return init.constant_(empty_parameter(shape, dtype, device), value)


def draw_by_fan_in(weight: Parameter, bias: Parameter | None, rng: Rng) -> None:
    """Draw weight and bias evenly from +-1 / sqrt(fan_in), as torch does for affine maps and convolutions.

    For weights that is He's formula for a leaky ReLU of slope sqrt(5).
    """
    init.kaiming_uniform_(weight, a=math.sqrt(5), rng=rng)
    if bias is not None:
        bound = 1 / math.sqrt(max(math.prod(weight.shape[1:]), 1))
        init.uniform_(bias, -bound, bound, rng=rng)


def lengths(value: Size | Sequence[int], name: str, asked: str) -> tuple[int, ...]:
    """Return the lengths of trailing axes; one number is one axis."""
    axes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple([length(axis, name, asked) for axis in axes])
