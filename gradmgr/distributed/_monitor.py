"""The monitor: a process beside the ranks of one machine, which reports a rank that ends too early.

It is a process of its own because a launcher may end all ranks the moment that one dies (MPICH's does, by SIGKILL),
and because a rank inside MPI_Init runs no Python. The first rank that calls `init` starts this file as a program,
so it imports the standard library alone. Each rank connects to it by a Unix socket and sends its standard error and,
under MPICH's launcher, a copy of its connection to that launcher. While a copy is open, the launcher does not notice a
rank that left without MPI_Finalize: the others can report it, save what they have, and end the job by a status not 0.

What each rank does is in memory that all of them share with the monitor, so that it can be read when the rank is gone.
Ranks also send the names of the files in which MPI has memory for several of them, as MPICH's in /dev/shm: where a rank
dies, MPI does not remove these, and the monitor does.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The states of a rank: in MPI_Init; in its program; informed that another failed; failed itself; finalized; past its
# program, in MPI_Finalize.
STARTING, RUNNING, INFORMED, FAILED, DONE, LEAVING = range(6)

_SLOTS = 1024  # ranks that a monitor can take
_SLOT_SIZE = 1024  # bytes
_TEXT_SIZE = 900
_IDENTITY = struct.Struct("=iiB")  # rank, process, state
_STATE_AT = 8
_ACTIVITY_AT = 16
_ACTIVITY = struct.Struct("=d?")  # since when, whether it waits
_TEXT_AT = 32
_TEXT = struct.Struct(f"=H{_TEXT_SIZE}s")  # length and bytes of what it does

_SETTLE = 0.25  # seconds after a death in which the others may die of it, or report it, before the monitor does
_TERMINATE = 2.0  # seconds between SIGTERM and SIGKILL
_FIRST_SEARCH = 0.1  # seconds after which ranks are searched for that have not called `init`
_SEARCH = 1.0  # seconds between two further searches
_MAX_LINE = 4000  # bytes; what is shorter than PIPE_BUF is written as a whole

_EXIT_CODE = 49  # its place among the fields that `process_fields` returns
_PIDFD_INFO = struct.Struct("=Q52si")  # linux/pidfd.h: the mask of what is given, ..., the exit status
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11

# MPI's memory for the ranks of a machine, by how the names of its files begin: MPICH's and Open MPI's.
_MEMORY_FILES = ("/dev/shm/mpich_shm_", "/dev/shm/vader_segment.", "/dev/shm/sm_segment.")  # noqa: S108  # MPI's choice

_CHECKPOINT = "start the job again from its last checkpoint"


# ---------------------------------------------------------------- shared with the ranks


@dataclass(frozen=True)
class Activity:
    """What a rank did last."""

    text: str
    waits: bool
    since: float  # of time.monotonic, which is the same in all processes of a machine

    def __str__(self) -> str:
        seconds = max(0.0, time.monotonic() - self.since)
        if self.waits:
            return f"waiting for {seconds:.1f} s in {self.text}"
        return f"computing (its last call, {seconds:.1f} s before, was {self.text})"


class Board:
    """Memory in which each rank of this machine writes what it does; a slot for each."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SLOTS * _SLOT_SIZE)

    @staticmethod
    def allocate() -> int:
        """Return a file descriptor of new memory, which has no name and goes with the last process that maps it."""
        fd = os.memfd_create("gradmgr.distributed")
        os.ftruncate(fd, _SLOTS * _SLOT_SIZE)
        return fd

    def enter(self, slot: int, rank: int, process: int) -> None:
        """Give a slot to a rank."""
        _IDENTITY.pack_into(self._memory, slot * _SLOT_SIZE, rank, process, STARTING)

    def identity(self, slot: int) -> tuple[int, int, int]:
        """Return rank, process and state; process 0 where the slot is free."""
        found: tuple[int, int, int] = _IDENTITY.unpack_from(self._memory, slot * _SLOT_SIZE)
        return found

    def set_state(self, slot: int, state: int) -> None:
        """Write the state of a rank."""
        self._memory[slot * _SLOT_SIZE + _STATE_AT] = state

    def set_text(self, slot: int, text: str) -> None:
        """Write what a rank does."""
        encoded = text.encode(errors="replace")[:_TEXT_SIZE]
        _TEXT.pack_into(self._memory, slot * _SLOT_SIZE + _TEXT_AT, len(encoded), encoded)

    def set_waits(self, slot: int, waits: bool) -> None:
        """Write whether a rank waits in that, from now on."""
        _ACTIVITY.pack_into(self._memory, slot * _SLOT_SIZE + _ACTIVITY_AT, time.monotonic(), waits)

    def activity(self, slot: int) -> Activity:
        """Return what a rank did last."""
        since, waits = _ACTIVITY.unpack_from(self._memory, slot * _SLOT_SIZE + _ACTIVITY_AT)
        length, text = _TEXT.unpack_from(self._memory, slot * _SLOT_SIZE + _TEXT_AT)
        return Activity(text[:length].decode(errors="replace"), waits, since)

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Yield slot, rank and process of those that have not finalized."""
        for slot in range(_SLOTS):
            rank, process, state = self.identity(slot)
            if process == 0:
                return
            if state < DONE:
                yield slot, rank, process


def process_fields(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the state, the parent, ...; none if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def memory_files(process: int) -> list[str]:
    """Return the files of MPI's memory that a process has mapped."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return sorted({path for line in lines if (path := line.split(maxsplit=5)[-1]).startswith(_MEMORY_FILES)})


