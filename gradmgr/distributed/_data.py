"""The same parameters on all ranks, and to each its part of the data."""
