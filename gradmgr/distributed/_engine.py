"""The engines that carry arrays between ranks: MPI for NumPy arrays, NCCL for CuPy arrays.

Every collective begins with a word among the ranks: the digest of what each asks for, reduced to its least
and greatest value on a communicator of its own. Only when both are the same are the arrays themselves put on the wire,
so ranks that ask for different things, or in another order, find out there, all of them, and none waits
in a collective that no other rank is in. What is asked for first is posted first, on all ranks alike.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr.ops.convert import is_half

OPS = ("sum", "mean", "min", "max", "prod")

# One call of the engine carries at most so many bytes: counts are 32-bit integers in many of them.
_PIECE = 1 << 30

_TEXTS = 1000  # that a group remembers, since each is asked for again in the next step


class Watch:
    """What a wait looks at from time to time, and the lock around the engine's calls; see `_watchdog`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Whose memory the engine may still write to or read, though the user let go of them.
        self.kept: set[Work] = set()

    def let_go(self) -> None:
        """Forget what the engine is done with by now."""
        for work in list(self.kept):
            with contextlib.suppress(errors.DistributedError):
                work.done()

    def check(self) -> None:
        """Raise if a rank is known to have failed, so that waiting for it is no use."""

    def look(self, asked: str, ranks: tuple[int, ...], waited: float) -> None:
        """Raise if it is no use to wait any longer for what was asked of these ranks of the world."""


