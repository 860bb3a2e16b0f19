"""A capture on a GPU's arrays, replayed by CUDA graphs: its kernels are recorded once and then launched all at once.

CuPy records only some calls. It refuses products (`cublasSetStream` is where it raises), solvers and random numbers
while a stream is captured; reads that wait for the GPU are errors; and what copies from the host would be recorded
with an address that is gone when the graph is launched. So calls are recorded by a list of those that only launch
kernels: elementwise functions, reductions, copies, views. Runs of these become graphs. All other calls, products among
them, are made between the graphs as a plain replay makes them.

A graph reads and writes where it did when it was recorded. So what it takes from outside is copied into buffers of its
own before each launch: parameters and batches have other addresses in each call, and recording again takes as long as
many copies. What it makes is allocated in its own memory pool, which lives as long as the graph;
what leaves the replay is copied from there. A graph is launched on the stream that is current, after what was queued
there. Between replays on different streams an event stands.

A set of graphs with their memory is an arena. Each replay that runs at the same time, in another thread, has its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinMethodType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, CaptureError, Layout, Slot, name_of, slots_in
from gradmgr._arrays.captured_functions import written_by
from gradmgr._replay.replay_text import BEGIN_EFFECTS, TAKE_ARENA, Writer, begins_effects, variable
from gradmgr._replay.steps import size_of

# Calls that launch kernels from which on a run is worth a launch and the copies before it.
_FEWEST = 3

_OPERATORS = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"),
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift"),
        *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"),
    )
)

# Functions and methods that only launch kernels, or give views; of NumPy's, CuPy's or of arrays.
_RECORDED = frozenset(
    (
        *("sum", "prod", "mean", "max", "amax", "min", "amin", "any", "all", "clip", "where", "astype", "copy"),
        *("reshape", "ravel", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze", "broadcast_to", "fill"),
        *("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "conj", "conjugate"),
        *("T", "mT", "real", "imag"),
    )
)

_FILLING = frozenset(("full", "full_like", "fill"))

# Ufuncs that are no kernels of CuPy's own.
_PRODUCTS = frozenset(("matmul", "vecdot", "matvec", "vecmat"))

# What an index may hold so that it gives a view.
_OF_VIEWS = (int, np.integer, type(None), type(Ellipsis))


class NoGraphError(Exception):
    """A capture is not replayed by graphs."""


@dataclass
class _Run:
    """Calls that one graph makes.

    Attributes:
        calls: their numbers.
        takes: the slots that it is given: what earlier graphs have made, and what buffers hold.
        gives: the slots that are read after it.
    """

    calls: list[int]
    takes: list[int] = field(default_factory=list)
    gives: list[int] = field(default_factory=list)


class Plan:
    """Which calls of a capture are recorded in which graph, and which are made between them.

    Attributes:
        items: in the order of a replay, the numbers of calls, and `_Run`s.
        escaping: the slots of graphs that others hold after the replay, or that are read through views of theirs.
        loaded: the slots that are copied into buffers of graphs.
        device: the number of the GPU.
    """

    def __init__(self, capture: Capture, results: Iterable[Any]) -> None:
        self.capture = capture
        self.layouts: list[Any] = capture.layouts
        self._results = {slot.number for slot in slots_in(list(results))}
        devices = {layout.device for layout in self.layouts if layout is not None and layout.device is not None}
        if len(devices) != 1:
            raise NoGraphError(f"its arrays are on {len(devices)} GPUs")
        (self.device,) = devices
        self._check_writes()
        self._recordable = [self._is_recordable(call) for call in capture.calls]
        self.items: list[Any] = []
        self.escaping: set[int] = set()
        self.loaded: dict[int, bool] = {}  # and whether it is copied before each graph that takes it
        while more := self._arrange() or self._unfit():
            for number in more:
                self._recordable[number] = False
        if not self.runs():
            raise NoGraphError(f"fewer than {_FEWEST} calls in a row can be recorded")

    def runs(self) -> list[_Run]:
        """Return what the graphs make, in order."""
        return [item for item in self.items if item.__class__ is _Run]

    def group_of(self, slot: int) -> int:
        """Return the slot in whose memory an array lies."""
        layout = self.layouts[slot]
        return slot if layout is None or layout.owner is None else int(layout.owner)

    # ------------------------------------------------------------ which calls

    def _check_writes(self) -> None:
        made = {number for call in self.capture.calls if _makes_memory(call) for number in call.made}
        made -= self.capture.fixed
        for call in self.capture.calls:
            for slot in written_by(call):
                if self.layouts[slot.number].owner not in made:
                    raise NoGraphError(f"{name_of(call.function)} at {call.line} writes into an array from outside")

    def _is_recordable(self, call: Call) -> bool:
        if call.has_effect or call.expected is not None or not isinstance(call.results, (Slot, type(None))):
            return False
        if call.results is None and not (written_by(call) and call.function in (operator.setitem,)):
            return False
        arrays = [self.layouts[number] for number in (*call.given, *call.made)]
        if any(layout is None or layout.device != self.device for layout in arrays):
            return False
        return _only_launches(call)

    def _is_of(self, call: Call, owned: set[int]) -> bool:
        """Tell whether what a call writes, and what it gives views of, is memory that graphs have made."""
        for number in call.made:
            layout = self.layouts[number]
            is_new = layout.owner == number and number not in call.given
            if not is_new and (layout.owner is None or layout.owner not in owned):
                return False
        return owned.issuperset([self.group_of(slot.number) for slot in written_by(call)])

    # ------------------------------------------------------------ in which order

    def _arrange(self) -> set[int]:
        """Put calls in order; return those of runs that are too short, if any.

        A call that is not recorded goes before the run that is being collected where it does not depend on it.
        """
        self.items = []
        owned: set[int] = set()  # memory that graphs make
        run: list[int] = []
        made: set[int] = set()  # memory that the run makes or writes
        read: set[int] = set()
        short: set[int] = set()

        def flush() -> None:
            if run:
                self.items.append(_Run(list(run)))
                if sum(map(self._launches, run)) < _FEWEST:
                    short.update(run)
            for each in (run, made, read):
                each.clear()

        for number, call in enumerate(self.capture.calls):
            given = set(map(self.group_of, call.given))
            written = {self.group_of(slot.number) for slot in written_by(call)}
            if self._recordable[number] and self._is_of(call, owned):
                run.append(number)
                owned.update([k for k in call.made if self.group_of(k) == k])
                made |= written.union(map(self.group_of, call.made))
                read |= given
                continue
            if call.has_effect or not made.isdisjoint(given) or not read.isdisjoint(written):
                flush()
            self.items.append(number)
        flush()
        return short

    def _launches(self, number: int) -> bool:
        """Tell whether a call launches a kernel: a view does not."""
        call = self.capture.calls[number]
        if call.results is None or written_by(call):
            return True
        layout = self.layouts[call.results.number]
        return bool(layout.owner == call.results.number) and size_of(layout.shape) > 0 and not _is_empty(call)

    # ------------------------------------------------------------ what goes in and out

    def _unfit(self) -> set[int]:
        """Find what goes into graphs and out of them; return calls that must not be recorded because of it."""
        made_in: dict[int, _Run] = {}  # where the array of a slot was first made, if in a graph
        for run in self.runs():
            for number in run.calls:
                for k in self.capture.calls[number].made:
                    if k not in self.capture.calls[number].given:
                        made_in.setdefault(k, run)
        self._connect(made_in)
        unfit: set[int] = set()
        escaped = set(map(self.group_of, self.escaping))
        for item in self.items:
            for number in item.calls if item.__class__ is _Run else [item]:
                for slot in written_by(self.capture.calls[number]):
                    group = self.group_of(slot.number)
                    if group in escaped and made_in[group] is not item:  # the copy that leaves would be too old
                        unfit |= self._of_group(group)
        views = {k for k in self.escaping if self.layouts[k].owner != k}
        for run in self.runs():
            calls = [(number, self.capture.calls[number]) for number in run.calls]
            unfit |= {number for number, call in calls if not views.isdisjoint(call.made)}
            sparse = {k for k in run.takes if k not in made_in and not is_dense(self.layouts[k])}
            unfit |= {number for number, call in calls if not sparse.isdisjoint(call.given)}
        return {number for number in unfit if self._recordable[number]}

    def _of_group(self, group: int) -> set[int]:
        """Return the calls that make views of a memory, or write to it, and the one that makes it."""
        found = set()
        for number, call in enumerate(self.capture.calls):
            touched = [*call.made, *[slot.number for slot in written_by(call)]]
            if group in map(self.group_of, touched):
                found.add(number)
        return found

    def _connect(self, made_in: dict[int, _Run]) -> None:
        self.escaping = {k for k in self._results if k in made_in}
        self.loaded = {}
        outside: set[int] = set()  # memory that calls between the graphs write to
        read: dict[int, list[Any]] = {}  # by slot, where it is read
        for item in self.items:
            numbers = item.calls if item.__class__ is _Run else [item]
            for number in numbers:
                call = self.capture.calls[number]
                for k in call.given:
                    read.setdefault(k, []).append(item)
                if item.__class__ is not _Run:
                    outside |= {self.group_of(slot.number) for slot in written_by(call)}
                    if self._keeps(call):
                        self.escaping |= {k for k in call.given if k in made_in}
        for run in self.runs():
            given = dict.fromkeys([k for number in run.calls for k in self.capture.calls[number].given])
            run.takes = [k for k in given if made_in.get(k) is not run]
            made = dict.fromkeys([k for number in run.calls for k in self.capture.calls[number].made])
            run.gives = [
                k
                for k in made
                if made_in.get(k) is run and (k in self._results or any(item is not run for item in read.get(k, ())))
            ]
            self.loaded |= {k: self.group_of(k) in outside for k in run.takes if k not in made_in}

    def _keeps(self, call: Call) -> bool:
        """Tell whether what a call between the graphs is given may be read after the replay, or through its result."""
        if call.has_effect:
            return True
        new = [k for k in call.made if k not in call.given]
        return any(self.layouts[k] is None or self.layouts[k].owner not in (k, None) for k in new) or any(
            self.layouts[k].owner is None and self.layouts[k].device is not None for k in new
        )


def is_dense(layout: Layout) -> bool:
    """Tell whether an array fills its memory: one axis after the other, in some order."""
    axes = [(stride, n) for stride, n in zip(layout.strides, layout.shape, strict=True) if n != 1]
    expected = layout.dtype.itemsize
    for stride, n in sorted(axes):
        if stride != expected:
            return False
        expected *= n
    return True


def _makes_memory(call: Call) -> bool:
    return not call.has_effect and getattr(call.function, "attribute", None) not in ("_array", "_grad")


def _is_empty(call: Call) -> bool:
    return name_of(call.function) in ("empty", "empty_like")


def _only_launches(call: Call) -> bool:
    """Tell whether a call does no more than launch kernels, without a look at values or at memory of the host."""
    constants = leaves_in([*call.args, *call.keywords.values()])
    if any(isinstance(part, np.ndarray) for part in constants):
        return False
    function = call.function
    if isinstance(function, np.ufunc):
        return function.nout == 1 and function.__name__ not in _PRODUCTS
    if function in _OPERATORS:
        return True
    if function in (operator.getitem, operator.setitem):
        return _gives_view(call.args[1])
    if function.__class__ is BuiltinMethodType and isinstance(function.__self__, np.ufunc):
        return bool(function.__name__ == "reduce")
    if not (hasattr(function, "method") or hasattr(function, "attribute") or _is_of_library(function)):
        return False
    name = name_of(function)
    if name in _FILLING and any(slots_in([call.args[1:], call.keywords])):  # CuPy may look at the value
        return False
    return name in _RECORDED and (name != "where" or len(call.args) == 3)


def _is_of_library(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] in ("numpy", "cupy")


def _gives_view(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        (isinstance(part, slice) and not any(slots_in(part)))
        or (isinstance(part, _OF_VIEWS) and part.__class__ is not bool)
        for part in parts
    )


# ---------------------------------------------------------------- the text


class GraphWriter(Writer):
    """Writes the text of one replay by graphs."""

    def __init__(self, capture: Capture, results: Sequence[Any]) -> None:
        super().__init__(capture, results, 1 << 62)
        self.plan = Plan(capture, self.results)
        self._last = self._last_items()

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Return the function, whose first graphs are recorded; it makes the calls one by one where graphs cannot be.

        Raises:
            Exception: what a call raises when it is recorded.
        """
        runs = [self._recorded(run) for run in self.plan.runs()]
        text = "\n".join(self._main())
        exec(compile("\n".join([*runs, text]), "<gradmgr replay>", "exec"), self.scope)  # noqa: S102  # text of our own
        functions = [self.scope.pop(f"run{k}") for k in range(len(runs))]
        made: Any = self.scope.pop("replay")
        recorder = _Recorder(self.plan, functions)
        first = recorder.arena()
        plain = Writer(self.capture, self.results, 1 << 62).function()
        self.scope |= {"arenas": [first], "make_arena": recorder.arena, "can_launch": recorder.can_launch}
        self.scope |= {"plain": plain, "load": _load, "copied": _copied}
        self.scope = {}
        made.text, made.nbytes, made.graphs = text, first.nbytes(), len(runs)
        return made  # type: ignore[no-any-return]  # a function of the scope

    def _last_items(self) -> dict[int, int]:
        """Return the number of the item after which a replay does not need a slot."""
        last = {slot.number: -1 for slot in self.capture.inputs}
        for at, item in enumerate(self.plan.items):
            if item.__class__ is _Run:
                last |= dict.fromkeys([k for k in item.takes if k in self.plan.loaded], at)
                last |= {k: max(at, last.get(k, at)) for k in item.gives}
            else:
                call = self.capture.calls[item]
                last |= dict.fromkeys((*call.given, *call.made), at)
        return last | dict.fromkeys([slot.number for slot in slots_in(self.results)], len(self.plan.items))

    # ------------------------------------------------------------ what is recorded

    def _recorded(self, run: _Run) -> str:
        """Write the function whose calls are recorded."""
        at = self.plan.runs().index(run)
        calls = [self.capture.calls[number] for number in run.calls]
        last: dict[int, int] = {}
        for k, call in enumerate(calls):
            last |= dict.fromkeys((*call.given, *call.made), k)
        lines = [f"def run{at}({', '.join([f'v{k}' for k in run.takes])}):"]
        for k, call in enumerate(calls):
            lines += [f"    {line}" for line in self._lines(call)]
            dropped = [f"v{slot}" for slot, when in last.items() if when == k and slot not in run.gives]
            lines += [f"    del {', '.join(dropped)}"] if dropped else []
        return "\n".join([*lines, f"    return ({''.join([f'v{k}, ' for k in run.gives])})"])

    # ------------------------------------------------------------ what Python does

    def _main(self) -> list[str]:
        begun = [] if self.first_effect is None else ["begun"]
        given = ", ".join([*begun, *[variable(slot) for slot in self.capture.inputs]])
        lines = [f"def replay({given}):", f"    if not can_launch(): return plain({given})", *TAKE_ARENA]
        lines += ["    try:", "        arena.begin()", "        fixed, graphs = arena.fixed, arena.graphs"]
        loaded: set[int] = set()
        number = 0
        for at, item in enumerate(self.plan.items):
            if item.__class__ is _Run:
                body = [*self._loads(item, loaded), f"graphs[{number}].launch()", *self._taken(item)]
                touched = [*item.takes, *item.gives]
                number += 1
            else:
                call = self.capture.calls[item]
                notes = item == self.first_effect and not begins_effects(call.function)
                body = [BEGIN_EFFECTS] if notes else []
                body += self._lines(call)
                touched = [*call.given, *call.made]
            dropped = [f"v{k}" for k in dict.fromkeys(touched) if self._last.get(k) == at]
            body += [f"del {', '.join(dropped)}"] if dropped else []
            lines += [f"        {line}" for line in body]
        lines.append(f"        return {self._tuple(self.results)}")
        return [*lines, "    finally:", "        arena.end()", "        arenas.append(arena)"]

    def _loads(self, run: _Run, loaded: set[int]) -> list[str]:
        """Write how buffers get what a graph takes."""
        taken = [k for k in run.takes if k in self.plan.loaded and (k not in loaded or self.plan.loaded[k])]
        loaded.update(taken)
        return [f"load(fixed[{k}], v{k})" for k in taken]

    def _taken(self, run: _Run) -> list[str]:
        """Write how the calls after a graph get what it gives: as it is, or as a copy that others may hold."""
        used = [k for k in run.gives if k in self._last]
        return [f"v{k} = copied(fixed[{k}])" if k in self.plan.escaping else f"v{k} = fixed[{k}]" for k in used]


