"""What a backward pass begins with: the cotangents of the outputs, checked before anything changes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.backward_pass import context_of_pass
from gradmgr._engine.context import recorders, run_in
from gradmgr._engine.mutation import as_type
from gradmgr._engine.recorder import is_tracked_by
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, describe

# (node id, cotangent) pairs.
Seeds = list[tuple[Any, Any]]

# The seed of most losses: a NumPy scalar, whose size takes 0.4 us to ask for.
_ONES = MappingProxyType({np.float32: np.float32(1), np.float64: np.float64(1)})


def seeds_of(tape: Tape, y: Any, dy: Any, *, asked: str = "backward", create_graph: bool = False) -> Seeds:
    """Check the arguments of backward; return (node id, cotangent) pairs, those of the tape's roots too.

    Args:
        tape: the tape to propagate back through.
        y: what to differentiate.
        dy: its weights.
        asked: the name of the public function, for errors.
        create_graph: whether the tape itself records the derivative, not only the recorders outside of it.
    """
    if y.__class__ is Tensor and y._rec is tape and tape.annotations is None:  # the common cases, without calls
        a = y._array
        if dy is None and a.__class__ in _ONES:
            return [(y._node_id, _ONES[a.__class__])]
        plain = dy._array if dy.__class__ is Tensor and tape.outer is None and not create_graph else dy
        if plain.__class__ is a.__class__ is np.ndarray and plain.dtype is a.dtype and plain.shape == a.shape:
            return [(y._node_id, plain)]
    if y is None and dy is not None:
        raise ValueError("backward(None, dy): a dy was given without the y it belongs to")
    ys = [] if y is None else _as_list(y)
    dys = [None] * len(ys) if dy is None else _as_list(dy)
    if len(dys) != len(ys):
        raise ValueError(f"{asked}: {len(ys)} y were given and {len(dys)} dy; give one dy for each y, each an array")
    node_ids = [_node_id_of(tape, t, position) for position, t in enumerate(ys)]
    outer = context_of_pass(tape, create_graph)
    cotangents = [_cotangent(outer, t, d, k) for k, (t, d) in enumerate(zip(ys, dys, strict=True))]
    roots = [] if tape.annotations is None else tape.annotations.roots
    return [*zip(node_ids, cotangents, strict=True), *roots]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _node_id_of(tape: Tape, y: Any, position: int) -> Any:
    if not isinstance(y, Tensor):
        raise TypeError(
            f"backward differentiates Tensors; y number {position} is {type(y).__name__}; compute it by functions of "
            "gradmgr.numpy, as float(), .item() and .numpy() leave the history behind"
        )
    node_id = tape.node_id_of(y)
    if node_id is None:
        seen = "" if tape.trace_log is None else tape.trace_log.explain_untracked(y)
        raise errors.NotRecordedError(
            f"backward: this GradManager does not know y number {position}, {describe(y)}{note_on_constants(tape)}. "
            f"Attached tensors that are alive: {len(tape.leaves)}. y may have been computed before record() or before "
            "attach(); under no_grad(); from nothing that is attached (x = x - step makes a new tensor, x -= step does "
            "not); through detach(), an integer or boolean cast, or a plain array; in another thread or task; by "
            "another manager's backward; or overwritten in place by a constant" + (f". Seen: {seen}" if seen else "")
        )
    return node_id


def note_on_constants(tape: Tape) -> str:
    """Return, to be added to an error, what to do of an attached tensor that a write has made a constant; or ""."""
    constants = [t for t in tape.leaves.copy() if tape.node_id_of(t) is None]  # other threads may attach
    if not constants:
        return ""
    others = f", as {len(constants) - 1} more" if len(constants) > 1 else ""
    return (
        f". {describe(constants[0])}, which is attached{others}, was written to under no_grad(), which makes it a "
        "constant from there on; attach it again after the write"
    )


def _cotangent(outer: Any, y: Tensor, dy: Any, position: int) -> Any:
    """Return the weights of `y` in its dtype: a Tensor where a recorder in `outer` tracks them, else an array."""
    if dy is None:
        return _one_for(y, position)
    a = y._array
    if dy.__class__ is a.__class__ is np.ndarray and dy.dtype is a.dtype and dy.shape == a.shape:  # 50 ns by a call
        return dy
    recorded = isinstance(dy, Tensor) and is_tracked_by(recorders(outer), dy)
    value = dy if recorded else bare(dy)
    if not isinstance(value, Tensor):
        libraries.check_plain(value)
        value = value if libraries.is_array(value) else np.asarray(value)
    dtype, wanted = value.dtype, y.dtype
    if dtype.kind not in "biufc" and not libraries.is_differentiable(dtype):
        found = f"an array of dtype {dtype}" if libraries.is_array(dy) else type(dy).__name__
        raise errors.DtypeError(
            f"backward: dy number {position} must be a Tensor or an array of numbers, of the shape of its y; "
            f"found {found}"
        )
    if value.shape != y.shape:
        raise errors.ShapeError(
            f"backward: dy number {position} must have the shape of its y, {y.shape}; found {value.shape}"
        )
    if dtype.kind == "c" and wanted.kind != "c":
        raise errors.DtypeError(
            f"backward: dy number {position} is complex, {dtype}, and its y real, {wanted}; pass its real part"
        )
    if libraries.root(bare(value)) is not libraries.root(a):
        where = libraries.device_of(bare(value))
        raise errors.MixedArraysError(f"backward: dy number {position} lives on {where}, its y on {y.device}; move dy")
    if dtype == wanted:
        # Captured beside a captured y, so that what is computed of both is captured as what it is for plain arrays.
        return libraries.namespace(a).asarray(value) if value.__class__ is np.ndarray else value
    return run_in(outer, as_type, value, wanted)


def _one_for(y: Tensor, position: int) -> Any:
    a = y._array
    if a.size != 1 or a.dtype.kind == "c":
        raise ValueError(
            f"backward without dy needs y to be one real number; y number {position} is {describe(y)}; "
            "reduce it, as with y.sum(), or pass dy of its shape"
        )
    if a.ndim == 0 and isinstance(a, (np.ndarray, np.generic)):
        return a.dtype.type(1)  # NumPy divides a scalar by a number ten times faster than a 0-d array
    return libraries.namespace(a).ones(a.shape, a.dtype)
