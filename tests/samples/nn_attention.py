"""nn.functional: attention."""
