"""Settings of the property tests: the same examples every time, and no wall-clock deadline."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