# ---------------------------------------------------------------- graphs


class _Recorder:
    """Records the graphs of one capture, in as many arenas as are asked for."""

    def __init__(self, plan: Plan, functions: Sequence[Callable[..., tuple[Any, ...]]]) -> None:
        self.cupy: Any = gpu.loaded_cupy()
        self.device = plan.device
        self._layouts = plan.layouts
        self._loaded = list(plan.loaded)
        self._escaping = plan.escaping
        self._runs = list(zip(plan.runs(), functions, strict=True))

    def can_launch(self) -> bool:
        """Tell whether graphs may be launched: on their GPU, and not while the program itself records its stream."""
        cuda = self.cupy.cuda
        return cuda.runtime.getDevice() == self.device and not cuda.get_current_stream().is_capturing()

    def arena(self) -> Arena:
        """Record all graphs."""
        cuda = self.cupy.cuda
        with cuda.Device(self.device):
            made = Arena(cuda)
            stream = cuda.Stream(non_blocking=True)
            stream.wait_event(cuda.get_current_stream().record())  # constants may still be computed there
            with stream, cuda.using_allocator(made.pool.malloc):
                made.fixed |= {k: self._buffer(self._layouts[k]) for k in self._loaded}
                for run, function in self._runs:
                    given = [made.fixed[k] for k in run.takes]
                    function(*given)  # the pool has the memory then, and CuPy the kernels
                    made.graphs.append(_record(stream, made, run, function, given))
            stream.synchronize()
        self._check(made)
        return made

    def _buffer(self, layout: Layout) -> Any:
        flat = self.cupy.zeros(size_of(layout.shape), layout.dtype)
        return self.cupy.lib.stride_tricks.as_strided(flat, layout.shape, layout.strides)

    def _check(self, made: Arena) -> None:
        """Raise where what was recorded lies otherwise in memory than what was captured."""
        for run, _ in self._runs:
            for k in run.gives:
                layout, array = self._layouts[k], made.fixed[k]
                found = [array, _copied(array)] if k in self._escaping else [array]
                for one in found:
                    if (one.shape, one.dtype, one.strides) != (layout.shape, layout.dtype, layout.strides):
                        raise CaptureError(f"an array is of strides {one.strides} that were {layout.strides}")


