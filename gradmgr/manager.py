"""GradManager: weak attachment, recording, backward, callbacks; groups of managers."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._inplace import as_type
from gradmgr._recorder import Recorder, current, during, enter, leave, rebind, recorders, snapshot, told
from gradmgr._tape import Tape
from gradmgr._tensor import Tensor, describe, raw, wrap

Callback = Callable[[Tensor, Tensor], Any]

# The manager now in backward, in this context.
_backwarding: ContextVar[Any] = ContextVar("gradmgr_backwarding", default=None)
# Gradients are written under one lock, so that threads sharing a parameter lose no update.
_writing = threading.Lock()


class AttachSpec:
    """What a manager knows of an attached tensor: `tensor`, a weak reference, and `callbacks`, a list."""

    __slots__ = ("callbacks", "name", "tensor")

    def __init__(self, tensor: weakref.ref[Tensor], callbacks: list[Callback], name: str | None = None) -> None:
        self.tensor = tensor
        self.callbacks = callbacks
        self.name = name

    def __repr__(self) -> str:
        return f"AttachSpec(tensor={self.tensor!r}, callbacks={self.callbacks!r})"


class GradManager:
    """Records what attached tensors go through and computes gradients into their `.grad`.

    Nothing is recorded outside `record()` and `release()` (or a `with` block), only attached
    tensors receive gradients, and after `backward()` the history is gone whatever the user still
    holds. Attachment is weak: the manager keeps no tensor alive. Recording belongs to the current
    thread or asyncio task.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    """

    def __init__(self) -> None:
        self._specs: dict[int, AttachSpec] = {}
        self._tape: Tape | None = None
        self._after_backward: list[Callable[[], Any]] = []
        self._walking = False
        self._warned = False

    def __repr__(self) -> str:
        return f"GradManager({len(self._live())} attached{', recording' if self._recording() else ''})"

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
                tensor's gradient is complete; the last result is what `.grad` receives. A callback may
                return a future with `.get()`; it is awaited after the walk, then the chain goes on.
                A callback object may have `begin(manager)`, called before the walk, `finish(manager)`,
                called after it and before futures are awaited, and `abort(manager)`, called after a failure.
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
        for name, t in named:
            self._attach_one(t, name, chain)
        return self

    def _attach_one(self, t: Tensor, name: str | None, chain: list[Callback]) -> None:
        spec = self._spec(t)
        if spec is None:
            self._specs[id(t)] = AttachSpec(weakref.ref(t, _forgetter(self, id(t))), list(chain), name)
        else:
            self._warn_repeated(t, spec, chain)
            spec.callbacks.extend(chain)
            spec.name = name or spec.name
        if self._tape is not None and self._tape.open:
            self._tape.watch(t)

    def _warn_repeated(self, t: Tensor, spec: AttachSpec, chain: list[Callback]) -> None:
        if not self._warned and any(cb is old for cb in chain for old in spec.callbacks):
            self._warned = True
            warnings.warn(
                f"a callback was attached again to {describe(t, spec.name)}, which has it already: it now runs twice, "
                "and the list grows with every attach; attach it once, outside the loop",
                RuntimeWarning,
                stacklevel=4,
            )

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
                raise ValueError(f"detach: {describe(t, name)} is not attached to this manager")
        for _, t in named:
            self._specs.pop(id(t), None)
            if self._tape is not None:
                self._tape.unwatch(t)
        return self

    def attached_tensors(self) -> list[Tensor]:
        """Return the attached tensors that are alive, in the order of attachment."""
        return [t for t, _ in self._live()]

    def clear_grad(self) -> None:
        """Set `.grad` to None on every attached tensor."""
        for t in self.attached_tensors():
            t.grad = None

    def register_after_backward_callback(self, callback: Callable[[], Any]) -> None:
        """Call `callback()` in every backward after the walk, before futures are awaited.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"register_after_backward_callback takes a function; found {type(callback).__name__}")
        self._after_backward.append(callback)

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
        enter(self._new_tape())

    def _new_tape(self) -> Tape:
        self._check_idle()
        self._tape = tape = Tape()
        for t, _ in self._live():
            tape.watch(t)
        return tape

    def _check_idle(self) -> None:
        if self._walking:
            raise errors.RecordingError("record() inside this manager's own backward; use another GradManager there")
        if self._recording():
            raise errors.RecordingError(
                "record() was called on a GradManager that is recording already; call release() first, "
                "or use a second GradManager for a nested recording"
            )

    def release(self) -> None:
        """Stop recording and forget the history; allowed at any time, in any order and context."""
        tape, self._tape = self._tape, None
        if tape is not None:
            tape.close()
            leave(tape)

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_tape", None) is not None:
            self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        """Group managers: both hear what is computed, neither hears the other's backward."""
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
        recording. An error during the walk leaves every `.grad` as it was and the manager idle.

        Raises:
            RuntimeError: the manager does not record, or does not know `y`.
            TypeError, ValueError: `dy` does not fit `y` in number, shape or dtype; a callback returned no gradient.
        """
        tape = self._open_tape()
        seeds = _seeds(tape, y, dy)
        walk = _Walk(self, tape)
        token = _backwarding.set(self)
        self._walking = True
        try:
            try:
                walk.run(seeds, retain)
            except BaseException as error:
                walk.abort(error)
                self.release()
                raise
        finally:
            self._walking = False
            _backwarding.reset(token)
        if not retain:
            self.release()

    def _open_tape(self) -> Tape:
        if self._walking:
            raise errors.RecordingError("backward() inside this manager's own backward; use another GradManager there")
        if self._tape is None or not self._tape.open:
            raise errors.RecordingError(
                "backward() needs a recording, and this GradManager is idle: it was released, or an earlier "
                "backward() freed the history (pass retain=True to keep it), or record() was never called"
            )
        return self._tape


def get_backwarding_grad_manager() -> GradManager | None:
    """Return the manager whose backward is running in this context, None outside.

    >>> import gradmgr
    >>> gradmgr.get_backwarding_grad_manager() is None
    True
    """
    manager: GradManager | None = _backwarding.get()
    return manager


class GradManagerGroup:
    """Managers that record together: all hear what is computed, none hears another's backward."""

    def __init__(self, managers: Iterable[GradManager]) -> None:
        self._managers = list(managers)

    def record(self) -> None:
        """Start recording with all of them, or with none.

        Raises:
            RuntimeError: one of them records already.
        """
        for manager in self._managers:
            manager._check_idle()
        enter(*[manager._new_tape() for manager in self._managers])

    def release(self) -> None:
        """Release all of them."""
        for manager in self._managers:
            manager.release()

    def __enter__(self) -> GradManagerGroup:
        self.record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        more = other._managers if isinstance(other, GradManagerGroup) else [other]
        if not all(isinstance(manager, GradManager) for manager in more):
            return NotImplemented
        if any(manager is mine for manager in more for mine in self._managers):
            raise ValueError("a GradManager stands twice in a group; each may stand there once")
        return GradManagerGroup([*self._managers, *more])


