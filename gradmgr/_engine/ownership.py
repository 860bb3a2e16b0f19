"""Gradient buffers: which of them a backward pass may add into, and how contributions add up."""

from __future__ import annotations

import operator
from typing import Any

from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.listening import computed
from gradmgr._engine.tensor import Tensor, wrap

# Gradients by node id.
Grads = dict[Any, Any]


class Ownership(set[Any]):
    """The node ids of values whose gradient is in a buffer that this backward pass made and may add into.

    There are two ways into it. `own_buffer` says that a buffer was made for this gradient alone. `own_sum` says that
    the gradient is a new sum; which counts only where gradients are plain arrays. Both are the set's `add` here, so
    that generated vjps call no Python.
    """

    __slots__ = ()

    # Whether gradients are plain arrays and not recorded.
    plain = True
    # Whether, inside vmap, gradients may be batched arrays.
    batched = False
    # Whether what a leaf receives may be a RowSparse that the user did not ask for.
    takes_rows = False

    own_buffer = set.add
    own_sum = set.add


class OwnershipForGrad(Ownership):
    """Ownership where the gradients of leaves are for `.grad`, and are plain arrays."""

    __slots__ = ()

    takes_rows = True


class RecordedOwnership(Ownership):
    """Ownership where gradients are recorded: they may be Tensors, whose history names every contribution."""

    __slots__ = ()

    plain = False

    def own_sum(self, node_id: Any) -> None:
        """Ignore a sum: adding into it later would change what is recorded."""


class BatchedOwnership(RecordedOwnership):
    """Ownership inside vmap: a sum that is one for all examples could not take a batched contribution."""

    __slots__ = ()

    batched = True


def accumulate(grads: Grads, owned: Ownership, node_id: Any, g: Any) -> None:
    """Add one contribution: the first by reference, the second into a new buffer, later ones into that."""
    h = grads.get(node_id)
    if h is None:
        grads[node_id] = g
    elif node_id in owned:
        h += g
        grads[node_id] = h
    else:
        grads[node_id] = h + g
        owned.own_sum(node_id)


def contribute(grads: Grads, owned: Ownership, node_id: Any, g: Any) -> None:
    """Do as `accumulate` where a listener is told of the sum."""
    h = grads.get(node_id)
    if h is None:
        grads[node_id] = g
    elif node_id in owned:
        grads[node_id] = computed(operator.iadd, h, g)
    else:
        grads[node_id] = computed(operator.add, h, g)
        owned.own_sum(node_id)


def start_gradient(grads: Grads, owned: Ownership, node_id: Any, buffer: Any) -> None:
    """Enter a buffer that was made for this gradient alone as its first contribution, to be added into.

    Where gradients are recorded it becomes a Tensor, as a plain array could not take what a recorded contribution
    adds; so it does inside vmap, where a buffer for all examples could not take a batched contribution.
    """
    stays = owned.plain or (owned.batched and is_batched(buffer)) or isinstance(buffer, Tensor)
    grads[node_id] = buffer if stays else wrap(buffer)
    owned.own_buffer(node_id)
