"""The methods of ufuncs: reduce, accumulate, reduceat, outer, at."""
