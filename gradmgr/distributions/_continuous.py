"""Distributions of real numbers: Normal, Gamma, Beta, StudentT."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays.drawing import drawn, noise
from gradmgr._engine.tensor import raw
from gradmgr.distributions._distribution import (
    Distribution,
    Shape,
    by_parts,
    drawn_exp,
    drawn_share,
    full_like_shape,
    in_dtype,
    numbers_of,
)
from gradmgr.distributions.constraints import nonnegative, positive, real, unit_interval
from gradmgr.ops.convert import wide_dtype
from gradmgr.ops.incomplete_gamma import reparameterized_log_gamma

_LOG_ROOT_2PI = math.log(2 * math.pi) / 2


# ---------------------------------------------------------------- what is drawn


def standard_normal(rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
    """Return standard normal numbers of the parameter's dtype and device, of a shape."""
    return noise("standard_normal", rng, shape, raw(parameter))


def log_gamma_variate(rng: np.random.Generator, shape: Shape, concentration: Any) -> Any:
    """Return the logarithm of gamma variates of rate 1, differentiable in the concentration.

    The variates themselves underflow where the concentration is small; a variate of a is one of a + 1, times the a-th
    root of a uniform number (Marsaglia and Tsang, 2000). Of halves they are in float32, as they may be below -65504.
    """
    concentration = in_dtype(concentration, wide_dtype(concentration.dtype))
    values = drawn(_draw_log_gamma, rng, full_like_shape(concentration, shape))
    return reparameterized_log_gamma(concentration, values)


def _draw_log_gamma(rng: np.random.Generator, a: Any) -> Any:
    a = np.asarray(a)
    wide = a.astype(np.float64)
    return (np.log(rng.standard_gamma(wide + 1)) - rng.standard_exponential(a.shape) / wide).astype(a.dtype)


# ---------------------------------------------------------------- the distributions


class LocationScale(Distribution):
    """The base of distributions of loc + scale x, x being what a method of Generator draws without parameters."""

    has_rsample = True
    arg_constraints = MappingProxyType({"loc": real, "scale": positive})
    _support = real
    _kind_of_noise: ClassVar[str]
    # (value - loc) / scale from which on the cdf is 0 or 1 in every dtype, and its derivatives are 0.
    _reach: ClassVar[tuple[float, float]]

    def __init__(self, loc: Any, scale: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, loc=loc, scale=scale)

    def _draw(self, rng: np.random.Generator, shape: Shape, loc: Any, scale: Any) -> Any:
        return loc + scale * noise(self._kind_of_noise, rng, shape, raw(loc))

    def _ends(self, value: Any, loc: Any, scale: Any) -> tuple[Any, Any, Any]:
        z = (value - loc) / scale
        return z <= self._reach[0], z >= self._reach[1], loc

    @property
    def mean(self) -> Any:
        """The parameter loc."""
        return self._spread(self._values()[0])


class Normal(LocationScale):
    """The normal distribution, with arguments as torch.distributions.Normal.

    Args:
        loc: the mean.
        scale: the standard deviation, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> import numpy
    >>> from gradmgr import GradManager, distributions, tensor
    >>> loc, scale = tensor([0.0, 1.0]), tensor(2.0)
    >>> with GradManager().attach([loc, scale]) as gm:
    ...     x = distributions.Normal(loc, scale).rsample(numpy.random.default_rng(0), 100)
    ...     gm.backward((x**2).mean())
    >>> x.shape, loc.grad.shape
    ((100, 2), (2,))
    >>> distributions.Normal(0.0, 1.0).log_prob(0.5).round(3)
    np.float64(-1.044)
    """

    _kind_of_noise = "standard_normal"
    _reach = -40.0, 40.0

    def _log_prob(self, value: Any, loc: Any, scale: Any) -> Any:
        z = (value - loc) / scale
        return -(z * z) / 2 - gnp.log(scale) - _LOG_ROOT_2PI

    def entropy(self) -> Any:
        """Return 1/2 + log(scale sqrt(2 pi))."""
        _, scale = self._values()
        return self._spread(gnp.log(scale) + (0.5 + _LOG_ROOT_2PI))

    @property
    def variance(self) -> Any:
        """The square of scale."""
        scale = self._values()[1]
        return self._spread(scale * scale)

    def _cdf(self, value: Any, loc: Any, scale: Any) -> Any:
        return special.ndtr((value - loc) / scale)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        loc, scale, q = self._values(q)
        return loc + scale * special.ndtri(q)


