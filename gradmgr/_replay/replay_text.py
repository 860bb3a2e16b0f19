"""The calls of a capture written as Python text, one line each, with nothing between them.

The text names the results of calls `v0`, `v1`, ..., spells operators, methods and indices as a person would, and drops
each value after the last line that reads it. For the product of two large arrays and its sum, where there are no
buffers:

    def replay(v0, v1):
        v2 = v0 * v1
        del v0, v1
        v0 = v2.sum(axis=0)
        del v2
        return v0,

What is small and not used elsewhere is not dropped: a later result takes its name, as `del` is most of what Python
takes to compile a line.

Results of ufuncs and of some other functions go into buffers that the function keeps, each of which serves again when
neither its value nor a view of it is read any more: large memory that is newly asked for costs more than the
arithmetic, and a small array 0.1 us. Views of buffers are made once, with them, so that no line is left of the calls
that make them. What the function returns is in its own memory. A call of the function while another one runs, in
another thread, takes its own buffers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import Call, CaptureError, Layout, Slot, check, slots_in, stale
from gradmgr._arrays.memory import over_first
from gradmgr._replay.call_facts import is_view, writes_to_out
from gradmgr._replay.packing import packed
from gradmgr._replay.placement import first_of
from gradmgr._replay.spans import Span, peak_of

# What is written between the operands.
_BINARY = MappingProxyType(
    {
        getattr(operator, name): sign
        for name, sign in (
            *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"), ("mod", "%")),
            *(("pow", "**"), ("matmul", "@"), ("and_", "&"), ("or_", "|"), ("xor", "^"), ("lshift", "<<")),
            *(("rshift", ">>"), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")),
        )
    }
)
_UNARY = MappingProxyType({operator.neg: "-", operator.pos: "+", operator.invert: "~"})
# Those that write into the first operand; of NumPy scalars they make a new one.
_UPDATES = MappingProxyType(
    {
        getattr(operator, f"i{name}"): f"{sign}="
        for name, sign in (
            *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"), ("mod", "%")),
            *(("pow", "**"), ("matmul", "@"), ("and", "&"), ("or", "|"), ("xor", "^"), ("lshift", "<<")),
            ("rshift", ">>"),
        )
    }
)


# Ufuncs that compute the same as an operator, into a buffer.
_UFUNCS = MappingProxyType(
    {
        operator.add: np.add,
        operator.sub: np.subtract,
        operator.mul: np.multiply,
        operator.matmul: np.matmul,
        operator.truediv: np.true_divide,
        operator.neg: np.negative,
    }
)


# Functions that compute the same with an array of shape () as with a number of Python's.
_OF_NUMBERS = frozenset(
    (
        *(np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.minimum),
        *(operator.add, operator.sub, operator.mul, operator.truediv),
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
    )
)
_EMPTY = (np.empty, np.empty_like)
_BY_NAME = (np.maximum, np.minimum, np.concatenate)  # which are given their result by name
# Bytes up to which a result may wait to be dropped until its name is taken for another.
_SMALL = 1 << 12
# What of the peak may be there besides where results go into memory that stays: bytes, and their share.
_SPARE, _SPARE_SHARE = 1 << 10, 0.01
CLEARLY = 0.9  # of the peak of a replay: what is as low, or lower, is worth slower calls

# Another thread may take the last one at any time.
TAKE_ARENA = ("    try: arena = arenas.pop()", "    except IndexError: arena = make_arena()")


class Writer:
    """Writes the text of one replay."""

    def __init__(
        self, capture: Capture, results: Sequence[Any], buffers_from: int, rehearsed: Sequence[Slot] = ()
    ) -> None:
        self.capture = capture
        self.rehearsed = rehearsed
        self.buffers_from = buffers_from
        self.results = [part.slot if isinstance(part, CapturedArray) else part for part in results]
        self.scope: dict[str, Any] = {"check": check, "stale": stale}
        self.names: dict[int, str] = {}  # of constants and functions, by identity
        self.numbers: dict[tuple[str, np.dtype[Any]], Any] = {}  # as arrays of a dtype
        self.variables_of: dict[int, int] = {}  # by slot, the number in its name; else that of the slot
        effects = (number for number, call in enumerate(capture.calls) if call.has_effect)
        self.first_effect = next(effects, None)  # the number of that call
        self.last = self._last_uses()
        self.nbytes_of_buffers = 0
        self.buffers = self._plan_buffers()  # by the number of the call: where in the arena its result lies
        self.fixed: dict[int, str] = {}  # the names of what lies in the arena, by slot
        self.starts: dict[int, int] = {}  # where it lies, by the slot that owns its memory
        self.views: dict[tuple[Any, ...], str] = {}  # the names by start and layout

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Return the compiled function; its text is its attribute `text`."""
        has_arena = bool(self.buffers)
        passing, spare = self._passing(), list[int]()
        self.variables_of = {slot.number: slot.number for slot in self.capture.inputs}
        body: list[str] = []
        for number, call in enumerate(self.capture.calls):
            self._fix_names(number, call)
            for k in call.made:
                if k not in self.fixed and k not in self.variables_of:  # of an update it is
                    self.variables_of[k] = spare.pop() if spare else k
            body += self._beginning(number, call, has_arena=has_arena)
            body += self._lines_of(number, call)
            gone = [k for k in sorted(self._slots_of(call)) if self.last[k] == number and k not in self.fixed]
            spare += [self.variables_of.get(k, k) for k in gone if k in passing]
            dropped = [f"v{self.variables_of.get(k, k)}" for k in gone if k not in passing]
            body += [f"del {', '.join(dropped)}"] if dropped else []
        lines = [self._head()]
        if has_arena:
            # A function that does not hold this writer, and with it the capture.
            make_arena = functools.partial(_arena, self.nbytes_of_buffers, list(self.views))
            self.scope |= {"arenas": [], "make_arena": make_arena}
            lines += [*TAKE_ARENA, f"    {', '.join(self.views.values())}, = arena"]
        lines += [f"    {line}" for line in body]
        lines += ["    arenas.append(arena)"] if has_arena else []
        lines.append(f"    return {self._tuple(self.results)}")
        text = "\n".join(lines)
        exec(compile(text, "<gradmgr replay>", "exec"), self.scope)  # noqa: S102  # text of our own
        made: Any = self.scope.pop("replay")
        self.scope = {}  # or each would hold the other
        made.text = text
        made.nbytes = self.nbytes_of_buffers
        return made  # type: ignore[no-any-return]  # a function of the scope

    def _head(self) -> str:
        begun = [] if self.first_effect is None else ["begun"]
        return f"def replay({', '.join([*begun, *[f'v{slot.number}' for slot in self.capture.inputs]])}):"

    def _beginning(self, number: int, call: Call, *, has_arena: bool) -> list[str]:
        """Write, before the first effect, where a rehearsal ends, and from where on a replay cannot be given up.

        A call that notes the latter by itself may fail before.
        """
        if number != self.first_effect:
            return []
        kept = "arenas.append(arena); " if has_arena else ""
        ends = f"if begun is None: {kept}return {self._tuple(self.rehearsed)}"
        return [ends] if begins_effects(call.function) else [ends, "begun.append(True)"]

    # ------------------------------------------------------------ when a value is read last

    def _slots_of(self, call: Call) -> set[int]:
        return {*call.given, *call.made}

    def _last_uses(self) -> dict[int, int]:
        """Return the number of the call after which each slot is not needed; results of the replay are always."""
        last = {slot.number: -1 for slot in self.capture.inputs}
        for number, call in enumerate(self.capture.calls):
            for slot in (*call.given, *call.made):
                last[slot] = number
        return last | {slot.number: len(self.capture.calls) for slot in slots_in(self.results)}

    def _passing(self) -> set[int]:
        """Return the slots of small results of NumPy's that only NumPy's functions are given, so that all may wait."""
        layouts: Any = self.capture.layouts
        others = {slot.number for slot in self.capture.inputs}
        found: set[int] = set()
        for call in self.capture.calls:
            if self._keeps_arrays(call):
                others.update(call.given)
            for k in call.made:
                layout = layouts[k]
                is_own = layout is not None and (layout.is_scalar or layout.owner == k)
                is_small = is_own and nbytes_of(layout) <= _SMALL
                (found if is_small and _is_numpys(call.function) else others).add(k)
        return found - others

    # ------------------------------------------------------------ buffers

    def _plan_buffers(self) -> dict[int, int]:
        """Choose calls whose results go into one block of memory that stays, and where each lies in it, by the call."""
        if not any(map(self._goes_into_buffer, self.capture.calls)):
            return {}
        spans: dict[int, Span] = {}  # of what may go into it, by the call
        others: list[Span] = []
        last = self._last_of_memory()
        for number, call in enumerate(self.capture.calls):
            for k in filter(functools.partial(self._makes_memory, call), call.made):
                span = Span(number, max(number, last[k], self.last[k]), nbytes_of(self.capture.layouts[k]))
                if self._goes_into_buffer(call) and last[k] < len(self.capture.calls):
                    spans[number] = span
                else:
                    others.append(span)
        starts, self.nbytes_of_buffers = _affordable(spans, others)
        return starts

    def _last_of_memory(self) -> dict[int, int]:
        """Return by the slot that owns memory after which call nothing reads it."""
        kept = {number for call in self.capture.calls if self._keeps_arrays(call) for number in self._slots_of(call)}
        last: dict[int, int] = defaultdict(int)
        for number, when in self.last.items():
            layout = self.capture.layouts[number]
            if layout is not None and layout.owner is not None:
                last[layout.owner] = max(last[layout.owner], len(self.capture.calls) if number in kept else when)
        return last

    def _makes_memory(self, call: Call, slot: int) -> bool:
        """Tell whether a call makes the memory of a slot: it does not write into it, nor read it from a Tensor."""
        layout = self.capture.layouts[slot]
        is_own = layout is not None and layout.owner in (None, slot) and not layout.is_scalar
        return is_own and slot not in call.given and getattr(call.function, "attribute", None) is None

    def _keeps_arrays(self, call: Call) -> bool:
        """Tell whether what a call is given may be read after the replay: it makes an object, or has an effect."""
        has_effect = call.has_effect and not _keeps_nothing(call.function)
        may_keep = has_effect or getattr(call.function, "is_of_object", False)
        return may_keep or any(self.capture.layouts[slot] is None for slot in call.made)

    def _goes_into_buffer(self, call: Call) -> bool:
        """Tell whether a call makes its own memory that a buffer can stand for: the result of a ufunc, say."""
        if call.results.__class__ is not Slot or call.expected is not None:
            return False
        layout = self.capture.layouts[call.results.number]
        if layout is None or layout.owner != call.results.number or nbytes_of(layout) < self.buffers_from:
            return False
        if call.function in _EMPTY:
            return True
        if call.keywords:
            return False
        if writes_to_out(call):
            return True
        if call.function is np.dot:  # of matrices it makes the result that it takes, too
            return len(call.args) == 2 and bool(layout.shape)
        if call.function is np.concatenate:
            return len(call.args) <= 2
        ufunc = _UFUNCS.get(call.function, call.function)
        return isinstance(ufunc, np.ufunc) and ufunc.nout == 1 and len(call.args) == ufunc.nin

    # ------------------------------------------------------------ text

    def _fix_names(self, number: int, call: Call) -> None:
        """Enter the name of a result that lies in the arena, or is a view that is made with it."""
        start = self.buffers.get(number)
        if start is not None:
            self.starts[call.results.number] = start
            self.fixed[call.results.number] = self._view_name(call.results)
        elif call.results.__class__ is Slot and self._is_fixed_view(call):
            self.fixed[call.results.number] = self._view_name(call.results)

    def _lines_of(self, number: int, call: Call) -> list[str]:
        """Write a call, if there is anything to do."""
        if number in self.buffers:
            if call.function in _EMPTY:
                return []
            ufunc = _UFUNCS.get(call.function, call.function)
            return [self._into(ufunc, self._operands(call), self._name(call.results))]
        is_view_of_buffer = call.results.__class__ is Slot and self._is_fixed_view(call)
        return [] if is_view_of_buffer else self._lines(call)

    def _is_fixed_view(self, call: Call) -> bool:
        """Tell whether the result is a view of a buffer, and no variable yet."""
        layout = self.capture.layouts[call.results.number]
        return (
            layout is not None
            and layout.owner in self.starts
            and call.results.number not in call.given
            and is_view(call, self.capture.layouts)
        )

    def _view_name(self, slot: Slot) -> str:
        """Return the name of a view that is made with the arena."""
        layout: Any = self.capture.layouts[slot.number]
        start = self.starts[layout.owner] + layout.offset + first_of(layout)
        return self.views.setdefault((start, layout.shape, layout.dtype, layout.strides), f"b{len(self.views)}")

    def _lines(self, call: Call) -> list[str]:
        """Write one call."""
        target = self._target(call.results)
        if call.function is operator.setitem:
            a, index, value = call.args
            return [f"{self._text(a)}[{self._index(index)}] = {self._text(value)}"]
        if call.function in _UPDATES:
            a, b = self._operands(call)
            copied = [] if target == self._text(a) else [f"{target} = {self._text(a)}"]
            return [*copied, f"{target} {_UPDATES[call.function]} {self._text(b)}"]
        out = _written_by_ufunc(call)
        if out is not None:
            return [self._into(call.function, self._operands(call), self._text(out))]
        if call.expected is None:
            return [f"{target} = {self._value(call)}" if call.results is not None else self._value(call)]
        condition = getattr(call.function, "condition", None)
        if condition is not None:  # what `check` tests, without calls
            expected = call.expected if isinstance(call.expected, tuple) else (call.expected,)
            parts = [self._constant(part) for part in expected]
            return [f"if not ({condition.format(*map(self._text, call.args), *parts)}): stale({self._constant(call)})"]
        lines = [f"made = {self._value(call)}", f"check({self._constant(call)}, made)"]
        return lines if call.results is None else [*lines, f"{target} = made"]

    def _target(self, results: Any) -> str:
        if isinstance(results, tuple):
            return f"({''.join([f'{self._target(part)}, ' for part in results])})"
        return "_" if results is None else self._name(results)

    def _name(self, slot: Slot) -> str:
        """Write the name of what is in a slot."""
        return self.fixed.get(slot.number) or f"v{self.variables_of.get(slot.number, slot.number)}"

    def _value(self, call: Call) -> str:
        """Write the expression of a call's result."""
        function, args, keywords = call.function, call.args, call.keywords
        if not keywords and function in _BINARY:
            one, other = self._operands(call)
            return f"{self._text(one)} {_BINARY[function]} {self._text(other)}"
        if not keywords and function in _UNARY:
            return f"{_UNARY[function]}{self._text(args[0])}"
        if function is operator.getitem:
            return f"{self._text(args[0])}[{self._index(args[1])}]"
        attribute = getattr(function, "attribute", None)
        if attribute is not None:
            return f"{self._text(args[0])}.{attribute}"
        method = getattr(function, "method", None)
        called = self._constant(self._called(call)) if method is None else f"{self._text(args[0])}.{method}"
        given = [self._text(part) for part in args[method is not None :]]
        if begins_effects(function):
            given[:0] = ["begun", self._machine()]
        given += [f"{key}={self._text(part)}" for key, part in keywords.items()]
        return f"{called}({', '.join(given)})"

    def _into(self, function: Any, args: Sequence[Any], target: str) -> str:
        """Write a call whose result goes into an array; to name it `out`, and in a tuple, takes 0.05 us more."""
        given = [*map(self._text, args), f"out={target}" if function in _BY_NAME else target]
        return f"{self._constant(function)}({', '.join(given)})"

    def _operands(self, call: Call) -> Sequence[Any]:
        """Return the arguments of a call, with an array in place of a Python number that is computed with an array.

        NumPy makes such an array of the number each time, of the other's dtype, which takes half of the call's time.
        """
        if call.function not in _OF_NUMBERS or len(call.args) != 2:
            return call.args
        one, other = call.args
        return self._number_for(one, other), self._number_for(other, one)

    def _number_for(self, value: Any, other: Any) -> Any:
        """Return a Python number as an array of the dtype that another operand gives it; anything else as it is."""
        if value.__class__ not in (float, int) or other.__class__ is not Slot:
            return value
        layout = self.capture.layouts[other.number]
        if layout is None or not layout.shape or layout.dtype.kind != "f" or layout.device is not None:
            return value
        key = repr(value), layout.dtype
        if key not in self.numbers:
            with np.errstate(all="ignore"):
                made = np.array(value, layout.dtype)
            is_same = made == value if value.__class__ is int else np.isfinite(made) or not math.isfinite(value)
            self.numbers[key] = made if is_same else value
        return self.numbers[key]

    def _called(self, call: Call) -> Any:
        """Return the function of a call; one that may compute over its first argument, if nothing reads that later."""
        function, first = call.function, call.args[0] if call.args else None
        if not hasattr(function, "into") or first.__class__ is not Slot or call.results.__class__ is not Slot:
            return function
        one, other = self.capture.layouts[first.number], self.capture.layouts[call.results.number]
        is_alike = (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides)
        last = self._last_of(first.number)
        return over_first(function) if is_alike and last >= 0 and self.capture.calls[last] is call else function

    def _last_of(self, slot: int) -> int:
        """Return the number of the last call that reads an array's memory; -1 where it is read after all of them."""
        return self.last[slot] if self.last[slot] < len(self.capture.calls) else -1

    def _machine(self) -> str:
        """Write what represents the machine that makes calls."""
        return "None"

    def _index(self, index: Any) -> str:
        parts = index if isinstance(index, tuple) and index else (index,)
        texts = [self._slice(part) if isinstance(part, slice) else self._text(part) for part in parts]
        return ", ".join(texts) + ("," if isinstance(index, tuple) and len(index) == 1 else "")

    def _slice(self, part: slice) -> str:
        start, stop, step = ["" if k is None else self._text(k) for k in (part.start, part.stop, part.step)]
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def _text(self, value: Any) -> str:
        """Write an argument."""
        if isinstance(value, Slot):
            return self._name(value)
        if type(value) is tuple:
            return self._tuple(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._constant(type(value))}({', '.join(map(self._text, value))})"
        if type(value) is list:
            return f"[{', '.join(map(self._text, value))}]"
        if value is None or value is Ellipsis or type(value) in (bool, str, int):
            text = repr(value)
            return f"({text})" if text.startswith("-") else text
        if any(slots_in(value)):
            raise CaptureError(f"arrays within a {type(value).__name__} are not supported in a replay")
        return self._constant(value)

    def _tuple(self, parts: Iterable[Any]) -> str:
        return f"({''.join([f'{self._text(part)}, ' for part in parts])})"

    def _constant(self, value: Any) -> str:
        """Return the name of a value that is the same each time, such as a function or a constant array."""
        name = self.names.get(id(value))
        if name is None:
            said = getattr(value, "__name__", None)
            name = f"{said if isinstance(said, str) and said.isidentifier() else 'constant'}_{len(self.names)}"
            self.names[id(value)] = name
            self.scope[name] = value
        return name


