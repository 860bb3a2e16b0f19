"""The backends that transfer arrays between ranks: MPI for NumPy arrays, NCCL for CuPy arrays.

Every collective begins with an agreement: a digest of the operation that each rank calls is reduced to its least
and greatest value, on a communicator of its own. Only when both are the same are the arrays themselves transferred.
Ranks that call different operations, or in another order, find out there, all of them, and none waits in a collective
that no other rank is in. Operations are posted in the order of the calls, the same on all ranks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr.distributed._local_ranks import LocalRanks
from gradmgr.distributed._shared_memory import Reduction, SharedMemory
from gradmgr.ops.convert import is_half

OPS = ("sum", "mean", "min", "max", "prod")

# Added up as they are; and a power of two, as the number of ranks often is, divides them without rounding.
_REALS = (libraries.F4, libraries.F8)

# One call of MPI transfers at most so many bytes: counts are 32-bit integers in many of them.
_MAX_BYTES = 1 << 30

_MAX_TEXTS = 1000  # that a group caches, since the next step calls the same operations again


class WatchdogBase:
    """The checks that a wait makes from time to time, and the lock around the calls of MPI; see `_watchdog`."""

    def __init__(self, local: LocalRanks) -> None:
        self.local = local
        self.lock = threading.RLock()
        # MPI may still write to or read the memory of these, though the user holds them no longer.
        self.pending: set[Work] = set()
        self.memories: weakref.WeakSet[SharedMemory] = weakref.WeakSet()

    def collect_finished(self) -> None:
        """Forget what is complete."""
        for work in list(self.pending):
            with contextlib.suppress(errors.DistributedError):
                work.done()

    def advance(self) -> None:
        """Go on with what other ranks may wait for, whatever this rank waits for."""
        with self.lock:
            for memory in list(self.memories):
                memory.advance()

    def check(self) -> None:
        """Raise if a rank is known to have failed."""

    def poll(self, operation: str, ranks: tuple[int, ...], waited: float) -> None:
        """Raise if a wait for these ranks of the world, of so many seconds, must end."""


class Work:
    """An operation that was started and may not be complete."""

    __slots__ = ("operation", "ranks", "watchdog")

    def __init__(self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase) -> None:
        self.operation = operation
        self.ranks = ranks  # of the world, which must all take part
        self.watchdog = watchdog
        watchdog.local.set_activity(operation, False)

    def done(self) -> bool:
        """Return whether it is complete, and let MPI progress."""
        return self.progress(1)

    def progress(self, tries: int) -> bool:
        """Test so many times whether it is complete, which is what lets MPI progress."""
        raise NotImplementedError

    def wait(self) -> None:
        """Return when it is complete.

        Raises:
            DistributedError: the ranks did not call the same operation.
            RankFailedError: another rank ended, or the timeout is over.
        """
        if self.progress(_TRIES):
            return
        self.watchdog.local.set_activity(self.operation, True)
        try:
            self._try_until_done()
        finally:
            self.watchdog.local.set_activity(self.operation, False)

    def _try_until_done(self) -> None:
        began = looked = time.perf_counter()
        while not self.progress(_TRIES):
            looked = self._pause(began, looked)

    def is_transferring(self) -> bool:
        """Return whether all ranks have arrived, so that only bytes remain to be transferred."""
        return False

    def is_moved_by_polls(self) -> bool:
        """Return whether bytes are on their way that get on with each poll, so that a pause would hold them up."""
        return False

    def _pause(self, began: float, looked: float) -> float:
        """Yield the core for a moment; poll the watchdog now and then. Return when it was polled last."""
        now = time.perf_counter()
        if now - looked > _POLL_INTERVAL:
            looked = now
            self.watchdog.advance()
            self.watchdog.poll(self.operation, self.ranks, now - began)
        waited = now - began
        if waited > _SPIN_TIME and not self.is_moved_by_polls():
            time.sleep(min(waited * _NAP, _MAX_NAP))
        else:
            _yield_core()
        return looked


_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has none

_TRIES = 8  # between two pauses: fewer, and the bytes move slower; more, and ranks that share a core starve each other
_POLL_INTERVAL = 1e-3  # seconds between two polls of the watchdog
# Seconds after which a wait for others sleeps in its pauses, so that its core is free. More than two ranks that compute
# the same need to come together (20 to 50 us); on busy cores a step takes 0.8 of the time that it takes with 0.2 s.
_SPIN_TIME = 2e-4
_NAP = 1 / 16  # of the time waited so far: what a pause lasts, and the most by which sleeping makes a wait longer
_MAX_NAP = 1e-3  # seconds


class Group:
    """Some of the ranks, and their collectives.

    `rank` is this process's place among them (-1 where it is not one of them), `size` their number and `ranks`
    what they are called in the whole world.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> group = distributed.new_group([0])
    >>> group.rank, group.size, group.ranks
    (0, 1, (0,))
    >>> distributed.finalize()
    """

    def __init__(self, ranks: Sequence[int], rank: int, watchdog: WatchdogBase) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.watchdog = watchdog
        self.links: dict[tuple[int, int], int] = {}  # how many values went from one rank to another: see `_pipeline`
        self._twin: Group | None = None
        self._is_twin = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ranks {self.ranks}>"

    def twin(self) -> Group:
        """Return another group of the same ranks; all of them must come here when it is first asked for.

        The ranks need not call collectives of the two in the same order relative to each other. One rank alone needs
        none.
        """
        if self._twin is None and not self._is_twin and self.size > 1:
            self.agree("the making of a group of the same ranks")
            self._twin = self.part(range(self.size))
            self._twin._is_twin = True
        return self.twin_if_made()

    def twin_if_made(self) -> Group:
        """Return the twin, or the group itself if none was asked for."""
        return self if self._twin is None else self._twin

    def part(self, ranks: Sequence[int]) -> Group:
        """Return a group of some of these ranks, all of whom must come here with the same ones."""
        raise NotImplementedError

    def free(self) -> None:
        """Give back what the connection holds; all ranks must come here."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Return the group itself: the copy of a layer communicates with the same ranks."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Group is a connection of processes that run, and cannot be pickled; save a state_dict, and make the "
            "group again with new_group"
        )

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        """Begin to reduce an array over the ranks, in place.

        `source` holds the values if `array` does not.
        `more`, here and in the other methods, is what else must be the same on all ranks.
        """
        raise NotImplementedError

    def reduce_but_for_share(self, array: Any, op: str, more: str = "") -> float | None:
        """Reduce an array over the ranks, in place, as `start_all_reduce`, and wait.

        Returns:
            By what it is still to be multiplied for a mean, which the caller can do while it copies; None for nothing.
        """
        self.start_all_reduce(array, op, None, more).wait()
        return None

    def start_half_sum(self, array: Any, more: str = "") -> Work:
        """Begin to add up a float16 array over the ranks, in place and in float16, which halves what is sent."""
        raise NotImplementedError

    def reduce_scatter(self, array: Any, op: str = "sum", more: str = "") -> Any:
        """Return row `rank` of an array reduced over the ranks; it has a row for each of them."""
        raise NotImplementedError

    def all_gather(self, array: Any, more: str = "") -> Any:
        """Return the arrays of all ranks, stacked along a new first axis."""
        raise NotImplementedError

    def broadcast(self, array: Any, root: int, more: str = "") -> None:
        """Write the array of rank `root` into that of every other, in place."""
        raise NotImplementedError

    def start_send(self, array: Any, to: int, tag: int = 0) -> Work:
        """Begin to send an array to a rank of the group."""
        raise NotImplementedError

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        """Begin to receive into an array what a rank of the group sends; `what` names it in errors."""
        raise NotImplementedError

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks."""
        raise NotImplementedError

    def start_agree(self, operation: str, facts: str = "") -> Work:
        """Begin to find out whether all ranks brought the same facts."""
        raise NotImplementedError

    def agree(self, operation: str, facts: str = "") -> None:
        """Raise DistributedError, on every rank, unless all of them brought the same facts."""
        self.start_agree(operation, facts).wait()


class NonMemberGroup(Group):
    """A group that this rank is not in, whose methods raise."""

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS_ONLY:
            ranks = ", ".join(map(str, self.ranks))
            raise errors.DistributedError(
                f"{name.removeprefix('start_')} was called on a group of ranks {ranks}, to which this rank does not "
                "belong; call it there only: if distributed.rank(group) >= 0: ..."
            )
        return super().__getattribute__(name)


_MEMBERS_ONLY = frozenset(name for name in vars(Group) if not name.startswith("_"))


def described(array: Any, operation: str, more: str = "") -> tuple[str, str, tuple[int, ...], Any, str]:
    """Return what must be the same on every rank of an operation on an array."""
    return (operation, libraries.namespace(array).__name__, array.shape, array.dtype, more)


class _Posted(Work):
    """An operation with requests of MPI, and the error that it ended with."""

    __slots__ = ("_error", "_requests")

    def __init__(
        self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase, requests: Iterable[Any] | None
    ) -> None:
        super().__init__(operation, ranks, watchdog)
        self._requests = None if requests is None else list(requests)
        self._error: errors.DistributedError | None = None

    def _are_complete(self, requests: list[Any], tries: int) -> bool:
        """Return whether the requests are complete; raise their error if they failed."""
        try:
            if self._error is None and not _are_done(requests, tries, self.operation):
                return False
        except errors.DistributedError as error:
            self._error = error
        self.watchdog.pending.discard(self)
        if self._error is not None:
            raise self._error
        return True


class _Collective(_Posted):
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
        return _are_done([self._agreement], tries, self.operation)

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
            self._finish = tuple
            return True


class _Agreement:
    """An agreement over MPI, as a request that can be tested."""

    __slots__ = ("_numbers", "_request")

    def __init__(self, mpi: Any, comm: Any, digest: int) -> None:
        self._numbers = np.array((digest, -digest, 0, 0), np.int64)
        self._request = comm.Iallreduce(self._numbers[:2], self._numbers[2:], mpi.MIN)

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        return bool(self._request.Test())

    @property
    def is_unanimous(self) -> bool:
        """Return whether the least and the greatest digest are equal, once it is complete."""
        return bool(self._numbers[2] == -self._numbers[3])


class _Transfer(_Posted):
    """Arrays on their way between two ranks."""

    __slots__ = ()

    def __init__(self, operation: str, ranks: tuple[int, ...], watchdog: WatchdogBase, requests: Iterable[Any]) -> None:
        super().__init__(operation, ranks, watchdog, requests)
        watchdog.pending.add(self)

    def progress(self, tries: int) -> bool:
        with self.watchdog.lock:
            return self._are_complete(self._requests or [], tries)


def _are_done(requests: list[Any], tries: int, operation: str) -> bool:
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


def duplicate(comm: Any, ranks: tuple[int, ...], watchdog: WatchdogBase) -> Any:
    """Return a new communicator of the same ranks, all of whom must come here."""
    made, request = comm.Idup()
    _Transfer("the making of a group of ranks", ranks, watchdog, [request]).wait()
    return made


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
        """Return a group of some of these ranks, all of whom must come here with the same ones."""
        inner = self._comm.Get_group()
        with self.watchdog.lock:
            comm = self._comm.Create(inner.Incl(ranks))
        named = [self.ranks[k] for k in ranks]
        if comm == self.mpi.COMM_NULL:
            return NonMemberGroup(named, -1, self.watchdog)
        return type(self)(self.mpi, comm, named, self.watchdog)

    def free(self) -> None:
        """Give the communicators back; all ranks must come here."""
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
        return _Agreement(self.mpi, self._agreements, digest)

    def advance(self, tries: int) -> None:
        """Start the operations that the ranks have agreed on, in the order of the calls."""
        waiting = self.waiting
        while waiting and waiting[0].is_agreed(tries):
            waiting.popleft().begin()

    def mismatch_error(self, operation: str) -> errors.DistributedError:
        """Return the error that lists what each rank called; all ranks come here."""
        texts = self._gather_texts(self._texts_comm, operation)
        by_text: dict[str, list[int]] = {}
        for rank, text in zip(self.ranks, texts, strict=True):
            by_text.setdefault(text, []).append(rank)
        found = "; ".join(f"{named(ranks)}: {text.splitlines()[0]}" for text, ranks in by_text.items())
        error = errors.DistributedError(
            f"the ranks did not ask for the same: {found}. Every rank must call the same functions in the same order, "
            "with equal shapes, dtypes and options"
        )
        error.asked = tuple(texts)
        return error

    def _gather_texts(self, comm: Any, text: str) -> list[str]:
        """Return the texts of all ranks, which are known to come here."""
        mine = np.frombuffer(text.encode(), np.uint8)
        counts = np.empty(self.size, np.int64)
        operation = "the exchange of texts"
        _Transfer(
            operation, self.ranks, self.watchdog, [comm.Iallgather(np.array([mine.size], np.int64), counts)]
        ).wait()
        sizes = counts.tolist()
        found = np.empty(sum(sizes), np.uint8)
        starts = [sum(sizes[:k]) for k in range(self.size)]
        place = [found, (sizes, starts), self.mpi.BYTE]
        _Transfer(operation, self.ranks, self.watchdog, [comm.Iallgatherv([mine, self.mpi.BYTE], place)]).wait()
        return [found[a : a + n].tobytes().decode() for a, n in zip(starts, sizes, strict=True)]

    def _start(
        self, key: tuple[Any, ...], post: Callable[[], Iterable[Any]], finish: Callable[[], Any] = tuple
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
        return self._start((f"{operation} ({facts})" if facts else operation,), tuple)

    def exchange(self, text: str) -> list[str]:
        self.agree("an exchange of texts")
        return self._gather_texts(self._texts_comm, text)

    # ------------------------------------------------------------ arrays

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        self._check(array, "all_reduce")
        check_op(op, array.dtype)
        operation = described(array, f"all_reduce(op={op!r})", more)
        wire, sent = to_wire(array, array if source is None else source, op)

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

        Ranks that compute the same wait for 10 us here. What is still under way then, or when an exception strikes,
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
                _Collective(self, operation, digest, post, tuple, agreement)
                raise
            return _Collective(self, operation, digest, post, tuple, agreement)

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
        wire, _ = to_wire(out, out, op)
        sent = array.reshape(-1).astype(np.float32) if is_half(array.dtype) else array.reshape(-1).view(wire.dtype)

        def post() -> list[Any]:
            if self._is_shared(sent):
                start = self.rank * wire.nbytes
                return [self._shared.reduce(sent, wire, op, start)]  # type: ignore[union-attr]  # as was just asked
            how, rows = self._reduction(op), sent.reshape(self.size, -1)
            step = max(1, _MAX_BYTES // (wire.itemsize * self.size))
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
        known = self.watchdog.__dict__.setdefault("made_ops", {})
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
            if array.nbytes * self.size <= _MAX_BYTES:
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
        return _Transfer(operation, (self.ranks[to],), self.watchdog, requests)

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        self._check(array, "recv")
        operation = f"recv from rank {self.ranks[source]}"
        operation = f"{operation} of {what}" if what else self._text_and_digest(described(array, operation))[0]
        parts = chunks(as_bytes(array))
        self.watchdog.check()
        with self.watchdog.lock:
            requests = [_Receiving(self.mpi, self._comm.Irecv(p, source, tag), p.nbytes, operation) for p in parts]
        return _Transfer(operation, (self.ranks[source],), self.watchdog, requests)

    def _check(self, array: Any, operation: str, *, written: bool = True) -> None:
        if not isinstance(array, np.ndarray):
            raise errors.DistributedError(
                f"{operation} was given a {type(array).__module__} array; these ranks are connected by MPI, which "
                "carries NumPy arrays: begin with distributed.init('nccl'), or move it with .to('cpu')"
            )
        check_plain(array, operation, written=written)


class _Receiving:
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


def named(ranks: Sequence[int]) -> str:
    """Return the ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


