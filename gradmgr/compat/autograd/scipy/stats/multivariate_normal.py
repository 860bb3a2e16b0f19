"""The multivariate normal distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr.compat.autograd.scipy._late import plain_or
from gradmgr.compat.autograd.tracer import getval

__all__ = ["entropy", "logpdf", "pdf"]


def _square(cov: Any, size: int) -> Any:
    """Return a covariance as a matrix: of a number that times the identity, of a vector that on the diagonal."""
    dims = np.ndim(getval(cov))
    if dims == 2:
        return cov
    return np.eye(size) * (cov if dims == 0 else gnp.reshape(cov, (1, -1)))


def _logpdf(x: Any, mean: Any = None, cov: Any = 1.0, allow_singular: bool = False) -> Any:
    if allow_singular:
        raise NotImplementedError(
            "multivariate_normal: no derivative with allow_singular=True; add a multiple of the identity to cov"
        )
    difference = x if mean is None else x - mean
    if np.ndim(getval(difference)) == 0:
        return _logpdf_of(gnp.reshape(difference, (1,)), _square(cov, 1))
    size = _size(mean, cov)
    if size == 1 and difference.ndim == 1:  # each number is a point, as in SciPy
        difference = gnp.reshape(difference, (-1, 1))
    return _logpdf_of(difference, _square(cov, difference.shape[-1]))


def _size(mean: Any, cov: Any) -> int:
    """Return the number of dimensions that a mean or a covariance tells; 1 where neither does."""
    shape = np.shape(getval(cov))
    return max(1 if mean is None else np.size(getval(mean)), shape[-1] if shape else 1)


def _logpdf_of(difference: Any, cov: Any) -> Any:
    size = difference.shape[-1]
    rows = gnp.reshape(difference, (-1, size))
    squares = gnp.sum(rows.T * gnp.linalg.solve(cov, rows.T), axis=0)
    made = -(squares + gnp.linalg.slogdet(cov)[1] + size * math.log(2 * math.pi)) / 2
    return gnp.reshape(made, difference.shape[:-1])


def _pdf(x: Any, mean: Any = None, cov: Any = 1.0, allow_singular: bool = False) -> Any:
    return gnp.exp(_logpdf(x, mean, cov, allow_singular))


def _entropy(mean: Any = None, cov: Any = 1.0) -> Any:
    size = _size(mean, cov)
    return (size * math.log(2 * math.pi * math.e) + gnp.linalg.slogdet(_square(cov, size))[1]) / 2


pdf = plain_or("stats.multivariate_normal", "pdf", _pdf)
logpdf = plain_or("stats.multivariate_normal", "logpdf", _logpdf)
entropy = plain_or("stats.multivariate_normal", "entropy", _entropy)
