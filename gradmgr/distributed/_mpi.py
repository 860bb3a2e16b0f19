"""Ranks connected by MPI, which carries NumPy arrays.

Every collective begins with an agreement: a digest of the operation that each rank calls is reduced to its least
and greatest value, on its own communicator. Only when both are the same are the arrays themselves transferred.
Ranks that call different operations, or in another order, find out there, all of them, and none waits in a collective
that no other rank is in. Operations are posted in the order of the calls, the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr.distributed import _wire
from gradmgr.distributed._group import Group, NonMemberGroup, named
from gradmgr.distributed._requests import Agreement, Posted, Receiving, Transfer, are_done, duplicate
from gradmgr.distributed._shared_memory import Reduction, SharedMemory
from gradmgr.distributed._wire import as_bytes, check_op, check_plain, chunks, described, from_wire, to_wire
from gradmgr.distributed._work import WatchdogBase, Work
from gradmgr.ops.convert import is_half

# Added up as they are; and a power of two, as the number of ranks often is, divides them without rounding.
_REALS = (libraries.F4, libraries.F8)

_MAX_TEXTS = 1000  # that a group caches, since the next step calls the same operations again


def _nothing() -> tuple[Any, ...]:
    """Do nothing, and return no requests: what an operation without a transfer posts, and how it is finished."""
    return ()


class _Collective(Posted):
    """A collective: first the agreement on what it is, then the transfer."""

    __slots__ = ("_agreement", "_finish", "_group", "_post")

    def __init__(
        self,
        group: MPIGroup,
        operation: str,
        digest: int,
        post: Callable[[], Iterable[Any]],
        finish: Callable[[], Any],
        agreement: Any = None,
    ) -> None:
        group.watchdog.check()
        super().__init__(operation, group.ranks, group.watchdog, None)
        self._group = group
        self._post = post
        self._finish = finish
        with self.watchdog.lock:
            self._agreement = group.start_agreement(digest) if agreement is None else agreement
            group.waiting.append(self)
            self.watchdog.pending.add(self)
            group.advance(1)

    def is_transferring(self) -> bool:
        return self._requests is not None

    def is_moved_by_polls(self) -> bool:
        return bool(self._requests) and not isinstance(self._requests[-1], Reduction)  # type: ignore[index]  # not None

    def is_agreed(self, tries: int) -> bool:
        """Return whether the agreement is complete."""
        return are_done([self._agreement], tries, self.operation)

    def begin(self) -> None:
        """Start the transfer, if all ranks called the same operation."""
        self._requests = []
        try:
            if self._agreement.is_unanimous:
                self._requests.extend(self._post())
            else:
                self._error = self._group.mismatch_error(self.operation)
        except errors.DistributedError as error:
            self._error = error
        except RuntimeError as error:  # MPI's or NCCL's; it may be of another operation than the one waited for
            self._error = errors.DistributedError(f"{self.operation}: the backend reports: {error}")

    def progress(self, tries: int) -> bool:
        with self.watchdog.lock:
            if self._requests is None:
                self._group.advance(tries)
            if self._requests is None or not self._are_complete(self._requests, tries):
                return False
            self._finish()
            self._finish = _nothing
            return True


class MPIGroup(Group):
    """Ranks connected by MPI; it carries NumPy arrays."""

    def __init__(self, mpi: Any, comm: Any, ranks: Sequence[int], watchdog: WatchdogBase) -> None:
        super().__init__(ranks, comm.Get_rank(), watchdog)
        self.mpi = mpi
        self._comm = comm
        # Agreements, texts and arrays have a communicator each, so that their messages do not mix.
        self._agreements, self._texts_comm = (duplicate(comm, self.ranks, watchdog) for _ in range(2))
        self._shared = SharedMemory.allocate(mpi, comm)
        if self._shared is not None:
            watchdog.memories.add(self._shared)
        self.waiting: deque[_Collective] = deque()
        self._texts: dict[tuple[Any, ...], tuple[str, int]] = {}

    def part(self, ranks: Sequence[int]) -> Group:
        """Return a group of some of these ranks, all of which must call this with the same ones."""
        inner = self._comm.Get_group()
        with self.watchdog.lock:
            comm = self._comm.Create(inner.Incl(ranks))
        members = [self.ranks[k] for k in ranks]
        if comm == self.mpi.COMM_NULL:
            return NonMemberGroup(members, -1, self.watchdog)
        return type(self)(self.mpi, comm, members, self.watchdog)

    def free(self) -> None:
        """Give the communicators back; all ranks must call this."""
        if self._twin is not None:
            self._twin.free()
        if self._shared is not None:
            self._shared.free()
        for comm in (self._agreements, self._texts_comm, self._comm):
            comm.Free()

    # ------------------------------------------------------------ agreeing

    def start_agreement(self, digest: int) -> Any:
        """Start to compare a number with those of the other ranks."""
        if self._shared is not None:
            return self._shared.agree(digest)
        return Agreement(self.mpi, self._agreements, digest)

    def advance(self, tries: int) -> None:
        """Start the operations that the ranks have agreed on, in the order of the calls."""
        waiting = self.waiting
        while waiting and waiting[0].is_agreed(tries):
            waiting.popleft().begin()

    def mismatch_error(self, operation: str) -> errors.DistributedError:
        """Return the error that lists what each rank called; all ranks call this."""
        texts = self._gather_texts(self._texts_comm, operation)
        by_text: dict[str, list[int]] = {}
        for rank, text in zip(self.ranks, texts, strict=True):
            by_text.setdefault(text, []).append(rank)
        found = "; ".join(f"{named(ranks)}: {text.splitlines()[0]}" for text, ranks in by_text.items())
        error = errors.DistributedError(
            f"the ranks called different operations: {found}. Every rank must call the same functions in the same "
            "order, with equal shapes, dtypes and options"
        )
        error.asked = tuple(texts)
        return error

    def _gather_texts(self, comm: Any, text: str) -> list[str]:
        """Return the texts of all ranks, which are known to come here."""
        mine = np.frombuffer(text.encode(), np.uint8)
        counts = np.empty(self.size, np.int64)
        operation = "the exchange of texts"
        Transfer(
            operation, self.ranks, self.watchdog, [comm.Iallgather(np.array([mine.size], np.int64), counts)]
        ).wait()
        sizes = counts.tolist()
        found = np.empty(sum(sizes), np.uint8)
        starts = [sum(sizes[:k]) for k in range(self.size)]
        place = [found, (sizes, starts), self.mpi.BYTE]
        Transfer(operation, self.ranks, self.watchdog, [comm.Iallgatherv([mine, self.mpi.BYTE], place)]).wait()
        return [found[a : a + n].tobytes().decode() for a, n in zip(starts, sizes, strict=True)]

    def _start(
        self, key: tuple[Any, ...], post: Callable[[], Iterable[Any]], finish: Callable[[], Any] = _nothing
    ) -> Work:
        self.watchdog.collect_finished()
        return _Collective(self, *self._text_and_digest(key), post, finish)

    def _text_and_digest(self, key: tuple[Any, ...]) -> tuple[str, int]:
        """Return the text of an operation and its digest, by which the ranks compare it."""
        known = self._texts.get(key)
        if known is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            operation, *rest = key
            text = "{} of a {} array of shape {} and dtype {}{}".format(*key) if rest else operation
            digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
            known = self._texts[key] = (text, digest)
        return known

    def start_agree(self, operation: str, facts: str = "") -> Work:
        return self._start((f"{operation} ({facts})" if facts else operation,), _nothing)

    def exchange(self, text: str) -> list[str]:
        self.agree("an exchange of texts")
        return self._gather_texts(self._texts_comm, text)

    # ------------------------------------------------------------ arrays

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        self._check(array, "all_reduce")
        check_op(op, array.dtype)
        operation = described(array, f"all_reduce(op={op!r})", more)
        wire, sent = to_wire(array, array if source is None else source)

        def post() -> list[Any]:
            if self._is_shared(wire):
                return [self._shared.reduce(sent, wire, op)]  # type: ignore[union-attr]  # as was just asked
            how, place = self._reduction(op), self.mpi.IN_PLACE
            return [
                self._comm.Iallreduce(place if sent is wire else one, into, how)
                for one, into in zip(chunks(sent), chunks(wire), strict=True)
            ]

        return self._start(operation, post, lambda: from_wire(array, wire, op, self.size))

    def reduce_but_for_share(self, array: Any, op: str, more: str = "") -> float | None:
        memory = self._shared
        is_plain = array.dtype in _REALS and (op == "sum" or (op == "mean" and not self.size & (self.size - 1)))
        is_quick = is_plain and isinstance(array, np.ndarray) and self._is_shared(array)
        if memory is None or not is_quick or self.waiting or not memory.is_idle():
            return super().reduce_but_for_share(array, op, more)
        self._check(array, "all_reduce")
        work = self._sum_at_once(memory, array.reshape(-1), described(array, f"all_reduce(op={op!r})", more))
        if work is not None:
            work.wait()
        return 1 / self.size if op == "mean" else None

    def _sum_at_once(self, memory: SharedMemory, flat: Any, key: tuple[Any, ...]) -> Work | None:
        """Add up an array among the ranks of one machine, without what a longer wait needs.

        Ranks that compute the same wait for 10 us here. What is still under way then, or when an exception is raised,
        becomes work as any other, which is returned.
        """
        operation, digest = self._text_and_digest(key)
        reduction: Reduction | None = None
        begun = memory.begun

        def post() -> list[Any]:
            if memory.begun == begun:
                return [memory.reduce(flat, flat, "sum")]
            return [] if reduction is None else [reduction]  # an exception came between: the memory goes on with it

        self.watchdog.check()
        with self.watchdog.lock:
            self.watchdog.local.set_activity(operation, False)
            agreement = memory.agree(digest)
            try:
                if memory.await_agreement(agreement):
                    reduction = memory.reduce(flat, flat, "sum")
                    if memory.await_reduction(reduction):
                        return None
            except BaseException:
                _Collective(self, operation, digest, post, _nothing, agreement)
                raise
            return _Collective(self, operation, digest, post, _nothing, agreement)

    def start_half_sum(self, array: Any, more: str = "") -> Work:
        self._check(array, "all_reduce")
        wire = array.reshape(-1)

        def post() -> list[Any]:
            if self._is_shared(wire):
                return [self._shared.reduce(wire, wire, "sum")]  # type: ignore[union-attr]  # as was just asked
            how = self._made_op("sum of float16", lambda one, into: np.add(one, into, out=into), np.float16)
            parts = chunks(wire.view(np.int16))  # MPI has no float16
            return [self._comm.Iallreduce(self.mpi.IN_PLACE, into, how) for into in parts]

        return self._start(described(array, "all_reduce(op='sum', in float16)", more), post)

    def reduce_scatter(self, array: Any, op: str = "sum", more: str = "") -> Any:
        self._check(array, "reduce_scatter", written=False)
        check_op(op, array.dtype, "reduce_scatter")
        out = np.empty(array.shape[1:], array.dtype)
        wire, _ = to_wire(out, out)
        sent = array.reshape(-1).astype(np.float32) if is_half(array.dtype) else array.reshape(-1).view(wire.dtype)

        def post() -> list[Any]:
            if self._is_shared(sent):
                start = self.rank * wire.nbytes
                return [self._shared.reduce(sent, wire, op, start)]  # type: ignore[union-attr]  # as was just asked
            how, rows = self._reduction(op), sent.reshape(self.size, -1)
            step = max(1, _wire.MAX_BYTES // (wire.itemsize * self.size))
            return [
                self._comm.Ireduce_scatter_block(np.ascontiguousarray(rows[:, k : k + step]), wire[k : k + step], how)
                for k in range(0, wire.size, step)
            ]

        self._start(described(array, f"reduce_scatter(op={op!r})", more), post).wait()
        from_wire(out, wire, op, self.size)
        return out

    def _is_shared(self, sent: Any) -> bool:
        """Tell whether an array goes through memory that all ranks share."""
        return self._shared is not None and 0 < sent.nbytes <= self._shared.max_bytes

    def _reduction(self, op: str) -> Any:
        """Return an operation of MPI."""
        name = {"sum": "SUM", "mean": "SUM", "prod": "PROD"}.get(op)
        return getattr(self.mpi, name) if name else self._selecting(op)

    def _selecting(self, op: str) -> Any:
        """Return min or max as an operation of MPI that takes the ranks in order.

        MPI's own leaves it open which of a NaN and a number, or of two zeros, it takes, and ranks may come to differ.
        """
        choose = np.minimum if op == "min" else np.maximum
        return self._made_op(op, lambda one, into: choose(one, into, out=into))

    def _made_op(self, name: str, combine: Callable[[Any, Any], Any], dtype: Any = None) -> Any:
        """Return an operation of MPI that takes the ranks in order, made once.

        Args:
            name: of the operation.
            combine: combines one array into another, in place.
            dtype: of the numbers; None for that which MPI knows them by.
        """
        known = self.watchdog.made_ops
        if name not in known:

            def call(one: Any, into: Any, datatype: Any) -> None:
                kind = np.dtype(datatype.typechar if dtype is None else dtype)
                combine(np.frombuffer(one, kind), np.frombuffer(into, kind))

            known[name] = self.mpi.Op.Create(call, commute=False)
        return known[name]

    def all_gather(self, array: Any, more: str = "") -> Any:
        self._check(array, "all_gather", written=False)
        out = np.empty((self.size, *array.shape), array.dtype)
        mine, found = as_bytes(array), as_bytes(out).reshape(self.size, -1)

        def post() -> list[Any]:
            if array.nbytes * self.size <= _wire.MAX_BYTES:
                return [self._comm.Iallgather(mine, found)]
            return [
                self._comm.Ibcast(piece, root)
                for root in range(self.size)
                for piece in chunks(self._with_own_row(found[root], mine, root))
            ]

        self._start(described(array, "all_gather", more), post).wait()
        return out

    def _with_own_row(self, row: Any, mine: Any, root: int) -> Any:
        if root == self.rank:
            row[...] = mine
        return row

    def broadcast(self, array: Any, root: int, more: str = "") -> None:
        self._check(array, "broadcast")
        flat = as_bytes(array)
        operation = described(array, f"broadcast from rank {self.ranks[root]}", more)
        self._start(operation, lambda: [self._comm.Ibcast(piece, root) for piece in chunks(flat)]).wait()

    def start_send(self, array: Any, to: int, tag: int = 0) -> Work:
        self._check(array, "send", written=False)
        operation, _ = self._text_and_digest(described(array, f"send to rank {self.ranks[to]}"))
        self.watchdog.check()
        with self.watchdog.lock:
            requests = [self._comm.Isend(piece, to, tag) for piece in chunks(as_bytes(array))]
        return Transfer(operation, (self.ranks[to],), self.watchdog, requests)

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        self._check(array, "recv")
        operation = f"recv from rank {self.ranks[source]}"
        operation = f"{operation} of {what}" if what else self._text_and_digest(described(array, operation))[0]
        parts = chunks(as_bytes(array))
        self.watchdog.check()
        with self.watchdog.lock:
            requests = [Receiving(self.mpi, self._comm.Irecv(p, source, tag), p.nbytes, operation) for p in parts]
        return Transfer(operation, (self.ranks[source],), self.watchdog, requests)

    def _check(self, array: Any, operation: str, *, written: bool = True) -> None:
        if not isinstance(array, np.ndarray):
            raise errors.DistributedError(
                f"{operation} was given a {type(array).__module__} array; these ranks are connected by MPI, which "
                "carries NumPy arrays: begin with distributed.init('nccl'), or move it with .to('cpu')"
            )
        check_plain(array, operation, written=written)
