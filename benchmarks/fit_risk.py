"""Fits the chances of evidence/chances.py to published runs, and writes profiles/calibrations/risk.yaml.

    python -m benchmarks.fit_risk

Student's t by greatest likelihood. Memory: log(measured / predicted) of readings, for each kind of reading; in a group
its own readings count once each and all others together as much as AS_OTHERS. Order: layouts of one task
(evidence/runs/ranking.py), each predicted without its publisher (results/left_out.csv), their common error taken out.
The table of runs that reports show beside a plan (evidence/runs/nearest_runs.csv) is written as well. To be run after
`make fit`; a test compares a few rows.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log

import click
import numpy as np
from scipy.optimize import minimize
from scipy.stats import t as student

from benchmarks.fit import SOURCES, load_left_out, publisher_of
from cpsolver.evaluation.evaluation import PARTS
from cpsolver.evidence.chances import FREEDOM, RISK, MemoryMisses, OrderMisses
from cpsolver.evidence.nearest import NEAREST, PublishedRun
from cpsolver.evidence.posterior.predictions import Floats
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan, stack_of
from cpsolver.evidence.runs.ranges import sizes_of_run
from cpsolver.evidence.runs.ranking import layout_of, task_of
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.score import Scored
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import Validation, predict, validate
from cpsolver.inputs.document import load_yaml
from hw_specs import load_chip
from models_zoo import total_parameters

FEWEST = 8
"""Readings that a stack's own group needs."""
AS_OTHERS = 8.0
"""What all readings outside a group weigh together, in readings."""
KINDS = {"count": ("allocated", "reserved"), "meter": ("device", "unstated")}
HEAD = """\
# What chances rest on (cpsolver/evidence/chances.py). Written by benchmarks/fit_risk.py: do not edit by hand.
# Of log(measured / predicted), Student's t with four degrees of freedom: middle and scale. memory: by kind of reading,
# a framework's own count or a device's meter, and by kind of model; of a stack where it has readings enough. order: of
# one layout less another of the same task, each predicted without its publisher: own, of any two; shares, for each unit
# of distance between their shares of the step's parts.
"""


@dataclass(frozen=True)
class Reading:
    """One reading of memory: log(measured / predicted), and what it belongs to."""

    off: float
    publisher: str
    stack: str
    kind: str
    model: str

    @property
    def group(self) -> str:
        """Its stack's."""
        return f"{self.stack}/{self.model}"


@dataclass(frozen=True)
class Task:
    """Layouts of one task: log(measured) and log(predicted), (layouts,), and shares of the parts, (layouts, parts)."""

    publisher: str
    measured: Floats
    predicted: Floats
    shares: Floats


@click.command()
def main() -> None:
    """Fit and write."""
    table = read_runs(PUBLISHED)
    validation = validate(table.runs, predict, troubles=table.troubles)
    write(fit_memory(readings(validation)), fit_order(tasks(validation)))
    write_nearest(table.runs, validation)
    click.echo(RISK.read_text(encoding="utf-8"))


def publishers() -> dict[str, str]:
    """Who measured each source's runs."""
    return {source: publisher_of(entry) for source, entry in load_yaml(SOURCES).data.items()}


def readings(validation: Validation) -> list[Reading]:
    """All readings of memory."""
    whose, found = publishers(), []
    for one in validation.scored:
        if one.run.peak_mem_gib is None:
            continue
        stated = one.run.peak_mem_kind or "unstated"
        kind = next(kind for kind, names in KINDS.items() if stated in names)
        off = log(one.run.peak_mem_gib / one.prediction.memory_gib)
        model = "experts" if one.run.moe_experts else "dense"
        found.append(Reading(off, whose[one.run.source], one.prediction.stack, kind, model))
    return found


def fit_memory(found: Sequence[Reading]) -> dict[str, dict[str, MemoryMisses]]:
    """Errors by kind of reading and group."""
    tables: dict[str, dict[str, MemoryMisses]] = {}
    for kind in KINDS:
        every = [each for each in found if each.kind == kind]
        stacks = sorted({each.group for each in every})
        groups: dict[str, Callable[[Reading], bool]] = {
            model: lambda each, model=model: each.model == model  # type: ignore[misc]
            for model in ("dense", "experts")
        }
        groups |= {name: lambda each, name=name: each.group == name for name in stacks}  # type: ignore[misc]
        tables[kind] = {}
        for name, belongs in groups.items():
            own = [belongs(each) for each in every]
            if name not in stacks or sum(own) >= FEWEST:
                tables[kind][name] = _memory_misses(every, own)
    return tables


def _memory_misses(every: Sequence[Reading], own: Sequence[bool]) -> MemoryMisses:
    others = len(own) - sum(own)
    weights = np.array([1.0 if mine else AS_OTHERS / max(AS_OTHERS, others) for mine in own])
    off = np.array([each.off for each in every])

    def minus(at: Floats) -> float:
        return -float(weights @ student.logpdf(off, FREEDOM, at[0], exp(at[1])))

    at = minimize(minus, [0.0, -3.0], method="Nelder-Mead").x
    return MemoryMisses(round(float(at[0]), 4), round(exp(at[1]), 4), sum(own))


