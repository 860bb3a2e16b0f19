"""Derivatives of one function: its inputs and outputs, checked, and its runs in reverse and forward mode.

Each derivative is recorded by its own manager, on handles of the inputs: no `.grad`, hook, callback or manager
of the user's is touched.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.context import Context, current, is_tracked, leave_recorders, recorders
from gradmgr._engine.forward import ForwardScope
from gradmgr._engine.history.modes import inference_mode
from gradmgr._engine.hooks import LeafHooks
from gradmgr._engine.mutation import as_type
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, describe, raw, wrap
from gradmgr._transforms.grad import compute_gradients, node_ids_before
from gradmgr.manager import GradManager

Function = Callable[..., Any]
Tensors = Any  # a Tensor, an array or a number, or a tuple of them
Derivatives = list[Any]  # Tensors, arrays, or None if there is none

_REAL_SCALARS = frozenset((np.float32, np.float64))  # NumPy's, which take 1 us to tell their size and dtype


# ---------------------------------------------------------------- arguments


class DerivativeCall(Scope):
    """One call of a function of `gradmgr.functional`: its name for errors, its inputs and options.

    It is a scope, in which the derivative is computed.

    Attributes:
        leaves: the inputs as they were given, Tensors, arrays and numbers.
        is_plain: whether none of them is a Tensor, so that results are none either.
        given: the inputs as Tensors.
        create_graph: whether the recorders outside record the results; None until it is open where that is left to
            whether there are any.
    """

    def __init__(self, name: str, func: Function, inputs: Any, create_graph: bool | None, strict: bool) -> None:
        if isinstance(create_graph, Tensor):
            raise TypeError(
                f"{name}: create_graph is True, False or None; pass several inputs as one tuple, inputs=(x, y)"
            )
        errors.check_function(func, name)
        self.name = name
        self.func = func
        self.create_graph = create_graph
        self.strict = strict
        self.one_input = not isinstance(inputs, (tuple, list))
        self.leaves = [inputs] if self.one_input else list(inputs)
        self.is_plain = not any(isinstance(leaf, Tensor) for leaf in self.leaves)
        tensors = [leaf_as_tensor(x) if _is_plain(x) else x for x in self.leaves]
        self.given = self._tensors(tensors[0] if self.one_input else tensors, "inputs")
        for k, x in enumerate(self.given):
            if not libraries.is_differentiable(x.dtype):
                raise errors.DtypeError(
                    f"{name}: input {k} has dtype {x.dtype}; only floating and complex Tensors have derivatives: "
                    "convert it with .astype('float64'), or leave it out of inputs (a lambda may hold it)"
                )
        self.xs: list[Tensor] = []  # handles of the inputs, while it is open
        self.outs: list[Tensor] = []
        self.one_output = False
        self.outside: list[Any] = []  # the recorders that track the results, with create_graph
        self._isolation: Any = None  # the context manager that isolates the call, to leave at the end
        self._strict_tape: Tape | None = None  # with strict: on which the result must depend on the inputs

    def _tensors(self, given: Any, what: str) -> list[Tensor]:
        many = list(given) if isinstance(given, (tuple, list)) else [given]
        if not many:
            raise TypeError(f"{self.name}: {what} is empty; give a Tensor or a tuple of them")
        for k, t in enumerate(many):
            if not isinstance(t, Tensor):
                which = f"element {k}" if isinstance(given, (tuple, list)) else "it"
                raise TypeError(
                    f"{self.name}: {what} must be a Tensor or a tuple of Tensors; {which} is {type(t).__name__}"
                )
        return many

    # ------------------------------------------------------------ running

    def _open(self, opened: Any) -> None:
        """Decide whether the results are recorded, and pause what is outside if not; make handles of the inputs."""
        state = current()
        must_vary = self.strict and self.create_graph  # not where it is open who asks for derivatives of the results
        if state is None:
            self.create_graph = bool(self.create_graph)
        elif self.create_graph is None:
            self.create_graph = bool(Context.of(state).groups)
        elif not self.create_graph:
            self._isolation = inference_mode()
            self._isolation.__enter__()
        if not self.create_graph:
            heard = listener()
            if heard is not None:
                heard.meet_all(self.given)
            self.xs = [wrap(x._array) for x in self.given]
            return
        self.xs = [make_handle(x) for x in self.given]
        self.outside = recorders(state)
        if must_vary:
            self._isolation = _DerivativeManager().attach(self.xs)
            self._isolation.record()
            self._strict_tape = self._isolation._open_tape()

    def _close(self, opened: Any) -> None:
        if self._isolation is not None:
            self._isolation.__exit__(None, None, None)

    def call_func(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Call the function, and check what it returns."""
        given = self.func(*xs)
        self.one_output = isinstance(given, Tensor)
        return self._tensors(given, "what func returns")

    # ------------------------------------------------------------ strict

    def check_depends(self, tape: Tape, outs: Sequence[Tensor], leaves: Sequence[Tensor], what: str = "output") -> None:
        """Raise if strict is set and an output does not depend on an input."""
        if not self.strict:
            return
        for j, y in enumerate(outs):
            node_id = tape.node_id_of(y)
            reached = set() if node_id is None else node_ids_before(tape, [node_id])
            for k, x in enumerate(leaves):
                if tape.leaves[x] not in reached:
                    raise errors.NotRecordedError(
                        f"{self.name}: {what} {j} of func does not depend on input {k}, {describe(x)}, which "
                        "strict=True forbids; strict=False gives zeros"
                    )

    def check_derivatives(self, derivatives: Sequence[Any], what: str = "the derivative") -> None:
        """Raise if strict is set and the derivative by an input does not depend on the inputs."""
        if self._strict_tape is not None:
            check_varies(self.name, self._strict_tape, derivatives, what)

    # ------------------------------------------------------------ results

    def results(self, derivatives: Derivatives) -> Any:
        """Return derivatives by the inputs in the structure of the inputs; empties the list."""
        made = self._filled(derivatives, self.given)
        made = [as_kind_of(g, leaf) for g, leaf in zip(made, self.leaves, strict=True)]
        return made[0] if self.one_input else tuple(made)

    def tangents(self, derivatives: Derivatives) -> Any:
        """Return derivatives of the outputs in the structure of the outputs; empties the list."""
        return self._as_outputs(self._filled(derivatives, self.outs))

    def _filled(self, derivatives: Derivatives, like: Sequence[Tensor]) -> list[Any]:
        filled = [zeros_of(t) if g is None else g for g, t in zip(derivatives, like, strict=True)]
        derivatives.clear()
        return new_tensors(filled if self.create_graph else list(map(bare, _pop_all(filled))))

    def outputs(self) -> Any:
        """Return the outputs as `func` returned them."""
        return self._as_outputs([make_handle(y) if self.create_graph else wrap(y._array) for y in self.outs])

    def _as_outputs(self, outs: list[Any]) -> Any:
        """Return Tensors in the structure of the outputs; as arrays and NumPy scalars where the inputs were such."""
        if self.is_plain:
            outs = [y if is_tracked(y) else computed(operator.getitem, y._array, ()) for y in outs]
        return outs[0] if self.one_output else tuple(outs)

    def vectors(self, v: Any, like: Sequence[Tensor], place: str) -> list[Any]:
        """Check the vector to multiply the derivative with; return ones where it is None and may be."""
        if v is None:
            if len(like) != 1 or like[0].size != 1 or like[0].dtype.kind == "c":
                raise ValueError(
                    f"{self.name}: v may be left out only where {place} is one Tensor of one real number; found "
                    f"{', '.join(map(describe, like))}; pass v of the same shape"
                )
            return [libraries.namespace(like[0]._array).ones_like(like[0]._array)]
        vs = list(v) if isinstance(v, (tuple, list)) else [v]
        if len(vs) != len(like):
            raise ValueError(f"{self.name}: v holds {len(vs)} Tensors; {place} holds {len(like)}: one for each")
        return [self._checked_vector(u, t, k, place) for k, (u, t) in enumerate(zip(vs, like, strict=True))]

    def _checked_vector(self, v: Any, t: Tensor, k: int, place: str) -> Any:
        if not (isinstance(v, Tensor) or libraries.is_array(v)):
            raise TypeError(f"{self.name}: v must hold Tensors or arrays; number {k} is {type(v).__name__}")
        libraries.check_plain(v, self.name)
        if v.shape != t.shape:
            raise errors.ShapeError(
                f"{self.name}: v number {k} has shape {v.shape}; it must have that of {place}, {t.shape}"
            )
        if (v.dtype.kind == "c" and t.dtype.kind != "c") or v.dtype.kind not in "biufcV":
            raise errors.DtypeError(f"{self.name}: v number {k} has dtype {v.dtype}; {place} has {t.dtype}")
        if libraries.root(raw(v)) is not libraries.root(t._array):
            raise errors.MixedArraysError(
                f"{self.name}: v number {k} lives on {libraries.device_of(raw(v))}, {place} on {t.device}; move v"
            )
        v = v if self.create_graph else bare(v)
        return v if v.dtype == t.dtype else as_type(v, t.dtype)


