"""Specs to try, and a training job on a simulated cluster, which tests and benchmarks of `tune` use too."""
