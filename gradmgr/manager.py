"""GradManager: weak attachment, recording, backward, callbacks; groups of managers."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Self

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.backward import (
    AttachSpec,
    BackwardRun,
    Callback,
    Inputs,
    Seeds,
    gradients_by_tensor,
    run_endings,
    seeds_of,
    write,
)
from gradmgr._engine.backward_pass import context_of_pass, run_backward
from gradmgr._engine.context import add_interceptor, enter_recorders, leave_recorders, remove_interceptor
from gradmgr._engine.history.spill import Budget, spill_of
from gradmgr._engine.history.trace_log import TraceLog, Tracing, UseTracing, explain, summary
from gradmgr._engine.hooks import hooked_leaf
from gradmgr._engine.observers import Observer
from gradmgr._engine.recorder import recording_threads
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe


class _Turns:
    """Whether backward runs in several threads at once, and the lock by which else it does not.

    The lock is reentrant: a callback may call backward.
    """

    def __init__(self) -> None:
        self.parallel = True
        self.lock = threading.RLock()


_turns = _Turns()

# The manager whose backward runs in this context.
_backwarding: ContextVar[Any] = ContextVar("gradmgr_backwarding", default=None)


class _Recording:
    """Gives `record()` and `release()` the form of a with block."""

    def record(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class GradManager(_Recording):
    """Records what attached tensors go through and computes gradients into their `.grad`.

    Nothing is recorded outside `record()` and `release()` (or a `with` block), only attached
    tensors receive gradients, and after `backward()` the history is gone whatever the user still
    holds. Attachment is weak: the manager keeps no tensor alive. Recording belongs to the current
    thread or asyncio task.

    Args:
        with_stack: remember for each operation the line of the program it stands in, for `summary`,
            `explain`, errors and pictures; recording is then several times slower.
        budget: bytes, as a number or text such as "2GiB", "500MB" or "1.5 GiB". When what a recording alone keeps
            alive exceeds them, the oldest values, which backward needs last, move out; they come back, the same bits,
            each time a derivative needs them. What you hold yourself, and arrays below 4 KiB, stay.
        spill: where they move: "host", from a GPU to the host's memory, or "disk", to a temporary file without a
            name, which is gone when the recording is, however the program ends.

    Raises:
        ValueError: `budget` or `spill` is none of these.
        TypeError: `budget` is neither a number nor text.
        OSError: while recording, there is no room on the disk; the operation is not recorded, nothing else changes.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    """

    def __init__(
        self,
        *,
        with_stack: bool = False,
        budget: int | str | None = None,
        spill: Literal["host", "disk"] = "host",
    ) -> None:
        self._specs: dict[int, AttachSpec] = {}
        self._tape: Tape | None = None
        self._self = weakref.ref(self)
        self._after_backward: list[Callable[[], Any]] = []
        self._in_backward = False
        self._release_after = False
        self._warned = False
        self._run: BackwardRun | None = None  # of the backward under way, where it has callbacks
        self._has_callbacks = False  # or had them once: without, backward needs no BackwardRun
        self._observers: list[Callable[[], Observer]] = [Tracing] if with_stack else []  # make those of a tape
        self._budget = None if budget is None else Budget(budget, spill)
        if self._budget is not None:
            self._observers.append(self._budget.start)
        self._trace_log: TraceLog | None = None  # of the last recording that was traced
        self._uses: UseTracing | None = None
        self._with_stack = with_stack

    def __repr__(self) -> str:
        budget = "" if self._budget is None else f", {self._budget!r}"
        return f"GradManager({len(self._live())} attached{', recording' if self._recording() else ''}{budget})"

    # ------------------------------------------------------------ attaching

    def attach(
        self,
        tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor],
        callbacks: Callback | Iterable[Callback] | None = None,
        *,
        callback: Callback | Iterable[Callback] | None = None,
    ) -> GradManager:
        """Attach tensors: from the next `record()`, or at once while recording, they receive gradients.

        Args:
            tensors: one Tensor, an iterable of them, or a mapping of names, used in errors, to Tensors.
            callbacks: one or several cb(tensor, grad) -> grad, called in order during `backward` when the
                tensor's gradient is complete; the last result is what `.grad` receives. A callback may return a
                future with `.get()`; it is awaited when gradients are propagated, then the chain goes on. A callback
                object may have `begin(manager)`, called before they are propagated, `finish(manager)`, called after
                that and before futures are awaited, and `abort(manager)`, called after a failure; see `current_run`.
            callback: the same as `callbacks`.

        Returns:
            The manager, so that `gm = GradManager().attach(w)` reads well.

        Attaching again adds the callbacks to those there are. A bad element changes nothing.

        Raises:
            TypeError: an element is no Tensor, or has a dtype other than float16/32/64, bfloat16,
                complex64/128; or a callback cannot be called.
        """
        if callbacks is not None and callback is not None:
            raise TypeError("attach takes callbacks= or callback=, not both; give one list")
        chain = _callback_list(callbacks if callback is None else callback)
        named = list(_named(tensors))
        for position, (name, t) in enumerate(named):
            _check_attachable(t, name, position)
        self._warn_repeated(named, chain)
        for name, t in named:
            self._attach_one(t, name, chain)
        return self

    def _attach_one(self, t: Tensor, name: str | None, chain: list[Callback]) -> None:
        with recording_threads.lock:  # or the callbacks of one of two threads would be lost
            spec = self._spec(t)
            if spec is None:
                self._specs[id(t)] = AttachSpec(weakref.ref(t, _forgetter(self, id(t))), list(chain), name)
            else:
                spec.callbacks.extend(chain)
                spec.name = name or spec.name
        if hooked_leaf(t).add_manager(self._self) or chain:
            self._has_callbacks = True
        if self._tape is not None and self._tape.open:
            self._tape.add_leaf(t)

    def _warn_repeated(self, named: list[tuple[str | None, Tensor]], chain: list[Callback]) -> None:
        """Warn once of a callback that a tensor has already; before anything changes, since a warning may raise."""
        if self._warned or not chain:
            return
        for name, t in named:
            spec = self._spec(t)
            if spec is not None and any(cb is old for cb in chain for old in spec.callbacks):
                self._warned = True
                warnings.warn(
                    f"a callback was attached again to {describe(t, name or spec.name)}, which has it already: it now "
                    "runs twice, and the list grows with every attach; attach it once, outside the loop",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return

    def detach(self, tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> GradManager:
        """Stop giving gradients to these tensors; while recording, from what is recorded already too.

        Raises:
            TypeError: an element is no Tensor.
            ValueError: a tensor is not attached here; nothing is then detached.
        """
        named = list(_named(tensors))
        for position, (name, t) in enumerate(named):
            if not isinstance(t, Tensor):
                raise TypeError(f"detach takes Tensors; {_place(name, position)} is {type(t).__name__}")
            if self._spec(t) is None:
                raise ValueError(
                    f"detach: {_place(name, position)}, {describe(t, name)}, is not attached to this manager; "
                    "attached_tensors() lists what is"
                )
        for _, t in named:
            self._specs.pop(id(t), None)
            hooked_leaf(t).remove_manager(self._self)
            if self._tape is not None:
                self._tape.remove_leaf(t)
        return self

    def attached_tensors(self) -> list[Tensor]:
        """Return the attached tensors that are alive, in the order of attachment."""
        return [t for spec in list(self._specs.values()) if (t := spec.tensor()) is not None]

    def clear_grad(self) -> None:
        """Set `.grad` to None on every attached tensor."""
        for t in self.attached_tensors():
            t.grad = None

    def register_after_backward_callback(self, callback: Callable[[], Any]) -> None:
        """Call `callback()` in every backward when gradients are propagated, before futures are awaited.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"register_after_backward_callback takes a function; found {type(callback).__name__}")
        self._after_backward.append(callback)
        self._has_callbacks = True

    # ------------------------------------------------------------ information

    def summary(self) -> str:
        """Return, as text, what the history keeps: operations and bytes, by op and by line of the program.

        Arrays that several operations keep count once. Lines are known to a manager made with
        `with_stack=True` and to recordings begun under `detect_anomaly`.

        >>> import gradmgr, gradmgr.numpy as np
        >>> w = gradmgr.tensor([1.0, 2.0])
        >>> gm = gradmgr.GradManager().attach(w)
        >>> with gm:
        ...     y = np.exp(w)
        ...     print(gm.summary())
        1 operations recorded, 1 tensors attached; kept for their derivatives: 16 B in arrays
        op     calls        kept
        exp        1        16 B
        (by line of your program too with GradManager(with_stack=True) or under detect_anomaly())
        """
        spill = None if self._tape is None else spill_of(self._tape)
        return summary(self._tape) + ("" if spill is None else f"\n{spill.status()}")

    def explain(self, x: Tensor) -> str:
        """Return, in words, why `x.grad` is what it is: never attached, attached after use, overwritten, cut, ...

        What happened where in the program is known to a manager made with `with_stack=True`, and
        to recordings begun under `detect_anomaly`, of their last recording.

        Raises:
            TypeError: `x` is no Tensor.

        >>> import gradmgr, gradmgr.numpy as np
        >>> x = gradmgr.tensor([1.0, 2.0])
        >>> gradmgr.GradManager().explain(x).partition(":")[0]
        'a Tensor of shape (2,) and dtype float64 is not attached to this manager, so it receives no gradient'
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"explain takes a Tensor; found {type(x).__name__}")
        spec = self._spec(x)
        tape = self._tape
        trace_log = self._trace_log if tape is None or tape.trace_log is None else tape.trace_log
        return explain(None if spec is None else spec.name, x, spec is not None, tape, trace_log)

    def _spec(self, t: Tensor) -> AttachSpec | None:
        spec = self._specs.get(id(t))
        return spec if spec is not None and spec.tensor() is t else None

    def _live(self) -> list[tuple[Tensor, AttachSpec]]:
        found = [(spec.tensor(), spec) for spec in list(self._specs.values())]
        return [(t, spec) for t, spec in found if t is not None]

    # ------------------------------------------------------------ recording

    def _recording(self) -> bool:
        return self._tape is not None and self._tape.open

    def record(self) -> None:
        """Start recording in this context, taking every attached tensor at its present value.

        Raises:
            RuntimeError: the manager records already.
        """
        enter_recorders(self._new_tape())
        if self._with_stack:
            self._watch_uses()

    def _watch_uses(self) -> None:
        if self._tape is not None:
            self._uses = UseTracing(self._tape)
            add_interceptor(self._uses)

    def _new_tape(self) -> Tape:
        with recording_threads.lock:  # of two threads that record one gets the error
            if self._tape is not None or self._in_backward:
                self._check_idle()
            own = tuple([make() for make in self._observers]) if self._observers else ()
            self._tape = tape = Tape(self.attached_tensors(), self._self, own)
        return tape

    def _check_idle(self) -> None:
        if self._in_backward:
            raise errors.RecordingError("record() inside this manager's own backward; use another GradManager there")
        if self._recording():
            raise errors.RecordingError(
                "record() was called on a GradManager that is recording already; call release() first, "
                "or use a second GradManager for a nested recording"
            )

    def release(self) -> None:
        """Stop recording and forget the history; allowed at any time, in any order and context.

        Inside this manager's own backward it takes effect when that is over.
        """
        if self._in_backward:
            self._release_after = True
            return
        self._free()

    def _free(self) -> None:
        tape, self._tape = self._tape, None
        if tape is not None:
            if tape.trace_log is not None:
                self._keep_trace_log(tape.trace_log)
            tape.close()
            leave_recorders(tape)

    def _keep_trace_log(self, trace_log: TraceLog) -> None:
        self._trace_log = trace_log
        if self._uses is not None:
            remove_interceptor(self._uses)
            self._uses = None

    def __del__(self) -> None:
        if getattr(self, "_tape", None) is not None:
            self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        """Group managers: both record what is computed, neither records the other's backward."""
        return GradManagerGroup([self]) | other

    # ------------------------------------------------------------ backward

    def backward(self, y: Any = None, dy: Any = None, *, retain: bool = False) -> None:
        """Add the gradients of `y`, weighted by `dy`, to the `.grad` of the attached tensors.

        Args:
            y: a Tensor or a list or tuple of them; the same tensor twice counts twice. None seeds nothing:
                callbacks' begin and finish still run, as a pipeline rank without a loss needs.
            dy: Tensors or arrays of the shapes of `y`; may be None where y is one real number.
            retain: keep the history for another backward; without it the manager is idle afterwards.

        Every argument is checked before anything changes: a rejected call leaves the manager
        recording. A later error leaves every `.grad` as it was and the manager idle.

        Raises:
            RuntimeError: the manager does not record, or does not know `y`.
            TypeError, ValueError: `dy` does not fit `y` in number, shape or dtype; a callback returned no gradient.
        """
        tape = self._tape
        if tape is None or not tape.open or self._in_backward:
            tape = self._open_tape()
        self._run_backward(tape, seeds_of(tape, y, dy), retain)

    def current_run(self) -> BackwardRun:
        """Return the backward under way, for a callback object that gathers, gives or replaces gradients.

        See `BackwardRun`.

        Raises:
            RuntimeError: this manager is in no backward, or in one without callbacks, as that of `gradmgr.grad`.

        >>> import gradmgr
        >>> w = gradmgr.tensor([1.0, 2.0])
        >>> def log(tensor, grad):
        ...     print(gradmgr.get_backwarding_grad_manager().current_run().attached(log))
        ...     return grad
        >>> with gradmgr.GradManager().attach({"w": w}, callbacks=log) as gm:
        ...     gm.backward((w * w).sum())
        {Tensor([1., 2.]): 'w'}
        """
        run = self._run
        if run is None:
            raise errors.RecordingError(
                "current_run() is for callbacks, during backward: this GradManager is in no backward that calls them"
            )
        return run

    def _run_backward(
        self,
        tape: Tape,
        seeds: Seeds,
        retain: bool,
        create_graph: bool = False,
        inputs: Inputs = None,
        keep: Callable[[dict[Tensor, Any]], None] | None = None,
    ) -> None:
        """Propagate gradients back over the tape and write `.grad`, or give the gradients to `keep`.

        Args:
            tape: the open tape of this manager.
            seeds: checked, (node id, cotangent) pairs.
            retain: keep the history; create_graph does so too.
            create_graph: let the tape itself record what is computed.
            inputs: the tensors to receive gradients and their node ids; None stands for all leaves.
            keep: receives the gradients by tensor; no `.grad` is then written and no callback runs.
        """
        run: BackwardRun | None = None
        outer = tape.outer if not create_graph else context_of_pass(tape, True)
        has_turn = not _turns.parallel and _turns.lock.acquire()
        try:
            self._begin_backward(tape)
            token = _backwarding.set(self)
            self._release_after = not (retain or create_graph)
            try:
                if tape.trace_log is not None:
                    tape.trace_log.record_seeds([node_id for node_id, _ in seeds])
                if keep is None and self._has_callbacks:
                    run = self._run = BackwardRun(self, outer, inputs)
                    results = run._propagate(tape, seeds, retain, create_graph)
                else:
                    wanted = None if inputs is None else inputs.values()
                    grads = run_backward(tape, seeds, retain=retain, create_graph=create_graph, wanted=wanted)
                    results = gradients_by_tensor(tape, grads, inputs)
                    del grads
                if keep is not None:
                    keep(results)
                if tape.annotations is not None:
                    run_endings(tape, outer)
                if keep is None:
                    write(results, outer, () if run is None else run._replaced)
            except BaseException as error:
                self._release_after = True
                if run is not None:
                    run._abort(error)
                raise
            finally:
                _backwarding.reset(token)
                self._end_backward()
            if run is not None:
                run._call_post_hooks()
        finally:
            if has_turn:
                _turns.lock.release()

    def _begin_backward(self, tape: Tape) -> None:
        with recording_threads.lock:  # of two threads in backward one gets the error
            if self._in_backward or self._tape is not tape:
                raise errors.RecordingError(
                    "backward(): another thread came before: it is in backward() of this GradManager, or released it, "
                    "or freed the history by a backward() without retain=True; use a GradManager in each thread"
                )
            self._in_backward = True

    def _end_backward(self) -> None:
        try:
            if self._run is not None:
                self._run._close()
            if self._release_after:
                self._free()
        finally:
            self._run = None
            self._in_backward = False  # last: another thread then finds the whole history, or none

    def _open_tape(self) -> Tape:
        """Return the tape of the recording that is open, or raise."""
        if self._in_backward:
            raise errors.RecordingError("backward() inside this manager's own backward; use another GradManager there")
        if self._tape is None or not self._tape.open:
            raise errors.RecordingError(
                "backward() needs a recording, and this GradManager is idle: it was released (a with block releases "
                "at its end: call backward() inside it), or an earlier backward() freed the history (pass retain=True "
                "to keep it), or record() was never called"
            )
        return self._tape


