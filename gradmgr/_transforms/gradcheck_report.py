"""What gradcheck reports: the elements in which derivatives differ, and hints to the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmgr._engine.tensor import Tensor
from gradmgr._transforms.gradcheck_problem import Block


@dataclass
class Comparison:
    """How far derivatives may differ, and comparisons that return a line for each mismatch."""

    atol: float
    rtol: float

    def _mismatches(self, found: Any, expected: Any) -> Any:
        with np.errstate(invalid="ignore"):  # infinity less infinity
            bad = ~(np.abs(found - expected) <= self.atol + self.rtol * np.abs(expected))
        if not bad.any():
            return bad
        bad &= ~(np.isnan(found) & np.isnan(expected)) & ~(np.isinf(found) & (found == expected))
        return bad

    def numbers(self, found: Any, expected: Any, what: str) -> list[str]:
        """Compare two numbers."""
        if not self._mismatches(found, expected):
            return []
        return [
            f"- {what} differs: found {float(found)!r}, expected {float(expected)!r}{_relative_error(found, expected)}"
        ]

    def vectors(self, found: Any, expected: Any, blocks: list[Block], what: str) -> list[str]:
        """Compare two vectors, block by block."""
        bad = self._mismatches(found, expected)
        if not bad.any():
            return []
        failures = []
        for block in blocks:
            part = slice(block.start, block.stop)
            if bad[part].any():
                (k,) = _worst(bad[part], found[part], expected[part])
                a, b = found[part][k], expected[part][k]
                failures.append(f"- {what} {block.name}: {_describe_mismatch(bad[part], block.format_index(k), a, b)}")
        return failures

    def matrices(self, found: Any, expected: Any, rows: list[Block], columns: list[Block], what: str) -> list[str]:
        """Compare two Jacobians, for each output and input."""
        bad = self._mismatches(found, expected)
        if not bad.any():
            return []
        failures = []
        for row in rows:
            for column in columns:
                part = slice(row.start, row.stop), slice(column.start, column.stop)
                if bad[part].any():
                    i, j = _worst(bad[part], found[part], expected[part])
                    a, b = found[part][i, j], expected[part][i, j]
                    said = _describe_mismatch(bad[part], f"{row.format_index(i)} by {column.format_index(j)}", a, b)
                    failures.append(f"- {what} of {row.name} by {column.name}: {said}")
        return failures


def _worst(bad: Any, found: Any, expected: Any) -> tuple[int, ...]:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        distance = np.nan_to_num(np.abs(found - expected), nan=np.inf)
    return tuple([int(k) for k in np.unravel_index(np.argmax(np.where(bad, distance, -1)), bad.shape)])


def _describe_mismatch(bad: Any, place: str, found: Any, expected: Any) -> str:
    return (
        f"{int(bad.sum())} of {bad.size} differ, most at {place}: "
        f"found {float(found)!r}, expected {float(expected)!r}{_relative_error(found, expected)}"
    )


def _relative_error(found: Any, expected: Any) -> str:
    if not (np.isfinite(found) and np.isfinite(expected) and expected):
        return ""
    return f" ({100 * (found / expected - 1):+.3g} %)"


class Findings:
    """Which derivatives of one function are wrong and how, for hints to the cause."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.is_wrong: dict[str, bool] = {}
        self.observations: list[str] = []
        self.disagree = False

    def add_forward(self, found: Any, numeric: Any, failures: list[str]) -> None:
        """Add the comparison of forward mode with numeric differences."""
        self._add("forward", found, numeric, failures)

    def add_reverse(
        self,
        found: Any,
        numeric: Any,
        failures: list[str],
        rows: Sequence[Block] = (),
        columns: Sequence[Block] = (),
    ) -> None:
        """Add the comparison of reverse mode with numeric differences."""
        self._add("reverse", found, numeric, failures)
        if failures and any(block.complex for block in (*rows, *columns)):
            sign = np.ones(found.shape)
            for row in rows:
                if row.complex:
                    sign[(row.start + row.stop) // 2 : row.stop] *= -1
            for column in columns:
                if column.complex:
                    sign[:, (column.start + column.stop) // 2 : column.stop] *= -1
            if _is_close(sign * found, numeric):
                self.observations.append(
                    "reverse is right but for a complex conjugate: a conj() is missing or too many"
                )

    def add_adjoint(self, failures: list[str]) -> list[str]:
        """Add the comparison of the two modes."""
        self.disagree = bool(failures)
        return failures

    def _add(self, mode: str, found: Any, numeric: Any, failures: list[str]) -> None:
        self.is_wrong[mode] = bool(failures)
        if not failures:
            return
        if not np.any(found):
            self.observations.append(f"{mode} gives only zeros: it sees nothing of what the function computes")
        elif np.any(numeric) and np.isfinite(found).all():
            factor = np.vdot(numeric, found) / np.vdot(numeric, numeric)
            if found.size > 1 and factor and _is_close(found, factor * numeric):
                self.observations.append(f"{mode} is right but for the factor {factor:.6g}")

    def hints(self, outs: Sequence[Tensor]) -> list[str]:
        """Return lines that say which of reverse mode, forward mode and numeric differences are wrong, and how."""
        wrong = [mode for mode, is_wrong in self.is_wrong.items() if is_wrong]
        if not wrong:
            return []
        if len(self.is_wrong) == 2 and len(wrong) == 1:
            (bad,) = wrong
            good = "forward" if bad == "reverse" else "reverse"
            hints = [f"{bad} is wrong and {good} is right: see the {bad} rule ({'vjp' if bad == 'reverse' else 'jvp'})"]
        elif len(wrong) == 2 and not self.disagree:
            hints = [
                "reverse and forward agree with each other, not with the differences: the algebra that both are made "
                "of is wrong, or the function is not smooth here, or eps does not suit it, or a part of it computes on "
                "raw data (x.numpy(), detach(), under no_grad())"
            ]
        elif len(wrong) == 2:
            hints = ["reverse, forward and the differences all disagree"]
        else:
            hints = [f"{wrong[0]} is wrong; the other mode was not checked"]
        single = {str(y.dtype) for y in outs if y.dtype in (np.float16, np.float32, np.complex64)}
        if single:
            hints.append(f"an output is {', '.join(sorted(single))}, whose differences are mostly rounding")
        return [f"  ({self.prefix}{hint})" for hint in [*hints, *self.observations]]


def _is_close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-7))
