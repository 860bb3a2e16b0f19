"""Matrix decompositions: eigh, eig, svd, qr."""
