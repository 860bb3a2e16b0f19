"""The all-reduce of `make_allreduce_cb`: gradients are averaged over the ranks while backward goes on.

All ranks start the same all-reduces in the same order, whatever each of them reached: the buckets follow from the
list of attached tensors alone, and a bucket that is full early waits for its turn. Each bucket ends with one number
for each of its parameters that says whether it was reached, so that the sum of those tells whether any rank did.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from operator import is_
from typing import Any

from gradmgr import errors
from gradmgr._arrays import batched, libraries, memory
from gradmgr._engine.backward import BackwardRun
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr.distributed import _world
from gradmgr.distributed._group import Group, named
from gradmgr.distributed._work import Work
from gradmgr.manager import GradManager, get_backwarding_grad_manager

_FIRST_BUCKET = "bucket 0 of the gradients"
FAILED_BACKWARD = "the rest of a backward that failed"  # asked for in place of an all-reduce
_PROGRESS_INTERVAL = 4  # gradients between two times that the all-reduces under way are helped on


class AllReduceCallback:
    """See `make_allreduce_cb`."""

    def __init__(self, reduce_method: str, bucket_bytes: int, group: Group | None) -> None:
        self.reduce_method = reduce_method
        self.bucket_bytes = bucket_bytes
        self._group = group
        self._synced = True
        self._even_alone = False  # a group of one rank has nothing to reduce, unless this is set
        self._layouts: weakref.WeakKeyDictionary[GradManager, Layout] = weakref.WeakKeyDictionary()
        self._rounds: dict[int, _Round] = {}  # by id of the manager, the last backward of each
        self._local: dict[int, _Local] = {}  # by id, gradients accumulated without being reduced

    def __repr__(self) -> str:
        return f"make_allreduce_cb({self.reduce_method!r}, bucket_bytes={self.bucket_bytes})"

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients stay this rank's own and add up in `.grad`; the next backward outside reduces all of it.

        With `n` backward passes in all, the result is that of one backward of the sum of their losses.
        """
        before, self._synced = self._synced, False
        try:
            yield
        finally:
            self._synced = before

    # ------------------------------------------------------------ called by backward

    def begin(self, manager: GradManager) -> None:
        """Lay out the buckets, and decide whether to take gradients one by one or all at once."""
        self._forget_reduced()
        group = _world.group(self._group)
        if group.size == 1 and group.rank == 0 and not self._even_alone:
            return
        run = manager.current_run()
        names = run.attached(self)
        tensors = list(names)
        if not self._synced:
            self._hold_local(tensors)
            return
        layout = self._layouts.get(manager)
        if layout is None or not layout.holds(tensors):
            for t, name in names.items():
                if run.chain(t).count(self) > 1:
                    raise _twice(t, name)
            layout = self._layouts[manager] = Layout(tensors, list(names.values()), self.bucket_bytes)
        found = self._rounds[id(manager)] = _Round(self, group, run, layout)
        if len(layout.counts) == 1 and not self._local:  # the last gradient starts the one bucket in any case
            run.collect(self, found.reduce_all)

    def __call__(self, t: Tensor, grad: Tensor) -> Any:
        """Take a gradient; return a future of what the ranks make of it."""
        manager = get_backwarding_grad_manager()
        found = self._rounds.get(id(manager))
        return grad if found is None else found.take(t, grad)

    def finish(self, manager: GradManager) -> None:
        """Start what is left, with zeros for what was not reached."""
        found = self._rounds.get(id(manager))
        if found is not None and not found.delayed_tensors():
            found.complete()

    def abort(self, manager: GradManager) -> None:
        """Drop what is in progress, and tell the other ranks."""
        found = self._rounds.pop(id(manager), None)
        if found is not None:
            found.cancel()

    # ------------------------------------------------------------ gradients accumulated under no_sync

    def _hold_local(self, tensors: list[Tensor]) -> None:
        self._local = {key: found for key, found in self._local.items() if found.tensor() is not None}
        for t in tensors:
            if self.local(t) is None:  # not one of before `.grad` was cleared
                self._local[id(t)] = _Local(t)

    def local(self, t: Tensor) -> _Local | None:
        """Return the part of `.grad` that is this rank's own, not reduced yet; None if there is none."""
        if not self._local:
            return None
        found = self._local.get(id(t))
        return found if found is not None and found.tensor() is t and t.grad is not None else None

    def _forget_reduced(self) -> None:
        """Forget the local gradients that backward passes have reduced which are over, and did not fail."""
        for key, found in list(self._rounds.items()):
            if found.run.is_over:
                del self._rounds[key]
                if self._local:
                    for t in found.reduced():
                        self._local.pop(id(t), None)


