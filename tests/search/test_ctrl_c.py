"""Ctrl-C while OR-tools is loaded, and while it solves: it is never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cpsolver.search.compile.model import _run

SWALLOWS = """\
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
except BaseException:
    raise ImportError('initialization failed')
"""
"""As a library of C++ does with an interrupt in the middle of its imports."""
LOADS = """\
try:
    import cpsolver.search.compile
except KeyboardInterrupt:
    print('interrupted')
import ortools.sat.python.cp_model as loaded
print(loaded.whole)
"""


def test_one_while_the_solver_is_loaded_is_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "ortools" / "sat" / "python"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "cp_model.py").write_text(SWALLOWS + "whole = 'whole'\n", encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", LOADS], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["interrupted", "whole"], ran.stderr


class Deaf:
    """A solver that hears nothing before it has begun, and ends when it is told to stop."""

    begun = stopped = False
    asked = 0

    def solve(self, _model: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        while not self.asked:
            time.sleep(0.001)
        self.begun = True
        while not self.stopped:
            time.sleep(0.001)
        return 0

    def stop_search(self) -> None:
        self.asked += 1
        self.stopped = self.begun


def test_one_while_a_solver_begins_stops_it() -> None:
    solver: Any = Deaf()
    with pytest.raises(KeyboardInterrupt):
        _run(solver, None)  # type: ignore[arg-type]
    assert solver.stopped
    assert solver.asked > 1
