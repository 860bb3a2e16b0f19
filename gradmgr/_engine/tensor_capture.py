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

import functools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.atomic import run_atomically
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.capture import Capture, Noted, generators_in
from gradmgr._arrays.captured import CapturedArray, capturing, inner_of, set_capturing
from gradmgr._arrays.captured_calls import Call, CaptureError, Slot, slots_in
from gradmgr._arrays.captured_functions import written_by
from gradmgr._arrays.forwarded_copies import without_copies
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine.cleanup import allow_full_collections, complete, without_full_collections
from gradmgr._engine.tensor import Tensor, wrap

F = TypeVar("F", bound=Callable[..., Any])

_NOTHING: Mapping[str, Any] = MappingProxyType({})

# ---------------------------------------------------------------- what a replay does with tensors


def array_of(t: Tensor) -> Any:
    """Return the array of a tensor."""
    return t._array


def grad_of(t: Tensor) -> Tensor:
    """Return the gradient that a tensor has."""
    return t._grad  # type: ignore[return-value]  # not None: `has_grad` comes before


def has_grad(t: Tensor) -> bool:
    """Tell whether a tensor has a gradient."""
    return getattr(t, "_grad", None) is not None


def layout_of(array: Any) -> tuple[Any, ...]:
    """Return what is the same in every replay of an array that is read."""
    return array.__class__, array.shape, array.dtype, array.strides


def layout_on_gpu(array: Any) -> tuple[Any, ...]:
    """Return the same of an array of a GPU, and which GPU it is."""
    device = array.device.id if is_on_gpu(array) else None
    return (*layout_of(array), device)


# By which a replay reads it, and tests it, without calls.
array_of.attribute = "_array"  # type: ignore[attr-defined]  # mypy knows no attributes of functions
grad_of.attribute = "_grad"  # type: ignore[attr-defined]  # as above
# A dtype is mostly the same object, which takes a third of the time to see.
_SAME_LAYOUT = (
    "{0}.__class__ is {1} and {0}.shape == {2} and {0}.strides == {4} and ({0}.dtype is {3} or {0}.dtype == {3})"
)
layout_of.condition = _SAME_LAYOUT  # type: ignore[attr-defined]  # as above
layout_on_gpu.condition = f"{_SAME_LAYOUT} and {{0}}.device.id == {{5}}"  # type: ignore[attr-defined]  # as above
layout_of.tests_layout = True  # type: ignore[attr-defined]  # as above
_LAYOUTS = (layout_of, layout_on_gpu)
array_of.reads_tensor = grad_of.reads_tensor = has_grad.reads_tensor = True  # type: ignore[attr-defined]  # as above
has_grad.condition = "(getattr({0}, '_grad', None) is None) is not {1}"  # type: ignore[attr-defined]  # as above


def are_distinct(*tensors: Tensor) -> bool:
    """Tell whether no two are the same object."""
    return len(set(map(id, tensors))) == len(tensors)


# ---------------------------------------------------------------- what is known of a tensor


class _Known(weakref.ref[Tensor]):
    """The state of a tensor in a capture.

    Attributes:
        key: the tensor's identity.
        slot: where a replay has the tensor itself; None for one made since the capture began and not yet given out.
        array: its array, captured; None where it must be read, or is not one that is captured, as inside vmap.
        is_changed: whether the array must be written by a replay.
        knows_grad: whether its gradient was read or written.
        is_grad_changed: whether the gradient must be written by a replay.
        is_late: whether a call that is made as a whole may have changed it, so that reading it must come after.
        is_unseen: whether it comes from outside, and its array was not read or written yet.
        is_grad_unseen: likewise of its gradient.
    """

    __slots__ = (
        "array",
        "is_changed",
        "is_grad_changed",
        "is_grad_unseen",
        "is_late",
        "is_unseen",
        "key",
        "knows_grad",
        "slot",
    )

    def __init__(self, t: Tensor, forget: Callable[[Any], None]) -> None:
        super().__init__(t, forget)  # type: ignore[call-arg]  # as weakref.ref takes it
        self.key = id(t)
        self.slot: Slot | None = None
        self.array: CapturedArray | None = None
        self.is_changed = self.knows_grad = self.is_grad_changed = self.is_late = False
        self.is_unseen = self.is_grad_unseen = False


