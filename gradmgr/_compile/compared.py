"""What names stood for when a function was captured, and how to tell whether they still stand for the same.

Numbers, texts and small arrays are compared by value, bit by bit; lists, dicts and their like by what they hold; all
else by identity. Nothing is kept alive that can be held weakly.
"""

from __future__ import annotations

import functools
import logging
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradmgr._compile.name_tests import CountOfAttributes
from gradmgr._compile.sources import (
    BY_BYTES,
    BY_TEXT,
    BY_VALUE,
    CONTAINERS,
    SMALL,
    held_by,
    is_large_array,
    is_of_program,
)
from gradmgr._engine.tensor import Tensor

DEPTH = 6  # of containers in containers
MOST = 10000  # elements of a container that are compared


class Closeness(NamedTuple):
    """What is compared besides values, as code asks for it.

    Attributes:
        identity: whether containers that can change must be the same objects.
        flags: whether small arrays must have the same strides and flags.
    """

    identity: bool = False
    flags: bool = False


_USUAL = Closeness()


class ComparedValue:
    """What a value was, and how to tell whether another one is the same; its attributes are those of `Value`."""

    __slots__ = ("_closeness", "content", "kind", "parts", "reference", "value")

    def __init__(self, value: Any, closeness: Closeness = _USUAL, depth: int = DEPTH) -> None:
        self._closeness = closeness
        self.kind = value.__class__
        self.content = _content(value, closeness)
        self.reference: Any = None
        self.parts: list[ComparedValue] | None = None
        self.value = value if isinstance(value, BY_TEXT) else None
        if isinstance(value, CONTAINERS) and depth and len(value) <= MOST:
            self.parts = [ComparedValue(part, closeness, depth - 1) for part in held_by(value)]
            has_attributes = is_of_program(self.kind.__module__) and not isinstance(value, tuple)
            if has_attributes or (closeness.identity and not isinstance(value, (tuple, frozenset))):
                self.reference = reference_to(value)
        elif not isinstance(value, (*BY_VALUE, *BY_TEXT)) or (closeness.identity and _is_nan(value)):
            self.reference = reference_to(value)

    def is_same(self, value: Any) -> bool:
        """Tell whether another value is the same."""
        if self.reference is not None:
            if value is None or self.reference() is not value:  # it may be gone
                return False
            if self.parts is None and self.content is None:
                return True
        elif value.__class__ is not self.kind:
            return False
        if self.parts is None:
            return bool(_content(value, self._closeness) == self.content)
        found = held_by(value)
        if len(found) != len(self.parts):
            return False
        for part, each in zip(self.parts, found, strict=True):
            reference = part.reference
            if reference is not None and part.content is part.parts is None:  # without a call, as there are many
                if each is None or reference() is not each:
                    return False
            elif not part.is_same(each):
                return False
        return True


def _content(value: Any, closeness: Closeness) -> Any:
    """Return what is compared of a value besides its identity."""
    if isinstance(value, (*BY_TEXT, range)):  # ranges are equal where they are empty
        return repr(value)
    if isinstance(value, np.generic):
        return value.tobytes(), value.dtype
    if isinstance(value, np.ndarray):
        if value.nbytes > SMALL or value.dtype == object:
            return None
        flags = (value.flags.num, value.strides) if closeness.flags else ()
        return (value.tobytes(), value.shape, value.dtype, *flags)
    if isinstance(value, BY_BYTES):
        return bytes(value)
    if isinstance(value, logging.Logger):
        return value.getEffectiveLevel(), value.disabled, value.manager.disable
    return value if isinstance(value, BY_VALUE) else None


def _is_nan(value: Any) -> bool:
    return isinstance(value, BY_TEXT) and bool(value != value)


def is_unchanging(value: Any) -> bool:
    """Tell whether nothing of a value can change."""
    if isinstance(value, tuple):
        return all(map(is_unchanging, value))
    kinds = (*BY_VALUE, *BY_TEXT, types.CodeType, types.FunctionType, type, np.dtype)
    return isinstance(value, kinds) and not is_of_program(type(value).__module__)


def is_comparable(value: Any) -> bool:
    """Tell whether a change of a value is noticed in each call, without a look at what it refers to."""
    if isinstance(value, tuple):
        return all(map(is_comparable, value))
    is_array = value.__class__ is np.ndarray and not is_large_array(value)
    return is_array or isinstance(value, Tensor) or is_unchanging(value)


def reference_to(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, and keeps it alive only where that cannot be held weakly."""
    if isinstance(value, types.CodeType):
        return functools.partial(_itself, value)
    try:
        return weakref.ref(value)
    except TypeError:
        return functools.partial(_itself, value)


def _itself(value: Any) -> Any:
    return value


class ComparedName:
    """A name and what it stood for.

    Attributes:
        name: what the user calls it.
        value: what it stood for, once that is noted.
        read: returns what it refers to now.
        write: makes it stand for something else.
        place: where `name_tests` finds what it refers to without a call; None if it does not.
        code: of the function for which it was found first; None for what the arguments lead to.
        may_change: whether the function itself may change it: then it is captured once more.
    """

    __slots__ = ("code", "may_change", "name", "place", "read", "value", "write")

    value: ComparedValue

    def __init__(
        self,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], None] | None = None,
        place: Any = None,
        code: types.CodeType | None = None,
    ) -> None:
        self.code = code
        self.may_change = isinstance(place, CountOfAttributes)
        self.name = name
        self.place = place
        self.read = read
        self.write = write

    def note(self, closeness: Closeness = _USUAL) -> ComparedName:
        """Take what it refers to now for what it referred to."""
        self.value = ComparedValue(self.read(), closeness)
        return self

    def is_same(self) -> bool:
        """Tell whether it is the same."""
        return self.value.is_same(self.read())
