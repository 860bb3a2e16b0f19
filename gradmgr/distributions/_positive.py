"""Distributions of positive numbers: Exponential, Weibull, Pareto, InverseGamma, Chi2."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays.drawing import noise
from gradmgr._engine.tensor import raw
from gradmgr.distributions._continuous import Gamma, log_gamma_variate
from gradmgr.distributions._distribution import Distribution, Shape, by_parts, drawn_exp, numbers_of
from gradmgr.distributions.constraints import Constraint, greater_than_eq, nonnegative, positive


def standard_exponential(rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
    """Return exponential numbers of rate 1, of the parameter's dtype and device, of a shape."""
    return noise("standard_exponential", rng, shape, raw(parameter))


class Exponential(Distribution):
    """The exponential distribution, with arguments as torch.distributions.Exponential.

    Args:
        rate: one over the mean, greater than 0.
        validate_args: whether it is checked.

    Raises:
        ValueError: the rate is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Exponential(2.0).log_prob([1.0, -1.0]).round(3).tolist()
    [-1.307, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"rate": positive})
    _support = nonnegative
    _inner = 1.0

    def __init__(self, rate: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, rate=rate)

    def _draw(self, rng: np.random.Generator, shape: Shape, rate: Any) -> Any:
        return standard_exponential(rng, shape, rate) / rate

    def _log_prob(self, value: Any, rate: Any) -> Any:
        return gnp.log(rate) - rate * value

    def entropy(self) -> Any:
        """Return 1 - log(rate)."""
        return 1 - gnp.log(self._values()[0])

    @property
    def mean(self) -> Any:
        """One over the rate."""
        return 1 / self._values()[0]

    @property
    def variance(self) -> Any:
        """One over the squared rate."""
        (rate,) = self._values()
        return 1 / (rate * rate)

    def _ends(self, value: Any, rate: Any) -> tuple[Any, Any, Any]:
        return value < 0, rate * value > 750, 0.0

    def _cdf(self, value: Any, rate: Any) -> Any:
        return -gnp.expm1(-rate * value)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        rate, q = self._values(q)
        return -gnp.log1p(-q) / rate


class Weibull(Distribution):
    """The Weibull distribution, with arguments as torch.distributions.Weibull.

    Args:
        scale: by which a variable of scale 1 is multiplied, greater than 0.
        concentration: the shape, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Weibull(1.0, 2.0).log_prob([0.5, -0.5]).round(3).tolist()
    [-0.25, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"scale": positive, "concentration": positive})
    _support = nonnegative
    _inner = 1.0

    def __init__(self, scale: Any, concentration: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, scale=scale, concentration=concentration)

    def _draw(self, rng: np.random.Generator, shape: Shape, scale: Any, concentration: Any) -> Any:
        noise = standard_exponential(rng, shape, scale)
        return drawn_exp(gnp.log(np.maximum(noise, numbers_of(noise.dtype)[0])) / concentration, scale)

    def _log_prob(self, value: Any, scale: Any, concentration: Any) -> Any:
        z = value / scale
        finite = gnp.minimum(z, numbers_of(value.dtype)[2])  # infinity would give inf - inf
        return gnp.log(concentration) - gnp.log(scale) + special.xlogy(concentration - 1, finite) - z**concentration

    def entropy(self) -> Any:
        """Return c (1 - 1/k) + log(scale / k) + 1, k being the concentration and c Euler's constant."""
        scale, k = self._values()
        return np.euler_gamma * (1 - 1 / k) + gnp.log(scale / k) + 1

    @property
    def mean(self) -> Any:
        """Scale gamma(1 + 1/k), k being the concentration."""
        scale, k = self._values()
        return scale * gnp.exp(special.gammaln(1 + 1 / k))

    @property
    def variance(self) -> Any:
        """scale^2 (gamma(1 + 2/k) - gamma(1 + 1/k)^2), k being the concentration."""
        scale, k = self._values()
        log_of_mean = special.gammaln(1 + 1 / k)
        # Not a difference of gamma functions, which overflow for a small k and are nearly equal for a large one.
        ratio = gnp.expm1(special.gammaln(1 + 2 / k) - 2 * log_of_mean)
        return (scale * gnp.exp(log_of_mean)) ** 2 * ratio

    def _ends(self, value: Any, scale: Any, concentration: Any) -> tuple[Any, Any, Any]:
        return value < 0, (value / scale) ** concentration > 750, scale

    def _cdf(self, value: Any, scale: Any, concentration: Any) -> Any:
        plain_scale, k = raw(scale), raw(concentration)
        return by_parts(
            # The density is infinite there, and the derivatives by the parameters 0, not 0 times that.
            (raw(value) / plain_scale == 0) & (k < 1),
            lambda x: -gnp.expm1(-((x / plain_scale) ** k)),
            lambda x: -gnp.expm1(-((x / scale) ** concentration)),
            value,
            (plain_scale,) * 2,
        )

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        scale, concentration, q = self._values(q)
        return scale * (-gnp.log1p(-q)) ** (1 / concentration)


