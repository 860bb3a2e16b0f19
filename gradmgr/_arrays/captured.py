"""CapturedArray: an array that writes down each NumPy call made with it, so that the calls can be made again.

It is one more array library, as `Batched` is: NumPy's functions dispatch to it by protocol, so kernels, rules, backward
passes and optimisers run on it unchanged, and an op knows nothing of it. Each call is carried out at once on the array
inside, so what is captured computes what it always does; and it is appended to a `Capture`, with what it was given.

The calls of a capture are a straight line: `replay` makes them on other arrays of the same shapes and dtypes. So no
value may leave an array unseen and come back as a number. The truth of an array becomes a guard, which must find the
same value in a replay; so do numbers on which the calls of a kernel depend (`value_of`), and those that LAPACK returns
(`call_foreign`). Everything else that takes values out of an array (`float`, `item`, `numpy.asarray`, a function that
is not NumPy's) is an obstacle, and so is a write into an array that is not captured: it is carried out, but a capture
with obstacles cannot be replayed. Arrays that are not captured are constants, kept by reference. Numbers and arrays
that come from elsewhere, such as a step's count or random numbers, show when the same function is captured twice:
`difference` names the first call that they change.
"""

from __future__ import annotations

import datetime as dt
import operator
import sys
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import getrefcount
from time import perf_counter
from types import BuiltinMethodType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.refcounts import BASE_GIVEN

Array = Any
# Code, and the instruction in it: the number of the line takes longer to find, and few are ever asked for.
Place = tuple[CodeType, int]

_ROOT = str(Path(__file__).resolve().parents[1])
_CONVERSIONS = f"{_ROOT}/_engine/tensor.py"  # where a program asks for a number

_VALUES_TAKEN = (
    "a function that is not NumPy's, or numpy.asarray(), takes the values of an array; return it instead, compute with "
    "the Tensor, or write gradmgr.numpy.asarray(),"
)

# Classes of arguments that are no arrays and hold none.
_PLAIN = frozenset((int, float, complex, bool, str, type(None), type, type(Ellipsis), np.dtype))

# The capture of the function that is being captured in this context; None elsewhere.
_capturing: ContextVar[Any] = ContextVar("gradmgr_capturing", default=None)
capturing = _capturing.get
set_capturing = _capturing.set


class CaptureError(RuntimeError):
    """A capture cannot be replayed."""


class GuardError(CaptureError):
    """A replay met another value than the one on which its calls depend."""


# Not frozen, as those below: what a frozen class sets takes four times as long, and each call makes one of each.
@dataclass(slots=True, unsafe_hash=True)
class Slot:
    """Represents an array in what a call was given: an input of the capture, or the result of an earlier call."""

    number: int


@dataclass(slots=True)
class Layout:
    """What is known of the array in a slot: facts that are the same in every replay.

    Attributes:
        owner: the number of the slot in whose memory it lies, its own where it has memory of its own; None where the
            memory is that of no slot, as for NumPy scalars and views of arrays that are not captured.
        offset: where its lowest byte stands, counted from the lowest of its owner.
        is_scalar: whether it is a NumPy scalar, which is no array.
        device: the number of the GPU; None in the memory of the host.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    owner: int | None
    offset: int = 0
    is_scalar: bool = False
    device: int | None = None


class _Memory:
    """Which slots' arrays lie where, so that views are known whatever made them."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[weakref.ref[Any], int]] = {}  # arrays with memory of their own, by identity
        self._starts: list[int] = []  # of the memory of inputs that are views of other arrays, sorted
        self._ends: dict[int, tuple[int, int]] = {}  # by start: the end, and the input's slot
        self._regions = gpu.Regions()

    def owner_of(self, array: Any, number: int, *, is_input: bool) -> tuple[int | None, int]:
        """Return the slot in whose memory an array lies, and where; enter one with memory of its own, or an input."""
        if not isinstance(array, np.ndarray):
            is_scalar = isinstance(array, np.generic)
            return (None, 0) if is_scalar else self._regions.owner_of(array, number, is_input=is_input)
        if not array.size:
            return None, 0
        if array.base is None:
            self._owners[id(array)] = weakref.ref(array), number
            return number, 0
        start, end = _bounds_of(array)
        if is_input:
            self._enter_input(start, end, number)
            return number, 0
        at = bisect_right(self._starts, start)
        known = self._ends[self._starts[at - 1]] if at else None
        if known is not None and known[0] >= end:
            return known[1], start - self._starts[at - 1]
        return self._found(array, number, start, end)

    def _enter_input(self, start: int, end: int, number: int) -> None:
        at = bisect_right(self._starts, start)
        while at and self._ends[self._starts[at - 1]][0] > start:  # was freed since
            at -= 1
            del self._ends[self._starts.pop(at)]
        while at < len(self._starts) and self._starts[at] < end:
            del self._ends[self._starts.pop(at)]
        self._starts.insert(at, start)
        self._ends[start] = end, number

    def _found(self, array: Any, number: int, start: int, end: int) -> tuple[int | None, int]:
        """Return in whose memory a view lies, and where.

        That of a whole array which no slot held, and to which nothing else refers, is its own: of a copy that `reshape`
        has made.
        """
        candidates = self._candidates(array)
        for owner, slot in candidates:
            one = owner()
            low, high = (0, 0) if one is None else _bounds_of(one)
            if low <= start and end <= high:
                return slot, start - low
        if not candidates and _holds_alone(array) and array.base.nbytes == end - start:
            self._owners[id(array.base)] = weakref.ref(array.base), number
            return number, 0
        return None, 0

    def _candidates(self, view: Any) -> list[tuple[weakref.ref[Any], int]]:
        """Return the arrays in whose memory a view may lie, and their slots."""
        base = view.base
        while (outer := getattr(base, "base", None)) is not None:
            base = outer
        if isinstance(base, np.ndarray):
            known = self._owners.get(id(base))
            return [known] if known is not None and known[0]() is base else []
        return list(self._owners.values())  # a memoryview, say, does not tell whose memory it shows