class Gamma(Distribution):
    """The gamma distribution, with arguments as torch.distributions.Gamma.

    `rsample` holds a variate's cdf where the concentration changes (Figurnov, Mohamed and Mnih, 2018: Implicit
    Reparameterization Gradients), to a relative error of 1e-11 in float64, and to every order.

    Args:
        concentration: the shape, greater than 0.
        rate: one over the scale, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Gamma(2.0, 3.0).log_prob([0.5, 1.0, -1.0]).round(3).tolist()
    [0.004, -0.803, -inf]
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"concentration": positive, "rate": positive})
    _support = nonnegative
    _inner = 1.0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, concentration=concentration, rate=rate)

    def _draw(self, rng: np.random.Generator, shape: Shape, concentration: Any, rate: Any) -> Any:
        return drawn_exp(log_gamma_variate(rng, shape, concentration), 1 / rate)

    def _log_prob(self, value: Any, concentration: Any, rate: Any) -> Any:
        constant = concentration * gnp.log(rate) - special.gammaln(concentration)
        return special.xlogy(concentration - 1, value) - rate * value + constant

    def entropy(self) -> Any:
        """Return a - log(rate) + log(gamma(a)) + (1 - a) digamma(a), a being the concentration."""
        a, rate = self._values()
        return self._spread(a - gnp.log(rate) + special.gammaln(a) + (1 - a) * special.digamma(a))

    @property
    def mean(self) -> Any:
        """The concentration over the rate."""
        a, rate = self._values()
        return self._spread(a / rate)

    @property
    def variance(self) -> Any:
        """The concentration over the squared rate."""
        a, rate = self._values()
        return self._spread(a / rate / rate)

    def _ends(self, value: Any, a: Any, rate: Any) -> tuple[Any, Any, Any]:
        return value < 0, rate * value > 750 + 40 * a, a / rate

    def _cdf(self, value: Any, a: Any, rate: Any) -> Any:
        plain_a, plain_rate = raw(a), raw(rate)
        return by_parts(
            # The density is infinite there, and the derivative by the rate 0, not 0 times that.
            (raw(value) == 0) & (plain_a < 1),
            lambda x: special.gammainc(plain_a, plain_rate * x),
            lambda x: special.gammainc(a, rate * x),
            value,
            (plain_a / plain_rate,) * 2,
        )

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        a, rate, q = self._values(q)
        return special.gammaincinv(a, q) / rate


class Beta(Distribution):
    """The beta distribution, with arguments as torch.distributions.Beta.

    `rsample` is made of two gamma variates (see `Gamma`), by their logarithms.

    Args:
        concentration1: alpha, greater than 0.
        concentration0: beta, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Beta(2.0, 3.0).log_prob(0.25).round(3)
    np.float64(0.523)
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"concentration1": positive, "concentration0": positive})
    _support = unit_interval
    _inner = 0.5

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, concentration1=concentration1, concentration0=concentration0)

    def _draw(self, rng: np.random.Generator, shape: Shape, a: Any, b: Any) -> Any:
        log_odds = log_gamma_variate(rng, shape, a) - log_gamma_variate(rng, shape, b)
        return drawn_share(special.expit(log_odds), a.dtype)

    def _log_prob(self, value: Any, a: Any, b: Any) -> Any:
        return special.xlogy(a - 1, value) + special.xlog1py(b - 1, -value) - special.betaln(a, b)

    def entropy(self) -> Any:
        """Return log B(a, b) - (a - 1) digamma(a) - (b - 1) digamma(b) + (a + b - 2) digamma(a + b)."""
        a, b = self._values()
        digamma = special.digamma
        return self._spread(
            special.betaln(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b) + (a + b - 2) * digamma(a + b)
        )

    @property
    def mean(self) -> Any:
        """The ratio a / (a + b), a being concentration1."""
        a, b = self._values()
        return self._spread(a / (a + b))

    @property
    def variance(self) -> Any:
        """The ratio a b / ((a + b)^2 (a + b + 1)), a being concentration1."""
        a, b = self._values()
        total = a + b
        return self._spread((a / total) * (b / total) / (total + 1))

    def _ends(self, value: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
        return value < 0, value > 1, 0.5

    def _cdf(self, value: Any, a: Any, b: Any) -> Any:
        return special.betainc(a, b, value)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        a, b, q = self._values(q)
        return special.betaincinv(a, b, q)


class StudentT(Distribution):
    """Student's t distribution, with arguments as torch.distributions.StudentT.

    Args:
        df: the degrees of freedom, greater than 0.
        loc: the centre.
        scale: by which a variable of centre 0 is multiplied, greater than 0.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.StudentT(3.0, 1.0, 2.0).log_prob(0.0).round(3)
    np.float64(-1.854)
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"df": positive, "loc": real, "scale": positive})
    _support = real

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool = True) -> None:
        super().__init__(validate_args, df=df, loc=loc, scale=scale)

    def _draw(self, rng: np.random.Generator, shape: Shape, df: Any, loc: Any, scale: Any) -> Any:
        half = df / 2
        # A chi-square variate over df is a gamma variate of df/2 over df/2.
        width = drawn_exp((gnp.log(half) - log_gamma_variate(rng, shape, half)) / 2, scale)
        return loc + standard_normal(rng, shape, df) * width

    def _log_prob(self, value: Any, df: Any, loc: Any, scale: Any) -> Any:
        z = (value - loc) / scale
        # Not a difference of two logarithms of gamma, which is off by 0.02 for df = 1e5 in float32.
        constant = -special.betaln(df / 2, df.dtype.type(0.5)) - gnp.log(df) / 2 - gnp.log(scale)
        log_ratio = by_parts(
            abs(raw(z)) > _far(df),
            lambda z: 2 * gnp.log(gnp.abs(z)) - gnp.log(df),
            lambda z: gnp.log1p(z * z / df),
            z,
            (1.0, 0.0),
        )
        return constant - (df + 1) / 2 * log_ratio

    def entropy(self) -> Any:
        """Return (df + 1)/2 (digamma((df + 1)/2) - digamma(df/2)) + log(sqrt(df) B(df/2, 1/2) scale)."""
        df, _, scale = self._values()
        half = df / 2
        slope = special.digamma(half + 0.5) - special.digamma(half)
        return self._spread(
            (half + 0.5) * slope + gnp.log(df) / 2 + special.betaln(half, df.dtype.type(0.5)) + gnp.log(scale)
        )

    @property
    def mean(self) -> Any:
        """The parameter loc; NaN for df up to 1."""
        df, loc, _ = self._values()
        return self._spread(gnp.where(raw(df) > 1, loc, np.nan))

    @property
    def variance(self) -> Any:
        """The square of scale times df / (df - 2); infinite for df up to 2, NaN up to 1."""
        df, _, scale = self._values()
        has_variance = raw(df) > 2
        finite = scale * scale * df / (gnp.where(has_variance, df, 3) - 2)
        infinite = gnp.where(raw(df) > 1, df.dtype.type(np.inf), df.dtype.type(np.nan))
        return self._spread(gnp.where(has_variance, finite, infinite))

    def _ends(self, value: Any, df: Any, loc: Any, scale: Any) -> tuple[Any, Any, Any]:
        z = (value - loc) / scale
        return z == -np.inf, z == np.inf, loc

    def _cdf(self, value: Any, df: Any, loc: Any, scale: Any) -> Any:
        z, half = (value - loc) / scale, df / 2
        is_above = raw(z) > 0
        lower = gnp.where(is_above, -z, z)

        def tail(lower: Any) -> Any:
            length = gnp.sqrt(df + lower * lower)
            # A symmetric beta variable in place of z, (1 + z / length) / 2; so written, small ones are not rounded off.
            return special.betainc(half, half, df / (2 * length * (length - lower)))

        def far_tail(lower: Any) -> Any:  # the first term of its series
            return gnp.exp(half * (gnp.log(df / 4) - 2 * gnp.log(-lower)) - gnp.log(half) - special.betaln(half, half))

        far = _far(df)
        found = by_parts(raw(lower) < -far, far_tail, tail, lower, (-2 * far, 0.0))
        return gnp.where(is_above, 1 - found, found)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        df, loc, scale, q = self._values(q)
        half, is_above = df / 2, raw(q) > 0.5

        def lower(q: Any) -> Any:
            y = special.betaincinv(half, half, q)
            return gnp.sqrt(df) * (y - 0.5) / gnp.sqrt(y * (1 - y))

        def log_far(q: Any, df: Any, half: Any) -> Any:  # the inverse of far_tail
            return (gnp.log(df / 4) - (gnp.log(q) + gnp.log(half) + special.betaln(half, half)) / half) / 2

        tail, far = gnp.where(is_above, 1 - q, q), _far(df)
        with np.errstate(all="ignore"):
            is_far = log_far(raw(tail), raw(df), raw(half)) > np.log(far)
        found = by_parts(is_far, lambda q: -gnp.exp(log_far(q, df, half)), lower, tail, (0.5, 0.5))
        return loc + scale * gnp.where(is_above, -found, found)


def _far(df: Any) -> Any:
    """Return from where on a variable's square hides df beside it, in plain numbers."""
    return np.sqrt(raw(df)) / (1 - numbers_of(df.dtype)[1])
