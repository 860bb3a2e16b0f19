"""The suite `scale`: what cost is of, as ops, elements, parameters, managers, threads and ranks become more."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gradmgr
from bench import operations, peers
from bench._measure import (
    Answer,
    Contestant,
    Pace,
    Row,
    Run,
    Session,
    Table,
    Times,
    Verdict,
    always,
    check_agreement,
    quartiles_of,
    race,
    ratio,
    rotated,
)
from bench.libraries import Gradmgr, Library, bare, by_hand, chain_by_hand, gradient_of
from gradmgr import GradManager, Tensor, get_num_threads, optim, set_num_threads, tensor
from gradmgr.nn import functional

NOTE = (
    "at n and at N; growth is N's cost over n's, 1 where time is linear; the exponent is that of the whole cost as a\n"
    "power of the number, over all lengths"
)
COLUMNS = {
    "n µs": "{:.3g}",
    "N µs": "{:.3g}",
    "growth": "{:.2f}x",
    "exponent": "{:.3f}",
    "NumPy N µs": "{:.3g}",
    "over NumPy": "{:.2f}x",
    "torch N µs": "{:.3g}",
}

# What one run of a program gives: seconds of each of its parts.
Parts = dict[str, float]
Program = Callable[[int], Parts]

_UNTIMED = always(lambda n: None)  # of contestants whose answers alone are compared


def _measure(programs_by_name: dict[str, Program], lengths: Sequence[int], rounds: int) -> Times:
    """Run every program at every length in turn; seconds per step by "name part length"."""
    times: Times = {}
    gc.collect()
    gc.freeze()  # the modules of the peers, some 100,000 objects: no user has all of them
    for k in range(rounds):
        jobs = [(name, program, n) for name, program in programs_by_name.items() for n in lengths]
        for name, program, n in rotated(jobs, k):
            gc.collect()  # each starts with the same heap; the collector then runs as it likes
            for part, seconds in program(n).items():
                times.setdefault(f"{name} {part} {n}", []).append(seconds / n)
    gc.unfreeze()
    return times


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of log(cost) over log(length), by least squares."""
    found = np.polyfit(np.log(lengths), np.log(costs), 1)
    return float(found[0])


def _row(label: str, times: Times, part: str, lengths: Sequence[int], growth_at_most: float | None = None) -> Row:
    """Report a part of a program at the two largest lengths, n and N, and the exponent over all of them."""
    n, large = lengths[-2:]

    def micro(name: str) -> float:
        return statistics.median(times[name]) * 1e6

    here, here_large = f"gradmgr {part} {n}", f"gradmgr {part} {large}"
    plain, torch = f"NumPy {part} {large}", f"PyTorch {part} {large}"
    growth = ratio(times, here_large, here)
    power = exponent(lengths, [length * micro(f"gradmgr {part} {length}") for length in lengths])
    cells = {"n µs": micro(here), "N µs": micro(here_large), "growth": growth, "exponent": power}
    if plain in times:
        cells |= {"NumPy N µs": micro(plain), "over NumPy": ratio(times, here_large, plain)}
    if torch in times:
        cells["torch N µs"] = micro(torch)
    verdicts: list[Verdict] = []
    if growth_at_most is not None:
        verdicts.append(Verdict(f"cost per step at {large:,} / at {n:,}", growth, growth_at_most))
        if len(lengths) > 2:
            verdicts.append(Verdict(f"exponent from {lengths[0]:,} to {large:,}", power, 1.05))
    return Row(label, cells, tuple(verdicts))


# ---------------------------------------------------------------- a long chain


def _chain_here(length: int) -> Parts:
    program = operations.chain(length, both=False)
    x, y, dy = tensor(program.x), tensor(program.y), tensor(program.dy)
    gm = GradManager().attach(x)
    gm.record()
    start = perf_counter()
    z = x
    for _ in range(length):
        z = z * y
    after_forward = perf_counter()
    gm.backward(z, dy)
    done = perf_counter()
    gm.record()
    z = x
    for _ in range(length):
        z = z * y
    full = perf_counter()
    gm.release()
    empty = perf_counter()
    forward, backward = after_forward - start, done - after_forward
    return {"forward": forward, "backward": backward, "both": forward + backward, "release": empty - full}


