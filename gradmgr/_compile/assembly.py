"""Assembly: the calls of a program, made from the steps of a log by running gradmgr's own code on captured arrays.

It is made away from the program's code, when that has run: each kernel, each vjp is called once more, with captured
arrays in the place of those that the log has seen, and becomes the calls of NumPy's functions that it makes. Where
these do not give the same bits, or the code asks for what a captured array does not tell, the step is one call of the
function itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.atomic import run_atomically
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.capture import Capture, Noted, generators_in
from gradmgr._arrays.captured import CapturedArray, set_capturing
from gradmgr._arrays.captured_calls import Call, Place, Slot, line_at, slots_in
from gradmgr._arrays.captured_functions import written_by
from gradmgr._arrays.gpu import have_same_bits, is_on_gpu, is_plain
from gradmgr._compile.captured_state import Residuals
from gradmgr._compile.log import KnownTensor, Log, values_of
from gradmgr._compile.replay_calls import (
    LAYOUTS,
    READS,
    UpdateMethod,
    WeakMethod,
    are_distinct,
    array_of,
    grad_of,
    has_grad,
    is_grad,
    layout_of,
    layout_on_gpu,
)
from gradmgr._compile.steps import (
    Update,
    Whole,
    WriteArray,
    held,
    released,
    run_foreign_vjp,
    run_held_rule,
    run_rule,
    run_vjp,
)
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._replay.forwarded_copies import without_copies


def _have_same_bits(one: Any, other: Any) -> bool:
    if (one.shape, one.dtype, one.strides) != (other.shape, other.dtype, other.strides):
        return False
    return have_same_bits(one, other) if is_on_gpu(one) else one.tobytes() == other.tobytes()


def _with_small_node_ids(args: tuple[Any, ...], *, adds: bool = False) -> tuple[Any, ...]:
    """Return the arguments of `run_vjp` with small node ids, the same in each call.

    Nothing is to be added into, unless `adds`.
    """
    e, g, before, ids, owned, kind = args
    small: dict[int, int] = {id(node_id): k for k, node_id in enumerate((*ids, e[1]))}

    def renamed(value: Any) -> Any:
        if value.__class__ is tuple:
            return tuple(map(renamed, value))
        return small.get(id(value), value)

    return renamed(e), g, before, renamed(ids), renamed(owned) if adds else (), kind


def _draws(function: Callable[..., Any], args: Any) -> bool:
    """Return True if a function draws random numbers, or reads what is no array: a replay is to call it."""
    if function is run_foreign_vjp or getattr(function, "runs_each_time", False):
        return True
    random = sys.modules.get("numpy.random")
    return random is not None and any(isinstance(part, random.Generator) for part in leaves_in(args))


class Assembly(Capture):
    """The calls of a program.

    Attributes:
        reads: the calls that read outer tensors as they were when the function began.
        sources: of each input, what a replay takes it from: the number of an argument, or a weak reference to a tensor.
        conditions, cleanups, code_of_program: as the log's.
        found: what arrays that come from outside were, by the number of the slot.
        left: what arrays that leave were, likewise.
        origins: by which step of the log these were made, and as which of its arrays; None for others.
    """

    __slots__ = (
        "_at",
        "_grads",
        "_log",
        "_place",
        "_slots",
        "_table",
        "cleanups",
        "code_of_program",
        "conditions",
        "found",
        "left",
        "origins",
        "reads",
        "sources",
    )

    def __init__(self, log: Log, *, fuses: bool = False, may_decide: bool = True) -> None:
        super().__init__(fuses=fuses, may_decide=may_decide)
        self._log = log
        self._table: dict[int, Any] = {}  # captured arrays by the identity of those that the log has seen
        self._slots: dict[int, Slot] = {}  # of tensors that a replay has, by the identity of what is known of them
        self._place: Place = (type(self).__init__.__code__, 0)
        self.reads: list[Call] = []
        self.sources: list[int | weakref.ref[Any]] = []
        self.conditions = log.conditions
        self.cleanups = [WeakMethod(method) for method in log.cleanups]
        self.code_of_program = log.code_of_program
        self.obstacles = log.obstacles
        self._at: dict[int, tuple[int, int]] = {}  # by which step arrays of the log were made, and as its how manieth
        self.origins: dict[int, tuple[int, int] | None] = {}
        self.found: dict[int, Any] = {}
        self.left: dict[int, Any] = {}

    def place(self, skipped: int = 1) -> Place:
        return self._place

    def add_array_argument(self, number: int, array: Any) -> None:
        """Enter an array among the arguments."""
        self.sources.append(number)
        is_written = any(isinstance(step, WriteArray) and step.target is array for step in self._log.steps)
        before = self._log.before[number] if is_written else array
        if before.strides != array.strides:
            self.obstacles.append("the function writes to an array that it is given and that is not contiguous")
        made = self.add_input(before)
        self._table[id(array)] = made
        self.found[made.slot.number] = before

    def assemble(self) -> None:
        """Add the calls of all steps."""
        set_capturing(self)
        try:
            for k, step in enumerate(self._log.steps):
                self._place = step.place
                step.add_to(self)
                for j, array in enumerate(values_of(step)):
                    self._at[id(array)] = k, j
        finally:
            set_capturing(None)

    # ------------------------------------------------------------ values

    def _captured(self, value: Any) -> Any:
        """Return what stands for a value of the log."""
        kind = value.__class__
        if kind is np.ndarray:
            return self._table.get(id(value), value)
        if kind is tuple:
            return tuple([self._captured(part) for part in value])
        if kind is list:
            return [self._captured(part) for part in value]
        if kind is dict:
            return {name: self._captured(part) for name, part in value.items()}
        if kind is slice:
            return slice(self._captured(value.start), self._captured(value.stop), self._captured(value.step))
        if kind is Batched:
            return Batched(value.level, self._captured(value._array))
        if isinstance(value, Tensor):
            return wrap(self._captured(value._array))
        if isinstance(value, tuple):
            return type(value)(*[self._captured(part) for part in value])
        return self._table.get(id(value), value) if isinstance(value, np.generic) or is_on_gpu(value) else value

    def _enter(self, old: Any, made: Any) -> None:
        """Let what was captured stand for what the log has seen."""
        if old.__class__ is Batched:
            self._enter(old._array, made._array)
        elif old.__class__ is dict:
            for name in old:
                self._enter(old[name], made[name])
        elif isinstance(old, (tuple, list)):
            for part, new in zip(old, made, strict=True):
                self._enter(part, new)
        elif isinstance(old, Tensor):
            self._enter(old._array, made._array)
        elif is_plain(old):
            if made.__class__ is np.ndarray and id(old) in self._log.changed:
                made = self.add_constant(made).copy()  # as a later step adds into it
            self._table[id(old)] = made

    def _are_same(self, old: Any, made: Any) -> bool:
        """Return True if what was captured has the bits of what the log has seen."""
        if old.__class__ is Batched:
            return made.__class__ is Batched and self._are_same(old._array, made._array)
        if old.__class__ is dict:
            return made.__class__ is dict and all(self._are_same(old[name], made.get(name)) for name in old)
        if isinstance(old, (tuple, list)):
            return isinstance(made, (tuple, list)) and len(made) == len(old) and all(map(self._are_same, old, made))
        if isinstance(old, Tensor):
            return isinstance(made, Tensor) and self._are_same(old._array, made._array)
        if is_plain(old):
            if id(old) in self._log.changed:
                return True  # it holds what a later step has made of it
            inner = made.inner if made.__class__ is CapturedArray else made
            return is_plain(inner) and _have_same_bits(inner, old)
        return True

    def _append(self, function: Any, args: Any, keywords: Any, results: Any, expected: Any, noted: Noted) -> Call:
        call = Call(function, args, keywords, results, expected, self._place, given=noted.slots())
        self._add(call)
        return call

    def compute(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], old: Any) -> None:
        """Add the calls that a function makes; the call of the function itself where these are not the same."""
        if _draws(function, args):
            self._adopt(function, args, keywords, old)
            return
        before, obstacles = len(self.calls), len(self.obstacles)
        given, given_by_name = self._captured(args), self._captured(keywords)
        try:
            made = function(*given, **given_by_name)
            is_same = len(self.obstacles) == obstacles and self._are_same(old, made)
        except Exception:  # whatever a captured array cannot do; the function itself has run
            is_same = False
        if not is_same:
            del self.calls[before:], self.obstacles[obstacles:]
            if function is run_vjp:
                given = _with_small_node_ids(given)
            if function is run_rule:
                rule, values, scene = given
                values = _with_small_node_ids(values, adds=True) if rule is run_vjp else values
                function, given = run_held_rule, held((rule, values, scene))
            made = released(self.call(function, given, given_by_name))
        self._enter(old, made)

    def _adopt(self, function: Callable[..., Any], args: Any, keywords: Any, old: Any) -> None:
        """Add a call of a function without making it: what it returned are new arrays."""
        if any(part.__class__ is Batched for part in leaves_in(old)):
            self.obstacles.append(f"code that must run in each call is called inside vmap, at {line_at(self._place)}")
            self._enter(old, old)
            return
        noted = Noted()
        given = self._captured(args)
        _, slots = noted.args(_with_small_node_ids(given) if function is run_foreign_vjp else given)
        made, results = self._wrap_all(old, noted)
        self._append(function, slots, keywords, results, None, noted)
        self.found |= {part.slot.number: part.inner for part in leaves_in(made) if isinstance(part, CapturedArray)}
        self._enter(old, made)

    def guard_all(self, read: Callable[..., Any], args: tuple[Any, ...], found: Any) -> None:
        """Add that a replay must find the same: by the guards that the code sets which reads it, if it sets any."""
        before, obstacles, given = len(self.calls), len(self.obstacles), self._captured(args)
        try:
            is_same = read(*given) == found and any(call.expected is not None for call in self.calls[before:])
        except Exception:  # whatever a captured array cannot do
            is_same = False
        if is_same and len(self.obstacles) == obstacles:
            return
        del self.calls[before:], self.obstacles[obstacles:]
        noted = Noted()
        _, slots = noted.args(given)
        if noted.captured:
            self.calls.append(Call(read, slots, {}, None, found, self._place, given=noted.slots()))

    # ------------------------------------------------------------ tensors

    def _is_outer(self, known: KnownTensor) -> bool:
        """Return True if a tensor was there before, not if the function made it of constants: it is gone by now."""
        return id(known) in self._slots or known.source is not None or (known.is_outer and known() is not None)

    def slot_of(self, known: KnownTensor) -> Slot:
        """Return where a replay has a tensor; one made in the function it makes, too."""
        slot = self._slots.get(id(known))
        if slot is not None:
            return slot
        slot = self._slots[id(known)] = self.add_object()
        if known.is_outer:
            self.sources.append(weakref.ref(known()) if known.source is None else known.source)
            self.inputs.append(slot)
        return slot

    def _slot_of_tensor(self, t: Tensor, known: KnownTensor | None = None) -> Slot:
        known = known or self._log.tensors.get(id(t))
        if known is None or known() is not t:
            known = self._log.tensors[id(t)] = KnownTensor(t, is_outer=False)
        if known.is_outer or id(known) in self._slots:
            return self.slot_of(known)
        slot = self._slots[id(known)] = self.add_object()
        array = self.leaving(t._array if known.shown is None else known.shown)
        self.append(wrap, (array.slot,), slot)
        self.origins[slot.number] = self.origins[array.slot.number]
        return slot

    def leaving(self, array: Any) -> CapturedArray:
        """Return an array that others get; a copy, as they may write to it, where each replay has the same object."""
        captured = self._table.get(id(array))
        if captured.__class__ is not CapturedArray:
            captured = self.add_constant(array if captured is None else captured)
        layout = self.layouts[captured.slot.number]
        if layout is not None and layout.owner in self.fixed and not layout.is_scalar:
            captured = captured.copy()
        self.left[captured.slot.number] = captured.inner
        self.origins[captured.slot.number] = self._at.get(id(array))
        return captured

    def read(self, known: KnownTensor, array: Any, *, is_late: bool) -> None:
        if not self._is_outer(known):
            return
        slot = self.slot_of(known)
        calls = self.calls if is_late else self.reads
        captured = self.add_found(array)
        self.found[captured.slot.number] = array
        calls.append(Call(array_of, (slot,), {}, captured.slot, None, self._place))
        self._append_layout(calls, captured)
        self._table[id(array)] = captured

    def _append_layout(self, calls: list[Call], array: CapturedArray) -> None:
        read = layout_on_gpu if is_on_gpu(array.inner) else layout_of
        calls.append(Call(read, (array.slot,), {}, None, read(array.inner), self._place))

    def read_grad(self, known: KnownTensor, grad: KnownTensor | None, *, is_late: bool) -> None:
        if not self._is_outer(known):
            return
        slot = self.slot_of(known)
        calls = self.calls if is_late else self.reads
        calls.append(Call(has_grad, (slot,), {}, None, grad is not None, self._place))
        if grad is None:
            return
        if id(grad) in self._slots:
            calls.append(Call(is_grad, (slot, self._slots[id(grad)]), {}, None, True, self._place))
        else:
            of_grad = self._slots[id(grad)] = self.add_object()
            calls.append(Call(grad_of, (slot,), {}, of_grad, None, self._place))

    def write(self, due: Iterable[tuple[KnownTensor, str, Any]]) -> None:
        """Add a call that writes to tensors that a replay has: to all of them, or to none."""
        writes: list[tuple[Any, ...]] = []
        for known, name, value in due:
            if not self._is_outer(known):
                continue
            slot = self.slot_of(known)
            if name == "_array":
                writes += [(setattr, slot, "_array", self.leaving(value).slot), (setattr, slot, "_rec", None)]
            else:
                writes.append((setattr, slot, "_grad", None if value is None else self._slot_of_tensor(value)))
        if writes:
            self._append_effect(run_atomically, (writes,))

    def write_array(self, target: Any, array: Any) -> None:
        """Add a call that writes to an array among the arguments."""
        self._append_effect(run_atomically, ([(np.copyto, self._table[id(target)].slot, self.leaving(array).slot)],))

    def append(self, function: Callable[..., Any], args: tuple[Any, ...], results: Any) -> None:
        """Append a call of no effect."""
        self.calls.append(Call(function, args, {}, results, None, self._place))

    def _append_effect(
        self, function: Callable[..., Any], args: Any, results: Any = None, keywords: Any = None
    ) -> None:
        self.calls.append(Call(function, args, keywords or {}, results, None, self._place, has_effect=True))
        self.may_decide = False

    # ------------------------------------------------------------ calls made as a whole

    def _slots_in(self, value: Any, given: dict[int, KnownTensor]) -> Any:
        """Return an argument of a call that is made as a whole with slots in place of what a replay has."""
        if isinstance(value, Tensor):
            return self._slot_of_tensor(value, given.get(id(value)))
        if isinstance(value, Residuals):
            return value.slot if value.slot is not None else value
        if isinstance(value, tuple):
            parts = [self._slots_in(part, given) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value.__class__ is list:
            return [self._slots_in(part, given) for part in value]
        if value.__class__ is dict:
            return {name: self._slots_in(part, given) for name, part in value.items()}
        captured = self._table.get(id(value)) if is_plain(value) else None
        return value if captured is None else captured.slot

    def add_whole(self, step: Whole) -> None:
        args, keywords = self._slots_in(step.args, step.given), self._slots_in(step.keywords, step.given)
        results = self._result_slots(step.result, {id(known()): known for known in step.tensors})
        owner = getattr(step.function, "__self__", None)
        is_weak = getattr(type(owner), "__weakrefoffset__", 0) != 0  # not of a list, whose `append` may be a hook
        function = WeakMethod(step.function) if is_weak else step.function
        self._append_effect(function, args, results, keywords)

    def _result_slots(self, result: Any, tensors: dict[int, KnownTensor]) -> Any:
        if isinstance(result, Tensor):
            known = tensors.get(id(result))
            slot = self.add_object()
            if known is not None:
                self._slots[id(known)] = slot
            return slot
        if isinstance(result, Residuals):
            result.slot = self.add_object()
            return result.slot
        if is_plain(result):
            captured = self.add_found(result)
            self._table[id(result)] = captured
            return captured.slot
        if isinstance(result, (tuple, list)):
            return tuple([self._result_slots(part, tensors) for part in result])
        return None

    def add_update(self, step: Update) -> None:
        grads = [None if g is None else self._table.get(id(g), g) for g in step.grads]
        is_plain_for_machine = all(
            g.__class__ is CapturedArray
            and (g.inner.__class__ is np.ndarray and g.flags.c_contiguous and g.dtype == dtype and self.makes(g))
            for g, dtype in zip(grads, step.dtypes, strict=True)
        )
        slots = tuple([g.slot if g.__class__ is CapturedArray else g for g in grads])
        method = UpdateMethod(step.method, step.name)
        self._append_effect(method, (slots, is_plain_for_machine))

    def makes(self, array: CapturedArray) -> bool:
        """Return True if a replay makes the memory of an array by a call of NumPy's."""
        layout = self.layouts[array.slot.number]
        owner = None if layout is None else layout.owner
        return owner is not None and owner not in self.found and owner not in self.fixed

    # ------------------------------------------------------------ the end

    def result_of(self, value: Any, shown: Any) -> Any:
        """Return what a replay returns for a result: the slot of a Tensor or array; anything else is the same.

        Args:
            value: what the function has returned.
            shown: what its caller gets, see `Log.as_result`.
        """
        if isinstance(shown, Tensor):
            return self._slot_of_tensor(shown)
        if value is not shown:
            return self.leaving(value._array).slot
        return self.leaving(value).slot if is_plain(value) and id(value) in self._table else value

    def finish(self, results: Iterable[Any] = ()) -> None:
        """Put the calls in the order of a replay that returns these results."""
        self._check_gradients_differ()
        self._drop_passing_gradients(results)
        kept = {slot.number for slot in slots_in(list(results))}.union(self.found, self.left)
        self.calls = self.reads + without_copies(self.calls, self.layouts, kept)
        self._move_guards()
        self.open = False
        self._table.clear()
        self._at.clear()
        self._slots.clear()
        del self._log  # and its arrays

    def _check_gradients_differ(self) -> None:
        """Guard that no two names stand for one Tensor, as gradients that a program assigns may."""
        if any(call.function is grad_of for call in self.reads):
            made_here = {number for call in self.calls for number in call.made}
            outer = tuple([slot for slot in self._slots.values() if slot.number not in made_here])
            self.reads.append(Call(are_distinct, outer, {}, None, True, self._place))

    def _drop_passing_gradients(self, results: Iterable[Any]) -> None:
        """Leave out gradients that tensors without one get, and lose again before anything else can see them."""
        barrier = self._first_barrier()
        without = {call.args[0].number for call in self.reads if call.function is has_grad and not call.expected}
        last: dict[int, Any] = {}
        for call in self.calls[:barrier]:
            if call.function is run_atomically:
                last |= {write[1].number: write[3] for write in call.args[0] if write[2] == "_grad"}
        passing = {number for number, value in last.items() if value is None} & without
        if not passing:
            return
        kept = []
        for number, call in enumerate(self.calls):
            if number < barrier and call.function is run_atomically:
                due = [write for write in call.args[0] if write[2] != "_grad" or write[1].number not in passing]
                if due:
                    kept.append(call if len(due) == len(call.args[0]) else call.but(args=(due,)))
            else:
                kept.append(call)
        used = {number for call in (*self.reads, *kept) for number in call.given}
        used.update([slot.number for slot in slots_in(list(results))])
        self.calls = [call for call in kept if call.function is not wrap or not used.isdisjoint(call.made)]

    def _first_barrier(self) -> int:
        """Return the number of the first call with an effect that may see gradients."""
        for number, call in enumerate(self.calls):
            if call.has_effect and call.function is not run_atomically and call.function.__class__ is not UpdateMethod:
                return number
        return len(self.calls)

    # ------------------------------------------------------------ replays

    def whole_calls(self) -> list[Call]:
        """Return the calls of Python code that each replay makes."""
        return [call for call in self.calls if call.has_effect and call.function is not run_atomically]

    def writes_over_inputs(self) -> bool:
        """Tell whether calls without effects write into arrays that come from outside, so that they are gone."""
        return any(
            self._memory_of(slot.number) in self.found
            for call in self.calls
            if (written := written_by(call)) and self.is_on_trial(call)
            for slot in written
        )

    def is_on_trial(self, call: Call) -> bool:
        """Tell whether a trial makes a call: one without effects, of arrays, whose results it is not given."""
        if call.has_effect or (call.made and self.found.keys() >= set(call.made)):
            return False
        return all(self.layouts[number] is not None for number in (*call.given, *call.made))

    def forget_values(self) -> None:
        """Drop the arrays that a trial needs."""
        self.found, self.left = {}, {}

    # ------------------------------------------------------------ the order of a replay

    def _move_guards(self) -> None:
        """Put guards, and what they depend on, before the first effect: until then a replay can be given up.

        All other calls stay in their place: an all-reduce that a callback begins runs beside the rest of backward.
        """
        first = next((k for k, call in enumerate(self.calls) if call.has_effect), len(self.calls))
        rest = self.calls[first:]
        if all(call.expected is None for call in rest):
            return
        early = self._needed_by_guards(self._movable(rest))
        moved = set(map(id, early))
        self.calls = [*self.calls[:first], *early, *[call for call in rest if id(call) not in moved]]

    def _movable(self, calls: Sequence[Call]) -> list[Call]:
        """Return which calls from the first effect on could come before it; note guards that could not."""
        draws = set(map(id, (call for call in calls if generators_in([call]))))  # which stay in their order
        late: set[int] = set()  # slots of what depends on an effect, and of memory that is written to late
        used: set[int] = set()  # slots in whose memory lies what stays after the effects
        movable = []
        for call in calls:
            slots = set(call.given)
            memory = slots.union(map(self._memory_of, slots))
            written = self._written(call)
            is_state = call.function in READS or id(call) in draws
            is_state = is_state or (call.expected is not None and call.results is not None and not slots)
            if not (call.has_effect or is_state) and late.isdisjoint(memory) and used.isdisjoint(written):
                movable.append(call)
                continue
            late |= written.union(call.made)
            used |= memory
            if call.expected is not None and not is_state and call.function not in LAYOUTS:
                self.obstacles.append(f"what is decided at {call.line} depends on what an earlier call has changed")
        return movable

    def _needed_by_guards(self, calls: Sequence[Call]) -> list[Call]:
        """Return the guards among calls, what they depend on, and what must read memory before those write to it."""
        needed: list[Call] = []
        touched: set[int] = set()  # memory that needed calls read or write
        written: set[int] = set()  # memory that they write
        for call in reversed(calls):
            given = set(map(self._memory_of, call.given))
            made = self._written(call).union(map(self._memory_of, call.made))
            if call.expected is not None or not touched.isdisjoint(made) or not written.isdisjoint(given):
                needed.append(call)
                touched |= given | made
                written |= made
        return needed[::-1]

    def _written(self, call: Call) -> set[int]:
        """Return the slots in whose memory a call writes."""
        return set(map(self._memory_of, _numbers(written_by(call))))

    def _memory_of(self, number: int) -> int:
        """Return the number of the slot in whose memory an array lies."""
        layout = self.layouts[number]
        return number if layout is None or layout.owner is None else int(layout.owner)


def _numbers(slots: Iterable[Slot]) -> list[int]:
    return [slot.number for slot in slots]
