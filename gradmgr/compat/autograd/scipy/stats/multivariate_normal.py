"""The multivariate normal distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr.compat.autograd.scipy._late import plain_or
from gradmgr.compat.autograd.tracer import getval, isbox

__all__ = ["entropy", "logpdf", "pdf"]


def _square(cov: Any, size: int) -> Any:
    """Return a covariance as a matrix: of a number that times the identity, of a vector that on the diagonal."""
    dims = np.ndim(getval(cov))
    if dims == 2:
        return cov
    return np.eye(size) * (cov if dims == 0 else gnp.reshape(cov, (1, -1)))


def _from_lower(cov: Any) -> Any:
    """Return the covariance of which SciPy reads the lower triangle."""
    return gnp.tril(cov) + gnp.tril(cov, -1).T


def _logpdf(x: Any, mean: Any = None, cov: Any = 1.0, allow_singular: bool = False) -> Any:
    difference = x if mean is None else x - mean
    if np.ndim(getval(difference)) == 0:
        return _logpdf_of(gnp.reshape(difference, (1,)), _square(cov, 1), allow_singular)
    size = _size(mean, cov)
    if size == 1 and difference.ndim == 1:  # each number is a point, as in SciPy
        difference = gnp.reshape(difference, (-1, 1))
    return _logpdf_of(difference, _square(cov, difference.shape[-1]), allow_singular)


def _size(mean: Any, cov: Any) -> int:
    """Return the number of dimensions that a mean or a covariance tells; 1 where neither does."""
    shape = np.shape(getval(cov))
    return max(1 if mean is None else np.size(getval(mean)), shape[-1] if shape else 1)


def _logpdf_of(difference: Any, cov: Any, allow_singular: bool) -> Any:
    rows = gnp.reshape(difference, (-1, difference.shape[-1]))
    if allow_singular:
        squares, log_det, rank = _on_the_support(rows, cov)
    else:
        cov = _from_lower(cov)
        squares = gnp.sum(rows.T * gnp.linalg.solve(cov, rows.T), axis=0)
        log_det, rank = gnp.linalg.slogdet(cov)[1], rows.shape[-1]
    made = -(squares + log_det + rank * math.log(2 * math.pi)) / 2
    return gnp.reshape(made, difference.shape[:-1])


def _on_the_support(rows: Any, cov: Any) -> tuple[Any, Any, int]:
    """Return what a singular covariance gives: squares by its pseudoinverse, the pseudodeterminant's log, the rank."""
    if isbox(cov):
        raise NotImplementedError(
            "multivariate_normal: there is no derivative by cov with allow_singular=True; add a multiple of the "
            "identity to cov"
        )
    values, vectors = np.linalg.eigh(cov)
    kept = values > 1e6 * np.finfo(float).eps * values.max()  # SciPy's bound
    scaled = rows @ (vectors[:, kept] / np.sqrt(values[kept]))
    return gnp.sum(scaled**2, axis=-1), np.sum(np.log(values[kept])), int(kept.sum())


def _pdf(x: Any, mean: Any = None, cov: Any = 1.0, allow_singular: bool = False) -> Any:
    return gnp.exp(_logpdf(x, mean, cov, allow_singular))


def _entropy(mean: Any = None, cov: Any = 1.0) -> Any:
    size = _size(mean, cov)
    return (size * math.log(2 * math.pi * math.e) + gnp.linalg.slogdet(_from_lower(_square(cov, size)))[1]) / 2


pdf = plain_or("stats.multivariate_normal", "pdf", _pdf)
logpdf = plain_or("stats.multivariate_normal", "logpdf", _logpdf)
entropy = plain_or("stats.multivariate_normal", "entropy", _entropy)
