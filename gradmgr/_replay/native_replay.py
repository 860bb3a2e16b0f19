"""A replay of which the machine makes the calls that it can; the others stay lines of Python's text in between.

    def replay(v0, v1):
        try: arena = arenas.pop()
        except IndexError: arena = make_arena()
        run0, run1, v5, = arena
        v9 = empty(...)
        if (stopped := run0(v0, v1, v9)) is not None: failed(0, stopped)
        v6 = einsum("ij->i", v5)
        if (stopped := run1(v6)) is not None: failed(1, stopped)
        arenas.append(arena)
        return v9,

Here `v5` is a view of the arena, made once with it, and `v9` is in its own memory, as it leaves the replay. The
machine raises no warnings of floating-point numbers, as backward passes do not.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, CaptureError, GuardError, Layout, Slot, check, name_of, slots_in
from gradmgr._arrays.native import Machine
from gradmgr._arrays.products import Products
from gradmgr._replay.analysis import NATIVE, NOTHING, PYTHON, VIEW, Analysis, bases_in
from gradmgr._replay.call_facts import keeps_nothing
from gradmgr._replay.fusion import Fusion
from gradmgr._replay.liveness import Liveness, reads_whole
from gradmgr._replay.ordering import Delay
from gradmgr._replay.packing import Arena, packed
from gradmgr._replay.placement import LEAST_HOSTED, Assembly, Hosts, Place, Program, Segment, first_of, view_in
from gradmgr._replay.replay_text import CLEARLY, TAKE_ARENA, Writer
from gradmgr._replay.spans import Span, over_runs, peak_of
from gradmgr._replay.steps import Step, Temporary
from gradmgr._replay.strips import Strips, runs_by_rows

_LARGE = 1 << 16  # bytes
_MOST_TRIED = 32  # arrays


class NativeWriter(Writer):
    """Writes the text of one replay, and the program of the machine."""

    def __init__(
        self,
        capture: Capture,
        results: Sequence[Any],
        machine: Machine,
        products: Products | None = None,
        rehearsed: Sequence[Slot] = (),
        *,
        checked: bool = False,
    ) -> None:
        super().__init__(capture, results, 1 << 62, rehearsed)
        self.machine = machine
        self.analysis = Analysis(capture, machine)
        self.layouts = self.analysis.layouts
        self.inputs = {slot.number for slot in capture.inputs}
        returned = {slot.number for slot in slots_in(self.results)}
        self.analysis.simplify(returned)
        self.fusion = None if products is None else Fusion(self.analysis, products, returned, checked=checked)
        if self.fusion is not None:
            self.fusion.apply()
        self.last = self._last_uses()
        self._add_views_of_python()
        self.delayed = Delay(self.analysis, self._read_by_python()).moved
        self.leaving = self._leaving()
        self.last_of_memory = self._last_of_memory()
        self.apart = self._apart()
        self.leaving |= self.apart
        self.cells = self._cells()
        self.strips = Strips(self.analysis, self._read_by_python() | self.leaving | self.cells)
        if self.strips.moved:  # steps from one call to another
            self.last_of_memory = self._last_of_memory()
        self.places: dict[Any, Place] = {}
        self.nbytes = self._place()  # of the arena
        self.segments = [Segment()]
        self.lines: list[str] = []
        self.kept: dict[int, None] = {}  # the slots whose views are made with the arena, in order
        self.variables: dict[int, dict[int, None]] = defaultdict(dict)  # slots with a name in the text, by their base
        self.ends: dict[int, list[int]] = defaultdict(list)  # those bases, by the call after which nothing reads them
        self.dropped: list[str] = []
        self.fetched: set[int] = set()  # scalars of the machine's that the text names
        self.untested: dict[int, Call] = {}  # tests of layouts that are to be written, by the number of the call
        self.called: dict[int, Any] = {}  # the functions that Python calls, by their identity

    def _last_uses(self) -> dict[int, int]:
        """As for plain replays, without the calls that are not made."""
        if not hasattr(self, "analysis"):  # which comes later
            return {}
        last = {slot.number: -1 for slot in self.capture.inputs}
        for number, call in enumerate(self.capture.calls):
            if self.analysis.kinds[number] != NOTHING:
                for slot in (*call.given, *call.made):
                    last[slot] = number
        return last | {slot.number: len(self.capture.calls) for slot in slots_in(self.results)}

    def _last_of(self, slot: int) -> int:
        last = self.last_of_memory[self.analysis.base_of(slot)]
        return last if last < len(self.capture.calls) else -1

    def _plan_buffers(self) -> dict[int, int]:
        return {}

    # ------------------------------------------------------------ what Python needs

    def _add_views_of_python(self) -> None:
        """Find the slots that Python reads; a view in memory that is not the arena's is made by its call."""
        self.read: set[int] = {slot.number for slot in slots_in(self.results)}
        analysis = self.analysis
        for number in range(len(self.capture.calls) - 1, -1, -1):
            call, kind = self.capture.calls[number], analysis.kinds[number]
            if kind == PYTHON:
                self.read.update(call.given)
                self.read.update(analysis.made_by(number))
            elif kind == VIEW and call.results != call.args[0] and call.results.number in self.read:
                self.read.add(call.args[0].number)

    def _read_by_python(self) -> set[int]:
        """Return the slots in whose memory lies what Python reads, or what may be a view of it."""
        bases = {self.analysis.base_of(slot) for slot in self.read}
        return bases.union(*self.analysis.aliases.values())

    def _leaving(self) -> set[int]:
        """Return the slots whose memory must not be the arena's: of results, and of what a function may keep."""
        leaving = {slot.number for slot in slots_in(self.results)}
        for call, kind in zip(self.capture.calls, self.analysis.kinds, strict=True):
            if kind == PYTHON and not keeps_nothing(call.function):
                leaving.update(call.given)
        leaving = {k for k in leaving if self.layouts[k] is not None and not self.layouts[k].is_scalar}
        bases = {self.analysis.base_of(k) for k in leaving}
        for k in sorted(self.analysis.aliases, reverse=True):
            if self.analysis.base_of(k) in bases:
                bases |= self.analysis.aliases[k]
        return bases

    def _last_of_memory(self) -> dict[int, int]:
        """Return by the slot that owns memory after which call nothing reads it."""
        last: dict[int, int] = defaultdict(int)
        for number, when in self.last.items():
            base = self.analysis.base_of(number)
            last[base] = max(last[base], when)
        has_moved = self.delayed or (self.fusion is not None and self.fusion.has_changed)
        if has_moved:  # calls may read what others are given
            for number, steps in enumerate(self.analysis.steps):
                for base in {base for step in steps for base in bases_in(step)}:
                    last[base] = max(last[base], number)
        for k in sorted(self.analysis.aliases, reverse=True):
            for base in self.analysis.aliases[k]:
                last[base] = max(last[base], last[self.analysis.base_of(k)])
        return last

    # ------------------------------------------------------------ what is not in the arena

    def _apart(self) -> set[int]:
        """Return what is to be in its own memory, as Python makes large arrays while it is held.

        These come and go. The arena does not, so all that lies in it at some other time would be there besides. Where
        this makes the peak clearly lower, large arrays leave the arena, except those that strips may need little of,
        and runs of the machine are cut where a large array begins or ends. What Python can write into given memory
        leaves the arena wherever that makes the peak lower, as no run is cut then.
        """
        made = {base: number for base, number in self.analysis.made.items() if base not in self.leaving}
        large = {base for base in made if self.analysis.nbytes_of(base) >= _LARGE}
        pauses = [number for number, kind in enumerate(self.analysis.kinds) if kind == PYTHON]
        if not large or not pauses:
            return set()
        spans = {base: self._span(base, number) for base, number in made.items()}
        others = self._spans_of_results(pauses)
        large -= self._read_by_other_names()
        given = large.intersection(base for number in pauses for base in self.analysis.made_by(number))
        given, least = _kept_apart(given, spans, others)
        stays = self._only_by_rows(large)
        apart = {base for base in large if base not in stays or over_runs(spans[base], pauses)}
        return apart if _peak_with(apart, spans, others) < CLEARLY * least else given

    def _spans_of_results(self, pauses: Sequence[int]) -> list[Span]:
        """Return for how long what calls of Python's make in memory of their own is held."""
        return [
            self._span_of_result(call, number, k)
            for number in pauses
            for call in [self.capture.calls[number]]
            if any(self.layouts[j] is not None for j in call.given)  # an object's arrays are there anyway
            for k in call.made
            if k not in self.analysis.made and self.layouts[k] is not None
            if self.analysis.base_of(k) == k and self.layouts[k].owner in (None, k)
        ]

    def _only_by_rows(self, bases: set[int]) -> set[int]:
        """Return those of some slots whose memory is touched only by steps that may run strip by strip."""
        whole = [step for steps in self.analysis.steps for step in steps if not runs_by_rows(step)]
        return bases.difference(*map(bases_in, whole))

    def _span_of_result(self, call: Call, number: int, slot: int) -> Span:
        """Return for how long a result of Python's is held in its own memory, not in that of an argument."""
        return self._span(slot, number if self._called(call) is call.function else number + 1)

    def _span(self, base: int, number: int) -> Span:
        """Return for how long the memory of a slot is held that a call makes."""
        return Span(number, max(number, self.last_of_memory[base]), self.analysis.nbytes_of(base))

    def _read_by_other_names(self) -> set[int]:
        """Return the slots whose memory Python reads by arrays that only the arena has, or that it cannot make."""
        calls = zip(self.capture.calls, self.analysis.kinds, strict=True)
        by_text = {slot for call, kind in calls if kind in (VIEW, PYTHON) for slot in call.made}
        bases = {base for slot in self.read - by_text if (base := self.analysis.base_of(slot)) != slot}
        for base in self.analysis.made:
            layout = self.layouts[base]
            if layout.is_scalar or 0 in layout.strides or base >= len(self.capture.layouts):
                bases.add(base)
        return bases

    def _cells(self) -> set[int]:
        """Return the scalars of Python's that the machine reads, from cells of the arena."""
        return {
            base
            for steps in self.analysis.steps
            for step in steps
            for base, _ in step.operands
            if isinstance(base, int) and self.layouts[base].is_scalar and base not in self.analysis.made
        }

    # ------------------------------------------------------------ the arena

    def _place(self) -> int:
        """Choose where lies what the machine makes and what does not leave; return how large the arena is."""
        seen, liveness = self._read_by_python(), Liveness(self.analysis.steps, self.strips.groups)
        self._place_in_hosts(seen)
        spans: dict[Any, Span] = {  # cells for good: few bytes
            slot: Span(0, liveness.end, self.analysis.nbytes_of(slot)) for slot in self.cells
        }
        for base, number in self.analysis.made.items():
            if base not in self.leaving and base not in self.places:
                until = max(number, self.last_of_memory[base]) if base in seen else None
                spans[base] = liveness.span(base, number, until, self._bytes_of(base))
        for base, first in liveness.first.items():
            if base.__class__ is Temporary and base not in self.places:
                spans[base] = Span(first, liveness.last[base], self._bytes_of(base))
        return self._place_in_arena(spans, liveness)

    def _place_in_hosts(self, seen: set[int]) -> None:
        """Place what is needed before an array is written that leaves in that array, where there is room."""
        hosts = Hosts(self._hosts())
        ends: dict[int, list[tuple[Arena, int]]] = defaultdict(list)
        for number in range(len(self.capture.calls)) if hosts else ():
            found = [base for base in self.analysis.made_by(number) if base not in self.leaving and base not in seen]
            found.sort(key=self._bytes_of, reverse=True)  # the largest may need all of a host
            for base in found:
                self._host(base, max(number, self.last_of_memory[base]), hosts, ends)
            for temporary in _temporaries(self.analysis.steps[number]):
                self._host(temporary, number, hosts, ends)
            for memory, start in ends.pop(number, ()):
                memory.free(start)

    def _place_in_arena(self, spans: dict[Any, Span], liveness: Liveness) -> int:
        """Place what is not hosted; return how large the arena is."""
        over = liveness.over(spans)
        starts, nbytes = packed(list(spans.values()))
        for base, start in zip(spans, starts, strict=True):
            self.places[base] = Place(None, start)
        for base, root in over.items():
            self.places[base] = self.places[root]
        return nbytes

    def _bytes_of(self, base: Any) -> int:
        """Return how many bytes the memory of a slot, or of a Temporary, needs."""
        if base in self.strips.local:
            return self.strips.local[base]
        return base.nbytes if base.__class__ is Temporary else self.analysis.nbytes_of(base)

    def _hosts(self) -> Iterator[tuple[int, int, int]]:
        """Yield what the machine makes and what leaves at the end, with the number of the call that writes it first.

        What leaves before, into a function that may keep it, would be there for longer, beside what Python makes.
        """
        kept = {slot.number for slot in slots_in(self.results)}
        kept.update(slot for call in self.capture.calls if self._keeps_arrays(call) for slot in call.given)
        for base in set(map(self.analysis.base_of, kept)) & self.leaving & self.analysis.made.keys():
            if 0 not in self.layouts[base].strides and self.analysis.nbytes_of(base) >= LEAST_HOSTED:
                yield self.analysis.made[base], base, self.analysis.nbytes_of(base)

    def _host(self, base: Any, end: int, hosts: Hosts, ends: dict[int, list[tuple[Arena, int]]]) -> None:
        """Place something in a host until after a call, if there is one."""
        nbytes = self._bytes_of(base)
        target = self._target_in_place(base, nbytes, end)
        taken = None if target is None else hosts.take_all_of(target, nbytes)
        taken = taken or hosts.take(nbytes, end)
        if taken is not None:
            memory, self.places[base] = taken
            ends[end].append((memory, self.places[base].start))

    def _target_in_place(self, base: Any, nbytes: int, end: int) -> int | None:
        """Return the array that leaves, and that the last call to read a memory can write in its place.

        It is element by element and exact: other loops may round otherwise in place. Less of the cache is used then.
        """
        steps = self.analysis.steps[end] if end < len(self.analysis.steps) else []
        if len(steps) != 1 or not steps[0].run.flat or not steps[0].run.exact or base not in bases_in(steps[0]):
            return None
        target = steps[0].operands[-1][0]
        if target.__class__ is not int or target not in self.leaving or self.analysis.made.get(target) != end:
            return None
        is_whole = nbytes == self.analysis.nbytes_of(target) and reads_whole(steps[0], base, nbytes)
        return target if is_whole else None

    # ------------------------------------------------------------ text

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Return the compiled function; its text is its attribute `text`, and its segments `segments`."""
        for slot in self.capture.inputs:
            self._fill_cell(slot.number)
        for number, call in enumerate(self.capture.calls):
            self._write_call(number, call)
        self._test_layouts()
        self._run()
        for slot in slots_in(self.results):
            self._fetch(slot.number)
        self.lines += ["arenas.append(arena)", f"return {self._tuple(self.results)}"]
        self.segments = [segment for segment in self.segments if segment.steps]
        assembly = Assembly(self.segments, self.places, self.layouts, self.strips.groups)
        self.program = assembly.program(self.machine, self.nbytes)
        return self._compiled()  # type: ignore[no-any-return]  # a function of the scope

    def _compiled(self) -> Any:
        runs = [f"run{k}" for k in range(len(self.segments))]
        unpacked = "".join([f"{name}, " for name in (*runs, *[self._kept_name(k) for k in self.kept])])
        lines = [self._head(), *TAKE_ARENA]
        lines += [f"    {unpacked}= arena"] if unpacked else []
        for line in self.lines:
            found = line.partition("\0")
            if found[1]:
                line = self._run_line(int(found[2]))
            lines.append(f"    {line}")
        stops = [segment.stops for segment in self.segments]
        # Functions that do not hold this writer, and with it the capture.
        made = functools.partial(_made, self.program, self._views())
        self.scope |= {"arenas": [], "make_arena": made, "failed": functools.partial(_fail, stops), "empty": np.empty}
        text = "\n".join(lines)
        exec(compile(text, "<gradmgr replay>", "exec"), self.scope)  # noqa: S102  # text of our own
        replay: Any = self.scope.pop("replay")
        self.scope = {}  # or each would hold the other
        replay.text = text
        replay.segments = len(self.segments)
        replay.called = list(self.called.values())
        replay.names = [Counter(segment.names) for segment in self.segments]
        replay.nbytes = self.nbytes
        replay.fusion = None if self.fusion is None else self.fusion.counts()
        return replay

    def _machine(self) -> str:
        return self._constant(self.machine)

    def _run_line(self, number: int) -> str:
        given = ", ".join([f"v{k}" for k in self.segments[number].arguments])
        return f"if (stopped := run{number}({given})) is not None: failed({number}, stopped)"

    def _kept_name(self, slot: int) -> str:
        return f"c{slot}" if self.layouts[slot].is_scalar else f"v{slot}"

    def _write_call(self, number: int, call: Call) -> None:
        kind = self.analysis.kinds[number]
        if kind == NATIVE:
            self._write_steps(number)
        elif kind == VIEW:
            self._write_view(call)
        elif kind == PYTHON:
            if self._is_layout_test(call):
                self.untested[number] = call
                return
            if not _reads_tensor(call):
                self._test_layouts()
            self._run()
            self.called[id(call.function)] = call.function
            is_first_effect = number == self.first_effect
            for slot in (*call.given, *[slot.number for slot in self.rehearsed if is_first_effect]):
                self._fetch(slot)
            self._drop_other_names(call)
            self.lines += self._beginning(number, call, has_arena=True)
            self.lines += self._lines_of_python(number, call)
            for slot in call.made:
                self._fill_cell(slot)
                self._enter_variable(slot)
        self._drop(number)

    def _is_layout_test(self, call: Call) -> bool:
        """Tell whether a call is one that the machine can make: a test that an array of NumPy's has the same layout."""
        is_one = getattr(call.function, "tests_layout", False) and call.expected[0] is np.ndarray
        return bool(is_one) and self.machine.has("test_layouts")

    def _test_layouts(self) -> None:
        """Write the tests of layouts that are due as one call of the machine; Python repeats them where it says no.

        For each array this takes 0.02 us, and a line of text with its test 0.12.
        """
        due, self.untested = self.untested, {}
        if not due:
            return
        calls = list(due.values())
        for call in calls:
            self.called[id(call.function)] = call.function
            self._fetch(call.given[0])
        test = self._constant(self.machine.layout_test([call.expected for call in calls]))
        given = ", ".join([self._text(call.args[0]) for call in calls])
        again = self._constant(functools.partial(_check_each, calls))
        self.lines.append(f"if {test}({given}) is not None: {again}({given})")
        for number in due:
            self._drop(number)

    def _lines_of_python(self, number: int, call: Call) -> list[str]:
        """Write a call of Python's, which is given where its result goes if it takes that."""
        made = self.analysis.made_by(number)
        for base in made:
            self._make_leaving(base)
            self._fetch(base)
        return [self._into(call.function, call.args, self._text(call.results))] if made else self._lines(call)

    def _write_steps(self, number: int) -> None:
        made = self.analysis.made_by(number)
        if not self.apart.isdisjoint(made):
            self._run()
        for base in made:
            if base in self.leaving:
                self._make_leaving(base)
        segment = self.segments[-1]
        if self.analysis.steps[number] or number in self.strips.moved or number in self.delayed:
            segment.names.append(name_of(self.capture.calls[number].function))
        for step in self.analysis.steps[number]:
            segment.steps.append(step)
            for base, _ in step.operands:
                host = self.places[base].host if base.__class__ is not np.ndarray and base in self.places else base
                if host.__class__ is int:
                    segment.arguments[host] = None
                    self._make_leaving(host)

    def _make_leaving(self, base: int) -> None:
        """Write that an array that leaves is made, before what it is the host of, or it itself, is written."""
        if base in self.leaving and base in self.analysis.made and base not in self.variables:
            self.lines.append(f"v{base} = {self._new(self.layouts[base])}")
            self._enter_variable(base)

    def _new(self, layout: Layout) -> str:
        """Write a new array of a layout."""
        if layout.shape and not any(layout.strides):  # a scalar broadcast
            return f"{self._constant(np.broadcast_to)}(empty((), {self._constant(layout.dtype)}), {layout.shape!r})"
        order = sorted(range(len(layout.shape)), key=lambda k: -layout.strides[k])
        dtype = self._constant(layout.dtype)
        if order == sorted(order):
            return f"empty({layout.shape!r}, {dtype})"
        text = f"empty({tuple([layout.shape[k] for k in order])!r}, {dtype})"
        return f"{text}.transpose({tuple(np.argsort(order).tolist())!r})"

    def _write_view(self, call: Call) -> None:
        slot = call.results.number
        if slot not in self.read or call.results == call.args[0] or self.analysis.base_of(slot) in self.places:
            return
        self._test_layouts()
        self._fetch(call.args[0].number)
        self.lines += self._lines(call)
        self._enter_variable(slot)

    def _fetch(self, slot: int) -> None:
        """Make an array that the machine holds one of Python's."""
        base = self.analysis.base_of(slot)
        if base not in self.places or slot in self.cells:
            return
        self.kept[slot] = None
        if self.layouts[slot].is_scalar and slot not in self.fetched:
            self.fetched.add(slot)
            self.lines.append(f"v{slot} = c{slot}[()]")

    def _enter_variable(self, slot: int) -> None:
        """Note that the text names an array, which is to be dropped when nothing reads its memory any more."""
        base = self.analysis.base_of(slot)
        if base not in self.places and base not in self.inputs:
            if base not in self.variables:
                self.ends[self.last_of_memory[base]].append(base)
            self.variables[base][slot] = None

    def _fill_cell(self, slot: int) -> None:
        """Put a scalar of Python's where the machine reads it."""
        if slot in self.cells:
            self.kept[slot] = None
            self.lines.append(f"c{slot}[()] = v{slot}")

    def _run(self) -> None:
        """Write the run of the present segment, and begin a new one."""
        if self.segments[-1].steps or self.dropped:
            self._test_layouts()  # before the arrays are read, and dropped
        if self.segments[-1].steps:
            self.lines.append(f"\0{len(self.segments) - 1}")
            self.segments.append(Segment())
        if self.dropped:
            self.lines.append(f"del {', '.join(self.dropped)}")
            self.dropped = []

    def _drop_other_names(self, call: Call) -> None:
        """Drop, before a call that may compute over its first argument, the other names of that memory.

        Such a call is the last that reads it, and computes into new memory where another name is left.
        """
        if self._called(call) is call.function:
            return
        first = call.args[0].number
        names = self.variables.get(self.analysis.base_of(first), {})
        others = [slot for slot in names if slot != first]
        if first in names and others:
            self.lines.append(f"del {', '.join([f'v{slot}' for slot in others])}")
            for slot in others:
                del names[slot]

    def _drop(self, number: int) -> None:
        """Drop what Python made when nothing reads its memory any more, after the run that reads it."""
        gone = sorted(self.ends.pop(number, ()))
        for base in gone:
            self.dropped += [f"v{k}" for k in self.variables.pop(base)]
        ends_here = self.apart and any(map(self._is_large, gone))
        if self.dropped and (ends_here or not self.segments[-1].steps):
            self._run()

    def _is_large(self, base: int) -> bool:
        return self.layouts[base] is not None and self.analysis.nbytes_of(base) >= _LARGE

    def _views(self) -> list[tuple[int, Layout]]:
        """Return where in the arena the first elements of the arrays stand that the text names."""
        found = []
        for slot in self.kept:
            base, low = self.analysis.bases[slot]
            found.append((self.places[base].start + low + first_of(self.layouts[slot]), self.layouts[slot]))
        return found


