"""Conversions of tracked Tensors to numbers, and copies of them: none cuts a gradient in silence.

Where a recorder that records now tracks a Tensor, `item()`, `numpy()`, `tolist()` and `detach()` cut its gradient,
since they say so. Any other conversion that would cut it raises inside a transform, as JAX's tracers do. Under a
manager one that makes an array raises, and one that makes a number, as `float(t)` and `math.sin(t)`, warns.
"""

from __future__ import annotations

import copy
import opcode
import sys
from types import FrameType
from typing import Any

from gradmgr import errors
from gradmgr._engine.context import Context, current
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor, check_one_number, cut, describe

_STORE_ITEM = opcode.opmap["STORE_SUBSCR"]
_OPERATOR = opcode.opmap["BINARY_OP"]


def _arguments_of_remainder() -> frozenset[int]:
    """Return the arguments of the instruction for `%` and `%=`."""
    codes = [compile(text, "<remainder>", "exec").co_code for text in ("a % b", "a %= b")]
    return frozenset(code[2 * code[::2].index(_OPERATOR) + 1] for code in codes)


_REMAINDER = _arguments_of_remainder()


def tracking(t: Tensor) -> list[Recorder]:
    """Return the recorders that record in this context and track `t`: a conversion cuts its gradient in these."""
    state = current()
    if state is None:
        return []
    return [rec for rec in Context.of(state).recording() if rec.open and rec.node_id_of(t) is not None]


def check_uncut(t: Tensor, asked: str, instead: str) -> None:
    """Raise if a conversion that is no cut in so many words would cut the gradient of `t`.

    Args:
        t: the tensor.
        asked: the conversion, for the error.
        instead: what to write.

    Raises:
        TrackedConversionError: a recorder that records tracks it.
    """
    if tracking(t):
        raise errors.TrackedConversionError(
            f"{asked} of {describe(t)}, which is tracked, would silently cut its gradient; {instead}"
        )


def _leave_as_number(t: Tensor, asked: str, caller: FrameType) -> None:
    """Raise, or warn, where a Tensor is about to become a number of Python's that a recorder does not track."""
    recorders = tracking(t)
    if not recorders or _is_formatting(caller):
        return
    if caller.f_code.co_code[caller.f_lasti] == _STORE_ITEM:
        raise errors.TrackedConversionError(
            f"an array was about to be assigned {describe(t)}, which is tracked, as one of its elements, which would "
            "silently cut its gradient; make the array a Tensor, as by gradmgr.numpy.zeros, or join the elements with "
            "gradmgr.numpy.stack; assign t.item() if the cut is meant"
        )
    text = (
        f"{asked} of {describe(t)}, which is tracked, makes a number that has no gradient; a function of gradmgr.numpy "
        "(np.sin for math.sin) keeps it, and t.item() says that the cut is meant"
    )
    if any(rec.is_of_transform for rec in recorders):
        raise errors.TrackedConversionError(text)
    cut(t, asked)
    errors.warn(text, errors.TrackedConversionWarning)


def _is_formatting(caller: FrameType) -> bool:
    """Return True if a frame computes `text % t`: a `%` of numbers is a method of Tensor's, and converts nothing."""
    code, place = caller.f_code.co_code, caller.f_lasti
    return code[place] == _OPERATOR and code[place + 1] in _REMAINDER


def to_float(self: Tensor) -> float:
    check_one_number(self, "float()", TypeError)
    number = float(self._array)
    if current() is not None:
        _leave_as_number(self, "float()", sys._getframe(1))
    return number


def to_complex(self: Tensor) -> complex:
    check_one_number(self, "complex()", TypeError)
    number = complex(self._array)
    if current() is not None:
        _leave_as_number(self, "complex()", sys._getframe(1))
    return number


# ---------------------------------------------------------------- copies


def check_pickled(t: Tensor) -> None:
    """Raise if a pickle would cut the gradient of a tensor: if it is tracked and no variable that the user attached."""
    if not _is_variable(t, tracking(t)):
        check_uncut(t, "a pickle", "pickle t.detach() if its value is all that is wanted")


def _with_history(made: Tensor, t: Tensor, recorders: list[Recorder]) -> Tensor:
    """Let recorders track a copy as they track the tensor."""
    for rec in recorders:
        rec.track(made, rec.node_id_of(t))
    return made


def _is_variable(t: Tensor, recorders: list[Recorder]) -> bool:
    """Return True if each recorder tracks `t` since the user attached it to a manager."""
    return all(rec.is_tape and not rec.is_of_transform and rec.leaf_ids.get(t) is not None for rec in recorders)


def _like(t: Tensor, array: Any) -> Tensor:
    """Return a tensor of the class of `t` around an array: a number if that is one, else a variable."""
    made = t._like(array)
    made._view_of = None if t._view_of is None else ()
    return made


def copied_shallowly(self: Tensor) -> Tensor:
    """Return a Tensor of the same values and history, for `copy.copy`."""
    return _with_history(_like(self, self._array), self, tracking(self))


def copied_deeply(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy, for `copy.deepcopy`: of an attached tensor another variable, of any other with its history."""
    recorders = tracking(self)
    made = _like(self, self._array.copy())
    if recorders and not _is_variable(self, recorders):
        _with_history(made, self, recorders)
    grad = self.grad  # read once, as other threads set it
    if grad is not None:
        made._grad = copy.deepcopy(grad, memo)
    memo[id(self)] = made
    return made
