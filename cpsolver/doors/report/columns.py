"""The table of what a report says of a plan.

An entry gives the rows of the terminal's table and of the page, the fields of the JSON document and the columns that a
sweep keeps: a column of a report is added here and nowhere else (docs/adding-a-report-column.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from cpsolver.doors.report.degrees import flag_rows, schedule_rows, size_rows, size_words
from cpsolver.doors.report.goals import (
    best_role,
    chance,
    comparable,
    goal_numbers,
    goal_rows,
    likely_role,
    score_rates,
    worse_than_best,
)
from cpsolver.doors.report.interval import Interval, interval_of, ties
from cpsolver.doors.report.outlook import UNKNOWN, Outlook, days_text, outlook, total_dollars
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evidence.chances import best_chances, out_of_memory_probability
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, count, percent, seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Recommendation, Result
from hw_specs.units import bytes_to_gib


@dataclass(frozen=True)
class ShownPlan:
    """A plan as a report has it. `tie`: its interval overlaps the best plan's. `out_of_memory`: the chance that it runs
    out of memory; `fastest`: that it is truly the best of the plans shown.
    """

    title: str
    strategy: Strategy
    evaluation: Evaluation
    interval: Interval
    outlook: Outlook = UNKNOWN
    tie: bool = True
    out_of_memory: float = 0.0
    fastest: float = 1.0
    roles: tuple[str, ...] = ()


Row = tuple[str, Callable[[ShownPlan], str]]
"""A row of the table of plans: a label of at most 18 columns, and what a plan has there."""
Fields = dict[str, Any]
"""Fields of a plan in the JSON document: plain values."""


@dataclass(frozen=True)
class SweepColumn:
    """A column of a sweep's database, CSV and Parquet file; `json` columns hold a JSON text.

    `of`: its value, from the best plan's fields in the JSON document, or the field's name; None: that of the same name.
    """

    name: str
    kind: Literal["text", "int", "real", "json"]
    meaning: str
    of: Callable[[Mapping[str, Any]], Any] | str | None = None

    def value(self, plan: Mapping[str, Any]) -> Any:
        """Its value for a plan, given as in the JSON document."""
        return self.of(plan) if callable(self.of) else plan[self.of or self.name]


@dataclass(frozen=True)
class PlanFigure:
    """What is told of a plan in one place.

    `rows`: in the table of plans, given all that are shown, of which the first is the best. `fields`: in the JSON
    document. `kept`: in a sweep.
    """

    rows: Callable[[Problem, Sequence[ShownPlan]], Sequence[Row]] = lambda _problem, _plans: ()
    fields: Callable[[Problem, ShownPlan], Fields] = lambda _problem, _plan: {}
    kept: tuple[SweepColumn, ...] = ()


def shown_plan(problem: Problem, title: str, strategy: Strategy, evaluation: Evaluation) -> ShownPlan:
    """A plan with its interval, its outlook and its chance of running out of memory, under that title."""
    step_s = evaluation.step_time_s
    interval = interval_of(problem, strategy, step_s)
    risk = out_of_memory_probability(problem, strategy, evaluation)
    planned = outlook(problem, strategy, step_s, interval)
    return ShownPlan(title, strategy, evaluation, interval, planned, out_of_memory=risk)


def compared(problem: Problem, plans: Sequence[ShownPlan]) -> list[ShownPlan]:
    """Plans of one answer, with what is known of each beside the others."""
    strategies = [plan.strategy for plan in plans]
    tied = ties(comparable(problem, strategies, [plan.interval for plan in plans]))
    scores = [
        rate * plan.evaluation.step_time_s for rate, plan in zip(score_rates(problem, strategies), plans, strict=True)
    ]
    chances = best_chances(scores, [plan.evaluation for plan in plans])
    return [replace(plan, tie=tie, fastest=chance) for plan, tie, chance in zip(plans, tied, chances, strict=True)]


def shown_result(problem: Problem, result: Result) -> list[ShownPlan]:
    """The plans of a search's answer under their ranks, with their roles."""
    plans = [
        shown_plan(problem, say("plan {rank}", rank=plan.rank), plan.strategy, plan.evaluation) for plan in result.plans
    ]
    roles = role_names(problem, result)
    return [replace(plan, roles=roles[place]) for place, plan in enumerate(compared(problem, plans))]


def to_run(result: Result) -> int:
    """The place of the plan to run: the first one where none is recommended."""
    told = result.recommendation
    return told.run_this if told is not None and told.run_this is not None else 0


