"""Settings of the property tests: the same examples every time, and no wall-clock deadline. What stays is set aside."""

import gc

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
