"""One call of `Function.apply`: run forward, check what it did, and record it.

`forward` runs with every recorder paused. Then each recorder that tracks an argument, the outermost first,
records the call as one entry (`function_node`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import Level, broadcast_over_examples, highest_level, is_batched_at
from gradmgr._arrays.listening import Listener
from gradmgr._engine.context import Context, current, interceptors_of, paused, rebind, recorders, run_in
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.op import Op
from gradmgr._engine.recorder import Recorder, snapshot
from gradmgr._engine.tensor import Tensor, alike, bare, describe, wrap
from gradmgr._transforms.function_context import ContextState, FunctionCtx
from gradmgr._transforms.function_node import (
    FUNCTION_OP,
    REPEATED,
    ArrayMetadata,
    FunctionNode,
    OuterRecorders,
    Source,
    active_groups,
    copy_tensor,
    describe_value,
    is_actively_tracked,
    is_numeric,
    is_placeholder,
    reject_derivatives,
    unrecorded_message,
)
from gradmgr._transforms.vmap import batch_op, unbatch_op


class FunctionCall:
    """One call of `apply`, while it runs."""

    def __init__(self, function: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_methods(function)
        self.function = function
        self.name = function.__name__
        self.takes_ctx = is_placeholder(function.setup_context)
        self.args, self.keywords = _bind_arguments(function, args, kwargs, self.takes_ctx)
        self.caller_args = self.args  # as the caller passed them, before an interceptor replaces some
        # How many gradients backward must return at least: up to the last Tensor, or what was passed by position.
        self.min_gradients = max([len(args), *[k + 1 for k, t in enumerate(self.args) if isinstance(t, Tensor)]])
        for name, value in self.keywords.items():
            if isinstance(value, Tensor) and is_actively_tracked(value):
                raise errors.FunctionError(
                    f"{self.name}.apply: {name}=, {describe(value)}, is tracked, but forward takes it by name only "
                    "and so gives it no gradient; let forward take it by position, or pass its detach()"
                )

    def run(self) -> Any:
        context = current()
        interceptors = interceptors_of(context)
        op = Op(self.name, self.function.forward)  # what interceptors see
        for interceptor in interceptors:
            self.args = interceptor.before_op(op, self.args, ())
        if not is_placeholder(self.function.vmap):
            level = highest_level([t._array for t in self.args if isinstance(t, Tensor)])
            if level is not None:
                output = run_in(_without_vmap(context, level), self._run_vmap_method, level)
                self._show_to([each for each in interceptors if getattr(each, "level", None) is not level], op)
                return output
        self.arrays_before = tuple([bare(t) for t in self.args])
        self.tracking = _tracking_recorders(context, self.args)
        # Forward is given untracked Tensors of the same values, one for each Tensor among the arguments.
        copies = {id(t): alike(t) for t in self.args if isinstance(t, Tensor)}
        self.forward_args = tuple([copies.get(id(t), t) for t in self.args])
        ctx = FunctionCtx()
        ctx._gradmgr = self.state = ContextState(self.name, "forward", self._needs_input_grad())
        try:
            output = run_in(paused(context), self._forward, ctx)
            self._take_results(output)
            self._show_to(interceptors, op)
            self._record(ctx)
            self._rebind_dirty()
        finally:
            self.state.close()
        return _in_structure(output, self.results)

    def _show_to(self, interceptors: Iterable[Interceptor], op: Op) -> None:
        arrays = tuple([z._array for z in self.results if isinstance(z, Tensor)])
        for interceptor in interceptors:
            if interceptor.open and not isinstance(interceptor, Listener):  # which is told of what forward calls
                interceptor.after_op(op, self.args, (), arrays)

    def finish(
        self, tape: Any, node_ids: Any, ctx: FunctionCtx, forward_args: tuple[Any, ...], before: Any, output: Any
    ) -> Any:
        """Check and record a call whose forward has been run; return the results.

        Args:
            tape: the only recorder, or None.
            node_ids: of the arguments on that tape, before the call; None if it tracks none.
            ctx: what forward filled.
            forward_args: what forward was given.
            before: the arrays of the arguments, before the call.
            output: what forward returned.
        """
        self.tracking = [] if node_ids is None else [_TrackingRecorder(tape, node_ids, ())]
        self.forward_args, self.arrays_before, self.state = forward_args, before, ctx._gradmgr
        self._take_results(output)
        self._record(ctx)
        self._rebind_dirty()
        return _in_structure(output, self.results)

    def _take_results(self, output: Any) -> None:
        """Check what forward returned and wrote to, and make new Tensors of its results: one of what it returned twice.

        Of an argument that it returned as it is, each is a result of its own.
        """
        self.outputs = output if isinstance(output, tuple) else (output,)
        self._check_outputs()
        self._check_writes()
        unchanged = {id(t) for t in self.forward_args} - {id(t) for t in self.state.dirty}
        made: dict[int, Any] = {}
        self.results = []
        for j, part in enumerate(self.outputs):
            result = made[id(part)] if id(part) in made else _as_result(part, self.name, j)
            if id(part) not in unchanged:
                made[id(part)] = result
            self.results.append(result)

    def _needs_input_grad(self) -> tuple[bool, ...]:
        ids_by_argument = zip(*[tracking.node_ids for tracking in self.tracking], strict=True)
        needs = tuple([any(node_id is not None for node_id in node_ids) for node_ids in ids_by_argument])
        return needs or (False,) * len(self.args)

    def _forward(self, ctx: FunctionCtx) -> Any:
        if self.takes_ctx:
            return self.function.forward(ctx, *self.forward_args, **self.keywords)
        output = self.function.forward(*self.forward_args, **self.keywords)
        self.function.setup_context(ctx, self.forward_args, output)
        return output

    # ------------------------------------------------------------ under vmap

    def _run_vmap_method(self, level: Level) -> Any:
        """Call the class's own `vmap` method, with the examples of a level as a visible first axis."""
        given, in_dims = [], []
        for t in self.args:
            is_mapped = isinstance(t, Tensor) and (is_batched_at(t._array, level) or is_actively_tracked(t))
            given.append(unbatch_op(_repeat_per_example(t, level), level, 0) if is_mapped else t)
            in_dims.append(0 if is_mapped else None)
        info = VmapInfo(level.size, getattr(level, "randomness", "error"))
        made = self.function.vmap(info, tuple(in_dims), *given, **self.keywords)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise errors.FunctionError(
                f"{self.name}.vmap must return two things, (output, out_dims); found {describe_value(made)}"
            )
        output, out_dims = made
        parts = output if isinstance(output, tuple) else (output,)
        dims = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(parts)
        if len(dims) != len(parts):
            raise errors.FunctionError(
                f"{self.name}.vmap returned {len(parts)} results and {len(dims)} out_dims for them"
            )
        pairs = enumerate(zip(parts, dims, strict=True))
        self.results = [self._hide_axis(part, dim, level, j) for j, (part, dim) in pairs]
        return _in_structure(output, self.results)

    def _hide_axis(self, part: Any, dim: Any, level: Level, j: int) -> Any:
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
        return batch_op(t, level, dim % t.ndim)

    # ------------------------------------------------------------ checks

    def _check_outputs(self) -> None:
        state, name = self.state, self.name
        if not any(isinstance(part, Tensor) or is_numeric(part) for part in self.outputs):
            types = ", ".join(type(part).__name__ for part in self.outputs) or "an empty tuple"
            raise errors.FunctionError(
                f"{name}.forward returned {types}; it must return a Tensor or an array, or a tuple with at least one"
            )
        for t in state.dirty:
            if not _contains(self.forward_args, t):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_dirty was given {describe(t)} that is no argument of forward; mark the "
                    "argument that was written to in place"
                )
            if not _contains(self.outputs, t):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_dirty was given argument {_index_of(t, self.forward_args)}, which forward did "
                    "not return; what is written to in place must be returned"
                )
        for value in state.non_differentiable:
            if not _contains(self.outputs, value):
                raise errors.FunctionError(
                    f"{name}: ctx.mark_non_differentiable was given {describe_value(value)} that forward did not return"
                )

    def _check_writes(self) -> None:
        """Raise where forward wrote to an argument in place without marking it dirty."""
        dirty = self.state.dirty
        for k, (t, copy, before) in enumerate(zip(self.args, self.forward_args, self.arrays_before, strict=True)):
            if not isinstance(t, Tensor):
                continue
            if t._array is not before or (copy._array is not before and not _contains(dirty, copy)):
                raise errors.FunctionError(
                    f"{self.name}.forward wrote to argument {k}, {describe(t)}, in place; call ctx.mark_dirty on it "
                    "and return it, or compute on a copy: x = x * 2, not x *= 2"
                )

    # ------------------------------------------------------------ recording

    def _record(self, ctx: FunctionCtx) -> None:
        """Let each recorder that tracks an argument record the call, the outermost first."""
        if not self.tracking:
            return
        differentiable = self._differentiable()
        if not differentiable:
            return
        zs = tuple([z for _, z in differentiable])
        arrays = tuple([z._array for z in zs])
        node = self._make_node(ctx, {j: index for index, (j, _) in enumerate(differentiable)})
        sources_by_id = None
        for tracking in self.tracking:
            rec = tracking.rec
            if not rec.open:
                continue
            for_jvp = self.state.for_jvp
            saved = self.state.for_backward if rec.is_tape or for_jvp is None else for_jvp
            values = [(value, f"saved tensor {k}") for k, value in enumerate(saved)] + node.attribute_values
            if values and sources_by_id is None:
                sources_by_id = self._sources_by_id()
            sources = tuple([_source_of(value, sources_by_id, label) for value, label in values])
            kept = tuple(
                [self._kept_value(v, source, tracking) for (v, _), source in zip(values, sources, strict=True)]
            )
            rec.record_op(FUNCTION_OP, tracking.node_ids, (), arrays, (kept, sources, tracking.outer, node), zs)

    def _differentiable(self) -> list[tuple[int, Tensor]]:
        """Return the results that may have derivatives, each with its number: the last of one that is there twice."""
        last = {id(z): j for j, z in enumerate(self.results)}
        return [
            (j, z)
            for j, (part, z) in enumerate(zip(self.outputs, self.results, strict=True))
            if isinstance(z, Tensor)
            and libraries.is_differentiable(z.dtype)
            and last[id(z)] == j
            and not _contains(self.state.non_differentiable, part)
        ]

    def _make_node(self, ctx: FunctionCtx, indices: dict[int, int]) -> FunctionNode:
        """Make the node of this call, given the index among the differentiable results of each that is one."""
        arguments = [ArrayMetadata(t._array) if isinstance(t, Tensor) else None for t in self.args]
        differentiable = {id(self.results[j]) for j in indices}
        results = [
            ArrayMetadata(z._array, indices.get(j, REPEATED if id(z) in differentiable else None))
            if isinstance(z, Tensor)
            else None
            for j, z in enumerate(self.results)
        ]
        constants = frozenset(
            [k for k, t in enumerate(self.args) if not isinstance(t, Tensor) and libraries.is_array(t)]
        )
        node = FunctionNode(self.function, tuple(arguments), tuple(results), constants, self.min_gradients)
        node.attributes = ctx.__dict__
        node.attribute_values = differentiable_values(ctx.__dict__) if ctx.__dict__ else []
        node.materialize = self.state.materialize
        return node

    def _sources_by_id(self) -> dict[int, Source]:
        """Map the id() of each argument and result, and of its array, to its source."""
        sources: dict[int, Source] = {}
        dirty = self.state.dirty
        for k, (t, copy, before) in enumerate(zip(self.args, self.forward_args, self.arrays_before, strict=True)):
            source = ("argument", k) if isinstance(t, Tensor) else None
            sources.setdefault(id(before), source)
            if not dirty or not _contains(dirty, copy):
                sources.setdefault(id(copy), source)
        for j, part in reversed(list(enumerate(self.outputs))):  # the last of one that is there twice
            if isinstance(self.results[j], Tensor):
                sources.setdefault(id(part), ("result", j))
                sources.setdefault(id(bare(part)), ("result", j))
        return sources

    def _kept_value(self, value: Any, source: Source, tracking: _TrackingRecorder) -> Any:
        """Return what an entry of this recorder keeps: a handle that its outer recorders track, or the array."""
        if source is None:
            return bare(value)
        kind, which = source
        outer = [rec for rec, _ in tracking.outer]
        if kind == "argument":
            return snapshot(self.args[which], outer)
        if kind == "result":
            return snapshot(self.results[which], outer)
        kept = snapshot(value, outer)
        for rec, node_ids in tracking.outer:
            if rec.open and any(node_id is not None for node_id in node_ids):
                kept = kept if isinstance(kept, Tensor) else wrap(kept)
                if rec.node_id_of(kept) is None:
                    reject_derivatives(rec, kept, node_ids, unrecorded_message(self.name, which))
        return kept

    def _rebind_dirty(self) -> None:
        """Rebind the caller's tensors that forward wrote to, and return them in place of the results."""
        if not self.state.dirty:
            return
        for t, copy in zip(self.caller_args, self.forward_args, strict=True):
            if _contains(self.state.dirty, copy):
                positions = [j for j, part in enumerate(self.outputs) if part is copy]
                rebind(t, self.results[positions[0]])
                for j in positions:
                    self.results[j] = t


