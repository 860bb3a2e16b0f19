"""nn.functional: linear."""
