"""autograd.numpy.numpy_vjps: what rules of functions that broadcast are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmgr.compat.autograd._primitive import fitted

__all__ = ["unbroadcast_f"]


def unbroadcast_f(target: Any, vjp: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a vjp whose result is summed to the shape of the argument that it belongs to.

    The rules that `defvjp` declares need it not: what they return is summed in any case.

    >>> import numpy
    >>> from gradmgr.compat.autograd.numpy.numpy_vjps import unbroadcast_f
    >>> unbroadcast_f(numpy.ones((1, 2)), lambda g: 2 * g)(numpy.ones((3, 2)))
    array([[6., 6.]])
    """
    return lambda g: fitted(vjp(g), target)
