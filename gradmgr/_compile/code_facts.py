"""What the code of a function shows: which names it reads, and what it asks of what they stand for."""

from __future__ import annotations

import functools
import itertools
import types
from typing import Any, NamedTuple

from gradmgr._compile.accumulation_facts import Uses, accumulated_in, merged


class CodeFacts(NamedTuple):
    """What the code of a function shows, and that of the functions that it defines.

    Attributes:
        code: the code.
        names: the globals and modules that it reads.
        words: the names of globals and attributes in it. Where it makes texts of values by itself, as an f-string does,
            TEXT is among them; where it compares two values of which none is a constant, EQUALITY; where it looks into
            objects by a pattern without names, PATTERN; where it makes objects of the class of others, as by
            `type(x)(parts)`, MAKING.
        texts: constants that may be names.
        makes_names: whether it reads attributes by texts other than constants of its own.
        identities: with what it compares the identity of values, by `is`: names, dotted ones too; None for all else. A
            comparison with a constant, such as None, does not count.
        questions: what it asks of arrays.
        variables: the names of variables of the functions around it.
        accumulated: by name, how it uses attributes, globals and such variables that it does not read: see
            `accumulation_facts`.
    """

    code: types.CodeType
    names: Names
    words: set[str]
    texts: set[str]
    makes_names: bool
    identities: set[str | None]
    questions: Questions
    variables: set[str]
    accumulated: dict[str, Uses]


