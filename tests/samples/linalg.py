"""Samples of the chapter linalg."""
