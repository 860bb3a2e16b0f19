"""One's own operations: `Function`, as torch's, and `custom_op`, one declaration in one place."""
