"""Special functions, by scipy.special's names and definitions."""
