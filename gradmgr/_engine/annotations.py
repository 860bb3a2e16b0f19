"""What is known of the values on a tape beyond its entries: hooks, metadata, wanted gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from gradmgr._engine.hooks import ValueHooks
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor


class Annotations:
    """Hooks and other data attached to the values of one tape, by node id; most tapes have none.

    Attributes:
        hooks: on values and on the ops that computed them.
        metadata: of graph nodes.
        retaining: tensors whose gradient is to be kept in `.grad`.
        retained: those of them that this backward reached, with the gradients.
        gathered: what hooks on several tensors have seen in this backward.
        endings: functions to call when this backward is done.
        roots: (node id, zeros) pairs at which every backward begins, besides those it is given.
        index: where entries stand, by `id` of their node ids, for the first `indexed` entries: guesses, since a
            sweep moves them.
    """

    __slots__ = ("endings", "gathered", "hooks", "index", "indexed", "metadata", "retained", "retaining", "roots")

    def __init__(self) -> None:
        self.hooks: dict[Any, ValueHooks] = {}
        self.metadata: dict[Any, dict[Any, Any]] = {}
        self.retaining: list[weakref.ref[Tensor]] = []
        self.retained: list[tuple[Tensor, Any]] = []
        self.gathered: dict[Any, list[Any]] = {}
        self.endings: list[Callable[[], Any]] = []
        self.roots: list[tuple[Any, Any]] = []
        self.index: dict[int, int] = {}
        self.indexed = 0

    def __bool__(self) -> bool:
        return bool(self.hooks or self.metadata or self.retaining)

    def references(self, node_id: Any) -> int:
        """Return how often a node id is held here; a sweep must not mistake that for a user's reference."""
        return (node_id in self.hooks) + (node_id in self.metadata)

    def drop(self, node_id: Any) -> None:
        """Forget a value."""
        for known in (self.hooks, self.metadata):
            known.pop(node_id, None)

    def retaining_by_id(self, tape: Recorder) -> dict[Any, list[Tensor]]:
        """Return the tensors under retain_grad by the node ids that they have now; leaves are left out."""
        found: dict[Any, list[Tensor]] = {}
        for ref in self.retaining:
            t = ref()
            if t is not None and (node_id := tape.node_id_of(t)) is not None and tape.leaf_ids.get(t) != node_id:
                found.setdefault(node_id, []).append(t)
        return found
