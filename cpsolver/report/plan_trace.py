"""A plan's pipeline as a trace file: its stages' times run through the exact schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cpsolver.problem import Problem
from cpsolver.report.trace import chrome_trace, write_chrome_trace
from cpsolver.result import Plan, Result
from cpsolver.timeline import plan_timeline

MOST_EVENTS = 200_000
"""The most passes that a trace file holds: what a timeline viewer still opens."""


def write_traces(problem: Problem, result: Result, folder: Path) -> Iterator[str]:
    """Write a trace of every plan; yields a line about each. Raises OSError."""
    for plan in result.plans:
        path, shown = write_plan_trace(problem, plan, folder)
        wanted = plan.strategy.microbatches(problem.batch)
        cut = f" (the first {shown:,} of {wanted:,} microbatches)" if shown < wanted else ""
        yield f"wrote {path}{cut}"


def write_plan_trace(problem: Problem, plan: Plan, folder: Path) -> tuple[Path, int]:
    """Write `plan-<rank>.json` into the folder; returns its path and how many microbatches it shows.

    A step with more than MOST_EVENTS passes is cut to its first microbatches. Raises OSError.
    """
    strategy, stages = plan.strategy, plan.evaluation.stages
    wanted, vpp = strategy.microbatches(problem.batch), strategy.vpp
    most = MOST_EVENTS // (2 * strategy.pp * vpp)
    shown = wanted if wanted <= most else max(1, most // strategy.pp) * strategy.pp
    timeline = plan_timeline(strategy, stages, shown)
    labels = [f"stage {index}: {stage.chip}, {stage.layers} layers" for index, stage in enumerate(stages)]
    metadata = {
        "model": problem.model.name,
        "rank": plan.rank,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "dp": strategy.dp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "vpp": strategy.vpp,
        "schedule": strategy.schedule,
        "microbatches": wanted,
        "microbatches_shown": shown,
        "step_time_s": plan.evaluation.step_time_s,
    }
    path = folder / f"plan-{plan.rank}.json"
    write_chrome_trace(path, chrome_trace(timeline, labels, metadata))
    return path, shown
