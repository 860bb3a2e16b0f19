"""Layers, and the functions they are made of, by torch.nn's names and arguments."""
