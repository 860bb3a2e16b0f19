"""Distributions of integers: Bernoulli, Categorical, OneHotCategorical, Poisson."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays import libraries
from gradmgr._arrays.drawing import drawn, noise
from gradmgr._engine.tensor import raw
from gradmgr.distributions._distribution import Distribution, Shape, full_like_shape
from gradmgr.distributions.constraints import (
    Constraint,
    Tested,
    boolean,
    integer_interval,
    nonnegative,
    nonnegative_integer,
    one_hot,
    real,
    real_vector,
    simplex,
    unit_interval,
)

_WEIGHTS = Tested(
    "weights", "0 or greater, with a sum above 0", lambda a: (a >= 0) & (a.sum(axis=-1, keepdims=True) > 0), event_dim=1
)
_LOGITS = Tested(
    "logits",
    "finite, or -inf for a probability of 0, but not all of them",
    lambda a: (a < np.inf) & (a > -np.inf).any(axis=-1, keepdims=True),
    event_dim=1,
)


def _draw_poisson(rng: np.random.Generator, rate: Any) -> Any:
    return np.asarray(rng.poisson(rate)).astype(rate.dtype)


def one_of(owner: str, probs: Any, logits: Any) -> dict[str, Any]:
    """Return by its name the one of two parameters that is given."""
    given = {name: value for name, value in (("probs", probs), ("logits", logits)) if value is not None}
    if len(given) != 1:
        raise ValueError(f"{owner} takes either probs or logits; found {'both' if given else 'neither'}")
    return given


def expected_log(probability: Any, log_probability: Any, log_other: Any = None) -> Any:
    """Return probability times log_probability, less log_other where given; 0 where log_probability is -inf.

    Made for logits: a probability rounds to 0 where its logarithm, taken from them, is finite. There the derivative of
    p log(p), by p, is infinite, and by the logit 0.
    """
    is_zero = raw(log_probability) == -np.inf
    if log_other is not None:
        is_zero = is_zero | (raw(probability) == 0) & (raw(log_other) == -np.inf)
    finite = gnp.where(is_zero, 0, log_probability)
    return probability * (finite if log_other is None else finite - gnp.where(is_zero, 0, log_other))


class WithProbability(Distribution):
    """The base of distributions whose last parameter is the probability of a success, or the logarithm of its odds."""

    _inner = 0.0

    @property
    def _has_logits(self) -> bool:
        return "logits" in self._parameters

    def _probs(self, parameter: Any) -> Any:
        return special.expit(parameter) if self._has_logits else parameter

    def _shares(self) -> tuple[Any, Any]:
        """Return the probabilities of a success and of a failure."""
        parameter = self._values()[-1]
        if self._has_logits:
            return special.expit(parameter), special.expit(-parameter)
        return parameter, 1 - parameter

    def _variance_of_one(self) -> Any:
        """Return the variance of the number of successes in one trial."""
        success, failure = self._shares()
        return success * failure

    @property
    def probs(self) -> Any:
        """The probability of a success."""
        return self._probs(self._values()[-1])

    @property
    def logits(self) -> Any:
        """log(probs / (1 - probs))."""
        value = self._values()[-1]
        return value if self._has_logits else special.logit(value)

    def _log_probability(self, successes: Any, failures: Any, parameter: Any) -> Any:
        """Return the logarithm of the probability of so many successes and failures, in one order."""
        if self._has_logits:
            return successes * special.log_expit(parameter) + failures * special.log_expit(-parameter)
        return special.xlogy(successes, parameter) + special.xlog1py(failures, -parameter)


class Bernoulli(WithProbability):
    """The distribution of 0 and 1, with arguments as torch.distributions.Bernoulli.

    Args:
        probs: the probability of 1; or
        logits: log(probs / (1 - probs)). Exactly one of the two is given.
        validate_args: whether it is checked.

    Raises:
        ValueError: not one of the two is given, or it is not as it must be.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Bernoulli(logits=[0.0, 2.0]).log_prob(1).round(3).tolist()
    [-0.693, -0.127]
    """

    arg_constraints = MappingProxyType({"probs": unit_interval, "logits": real})
    _support = boolean

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **one_of("Bernoulli", probs, logits))

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        u = noise("random", rng, shape, raw(parameter), np.float64)
        return gnp.astype(u < self._probs(parameter), parameter.dtype)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        return self._log_probability(value, 1 - value, parameter)

    def entropy(self) -> Any:
        """Return -p log(p) - (1 - p) log(1 - p)."""
        return -self._log_probability(*self._shares(), self._values()[-1])

    @property
    def mean(self) -> Any:
        """The probability of 1."""
        return self.probs

    @property
    def variance(self) -> Any:
        """The product p (1 - p), p being the probability of 1."""
        return self._variance_of_one()


class WithWeights(Distribution):
    """The base of distributions over k categories, whose parameter is of shape (..., k)."""

    arg_constraints = MappingProxyType({"probs": simplex, "logits": real_vector})
    _requirements = MappingProxyType({"probs": _WEIGHTS, "logits": _LOGITS})
    _inner = 0.0

    @property
    def _has_logits(self) -> bool:
        return "logits" in self._parameters

    @property
    def _count(self) -> int:
        (parameter,) = self._parameters.values()
        return int(parameter.shape[-1])

    @property
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        (value,) = self._values()
        if self._has_logits:
            return special.log_softmax(value, axis=-1)
        with np.errstate(divide="ignore"):  # a probability may be 0
            return gnp.log(value) - gnp.log(gnp.sum(value, axis=-1, keepdims=True))

    @property
    def probs(self) -> Any:
        """The probabilities."""
        return self._probs(*self._values())

    def _probs(self, parameter: Any) -> Any:
        if self._has_logits:
            return special.softmax(parameter, axis=-1)
        return parameter / gnp.sum(parameter, axis=-1, keepdims=True)

    def _draw_index(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        """Return random categories."""
        weights = special.softmax(parameter, axis=-1) if self._has_logits else parameter
        up_to = gnp.cumsum(weights, axis=-1)
        u = noise("random", rng, shape, raw(parameter), np.float64)
        # Strictly below: a category of probability 0 is not drawn.
        passed = up_to[..., :-1] <= u[..., None] * up_to[..., -1:]
        return gnp.sum(passed, axis=-1, dtype=np.int64)

    def _entropy_of_one(self) -> Any:
        """Return the entropy of one draw, -sum p log(p)."""
        if self._has_logits:
            return -gnp.sum(expected_log(self.probs, self.logits), axis=-1)
        (weights,) = self._values()
        total = gnp.sum(weights, axis=-1)  # of which the shares have a derivative of inf / inf where a weight is 0
        return gnp.log(total) + gnp.sum(special.entr(weights), axis=-1) / total

    def _log_probability(self, counts: Any, parameter: Any) -> Any:
        """Return the logarithm of the probability of drawing each category so often, in one order."""
        total = gnp.sum(counts, axis=-1)
        if self._has_logits:
            logits = gnp.where(raw(counts) == 0, 0, parameter)  # which may be -inf
            return gnp.sum(counts * logits, axis=-1) - total * special.logsumexp(parameter, axis=-1)
        weights = gnp.sum(parameter, axis=-1)
        return gnp.sum(special.xlogy(counts, parameter), axis=-1) - special.xlogy(total, weights)


class Categorical(WithWeights):
    """The distribution of the integers from 0 to k - 1, with arguments as torch.distributions.Categorical.

    Args:
        probs: numbers in proportion to the probabilities, of shape (..., k), which need not add up to 1; or
        logits: logarithms of such numbers; -inf excludes a category. Exactly one of the two is given.
        validate_args: whether it is checked.

    Raises:
        ValueError: not one of the two is given, it is not as it must be, or has no axis.
        TypeError: it does not consist of real numbers.

    >>> import numpy
    >>> from gradmgr import distributions
    >>> die = distributions.Categorical(probs=numpy.ones(6))
    >>> die.log_prob([0, 5, 6]).round(3).tolist()
    [-1.792, -1.792, -inf]
    >>> die.sample(numpy.random.default_rng(0), 4).tolist()
    [3, 1, 0, 0]
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **one_of("Categorical", probs, logits))

    @property
    def support(self) -> Constraint:
        """What the values are."""
        return integer_interval(0, self._count - 1)

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        return self._draw_index(rng, shape, parameter)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        plain, count = raw(value), parameter.shape[-1]
        shape = np.broadcast_shapes(plain.shape, parameter.shape[:-1])
        index = np.broadcast_to(plain.astype(np.int64), shape)
        # Taken before the logarithm, so that a probability of 0 beside it gives no NaN in the gradient.
        chosen = gnp.take_along_axis(gnp.broadcast_to(parameter, (*shape, count)), index[..., None], axis=-1)[..., 0]
        if self._has_logits:
            return chosen - special.logsumexp(parameter, axis=-1)
        with np.errstate(divide="ignore"):
            return gnp.log(chosen) - gnp.log(gnp.sum(parameter, axis=-1))

    def entropy(self) -> Any:
        """Return -sum p log(p)."""
        return self._entropy_of_one()

    @property
    def mean(self) -> Any:
        """The expectation of the integer."""
        p = self.probs
        return gnp.sum(p * gnp.arange(p.shape[-1], dtype=p.dtype), axis=-1)

    @property
    def variance(self) -> Any:
        """The variance of the integer."""
        p = self.probs
        values = gnp.arange(p.shape[-1], dtype=p.dtype)
        return gnp.sum(p * (values - gnp.sum(p * values, axis=-1, keepdims=True)) ** 2, axis=-1)


