"""Nodes of the history, made on demand: `Tensor.grad_fn`, gradient edges and hooks on them."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine import write_lock
from gradmgr._engine.context import current, is_tracked, recorders
from gradmgr._engine.entry import Entry, input_ids, is_result, op_name
from gradmgr._engine.hooks import Hook, HookPlace, RemovableHandle, ValueHooks, hooked_leaf, leaf_hooks_of
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, wrap

# ---------------------------------------------------------------- tapes that track a tensor


def tracking_tapes(t: Tensor) -> list[Tape]:
    """Return the open tapes of this context that track a tensor, the innermost last."""
    return [rec for rec in recorders(current()) if isinstance(rec, Tape) and rec.open and rec.node_id_of(t) is not None]


def is_leaf_of(tape: Tape, t: Tensor) -> bool:
    """Tell whether a tensor is a leaf, not a result, on a tape that tracks it."""
    return bool(tape.leaf_ids.get(t) == tape.node_id_of(t))


def tapes_with_result(t: Tensor) -> list[Tape]:
    """Return the open tapes of this context on which a tensor is a result, the innermost last."""
    return [tape for tape in tracking_tapes(t) if not is_leaf_of(tape, t)]


def is_attached(t: Tensor) -> bool:
    """Tell whether the tensor is attached to a manager, recording or not."""
    hooks = leaf_hooks_of(t)
    return hooks is not None and bool(hooks.managers())


def check_tracked(t: Any, asked: str) -> None:
    """Raise unless a tensor is attached to a manager or is tracked by a recorder.

    In forward mode alone no gradient arrives at it, and a hook is never called: a function with hooks in it can so be
    differentiated in every mode.
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"{asked} is for Tensors; found {type(t).__name__}")
    if not is_tracked(t) and not is_attached(t):
        raise errors.NotRecordedError(
            f"{asked}: no manager has attached {describe(t)}, and none that records here tracks it as a result; attach "
            "it, or ask inside the recording, of what was computed from attached tensors"
        )


def hook_places(t: Tensor, hook: Hook) -> list[HookPlace]:
    """Return where to register a hook on the gradient of a tensor that `check_tracked` accepted.

    On each tape where the tensor is a result, that is at the value it has now; where it is a leaf, to
    the tensor itself. What forward mode alone tracks has no place for it.
    """
    tapes = tracking_tapes(t)
    places = [
        HookPlace(hooks_of(tape, tape.node_id_of(t)).tensor, hook)
        for tape in reversed(tapes)
        if not is_leaf_of(tape, t)
    ]
    if any(is_leaf_of(tape, t) for tape in tapes) or (not tapes and is_attached(t)):
        leaf = hooked_leaf(t)
        places.append(HookPlace(leaf.tensor, hook, leaf))
    return places


def hooks_of(tape: Tape, node_id: Any) -> ValueHooks:
    """Return the hooks of a value of a tape; makes an empty record if there is none."""
    return tape.ensure_annotations().hooks.setdefault(node_id, ValueHooks())


def _is_alive(ref: weakref.ref[Any]) -> bool:
    return ref() is not None


def retain_gradient(t: Tensor) -> None:
    """Make the tapes on which a tensor is a result write the gradient of its value in backward to `.grad`."""
    for tape in tapes_with_result(t):
        annotations = tape.ensure_annotations()
        with write_lock.lock:  # the list is replaced, not changed: other threads may iterate over it
            if not any(ref() is t for ref in annotations.retaining):
                annotations.retaining = [*filter(_is_alive, annotations.retaining), weakref.ref(t)]


def retains_gradient(t: Tensor) -> bool:
    """Tell whether `retain_gradient` was called for a tensor on a tape where it is a result."""
    all_annotations = (tape.annotations for tape in tapes_with_result(t))
    return any(ref() is t for each in all_annotations if each is not None for ref in each.retaining)


# ---------------------------------------------------------------- nodes


