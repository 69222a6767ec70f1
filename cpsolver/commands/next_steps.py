"""What to do after a search: commands that work as they stand, with the plan to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpsolver import Problem, Result

_PLANS = "plans.json"
_LONGER = 10
"""So many times the time that found no plan may find one."""


@dataclass(frozen=True)
class Given:
    """What a command was given: the spec's file, --calibration, options that replace what the spec says (None: not
    given), and for `plan` the words that the spec is to be written from.
    """

    spec: str
    calibration: str | None = None
    wishes: Mapping[str, float | None] = field(default_factory=dict)
    line: Sequence[str] = ()

    @property
    def options(self) -> list[str]:
        """The options as words."""
        return [word for flag, value in self.wishes.items() if value is not None for word in (flag, f"{value:g}")]

    def command(self, *words: str) -> str:
        """A command that is taken by a shell, with the calibration."""
        more = [] if self.calibration is None else ["--calibration", self.calibration]
        return shlex.join(["apss-cp", *words, *more])


def next_steps(problem: Problem, result: Result, given: Given) -> list[str]:
    """Commands in their order: the spec written, the plan to run exported, wishes explained, the whole report.

    Options of `solve` that `export` has not got are kept by a file of plans between the two.
    """
    steps, wishes = [], given.options
    if given.line:
        steps.append(given.command("plan", *given.line, *wishes, "--write-spec", given.spec))
        wishes = []  # the spec that is written has them
    if result.plans:
        steps += _export(problem, result, given, wishes)
    elif result.status == "unknown":
        longer = {**given.wishes, "--time-limit": _LONGER * (problem.spec.search.time_limit_s or 1)}
        return [*steps, given.command("solve", given.spec, *replace(given, wishes=longer).options)]
    return [*steps, given.command("explain", given.spec), given.command("solve", given.spec, *wishes, "--full")]


def _export(problem: Problem, result: Result, given: Given, wishes: Sequence[str]) -> Iterator[str]:
    from cpsolver.doors.export.judge import usual_target
    from cpsolver.doors.report.columns import to_run

    place = to_run(result)
    target = usual_target(problem, result.plans[place].strategy)
    rank = ["--plan-rank", str(place + 1), "-o", "launch"]
    if target is None:
        return
    if wishes:
        yield given.command("solve", given.spec, *wishes, "--json", "-o", _PLANS)
        rank = ["--plan", _PLANS, *rank]
    yield given.command("export", given.spec, "--to", target, *rank)
