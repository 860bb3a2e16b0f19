"""Environment: what a function reads besides its arguments, as far as its code shows: globals, variables of functions
around it, attributes. A program that was captured fits while these are what they were.

What is compared is the name's value: numbers and text by value; lists, tuples and dicts by what they hold; all else by
identity, and then what the functions among them read in turn. Of objects the attributes are compared that the function
names. Nothing is kept alive that can be held weakly.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradmgr._engine.tensor import Tensor

_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), np.generic)
_DEPTH = 3  # of containers in containers
_MISSING = object()


class _Value:
    """What a value was, and how to tell whether another one is the same."""

    __slots__ = ("_class", "_expected", "_parts", "_reference")

    def __init__(self, value: Any, depth: int = _DEPTH) -> None:
        self._class = value.__class__
        self._expected: Any = None
        self._reference: Any = None
        self._parts: list[_Value] | None = None
        if isinstance(value, _BY_VALUE):
            self._expected = repr(value) if isinstance(value, (float, complex)) else value
        elif self._class in (list, tuple, dict) and depth and len(value) <= 1000:
            self._parts = [_Value(part, depth - 1) for part in _held(value)]
        else:
            try:
                self._reference = weakref.ref(value)
            except TypeError:
                self._reference = functools.partial(_itself, value)

    def is_same(self, value: Any) -> bool:
        """Tell whether another value stands for the same."""
        if self._reference is not None:
            return self._reference() is value
        if value.__class__ is not self._class:
            return False
        if self._parts is not None:
            found = _held(value)
            return len(found) == len(self._parts) and all(
                part.is_same(each) for part, each in zip(self._parts, found, strict=True)
            )
        return bool((repr(value) if isinstance(value, (float, complex)) else value) == self._expected)


def _itself(value: Any) -> Any:
    return value


def _held(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


class _Name:
    """A name and what it stood for.

    Attributes:
        name: what errors call it.
        read: returns what it stands for now.
    """

    __slots__ = ("_value", "name", "read")

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self.name = name
        self.read = read
        self._value = _Value(read())

    def is_same(self) -> bool:
        return self._value.is_same(self.read())


class Environment:
    """The values of all names that a function reads."""

    __slots__ = ("_names",)

    def __init__(self, function: Any, args: tuple[Any, ...] = ()) -> None:
        self._names = list(_names_of(function, args))

    def changed(self) -> str | None:
        """Return the first name that stands for something else now; None where all are the same."""
        for name in self._names:
            if not name.is_same():
                return name.name
        return None


def _names_of(function: Any, args: tuple[Any, ...]) -> Iterator[_Name]:
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        found = _plain_function(waiting.pop(), waiting)
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        names = _names_in(found.__code__)
        variables = [*_variables(found, names), *_attributes_of(args, found.__code__)]
        for name in variables:
            yield name
            value = name.read()
            waiting.append(value)
            if _is_users_object(value):
                yield from _attributes(name.name, value, names)
        args = ()


def _plain_function(value: Any, waiting: list[Any]) -> types.FunctionType | None:
    """Return the Python function in a value: of a method, a partial; what is applied to others goes to `waiting`."""
    if isinstance(value, functools.partial):
        waiting.extend((*value.args, *value.keywords.values()))
        return _plain_function(value.func, waiting)
    if isinstance(value, types.MethodType):
        return _plain_function(value.__func__, waiting)
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    if wrapped is not None:
        waiting.append(wrapped)
    return value if isinstance(value, types.FunctionType) else None


def _is_ours(module: Any) -> bool:
    """Tell whether code is of a library, whose globals do not change."""
    root = str(module).partition(".")[0]
    return root in ("gradmgr", "numpy", "scipy", "cupy") or root in sys.stdlib_module_names - {"__main__"}


def _names_in(code: types.CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _variables(function: types.FunctionType, names: set[str]) -> Iterator[_Name]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield _Name(name, functools.partial(_content, cell))
    for k, value in enumerate(function.__defaults__ or ()):
        if isinstance(value, types.FunctionType):
            yield _Name(f"default {k}", functools.partial(_itself, value))
    if _is_ours(function.__module__):
        return
    variables = function.__globals__
    for name in names.intersection(variables):
        if not isinstance(variables[name], (types.ModuleType, type)):
            yield _Name(name, functools.partial(variables.get, name, _MISSING))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _is_users_object(value: Any) -> bool:
    """Tell whether the function may read attributes of a value that its class does not define."""
    if isinstance(value, (Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)):
        return False
    return hasattr(value, "__dict__") and not _is_ours(type(value).__module__)


def _attributes_of(args: tuple[Any, ...], code: types.CodeType) -> Iterator[_Name]:
    for name, value in zip(code.co_varnames, args, strict=False):
        if _is_users_object(value):
            yield from _attributes(name, value, _names_in(code))


def _attributes(owner: str, value: Any, names: set[str]) -> Iterator[_Name]:
    reference = weakref.ref(value) if hasattr(value, "__weakref__") else functools.partial(_itself, value)
    for name in sorted(names.intersection(vars(value))):
        yield _Name(f"{owner}.{name}", functools.partial(_attribute, reference, name))


def _attribute(reference: Callable[[], Any], name: str) -> Any:
    owner = reference()
    return _MISSING if owner is None else vars(owner).get(name, _MISSING)
