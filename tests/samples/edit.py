"""Samples of the chapter edit."""
