"""The history of a recording: modes that pause it, nodes, saved values, the memory budget, the trace log."""
