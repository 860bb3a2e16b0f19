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
import logging
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
from gradmgr._transforms.hidden_state import (
    asks_loggers,
    hidden_read,
    hides_state,
    is_of_names,
    is_standard,
    reads_hidden,
    root_of,
    volatile_module_of,
)
from gradmgr._transforms.name_tests import Attribute, CountOfAttributes, OfItself, write_test
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
    questions_in,
    runs_each_time,
    words_in,
)
from gradmgr._transforms.stand_ins import CachedCall, StandIns, has_cache, large_arrays_in, release

_DEPTH = 6  # of containers in containers
_MOST = 10000  # elements of a container that are compared

_MOST_CACHED = 100  # calls of functions with `lru_cache` that are compared

_MISSING = object()

_CHANGES_UNSEEN = "that may change unseen; pass it as an argument, or make it a Tensor"

# Names by which code asks for a class, those of arrays and their elements, and those by which it asks for one of these.
_ASKING = frozenset(("isinstance", "issubclass"))
_CLASSES = frozenset(
    (
        *("ndarray", "generic", "number", "inexact", "floating", "integer", "signedinteger", "unsignedinteger"),
        *("complexfloating", "bool_", "str_", "bytes_", "float16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int_", "uint", "intp"),
        *("float", "complex", "int", "bool", "str", "bytes", "Number", "Complex", "Real", "Rational", "Integral"),
    )
)
_OF_ELEMENTS = frozenset(("isscalar", "True_", "False_", "dir"))
# Errors that a stand-in raises where an array would not.
_ERRORS = frozenset(("TypeError", "AttributeError", "Exception", "BaseException"))

# Names by which code reads attributes that it does not name.
_REFLECTION = frozenset(("__dict__", "attrgetter", "getattr", "hasattr", "locals", "vars"))
_TEXTS = frozenset(("format", "repr", "str"))


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
                return bool(_content(value) == self.content)
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
        return (value.tobytes(), value.shape, value.dtype) if value.nbytes <= SMALL and value.dtype != object else None
    if isinstance(value, BY_BYTES):
        return bytes(value)
    if isinstance(value, logging.Logger):
        return value.getEffectiveLevel(), value.disabled, value.manager.disable
    return value if isinstance(value, BY_VALUE) else None


def _is_unchanging(value: Any) -> bool:
    """Tell whether nothing of a value can change."""
    if isinstance(value, tuple):
        return all(map(_is_unchanging, value))
    kinds = (*BY_VALUE, *BY_TEXT, types.CodeType, types.FunctionType, type, np.dtype)
    return isinstance(value, kinds) and not is_of_program(type(value).__module__)


def _is_comparable(value: Any) -> bool:
    """Tell whether a change of a value is noticed in each call, without a look at what it refers to."""
    if isinstance(value, tuple):
        return all(map(_is_comparable, value))
    is_array = value.__class__ is np.ndarray and not is_large_array(value)
    return is_array or isinstance(value, Tensor) or _is_unchanging(value)


