"""`make_allreduce_cb`: the callback that reduces gradients over the ranks."""

from __future__ import annotations

from typing import Literal, overload

from gradmgr.distributed._buckets import AllReduceCallback
from gradmgr.distributed._group import Group
from gradmgr.distributed._rows import RowAllReduceCallback


@overload
def make_allreduce_cb(
    reduce_method: str = "mean", *, bucket_bytes: int = 25 << 20, group: Group | None = None
) -> AllReduceCallback: ...
@overload
def make_allreduce_cb(
    reduce_method: str = "mean", *, bucket_bytes: int = 25 << 20, group: Group | None = None, sparse: Literal[True]
) -> RowAllReduceCallback: ...
def make_allreduce_cb(
    reduce_method: str = "mean", *, bucket_bytes: int = 25 << 20, group: Group | None = None, sparse: bool = False
) -> AllReduceCallback | RowAllReduceCallback:
    """Make the callback that gives every rank the mean, or sum, of all ranks' gradients.

    Attach it to the same parameters, in the same order, on every rank. It may have any place in a chain of callbacks:
    it reduces what those before it return, and those after it receive the result. Gradients are sent in buckets, each
    as soon as it is full, while backward goes on. A parameter that this rank did not reach receives what the others
    found; one that no rank reached receives nothing.

    Where backward fails on one rank, the others' raises DistributedError; the next backward works again. A rank that
    fails after it has sent all its gradients, as in a callback after this one, fails alone: the others have theirs.
    Threads of a rank that train at the same time need a `group` each; nothing else keeps their gradients apart.

    Args:
        reduce_method: "mean" or "sum" (also "MEAN", "SUM").
        bucket_bytes: the size of a bucket. One dtype's parameters share buckets, those attached last in the first.
        group: the ranks among which to reduce; None for all.
        sparse: whether the gradients are of rows, as `embedding(..., sparse=True)` gives them: the callback, which is
            to be attached to such tables alone, exchanges the rows that any rank has, at the end of backward. It has no
            `no_sync()`. Without it, such a gradient is reduced as that of a whole table.

    Returns:
        The callback, one object for all parameters. Its `no_sync()` is for the accumulation of gradients.

    Raises:
        ValueError: the method is neither "mean" nor "sum", or bucket_bytes is not positive.
        DistributedError: in `backward`, on every rank: the ranks attached different parameters (the error names them),
            or backward failed on another rank; or an outer recording would have to follow the gradients through the
            ranks: for that, call the differentiable `all_reduce` on what `backward` left in `.grad`.
        RankFailedError: in `backward`: another rank ended, or did not come in time.

    >>> import gradmgr
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w, distributed.make_allreduce_cb("mean"))
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    >>> distributed.finalize()
    """
    op = str(reduce_method).lower()
    if op not in ("mean", "sum"):
        raise ValueError(f"make_allreduce_cb takes the methods 'mean' and 'sum'; found {reduce_method!r}")
    if bucket_bytes <= 0:
        raise ValueError(f"make_allreduce_cb: a bucket must hold at least one byte; found {bucket_bytes!r}")
    return RowAllReduceCallback(op, group) if sparse else AllReduceCallback(op, bucket_bytes, group)
