"""Where values and code come from, and what a function can be seen to read of them.

Code of the program's own is read, name by name. That of libraries is not: what they define is taken to stay as it is.
"""

from __future__ import annotations

import array
import itertools
import sys
import types
from collections import ChainMap, UserDict, UserList, deque
from typing import Any, NamedTuple

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

# Built-in functions that read what no name in the code stands for.
UNSEEN_READERS = frozenset(("open", "input", "eval", "exec", "globals", "__import__"))
OF_FILES = frozenset(("read_text", "read_bytes"))  # methods that do so
# Special methods that make an object, or describe, copy and drop it; all others may compute for code that does not name
# them, such as an operator.
_MAKING = frozenset(("__init__", "__new__", "__post_init__"))
_NOT_COMPUTING = _MAKING.union(
    f"__{name}__"
    for name in ("del", "repr", "reduce", "reduce_ex", "getstate", "setstate", "copy", "deepcopy", "dir", "sizeof")
)


def is_of_library(module: Any) -> bool:
    """Tell whether code is of a library, whose globals do not change."""
    root = str(module).partition(".")[0]
    return root in ("gradmgr", "numpy", "scipy", "cupy") or (root in sys.stdlib_module_names and root != "__main__")


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
    """Tell whether an object has functions of its own that NumPy calls in the place of NumPy's."""
    kind = type(value)
    return hasattr(kind, "__array_function__") or hasattr(kind, "__array_ufunc__")


def runs_each_time(value: Any) -> bool:
    """Tell whether an object computes by functions of its own with what may change unseen: so they must be called."""
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


# ---------------------------------------------------------------- code


class Names(NamedTuple):
    """What the code of a function, and of those that it defines, reads by name.

    Attributes:
        read: by the name of a global, which attributes of it are read at once; None stands for other uses.
        imported: the modules that it imports itself.
        assigned: the globals that it assigns.
    """

    read: dict[str, set[str | None]]
    imported: set[str]
    assigned: set[str]


def names_in(code: types.CodeType) -> Names:
    """Return the globals and modules that code reads by name."""
    import dis  # deferred: few functions are compiled

    names = Names({}, set(), set())
    before: str | None = None
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if before is not None:
            is_attribute = operation.startswith(("LOAD_ATTR", "LOAD_METHOD"))
            names.read.setdefault(before, set()).add(name if is_attribute else None)
            before = None
        if operation == "STORE_GLOBAL":
            names.assigned.add(name)
        if operation == "LOAD_GLOBAL" or operation.endswith("_NAME"):
            if operation == "IMPORT_NAME":
                names.imported.add(name)
            before = name
    for inner in [part for part in code.co_consts if isinstance(part, types.CodeType)]:
        found = names_in(inner)
        names.imported.update(found.imported)
        names.assigned.update(found.assigned)
        for name, attributes in found.read.items():
            names.read.setdefault(name, set()).update(attributes)
    return names


