"""Optimizer: parameter groups, steps, state."""
