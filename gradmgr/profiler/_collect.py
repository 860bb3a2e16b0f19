"""What a profiler records while a program runs: a node for each op, each vjp of backward, each region."""

from __future__ import annotations

import sys
import threading
import weakref
from contextvars import ContextVar
from itertools import count
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from gradmgr._arrays import libraries, memory
from gradmgr._engine.context import Context, add_interceptor, current, recorders, remove_interceptor
from gradmgr._engine.entry import input_ids, op_name, tracked_input_ids
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import Entry, Observer, observing
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.manager import get_backwarding_grad_manager
from gradmgr.profiler._flops import flops_of

OP, PULL, WALK, REGION = "op", "pull", "walk", "region"

# Entries of a tape that are no ops: the books kept of several results, and of what is attached.
_BOOKS = frozenset(("result", "checkpoint.result", "attach", "stale"))
_CALL = Context.call.__code__

Frames = tuple[tuple[CodeType, int], ...]


class Lane:
    """A thread as a profiler sees it."""

    __slots__ = ("name", "number", "regions")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.regions: list[Node] = []  # open here, in the order they were entered


class Node:
    """Something that takes time. Holds no array, no tensor, no node id and no frame."""

    # Most nodes leave most of these as they are here, which is quicker than setting each.
    end: int | None = None
    start = 0
    sequence = -1
    raised = is_async = False
    memory = device_memory = flops = 0
    flops_back: tuple[int, ...] = ()  # of an op: those of its derivative, by input
    shapes: tuple[tuple[int, ...], ...] = ()
    frames: Frames = ()
    modules = args = ""
    forward: Node | None = None  # of a vjp: the op it is the derivative of
    device: Any = None  # the GPU's number and CUDA events; in the end when it began there, and how long it took
    owner: Any = None  # of a region: the object that opened it
    manager: Any = None  # of a backward pass: weak references to its manager and its tape
    tape: Any = None
    caller: tuple[int, CodeType] | None = None  # of an op made of ops: its frame, by address and code

    def __init__(self, kind: str, name: str, lane: Lane, parent: Node | None) -> None:
        self.kind = kind
        self.name = name
        self.lane = lane
        self.parent = parent

    def is_over(self) -> bool:
        """Tell whether nothing can happen inside it any more."""
        if self.kind is WALK:
            tape = self.tape()
            return tape is None or not tape.open or self.manager() is not get_backwarding_grad_manager()
        if self.end is not None:
            return True
        if self.kind is OP:
            return not _is_running(self.caller)
        return self.kind is PULL and self.parent is not None and self.parent.is_over()


def _nobody() -> None:
    """Take the place of the manager of a backward pass that has none."""


