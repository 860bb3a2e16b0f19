"""Where code of the program sets gradients itself, as far as it shows.

A hook, a callback or a method of a Function runs in each replay, and what it sets in some calls only a replay may find
too late: after that code has run. So where such code sets gradients, what reads them later is not replayed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from gradmgr._compile.sources import is_of_library

# Methods that the manager calls of callback objects, and those of a Function.
_METHODS = ("begin", "finish", "abort", "__call__", "forward", "setup_context", "backward", "vjp", "jvp")
_SETTING = frozenset(("backward", "clear_grad", "zero_grad"))  # functions that set gradients


def line_that_sets_gradients(code_of_program: Iterable[Any]) -> str | None:
    """Return, as "file:line", where functions, or methods of objects and classes, set gradients; None where none does.

    What they call is not looked into.
    """
    lines = (_line_in(part) for code in _code_of(code_of_program) for part in _with_inner(code))
    return next((line for line in lines if line is not None), None)


def _code_of(values: Iterable[Any]) -> Iterator[types.CodeType]:
    for value in values:
        function = value
        while isinstance(function, (functools.partial, types.MethodType)):
            function = function.func if isinstance(function, functools.partial) else function.__func__
        if isinstance(function, types.FunctionType):
            if not is_of_library(function.__module__):
                yield function.__code__
        elif not isinstance(function, types.BuiltinFunctionType):
            kind = function if isinstance(function, type) else type(function)
            found = [getattr(kind, name, None) for name in _METHODS]
            yield from _code_of([each for each in found if isinstance(each, types.FunctionType)])


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _with_inner(part)


def _line_in(code: types.CodeType) -> str | None:
    """Return where code sets gradients; None where it does not."""
    import dis  # deferred: few functions are compiled

    if not ({"grad", "setattr"} | _SETTING).intersection(code.co_names):
        return None
    for step in dis.get_instructions(code):
        is_write = step.argval == "grad" and step.opname in ("STORE_ATTR", "DELETE_ATTR")
        is_call = step.argval in _SETTING and step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))
        by_text = step.argval == "setattr" and "grad" in code.co_consts
        if is_write or is_call or by_text:
            line = step.positions.lineno if step.positions is not None else None
            return f"{code.co_filename}:{line or code.co_firstlineno}"
    return None
