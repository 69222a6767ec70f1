"""From cells to problems: each with the key of its row, or with what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cpsolver.doors.batch.fields import overlap
from cpsolver.doors.batch.sweep import Cell, Sweep
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import ENGLISH, speaking, spoken
from cpsolver.problem.load import problem_from
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import Overlay

_ROOMS = ("inputs", "plans", "profiles", "spec", "problem", "cost", "evaluation", "rules", "search", "explanation")
_ANSWERS = ("doors/report/columns.py", "doors/report/document.py", "doors/report/goals.py")
_CODE: dict[str, tuple[str, ...]] = {
    "cpsolver": (
        *(f"{room}/**/*.py" for room in _ROOMS),
        *("profiles/*.yaml", "profiles/calibrations/*.yaml"),
        *("evidence/intervals.py", "evidence/posterior/*.py", *_ANSWERS),
    ),
    "models_zoo": ("*.py",),
    "hw_specs": ("*.py",),
}
"""Package -> files that decide what a row says; the catalogues' own data are in a row's key (`problem_key`)."""


@dataclass(frozen=True)
class SweepCase:
    """A cell ready to be solved. `key` names its row; `problem` is None where `error` says what is wrong.

    `error` is kept, and in English; `told` says the same in the language spoken.
    """

    cell: Cell
    key: str
    data: Mapping[str, Any]
    problem: Problem | None
    error: str | None = None
    told: str | None = None


@lru_cache
def product_version() -> str:
    """The product's version and a digest of the cost model's, the rules' and the search's code: `0.1.0+1f2e3d4c`.

    Rows of another version are another's answers; the digest tells versions apart between releases.
    """
    try:
        released = version("apss-cp")
    except PackageNotFoundError:
        released = "0"
    digest = hashlib.sha256()
    for package, patterns in _CODE.items():
        root = Path(str(import_module(package).__file__)).parent
        for file in sorted({file for pattern in patterns for file in root.glob(pattern)}):
            digest.update(f"{package}/{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return f"{released}+{digest.hexdigest()[:8]}"


def make_cases(sweep: Sweep, time_limit_s: float | None = None, overlay: Overlay | None = None) -> list[SweepCase]:
    """Every cell's case, in order. `time_limit_s` replaces that of the specs; `overlay`: learnt constants.

    Raises InputError with what is wrong with the base spec, whatever the cells set: in all cells the same.
    """
    wrong: dict[int, list[Trouble]] = {}
    cases = []
    for place, cell in enumerate(sweep.cells):
        data = sweep.data(cell)
        if time_limit_s is not None and isinstance(data.get("search", {}), Mapping | None):
            data = {**data, "search": {**(data.get("search") or {}), "time_limit_s": time_limit_s}}
        found = _read(sweep, cell, data, overlay)
        if isinstance(found, Problem):
            cases.append(SweepCase(cell, problem_key(found), data, found))
            continue
        wrong[place] = found
        told = kept = "; ".join(map(str, found))
        if spoken() != ENGLISH:
            with speaking(ENGLISH):
                again = _read(sweep, cell, data, overlay)
                kept = told if isinstance(again, Problem) else "; ".join(map(str, again))
        key = "x" + _digest(data)[1:]  # of the values as they are written
        cases.append(SweepCase(cell, key, data, None, kept, told))
    if len(wrong) == len(cases):
        _check_base(sweep.cells, wrong)
    return cases


def _read(sweep: Sweep, cell: Cell, data: Mapping[str, Any], overlay: Overlay | None) -> Problem | list[Trouble]:
    """A cell's problem, or what is wrong with it, in the order of the file."""
    try:
        return problem_from(data, None, sweep.folder, overlay)
    except InputError as error:
        located = (sweep.located(trouble, cell) for trouble in error.troubles)
        return sorted(located, key=lambda trouble: (trouble.line or 0, trouble.column or 0))


def _check_base(cells: Sequence[Cell], wrong: Mapping[int, Sequence[Trouble]]) -> None:
    """Raise what is wrong in every cell and is at no field that one of them sets."""

    def at(trouble: Trouble) -> tuple[str, str]:
        return trouble.where, trouble.message

    shared = set.intersection(*({at(trouble) for trouble in troubles} for troubles in wrong.values()))
    paths = {setting.path for cell in cells for setting in cell.settings}
    found = [
        trouble
        for trouble in wrong[0]
        if at(trouble) in shared and not any(overlap(path, tuple(map(str, trouble.path))) for path in paths)
    ]
    if found:
        raise InputError(found)


def problem_key(problem: Problem) -> str:
    """A stable name for a problem with all names looked up: the same for the same answer, whoever asks.

    What the model, the chips, the stack and the launcher are counts, not what they are called or in which file they
    are; the time limit does not count: a proven answer is the same under any.
    """
    spec = problem.spec.model_dump(mode="json")
    spec["model"] = problem.model.model_dump(mode="json")
    spec["cluster"]["chips"] = [[supply.limit, supply.chip.model_dump(mode="json")] for supply in problem.supplies]
    if problem.network is not None:  # what a preset says now, whatever it is called
        spec["cluster"]["network"]["preset"] = problem.network.figures.model_dump(mode="json")
    spec["stack"] = problem.stack.model_dump(mode="json")
    spec["launcher"] = problem.launcher and problem.launcher.model_dump(mode="json")
    spec["search"].pop("time_limit_s")
    if problem.overlay is not None:  # the chips and the stack have its constants; intervals take in the runs too
        spec["overlay"] = problem.overlay.model_dump(mode="json", exclude={"created", "runs_file"})
    return _digest(spec)


def _digest(value: Any) -> str:
    text = json.dumps([product_version(), value], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
