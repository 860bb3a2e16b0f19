"""What a function depends on without an object that holds it: options, registries, names that are not there."""

from __future__ import annotations

import abc
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradmgr._arrays.blocks import get_num_threads
from gradmgr._compile.code_facts import TEXT
from gradmgr._compile.name_tests import AbsentGlobals, OfClass, Result
from gradmgr._engine.history.modes import is_grad_enabled, is_inference_mode_enabled

# Names by which code makes texts of arrays and objects.
TEXTS = frozenset((TEXT, "array2string", "array_repr", "array_str", "format", "repr", "str"))
_WARNING = frozenset(("warn", "warn_explicit"))


class Setting:
    """A setting of the process, compared in each call as names are: see `compared.ComparedName`.

    Attributes:
        name: what it is called.
        place: where it is read, and what that gave.
        may_change: whether the function itself may change it.
    """

    __slots__ = ("_is_same", "may_change", "name", "place")

    code: types.CodeType | None = None
    value: Any = None
    write: Any = None

    def __init__(self, name: str, place: Any, is_same: Callable[[], bool], *, may_change: bool = False) -> None:
        self.may_change = may_change
        self.name = name
        self.place = place
        self._is_same = is_same

    def note(self, closeness: Any) -> Setting:
        """Return itself: it has noted what it was."""
        return self

    def read(self) -> Any:
        """Return nothing that anything could stand for."""
        return None

    def is_same(self) -> bool:
        """Tell whether it is as it was."""
        return self._is_same()


def settings_read(words: set[str], *, asks_classes: bool) -> Iterator[Setting]:
    """Yield the settings on which code depends that has these words.

    Args:
        words: its names.
        asks_classes: whether it asks for the classes of objects.
    """
    if not words.isdisjoint(TEXTS):
        yield _of_printing()
    if asks_classes:  # classes that others have registered with
        yield _of_result("the virtual subclasses of abstract classes", abc.get_cache_token)
    if not words.isdisjoint(_WARNING):  # one that raises an error
        yield _of_result("the filters of warnings", lambda: list(warnings.filters))
    for mode in (is_grad_enabled, is_inference_mode_enabled):
        if mode.__name__ in words:
            yield _of_result(f"what {mode.__name__}() gives", mode)
    if "get_num_threads" in words:
        yield _of_result("the number of threads", get_num_threads)


def _of_result(name: str, read: Callable[[], Any]) -> Setting:
    before = read()
    return Setting(name, Result(read, before, is_same_object=False), lambda: bool(read() == before))


def _of_printing() -> Setting:
    """Return NumPy's print options, for which NumPy makes another dict when one is set."""
    module = sys.modules.get("numpy._core.printoptions")
    read = getattr(getattr(module, "format_options", None), "get", None)
    if read is None:  # NumPy before 2.2
        return _of_result("the print options of NumPy", np.get_printoptions)
    before = read()
    return Setting(
        "the print options of NumPy", Result(read, before, is_same_object=True), lambda: bool(read() == before)
    )


def class_as_it_is(kind: type) -> Setting:
    """Return the base classes of a class, and theirs, and how many attributes it has: a new one may hide another."""
    place = OfClass(kind, kind.__mro__, len(vars(kind)))
    return Setting(
        f"the attributes of {kind.__name__}", place, functools.partial(_is_class_same, place), may_change=True
    )


def _is_class_same(before: OfClass) -> bool:
    return before.owner.__mro__ is before.bases and len(vars(before.owner)) == before.attributes


def absent_globals(variables: dict[str, Any], names: set[str]) -> Setting:
    """Return that there are no globals of these names, which code reads as those of built-in functions."""
    found = tuple(sorted(names))
    is_same = functools.partial(_are_absent, variables, found)
    return Setting(f"which of {', '.join(found)} is a global", AbsentGlobals(variables, found), is_same)


def _are_absent(variables: dict[str, Any], names: tuple[str, ...]) -> bool:
    return not any(name in variables and not _is_of_capture(variables[name]) for name in names)


def _is_of_capture(value: Any) -> bool:
    """Tell whether a value is what a capture puts in place of a built-in function, such as isinstance()."""
    made = value if isinstance(value, types.FunctionType) else type(value)
    return bool(made.__module__ == "gradmgr._compile.stand_ins")
