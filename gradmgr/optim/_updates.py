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

from gradmgr._arrays.analysis import PYTHON
from gradmgr._arrays.atomic import Call as Made
from gradmgr._arrays.captured import Call, Capture, Layout, Slot
from gradmgr._arrays.native_replay import NativeWriter

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

    def join(self, parts: Sequence[Slot], sizes: Sequence[int], whole: Slot) -> None:
        """Append the calls that copy rows into one, one after the other."""
        low = 0
        for part, size in zip(parts, sizes, strict=True):
            view = Slot(len(self.layouts))
            offset = low * self._dtype.itemsize
            self.layouts.append(Layout((size,), self._dtype, (self._dtype.itemsize,), whole.number, offset))
            self.append(operator.getitem, (whole, slice(low, low + size)), {}, view)
            self.append(np.copyto, (view, part), {}, None)
            low += size


def machine_update(
    machine: Any, rule: Rule, dtype: np.dtype[Any], sizes: Sequence[int], states: int
) -> Callable[..., Any] | None:
    """Return a C function that takes a step of a chunk in place; None where the machine cannot make all of its calls.

    Args:
        machine: the machine.
        rule: returns the calls; constants are among them as arrays of shape (), which are read anew in each call.
        dtype: of the real numbers.
        sizes: of the parameters, in real numbers.
        states: how many there are.

    Returns:
        A function of the row of the parameters, the rows of the states, and the gradients, all of them contiguous and
        aligned. It is for one thread at a time.
    """
    made = _Description(dtype)
    p, state = made.input_row(sum(sizes)), [made.input_row(sum(sizes)) for _ in range(states)]
    grads = [made.input_row(size) for size in sizes]
    g = grads[0]
    if len(grads) > 1:
        g = made.scratch(sum(sizes))
        made.join(grads, sizes, g)
    for called, *operands in rule(p, g, [made.scratch(sum(sizes)) for _ in range(3)], state):
        ufunc, out = (called.func, called.keywords["out"]) if isinstance(called, partial) else (called, None)
        if not isinstance(ufunc, np.ufunc):
            return None
        out = operands.pop() if out is None else out
        made.append(ufunc, tuple(operands), {"out": out}, out)
    return _run_of(made, machine)


def _run_of(made: Capture, machine: Any) -> Callable[..., Any] | None:
    """Return the C function that makes calls, of the inputs; None where some of them are left to Python."""
    writer = NativeWriter(made, (), machine)
    writer.segments[0].arguments = dict.fromkeys([slot.number for slot in made.inputs])  # in this order
    writer.function()
    if PYTHON in writer.analysis.kinds or len(writer.segments) != 1:
        return None
    runs, _ = writer.program.make()
    return runs[0]  # type: ignore[no-any-return]  # a function
