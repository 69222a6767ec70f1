"""A sweep from its file to its rows: what the database has is taken from there, the rest is solved and kept."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path

from cpsolver.doors.batch.cases import SweepCase, make_cases
from cpsolver.doors.batch.lines import Done
from cpsolver.doors.batch.on_ray import RAY_FAILURES, check_ray, solve_on_ray
from cpsolver.doors.batch.pool import FAILURES, CellOutcome, CellTask, cores, solve_in_processes
from cpsolver.doors.batch.progress import Meter
from cpsolver.doors.batch.rows import Row, new_row
from cpsolver.doors.batch.store import Store
from cpsolver.doors.batch.sweep import Sweep, load_sweep
from cpsolver.inputs.language import retold
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_overlay


@dataclass(frozen=True)
class SweepRequest:
    """What to run, where to keep it and on what. `db` None: beside the sweep file; `jobs` None: all cores.

    `calibration`: an overlay's file, for all cells.
    """

    sweep: str
    db: str | None = None
    jobs: int | None = None
    time_limit_s: float | None = None
    on: str | None = None
    ray_address: str | None = None
    retry_failed: bool = False
    calibration: str | None = None


@dataclass(frozen=True)
class SweepAnswer:
    """A sweep's cells, each with its row (None: not solved, for it was stopped).

    `solved` cells were solved by this run in `seconds`; the others were in the database. `damaged`: those, counted
    from 1, whose rows there were not as they had been written, so that they were solved again.
    """

    sweep: Sweep
    cases: tuple[SweepCase, ...]
    rows: tuple[Row | None, ...]
    database: str
    solved: int
    seconds: float
    interrupted: bool = False
    damaged: tuple[int, ...] = ()

    @property
    def done(self) -> tuple[tuple[SweepCase, Row], ...]:
        """The cells that have a row."""
        return tuple((case, row) for case, row in zip(self.cases, self.rows, strict=True) if row is not None)


def database_path(request: SweepRequest) -> str:
    """Where the results are kept: as told, or the sweep file's name with the ending .sqlite."""
    if request.db is not None:
        return request.db
    return "sweep.sqlite" if request.sweep == "-" else str(Path(request.sweep).with_suffix(".sqlite"))


def run_batch(request: SweepRequest) -> SweepAnswer:
    """Solve what is not in the database yet; Ctrl-C stops with what is done, all of it kept.

    Raises InputError for a sweep file that is wrong, a database that cannot be used and a Ray that does not answer.
    """
    sweep = load_sweep(request.sweep)
    return run_cases(sweep, cases_of(sweep, request), request)


def cases_of(sweep: Sweep, request: SweepRequest) -> list[SweepCase]:
    """The cells as the request has them solved. Raises InputError for what is wrong in all of them."""
    overlay = None if request.calibration is None else load_overlay(request.calibration)
    return make_cases(sweep, request.time_limit_s, overlay)


def run_cases(sweep: Sweep, cases: Sequence[SweepCase], request: SweepRequest) -> SweepAnswer:
    """As `run_batch`, of cells that are there."""
    path = database_path(request)
    with Store(path) as store:
        rows, tasks = _known(store, cases, request)
        began = time.monotonic()
        solved, interrupted = _solve(store, cases, tasks, rows, request)
        found = tuple(None if case.key in interrupted else rows.get(case.key) for case in cases)
        damaged = tuple(place for place, case in enumerate(cases, 1) if case.key in store.damaged)
    spent = time.monotonic() - began
    return SweepAnswer(sweep, tuple(cases), found, path, solved, spent, bool(interrupted), damaged)


def cells_as_known(cases: Sequence[SweepCase], request: SweepRequest) -> Generator[Done]:
    """Each cell with its row, those of the database first, the others as they are solved, each kept before it is given.

    Close the iterator to stop. Raises InputError as `run_batch` does.
    """
    with Store(database_path(request)) as store:
        rows, tasks = _known(store, cases, request)
        waiting = {task.key for task in tasks}
        yield from ((case, rows[case.key]) for case in cases if case.key not in waiting)
        with closing(_solved(store, cases, tasks, rows, request)) as solved:
            for key in solved:
                yield from ((case, rows[key]) for case in cases if case.key == key)


