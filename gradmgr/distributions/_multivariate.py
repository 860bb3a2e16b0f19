"""Distributions of vectors: MultivariateNormal, Dirichlet."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.libraries import to_device
from gradmgr._engine.tensor import raw
from gradmgr.distributions._continuous import log_gamma_variate, standard_normal
from gradmgr.distributions._distribution import Distribution, Shape, drawn_share, require, shape_of, within
from gradmgr.distributions.constraints import (
    Tested,
    finite,
    has_factor,
    independent,
    lower_cholesky,
    lower_triangular,
    positive,
    positive_definite,
    real_vector,
    simplex,
    symmetric,
)

_LOG_2PI = math.log(2 * math.pi)
_POSITIVE_DIAGONAL = Tested("positive", "greater than 0 on its diagonal", positive.holds)
_MATRICES = ("covariance_matrix", "precision_matrix", "scale_tril")


class MultivariateNormal(Distribution):
    """The multivariate normal distribution, with arguments as torch.distributions.MultivariateNormal.

    Densities need SciPy, for `linalg.solve_triangular`.

    Args:
        loc: the mean, of shape (..., d).
        covariance_matrix: symmetric and positive definite, of shape (..., d, d).
        precision_matrix: its inverse; or
        scale_tril: its lower Cholesky factor. Exactly one of the three is given.
        validate_args: whether the parameters are checked: to be finite, the first two matrices to be symmetric but for
            rounding and positive definite, which takes one more factorisation, scale_tril to be lower triangular with
            a diagonal above 0.

    Raises:
        ValueError: not one of the three matrices is given, it is not as it must be, or the shapes do not fit.
        TypeError: a parameter does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> normal = distributions.MultivariateNormal([0.0, 0.0], covariance_matrix=[[2.0, 0.5], [0.5, 1.0]])
    >>> normal.log_prob([[0.0, 0.0], [1.0, -1.0]]).round(3).tolist()
    [-2.118, -3.261]
    """

    has_rsample = True
    arg_constraints = MappingProxyType(
        {
            "loc": real_vector,
            "covariance_matrix": positive_definite,
            "precision_matrix": positive_definite,
            "scale_tril": lower_cholesky,
        }
    )
    _support = real_vector
    _requirements = MappingProxyType(dict.fromkeys(_MATRICES, finite))  # more is asked below

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool = True,
    ) -> None:
        given = zip(_MATRICES, (covariance_matrix, precision_matrix, scale_tril), strict=True)
        matrices = {name: value for name, value in given if value is not None}
        if len(matrices) != 1:
            raise ValueError(
                f"MultivariateNormal takes one of {', '.join(_MATRICES)}; found {' and '.join(matrices) or 'none'}"
            )
        super().__init__(validate_args, loc=loc, **matrices)
        (self._given,) = matrices
        size = self.event_shape[0]
        if shape_of(self._parameters[self._given])[-2:] != (size, size):
            raise ValueError(
                f"MultivariateNormal: for loc of shape {shape_of(self._parameters['loc'])}, {self._given} has shape "
                f"(..., {size}, {size}); found {shape_of(self._parameters[self._given])}"
            )
        if validate_args:
            self._check_matrix(raw(self._parameters[self._given]))

    def _check_matrix(self, matrix: Any) -> None:
        if is_batched(matrix) or not matrix.size:
            return  # the examples of a vmap have no common truth value
        if self._given == "scale_tril":
            require(matrix, lower_triangular, self._given, "MultivariateNormal")
            diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
            require(diagonal, _POSITIVE_DIAGONAL, self._given, "MultivariateNormal")
        else:
            require(matrix, symmetric, self._given, "MultivariateNormal")
            self._check_positive_definite(matrix)

    def _check_positive_definite(self, matrix: Any) -> None:
        holds = has_factor(matrix)
        if not holds.all():
            place = tuple(map(int, np.argwhere(~to_device(holds, "cpu"))[0]))
            least = np.linalg.eigvalsh(to_device(matrix[place], "cpu").astype(np.float64))[0]
            raise ValueError(
                f"MultivariateNormal: {self._given} must be positive definite; found a least eigenvalue of {least:.3g}"
                + (f" in the matrix at index {place}" if place else "")
                + ". A small multiple of the identity added to it may make it so; validate_args=False leaves this "
                "check out"
            )

    @property
    def event_shape(self) -> Shape:
        """(d,)."""
        return shape_of(self._parameters["loc"])[-1:]

    def _factor(self, matrix: Any) -> Any:
        """Return the lower factor of the covariance."""
        if self._given == "scale_tril":
            return matrix
        return gnp.linalg.cholesky(gnp.linalg.inv(matrix) if self._given == "precision_matrix" else matrix)

    @property
    def scale_tril(self) -> Any:
        """The lower Cholesky factor of the covariance."""
        return self._factor(self._values()[1])

    @property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        matrix = self._values()[1]
        if self._given == "covariance_matrix":
            return matrix
        return gnp.linalg.inv(matrix) if self._given == "precision_matrix" else matrix @ gnp.swapaxes(matrix, -1, -2)

    @property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return self._values()[1] if self._given == "precision_matrix" else gnp.linalg.inv(self.covariance_matrix)

    def _draw(self, rng: np.random.Generator, shape: Shape, loc: Any, matrix: Any) -> Any:
        noise = standard_normal(rng, shape + self.event_shape, loc)
        return loc + gnp.matvec(self._factor(matrix), noise)

    def _log_prob(self, value: Any, loc: Any, matrix: Any) -> Any:
        factor = self._factor(matrix)
        log_volume = gnp.sum(gnp.log(gnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
        return -(squared_distance(factor, value - loc) + self.event_shape[0] * _LOG_2PI) / 2 - log_volume

    def entropy(self) -> Any:
        """Return half the logarithm of det(2 pi e covariance)."""
        factor = self.scale_tril
        log_volume = gnp.sum(gnp.log(gnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
        entropy = log_volume + self.event_shape[0] * (1 + _LOG_2PI) / 2
        return entropy if shape_of(entropy) == self._batch_shape else gnp.broadcast_to(entropy, self._batch_shape)

    @property
    def mean(self) -> Any:
        """The parameter loc."""
        return self._spread(self._values()[0])

    @property
    def variance(self) -> Any:
        """The diagonal of the covariance."""
        factor = self.scale_tril
        return self._spread(gnp.sum(factor * factor, axis=-1))


def squared_distance(factor: Any, difference: Any) -> Any:
    """Return the sum over the last axis of the squares of inv(factor) @ difference."""
    if factor.ndim == 2:  # one solution of many columns
        columns = gnp.reshape(difference, (-1, factor.shape[0])).T
        z = gnp.linalg.solve_triangular(factor, columns, lower=True)
        return gnp.reshape(gnp.sum(z * z, axis=0), difference.shape[:-1])
    z = gnp.linalg.solve_triangular(factor, difference[..., None], lower=True)[..., 0]
    return gnp.sum(z * z, axis=-1)


class Dirichlet(Distribution):
    """The Dirichlet distribution, with arguments as torch.distributions.Dirichlet.

    `rsample` is made of gamma variates (see `Gamma`), by their logarithms.

    Args:
        concentration: greater than 0, of shape (..., k).
        validate_args: whether it is checked.

    Raises:
        ValueError: a concentration is not greater than 0, or has no axis.
        TypeError: it does not consist of real numbers.

    >>> from gradmgr import distributions
    >>> distributions.Dirichlet([1.0, 2.0, 3.0]).log_prob([0.2, 0.3, 0.5]).round(3)
    np.float64(1.504)
    """

    has_rsample = True
    arg_constraints = MappingProxyType({"concentration": independent(positive, 1)})
    _support = simplex

    def __init__(self, concentration: Any, validate_args: bool = True) -> None:
        super().__init__(validate_args, concentration=concentration)

    @property
    def event_shape(self) -> Shape:
        """(k,)."""
        return shape_of(self._parameters["concentration"])[-1:]

    def _draw(self, rng: np.random.Generator, shape: Shape, concentration: Any) -> Any:
        logs = log_gamma_variate(rng, shape + self.event_shape, concentration)
        return drawn_share(special.softmax(logs, axis=-1), concentration.dtype)

    def _log_prob(self, value: Any, a: Any) -> Any:
        terms = within(raw(value) >= 0, lambda x: special.xlogy(a - 1, x), value, inner=1.0)
        return gnp.sum(terms, axis=-1) - _log_normalizer(a)

    def entropy(self) -> Any:
        """Return log B(a) + (A - k) digamma(A) - sum (a - 1) digamma(a), A being the sum of a."""
        (a,) = self._values()
        total = gnp.sum(a, axis=-1)
        terms = gnp.sum((a - 1) * special.digamma(a), axis=-1)
        return _log_normalizer(a) + (total - a.shape[-1]) * special.digamma(total) - terms

    @property
    def mean(self) -> Any:
        """The concentration over its sum."""
        (a,) = self._values()
        return a / gnp.sum(a, axis=-1, keepdims=True)

    @property
    def variance(self) -> Any:
        """The ratio m (1 - m) / (A + 1), m being the mean and A the sum of the concentration."""
        (a,) = self._values()
        mean = self.mean
        return mean * (1 - mean) / (gnp.sum(a, axis=-1, keepdims=True) + 1)


def _log_normalizer(a: Any) -> Any:
    return gnp.sum(special.gammaln(a), axis=-1) - special.gammaln(gnp.sum(a, axis=-1))
