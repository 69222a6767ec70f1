"""What a user's own runs teach: a posterior over the few constants that differ from cluster to cluster.

Imports from evaluation and what stands before it. scipy is optional: memory_posterior alone loads it.
"""
