"""What the allocator does with freed memory: an opt-in that keeps it."""
