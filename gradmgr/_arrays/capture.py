"""Capture: the calls made with captured arrays, as a straight line that can be made again.

`replay` makes them on other arrays of the same shapes and dtypes. What a guard reads must be the same then, and so must
the numbers that LAPACK returns (`call_foreign`). A write into an array that is not captured is an obstacle: it is
carried out, but a capture with obstacles cannot be replayed. Arrays that are not captured are constants, kept by
reference. Numbers and arrays that come from elsewhere, such as a step's count or random numbers, show when the same
function is captured again, in a rehearsal: see `capture_difference`.
"""

from __future__ import annotations

import datetime as dt
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from types import FunctionType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.atomic import float_errors_raise
from gradmgr._arrays.captured import CapturedArray, GeneratorStandIn, as_given, real_generator
from gradmgr._arrays.captured_calls import (
    PLAIN,
    ROOT,
    Call,
    CaptureError,
    Layout,
    Place,
    Slot,
    check,
    facts_of,
    line_at,
    name_of,
)
from gradmgr._arrays.captured_functions import facts_depend_on_values, has_steady_shapes, targets
from gradmgr._arrays.captured_memory import Memory

Array = Any


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
            elif kind in PLAIN:
                inside.append(value)
                slots.append(value)
            else:
                inside.append(map_leaves(as_given, value))
                slots.append(map_leaves(self._slot, value))
        return tuple(inside), tuple(slots)

    def _slot(self, value: Any) -> Any:
        """Return what represents a value among the arguments of a call."""
        if value.__class__ is CapturedArray:
            self.captured.append(value)
            return value.slot
        if isinstance(value, np.ndarray) or (value.__class__ not in PLAIN and gpu.is_on_gpu(value)):
            self.constants.append(value)
        return real_generator(value)

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
        self._memory = Memory()
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
        is_steady = has_steady_shapes(function)
        if keywords or not is_steady:
            for target in targets(function, args, keywords):
                if isinstance(target, np.ndarray) or gpu.is_on_gpu(target):
                    self.add_obstacle(f"{name_of(function)} writes into an array that is not captured,")
        return self._call(function, args, keywords, is_steady, False)

    def call_foreign(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do as `call` with a function that is not NumPy's; the numbers in its result are guarded."""
        return self._call(function, args, keywords, has_steady_shapes(function), True)

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
        guarded = guarded or (not is_steady and facts_depend_on_values(function, plain))
        expected = facts_of(result) if guarded else None
        self._append(function, with_slots, keywords, results, expected, noted).seconds = seconds
        return made

    def call_operator(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Do as `call` with a function of `STEADY`: in one frame, as most calls are those of operators."""
        inside, slots, given = [], [], []
        for value in args:
            kind = value.__class__
            if kind is CapturedArray:
                slot = value.slot
                inside.append(value.inner)
                slots.append(slot)
                given.append(slot.number)
            elif kind in PLAIN:
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
        number = len(self.layouts)  # as `_wrap`, without its frame and questions: a tenth of a capture
        owner = self._memory.enter(result, number)
        self.layouts.append(Layout(result.shape, result.dtype, result.strides, owner))
        slot = Slot(number)
        call = Call(function, tuple(slots), {}, slot, None, self.place(3), given=tuple(given))
        call.seconds = seconds
        self._add(call)
        return CapturedArray(self, result, slot)

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
        if not self.obstacles and float_errors_raise():
            self.add_obstacle(
                "floating-point errors raise in it, as its numpy.errstate or seterr says, and a replay raises none; "
                "set that around the call, which then runs as written,"
            )
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
                if not name.startswith((ROOT, "<gradmgr ")):
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


def _real_method(function: Any) -> Any:
    owner = getattr(function, "__self__", None)
    return getattr(owner.real, function.__name__) if isinstance(owner, GeneratorStandIn) else function


def _filled(value: Any, values: list[Any]) -> Any:
    return map_leaves(lambda part: values[part.number] if part.__class__ is Slot else part, value)


def _keep(results: Any, made: Any, values: list[Any]) -> None:
    if isinstance(results, tuple):
        for slots, part in zip(results, made, strict=True):
            _keep(slots, part, values)
    elif results is not None:
        values[results.number] = made


def _holds_number(result: Any) -> bool:
    """Tell whether Python's numbers, texts or times are in a result: values that left the arrays."""
    if isinstance(result, (tuple, list)):
        return any(map(_holds_number, result))
    numbers = bool, int, float, complex, str, bytes, dt.date, dt.timedelta
    return isinstance(result, numbers) and not isinstance(result, np.generic)


def checksum_of(array: Array) -> Any:
    """Return a number by which other values of an array are noticed."""
    if array.__class__ is not np.ndarray and gpu.is_on_gpu(array):
        return gpu.checksum_of(array)
    if array.flags.c_contiguous and array.dtype.kind in "biufc":
        return zlib.crc32(array.data)
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _itself(array: Any) -> Any:
    return array


def _is_given(array: Array) -> bool:
    """Tell whether the program gave an array to a function of gradmgr's, which did not make it itself."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith((ROOT, "<gradmgr ")):
        frame = frame.f_back
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[
        : code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    ]
    return any(part is array for part in leaves_in([values.get(name) for name in names]))


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
            if value.__class__ is not Slot and value.__class__ not in PLAIN:
                found |= {id(part): part for part in leaves_in(value) if isinstance(part, random.Generator)}
    return list(found.values())
