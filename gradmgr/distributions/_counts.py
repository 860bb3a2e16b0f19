"""Distributions of counts: Geometric, Binomial, NegativeBinomial, Multinomial."""

from __future__ import annotations

import operator
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.drawing import drawn
from gradmgr._engine.tensor import raw
from gradmgr.distributions._discrete import WithProbability, WithWeights, one_of
from gradmgr.distributions._distribution import Shape, by_parts, full_like_shape
from gradmgr.distributions.constraints import (
    Constraint,
    Tested,
    half_open_interval,
    integer_interval,
    multinomial,
    nonnegative_integer,
    positive,
    real,
    unit_interval,
)

_SOME_CHANCE = Tested("probability above 0", "greater than 0, and at most 1", lambda p: (p > 0) & (p <= 1))


def _draw_geometric(rng: np.random.Generator, p: Any) -> Any:
    return np.asarray(rng.geometric(p) - 1).astype(p.dtype)


def _draw_binomial(rng: np.random.Generator, count: Any, p: Any) -> Any:
    return np.asarray(rng.binomial(count.astype(np.int64), p)).astype(p.dtype)


def _draw_negative_binomial(rng: np.random.Generator, count: Any, odds: Any) -> Any:
    """Return Poisson numbers of gamma-distributed rates."""
    return np.asarray(rng.poisson(rng.standard_gamma(count.astype(np.float64)) * odds)).astype(odds.dtype)


def _draw_multinomial(count: int, rng: np.random.Generator, p: Any) -> Any:
    wide = p.astype(np.float64)
    return rng.multinomial(count, wide / wide.sum(axis=-1, keepdims=True)).astype(p.dtype)


def _log_choices(count: Any, chosen: Any) -> Any:
    """Return the logarithm of the binomial coefficient."""
    return -special.betaln(count - chosen + 1, chosen + 1) - gnp.log1p(count)


def _log1p_ratio(u: Any) -> Any:
    """Return log(1 + u) / u for u >= 0, which is 1 at 0: by its series where the quotient's derivative may overflow."""
    return by_parts(
        raw(u) < 2.0**-12,
        lambda u: 1 + u * (u * (u * (u / 5 - 0.25) + 1 / 3) - 0.5),
        lambda u: gnp.log1p(u) / u,
        u,
        (0.0, 1.0),
    )


def expected_failures(x: Any, y: Any) -> Any:
    """Return -exp(-x) log(expit(-y)): the mean of Geometric(logits=x) times what one failure costs by logit y.

    Where the one overflows and the other underflows, their product need not.
    """
    is_low = raw(y) < 0
    cost = by_parts(is_low, lambda y: _log1p_ratio(gnp.exp(y)), lambda y: -special.log_expit(-y), y, (-1.0, 1.0))
    return gnp.exp(gnp.where(is_low, y, 0) - x) * cost


def _expected(log_prob: Any, values: Any) -> Any:
    """Return the sum over the first axis of probabilities times values, without those of probability 0."""
    is_possible = raw(log_prob) > -np.inf
    probability = gnp.exp(gnp.where(is_possible, log_prob, 0))
    return gnp.sum(gnp.where(is_possible, probability * gnp.where(is_possible, values, 0), 0), axis=0)


