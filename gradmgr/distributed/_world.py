"""The connection of the ranks: `init`, `finalize`, `rank`, `size`, groups."""

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
from gradmgr.distributed import _local_ranks, _nccl
from gradmgr.distributed._group import Group
from gradmgr.distributed._mpi import MPIGroup
from gradmgr.distributed._requests import duplicate
from gradmgr.distributed._watchdog import Watchdog

_BACKENDS = ("mpi", "nccl")


class _World:
    """All ranks, and the state of this process while they are connected."""

    def __init__(self, mpi: Any, timeout: float, local: _local_ranks.LocalRanks) -> None:
        self.process = os.getpid()
        self.watchdog = Watchdog(mpi.COMM_WORLD, mpi, timeout, local)
        self.group: MPIGroup | None = None
        self.has_ended = False
        self.hook = sys.excepthook
        sys.excepthook = self.on_error
        atexit.register(self.at_exit)

    def connect(self, backend: str) -> None:
        """Connect the ranks, if all of them gave the same arguments; else, on each of them, undo what was done."""
        try:
            self.watchdog.connect()
            self.group = self._make_group(MPIGroup)
            self.group.agree("init", f"backend {backend}, timeout {self.watchdog.timeout:g} s")
            if backend == "nccl":
                self._switch_to_nccl(self.group)
        except errors.RankFailedError as error:
            self.watchdog.fail(f"{type(error).__name__}: {error}")  # so the end of this rank will be that of the job
            raise
        except errors.GradmgrError:
            self.close()
            raise

    def _make_group(self, kind: type[MPIGroup]) -> MPIGroup:
        mpi, watchdog = self.watchdog.mpi, self.watchdog
        ranks = tuple(range(watchdog.size))
        return kind(mpi, duplicate(mpi.COMM_WORLD, ranks, watchdog), ranks, watchdog)

    def _switch_to_nccl(self, group: MPIGroup) -> None:
        """Switch to NCCL, unless a rank cannot; then every rank raises."""
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
        self.group = self._make_group(_nccl.NCCLGroup)
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
        self.has_ended = True
        try:
            self.leave()
        except BaseException as error:  # also KeyboardInterrupt and SystemExit, which end this rank before the others
            sys.stderr.write(f"{type(error).__name__}: {error}\n")  # as nothing above here would
            self.watchdog.fail(f"{type(error).__name__}: {error}")
        if self.watchdog.has_failed():
            self.watchdog.abort()
        self.watchdog.local.leave()

    def leave(self) -> None:
        """Wait until every rank comes here."""
        if self.group is not None and not self.watchdog.has_failed() and not self.watchdog.mpi.Is_finalized():
            self.watchdog.wait_for_all(self.group.start_agree("the end of the program").done)
            self.watchdog.drain()

    def close(self) -> None:
        """Undo what was done; all ranks come here."""
        if self.group is not None:
            self.group.free()
        self.watchdog.free()
        self.watchdog.local.close()
        atexit.unregister(self.at_exit)  # last, as it ends the job where an exception struck before
        if sys.excepthook == self.on_error:
            sys.excepthook = self.hook


class _State:
    """What `init` sets."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: _World | None = None


_state = _State()


def init(backend: str | None = None, *, timeout: float = 300.0) -> None:
    """Connect this process with those that MPI's launcher started with it.

    Every rank calls it once, before any other function of `gradmgr.distributed`. Started by hand (`python train.py`), a
    program is rank 0 of 1, and the same code runs; started by `mpiexec -n 4 python train.py`, it is one of four.

    A rank that ends by an exception tells the others: their current or next wait raises RankFailedError with its text.
    After a few seconds, in which they may end by themselves, the job is ended.

    Args:
        backend: "mpi" carries NumPy arrays; "nccl" carries CuPy arrays between GPUs, and NumPy arrays as "mpi" does.
            None: "nccl" where the program has imported CuPy and CuPy finds a GPU, else "mpi". With "nccl" each rank's
            GPU is current from then on: make arrays and models after it, with `device="cuda"`.
        timeout: seconds that a wait for another rank may take; longer than the time that a rank spends between two
            calls, as for an evaluation or for writing a checkpoint.

    Raises:
        MissingDependencyError: mpi4py, an MPI library, CuPy or NCCL is missing.
        DistributedError: called twice, or the ranks ask for different backends.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.rank() < distributed.size()
    True
    >>> distributed.finalize()
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
        local = _local_ranks.join(timeout)
        try:
            mpi = _load_mpi()
        except BaseException:
            local.close()
            raise
        local.start()
        world = _World(mpi, timeout, local)
        world.connect(backend)
        _state.world = world