def _reference_to(value: Any) -> Callable[[], Any]:
    if isinstance(value, types.CodeType):
        return functools.partial(_itself, value)
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
            object, OfItself or CountOfAttributes; None for others.
        code: of the function for which it was found first; None for what the arguments lead to.
        may_change: whether the function itself may change it: then it is captured once more.
    """

    __slots__ = ("code", "may_change", "name", "place", "read", "value", "write")

    def __init__(
        self,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], None] | None,
        place: Any,
        code: types.CodeType | None,
    ) -> None:
        self.code = code
        self.may_change = isinstance(place, CountOfAttributes)
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

    __slots__ = ("_arrays", "_asking", "_asks_class", "_cached", "_given", "_names", "_states", "obstacle")

    def __init__(self, function: Any, arguments: Iterable[Any] = ()) -> None:
        search = _Search(arguments)
        search.run((function, *arguments))
        self._names = list(search.names.values())
        self.obstacle = search.obstacle
        self._asking = list(search.asking.values())
        self._asks_class = search.asks_class()
        if self.obstacle is None and self._asks_class and any(isinstance(a, np.ndarray) for a in arguments):
            self.obstacle = "it may ask whether an argument is an ndarray, which none is in a capture; give it Tensors"
        self._given = {id(a): a for a in arguments if is_large_array(a)}
        self._arrays = [(a, zlib.crc32(np.ascontiguousarray(a).tobytes())) for a in search.arrays.values()]
        self._states = [(g, _state_of(g)) for g in search.generators.values()]
        self._cached: list[CachedCall] = []

    def test(self) -> Callable[[], bool]:
        """Return a function that tells quickly whether nothing has changed; it may also say no where nothing has."""
        return write_test(self._names)

    def changed(self) -> str | None:
        """Return the first name that stands for something else now; None where all are the same."""
        return self._changed(self._names)

    @staticmethod
    def _changed(names: Iterable[_Name]) -> str | None:
        return next((name.name for name in names if not name.is_same()), None)

    def settle(self, known: Iterable[Any]) -> None:
        """Note as an obstacle what the function has changed since, unseen by a capture, and drop what only this needs.

        Args:
            known: the Generators whose draws were captured.
        """
        self._add_cached()
        changed = self._changed(name for name in self._names if not name.may_change)
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

    def _add_cached(self) -> None:
        """Add what functions with `lru_cache` gave, which a replay asks for again; nothing else can be compared."""
        made: set[Any] = set()
        for function, args, keywords, result in self._cached:
            name = getattr(function, "__name__", "a function")
            if not (_is_unchanging((args, *keywords.values())) and _is_comparable(result)):
                self.obstacle = (
                    f"it calls {name}(), which functools.lru_cache keeps the results of, with or for what may change "
                    "unseen; call it outside, and pass the result as an argument"
                )
            elif (key := (id(function), args, *keywords.items())) not in made:
                made.add(key)
                self._names.append(
                    _Name(f"what {name}() gives", functools.partial(function, *args, **keywords), None, None, None)
                )
        if len(made) > _MOST_CACHED:
            self.obstacle = (
                "it makes more calls of functions with functools.lru_cache than can be compared in each call"
            )
        self._cached = []

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
        stand_ins = StandIns(capture, given, sees_arrays=sees_arrays)
        self._cached = stand_ins.cached

        def restore() -> None:
            stand_ins.restore()
            for name in self._names:
                release(name.read(), name.write)

        try:
            for variables in self._asking:
                stand_ins.answer_in(variables)
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
        self.asking: dict[int, dict[str, Any]] = {}  # the globals of code that calls isinstance()
        self.obstacle: str | None = None
        self._words: set[str] = set()  # in the code of all functions
        self._asks = False  # whether code asks what a stand-in cannot answer
        self._catches = False  # whether it catches errors
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
        if not words.isdisjoint(_ASKING) and not words.isdisjoint(_CLASSES):
            return True
        catches = self._catches or "suppress" in words
        return self._asks or not words.isdisjoint(_OF_ELEMENTS) or (catches and not words.isdisjoint(_ERRORS))

    def _refuse(self, why: str, name: str) -> None:
        """Note why what is read cannot be compared, with the line of the code that names it."""
        if self.obstacle is None:
            line = "" if self._code is None else f", at {line_of(self._code, name.rpartition('.')[2])}"
            self.obstacle = why + line

    def _visit(self, value: Any, name: str, depth: int = _DEPTH) -> None:
        is_plain = isinstance(value, (*BY_VALUE, *BY_TEXT, *BY_BYTES)) and not is_of_program(type(value).__module__)
        if is_plain or isinstance(value, Tensor) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, np.ndarray) or is_on_gpu(value):
            self._visit_array(value, name)
        elif isinstance(value, np.random.Generator):
            self.generators[id(value)] = value
        elif (why := _why_unreadable(value)) is not None:
            self._refuse(f"it reads {name}, {why}", name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, self._words)
        elif isinstance(value, type):
            self._asks_of(value)
            self._visit_classes(value, is_made=True)
        elif isinstance(value, types.UnionType):
            for part in value.__args__:
                self._visit(part, name)
        elif isinstance(value, (types.MethodType, functools.partial)):
            self._visit_parts(value, name)
        elif is_large_array(getattr(value, "__self__", None)):  # one of its methods
            self._refuse(f"it reads {name}, a method of an array {_CHANGES_UNSEEN}", name)
        else:
            self._visit_object(value, name, depth)

    def _asks_of(self, kind: type) -> None:
        """Note that code has a class of arrays or of their elements, for which it may ask."""
        is_known = kind.__name__ in _CLASSES and root_of(kind.__module__) in ("builtins", "numbers", "numpy")
        if kind is type or (is_known and not self._words.isdisjoint(_ASKING)):  # type() by another name
            self._asks = True

    def _visit_parts(self, value: Any, name: str) -> None:
        """Visit what a method or a partial consists of."""
        parts = _parts_of(value)
        for part in parts:
            if is_large_array(part) and id(part) not in self._arguments:
                self._refuse(f"it reads {name}, an array {_CHANGES_UNSEEN}", name)
            self._visit(part, name)
        if isinstance(value, functools.partial) and not any(map(is_large_array, parts)):
            for attribute in ("func", "args", "keywords"):
                self._add_of_itself(value, attribute, f"{name}.{attribute}")

    def _add_of_itself(self, value: Any, attribute: str, name: str) -> None:
        """Add what an object holds by an attribute that is not in its dict."""
        self._visit(self._note_of_itself(value, attribute, name), name)

    def _note_of_itself(self, value: Any, attribute: str, name: str) -> Any:
        """Do so without a look at what that leads to, and return it."""
        key = id(value), attribute
        if key not in self.names:
            reference = _reference_to(value)
            read = functools.partial(_attribute_of_itself, reference, attribute)
            self.names[key] = _Name(name, read, None, OfItself(reference, attribute), self._code)
        return self.names[key].read()

    def _visit_array(self, value: Any, name: str) -> None:
        if id(value) in self._arguments:
            return
        if is_on_gpu(value):  # to compare its values in each call would be to wait for the GPU
            self._refuse(
                f"it reads {name}, an array of a GPU that is no Tensor; make it one, or pass it as an argument", name
            )
        else:
            self.arrays[id(value)] = value
            if is_of_program(type(value).__module__):
                self._visit_attributes(value, name)

    def _visit_object(self, value: Any, name: str, depth: int) -> None:
        kind = type(value)
        if isinstance(value, CONTAINERS):
            if not depth or len(value) > _MOST:
                what = f"it reads {name}, which holds more than can be compared in each call"
                self._refuse(f"{what}; pass what it needs of it as an argument", name)
            else:
                for part in held_by(value):
                    self._visit(part, name, depth - 1)
        if runs_each_time(value):
            if id(value) not in self._arguments:  # for these a capture has stand-ins, as for those that names stand for
                what = f"it reads {name}, a {kind.__name__}, whose own functions compute with what may change unseen"
                self._refuse(f"{what}; read it by a name of its own, or pass it as an argument", name)
        elif (hidden := hides_state(value, self._words)) is not None:
            self._refuse(f"it reads {name}, a {kind.__name__}, {hidden}", name)
        elif _has_attributes(value) or kind.__module__.startswith(("gradmgr.optim", "gradmgr.nn")):
            self._visit_attributes(value, name)
        self._visit_what_it_leads_to(value, name)
        if is_module(kind):  # which may call the modules in it, without naming them
            for key, part in list(vars(value).items()):
                if is_module(type(part)):
                    self._visit(part, f"{name}.{key}")
        if hasattr(value, "__wrapped__"):
            self._visit(value.__wrapped__, name)

    def _visit_what_it_leads_to(self, value: Any, name: str) -> None:
        """Visit what an object of Python's own gives when it is called."""
        if isinstance(value, ContextVar):
            self._add((id(value), "get"), name, functools.partial(value.get, _MISSING))
        elif isinstance(value, weakref.ReferenceType):
            self._add((id(value), "()"), name, value)
        elif value is isinstance:  # by another name
            self._words.add("isinstance")
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            if not isinstance(value.__self__, (types.ModuleType, type)):
                self._add_of_itself(value, "__self__", name)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            parts = value.__reduce__()[1]  # the class, and what it was given
            self._words.update(word for part in parts if isinstance(part, str) for word in part.split("."))
        elif isinstance(value, np.vectorize):
            self._visit(value.pyfunc, name)

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
        if write is not None and has_cache(value):
            self._visit(value.__wrapped__, name)
        elif write is None or not runs_each_time(value):
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

    def _visit_closure(self, function: types.FunctionType) -> None:
        code = function.__code__
        is_dispatch = code.co_filename == functools.singledispatch.__code__.co_filename
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if is_dispatch and name == "dispatch_cache":  # of what its registry says
                continue
            write = functools.partial(setattr, cell, "cell_contents")
            self._add(id(cell), name, functools.partial(_content_of, cell), write, cell)

    def _visit_code(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._visit_closure(function)
        self._visit(getattr(function, "__wrapped__", None), function.__name__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
                self._add((id(function), name), f"a default of {function.__name__}", read, write)
        if is_of_library(function.__module__):
            return
        for name in OF_FILES.intersection(code.co_names):
            self._refuse(f"it calls {name}(), which reads a file", name)
        self._enter_words(code)
        self._note_of_itself(function, "__code__", f"the code of {function.__name__}")
        if id(code) not in self._names_in:
            self._names_in[id(code)] = names_in(code)
        names = self._names_in[id(code)]
        for name in sorted(names.assigned):
            self._add_global(function.__globals__, name)
        for name in sorted(names.read):
            self._visit_global(function.__globals__, name, names.read[name])
        for name in sorted(names.imported & sys.modules.keys()):
            self._visit(sys.modules[name], name)
        self._visit_attributes_of_function(function)

    def _visit_attributes_of_function(self, function: types.FunctionType) -> None:
        everything = not self._words.isdisjoint(_REFLECTION)
        if everything:
            self._add_count(function, function.__name__)
        for name in list(vars(function)) if everything else self._words.intersection(vars(function)):
            read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
            self._add((id(function), name), f"{function.__name__}.{name}", read, write, (vars(function), name))

    def _enter_words(self, code: types.CodeType) -> None:
        """Note what code names, and what it may ask."""
        self._words |= words_in(code) - {"isinstance"}  # which answers for what stands for an array, see `StandIns`
        if asks_loggers(self._words):
            self._refuse(
                "it asks for the level of a Logger that it looks up; keep the Logger in a variable", "getLogger"
            )
        questions = questions_in(code)
        self._asks = self._asks or questions.asks
        if questions.matches:
            self._words.add("isinstance")
        self._catches = self._catches or questions.catches

    def _add_count(self, value: Any, name: str) -> None:
        """Add how many attributes an object has, as a new one may hide that of a class, or be asked for."""
        reference = _reference_to(value)
        count = functools.partial(_count_of_attributes, reference)
        self._add((id(value), None), f"the attributes of {name}", count, place=CountOfAttributes(reference))

    def _visit_global(self, variables: dict[str, Any], name: str, attributes: set[str | None]) -> None:
        """Visit a global of which code reads these attributes at once; None stands for other uses."""
        if name not in variables:
            if name == "isinstance":
                self.asking[id(variables)] = variables
            if name in UNSEEN_READERS:
                self._refuse(f"it calls {name}(), which reads what cannot be compared", name)
            return
        value = variables[name]
        if isinstance(value, types.ModuleType):
            if value is np and "random" in attributes:
                self._refuse("it uses the module numpy.random, which gives other values each time", name)
            elif (hidden := hidden_read(value, attributes)) is not None:
                self._refuse(f"it reads {name}.{hidden}, which depends on what lies outside of the program", name)
            elif volatile_module_of(value) is not None or None in attributes:
                self._visit(value, name)
            else:
                self._visit_module(value, {attribute for attribute in attributes if attribute is not None})
        elif isinstance(value, type) and is_of_library(value.__module__):
            self._visit(value, name)
        else:
            self._add_global(variables, name)

    def _add_global(self, variables: dict[str, Any], name: str) -> None:
        write = functools.partial(operator.setitem, variables, name)
        read = functools.partial(variables.get, name, _MISSING)
        self._add((id(variables), name), name, read, write, (variables, name))

    def _visit_module(self, module: types.ModuleType, names: set[str]) -> None:
        """Visit these attributes of a module; of one that is installed, those that are no code."""
        if is_of_library(module.__name__):
            return
        variables = vars(module)
        self._visit(variables.get("__getattr__"), module.__name__)
        for name in sorted(names & variables.keys()):
            value = variables[name]
            if isinstance(value, types.ModuleType):
                if volatile_module_of(value) is None:
                    self._visit(value, name)
            elif isinstance(value, types.BuiltinFunctionType):
                self._visit(value, name)
            elif is_of_program(module.__name__) or isinstance(value, (*BY_VALUE, *BY_TEXT, *CONTAINERS, np.ndarray)):
                write = functools.partial(operator.setitem, variables, name)
                read = functools.partial(variables.get, name, _MISSING)
                self._add((id(variables), name), f"{module.__name__}.{name}", read, write, (variables, name))

    def _visit_attributes(self, value: Any, owner: str) -> None:
        reference = _reference_to(value)
        is_whole = _is_seen_whole(value)
        is_read = not is_of_library(type(value).__module__)  # whether the code of its class is
        everything = is_whole or not self._words.isdisjoint(_REFLECTION)
        for name in attributes_of(value):
            is_own = name.startswith("_") and root_of(type(value).__module__) == "gradmgr"  # of no use to programs
            if name in self._words or (everything and not is_own):
                write = None if is_whole else functools.partial(_set_attribute, reference, name)
                read = functools.partial(_attribute, reference, name)
                place = Attribute(reference, name) if name in getattr(value, "__dict__", ()) else None
                self._add((id(value), name), f"{owner}.{name}", read, write, place)
        if is_read:
            self._note_of_itself(value, "__class__", f"the class of {owner}")
        if hasattr(value, "__dict__"):
            if is_read:
                self._add_count(value, owner)
            self._visit_values_of_class(value, owner, reference)
        self._visit_classes(type(value), is_made=False)

    def _visit_classes(self, kind: type, *, is_made: bool) -> None:
        """Visit what code names of a class, inherited or not, and the methods that it need not name."""
        if is_made and not is_of_program(kind.__module__):
            return
        if any(cls.__module__ == "gradmgr.function" for cls in kind.__mro__):
            return  # a Function, whose own code runs in each replay
        if is_of_program(type(kind).__module__):
            self._visit_classes(type(kind), is_made=False)
        for cls in kind.__mro__:
            if is_of_library(cls.__module__):
                self._visit_getters(cls)
                continue
            for name, found in list(vars(cls).items()):
                is_text = name == "__repr__" and not self._words.isdisjoint(_TEXTS)
                if name in self._words or is_text or computes(name, found, is_made=is_made):
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
        elif isinstance(found, functools.singledispatchmethod):
            self._visit(found.dispatcher, name)
        elif isinstance(found, functools.partialmethod):
            for part in (found.func, *found.args, *found.keywords.values()):
                self._visit(part, name)
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


def _why_unreadable(value: Any) -> str | None:
    """Return why what a value gives cannot be compared, whatever code does with it; None where it can."""
    if _is_stateful(value):
        return f"a {type(value).__name__}, which changes as it is read"
    volatile = volatile_module_of(value)
    if volatile is not None:
        return f"of the module {volatile}, which gives other values each time"
    return "which reads what lies outside of the program" if reads_hidden(value) else None


def _is_stateful(value: Any) -> bool:
    """Tell whether reading a value changes it."""
    return isinstance(value, (Iterator, io.IOBase)) and not isinstance(value, type)


def _has_attributes(value: Any) -> bool:
    """Tell whether a program sets attributes of a value: an object of its own, or of a library that is seen whole."""
    return not is_of_library(type(value).__module__) or is_of_names(value) or _is_seen_whole(value)


def _is_seen_whole(value: Any) -> bool:
    """Tell whether all attributes of a value are compared, as the code of its class is not read."""
    module = type(value).__module__
    is_known = is_standard(module) or root_of(module) in ("numpy", "scipy")
    is_else = is_of_names(value) or isinstance(value, (logging.Logger, np.finfo, np.iinfo))
    return is_known and hasattr(value, "__dict__") and not is_else


def _attribute_of_itself(reference: Callable[[], Any], name: str) -> Any:
    return getattr(reference(), name, _MISSING)


def _count_of_attributes(reference: Callable[[], Any]) -> int:
    return len(getattr(reference(), "__dict__", ()))


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
