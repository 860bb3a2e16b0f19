"""Where the arrays of a native replay lie, and the words that the machine reads.

What the machine makes lies in one block, the arena, in which memory serves again when nothing reads it any more. What
leaves the replay, as a result or into a function that may keep it, is in memory of its own, which the machine is told
in each call, like that of the inputs and of what Python makes in between. Until it is written, that memory is free for
what the machine makes before, so that a replay needs little more than what it returns.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.captured import Call, Layout
from gradmgr._arrays.native import Machine
from gradmgr._arrays.steps import Step

Array = Any

_ALIGNMENT = 64  # bytes: of a cache line
_OUTER = 7  # the word of a step that tells how many dimensions are around it
_PATCH = 3  # words of a patch; before the patches stand as many words
# Items of a strip: 32 KiB of float64.
_STRIP = 1 << 12
_LARGEST = 16  # bytes of an element
# Elements that a segment goes over, from which on other threads may run meanwhile; to let them costs 100 ns.
_LONG = 1 << 14
_MOST_HOSTS = 8  # that are looked at for one array
_LEAST_HOSTED = 1 << 10  # bytes: each use of what is hosted takes 24 bytes more of words


class Place(NamedTuple):
    """Where memory of the machine begins: in the arena, or in an array that is written later, which is its host."""

    host: int | None
    start: int


class Arena:
    """A plan of one block of memory, by first fit.

    Args:
        nbytes: how large it is to begin with.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes // _ALIGNMENT * _ALIGNMENT
        # Start and end of what is free below nbytes, sorted.
        self._gaps: list[tuple[int, int]] = [(0, self.nbytes)] if self.nbytes else []
        self._sizes: dict[int, int] = {}  # of what is held, by its start

    def take(self, nbytes: int) -> int:
        """Return where so many bytes are free, and hold them; the block grows where there is no room."""
        low = self.take_from_gaps(nbytes)
        if low is None:
            low = self.nbytes
            if self._gaps and self._gaps[-1][1] == self.nbytes:  # which is too short, and ends where nothing follows
                low = self._gaps.pop()[0]
            self._sizes[low] = _aligned(nbytes)
            self.nbytes = low + _aligned(nbytes)
        return low

    def take_from_gaps(self, nbytes: int) -> int | None:
        """Return where so many bytes are free, and hold them; None where there is no room."""
        nbytes = _aligned(nbytes)
        for k, (low, high) in enumerate(self._gaps):
            if high - low >= nbytes:
                self._gaps[k : k + 1] = [(low + nbytes, high)] if high - low > nbytes else []
                self._sizes[low] = nbytes
                return low
        return None

    def free(self, start: int) -> None:
        """Let go of what begins there."""
        end = start + self._sizes.pop(start)
        k = bisect_left(self._gaps, (start, end))
        if k < len(self._gaps) and self._gaps[k][0] == end:
            end = self._gaps.pop(k)[1]
        if k and self._gaps[k - 1][1] == start:
            k -= 1
            start = self._gaps.pop(k)[0]
        self._gaps.insert(k, (start, end))


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


class Memories:
    """A plan of the arena, and of arrays that leave as hosts of what is needed before they are written.

    Args:
        hosts: those arrays: the number of the call that writes them first, their slots and their bytes.
    """

    def __init__(self, hosts: Iterable[tuple[int, int, int]]) -> None:
        self.arena = Arena()
        self._hosts = [(first, slot, Arena(room)) for first, slot, room in sorted(hosts)]
        self._firsts = [first for first, _, _ in self._hosts]

    def take(self, nbytes: int, end: int) -> tuple[Arena, Place]:
        """Hold so many bytes until after a call: in the host that is written soonest after it, if there is room."""
        at = bisect_right(self._firsts, end) if nbytes >= _LEAST_HOSTED else len(self._hosts)
        for _, slot, room in self._hosts[at : at + _MOST_HOSTS]:
            start = room.take_from_gaps(nbytes)
            if start is not None:
                return room, Place(slot, start)
        return self.arena, self.take_in_arena(nbytes)

    def take_in_arena(self, nbytes: int) -> Place:
        """Hold so many bytes of the arena."""
        return Place(None, self.arena.take(nbytes))


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