def _chain_in_numpy(length: int) -> Parts:
    program = operations.chain(length, both=False)
    y = program.y
    start = perf_counter()
    z, held = program.x, []
    for _ in range(length):
        z = z * y
        held.append(z)
    after_forward = perf_counter()
    g = program.dy
    while held:
        held.pop()
        g = g * y
    done = perf_counter()
    return {"forward": after_forward - start, "backward": done - after_forward, "both": done - start}


def chain_rows(lengths: Sequence[int], rounds: int) -> list[Row]:
    """Time a chain of multiplies whose every value the tape holds."""
    program, here = operations.chain(lengths[0], both=False), Gradmgr()
    check_agreement(
        "chain",
        [
            Contestant("NumPy", _UNTIMED, chain_by_hand(program)),
            Contestant("gradmgr", _UNTIMED, lambda: here.arrays(here.chain(program)())),
        ],
    )
    times = _measure({"NumPy": _chain_in_numpy, "gradmgr": _chain_here}, lengths, rounds)
    return [
        _row(f"chain of {_listed(lengths)}, forward", times, "forward", lengths),
        _row("chain, backward, which releases", times, "backward", lengths),
        _row("chain, forward and backward", times, "both", lengths, 1.2),
        _row("chain, release without backward", times, "release", lengths),
    ]


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join([f"{length:,}" for length in lengths])


# ---------------------------------------------------------------- loops over x[i]


class _Loop:
    """A loop over the elements of x, forward and backward; `body` is the same text for all libraries."""

    def __init__(self, body: Callable[[Any, int], Any]) -> None:
        self.body = body

    def in_torch(self, torch: Any) -> Callable[[int], Answer]:
        def run(length: int) -> Answer:
            x = torch.tensor(_start(length), requires_grad=True)
            z = self.body(x.clone(), length)
            z.backward()
            return [z.detach().numpy(), x.grad.numpy()]

        return run

    def here(self, length: int) -> Answer:
        x = tensor(_start(length))
        gm = GradManager().attach(x)
        with gm:
            z = self.body(x * 1.0, length)
            gm.backward(z)
        return [z.numpy(), gradient_of(x)]


_FACTOR = np.float32(0.75)


def _start(length: int) -> Any:
    return np.linspace(0.5, 1.5, length, dtype=np.float32)


def _read(x: Any, length: int) -> Any:
    total = x[0]
    for k in range(1, length):
        total = total + x[k]
    return total


def _write(x: Any, length: int) -> Any:
    for k in range(1, length):
        x[k] = x[k - 1] * 0.75
        x[k] += 1.0
    return x.sum()


def _read_by_hand(length: int) -> Answer:
    x = _start(length)
    total = _read(x, length)
    g = np.zeros_like(x)
    for k in reversed(range(length)):
        g[k] += 1.0
    return [total, g]


def _write_by_hand(length: int) -> Answer:
    x = _start(length).copy()
    z = _write(x, length)
    g = np.ones_like(x)
    for k in range(length - 1, 0, -1):
        g[k - 1] += g[k] * _FACTOR
        g[k] = 0
    return [z, g]


def _timed(run: Callable[[int], Answer]) -> Program:
    def program(length: int) -> Parts:
        start = perf_counter()
        run(length)
        return {"both": perf_counter() - start}

    return program


def loop_rows(lengths: Sequence[int], libraries: Sequence[Library], rounds: int) -> list[Row]:
    """Time loops that read, and that write, an array element by element."""
    torch = next((lib.torch for lib in libraries if lib.name == "PyTorch"), None)
    rows = []
    for label, body, in_numpy in (
        ("total = total + x[k]", _read, _read_by_hand),
        ("x[k] = x[k - 1] * c; x[k] += 1", _write, _write_by_hand),
    ):
        loop = _Loop(body)
        runs: dict[str, Callable[[int], Answer]] = {"NumPy": in_numpy, "gradmgr": loop.here}
        if torch is not None:
            runs["PyTorch"] = loop.in_torch(torch)
        contestants = [Contestant(name, _UNTIMED, lambda run=run: run(lengths[0])) for name, run in runs.items()]
        check_agreement(label, contestants)
        times = _measure({name: _timed(run) for name, run in runs.items()}, lengths, rounds)
        rows.append(_row(f"{label}, {_listed(lengths)}", times, "both", lengths, 1.2))
    return rows