def words_in(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes in the code of a function, and of those that it defines."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(words_in, inner))


class Questions(NamedTuple):
    """What code may learn of an array that its stand-in answers otherwise.

    Attributes:
        asks: whether it asks for a class, by type() or __class__ of something else than `self`, or whether there is an
            attribute that one of both has, or catches all errors.
        matches: whether it asks for a class by a pattern, or by an isinstance() that is not a global.
        catches: whether it catches some errors, and does not raise them, or others, again.
    """

    asks: bool
    matches: bool
    catches: bool


# Attributes that stand-ins have and arrays, or their elements, have not, or that differ.
_TELLING = frozenset(
    ("__array_priority__", "__class__", "__dict__", "__hash__", "__iter__", "__len__", "capture", "inner", "slot")
)


def questions_in(code: types.CodeType) -> Questions:
    """Return what code, and that of the functions that it defines, may learn of an array."""
    import dis  # deferred: few functions are compiled

    found = [questions_in(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PRECALL", "CACHE")]
    asks = any(each.asks for each in found) or _names_telling(code) or _may_suppress(code, steps)
    matches = any(each.matches for each in found)
    catches = any(each.catches for each in found)
    for k, (before, step) in enumerate(itertools.pairwise(steps)):
        is_type = before.argval == "type" and before.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME"))
        is_type = is_type and not _is_called(steps, k)
        is_class = step.argval == "__class__" and step.opname.startswith("LOAD_ATTR")
        catches_all = before.opname == "PUSH_EXC_INFO" and _handles_all(steps[k:])
        asks = asks or catches_all or (is_type and not _is_self(step.argval))
        asks = asks or (is_class and not _is_self(before.argval))
        matches = matches or step.opname == "MATCH_CLASS"
        matches = matches or (step.argval == "isinstance" and not step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")))
        catches = catches or (before.opname in _CHECKS and not _raises(steps[k + 2 :]))
    return Questions(asks, matches, catches)


# Instructions that compare the class of an error with that of an `except`.
_CHECKS = frozenset(("CHECK_EXC_MATCH", "CHECK_EG_MATCH"))


def _raises(steps: list[Any]) -> bool:
    """Tell whether code that handles an error, from its first instruction on, raises one whatever happens."""
    for step in steps:
        if step.opname in ("RAISE_VARARGS", "RERAISE"):
            return True
        if "JUMP" in step.opname or step.opname.startswith(("FOR_", "POP_EXCEPT", "RETURN_", "SEND", "YIELD")):
            return False
    return False


def _handles_all(steps: list[Any]) -> bool:
    """Tell whether code may end another way than by an error, which it gets whatever its class.

    An `except` of no class does so, and a `finally` with a `return`.
    """
    for before, step in itertools.pairwise(steps):
        if step.opname in _CHECKS or step.opname in ("WITH_EXCEPT_START", "PUSH_EXC_INFO"):
            return False
        if step.opname == "POP_EXCEPT":
            return bool(before.opname != "COPY")  # else it is for an error in this code itself
    return False


def _may_suppress(code: types.CodeType, steps: list[Any]) -> bool:
    """Tell whether code ends a `with` block and may suppress the error that ends it: by a return of something true."""
    if code.co_name != "__exit__":
        return False
    for before, step in itertools.pairwise(steps):
        returned = step if step.opname == "RETURN_CONST" else before
        is_none = returned.opname in ("LOAD_CONST", "RETURN_CONST") and returned.argval in (None, False)
        if step.opname.startswith("RETURN_") and step.opname != "RETURN_GENERATOR" and not is_none:
            return True
    return False


def _is_called(steps: list[Any], k: int) -> bool:
    """Tell whether what type() gives is called, as in `type(x)(parts)`; the instruction of number k loads `type`.

    A call of anything but a name puts a null on the stack: before what is called, or after it from Python 3.13 on.
    """
    earlier = k > 0 and steps[k - 1].opname == "PUSH_NULL"
    return earlier or [step.opname for step in steps[k + 2 : k + 4]] == ["CALL", "PUSH_NULL"]


def _names_telling(code: types.CodeType) -> bool:
    """Tell whether code asks, by name, whether something has an attribute that only stand-ins have, or only arrays."""
    if not {"hasattr", "getattr"}.intersection(code.co_names):
        return "__array_priority__" in code.co_names
    return any(isinstance(part, str) and part in _TELLING for part in code.co_consts)


def _is_self(name: Any) -> bool:
    """Tell whether what an instruction loads, at last, is a method's own object or class, or what it is compared with.

    Methods such as those of dataclasses ask whether `other` is of their class.
    """
    return (name[-1] if isinstance(name, tuple) else name) in ("self", "cls", "other")


def line_of(code: types.CodeType, name: str) -> str:
    """Return, as "file:line", where code reads a name first; its first line where it does not."""
    import dis  # deferred: as above

    for instruction in dis.get_instructions(code):
        if instruction.argval == name and instruction.positions is not None and instruction.positions.lineno:
            return f"{code.co_filename}:{instruction.positions.lineno}"
    return f"{code.co_filename}:{code.co_firstlineno}"
