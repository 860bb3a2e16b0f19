"""Operations of all ranks together, differentiable: broadcast, all_reduce, all_gather, barrier.

What they differentiate is the sum over all ranks of each rank's loss: a rank's gradient tells how that sum changes
with the rank's own value. So the reverse of a sum over ranks is that sum of the cotangents, that of a gathering is
each rank's part of the summed cotangents, that of a broadcast is their sum, at the root. These are operations of all
ranks again, so every rank must run backward through them, in the same order: each backward begins there too, with
zeros, on a rank whose own loss does not depend on what came out.
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
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.distributed._engine import OPS, Group
from gradmgr.distributed._world import group as chosen


def _plain(x: Any) -> Any:
    """Return an array that lies in memory as the engines carry it; the same one if it does."""
    if x.flags.c_contiguous and x.dtype.isnative and not isinstance(x, np.generic):
        return x
    return libraries.namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _reduced(x: Any, op: str, group: Group, asked: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, _reduced(x._array, op, group, asked))
    source = _plain(x)
    out = libraries.namespace(source).empty(source.shape, source.dtype)
    group.start_all_reduce(out, op, source, asked).wait()
    return out


def _scattered(x: Any, group: Group, asked: str) -> Any:
    return _reduced(x, "sum", group, asked)[group.rank].copy()


def _gathered(x: Any, group: Group, asked: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, np.moveaxis(_gathered(x._array, group, asked), 0, 1))
    return group.all_gather(_plain(x), asked)


def _brought(x: Any, root: int, group: Group, asked: str) -> Any:
    if isinstance(x, Batched):
        return Batched(x.level, _brought(x._array, root, group, asked))
    out = libraries.namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")
    group.broadcast(out, root, asked)
    return out


def _summed_at(x: Any, root: int, group: Group, asked: str) -> Any:
    total = _reduced(x, "sum", group, asked)
    return total if group.rank == root else np.zeros_like(total)


_all_reduce: Callable[..., Any] = custom(
    "distributed.all_reduce",
    lambda x, op, group, asked: _reduced(x, op, group, asked),
    vjp={"x": lambda g, op, group: _onward(_all_reduce, g, op, group)},
    jvp={"x": lambda t, op, group: _onward(_all_reduce, t, op, group)},
)
_all_gather: Callable[..., Any] = custom(
    "distributed.all_gather",
    lambda x, group, asked: _gathered(x, group, asked),
    vjp={"x": lambda g, group: _onward(_reduce_scatter, g, group)},
    jvp={"x": lambda t, group: _onward(_all_gather, t, group)},
)
_reduce_scatter: Callable[..., Any] = custom(
    "distributed.reduce_scatter",
    lambda x, group, asked: _scattered(x, group, asked),
    vjp={"x": lambda g, group: _onward(_all_gather, g, group)},
    jvp={"x": lambda t, group: _onward(_reduce_scatter, t, group)},
)
_broadcast: Callable[..., Any] = custom(
    "distributed.broadcast",
    lambda x, root, group, asked: _brought(x, root, group, asked),
    vjp={"x": lambda g, root, group: _onward(_reduce, g, root, group)},
    jvp={"x": lambda t, root, group: _onward(_broadcast, t, root, group)},
)
_reduce: Callable[..., Any] = custom(
    "distributed.reduce",
    lambda x, root, group, asked: _summed_at(x, root, group, asked),
    vjp={"x": lambda g, root, group: _onward(_broadcast, g, root, group)},
    jvp={"x": lambda t, root, group: _onward(_reduce, t, root, group)},
)


def _everywhere(op: Any, x: Any, *params: Any) -> Any:
    """Do an operation of all ranks so that backward goes through it on each of them."""
    result = op(x, *params, _who_records(x))
    if isinstance(result, Tensor):
        add_root(result)
    return result


def _onward(op: Any, x: Any, *params: Any) -> Any:
    """Run an operation of all ranks for a derivative; every recorder records it, as on the other ranks.

    On those a gradient, or a tangent, may depend on tracked values, while that of this rank is a plain zero.
    """
    observing = _listening()
    if any(not isinstance(x, Tensor) or rec.node_id_of(x) is None for rec in observing):
        given, a = x, raw(x)
        x = wrap(a)
        for rec in observing:
            node_id = rec.node_id_of(given) if isinstance(given, Tensor) else None
            if node_id is None:
                node_id = object() if rec.is_tape else libraries.namespace(a).zeros(a.shape, a.dtype)
            rec.track(x, node_id)
    return _everywhere(op, x, *params)


def _listening() -> list[Recorder]:
    return [rec for rec in recorders(current()) if rec.open and is_recording(rec)]


def _who_records(x: Any) -> str:
    """Say what must be the same on all ranks for their derivatives to meet; nothing where no recorder is active."""
    count = sum(rec.node_id_of(x) is not None for rec in _listening()) if isinstance(x, Tensor) else 0
    return f", which {count} managers track" if count else ""


def _operand(x: Any, name: str) -> Any:
    if isinstance(x, Tensor):
        return x
    found = libraries.need_operand(x, name)
    return found if libraries.is_array(found) else np.asarray(found)


@overload
def all_reduce(x: Tensor, op: str = ..., group: Group | None = ...) -> Tensor: ...
@overload
def all_reduce(x: Any, op: str = ..., group: Group | None = ...) -> Any: ...
def all_reduce(x: Any, op: str = "sum", group: Group | None = None) -> Any:
    """Reduce an array over the ranks, element by element; every rank receives the same bits.

    float16 and bfloat16 are added up, and divided, in float32. A NaN of any rank is in the result.

    Args:
        x: a Tensor or an array, of the same shape and dtype on every rank.
        op: "sum", "mean", "min", "max" or "prod"; the first two are differentiable. A mean of integers is refused.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array) of the shape and dtype of `x`.

    Raises:
        DistributedError: on every rank, where they did not call the same with equal shapes, dtypes and ops.
        RankFailedError: another rank ended, or did not come within the timeout.

    Example:
        >>> from gradmgr import distributed
        >>> distributed.init("mpi")
        >>> int(distributed.all_reduce(1)) == distributed.size()
        True
        >>> distributed.finalize()
    """
    x, at = _operand(x, "all_reduce"), chosen(group)
    if op not in OPS:
        raise ValueError(f"all_reduce knows the ops {', '.join(map(repr, OPS))}; found {op!r}")
    if op not in ("sum", "mean") and _who_records(x):
        raise errors.UnsupportedFunctionError(
            f"all_reduce(op={op!r}) has no derivative, and this tensor is tracked; give it x.detach(), or gather the "
            "values with all_gather and reduce them with gradmgr.numpy"
        )
    return _everywhere(_all_reduce, x, op, at)


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
        DistributedError: on every rank, where they did not call the same with equal shapes and dtypes.
        RankFailedError: another rank ended, or did not come within the timeout.
    """
    return _everywhere(_all_gather, _operand(x, "all_gather"), chosen(group))


