"""`grad` and `backward` as functions, which find the recording manager that tracks the outputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.backward_pass import context_of_pass
from gradmgr._engine.context import Context, current, recorders, run_in
from gradmgr._engine.entry import tracked_input_ids
from gradmgr._engine.gradients import own_gradient
from gradmgr._engine.history.node import GradientEdge, Node, tensor_of_edge
from gradmgr._engine.hooks import leaf_hooks_of, run_tensor_hooks
from gradmgr._engine.recorder import Recorder, snapshot
from gradmgr._engine.seeds import note_on_constants, seeds_of
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr._engine.wrong_calls import explained
from gradmgr._transforms.vmap import vmap
from gradmgr.manager import GradManager

Tensors = Tensor | GradientEdge | Sequence[Tensor | GradientEdge]
Key = TypeVar("Key", bound=Hashable)


@overload
def grad(
    outputs: Tensors,
    inputs: Mapping[Key, Tensor | GradientEdge],
    grad_outputs: Any = ...,
    retain_graph: bool | None = ...,
    create_graph: bool | None = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> dict[Key, Tensor | None]: ...


@overload
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Any = ...,
    retain_graph: bool | None = ...,
    create_graph: bool | None = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> tuple[Tensor | None, ...]: ...


@explained
def grad(
    outputs: Tensors,
    inputs: Tensors | Mapping[Any, Tensor | GradientEdge],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...] | dict[Any, Tensor | None]:
    """Return the gradients of `outputs`, weighted by `grad_outputs`, with respect to `inputs`.

    The backward pass runs over the innermost recording manager that tracks the outputs, which is released unless
    its history is retained. No `.grad` is touched and no callback runs; hooks do.

    Args:
        outputs: one Tensor or several.
        inputs: one Tensor or several, also in a dict, attached or computed from what is. Of an attached one it is, as
            in `GradManager.backward`, the gradient at the value it had when it was attached or recording began.
        grad_outputs: Tensors or arrays of the shapes of `outputs`; None if an output is one real number.
        retain_graph: keep the history and go on recording; with `create_graph` it is kept in any case.
        create_graph: record the derivative in the same history, so that it can be differentiated. None: in a function
            that a transform of `functional` or `compat.autograd` differentiates, where the history is the transform's.
        only_inputs: True, for compatibility with torch; to write `.grad` of everything else, call `backward`.
        allow_unused: give None for an input that no output depends on, instead of an error.
        is_grads_batched: each of `grad_outputs` has a further first axis, of vectors to weight with; so have
            the results. One backward pass computes all of them.
        materialize_grads: give zeros for an input that no output depends on. With `create_graph` the history knows
            every gradient, also one that is constant: its own derivative is then zeros, not an error.

    Returns:
        A tuple, one gradient for each input, of its shape and dtype; of a dict of inputs a dict with its keys.

    Raises:
        RuntimeError: no recording manager tracks an output or an input; an input is unused.
        TypeError, ValueError: `grad_outputs` does not fit in number, shape or dtype; `only_inputs` is False; there are
            no outputs, or no inputs.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     (slope,) = gradmgr.grad(x**3, x, create_graph=True)
    ...     (curvature,) = gradmgr.grad(slope, x)
    >>> slope, curvature
    (Tensor(27.), Tensor(18.))
    """
    if not only_inputs:
        raise ValueError("grad: only_inputs=False is gone; backward() adds to the .grad of all that is attached")
    if materialize_grads and allow_unused is False:
        raise ValueError("grad: materialize_grads=True gives zeros for unused inputs; allow_unused=False forbids them")
    keys = list(inputs) if isinstance(inputs, Mapping) else None
    ys = _as_list(outputs, "grad", "outputs")
    xs = _as_list(list(inputs.values()) if isinstance(inputs, Mapping) else inputs, "grad", "inputs")
    if not ys or not xs:
        raise ValueError(f"grad: {'inputs' if ys else 'outputs'} is empty; pass at least one Tensor")
    allowed = bool(allow_unused) or materialize_grads
    tape, manager = _find_tape(ys, "grad")
    create_graph = manager.is_of_transform if create_graph is None else create_graph
    retain = create_graph if retain_graph is None else retain_graph
    if is_grads_batched:
        vectors = _vectors(grad_outputs, ys)
        found: Sequence[Tensor | None] = _batched(ys, xs, vectors, create_graph, allowed)
        if not (retain or create_graph):
            manager.release()
        batch: tuple[int, ...] = vectors[0].shape[:1]
    else:
        gs = compute_gradients(
            tape, manager, ys, grad_outputs, xs, retain=retain, create_graph=create_graph, allowed=allowed
        )
        found, batch = own_tensors(gs, xs), ()
    if materialize_grads:
        found = filled = [_zeros(x, batch) if g is None else g for g, x in zip(found, xs, strict=True)]
        if create_graph:
            for g in filled:
                _track_constant(tape, g)
    return tuple(found) if keys is None else dict(zip(keys, found, strict=True))


def compute_gradients(
    tape: Tape,
    manager: GradManager,
    ys: list[Tensor],
    grad_outputs: Any,
    xs: list[Tensor],
    *,
    retain: bool,
    create_graph: bool = False,
    allowed: bool = True,
) -> list[Any]:
    """Compute gradients by a backward pass over a manager's tape, as `grad` does with the one it chose.

    Returns:
        For each of `xs` the gradient, a Tensor if a recorder may track it, an array or None.
    """
    outer = context_of_pass(tape, create_graph)
    if len(ys) == 1 and grad_outputs.__class__ is list and len(grad_outputs) == 1:  # the common case, the fastest
        seeds = seeds_of(tape, ys[0], grad_outputs[0], asked="grad", create_graph=create_graph)
    else:
        seeds = seeds_of(tape, ys, grad_outputs, asked="grad", create_graph=create_graph)
    only = {x: node_id for x in xs if (node_id := _node_id_for(tape, x)) is not None}
    if not allowed:
        _check_used(tape, xs, only, [node_id for node_id, _ in seeds])
    results: dict[Tensor, Any] = {}

    def keep(gradients: dict[Tensor, Any]) -> None:
        while gradients:
            x, g = gradients.popitem()
            hooks = leaf_hooks_of(x)
            if hooks is not None and hooks.tensor and x in only and only[x] == tape.leaves.get(x):
                context = Context.of(outer).for_callbacks(current())
                g = run_in(context, run_tensor_hooks, hooks.tensor, g, describe(x), recorders(outer))
            results[x] = g

    everything = not create_graph and only == tape.leaves  # then nothing needs to be left out
    manager._run_backward(tape, seeds, retain, create_graph, None if everything else only, keep)
    _sweep_if_due(tape)
    missing = [k for k, x in enumerate(xs) if x not in results]
    if missing and not allowed:
        raise errors.NotRecordedError(
            f"grad: the derivative of an op between the outputs and input number {missing[0]} gave None; "
            "pass allow_unused=True to get None here"
        )
    return [results.get(x) for x in xs]


def _sweep_if_due(tape: Tape) -> None:
    """Sweep a tape that recorded a derivative of its own: during the backward pass it cannot be swept."""
    if len(tape.entries) > tape.limit:
        tape.sweep()


def own_tensors(gs: list[Any], xs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return gradients or tangents as new Tensors in new memory, with their history; empties `gs`.

    They are copied where needed, as one may be that of two inputs, or be the weights that were given.
    """
    tracking = recorders(current())
    made = [_as_own_tensor(gs.pop(), x, tracking) for x in reversed(xs)]
    made.reverse()
    return made