def _kept_apart(given: Collection[int], spans: Mapping[int, Span], others: Sequence[Span]) -> tuple[set[int], int]:
    """Return what is to be in memory of its own of some slots, so that the peak is the least, and that peak.

    The largest are tried one by one, as the time that takes grows with their square.
    """
    tried = sorted(given, key=lambda base: (-spans[base].nbytes, base))[:_MOST_TRIED]
    apart: set[int] = set()
    least = _peak_with(apart, spans, others)
    for base in tried:
        peak = _peak_with(apart | {base}, spans, others)
        if peak < least:
            apart, least = apart | {base}, peak
    return apart, least


def _peak_with(apart: Collection[int], spans: Mapping[int, Span], others: Sequence[Span]) -> int:
    """Return the bytes of an arena, and of what is held at once besides it, if some slots' memory is not in it."""
    inside = [span for base, span in spans.items() if base not in apart]
    return peak_of(inside) + peak_of([*others, *[spans[base] for base in apart]])


def _made(program: Program, views: Sequence[tuple[int, Layout]]) -> tuple[Any, ...]:
    """Return what a replay takes from its arenas: functions of the machine, and arrays in memory that they know."""
    runs, arena = program.make()
    return (*runs, *[view_in(arena, start, layout) for start, layout in views])


def _reads_tensor(call: Call) -> bool:
    """Tell whether a call reads what a Tensor holds, or whether it holds something; it needs no array's layout."""
    return getattr(call.function, "reads_tensor", False)


def _check_each(calls: Sequence[Call], *arrays: Any) -> None:
    """Make calls of which each tests one array."""
    for call, array in zip(calls, arrays, strict=True):
        check(call, call.function(array))


def _fail(stops: Sequence[dict[int, Call | str]], number: int, stopped: int) -> None:
    """Raise what a stop of the machine means, given for each segment what its steps stop for."""
    if stopped == -2:
        raise GuardError("an array is not aligned in memory as NumPy's own are; give a copy of it")
    call = stops[number].get(stopped, "a loop of NumPy's has failed")
    if isinstance(call, str):
        raise CaptureError(call)
    if call.function is not operator.truth:
        raise IndexError(f"an index of the array read at {call.line} is out of bounds")
    raise GuardError(f"the truth of an array at {call.line} gave {call.expected}, and {not call.expected} now")


def _temporaries(steps: Sequence[Step]) -> list[Temporary]:
    found = [base for step in steps for base, _ in step.operands if base.__class__ is Temporary]
    return list(dict.fromkeys(found)) if found else []
