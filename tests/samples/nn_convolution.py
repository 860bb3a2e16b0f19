"""nn.functional: convolution."""
