"""Accumulation: what a function does to counters, lists and attributes outside of it that it does not read.

A counter that only grows, a list that is only appended to and an attribute that is only assigned decide nothing that
the function computes (`accumulation_facts`). So a program need not compare what they hold; it adds, appends and assigns
in each replay what the function would, at its end.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gradmgr._arrays.captured import CapturedArray
from gradmgr._compile.accumulation_facts import APPENDS, ASSIGNS, COUNTS, Use, Uses
from gradmgr._compile.captured_state import ObjectStandIn
from gradmgr._compile.compared import ComparedName
from gradmgr._compile.name_reading import MISSING
from gradmgr._compile.name_tests import Attribute
from gradmgr._compile.sources import is_module, is_of_library
from gradmgr._compile.tensor_capture import TensorCapture
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.parameter import Parameter

_UNASSIGNED = object()  # stands in an attribute while a function is captured that only assigns it
# Classes whose objects keep their attributes in a dict, and do nothing else with them.
_PLAIN_CLASSES: Any = object, types.SimpleNamespace


class Place:
    """Where an accumulated value stands; it does not keep the object alive whose attribute it is.

    Attributes:
        name: what the user calls it.
        attribute: the name of the attribute, and what returns its object; None if it is of none.
        use: how the function uses it.
        read: returns the value.
        write: puts another one there.
    """

    __slots__ = ("_holder", "_key", "attribute", "name", "read", "use", "write")

    def __init__(self, key: Any, found: ComparedName, use: Use) -> None:
        self._key = key, use
        self.attribute = found.place if isinstance(found.place, Attribute) else None
        self.use = use
        self._holder = found.read
        self.name = found.name if use.key is None else f"{found.name}[{use.key!r}]"
        self.read = found.read if use.key is None else partial(_item, found.read, use.key)
        self.write: Any = found.write if use.key is None else partial(_set_item, found.read, use.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def identity(self) -> Any:
        """Return a value that differs between two places that hold different objects."""
        if self.use.kind == APPENDS:
            return id(self.read())
        if self.use.key is not None:
            return id(self._holder()), self.use.key
        if self.attribute is not None:  # two objects may share their dict
            return id(getattr(self.attribute.owner(), "__dict__", None)), self.attribute.name
        return self

    def is_usual(self) -> bool:
        """Tell whether what stands there is what such code adds or appends to."""
        if self.use.kind == ASSIGNS:
            return True
        return self.read().__class__ is (int if self.use.kind == COUNTS else list)


def _item(read: Callable[[], Any], key: Any) -> Any:
    held = read()
    is_of_optimizer = held.__class__ is dict and "params" in held  # its group, which it reads
    if held.__class__ not in (dict, defaultdict) or key not in held or is_of_optimizer:
        return MISSING
    return held[key]


def _set_item(read: Callable[[], Any], key: Any, value: Any) -> None:
    read()[key] = value


def places_of(key: Any, name: ComparedName, uses: Uses) -> list[Place]:
    """Return the places that code accumulates in where it uses a name in these ways only; none where it may not be.

    Args:
        key: by which the search knows the name.
        name: the name.
        uses: how all code uses it.
    """
    made = [Place(key, name, use) for use in uses] if name.write is not None else []
    return made if all(place.is_usual() for place in made) else []


def is_settable(owner: Any, name: str) -> bool:
    """Tell whether to set an attribute, which stands in the dict of an object, is to set an item of that dict.

    It is not where a library's code reads it, such as `training` of a Module.
    """
    kind = type(owner)
    found = next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)
    if hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"):
        return False
    setter: Any = kind.__setattr__
    is_of_module = is_module(kind) and getattr(setter, "__module__", "").startswith("gradmgr.")
    is_plain = is_of_module or any(setter is cls.__setattr__ for cls in _PLAIN_CLASSES)
    is_plain = is_plain and any(kind.__getattribute__ is cls.__getattribute__ for cls in _PLAIN_CLASSES)
    if not is_plain or name in vars(owner).get("_kinds", ()):
        return False
    return not any(name in _words_of(cls) for cls in kind.__mro__ if is_of_library(cls.__module__))


def _words_of(kind: type) -> frozenset[str]:
    """Return the names in the code of a library's class."""
    codes = [getattr(getattr(found, "fget", found), "__code__", None) for found in vars(kind).values()]
    return frozenset[str]().union(*[code.co_names for code in codes if code is not None])


