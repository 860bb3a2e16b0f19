"""Functions of the user's applied along axes: apply_along_axis, vectorize, piecewise."""