def _is_running(caller: tuple[int, CodeType] | None) -> bool:
    """Tell whether a frame, known by its address and code, is on the present stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and caller is not None:
        if id(frame) == caller[0] and frame.f_code is caller[1]:
            return True
        frame = frame.f_back
    return False


# The innermost node of each collector in this context that can have children.
_innermost: ContextVar[dict[Any, Node]] = ContextVar("gradmgr_profiled", default={})  # noqa: B039  # never written to


class Collector(Interceptor):
    """Makes nodes of what it sees. The subclass says what becomes of them."""

    __slots__ = ("__weakref__", "_calls", "_ear", "_here", "_lanes", "_listening", "_noted", "_numbers")

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._lanes = count(1)
        self._numbers = count()
        # The latest op that was computed in each frame, by its address; beside it the frame's code.
        self._calls: dict[int, tuple[CodeType, Node]] = {}
        # Ops by the address of the node id of their result. An address that is used again belongs to a new
        # entry, which is recorded here too; the node ids themselves must not be referenced, see Tape.sweep.
        self._noted: dict[int, tuple[str, Node]] = {}
        self._ear = _Ear(self)
        self._listening: Any = None

    # ------------------------------------------------------------ for subclasses

    def begun(self, node: Node, inputs: tuple[Any, ...] = ()) -> None:
        """Called when a node begins; the subclass sets its start."""

    def ended(self, node: Node) -> None:
        """Called when a node ends; the subclass sets its end."""
        node.end = 0

    def computed(self, node: Node, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        """Called after `ended`, of an op."""

    def carried(self, node: Node, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        """Called after `ended`, of an entry of backward."""

    # ------------------------------------------------------------ begin and end

    def start(self) -> None:
        """See what is computed in this context from here on."""
        tapes = [rec for rec in recorders(current()) if isinstance(rec, Tape)]
        self._listening = observing(self._ear, tapes)
        self._listening.__enter__()
        add_interceptor(self)

    def stop(self) -> None:
        """See nothing more."""
        remove_interceptor(self)
        self._listening.__exit__(None, None, None)
        self._stand(None)
        self._calls.clear()
        self._noted.clear()

    # ------------------------------------------------------------ ops

    def before_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        lane = self._lane()
        node = Node(OP, op.name, lane, self._parent(lane))
        caller = sys._getframe(1)
        code = caller.f_code
        self._calls[id(caller)] = (code, node)
        if code is not _CALL:  # a Function: its forward is made of ops
            node.caller = (id(caller), code)
            self._stand(node)
        self.begun(node, inputs)
        return inputs

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        caller = sys._getframe(1)
        code, node = self._calls.get(id(caller), (None, None))
        if node is None or code is not caller.f_code or node.end is not None:
            return  # it began before we watched
        self.ended(node)
        if node.caller is not None:
            self._stand(node.parent)
        self.computed(node, op, inputs, params, result)

    def op_recorded(self, e: Entry) -> None:
        """Number the op that a tape notes, and remember it by its entry."""
        if e[0] in _BOOKS:
            return
        node = self._calling(sys._getframe(2)) or Node(OP, op_name(e), self._lane(), None)
        if node.sequence < 0:
            node.sequence = next(self._numbers)
        self._noted[id(e[1])] = (op_name(e), node)

    def _calling(self, frame: FrameType | None) -> Node | None:
        """Return the op that is being computed in a frame or in one of those around it."""
        for _ in range(8):
            if frame is None:
                break
            code, node = self._calls.get(id(frame), (None, None))
            if code is frame.f_code:
                return node
            frame = frame.f_back
        return None

    # ------------------------------------------------------------ backward

    def backward_started(self, tape: Any) -> None:
        """Begin the node of a backward pass over a tape; it ends with its last child."""
        lane, manager = self._lane(), get_backwarding_grad_manager()
        parent = outer = self._parent(lane)
        while outer is not None:  # an earlier backward pass of this manager is over, it may have failed
            if outer.kind is WALK and outer.manager() is manager:
                parent = outer.parent
            outer = outer.parent
        node = Node(WALK, "backward", lane, parent)
        node.tape = weakref.ref(tape)
        node.manager = _nobody if manager is None else weakref.ref(manager)
        self._stand(node)
        self.begun(node)

    def before_vjp(self, e: Entry) -> None:
        if e[0] in _BOOKS or not self.open:
            return
        lane, name = self._lane(), op_name(e)
        noted, forward = self._noted.get(id(e[1]), ("", None))
        node = Node(PULL, name, lane, self._parent(lane))
        if forward is not None and noted == name:
            node.forward, node.sequence, node.name = forward, forward.sequence, forward.name
        node.name += "_backward"
        self._stand(node)
        self.begun(node)

    def after_vjp(self, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        if e[0] in _BOOKS:
            return
        node = self._parent(self._lane())
        if node is None or node.kind is not PULL:
            return  # it began before we watched
        self.ended(node)
        self._stand(node.parent)
        self.carried(node, e, g, grads)

    # ------------------------------------------------------------ regions

    def enter(self, owner: Any, name: str, args: str) -> None:
        """Begin a region."""
        lane = self._lane()
        node = Node(REGION, name, lane, self._parent(lane))
        node.owner, node.args = owner, args
        lane.regions.append(node)
        self._stand(node)
        self.begun(node)

    def leave(self, owner: Any) -> None:
        """End the innermost region of this context that `owner` opened."""
        node = _innermost.get().get(self)
        while node is not None and (node.owner is not owner or node.end is not None):
            node = node.parent
        if node is None:
            return  # left in another context than it was entered in: it ends with the profile
        self.ended(node)
        node.owner = None
        lane = self._lane()
        # Regions that do not lie one in the other were suspended: those of coroutines, or of two threads.
        if not lane.regions or lane.regions[-1] is not node:
            node.is_async = True
            for other in node.lane.regions:
                other.is_async = other.is_async or other.start > node.start
        if node in node.lane.regions:
            node.lane.regions.remove(node)
        self._stand(node.parent)

    # ------------------------------------------------------------ where we are

    def _lane(self) -> Lane:
        try:
            lane: Lane = self._here.lane
        except AttributeError:
            lane = self._here.lane = Lane(next(self._lanes), threading.current_thread().name)
        return lane

    def _stand(self, node: Node | None) -> None:
        """Make a node the parent of what follows in this context."""
        opened = _innermost.get()
        if node is None:
            _innermost.set({who: each for who, each in opened.items() if who is not self})
        else:
            _innermost.set({**opened, self: node})

    def _parent(self, lane: Lane) -> Node | None:
        node = _innermost.get().get(self)
        while node is not None and node.is_over():
            node = node.parent
        return node if node is None or node.lane is lane else None


class _Ear(Observer):
    """Tells a collector which ops are recorded."""

    def __init__(self, collector: Collector) -> None:
        self._collector = weakref.ref(collector)

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        collector = self._collector()
        if collector is not None and collector.open:
            collector.op_recorded(e)
        return e

    def backward_started(self, tape: Any) -> None:
        collector = self._collector()
        if collector is not None and collector.open:
            collector.backward_started(tape)


# ---------------------------------------------------------------- what a profile measures


class Options:
    """What is to be recorded besides time."""

    __slots__ = ("cupy", "flops", "memory", "modules", "shapes", "stack")

    def __init__(self, *, shapes: bool, flops: bool, memory: bool, stack: bool, modules: bool, cupy: Any) -> None:
        self.shapes = shapes
        self.flops = flops
        self.memory = memory
        self.stack = stack
        self.modules = modules
        self.cupy = cupy  # the module, where the GPU is timed


class Profiler(Collector):
    """Times what it sees."""

    __slots__ = ("_origins", "began", "nodes", "options", "over", "wall")

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.nodes: list[Node] = []
        self.began = self.over = self.wall = 0
        # By the number of a GPU, the CUDA event that its times count from, and when that was.
        self._origins: dict[int, tuple[Any, float]] = {}

    def start(self) -> None:
        import time

        super().start()
        self.wall, self.began = time.time_ns(), perf_counter_ns()

    def stop(self) -> None:
        self.over = perf_counter_ns()
        super().stop()
        for node in self.nodes:
            self._settle(node)
        for node in reversed(self.nodes):  # children come after their parents
            outer = node.parent
            if outer is not None and (outer.kind is WALK or (outer.kind is not REGION and outer.raised)):
                outer.end = max(outer.end or 0, node.end or 0)
        self._origins.clear()

    def begun(self, node: Node, inputs: tuple[Any, ...] = ()) -> None:
        options = self.options
        self.nodes.append(node)
        if options.shapes and inputs:
            node.shapes = tuple([getattr(x, "shape", ()) for x in inputs])
        if (options.stack or options.modules) and node.kind in (OP, REGION):
            node.frames, node.modules = _frames(options.stack, options.modules)
        if options.cupy is not None and (node.kind is PULL or any(_on_gpu(x) for x in inputs)):
            node.device = (self._gpu(), self._event())
        node.start = perf_counter_ns()

    def ended(self, node: Node) -> None:
        node.end = perf_counter_ns()
        if node.device is not None:
            node.device = (*node.device, self._event())

    def computed(self, node: Node, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        if self.options.flops:
            node.flops, node.flops_back = flops_of(op.name, inputs, params, result)
        if self.options.memory:
            old = [_owner(raw(x)) if isinstance(x, Tensor) else _owner(x) for x in inputs]
            for a in result if result.__class__ is tuple else (result,):
                _count_bytes(node, a, old)

    def carried(self, node: Node, e: Entry, g: Any, grads: dict[Any, Any]) -> None:
        options = self.options
        if node.device is not None and not _on_gpu(g):
            node.device = None
        if options.shapes and g.__class__ is not dict:
            node.shapes = (getattr(g, "shape", ()),)
        if options.flops and node.forward is not None and node.forward.flops_back:
            node_ids = zip(input_ids(e), node.forward.flops_back, strict=False)
            node.flops = sum([count for node_id, count in node_ids if node_id is not None])
        if options.memory and g.__class__ is not dict:
            old = [_owner(_plain(g))]
            for node_id in set(tracked_input_ids(e)):
                _count_bytes(node, _plain(grads.get(node_id)), old)

    def _gpu(self) -> int:
        """Return the number of the GPU that is current, whose times count from here on if they did not yet."""
        number: int = self.options.cupy.cuda.runtime.getDevice()
        if number not in self._origins:
            self._origins[number] = self._event(), (perf_counter_ns() - self.began) / 1e3
        return number

    def _event(self) -> Any:
        event = self.options.cupy.cuda.Event()
        event.record()
        return event

    def _settle(self, node: Node) -> None:
        """Make plain facts of a node that is done; of what never ended, as much as is known."""
        if node.end is None:
            node.raised = node.kind in (OP, PULL)
            node.end = self.over if node.kind is REGION else node.start
        if node.device is not None:
            number, begin, *end = node.device
            elapsed, (origin, began) = self.options.cupy.cuda.get_elapsed_time, self._origins[number]
            end = end[0] if end else begin
            end.synchronize()
            node.device = (number, began + 1e3 * elapsed(origin, begin), 1e3 * elapsed(begin, end))
        node.owner = node.manager = node.tape = None


def _frames(stack: bool, modules: bool) -> tuple[Frames, str]:
    """Return where the user's program is, the innermost frame first, and in which modules, the outermost first."""
    frame: FrameType | None = sys._getframe(3)
    found: list[tuple[CodeType, int]] = []
    classes: list[str] = []
    while frame is not None:
        code = frame.f_code
        ours = frame.f_globals.get("__name__", "").startswith("gradmgr.")
        if stack and not ours:
            found.append((code, frame.f_lasti))
        if modules and code.co_name == "forward":
            *outer, _ = code.co_qualname.rpartition("<locals>.")[2].split(".")
            if outer and outer != classes[-1:]:
                classes += outer[-1:]
        frame = frame.f_back
    return tuple(found), "/".join(reversed(classes))


def _plain(value: Any) -> Any:
    return raw(value) if isinstance(value, Tensor) else value


def _owner(a: Any) -> Any:
    """Return the array that owns the memory of an array."""
    base = getattr(a, "base", None)
    return base if libraries.is_array(base) else a


def _on_gpu(value: Any) -> bool:
    if value.__class__ is dict:
        return any(_on_gpu(part) for part in value.values())
    a = _plain(value)
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
