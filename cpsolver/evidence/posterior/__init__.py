"""What a user's own runs teach: a posterior over the few constants that differ from cluster to cluster."""
