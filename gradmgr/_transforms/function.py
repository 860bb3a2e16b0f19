"""How a Function is applied, recorded and differentiated.

A Function is computed with every recorder hidden; each that knows an argument then takes it down as
one entry, which carries the class, what was saved, and where each saved thing stood: among the arguments,
among the results, or nowhere. What stood somewhere is handed to `backward` as a handle that the
recorders below know by the argument's or the result's mark, so derivatives of derivatives see through it.
What stood nowhere is handed over too, and raises where a derivative would have to flow through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import Level, holds, share, top
from gradmgr._engine.custom import Result, input_metadata, input_node_ids
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import INPUTS, METADATA, NAMES, PULLS, RETRACKS, Grads, Op, Owned, Retrack, accumulate
from gradmgr._engine.recorder import (
    Recorder,
    Stack,
    activated,
    current,
    hidden,
    interceptors_of,
    rebind,
    recorders,
    snapshot,
)
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, raw, wrap
from gradmgr._transforms.vmap import _enter, _leave

F = TypeVar("F", bound=Callable[..., Any])
Entry = tuple[Any, ...]
# Where a kept value stood: ("argument", k), ("result", j), ("nowhere", what it is called); None for a constant.
Source = tuple[str, Any] | None
# The recorders below one, and what each calls the arguments.
Below = tuple[tuple[Recorder, tuple[Any, ...]], ...]


# ---------------------------------------------------------------- methods a class need not have


def absent(method: F) -> F:
    """Mark a method of the base class that only says what is missing."""
    method._absent = True  # type: ignore[attr-defined]  # what `is_absent` asks for
    return method


def is_absent(method: Any) -> bool:
    """Tell whether a class has left a method to the base class."""
    return getattr(method, "_absent", False) is True


# ---------------------------------------------------------------- ctx


class _Work:
    """What a ctx knows; apart, so that users may call their own attributes as they like."""

    __slots__ = (
        *("dirty", "for_backward", "for_forward", "materialize", "name", "needs"),
        *("non_differentiable", "phase", "saved"),
    )

    def __init__(self, name: str, phase: str, needs: tuple[bool, ...]) -> None:
        self.name = name
        self.phase = phase  # "forward", "backward", "jvp", "over"
        self.needs = needs
        self.saved: tuple[Any, ...] | None = None
        self.for_backward: tuple[Any, ...] = ()
        self.for_forward: tuple[Any, ...] | None = None
        self.dirty: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize = True

    def close(self) -> None:
        """Forget the tensors."""
        self.phase = "over"
        self.saved = self.for_forward = None
        self.for_backward = self.dirty = self.non_differentiable = ()


class FunctionCtx:
    """What the methods of a `Function` tell each other: saved tensors, facts, and attributes of the user's own.

    `forward` or `setup_context` fill it, `backward` and `jvp` read it. Any other attribute may be set on
    it. Tensors and arrays of a floating or complex dtype that are set as attributes, also inside lists,
    tuples and dicts, are followed like saved tensors where derivatives are themselves recorded.
    """

    __slots__ = ("__dict__", "__weakref__", "_gradmgr")

    _gradmgr: _Work

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors, or None, for `backward`, which finds them in `ctx.saved_tensors`.

        Arguments and results of the Function may be differentiated through any number of times; of
        anything else that is saved, the second derivative raises where it would depend on it.

        Raises:
            TypeError: something is neither a Tensor nor None; set it as an attribute of ctx.
            RuntimeError: called elsewhere than in forward or setup_context.
        """
        work = self._filling("save_for_backward")
        _check_tensors(tensors, f"{work.name}: ctx.save_for_backward", "set anything else as an attribute of ctx")
        work.for_backward = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors, or None, for `jvp`, which finds them in `ctx.saved_tensors`.

        Where this is not called, `jvp` finds there what save_for_backward kept.

        Raises:
            TypeError, RuntimeError: as `save_for_backward`.
        """
        work = self._filling("save_for_forward")
        _check_tensors(tensors, f"{work.name}: ctx.save_for_forward", "set anything else as an attribute of ctx")
        work.for_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say that these arguments were written to in place; each must be returned by `forward`.

        The caller's Tensor then becomes the result, the same object, for every recorder. Memory is not
        written: `x *= 2` binds x to a new array, as everywhere in gradmgr.

        Raises:
            TypeError: something is no Tensor.
            RuntimeError: called elsewhere than in forward or setup_context; when forward is done, that a
                tensor is no argument or was not returned.
        """
        work = self._filling("mark_dirty")
        _check_tensors(tensors, f"{work.name}: ctx.mark_dirty", "mark the argument that was written to", none=False)
        work.dirty = tensors

    def mark_non_differentiable(self, *results: Any) -> None:
        """Say that these results are constants for derivatives; results of integers are without being marked.

        `backward` receives zeros for them, None after `set_materialize_grads(False)`.

        Raises:
            RuntimeError: called elsewhere than in forward or setup_context; when forward is done, that
                something marked was not returned.
        """
        self._filling("mark_non_differentiable").non_differentiable = results

    def set_materialize_grads(self, value: bool) -> None:
        """Choose what `backward` and `jvp` receive where no gradient or tangent came: zeros, the default, or None.

        Raises:
            RuntimeError: called elsewhere than in forward or setup_context.
        """
        self._filling("set_materialize_grads").materialize = bool(value)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved, as new Tensors of the same values.

        Raises:
            RuntimeError: they have been freed: read outside backward and jvp.
        """
        work = self._gradmgr
        if work.phase == "forward":
            return work.for_backward
        if work.saved is None:
            raise errors.FunctionError(
                f"{work.name}: ctx.saved_tensors was read after the saved tensors were freed; read it inside "
                "backward or jvp, and keep what is needed later elsewhere"
            )
        return work.saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each positional argument, whether its gradient is asked for."""
        return self._gradmgr.needs

    def _filling(self, asked: str) -> _Work:
        work = self._gradmgr
        if work.phase != "forward":
            raise errors.FunctionError(
                f"{work.name}: ctx.{asked} was called when forward was over; call it in forward or setup_context, "
                "where it takes effect"
            )
        return work


