"""Where the arrays of a native replay lie, and the words that the machine reads.

What the machine makes lies in one block, the arena, in which memory serves again when nothing reads it any more. What
leaves the replay, as a result or into a function that may keep it, is in its own memory, whose address the machine
gets in each call, like that of the inputs and of what Python makes in between. Until it is written, that memory is
free for what the machine makes before, so that a replay needs little more than what it returns.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.captured_calls import Call, Layout
from gradmgr._arrays.native import Machine
from gradmgr._replay.packing import ALIGNMENT, Arena
from gradmgr._replay.steps import FAILED, Run, Step
from gradmgr._replay.strips import Group, groups_in

Array = Any

_HEAD = 7  # words of a description before its dims
_BEFORE, _PATCH = 3, 2  # words of a segment before its patches, and of each of these
# Elements that a segment goes over, from which on other threads may run meanwhile; to let them costs 100 ns.
_LONG = 1 << 14
_MOST_HOSTS = 8  # that are looked at for one array
LEAST_HOSTED = 1 << 10  # bytes: each use of what is hosted takes 24 bytes more of words


class Place(NamedTuple):
    """Where memory of the machine begins: in the arena, or in an array that is written later, which is its host."""

    host: int | None
    start: int


class Hosts:
    """Arrays that leave, in which lies what is needed before they are written.

    Args:
        hosts: the number of the call that writes each first, its slot and its bytes.
    """

    def __init__(self, hosts: Iterable[tuple[int, int, int]]) -> None:
        self._hosts = [(first, slot, Arena(room)) for first, slot, room in sorted(hosts)]
        self._firsts = [first for first, _, _ in self._hosts]

    def __len__(self) -> int:
        return len(self._hosts)

    def take(self, nbytes: int, end: int) -> tuple[Arena, Place] | None:
        """Hold so many bytes until after a call, in the host that is written soonest after it; None without room."""
        at = bisect_right(self._firsts, end) if nbytes >= LEAST_HOSTED else len(self._hosts)
        for _, slot, room in self._hosts[at : at + _MOST_HOSTS]:
            start = room.take_from_gaps(nbytes)
            if start is not None:
                return room, Place(slot, start)
        return None

    def take_all_of(self, slot: int, nbytes: int) -> tuple[Arena, Place] | None:
        """Hold so many bytes from the first of a host on; None if there is no such host, or it is held."""
        for _, host, room in self._hosts:
            if host == slot and (start := room.take_from_gaps(nbytes)) is not None:
                if not start:
                    return room, Place(slot, start)
                room.free(start)
        return None


class Segment:
    """Steps that run in one call of the machine.

    Attributes:
        steps: the steps.
        arguments: the slots of the arrays that it is given, in order, as the keys of a dict.
        names: of the functions whose calls they make.
        stops: what it means if a step stops, by the number of words before it: a guard's call, or why it has failed.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.arguments: dict[int, None] = {}
        self.names: list[str] = []
        self.stops: dict[int, Call | str] = {}


class _Patch(NamedTuple):
    """Where the address of an argument's data goes: a word of a segment's steps; and what it must be aligned to."""

    segment: int
    word: int
    offset: int
    mask: int


class _Body:
    """The words of a segment's steps.

    Attributes:
        of_arena: the numbers of the words that are addresses in the arena.
        of_steps: of those that say where a description stands.
        work: over how many elements the steps go.
    """

    def __init__(self) -> None:
        self.words: list[int] = []
        self.of_arena: list[int] = []
        self.of_steps: list[int] = []
        self.work = 0


class Program:
    """Words of the machine for a list of segments, and copies of them with their own memory.

    Args:
        machine: the machine.
        nbytes: of the arena.
        words: with 0 for the address of the arena.
        bounds: of the segments, in words.
        of_arena: bits, of which those are set that stand for words to which the address of the arena is to be added.
        keeps: what must live as long.
    """

    def __init__(
        self,
        machine: Machine,
        nbytes: int,
        words: Array,
        bounds: Sequence[tuple[int, int]],
        of_arena: Array,
        keeps: Sequence[Any],
    ) -> None:
        self.machine = machine
        self.nbytes = nbytes
        self.bounds = bounds
        self._of_arena = of_arena
        self._keeps = keeps
        self._copied = words, 0  # the words made last, and the address of the arena in them

    def make(self) -> tuple[list[Any], Any]:
        """Return functions that run the segments, in their own memory, and that arena."""
        copied, of_arena = self._copied
        nbytes = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        block = np.empty(nbytes + copied.nbytes + ALIGNMENT, np.uint8)
        address = block.ctypes.data + -block.ctypes.data % ALIGNMENT
        arena = block[address - block.ctypes.data :][:nbytes]
        words = block[address - block.ctypes.data + nbytes :][: copied.nbytes].view(np.int64)  # which keep the block
        words[:] = copied
        words[np.flatnonzero(np.unpackbits(self._of_arena))] += address - of_arena
        self._copied = words, address  # so that those before are not kept besides
        return [self.machine.function(words[start:end]) for start, end in self.bounds], arena


def _marked(numbers: Sequence[int], count: int) -> Array:
    """Return numbers below a count as bits, which take less memory."""
    bits = np.zeros(count, np.bool_)
    bits[np.array(numbers, np.int64)] = True
    return np.packbits(bits)