def _record(stream: Any, made: Arena, run: _Run, function: Callable[..., tuple[Any, ...]], given: list[Any]) -> Any:
    stream.begin_capture()
    try:
        gives = function(*given)
    except BaseException:
        with suppress(Exception):  # an error in a recording may have ended it
            stream.end_capture()
        raise
    graph = stream.end_capture()
    made.fixed |= dict(zip(run.gives, gives, strict=True))
    return graph


class Arena:
    """Graphs, and the memory that they read and write.

    Attributes:
        graphs: in the order in which they are launched.
        fixed: by slot, the buffers of what is copied in, and what the graphs make for others.
        pool: where all their memory is from.
    """

    def __init__(self, cuda: Any) -> None:
        self.graphs: list[Any] = []
        self.fixed: dict[int, Any] = {}
        self.pool = cuda.MemoryPool()
        self._current = cuda.get_current_stream
        self._done = cuda.Event(disable_timing=True)
        self._stream: Any = None  # that of the last replay

    def begin(self) -> None:
        """Have the current stream wait for a replay on another one."""
        stream = self._current()
        if self._stream is not None and stream != self._stream:
            stream.wait_event(self._done)
        self._stream = stream

    def end(self) -> None:
        """Note when all that a replay has queued is done."""
        self._done.record(self._stream)

    def nbytes(self) -> int:
        """Return the bytes of its memory."""
        return int(self.pool.total_bytes())

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of Python there may be no CUDA any more
            self._done.synchronize()


def _load(buffer: Any, array: Any) -> None:
    """Copy an array without gaps into a buffer of the same layout, in the order of the current stream."""
    if array.strides != buffer.strides or array.shape != buffer.shape or array.dtype != buffer.dtype:
        raise CaptureError(f"an array is of shape {array.shape} and strides {array.strides}, not as it was captured")
    buffer.data.copy_from_device_async(array.data, array.nbytes)


def _copied(array: Any) -> Any:
    return array.copy("K")
