"""The results of a profile: events, their averages, and lists of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from gradmgr._engine.display import Text
from gradmgr._engine.observers import SourceLocation
from gradmgr.profiler._collect import BACKWARD, OP, REGION, VJP, Frames, Node, Profiler
from gradmgr.profiler._table import duration, format_table
from gradmgr.profiler._trace import trace_of

# torch's numbers for the kinds of events: an operation, its derivative, a region of the user's.
_SCOPES = ((OP, 0), (VJP, 1), (BACKWARD, 1), (REGION, 7))
_METRICS = ("self_cpu_time_total", "self_cuda_time_total", "self_device_time_total")


class Interval:
    """A time span in microseconds since the profile began.

    >>> from gradmgr.profiler import Interval
    >>> Interval(1.5, 4.0).elapsed_us()
    2.5
    """

    __slots__ = ("end", "start")

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"Interval({self.start:.3f}, {self.end:.3f})"

    def elapsed_us(self) -> float:
        """Return its length."""
        return self.end - self.start


class _Timed:
    """What events and their averages have in common: times in microseconds and how they are written."""

    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    device_time_total: float
    self_device_time_total: float

    @property
    def cpu_time(self) -> float:
        """Time on the CPU of one call, in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Time on the GPU of one call, in microseconds."""
        return self.device_time_total / self.count if self.count else 0.0

    cuda_time = device_time

    @property
    def cuda_time_total(self) -> float:
        """The same as `device_time_total`."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """The same as `self_device_time_total`."""
        return self.self_device_time_total

    @property
    def cpu_time_str(self) -> str:
        """`cpu_time` with its unit."""
        return duration(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        """`cpu_time_total` with its unit."""
        return duration(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """`self_cpu_time_total` with its unit."""
        return duration(self.self_cpu_time_total)

    @property
    def device_time_str(self) -> str:
        """`device_time` with its unit."""
        return duration(self.device_time)

    @property
    def device_time_total_str(self) -> str:
        """`device_time_total` with its unit."""
        return duration(self.device_time_total)

    @property
    def self_device_time_total_str(self) -> str:
        """`self_device_time_total` with its unit."""
        return duration(self.self_device_time_total)


class _EventTree:
    """How the events of a profile are nested, by their numbers.

    Each event refers to the tree. The tree refers weakly to the events and keeps their attributes, so that it can make
    an event again. If events referred to their parents and children, these reference cycles would keep every profile
    in memory until the cyclic garbage collector runs.
    """

    def __init__(
        self,
        attributes: Iterable[dict[str, Any]] = (),
        parents: Iterable[int | None] = (),
        children: Iterable[list[int]] = (),
    ) -> None:
        self._attributes = list(attributes)
        self._parents = list(parents)
        self._children = list(children)
        self._alive: list[Callable[[], FunctionEvent | None]] = [_no_event] * len(self._attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _EventTree, (self._attributes, self._parents, self._children)

    def add(self, event: FunctionEvent, parent: FunctionEvent | None) -> None:
        """Add an event; its number must be the next."""
        if parent is not None:
            self._children[parent.id - 1].append(event.id)
        self._attributes.append(event.__dict__)
        self._parents.append(None if parent is None else parent.id)
        self._children.append([])
        self._alive.append(weakref.ref(event))
        event._tree = self

    def event(self, number: int) -> FunctionEvent:
        """Return the event with this number: the same object as before while it is referenced."""
        event = self._alive[number - 1]()
        if event is None:
            event = object.__new__(FunctionEvent)
            event.__dict__ = self._attributes[number - 1]
            event._tree = self
            self._alive[number - 1] = weakref.ref(event)
        return event

    def parent(self, number: int) -> FunctionEvent | None:
        """Return the parent of the event with this number."""
        parent = self._parents[number - 1]
        return None if parent is None else self.event(parent)

    def children(self, number: int) -> list[FunctionEvent]:
        """Return the children of the event with this number."""
        return [self.event(child) for child in self._children[number - 1]]


def _no_event() -> None:
    """Replace the weak reference of an event that does not exist yet."""


class FunctionEvent(_Timed):
    """One call of an operation, one derivative, one backward, or one region of the user's.

    Times are in microseconds, memory in bytes. `name` (also `key`) is the operation's, with "_backward" for
    its derivative; `sequence_nr` is the same for both, -1 where nothing recorded it. `time_range` counts from the
    begin of the profile. `cpu_parent` and `cpu_children` give the nesting.

    `raised` tells that it ended with an exception. The time of that is not known, so its time is that of its
    children.

    >>> from gradmgr import profiler, tensor
    >>> with profiler.profile() as prof, profiler.record_function("step"):
    ...     y = tensor([1.0, 2.0]) * 2.0
    >>> step, multiply = prof.function_events
    >>> multiply.cpu_parent is step, multiply.time_range.elapsed_us() <= step.time_range.elapsed_us()
    (True, True)
    """

    __slots__ = ("_tree",)

    _tree: _EventTree
    count = 1

    def __init__(self, node: Node, number: int, began: int, stack: list[str]) -> None:
        self.id = number
        self.name = self.key = self.trace_name = node.name
        self.time_range = Interval((node.start - began) / 1e3, ((node.end or 0) - began) / 1e3)
        self.thread = node.thread.number
        self.thread_name = node.thread.name
        self.fwd_thread = None if node.forward is None else node.forward.thread.number
        self.sequence_nr = node.sequence
        self.scope = dict(_SCOPES)[node.kind]
        self.is_user_annotation = node.kind is REGION
        self.is_async = node.is_async
        self.raised = node.raised
        self.args = node.args
        self.input_shapes = [list(shape) for shape in node.shapes]
        self.stack = stack
        self.module_hierarchy = node.modules
        self.flops = node.flops
        self.cpu_memory_usage = self.device_memory_usage = 0
        self.self_cpu_memory_usage, self.self_device_memory_usage = node.memory, node.device_memory
        self.device_index = -1  # of the GPU it was timed on
        self.device_range: Interval | None = None
        if node.device is not None:
            self.device_index, begin, long = node.device
            self.device_range = Interval(begin, begin + long)

    @property
    def cpu_parent(self) -> FunctionEvent | None:
        """The innermost event around it; None if it is not nested."""
        return self._tree.parent(self.id)

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """The events directly inside it, in the order in which they began."""
        return self._tree.children(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._tree.event, (self.id,)

    def __repr__(self) -> str:
        return (
            f"<FunctionEvent id={self.id} name={self.name} cpu_time={self.cpu_time_str} "
            f"self_cpu_time={self.self_cpu_time_total_str} thread={self.thread} seq_nr={self.sequence_nr} "
            f"input_shapes={self.input_shapes}>"
        )

    def _add_up_children(self) -> None:
        """Compute times, memory and FLOPs from those of the children, which are complete."""
        children = self.cpu_children
        self.cpu_time_total = self.time_range.elapsed_us()
        self.self_cpu_time_total = self.cpu_time_total - _covered_time(self.time_range, children)
        if any(child.scope == 0 for child in children):
            # A vjp has the operations of its rule as children, a Function those of its forward: these have the numbers.
            self.flops = self.self_cpu_memory_usage = self.self_device_memory_usage = 0
        self.cpu_memory_usage = self.self_cpu_memory_usage + sum(child.cpu_memory_usage for child in children)
        self.device_memory_usage = self.self_device_memory_usage + sum(c.device_memory_usage for c in children)
        of_children = sum(child.device_time_total for child in children)
        self.device_time_total = (
            of_children if self.device_range is None else max(of_children, self.device_range.elapsed_us())
        )
        self.self_device_time_total = self.device_time_total - of_children


def _covered_time(span: Interval, children: list[FunctionEvent]) -> float:
    """Return how much of a time span its children cover; those of coroutines may overlap."""
    total, reached = 0.0, span.start
    for child in children:  # in the order in which they began
        begin, end = max(child.time_range.start, reached), min(child.time_range.end, span.end)
        if end > begin:
            total += end - begin
            reached = end
    return total


class FunctionEventAvg(_Timed):
    """Events of one name, or one name, shapes and stack, added up; `cpu_time` is the average of a call.

    >>> from gradmgr import profiler, tensor
    >>> with profiler.profile() as prof:
    ...     for _ in range(3):
    ...         y = tensor([1.0, 2.0]) * 2.0
    >>> [average] = prof.key_averages()
    >>> average.key, average.count
    ('multiply', 3)
    """

    def __init__(self) -> None:
        self.key = ""
        self.count = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.device_time_total = self.self_device_time_total = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = 0
        self.device_memory_usage = self.self_device_memory_usage = 0
        self.flops = 0
        self.input_shapes: Any = ""
        self.stack: list[str] = []
        self.scope = 0
        self.cpu_parent: FunctionEvent | None = None
        self.is_async = self.is_user_annotation = False

    def add(self, other: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        """Add an event, or another average."""
        if not self.count:
            self.key = self.key or other.key
            self.scope, self.cpu_parent = other.scope, other.cpu_parent
            self.is_async, self.is_user_annotation = other.is_async, other.is_user_annotation
        self.count += other.count
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def __iadd__(self, other: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        return self.add(other)

    def __repr__(self) -> str:
        return (
            f"<FunctionEventAvg key={self.key} count={self.count} self_cpu_time={self.self_cpu_time_total_str} "
            f"cpu_time={self.cpu_time_str} self_cuda_time={self.self_device_time_total_str} "
            f"cuda_time={self.device_time_str} input_shapes={self.input_shapes} "
            f"cpu_memory_usage={self.cpu_memory_usage} cuda_memory_usage={self.device_memory_usage}>"
        )


_SUMMED = (
    *("cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total"),
    *("cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage", "flops"),
)


class EventList(list[Any]):
    """Events, or averages of them.

    >>> from gradmgr import profiler, tensor
    >>> with profiler.profile() as prof:
    ...     y = tensor([1.0, 2.0]) * 2.0
    >>> [event.name for event in prof.function_events]
    ['multiply']
    """

    def __init__(self, events: Iterable[Any] = (), *, shown: frozenset[str] = frozenset(), wall: int = 0) -> None:
        super().__init__(events)
        self.shown = shown  # the columns to show: "shapes", "stack", "memory", "flops", "device"
        self._wall = wall

    def __str__(self) -> str:
        return str(self.table())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all self times, in microseconds."""
        return float(sum(event.self_cpu_time_total for event in self))

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Write the events as a table.

        Args:
            sort_by: what to sort by, the largest first: `count`, or a time or memory such as `cpu_time`,
                `cpu_time_total`, `self_cpu_time_total`, `cuda_time_total`, `cpu_memory_usage`, `flops`.
            row_limit: rows at most; -1 for all.
            max_src_column_width: width at most of the source locations.
            max_name_column_width: width at most of the names.
            max_shapes_column_width: width at most of the shapes.
            header: a line above the table.
            top_level_events_only: only events that have no parent.
            time_unit: "us", "ms" or "s" for all times; by default what suits each.

        Raises:
            ValueError: `sort_by` or `time_unit` is not known.
        """
        widths = (max_name_column_width, max_shapes_column_width, max_src_column_width)
        return Text(format_table(self, sort_by, row_limit, widths, header, top_level_events_only, time_unit))

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Add up the events of each name.

        Args:
            group_by_input_shape: tell events of other input shapes apart; needs `record_shapes=True`.
            group_by_stack_n: tell events of other places in the program apart, by so many of the innermost
                lines; needs `with_stack=True`.
        """
        found: dict[Any, FunctionEventAvg] = {}
        for event in self:
            shapes = str(event.input_shapes) if group_by_input_shape else ""
            stack = event.stack[:group_by_stack_n] if group_by_stack_n > 0 else []
            key = (event.key, event.scope, shapes, tuple(stack))
            average = found.get(key)
            if average is None:
                average = found[key] = FunctionEventAvg()
                average.input_shapes = event.input_shapes if group_by_input_shape else ""
                average.stack = stack
            average.add(event)
        shown = self.shown - {"shapes"} if not group_by_input_shape else self.shown
        shown = shown - {"stack"} if group_by_stack_n <= 0 else shown
        return EventList(found.values(), shown=shown, wall=self._wall)

    def total_average(self) -> FunctionEventAvg:
        """Add up all events."""
        total = FunctionEventAvg()
        for event in self:
            total.add(event)
        total.key = "Total"
        return total

    def export_chrome_trace(self, path: Any) -> None:
        """Write a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

        Each thread is a track; arrows lead from each operation to its derivative. Where the GPU was timed,
        it has a track too.
        """
        import json  # deferred, as it takes 2 ms to import

        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(trace_of(self, self._wall)))  # json.dump leaves reference cycles

    def export_stacks(self, path: Any, metric: str = "self_cpu_time_total") -> None:
        """Write one line for each event with a stack, "outermost;...;innermost;operation microseconds".

        That is what flame graph programs read. Needs `with_stack=True`.

        Args:
            path: the file.
            metric: `self_cpu_time_total` or `self_device_time_total` (`self_cuda_time_total`).

        Raises:
            ValueError: another metric.
        """
        if metric not in _METRICS:
            raise ValueError(f"export_stacks: metric must be one of {', '.join(_METRICS)}; found {metric!r}")
        lines = []
        for event in self:
            value = int(getattr(event, metric))
            if event.stack and value > 0:
                frames = [*reversed(event.stack), event.name]
                lines.append(";".join(f.replace(";", ",").replace(" ", "_") for f in frames) + f" {value}\n")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)


def events_of(profiler: Profiler, shown: frozenset[str]) -> EventList:
    """Return the events of a profile, in the order in which they began."""
    nodes = sorted(profiler.nodes, key=lambda node: node.start)
    stacks: dict[Frames, list[str]] = {(): []}
    lines: dict[tuple[Any, int], str] = {}
    made: dict[Node, FunctionEvent] = {}
    tree = _EventTree()
    for number, node in enumerate(nodes, 1):
        frames = node.forward.frames if node.forward is not None else node.frames
        if node.forward is not None:
            node.modules = node.forward.modules
        if frames not in stacks:
            stacks[frames] = [_line(frame, lines) for frame in frames]
        event = made[node] = FunctionEvent(node, number, profiler.started, stacks[frames])
        tree.add(event, None if node.parent is None else made.get(node.parent))
    for event in reversed(made.values()):
        event._add_up_children()
    return EventList(made.values(), shown=shown, wall=profiler.wall_time)


def _line(frame: tuple[Any, int], lines: dict[tuple[Any, int], str]) -> str:
    found = lines.get(frame)
    if found is None:
        place = SourceLocation(*frame)
        found = lines[frame] = f"{place.file}({place.line}): {place.function}"
    return found