def _holds_alone(view: Any) -> bool:
    """Tell whether nothing but a view refers to the array that owns its memory."""
    base = view.base
    return getrefcount(base) == BASE_GIVEN and base.__class__ is np.ndarray and base.flags.owndata


def _bounds_of(array: Any) -> tuple[int, int]:
    """Return the address of the lowest byte, and of the one after the highest."""
    if array.flags.forc:  # without gaps; a third of the time
        start = array.__array_interface__["data"][0]
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)


class Call:
    """One call; nothing of it changes.

    Attributes:
        function: what was called.
        args: its positional arguments, with a Slot for each captured array, within lists, tuples and slices too.
        keywords: likewise.
        results: the Slot of the result, a tuple of them for several; None for what is no array.
        expected: the facts of the result, where they depend on values and a replay must find the same; else None.
        has_effect: whether it changes what others see, so that it cannot be taken back.
        given: the numbers of the slots among its arguments.
        made: the numbers of the slots of its result.
        seconds: how long it took when it was captured.
    """

    __slots__ = (
        *("_place", "args", "expected", "function", "given", "has_effect", "keywords", "made", "results", "seconds"),
    )

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        results: Any,
        expected: Any,
        place: Place,
        *,
        has_effect: bool = False,
        given: tuple[int, ...] | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords
        self.results = results
        self.expected = expected
        self.has_effect = has_effect
        self._place = place
        self.seconds = 0.0
        self.given = tuple([slot.number for slot in slots_in((args, keywords))]) if given is None else given
        if results.__class__ is Slot:
            self.made: tuple[int, ...] = (results.number,)
        else:
            self.made = () if results is None else tuple([slot.number for slot in slots_in(results)])

    def but(self, *, args: tuple[Any, ...] | None = None, result: tuple[int, int] | None = None) -> Call:
        """Return the same call with other arguments, or with a result in another slot: its number, and the new one."""
        results = self.results
        if result is not None:
            results = map_leaves(lambda part: Slot(result[1]) if part == Slot(result[0]) else part, results)
        facts = self.function, self.args if args is None else args, self.keywords, results, self.expected, self._place
        return Call(*facts, has_effect=self.has_effect, given=self.given if args is None else None)

    @property
    def line(self) -> str:
        """Where the program made it, as "file:line"."""
        return line_at(self._place)


