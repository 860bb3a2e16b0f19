"""Programs for gradmgr.compile on the arrays of a GPU: those of compiled_programs.py with all that they hold moved.

A program was made on the CPU. Here the Tensors that it reaches, in closures, attributes and containers, get arrays of
CuPy's, and so do the arrays among its arguments. It runs where the eager step does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from compiled_programs import Program, history

from gradmgr import Tensor, errors

# What these name is gradmgr's or Python's own, which no program changes.
_OTHERS = (types.ModuleType, types.BuiltinFunctionType, type, np.generic, np.random.Generator, str, bytes)


def tensors_of(value: Any, seen: dict[int, Any]) -> Iterator[Tensor]:
    """Yield the Tensors that a value reaches, once each."""
    if id(value) in seen or isinstance(value, _OTHERS):
        return
    seen[id(value)] = value  # which keeps the id its own
    if isinstance(value, Tensor):
        yield value
    for part in _parts(value):
        yield from tensors_of(part, seen)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, types.FunctionType):
        is_ours = value.__module__.startswith("compiled_")
        names = value.__globals__ if is_ours else {}
        used = [names[name] for name in value.__code__.co_names if name in names]
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        return [*cells, *(value.__defaults__ or ()), *vars(value).values(), *used]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, Tensor):
        return [] if value.grad is None else [value.grad]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
    named = [getattr(value, name, None) for name in slots] if type(value).__module__.startswith("gradmgr") else []
    return [*vars(value).values(), *named] if hasattr(value, "__dict__") else named


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def moved(made: Program, cupy: ModuleType) -> Program:
    """A program whose Tensors and array arguments are on the GPU."""
    put: Callable[[Any], Any] = functools.cache(lambda key: cupy.asarray(kept[key]))  # one object stays one
    kept: dict[int, Any] = {}

    def change(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype != object:
            kept[id(value)] = value
            return put(id(value))
        if type(value) in (list, tuple):
            return type(value)([change(part) for part in value])
        return {key: change(part) for key, part in value.items()} if type(value) is dict else value

    seen: dict[int, Any] = {}
    for t in tensors_of([made.step, made.calls, made.state, made.between], seen):
        if isinstance(t._array, np.ndarray):
            t._array = change(t._array)
    made.calls = [(change(args), change(keywords)) for args, keywords in made.calls]
    made.may_warn = True
    return made


def outcome(cupy: ModuleType, make: Callable[[], Program], *transforms: Callable[[Any], Any]) -> Any:
    """Run a program on the GPU; return the facts after every call, or the class of the error that ends it.

    Such an error says that host memory meets a GPU's, or what CuPy lacks.
    """
    try:
        return history(moved(make(), cupy), *transforms)
    except (errors.GradmgrError, TypeError, AttributeError, IndexError, ValueError) as error:
        return type(error)
