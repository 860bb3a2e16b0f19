"""autograd.tracer: what a traced value is, and its value. A traced value is a `gradmgr.Tensor`."""

from __future__ import annotations

from typing import Any

from gradmgr._engine.tensor import Tensor
from gradmgr.compat.autograd._primitive import notrace_primitive, primitive

__all__ = ["Box", "getval", "isbox", "notrace_primitive", "primitive"]

Box = Tensor


def isbox(x: Any) -> bool:
    """Tell whether a value is traced.

    >>> from gradmgr.compat.autograd.tracer import isbox
    >>> isbox(1.0)
    False
    """
    return isinstance(x, Tensor)


def getval(x: Any) -> Any:
    """Return the array or number that a traced value holds; anything else as it is.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.tracer import getval
    >>> grad(lambda x: x * getval(x))(3.0)
    np.float64(3.0)
    """
    return x._array[()] if isinstance(x, Tensor) else x
