"""One program checked: what gradmgr gives against NumPy's values, and against torch's derivatives or differences."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from gradmgr import Tensor
from tools.fuzz.program import SECOND_ORDER, Program
from tools.fuzz.reference import (
    HAS_TORCH,
    OracleError,
    Values,
    by_torch,
    has_differences,
    slope_by_differences,
    values_of,
)
from tools.fuzz.subject import Found, found_by


class Finding(NamedTuple):
    """What is wrong with a program: in a word, by which findings are compared, and in full."""

    kind: str
    text: str


def check(program: Program, *, oracle: str = "both") -> Finding | None:
    """Run a program and compare; None where nothing is wrong.

    Args:
        program: the program.
        oracle: "torch", "differences" or "both"; without torch installed it is differences.

    Raises:
        OracleError: NumPy and torch do not agree about a value, or it jumps: then nothing is known of gradmgr.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _check(program, oracle)


def _check(program: Program, oracle: str) -> Finding | None:
    try:
        found = found_by(program)
    except Exception as error:  # whatever gradmgr raises is a finding
        return Finding(f"{type(error).__name__}", f"{type(error).__name__}: {error}")
    with_torch = HAS_TORCH and oracle != "differences"
    values, gradients, seconds = by_torch(program) if with_torch else (values_of(program), None, None)
    finding = _values_differ(program, found, values)
    if finding is None and with_torch:
        finding = _derivatives_differ(program, found, gradients, seconds)
    if finding is None and (oracle != "torch" or not with_torch):
        finding = _slope_differs(program, found)
    return finding


def _values_differ(program: Program, found: Found, values: Values) -> Finding | None:
    for name, value in found.values.items():
        expected = values.get(name)
        if expected is None:
            continue
        if value.shape != expected.shape or value.dtype != expected.dtype:
            form = (
                f"{name} is of shape {value.shape} and dtype {value.dtype}, in NumPy {expected.shape}, {expected.dtype}"
            )
            return Finding("form", form)
        a = value.numpy() if isinstance(value, Tensor) else value
        if not _close(a, expected, 1e-10 if not program.is_single() else 2e-3):
            return Finding("value", f"{name} is {a!r}, in NumPy {expected!r}")
    return None


def _derivatives_differ(program: Program, found: Found, gradients: list[Any], seconds: list[Any]) -> Finding | None:
    tolerance = 5e-3 if program.is_single() else 1e-7
    if found.slope is not None:
        pairs = zip(gradients, program.leaves, strict=True)
        parts = [np.sum(np.real(g * np.conj(program.directions[name]))) for g, name in pairs]
        scale = 1 + sum(float(np.abs(g).sum()) for g in gradients)
        if np.isfinite(sum(parts)) and not abs(found.slope - sum(parts)) <= tolerance * scale:
            return Finding("slope", f"the slope is {found.slope!r}, in torch {sum(parts)!r}")
    for order, ours, theirs in (("gradient", found.gradients, gradients), ("second", found.seconds, seconds)):
        if order == "second" and program.mode not in SECOND_ORDER:
            continue
        for k, g in enumerate(ours):
            name = program.leaves[k]
            finding = _gradient_differs(program, order, name, g, theirs[k], tolerance)
            if finding is not None:
                return finding
    return None


def _gradient_differs(
    program: Program, order: str, name: str, g: Any, expected: Any, tolerance: float
) -> Finding | None:
    leaf = program.inputs[name].array
    a = np.zeros_like(leaf) if g is None else g.numpy()
    if a.shape != leaf.shape or a.dtype != leaf.dtype:
        return Finding("form", f"the {order} of {name} is of shape {a.shape} and dtype {a.dtype}")
    where = np.isfinite(expected)  # beyond are poles, of which each library has its own view
    if not _close(a[where], expected[where], tolerance):
        return Finding(order, f"the {order} of {name} is {a!r}, in torch {expected!r}")
    return None


def _slope_differs(program: Program, found: Found) -> Finding | None:
    """Compare the slope along the directions with differences; of several steps one must agree, as kinks are near."""
    if not has_differences(program):
        return None
    if found.slope is None and not found.gradients:
        return None
    if found.slope is not None:
        slope = float(found.slope)
    else:
        pairs = zip(found.gradients, program.leaves, strict=True)
        slope = sum(0.0 if g is None else _along(g.numpy(), program.directions[name]) for g, name in pairs)
    if not np.isfinite(slope):
        return None
    tolerance = 2e-2 if program.is_single() else 1e-4
    sizes = (1e-6, 1e-5, 1e-7)
    steps = [slope_by_differences(program, size) for size in sizes]
    scale = 1 + abs(slope) + min(map(abs, steps))
    if any(abs(step - slope) <= tolerance * scale for step in steps) or not np.isfinite(steps).all():
        return None
    jumps = np.abs(np.multiply(steps, sizes))
    if np.ptp(jumps) < 1e-3 * jumps[0]:
        raise OracleError(f"the value jumps by {2 * jumps[0]!r}, as at a branch cut: no difference is a slope")
    return Finding("difference", f"the slope is {slope!r}, by differences {steps}")


def _along(g: Any, direction: Any) -> float:
    return float(np.sum(np.real(g * np.conj(direction))))


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    """Compare with a tolerance for the largest of all elements, as errors of rounding spread over them."""
    if not expected.size:
        return True
    if expected.dtype.kind in "biu":
        return bool((found == expected).all())
    scale = 1 + float(np.max(np.abs(expected)))
    with np.errstate(all="ignore"):
        return bool((np.abs(found - expected) <= tolerance * scale).all())