# ---------------------------------------------------------------- arguments


def _forgetter(manager: GradManager, key: int) -> Callable[[Any], None]:
    """Make what drops an attachment when its tensor dies, without keeping the manager alive."""
    weak = weakref.ref(manager)

    def forget(_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive._specs.pop(key, None)

    return forget


def _callback_list(callbacks: Any) -> list[Callback]:
    chain = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
    for callback in chain:
        if not callable(callback):
            raise TypeError(f"a callback is a function cb(tensor, grad) -> grad; found {type(callback).__name__}")
    return chain


def _named(tensors: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(tensors, Mapping):
        yield from tensors.items()
    elif isinstance(tensors, Tensor) or not isinstance(tensors, Iterable) or _xp.is_array(tensors):
        yield None, tensors
    else:
        for t in tensors:
            yield None, t


def _place(name: str | None, position: int) -> str:
    return f"element {position}" if name is None else f"element {position} ({name!r})"


def _check_attachable(t: Any, name: str | None, position: int) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(
            f"attach takes Tensors; {_place(name, position)} is {type(t).__module__}.{type(t).__name__}; "
            "make one with gradmgr.tensor(...)"
        )
    if not _xp.is_differentiable(t.dtype):
        raise errors.DtypeError(
            f"attach: {_place(name, position)}, {describe(t, name)}, cannot have a gradient; "
            "use float16, float32, float64, bfloat16, complex64 or complex128, as with t.astype('float32')"
        )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _seeds(tape: Tape, y: Any, dy: Any) -> list[tuple[Any, Any]]:
    """Check the arguments of backward; return (mark, cotangent) pairs."""
    if y is None:
        if dy is not None:
            raise ValueError("backward(None, dy): a dy was given without the y it belongs to")
        return []
    ys = _as_list(y)
    dys = [None] * len(ys) if dy is None else _as_list(dy)
    if len(dys) != len(ys):
        raise ValueError(f"backward: {len(ys)} y were given and {len(dys)} dy; give one dy for each y")
    marks = [_mark_of(tape, t, position) for position, t in enumerate(ys)]
    return [(mark, _cotangent(tape, t, d)) for mark, t, d in zip(marks, ys, dys, strict=True)]


def _mark_of(tape: Tape, y: Any, position: int) -> Any:
    if not isinstance(y, Tensor):
        raise TypeError(f"backward differentiates Tensors; y number {position} is {type(y).__name__}")
    mark = tape.known(y)
    if mark is None:
        raise errors.NotRecordedError(
            f"backward: this GradManager does not know y number {position}, {describe(y)}. It may have been computed "
            "before record() or before attach(); under no_grad(); from nothing that is attached; through detach(), "
            "an integer or boolean cast, or a plain array; by another manager's backward; or its y was overwritten "
            "by a constant in place"
        )
    return mark


def _cotangent(tape: Tape, y: Tensor, dy: Any) -> Any:
    if dy is None:
        if y.size != 1 or y.dtype.kind == "c":
            raise ValueError(
                f"backward without dy needs y to be one real number; found {describe(y)}; "
                "reduce it, as with y.sum(), or pass dy of its shape"
            )
        return _xp.namespace(y._array).ones(y.shape, y.dtype)
    recorded = isinstance(dy, Tensor) and any(rec.known(dy) is not None for rec in recorders(tape.below))
    value = dy if recorded else raw(dy)
    if not isinstance(value, Tensor) and not _xp.is_array(value):
        value = np.asarray(value)
    if value.shape != y.shape:
        raise errors.ShapeError(f"backward: dy must have the shape of y, {y.shape}; found {value.shape}")
    kind = value.dtype.kind
    if kind not in "biufcV" or (kind == "c" and y.dtype.kind != "c"):
        raise errors.DtypeError(
            f"backward: dy of dtype {value.dtype} does not fit y of dtype {y.dtype}; take its real part"
            if kind == "c"
            else f"backward: dy of dtype {value.dtype} is not numeric"
        )
    if _xp.namespace(raw(value)) is not _xp.namespace(y._array):
        raise errors.MixedArraysError(f"backward: dy lives on {_xp.device_of(raw(value))}, y on {y.device}; move dy")
    if value.dtype == y.dtype:
        return value
    with during(tape.below):
        return as_type(value, y.dtype)


# ---------------------------------------------------------------- one backward


class _Walk:
    """One backward: walks the tape, runs the callback chains, writes the gradients."""

    def __init__(self, manager: GradManager, tape: Tape) -> None:
        self.manager = manager
        self.tape = tape
        self.specs = {t: spec for t, spec in manager._live() if t in tape.leaves}
        self.results: dict[Tensor, Any] = {}
        self.waiting: list[tuple[Tensor, Any, int]] = []  # tensor, future, place in its chain
        self.objects: list[Any] = []  # callback objects whose begin ran
        self.callback_state = told(tape.below, current())

    def run(self, seeds: list[tuple[Any, Any]], retain: bool) -> None:
        with_callbacks = [t for t, spec in self.specs.items() if spec.callbacks]
        completed = self.tape.first_uses(with_callbacks) if with_callbacks else {}
        self._begin()
        grads = self.tape.walk(seeds, completed, self._start_chain, retain=retain)
        started = set(with_callbacks)
        for t in self.specs:
            g = grads.pop(self.tape.leaves.get(t), None)
            if g is not None and t not in started:
                self.results[t] = g
        del grads
        if self.objects or self.manager._after_backward or self.waiting:
            with during(self.callback_state):
                self._finish()
        self._write()

    def abort(self, error: BaseException) -> None:
        with during(self.callback_state):
            for callback in self.objects:
                stop = getattr(callback, "abort", None)
                if stop is not None:
                    try:
                        stop(self.manager)
                    except Exception as second:
                        error.add_note(f"(and {_name(callback)}.abort raised {second!r})")

    # ------------------------------------------------------------ callbacks

    def _begin(self) -> None:
        seen: set[int] = set()
        for spec in self.specs.values():
            for callback in spec.callbacks:
                if id(callback) not in seen and any(hasattr(callback, m) for m in ("begin", "finish", "abort")):
                    seen.add(id(callback))
                    self.objects.append(callback)
                    if hasattr(callback, "begin"):
                        with during(self.callback_state):
                            callback.begin(self.manager)

    def _finish(self) -> None:
        for callback in self.objects:
            if hasattr(callback, "finish"):
                callback.finish(self.manager)
        for function in list(self.manager._after_backward):
            function()
        while self.waiting:
            waiting, self.waiting = self.waiting, []
            for t, future, place in waiting:
                self._run_chain(t, future.get(), place, awaited=True)

    def _start_chain(self, t: Tensor, g: Any) -> None:
        with during(self.callback_state):
            self._run_chain(t, g if isinstance(g, Tensor) else wrap(g), 0)

    def _run_chain(self, t: Tensor, g: Any, place: int, *, awaited: bool = False) -> None:
        callbacks = self.specs[t].callbacks
        if awaited:
            self._check_result(t, g, callbacks[place - 1], "the future of ")
        while place < len(callbacks):
            callback = callbacks[place]
            place += 1
            g = callback(t, g)
            if not isinstance(g, (Tensor, dict)) and hasattr(g, "get"):
                self.waiting.append((t, g, place))
                return
            self._check_result(t, g, callback)
        self.results[t] = g

    def _check_result(self, t: Tensor, g: Any, callback: Any, source: str = "") -> None:
        what = f"{source}callback {_name(callback)} on {describe(t, self.specs[t].name)}"
        if not isinstance(g, Tensor):
            raise errors.CallbackError(
                f"{what} gave {'None' if g is None else type(g).__name__}; a callback returns the gradient, a Tensor, "
                "or a future with .get(); return its second argument to change nothing"
            )
        if g.shape != t.shape:
            raise errors.ShapeError(f"{what} gave a gradient of shape {g.shape}; it must have the tensor's")
        if g.dtype != t.dtype:
            raise errors.DtypeError(f"{what} gave a gradient of dtype {g.dtype}; it must have the tensor's")

    # ------------------------------------------------------------ writing

    def _write(self) -> None:
        """Write `.grad` of all, or of none: everything that can fail comes before the first write."""
        below = self.tape.below
        outer = [rec for rec in recorders(below) if rec.open]
        with _writing:
            with during(below):
                writes = [self._prepare(t, outer) for t in list(self.results)]
            for write in writes:
                write()

    def _prepare(self, t: Tensor, outer: list[Recorder]) -> Callable[[], None]:
        """Return what writes the gradient of one tensor, all of it computed that can fail."""
        held = t.grad
        if outer and (_is_known(outer, self.results[t]) or _is_known(outer, held)):
            handle = snapshot(self.results.pop(t), outer)
            made = handle if isinstance(handle, Tensor) else wrap(handle)
            made = made if held is None else held + made
            return lambda: setattr(t, "_grad", made)
        if held is None:
            made = self._take(t)
            return lambda: setattr(t, "_grad", made)
        g = raw(self.results.pop(t))
        if held.ndim and _xp.is_private(held) and not _xp.float_errors_raise():
            return lambda: _add_in_place(held, g)
        total = wrap(held._array + g)
        return lambda: _replace(held, total)

    def _take(self, t: Tensor) -> Tensor:
        """Return the gradient of `t` in memory of its own, with the strides of a dense parameter."""
        made = wrap(raw(self.results.pop(t)))
        fits = made.ndim and made._array.flags.c_contiguous and t._array.flags.c_contiguous
        if fits and _xp.is_private(made) and _xp.buffer_bytes(made._array) == made.nbytes:
            return made
        g = made._array
        made._array = _xp.namespace(g).empty_like(t._array)
        made._array[...] = g
        return made


def _is_known(outer: list[Recorder], g: Any) -> bool:
    return isinstance(g, Tensor) and any(rec.known(g) is not None for rec in outer)


def _add_in_place(held: Tensor, g: Any) -> None:
    a = held._array
    _xp.namespace(a).add(a, g, out=a)
    _replace(held, held)


def _replace(held: Tensor, total: Tensor) -> None:
    """Let `held` have the values of `total`, a constant for whoever records."""
    rebind(held, wrap(total._array))


def _name(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))