class Geometric(WithProbability):
    """The distribution of the failures before the first success, as torch.distributions.Geometric.

    Args:
        probs: the probability of a success, greater than 0; or
        logits: log(probs / (1 - probs)). Exactly one of the two is given.
        validate_args: whether it is checked.

    Raises:
        ValueError: not one of the two is given, or it is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Geometric(0.5).log_prob([0, 1, 0.5]).round(3).tolist()
    [-0.693, -1.386, -inf]
    """

    arg_constraints = MappingProxyType({"probs": unit_interval, "logits": real})
    _support = nonnegative_integer
    _requirements = MappingProxyType({"probs": _SOME_CHANCE})

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **one_of("Geometric", probs, logits))

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        return drawn(_draw_geometric, rng, full_like_shape(self._probs(parameter), shape))

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        return self._log_probability(parameter.dtype.type(1), value, parameter)

    def entropy(self) -> Any:
        """Return (-p log(p) - (1 - p) log(1 - p)) / p."""
        if not self._has_logits:
            p = self.probs
            return -gnp.log(p) - special.xlog1py(1 - p, -p) / p
        (x,) = self._values()
        return expected_failures(x, x) - special.log_expit(x)

    def _odds_of_failure(self) -> Any:
        (parameter,) = self._values()
        return gnp.exp(-parameter) if self._has_logits else (1 - parameter) / parameter

    @property
    def mean(self) -> Any:
        """The ratio (1 - p) / p, p being the probability of a success."""
        return self._odds_of_failure()

    @property
    def variance(self) -> Any:
        """The ratio (1 - p) / p^2, p being the probability of a success."""
        odds = self._odds_of_failure()
        return odds * (1 + odds)


class Binomial(WithProbability):
    """The distribution of the number of successes, with arguments as torch.distributions.Binomial.

    Args:
        total_count: of how many trials.
        probs: the probability of a success; or
        logits: log(probs / (1 - probs)). Exactly one of the two is given.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: not one of the two is given, a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Binomial(3, 0.5).log_prob([0, 1, 4]).round(3).tolist()
    [-2.079, -0.981, -inf]
    """

    arg_constraints = MappingProxyType({"total_count": nonnegative_integer, "probs": unit_interval, "logits": real})

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, total_count=total_count, **one_of("Binomial", probs, logits))

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return integer_interval(0, self._parameters["total_count"])

    def _draw(self, rng: np.random.Generator, shape: Shape, count: Any, parameter: Any) -> Any:
        probs = full_like_shape(self._probs(parameter), shape)
        return drawn(_draw_binomial, rng, full_like_shape(count, shape), probs)

    def _log_prob(self, value: Any, count: Any, parameter: Any) -> Any:
        return _log_choices(count, value) + self._log_probability(value, count - value, parameter)

    def entropy(self) -> Any:
        """Return the sum of -p log(p) over the values."""
        count, parameter = self._values()
        given, plain = raw(count), raw(parameter)
        if is_batched(given):
            raise NotImplementedError("Binomial.entropy: total_count is the same for all examples of a vmap")
        largest = int(given.max()) if given.size else 0
        values = np.arange(largest + 1).reshape((-1,) + (1,) * len(self.batch_shape))
        values = libraries.to_device(values.astype(given.dtype), libraries.device_of(given))
        value = np.minimum(values, given)

        def of_counts(parameter: Any) -> Any:
            log_prob = gnp.where(values > given, -np.inf, self._log_prob(value, count, parameter))
            return -_expected(log_prob, log_prob)

        def of_trials(p: Any) -> Any:  # which has the same slopes at 0 and 1: infinite ones
            return count * (special.entr(p) + special.entr(1 - p))

        is_certain = (given > 0) & ((plain == 0) | (plain == 1)) if not self._has_logits else np.False_
        return by_parts(is_certain, of_trials, of_counts, parameter, (0.0, 0.5))

    @property
    def mean(self) -> Any:
        """The product of total_count and the probability of a success."""
        return self._values()[0] * self.probs

    @property
    def variance(self) -> Any:
        """The product n p (1 - p), n being total_count and p the probability of a success."""
        return self._values()[0] * self._variance_of_one()