def _is_plain(value: Any) -> bool:
    """Tell whether it is an array or a number that may be an input."""
    return libraries.is_array(value) or isinstance(value, (int, float, complex))


def is_differentiable_leaf(leaf: Any) -> bool:
    if leaf.__class__ is np.ndarray or isinstance(leaf, Tensor) or libraries.is_array(leaf):
        return libraries.is_differentiable(leaf.dtype)
    return isinstance(leaf, (float, complex))


def leaf_as_tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    return wrap(libraries.as_array(leaf))


def as_kind_of(made: Tensor, leaf: Any) -> Any:
    """Return a Tensor as what the leaf is, an array or a number; as a Tensor if an outer recorder tracks it."""
    if isinstance(leaf, Tensor) or (made._rec is not None and is_tracked(made)):
        return made
    if leaf.__class__ is made._array.__class__ is np.ndarray:
        return made._array
    if libraries.is_array(leaf) and not isinstance(leaf, np.generic):
        xp = libraries.namespace(made._array)
        return computed(xp.asarray, made._array)  # a 0-d result may be a NumPy scalar
    return computed(operator.getitem, made._array, ())


def make_handle(t: Tensor) -> Tensor:
    """Return a new tensor with the node ids of `t`, as func may write to it in place."""
    handle = snapshot(t, recorders(current()))
    return handle if isinstance(handle, Tensor) else wrap(handle)


