"""Distributions of integers: Bernoulli, Categorical, Poisson."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays.drawing import drawn
from gradmgr._engine.tensor import raw
from gradmgr.distributions._distribution import (
    PROBABILITY,
    Distribution,
    Requirement,
    Shape,
    full_like_shape,
    within,
)

_NOT_NEGATIVE = Requirement(lambda a: a >= 0, "0 or greater")
_WEIGHTS = Requirement(lambda a: (a >= 0) & (a.sum(axis=-1, keepdims=True) > 0), "0 or greater, with a sum above 0")


def _draw_uniform(rng: np.random.Generator, like: Any) -> Any:
    return rng.random(like.shape)


def _draw_poisson(rng: np.random.Generator, rate: Any) -> Any:
    return np.asarray(rng.poisson(rate)).astype(rate.dtype)


def _one_of(owner: str, probs: Any, logits: Any) -> dict[str, Any]:
    given = {name: value for name, value in (("probs", probs), ("logits", logits)) if value is not None}
    if len(given) != 1:
        raise ValueError(f"{owner} takes either probs or logits; found {'both' if given else 'neither'}")
    return given


class Bernoulli(Distribution):
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

    _requirements = MappingProxyType({"probs": PROBABILITY})

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **_one_of("Bernoulli", probs, logits))

    @property
    def probs(self) -> Any:
        """The probability of 1."""
        (value,) = self._values()
        return special.expit(value) if "logits" in self._parameters else value

    @property
    def logits(self) -> Any:
        """log(probs / (1 - probs))."""
        (value,) = self._values()
        return value if "logits" in self._parameters else special.logit(value)

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        probs = special.expit(parameter) if "logits" in self._parameters else parameter
        return gnp.astype(drawn(_draw_uniform, rng, full_like_shape(parameter, shape)) < probs, parameter.dtype)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        if "logits" in self._parameters:

            def compute(x: Any) -> Any:
                return special.log_expit(gnp.where(x == 1, parameter, -parameter))
        else:

            def compute(x: Any) -> Any:
                return special.xlogy(x, parameter) + special.xlog1py(1 - x, -parameter)

        plain = raw(value)
        return within((plain == 0) | (plain == 1), compute, value, inner=0.0)

    def entropy(self) -> Any:
        """Return -p log(p) - (1 - p) log(1 - p)."""
        p = self.probs
        return special.entr(p) - special.xlog1py(1 - p, -p)

    @property
    def mean(self) -> Any:
        """The probability of 1."""
        return self.probs

    @property
    def variance(self) -> Any:
        """The product p (1 - p), p being the probability of 1."""
        p = self.probs
        return p * (1 - p)


class Categorical(Distribution):
    """The distribution of the integers from 0 to k - 1, with arguments as torch.distributions.Categorical.

    Args:
        probs: numbers in proportion to the probabilities, of shape (..., k), which need not add up to 1; or
        logits: logarithms of such numbers. Exactly one of the two is given.
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

    _requirements = MappingProxyType({"probs": _WEIGHTS})
    _ndims = MappingProxyType({"probs": 1, "logits": 1})

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool = True) -> None:
        super().__init__(validate_args, **_one_of("Categorical", probs, logits))

    @property
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        return self._logits(*self._values())

    def _logits(self, parameter: Any) -> Any:
        if "logits" in self._parameters:
            return special.log_softmax(parameter, axis=-1)
        with np.errstate(divide="ignore"):  # a probability may be 0
            return gnp.log(parameter) - gnp.log(gnp.sum(parameter, axis=-1, keepdims=True))

    @property
    def probs(self) -> Any:
        """The probabilities."""
        (value,) = self._values()
        if "logits" in self._parameters:
            return special.softmax(value, axis=-1)
        return value / gnp.sum(value, axis=-1, keepdims=True)

    def _draw(self, rng: np.random.Generator, shape: Shape, parameter: Any) -> Any:
        weights = special.softmax(parameter, axis=-1) if "logits" in self._parameters else parameter
        up_to = gnp.cumsum(weights, axis=-1)
        u = drawn(_draw_uniform, rng, full_like_shape(parameter[..., 0], shape))
        # Strictly below: a category of probability 0 is not drawn.
        passed = up_to[..., :-1] <= u[..., None] * up_to[..., -1:]
        return gnp.sum(passed, axis=-1, dtype=np.int64)

    def _log_prob(self, value: Any, parameter: Any) -> Any:
        plain, count = raw(value), parameter.shape[-1]
        is_inside = (plain >= 0) & (plain < count) & (plain == np.floor(plain))
        shape = np.broadcast_shapes(plain.shape, parameter.shape[:-1])
        index = np.broadcast_to(np.where(is_inside, plain, 0).astype(np.int64), shape)
        # Taken before the logarithm, so that a probability of 0 beside it gives no NaN in the gradient.
        chosen = gnp.take_along_axis(gnp.broadcast_to(parameter, (*shape, count)), index[..., None], axis=-1)[..., 0]
        if "logits" in self._parameters:
            log_prob = chosen - special.logsumexp(parameter, axis=-1)
        else:
            with np.errstate(divide="ignore"):
                log_prob = gnp.log(chosen) - gnp.log(gnp.sum(parameter, axis=-1))
        return gnp.where(is_inside, log_prob, -np.inf)

    def entropy(self) -> Any:
        """Return -sum p log(p)."""
        return gnp.sum(special.entr(self.probs), axis=-1)

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

    _requirements = MappingProxyType({"rate": _NOT_NEGATIVE})

    def __init__(self, rate: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, rate=rate)

    def _draw(self, rng: np.random.Generator, shape: Shape, rate: Any) -> Any:
        return drawn(_draw_poisson, rng, full_like_shape(rate, shape))

    def _log_prob(self, value: Any, rate: Any) -> Any:
        plain = raw(value)
        return within(
            (plain >= 0) & (plain == np.floor(plain)),
            lambda x: special.xlogy(x, rate) - rate - special.gammaln(x + 1),
            value,
            inner=0.0,
        )

    @property
    def mean(self) -> Any:
        """The parameter rate."""
        return self._values()[0]

    @property
    def variance(self) -> Any:
        """The parameter rate."""
        return self._values()[0]
