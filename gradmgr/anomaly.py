"""Anomaly detection: which line of the forward program a failed derivative, or a NaN, belongs to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import ExitMethod, Scope, complete
from gradmgr._engine.context import current, recorders
from gradmgr._engine.entry import input_ids, is_result, op_name
from gradmgr._engine.history.trace_log import Tracing
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import Entry, Observer, observers, set_observers, show_entries
from gradmgr._engine.ownership import Grads
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import bare

__all__ = ["detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly"]


class _Anomalies(Tracing):
    """Stores the line of the program of each op, and lets each derivative be checked for NaN."""

    def __init__(self, check_nan: bool, replaced: _Anomalies | None = None) -> None:
        self.check_nan = check_nan
        self.replaced = replaced  # what was in effect before
        self.is_over = False  # whether the block that entered it has ended

    def backward_started(self, tape: Tape, grads: Grads) -> Interceptor:
        # Where nothing is checked, too: on the general path of backward an error names the line.
        return _NanCheck(tape, grads) if self.check_nan else Interceptor()


class _NanCheck(Interceptor):
    """Raises where a vjp makes a gradient NaN, in one backward pass."""

    __slots__ = ("_grads", "_tape", "_was_nan")

    def __init__(self, tape: Tape, grads: Grads) -> None:
        super().__init__()
        self._tape = tape
        self._grads = grads
        # Whether a gradient was NaN when it was last looked at. One that was is not the fault of a vjp that adds to it:
        # the NaN came in with dy or a hook, and the op that the gradient arrives at is named.
        self._was_nan: dict[Any, bool] = {}

    def before_vjp(self, e: Entry) -> None:
        for node_id in input_ids(e):
            if node_id in self._grads and node_id not in self._was_nan:
                self._was_nan[node_id] = _has_nan(self._grads[node_id])

    def after_vjp(self, e: Entry, g: Any, grads: Grads) -> None:
        if is_result(e) or e[0] == "attach":
            return
        for position, node_id in enumerate(input_ids(e)):
            if node_id not in grads or self._was_nan.get(node_id):
                continue
            if _has_nan(grads[node_id]):
                raise errors.AnomalyError(_describe_nan(self._tape, e, g, position, node_id in self._was_nan))
            if grads is self._grads:
                self._was_nan[node_id] = False
            else:  # a hook is to see it first, and may make it NaN
                self._was_nan.pop(node_id, None)


def _has_nan(g: Any) -> bool:
    values = [bare(part) for part in g.values()] if g.__class__ is dict else [bare(g)]
    return any(bool(libraries.namespace(a).isnan(a).any()) for a in values)


def _describe_nan(tape: Tape, e: Entry, g: Any, position: int, is_sum: bool) -> str:
    place = tape.location_of(e[1])
    at = f"computed at {place}" if place is not None else "recorded before detect_anomaly() began"
    where = f"in the gradient of its input number {position}{', added to what other ops gave it' if is_sum else ''}"
    text = f"the derivative of op {op_name(e)!r} is NaN {where}; it was {at}"
    if _has_nan(g):
        text += ". The gradient that arrived there was NaN already: it came in with dy, a hook or a callback"
    return text


def _tapes_in(found: list[Recorder]) -> list[Tape]:
    return [rec for rec in found if isinstance(rec, Tape)]


class set_detect_anomaly(Scope):  # noqa: N801  # torch's spelling
    """Switch anomaly detection on or off for this thread or task; in a with block, until its end.

    Args:
        mode: on or off.
        check_nan: raise when a derivative is NaN.

    Raises:
        RuntimeError: in a backward, a derivative is NaN, unless `check_nan` is False.

    >>> import gradmgr
    >>> with gradmgr.set_detect_anomaly(True, check_nan=False):
    ...     pass  # an error in a derivative now names the line of the program
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _active_observer()
        self._mine = _Anomalies(bool(check_nan)) if mode else None
        try:
            set_observers(_replaced(self._before, self._mine))
            if self._mine is not None:
                show_entries(_tapes_in(recorders(current())))
        except BaseException:
            complete(self._close, self)
            raise

    def _open(self, opened: Any) -> Self:
        return self

    def _close(self, opened: Any) -> None:
        if self._mine is not None:
            self._mine.is_over = True
        set_observers(_replaced(self._mine, self._before))

    __exit__ = ExitMethod(lambda scope: scope._close(scope))


class detect_anomaly(Scope):  # noqa: N801  # torch's spelling
    """In a with block, name the line of the program whose derivative failed or is NaN in errors of backward.

    Recordings that are open when the block begins are traced from there on. A NaN that a derivative
    makes, or that infinite ones make where they are added, raises AnomalyError, a RuntimeError; every `.grad` is then
    as it was, and the manager idle. Values and gradients are those without it, to the bit.

    Args:
        check_nan: raise when a derivative is NaN.

    Raises:
        RuntimeError: in a backward, a derivative is NaN, unless `check_nan` is False.

    >>> import numpy, gradmgr, gradmgr.numpy as np
    >>> x = gradmgr.tensor(0.0)
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with numpy.errstate(invalid="ignore"), gradmgr.detect_anomaly(), gm:
    ...     gm.backward(np.sqrt(x) * x)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    gradmgr.errors.AnomalyError: the derivative of op 'sqrt' is NaN in the gradient of its input number 0; ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan

        self._entered: list[_Anomalies] = []

    def _begin(self) -> _Anomalies:
        return _Anomalies(self._check_nan, _active_observer())

    def _latest(self) -> _Anomalies | None:
        own = [each for each in self._entered if not each.is_over]
        here = observers()  # threads and tasks may share this object: what ends is what was entered in this context
        return next((each for each in reversed(own) if each in here), own[-1] if own else None)

    def _open(self, opened: Any) -> None:
        self._entered.append(opened)
        set_observers(_replaced(opened.replaced, opened))
        show_entries([rec for rec in recorders(current()) if isinstance(rec, Tape)])

    def _close(self, opened: Any) -> None:
        opened.is_over = True
        set_observers(_replaced(opened, opened.replaced))
        for each in list(self._entered):
            if each.is_over:
                with suppress(ValueError):  # another thread that entered this object has removed it
                    self._entered.remove(each)


def _replaced(gone: _Anomalies | None, added: _Anomalies | None) -> tuple[Observer, ...]:
    """Return the observers of this context without one, and with another that is not over; either may be None."""
    kept = [each for each in observers() if each is not gone and each is not added]
    return tuple(kept if added is None or added.is_over else [*kept, added])


def _active_observer() -> _Anomalies | None:
    return next((observer for observer in observers() if isinstance(observer, _Anomalies)), None)


def is_anomaly_enabled() -> bool:
    """Tell whether anomaly detection is on in this thread or task.

    >>> import gradmgr
    >>> gradmgr.anomaly.is_anomaly_enabled()
    False
    """
    return _active_observer() is not None


def is_anomaly_check_nan_enabled() -> bool:
    """Tell whether a NaN in a derivative raises in this thread or task.

    >>> import gradmgr
    >>> gradmgr.anomaly.is_anomaly_check_nan_enabled()
    False
    """
    present = _active_observer()
    return present is not None and present.check_nan