class VmapInfo:
    """What a Function's `vmap` is given: the number of examples, and the randomness= of the vmap that runs."""

    __slots__ = ("batch_size", "randomness")

    def __init__(self, batch_size: int, randomness: str) -> None:
        self.batch_size = batch_size
        self.randomness = randomness


# ---------------------------------------------------------------- recorders


class _TrackingRecorder:
    """A recorder that tracks an argument, with the node ids of the arguments there and in its outer recorders."""

    __slots__ = ("node_ids", "outer", "rec")

    def __init__(self, rec: Recorder, node_ids: tuple[Any, ...], outer: OuterRecorders) -> None:
        self.rec = rec
        self.node_ids = node_ids
        self.outer = outer


def _tracking_recorders(context: Any, args: tuple[Any, ...]) -> list[_TrackingRecorder]:
    """Return the active recorders that track an argument, the outermost first."""
    tracking: list[_TrackingRecorder] = []
    outer: OuterRecorders = ()
    for group in active_groups(context):
        members: OuterRecorders = ()
        for rec in group:
            if rec.open:
                node_ids = tuple([rec.node_id_of(t) if isinstance(t, Tensor) else None for t in args])
                if any(node_id is not None for node_id in node_ids):
                    tracking.append(_TrackingRecorder(rec, node_ids, outer))
                # The node id of a Forward is the tangent itself, which must not be kept.
                kept = node_ids if rec.is_tape else tuple([None if node_id is None else True for node_id in node_ids])
                members = (*members, (rec, kept))
        outer += members
    return tracking


