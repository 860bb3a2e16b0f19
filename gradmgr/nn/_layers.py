"""The modules around the functions: layers with parameters, and those without."""
