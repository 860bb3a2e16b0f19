"""autograd.extend: operations with derivatives of the program's own, and vector spaces."""

from gradmgr.compat.autograd._primitive import (
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    notrace_primitive,
    primitive,
)
from gradmgr.compat.autograd._vspace import VSpace, vspace
from gradmgr.compat.autograd.tracer import Box

__all__ = [
    "Box",
    "VSpace",
    "def_linear",
    "defjvp",
    "defjvp_argnum",
    "defjvp_argnums",
    "defvjp",
    "defvjp_argnum",
    "defvjp_argnums",
    "notrace_primitive",
    "primitive",
    "vspace",
]
