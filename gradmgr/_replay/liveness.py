"""From which step to which other one memory is needed, and which steps may write over what they read last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradmgr._replay.spans import Span
from gradmgr._replay.steps import Step
from gradmgr._replay.strips import Group, groups_in


class Liveness:
    """The positions of steps in the order in which they run, and of those that touch each memory.

    A call of Python's, or one without steps, has a position, too. In a group all memory is needed from its first step
    to its last, except for what holds one strip.

    Args:
        steps: by call.
        groups: of steps that run strip by strip, by the identity of each of these.

    Attributes:
        bounds: by call, its first position and its last.
        first, last: by what represents a memory, the first position that touches it and the last.
    """

    def __init__(self, steps: Sequence[Sequence[Step]], groups: Mapping[int, Group]) -> None:
        self.bounds: list[tuple[int, int]] = []
        self.first: dict[Any, int] = {}
        self.last: dict[Any, int] = {}
        self._over: list[tuple[int, Step]] = []  # those that may write over what they read, and their positions
        at = 0
        for of_call in steps:
            begin = at
            for group, members in groups_in(of_call, groups):
                if group is None:
                    self._enter(members[0], at)
                else:
                    self._enter_group(group, members, at)
                at += len(members)
            at = max(at, begin + 1)
            self.bounds.append((begin, at - 1))
        self.end = at

    def _enter(self, step: Step, at: int) -> None:
        first, last = self.first, self.last
        for base, _ in step.operands:
            if base.__class__ is not np.ndarray:
                if base not in first:
                    first[base] = at
                last[base] = at
        if step.run.writes == 1 and ((step.run.exact and step.run.flat) or step.run.in_place):
            self._over.append((at, step))

    def _enter_group(self, group: Group, steps: Sequence[Step], at: int) -> None:
        end = at + len(steps) - 1
        for number, step in enumerate(steps):
            for base, _ in step.operands:
                if base.__class__ is not np.ndarray:
                    is_local = base in group.local
                    self.first.setdefault(base, at + number if is_local else at)
                    self.last[base] = at + number if is_local else end

    def span(self, base: Any, call: int, until: int | None, nbytes: int) -> Span:
        """Return for how long memory is held that a call makes.

        Args:
            base: what represents it.
            call: the number of that call.
            until: of the last call that reads it; None if only steps do.
            nbytes: how large it is.
        """
        begin = self.bounds[call][0]
        last = self.last.get(base, begin)
        if until is None:
            return Span(self.first.get(base, begin), last, nbytes)
        end = self.bounds[until][1] if until < len(self.bounds) else self.end
        return Span(min(begin, self.first.get(base, begin)), max(begin, last, end), nbytes)

    def over(self, spans: dict[Any, Span]) -> dict[Any, Any]:
        """Return what may lie where something else lies, as a step reads that last and writes this first.

        The step goes over both element by element, and rounds exactly: other loops may round otherwise in place. What
        is returned is gone from the spans, and that of what it lies in is longer.
        """
        found: dict[Any, Any] = {}
        ends = {base: span.end for base, span in spans.items()}
        for at, step in self._over:
            target = step.operands[-1][0]
            span = spans.get(target) if target.__class__ is not np.ndarray else None
            if span is None or span.start != at:
                continue
            for base, _ in step.operands[:-1]:
                if base.__class__ is np.ndarray or ends.get(base) != at or base == target:
                    continue
                root = found.get(base, base)
                start, _, nbytes = spans[root]
                if nbytes == span.nbytes and reads_whole(step, base, nbytes):
                    found[target] = root
                    spans[root] = Span(start, span.end, nbytes)
                    del spans[target]
                    break
        return found


def reads_whole(step: Step, base: Any, nbytes: int) -> bool:
    """Tell whether a step writes so many bytes from the first on, and reads a memory at the same places alone."""
    if step.operands[-1][1]:
        return False
    # All arrays of a kernel are contiguous.
    strides = step.run.alignments if step.run.in_place else step.run.strides[: len(step.operands)]
    stride = strides[-1]
    if step.run.dims[0] * stride != nbytes:
        return False
    for (of, offset), own in zip(step.operands, strides, strict=False):
        if of.__class__ is not np.ndarray and of == base and (offset or own != stride):
            return False
    return True
