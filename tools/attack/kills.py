"""Processes killed and disks that are full, one session a seed: the kinds take turns."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tools.attack import batch_kills, tune_kills
from tools.attack.findings import Finding, Report
from tools.attack.processes import end_all, output, run

KILLED = ("tuner", "supervisor", "command", "batch", "worker")
KINDS = (*KILLED, "full disk, tune", "full disk, batch")
"""What a session attacks."""
AT_ONCE = 10
"""Kills of one kind in a session, or disks that are full."""
ALLOWED = {0, 2, 4}
"""Exit codes where a file cannot be written: all well all the same, bad input, nothing measured."""


def sessions(kills: int) -> int:
    """So many give about that many kills of each kind."""
    return -(-kills // AT_ONCE) * len(KINDS)


def attacked(seed: int) -> Report:
    """One session: commands killed or out of disk again and again, then let be; what is then wrong."""
    kind, report = KINDS[seed % len(KINDS)], Report()
    folder = Path(tempfile.mkdtemp(prefix="attack-")).resolve()
    try:
        wrong = list(_session(kind, folder, Random(seed), report))
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
    told = "the first session of: python -m tools.attack --plans 0 --inputs 0 --relations 0 --kills 1 --jobs 1 --seed"
    report.findings += [Finding(f"kills, {kind}", each, str(seed), f"{told} {seed}") for each in wrong]
    return report


def _session(kind: str, folder: Path, rng: Random, report: Report) -> Iterator[str]:
    of_tune = kind in ("tuner", "supervisor", "command", "full disk, tune")
    (tune_kills if of_tune else batch_kills).prepare(folder)
    kept = tune_kills.trials(folder) if of_tune else {}
    if kind == "tuner":
        count, told = tune_kills.kill_tuners(folder, rng, AT_ONCE), list[str]()
        kept = tune_kills.trials(folder)
    elif kind == "supervisor":
        count, told = tune_kills.kill_supervisors(folder, rng, AT_ONCE), []
    elif kind == "command":
        count, told = tune_kills.kill_commands(folder, rng, AT_ONCE), []
    elif kind == "batch":
        count, told = batch_kills.kill_runs(folder, rng, AT_ONCE)
    elif kind == "worker":
        count, told = batch_kills.kill_workers(folder, rng, AT_ONCE)
    else:
        count, told = _full_disks(folder, tune_kills.WORDS if of_tune else batch_kills.WORDS, rng)
    report.counts[f"kills: {kind}"] += count
    yield from told
    yield from tune_kills.wrong_after(folder, kept, report) if of_tune else batch_kills.wrong_after(folder, report)


def _full_disks(folder: Path, words: tuple[str, ...], rng: Random) -> tuple[int, list[str]]:
    """The command with a disk that is full after some bytes of a file: refused in words, or done all the same."""
    wrong = []
    for _ in range(AT_ONCE):
        most = int(10 ** rng.uniform(2, 5.5))
        code = run(folder, *words, most_bytes=most)
        if code not in ALLOWED:
            wrong.append(f"exit code {code} with files of {most} bytes at most: {output(folder)[-300:]}")
    return AT_ONCE, wrong
