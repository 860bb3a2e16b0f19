"""Stand-ins in place of what names stand for, while a function is captured.

A capture sees what a function does with its arguments and with Tensors. What else it computes with must be seen as
well, or its numbers would stay as they were in each replay: Generators, objects with array functions of their own, and
plain arrays too large to be compared in each call. While the function runs, the names of these stand for others, whose
calls are captured; each replay makes the calls with what the objects and arrays are then. What functions with
`functools.lru_cache` give is noted with what they were given, so that it can be compared.
"""

from __future__ import annotations

import functools
import operator
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MethodType, UnionType
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.generators import CapturedGenerator
from gradmgr._compile.captured_object import stand_in_for
from gradmgr._compile.captured_state import ObjectStandIn
from gradmgr._compile.sources import CONTAINERS, held_by, is_large_array, is_of_library, runs_each_time
from gradmgr._compile.tensor_capture import TensorCapture

Read = Callable[[], Any]
Write = Callable[[Any], None]

# Containers whose parts can be replaced, by these classes' own methods: a class of the user's may have others.
_MUTABLE: tuple[Any, ...] = (list, dict, deque)


def captured_object(value: Any) -> Any:
    """Return what represents a Generator, or for an object with array functions of its own; None of all else."""
    if value.__class__ is np.random.Generator:
        return CapturedGenerator(value)
    return stand_in_for(value) if runs_each_time(value) else None


def large_arrays_in(value: Any) -> Iterator[Any]:
    """Yield the large arrays that a value is or holds, for which nothing stands."""
    if is_large_array(value):
        yield value
    elif isinstance(value, CONTAINERS):
        for part in held_by(value):
            yield from large_arrays_in(part)


def _is_instance(value: Any, kinds: Any) -> bool:
    """Do as isinstance(), with what represents an array taken for the array.

    A class of the program's that answers by itself is given the stand-in, so that what it computes is captured.
    """
    if isinstance(value, CapturedArray):
        if isinstance(kinds, (tuple, UnionType)):
            parts = kinds if isinstance(kinds, tuple) else kinds.__args__
            return any(_is_instance(value, kind) for kind in parts)
        if is_of_library(type(kinds).__module__):
            value = value.inner
    return isinstance(value, kinds)


def _has_attribute(value: Any, name: str) -> bool:
    """Do as hasattr(), with what represents an array taken for the array."""
    return hasattr(value.inner if isinstance(value, CapturedArray) else value, name)


class CachedCall(NamedTuple):
    """What a function with `lru_cache` was given, and gave."""

    function: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any


def has_cache(value: Any) -> bool:
    """Tell whether a value is a function with `functools.lru_cache`."""
    return isinstance(value, functools._lru_cache_wrapper)


class CachingStandIn:
    """Takes the place of a function with `lru_cache`: notes its calls."""

    def __init__(self, function: Any, capture: TensorCapture, calls: list[CachedCall]) -> None:
        self._function = function
        self._capture = capture
        self._calls = calls

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        result = self._function(*args, **keywords)
        if self._capture.is_current():
            self._calls.append(CachedCall(self._function, args, keywords, result))
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        self._capture.add_obstacle(f"{name} of a function with functools.lru_cache")
        return getattr(self._function, name)


class IdentityStandIn:
    """Takes the place of id(): that of an argument is another one in each call, so it is an obstacle."""

    def __init__(self, capture: TensorCapture, arguments: Sequence[Any]) -> None:
        self._capture = capture
        self._arguments = set(map(id, arguments))
        self._has_containers = any(isinstance(a, (list, dict)) for a in arguments)  # a function gets copies of these

    def __call__(self, value: Any) -> int:
        is_given = id(value) in self._arguments or isinstance(value, CapturedArray)
        if self._capture.is_current() and (is_given or (self._has_containers and isinstance(value, (list, dict)))):
            self._capture.add_obstacle("id() of an argument")
        return id(value)


