"""`save` and `load`: checkpoints of a training run, in files without pickle."""
