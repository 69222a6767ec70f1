"""Lower bounds on step time for thousands of rows at once."""
