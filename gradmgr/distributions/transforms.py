"""Transforms: invertible functions of real numbers, with the logarithm of their slope.

The names are those of torch.distributions.transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._engine.tensor import raw
from gradmgr.distributions.constraints import (
    Bounded,
    Constraint,
    Independent,
    finite,
    interval,
    positive,
    real,
    unit_interval,
)

__all__ = [
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "SigmoidTransform",
    "SoftplusTransform",
    "TanhTransform",
    "Transform",
    "biject_to",
    "transform_to",
]


class Transform:
    """The base of invertible functions that work element by element.

    A transform is called with x and returns y; `inv(y)` returns x, `log_abs_det_jacobian(x, y)` log |dy/dx|, of the
    shape of x, and `holds_for(y)` tells of each plain number whether it is a value of the function.

    Attributes:
        codomain: the constraint that its values meet.

    Raises:
        NotImplementedError: a method is called that a subclass has not defined.

    >>> from gradmgr.distributions import transforms
    >>> t = transforms.AffineTransform(1.0, 2.0)
    >>> t(3.0), t.inv(7.0), t.log_abs_det_jacobian(3.0, 7.0).round(3)
    (7.0, 3.0, np.float64(0.693))
    """

    codomain: Constraint = real

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape to which the arrays that the transform holds broadcast."""
        return ()

    def __call__(self, x: Any) -> Any:
        raise NotImplementedError

    def inv(self, y: Any) -> Any:
        """Return x."""
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return the logarithm of the absolute slope."""
        raise NotImplementedError

    def holds_for(self, y: Any) -> Any:
        """Tell of each number whether it is a value of the function."""
        return y == y  # all but NaN

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class AffineTransform(Transform):
    """y = loc + scale x; scale is not 0.

    >>> from gradmgr.distributions import transforms
    >>> transforms.AffineTransform(1.0, -2.0)(0.5)
    0.0
    """

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = loc, scale

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape to which loc and scale broadcast."""
        return np.broadcast_shapes(np.shape(self.loc), np.shape(self.scale))

    def __call__(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def inv(self, y: Any) -> Any:
        """Return (y - loc) / scale."""
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return log |scale|."""
        if isinstance(self.scale, (int, float)):
            return math.log(abs(self.scale)) + gnp.sign(x) * 0  # x * 0 would be NaN at infinity
        return gnp.log(gnp.abs(self.scale)) + gnp.sign(x) * 0

    def __repr__(self) -> str:
        return f"AffineTransform(loc={self.loc!r}, scale={self.scale!r})"


class ExpTransform(Transform):
    """y = exp(x).

    >>> from gradmgr.distributions import transforms
    >>> transforms.ExpTransform().inv(1.0)
    np.float64(0.0)
    """

    codomain = positive

    def __call__(self, x: Any) -> Any:
        return gnp.exp(x)

    def inv(self, y: Any) -> Any:
        """Return log(y)."""
        return gnp.log(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return x."""
        return x

    def holds_for(self, y: Any) -> Any:
        """Tell whether y > 0."""
        return y > 0


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x)).

    >>> from gradmgr.distributions import transforms
    >>> transforms.SigmoidTransform()(0.0)
    np.float64(0.5)
    """

    codomain = unit_interval

    def __call__(self, x: Any) -> Any:
        return special.expit(x)

    def inv(self, y: Any) -> Any:
        """Return log(y / (1 - y))."""
        return special.logit(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return log(y (1 - y))."""
        return special.log_expit(x) + special.log_expit(-x)

    def holds_for(self, y: Any) -> Any:
        """Tell whether 0 < y < 1."""
        return (y > 0) & (y < 1)


