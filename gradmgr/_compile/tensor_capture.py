"""TensorCapture: what a function does to Tensors, written down as further calls among those on their arrays.

While a function is captured, two slots of the class Tensor, `_array` and `_grad`, are replaced by descriptors. To
read `t._array` in the captured context gives a captured array; to write one leaves the array inside in the slot.
So the tensors are at each moment what they would be without the capture, for other threads too, and nothing is to be
put right when it ends or fails.

A tensor that was there before the function began is *outer*: a replay reads its array again, by a call that comes
before all others (`reads`), and writes to it where the function did. These writes are the effects of the program.
They come at its end, and before each call that is made as a whole in every replay (`call_whole`): that of an optimiser
or of a hook, whose Python code must run each time. After such a call the tensors it may have changed are read again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np

from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.atomic import run_atomically
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.capture import Capture, Noted, generators_in
from gradmgr._arrays.captured import CapturedArray, capturing, inner_of, set_capturing
from gradmgr._arrays.captured_calls import Call, Slot, slots_in
from gradmgr._arrays.captured_functions import written_by
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._arrays.table_rows import TableRows
from gradmgr._compile.captured_slots import array_slot, grad_slot, value_in
from gradmgr._compile.captured_state import Condition, KnownTensor, ObjectStandIn, Residuals
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
    is_of_object,
    layout_of,
    layout_on_gpu,
    runs_no_code_of_the_program,
)
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._replay.forwarded_copies import without_copies

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _forget(capture: weakref.ref[TensorCapture], known: KnownTensor) -> None:
    """Drop what is known of a tensor that died; another may have its identity."""
    alive = capture()
    if alive is not None and alive._known.get(known.key) is known:
        del alive._known[known.key]


class TensorCapture(Capture):
    """A capture of a function of Tensors.

    Attributes:
        reads: the calls that read outer tensors as they were when the function began.
        sources: of each input, what a replay takes it from: the number of an argument, or a weak reference to a tensor
            or to an array that the function reads by name.
        conditions: by the identity of an object, what the function has seen of it that is no Tensor.
        cleanups: what to call with the error where a replay fails amid its effects.
        code_of_program: functions, Functions and callback objects of the program that run each time.
        changes_state: whether the function changes what a condition has seen.
        found: what arrays that come from outside were, by the number of the slot.
        left: what arrays that leave were, likewise.
        unread: the names of attributes that the function does not read, by the identity of their object.
    """

    __slots__ = (
        "__weakref__",
        "_accumulating",
        "_forget",
        "_has_late",
        "_known",
        "_leaves",
        "_replayed",
        "changes_state",
        "cleanups",
        "code_of_program",
        "conditions",
        "found",
        "left",
        "reads",
        "sources",
        "unread",
    )

    def __init__(self, *, may_decide: bool = True, fuses: bool = False) -> None:
        super().__init__(may_decide=may_decide, fuses=fuses)
        self.reads: list[Call] = []
        self.sources: list[int | weakref.ref[Any]] = []
        self.cleanups: list[Callable[[BaseException], None]] = []
        self.conditions: dict[int, Condition] = {}
        self.changes_state = False
        self.code_of_program: list[Any] = []
        self.unread: Mapping[int, Collection[str]] = {}
        self._accumulating: set[Any] = set()  # functions by which something grows
        self._forget = partial(_forget, weakref.ref(self))
        self._known: dict[int, KnownTensor] = {}  # by the identity of a tensor
        self._replayed: list[KnownTensor] = []  # those that have a slot
        self._has_late = False  # whether a call that may change any tensor was made as a whole
        self._leaves: list[weakref.ref[Tensor]] = []  # of managers that have begun to record before
        self.found: dict[int, Any] = {}
        self.left: dict[int, Any] = {}

    # ------------------------------------------------------------ arguments and results

    def add_argument(self, number: int, value: Any) -> Any:
        """Return what the captured function gets for an argument, a Tensor or an array, which was not given before."""
        self.sources.append(number)
        if not isinstance(value, Tensor):
            made = self.add_input(value)
            self.found[made.slot.number] = value
            return made
        self._enter_input(value)
        return value

    def add_named(self, array: Any) -> CapturedArray:
        """Return what replaces an array that the function reads by name: the same object in each replay."""
        self.sources.append(weakref.ref(array))
        made = self.add_input(array)
        self.found[made.slot.number] = array
        self.named.add(made.slot.number)
        self._append_layouts(self.reads, [made])
        return made

    def is_current(self) -> bool:
        """Tell whether calls are those of the function: not of what runs each time, nor of another thread."""
        return capturing() is self

    def result_of(self, value: Any) -> tuple[Any, Any]:
        """Return a result of the function as its caller gets it, and as a replay does: the slot of a Tensor or array.

        Anything else is the same in a replay.
        """
        if isinstance(value, Tensor):
            return value, self._slot_of(value)
        if isinstance(value, CapturedArray):
            left = self._leaving(value)
            return left.inner, left.slot
        if issubclass(type(value), ObjectStandIn):
            return value.real, value.slot if isinstance(value.slot, Slot) else value.real
        return value, value

    def finish(self, results: Iterable[Any] = ()) -> None:
        """Append the effects that are due, and put the calls in the order of a replay that returns these results."""
        self._check_gradients_differ()
        self._write_all()
        self._drop_passing_gradients(results)
        kept = {slot.number for slot in slots_in(list(results))}.union(self.found, self.left)
        self.calls = self.reads + without_copies(self.calls, self.layouts, kept)
        self._move_guards()
        self.open = False
        self._known.clear()
        self._replayed.clear()

    def check_conditions(self) -> None:
        """Note as an obstacle what the function has changed of what it has seen; stand-ins are still in place."""
        for condition in self.conditions.values():
            if not condition.holds():
                self.obstacles.append(f"the function changes {condition.what}; do that outside of it")
                self.changes_state = True

    def clean_up_by(self, method: Callable[[BaseException], None]) -> None:
        """Have a method called with the error where a replay fails amid its effects."""
        self.cleanups.append(WeakMethod(method))

    def has_changed(self) -> bool:
        """Tell whether the function has changed anything yet."""
        return self.has_effects() or any(map(written_by, self.calls)) or bool(generators_in(self.calls))

    def has_effects(self) -> bool:
        """Tell whether the function has changed what cannot be taken back."""
        written = any(known.is_changed or known.is_grad_changed for known in self._replayed)
        return written or any(call.has_effect for call in self.calls)

    def note_state(self, read: Callable[[Any], Any], owner: Any, at: int) -> Slot:
        """Have a replay read a state that is no array, before the call of this number; return where it has it."""
        slot = self.add_object()
        self.calls.insert(at, Call(read, (owner,), {}, slot, None, self.place()))
        return slot

    def restore_state(self, write: Callable[[Any, Any], None], owner: Any, state: Slot) -> None:
        """Have a replay write such a state again."""
        self._append_call(write, (owner, state), None)

    def append_object_call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        results: Any,
        expected: Any,
        arrays: Iterable[CapturedArray],
    ) -> None:
        """Append a call of an object's own function, and that a replay must find arrays of the same layout."""
        self.calls.append(Call(function, args, keywords, results, expected, self.place()))
        self._append_layouts(self.calls, arrays)

    def see(self, owner: Any, read: Callable[[Any], Any], what: str) -> None:
        """Note that the function depends on `read(owner)`; what is noted first of an object counts."""
        if id(owner) not in self.conditions:
            self.conditions[id(owner)] = Condition(owner, read, what, self.unread.get(id(owner), ()))

    # ------------------------------------------------------------ which tensors there are

    def _enter(self, t: Tensor) -> KnownTensor:
        known = self._known[id(t)] = KnownTensor(t, self._forget)
        known.is_late = self._has_late
        return known

    def _enter_replayed(self, t: Tensor) -> KnownTensor:
        """Enter a tensor that a replay has."""
        known = self._enter(t)
        known.slot = self.add_object()
        self._replayed.append(known)
        return known

    def _enter_input(self, t: Tensor) -> KnownTensor:
        known = self._enter_replayed(t)
        self.inputs.append(known.slot)  # type: ignore[arg-type]  # it has one now
        known.is_unseen = known.is_grad_unseen = True
        return known

    def _known_or_outer(self, t: Tensor) -> KnownTensor:
        known = self._known.get(id(t))
        if known is None:
            self.sources.append(weakref.ref(t))
            known = self._enter_input(t)
        return known

    def _slot_of(self, t: Tensor) -> Slot:
        """Return where a replay has a tensor; one made in the function it makes, too."""
        known = self._known_or_outer(t)
        if known.slot is None:
            array = self.read_array(t)
            if isinstance(array, CapturedArray):
                known.slot = self.add_object()
                self._replayed.append(known)
                self._append_call(wrap, (self._leaving(array).slot,), known.slot)
                known.is_changed = False
            else:
                self.add_obstacle("a Tensor that was made inside vmap leaves the function")
                return self.add_object()
        return known.slot

    # ------------------------------------------------------------ the slots of Tensor

    def read_array(self, t: Tensor) -> Any:
        """Return the array of a tensor, captured."""
        array = array_slot.__get__(t)
        known = self._known.get(id(t))
        if known is not None and known.array is not None and known.array.inner is array:  # mostly, so asked first
            return known.array
        # None: a value that is kept elsewhere. Of a row-sparse gradient an obstacle is noted where it is made.
        if array is None or isinstance(array, (Batched, CapturedArray, TableRows)):
            return array
        known = known or self._known_or_outer(t)
        if known.array is None or known.array.inner is not array:
            if known.array is not None:
                self.add_obstacle("another thread wrote to a Tensor")
            known.array = self.add_constant(array) if known.slot is None else self._read_again(known, array)
        return known.array

    def _read_again(self, known: KnownTensor, array: Any) -> CapturedArray:
        """Capture an array as what a replay finds in the tensor."""
        captured = self._append_read(self.calls if known.is_late else self.reads, known, array)
        if known.is_late and known.is_unseen:
            self._append_read(self.reads, known, array)  # before the first effect, too: a replay can be given up then
        known.is_unseen = False
        return captured

    def _append_read(self, calls: list[Call], known: KnownTensor, array: Any) -> CapturedArray:
        captured = self.add_elsewhere(array)
        calls.append(Call(array_of, (known.slot,), {}, captured.slot, None, self.place()))
        self._append_layouts(calls, [captured])
        return captured

    def add_elsewhere(self, array: Any) -> CapturedArray:
        """Capture an array that a replay finds elsewhere, and which a trial is given."""
        captured = self.add_found(array)
        self.found[captured.slot.number] = array
        return captured

    def _append_layouts(self, calls: list[Call], arrays: Iterable[CapturedArray]) -> None:
        for array in arrays:
            read = layout_on_gpu if is_on_gpu(array.inner) else layout_of
            calls.append(Call(read, (array.slot,), {}, None, read(array.inner), self.place()))

    def write_array(self, t: Tensor, value: Any) -> None:
        """Give a tensor another array, or its first."""
        known = self._known.get(id(t))
        if known is None:
            known = self._known_or_outer(t) if value_in(array_slot, t) is not None else self._enter(t)
        if isinstance(value, CapturedArray):
            known.array = value
            value = value.inner
        else:
            known.array = None if value is None or isinstance(value, Batched) else self.add_constant(value)
        known.is_changed, known.is_unseen = True, False
        array_slot.__set__(t, value)

    def read_grad(self, t: Tensor) -> Any:
        """Return the gradient of a tensor, of which a replay must find whether it is there."""
        known = self._known_or_outer(t)
        if known.slot is not None and not known.knows_grad:
            self._append_grad_read(known, value_in(grad_slot, t))
        return grad_slot.__get__(t)

    def _append_grad_read(self, known: KnownTensor, grad: Tensor | None) -> None:
        calls = self.calls if known.is_late else self.reads
        place = self.place()
        guard = Call(has_grad, (known.slot,), {}, None, grad is not None, place)
        calls.append(guard)
        if known.is_late and known.is_grad_unseen:
            self.reads.append(guard)  # before the first effect, too: a replay can be given up then
        seen = None if grad is None else self._known.get(id(grad))
        if grad is not None and seen is None:
            calls.append(Call(grad_of, (known.slot,), {}, self._enter_replayed(grad).slot, None, place))
        elif seen is not None and seen.slot is not None and known.is_late:  # another may have taken its place
            calls.append(Call(is_grad, (known.slot, seen.slot), {}, None, True, place))
        known.knows_grad, known.is_grad_unseen = True, False

    def write_grad(self, t: Tensor, value: Tensor | None) -> None:
        """Give a tensor another gradient."""
        known = self._known_or_outer(t)
        known.knows_grad = known.is_grad_changed = True
        known.is_grad_unseen = False
        grad_slot.__set__(t, value)

    def note_leaves(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors that get gradients."""
        self._leaves += map(weakref.ref, tensors)

    def note_code(self, functions: Iterable[Any]) -> None:
        """Note code of the program that runs in each replay."""
        self.code_of_program += functions

    def late_gradient(self) -> Call | None:
        """Return the first guard of what gradients there are that a replay finds only after its first effect."""
        first = next((k for k, call in enumerate(self.calls) if call.has_effect), len(self.calls))
        return next((call for call in self.calls[first:] if call.function in (has_grad, is_grad)), None)

    def _read_leaves(self) -> None:
        """Read arrays and gradients of leaves before a call that may change them, as only then they can be guarded."""
        for leaf in self._leaves:
            t = leaf()
            if t is None or (known := self._known_or_outer(t)).slot is None or known.is_late:
                continue
            self.read_array(t)
            if not known.knows_grad:
                self._append_grad_read(known, value_in(grad_slot, t))
        self._leaves.clear()

    def _check_gradients_differ(self) -> None:
        """Guard that no two names stand for one Tensor, as gradients that a program assigns may."""
        if any(call.function is grad_of for call in self.reads):
            slots = [known.slot for known in self._replayed if known() is not None]
            made_here = {number for call in self.calls for number in call.made}
            outer = tuple([slot for slot in slots if slot is not None and slot.number not in made_here])
            self.reads.append(Call(are_distinct, outer, {}, None, True, self.place()))

    # ------------------------------------------------------------ effects

    def _write_all(self) -> None:
        """Append a call that writes to the tensors that a replay has: to all of them, or to none."""
        due: list[tuple[Any, ...]] = []
        for known in self._replayed:  # grows by the gradients that are given slots
            t = known()
            if t is None:
                continue
            if known.is_changed and known.array is not None:
                array = self._leaving(known.array).slot
                due += [(setattr, known.slot, "_array", array), (setattr, known.slot, "_rec", None)]
            if known.is_grad_changed:
                grad = value_in(grad_slot, t)
                due.append((setattr, known.slot, "_grad", None if grad is None else self._slot_of(grad)))
            known.is_changed = known.is_grad_changed = False
        if due:
            self._append_effect(run_atomically, (due,))

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

    def _leaving(self, array: CapturedArray) -> CapturedArray:
        """Return an array that others get; a copy, as they may write to it, where each replay has the same object."""
        layout = self.layouts[array.slot.number]
        if layout is not None and layout.owner in self.fixed and not layout.is_scalar:
            array = array.copy()
        self.left[array.slot.number] = array.inner
        return array

    def _append_call(self, function: Callable[..., Any], args: tuple[Any, ...], results: Any) -> None:
        self.calls.append(Call(function, args, {}, results, None, self.place()))

    def _append_effect(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        results: Any = None,
        keywords: Mapping[str, Any] = _NOTHING,
    ) -> None:
        call = Call(function, args, dict(keywords), results, None, self.place(), has_effect=True)
        self.calls.append(call)
        self.may_decide = False

    def call_whole(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        changes: Iterable[Tensor] | None = None,
        keywords: Mapping[str, Any] = _NOTHING,
        replayed: Callable[..., Any] | None = None,
    ) -> Any:
        """Make a call without capturing what it does; a replay makes it again, at its place.

        Args:
            function: what to call, the same object each time that the captured function runs.
            args: its arguments; Tensors and captured arrays among them are those of the replay.
            changes: the tensors whose arrays it may change; None for all arrays and gradients there are.
            keywords: its keyword arguments.
            replayed: what a replay calls in its place, for results of the same kind.
        """
        given, given_by_name = map_leaves(self._slot_or_value, (args, dict(keywords)))
        if changes is None:
            self._read_leaves()
        if isinstance(function, (FunctionType, MethodType)):
            self.note_code([function])
        self._write_all()
        set_capturing(None)
        try:
            args, keywords = map_leaves(inner_of, (args, dict(keywords)))
            made = function(*args, **keywords)
        finally:
            set_capturing(self)
        self._make_late(changes)
        for part in leaves_in(made):
            if not (part is None or isinstance(part, (Tensor, np.ndarray, Residuals)) or is_on_gpu(part)):
                self.add_obstacle(
                    f"{function.__name__}() returns {type(part).__name__}, which a replay would not know,"
                )
        made, results = self._wrap_all(made, Noted())
        function = function if replayed is None else replayed
        function = WeakMethod(function) if isinstance(function, MethodType) else function
        self._append_effect(function, given, results, given_by_name)
        return made

    def runs_no_code_of_the_program(self) -> bool:
        """Tell whether no code of the program runs in each replay, such as a hook or a callback."""
        calls = (call for call in self.whole_calls() if call.function not in self._accumulating)
        return all(map(runs_no_code_of_the_program, calls))

    def add_accumulation(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Append a call by which something grows that the function does not read; see `accumulation`.

        Args:
            function: what to call.
            args: its arguments; slots among them are filled.
        """
        self._accumulating.add(function)
        self._write_all()
        self._append_effect(function, args)

    def call_update(
        self,
        function: Callable[[], None],
        changes: Iterable[Tensor],
        update: Any,
        args: tuple[Any, ...],
        name: str,
    ) -> None:
        """Do as `call_whole` with a function of nothing; a replay calls a method with captured arrays instead.

        Args:
            function: what to call now.
            changes: the tensors whose arrays it changes.
            update: the method, see `UpdateMethod`.
            args: its arguments, with captured arrays among them.
            name: what it is, for the user.
        """
        given = map_leaves(self._slot_or_value, args)
        self._write_all()
        set_capturing(None)
        try:
            function()
        finally:
            set_capturing(self)
        self._make_late(changes)
        self._append_effect(UpdateMethod(update, name), given)

    def new_arrays_of(self, tensors: Iterable[Tensor | None]) -> list[CapturedArray | None] | None:
        """Return the arrays of tensors, if all are known here without another look after a call made as a whole."""
        found: list[CapturedArray | None] = []
        for t in tensors:
            if t is None:
                found.append(None)
                continue
            known = self._known_or_outer(t)
            if known.array is None and known.is_late:
                return None
            array = self.read_array(t)
            if not isinstance(array, CapturedArray):
                return None
            found.append(array)
        return found

    def can_see(self, tensors: Iterable[Tensor]) -> bool:
        """Tell whether a replay has these tensors; those that it has from the start are guarded to be alike."""
        for t in tensors:
            known = self._known_or_outer(t)
            if known.slot is None:
                return False
            if not known.is_late:
                self.read_array(t)
        return True

    def makes(self, array: CapturedArray) -> bool:
        """Tell whether a replay makes the memory of an array by a call of NumPy's."""
        layout = self.layouts[array.slot.number]
        owner = None if layout is None else layout.owner
        return owner is not None and owner not in self.found and owner not in self.fixed

    def call_foreign(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do as `Capture.call_foreign`, and keep what is found: a trial does not call what may be the user's code."""
        made = super().call_foreign(function, *args, **keywords)
        self.found |= {part.slot.number: part.inner for part in leaves_in(made) if isinstance(part, CapturedArray)}
        return made

    def _slot_or_value(self, part: Any) -> Any:
        if isinstance(part, Tensor):
            return self._slot_of(part)
        return part.slot if isinstance(part, (CapturedArray, Residuals)) else part

    def _make_late(self, changes: Iterable[Tensor] | None) -> None:
        """Have tensors read again that a call may have changed."""
        if changes is None:
            self._has_late = True
            changed = [known for known in self._known.values() if known.slot is not None]
        else:
            changed = [self._known_or_outer(t) for t in changes]
        for known in changed:
            known.is_late = True
            known.array = None
            known.knows_grad = known.knows_grad and changes is not None

    def _wrap_all(self, result: Any, noted: Noted) -> tuple[Any, Any]:
        if isinstance(result, Tensor):
            known = self._known.get(id(result)) or self._enter_replayed(result)
            known.slot = self.add_object()
            return result, known.slot
        if isinstance(result, Residuals):
            result.slot = self.add_object()
            return result, result.slot
        return super()._wrap_all(result, noted)

    # ------------------------------------------------------------ replays

    def whole_calls(self) -> list[Call]:
        """Return the calls of Python code that each replay makes."""
        return [
            call
            for call in self.calls
            if (call.has_effect and call.function is not run_atomically) or is_of_object(call)
        ]

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
        if call.has_effect or is_of_object(call) or (call.made and self.found.keys() >= set(call.made)):
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
            if (
                not (call.has_effect or is_state or is_of_object(call))
                and late.isdisjoint(memory)
                and used.isdisjoint(written)
            ):
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