def _check_tensors(values: tuple[Any, ...], asked: str, advice: str, *, none: bool = True) -> None:
    for k, value in enumerate(values):
        if not (isinstance(value, Tensor) or (none and value is None)):
            raise TypeError(f"{asked} takes Tensors; number {k} is {type(value).__name__}; {advice}")


# ---------------------------------------------------------------- applying


class _Fact:
    """Shape, dtype and library of an array, and where a differentiable result stands among those."""

    __slots__ = ("dtype", "library", "position", "shape")

    def __init__(self, array: Any, position: int | None = None) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype
        self.library = np if array.__class__ is np.ndarray else libraries.namespace(array)
        self.position = position

    def zeros(self) -> Tensor:
        return wrap(self.library.zeros(self.shape, self.dtype))


class _Hearer:
    """A recorder that knows an argument: its marks, the recorders below it, and what those call the arguments."""

    __slots__ = ("node_ids", "outer", "rec")

    def __init__(self, rec: Recorder, node_ids: tuple[Any, ...], below: Below) -> None:
        self.rec = rec
        self.node_ids = node_ids
        self.outer = below


def _groups(state: Any) -> tuple[tuple[Recorder, ...], ...]:
    """Return who listens, outermost group first."""
    if state is None:
        return ()
    return state.groups if isinstance(state, Stack) else ((state,),)


def _hearers(state: Any, args: tuple[Any, ...]) -> list[_Hearer]:
    found: list[_Hearer] = []
    below: Below = ()
    for group in _groups(state):
        here: Below = ()
        for rec in group:
            if rec.open:
                node_ids = tuple([rec.node_id_of(t) if isinstance(t, Tensor) else None for t in args])
                if any(node_id is not None for node_id in node_ids):
                    found.append(_Hearer(rec, node_ids, below))
                # What a Forward calls a tensor is its tangent, which is not to be kept.
                kept = node_ids if rec.is_tape else tuple([None if node_id is None else True for node_id in node_ids])
                here = (*here, (rec, kept))
        below += here
    return found


