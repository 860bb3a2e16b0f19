"""What a recording keeps, and how it is shown, packed, moved out and traced."""