class _Local:
    """What stood in `.grad`, reduced, before further gradients were added to it without the other ranks."""

    __slots__ = ("reduced", "tensor")

    def __init__(self, t: Tensor) -> None:
        self.tensor = weakref.ref(t)
        held = t.grad
        self.reduced = None if held is None else held._array  # holding it keeps it from being written to

    def own(self, t: Tensor) -> Any:
        """Return what was added to `.grad` since."""
        total = t.grad._array  # type: ignore[union-attr]  # asked by `local`
        return total if self.reduced is None else total - self.reduced


class _Place:
    """Where a parameter lies in a bucket."""

    __slots__ = ("bucket", "dtype", "flag", "shape", "start", "stop", "tensor")

    def __init__(self, t: Tensor, bucket: int, start: int, flag: int) -> None:
        self.tensor = weakref.ref(t)
        self.shape = t.shape
        self.dtype = t.dtype
        self.bucket = bucket
        self.start = start
        self.stop = start + t.size
        self.flag = flag


class _Buffer:
    """The memory of a bucket, used again by the next backward unless something else still holds it."""

    def __init__(self, like: Any, size: int) -> None:
        self._xp, self._dtype = libraries.namespace(like), like.dtype.newbyteorder("=")
        self._size = size
        self._array: Any = None

    def fresh(self) -> Any:
        """Return an array that nothing else holds."""
        if self._array is None or not memory.is_private(self):
            self.drop()
            self._array = self._xp.empty(self._size, self._dtype)
        return self._array

    def drop(self) -> None:
        """Use other memory from here on: an all-reduce that was cut off may still write to this."""
        self._array = None


class Layout:
    """Which parameter lies in which bucket: those attached last in the first; each dtype has its own buckets."""

    def __init__(self, tensors: list[Tensor], names: list[str | None], bucket_bytes: int) -> None:
        self._refs = [weakref.ref(t) for t in tensors]
        self.places: dict[int, _Place] = {}
        self.counts: list[int] = []  # parameters by bucket
        likes: list[Any] = []
        sizes: list[int] = []
        filling: dict[Any, int] = {}  # the bucket that is not full, by dtype
        for t in reversed(tensors):
            kind = (t.dtype.newbyteorder("="), t.device)
            k = filling.get(kind)
            if k is None:
                k = filling[kind] = len(sizes)
                sizes.append(0)
                self.counts.append(0)
                likes.append(t._array)
            self.places[id(t)] = _Place(t, k, sizes[k], self.counts[k])
            sizes[k] += t.size
            self.counts[k] += 1
            if sizes[k] * t.itemsize >= bucket_bytes:
                del filling[kind]
        self.sizes = sizes  # without the numbers that say what was reached
        self.buffers = [_Buffer(a, size + count) for a, size, count in zip(likes, sizes, self.counts, strict=True)]
        kinds = [f"{t.dtype}{t.shape}" for t in tensors]
        lines = [f"{name!r}, {kind}" if name else kind for name, kind in zip(names, kinds, strict=True)]
        self.listing = "\n".join(lines)  # one parameter to a line
        self.digest = blake2b(self.listing.encode(), digest_size=8).hexdigest()
        of = f"of the gradients of {len(tensors)} parameters, {bucket_bytes} bytes each, {self.digest}"
        self.descriptions = [f", bucket {k} {of}" for k in range(len(sizes))]

    def holds(self, tensors: list[Tensor]) -> bool:
        """Return whether this is the layout of these tensors."""
        return len(tensors) == len(self._refs) and all(map(is_, [ref() for ref in self._refs], tensors))

    def view(self, flats: list[Any], t: Tensor) -> Any:
        """Return the part of the buckets' memory where a parameter lies."""
        place = self.places[id(t)]
        return flats[place.bucket][place.start : place.stop].reshape(place.shape)

    def tensors(self) -> list[Tensor]:
        """Return the parameters that are alive."""
        return [t for ref in self._refs if (t := ref()) is not None]