class Application:
    """One call of `apply`, while it lasts."""

    def __init__(self, function: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _check_methods(function)
        self.function = function
        self.name = function.__name__
        self.needed = len(args)  # gradients that backward must return at least
        self.with_ctx = is_absent(function.setup_context)
        self.args, self.keywords = _bound(function, args, kwargs, self.with_ctx)
        self.callers = self.args  # the caller's own, where a watcher replaces some
        for k, t in enumerate(self.args):
            if isinstance(t, Tensor):
                self.needed = max(self.needed, k + 1)
        for name, value in self.keywords.items():
            if isinstance(value, Tensor) and is_listened_to(value):
                raise errors.FunctionError(
                    f"{self.name}.apply: {name}=, {describe(value)}, is tracked, but forward takes it by name only "
                    "and so gives it no gradient; let forward take it by position, or pass its detach()"
                )

    def run(self) -> Any:
        state = current()
        interceptors = interceptors_of(state)
        op = Op(self.name, self.function.forward)  # what the watchers take it for
        for interceptor in interceptors:
            self.args = interceptor.given(op, self.args, ())
        if not is_absent(self.function.vmap):
            level = top([t._array for t in self.args if isinstance(t, Tensor)])
            if level is not None:
                with activated(_outside(state, level)):
                    return self._over_examples(level)
        self.before = tuple([raw(t) for t in self.args])
        self.outer_recorders = _hearers(state, self.args)
        handles = {id(t): wrap(t._array) for t in self.args if isinstance(t, Tensor)}
        self.given = tuple([handles.get(id(t), t) for t in self.args])
        needs = (False,) * len(self.args)
        for hearer in self.outer_recorders:
            needs = tuple([need or node_id is not None for need, node_id in zip(needs, hearer.node_ids, strict=True)])
        self.work = _Work(self.name, "forward", needs)
        ctx = FunctionCtx()
        ctx._gradmgr = self.work
        try:
            with activated(hidden(state)):
                output = self._forward(ctx)
            self.parts = output if isinstance(output, tuple) else (output,)
            self._check()
            self.results = [_as_result(part, self.name, j) for j, part in enumerate(self.parts)]
            arrays = tuple([z._array for z in self.results if isinstance(z, Tensor)])
            for interceptor in interceptors:
                if interceptor.open:
                    interceptor.made(op, self.args, (), arrays)
            self._note(ctx)
            results = self._rebound()
        finally:
            self.work.close()
        return _as_returned(output, results)

    def _over_examples(self, level: Level) -> Any:
        """Call the class's own `vmap`, with the examples of a level as an axis in the open."""
        given, in_dims = [], []
        for t in self.args:
            differs = isinstance(t, Tensor) and (holds(t._array, level) or is_listened_to(t))
            given.append(_leave(_differing(t, level), level, 0) if differs else t)
            in_dims.append(0 if differs else None)
        info = VmapInfo(level.size, getattr(level, "randomness", "error"))
        made = self.function.vmap(info, tuple(in_dims), *given, **self.keywords)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise errors.FunctionError(
                f"{self.name}.vmap must return two things, (output, out_dims); found {called(made)}"
            )
        output, out_dims = made
        parts = output if isinstance(output, tuple) else (output,)
        dims = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(parts)
        if len(dims) != len(parts):
            raise errors.FunctionError(
                f"{self.name}.vmap returned {len(parts)} results and {len(dims)} out_dims for them"
            )
        return _as_returned(
            output, [self._hidden(part, dim, level, j) for j, (part, dim) in enumerate(zip(parts, dims, strict=True))]
        )

    def _hidden(self, part: Any, dim: Any, level: Level, j: int) -> Any:
        """Return a result of the class's own `vmap` with its axis of examples hidden again."""
        if not (isinstance(part, Tensor) or is_numeric(part)):
            return part
        t = part if isinstance(part, Tensor) else wrap(part)
        if dim is None:
            return t
        if not isinstance(dim, int) or not -t.ndim <= dim < t.ndim or t.shape[dim] != level.size:
            raise errors.ShapeError(
                f"{self.name}.vmap: result {j} has shape {t.shape} and out_dims {dim!r}; there must be an axis of the "
                f"{level.size} examples, or None"
            )
        return _enter(t, level, dim % t.ndim)

    def _forward(self, ctx: FunctionCtx) -> Any:
        if self.with_ctx:
            return self.function.forward(ctx, *self.given, **self.keywords)
        output = self.function.forward(*self.given, **self.keywords)
        self.function.setup_context(ctx, self.given, output)
        return output

    # ------------------------------------------------------------ checks

    def _check(self) -> None:
        work, name = self.work, self.name
        if not any(isinstance(part, Tensor) or is_numeric(part) for part in self.parts):
            found = ", ".join(type(part).__name__ for part in self.parts) or "an empty tuple"
            raise errors.FunctionError(
                f"{name}.forward returned {found}; it must return a Tensor or an array, or a tuple with at least one"
            )
        for t in work.dirty:
            if not _stands_in(t, self.given):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_dirty was given {describe(t)} that is no argument of forward; mark the "
                    "argument that was written to in place"
                )
            if not _stands_in(t, self.parts):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_dirty was given argument {_place(t, self.given)}, which forward did not return; "
                    "what is written to in place must be returned"
                )
        for value in work.non_differentiable:
            if not _stands_in(value, self.parts):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_non_differentiable was given {called(value)} that forward did not return"
                )
        for k, (t, handle, before) in enumerate(zip(self.args, self.given, self.before, strict=True)):
            if not isinstance(t, Tensor):
                continue
            if t._array is not before or (handle._array is not before and not _stands_in(handle, work.dirty)):
                raise errors.FunctionError(
                    f"{name}.forward wrote to argument {k}, {describe(t)}, in place; call ctx.mark_dirty on it and "
                    "return it, or compute on a copy: x = x * 2, not x *= 2"
                )

    # ------------------------------------------------------------ noting

    def _note(self, ctx: FunctionCtx) -> None:
        """Let each hearer take down what was computed, outermost first."""
        if not self.outer_recorders:
            return
        differentiable = [
            (j, z)
            for j, (part, z) in enumerate(zip(self.parts, self.results, strict=True))
            if isinstance(z, Tensor)
            and libraries.is_differentiable(z.dtype)
            and not _stands_in(part, self.work.non_differentiable)
        ]
        if not differentiable:
            return
        positions = {j: position for position, (j, _) in enumerate(differentiable)}
        zs = tuple([z for _, z in differentiable])
        arrays = tuple([z._array for z in zs])
        node, places = self._node(ctx, positions), None
        for hearer in self.outer_recorders:
            if not hearer.rec.open:
                continue
            forward = self.work.for_forward
            saved = self.work.for_backward if hearer.rec.is_tape or forward is None else forward
            values = [(value, f"saved tensor {k}") for k, value in enumerate(saved)] + node.stash
            if values and places is None:
                places = self._places()
            sources = tuple([self._source(value, places, label) for value, label in values])
            kept = tuple([self._kept(v, source, hearer) for (v, _), source in zip(values, sources, strict=True)])
            params = (kept, sources, hearer.outer, node)
            hearer.rec.record_op(_NOTED, hearer.node_ids, (), arrays, params, zs)

    def _node(self, ctx: FunctionCtx, positions: dict[int, int]) -> _Node:
        arguments = [_Fact(t._array) if isinstance(t, Tensor) else None for t in self.args]
        results = [
            _Fact(z._array, positions.get(j)) if isinstance(z, Tensor) else None for j, z in enumerate(self.results)
        ]
        constants = frozenset(
            [k for k, t in enumerate(self.args) if not isinstance(t, Tensor) and libraries.is_array(t)]
        )
        made = _Node(self.function, tuple(arguments), tuple(results), constants, self.needed)
        made.attributes = ctx.__dict__
        made.stash = _stash(ctx.__dict__) if ctx.__dict__ else []
        made.materialize = self.work.materialize
        return made

    def _places(self) -> dict[int, Source]:
        """Map ids of arguments and results, and of their arrays, to where they stand."""
        places: dict[int, Source] = {}
        dirty = self.work.dirty
        for k, (t, handle, before) in enumerate(zip(self.args, self.given, self.before, strict=True)):
            source = ("argument", k) if isinstance(t, Tensor) else None
            places.setdefault(id(before), source)
            if not dirty or not _stands_in(handle, dirty):
                places.setdefault(id(handle), source)
        for j, part in enumerate(self.parts):
            if isinstance(self.results[j], Tensor):
                places.setdefault(id(part), ("result", j))
                places.setdefault(id(raw(part)), ("result", j))
        return places

    def _source(self, value: Any, places: Any, label: str) -> Source:
        if value is None or not libraries.is_differentiable(value.dtype):
            return None
        for key in (id(value), id(raw(value))):
            if key in places:
                found: Source = places[key]
                return found
        return ("nowhere", label)

    def _kept(self, value: Any, source: Source, hearer: _Hearer) -> Any:
        """Return what an entry of this recorder keeps: a handle that the recorders below know, or the array."""
        if source is None:
            return raw(value)
        kind, which = source
        lower = [rec for rec, _ in hearer.outer]
        if kind == "argument":
            return snapshot(self.args[which], lower)
        if kind == "result":
            return snapshot(self.results[which], lower)
        kept = snapshot(value, lower)
        for rec, node_ids in hearer.outer:
            if rec.open and any(node_id is not None for node_id in node_ids):
                kept = kept if isinstance(kept, Tensor) else wrap(kept)
                if rec.node_id_of(kept) is None:
                    _forbid(rec, kept, node_ids, _unseen(self.name, which))
        return kept

    def _rebound(self) -> list[Any]:
        """Return the results; the caller's tensor where forward wrote to it in place."""
        found = self.results
        if not self.work.dirty:
            return found
        for t, handle in zip(self.callers, self.given, strict=True):
            if _stands_in(handle, self.work.dirty):
                where = [j for j, part in enumerate(self.parts) if part is handle]
                rebind(t, self.results[where[0]])
                for j in where:
                    found[j] = t
        return found


