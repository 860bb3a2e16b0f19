"""How what names stand for is read, and set while a function is captured: variables, attributes, parts."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from gradmgr._compile.sources import BY_TEXT, BY_VALUE

MISSING = object()  # what a name refers to that is not there


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a method or a partial consists of."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return (value.func, *value.args, *value.keywords.values())


def looked_up(value: Any, name: str) -> Any:
    """Return an attribute; None if there is none, whatever error says so, as that of a dict with `__getattr__`."""
    try:
        return getattr(value, name, None)
    except MemoryError:
        raise
    except Exception:  # of code of the user
        return None


def is_number(owner: Any, name: str) -> bool:
    """Tell whether an attribute of an object is a number or a text."""
    return isinstance(attribute_of(lambda: owner, name), (*BY_VALUE, *BY_TEXT))


def content_of(cell: Any) -> Any:
    """Return what a variable of a function refers to."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def attribute_of_itself(reference: Callable[[], Any], name: str) -> Any:
    """Return an attribute of an object, which `reference()` is, wherever it stands."""
    return getattr(reference(), name, MISSING)


def count_of_attributes(reference: Callable[[], Any]) -> int:
    """Return how many attributes stand in the dict of an object."""
    return len(getattr(reference(), "__dict__", ()))


def attribute_of(reference: Callable[[], Any], name: str) -> Any:
    """Return an attribute of an object: its own, or that of its class."""
    owner = reference()
    if owner is None:
        return MISSING
    own = getattr(owner, "__dict__", {})
    return own[name] if name in own else getattr(owner, name, MISSING)


def set_attribute(reference: Callable[[], Any], name: str, value: Any) -> None:
    """Set an attribute of an object, past what its class does about it."""
    owner = reference()
    if name in getattr(owner, "__dict__", ()):
        vars(owner)[name] = value
    elif owner is not None:
        object.__setattr__(owner, name, value)  # in a slot, of a frozen object too


def class_attribute(cls: type, name: str) -> Any:
    """Return an attribute that stands in the dict of a class."""
    return vars(cls).get(name, MISSING)