class Noted:
    """Takes the arguments of a call apart.

    Attributes:
        captured: the captured arrays.
        constants: the other arrays.
    """

    __slots__ = ("captured", "constants")

    def __init__(self) -> None:
        self.captured: list[CapturedArray] = []
        self.constants: list[Array] = []

    def args(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return arguments with the arrays inside, and with slots in their place."""
        inside, slots = [], []
        for value in values:
            kind = value.__class__
            if kind is CapturedArray:
                self.captured.append(value)
                inside.append(value.inner)
                slots.append(value.slot)
            elif kind in _PLAIN:
                inside.append(value)
                slots.append(value)
            else:
                inside.append(map_leaves(_inside, value))
                slots.append(map_leaves(self._slot, value))
        return tuple(inside), tuple(slots)

    def _slot(self, value: Any) -> Any:
        """Return what represents a value among the arguments of a call."""
        if value.__class__ is CapturedArray:
            self.captured.append(value)
            return value.slot
        if isinstance(value, np.ndarray) or (value.__class__ not in _PLAIN and gpu.is_on_gpu(value)):
            self.constants.append(value)
        return _real_generator(value)

    def slots(self) -> tuple[int, ...]:
        """Return the numbers of the slots of the captured arrays."""
        return tuple([array.slot.number for array in self.captured])

    def found(self, array: Array) -> CapturedArray | None:
        """Return the captured array with this one inside."""
        for one in self.captured:
            if one.inner is array:
                return one
        return None


class Capture:
    """The calls made with captured arrays, in order.

    Attributes:
        calls: the calls.
        inputs: the slots of what was given by `add_input` and `add_object`, in that order.
        layouts: of each slot, by number; None for those that hold no array.
        fixed: the numbers of slots that hold the same array in each replay.
        named: the numbers of slots of arrays that the function reads by name, and of what is computed of these alone.
        given: those of the constants that the program itself gave to a function, and to which call.
        open: whether calls are still captured; later ones are only made.
        may_decide: whether a kernel of ours may add guards: not after an effect, after which a replay cannot be given
            up, and not where a replay has met another value, as such kernels decide by numbers that vary.
        fuses: whether oneDNN and the machine compute products in replays, so that their bits are not those of eager
            calls: then NumPy's are captured, in place of those of `large_products`.
        constants: the arrays given to calls that are not captured, each with a checksum of its values then, and by
            which call.
        obstacles: why the calls cannot be made again, each with its line; empty where they can.
    """

    __slots__ = (
        "_memory",
        "_ours",
        "calls",
        "constants",
        "fixed",
        "fuses",
        "given",
        "inputs",
        "layouts",
        "may_decide",
        "named",
        "obstacles",
        "open",
    )

    def __init__(self, *, may_decide: bool = True, fuses: bool = False) -> None:
        self.may_decide = may_decide
        self.fuses = fuses
        self.named: set[int] = set()
        self.calls: list[Call] = []
        self.inputs: list[Slot] = []
        self.layouts: list[Any] = []  # Layouts, and None
        self.fixed: set[int] = set()
        self.given: list[tuple[Array, Call]] = []
        self.open = True
        self.constants: list[tuple[Array, int, Call]] = []
        self.obstacles: list[str] = []
        self._memory = _Memory()
        self._ours: set[str] = set()  # files of gradmgr's

    def is_on_gpu(self) -> bool:
        """Tell whether an array of a GPU was captured."""
        return any(layout is not None and layout.device is not None for layout in self.layouts)

    def add_input(self, array: Array) -> CapturedArray:
        """Capture an array as an input, which `replay` takes another one for."""
        made = self._wrap(array, is_input=True)
        self.inputs.append(made.slot)
        return made

    def add_object(self) -> Slot:
        """Return a new slot for an object that is no array; not yet an input, nor the result of a call."""
        self.layouts.append(None)
        return Slot(len(self.layouts) - 1)

    def add_constant(self, array: Array) -> CapturedArray:
        """Capture an array that is the same in each replay."""
        made = self._wrap(array, is_input=True)
        self.fixed.add(made.slot.number)
        noted = Noted()
        _, args = noted.args((array,))
        self._append(_itself, args, {}, made.slot, None, noted)
        return made

    def add_result(self, array: Array) -> CapturedArray:
        """Capture an array as the result of a call that is still to be appended."""
        return self._wrap(array)

    def add_found(self, array: Array) -> CapturedArray:
        """Do as `add_result` with an array that a replay finds elsewhere: where it lies is known, if of no slot's."""
        made = self._wrap(array)
        if self.layouts[made.slot.number].owner is not None:
            return made
        self.layouts.pop()
        return self._wrap(array, is_input=True)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call with the arrays inside, append it, and return its result with arrays captured."""
        is_steady = _is_steady(function)
        if keywords or not is_steady:
            for target in _targets(function, args, keywords):
                if isinstance(target, np.ndarray) or gpu.is_on_gpu(target):
                    self.add_obstacle(f"{name_of(function)} writes into an array that is not captured,")
        return self._call(function, args, keywords, is_steady, False)

    def call_foreign(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do as `call` with a function that is not NumPy's; the numbers in its result are guarded."""
        return self._call(function, args, keywords, _is_steady(function), True)

    def _call(
        self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], is_steady: bool, guarded: bool
    ) -> Any:
        noted = Noted()
        if not is_steady:
            function = _real_method(function)
        plain, with_slots = noted.args(args)
        if keywords:
            named, named_slots = noted.args(keywords.values())
            keywords = dict(zip(keywords, named_slots, strict=True))
            start = perf_counter()
            result = function(*plain, **dict(zip(keywords, named, strict=True)))
        else:
            start = perf_counter()
            result = function(*plain)
        seconds = perf_counter() - start
        if not (self.open and self.is_current()):
            return result
        if result.__class__ is np.ndarray:
            found = noted.found(result)
            made = self._wrap(result) if found is None else found
            results = made.slot
        else:
            made, results = self._wrap_all(result, noted)
            guarded = guarded or _holds_number(result)
        guarded = guarded or (not is_steady and _facts_depend_on_values(function, plain))
        expected = facts_of(result) if guarded else None
        self._append(function, with_slots, keywords, results, expected, noted).seconds = seconds
        return made

    def call_operator(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Do as `call` with a function of `_STEADY`: in one frame, as most calls are those of operators."""
        inside, slots, given = [], [], []
        for value in args:
            kind = value.__class__
            if kind is CapturedArray:
                slot = value.slot
                inside.append(value.inner)
                slots.append(slot)
                given.append(slot.number)
            elif kind in _PLAIN:
                inside.append(value)
                slots.append(value)
            else:
                return self._call(function, args, {}, True, False)
        start = perf_counter()
        result = function(*inside)
        seconds = perf_counter() - start
        if not (self.open and self.is_current()):
            return result
        is_new = result is not inside[0] and result is not inside[-1]
        if result.__class__ is not np.ndarray or result.base is not None or not is_new:
            return self._noted(function, args, slots, result, seconds)
        made = self._wrap(result)
        call = Call(function, tuple(slots), {}, made.slot, None, self.place(3), given=tuple(given))
        call.seconds = seconds
        self._add(call)
        return made

    def _noted(self, function: Any, args: tuple[Any, ...], slots: Sequence[Any], result: Any, seconds: float) -> Any:
        """Append a call of an operator whose result is no new array."""
        noted = Noted()
        noted.args(args)
        made, results = self._wrap_all(result, noted)
        expected = facts_of(result) if _holds_number(result) else None
        self._append(function, tuple(slots), {}, results, expected, noted).seconds = seconds
        return made

    def is_current(self) -> bool:
        """Tell whether calls are those of the function that is captured, in the context in which it is."""
        return True

    def guard(self, read: Callable[[Array], Any], array: CapturedArray) -> Any:
        """Return what a function reads in an array, such as its truth, and append that a replay must find the same."""
        found = read(array.inner)
        if self.open and self.is_current():
            self.calls.append(Call(read, (array.slot,), {}, None, found, self.place(), given=(array.slot.number,)))
        return found

    def add_obstacle(self, what: str) -> None:
        """Note that the calls cannot be made again, because of what stands at the program's present line."""
        if self.is_current():
            self.obstacles.append(f"{what} at {line_at(self.place())}")

    def check_obstacles(self) -> None:
        """Raise CaptureError if the calls cannot be made again; to be called when all of them are captured."""
        found: dict[int, int] = {}  # checksums by the identity of an array, which may be given to many calls
        for obstacle in self.obstacles:
            raise CaptureError(f"the calls cannot be made again: {obstacle}")
        for array, checksum, call in self.constants:
            if id(array) not in found:
                found[id(array)] = checksum_of(array)
            if found[id(array)] != checksum:
                raise CaptureError(
                    f"the calls cannot be made again: the array given to {name_of(call.function)} at {call.line} "
                    "was written to since, by what is not captured"
                )

    def replay(self, *inputs: Array) -> list[Any]:
        """Make the calls again, on these arrays in place of the inputs.

        Returns:
            The values of all slots, by number.

        Raises:
            CaptureError: there are obstacles, or a guard has another value.
        """
        self.check_obstacles()
        values: list[Any] = [None] * len(self.layouts)
        for slot, array in zip(self.inputs, inputs, strict=True):
            values[slot.number] = array
        for call in self.calls:
            made = call.function(*_filled(call.args, values), **_filled(call.keywords, values))
            if call.expected is not None:
                check(call, made)
            _keep(call.results, made, values)
        return values

    def _append(self, function: Any, args: Any, keywords: Any, results: Any, expected: Any, noted: Noted) -> Call:
        # The nearest frames are this class's own: not to make objects of them saves a tenth of a capture.
        call = Call(function, args, keywords, results, expected, self.place(3), given=noted.slots())
        self._add(call)
        for array in noted.constants:
            self.constants.append((array, checksum_of(array), call))
            if _is_given(array):
                self.given.append((array, call))
        return call

    def _add(self, call: Call) -> None:
        self.calls.append(call)
        if self.named and call.given and self.named.issuperset(call.given):
            self.named.update(call.made)

    def place(self, skipped: int = 1) -> Place:
        """Return where the program stands: innermost outside of gradmgr, so many frames from here at least."""
        frame: Any = sys._getframe(skipped)
        code = frame.f_code
        ours = self._ours
        while (outer := frame.f_back) is not None:
            name = code.co_filename
            if name not in ours:
                if not name.startswith((_ROOT, "<gradmgr ")):
                    break
                ours.add(name)
            frame, code = outer, outer.f_code
        return code, frame.f_lasti

    def _wrap(self, array: Array, *, is_input: bool = False) -> CapturedArray:
        number = len(self.layouts)
        owner, offset = self._memory.owner_of(array, number, is_input=is_input)
        is_scalar = array.__class__ is not np.ndarray and isinstance(array, np.generic)
        device = None if is_scalar or array.__class__ is np.ndarray else gpu.device_of(array)
        self.layouts.append(Layout(array.shape, array.dtype, array.strides, owner, offset, is_scalar, device))
        return CapturedArray(self, array, Slot(number))

    def _wrap_all(self, result: Any, noted: Noted) -> tuple[Any, Any]:
        """Return a result with its arrays captured, and their slots; None for what is no array."""
        if gpu.is_plain(result):
            found = None if isinstance(result, np.generic) else noted.found(result)  # numpy.True_ is always the same
            made = self._wrap(result) if found is None else found
            return made, made.slot
        if isinstance(result, (tuple, list)):
            parts = [self._wrap_all(part, noted) for part in result]
            values = [value for value, _ in parts]
            several = type(result)(*values) if hasattr(result, "_fields") else type(result)(values)
            return several, tuple([slots for _, slots in parts])
        return result, None


def difference(one: Capture, other: Capture) -> str | None:
    """Return in which call two captures of the same function differ; None where they do not.

    What differs depends on more than the inputs: a number or an array made outside of captured calls, or a branch.
    """
    for (first_array, call), (second_array, _) in zip(one.given, other.given, strict=False):
        if first_array is not second_array and not _is_same_view(first_array, second_array):
            return (
                f"the array that {name_of(call.function)} is given at {call.line}, which the function makes anew: "
                "pass it as an argument, or make it by functions of gradmgr.numpy"
            )
    for first, second in zip(one.calls, other.calls, strict=False):
        is_same = first.function is second.function or _is_same_function(first.function, second.function)
        if not is_same or first.made != second.made or not _are_equal_args((first.results,), (second.results,)):
            return f"{name_of(first.function)} at {first.line}, then {name_of(second.function)} at {second.line}"
        if first.expected != second.expected:
            return f"what {name_of(first.function)} gives at {first.line}"
        if first.given != second.given or not (
            _are_equal_args(first.args, second.args)
            and (not (first.keywords or second.keywords) or _are_equal(first.keywords, second.keywords))
        ):
            return f"what {name_of(first.function)} is given at {first.line}"
    shorter, longer = sorted((one.calls, other.calls), key=len)
    if len(shorter) == len(longer):
        return None
    more = longer[len(shorter)]
    return f"one more call: {name_of(more.function)} at {more.line}"


def _is_same_function(one: Any, other: Any) -> bool:
    """Tell whether two functions are one, or made again by the same code and do the same, as a lambda for a hook."""
    if one == other:
        return True
    if not (one.__class__ is other.__class__ is FunctionType):
        return False
    is_alike = one.__code__ is other.__code__ and one.__globals__ is other.__globals__
    return (
        is_alike
        and not (one.__dict__ or other.__dict__)
        and all(map(operator.is_, one.__closure__ or (), other.__closure__ or ()))  # as many, of one code
        and _are_same_values(one.__defaults__ or (), other.__defaults__ or ())
        and _are_same_values(one.__kwdefaults__ or {}, other.__kwdefaults__ or {})
    )


def _are_same_values(one: Any, other: Any) -> bool:
    """Tell whether what two tuples, or dicts, hold are the same objects, or equal numbers and texts."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and _are_same_values([*one.values()], [other[key] for key in one])
    pairs = list(zip(one, other, strict=False))
    is_known = all(a is b or (a.__class__ in (bool, int, float, str) and _are_equal(a, b)) for a, b in pairs)
    return is_known and len(one) == len(other)


def _is_same_view(one: Array, other: Array) -> bool:
    """Tell whether two arrays, both kept, are the same elements of one array: no other was made in between."""
    if gpu.is_on_gpu(one) or gpu.is_on_gpu(other):
        is_view = one.__class__ is other.__class__ and one.base is not None and one.base is other.base
        facts = [(a.shape, a.dtype, a.strides, a.data.ptr) for a in (one, other)] if is_view else []
        return is_view and facts[0] == facts[1]
    return (
        _outermost(one) is _outermost(other)
        and one.__array_interface__ == other.__array_interface__
        and (one.dtype, one.strides) == (other.dtype, other.strides)
    )


def _outermost(array: Array) -> Array:
    """Return the array that has the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def is_branch(one: Capture, other: Capture) -> bool:
    """Tell whether two captures of the same function differ first by what a guard found."""
    for first, second in zip(one.calls, other.calls, strict=False):
        is_same = _is_same_function(first.function, second.function)
        if not is_same or first.expected != second.expected:
            return is_same
        if not _are_equal((first.args, first.keywords, first.results), (second.args, second.keywords, second.results)):
            return False
    return False


# ---------------------------------------------------------------- copies


def without_copies(calls: Sequence[Call], layouts: Sequence[Any], kept: Iterable[int]) -> list[Call]:
    """Return calls without copies, into new memory, of what a ufunc or a kernel of ours made and nothing else reads.

    A gradient is copied so in a capture, as who else may see it is not known before its end. The kernel's result then
    is what was the copy. A kernel keeps nothing, see `libraries.captured_as_one`; `kept` are slots that must stay.
    """
    copies = {
        call.args[2].number: k
        for k, call in enumerate(calls)
        if call.function is operator.setitem and call.args[1] is Ellipsis and call.args[2].__class__ is Slot
    }
    # Few calls make what is copied, so that is asked first.
    made_by = [(k, call) for k, call in enumerate(calls) if not copies.keys().isdisjoint(call.made)] if copies else []
    makers = {s: k for k, call in made_by if _keeps_nothing(call) for s in call.made if s in copies}
    if not makers:
        return list(calls)
    watched = {*makers, *[calls[copies[s]].args[0].number for s in makers]}
    uses: dict[int, list[int]] = {}
    for k, call in enumerate(calls):
        for number in call.given:
            if number in watched:
                uses.setdefault(number, []).append(k)
    shared = {layout.owner for s, layout in enumerate(layouts) if layout is not None and layout.owner != s}
    empties = {call.made[0]: k for k, call in enumerate(calls) if call.function in (np.empty_like, np.empty)}
    made: list[Call | None] = list(calls)
    for source, maker in makers.items():
        target = calls[copies[source]].args[0].number
        one, other = layouts[source], layouts[target]
        is_new = one.owner == source and source not in shared and uses[source] == [copies[source]]
        is_alike = (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides)
        if not (is_new and is_alike and target in empties and source not in kept and uses[target][0] == copies[source]):
            continue
        made[maker] = (made[maker] or calls[maker]).but(result=(source, target))
        made[copies[source]] = made[empties[target]] = None
    return [call for call in made if call is not None]


def _keeps_nothing(call: Call) -> bool:
    function = call.function
    if function.__class__ is np.ufunc or function is np.dot or function in _STEADY:
        return not call.keywords
    return getattr(function, "keeps_nothing", False) and not call.has_effect


# ---------------------------------------------------------------- arguments and results


def checksum_of(array: Array) -> Any:
    """Return a number by which other values of an array are noticed."""
    if array.__class__ is not np.ndarray and gpu.is_on_gpu(array):
        return gpu.checksum_of(array)
    if array.flags.c_contiguous and array.dtype.kind in "biufc":
        return zlib.crc32(array.data)
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _inside(value: Any) -> Any:
    """Return what a function is given for a value among the arguments of a call."""
    return value.inner if value.__class__ is CapturedArray else _real_generator(value)


def _filled(value: Any, values: list[Any]) -> Any:
    return map_leaves(lambda part: values[part.number] if part.__class__ is Slot else part, value)


def _keep(results: Any, made: Any, values: list[Any]) -> None:
    if isinstance(results, tuple):
        for slots, part in zip(results, made, strict=True):
            _keep(slots, part, values)
    elif results is not None:
        values[results.number] = made


def facts_of(result: Any) -> Any:
    """Return the shapes of arrays, and all else as it is."""
    if isinstance(result, (tuple, list)):
        return tuple(map(facts_of, result))
    return result.shape if gpu.is_plain(result) else result


def check(call: Call, made: Any) -> None:
    """Raise if the facts of a result are not what they were."""
    found = getattr(call.function, "facts_of", facts_of)(made)
    if found != call.expected:
        raise GuardError(f"{name_of(call.function)} at {call.line} gave {call.expected}, and {found} now")


def stale(call: Call) -> None:
    """Raise as `check` does, of a guard that was tested by other means."""
    raise GuardError(f"{name_of(call.function)} at {call.line} gave {call.expected}, and something else now")


def _facts_depend_on_values(function: Any, args: Any) -> bool:
    """Tell whether other values may give results of other shapes: unique ones, those where a mask is true, counts."""
    return name_of(function) in _OF_SOME or (function is operator.getitem and _holds_mask(args[1]))


_OF_SOME = frozenset(
    (
        *("nonzero", "flatnonzero", "argwhere", "extract", "compress", "bincount", "repeat", "trim_zeros"),
        *("unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
        *("intersect1d", "union1d", "setdiff1d", "setxor1d", "histogram_bin_edges"),
    )
)


def _is_steady(function: Any) -> bool:
    """Tell whether the shapes of a function's results follow from those of its arguments, whatever their values."""
    kind = function.__class__
    return kind is np.ufunc or (kind is BuiltinMethodType and function in _STEADY)


def _holds_number(result: Any) -> bool:
    """Tell whether Python's numbers, texts or times are in a result: values that left the arrays."""
    if isinstance(result, (tuple, list)):
        return any(map(_holds_number, result))
    numbers = bool, int, float, complex, str, bytes, dt.date, dt.timedelta
    return isinstance(result, numbers) and not isinstance(result, np.generic)


def slots_in(value: Any) -> Iterator[Slot]:
    """Yield the slots in the arguments or the results of a call."""
    return (part for part in leaves_in(value) if isinstance(part, Slot))


def _holds_mask(index: Any) -> bool:
    """Tell whether an index chooses as many elements as its values say: by a mask, or by the bounds of a slice."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(gpu.is_plain(part) and part.dtype.kind == "b" for part in parts) or any(
        gpu.is_plain(bound) for part in parts if isinstance(part, slice) for bound in leaves_in(part)
    )


def _are_equal_args(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Tell whether arguments, or results, are equal, given that they have the same slots in the same order."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a is b or a.__class__ is b.__class__ is Slot:  # most of them; numbers of slots are compared all at once
            continue
        if not _are_equal(a, b):
            return False
    return True


def _are_equal(one: Any, other: Any) -> bool:
    """Tell whether arguments are equal, arrays by their values."""
    if one is other:
        return True
    if one.__class__ is Slot:
        return other.__class__ is Slot and one.number == other.number
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, slice):
        return _are_equal((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, (np.ndarray, np.generic)):
        return is_same_array(np.asarray(one), np.asarray(other))
    if isinstance(one, (float, complex)):  # by which 0.0 and -0.0 differ, and NaN is itself
        return repr(one) == repr(other)
    if gpu.is_on_gpu(one):  # another array each time: compared where they are
        return (one.dtype, one.shape) == (other.dtype, other.shape) and gpu.have_same_bits(one, other)
    return bool(one == other) or (one != one and other != other)


def is_same_array(one: Array, other: Array) -> bool:
    """Tell whether two arrays of NumPy's have the same bits, but for those of NaN.

    A NaN's sign, and what it carries, depend on how a processor's instructions order their operands: NumPy's scalars
    and its loops over arrays give others.
    """
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return bool(np.array_equal(one, other))
    first, second = np.ascontiguousarray(one), np.ascontiguousarray(other)
    if first.tobytes() == second.tobytes():
        return True
    if one.dtype.kind == "c":
        first, second = first.view(first.real.dtype), second.view(second.real.dtype)
    if first.dtype.kind != "f":
        return False
    kept = ~np.isnan(first)
    return bool(np.array_equal(kept, ~np.isnan(second)) and first[kept].tobytes() == second[kept].tobytes())


def _itself(array: Any) -> Any:
    return array


def name_of(function: Any) -> str:
    """Return what a function is called, for the user."""
    if function is operator.truth:
        return "the truth of an array"
    return str(getattr(function, "__name__", function))


def _is_given(array: Array) -> bool:
    """Tell whether the program gave an array to a function of gradmgr's, which did not make it itself."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith((_ROOT, "<gradmgr ")):
        frame = frame.f_back
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[
        : code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    ]
    return any(part is array for part in leaves_in([values.get(name) for name in names]))


def line_at(place: Place) -> str:
    """Return the line of a place in a program, as "file:line"."""
    code, instruction = place
    lines = [line for start, end, line in code.co_lines() if start <= instruction < end and line is not None]
    return f"{code.co_filename}:{lines[0] if lines else code.co_firstlineno}"


# ---------------------------------------------------------------- the array


class CapturedArray:
    """An array whose calls are captured."""

    __slots__ = ("__weakref__", "capture", "inner", "slot")

    __array_priority__ = 1000.0  # CuPy's operators ask for it
    __hash__ = None  # type: ignore[assignment]  # as arrays

    # Of those that are set below, as all other attributes and methods of arrays.
    dtype: Any
    astype: Any
    copy: Any

    def __init__(self, capture: Capture, inner: Array, slot: Slot) -> None:
        self.capture = capture
        self.inner = inner
        self.slot = slot

    def __repr__(self) -> str:
        if self.capture.open:
            self.capture.add_obstacle("the text of an array")
        return repr(self.inner)

    def __str__(self) -> str:
        return format(self, "")

    def __len__(self) -> int:
        is_text = isinstance(self.inner, np.generic)
        return int(self.capture.guard(len, self)) if is_text else len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self.inner)))

    # ------------------------------------------------------------ values that leave

    def __bool__(self) -> bool:
        return bool(self.capture.guard(operator.truth, self))

    def __format__(self, spec: str) -> str:
        if self.capture.open:
            self.capture.add_obstacle("the text of an array")
        return format(self.inner, spec)

    def __reduce__(self) -> Any:
        self.capture.add_obstacle("a copy or a pickle of an array")
        return self.inner.__reduce__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.capture.add_obstacle(_VALUES_TAKEN)
        return np.array(self.inner, dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self._number("float() of an array"))

    def __int__(self) -> int:
        return int(self._number("int() of an array"))

    def __complex__(self) -> complex:
        return complex(self._number("complex() of an array"))

    def __index__(self) -> int:
        if not hasattr(self.inner, "__index__"):  # CuPy's may have none
            raise TypeError(f"{type(self.inner).__name__!r} object cannot be interpreted as an integer")
        if self.inner.ndim or self.inner.dtype.kind not in "iu":  # as NumPy's
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return operator.index(
            self._number("an array as an index of a list or of an array that is not captured, or as a length,")
        )

    def __getattr__(self, name: str) -> Any:  # called for names that Python did not find
        if not hasattr(type(self.inner), name):
            raise AttributeError(f"an array has no attribute {name!r}")
        self.capture.add_obstacle(_VALUES_TAKEN if name.startswith("__array") else f"{name} of an array")
        return getattr(self.inner, name)

    def item(self, *args: Any) -> Any:
        """Return one value as a Python number."""
        if args:
            self.capture.add_obstacle("item() of an array")
            return self.inner.item(*args)
        return self._number("item() of an array")

    def _number(self, what: str) -> Any:
        """Return the one value.

        It is a guard where a kernel reads it, which decides what to do by it, and where it is that of arrays that the
        function reads by name, which seldom change; else an obstacle.
        """
        if self.slot.number in self.capture.named:
            self.capture.guard(_text_of_item, self)
            return self.inner.item()
        caller = sys._getframe(2).f_code.co_filename
        if caller.startswith(_ROOT) and not caller.startswith(_CONVERSIONS):
            return self.capture.guard(_item, self)
        self.capture.add_obstacle(what)
        return self.inner.item()

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        self.capture.add_obstacle("tolist() of an array")
        return self.inner.tolist()

    # ------------------------------------------------------------ protocols

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if not (_are_supported(inputs) and (not keywords or _are_supported(keywords.get("out", ())))):
            return NotImplemented
        if method == "__call__":
            return self.capture.call(ufunc, inputs, keywords) if keywords else self.capture.call_operator(ufunc, inputs)
        if method == "at" and gpu.is_on_gpu(self.inner):  # whose index may be a tuple, which CuPy's protocol refuses
            ufunc = getattr(gpu.loaded_cupy(), ufunc.__name__)
        return self.capture.call(getattr(ufunc, method), inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        if not all(issubclass(t, (CapturedArray, np.ndarray)) or _is_cupys(t) for t in types):
            return NotImplemented
        if function in _ASKING:
            return function(*map_leaves(_inside, args), **map_leaves(_inside, keywords))
        return self.capture.call(function, args, keywords)

    def __getitem__(self, index: Any) -> Any:
        return self.capture.call(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self.capture.call(operator.setitem, (self, index, value), {})


def _are_supported(values: Iterable[Any]) -> bool:
    """Tell whether operands are numbers or arrays; a Tensor, say, takes over a call by its own protocol."""
    for value in values:
        kind = value.__class__
        if kind is CapturedArray or kind in _PLAIN or isinstance(value, (np.ndarray, np.generic)):
            continue
        if hasattr(value, "__array_ufunc__") and not gpu.is_on_gpu(value):
            return False
    return True


def _is_cupys(kind: type) -> bool:
    cupy = gpu.loaded_cupy()
    return cupy is not None and issubclass(kind, cupy.ndarray)


def is_numpy(array: Array) -> bool:
    """Tell whether it is NumPy's array, by itself or captured, for which NumPy's own functions are there.

    What asks it makes arrays in the library of this one, and calls no methods of plain arrays with captured ones. Where
    time counts, ask first whether the class is `numpy.ndarray`.
    """
    return array.__class__ is np.ndarray or (array.__class__ is CapturedArray and array.inner.__class__ is np.ndarray)


def is_captured(value: Any) -> bool:
    """Tell whether a value is a captured array."""
    return isinstance(value, CapturedArray)


def _calls_method(name: str) -> Callable[..., Any]:
    """Return a function that calls a method: of an array, or of the NumPy scalar that a replay may meet instead."""

    def call(a: Any, *args: Any, **keywords: Any) -> Any:
        return getattr(a, name)(*args, **keywords)

    call.__name__ = name
    call.method = name  # type: ignore[attr-defined]  # by which `replay` writes it as one
    return call


def _reads_attribute(name: str) -> Callable[[Any], Any]:
    read = operator.attrgetter(name)

    def call(a: Any) -> Any:
        return read(a)

    call.__name__ = name
    call.attribute = name  # type: ignore[attr-defined]  # as above
    return call


def _captured(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """Return the method of CapturedArray that captures a function's call."""

    def method(self: CapturedArray, *args: Any, **keywords: Any) -> Any:
        if not _are_supported(args):
            return NotImplemented
        return self.capture.call(function, (*args, self) if reflected else (self, *args), keywords)

    method.__name__ = name_of(function)
    return method


def _captured_operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """Return the method of CapturedArray that captures an operator of two operands."""

    def method(self: CapturedArray, other: Any) -> Any:
        if other.__class__ is not CapturedArray and not _are_supported((other,)):
            return NotImplemented
        return self.capture.call_operator(function, (other, self) if reflected else (self, other))

    method.__name__ = name_of(function)
    return method


for _attribute in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags", "device", "base"):
    setattr(CapturedArray, _attribute, property(operator.attrgetter(f"inner.{_attribute}")))
for _attribute in ("T", "mT", "real", "imag"):
    setattr(CapturedArray, _attribute, property(_captured(_reads_attribute(_attribute))))

_METHODS = {
    name: _calls_method(name)
    for name in (
        *("sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin", "argsort", "argpartition", "clip"),
        *("cumsum", "cumprod", "diagonal", "dot", "nonzero", "repeat", "round", "searchsorted", "squeeze", "conj"),
        *("swapaxes", "take", "trace", "choose", "compress", "astype", "copy", "view", "reshape", "ravel", "flatten"),
        *("transpose", "fill", "conjugate", "any", "all", "sort", "partition", "put"),
    )
}
for _attribute, _function in _METHODS.items():
    setattr(CapturedArray, _attribute, _captured(_function))

for _attribute in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor"):
    setattr(CapturedArray, f"__{_attribute}__", _captured_operator(getattr(operator, _attribute)))
    setattr(CapturedArray, f"__r{_attribute}__", _captured_operator(getattr(operator, _attribute), reflected=True))
    setattr(CapturedArray, f"__i{_attribute}__", _captured(getattr(operator, f"i{_attribute}")))
for _attribute in ("and", "or"):
    setattr(CapturedArray, f"__{_attribute}__", _captured(getattr(operator, f"{_attribute}_")))
    setattr(CapturedArray, f"__r{_attribute}__", _captured(getattr(operator, f"{_attribute}_"), reflected=True))
    setattr(CapturedArray, f"__i{_attribute}__", _captured(getattr(operator, f"i{_attribute}")))
for _attribute in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(CapturedArray, f"__{_attribute}__", _captured(getattr(operator, _attribute)))

_UPDATES = frozenset(
    getattr(operator, f"i{name}")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor", "and", "or"),
    )
)

# Functions of whose results the shapes follow from those of the arguments, as of ufuncs.
_STEADY = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor", "and_", "or_"),
        *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"),
    )
)