def _forget(capture: weakref.ref[TensorCapture], known: _Known) -> None:
    """Drop what is known of a tensor that died; another may have its identity."""
    alive = capture()
    if alive is not None and alive._known.get(known.key) is known:
        del alive._known[known.key]


class _Method:
    """A method of an object that is not kept alive."""

    __slots__ = ("__name__", "_owner")

    def __init__(self, method: Any) -> None:
        self._owner = weakref.ref(method.__self__)
        self.__name__ = method.__name__

    def __eq__(self, other: object) -> bool:
        owner = self._owner()
        return (
            isinstance(other, _Method)
            and owner is not None
            and owner is other._owner()
            and self.__name__ == other.__name__
        )

    def __hash__(self) -> int:
        return hash(self.__name__)

    def is_of(self, package: str) -> bool:
        """Tell whether the object is of a class of a package."""
        return type(self._owner()).__module__.startswith(package)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        owner = self._owner()
        if owner is None:
            raise CaptureError(f"the object whose method {self.__name__} is called is gone")
        return getattr(owner, self.__name__)(*args, **keywords)


class _Update(_Method):
    """A method that changes the state of an object of the program by arrays, all at once or not at all.

    It is called with the list `begun`, to which it appends together with what it changes; with the machine of the
    replay, or None; and with the arrays, of which it keeps none. It reads and writes no gradients.
    """

    __slots__ = ("_method", "_takes_products")

    begins_effects = keeps_nothing = True

    def __init__(self, method: Any, name: str, takes_products: Callable[[Any], Sequence[int]]) -> None:
        super().__init__(method)
        self._method = method.__func__
        self._takes_products = takes_products
        self.__name__ = name  # as a user reads it

    def takes_products(self) -> Sequence[int]:
        """Return the numbers of those of its arrays that may be given as a LateProduct."""
        owner = self._owner()
        return () if owner is None else self._takes_products(owner)

    def __call__(self, begun: list[bool], machine: Any, *args: Any) -> Any:
        owner = self._owner()
        if owner is None:
            raise CaptureError(f"the object of a {self.__name__} is gone")
        return self._method(owner, begun, machine, *args)


# ---------------------------------------------------------------- the capture


_READS = (array_of, grad_of, has_grad)


def _runs_no_code_of_the_program(call: Call) -> bool:
    """Tell whether a call that is made as a whole is one of gradmgr.optim that is given no function."""
    function = call.function
    module = getattr(function, "__module__", None) or ""
    is_ours = function.is_of("gradmgr.optim") if isinstance(function, _Method) else module.startswith("gradmgr.optim")
    return is_ours and not any(map(callable, leaves_in((call.args, call.keywords))))


class ObjectStandIn:
    """The base of what replaces an object whose own functions are called in each replay: see `captured_object`.

    Attributes:
        real: that object.
        slot: where a replay has it, or what holds it.
    """

    __slots__ = ()

    real: Any
    slot: Any


def _is_of_object(call: Call) -> bool:
    """Tell whether a call is that of an object's own function."""
    return getattr(call.function, "is_of_object", False)


class Residuals:
    """What a call that is made as a whole leaves for a later one; no other code reads it.

    Attributes:
        value: what it leaves.
        slot: where a replay has it; None until the call is captured.
    """

    __slots__ = ("slot", "value")

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.slot: Slot | None = None


