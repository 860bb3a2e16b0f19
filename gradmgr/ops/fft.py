"""Discrete Fourier transforms, all of numpy.fft."""
