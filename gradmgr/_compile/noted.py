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

from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._engine.tensor import Tensor

SMALL = 1 << 11  # bytes of an array that are compared
DEPTH = 6  # of containers in containers
MOST = 10000  # elements of a container that are compared

MISSING = object()  # what a name stands for that is not there
_CHANGING = object()  # `_constant` of what may change
SCALARS = frozenset((int, float, complex, str, bytes, bool, type(None)))


def is_array(value: Any) -> bool:
    """Return True if a value is a Tensor or an array, of a GPU too."""
    return isinstance(value, (Tensor, np.ndarray)) or is_on_gpu(value)


def is_dataclass(value: Any) -> bool:
    """Return True if a value is an instance of a dataclass."""
    return hasattr(type(value), "__dataclass_fields__")


def _is_plain(value: Any, depth: int = DEPTH, room: list[int] | None = None) -> bool:
    """Return True if `marshal` tells two such values apart: types, bits of floats, the order of dicts."""
    kind = value.__class__
    if kind in SCALARS:
        return kind is not bytes or depth == DEPTH  # in containers they look like what has a buffer
    if not depth or kind not in (list, tuple, dict) or not _fits(len(value), room := [MOST] if room is None else room):
        return False
    parts = [*value, *value.values()] if kind is dict else value
    return all(_is_plain(part, depth - 1, room) for part in parts)


def _fits(count: int, room: list[int]) -> bool:
    """Return True if as many elements are still to be compared; take them."""
    room[0] -= count
    return room[0] >= 0


def _content(value: Any) -> Any:
    """Return what is compared of a plain value, an array, a NumPy number, bytes or a dtype besides its class."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tobytes(), value.shape, value.dtype
    if isinstance(value, (np.dtype, bytearray, array.array)):
        return value if isinstance(value, np.dtype) else bytes(value)
    return marshal.dumps(value, 2)


def _has_content(value: Any, room: list[int]) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.nbytes <= SMALL and not value.dtype.hasobject
    if isinstance(value, (bytearray, array.array)):
        return len(value) <= SMALL
    return isinstance(value, np.dtype) or _is_plain(value, DEPTH, room)


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
    """

    __slots__ = ("_constant", "_content", "_kind", "_parts", "_reference", "_text", "arrays", "is_missing")

    def __init__(self, value: Any, depth: int = DEPTH, room: list[int] | None = None) -> None:
        kind = self._kind = value.__class__
        self.is_missing = value is MISSING
        is_constant = kind in SCALARS or (kind is tuple and all(part.__class__ in SCALARS for part in value))
        self._constant = value if is_constant else _CHANGING  # the same as long as it is this one
        self._text = "" if is_constant else described(value)
        self._content = _content(value) if _has_content(value, [MOST] if room is None else room) else None
        self._reference: Callable[[], Any] | None = None
        parts = _parts_of(value) if depth and self._content is None else None
        room = [MOST] if room is None else room
        is_compared = parts is not None and _fits(len(parts), room)
        self._parts = [Noted(part, depth - 1, room) for part in parts or ()] if is_compared else None
        if self._content is None and self._parts is None:
            self._reference = reference_to(value)
        is_itself = not is_constant and is_array(value)
        held = [reference for part in self._parts or () for reference in part.arrays]
        self.arrays: Sequence[Callable[[], Any]] = [reference_to(value)] if is_itself else held

    @property
    def text(self) -> str:
        """The value in words."""
        return self._text or described(self._constant)

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
        if len(found) != len(self._parts):
            return False
        for part, each in zip(self._parts, found, strict=True):  # with few calls, as there may be many
            reference = part._reference
            if reference is None:
                if part._constant is not each and not part.is_same(each):
                    return False
            elif each is None or reference() is not each:
                return False
        return True

    def compare_by_identity(self, value: Any, known: set[int]) -> None:
        """Let arrays of these identities be compared by identity alone, in what the value still is."""
        if self._content is not None and id(value) in known:
            self._content, self._reference = None, reference_to(value)
        for part, each in zip(self._parts or (), _parts_of(value) or (), strict=False):
            part.compare_by_identity(each, known)

    def difference(self, read: str, constant: Callable[[Any], str]) -> str:
        """Return the text of an expression that is true where the value is another one, as `is_same` says.

        Args:
            read: the text that reads the value; it is evaluated once.
            constant: returns the name of a value in the scope of the text.
        """
        if self._reference is not None:
            return f"(x := {read}) is not {constant(self._reference)}() or x is None"
        if self._constant is not _CHANGING:
            return f"(x := {read}) is not {constant(self._constant)} and not {constant(self.is_same)}(x)"
        return f"not {constant(self.is_same)}({read})"
