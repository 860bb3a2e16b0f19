"""Call: one captured call of a function, with slots in the place of arrays, and what a replay must find the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in, map_leaves

Array = Any


# Code, and the instruction in it: the number of the line takes longer to find, and few are ever asked for.
Place = tuple[CodeType, int]

ROOT = str(Path(__file__).resolve().parents[1])


# Classes of arguments that are no arrays and hold none.
PLAIN = frozenset((int, float, complex, bool, str, type(None), type, type(Ellipsis), np.dtype))


class CaptureError(RuntimeError):
    """A capture cannot be replayed."""


class GuardError(CaptureError):
    """A replay met another value than the one on which its calls depend."""


# Not frozen, as those below: what a frozen class sets takes four times as long, and each call makes one of each.
@dataclass(slots=True, unsafe_hash=True)
class Slot:
    """Represents an array in what a call was given: an input of the capture, or the result of an earlier call."""

    number: int


@dataclass(slots=True)
class Layout:
    """What is known of the array in a slot: facts that are the same in every replay.

    Attributes:
        owner: the number of the slot in whose memory it lies, its own where it has memory of its own; None where the
            memory is that of no slot, as for NumPy scalars and views of arrays that are not captured.
        offset: where its lowest byte stands, counted from the lowest of its owner.
        is_scalar: whether it is a NumPy scalar, which is no array.
        device: the number of the GPU; None in the memory of the host.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    owner: int | None
    offset: int = 0
    is_scalar: bool = False
    device: int | None = None


class Call:
    """One call; nothing of it changes.

    Attributes:
        function: what was called.
        args: its positional arguments, with a Slot for each captured array, within lists, tuples and slices too.
        keywords: likewise.
        results: the Slot of the result, a tuple of them for several; None for what is no array.
        expected: the facts of the result, where they depend on values and a replay must find the same; else None.
        has_effect: whether it changes what others see, so that it cannot be taken back.
        given: the numbers of the slots among its arguments.
        made: the numbers of the slots of its result.
        seconds: how long it took when it was captured.
    """

    __slots__ = (
        *("_place", "args", "expected", "function", "given", "has_effect", "keywords", "made", "results", "seconds"),
    )

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        results: Any,
        expected: Any,
        place: Place,
        *,
        has_effect: bool = False,
        given: tuple[int, ...] | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords
        self.results = results
        self.expected = expected
        self.has_effect = has_effect
        self._place = place
        self.seconds = 0.0
        self.given = tuple([slot.number for slot in slots_in((args, keywords))]) if given is None else given
        if results.__class__ is Slot:
            self.made: tuple[int, ...] = (results.number,)
        else:
            self.made = () if results is None else tuple([slot.number for slot in slots_in(results)])

    def but(self, *, args: tuple[Any, ...] | None = None, result: tuple[int, int] | None = None) -> Call:
        """Return the same call with other arguments, or with a result in another slot: its number, and the new one."""
        results = self.results
        if result is not None:
            results = map_leaves(lambda part: Slot(result[1]) if part == Slot(result[0]) else part, results)
        facts = self.function, self.args if args is None else args, self.keywords, results, self.expected, self._place
        return Call(*facts, has_effect=self.has_effect, given=self.given if args is None else None)

    @property
    def line(self) -> str:
        """Where the program made it, as "file:line"."""
        return line_at(self._place)


def slots_in(value: Any) -> Iterator[Slot]:
    """Yield the slots in the arguments or the results of a call."""
    return (part for part in leaves_in(value) if isinstance(part, Slot))


def name_of(function: Any) -> str:
    """Return what a function is called, for the user."""
    if function is operator.truth:
        return "the truth of an array"
    return str(getattr(function, "__name__", function))


def line_at(place: Place) -> str:
    """Return the line of a place in a program, as "file:line"."""
    code, instruction = place
    lines = [line for start, end, line in code.co_lines() if start <= instruction < end and line is not None]
    return f"{code.co_filename}:{lines[0] if lines else code.co_firstlineno}"


def facts_of(result: Any) -> Any:
    """Return the shapes of arrays, and all else as it is."""
    if isinstance(result, (tuple, list)):
        return tuple(map(facts_of, result))
    return result.shape if gpu.is_plain(result) else result


def check(call: Call, made: Any) -> None:
    """Raise if the facts of a result are not what they were."""
    found = getattr(call.function, "facts_of", facts_of)(made)
    if found != call.expected:
        raise GuardError(f"{name_of(call.function)} at {call.line} gave {call.expected}, and {found} now")


def stale(call: Call) -> None:
    """Raise as `check` does, of a guard that was tested by other means."""
    raise GuardError(f"{name_of(call.function)} at {call.line} gave {call.expected}, and something else now")
