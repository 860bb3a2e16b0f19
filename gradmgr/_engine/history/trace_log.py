"""The trace log of a recording, and the texts of `GradManager.summary` and `GradManager.explain`.

A trace log holds code objects, line offsets and identities, no arrays and no tensors, and the manager keeps it
when the history itself is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import CodeType
from typing import Any

from gradmgr._arrays.libraries import is_array
from gradmgr._engine.context import is_recording
from gradmgr._engine.entry import KINDS, flat, is_result, op_name, tracked_input_ids
from gradmgr._engine.history.spill import format_bytes
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import Entry, Observer, SourceLocation, user_location
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe

CodeLocation = tuple[CodeType, int] | None

# Ops whose derivative is zero wherever it exists.
_ZERO_DERIVATIVE = frozenset(("ceil", "fix", "floor", "floor_divide", "heaviside", "rint", "round", "sign", "trunc"))

# Cuts that say nothing of it where they are written, as `item()` does.
_NUMBERS = ("!float()", "!complex()")


class TraceLog:
    """The steps of one recording, in order.

    Node ids are stored by their id() alone, and the number of a freed one may be used again. So the log is read
    from its start, and a number means the latest value that was recorded under it.
    """

    def __init__(self, tape: Tape) -> None:
        # (op, result, inputs, location). Other steps than ops: "=" attaches a tensor, "!" followed by a name cuts
        # the history of its input, ">" is a write in place.
        self.log: list[tuple[str, int, tuple[int, ...], CodeLocation]] = []
        self.untracked_uses: dict[int, tuple[weakref.ref[Tensor], str, CodeLocation]] = {}  # the first of each tensor
        self.cuts: list[tuple[weakref.ref[Tensor] | None, str, CodeLocation]] = []
        self.seeds: set[int] | None = None  # the steps whose results the last backward started from
        self._tape = weakref.ref(tape)
        for t, node_id in tape.leaves.copy().items():  # other threads may attach
            self.record_attached(t, node_id, None)

    def record_attached(self, t: Tensor, node_id: Any, location: CodeLocation) -> None:
        """Record that a tensor became a leaf."""
        self.log.append(("=", id(node_id), (id(t),), location))

    def record_cut(self, what: str, t: Tensor, result: Any = None) -> None:
        """Record that `result`, computed from `t` by `what`, has no history."""
        tape = self._tape()
        node_id = None if tape is None else tape.node_id_of(t)
        if node_id is None:
            return
        location = user_location()
        self.log.append(("!" + what, 0, (id(node_id),), location))
        self.cuts.append((weakref.ref(result) if isinstance(result, Tensor) else None, what, location))

    def record_write(self, t: Tensor, node_id: Any) -> None:
        """Record that a tensor that had this node id was written to in place."""
        self.log.append((">", 0, (id(node_id), id(t)), user_location()))

    def record_untracked_use(self, t: Tensor, op: str) -> None:
        """Record that a tensor was used that the tape does not track."""
        if id(t) not in self.untracked_uses or self.untracked_uses[id(t)][0]() is not t:
            self.untracked_uses[id(t)] = weakref.ref(t), op, user_location()

    def record_seeds(self, node_ids: Iterable[Any]) -> None:
        """Record the values that a backward starts from."""
        latest = _Replay(self).latest
        self.seeds = {latest[key] for node_id in node_ids if (key := id(node_id)) in latest}

    def location_of(self, node_id: Any) -> SourceLocation | None:
        """Return where a value was computed."""
        key = id(node_id)
        for _, made, _, location in reversed(self.log):
            if made == key:
                return None if location is None else SourceLocation(*location)
        return None

    def explain_untracked(self, y: Tensor) -> str:
        """Return what cut a tensor's history, as text; "" where that was not recorded."""
        for result, what, location in reversed(self.cuts):
            if result is not None and result() is y:
                return f"{what} at {_format_location(location)} cut its history"
        if self.cuts:
            return "in this recording, history was cut at: " + "; ".join(
                dict.fromkeys(f"{what} at {_format_location(location)}" for _, what, location in self.cuts[-5:])
            )
        return ""


def _format_location(location: CodeLocation) -> str:
    return "an unknown place" if location is None else str(SourceLocation(*location))


class Tracing(Observer):
    """Writes the trace log of each tape it observes."""

    def attached_to(self, tape: Tape) -> None:
        """Begin the trace log of a tape."""
        if tape.trace_log is None:
            tape.trace_log = TraceLog(tape)

    def observe(self, tape: Tape, e: Entry) -> Entry:
        # 4 frames are gradmgr's own: user_location, this one, the entry list's append, the op's function.
        kind = KINDS[e[0]]
        op = kind.op if kind.name is None else kind.name(e)
        tape.trace_log.log.append((op, id(e[1]), tuple([id(node_id) for node_id in kind.inputs(e)]), user_location(4)))
        return e


