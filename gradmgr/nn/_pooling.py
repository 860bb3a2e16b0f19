"""Pooling over windows: the largest, the mean."""
