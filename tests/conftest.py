"""Settings of the property tests: the same examples every time, and no wall-clock deadline."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
