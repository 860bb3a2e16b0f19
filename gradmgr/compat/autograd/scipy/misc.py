"""autograd.scipy.misc: `logsumexp`, which SciPy keeps in `special` now."""

from gradmgr.special import logsumexp

__all__ = ["logsumexp"]
