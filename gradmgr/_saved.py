"""Saved values under the user's hand: packed when an op is noted, unpacked when its derivative is computed."""