class Work:
    """Something begun that is not yet done: arrays on their way."""

    __slots__ = ("asked", "ranks", "watch")

    def __init__(self, asked: str, ranks: tuple[int, ...], watch: Watch) -> None:
        self.asked = asked
        self.ranks = ranks  # of the world, which must all take part
        self.watch = watch

    def done(self) -> bool:
        """Tell whether it is done, and help it on its way."""
        return self.go_on(1)

    def go_on(self, tries: int) -> bool:
        """Ask the engine so many times whether it is done, which is what moves it on."""
        raise NotImplementedError

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            DistributedError: the ranks did not ask for the same.
            RankFailedError: another rank ended, or the timeout is over.
        """
        if not self.go_on(_TRIES):
            began = looked = time.perf_counter()
            while not self.go_on(_TRIES):
                looked = self._pause(began, looked)

    def is_moving(self) -> bool:
        """Tell whether all that it needs are there, so that it is a matter of moving bytes."""
        return False

    def _pause(self, began: float, looked: float) -> float:
        """Leave the core to others for a moment, and look at the watch now and then; returns when that was."""
        now = time.perf_counter()
        if now - looked > _LOOK:
            looked = now
            self.watch.look(self.asked, self.ranks, now - began)
        if now - began > _AWAKE and not self.is_moving():
            time.sleep(_NAP)
        else:
            _let_others_run()
        return looked


_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has none

_TRIES = 8  # between two pauses: fewer, and the bytes move slower; more, and ranks that share a core starve each other
_LOOK = 1e-3  # seconds between two looks at the watch
_AWAKE = 0.2  # seconds after which a wait for others is a long one, and sleeps in its pauses
_NAP = 1e-4


class Group:
    """Some of the ranks, and what they do together.

    `rank` is this process's place among them (-1 where it is not one of them), `size` their number and `ranks`
    what they are called in the whole world.
    """

    def __init__(self, ranks: Sequence[int], rank: int, watch: Watch) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.watch = watch
        self.links: dict[tuple[int, int], int] = {}  # how many values went from one rank to another: see `_pipeline`

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ranks {self.ranks}>"

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        """Begin to reduce an array over the ranks, in place; `source` holds the values if `array` does not.

        `more`, here and in the other methods, is what else must be the same on all ranks.
        """
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

    def start_agree(self, asked: str, facts: str = "") -> Work:
        """Begin to find out whether all ranks brought the same facts."""
        raise NotImplementedError

    def agree(self, asked: str, facts: str = "") -> None:
        """Raise DistributedError, on every rank, unless all of them brought the same facts."""
        self.start_agree(asked, facts).wait()


class Outside(Group):
    """A group that this rank is not in: there is nothing it can do there."""

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS_ONLY:
            ranks = ", ".join(map(str, self.ranks))
            raise errors.DistributedError(
                f"{name.removeprefix('start_')} was called on a group of ranks {ranks}, to which this rank does not "
                "belong; call it there only: if distributed.rank(group) >= 0: ..."
            )
        return super().__getattribute__(name)


_MEMBERS_ONLY = frozenset(name for name in vars(Group) if not name.startswith("_"))


def described(array: Any, asked: str, more: str = "") -> tuple[str, str, tuple[int, ...], Any, str]:
    """Return what must be the same on every rank of something asked for with an array."""
    return (asked, libraries.namespace(array).__name__, array.shape, array.dtype, more)


class _Posted(Work):
    """What the engine has requests for, or will have, and what went wrong with it."""

    __slots__ = ("_error", "_requests")

    def __init__(self, asked: str, ranks: tuple[int, ...], watch: Watch, requests: Iterable[Any] | None) -> None:
        super().__init__(asked, ranks, watch)
        self._requests = None if requests is None else list(requests)
        self._error: errors.DistributedError | None = None

    def _have_come(self, requests: list[Any], tries: int) -> bool:
        """Tell whether the requests are done; then raise what went wrong."""
        try:
            if self._error is None and not _are_done(requests, tries, self.asked):
                return False
        except errors.DistributedError as error:
            self._error = error
        self.watch.kept.discard(self)
        if self._error is not None:
            raise self._error
        return True


class _Collective(_Posted):
    """Something all ranks of a group do together: first the word on what it is, then the arrays."""

    __slots__ = ("_finish", "_group", "_post", "_word", "_words")

    def __init__(
        self,
        group: MPIGroup,
        asked: str,
        digest: int,
        post: Callable[[], Iterable[Any]],
        finish: Callable[[], Any],
    ) -> None:
        super().__init__(asked, group.ranks, group.watch, None)
        self._group = group
        self._post = post
        self._finish = finish
        group.watch.check()
        with self.watch.lock:
            self._words = np.array((digest, -digest, 0, 0), np.int64)
            self._word = group.begin_word(self._words)
            group.waiting.append(self)
            self.watch.kept.add(self)
            group.advance(1)

    def is_moving(self) -> bool:
        return self._requests is not None

    def is_agreed(self, tries: int) -> bool:
        """Tell whether all ranks have said what they want."""
        return _are_done([self._word], tries, self.asked)

    def begin(self) -> None:
        """Put the arrays on the wire, if that is what all ranks want."""
        self._requests = []
        try:
            if self._words[2] == -self._words[3]:
                self._requests.extend(self._post())
            else:
                self._error = self._group.dispute(self.asked)
        except errors.DistributedError as error:
            self._error = error
        except RuntimeError as error:  # the engine's; it may be of another operation than the one waited for
            self._error = errors.DistributedError(f"{self.asked}: the engine says: {error}")

    def go_on(self, tries: int) -> bool:
        with self.watch.lock:
            if self._requests is None:
                self._group.advance(tries)
            if self._requests is None or not self._have_come(self._requests, tries):
                return False
            self._finish()
            self._finish = tuple
            return True


class _Transfer(_Posted):
    """Arrays on their way between two ranks."""

    __slots__ = ()

    def __init__(self, asked: str, ranks: tuple[int, ...], watch: Watch, requests: Iterable[Any]) -> None:
        super().__init__(asked, ranks, watch, requests)
        watch.kept.add(self)

    def go_on(self, tries: int) -> bool:
        with self.watch.lock:
            return self._have_come(self._requests or [], tries)


def _are_done(requests: list[Any], tries: int, asked: str) -> bool:
    """Test requests so many times; those that are done are taken out."""
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
        raise errors.DistributedError(f"{asked}: the engine says: {error}") from error
    return True


def duplicate(comm: Any, ranks: tuple[int, ...], watch: Watch) -> Any:
    """Return a new communicator of the same ranks, all of whom must come here."""
    made, request = comm.Idup()
    _Transfer("the making of a group of ranks", ranks, watch, [request]).wait()
    return made


class MPIGroup(Group):
    """Ranks connected by MPI; it carries NumPy arrays."""

    def __init__(self, mpi: Any, comm: Any, ranks: Sequence[int], watch: Watch) -> None:
        super().__init__(ranks, comm.Get_rank(), watch)
        self.mpi = mpi
        self._comm = comm
        # Words, disputes and arrays have a communicator each, so that none meets the other's messages.
        self._words, self._disputes = (duplicate(comm, self.ranks, watch) for _ in range(2))
        self.waiting: deque[_Collective] = deque()
        self._texts: dict[tuple[Any, ...], tuple[str, int]] = {}

    def part(self, ranks: Sequence[int]) -> Group:
        """Return a group of some of these ranks, all of whom must come here with the same ones."""
        inner = self._comm.Get_group()
        with self.watch.lock:
            comm = self._comm.Create(inner.Incl(ranks))
        named = [self.ranks[k] for k in ranks]
        if comm == self.mpi.COMM_NULL:
            return Outside(named, -1, self.watch)
        return type(self)(self.mpi, comm, named, self.watch)

    def free(self) -> None:
        """Give the communicators back; all ranks must come here."""
        for comm in (self._words, self._disputes, self._comm):
            comm.Free()

    # ------------------------------------------------------------ agreeing

    def begin_word(self, words: Any) -> Any:
        """Begin to reduce the first two numbers to the least over the ranks, into the last two."""
        return self._words.Iallreduce(words[:2], words[2:], self.mpi.MIN)

    def advance(self, tries: int) -> None:
        """Post what the ranks have agreed on, in the order in which it was asked for."""
        waiting = self.waiting
        while waiting and waiting[0].is_agreed(tries):
            waiting.popleft().begin()

    def dispute(self, asked: str) -> errors.DistributedError:
        """Return the error that names what each rank asked for; all ranks are here."""
        texts = self._tell(self._disputes, asked)
        by_text: dict[str, list[int]] = {}
        for rank, text in zip(self.ranks, texts, strict=True):
            by_text.setdefault(text, []).append(rank)
        found = "; ".join(f"{_named(ranks)}: {text.splitlines()[0]}" for text, ranks in by_text.items())
        error = errors.DistributedError(
            f"the ranks did not ask for the same: {found}. Every rank must call the same functions in the same order, "
            "with equal shapes, dtypes and options"
        )
        error.asked = tuple(texts)
        return error

    def _tell(self, comm: Any, text: str) -> list[str]:
        """Gather a text of every rank, all of whom are known to come here."""
        mine = np.frombuffer(text.encode(), np.uint8)
        counts = np.empty(self.size, np.int64)
        asked = "the exchange of texts"
        _Transfer(asked, self.ranks, self.watch, [comm.Iallgather(np.array([mine.size], np.int64), counts)]).wait()
        sizes = counts.tolist()
        found = np.empty(sum(sizes), np.uint8)
        starts = [sum(sizes[:k]) for k in range(self.size)]
        place = [found, (sizes, starts), self.mpi.BYTE]
        _Transfer(asked, self.ranks, self.watch, [comm.Iallgatherv([mine, self.mpi.BYTE], place)]).wait()
        return [found[a : a + n].tobytes().decode() for a, n in zip(starts, sizes, strict=True)]

    def _start(
        self, key: tuple[Any, ...], post: Callable[[], Iterable[Any]], finish: Callable[[], Any] = tuple
    ) -> Work:
        self.watch.let_go()
        return _Collective(self, *self._said(key), post, finish)

    def _said(self, key: tuple[Any, ...]) -> tuple[str, int]:
        """Return the text of what is asked for and its digest, which stand for it among the ranks."""
        known = self._texts.get(key)
        if known is None:
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            asked, *rest = key
            text = "{} of a {} array of shape {} and dtype {}{}".format(*key) if rest else asked
            digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
            known = self._texts[key] = (text, digest)
        return known

    def start_agree(self, asked: str, facts: str = "") -> Work:
        return self._start((f"{asked} ({facts})" if facts else asked,), tuple)

    def exchange(self, text: str) -> list[str]:
        self.agree("an exchange of texts")
        return self._tell(self._disputes, text)

    # ------------------------------------------------------------ arrays

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        self._check(array, "all_reduce")
        check_op(op, array.dtype)
        source = array if source is None else source
        asked = described(array, f"all_reduce(op={op!r})", more)
        wire, sent = carried(array, source, op)
        reduce = {"sum": "SUM", "mean": "SUM", "prod": "PROD"}.get(op)

        def post() -> list[Any]:
            how = getattr(self.mpi, reduce) if reduce else self._selecting(op)
            place = self.mpi.IN_PLACE
            return [
                self._comm.Iallreduce(place if sent is wire else one, into, how)
                for one, into in zip(pieces(sent), pieces(wire), strict=True)
            ]

        return self._start(asked, post, lambda: received(array, wire, op, self.size))

    def _selecting(self, op: str) -> Any:
        """Return min or max as an operation of MPI that takes the ranks in order.

        MPI's own leaves it open which of a NaN and a number, or of two zeros, it takes, and ranks may come to differ.
        """
        known = self.watch.__dict__.setdefault("selecting", {})
        if op not in known:
            choose = np.minimum if op == "min" else np.maximum

            def select(one: Any, into: Any, datatype: Any) -> None:
                dtype = np.dtype(datatype.typechar)
                found = np.frombuffer(into, dtype)
                choose(np.frombuffer(one, dtype), found, out=found)

            known[op] = self.mpi.Op.Create(select, commute=False)
        return known[op]

    def all_gather(self, array: Any, more: str = "") -> Any:
        self._check(array, "all_gather", written=False)
        out = np.empty((self.size, *array.shape), array.dtype)
        mine, found = as_bytes(array), as_bytes(out).reshape(self.size, -1)

        def post() -> list[Any]:
            if array.nbytes * self.size <= _PIECE:
                return [self._comm.Iallgather(mine, found)]
            return [
                self._comm.Ibcast(piece, root)
                for root in range(self.size)
                for piece in pieces(self._own(found[root], mine, root))
            ]

        self._start(described(array, "all_gather", more), post).wait()
        return out

    def _own(self, row: Any, mine: Any, root: int) -> Any:
        if root == self.rank:
            row[...] = mine
        return row

    def broadcast(self, array: Any, root: int, more: str = "") -> None:
        self._check(array, "broadcast")
        flat = as_bytes(array)
        asked = described(array, f"broadcast from rank {self.ranks[root]}", more)
        self._start(asked, lambda: [self._comm.Ibcast(piece, root) for piece in pieces(flat)]).wait()

    def start_send(self, array: Any, to: int, tag: int = 0) -> Work:
        self._check(array, "send", written=False)
        asked, _ = self._said(described(array, f"send to rank {self.ranks[to]}"))
        self.watch.check()
        with self.watch.lock:
            requests = [self._comm.Isend(piece, to, tag) for piece in pieces(as_bytes(array))]
        return _Transfer(asked, (self.ranks[to],), self.watch, requests)

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        self._check(array, "recv")
        asked = f"recv from rank {self.ranks[source]}"
        asked = f"{asked} of {what}" if what else self._said(described(array, asked))[0]
        parts = pieces(as_bytes(array))
        self.watch.check()
        with self.watch.lock:
            requests = [_Receiving(self.mpi, self._comm.Irecv(p, source, tag), p.nbytes, asked) for p in parts]
        return _Transfer(asked, (self.ranks[source],), self.watch, requests)

    def _check(self, array: Any, asked: str, *, written: bool = True) -> None:
        if not isinstance(array, np.ndarray):
            raise errors.DistributedError(
                f"{asked} was given a {type(array).__module__} array; these ranks are connected by MPI, which carries "
                "NumPy arrays: begin with distributed.init('nccl'), or move it with .to('cpu')"
            )
        check_plain(array, asked, written=written)


class _Receiving:
    """A request for a message, which must have the size that was expected."""

    __slots__ = ("_asked", "_mpi", "_nbytes", "_request")

    def __init__(self, mpi: Any, request: Any, nbytes: int, asked: str) -> None:
        self._mpi = mpi
        self._request = request
        self._nbytes = nbytes
        self._asked = asked

    def Test(self) -> bool:  # noqa: N802  # as MPI's requests have it
        status = self._mpi.Status()
        try:
            arrived = self._request.Test(status)
        except self._mpi.Exception as error:
            raise errors.DistributedError(f"{self._asked}: the engine says: {error}") from error
        if arrived and (found := status.Get_count(self._mpi.BYTE)) != self._nbytes:
            raise errors.DistributedError(
                f"{self._asked} expected {self._nbytes} bytes, and {found} came; both ranks must name the same shape "
                "and dtype"
            )
        return bool(arrived)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


# ---------------------------------------------------------------- what is put on the wire


def check_plain(array: Any, asked: str, *, written: bool) -> None:
    """Refuse an array that cannot be carried as it lies in memory."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{asked} carries contiguous arrays; found strides {array.strides} and shape {array.shape}")
    if written and not memory.is_writeable(array):
        raise ValueError(f"{asked} writes to its array; found one that is read-only")
    if array.dtype.kind not in "biufc" and not libraries.is_differentiable(array.dtype):
        raise errors.DtypeError(f"{asked} carries numbers; found dtype {array.dtype}")


