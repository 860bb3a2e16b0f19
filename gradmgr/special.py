"""Special functions under scipy.special's names."""

from gradmgr.ops.reduce import logsumexp

__all__ = ["logsumexp"]