class set_multithreading_enabled:  # noqa: N801  # torch's spelling
    """Let backward run in several threads at once, the default, or one after another in the whole process.

    Called, it sets the mode; in a with block it sets it back at the end.

    >>> import gradmgr
    >>> with gradmgr.set_multithreading_enabled(False):
    ...     pass  # backward() in any thread now waits for one that runs elsewhere
    """

    def __init__(self, mode: bool) -> None:
        self._before = _turns.parallel
        _turns.parallel = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _turns.parallel = self._before


def get_backwarding_grad_manager() -> GradManager | None:
    """Return the manager whose backward is running in this context, None outside.

    >>> import gradmgr
    >>> gradmgr.get_backwarding_grad_manager() is None
    True
    """
    manager: GradManager | None = _backwarding.get()
    return manager


class GradManagerGroup(_Recording):
    """Managers that record together: all record what is computed, none records another's backward."""

    def __init__(self, managers: Iterable[GradManager]) -> None:
        self._managers = list(managers)
        for k, manager in enumerate(self._managers):
            if not isinstance(manager, GradManager):
                raise TypeError(f"a group is made of GradManagers; element {k} is {type(manager).__name__}")
            if any(manager is other for other in self._managers[:k]):
                raise ValueError("a GradManager stands twice in a group; each may stand there once")

    def record(self) -> None:
        """Start recording with all of them, or with none.

        Raises:
            RuntimeError: one of them records already.
        """
        for manager in self._managers:
            manager._check_idle()
        enter_recorders(*[manager._new_tape() for manager in self._managers])
        for manager in self._managers:
            if manager._with_stack:
                manager._watch_uses()

    def release(self) -> None:
        """Release all of them."""
        for manager in self._managers:
            manager.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        more = other._managers if isinstance(other, GradManagerGroup) else [other]
        if not all(isinstance(manager, GradManager) for manager in more):
            return NotImplemented
        return GradManagerGroup([*self._managers, *more])


