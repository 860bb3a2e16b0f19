"""Module: parameters, buffers and modules within modules, by name."""