def _load_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:  # the last two where mpi4py finds no MPI library
        raise errors.MissingDependencyError(
            f"distributed.init needs mpi4py and an MPI library ({error}); {errors.how_to_install('mpich')} brings "
            'both, and mpiexec; where the machine has an MPI library of its own, pip install -e ".[mpi]"'
        ) from error
    return MPI


def finalize() -> None:
    """Disconnect the ranks; each must call it, and waits there for the others. At the program's end it is not needed.

    Where other ranks call something else, or one of them fails, it raises as every collective does, and the ranks stay
    connected.

    Raises:
        RuntimeError: `init` has not been called.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.finalize()
    >>> distributed.is_initialized()
    False
    """
    with _state.lock:
        world = _need_world()
        try:
            _world_group(world).agree("finalize")
            world.watchdog.drain()
            world.close()
        except errors.DistributedError:  # which the other ranks have, too
            raise
        except BaseException as error:  # such as KeyboardInterrupt: the others may wait in MPI for this rank
            world.watchdog.fail(f"{type(error).__name__}: {error}")  # so the end of this rank will be that of the job
            raise
        _state.world = None


def is_initialized() -> bool:
    """Tell whether `init` was called.

    >>> from gradmgr import distributed
    >>> distributed.is_initialized()
    False
    """
    return _state.world is not None


def _need_world() -> _World:
    world = _state.world
    if world is None:
        raise errors.DistributedError(
            "the ranks are not connected; call gradmgr.distributed.init() once at the start of the program"
        )
    if world.has_ended or world.watchdog.mpi.Is_finalized():
        what = "the program has come to its end" if world.has_ended else "MPI.Finalize() was called"
        raise errors.DistributedError(
            f"{what}, and the ranks are not connected any more; call it before, such as from a function that "
            "atexit.register was given after distributed.init()"
        )
    return world


def _world_group(world: _World) -> MPIGroup:
    if world.group is None:
        raise errors.DistributedError("the ranks are not connected")
    return world.group


def group(group: Group | None = None) -> Group:
    """Return the group to use: all ranks where none is given."""
    world = _need_world()
    if group is None:
        return _world_group(world)
    if not isinstance(group, Group):
        raise TypeError(f"group must come from distributed.new_group; found {type(group).__name__}")
    if group.watchdog is not world.watchdog:
        raise errors.DistributedError("this group was made before distributed.finalize(); call new_group again")
    return group


_resolve = group  # where an argument has that name


def rank(group: Group | None = None) -> int:
    """Return which of the ranks this process is, from 0; -1 in a group to which it does not belong.

    Raises:
        RuntimeError: `init` has not been called.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.rank()  # of a program that was not started by mpiexec
    0
    >>> distributed.finalize()
    """
    return _resolve(group).rank


def size(group: Group | None = None) -> int:
    """Return the number of ranks.

    Raises:
        RuntimeError: `init` has not been called.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.size()  # of a program that was not started by mpiexec
    1
    >>> distributed.finalize()
    """
    return _resolve(group).size


def new_group(ranks: Iterable[int]) -> Group:
    """Make a group of some of the ranks; every rank must call it, those outside of the group too.

    Args:
        ranks: its members, as ranks of the world, in the order in which they are numbered.

    Returns:
        The group, to pass to other functions as `group`. In it, ranks count from 0.

    Raises:
        TypeError: a rank is not an integer.
        ValueError: a rank is named twice, or does not exist.
        DistributedError: the ranks gave different lists.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> first = distributed.new_group([0])
    >>> int(distributed.all_reduce(1, group=first))
    1
    >>> distributed.finalize()
    """
    world = _world_group(_need_world())
    chosen = [operator.index(r) for r in ranks]
    if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= r < world.size for r in chosen):
        raise ValueError(f"new_group takes different ranks from 0 to {world.size - 1}, at least one; found {chosen}")
    world.agree("new_group", f"ranks {chosen}")
    return world.part(chosen)
