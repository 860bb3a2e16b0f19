"""The normal distribution."""

from __future__ import annotations

import math
from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import plain_or

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]

_LOG_ROOT_TAU = math.log(2 * math.pi) / 2


def _logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return -(((x - loc) / scale) ** 2) / 2 - gnp.log(scale) - _LOG_ROOT_TAU


def _pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return gnp.exp(_logpdf(x, loc, scale))


def _cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.ndtr((x - loc) / scale)


def _sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.ndtr((loc - x) / scale)


def _logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.log_ndtr((x - loc) / scale)


def _logsf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return special.log_ndtr((loc - x) / scale)


pdf = plain_or("stats.norm", "pdf", _pdf)
logpdf = plain_or("stats.norm", "logpdf", _logpdf)
cdf = plain_or("stats.norm", "cdf", _cdf)
logcdf = plain_or("stats.norm", "logcdf", _logcdf)
sf = plain_or("stats.norm", "sf", _sf)
logsf = plain_or("stats.norm", "logsf", _logsf)