class StandIns:
    """Puts stand-ins in place of values, and takes them back.

    Args:
        capture: of the function.
        given: by the identity of arrays that are arguments, too, what represents these.
        arguments: of the function, and the containers in which they are.
        sees_arrays: whether the capture captures the calls of arrays; else arrays stay.

    Attributes:
        named: the identities of those among them that names stand for.
        cached: the calls of functions with `lru_cache`.
    """

    def __init__(
        self, capture: TensorCapture, given: Mapping[int, Any], arguments: Sequence[Any], *, sees_arrays: bool
    ) -> None:
        self._capture = capture
        self._sees_arrays = sees_arrays
        self.cached: list[CachedCall] = []
        self._given = given
        self.named: set[int] = set()
        self._made: dict[int, Any] = {}  # by the identity of a value: its stand-in, or itself
        self._replaced: list[tuple[Read, Write, Any, Any]] = []
        self._answering: list[tuple[dict[str, Any], str, Any]] = []  # globals, with what is in a built-in one's place
        self._id = IdentityStandIn(capture, arguments)

    def replace(self, read: Read, write: Write) -> None:
        """Let what `read` returns be a stand-in, or hold some, if there are any for it."""
        value = read()
        made = self._of(value)
        if made is value and has_cache(value):
            made = self._made[id(value)] = CachingStandIn(value, self._capture, self.cached)
        elif made is value and (found := captured_object(value)) is not None:
            made = self._made[id(value)] = found
        self._put(read, write, value, made)

    def answer_in(self, variables: dict[str, Any], name: str) -> None:
        """Let code with these globals ask what it asks of arrays for which others stand, or for an identity."""
        answer = {"hasattr": _has_attribute, "id": self._id, "isinstance": _is_instance}[name]
        if variables.setdefault(name, answer) is answer:
            self._answering.append((variables, name, answer))

    def has(self, array: Any) -> bool:
        """Tell whether something represents an array."""
        return self._made.get(id(array), array) is not array

    def _put(self, read: Read, write: Write, value: Any, made: Any) -> None:
        if made is not value:
            self._replaced.append((read, write, value, made))
            write(made)

    def _of(self, value: Any) -> Any:
        """Return what represents an array, or for a tuple with arrays; other containers hold stand-ins then."""
        if id(value) in self._made:
            return self._made[id(value)]
        if not self._sees_arrays or not isinstance(value, (np.ndarray, *CONTAINERS)):
            return value
        self._made[id(value)] = value  # it may hold itself
        if isinstance(value, np.ndarray):
            if id(value) in self._given:
                self.named.add(id(value))
                self._made[id(value)] = self._given[id(value)]
            elif is_large_array(value) and _is_usual(value):
                self._made[id(value)] = self._capture.add_named(value)
        elif isinstance(value, tuple):
            parts = list(map(self._of, value))
            if not all(map(operator.is_, parts, value)) and not getattr(value, "__dict__", None):
                self._made[id(value)] = tuple.__new__(value.__class__, parts)
        else:
            self._replace_parts(value.data if isinstance(value, (UserDict, UserList)) else value)
        return self._made[id(value)]

    def _replace_parts(self, container: Any) -> None:
        kind = next((kind for kind in _MUTABLE if isinstance(container, kind)), None)
        if kind is None:
            return
        for key, part in list(dict.items(container) if kind is dict else enumerate(kind.__iter__(container))):
            read, write = partial(kind.__getitem__, container, key), partial(kind.__setitem__, container, key)
            self._put(read, write, part, self._of(part))

    def restore(self) -> None:
        """Put the values themselves back where stand-ins still are; called twice it does nothing more."""
        for read, write, value, made in reversed(self._replaced):
            try:
                found = read()
            except LookupError:  # the function has removed it
                continue
            if found is made:
                write(value)
        for variables, name, answer in self._answering:
            if variables.get(name) is answer:
                del variables[name]


def _is_usual(array: Any) -> bool:
    """Tell whether NumPy alone computes with an array and its elements."""
    return array.__class__ in (np.ndarray, np.memmap) and not array.dtype.hasobject


def release(value: Any, write: Write | None) -> None:
    """Put arrays and objects in place of stand-ins that the function has left where a name leads."""
    if isinstance(value, CapturedArray):
        if write is not None:
            write(value.inner)
    elif issubclass(type(value), ObjectStandIn):
        if write is not None:
            write(value.real)
    elif value.__class__ is list:
        for k, part in enumerate(value):
            release(part, partial(operator.setitem, value, k))
    elif value.__class__ is dict:
        for key, part in list(value.items()):
            release(part, partial(operator.setitem, value, key))
