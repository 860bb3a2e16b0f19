"""Flatten."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gradmgr import errors
from gradmgr.nn._functions.arguments import integer, one_array
from gradmgr.nn._modules.module import Module
from gradmgr.ops.shape import reshape

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class Flatten(ArrayModule):
    """Joins neighbouring axes into one, by default all but the first.

    Args:
        start_dim: the first axis to join.
        end_dim: the last axis to join.

    Raises:
        ValueError: the input has no axes from `start_dim` to `end_dim`.

    >>> import numpy
    >>> from gradmgr import nn
    >>> nn.Flatten()(numpy.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = integer(start_dim, "start_dim", "Flatten")
        self.end_dim = integer(end_dim, "end_dim", "Flatten")

    def forward(self, x: Any) -> Any:
        """Map an input (..., a, ..., b, ...) to (..., a * ... * b, ...)."""
        x = one_array(x)
        shape, ndim = x.shape, x.ndim
        first, last = (dim + ndim if dim < 0 else dim for dim in (self.start_dim, self.end_dim))
        if not (0 <= first <= last < ndim):
            raise errors.ShapeError(
                f"Flatten of axes {self.start_dim} to {self.end_dim} needs them in this order; found shape {shape}"
            )
        return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