def role_names(problem: Problem, result: Result) -> list[tuple[str, ...]]:
    """For each plan of the answer what it is recommended as: `run this`, `fastest` (or `cheapest`, or
    `smallest`, by the objective), `safest`, `simplest`.

    Without a recommendation the first plan is the best.
    """
    told = result.recommendation or Recommendation(None, 0, None, None)
    best = {"fastest": best_role(problem)}
    names = {one.name: best.get(one.name, one.name.replace("_", " ")) for one in fields(told)}
    roles = {name: getattr(told, attribute) for attribute, name in names.items()}
    return [tuple(name for name, at in roles.items() if at == place) for place in range(len(result.plans))]


def _row(label: str, cell: Callable[[ShownPlan], str]) -> Callable[[Problem, Sequence[ShownPlan]], Sequence[Row]]:
    """One row, whatever the plans are."""
    return lambda _problem, _plans: ((say(label), cell),)


def _role_rows(_problem: Problem, plans: Sequence[ShownPlan]) -> Sequence[Row]:
    """What each plan is recommended as, where several are shown."""
    several = len(plans) > 1 and any(plan.roles for plan in plans)
    return [(say("recommended as"), lambda p: ", ".join(map(say, p.roles)) or "–")] if several else []


def _step_rows(problem: Problem, plans: Sequence[ShownPlan]) -> Sequence[Row]:
    """The step time and its interval, in the unit of the best plan's; by how much a plan falls behind that."""
    best, best_s = plans[0].strategy, plans[0].evaluation.step_time_s
    rows: list[Row] = [
        (say("step time"), lambda p: seconds(p.evaluation.step_time_s, of=best_s)),
        (say("  80 % interval"), lambda p: f"{about(p.interval.low_s, best_s)}–{about(p.interval.high_s, best_s)}"),
    ]
    if len(plans) > 1:
        label, cell = worse_than_best(problem, best, best_s)
        rows.append((label, lambda p: cell(p.strategy, p.evaluation)))
        rows.append((say("  P({role})", role=say(likely_role(problem))), lambda p: chance(p.fastest)))
    return rows


def _step_fields(_problem: Problem, plan: ShownPlan) -> Fields:
    return {
        "step_time_s": plan.evaluation.step_time_s,
        "step_time_low_s": plan.interval.low_s,
        "step_time_high_s": plan.interval.high_s,
        "interval_basis": plan.interval.basis,
        "tie_with_best": plan.tie,
        "probability_fastest": plan.fastest,
    }


def _goal_rows(problem: Problem, _plans: Sequence[ShownPlan]) -> Sequence[Row]:
    return [(label, lambda p, cell=cell: cell(p.strategy, p.evaluation)) for label, cell in goal_rows(problem)]  # type: ignore[misc]


def _outlook_rows(_problem: Problem, plans: Sequence[ShownPlan]) -> Sequence[Row]:
    """Days, dollars and the chance of being in time, as far as they are known of some plan."""

    def days(plan: ShownPlan) -> str:
        return days_text(plan.outlook.days.mean) if plan.outlook.days else "?"

    def dollars(plan: ShownPlan) -> str:
        return total_dollars(plan.outlook.dollars.mean) if plan.outlook.dollars else "?"

    def in_time(plan: ShownPlan) -> str:
        probability = plan.outlook.deadline_probability
        return "?" if probability is None else chance(probability)

    known = [plan.outlook for plan in plans]
    rows: list[Row] = [(say("days"), days)] if any(one.days for one in known) else []
    rows += [(say("$ in all"), dollars)] if any(one.dollars for one in known) else []
    rows += [(say("in time, chance"), in_time)] if any(one.deadline_probability is not None for one in known) else []
    return rows


