"""Samples of the chapter order."""
