"""SIGKILL to a run of batch and to its workers: rows that are kept stay as they were, no cell is solved twice or left
out, and no worker goes on for nobody."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

from cpsolver.doors.batch.rows import EFFORT
from tools.attack.findings import Report
from tools.attack.processes import Command, Stuck, all_gone, command_line, killed, left_behind, output, run, tracebacks

CELLS = 24
SWEEP = """\
base:
  model: {layers: 8, hidden: 1024, ffn: 4096, heads: 16, vocab: 32000}
  cluster: {num_gpus: 8, gpus_per_node: 8, chips: h100}
  training: {global_batch_size: 32, sequence_length: 1024}
  search: {top: 1, pin: {cp: 1, vpp: 1, mbs: 1, flash_attention: true}}
grid:
  cluster.num_gpus: [8, 16, 32]
  training.global_batch_size: [32, 64, 96, 128]
  training.sequence_length: [512, 1024]
"""
WORDS = ("batch", "sweep.yaml", "--jobs", "2")
Rows = dict[str, dict[str, Any]]
"""Rows of a database by their key."""


def rows(folder: Path, name: str = "sweep.sqlite") -> Rows:
    """What the database has kept; nothing where it is only being made."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(folder / name)) as database:
        database.row_factory = sqlite3.Row
        return {row["key"]: dict(row) for row in database.execute("SELECT * FROM cells")}
    return {}


def prepare(folder: Path) -> None:
    """The files of a session, and what a run that nobody kills comes to."""
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    if (code := run(folder, *WORDS, "--db", "whole.sqlite")) != 0:
        raise Stuck(f"a run that nobody kills ended with exit code {code}: {output(folder)[-400:]}")


def kill_runs(folder: Path, rng: Random, most: int) -> tuple[int, list[str]]:
    """Kill the run at random moments, and start it again; how often it was there, and what was lost or went on."""
    wrong, count, before = list[str](), 0, Rows()
    for _ in range(most):
        batch = Command(folder, *WORDS)
        time.sleep(rng.uniform(0, 2.0))
        if not batch.kill():
            break
        count += 1
        if not all_gone(folder):
            wrong.append("workers went on for nobody")
        wrong += changed(before, before := rows(folder))
    return count, wrong


def kill_workers(folder: Path, rng: Random, most: int) -> tuple[int, list[str]]:
    """Kill workers at random moments while the run goes on; how often one was there, and what became of other cells."""
    batch, count = Command(folder, *WORDS), 0
    while batch.runs and count < most:
        time.sleep(rng.uniform(0, 0.6))
        workers = [one for one in left_behind(folder) if "spawn_main" in command_line(one)]
        count += bool(workers) and killed(rng.choice(workers), folder)
    batch.code()
    found = rows(folder)
    failed = [row for row in found.values() if row["status"] == "error"]
    wrong = [f"an error that is no kill: {row['error']}" for row in failed if "SIGKILL" not in str(row["error"])]
    if len(failed) > count:
        wrong.append(f"{len(failed)} cells failed of {count} kills")
    if len(found) != CELLS:
        wrong.append(f"{len(found)} rows of {CELLS} cells")
    return count, wrong


def wrong_after(folder: Path, report: Report) -> Iterator[str]:
    """Go on to the end, and say what must not be."""
    before = rows(folder)
    code = run(folder, *WORDS, "--retry-failed")
    if code != 0:
        yield f"exit code {code} of the last run: {output(folder)[-400:]}"
    after, whole = rows(folder), rows(folder, "whole.sqlite")
    report.counts["kills: cells afterwards"] += len(after)
    good = {key: row for key, row in before.items() if row["status"] != "error"}
    yield from changed(good, after)
    if _answers(after) != _answers(whole) or len(whole) != CELLS:
        yield f"{len(after)} rows, other than those of a run that nobody killed ({len(whole)})"
    if not all_gone(folder):
        yield f"processes are left: {[command_line(one) for one in left_behind(folder)][:4]}"
    yield from tracebacks(folder)


def changed(before: Rows, after: Rows) -> list[str]:
    """Rows that were kept and are lost, or were solved again."""
    changed = [key for key, row in before.items() if after.get(key) != row]
    return [f"{len(changed)} rows of {len(before)} were kept and are lost or were solved again"] if changed else []


def _answers(found: Rows) -> Rows:
    """Without what says how long it took."""
    left_out = {*EFFORT, "checksum"}
    return {key: {name: row[name] for name in row if name not in left_out} for key, row in found.items()}