# ---------------------------------------------------------------- arguments


def _forgetter(manager: GradManager, key: int) -> Callable[[Any], None]:
    """Return a function that drops an attachment when its tensor dies; it does not keep the manager alive."""
    weak = weakref.ref(manager)

    def forget(_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive._specs.pop(key, None)

    return forget


def _callback_list(callbacks: Any) -> list[Callback]:
    if callbacks is None:
        return []
    several = isinstance(callbacks, Iterable) and not callable(callbacks)
    chain = list(callbacks) if several else [callbacks]
    for callback in chain:
        if not callable(callback):
            raise TypeError(
                f"attach: a callback is a function cb(tensor, grad) -> grad; found {type(callback).__name__}"
            )
    return chain


def _named(tensors: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(tensors, Mapping):
        yield from tensors.items()
    elif isinstance(tensors, Tensor) or not isinstance(tensors, Iterable) or libraries.is_array(tensors):
        yield None, tensors
    else:
        for t in tensors:
            yield None, t


def _place(name: str | None, position: int) -> str:
    return f"element {position}" if name is None else f"element {position} ({name!r})"


def _check_attachable(t: Any, name: str | None, position: int) -> None:
    if not isinstance(t, Tensor):
        is_pair = isinstance(t, tuple) and any(isinstance(p, Tensor) for p in t)  # what named_parameters() gives
        from_a_module = is_pair or hasattr(t, "named_parameters")
        how = "attach dict(model.named_parameters())" if from_a_module else "make one with gradmgr.tensor(...)"
        raise TypeError(
            f"attach takes Tensors; {_place(name, position)} is {type(t).__module__}.{type(t).__name__}; {how}"
        )
    if not libraries.is_differentiable(t.dtype):
        raise errors.DtypeError(
            f"attach: {_place(name, position)}, {describe(t, name)}, cannot have a gradient; "
            "use float16, float32, float64, bfloat16, complex64 or complex128, as with t.astype('float32')"
        )
