"""How the call of a `Function` is recorded on a tape, and how it is differentiated.

Each recorder that tracks an argument gets one entry for the whole call. It holds the saved values and, for
each of them, its `Source`: which argument or result it is, or that it is neither. A saved argument or result is
passed to `backward` as a handle that the outer recorders track by the node id of that argument or result, so
that derivatives of derivatives flow through it. A saved value that is neither is passed too, and
raises where a derivative would have to flow through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import Context, current, paused, recorders, run_in
from gradmgr._engine.custom import Result
from gradmgr._engine.entry import Kind, Metadata, Retrack, declare_kind, ids_in_tuple
from gradmgr._engine.history.saved_values import with_node_ids
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Op
from gradmgr._engine.ownership import Grads, Ownership, contribute
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, describe, wrap
from gradmgr._transforms.function_context import ContextState, FunctionCtx

Entry = tuple[Any, ...]
# What a kept value is: ("argument", k), ("result", j), or ("unrecorded", its description); None for a constant.
Source = tuple[str, Any] | None
# The outer recorders of a recorder, each with its node ids of the arguments.
OuterRecorders = tuple[tuple[Recorder, tuple[Any, ...]], ...]


# ---------------------------------------------------------------- optional methods


def placeholder(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of the base class that only raises, for a class that does not define it."""
    method._is_placeholder = True  # type: ignore[attr-defined]  # read by `is_placeholder`
    return method


def is_placeholder(method: Any) -> bool:
    """Tell whether a class has not defined a method itself."""
    return getattr(method, "_is_placeholder", False) is True


# ---------------------------------------------------------------- values

REPEATED = -1


class ArrayMetadata:
    """Shape, dtype and library of an argument or a result.

    `index` is the position of a differentiable result among the differentiable results, `REPEATED` where the result
    stands at a later place, too, and None of any other.
    """

    __slots__ = ("dtype", "index", "library", "shape")

    def __init__(self, array: Any, index: int | None = None) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype
        self.library = np if array.__class__ is np.ndarray else libraries.namespace(array)
        self.index = index

    def is_that_of(self, value: Any) -> bool:
        """Tell whether a value is a Tensor or an array of NumPy's, of this shape and dtype."""
        array = value._array if value.__class__ is Tensor else value
        return (
            array.__class__ is np.ndarray
            and array.shape == self.shape
            and array.dtype == self.dtype
            and self.library is np
        )

    def zeros(self) -> Tensor:
        return wrap(self.library.zeros(self.shape, self.dtype))


def describe_value(value: Any) -> str:
    """Describe a value of any type in an error."""
    return describe(value) if isinstance(value, Tensor) else f"a value of type {type(value).__name__}"


def is_numeric(value: Any) -> bool:
    """Return True if a value that a user's function returned is an array of numbers."""
    libraries.check_plain(value)
    return libraries.is_array(value) and (value.dtype.kind in "biufc" or libraries.is_differentiable(value.dtype))


def active_groups(state: Any) -> tuple[tuple[Recorder, ...], ...]:
    """Return the groups of recorders that record in a state, the outermost first."""
    if state is None:
        return ()
    return state.groups if isinstance(state, Context) else ((state,),)


def is_actively_tracked(t: Tensor) -> bool:
    """Tell whether a recorder that records in this context tracks a tensor."""
    return any(rec.open and rec.node_id_of(t) is not None for group in active_groups(current()) for rec in group)


def copy_tensor(value: Any) -> Any:
    """Return a new Tensor of the same array with the same node ids; of an array, an untracked one; None of None."""
    if isinstance(value, Tensor):
        return with_node_ids(value._array, value)
    return None if value is None else wrap(value)


def _replace_values(value: Any, replacements: dict[int, Any]) -> Any:
    """Return a container with some of the values in it, found by their id(), replaced."""
    if id(value) in replacements:
        return replacements[id(value)]
    if value.__class__ is dict:
        return {key: _replace_values(inner, replacements) for key, inner in value.items()}
    if value.__class__ in (list, tuple):
        return value.__class__([_replace_values(inner, replacements) for inner in value])
    return value


# ---------------------------------------------------------------- derivatives that cannot be computed


def unrecorded_message(name: str, what: str) -> str:
    """Return the error text for a derivative that depends on a value that no recorder saw being computed."""
    return (
        f"{name}: this derivative depends on {what}, which forward computed where no manager could see how; "
        "save arguments or results of the Function and compute it from them in backward, return it as a further "
        "result, or, if it is a constant, pass it as an argument"
    )


