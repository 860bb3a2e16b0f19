"""Constraints: what a parameter or a value must be, under the names of torch.distributions.constraints.

>>> import numpy
>>> from gradmgr.distributions import Gamma, constraints
>>> constraints.positive.check(numpy.array([1.0, 0.0])).tolist()
[True, False]
>>> Gamma(2.0, 1.0).support
constraints.nonnegative
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradmgr._arrays.libraries import F4, F8
from gradmgr._engine.tensor import raw

__all__ = [
    "Bounded",
    "Constraint",
    "Independent",
    "Tested",
    "boolean",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "real",
    "real_vector",
    "simplex",
    "symmetric",
    "unit_interval",
]

# Of frozen classes: what stands at module level never changes. Compared by identity, as bounds may be arrays.


@dataclass(frozen=True, eq=False, repr=False)
class Constraint:
    """What values must be.

    Attributes:
        name: by which the module knows it.
        words: the same in words, for errors.
        is_discrete: whether the values are integers.
        event_dim: how many of the last axes of an array are one value.

    >>> import numpy
    >>> from gradmgr.distributions import constraints
    >>> constraints.simplex.check(numpy.array([[0.5, 0.5], [0.5, 0.6]])).tolist()
    [True, False]
    """

    name: str
    words: str
    is_discrete: bool = field(default=False, kw_only=True)
    event_dim: int = field(default=0, kw_only=True)

    def holds(self, plain: Any) -> Any:
        """Tell of each element of a plain array or number whether it is as it must be."""
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """Tell of each value whether it is as it must be.

        Args:
            value: a number, array or Tensor.

        Returns:
            Booleans, of the shape of `value` without the last `event_dim` axes.
        """
        plain = raw(value) if hasattr(value, "dtype") else np.asarray(value)
        holds = self.holds(plain)
        if not self.event_dim:
            return holds
        return np.broadcast_to(holds, plain.shape).all(axis=tuple(range(-self.event_dim, 0)))

    def __repr__(self) -> str:
        return f"constraints.{self.name}"


@dataclass(frozen=True, eq=False, repr=False)
class Tested(Constraint):
    """What a function says of each element.

    Attributes:
        test: that function, of plain arrays and numbers.

    >>> from gradmgr.distributions import constraints
    >>> even = constraints.Tested("even", "an even number", lambda x: x % 2 == 0, is_discrete=True)
    >>> even.check(3)
    np.False_
    """

    test: Callable[[Any], Any]

    def holds(self, plain: Any) -> Any:
        """Tell of each element of a plain array or number whether it is as it must be."""
        return self.test(plain)


@dataclass(frozen=True, eq=False, repr=False)
class Bounded(Constraint):
    """Numbers between bounds, each a number, an array, a Tensor, or None if there is none.

    Attributes:
        lower_bound: the bound below.
        upper_bound: the bound above.
        without: which of the bounds is not a value itself: "lower", "upper", or "".

    >>> from gradmgr.distributions import constraints
    >>> constraints.interval(-1.0, 1.0).upper_bound
    1.0
    """

    lower_bound: Any
    upper_bound: Any
    without: str = ""

    def holds(self, plain: Any) -> Any:
        """Tell of each element of a plain array or number whether it is between the bounds."""
        holds: Any = True
        if self.lower_bound is not None:
            lower = raw(self.lower_bound)
            holds = plain > lower if self.without == "lower" else plain >= lower
        if self.upper_bound is not None:
            upper = raw(self.upper_bound)
            holds = holds & (plain < upper if self.without == "upper" else plain <= upper)
        return holds & (plain == np.floor(plain)) if self.is_discrete else holds


@dataclass(frozen=True, eq=False, repr=False)
class Independent(Constraint):
    """Values of several axes, each element of which meets a constraint.

    Attributes:
        base_constraint: that constraint.
        reinterpreted_batch_ndims: how many axes a value has more than one of that has.

    >>> import numpy
    >>> from gradmgr.distributions import constraints
    >>> constraints.independent(constraints.positive, 1).check(numpy.array([[1.0, 2.0], [1.0, -2.0]])).tolist()
    [True, False]
    """

    base_constraint: Constraint
    reinterpreted_batch_ndims: int

    def holds(self, plain: Any) -> Any:
        """Tell of each element of a plain array or number whether it is as it must be."""
        return self.base_constraint.holds(plain)


def independent(base_constraint: Constraint, reinterpreted_batch_ndims: int, name: str = "") -> Independent:
    """Return the constraint of arrays whose elements meet one, the last axes being one value.

    Raises:
        TypeError: `base_constraint` is not a constraint.
        ValueError: the number of axes is not an integer, or negative.

    >>> from gradmgr.distributions import constraints
    >>> constraints.independent(constraints.positive, 1).check([[1.0, 2.0], [1.0, -2.0]]).tolist()
    [True, False]
    """
    count = reinterpreted_batch_ndims
    if not isinstance(base_constraint, Constraint):
        raise TypeError(
            "independent takes a constraint, such as constraints.real, and a number of axes; found "
            f"{type(base_constraint).__name__}"
        )
    if not isinstance(count, (int, np.integer)) or count < 0:
        raise ValueError(f"independent: reinterpreted_batch_ndims must be an integer of at least 0; found {count!r}")
    return Independent(
        name or f"independent({base_constraint!r}, {count})",
        base_constraint.words,
        base_constraint,
        count,
        is_discrete=base_constraint.is_discrete,
        event_dim=base_constraint.event_dim + count,
    )


def greater_than(lower_bound: Any) -> Bounded:
    """Return the constraint of numbers above a bound.

    >>> from gradmgr.distributions import constraints
    >>> constraints.greater_than(1.0).check([1.0, 1.5]).tolist()
    [False, True]
    """
    lower = _in_words(lower_bound)
    return Bounded(f"greater_than({lower})", f"greater than {lower}", lower_bound, None, "lower")


def greater_than_eq(lower_bound: Any) -> Bounded:
    """Return the constraint of numbers from a bound on.

    >>> from gradmgr.distributions import constraints
    >>> constraints.greater_than_eq(1.0).check([0.5, 1.0]).tolist()
    [False, True]
    """
    lower = _in_words(lower_bound)
    return Bounded(f"greater_than_eq({lower})", f"{lower} or greater", lower_bound, None)


def less_than(upper_bound: Any) -> Bounded:
    """Return the constraint of numbers below a bound.

    >>> from gradmgr.distributions import constraints
    >>> constraints.less_than(1.0).check([0.5, 1.0]).tolist()
    [True, False]
    """
    upper = _in_words(upper_bound)
    return Bounded(f"less_than({upper})", f"less than {upper}", None, upper_bound, "upper")


def interval(lower_bound: Any, upper_bound: Any) -> Bounded:
    """Return the constraint of numbers from one bound to the other, both included.

    >>> from gradmgr.distributions import constraints
    >>> constraints.interval(0.0, 1.0).check([-0.5, 0.0, 1.0]).tolist()
    [False, True, True]
    """
    lower, upper = _in_words(lower_bound), _in_words(upper_bound)
    return Bounded(f"interval({lower}, {upper})", f"from {lower} to {upper}", lower_bound, upper_bound)


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Bounded:
    """Return the constraint of numbers from one bound to below the other.

    >>> from gradmgr.distributions import constraints
    >>> constraints.half_open_interval(0.0, 1.0).check([0.0, 1.0]).tolist()
    [True, False]
    """
    lower, upper = _in_words(lower_bound), _in_words(upper_bound)
    name, words = f"half_open_interval({lower}, {upper})", f"from {lower} to below {upper}"
    return Bounded(name, words, lower_bound, upper_bound, "upper")


def integer_interval(lower_bound: Any, upper_bound: Any) -> Bounded:
    """Return the constraint of integers from one bound to the other, both included.

    >>> from gradmgr.distributions import constraints
    >>> constraints.integer_interval(0, 2).check([0.0, 1.5, 2.0, 3.0]).tolist()
    [True, False, True, False]
    """
    lower, upper = _in_words(lower_bound), _in_words(upper_bound)
    name, words = f"integer_interval({lower}, {upper})", f"integers from {lower} to {upper}"
    return Bounded(name, words, lower_bound, upper_bound, is_discrete=True)


def _in_words(bound: Any) -> str:
    """Return what represents a bound in a text, without reading an array: it may be batched or captured."""
    return repr(bound) if isinstance(bound, (int, float)) else f"an array of shape {np.shape(bound)}"


def multinomial(upper_bound: int) -> Constraint:
    """Return the constraint of vectors of counts whose sum is a number.

    >>> from gradmgr.distributions import constraints
    >>> constraints.multinomial(3).check([[1, 2], [1, 1]]).tolist()
    [True, False]
    """

    def holds(x: Any) -> Any:
        return (x >= 0) & (x == np.floor(x)) & (x.sum(axis=-1, keepdims=True) == upper_bound)

    return Tested(
        f"multinomial({upper_bound!r})", f"counts with the sum {upper_bound}", holds, is_discrete=True, event_dim=1
    )


def _is_symmetric(matrix: Any) -> Any:
    kind = matrix.dtype if matrix.dtype.kind == "f" else np.float64
    tolerance = np.finfo(kind).eps ** 0.5 * abs(matrix).max(axis=(-2, -1), keepdims=True)
    return abs(matrix - matrix.swapaxes(-1, -2)) <= tolerance


def _is_positive_definite(matrix: Any) -> Any:
    return _is_symmetric(matrix) & has_factor(matrix)[..., None, None]


def has_factor(matrix: Any) -> Any:
    """Return of each symmetric matrix whether it has a Cholesky factor, found as fast as that is."""
    if matrix.dtype not in (F4, F8):
        matrix = matrix.astype(np.float64)
    try:
        return np.isfinite(np.linalg.cholesky(matrix)).all(axis=(-2, -1))  # CuPy's is NaN where there is none
    except np.linalg.LinAlgError:
        if matrix.ndim == 2:
            return np.asarray(False)
        return np.stack([has_factor(each) for each in matrix])


def _is_on_simplex(x: Any) -> Any:
    return (x >= 0) & (abs(x.sum(axis=-1, keepdims=True) - 1) < 1e-6)  # torch's tolerance


def _is_lower_cholesky(matrix: Any) -> Any:
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    return (np.triu(matrix, 1) == 0) & (diagonal > 0)[..., None]


real = Tested("real", "numbers, not NaN", lambda x: x == x)
finite = Tested("finite", "finite", lambda x: abs(x) < np.inf)
positive = Bounded("positive", "greater than 0", 0.0, None, "lower")
nonnegative = Bounded("nonnegative", "0 or greater", 0.0, None)
unit_interval = Bounded("unit_interval", "from 0 to 1", 0.0, 1.0)
boolean = Bounded("boolean", "0 or 1", 0, 1, is_discrete=True)
nonnegative_integer = Bounded("nonnegative_integer", "integers, 0 or greater", 0, None, is_discrete=True)
positive_integer = Bounded("positive_integer", "integers, 1 or greater", 1, None, is_discrete=True)
real_vector = independent(real, 1, "real_vector")
simplex = Tested("simplex", "0 or greater, with a sum of 1", _is_on_simplex, event_dim=1)
one_hot = Tested(
    "one_hot",
    "one 1 among zeros",
    lambda x: ((x == 0) | (x == 1)) & (x.sum(axis=-1, keepdims=True) == 1),
    is_discrete=True,
    event_dim=1,
)
lower_triangular = Tested("lower_triangular", "lower triangular", lambda a: np.triu(a, 1) == 0, event_dim=2)
symmetric = Tested("symmetric", "symmetric", _is_symmetric, event_dim=2)
lower_cholesky = Tested(
    "lower_cholesky", "lower triangular, with a diagonal greater than 0", _is_lower_cholesky, event_dim=2
)
positive_definite = Tested("positive_definite", "symmetric and positive definite", _is_positive_definite, event_dim=2)
