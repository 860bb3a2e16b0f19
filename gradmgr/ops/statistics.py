"""Averages, quantiles, correlations, and reductions that skip NaN."""