class Pareto(Distribution):
    """The Pareto distribution, with arguments as torch.distributions.Pareto.

    Args:
        scale: the least value, greater than 0.
        alpha: the shape, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Pareto(1.0, 2.0).log_prob([2.0, 0.5]).round(3).tolist()
    [-1.386, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"scale": positive, "alpha": positive})
    _inner = 1.0

    def __init__(self, scale: Any, alpha: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return greater_than_eq(self._parameters["scale"])

    def _draw(self, rng: np.random.Generator, shape: Shape, scale: Any, alpha: Any) -> Any:
        return drawn_exp(standard_exponential(rng, shape, scale) / alpha, scale)

    def _log_prob(self, value: Any, scale: Any, alpha: Any) -> Any:
        return gnp.log(alpha) + alpha * (gnp.log(scale) - gnp.log(value)) - gnp.log(value)

    def entropy(self) -> Any:
        """Return log(scale / alpha) + 1 + 1/alpha."""
        scale, alpha = self._values()
        return gnp.log(scale / alpha) + 1 + 1 / alpha

    @property
    def mean(self) -> Any:
        """The ratio alpha scale / (alpha - 1); infinite for alpha up to 1."""
        scale, alpha = self._values()
        return _above(1, alpha, lambda a: a * scale / (a - 1))

    @property
    def variance(self) -> Any:
        """scale^2 alpha / ((alpha - 1)^2 (alpha - 2)); infinite for alpha up to 2."""
        scale, alpha = self._values()
        return _above(2, alpha, lambda a: (scale / (a - 1)) ** 2 * (a / (a - 2)))

    def _ends(self, value: Any, scale: Any, alpha: Any) -> tuple[Any, Any, Any]:
        return value < scale, value == np.inf, scale

    def _cdf(self, value: Any, scale: Any, alpha: Any) -> Any:
        return -gnp.expm1(alpha * gnp.log(scale / value))

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        scale, alpha, q = self._values(q)
        return scale * gnp.exp(-gnp.log1p(-q) / alpha)


class InverseGamma(Distribution):
    """The distribution of 1 over a gamma variable, with arguments as torch.distributions.InverseGamma.

    Args:
        concentration: the shape of the gamma variable, greater than 0.
        rate: its rate, the scale of this one; greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.InverseGamma(2.0, 1.0).log_prob([0.5, -1.0]).round(3).tolist()
    [0.079, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"concentration": positive, "rate": positive})
    _support = positive
    _inner = 1.0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, concentration=concentration, rate=rate)

    def _draw(self, rng: np.random.Generator, shape: Shape, concentration: Any, rate: Any) -> Any:
        return drawn_exp(-log_gamma_variate(rng, shape, concentration), rate)

    def _log_prob(self, value: Any, a: Any, rate: Any) -> Any:
        return a * gnp.log(rate) - special.gammaln(a) - (a + 1) * gnp.log(value) - rate / value

    def entropy(self) -> Any:
        """Return a + log(rate) + log(gamma(a)) - (1 + a) digamma(a), a being the concentration."""
        a, rate = self._values()
        return a + gnp.log(rate) + special.gammaln(a) - (1 + a) * special.digamma(a)

    @property
    def mean(self) -> Any:
        """The ratio rate / (concentration - 1); infinite for a concentration up to 1."""
        concentration, rate = self._values()
        return _above(1, concentration, lambda a: rate / (a - 1))

    @property
    def variance(self) -> Any:
        """rate^2 / ((a - 1)^2 (a - 2)), a being the concentration; infinite for a up to 2."""
        concentration, rate = self._values()
        return _above(2, concentration, lambda a: (rate / (a - 1)) ** 2 / (a - 2))

    def _ends(self, value: Any, a: Any, rate: Any) -> tuple[Any, Any, Any]:
        return (value <= 0) | (rate / value > 750 + 40 * a), value == np.inf, rate / a

    def _cdf(self, value: Any, a: Any, rate: Any) -> Any:
        return special.gammaincc(a, rate / value)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        concentration, rate, q = self._values(q)
        return rate / special.gammainccinv(concentration, q)


class Chi2(Gamma):
    """The chi-squared distribution, with arguments as torch.distributions.Chi2.

    Args:
        df: the degrees of freedom, greater than 0.
        validate_args: whether it is checked.

    Raises:
        ValueError: df is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Chi2(3.0).log_prob([1.0, -1.0]).round(3).tolist()
    [-1.419, -inf]
    """

    arg_constraints = MappingProxyType({"df": positive})

    def __init__(self, df: Any, validate_args: bool = True) -> None:
        Distribution.__init__(self, validate_args, df=df)

    def _values(self, *values: Any, are_constant: bool = False) -> list[Any]:
        """Return the parameters of a gamma distribution, and values beside them."""
        df, *others = super()._values(*values, are_constant=are_constant)
        return [df / 2, df.dtype.type(0.5), *others]

    @property
    def concentration(self) -> Any:
        """Half of df."""
        return self._values()[0]

    @property
    def rate(self) -> Any:
        """One half."""
        return self._values()[1]


def _above(bound: int, parameter: Any, compute: Any) -> Any:
    """Return compute(parameter) where it is above a bound, infinity elsewhere."""
    is_above = raw(parameter) > bound
    return gnp.where(is_above, compute(gnp.where(is_above, parameter, bound + 1)), np.inf)