def rows(
    libraries: Sequence[Library],
    pace: Pace,
    chain_lengths: Sequence[int] = (),
    loop_lengths: Sequence[int] = (2_500, 10_000),
) -> list[Row]:
    """Measure what grows with the number of ops."""
    usual = (10_000, 100_000, 1_000_000) if pace.long_rounds > 2 else (3_000, 30_000, 300_000)
    return [
        *chain_rows(chain_lengths or usual, pace.long_rounds),
        *loop_rows(loop_lengths, libraries, pace.long_rounds),
    ]


# ---------------------------------------------------------------- elements

_CHAIN = 10


def elements(
    libraries: Sequence[Library], pace: Pace, sizes: Sequence[int] = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
) -> list[Row]:
    """Time a chain of multiplies, forward and backward, of arrays of more and more elements, over that by hand."""
    rows: list[Row] = []
    for size in sizes:
        program = operations.chain(_CHAIN, both=True, size=size)
        in_numpy = chain_by_hand(program)
        contestants = [Contestant("NumPy", _repeated(in_numpy), in_numpy)]
        for library in libraries:
            f = library.chain(program)
            contestants.append(Contestant(library.name, _repeated(f), lambda lib=library, f=f: lib.arrays(f())))
        times = race(f"{size:,} elements", contestants, pace)
        cells = {"NumPy µs": statistics.median(times["NumPy"]) * 1e6}
        others = [c.name for c in contestants[1:]]
        cells |= {name: ratio(times, name, "NumPy") for name in others}
        quartiles = {name: quartiles_of(times, name, "NumPy") for name in others}
        rows.append(Row(f"{size:,} elements", cells, quartiles=quartiles))
    return rows


def _repeated(f: Callable[[], Any]) -> Session:
    def run(n: int) -> None:
        for _ in range(n):
            f()

    return always(run)


# ---------------------------------------------------------------- parameters


Keep = Callable[[list[Any]], None]  # is given what was learned, to be compared


def _parameters_here(count: int, keep: Keep = lambda arrays: None) -> Parts:
    """Time a sum of so many attached vectors: an empty recording, forward, backward, a step of Adam."""
    learned = [tensor(a) for a in _vectors(count)]
    gm = GradManager().attach(learned)
    adam = optim.Adam(learned)
    parts: Parts = {}
    for _ in range(2):  # the first step makes the optimiser's state
        start = perf_counter()
        with gm:
            pass
        empty = perf_counter()
        with gm:
            total = learned[0] * 1.0
            for p in learned[1:]:
                total = total + p
            after_forward = perf_counter()
            gm.backward(total.sum())
        after_backward = perf_counter()
        adam.step()
        done = perf_counter()
        gm.clear_grad()
        parts = {
            "record": empty - start,
            "forward": after_forward - empty,
            "backward": after_backward - after_forward,
            "step": done - after_backward,
        }
    keep([p.numpy() for p in learned])
    return parts


def _parameters_in_torch(torch: Any) -> Program:
    def program(count: int, keep: Keep = lambda arrays: None) -> Parts:
        learned = [torch.tensor(a, requires_grad=True) for a in _vectors(count)]
        adam = torch.optim.Adam(learned, fused=True)
        parts: Parts = {}
        for _ in range(2):
            start = perf_counter()
            total = learned[0] * 1.0
            for p in learned[1:]:
                total = total + p
            after_forward = perf_counter()
            total.sum().backward()
            after_backward = perf_counter()
            adam.step()
            done = perf_counter()
            adam.zero_grad()
            parts = {
                "forward": after_forward - start,
                "backward": after_backward - after_forward,
                "step": done - after_backward,
            }
        keep([p.detach().numpy() for p in learned])
        return parts

    return program


def _vectors(count: int) -> list[Any]:
    return list(np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32))


def _learned(run: Callable[[int, Keep], Parts]) -> Answer:
    """Return what ten vectors are after the steps."""
    found: list[Any] = []
    run(10, found.extend)
    return found


def parameters(
    libraries: Sequence[Library], pace: Pace, counts: Sequence[int] = (1, 10, 100, 1000, 10_000)
) -> list[Row]:
    """Time what managers and optimisers do for each attached tensor."""
    torch = next((lib.torch for lib in libraries if lib.name == "PyTorch"), None)
    runs = {"gradmgr": _parameters_here} | ({"PyTorch": _parameters_in_torch(torch)} if torch is not None else {})
    check_agreement(
        "parameters", [Contestant(name, _UNTIMED, lambda run=run: _learned(run)) for name, run in runs.items()]
    )
    times = _measure(runs, counts, pace.long_rounds)
    labels = {
        "record": f"record and release, {counts[0]:,} to {counts[-1]:,} tensors",
        "forward": "forward: a sum of all of them",
        "backward": "backward",
        "step": "a step of Adam",
    }
    return [_row(label, times, part, counts) for part, label in labels.items()]


