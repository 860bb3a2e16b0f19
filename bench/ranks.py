"""What two ranks cost: run by `mpiexec -n 2 python -m bench.ranks ROUNDS`; rank 0 prints the figures as JSON.

Fewer rounds are shorter ones, too.

All ranks take each way in turn, in rotating order, and wait for one another before each turn, so that
both do the same at the same time. A turn's time is that of the slowest rank.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from gradmgr import GradManager, distributed, nn, optim
from gradmgr.nn import functional

Way = Callable[[], Any]

_FULL = 9  # rounds


def race(ways: dict[str, Way], rounds: int, turn: int) -> dict[str, list[float]]:
    """Return seconds by way and round, each the best of five turns of so many repetitions."""
    comm = MPI.COMM_WORLD
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        best = dict.fromkeys(ways, float("inf"))
        for k in range(5):
            names = list(ways)
            for name in names[k % len(names) :] + names[: k % len(names)]:
                comm.Barrier()
                begun = time.perf_counter()
                for _ in range(turn):
                    ways[name]()
                spent = comm.allreduce((time.perf_counter() - begun) / turn, MPI.MAX)
                best[name] = min(best[name], spent)
        for name, seconds in best.items():
            times[name].append(seconds)
    return times


def figure(label: str, ways: dict[str, Way], rounds: int, turn: int, at_most: float) -> dict[str, Any]:
    """Race the plain way, which comes first, against ours."""
    times = race(ways, rounds, turn)
    plain, ours = times.values()
    found = statistics.median(one / other for one, other in zip(ours, plain, strict=True))
    names = " / ".join(reversed(ways))
    return {"label": label, "what": names, "us": statistics.median(plain) * 1e6, "ratio": found, "at_most": at_most}


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


def step(rounds: int, turn: int, batch: int, at_most: float) -> list[dict[str, Any]]:
    """A step on the digits' network, each rank with its batch: alone, by the callback, and reduced by hand."""
    random = np.random.default_rng(distributed.rank())
    x, y = random.normal(size=(batch, 64)).astype("float32"), random.integers(0, 10, batch)

    def trained(callbacks: Any, after: Callable[[list[Any]], None] = lambda parameters: None) -> Way:
        new = {"rng": np.random.default_rng(0)}
        model = nn.Sequential(nn.Linear(64, 256, **new), nn.ReLU(), nn.Linear(256, 10, **new))
        parameters = list(model.parameters())
        gm = GradManager().attach(parameters, callbacks=callbacks)
        optimizer = optim.SGD(parameters, lr=1e-3, momentum=0.9)

        def once() -> None:
            with gm:
                gm.backward(functional.cross_entropy(model(x), y))
            after(parameters)
            optimizer.step()
            optimizer.zero_grad()

        return once

    alone, label = trained(None), f"step 64-256-10, float32, batch {batch} a rank"
    ours, by_hand = trained(distributed.make_allreduce_cb("mean")), trained(None, _mean_by_hand())
    return [
        figure(label, {"one rank": alone, "two ranks": ours}, rounds, turn, at_most),
        figure(f"{label}, by hand", {"one rank": alone, "two ranks": by_hand}, rounds, turn, float("inf")),
    ]


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


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _FULL
    distributed.init()
    if distributed.size() != 2:
        raise SystemExit("bench.ranks is for two ranks: mpiexec -n 2 python -m bench.ranks")
    turn = max(1, 100 * min(rounds, _FULL) // _FULL)
    found = [
        *step(rounds, turn, 32, 1.25),
        *step(rounds, turn, 128, float("inf")),
        all_reduce(4 << 10, rounds, 2 * turn, float("inf")),
        all_reduce(4 << 20, rounds, 5, float("inf")),
        all_reduce(32 << 20, rounds, 2, 1.1),
    ]
    if distributed.rank() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
