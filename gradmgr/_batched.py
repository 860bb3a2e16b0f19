"""Batched: an array with a hidden axis of examples, which NumPy's functions see through by its protocols."""
