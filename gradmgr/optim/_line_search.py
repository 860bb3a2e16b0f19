"""A line search for the strong Wolfe conditions.

Nocedal, Wright: Numerical Optimization (2nd edition, 2006), algorithms 3.5 and 3.6, with the cubic interpolation of
equation 3.59; the safeguards of the interpolation are those of torch.optim.LBFGS, so that the steps are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

Array = Any

_DECREASE, _CURVATURE = 1e-4, 0.9  # c1 and c2 of the conditions
_MOST_EVALUATIONS = 25


class Point(NamedTuple):
    """A point of the line: its step, and the function, its gradient and its slope along the line there."""

    step: float
    value: float
    gradient: Array
    slope: float


def _minimum_of_cubic(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum, within bounds, of the cubic with the values and slopes of two points."""
    low, high = bounds or (min(a.step, b.step), max(a.step, b.step))
    first = a.slope + b.slope - 3 * (a.value - b.value) / (a.step - b.step)
    square = first * first - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    root = sqrt(square)
    if a.step > b.step:
        a, b = b, a
    denominator = b.slope - a.slope + 2 * root
    if denominator == 0:
        return (low + high) / 2
    return min(max(b.step - (b.step - a.step) * ((b.slope + root - first) / denominator), low), high)


class LineSearch:
    """A search along a line for a step that fulfils the strong Wolfe conditions.

    Args:
        evaluate: returns the point of a step.
        start: the point of step 0.
        longest: the largest absolute number of the direction.
        tolerance: the search ends where the bracket times `longest` is below this.
    """

    def __init__(self, evaluate: Callable[[float], Point], start: Point, longest: float, tolerance: float) -> None:
        self._evaluate = evaluate
        self._start = start
        self._longest = longest
        self._tolerance = tolerance
        self.evaluations = 0

    def _at(self, step: float) -> Point:
        self.evaluations += 1
        return self._evaluate(step)

    def _is_too_high(self, point: Point) -> bool:
        return point.value > self._start.value + _DECREASE * point.step * self._start.slope

    def _is_flat(self, point: Point) -> bool:
        return abs(point.slope) <= -_CURVATURE * self._start.slope

    def run(self, step: float) -> Point:
        """Return the best point found, given the first step to try."""
        bracket = self._bracket(step)
        return bracket[0] if len(bracket) == 1 else self._narrow(bracket)

    def _bracket(self, step: float) -> list[Point]:
        """Return the point that fulfils the conditions, or two between which there is one."""
        last, point = self._start, self._at(step)
        for tries in range(_MOST_EVALUATIONS):
            if self._is_too_high(point) or (tries > 1 and point.value >= last.value):
                return [last, point]
            if self._is_flat(point):
                return [point]
            if point.slope >= 0:
                return [last, point]
            bounds = point.step + 0.01 * (point.step - last.step), point.step * 10
            last, point = point, self._at(_minimum_of_cubic(last, point, bounds))
        return [self._start, point]

    def _narrow(self, bracket: list[Point]) -> Point:
        """Narrow a bracket down to a point that fulfils the conditions, and return the lowest point."""
        low, high = (0, 1) if bracket[0].value <= bracket[1].value else (1, 0)
        is_slow = False
        while self.evaluations <= _MOST_EVALUATIONS:
            if abs(bracket[1].step - bracket[0].step) * self._longest < self._tolerance:
                break
            step, is_slow = self._step_within(bracket, is_slow)
            point = self._at(step)
            if self._is_too_high(point) or point.value >= bracket[low].value:
                bracket[high] = point
                low, high = (0, 1) if bracket[0].value <= bracket[1].value else (1, 0)
                continue
            if self._is_flat(point):
                return point
            if point.slope * (bracket[high].step - bracket[low].step) >= 0:
                bracket[high] = bracket[low]
            bracket[low] = point
        return bracket[low]

    def _step_within(self, bracket: list[Point], is_slow: bool) -> tuple[float, bool]:
        """Return the next step, and whether it is near an end of the bracket, where it may not be twice in a row."""
        step = _minimum_of_cubic(bracket[0], bracket[1])
        least, most = sorted([point.step for point in bracket])
        margin = 0.1 * (most - least)
        if min(most - step, step - least) >= margin:
            return step, False
        if is_slow or not least < step < most:
            return (most - margin if abs(step - most) < abs(step - least) else least + margin), False
        return step, True
