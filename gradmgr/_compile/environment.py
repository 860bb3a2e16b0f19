"""Environment: what a function reads besides its arguments, as far as its code shows.

These are the globals that its code names, the variables of the functions around it, the attributes that it names of
objects, classes and modules, and the same of each function that it may call (`name_search`). A program that was
captured fits while all of them are what they were (`compared`). Large arrays are inputs of the program, see
`stand_ins`: what is computed of them is computed in each replay.
"""

from __future__ import annotations

import functools
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradmgr._compile.accumulation import Accumulation
from gradmgr._compile.code_facts import line_of
from gradmgr._compile.compared import ComparedName, is_comparable, is_unchanging
from gradmgr._compile.name_search import CHANGES_UNSEEN, Search
from gradmgr._compile.name_tests import write_test
from gradmgr._compile.settings import Setting
from gradmgr._compile.sources import BY_TEXT, BY_VALUE, PASSING_ERRORS, held_by, is_large_array
from gradmgr._compile.stand_ins import CachedCall, StandIns, large_arrays_in, release
from gradmgr._compile.tensor_capture import TensorCapture

_MOST_CACHED = 100  # calls of functions with `lru_cache` that are compared


class Environment:
    """The values of all names that a function reads.

    Attributes:
        obstacle: why what it reads cannot be compared; None if it can.
        change: what the function itself has changed of it; None if nothing.
    """

    __slots__ = (
        *("_accumulation", "_arguments", "_arrays", "_asking", "_asks_class", "_cached", "_capture", "_given"),
        *("_identities", "_names", "_plain", "_stand_ins", "_states", "change", "obstacle"),
    )

    def __init__(self, function: Any, arguments: Sequence[Any] = (), containers: Sequence[Any] = ()) -> None:
        search = Search(arguments, containers)
        search.run((function, *arguments))
        self._identities = frozenset(search.compared) if search.compares_identity() else frozenset()
        self.obstacle = search.obstacle
        self.change: str | None = None
        self._names: list[ComparedName | Setting | Accumulation] = []
        self._accumulation: Accumulation | None = None
        self._plain: list[tuple[Any, Any, Any]] = []  # names of numbers, with what they are, and copies of containers
        try:
            accumulated = search.accumulated()
            names = search.names.items()
            self._names += [name.note(search.closeness()) for key, name in names if key not in accumulated]
            if accumulated:
                self._accumulation = Accumulation([place for found in accumulated.values() for place in found])
                self._names.append(self._accumulation)
        except PASSING_ERRORS:
            raise
        except Exception as error:  # of an object of the user
            self.obstacle = (
                self.obstacle or f"something that it reads raises {type(error).__name__} where it is compared"
            )
        self._asking = list(search.asking.values())
        self._arguments = [*arguments, *containers]
        self._asks_class = search.asks_class()
        if self.obstacle is None and self._asks_class and any(isinstance(a, np.ndarray) for a in arguments):
            self.obstacle = "it may ask whether an argument is an ndarray, which none is in a capture; give it Tensors"
        self._given = {id(a): a for a in arguments if is_large_array(a)}
        self._arrays = [(a, zlib.crc32(np.ascontiguousarray(a).tobytes())) for a in search.arrays.values()]
        self._states = [(g, _state_of(g)) for g in search.generators.values()]
        self._cached: list[CachedCall] = []
        self._capture: Any = None
        self._stand_ins: Any = None

    def known(self, arguments: Sequence[Any]) -> dict[int, weakref.ref[Any]]:
        """Return by number the arguments for which names stand, too, where code asks for the identity of objects."""
        return {k: weakref.ref(a) for k, a in enumerate(arguments) if id(a) in self._identities}

    def identities(self) -> frozenset[int]:
        """Return the identities of Tensors and arrays for which names stand, where code asks for these."""
        return self._identities

    def test(self) -> Callable[[], bool]:
        """Return a function that tells quickly whether nothing has changed; it may also say no where nothing has."""
        return write_test(self._names)

    def changed(self) -> str | None:
        """Return the first name that refers to something else now; None if all are the same."""
        return self._changed(self._names)

    def changed_at(self) -> str | None:
        """Return the same, with the line that reads it where that is known."""
        found = next((name for name in self._names if not name.is_same()), None)
        if found is None or found.code is None:
            return None if found is None else found.name
        return f"{found.name}, read at {line_of(found.code, found.name.rpartition('.')[2])}"

    @staticmethod
    def _changed(names: Iterable[ComparedName | Setting | Accumulation]) -> str | None:
        return next((name.name for name in names if not name.is_same()), None)

    def accumulate(self, capture: TensorCapture) -> None:
        """Append to a capture what the function has added to, appended to and assigned, and does not read."""
        if self._accumulation is not None:
            self.change = self._accumulation.append_to(capture)

    def undo(self) -> None:
        """Put back what the function has changed, as it is to be called again.

        That is what it has added to, appended to and assigned, and numbers and texts, also in lists and dicts of these.
        """
        if self._accumulation is not None:
            self._accumulation.undo()
        for name, before, held in self._plain:
            if held is None:
                if name.read() is not before:
                    name.write(before)
            elif before != held:
                before.clear()
                (before.update if isinstance(before, dict) else before.extend)(held)

    def settle(self, known: Iterable[Any]) -> None:
        """Note as an obstacle what the function has changed since, unseen by a capture, and drop what only this needs.

        Args:
            known: the Generators whose draws were captured.
        """
        self._add_cached()
        changed = self._changed(name for name in self._names if not name.may_change)
        if changed is not None:
            is_rate = changed.endswith(("._last_lr", ".param_groups"))
            advice = "read learning rates outside of it, after the call" if is_rate else "do that outside of it"
            self.change = f"the function changes {changed}, which it reads; {advice}"
        for a, checksum in self._arrays:
            if zlib.crc32(np.ascontiguousarray(a).tobytes()) != checksum:
                self.obstacle = "the function writes to an array that it is not given as an argument; make it a Tensor"
        for g, state in self._states:
            if not any(g is each for each in known) and _state_of(g) != state:
                self.obstacle = "the function draws random numbers that are not captured; draw arrays, by name"
        if self._accumulation is not None:
            self._accumulation.forget()
        self._capture = self._stand_ins = None
        self._plain = []
        self._arrays.clear()
        self._states.clear()
        self._arguments.clear()

    def _add_cached(self) -> None:
        """Add what functions with `lru_cache` gave, which a replay asks for again; nothing else can be compared."""
        made: set[Any] = set()
        for function, args, keywords, result in self._cached:
            name = getattr(function, "__name__", "a function")
            if not (is_unchanging((args, *keywords.values())) and is_comparable(result)):
                self.obstacle = (
                    f"it calls {name}(), which functools.lru_cache keeps the results of, with or for what may change "
                    "unseen; call it outside, and pass the result as an argument"
                )
            elif (key := (id(function), args, *keywords.items())) not in made:
                made.add(key)
                again = functools.partial(function, *args, **keywords)
                self._names.append(ComparedName(f"what {name}() gives", again).note())
        if len(made) > _MOST_CACHED:
            self.obstacle = (
                "it makes more calls of functions with functools.lru_cache than can be compared in each call"
            )
        self._cached = []

    def prepare(self, capture: TensorCapture, given: Mapping[int, Any]) -> None:
        """Make what `replace` and `restore` need; nothing is replaced yet.

        Args:
            capture: which captures the calls of large arrays.
            given: by the identity of large arrays that are arguments, too, what represents these.
        """
        sees_arrays = self.obstacle is None and not self._asks_class
        self._capture = capture
        self._stand_ins = StandIns(capture, given, self._arguments, sees_arrays=sees_arrays)
        self._cached = self._stand_ins.cached

    def named(self) -> set[int]:
        """Return the identities of those arguments that names stand for."""
        found: set[int] = self._stand_ins.named
        return found

    def replace(self) -> None:
        """Let names of Generators, of objects with array functions and of large arrays stand for stand-ins.

        An array that nothing can stand for is an obstacle.
        """
        for variables, builtin in self._asking:
            self._stand_ins.answer_in(variables, builtin)
        for name in self._names:
            if name.write is not None:
                self._stand_ins.replace(name.read, name.write)
        self._check_arrays()
        self._plain = [(name, found, _copy_of(found)) for name, found in self._numbers()]
        if self._accumulation is not None:
            self._capture.unread = self._accumulation.attributes()
            self._accumulation.begin()

    def restore(self) -> None:
        """Put back what `replace` has replaced; called twice it does nothing more."""
        self._stand_ins.restore()
        if self._accumulation is not None:
            self._accumulation.end()
        for name in self._names:
            release(name.read(), name.write)

    def _numbers(self) -> Iterator[tuple[Any, Any]]:
        """Yield the names of numbers and texts, and of lists and dicts of these alone, with what they stand for."""
        for name in self._names:
            if name.write is not None:
                value = name.read()
                held = held_by(value) if value.__class__ in (list, dict) else [value]
                if all(isinstance(part, (*BY_VALUE, *BY_TEXT)) for part in held):
                    yield name, value

    def _check_arrays(self) -> None:
        """Note as an obstacle that the function reads a large array for which nothing stands."""
        if self.obstacle is not None:
            return
        for name in self._names:
            for _ in large_arrays_in(name.read()):
                self.obstacle = _unseen(name.name, name.code, self._reason())
                return
        if not all(self._stand_ins.has(a) or id(a) in self._given for a, _ in self._arrays if is_large_array(a)):
            self.obstacle = _unseen("what an argument holds", None, self._reason())

    def _reason(self) -> str:
        """Return why nothing represents an array."""
        if self._asks_class:
            return "whose class it may ask for, which is another one in a capture; make it a Tensor"
        return CHANGES_UNSEEN


def _copy_of(value: Any) -> Any:
    """Return a copy of a list or a dict; None of anything else."""
    return value.copy() if value.__class__ in (list, dict) else None


def _unseen(name: str, code: types.CodeType | None, reason: str) -> str:
    """Say why a function that reads an array is not replayed."""
    line = "" if code is None else f", at {line_of(code, name.rpartition('.')[2])}"
    return f"it reads {name}, an array {reason}{line}"


def _state_of(generator: np.random.Generator) -> str:
    return repr(generator.bit_generator.state)
