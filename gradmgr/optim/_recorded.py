"""Steps of optimisers with `differentiable=True` while a manager records: of Tensors, by recorded functions.

The update rules are those of any step: their calls are written down once (`_chunks.traced`), and made here with
functions that return new Tensors where the others write in place. So both give the same bits, element by element.

A chunk keeps, beside the values of its states, the Tensors that a recorded step computed (`Chunk.recorded`), from which
the next recorded step goes on. Each is of the step with a certain number: where a step that is not recorded came in
between, the values count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import setitem
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine.context import Context, current
from gradmgr._engine.mutation import as_type, calls_to_rebind, calls_to_step
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.row_sparse import stored_rows
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr.ops import arithmetic, extrema
from gradmgr.ops.convert import wide_dtype
from gradmgr.optim._chunks import FIRST_STATE, Chunk, Plan, Run, is_refused, real_of, traced
from gradmgr.optim._numbers import Number, constant_for


def open_recorders() -> list[Recorder]:
    """Return the recorders that record here: the tapes of managers, and those of forward mode."""
    state = current()
    return [] if state is None else [rec for rec in Context.of(state).recording() if rec.open]


def check_has_no_tangent(tensors: Iterable[Tensor]) -> None:
    """Raise if one of these tensors, on which an unrecorded step depends, has a tangent in forward mode.

    Raises:
        RecordingError: it has, and the step would lose it.
    """
    forward = [rec for rec in open_recorders() if not rec.is_tape]
    for t in tensors if forward else ():
        if any(rec.node_id_of(t) is not None for rec in forward):
            raise errors.RecordingError(
                f"step(): {describe(t)} has a tangent, which would be lost, as the step is not recorded; make the "
                "optimiser with differentiable=True, as most have it, or step within inference_mode()"
            )


def calls_to_write_step(p: Tensor, array: Any, options: Sequence[Tensor] = ()) -> list[Call]:
    """Return the calls that give a parameter the array that an unrecorded step computed of it, and of these Tensors."""
    return [(setattr, p, "_array", array), *calls_to_step(p, options)]


def write_step(p: Tensor, array: Any) -> None:
    """Make these calls."""
    run_atomically(calls_to_write_step(p, array))


def gradients_of(chunk: Chunk) -> list[Tensor | None]:
    """Return the gradients of a chunk, as a recorded step takes them.

    Raises:
        UnsupportedFunctionError, ShapeError, RuntimeError: one is of rows, or does not fit its parameter.
    """
    grads = [p.grad for p in chunk.params]
    for p, g in zip(chunk.params, grads, strict=True):
        if is_refused(stored_rows(g)):
            raise errors.UnsupportedFunctionError(
                f"step(): the gradient of {describe(p)} is of rows, which a recorded step, that of an optimiser with "
                "differentiable=True, does not take; make it whole by p.grad = p.grad.to_dense()"
            )
    chunk.check([None if g is None else g._array for g in grads])
    return grads


def recorded_step(
    chunk: Chunk,
    grads: Sequence[Tensor | None],
    first: Plan,
    later: Plan,
    names: Sequence[str],
    initial: Callable[[str], Number],
) -> list[Call]:
    """Compute a step of a chunk, recorded; return the calls that let the parameters be its results.

    Args:
        chunk: has parameters of one dtype and device.
        grads: what `gradients_of` returned.
        first: the plan of a parameter's first step; its constants may be Tensors.
        later: the plan of its later steps.
        names: of the states.
        initial: returns the value with which a state begins.
    """
    for name in names:
        chunk.ensure_state(name, initial(name))
    calls: list[Call] = []
    runs = chunk.runs_of(grads, first, later)
    for run in runs:
        rule = _Rule(run, chunk, len(names))
        for k in range(run.first, run.last):
            states = [_state_of(chunk, name, k, initial) for name in names]
            p = chunk.params[k]
            with np.errstate(all="ignore"):
                new, *new_states = rule.updated((p, grads[k], *states))
            if new is not p:
                calls += calls_to_rebind(p, new)
            for name, state in zip(names, new_states, strict=True):
                calls.append((setitem, chunk.state_part(name, k), ..., state._array))
                calls.append((setitem, chunk.recorded, (name, k), (run.step, state)))
    return calls + chunk.calls_to_count(runs)


def _state_of(chunk: Chunk, name: str, k: int, initial: Callable[[str], Number]) -> Tensor:
    """Return a state of parameter k: with its history, if the last step was recorded."""
    step, state = chunk.recorded.get((name, k), (None, None))
    if state is not None and step == chunk.step_of(k):
        return state
    state = wrap(chunk.state_part(name, k).copy())
    start = initial(name)
    if chunk.step_of(k) == 0 and isinstance(start, Tensor):
        state = state * 0.0 + constant_for(start, real_of(chunk.dtype), chunk.device)
    return state


class _Rule:
    """The update rule of a run, with its constants."""

    def __init__(self, run: Run, chunk: Chunk, states: int) -> None:
        dtype = wide_dtype(real_of(chunk.dtype))
        constants = [constant_for(c, dtype, chunk.device) for c in (*run.plan.constants, *run.step_constants)]
        self._constants = dict(enumerate(constants, FIRST_STATE + states))
        self._calls = traced(run.plan, _Functions, states)

    def updated(self, values: Sequence[Any]) -> list[Any]:
        """Return the new parameter and states; the real and the imaginary part of complex ones are updated apart.

        Args:
            values: the parameter, its gradient, and its states.
        """
        dtype = values[0].dtype
        if dtype.kind == "c":
            real, imaginary = ([getattr(value, part) for value in values] for part in ("real", "imag"))
            return [a + 1j * b for a, b in zip(self.updated(real), self.updated(imaginary), strict=True)]
        wide = wide_dtype(dtype)
        if wide == dtype:
            return self._applied(values)
        return [as_type(made, dtype) for made in self._applied([as_type(value, wide) for value in values])]

    def _applied(self, values: Sequence[Any]) -> list[Any]:
        """Make the calls with functions that return what the rule writes in place."""
        p, g, *states = values
        held = {0: p, 1: g, **dict(enumerate(states, FIRST_STATE)), **self._constants}
        for function, operands, out in self._calls:
            *inputs, target = operands if out is None else (*operands, out)
            held[target] = function(*[held[k] for k in inputs])
        return [held[0], *[held[FIRST_STATE + k] for k in range(len(states))]]


def _root_of_squares(x: Tensor) -> Any:
    """Return the square root of what is made of squares; where that is 0, its derivative is taken as 0.

    That of the function is infinite there, and times that of the square, which is 0, it would be NaN: as that of
    |g|, which has the slopes -1 and 1 at 0.
    """
    is_zero = x._array == 0
    return np.where(is_zero, 0.0, arithmetic.sqrt(np.where(is_zero, 1.0, x)))


class _Functions:
    """Takes the place of NumPy in an update rule: recorded functions, by name."""

    absolute = staticmethod(arithmetic.absolute)
    add = staticmethod(arithmetic.add)
    divide = staticmethod(arithmetic.divide)
    maximum = staticmethod(extrema.maximum)
    multiply = staticmethod(arithmetic.multiply)
    negative = staticmethod(arithmetic.negative)
    sign = staticmethod(arithmetic.sign)
    sqrt = staticmethod(_root_of_squares)
    subtract = staticmethod(arithmetic.subtract)
