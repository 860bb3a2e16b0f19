"""What a recording that is traced leaves behind, and what it tells: `GradManager.summary` and `GradManager.explain`.

A diary holds code objects, line offsets and identities, no arrays and no tensors, and it stays with
the manager when the history itself is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import CodeType
from typing import Any

from gradmgr._arrays.libraries import is_array
from gradmgr._engine.history.spill import spelled
from gradmgr._engine.observers import Entry, Observer, Place, user_location
from gradmgr._engine.op import INPUTS, NAMES, op_of
from gradmgr._engine.recorder import Interceptor, is_recording
from gradmgr._engine.tape import Tape, flat, inputs_of, op_name
from gradmgr._engine.tensor import Tensor, describe

Where = tuple[CodeType, int] | None

# Ops whose derivative is zero wherever there is one.
_FLAT = frozenset(("ceil", "fix", "floor", "floor_divide", "heaviside", "rint", "round", "sign", "trunc"))


class TraceLog:
    """What happened in one recording, in order.

    Marks are held by identity alone, so a dead one's number may return; whoever reads does so from the
    start, and the latest value of a number is the one that is meant.
    """

    def __init__(self, tape: Tape) -> None:
        # (op, result, inputs, where). Beside ops: "=" gives an attached tensor its mark, "!" begins what cuts
        # its input off, ">" is a write in place.
        self.log: list[tuple[str, int, tuple[int, ...], Where]] = []
        self.uses: dict[int, tuple[weakref.ref[Tensor], str, Where]] = {}  # first uses of tensors nobody knew
        self.cuts: list[tuple[weakref.ref[Tensor] | None, str, Where]] = []
        self.seeds: set[int] | None = None  # what the last backward started from, as steps of the replay
        self._tape = weakref.ref(tape)
        for t, node_id in tape.leaves.items():
            self.attached(t, node_id, None)

    def attached(self, t: Tensor, node_id: Any, where: Where) -> None:
        """Take down that a tensor became a leaf."""
        self.log.append(("=", id(node_id), (id(t),), where))

    def cut(self, what: str, t: Tensor, result: Any = None) -> None:
        """Take down that what is computed from `t` by `what` has no history."""
        tape = self._tape()
        node_id = None if tape is None else tape.node_id_of(t)
        if node_id is None:
            return
        where = user_location()
        self.log.append(("!" + what, 0, (id(node_id),), where))
        self.cuts.append((weakref.ref(result) if isinstance(result, Tensor) else None, what, where))

    def rebound(self, t: Tensor, node_id: Any) -> None:
        """Take down that a tensor known by `mark` was written to in place."""
        self.log.append((">", 0, (id(node_id), id(t)), user_location()))

    def used_unknown(self, t: Tensor, op: str) -> None:
        """Take down that a tensor was used while nobody knew it."""
        if id(t) not in self.uses or self.uses[id(t)][0]() is not t:
            self.uses[id(t)] = weakref.ref(t), op, user_location()

    def location_of(self, node_id: Any) -> Place | None:
        """Return where a value was computed."""
        key = id(node_id)
        for _, made, _, where in reversed(self.log):
            if made == key:
                return None if where is None else Place(*where)
        return None

    def why_unknown(self, y: Tensor) -> str:
        """Say what cut a tensor's history, "" where that was not seen."""
        for result, what, where in reversed(self.cuts):
            if result is not None and result() is y:
                return f"{what} at {_at(where)} cut its history"
        if self.cuts:
            return "in this recording, history was cut at: " + "; ".join(
                dict.fromkeys(f"{what} at {_at(where)}" for _, what, where in self.cuts[-5:])
            )
        return ""


def _at(where: Where) -> str:
    return "an unknown place" if where is None else str(Place(*where))


class Tracing(Observer):
    """Keeps the diaries of the tapes it hears."""

    def attached_to(self, tape: Tape) -> None:
        """Begin a diary for a tape."""
        if tape.trace_log is None:
            tape.trace_log = TraceLog(tape)

    def observe(self, tape: Tape, e: Entry) -> Entry:
        # Frames above: this one, the list's append, the op's.
        op = NAMES[e[0]](e) if e[0] in NAMES else e[0]
        tape.trace_log.log.append((op, id(e[1]), tuple(map(id, INPUTS[e[0]](e))), user_location(4)))
        return e


