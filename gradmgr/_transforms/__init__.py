"""Functions of functions and of recordings: grad, vmap, checkpoint, custom operations, gradcheck."""
