"""The search for what a function reads and assigns by name, and the places where that stands.

It starts at a function and its arguments and follows chains of names (`code_names`) to what they stand for: to numbers
and containers of these, which are compared by value (`noted`), to other objects, which are compared by identity, and to
functions of the program, whose code is read in turn. It runs no code of the program's. Where code reads an attribute of
what has no name, as of the variable of a loop or a parameter, the objects that the function and its callers name are
tried.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gradmgr._compile.code_names import FREE, GLOBAL, IMPORT, LOCAL, STORE, Chain, names_in
from gradmgr._compile.noted import MISSING, SCALARS, Noted, is_array, is_dataclass
from gradmgr._compile.volatile import BUILTINS, is_of_library, volatile

_MOST_PARTS = 200  # of a container, whose functions and objects are followed
_MOST_FUNCTIONS = 2000  # that are followed
# Methods that Python calls for an object without a name, but for those that describe, copy or make one.
_SPECIAL = re.compile(
    r"__(?!init|new|post_|class_|del__|repr|str|format|dir|size|reduce|[gs]etst|getnew|copy|deep|repl|hash|eq|\w+attr|anno)\w+__"
)
_PLAIN = frozenset((*SCALARS, types.BuiltinFunctionType, np.ufunc))
_CALLABLE = (types.FunctionType, types.MethodType, functools.partial)
_WRAPPING = ("gradmgr", "functools", "numpy")  # packages with objects that call the functions that they hold
LEAVES = object()
_NOTHING: Any = types.MappingProxyType({})


class Place:
    """Where a value stands: an attribute or an item of what stands in another place, or a root.

    Attributes:
        owner: the other place; None of a root.
        name: of the attribute, the key of the item, what stands in the root; LEAVES for the arguments.
        text: what the code calls it.
        at: the code that reads it first, and the line.
        noted: what it stood for; None where that does not matter.
        is_read: whether it matters to the next call; else it is only assigned.
    """

    __slots__ = ("at", "is_attribute", "is_read", "name", "noted", "owner", "text")

    def __init__(self, owner: Place | None, name: Any, text: str, *, is_attribute: bool) -> None:
        self.owner, self.name, self.text, self.is_attribute = owner, name, text, is_attribute
        self.at: tuple[types.CodeType, int] | None = None
        self.noted: Noted | None = None
        self.is_read = False

    def read(self, leaves: Any) -> Any:
        """Return what stands here now."""
        if self.owner is None:
            return leaves if self.name is LEAVES else self.name
        try:
            owner = self.owner.read(leaves)
            return getattr(owner, self.name) if self.is_attribute else owner[self.name]
        except Exception:  # it is gone, or of a class with another one
            return MISSING

    def described(self) -> str:
        """Return what the code calls it, and where it reads it."""
        return self.text if self.at is None else f"{self.text}, read at {_line(*self.at)}"


Found = tuple[Place, Any]  # a place and what stands there


def _line(code: types.CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"


class _Call(NamedTuple):
    """A function that may be called.

    Attributes:
        function: the function.
        place: where it stands.
        given: what its first parameters are, as far as that is known.
        others: objects that its other parameters may be.
        is_sure: whether names lead to it, with no guess what an object is.
    """

    function: Any
    place: Place
    given: tuple[Found, ...]
    others: tuple[Found, ...]
    is_sure: bool


def state_of(generator: Any) -> str:
    return repr(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state())


class Search:
    """Follows names to what they stand for."""

    def __init__(self, known: dict[int, Any]) -> None:
        self._known = known
        self.places: dict[Any, Place] = {}
        self.leaves = self._item(None, LEAVES, "")
        self.generators: list[tuple[Place, str]] = []
        self.words: set[str] = set()  # all names in the code
        self.never_constant: str | None = None
        self._given: set[Place] = set()  # arguments that are dataclasses, and those in them
        self._own = ""  # the package of the function, wherever that is installed
        self._globals: dict[int, Place] = {}  # by their identity
        self._visited: dict[Any, set[int]] = {}  # by a function and its object: those that its parameters may be
        self._waiting: deque[_Call] = deque()
        self._kept: list[Any] = []  # so that nothing new gets the identity of what was visited
        # Of the function that is read:
        self._code: Any = None
        self._chain = Chain(GLOBAL, "", (), 0)
        self._others: dict[int, Found] = {}
        self._called: list[tuple[types.FunctionType, Place, tuple[Found, ...], bool]] = []
        self._followed: set[Any] = set()

    def run(self, function: Any, leaves: Sequence[Any]) -> None:
        """Search from a function and its arguments on."""
        self._own = str(getattr(function, "__module__", "")).partition(".")[0]
        arguments = tuple([(self._item(self.leaves, k, f"argument {k}"), leaf) for k, leaf in enumerate(leaves)])
        self._given = {place for place, value in arguments if is_dataclass(value)}
        self._follow(function, self._item(None, function, "the function"), arguments, is_sure=True)
        self._enqueue()
        while self._waiting and len(self._visited) <= _MOST_FUNCTIONS:
            self._visit(self._waiting.popleft())

    def _enqueue(self) -> None:
        """Let the functions that were found be visited, with the objects that their caller names."""
        others = tuple(self._others.values())
        self._waiting += [_Call(function, place, given, others, sure) for function, place, given, sure in self._called]
        self._called = []

    # ------------------------------------------------------------ places

    def _item(self, owner: Place | None, key: Any, text: str, *, is_attribute: bool = False) -> Place:
        where = owner, id(key) if owner is None else key, is_attribute
        found = self.places.get(where)
        if found is None:
            found = self.places[where] = Place(owner, key, text, is_attribute=is_attribute)
        return found

    def _attribute(self, owner: Place, *names: str, text: str = "") -> Place:
        """Return the place of an attribute, or of an attribute of that, and so on."""
        for name in names:
            owner = self._item(owner, name, text or f"{owner.text}.{name}", is_attribute=True)
        return owner

    def _cell(self, owner: Place, function: types.FunctionType, k: int) -> Found:
        """Return the place of a variable of the functions around one, and what it stands for."""
        name = function.__code__.co_freevars[k]
        place = self._attribute(self._item(self._attribute(owner, "__closure__"), k, ""), "cell_contents", text=name)
        try:
            return place, function.__closure__[k].cell_contents  # type: ignore[index]  # there is one for each name
        except ValueError:  # it is not assigned yet
            return place, MISSING

    def _items_of(self, place: Place, value: Any) -> list[Found]:
        """Return the places of what a container holds, but for numbers and texts alone, and what that is."""
        items = list(dict.items(value) if isinstance(value, dict) else enumerate(value))
        if len(items) > _MOST_PARTS or all(part.__class__ in _PLAIN for _, part in items):
            return []
        return [(self._item(place, k, f"{place.text}[{k!r}]"), part) for k, part in items if k.__class__ in (int, str)]

    # ------------------------------------------------------------ functions

    def _visit(self, call: _Call) -> None:
        """Follow the names in the code of a function."""
        code = self._code = call.function.__code__
        visited = self._visited.setdefault((id(call.function), *[id(value) for _, value in call.given]), set())
        new = {id(value) for _, value in call.others} | {call.is_sure}
        if visited and new <= visited:
            return
        visited |= new | {False}
        self._kept.append(call)
        if id(code) not in self._known:
            self._known[id(code)] = code, names_in(code)
        chains = self._known[id(code)][1]
        given = [found for found in call.given if not is_array(found[1])]
        self._others, self._followed = {id(found[1]): found for found in (*call.others, *given)}, set()
        self._chain = Chain(GLOBAL, code.co_name, (), code.co_firstlineno)
        self._note(self._attribute(call.place, "__code__", text=f"the code of {code.co_name}"), code)
        parameters = self._parameters_of(call)
        roots = [self._root(chain, call, parameters) for chain in chains]
        for self._chain, root in zip(chains, roots, strict=True):
            self.words.update((self._chain.name, *self._chain.path))
            if root is not None:
                with suppress(Exception):  # of code of the program's that Python calls for a question
                    self._walk(*root, is_sure=call.is_sure)
        for self._chain, root in zip(chains, roots, strict=True):
            if root is None and self._chain.path:
                with suppress(Exception):  # as above
                    self._guess(call, self._chain.path[0])
        self._enqueue()

    def _parameters_of(self, call: _Call) -> dict[str, Found]:
        """Return what parameters stand for, as far as that is known; let their defaults be compared."""
        function, code = call.function, self._code
        names = code.co_varnames[: code.co_argcount]
        for name, (place, _) in zip(names, call.given, strict=False):
            place.text = name if place.owner is self.leaves else place.text
        found = dict(zip(names, call.given, strict=False))
        defaults = function.__defaults__ or ()
        held = [(name, "__defaults__", k, defaults[k]) for k, name in enumerate(names[len(names) - len(defaults) :])]
        held += [(name, "__kwdefaults__", name, value) for name, value in (function.__kwdefaults__ or {}).items()]
        for name, attribute, key, value in held:
            place = self._item(self._attribute(call.place, attribute), key, f"the default of {name}")
            self._end(place, value, is_sure=call.is_sure)
            found.setdefault(name, (place, value))
        return found

    def _root(self, chain: Chain, call: _Call, parameters: dict[str, Found]) -> Found | None:
        """Return the place of the name that a chain begins with, and what it stands for; None where it has none."""
        if chain.root == GLOBAL:
            variables = call.function.__globals__
            if id(variables) not in self._globals:
                self._globals[id(variables)] = self._attribute(call.place, "__globals__")
            place = self._item(self._globals[id(variables)], chain.name, chain.name)
            return place, variables.get(chain.name, MISSING)
        if chain.root == FREE:
            return self._cell(call.place, call.function, self._code.co_freevars.index(chain.name))
        if chain.root == IMPORT:  # `import a.b` gives a, `from a.b import c` gives a.b
            is_whole = chain.path[0] in vars(sys.modules.get(chain.name, object))
            name = chain.name if is_whole else chain.name.partition(".")[0]
            return self._item(self._item(None, sys.modules, ""), name, name), sys.modules.get(name, MISSING)
        found = parameters.get(chain.name) if chain.root == LOCAL else None
        if found is None or not chain.path or chain.use == STORE or _has(found[1], chain.path[0]):
            return found
        return None if any(_has(value, chain.path[0]) for _, value in self._others.values()) else found

    def _guess(self, call: _Call, name: str) -> None:
        """Follow an attribute of what has no name: of `super()`, and of any object that may be it."""
        free = self._code.co_freevars
        place, value = call.given[0] if call.given and "__class__" in free else (self.leaves, None)
        kind = self._cell(call.place, call.function, free.index("__class__"))[1] if value is not None else None
        kinds = type(value).__mro__
        for j in range(kinds.index(kind) + 1, len(kinds)) if kind in kinds else ():
            if isinstance(found := vars(kinds[j]).get(name), types.FunctionType):
                of_class = self._item(self._attribute(place, "__class__", "__mro__"), j, "")
                method = self._attribute(of_class, name, text=f"{kinds[j].__name__}.{name}")
                self._follow(found, method, (call.given[0],), is_sure=call.is_sure)
                break
        for place, value in list(self._others.values()):
            if _has(value, name):
                self._walk(place, value, is_sure=False)

    # ------------------------------------------------------------ chains

    def _walk(self, place: Place, value: Any, *, is_sure: bool) -> None:
        """Follow a chain of names from its root on."""
        chain = self._chain
        if value is MISSING and chain.name in BUILTINS and is_sure:
            self._refuse(chain.name)
        for k, name in enumerate(chain.path):
            is_module = isinstance(value, types.ModuleType)
            if is_sure and (is_module or isinstance(value, type)):
                self._refuse(volatile(value, chain.path[k:], chain.use))
            if value is MISSING or is_array(value) or (is_module and is_of_library(value.__name__)):
                self._note(place, value)
                return
            is_stored = chain.use == STORE and k == len(chain.path) - 1
            found = self._step(place, value, name, k, is_stored, is_sure)
            if found is None:
                return
            place, value = found
        if chain.use == STORE:
            self._note(place, value, is_read=False)
        else:
            self._end(place, value, is_sure=is_sure)

    def _step(self, place: Place, value: Any, name: str, k: int, is_stored: bool, is_sure: bool) -> Found | None:
        """Return what an attribute stands for, without a call of the program's code; None where that ends the chain."""
        own, kinds, is_class = _variables_of(value), _classes_of(value), isinstance(value, type)
        found = next((vars(cls)[name] for cls in kinds if name in vars(cls)), MISSING)
        attribute = self._attribute(
            place, name, text=".".join((self._chain.name or place.text, *self._chain.path[: k + 1]))
        )
        is_own = name in own and not is_class and not hasattr(type(found), "__set__")
        is_closed = not own or any("__getattr__" in vars(cls) for cls in kinds)  # only its class's code knows the rest
        if is_own or isinstance(value, types.ModuleType):
            found = own.get(name, MISSING)
        elif isinstance(found, types.MemberDescriptorType):
            found = getattr(value, name, MISSING)
        elif (held := _function_in(found, is_class, is_stored)) is not None:
            self._pass(place, value)
            function, holder = held
            is_bound = isinstance(found, classmethod) or not (is_class or isinstance(found, staticmethod))
            if holder in ("fget", "fset", "func") and not is_class:
                attribute = self._attribute(place, "__class__", name, text=attribute.text)
            member = self._attribute(attribute, holder, text=attribute.text) if holder else attribute
            if is_class and not holder:
                self._note(member, function)  # also one of a library, which is not read
            self._follow(function, member, ((place, value),) if is_bound else (), is_sure=is_sure)
            return None
        elif hasattr(type(found), "__get__") or (found is MISSING and is_closed and not is_stored):
            self._end(place, value, is_sure=is_sure)
            return None
        if found is MISSING and is_class and hasattr(type(value), name):  # as `__name__`, which its metaclass has
            self._end(place, value, is_sure=is_sure)
            return None
        self._pass(place, value)
        if place in self._given and is_dataclass(found):
            self._given.add(attribute)
        return attribute, found

    # ------------------------------------------------------------ what names stand for

    def _note(self, place: Place, value: Any, *, is_read: bool = True) -> None:
        """Let a value be compared; arguments are by themselves, and arrays in dataclasses among them."""
        if place.owner is None or place.owner is self.leaves or (place.owner in self._given and is_array(value)):
            return
        if place.noted is None:
            place.noted, place.at = Noted(value), self._code and (self._code, self._chain.line)
        place.is_read = place.is_read or is_read

    def _pass(self, place: Place, value: Any) -> None:
        """Let an object be compared of which an attribute is read: by identity; of a dataclass the class."""
        if is_dataclass(value) and not isinstance(value, type):
            place, value = self._attribute(place, "__class__"), type(value)
        self._note(place, value)

    def _refuse(self, what: str | None) -> None:
        if what is not None and self.never_constant is None:
            self.never_constant = f"{what}, read at {_line(self._code, self._chain.line)}"

    def _end(self, place: Place, value: Any, *, is_sure: bool) -> None:
        """Let a value be compared at which a chain ends, and follow the functions in it."""
        self._note(place, value)
        if value.__class__ in _PLAIN and value.__class__ is not types.BuiltinFunctionType:
            return
        if is_sure:
            self._refuse(volatile(value, (), self._chain.use))
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            self.generators.append((place, state_of(value)))
        self._follow(value, place, (), is_sure=is_sure)

    def _follow(self, value: Any, place: Place, given: tuple[Found, ...], *, is_sure: bool) -> None:
        """Find the functions that are called where a value is called or used."""
        key = id(value), is_sure, *[id(found[1]) for found in given]
        if value.__class__ in _PLAIN or is_array(value) or isinstance(value, types.ModuleType) or key in self._followed:
            return
        self._followed.add(key)
        if isinstance(value, types.FunctionType):
            self._follow_function(value, place, given, is_sure)
        elif isinstance(value, types.MethodType):
            given = ((self._attribute(place, "__self__"), value.__self__), *given)
            self._follow(value.__func__, self._attribute(place, "__func__"), given, is_sure=is_sure)
        elif isinstance(value, functools.partial):
            held = self._items_of(self._attribute(place, "args"), value.args)
            for part in held + self._items_of(self._attribute(place, "keywords"), value.keywords):
                self._end(*part, is_sure=is_sure)
            self._follow(value.func, self._attribute(place, "func"), (*held, *given), is_sure=is_sure)
        elif isinstance(value, (list, tuple, dict)):
            for item, part in self._items_of(place, value):
                self._follow(part, item, (), is_sure=is_sure)
        if isinstance(value, type) and not is_of_library(value.__module__):
            self._others.setdefault(id(value), (place, value))
            for name in ("__new__", "__init__", "__post_init__"):
                self._follow(getattr(value, name, None), self._attribute(place, name), (), is_sure=is_sure)
        elif not isinstance(value, (type, *_CALLABLE)):
            self._follow_object(value, place, given, is_sure)

    def _follow_function(self, function: Any, place: Place, given: tuple[Found, ...], is_sure: bool) -> None:
        """Let a function of the program be read; of others follow what they hold, as decorators do."""
        module = str(function.__globals__.get("__name__", ""))
        file = function.__code__.co_filename
        is_installed = "site-packages" in file or "dist-packages" in file
        if not is_of_library(module) and (not is_installed or module.partition(".")[0] == self._own):
            self._note(place, function)
            self._called.append((function, place, given, is_sure))
            if given and isinstance(wrapped := vars(function).get("__wrapped__"), types.FunctionType):
                self._follow(wrapped, self._attribute(place, "__wrapped__"), given, is_sure=is_sure)
            return
        self._follow_held([self._cell(place, function, k) for k in range(len(function.__code__.co_freevars))], is_sure)

    def _follow_held(self, held: Iterable[Found], is_sure: bool) -> None:
        for place, value in held:
            if _is_called(value):
                self._note(place, value)
                self._follow(value, place, (), is_sure=is_sure)

    def _follow_object(self, value: Any, place: Place, given: tuple[Found, ...], is_sure: bool) -> None:
        """Follow what an object wraps, and its methods that Python calls by operators; of a Module `forward`."""
        own, kind, is_module = _variables_of(value), type(value), _is_module(value)
        is_known = is_of_library(kind.__module__)
        if own or not is_known:
            self._others.setdefault(id(value), (place, value))
        if "__wrapped__" in own:
            self._follow(own["__wrapped__"], self._attribute(place, "__wrapped__"), given, is_sure=is_sure)
        elif kind.__module__.startswith(_WRAPPING) or (is_module and is_of_library(kind.forward.__module__)):
            held = {name: part for name, part in own.items() if _is_called(part)}
            self._follow_held(self._items_of(self._attribute(place, "__dict__", text=place.text), held), is_sure)
        for cls in kind.__mro__ if not is_known else ():
            for name, found in vars(cls).items() if not is_of_library(cls.__module__) else ():
                is_called = name == "forward" if is_module else name[:2] == "__" and _SPECIAL.fullmatch(name)
                if is_called and isinstance(found, types.FunctionType):
                    method = self._attribute(place, "__class__", name, text=f"{place.text}.{name}")
                    mine = (place, value), *(given if name in ("__call__", "forward") else ())
                    self._follow(getattr(kind, name), method, mine, is_sure=is_sure)


