"""Programs that are interrupted at every place, and what must be true afterwards."""