class Program:
    """Words of the machine for a list of segments, and copies of them with memory of their own.

    Args:
        machine: the machine.
        nbytes: of the arena.
        words: with 0 for the address of the arena, and of the words themselves.
        bounds: of the segments, in words.
        of_arena: the numbers of the words to which the address of the arena is to be added.
        of_words: likewise, that of the words.
        keeps: what must live as long.
    """

    def __init__(
        self,
        machine: Machine,
        nbytes: int,
        words: Array,
        bounds: Sequence[tuple[int, int]],
        of_arena: Array,
        of_words: Array,
        keeps: Sequence[Any],
    ) -> None:
        self.machine = machine
        self.nbytes = nbytes
        self.bounds = bounds
        self._of_arena = of_arena
        self._of_words = of_words
        self._keeps = keeps
        self._copied = words, 0, 0  # the words made last, and the addresses in them: of the arena, and of the words

    def make(self) -> tuple[list[Any], Any]:
        """Return functions that run the segments, in memory of their own, and that arena."""
        copied, of_arena, of_words = self._copied
        nbytes = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
        block = np.empty(nbytes + copied.nbytes + _ALIGNMENT, np.uint8)
        address = block.ctypes.data + -block.ctypes.data % _ALIGNMENT
        arena = block[address - block.ctypes.data :][:nbytes]
        words = block[address - block.ctypes.data + nbytes :][: copied.nbytes].view(np.int64)  # which keep the block
        words[:] = copied
        words[self._of_arena] += address - of_arena
        words[self._of_words] += address + nbytes - of_words
        self._copied = words, address, address + nbytes  # so that those before are not kept besides
        return [self.machine.function(words[start:end]) for start, end in self.bounds], arena


class Assembly:
    """Writes the words of a list of segments.

    Args:
        places: where the memory of a slot, or of a Temporary, begins.
        layouts: of slots.
        seen: the slots whose memory Python reads or writes too.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        places: dict[Any, Place],
        layouts: Sequence[Layout],
        seen: Set[int],
    ) -> None:
        self.segments = segments
        self.places = places
        self.layouts = layouts
        self._seen = seen
        self._words: list[int] = []
        self._bounds: list[tuple[int, int]] = []
        self._of_arena: list[int] = []
        self._of_words: list[int] = []
        self._patches: dict[int, list[_Patch]] = defaultdict(list)  # by the slot of what Python holds
        self._keeps: list[Any] = []
        self._alike: dict[Any, tuple[list[int], list[int]]] = {}

    def program(self, machine: Machine, nbytes: int) -> Program:
        """Return the program, with an arena of so many bytes."""
        self._assemble()
        words = np.array(self._words, np.int64)
        of_arena, of_words = np.array(self._of_arena, np.int32), np.array(self._of_words, np.int32)
        keeps = list({id(kept): kept for kept in self._keeps if kept is not None}.values())
        return Program(machine, nbytes, words, self._bounds, of_arena, of_words, keeps)

    # ------------------------------------------------------------ words

    def _assemble(self) -> None:
        bodies = [self._body(number) for number in range(len(self.segments))]
        given: set[int] = set()
        starts, at = [], 0
        for segment, (words, _) in zip(self.segments, bodies, strict=True):
            segment.arguments = dict.fromkeys([slot for slot in segment.arguments if slot not in given])
            given.update(segment.arguments)
            head = _PATCH + _PATCH * sum([len(self._patches[slot]) for slot in segment.arguments])
            starts.append(at + head)
            self._bounds.append((at, at + head + len(words)))
            at += head + len(words)
        for segment, start, (words, arena) in zip(self.segments, starts, bodies, strict=True):
            self._write_head(segment, start, starts)
            self._of_arena += [start + word for word in arena]
            self._words += words

    def _write_head(self, segment: Segment, start: int, starts: list[int]) -> None:
        """Write what stands before the steps of a segment: where the data of its arguments go, in all segments."""
        work = sum([_elements(step) for step in segment.steps])
        size = start - len(self._words)
        self._words += [size // _PATCH - 1, int(work >= _LONG), size]
        for number, slot in enumerate(segment.arguments):
            for patch in self._patches[slot]:
                self._of_words.append(len(self._words) + 1)
                self._words += [number | patch.mask << 32, 8 * (starts[patch.segment] + patch.word), patch.offset]

    def _body(self, number: int) -> tuple[list[int], list[int]]:
        """Return the words of a segment's steps, and which of them are addresses in the arena."""
        words: list[int] = []
        arena: list[int] = []
        segment = self.segments[number]
        for group in _groups(segment.steps, self.places):
            if len(group) > 1:
                words += [-4, len(group), group[0].dims[0], _STRIP]
                alone = _of_one_strip(group, self._uses, self.places)
            for step in group:
                at = len(words)
                if step.guard is not None or step.failure != Step.failure:
                    segment.stops[at] = step.guard or step.failure
                self._append(step, number, words, arena)
                if len(group) > 1:
                    words[at + _OUTER] = sum(
                        [1 << k for k, (base, _) in enumerate(step.operands) if _key(base) in alone]
                    )
        return [*words, 0], arena

    @functools.cached_property
    def _uses(self) -> Counter[Any]:
        """How many operands lie in each memory; many programs have no strips, and need not know."""
        return _uses([step for segment in self.segments for step in segment.steps], self._seen)

    def _append(self, step: Step, segment: int, words: list[int], arena: list[int]) -> None:
        head, tail = self._around(step)
        words += head
        for k, (base, offset) in enumerate(step.operands):
            if base.__class__ is np.ndarray:
                words.append(base.__array_interface__["data"][0] - first_of(base) + offset)
                self._keeps.append(base)
                continue
            slot, start = self.places.get(base) or (base, 0)
            if slot is None:
                arena.append(len(words))
                words.append(start + offset)
            else:
                moved = start + offset - self._first(slot)
                self._patches[slot].append(_Patch(segment, len(words), moved, step.alignments[k] - 1))
                words.append(0)
        words += tail
        self._keeps.append(step.keeps)

    def _first(self, slot: int) -> int:
        """Return how far the first element of a slot's array lies behind its lowest byte."""
        layout = self.layouts[slot]
        return first_of(layout) if layout.strides and min(layout.strides) < 0 else 0

    def _around(self, step: Step) -> tuple[list[int], list[int]]:
        """Return the words of a step before its operands and after them, which many steps share."""
        n = len(step.operands)
        key = step.function, step.context, step.auxdata, n, step.dims, step.strides, step.outer
        found = self._alike.get(key)
        if found is None:
            tail = [*step.dims, *step.strides, *[extent for extent, _ in step.outer]]
            for _, moves in step.outer:
                tail += moves
            head = [step.function, step.context, step.auxdata, n, len(step.dims), len(step.strides), len(step.outer)]
            found = self._alike[key] = [1 + len(head) + n + len(tail), *head], tail
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


