"""Writing into the buffer of a tensor while other threads may use that tensor.

A buffer is written in place only where nothing else refers to it (`memory.is_private`). That is true for no longer
than until another thread takes the array from the tensor. So the writer keeps the other threads from that one tensor
while it asks and writes: holding the lock, it makes the tensor an instance of its guarded class, where `_array` is no
slot but a property that waits for the lock. An array that was taken before is counted, and then not written to; one
that is to be taken after waits, and is that of the written tensor. Reading costs nothing: it is the writer who pays.

This relies on two properties of CPython with its GIL. To read a slot is one step for other threads, as any instruction
is that calls no Python code; and reference counts are exact for what other threads hold.

Without the GIL to read a slot is several steps: a thread can look up the class, wait for a lock of the interpreter's,
and then read the slot, which is guarded by now. There no buffer is written in place while other threads run.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from typing import Any

from gradmgr._arrays import memory
from gradmgr._arrays.listening import listener
from gradmgr._engine.cleanup import owns

# Held while a buffer is written, and while what threads share is changed in several steps.
lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child process lacks the other threads: what they write is to be whole before
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

_GUARDED = "_guarded"

# Whether this interpreter can run without the GIL.
_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def add_guarded_class(cls: type) -> None:
    """Give a class with a slot `_array` the attributes `_guarded`, its guarded class, and `_unguarded`, itself."""
    if _GUARDED in cls.__dict__:
        return  # it is a guarded class
    slot: Any = cls._array  # type: ignore[attr-defined]  # a slot, of any class that is given

    def read(t: Any) -> Any:
        if owns(lock):
            return slot.__get__(t)  # the writer itself
        with lock:
            t.__class__ = cls  # the write is over: for where `release` was not called, as after an exception
            return t._array

    members = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__slots__": (),
        "_array": property(read, slot.__set__),
        _GUARDED: None,
    }
    guarded = type(cls)(cls.__name__, (cls,), members)
    guarded._guarded = cls._guarded = guarded  # type: ignore[attr-defined]  # attributes that it gives
    cls._unguarded = cls  # type: ignore[attr-defined]  # as above
    cls._read_array = staticmethod(slot.__get__)  # type: ignore[attr-defined]  # as above: of the writer itself


def _has_other_threads() -> bool:
    return len(sys._current_frames()) > 1


def hold(t: Any) -> Any:
    """Return the array of a tensor if it may be written in place, and then keep other threads from it; else None.

    To be called with the lock held. Where it returned an array, `release` is to follow before the lock is released.
    If it does not, the next thread that reads the tensor without the lock does it.
    """
    if (_FREE_THREADED and _has_other_threads()) or listener() is not None:  # which sees writes as new arrays
        return None
    array = t._array  # which may change the class: see `RowSparse`
    before, guarded = t.__class__, t._guarded
    t.__class__ = guarded
    # Another thread may replace it at any time, after which a reference that somebody holds counts for the tensor's.
    if memory.is_sole(array) and guarded._read_array(t) is array:
        return array
    t.__class__ = before  # the guarded class where this thread is writing to the tensor already
    return None


def release(t: Any) -> None:
    """Let other threads use a tensor again, after `hold` returned its array."""
    t.__class__ = t._unguarded


def hold_all(tensors: Iterable[Any]) -> bool:
    """Keep other threads, if there are any, from these tensors until the lock is released; tell whether that is done.

    If it is not, the tensors are not to be written in place.
    """
    if len(sys._current_frames()) > 1:  # `_has_other_threads` without a frame, as each replay asks
        if _FREE_THREADED:
            return False
        for t in tensors:
            t.__class__ = t._guarded
    return True


def may_write(t: Any) -> bool:
    """Tell whether the buffer of `t` may be written in place; as `hold`, and `release` may be left out."""
    return hold(t) is not None
