"""FoundCode: all code that a search has found, and what it may ask, taken together, of what names stand for."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from gradmgr._compile.accumulation_facts import Uses, united
from gradmgr._compile.code_facts import BY_TEXTS, EQUALITY, PATTERN, CodeFacts, facts_of
from gradmgr._compile.compared import Closeness
from gradmgr._compile.hidden_state import is_of_names, root_of
from gradmgr._compile.name_reading import MISSING
from gradmgr._compile.settings import TEXTS
from gradmgr._compile.sources import BY_BYTES, BY_TEXT, BY_VALUE, CONTAINERS, is_of_program, module_of
from gradmgr._engine.tensor import Tensor

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
_WHOLE = frozenset(
    ("__dict__", "asdict", "astuple", "evolve", "format", "format_map", "locals", "replace", "vars", PATTERN)
)
_TEXTUAL = frozenset((*BY_TEXTS, "__getattribute__"))
_REFLECTION = frozenset((_WHOLE | BY_TEXTS) - {"delattr", "replace", "setattr"})
_COPYING = frozenset(("copy", "deepcopy"))
# Names by which code compares objects, or has functions written in C do so.
_COMPARING = frozenset(
    (EQUALITY, "array_equal", "contains", "count", "countOf", "eq", "groupby", "index", "indexOf", "ne", "remove")
)
_OF_COPIES = frozenset(("__copy__", "__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__", "__setstate__"))
_IDENTITY = frozenset(("id", "is_", "is_not"))
_OF_MEMORY = frozenset(("flags", "setflags", "strides", "writeable"))


class FoundCode:
    """The code of all functions that were found.

    Attributes:
        words: the names in it.
        texts: its constants that may be names.
        makes_names: whether it reads attributes by other texts than its constants.
        asks: whether it asks what a stand-in cannot answer.
        identity: code of the program that compares identities, and with what; None if none does.
        copies: whether it uses the module copy.
        accumulated: names that some code only adds to, appends to or assigns.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.texts: set[str] = set()
        self.makes_names = self.asks = self.copies = False
        self.identity: tuple[types.CodeType, str | None] | None = None
        self.accumulated: set[str] = set()
        self._catches = False  # whether it catches errors
        self._compares = False  # whether it compares identities
        self._facts_of: dict[int, CodeFacts] = {}  # by the identity of code

    def size(self) -> tuple[int, int, int]:
        """Return what grows where more is found."""
        return len(self.words), len(self.texts), len(self._facts_of)

    def enter(self, function: types.FunctionType) -> CodeFacts:
        """Note what the code of a function names, and what it may ask, and return it."""
        code = function.__code__
        facts = self._facts_of.get(id(code))
        if facts is None:
            facts = self._facts_of[id(code)] = facts_of(code)
            self.accumulated.update(facts.accumulated)
        self.words |= facts.words - {"isinstance"}  # which answers for what represents an array, see `StandIns`
        self.texts |= facts.texts
        self.makes_names = self.makes_names or facts.makes_names
        compared = [name for name in facts.identities if _may_be_replaced(name, function.__globals__)]
        self._compares = self._compares or bool(compared)
        if compared and self.identity is None and is_of_program(module_of(function)):
            self.identity = code, compared[0]
        self.asks = self.asks or facts.questions.asks or {"ExitStack", "push"} <= self.words  # which may suppress
        if facts.questions.matches:
            self.words.add("isinstance")
        self._catches = self._catches or facts.questions.catches
        return facts

    def enter_known(self, function: Any) -> None:
        """Note what a function is called whose code is known, as code may call it by another name."""
        self.words.add(function.__name__)
        self.copies = self.copies or getattr(function, "__module__", None) == "copy"
        self.makes_names = self.makes_names or function.__name__ in BY_TEXTS

    def enter_text(self, text: str) -> None:
        """Note a text that code may read attributes by, if it does so by others than its constants."""
        if self.makes_names:
            self.texts.update(part for part in text.split(".") if part.isidentifier())

    def reader_of(self, name: str) -> types.CodeType | None:
        """Return code that names something; None if none does."""
        return next((facts.code for facts in self._facts_of.values() if name in facts.words), None)

    def uses_of(self, name: str) -> Uses:
        """Return how all code uses a name, if it only adds to, appends to or assigns what that refers to."""
        facts = [each for each in self._facts_of.values() if name in each.words or name in each.variables]
        return united([each.accumulated.get(name) for each in facts])

    def reflects(self) -> bool:
        """Tell whether code reads attributes that it does not name."""
        return not self.words.isdisjoint(_REFLECTION)

    # ------------------------------------------------------------ what it asks

    def asks_class(self) -> bool:
        """Tell whether code may ask for the class of an array or of its elements, which no stand-in is of."""
        words = self.words
        if not words.isdisjoint(_ASKING) and not words.isdisjoint(_CLASSES):
            return True
        catches = self._catches or "suppress" in words
        return self.asks or not words.isdisjoint(_OF_ELEMENTS) or (catches and not words.isdisjoint(_ERRORS))

    def asks_for(self, kind: type) -> bool:
        """Tell whether code asks for classes, if this is one of arrays or of their elements."""
        is_known = kind.__name__ in _CLASSES and root_of(kind.__module__) in ("builtins", "numbers", "numpy")
        return is_known and not self.words.isdisjoint(_ASKING)

    def compares_identity(self) -> bool:
        """Tell whether code may ask whether two values are the same object."""
        return self._compares or not self.words.isdisjoint(_IDENTITY)

    def may_read_unnamed(self, name: str) -> bool:
        """Tell whether code may read an attribute without naming it, or copy its object."""
        if self.copies or not self.words.isdisjoint(_WHOLE):
            return True
        return not self.words.isdisjoint(_TEXTUAL) and (self.makes_names or name in self.texts)

    def closeness(self) -> Closeness:
        """Return what the code that was found compares besides values."""
        return Closeness(self.compares_identity(), flags=not self.words.isdisjoint(_OF_MEMORY))

    def compares_whole(self, value: Any) -> bool:
        """Tell whether code may compare, or write out, all attributes of an object without naming them."""
        if any(root_of(cls.__module__) == "pydantic" for cls in type(value).__mro__):  # whose code is not read
            return True
        return is_of_names(value) and not (self.words.isdisjoint(TEXTS) and EQUALITY not in self.words)

    def may_call(self, method: str, kind: type) -> bool:
        """Tell whether code may call a method of a class without naming it: to make a text or a copy, or by a text."""
        if method[:2] != "__":
            return is_of_program(kind.__module__) and self.may_make(method)
        if method == "__repr__":
            return not self.words.isdisjoint(TEXTS)
        return method in _OF_COPIES and not self.words.isdisjoint(_COPYING)

    def is_idle(self, kind: type, name: str, method: Any) -> bool:
        """Tell whether a method is the comparison that a dataclass has made, and no code compares objects."""
        is_made = name == "__eq__" and "__dataclass_fields__" in vars(kind) and isinstance(method, types.FunctionType)
        return is_made and method.__code__.co_filename == "<string>" and self.words.isdisjoint(_COMPARING)

    def may_make(self, name: str) -> bool:
        """Tell whether code that reads attributes by texts may make this one of its constants."""
        if self.words.isdisjoint(_REFLECTION):
            return False
        return name in self.texts or (self.makes_names and any(text in name for text in self.texts))


def _may_be_replaced(name: str | None, variables: dict[str, Any]) -> bool:
    """Tell whether a name, which may be dotted, refers to what is compared by value: not for a class, or its like."""
    if name is None:
        return True
    first, *rest = name.split(".")
    value = variables.get(first, MISSING)
    for part in rest:
        if not isinstance(value, (type, types.ModuleType)):
            return True
        value = vars(value).get(part, MISSING)
    kinds = (*BY_VALUE, *BY_TEXT, *BY_BYTES, *CONTAINERS, Tensor, np.ndarray)
    return value is MISSING or isinstance(value, kinds)
