"""Program: a captured function as a straight line of calls."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.atomic import error_treatment, errors_ignored
from gradmgr._arrays.captured import Capture, CaptureError, GuardError, Slot, adds_in_any_order, name_of
from gradmgr._arrays.gpu import have_same_bits, is_on_gpu
from gradmgr._arrays.replay import compile_replay
from gradmgr._arrays.replay_times import measuring
from gradmgr._engine.cleanup import complete
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.tensor import Tensor, raw
from gradmgr._engine.tensor_capture import TensorCapture, Trial
from gradmgr._transforms.captured_call import CapturedCall


class UnchangedError(Exception):
    """A replay failed before it changed anything."""


class Program:
    """What replays a captured function.

    Attributes:
        used: when it was used last, as a number that grows.
    """

    def __init__(
        self,
        made: CapturedCall,
        pinned: dict[int, weakref.ref[Tensor]],
        native: bool | None = None,
        *,
        exact: bool = True,
        graph: bool = False,
    ) -> None:
        capture = made.capture
        self._exact = exact
        self.used = 0
        self._environment = made.environment
        # Inputs that are written may overlap others, which the machine does not expect.
        self._native = False if capture.writes_over_inputs() else native
        self._graph = graph and not capture.writes_over_inputs()
        self._conditions = list(capture.conditions.values())
        self._pinned = list(pinned.items())
        sources = capture.sources
        self._given = [source for source in sources if isinstance(source, int)]  # they come first
        self._references = [source for source in sources if not isinstance(source, int)]
        self._outer = {id(t) for source in self._references if (t := source()) is not None}
        self._cleanups = capture.cleanups
        self._generators = made.generators
        self._has_effects = any(call.has_effect for call in capture.calls)
        self._returned = [k for k, slot in enumerate(made.slots) if isinstance(slot, Slot)]
        self._leaves = [None if isinstance(slot, Slot) else slot for slot in made.slots]
        self._tree = rebuilt(made.result, iter(self._leaves))
        self._returns_one = self._tree is None and self._returned == [0]
        self._calls = Counter(name_of(call.function) for call in capture.calls)
        self._seconds = made.seconds_by_name
        self._whole = sorted({f"{name_of(call.function)} at {call.line}" for call in capture.whole_calls()})
        self._is_on_gpu = capture.is_on_gpu()
        is_steady = not self._is_on_gpu or not any(map(adds_in_any_order, capture.calls))
        self._are_alike: Callable[[Any, Any], bool] = _same_bits if is_steady else _are_near
        self._given_back = [made.slots[k] for k in self._returned]
        self._replay: Any = compile_replay(
            capture, self._given_back, native=self._native, exact=exact, graph=self._graph
        )

    # ------------------------------------------------------------ whether it fits

    def misfit(self, leaves: Sequence[Any]) -> str | None:
        """Return what it does not fit in a call of its signature; None where it fits."""
        for k, reference in self._pinned:
            if leaves[k] is not reference():
                return f"argument {k} is another Tensor"
        if self._outer and not self._outer.isdisjoint(map(id, leaves)):
            return "an argument is a Tensor that the function reads by itself"
        for condition in self._conditions:
            if not condition.holds():
                return condition.what
        return self._environment.changed()

    # ------------------------------------------------------------ a replay

    def run(self, leaves: Sequence[Any], replay: Any = None) -> Any:
        """Make the calls, and return what the function returns.

        Args:
            leaves: of the arguments.
            replay: what makes them, if not the replay of the program.

        Raises:
            GuardError: a guard finds another value; nothing has changed then.
            UnchangedError: a call failed, and nothing has changed.
        """
        begun: list[bool] = []
        states = [generator.bit_generator.state for generator in self._generators] if self._generators else ()
        try:
            inputs = self._inputs(leaves)
            values = _call_quietly(replay or self._replay, *([begun] if self._has_effects else ()), *inputs)
        except BaseException as error:
            if begun:
                for cleanup in self._cleanups:
                    cleanup(error)
                raise
            for generator, state in zip(self._generators, states, strict=True):
                generator.bit_generator.state = state
            if isinstance(error, GuardError) or not isinstance(error, Exception):
                raise
            raise UnchangedError from error
        if self._returns_one:
            return values[0]
        found = self._leaves.copy()
        for k, value in zip(self._returned, values, strict=True):
            found[k] = value
        return rebuilt(self._tree, iter(found))

    def _inputs(self, leaves: Sequence[Any]) -> list[Any]:
        found = [leaves[k] for k in self._given]
        for reference in self._references:
            value = reference()
            if value is None:
                raise GuardError("a Tensor that the function reads is gone")
            found.append(value)
        return found

    def verify(self, made: CapturedCall, leaves: Sequence[Any]) -> str | None:
        """Return how the calls, made again, differ from the call that was captured; None where they do not.

        Where they change nothing, the program itself is run on the leaves of the call. Where they do, or where that
        fails, as it may when another thread has changed a Tensor, the calls without effects are made in a program of
        their own. Products of oneDNN's are compared with NumPy's within the bound of their rounding, and replaced by
        them, so that all else must be equal in every bit.
        """
        capture = made.capture
        if capture.writes_over_inputs():
            capture.forget_values()
            return None
        is_pure = capture.is_pure()
        trial = None if is_pure and self._repeats(made, leaves) else capture.trial()
        capture.forget_values()
        fault = None if trial is None else self._fault_of(trial)
        if self.has_graphs() and (fault is not None or (is_pure and trial is not None)):
            self._leave_graphs(capture)
            fault = None if trial is None else self._fault_of(trial)
        return fault

    def _leave_graphs(self, capture: TensorCapture) -> None:
        """Have Python make the calls, since graphs give something else."""
        self._graph = False
        self._replay = compile_replay(capture, self._given_back, native=self._native)
        self._replay.reason = "they compute something else; please report this"

    def _fault_of(self, trial: Trial) -> str | None:
        """Return how the calls of a trial, made again, differ from those that were captured."""
        replay = self._checked(trial.capture, [slot for slot, _ in trial.expected])
        for _ in range(2):  # in buffers that hold what the first left
            try:
                found = replay(*trial.inputs)
            except CaptureError as error:
                return f"a replay fails: {error}; please report this"
            for value, (_, expected) in zip(found, trial.expected, strict=True):
                if not self._are_alike(value, expected):
                    return "a replay computes something else; please report this"
        return None

    def _checked(self, capture: Capture, results: Sequence[Any]) -> Any:
        """Return a replay that compares products."""
        return compile_replay(capture, results, native=self._native, exact=self._exact, checked=True, graph=self._graph)

    def _repeats(self, made: CapturedCall, leaves: Sequence[Any]) -> bool:
        """Tell whether the program gives what the captured call gave; it must not change anything."""
        results = leaves_of(made.result)
        replay = self._replay
        if self._has_fused_products():
            replay = self._checked(made.capture, self._given_back)
        try:
            inputs = self._inputs(leaves)
            for _ in range(2):  # in buffers that hold what the first left
                values = _call_quietly(replay, *inputs)
                for k, value in zip(self._returned, values, strict=True):
                    if not self._are_alike(raw(value), raw(results[k])):
                        return False
        except Exception:  # which the trial meets, too, unless another thread was the reason
            return False
        return True

    # ------------------------------------------------------------ for the user

    def measured(self, leaves: Sequence[Any]) -> list[str]:
        """Do as `run`, and return lines of text on how long each line of the replay took, the longest first."""
        replay, times = measuring(self._replay)
        self.run(leaves, replay)
        found = sorted(times(), reverse=True)
        total = sum([seconds for seconds, _ in found])
        return [f"{1e6 * total:.1f} us in a replay:", *[f"{1e6 * seconds:10.1f} us  {text}" for seconds, text in found]]

    def description(self) -> list[str]:
        """Return lines of text on what it does."""
        listed = ", ".join(f"{name} {count}{self._time_of(name)}" for name, count in self._calls.most_common())
        lines = [
            f"{self._calls.total()} calls: {listed} (times are those of the call that was captured)",
            f"{self._level()}; {self._replay.nbytes} bytes in buffers",
        ]
        return [*lines, *[f"calls Python each time, as optimisers, callbacks and hooks need: {w}" for w in self._whole]]

    def _level(self) -> str:
        """Return who makes the calls."""
        runs = len(getattr(self._replay, "segments", ()))
        if runs:
            return self._native_level(f"in {runs} run{'' if runs == 1 else 's'}")
        graphs = getattr(self._replay, "graphs", 0)
        if graphs:
            return f"{graphs} CUDA graph{'' if graphs == 1 else 's'}, and Python makes the calls between"
        if not self._is_on_gpu:
            return "Python makes the calls"
        reason = getattr(self._replay, "reason", None)
        return "Python makes the calls, on a GPU" + (f"; there are no graphs: {reason}" if reason else "")

    def _native_level(self, how: str) -> str:
        if not self._has_fused_products():
            return f"native, {how}"
        found = self._replay.fusion
        text = f"fused, {how}: oneDNN computes {found.by_library} of {found.products} matrix products in float32"
        if found.added:
            text += f", {found.added} of them added to a sum at once"
        if found.merged:
            text += f"; {found.merged} products are merged into {found.merges}"
        return text

    def _has_fused_products(self) -> bool:
        found = getattr(self._replay, "fusion", None)
        return found is not None and bool(found.by_library or found.merged)

    def has_graphs(self) -> bool:
        """Tell whether CUDA graphs make some of the calls."""
        return bool(getattr(self._replay, "graphs", 0))

    def _time_of(self, name: str) -> str:
        seconds = self._seconds.get(name)
        return "" if seconds is None else f" ({1e6 * seconds:.1f} us)"


def _call_quietly(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in which floating-point errors raise no warning, in the context of the caller."""
    before = error_treatment.get()
    try:
        error_treatment.set(errors_ignored)
        try:
            return function(*args)
        finally:
            error_treatment.set(before)
    except BaseException:
        complete(error_treatment.set, before)  # again: an exception may have struck in `finally`
        raise


def _are_near(one: Any, other: Any) -> bool:
    """Tell whether arrays are equal but for the order in which a GPU has added."""
    if _same_bits(one, other):
        return True
    is_alike = one.__class__ is other.__class__ and (one.shape, one.dtype) == (other.shape, other.dtype)
    if not is_alike or one.dtype.kind not in "fc":
        return False
    scale = abs(other).max()
    return bool((abs(one - other) <= np.finfo(one.dtype).eps ** 0.5 * scale).all())


def _same_bits(one: Any, other: Any) -> bool:
    if is_on_gpu(one) or is_on_gpu(other):  # compared where they are
        is_alike = one.__class__ is other.__class__ and (one.shape, one.dtype) == (other.shape, other.dtype)
        return is_alike and have_same_bits(one, other)
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes())
