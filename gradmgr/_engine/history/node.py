"""Nodes: the history of a tape as seen from a tensor, made on demand."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.hooks import Hook, Hooks, RemovableHandle, ValueHooks, check_hook, hooked_leaf, leaf_hooks_of
from gradmgr._engine.op import INPUTS
from gradmgr._engine.recorder import current, recorders, recording_threads
from gradmgr._engine.tape import Entry, Tape, op_name
from gradmgr._engine.tensor import Tensor, describe, wrap

Place = tuple[Hooks, object]


# ---------------------------------------------------------------- who knows a tensor, and as what


def tapes_that_know(t: Tensor) -> list[Tape]:
    """Return the open tapes of this context that know a tensor, the innermost last."""
    return [rec for rec in recorders(current()) if isinstance(rec, Tape) and rec.open and rec.node_id_of(t) is not None]


def is_leaf_of(tape: Tape, t: Tensor) -> bool:
    """Tell whether a tape that knows a tensor takes it as a leaf, not as a result."""
    return bool(tape.leaf_ids.get(t) == tape.node_id_of(t))


def tapes_with_result(t: Tensor) -> list[Tape]:
    """Return the open tapes of this context on which a tensor is a result, the innermost last."""
    return [tape for tape in tapes_that_know(t) if not is_leaf_of(tape, t)]


def is_attached(t: Tensor) -> bool:
    """Tell whether a living manager has this tensor attached, whether it records or not."""
    hooks = leaf_hooks_of(t)
    return hooks is not None and bool(hooks.managers())


def check_known(t: Any, asked: str) -> None:
    """Raise unless a tensor is attached to a manager or a result that one recorded."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{asked} is for Tensors; found {type(t).__name__}")
    if not tapes_that_know(t) and not is_attached(t):
        raise errors.NotRecordedError(
            f"{asked}: no manager has attached {describe(t)}, and none that records here knows it as a result; attach "
            "it, or ask inside the recording, of what was computed from attached tensors"
        )


def hang(t: Tensor, hook: Hook) -> list[Place]:
    """Hang a hook on the gradient of a tensor that `check_known` let pass; return the places for a handle.

    On each tape that knows it as a result, on the value that it has now. Where it is a leaf, on the tensor itself.
    """
    tapes = tapes_that_know(t)
    places = [
        hooks_on(tape, tape.node_id_of(t)).tensor.add(hook) for tape in reversed(tapes) if not is_leaf_of(tape, t)
    ]
    if len(places) == len(tapes) == 0 or any(is_leaf_of(tape, t) for tape in tapes):
        leaf = hooked_leaf(t)
        places.append(leaf.add(leaf.tensor, hook))
    return places


def hooks_on(tape: Tape, node_id: Any) -> ValueHooks:
    """Return the hooks on a value of a tape, made where there are none."""
    return tape.ensure_annotations().hooks.setdefault(node_id, ValueHooks())


def retain(t: Tensor) -> None:
    """Let the tapes on which a tensor is a result write its gradient to `.grad`, as the tensor is then."""
    for tape in tapes_with_result(t):
        notes = tape.ensure_annotations()
        with recording_threads.lock:  # replaced, not changed: other threads may look through it
            if not any(ref() is t for ref in notes.retaining):
                notes.retaining = [*[ref for ref in notes.retaining if ref() is not None], weakref.ref(t)]


def retains(t: Tensor) -> bool:
    """Tell whether `retain` was asked for a tensor on a tape that knows it as a result."""
    noted = (tape.annotations for tape in tapes_with_result(t))
    return any(ref() is t for notes in noted if notes is not None for ref in notes.retaining)


# ---------------------------------------------------------------- nodes


