"""autograd.builtins: containers, which need no class of their own here, and `isinstance` and `type` of values."""

from __future__ import annotations

import builtins
from builtins import dict, list, tuple  # noqa: UP029  # re-exported
from typing import Any

from gradmgr.compat.autograd.tracer import getval

__all__ = ["DictBox", "SequenceBox", "dict", "isinstance", "list", "tuple", "type"]

DictBox = builtins.dict  # a container of traced values is Python's
SequenceBox: Any = builtins.list | builtins.tuple


def isinstance(x: Any, classes: Any) -> bool:
    """Tell whether the value of `x`, traced or not, is of a class.

    >>> import numpy
    >>> from gradmgr.compat.autograd import builtins, grad
    >>> grad(lambda x: x * builtins.isinstance(x, numpy.float64))(2.0)
    np.float64(1.0)
    """
    return builtins.isinstance(getval(x), classes)


def type(x: Any) -> Any:
    """Return the class of the value of `x`, traced or not.

    >>> import numpy
    >>> from gradmgr.compat.autograd import builtins
    >>> builtins.type(numpy.zeros(2)) is numpy.ndarray
    True
    """
    return builtins.type(getval(x))
