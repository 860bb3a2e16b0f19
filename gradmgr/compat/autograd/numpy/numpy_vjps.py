"""autograd.numpy.numpy_vjps: what rules of functions that broadcast are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradmgr.numpy as gnp
from gradmgr.compat.autograd._primitive_op import fitted

__all__ = ["balanced_eq", "match_complex", "replace_zero", "unbroadcast", "unbroadcast_f"]


def unbroadcast(x: Any, target_meta: Any, broadcast_idx: int = 0) -> Any:
    """Return the sum of `x` to a shape, that of an array or the first of `anp.metadata`, real where the target is.

    Args:
        x: what is summed.
        target_meta: (shape, number of axes, dtype, whether it is complex), as `autograd.numpy.metadata` gives them.
        broadcast_idx: ignored; NumPy adds axes at the front only.
    """
    shape, _, dtype, _ = target_meta
    return fitted(x, gnp.empty(shape, dtype))


def unbroadcast_f(target: Any, vjp: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a vjp whose result is summed to the shape of the argument that it belongs to.

    The rules that `defvjp` declares need it not: what they return is summed in any case.

    >>> import numpy
    >>> from gradmgr.compat.autograd.numpy.numpy_vjps import unbroadcast_f
    >>> unbroadcast_f(numpy.ones((1, 2)), lambda g: 2 * g)(numpy.ones((3, 2)))
    array([[6., 6.]])
    """
    return lambda g: fitted(vjp(g), target)


def match_complex(target: Any, x: Any) -> Any:
    """Return `x` real or complex as the target is."""
    wanted, found = gnp.iscomplexobj(target), gnp.iscomplexobj(x)
    return x if wanted == found else x + 0j if wanted else gnp.real(x)


def balanced_eq(x: Any, z: Any, y: Any) -> Any:
    """Return 1 where x == z != y, 1/2 where all are equal, 0 elsewhere: the slope of a maximum z of x and y by x."""
    return (x == z) / (1.0 + (x == y))


def replace_zero(x: Any, val: Any) -> Any:
    """Return `x`, with `val` where it is 0."""
    return gnp.where(x, x, val)
