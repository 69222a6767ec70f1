"""The published runs nearest to a plan: what they were, measured against predicted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from cpsolver.doors.report.cluster import changes_lines, network_lines
from cpsolver.doors.report.layout import figure_table
from cpsolver.evidence.nearest import PublishedRun, nearest_runs
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

TITLE = later("Evidence: the published runs nearest to it")
_NAME = 16
"""So many characters of a model's name are shown."""


def evidence(problem: Problem, strategy: Strategy) -> list[RenderableType]:
    """A line a run: model, chips, sequence, layout; step time measured, and how far off the prediction is.

    Then how the cluster differs from theirs: chips with other cards, and the network that the spec names.
    """
    runs = nearest_runs(problem, strategy)
    table = figure_table(say("run"), "tp·pp·cp·ep", "vpp", say("measured"), say("predicted"))
    for run in runs:
        told = say(
            "{model}, {devices:,} {chip}, seq {sequence:,}",
            model=run.model if len(run.model) <= _NAME else f"{run.model[: _NAME - 1].rstrip()}…",
            devices=run.devices,
            chip=run.chip,
            sequence=run.sequence,
        )
        degrees = "·".join(str(degree) for degree in (run.tp, run.pp, run.cp, run.ep))
        off = (run.predicted_s or 0.0) / run.measured_s - 1
        table.add_row(told, degrees, str(run.vpp), seconds(run.measured_s), f"{off * 100:+.0f} %")
    cluster = [*changes_lines(problem), *network_lines(problem)]
    return [table, Text(_origin(problem, runs), style="dim"), *cluster]


def _origin(problem: Problem, runs: Sequence[PublishedRun]) -> str:
    stacks = ", ".join(dict.fromkeys(run.stack for run in runs))
    ids = ", ".join(run.id for run in runs)
    return say(
        "Rows {ids} of the table of published runs, of {stacks} (the plan: {name}).",
        ids=ids,
        stacks=stacks,
        name=problem.stack.name,
    )
