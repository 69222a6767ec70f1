"""An exact planner for parallel training of large models: how to split the work, how fast it runs and why."""

__version__ = "0.2.0"
