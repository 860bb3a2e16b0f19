"""The suite `atoms`: what an op costs idle, recorded and in backward; chains; small networks in plain spelling."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench import operations, peers
from bench._measure import (
    Answer,
    Contestant,
    Pace,
    Row,
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
from bench.libraries import (
    Gradmgr,
    Library,
    NetworkByHand,
    Trained,
    backward_by_hand,
    bare,
    by_hand,
    chain_by_hand,
)
from bench.operations import EXP, KINDS, MULTIPLY, PRODUCT, Operation

NUMPY, HERE, AGAIN = "NumPy", "gradmgr", "ratio"

# (against, at most): gradmgr's time over that contestant's.
Targets = Sequence[tuple[str, float]]
NO_TARGET: Targets = ()


def _verdicts(times: Times, targets: Targets) -> tuple[Verdict, ...]:
    return tuple(
        Verdict(f"gradmgr / {against}", ratio(times, HERE, against), at_most)
        for against, at_most in targets
        if against in times
    )


def _row(label: str, contestants: Sequence[Contestant], pace: Pace, targets: Targets = NO_TARGET) -> Row:
    """Race the contestants, the first of which is NumPy, and report ratios to it."""
    return _reported(label, race(label, contestants, pace), targets)


def _reported(label: str, times: Times, targets: Targets) -> Row:
    cells = {f"{NUMPY} µs": statistics.median(times[NUMPY]) * 1e6}
    others = [name for name in times if name != NUMPY]
    cells |= {name: ratio(times, name, NUMPY) for name in others}
    return Row(label, cells, _verdicts(times, targets), {name: quartiles_of(times, name, NUMPY) for name in others})


# ---------------------------------------------------------------- single ops


def _size(n: int) -> str:
    return f"{n:.0e}".replace("e+0", "e") if n >= 1000 else str(n)


def control(operation: Operation, size: int, pace: Pace) -> Row:
    """Measure the same bare call as two contestants: how far from 1 the second is, is noise."""
    arrays = operations.inputs(operation, size)

    def answer() -> Answer:
        return by_hand(operation, arrays)

    twice = [Contestant(name, bare(operation, arrays), answer) for name in (NUMPY, AGAIN)]
    return _row(f"{operation.label} over {operation.label}, {_size(size)}", twice, pace)


def two_spellings(size: int, pace: Pace) -> Row:
    """Measure how the two bare spellings of a product differ."""
    arrays = operations.inputs(PRODUCT, size)
    contestants = [
        Contestant(name, bare(operation, arrays), lambda op=operation: by_hand(op, arrays))
        for name, operation in ((NUMPY, PRODUCT), (AGAIN, MULTIPLY))
    ]
    return _row(f"{MULTIPLY.label} over {PRODUCT.label}, {_size(size)}", contestants, pace)


def idle(operation: Operation, size: int, libraries: Sequence[Library], pace: Pace, targets: Targets) -> Row:
    """Time an op while nothing records."""
    return _op_row("idle", operation, size, libraries, pace, targets, lambda lib, a: lib.idle(operation, a))


def recorded(
    operation: Operation, size: int, libraries: Sequence[Library], pace: Pace, targets: Targets, *, leaves: bool
) -> Row:
    """Time an op while its result is recorded; the result is dropped."""
    kind = "recorded, of leaves" if leaves else "recorded, of intermediates"
    return _op_row(
        kind, operation, size, libraries, pace, targets, lambda lib, a: lib.recorded(operation, a, leaves=leaves)
    )


def _op_row(
    kind: str,
    operation: Operation,
    size: int,
    libraries: Sequence[Library],
    pace: Pace,
    targets: Targets,
    entered: Callable[[Library, list[Any]], Session | None],
) -> Row:
    arrays = operations.inputs(operation, size)
    contestants = [Contestant(NUMPY, bare(operation, arrays), lambda: by_hand(operation, arrays))]
    for library in libraries:
        session = entered(library, arrays)
        if session is not None:
            contestants.append(Contestant(library.name, session, lambda lib=library: lib.gradients(operation, arrays)))
    return _row(f"{operation.label} {kind}, {_size(size)}", contestants, pace, targets)


_MANY = 100  # ops in one backward
_UNTIMED = always(lambda n: None)  # of contestants whose answers alone are compared


def backward(operation: Operation, size: int, libraries: Sequence[Library], pace: Pace, targets: Targets) -> Row:
    """Time the backward pass through many ops of the same inputs, over the arithmetic of its rule and of adding up."""
    arrays = operations.inputs(operation, size)
    dy = np.ones_like(operation.once(np, *arrays))
    count = _MANY if size < 10_000 else 10  # results that are large are not to fall out of the caches
    label, ways = f"{operation.label} backward, {_size(size)}", {NUMPY: backward_by_hand(operation, arrays, dy, count)}
    compared = [Contestant(NUMPY, _UNTIMED, lambda: by_hand(operation, arrays))]
    for library in libraries:
        seconds = library.backward(operation, arrays, dy, count)
        if seconds is not None:
            ways[library.name] = seconds
            compared.append(Contestant(library.name, _UNTIMED, lambda lib=library: lib.gradients(operation, arrays)))
    check_agreement(label, compared)
    times: Times = {name: [] for name in ways}
    for _ in range(pace.rounds):
        found: Times = {name: [] for name in ways}
        for k in range(pace.tries):
            for name in rotated(list(ways), k):
                found[name].append(ways[name]() / count)
        for name, seconds in found.items():
            times[name].append(min(seconds))
    return _reported(label, times, targets)


# ---------------------------------------------------------------- programs


def _repeated(f: Callable[[], Any]) -> Session:
    def run(n: int) -> None:
        for _ in range(n):
            f()

    return always(run)


def chain(length: int, libraries: Sequence[Library], pace: Pace, targets: Targets, *, both: bool) -> Row:
    """Time forward and backward of a chain of multiplies against the same algebra by hand."""
    program = operations.chain(length, both=both)
    in_numpy = chain_by_hand(program)
    contestants = [Contestant(NUMPY, _repeated(in_numpy), in_numpy)]
    for library in libraries:
        f = library.chain(program)
        contestants.append(Contestant(library.name, _repeated(f), lambda lib=library, f=f: lib.arrays(f())))
    return _row(f"chain of {length}, gradient to {'x and y' if both else 'x'}", contestants, pace, targets)


def _after_two_steps(trained: Trained) -> Answer:
    return [trained.step(), trained.step(), *trained.parameters()]


def network(
    batch: int, width: int, depth: int, libraries: Sequence[Library], pace: Pace, targets: Targets = NO_TARGET
) -> Row:
    """Time one whole optimiser step of a small network."""
    program = operations.network(batch, width, depth)
    makers: list[tuple[str, Callable[[], Trained]]] = [(NUMPY, lambda: NetworkByHand(program))]
    makers += [(lib.name, lambda lib=lib: lib.network(program)) for lib in libraries]
    contestants = [
        Contestant(name, _repeated(make().step), lambda make=make: _after_two_steps(make())) for name, make in makers
    ]
    return _row(f"MLP step {batch}x{width}x{depth}", contestants, pace, targets)


# ---------------------------------------------------------------- tables


def _controls(pace: Pace) -> list[Row]:
    return [*(control(PRODUCT, n, pace) for n in (8, 100_000)), two_spellings(8, pace), two_spellings(100_000, pace)]


def _single_ops(libraries: Sequence[Library], pace: Pace) -> list[Row]:
    slight, large = [(NUMPY, 3.3)], [(NUMPY, 1.1)]
    targets = {8: slight, 1000: NO_TARGET, 100_000: large}
    rows = [
        idle(PRODUCT, 8, libraries, pace, [(NUMPY, 2.5)]),
        idle(MULTIPLY, 8, libraries, pace, [(NUMPY, 2.5)]),
        idle(PRODUCT, 100_000, libraries, pace, large),
    ]
    for leaves in (True, False):
        rows += [recorded(PRODUCT, n, libraries, pace, target, leaves=leaves) for n, target in targets.items()]
    rows.append(recorded(MULTIPLY, 8, libraries, pace, slight, leaves=True))
    rows += [recorded(EXP, n, libraries, pace, NO_TARGET, leaves=True) for n in targets]
    return rows


_SIZES = (8, 1000, 100_000, 1_000_000)


def _kinds(libraries: Sequence[Library], pace: Pace) -> list[Row]:
    return [recorded(kind, n, libraries, pace, NO_TARGET, leaves=True) for kind in KINDS for n in _SIZES]


def _backwards(libraries: Sequence[Library], pace: Pace) -> list[Row]:
    targets = {8: [(NUMPY, 3.0)], 100_000: NO_TARGET}
    return [backward(kind, n, libraries, pace, target) for kind in KINDS for n, target in targets.items()]


def _programs(libraries: Sequence[Library], pace: Pace) -> list[Row]:
    target = [(NUMPY, 3.5), ("PyTorch", 0.55)]
    return [
        chain(50, libraries, pace, target, both=False),
        chain(50, libraries, pace, target, both=True),
        network(8, 16, 3, libraries, pace, [("PyTorch", 0.55)]),
        network(64, 256, 3, libraries, pace, [("PyTorch", 1.0)]),
        network(128, 1024, 3, libraries, pace),
    ]


def tables(pace: Pace, threads: int, only: str = "") -> Iterator[Table]:
    """Measure table by table; `only` picks those whose title contains it."""
    libraries: list[Library] = [Gradmgr(), *peers.installed(threads)]
    ratios = {f"{NUMPY} µs": "{:.3g}", **{library.name: "{:.2f}x" for library in libraries}}
    twice = {f"{NUMPY} µs": "{:.3g}", AGAIN: "{:.3f}x"}
    sections: list[tuple[str, str, dict[str, str], Callable[[], list[Row]]]] = [
        (
            "Control",
            "the bare call against itself: what is not 1 is noise; then its two spellings",
            twice,
            lambda: _controls(pace),
        ),
        (
            "Single ops, float32",
            "time over that of bare NumPy; results are made and dropped",
            ratios,
            lambda: _single_ops(libraries, pace),
        ),
        (
            "Ten kinds of op, float32",
            "recorded, of leaves; time over that of bare NumPy; results are made and dropped",
            ratios,
            lambda: _kinds(libraries, pace),
        ),
        (
            "Backward, float32",
            f"per op of {_MANY} of the same inputs, time over that of its rule, and of adding up, by hand in NumPy",
            ratios,
            lambda: _backwards(libraries, pace),
        ),
        (
            "Programs, float32",
            "forward and backward, time over that by hand in NumPy; MLP batch x width x layers, a whole SGD step",
            ratios,
            lambda: _programs(libraries, pace),
        ),
    ]
    for title, note, columns, measure in sections:
        if only.lower() in title.lower():
            yield Table(title, columns, measure(), note)
