"""Noted: what a name stood for, by value where it is plain, else by identity, and the text of a test for it."""

from __future__ import annotations

import array
import enum
import marshal
import math
import types
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._engine.tensor import Tensor

SMALL = 1 << 11  # bytes of an array that are compared
DEPTH = 6  # of containers in containers
MOST = 10000  # elements of a container that are compared

MISSING = object()  # what a name stands for that is not there
_SINGLE = (type(None), bool, type(Ellipsis), type(NotImplemented))
_NUMBERS = frozenset((int, float, complex, str, bytes))
_MARSHALLED = frozenset((int, float, complex, str, bool, type(None)))  # in containers, where bytes look like buffers
_BUFFERS = (np.ndarray, np.generic, bytearray, array.array, memoryview)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, types.MappingProxyType, slice, range)


def is_array(value: Any) -> bool:
    """Return True if a value is a Tensor or an array."""
    return isinstance(value, (Tensor, np.ndarray))


def _is_plain(value: Any, depth: int = DEPTH) -> bool:
    """Return True if `marshal` tells two such values apart: their types, the bits of floats, the order of dicts."""
    kind = value.__class__
    if kind in _MARSHALLED:
        return True
    if not depth or kind not in (list, tuple, dict) or len(value) > MOST:
        return False
    if kind is dict and not all(_is_plain(key, depth - 1) for key in value):
        return False
    return all(_is_plain(part, depth - 1) for part in (value.values() if kind is dict else value))


def parts_of(value: Any) -> list[Any] | None:
    """Return what is compared of a container or dataclass besides its class; None of anything else."""
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if isinstance(value, range):
        return [value.start, value.stop, value.step]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=lambda part: (hash(part), repr(part) if part.__class__ in _NUMBERS else ""))
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    if isinstance(value, types.MappingProxyType):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, deque)):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, name, MISSING) for name in type(value).__dataclass_fields__]
    return None


def is_dataclass(value: Any) -> bool:
    """Return True if a value is an instance of a dataclass."""
    return hasattr(type(value), "__dataclass_fields__")


def reference_to(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, and keeps it alive only where that cannot be held weakly."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def described(value: Any) -> str:
    """Return a value in words: plain ones themselves, others by their class."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, (*_SINGLE, *_NUMBERS, enum.Enum, np.generic, slice, range, np.dtype)) or _is_plain(value):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} {value.dtype}"
    if isinstance(value, _CONTAINERS):
        return f"a {type(value).__name__} of {len(value)}"
    name = getattr(value, "__name__", None) if isinstance(value, (types.FunctionType, type)) else None
    return name if isinstance(name, str) else f"a {type(value).__name__}"


class Noted:
    """What a value was; it keeps nothing alive but plain values.

    Attributes:
        arrays: weak references to the Tensors and arrays that it is or holds.
        is_missing: whether there was nothing.
    """

    __slots__ = ("_content", "_kind", "_parts", "_reference", "_text", "arrays", "is_missing")

    def __init__(self, value: Any, depth: int = DEPTH) -> None:
        self.is_missing = value is MISSING
        self._kind = value.__class__
        self._content: Any = None
        self._parts: list[Noted] | None = None
        self._reference: Callable[[], Any] | None = None
        self._text: str | None = None
        self.arrays: Sequence[Callable[[], Any]] = ()
        if self._kind in _NUMBERS or _is_plain(value):
            self._content = marshal.dumps(value, 2)
            return
        if isinstance(value, _BUFFERS) and (facts := _facts(value)) is not None:
            self._content = facts
        elif isinstance(value, np.dtype):
            self._content = value
        elif depth and (parts := parts_of(value)) is not None and len(parts) <= MOST:
            self._parts = [Noted(part, depth - 1) for part in parts]
            self.arrays = [held for part in self._parts for held in part.arrays]
        else:
            self._reference = (lambda: value) if value is MISSING else reference_to(value)
        self._text = described(value)
        if is_array(value):
            self.arrays = (reference_to(value),)

    def is_same(self, value: Any) -> bool:
        """Return True if another value is the same."""
        if self._reference is not None:
            return value is not None and self._reference() is value  # it may be gone
        if value.__class__ is not self._kind:
            return False
        if self._parts is not None:
            found = parts_of(value)
            return (
                found is not None
                and len(found) == len(self._parts)
                and all(part.is_same(each) for part, each in zip(self._parts, found, strict=True))
            )
        if isinstance(value, _BUFFERS):
            return bool(_facts(value) == self._content)
        if isinstance(value, np.dtype):
            return bool(value == self._content)
        try:
            return marshal.dumps(value, 2) == self._content
        except ValueError:  # it holds something else now
            return False

    def described(self) -> str:
        """Return in words what the value was."""
        return described(marshal.loads(self._content)) if self._text is None else self._text  # noqa: S302  # our own

    def difference(self, read: str, constant: Callable[[Any], str]) -> str:
        """Return the text of an expression that is true where the value is another one, as `is_same` says.

        Args:
            read: the text that reads the value; it is evaluated once.
            constant: returns the name of a value in the scope of the text.
        """
        if self._reference is not None:
            gone = f"{constant(self._reference)}()"
            return f"(x := {read}) is not {gone} or x is None"
        if self._parts is not None or issubclass(self._kind, (*_BUFFERS, np.dtype)):
            return f"not {constant(self.is_same)}({read})"
        kind, content = constant(self._kind), marshal.loads(self._content)  # noqa: S302  # our own
        if self._kind in (bool, type(None)):
            return f"{read} is not {content!r}"
        if self._kind in (int, str, bytes) or (self._kind is float and content and math.isfinite(content)):
            return f"(x := {read}).__class__ is not {kind} or x != {content!r}"
        return f"(x := {read}).__class__ is not {kind} or {constant(marshal.dumps)}(x, 2) != {self._content!r}"


def _facts(value: Any) -> Any:
    """Return what is compared of an array, a NumPy number or bytes; None where that is too much."""
    if isinstance(value, (bytearray, array.array, memoryview)):
        return bytes(value) if len(value) <= SMALL else None
    if value.nbytes > SMALL or value.dtype.hasobject:
        return None
    return value.tobytes(), value.shape, value.dtype
