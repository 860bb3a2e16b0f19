"""What the functions of `nn` ask of their arguments: pairs of sizes, dtypes, words, labels."""
