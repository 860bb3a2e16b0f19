"""Environment: what a function reads besides its arguments, as far as its code shows.

These are the globals that its code names, the variables of the functions around it, the attributes that it names of
objects, classes and modules of the user's, and the same of each function of the user's that it may call. A program that
was captured fits while all of them are what they were: numbers, text and small arrays by value; lists, tuples, dicts
and their like by what they hold; all else by identity. Nothing is kept alive that can be held weakly. Large arrays are
inputs of the program, see `stand_ins`: what is computed of them is computed in each replay.

What gives another value each time without any name's standing for something else, such as an iterator or the clock, is
an obstacle: a function that names it is not replayed. So is what holds too much to be compared.
"""

from __future__ import annotations

import functools
import io
import operator
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._engine.cleanup import complete
from gradmgr._engine.tensor import Tensor
from gradmgr._engine.tensor_capture import TensorCapture
from gradmgr._transforms.name_tests import Attribute, write_test
from gradmgr._transforms.sources import (
    BY_BYTES,
    BY_TEXT,
    BY_VALUE,
    CONTAINERS,
    OF_FILES,
    SMALL,
    UNSEEN_READERS,
    Names,
    attributes_of,
    computes,
    held_by,
    is_large_array,
    is_module,
    is_of_library,
    is_of_program,
    line_of,
    names_in,
    runs_each_time,
    volatile_module_of,
    words_in,
)
from gradmgr._transforms.stand_ins import StandIns, large_arrays_in, release

_DEPTH = 6  # of containers in containers
_MOST = 10000  # elements of a container that are compared

_MISSING = object()

_CHANGES_UNSEEN = "that may change unseen; pass it as an argument, or make it a Tensor"

# Names by which code asks for a class, those of arrays and their elements, and those by which it asks for one of these.
_ASKING = frozenset(("isinstance", "issubclass", "type", "__class__"))
_CLASSES = frozenset(
    (
        *("ndarray", "generic", "number", "inexact", "floating", "integer", "signedinteger", "unsignedinteger"),
        *("complexfloating", "bool_", "str_", "bytes_", "float16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int_", "uint", "intp"),
        *("float", "complex", "int", "bool", "str", "bytes", "Number", "Complex", "Real", "Rational", "Integral"),
    )
)
_OF_ELEMENTS = frozenset(("isscalar", "True_", "False_"))

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
        self.value = value if isinstance(value, BY_TEXT) else None
        if isinstance(value, CONTAINERS) and depth and len(value) <= _MOST:
            self.parts = [_Value(part, depth - 1) for part in held_by(value)]
            if is_of_program(self.kind.__module__) and not isinstance(value, tuple):  # it may have attributes, too
                self.reference = _reference_to(value)
        elif not isinstance(value, (*BY_VALUE, *BY_TEXT)):
            self.reference = _reference_to(value)

    def is_same(self, value: Any) -> bool:
        """Tell whether another value stands for the same."""
        if self.reference is not None:
            if value is None or self.reference() is not value:  # it may be gone
                return False
            if self.parts is None:
                if self.content is None:
                    return True
                found = value.tobytes() if value.__class__ is np.ndarray else _content(value)
                return bool(found == self.content)
        elif value.__class__ is not self.kind:
            return False
        if self.parts is None:
            return bool(_content(value) == self.content)
        found = held_by(value)
        if len(found) != len(self.parts):
            return False
        for part, each in zip(self.parts, found, strict=True):
            reference = part.reference
            if reference is not None and part.content is part.parts is None:  # without a call, as there are many
                if each is None or reference() is not each:
                    return False
            elif not part.is_same(each):
                return False
        return True