class Node:
    """An operation in the history of a recording, or an attached tensor, where the history begins.

    Made on demand by `Tensor.grad_fn`, `graph.get_gradient_edge` and `next_functions`; two nodes of one
    operation are equal. A reference to one keeps the operation in the history during the recording, but not
    longer: when `backward()` or `release()` frees the history the node is left with its name and metadata.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach(x):
    ...     node = (x * x).sum().grad_fn
    ...     print(node.name(), [(before.name(), k) for before, k in node.next_functions])
    sum [('multiply', 0)]
    """

    __slots__ = ("__weakref__", "_has_result_entries", "_metadata", "_name", "_node_id", "_result_metadata", "_tape")

    def __init__(self, tape: Tape, node_id: Any, name: str, *, has_result_entries: bool = False) -> None:
        self._tape = tape
        self._node_id = node_id
        self._name = name
        self._has_result_entries = has_result_entries  # whether each result has its own entry
        self._result_metadata: dict[int, Any] = {}  # shape and dtype, by result, of the tensors it was made for
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
        """A dict for data of your own; one for each operation, while its history is kept."""
        if self._metadata is None:
            self._metadata = self._open_annotations("metadata").metadata.setdefault(self._node_id, {})
        return self._metadata

    @property
    def next_functions(self) -> tuple[tuple[Node, int], ...]:
        """The nodes that its gradients flow to, each with the number of the node's result that is meant.

        One for each tracked operand; constants do not appear. An attached tensor has none, unless it was
        computed itself.

        Raises:
            RuntimeError: the history is freed.
        """
        self._open_annotations("next_functions")
        e = None if _is_leaf_id(self._node_id) else entry_of(self._tape, self._node_id)
        if e is None:
            if not self.is_leaf():
                raise _freed_error(f"{self!r}.next_functions")
            return ()
        return tuple([edge_to_node(self._tape, node_id) for node_id in input_ids(e) if node_id is not None])

    @property
    def variable(self) -> Tensor:
        """The attached tensor whose node this is; operations have none.

        Raises:
            AttributeError: the node is an operation.
            RuntimeError: the history is freed.
        """
        if not self.is_leaf():
            raise AttributeError(f"{self!r} is an operation and has no variable; nodes named {_LEAF} do")
        self._open_annotations("variable")
        t = leaf_of(self._tape, self._node_id)
        if t is None:
            raise errors.RecordingError(f"{self!r}.variable: the tensor was detached from its manager")
        return t

    def register_hook(self, fn: Hook) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` in each backward when the operation's derivative is computed.

        What the operation gives an operand that appears twice is, to be shown, added up before it is added to what
        others gave: the last bit of such a gradient can differ from that without a hook.

        Args:
            fn: takes two tuples: the gradients that go to the distinct tracked operands (an operand that
                appears twice has one, the sum), and the gradients of the results, None if there is none.
                It returns None, or a tuple that replaces the first, where None stops the gradient.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError: `fn` cannot be called; in backward, it returned something that is no such tuple.
            RuntimeError: the history is freed; the node is an attached tensor.
        """
        return RemovableHandle([HookPlace(self._hooks("register_hook", fn).after, fn)])

    def register_prehook(self, fn: Hook) -> RemovableHandle:
        """Call `fn(grad_outputs)` in each backward before the operation's derivative is computed.

        The hooks of its results' tensors are called first, and `retain_grad` keeps what they returned.

        Args:
            fn: takes a tuple of the gradients of the results, None if there is none. It returns None, or a
                tuple that replaces them, where None stops the gradient.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError, RuntimeError: as `register_hook`.
        """
        return RemovableHandle([HookPlace(self._hooks("register_prehook", fn).before, fn)])

    def _hooks(self, asked: str, hook: Any) -> ValueHooks:
        errors.check_function(hook, f"Node.{asked}")
        self._open_annotations(asked)
        if self.is_leaf():
            raise errors.RecordingError(
                f"{self!r}.{asked}: this node is an attached tensor, on which nothing is computed; use its "
                "register_hook, or register_post_accumulate_grad_hook for when .grad is written"
            )
        hooks = hooks_of(self._tape, self._node_id)
        results = [e[3] for e in self._tape.kept_entries() if is_result(e) and e[2] is self._node_id]
        hooks.count = max([hooks.count, *[k + 1 for k in results]])
        return hooks

    def _open_annotations(self, asked: str) -> Any:
        """Return the annotations of the tape; raise if its history is freed."""
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

    >>> import gradmgr
    >>> from gradmgr import GradManager, graph, tensor
    >>> x = tensor(3.0)
    >>> with GradManager().attach(x):
    ...     y = x * 2.0
    ...     edge = graph.get_gradient_edge(y)
    ...     gradmgr.grad(y**2, edge)
    (Tensor(12.),)
    """

    node: Node
    output_nr: int


# ---------------------------------------------------------------- finding nodes


def entry_of(tape: Tape, node_id: Any) -> Entry | None:
    """Return the entry of a value; None if there is none, or where it was freed."""
    entries, annotations = tape.entries, tape.ensure_annotations()
    for start in (annotations.indexed, 0):  # first the entries that the index does not have yet, then all
        found = _entry_at(entries, annotations.index.get(id(node_id)), node_id)
        if found is not None:
            return found
        if start == 0:
            annotations.index.clear()
        now = list(entries)
        annotations.index.update({id(e[1]): k for k, e in enumerate(now[start:], start) if e is not None})
        annotations.indexed = len(now)
    # Not found: there is no such entry, or another thread rebuilds the index at the same time.
    return next((e for e in reversed(now) if e is not None and e[1] is node_id), None)


def _entry_at(entries: list[Any], index: int | None, node_id: Any) -> Entry | None:
    """Return the entry at this index if it is that of `node_id`."""
    found: Any = entries[index : index + 1] if index is not None else []
    return found[0] if found and found[0] is not None and found[0][1] is node_id else None


def leaf_of(tape: Tape, node_id: Any) -> Tensor | None:
    """Return the attached tensor that has this leaf id."""
    return next((t for t, leaf_id in tape.leaves.copy().items() if leaf_id == node_id), None)


def _is_leaf_id(node_id: Any) -> bool:
    """Tell whether a node id is that of an attached tensor that was not computed: such ids are numbers."""
    return node_id.__class__ is int


def edge_to_node(tape: Tape, node_id: Any) -> GradientEdge:
    """Return the edge to a value of a tape."""
    e = None if _is_leaf_id(node_id) else entry_of(tape, node_id)
    if e is None and not _is_leaf_id(node_id) and leaf_of(tape, node_id) is None:
        raise _freed_error("the node of a tensor")
    if e is None or e[0] == "attach":
        return GradientEdge(Node(tape, node_id, _LEAF), 0)
    if not is_result(e):
        return GradientEdge(Node(tape, node_id, op_name(e)), 0)
    bundle = entry_of(tape, e[2])
    if bundle is None:
        raise _freed_error("the node of a tensor")
    return GradientEdge(Node(tape, e[2], op_name(bundle), has_result_entries=True), e[3])


def _freed_error(asked: str) -> errors.RecordingError:
    return errors.RecordingError(
        f"{asked}: this part of the history was freed as backward() passed through it; ask before backward(), or pass "
        "retain=True. Or it is computed by a checkpointed function that is running: what that does is not kept; ask "
        "for the node of its results afterwards"
    )


def _edge_to_tensor(tape: Tape, t: Tensor) -> GradientEdge:
    edge = edge_to_node(tape, tape.node_id_of(t))
    edge.node._result_metadata[edge.output_nr] = t.shape, t.dtype
    return edge


def grad_fn(t: Tensor) -> Node | None:
    """Return the node of the operation that made a tensor, on the innermost tape on which it is a result."""
    tapes = tapes_with_result(t)
    return _edge_to_tensor(tapes[-1], t).node if tapes else None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return where the gradient of a tensor flows, in the innermost recording that tracks it.

    It names the value for `gradmgr.grad` without keeping its memory alive.

    Raises:
        TypeError: `tensor` is not a Tensor.
        RuntimeError: no manager that records here tracks it.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     gradmgr.graph.get_gradient_edge(x * x)
    GradientEdge(node=<Node multiply>, output_nr=0)
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"get_gradient_edge takes a Tensor; found {type(tensor).__name__}")
    tapes = tracking_tapes(tensor)
    if not tapes:
        raise errors.NotRecordedError(
            f"get_gradient_edge: no manager that records here tracks {describe(tensor)}; attach it before it is used, "
            "or ask of what was computed from attached tensors, inside the recording"
        )
    return _edge_to_tensor(tapes[-1], tensor)


def tensor_of_edge(edge: GradientEdge, *, as_input: bool = False) -> Tensor:
    """Return a tensor of the edge's shape and dtype that is tracked as its value, to pass to `grad` or `backward`.

    Args:
        edge: of an open recording.
        as_input: return the attached tensor of an edge to a leaf even if it was written to since.

    Raises:
        RuntimeError: the history is freed; the shape of the result is not recorded.
    """
    node, k = edge
    node._open_annotations("(in a GradientEdge)")
    tape, node_id = node._tape, _node_id_of_result(node, k)
    t = leaf_of(tape, node_id)
    if t is not None and (as_input or tape.node_id_of(t) == node_id):
        return t
    metadata = node._result_metadata.get(k) or (tape.metadata().get(node_id) if t is None else (t.shape, t.dtype))
    if metadata is None:
        raise errors.NotRecordedError(
            f"GradientEdge to result {k} of {node!r}: nothing that was computed from it is recorded, so its shape is "
            "not known; pass the tensor itself"
        )
    xp = next((libraries.namespace(leaf._array) for leaf in list(tape.leaves)), np)
    made = wrap(xp.broadcast_to(xp.zeros((), metadata[1]), metadata[0]))
    tape.track(made, node_id)
    return made


def _node_id_of_result(node: Node, k: int) -> Any:
    """Return the node id of result `k` of an operation."""
    if not node._has_result_entries:
        return node._node_id
    for e in node._tape.kept_entries():
        if is_result(e) and e[2] is node._node_id and e[3] == k:
            return e[1]
    node_id = object()  # no tensor holds that result any more, so it has no entry
    node._tape.entries.append(("result", node_id, node._node_id, k))
    return node_id
