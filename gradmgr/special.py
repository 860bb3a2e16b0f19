"""Special functions under scipy.special's names and definitions; those in which SciPy's kernels work need SciPy.

Shapes and dtypes are SciPy's; without it a function that needs it raises MissingDependencyError.
"""

from gradmgr.ops.arithmetic import sinc
from gradmgr.ops.bessel import i0, i0e, i1, i1e, iv, j0, j1, jv
from gradmgr.ops.error_function import erf, erfc, erfcinv, erfcx, erfinv, log_ndtr, ndtr, ndtri
from gradmgr.ops.gamma import beta, betaln, digamma, gamma, gammaln, loggamma, multigammaln, polygamma, psi, zeta
from gradmgr.ops.incomplete_beta import betainc, betaincinv
from gradmgr.ops.incomplete_gamma import gammainc, gammaincc, gammainccinv, gammaincinv
from gradmgr.ops.logsumexp import logsumexp
from gradmgr.ops.softmax import log_softmax, softmax
from gradmgr.ops.special import entr, expit, expm1, exprel, kl_div, log1p, log_expit, logit, rel_entr, xlog1py, xlogy

__all__ = [
    "beta",
    "betainc",
    "betaincinv",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "expit",
    "expm1",
    "exprel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammainccinv",
    "gammaincinv",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "iv",
    "j0",
    "j1",
    "jv",
    "kl_div",
    "log1p",
    "log_expit",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "rel_entr",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]
