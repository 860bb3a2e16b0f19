"""Clean-up that comes to its end though exceptions strike it: Ctrl-C, MemoryError, the handler of an alarm."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any


def complete(cleanup: Callable[..., Any], *args: Any, attempts: int = 3) -> None:
    """Call a clean-up again where an exception cut it short, until it has come to its end; then raise the first.

    Args:
        cleanup: may be called twice: what is done already is not done again, or changes nothing.
        args: what to call it with.
        attempts: after so many, it is the clean-up itself that fails.
    """
    try:
        cleanup(*args)
    except BaseException:
        if attempts > 1:
            complete(cleanup, *args, attempts=attempts - 1)
        raise


def call_if_free(lock: RLock, action: Callable[[], None]) -> None:
    """Call a function with a lock held; not where the lock is held already, by this thread or another."""
    if owns(lock):
        return
    try:
        if lock.acquire(blocking=False):
            action()
    finally:
        if owns(lock):  # and not by a flag: an exception may strike between `acquire` and the setting of it
            lock.release()


def owns(lock: RLock) -> bool:
    """Tell whether this thread holds a lock."""
    # It has no public name, but `threading.Condition` asks for it of any lock.
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # typeshed leaves it out