# ---------------------------------------------------------------- managers


def managers(pace: Pace, counts: Sequence[int] = (1, 2, 3, 4), sizes: Sequence[int] = (8, 100_000)) -> list[Row]:
    """Time x * y while so many managers record it; the result is dropped."""
    rows = []
    for size in sizes:
        arrays = operations.inputs(operations.PRODUCT, size)
        plain = Contestant(
            "NumPy", bare(operations.PRODUCT, arrays), lambda arrays=arrays: by_hand(operations.PRODUCT, arrays)
        )
        for leaves in (True, False):
            contestants = [_recorded_by(count, arrays, leaves=leaves) for count in counts]
            label = f"x * y of {'leaves' if leaves else 'intermediates'}, {size:,} elements"
            times = race(label, [plain, *contestants], pace)
            one, *more = [c.name for c in contestants]
            cells = {f"{one} µs": statistics.median(times[one]) * 1e6, "NumPy": ratio(times, "NumPy", one)}
            cells |= {name: ratio(times, name, one) for name in more}
            at_most = 4.0 if size < 1000 else 1.2
            verdict = Verdict("two managers / one", ratio(times, more[0], one), at_most)
            rows.append(Row(label, cells, (verdict,), {name: quartiles_of(times, name, one) for name in more}))
    return rows


def _recorded_by(count: int, arrays: list[Any], *, leaves: bool) -> Contestant:
    operation = operations.PRODUCT
    tensors = [tensor(a) for a in arrays]
    nested = [GradManager().attach(tensors) for _ in range(count)]

    @contextmanager
    def session() -> Iterator[Run]:
        with ExitStack() as stack:
            for gm in nested:
                stack.enter_context(gm)
            operands = tensors if leaves else [t * 1.0 for t in tensors]
            yield lambda n: operation.times(gradmgr.numpy, n, *operands)

    def answer() -> Answer:
        """Return the gradients that the outermost manager finds, when all of them have recorded."""
        with ExitStack() as stack:
            for gm in nested:
                stack.enter_context(gm)
            z = operation.once(gradmgr.numpy, *tensors)
            nested[0].backward(z, np.ones_like(arrays[0]))
        found = [z.numpy(), *(gradient_of(t) for t in tensors)]
        nested[0].clear_grad()
        return found

    return Contestant(f"{count}", session, answer)


# ---------------------------------------------------------------- threads


def threads(pace: Pace, counts: Sequence[int] = (1, 2)) -> list[Row]:
    """Time the same work on one and on more threads: of recordings, each with its manager, and of large functions."""
    return [*recordings(pace, counts), *large_functions(pace, counts)]


def recordings(pace: Pace, counts: Sequence[int], sizes: Sequence[int] = (8, 1000, 100_000)) -> list[Row]:
    """Time forward and backward of chains that threads share out, by gradmgr and by hand."""
    rows = []
    for size in sizes:
        program = operations.chain(50, both=True, size=size)
        contestants = []
        for name, make in (("", _answering_chain), ("NumPy ", chain_by_hand)):
            for count in counts:
                works = [make(program) for _ in range(count)]
                contestants.append(Contestant(f"{name}{count}", _shared_out(works), works[0]))
        rows.append(_over_first(f"chains of 50, {size:,} elements, a manager a thread", contestants, pace))
    return rows


def _answering_chain(program: operations.Chain) -> Callable[[], Answer]:
    """Return a chain of gradmgr's, with its manager, that gives NumPy arrays."""
    here = Gradmgr()
    f = here.chain(program)
    return lambda: here.arrays(f())


def _shared_out(works: Sequence[Callable[[], Any]]) -> Session:
    """Return a session that does one work after the other, each on a thread of its own, the same number in all."""

    def run(n: int) -> None:
        def share(work: Callable[[], Any], times: int) -> None:
            for _ in range(times):
                work()

        each = math.ceil(n / len(works))
        others = [threading.Thread(target=share, args=(work, each)) for work in works[1:]]
        for other in others:
            other.start()
        share(works[0], n - each * len(others))
        for other in others:
            other.join()

    return always(run)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": functional.gelu,
    "softmax": lambda x: functional.softmax(x, dim=-1),
    "layer_norm": lambda x: functional.layer_norm(x, (x.shape[-1],)),
}


