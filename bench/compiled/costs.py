"""What compiling costs: a replayed call, capturing and making a program, memory.

`python -m bench.compiled.costs peak MODEL COLUMN THREADS` measures the memory of one model's steps in a process of its
own and prints JSON; `left MODEL COLUMN THREADS STEPS` measures what so many of them leave.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

import gradmgr.numpy as gnp
from bench import memory, train
from bench._arrays import counting
from bench._measure import Contestant, Pace, Row, Table, Verdict, always, race
from bench.compiled.levels import PLAIN, levels
from bench.compiled.speed import EAGER, is_quick
from bench.train.here import Compiled, Here
from gradmgr import GradManager, Tensor, tensor

Make = Callable[[], Here]

_WARM_UP = 5  # steps, two of which are captured

# ---------------------------------------------------------------- a replayed call

_TENSORS = 10
_FIXED = 6.0  # µs at most
FIXED_NOTE = "µs of f(t0, ..., t9), which returns t0 + t9, on tensors of 8 elements; bare: the same of plain arrays"


def _first_and_last(*tensors: Any) -> Any:
    return tensors[0] + tensors[-1]


def _calling(name: str, function: Callable[..., Any], values: Sequence[Any]) -> Contestant:
    def run(n: int) -> None:
        for _ in range(n):
            function(*values)

    def answer() -> list[Any]:
        for _ in range(3):
            found = function(*values)
        return [found]

    return Contestant(name, always(run), answer)


def fixed(pace: Pace) -> Table:
    """Time a call that is little else than a replay's fixed cost."""
    tensors = [tensor([float(k)] * 8) for k in range(_TENSORS)]
    contestants = [_calling("bare", _first_and_last, [t.numpy() for t in tensors])]
    contestants.append(_calling(EAGER, _first_and_last, tensors))
    contestants += [_calling(name, how(_first_and_last), tensors) for name, how in levels().items()]
    times = race("a replayed call", contestants, pace)
    cells = {name: statistics.median(seconds) * 1e6 for name, seconds in times.items()}
    verdicts = tuple(Verdict(f"µs of a call, {name}", cells[name], _FIXED) for name in levels())
    row = Row(f"call with {_TENSORS} tensors", cells, verdicts)
    return Table("Cost of a replayed call", dict.fromkeys(cells, "{:.2f}"), [row], FIXED_NOTE)


# ---------------------------------------------------------------- capturing

_PER_CALL = 10.0  # µs at most, capturing a call and making it a part of the program
_SHORT_LOOPS = (100, 2000)
_LONG, _LONG_SECONDS = 36_000, 2.0  # calls, and what capturing and making may take
CAPTURE_NOTE = (
    "a chain of multiplications and its gradient. The first call is captured; the second too, and then compared with\n"
    "the first and made a program: what it takes longer than the first is making. µs for each NumPy call of the chain"
)
_CAPTURE_COLUMNS = {
    "eager": "{:.2f}",
    "capture": "{:.2f}",
    "make": "{:.2f}",
    "both": "{:.2f}",
    "replay": "{:.2f}",
    "seconds": "{:.3f}",
}


def chain(length: int) -> tuple[Callable[[Tensor], list[Any]], Tensor]:
    """Return a function that makes two NumPy calls for each step, one forward and one backward, and its argument."""
    x = tensor([0.5] * 8)
    gm = GradManager().attach(x)

    def step(factor: Tensor) -> list[Any]:
        with gm:
            y = x
            for _ in range(length):
                y = y * factor
            gm.backward(gnp.sum(y))
        gradient, x.grad = x.grad, None
        return [y, gradient]

    return step, tensor([1.0] * 8)


def _seconds(function: Callable[[Any], Any], value: Any) -> float:
    start = perf_counter()
    function(value)
    return perf_counter() - start


