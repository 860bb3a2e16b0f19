"""Environment: what a function reads besides its arguments, as far as its code shows.

These are the globals that its code names, the variables of the functions around it, the attributes that it names of
objects of the user's, and the same of each function of the user's that it may call. A program that was captured fits
while all of them are what they were: numbers, text and small arrays by value; lists, tuples and dicts by what they
hold; all else by identity. Nothing is kept alive that can be held weakly.

What gives another value each time without any name's standing for something else, such as an iterator or the clock, is
an obstacle: a function that names it is not replayed.
"""

from __future__ import annotations

import functools
import io
import operator
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.generators import CapturedGenerator
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._engine.tensor import Tensor
from gradmgr._transforms.name_tests import Attribute, write_test

_BY_VALUE = (bool, int, str, bytes, type(None), np.generic, range)
_BY_TEXT = (float, complex)  # so that -0.0 is not 0.0, and NaN is NaN
_CONTAINERS = (list, tuple, dict, set, frozenset)
_DEPTH = 3  # of containers in containers
_MOST = 1000  # elements of a container that are compared
_SMALL = 1 << 11  # bytes of an array that are compared

_MISSING = object()

# Modules whose functions give another value each time, or depend on what lies outside of the program.
_VOLATILE = frozenset(("datetime", "os", "random", "secrets", "socket", "subprocess", "time", "urllib", "uuid"))
# Names by which code reads attributes that it does not name.
_REFLECTION = frozenset(("__dict__", "attrgetter", "getattr", "locals", "vars"))


# ---------------------------------------------------------------- values


class _Value:
    """What a value was, and how to tell whether another one is the same; its attributes are those of `Value`."""

    __slots__ = ("content", "kind", "parts", "reference", "value")

    def __init__(self, value: Any, depth: int = _DEPTH) -> None:
        self.kind = value.__class__
        self.content = _content(value)
        self.reference: Any = None
        self.parts: list[_Value] | None = None
        self.value = value if isinstance(value, _BY_TEXT) else None
        if self.kind in _CONTAINERS and depth and len(value) <= _MOST:
            self.parts = [_Value(part, depth - 1) for part in held_by(value)]
        elif not isinstance(value, (*_BY_VALUE, *_BY_TEXT)):
            self.reference = _reference_to(value)

    def is_same(self, value: Any) -> bool:
        """Tell whether another value stands for the same."""
        if self.reference is not None:
            if value is None or self.reference() is not value:  # it may be gone
                return False
            if self.content is None:
                return True
            found = value.tobytes() if value.__class__ is np.ndarray else _content(value)
            return bool(found == self.content)
        if value.__class__ is not self.kind:
            return False
        if self.parts is None:
            return bool(_content(value) == self.content)
        found = held_by(value)
        if len(found) != len(self.parts):
            return False
        for part, each in zip(self.parts, found, strict=True):
            reference = part.reference
            if reference is not None and part.content is None:  # without a call, as there are many
                if each is None or reference() is not each:
                    return False
            elif not part.is_same(each):
                return False
        return True


def _content(value: Any) -> Any:
    """Return what is compared of a value besides its identity."""
    if isinstance(value, _BY_TEXT):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _SMALL and value.dtype != object else None
    if isinstance(value, ContextVar):
        return value.get(_MISSING)
    return value if isinstance(value, _BY_VALUE) else None


def held_by(value: Any) -> list[Any]:
    """Return what a container holds, the keys of a dict too."""
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


