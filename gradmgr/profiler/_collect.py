"""What a profiler records while a program runs: a node for each op, vjp, backward pass and region."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from gradmgr._arrays import libraries, memory
from gradmgr._engine.context import Context, add_interceptor, current, recorders, remove_interceptor
from gradmgr._engine.entry import input_ids, op_name, tracked_input_ids
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import Entry, Observer, add_observer, remove_observer
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare
from gradmgr.manager import get_backwarding_grad_manager
from gradmgr.profiler._flops import flops_of

OP, VJP, BACKWARD, REGION = "op", "vjp", "backward", "region"

# Entries of a tape that are not ops: for one of several results, for attached and for removed values.
_BOOKKEEPING = frozenset(("result", "checkpoint.result", "attach", "stale", "unrecorded step"))
_CALL = Context.call.__code__

Frames = tuple[tuple[CodeType, int], ...]


class ThreadInfo:
    """A thread in a profile: its number and name."""

    __slots__ = ("name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name


class Node:
    """A span of time: of an op, a vjp, a backward pass or a region. Holds no array, tensor, node id or frame."""

    # Most nodes leave most of these at their defaults, which is quicker than setting each.
    end: int | None = None
    start = 0
    sequence = -1
    raised = is_async = False
    memory = device_memory = flops = 0
    vjp_flops: tuple[int, ...] = ()  # of an op: those of its derivative, by input
    shapes: tuple[tuple[int, ...], ...] = ()
    frames: Frames = ()
    modules = args = ""
    forward: Node | None = None  # of a vjp: the node of its op
    device: Any = None  # the GPU's number and two CUDA events; after `stop` the start and duration there
    owner: Any = None  # of a region: the object that opened it
    manager: Any = None  # of a backward pass: weak references to its manager and its tape
    tape: Any = None
    caller: tuple[int, CodeType] | None = None  # of an op that calls ops: its frame, by address and code

    def __init__(self, kind: str, name: str, thread: ThreadInfo, parent: Node | None) -> None:
        self.kind = kind
        self.name = name
        self.thread = thread
        self.parent = parent

    def is_over(self) -> bool:
        """Tell whether no more node can begin inside this one."""
        if self.kind is BACKWARD:
            tape = self.tape()
            return tape is None or not tape.open or self.manager() is not get_backwarding_grad_manager()
        if self.end is not None:
            return True
        if self.kind is OP:
            return not _is_running(self.caller)
        return self.kind is VJP and self.parent is not None and self.parent.is_over()


def _no_manager() -> None:
    """Take the place of a weak reference to a manager, for a backward pass without one."""


def _is_running(caller: tuple[int, CodeType] | None) -> bool:
    """Tell whether a frame, given by its address and code, is on the current stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and caller is not None:
        if id(frame) == caller[0] and frame.f_code is caller[1]:
            return True
        frame = frame.f_back
    return False


# The innermost node of each collector in this context that can have children.
_innermost: ContextVar[dict[Any, Node]] = ContextVar("gradmgr_profiled", default={})  # noqa: B039  # never written to


