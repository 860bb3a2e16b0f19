"""What the machine makes of the calls of a capture, in whose memory everything lies, and what need not be made.

A call whose results are not read is dropped. A copy of a whole array that nothing reads afterwards is too:
what computes the array writes it at once to where it is copied.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, Layout, Slot, slots_in
from gradmgr._arrays.native import Machine
from gradmgr._replay.call_facts import keeps_nothing, makes_nothing, writes_to_out
from gradmgr._replay.lowering import Lowering
from gradmgr._replay.steps import NotLoweredError, Step

PYTHON, VIEW, NOTHING, NATIVE = range(4)


class Analysis:
    """What the machine makes of each call, and in whose memory each slot's array lies.

    Attributes:
        kinds: by call, who makes it.
        steps: by call, those of the machine.
        bases: by slot, in whose memory it lies, and where its lowest byte stands there.
        aliases: by slot of what Python made, in whose memory it may lie besides.
        made: the slots whose memory the replay makes, by the number of the call: for the machine, or for a function of
            Python's that takes where its result goes.
    """

    def __init__(self, capture: Capture, machine: Machine) -> None:
        self.capture = capture
        self.layouts = list(capture.layouts)  # to which those of memory that holds others are added
        self.lowering = Lowering(capture, machine)
        self.bases = self.lowering.bases
        self.kinds: list[int] = []
        self.steps: list[list[Step]] = []
        self.aliases: dict[int, set[int]] = {}
        self.made: dict[int, int] = {}
        self._made_by: dict[int, list[int]] = defaultdict(list)
        self._nbytes: dict[int, int] = {}
        for number, call in enumerate(capture.calls):
            kind, steps = self._lowered(call)
            self.kinds.append(kind)
            self.steps.append(steps)
            if kind == PYTHON:
                self._enter_results(call)
            elif kind == NATIVE and isinstance(call.results, Slot) and call.results.number not in self.bases:
                self.bases[call.results.number] = call.results.number, 0
                self._enter_made(call.results.number, number)

    def _enter_made(self, slot: int, number: int) -> None:
        """Enter the call that first writes to the memory of a slot, which may be the arena's."""
        self.made[slot] = number
        self._made_by[number].append(slot)

    def base_of(self, number: int) -> int:
        """Return the slot in whose memory an array lies."""
        return self.bases.get(number, (number, 0))[0]

    def nbytes_of(self, slot: int) -> int:
        """Return how many bytes the memory of a slot needs, which is asked often."""
        found = self._nbytes.get(slot)
        if found is None:
            found = self._nbytes[slot] = bytes_of(self.layouts[slot])
        return found

    def made_by(self, number: int) -> Sequence[int]:
        """Return the slots whose memory is new in a call."""
        return self._made_by.get(number, ())

    def _lowered(self, call: Call) -> tuple[int, list[Step]]:
        if makes_nothing(call):
            return NOTHING, []
        if self.lowering.is_view(call):
            return VIEW, []
        try:
            return NATIVE, self.lowering.lower(call)
        except NotLoweredError:
            self.lowering.forget(call.made)
            return PYTHON, []

    def _enter_results(self, call: Call) -> None:
        """Enter where the results of a call of Python's lie."""
        arrays = [k for k in call.given if self.layouts[k] is not None and not self.layouts[k].is_scalar]
        for k in call.made:
            layout = self.layouts[k]
            if k in self.bases:
                continue
            self.bases[k] = k, 0
            if writes_to_out(call):
                self._enter_made(k, len(self.kinds) - 1)
            if layout is None or layout.is_scalar or layout.owner == k:
                continue
            same = [j for j in arrays if layout.owner is not None and self.layouts[j].owner == layout.owner]
            # An index that holds arrays may find a view elsewhere each time.
            is_fixed = call.function is not operator.getitem or not any(slots_in(call.args[1]))
            if same and is_fixed and keeps_nothing(call.function):
                base, low = self.bases[same[0]]
                self.bases[k] = base, low + layout.offset - self.layouts[same[0]].offset
            else:
                self.aliases[k] = {self.base_of(j) for j in arrays}

    # ------------------------------------------------------------ what need not be made

    def simplify(self, results: set[int]) -> None:
        """Drop copies, and calls whose results are not read; the results are slots."""
        self._forward_copies(results)
        self._drop_dead_calls(results)

    def _drop_dead_calls(self, results: Iterable[int]) -> None:
        live: set[int] = set()
        self._add_live(results, live)
        for number in range(len(self.kinds) - 1, -1, -1):
            call = self.capture.calls[number]
            if self.kinds[number] == PYTHON:
                self._add_live(call.given, live)
            elif self.kinds[number] == NATIVE:
                steps, made = self.steps[number], self.made_by(number)
                if not live.isdisjoint(made) or self._matters(steps, live):
                    for step in steps:
                        self._add_live(bases_in(step), live)
                else:
                    self.kinds[number], self.steps[number] = NOTHING, []
                    self._made_by.pop(number, None)
                live.difference_update(made)

    def _matters(self, steps: Sequence[Step], live: set[int]) -> bool:
        """Tell whether steps write to what is live, or to what the machine does not make, or stop the replay."""
        for step in steps:
            for base in bases_in(step, step.run.writes):
                if base in live or base not in self.made:
                    return True
            if step.run.guard is not None:
                return True
        return False

    def _add_live(self, slots: Iterable[int], live: set[int]) -> None:
        for slot in slots:
            base = self.base_of(slot)
            if base not in live:
                live.add(base)
                if base in self.aliases:
                    self._add_live(self.aliases[base], live)

    def _forward_copies(self, results: set[int]) -> None:
        copies = [k for k in range(len(self.kinds)) if self.kinds[k] == NATIVE and self._copy(k) is not None]
        if not copies:
            return
        touched = self.touched()
        kept = {self.base_of(slot) for slot in results} | {base for of in self.aliases.values() for base in of}
        for number in copies:
            ends = self._copy(number)  # again, as what lies in one memory by now is not copied
            if ends is None or ends[0] in kept:
                continue
            source, target = ends
            if max(touched[source]) == number and min(touched[target]) == number and not self.steps[self.made[target]]:
                self.steps[number] = []
                self._merge(source, target)
                touched[target] = touched.pop(source) | touched[target]

    def touched(self) -> dict[int, set[int]]:
        """Return by which calls memory is read or written; by Python, it counts as after all others."""
        touched: dict[int, set[int]] = defaultdict(set)
        for number, call in enumerate(self.capture.calls):
            for step in self.steps[number]:
                for base in bases_in(step):
                    touched[base].add(number)
            if self.kinds[number] == PYTHON:
                for slot in (*call.given, *call.made):
                    touched[self.base_of(slot)] |= {number, len(self.kinds)}
        return touched

    def _copy(self, number: int) -> tuple[int, int] | None:
        """Return from which memory a call copies all to which other, in the same order, if that is what it does."""
        steps = self.steps[number]
        if len(steps) != 1 or len(steps[0].operands) != 2 or len(bases_in(steps[0])) != 2:
            return None
        step = steps[0]
        (source, start), (target, end) = step.operands
        if not (source in self.made and target in self.made and start == end == 0 and source != target):
            return None
        one, other = self.layouts[source], self.layouts[target]
        is_whole = step.run.flat and step.run.function == self.lowering.copy_of(one.dtype) and not one.is_scalar
        itemsize = one.dtype.itemsize
        if not is_whole or step.run.strides != (itemsize, itemsize) or other.is_scalar or one.dtype != other.dtype:
            return None
        return (source, target) if step.run.dims[0] * itemsize == bytes_of(one) == bytes_of(other) else None

    def _merge(self, source: int, target: int) -> None:
        """Let what lies in one memory lie in another, from when the first of them is made."""
        for slot, (base, low) in self.bases.items():
            if base == source:
                self.bases[slot] = target, low
        for number in range(self.made[source], len(self.steps)):
            for step in self.steps[number]:
                if source in bases_in(step):
                    moved = {source: target}
                    step.operands = tuple(
                        [(moved.get(base, base) if isinstance(base, int) else base, at) for base, at in step.operands]
                    )
        one, other = self.made.pop(source), self.made[target]
        self._made_by[one].remove(source)
        self._made_by[other].remove(target)
        self.made[target] = min(one, other)
        self._made_by[min(one, other)].append(target)

    # ------------------------------------------------------------ for what changes steps

    def forget(self, slot: int) -> None:
        """Leave out the memory of a slot, which no step reads or writes any more."""
        self._made_by[self.made.pop(slot)].remove(slot)

    def make_at(self, numbers: Iterable[int], number: int) -> None:
        """Let the memory that calls make be made by another one."""
        for other in numbers:
            for slot in self._made_by.pop(other, ()):
                self.made[slot] = number
                self._made_by[number].append(slot)

    def place_together(self, slot: int, moves: Mapping[int, tuple[int, int]], number: int) -> None:
        """Let what lies in some memories lie in that of a new slot, each at an offset, which is made by a call at last.

        Args:
            slot: whose layout has been added.
            moves: the slot, and the offset, by the slots in whose memory it lies until now.
            number: of the call.
        """
        for moved in moves:
            number = min(number, self.made[moved])
            self.forget(moved)
        for at, (base, low) in self.bases.items():
            if base in moves:
                self.bases[at] = slot, low + moves[base][1]
        for steps in self.steps[number:]:
            for step in steps:
                if any(base.__class__ is int and base in moves for base, _ in step.operands):
                    step.operands = tuple(
                        [
                            (slot, at + moves[base][1]) if base.__class__ is int and base in moves else (base, at)
                            for base, at in step.operands
                        ]
                    )
        self.bases[slot], self.made[slot] = (slot, 0), number
        self._made_by[number].append(slot)


def bytes_of(layout: Layout) -> int:
    """Return how many bytes lie between the lowest and the highest of an array."""
    strides = zip(layout.shape, layout.strides, strict=True)
    return layout.dtype.itemsize + sum([abs(s) * (n - 1) for n, s in strides])


def bases_in(step: Step, last: int | None = None) -> list[int]:
    """Return in which slots' memory the operands lie, or the last so many of them."""
    operands = step.operands if last is None else step.operands[len(step.operands) - last :]
    return [base for base, _ in operands if base.__class__ is int]
