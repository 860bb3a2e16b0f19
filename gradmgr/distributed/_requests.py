"""Requests of MPI under way, as operations to wait for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr.distributed._work import WatchdogBase, Work


class Posted(Work):
    """An operation with requests of MPI, and the error that it ended with."""

    __slots__ = ("_error", "_requests")

    def __init__(
        self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase, requests: Iterable[Any] | None
    ) -> None:
        super().__init__(operation, ranks, watchdog)
        self._requests = None if requests is None else list(requests)  # None: not posted yet
        self._error: errors.DistributedError | None = None

    def _are_complete(self, requests: list[Any], tries: int) -> bool:
        """Return whether the requests are complete; raise their error if they failed."""
        try:
            if self._error is None and not are_done(requests, tries, self.operation):
                return False
        except errors.DistributedError as error:
            self._error = error
        self.watchdog.pending.discard(self)
        if self._error is not None:
            raise self._error
        return True


class Agreement:
    """An agreement over MPI, as a request that can be tested."""

    __slots__ = ("_numbers", "_request")

    def __init__(self, mpi: Any, comm: Any, digest: int) -> None:
        self._numbers = np.array((digest, -digest, 0, 0), np.int64)  # the last two become the least of the first two
        self._request = comm.Iallreduce(self._numbers[:2], self._numbers[2:], mpi.MIN)

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        return bool(self._request.Test())

    @property
    def is_unanimous(self) -> bool:
        """Return whether the least and the greatest digest are equal, once it is complete."""
        return bool(self._numbers[2] == -self._numbers[3])  # the least of -digest is that of the greatest digest


class Transfer(Posted):
    """Arrays on their way between two ranks."""

    __slots__ = ()

    def __init__(self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase, requests: Iterable[Any]) -> None:
        super().__init__(operation, ranks, watchdog, requests)
        watchdog.pending.add(self)

    def progress(self, tries: int) -> bool:
        with self.watchdog.lock:
            return self._are_complete(self._requests or [], tries)


def are_done(requests: list[Any], tries: int, operation: str) -> bool:
    """Test requests so many times, and remove those that are complete."""
    try:
        while requests:
            test = requests[-1].Test
            for _ in range(tries):
                if test():
                    break
            else:
                return False
            requests.pop()
    except RuntimeError as error:
        if isinstance(error, errors.GradmgrError):
            raise
        raise errors.DistributedError(f"{operation}: the backend reports: {error}") from error
    return True


class Receiving:
    """A request for a message, which must have the size that was expected."""

    __slots__ = ("_mpi", "_nbytes", "_operation", "_request")

    def __init__(self, mpi: Any, request: Any, nbytes: int, operation: str) -> None:
        self._mpi = mpi
        self._request = request
        self._nbytes = nbytes
        self._operation = operation

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        status = self._mpi.Status()
        try:
            arrived = self._request.Test(status)
        except self._mpi.Exception as error:
            raise errors.DistributedError(f"{self._operation}: the backend reports: {error}") from error
        if arrived and (found := status.Get_count(self._mpi.BYTE)) != self._nbytes:
            raise errors.DistributedError(
                f"{self._operation} expected {self._nbytes} bytes, and {found} came; both ranks must name the same "
                "shape and dtype"
            )
        return bool(arrived)


def duplicate(comm: Any, ranks: tuple[int, ...], watchdog: WatchdogBase) -> Any:
    """Return a new communicator of the same ranks, all of which must call this."""
    made, request = comm.Idup()
    Transfer("the making of a group of ranks", ranks, watchdog, [request]).wait()
    return made