def _without_vmap(context: Any, level: Level) -> Any:
    """Return the context without the interceptor of the vmap that maps over this level."""
    if not isinstance(context, Context):
        return context
    kept = tuple([w for w in context.interceptors if getattr(w, "level", None) is not level])
    return context.with_interceptors(kept)


def _repeat_per_example(t: Tensor, level: Level) -> Tensor:
    """Return `t` with the axis of a level, so that each recorder gets its gradient for each example."""
    if is_batched_at(t._array, level):
        return t
    repeated: Tensor = copy_tensor(t)
    repeated._array = broadcast_over_examples(t._array, level)
    for rec in recorders(current()):
        node_id = rec.node_id_of(t) if rec.open else None
        if node_id is not None:
            rec.track(repeated, node_id)
    return repeated


# ---------------------------------------------------------------- arguments, results and what is saved


def _contains(values: tuple[Any, ...], value: Any) -> bool:
    """Tell whether `values` contains this very object."""
    return id(value) in map(id, values)


def _index_of(value: Any, values: tuple[Any, ...]) -> int:
    return next(k for k, other in enumerate(values) if value is other)


def _in_structure(output: Any, results: list[Any]) -> Any:
    """Return the results as forward returned them: alone, in a tuple or in a named tuple."""
    if not isinstance(output, tuple):
        return results[0]
    make = getattr(type(output), "_make", tuple)  # of a named tuple
    return make(results)