class Node:
    """An operation in the history of a recording, or, as its end, an attached tensor.

    Made on demand by `Tensor.grad_fn`, `graph.get_gradient_edge` and `next_functions`; two nodes of one
    operation are equal. Holding one keeps the operation in the history while it is recorded, but not
    beyond: when `backward()` or `release()` frees the history the node is left with its name and metadata.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach(x):
    ...     node = (x * x).sum().grad_fn
    ...     print(node.name(), [(before.name(), k) for before, k in node.next_functions])
    sum [('multiply', 0)]
    """

    __slots__ = ("__weakref__", "_facts", "_metadata", "_name", "_node_id", "_several", "_tape")

    def __init__(self, tape: Tape, node_id: Any, name: str, *, several: bool = False) -> None:
        self._tape = tape
        self._node_id = node_id
        self._name = name
        self._several = several  # whether each result has an entry of its own
        self._facts: dict[int, Any] = {}  # shape and dtype by result, of the tensors that it was asked of
        self._metadata: dict[Any, Any] | None = None

    def name(self) -> str:
        """Return the name of the operation; of an attached tensor "AccumulateGrad"."""
        return self._name

    def is_leaf(self) -> bool:
        """Tell whether the node is an attached tensor, the `variable`."""
        return self._name == _LEAF

    def __repr__(self) -> str:
        return f"<Node {self._name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self._tape is other._tape and bool(self._node_id == other._node_id)

    def __hash__(self) -> int:
        return hash((id(self._tape), self._node_id))

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for whatever you want to note; one for each operation, while its history is kept."""
        if self._metadata is None:
            self._metadata = self._notes("metadata").metadata.setdefault(self._node_id, {})
        return self._metadata

    @property
    def next_functions(self) -> tuple[tuple[Node, int], ...]:
        """The nodes that its gradients go to, each with the number of the result that it is the gradient of.

        One for each operand that is tracked; constants do not appear. An attached tensor has none, unless
        it was computed itself.

        Raises:
            RuntimeError: the history is freed.
        """
        self._notes("next_functions")
        e = None if self._node_id.__class__ is int else entry_of(self._tape, self._node_id)
        if e is None:
            if not self.is_leaf():
                raise _passed(f"{self!r}.next_functions")
            return ()
        return tuple([edge_to(self._tape, node_id) for node_id in INPUTS[e[0]](e) if node_id is not None])

    @property
    def variable(self) -> Tensor:
        """The attached tensor that this node stands for; operations have none.

        Raises:
            AttributeError: the node is an operation.
            RuntimeError: the history is freed.
        """
        if not self.is_leaf():
            raise AttributeError(f"{self!r} is an operation and has no variable; nodes named {_LEAF} do")
        self._notes("variable")
        t = leaf_of(self._tape, self._node_id)
        if t is None:
            raise errors.RecordingError(f"{self!r}.variable: the tensor was detached from its manager")
        return t

    def register_hook(self, fn: Hook) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` in each backward when the operation's derivative is computed.

        Args:
            fn: takes two tuples: the gradients that go to the distinct tracked operands (an operand that stands
                there twice has one, its total), and those that came for the results, None where there is none.
                It returns None, or a tuple to go on in place of the first, where None lets nothing flow.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError: `fn` cannot be called; in backward, it gave something that is no such tuple.
            RuntimeError: the history is freed; the node is an attached tensor.
        """
        return RemovableHandle([self._hooks("register_hook", fn).after.add(fn)])

    def register_prehook(self, fn: Hook) -> RemovableHandle:
        """Call `fn(grad_outputs)` in each backward before the operation's derivative is computed.

        The hooks of its results' tensors come first, and what `retain_grad` keeps is what they made.

        Args:
            fn: takes a tuple of the gradients that came for the results, None where there is none. It
                returns None, or a tuple to go on in their place, where None lets nothing flow.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError, RuntimeError: as `register_hook`.
        """
        return RemovableHandle([self._hooks("register_prehook", fn).before.add(fn)])

    def _hooks(self, asked: str, hook: Any) -> ValueHooks:
        check_hook(hook, f"Node.{asked}")
        self._notes(asked)
        if self.is_leaf():
            raise errors.RecordingError(
                f"{self!r}.{asked}: this node is an attached tensor, on which nothing is computed; use its "
                "register_hook, or register_post_accumulate_grad_hook for when .grad is written"
            )
        hooks = hooks_on(self._tape, self._node_id)
        results = [e[3] for e in list(self._tape.entries) if e and e[0] == "result" and e[2] is self._node_id]
        hooks.count = max([hooks.count, *[k + 1 for k in results]])
        return hooks

    def _notes(self, asked: str) -> Any:
        if not self._tape.open:
            raise errors.RecordingError(
                f"{self!r}.{asked}: the history that it belongs to was freed by backward() or release(); ask before, "
                "or keep the history with backward(..., retain=True)"
            )
        return self._tape.ensure_annotations()


_LEAF = "AccumulateGrad"


class GradientEdge(NamedTuple):
    """Where a gradient flows: into result number `output_nr` of `node`. Names a value without keeping it.

    `gradmgr.grad` and `gradmgr.backward` take it in place of the tensor.
    """

    node: Node
    output_nr: int


# ---------------------------------------------------------------- finding them


def entry_of(tape: Tape, node_id: Any) -> Entry | None:
    """Return the entry that made a value; None where there is none, or none any more."""
    entries, notes = tape.entries, tape.ensure_annotations()
    for start in (notes.indexed, 0):
        found = _look(entries, notes.index.get(id(node_id)), node_id)
        if found is not None:
            return found
        if start == 0:
            notes.index.clear()
        now = list(entries)
        notes.index.update({id(e[1]): k for k, e in enumerate(now[start:], start) if e is not None})
        notes.indexed = len(now)
    # Not found, or another thread, too, makes the index anew.
    return next((e for e in reversed(now) if e is not None and e[1] is node_id), None)


