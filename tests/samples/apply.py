"""Samples of the chapter apply."""
