"""Which calls are made later than they were captured, so that less memory is held at once.

The gradient of a layer's input is computed before that of its weights, and used after it: made later, it need not be
held beside the layer's activations, of which the weights' gradient is the last use. What a call reads must be there
until then anyway, and unchanged, so nothing is held for longer.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Any

from gradmgr._replay.analysis import NATIVE, PYTHON, Analysis, bases_in
from gradmgr._replay.steps import FAILED, Step, Temporary

_LEAST = 1 << 10  # bytes that calls make which are moved
_FURTHEST = 64  # calls


class Delay:
    """Moves calls of the machine's to where what they make is used first.

    Args:
        analysis: whose steps are moved.
        seen: the slots in whose memory lies what Python reads, which may make a view of it at any time.

    Attributes:
        moved: the calls that make no steps of their own any more.
    """

    def __init__(self, analysis: Analysis, seen: AbstractSet[int]) -> None:
        self._analysis, self._seen = analysis, seen
        self.moved: set[int] = set()
        if not any(analysis.nbytes_of(slot) >= _LEAST for slot in analysis.made):
            return
        self._touched = {base: sorted(calls) for base, calls in analysis.touched().items()}
        self._written: dict[int, list[int]] = defaultdict(list)
        self._given = {slot.number for slot in analysis.capture.inputs}
        self._aliased = analysis.aliases.keys() | {base for of in analysis.aliases.values() for base in of}
        for number, steps in enumerate(analysis.steps):
            for base in {base for step in steps for base in bases_in(step, step.run.writes)}:
                self._written[base].append(number)
        for number in range(len(analysis.steps) - 1, -1, -1):
            target = self._target(number)
            if target is not None:
                self._move(number, target)

    def _target(self, number: int) -> int | None:
        """Return the call that uses what a call makes first, if this is to be made just before."""
        analysis, steps = self._analysis, self._analysis.steps[number]
        made = analysis.made_by(number)
        if not steps or not made or not self._seen.isdisjoint(made):
            return None
        if sum([analysis.nbytes_of(slot) for slot in made]) < _LEAST:
            return None
        if not all(_only_computes(step) and _writes_only(step, made) for step in steps):
            return None
        target = min([self._next(slot, number) for slot in made])
        if target == len(analysis.steps):
            return None
        kinds = analysis.kinds[number + 1 : target + 1]
        if not 1 < target - number <= _FURTHEST or PYTHON in kinds or kinds[-1] != NATIVE:
            return None
        read = {base for step in steps for base in bases_in(step)}.difference(made)
        if not all(self._stays(base, number, target) for base in read):
            return None
        return target if self._frees(number, target) else None

    def _next(self, base: int, number: int) -> int:
        """Return the next call that touches a memory after another one."""
        touched = self._touched[base]
        at = bisect_right(touched, number)
        return touched[at] if at < len(touched) else len(self._analysis.steps)

    def _stays(self, base: int, number: int, target: int) -> bool:
        """Tell whether what a call reads is held until another one anyway, and not written in between."""
        if base in self._aliased or (base not in self._given and self._touched[base][-1] < target):
            return False
        written = self._written.get(base, [])
        after = bisect_right(written, number)
        return after == len(written) or written[after] >= target

    def _frees(self, number: int, target: int) -> bool:
        """Tell whether between two calls large memory is used for the last time."""
        analysis = self._analysis
        return any(
            base in analysis.made
            and self._touched[base][-1] < target
            and analysis.made[base] < number
            and analysis.nbytes_of(base) >= _LEAST
            for steps in analysis.steps[number + 1 : target]
            for step in steps
            for base in bases_in(step)
        )

    def _move(self, number: int, target: int) -> None:
        steps = self._analysis.steps[number]
        self.moved.add(number)
        for lists in (self._touched, self._written):
            for base in {base for step in steps for base in bases_in(step)} & lists.keys():
                if number in (found := lists[base]):
                    found.remove(number)
                    if target not in found:
                        insort(found, target)
        self._analysis.steps[target][:0] = steps
        steps[:] = []
        self._analysis.make_at([number], target)


def _only_computes(step: Step) -> bool:
    return step.run.guard is None and step.run.failure == FAILED


def _writes_only(step: Step, made: Any) -> bool:
    """Tell whether a step writes to nothing but some slots' memory and what is held for one call."""
    targets = [base for base, _ in step.operands[len(step.operands) - step.run.writes :]]
    return all(base.__class__ is Temporary or (base.__class__ is int and base in made) for base in targets)
