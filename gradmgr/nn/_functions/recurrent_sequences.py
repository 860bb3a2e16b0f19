"""Recurrent networks over whole sequences: one op for all steps.

Only the products with w_hh are computed step by step; its gradient is one product. The input's part of the gates is an
argument, `parts`, of shape (length, batch, gates * hidden).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.libraries import empty
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor
from gradmgr.nn._functions.attention import are_numpy_arrays, are_plain
from gradmgr.nn._functions.recurrent import (
    cast_to_common_dtype,
    columns_by_gate,
    gru_h_gradient,
    gru_into,
    gru_jvp_of_h,
    gru_jvp_of_x,
    gru_kernel,
    gru_vjp,
    gru_vjp_into,
    lstm_into,
    lstm_jvp,
    lstm_jvp_of_c,
    lstm_kernel,
    lstm_vjp,
    lstm_vjp_into,
    split_gates,
    total_over_batch,
)
from gradmgr.ops.arithmetic import sum_of
from gradmgr.ops.convert import cast_to
from gradmgr.ops.join import concatenate, stack


def _step_order(length: int, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _state_before(all_steps: Any, first: Any, k: int, reverse: bool) -> Any:
    """Return the state before step k."""
    place = k + 1 if reverse else k - 1
    return all_steps[place] if 0 <= place < all_steps.shape[0] else first


def _states_before(all_steps: Any, first: Any, reverse: bool) -> Any:
    """Return the states before all steps."""
    parts = [all_steps[1:], first[None]] if reverse else [first[None], all_steps[:-1]]
    return concatenate(parts, axis=0)


def _stack_steps(steps: list[Any], reverse: bool) -> list[Any]:
    """Stack each result of all steps; `steps` holds tuples of results in the order they were computed."""
    results = list(zip(*(steps[::-1] if reverse else steps), strict=True))
    tracked = any(isinstance(part, Tensor) for parts in results for part in parts)
    return [stack(parts) if tracked else np.stack(parts) for parts in results]


def _sum_of_results(*parts: Any) -> Any:
    """Return the sum of each result over those tuples that are not None."""
    there = [part for part in parts if part is not None]
    return tuple([sum_of(*results) for results in zip(*there, strict=True)])


def _cotangents_of_step(g: Any, k: int) -> list[Any]:
    return [None if part is None else part[k] for part in g]


def _join_steps(steps: Any) -> Any:
    """Return (length, batch, features) as (length * batch, features)."""
    return steps.reshape((steps.shape[0] * steps.shape[1], steps.shape[2]))


def _weight_gradient(rows: Any, states: Any, first: Any, reverse: bool) -> Any:
    return _join_steps(rows).T @ _join_steps(_states_before(states, first, reverse))


# What a replay without Python between the steps of a sequence gains is the time of some 30 calls for each step: that is
# little beside a product of more multiplications, and a capture of many steps takes long.
_MANY_STEPS, _LARGE_PRODUCT = 128, 1 << 20


def _is_captured_by_step(rows: Any, w_hh: Any, *others: Any) -> bool:
    """Tell whether captured kernels go by the calls of each step; the first is (length, ..., batch, columns)."""
    is_small = rows.shape[0] <= _MANY_STEPS and rows.shape[-2] * w_hh.size <= _LARGE_PRODUCT
    return is_small and libraries.are_captured_from(rows, w_hh, *others)


@libraries.captured_as_one(on_gpu=True, unless=lambda parts, h, c, w_hh, _: _is_captured_by_step(parts, w_hh, h, c))
def _lstm_run(parts: Any, h: Any, c: Any, w_hh: Any, reverse: bool) -> tuple[Any, Any, Any]:
    length, batch, width = parts.shape
    if are_plain(parts, h, c, w_hh) or are_numpy_arrays(parts, h, c, w_hh):
        outputs, cells, gates = (empty((length, *more, *c.shape), parts) for more in ((), (), (5,)))
        columns = empty((width, batch), parts)
        by_columns = columns_by_gate(columns, 4)
        for k in _step_order(length, reverse):
            w_hh.dot(h.T, out=columns)
            lstm_into(outputs[k], cells[k], gates[k], by_columns, split_gates(parts[k], 4), c)
            h, c = outputs[k], cells[k]
        return outputs, cells, gates
    steps = []
    for k in _step_order(length, reverse):
        steps.append(lstm_kernel(parts[k], h, c, None, w_hh, None, None))
        h, c = steps[-1][:2]
    outputs, cells, gates = _stack_steps(steps, reverse)
    return outputs, cells, gates


@libraries.captured_as_one(
    on_gpu=True,
    unless=lambda g, c, w_hh, cells, gates, _: g[2] is None and _is_captured_by_step(gates, w_hh, *g, c, cells),
)
def _lstm_run_vjp(g: Any, c: Any, w_hh: Any, cells: Any, gates: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """Return the cotangents of the parts, of the first h and of the first c."""
    given = g[0], g[1], c, w_hh, cells, gates
    if g[2] is None and (are_plain(*given) or are_numpy_arrays(*given)):
        return _lstm_run_vjp_in_place(g, c, w_hh, cells, gates, reverse)
    of_h, of_c, rows = None, None, []
    for k in _step_order(gates.shape[0], not reverse):
        at = _cotangents_of_step(g, k)
        at[:2] = sum_of(at[0], of_h), sum_of(at[1], of_c)
        row, of_c = lstm_vjp(at, _state_before(cells, c, k, reverse), gates[k])
        of_h, of_c = row @ w_hh, of_c * gates[k][1]
        rows.append((row,))
    return _stack_steps(rows, not reverse)[0], of_h, of_c


def _lstm_run_vjp_in_place(g: Any, c: Any, w_hh: Any, cells: Any, gates: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """Compute the same for plain arrays, into one array of rows."""
    length, _, batch, hidden = gates.shape
    rows = empty((length, batch, 4 * hidden), gates)
    of_h, of_c = (empty((batch, hidden), gates) for _ in range(2))
    of_h[...] = 0
    of_c[...] = 0
    for k in _step_order(length, not reverse):
        for of_state, given in ((of_h, g[0]), (of_c, g[1])):
            if given is not None:
                of_state += given[k]
        np.multiply(
            lstm_vjp_into(rows[k], of_h, of_c, _state_before(cells, c, k, reverse), gates[k]), gates[k, 1], of_c
        )
        rows[k].dot(w_hh, out=of_h)
    return rows, of_h, of_c


def _lstm_run_jvp(states: Any, reverse: bool, part: Any = None, h: Any = None, c: Any = None, w: Any = None) -> Any:
    """Return the tangents of the results for a tangent of the parts, of the first h or c, or of w_hh."""
    first_h, first_c, w_hh, outputs, cells, gates = states
    steps = []
    for k in _step_order(gates.shape[0], reverse):
        row = sum_of(
            None if part is None else part[k],
            None if h is None else h @ w_hh.T,
            None if w is None else _state_before(outputs, first_h, k, reverse) @ w.T,
        )
        tangent = None if row is None else lstm_jvp(row, _state_before(cells, first_c, k, reverse), gates[k])
        steps.append(_sum_of_results(tangent, None if c is None else lstm_jvp_of_c(c, gates[k])))
        h, c = steps[-1][:2]
    return _stack_steps(steps, reverse)


def _lstm_jvp_by(name: str) -> Function:
    return lambda t, h, c, w_hh, outputs, cells, gates, reverse: _lstm_run_jvp(
        (h, c, w_hh, outputs, cells, gates), reverse, **{name: t}
    )


_lstm_over: Function = several(
    "nn.lstm",
    _lstm_run,
    ("outputs", "cells", "gates"),
    vjp={
        "parts": lambda g, shared: shared[0],
        "h": lambda g, shared: shared[1],
        "c": lambda g, shared: shared[2],
        "w_hh": lambda g, h, outputs, shared, reverse: _weight_gradient(shared[0], outputs, h, reverse),
    },
    jvp={
        "parts": _lstm_jvp_by("part"),
        "h": _lstm_jvp_by("h"),
        "c": _lstm_jvp_by("c"),
        "w_hh": _lstm_jvp_by("w"),
    },
    shared=_lstm_run_vjp,
)


def lstm_over(parts: Any, h: Any, c: Any, w_hh: Any, reverse: bool) -> tuple[Any, Any]:
    """Return h and c after every step, for checked arguments; with reverse from the last step to the first."""
    values, dtype = cast_to_common_dtype([parts, h, c, w_hh])
    outputs, cells, _ = _lstm_over(*values, reverse)
    return cast_to(outputs, dtype), cast_to(cells, dtype)


@libraries.captured_as_one(
    on_gpu=True, unless=lambda parts, h, w_hh, b_hh, _: _is_captured_by_step(parts, w_hh, h, b_hh)
)
def _gru_run(parts: Any, h: Any, w_hh: Any, b_hh: Any, reverse: bool) -> tuple[Any, Any]:
    length, batch, width = parts.shape
    if are_plain(parts, h, w_hh, b_hh) or are_numpy_arrays(parts, h, w_hh, b_hh):
        outputs, gates = empty((length, *h.shape), parts), empty((length, 4, *h.shape), parts)
        columns, bias = empty((width, batch), parts), None if b_hh is None else b_hh[:, None]
        by_columns = columns_by_gate(columns, 3)
        for k in _step_order(length, reverse):
            w_hh.dot(h.T, out=columns)
            if bias is not None:
                columns += bias
            gru_into(outputs[k], gates[k], split_gates(parts[k], 3), by_columns, h)
            h = outputs[k]
        return outputs, gates
    steps = []
    for k in _step_order(length, reverse):
        steps.append(gru_kernel(parts[k], h, None, w_hh, None, b_hh))
        h = steps[-1][0]
    outputs, gates = _stack_steps(steps, reverse)
    return outputs, gates


@libraries.captured_as_one(
    on_gpu=True,
    unless=lambda g, h, w_hh, outputs, gates, _: g[1] is None and _is_captured_by_step(gates, w_hh, *g, h, outputs),
)
def _gru_run_vjp(g: Any, h: Any, w_hh: Any, outputs: Any, gates: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """Return the cotangents of the parts, of the gates' parts of h, and of the first h."""
    given = g[0], h, w_hh, outputs, gates
    if g[1] is None and (are_plain(*given) or are_numpy_arrays(*given)):
        return _gru_run_vjp_in_place(g[0], h, w_hh, outputs, gates, reverse)
    of_h, rows = None, []
    for k in _step_order(gates.shape[0], not reverse):
        at = _cotangents_of_step(g, k)
        at[0] = sum_of(at[0], of_h)
        row = gru_vjp(at, _state_before(outputs, h, k, reverse), gates[k])
        of_h = gru_h_gradient(at, w_hh, gates[k], row)
        rows.append(row[:2])
    of_parts, of_rows = _stack_steps(rows, not reverse)
    return of_parts, of_rows, of_h


