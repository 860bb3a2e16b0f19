"""autograd.misc: containers as vectors, optimisers, fixed points."""

from gradmgr.compat.autograd.misc import fixed_points, optimizers
from gradmgr.compat.autograd.misc.flatten import flatten

__all__ = ["fixed_points", "flatten", "optimizers"]