def _pop_all(values: list[Any]) -> Iterator[Any]:
    """Yield the elements of a list and remove them, as each reference to an array counts (see `new_tensors`)."""
    values.reverse()
    while values:
        yield values.pop()


def new_tensors(derivatives: Derivatives) -> list[Tensor]:
    """Return new Tensors in their own memory, with their node ids; empties the list."""
    tracking = recorders(current())
    made = []
    for g in _pop_all(derivatives):
        handle = snapshot(g, tracking)
        g = None  # `is_private` counts references
        if not isinstance(handle, Tensor):
            handle = wrap(handle)
            if not memory.is_private(handle):  # it may be the user's vector
                handle._array = computed(_copy, handle._array)
        made.append(handle)
    return made


_copy = operator.methodcaller("copy")


def zeros_of(t: Tensor) -> Any:
    return libraries.namespace(t._array).zeros_like(t._array)


def as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else wrap(value)


def fill_zeros(found: Derivatives, like: Sequence[Tensor]) -> list[Tensor]:
    return [as_tensor(zeros_of(t) if g is None else g) for g, t in zip(found, like, strict=True)]


def check_varies(name: str, tape: Tape, derivatives: Sequence[Any], what: str) -> None:
    """Raise if a derivative was not computed from the inputs, which `tape` tracks."""
    for k, g in enumerate(derivatives):
        node_id = tape.node_id_of(g) if isinstance(g, Tensor) else None
        if node_id is None or node_ids_before(tape, [node_id]).isdisjoint(tape.leaves.values()):
            raise errors.NotRecordedError(
                f"{name}: {what} by input {k} does not depend on the inputs (func is linear in it), so that it cannot "
                "be differentiated again, which strict=True forbids; strict=False gives zeros"
            )


def one_real_output(name: str, outs: Sequence[Tensor], one: bool = True) -> Tensor:
    """Return the output of a scalar function; raise unless it is one real number."""
    (y, *more) = outs
    if one and not more and y._array.__class__ in _REAL_SCALARS:
        return y
    if more or not one or y.size != 1 or y.dtype.kind == "c" or not libraries.is_differentiable(y.dtype):
        found = ", ".join(map(describe, outs))
        raise ValueError(
            f"{name}: func must return one Tensor of one real number; found {found}; reduce it, as with .sum()"
        )
    return y


