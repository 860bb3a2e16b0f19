"""nn.functional: normalization."""
