"""`python -m bench SUITE`: measure, print ratios with their targets, save them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


SUITES = {
    "atoms": "what an op costs idle, recorded and in backward; chains",
    "train": "whole training steps against PyTorch, autograd, JAX",
    "derivative": "gradients of numerical programs over the programs themselves",
    "compiled": "compiled steps and derivatives against eager, PyTorch, JAX; what capturing costs",
    "memory": "peak and residue",
    "scale": "cost against numbers of ops, elements, parameters, managers, threads, ranks",
    "layers": "optimisers, functions of nn and look-ups against PyTorch",
    "tools": "jacobian, vmap, checkpoints, profiler",
    "programs": "programs of many fields, as people write them, against PyTorch",
}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "all"], help="; ".join(f"{k}: {v}" for k, v in SUITES.items()))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: within a minute, more noise")
    parser.add_argument("--only", metavar="TITLE", default="", help="only the tables whose title contains this")
    parser.add_argument("--threads", type=int, default=1, help="threads for every contestant (default 1)")
    parser.add_argument(
        "--keep-freed", action="store_true", help="let glibc keep large freed blocks (fewer page faults)"
    )
    parser.add_argument("--png", metavar="FILE", help="also draw the ratios to FILE; needs matplotlib")
    parser.add_argument("--json", metavar="FILE", help="also write the figures, with machine and versions, to FILE")
    found = parser.parse_args(argv)
    _check(parser, found)
    return found


def _check(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse what would fail only after minutes of measuring."""
    if found.threads < 1:
        parser.error(f"--threads takes a number of threads, at least 1; found {found.threads}")
    for option, file in (("--json", found.json), ("--png", found.png)):
        if file and not Path(file).parent.is_dir():
            parser.error(f"{option}: there is no folder {Path(file).parent}")
    if found.png and find_spec("matplotlib") is None:
        parser.error("--png needs matplotlib, which is not installed")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    for pool in _POOLS:
        os.environ[pool] = str(arguments.threads)
    # Only now: NumPy and PyTorch read the environment when they are imported.
    import gradmgr
    from bench import _chart, _report
    from bench._measure import FULL, QUICK

    if arguments.keep_freed:
        gradmgr.keep_freed_memory()
    gradmgr.set_num_threads(arguments.threads)
    pace = QUICK if arguments.quick else FULL
    machine = _report.machine(arguments)
    print(_report.header(machine))
    tables = []
    for suite in SUITES if arguments.suite == "all" else [arguments.suite]:
        for table in import_module(f"bench.{suite}").tables(pace, arguments.threads, arguments.only):
            print(_report.text(table), flush=True)
            tables.append(table)
    if not tables:
        print(f"no table of {arguments.suite} has {arguments.only!r} in its title", file=sys.stderr)
        return 1
    print(_report.summary(tables))
    if arguments.json:
        _report.write_json(arguments.json, machine, tables)
    if arguments.png and not _chart.write_png(arguments.png, _report.header(machine), tables):
        print(f"no ratios to draw: {arguments.png} was not written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
