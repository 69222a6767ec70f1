"""One cell solved, wherever that happens: in a process of the pool, or as a task of Ray."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from cpsolver.doors.batch.rows import Row, figures
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class Task:
    """What a worker is given: the row's key and the problem, all names looked up, so that it needs no files."""

    key: str
    problem: Problem


@dataclass(frozen=True)
class Outcome:
    """What comes back: the columns that the answer gives."""

    key: str
    columns: Row


def solve(task: Task) -> Outcome:
    """The answer to a cell by the search that `solve` uses; whatever goes wrong is status error, never an exception."""
    began, cpu = time.monotonic(), time.process_time()
    try:
        columns = _answer(task.problem)
    except MemoryError:
        columns = failure("out of memory: fewer --jobs leave more for each cell")
    except Exception as error:
        columns = failure(f"this is a bug in apss-cp: {type(error).__name__}: {error}")
    spent = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    return Outcome(task.key, columns | spent)


def failure(message: str) -> Row:
    """The columns of a cell that has no answer."""
    return {"status": "error", "error": message}


def _answer(problem: Problem) -> Row:
    from cpsolver.doors.report.document import dumps_line, result_document
    from cpsolver.explanation.account import solve as answer

    # as JSON has it: no infinity, no NaN, no tuples
    return figures(json.loads(dumps_line(result_document(problem, answer(problem)))))
