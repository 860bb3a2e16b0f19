"""The suite `memory`: what a recording keeps alive, and the peak and the residue of training steps.

Bytes, not times: the same in every run. `python -m bench.memory MODEL LIBRARY THREADS` measures the steps of one
model in a process of its own and prints JSON.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import gradmgr.numpy as gnp
from bench import train
from bench._arrays import counting
from bench._measure import Pace, Row, Table, Verdict
from gradmgr import GradManager, Tensor, tensor

NOTE = "counted by Tape.nbytes() and the number of entries, and by tracemalloc, which sees NumPy's memory"
COLUMNS = {"found": "{:,.0f}"}

_SIDE = 100


def _ones() -> Tensor:
    return tensor([[0.5] * _SIDE] * _SIDE, dtype="float32")


def _tape(gm: GradManager) -> Any:
    """Return the tape of a manager that records: what only a benchmark may look at."""
    return gm._tape


def _row(label: str, found: float, what: str, at_most: float) -> Row:
    return Row(label, {"found": found}, (Verdict(what, found, at_most),))


def _forward_and_backward(x: Tensor, w: Tensor, gm: GradManager) -> tuple[Any, list[Tensor]]:
    """Record, run backward, and return the tape and every output."""
    gm.record()
    tape = _tape(gm)
    outputs = [x @ w]
    for _ in range(10):
        outputs.append(gnp.tanh(outputs[-1] * w))
        outputs.append(gnp.exp(outputs[-1] / 10 + x))
    gm.backward(outputs[-1].sum())
    return tape, outputs


def after_backward() -> list[Row]:
    """Count what is still held after backward while the user holds every output."""
    x, w = _ones(), _ones()
    gm = GradManager().attach([x, w])
    _forward_and_backward(x, w, gm)  # functions are made when they are first used, and stay
    gm.clear_grad()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tape, outputs = _forward_and_backward(x, w, gm)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    visible = sum(t.nbytes for t in (*outputs, x.grad, w.grad))
    beyond = after - before - visible
    return [
        _row("bytes held by the tape after backward", tape.nbytes(), "bytes", 0),
        _row("entries of the tape after backward", len(tape.entries), "entries", 0),
        _row("bytes alive beyond outputs and .grad", beyond, f"bytes, less than one value of {x.nbytes:,}", x.nbytes),
    ]


def dropped(results: int) -> list[Row]:
    """Count what a recording keeps of results that are not held."""
    x = _ones()
    gm = GradManager().attach(x)
    most_entries = 0
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with gm:
            for _ in range(results):
                gnp.exp(x)
                most_entries = max(most_entries, len(_tape(gm).entries))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    made = results * x.nbytes
    return [
        _row(f"entries at most, {results:,} results dropped", most_entries, "entries", 1000),
        _row("  bytes at most, each exp keeping its result", peak - before, f"bytes, a tenth of {made:,}", made / 10),
    ]


def _kept(compute: Callable[[Tensor, Tensor], Any]) -> int:
    """Return the bytes that recording this keeps; the first argument is tracked, the second is frozen."""
    x, frozen = _ones(), _ones()
    gm = GradManager().attach(x)
    with gm:
        tracked = x * 1.0
        at_first = _tape(gm).nbytes()
        z = compute(tracked, frozen)
        found = _tape(gm).nbytes() - at_first
        del z
    return int(found)


def kept() -> list[Row]:
    """Count the arrays each op keeps, each of the size of x."""
    one = _ones().nbytes
    return [
        _row("arrays kept by x @ W, W frozen: W, not x", _kept(lambda x, w: x @ w) / one, "arrays", 1),
        _row("arrays kept by np.exp(x): its result", _kept(lambda x, w: gnp.exp(x)) / one, "arrays", 1),
        _row("arrays kept by x + x", _kept(lambda x, w: x + x) / one, "arrays", 0),
        _row("arrays kept by x + c", _kept(lambda x, c: x + c) / one, "arrays", 0),
    ]


def frozen_activation() -> Row:
    """Count the bytes of x itself that x @ W keeps while W is frozen: the array's own references tell."""
    x, w = _ones(), _ones()
    gm = GradManager().attach(x)
    with gm:
        tracked = x * 1.0
        z = tracked @ w
        kept_arrays = {id(part) for entry in _tape(gm).entries for part in entry}
        found = tracked.nbytes if id(tracked._array) in kept_arrays else 0
        del z
    return _row("bytes of x kept by x @ W, W frozen", found, "bytes", 0)


def rows(results: int = 10_000) -> list[Row]:
    """Count everything."""
    return [*after_backward(), *dropped(results), *kept(), frozen_activation()]


# ---------------------------------------------------------------- training steps

STEPS_NOTE = (
    "MB that a step takes at its peak beyond what was there before it (parameters, state, data); each contestant in\n"
    "a process of its own. Counted: bytes of gradmgr's arrays by a memory handler of NumPy's, of PyTorch's tensors by\n"
    "its profiler: exact, and what the ratio is of. With objects: gradmgr's arrays and Python objects by tracemalloc.\n"
    "Resident: pages by the system's count, to some 0.3 MB, under a malloc that gives every freed block back at once.\n"
    "Residue: bytes of arrays alive after a step and not before"
)
STEPS_COLUMNS = {
    "PyTorch MB": "{:.3f}",
    "gradmgr MB": "{:.3f}",
    "ratio": "{:.2f}x",
    "residue": "{:,.0f}",
    "with objects": "{:.3f}",
    "resident": "{:.2f}",
    "PyTorch's": "{:.2f}",
}

