"""Collectives, differentiable: broadcast, all_reduce, all_gather, reduce_scatter, barrier.

The function that is differentiated is the sum of the losses of all ranks: a rank's gradient is the derivative of that
sum by the rank's own value. So the vjp of all_reduce is the sum of the cotangents over the ranks, that of all_gather
is each rank's part of the summed cotangents, that of reduce_scatter all of the gathered ones, that of broadcast their
sum, at the root. These are collectives again, so every rank must run backward through them, in the same order: a rank
whose own loss does not depend on the result of a collective begins its backward there too, with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import Batched
from gradmgr._engine.context import current, is_recording, recorders
from gradmgr._engine.custom import custom
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tape import add_root
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr.distributed._group import Group
from gradmgr.distributed._wire import check_op
from gradmgr.distributed._world import group as resolve_group
from gradmgr.manager import get_backwarding_grad_manager


def _contiguous(x: Any) -> Any:
    """Return a contiguous array in native byte order: the same object if it is one, else a copy."""
    if x.flags.c_contiguous and x.dtype.isnative and not isinstance(x, np.generic):
        return x
    return libraries.namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _reduce_array(x: Any, op: str, group: Group, operation: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, _reduce_array(x._array, op, group, operation))
    source = _contiguous(x)
    out = libraries.namespace(source).empty(source.shape, source.dtype)
    group.start_all_reduce(out, op, source, operation).wait()
    return out


def _scatter_array(x: Any, op: str, group: Group, operation: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, _scatter_array(np.moveaxis(x._array, 1, 0), op, group, operation))
    return group.reduce_scatter(_contiguous(x), op, operation)


def gather_array(x: Any, group: Group, operation: str) -> Any:
    """Return the plain arrays of all ranks along a new first axis, inside vmap of each example."""
    if isinstance(x, Batched):
        return Batched(x.level, np.moveaxis(gather_array(x._array, group, operation), 0, 1))
    return group.all_gather(_contiguous(x), operation)


def _broadcast_array(x: Any, root: int, group: Group, operation: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, _broadcast_array(x._array, root, group, operation))
    out = libraries.namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")
    group.broadcast(out, root, operation)
    return out


def _reduce_to_root(x: Any, root: int, group: Group, operation: str) -> Any:
    total = _reduce_array(x, "sum", group, operation)
    return total if group.rank == root else np.zeros_like(total)


_all_reduce: Callable[..., Any] = custom(
    "distributed.all_reduce",
    lambda x, op, group, operation: _reduce_array(x, op, group, operation),
    vjp={"x": lambda g, op, group: _apply_to_derivative(_all_reduce, g, op, group)},
    jvp={"x": lambda t, op, group: _apply_to_derivative(_all_reduce, t, op, group)},
)
_all_gather: Callable[..., Any] = custom(
    "distributed.all_gather",
    lambda x, group, operation: gather_array(x, group, operation),
    vjp={"x": lambda g, group: _apply_to_derivative(_reduce_scatter, g, "sum", group)},
    jvp={"x": lambda t, group: _apply_to_derivative(_all_gather, t, group)},
)
_reduce_scatter: Callable[..., Any] = custom(
    "distributed.reduce_scatter",
    lambda x, op, group, operation: _scatter_array(x, op, group, operation),
    vjp={"x": lambda g, op, group: _shared_evenly(_apply_to_derivative(_all_gather, g, group), op, group)},
    jvp={"x": lambda t, op, group: _apply_to_derivative(_reduce_scatter, t, op, group)},
)
_broadcast: Callable[..., Any] = custom(
    "distributed.broadcast",
    lambda x, root, group, operation: _broadcast_array(x, root, group, operation),
    vjp={"x": lambda g, root, group: _apply_to_derivative(_reduce, g, root, group)},
    jvp={"x": lambda t, root, group: _apply_to_derivative(_broadcast, t, root, group)},
)
_reduce: Callable[..., Any] = custom(
    "distributed.reduce",
    lambda x, root, group, operation: _reduce_to_root(x, root, group, operation),
    vjp={"x": lambda g, root, group: _apply_to_derivative(_broadcast, g, root, group)},
    jvp={"x": lambda t, root, group: _apply_to_derivative(_reduce, t, root, group)},
)


def _shared_evenly(g: Any, op: str, group: Group) -> Any:
    """Return the derivative of a sum, or that of a mean: one part of it for each rank."""
    return g * g.dtype.type(1 / group.size) if op == "mean" else g


def _apply(op: Any, x: Any, *params: Any) -> Any:
    """Apply a collective so that backward goes through it on each rank; the last parameter is the group."""
    *settings, group = params
    tracking = tracking_text(x)
    result = op(x, *settings, current_group(group), tracking)
    if isinstance(result, Tensor):
        add_root(result)
    if tracking:
        prepare_backward(group)
    return result


def current_group(group: Group) -> Group:
    """Return the group by which to communicate now: in backward the twin that `prepare_backward` has made.

    There, buckets of gradients start as soon as they can, so between these and other collectives there is no order.
    """
    return group if get_backwarding_grad_manager() is None else group.twin_if_made()


def prepare_backward(group: Group) -> None:
    """Make the group by which the derivatives of a collective communicate, where all ranks have just called it."""
    if get_backwarding_grad_manager() is None:
        group.twin()


def _apply_to_derivative(op: Any, x: Any, *params: Any) -> Any:
    """Apply a collective to a derivative; every open recorder records it, as on the other ranks.

    On those a gradient, or a tangent, may depend on tracked values, while that of this rank is a plain zero.
    """
    recording = _open_recorders()
    if any(not isinstance(x, Tensor) or rec.node_id_of(x) is None for rec in recording):
        given, a = x, bare(x)
        x = wrap(a)
        for rec in recording:
            node_id = rec.node_id_of(given) if isinstance(given, Tensor) else None
            if node_id is None:
                node_id = object() if rec.is_tape else libraries.namespace(a).zeros(a.shape, a.dtype)
            rec.track(x, node_id)
    return _apply(op, x, *params)


def total_of_derivative(x: Any, group: Group) -> Any:
    """Return the sum over the ranks of a derivative that every rank has, if only as zeros."""
    return _apply_to_derivative(_all_reduce, x, "sum", group)


def _open_recorders() -> list[Recorder]:
    return [rec for rec in recorders(current()) if rec.open and is_recording(rec)]


def tracking_text(x: Any) -> str:
    """Return text on how many managers track x, which must be the same on all ranks; empty where none does."""
    count = sum(rec.node_id_of(x) is not None for rec in _open_recorders()) if isinstance(x, Tensor) else 0
    return f", which {count} managers track" if count else ""


def _operand(x: Any, name: str) -> Any:
    if isinstance(x, Tensor):
        return x
    found = libraries.need_operand(x, name)
    return libraries.as_array(found)


@overload
def all_reduce(x: Tensor, op: str = ..., group: Group | None = ...) -> Tensor: ...
@overload
def all_reduce(x: Any, op: str = ..., group: Group | None = ...) -> Any: ...
def all_reduce(x: Any, op: str = "sum", group: Group | None = None) -> Any:
    """Reduce an array over the ranks, element by element; every rank receives the same bits.

    float16 and bfloat16 are added up, and divided, in float32. A NaN of any rank is in the result.

    Args:
        x: a Tensor or an array, of the same shape and dtype on every rank.
        op: "sum", "mean", "min", "max" or "prod"; the first two are differentiable. Integers have no mean.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array) of the shape and dtype of `x`.

    Raises:
        DistributedError: on every rank, unless all called this function with equal shapes, dtypes and ops.
        RankFailedError: another rank ended, or did not come within the timeout.

    Example:
        >>> from gradmgr import distributed
        >>> distributed.init("mpi")
        >>> int(distributed.all_reduce(1)) == distributed.size()
        True
        >>> distributed.finalize()
    """
    x, at = _operand(x, "all_reduce"), resolve_group(group)
    _check_reduction(x, op, "all_reduce")
    return _apply(_all_reduce, x, op, at)


def _check_reduction(x: Any, op: str, operation: str) -> None:
    check_op(op, x.dtype, operation)
    if op not in ("sum", "mean") and tracking_text(x):
        raise errors.UnsupportedFunctionError(
            f"{operation}(op={op!r}) has no derivative, and this tensor is tracked; give it x.detach(), or gather the "
            "values with all_gather and reduce them with gradmgr.numpy"
        )


@overload
def reduce_scatter(x: Tensor, op: str = ..., group: Group | None = ...) -> Tensor: ...
@overload
def reduce_scatter(x: Any, op: str = ..., group: Group | None = ...) -> Any: ...
def reduce_scatter(x: Any, op: str = "sum", group: Group | None = None) -> Any:
    """Reduce an array over the ranks and give each of them one row of the result: rank k receives row k.

    The result is that of `all_reduce(x, op)[rank]`, up to the order of the additions, for half of the bytes sent.
    float16 and bfloat16 are added up, and divided, in float32.

    Args:
        x: a Tensor or an array of shape (size, ...): one row for each rank, of the same shape and dtype on all of them.
        op: "sum", "mean", "min", "max" or "prod"; the first two are differentiable. Integers have no mean.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array) of shape `x.shape[1:]`.

    Raises:
        ShapeError: there is not one row for each rank.
        DistributedError: on every rank, unless all called this function with equal shapes, dtypes and ops.
        RankFailedError: another rank ended, or did not come within the timeout.

    Example:
        >>> import numpy
        >>> from gradmgr import distributed
        >>> distributed.init("mpi")
        >>> rows = numpy.ones((distributed.size(), 3))
        >>> distributed.reduce_scatter(rows, "mean")
        array([1., 1., 1.])
        >>> distributed.finalize()
    """
    x, at = _operand(x, "reduce_scatter"), resolve_group(group)
    _check_reduction(x, op, "reduce_scatter")
    if x.ndim == 0 or x.shape[0] != at.size:
        raise errors.ShapeError(
            f"reduce_scatter takes one row for each of the {at.size} ranks; found shape {x.shape}, whose first axis "
            "should have that length"
        )
    return _apply(_reduce_scatter, x, op, at)


@overload
def all_gather(x: Tensor, group: Group | None = ...) -> Tensor: ...
@overload
def all_gather(x: Any, group: Group | None = ...) -> Any: ...
def all_gather(x: Any, group: Group | None = None) -> Any:
    """Gather the arrays of all ranks, stacked along a new first axis; differentiable.

    Args:
        x: a Tensor or an array, of the same shape and dtype on every rank.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array) of shape (size, *x.shape), the same on every rank.

    Raises:
        DistributedError: on every rank, unless all called this function with equal shapes and dtypes.
        RankFailedError: another rank ended, or did not come within the timeout.

    >>> import numpy
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> found = distributed.all_gather(numpy.array([1.0, 2.0]))
    >>> found.shape == (distributed.size(), 2)
    True
    >>> distributed.finalize()
    """
    return _apply(_all_gather, _operand(x, "all_gather"), resolve_group(group))


@overload
def broadcast(x: Tensor, root: int = ..., group: Group | None = ...) -> Tensor: ...
@overload
def broadcast(x: Any, root: int = ..., group: Group | None = ...) -> Any: ...
def broadcast(x: Any, root: int = 0, group: Group | None = None) -> Any:
    """Give every rank what one of them holds; differentiable.

    Args:
        x: a Tensor or an array, of the same shape and dtype on every rank; only the root's values count. Where the
            root's is tracked, that of every other rank must be too: attach one of zeros.
        root: the rank of the group whose values are sent.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array), the same on every rank. `x` itself is not written to.

    Raises:
        DistributedError: on every rank, unless all called this function with equal shapes, dtypes and roots.
        RankFailedError: another rank ended, or did not come within the timeout.

    >>> import numpy
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.broadcast(numpy.array([1.0, 2.0]), root=0)
    array([1., 2.])
    >>> distributed.finalize()
    """
    x, at = _operand(x, "broadcast"), resolve_group(group)
    if not 0 <= root < at.size:
        raise ValueError(f"broadcast: the root is a rank from 0 to {at.size - 1}; found {root}")
    return _apply(_broadcast, x, int(root), at)


def barrier(group: Group | None = None) -> None:
    """Wait until every rank has called this.

    Raises:
        RankFailedError: another rank ended, or did not come within the timeout.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> distributed.barrier()
    >>> distributed.finalize()
    """
    resolve_group(group).agree("barrier")
