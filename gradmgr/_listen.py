"""Tapes that hear what is noted: the listeners of a context, and where in the user's program an op was called."""
