"""Trials: a capture's calls made again on what they were given, before a program of them is used.

A rehearsal runs the program itself, up to its first effect, on stand-ins for Tensors; a trial makes the calls that have
no effects in a program of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, Slot
from gradmgr._compile.assembly import Assembly
from gradmgr._compile.replay_calls import READS, array_of, grad_of, is_grad, layout_of
from gradmgr._engine.tensor import wrap


class Trial(NamedTuple):
    """Calls to make again, from these inputs, and what slots must hold then."""

    capture: Capture
    inputs: list[Any]
    expected: list[tuple[Slot, Any]]


class StandIn:
    """Stands for a Tensor in a rehearsal: it holds what the captured call found."""

    __slots__ = ("_array", "_grad")

    _array: Any
    _grad: Any


class Rehearsal(NamedTuple):
    """What a replay is given to run up to its first effect, and the arrays that slots must hold then."""

    inputs: list[Any]
    expected: list[tuple[Slot, Any]]


def rehearsal_of(capture: Assembly, results: Iterable[Slot]) -> Rehearsal | None:
    """Return what shows whether a replay with these results is right; None where that takes more.

    It does where later calls compute further arrays, and where what may be the user's code is called before.
    """
    first = next((k for k, call in enumerate(capture.calls) if call.has_effect), len(capture.calls))
    before, after = capture.calls[:first], capture.calls[first:]
    if any(call.function is not layout_of for call in after if capture.is_on_trial(call)):
        return None
    stand_ins = {number: StandIn() for number, layout in enumerate(capture.layouts) if layout is None}
    left = dict(capture.left)
    for call in before:
        if call.function is wrap:
            left[call.results.number] = capture.left[call.args[0].number]
        elif call.function in READS:
            _find(capture.found, call, stand_ins)
        elif not capture.found.keys().isdisjoint(call.made):
            return None
    expected = [(slot, left[slot.number]) for slot in shown_slots(capture, results)]
    return Rehearsal([stand_ins.get(slot.number, capture.found.get(slot.number)) for slot in capture.inputs], expected)


def shown_slots(capture: Assembly, results: Iterable[Slot]) -> list[Slot]:
    """Return what a replay with these results can show of what it computes before its first effect."""
    first = next((k for k, call in enumerate(capture.calls) if call.has_effect), len(capture.calls))
    before, after = capture.calls[:first], capture.calls[first:]
    left = capture.left.keys() | {
        call.results.number for call in before if call.function is wrap and call.args[0].number in capture.left
    }
    made = {number for call in before for number in call.made}
    read = {number for call in after for number in call.given}.union([slot.number for slot in results])
    return [Slot(number) for number in sorted(made & read & left)]


def _find(found: Mapping[int, Any], call: Call, stand_ins: dict[int, StandIn]) -> None:
    """Let the stand-in for a tensor hold what a call has read of it."""
    stand_in = stand_ins[call.args[0].number]
    if call.function is array_of:
        stand_in._array = found[call.results.number]
    elif call.function is grad_of:
        stand_in._grad = stand_ins[call.results.number]
    elif call.function is is_grad:
        stand_in._grad = stand_ins[call.args[1].number]
    else:
        stand_in._grad = StandIn() if call.expected else None  # which `grad_of` replaces


def trial_of(capture: Assembly) -> Trial | None:
    """Return what a replay of the calls without effects takes and must give; None where they need more."""
    made = Capture()
    made.layouts = capture.layouts
    made.calls = [call for call in capture.calls if capture.is_on_trial(call)]
    made.inputs = [Slot(number) for number in capture.found]
    known = set(capture.found).union(*[call.made for call in made.calls])
    if not all(known.issuperset(call.given) for call in made.calls):
        return None
    expected = [(Slot(number), array) for number, array in capture.left.items() if number in known]
    return Trial(made, list(capture.found.values()), expected)
