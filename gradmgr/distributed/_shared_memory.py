"""Memory that the ranks of one machine share: how they agree there, and reduce small arrays.

MPI makes it, as a shared window. Each rank writes to its own part alone and reads those of all. What is written is
announced by a counter, which is written after it; `MPI.Win.Sync` orders the two for the processor. So an agreement
takes a microsecond, a reduction of 77 KB among two ranks 13 where MPI's own takes 24, and a rank that waits need not
call MPI for the others to go on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import native_kernels

# Where a part has what, in numbers of 8 bytes; the counters have a cache line each.
_POSTED, _READ, _WRITTEN, _DONE, _DIGESTS = 0, 8, 16, 24, 32
_RING = 64  # agreements that a rank may be ahead of the others
_HEAD = _DIGESTS + _RING
_SLOTS = 2  # reductions that a rank may be ahead of the others

_SHARED_BYTES = 2 << 20  # of the slots of all ranks together; above, each rank would read too much
_SPINS = 200  # looks at a counter, of 50 ns each: some 10 us, in which ranks that compute the same mostly come together
_LINE = 64  # bytes of a line of the processors' caches
_PROGRESS_INTERVAL = 32  # tests in vain, after each of which MPI may go on with its own messages

_UFUNCS = MappingProxyType({"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum})


class SharedMemory:
    """The memory of a group, all of whose ranks are on one machine."""

    def __init__(self, comm: Any, window: Any) -> None:
        self._comm = comm
        self._window = window
        self._rank = comm.Get_rank()
        # Arrays have the buffer protocol, which NumPy's stubs tell from Python 3.12 on.
        parts: list[Any] = [np.frombuffer(window.Shared_query(k)[0], np.uint8) for k in range(comm.Get_size())]
        self._heads = [memoryview(part[: 8 * _HEAD]).cast("q") for part in parts]
        self._own = self._heads[self._rank]
        self.max_bytes = _slot_bytes(len(parts))  # of an array that can be reduced here
        self._slots = [
            [part[8 * _HEAD + k * self.max_bytes :][: self.max_bytes] for part in parts] for k in range(_SLOTS)
        ]
        self._agreements = 0  # how many were begun
        self._unposted: deque[tuple[int, int]] = deque()  # numbers and digests for which the ring has no place yet
        self._reductions: deque[Reduction] = deque()  # in the order in which they were begun
        self.begun = 0  # reductions
        self._in_vain = 0

    @staticmethod
    def allocate(mpi: Any, comm: Any) -> SharedMemory | None:
        """Return new memory, or None if not all ranks are on one machine; all of them must call this."""
        size = comm.Get_size()
        here = comm.Split_type(mpi.COMM_TYPE_SHARED)
        is_one_machine = here.Get_size() == size > 1
        here.Free()
        window: Any = None
        if comm.allreduce(is_one_machine, mpi.LAND):
            with contextlib.suppress(mpi.Exception):  # there is no room for it
                window = mpi.Win.Allocate_shared(8 * _HEAD + _SLOTS * _slot_bytes(size), 1, comm=comm)
        if not comm.allreduce(window is not None, mpi.LAND):
            return None
        window.Lock_all(mpi.MODE_NOCHECK)
        made = SharedMemory(comm, window)
        np.asarray(made._own)[...] = 0
        window.Sync()
        comm.Barrier()
        window.Sync()
        return made

    def free(self) -> None:
        """Give the memory back; all ranks must call this."""
        self._heads, self._slots, self._own = [], [], memoryview(b"")
        self._reductions.clear()
        self._window.Unlock_all()
        self._window.Free()

    def _have_all(self, counter: int, number: int) -> bool:
        """Return whether a counter of every rank is at this number."""
        for head in self._heads:
            if head[counter] < number:
                self._in_vain += 1
                if self._in_vain % _PROGRESS_INTERVAL == 0:
                    self._comm.Iprobe()
                return False
        return True

    # ------------------------------------------------------------ agreements

    def is_idle(self) -> bool:
        """Return whether nothing is in progress that this rank must go on with."""
        return not (self._unposted or self._reductions)

    def agree(self, digest: int) -> Agreement:
        """Begin to find out whether all ranks give the same digest."""
        self._agreements += 1
        self._unposted.append((self._agreements, digest))
        self._post()
        return Agreement(self, self._agreements, digest)

    def _post(self) -> None:
        """Write the digests for which there is a place."""
        while self._unposted:
            number, digest = self._unposted[0]
            if number > _RING and not self._have_all(_READ, number - _RING):
                return
            self._own[_DIGESTS + number % _RING] = digest
            self._window.Sync()
            self._own[_POSTED] = number
            self._unposted.popleft()

    def compare(self, number: int, digest: int) -> bool | None:
        """Return whether the digests of an agreement are equal; None while a rank has not come."""
        if self._unposted:
            self._post()
        if self._reductions:  # let go of by this rank, perhaps, and waited for by another
            self.advance()
        if not self._have_all(_POSTED, number):
            return None
        self._window.Sync()
        place = _DIGESTS + number % _RING
        is_equal = all(head[place] == digest for head in self._heads)
        self._window.Sync()
        self._own[_READ] = number
        return is_equal

    def await_agreement(self, agreement: Agreement) -> bool | None:
        """Wait some microseconds for an agreement; return whether it is unanimous, None while a rank has not come."""
        if self._spin(_POSTED, agreement.number):
            agreement.Test()
        return agreement.is_unanimous

    def await_reduction(self, reduction: Reduction) -> bool:
        """Wait some microseconds for a reduction; return whether it is complete."""
        return reduction.is_complete or (self._spin(_WRITTEN, reduction.number) and reduction.Test())

    def _spin(self, counter: int, number: int) -> bool:
        """Wait some microseconds until a counter of every rank is at this number; return whether it is."""
        for head in self._heads:
            if head[counter] < number:
                for _ in range(_SPINS):
                    if head[counter] >= number:
                        break
                else:
                    return False
        return True

    # ------------------------------------------------------------ reductions

    def reduce(self, sent: Any, into: Any, op: str, start: int = 0) -> Reduction:
        """Begin to reduce an array over the ranks; all of them begin their reductions in the same order.

        Args:
            sent: this rank's array, flat.
            into: where the result goes, flat and of the same dtype: `sent` itself, or a shorter one for a part of it.
            op: see `OPS`.
            start: the byte at which that part begins.
        """
        self.begun += 1
        found = Reduction(self, self.begun, sent, into, op, start)
        self._reductions.append(found)
        self.advance()
        return found

    def advance(self) -> None:
        """Go on with the reductions, in their order. The next call completes an interrupted one."""
        while self._reductions:
            first = self._reductions[0]
            if not first.is_complete and not self._is_complete(first):
                return
            self._window.Sync()
            self._own[_DONE] = first.number
            self._reductions.popleft()

    def _is_complete(self, one: Reduction) -> bool:
        """Write this rank's array, and reduce those of all when they are there."""
        parts = self._slots[one.number % _SLOTS]
        if self._own[_WRITTEN] < one.number:
            if not self._have_all(_DONE, one.number - _SLOTS):
                return False
            _send(one.sent, parts[self._rank][: one.sent.nbytes].view(one.sent.dtype))
            self._window.Sync()
            self._own[_WRITTEN] = one.number
        if not self._have_all(_WRITTEN, one.number):
            return False
        self._window.Sync()
        ufunc = _UFUNCS[one.op]
        arrays = [part[one.start : one.start + one.into.nbytes].view(one.into.dtype) for part in parts]
        if self._rank < 2 and not one.is_reducing:  # its own array is nearer than its slot, and not written over yet
            first = one.start // one.into.itemsize
            arrays[self._rank] = one.sent[first : first + one.into.size]
        one.is_reducing = True
        ufunc(arrays[0], arrays[1], out=one.into)  # in the order of the ranks: every rank finds the same bits
        for other in arrays[2:]:
            ufunc(one.into, other, out=one.into)
        one.is_complete = True
        return True


