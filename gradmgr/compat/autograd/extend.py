"""autograd.extend: operations with derivatives of the program's own, and vector spaces."""

from gradmgr.compat.autograd._primitive import (
    JVPNode,
    VJPNode,
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    notrace_primitive,
    primitive,
    register_notrace,
)
from gradmgr.compat.autograd._primitive_op import SparseObject
from gradmgr.compat.autograd._vspace import VSpace, vspace
from gradmgr.compat.autograd.tracer import Box

__all__ = [
    "Box",
    "JVPNode",
    "SparseObject",
    "VJPNode",
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
    "register_notrace",
    "vspace",
]
