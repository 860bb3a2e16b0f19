"""Samples of the chapter statistics."""
