"""Running many programs and telling of it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools.fuzz.check import Finding, check
from tools.fuzz.generate import generate
from tools.fuzz.minimise import minimise
from tools.fuzz.program import Block, Program, Statement, lines_of
from tools.fuzz.reference import HAS_TORCH, OracleError


@dataclass
class Report:
    """What a run found."""

    programs: int = 0
    lines: int = 0
    seconds: float = 0.0
    modes: Counter[str] = field(default_factory=Counter)
    options: Counter[str] = field(default_factory=Counter)
    blocks: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    unclear: list[int] = field(default_factory=list)  # seeds of programs about which NumPy and torch do not agree
    findings: list[tuple[int, Finding, Program]] = field(default_factory=list)

    def count(self, program: Program) -> None:
        """Take a program into the counts."""
        self.programs += 1
        self.modes[program.mode] += 1
        self.options.update(program.options)
        self.blocks.update(_kinds(program.statements))
        for line in lines_of(program.statements):
            self.lines += 1
            self.functions[line.numpy.partition("(")[0] if "np." in line.numpy else "an operator"] += 1

    def text(self) -> str:
        """Return the report as text."""
        oracle = f"torch {_torch_version()} and difference quotients" if HAS_TORCH else "difference quotients"
        head = [
            f"{self.programs} random programs, {self.lines} lines, in {self.seconds:.0f} s of one process.",
            f"Python {platform.python_version()}, NumPy {np.__version__}; compared with {oracle}.",
            f"Findings: {len(self.findings)}.",
            "Left out, as NumPy and torch do not agree about a value, or it jumps (a step, a branch cut): "
            f"{len(self.unclear)}{' of the seeds ' if self.unclear else ''}{', '.join(map(str, self.unclear[:20]))}.",
        ]
        tables = [_table("Ways to differentiate", self.modes), _table("Options", self.options)]
        tables += [_table("Blocks", self.blocks), _table("Functions", self.functions)]
        found = [f"seed {seed}: {finding.text}\n\n{program}" for seed, finding, program in self.findings]
        return "\n\n".join(["\n".join(head), *tables, *found]) + "\n"


def _torch_version() -> str:
    import torch

    return torch.__version__


def _kinds(statements: Iterable[Statement]) -> list[str]:
    blocks = [each for each in statements if isinstance(each, Block)]
    return [kind for each in blocks for kind in (each.kind, *_kinds(each.body))]


def _table(title: str, counts: Counter[str]) -> str:
    rows = [f"  {count:8}  {name}" for name, count in counts.most_common(40)]
    return "\n".join([title, *rows])


def run(seeds: Iterable[int], *, oracle: str = "both", seconds: float = float("inf")) -> Report:
    """Check the programs of these seeds, as many as there is time for, and reduce what fails."""
    report, start = Report(), time.monotonic()
    for seed in seeds:
        program = generate(seed)
        report.count(program)
        try:
            finding = check(program, oracle=oracle)
        except OracleError:
            report.unclear.append(seed)
            continue
        finally:
            report.seconds = time.monotonic() - start
        if finding is not None:
            smaller = minimise(program, lambda p, kind=finding.kind: _fails(p, kind, oracle))
            report.findings.append((seed, check(smaller, oracle=oracle) or finding, smaller))
        if report.seconds > seconds:
            break
    return report


def _fails(program: Program, kind: str, oracle: str) -> bool:
    """Tell whether a program fails in this way; one of which NumPy or torch wants nothing to know does not."""
    try:
        finding = check(program, oracle=oracle)
    except Exception:  # OracleError, and whatever NumPy and torch raise of a program that was cut down
        return False
    return finding is not None and finding.kind == kind


def merged(reports: Iterable[Report]) -> Report:
    """Return several reports as one."""
    total: Any = Report()
    for each in reports:
        for name in vars(total):
            mine, other = getattr(total, name), getattr(each, name)
            setattr(total, name, mine + other)
    return total
