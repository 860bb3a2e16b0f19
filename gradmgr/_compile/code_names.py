"""Which names a code object reads and assigns: chains such as `self.model.scale`, found with `dis`.

A chain is a name that is loaded, and the attributes that are loaded of it at once. Nothing else of the instructions is
understood: where a chain begins with a value that has no name, such as the result of a call, its root is UNKNOWN.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import NamedTuple

GLOBAL, FREE, LOCAL, IMPORT, UNKNOWN = "global", "free", "local", "import", "unknown"
READ, STORE, EMPTY_CALL = "read", "store", "empty call"  # the last: a call without arguments, or with None as the first

# Instructions that leave what is on top of the stack as it is, or put a second reference to it there.
_SILENT = frozenset(("CACHE", "DUP_TOP", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME"))
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_VARIABLES = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
_MOST_ALIASES = 8  # names for one another, as in `a = self.x; b = a.y; c = b.z`


class Chain(NamedTuple):
    """A name, and the attributes that are read of it at once.

    Attributes:
        root: where the name stands; LOCAL only for parameters.
        name: of the variable or module; "" where the root is UNKNOWN.
        path: the attributes.
        line: where the code reads it first.
        use: STORE where the last attribute, or the name itself, is assigned or deleted.
    """

    root: str
    name: str
    path: tuple[str, ...]
    line: int
    use: str = READ


def names_in(code: types.CodeType) -> list[Chain]:
    """Return the chains in a code object and in the functions that it defines, each once."""
    return _Reader(code).chains()


class _Reader:
    """Reads a code object and those in it.

    What is on top of the stack is in `_top` as long as that is a chain.
    """

    def __init__(self, code: types.CodeType) -> None:
        self._found: dict[Chain, Chain] = {}  # by itself without its line
        self._stored: dict[str, list[Chain | None]] = {}  # by local variable: what is assigned to it; None: no chain
        self._parameters = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        self._top: Chain | None = None
        self._module: Chain | None = None  # what was imported last
        self._line = code.co_firstlineno
        self._count = 0  # of functions in it
        self._read(code, {name: Chain(FREE, name, (), self._line) for name in code.co_freevars}, "")

    def chains(self) -> list[Chain]:
        """Return what was found, with local variables replaced by the chains that are assigned to them."""
        chains = [named for chain in self._found.values() for named in self._named(chain)]
        return list({chain._replace(line=0): chain for chain in reversed(chains)}.values())[::-1]

    def _named(self, chain: Chain, depth: int = _MOST_ALIASES) -> Iterator[Chain]:
        if chain.root != LOCAL:
            yield chain
            return
        stored = self._stored.get(chain.name, [])
        is_parameter = chain.name in self._parameters
        if is_parameter:
            yield chain
        for alias in stored:
            if alias is not None and depth:
                yield from self._named(alias._replace(path=alias.path + chain.path, use=chain.use), depth - 1)
        if chain.path and (None in stored or not (stored or is_parameter)):
            yield chain._replace(root=UNKNOWN, name="")

    def _add(self, chain: Chain | None) -> None:
        is_bare = chain is not None and not chain.path and (chain.root == IMPORT or chain.name == "__class__")
        if chain is not None and not is_bare:  # such as what super() is made of
            self._found.setdefault(chain._replace(line=0), chain)

    def _put(self, chain: Chain | None) -> None:
        """Let a chain be on top of the stack, and what was there below it."""
        self._add(self._top)
        self._top = chain

    def _read(self, code: types.CodeType, outer: dict[str, Chain], suffix: str) -> None:
        """Read a code object.

        Args:
            code: that of the function, or of a function in it.
            outer: its free variables.
            suffix: what distinguishes its own variables from those of other functions.
        """
        self._top = None
        for step in dis.get_instructions(code):
            operation, name = step.opname, step.argval
            self._line = (step.positions.lineno if step.positions is not None else None) or self._line
            if step.is_jump_target:
                self._put(None)
            if operation in _SILENT or (operation == "COPY" and step.arg == 1):
                continue
            if operation.endswith(("_ATTR", "_METHOD")):
                self._read_attribute(operation, name)
            elif re.match("(LOAD|STORE)_FAST", operation) and operation != "LOAD_FAST_AND_CLEAR":
                given = name if isinstance(name, tuple) else (name,)
                for action, each in zip(re.findall("LOAD|STORE", operation), given, strict=True):
                    # What functions in it read is loaded as the variable itself, to make these.
                    is_shared = each in code.co_cellvars or each in outer
                    self._read_variable(action, None if is_shared else self._local(each + suffix))
            elif operation in _VARIABLES or operation in ("STORE_DEREF", "DELETE_DEREF"):
                self._read_variable(operation, outer.get(name) or self._local(name + suffix))
            else:
                self._read_other(step)
                if isinstance(name, types.CodeType):
                    self._count += 1
                    free = {each: outer.get(each) or self._local(each + suffix) for each in name.co_freevars}
                    self._read(name, free, f"@{self._count}")

    def _local(self, name: str) -> Chain:
        return Chain(LOCAL, name, (), self._line)

    def _read_attribute(self, operation: str, name: str) -> None:
        if operation.startswith("LOAD_SUPER"):
            self._top = Chain(UNKNOWN, "", (name,), self._line)  # its object and its class are no reads of their own
        elif operation.startswith("LOAD"):
            owner = self._top or Chain(UNKNOWN, "", (), self._line)
            self._top = owner._replace(path=(*owner.path, name))
        else:
            self._add(self._top and self._top._replace(path=(*self._top.path, name), use=STORE))
            self._top = None

    def _read_variable(self, operation: str, variable: Chain | None) -> None:
        if operation.startswith("LOAD"):
            self._put(variable and variable._replace(line=self._line))
            return
        if variable is not None and variable.root == LOCAL:
            self._stored.setdefault(variable.name, []).append(self._top)
        else:
            self._add(self._top)
            self._add(variable and variable._replace(line=self._line, use=STORE))
        self._top = None

    def _read_other(self, step: dis.Instruction) -> None:
        operation, name = step.opname, step.argval
        if operation == "IMPORT_FROM":
            self._top = self._module and self._module._replace(path=(name,), line=self._line)
            return
        is_empty = operation.startswith("CALL") and step.arg == 0
        if self._top is not None and (is_empty or (operation == "LOAD_CONST" and name is None)):
            self._top = self._top._replace(use=EMPTY_CALL)
        self._put(Chain(GLOBAL, name, (), self._line) if operation in _GLOBALS else None)
        if operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self._add(Chain(GLOBAL, name, (), self._line, STORE))
        elif operation == "IMPORT_NAME":
            self._top = self._module = Chain(IMPORT, name, (), self._line)