class Assembly:
    """Writes the words of a list of segments.

    Args:
        places: where the memory of a slot, or of a Temporary, begins.
        layouts: of slots.
        groups: those of steps that run strip by strip, by the identity of each of these.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        places: dict[Any, Place],
        layouts: Sequence[Layout],
        groups: Mapping[int, Group],
    ) -> None:
        self.segments = segments
        self.places = places
        self.layouts = layouts
        self._groups = groups
        self._words: list[int] = []  # descriptions, then segments
        self._bounds: list[tuple[int, int]] = []
        self._of_arena: list[int] = []
        self._of_steps: list[int] = []  # the words that say where a description stands
        self._patches: dict[int, list[_Patch]] = defaultdict(list)  # by the slot of what Python holds
        self._keeps: list[Any] = []
        self._alike: dict[Any, tuple[int, int]] = {}  # descriptions by their content
        self._of_runs: dict[int, tuple[int, int]] = {}  # and by the identity of a run, which a segment holds

    def program(self, machine: Machine, nbytes: int) -> Program:
        """Return the program, with an arena of so many bytes."""
        self._assemble()
        words, of_steps = np.array(self._words, np.int64), np.array(self._of_steps, np.int64)
        words[of_steps] -= of_steps
        of_arena = _marked(self._of_arena, len(words))
        keeps = list({id(kept): kept for kept in self._keeps if kept is not None}.values())
        return Program(machine, nbytes, words, self._bounds, of_arena, keeps)

    # ------------------------------------------------------------ words

    def _assemble(self) -> None:
        bodies = [self._body(number) for number in range(len(self.segments))]
        given: set[int] = set()
        starts, at = [], len(self._words)
        for segment, body in zip(self.segments, bodies, strict=True):
            segment.arguments = dict.fromkeys([slot for slot in segment.arguments if slot not in given])
            given.update(segment.arguments)
            head = _BEFORE + _PATCH * sum([len(self._patches[slot]) for slot in segment.arguments])
            starts.append(at + head)
            self._bounds.append((at, at + head + len(body.words)))
            at += head + len(body.words)
        for segment, start, body in zip(self.segments, starts, bodies, strict=True):
            self._write_head(segment, start, starts, body.work)
            self._of_arena += [start + word for word in body.of_arena]
            self._of_steps += [start + word for word in body.of_steps]
            self._words += body.words

    def _write_head(self, segment: Segment, start: int, starts: list[int], work: int) -> None:
        """Write what stands before the steps of a segment: where the data of its arguments go, in all segments."""
        begin = len(self._words)
        size = start - begin
        self._words += [(size - _BEFORE) // _PATCH, int(work >= _LONG), size]
        for number, slot in enumerate(segment.arguments):
            for patch in self._patches[slot]:
                word = starts[patch.segment] + patch.word - begin
                self._words += [number | patch.mask << 24 | word << 32, patch.offset]

    def _body(self, number: int) -> _Body:
        """Return the words of a segment's steps."""
        body = _Body()
        segment = self.segments[number]
        for group, steps in groups_in(segment.steps, self._groups):
            if group is not None:
                body.words += [len(steps), group.rows, group.strip]
            for step in steps:
                if step.run.guard is not None or step.run.failure != FAILED:
                    segment.stops[len(body.words)] = step.run.guard or step.run.failure
                self._append(step, number, body, group)
        body.words.append(0)
        return body

    def _append(self, step: Step, segment: int, body: _Body, group: Group | None) -> None:
        at, elements = self._description(step, group)
        words = body.words
        body.of_steps.append(len(words))
        body.work += elements
        words.append(at)
        for k, (base, offset) in enumerate(step.operands):
            if base.__class__ is np.ndarray:
                words.append(base.__array_interface__["data"][0] - first_of(base) + offset)
                self._keeps.append(base)
                continue
            slot, start = self.places.get(base) or (base, 0)
            if slot is None:
                body.of_arena.append(len(words))
                words.append(start + offset)
            else:
                moved = start + offset - self._first(slot)
                self._patches[slot].append(_Patch(segment, len(words), moved, step.run.alignments[k] - 1))
                words.append(0)

    def _first(self, slot: int) -> int:
        """Return how far the first element of a slot's array lies behind its lowest byte."""
        layout = self.layouts[slot]
        return first_of(layout) if layout.strides and min(layout.strides) < 0 else 0

    def _description(self, step: Step, group: Group | None) -> tuple[int, int]:
        """Return which word begins the description of a step, which many share, and over how many elements it goes."""
        found = self._of_runs.get(id(step.run)) if group is None else None
        if found is None:
            found = self._described(step, () if group is None else group.words_of(step))
            self._keeps.append(step.run.keeps)
            if group is None:
                self._of_runs[id(step.run)] = found
        return found

    def _described(self, step: Step, behind: tuple[int, ...]) -> tuple[int, int]:
        """Return the same, given what follows the description of a step in a group."""
        run, n = step.run, len(step.operands)
        key = run.function, run.context, run.auxdata, n, run.dims, run.strides, run.outer, behind
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = len(self._words), _elements(run)
            self._words += [*key[:4], len(run.dims), len(run.strides), len(run.outer), *run.dims, *run.strides]
            self._words += [extent for extent, _ in run.outer]
            for _, moves in run.outer:
                self._words += moves
            if behind:
                self._words += [_HEAD + behind[0], *behind[1:]]
        return found


def first_of(layout: Layout | np.ndarray[Any, Any]) -> int:
    """Return how far the first element of an array, or layout, lies behind its lowest byte."""
    first = 0
    for n, stride in zip(layout.shape, layout.strides, strict=True):
        first -= min(0, stride) * (n - 1)
    return first


def view_in(arena: Any, start: int, layout: Layout) -> Any:
    """Return the array that lies in the arena, with its first element there."""
    return np.ndarray(layout.shape, layout.dtype, arena, start, layout.strides)


def _elements(run: Run) -> int:
    return math.prod(run.dims) * math.prod([extent for extent, _ in run.outer])
