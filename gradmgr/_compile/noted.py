"""Noted: what a name stood for, by value where it is plain, else by identity, and the text of a test for it."""

from __future__ import annotations

import array
import enum
import marshal
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
SCALARS = frozenset((int, float, complex, str, bytes, bool, type(None)))


def is_array(value: Any) -> bool:
    """Return True if a value is a Tensor or an array."""
    return isinstance(value, (Tensor, np.ndarray))


def is_dataclass(value: Any) -> bool:
    """Return True if a value is an instance of a dataclass."""
    return hasattr(type(value), "__dataclass_fields__")


def _is_plain(value: Any, depth: int = DEPTH) -> bool:
    """Return True if `marshal` tells two such values apart: types, bits of floats, the order of dicts."""
    kind = value.__class__
    if kind in SCALARS:
        return kind is not bytes or depth == DEPTH  # in containers they look like what has a buffer
    if not depth or kind not in (list, tuple, dict) or len(value) > MOST:
        return False
    parts = [*value, *value.values()] if kind is dict else value
    return all(_is_plain(part, depth - 1) for part in parts)


def _content(value: Any) -> Any:
    """Return what is compared of a plain value, an array, a NumPy number, bytes or a dtype besides its class."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tobytes(), value.shape, value.dtype
    if isinstance(value, (np.dtype, bytearray, array.array)):
        return value if isinstance(value, np.dtype) else bytes(value)
    return marshal.dumps(value, 2)


def _has_content(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.nbytes <= SMALL and not value.dtype.hasobject
    if isinstance(value, (bytearray, array.array)):
        return len(value) <= SMALL
    return isinstance(value, np.dtype) or _is_plain(value)


def _parts_of(value: Any) -> list[Any] | None:
    """Return what is compared of a container or dataclass besides its class; None of anything else."""
    if isinstance(value, (slice, range)):
        return [value.start, value.stop, value.step]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=lambda part: (hash(part), repr(part) if part.__class__ in SCALARS else ""))
    if isinstance(value, (dict, types.MappingProxyType)):
        return [*value, *(dict.values(value) if isinstance(value, dict) else value.values())]
    if isinstance(value, (list, tuple, deque)):
        return list(value)
    return [getattr(value, name, MISSING) for name in type(value).__dataclass_fields__] if is_dataclass(value) else None


def reference_to(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, and keeps it alive only where that cannot be held weakly."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def described(value: Any) -> str:
    """Return a value in words: plain ones themselves, others by their class."""
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} {value.dtype}"
    is_short = value.__class__ in (list, tuple, dict) and len(value) <= 10 and _is_plain(value)
    if value.__class__ in SCALARS or is_short or isinstance(value, (enum.Enum, np.generic, np.dtype, slice, range)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (types.FunctionType, type)):
        return value.__name__
    return "nothing" if value is MISSING else f"a {type(value).__name__}"


class Noted:
    """What a value was; it keeps nothing alive but plain values, and what cannot be held weakly.

    Attributes:
        arrays: weak references to the Tensors and arrays that it is or holds.
        is_missing: whether there was nothing.
        text: the value in words.
    """

    __slots__ = ("_content", "_kind", "_parts", "_reference", "_scalar", "arrays", "is_missing", "text")

    def __init__(self, value: Any, depth: int = DEPTH) -> None:
        self._kind = value.__class__
        self.is_missing = value is MISSING
        self.text = described(value)
        self._scalar = value if self._kind in SCALARS else None
        self._content = _content(value) if _has_content(value) else None
        self._reference: Callable[[], Any] | None = None
        parts = _parts_of(value) if depth and self._content is None else None
        self._parts = None if parts is None or len(parts) > MOST else [Noted(part, depth - 1) for part in parts]
        if self._content is None and self._parts is None:
            self._reference = reference_to(value)
        held = [reference for part in self._parts or () for reference in part.arrays]
        self.arrays: Sequence[Callable[[], Any]] = [reference_to(value)] if is_array(value) else held

    def is_same(self, value: Any) -> bool:
        """Return True if another value is the same."""
        if self._reference is not None:
            return value is not None and self._reference() is value  # it may be gone
        if value.__class__ is not self._kind:
            return False
        if self._parts is None:
            try:
                return bool(_content(value) == self._content)
            except ValueError:  # it holds something else now
                return False
        found = _parts_of(value) or []
        return len(found) == len(self._parts) and all(map(Noted.is_same, self._parts, found))

    def difference(self, read: str, constant: Callable[[Any], str]) -> str:
        """Return the text of an expression that is true where the value is another one, as `is_same` says.

        Args:
            read: the text that reads the value; it is evaluated once.
            constant: returns the name of a value in the scope of the text.
        """
        if self._reference is not None:
            return f"(x := {read}) is not {constant(self._reference)}() or x is None"
        if self._kind in SCALARS:
            return f"(x := {read}) is not {constant(self._scalar)} and not {constant(self.is_same)}(x)"
        return f"not {constant(self.is_same)}({read})"
