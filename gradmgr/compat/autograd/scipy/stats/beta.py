"""The beta distribution."""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import plain_or

__all__ = ["cdf", "logpdf", "pdf"]


def _logpdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    y = (x - loc) / scale
    return special.xlogy(a - 1, y) + special.xlog1py(b - 1, -y) - special.betaln(a, b) - gnp.log(scale)


def _pdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.exp(_logpdf(x, a, b, loc, scale))


def _cdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.betainc(a, b, (x - loc) / scale)


pdf = plain_or("stats.beta", "pdf", _pdf)
logpdf = plain_or("stats.beta", "logpdf", _logpdf)
cdf = plain_or("stats.beta", "cdf", _cdf)