class Uses(Interceptor):
    """Sees what a tape cannot, for a manager made with_stack: tensors used before they are attached, and no_grad."""

    __slots__ = ("_tape",)

    follows_backward = False

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def given(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        tape = self._tape
        if tape.open:
            for t in inputs:
                if isinstance(t, Tensor):
                    if tape.node_id_of(t) is None:
                        tape.trace_log.used_unknown(t, op.name)
                    elif not is_recording(tape):
                        tape.trace_log.cut(f"{op.name} under no_grad()", t)
        return inputs


# ---------------------------------------------------------------- summary


def summary(tape: Tape | None) -> str:
    """Say what a tape keeps, in bytes, by op and, where it has a diary, by line."""
    if tape is None or not tape.open:
        return "This GradManager is idle: it keeps nothing."
    entries = [e for e in list(tape.entries) if e[0] != "result"]  # one of several of an op, keeps nothing
    shares = _shares(entries)
    places = {} if tape.trace_log is None else {made: where for _, made, _, where in tape.trace_log.log}
    by_op = _totals((op_name(e), share) for e, share in zip(entries, shares, strict=True))
    lines = [
        f"{len(entries)} operations recorded, {len(tape.leaves)} tensors attached; "
        f"kept for their derivatives: {spelled(sum(shares))} in arrays",
        *_table("op", by_op),
    ]
    if tape.trace_log is None:
        lines.append("(by line of your program too with GradManager(with_stack=True) or under detect_anomaly())")
    else:
        by_line = _totals((_line_of(places.get(id(e[1]))), share) for e, share in zip(entries, shares, strict=True))
        lines += ["", *_table("line", by_line)]
    return "\n".join(lines)


def _shares(entries: list[Entry]) -> list[int]:
    """Return the bytes each entry keeps, a buffer that several keep counted with the first."""
    seen: dict[int, Any] = {}
    shares = []
    for e in entries:
        share = 0
        for a in flat(e[2:]):
            if is_array(a) and a.ndim > 0:
                owner = a.base if is_array(getattr(a, "base", None)) else a
                if id(owner) not in seen:
                    seen[id(owner)] = owner
                    share += int(owner.nbytes)
        shares.append(share)
    return shares


def _totals(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    counts: dict[str, list[int]] = {}
    for name, share in pairs:
        total = counts.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += share
    rows = [(name, count, size) for name, (count, size) in counts.items()]
    return sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))


def _table(title: str, rows: list[tuple[str, int, int]]) -> list[str]:
    width = max([len(title), *[len(name) for name, _, _ in rows]])
    head = f"{title:<{width}}  {'calls':>7}  {'kept':>10}"
    return [head, *[f"{name:<{width}}  {count:>7}  {spelled(size):>10}" for name, count, size in rows]]


def _line_of(where: Where) -> str:
    if where is None:
        return "(unknown)"
    place = Place(*where)
    text = place.text()
    return f"{place.file}:{place.line}" + (f"  {text}" if text else "")


# ---------------------------------------------------------------- explain


class _Replay:
    """A diary read from its start: each step of the log is a value, and knows the steps it was computed from."""

    def __init__(self, trace_log: TraceLog) -> None:
        self.trace_log = trace_log
        self.inputs: list[list[int]] = []
        latest: dict[int, int] = {}
        for step, (_, made, given, _) in enumerate(trace_log.log):
            op = trace_log.log[step][0]
            self.inputs.append([] if op == "=" else [latest[key] for key in given if key in latest])
            if made:
                latest[made] = step
        self.latest = latest

    def op(self, step: int) -> str:
        op, of = self.trace_log.log[step][0], self.inputs[step]
        return self.op(of[0]) if op == "result" and of else op  # one of several: their op's

    def at(self, step: int) -> str:
        return _at(self.trace_log.log[step][3])

    def leaves(self, t: Tensor) -> list[int]:
        """Return the steps in which a tensor became a leaf."""
        return [k for k, (op, _, given, _) in enumerate(self.trace_log.log) if op == "=" and given == (id(t),)]

    def from_here(self, start: int) -> set[int]:
        """Return the steps that depend on a step, itself included."""
        reached = {start}
        for step in range(start + 1, len(self.inputs)):
            if not reached.isdisjoint(self.inputs[step]):
                reached.add(step)
        return reached