def _content(value: Any) -> Any:
    """Return what is compared of a value besides its identity."""
    if isinstance(value, BY_TEXT):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= SMALL and value.dtype != object else None
    if isinstance(value, BY_BYTES):
        return bytes(value)
    if isinstance(value, ContextVar):
        return (value.get(_MISSING),)  # None is a value, too
    return value if isinstance(value, BY_VALUE) else None


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
        code: of the function for which it was found first; None for what the arguments lead to.
    """

    __slots__ = ("code", "name", "place", "read", "value", "write")

    def __init__(
        self,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], None] | None,
        place: Any,
        code: types.CodeType | None,
    ) -> None:
        self.code = code
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

    __slots__ = ("_arrays", "_asks_class", "_given", "_names", "_states", "obstacle")

    def __init__(self, function: Any, arguments: Iterable[Any] = ()) -> None:
        search = _Search(arguments)
        search.run((function, *arguments))
        self._names = list(search.names.values())
        self.obstacle = search.obstacle
        if self.obstacle is None and search.asks_for_arrays() and any(isinstance(a, np.ndarray) for a in arguments):
            self.obstacle = "it may ask whether an argument is an ndarray, which none is in a capture; give it Tensors"
        self._asks_class = search.asks_class()
        self._given = {id(a): a for a in arguments if is_large_array(a)}
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

    def replace(self, capture: TensorCapture, given: Mapping[int, Any]) -> tuple[Callable[[], None], set[int]]:
        """Let names of Generators, of objects with array functions and of large arrays stand for stand-ins.

        An array that nothing can stand for is an obstacle.

        Args:
            capture: which captures the calls of large arrays.
            given: by the identity of large arrays that are arguments, too, what stands for these.

        Returns:
            What restores them, and the identities of those arguments that names stand for.
        """
        sees_arrays = self.obstacle is None and not self._asks_class
        stand_ins = StandIns(capture if sees_arrays else None, given)

        def restore() -> None:
            stand_ins.restore()
            for name in self._names:
                release(name.read(), name.write)

        try:
            for name in self._names:
                if name.write is not None:
                    stand_ins.replace(name.read, name.write)
            self._check_arrays(stand_ins)
        except BaseException:
            complete(restore)
            raise
        return restore, stand_ins.named

    def _check_arrays(self, stand_ins: StandIns) -> None:
        """Note as an obstacle that the function reads a large array for which nothing stands."""
        if self.obstacle is not None:
            return
        for name in self._names:
            for _ in large_arrays_in(name.read()):
                self.obstacle = _unseen(name.name, name.code, self._reason())
                return
        if not all(stand_ins.has(a) or id(a) in self._given for a, _ in self._arrays if is_large_array(a)):
            self.obstacle = _unseen("what an argument holds", None, self._reason())

    def _reason(self) -> str:
        """Return why nothing stands for an array."""
        if self._asks_class:
            return "whose class it may ask for, which is another one in a capture; make it a Tensor"
        return _CHANGES_UNSEEN


def _unseen(name: str, code: types.CodeType | None, reason: str) -> str:
    """Say why a function that reads an array is not replayed."""
    line = "" if code is None else f", at {line_of(code, name.rpartition('.')[2])}"
    return f"it reads {name}, an array {reason}{line}"


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
        self._names_in: dict[int, Names] = {}  # by the identity of code
        self._code: types.CodeType | None = None  # that names what is visited
        self._seen: set[int] = set()

    def run(self, values: tuple[Any, ...]) -> None:
        before = -1
        while before != len(self._words):
            before = len(self._words)
            self._seen.clear()
            for value in values:
                self._visit(value, "an argument")

    def asks_class(self) -> bool:
        """Tell whether code may ask for the class of an array or of its elements, which no stand-in is of."""
        words = self._words
        return not (words.isdisjoint(_ASKING) or words.isdisjoint(_CLASSES)) or not words.isdisjoint(_OF_ELEMENTS)

    def asks_for_arrays(self) -> bool:
        """Tell whether code may ask whether something is a NumPy array."""
        return "ndarray" in self._words and not self._words.isdisjoint(_ASKING)

    def _refuse(self, why: str, name: str) -> None:
        """Note why what is read cannot be compared, with the line of the code that names it."""
        if self.obstacle is None:
            line = "" if self._code is None else f", at {line_of(self._code, name.rpartition('.')[2])}"
            self.obstacle = why + line

    def _visit(self, value: Any, name: str, depth: int = _DEPTH) -> None:
        if isinstance(value, (*BY_VALUE, *BY_TEXT, *BY_BYTES, Tensor)) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, np.ndarray) or is_on_gpu(value):
            self._visit_array(value, name)
        elif isinstance(value, np.random.Generator):
            self.generators[id(value)] = value
        elif (volatile := volatile_module_of(value)) is not None:
            self._refuse(f"it reads {name}, of the module {volatile}, which gives other values each time", name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, self._words)
        elif isinstance(value, type):
            self._visit_classes(value, is_made=True)
        elif isinstance(value, (types.MethodType, functools.partial)):
            for part in _parts_of(value):
                if is_large_array(part) and id(part) not in self._arguments:
                    self._refuse(f"it reads {name}, an array {_CHANGES_UNSEEN}", name)
                self._visit(part, name)
        elif is_large_array(getattr(value, "__self__", None)):  # one of its methods
            self._refuse(f"it reads {name}, a method of an array {_CHANGES_UNSEEN}", name)
        else:
            self._visit_object(value, name, depth)

    def _visit_array(self, value: Any, name: str) -> None:
        if id(value) in self._arguments:
            return
        if is_on_gpu(value):  # to compare its values in each call would be to wait for the GPU
            self._refuse(
                f"it reads {name}, an array of a GPU that is no Tensor; make it one, or pass it as an argument", name
            )
        else:
            self.arrays[id(value)] = value

    def _visit_object(self, value: Any, name: str, depth: int) -> None:
        kind = type(value)
        if isinstance(value, CONTAINERS):
            if not depth or len(value) > _MOST:
                what = f"it reads {name}, which holds more than can be compared in each call"
                self._refuse(f"{what}; pass what it needs of it as an argument", name)
            else:
                for part in held_by(value):
                    self._visit(part, name, depth - 1)
        if _is_stateful(value):
            self._refuse(f"it reads {name}, a {kind.__name__}, which changes as it is read", name)
        elif runs_each_time(value):
            if id(value) not in self._arguments:  # for these a capture has stand-ins, as for those that names stand for
                what = f"it reads {name}, a {kind.__name__}, whose own functions compute with what may change unseen"
                self._refuse(f"{what}; read it by a name of its own, or pass it as an argument", name)
        elif _has_attributes(value) or kind.__module__.startswith("gradmgr.optim"):
            self._visit_attributes(value, name)
        if is_module(kind):  # which may call the modules in it, without naming them
            for key, part in list(vars(value).items()):
                if is_module(type(part)):
                    self._visit(part, f"{name}.{key}")
        if hasattr(value, "__wrapped__"):
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
            self.names[key] = _Name(name, read, write, place, self._code)
        value = read()
        if write is None or not runs_each_time(value):
            self._visit(value, name)

    def _visit_function(self, function: types.FunctionType) -> None:
        for rule in (rules := getattr(function, "captured_functions", ())):
            self._visit(rule, function.__name__)
        if rules:
            return
        before, self._code = self._code, function.__code__
        try:
            self._visit_code(function)
        finally:
            self._code = before

    def _visit_code(self, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            write = functools.partial(setattr, cell, "cell_contents")
            self._add(id(cell), name, functools.partial(_content_of, cell), write, cell)
        self._visit(getattr(function, "__wrapped__", None), function.__name__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
                self._add((id(function), name), f"a default of {function.__name__}", read, write)
        if is_of_library(function.__module__):
            return
        for name in OF_FILES.intersection(code.co_names):
            self._refuse(f"it calls {name}(), which reads a file", name)
        self._words |= words_in(code)
        if id(code) not in self._names_in:
            self._names_in[id(code)] = names_in(code)
        names = self._names_in[id(code)]
        self._words |= names.read.keys() & _ASKING  # in a pattern no name stands for it
        for name in sorted(names.read):
            self._visit_global(function.__globals__, name, names.read[name])
        for name in sorted(names.imported & sys.modules.keys()):
            self._visit(sys.modules[name], name)
        for name in self._words.intersection(vars(function)):
            read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
            self._add((id(function), name), f"{function.__name__}.{name}", read, write, (vars(function), name))

    def _visit_global(self, variables: dict[str, Any], name: str, attributes: set[str | None]) -> None:
        """Visit a global of which code reads these attributes at once; None stands for other uses."""
        if name not in variables:
            if name in UNSEEN_READERS:
                self._refuse(f"it calls {name}(), which reads what cannot be compared", name)
            return
        value = variables[name]
        if isinstance(value, types.ModuleType):
            if value is np and "random" in attributes:
                self._refuse("it uses the module numpy.random, which gives other values each time", name)
            elif volatile_module_of(value) is not None or None in attributes:
                self._visit(value, name)
            else:
                self._visit_module(value, {attribute for attribute in attributes if attribute is not None})
        elif not (isinstance(value, type) and is_of_library(value.__module__)):
            write = functools.partial(operator.setitem, variables, name)
            read = functools.partial(variables.get, name, _MISSING)
            self._add((id(variables), name), name, read, write, (variables, name))

    def _visit_module(self, module: types.ModuleType, names: set[str]) -> None:
        """Visit these attributes of a module; of one that is installed, those that are no code."""
        if is_of_library(module.__name__):
            return
        variables = vars(module)
        for name in sorted(names & variables.keys()):
            value = variables[name]
            if isinstance(value, types.ModuleType):
                if volatile_module_of(value) is None:
                    self._visit(value, name)
            elif is_of_program(module.__name__) or isinstance(value, (*BY_VALUE, *BY_TEXT, *CONTAINERS, np.ndarray)):
                write = functools.partial(operator.setitem, variables, name)
                read = functools.partial(variables.get, name, _MISSING)
                self._add((id(variables), name), f"{module.__name__}.{name}", read, write, (variables, name))

    def _visit_attributes(self, value: Any, owner: str) -> None:
        reference = _reference_to(value)
        everything = not self._words.isdisjoint(_REFLECTION)
        for name in attributes_of(value):
            if everything or name in self._words:
                write = functools.partial(_set_attribute, reference, name)
                read = functools.partial(_attribute, reference, name)
                place = Attribute(reference, name) if name in getattr(value, "__dict__", ()) else None
                self._add((id(value), name), f"{owner}.{name}", read, write, place)
        if hasattr(value, "__dict__"):
            self._visit_values_of_class(value, owner, reference)
        self._visit_classes(type(value), is_made=False)

    def _visit_classes(self, kind: type, *, is_made: bool) -> None:
        """Visit what code names of a class, inherited or not, and the methods that it need not name."""
        if is_made and not is_of_program(kind.__module__):
            return
        if any(cls.__module__ == "gradmgr.function" for cls in kind.__mro__):
            return  # a Function, whose own code runs in each replay
        for cls in kind.__mro__:
            if is_of_library(cls.__module__):
                self._visit_getters(cls)
                continue
            for name, found in list(vars(cls).items()):
                if name in self._words or computes(name, found, is_made=is_made):
                    self._visit_member(cls, name, found)

    def _visit_values_of_class(self, value: Any, owner: str, reference: Callable[[], Any]) -> None:
        """Let values of an object's class count as its own, which may be set later."""
        for cls in type(value).__mro__:
            for name in self._words & vars(cls).keys() if not is_of_library(cls.__module__) else ():
                if not callable(found := vars(cls)[name]) and not hasattr(type(found), "__get__"):
                    read = functools.partial(_attribute, reference, name)
                    self._add((id(value), name), f"{owner}.{name}", read)

    def _visit_member(self, cls: type, name: str, found: Any) -> None:
        if isinstance(found, property):
            self._visit(found.fget, name)
        elif isinstance(found, (staticmethod, classmethod, functools.cached_property)):
            self._visit(getattr(found, "__func__", None) or getattr(found, "func", None), name)
        elif not isinstance(found, types.MemberDescriptorType):
            read = functools.partial(_class_attribute, cls, name)
            write = functools.partial(type.__setattr__, cls, name)
            self._add((id(cls), name), f"{cls.__name__}.{name}", read, write, (vars(cls), name))

    def _visit_getters(self, cls: type) -> None:
        """Let the attributes count that a method of an optimiser or a schedule reads, such as get_last_lr()."""
        if not cls.__module__.startswith("gradmgr.optim"):
            return
        for name, found in vars(cls).items():
            if name in self._words and name.startswith("get_") and isinstance(found, types.FunctionType):
                self._words |= words_in(found.__code__)


def _parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a method or a partial consists of."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return (value.func, *value.args, *value.keywords.values())


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _is_stateful(value: Any) -> bool:
    """Tell whether reading a value changes it."""
    return isinstance(value, (Iterator, io.IOBase)) and not isinstance(value, type)


def _has_attributes(value: Any) -> bool:
    """Tell whether a program sets attributes of a value: an object of its own, or of the standard library's."""
    module = type(value).__module__
    if not is_of_library(module):
        return True
    return module.partition(".")[0] in sys.stdlib_module_names and hasattr(value, "__dict__")  # as argparse.Namespace


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
        object.__setattr__(owner, name, value)  # in a slot, of a frozen object too


def _class_attribute(cls: type, name: str) -> Any:
    return vars(cls).get(name, _MISSING)