# ---------------------------------------------------------------- reverse and forward mode


class _DerivativeManager(GradManager):
    """The manager of one derivative; a call of `gradmgr.grad` in the function itself does not release it."""

    is_of_transform = True
    may_release = False

    def attach_new(self, leaves: Sequence[Tensor]) -> _DerivativeManager:
        """Attach Tensors that are differentiable, known to the caller alone, and held as long as this manager."""
        for x in leaves:
            self._attachments.add_new(x)
            x._hooks = LeafHooks(self._self)
        return self

    def _run_backward(self, tape: Tape, seeds: Any, retain: bool, *args: Any) -> None:
        super()._run_backward(tape, seeds, not self.may_release, *args)


class Pullback(Scope):
    """A function recorded at a point, whose vjp can be called any number of times while this is open."""

    def __init__(self, compute: Callable[[list[Tensor]], Any], xs: Sequence[Tensor]) -> None:
        self.leaves = [make_handle(x) for x in xs]
        self._compute = compute
        self._manager = _DerivativeManager().attach_new(self.leaves)

    def _open(self, opened: Any) -> None:
        self._manager.record()
        self.tape = self._manager._open_tape()
        self.made = self._compute(self.leaves)

    def _close(self, opened: Any) -> None:
        self._manager._release()

    def vjp(self, ys: Sequence[Tensor], us: Sequence[Any], *, last: bool = False) -> Derivatives:
        """Return the gradients of the inputs, None if there is none; with `last`, free the history meanwhile."""
        pairs = [(y, u) for y, u in zip(ys, us, strict=True) if self.tape.node_id_of(y) is not None]
        if not pairs:
            return [None] * len(self.leaves)
        self._manager.may_release = last
        ys, us = [y for y, _ in pairs], [u for _, u in pairs]
        return compute_gradients(self.tape, self._manager, ys, us, self.leaves, retain=True)


class LastingPullback(Pullback):
    """A pullback whose history stays until it is dropped, and whose vjp may be called in any context."""

    def _close(self, opened: Any) -> None:
        if hasattr(self, "made"):
            leave_recorders(self.tape)  # which stays open, and records nothing more
        else:
            super()._close(opened)

    def vjp_here(self, ys: Sequence[Tensor], us: Sequence[Any], *, last: bool = False) -> Derivatives:
        """Return the gradients, computed where the recorders of the present context record them."""
        self.tape.outer = current()
        return self.vjp(ys, us, last=last)


class Pushforward(ForwardScope):
    """A level of forward mode with handles of tensors that have these tangents, while it is open."""

    def __init__(self, xs: Sequence[Tensor], vs: Sequence[Any]) -> None:
        self._outside = recorders(current())
        super().__init__(is_of_transform=True)
        self.leaves = [make_handle(x) for x in xs]
        for x, v in zip(self.leaves, vs, strict=True):
            if v is not None:
                self.level.add_dual(x, v)

    def tangents(self, outs: Sequence[Tensor]) -> Derivatives:
        """Return the tangents of what was computed, None if there is none."""
        tangents = [self.level.node_id_of(y) for y in outs]
        return [None if t is None else snapshot(t, self._outside) for t in tangents]


def forward_derivative(
    call: DerivativeCall, compute: Callable[[list[Tensor]], Any], vs: Sequence[Any]
) -> tuple[Any, Derivatives]:
    """Return the results of a function of the inputs, and their tangents."""
    forward = Pushforward(call.xs, vs)
    return forward.run(_results_and_tangents, call, compute, forward)


def _results_and_tangents(
    call: DerivativeCall, compute: Callable[[list[Tensor]], Any], forward: Pushforward
) -> tuple[Any, Derivatives]:
    if call.strict:
        back = Pullback(compute, forward.leaves)
        back.run(lambda: call.check_depends(back.tape, back.made, back.leaves))
        outs = back.made
    else:
        outs = compute(forward.leaves)
    return outs, forward.tangents(outs)
