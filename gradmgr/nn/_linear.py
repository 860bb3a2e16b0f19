"""Affine maps and table look-up: `linear`, `embedding`."""
