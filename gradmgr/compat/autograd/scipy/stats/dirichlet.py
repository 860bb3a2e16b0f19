"""The Dirichlet distribution."""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd.scipy._late import late_primitive, plain_or

__all__ = ["logpdf", "pdf", "rvs"]


def _logpdf(x: Any, alpha: Any) -> Any:
    height = special.gammaln(gnp.sum(alpha)) - gnp.sum(special.gammaln(alpha))
    return gnp.sum(special.xlogy(gnp.transpose(gnp.asarray(alpha) - 1), gnp.transpose(x)).T, axis=-1) + height


def _pdf(x: Any, alpha: Any) -> Any:
    return gnp.exp(_logpdf(x, alpha))


pdf = plain_or("stats.dirichlet", "pdf", _pdf)
logpdf = plain_or("stats.dirichlet", "logpdf", _logpdf)
rvs = late_primitive("stats.dirichlet", "rvs")
