"""Samples of the chapter passed."""
