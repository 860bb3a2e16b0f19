"""Samples of the chapter fft."""
