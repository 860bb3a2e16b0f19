"""The history as seen from outside."""

from __future__ import annotations

from typing import Any

from gradmgr._recorder import current, recorders
from gradmgr._tape import Tape
from gradmgr._tensor import Tensor, raw


def increment_version(tensors: Any) -> None:
    """Say that the memory of these tensors or arrays was written to from outside gradmgr.

    gradmgr never writes to memory it shares with others (`asarray`, `from_dlpack`, plain arrays
    used as operands), so only who does write needs to tell. A `backward()` that needs a value
    recorded from that memory before, by a manager recording in this context, then raises.

    Args:
        tensors: one Tensor or array, or an iterable of them.

    >>> import numpy, gradmgr
    >>> buffer = numpy.ones(2)
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     y = (x * buffer).sum()
    ...     buffer[:] = 5
    ...     gradmgr.graph.increment_version(buffer)
    ...     gm.backward(y)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    gradmgr.errors.StaleValueError: the derivative of op 'multiply' needs a value in memory that ...
    """
    many = tensors if isinstance(tensors, (list, tuple, set)) else [tensors]
    tapes = [rec for rec in recorders(current()) if isinstance(rec, Tape)]
    for t in many:
        array = raw(t) if isinstance(t, Tensor) else t
        for tape in tapes:
            tape.spoil(array)