class TanhTransform(Transform):
    """y = tanh(x).

    >>> from gradmgr.distributions import transforms
    >>> transforms.TanhTransform().inv(0.0)
    np.float64(0.0)
    """

    codomain = interval(-1.0, 1.0)

    def __call__(self, x: Any) -> Any:
        return gnp.tanh(x)

    def inv(self, y: Any) -> Any:
        """Return arctanh(y)."""
        return gnp.arctanh(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return log(1 - y^2), computed of x."""
        return 2 * (math.log(2) + special.log_expit(2 * x) - x)

    def holds_for(self, y: Any) -> Any:
        """Tell whether -1 < y < 1."""
        return (y > -1) & (y < 1)


class SoftplusTransform(Transform):
    """y = log(1 + exp(x)).

    >>> from gradmgr.distributions import transforms
    >>> transforms.SoftplusTransform()(0.0).round(3)
    np.float64(0.693)
    """

    codomain = positive

    def __call__(self, x: Any) -> Any:
        return -special.log_expit(-x)

    def inv(self, y: Any) -> Any:
        """Return log(exp(y) - 1)."""
        return y + gnp.log(-gnp.expm1(-y))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return log(1 / (1 + exp(-x)))."""
        return special.log_expit(x)

    def holds_for(self, y: Any) -> Any:
        """Tell whether y > 0."""
        return y > 0


class ComposeTransform(Transform):
    """Several transforms, applied from the first to the last.

    >>> from gradmgr.distributions import transforms
    >>> t = transforms.ComposeTransform([transforms.AffineTransform(0.0, 2.0), transforms.ExpTransform()])
    >>> t.inv(t(1.5)).round(3)
    np.float64(1.5)
    """

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]  # that of the last
        """That of the last part."""
        return self.parts[-1].codomain if self.parts else real

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape to which those of the parts broadcast."""
        return np.broadcast_shapes(*[part.parameter_shape for part in self.parts])

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def inv(self, y: Any) -> Any:
        """Return x."""
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Return the sum of the parts'."""
        total: Any = 0 if self.parts else gnp.sign(x) * 0
        for part in self.parts:
            step = part(x)
            total, x = total + part.log_abs_det_jacobian(x, step), step
        return total

    def holds_for(self, y: Any) -> Any:
        """Tell whether each part has it as a value."""
        holds: Any = y == y
        for part in reversed(self.parts):
            inside = part.holds_for(y)
            holds = holds & inside
            y = part.inv(gnp.where(inside, y, raw(part(y * 0 + 0))))
        return holds

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts!r})"


def biject_to(constraint: Constraint) -> Transform:
    """Return an invertible function of all real numbers whose values meet a constraint.

    Args:
        constraint: of `constraints`: real, or between bounds, or `independent` of such.

    Raises:
        NotImplementedError: there is none that works element by element, as for a simplex or integers.

    >>> from gradmgr import distributions
    >>> distributions.biject_to(distributions.constraints.positive)
    ExpTransform()
    >>> distributions.biject_to(distributions.constraints.interval(-1.0, 3.0))(0.0)
    np.float64(1.0)
    """
    return _transform_onto(constraint, "biject_to")


def transform_to(constraint: Constraint) -> Transform:
    """Return a function of all real numbers whose values meet a constraint, as `biject_to`.

    Raises:
        NotImplementedError: `constraint` is neither that of all real numbers nor one of bounds.

    >>> from gradmgr import distributions
    >>> unconstrained = -1.5
    >>> scale = distributions.transform_to(distributions.Normal.arg_constraints["scale"])(unconstrained)
    >>> scale.round(3)
    np.float64(0.223)
    """
    return _transform_onto(constraint, "transform_to")


def _transform_onto(constraint: Constraint, asked: str) -> Transform:
    if isinstance(constraint, Independent):
        return _transform_onto(constraint.base_constraint, asked)
    if constraint is real or constraint is finite:
        return ComposeTransform([])
    if not isinstance(constraint, Bounded) or constraint.is_discrete:
        raise NotImplementedError(
            f"{asked} has functions for real numbers and those between bounds; found {constraint!r}"
        )
    lower, upper = constraint.lower_bound, constraint.upper_bound
    if lower is None:
        return ComposeTransform([ExpTransform(), AffineTransform(upper, -1.0)])
    if upper is None:
        return ExpTransform() if _is(lower, 0) else ComposeTransform([ExpTransform(), AffineTransform(lower, 1.0)])
    if _is(lower, 0) and _is(upper, 1):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(lower, upper - lower)])


def _is(bound: Any, number: int) -> bool:
    return isinstance(bound, (int, float)) and bound == number