def _send(array: Any, into: Any) -> None:
    """Copy a flat array into shared memory, of which the other ranks' cores have read what was there before.

    Their caches must give up each line first. Where that takes 30 ns, as on a virtual machine, a plain copy
    of 75 KB takes 32 us. The kernel copies past the caches, in 6.5. Without it a number of each line is written first,
    in 18: a processor waits for more lines at once where it has less to write to each of them.
    """
    kernel = native_kernels.find("send", array)
    if kernel is not None:
        kernel(array, into, array.size)
        return
    step = _LINE // into.itemsize
    if step > 1:
        into[::step] = 0
    into[...] = array


def _slot_bytes(size: int) -> int:
    return _SHARED_BYTES // (_SLOTS * size) // 64 * 64


class Agreement:
    """An agreement under way, as a request that can be tested."""

    __slots__ = ("_digest", "_memory", "is_unanimous", "number")

    def __init__(self, memory: SharedMemory, number: int, digest: int) -> None:
        self._memory = memory
        self.number = number
        self._digest = digest
        self.is_unanimous: bool | None = None  # None while it is in progress

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        if self.is_unanimous is None:
            self.is_unanimous = self._memory.compare(self.number, self._digest)
        return self.is_unanimous is not None


class Reduction:
    """A reduction under way, as a request that can be tested."""

    __slots__ = ("_memory", "into", "is_complete", "is_reducing", "number", "op", "sent", "start")

    def __init__(self, memory: SharedMemory, number: int, sent: Any, into: Any, op: str, start: int) -> None:
        self._memory = memory
        self.number = number
        self.sent = sent
        self.into = into
        self.op = op
        self.start = start
        self.is_reducing = False  # whether `into`, which may be `sent`, may have been written to
        self.is_complete = False

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        if not self.is_complete:
            self._memory.advance()
        return self.is_complete
