"""One backward pass: the checks of its arguments, the callbacks that see it, the writing of `.grad`."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Container, KeysView
from sys import getrefcount
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries, memory
from gradmgr._engine.backward_pass import context_of_pass, run_backward
from gradmgr._engine.context import (
    Context,
    activated,
    current,
    enter_new_recorders,
    rebind,
    recorders,
    reset_current,
    set_current,
)
from gradmgr._engine.hooks import (
    check_like,
    handle,
    leaf_hooks_of,
    name_of,
    run_post_hooks,
    run_tensor_hooks,
    select_post_hooked,
    select_tensor_hooked,
)
from gradmgr._engine.mutation import as_type
from gradmgr._engine.recorder import Recorder, recording_threads
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, raw, wrap

Callback = Callable[[Tensor, Tensor], Any]
# The tensors that are to receive gradients, with their node ids; None stands for all leaves.
Inputs = dict[Tensor, Any] | None
Seeds = list[tuple[Any, Any]]
# A callback, and the function that takes all its gradients at once.
Collector = tuple[Callback, Callable[[dict[Tensor, Tensor]], Any]]


class AttachSpec:
    """What a manager knows of an attached tensor: `tensor`, a weak reference, and `callbacks`, a list."""

    __slots__ = ("callbacks", "name", "tensor")

    def __init__(self, tensor: weakref.ref[Tensor], callbacks: list[Callback], name: str | None = None) -> None:
        self.tensor = tensor
        self.callbacks = callbacks
        self.name = name

    def __repr__(self) -> str:
        return f"AttachSpec(tensor={self.tensor!r}, callbacks={self.callbacks!r})"


# ---------------------------------------------------------------- arguments

# The seed of most losses: a NumPy scalar, whose size takes 0.4 us to ask for.
_ONES = MappingProxyType({np.float32: np.float32(1), np.float64: np.float64(1)})


def seeds_of(tape: Tape, y: Any, dy: Any, *, asked: str = "backward", create_graph: bool = False) -> Seeds:
    """Check the arguments of backward; return (node id, cotangent) pairs, those of the tape's roots too.

    Args:
        tape: the tape to propagate back through.
        y: what to differentiate.
        dy: its weights.
        asked: the name of the public function, for errors.
        create_graph: whether the tape itself records the derivative, not only the recorders outside of it.
    """
    if y.__class__ is Tensor and y._rec is tape and tape.annotations is None:  # the common cases, without calls
        a = y._array
        if dy is None and a.__class__ in _ONES:
            return [(y._node_id, _ONES[a.__class__])]
        is_array = dy.__class__ is np.ndarray and isinstance(a, (np.ndarray, np.generic))
        if is_array and dy.dtype == a.dtype and dy.shape == a.shape:
            return [(y._node_id, dy)]
    if y is None and dy is not None:
        raise ValueError("backward(None, dy): a dy was given without the y it belongs to")
    ys = [] if y is None else _as_list(y)
    dys = [None] * len(ys) if dy is None else _as_list(dy)
    if len(dys) != len(ys):
        raise ValueError(f"{asked}: {len(ys)} y were given and {len(dys)} dy; give one dy for each y")
    node_ids = [_node_id_of(tape, t, position) for position, t in enumerate(ys)]
    outer = context_of_pass(tape, create_graph)
    cotangents = [_cotangent(outer, t, d, k) for k, (t, d) in enumerate(zip(ys, dys, strict=True))]
    roots = [] if tape.annotations is None else tape.annotations.roots
    return [*zip(node_ids, cotangents, strict=True), *roots]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _node_id_of(tape: Tape, y: Any, position: int) -> Any:
    if not isinstance(y, Tensor):
        raise TypeError(f"backward differentiates Tensors; y number {position} is {type(y).__name__}")
    node_id = tape.node_id_of(y)
    if node_id is None:
        seen = "" if tape.trace_log is None else tape.trace_log.explain_untracked(y)
        raise errors.NotRecordedError(
            f"backward: this GradManager does not know y number {position}, {describe(y)}. Attached tensors that are "
            f"alive: {len(tape.leaves)}. y may have been computed before record() or before attach(); under no_grad(); "
            "from nothing that is attached (x = x - step makes a new tensor, x -= step does not); through detach(), an "
            "integer or boolean cast, or a plain array; by another manager's backward; or overwritten in place by a "
            "constant" + (f". Seen: {seen}" if seen else "")
        )
    return node_id


def _cotangent(outer: Any, y: Tensor, dy: Any, position: int) -> Any:
    """Return the weights of `y` in its dtype: a Tensor where a recorder in `outer` tracks them, else an array."""
    if dy is None:
        return _one_for(y, position)
    recorded = isinstance(dy, Tensor) and _is_tracked_by(recorders(outer), dy)
    value = dy if recorded else raw(dy)
    if not isinstance(value, Tensor) and not libraries.is_array(value):
        value = np.asarray(value)
    dtype, wanted = value.dtype, y.dtype
    if value.shape != y.shape:
        raise errors.ShapeError(
            f"backward: dy number {position} must have the shape of its y, {y.shape}; found {value.shape}"
        )
    if dtype.kind not in "biufc" and not libraries.is_differentiable(dtype):
        raise errors.DtypeError(f"backward: dy number {position} must be numeric; found dtype {dtype}")
    if dtype.kind == "c" and wanted.kind != "c":
        raise errors.DtypeError(
            f"backward: dy number {position} is complex, {dtype}, and its y real, {wanted}; pass its real part"
        )
    if libraries.root(raw(value)) is not libraries.root(y._array):
        where = libraries.device_of(raw(value))
        raise errors.MixedArraysError(f"backward: dy number {position} lives on {where}, its y on {y.device}; move dy")
    if dtype == wanted:
        return value
    with activated(outer):
        return as_type(value, wanted)


def _one_for(y: Tensor, position: int) -> Any:
    a = y._array
    if a.size != 1 or a.dtype.kind == "c":
        raise ValueError(
            f"backward without dy needs y to be one real number; y number {position} is {describe(y)}; "
            "reduce it, as with y.sum(), or pass dy of its shape"
        )
    if a.ndim == 0 and isinstance(a, (np.ndarray, np.generic)):
        return a.dtype.type(1)  # NumPy divides a scalar by a number ten times faster than a 0-d array
    return libraries.namespace(a).ones(a.shape, a.dtype)


# ---------------------------------------------------------------- callbacks


class BackwardRun:
    """One backward pass of a manager, for callback objects that do more than change one gradient after the other.

    `manager.current_run()` gives it to a callback object in its `begin(manager)`, in its `finish(manager)` and where it
    is called, `callback(tensor, grad)`. It is valid until backward returns and keeps nothing alive afterwards.

    >>> import gradmgr, gradmgr.numpy as np
    >>> class Zeros:  # for tensors that the loss does not depend on
    ...     def __call__(self, tensor, grad):
    ...         return grad
    ...     def finish(self, manager):
    ...         run = manager.current_run()
    ...         for tensor in run.attached(self):
    ...             if tensor not in run.leaves:
    ...                 run.deliver(tensor, np.zeros_like(tensor), callback=self)
    >>> x, unused = gradmgr.tensor([1.0, 2.0]), gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach([x, unused], callbacks=Zeros())
    >>> with gm:
    ...     gm.backward((x * x).sum())
    >>> x.grad, unused.grad
    (Tensor([2., 4.]), Tensor(0.))
    """

    def __init__(self, manager: Any, outer: Any, inputs: Inputs) -> None:
        self._manager: weakref.ref[Any] = manager._self
        self._specs: dict[Tensor, AttachSpec] = dict(manager._live())
        self._after: list[Callable[[], Any]] = manager._after_backward
        self._inputs = inputs
        self._results: dict[Tensor, Any] = {}
        self._reached: dict[Tensor, None] = {}  # leaves whose chains have begun, in that order
        self._waiting: deque[tuple[Tensor, Any, int]] = deque()  # tensor, future, place in its chain
        self._delivered: set[Tensor] = set()
        self._replaced: set[Tensor] = set()
        self._objects: list[Any] = []  # callback objects whose begin ran
        self._collector: Collector | None = None
        self._post_hooked: list[Tensor] = []  # leaves with hooks to call when `.grad` is written
        self._phase = "begin"  # then "backward", "finish", "over"
        self._outer_recorders = recorders(outer)  # they are to track the gradients that hooks return
        # The context of callbacks. They compute as if before the recording, but all recorders see writes in place.
        self._state = self._before = Context.of(outer).for_callbacks(current()).simplest()

    # ------------------------------------------------------------ for callback objects

    @property
    def manager(self) -> Any:
        """The GradManager whose backward this is; None when it is gone."""
        return self._manager()

    @property
    def leaves(self) -> KeysView[Tensor]:
        """The attached tensors with callbacks that the pass has reached by now, as their gradients became complete.

        Empty in `begin`, all of them in `finish`. In the order of attachment where `collect` took the gradients.
        """
        return self._reached.keys()

    @property
    def inputs(self) -> KeysView[Tensor] | None:
        """The only tensors to receive gradients, as `gradmgr.backward(inputs=)` says; None where all receive them."""
        return None if self._inputs is None else self._inputs.keys()

    @property
    def is_recorded(self) -> bool:
        """Whether a recording around this backward may follow the gradients, for derivatives of the second order.

        A callback that computes with plain arrays then cuts them off.
        """
        return bool(self._outer_recorders)

    @property
    def is_over(self) -> bool:
        """Whether the pass has ended, and every `.grad` is written, or none."""
        return self._phase == "over"

    def attached(self, callback: Callback) -> dict[Tensor, str | None]:
        """Return the tensors with this callback, reached or not, in the order of attachment, and their names."""
        return {t: spec.name for t, spec in self._specs.items() if callback in spec.callbacks}

    def chain(self, tensor: Tensor) -> tuple[Callback, ...]:
        """Return the callbacks of a tensor, in the order in which they are called; none where it is not attached."""
        spec = self._specs.get(tensor)
        return () if spec is None else tuple(spec.callbacks)

    def pending(self, callback: Callback) -> list[Tensor]:
        """Return the tensors whose gradients wait, at the future of an earlier callback, to come to this one."""
        return [t for t, _, place in self._waiting if callback in self._specs[t].callbacks[place:]]

    def collect(self, callback: Callback, function: Callable[[dict[Tensor, Tensor]], Any]) -> None:
        """Have all gradients given to `function(gradients)` at once, in place of `callback(tensor, grad)` for each.

        The function is called before `finish`. It changes the dict: what it puts there for a tensor that has the
        callback, reached or not, is that tensor's gradient. This spares the calls, and the pass need not stop at each
        tensor. It is done only where nothing else sees the gradients, so that the result is the same: where no other
        callback object and no other callback is attached to the manager, and no tensor with the callback has hooks.
        Elsewhere the callback is called as always.

        Raises:
            RuntimeError: gradients are on their way already; ask for this in `begin`.
            ShapeError, DtypeError, CallbackError: later, in backward: what the function gave is no gradient of its
                tensor, or the tensor has not this callback.
        """
        if self._phase != "begin":
            raise errors.RecordingError("collect() is for begin(manager): gradients are on their way already, or gone")
        self._collector = callback, function

    def deliver(self, tensor: Tensor, gradient: Any, callback: Callback) -> None:
        """Give a gradient to a tensor that the pass did not reach, as if `callback` had returned it.

        The callbacks after this one in the tensor's chain follow. For `finish` and what runs after it.

        Args:
            tensor: an attached tensor with this callback; nothing happens where `inputs` leaves it out.
            gradient: a Tensor, or a future with `.get()`, awaited after `finish`; None is no gradient.
            callback: the callback that gives the gradient.

        Raises:
            RuntimeError: it is not known yet what the pass reaches, or the pass is over.
            ValueError: the tensor has not this callback, or it has a gradient.
            ShapeError, DtypeError, CallbackError: what is given is no gradient of the tensor.
        """
        if self._phase != "finish":
            when = "is over" if self.is_over else "may still reach the tensor: deliver in finish(manager)"
            raise errors.RecordingError(f"deliver() to {describe(tensor)}: this backward {when}")
        chain = self.chain(tensor)
        if callback not in chain:
            raise ValueError(f"deliver(): {describe(tensor)} has no callback {name_of(callback)} in this manager")
        if tensor in self._reached or tensor in self._delivered:
            how = "reached it" if tensor in self._reached else "was given one for it before"
            raise ValueError(
                f"deliver(): {describe(tensor, self._specs[tensor].name)} has a gradient, as this backward {how}"
            )
        if gradient is None or (self._inputs is not None and tensor not in self._inputs):
            return
        place = chain.index(callback) + 1
        self._delivered.add(tensor)
        if _is_future(gradient):
            self._waiting.append((tensor, gradient, place))
        else:
            self._check(tensor, gradient, callback)
            self._call_from(place, tensor, gradient)

    def replace(self, tensor: Tensor) -> None:
        """Write the gradient that this pass gives a tensor over the one in `.grad`, which it stands for too.

        `.grad` stays the same object, and what it was where backward fails. Else gradients add up.
        """
        self._replaced.add(tensor)

    # ------------------------------------------------------------ for the manager

    def _propagate(self, tape: Tape, seeds: Seeds, retain: bool, create_graph: bool) -> dict[Tensor, Any]:
        """Propagate the seeds back, with the callbacks; return the gradients of the leaves reached, or of `inputs`."""
        specs, inputs = self._specs, self._inputs
        hooked = set(select_tensor_hooked(specs))
        chained = {t: node_id for t, node_id in tape.leaves.items() if t in hooked or self.chain(t)}
        if inputs is not None:
            chained = {t: node_id for t, node_id in chained.items() if inputs.get(t) == node_id}
        self._call(self._begin)
        self._phase = "backward"
        collector = None if hooked else self._usable_collector()
        grads = run_backward(
            tape,
            seeds,
            retain=retain,
            awaited=chained,
            report=self._receive if collector is None else None,
            create_graph=create_graph,
            wanted=None if inputs is None else inputs.values(),
        )
        found = gradients_by_tensor(tape, grads, inputs)
        del grads
        gradients: dict[Tensor, Tensor] = {}  # for the collector
        for t in [*found]:
            if t not in chained:
                self._results[t] = found.pop(t)
            elif collector is not None:
                gradients[t] = _as_tensor(found.pop(t))
        del found
        self._phase = "finish"
        if collector is not None:
            self._call(self._collect, *collector, gradients)
        del gradients
        self._call(self._finish)
        self._carry_over()
        self._post_hooked = [t for t in select_post_hooked(self._results) if t in tape.leaves]
        return self._results

    def _begin(self) -> None:
        for callback in {id(cb): cb for spec in self._specs.values() for cb in spec.callbacks}.values():
            if hasattr(callback, "begin") or hasattr(callback, "finish") or hasattr(callback, "abort"):
                self._objects.append(callback)
                getattr(callback, "begin", _ignore)(self.manager)

    def _usable_collector(self) -> Collector | None:
        """Return the collector if each attached tensor has its callback alone, or none."""
        chains = [spec.callbacks for spec in self._specs.values() if spec.callbacks]
        collector = self._collector
        return collector if collector is not None and chains.count([collector[0]]) == len(chains) else None

    def _collect(self, callback: Callback, function: Callable[..., Any], gradients: dict[Tensor, Tensor]) -> None:
        """Let a collector change the gradients of all tensors that have its callback."""
        self._reached = dict.fromkeys(gradients)
        function(gradients)
        for t, g in gradients.items():
            if callback not in self.chain(t):
                raise errors.CallbackError(
                    f"callback {name_of(callback)} collected a gradient for {describe(t)}, which has not this callback"
                )
            self._check(t, g, callback)
            if self._inputs is None or t in self._inputs:
                self._results[t] = g

    def _receive(self, t: Tensor, g: Any) -> None:
        """Begin the chain of a leaf with its complete gradient."""
        self._reached[t] = None
        self._call(self._start_chain, t, g)

    def _start_chain(self, t: Tensor, g: Any) -> None:
        hooks = leaf_hooks_of(t)
        if hooks is not None and hooks.tensor:
            g = run_tensor_hooks(hooks.tensor, g, describe(t, self._specs[t].name), self._outer_recorders)
        self._call_from(0, t, _as_tensor(g))

    def _call_from(self, place: int, t: Tensor, g: Any) -> None:
        """Call the chain of a tensor from this place on, up to a future; at the end stands the result."""
        for callback in self._specs[t].callbacks[place:]:
            place += 1
            g = callback(t, g)
            if _is_future(g):
                self._waiting.append((t, g, place))
                return
            self._check(t, g, callback)
        self._results[t] = g

    def _finish(self) -> None:
        for callback in self._objects:
            getattr(callback, "finish", _ignore)(self.manager)
        for function in list(self._after):
            function()
        while self._waiting:
            t, future, place = self._waiting.popleft()
            g = future.get()
            if g is None and t in self._delivered:
                self._delivered.remove(t)  # no gradient after all; another callback may deliver one
                continue
            self._check(t, g, self._specs[t].callbacks[place - 1], "the future of ")
            self._call_from(place, t, g)

    def _check(self, t: Tensor, g: Any, callback: Callback, source: str = "") -> None:
        if g.__class__ is Tensor and g._array.shape == t._array.shape and g._array.dtype == t._array.dtype:
            return  # the common case, without the text
        what = f"{source}callback {name_of(callback)} on {describe(t, self._specs[t].name)}"
        if not isinstance(g, Tensor):
            raise errors.CallbackError(
                f"{what} gave {'None' if g is None else type(g).__name__}; a callback returns the gradient, a Tensor, "
                "or a future with .get(); return its second argument to change nothing"
            )
        check_like(g, t, what)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        """Call what calls callbacks, in their context; what they begin to record goes on in the next call."""
        token = set_current(self._state)
        try:
            function(*args)
        finally:
            self._state = current()
            reset_current(token)

    def _carry_over(self) -> None:
        """Let the recordings that callbacks left open go on outside."""
        if self._state is not self._before:
            enter_new_recorders(Context.of(self._before), Context.of(self._state))
            self._before = self._state

    def _abort(self, error: BaseException) -> None:
        """Call `abort` of the callback objects, of each: the first error stays the one raised."""
        self._call(self._call_aborts, error)
        self._carry_over()
        self._state = self._before = None

    def _call_aborts(self, error: BaseException) -> None:
        for callback in self._objects:
            try:
                getattr(callback, "abort", _ignore)(self.manager)
            except Exception as second:  # noted, so that the others are called and the first error is raised
                error.add_note(f"(and {name_of(callback)}.abort raised {second!r})")

    def _close(self) -> None:
        """Keep nothing alive any more."""
        self._phase = "over"
        self._inputs = self._collector = None
        self._after, self._objects, self._outer_recorders = [], [], []
        for held in (self._specs, self._results, self._reached, self._waiting, self._delivered, self._replaced):
            held.clear()

    def _call_post_hooks(self) -> None:
        """Call the hooks of leaves that wait for `.grad` to be written."""
        try:
            for t in self._post_hooked:
                try:
                    self._call(run_post_hooks, t)
                finally:
                    self._carry_over()
        finally:
            self._post_hooked, self._state, self._before = [], None, None


def _ignore(manager: Any) -> None:
    """Stand for a method that a callback object has not."""


def _as_tensor(g: Any) -> Tensor:
    """Return a gradient, an array or a Tensor, as a Tensor."""
    return g if isinstance(g, Tensor) else wrap(g)


def _is_future(g: Any) -> bool:
    return not isinstance(g, (Tensor, dict)) and hasattr(g, "get")


# ---------------------------------------------------------------- gradients


def gradients_by_tensor(tape: Tape, grads: dict[Any, Any], inputs: Inputs) -> dict[Tensor, Any]:
    """Return the gradients of the leaves, or of `inputs`, and of what retain_grad asked for, by tensor.

    Args:
        tape: the tape of the backward pass.
        grads: what the pass left, by node id; what is returned is taken out.
        inputs: the tensors that are to receive gradients, with their node ids; None for all leaves.
    """
    found: dict[Tensor, Any] = {}
    for t, node_id in (tape.leaves if inputs is None else inputs).items():
        if node_id in grads:
            found[t] = grads.pop(node_id)
    notes = tape.annotations
    if notes is not None and notes.retained:
        found |= {t: g for t, g in notes.retained if t not in found}
        notes.retained.clear()
    return found


def run_endings(tape: Tape, outer: Any) -> None:
    """Call what waits for the end of a backward pass, before any `.grad` is written; `outer` is to record it."""
    notes = tape.ensure_annotations()
    if not notes.gathered:
        return
    endings, notes.endings = notes.endings, []
    notes.gathered.clear()
    with activated(Context.of(outer).for_callbacks(current())):
        for function in endings:
            function()


# ---------------------------------------------------------------- writing


def write(results: dict[Tensor, Any], outer: Any, replaced: Container[Tensor] = ()) -> None:
    """Write `.grad` of all, or of none: everything that can fail comes before the first write.

    Args:
        results: the gradients; emptied, since a gradient that something else holds too must be copied.
        outer: the context outside of the recording; its recorders may track the gradients.
        replaced: tensors whose new gradient stands for the one they hold, too.
    """
    known = [] if outer is None else [rec for rec in recorders(outer) if rec.open]
    fresh: list[tuple[Tensor, Tensor]] = []
    changes: list[tuple[Callable[..., None], Tensor, Any]] = []
    with recording_threads.lock:  # threads that share a parameter lose no update
        while results:
            t, g = results.popitem()
            held = getattr(t, "_grad", None)
            is_replaced = held is not None and t in replaced
            if known and not is_replaced and (_is_tracked_by(known, g) or _is_tracked_by(known, held)):
                with activated(outer):
                    fresh.append((t, _recorded_sum(held, g, known)))
                continue
            if isinstance(g, Tensor):
                g = g._array  # and the Tensor is dropped: what else holds the array is asked next
            if held is not None and not is_replaced:
                changes.append(_addition(held, g))
                continue
            made = _new(Tensor)  # `wrap`, inlined
            made._array = g
            made._rec = g = None  # what else holds the array is asked next
            made = own_gradient(made, t)
            if held is None:
                fresh.append((t, made))
            else:
                changes.append((_replace, held, made._array))
        if changes:
            with np.errstate(all="ignore"):  # a warning made an error must not stop half-way
                for change, target, value in changes:
                    change(target, value)
        for t, made in fresh:
            t._grad = made


_new = object.__new__


def _is_tracked_by(recorders: list[Recorder], g: Any) -> bool:
    return isinstance(g, Tensor) and any(rec.node_id_of(g) is not None for rec in recorders)


def _recorded_sum(held: Tensor | None, g: Any, recorders: list[Recorder]) -> Tensor:
    fresh = handle(g, recorders)
    return fresh if held is None else held + fresh


def _addition(held: Tensor, g: Any) -> tuple[Callable[..., None], Tensor, Any]:
    """Return how to add an array to the gradient held: a function and its arguments."""
    a = held._array
    if batched.is_batched(g):  # inside vmap; the gradient held may be one for all examples
        return _replace, held, a + g
    if held.ndim and recording_threads.may_write(held) and not libraries.float_errors_raise():
        return _add, held, g
    xp = libraries.namespace(a)
    return _replace, held, xp.add(a, g, out=xp.empty_like(a))  # in new memory, with the strides of what is held


def _add(held: Tensor, g: Any) -> None:
    a = held._array
    libraries.namespace(a).add(a, g, out=a)
    rebind(held, wrap(a))  # a constant for every recorder


def _replace(held: Tensor, array: Any) -> None:
    rebind(held, wrap(array))


def own_gradient(made: Tensor, t: Tensor) -> Tensor:
    """Return a gradient in memory of its own, with the strides of a dense parameter."""
    g, a = made._array, t._array
    is_like = g.__class__ is np.ndarray and g.base is None and g.ndim and g.strides == a.strides
    if is_like and getrefcount(g) <= _SOLE and g.flags.owndata:  # the common case, without calls
        return made
    g = None  # what else holds the array is asked next
    if memory.is_private(made) and _is_dense_like(made._array, a):
        return made
    g = made._array
    if batched.is_batched(a):
        made._array = batched.spacious(np.empty_like(a), g)
    else:
        made._array = libraries.namespace(g).empty_like(a)
    made._array[...] = g
    return made


def _count_held() -> int:
    made = wrap(np.empty(1))
    g = made._array
    return getrefcount(g)


# The reference count of an array that only one Tensor holds, measured as `own_gradient` asks for it.
_SOLE = _count_held()


def _is_dense_like(g: Any, a: Any) -> bool:
    """Tell whether g has a buffer of its own size, in C order as the parameter is."""
    whole = g.base is None or memory.buffer_bytes(g) == g.nbytes
    return bool(whole and g.ndim and g.flags.c_contiguous and a.flags.c_contiguous)
