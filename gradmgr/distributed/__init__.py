"""Data-parallel and pipelined training over MPI or NCCL."""

from gradmgr.distributed._buckets import make_allreduce_cb
from gradmgr.distributed._collectives import all_gather, all_reduce, barrier, broadcast
from gradmgr.distributed._data import DistributedSampler, bcast_parameters, save
from gradmgr.distributed._engine import Group
from gradmgr.distributed._pipeline import recv, send
from gradmgr.distributed._world import finalize, init, is_initialized, new_group, rank, size

__all__ = [
    "DistributedSampler",
    "Group",
    "all_gather",
    "all_reduce",
    "barrier",
    "bcast_parameters",
    "broadcast",
    "finalize",
    "init",
    "is_initialized",
    "make_allreduce_cb",
    "new_group",
    "rank",
    "recv",
    "save",
    "send",
    "size",
]
