"""Polynomials by their coefficients, as `numpy.polyval` and kin."""
