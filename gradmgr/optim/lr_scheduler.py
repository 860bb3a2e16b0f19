"""Schedules of the learning rate by torch.optim.lr_scheduler's names."""
