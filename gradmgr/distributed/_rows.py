"""The all-reduce of gradients of rows: ranks gather the rows that any of them has, instead of whole tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine.backward import BackwardRun
from gradmgr._engine.row_sparse import row_sparse, stored_rows
from gradmgr._engine.tensor import Tensor, describe
from gradmgr.distributed import _world
from gradmgr.distributed._buckets import FAILED_BACKWARD, check_takeable
from gradmgr.distributed._group import Group
from gradmgr.manager import GradManager, get_backwarding_grad_manager

_UNREACHED = -1


class RowAllReduceCallback:
    """See `make_allreduce_cb`, with `sparse=True`."""

    def __init__(self, reduce_method: str, group: Group | None) -> None:
        self.reduce_method = reduce_method
        self._group = group
        self._rounds: dict[int, _Round] = {}  # by id of the manager, the backward of each

    def __repr__(self) -> str:
        return f"make_allreduce_cb({self.reduce_method!r}, sparse=True)"

    def begin(self, manager: GradManager) -> None:
        """Expect the gradients of this backward."""
        group = _world.group(self._group)
        if group.size > 1 or group.rank != 0:
            self._rounds[id(manager)] = _Round(self, group, manager.current_run())

    def __call__(self, t: Tensor, grad: Tensor) -> Any:
        """Take a gradient; return a future of what the ranks make of it."""
        found = self._rounds.get(id(get_backwarding_grad_manager()))
        return grad if found is None else found.take(t, grad)

    def finish(self, manager: GradManager) -> None:
        """Gather the rows of all ranks; tables that this rank did not reach receive those of the others."""
        found = self._rounds.pop(id(manager), None)
        if found is not None:
            found.gather()

    def abort(self, manager: GradManager) -> None:
        """Drop what was taken, and tell the other ranks."""
        found = self._rounds.pop(id(manager), None)
        if found is not None:
            found.cancel()


class _Round:
    """One backward: the gradients that have arrived, and what becomes of them."""

    def __init__(self, callback: RowAllReduceCallback, group: Group, run: BackwardRun) -> None:
        self._callback = callback
        self._group = group
        self._run = run
        self._tables = list(run.attached(callback))
        self._futures: dict[Tensor, _Future] = {}

    def take(self, t: Tensor, grad: Tensor) -> _Future:
        """Keep a gradient until all ranks have theirs."""
        check_takeable(grad)
        found = self._futures[t] = _Future(_rows_of(grad))
        return found

    def gather(self) -> None:
        """Give each future the sum or mean over the ranks."""
        for t in self._run.pending(self._callback):
            if t not in self._futures:
                raise errors.DistributedError(
                    f"the all-reduce of rows waits for {describe(t)}, whose chain has another future before it; attach "
                    "this callback as the first one"
                )
        if not self._tables:
            return
        own = [self._futures[t].content if t in self._futures else None for t in self._tables]
        xp = libraries.namespace(self._tables[0]._array)
        counts = xp.asarray([_UNREACHED if rows is None else len(rows.parts[0][0]) for rows in own], dtype=np.int64)
        listing = ", ".join([f"{t.dtype}{t.shape}" for t in self._tables])
        by_rank = self._group.all_gather(counts, f", rows of the tables {listing}").tolist()
        for k, t in enumerate(self._tables):
            lengths = [found[k] for found in by_rank]
            content = None if max(lengths) == _UNREACHED else self._gathered(t, own[k], lengths)
            if t in self._futures:
                self._futures[t].content = content
            else:
                self._run.deliver(t, _Future(content), self._callback)

    def _gathered(self, t: Tensor, own: TableRows | None, lengths: list[int]) -> TableRows:
        """Return the sum or mean of the rows that the ranks have, of which there are so many."""
        xp, longest = libraries.namespace(t._array), max(lengths)
        rows = xp.zeros(longest, np.int64)
        values = xp.zeros((longest, *t.shape[1:]), t.dtype.newbyteorder("="))
        if own is not None:
            count = len(own.parts[0][0])
            rows[:count], values[:count] = own.parts[0]
        all_rows, all_values = self._group.all_gather(rows), self._group.all_gather(values)
        parts = tuple([(all_rows[k, :n], all_values[k, :n]) for k, n in enumerate(lengths) if n != _UNREACHED])
        total = TableRows(t.shape, t.dtype, parts).coalesced()
        return total.over(self._group.size) if self._callback.reduce_method == "mean" else total

    def cancel(self) -> None:
        """Tell the ranks that wait for this one of the failure, where they gather."""
        try:
            self._group.start_agree(FAILED_BACKWARD)
        except errors.DistributedError:  # the connection is lost, and the error that is raised already says more
            return


class _Future:
    """A gradient of rows that is being reduced."""

    __slots__ = ("content",)

    def __init__(self, content: TableRows | None) -> None:
        self.content = content

    def get(self) -> Tensor | None:
        """Return the gradient; None if no rank reached the table."""
        return None if self.content is None else row_sparse(self.content)


def _rows_of(grad: Tensor) -> TableRows:
    """Return the rows of a gradient, coalesced: of one of a whole table those that are not 0."""
    content = stored_rows(grad)
    if content is not None:
        return content.coalesced()
    a = grad._array
    rows = libraries.namespace(a).flatnonzero((a != 0).reshape((len(a), -1)).any(axis=1))
    return TableRows(a.shape, a.dtype, ((rows, a[rows]),), is_coalesced=True)
