"""Student's t distribution. Of its distribution function there is no derivative by the degrees of freedom."""

from __future__ import annotations

import math
from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd._primitive import defjvp, defvjp
from gradmgr.compat.autograd.scipy._late import late_primitive, plain_or

__all__ = ["cdf", "logcdf", "logpdf", "pdf"]

_stdtr = late_primitive("special", "stdtr")


def _logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    y = (x - loc) / scale
    height = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - gnp.log(df * math.pi) / 2 - gnp.log(scale)
    return height - (df + 1) / 2 * gnp.log1p(y * y / df)


def _pdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.exp(_logpdf(x, df, loc, scale))


def _cdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return _stdtr(df, (x - loc) / scale)


def _logcdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.log(_cdf(x, df, loc, scale))


defvjp(_stdtr, lambda ans, df, y: lambda g: g * _pdf(y, df), argnums=[1])
defjvp(_stdtr, lambda g, ans, df, y: g * _pdf(y, df), argnums=[1])

pdf = plain_or("stats.t", "pdf", _pdf)
logpdf = plain_or("stats.t", "logpdf", _logpdf)
cdf = plain_or("stats.t", "cdf", _cdf)
logcdf = plain_or("stats.t", "logcdf", _logcdf)