def _key(base: Any) -> Any:
    """Return what stands for a memory in a set."""
    return ("constant", id(base)) if isinstance(base, np.ndarray) else base


def _uses(steps: Iterable[Step], seen: Iterable[int]) -> Counter[Any]:
    """Count how many operands lie in each memory; what Python sees counts as one more."""
    return Counter([*seen, *[_key(base) for step in steps for base, _ in step.operands]])


def _elements(step: Step) -> int:
    return math.prod(step.dims) * math.prod([extent for extent, _ in step.outer])


def _groups(steps: Sequence[Step], places: Mapping[Any, Place]) -> list[list[Step]]:
    """Return steps one by one, and long flat ones that can run strip by strip, one after the other, together."""
    groups: list[list[Step]] = []
    of_last: dict[Any, list[_Operand]] = {}  # by memory, the operands of the last group, if it runs in strips
    for step in steps:
        operands = _flat_operands(step, places) if _runs_in_strips(step) else []
        if operands and of_last and groups[-1][0].dims == step.dims and _keeps_to_strips(operands, of_last):
            groups[-1].append(step)
        else:
            groups.append([step])
            of_last = {}
        for operand in operands:
            of_last.setdefault(operand.memory, []).append(operand)
    return groups


def _runs_in_strips(step: Step) -> bool:
    return step.flat and step.dims[0] > _STRIP


def _keeps_to_strips(operands: Sequence[_Operand], of_group: Mapping[Any, Sequence[_Operand]]) -> bool:
    """Tell whether a step goes over the same elements as those of a group, so that each strip needs that strip only."""
    return all(
        one.start == two.start and one.stride == two.stride
        for two in operands
        for one in of_group.get(two.memory, ())
        if (one.written or two.written) and one.overlaps(two)
    )


class _Operand(NamedTuple):
    """Where a flat operand lies: what of, from which byte to which; the arena is one memory, as is each host."""

    base: Any
    memory: Any
    start: int
    stride: int
    low: int
    high: int
    written: bool

    def overlaps(self, other: _Operand) -> bool:
        return bool(self.memory == other.memory) and self.low < other.high and other.low < self.high


def _flat_operands(step: Step, places: Mapping[Any, Place]) -> list[_Operand]:
    reads, n = len(step.operands) - step.writes, step.dims[0]
    found = []
    for k, ((base, offset), stride) in enumerate(zip(step.operands, step.strides, strict=True)):
        key = _key(base)
        memory, first = places.get(key) or (key, 0)
        start = offset + first
        low = start + min(0, stride) * (n - 1)
        high = start + max(0, stride) * (n - 1) + (abs(stride) or _LARGEST)
        found.append(_Operand(key, "arena" if memory is None else memory, start, stride, low, high, k >= reads))
    return found


def _of_one_strip(group: Sequence[Step], uses: Counter[Any], places: Mapping[Any, Place]) -> set[Any]:
    """Return whose planned memory nothing outside of a group uses, or shares with what is used elsewhere.

    It needs room for one strip. What lies there in turn does so within each strip.
    """
    inside = _uses(group, ())
    alone = {base for base, count in inside.items() if base in places and uses[base] == count}
    operands = [operand for step in group for operand in _flat_operands(step, places)]
    while True:
        others = [operand for operand in operands if operand.base not in alone]
        shared = {one.base for one in operands if one.base in alone and any(map(one.overlaps, others))}
        if not shared:
            return alone
        alone -= shared
