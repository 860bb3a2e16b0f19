"""The Kullback-Leibler divergence of two distributions of one kind."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.distributions._continuous import Beta, Gamma, Normal
from gradmgr.distributions._discrete import Bernoulli, Categorical, Poisson
from gradmgr.distributions._distribution import Distribution, common_dtype, in_dtype
from gradmgr.distributions._multivariate import Dirichlet, MultivariateNormal, squared_distance
from gradmgr.distributions._transformed import Independent, LogNormal, require_distribution, sum_rightmost


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """Return the Kullback-Leibler divergence of q from p in nats: the mean over p of log(p / q).

    Both are Normal, LogNormal, MultivariateNormal, Gamma, Beta, Dirichlet, Bernoulli, Categorical or Poisson, or both
    are Independent of such.

    Returns:
        Of the batch shapes, broadcast.

    Raises:
        NotImplementedError: there is no closed form for this pair.
        TypeError: an argument is no Distribution.

    >>> from gradmgr import distributions
    >>> distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Normal(1.0, 2.0)).round(3)
    np.float64(0.443)
    """
    require_distribution(p, "kl_divergence")
    require_distribution(q, "kl_divergence")
    divergence = _DIVERGENCES.get(type(p)) if type(p) is type(q) else None
    if divergence is None:
        raise NotImplementedError(
            f"kl_divergence has no closed form for {type(p).__name__} and {type(q).__name__}; estimate it as the mean "
            "of p.log_prob(x) - q.log_prob(x) over x = p.rsample(rng, n)"
        )
    return divergence(p, q)


def _both(p: Distribution, q: Distribution) -> tuple[list[Any], list[Any]]:
    """Return the parameters of both in one dtype."""
    found = [*p._values(), *q._values()]
    dtype = common_dtype(*p._parameters.values(), *q._parameters.values())
    found = [in_dtype(value, dtype) for value in found]
    return found[: len(p._parameters)], found[len(p._parameters) :]


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
    mine, other = p.probs, q.probs
    return special.rel_entr(mine, other) + special.rel_entr(1 - mine, 1 - other)


def _of_categorical(p: Any, q: Any) -> Any:
    return gnp.sum(special.rel_entr(p.probs, q.probs), axis=-1)


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


_DIVERGENCES: MappingProxyType[type[Distribution], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        Bernoulli: _of_bernoulli,
        Beta: _of_beta,
        Categorical: _of_categorical,
        Dirichlet: _of_dirichlet,
        Gamma: _of_gamma,
        Independent: _of_independent,
        LogNormal: _of_log_normal,
        MultivariateNormal: _of_multivariate_normal,
        Normal: _of_normal,
        Poisson: _of_poisson,
    }
)