class UseTracing(Interceptor):
    """Logs, for a manager made with_stack, what its tape does not see: ops on untracked tensors or under no_grad."""

    __slots__ = ("_tape",)

    follows_backward = False

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def before_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        tape = self._tape
        if tape.open:
            for t in inputs:
                if isinstance(t, Tensor):
                    if tape.node_id_of(t) is None:
                        tape.trace_log.record_untracked_use(t, op.name)
                    elif not is_recording(tape):
                        tape.trace_log.record_cut(f"{op.name} under no_grad()", t)
        return inputs


# ---------------------------------------------------------------- summary


def summary(tape: Tape | None) -> str:
    """Return a table of the bytes that a tape keeps, by op and, where it has a trace log, by line."""
    if tape is None or not tape.open:
        return "This GradManager is idle: it keeps nothing."
    entries = [e for e in tape.kept_entries() if not is_result(e)]  # such an entry keeps nothing
    sizes = _kept_bytes(entries)
    locations = {} if tape.trace_log is None else {made: location for _, made, _, location in tape.trace_log.log}
    by_op = _totals((op_name(e), size) for e, size in zip(entries, sizes, strict=True))
    lines = [
        f"{len(entries)} operations recorded, {len(tape.leaves)} tensors attached; "
        f"kept for their derivatives: {format_bytes(sum(sizes))} in arrays",
        *_table("op", by_op),
    ]
    if tape.trace_log is None:
        lines.append("(by line of your program too with GradManager(with_stack=True) or under detect_anomaly())")
    else:
        by_line = _totals((_format_line(locations.get(id(e[1]))), size) for e, size in zip(entries, sizes, strict=True))
        lines += ["", *_table("line", by_line)]
    return "\n".join(lines)


def _kept_bytes(entries: list[Entry]) -> list[int]:
    """Return the bytes each entry keeps; a buffer that several keep is counted with the first."""
    seen: dict[int, Any] = {}
    sizes = []
    for e in entries:
        size = 0
        for a in flat(e[2:]):
            if is_array(a) and a.ndim > 0:
                owner = a.base if is_array(getattr(a, "base", None)) else a
                if id(owner) not in seen:
                    seen[id(owner)] = owner
                    size += int(owner.nbytes)
        sizes.append(size)
    return sizes


def _totals(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    counts: dict[str, list[int]] = {}
    for name, size in pairs:
        total = counts.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += size
    rows = [(name, count, size) for name, (count, size) in counts.items()]
    return sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))


def _table(title: str, rows: list[tuple[str, int, int]]) -> list[str]:
    width = max([len(title), *[len(name) for name, _, _ in rows]])
    head = f"{title:<{width}}  {'calls':>7}  {'kept':>10}"
    return [head, *[f"{name:<{width}}  {count:>7}  {format_bytes(size):>10}" for name, count, size in rows]]


def _format_line(location: CodeLocation) -> str:
    if location is None:
        return "(unknown)"
    place = SourceLocation(*location)
    text = place.text()
    return f"{place.file}:{place.line}" + (f"  {text}" if text else "")


# ---------------------------------------------------------------- explain


class _Replay:
    """A trace log read from its start: for each step, the steps that it was computed from."""

    def __init__(self, trace_log: TraceLog) -> None:
        self.trace_log = trace_log
        self.inputs: list[list[int]] = []
        latest: dict[int, int] = {}
        for step, (op, made, given, _) in enumerate(trace_log.log):
            self.inputs.append([] if op == "=" else [latest[key] for key in given if key in latest])
            if made:
                latest[made] = step
        self.latest = latest

    def op(self, step: int) -> str:
        op, of = self.trace_log.log[step][0], self.inputs[step]
        return self.op(of[0]) if op == "result" and of else op  # one of several results of an op

    def location(self, step: int) -> str:
        return _format_location(self.trace_log.log[step][3])

    def attach_steps(self, t: Tensor) -> list[int]:
        """Return the steps in which a tensor became a leaf."""
        return [k for k, (op, _, given, _) in enumerate(self.trace_log.log) if op == "=" and given == (id(t),)]

    def steps_from(self, start: int) -> set[int]:
        """Return the steps that depend on a step, itself included."""
        reached = {start}
        for step in range(start + 1, len(self.inputs)):
            if not reached.isdisjoint(self.inputs[step]):
                reached.add(step)
        return reached


