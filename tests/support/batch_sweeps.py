"""Sweeps for the tests of batch, and reading what a run of one has kept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from cpsolver.doors.batch.cases import SweepCase, make_cases
from cpsolver.doors.batch.rows import COLUMNS, EFFORT, new_row
from cpsolver.doors.batch.run import SweepAnswer
from cpsolver.doors.batch.sweep import Sweep, load_sweep
from tests.support.checkout import ROOT
from tests.support.command import write

BASE = """
base:
  model: llama2-7b
  cluster: {num_gpus: 16, chips: a800}
  training: {global_batch_size: 64, sequence_length: 4096}
  search: {top: 1, pin: {tp: 2, cp: 1, mbs: 1, vpp: 1}}
"""
EIGHT = (
    BASE
    + """
grid:
  cluster.num_gpus: [8, 16, 32, 64]
  mix:
    - {label: a800, cluster.chips: a800}
    - {label: mixed, cluster.chips: {a800: 50 %, h800: 50 %}}
"""
)
"""Eight cells; the smallest mixed one rounds both shares up to a node."""


TIMED = BASE.replace("sequence_length: 4096}", "sequence_length: 4096, tokens: 1.0e+12}")
SIZES = "grid: {cluster.num_gpus: [8, 16, 32, 64, 128]}"
# days and dollars; the 32 are beaten by the 64 in both, the 128 are sooner than all and dearest
POINTS = ((80.0, 100e3), (44.0, 110e3), (30.0, 150e3), (25.0, 140e3), (14.0, 190e3))


def sweep_of(text: str) -> Sweep:
    """The sweep with this text."""
    return load_sweep(write("sweep.yaml", text))


def cases_of(grid: str, base: str = BASE) -> list[SweepCase]:
    """The cases of the base with a grid or a list."""
    return make_cases(sweep_of(base + grid))


def rows(database: str | Path) -> dict[str, dict[str, Any]]:
    """The rows of a database by key."""
    with closing(sqlite3.connect(database)) as opened:
        opened.row_factory = sqlite3.Row
        return {row["key"]: dict(row) for row in opened.execute("SELECT * FROM cells")}


def answers(database: str | Path) -> dict[str, dict[str, Any]]:
    """The rows without what says how long it took."""
    names = [column.name for column in COLUMNS if column.name not in EFFORT]
    return {key: {name: row[name] for name in names} for key, row in rows(database).items()}


def start(*options: str, **environment: str) -> subprocess.Popen[str]:
    """A batch of sweep.yaml in a process group of its own."""
    command = [sys.executable, "-m", "cli", "batch", str(Path("sweep.yaml").absolute()), *options]
    around = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=around, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for_rows(process: subprocess.Popen[str], count: int) -> None:
    """Return when the run has kept so many rows; it must not have ended before."""
    while process.poll() is None:
        if Path("sweep.sqlite").exists():
            try:
                if len(rows("sweep.sqlite")) >= count:
                    return
            except sqlite3.OperationalError:  # it is only just being made
                pass
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def group_is_gone(group: int) -> bool:
    """Whether all processes of a group end within ten seconds."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def answer(
    chances: tuple[float | None, ...] = (None,) * 5, points: tuple[tuple[float, float], ...] = POINTS
) -> SweepAnswer:
    """A sweep's answer of these days and dollars, without plans."""
    sweep = sweep_of(TIMED + SIZES)
    cases = make_cases(sweep)
    found = []
    for case, (days, dollars), chance in zip(cases, points, chances, strict=True):
        figures: dict[str, Any] = {"status": "optimal", "step_time_s": 1.0, "devices": case.cell.settings[0].value}
        for name, mean in (("days", days), ("dollars", dollars)):
            figures |= {name: mean, f"{name}_low": mean * 0.9, f"{name}_high": mean * 1.2}
        more = {"deadline_probability": chance, "tokens_per_s": 1e6, "mfu": 0.4, "dollars_per_million_tokens": 0.1}
        more |= {"step_time_low_s": 0.9, "step_time_high_s": 1.2, "dollars_per_hour": 36.0, "memory_share": 0.5}
        found.append(new_row(case) | figures | more | {"strategy": "tp 2"})
    return SweepAnswer(sweep, tuple(cases), tuple(found), "sweep.sqlite", 5, 1.0)