def _as_returned(output: Any, results: list[Any]) -> Any:
    """Give the results the form that forward gave them."""
    if not isinstance(output, tuple):
        return results[0]
    make = getattr(type(output), "_make", tuple)  # a named tuple's own
    return make(results)


def is_listened_to(t: Tensor) -> bool:
    """Tell whether a recorder that listens in this context knows a tensor."""
    return any(rec.open and rec.node_id_of(t) is not None for group in _groups(current()) for rec in group)


def _outside(state: Any, level: Level) -> Any:
    """Return the state with all who listen, without the vmap that watches over this level."""
    if not isinstance(state, Stack):
        return state
    return Stack(
        state.groups, state.everyone, tuple([w for w in state.interceptors if getattr(w, "level", None) is not level])
    )


def _differing(t: Tensor, level: Level) -> Tensor:
    """Return a tensor with an axis of examples: each recorder's gradient of it belongs to the example."""
    if holds(t._array, level):
        return t
    shared: Tensor = _handle(t)
    shared._array = share(t._array, level)
    for rec in recorders(current()):
        node_id = rec.node_id_of(t) if rec.open else None
        if node_id is not None:
            rec.track(shared, node_id)
    return shared


class VmapInfo:
    """What a Function's `vmap` is told: the number of examples, and what vmap was told of random numbers."""

    __slots__ = ("batch_size", "randomness")

    def __init__(self, batch_size: int, randomness: str) -> None:
        self.batch_size = batch_size
        self.randomness = randomness


