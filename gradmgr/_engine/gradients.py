"""The gradients that a backward pass leaves: by tensor, in their own memory, and written to `.grad`."""

from __future__ import annotations

import operator
from collections.abc import Container
from sys import getrefcount
from typing import Any

import numpy as np

from gradmgr._arrays import batched, libraries, memory
from gradmgr._arrays.listening import computed, listener
from gradmgr._arrays.refcounts import ARRAY_IN_LOCAL
from gradmgr._arrays.repeated_rows import copy_into
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine import write_lock
from gradmgr._engine.cleanup import complete
from gradmgr._engine.context import Context, current, interceptors_of, rebind, recorders, run_in
from gradmgr._engine.hooks import handle
from gradmgr._engine.recorder import Recorder, is_tracked_by
from gradmgr._engine.row_sparse import RowSparse, row_sparse, stored_rows
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, wrap

# The tensors that are to receive gradients, with their node ids; None for all leaves.
Inputs = dict[Tensor, Any] | None

_new = object.__new__


def gradients_by_tensor(tape: Tape, grads: dict[Any, Any], inputs: Inputs) -> dict[Tensor, Any]:
    """Return the gradients of the leaves, or of `inputs`, and of what retain_grad asked for, by tensor.

    Args:
        tape: the tape of the backward pass.
        grads: what the pass left, by node id; what is returned is taken out.
        inputs: the tensors that are to receive gradients, with their node ids; None for all leaves.
    """
    found: dict[Tensor, Any] = {}
    for t, node_id in (tape.leaves.copy() if inputs is None else inputs).items():  # other threads may attach
        if node_id in grads:
            found[t] = grads.pop(node_id)
    notes = tape.annotations
    if notes is not None and notes.retained:
        found |= {t: g for t, g in notes.retained if t not in found}
        notes.retained.clear()
    return found


def write(results: dict[Tensor, Any], outer: Any, replaced: Container[Tensor] = ()) -> None:
    """Write `.grad` of all, or of none: everything is computed before the first is written.

    Args:
        results: the gradients; emptied, since a gradient that something else holds too must be copied.
        outer: the context outside of the recording; its recorders may track the gradients.
        replaced: tensors whose new gradient replaces the one they hold, instead of being added to it.
    """
    if interceptors_of(current()):
        _note_batched(results)
    with write_lock.lock:  # threads that share a parameter lose no update
        fresh, changed = _values_to_write(results, outer, replaced)
        try:
            try:
                _publish(fresh, changed)
            except BaseException:
                complete(_publish, fresh, changed)
                raise
        except BaseException:
            complete(_publish, fresh, changed)
            raise


def _values_to_write(
    results: dict[Tensor, Any], outer: Any, replaced: Container[Tensor]
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Any]]]:
    """Return tensors with their new `.grad`, and each `.grad` that stays with its new array, or its rows.

    None stays where something records the gradients, be they constants: they are values of the program then.
    """
    known = [] if outer is None else [rec for rec in recorders(outer) if rec.open]
    renews = bool(known and Context.of(outer).groups)
    heard = listener()
    fresh: list[tuple[Tensor, Tensor]] = []
    changed: list[tuple[Tensor, Any]] = []
    while results:
        t, g = results.popitem()
        if heard is not None:
            heard.meet_grad(t)
        held: Tensor | None = getattr(t, "_grad", None)
        adding = held is not None and t not in replaced
        if known and (adding or held is None) and (is_tracked_by(known, g) or is_tracked_by(known, held)):
            fresh.append((t, run_in(outer, _recorded_sum, held, g, known)))
            continue
        rows = stored_rows(g) if isinstance(g, RowSparse) else None
        if rows is not None and _may_stay_rows(rows, t):
            total = rows.owned() if held is None else _sum_of_rows(held, rows, adding)
            if held is None or renews:
                fresh.append((t, row_sparse(total) if isinstance(total, TableRows) else wrap(total)))
            else:
                changed.append((held, total))
            continue
        if isinstance(g, Tensor):
            if heard is not None:
                heard.meet(g)
            g = g._array  # and the Tensor is dropped: references to the array are counted next
        made = _new(Tensor)  # `wrap`, inlined
        made._array = g
        made._view_of = ()
        made._rec = g = None  # no reference here: `own_gradient` and `_sum` count them
        if held is not None and adding:
            if heard is not None:
                heard.meet(held)
            made._array = _sum(held._array, made)
        else:
            made = own_gradient(made, t)
        if held is None or renews or _differs_more(made._array, held._array):
            fresh.append((t, made))
        else:
            changed.append((held, made._array))
    return fresh, changed


