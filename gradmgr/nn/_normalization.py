"""Normalisation over a batch, over features, over groups of channels."""