@overload
def broadcast(x: Tensor, root: int = ..., group: Group | None = ...) -> Tensor: ...
@overload
def broadcast(x: Any, root: int = ..., group: Group | None = ...) -> Any: ...
def broadcast(x: Any, root: int = 0, group: Group | None = None) -> Any:
    """Give every rank what one of them holds; differentiable.

    Args:
        x: a Tensor or an array, of the same shape and dtype on every rank; only the root's values count. Where the
            root's is tracked, that of every other rank must be too: attach one of zeros.
        root: whose; a rank of the group.
        group: which ranks; None for all.

    Returns:
        A new Tensor (an array for an array), the same on every rank. `x` itself is not written to.

    Raises:
        DistributedError: on every rank, where they did not call the same with equal shapes, dtypes and roots.
        RankFailedError: another rank ended, or did not come within the timeout.
    """
    x, at = _operand(x, "broadcast"), chosen(group)
    if not 0 <= root < at.size:
        raise ValueError(f"broadcast: the root is a rank from 0 to {at.size - 1}; found {root}")
    return _everywhere(_broadcast, x, int(root), at)


def barrier(group: Group | None = None) -> None:
    """Return when every rank is here.

    Raises:
        RankFailedError: another rank ended, or did not come within the timeout.
    """
    chosen(group).agree("barrier")
