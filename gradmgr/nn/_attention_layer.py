"""MultiheadAttention."""
