"""What a report says of the objective, of what plans cost and of the devices that they leave idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cpsolver.cost.schedules import equal_sizes_why
from cpsolver.doors.report.interval import Interval
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import percent, plural, seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.objective import deadline_step_s, device_prices, dollars_per_million_tokens, objective_of
from cpsolver.search.result import Proof, Verification

_BEST = {
    "throughput": later("fastest"),
    "cost": later("cheapest"),
    "fewest_chips": later("fastest on the fewest GPUs"),
}
_ROLE = {"throughput": later("fastest"), "cost": later("cheapest"), "fewest_chips": later("smallest")}
_BETTER = {"throughput": later("faster"), "cost": later("cheaper"), "fewest_chips": later("faster")}
_WORSE = {"throughput": later("slower"), "cost": later("dearer"), "fewest_chips": later("slower")}

Cell = Callable[[Strategy, Evaluation], str]


def best_word(problem: Problem) -> str:
    """The superlative of the objective: fastest."""
    return say(_BEST[problem.spec.search.objective])


def best_role(problem: Problem) -> str:
    """What the best plan by the predictions is recommended as: fastest, cheapest or smallest; in English, as a name."""
    return str(_ROLE[problem.spec.search.objective])


def likely_role(problem: Problem) -> str:
    """What the chances of plans are of: to be the fastest of those shown, or the cheapest; in English."""
    return str(_ROLE["cost" if problem.spec.search.objective == "cost" else "throughput"])


def better_word(problem: Problem) -> str:
    """Its comparative: faster."""
    return say(_BETTER[problem.spec.search.objective])


def worse_word(problem: Problem) -> str:
    """And the contrary: slower."""
    return say(_WORSE[problem.spec.search.objective])


def dollars(value: float | None) -> str:
    """Dollars to some three digits: $0.733."""
    if value is None:
        return "?"
    return f"${value:,.3f}" if value < 10 else f"${value:,.2f}"


def chance(probability: float) -> str:
    """A probability in whole percent, never as a certainty: `55 %`, `> 99 %`."""
    if probability > 0.99:
        return "> 99 %"
    return "< 1 %" if probability < 0.01 else f"{probability * 100:.0f} %"


def objective_line(problem: Problem) -> str:
    """What is asked for other than the fastest plan on all devices; empty where it is just that."""
    search, parts = problem.spec.search, []
    if search.objective == "cost":
        parts.append(say("the fewest dollars per token"))
    if search.objective == "fewest_chips":
        parts.append(say("the fewest GPUs that meet the deadline"))
    deadline, limit_s = problem.spec.deadline, deadline_step_s(problem)
    if deadline is not None and limit_s is not None:
        most = say("{limit_s} per step at most", limit_s=seconds(limit_s))
        parts.append(
            say("{tokens:.4g} tokens in {days:g} days: {most}", tokens=deadline.tokens, days=deadline.days, most=most)
        )
    if problem.may_idle:
        parts.append(say("nodes may idle"))
    return say("objective: ") + "; ".join(parts) if parts else ""


def cost_and_devices(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> str:
    """To be put behind other figures of the headline: dollars where prices are known, devices where some may idle."""
    return "".join(say(", {figure}", figure=figure) for figure in cost_figures(problem, strategy, evaluation))


def cost_figures(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> Iterator[str]:
    """The same, one by one."""
    cost = dollars_per_million_tokens(problem, strategy, evaluation.step_time_s)
    if cost is not None:
        yield say("{cost} per million tokens", cost=dollars(cost))
    if problem.may_idle:
        yield say("on {devices} of {num_gpus:,}", devices=plural(strategy.devices, "GPU"), num_gpus=problem.num_gpus)


def goal_rows(problem: Problem) -> list[tuple[str, Cell]]:
    """Rows of the plan table: dollars, devices in use and idle."""
    rows: list[tuple[str, Cell]] = []
    if device_prices(problem):
        rows.append(
            (say("$ per M tokens"), lambda s, e: dollars(dollars_per_million_tokens(problem, s, e.step_time_s)))
        )
    if problem.may_idle:
        rows.append((say("GPUs in use"), lambda s, _: f"{s.devices:,}"))
        rows.append((say("  idle"), lambda s, _: f"{problem.num_gpus - s.devices:,}"))
    return rows


def worse_than_best(problem: Problem, best: Strategy, best_s: float) -> tuple[str, Cell]:
    """The row of by how much a plan falls behind the first one, in the objective."""
    objective = replace(objective_of(problem), deadline_s=float("inf"))
    first = objective.score(best, best_s)

    def cell(strategy: Strategy, evaluation: Evaluation) -> str:
        share = objective.score(strategy, evaluation.step_time_s) / first - 1
        return say("best") if share <= 0 else f"+{percent(share)}"

    return say("  {worse} than best", worse=worse_word(problem)), cell


def comparable(problem: Problem, strategies: Sequence[Strategy], intervals: Sequence[Interval]) -> list[Interval]:
    """The intervals in the objective's unit, for telling which of them overlap."""
    pairs = zip(intervals, score_rates(problem, strategies), strict=True)
    return [replace(one, low_s=one.low_s * rate, high_s=one.high_s * rate) for one, rate in pairs]


def score_rates(problem: Problem, strategies: Sequence[Strategy]) -> list[float]:
    """What a second of each plan's step counts in the objective."""
    objective = replace(objective_of(problem), deadline_s=float("inf"))
    return [objective.score(strategy, 1.0) for strategy in strategies]


def bound_words(problem: Problem, proof: Proof) -> str:
    """The bound on what is open, in the objective's unit."""
    if problem.spec.search.objective == "cost":
        return say("{bound} per million tokens", bound=dollars(proof.bound))
    return seconds(proof.bound_s)


