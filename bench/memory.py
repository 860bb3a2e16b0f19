"""What a recording keeps alive: exact counts, not timings."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import gradmgr.numpy as gnp
from bench._measure import Row, Verdict
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


def after_backward() -> list[Row]:
    """Count what is still held after backward while the user holds every output."""
    x, w = _ones(), _ones()
    gm = GradManager().attach([x, w])
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        gm.record()
        tape = _tape(gm)
        outputs = [x @ w]
        for _ in range(10):
            outputs.append(gnp.tanh(outputs[-1] * w))
            outputs.append(gnp.exp(outputs[-1] / 10 + x))
        gm.backward(outputs[-1].sum())
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
    """Count what a recording keeps of results nobody holds."""
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