def _as_result(part: Any, name: str, j: int) -> Any:
    """Return a new Tensor for a Tensor or an array; anything else as it is."""
    if isinstance(part, Tensor) or is_numeric(part):
        return wrap(bare(part))
    if isinstance(part, (list, dict)):
        values = part.values() if isinstance(part, dict) else part
        if any(isinstance(value, Tensor) for value in values):
            raise errors.FunctionError(
                f"{name}.forward: result {j} is a {type(part).__name__} with Tensors in it, which would get no "
                "gradient; return a tuple of Tensors, and put it into a container outside"
            )
    return part


def check_methods(function: type[Any]) -> None:
    if not is_placeholder(function.backward) and not is_placeholder(function.vjp):
        raise errors.FunctionError(
            f"{function.__name__} defines both backward and vjp, two names of one method; define one of them"
        )
    if function.generate_vmap_rule and not is_placeholder(function.vmap):
        raise errors.FunctionError(
            f"{function.__name__} defines vmap and asks for one to be made, by generate_vmap_rule; do one of the two"
        )
    if is_placeholder(function.forward):
        raise errors.MissingRuleError(f"{function.__name__} must define the static method forward(ctx, *args)")


def _bind_arguments(
    function: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any], takes_ctx: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that forward takes by position, and those that it takes by name only.

    With setup_context, which is given the arguments, defaults of forward are filled in.
    """
    forward = function.forward
    if not kwargs and (takes_ctx or not getattr(forward, "__defaults__", None)):
        return args, {}
    import inspect  # deferred, as it takes 10 ms to import

    signature = inspect.signature(forward)
    try:
        bound = signature.bind(*([None] if takes_ctx else []), *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}.apply: {error}") from None
    bound.apply_defaults()
    by_position = bound.args[1 if takes_ctx else 0 :]
    if takes_ctx:  # defaults after the last argument that was given are left to forward
        names = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        last = max((names.index(name) + 1 for name in kwargs if name in names), default=0)
        by_position = by_position[: max(last, len(args))]
    by_name = {name: value for name, value in bound.kwargs.items() if name in kwargs}
    return by_position, by_name


def differentiable_values(attributes: dict[str, Any]) -> list[tuple[Any, str]]:
    """Find the differentiable Tensors and arrays among ctx's attributes, also in containers, with descriptions."""
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


def _source_of(value: Any, sources_by_id: Any, label: str) -> Source:
    if value is None or not libraries.is_differentiable(value.dtype):
        return None
    for key in (id(value), id(bare(value))):
        if key in sources_by_id:
            source: Source = sources_by_id[key]
            return source
    return ("unrecorded", label)
