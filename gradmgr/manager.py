"""GradManager: weak attachment, recording, backward, callbacks; groups of managers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, Never, NoReturn, Self

from gradmgr import errors
from gradmgr._arrays.listening import listener
from gradmgr._engine import write_lock
from gradmgr._engine.attachment import Attachments, Callback, attachable, callback_list, named, place_of
from gradmgr._engine.backward import BackwardRun, run_endings
from gradmgr._engine.backward_pass import context_of_pass, run_backward
from gradmgr._engine.capture_notes import see
from gradmgr._engine.cleanup import ExitMethod, complete
from gradmgr._engine.collector import interrupts_here
from gradmgr._engine.context import add_interceptor, close_recorders_of, enter_recorders, leave_recorders
from gradmgr._engine.display import Text, html_table
from gradmgr._engine.gradients import Inputs, clear, gradients_by_tensor, write
from gradmgr._engine.history.spill import Budget, spill_of
from gradmgr._engine.history.trace_log import TraceLog, Tracing, UseTracing, explain, summary
from gradmgr._engine.hooks import hooked_leaf
from gradmgr._engine.observers import Observer
from gradmgr._engine.seeds import Seeds, seeds_of
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr._engine.turns import turns
from gradmgr._engine.wrong_calls import explained, unexpected

# The manager whose backward runs in this context.
_backwarding: ContextVar[Any] = ContextVar("gradmgr_backwarding", default=None)


_ALTERNATIVES = MappingProxyType(
    {
        "grad": "the .grad of each attached tensor",
        "gradient": "backward(y), and then the .grad of each attached tensor",
        "step": "step() of an optimiser of gradmgr.optim",
        "watch": "attach(tensors)",
        "zero_grad": "clear_grad()",
    }
)
_SHOWN_TENSORS = 50  # in the table of a notebook


class _Recording:
    """Gives `record()` and `release()` the form of a with block."""

    def record(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Stop recording and free the history; allowed at any time, in any order and context.

        Inside a manager's own backward it takes effect when that is over. A group releases all of its managers.
        """
        try:
            self._release()
        except BaseException:
            complete(self._release)
            raise

    def _release(self) -> None:
        """Do what `release` does; called again where an exception interrupts it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.record()
        try:
            return self
        except BaseException:  # raised here, as by a signal, where the with statement would not call `__exit__`
            complete(self._release)
            raise

    def _close_latest(self, found: Any) -> None:
        self.release()

    __exit__ = ExitMethod()


class GradManager(_Recording):
    """Records the operations on attached tensors, and adds their gradients to `.grad`.

    It records only between `record()` and `release()`, or in a `with` block. Only attached tensors
    receive gradients. `backward()` frees the history, even while the user keeps its results.
    Attachment is weak: the manager keeps no tensor alive. A recording belongs to the thread or
    asyncio task that started it.

    Args:
        with_stack: keep for each operation the line of the program that called it, for `summary`,
            `explain`, errors and pictures; recording is then several times slower.
        budget: bytes, as a number or text such as "2GiB", "500MB" or "1.5 GiB". When the values that only the
            recording keeps alive exceed it, the oldest ones, which backward needs last, are moved out, and read back
            bit for bit whenever a derivative needs them. Arrays that you keep, and those below 4 KiB, are not moved.
        spill: where they are moved: "host", from a GPU to the host's memory, or "disk", to an unnamed temporary file,
            which disappears with the recording, however the program ends.

    Raises:
        ValueError: `budget` or `spill` is not one of these.
        TypeError: `budget` is neither a number nor text.
        OSError: while recording, the disk is full; the operation is not recorded, and nothing else changes.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    """

    # Whether a transform of `functional` made it: what would cut a gradient then raises, see `_engine.conversion`, and
    # `grad` inside records by itself, as the transform may itself be differentiated.
    is_of_transform = False

    def __getattr__(self, name: str) -> NoReturn:  # called for names that Python did not find
        hint = f"; use {_ALTERNATIVES[name]}" if name in _ALTERNATIVES else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @partial(explained, name="GradManager", advice="what receives gradients is attached: GradManager().attach(x)")
    def __init__(
        self,
        *,
        with_stack: bool = False,
        budget: int | str | None = None,
        spill: Literal["host", "disk"] = "host",
    ) -> None:
        self._attachments = Attachments()
        self._tape: Tape | None = None
        self._self = weakref.ref(self, close_recorders_of)
        self._after_backward: list[Callable[[], Any]] = []
        self._in_backward = threading.Lock()  # held in a with block, so that it is free after any exception
        self._release_asked = False  # by `release` inside a backward, for its end
        self._run: BackwardRun | None = None  # of the backward in progress, where it has callbacks
        self._has_callbacks = False  # or had them once: without, backward needs no BackwardRun
        self._observers: list[Callable[[], Observer]] = [Tracing] if with_stack else []  # make those of a tape
        self._budget = None if budget is None else Budget(budget, spill)
        if self._budget is not None:
            self._observers.append(self._budget.start)
        self._trace_log: TraceLog | None = None  # of the last recording that was traced
        self._with_stack = with_stack
        self._uses: UseTracing | None = None

    def __repr__(self) -> str:
        budget = "" if self._budget is None else f", {self._budget!r}"
        return (
            f"GradManager({len(self.attached_tensors())} attached{', recording' if self._recording() else ''}{budget})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the attached tensors, for notebooks."""
        tensors = self.attached_tensors()
        shown: list[tuple[Any, ...]] = []
        for k, t in enumerate(tensors[:_SHOWN_TENSORS]):
            spec = self._attachments.of(t)
            name = k if spec is None or spec.name is None else spec.name
            shown.append((name, t.shape, t.dtype, "None" if t.grad is None else "set"))
        if len(tensors) > len(shown):
            shown.append((f"and {len(tensors) - len(shown)} more", "", "", ""))
        return html_table(repr(self), ("attached", "shape", "dtype", ".grad"), shown)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a GradManager is not copied or pickled, as it belongs to tensors of this process: make another one, and "
            "attach the copies"
        )

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
                tensor's gradient is complete; the last result is what `.grad` receives. One that returns None
                passes on the gradient it was given. A callback may return a future with `.get()`; it is awaited when
                gradients are propagated, then the chain goes on. A callback object may have `begin(manager)`, called
                before they are propagated, `finish(manager)`, called after that and before futures are awaited, and
                `abort(manager)`, called after a failure; see `current_run`.
            callback: the same as `callbacks`.

        Returns:
            The manager, so that `gm = GradManager().attach(w)` reads well.

        Attaching a tensor again appends the callbacks. While recording, its gradient remains that at the value it had
        when it became a leaf, even if it was written to since. If the write made it a constant, as one under `no_grad`
        does, what is computed from here on counts too. Call `detach` first to start over at its current value. If any
        element is invalid, nothing changes.

        Raises:
            TypeError: an element is not a Tensor, or has a dtype other than float16/32/64, bfloat16,
                complex64/128; or a callback cannot be called.
            ValueError: an iterator has no tensor left.

        >>> from gradmgr import GradManager, tensor
        >>> x, y = tensor(3.0), tensor(4.0)
        >>> gm = GradManager().attach({"x": x}).attach(y, callbacks=lambda t, grad: grad * 10.0)
        >>> with gm:
        ...     gm.backward(x * y)
        >>> x.grad, y.grad
        (Tensor(4.), Tensor(30.))
        """
        if callbacks is not None and callback is not None:
            raise TypeError("attach takes callbacks= or callback=, not both; give one list")
        chain = callback_list(callbacks if callback is None else callback)
        pairs = attachable(tensors)
        self._attachments.warn_repeated(pairs, chain)
        see(self, _state_of, "what is attached to a GradManager")
        for name, t in pairs:
            self._attach_one(t, name, chain)
        return self

    def _attach_one(self, t: Tensor, name: str | None, chain: list[Callback]) -> None:
        self._attachments.add(t, name, chain)
        if hooked_leaf(t).add_manager(self._self) or chain:
            self._has_callbacks = True
        if self._tape is not None and self._tape.open:
            self._tape.add_leaf(t)

    def detach(self, tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> GradManager:
        """Stop computing gradients for these tensors, also for operations that are already recorded.

        Raises:
            TypeError: an element is not a Tensor.
            ValueError: a tensor is not attached here; nothing is then detached.

        >>> from gradmgr import GradManager, tensor
        >>> x, y = tensor(3.0), tensor(4.0)
        >>> gm = GradManager().attach([x, y]).detach(y)
        >>> gm.attached_tensors()
        [Tensor(3.)]
        """
        pairs = list(named(tensors))
        for position, (name, t) in enumerate(pairs):
            if not isinstance(t, Tensor):
                raise TypeError(f"detach takes Tensors; {place_of(name, position)} is {type(t).__name__}")
            if self._attachments.of(t) is None:
                raise ValueError(
                    f"detach: {place_of(name, position)}, {describe(t, name)}, is not attached to this manager; "
                    "attached_tensors() lists what is"
                )
        see(self, _state_of, "what is attached to a GradManager")
        for _, t in pairs:
            self._attachments.remove(t)
            hooked_leaf(t).remove_manager(self._self)
            if self._tape is not None:
                self._tape.remove_leaf(t)
        return self

    def attached_tensors(self) -> list[Tensor]:
        """Return the attached tensors that are alive, in the order of attachment.

        >>> from gradmgr import GradManager, tensor
        >>> x, y = tensor(3.0), tensor(4.0)
        >>> gm = GradManager().attach([x, y])
        >>> del y  # attachment is weak
        >>> gm.attached_tensors()
        [Tensor(3.)]
        """
        see(self, _state_of, "what is attached to a GradManager")
        return self._attachments.tensors()

    def clear_grad(self) -> None:
        """Set `.grad` to None on every attached tensor.

        >>> from gradmgr import GradManager, tensor
        >>> x = tensor(3.0)
        >>> gm = GradManager().attach(x)
        >>> with gm:
        ...     gm.backward(x * x)
        >>> gm.clear_grad()
        >>> x.grad is None
        True
        """
        clear(self.attached_tensors())

    def register_after_backward_callback(self, callback: Callable[[], Any]) -> None:
        """Call `callback()` in every backward, after gradients are propagated and before futures are awaited.

        Raises:
            TypeError: `callback` cannot be called.

        >>> from gradmgr import GradManager, tensor
        >>> x = tensor(3.0)
        >>> gm = GradManager().attach(x)
        >>> gm.register_after_backward_callback(lambda: print("all gradients are computed"))
        >>> with gm:
        ...     gm.backward(x * x)
        all gradients are computed
        """
        errors.check_function(callback, "register_after_backward_callback")
        see(self, _state_of, "what is attached to a GradManager")
        self._after_backward.append(callback)
        self._has_callbacks = True

    # ------------------------------------------------------------ information

    def summary(self) -> str:
        """Return a text listing the recorded operations and the bytes they keep, by op and by line.

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
        return Text(summary(self._tape) + ("" if spill is None else f"\n{spill.status()}"))

    def explain(self, x: Tensor) -> str:
        """Explain in words why `x.grad` has its value: never attached, attached after use, overwritten, cut, ...

        What happened where in the program is known to a manager made with `with_stack=True`, and
        to recordings begun under `detect_anomaly`, of their last recording.

        Raises:
            TypeError: `x` is not a Tensor.

        >>> import gradmgr, gradmgr.numpy as np
        >>> x = gradmgr.tensor([1.0, 2.0])
        >>> gradmgr.GradManager().explain(x).partition(":")[0]
        'a Tensor of shape (2,) and dtype float64 is not attached to this manager, so it receives no gradient'
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"explain takes a Tensor; found {type(x).__name__}")
        spec = self._attachments.of(x)
        tape = self._tape
        trace_log = self._trace_log if tape is None or tape.trace_log is None else tape.trace_log
        return Text(explain(None if spec is None else spec.name, x, spec is not None, tape, trace_log))

    # ------------------------------------------------------------ recording

    def _recording(self) -> bool:
        return self._tape is not None and self._tape.open

    def record(self) -> None:
        """Start recording in this context, taking every attached tensor at its present value.

        Raises:
            RuntimeError: the manager records already.

        >>> from gradmgr import GradManager, tensor
        >>> x = tensor(3.0)
        >>> gm = GradManager().attach(x)
        >>> gm.record()
        >>> gm.backward(x * x)
        >>> x.grad
        Tensor(6.)
        """
        _record((self,))

    def _begin(self) -> Tape:
        if listener() is not None:
            see(self, _state_of, "what is attached to a GradManager")
            listener().note_leaves(self._attachments.tensors())
            listener().note_code([*self._attachments.functions(), *self._after_backward])
        with write_lock.lock:  # of two threads that record one gets the error
            if self._tape is not None or self._in_backward.locked():
                self._check_idle()
            own = tuple([make() for make in self._observers]) if self._observers else ()
            # Known to the manager before it is open, so that `release` finds whatever was opened.
            self._tape = tape = Tape(self._attachments.tensors(), self._self, own)
            tape.open = True
        return tape

    def _check_idle(self) -> None:
        if self._in_backward.locked():
            raise errors.RecordingError("record() inside this manager's own backward; use another GradManager there")
        if self._recording():
            raise errors.RecordingError(
                "record() was called on a GradManager that is recording already; call release() first, "
                "or use a second GradManager for a nested recording"
            )

    def _release(self) -> None:
        if self._in_backward.locked():
            self._release_asked = True
        else:
            self._free()

    def _free(self) -> None:
        """Close the tape. Where an exception interrupts it, what is left is done when this is called again."""
        tape = self._tape
        if tape is not None:
            if tape.trace_log is not None:
                self._trace_log = tape.trace_log
            tape.close()
            if self._uses is not None:
                self._uses.open = False
            leave_recorders(tape)
            self._tape = None

    def __del__(self) -> None:
        """Release; where the collector may have interrupted any code, only close the tape, which is inert then."""
        if getattr(self, "_tape", None) is not None:
            complete(self._release_dying)

    def _release_dying(self) -> None:
        if not interrupts_here():
            self._release()
            return
        if self._uses is not None:
            self._uses.open = False
        if self._tape is not None:
            self._tape.close()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        """Group managers: both record what is computed, neither records the other's backward."""
        return GradManagerGroup([self]) | other

    # ------------------------------------------------------------ backward

    def backward(self, y: Any = None, dy: Any = None, *, retain: bool = False, **_wrong: Never) -> None:
        """Add the gradients of `y`, weighted by `dy`, to the `.grad` of the attached tensors.

        Args:
            y: a Tensor or a list or tuple of them; the same tensor twice counts twice. None seeds nothing:
                callbacks' begin and finish still run, as a pipeline rank without a loss needs.
            dy: Tensors or arrays of the shapes of `y`; may be None if y is one real number.
            retain: keep the history for another backward; without it the manager is idle afterwards.

        Every argument is checked before anything changes: a rejected call leaves the manager
        recording. A later error leaves every `.grad` as it was and the manager idle.

        Raises:
            RuntimeError: the manager does not record, or does not know `y`.
            TypeError, ValueError: `dy` does not fit `y` in number, shape or dtype; a callback returned something that
                is not a gradient of its tensor.

        >>> from gradmgr import GradManager, tensor
        >>> x = tensor([1.0, 2.0])
        >>> with GradManager().attach(x) as gm:
        ...     gm.backward(x**2, tensor([1.0, 10.0]))  # weights, as x**2 is no single number
        >>> x.grad
        Tensor([ 2., 40.])
        """
        if _wrong:
            raise unexpected(GradManager.backward, _wrong)
        tape = self._tape
        if tape is None or not tape.open or self._in_backward.locked():
            tape = self._open_tape()
        self._run_backward(tape, seeds_of(tape, y, dy), retain)

    def current_run(self) -> BackwardRun:
        """Return the backward in progress, for a callback object that gathers, gives or replaces gradients.

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
        if run is None or not self._in_backward.locked():
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
            inputs: the tensors to receive gradients and their node ids; None for all leaves.
            keep: receives the gradients by tensor; no `.grad` is then written and no callback runs.
        """
        if turns.parallel:
            self._propagate(tape, seeds, retain, create_graph, inputs, keep)
            return
        with turns.lock:
            self._propagate(tape, seeds, retain, create_graph, inputs, keep)

    def _propagate(
        self,
        tape: Tape,
        seeds: Seeds,
        retain: bool,
        create_graph: bool,
        inputs: Inputs,
        keep: Callable[[dict[Tensor, Any]], None] | None,
    ) -> None:
        run: BackwardRun | None = None
        outer = tape.outer if not create_graph else context_of_pass(tape, True)
        calling = _backwarding.get()
        stays_open = False
        with self._in_backward:
            self._check_tape(tape)
            self._release_asked = False
            try:
                _backwarding.set(self)
                if tape.trace_log is not None:
                    tape.trace_log.record_seeds([node_id for node_id, _ in seeds])
                if keep is None and self._has_callbacks:
                    run = self._run = BackwardRun(self, outer, inputs)
                    results = run._propagate(tape, seeds, retain, create_graph)
                else:
                    wanted = None if inputs is None else inputs.values()
                    grads = run_backward(
                        tape, seeds, retain=retain, create_graph=create_graph, wanted=wanted, for_grad=keep is None
                    )
                    results = gradients_by_tensor(tape, grads, inputs)
                    del grads
                if keep is not None:
                    keep(results)
                if tape.annotations is not None:
                    run_endings(tape, outer)
                if keep is None:
                    write(results, outer, () if run is None else run._replaced)
                stays_open = (retain or create_graph) and not self._release_asked
            except BaseException as error:
                if run is not None:
                    run._abort(error)
                raise
            finally:
                try:
                    self._end_backward(stays_open, calling)
                except BaseException:
                    complete(self._end_backward, stays_open, calling)
                    raise
        if run is not None:
            run._call_post_hooks()

    # ------------------------------------------------------------ backward in a replay of what was captured

    def _begin_run(self) -> None:
        """Call the callbacks' begin. In a replay, which propagates gradients by itself, the run begins here."""
        if self._run is None:
            if not self._in_backward.acquire(blocking=False):
                raise errors.RecordingError("backward() inside this manager's own backward; use another GradManager")
            self._run = BackwardRun(self, None, None)
            self._run.is_replayed = True
            _backwarding.set(self)
        self._run._start()

    def _receive(self, t: Tensor, g: Tensor) -> None:
        """Call the callbacks of a tensor whose gradient is complete."""
        if self._run is not None:
            self._run._receive(t, g)

    def _finish_run(
        self, attached: list[Tensor], collects: bool, reached: list[Tensor], gradients: list[Tensor]
    ) -> list[Any]:
        """Call the callbacks' finish; return what all callbacks made of the gradients of the attached tensors."""
        run = self._run
        if run is None:
            return []
        run._complete(collects, dict(zip(reached, gradients, strict=True)))
        found = [run._results.get(t) for t in attached]
        if run.is_replayed:
            self._leave_replayed_run()
        return [g if g is None or isinstance(g, Tensor) else wrap(g) for g in found]

    def _abandon_run(self, error: BaseException) -> None:
        """End the run of a replay that failed."""
        run = self._run
        if run is not None and run.is_replayed:
            try:
                run._abort(error)
            finally:
                self._leave_replayed_run()

    def _leave_replayed_run(self) -> None:
        _backwarding.set(None)  # nothing else runs backward: no replay runs within the callbacks of a pass
        if self._run is not None:
            self._run._close()
            self._run = None
        self._in_backward.release()

    def _check_tape(self, tape: Tape) -> None:
        if self._tape is not tape or not tape.open:
            raise errors.RecordingError(
                "backward(): another thread came before: it released this GradManager, or freed the history by a "
                "backward() without retain=True; use a GradManager in each thread"
            )

    def _end_backward(self, stays_open: bool, calling: GradManager | None) -> None:
        _backwarding.set(calling)
        if self._run is not None:
            self._run._close()
            self._run = None
        if not stays_open:
            self._free()

    def _open_tape(self) -> Tape:
        """Return the tape of the recording that is open, or raise."""
        if self._in_backward.locked():
            raise errors.RecordingError("backward() inside this manager's own backward; use another GradManager there")
        if self._tape is None or not self._tape.open:
            raise errors.RecordingError(
                "backward() needs a recording, and this GradManager is idle: it was released (a with block releases "
                "at its end: call backward() inside it), or an earlier backward() freed the history (pass retain=True "
                "to keep it), or record() was never called"
            )
        return self._tape