# ---------------------------------------------------------------- what is transferred


def check_plain(array: Any, operation: str, *, written: bool) -> None:
    """Raise for an array that cannot be transferred as it lies in memory."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{operation} carries contiguous arrays; found strides {array.strides} and shape {array.shape}"
        )
    if written and not memory.is_writeable(array):
        raise ValueError(f"{operation} writes to its array; found one that is read-only")
    if array.dtype.kind not in "biufc" and not libraries.is_differentiable(array.dtype):
        raise errors.DtypeError(f"{operation} carries numbers; found dtype {array.dtype}")


def check_op(op: str, dtype: Any, operation: str = "all_reduce") -> None:
    """Raise for a reduction that is not known, or has no meaning for this dtype."""
    if op not in OPS:
        raise ValueError(f"{operation} knows the ops {', '.join(map(repr, OPS))}; found {op!r}")
    if op == "mean" and not libraries.is_differentiable(dtype) and dtype.kind not in "fc":
        raise errors.DtypeError(f"{operation}: a mean of {dtype} would be rounded; convert to a floating dtype first")
    if op in ("min", "max") and dtype.kind == "c":
        raise errors.DtypeError(f"{operation}: complex numbers have no order, so no {op}; reduce a real part of them")
    if op == "sum" and dtype.kind == "b":
        raise errors.DtypeError(f"{operation}: a sum of bool is a count; convert to an integer dtype, or use op='max'")


def to_wire(array: Any, source: Any, op: str) -> tuple[Any, Any]:
    """Return what is reduced for an array, and from what: both flat, in a dtype that MPI adds up well."""
    if is_half(array.dtype):
        wire = source.astype(np.float32).reshape(-1)
        return wire, wire
    flat = array.reshape(-1)
    if array.dtype.kind == "b":
        flat = flat.view(np.uint8)
    return flat, flat if source is array else source.reshape(-1).view(flat.dtype)


def from_wire(array: Any, wire: Any, op: str, size: int) -> None:
    """Finish a reduction: the mean, and back to the array's own dtype."""
    if op == "mean":
        if size & (size - 1) or wire.dtype.kind == "c":
            wire /= size
        else:  # by a power of two: the same bits, in half the time
            wire *= 1 / size
    if wire.dtype != array.dtype and array.dtype.kind != "b":
        array[...] = wire.reshape(array.shape)


def as_bytes(array: Any) -> Any:
    """Return the memory of a contiguous array as bytes: so dtypes that MPI does not know can be transferred."""
    return array.reshape(-1).view(np.uint8)


def chunks(flat: Any) -> list[Any]:
    """Return a flat array in chunks of the size that one call takes; the same object where it is one."""
    if flat.nbytes <= _MAX_BYTES:
        return [flat] if flat.size else []
    step = _MAX_BYTES // flat.itemsize
    return [flat[k : k + step] for k in range(0, flat.size, step)]
