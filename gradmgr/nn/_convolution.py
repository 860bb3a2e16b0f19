"""Convolutions: three bilinear ops, each of which has the other two for derivatives."""
