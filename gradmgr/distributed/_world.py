"""The ranks there are: `init`, `rank`, `size`, groups."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr.distributed import _nccl
from gradmgr.distributed._engine import Group, MPIGroup, duplicate
from gradmgr.distributed._watchdog import Watchdog

_BACKENDS = ("mpi", "nccl")


class _World:
    """All ranks, and the state of this process while they are connected."""

    def __init__(self, mpi: Any, timeout: float) -> None:
        self.process = os.getpid()
        self.watchdog = Watchdog(mpi.COMM_WORLD, mpi, timeout)
        self.group: MPIGroup | None = None
        self.hook = sys.excepthook
        sys.excepthook = self.on_error
        atexit.register(self.at_exit)

    def connect(self, backend: str) -> None:
        """Connect the ranks, if all of them want the same; else, on each of them, undo what was done."""
        try:
            self.watchdog.connect()
            self.group = self._gathered(MPIGroup)
            self.group.agree("init", f"backend {backend}, timeout {self.watchdog.timeout:g} s")
            if backend == "nccl":
                self._take_gpus(self.group)
        except errors.RankFailedError as error:
            self.watchdog.fail(f"{type(error).__name__}: {error}")  # so the end of this rank will be that of the job
            raise
        except errors.GradmgrError:
            self.close()
            raise

    def _gathered(self, kind: type[MPIGroup]) -> MPIGroup:
        mpi, watchdog = self.watchdog.mpi, self.watchdog
        ranks = tuple(range(watchdog.size))
        return kind(mpi, duplicate(mpi.COMM_WORLD, ranks, watchdog), ranks, watchdog)

    def _take_gpus(self, group: MPIGroup) -> None:
        """Go over to NCCL, unless a rank cannot; then every rank raises."""
        problem = None
        try:
            cupy = _nccl.load()
        except (errors.MissingDependencyError, errors.DeviceError) as error:
            problem = error
        found = group.exchange("" if problem is None else str(problem))
        if problem is not None:
            raise problem
        lacking = [f"rank {k}: {text}" for k, text in enumerate(found) if text]
        if lacking:
            raise errors.DistributedError("; ".join(lacking))
        _nccl.choose_device(cupy, group)
        self.group = self._gathered(_nccl.NCCLGroup)
        group.free()

    def on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Tell the other ranks what ends this one, after other exception hooks have shown it."""
        self.hook(kind, error, trace)
        if os.getpid() == self.process:
            self.watchdog.fail(f"{kind.__name__}: {error}")

    def at_exit(self) -> None:
        """Leave together with the other ranks, or end them if one of them failed."""
        if os.getpid() != self.process:  # a child by fork, whose exit is not this rank's
            return
        try:
            self.leave()
        except errors.DistributedError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")  # as nothing above here would
            self.watchdog.fail(f"{type(error).__name__}: {error}")
        if self.watchdog.is_doomed():
            self.watchdog.abort()

    def leave(self) -> None:
        """Wait until every rank comes here."""
        if self.group is not None and not self.watchdog.is_doomed():
            self.watchdog.await_others(self.group.start_agree("the end of the program").done)
            self.watchdog.settle()

    def close(self) -> None:
        """Undo what was done; all ranks come here."""
        atexit.unregister(self.at_exit)
        if sys.excepthook == self.on_error:
            sys.excepthook = self.hook
        if self.group is not None:
            self.group.free()
        self.watchdog.free()


class _State:
    """What `init` sets."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: _World | None = None


_state = _State()


def init(backend: str | None = None, *, timeout: float = 300.0) -> None:
    """Connect this process with those that the engine's launcher started with it.

    Every rank calls it once, before it asks for anything else here. Started by hand (`python train.py`), a
    program is rank 0 of 1, and the same code runs; started by `mpiexec -n 4 python train.py`, one of four.

    A rank that ends by an exception tells the others, whose next wait, or present one, raises RankFailedError with
    its text; then, after a few seconds in which they may end by themselves, the engine ends the job.

    Args:
        backend: "mpi" carries NumPy arrays; "nccl" carries CuPy arrays between GPUs, and NumPy arrays as "mpi" does.
            None: "nccl" where the program has imported CuPy and CuPy finds a GPU, else "mpi". With "nccl" each rank's
            GPU is current from then on: make arrays and models after it, with `device="cuda"`.
        timeout: seconds that a wait for another rank may take; let it be longer than the longest time a rank may
            spend between two calls, such as in an evaluation or the writing of a checkpoint.

    Raises:
        MissingDependencyError: mpi4py, an MPI library, CuPy or NCCL is missing.
        DistributedError: called twice, or the ranks ask for different engines.
    """
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(f"distributed.init knows the backends 'mpi' and 'nccl', and None; found {backend!r}")
    if not timeout > 0:
        raise ValueError(f"distributed.init takes a timeout in seconds above 0; found {timeout!r}")
    with _state.lock:
        if _state.world is not None:
            raise errors.DistributedError("distributed.init was called already; call distributed.finalize() between")
        if backend is None:
            cupy = libraries.loaded_cupy()
            backend = "nccl" if cupy is not None and cupy.cuda.is_available() else "mpi"
        world = _World(_load_mpi(), timeout)
        world.connect(backend)
        _state.world = world


def _load_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:  # the last two where mpi4py finds no MPI library
        raise errors.MissingDependencyError(
            f"distributed.init needs mpi4py and an MPI library ({error}); pip install 'gradmgr[mpich]' brings both, "
            "and mpiexec; where the machine has an MPI library of its own: pip install 'gradmgr[mpi]'"
        ) from error
    return MPI


def finalize() -> None:
    """Disconnect the ranks; each must call it, and waits there for the others. Needless at the program's end."""
    with _state.lock:
        world = _need_world()
        _all(world).agree("finalize")
        world.watchdog.settle()
        world.close()
        _state.world = None


def is_initialized() -> bool:
    """Tell whether `init` was called."""
    return _state.world is not None


def _need_world() -> _World:
    world = _state.world
    if world is None:
        raise errors.DistributedError(
            "the ranks are not connected; call gradmgr.distributed.init() once at the start of the program"
        )
    return world


def _all(world: _World) -> MPIGroup:
    if world.group is None:
        raise errors.DistributedError("the ranks are not connected")
    return world.group


def group(group: Group | None = None) -> Group:
    """Return the group to use: all ranks where none is given."""
    world = _need_world()
    if group is None:
        return _all(world)
    if not isinstance(group, Group):
        raise TypeError(f"group must come from distributed.new_group; found {type(group).__name__}")
    return group


_chosen = group  # where an argument has that name


def rank(group: Group | None = None) -> int:
    """Return which of the ranks this process is, from 0; -1 in a group to which it does not belong."""
    return _chosen(group).rank


def size(group: Group | None = None) -> int:
    """Return the number of ranks."""
    return _chosen(group).size


def new_group(ranks: Iterable[int]) -> Group:
    """Make a group of some of the ranks; every rank must call it, those outside of the group too.

    Args:
        ranks: its members, as ranks of the world, in the order in which they are numbered.

    Returns:
        What other functions take as `group`. In it, ranks count from 0.

    Raises:
        TypeError: a rank is no integer.
        ValueError: a rank is there twice, or there is none of that number.
        DistributedError: the ranks did not name the same.
    """
    world = _all(_need_world())
    chosen = [operator.index(r) for r in ranks]
    if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= r < world.size for r in chosen):
        raise ValueError(f"new_group takes different ranks from 0 to {world.size - 1}, at least one; found {chosen}")
    world.agree("new_group", f"ranks {chosen}")
    return world.part(chosen)
