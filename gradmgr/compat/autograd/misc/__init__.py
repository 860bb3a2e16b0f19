"""autograd.misc: containers as vectors, optimisers, fixed points."""

from gradmgr.compat.autograd.misc import fixed_points, optimizers, tracers
from gradmgr.compat.autograd.misc.flatten import flatten
from gradmgr.compat.autograd.misc.tracers import const_graph

__all__ = ["const_graph", "fixed_points", "flatten", "optimizers", "tracers"]
