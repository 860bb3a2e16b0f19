"""What ends a wait: the timeout, and the failure of another rank.

A separate communicator carries three kinds of messages: that a rank failed, the question
where a rank is, and the answer. They are read while waiting, since a rank that computes is waited for in any case.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr.distributed._engine import Watch, duplicate

_FAILED, _ASK, _HERE, _GONE = range(4)  # the tags of messages

_FIRST_ASK = 1.0  # seconds of waiting after which the others are asked where they are; then again after twice as many
_ANSWER = 0.5  # seconds they have to answer once the timeout is over
_GRACE = 5.0  # seconds the others have to end by themselves after a failure, before the engine ends them
_LAST_WORDS = 0.2  # seconds for the launcher to pass on what was written
_LETTERS = 4000  # of an error that are told to the others


class Watchdog(Watch):
    """Raises in a wait when another rank has failed, has ended, or does not come in time."""

    def __init__(self, comm: Any, mpi: Any, timeout: float) -> None:
        super().__init__()
        self.timeout = timeout
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.mpi = mpi
        self._world = comm
        self._process = os.getpid()
        self._comm: Any = None
        self._failures: dict[int, str] = {}
        self._places: dict[int, str] = {}  # what ranks answered
        self._gone: dict[int, float] = {}  # when the message came that a rank has ended
        self._asked = 0.0  # how long the present wait had lasted when the others were asked
        self._sent: list[Any] = []
        self._failed = False

    def connect(self) -> None:
        """Make the communicator for messages; all ranks come here."""
        self._comm = duplicate(self._world, tuple(range(self.size)), self)

    # ------------------------------------------------------------ what waits ask

    def check(self) -> None:
        if self._failures:
            raise self._failure()
        if os.getpid() != self._process:  # the connections are not its own, and MPI's calls would hang in it
            raise errors.DistributedError(
                "this process was made by fork from a rank, and is none itself; let the rank call what all ranks do "
                "together, or start such processes with multiprocessing's method 'spawn'"
            )

    def look(self, asked: str, ranks: tuple[int, ...], waited: float) -> None:
        with self.lock:
            self._read(_HERE, f"waits in {asked}")
            self.check()
            if waited < _FIRST_ASK and waited < self.timeout:
                self._asked = 0.0
                return
            others = [rank for rank in ranks if rank != self.rank]
            if waited >= self.timeout:
                raise self._too_late(asked, others, waited)
            if waited >= max(_FIRST_ASK, 2 * self._asked):
                self._asked = waited
                self._ask(others)
            self._check_gone(asked, others)

    def _check_gone(self, asked: str, others: list[int]) -> None:
        now = time.monotonic()
        gone = [rank for rank in others if now - self._gone.get(rank, now) > _FIRST_ASK]
        if gone:
            raise errors.RankFailedError(
                f"{asked} waits for {_list(gone)}, which came to the end of the program; "
                "every rank must call the same functions in the same order"
            )

    def _ask(self, others: list[int]) -> None:
        self._places.clear()
        for rank in others:
            self._send(rank, _ASK, "")

    def _too_late(self, asked: str, others: list[int], waited: float) -> errors.RankFailedError:
        self._ask(others)
        until = time.monotonic() + _ANSWER
        while time.monotonic() < until and len(self._places) < len(others):
            self._read(_HERE, f"waits in {asked}")
            time.sleep(1e-3)
        self.check()
        silent = [rank for rank in others if rank not in self._places]
        found = [f"rank {rank} {place}" for rank, place in sorted(self._places.items())]
        if silent:
            found.append(f"{_list(silent)} had not arrived and did not answer: computing, hanging, or gone")
        told = "; ".join([f"{asked} waited {waited:.1f} s, the timeout being {self.timeout:g} s", *found])
        return errors.RankFailedError(
            f"{told}. If a rank may take longer between two calls, begin with distributed.init(timeout=...)"
        )

    def _failure(self) -> errors.RankFailedError:
        # The first cause: not one that failed because another did, if there is a choice.
        rank, text = min(self._failures.items(), key=lambda item: item[1].startswith(errors.RankFailedError.__name__))
        return errors.RankFailedError(f"rank {rank} ended with {text}")

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
                self._failures.setdefault(source, text)
            elif kind == _ASK:
                self._send(source, tag, place)
            else:
                self._places[source] = text
                if kind == _GONE:
                    self._gone.setdefault(source, time.monotonic())

    # ------------------------------------------------------------ the end of this rank

    def fail(self, text: str) -> None:
        """Tell the others that this rank ends, and by what."""
        if not self._failed:
            self._failed = True
            with self.lock:
                for rank in range(self.size):
                    if rank != self.rank:
                        self._send(rank, _FAILED, text[:_LETTERS])

    def await_others(self, everyone_is_here: Any) -> None:
        """Wait, however long it takes, until all ranks have come to the end of their programs.

        Raises:
            RankFailedError: one of them failed.
        """
        while not everyone_is_here():
            self.let_go()
            with self.lock:
                # What was begun and not waited for still counts, so long as it is under way.
                self._read(_GONE if len(self.kept) <= 1 else _HERE, "has come to the end of the program")
            self.check()
            time.sleep(1e-3)

    def settle(self) -> None:
        """Bring to its end what is still under way, now that every rank is here.

        The engine goes on with it when it is shut down, and by then Python has freed the memory of arrays. So what
        does not come to an end, such as a recv that is never answered, is kept for ever.
        """
        until = time.monotonic() + _GRACE
        while self.kept or self._sent:
            self.let_go()
            with self.lock:
                self._sent = [request for request in self._sent if not request.Test()]
            if time.monotonic() > until:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object((self.kept, self._sent)))
                return
            time.sleep(1e-3)

    def is_doomed(self) -> bool:
        """Tell whether this rank failed, or received that another did."""
        return self._failed or bool(self._failures)

    def abort(self) -> None:
        """End the job, after a time in which the others may say what they have to say."""
        self.fail("the failure of another rank")
        until = time.monotonic() + (0 if self._comm is None else _GRACE)
        while len(self._failures) < self.size - 1 and time.monotonic() < until:
            with contextlib.suppress(self.mpi.Exception):
                self._read(_GONE, "has failed")
            time.sleep(1e-3)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
        time.sleep(_LAST_WORDS)
        self.mpi.COMM_WORLD.Abort(1)

    def free(self) -> None:
        """Give the communicator back; all ranks must come here."""
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.Free()


def _list(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
