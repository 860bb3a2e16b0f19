"""Linear systems, determinants, inverses, norms: the rest of numpy.linalg."""
