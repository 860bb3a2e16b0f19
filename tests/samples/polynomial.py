"""Samples of the chapter polynomial."""
