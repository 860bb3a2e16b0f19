"""What a model is made of, as a table."""
