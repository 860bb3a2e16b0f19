"""Locks by which threads that use one object take turns, and which no child process waits for in vain.

A child of `os.fork` has none of the other threads of its parent. A lock that one of them held would never be released
there. It is to be used only where what it guards is whole whenever a fork may come: where it is changed atomically (see
`run_atomically`), or with `write_lock.lock`, for which a fork waits.
"""

from __future__ import annotations

import os
from threading import RLock
from weakref import WeakSet

from gradmgr._engine.cleanup import owns

_locks: WeakSet[RLock] = WeakSet()


def new_turn_lock() -> RLock:
    """Return a reentrant lock that is free in a child process unless the thread that forked held it."""
    lock = RLock()
    _locks.add(lock)
    return lock


def _free_those_of_other_threads() -> None:
    for lock in _locks:
        if not owns(lock):
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as Python does with the locks of its own library


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_those_of_other_threads)
