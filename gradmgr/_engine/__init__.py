"""From Tensor to backward."""
