"""Which steps run strip by strip, one after the other, so that what they share stays in the processor's cache.

Steps go over the same rows where the extents of their outermost axes have a common divisor: a row of a loop over 50
matrices is a matrix, also for one that goes over all of their elements at once, and for a product of stacks. A group of
them runs for some rows after the other. Each row must then need nothing of another one. Where the outermost axis is not
that of the loop itself, NumPy's loops are called with what they are called with anyway, so all results are the same bit
by bit, reductions too. Loops over elements are cut only where they round exactly, or between whole vectors.

A step between those of a group that does not touch what these do runs before them. What only a group uses needs memory
for one strip.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradmgr._replay.analysis import PYTHON, Analysis, bases_in
from gradmgr._replay.steps import FAILED, Step

# Elements of a strip, of one operand: 32 KiB of float64.
_STRIP = 1 << 12
# Rows that are longer do not stay in the cache together.
_LONGEST_ROW = 1 << 15
# Elements of whole vectors: where loops that may round otherwise for the rest of a vector are cut.
_VECTORS = 64
_LARGEST = 16  # bytes of an element
_MOST_WAITING = 8  # steps that may stand between those of a group
_MOST_STEPS = 32
# The numbers of strides of elementwise functions, sums of products along rows, and products of matrices, by that of
# their dims: one for each of n operands along the first, and those of the operands' own axes.
_OWN_STRIDES = {1: 0, 2: 2, 4: 6}
# By the number of dims and the operand, its own axes: which dims and strides, from the first of its own, they have.
_OWN_AXES = {
    2: (((1, 0),), ((1, 1),), ()),
    4: (((1, 0), (2, 1)), ((2, 2), (3, 3)), ((1, 4), (3, 5))),
}


class Span(NamedTuple):
    """Where an operand lies.

    Attributes:
        base: in whose memory.
        move: the bytes from one row to the next.
        low, high: between which the first row lies.
        elements: of a row, about.
        written: whether it is written.
    """

    base: Any
    move: int
    low: int
    high: int
    elements: int
    written: bool

    def is_apart(self, other: Span, rows: int) -> bool:
        """Tell whether no row of one is touched by another row of the other."""
        if not self.written and not other.written:
            return True
        if self.move == other.move > 0 and max(self.high, other.high) - min(self.low, other.low) <= self.move:
            return True
        one, two = self.range(rows), other.range(rows)
        return one[1] <= two[0] or two[1] <= one[0]

    def range(self, rows: int) -> tuple[int, int]:
        """Return between which bytes all rows lie."""
        far = self.move * (rows - 1)
        return self.low + min(0, far), self.high + max(0, far)


@dataclass
class Group:
    """Steps that run strip by strip.

    Attributes:
        rows: over which they go.
        strip: how many of them are a strip.
        local: the memory that needs to hold one strip only, with how many bytes that is.
    """

    rows: int
    strip: int
    steps: list[Step]
    local: dict[Any, int] = field(default_factory=dict)

    def words_of(self, step: Step) -> tuple[int, ...]:
        """Return what stands behind a step's description: the word of its extent, for how many rows, the moves."""
        extent, moves = _first_axis(step)
        times = extent // self.rows
        at = len(step.run.dims) + len(step.run.strides) if step.run.outer else 0
        keys = [key_of(base) for base, _ in step.operands]
        return at, times, *[0 if key in self.local else m * times for key, m in zip(keys, moves, strict=True)]


def key_of(base: Any) -> Any:
    """Return what represents a memory in a set."""
    return ("constant", id(base)) if base.__class__ is np.ndarray else base


def _first_axis(step: Step) -> tuple[int, tuple[int, ...]]:
    """Return the extent of the outermost axis, and the strides of the operands along it."""
    return step.run.outer[0] if step.run.outer else (step.run.dims[0], step.run.strides[: len(step.operands)])


