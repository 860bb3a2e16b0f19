"""Compiled functions: what a function reads, the captures of its calls, and the programs that take their place."""
