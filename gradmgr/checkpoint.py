"""Checkpoints: recompute in backward what was not kept."""