class Collector(Interceptor):
    """Makes a node for each op, vjp, backward pass and region; subclasses define what to do with them."""

    __slots__ = (
        "__weakref__",
        "_local",
        "_observer",
        "_op_by_frame",
        "_ops_by_node_id",
        "_regions",
        "_sequence_numbers",
        "_thread_numbers",
    )

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()
        self._thread_numbers = count(1)
        self._sequence_numbers = count()
        # The latest op that was computed in each frame, by the frame's address, with the frame's code.
        self._op_by_frame: dict[int, tuple[CodeType, Node]] = {}
        # Names and nodes of ops by the address of the node id of their result. An address that is used again belongs
        # to a new entry, which replaces the old; the node ids themselves must not be referenced, see Tape.sweep.
        self._ops_by_node_id: dict[int, tuple[str, Node]] = {}
        # The open regions of each thread, in the order in which they were entered. As nodes refer to their ThreadInfo,
        # storing them there would be a reference cycle.
        self._regions: dict[ThreadInfo, list[Node]] = {}
        self._observer = _RecordingObserver(self)

    # ------------------------------------------------------------ to be overridden

    def node_started(self, node: Node, inputs: tuple[Any, ...] = ()) -> None:
        """Called when a node begins; sets its start."""

    def node_ended(self, node: Node) -> None:
        """Called when a node ends; sets its end."""
        node.end = 0

    def op_computed(self, node: Node, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        """Called after `node_ended` of an op."""

    def vjp_computed(self, node: Node, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        """Called after `node_ended` of a vjp."""

    # ------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Begin to observe this context."""
        tapes = [rec for rec in recorders(current()) if isinstance(rec, Tape)]
        add_observer(self._observer, tapes)
        add_interceptor(self)

    def stop(self) -> None:
        """End observing; called again where an exception strikes."""
        remove_interceptor(self)
        remove_observer(self._observer)
        self._set_innermost(None)
        self._op_by_frame.clear()
        self._ops_by_node_id.clear()
        self._regions.clear()

    # ------------------------------------------------------------ ops

    def before_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        thread = self._thread()
        node = Node(OP, op.name, thread, self._parent(thread))
        caller = sys._getframe(1)
        code = caller.f_code
        self._op_by_frame[id(caller)] = (code, node)
        if code is not _CALL:  # a Function: its forward is made of ops
            node.caller = (id(caller), code)
            self._set_innermost(node)
        self.node_started(node, inputs)
        return inputs

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        node = self._op_of_frame(sys._getframe(1))
        if node is None or node.end is not None:
            return  # it began before this collector was started
        self.node_ended(node)
        if node.caller is not None:
            self._set_innermost(node.parent)
        self.op_computed(node, op, inputs, params, result)

    def op_recorded(self, e: Entry) -> None:
        """Give the op that a tape records a sequence number, kept by its node id."""
        if e[0] in _BOOKKEEPING:
            return
        node = self._op_of_frame(sys._getframe(2)) or Node(OP, op_name(e), self._thread(), None)
        if node.sequence < 0:
            node.sequence = next(self._sequence_numbers)
        self._ops_by_node_id[id(e[1])] = (op_name(e), node)

    def _op_of_frame(self, frame: FrameType | None) -> Node | None:
        """Return the node of the op that is being computed in a frame or one of its callers."""
        for _ in range(8):
            if frame is None:
                break
            code, node = self._op_by_frame.get(id(frame), (None, None))
            if code is frame.f_code:
                return node
            frame = frame.f_back
        return None

    # ------------------------------------------------------------ backward

    def backward_started(self, tape: Any) -> None:
        """Begin the node of a backward pass over a tape; it ends with its last child."""
        thread, manager = self._thread(), get_backwarding_grad_manager()
        parent = parent_node = self._parent(thread)
        while parent_node is not None:  # an earlier backward pass of this manager is over, it may have failed
            if parent_node.kind is BACKWARD and parent_node.manager() is manager:
                parent = parent_node.parent
            parent_node = parent_node.parent
        node = Node(BACKWARD, "backward", thread, parent)
        node.tape = weakref.ref(tape)
        node.manager = _no_manager if manager is None else weakref.ref(manager)
        self._set_innermost(node)
        self.node_started(node)

    def before_vjp(self, e: Entry) -> None:
        if e[0] in _BOOKKEEPING or not self.open:
            return
        thread, name = self._thread(), op_name(e)
        recorded_name, forward = self._ops_by_node_id.get(id(e[1]), ("", None))
        node = Node(VJP, name, thread, self._parent(thread))
        if forward is not None and recorded_name == name:
            node.forward, node.sequence, node.name = forward, forward.sequence, forward.name
        node.name += "_backward"
        self._set_innermost(node)
        self.node_started(node)

    def after_vjp(self, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        if e[0] in _BOOKKEEPING:
            return
        node = self._parent(self._thread())
        if node is None or node.kind is not VJP:
            return  # it began before this collector was started
        self.node_ended(node)
        self._set_innermost(node.parent)
        self.vjp_computed(node, e, g, grads)

    # ------------------------------------------------------------ regions

    def enter(self, owner: Any, name: str, args: str) -> None:
        """Begin a region."""
        thread = self._thread()
        node = Node(REGION, name, thread, self._parent(thread))
        node.owner, node.args = owner, args
        self._regions.setdefault(thread, []).append(node)
        self._set_innermost(node)
        self.node_started(node)

    def open_regions(self) -> Iterator[Node]:
        """Yield the regions that are open in this context, the innermost first."""
        node = _innermost.get().get(self)
        while node is not None:
            if node.owner is not None and node.end is None:
                yield node
            node = node.parent

    def leave(self, owner: Any) -> None:
        """End the region of this context that `owner` opened."""
        node = next((each for each in self.open_regions() if each.owner is owner), None)
        if node is None:
            return  # left in another context than it was entered in; it ends with the profile
        self.node_ended(node)
        node.owner = None
        opened, here = self._regions.get(node.thread, []), self._regions.get(self._thread())
        # Regions that overlap without being nested were suspended: those of coroutines, or of two threads.
        if not here or here[-1] is not node:
            node.is_async = True
            for other in opened:
                other.is_async = other.is_async or other.start > node.start
        if node in opened:
            opened.remove(node)
        self._set_innermost(node.parent)

    # ------------------------------------------------------------ the current thread and parent

    def _thread(self) -> ThreadInfo:
        try:
            thread: ThreadInfo = self._local.thread
        except AttributeError:
            thread = self._local.thread = ThreadInfo(next(self._thread_numbers), threading.current_thread().name)
        return thread

    def _set_innermost(self, node: Node | None) -> None:
        """Make a node the parent of what follows in this context."""
        opened = _innermost.get()
        if node is None:
            _innermost.set(
                {collector: current_node for collector, current_node in opened.items() if collector is not self}
            )
        else:
            _innermost.set({**opened, self: node})

    def _parent(self, thread: ThreadInfo) -> Node | None:
        node = _innermost.get().get(self)
        while node is not None and node.is_over():
            node = node.parent
        return node if node is None or node.thread is thread else None


class _RecordingObserver(Observer):
    """Tells a collector which ops are recorded, and when a backward pass begins."""

    def __init__(self, collector: Collector) -> None:
        self._collector = weakref.ref(collector)

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        collector = self._collector()
        if collector is not None and collector.open:
            collector.op_recorded(e)
        return e

    def backward_started(self, tape: Any, grads: dict[Any, Any]) -> None:
        collector = self._collector()
        if collector is not None and collector.open:
            collector.backward_started(tape)


# ---------------------------------------------------------------- measuring


class Options:
    """What a profiler measures in addition to time."""

    __slots__ = ("cupy", "flops", "memory", "modules", "shapes", "stack")

    def __init__(self, *, shapes: bool, flops: bool, memory: bool, stack: bool, modules: bool, cupy: Any) -> None:
        self.shapes = shapes
        self.flops = flops
        self.memory = memory
        self.stack = stack
        self.modules = modules
        self.cupy = cupy  # the module, where the GPU is timed


class Profiler(Collector):
    """Measures the time of each node, and what its options say."""

    __slots__ = ("_origins", "ended", "nodes", "options", "started", "wall_time")

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.nodes: list[Node] = []
        self.started = self.ended = self.wall_time = 0
        # By the number of a GPU, the CUDA event from which its times count, and the time of that event.
        self._origins: dict[int, tuple[Any, float]] = {}

    def start(self) -> None:
        import time

        super().start()
        self.wall_time, self.started = time.time_ns(), perf_counter_ns()

    def stop(self) -> None:
        self.ended = perf_counter_ns()
        super().stop()
        for node in self.nodes:
            self._finish(node)
        for node in reversed(self.nodes):  # children come after their parents
            parent_node = node.parent
            if parent_node is not None and (
                parent_node.kind is BACKWARD or (parent_node.kind is not REGION and parent_node.raised)
            ):
                parent_node.end = max(parent_node.end or 0, node.end or 0)
        self._origins.clear()

    def node_started(self, node: Node, inputs: tuple[Any, ...] = ()) -> None:
        options = self.options
        self.nodes.append(node)
        if options.shapes and inputs:
            node.shapes = tuple([getattr(x, "shape", ()) for x in inputs])
        if (options.stack or options.modules) and node.kind in (OP, REGION):
            node.frames, node.modules = _frames(options.stack, options.modules)
        if options.cupy is not None and (node.kind is VJP or any(_is_on_gpu(x) for x in inputs)):
            node.device = (self._gpu(), self._event())
        node.start = perf_counter_ns()

    def node_ended(self, node: Node) -> None:
        node.end = perf_counter_ns()
        if node.device is not None:
            node.device = (*node.device, self._event())

    def op_computed(self, node: Node, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        if self.options.flops:
            node.flops, node.vjp_flops = flops_of(op.name, inputs, params, result)
        if self.options.memory:
            old = [_owner(bare(x)) if isinstance(x, Tensor) else _owner(x) for x in inputs]
            for a in result if result.__class__ is tuple else (result,):
                _count_bytes(node, a, old)

    def vjp_computed(self, node: Node, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        options = self.options
        if node.device is not None and not _is_on_gpu(g):
            node.device = None
        if options.shapes and g.__class__ is not dict:
            node.shapes = (getattr(g, "shape", ()),)
        if options.flops and node.forward is not None and node.forward.vjp_flops:
            node_ids = zip(input_ids(e), node.forward.vjp_flops, strict=False)
            node.flops = sum([count for node_id, count in node_ids if node_id is not None])
        if options.memory and g.__class__ is not dict:
            old = [_owner(_raw(g))]
            for node_id in set(tracked_input_ids(e)):
                _count_bytes(node, _raw(grads.get(node_id)), old)

    def _gpu(self) -> int:
        """Return the number of the current GPU; the first time, record the event from which its times count."""
        number: int = self.options.cupy.cuda.runtime.getDevice()
        if number not in self._origins:
            self._origins[number] = self._event(), (perf_counter_ns() - self.started) / 1e3
        return number

    def _event(self) -> Any:
        event = self.options.cupy.cuda.Event()
        event.record()
        return event

    def _finish(self, node: Node) -> None:
        """Set the times of a node when the profile is over, also of one that never ended."""
        if node.end is None:
            node.raised = node.kind in (OP, VJP)
            node.end = self.ended if node.kind is REGION else node.start
        if node.device is not None:
            number, begin, *end = node.device
            elapsed, (origin, started) = self.options.cupy.cuda.get_elapsed_time, self._origins[number]
            end = end[0] if end else begin
            end.synchronize()
            node.device = (number, started + 1e3 * elapsed(origin, begin), 1e3 * elapsed(begin, end))
        node.owner = node.manager = node.tape = None


def _frames(stack: bool, modules: bool) -> tuple[Frames, str]:
    """Return the frames of the user's program, the innermost first, and its nn modules, the outermost first."""
    frame: FrameType | None = sys._getframe(3)
    found: list[tuple[CodeType, int]] = []
    classes: list[str] = []
    while frame is not None:
        code = frame.f_code
        is_library = frame.f_globals.get("__name__", "").startswith("gradmgr.")
        if stack and not is_library:
            found.append((code, frame.f_lasti))
        if modules and code.co_name == "forward":
            *outer, _ = code.co_qualname.rpartition("<locals>.")[2].split(".")
            if outer and outer != classes[-1:]:
                classes += outer[-1:]
        frame = frame.f_back
    return tuple(found), "/".join(reversed(classes))


def _raw(value: Any) -> Any:
    return bare(value) if isinstance(value, Tensor) else value


def _owner(a: Any) -> Any:
    """Return the array that owns the memory of an array."""
    base = getattr(a, "base", None)
    return base if libraries.is_array(base) else a


def _is_on_gpu(value: Any) -> bool:
    if value.__class__ is dict:
        return any(_is_on_gpu(part) for part in value.values())
    a = _raw(value)
    return libraries.is_array(a) and libraries.device_of(a) != "cpu"


def _count_bytes(node: Node, a: Any, old: list[Any]) -> None:
    """Add the memory of an array to a node's, unless an input has it already."""
    owner = _owner(a)
    if not libraries.is_array(a) or any(owner is other for other in old):
        return
    if libraries.device_of(a) == "cpu":
        node.memory += memory.buffer_bytes(a)
    else:
        node.device_memory += memory.buffer_bytes(a)
