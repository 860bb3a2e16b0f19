"""autograd.numpy.random: NumPy's own functions; what they draw is a constant."""

from numpy import random as _random

globals().update({name: getattr(_random, name) for name in _random.__all__})

__all__ = [*_random.__all__]
