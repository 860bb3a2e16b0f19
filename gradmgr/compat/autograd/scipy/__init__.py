"""autograd.scipy: SciPy's functions on traced values. SciPy is imported when one of them needs it."""

from gradmgr.compat.autograd.scipy import integrate, linalg, misc, signal, special, stats

__all__ = ["integrate", "linalg", "misc", "signal", "special", "stats"]
