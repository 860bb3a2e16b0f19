"""Ends a wait at the timeout, and at the failure or the death of another rank.

A separate communicator carries three kinds of messages: that a rank failed, the query what a rank does,
and the answer. They are read in waits only: a rank that computes is waited for in any case. Of the ranks of this
machine it is known at once whether they live, by `_local_ranks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import time
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr.distributed._group import named
from gradmgr.distributed._local_ranks import LocalRanks
from gradmgr.distributed._requests import duplicate
from gradmgr.distributed._work import WatchdogBase

_FAILED, _QUERY, _WAITING, _FINISHED = range(4)  # the tags of messages

_FIRST_QUERY = 1.0  # seconds of waiting after which the others are queried; then again after twice as many
_ANSWER_TIME = 0.5  # seconds they have to answer once the timeout is over
_GRACE = 5.0  # seconds the others have to end by themselves after a failure, before this rank ends the job
_FLUSH_TIME = 0.2  # seconds for the launcher to forward what was written
# Of ranks that failed because of each other, the texts before that of the first.
_FOLLOWED = re.compile(r"^(rank \d+ ended with RankFailedError: (?=rank \d+ (was killed|ended)))+")
_MAX_TEXT = 4000  # characters of an error that are sent to the others


class Watchdog(WatchdogBase):
    """Raises in a wait when another rank has failed, has ended, or does not come in time."""

    def __init__(self, comm: Any, mpi: Any, timeout: float, local: LocalRanks) -> None:
        super().__init__(local)
        self.timeout = timeout
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.mpi = mpi
        self._world = comm
        self._process = os.getpid()
        self._comm: Any = None
        self._failures: dict[int, str] = {}
        self._answers: dict[int, str] = {}  # what ranks answered
        self._finished: dict[int, float] = {}  # when the message came that a rank has ended
        self._queried = 0.0  # how long the present wait had lasted when the others were queried
        self._sent: list[Any] = []
        self._failed = False

    def connect(self) -> None:
        """Make the communicator for messages; all ranks call this."""
        self._comm = duplicate(self._world, tuple(range(self.size)), self)
        self.local.connect()

    # ------------------------------------------------------------ called by waits

    def check(self) -> None:
        if self._failures:
            raise self._failure()
        if os.getpid() != self._process:  # the connections are not its own, and MPI's calls would hang in it
            raise errors.DistributedError(
                "this process was made by fork from a rank, and is not a rank itself; let the rank call what all ranks "
                "do together, or start such processes with multiprocessing's method 'spawn'"
            )

    def poll(self, operation: str, ranks: tuple[int, ...], waited: float) -> None:
        others = [rank for rank in ranks if rank != self.rank]
        with self.lock:
            self._read(_WAITING, f"waits in {operation}")
            self._find_dead()
            self.check()
            if waited < _FIRST_QUERY and waited < self.timeout:
                self._queried = 0.0
                return
            if waited >= self.timeout:
                raise self._timeout_error(operation, others, waited)
            if waited >= max(_FIRST_QUERY, 2 * self._queried):
                self._queried = waited
                self._query(others)
            self._check_finished(operation, others)

    def _find_dead(self) -> None:
        for rank, text in self.local.find_dead().items():
            self._failures.setdefault(rank, text)

    def _check_finished(self, operation: str, others: list[int]) -> None:
        now = time.monotonic()
        gone = [rank for rank in others if now - self._finished.get(rank, now) > _FIRST_QUERY]
        if gone:
            raise errors.RankFailedError(
                f"{operation} waits for {named(gone)}, which came to the end of the program; "
                "every rank must call the same functions in the same order"
            )

    def _query(self, others: list[int]) -> None:
        self._answers.clear()
        for rank in others:
            self._send(rank, _QUERY, "")

    def _timeout_error(self, operation: str, others: list[int], waited: float) -> errors.RankFailedError:
        self._query(others)
        until = time.monotonic() + _ANSWER_TIME
        while time.monotonic() < until and len(self._answers) < len(others):
            self._read(_WAITING, f"waits in {operation}")
            time.sleep(1e-3)
        self._find_dead()
        self.check()
        silent = [rank for rank in others if rank not in self._answers]
        found = [f"rank {rank} {place}" for rank, place in sorted(self._answers.items())]
        known = {rank: text for rank in silent if (text := self.local.describe(rank)) is not None}
        found += [f"rank {rank} had not arrived and did not answer: {text}" for rank, text in known.items()]
        unknown = [rank for rank in silent if rank not in known]
        if unknown:
            found.append(f"{named(unknown)} had not arrived and did not answer: computing, hanging, or gone")
        told = "; ".join([f"{operation} waited {waited:.1f} s, the timeout being {self.timeout:g} s", *found])
        return errors.RankFailedError(
            f"{told}. If a rank may take longer between two calls, begin with distributed.init(timeout=...)"
        )

    def _failure(self) -> errors.RankFailedError:
        # The first cause: not one that failed because another did, if there is a choice.
        followed = f"ended with {errors.RankFailedError.__name__}"
        rank, text = min(self._failures.items(), key=lambda item: item[1].startswith(followed))
        self.local.set_informed()
        return errors.RankFailedError(_FOLLOWED.sub("", f"rank {rank} {text}"))

    # ------------------------------------------------------------ messages

    def _send(self, to: int, tag: int, text: str) -> None:
        if self._comm is not None:
            self._sent = [request for request in self._sent if not request.Test()]
            self._sent.append(self._comm.Isend(np.frombuffer(text.encode(), np.uint8), to, tag))

    def _read(self, tag: int, place: str) -> None:
        """Read what messages have come, and answer with this tag and place."""
        status = self.mpi.Status()
        while self._comm is not None and self._comm.Iprobe(status=status):
            source, kind = status.Get_source(), status.Get_tag()
            found = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
            self._comm.Recv(found, source, kind)
            text = found.tobytes().decode(errors="replace")
            if kind == _FAILED:
                self._failures.setdefault(source, f"ended with {text}")
            elif kind == _QUERY:
                self._send(source, tag, place)
            else:
                self._answers[source] = text
                if kind == _FINISHED:
                    self._finished.setdefault(source, time.monotonic())

    # ------------------------------------------------------------ the end of this rank

    def fail(self, text: str) -> None:
        """Tell the others that this rank ends, and by what."""
        if not self._failed:
            self._failed = True
            self.local.fail(text)
            others = [rank for rank in range(self.size) if rank != self.rank]
            with self.lock:
                for rank in others:
                    self._send(rank, _FAILED, text[:_MAX_TEXT])

    def wait_for_all(self, everyone_is_here: Any) -> None:
        """Wait, without a timeout, until all ranks have come to the end of their programs.

        Raises:
            RankFailedError: one of them failed.
        """
        self.local.set_activity("the end of the program", True)
        while not everyone_is_here():
            self.collect_finished()
            with self.lock:
                # A rank with pending operations counts as not finished.
                self._read(_FINISHED if len(self.pending) <= 1 else _WAITING, "has come to the end of the program")
                self._find_dead()
            self.check()
            time.sleep(1e-3)

    def drain(self) -> None:
        """Complete the operations that are still pending, now that every rank is here.

        MPI goes on with it when it is finalized, and by then Python has freed the memory of arrays. So what
        does not come to an end, such as a recv that is never answered, is kept forever.
        """
        until = time.monotonic() + _GRACE
        while self.pending or self._sent:
            self.collect_finished()
            with self.lock:
                self._drop_finished()
            if time.monotonic() > until:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object((self.pending, self._sent)))
                return
            time.sleep(1e-3)

    def _drop_finished(self) -> None:
        self._sent = [request for request in self._sent if not request.Test()]

    def has_failed(self) -> bool:
        """Return whether this rank failed, or was informed that another did."""
        return self._failed or bool(self._failures)

    def abort(self) -> None:
        """End the job, after a time in which the others may report their errors."""
        self.fail("the failure of another rank")
        until = time.monotonic() + (0 if self._comm is None else _GRACE)
        while len(self._failures) < self.size - 1 and time.monotonic() < until:
            with contextlib.suppress(self.mpi.Exception):
                self._read(_FINISHED, "has failed")
                self._find_dead()
            time.sleep(1e-3)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
        time.sleep(_FLUSH_TIME)
        self.mpi.COMM_WORLD.Abort(1)

    def free(self) -> None:
        """Free the communicator; all ranks must call this."""
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.Free()
