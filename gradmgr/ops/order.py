"""Sorting, choosing and the distinct values."""
