"""`python -m tools.fuzz`: run random programs, print what differs, write a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.check import check
from tools.fuzz.generate import generate
from tools.fuzz.report import Report, merged, run

CHUNK = 500  # programs between two lines of progress


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next ones follow (default 0)")
    parser.add_argument("--programs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--oracle", choices=["both", "torch", "differences"], default="both")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report to FILE")
    parser.add_argument("--show", action="store_true", help="print the program of --seed and what it gives, no report")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return 1 where something was found."""
    asked = _arguments(argv)
    if asked.show:
        program = generate(asked.seed)
        finding = check(program, oracle=asked.oracle)
        sys.stdout.write(f"{program}\n\n{finding.text if finding else 'nothing differs'}\n")
        return int(finding is not None)
    reports: list[Report] = []
    end = asked.seed + asked.programs
    for start in range(asked.seed, end, CHUNK):
        left = asked.seconds - sum(each.seconds for each in reports)
        if left <= 0:
            break
        reports.append(run(range(start, min(start + CHUNK, end)), oracle=asked.oracle, seconds=left))
        found = sum(len(each.findings) for each in reports)
        sys.stderr.write(f"{sum(each.programs for each in reports)} programs, {found} findings\n")
        if asked.report:
            asked.report.write_text(merged(reports).text(), encoding="utf-8")
    total = merged(reports)
    sys.stdout.write(total.text())
    return int(bool(total.findings))


if __name__ == "__main__":
    sys.exit(main())
