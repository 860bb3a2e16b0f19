"""The test whether names stand for what they did, written as the text of one function.

Each replay makes it. A line for each name takes 0.05 to 0.1 us, a third of what a loop over objects that describe the
names takes:

    def are_same():
        try:
            if (x := globals_0['rate']).__class__ is not int_1 or x != constant_2: return False
            d0 = reference_3().__dict__
            if (x := d0['weights']) is not reference_4() or x is None: return False
        except (AttributeError, KeyError, ValueError): return False
        return True
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

_MOST_WRITTEN = 100  # parts of a container


class Attribute(NamedTuple):
    """An attribute that stands in the dict of an object, which `owner()` is, or None if it is gone."""

    owner: Callable[[], Any]
    name: str


class OfItself(NamedTuple):
    """An attribute of an object, which `owner()` is, that does not stand in its dict."""

    owner: Callable[[], Any]
    name: str


class CountOfAttributes(NamedTuple):
    """How many attributes stand in the dict of an object, which `owner()` is."""

    owner: Callable[[], Any]


class OfClass(NamedTuple):
    """The bases of a class, and how many attributes stand in its dict."""

    owner: type
    bases: tuple[type, ...]
    attributes: int


class Result(NamedTuple):
    """What a function gave: the same object, or an equal one."""

    read: Callable[[], Any]
    value: Any
    is_same_object: bool


class AbsentGlobals(NamedTuple):
    """Names that are not among globals."""

    variables: dict[str, Any]
    names: tuple[str, ...]


class Value(Protocol):
    """What a value was.

    Attributes:
        kind: its class.
        value: the value itself, where the same object is the same value and is kept alive for it.
        content: what is compared of it besides its identity; None if there is nothing.
        reference: what gives the object that is compared by identity; None if none is.
        parts: of a container.
    """

    kind: type
    value: Any
    content: Any
    reference: Callable[[], Any] | None
    parts: Any


class Name(Protocol):
    """A name and what it stood for: see `environment`."""

    value: Any
    place: Any

    def is_same(self) -> bool:
        """Tell whether it is the same."""


def write_test(names: Iterable[Name]) -> Callable[[], bool]:
    """Return a function that tells whether all names stand for what they did; it may say no where they do."""
    return _Writer().function(names)


class _Writer:
    """Writes the text of one function."""

    def __init__(self) -> None:
        self._scope: dict[str, Any] = {}
        self._constants: dict[int, str] = {}  # by their identity
        self._owners: dict[int, str] = {}  # the names of the dicts of objects, by the identity of these
        self._lines: list[str] = []

    def function(self, names: Iterable[Name]) -> Callable[[], bool]:
        for name in names:
            self._write(name)
        body = [f"        {line}" for line in self._lines or ["pass"]]
        end = ["    except (AttributeError, KeyError, ValueError): return False", "    return True"]
        text = "\n".join(["def are_same():", "    try:", *body, *end])
        exec(compile(text, "<gradmgr names>", "exec"), self._scope)  # noqa: S102  # text of our own
        return self._scope.pop("are_same")  # type: ignore[no-any-return]  # the function that the text defines

    def _constant(self, value: Any, name: str = "constant") -> str:
        found = self._constants.get(id(value))
        if found is None:
            found = self._constants[id(value)] = f"{name}_{len(self._constants)}"
            self._scope[found] = value
        return found

    def _write(self, name: Name) -> None:
        differs = self._changed_setting(name.place)
        if differs is None:
            read = self._reading(name.place)
            differs = None if read is None else self._difference(name.value, read)
        self._lines.append(f"if {differs or f'not {self._constant(name.is_same)}()'}: return False")

    def _changed_setting(self, place: Any) -> str | None:
        """Write a test that is true where what stands in a place is not what the place itself says; else None."""
        if isinstance(place, OfClass):
            kind, bases = self._constant(place.owner, "class"), self._constant(place.bases)
            return f"{kind}.__mro__ is not {bases} or len({kind}.__dict__) != {place.attributes}"
        if isinstance(place, Result):
            comparison = "is not" if place.is_same_object else "!="
            return f"{self._constant(place.read, 'read')}() {comparison} {self._constant(place.value)}"
        if isinstance(place, AbsentGlobals):
            variables = self._constant(place.variables, "globals")
            return " or ".join([f"{name!r} in {variables}" for name in place.names])
        return None

    def _reading(self, place: Any) -> str | None:
        """Write what a name refers to; None if that takes a call."""
        if place is None:
            return None
        if isinstance(place, types.CellType):
            return f"{self._constant(place, 'cell')}.cell_contents"
        if isinstance(place, OfItself):
            return f"{self._constant(place.owner, 'reference')}().{place.name}"
        if isinstance(place, CountOfAttributes):
            return f"len({self._dict_of(place.owner)})"
        if isinstance(place, Attribute):
            return f"{self._dict_of(place.owner)}[{place.name!r}]"
        variables, name = place
        return f"{self._constant(variables, 'globals')}[{name!r}]"

    def _dict_of(self, owner: Callable[[], Any]) -> str:
        """Write a line that gets the dict of an object, if there is none, and return its name."""
        key = id(owner())
        if key not in self._owners:
            self._owners[key] = f"d{len(self._owners)}"
            self._lines.append(f"{self._owners[key]} = {self._constant(owner, 'reference')}().__dict__")
        return self._owners[key]

    def _difference(self, value: Value, read: str) -> str | None:
        """Write a test that is true where what is read is not the value; None if that takes a call."""
        if value.reference is not None and value.parts is None:
            differs = self._is_other(value, f"(x := {read})")
            if value.content is None:
                return differs
            if value.kind is not np.ndarray or len(value.content) != 3:
                return None
            data, shape, dtype = map(self._constant, value.content)
            return f"{differs} or x.tobytes() != {data} or x.shape != {shape} or x.dtype is not {dtype}"
        if value.parts is not None:
            return self._difference_of_parts(value, read)
        if value.value is not None or value.kind is type(None):
            return f"{read} is not {self._constant(value.value)}"
        kind = self._constant(value.kind, value.kind.__name__)
        if not isinstance(value.content, value.kind):  # of a NumPy scalar its bits, of a range its text
            return None
        return f"(x := {read}).__class__ is not {kind} or x != {self._constant(value.content)}"

    def _is_other(self, value: Value, read: str) -> str:
        if isinstance(value.reference, functools.partial):  # which keeps the object
            return f"{read} is not {self._constant(value.reference())}"
        # The object may be gone, and None in its place.
        name = "x" if read.startswith("(") else read
        return f"{read} is not {self._constant(value.reference, 'reference')}() or {name} is None"

    def _difference_of_parts(self, value: Value, read: str) -> str | None:
        """Write the test of a list or tuple of which only the identities count."""
        parts = value.parts
        if value.kind not in (list, tuple) or not 0 < len(parts) <= _MOST_WRITTEN:
            return None
        if any(part.reference is None or part.content is not None or part.parts is not None for part in parts):
            return None
        names = [f"p{k}" for k in range(len(parts))]
        is_other = f"(x := {read}).__class__ is not {value.kind.__name__}"
        if value.reference is not None:
            is_other = self._is_other(value, f"(x := {read})")
        self._lines.append(f"if {is_other} or len(x) != {len(parts)}: return False")
        self._lines.append(f"{', '.join(names)}, = x")
        return " or ".join([self._is_other(part, name) for part, name in zip(parts, names, strict=True)])