class Condition:
    """What a function has seen of an object's state, which a replay must find the same.

    Args:
        owner: the object.
        read: returns its state; where there are `unread` names, it takes them as `without`.
        what: the state, for the user.
        unread: the names of attributes that the function does not read.
    """

    __slots__ = ("_expected", "_identities", "_look", "_owner", "_read", "what")

    def __init__(self, owner: Any, read: Callable[..., Any], what: str, unread: Collection[str] = ()) -> None:
        self._owner = weakref.ref(owner)
        self._look = getattr(read, "look", None)  # a cheaper test: what is the same for it is so for `read`
        if unread:
            read, self._look = partial(read, without=unread), self._look and partial(self._look, without=unread)
        self._read = read
        self._expected = read(owner)
        self._identities = None if self._look is None else self._look(owner)
        self.what = what

    def refresh(self) -> None:
        """Take the state as it is for what it was: after a capture, when no stand-ins are in it any more."""
        owner = self._owner()
        if owner is not None:
            self._expected = self._read(owner)
            self._identities = None if self._look is None else self._look(owner)

    def holds(self) -> bool:
        """Tell whether the state is what it was; of an object that is gone nothing is left to see."""
        owner = self._owner()
        if owner is None or (self._look is not None and self._look(owner) == self._identities):
            return True
        return bool(self._read(owner) == self._expected)


class Trial(NamedTuple):
    """Calls to make again, from these inputs, and what slots must hold then."""

    capture: Capture
    inputs: list[Any]
    expected: list[tuple[Slot, Any]]


class StandIn:
    """Stands for a Tensor in a rehearsal: it holds what the captured call found."""

    __slots__ = ("_array", "_grad")

    _array: Any
    _grad: Any


class Rehearsal(NamedTuple):
    """What a replay is given to run up to its first effect, and the arrays that slots must hold then."""

    inputs: list[Any]
    expected: list[tuple[Slot, Any]]