def explain(name: str | None, t: Tensor, attached: bool, tape: Tape | None, trace_log: TraceLog | None) -> str:
    """Explain in words why `t.grad` is what it is, for a manager with this tape and trace log."""
    label = describe(t, name)
    if not attached:
        return (
            f"{label} is not attached to this manager, so it receives no gradient: call gm.attach(x) before it is "
            "used. Mind that x = x - step makes a new tensor, which is not attached; x -= step does not."
        )
    if trace_log is None:
        return _explain_untraced(label, t, tape)
    replay = _Replay(trace_log)
    starts = replay.attach_steps(t)
    if not starts:
        return f"{label} is attached, but was not when the last recording was made; record again."
    return _explain_traced(label, t, replay, starts, tape is not None and tape.open)


def _explain_untraced(label: str, t: Tensor, tape: Tape | None) -> str:
    hint = "Make the manager with GradManager(with_stack=True), or record under detect_anomaly(), to be told where."
    if t.grad is not None:
        return f"{label} is attached and has a gradient."
    if tape is None or not tape.open:
        return (
            f"{label} is attached, and its .grad is None: no backward() has reached it since the gradient was "
            "cleared. Either none ran, or what it differentiated did not depend on this tensor as it was attached. "
            + hint
        )
    node_id = tape.leaves.get(t)
    if any(node_id in tracked_input_ids(e) for e in tape.kept_entries()):
        return f"{label} is attached and used in this recording; backward() has not reached it yet. {hint}"
    return f"{label} is attached, but nothing that is alive was computed from it in this recording. {hint}"


def _explain_traced(label: str, t: Tensor, replay: _Replay, starts: list[int], recording: bool) -> str:
    start, seeds = starts[-1], replay.trace_log.seeds
    reached = replay.steps_from(start)
    used = [step for step in sorted(reached) if step != start]
    computed = [step for step in used if replay.op(step)[0] not in "!>"]
    written = [step for step in used if replay.op(step) == ">" and replay.inputs[step] == [start]]
    cuts = [step for step in used if replay.op(step)[0] == "!"]
    if seeds is not None and seeds & reached:
        return _explain_reached(label, t, replay, computed, written) + _explain_missing(replay, cuts)
    reasons = [f"{label} is attached, and its .grad is {'None' if t.grad is None else 'of an earlier backward'}:"]
    early_use = replay.trace_log.untracked_uses.get(id(t))
    attach_location = replay.trace_log.log[start][3]
    if early_use is not None and early_use[0]() is t and attach_location is not None:
        reasons.append(
            f"it was attached at {_format_location(attach_location)}, after it had been used in "
            f"{early_use[1]!r} at {_format_location(early_use[2])}; what was computed before does not count."
        )
    if written and not computed:
        reasons.append(f"it was overwritten at {replay.location(written[0])} before anything was computed from it.")
    reasons += [f"what was computed from it was cut by {cut}." for cut in _lines_of(replay, cuts)]
    if len(reasons) == 1 and not computed:
        reasons.append("nothing was computed from it in the recording.")
    if computed and seeds is not None:
        last = computed[-1]
        reasons.append(
            f"what backward() started from does not depend on it; the last that does is the result of "
            f"{replay.op(last)!r} at {replay.location(last)}."
        )
    if seeds is None:
        reasons.append(
            "backward() has not run yet." if recording else "the recording was released without a backward()."
        )
    return f"{reasons[0]} {'; '.join([reason.removesuffix('.') for reason in reasons[1:]])}."


def _lines_of(replay: _Replay, cuts: list[int]) -> list[str]:
    """Return each line that cut once, with what cut there."""
    return list(dict.fromkeys(f"{replay.op(step)[1:]} at {replay.location(step)}" for step in cuts))


def _explain_missing(replay: _Replay, cuts: list[int]) -> str:
    """Return a sentence about the conversions to numbers that a program did not write as cuts; "" if there are none."""
    lines = _lines_of(replay, [step for step in cuts if replay.op(step) in _NUMBERS])
    return f" What flows through {' and '.join(lines)} is not in it, as history was cut there." if lines else ""


def _explain_reached(label: str, t: Tensor, replay: _Replay, computed: list[int], written: list[int]) -> str:
    if t.grad is None:
        return f"{label} was reached by the last backward(); its .grad was set to None since, or backward() failed."
    zero = f"{label} was reached by the last backward(), and its gradient is zero:"
    zero_steps = [step for step in computed if replay.op(step) in _ZERO_DERIVATIVE]
    if written and not bool(t.grad._array.any()):
        return f"{zero} it was overwritten at {replay.location(written[0])}."
    if zero_steps and not bool(t.grad._array.any()):
        step = zero_steps[0]
        return (
            f"{zero} what was computed from it goes through {replay.op(step)!r} at {replay.location(step)}, "
            "whose derivative is zero."
        )
    return f"{label} was reached by the last backward(); its .grad is there."