def _stands_in(value: Any, values: tuple[Any, ...]) -> bool:
    return id(value) in map(id, values)


def _place(value: Any, values: tuple[Any, ...]) -> int:
    return next(k for k, other in enumerate(values) if value is other)


def called(value: Any) -> str:
    """Name a value in an error."""
    return describe(value) if isinstance(value, Tensor) else f"a value of type {type(value).__name__}"


def is_numeric(value: Any) -> bool:
    """Tell whether a value is an array of numbers."""
    return libraries.is_array(value) and (value.dtype.kind in "biufc" or libraries.is_differentiable(value.dtype))


def _as_result(part: Any, name: str, j: int) -> Any:
    """Return a Tensor of its own for a Tensor or an array, anything else as it is."""
    if isinstance(part, Tensor) or is_numeric(part):
        return wrap(raw(part))
    if isinstance(part, (list, dict)):
        held = part.values() if isinstance(part, dict) else part
        if any(isinstance(value, Tensor) for value in held):
            raise errors.FunctionError(
                f"{name}.forward: result {j} is a {type(part).__name__} with Tensors in it, which would get no "
                "gradient; return a tuple of Tensors, and put it into a container outside"
            )
    return part


def _check_methods(function: type[Any]) -> None:
    if not is_absent(function.backward) and not is_absent(function.vjp):
        raise errors.FunctionError(
            f"{function.__name__} defines both backward and vjp, two names of one method; define one of them"
        )
    if function.generate_vmap_rule and not is_absent(function.vmap):
        raise errors.FunctionError(
            f"{function.__name__} defines vmap and asks for one to be made, by generate_vmap_rule; do one of the two"
        )
    if is_absent(function.forward):
        raise errors.MissingRuleError(f"{function.__name__} must define the static method forward(ctx, *args)")


def _bound(
    function: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any], with_ctx: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position, as far as forward takes them so, and the rest by name.

    Beside setup_context, which is given the arguments, defaults count as given.
    """
    forward = function.forward
    if not kwargs and (with_ctx or not getattr(forward, "__defaults__", None)):
        return args, {}
    import inspect  # late, as it takes 10 ms to import

    signature = inspect.signature(forward)
    try:
        bound = signature.bind(*([None] if with_ctx else []), *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}.apply: {error}") from None
    bound.apply_defaults()
    by_position = bound.args[1 if with_ctx else 0 :]
    if with_ctx:  # what stands past the last that was given stays away
        names = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        last = max((names.index(name) + 1 for name in kwargs if name in names), default=0)
        by_position = by_position[: max(last, len(args))]
    by_name = {name: value for name, value in bound.kwargs.items() if name in kwargs}
    return by_position, by_name


def _stash(attributes: dict[str, Any]) -> list[tuple[Any, str]]:
    """Find the Tensors and arrays that carry derivatives among a ctx's attributes, and in containers there."""
    found: dict[int, tuple[Any, str]] = {}
    seen: set[int] = set()
    waiting = [(value, f"the attribute ctx.{name}") for name, value in attributes.items()]
    while waiting:
        value, label = waiting.pop()
        if isinstance(value, Tensor) or libraries.is_array(value):
            if libraries.is_differentiable(value.dtype):
                found.setdefault(id(value), (value, label))
        elif value.__class__ in (list, tuple, dict) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(inner, label) for inner in (value.values() if value.__class__ is dict else value)]
    return list(found.values())


