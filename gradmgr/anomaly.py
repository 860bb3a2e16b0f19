"""Anomaly detection: which line of the forward program a failed derivative, or a NaN, belongs to."""
