"""Whether the cyclic collector runs in this thread.

Before Python 3.12 it may run in the middle of anything that allocates, `ContextVar.set` too, and to set a ContextVar in
the middle of that leaves freed memory in the context. What is collected does not show in reference counts: an object of
an older generation, which a collected one held, is freed as if its last reference were deleted.
"""

from __future__ import annotations

import gc
import sys
from threading import get_ident
from typing import Any


class _Watch:
    """Notes in which thread the collector runs: one at a time."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: int | None = None

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        self._thread = get_ident() if phase == "start" else None

    def is_here(self) -> bool:
        return self._thread == get_ident()


_watch = _Watch()
if sys.version_info < (3, 12):
    gc.callbacks.append(_watch)

# Tell whether it runs in this thread, and may have interrupted anything; never from Python 3.12 on.
interrupts_here = _watch.is_here
