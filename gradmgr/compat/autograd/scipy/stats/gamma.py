"""The gamma distribution."""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import plain_or

__all__ = ["cdf", "logpdf", "pdf"]


def _logpdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    y = (x - loc) / scale
    return special.xlogy(a - 1, y) - y - special.gammaln(a) - gnp.log(scale)


def _pdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.exp(_logpdf(x, a, loc, scale))


def _cdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.gammainc(a, (x - loc) / scale)


pdf = plain_or("stats.gamma", "pdf", _pdf)
logpdf = plain_or("stats.gamma", "logpdf", _logpdf)
cdf = plain_or("stats.gamma", "cdf", _cdf)