def _as_own_tensor(g: Any, x: Tensor, tracking: list[Recorder]) -> Tensor | None:
    if g is None:
        return None
    handle = snapshot(g, tracking)
    if isinstance(handle, Tensor):
        return handle
    made = wrap(handle)
    g = handle = None  # `own_gradient` counts references to the array
    return own_gradient(made, x)


def _node_id_for(tape: Tape, x: Tensor) -> Any:
    """Return the node id whose gradient is meant: of a leaf, that of the value it was recorded with."""
    return tape.leaves.get(x) or tape.node_id_of(x)


def _vectors(grad_outputs: Any, ys: list[Tensor]) -> list[Tensor]:
    """Check the shapes of batched weights; `seeds_of` checks the rest."""
    vectors = _as_list(grad_outputs, "grad", "grad_outputs")
    if len(vectors) != len(ys) or any(v is None for v in vectors):
        raise ValueError(
            f"grad: is_grads_batched=True needs grad_outputs, one batch of vectors for each of the {len(ys)} outputs"
        )
    for k, (v, y) in enumerate(zip(vectors, ys, strict=True)):
        batch = vectors[0].shape[:1]
        if v.shape[1:] != y.shape or not batch or v.shape[:1] != batch:
            raise errors.ShapeError(
                f"grad: with is_grads_batched=True grad_outputs number {k} must have the shape {('batch', *y.shape)}, "
                f"with one length of batch for all; found {v.shape}"
            )
    return [v if isinstance(v, Tensor) else wrap(v) for v in vectors]


