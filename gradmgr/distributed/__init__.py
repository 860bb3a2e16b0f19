"""Data-parallel and pipelined training over MPI or NCCL.

Each rank is a process that runs the same program, started by MPI's launcher, `mpiexec -n 4 python train.py`,
and begins with `init()`. Every rank must call the same collectives in the same order, with equal shapes and dtypes;
where they do not, each of them raises DistributedError, which lists what each called. Every wait has an end: where
a rank fails, ends too early or does not come in time, the ranks that wait for it raise RankFailedError.

    >>> import gradmgr
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> distributed.bcast_parameters([w])
    >>> gm = gradmgr.GradManager().attach(w, distributed.make_allreduce_cb("mean"))
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    >>> distributed.finalize()
"""

from gradmgr.distributed._callbacks import make_allreduce_cb
from gradmgr.distributed._collectives import all_gather, all_reduce, barrier, broadcast, reduce_scatter
from gradmgr.distributed._compression import make_float16_allreduce_cb, make_topk_allreduce_cb
from gradmgr.distributed._data import DistributedSampler, bcast_parameters, save
from gradmgr.distributed._group import Group
from gradmgr.distributed._pipeline import recv, send
from gradmgr.distributed._sharded_optimizer import ZeroRedundancyOptimizer
from gradmgr.distributed._sync_batch_norm import SyncBatchNorm
from gradmgr.distributed._world import finalize, init, is_initialized, new_group, rank, size

__all__ = [
    "DistributedSampler",
    "Group",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "all_gather",
    "all_reduce",
    "barrier",
    "bcast_parameters",
    "broadcast",
    "finalize",
    "init",
    "is_initialized",
    "make_allreduce_cb",
    "make_float16_allreduce_cb",
    "make_topk_allreduce_cb",
    "new_group",
    "rank",
    "recv",
    "reduce_scatter",
    "save",
    "send",
    "size",
]
