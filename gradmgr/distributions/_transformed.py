"""Distributions made of others: Independent, TransformedDistribution, LogNormal."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.distributions._continuous import Normal
from gradmgr.distributions._distribution import (
    Distribution,
    Shape,
    between_ends,
    by_parts,
    in_dtype,
    parameter_of,
    within,
)
from gradmgr.distributions.constraints import Constraint, independent
from gradmgr.distributions.transforms import ComposeTransform, ExpTransform, Transform


def sum_rightmost(value: Any, count: int) -> Any:
    """Sum over the last axes."""
    return gnp.sum(value, axis=tuple(range(-count, 0))) if count else value


class Independent(Distribution):
    """A distribution whose last batch axes are one value of several independent variables.

    Args:
        base_distribution: what it is made of.
        reinterpreted_batch_ndims: how many of the last axes of its batch_shape become axes of event_shape.

    Raises:
        TypeError: base_distribution is not a Distribution.
        ValueError: it has fewer batch axes than that.

    >>> import numpy
    >>> from gradmgr import distributions
    >>> distributions.Independent(distributions.Normal(numpy.zeros(3), 1.0), 1).log_prob(numpy.zeros(3)).round(3)
    np.float64(-2.757)
    """

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int) -> None:
        require_distribution(base_distribution, "Independent")
        count = operator.index(reinterpreted_batch_ndims)
        shape = base_distribution.batch_shape
        if not 0 <= count <= len(shape):
            raise ValueError(
                f"Independent: reinterpreted_batch_ndims is from 0 to {len(shape)}, the number of batch axes of "
                f"{base_distribution!r}; found {count}"
            )
        super().__init__(False)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        self._batch_shape = shape[: len(shape) - count]
        self._event_shape = shape[len(shape) - count :] + base_distribution.event_shape

    def _dtype_with(self, *values: Any) -> Any:
        return self.base_dist._dtype_with(*values)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # that of the base
        """Whether the base has it."""
        return self.base_dist.has_rsample

    @property
    def event_shape(self) -> Shape:
        """The last batch axes of the base, and its event_shape."""
        return self._event_shape

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    def _expand_to(self, shape: Shape) -> None:
        own = self._event_shape[: self.reinterpreted_batch_ndims]
        self.base_dist, self._batch_shape = self.base_dist.expand(shape + own), shape

    def log_prob(self, value: Any) -> Any:
        """Return the sum of the logarithms of the densities of the variables."""
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def rsample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return random values of the base."""
        return self.base_dist.rsample(rng, sample_shape)

    def sample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return random values of the base."""
        return self.base_dist.sample(rng, sample_shape)

    def entropy(self) -> Any:
        """Return the sum of the entropies of the variables."""
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Any:
        """That of the base."""
        return self.base_dist.mean

    @property
    def variance(self) -> Any:
        """That of the base."""
        return self.base_dist.variance

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of transforms of a variable: y = t(x), one transform after the other.

    Args:
        base_distribution: that of x.
        transforms: one Transform, or a sequence of them. Arrays that they hold broadcast to the shape of x.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an array of a transform has more elements than x, or does not broadcast with it.

    >>> from gradmgr import distributions
    >>> from gradmgr.distributions import transforms
    >>> logistic_normal = distributions.TransformedDistribution(
    ...     distributions.Normal(0.0, 1.0), transforms.SigmoidTransform()
    ... )
    >>> logistic_normal.log_prob([0.5, 2.0]).round(3).tolist()
    [0.467, -inf]
    """

    def __init__(self, base_distribution: Distribution, transforms: Transform | Sequence[Transform]) -> None:
        require_distribution(base_distribution, "TransformedDistribution")
        parts: list[Any] = list(transforms) if isinstance(transforms, (list, tuple)) else [transforms]
        for part in parts:
            if not isinstance(part, Transform):
                raise TypeError(f"TransformedDistribution takes Transforms; found {type(part).__name__}")
        super().__init__(False)
        self.base_dist, self.transforms = base_distribution, parts
        self._transform: Transform = parts[0] if len(parts) == 1 else ComposeTransform(parts)
        self._batch_shape = base_distribution.batch_shape
        self._check_transform()

    def _check_transform(self) -> None:
        shape, held = self.base_dist.batch_shape + self.base_dist.event_shape, self._transform.parameter_shape
        try:
            fits = np.broadcast_shapes(shape, held) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"TransformedDistribution: the transforms hold arrays of shape {held}, which must broadcast to the "
                f"shape of a value of {self.base_dist!r}; found {shape}. Give the base parameters of the larger shape"
            )

    def _dtype_with(self, *values: Any) -> Any:
        return self.base_dist._dtype_with(*values)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # that of the base
        """Whether the base has it."""
        return self.base_dist.has_rsample

    @property
    def event_shape(self) -> Shape:
        """That of the base."""
        return self.base_dist.event_shape

    @property
    def support(self) -> Constraint:
        """What the values are."""
        codomain, axes = self._transform.codomain, len(self.event_shape)
        return independent(codomain, axes) if axes else codomain

    def _expand_to(self, shape: Shape) -> None:
        self.base_dist, self._batch_shape = self.base_dist.expand(shape), shape

    def log_prob(self, value: Any) -> Any:
        """Return log_prob of the base at the inverse, less the logarithms of the slopes; -inf if there is none."""
        y = parameter_of(value, "value", f"{type(self).__name__}.log_prob")
        y = in_dtype(y, self._dtype_with(y))
        axes = len(self.event_shape)

        def density(y: Any) -> Any:
            x = self._transform.inv(y)
            return self.base_dist.log_prob(x) - sum_rightmost(self._transform.log_abs_det_jacobian(x, y), axes)

        plain = raw(y)
        return within(
            self._transform.holds_for(plain) & np.isfinite(plain),
            density,
            y,
            raw(self._transform(y.dtype.type(0))),
            axes,
        )

    def rsample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return transforms of random values of the base."""
        return self._transform(self.base_dist.rsample(rng, sample_shape))

    def sample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return transforms of random values of the base, which are constants to every manager."""
        made = self._transform(self.base_dist.sample(rng, sample_shape))
        return made.detach() if isinstance(made, Tensor) else made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {self.transforms!r})"