class OneHotCategorical(WithWeights):
    """The distribution of vectors of zeros with one 1, with arguments as torch.distributions.OneHotCategorical.

    Args:
        probs: numbers in proportion to the probabilities of the places of the 1, of shape (..., k); or
        logits: logarithms of such numbers; -inf excludes a category. Exactly one of the two is given.
        validate_args: whether it is checked.

    Raises:
        ValueError: not one of the two is given, it is not as it must be, or has no axis.
        TypeError: it does not consist of real numbers.

    >>> import numpy
    >>> from gradmgr import distributions
    >>> found = distributions.OneHotCategorical(probs=[1.0, 2.0, 1.0])
    >>> found.log_prob([[0, 1, 0], [1, 1, 0]]).round(3).tolist()
    [-0.693, -inf]
    >>> found.sample(numpy.random.default_rng(0)).tolist()
    [0.0, 1.0, 0.0]
    """

    _support = one_hot

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **one_of("OneHotCategorical", probs, logits))

    @property
    def event_shape(self) -> Shape:
        """(k,)."""
        return (self._count,)

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        index = self._draw_index(rng, shape, parameter)
        places = libraries.namespace(raw(index)).arange(self._count)
        return gnp.astype(gnp.equal(index[..., None], places), parameter.dtype)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        return self._log_probability(value, parameter)

    def entropy(self) -> Any:
        """Return -sum p log(p)."""
        return self._entropy_of_one()

    @property
    def mean(self) -> Any:
        """The probabilities."""
        return self.probs

    @property
    def variance(self) -> Any:
        """The product p (1 - p) of each probability."""
        p = self.probs
        return p * (1 - p)


class Poisson(Distribution):
    """The Poisson distribution, with arguments as torch.distributions.Poisson.

    Args:
        rate: the mean, 0 or greater.
        validate_args: whether it is checked.

    Raises:
        ValueError: the rate is negative.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Poisson(2.0).log_prob([0, 1, 1.5]).round(3).tolist()
    [-2.0, -1.307, -inf]
    """

    arg_constraints = MappingProxyType({"rate": nonnegative})
    _support = nonnegative_integer
    _inner = 0.0

    def __init__(self, rate: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, rate=rate)

    def _draw(self, rng: np.random.Generator, shape: Shape, rate: Any) -> Any:
        return drawn(_draw_poisson, rng, full_like_shape(rate, shape))

    def _log_prob(self, value: Any, rate: Any) -> Any:
        return special.xlogy(value, rate) - rate - special.gammaln(value + 1)

    @property
    def mean(self) -> Any:
        """The parameter rate."""
        return self._values()[0]

    @property
    def variance(self) -> Any:
        """The parameter rate."""
        return self._values()[0]
