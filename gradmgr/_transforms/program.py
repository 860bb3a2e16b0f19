"""Program: a captured function as a straight line of calls."""

from __future__ import annotations

import functools
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.atomic import error_treatment, errors_ignored
from gradmgr._arrays.captured import Call, CaptureError, GuardError, Slot, name_of
from gradmgr._arrays.replay import compile_replay
from gradmgr._engine.cleanup import complete
from gradmgr._engine.containers import rebuilt
from gradmgr._engine.tensor import Tensor, raw
from gradmgr._transforms.captured_call import CapturedCall


class UnchangedError(Exception):
    """A replay failed before it changed anything."""


class Program:
    """What replays a captured function.

    Attributes:
        used: when it was used last, as a number that grows.
    """

    def __init__(self, made: CapturedCall, pinned: dict[int, weakref.ref[Tensor]], native: bool | None = None) -> None:
        capture = made.capture
        self.used = 0
        self._environment = made.environment
        # Inputs that are written may overlap others, which the machine does not expect.
        self._writes_over_inputs = capture.writes_over_inputs()
        self._native = False if self._writes_over_inputs else native
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
        self._calls, self._seconds = _totals(capture.calls)
        self._whole = sorted({f"{name_of(call.function)} at {call.line}" for call in capture.whole_calls()})
        results = [made.slots[k] for k in self._returned]
        self._rehearsal = None if self._writes_over_inputs else capture.rehearsal(results)
        rehearsed = [] if self._rehearsal is None else [slot for slot, _ in self._rehearsal.expected]
        self._replay: Any = compile_replay(capture, results, rehearsed, native=self._native)

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

    def run(self, leaves: Sequence[Any]) -> Any:
        """Make the calls, and return what the function returns.

        Raises:
            GuardError: a guard finds another value; nothing has changed then.
            UnchangedError: a call failed, and nothing has changed.
        """
        begun: list[bool] = []
        states = [generator.bit_generator.state for generator in self._generators] if self._generators else ()
        try:
            inputs = self._inputs(leaves)
            values = _call_quietly(self._replay, *([begun] if self._has_effects else ()), *inputs)
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

    def verify(self, made: CapturedCall) -> str | None:
        """Return how the calls, made again, differ from the call that was captured; None where they do not.

        The program itself is run up to its first effect, on what the captured call found. Where that does not show
        all that it computes, the calls without effects are made in a program of their own.
        """
        capture, rehearsal = made.capture, self._rehearsal
        self._rehearsal = None  # with its arrays
        if self._writes_over_inputs:
            capture.forget_values()
            return None
        if rehearsal is not None:
            capture.forget_values()
            slots = [slot for slot, _ in rehearsal.expected]
            if not self._has_effects:
                slots = [made.slots[k] for k in self._returned]
            begun = [None] if self._has_effects else []
            rehearse = functools.partial(_call_quietly, self._replay, *begun)
            return _fault_of(rehearse, rehearsal.inputs, slots, rehearsal.expected)
        trial = capture.trial()
        capture.forget_values()
        if trial is None:
            return None
        slots = [slot for slot, _ in trial.expected]
        replay = compile_replay(trial.capture, slots, native=self._native)
        return _fault_of(replay, trial.inputs, slots, trial.expected)

    # ------------------------------------------------------------ for the user

    def description(self) -> list[str]:
        """Return lines of text on what it does."""
        listed = ", ".join(f"{name} {count}{self._time_of(name)}" for name, count in self._calls.most_common())
        runs = getattr(self._replay, "segments", 0)
        how = f"native, in {runs} run{'' if runs == 1 else 's'}" if runs else "Python makes the calls"
        lines = [
            f"{self._calls.total()} calls: {listed} (times are those of the call that was captured)",
            f"{how}; {self._replay.nbytes} bytes in buffers",
        ]
        return [*lines, *[f"calls Python each time, as optimisers, callbacks and hooks need: {w}" for w in self._whole]]

    def _time_of(self, name: str) -> str:
        seconds = self._seconds.get(name)
        return "" if not seconds else f" ({1e6 * seconds:.1f} us)"


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


def _fault_of(
    replay: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    slots: Sequence[Slot],
    expected: Iterable[tuple[Slot, Any]],
) -> str | None:
    """Return what is wrong with a replay whose results are these slots; None where they are as expected."""
    for _ in range(2):  # in buffers that hold what the first left
        try:
            found = dict(zip([slot.number for slot in slots], replay(*inputs), strict=True))
        except CaptureError as error:
            return f"a replay fails: {error}; please report this"
        if not all(_same_bits(raw(found[slot.number]), array) for slot, array in expected):
            return "a replay computes something else; please report this"
    return None


def _totals(calls: Sequence[Call]) -> tuple[Counter[str], dict[str, float]]:
    """Return how many calls there are of functions, by their names, and how long these took."""
    by_function: dict[int, list[Call]] = defaultdict(list)  # as many calls have few functions
    for call in calls:
        by_function[id(call.function)].append(call)
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for alike in by_function.values():
        name = name_of(alike[0].function)
        counts[name] += len(alike)
        seconds[name] += sum([call.seconds for call in alike])
    return counts, seconds


def _same_bits(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes())
