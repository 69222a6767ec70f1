"""Many attacks, one after the other or on several cores; the same seeds are the same attacks."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from time import monotonic

from tools.attack.findings import Report
from tools.attack.kills import sessions

Task = tuple[str, int]
KINDS = ("plans", "inputs", "relations", "kills")
BATCH = 8
"""Attacks that a worker is given at once; sessions of kills, which take a minute, one by one."""


def attack(task: Task) -> Report:
    """One attack of a kind with a seed. A number that is none is found where it is made, not where it ends up."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return _attack(*task)


def _attack(kind: str, seed: int) -> Report:
    if kind == "plans":
        from tools.attack.compare import compared

        return compared(seed)
    if kind == "inputs":
        from tools.attack.fuzz import fuzzed

        return fuzzed(seed)
    if kind == "relations":
        from tools.attack.relations import related

        return related(seed)
    from tools.attack.kills import attacked

    return attacked(seed)


def tasks(counts: dict[str, int], seed: int) -> Iterator[Task]:
    """All attacks, the kinds mixed evenly, so that minutes that run out take from all of them."""
    many = {kind: sessions(count) if kind == "kills" and count else count for kind, count in counts.items()}
    every = [((at + 0.5) / count, kind, seed + at) for kind, count in many.items() for at in range(count)]
    return ((kind, at) for _, kind, at in sorted(every))


def run(counts: dict[str, int], seed: int, minutes: float | None = None, jobs: int = 1) -> Report:
    """All these attacks, or as many as begin within so many minutes, or before Ctrl-C."""
    report = Report()
    with suppress(KeyboardInterrupt):
        _run(report, counts, seed, minutes, jobs)
    return report


def _run(report: Report, counts: dict[str, int], seed: int, minutes: float | None, jobs: int) -> None:
    end = monotonic() + 60 * minutes if minutes else float("inf")
    if jobs == 1:
        for task in tasks(counts, seed):
            if monotonic() > end:
                break
            _take(report, attack(task))
        return
    waiting, at_once = list(tasks(counts, seed)), (1 if counts.get("kills") else BATCH) * jobs
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as folder,
        ProcessPoolExecutor(jobs, get_context("spawn"), os.chdir, (folder,)) as pool,
    ):
        while waiting and monotonic() < end:
            some, waiting = waiting[:at_once], waiting[at_once:]
            for found in pool.map(attack, some):
                _take(report, found)


def _take(report: Report, found: Report) -> None:
    """What was found is told at once: a night may end early."""
    report.add(found)
    for finding in found.findings:
        print(finding, file=sys.stderr, flush=True)