def _is_numpys(function: Any) -> bool:
    """Tell whether a call computes, by a ufunc, an operator or a method of arrays."""
    is_operator = function.__class__ is BuiltinFunctionType and (function in _BINARY or function in _UNARY)
    return is_operator or function.__class__ is np.ufunc or getattr(function, "method", None) is not None


def begins_effects(function: Any) -> bool:
    """Tell whether a function appends to `begun`, together with what it changes."""
    return bool(getattr(function, "begins_effects", False))


def _written_by_ufunc(call: Call) -> Slot | None:
    """Return what a ufunc writes its only result into, where that is given by `out` and nothing else is by name."""
    ufunc, out = call.function, call.keywords.get("out")
    if out.__class__ is tuple and len(out) == 1:
        (out,) = out
    is_usual = isinstance(ufunc, np.ufunc) and ufunc.nout == 1 and len(call.args) == ufunc.nin
    return out if is_usual and out.__class__ is Slot and out == call.results and len(call.keywords) == 1 else None


def _keeps_nothing(function: Any) -> bool:
    """Tell whether a function with an effect keeps no array that it is given."""
    return bool(getattr(function, "keeps_nothing", False))


def nbytes_of(layout: Layout) -> int:
    """Return the bytes of an array of this layout."""
    return layout.dtype.itemsize * math.prod(layout.shape)


