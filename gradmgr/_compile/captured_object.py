"""Stand-ins for objects of the program's that have array functions of their own, while a function is captured.

What such an object computes, by NumPy's functions or by its own methods, may depend on state that a capture cannot
see. So its stand-in calls it, then and in each replay, at the same place: arrays that it gives are captured as the
results of that call, other objects get stand-ins again, and numbers, texts and similar values must be the same in each
replay.
"""

from __future__ import annotations

import weakref
from functools import partial
from types import BuiltinMethodType, MethodType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.capture import checksum_of
from gradmgr._arrays.captured import CapturedArray, capturing, inner_of, set_capturing
from gradmgr._arrays.captured_calls import GuardError
from gradmgr._compile.captured_state import ObjectStandIn
from gradmgr._compile.tensor_capture import TensorCapture
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor, wrap

# Special methods that a stand-in defines itself: those that every object has, and that make or drop one, except those
# that compare or describe it.
_COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__str__", "__repr__", "__format__")
_NOT_FORWARDED = frozenset((*dir(object), "__del__", "__dict__", "__getattr__", "__slots__", "__weakref__"))
_FACTS = (bool, int, float, complex, str, bytes, type(None), type(NotImplemented), np.dtype, type)
_METHODS = (MethodType, BuiltinMethodType)


class _Held:
    """An object that is not kept alive where that can be."""

    __slots__ = ("_reference",)

    def __init__(self, value: Any) -> None:
        try:
            self._reference: Any = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._reference() is other._reference()

    __hash__ = None  # type: ignore[assignment]  # it is only compared

    def value(self) -> Any:
        """Return the object."""
        found = self._reference()
        if found is None:
            raise GuardError("an object whose functions the function calls is gone")
        return found


def stand_in_for(value: Any) -> Any:
    """Return what replaces an object while a function is captured; it is the same object in each replay."""
    return _made(_class_for(type(value)), value, _Held(value))


def _made(kind: type, real: Any, slot: Any) -> Any:
    made: Any = object.__new__(kind)
    object.__setattr__(made, "real", real)
    object.__setattr__(made, "slot", slot)
    return made


def _class_for(kind: type) -> type:
    """Return the class of stand-ins for objects of a class: it has the same special methods."""
    members: dict[str, Any] = {"__slots__": (), "kind": kind}
    for name in dir(kind):
        if name.startswith("__") and name.endswith("__") and (name in _COMPARING or name not in _NOT_FORWARDED):
            member = getattr(kind, name)
            members[name] = _forwarding(name) if callable(member) else member
    if kind.__hash__ is None:
        members["__hash__"] = None
    return type(f"CapturedObject of {kind.__name__}", (_Stand,), members)


def _forwarding(name: str) -> Any:
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        return _call(self, name, args, keywords)

    method.__name__ = name
    return method


class _Stand(ObjectStandIn):
    """Stands for an object; `slot` is where a replay has it, or what holds it."""

    __slots__ = ("real", "slot")

    kind: type

    @property  # type: ignore[misc]  # isinstance only reads it
    def __class__(self) -> Any:
        return type(self).kind

    def __getattr__(self, name: str) -> Any:  # called for names that Python did not find
        if isinstance(getattr(self.real, name), _METHODS):
            return partial(_method, self, name)
        return _call(self, name, (), None)

    def __setattr__(self, name: str, value: Any) -> None:
        capture = capturing()
        if capture is not None:
            capture.add_obstacle(f"{name} of a {type(self.real).__name__} is set")
        setattr(self.real, name, _real(value))


def _method(stand: Any, name: str, *args: Any, **keywords: Any) -> Any:
    return _call(stand, name, args, keywords)


# ---------------------------------------------------------------- calls


def run_object(tensors: Any, name: str, owner: Any, is_call: bool, *args: Any, **named: Any) -> Any:
    """Call a method of an object, or read an attribute.

    Args:
        tensors: which of the arguments, by their numbers among the leaves, are arrays of Tensors.
        name: of the method.
        owner: the object, or what holds it.
        is_call: whether the method is called.
        args: its arguments.
        named: likewise.
    """
    owner = owner.value() if owner.__class__ is _Held else owner
    made = getattr(owner, name)
    if is_call:
        args, named = _filled(tensors, (args, named))
        made = made(*args, **named)
    return made


def _facts_in(result: Any) -> tuple[Any, ...]:
    """Return the numbers, texts and so on in what a method gives."""
    return tuple([part for part in leaves_in(result) if _is_fact(part)])


run_object.is_of_object = True  # type: ignore[attr-defined]  # which a replay asks
run_object.facts_of = _facts_in  # type: ignore[attr-defined]  # of which a replay must find the same
run_object.__name__ = "a function of an object's own"  # as explain() says


def _filled(tensors: Any, given: Any) -> Any:
    count = -1

    def change(part: Any) -> Any:
        nonlocal count
        count += 1
        if part.__class__ is _Held:
            return part.value()
        return wrap(part) if count in tensors else part

    return map_leaves(change, given)


