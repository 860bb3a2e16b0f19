"""Parameters in chunks: many small ones in one flat buffer, so that a step over them is a few array calls."""
