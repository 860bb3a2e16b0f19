"""Distributions that a location and a scale move: Uniform, Laplace, Cauchy, Gumbel, VonMises; halves of them."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.drawing import drawn, noise
from gradmgr._engine.tensor import raw
from gradmgr.distributions._continuous import LocationScale
from gradmgr.distributions._distribution import Distribution, Shape, full_like_shape, require
from gradmgr.distributions.constraints import Constraint, interval, nonnegative, positive, real

_LOG_PI, _LOG_2 = math.log(math.pi), math.log(2)


def _draw_von_mises(rng: np.random.Generator, loc: Any, concentration: Any) -> Any:
    return np.asarray(rng.vonmises(loc, concentration)).astype(loc.dtype)


class Uniform(Distribution):
    """The uniform distribution between two numbers, with arguments as torch.distributions.Uniform.

    The density is the same at both bounds as between them.

    Args:
        low: the lower bound.
        high: the upper bound, greater than that.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Uniform(1.0, 3.0).log_prob([2.0, 4.0]).round(3).tolist()
    [-0.693, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"low": real, "high": real})
    _inner = 0.0

    def __init__(self, low: Any, high: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, low=low, high=high)
        if validate_args:
            width = raw(self._parameters["high"]) * 1.0 - raw(self._parameters["low"])
            if not is_batched(width):  # the examples of a vmap have no common truth value
                require(width, positive, "high - low", "Uniform")

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return interval(self._parameters["low"], self._parameters["high"])

    def _draw(self, rng: np.random.Generator, shape: Shape, low: Any, high: Any) -> Any:
        return low + (high - low) * noise("random", rng, shape, raw(low))

    def _log_prob(self, value: Any, low: Any, high: Any) -> Any:
        return value * 0 - gnp.log(high - low)

    def entropy(self) -> Any:
        """Return log(high - low)."""
        low, high = self._values()
        return gnp.log(high - low)

    @property
    def mean(self) -> Any:
        """Half of low + high."""
        low, high = self._values()
        return (low + high) / 2

    @property
    def variance(self) -> Any:
        """(high - low)^2 / 12."""
        low, high = self._values()
        return (high - low) ** 2 / 12

    def _ends(self, value: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        return value < low, value > high, low

    def _cdf(self, value: Any, low: Any, high: Any) -> Any:
        return (value - low) / (high - low)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        low, high, q = self._values(q)
        return low + (high - low) * q


class Laplace(LocationScale):
    """The Laplace distribution, with arguments as torch.distributions.Laplace.

    Args:
        loc: the mean.
        scale: the mean distance from it, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Laplace(0.0, 1.0).log_prob(1.5).round(3)
    np.float64(-2.193)
    """

    _kind_of_noise = "laplace"
    _reach = -750.0, 750.0

    def _log_prob(self, value: Any, loc: Any, scale: Any) -> Any:
        return -gnp.abs(value - loc) / scale - gnp.log(scale) - _LOG_2

    def entropy(self) -> Any:
        """Return 1 + log(2 scale)."""
        _, scale = self._values()
        return self._spread(gnp.log(scale) + (1 + _LOG_2))

    @property
    def variance(self) -> Any:
        """Twice the square of scale."""
        scale = self._values()[1]
        return self._spread(2 * scale * scale)

    def _cdf(self, value: Any, loc: Any, scale: Any) -> Any:
        z = (value - loc) / scale
        is_low = raw(z) < 0
        tail = gnp.exp(gnp.where(is_low, z, -z)) / 2  # of -abs(z), which has the slope 0 at 0
        return gnp.where(is_low, tail, 1 - tail)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        loc, scale, q = self._values(q)
        is_low = raw(q) < 0.5
        tail = gnp.log(2 * gnp.where(is_low, q, 1 - q))
        return loc + scale * gnp.where(is_low, tail, -tail)


class Cauchy(LocationScale):
    """The Cauchy distribution, with arguments as torch.distributions.Cauchy.

    Args:
        loc: the median.
        scale: half the distance between the quartiles, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Cauchy(0.0, 1.0).cdf(1.0)
    np.float64(0.75)
    """

    _kind_of_noise = "standard_cauchy"

    def _log_prob(self, value: Any, loc: Any, scale: Any) -> Any:
        # Not by the square of (value - loc) / scale, which overflows.
        return gnp.log(scale) - 2 * gnp.log(gnp.hypot(scale, value - loc)) - _LOG_PI

    def entropy(self) -> Any:
        """Return log(4 pi scale)."""
        _, scale = self._values()
        return self._spread(gnp.log(scale) + (_LOG_PI + 2 * _LOG_2))

    @property
    def mean(self) -> Any:
        """NaN: there is no mean."""
        loc, _ = self._values()
        return self._spread(loc * np.nan)

    @property
    def variance(self) -> Any:
        """Infinity."""
        _, scale = self._values()
        return self._spread(scale * np.inf)

    def _ends(self, value: Any, loc: Any, scale: Any) -> tuple[Any, Any, Any]:
        return value == -np.inf, value == np.inf, loc

    def _cdf(self, value: Any, loc: Any, scale: Any) -> Any:
        # The angle from the negative axis: not a difference, which would round small probabilities off.
        return gnp.arctan2(scale, loc - value) / math.pi

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        loc, scale, q = self._values(q)
        is_above = raw(q) > 0.5
        angle = math.pi * gnp.where(is_above, 1 - q, q)  # pi less an angle near it would be rounded off
        found = scale * gnp.cos(angle) / gnp.sin(angle)
        return loc + gnp.where(is_above, found, -found)


class Gumbel(LocationScale):
    """The Gumbel distribution, of largest values, with arguments as torch.distributions.Gumbel.

    Args:
        loc: the mode.
        scale: by which a variable of mode 0 is multiplied, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Gumbel(0.0, 1.0).log_prob(0.0)
    np.float64(-1.0)
    """

    _kind_of_noise = "gumbel"
    _reach = -7.0, 750.0

    def _log_prob(self, value: Any, loc: Any, scale: Any) -> Any:
        z = gnp.maximum((value - loc) / scale, -800.0)  # at which exp(-z) is infinite; -inf would give inf - inf
        return -(z + gnp.exp(-z)) - gnp.log(scale)

    def entropy(self) -> Any:
        """Return log(scale) + 1 + Euler's constant."""
        _, scale = self._values()
        return self._spread(gnp.log(scale) + (1 + np.euler_gamma))

    @property
    def mean(self) -> Any:
        """The sum of loc and Euler's constant times scale."""
        loc, scale = self._values()
        return loc + scale * np.euler_gamma

    @property
    def variance(self) -> Any:
        """(pi scale)^2 / 6."""
        scale = self._values()[1]
        return self._spread(scale * scale * (math.pi**2 / 6))

    def _cdf(self, value: Any, loc: Any, scale: Any) -> Any:
        return gnp.exp(-gnp.exp((loc - value) / scale))

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        loc, scale, q = self._values(q)
        return loc - scale * gnp.log(-gnp.log(q))


class VonMises(Distribution):
    """The von Mises distribution of angles, with arguments as torch.distributions.VonMises.

    Values are drawn from -pi to pi; the density has the period 2 pi. The variance is the circular one.

    Args:
        loc: the mean angle, in radians.
        concentration: about one over the variance where it is large, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.VonMises(0.0, 2.0).log_prob([0.0, 6.283185307179586]).round(3).tolist()
    [-0.662, -0.662]
    """

    arg_constraints = MappingProxyType({"loc": real, "concentration": positive})
    _support = real

    def __init__(self, loc: Any, concentration: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, loc=loc, concentration=concentration)

    def _draw(self, rng: np.random.Generator, shape: Shape, loc: Any, concentration: Any) -> Any:
        return drawn(_draw_von_mises, rng, full_like_shape(loc, shape), full_like_shape(concentration, shape))

    def _log_prob(self, value: Any, loc: Any, concentration: Any) -> Any:
        half = gnp.sin((value - loc) / 2)
        return -2 * concentration * half * half - gnp.log(2 * math.pi * special.i0e(concentration))

    def entropy(self) -> Any:
        """Return log(2 pi I0(k)) - k I1(k) / I0(k), k being the concentration."""
        concentration = self._values()[1]
        log_volume = gnp.log(2 * math.pi * special.i0e(concentration))
        return self._spread(log_volume + concentration * self._circular_variance(concentration))

    @staticmethod
    def _circular_variance(concentration: Any) -> Any:
        return 1 - special.i1e(concentration) / special.i0e(concentration)

    @property
    def mean(self) -> Any:
        """The parameter loc."""
        return self._spread(self._values()[0])

    @property
    def variance(self) -> Any:
        """The circular variance: 1 - I1(k) / I0(k), k being the concentration."""
        return self._spread(self._circular_variance(self._values()[1]))


class HalfDistribution(Distribution):
    """The base of distributions of scale |x|, x being what a method of Generator draws without parameters."""

    has_rsample = True
    arg_constraints = MappingProxyType({"scale": positive})
    _support = nonnegative
    _inner = 1.0
    _kind_of_noise: ClassVar[str]

    def __init__(self, scale: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, scale=scale)

    def _draw(self, rng: np.random.Generator, shape: Shape, scale: Any) -> Any:
        return scale * gnp.abs(noise(self._kind_of_noise, rng, shape, raw(scale)))


class HalfNormal(HalfDistribution):
    """The distribution of the absolute value of a normal variable, as torch.distributions.HalfNormal.

    Args:
        scale: the standard deviation of the normal variable, whose mean is 0; greater than 0.
        validate_args: whether it is checked.

    Raises:
        ValueError: the scale is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.HalfNormal(1.0).log_prob([0.5, -0.5]).round(3).tolist()
    [-0.351, -inf]
    """

    _kind_of_noise = "standard_normal"

    def _log_prob(self, value: Any, scale: Any) -> Any:
        z = value / scale
        return -(z * z) / 2 - gnp.log(scale) + (_LOG_2 - _LOG_PI) / 2

    def entropy(self) -> Any:
        """Return 1/2 + log(scale sqrt(pi / 2))."""
        return gnp.log(self._values()[0]) + (1 + _LOG_PI - _LOG_2) / 2

    @property
    def mean(self) -> Any:
        """The product of scale and sqrt(2 / pi)."""
        return self._values()[0] * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Any:
        """scale^2 (1 - 2 / pi)."""
        (scale,) = self._values()
        return scale * scale * (1 - 2 / math.pi)

    def _ends(self, value: Any, scale: Any) -> tuple[Any, Any, Any]:
        return value < 0, value / scale > 40, 0.0

    def _cdf(self, value: Any, scale: Any) -> Any:
        return special.erf(value / (scale * math.sqrt(2)))

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        scale, q = self._values(q)
        return scale * math.sqrt(2) * special.erfinv(q)


class HalfCauchy(HalfDistribution):
    """The distribution of the absolute value of a Cauchy variable, as torch.distributions.HalfCauchy.

    Args:
        scale: that of the Cauchy variable, whose median is 0; the median of this one; greater than 0.
        validate_args: whether it is checked.

    Raises:
        ValueError: the scale is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.HalfCauchy(2.0).cdf([2.0, -1.0]).tolist()
    [0.5, 0.0]
    """

    _kind_of_noise = "standard_cauchy"

    def _log_prob(self, value: Any, scale: Any) -> Any:
        return gnp.log(scale) - 2 * gnp.log(gnp.hypot(scale, value)) + (_LOG_2 - _LOG_PI)

    def entropy(self) -> Any:
        """Return log(2 pi scale)."""
        return gnp.log(self._values()[0]) + (_LOG_2 + _LOG_PI)

    @property
    def mean(self) -> Any:
        """Infinity."""
        return self._values()[0] * np.inf

    @property
    def variance(self) -> Any:
        """Infinity."""
        return self._values()[0] * np.inf

    def _ends(self, value: Any, scale: Any) -> tuple[Any, Any, Any]:
        return value < 0, value == np.inf, 0.0

    def _cdf(self, value: Any, scale: Any) -> Any:
        return gnp.arctan2(value, scale) * (2 / math.pi)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        scale, q = self._values(q)
        is_above, quarter = raw(q) > 0.5, math.pi / 2
        above = scale / gnp.tan(quarter * gnp.where(is_above, 1 - q, 0.5))
        return gnp.where(is_above, above, scale * gnp.tan(quarter * gnp.where(is_above, 0.5, q)))
