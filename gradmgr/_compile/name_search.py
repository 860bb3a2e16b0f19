"""The search for what functions read by name: globals, variables, attributes, and the same of what they may call.

It starts at a function and its arguments, and goes again through all it has found, as each function names further
attributes of objects. What gives another value each time without any name's standing for something else, such as an
iterator or the clock, is an obstacle: a function that names it is not replayed. So is what holds too much to be
compared.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import numpy as np

from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._compile.accumulation import Place, is_settable, places_of
from gradmgr._compile.code_facts import MAKING, CodeFacts, facts_of, line_of
from gradmgr._compile.compared import DEPTH, MOST, Closeness, ComparedName, reference_to
from gradmgr._compile.found_code import FoundCode
from gradmgr._compile.hidden_state import (
    asks_loggers,
    has_attributes,
    hidden_read,
    hides_state,
    is_seen_whole,
    root_of,
    volatile_module_of,
    why_unreadable,
)
from gradmgr._compile.name_reading import (
    MISSING,
    attribute_of,
    attribute_of_itself,
    class_attribute,
    content_of,
    count_of_attributes,
    is_number,
    looked_up,
    parts_of,
    set_attribute,
)
from gradmgr._compile.name_tests import Attribute, CountOfAttributes, OfItself
from gradmgr._compile.settings import Setting, absent_globals, class_as_it_is, settings_read
from gradmgr._compile.sources import (
    BY_BYTES,
    BY_TEXT,
    BY_VALUE,
    CONTAINERS,
    OF_FILES,
    OF_FRAMES,
    PASSING_ERRORS,
    UNSEEN_READERS,
    attributes_of,
    computes,
    has_known_code,
    held_by,
    is_large_array,
    is_module,
    is_of_library,
    is_of_program,
    module_of,
    runs_each_time,
)
from gradmgr._compile.stand_ins import has_cache
from gradmgr._engine.tensor import Tensor

CHANGES_UNSEEN = "that may change unseen; pass it as an argument, or make it a Tensor"

# Attributes of functions and classes that do not stand in their dicts.
_OF_FUNCTIONS = frozenset(("__annotations__", "__doc__", "__module__", "__name__", "__qualname__"))
_OF_CLASSES = frozenset(("__name__", "__qualname__"))
_OF_ENUMS = "_member_map_", "_member_names_", "_value2member_map_"
_OF_MEMBERS = "_name_", "_value_"
_ANSWERED = frozenset(("hasattr", "id", "isinstance"))  # built-in functions that a capture answers for: see `StandIns`
_MOST_INSTALLED = 300  # functions of installed libraries that are searched


class Search:
    """Finds the names that functions read: again and again, as each function names further attributes of objects."""

    def __init__(self, arguments: Iterable[Any], containers: Iterable[Any] = ()) -> None:
        self.arguments = frozenset(map(id, arguments))
        self._containers = list(containers)
        self.compared: set[int] = set()  # the identities of Tensors and arrays
        self.names: dict[Any, ComparedName | Setting] = {}
        self.arrays: dict[int, Any] = {}
        self.generators: dict[int, np.random.Generator] = {}
        # The globals of code that calls isinstance(), hasattr() or id(), and which.
        self.asking: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self.obstacle: str | None = None
        self._found = FoundCode()
        self._installed: set[int] = set()  # code of installed libraries
        self._absent: dict[int, tuple[dict[str, Any], set[str]]] = {}  # globals that are read, and are not there
        self._code: types.CodeType | None = None  # that names what is visited
        # Code of the program that calls a function of an installed library, the function, and the library.
        self._entry: tuple[types.CodeType, str, str] | None = None
        self._seen: set[int] = set()

    def run(self, values: tuple[Any, ...]) -> None:
        """Search from these values on, until nothing new is named."""
        found = None
        while found != self._found.size():
            found = self._found.size()
            self._seen.clear()
            for value in values:
                self._visit_safely(value, "an argument")
                if isinstance(value, (*CONTAINERS, *BY_BYTES)):
                    self._add((id(value), "()"), "an argument", reference_to(value))
            for container in self._containers:
                self._visit_container(container)
        self._add_settings()

    def _asks_classes(self) -> bool:
        return "issubclass" in self._found.words or any(name == "isinstance" for _, name in self.asking)

    def _visit_safely(self, value: Any, name: str) -> None:
        """Visit a value; what raises an error where it is looked at is not compared."""
        try:
            self._visit(value, name)
        except PASSING_ERRORS:
            raise
        except Exception as error:
            self._refuse(f"something in {name} raises {type(error).__name__} where it is looked at", name)

    def _visit_container(self, value: Any) -> None:
        """Visit a container of arguments, which are compared by themselves: what else it holds, and its methods."""
        kind = type(value)
        if kind in (list, tuple, dict):
            if self._found.identity is not None and kind is not tuple:
                code, name = self._found.identity
                self._refuse(
                    "it compares the identity of objects, and is given a list or a dict; pass what that holds",
                    name or "is",
                    code,
                )
            return
        self._visit_classes(kind, is_made=False)
        everything = self._found.reflects()
        for name in attributes_of(value):
            if name not in getattr(kind, "__dataclass_fields__", ()) and (name in self._found.words or everything):
                reader = self._found.reader_of(name)
                self._refuse(
                    f"it reads {name} of an argument, a {kind.__name__}, which is no field of it", name, reader
                )

    def _add_settings(self) -> None:
        """Add what code depends on that is of no object: names that are not there, options, registries."""
        for key, (variables, names) in self._absent.items():
            self.names[key, "absent"] = absent_globals(variables, names)
        if self.obstacle is None:
            for setting in settings_read(self._found.words, asks_classes=self._asks_classes()):
                self.names[setting.name, "setting"] = setting

    def asks_class(self) -> bool:
        """Tell whether code may ask for the class of an array or of its elements, which no stand-in is of."""
        return self._found.asks_class()

    def compares_identity(self) -> bool:
        """Tell whether code may ask whether two values are the same object."""
        return self._found.compares_identity()

    def closeness(self) -> Closeness:
        """Return what the code that was found compares besides values."""
        return self._found.closeness()

    def accumulated(self) -> dict[Any, list[Place]]:
        """Return, by their keys, the names of what code only adds to, appends to or assigns, with the places."""
        found: dict[Any, list[Place]] = {}
        for key, name in self.names.items():
            places = self._places_of(key, name) if isinstance(name, ComparedName) else []
            if places:
                found[key] = places
        return found

    def _places_of(self, key: Any, name: ComparedName) -> list[Place]:
        """Return where code accumulates what a name refers to; nothing where code may use it otherwise."""
        word = _word_of(name)
        if word not in self._found.accumulated or self._found.may_read_unnamed(word):
            return []
        if isinstance(name.place, Attribute):
            owner = name.place.owner()
            if self._found.compares_whole(owner) or not is_settable(owner, word):
                return []
        return places_of(key, name, self._found.uses_of(word))

    def _refuse(self, why: str, name: str, code: types.CodeType | None = None) -> None:
        """Note why what is read cannot be compared, with the line of the code that names it."""
        if self.obstacle is None:
            if self._entry is not None:
                code, name, library = self._entry
                why = f"it calls {name}() of {library}: {why}"
            code = code or self._code
            self.obstacle = why if code is None else f"{why}, at {line_of(code, name.rpartition('.')[2])}"

    def _visit(self, value: Any, name: str, depth: int = DEPTH) -> None:
        is_plain = isinstance(value, (*BY_VALUE, *BY_TEXT, *BY_BYTES)) and not is_of_program(type(value).__module__)
        if self._is_known(value, name) or is_plain:
            return
        self._seen.add(id(value))
        if isinstance(value, np.ndarray) or is_on_gpu(value):
            self._visit_array(value, name)
        elif isinstance(value, np.random.Generator):
            self.generators[id(value)] = value
        elif (why := why_unreadable(value)) is not None:
            self._refuse(f"it reads {name}, {why}", name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, self._found.words)
        elif isinstance(value, type):
            self._visit_class(value, name)
        elif isinstance(value, types.UnionType):
            for part in value.__args__:
                self._visit(part, name)
        elif isinstance(value, (types.MethodType, functools.partial)):
            self._visit_parts(value, name)
        elif is_large_array(looked_up(value, "__self__")):  # one of its methods
            self._refuse(f"it reads {name}, a method of an array {CHANGES_UNSEEN}", name)
        else:
            self._visit_object(value, name, depth)

    def _is_known(self, value: Any, name: str) -> bool:
        """Tell whether a value need not be visited: a Tensor, one that was, or any where the search is in vain."""
        if isinstance(value, (Tensor, np.ndarray)) and name != "an argument":
            self.compared.add(id(value))
        if isinstance(value, str):
            self._found.enter_text(value)
        return isinstance(value, Tensor) or id(value) in self._seen or self.obstacle is not None

    def _visit_class(self, kind: type, name: str) -> None:
        """Visit a class; if it is one of arrays or of their elements, code may ask for it."""
        if kind is str:
            self._found.enter_known(kind)
        if kind is type or self._found.asks_for(kind):  # type() by another name
            self._found.asks = True
        self._visit_classes(kind, is_made=True)
        if "__subclasses__" in self._found.words and not is_of_library(kind.__module__):
            self._add((id(kind), "__subclasses__"), f"the subclasses of {name}", kind.__subclasses__)

    def _visit_parts(self, value: Any, name: str) -> None:
        """Visit what a method or a partial consists of."""
        parts = parts_of(value)
        for part in parts:
            if is_large_array(part) and id(part) not in self.arguments:
                self._refuse(f"it reads {name}, an array {CHANGES_UNSEEN}", name)
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
            reference = reference_to(value)
            read = functools.partial(attribute_of_itself, reference, attribute)
            self.names[key] = ComparedName(name, read, None, OfItself(reference, attribute), self._code)
        return self.names[key].read()

    def _visit_array(self, value: Any, name: str) -> None:
        if id(value) in self.arguments:
            return
        if is_on_gpu(value):  # to compare its values in each call would be to wait for the GPU
            self._refuse(
                f"it reads {name}, an array of a GPU that is not a Tensor; make it one, or pass it as an argument", name
            )
        else:
            self.arrays[id(value)] = value
            if is_of_program(type(value).__module__):
                self._visit_attributes(value, name)

    def _visit_object(self, value: Any, name: str, depth: int) -> None:
        kind = type(value)
        if isinstance(value, CONTAINERS):
            if not depth or len(value) > MOST:
                what = f"it reads {name}, which holds more than can be compared in each call"
                self._refuse(f"{what}; pass what it needs of it as an argument", name)
            else:
                for part in held_by(value):
                    self._visit(part, name, depth - 1)
        if runs_each_time(value):
            if id(value) not in self.arguments:  # for these a capture has stand-ins, as for those that names stand for
                what = f"it reads {name}, a {kind.__name__}, whose own functions compute with what may change unseen"
                self._refuse(f"{what}; read it by a name of its own, or pass it as an argument", name)
        elif (hidden := hides_state(value, self._found.words)) is not None:
            self._refuse(f"it reads {name}, a {kind.__name__}, {hidden}", name)
        elif has_attributes(value) or kind.__module__.startswith(("gradmgr.optim", "gradmgr.nn")):
            self._visit_attributes(value, name)
        self._visit_what_it_leads_to(value, name)
        if is_module(kind):  # which may call the modules in it, without naming them
            for key, part in list(vars(value).items()):
                if is_module(type(part)):
                    self._visit(part, f"{name}.{key}")
        self._visit(looked_up(value, "__wrapped__"), name)

    def _visit_what_it_leads_to(self, value: Any, name: str) -> None:
        """Visit what an object of Python's own gives when it is called."""
        if isinstance(value, ContextVar):
            self._add((id(value), "get"), name, functools.partial(value.get, MISSING))
        elif isinstance(value, weakref.ReferenceType):
            self._add((id(value), "()"), name, value)
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            self._found.enter_known(value)
            self._found.asks = self._found.asks or value is hasattr  # by another name, for which nothing stands
            if not isinstance(value.__self__, (types.ModuleType, type)):
                self._add_of_itself(value, "__self__", name)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            parts = value.__reduce__()[1]  # the class, and what it was given
            self._found.words.update(word for part in parts if isinstance(part, str) for word in part.split("."))
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
            self.names[key] = ComparedName(name, read, write, place, self._code)
        found = self.names[key]
        if isinstance(found, ComparedName) and self._places_of(key, found):
            return  # what it holds is not read
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
        before = self._code, self._entry
        if is_of_program(module_of(function)):
            self._entry = None
        elif self._entry is None and self._code is not None:
            self._entry = self._code, function.__name__, root_of(module_of(function))
        self._code = function.__code__
        try:
            self._visit_code(function)
        except PASSING_ERRORS:
            raise
        except Exception as error:
            self._refuse(f"something that it reads raises {type(error).__name__} where it is looked at", "")
        finally:
            self._code, self._entry = before

    def _visit_closure(self, function: types.FunctionType) -> None:
        code = function.__code__
        is_dispatch = code.co_filename == functools.singledispatch.__code__.co_filename
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if is_dispatch and name == "dispatch_cache":  # of what its registry says
                self._found.asks = True
                continue
            write = functools.partial(setattr, cell, "cell_contents")
            self._add(id(cell), name, functools.partial(content_of, cell), write, cell)

    def _visit_code(self, function: types.FunctionType) -> None:
        code, module = function.__code__, module_of(function)
        if not has_known_code(module):
            self._enter_facts(function)  # before the names, as some of them it only adds to
        self._visit_closure(function)
        self._visit(getattr(function, "__wrapped__", None), function.__name__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
                self._add((id(function), name), f"a default of {function.__name__}", read, write)
        if has_known_code(module):
            self._found.enter_known(function)
            return
        if not is_of_program(module):
            self._installed.add(id(code))
            if len(self._installed) > _MOST_INSTALLED:
                self._refuse("more code than is searched", "")
                return
        self._check_readers(code)
        facts = self._enter_facts(function)
        if is_of_program(module):
            self._note_of_itself(function, "__code__", f"the code of {function.__name__}")
        for name in sorted(facts.names.assigned):
            self._add_global(function.__globals__, name)
        for name in sorted(facts.names.read):
            self._visit_global(function.__globals__, name, facts.names.read[name])
        for name in sorted(facts.names.imported & sys.modules.keys()):
            self._visit(sys.modules[name], name)
        self._visit_attributes_of_function(function)

    def _check_readers(self, code: types.CodeType) -> None:
        """Refuse code that reads what it does not name."""
        for name in OF_FILES.intersection(code.co_names):
            self._refuse(f"it calls {name}(), which reads a file", name)
        for name in OF_FRAMES.intersection(code.co_names):
            self._refuse(f"it reads {name}, by which code reads what it does not name", name)

    def _visit_attributes_of_function(self, function: types.FunctionType) -> None:
        everything = self._found.reflects()
        if everything:
            self._add_count(function, function.__name__)
        for name in list(vars(function)) if everything else self._found.words.intersection(vars(function)):
            read, write = functools.partial(getattr, function, name), functools.partial(setattr, function, name)
            self._add((id(function), name), f"{function.__name__}.{name}", read, write, (vars(function), name))
        if is_of_program(module_of(function)):
            for name in _OF_FUNCTIONS & self._found.words:
                self._note_of_itself(function, name, f"{function.__name__}.{name}")

    def _enter_facts(self, function: types.FunctionType) -> CodeFacts:
        """Note what the code of a function names and asks, and return it."""
        facts = self._found.enter(function)
        if "catch_warnings" in facts.words and "record" in facts.texts:
            self._refuse("it records warnings, which a replay gives none of", "catch_warnings")
        if asks_loggers(self._found.words):
            self._refuse(
                "it asks for the level of a Logger that it looks up; keep the Logger in a variable", "getLogger"
            )
        return facts

    def _add_count(self, value: Any, name: str) -> None:
        """Add how many attributes an object has, as a new one may hide that of a class, or be asked for."""
        reference = reference_to(value)
        count = functools.partial(count_of_attributes, reference)
        self._add((id(value), None), f"the attributes of {name}", count, place=CountOfAttributes(reference))

    def _visit_global(self, variables: dict[str, Any], name: str, attributes: set[str | None]) -> None:
        """Visit a global of which code reads these attributes at once; None means other uses."""
        if name not in variables:
            if name in _ANSWERED:
                self.asking[id(variables), name] = variables, name
            if name in UNSEEN_READERS:
                self._refuse(f"it calls {name}(), which reads what cannot be compared", name)
            if self._entry is None:
                self._absent.setdefault(id(variables), (variables, set()))[1].add(name)
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

    def _add_global(self, variables: dict[str, Any], name: str, owner: str = "") -> None:
        """Add a global; of functions that libraries call themselves, only what they read."""
        is_code = isinstance(variables.get(name), (types.FunctionType, types.ModuleType, type))
        if is_code and self._entry is not None:
            self._visit(variables[name], name)
            return
        write = functools.partial(operator.setitem, variables, name)
        read = functools.partial(variables.get, name, MISSING)
        self._add((id(variables), name), owner + name, read, write, (variables, name))

    def _visit_module(self, module: types.ModuleType, names: set[str]) -> None:
        """Visit these attributes of a module, and those that code may read by a text."""
        self._found.copies = self._found.copies or module.__name__ == "copy"
        if has_known_code(module.__name__):
            return
        variables = vars(module)
        self._visit(variables.get("__getattr__"), module.__name__)
        if "__dict__" in names or (names is self._found.words and self._found.reflects()):
            names = names | self._found.texts | self._readable_of(module)
        for name in sorted(names & variables.keys()):
            value = variables[name]
            if isinstance(value, types.ModuleType):
                if volatile_module_of(value) is None:
                    self._visit(value, name)
            elif isinstance(value, types.BuiltinFunctionType):
                self._visit(value, name)
            else:
                self._add_global(variables, name, f"{module.__name__}.")

    def _readable_of(self, module: types.ModuleType) -> set[str]:
        """Return what code may read of a module by a text that it makes; of an installed one, no code."""
        is_own = is_of_program(module.__name__)
        kinds = object if is_own else (*BY_VALUE, *BY_TEXT, *CONTAINERS)
        found = {name: type(value) for name, value in vars(module).items() if name[:2] != "__"}
        return {name for name, kind in found.items() if issubclass(kind, kinds)}

    def _visit_attributes(self, value: Any, owner: str) -> None:
        reference = reference_to(value)
        is_whole = is_seen_whole(value)
        is_read = not is_of_library(type(value).__module__)  # whether the code of its class is
        everything = is_whole or self._found.reflects() or self._found.compares_whole(value)
        is_unread = is_read and has_known_code(type(value).__module__)  # such as a progress bar, whose count may change
        for name in attributes_of(value):
            is_own = name.startswith("_") and root_of(type(value).__module__) == "gradmgr"  # of no use to programs
            if name in self._found.words or (everything and not is_own) or (is_unread and is_number(value, name)):
                write = None if is_whole else functools.partial(set_attribute, reference, name)
                read = functools.partial(attribute_of, reference, name)
                place = Attribute(reference, name) if name in getattr(value, "__dict__", ()) else None
                self._add((id(value), name), f"{owner}.{name}", read, write, place)
        if is_read:
            self._note_of_itself(value, "__class__", f"the class of {owner}")
        if hasattr(value, "__dict__"):
            if is_read:
                self._add_count(value, owner)
            self._visit_values_of_class(value, owner, reference)
        is_replaced = "replace" in self._found.words and hasattr(value, "__dataclass_fields__")
        self._visit_classes(type(value), is_made=is_replaced or MAKING in self._found.words)

    def _visit_classes(self, kind: type, *, is_made: bool) -> None:
        """Visit what code names of a class, inherited or not, and the methods that it need not name."""
        if is_made and has_known_code(kind.__module__):
            return
        if any(cls.__module__ == "gradmgr.function" for cls in kind.__mro__):
            return  # a Function, whose own code runs in each replay
        if is_of_program(type(kind).__module__):
            self._visit_classes(type(kind), is_made=False)
        for cls in kind.__mro__:
            if has_known_code(cls.__module__):
                self._visit_getters(cls)
                continue
            if is_of_program(cls.__module__):
                self.names.setdefault((id(cls), None), class_as_it_is(cls))
                for name in _OF_CLASSES & self._found.words:
                    self._note_of_itself(cls, name, f"{cls.__name__}.{name}")
                if issubclass(cls, enum.Enum):
                    self._visit_enum(cls)
            members = list(vars(cls).items())
            is_made = is_made or any(
                isinstance(found, classmethod) and name in self._found.words for name, found in members
            )
            for name, found in members:
                is_computing = computes(name, found, is_made=is_made) and not self._found.is_idle(cls, name, found)
                if name in self._found.words or self._found.may_call(name, cls) or is_computing:
                    self._visit_member(cls, name, found)

    def _visit_enum(self, kind: type[enum.Enum]) -> None:
        """Visit what the library's code reads of an Enum: its members, how they are found, and what they hold."""
        for name in _OF_ENUMS:
            self._add(
                (id(kind), name), f"the members of {kind.__name__}", functools.partial(class_attribute, kind, name)
            )
        self._visit(vars(kind).get("_missing_"), "_missing_")
        for member in kind.__members__.values():
            for name in _OF_MEMBERS:
                key, owner = (id(member), name), reference_to(member)
                self._add(
                    key, f"{member}.{name}", functools.partial(attribute_of, owner, name), None, Attribute(owner, name)
                )

    def _visit_values_of_class(self, value: Any, owner: str, reference: Callable[[], Any]) -> None:
        """Let values of an object's class count as its own, which may be set later."""
        for cls in type(value).__mro__:
            for name in self._found.words & vars(cls).keys() if not is_of_library(cls.__module__) else ():
                if not callable(found := vars(cls)[name]) and not hasattr(type(found), "__get__"):
                    read = functools.partial(attribute_of, reference, name)
                    self._add((id(value), name), f"{owner}.{name}", read)

    def _visit_member(self, cls: type, name: str, found: Any) -> None:
        if isinstance(found, property):
            self._visit(found.fget, name)
        elif isinstance(found, (staticmethod, classmethod, functools.cached_property)):
            self._visit(getattr(found, "__func__", None) or getattr(found, "func", None), name)
        elif isinstance(found, functools.singledispatchmethod):
            self._found.asks = True
            self._visit(found.dispatcher, name)
        elif isinstance(found, functools.partialmethod):
            for part in (found.func, *found.args, *found.keywords.values()):
                self._visit(part, name)
        elif not isinstance(found, types.MemberDescriptorType):
            read = functools.partial(class_attribute, cls, name)
            write = functools.partial(type.__setattr__, cls, name)
            self._add((id(cls), name), f"{cls.__name__}.{name}", read, write, (vars(cls), name))

    def _visit_getters(self, cls: type) -> None:
        """Let the attributes count that a method of an optimiser or a schedule reads, such as get_last_lr()."""
        if not cls.__module__.startswith("gradmgr.optim"):
            return
        for name, found in vars(cls).items():
            if name in self._found.words and name.startswith("get_") and isinstance(found, types.FunctionType):
                self._found.words |= facts_of(found.__code__).words


def _word_of(name: ComparedName) -> str:
    """Return the word by which code names what may be accumulated: an attribute, a global or a variable; else ""."""
    place = name.place
    if isinstance(place, Attribute):
        return place.name
    if isinstance(place, types.CellType):
        return name.name
    is_global = place.__class__ is tuple and place[0].__class__ is dict
    return str(place[1]) if is_global else ""
