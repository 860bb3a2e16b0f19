"""The ranks there are: `init`, `rank`, `size`, groups."""
