"""What two ranks cost: run by `mpiexec -n 2 python -m bench.ranks ROUNDS`; rank 0 prints the figures as JSON.

Fewer rounds are shorter ones, too.

All ranks take each way in turn, in rotating order, and wait for one another before each turn, so that
both do the same at the same time. A turn's time is that of the slowest rank. On idle cores a round counts the best of
its turns; on busy ones, where another process computes on each core, their mean, as there nothing runs undisturbed.

Where PyTorch is installed, its DistributedDataParallel over gloo trains the same network in the same processes, from
the same weights on the same data, with its fused optimiser and one thread, and must come to the same parameters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import gradmgr
from gradmgr import GradManager, distributed, nn, optim
from gradmgr.nn import functional

Way = Callable[[], Any]

_FULL = 9  # rounds


def race(
    ways: dict[str, Way], rounds: int, turn: int, pick: Callable[[Sequence[float]], float] = min
) -> dict[str, list[float]]:
    """Return seconds by way and round, each picked from five turns of so many repetitions."""
    comm = MPI.COMM_WORLD
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        found: dict[str, list[float]] = {name: [] for name in ways}
        for k in range(5):
            names = list(ways)
            for name in names[k % len(names) :] + names[: k % len(names)]:
                comm.Barrier()
                begun = time.perf_counter()
                for _ in range(turn):
                    ways[name]()
                found[name].append(comm.allreduce((time.perf_counter() - begun) / turn, MPI.MAX))
        for name, seconds in found.items():
            times[name].append(pick(seconds))
    return times


def figure(label: str, ways: dict[str, Way], rounds: int, turn: int, at_most: float) -> dict[str, Any]:
    """Race the plain way, which comes first, against ours."""
    plain, ours = ways
    return compared(label, race(ways, rounds, turn), plain, ours, at_most)


def compared(label: str, times: dict[str, list[float]], plain: str, ours: str, at_most: float) -> dict[str, Any]:
    """Return the row of two ways of a race."""
    found = statistics.median(one / other for one, other in zip(times[ours], times[plain], strict=True))
    what = f"{ours} / {plain}"
    return {
        "label": label,
        "what": what,
        "us": statistics.median(times[plain]) * 1e6,
        "ratio": found,
        "at_most": at_most,
    }


# ---------------------------------------------------------------- all-reduce


def all_reduce(size: int, rounds: int, turn: int, at_most: float) -> dict[str, Any]:
    """Sum float32 arrays of so many bytes, by mpi4py's own call and by ours, each into a new array."""
    comm = MPI.COMM_WORLD
    x = np.full(size // 4, 1.0 + comm.Get_rank(), np.float32)

    def by_hand() -> Any:
        out = np.empty_like(x)
        comm.Allreduce(x, out)
        return out

    ways = {"mpi4py": by_hand, "gradmgr": lambda: distributed.all_reduce(x)}
    if not all(np.array_equal(way(), np.full_like(x, 3.0)) for way in ways.values()):
        raise SystemExit("the sums are not right")
    return figure(f"all-reduce of {size // 1024} KiB", ways, rounds, turn, at_most)


# ---------------------------------------------------------------- a training step


def _data(batch: int) -> tuple[Any, Any]:
    random = np.random.default_rng(distributed.rank())
    return random.normal(size=(batch, 64)).astype("float32"), random.integers(0, 10, batch)


def _network() -> Any:
    new = {"rng": np.random.default_rng(0)}
    return nn.Sequential(nn.Linear(64, 256, **new), nn.ReLU(), nn.Linear(256, 10, **new))


def trained(
    batch: int, callbacks: Any = None, after: Callable[[list[Any]], None] = lambda parameters: None
) -> tuple[Way, Callable[[], list[Any]]]:
    """Return a step on the digits' network, each rank with its batch, and what gives its parameters."""
    x, y = _data(batch)
    model = _network()
    parameters = list(model.parameters())
    gm = GradManager().attach(parameters, callbacks=callbacks)
    optimizer = optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def once() -> None:
        with gm:
            gm.backward(functional.cross_entropy(model(x), y))
        after(parameters)
        optimizer.step()
        optimizer.zero_grad()

    return once, lambda: [p.numpy() for p in parameters]


def step(rounds: int, turn: int, batch: int, at_most: float) -> list[dict[str, Any]]:
    """A step alone, by the callback, and reduced by hand."""
    (alone, _), (ours, _) = trained(batch), trained(batch, distributed.make_allreduce_cb("mean"))
    by_hand, _ = trained(batch, None, _mean_by_hand())
    label = f"step 64-256-10, float32, batch {batch} a rank"
    return [
        figure(label, {"one rank": alone, "two ranks": ours}, rounds, turn, at_most),
        figure(f"{label}, by hand", {"one rank": alone, "two ranks": by_hand}, rounds, turn, float("inf")),
    ]


def beside(rounds: int, turn: int, batch: int) -> dict[str, Any]:
    """A step of both ranks at once, without communication, over that of one while the other sleeps.

    It is what the ratios of two ranks to one begin at: 1, or more where the ranks share a core or its memory.
    """
    comm = MPI.COMM_WORLD
    once, _ = trained(batch)
    times: dict[str, list[float]] = {"one alone": [], "two at once": []}
    once()
    for _ in range(5 * rounds):
        for name, seconds in times.items():
            comm.Barrier()
            begun = time.perf_counter()
            if name == "two at once" or comm.Get_rank() == 0:
                for _ in range(turn):
                    once()
            taken = (time.perf_counter() - begun) / turn
            everyone = comm.Ibarrier()
            while not everyone.Test():
                time.sleep(1e-3)
            seconds.append(comm.allreduce(taken, MPI.MAX))
    plain, ours = times
    return compared(f"step 64-256-10, float32, batch {batch}", times, plain, ours, float("inf"))


def _mean_by_hand() -> Callable[[list[Any]], None]:
    """Make what puts the mean of all ranks into `.grad`, by mpi4py's own call on one buffer."""
    comm, buffers = MPI.COMM_WORLD, []

    def mean(parameters: list[Any]) -> None:
        if not buffers:
            buffers.append(np.empty(sum(p.size for p in parameters), np.float32))
        (flat,) = buffers
        np.concatenate([p.grad.numpy().reshape(-1) for p in parameters], out=flat)
        comm.Allreduce(MPI.IN_PLACE, flat)
        flat *= np.float32(1 / comm.Get_size())
        start = 0
        for p in parameters:
            p.grad[...] = flat[start : start + p.size].reshape(p.shape)
            start += p.size

    return mean


# ---------------------------------------------------------------- all-reduce beside backward

_LAYERS, _WIDTH = 6, 256
_HIDDEN = 0.5  # of the time of a step: what communication takes, less than backward's two thirds
_SHOWN = 0.5  # of the communication, at most: what a step takes longer by


class _SlowWork:
    """An all-reduce whose result arrives at a given time, as over a slow network."""

    def __init__(self, work: Any, arrives: float) -> None:
        self._work, self._arrives = work, arrives
        self.is_transferring = work.is_transferring

    def done(self) -> bool:
        return bool(self._work.done()) and time.perf_counter() >= self._arrives

    def wait(self) -> None:
        self._work.wait()
        time.sleep(max(0.0, self._arrives - time.perf_counter()))


class _SlowGroup:
    """Lets each all-reduce of a group take so many seconds, one after the other."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._free = 0.0  # when the network has carried all that was given to it
        self._group: Any = distributed._world.group()
        self._start = self._group.start_all_reduce

    def __enter__(self) -> _SlowGroup:
        self._group.start_all_reduce = self._start_later
        return self

    def __exit__(self, *_: object) -> None:
        del self._group.start_all_reduce

    def _start_later(self, *args: Any) -> _SlowWork:
        self._free = max(self._free, time.perf_counter()) + self.seconds
        return _SlowWork(self._start(*args), self._free)


def _deep() -> Way:
    """Return a step of a network of equal layers, each of whose weights is a bucket."""
    new = {"rng": np.random.default_rng(0)}
    layers = [(nn.Linear(_WIDTH, _WIDTH, bias=False, **new), nn.Tanh()) for _ in range(_LAYERS)]
    model = nn.Sequential(*[part for layer in layers for part in layer])
    parameters = list(model.parameters())
    reduce = distributed.make_allreduce_cb("mean", bucket_bytes=parameters[0].nbytes)
    gm, optimizer = GradManager().attach(parameters, callbacks=reduce), optim.SGD(parameters, lr=1e-3)
    x = np.random.default_rng(distributed.rank()).normal(size=(_WIDTH, _WIDTH)).astype("float32")

    def once() -> None:
        with gm:
            gm.backward(functional.mse_loss(model(x), x))
        optimizer.step()
        optimizer.zero_grad()

    return once


def beside_backward(rounds: int, turn: int) -> list[dict[str, Any]]:
    """By how much of the time that a slow network takes a step is longer: all of it, if backward did not go on."""
    hows: dict[str, Callable[[Way], Way]] = {"eager": lambda once: once, "compiled": gradmgr.compile}
    return [_beside_backward(name, how(_deep()), rounds, turn) for name, how in hows.items()]


def _beside_backward(name: str, once: Way, rounds: int, turn: int) -> dict[str, Any]:
    with _SlowGroup() as slow:

        def taking(seconds: float) -> Way:
            def way() -> None:
                slow.seconds = seconds
                once()

            return way

        for _ in range(4):
            once()
        (taken,) = race({"fast": taking(0.0)}, 1, turn)["fast"]
        each = _HIDDEN * taken / _LAYERS
        times = race({"fast": taking(0.0), "slow": taking(each)}, rounds, turn)
    longer = [(slow - fast) / (each * _LAYERS) for slow, fast in zip(times["slow"], times["fast"], strict=True)]
    return {
        "label": f"step of {_LAYERS} layers of {_WIDTH}, slow network, {name}",
        "what": "longer by / time of the network",
        "us": statistics.median(times["fast"]) * 1e6,
        "ratio": statistics.median(longer),
        "at_most": _SHOWN,
    }


# ---------------------------------------------------------------- PyTorch


def trained_by_torch(batch: int, *, parallel: bool) -> tuple[Way, Callable[[], list[Any]]]:
    """Return the same step in PyTorch, by DistributedDataParallel or alone, and what gives its parameters."""
    import torch

    x, y = map(torch.from_numpy, _data(batch))
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model.load_state_dict({name: torch.from_numpy(p.numpy().copy()) for name, p in _network().named_parameters()})
    parameters = list(model.parameters())
    if parallel:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)

    def once() -> None:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return once, lambda: [p.detach().numpy() for p in parameters]


def against_torch(rounds: int, turn: int, batch: int) -> list[dict[str, Any]]:
    """Steps of one and of two ranks against PyTorch's, on idle cores and on busy ones."""
    pairs = {
        "gradmgr, one rank": trained(batch),
        "gradmgr, two ranks": trained(batch, distributed.make_allreduce_cb("mean")),
        "PyTorch, one rank": trained_by_torch(batch, parallel=False),
        "DDP over gloo": trained_by_torch(batch, parallel=True),
    }
    _check_agreement(pairs)
    ways = {name: once for name, (once, _) in pairs.items()}
    label = f"step 64-256-10, batch {batch} a rank"
    rows = _rows(f"{label}, idle cores", race(ways, rounds, turn))
    with _busy_cores() as is_possible:
        if is_possible:
            rows += _rows(f"{label}, busy cores", race(ways, max(1, rounds // 3), 2 * turn, statistics.mean))
    return rows


def _rows(label: str, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    limitless = float("inf")
    return [
        compared(label, times, "DDP over gloo", "gradmgr, two ranks", 1.0),
        compared(label, times, "PyTorch, one rank", "gradmgr, one rank", limitless),
        compared(label, times, "gradmgr, one rank", "gradmgr, two ranks", limitless),
        compared(label, times, "PyTorch, one rank", "DDP over gloo", limitless),
    ]


def _check_agreement(pairs: dict[str, tuple[Way, Callable[[], list[Any]]]]) -> None:
    """Take three steps each way; those of one rank, and those of two, must come to the same parameters."""
    for once, _ in pairs.values():
        for _ in range(3):
            once()
    found = {name: values() for name, (_, values) in pairs.items()}
    for one, other in (("gradmgr, one rank", "PyTorch, one rank"), ("gradmgr, two ranks", "DDP over gloo")):
        if not all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found[one], found[other], strict=True)):
            raise SystemExit(f"{one} and {other} do not come to the same parameters")


@contextmanager
def _busy_cores() -> Iterator[bool]:
    """Let another process compute on each core; yield False where processes cannot be bound to cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    cores = sorted(os.sched_getaffinity(0)) if distributed.rank() == 0 else []
    others = []
    try:
        for core in cores:
            others.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(others[-1].pid, {core})
        MPI.COMM_WORLD.Barrier()
        yield True
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def _gloo() -> Iterator[None]:
    """Connect PyTorch's ranks, with one thread each."""
    import torch
    import torch.distributed as process_group

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = MPI.COMM_WORLD.bcast(str(Path(folder) / "store"))
        rank, size = distributed.rank(), distributed.size()
        process_group.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        yield
        process_group.destroy_process_group()
        MPI.COMM_WORLD.Barrier()  # the file goes with the folder of rank 0


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _FULL
    distributed.init()
    if distributed.size() != 2:
        raise SystemExit("bench.ranks is for two ranks: mpiexec -n 2 python -m bench.ranks")
    turn = max(1, 100 * min(rounds, _FULL) // _FULL)
    found = [
        beside(rounds, turn, 32),
        *step(rounds, turn, 32, 1.25),
        *step(rounds, turn, 128, float("inf")),
        all_reduce(4 << 10, rounds, 2 * turn, float("inf")),
        all_reduce(4 << 20, rounds, 5, float("inf")),
        all_reduce(32 << 20, rounds, 2, 1.1),
        *beside_backward(rounds, max(1, turn // 10)),
    ]
    if importlib.util.find_spec("torch") is not None:
        with _gloo():
            found += against_torch(rounds, turn, 32)
    if distributed.rank() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