class TensorCapture(Capture):
    """A capture of a function of Tensors.

    Attributes:
        reads: the calls that read outer tensors as they were when the function began.
        sources: of each input, what a replay takes it from: the number of an argument, or a weak reference to a tensor
            or to an array that the function reads by name.
        conditions: by the identity of an object, what the function has seen of it that is no Tensor.
        cleanups: what to call with the error where a replay fails amid its effects.
        changes_state: whether the function changes what a condition has seen.
        unread: the names of attributes that the function does not read, by the identity of their object.
    """

    __slots__ = (
        "__weakref__",
        "_accumulating",
        "_forget",
        "_found",
        "_has_late",
        "_known",
        "_leaves",
        "_left",
        "_replayed",
        "changes_state",
        "cleanups",
        "conditions",
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
        self.unread: Mapping[int, Collection[str]] = {}
        self._accumulating: set[Any] = set()  # functions by which something grows
        self._forget = partial(_forget, weakref.ref(self))
        self._known: dict[int, _Known] = {}  # by the identity of a tensor
        self._replayed: list[_Known] = []  # those that have a slot
        self._has_late = False  # whether a call that may change any tensor was made as a whole
        self._leaves: list[weakref.ref[Tensor]] = []  # of managers that have begun to record before
        self._found: dict[int, Any] = {}  # what arrays that come from outside were, by slot
        self._left: dict[int, Any] = {}  # what arrays that leave were, likewise

    # ------------------------------------------------------------ arguments and results

    def add_argument(self, number: int, value: Any) -> Any:
        """Return what the captured function gets for an argument, a Tensor or an array, which was not given before."""
        self.sources.append(number)
        if not isinstance(value, Tensor):
            made = self.add_input(value)
            self._found[made.slot.number] = value
            return made
        self._enter_input(value)
        return value

    def add_named(self, array: Any) -> CapturedArray:
        """Return what replaces an array that the function reads by name: the same object in each replay."""
        self.sources.append(weakref.ref(array))
        made = self.add_input(array)
        self._found[made.slot.number] = array
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
        kept = {slot.number for slot in slots_in(list(results))}.union(self._found, self._left)
        self.calls = self.reads + without_copies(self.calls, self.layouts, kept)
        self._move_guards()
        self.open = False
        self._known.clear()
        self._replayed.clear()

    def check_conditions(self) -> None:
        """Note as an obstacle what the function has changed of what it has seen; stand-ins are still in place."""
        for condition in self.conditions.values():
            if not condition.holds():
                self.obstacles.append(f"the function changes {condition.what}")
                self.changes_state = True

    def clean_up_by(self, method: Callable[[BaseException], None]) -> None:
        """Have a method called with the error where a replay fails amid its effects."""
        self.cleanups.append(_Method(method))

    def has_changed(self) -> bool:
        """Tell whether the function has changed anything yet."""
        return self.has_effects() or any(map(written_by, self.calls)) or bool(generators_in(self.calls))

    def has_effects(self) -> bool:
        """Tell whether the function has changed what cannot be taken back."""
        written = any(known.is_changed or known.is_grad_changed for known in self._replayed)
        return written or any(call.has_effect for call in self.calls)

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

    def _enter(self, t: Tensor) -> _Known:
        known = self._known[id(t)] = _Known(t, self._forget)
        known.is_late = self._has_late
        return known

    def _enter_replayed(self, t: Tensor) -> _Known:
        """Enter a tensor that a replay has."""
        known = self._enter(t)
        known.slot = self.add_object()
        self._replayed.append(known)
        return known

    def _enter_input(self, t: Tensor) -> _Known:
        known = self._enter_replayed(t)
        self.inputs.append(known.slot)  # type: ignore[arg-type]  # it has one now
        known.is_unseen = known.is_grad_unseen = True
        return known

    def _known_or_outer(self, t: Tensor) -> _Known:
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
        array = _array_slot.__get__(t)
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

    def _read_again(self, known: _Known, array: Any) -> CapturedArray:
        """Capture an array as what a replay finds in the tensor."""
        captured = self._append_read(self.calls if known.is_late else self.reads, known, array)
        if known.is_late and known.is_unseen:
            self._append_read(self.reads, known, array)  # before the first effect, too: a replay can be given up then
        known.is_unseen = False
        return captured

    def _append_read(self, calls: list[Call], known: _Known, array: Any) -> CapturedArray:
        captured = self.add_elsewhere(array)
        calls.append(Call(array_of, (known.slot,), {}, captured.slot, None, self.place()))
        self._append_layouts(calls, [captured])
        return captured

    def add_elsewhere(self, array: Any) -> CapturedArray:
        """Capture an array that a replay finds elsewhere, and which a trial is given."""
        captured = self.add_found(array)
        self._found[captured.slot.number] = array
        return captured

    def _append_layouts(self, calls: list[Call], arrays: Iterable[CapturedArray]) -> None:
        for array in arrays:
            read = layout_on_gpu if is_on_gpu(array.inner) else layout_of
            calls.append(Call(read, (array.slot,), {}, None, read(array.inner), self.place()))

    def write_array(self, t: Tensor, value: Any) -> None:
        """Give a tensor another array, or its first."""
        known = self._known.get(id(t))
        if known is None:
            known = self._known_or_outer(t) if _get(_array_slot, t) is not None else self._enter(t)
        if isinstance(value, CapturedArray):
            known.array = value
            value = value.inner
        else:
            known.array = None if value is None or isinstance(value, Batched) else self.add_constant(value)
        known.is_changed, known.is_unseen = True, False
        _array_slot.__set__(t, value)

    def read_grad(self, t: Tensor) -> Any:
        """Return the gradient of a tensor, of which a replay must find whether it is there."""
        known = self._known_or_outer(t)
        if known.slot is not None and not known.knows_grad:
            self._append_grad_read(known, _get(_grad_slot, t))
        return _grad_slot.__get__(t)

    def _append_grad_read(self, known: _Known, grad: Tensor | None) -> None:
        calls = self.calls if known.is_late else self.reads
        place = self.place()
        guard = Call(has_grad, (known.slot,), {}, None, grad is not None, place)
        calls.append(guard)
        if known.is_late and known.is_grad_unseen:
            self.reads.append(guard)  # before the first effect, too: a replay can be given up then
        if grad is not None and id(grad) not in self._known:
            calls.append(Call(grad_of, (known.slot,), {}, self._enter_replayed(grad).slot, None, place))
        known.knows_grad, known.is_grad_unseen = True, False

    def write_grad(self, t: Tensor, value: Tensor | None) -> None:
        """Give a tensor another gradient."""
        known = self._known_or_outer(t)
        known.knows_grad = known.is_grad_changed = True
        known.is_grad_unseen = False
        _grad_slot.__set__(t, value)

    def note_leaves(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors that get gradients."""
        self._leaves += map(weakref.ref, tensors)

    def _read_leaves(self) -> None:
        """Read arrays and gradients of leaves before a call that may change them, as only then they can be guarded."""
        for leaf in self._leaves:
            t = leaf()
            if t is None or (known := self._known_or_outer(t)).slot is None or known.is_late:
                continue
            self.read_array(t)
            if not known.knows_grad:
                self._append_grad_read(known, _get(_grad_slot, t))
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
                grad = _get(_grad_slot, t)
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
            if call.has_effect and call.function is not run_atomically and call.function.__class__ is not _Update:
                return number
        return len(self.calls)

    def _leaving(self, array: CapturedArray) -> CapturedArray:
        """Return an array that others get; a copy, as they may write to it, where each replay has the same object."""
        layout = self.layouts[array.slot.number]
        if layout is not None and layout.owner in self.fixed and not layout.is_scalar:
            array = array.copy()
        self._left[array.slot.number] = array.inner
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
        function = _Method(function) if isinstance(function, MethodType) else function
        self._append_effect(function, given, results, given_by_name)
        return made

    def runs_no_code_of_the_program(self) -> bool:
        """Tell whether no code of the program runs in each replay, such as a hook or a callback."""
        calls = (call for call in self.whole_calls() if call.function not in self._accumulating)
        return all(map(_runs_no_code_of_the_program, calls))

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
        takes_products: Callable[[Any], Sequence[int]],
    ) -> None:
        """Do as `call_whole` with a function of nothing; a replay calls a method with captured arrays instead.

        Args:
            function: what to call now.
            changes: the tensors whose arrays it changes.
            update: the method, see `_Update`.
            args: its arguments, with captured arrays among them.
            name: what it is, for the user.
            takes_products: returns, given the method's object, the numbers of the arrays in its first argument that may
                be given as a LateProduct.
        """
        given = map_leaves(self._slot_or_value, args)
        self._write_all()
        set_capturing(None)
        try:
            function()
        finally:
            set_capturing(self)
        self._make_late(changes)
        self._append_effect(_Update(update, name, takes_products), given)

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
        return owner is not None and owner not in self._found and owner not in self.fixed

    def call_foreign(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do as `Capture.call_foreign`, and keep what is found: a trial does not call what may be the user's code."""
        made = super().call_foreign(function, *args, **keywords)
        self._found |= {part.slot.number: part.inner for part in leaves_in(made) if isinstance(part, CapturedArray)}
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
            if (call.has_effect and call.function is not run_atomically) or _is_of_object(call)
        ]

    def writes_over_inputs(self) -> bool:
        """Tell whether calls without effects write into arrays that come from outside, so that they are gone."""
        return any(
            self._memory_of(slot.number) in self._found
            for call in self.calls
            if (written := written_by(call)) and self._is_on_trial(call)
            for slot in written
        )

    def rehearsal(self, results: Iterable[Slot]) -> Rehearsal | None:
        """Return what shows whether a replay with these results is right; None where that takes more.

        It does where later calls compute further arrays, and where what may be the user's code is called before.
        """
        first = next((k for k, call in enumerate(self.calls) if call.has_effect), len(self.calls))
        before, after = self.calls[:first], self.calls[first:]
        if any(call.function is not layout_of for call in after if self._is_on_trial(call)):
            return None
        stand_ins = {number: StandIn() for number, layout in enumerate(self.layouts) if layout is None}
        left = dict(self._left)
        for call in before:
            if call.function is wrap:
                left[call.results.number] = self._left[call.args[0].number]
            elif call.function in _READS:
                self._find(call, stand_ins)
            elif _is_of_object(call) or not self._found.keys().isdisjoint(call.made):
                return None
        made = {number for call in before for number in call.made}
        read = {number for call in after for number in call.given}.union([slot.number for slot in results])
        expected = [(Slot(number), left[number]) for number in sorted(made & read & left.keys())]
        return Rehearsal([stand_ins.get(slot.number, self._found.get(slot.number)) for slot in self.inputs], expected)

    def _find(self, call: Call, stand_ins: dict[int, StandIn]) -> None:
        """Let the stand-in for a tensor hold what a call has read of it."""
        stand_in = stand_ins[call.args[0].number]
        if call.function is array_of:
            stand_in._array = self._found[call.results.number]
        elif call.function is grad_of:
            stand_in._grad = stand_ins[call.results.number]
        else:
            stand_in._grad = StandIn() if call.expected else None  # which `grad_of` replaces

    def trial(self) -> Trial | None:
        """Return what a replay of the calls without effects takes and must give; None where they need more."""
        made = Capture()
        made.layouts = self.layouts
        made.calls = [call for call in self.calls if self._is_on_trial(call)]
        made.inputs = [Slot(number) for number in self._found]
        known = set(self._found).union(*[call.made for call in made.calls])
        if not all(known.issuperset(call.given) for call in made.calls):
            return None
        expected = [(Slot(number), array) for number, array in self._left.items() if number in known]
        return Trial(made, list(self._found.values()), expected)

    def forget_values(self) -> None:
        """Drop the arrays that a trial needs."""
        self._found, self._left = {}, {}

    def _is_on_trial(self, call: Call) -> bool:
        if call.has_effect or _is_of_object(call) or (call.made and self._found.keys() >= set(call.made)):
            return False
        return all(self.layouts[number] is not None for number in (*call.given, *call.made))

    # ------------------------------------------------------------ the order of a replay

    def _move_guards(self) -> None:
        """Put guards, and what they depend on, before the first effect: until then a replay can be given up."""
        first = next((k for k, call in enumerate(self.calls) if call.has_effect), len(self.calls))
        rest = self.calls[first:]
        if all(call.expected is None for call in rest):
            return
        late: set[int] = set()  # slots of what depends on an effect, and of memory that is written to late
        used: set[int] = set()  # slots in whose memory lies what stays after the effects
        early, kept = [], []
        for call in rest:
            slots = set(call.given)
            memory = slots.union(map(self._memory_of, slots))
            written = set(map(self._memory_of, _numbers(written_by(call))))
            is_state = call.function in _READS or (call.expected is not None and call.results is not None and not slots)
            if (
                not (call.has_effect or is_state or _is_of_object(call))
                and late.isdisjoint(memory)
                and used.isdisjoint(written)
            ):
                early.append(call)
                continue
            kept.append(call)
            late |= written.union(call.made)
            used |= memory
            if call.expected is not None and not is_state and call.function not in _LAYOUTS:
                self.obstacles.append(f"what is decided at {call.line} depends on what an earlier call has changed")
        self.calls = [*self.calls[:first], *early, *kept]

    def _memory_of(self, number: int) -> int:
        """Return the number of the slot in whose memory an array lies."""
        layout = self.layouts[number]
        return number if layout is None or layout.owner is None else int(layout.owner)


def _numbers(slots: Iterable[Slot]) -> list[int]:
    return [slot.number for slot in slots]


# ---------------------------------------------------------------- the slots of Tensor


class _CapturedSlot:
    """Stands for a slot of Tensor while a function is captured in some context."""

    def __init__(self, slot: Any, read: Callable[..., Any], write: Callable[..., None]) -> None:
        self._slot = slot
        self._read = read
        self._write = write

    def __get__(self, t: Any, cls: Any = None) -> Any:
        if t is None:
            return self
        capture = capturing()
        return self._slot.__get__(t) if capture is None else self._read(capture, t)

    def __set__(self, t: Any, value: Any) -> None:
        capture = capturing()
        if capture is None:
            self._slot.__set__(t, value)
        else:
            self._write(capture, t, value)


_array_slot: Any = Tensor.__dict__["_array"]
_grad_slot: Any = Tensor.__dict__["_grad"]
# The thread in which a function is captured, while the slots are replaced. One call takes it, and tells who has it.
_turn: dict[str, int] = {}


def _get(slot: Any, t: Tensor) -> Any:
    """Return what stands in a slot, None where nothing was ever written to it."""
    try:
        return slot.__get__(t)
    except AttributeError:
        return None


def run_captured(capture: TensorCapture, function: Callable[..., None], *args: Any) -> bool:
    """Call a function and capture what it does; return False, without calling it, while another thread does so.

    It does not wait: that thread may wait for this one.
    """
    try:
        if _turn.setdefault("thread", threading.get_ident()) != threading.get_ident():
            return False
        try:
            _replace_slots(capture)
            without_full_collections(function, *args)
        finally:
            _end_turn()
    except BaseException:
        complete(_end_turn)  # again: an exception may have struck in `finally`
        raise
    return True


def _replace_slots(capture: TensorCapture) -> None:
    slots: Any = Tensor
    slots._array = _CapturedSlot(_array_slot, TensorCapture.read_array, TensorCapture.write_array)
    slots._grad = _CapturedSlot(_grad_slot, TensorCapture.read_grad, TensorCapture.write_grad)
    set_capturing(capture)


def _end_turn() -> None:
    """Put the slots back, and let other threads capture; called twice it does nothing more."""
    if _turn.get("thread") == threading.get_ident():
        set_capturing(None)
        slots: Any = Tensor
        slots._array = _array_slot
        slots._grad = _grad_slot
        _turn.pop("thread", None)


def _forget_turn() -> None:
    """End, in a child process, a capture of a thread that it does not have."""
    if _turn.get("thread", threading.get_ident()) != threading.get_ident():
        _turn["thread"] = threading.get_ident()
        _end_turn()
        allow_full_collections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turn)


