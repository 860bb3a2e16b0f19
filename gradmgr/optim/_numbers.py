"""Options that are numbers: Python's, or Tensors of one number, by which a recorded step can be differentiated.

A plan's constants are computed from them by the functions here, the same way for both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import Tensor, bare
from gradmgr.ops.convert import to

Number = float | Tensor


def number(value: Any) -> Any:
    """Return a Tensor as it is, and anything else as a float; what is not a number raises."""
    return value if isinstance(value, Tensor) else float(value)


def root(value: Any) -> Any:
    """Return the square root."""
    return np.sqrt(value) if isinstance(value, Tensor) else math.sqrt(value)


def is_used(value: Any, neutral: float = 0.0) -> bool:
    """Tell whether a step depends on an option: on a Tensor always, as its derivative at the neutral value counts."""
    return isinstance(value, Tensor) or bool(value != neutral)


def plain(value: Any) -> Any:
    """Return an option with a float for each Tensor, for a step that is not recorded."""
    if isinstance(value, (tuple, list)):
        return tuple([plain(part) for part in value])
    return float(bare(value)) if isinstance(value, Tensor) else value


def in_double(value: Any) -> Any:
    """Return an option with each Tensor as one of float64 and no axes, for a step that is recorded.

    So the constants are those that are computed of Python's numbers.
    """
    if isinstance(value, (tuple, list)):
        return tuple([in_double(part) for part in value])
    return as_type(value.reshape(()), np.float64) if isinstance(value, Tensor) else value


def constant_for(value: Any, dtype: np.dtype[Any], device: str) -> Any:
    """Return a constant as it meets arrays of this dtype and device."""
    return to(as_type(value, dtype), device) if isinstance(value, Tensor) else value


def tensors_in(value: Any) -> list[Tensor]:
    """Return the Tensors of an option."""
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in tensors_in(part)]
    return [value] if isinstance(value, Tensor) else []
