"""Making arrays longer, shorter or other in places: insert, delete, pad, put."""
