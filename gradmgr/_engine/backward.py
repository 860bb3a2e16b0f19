"""One backward pass as callbacks see it, and the order in which they are called."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, KeysView
from typing import Any

from gradmgr import errors
from gradmgr._arrays.listening import listener
from gradmgr._engine.attachment import AttachSpec, Callback
from gradmgr._engine.backward_pass import run_backward
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.cleanup import complete
from gradmgr._engine.context import Context, current, enter_new_recorders, paused, recorders, run_in, set_current
from gradmgr._engine.gradients import Inputs, gradients_by_tensor
from gradmgr._engine.hooks import (
    check_like,
    leaf_hooks_of,
    name_of,
    run_post_hooks,
    run_tensor_hooks,
    select_post_hooked,
    select_tensor_hooked,
)
from gradmgr._engine.seeds import Seeds
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, wrap

# A callback, and the function that takes all its gradients at once.
Collector = tuple[Callback, Callable[[dict[Tensor, Tensor]], Any]]


class BackwardRun:
    """One backward pass of a manager, for callback objects that work on several gradients at once.

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
        self._specs: dict[Tensor, AttachSpec] = manager._attachments.specs()
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
        self.is_replayed = False  # whether it belongs to a replay, which propagates gradients by itself
        self._phase = "begin"  # then "backward", "finish", "over"
        self._outer_recorders = recorders(outer)  # they are to track the gradients that hooks return
        # The context of callbacks. They compute as if before the recording, but all recorders see writes in place.
        now = current()  # where nothing records outside, which is the common case, there is less to make
        state = paused(now) if outer is None else Context.of(outer).for_callbacks(now).simplest()
        self._state = self._before = state

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
        """The only tensors to receive gradients, as `gradmgr.backward(inputs=)` says; None if all receive them."""
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
            ShapeError, DtypeError, CallbackError: later, in backward: what the function gave is not a gradient of its
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
            ShapeError, DtypeError, CallbackError: what is given is not a gradient of the tensor.
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
        """Write the gradient that this pass gives a tensor over the one in `.grad`, which it includes.

        `.grad` stays the same object, and what it was where backward fails. Else gradients add up.
        """
        self._replaced.add(tensor)

    # ------------------------------------------------------------ for the manager

    def _propagate(self, tape: Tape, seeds: Seeds, retain: bool, create_graph: bool) -> dict[Tensor, Any]:
        """Propagate the seeds back, with the callbacks; return the gradients of the leaves reached, or of `inputs`."""
        specs, inputs = self._specs, self._inputs
        hooked = set(select_tensor_hooked(specs))
        chained = {  # without calls, as all that runs in every backward with callbacks
            t: node_id
            for t, node_id in tape.leaves.copy().items()
            if ((spec := specs.get(t)) is not None and spec.callbacks) or t in hooked
        }
        if inputs is not None:
            chained = {t: node_id for t, node_id in chained.items() if inputs.get(t) == node_id}
        if listener() is None:
            self._start()
        else:
            listener().clean_up_by(self.manager._abandon_run)
            self._call_manager("_begin_run")
        collector = None if hooked else self._usable_collector()
        grads = run_backward(
            tape,
            seeds,
            retain=retain,
            awaited=chained,
            report=self._reporter() if collector is None else None,
            create_graph=create_graph,
            wanted=None if inputs is None else inputs.values(),
            for_grad=True,
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
        self._finish_with(collector is not None, gradients)
        self._post_hooked = [t for t in select_post_hooked(self._results) if t in tape.leaves]
        return self._results

    # ------------------------------------------------------------ in a capture, and in a replay of it

    def _call_manager(self, name: str, *args: Any) -> Any:
        """Call a method of the manager that a replay calls, too: there it finds a run that is begun by the first."""
        return call_whole(getattr(self.manager, name), *args)

    def _reporter(self) -> Callable[[Tensor, Any], None]:
        if listener() is None:
            return self._receive
        return lambda t, g: self._call_manager("_receive", t, _as_tensor(g))

    def _start(self) -> None:
        """Call the `begin` of callback objects, before gradients are propagated."""
        self._call(self._begin)
        self._phase = "backward"

    def _finish_with(self, collects: bool, gradients: dict[Tensor, Tensor]) -> None:
        """Call the collector, where it is used, and the `finish` of callback objects: all gradients are propagated."""
        if listener() is None:
            self._complete(collects, gradients)
            return
        plain = set(self._results)
        attached = list(self._specs)
        made = self._call_manager("_finish_run", attached, collects, list(gradients), list(gradients.values()))
        self._results.update({t: g for t, g in zip(attached, made, strict=True) if g is not None and t not in plain})

    def _complete(self, collects: bool, gradients: dict[Tensor, Tensor]) -> None:
        self._phase = "finish"
        self._call(self._collect_and_finish, collects, gradients)
        self._carry_over()

    def _collect_and_finish(self, collects: bool, gradients: dict[Tensor, Tensor]) -> None:
        if collects and self._collector is not None:
            self._collect(*self._collector, gradients)
        gradients.clear()
        self._finish()

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
            spec = self._specs.get(t)
            if spec is None or callback not in spec.callbacks:
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
            try:
                given = callback(t, g)
            except TypeError as error:
                # Raised by the call itself: the callback was not entered.
                if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                    error.add_note("a callback of attach is called with two arguments: callback(tensor, grad)")
                raise
            if given is None:
                continue
            if _is_future(given):
                self._waiting.append((t, given, place))
                return
            self._check(t, given, callback)
            g = given
        self._results[t] = g

    def _finish(self) -> None:
        for callback in self._objects:
            getattr(callback, "finish", _ignore)(self.manager)
        for function in list(self._after):
            function()
        while self._waiting:
            t, future, place = self._waiting.popleft()
            try:
                g = future.get()
            finally:
                del future  # it may keep the error that it raises, which refers to this frame
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
                f"{what} gave {'None' if g is None else type(g).__name__}; return a Tensor, as gradmgr.asarray "
                "makes of an array, a future with .get(), or None to keep the gradient"
            )
        check_like(g, t, what)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        """Call what calls callbacks, in their context; what they begin to record goes on in the next call."""
        before = current()
        try:
            set_current(self._state)
            try:
                function(*args)
            finally:
                self._state = current()
                set_current(before)
        except BaseException:
            complete(set_current, before)  # again: an exception may have struck in `finally`
            raise

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


def run_endings(tape: Tape, outer: Any) -> None:
    """Call what waits for the end of a backward pass, before any `.grad` is written; `outer` is to record it."""
    notes = tape.ensure_annotations()
    if not notes.gathered:
        return
    endings, notes.endings = notes.endings, []
    notes.gathered.clear()
    run_in(Context.of(outer).for_callbacks(current()), _call_each, endings)


def _call_each(functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        function()
