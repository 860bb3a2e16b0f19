"""nn.functional: pooling."""
