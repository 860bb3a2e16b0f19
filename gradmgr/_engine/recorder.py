"""Recorders: what records operations. A tape records them for backward, forward mode computes tangents at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradmgr._engine.tensor import Tensor, wrap


class Recorder:
    """Records the operations of a context.

    A recorder gives each value that it tracks a node id: on a tape an object that names the value, in forward mode
    the cell that holds its tangent. The id is stored in one of three places. A Tensor has slots for one recorder's id
    (`_rec`, `_node_id`), which is all that the fast path needs. The ids of attached tensors, which several recorders
    may track, are also in `leaf_ids`. Where these slots are taken the id goes to the tensor's `_overflow_ids`.
    """

    __slots__ = ("__weakref__", "has_overflow_ids", "leaf_ids", "open", "outer", "trace_log")

    # Whether it is a Tape: no_grad pauses it, and the fast path deals with it inline.
    is_tape = False

    # Whether it is a transform's, as `grad` of a function: then what would cut a gradient raises, see `conversion`.
    is_of_transform = False

    def __init__(self, leaf_ids: dict[Tensor, Any] | None = None) -> None:
        self.outer: Any = None  # the context that was current when this recorder was entered
        self.leaf_ids = {} if leaf_ids is None else leaf_ids  # ids of attached tensors, which it also keeps alive
        self.open = False  # until it is entered
        self.trace_log: Any = None  # of a traced recording
        self.has_overflow_ids = False

    def close(self) -> None:
        """Forget everything and record nothing more; allowed at any time, and twice.

        That it is closed comes first: whatever an exception then leaves undone, nothing is recorded or counted.
        """
        self.open = False
        self.leaf_ids.clear()

    def node_id_of(self, t: Tensor) -> Any:
        """Return the node id of `t` on this recorder (in forward mode its tangent), None if it is not tracked."""
        if t._rec is self:
            return t._node_id
        node_id = self.leaf_ids.get(t)
        return overflow_id(t, self) if node_id is None and self.has_overflow_ids else node_id

    def node_ids_of(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the node id of each input of an op, None for each that is not tracked; None if none is."""
        node_ids = tuple([self.node_id_of(t) if isinstance(t, Tensor) else None for t in inputs])
        return node_ids if any(node_id is not None for node_id in node_ids) else None

    def track(self, t: Tensor, node_id: Any) -> None:
        """Give `t` this node id from now on."""
        rec = t._rec  # read once, as other threads set it
        if rec is None or rec is self or not rec.open:
            t._node_id = node_id
            t._rec = self
            return
        overflow = getattr(t, "_overflow_ids", None)
        kept = {rec: i for rec, i in overflow.items() if rec.open} if overflow else {}
        t._overflow_ids = {**kept, self: node_id}
        self.has_overflow_ids = True

    def untrack(self, t: Tensor) -> None:
        """Take its node id from `t`: it is not tracked any more."""
        self.leaf_ids.pop(t, None)
        if t._rec is self:
            t._rec = None
        overflow = getattr(t, "_overflow_ids", None)
        if overflow and self in overflow:
            t._overflow_ids = {rec: i for rec, i in overflow.items() if rec is not self}

    def record_op(
        self, op: Any, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        """Record that `op` computed `z`, a Tensor or a tuple of them.

        Args:
            op: the op.
            node_ids: of its inputs.
            values: the inputs, as handles that the recorders outside of this one track.
            out: the result or results, likewise.
            params: the op's further arguments.
            z: what the caller of the op gets.
        """
        raise NotImplementedError


def overflow_id(t: Tensor, rec: Recorder) -> Any:
    """Return the node id of `t` stored where the fast path does not look, or None."""
    overflow = getattr(t, "_overflow_ids", None)
    return overflow.get(rec) if overflow else None


def is_untracked(t: Tensor) -> bool:
    """Tell whether no open recorder has its node id in the tensor itself."""
    rec = t._rec  # read once, as other threads set it
    return rec is None or not rec.open


def is_tracked_by(recorders: list[Recorder], value: Any) -> bool:
    """Tell whether a value is a Tensor that one of these recorders tracks."""
    return isinstance(value, Tensor) and any(rec.node_id_of(value) is not None for rec in recorders)


def snapshot(t: Any, recorders: Iterable[Recorder]) -> Any:
    """Return what to keep of `t`: a new Tensor that these recorders track as they track `t`, or the bare array.

    Never `t` itself, since the user may write to it in place afterwards. Of a tuple, the results of an op of several,
    each part.
    """
    if not isinstance(t, Tensor):
        return tuple([snapshot(part, recorders) for part in t]) if t.__class__ is tuple else t
    if t.is_sparse and not is_tracked_by([rec for rec in recorders if rec.open], t):
        return t.detach()  # in time for its rows
    handle = None
    for rec in recorders:
        node_id = rec.node_id_of(t) if rec.open else None
        if node_id is not None:
            if handle is None:
                handle = wrap(t._array)
            rec.track(handle, node_id)
    return t._array if handle is None else handle