def _range_columns(name: str, meaning: str) -> tuple[SweepColumn, ...]:
    """The mean and both ends of a plan's days or dollars; None where they are not known."""

    def part(end: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda plan: None if plan[name] is None else plan[name][end]

    return (
        SweepColumn(name, "real", f"expected {meaning}", part("mean")),
        SweepColumn(f"{name}_low", "real", "lower end of their 80 % interval", part("low")),
        SweepColumn(f"{name}_high", "real", "upper end of their 80 % interval", part("high")),
    )


def _dollars_per_hour(plan: Mapping[str, Any]) -> float | None:
    cost = plan["dollars_per_million_tokens"]
    return None if cost is None else cost * plan["throughput_tokens_per_s"] * 3600 / 1e6


def _of_strategies(
    rows: Callable[[Problem, Sequence[Strategy]], Sequence[tuple[str, Callable[[Strategy], str]]]],
) -> Callable[[Problem, Sequence[ShownPlan]], Sequence[Row]]:
    """Rows that depend on the decisions alone."""

    def of_plans(problem: Problem, plans: Sequence[ShownPlan]) -> Sequence[Row]:
        told = rows(problem, [plan.strategy for plan in plans])
        return [(label, lambda p, cell=cell: cell(p.strategy)) for label, cell in told]  # type: ignore[misc]

    return of_plans


def _memory_fields(problem: Problem, plan: ShownPlan) -> Fields:
    used = plan.evaluation.memory_bytes_by_chip
    capacity = {name: problem.capacity_bytes(problem.supply(name).chip) for name in used}
    return {
        "memory_gib": {name: bytes_to_gib(size) for name, size in used.items()},
        "capacity_gib": {name: bytes_to_gib(size) for name, size in capacity.items()},
        "out_of_memory_probability": plan.out_of_memory,
    }


def _chip_order(problem: Problem, _plans: Sequence[ShownPlan]) -> Sequence[Row]:
    order: Row = (say("chips in order"), lambda p: ", ".join(dict.fromkeys(p.strategy.stage_chips)))
    return [order] if problem.mixed else []


FIGURES = (
    PlanFigure(_role_rows),
    PlanFigure(
        _step_rows,
        _step_fields,
        (
            SweepColumn("step_time_s", "real", "predicted step time, seconds"),
            SweepColumn("step_time_low_s", "real", "lower end of its 80 % interval"),
            SweepColumn("step_time_high_s", "real", "upper end of its 80 % interval"),
        ),
    ),
    PlanFigure(
        _row("tokens/s", lambda p: count(p.evaluation.tokens_per_s)),
        lambda _, p: {"throughput_tokens_per_s": p.evaluation.tokens_per_s},
        (SweepColumn("tokens_per_s", "real", "tokens a second", "throughput_tokens_per_s"),),
    ),
    PlanFigure(
        _row(later("tokens/s per GPU"), lambda p: f"{p.evaluation.tokens_per_s_per_gpu:,.1f}"),
        lambda _, p: {"throughput_tokens_per_s_per_gpu": p.evaluation.tokens_per_s_per_gpu},
        (SweepColumn("tokens_per_s_per_gpu", "real", "tokens a second and device", "throughput_tokens_per_s_per_gpu"),),
    ),
    PlanFigure(
        _row("MFU", lambda p: percent(p.evaluation.mfu)),
        lambda _, p: {"mfu": p.evaluation.mfu},
        (SweepColumn("mfu", "real", "model FLOPs utilisation, 0 to 1"),),
    ),
    PlanFigure(
        _goal_rows,
        lambda problem, p: goal_numbers(problem, p.strategy, p.evaluation.step_time_s),
        (
            SweepColumn("dollars_per_million_tokens", "real", "dollars; empty without prices"),
            SweepColumn("dollars_per_hour", "real", "dollars an hour of the devices in use", _dollars_per_hour),
        ),
    ),
    PlanFigure(
        _outlook_rows,
        lambda _, p: p.outlook.document(),
        (
            *_range_columns("days", "days of the whole training; empty without tokens"),
            *_range_columns("dollars", "dollars of the whole training; empty without tokens or prices"),
            SweepColumn("deadline_probability", "real", "chance that the deadline is met, 0 to 1; empty without one"),
        ),
    ),
    PlanFigure(_of_strategies(lambda problem, plans: size_rows(plans, problem.model.moe is not None))),
    PlanFigure(_row(later("micro batch (mbs)"), lambda p: size_words(p.strategy, "mbs"))),
    PlanFigure(
        lambda problem, _: [(say("microbatches"), lambda p: count(p.strategy.microbatches(problem.batch)))],
        lambda problem, p: {"microbatches": p.strategy.microbatches(problem.batch)},
    ),
    PlanFigure(_row(later("chunks (vpp)"), lambda p: count(p.strategy.vpp))),
    PlanFigure(_of_strategies(lambda _, plans: schedule_rows(plans))),
    PlanFigure(_of_strategies(lambda _, plans: flag_rows(plans))),
    PlanFigure(_chip_order),
    PlanFigure(
        _row(later("P(out of memory)"), lambda p: chance(p.out_of_memory)),
        fields=_memory_fields,
        kept=(
            SweepColumn(
                "memory_share",
                "real",
                "fullest device's memory over what a plan may fill, 0 to 1",
                lambda plan: max(plan["memory_gib"][chip] / room for chip, room in plan["capacity_gib"].items()),
            ),
        ),
    ),
)
"""In the order of the rows and of the fields."""

KEPT = tuple(column for figure in FIGURES for column in figure.kept)
"""The columns that a sweep keeps of its best plan, in their order."""


def plan_rows(problem: Problem, plans: Sequence[ShownPlan]) -> list[Row]:
    """The rows of the table of plans."""
    return [row for figure in FIGURES for row in figure.rows(problem, plans)]


def plan_fields(problem: Problem, plan: ShownPlan) -> Fields:
    """A plan's figures as fields of the JSON document."""
    return {name: value for figure in FIGURES for name, value in figure.fields(problem, plan).items()}
