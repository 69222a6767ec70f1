"""Replays `apss-cp tune` on published runs: how many trials until the best measured layout is found.

    python -m benchmarks.tune_replay [--seeds N] [--save]

Every task that was run in five layouts or more is a cluster whose only layouts are those that were measured; a trial of
one gives its published step time (the mean, where it was measured several times). The constants are those of a fit that
has not seen the task (results/withheld.yaml, written by benchmarks/withhold.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

import click
import numpy as np
from ruamel.yaml import YAML

from benchmarks.fit_model import calibration, load_free
from benchmarks.withhold import OUTPUT as WITHHELD
from cpsolver.doors.tune.candidates import CandidatePlans
from cpsolver.doors.tune.choosers import ChooserSettings
from cpsolver.doors.tune.thompson import ThompsonChooser
from cpsolver.doors.tune.trial import Proposal, Trial
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.posterior import Posterior
from cpsolver.evidence.posterior.predictions import Floats, PlacedPlan
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.ranking import layout_of
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

HERE = Path(__file__).parent
RESULT = HERE / "results" / "tune_replay.md"
CLOSE = 1.05
GROUPS = " on "
"""What the names of tasks have, and those of chips and stacks have not."""


@dataclass(frozen=True)
class Task:
    """A task with the layouts that were measured, and their step times in seconds."""

    name: str
    problem: Problem
    measured: dict[Strategy, float]

    @cached_property
    def by_prediction(self) -> list[Strategy]:
        """The layouts, those predicted fastest first."""
        return sorted(self.measured, key=lambda plan: evaluate(self.problem, plan).step_time_s)

    def trials_needed(self, order: Sequence[Strategy]) -> tuple[int, int]:
        """Trials in that order until the best is found, and until one within 5 % of it is."""
        best = min(self.measured.values())
        seconds = [self.measured[plan] for plan in order]
        close = next(at for at, value in enumerate(seconds, 1) if value <= CLOSE * best)
        return seconds.index(best) + 1, close


class Measured(CandidatePlans):
    """The layouts of a task in the place of what searches find: all of them run, for they did."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._placed = {plan: PlacedPlan(task.problem, plan) for plan in task.measured}

    def placed(self, strategy: Strategy) -> PlacedPlan:
        """A layout with its problem."""
        return self._placed[strategy]

    def search(self, posterior: Posterior, positions: Floats | None = None) -> list[Strategy]:
        """All of them."""
        return list(self._placed)

    def legal(self, posterior: Posterior, keep: Sequence[Strategy]) -> list[Strategy]:
        """All of them."""
        return [*keep, *(plan for plan in self._placed if plan not in keep)]


def tasks() -> Iterator[Task]:
    """Those that withheld.yaml has, each with the constants that have not seen it."""
    runs = {run.id: run for run in read_runs(PUBLISHED).runs}
    free = load_free(HERE / "fit_constants.yaml")
    for entry in YAML(typ="safe").load(WITHHELD.read_text(encoding="utf-8")):
        if GROUPS not in str(entry["name"]):
            continue
        found = calibration(free, np.array(entry["positions"], dtype=np.float64))
        layouts: dict[object, list[MeasuredRun]] = {}
        for name in entry["runs"]:
            layouts.setdefault(layout_of(runs[name]), []).append(runs[name])
        cases = [placed_plan(same[0]) for same in layouts.values()]
        times = [statistics.fmean(run.step_time_s or 0.0 for run in same) for same in layouts.values()]
        plans = {case.strategy: time for case, time in zip(cases, times, strict=True)}
        yield Task(str(entry["name"]), cases[0].problem.with_constants(found), plans)


def thompson_order(task: Task, seed: int) -> list[Strategy]:
    """The layouts in the order in which the tuner tries them, when nothing stops it."""
    settings = ChooserSettings(gain=0.0, chance=0.0, seed=seed)
    chooser, trials = ThompsonChooser(task.problem, settings, candidates=Measured(task)), list[Trial]()
    while isinstance(proposal := chooser.next(trials), Proposal):
        trials.append(_trial(len(trials) + 1, proposal, task.measured[proposal.strategy]))
    left = [plan for plan in task.by_prediction if plan not in {trial.strategy for trial in trials}]
    return [*(trial.strategy for trial in trials), *left]


def _trial(number: int, proposal: Proposal, seconds: float) -> Trial:
    expected = (proposal.predicted_s, proposal.low_s, proposal.high_s)
    told = (number, proposal.strategy, "ok", seconds, None, None, seconds, "", Path(), proposal.why)
    return Trial(*told, *expected)  # type: ignore[arg-type]


def random_order(task: Task, seed: int) -> list[Strategy]:
    """The layouts shuffled."""
    plans = list(task.measured)
    Random(seed).shuffle(plans)
    return plans


Orders = dict[str, Callable[[Task, int], list[Strategy]]]
POLICIES: Orders = {
    "thompson": thompson_order,
    "in the order of predictions": lambda task, seed: task.by_prediction,
    "random order": random_order,
}


def needed(task: Task, policy: str, seeds: int) -> tuple[float, float]:
    """Median over seeds of the trials until the best, and until one within 5 %."""
    found = [task.trials_needed(POLICIES[policy](task, seed)) for seed in range(seeds)]
    return statistics.median(one for one, _ in found), statistics.median(close for _, close in found)


@click.command()
@click.option("--seeds", default=9, show_default=True, help="How often what is drawn is drawn.")
@click.option("--save", is_flag=True, help=f"Write {RESULT.relative_to(HERE.parent)}.")
def main(seeds: int, save: bool) -> None:
    """Print, for each task and way of choosing, the trials that were needed."""
    counts = {"thompson": seeds, "in the order of predictions": 1, "random order": 101}
    lines = [
        "Trials until the best measured layout, and until one within 5 % of it (medians over seeds).",
        "",
        "| task | layouts | " + " | ".join(POLICIES) + " |",
        "|---|---|" + "---|" * len(POLICIES),
    ]
    table: dict[str, list[tuple[float, float]]] = {name: [] for name in POLICIES}
    for task in tasks():
        for name in POLICIES:
            table[name].append(needed(task, name, counts[name]))
        cells = " | ".join(_cell(*table[name][-1]) for name in POLICIES)
        lines.append(f"| {task.name} | {len(task.measured)} | {cells} |")
        click.echo(lines[-1], err=True)
    middles = (
        _cell(statistics.median(a for a, _ in found), statistics.median(b for _, b in found))
        for found in table.values()
    )
    lines.append("| **median of the tasks** | | " + " | ".join(middles) + " |")
    click.echo("\n".join(lines))
    if save:
        head = "# The tuner replayed on published runs\n\nWritten by `python -m benchmarks.tune_replay --save`.\n\n"
        RESULT.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _cell(best: float, close: float) -> str:
    return f"{best:g}, {close:g}"


if __name__ == "__main__":
    main()
