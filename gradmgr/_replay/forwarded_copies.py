"""Copies that a capture makes and a replay need not: the call that made the original writes into the copy."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.captured_calls import Call, Slot
from gradmgr._arrays.captured_functions import STEADY


def without_copies(calls: Sequence[Call], layouts: Sequence[Any], kept: Iterable[int]) -> list[Call]:
    """Return calls without copies, into new memory, of what a ufunc or a kernel of ours made and nothing else reads.

    A gradient is copied so in a capture, as who else may see it is not known before its end. The kernel's result then
    is what was the copy. A kernel keeps nothing, see `libraries.captured_as_one`; `kept` are slots that must stay.
    """
    copies = {
        call.args[2].number: k
        for k, call in enumerate(calls)
        if call.function is operator.setitem and call.args[1] is Ellipsis and call.args[2].__class__ is Slot
    }
    # Few calls make what is copied, so that is asked first.
    made_by = [(k, call) for k, call in enumerate(calls) if not copies.keys().isdisjoint(call.made)] if copies else []
    makers = {s: k for k, call in made_by if _keeps_nothing(call) for s in call.made if s in copies}
    if not makers:
        return list(calls)
    watched = {*makers, *[calls[copies[s]].args[0].number for s in makers]}
    uses: dict[int, list[int]] = {}
    for k, call in enumerate(calls):
        for number in call.given:
            if number in watched:
                uses.setdefault(number, []).append(k)
    shared = {layout.owner for s, layout in enumerate(layouts) if layout is not None and layout.owner != s}
    empties = {call.made[0]: k for k, call in enumerate(calls) if call.function in (np.empty_like, np.empty)}
    made: list[Call | None] = list(calls)
    for source, maker in makers.items():
        target = calls[copies[source]].args[0].number
        one, other = layouts[source], layouts[target]
        is_new = one.owner == source and source not in shared and uses[source] == [copies[source]]
        is_alike = (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides)
        if not (is_new and is_alike and target in empties and source not in kept and uses[target][0] == copies[source]):
            continue
        made[maker] = (made[maker] or calls[maker]).but(result=(source, target))
        made[copies[source]] = made[empties[target]] = None
    return [call for call in made if call is not None]


def _keeps_nothing(call: Call) -> bool:
    function = call.function
    if function.__class__ is np.ufunc or function is np.dot or function in STEADY:
        return not call.keywords
    return getattr(function, "keeps_nothing", False) and not call.has_effect