def tasks(validation: Validation) -> list[Task]:
    """Every task that ran in two layouts or more; runs of one layout are averaged."""
    whose, left_out = publishers(), load_left_out()
    by_task: dict[tuple[object, ...], dict[tuple[object, ...], list[Scored]]] = {}
    for one in validation.scored:
        by_task.setdefault(task_of(one.run), {}).setdefault(layout_of(one.run), []).append(one)
    found = []
    for layouts in by_task.values():
        if len(layouts) < 2:
            continue
        measured = [np.mean([log(one.measured_s) for one in same]) for same in layouts.values()]
        off = [np.mean([left_out[one.run.id] for one in same]) for same in layouts.values()]
        parts = [np.mean([_shares(one) for one in same], axis=0) for same in layouts.values()]
        publisher = whose[next(iter(layouts.values()))[0].run.source]
        found.append(Task(publisher, np.array(measured), np.array(measured) + np.array(off), np.array(parts)))
    return found


def _shares(one: Scored) -> list[float]:
    return [one.prediction.breakdown_s[part] / one.prediction.step_time_s for part in PARTS]


def fit_order(found: Sequence[Task]) -> OrderMisses:
    """Greatest likelihood of the layouts' errors within each task, whatever they have in common."""

    def minus(at: Floats) -> float:
        return -sum(_log_likelihood(task, *np.exp(at).tolist()) for task in found)

    own, shares = np.exp(minimize(minus, [-3.0, -1.0], method="Nelder-Mead").x).tolist()
    return OrderMisses(round(own, 4), round(shares, 4), sum(len(task.measured) for task in found), len(found))


def _log_likelihood(task: Task, own: float, shares: float) -> float:
    """Of the errors' contrasts, a multivariate t, but for a constant."""
    count = len(task.measured)
    contrasts = np.linalg.svd(np.eye(count) - 1.0 / count)[0][:, : count - 1]
    off = contrasts.T @ (task.measured - task.predicted)
    whole = own**2 / 2 * np.eye(count) + shares**2 * task.shares @ task.shares.T
    factor = np.linalg.cholesky(contrasts.T @ whole @ contrasts)
    scaled = np.linalg.solve(factor, off)
    wide = (FREEDOM + count - 1) / 2
    norm = lgamma(wide) - lgamma(FREEDOM / 2) - float(np.log(np.diag(factor)).sum())
    return norm - wide * float(np.log1p(scaled @ scaled / FREEDOM))


def write(memory: dict[str, dict[str, MemoryMisses]], order: OrderMisses) -> None:
    """The file, written anew."""
    lines = [HEAD, "memory:\n"]
    for kind, groups in memory.items():
        lines.append(f"  {kind}:\n")
        for name, each in groups.items():
            lines.append(f"    {name}: {{middle: {each.middle}, scale: {each.scale}, readings: {each.readings}}}\n")
    told = f"own: {order.own}, shares: {order.shares}, layouts: {order.layouts}, tasks: {order.tasks}"
    RISK.write_text("".join([*lines, f"order: {{{told}}}\n"]), encoding="utf-8")


def write_nearest(runs: Sequence[MeasuredRun], validation: Validation) -> None:
    """The runs with a step time, as reports need them, with the predictions of those that have one."""
    predicted = {one.run.id: one for one in validation.scored}
    with NEAREST.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(PublishedRun.columns())
        for run in runs:
            if sizes_of_run(run) is not None:
                writer.writerow(nearest_row(run, predicted.get(run.id)).cells())


def nearest_row(run: MeasuredRun, scored: Scored | None) -> PublishedRun:
    """A run as reports need it."""
    sizes, chip = sizes_of_run(run), load_chip(run.chip)
    assert sizes is not None
    bare = PublishedRun(
        id=run.id,
        model=run.model,
        parameters=0.0,
        stack="",
        architecture=chip.architecture or chip.name,
        chip=run.chip,
        experts=bool(run.moe_experts),
        devices=sizes.devices,
        sequence=sizes.sequence,
        tp=sizes.degrees["tp"],
        pp=sizes.degrees["pp"],
        cp=sizes.degrees["cp"],
        ep=sizes.degrees["ep"],
        vpp=sizes.degrees["vpp"],
        measured_s=run.step_time_s or 0.0,
    )
    try:
        bare = replace(bare, stack=stack_of(run))
    except Unpredictable:
        return bare
    if scored is None:
        return bare
    bare = replace(bare, parameters=float(total_parameters(placed_plan(run).problem.model)))
    memory = None if run.peak_mem_gib is None else float(f"{scored.prediction.memory_gib:.4g}")
    step = float(f"{scored.prediction.step_time_s:.4g}")
    return replace(bare, predicted_s=step, measured_gib=run.peak_mem_gib, predicted_gib=memory)


if __name__ == "__main__":
    main()
