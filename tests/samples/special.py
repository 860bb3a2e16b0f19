"""Samples of the chapter special."""
