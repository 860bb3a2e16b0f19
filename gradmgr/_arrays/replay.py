"""A capture as a function: its calls written as Python text, one line each, with nothing between them.

The text names the results of calls `v0`, `v1`, ... by their slots, spells operators, methods and indices as a person
would, and drops each value after the last line that reads it. For the product of two arrays and its sum:

    def replay(v0, v1):
        v2 = v0 * v1
        del v0, v1
        v3 = v2.sum(axis=0)
        return v3,
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from gradmgr._arrays.captured import Call, Capture, CapturedArray, CaptureError, Slot, check

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


def compile_replay(capture: Capture, results: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of arrays in place of the inputs that makes the calls again and returns these results.

    Args:
        capture: what to replay.
        results: captured arrays, and other values, which are returned as they are.

    Raises:
        CaptureError: there are obstacles. The function raises it where a guard has another value; what was written
            until then into the inputs stays.
    """
    capture.check_obstacles()
    return _Writer(capture, results).function()


class _Writer:
    """Writes the text of one replay."""

    def __init__(self, capture: Capture, results: Sequence[Any]) -> None:
        self.capture = capture
        self.results = [part.slot if isinstance(part, CapturedArray) else part for part in results]
        self.scope: dict[str, Any] = {"check": check, "CaptureError": CaptureError}
        self.names: dict[int, str] = {}  # of constants and functions, by identity
        self.last = self._last_uses()

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Return the compiled function; its text is its attribute `text`."""
        inputs = ", ".join([_variable(slot) for slot in self.capture.inputs])
        lines = [f"def replay({inputs}):"]
        for number, call in enumerate(self.capture.calls):
            lines += [f"    {line}" for line in self._lines(call)]
            dropped = [f"v{k}" for k in sorted(self._slots_of(call)) if self.last[k] == number]
            lines += [f"    del {', '.join(dropped)}"] if dropped else []
        lines.append(f"    return {self._tuple(self.results)}")
        text = "\n".join(lines)
        exec(compile(text, "<gradmgr replay>", "exec"), self.scope)  # noqa: S102  # text of our own
        made: Any = self.scope["replay"]
        made.text = text
        return made  # type: ignore[no-any-return]  # a function of the scope

    # ------------------------------------------------------------ when a value is read last

    def _slots_of(self, call: Call) -> set[int]:
        return {slot.number for slot in _slots_in((call.args, call.keywords, call.results))}

    def _last_uses(self) -> dict[int, int]:
        """Return the number of the call after which each slot is not needed; results of the replay are always."""
        last = {slot.number: -1 for slot in self.capture.inputs}
        for number, call in enumerate(self.capture.calls):
            last |= dict.fromkeys(self._slots_of(call), number)
        return last | {slot.number: len(self.capture.calls) for slot in _slots_in(self.results)}

    # ------------------------------------------------------------ text

    def _lines(self, call: Call) -> list[str]:
        """Write one call."""
        target = self._target(call.results)
        if call.function is operator.setitem:
            a, index, value = call.args
            return [f"{self._text(a)}[{self._index(index)}] = {self._text(value)}"]
        if call.function in _UPDATES:
            a, b = call.args
            copied = [] if target == self._text(a) else [f"{target} = {self._text(a)}"]
            return [*copied, f"{target} {_UPDATES[call.function]} {self._text(b)}"]
        if call.expected is None:
            return [f"{target} = {self._value(call)}" if call.results is not None else self._value(call)]
        lines = [f"made = {self._value(call)}", f"check({self._constant(call)}, made)"]
        return lines if call.results is None else [*lines, f"{target} = made"]

    def _target(self, results: Any) -> str:
        if isinstance(results, tuple):
            return f"({''.join([f'{self._target(part)}, ' for part in results])})"
        return "_" if results is None else _variable(results)

    def _value(self, call: Call) -> str:
        """Write the expression of a call's result."""
        function, args, keywords = call.function, call.args, call.keywords
        if not keywords and function in _BINARY:
            return f"{self._text(args[0])} {_BINARY[function]} {self._text(args[1])}"
        if not keywords and function in _UNARY:
            return f"{_UNARY[function]}{self._text(args[0])}"
        if function is operator.getitem:
            return f"{self._text(args[0])}[{self._index(args[1])}]"
        attribute = getattr(function, "attribute", None)
        if attribute is not None:
            return f"{self._text(args[0])}.{attribute}"
        method = getattr(function, "method", None)
        called = self._constant(function) if method is None else f"{self._text(args[0])}.{method}"
        given = [self._text(part) for part in args[method is not None :]]
        given += [f"{key}={self._text(part)}" for key, part in keywords.items()]
        return f"{called}({', '.join(given)})"

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
            return _variable(value)
        if type(value) is tuple:
            return self._tuple(value)
        if type(value) is list:
            return f"[{', '.join(map(self._text, value))}]"
        if value is None or value is Ellipsis or type(value) in (bool, str, int):
            text = repr(value)
            return f"({text})" if text.startswith("-") else text
        if any(_slots_in(value)):
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


def _variable(slot: Slot) -> str:
    return f"v{slot.number}"


def _slots_in(value: Any) -> Iterator[Slot]:
    """Find the slots in nested tuples, lists, dicts and slices."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _slots_in(part)
    elif isinstance(value, dict):
        yield from _slots_in(list(value.values()))
    elif isinstance(value, slice):
        yield from _slots_in((value.start, value.stop, value.step))