def _swapped(value: Any, swap: dict[int, Any]) -> Any:
    """Return a container with some of the values in it replaced."""
    if id(value) in swap:
        return swap[id(value)]
    if value.__class__ is dict:
        return {key: _swapped(inner, swap) for key, inner in value.items()}
    if value.__class__ in (list, tuple):
        return value.__class__([_swapped(inner, swap) for inner in value])
    return value


# ---------------------------------------------------------------- what must not be differentiated


def _unseen(name: str, what: str) -> str:
    return (
        f"{name}: this derivative depends on {what}, which forward computed where no manager could see how; "
        "save arguments or results of the Function and compute it from them in backward, return it as a further "
        "result, or, if it is a constant, pass it as an argument"
    )


def _forbid(rec: Recorder, t: Tensor, sources: tuple[Any, ...], why: str) -> None:
    """Let `rec` know `t`, computed from what has these marks, by one that raises where a derivative comes to it."""
    if isinstance(rec, Tape):
        node_id = object()
        rec.entries.append(("Function.unseen", node_id, sources, why))
        rec.track(t, node_id)
    else:
        rec.track(t, _Forbidden(why))


class _Forbidden:
    """A tangent that raises when it is used."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        self._why = why

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.NotRecordedError(self._why)

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.NotRecordedError(self._why)

    __array__ = __array_ufunc__ = __array_function__ = __len__ = __iter__ = __getitem__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __float__ = _refuse


def _pull_unseen(e: Entry, g: Any, grads: Grads, owned: Owned) -> NoReturn:
    raise errors.NotRecordedError(e[3])


# ---------------------------------------------------------------- differentiating


class _Node:
    """What the entries of one application share."""

    __slots__ = (
        *("arguments", "attributes", "constants", "facts", "function"),
        *("materialize", "name", "needed", "results", "stash"),
    )

    def __init__(
        self,
        function: type[Any],
        arguments: tuple[_Fact | None, ...],
        results: tuple[_Fact | None, ...],
        constants: frozenset[int],
        needed: int,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.arguments = arguments
        self.facts = tuple([None if fact is None else (fact.shape, fact.dtype) for fact in arguments])
        self.results = results
        self.constants = constants  # which arguments are plain arrays
        self.needed = needed
        self.attributes: dict[str, Any] = {}
        self.stash: list[tuple[Any, str]] = []  # what the user set on ctx, and what to call it
        self.materialize = True

    def _ctx(self, phase: str, kept: tuple[Any, ...], node_ids: tuple[Any, ...]) -> FunctionCtx:
        """Make the ctx for one call of backward or jvp."""
        work = _Work(self.name, phase, tuple([node_id is not None for node_id in node_ids]))
        work.materialize = self.materialize
        count = len(kept) - len(self.stash)
        work.saved = tuple([_handle(value) for value in kept[:count]])
        swap = {
            id(value): _handle(known)
            for (value, _), known in zip(self.stash, kept[count:], strict=True)
            if isinstance(known, Tensor)
        }
        ctx = FunctionCtx()
        ctx._gradmgr = work
        attributes = self.attributes
        if swap:
            attributes = {name: _swapped(value, swap) for name, value in attributes.items()}
        ctx.__dict__ = attributes
        return ctx

    # ------------------------------------------------------------ reverse

    def gradients(
        self, node_ids: tuple[Any, ...], kept: tuple[Any, ...], below: Below, parts: dict[int, Any]
    ) -> list[Any]:
        """Return the gradient of each tracked argument, None elsewhere and where it is zero."""
        function = self.function
        rule = function.backward if is_absent(function.vjp) else function.vjp
        if is_absent(rule):
            raise errors.MissingRuleError(
                f"{self.name} must define the static method backward(ctx, *grad_outputs), or vjp, to be differentiated "
                "in reverse mode"
            )
        given = [self._grad_output(fact, parts) for fact in self.results]
        if getattr(rule, "_once_differentiable", False):
            found = self._call_once(rule, node_ids, kept, given)
            fitted = self._fitted_gradients(found, node_ids)
            self._forbid_further(fitted, node_ids, below, given)
            return fitted
        return self._fitted_gradients(self._call(rule, self._ctx("backward", kept, node_ids), given), node_ids)

    def _call(self, method: Any, ctx: FunctionCtx, given: list[Any]) -> Any:
        """Call a method of the class; the saved tensors are there for as long as it runs."""
        try:
            return method(ctx, *given)
        except Exception as error:  # whatever it is, it goes on, with the method's name
            error.add_note(f"(in {self.name}.{getattr(method, '__name__', method)})")
            raise
        finally:
            ctx._gradmgr.close()

    def _grad_output(self, fact: _Fact | None, parts: dict[int, Any]) -> Tensor | None:
        if fact is None:
            return None
        g = None if fact.position is None else parts.get(fact.position)
        if g is None:
            return fact.zeros() if self.materialize else None
        return g if isinstance(g, Tensor) else wrap(g)

    def _call_once(self, rule: Any, node_ids: tuple[Any, ...], kept: tuple[Any, ...], given: list[Any]) -> Any:
        """Call a backward that is not to be recorded, on tensors that nobody knows."""
        ctx = self._ctx("backward", tuple([raw(value) for value in kept]), node_ids)
        with activated(hidden(current())):
            return self._call(rule, ctx, [g if g is None else wrap(g._array) for g in given])

    def _forbid_further(self, found: list[Any], node_ids: tuple[Any, ...], below: Below, given: list[Any]) -> None:
        why = (
            f"{self.name}: its backward is declared once_differentiable, and this derivative would be a second one "
            "through it; remove the decorator if backward is written with differentiable functions"
        )
        known = dict(below)
        for rec in [rec for group in _groups(current()) for rec in group if rec.open]:
            # Who is not among those below is the tape that is walked: it records its own derivatives.
            sources = known.get(rec, node_ids) + tuple([None if g is None else rec.node_id_of(g) for g in given])
            if any(node_id is not None for node_id in sources):
                for k, d in enumerate(found):
                    if d is not None:
                        found[k] = d if isinstance(d, Tensor) else wrap(d)
                        _forbid(rec, found[k], sources, why)

    def _fitted_gradients(self, found: Any, node_ids: tuple[Any, ...]) -> list[Any]:
        method = "backward" if is_absent(self.function.vjp) else "vjp"
        gradients = list(found) if isinstance(found, (tuple, list)) else [found]
        count = len(self.arguments)
        if len(gradients) < self.needed or any(d is not None for d in gradients[count:]):
            raise errors.FunctionError(
                f"{self.name}.{method} returned {len(gradients)} gradient{'s' * (len(gradients) != 1)} for {count} "
                f"argument{'s' * (count != 1)} of forward; return one for each, None where there is none"
            )
        gradients = gradients[:count] + [None] * (count - len(gradients))
        for k, d in enumerate(gradients):
            what = f"{self.name}.{method}: gradient {k}"
            fact = self.arguments[k]
            if d is None:
                continue
            if fact is None and k not in self.constants:
                raise errors.FunctionError(f"{what} is {called(d)}, but argument {k} was no Tensor; return None for it")
            if fact is not None and node_ids[k] is not None:
                gradients[k] = _fitted(d, fact, what, f"argument {k}")
            else:
                gradients[k] = None
                _check_kind(d, what)
        return gradients

    # ------------------------------------------------------------ forward

    def tangents(self, node_ids: tuple[Any, ...], kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tangent of each differentiable result."""
        function = self.function
        if is_absent(function.jvp):
            raise errors.MissingRuleError(
                f"{self.name} must define the static method jvp(ctx, *grad_inputs) to be differentiated in forward mode"
            )
        given = [self._grad_input(fact, node_id) for fact, node_id in zip(self.arguments, node_ids, strict=True)]
        found = self._call(function.jvp, self._ctx("jvp", kept, node_ids), given)
        many = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(many) != len(self.results):
            raise errors.FunctionError(
                f"{self.name}.jvp returned {len(many)} tangent{'s' * (len(many) != 1)} for {len(self.results)} "
                f"result{'s' * (len(self.results) != 1)} of forward; return one for each, None where there is none"
            )
        fitted = []
        for j, (t, fact) in enumerate(zip(many, self.results, strict=True)):
            if fact is not None and fact.position is not None:
                fitted.append(
                    fact.zeros() if t is None else _fitted(t, fact, f"{self.name}.jvp: tangent {j}", f"result {j}")
                )
        return tuple(fitted)

    def _grad_input(self, fact: _Fact | None, node_id: Any) -> Tensor | None:
        if node_id is not None:
            return node_id if isinstance(node_id, Tensor) else wrap(node_id)
        return fact.zeros() if fact is not None and self.materialize else None


