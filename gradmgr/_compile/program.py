"""Program: a captured function as a straight line of calls."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.atomic import error_treatment, errors_ignored
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, CaptureError, GuardError, Slot, line_at, name_of
from gradmgr._arrays.captured_functions import adds_in_any_order
from gradmgr._arrays.gpu import have_same_bits, is_on_gpu
from gradmgr._compile.assembly import Assembly
from gradmgr._compile.captured_call import CapturedCall
from gradmgr._compile.log import kind_of_step, values_of
from gradmgr._compile.rehearsals import Rehearsal, Trial, rehearsal_of, shown_slots, trial_of
from gradmgr._compile.replay_calls import array_of, grad_of, has_grad, is_grad, layout_of
from gradmgr._engine.cleanup import complete
from gradmgr._engine.containers import rebuilt
from gradmgr._engine.tensor import bare, wrap
from gradmgr._replay.capture_difference import difference, is_same_array
from gradmgr._replay.replay import Options, compile_replay
from gradmgr._replay.replay_text import begins_effects
from gradmgr._replay.replay_times import measuring

# What a replay calls that computes nothing.
_SILENT = (array_of, grad_of, has_grad, is_grad, layout_of, wrap)


class UnchangedError(Exception):
    """A replay failed before it changed anything."""


class LateGuardError(Exception):
    """A guard found another value after a replay had begun to change something."""


class Program:
    """What replays a captured function.

    Attributes:
        names: what the function reads by name.
        used: when it was used last, as a number that grows.
        runs: how often it was asked to run.
        generators: from which its calls draw.
        rehearses_at: at which of these the function runs as written instead, and is compared.
    """

    def __init__(self, made: CapturedCall, capture: Assembly, options: Options) -> None:
        self.used = 0
        self.runs, self.rehearses_at = 0, 1
        self.names = made.names
        self._are_names_same = made.names.test()
        # Inputs that are written may overlap others, which the machine does not expect.
        self._writes_over_inputs = capture.writes_over_inputs()
        self._options = options._replace(native=False) if self._writes_over_inputs else options
        self._pinned = list(made.pinned.items())
        self._conditions = list(capture.conditions.values())
        sources = capture.sources
        self._given = [source for source in sources if isinstance(source, int)]  # they come first
        self._references = [source for source in sources if not isinstance(source, int)]
        # Of arrays it does not matter who else has them, unless some are written to.
        may_clash = made.tensors or self._writes_over_inputs
        self._outer = {id(t) for source in self._references if (t := source()) is not None} if may_clash else set()
        self._cleanups = capture.cleanups
        self.generators = made.generators
        self._has_effects = any(call.has_effect for call in capture.calls)
        self._runs_foreign = any(getattr(call.function, "is_foreign", False) for call in capture.calls)
        self._returned = [k for k, slot in enumerate(made.slots) if isinstance(slot, Slot)]
        self._leaves = [None if isinstance(slot, Slot) else slot for slot in made.slots]
        self._tree = rebuilt(made.result, iter(self._leaves))
        self._returns_one = self._tree is None and self._returned == [0]
        self._calls, self._seconds = _totals(capture.calls)
        self._whole = sorted({f"{name_of(call.function)} at {call.line}" for call in capture.whole_calls()})
        self._is_on_gpu = capture.is_on_gpu()
        is_steady = not self._is_on_gpu or not any(map(adds_in_any_order, capture.calls))
        self._are_alike: Callable[[Any, Any], bool] = _same_bits if is_steady else _are_near
        self._given_back = [made.slots[k] for k in self._returned]
        may_rehearse = not (self._writes_over_inputs or self._is_on_gpu)
        self._rehearsal = rehearsal_of(capture, self._given_back) if may_rehearse else None
        self._shown = shown_slots(capture, self._given_back) if may_rehearse else []
        self._origins = capture.origins
        self._exact: Any = None  # see `_replay_in_rehearsals`
        self._capture = capture
        self._steps = [(kind_of_step(step), step.place, getattr(step, "function", None)) for step in made.log.steps]
        self._replay: Any = self._replay_of(capture, self._given_back, self._shown)
        self._may_warn = _may_warn(self._replay)
        self._begin = _beginning(self._given, self._references, has_effects=self._has_effects)

    # ------------------------------------------------------------ whether it fits

    def misfit(self, leaves: Sequence[Any]) -> str | None:
        """Return what it does not fit in a call of its signature; None if it fits."""
        for k, reference in self._pinned:
            if leaves[k] is not reference():
                return f"argument {k} is another Tensor"
        if self._outer and not self._outer.isdisjoint(map(id, leaves)):
            return "an argument is a Tensor that the function reads by itself"
        for condition in self._conditions:
            if not condition.holds():
                return condition.what
        return (
            None if self._are_names_same(leaves) else self.names.changed(leaves) or "a name stands for something else"
        )

    # ------------------------------------------------------------ a replay

    def run(self, leaves: Sequence[Any], replay: Any = None) -> Any:
        """Make the calls, and return what the function returns.

        Args:
            leaves: of the arguments.
            replay: what makes them, if not the replay of the program.

        Raises:
            GuardError: a guard finds another value; nothing has changed then.
            UnchangedError: a call failed, and nothing has changed.
            LateGuardError: a guard finds another value in what code that runs each time has changed before.
        """
        begun: list[bool] = []
        states = [generator.bit_generator.state for generator in self.generators] if self.generators else ()
        try:
            if replay is None and not self._may_warn:
                values = self._begin(self._replay, leaves, begun)
            else:
                values = _call_quietly(self._begin, replay or self._replay, leaves, begun)
        except BaseException as error:
            if begun:
                for cleanup in self._cleanups:
                    cleanup(error)
                if not isinstance(error, GuardError):
                    raise
            for generator, state in zip(self.generators, states, strict=True):
                generator.bit_generator.state = state
            if begun:
                raise LateGuardError(str(error)) from error
            if isinstance(error, GuardError) or not isinstance(error, Exception):
                raise
            raise UnchangedError from error
        if self._returns_one:
            return values[0]
        found = self._leaves.copy()
        for k, value in zip(self._returned, values, strict=True):
            found[k] = value
        return rebuilt(self._tree, iter(found))

    def verify(self) -> str | None:
        """Return how the calls, made again, differ from the call that was captured; None if they do not.

        The program itself is run up to its first effect, on what the captured call found. Where that does not show
        all that it computes, the calls without effects are made in their own program. Products of oneDNN's are
        compared with NumPy's within the bound of their rounding, and replaced by them, so that all else must be equal
        in every bit.
        """
        capture, rehearsal = self._capture, self._rehearsal
        self._rehearsal = None  # with its arrays
        if self._writes_over_inputs:
            capture.forget_values()
            return None
        if rehearsal is not None:
            return self._fault_in_rehearsal(capture, rehearsal)
        trial = trial_of(capture)
        capture.forget_values()
        if trial is None:
            return None
        return self._fault_in_trial(trial)

    def rehearse(self, leaves: Sequence[Any]) -> Sequence[Any] | None:
        """Return what the program computes of arguments, without effects; None where that cannot be shown.

        Raises:
            GuardError: a guard finds another value.
        """
        self.rehearses_at = 2 * self.rehearses_at + 1
        if self._runs_foreign:
            return None  # code of the program's runs once in each call
        states = [generator.bit_generator.state for generator in self.generators]
        try:
            made: Sequence[Any] = _call_quietly(self._begin, self._replay_in_rehearsals(), leaves, None)
        except GuardError:
            raise
        except Exception:  # the function itself is called next, and raises what it raises
            return None
        finally:
            for generator, state in zip(self.generators, states, strict=True):
                generator.bit_generator.state = state
        return made

    def _replay_in_rehearsals(self) -> Any:
        """Return the replay; one whose products are NumPy's, where oneDNN computes some."""
        if not self._has_fused_products():
            return self._replay
        if self._exact is None:
            options = self._options._replace(exact=True)
            self._exact = compile_replay(self._capture, self._given_back, self._shown, options)
        return self._exact

    def fault_in(self, made: CapturedCall, computed: Sequence[Any] | None) -> str | None:
        """Return how the program differs from a call of the function as written; None if it does not.

        Args:
            made: the call.
            computed: what the program has computed beside it.
        """
        if made.obstacle is not None:
            return made.obstacle
        differs = self.differs(made)
        if differs is not None:
            return f"from one call to the next changes {differs}"
        steps = made.log.steps
        slots = self._shown if self._has_effects else self._given_back
        for value, slot in zip(computed or (), slots, strict=False):
            origin = self._origins.get(slot.number) if isinstance(slot, Slot) else None
            if origin is not None and not self._are_alike(bare(value), values_of(steps[origin[0]])[origin[1]]):
                return self._changed_constant(made) or "a replay computes something else than the function"
        return None

    def differs(self, made: CapturedCall) -> str | None:
        """Return in which step a call of the function differs from that of which this is the program."""
        steps = made.log.steps
        for (kind, place, function), step in zip(self._steps, steps, strict=False):
            if kind != kind_of_step(step):
                after = f"{name_of(getattr(step, 'function', None))} at {line_at(step.place)}"
                return f"{name_of(function)} at {line_at(place)}, then {after}"
        if len(steps) == len(self._steps):
            return None
        places = [place for _, place, _ in self._steps] + [step.place for step in steps]
        return f"how much is computed, at {line_at(places[-1])}"

    def _changed_constant(self, made: CapturedCall) -> str | None:
        """Return which of the calls is given another constant in another call of the function."""
        made.assemble()
        found = None if made.capture is None else difference(self._capture, made.capture)
        return None if found is None else f"from one call to the next changes {found}"

    def _fault_in_rehearsal(self, capture: Assembly, rehearsal: Rehearsal) -> str | None:
        slots = self._shown
        replay = self._replay
        if self._has_fused_products():
            replay = self._replay_of(capture, self._given_back, slots, checked=True)
        capture.forget_values()
        begun = [None] if self._has_effects else []
        rehearse = functools.partial(_call_quietly, replay, *begun)
        return self._fault_of(rehearse, rehearsal.inputs, slots if self._has_effects else self._given_back, rehearsal)

    def _fault_in_trial(self, trial: Trial) -> str | None:
        slots = [slot for slot, _ in trial.expected]
        replay = self._replay_of(trial.capture, slots, checked=True)
        return self._fault_of(replay, trial.inputs, slots, trial)

    def _replay_of(
        self, capture: Capture, results: Sequence[Any], rehearsed: Sequence[Slot] = (), *, checked: bool = False
    ) -> Any:
        """Return a replay at the program's level; one that compares products, if it is to be checked."""
        return compile_replay(capture, results, rehearsed, self._options, checked=checked)

    def _fault_of(
        self,
        replay: Callable[..., Sequence[Any]],
        inputs: Sequence[Any],
        slots: Sequence[Slot],
        expected: Rehearsal | Trial,
    ) -> str | None:
        """Return what is wrong with a replay whose results are these slots; None if they are as expected."""
        for _ in range(2):  # in buffers that hold what the first left
            try:
                found = dict(zip([slot.number for slot in slots], replay(*inputs), strict=True))
            except CaptureError as error:
                return f"a replay fails: {error}; please report this"
            if not all(self._are_alike(bare(found[slot.number]), array) for slot, array in expected.expected):
                return "a replay computes something else; please report this"
        return None

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
        runs = getattr(self._replay, "segments", 0)
        if runs:
            return self._native_level(f"in {runs} run{'' if runs == 1 else 's'}")
        return "Python makes the calls" + (", on a GPU" if self._is_on_gpu else "")

    def _native_level(self, how: str) -> str:
        if not self._has_fused_products():
            return f"native, {how}"
        found = self._replay.fusion
        of_both = {"oneDNN computes": found.replaced - found.by_machine, "the machine": found.by_machine}
        listed = " and ".join([f"{who} {count}" for who, count in of_both.items()][: 1 + bool(found.by_machine)])
        text = f"fused, {how}: {listed} of {found.products} matrix products in float32"
        if found.added:
            text += f", {found.added} of them added to a sum at once"
        if found.merged:
            text += f"; {found.merged} products are merged into {found.merges}"
        return text

    def _has_fused_products(self) -> bool:
        found = getattr(self._replay, "fusion", None)
        return found is not None and bool(found.replaced or found.merged)

    def _time_of(self, name: str) -> str:
        seconds = self._seconds.get(name)
        return "" if not seconds else f" ({1e6 * seconds:.1f} us)"


