"""Differences, integrals, interpolation and convolution."""
