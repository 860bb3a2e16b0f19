"""autograd.core: vjp and jvp of functions of one argument, vector spaces, and declaring derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmgr import errors
from gradmgr.compat.autograd._deprecated import primitive, primitive_jvps, primitive_vjps
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
)
from gradmgr.compat.autograd._primitive_op import SparseObject
from gradmgr.compat.autograd._recording import Recording, value_and_tangent
from gradmgr.compat.autograd._vspace import VSpace, vspace
from gradmgr.compat.autograd.tracer import Box, getval, isbox

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
    "getval",
    "isbox",
    "make_jvp",
    "make_vjp",
    "primitive",
    "primitive_jvps",
    "primitive_vjps",
    "primitive_with_deprecation_warnings",
    "vspace",
]

primitive_with_deprecation_warnings = primitive


def make_vjp(fun: Callable[..., Any], x: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return the vjp of a function of one argument at a point, and its value there.

    Raises:
        TypeError: `fun` is not a function, or the argument holds nothing to differentiate by.
        ValueError: in vjp(g), g has another shape than the value.

    >>> from gradmgr.compat.autograd.core import make_vjp
    >>> vjp, value = make_vjp(lambda x: x**2, 3.0)
    >>> value, vjp(10.0)
    (np.float64(9.0), np.float64(60.0))
    """
    errors.check_function(fun, "make_vjp")
    recording = Recording(fun, x)
    return recording.vjp, recording.value


def make_jvp(fun: Callable[..., Any], x: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function of a direction, which gives the value of `fun` at a point and the derivative along it.

    Raises:
        TypeError: `fun` is not a function, or the argument holds nothing to differentiate by.
        ValueError: in a call, the direction has another shape than the argument.

    >>> from gradmgr.compat.autograd.core import make_jvp
    >>> make_jvp(lambda x: x**2, 3.0)(10.0)
    (np.float64(9.0), np.float64(60.0))
    """
    errors.check_function(fun, "make_jvp")
    return lambda v: value_and_tangent(fun, x, v)
