"""Functions of neural networks by torch.nn.functional's names and arguments."""