class NegativeBinomial(WithProbability):
    """The distribution of the successes before some number of failures, as torch.distributions.NegativeBinomial.

    Args:
        total_count: how many failures end the trials, greater than 0; need not be an integer.
        probs: the probability of a success, less than 1; or
        logits: log(probs / (1 - probs)). Exactly one of the two is given.
        validate_args: whether the parameters are checked.

    Raises:
        ValueError: not one of the two is given, a parameter is not as it must be, or the shapes do not broadcast.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.NegativeBinomial(2.0, 0.5).log_prob([0, 1, -1]).round(3).tolist()
    [-1.386, -1.386, -inf]
    """

    arg_constraints = MappingProxyType({"total_count": positive, "probs": half_open_interval(0.0, 1.0), "logits": real})
    _support = nonnegative_integer

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, total_count=total_count, **one_of("NegativeBinomial", probs, logits))

    def _odds(self, parameter: Any) -> Any:
        return gnp.exp(parameter) if self._has_logits else parameter / (1 - parameter)

    def _draw(self, rng: np.random.Generator, shape: Shape, count: Any, parameter: Any) -> Any:
        odds = full_like_shape(self._odds(parameter), shape)
        return drawn(_draw_negative_binomial, rng, full_like_shape(count, shape), odds)

    def _log_prob(self, value: Any, count: Any, parameter: Any) -> Any:
        log_choices = -special.betaln(count, value + 1) - gnp.log(count + value)
        return log_choices + self._log_probability(value, count, parameter)

    @property
    def mean(self) -> Any:
        """The product of total_count and the odds of a success."""
        count, parameter = self._values()
        return count * self._odds(parameter)

    @property
    def variance(self) -> Any:
        """The mean over the probability of a failure."""
        odds = self._odds(self._values()[1])
        return self.mean * (1 + odds)


class Multinomial(WithWeights):
    """The distribution of how often each of k categories is drawn, with arguments as torch.distributions.Multinomial.

    Args:
        total_count: how many draws, an int.
        probs: numbers in proportion to the probabilities, of shape (..., k), which need not add up to 1; or
        logits: logarithms of such numbers; -inf excludes a category. Exactly one of the two is given.
        validate_args: whether it is checked.

    Raises:
        ValueError: not one of the two is given, it is not as it must be, has no axis, or total_count is negative.
        TypeError: it does not consist of real numbers, or total_count is not an int.

    >>> from gradmgr import distributions
    >>> distributions.Multinomial(2, probs=[0.5, 0.25, 0.25]).log_prob([[1, 1, 0], [2, 1, 0]]).round(3).tolist()
    [-1.386, -inf]
    """

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **one_of("Multinomial", probs, logits))
        self.total_count = operator.index(total_count)
        if self.total_count < 0:
            raise ValueError(f"Multinomial: total_count must be 0 or greater; found {total_count}")

    @property
    def event_shape(self) -> Shape:
        """(k,)."""
        return (self._count,)

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return multinomial(self.total_count)

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        probs = full_like_shape(self._probs(parameter), shape + self.event_shape)
        return drawn(partial(_draw_multinomial, self.total_count), rng, probs)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        orders = special.gammaln(parameter.dtype.type(self.total_count + 1)) - gnp.sum(
            special.gammaln(value + 1), axis=-1
        )
        return orders + self._log_probability(value, parameter)

    def entropy(self) -> Any:
        """Return n H - log(n!) + the sum of the expected log(x!), H being the entropy of one draw."""
        given, n = self.probs, self.total_count
        is_certain = (raw(given) == 0) | (raw(given) == 1)  # where logarithms have no derivative
        p = gnp.where(is_certain, 0.5, given)
        values = np.arange(n + 1, dtype=p.dtype).reshape((-1,) + (1,) * p.ndim)
        counts = libraries.to_device(values, libraries.device_of(raw(p)))
        count = p.dtype.type(n)
        log_prob = _log_choices(count, counts) + special.xlogy(counts, p) + special.xlog1py(count - counts, -p)
        of_all = special.gammaln(count + 1)
        expected = _expected(log_prob, special.gammaln(counts + 1))
        orders = gnp.sum(gnp.where(is_certain, raw(given) * of_all, expected), axis=-1)
        return n * self._entropy_of_one() - of_all + orders

    @property
    def mean(self) -> Any:
        """The probabilities times total_count."""
        return self.total_count * self.probs

    @property
    def variance(self) -> Any:
        """The product n p (1 - p) of each probability, n being total_count."""
        p = self.probs
        return self.total_count * p * (1 - p)