# Read by glibc when a process starts. Blocks of a page or more are mapped one by one and unmapped when freed; without
# this, what malloc keeps for later hides a part of the next step's peak. Huge pages would round up.
_UNMAP_FREED_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": "4096",
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
_WARM_UP = 4
_STEPS = 5

Step = Callable[[], object]


def _resident() -> dict[str, int]:
    """Return the bytes that this process has in memory, now (VmRSS) and at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    words = [line.split() for line in lines if line.startswith(("VmRSS", "VmHWM"))]
    return {name.rstrip(":"): 1024 * int(number) for name, number, _ in words}


def resident_now() -> int:
    """Return the bytes that this process has in memory after malloc gave back what it could."""
    if (trim := _trim()) is not None:
        trim(0)
    return _resident()["VmRSS"]


def _trim() -> Callable[[int], int] | None:
    """Return what makes malloc give back what it has; None where it is not glibc's."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def can_see_peaks() -> bool:
    """Tell whether the system can say what this process takes at most."""
    return _trim() is not None and os.access("/proc/self/clear_refs", os.W_OK)


def resident_peak(step: Step) -> int:
    """Return the bytes that a step takes at its peak, by the system's count."""
    gc.collect()
    before = resident_now()
    Path("/proc/self/clear_refs").write_text("5")  # the most is now what there is
    step()
    return _resident()["VmHWM"] - before


def counted(step: Step) -> tuple[int, int]:
    """Return the bytes of NumPy arrays that a step takes at its peak, and those that it leaves."""
    with counting() as arrays:
        for _ in range(_WARM_UP):  # what the first steps make for good is no residue
            step()
        gc.collect()
        before = arrays.now
        arrays.restart()
        step()
        return arrays.most - before, arrays.now - before


def traced(step: Step) -> int:
    """Return the bytes of NumPy arrays and Python objects that a step takes at its peak."""
    tracemalloc.start()
    try:
        for _ in range(_WARM_UP):
            step()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def counted_by_torch(step: Step) -> tuple[int, int]:
    """Return the bytes of tensors that a step of PyTorch's takes at its peak, and those that it leaves."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    sums = list(accumulate(event.nbytes() for event in changes))
    return max(sums), sums[-1]


def of_a_process(step: Step, library: str) -> dict[str, float]:
    """Measure a step in this process, which is there for nothing else."""
    for _ in range(_WARM_UP):
        step()
    found: dict[str, float] = {}
    if can_see_peaks():
        found["resident"] = statistics.median([resident_peak(step) for _ in range(_STEPS)])
    if library == "PyTorch":
        found["peak"], found["residue"] = counted_by_torch(step)
    else:
        found["traced"] = traced(step)
        found["peak"], found["residue"] = counted(step)
    return found


def steps_of(label: str, library: str, threads: int) -> dict[str, float]:
    """Measure the steps of a model of `bench.train` in a new process."""
    return in_a_process("bench.memory", label, library, str(threads))


def in_a_process(module: str, *arguments: str) -> dict[str, float]:
    """Run a module that prints JSON, under a malloc that gives freed blocks back, and return what it prints."""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **_UNMAP_FREED_BLOCKS},
        capture_output=True,  # PyTorch's profiler talks
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{', '.join(arguments)}:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps(labels: Sequence[str], threads: int) -> list[Row]:
    """Compare the memory of training steps; processes side by side, as nothing is timed."""
    has_torch = importlib.util.find_spec("torch") is not None
    jobs = [(label, library) for label in labels for library in (["gradmgr", "PyTorch"] if has_torch else ["gradmgr"])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(jobs, pool.map(lambda job: steps_of(*job, threads), jobs), strict=True))
    return [_row_of_steps(label, found[label, "gradmgr"], found.get((label, "PyTorch"))) for label in labels]


def _row_of_steps(label: str, here: dict[str, float], torch: dict[str, float] | None) -> Row:
    cells = {"gradmgr MB": here["peak"] / 1e6, "residue": here["residue"], "with objects": here["traced"] / 1e6}
    verdicts = [Verdict("bytes of arrays alive after a step", here["residue"], 0)]
    if "resident" in here:
        cells["resident"] = here["resident"] / 1e6
    if torch is not None:
        cells |= {"PyTorch MB": torch["peak"] / 1e6, "ratio": here["peak"] / torch["peak"]}
        verdicts.insert(0, Verdict("peak of gradmgr / PyTorch", cells["ratio"], 1.0))
        if "resident" in torch:
            cells["PyTorch's"] = torch["resident"] / 1e6
    return Row(label, cells, tuple(verdicts))


def first_of_each_kind(labels: Iterable[str]) -> list[str]:
    """Return the models of a quick run: it takes each process two seconds to import PyTorch."""
    found: dict[str, str] = {}
    for label in labels:
        found.setdefault(label.partition(" ")[0], label)
    return list(found.values())


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks those whose title contains it. Bytes do not depend on the pace."""
    labels = list(train.MODELS) if pace.long_rounds > 2 else first_of_each_kind(train.MODELS)
    sections: list[tuple[str, str, dict[str, str], Callable[[], list[Row]]]] = [
        ("Memory of a recording", NOTE, COLUMNS, rows),
        ("Memory of training steps", STEPS_NOTE, STEPS_COLUMNS, lambda: steps(labels, threads)),
    ]
    for title, note, columns, measure in sections:
        if only.lower() in title.lower():
            yield Table(title, columns, measure(), note)


def main() -> None:
    label, library, threads = sys.argv[1:]
    print(json.dumps(of_a_process(train.trainer(label, library, int(threads)).step, library)))


if __name__ == "__main__":
    main()