def _other_axes(step: Step, k: int) -> list[tuple[int, int]]:
    """Return the extents and strides of an operand's other axes."""
    n = len(step.operands)
    axes = [(extent, moves[k]) for extent, moves in step.run.outer]
    axes.append((step.run.dims[0], step.run.strides[k]))
    if len(step.run.dims) > 1:
        axes += [(step.run.dims[d], step.run.strides[n + s]) for d, s in _OWN_AXES[len(step.run.dims)][k]]
    return axes[1:]


def _spans(step: Step, rows: int) -> list[Span]:
    extent, moves = _first_axis(step)
    times, reads = extent // rows, len(step.operands) - step.run.writes
    found = []
    for k, (base, offset) in enumerate(step.operands):
        axes = [(times, moves[k]), *_other_axes(step, k)]
        low = offset + sum([min(0, stride) * (n - 1) for n, stride in axes])
        high = offset + sum([max(0, stride) * (n - 1) for n, stride in axes])
        width = min([_LARGEST, *[abs(stride) for _, stride in axes if stride]])
        found.append(Span(key_of(base), moves[k] * times, low, high + width, (high + width - low) // width, k >= reads))
    return found


def _size(step: Step) -> int:
    return math.prod(step.run.dims) * math.prod([extent for extent, _ in step.run.outer])


def _is_long(step: Step) -> bool:
    return len(step.run.dims) in _OWN_STRIDES and _size(step) > _STRIP


def _has_rows(step: Step) -> bool:
    """Tell whether a step may run for some rows after the other."""
    if step.run.guard is not None or step.run.failure != FAILED or step.run.writes != 1:
        return False
    own = _OWN_STRIDES.get(len(step.run.dims))
    if own is None or len(step.run.strides) != len(step.operands) + own:
        return False
    return bool(step.run.outer) or len(step.run.dims) > 1 or step.run.flat


def runs_by_rows(step: Step) -> bool:
    """Tell whether a step may be one of a group."""
    return _has_rows(step) and _first_axis(step)[0] > 1


def _is_fill(step: Step) -> bool:
    """Tell whether a step writes one constant."""
    if len(step.operands) != 2 or step.operands[0][0].__class__ is not np.ndarray:
        return False
    return not any([step.run.strides[0], *[moves[0] for _, moves in step.run.outer]])


class _Open:
    """A group that grows.

    Attributes:
        ahead: the steps that run before it.
        hidden: memory that may be read besides that of the operands.
    """

    def __init__(self, step: Step, hidden: Collection[int] = ()) -> None:
        self.rows = _first_axis(step)[0]
        self.hidden = set(hidden)
        self.steps = [step]
        self.ahead: list[Step] = []
        self.strip = 1
        self._spans: dict[Any, list[tuple[Step, Span]]] = defaultdict(list)
        self._enter(step)

    def _enter(self, step: Step) -> None:
        for span in _spans(step, self.rows):
            self._spans[span.base].append((step, span))

    def is_apart(self, step: Step, hidden: Collection[int]) -> bool:
        """Tell whether a step touches nothing that is written here, and writes nothing that is touched."""
        reads = len(step.operands) - step.run.writes
        if not self._hides_nothing(step, hidden):
            return False
        for k, (base, _) in enumerate(step.operands):
            for _, span in self._spans.get(key_of(base), ()):
                if k >= reads or span.written:
                    return False
        return True

    def _hides_nothing(self, step: Step, hidden: Collection[int]) -> bool:
        """Tell whether neither a step nor the group may read, unseen, what the other writes."""
        if not self.hidden.isdisjoint(bases_in(step, step.run.writes)):
            return False
        return not any(span.written for base in hidden for _, span in self._spans.get(base, ()))

    def take(self, step: Step, hidden: Collection[int], waiting: Sequence[Step]) -> bool:
        """Take a step, before which the waiting ones are to run, if it goes over the same rows."""
        extent = _first_axis(step)[0]
        rows = math.gcd(self.rows, extent)
        shares = any(key_of(base) in self._spans for base, _ in step.operands if base.__class__ is not np.ndarray)
        if rows < 2 or len(self.steps) == _MOST_STEPS or not (shares or (rows == self.rows and _size(step) > _STRIP)):
            return False
        trial = self._with(step, rows) if self._hides_nothing(step, hidden) else None
        if trial is None:
            return False
        self.ahead = [*trial.ahead, *waiting]
        self.hidden |= set(hidden)
        self.rows, self.steps, self.strip, self._spans = trial.rows, trial.steps, trial.strip, trial._spans
        return True

    def _with(self, step: Step, rows: int) -> _Open | None:
        """Return this group and a step, over so many rows; None if rows need others, or are too long."""
        steps, ahead = list(self.steps), list(self.ahead)
        for fill in [other for other in steps if _is_fill(other)]:  # what only they touch may be filled before
            others = self._spans[key_of(fill.operands[1][0])]
            if len(others) == 1 and not _are_apart([s for _, s in others], _spans(step, rows), rows):
                steps.remove(fill)
                ahead.append(fill)
        if not steps:
            return None
        trial = _Open(steps[0])
        trial.rows, trial.steps, trial.ahead, trial._spans = rows, steps, ahead, defaultdict(list)
        for other in (*steps, step):
            spans = _spans(other, rows)
            for span in spans:
                if not _are_apart([found for _, found in trial._spans.get(span.base, ())], [span], rows):
                    return None
            for span in spans:
                trial._spans[span.base].append((other, span))
        trial.steps = [*steps, step]
        return trial if trial._has_strip() else None

    def _has_strip(self) -> bool:
        """Choose how many rows are a strip; tell whether they are short enough."""
        longest = max([span.elements for found in self._spans.values() for _, span in found if span.move] or [1])
        whole = 1
        for step in self.steps:
            if not step.run.outer and len(step.run.dims) == 1 and not step.run.exact:
                whole = max(whole, _VECTORS // math.gcd(_VECTORS, _first_axis(step)[0] // self.rows))
        self.strip = -(-max(1, _STRIP // longest) // whole) * whole
        return self.strip * longest <= max(_STRIP, _LONGEST_ROW)

    def closed(self) -> Group | None:
        """Return the group, if there is more than one strip, and some steps touch what others do."""
        many = self.strip < self.rows and any(map(self._is_shared, self._spans))
        return Group(self.rows, self.strip, self.steps) if many else None

    def _is_shared(self, base: Any) -> bool:
        """Tell whether more than one step touches a memory; constants stay in the cache anyway."""
        first, _ = self._spans[base][0]
        return base.__class__ is not tuple and any(step is not first for step, _ in self._spans[base])

    def local_memory(self, base: Any) -> int:
        """Return how many bytes of a memory a strip needs."""
        spans = [span for _, span in self._spans[base]]
        return max([span.high + span.move * (self.strip - 1) for span in spans])

    def uses(self) -> Counter[Any]:
        """Count the operands in each memory."""
        return Counter({base: len(found) for base, found in self._spans.items()})


def _are_apart(some: Iterable[Span], others: Sequence[Span], rows: int) -> bool:
    return all(one.base != other.base or one.is_apart(other, rows) for one in some for other in others)


class Strips:
    """Finds the groups among the steps of an analysis, and lets the steps of each be made by its first call.

    Args:
        seen: the slots whose memory must be there as a whole.

    Attributes:
        groups: by the identity of each of their steps.
        local: the memory that needs to hold one strip only, with how many bytes that is.
        moved: the calls whose steps others make.
    """

    def __init__(self, analysis: Analysis, seen: Collection[int]) -> None:
        self.groups: dict[int, Group] = {}
        self.local: dict[Any, int] = {}
        self.moved: set[int] = set()
        self._analysis, self._seen = analysis, seen
        steps = [step for steps in analysis.steps for step in steps]
        if not any(map(_is_long, steps)):
            return
        self._uses = Counter([key_of(base) for step in steps for base, _ in step.operands])
        run: list[tuple[int, Step]] = []
        for number, kind in enumerate(analysis.kinds):
            if kind == PYTHON:
                self._plan(run)
                run = []  # nor is a step of one that takes a product
                continue
            run += [(number, step) for step in analysis.steps[number]]
        self._plan(run)

    def _plan(self, run: Sequence[tuple[int, Step]]) -> None:
        """Find the groups among steps that run one after the other."""
        at = 0
        numbers = [number for number, _ in run]
        steps = [step for _, step in run]
        while at < len(steps):
            end = at + 1
            if _is_long(steps[at]) and _has_rows(steps[at]) and (hidden := self._hidden(steps[at])) is not None:
                found, until = self._grown(steps, at, hidden)
                group = found.closed()
                if group is not None:
                    end = until
                    self._enter(found, group)
                    self._move(numbers, steps, at, end, [*found.ahead, *group.steps])
            at = end

    def _hidden(self, step: Step) -> set[int] | None:
        """Return in which memory what a step reads may lie besides, as Python made it; None if it writes there."""
        aliases, found = self._analysis.aliases, set[int]()
        if not aliases:
            return found
        if not aliases.keys().isdisjoint(bases_in(step, step.run.writes)):
            return None
        more = aliases.keys() & set(bases_in(step))
        while more:
            found |= more
            more = set().union(*[aliases[base] for base in more if base in aliases]) - found
        return found

    def _grown(self, steps: Sequence[Step], first: int, hidden: set[int]) -> tuple[_Open, int]:
        """Return the group that begins with a step, and where those begin that come after it."""
        found, end = _Open(steps[first], hidden), first + 1
        waiting: list[Step] = []
        for at in range(first + 1, len(steps)):
            step = steps[at]
            of_step = self._hidden(step)
            if of_step is None or step.run.guard is not None or len(waiting) == _MOST_WAITING:
                break
            if _has_rows(step) and found.take(step, of_step, waiting):
                waiting, end = [], at + 1
            elif found.is_apart(step, of_step):
                waiting.append(step)
            else:
                break
        return found, end

    def _enter(self, found: _Open, group: Group) -> None:
        for base, count in found.uses().items():
            is_own = base.__class__ is not tuple and self._uses[base] == count
            if is_own and (base.__class__ is not int or (base in self._analysis.made and base not in self._seen)):
                group.local[base] = found.local_memory(base)
        self.local |= group.local
        self.groups |= dict.fromkeys(map(id, group.steps), group)

    def _move(self, numbers: list[int], steps: list[Step], at: int, end: int, ordered: Sequence[Step]) -> None:
        """Put steps into the order in which they run, as those of the call of the first, and the rest of its last."""
        first, last = numbers[at], numbers[end - 1]
        steps[at:end] = ordered
        until = end
        while until < len(steps) and numbers[until] == last:
            until += 1
        numbers[at:until] = [first] * (until - at)
        of_first = [step for number, step in zip(numbers, steps, strict=True) if number == first]
        for number in range(first + 1, last + 1):
            if self._analysis.steps[number]:
                self.moved.add(number)
                self._analysis.steps[number][:] = []
        self._analysis.make_at(range(first + 1, last + 1), first)
        self._analysis.steps[first][:] = of_first


def groups_in(steps: Sequence[Step], groups: Mapping[int, Group]) -> list[tuple[Group | None, list[Step]]]:
    """Return steps one by one, and those of a group together."""
    if not groups:
        return [(None, [step]) for step in steps]
    found: list[tuple[Group | None, list[Step]]] = []
    for step in steps:
        group = groups.get(id(step))
        if group is not None and found and found[-1][0] is group:
            found[-1][1].append(step)
        else:
            found.append((group, [step]))
    return found