def _gru_run_vjp_in_place(g: Any, h: Any, w_hh: Any, outputs: Any, gates: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """Compute the same for plain arrays, into one array each."""
    length, _, batch, hidden = gates.shape
    of_parts, of_rows = (empty((length, batch, 3 * hidden), gates) for _ in range(2))
    of_h: Any = None
    for k in _step_order(length, not reverse):
        of_new = g[k] if of_h is None else of_h + g[k]
        gru_vjp_into(of_parts[k], of_rows[k], of_new, _state_before(outputs, h, k, reverse), gates[k])
        of_h = of_rows[k].dot(w_hh)
        of_h += of_new * gates[k, 1]
    return of_parts, of_rows, of_h


def _gru_run_jvp(states: Any, reverse: bool, part: Any = None, h: Any = None, w: Any = None, b: Any = None) -> Any:
    """Return the tangents of the results for a tangent of the parts, of the first h, of w_hh or of b_hh."""
    first_h, w_hh, outputs, gates = states
    steps = []
    for k in _step_order(gates.shape[0], reverse):
        before = _state_before(outputs, first_h, k, reverse)
        at = before, gates[k]
        of_part = None if part is None else gru_jvp_of_x(part[k], *at)
        of_w = None if w is None else gru_jvp_of_h(before @ w.T, *at)
        of_b = None if b is None else gru_jvp_of_h(b, *at)
        of_h = None if h is None else gru_jvp_of_h(h @ w_hh.T, *at, h)
        steps.append(_sum_of_results(of_part, of_w, of_b, of_h))
        h = steps[-1][0]
    return _stack_steps(steps, reverse)


def _gru_jvp_by(name: str) -> Function:
    return lambda t, h, w_hh, outputs, gates, reverse: _gru_run_jvp((h, w_hh, outputs, gates), reverse, **{name: t})


_gru_over: Function = several(
    "nn.gru",
    _gru_run,
    ("outputs", "gates"),
    vjp={
        "parts": lambda g, shared: shared[0],
        "h": lambda g, shared: shared[2],
        "w_hh": lambda g, h, outputs, shared, reverse: _weight_gradient(shared[1], outputs, h, reverse),
        "b_hh": lambda g, shared: total_over_batch(_join_steps(shared[1])),
    },
    jvp={
        "parts": _gru_jvp_by("part"),
        "h": _gru_jvp_by("h"),
        "w_hh": _gru_jvp_by("w"),
        "b_hh": _gru_jvp_by("b"),
    },
    shared=_gru_run_vjp,
)


def gru_over(parts: Any, h: Any, w_hh: Any, b_hh: Any, reverse: bool) -> Any:
    """Return h after every step, for checked arguments; with reverse from the last step to the first."""
    values, dtype = cast_to_common_dtype([parts, h, w_hh, b_hh])
    outputs, _ = _gru_over(*values, reverse)
    return cast_to(outputs, dtype)