def _look(entries: list[Any], at: int | None, node_id: Any) -> Entry | None:
    found: Any = entries[at : at + 1] if at is not None else []
    return found[0] if found and found[0] is not None and found[0][1] is node_id else None


def leaf_of(tape: Tape, node_id: Any) -> Tensor | None:
    """Return the attached tensor whose gradient goes to this mark."""
    return next((t for t, known in list(tape.leaves.items()) if known == node_id), None)


def edge_to(tape: Tape, node_id: Any) -> GradientEdge:
    """Return the edge to a value that a tape knows."""
    e = None if node_id.__class__ is int else entry_of(tape, node_id)  # a number is an attached tensor's
    if e is None and node_id.__class__ is not int and leaf_of(tape, node_id) is None:
        raise _passed("the node of a tensor")
    if e is None or e[0] == "attach":
        return GradientEdge(Node(tape, node_id, _LEAF), 0)
    if e[0] != "result":
        return GradientEdge(Node(tape, node_id, op_name(e)), 0)
    bundle = entry_of(tape, e[2])
    if bundle is None:
        raise _passed("the node of a tensor")
    return GradientEdge(Node(tape, e[2], op_name(bundle), several=True), e[3])


def _passed(asked: str) -> errors.RecordingError:
    return errors.RecordingError(
        f"{asked}: this part of the history was freed as backward() passed through it; ask before backward(), or pass "
        "retain=True. Or it is computed by a checkpointed function that is running: what that does is not kept; ask "
        "for the node of its results afterwards"
    )


def _edge_of(tape: Tape, t: Tensor) -> GradientEdge:
    edge = edge_to(tape, tape.node_id_of(t))
    edge.node._facts[edge.output_nr] = t.shape, t.dtype
    return edge


def grad_fn(t: Tensor) -> Node | None:
    """Return the node of the operation that made a tensor, on the innermost tape on which it is a result."""
    tapes = tapes_with_result(t)
    return _edge_of(tapes[-1], t).node if tapes else None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return where the gradient of a tensor flows, in the innermost recording that knows it.

    It names the value for `gradmgr.grad` without keeping its memory alive.

    Raises:
        TypeError: `tensor` is no Tensor.
        RuntimeError: no manager that records here knows it.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     gradmgr.graph.get_gradient_edge(x * x)
    GradientEdge(node=<Node multiply>, output_nr=0)
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"get_gradient_edge takes a Tensor; found {type(tensor).__name__}")
    tapes = tapes_that_know(tensor)
    if not tapes:
        raise errors.NotRecordedError(
            f"get_gradient_edge: no manager that records here knows {describe(tensor)}; attach it before it is used, "
            "or ask of what was computed from attached tensors, inside the recording"
        )
    return _edge_of(tapes[-1], tensor)


def stand_in(edge: GradientEdge, *, as_input: bool = False) -> Tensor:
    """Return a tensor that stands for an edge where `grad` and `backward` take one: of its shape and dtype.

    Args:
        edge: of an open recording.
        as_input: an attached tensor then stands for itself, though it was written to since.

    Raises:
        RuntimeError: the history is freed; the edge names no result that is known.
    """
    node, k = edge
    node._notes("(in a GradientEdge)")
    tape, node_id = node._tape, _value_of(node, k)
    t = leaf_of(tape, node_id)
    if t is not None and (as_input or tape.node_id_of(t) == node_id):
        return t
    fact = node._facts.get(k) or (tape.facts().get(node_id) if t is None else (t.shape, t.dtype))
    if fact is None:
        raise errors.NotRecordedError(
            f"GradientEdge to result {k} of {node!r}: nothing that was computed from it is recorded, so its shape is "
            "not known; pass the tensor itself"
        )
    xp = next((libraries.namespace(leaf._array) for leaf in tape.leaves), np)
    made = wrap(xp.broadcast_to(xp.zeros((), fact[1]), fact[0]))
    tape.track(made, node_id)
    return made


def _value_of(node: Node, k: int) -> Any:
    """Return the mark of result `k` of a node."""
    if not node._several:
        return node._node_id
    for e in list(node._tape.entries):
        if e[0] == "result" and e[2] is node._node_id and e[3] == k:
            return e[1]
    node_id = object()  # nobody holds that result any more
    node._tape.entries.append(("result", node_id, node._node_id, k))
    return node_id