def facts_of(code: types.CodeType) -> CodeFacts:
    """Return what code shows."""
    steps = _steps_of(code)
    unnamed = _unnamed_in(code, steps)
    accumulated = accumulated_in(code, steps)
    found = CodeFacts(
        code,
        _names_in(steps),
        set(code.co_names) | unnamed,
        _texts_in(code),
        any(_reads_by_variable(steps, k) for k in range(len(steps))),
        {_loaded(steps[:k]) for k, step in enumerate(steps) if step.opname == "IS_OP"} - {""},
        _questions_in(code, steps),
        {*code.co_cellvars, *code.co_freevars},
        {name: uses for name, uses in accumulated.items() if name not in unnamed},
    )
    inner = [facts_of(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return functools.reduce(_merged, inner, found)


def _merged(one: CodeFacts, other: CodeFacts) -> CodeFacts:
    """Return what code shows together with code in it."""
    for name, attributes in other.names.read.items():
        one.names.read.setdefault(name, set()).update(attributes)
    one.names.imported.update(other.names.imported)
    one.names.assigned.update(other.names.assigned)
    return CodeFacts(
        one.code,
        one.names,
        one.words | other.words,
        one.texts | other.texts,
        one.makes_names or other.makes_names,
        one.identities | other.identities,
        Questions(*[a or b for a, b in zip(one.questions, other.questions, strict=True)]),
        one.variables | other.variables,
        merged(one.accumulated, other.accumulated, one.words | one.variables, other.words | other.variables),
    )


def _steps_of(code: types.CodeType) -> list[Any]:
    """Return the instructions of code that do something."""
    import dis  # deferred: few functions are compiled

    return [step for step in dis.get_instructions(code) if step.opname not in ("PRECALL", "CACHE", "EXTENDED_ARG")]


class Names(NamedTuple):
    """What code reads by name.

    Attributes:
        read: by the name of a global, which attributes of it are read at once; None means other uses.
        imported: the modules that it imports itself.
        assigned: the globals that it assigns.
    """

    read: dict[str, set[str | None]]
    imported: set[str]
    assigned: set[str]


def _names_in(steps: list[Any]) -> Names:
    names = Names({}, set(), set())
    before: str | None = None
    for step in steps:
        operation, name = step.opname, step.argval
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
    return names


# Words that stand for what code asks without a name for it.
TEXT, EQUALITY, PATTERN, MAKING = "<text>", "<equality>", "<pattern>", "<making>"
_CONSTANT = ("LOAD_CONST", "LOAD_SMALL_INT")


def _unnamed_in(code: types.CodeType, steps: list[Any]) -> set[str]:
    """Return what the instructions of code ask for without a name; the names in patterns, too."""
    found: set[str] = set()
    if any(_makes_of_class(steps, k) for k in range(len(steps))):
        found.add(MAKING)
    has_fields = any(isinstance(part, (str, bytes)) and "%" in str(part) for part in code.co_consts)
    for before, step in itertools.pairwise(steps):
        operation = step.opname
        fills = has_fields and operation == "BINARY_OP" and step.argrepr.startswith("%")
        if fills or operation.startswith(("FORMAT_", "CONVERT_VALUE")):
            found.add(TEXT)
        elif operation in ("COMPARE_OP", "CONTAINS_OP") and before.opname not in _CONSTANT:
            found.add(EQUALITY)
        elif operation == "MATCH_CLASS":
            found.update(before.argval if isinstance(before.argval, tuple) else ())
            found.update([PATTERN] if step.arg else ())
    return found


def _makes_of_class(steps: list[Any], k: int) -> bool:
    """Tell whether an instruction loads the class of an object, by type() or __class__, to call it or to keep it."""
    name, operation = steps[k].argval, steps[k].opname
    if name == "__class__" and operation.startswith(("LOAD_ATTR", "LOAD_METHOD")):
        is_called = operation == "LOAD_METHOD" or "NULL" in steps[k].argrepr
        return is_called or (k + 1 < len(steps) and steps[k + 1].opname.startswith("STORE_"))
    if name != "type" or not operation.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
        return False
    return _is_called(steps, k) or any(step.opname.startswith("STORE_") for step in steps[k + 3 : k + 4])


def _texts_in(code: types.CodeType) -> set[str]:
    """Return the constants of code that may be names, or hold some."""
    found: set[str] = set()
    for part in code.co_consts:
        found.update([each for each in (part if isinstance(part, tuple) else (part,)) if isinstance(each, str)])
    return {name for text in found for name in text.split(".") if name.isidentifier()}


# Functions that read attributes by the texts that they are given.
BY_TEXTS = frozenset(("attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"))


def _reads_by_variable(steps: list[Any], k: int) -> bool:
    """Tell whether an instruction loads a function that reads an attribute, or a dict, of which no constant is read."""
    if steps[k].argval == "__dict__" or (steps[k].argval == "vars" and steps[k].opname.startswith("LOAD_GLOBAL")):
        return True
    if steps[k].argval not in BY_TEXTS:
        return False
    given = list(itertools.takewhile(lambda step: not step.opname.startswith("CALL"), steps[k + 1 :]))
    return not any(step.opname in _CONSTANT and isinstance(step.argval, str) for step in given[-2:])


def _loaded(steps: list[Any]) -> str | None:
    """Return the name of what these instructions load at last; "" for a constant, None for what has no name."""
    names: list[str] = []
    is_of_type = [step.argval for step in steps[-3:-2]] == ["type"] and steps[-1].opname == "CALL"
    if is_of_type or (steps and steps[-1].argval == "__class__"):
        return ""  # a class, which is none of those that are compared by value
    for step in reversed(steps):
        if step.opname in _CONSTANT and not names:
            return ""
        if step.opname.startswith("LOAD_GLOBAL"):
            return ".".join([step.argval, *names])
        if not step.opname.startswith("LOAD_ATTR"):
            return None
        names.insert(0, step.argval)
    return None


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


def _questions_in(code: types.CodeType, steps: list[Any]) -> Questions:
    asks = _names_telling(code, steps) or _may_suppress(code, steps)
    matches = catches = False
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


def _names_telling(code: types.CodeType, steps: list[Any]) -> bool:
    """Tell whether code reads, by a text, an attribute that only stand-ins have, or only arrays.

    What the global hasattr() tells of what represents an array is what it tells of the array: see `StandIns`.
    """
    if any(step.argval == "hasattr" and step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) for step in steps):
        return True
    if "getattr" not in code.co_names:
        return "__array_priority__" in code.co_names
    return any(isinstance(part, str) and part in _TELLING for part in code.co_consts)


def _is_self(name: Any) -> bool:
    """Tell whether what an instruction loads, at last, is a method's own object or class, or what it is compared with.

    Methods such as those of dataclasses ask whether `other` is of their class.
    """
    return (name[-1] if isinstance(name, tuple) else name) in ("self", "cls", "other")


def line_of(code: types.CodeType, name: str) -> str:
    """Return, as "file:line", where code reads a name first, or has an `is`; its first line where it does not."""
    import dis  # deferred: as above

    for instruction in dis.get_instructions(code):
        is_found = instruction.argval == name or (name == "is" and instruction.opname == "IS_OP")
        if is_found and instruction.positions is not None and instruction.positions.lineno:
            return f"{code.co_filename}:{instruction.positions.lineno}"
    return f"{code.co_filename}:{code.co_firstlineno}"
