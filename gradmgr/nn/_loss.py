"""Losses, as ops that neither overflow nor lose what is small."""