def counts_line(proof: Proof) -> str:
    """How many numbers of devices were considered, cut and searched; empty where nothing may idle."""
    counts = proof.device_counts
    if counts is None:
        return ""
    left = say(", {open:,} still open", open=counts.open) if counts.open else ""
    numbers = say("{considered} of GPUs in whole nodes", considered=plural(counts.considered, "number"))
    return say(
        "{numbers}: {searched:,} searched, {cut:,} cut by a bound or needless{left}",
        numbers=numbers,
        searched=counts.searched,
        cut=counts.cut,
        left=left,
    )


def meshes_line(problem: Problem, proof: Proof) -> str:
    """How far the search over degrees by chip type went; empty where none is asked for."""
    counts = proof.meshes
    if counts is None:
        return say("degrees by chip type are still to be looked at") if problem.degrees_by_chip else ""
    left = say(", {open:,} parts of them still open", open=counts.open) if counts.open else ""
    return say(
        "degrees by chip type: {options:,} ways for a chip type to serve stages, {combined:,} of "
        "their combinations bounded one by one, {bounded:,} as plans, {solved:,} solved{left}",
        options=counts.options,
        combined=counts.combined,
        bounded=counts.bounded,
        solved=counts.solved,
        left=left,
    )


def sizes_line(problem: Problem, proof: Proof) -> str:
    """How far the search over microbatches of different sizes went, or why there was none though it is asked for."""
    if why := equal_sizes_why(problem):
        return say("microbatches of different sizes are not looked for: {why}", why=why)
    counts = proof.sizes
    if counts is None:
        return ""
    left = say(", {open:,} of them still open", open=counts.open) if counts.open else ""
    return say(
        "microbatches of different sizes: {rows:,} of these candidates may have them, in {sequences:,} sequences; all "
        "but {searched:,} cut by a lower bound, these searched over sequences and layers with {run:,} schedules run "
        "event by event{left}",
        rows=counts.rows,
        sequences=counts.sequences,
        searched=counts.searched,
        run=counts.run,
        left=left,
    )


def by_events_line(proof: Proof) -> str:
    """What the schedule run event by event says of plans that it has the last word on; empty where there are none."""
    counts = proof.by_events
    if counts is None:
        return ""
    return say(
        "order by the schedule run event by event: {run}, each with its best layers; no other is "
        "faster so than the first, unless its formula is {within} or more above it; the order of "
        "the others is of these plans alone",
        run=plural(counts.run, "plan"),
        within=percent(counts.within),
    )


def verification_line(told: Verification | None) -> str:
    """What a second opinion came to; empty where none was asked for."""
    if told is None:
        return ""
    close = {"plans": plural(told.plans, "plan"), "margin": percent(told.margin)}
    model = (
        say(
            "{models:,} CP-SAT models of all {plans} with bounds up to {margin} beyond it ", models=told.models, **close
        )
        if told.models > 1
        else say("one CP-SAT model of all {plans} with bounds up to {margin} beyond it ", **close)
    )
    model += (
        say(
            "({variables:,} variables, {constraints:,} constraints)",
            variables=told.variables,
            constraints=told.constraints,
        )
        if told.plans
        else ""
    )
    drawn = say(
        "{sampled} drawn from all and solved apart, {solved:,} of them with a plan",
        sampled=plural(told.sampled, "candidate"),
        solved=told.solved,
    )
    left = say("; not looked at: {left_out}", left_out="; ".join(told.left_out)) if told.left_out else ""
    looked = f"{f'{model}, and ' if told.plans else ''}{drawn}"
    words = {
        "confirmed": say("a second opinion agrees: {looked}{left}", looked=looked, left=left),
        "unfinished": say(
            "a second opinion was not finished; what it looked at agrees: {looked}{left}", looked=looked, left=left
        ),
        "not verified": say("no second opinion: {left_out}", left_out="; ".join(told.left_out)),
        "contradicted": say("A SECOND OPINION CONTRADICTS THIS: {findings}", findings="; ".join(told.findings)),
    }
    return words[told.verdict]


def fewest_line(problem: Problem, plans: Sequence[Strategy], probability: float | None) -> str:
    """That fewer devices will not do; empty for other objectives. `probability`: that the first plan is in time.

    The proof is about predicted times, and the least number of devices often meets the deadline only just.
    """
    if problem.spec.search.objective != "fewest_chips" or not plans or probability is None:
        return ""
    least = plural(plans[0].devices, "GPU")
    return say(
        "Proven of predicted times: no plan on fewer than {least} meets the deadline. The chance "
        "that these {devices:,} do is {probability}.",
        least=least,
        devices=plans[0].devices,
        probability=chance(probability),
    )


def objective_document(problem: Problem) -> dict[str, Any]:
    """The objective in JSON's terms."""
    deadline, limit = problem.spec.deadline, deadline_step_s(problem)
    return {
        "objective": problem.spec.search.objective,
        "objective_unit": objective_of(problem).unit,
        "tokens": problem.spec.tokens,
        "deadline": None if deadline is None else {**deadline.model_dump(), "step_time_s": limit},
        "idle": problem.may_idle,
        "dollars_per_device_hour": device_prices(problem) or None,
    }


def goal_numbers(problem: Problem, strategy: Strategy, step_s: float) -> dict[str, Any]:
    """A plan's devices and cost in JSON's terms; null where no price is known."""
    return {
        "devices": strategy.devices,
        "idle_devices": problem.num_gpus - strategy.devices,
        "dollars_per_million_tokens": dollars_per_million_tokens(problem, strategy, step_s),
    }
