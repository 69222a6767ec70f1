"""Ctrl-C while OR-tools is loaded, and while it solves: it is never lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def said(program: str, environment: dict[str, str] | None = None) -> list[str]:
    """The words that a process of its own prints, which is interrupted instead of this one."""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout.split() or [ran.stderr]


def test_one_while_the_solver_is_loaded_is_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "ortools" / "sat" / "python"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "cp_model.py").write_text(SWALLOWS + "whole = 'whole'\n", encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", LOADS],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.split() == ["interrupted", "whole"], ran.stderr


BEGINS = """\
import os, signal, time
from cpsolver.search.compile.model import _run
class Deaf:
    begun = stopped = False
    asked = 0
    def solve(self, model):
        os.kill(os.getpid(), signal.SIGINT)
        while not self.asked:
            time.sleep(0.001)
        self.begun = True
        while not self.stopped:
            time.sleep(0.001)
        return 0
    def stop_search(self):
        self.asked += 1
        self.stopped = self.begun
solver = Deaf()
try:
    _run(solver, None)
except KeyboardInterrupt:
    print(solver.stopped, solver.asked > 1)
"""
"""A solver that hears nothing before it has begun, and ends when it is told to stop."""


def test_one_while_a_solver_begins_stops_it() -> None:
    assert said(BEGINS) == ["True", "True"]