def _is_fact(value: Any) -> bool:
    return isinstance(value, _FACTS) and not isinstance(value, np.generic)


def _real(value: Any) -> Any:
    """Return an argument as the object that gets it knows it."""
    return map_leaves(_real_leaf, value)


def _real_leaf(part: Any) -> Any:
    if isinstance(part, type) and issubclass(part, _Stand):
        return part.kind
    return part.real if issubclass(type(part), ObjectStandIn) else part


def _call(stand: Any, name: str, args: tuple[Any, ...], keywords: dict[str, Any] | None) -> Any:
    """Call a method of an object, or read an attribute if there are no keywords, and append the call."""
    capture = capturing()
    is_call = keywords is not None
    args, named = _real_types(args), keywords or {}
    if capture is None or not capture.open:
        found = getattr(stand.real, name)
        return found(*_real(args), **_real(named)) if is_call else found
    return _Calling(capture, stand, name).result(args, named, is_call=is_call)


def _real_types(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments in which no set of types, as NumPy gives one, holds a stand-in's."""
    return tuple([tuple(part) if isinstance(part, (set, frozenset)) else part for part in args])


class _Calling:
    """One call of an object's method while a function is captured."""

    def __init__(self, capture: TensorCapture, stand: Any, name: str) -> None:
        self.capture = capture
        self.stand = stand
        self.name = name
        self.tensors: list[int] = []
        self.made: list[CapturedArray] = []
        self._count = -1
        self._given: list[CapturedArray] = []

    @property
    def _what(self) -> str:
        return f"{self.name} of a {type(self.stand.real).__name__}"

    def result(self, args: tuple[Any, ...], named: dict[str, Any], *, is_call: bool) -> Any:
        """Return what the method gives, with arrays captured and stand-ins for objects."""
        capture = self.capture
        slots, named_slots = map_leaves(self._slot, (args, named))
        self._check_arguments(args, named)
        inside = [array.inner for array in self._given]
        before = [checksum_of(array) for array in inside]
        set_capturing(None)
        try:
            found = getattr(self.stand.real, self.name)
            made = found(*map_leaves(self._inside, args), **map_leaves(self._inside, named)) if is_call else found
        finally:
            set_capturing(capture)
        if before != [checksum_of(array) for array in inside]:
            capture.add_obstacle(f"{self._what} writes to an array that it is given,")
        value, results = self._wrapped(made)
        given = frozenset(self.tensors), self.name, self.stand.slot, is_call
        expected = _facts_in(made) or None
        capture.append_object_call(run_object, (*given, *slots), named_slots, results, expected, self.made)
        return value

    def _check_arguments(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note as an obstacle what a replay would not know."""
        if self.capture.has_effects():
            self.capture.add_obstacle(f"{self._what} is called after a Tensor, or other state, has changed,")
        if self.name in _WRITING or any(part == "out" for part in leaves_in(list(named))) or _has_out(args):
            self.capture.add_obstacle(f"{self._what} writes to an object or array,")
        if any(isinstance(part, Tensor) and is_tracked(part) for part in leaves_in((args, named))):
            self.capture.add_obstacle(
                f"{self._what} is given a Tensor that is recorded, so its derivative is not known,"
            )

    def _slot(self, part: Any) -> Any:
        """Return what replaces an argument in the call."""
        self._count += 1
        if isinstance(part, Tensor):
            self.tensors.append(self._count)
            part = part._array
        if part.__class__ is CapturedArray:
            self._given.append(part)
            return part.slot
        if issubclass(type(part), ObjectStandIn):
            return part.slot
        return _real_leaf(part)

    @staticmethod
    def _inside(part: Any) -> Any:
        """Return an argument as the method gets it."""
        return inner_of(_real_leaf(part))

    def _wrapped(self, made: Any) -> tuple[Any, Any]:
        """Return a result for the function that is captured, and the slots of its arrays and objects."""
        if _is_fact(made):
            return made, None
        if made.__class__ in (tuple, list):
            parts = [self._wrapped(part) for part in made]
            return made.__class__([value for value, _ in parts]), tuple([slot for _, slot in parts])
        if gpu.is_plain(made):
            known = next((array for array in self._given if array.inner is made), None)
            array = self.capture.add_elsewhere(made) if known is None else known
            self.made.append(array)
            return array, array.slot
        if not (hasattr(type(made), "__array_function__") or hasattr(type(made), "__array_ufunc__")) or isinstance(
            made, Tensor
        ):
            self.capture.add_obstacle(f"{self._what} gives a {type(made).__name__}, which a replay would not know,")
            return made, None
        slot = self.capture.add_object()
        kind = type(self.stand) if type(made) is type(self.stand).kind else _class_for(type(made))
        return _made(kind, made, slot), slot


_WRITING = frozenset(
    f"__{name}__"
    for name in (
        *("setitem", "delitem"),
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "ilshift", "irshift", "ixor"),
        *("iand", "ior"),
    )
)


def _has_out(args: tuple[Any, ...]) -> bool:
    """Tell whether NumPy's protocol is given where to write a result."""
    return any(isinstance(part, dict) and part.get("out") is not None for part in args)
