"""NCCL: arrays of GPUs go from GPU to GPU; agreements and texts still go over MPI.

NCCL's operations run on their own stream, behind what the user's stream had to do at the call. The host
waits for their end: a rank that fails would leave the others' GPUs waiting, and there only the host can tell.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr.distributed._mpi import MPIGroup
from gradmgr.distributed._wire import check_op, check_plain, described, from_wire
from gradmgr.distributed._work import WatchdogBase, Work
from gradmgr.ops.convert import is_half

# Dtypes that NCCL does not reduce, and what they are reduced in.
_WIDER = MappingProxyType({"int16": "int32", "uint16": "uint32"})


def load() -> Any:
    """Return CuPy, with its binding of NCCL; raises where something is missing."""
    cupy = libraries.import_cupy("backend 'nccl'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's own, of what the error below says
            from cupy.cuda import nccl
    except ImportError as error:
        raise missing(str(error)) from error
    if not getattr(nccl, "available", False):
        raise missing("CuPy finds no NCCL library")
    return cupy


def missing(found: str) -> errors.MissingDependencyError:
    """Make the error for an NCCL that is not there."""
    return errors.MissingDependencyError(
        f"distributed.init('nccl') needs NCCL ({found}); {errors.how_to_install('nccl12', 'nccl13')}, whichever fits "
        "the machine's CUDA driver; distributed.init('mpi') is for NumPy arrays"
    )


def device_for(rank: int, places: Sequence[str]) -> int:
    """Return the GPU that a rank uses, given the places of all: "machine:GPU:number of GPUs there".

    The one that is current, unless ranks of one machine would share it: then they take GPUs in order.
    """
    known = [place.rpartition(":") for place in places]
    heads = [head.rpartition(":") for head, _, _ in known]
    machine, _, current = heads[rank]
    here = [k for k, head in enumerate(heads) if head[0] == machine]
    if len({heads[k][2] for k in here}) == len(here):
        return int(current)
    count = int(known[rank][2])
    if count < len(here):
        raise errors.DistributedError(
            f"backend 'nccl' needs a GPU for each rank; machine {machine} has {count}, and {len(here)} ranks"
        )
    return here.index(rank)


def choose_device(cupy: Any, group: MPIGroup) -> None:
    """Make a GPU current that no other rank uses."""
    here = f"{group.mpi.Get_processor_name()}:{cupy.cuda.Device().id}:{cupy.cuda.runtime.getDeviceCount()}"
    places = group.exchange(here)
    chosen = [device_for(rank, places) for rank in range(group.size)]  # all, so that every rank raises if one must
    cupy.cuda.Device(chosen[group.rank]).use()


class _StreamRequest:
    """An event on a stream, as a request that can be tested."""

    __slots__ = ("_comm", "_event")

    def __init__(self, cupy: Any, stream: Any, comm: Any) -> None:
        self._comm = comm
        self._event = cupy.cuda.Event(disable_timing=True)
        self._event.record(stream)

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        if self._event.done:
            return True
        self._comm.check_async_error()
        return False


class NCCLGroup(MPIGroup):
    """Ranks with a GPU each; it carries CuPy arrays between them, and NumPy arrays over MPI."""

    def __init__(self, mpi: Any, comm: Any, ranks: Sequence[int], watchdog: WatchdogBase) -> None:
        super().__init__(mpi, comm, ranks, watchdog)
        self._cupy = cupy = load()
        from cupy.cuda import nccl

        self._nccl = nccl
        self._device = cupy.cuda.Device()
        # C's char, of which the id is made, has a sign on some machines and none on others.
        name = np.array(nccl.get_unique_id() if self.rank == 0 else (0,) * 128, np.int16)
        super().broadcast(name, 0)
        self._wire = nccl.NcclCommunicator(self.size, tuple(name.tolist()), self.rank)
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def free(self) -> None:
        self._wire.destroy()
        super().free()

    def _is_device_array(self, array: Any) -> bool:
        return isinstance(array, self._cupy.ndarray)

    def _check_device_array(self, array: Any, operation: str, *, written: bool = True) -> None:
        check_plain(array, operation, written=written)
        if array.device.id != self._device.id:
            raise errors.DistributedError(
                f"{operation} was given an array on cuda:{array.device.id}; this rank's GPU is cuda:{self._device.id}, "
                "as distributed.init found it or chose it: make arrays there"
            )

    def _posted(self, *calls: Any) -> Any:
        """Return a function that puts calls of NCCL on its stream, behind all that the user's stream has now."""
        with self._device:  # another may have become current
            before = self._cupy.cuda.Event(disable_timing=True)
            before.record()

        def post() -> list[Any]:
            with self._device:
                self._stream.wait_event(before)
                for call in calls:
                    call(self._stream.ptr)
                return [_StreamRequest(self._cupy, self._stream, self._wire)]

        return post

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        if not self._is_device_array(array):
            return super().start_all_reduce(array, op, source, more)
        self._check_device_array(array, "all_reduce")
        check_op(op, array.dtype)
        source = array if source is None else source
        operation = described(array, f"all_reduce(op={op!r})", more)
        if array.size == 0:
            return self._start(operation, tuple)
        if op in ("min", "max") and libraries.is_differentiable(array.dtype):
            return self._start_selecting(array, op, source, operation)
        wire, sent = self._wire_arrays(array, source, op)
        count, dtype, how = self._terms(wire, op)

        def call(stream: int) -> None:
            self._wire.allReduce(sent.data.ptr, wire.data.ptr, count, dtype, how, stream)

        return self._start(operation, self._posted(call), lambda: from_wire(array, wire, op, self.size))

    def start_half_sum(self, array: Any, more: str = "") -> Work:
        if not self._is_device_array(array):
            return super().start_half_sum(array, more)
        self._check_device_array(array, "all_reduce")
        count, dtype, how = self._terms(array, "sum")

        def call(stream: int) -> None:
            self._wire.allReduce(array.data.ptr, array.data.ptr, count, dtype, how, stream)

        operation = described(array, "all_reduce(op='sum', in float16)", more)
        return self._start(operation, self._posted(call) if array.size else tuple)

    def reduce_scatter(self, array: Any, op: str = "sum", more: str = "") -> Any:
        if not self._is_device_array(array):
            return super().reduce_scatter(array, op, more)
        self._check_device_array(array, "reduce_scatter", written=False)
        check_op(op, array.dtype, "reduce_scatter")
        with self._device:
            out = self._cupy.empty(array.shape[1:], array.dtype)
        operation = described(array, f"reduce_scatter(op={op!r})", more)
        if out.size == 0:
            self._start(operation, tuple).wait()
            return out
        if op in ("min", "max") and libraries.is_differentiable(array.dtype):  # NCCL's own drop NaN
            with self._device:
                whole = self._cupy.empty(array.shape, array.dtype)
            self._start_selecting(whole, op, array, operation).wait()
            return whole[self.rank].copy()
        wire, _ = self._wire_arrays(out, out, op)
        sent = array.reshape(-1)
        sent = sent.view(wire.dtype) if wire.itemsize == array.itemsize else sent.astype(wire.dtype)
        count, dtype, how = self._terms(wire, op)

        def call(stream: int) -> None:
            self._wire.reduceScatter(sent.data.ptr, wire.data.ptr, count, dtype, how, stream)

        self._start(operation, self._posted(call), lambda: from_wire(out, wire, op, self.size)).wait()
        return out

    def _terms(self, wire: Any, op: str) -> tuple[int, Any, Any]:
        """Return in NCCL's terms how many numbers an array has, of what kind, and a reduction."""
        nccl = self._nccl
        names = {"mean": "SUM", "sum": "SUM", "min": "MIN", "max": "MAX", "prod": "PROD"}
        dtype = getattr(nccl, f"NCCL_{wire.real.dtype.name.upper()}")
        return (2 if wire.dtype.kind == "c" else 1) * wire.size, dtype, getattr(nccl, f"NCCL_{names[op]}")

    def _wire_arrays(self, array: Any, source: Any, op: str) -> tuple[Any, Any]:
        """Return what is reduced for an array, and from what: both flat, in a dtype that NCCL has."""
        if array.dtype.kind == "c" and op == "prod":
            raise errors.DtypeError("all_reduce: NCCL has no product of complex numbers; gather and multiply them")
        wider = np.dtype("float32") if is_half(array.dtype) else _WIDER.get(array.dtype.name)
        if wider is not None:
            wire = source.astype(wider).reshape(-1)
            return wire, wire
        flat = array.reshape(-1)
        if array.dtype.kind == "b":
            flat = flat.view(np.uint8)
        return flat, flat if source is array else source.reshape(-1).view(flat.dtype)

    def _start_selecting(self, array: Any, op: str, source: Any, operation: Any) -> Work:
        """Begin a min or max that keeps NaN, which NCCL's own drops: every rank chooses among the values of all."""
        found = self._empty_for_all(array)

        def choose() -> None:
            array[...] = (found.min if op == "min" else found.max)(axis=0)

        return self._start(operation, self._posted(self._gathering(source, found)), choose)

    def _empty_for_all(self, array: Any) -> Any:
        with self._device:
            return self._cupy.empty((self.size, *array.shape), array.dtype)

    def _gathering(self, array: Any, found: Any) -> Any:
        def call(stream: int) -> None:
            self._wire.allGather(array.data.ptr, found.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, stream)

        return call

    def all_gather(self, array: Any, more: str = "") -> Any:
        if not self._is_device_array(array):
            return super().all_gather(array, more)
        self._check_device_array(array, "all_gather", written=False)
        found = self._empty_for_all(array)
        post = self._posted(self._gathering(array, found)) if array.size else tuple
        self._start(described(array, "all_gather", more), post).wait()
        return found

    def broadcast(self, array: Any, root: int, more: str = "") -> None:
        if not self._is_device_array(array):
            super().broadcast(array, root, more)
            return
        self._check_device_array(array, "broadcast")

        def call(stream: int) -> None:
            self._wire.bcast(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, root, stream)

        post = self._posted(call) if array.size else tuple
        self._start(described(array, f"broadcast from rank {self.ranks[root]}", more), post).wait()

    # From one rank to another through the host's memory: NCCL has no tags, and two ranks that send to each other
    # at once would wait for each other.

    def start_send(self, array: Any, to: int, tag: int = 0) -> Work:
        if not self._is_device_array(array):
            return super().start_send(array, to, tag)
        self._check_device_array(array, "send", written=False)
        return super().start_send(array.get(), to, tag)

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        if not self._is_device_array(array):
            return super().start_recv(array, source, tag, what)
        self._check_device_array(array, "recv")
        host = np.empty(array.shape, array.dtype)
        work = super().start_recv(host, source, tag, what)
        return _HostTransfer(work, array, host)


class _HostTransfer(Work):
    """An array received by the host, to be moved to the GPU."""

    __slots__ = ("_array", "_host", "_work")

    def __init__(self, work: Work, array: Any, host: Any) -> None:
        super().__init__(work.operation, work.ranks, work.watchdog)
        self._work = work
        self._array = array
        self._host = host

    def progress(self, tries: int) -> bool:
        if not self._work.progress(tries):
            return False
        if self._host is not None:
            self._array.set(self._host)
            self._host = None
        return True
