"""A sweep of 120 cells, whole and killed half way: ``python -m benchmarks.batch [--sizes 30] [--jobs 2] [--save]``.

30 cluster sizes x 2 models x 2 chip mixes by the command line in processes of their own: CPU seconds of all of them
by the operating system's count; then once more, killed with SIGKILL when half of the rows are there and started again,
and the rows of both compared but for the columns that depend on the time taken. With --save the figures go to
benchmarks/results/batch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cpsolver.doors.batch.rows import COLUMNS, EFFORT

_RESULTS = Path(__file__).parent / "results"


def sweep(sizes: int) -> dict[str, Any]:
    """The sweep file: clusters of 16, 32, … devices."""
    return {
        "base": {
            "model": "llama2-7b",
            "cluster": {"num_gpus": 16, "chips": "a800"},
            "training": {"global_batch_size": 480, "sequence_length": 4096},
            "search": {"top": 3},
        },
        "grid": {
            "model": ["llama2-7b", "llama2-70b"],
            "cluster.num_gpus": {"from": 16, "to": 16 * sizes, "step": 16},
            "mix": [
                {"label": "a800", "cluster.chips": "a800"},
                {"label": "a800 + h800", "cluster.chips": {"a800": "50 %", "h800": "50 %"}},
            ],
        },
    }


@dataclass(frozen=True)
class Run:
    """A run of the command that was left in peace: its answer and its costs."""

    document: dict[str, Any]
    cpu_s: float
    wall_s: float


def start(path: Path, jobs: int) -> subprocess.Popen[str]:
    """The command on a sweep file; the database has its name."""
    command = [sys.executable, "-m", "cli", "batch", str(path), "--jobs", str(jobs), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def finish(path: Path, jobs: int) -> Run:
    """Run to the end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = start(path, jobs)
    text, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"batch ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(json.loads(text), cpu, time.monotonic() - began)


def kill_half_way(path: Path, jobs: int, cells: int) -> int:
    """Kill a run when half of its rows are there; how many were."""
    process = start(path, jobs)
    database = path.with_suffix(".sqlite")
    while len(rows(database)) < cells // 2:
        if process.poll() is not None:
            raise SystemExit("batch ended before it could be killed")
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1.0)  # its workers end by themselves
    return len(rows(database))


def rows(database: Path) -> dict[str, dict[str, Any]]:
    """The rows by key; none while the database is being made."""
    if not database.exists():
        return {}
    names = [column.name for column in COLUMNS]
    try:
        with closing(sqlite3.connect(database)) as opened:
            found = opened.execute(f"SELECT {', '.join(names)} FROM cells").fetchall()
    except sqlite3.OperationalError:
        return {}
    return {values[0]: dict(zip(names, values, strict=True)) for values in found}


def same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    """Whether two databases have the same rows, but for what depends on the time taken."""
    names = [column.name for column in COLUMNS if column.name not in EFFORT]
    return one.keys() == other.keys() and all(one[key][name] == other[key][name] for key in one for name in names)


def report(sizes: int, jobs: int) -> str:
    """Run it all; the figures as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole.yaml"), Path(folder, "killed.yaml")
        for path in (whole, killed):
            path.write_text(json.dumps(sweep(sizes)), encoding="utf-8")
        run = finish(whole, jobs)
        cells = len(run.document["cells"])
        kept = kill_half_way(killed, jobs, cells)
        again = finish(killed, jobs)
        equal = same(rows(whole.with_suffix(".sqlite")), rows(killed.with_suffix(".sqlite")))
    taken = [cell["cpu_seconds"] for cell in run.document["cells"]]
    counts = ", ".join(f"{count} {status}" for status, count in Counter(run.document["counts"]).items())
    lines = [
        f"{cells} cells ({sizes} cluster sizes of 16 to {16 * sizes:,} devices, 2 models, 2 chip mixes): {counts}",
        f"CPU seconds in all: {run.cpu_s:.1f}, of which solving {sum(taken):.1f} (a cell {min(taken):.2f} to "
        f"{max(taken):.2f})",
        f"wall seconds with --jobs {jobs}: {run.wall_s:.1f}",
        f"killed with SIGKILL when {kept} rows were there; resumed: {again.document['solved']} solved",
        f"rows the same as of the run left in peace: {'yes' if equal else 'NO'}",
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {date.today().isoformat()}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    text = report(options.sizes, options.jobs)
    print(text)
    if options.save:
        _RESULTS.mkdir(exist_ok=True)
        (_RESULTS / "batch.md").write_text(f"# batch\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
