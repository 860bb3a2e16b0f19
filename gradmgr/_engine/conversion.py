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
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor, check_one_number, describe, leaves

# `x[i] = t` and, from CPython 3.12 on, `x[i:j] = t`.
_STORES = frozenset(opcode.opmap[name] for name in ("STORE_SUBSCR", "STORE_SLICE") if name in opcode.opmap)
_OPERATOR = opcode.opmap["BINARY_OP"]


def _arguments_of_remainder() -> frozenset[int]:
    """Return the arguments of the instruction for `%` and `%=`."""
    codes = [compile(text, "<remainder>", "exec").co_code for text in ("a % b", "a %= b")]
    return frozenset(code[2 * code[::2].index(_OPERATOR) + 1] for code in codes)


_REMAINDER = _arguments_of_remainder()

# Functions written in C that ask a Tensor for a number: to answer True or False, and to write it into an array.
_TESTS = frozenset(("isclose", "isfinite", "isinf", "isnan"))
_WRITES = frozenset(("__setitem__", "fill", "fromiter", "setitem"))


def tracking(t: Tensor) -> list[Recorder]:
    """Return the recorders that record in this context and track `t`: a conversion cuts its gradient in these."""
    now = current()
    if now is None:
        return []
    recorders = now.recording() if now.__class__ is Context else [now]
    return [rec for rec in recorders if rec.open and rec.node_id_of(t) is not None]


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


def check_no_array(t: Tensor) -> None:
    """Raise if NumPy asks for an array in place of a tensor, and the gradient of that would be cut.

    Raises:
        TrackedConversionError: a recorder that records tracks it.
    """
    leaves(t, "a NumPy array of a Tensor")
    recorders = tracking(t)
    if not recorders:
        return
    if _is_store(sys._getframe(2)):
        raise _assigned(t, "several elements", "t.numpy()")
    how = "being differentiated" if any(rec.is_of_transform for rec in recorders) else "tracked by a manager"
    raise errors.TrackedConversionError(
        f"{describe(t)} is {how} and was about to become a plain NumPy array, which would "
        "silently cut its gradient; use functions of gradmgr.numpy or gradmgr.special, or say t.numpy() or "
        "t.detach()"
    )


def _assigned(t: Tensor, what: str, instead: str) -> errors.TrackedConversionError:
    return errors.TrackedConversionError(
        f"an array was about to be assigned {describe(t)}, which is tracked, as {what}, which would "
        "silently cut its gradient; make the array a Tensor, as by gradmgr.numpy.zeros, or join the elements with "
        f"gradmgr.numpy.stack; assign {instead} if the cut is meant"
    )


def _leave_as_number(t: Tensor, asked: str, caller: FrameType) -> None:
    """Raise, or warn, where a Tensor is about to become a number of Python's that a recorder does not track."""
    recorders = tracking(t)
    if not recorders:
        return
    called = _name_called(caller, _TESTS | _WRITES)
    if called in _TESTS or _is_formatting(caller):
        return
    if called in _WRITES or _is_store(caller):
        raise _assigned(t, "one of its elements", "t.item()")
    text = (
        f"{asked} of {describe(t)}, which is tracked, makes a number that has no gradient; a function of gradmgr.numpy "
        "(np.sin for math.sin) keeps it, and t.item() says that the cut is meant"
    )
    if any(rec.is_of_transform for rec in recorders):
        raise errors.TrackedConversionError(text)
    for rec in recorders:
        if rec.trace_log is not None:
            rec.trace_log.record_cut(asked, t)
    errors.warn(text, errors.TrackedConversionWarning)


def _is_store(caller: FrameType) -> bool:
    """Return True if a frame assigns to elements: of an array, as a Tensor converts no value that is assigned to it."""
    return caller.f_code.co_code[caller.f_lasti] in _STORES


def _is_formatting(caller: FrameType) -> bool:
    """Return True if a frame computes `text % t`: a `%` of numbers is a method of Tensor's, and converts nothing."""
    code, place = caller.f_code.co_code, caller.f_lasti
    return code[place] == _OPERATOR and code[place + 1] in _REMAINDER


def _name_called(caller: FrameType, names: frozenset[str]) -> str:
    """Return under which of these names a frame calls what it waits for; "" if under another, or that is unknown."""
    if names.isdisjoint(caller.f_code.co_names):  # as nearly always; the search takes 1 ms in a long function
        return ""
    import dis  # deferred, as it is seldom needed

    begin = None
    for step in reversed([step for step in dis.get_instructions(caller.f_code) if step.offset <= caller.f_lasti]):
        place = step.positions and (step.positions.lineno, step.positions.col_offset)
        begin = begin or place
        if begin is None or begin[1] is None:
            return ""
        # What is called is loaded from where the call begins on: `math` and `math.isnan` of math.isnan(t).
        if place == begin and step.opname.startswith("LOAD_"):
            return step.argval if step.argval in names else ""
    return ""


def to_float(self: Tensor) -> float:
    array = self._array
    if array.size != 1:
        check_one_number(self, "float()", TypeError)
    number = float(array)
    leaves(self, "float() of a Tensor")
    now = current()
    if now is not None and (now.groups if now.__class__ is Context else self._rec is now or self in now.leaf_ids):
        _leave_as_number(self, "float()", sys._getframe(1))
    return number


def to_complex(self: Tensor) -> complex:
    check_one_number(self, "complex()", TypeError)
    number = complex(self._array)
    leaves(self, "complex() of a Tensor")
    if current() is not None:
        _leave_as_number(self, "complex()", sys._getframe(1))
    return number


# ---------------------------------------------------------------- copies


def check_saved(t: Tensor, asked: str) -> None:
    """Raise if a pickle or file would cut the gradient of `t`: if it is tracked and no variable that was attached."""
    if not _is_variable(t, tracking(t)):
        check_uncut(t, asked, "pass t.detach() if its value is all that is wanted")


def _with_history(made: Tensor, t: Tensor, recorders: list[Recorder]) -> Tensor:
    """Let recorders track a copy as they track the tensor."""
    for rec in recorders:
        rec.track(made, rec.node_id_of(t))
    return made


def _is_variable(t: Tensor, recorders: list[Recorder]) -> bool:
    """Return True if each recorder tracks `t` since the user attached it to a manager, and not what it was made of.

    The node id of a result that was attached is no number.
    """
    return all(rec.is_tape and not rec.is_of_transform and type(rec.leaf_ids.get(t)) is int for rec in recorders)


def _like(t: Tensor, array: Any) -> Tensor:
    """Return a tensor of the class of `t` around an array: a number if that is one, else a variable."""
    made = t._like(array)
    made._view_of = None if t._view_of is None else ()
    return made


def copied_shallowly(self: Tensor) -> Tensor:
    """Return a Tensor of the same values and history, for `copy.copy`."""
    return _with_history(_like(self, self._array), self, tracking(self))


def copied_deeply(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy with its history, for `copy.deepcopy`; of an attached Parameter another one without.

    Libraries copy their arrays deeply before they compute on them, and users copy their modules to have other ones.
    """
    recorders = tracking(self)
    made = _like(self, self._array.copy())
    if not (isinstance(self, Parameter) and _is_variable(self, recorders)):
        _with_history(made, self, recorders)
    grad = self.grad  # read once, as other threads set it
    if grad is not None:
        made._grad = copy.deepcopy(grad, memo)
    memo[id(self)] = made
    return made
