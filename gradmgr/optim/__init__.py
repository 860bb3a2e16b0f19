"""Optimisers by torch.optim's names and arguments."""
