"""Text and JSON of measured tables; what the machine is."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradmgr
from bench._measure import Row, Table, Verdict

# Variables that make BLAS or the allocator faster or slower.
_DECIDING = ("OPENBLAS_", "OMP_", "MKL_", "MALLOC_", "GLIBC_TUNABLES")
_LABEL = 50
_CELL = 11


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "gradmgr": gradmgr.__version__}
    for name in ("numpy", "scipy", "torch", "autograd", "mygrad", "jax", "onednn-cpu-gomp", "mpi4py"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Describe where and how the figures are taken."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": arguments.threads,
        "pace": "quick" if arguments.quick else "full",
        "keep_freed": arguments.keep_freed,
        "versions": _versions(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_DECIDING)},
    }


def header(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    freed = ", freed memory kept" if facts["keep_freed"] else ""
    return (
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']}; {facts['date']}\n"
        f"{versions}\nthreads {facts['threads']}, pace {facts['pace']}{freed}; answers are checked before timing"
    )


def _verdict(verdict: Verdict) -> str:
    return (
        f"    target: {verdict.what} at most {verdict.at_most:g}: {verdict.value:.4g}, "
        f"{'reached' if verdict.reached else 'NOT REACHED'}"
    )


def _width(column: str) -> int:
    return max(_CELL, len(column) + 2)


def _row(row: Row, columns: dict[str, str]) -> str:
    cells = [
        f"{columns[name].format(row.cells[name]) if name in row.cells else '-':>{_width(name)}}" for name in columns
    ]
    return "\n".join([f"{row.label:<{_LABEL}}{''.join(cells)}", *(_verdict(v) for v in row.verdicts)])


def text(table: Table) -> str:
    heads = "".join(f"{name:>{_width(name)}}" for name in table.columns)
    lines = ["", table.title, *([table.note] if table.note else []), f"{'':<{_LABEL}}{heads}"]
    return "\n".join([*lines, *(_row(row, table.columns) for row in table.rows)])


def summary(tables: Sequence[Table]) -> str:
    judged = [(row, verdict) for table in tables for row in table.rows for verdict in row.verdicts]
    missed = [f"{row.label}\n{_verdict(verdict)}" for row, verdict in judged if not verdict.reached]
    reached = f"\n{len(judged) - len(missed)} of {len(judged)} targets reached"
    return "\n".join([reached, *(["Not reached:", *missed] if missed else [])])


def write_json(file: str, facts: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write the machine, the versions and every figure."""

    def plain(row: Row) -> dict[str, Any]:
        verdicts = [{**vars(verdict), "reached": verdict.reached} for verdict in row.verdicts]
        return {"label": row.label, "cells": row.cells, "quartiles": row.quartiles, "targets": verdicts}

    content = {
        "machine": facts,
        "tables": [
            {"title": table.title, "note": table.note, "rows": [plain(row) for row in table.rows]} for table in tables
        ],
    }
    Path(file).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
