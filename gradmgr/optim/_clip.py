"""Clip gradients by norm or value."""
