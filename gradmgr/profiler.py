"""A profiler of operations, forward and backward: time, calls, shapes, bytes, FLOPs, a Chrome trace."""