def _reference_to(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return functools.partial(_itself, value)


def _itself(value: Any) -> Any:
    return value


# ---------------------------------------------------------------- names


class _Name:
    """A name and what it stood for.

    Attributes:
        name: what the user calls it.
        value: what it stood for.
        read: returns what it stands for now.
        write: makes it stand for something else.
        place: the cell that it is of; the globals, or attributes of a class, and its name in them; an Attribute of an
            object; None for others.
    """

    __slots__ = ("name", "place", "read", "value", "write")

    def __init__(
        self, name: str, read: Callable[[], Any], write: Callable[[Any], None] | None, place: Any = None
    ) -> None:
        self.name = name
        self.place = place
        self.read = read
        self.write = write
        self.value = _Value(read())

    def is_same(self) -> bool:
        return self.value.is_same(self.read())


class Environment:
    """The values of all names that a function reads.

    Attributes:
        obstacle: why what it reads cannot be compared; None where it can.
    """

    __slots__ = ("_arrays", "_names", "_states", "obstacle")

    def __init__(self, function: Any, arguments: Iterable[Any] = ()) -> None:
        search = _Search(arguments)
        search.run((function, *arguments))
        self._names = list(search.names.values())
        self.obstacle = search.obstacle
        self._arrays = [(a, zlib.crc32(np.ascontiguousarray(a).tobytes())) for a in search.arrays.values()]
        self._states = [(g, _state_of(g)) for g in search.generators.values()]

    def test(self) -> Callable[[], bool]:
        """Return a function that tells quickly whether nothing has changed; it may also say no where nothing has."""
        return write_test(self._names)

    def changed(self) -> str | None:
        """Return the first name that stands for something else now; None where all are the same."""
        for name in self._names:
            if not name.is_same():
                return name.name
        return None

    def settle(self, known: Iterable[Any]) -> None:
        """Note as an obstacle what the function has changed since, unseen by a capture, and drop what only this needs.

        Args:
            known: the Generators whose draws were captured.
        """
        for name in self._names:
            _release(name.read(), name.write)
        changed = self.changed()
        if changed is not None:
            self.obstacle = f"the function changes {changed}, which it reads"
        for a, checksum in self._arrays:
            if zlib.crc32(np.ascontiguousarray(a).tobytes()) != checksum:
                self.obstacle = "the function writes to an array that it is not given as an argument; make it a Tensor"
        for g, state in self._states:
            if not any(g is each for each in known) and _state_of(g) != state:
                self.obstacle = "the function draws random numbers that are not captured; draw arrays, by name"
        self._arrays.clear()
        self._states.clear()

    def replace_generators(self) -> Callable[[], None]:
        """Let names of Generators stand for ones whose draws are captured; return what restores them."""
        replaced = []
        for name in self._names:
            value = name.read()
            if value.__class__ is np.random.Generator and name.write is not None:
                replaced.append((name.write, value))
                name.write(CapturedGenerator(value))

        def restore() -> None:
            for write, value in replaced:
                write(value)

        return restore


def _release(value: Any, write: Callable[[Any], None] | None) -> None:
    """Put arrays in the place of captured ones that the function has left where its names lead."""
    if isinstance(value, CapturedArray):
        if write is not None:
            write(value.inner)
    elif value.__class__ is list:
        for k, part in enumerate(value):
            _release(part, functools.partial(operator.setitem, value, k))
    elif value.__class__ is dict:
        for key, part in list(value.items()):
            _release(part, functools.partial(operator.setitem, value, key))


def _state_of(generator: np.random.Generator) -> str:
    return repr(generator.bit_generator.state)


class _Search:
    """Finds the names that functions read: again and again, as each function names further attributes of objects."""

    def __init__(self, arguments: Iterable[Any]) -> None:
        self._arguments = frozenset(map(id, arguments))
        self.names: dict[Any, _Name] = {}
        self.arrays: dict[int, Any] = {}
        self.generators: dict[int, np.random.Generator] = {}
        self.obstacle: str | None = None
        self._words: set[str] = set()  # in the code of all functions
        self._globals: dict[int, list[str]] = {}  # that code names, by its identity
        self._seen: set[int] = set()

    def run(self, values: tuple[Any, ...]) -> None:
        before = -1
        while before != len(self._words):
            before = len(self._words)
            self._seen.clear()
            for value in values:
                self._visit(value, "an argument")

    def _visit(self, value: Any, name: str, depth: int = _DEPTH) -> None:
        if isinstance(value, (*_BY_VALUE, *_BY_TEXT, Tensor)) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, np.ndarray):
            if id(value) not in self._arguments:
                self.arrays[id(value)] = value
        elif is_on_gpu(value):
            if id(value) not in self._arguments:  # to compare its values in each call would be to wait for the GPU
                what = f"it reads {name}, an array of a GPU that is no Tensor; make it one, or pass it as an argument"
                self.obstacle = self.obstacle or what
        elif isinstance(value, np.random.Generator):
            self.generators[id(value)] = value
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif value.__class__ in _CONTAINERS:
            for part in held_by(value) if depth and len(value) <= _MOST else ():
                self._visit(part, name, depth - 1)
        elif isinstance(value, (types.MethodType, functools.partial)):
            for part in _parts_of(value):
                self._visit(part, name)
        else:
            self._visit_other(value, name)

    def _visit_other(self, value: Any, name: str) -> None:
        kind = type(value)
        if _is_stateful(value):
            self.obstacle = self.obstacle or f"it reads {name}, a {kind.__name__}, which changes as it is read"
        elif hasattr(kind, "__array_function__") or hasattr(kind, "__array_ufunc__"):
            self.obstacle = self.obstacle or f"it reads {name}, a {kind.__name__}, whose own functions compute with it"
        elif _is_users_object(value) or kind.__module__.startswith("gradmgr.optim"):
            self._visit_object(value, name)
        elif hasattr(value, "__wrapped__"):
            self._visit(value.__wrapped__, name)

    def _add(
        self,
        key: Any,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], None] | None = None,
        place: Any = None,
    ) -> None:
        if key not in self.names:
            self.names[key] = _Name(name, read, write, place)
        self._visit(read(), name)

    def _visit_function(self, function: types.FunctionType) -> None:
        for rule in (rules := getattr(function, "captured_functions", ())):
            self._visit(rule, function.__name__)
        if rules:
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            write = functools.partial(setattr, cell, "cell_contents")
            self._add(id(cell), name, functools.partial(_content_of, cell), write, cell)
        self._visit(getattr(function, "__wrapped__", None), function.__name__)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(("default", id(value)), f"a default of {function.__name__}", functools.partial(_itself, value))
        if is_of_library(function.__module__):
            return
        self._words |= _words_in(code)
        variables = function.__globals__
        named = self._globals.get(id(code))
        if named is None:
            named = self._globals[id(code)] = sorted(_globals_in(code))
        for name in [name for name in named if name in variables]:
            value = variables[name]
            if isinstance(value, types.ModuleType):
                self._check_module(value, name, code)
            elif not isinstance(value, type):
                write = functools.partial(operator.setitem, variables, name)
                read = functools.partial(variables.get, name, _MISSING)
                self._add((id(variables), name), name, read, write, (variables, name))

    def _check_module(self, module: types.ModuleType, name: str, code: types.CodeType) -> None:
        if module.__name__ in _VOLATILE or (module is np and _reads_attribute(code, name, "random")):
            named = "numpy.random" if module is np else module.__name__
            self.obstacle = self.obstacle or f"it uses the module {named}, which gives other values each time"

    def _visit_object(self, value: Any, owner: str) -> None:
        reference = _reference_to(value)
        everything = not self._words.isdisjoint(_REFLECTION)
        for name in _attributes_of(value):
            if everything or name in self._words:
                write = functools.partial(_set_attribute, reference, name)
                read = functools.partial(_attribute, reference, name)
                place = Attribute(reference, name) if name in getattr(value, "__dict__", ()) else None
                self._add((id(value), name), f"{owner}.{name}", read, write, place)
        for cls in type(value).__mro__:
            if is_of_library(cls.__module__):
                self._visit_getters(cls)
                continue
            for name in [name for name in vars(cls) if name in self._words or name == "__call__"]:
                found = vars(cls)[name]
                if isinstance(found, property):
                    self._visit(found.fget, name)
                elif isinstance(found, (staticmethod, classmethod, functools.cached_property)):
                    self._visit(getattr(found, "__func__", None) or getattr(found, "func", None), name)
                elif not isinstance(found, types.MemberDescriptorType):
                    read = functools.partial(_class_attribute, cls, name)
                    self._add((id(cls), name), f"{cls.__name__}.{name}", read, None, (vars(cls), name))

    def _visit_getters(self, cls: type) -> None:
        """Let the attributes count that a method of an optimiser or a schedule reads, such as get_last_lr()."""
        if not cls.__module__.startswith("gradmgr.optim"):
            return
        for name, found in vars(cls).items():
            if name in self._words and name.startswith("get_") and isinstance(found, types.FunctionType):
                self._words |= _words_in(found.__code__)