def _handle(value: Any) -> Any:
    """Return a new Tensor that is known as this one is, or that nobody knows where this is an array."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        return wrap(value)
    made = wrap(value._array)
    if value._rec is not None:
        made._rec, made._node_id = value._rec, value._node_id
        made._overflow_ids = getattr(value, "_overflow_ids", {})
    return made


def _check_kind(d: Any, what: str) -> None:
    if not (isinstance(d, (Tensor, bool, int, float, complex)) or libraries.is_array(d)):
        raise errors.DtypeError(f"{what} is a value of type {type(d).__name__}; it must be a Tensor, an array or None")


def _fitted(d: Any, fact: _Fact, what: str, whose: str) -> Any:
    """Check a derivative that a method of the user's returned, and cast it."""
    _check_kind(d, what)
    value = fact.library.asarray(d) if isinstance(d, (bool, int, float, complex)) and not libraries.is_array(d) else d
    if value.shape != fact.shape:
        raise errors.ShapeError(f"{what} has shape {value.shape}; it must have that of {whose}, {fact.shape}")
    dtype = value.dtype
    if dtype.kind not in "biufc" and not libraries.is_differentiable(dtype):
        raise errors.DtypeError(f"{what} has dtype {dtype}; it must be numeric, as {whose} has {fact.dtype}")
    if dtype.kind == "c" and fact.dtype.kind != "c":
        raise errors.DtypeError(
            f"{what} is complex, {dtype}, but {whose} is real, {fact.dtype}; return the real part, as with .real"
        )
    if libraries.namespace(raw(value)).__name__ != fact.library.__name__:  # of the host, or of the GPU
        raise errors.MixedArraysError(
            f"{what} lives on {libraries.device_of(raw(value))}, {whose} does not; move it there"
        )
    return value if dtype == fact.dtype else as_type(value, fact.dtype)