def _note_batched(results: dict[Tensor, Any]) -> None:
    """Tell each vmap of which tensors are about to be given its gradients: it looks at its end whether they stayed."""
    for t, g in results.items():
        a = bare(g)
        if isinstance(a, batched.Batched):
            a.level.note_gradient(t, t.grad)


def _differs_more(new: Any, held: Any) -> bool:
    """Tell whether a gradient differs between examples of a vmap which share the one that is held."""
    return isinstance(new, batched.Batched) and not batched.is_batched_at(held, new.level)


def _publish(fresh: list[tuple[Tensor, Tensor]], changed: list[tuple[Tensor, Any]]) -> None:
    """Set each `.grad`; called again where an exception interrupts it, so that all of them are written."""
    for held, array in changed:
        rebind(held, wrap(array))  # a constant for every recorder
    for t, made in fresh:
        t._grad = made


def _recorded_sum(held: Tensor | None, g: Any, recorders: list[Recorder]) -> Tensor:
    fresh = handle(g, recorders)
    return fresh if held is None else held + fresh


def _may_stay_rows(rows: TableRows, t: Tensor) -> bool:
    """Tell whether `.grad` may hold rows: if not asked for, they make a table in C order alone, see `own_gradient`."""
    return rows.on_request or bool(t._array.flags.c_contiguous)


def _sum_of_rows(held: Tensor, rows: TableRows, adding: bool) -> Any:
    """Return what `.grad` is to hold where rows are added to it, or replace it: rows, if it holds rows already."""
    before = stored_rows(held)
    if before is None:
        return rows.add_to(held._array.copy()) if adding else rows.dense()
    if not adding:
        return rows.owned()
    total = before.plus(rows if rows.on_request else rows.coalesced())
    return total.owned() if total.on_request or total.are_few() else total.dense()


def _sum(a: Any, made: Tensor) -> Any:
    """Return the sum of the gradient held and a new one; written over the new one where nothing else sees that.

    Never over the one held, which an exception must leave as it is.
    """
    if batched.is_batched(a) or batched.is_batched(made._array) or listener() is not None:  # inside vmap
        return computed(operator.add, a, made._array)
    xp = libraries.namespace(a)
    if a.ndim and memory.is_private(made) and made._array.strides == a.strides and made._array.dtype == a.dtype:
        return xp.add(a, made._array, out=made._array)
    return xp.add(a, made._array, out=xp.empty_like(a))  # in new memory, with the strides of what is held


def own_gradient(made: Tensor, t: Tensor) -> Tensor:
    """Return a gradient in its own memory, with the strides of a dense parameter."""
    g, a = made._array, t._array
    is_like = g.__class__ is np.ndarray and g.base is None and g.ndim and g.strides == a.strides
    if is_like and getrefcount(g) <= ARRAY_IN_LOCAL and g.flags.owndata:  # the common case, without calls
        return made
    g = None  # no reference here: `is_private` counts them
    if memory.is_private(made) and _is_dense_like(made._array, a):
        return made
    made._array = computed(_copy_like, made._array, bare(t))
    return made


def _copy_like(g: Any, a: Any) -> Any:
    """Return a copy of a gradient with the strides of a parameter."""
    if batched.is_batched(a):
        copy = libraries.able_to_hold(np.empty_like(a), g)
    else:
        copy = libraries.namespace(g).empty_like(a)
    copy_into(copy, g)
    return copy


def _is_dense_like(g: Any, a: Any) -> bool:
    """Tell whether g has a buffer of its own size, in C order as the parameter is."""
    whole = g.base is None or memory.buffer_bytes(g) == g.nbytes
    return bool(whole and g.ndim and g.flags.c_contiguous and a.flags.c_contiguous)


def clear(tensors: list[Tensor]) -> None:
    """Set `.grad` of all of them to None; an exception that interrupts it is raised when that is done."""
    complete(_clear, tensors)


def _clear(tensors: list[Tensor]) -> None:
    heard = listener()
    for t in tensors:
        if heard is not None:
            heard.meet_grad(t)
        t._grad = None