def _beginning(
    given: Sequence[int], references: Sequence[Callable[[], Any]], *, has_effects: bool
) -> Callable[[Any, Sequence[Any], list[bool]], Any]:
    """Return a function that calls a replay, given it, the leaves of the arguments, and the list `begun`.

    It is written as text, as to list the inputs takes 0.3 us more.

    Args:
        given: the numbers of the leaves that the replay takes.
        references: what gives the Tensors that it takes besides.
        has_effects: whether it takes `begun`.
    """
    tensors = [f"t{k}" for k in range(len(references))]
    inputs = ", ".join([*["begun"] * has_effects, *[f"leaves[{k}]" for k in given], *tensors])
    gone = " or ".join([f"({t} := r{t}()) is None" for t in tensors])
    lines = ["def begin(replay, leaves, begun):"]
    lines += [f"    if {gone}: raise GuardError('what the function reads is gone')"] if tensors else []
    scope: dict[str, Any] = {"GuardError": GuardError} | {
        f"r{t}": each for t, each in zip(tensors, references, strict=True)
    }
    text = "\n".join([*lines, f"    return replay({inputs})"])
    exec(compile(text, "<gradmgr replay>", "exec"), scope)  # noqa: S102  # text of our own
    return scope.pop("begin")  # type: ignore[no-any-return]  # the function that the text defines


def _may_warn(replay: Any) -> bool:
    """Tell whether Python makes calls that may warn of floating-point numbers, as the machine does not."""
    called = getattr(replay, "called", None)
    return called is None or not all(
        begins_effects(function) or any(function is each for each in _SILENT) for function in called
    )


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
    """Tell whether arrays are equal except for the order in which a GPU has added."""
    if _same_bits(one, other):
        return True
    is_alike = one.__class__ is other.__class__ and (one.shape, one.dtype) == (other.shape, other.dtype)
    if not is_alike or one.dtype.kind not in "fc":
        return False
    scale = abs(other).max()
    return bool((abs(one - other) <= np.finfo(one.dtype).eps ** 0.5 * scale).all())


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
    if is_on_gpu(one) or is_on_gpu(other):  # compared where they are
        is_alike = one.__class__ is other.__class__ and (one.shape, one.dtype) == (other.shape, other.dtype)
        return is_alike and have_same_bits(one, other)
    return is_same_array(np.asarray(one), np.asarray(other))
