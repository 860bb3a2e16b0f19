"""Samples of the chapter ufuncs."""
