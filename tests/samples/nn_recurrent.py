"""nn.functional: recurrent."""
