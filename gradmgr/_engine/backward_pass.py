"""One backward pass over a tape: the loop that computes vjps, and the general path with hooks and interceptors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gradmgr import errors
from gradmgr._arrays.libraries import is_array
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.context import (
    Context,
    current,
    interceptors_of,
    recorders,
    run_in,
    set_current,
)
from gradmgr._engine.custom import Result
from gradmgr._engine.entry import VJPS, Entry, input_ids, is_result, kind_of, op_name, tracked_input_ids
from gradmgr._engine.hooks import ValueHooks, checked, handle, name_of, run_tensor_hooks
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import ObservedEntries, observers
from gradmgr._engine.ownership import (
    BatchedOwnership,
    Grads,
    Ownership,
    OwnershipForGrad,
    RecordedOwnership,
    contribute,
)
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, wrap

# Computes the vjps of entries, from the end to the start, and empties the list.
Loop = Callable[[list[Any], Grads, Ownership], None]


def run_backward(
    tape: Tape,
    seeds: list[tuple[Any, Any]],
    *,
    retain: bool,
    awaited: Mapping[Tensor, Any] | None = None,
    report: Callable[[Tensor, Any], None] | None = None,
    create_graph: bool = False,
    wanted: Iterable[Any] | None = None,
    for_grad: bool = False,
) -> Grads:
    """Carry the seeds back through the entries of a tape; without `retain` each entry is freed when it is done.

    Threads that still record into the tape may append meanwhile; such entries are not part of the pass.

    Args:
        tape: the tape.
        seeds: (node id, cotangent) pairs.
        retain: keep the entries for another pass.
        awaited: leaves for which `report(leaf, gradient)` is called as soon as the gradient is complete, with their
            node ids.
        report: called only for leaves that received a gradient.
        create_graph: let this tape itself record what is computed, for derivatives of the derivative; retains.
        wanted: node ids, the only ones whose gradients matter: what does not lead to them is not computed.
        for_grad: the gradients of leaves go to callbacks and to `.grad`, where some may be of rows.

    Returns:
        The gradients by node id; those of leaves, and of `wanted`, are what is left.
    """
    grads: Grads = {}
    now = current()
    # Nothing else is involved: the common case, which asks no further.
    alone = now is tape and not (
        create_graph or wanted is not None or tape.annotations or tape.observers or observers()
    )
    if alone:
        state = tape.outer
    else:
        state = Context.of(context_of_pass(tape, create_graph)).intercepted(interceptors_of(now)).simplest()
    if tape.outer is None and not create_graph:
        owned = OwnershipForGrad() if for_grad else Ownership()
    else:
        owned = _ownership(tape.outer, create_graph, for_grad)
    with tape.sweeping:  # no sweep may run meanwhile
        try:
            set_current(state)
            if tape.entries.__class__ is ObservedEntries:
                tape.entries.catch_up()
            entries = list(tape.entries) if retain or create_graph else tape.entries
            if wanted is not None:
                entries, all_of_them = _leading_to(wanted, entries), entries
                all_of_them.clear()  # or memory would not fall as the pass goes
            heard = listener()
            for node_id, dy in seeds:
                if heard is not None:
                    dy = heard.untold(dy)
                grads[node_id] = computed(operator.add, grads[node_id], dy) if node_id in grads else dy
            loop = compute_vjps if alone else _loop(tape, now, grads, create_graph, wanted)
            if report is not None:
                _run_to_leaves(tape, entries, grads, owned, loop, awaited or {}, report)
            loop(entries, grads, owned)
        finally:
            set_current(now)
            tape.observed_pass = None
    return grads


def context_of_pass(tape: Tape, create_graph: bool) -> Any:
    """Return what is current in a backward pass: what is outside of the tape, and with `create_graph` the tape too."""
    return Context.of(tape.outer).pushed(tape).simplest() if create_graph else tape.outer


def compute_vjps(entries: list[Any], grads: Grads, owned: Ownership) -> None:
    """Pop the entries, from the end to the start, and compute their vjps."""
    take, pop, vjps = grads.pop, entries.pop, VJPS
    e: Any = ("",)
    try:
        while entries:
            e = pop()
            g = take(e[1], None)
            if g is not None:
                vjps[e[0]](e, g, grads, owned)
    except errors.GradmgrError:
        raise
    except Exception as error:  # whatever it is, it goes on, with the op's name
        error.add_note(f"(in the derivative of gradmgr op {op_name(e)!r})")
        raise


def run_hooked(tape: Tape, entries: list[Any], grads: Grads, owned: Ownership) -> None:
    """Compute the vjps of entries whose values have hooks, within a pass that had met none so far."""
    tape.observed_pass = ObservedPass(tape, Context.of(tape.outer), current(), False, set(), ())
    try:
        tape.observed_pass.compute_vjps(entries, grads, owned)
    finally:
        tape.observed_pass = None


def _loop(tape: Tape, now: Any, grads: Grads, create_graph: bool, wanted: Iterable[Any] | None) -> Loop:
    """Return what computes the vjps: the fast loop, unless something is to see them."""
    found = [observer.backward_started(tape, grads) for observer in observers()]
    interceptors = tuple(
        [each for each in (*interceptors_of(now), *found) if each is not None and each.follows_backward]
    )
    if not (create_graph or wanted is not None or tape.annotations or interceptors):
        return compute_vjps
    context = Context.of(context_of_pass(tape, create_graph))
    tape.observed_pass = made = ObservedPass(tape, context, now, create_graph, set(wanted or ()), interceptors)
    return made.run


def _ownership(outer: Any, create_graph: bool, for_grad: bool) -> Ownership:
    """Return the ownership of gradient buffers that fits: gradients may be plain, recorded or batched."""
    if create_graph or (outer is not None and recorders(outer)):
        return RecordedOwnership()
    if outer is not None and any(each.batches for each in interceptors_of(outer)):
        return BatchedOwnership()
    return OwnershipForGrad() if for_grad else Ownership()


def _run_to_leaves(
    tape: Tape,
    entries: list[Any],
    grads: Grads,
    owned: Ownership,
    loop: Loop,
    awaited: Mapping[Tensor, Any],
    report: Callable[[Tensor, Any], None],
) -> None:
    """Run back to the last leaf that is awaited, reporting each as soon as its gradient is complete."""
    completed = _first_uses({node_id: t for t, node_id in awaited.items()}, entries)
    for start in sorted(completed, reverse=True):
        part = list(entries[start:])
        del entries[start:]
        loop(part, grads, owned)
        for t in completed[start]:
            g = grads.get(tape.leaves.get(t))
            if g is not None:
                report(t, g)


def _first_uses(waiting: dict[Any, Tensor], entries: list[Any]) -> dict[int, list[Tensor]]:
    """Map the index of the earliest entry that uses a leaf to the leaves whose gradients it completes.

    A leaf that no entry uses is complete before the pass, at the index past the end.
    """
    found: dict[int, list[Tensor]] = {}
    for k, e in enumerate(entries):
        if not waiting:
            break
        for node_id in input_ids(e):
            t = waiting.pop(node_id, None)
            if t is not None:
                found.setdefault(k, []).append(t)
    if waiting:
        found[len(entries)] = list(waiting.values())
    return found


def _leading_to(wanted: Iterable[Any], entries: list[Any]) -> list[Any]:
    """Return the entries through which gradients reach the wanted node ids."""
    downstream = set(wanted)
    checkpoints = {e[2] for e in entries if e[0] == "checkpoint.result" and e[1] in downstream}
    kept = []
    for e in entries:
        if e[1] in checkpoints or not downstream.isdisjoint(input_ids(e)):
            downstream.add(e[1])
            kept.append(e)
        elif e[1] in downstream:  # wanted, and not on the way to another: it may have hooks
            kept.append(("capture", e[1], e))
    return kept


class ObservedPass:
    """A backward pass with hooks, a profiler, anomaly detection, wanted values, or the tape itself recording."""

    def __init__(
        self,
        tape: Tape,
        context: Context,
        now: Any,
        create_graph: bool,
        wanted: set[Any],
        interceptors: tuple[Interceptor, ...],
    ) -> None:
        self.tape = tape
        self.context_of_hooks = context.for_callbacks(now).simplest()
        self.outer_recorders = context.recorders()
        self.create_graph = create_graph
        self.wanted = wanted
        self.interceptors = interceptors
        self.listener = listener()
        annotations = tape.annotations
        self.hooks: dict[Any, ValueHooks] = {} if annotations is None else annotations.hooks
        self.retained = {} if annotations is None else annotations.retaining_by_id(tape)
        self.found: Grads = {}  # gradients of wanted values that are no leaves
        # By the node id of a checkpointed call, the node ids of values whose gradients are whole only when it is
        # computed again, by number of the result.
        self.checkpointed: dict[Any, dict[int, Any]] = {}

    def run(self, entries: list[Any], grads: Grads, owned: Ownership) -> None:
        """Compute the vjps, and add the gradients that were asked for to those that are left."""
        self.compute_vjps(entries, grads, owned)
        for node_id, g in self.found.items():
            grads[node_id] = g

    def compute_vjps(self, entries: list[Any], grads: Grads, owned: Ownership) -> None:
        """Pop the entries, from the end to the start, and compute their vjps."""
        while entries:
            e = entries.pop()
            if e[0] == "checkpoint.result":
                self.checkpointed.setdefault(e[2], {})[e[3]] = e[1]
            g = grads.pop(e[1], None)
            if g is None:
                continue
            try:
                self._compute_vjp(e, g, grads, owned)
            except errors.AnomalyError:
                raise
            except Exception as error:  # whatever it is, it goes on, with the op's name and place
                error.add_note(self._in_the_derivative_of(e))
                raise

    def move_to(self, call: Any, node_ids: list[Any]) -> Callable[[], None]:
        """Let hooks and wanted gradients of values inside a checkpointed call follow these to their new node ids.

        Args:
            call: the node id of the call, which is computed again.
            node_ids: the new ones, by number of the result.

        Returns:
            What is to be called when the entries of the call are done.
        """
        moved = {own: node_ids[k] for k, own in self.checkpointed.pop(call, {}).items()}
        for own, node_id in moved.items():
            if own in self.hooks:
                self.hooks[node_id] = self.hooks[own].joined(self.hooks.get(node_id))
            if own in self.retained:
                self.retained[node_id] = self.retained[own]
            if own in self.wanted:
                self.wanted.add(node_id)

        def done() -> None:
            for own, node_id in moved.items():
                self.retained.pop(node_id, None)
                if own in self.wanted:
                    self.wanted.discard(node_id)
                    if node_id in self.found:
                        self.found[own] = self.found.pop(node_id)

        return done

    def _in_the_derivative_of(self, e: Entry) -> str:
        place = self.tape.location_of(e[1])
        at = f", computed at {place}" if place is not None else ""
        return f"(in the derivative of gradmgr op {op_name(e)!r}{at})"

    def _compute_vjp(self, e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
        if e[0] == "checkpoint.result":
            VJPS[e[0]](e, g, grads, owned)
            return
        hooks = self.hooks.get(e[1])
        if hooks is not None or e[1] in self.retained or e[1] in self.wanted:
            owned.discard(e[1])  # a hook or the user may keep it
            g = self._shown(hooks, e, g)
        if e[0] == "capture":
            return
        if hooks is not None and hooks.before:
            g = self._pre_hooked(hooks, e, g)
            if g is None:
                return
        if self.create_graph:
            e = self._retracked(e)
        for interceptor in self.interceptors:
            interceptor.before_vjp(e)
        if hooks is not None and hooks.after and not (is_result(e) or e[0] == "attach"):
            self._compute_apart(hooks, e, g, grads, owned)
            return
        self._compute(e, g, grads, owned)
        for interceptor in self.interceptors:
            interceptor.after_vjp(e, g, grads)

    def _compute(self, e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
        if self.listener is not None:
            self.listener.compute_vjp(VJPS[e[0]], e, g, grads, owned)
        else:
            VJPS[e[0]](e, g, grads, owned)

    # ------------------------------------------------------------ hooks

    def _shown(self, hooks: ValueHooks | None, e: Entry, g: Any) -> Any:
        """Run the hooks of a value, then keep its gradient where it was asked for."""
        if hooks is not None and hooks.tensor:
            what = f"the result of {op_name(e)!r}"
            g = run_in(self.context_of_hooks, run_tensor_hooks, hooks.tensor, g, what, self.outer_recorders)
        for t in self.retained.get(e[1], ()):
            self.tape.ensure_annotations().retained.append((t, g))
        if e[1] in self.wanted:
            self.found[e[1]] = g
        return g

    def _pre_hooked(self, hooks: ValueHooks, e: Entry, g: Any) -> Any:
        """Run the pre-hooks of an op on the gradients of its results; None if none of them is left."""
        gs = _by_result(g, hooks)
        for hook in hooks.before:
            gs = self._replaced(gs, hook, f"pre-hook {name_of(hook)} on op {op_name(e)!r}")
        if g.__class__ is not dict:
            return gs[0]
        return {k: part for k, part in enumerate(gs) if part is not None} or None

    def _replaced(self, gs: tuple[Any, ...], hook: Any, what: str, *further: Any) -> tuple[Any, ...]:
        """Return the gradients that a hook of an op gives for these: as many; None in the tuple lets nothing flow."""
        return run_in(self.context_of_hooks, self._replaced_here, gs, hook, what, *further)

    def _replaced_here(self, gs: tuple[Any, ...], hook: Any, what: str, *further: Any) -> tuple[Any, ...]:
        given = self._handles(gs)
        new = call_whole(hook, given, *further)
        if new is None:
            new = given
        elif not isinstance(new, (tuple, list)):
            new = (new,)
        if len(new) != len(given):
            raise errors.CallbackError(
                f"{what} gave {len(new)} gradients for {len(given)}; return as many, or None to keep them"
            )
        found: list[Any] = []
        for k, (g, part) in enumerate(zip(gs, new, strict=True)):
            if part is not None and g is None:
                raise errors.CallbackError(f"{what} gave a gradient in place {k}, where there was none; give None")
            found.append(None if part is None else snapshot(checked(g, part, what), self.outer_recorders))
        return tuple(found)

    def _handles(self, gs: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([None if g is None else handle(g, self.outer_recorders) for g in gs])

    def _compute_apart(self, hooks: ValueHooks, e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
        """Compute a vjp apart from the other gradients, and add what the hooks of its op make of it."""
        parts: Grads = {}
        self._compute(e, g, parts, type(owned)())
        for interceptor in self.interceptors:
            interceptor.after_vjp(e, g, parts)
        for node_id, part in self._post_hooked(hooks, e, g, parts).items():
            contribute(grads, owned, node_id, part)

    def _post_hooked(self, hooks: ValueHooks, e: Entry, g: Any, parts: Grads) -> Grads:
        """Run the hooks of an op on what it gave its inputs; an input that stands there twice has one gradient."""
        node_ids = tuple(dict.fromkeys(tracked_input_ids(e)))
        gs = tuple([parts.get(node_id) for node_id in node_ids])
        outputs = _by_result(g, hooks)
        for hook in hooks.after:
            gs = self._replaced(gs, hook, f"hook {name_of(hook)} on op {op_name(e)!r}", self._handles(outputs))
        return {node_id: part for node_id, part in zip(node_ids, gs, strict=True) if part is not None}

    # ------------------------------------------------------------ derivatives of the derivative

    def _retracked(self, e: Entry) -> Entry:
        """Return an entry whose kept values this tape tracks, so that it records what is computed from them."""
        retrack = kind_of(e).retrack
        if retrack is None:
            return e
        results: dict[int, Any] = {}

        def to(value: Any, node_id: Any) -> Any:
            if node_id is None or not (is_array(value) or isinstance(value, Tensor)):
                return value
            if isinstance(node_id, Result):
                node_id = self._result(e[1], node_id.k, results)
            tracked = value if isinstance(value, Tensor) else wrap(value)
            if self.tape.node_id_of(tracked) is None:
                self.tape.track(tracked, node_id)
            return tracked

        return retrack(e, to)

    def _result(self, op: Any, k: int, results: dict[int, Any]) -> Any:
        """Return a node id for result k of an op of several, by a new entry: the first one may be swept."""
        if k not in results:
            results[k] = object()
            self.tape.entries.append(("result", results[k], op, k))
        return results[k]


def _by_result(g: Any, hooks: ValueHooks) -> tuple[Any, ...]:
    """Return the gradients of the results of an op, None if there is none."""
    if g.__class__ is not dict:
        return (g,)
    return tuple([g.get(k) for k in range(max(hooks.count, *[k + 1 for k in g]))])
