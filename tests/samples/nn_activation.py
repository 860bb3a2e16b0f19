"""nn.functional: activation."""