def _affordable(spans: dict[int, Span], others: Sequence[Span]) -> tuple[dict[int, int], int]:
    """Return where results lie in a block of memory that stays, and how large it is.

    Where the peak would be higher than if all came and went, what is held the longest does: it is in the way of what
    comes later, such as the gradients of a backward pass, and few calls make it. The cells of an LSTM keep two thirds
    of the bytes and nine tenths of the calls, and a step takes .83 of the time that it takes without.

    Args:
        spans: what may go into the block, by any key.
        others: what comes and goes.
    """
    spans, outside = spans.copy(), [*others]
    most = peak_of([*spans.values(), *others])
    allowed = most + max(_SPARE, int(_SPARE_SHARE * most))
    longest = sorted(spans, key=lambda key: spans[key].end - spans[key].start)
    while spans:
        inside, outer = [*spans.values()], peak_of(outside)
        nbytes, starts = peak_of(inside), list[int]()
        if nbytes + outer <= allowed:  # to place them takes longer
            starts, nbytes = packed(inside)
        over = nbytes + outer - allowed
        if over <= 0:
            return dict(zip(spans, starts, strict=True)), nbytes
        over = max(over, most >> 5)  # in few trials
        while over > 0 and longest:
            span = spans.pop(longest.pop())
            outside.append(span)
            over -= span.nbytes
    return {}, 0


def _arena(nbytes: int, views: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return views of a new block of memory, each by its start and layout."""
    block = np.empty(nbytes, np.uint8)
    return [np.ndarray(shape, dtype, block, start, strides) for start, shape, dtype, strides in views]
