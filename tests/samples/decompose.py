"""Samples of the chapter decompose."""
