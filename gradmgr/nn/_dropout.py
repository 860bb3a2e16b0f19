"""Dropout, its random numbers from a Generator that the caller gives."""
