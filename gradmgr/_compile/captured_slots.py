"""The slots of class Tensor while a function is captured: descriptors that tell a capture what is read and written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from gradmgr._arrays.captured import capturing, set_capturing
from gradmgr._engine.cleanup import allow_full_collections, complete, without_full_collections
from gradmgr._engine.tensor import Tensor


class _CapturedSlot:
    """Stands for a slot of Tensor while a function is captured in some context."""

    def __init__(self, slot: Any, read: Callable[..., Any], write: Callable[..., None]) -> None:
        self._slot = slot
        self._read = read
        self._write = write

    def __get__(self, t: Any, cls: Any = None) -> Any:
        if t is None:
            return self
        capture = capturing()
        return self._slot.__get__(t) if capture is None else self._read(capture, t)

    def __set__(self, t: Any, value: Any) -> None:
        capture = capturing()
        if capture is None:
            self._slot.__set__(t, value)
        else:
            self._write(capture, t, value)


array_slot: Any = Tensor.__dict__["_array"]
grad_slot: Any = Tensor.__dict__["_grad"]
# The thread in which a function is captured, while the slots are replaced. One call takes it, and tells who has it.
_turn: dict[str, int] = {}


def value_in(slot: Any, t: Tensor) -> Any:
    """Return what stands in a slot, None where nothing was ever written to it."""
    try:
        return slot.__get__(t)
    except AttributeError:
        return None


def run_captured(capture: Any, function: Callable[..., None], *args: Any) -> bool:
    """Call a function and capture what it does; return False, without calling it, while another thread does so.

    It does not wait: that thread may wait for this one.

    Args:
        capture: a TensorCapture, whose methods read and write the slots.
        function: what to call.
        args: its arguments.
    """
    try:
        if _turn.setdefault("thread", threading.get_ident()) != threading.get_ident():
            return False
        try:
            _replace_slots(capture)
            without_full_collections(function, *args)
        finally:
            _end_turn()
    except BaseException:
        complete(_end_turn)  # again: an exception may have struck in `finally`
        raise
    return True


def _replace_slots(capture: Any) -> None:
    slots: Any = Tensor
    kind = type(capture)
    slots._array = _CapturedSlot(array_slot, kind.read_array, kind.write_array)
    slots._grad = _CapturedSlot(grad_slot, kind.read_grad, kind.write_grad)
    set_capturing(capture)


def _end_turn() -> None:
    """Put the slots back, and let other threads capture; called twice it does nothing more."""
    if _turn.get("thread") == threading.get_ident():
        set_capturing(None)
        slots: Any = Tensor
        slots._array = array_slot
        slots._grad = grad_slot
        _turn.pop("thread", None)


def _forget_turn() -> None:
    """End, in a child process, a capture of a thread that it does not have."""
    if _turn.get("thread", threading.get_ident()) != threading.get_ident():
        _turn["thread"] = threading.get_ident()
        _end_turn()
        allow_full_collections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turn)
