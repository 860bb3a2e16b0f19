"""Samples of the chapter calculus."""
