"""`send` and `recv`: values go one way, gradients come the other."""
