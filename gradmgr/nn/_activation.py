"""Activations and softmax, as ops of the table."""