def _entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> Entry:
    kept, sources, below, node = params
    return ("Function", m, node_ids, node.facts, kept, sources, below, node)


def _push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
    kept, _, _, node = params
    return node.tangents(tangents, kept)


def _pull(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    _, _, node_ids, _, kept, _, below, node = e
    recorded = owned.__class__ is not set
    for node_id, d in zip(node_ids, node.gradients(node_ids, kept, below, g), strict=True):
        if node_id is not None and d is not None:
            accumulate(grads, owned, node_id, d if recorded else raw(d))


def _link(e: Entry, to: Retrack) -> Entry:
    code, m, node_ids, facts, kept, sources, below, node = e
    retracked = [_retracked(value, source, node_ids, node, to) for value, source in zip(kept, sources, strict=True)]
    return (code, m, node_ids, facts, tuple(retracked), sources, below, node)


def _retracked(value: Any, source: Source, node_ids: tuple[Any, ...], node: _Node, to: Retrack) -> Any:
    if source is None:
        return to(value, None)
    kind, which = source
    if kind == "argument":
        return to(value, node_ids[which])
    if kind == "result":
        position = node.results[which].position  # type: ignore[union-attr]  # what is kept of a result is a Tensor
        return to(value, None if position is None else Result(position))
    node_id = object()
    handle = to(value, node_id)
    if isinstance(handle, Tensor):
        for rec in recorders(current()):
            if isinstance(rec, Tape) and rec.node_id_of(handle) is node_id:  # a derivative that the tape itself records
                rec.entries.append(("Function.unseen", node_id, node_ids, _unseen(node.name, which)))
    return handle


# Not in OPS: a class dies with its last user, and each entry carries its own.
_NOTED = Op("Function", lambda *arrays: arrays)
_NOTED.entry, _NOTED.push = _entry, _push
PULLS["Function"] = _pull
INPUTS["Function"] = input_node_ids
METADATA["Function"] = input_metadata
RETRACKS["Function"] = _link
NAMES["Function"] = lambda e: e[-1].name
PULLS["Function.unseen"] = _pull_unseen
INPUTS["Function.unseen"] = input_node_ids
