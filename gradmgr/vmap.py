"""vmap: a function of one example becomes a function of a batch."""
