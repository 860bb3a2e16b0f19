"""Whether backward runs in several threads at once."""

from __future__ import annotations

from typing import Any

from gradmgr._engine.cleanup import ExitMethod
from gradmgr._engine.turn_lock import new_turn_lock


class _Turns:
    """Whether backward runs in several threads at once, and the lock by which else it does not.

    The lock is reentrant: a callback may call backward.
    """

    def __init__(self) -> None:
        self.parallel = True
        self.lock = new_turn_lock()


turns = _Turns()


class set_multithreading_enabled:  # noqa: N801  # torch's spelling
    """Allow several threads to run backward at once, the default, or only one at a time in the whole process.

    Called, it sets the mode; in a with block it sets it back at the end.

    >>> import gradmgr
    >>> with gradmgr.set_multithreading_enabled(False):
    ...     pass  # backward() in any thread now waits for one that runs elsewhere
    """

    def __init__(self, mode: bool) -> None:
        self._before = turns.parallel
        turns.parallel = bool(mode)

    def __enter__(self) -> None:
        pass

    def _close_latest(self, found: Any = None) -> None:
        turns.parallel = self._before

    __exit__ = ExitMethod(_close_latest)