# Functions that ask for what is the same in every replay, so that no replay need call them.
_ASKING = frozenset(
    (
        *(np.shape, np.ndim, np.size, np.result_type, np.common_type, np.can_cast, np.iscomplexobj, np.isrealobj),
        *(np.may_share_memory, np.shares_memory),
    )
)

# Functions that write into their first argument.
_WRITERS = frozenset(
    (
        *(operator.setitem, np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis),
        *(_METHODS[name] for name in ("fill", "sort", "partition", "put")),
    )
)


def written_by(call: Call) -> list[Slot]:
    """Return the slots of the arrays that a call writes into."""
    if not call.keywords and _is_steady(call.function):  # mostly, so asked first
        return []
    found = call.args[:1] if call.function in _UPDATES else _targets(call.function, call.args, call.keywords)
    return [part for part in found if isinstance(part, Slot)]


def _targets(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arrays that a call writes into."""
    found = args[:1] if function in _WRITERS or _is_at(function) else ()
    written = getattr(function, "writes", 0)  # of a kernel of ours
    if written:
        found = args[function.arrays - written : function.arrays]
    out = keywords.get("out") if keywords else None
    return found if out is None else (*found, *(out if isinstance(out, tuple) else (out,)))


def adds_in_any_order(call: Call) -> bool:
    """Tell whether a GPU adds several numbers to one in an order that changes, so that last bits do."""
    return _is_at(call.function) or name_of(call.function) in ("bincount", "histogram", "scatter_add")


def _is_at(function: Any) -> bool:
    """Tell whether it is the method `at` of a ufunc, NumPy's or CuPy's."""
    if function.__class__ is BuiltinMethodType and isinstance(function.__self__, np.ufunc):
        return bool(function.__name__ == "at")
    cupy = gpu.loaded_cupy()
    is_method = cupy is not None and isinstance(getattr(function, "__self__", None), cupy.ufunc)
    return is_method and name_of(function) == "at"


# ---------------------------------------------------------------- random numbers


class GeneratorStandIn:
    """The base of what takes the place of a Generator whose draws are captured; `real` is that Generator."""

    real: Any


def _real_method(function: Any) -> Any:
    owner = getattr(function, "__self__", None)
    return getattr(owner.real, function.__name__) if isinstance(owner, GeneratorStandIn) else function


def _real_generator(value: Any) -> Any:
    return value.real if isinstance(value, GeneratorStandIn) else value


def generators_in(calls: Iterable[Call]) -> list[Any]:
    """Return the Generators from which calls draw."""
    random = sys.modules.get("numpy.random")
    if random is None:
        return []
    found: dict[int, Any] = {}
    for call in calls:
        kind = call.function.__class__
        owner = None if kind is np.ufunc or kind is FunctionType else getattr(call.function, "__self__", None)
        if isinstance(owner, random.Generator):
            found[id(owner)] = owner
        for value in (*call.args, *call.keywords.values()) if call.keywords else call.args:
            if value.__class__ is not Slot and value.__class__ not in _PLAIN:
                found |= {id(part): part for part in leaves_in(value) if isinstance(part, random.Generator)}
    return list(found.values())


# ---------------------------------------------------------------- the library


class CapturingLibrary:
    """Takes the place of the module `numpy` or `cupy` in a kernel: the arrays that it makes are captured.

    CuPy's functions do not dispatch by protocol. So those that NumPy has, too, are NumPy's here, which call CuPy's with
    the arrays inside; of the others each call is captured.
    """

    __slots__ = ("__name__", "_module", "capture")

    def __init__(self, capture: Capture, module: Any = np) -> None:
        self.capture = capture
        self._module = module
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        if name in _MAKERS:
            return partial(_called, self.capture, getattr(self._module, name))
        if self._module is np:
            return getattr(np, name)
        if name in _DISPATCHED:
            return getattr(np, name)
        return _capturing_part(self.capture, getattr(self._module, name))

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """Return `a` as an array; a captured one stays as it is."""
        if not is_captured(a) or (self._module is not np and not gpu.is_on_gpu(a.inner)):
            return self.capture.call(self._module.asarray, (a, dtype), {})
        return a if dtype is None or a.dtype == dtype else a.astype(dtype)

    def array(self, a: Any, dtype: Any = None, copy: bool = True) -> Any:
        """Return a copy of `a` as an array."""
        return self.capture.call(self._module.array, (a, dtype), {}) if copy else self.asarray(a, dtype)

    def may_share_memory(self, one: Any, other: Any) -> bool:
        """Tell whether memory bounds overlap."""
        return bool(self._module.may_share_memory(inner_of(one), inner_of(other)))


def _called(capture: Capture, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return capture.call(function, args, keywords)


def _capturing_part(capture: Capture, part: Any) -> Any:
    """Return a part of CuPy such that calls of its functions are captured; classes and such as they are."""
    if isinstance(part, ModuleType):
        return CapturingLibrary(capture, part)
    if isinstance(part, type) or not callable(part):
        return part
    return partial(_called, capture, part)


# NumPy's functions that dispatch by protocol, in a library that is CuPy's.
_DISPATCHED = frozenset(
    (
        *(name for name, f in vars(np).items() if type(f).__name__ in ("ufunc", "_ArrayFunctionDispatcher")),
        *("linalg", "fft", "lib"),
    )
)

# Functions that make arrays without being given one, so that they do not dispatch.
_MAKERS = frozenset(("zeros", "ones", "empty", "full", "arange", "eye", "identity", "linspace", "tri"))


def capture_in(*values: Any) -> Capture | None:
    """Return the capture of the first captured array among values, nested ones too; None where none is."""
    return next((part.capture for part in leaves_in(values) if isinstance(part, CapturedArray)), None)


def value_of(a: Any) -> Any:
    """Return the number in a captured array, of which a replay must find the same; others as they are."""
    return a.capture.guard(_item, a) if is_captured(a) else a


def values_of(a: Any) -> Any:
    """Return the numbers in a captured array as lists, of which a replay must find the same; others as they are."""
    if not is_captured(a):
        return a
    a.capture.guard(_text_of_items, a)
    return a.inner.tolist()


def _item(a: Any) -> Any:
    return a.item()


def _text_of_items(a: Any) -> str:
    return repr(a.tolist())


_item.__name__ = "the value of an array"
_text_of_items.__name__ = "the values of an array"


def _text_of_item(a: Any) -> str:
    """Return a number as text, so that -0.0 is not 0.0, and NaN is NaN."""
    return repr(a.item())


_text_of_item.__name__ = _item.__name__


def inner_of(a: Any) -> Any:
    """Return the array inside of a captured one; others as they are."""
    return a.inner if is_captured(a) else a
