"""`Function.apply`: most calls in few Python frames, the others by `FunctionCall`.

Most calls are made with NumPy arrays by position, with nothing current or one tape; forward returns one array that it
has computed, saves only arguments and the result, and sets attributes of ctx to settings, not to arrays. What is
particular in any other way is left to `FunctionCall`, before forward runs or after it. On 8 elements that is a third of
the time of `FunctionCall`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays.libraries import is_array, is_differentiable
from gradmgr._engine.cleanup import complete
from gradmgr._engine.context import Context, current, set_current
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, alike, wrap
from gradmgr._transforms.function_call import FunctionCall, check_methods, differentiable_values
from gradmgr._transforms.function_context import ContextState, FunctionCtx
from gradmgr._transforms.function_node import FUNCTION_OP, ArrayMetadata, FunctionNode, Source, is_placeholder

_NO_CONSTANTS: frozenset[int] = frozenset()


def apply(function: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute, and let every recorder that tracks an argument record it as one operation."""
    tape = current()
    is_taped = tape.__class__ is Tape
    if kwargs or not (is_taped or tape is None) or not _takes_ctx(function):
        return FunctionCall(function, args, kwargs).run()
    untracked = _untracked(args)
    if untracked is None:
        return FunctionCall(function, args, kwargs).run()
    given, before = untracked
    node_ids = tape.node_ids_of(args) if is_taped and tape.open else None
    needs = (False,) * len(args) if node_ids is None else tuple([node_id is not None for node_id in node_ids])
    ctx = FunctionCtx()
    ctx._gradmgr = state = ContextState(function.__name__, "forward", needs)
    try:
        try:
            if is_taped:
                set_current(Context((), ((tape,),)))
            try:
                output = function.forward(ctx, *given)
            finally:
                set_current(tape)
        except BaseException:
            complete(set_current, tape)  # again: an exception may have struck in `finally`
            raise
        values = _usual_values(state, ctx, args, given, before, output)
        if values is None:
            return FunctionCall(function, args, kwargs).finish(tape, node_ids, ctx, tuple(given), tuple(before), output)
        result = wrap(output._array if isinstance(output, Tensor) else output)
        if node_ids is not None and tape.open:
            _record(function, tape, node_ids, args, result, values, ctx)
    finally:
        state.close()
    return result


def _untracked(args: tuple[Any, ...]) -> tuple[list[Any], list[Any]] | None:
    """Return what forward is given, and the arrays of it; None if an argument has an array that is not NumPy's.

    In place of a Tensor forward is given an untracked one of the same values, one in all places of the same Tensor.
    """
    given, before = [], []
    copies: dict[int, Tensor] = {}
    for t in args:
        if isinstance(t, Tensor):
            array = t._array
            if array.__class__ is not np.ndarray and not isinstance(array, np.generic):
                return None
            copy = copies.get(id(t))
            if copy is None:
                copy = copies[id(t)] = alike(t)
            before.append(array)
            given.append(copy)
        else:
            before.append(t)
            given.append(t)
    return given, before


def _takes_ctx(function: type[Any]) -> bool:
    """Tell whether the forward of a class takes ctx; raise where its methods do not go together."""
    methods = (
        function.forward,
        function.setup_context,
        function.backward,
        function.vjp,
        function.vmap,
        function.generate_vmap_rule,
    )
    if methods != function._checked_methods:
        check_methods(function)
        if not is_placeholder(function.setup_context):
            return False
        function._checked_methods = methods
    return True


def _usual_values(
    state: ContextState, ctx: FunctionCtx, args: tuple[Any, ...], given: list[Any], before: list[Any], output: Any
) -> tuple[list[Any], list[Source]] | None:
    """Return the saved arrays and where each comes from; None if forward did more than return one new array.

    That is: it wrote to an argument, or kept other arrays than arguments and the result.
    """
    array = output._array if isinstance(output, Tensor) else output
    if (array.__class__ is not np.ndarray and not isinstance(array, np.generic)) or not is_differentiable(array.dtype):
        return None
    if state.dirty or state.non_differentiable or (ctx.__dict__ and differentiable_values(ctx.__dict__)):
        return None
    for k, copy in enumerate(given):
        a = before[k]
        if copy is not a and (copy._array is not a or args[k]._array is not a):
            return None
    kept: list[Any] = []
    sources: list[Source] = []
    for value in state.for_backward:
        source: Source = ("result", 0) if value is output else None
        for k, copy in enumerate(given):
            if copy is value:
                source = ("argument", k)
                break
        if source is None or value is None:
            return None
        array = value._array
        kept.append(array)
        sources.append(source if is_differentiable(array.dtype) else None)
    return kept, sources


def _record(
    function: type[Any],
    tape: Tape,
    node_ids: tuple[Any, ...],
    args: tuple[Any, ...],
    result: Tensor,
    values: tuple[list[Any], list[Source]],
    ctx: FunctionCtx,
) -> None:
    """Record a usual call, as `FunctionCall` does any."""
    arguments: list[ArrayMetadata | None] = []
    constants = _NO_CONSTANTS
    for t in args:
        if isinstance(t, Tensor):
            arguments.append(ArrayMetadata(t._array))
        else:
            if is_array(t):
                constants |= {len(arguments)}
            arguments.append(None)
    array, (kept, sources) = result._array, values
    node = FunctionNode(function, tuple(arguments), (ArrayMetadata(array, 0),), constants, len(args))
    node.materialize = ctx._gradmgr.materialize
    if ctx.__dict__:
        node.attributes = ctx.__dict__
    tape.record_op(FUNCTION_OP, node_ids, (), (array,), (tuple(kept), tuple(sources), (), node), (result,))
