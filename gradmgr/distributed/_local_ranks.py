"""The ranks of this machine: what they do, and which of them have died; see `_monitor`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from gradmgr.distributed import _monitor

# By launcher, the variables in which it puts a rank's number, the number of ranks, the number on this machine, and how
# many are there. MPI itself gives these after MPI_Init alone, which may wait for a rank that never comes.
_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and its relatives
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
_CONNECTION = "PMI_FD"  # of a rank with MPICH's launcher: a file descriptor
_MONITOR_START = 30.0  # seconds within which the monitor must answer


class LocalRanks:
    """What the ranks of a machine report to each other: nothing, where there is no monitor."""

    def start(self) -> None:
        """Say that MPI is initialized."""

    def connect(self) -> None:
        """Take the list of ranks, all of which have started."""

    def set_activity(self, text: str, waits: bool) -> None:
        """Say what this rank does."""

    def set_informed(self) -> None:
        """Report that this rank has been informed of the failure of another."""

    def fail(self, text: str) -> None:
        """Say that this rank ends, and by what."""

    def find_dead(self) -> dict[int, str]:
        """Return the ranks that died since the last call, and how."""
        return {}

    def describe(self, rank: int) -> str | None:
        """Return what a rank does; None if it is not known."""
        return None

    def leave(self) -> None:
        """Say that this rank has come to the end of its program with the others, and is going to end."""

    def close(self) -> None:
        """Say that this rank needs the others no longer."""


class MonitoredRanks(LocalRanks):
    """Ranks that a monitor watches."""

    def __init__(self, connection: socket.socket, board: _monitor.Board, slot: int) -> None:
        self._connection = connection
        self._board = board
        self._slot = slot
        self._text: str | None = None  # what is written in the slot
        self._others: dict[int, tuple[int, int]] = {}  # by rank: slot and process
        self._handles: dict[int, int] = {}  # of processes, with their ranks
        self._poll = select.poll()

    def start(self) -> None:
        self._board.set_state(self._slot, _monitor.RUNNING)
        names = _monitor.memory_files(os.getpid())
        if names:
            with contextlib.suppress(OSError):  # the monitor has ended
                self._connection.send(json.dumps(names).encode())

    def connect(self) -> None:
        for slot, rank, process in self._board.entries():
            if slot != self._slot:
                self._others[rank] = slot, process
                with contextlib.suppress(OSError):
                    handle = os.pidfd_open(process)
                    self._handles[handle] = rank
                    self._poll.register(handle, select.POLLIN)

    def set_activity(self, text: str, waits: bool) -> None:
        if text is not self._text:  # most steps of a program call the same functions: 0.6 us instead of 1.4
            self._text = text
            self._board.set_text(self._slot, text)
        self._board.set_waits(self._slot, waits)

    def set_informed(self) -> None:
        if self._board.identity(self._slot)[2] == _monitor.RUNNING:
            self._board.set_state(self._slot, _monitor.INFORMED)

    def fail(self, text: str) -> None:
        self.set_activity(text.partition("\n")[0], False)
        self._board.set_state(self._slot, _monitor.FAILED)

    def find_dead(self) -> dict[int, str]:
        found = {}
        for handle, _ in self._poll.poll(0):
            self._poll.unregister(handle)
            rank = self._handles.pop(handle)
            slot, process = self._others[rank]
            status = _monitor.exit_status(handle, process)
            os.close(handle)
            state, activity = self._board.identity(slot)[2], self._board.activity(slot)
            if state == _monitor.FAILED:
                found[rank] = f"ended with {activity.text}"
            elif state < _monitor.DONE:
                found[rank] = f"{_monitor.describe_end(status)} while {activity}; {_monitor.remedy(status)}"
        return found

    def describe(self, rank: int) -> str | None:
        if rank not in self._others:
            return None
        slot, process = self._others[rank]
        stopped = _monitor.process_fields(process)[:1] == ["T"]
        return f"{self._board.activity(slot)}{', and its process is stopped by a signal' if stopped else ''}"

    def leave(self) -> None:
        self._board.set_state(self._slot, _monitor.LEAVING)

    def close(self) -> None:
        self._board.set_state(self._slot, _monitor.DONE)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a child made by fork may have a copy
        self._connection.close()
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()
        self._poll = select.poll()


# ---------------------------------------------------------------- the monitor of this machine


@dataclass(frozen=True)
class _Launch:
    """What the launcher says in the environment."""

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    local_variable: str
    connection: int | None
    launchers: list[int]


def join(timeout: float) -> LocalRanks:
    """Connect to the monitor of this machine's ranks, and start it if this rank is the first.

    Args:
        timeout: seconds after which it ends the job, if MPI_Init has not returned by then.
    """
    launch = _launch() if hasattr(os, "pidfd_open") and hasattr(os, "memfd_create") else None
    if launch is None or launch.size == 1:
        return LocalRanks()
    until = time.monotonic() + min(timeout, _MONITOR_START)
    try:
        while time.monotonic() < until:
            joined = _try_to_join(launch, timeout)
            if joined is not None:
                return joined
            time.sleep(0.01)  # another rank is starting it, or it just ended
        problem = f"it did not answer within {min(timeout, _MONITOR_START):g} s"
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    warnings.warn(
        f"distributed.init could not start the process that watches the ranks of this machine ({problem}); "
        "a rank that is killed will be noticed by the timeout alone",
        RuntimeWarning,
        stacklevel=4,
    )
    return LocalRanks()


def _launch() -> _Launch | None:
    """Return what the launcher says; None if the program was started by hand."""
    for variables in _VARIABLES:
        rank, size, local_rank, local_size = map(_number, variables)
        if rank is None or size is None:
            continue
        local_variable = variables[2]
        if size == local_size:  # numbers on this machine may be in another order
            local_rank, local_variable = rank, variables[0]
        fd = _number(_CONNECTION)
        connection = fd if fd is not None and _is_socket(fd) else None
        return _Launch(rank, size, local_rank, local_size, local_variable, connection, _launchers(variables[0]))
    return None


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def _has_variable(process: int, prefix: bytes) -> bool:
    """Tell whether a variable of a process's environment begins so."""
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it belongs to somebody else, so it is no rank
        return False
    return any(entry.startswith(prefix) for entry in entries)