def _parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a method or a partial consists of."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return (value.func, *value.args, *value.keywords.values())


def is_of_library(module: Any) -> bool:
    """Tell whether code is of a library, whose globals do not change."""
    root = str(module).partition(".")[0]
    return root in ("gradmgr", "numpy", "scipy", "cupy") or (root in sys.stdlib_module_names and root != "__main__")


def _words_in(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes in the code of a function, and of those that it defines."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_words_in, inner))


def _globals_in(code: types.CodeType) -> set[str]:
    """Return the names of globals in the code of a function, and of those that it defines; `_words_in` has more."""
    import dis  # deferred: few functions are compiled

    found = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if "GLOBAL" in instruction.opname or instruction.opname.endswith("_NAME")
    }
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return found.union(*map(_globals_in, inner))


def _reads_attribute(code: types.CodeType, variable: str, attribute: str) -> bool:
    """Tell whether a function reads this attribute of this global."""
    import dis  # deferred: few functions are compiled

    before = None
    for instruction in dis.get_instructions(code):
        is_read = instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))
        if is_read and before == variable and instruction.argval == attribute:
            return True
        before = instruction.argval if instruction.opname == "LOAD_GLOBAL" else None
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return any(_reads_attribute(part, variable, attribute) for part in inner)


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _is_stateful(value: Any) -> bool:
    """Tell whether reading a value changes it."""
    return isinstance(value, (Iterator, io.IOBase)) and not isinstance(value, type)


def _is_users_object(value: Any) -> bool:
    """Tell whether a value has attributes that a program sets."""
    if isinstance(value, (type, types.ModuleType)):
        return False
    return isinstance(value, types.SimpleNamespace) or not is_of_library(type(value).__module__)


def _attributes_of(value: Any) -> list[str]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(value, name)]
    return [*getattr(value, "__dict__", ()), *slots]


def _attribute(reference: Callable[[], Any], name: str) -> Any:
    owner = reference()
    if owner is None:
        return _MISSING
    own = getattr(owner, "__dict__", {})
    return own[name] if name in own else getattr(owner, name, _MISSING)


def _set_attribute(reference: Callable[[], Any], name: str, value: Any) -> None:
    owner = reference()
    if name in getattr(owner, "__dict__", ()):
        vars(owner)[name] = value
    elif owner is not None:
        setattr(owner, name, value)


def _class_attribute(cls: type, name: str) -> Any:
    return vars(cls).get(name, _MISSING)