def explain(name: str | None, t: Tensor, attached: bool, tape: Tape | None, trace_log: TraceLog | None) -> str:
    """Say in words why `t.grad` is what it is, from a manager's point of view."""
    called = describe(t, name)
    if not attached:
        return (
            f"{called} is not attached to this manager, so it receives no gradient: call gm.attach(x) before it is "
            "used. Mind that x = x - step makes a new tensor, which is not attached; x -= step does not."
        )
    if trace_log is None:
        return _without_diary(called, t, tape)
    replay = _Replay(trace_log)
    starts = replay.leaves(t)
    if not starts:
        return f"{called} is attached, but was not when the last recording was made; record again."
    return _from_diary(called, t, replay, starts, tape is not None and tape.open)


def _without_diary(called: str, t: Tensor, tape: Tape | None) -> str:
    hint = "Make the manager with GradManager(with_stack=True), or record under detect_anomaly(), to be told where."
    if t.grad is not None:
        return f"{called} is attached and has a gradient."
    if tape is None or not tape.open:
        return (
            f"{called} is attached, and its .grad is None: no backward() has reached it since the gradient was "
            "cleared. Either none ran, or what it differentiated did not depend on this tensor as it was attached. "
            + hint
        )
    node_id = tape.leaves.get(t)
    if any(node_id in inputs_of(e) for e in list(tape.entries)):
        return f"{called} is attached and used in this recording; backward() has not reached it yet. {hint}"
    return f"{called} is attached, but nothing that is alive was computed from it in this recording. {hint}"


def _from_diary(called: str, t: Tensor, replay: _Replay, starts: list[int], recording: bool) -> str:
    start, seeds = starts[-1], replay.trace_log.seeds
    reached = replay.from_here(start)
    used = [step for step in sorted(reached) if step != start]
    computed = [step for step in used if replay.op(step)[0] not in "!>"]
    written = [step for step in used if replay.op(step) == ">" and replay.inputs[step] == [start]]
    if seeds is not None and seeds & reached:
        return _reached(called, t, replay, computed, written)
    found = [f"{called} is attached, and its .grad is {'None' if t.grad is None else 'of an earlier backward'}:"]
    early = replay.trace_log.uses.get(id(t))
    where_attached = replay.trace_log.log[start][3]
    if early is not None and early[0]() is t and where_attached is not None:
        found.append(
            f"it was attached at {_at(where_attached)}, after it had been used in {early[1]!r} at {_at(early[2])}; "
            "what was computed before does not count."
        )
    if written and not computed:
        found.append(f"it was overwritten at {replay.at(written[0])} before anything was computed from it.")
    cuts = [step for step in used if replay.op(step)[0] == "!"]
    found += [f"what was computed from it was cut by {replay.op(k)[1:]} at {replay.at(k)}." for k in cuts[-3:]]
    if len(found) == 1 and not computed:
        found.append("nothing was computed from it in the recording.")
    if computed and seeds is not None:
        last = computed[-1]
        found.append(
            f"what backward() started from does not depend on it; the last that does is the result of "
            f"{op_of(replay.op(last))!r} at {replay.at(last)}."
        )
    if seeds is None:
        found.append("backward() has not run yet." if recording else "the recording was released without a backward().")
    return f"{found[0]} {'; '.join([reason.removesuffix('.') for reason in found[1:]])}."


def _reached(called: str, t: Tensor, replay: _Replay, computed: list[int], written: list[int]) -> str:
    if t.grad is None:
        return f"{called} was reached by the last backward(); its .grad was set to None since, or backward() failed."
    zero = f"{called} was reached by the last backward(), and its gradient is zero:"
    flat_ones = [step for step in computed if op_of(replay.op(step)) in _FLAT]
    if written and not bool(t.grad._array.any()):
        return f"{zero} it was overwritten at {replay.at(written[0])}."
    if flat_ones and not bool(t.grad._array.any()):
        step = flat_ones[0]
        return (
            f"{zero} what was computed from it goes through {op_of(replay.op(step))!r} at {replay.at(step)}, "
            "whose derivative is zero."
        )
    return f"{called} was reached by the last backward(); its .grad is there."


def seeded(trace_log: TraceLog, node_ids: Iterable[Any]) -> None:
    """Take down what a backward starts from."""
    replay = _Replay(trace_log)
    trace_log.seeds = {replay.latest[key] for node_id in node_ids if (key := id(node_id)) in replay.latest}