def see(owner: Any, read: Callable[[Any], Any], what: str) -> None:
    """Note, while a function is captured, that it depends on `read(owner)`."""
    capture = capturing()
    if capture is not None:
        capture.see(owner, read, what)


def refuse_in_replay(what: str) -> None:
    """Note, while a function is captured, that its calls cannot be made again because of what it reads now."""
    capture = capturing()
    if capture is not None:
        capture.add_obstacle(what)


def call_whole(function: Callable[..., Any], *args: Any, changes: Iterable[Tensor] | None = None) -> Any:
    """Call a function whose Python code must run each time, also when the program that calls it is replayed.

    `changes` names the tensors whose arrays it may change; None for all.
    """
    capture = capturing()
    return function(*args) if capture is None else capture.call_whole(function, args, changes)


def runs_each_time(method: F) -> F:
    """Decorate a method whose Python code must run each time; it may change any tensor."""
    return _decorated(method, None)  # type: ignore[no-any-return]  # the same signature


def runs_each_time_without_tensors(method: F) -> F:
    """Decorate a method whose Python code must run each time; it changes no tensor."""
    return _decorated(method, ())  # type: ignore[no-any-return]  # as above


def _decorated(method: Any, changes: Iterable[Tensor] | None) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        capture = capturing()
        if capture is None:
            return method(self, *args, **keywords)
        return capture.call_whole(MethodType(call, self), args, changes, keywords)

    return call
