"""Operations that were started, and how a rank waits for them: it yields its core, and sleeps where others need it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any

from gradmgr import errors
from gradmgr.distributed._local_ranks import LocalRanks
from gradmgr.distributed._shared_memory import SharedMemory

_TRIES = 8  # between two pauses: fewer, and the bytes move slower; more, and ranks that share a core starve each other
_POLL_INTERVAL = 1e-3  # seconds between two polls of the watchdog
# Seconds after which a wait for others sleeps in its pauses, so that its core is free. More than two ranks that compute
# the same need to come together (20 to 50 us); on busy cores a step takes 0.8 of the time that it takes with 0.2 s.
_SPIN_TIME = 2e-4
# A yield that takes so many seconds gave the core to another process. For some time then waits sleep at once: a rank
# that sleeps has the core back soon after, one that yields it after the other's time slice of some milliseconds. With a
# process that computes on each core, a step of two ranks takes 0.75 ms instead of 3.0; on idle cores yields take 1 us.
_OTHER_RAN = 5e-4
_BUSY_TIME = 0.05
_NAP = 1 / 16  # of the time waited so far: what a pause lasts, and the most by which sleeping makes a wait longer
_MAX_NAP = 1e-3  # seconds

_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has none


class WatchdogBase:
    """The checks that a wait makes from time to time, and the lock around the calls of MPI; see `_watchdog`."""

    def __init__(self, local: LocalRanks) -> None:
        self.local = local
        self.lock = threading.RLock()
        # MPI may still write to or read the memory of these, though the user holds them no longer.
        self.pending: set[Work] = set()
        self.memories: weakref.WeakSet[SharedMemory] = weakref.WeakSet()
        self.made_ops: dict[str, Any] = {}  # reductions as operations of MPI that it does not have itself, by name
        self.sleeps_until = 0.0  # of time.perf_counter: waits sleep until then at once, as others need this core

    def collect_finished(self) -> None:
        """Forget what is complete."""
        for work in list(self.pending):
            with contextlib.suppress(errors.DistributedError):
                work.done()

    def advance(self) -> None:
        """Go on with what other ranks may wait for, whatever this rank waits for."""
        with self.lock:
            for memory in list(self.memories):
                memory.advance()

    def check(self) -> None:
        """Raise if a rank is known to have failed."""

    def poll(self, operation: str, ranks: tuple[int, ...], waited: float) -> None:
        """Raise if a wait for these ranks of the world, of so many seconds, must end."""


class Work:
    """An operation that was started and may not be complete."""

    __slots__ = ("operation", "ranks", "watchdog")

    def __init__(self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase) -> None:
        self.operation = operation
        self.ranks = ranks  # of the world, which must all take part
        self.watchdog = watchdog
        watchdog.local.set_activity(operation, False)

    def done(self) -> bool:
        """Return whether it is complete, and let MPI progress."""
        return self.progress(1)

    def progress(self, tries: int) -> bool:
        """Test so many times whether it is complete, which is what lets MPI progress."""
        raise NotImplementedError

    def wait(self) -> None:
        """Return when it is complete.

        Raises:
            DistributedError: the ranks did not call the same operation.
            RankFailedError: another rank ended, or the timeout is over.
        """
        if self.progress(_TRIES):
            return
        self.watchdog.local.set_activity(self.operation, True)
        try:
            self._try_until_done()
        finally:
            self.watchdog.local.set_activity(self.operation, False)

    def _try_until_done(self) -> None:
        began = looked = time.perf_counter()
        while not self.progress(_TRIES):
            looked = self._pause(began, looked)

    def is_transferring(self) -> bool:
        """Return whether all ranks have arrived, so that only bytes remain to be transferred."""
        return False

    def is_moved_by_polls(self) -> bool:
        """Return whether bytes are on their way that get on with each poll, so that a pause would hold them up."""
        return False

    def _pause(self, began: float, looked: float) -> float:
        """Yield the core for a moment; poll the watchdog now and then. Return when it was polled last."""
        now = time.perf_counter()
        if now - looked > _POLL_INTERVAL:
            looked = now
            self.watchdog.advance()
            self.watchdog.poll(self.operation, self.ranks, now - began)
        waited = now - began
        is_over = waited > _SPIN_TIME or now < self.watchdog.sleeps_until
        if is_over and not self.is_moved_by_polls():
            time.sleep(min(waited * _NAP, _MAX_NAP))
            return looked
        _yield_core()
        if time.perf_counter() - now > _OTHER_RAN:
            self.watchdog.sleeps_until = now + _BUSY_TIME
        return looked
