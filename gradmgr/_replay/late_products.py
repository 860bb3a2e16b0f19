"""Products of matrices that a replay leaves to an optimiser, which subtracts them from a parameter at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


class LateProduct:
    """A gradient that is a product of two matrices, and has not been computed.

    To compute it and subtract a multiple of it takes one pass over the parameter less than to write it and read it
    again, and no memory.

    Args:
        subtract: a C function of an array and of a number, as an array of shape (): from the array, contiguous, aligned
            and of float32, it subtracts that many times the product. It fails for no others.
        shape: of the product.
    """

    __slots__ = ("shape", "subtract")

    def __init__(self, subtract: Callable[[Array, Array], Any], shape: tuple[int, ...]) -> None:
        self.subtract = subtract
        self.shape = shape

    def array(self) -> Array:
        """Compute it, in new memory."""
        made = np.zeros(self.shape, np.float32)
        self.subtract(made, np.full((), -1, np.float32))
        return made