def _state_of(manager: GradManager) -> list[Any]:
    """Return what a recording of a manager depends on."""
    if not manager._has_callbacks:
        return list(manager._attachments._specs)
    return [*manager._attachments.state(), *map(id, manager._after_backward)]


_tape_of, _is_traced = attrgetter("_tape"), attrgetter("_with_stack")


def _record(managers: Sequence[GradManager]) -> None:
    """Begin the recordings of managers, as one group, or of none of them."""
    before = list(map(_tape_of, managers))
    try:
        try:
            # No comprehension: on CPython 3.13 what a trace function raises between two of its turns, as the tests of
            # faults do, passes by the handlers here. What a signal raises there does so where it has an `if`.
            tapes = list(map(GradManager._begin, managers))
            enter_recorders(*tapes)
            if any(map(_is_traced, managers)):
                _trace_uses(managers, tapes)
        except BaseException:
            complete(_free_new, managers, before)
            raise
    except BaseException:
        for manager, old in zip(managers, before, strict=True):  # at the recursion limit there is no room for a call
            if manager._tape is not None and manager._tape is not old:
                manager._tape.open = False
        complete(_free_new, managers, before)
        raise


def _trace_uses(managers: Sequence[GradManager], tapes: Sequence[Tape]) -> None:
    for manager, tape in zip(managers, tapes, strict=True):
        if manager._with_stack:
            manager._uses = UseTracing(tape)
            add_interceptor(manager._uses)