def exit_status(handle: int, process: int) -> int | None:
    """Return the status of a process that has ended, as `os.waitpid` has it; None if it is not known.

    /proc shows it until the parent of the process has asked for it; from then on Linux 6.15 and later give it to
    a process that has a file descriptor of it.
    """
    import fcntl  # not on Windows, where this is not called

    fields = process_fields(process)
    if len(fields) > _EXIT_CODE and fields[0] == "Z":
        return int(fields[_EXIT_CODE])
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, b"", 0))
    with contextlib.suppress(OSError):
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
        found, _, status = _PIDFD_INFO.unpack(info)
        if found & _PIDFD_INFO_EXIT:
            return int(status)
    return None


def describe_end(status: int | None) -> str:
    """Return in words how a process ended."""
    if status is None:
        return "ended (how, its launcher knows)"
    if os.WIFSIGNALED(status):
        return f"was killed by {_signal_name(os.WTERMSIG(status))}"
    return f"ended with exit status {os.WEXITSTATUS(status)}"


def remedy(status: int | None) -> str:
    """Return what to do about a rank that ended so."""
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    if number == signal.SIGKILL:
        advice = "if nobody killed it, memory ran out, of which the system's log tells; "
    elif number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        advice = "`python -X faulthandler` shows where it crashed; "
    elif number is not None:
        advice = "the launcher, the batch system or a user sent the signal; "
    elif status is None:
        advice = ""
    else:
        advice = "leave a rank by the end of its program, by sys.exit() or an exception, not by os._exit(); "
    return advice + _CHECKPOINT


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


# ---------------------------------------------------------------- the process


@dataclass(eq=False)
class _Rank:
    """A rank of this machine."""

    slot: int
    process: int
    fds: list[int]  # its standard error, and where it has one the copy of its connection to the launcher
    rank: int
    size: int
    local_rank: int | None  # its number on this machine, and how many are here, where the launcher tells
    local_size: int | None
    local_variable: str  # of the environment, which has the number
    timeout: float
    launchers: list[int]  # the process that started the ranks of this machine, and the one that started that
    began: float = field(default_factory=time.monotonic)
    handle: int = -1  # file descriptor of the process
    status: int | None = None  # its exit status
    is_dead: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {socket.gethostname()})"


