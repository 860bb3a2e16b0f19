"""A budget for a tape: saved arrays move to host memory or to disk when it is exceeded, and come back in time."""
