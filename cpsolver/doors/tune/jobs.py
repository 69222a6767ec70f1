"""From a plan to a trial that can be started: its files, its arguments, its command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import EXPORTERS, Launch, check_target, write_files
from cpsolver.doors.tune.logs import Expected
from cpsolver.doors.tune.template import ARGUMENTS, Template, values_of
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict

PLAN = "plan.json"
"""The plan's file in a trial's folder, as `apss-cp evaluate -s` reads it."""
COMMAND = "command.sh"
"""What the trial ran, as a script."""


@dataclass(frozen=True)
class Job:
    """What a trial is started with; no command where no template was given."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def script(self) -> str:
        """The same as a shell script, for running the plan again by hand."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return "\n".join(
            ["#!/bin/sh", f"cd {shlex.quote(str(Path.cwd()))}", *exports, f"exec {shlex.join(self.command)}", ""]
        )


@dataclass(frozen=True)
class JobBuilder:
    """What turns plans into jobs. `target`: what plans are exported to, None where nothing asks for it."""

    problem: Problem
    template: Template | None
    target: str | None

    def build(self, strategy: Strategy, number: int, folder: Path) -> Job:
        """Write the trial's folder: the plan, the target's files. Raises CannotExpress where it cannot run the plan."""
        launch = Launch("") if self.target is None else launch_of(self.problem, strategy, self.target)
        folder.mkdir(exist_ok=True)
        plan = folder / PLAN
        plan.write_text(json.dumps(strategy_to_dict(strategy), indent=2) + "\n", encoding="utf-8")
        write_files(str(folder), launch)
        if self.template is None:
            return Job((), launch.environment)
        values = values_of(self.problem, strategy, number, folder, plan)
        job = Job(self.template.command(values, launch.arguments), launch.environment)
        (folder / COMMAND).write_text(job.script(), encoding="utf-8")
        (folder / COMMAND).chmod(0o755)
        return job

    def expected(self, strategy: Strategy) -> Expected:
        """What the log of the plan's run must fit."""
        values = values_of(self.problem, strategy, 0, Path(), Path())
        return Expected(self.problem.batch * self.problem.sequence, strategy.devices, values)


def target_of(problem: Problem, template: Template | None, named: str | None) -> str | None:
    """What plans are exported to: as named, or the spec's launcher where it can be exported to.

    Raises InputError for an unknown one, and where the template has {arguments} and there is none.
    """
    if named is not None:
        check_target(named)
        return named
    launcher = problem.named_launcher
    if launcher is not None and launcher.name in EXPORTERS:
        return launcher.name
    if template is not None and ARGUMENTS in template.fields:
        message = later("is needed: the template has {arguments}, and the spec names no launcher")
        raise InputError(Trouble("--to", message, allowed=", ".join(sorted(EXPORTERS))))
    return None