def _batched(
    ys: list[Tensor], xs: list[Tensor], vectors: list[Tensor], create_graph: bool, allowed: bool
) -> tuple[Tensor | None, ...]:
    used: list[bool] = []

    def one(*given: Any) -> tuple[Tensor, ...]:
        tape, manager = _find_tape(ys, "grad")
        gs = compute_gradients(
            tape, manager, ys, list(given), xs, retain=True, create_graph=create_graph, allowed=allowed
        )
        used[:] = [g is not None for g in gs]
        return tuple([g if isinstance(g, Tensor) else wrap(g) for g in gs if g is not None])

    results = iter(vmap(one, randomness="same")(*vectors))
    return tuple([next(results) if is_used else None for is_used in used])


@explained
def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of `tensors`, weighted by `grad_tensors`, to the `.grad` of the attached tensors.

    As `GradManager.backward` of the innermost recording manager that tracks the tensors: with its
    callbacks, and released afterwards unless its history is retained.

    Args:
        tensors: one Tensor or several.
        grad_tensors: Tensors or arrays of the same shapes; None if a tensor is one real number.
        retain_graph: keep the history and go on recording; with `create_graph` it is kept in any case.
        create_graph: record the derivative in the same history; what arrives in `.grad` can be differentiated. None: as
            in `grad`.
        inputs: only these, attached or computed from what is, receive a gradient; None means all attached. An
            edge to what is not attached has no `.grad` to write to: only hooks see its gradient.

    Raises:
        RuntimeError: no recording manager tracks a tensor or an input.
        TypeError, ValueError: `grad_tensors` does not fit in number, shape or dtype; `inputs` is empty.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     gradmgr.backward(x**2)
    >>> x.grad
    Tensor(6.)
    """
    ys = _as_list(tensors, "backward", "tensors")
    tape, manager = _find_tape(ys, "backward")
    create_graph = manager.is_of_transform if create_graph is None else create_graph
    only = None
    if inputs is not None:
        xs = _as_list(inputs, "backward", "inputs")
        if not xs:
            raise ValueError("backward: inputs is empty; pass at least one Tensor, or None for all that is attached")
        only = {x: _node_id_for(tape, x) for x in xs}
        _check_inputs_tracked(only, xs, "backward")
    seeds = seeds_of(tape, ys, grad_tensors, create_graph=create_graph)
    manager._run_backward(tape, seeds, create_graph if retain_graph is None else retain_graph, create_graph, only)
    _sweep_if_due(tape)


def _as_list(given: Any, asked: str, name: str) -> list[Any]:
    many = list(given) if isinstance(given, (list, tuple)) and not isinstance(given, GradientEdge) else [given]
    for k, t in enumerate(many):
        if isinstance(t, GradientEdge) and not name.startswith("grad_"):
            many[k] = t = tensor_of_edge(t, as_input=name == "inputs")
        if not isinstance(t, Tensor) and not (name.startswith("grad_") and (t is None or libraries.is_array(t))):
            advice = "; pass get_gradient_edge(t), or GradientEdge(node, output_nr)" if isinstance(t, Node) else ""
            raise TypeError(f"{asked}: {name} must be Tensors; number {k} is {type(t).__name__}{advice}")
    return many


def _find_tape(ys: list[Tensor], asked: str) -> tuple[Tape, GradManager]:
    """Return the innermost recording tape that tracks all outputs, and its manager."""
    tapes = [rec for rec in reversed(recorders(current())) if isinstance(rec, Tape) and rec.open]
    for tape in tapes:
        manager = tape.owner()
        if manager is not None and all(tape.node_id_of(y) is not None for y in ys):
            manager._open_tape()
            return tape, manager
    untracked = next((k for k, y in enumerate(ys) if all(tape.node_id_of(y) is None for tape in tapes)), None)
    if untracked is None:
        raise errors.NotRecordedError(
            f"{asked}: no one manager tracks all {len(ys)} outputs; compute them under the same recording"
        )
    if not tapes:
        raise errors.NotRecordedError(
            f"{asked}: no manager records here, so none tracks output number {untracked}, "
            f"{describe(ys[untracked])}; compute it and call {asked} in one `with gm:`, in one thread or task; an "
            "earlier backward or grad ends the recording, unless with retain_graph=True"
        )
    raise errors.NotRecordedError(
        f"{asked}: no manager that records here tracks output number {untracked}, "
        f"{describe(ys[untracked])}; it must be computed, between record() and release(), from what is attached: not "
        "before, not under no_grad(), and not through detach() or an integer" + note_on_constants(tapes[0])
    )


def _check_inputs_tracked(only: dict[Tensor, Any], xs: list[Tensor], asked: str) -> None:
    for k, x in enumerate(xs):
        if only.get(x) is None:
            raise errors.NotRecordedError(
                f"{asked}: the manager that recorded the outputs does not track input number {k}, {describe(x)}; "
                "attach it before it is used, or pass what was computed from it"
            )


def _check_used(tape: Tape, xs: list[Tensor], only: dict[Tensor, Any], seeded: list[Any]) -> None:
    """Raise unless the outputs depend on every input; before anything is computed."""
    reached = node_ids_before(tape, seeded)
    for k, x in enumerate(xs):
        if x not in only or only[x] not in reached:
            why = "is not tracked by the manager that recorded them" if x not in only else "has no part in them"
            raise errors.NotRecordedError(
                f"grad: the outputs do not depend on input number {k}, {describe(x)}, which {why}; "
                "pass allow_unused=True to get None for it, or materialize_grads=True to get zeros"
            )


def node_ids_before(tape: Tape, node_ids: Iterable[Any]) -> set[Any]:
    """Return these node ids and those of everything that they were computed from."""
    reached, entries = set(node_ids), tape.kept_entries()
    inside: dict[Any, list[Any]] = {}  # by checkpoint, the values made inside it that are still referenced
    for e in entries:
        if e[0] == "checkpoint.result":
            inside.setdefault(e[2], []).append(e[1])
    for e in reversed(entries):
        if e[1] in reached:
            reached.update(tracked_input_ids(e), inside.get(e[1], ()))
    return reached


def _zeros(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    a = x._array
    return wrap(
        libraries.namespace(a).zeros((*batch, *x.shape), a.dtype) if batch else libraries.namespace(a).zeros_like(a)
    )


def _track_constant(tape: Tape, t: Tensor) -> None:
    """Let a tape know a Tensor that it has not recorded as computed from nothing, so that its gradients are zeros."""
    if tape.node_id_of(t) is None:
        node_id = object()
        tape.entries.append(("constant", node_id))
        tape.track(t, node_id)