def large_functions(pace: Pace, counts: Sequence[int], shape: tuple[int, int] = (1024, 1024)) -> list[Row]:
    """Time functions forward and backward under `set_num_threads`."""
    rng = np.random.default_rng(0)
    array, dy = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    rows = []
    for name, function in _FUNCTIONS.items():
        contestants = [_with_threads(count, function, array, dy) for count in counts]
        rows.append(_over_first(f"{name} {shape[0]}x{shape[1]}, set_num_threads", contestants, pace))
    return rows


def _with_threads(count: int, function: Callable[[Any], Any], array: Any, dy: Any) -> Contestant:
    x = tensor(array)
    gm = GradManager().attach(x)

    def once() -> Tensor:
        gm.clear_grad()
        with gm:
            y: Tensor = function(x)
            gm.backward(y, dy)
        return y

    @contextmanager
    def session() -> Iterator[Run]:
        before = get_num_threads()
        set_num_threads(count)
        try:
            once()  # which starts the threads
            yield lambda n: [once() for _ in range(n)]
        finally:
            set_num_threads(before)

    def answer() -> Answer:
        with session():
            return [once().numpy(), gradient_of(x)]

    return Contestant(f"{count}", session, answer)


def _over_first(label: str, contestants: Sequence[Contestant], pace: Pace) -> Row:
    times = race(label, contestants, pace)
    first, *others = [c.name for c in contestants]
    cells = {f"{first} µs": statistics.median(times[first]) * 1e6}
    cells |= {name: ratio(times, name, first) for name in others}
    return Row(label, cells, (), {name: quartiles_of(times, name, first) for name in others})


# ---------------------------------------------------------------- ranks


def ranks(pace: Pace) -> list[Row]:
    """What `bench.ranks` finds on two ranks; no row where the engine is not installed."""
    launcher = Path(sys.executable).with_name("mpiexec")
    if importlib.util.find_spec("mpi4py") is None or not launcher.exists():
        return []
    done = subprocess.run(  # noqa: S603  # the engine's launcher and our own program
        [launcher, "-n", "2", sys.executable, "-m", "bench.ranks", str(pace.long_rounds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    rows = []
    for found in json.loads(done.stdout.splitlines()[-1]):
        limit = found["at_most"]  # infinite where there is none
        verdicts = (Verdict(found["what"], found["ratio"], limit),) if limit < float("inf") else ()
        label = found["label"] if verdicts else f"{found['label']}: {found['what']}"
        rows.append(Row(label, {"µs": found["us"], "gradmgr": found["ratio"]}, verdicts))
    return rows


# ---------------------------------------------------------------- tables


def tables(pace: Pace, threads_each: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks those whose title contains it."""
    libraries: list[Library] = [Gradmgr(), *peers.installed(threads_each)]
    over = {"NumPy µs": "{:.3g}", **{library.name: "{:.2f}x" for library in libraries}}
    several = {"1 µs": "{:.3g}", "NumPy": "{:.2f}x", **{f"{count}": "{:.2f}x" for count in (2, 3, 4)}}
    sections: list[tuple[str, str, dict[str, str], Callable[[], list[Row]]]] = [
        ("Scale: ops", f"per op or per turn of the loop, {NOTE}", COLUMNS, lambda: rows(libraries, pace)),
        (
            "Scale: elements",
            f"a chain of {_CHAIN} multiplies, forward and backward; time over that by hand in NumPy",
            over,
            lambda: elements(libraries, pace),
        ),
        ("Scale: parameters", f"per attached tensor, {NOTE}", COLUMNS, lambda: parameters(libraries, pace)),
        ("Scale: managers", "time over that of one manager", several, lambda: managers(pace)),
        (
            "Scale: threads",
            "the same work on 1 and on 2 threads: 0.5 where they do not disturb one another; time over gradmgr's on 1",
            {"1 µs": "{:.3g}", "2": "{:.2f}x", "NumPy 1": "{:.2f}x", "NumPy 2": "{:.2f}x"},
            lambda: threads(pace),
        ),
        (
            "Scale: ranks",
            "two ranks; time over that of the plain way",
            {"µs": "{:.3g}", "gradmgr": "{:.3f}x"},
            lambda: ranks(pace),
        ),
    ]
    for title, note, columns, measure in sections:
        if only.lower() in title.lower():
            yield Table(title, columns, measure(), note)