def _known(store: Store, cases: Sequence[SweepCase], request: SweepRequest) -> tuple[dict[str, Row], list[CellTask]]:
    """The rows that are there or need no search, and what is to be solved."""
    rows = store.get(case.key for case in cases)
    tasks = open_tasks(cases, rows, request.retry_failed)
    if tasks and request.on == "ray":
        check_ray(request.ray_address)
    for case in cases:
        if case.problem is None:
            rows[case.key] = new_row(case)
            store.put(rows[case.key])
    return rows, tasks


def _solve(
    store: Store, cases: Sequence[SweepCase], tasks: Sequence[CellTask], rows: dict[str, Row], request: SweepRequest
) -> tuple[int, set[str]]:
    """Solve the tasks, each row into the database and into `rows`; how many, and the keys left when stopped."""
    left = {task.key for task in tasks}
    try:
        with closing(_solved(store, cases, tasks, rows, request)) as solved:
            for key in solved:
                left.discard(key)
    except KeyboardInterrupt:
        return len(tasks) - len(left), left
    return len(tasks), set()


def _solved(
    store: Store, cases: Sequence[SweepCase], tasks: Sequence[CellTask], rows: dict[str, Row], request: SweepRequest
) -> Generator[str]:
    """The keys of tasks as they are solved, each row in the database and in `rows` by then."""
    first = {case.key: case for case in reversed(cases)}
    limits = {task.key: {"time_limit_s": task.problem.spec.search.time_limit_s} for task in tasks}
    with Meter(len(first), len(first) - len(tasks)) as meter, closing(_outcomes(tasks, request)) as outcomes:
        for outcome in outcomes:
            row = new_row(first[outcome.key]) | limits[outcome.key] | outcome.columns
            if row["status"] != "error" or outcome.key not in rows:  # a failed second try loses no answer
                store.put(row)
                rows[outcome.key] = row
            meter(row["status"] == "error")
            yield outcome.key


def _outcomes(tasks: Sequence[CellTask], request: SweepRequest) -> Generator[CellOutcome]:
    if not tasks:
        return
    if request.on == "ray":
        yield from solve_on_ray(tasks, request.jobs, request.ray_address)
    else:
        yield from solve_in_processes(tasks, request.jobs or cores())


def open_tasks(cases: Sequence[SweepCase], rows: dict[str, Row], retry_failed: bool) -> list[CellTask]:
    """What is to be solved, in the order of the file, each problem once however many cells ask for it.

    Cells that differ in nothing but their time limit are one problem: the longest limit counts.
    """
    tasks: dict[str, CellTask] = {}
    for case in cases:
        if case.problem is None or not _is_open(case, rows.get(case.key), retry_failed):
            continue
        known = tasks.get(case.key)
        if known is None or _limit_s(case.problem) > _limit_s(known.problem):
            tasks[case.key] = CellTask(case.key, case.problem)
    return list(tasks.values())


def _limit_s(problem: Problem) -> float:
    limit = problem.spec.search.time_limit_s
    return inf if limit is None else limit


def _is_open(case: SweepCase, row: Row | None, retry_failed: bool) -> bool:
    if row is None:
        return True
    if row["status"] == "error":
        return retry_failed
    assert case.problem is not None
    had, has = row["time_limit_s"], case.problem.spec.search.time_limit_s
    # what ran into its time limit gets another try with a longer one; what is proven stays so under any
    return row["status"] in ("feasible", "unknown") and had is not None and (has is None or has > had)


def error_text(case: SweepCase, row: Row) -> str | None:
    """What is wrong with a cell's spec, or what went wrong when it was solved, in the language spoken."""
    error = row["error"]
    if error is None or error == case.error:
        return case.told
    return retold(error, (*FAILURES, *RAY_FAILURES))
