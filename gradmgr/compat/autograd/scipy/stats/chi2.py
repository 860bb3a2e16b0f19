"""The chi-squared distribution."""

from __future__ import annotations

import math
from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import plain_or

__all__ = ["cdf", "logpdf", "pdf"]


def _logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    y = (x - loc) / scale
    return special.xlogy(df / 2 - 1, y) - (y + df * math.log(2)) / 2 - special.gammaln(df / 2) - gnp.log(scale)


def _pdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.exp(_logpdf(x, df, loc, scale))


def _cdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.gammainc(df / 2, (x - loc) / scale / 2)


pdf = plain_or("stats.chi2", "pdf", _pdf)
logpdf = plain_or("stats.chi2", "logpdf", _logpdf)
cdf = plain_or("stats.chi2", "cdf", _cdf)