def check_op(op: str, dtype: Any) -> None:
    """Refuse a reduction that is not known, or has no meaning for this dtype."""
    if op not in OPS:
        raise ValueError(f"all_reduce knows the ops {', '.join(map(repr, OPS))}; found {op!r}")
    if op == "mean" and not libraries.is_differentiable(dtype) and dtype.kind not in "fc":
        raise errors.DtypeError(f"all_reduce: a mean of {dtype} would be rounded; convert to a floating dtype first")
    if op in ("min", "max") and dtype.kind == "c":
        raise errors.DtypeError(f"all_reduce: complex numbers have no order, so no {op}; reduce a real part of them")
    if op == "sum" and dtype.kind == "b":
        raise errors.DtypeError("all_reduce: a sum of bool is a count; convert to an integer dtype, or use op='max'")


def carried(array: Any, source: Any, op: str) -> tuple[Any, Any]:
    """Return what is reduced for an array, and from what: both flat, in a dtype the engine adds up well."""
    if is_half(array.dtype):
        wire = source.astype(np.float32).reshape(-1)
        return wire, wire
    flat = array.reshape(-1)
    if array.dtype.kind == "b":
        flat = flat.view(np.uint8)
    return flat, flat if source is array else source.reshape(-1).view(flat.dtype)


def received(array: Any, wire: Any, op: str, size: int) -> None:
    """Finish a reduction: the mean, and back to the array's own dtype."""
    if op == "mean":
        if size & (size - 1) or wire.dtype.kind == "c":
            wire /= size
        else:  # by a power of two: the same bits, in half the time
            wire *= 1 / size
    if wire.dtype != array.dtype and array.dtype.kind != "b":
        array[...] = wire.reshape(array.shape)


def as_bytes(array: Any) -> Any:
    """Return the memory of a contiguous array as bytes: dtypes that the engine does not know are carried too."""
    return array.reshape(-1).view(np.uint8)


def pieces(flat: Any) -> list[Any]:
    """Return a flat array in pieces that one call can carry; the same object where it is one."""
    if flat.nbytes <= _PIECE:
        return [flat] if flat.size else []
    step = _PIECE // flat.itemsize
    return [flat[k : k + step] for k in range(0, flat.size, step)]
