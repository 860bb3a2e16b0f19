"""nn.functional: loss."""