def _free_new(managers: Sequence[GradManager], before: list[Tape | None]) -> None:
    """Free the recordings that managers have begun since."""
    for manager, old in zip(managers, before, strict=True):
        if manager._tape is not old:
            manager._free()


def get_backwarding_grad_manager() -> GradManager | None:
    """Return the manager whose backward is running in this context, None outside.

    >>> import gradmgr
    >>> gradmgr.get_backwarding_grad_manager() is None
    True
    """
    manager: GradManager | None = _backwarding.get()
    return manager if manager is not None and manager._in_backward.locked() else None


class GradManagerGroup(_Recording):
    """Managers that record together: each records every operation, and none records another's backward.

    Raises:
        TypeError: an element is not a GradManager.
        ValueError: a GradManager appears twice among them.

    >>> from gradmgr import GradManager, tensor
    >>> x, y = tensor(3.0), tensor(4.0)
    >>> by_x, by_y = GradManager().attach(x), GradManager().attach(y)
    >>> with by_x | by_y:
    ...     product = x * y
    ...     by_x.backward(product)
    ...     by_y.backward(product)
    >>> x.grad, y.grad
    (Tensor(4.), Tensor(3.))
    """

    def __init__(self, managers: Iterable[GradManager]) -> None:
        self._managers = list(managers)
        for k, manager in enumerate(self._managers):
            if not isinstance(manager, GradManager):
                raise TypeError(f"a group is made of GradManagers; element {k} is {type(manager).__name__}")
            if any(manager is other for other in self._managers[:k]):
                raise ValueError("a group has the same GradManager twice; list each once")

    def record(self) -> None:
        """Start recording with all of them, or with none.

        Raises:
            RuntimeError: one of them records already.
        """
        for manager in self._managers:
            manager._check_idle()
        _record(self._managers)

    def _release(self) -> None:
        for manager in self._managers:
            complete(manager._release)

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        more = other._managers if isinstance(other, GradManagerGroup) else [other]
        if not all(isinstance(manager, GradManager) for manager in more):
            return NotImplemented
        return GradManagerGroup([*self._managers, *more])
