"""What a function takes from outside: through its closure, defaults, globals, and the object whose method it is."""

from __future__ import annotations

import functools
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from typing import Any

from gradmgr._engine.tensor import Tensor

_MAPPINGS = (dict, types.MappingProxyType, UserDict, ChainMap)
_VIEWS: tuple[Any, ...] = type({}.keys()), type({}.values()), type({}.items())
_CONTAINERS: Any = (list, tuple, set, frozenset, deque, UserList, *_MAPPINGS, *_VIEWS)
# Code and objects that hold the tensors of recordings, which may be those that a function made.
_RECORDING = ("gradmgr._engine", "gradmgr._compile", "gradmgr._transforms", "gradmgr.manager")


def taken_from_outside(function: Any, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return which of some tensors a function takes from outside, as far as names in its code and attributes lead."""
    wanted = {id(t): t for t in tensors}
    found, seen, left = [], set[int](), [function]
    while left and wanted:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found += [t for t in [wanted.pop(id(value), None)] if t is not None]
        else:
            left += _parts_of(value)
    return found


def _parts_of(value: Any) -> list[Any]:
    """Return what code that has a value can reach by it."""
    if isinstance(value, types.FunctionType):
        return [*_given_to(value), *_globals_of(value)]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, _CONTAINERS):
        return [*value, *value.values()] if isinstance(value, _MAPPINGS) else list(value)
    if isinstance(value, (type, types.ModuleType)) or type(value).__module__.startswith(_RECORDING):
        return []
    return [getattr(value, name, None) for name in _attributes_of(value)]


def _given_to(function: types.FunctionType) -> Iterator[Any]:
    """Give the values of its closure and defaults, and what a decorator wrapped."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()


def _globals_of(function: types.FunctionType) -> list[Any]:
    """Return the globals that it names; those of gradmgr's own code are none of the user's."""
    if str(function.__globals__.get("__name__", function.__module__)).startswith("gradmgr"):
        return []
    variables = function.__globals__
    return [variables[name] for name in _names_in(function.__code__) if name in variables]


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # of a function within it
            yield from _names_in(constant)


def _attributes_of(value: Any) -> list[str]:
    """Return the names of an object's own attributes."""
    slots = []
    for cls in type(value).__mro__:
        named = vars(cls).get("__slots__", ())
        slots += [name for name in ((named,) if isinstance(named, str) else named) if hasattr(value, name)]
    return [*getattr(value, "__dict__", ()), *slots]