class LogNormal(TransformedDistribution):
    """The distribution of exp(x) for normal x, with arguments as torch.distributions.LogNormal.

    Args:
        loc: the mean of x.
        scale: the standard deviation of x, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.LogNormal(0.0, 1.0).log_prob([1.0, -1.0]).round(3).tolist()
    [-0.919, -inf]
    """

    base_dist: Normal

    def __init__(self, loc: Any, scale: Any, validate_args: bool = True) -> None:
        super().__init__(Normal(loc, scale, validate_args), ExpTransform())

    @property
    def loc(self) -> Any:
        """The mean of the logarithm."""
        return self.base_dist.loc

    @property
    def scale(self) -> Any:
        """The standard deviation of the logarithm."""
        return self.base_dist.scale

    def entropy(self) -> Any:
        """Return that of the normal distribution, plus loc."""
        return self.base_dist.entropy() + self.base_dist.mean

    @property
    def mean(self) -> Any:
        """exp(loc + scale^2 / 2)."""
        return gnp.exp(self.base_dist.mean + self.base_dist.variance / 2)

    @property
    def variance(self) -> Any:
        """(exp(scale^2) - 1) exp(2 loc + scale^2)."""
        squared = self.base_dist.variance
        return gnp.expm1(squared) * gnp.exp(2 * self.base_dist.mean + squared)

    def cdf(self, value: Any) -> Any:
        """Return the probability of values up to this one."""
        value = parameter_of(value, "value", "LogNormal.cdf")
        loc, scale, value = self.base_dist._values(value)
        with np.errstate(all="ignore"):
            is_low, is_high, inner = self.base_dist._ends(np.log(np.maximum(raw(value), 0)), raw(loc), raw(scale))
            inner = np.exp(inner)
        return between_ends(is_low, is_high, lambda x: special.ndtr((gnp.log(x) - loc) / scale), value, inner)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        loc, scale, q = self.base_dist._values(q)
        plain_loc, plain_scale = raw(loc), raw(scale)
        return by_parts(
            raw(q) == 0,  # whose logarithm is -inf, and the derivatives by the parameters 0, not 0 times that
            lambda q: gnp.exp(plain_loc + plain_scale * special.ndtri(q)),
            lambda q: gnp.exp(loc + scale * special.ndtri(q)),
            q,
            (0.5, 0.5),
        )


def require_distribution(value: Any, asked: str) -> None:
    """Raise a TypeError if a value is not a Distribution."""
    if not isinstance(value, Distribution):
        raise TypeError(f"{asked} takes a Distribution; found {type(value).__name__}")