def _variables_of(value: Any) -> Any:
    """Return the attributes that an object keeps itself, without a call of its class's code."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _NOTHING


def _classes_of(value: Any) -> tuple[type, ...]:
    return value.__mro__ if isinstance(value, type) else type(value).__mro__


def _has(value: Any, name: str) -> bool:
    """Return True if an object has an attribute, itself or by a class of the program's."""
    kinds = [cls for cls in _classes_of(value) if name in vars(cls)]
    return name in _variables_of(value) or not all(is_of_library(cls.__module__) for cls in kinds)


def _is_module(value: Any) -> bool:
    return any(cls.__module__ == "gradmgr.nn._modules.module" for cls in type(value).__mro__)


def _is_called(value: Any) -> bool:
    """Return True if an object of a library that holds a value may call it, and code of the program in it."""
    return value.__class__ not in _PLAIN and (isinstance(value, _CALLABLE) or _is_module(value))


def _function_in(found: Any, is_class: bool, is_stored: bool) -> tuple[Any, str] | None:
    """Return the function that stands in a class, and the attribute by which it is held; None if there is none."""
    if isinstance(found, types.FunctionType):
        return found, "" if is_class else "__func__"
    if isinstance(found, staticmethod):
        return found.__func__, ""
    if isinstance(found, classmethod):
        return found.__func__, "__func__"
    if isinstance(found, property):
        return (found.fset, "fset") if is_stored else (found.fget, "fget")
    if isinstance(found, functools.cached_property):
        return found.func, "func"
    wrapped = _variables_of(found).get("__wrapped__")
    return (wrapped, "__wrapped__") if isinstance(wrapped, types.FunctionType) else None