class Accumulation:
    """What a function accumulates in a call, and what stood there before.

    It is one of the names that a replay compares: all places must be of the usual classes, and no two the same list.

    Attributes:
        name: what does not fit, in words.
    """

    __slots__ = ("_before", "_grown", "_lengths", "_were_distinct", "name", "places")

    code = value = place = write = None
    may_change = True

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = list(places)
        self.name = f"which class {' or '.join([place.name for place in self.places])} is of"
        self._before: list[Any] = []
        self._were_distinct = True
        self._lengths: list[int] = []
        self._grown: list[Any] = []  # lists, with what was appended to each, as the function left it

    def read(self) -> Any:
        """Return nothing that anything could stand for."""
        return None

    def is_same(self) -> bool:
        """Tell whether a replay can accumulate in all places."""
        return all(place.is_usual() for place in self.places) and self._are_distinct()

    def _are_distinct(self) -> bool:
        identities = [place.identity() for place in self.places]
        return len(set(identities)) == len(identities)

    def attributes(self) -> dict[int, set[str]]:
        """Return the names of the attributes among the places, by the identity of their object."""
        found = defaultdict[int, set[str]](set)
        for place in self.places:
            if place.attribute is not None:
                found[id(place.attribute.owner())].add(place.attribute.name)
        return found

    # ------------------------------------------------------------ around the captured call

    def begin(self) -> None:
        """Note what stands there, before the function runs."""
        self._were_distinct = self._are_distinct()
        self._before = [place.read() for place in self.places]
        self._lengths = [len(v) if v.__class__ is list else 0 for v in self._before]
        for place in self.places:
            if place.use.kind == ASSIGNS:
                place.write(_UNASSIGNED)

    def end(self) -> None:
        """Take what the function has left, and put arrays in place of what represents them."""
        for place, before, length in self._each():
            value = place.read()
            if place.use.kind == ASSIGNS:
                self._grown.append(value)
                place.write(before if value is _UNASSIGNED else without_stand_ins(value))
            elif place.use.kind == APPENDS and value is before:
                self._grown.append(value[length:])
                value[length:] = [without_stand_ins(each) for each in value[length:]]
            else:
                self._grown.append(value)

    def forget(self) -> None:
        """Drop what stood there, and what the function has left."""
        self._before, self._lengths, self._grown = [], [], []

    def undo(self) -> None:
        """Put back what stood there, as the function is to be called again."""
        for place, before, length in self._each():
            if place.use.kind == APPENDS:
                del before[length:]
            place.write(before)

    def _each(self) -> Iterator[tuple[Place, Any, int]]:
        # An exception may have struck in `begin`.
        return zip(self.places, self._before, self._lengths, strict=False)

    def append_to(self, capture: TensorCapture) -> str | None:
        """Append what a replay must do; return why it cannot, in words, None if it can."""
        if not self._were_distinct:
            return f"the function changes {self.places[0].name} by two names, or another attribute likewise"
        for (place, before, length), grown in zip(self._each(), self._grown, strict=True):
            call = self._call_for(place, before, length, grown)
            if call is None:
                return f"the function changes {place.name} in other ways than those that a replay knows"
            function, values = call
            if function is not None and not _append(capture, function, place, values):
                return f"the function changes {place.name}, which a function may read that is called each time"
        return None

    @staticmethod
    def _call_for(place: Place, before: Any, length: int, grown: Any) -> tuple[Callable[..., None] | None, Any] | None:
        """Return what a replay calls for a place, and with what; None for it where nothing; None if it cannot."""
        if place.use.kind == ASSIGNS:
            return None if _is_registered(grown) else (None if grown is _UNASSIGNED else _assign, [grown])
        if not place.is_usual():
            return None
        if place.use.kind == COUNTS:
            return (None if grown == before else _increase), [grown - before]
        is_same = place.read() is before and len(before) == length + len(grown)
        return (_extend if grown else None, grown) if is_same else None


def _is_registered(value: Any) -> bool:
    """Tell whether a Module registers a value that is assigned to an attribute."""
    return isinstance(value, Parameter) or is_module(type(value))


def _append(capture: TensorCapture, function: Callable[..., None], place: Place, values: list[Any]) -> bool:
    """Append a call that gives a place these values, with the Tensors and arrays of a replay; tell whether it may be.

    A function that is called each time, and may read what stands there, would find it too early or too late.
    """
    if not capture.runs_no_code_of_the_program():
        return False
    slots = [capture.result_of(leaf)[1] for leaf in leaves_of(values)]
    form = rebuilt(values, iter([None] * len(slots)))
    capture.add_accumulation(function, (place, form, *slots))
    return True


def without_stand_ins(value: Any) -> Any:
    """Return a value with the objects themselves in place of what stands for them in a capture."""
    leaves = leaves_of(value)
    real = [_real(leaf) for leaf in leaves]
    return value if all(a is b for a, b in zip(leaves, real, strict=True)) else rebuilt(value, iter(real))


def _real(leaf: Any) -> Any:
    if leaf.__class__ is CapturedArray:
        return leaf.inner
    return leaf.real if issubclass(type(leaf), ObjectStandIn) else leaf


# ---------------------------------------------------------------- what a replay calls


def _increase(place: Place, form: list[Any], increase: int) -> None:
    """Add to a counter."""
    place.write(place.read() + increase)


def _extend(place: Place, form: list[Any], *leaves: Any) -> None:
    """Append to a list."""
    place.read().extend(rebuilt(form, iter(leaves)))


def _assign(place: Place, form: list[Any], *leaves: Any) -> None:
    """Assign an attribute or a variable."""
    place.write(rebuilt(form, iter(leaves))[0])
