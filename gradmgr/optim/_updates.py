"""A chunk's update as one call of the machine that makes native replays, where a replay has one.

The calls are those that the chunk would make itself (`_chunks.Program`), over all of its numbers at once: each is
computed element by element and rounded as the standard of floating-point numbers says, so that the results are the
same, bit by bit, in whatever pieces they are computed. The machine runs them strip by strip, which stay in the cache.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradmgr._arrays.atomic import Call as Made
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, Layout, Slot
from gradmgr._replay.analysis import PYTHON
from gradmgr._replay.native_replay import NativeWriter

# Numbers of a large parameter that are computed at a time: several strips of the machine's.
_BLOCK = 1 << 15
# Of small ones that are computed together: their gradients are copied into one row, which the machine keeps.
_JOINED = 1 << 12

# What returns the calls of an update for a parameter, its gradient, three scratch rows, and the states.
Rule = Callable[[Any, Any, Sequence[Any], Sequence[Any]], list[Made]]


class _Description(Capture):
    """The calls of an update as those of a capture, whose arrays are rows of one dtype."""

    __slots__ = ("_dtype",)

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._dtype = dtype

    def row(self, size: int) -> Slot:
        """Return the slot of a new row."""
        number = len(self.layouts)
        self.layouts.append(Layout((size,), self._dtype, (self._dtype.itemsize,), number))
        return Slot(number)

    def input_row(self, size: int) -> Slot:
        """Return the slot of a row that the update is given."""
        made = self.row(size)
        self.inputs.append(made)
        return made

    def scratch(self, size: int) -> Slot:
        """Return the slot of a row for what is computed on the way."""
        made = self.row(size)
        self.append(np.empty, ((size,), self._dtype), {}, made)
        return made

    def append(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], results: Any) -> None:
        """Append a call."""
        self.calls.append(Call(function, args, keywords, results, None, self.place()))

    def part(self, whole: Slot, low: int, size: int) -> Slot:
        """Return the slot of a part of a row."""
        if size == self.layouts[whole.number].shape[0]:
            return whole
        view = Slot(len(self.layouts))
        itemsize = self._dtype.itemsize
        self.layouts.append(Layout((size,), self._dtype, (itemsize,), whole.number, low * itemsize))
        self.append(operator.getitem, (whole, slice(low, low + size)), {}, view)
        return view

    def update(self, rule: Rule, p: Slot, g: Slot, rows: Sequence[Slot], state: Sequence[Slot]) -> bool:
        """Append the calls of an update; return False where one is not of a ufunc."""
        for called, *operands in rule(p, g, rows, state):
            ufunc, out = (called.func, called.keywords["out"]) if isinstance(called, partial) else (called, None)
            if not isinstance(ufunc, np.ufunc):
                return False
            out = operands.pop() if out is None else out
            self.append(ufunc, tuple(operands), {"out": out}, out)
        return True


def machine_update(
    machine: Any,
    rule: Rule,
    dtype: np.dtype[Any],
    sizes: Sequence[int],
    segments: Sequence[tuple[int, int]],
    states: int,
) -> Callable[..., Any] | None:
    """Return a C function that takes a step of a chunk in place; None if the machine cannot make all of its calls.

    Args:
        machine: the machine.
        rule: returns the calls; constants are among them as arrays of shape (), which are read again in each call.
        dtype: of the real numbers.
        sizes: of the parameters, in real numbers.
        segments: the first and last (exclusive) of the parameters that are computed together; a large one is alone.
        states: how many there are.

    Returns:
        A function of the row of the parameters, the rows of the states, and the gradients, all of them contiguous and
        aligned. It is for one thread at a time.
    """
    made = _Description(dtype)
    p, *state = [made.input_row(sum(sizes)) for _ in range(1 + states)]
    grads = [made.input_row(size) for size in sizes]
    pieces = _pieces(sizes, segments)
    counts = [sum([size for _, _, size in piece]) for piece in pieces]
    rows = [made.scratch(max(counts)) for _ in range(3)]
    joined = made.scratch(max([count for count, piece in zip(counts, pieces, strict=True) if len(piece) > 1] or [1]))
    at = 0
    for count, piece in zip(counts, pieces, strict=True):
        found = [made.part(grads[k], low, size) for k, low, size in piece]
        if len(found) > 1:
            start = 0
            for one, (_, _, size) in zip(found, piece, strict=True):
                made.append(np.copyto, (made.part(joined, start, size), one), {}, None)
                start += size
            found = [made.part(joined, 0, count)]
        p_part, *state_parts = [made.part(row, at, count) for row in (p, *state)]
        if not made.update(rule, p_part, found[0], [made.part(row, 0, count) for row in rows], state_parts):
            return None
        at += count
    return _run_of(made, machine)


def _pieces(sizes: Sequence[int], segments: Sequence[tuple[int, int]]) -> list[list[tuple[int, int, int]]]:
    """Return what is computed one after the other, in scratch rows of that length: gradients, and which part of each.

    Gradients are cut, so that the rows stay small.
    """
    pieces: list[list[tuple[int, int, int]]] = []
    for first, last in segments:
        most = _BLOCK if last - first == 1 else _JOINED
        room = 0
        for k in range(first, last):
            low = 0
            while low < sizes[k]:
                if not room:
                    pieces.append([])
                    room = most
                size = min(room, sizes[k] - low)
                pieces[-1].append((k, low, size))
                low, room = low + size, room - size
    return pieces


def _run_of(made: Capture, machine: Any) -> Callable[..., Any] | None:
    """Return the C function that makes calls, of the inputs; None if some of them are left to Python."""
    writer = NativeWriter(made, (), machine)
    writer.segments[0].arguments = dict.fromkeys([slot.number for slot in made.inputs])  # in this order
    writer.function()
    if PYTHON in writer.analysis.kinds or len(writer.segments) != 1:
        return None
    runs, _ = writer.program.make()
    return runs[0]  # type: ignore[no-any-return]  # a function
