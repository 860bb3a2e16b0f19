"""Equal parameters on all ranks, a part of the data for each, and checkpoints that one rank writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradmgr import errors, serialization
from gradmgr._arrays import libraries
from gradmgr._engine.context import rebind
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._engine.views import check_kept
from gradmgr.distributed._buckets import Layout, explained
from gradmgr.distributed._group import Group
from gradmgr.distributed._world import group as resolve_group

_CHUNK = 25 << 20  # bytes that are sent at once
_BROADCAST = "bcast_parameters"


def bcast_parameters(
    tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor], root: int = 0, group: Group | None = None
) -> None:
    """Give every rank the values that one of them has; the Tensors stay the same objects.

    A recording takes the new values as constants, as it does any write in place of something it does not follow.

    Args:
        tensors: one Tensor, several, or a mapping of names, used in errors, to Tensors; the same on every rank.
        root: the rank of the group whose values are sent.
        group: which ranks; None for all.

    Raises:
        TypeError: an element is not a Tensor.
        ValueError: root is not a rank of the group.
        DistributedError: on every rank, where they gave different tensors; the error names them. Nothing has changed.
        RankFailedError: another rank ended, or did not come within the timeout.

    >>> from gradmgr import distributed, tensor
    >>> distributed.init()
    >>> w = tensor([1.0, 2.0])
    >>> distributed.bcast_parameters({"w": w})
    >>> w
    Tensor([1., 2.])
    >>> distributed.finalize()
    """
    at = resolve_group(group)
    if not 0 <= root < at.size:
        raise ValueError(f"bcast_parameters: the root is a rank from 0 to {at.size - 1}; found {root}")
    names, found = _named(tensors)
    for t in found:
        check_kept(t, "bcast_parameters")
    layout = Layout(found, names, _CHUNK)
    try:
        at.agree(_BROADCAST, f"root {root}, {len(found)} tensors, {layout.digest}")
    except errors.DistributedError as error:
        raise explained(error, at, _BROADCAST, layout.listing, "gave different tensors to bcast_parameters") from None
    flats = [buffer.fresh() for buffer in layout.buffers]
    if at.rank == root:
        for t in found:
            layout.view(flats, t)[...] = t._array
    for flat in flats:
        at.broadcast(flat, root)
    if at.rank != root:
        fresh = [wrap(layout.view(flats, t).astype(t.dtype)) for t in found]
        for t, values in zip(found, fresh, strict=True):
            rebind(t, values)


def _named(tensors: Any) -> tuple[list[str | None], list[Tensor]]:
    """Return names and Tensors, each Tensor once."""
    if isinstance(tensors, Mapping):
        pairs: list[tuple[str | None, Any]] = [(str(name), t) for name, t in tensors.items()]
    elif isinstance(tensors, Tensor) or not isinstance(tensors, Iterable) or libraries.is_array(tensors):
        pairs = [(None, tensors)]
    else:
        pairs = [(None, t) for t in tensors]
    for k, (name, t) in enumerate(pairs):
        if not isinstance(t, Tensor):
            raise TypeError(
                f"bcast_parameters takes Tensors; {repr(name) if name else f'element {k}'} is "
                f"{type(t).__module__}.{type(t).__name__}; for an array there is gradmgr.distributed.broadcast"
            )
    once = {id(t): (name, t) for name, t in reversed(pairs)}
    return [name for name, _ in reversed(once.values())], [t for _, t in reversed(once.values())]


def save(obj: Any, f: str | os.PathLike[str], *, group: Group | None = None) -> None:
    """Let rank 0 write a checkpoint by `gradmgr.save`; every rank calls it, and returns when the file is there.

    All ranks `gradmgr.load` it themselves.

    Args:
        obj: what to save; only that of rank 0 counts.
        f: the path.
        group: the ranks, the first of which writes; None for all.

    Raises:
        DistributedError: on the other ranks, where rank 0 raised something: what `gradmgr.save` raises.

    >>> import pathlib, tempfile
    >>> import gradmgr
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     distributed.save({"epoch": 3}, pathlib.Path(folder) / "state")
    ...     gradmgr.load(pathlib.Path(folder) / "state")
    {'epoch': 3}
    >>> distributed.finalize()
    """
    at = resolve_group(group)
    failed: Exception | None = None
    if at.rank == 0:
        try:
            serialization.save(obj, f)
        except Exception as error:  # re-raised; the other ranks wait for a result or an error
            failed = error
    said = at.exchange("" if failed is None else f"{type(failed).__name__}: {failed}")[0]
    if failed is not None:
        try:
            raise failed
        finally:
            del failed  # it refers to this frame
    if said:
        raise errors.DistributedError(f"rank {at.ranks[0]} could not save: {said}")


class DistributedSampler:
    """The indices of a data set that this rank processes, in order; as torch's `DistributedSampler`.

    All ranks have the same number: where the number of ranks does not divide the length, the first elements (of the
    shuffled order) are repeated, or, with `drop_last`, the last ones are left out. The order of an epoch follows from
    `seed` and the epoch's number alone, so it is the same on all ranks and in a resumed run.

    Args:
        dataset: anything with a length, or the length.
        num_replicas: the number of parts; None for the size of the group.
        rank: which part; None for that of this rank in the group.
        shuffle: whether to shuffle, in another order in each epoch.
        seed: the seed of the shuffling; the same on all ranks.
        drop_last: whether to leave elements out instead of repeating some.
        group: which ranks; None for all.

    Raises:
        ValueError: `rank` is out of range, or the length or the seed is negative.

    >>> from gradmgr.distributed import DistributedSampler
    >>> sampler = DistributedSampler(10, num_replicas=4, rank=1, shuffle=False)
    >>> list(sampler), len(sampler)
    ([1, 5, 9], 3)
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int | Sequence[int] = 0,
        drop_last: bool = False,
        *,
        group: Group | None = None,
    ) -> None:
        if num_replicas is None or rank is None:
            at = resolve_group(group)
            num_replicas = at.size if num_replicas is None else num_replicas
            rank = at.rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"DistributedSampler: rank must be from 0 to {num_replicas - 1}; found {rank}")
        self.length = int(dataset) if isinstance(dataset, (int, np.integer)) else len(dataset)
        if self.length < 0:
            raise ValueError(f"DistributedSampler: the length must not be negative; found {self.length}")
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.num_samples = self.length // num_replicas if drop_last else -(-self.length // num_replicas)
        np.random.SeedSequence(seed)  # raises here, not in the first epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; without this call, every epoch has the same order."""
        self.epoch = int(epoch)

    def indices(self, epoch: int | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return this rank's elements of an epoch, by default of the one that was set, as an array of int64."""
        order = np.arange(self.length)
        if self.shuffle:
            seed = np.atleast_1d(self.seed).tolist()
            np.random.default_rng([*seed, self.epoch if epoch is None else int(epoch)]).shuffle(order)
        total = self.num_samples * self.num_replicas
        return np.resize(order, total)[self.rank :: self.num_replicas].astype(np.int64)  # repeats, or cuts

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices().tolist())

    def __len__(self) -> int:
        return self.num_samples
