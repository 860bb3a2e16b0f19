"""Where values and code come from: the program, a library that is installed, or one whose code is known."""

from __future__ import annotations

import array
import sys
import types
from collections import ChainMap, UserDict, UserList, deque
from typing import Any

import numpy as np

from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._engine.tensor import Tensor

BY_VALUE = (bool, int, str, bytes, type(None), np.generic, range)
BY_TEXT = (float, complex)  # so that -0.0 is not 0.0, and NaN is NaN
BY_BYTES = (bytearray, array.array)
_MAPPINGS = (dict, types.MappingProxyType, UserDict, ChainMap)
_VIEWS: tuple[Any, ...] = type({}.keys()), type({}.values()), type({}.items())
CONTAINERS: Any = (list, tuple, set, frozenset, deque, UserList, *_MAPPINGS, *_VIEWS)
SMALL = 1 << 11  # bytes of an array that are compared

# Errors of the moment, which say nothing about the object that was read: a later call may succeed.
PASSING_ERRORS = (MemoryError, RecursionError)

# Built-in functions that read what no name in the code refers to.
UNSEEN_READERS = frozenset(("open", "input", "eval", "exec", "globals", "__import__"))
OF_FILES = frozenset(("read_text", "read_bytes"))  # methods that do so
OF_FRAMES = frozenset(("__builtins__", "__globals__", "f_builtins", "f_globals", "f_locals"))
# Libraries whose functions give the same for the same arguments, whatever they keep for themselves.
_KNOWN = ("attr", "attrs", "einops", "opt_einsum", "pydantic", "tqdm")
# Special methods that make an object, or describe, copy and drop it; all others may compute for code that does not name
# them, such as an operator.
_MAKING = frozenset(("__del__", "__init__", "__new__", "__post_init__"))
_NOT_COMPUTING = _MAKING.union(
    f"__{name}__"
    for name in ("repr", "reduce", "reduce_ex", "getstate", "setstate", "copy", "deepcopy", "dir", "sizeof")
)


def is_of_library(module: Any) -> bool:
    """Tell whether code is of a library, whose globals do not change."""
    root = str(module).partition(".")[0]
    return root in ("gradmgr", "numpy", "scipy", "cupy") or (root in sys.stdlib_module_names and root != "__main__")


def has_known_code(module: Any) -> bool:
    """Tell whether code of a module, given by its name, need not be read: what it gives depends on arguments alone."""
    return is_of_library(module) or str(module).partition(".")[0] in _KNOWN


def module_of(function: types.FunctionType) -> str:
    """Return the name of the module in which the code of a function stands, whatever it wraps."""
    return str(function.__globals__.get("__name__", function.__module__))


def is_of_program(module: Any) -> bool:
    """Tell whether a module, given by its name, is of the program itself: neither a library's nor installed."""
    if is_of_library(module):
        return False
    file = getattr(sys.modules.get(str(module)), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def computes(name: str, method: Any, *, is_made: bool) -> bool:
    """Tell whether code may call a method of a class without naming it; `is_made`: code that makes an object of it."""
    if name == "forward":  # of a Module, which calls it
        return isinstance(method, types.FunctionType)
    if not (name.startswith("__") and name.endswith("__")):
        return False
    called = name not in _NOT_COMPUTING or (is_made and name in _MAKING)
    return called and isinstance(method, (types.FunctionType, staticmethod, classmethod))


# ---------------------------------------------------------------- arrays of the program's


def is_large_array(value: Any) -> bool:
    """Tell whether a value is an array that is too large, or of too much, to be compared in each call."""
    return isinstance(value, np.ndarray) and (value.nbytes > SMALL or value.dtype.hasobject)


def is_module(kind: type) -> bool:
    """Tell whether a class is Module, or derives from it."""
    return any(cls.__module__ == "gradmgr.nn._modules.module" for cls in kind.__mro__)


def has_array_protocol(value: Any) -> bool:
    """Tell whether an object has its own functions that NumPy calls in place of NumPy's."""
    kind = type(value)
    return hasattr(kind, "__array_function__") or hasattr(kind, "__array_ufunc__")


def runs_each_time(value: Any) -> bool:
    """Tell whether an object computes by its own functions with what may change unseen: so they must be called."""
    is_array = isinstance(value, (np.ndarray, np.generic, Tensor)) or is_on_gpu(value)
    return not is_array and has_array_protocol(value) and not isinstance(value, type) and not is_readable(value)


def is_readable(value: Any, depth: int = 4) -> bool:
    """Tell whether all that an object holds is a Tensor, code, or small enough to be compared in each call.

    Its class must be of the program itself, whose code is read. What a library or a large array holds changes unseen.
    """
    if isinstance(value, (*BY_VALUE, *BY_TEXT, *BY_BYTES, Tensor, np.dtype, type, types.FunctionType)):
        return True
    if isinstance(value, np.ndarray):
        return value.nbytes <= SMALL and value.dtype != object
    if not depth:
        return False
    if value.__class__ in CONTAINERS:
        return all(is_readable(part, depth - 1) for part in held_by(value))
    classes = [cls for cls in type(value).__mro__ if cls is not object]
    if not all(is_of_program(cls.__module__) for cls in classes):
        return False
    return all(is_readable(getattr(value, name), depth - 1) for name in attributes_of(value))


def held_by(value: Any) -> list[Any]:
    """Return what a container holds, the keys of a dict too."""
    return [*value, *value.values()] if isinstance(value, _MAPPINGS) else list(value)


def attributes_of(value: Any) -> list[str]:
    """Return the names of an object's own attributes."""
    slots = []
    for cls in type(value).__mro__:
        named = vars(cls).get("__slots__", ())
        slots += [name for name in ((named,) if isinstance(named, str) else named) if hasattr(value, name)]
    return [*getattr(value, "__dict__", ()), *slots]