class _Round:
    """One backward: which gradients have arrived, which buckets are being reduced."""

    def __init__(self, callback: AllReduceCallback, group: Group, run: BackwardRun, layout: Layout) -> None:
        self.run = run
        self.layout = layout
        self._callback_ref = weakref.ref(callback)  # weak, as it keeps this, its last backward
        self._group = group
        self._missing = dict.fromkeys(layout.places)  # ids of what has not arrived; ordered
        self._left = list(layout.counts)  # by bucket, how many have not arrived
        self._flats: list[Any] = [None] * len(layout.counts)
        self._reached = [[0] * count for count in layout.counts]
        self._works: list[Work] = []  # the all-reduces of the buckets started, which are the first ones
        self._by_any: dict[int, list[bool]] = {}  # by bucket, which parameters any rank reached
        self._open = 0  # futures whose `get` was not called yet
        self._completed = False
        self._refused = False
        inputs = run.inputs
        self._inputs = None if inputs is None else frozenset(map(id, inputs))  # ids of what is to receive a gradient

    @property
    def _callback(self) -> AllReduceCallback:
        return self._callback_ref()  # type: ignore[return-value]  # alive, as the manager in backward keeps it so

    def reduced(self) -> list[Tensor]:
        """Return the parameters that are alive and received a gradient from this backward."""
        tensors = self.layout.tensors()
        return [t for t in tensors if self._inputs is None or id(t) in self._inputs]

    # ------------------------------------------------------------ gradients arrive

    def take(self, t: Tensor, grad: Tensor) -> Any:
        """Copy a gradient into its bucket, start the buckets that are full, help those under way."""
        if id(t) not in self._missing:  # attached again since the layout was made
            raise _twice(t, None)
        a = grad._array
        if self.run.is_recorded or a.__class__ is batched.Batched:
            check_takeable(grad)
        place = self.layout.places[id(t)]
        local = self._callback.local(t)
        self._store(id(t), place, a if local is None else a + local.own(t), 1)
        if self._left[place.bucket] == 0 or len(self._missing) % _PROGRESS_INTERVAL == 0:
            self._explaining(self._advance)
        return self._future(t, place, local)

    def reduce_all(self, gradients: dict[Tensor, Tensor]) -> None:
        """Reduce the gradients of all parameters together, in place of `take` for each."""
        layout, self._completed = self.layout, True
        flat = layout.buffers[0].fresh()
        self._flats[0] = flat
        has_all = self._gather(gradients, flat)
        self._missing = {}
        share = self._explaining(self._reduce, flat)
        gradients.clear()
        places = layout.places.values()
        by_any = [1] * len(places) if has_all else flat[layout.sizes[0] :].tolist()
        for place, is_reached in zip(places, by_any, strict=True):
            if is_reached:  # of new memory, as the bucket is used again
                part = flat[place.start : place.stop].reshape(place.shape)
                made = part.copy() if share is None else part * share
                made = made.astype(place.dtype, copy=False)
                gradients[place.tensor()] = wrap(made)  # type: ignore[index]  # alive, as backward keeps it so
        self._release()

    def _gather(self, gradients: dict[Tensor, Tensor], flat: Any) -> bool:
        """Lay the gradients into a bucket; return whether all parameters have one."""
        xp, rows, reached = libraries.namespace(flat), [], []
        is_recorded = self.run.is_recorded
        for place in self.layout.places.values():
            g = gradients.get(place.tensor())  # type: ignore[arg-type]  # alive, as backward keeps it so
            reached.append(g is not None)
            if g is None:
                rows.append(xp.zeros(place.stop - place.start, flat.dtype))
                continue
            a = g._array
            if is_recorded or a.__class__ is batched.Batched:
                check_takeable(g)
            rows.append(a.reshape(-1))
        rows.append(xp.asarray(reached, flat.dtype))
        xp.concatenate(rows, out=flat)
        return all(reached)

    def _reduce(self, flat: Any) -> float | None:
        self._left = []  # from here on the other ranks know of the one bucket
        return self._group.reduce_but_for_share(flat, self._callback.reduce_method, self.layout.descriptions[0])

    def _store(self, key: int, place: _Place, values: Any, reached: int) -> None:
        k = place.bucket
        flat = self._flats[k]
        if flat is None:
            flat = self._flats[k] = self.layout.buffers[k].fresh()
        flat[place.start : place.stop].reshape(place.shape)[...] = values
        self._reached[k][place.flag] = reached
        del self._missing[key]
        self._left[k] -= 1

    def _future(self, t: Tensor, place: _Place, local: _Local | None) -> _Future:
        self._open += 1
        if local is None:
            return _Future(self, place, None)
        self.run.replace(t)
        return _Future(self, place, local.reduced)

    def _advance(self) -> None:
        """Start the buckets whose turn has come, and help those under way."""
        works, left = self._works, self._left
        if works:
            works[-1].done()
        while len(works) < len(left) and left[len(works)] == 0 and (not works or works[0].is_transferring()):
            self._start_next()

    def _start_next(self) -> None:
        k = len(self._works)
        flat, size = self._flats[k], self.layout.sizes[k]
        flat[size:] = libraries.namespace(flat).asarray(self._reached[k], flat.dtype)
        op = self._callback.reduce_method
        self._works.append(self._group.start_all_reduce(flat, op, None, self.layout.descriptions[k]))

    def _explaining(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call what may raise because the ranks do not agree, and explain the error.

        `_refused` is set where the other ranks have the error too, so that `cancel` need not tell them.
        """
        try:
            return action(*args)
        except errors.DistributedError as error:
            failed = [
                rank for rank, text in zip(self._group.ranks, error.asked, strict=False) if text == FAILED_BACKWARD
            ]
            self._refused = isinstance(error, errors.RankFailedError) or (bool(error.asked) and not failed)
            if failed:
                raise errors.DistributedError(failed_there(failed)) from None
            did = "attached different parameters to the all-reduce callback"
            raise explained(error, self._group, _FIRST_BUCKET, self.layout.listing, did) from None

    # ------------------------------------------------------------ the end of backward

    def delayed_tensors(self) -> list[Tensor]:
        """Return the parameters reached whose gradients a future earlier in their chains still holds back."""
        return [t for t in self.run.pending(self._callback) if id(t) in self._missing] if self._missing else []

    def complete(self) -> None:
        """Fill in zeros for what was not reached, and start all buckets."""
        if self._completed:
            return
        self._completed = True
        for key in list(self._missing):
            place = self.layout.places[key]
            t = place.tensor()
            if t is None:  # cannot be: backward keeps it alive
                continue
            receives = self._inputs is None or key in self._inputs
            local = self._callback.local(t) if receives else None  # else it stays to be reduced
            self._store(key, place, 0 if local is None else local.own(t), 0 if local is None else 1)
            if receives:
                self.run.deliver(t, self._future(t, place, local), self._callback)
        self._explaining(self._start_all)

    def _start_all(self) -> None:
        self._advance()
        if len(self._works) < len(self._left):
            self._works[0].wait()  # then it is known whether the ranks agree
        self._advance()

    def result(self, place: _Place, reduced: Any) -> Tensor | None:
        """Return a reduced gradient; None if no rank reached the parameter."""
        if not self._completed:
            delayed = self.delayed_tensors()
            if delayed:
                name = self.run.attached(self._callback)[delayed[0]]
                raise errors.DistributedError(
                    f"the all-reduce of gradients waits for {describe(delayed[0], name)}, "
                    "whose chain has another future before it; attach the same chain to all parameters"
                )
            self.complete()
        flat = self._arrived(place.bucket)
        by_any = self._by_any[place.bucket][place.flag]
        self._open -= 1
        if self._open == 0:
            self._release()
        if not by_any:
            return None
        g = flat[place.start : place.stop].reshape(place.shape)
        if not place.dtype.isnative:
            g = g.astype(place.dtype)
        return wrap(g if reduced is None else (reduced + g).astype(place.dtype, copy=False))

    def _arrived(self, k: int) -> Any:
        """Wait for a bucket; return its memory."""
        flat = self._flats[k]
        if k not in self._by_any:
            self._explaining(self._works[k].wait)
            self._by_any[k] = (libraries.to_device(flat[self.layout.sizes[k] :], "cpu") > 0).tolist()
        return flat

    def _release(self) -> None:
        """Hold nothing of the buckets any more, so that they can be used again."""
        self._flats, self._works = [], []

    def cancel(self) -> None:
        """Drop the memory of the buckets under way; in place of each bucket not started, tell the ranks of the failure.

        The other ranks find that out when they start the bucket, so that none waits for this one.
        """
        for buffer in self.layout.buffers:
            buffer.drop()
        left = 0 if self._refused else len(self._left) - len(self._works)
        self._release()
        try:
            for _ in range(left):
                self._group.start_agree(FAILED_BACKWARD)
        except errors.DistributedError:  # the connection is lost, and the error that is raised already says more
            return


def _twice(t: Tensor, name: str | None) -> errors.DistributedError:
    return errors.DistributedError(
        f"the all-reduce callback is more than once in the chain of {describe(t, name)}; attach it once"
    )


def failed_there(ranks: list[int]) -> str:
    """Return the text of the error of the ranks whose backward did not fail."""
    return (
        f"{named(ranks)} started no all-reduce of gradients, but {FAILED_BACKWARD}: the error is written there, "
        "no gradient of this backward is reduced, and the next backward works again"
    )


def check_takeable(grad: Tensor) -> None:
    """Raise for a gradient that cannot be reduced: inside vmap, or where a recorder follows it."""
    if not grad.is_sparse and batched.is_batched(grad._array):
        raise errors.DistributedError("gradients are reduced over the ranks outside of vmap; call backward outside")
    if is_tracked(grad):
        raise errors.DistributedError(
            "a recording around this backward follows its gradients, and would lose them in the all-reduce callback: "
            "leave the callback out, and give the .grad that backward writes to gradmgr.distributed.all_reduce, which "
            "has a derivative"
        )


class _Future:
    """A gradient that is being reduced."""

    __slots__ = ("_place", "_reduced", "_round")

    def __init__(self, found: _Round, place: _Place, reduced: Any) -> None:
        self._round = found
        self._place = place
        self._reduced = reduced

    def get(self) -> Tensor | None:
        """Wait for the gradient; return it, or None if no rank reached the parameter."""
        return self._round.result(self._place, self._reduced)


# ---------------------------------------------------------------- errors


def explained(
    error: errors.DistributedError, group: Group, marker: str, listing: str, did: str
) -> errors.DistributedError:
    """Explain an error of ranks that called one operation on different tensors: name these; return others unchanged.

    Args:
        error: what the group raised, on all its ranks.
        group: the ranks.
        marker: text that is in the requests of all ranks where they asked the same: then all of them call this.
        listing: this rank's tensors, one to a line.
        did: what the ranks did, for the error.
    """
    if not error.asked or not all(marker in text for text in error.asked):
        return error
    try:
        listed = [text.splitlines() for text in group.exchange(listing)]
    except errors.DistributedError:  # what the first one says is more to the point
        return error
    for k in range(max(map(len, listed))):
        found = [names[k] if k < len(names) else "nothing" for names in listed]
        if len(set(found)) > 1:
            return errors.DistributedError(
                f"the ranks {did}: at place {k} {_by_rank(found, group.ranks)}; "
                "give the same tensors, in the same order, on every rank"
            )
    return error


def _by_rank(texts: list[str], ranks: tuple[int, ...]) -> str:
    """Return, in words, which ranks have which text."""
    ranks_by_text: dict[str, list[str]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        ranks_by_text.setdefault(text, []).append(str(rank))
    return "; ".join(
        f"rank{'s' * (len(found) > 1)} {', '.join(found)}: {text}" for text, found in ranks_by_text.items()
    )
