"""Benchmarks of gradmgr; run one with `python -m bench`."""
