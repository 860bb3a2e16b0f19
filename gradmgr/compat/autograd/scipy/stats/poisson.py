"""The Poisson distribution, differentiable in its mean."""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import plain_or
from gradmgr.compat.autograd.tracer import getval

__all__ = ["cdf", "logpmf", "pmf"]


def _logpmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    count = getval(k) - getval(loc)
    possible = (count >= 0) & (count % 1 == 0)
    return gnp.where(possible, special.xlogy(count, mu) - mu - special.gammaln(count + 1.0), -gnp.inf)


def _pmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    return gnp.exp(_logpmf(k, mu, loc))


def _cdf(k: Any, mu: Any, loc: Any = 0) -> Any:
    count = gnp.floor(getval(k) - getval(loc))
    return gnp.where(count >= 0, special.gammaincc(gnp.maximum(count, 0.0) + 1.0, mu), 0.0)


pmf = plain_or("stats.poisson", "pmf", _pmf)
logpmf = plain_or("stats.poisson", "logpmf", _logpmf)
cdf = plain_or("stats.poisson", "cdf", _cdf)