def capturing(how: Callable[..., Any], calls: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of the first calls of a compiled chain."""
    step, factor = chain(calls // 2)
    found: dict[str, list[float]] = {"eager": [], "first": [], "second": [], "replay": []}
    for _ in range(repeats):
        compiled = how(step)
        gc.collect()
        found["first"].append(_seconds(compiled, factor))
        found["second"].append(_seconds(compiled, factor))
        found["replay"].append(min(_seconds(compiled, factor) for _ in range(3)))
        found["eager"].append(_seconds(step, factor))
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def _capture_row(name: str, how: Callable[..., Any], calls: int, repeats: int) -> Row:
    found = capturing(how, calls, repeats)
    each = {key: seconds / calls * 1e6 for key, seconds in found.items()}
    both, total = each["second"], found["first"] + found["second"]
    cells = {"eager": each["eager"], "capture": each["first"], "make": both - each["first"], "both": both}
    cells |= {"replay": each["replay"], "seconds": total}
    is_long = calls == _LONG
    verdict = Verdict("seconds until it is replayed", total, _LONG_SECONDS)
    if not is_long:
        verdict = Verdict("µs for a NumPy call, capturing it and making it a part of the program", both, _PER_CALL)
    return Row(f"{name}, {calls:,} NumPy calls", cells, (verdict,))


def capture(pace: Pace) -> Table:
    """Time the calls in which a function is captured."""
    repeats = 1 if is_quick(pace) else 3
    rows = [
        _capture_row(name, how, calls, repeats) for name, how in levels().items() for calls in (*_SHORT_LOOPS, _LONG)
    ]
    return Table("Cost of capturing", _CAPTURE_COLUMNS, rows, CAPTURE_NOTE)


# ---------------------------------------------------------------- memory

_REPLAYS = 10_000
_GROWTH = 256e3  # bytes of resident memory at most: pages that the allocator takes and gives back
_SMALL = "MLP 8x16x3"
_BESIDE = {"objects": "{:.3f}", "resident": "{:.2f}"}  # what is shown besides the arrays
MEMORY_NOTE = (
    "MB of NumPy's arrays at the peak of a step beyond those between eager steps (parameters, state, data, the row in\n"
    "which an optimiser joins gradients): what a compiled step keeps for its replays counts, its arena and the words\n"
    "that the machine reads. Counted by a memory handler of NumPy's, each contestant in a process of its own.\n"
    "Objects: the same with Python's objects, by tracemalloc; an eager step makes its own anew, a compiled function\n"
    "keeps the text of its replay and what it compares in each call. Resident: of one step, by the system's count,\n"
    "under a malloc that gives freed blocks back"
)
_QUICK_REPLAYS = 100
_BEFORE = 500  # steps whose memory does not count
_TRACED_PART = 10  # of the steps: under tracemalloc they take several times as long
_FLAT_NOTE = (
    f"what steps leave, after {_BEFORE} others: bytes by the system's count, blocks of Python's allocator; and what a\n"
    "tenth as many leave after these by tracemalloc's count, of arrays and of Python's objects"
)


def peaks(make: Make) -> dict[str, float]:
    """Return the bytes of arrays between the steps of what `make` gives, and at their peak."""
    with counting() as arrays:
        made = make()
        for _ in range(_WARM_UP):
            made.step()
        gc.collect()
        between = arrays.now
        arrays.restart()
        made.step()
        found = {"between": float(between), "peak": float(arrays.most)}
    found["objects"] = _traced_peak(make)
    if memory.can_see_peaks():
        found["resident"] = statistics.median([memory.resident_peak(made.step) for _ in range(_WARM_UP)])
    return found


def _traced_peak(make: Make) -> float:
    """Return the bytes of arrays and Python objects at the peak of a step, of those since before its model was made."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        for _ in range(_WARM_UP):
            made.step()
        gc.collect()
        tracemalloc.reset_peak()
        made.step()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def left(make: Make, replays: int) -> dict[str, float]:
    """Return what so many steps leave behind: resident bytes, Python's blocks, and bytes by tracemalloc."""
    made = make()
    _step(made, min(_BEFORE, replays))
    resident, blocks = memory.resident_now(), sys.getallocatedblocks()
    _step(made, replays)
    found = {"bytes": float(memory.resident_now() - resident), "blocks": float(sys.getallocatedblocks() - blocks)}
    tracemalloc.start()
    try:
        _step(made, 2)  # what is kept from one step to the next is made anew, and traced
        traced = tracemalloc.get_traced_memory()[0]
        _step(made, replays // _TRACED_PART)
        return found | {"traced": float(tracemalloc.get_traced_memory()[0] - traced)}
    finally:
        tracemalloc.stop()


def _step(made: Here, count: int) -> None:
    """Make so many steps, and collect what garbage they leave."""
    for _ in range(count):
        made.step()
    gc.collect()


def _maker(label: str, name: str, threads: int) -> Make:
    model = train.MODELS[label]()
    return partial(Here, model, threads) if name == EAGER else partial(Compiled, model, threads, levels()[name])


def _memory_row(label: str, found: dict[str, dict[str, float]]) -> Row:
    eager, cells = found[EAGER], {}
    state = eager["between"]
    for name, one in found.items():
        cells[name] = (one["peak"] - state) / 1e6
        cells[f"{name} objects"] = (one["objects"] - state) / 1e6
        if "resident" in one:
            cells[f"{name} resident"] = one["resident"] / 1e6
    over = {f"{name}/{EAGER}": cells[name] / cells[EAGER] for name in levels()}
    verdicts = tuple(Verdict(f"peak of {name} / {EAGER}", over[f"{name}/{EAGER}"], 1.0) for name in levels())
    return Row(label, cells | over, verdicts)


def memory_of_steps(pace: Pace, threads: int) -> Table:
    """Compare the peaks of compiled and eager steps."""
    labels = memory.first_of_each_kind(train.MODELS) if is_quick(pace) else list(train.MODELS)
    names = [EAGER, *levels()]
    jobs = [(label, name) for label in labels for name in names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(jobs, pool.map(lambda job: _in_a_process("peak", *job, threads), jobs), strict=True))
    rows = [_memory_row(label, {name: found[label, name] for name in names}) for label in labels]
    columns = dict.fromkeys(names, "{:.3f}") | {f"{name}/{EAGER}": "{:.2f}x" for name in levels()}
    columns |= {f"{name} {what}": number for what, number in _BESIDE.items() for name in names}
    return Table("Memory of compiled steps", columns, rows, MEMORY_NOTE)


def memory_of_replays(pace: Pace, threads: int) -> Table:
    """Count what many replays of each training step leave."""
    replays = _QUICK_REPLAYS if is_quick(pace) else _REPLAYS
    labels = memory.first_of_each_kind(train.MODELS) if is_quick(pace) else list(train.MODELS)
    jobs = [(label, name) for label in labels for name in levels() if name != PLAIN or label == _SMALL]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: _in_a_process("left", *job, threads, replays), jobs)
    rows = [
        Row(f"{label}, {name}, {replays:,} steps", cells, (Verdict("resident bytes", cells["bytes"], _GROWTH),))
        for (label, name), cells in zip(jobs, found, strict=True)
    ]
    return Table("Memory after replays", dict.fromkeys(("bytes", "blocks", "traced"), "{:,.0f}"), rows, _FLAT_NOTE)


def _in_a_process(what: str, label: str, name: str, *numbers: int) -> dict[str, float]:
    return memory.in_a_process("bench.compiled.costs", what, label, name, *map(str, numbers))


# ---------------------------------------------------------------- all of it


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure the costs; `only` picks by title."""
    sections: tuple[tuple[str, Callable[[], Table]], ...] = (
        ("Cost of a replayed call", lambda: fixed(pace)),
        ("Cost of capturing", lambda: capture(pace)),
        ("Memory of compiled steps", lambda: memory_of_steps(pace, threads)),
        ("Memory after replays", lambda: memory_of_replays(pace, threads)),
    )
    for title, measure in sections:
        if only.lower() in title.lower():
            yield measure()


def main() -> None:
    what, label, name, threads, *steps = sys.argv[1:]
    measures: dict[str, Callable[..., dict[str, float]]] = {"peak": peaks, "left": left}
    print(json.dumps(measures[what](_maker(label, name, int(threads)), *map(int, steps))))


if __name__ == "__main__":
    main()
