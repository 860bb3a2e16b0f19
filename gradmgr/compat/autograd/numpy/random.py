"""autograd.numpy.random: NumPy's own functions; what they draw is a constant."""

from typing import TYPE_CHECKING, Any

from numpy import random as _random

globals().update({name: getattr(_random, name) for name in _random.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = [*_random.__all__]