def _launchers(variable: str) -> list[int]:
    """Return the nearest ancestor that has no rank's number, and its parent where that is `mpiexec` itself."""
    process = os.getppid()
    prefix = f"{variable}=".encode()
    while process > 1 and _has_variable(process, prefix):
        process = _parent(process)
    parent = _parent(process)
    with contextlib.suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().startswith("mpi"):
            return [process, parent]
    return [process]


def _parent(process: int) -> int:
    fields = _monitor.process_fields(process)
    return int(fields[1]) if fields else 0


def _try_to_join(launch: _Launch, timeout: float) -> MonitoredRanks | None:
    """Connect to the monitor; None if that did not work this time."""
    # A name in Linux's abstract namespace, which needs no file; the same for all ranks of a launcher here.
    began = _monitor.process_fields(launch.launchers[0])[19:20]
    name = f"\0gradmgr.distributed {os.getuid()} {launch.launchers[0]} {''.join(began)} {launch.size}"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(name)
    except ConnectionRefusedError:
        connection.close()
        _start(name)
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():
        raise PermissionError("its address is taken by another user")
    said = {
        "rank": launch.rank,
        "size": launch.size,
        "local_rank": launch.local_rank,
        "local_size": launch.local_size,
        "local_variable": launch.local_variable,
        "launchers": launch.launchers,
        "timeout": timeout,
    }
    fds = [2] if launch.connection is None else [2, launch.connection]
    connection.settimeout(min(timeout, _MONITOR_START))
    try:
        socket.send_fds(connection, [json.dumps(said).encode()], fds)
        answer, memory, _, _ = socket.recv_fds(connection, 16, 1)
    except (ConnectionError, BrokenPipeError):
        answer = b""
    if not answer:
        connection.close()
        return None
    board = _monitor.Board(memory[0])
    os.close(memory[0])
    return MonitoredRanks(connection, board, struct.unpack("i", answer)[0])


def _start(name: str) -> None:
    """Start the monitor, unless another rank does so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(name)
        except OSError:  # another rank was first
            return
        listener.listen(1024)
        subprocess.run(  # noqa: S603  # our own interpreter, our own file
            [sys.executable, "-I", "-S", _monitor.__file__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            check=True,
        )
