"""Settings of the property tests: the same examples every time, no deadline, one locale. What stays is set aside."""

import gc
import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
os.environ.pop("LC_MESSAGES", None)
os.environ["LC_ALL"] = "C.UTF-8"  # a developer's own locale would choose the language that the commands speak
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control starts its background commands so
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step times by the closed form on mixed chips too, of which all K best are proven; by events only the first is."""
    monkeypatch.setattr("cpsolver.evaluation.evaluate.makespan_s", lambda *_: None)