class _Monitor:
    """Waits for events of the ranks, and reports failures."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._memory = Board.allocate()
        self._board = Board(self._memory)
        self._poll = select.epoll()
        self._events: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}  # by file descriptor
        self._timers: dict[Callable[[], None], float] = {}  # when to call what
        self._ranks: list[_Rank] = []  # connected ones and, in a job that failed, dead ones
        self._dead: list[_Rank] = []  # in the order of their ends
        self._slots = 0
        self._launchers: set[int] = set()
        self._launcher_ended = ""  # which one, if it ended before any rank
        self._absent: set[int] = set()  # local ranks of which the last search found no process
        self._present: set[int] = set()  # processes that it found, of ranks that have not called `init`
        self._ended: dict[int, str] = {}  # local ranks whose process ended before that, and how
        self._first_absent: int | None = None  # one of them that ended before any connected rank
        self._has_reported = False
        self._memory_files: set[str] = set()  # of MPI, which removes them where all ranks come to their ends
        self._was_cut_off = False  # whether a rank ended in MPI_Finalize
        self._watch(listener.fileno(), self._accept)

    def run(self) -> None:
        """Return when no rank is left."""
        self._timers[self._stop_if_unused] = time.monotonic() + _TERMINATE
        while self._ranks or self._stop_if_unused in self._timers:
            # The kernel returns events in the order in which they came: of several deaths the first is the first.
            for fd, _ in self._poll.poll(self._wait_time(), 64):
                if fd in self._events:
                    call, arguments = self._events[fd]
                    call(*arguments)
            if self._dead and not self._living():
                self._report()
                self._remove_memory_files()
                return
            now = time.monotonic()
            for call, when in list(self._timers.items()):
                if now >= when:
                    del self._timers[call]
                    call()
        if self._was_cut_off:
            self._remove_memory_files()

    def _wait_time(self) -> float | None:
        return max(0.0, min(self._timers.values()) - time.monotonic() + 1e-3) if self._timers else None

    def _stop_if_unused(self) -> None:
        """Do nothing; where no rank has come by then, `run` returns."""

    def _watch(self, fd: int, call: Callable[..., None], *arguments: Any) -> None:
        self._events[fd] = call, arguments
        self._poll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._events.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _state(self, rank: _Rank) -> int:
        return self._board.identity(rank.slot)[2]

    def _living(self) -> list[_Rank]:
        return [r for r in self._ranks if not r.is_dead]

    def _starting(self) -> list[_Rank]:
        return [r for r in self._living() if self._state(r) == STARTING]

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        size = struct.calcsize("3i")
        process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user == os.getuid():
            self._watch(connection.fileno(), self._enter, connection, process)

    def _enter(self, connection: socket.socket, process: int) -> None:
        """Enter the rank whose connection this is."""
        self._unwatch(connection.fileno())
        text, fds, _, _ = socket.recv_fds(connection, 4096, 2)
        if not text or self._slots == _SLOTS:
            return
        rank = _Rank(self._slots, process, fds, **json.loads(text))
        self._slots += 1
        self._board.enter(rank.slot, rank.rank, process)
        self._board.set_text(rank.slot, "distributed.init")
        self._board.set_waits(rank.slot, True)
        self._ranks.append(rank)
        self._watch(connection.fileno(), self._receive, connection, rank)
        with contextlib.suppress(OSError):  # it may have ended since
            socket.send_fds(connection, [struct.pack("i", rank.slot)], [self._memory])
        try:
            rank.handle = os.pidfd_open(process)
        except ProcessLookupError:
            self._end(rank)
        else:
            self._watch(rank.handle, self._end, rank)
        for launcher in set(rank.launchers) - self._launchers:
            self._launchers.add(launcher)
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(launcher)
                self._watch(handle, self._end_of_launcher, handle, launcher)
        self._timers.setdefault(self._check_starting, time.monotonic() + _FIRST_SEARCH)

    def _receive(self, connection: socket.socket, rank: _Rank) -> None:
        """Take the names of files that a rank sends, or the end of its connection."""
        text = b""
        with contextlib.suppress(OSError):  # the end, too
            text = connection.recv(1 << 16)
        if text:
            self._memory_files.update(json.loads(text))
        else:
            self._disconnect(connection, rank)

    def _disconnect(self, connection: socket.socket, rank: _Rank) -> None:
        self._unwatch(connection.fileno())
        connection.close()
        if self._state(rank) == DONE:
            self._release(rank)

    def _release(self, rank: _Rank) -> None:
        """Forget a rank that has finalized."""
        self._timers.pop(self._stop_if_unused, None)
        if rank in self._ranks:
            self._ranks.remove(rank)
            self._unwatch(rank.handle)
            for fd in (rank.handle, *rank.fds):
                os.close(fd)

    # ------------------------------------------------------------ the end of a process

    def _end(self, rank: _Rank) -> None:
        self._unwatch(rank.handle)
        self._find_memory_files()
        status, state = exit_status(rank.handle, rank.process), self._state(rank)
        if state >= DONE:
            self._was_cut_off |= state == LEAVING and status != 0
            self._release(rank)
            return
        rank.status, rank.is_dead = status, True
        if not self._dead:
            now = time.monotonic()
            self._timers.setdefault(self._report, now + _SETTLE)
            self._timers.setdefault(self._end_survivors, now + rank.timeout)
        self._dead.append(rank)

    def _end_of_launcher(self, handle: int, process: int) -> None:
        self._unwatch(handle)
        if not self._ranks:
            return
        if not self._dead and not self._launcher_ended:
            self._launcher_ended = f"the launcher of the ranks (process {process} on {socket.gethostname()})"
        now = time.monotonic()
        self._timers.setdefault(self._report, now + _SETTLE)
        self._timers[self._terminate] = now + _SETTLE  # which a launcher that works has done by then

    def _end_survivors(self) -> None:
        """End the ranks that did not notice within the timeout that another died."""
        unaware = [r for r in self._living() if self._state(r) != INFORMED]
        if unaware:
            self._write(
                f"{_ranks(unaware)} did not end within the timeout of {unaware[0].timeout:g} s after {self._dead[0]} "
                "had ended, and is ended now; if a rank may take longer between two calls, begin with "
                "distributed.init(timeout=...)"
            )
            self._terminate()

    def _terminate(self) -> None:
        self._find_memory_files()
        self._signal(signal.SIGTERM)
        self._timers[self._kill] = time.monotonic() + _TERMINATE

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _find_memory_files(self) -> None:
        """Look for MPI's memory in the ranks that have not sent its names yet."""
        for rank in self._starting():
            found = memory_files(rank.process)
            with contextlib.suppress(OSError):  # it has ended, and its number may be that of another process by now
                signal.pidfd_send_signal(rank.handle, 0)
                self._memory_files.update(found)

    def _remove_memory_files(self) -> None:
        for name in self._memory_files:
            with contextlib.suppress(OSError):  # MPI has removed it
                os.unlink(name)

    def _signal(self, number: int) -> None:
        for rank in self._living():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(rank.handle, number)

    # ------------------------------------------------------------ ranks that do not come to init

    def _check_starting(self) -> None:
        """End the ranks in MPI_Init if one that they wait for has ended, or the timeout has."""
        now, starting = time.monotonic(), self._starting()
        if not starting or self._dead:  # after a death the launcher may end ranks that were not seen: `_report` knows
            return
        first = min(starting, key=lambda r: r.began + r.timeout)
        missing = self._missing(first)
        absent = {k for k, process in missing.items() if process is None}
        # A process that was never found may be about to be started; one that was found, and is gone, is gone.
        if now >= first.began + first.timeout or absent & self._ended.keys() or absent & self._absent:
            self._write(self._starting_text(first, missing))
            self._terminate()
            return
        wait = _SEARCH if self._absent or now > first.began + _SEARCH else _SEARCH - _FIRST_SEARCH
        self._absent = absent
        self._timers[self._check_starting] = min(now + wait, first.began + first.timeout)

    def _missing(self, one: _Rank) -> dict[int, int | None]:
        """Return the local ranks that have not called `init`, with their processes; None if it has ended."""
        if one.local_size is None:
            return {}
        missing: dict[int, int | None] = dict.fromkeys(range(one.local_size))
        for rank in self._ranks:
            missing.pop(-1 if rank.local_rank is None else rank.local_rank, None)
        if missing:
            known = {rank.process for rank in self._ranks}
            for process, k in _processes_with(one.local_variable, one.launchers[0]):
                if k in missing and process not in known:
                    missing[k] = process
                    self._watch_present(k, process)
        return missing

    def _watch_present(self, k: int, process: int) -> None:
        if process not in self._present:
            self._present.add(process)
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(process)
                self._watch(handle, self._end_of_present, handle, k, process)

    def _end_of_present(self, handle: int, k: int, process: int) -> None:
        self._unwatch(handle)
        if not self._dead:
            self._first_absent = k
        self._ended[k] = describe_end(exit_status(handle, process))
        os.close(handle)
        if self._starting():
            self._timers[self._check_starting] = 0.0

    def _starting_text(self, one: _Rank, missing: dict[int, int | None]) -> str:
        """Return the line on ranks that did not call `init`."""
        waited = f"distributed.init() waited {time.monotonic() - one.began:.1f} s on {_ranks(self._ranks)}"
        found = "".join(f"; {self._missing_text(one, k, missing[k])}" for k in sorted(missing))
        if not found:
            found = "; another rank, of another machine or unknown to the launcher, has not called it"
        return f"{waited}, the timeout being {one.timeout:g} s{found}. Every rank must call distributed.init()"

    def _missing_text(self, one: _Rank, k: int, process: int | None) -> str:
        name = f"rank {k}" if one.size == one.local_size else f"number {k} of the ranks on {socket.gethostname()}"
        if process is None:
            return f"{name} {self._ended.get(k, 'ended')} before it called it"
        return f"{name} (process {process}) runs, and has not called it"

    # ------------------------------------------------------------ reports

    def _report(self) -> None:
        """Write one line on the failure, unless every rank has written it itself."""
        if self._has_reported:
            return
        self._timers.pop(self._report, None)
        silent = [r for r in self._ranks if self._state(r) in (STARTING, RUNNING)]
        if self._launcher_ended and silent:
            doing = "; ".join(f"rank {r.rank} was {self._board.activity(r.slot)}" for r in self._ranks[:8])
            self._write(f"{self._launcher_ended} ended, and with it the job: {doing}. To go on, {_CHECKPOINT}")
        if self._launcher_ended:
            return
        first = self._first_failure()
        missing = self._missing(first) if self._state(first) == STARTING else {}
        others = [r for r in self._ranks if r is not first]
        # Launchers end other ranks by these signals: then a rank that was never seen may have been the first.
        by_launcher = first.status in (signal.SIGKILL, signal.SIGTERM)
        unseen = None in missing.values() and not self._ended and by_launcher
        if self._first_absent in missing or unseen:
            self._write(self._starting_text(first, missing))
        elif not self._is_known(first, others):
            self._write(self._failure_text(first, others), first)
        if self._starting():  # MPI_Init waits forever
            self._terminate()

    def _is_known(self, first: _Rank, others: list[_Rank]) -> bool:
        """Return whether the other ranks have reported the failure themselves, or none needs another."""
        states = [self._state(r) for r in others if r.is_dead or self._state(r) != INFORMED]
        return bool(others) and (
            all(state == FAILED for state in states) or all(r.is_dead and r.status == 0 for r in self._ranks)
        )

    def _first_failure(self) -> _Rank:
        """Return the rank that is the cause: one that failed by itself, else the first that died."""
        for rank in self._dead:
            if self._state(rank) == FAILED and not self._board.activity(rank.slot).text.startswith("RankFailedError"):
                return rank
        return self._dead[0]

    def _failure_text(self, first: _Rank, others: list[_Rank]) -> str:
        doing = self._board.activity(first.slot)
        if self._state(first) == FAILED:
            text, advice = f"{first} ended with {doing.text}", f"mend that, or {_CHECKPOINT}"
        else:
            text, advice = f"{first} {describe_end(first.status)} while {doing}", remedy(first.status)
        ended = [r for r in others if r.is_dead and self._state(r) in (STARTING, RUNNING)]
        if ended and len(ended) == len(others) and {r.status for r in ended} == {first.status}:
            doing_all = "; ".join(f"rank {r.rank} while {self._board.activity(r.slot)}" for r in ended[:8])
            text += f", and so were the others at that moment: {doing_all}"
        elif ended:
            text += f"; the launcher then ended {_ranks(ended)}"
        unaware = [r for r in others if not r.is_dead and self._state(r) == RUNNING]
        if unaware:
            text += f"; {_ranks(unaware)} will raise RankFailedError in the next call of gradmgr.distributed"
        return f"{text}. {advice[0].upper()}{advice[1:]}"

    def _write(self, text: str, failed: _Rank | None = None) -> None:
        """Write a line to the standard error of a rank, if possible one that lives and did not fail."""
        self._has_reported = True
        line = f"gradmgr.distributed: {text}\n".encode()[:_MAX_LINE]
        for rank in sorted(self._ranks, key=lambda r: (r is failed, r.is_dead, r.rank)):
            with contextlib.suppress(OSError):  # its reader may be gone
                if select.select([], [rank.fds[0]], [], 1.0)[1] and os.write(rank.fds[0], line):
                    return


def _ranks(ranks: list[_Rank]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(r.rank for r in ranks)))}"


def _processes_with(variable: str, ancestor: int) -> Iterator[tuple[int, int]]:
    """Yield the descendants of a process that have a number in a variable of their environment, and the number."""
    prefix = f"{variable}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or not _descends(int(name), ancestor):
            continue
        with contextlib.suppress(OSError, ValueError):
            for number in _numbers_after(prefix, Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                yield int(name), number


def _numbers_after(prefix: bytes, entries: Iterable[bytes]) -> list[int]:
    return [int(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)]


def _descends(process: int, ancestor: int) -> bool:
    while process > 1 and process != ancestor:
        fields = process_fields(process)
        process = int(fields[1]) if fields else 0
    return process == ancestor


def main() -> None:
    """Run apart from the process that started this one, in a session that no launcher signals."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _Monitor(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
