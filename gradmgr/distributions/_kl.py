"""The Kullback-Leibler divergence of two distributions of one kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._engine.tensor import raw
from gradmgr.distributions._continuous import Beta, Gamma, Normal
from gradmgr.distributions._counts import Binomial, Geometric, expected_failures
from gradmgr.distributions._discrete import Bernoulli, Categorical, OneHotCategorical, Poisson, expected_log
from gradmgr.distributions._distribution import Distribution, common_dtype, in_dtype
from gradmgr.distributions._location_scale import Cauchy, Gumbel, HalfNormal, Laplace, Uniform
from gradmgr.distributions._multivariate import Dirichlet, MultivariateNormal, squared_distance
from gradmgr.distributions._positive import Exponential, InverseGamma, Pareto
from gradmgr.distributions._transformed import Independent, LogNormal, require_distribution, sum_rightmost

_LOG_ROOT_2PI = math.log(2 * math.pi) / 2


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """Return the Kullback-Leibler divergence of q from p in nats: the mean over p of log(p / q).

    It has the pairs that torch has: most distributions with another of their kind, `Independent` too, and from
    Bernoulli, Beta, Exponential, Gamma, Gumbel, Laplace, Normal, Pareto, Poisson and Uniform to some others. It is
    infinite where q has no density at values of p.

    Returns:
        Of the batch shapes, broadcast.

    Raises:
        NotImplementedError: there is no closed form for this pair.
        TypeError: an argument is not a Distribution.

    >>> from gradmgr import distributions
    >>> distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Normal(1.0, 2.0)).round(3)
    np.float64(0.443)
    """
    require_distribution(p, "kl_divergence")
    require_distribution(q, "kl_divergence")
    divergence = _divergence_of(type(p), type(q))
    if divergence is None:
        raise NotImplementedError(
            f"kl_divergence has no closed form for {type(p).__name__} and {type(q).__name__}; estimate it as the mean "
            "of p.log_prob(x) - q.log_prob(x) over x = p.rsample(rng, n)"
        )
    made = divergence(p, q)
    parameters = [*p._parameters.values(), *q._parameters.values()]
    return in_dtype(made, common_dtype(*parameters)) if parameters else made


def _divergence_of(p: type[Distribution], q: type[Distribution]) -> Callable[[Any, Any], Any] | None:
    """Return the function for a pair of classes, or for the nearest classes from which they are derived."""
    for of in p.__mro__:
        for to in q.__mro__:
            found = _DIVERGENCES.get((of, to))
            if found is not None:
                return found
    return None


def _both(p: Distribution, q: Distribution) -> tuple[list[Any], list[Any]]:
    """Return the parameters of both in one dtype."""
    dtype = common_dtype(*p._parameters.values(), *q._parameters.values())
    mine, other = ([in_dtype(value, dtype) for value in each._values()] for each in (p, q))
    return mine, other


def _of_normal(p: Any, q: Any) -> Any:
    (loc, scale), (other_loc, other_scale) = _both(p, q)
    ratio, shift = scale / other_scale, (loc - other_loc) / other_scale
    return (ratio * ratio + shift * shift - 1) / 2 - gnp.log(ratio)


def _of_gamma(p: Any, q: Any) -> Any:
    (a, rate), (other_a, other_rate) = _both(p, q)
    ratio = other_rate / rate
    return (
        (a - other_a) * special.digamma(a)
        - special.gammaln(a)
        + special.gammaln(other_a)
        - other_a * gnp.log(ratio)
        + a * (ratio - 1)
    )


def _of_beta(p: Any, q: Any) -> Any:
    (a, b), (other_a, other_b) = _both(p, q)
    digamma = special.digamma
    return (
        special.betaln(other_a, other_b)
        - special.betaln(a, b)
        + (a - other_a) * digamma(a)
        + (b - other_b) * digamma(b)
        + (other_a - a + other_b - b) * digamma(a + b)
    )


def _of_dirichlet(p: Any, q: Any) -> Any:
    (a,), (other,) = _both(p, q)
    total = gnp.sum(a, axis=-1)
    spread = special.digamma(a) - special.digamma(total)[..., None]
    return (
        special.gammaln(total)
        - special.gammaln(gnp.sum(other, axis=-1))
        + gnp.sum(special.gammaln(other) - special.gammaln(a) + (a - other) * spread, axis=-1)
    )


def _of_bernoulli(p: Any, q: Any) -> Any:
    if p._has_logits and q._has_logits:
        expit, log_expit, mine, other = special.expit, special.log_expit, p.logits, q.logits
        return sum(expected_log(expit(x), log_expit(x), log_expit(y)) for x, y in ((mine, other), (-mine, -other)))
    shares = p._shares()
    if not p._has_logits and not q._has_logits:
        return sum(map(special.rel_entr, shares, q._shares()))
    # Each by its own parameter: what is 0 or 1 of a logit has a finite logarithm.
    mine, other = (each._log_probability(*shares, each._values()[-1]) for each in (p, q))
    return mine - other


def _of_categorical(p: Any, q: Any) -> Any:
    if p._has_logits and q._has_logits:
        return gnp.sum(expected_log(p.probs, p.logits, q.logits), axis=-1)
    if p._has_logits or q._has_logits:
        return -p._entropy_of_one() - q._log_probability(p.probs, *q._values())
    (weights,) = p._values()
    total = gnp.sum(weights, axis=-1)
    return gnp.sum(special.rel_entr(weights, q.probs), axis=-1) / total - gnp.log(total)


def _of_poisson(p: Any, q: Any) -> Any:
    (rate,), (other,) = _both(p, q)
    return special.rel_entr(rate, other) - rate + other


def _of_multivariate_normal(p: Any, q: Any) -> Any:
    if p.event_shape != q.event_shape:
        raise ValueError(f"kl_divergence: both have one event_shape; found {p.event_shape} and {q.event_shape}")
    factor, other = p.scale_tril, q.scale_tril
    shape = np.broadcast_shapes(factor.shape, other.shape)
    between = gnp.linalg.solve_triangular(gnp.broadcast_to(other, shape), gnp.broadcast_to(factor, shape), lower=True)
    log_ratio = _log_diagonal(other) - _log_diagonal(factor)
    shift = squared_distance(other, p.loc - q.loc)
    return log_ratio + (gnp.sum(between * between, axis=(-2, -1)) + shift - p.event_shape[0]) / 2


def _log_diagonal(factor: Any) -> Any:
    return gnp.sum(gnp.log(gnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)


def _of_log_normal(p: Any, q: Any) -> Any:
    return _of_normal(p.base_dist, q.base_dist)


def _of_independent(p: Any, q: Any) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "kl_divergence of two Independent needs the same reinterpreted_batch_ndims; found "
            f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}"
        )
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


# ---------------------------------------------------------------- of one kind


def _of_binomial(p: Any, q: Any) -> Any:
    count, other = raw(p._values()[0]), raw(q._values()[0])
    if np.less(count, other).any():
        raise NotImplementedError(
            f"kl_divergence of two Binomial needs total_count of the first to be that of the second or more; found "
            f"{count} and {other}"
        )
    of_one = gnp.where(count == 0, 0, _of_bernoulli(p, q))  # which may be infinite
    return gnp.where(np.greater(count, other), np.inf, p._values()[0] * of_one)


def _of_geometric(p: Any, q: Any) -> Any:
    if p._has_logits and q._has_logits:
        x, y = p.logits, q.logits
        return expected_failures(x, y) - special.log_expit(y) - (expected_failures(x, x) - special.log_expit(x))
    mine, other = (each._log_probability(1.0, p.mean, each._values()[-1]) for each in (p, q))
    return mine - other


def _of_exponential(p: Any, q: Any) -> Any:
    (rate,), (other,) = _both(p, q)
    ratio = other / rate
    return ratio - 1 - gnp.log(ratio)


def _of_laplace(p: Any, q: Any) -> Any:
    (loc, scale), (other_loc, other_scale) = _both(p, q)
    shift, ratio = loc - other_loc, scale / other_scale
    distance = gnp.where(raw(shift) < 0, -shift, shift)  # abs has the slope 0 at 0, which cuts the second derivative
    return distance / other_scale + ratio * gnp.exp(-distance / scale) - gnp.log(ratio) - 1


def _of_cauchy(p: Any, q: Any) -> Any:
    """Return log of ((s + t)^2 + (l - m)^2) / (4 s t), of scales s, t and medians l, m (Chyzak and Nielsen, 2019)."""
    (loc, scale), (other_loc, other_scale) = _both(p, q)
    difference, shift = scale - other_scale, loc - other_loc
    return gnp.log1p((difference * difference + shift * shift) / (4 * scale * other_scale))


def _of_half_normal(p: Any, q: Any) -> Any:
    (scale,), (other,) = _both(p, q)
    ratio = scale / other
    return (ratio * ratio - 1) / 2 - gnp.log(ratio)


def _of_pareto(p: Any, q: Any) -> Any:
    (scale, alpha), (other_scale, other_alpha) = _both(p, q)
    ratio = other_alpha / alpha
    made = other_alpha * gnp.log(scale / other_scale) - gnp.log(ratio) + ratio - 1
    return gnp.where(raw(scale) < raw(other_scale), np.inf, made)


def _of_uniform(p: Any, q: Any) -> Any:
    (low, high), (other_low, other_high) = _both(p, q)
    made = gnp.log((other_high - other_low) / (high - low))
    return gnp.where((raw(low) < raw(other_low)) | (raw(high) > raw(other_high)), np.inf, made)


# ---------------------------------------------------------------- of two kinds

# All of these are -entropy(p) less the mean over p of log q.


def _infinite(p: Any, q: Any) -> Any:
    """Return infinity: p has values at which q has no density."""
    mine, other = _both(p, q)
    return sum(value * 0 for value in (*mine, *other)) + np.inf


def _to_normal(p: Any, q: Any) -> Any:
    loc, scale = q._values()
    shift = p.mean - loc
    return (p.variance + shift * shift) / (2 * scale * scale) + gnp.log(scale) + _LOG_ROOT_2PI - p.entropy()


def _to_exponential(p: Any, q: Any) -> Any:
    (rate,) = q._values()
    return _unless_negative(p, rate * p.mean - gnp.log(rate) - p.entropy())


def _to_gamma(p: Any, q: Any) -> Any:
    a, rate = q._values()
    constant = special.gammaln(a) - a * gnp.log(rate)
    return _unless_negative(p, constant + rate * p.mean - (a - 1) * _mean_log(p) - p.entropy())


def _to_laplace(p: Any, q: Any) -> Any:
    """Return the divergence from a normal distribution."""
    (loc, scale), (other_loc, other_scale) = _both(p, q)
    z = (loc - other_loc) / scale
    distance = scale * (2 * gnp.exp(-z * z / 2 - _LOG_ROOT_2PI) + z * (2 * special.ndtr(z) - 1))
    return gnp.log(2 * other_scale) + distance / other_scale - p.entropy()


def _to_gumbel(p: Any, q: Any) -> Any:
    loc, scale = q._values()
    return gnp.log(scale) + (p.mean - loc) / scale + _mean_exp(p, loc, scale) - p.entropy()


def _to_poisson(p: Any, q: Any) -> Any:
    """Return the divergence from a Bernoulli distribution."""
    (rate,) = q._values()
    return rate - special.xlogy(p.probs, rate) - p.entropy()


def _beta_to_uniform(p: Any, q: Any) -> Any:
    low, high = q._values()
    return gnp.where((raw(low) > 0) | (raw(high) < 1), np.inf, gnp.log(high - low) - p.entropy())


def _to_beta(p: Any, q: Any) -> Any:
    """Return the divergence from a uniform distribution."""
    (low, high), (a, b) = _both(p, q)
    is_outside = (raw(low) < 0) | (raw(high) > 1)
    low, high = gnp.where(is_outside, 0, low), gnp.where(is_outside, 1, high)
    of_low, of_high = _mean_log_between(low, high), _mean_log_between(1 - high, 1 - low)
    made = special.betaln(a, b) - (a - 1) * of_low - (b - 1) * of_high - gnp.log(high - low)
    return gnp.where(is_outside, np.inf, made)


def _to_pareto(p: Any, q: Any) -> Any:
    """Return the divergence from a uniform distribution."""
    (low, high), (scale, alpha) = _both(p, q)
    is_outside = raw(low) < raw(scale)
    low, high = gnp.where(is_outside, scale, low), gnp.where(is_outside, 2 * scale, high)
    made = (alpha + 1) * _mean_log_between(low, high) - gnp.log(alpha) - alpha * gnp.log(scale) - gnp.log(high - low)
    return gnp.where(is_outside, np.inf, made)


def _unless_negative(p: Any, value: Any) -> Any:
    """Return a divergence from p to a distribution of positive numbers; infinite if p has negative values."""
    return gnp.where(raw(p._values()[0]) < 0, np.inf, value) if isinstance(p, Uniform) else value


def _mean_log(p: Any) -> Any:
    """Return the mean of log(x)."""
    mine = p._values()
    if isinstance(p, Beta):
        return special.digamma(mine[0]) - special.digamma(mine[0] + mine[1])
    if isinstance(p, Exponential):
        return -np.euler_gamma - gnp.log(mine[0])
    if isinstance(p, Pareto):
        return gnp.log(mine[0]) + 1 / mine[1]
    low, high = mine
    is_negative = raw(low) < 0
    return _mean_log_between(gnp.where(is_negative, 0, low), gnp.where(is_negative, 1, high))


def _mean_log_between(low: Any, high: Any) -> Any:
    """Return the mean of log(x) over a uniform distribution of positive numbers."""
    return (special.xlogy(high, high) - special.xlogy(low, low)) / (high - low) - 1


def _mean_exp(p: Any, loc: Any, scale: Any) -> Any:
    """Return the mean of exp(-(x - loc) / scale)."""
    mine = p._values()
    if isinstance(p, Normal):
        return gnp.exp((loc - mine[0]) / scale + (mine[1] / scale) ** 2 / 2)
    if isinstance(p, Gumbel):
        return gnp.exp((loc - mine[0]) / scale + special.gammaln(1 + mine[1] / scale))
    if isinstance(p, Exponential):
        return gnp.exp(loc / scale) * mine[0] / (mine[0] + 1 / scale)
    if isinstance(p, Gamma):
        return gnp.exp(loc / scale - mine[0] * gnp.log1p(1 / (scale * mine[1])))
    low, high = mine
    return scale * (gnp.exp((loc - low) / scale) - gnp.exp((loc - high) / scale)) / (high - low)


_DIVERGENCES: MappingProxyType[tuple[type, type], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        (Bernoulli, Bernoulli): _of_bernoulli,
        (Beta, Beta): _of_beta,
        (Binomial, Binomial): _of_binomial,
        (Categorical, Categorical): _of_categorical,
        (Cauchy, Cauchy): _of_cauchy,
        (Dirichlet, Dirichlet): _of_dirichlet,
        (Exponential, Exponential): _of_exponential,
        (Gamma, Gamma): _of_gamma,
        (Geometric, Geometric): _of_geometric,
        (Gumbel, Gumbel): _to_gumbel,
        (HalfNormal, HalfNormal): _of_half_normal,
        (Independent, Independent): _of_independent,
        (InverseGamma, InverseGamma): _of_gamma,  # that of the inverses
        (Laplace, Laplace): _of_laplace,
        (LogNormal, LogNormal): _of_log_normal,
        (MultivariateNormal, MultivariateNormal): _of_multivariate_normal,
        (Normal, Normal): _of_normal,
        (OneHotCategorical, OneHotCategorical): _of_categorical,
        (Pareto, Pareto): _of_pareto,
        (Poisson, Poisson): _of_poisson,
        (Uniform, Uniform): _of_uniform,
        (Bernoulli, Poisson): _to_poisson,
        (Normal, Laplace): _to_laplace,
        (Uniform, Beta): _to_beta,
        (Uniform, Pareto): _to_pareto,
        **{(p, Normal): _to_normal for p in (Beta, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform)},
        **{(p, Exponential): _to_exponential for p in (Beta, Gamma, Pareto, Uniform)},
        **{(p, Gamma): _to_gamma for p in (Beta, Exponential, Pareto, Uniform)},
        **{(p, Gumbel): _to_gumbel for p in (Exponential, Gamma, Normal, Uniform)},
        **{(p, q): _infinite for p in (Gumbel, Laplace, Normal) for q in (Beta, Exponential, Gamma, Pareto, Uniform)},
        **{(p, q): _infinite for p in (Exponential, Gamma) for q in (Beta, Pareto, Uniform)},
        **{(Pareto, q): _infinite for q in (Beta, Uniform)},
        **{(Poisson, q): _infinite for q in (Bernoulli, Binomial)},
        (Beta, Pareto): _infinite,
        (Beta, Uniform): _beta_to_uniform,
    }
)