def reject_derivatives(rec: Recorder, t: Tensor, sources: tuple[Any, ...], message: str) -> None:
    """Make `rec` track `t` as computed from the nodes `sources`, with a derivative that raises `message`."""
    if isinstance(rec, Tape):
        node_id = object()
        rec.entries.append(("Function.unrecorded", node_id, sources, message))
        rec.track(t, node_id)
    else:
        rec.track(t, _RejectingTangent(message))


class _RejectingTangent:
    """A tangent that raises when it is used."""

    __slots__ = ("_message",)

    def __init__(self, message: str) -> None:
        self._message = message

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.NotRecordedError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.NotRecordedError(self._message)

    __array__ = __array_ufunc__ = __array_function__ = __len__ = __iter__ = __getitem__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __float__ = _refuse


# ---------------------------------------------------------------- differentiating


class FunctionNode:
    """What the entries of one call, on all tapes, share."""

    __slots__ = (
        *("arguments", "attribute_values", "attributes", "constants", "function"),
        *("materialize", "min_gradients", "name", "results"),
    )

    def __init__(
        self,
        function: type[Any],
        arguments: tuple[ArrayMetadata | None, ...],
        results: tuple[ArrayMetadata | None, ...],
        constants: frozenset[int],
        min_gradients: int,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.arguments = arguments  # None for what is not a Tensor
        self.results = results
        self.constants = constants  # which arguments are plain arrays
        self.min_gradients = min_gradients  # how many gradients backward must return at least
        self.attributes: dict[str, Any] = {}  # what the user set on ctx
        self.attribute_values: list[tuple[Any, str]] = []  # the differentiable values in there, with descriptions
        self.materialize = True

    def _make_ctx(self, phase: str, kept: tuple[Any, ...], node_ids: tuple[Any, ...]) -> FunctionCtx:
        """Make the ctx for one call of backward or jvp."""
        state = ContextState(self.name, phase, tuple([node_id is not None for node_id in node_ids]))
        state.materialize = self.materialize
        ctx = FunctionCtx()
        ctx._gradmgr = state
        attributes = self.attributes
        if not self.attribute_values:
            state.saved = tuple([wrap(a) if a.__class__ is np.ndarray else copy_tensor(a) for a in kept])
            ctx.__dict__ = attributes
            return ctx
        count = len(kept) - len(self.attribute_values)
        state.saved = tuple([copy_tensor(value) for value in kept[:count]])
        replacements = {
            id(value): copy_tensor(tracked)
            for (value, _), tracked in zip(self.attribute_values, kept[count:], strict=True)
            if isinstance(tracked, Tensor)
        }
        if replacements:
            attributes = {name: _replace_values(value, replacements) for name, value in attributes.items()}
        ctx.__dict__ = attributes
        return ctx

    def _call(self, method: Any, ctx: FunctionCtx, given: list[Any]) -> Any:
        """Call a method of the class; the saved tensors can be read for as long as it runs."""
        try:
            return method(ctx, *given)
        except Exception as error:  # re-raised, with the method's name added
            error.add_note(f"(in {self.name}.{getattr(method, '__name__', method)})")
            raise
        finally:
            ctx._gradmgr.close()

    # ------------------------------------------------------------ reverse

    def gradients(
        self, node_ids: tuple[Any, ...], kept: tuple[Any, ...], outer: OuterRecorders, grads: dict[int, Any]
    ) -> list[Any]:
        """Return the gradient of each tracked argument, None for the others and where it is zero."""
        function = self.function
        rule = function.backward if is_placeholder(function.vjp) else function.vjp
        if is_placeholder(rule):
            raise errors.MissingRuleError(
                f"{self.name} must define the static method backward(ctx, *grad_outputs), or vjp, to be differentiated "
                "in reverse mode"
            )
        given = [self._grad_output(result, grads) for result in self.results]
        if not getattr(rule, "_once_differentiable", False):
            made = self._call(rule, self._make_ctx("backward", kept, node_ids), given)
            return self._checked_gradients(made, node_ids)
        gradients = self._checked_gradients(self._call_unrecorded(rule, node_ids, kept, given), node_ids)
        self._reject_second_derivatives(gradients, node_ids, outer, given)
        return gradients

    def _grad_output(self, result: ArrayMetadata | None, grads: dict[int, Any]) -> Tensor | None:
        if result is None:
            return None
        g = None if result.index is None else grads.get(result.index)
        if g is None:
            return result.zeros() if self.materialize else None
        return g if isinstance(g, Tensor) else wrap(g)

    def _call_unrecorded(self, rule: Any, node_ids: tuple[Any, ...], kept: tuple[Any, ...], given: list[Any]) -> Any:
        """Call a backward that is declared once_differentiable: on untracked tensors, unrecorded."""
        ctx = self._make_ctx("backward", tuple([bare(value) for value in kept]), node_ids)
        plain = [g if g is None else wrap(g._array) for g in given]
        return run_in(paused(current()), self._call, rule, ctx, plain)

    def _reject_second_derivatives(
        self, gradients: list[Any], node_ids: tuple[Any, ...], outer: OuterRecorders, given: list[Any]
    ) -> None:
        message = (
            f"{self.name}: its backward is declared once_differentiable, and this derivative would be a second one "
            "through it; remove the decorator if backward is written with differentiable functions"
        )
        ids_by_recorder = dict(outer)
        for rec in [rec for group in active_groups(current()) for rec in group if rec.open]:
            # A recorder that is not an outer one is the tape of this very backward: it records its own derivatives.
            sources = ids_by_recorder.get(rec, node_ids)
            sources += tuple([None if g is None else rec.node_id_of(g) for g in given])
            if any(node_id is not None for node_id in sources):
                for k, d in enumerate(gradients):
                    if d is not None:
                        gradients[k] = d if isinstance(d, Tensor) else wrap(d)
                        reject_derivatives(rec, gradients[k], sources, message)

    def _checked_gradients(self, made: Any, node_ids: tuple[Any, ...]) -> list[Any]:
        """Check what backward returned; return one gradient for each argument, None for the untracked."""
        gradients = list(made) if isinstance(made, (tuple, list)) else [made]
        count = len(self.arguments)
        too_many = len(gradients) > count and any(d is not None for d in gradients[count:])
        if len(gradients) < self.min_gradients or too_many:
            raise errors.FunctionError(
                f"{self._reverse_rule()} returned {len(gradients)} gradient{'s' * (len(gradients) != 1)} for {count} "
                f"argument{'s' * (count != 1)} of forward; return one for each, None where there is none"
            )
        if len(gradients) != count:
            gradients = gradients[:count] + [None] * (count - len(gradients))
        for k, d in enumerate(gradients):
            argument = self.arguments[k]
            if d is None or (node_ids[k] is not None and argument is not None and argument.is_that_of(d)):
                continue
            what = f"{self._reverse_rule()}: gradient {k}"
            if argument is None and k not in self.constants:
                raise errors.FunctionError(
                    f"{what} is {describe_value(d)}, but argument {k} was no Tensor; return None for it"
                )
            if argument is not None and node_ids[k] is not None:
                gradients[k] = _checked_derivative(d, argument, what, f"argument {k}")
            else:
                gradients[k] = None
                _check_is_array(d, what)
        return gradients

    def _reverse_rule(self) -> str:
        """Return what the user calls the method that computes gradients."""
        return f"{self.name}.{'backward' if is_placeholder(self.function.vjp) else 'vjp'}"

    # ------------------------------------------------------------ forward

    def tangents(self, node_ids: tuple[Any, ...], kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tangent of each differentiable result."""
        function = self.function
        if is_placeholder(function.jvp):
            raise errors.MissingRuleError(
                f"{self.name} must define the static method jvp(ctx, *grad_inputs) to be differentiated in forward mode"
            )
        given = [self._grad_input(m, node_id) for m, node_id in zip(self.arguments, node_ids, strict=True)]
        made = self._call(function.jvp, self._make_ctx("jvp", kept, node_ids), given)
        tangents = list(made) if isinstance(made, (tuple, list)) else [made]
        if len(tangents) != len(self.results):
            raise errors.FunctionError(
                f"{self.name}.jvp returned {len(tangents)} tangent{'s' * (len(tangents) != 1)} for {len(self.results)} "
                f"result{'s' * (len(self.results) != 1)} of forward; return one for each, None where there is none"
            )
        found = []
        for j, (t, result) in enumerate(zip(tangents, self.results, strict=True)):
            if result is not None and result.index is not None:
                if result.index != REPEATED:
                    what = f"{self.name}.jvp: tangent {j}"
                    found.append(result.zeros() if t is None else _checked_derivative(t, result, what, f"result {j}"))
            elif t is not None:
                why = "is no Tensor" if result is None else "was marked non-differentiable"
                if result is not None and not libraries.is_differentiable(result.dtype):
                    why = f"is of {result.dtype}"
                raise errors.FunctionError(
                    f"{self.name}.jvp: tangent {j} is {describe_value(t)}, but result {j} {why} and has none; return "
                    "None for it"
                )
        return tuple(found)

    def _grad_input(self, argument: ArrayMetadata | None, tangent: Any) -> Tensor | None:
        if tangent is not None:
            return tangent if isinstance(tangent, Tensor) else wrap(tangent)
        if argument is None or not libraries.is_differentiable(argument.dtype) or not self.materialize:
            return None
        return argument.zeros()


def _check_is_array(d: Any, what: str) -> None:
    if not (isinstance(d, (Tensor, bool, int, float, complex)) or libraries.is_array(d)):
        raise errors.DtypeError(f"{what} is a value of type {type(d).__name__}; it must be a Tensor, an array or None")
    libraries.check_plain(d, what)


def _checked_derivative(d: Any, expected: ArrayMetadata, what: str, of: str) -> Any:
    """Check a derivative that a method of the user's returned, and cast it to the dtype of its argument or result."""
    _check_is_array(d, what)
    is_number = isinstance(d, (bool, int, float, complex)) and not libraries.is_array(d)
    value = expected.library.asarray(d) if is_number else d
    if value.shape != expected.shape:
        raise errors.ShapeError(f"{what} has shape {value.shape}; it must have that of {of}, {expected.shape}")
    dtype = value.dtype
    if dtype.kind not in "biufc" and not libraries.is_differentiable(dtype):
        raise errors.DtypeError(f"{what} has dtype {dtype}; it must be numeric, as {of} has {expected.dtype}")
    if dtype.kind == "c" and expected.dtype.kind != "c":
        raise errors.DtypeError(
            f"{what} is complex, {dtype}, but {of} is real, {expected.dtype}; return the real part, as with .real"
        )
    if libraries.namespace(bare(value)).__name__ != expected.library.__name__:  # one on the host, one on the GPU
        raise errors.MixedArraysError(
            f"{what} lives on {libraries.device_of(bare(value))}, {of} does not; move it there"
        )
    return value if dtype == expected.dtype else as_type(value, expected.dtype)


# ---------------------------------------------------------------- the entry on a tape


def _entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> Entry:
    kept, sources, outer, node = params
    return ("Function", m, node_ids, kept, sources, outer, node)


def _metadata(e: Entry) -> Metadata:
    """Return (node id, shape, dtype) of the tracked arguments; only Tensors are tracked."""
    return tuple(
        [(node_id, m.shape, m.dtype) for node_id, m in zip(e[2], e[-1].arguments, strict=True) if node_id is not None]
    )


def _jvp(tangents: Any, values: Any, out: Any, params: Any) -> Any:
    kept, _, _, node = params
    return node.tangents(tangents, kept)


def _vjp(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    _, _, node_ids, kept, _, outer, node = e
    for node_id, d in zip(node_ids, node.gradients(node_ids, kept, outer, g), strict=True):
        if node_id is not None and d is not None:
            contribute(grads, owned, node_id, bare(d) if owned.plain else d)


def _vjp_unrecorded(e: Entry, g: Any, grads: Grads, owned: Ownership) -> NoReturn:
    raise errors.NotRecordedError(e[3])


def _retrack_entry(e: Entry, to: Retrack) -> Entry:
    code, m, node_ids, kept, sources, outer, node = e
    retracked = [_retrack_value(value, source, node_ids, node, to) for value, source in zip(kept, sources, strict=True)]
    return (code, m, node_ids, tuple(retracked), sources, outer, node)


def _retrack_value(value: Any, source: Source, node_ids: tuple[Any, ...], node: FunctionNode, to: Retrack) -> Any:
    if source is None:
        return to(value, None)
    kind, which = source
    if kind == "argument":
        return to(value, node_ids[which])
    if kind == "result":
        index = node.results[which].index  # type: ignore[union-attr]  # what is kept of a result is a Tensor
        return to(value, None if index is None else Result(index))
    node_id = object()
    handle = to(value, node_id)
    if isinstance(handle, Tensor):
        for rec in recorders(current()):
            if isinstance(rec, Tape) and rec.node_id_of(handle) is node_id:  # the tape records its own derivatives
                rec.entries.append(("Function.unrecorded", node_id, node_ids, unrecorded_message(node.name, which)))
    return handle


# This op is not in OPS: a class is freed with its last user, and each entry carries its own.
FUNCTION_OP = Op("Function", lambda *arrays: arrays)
FUNCTION_OP.entry, FUNCTION_OP.jvp, FUNCTION_OP.runs = _entry, _jvp, "steps"
declare_kind("Function", Kind("Function", ids_in_tuple, _metadata, _retrack_entry, lambda e: e[-1].name, "steps"), _vjp)
declare_kind("Function.unrecorded", Kind("Function.unrecorded", ids_in_tuple), _vjp_unrecorded)
