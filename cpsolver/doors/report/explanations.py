"""What `check` and `explain` say: for people and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.cost.schedules import searches_sizes
from cpsolver.doors.report.advice import advice_document, advice_report, nothing_gains
from cpsolver.doors.report.document import problem_document, versions
from cpsolver.doors.report.goals import better_word, cost_and_devices, worse_word
from cpsolver.doors.report.interval import interval_of
from cpsolver.doors.report.layout import item, section
from cpsolver.doors.report.open_switches import TITLE, open_document, open_line, switches_table
from cpsolver.doors.report.operators import (
    differing_table,
    matrices_notes,
    operators_table,
    operators_title,
)
from cpsolver.doors.report.text import part_name
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.explanation.account import Account
from cpsolver.explanation.advice import Advice
from cpsolver.explanation.cause import Explanation
from cpsolver.explanation.changes import Remedy
from cpsolver.explanation.closest import strategy_text
from cpsolver.explanation.favourite import Favourite
from cpsolver.explanation.open_switches import OpenSwitches, open_switches
from cpsolver.explanation.remedies import Prices
from cpsolver.inputs.errors import dotted
from cpsolver.inputs.language import say
from cpsolver.inputs.text import percent, seconds
from cpsolver.plans.strategy import SEARCHED_SCHEDULES, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.rules import RULES, STRUCTURE, Violation
from cpsolver.search.result import Plan
from cpsolver.spec.spec import Spec
from hw_specs.units import bytes_to_gib

_PART = 0.002  # a part of a step whose difference is smaller than this share of it is not shown

# check


def check_report(strategy: Strategy, broken: Sequence[Violation], evaluation: Evaluation | None) -> RenderableType:
    """The broken rules with their numbers, the others by name, and how full each stage's devices are."""
    named = list(dict.fromkeys(found.rule for found in broken))
    parts: list[RenderableType] = [Text(strategy_text(strategy), style="bold"), *_fullness(evaluation)]
    asked = [name for name in RULES if evaluation is not None or name in STRUCTURE]
    kept = [name for name in asked if name not in named]
    parts.append(Text(say("Kept: {kept}.", kept=", ".join(kept)), style="dim"))
    if len(asked) < len(RULES):
        parts.append(Text(say("Memory is not judged: the sizes do not add up."), style="dim"))
    if not broken:
        return Group(*parts, Text(say("Legal: all {rules} rules are kept.", rules=len(RULES)), style="bold green"))
    verdict = Text(
        say("Not legal: {named} of {rules} rules broken.", named=len(named), rules=len(RULES)), style="bold red"
    )
    return Group(*parts, verdict, *(Text(f"- {found}", style="red") for found in broken))


def _fullness(evaluation: Evaluation | None) -> Iterator[Text]:
    for index, stage in enumerate(evaluation.stages if evaluation else ()):
        share = stage.memory.total / stage.capacity_bytes
        need, room = bytes_to_gib(stage.memory.total), bytes_to_gib(stage.capacity_bytes)
        told = say("{need:.1f} of {room:.1f} GiB ({share})", need=need, room=room, share=percent(share))
        yield Text(
            say("stage {index} on {chip}: {told}", index=index, chip=stage.chip, told=told),
            style="dim" if share <= 1 else "red",
        )


def check_document(strategy: Strategy, broken: Sequence[Violation]) -> dict[str, Any]:
    """What `check --json` prints."""
    return {
        "legal": not broken,
        "strategy": strategy_to_dict(strategy),
        "rules": {name: [found.message for found in broken if found.rule == name] for name in RULES},
    }


# explain: a spec


def account_report(account: Account) -> RenderableType:
    """Why there is no plan, or what the spec's wishes cost and what small changes gain."""
    if account.prices is None or account.advice is None:
        return Text("\n".join(account.reasons))
    return prices_report(account.problem, account.result.plans[0], account.prices, account.advice)


def account_document(account: Account) -> dict[str, Any]:
    """The same for machines."""
    if account.prices is not None and account.advice is not None:
        return prices_document(account.problem, account.result.plans[0], account.prices, account.advice)
    why = account.explanation or Explanation()
    return {"status": account.result.status, **infeasible_document(account.problem, why, account.reasons)}


def of_problem(problem: Problem, document: Mapping[str, Any]) -> dict[str, Any]:
    """What `explain --json` prints: an account or a favourite's document, then what it is about."""
    return {**document, "problem": problem_document(problem), "versions": versions()}


def infeasible_document(problem: Problem, found: Explanation, reasons: Sequence[str]) -> dict[str, Any]:
    """Why a spec has no plan: sentences, the requirements that exclude each other, changes that were solved."""
    conflict, closest = found.conflict, found.closest
    asked = [str(wish) for wish in conflict.wishes] if conflict else []
    return {
        "reasons": list(reasons),
        "causes": list(found.causes),
        "conflict": conflict and {"wishes": asked, "rules": list(conflict.rules), "dp": list(conflict.dps)},
        "closest": closest and {"strategy": strategy_to_dict(closest.strategy), "memory_factor": closest.factor},
        "remedies": [_remedy(problem, remedy) for remedy in found.remedies],
        "all_tried": found.in_time and not found.interrupted,
    }


def _remedy(problem: Problem, remedy: Remedy) -> dict[str, Any]:
    return {
        "text": remedy.text,
        "changes": changes_between(problem.spec, remedy.spec),
        "step_time_s": remedy.plan.evaluation.step_time_s,
        "proven": remedy.plan.proven,
        "strategy": strategy_to_dict(remedy.plan.strategy),
    }


def changes_between(spec: Spec, other: Spec) -> dict[str, Any]:
    """The new values by place, "cluster.num_gpus", where two specs differ."""
    return dict(_changes((), spec.model_dump(mode="json"), other.model_dump(mode="json")))


def _changes(path: tuple[str, ...], one: Any, other: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _changes((*path, str(key)), one.get(key), other.get(key))
    elif one != other:
        yield dotted(path), other


# explain: what the wishes cost


def prices_report(problem: Problem, best: Plan, prices: Prices, advice: Advice) -> RenderableType:
    """That there is a plan, by how much each wish makes it slower, or dearer, and what small changes gain."""
    told = say(
        "{step_time_s} a step{goal}", step_time_s=seconds(best.evaluation.step_time_s), goal=_goal(problem, best)
    )
    head = Text(
        say("There is a plan: {told} ({strategy_text}).", told=told, strategy_text=strategy_text(best.strategy)),
        style="bold green",
    )
    left_open = _left_open(problem, best)
    lines: list[RenderableType] = [head, *open_line(left_open), *_price_lines(problem, best, prices, advice)]
    lines += advice_report(problem, best, advice)
    operators = compute_by_operator(problem, best.strategy, best.evaluation)
    lines += section(operators_title(operators, best.strategy.pp), *operators_table(operators))
    lines += [Text(note, style="dim") for note in matrices_notes(problem, best.strategy)]
    return Group(
        *lines,
        *(
            section(say("{title}: a step{whose}", title=say(TITLE), whose=""), *switches_table(left_open))
            if left_open
            else ()
        ),
    )


def _price_lines(problem: Problem, best: Plan, prices: Prices, advice: Advice) -> Iterator[RenderableType]:
    step, worse = best.evaluation.step_time_s, worse_word(problem)
    if prices.found:
        yield Text(say("What the spec asks for, and what it costs alone:"))
    elif nothing := nothing_gains(advice):
        yield Text(
            say(
                "Nothing that the spec asks for makes it {worse}, as far as it was tried alone, {nothing}.",
                worse=worse,
                nothing=nothing,
            )
        )
    elif not prices.interrupted:
        yield Text(
            say("No pin, ban or setting of the spec makes it {worse}, as far as each was tried alone.", worse=worse)
        )
    for price in prices.found:
        without = price.plan.evaluation.step_time_s
        less = say(", {without} less a step", without=percent(1 - without / step)) if without < step else ""
        yield item(f"{price.text}: {seconds(without)}{less}{_goal(problem, price.plan)}")
    if not prices.settled and not prices.interrupted:
        yield Text(say("Not everything was settled in the time given."), style="dim")


def _left_open(problem: Problem, best: Plan) -> OpenSwitches | None:
    return open_switches(problem, best.strategy, best.evaluation, searched=True)


def _goal(problem: Problem, plan: Plan) -> str:
    """Dollars and devices, where the objective is not the step time alone."""
    plain = problem.spec.search.objective == "throughput"
    return "" if plain else cost_and_devices(problem, plan.strategy, plan.evaluation)


def prices_document(problem: Problem, best: Plan, prices: Prices, advice: Advice) -> dict[str, Any]:
    """The same for machines."""
    changes = [changes_between(problem.spec, one.problem.spec) for one in advice.found]
    return {
        "status": "feasible",
        "best": _best(problem, best),
        "prices": [_remedy(problem, price) for price in prices.found],
        "all_settled": prices.settled and not advice.left and not advice.interrupted,
        **advice_document(problem, best, advice, changes),
        "open_switches": open_document(_left_open(problem, best)),
    }


# explain: why not this plan


def favourite_report(problem: Problem, found: Favourite) -> RenderableType:
    """What the plan breaks or loses against the best one, and what freeing one group of its decisions gives."""
    parts: list[RenderableType] = [
        Text(say("Yours: {strategy_text}", strategy_text=strategy_text(found.strategy)), style="bold")
    ]
    if found.broken:
        parts += [
            Text(say("It is not legal. {violation}", violation=violation), style="red") for violation in found.broken
        ]
    if found.best is None:
        parts.append(Text(say("No legal plan was found in the time given."), style="yellow"))
    else:
        parts.append(
            Text(say("Best:  {strategy_text}", strategy_text=strategy_text(found.best.strategy)), style="bold")
        )
        if found.evaluation is not None:
            parts += _against(problem, found, found.evaluation, found.best)
    parts += _one_change(problem, found)
    if not found.in_time:
        parts.append(Text(say("Not everything was settled in the time given: there may be better."), style="dim"))
    return Group(*parts)


def _against(problem: Problem, found: Favourite, own: Evaluation, best: Plan) -> Iterator[RenderableType]:
    other = best.evaluation
    slower = own.step_time_s / other.step_time_s - 1
    word = (
        say("{slower} slower", slower=percent(slower))
        if slower > 0
        else say("{slower} faster", slower=percent(-slower))
        if slower < 0
        else say("as fast")
    )
    yield Text(
        say(
            "{step_time_s} a step against {step_time_s2}: {word}.",
            step_time_s=seconds(own.step_time_s),
            step_time_s2=seconds(other.step_time_s),
            word=word,
        )
    )
    figures = (Column(justify="right", no_wrap=True) for _ in range(3))
    table = Table.grid(*figures, Column(no_wrap=True), padding=(0, 2, 0, 0))
    table.add_row(say("yours"), say("best"), say("difference"), "", style="dim")
    size = max(own.step_time_s, other.step_time_s)
    for name, mine, its in _differing_parts(own, other, size):
        more = f"{'+' if mine > its else '-'}{seconds(abs(mine - its), of=size)}"
        table.add_row(seconds(mine, of=size), seconds(its, of=size), more, name)
    yield table
    plans = (found.strategy, own), (best.strategy, other)
    yield from differing_table(*(compute_by_operator(problem, strategy, evaluation) for strategy, evaluation in plans))
    theirs = interval_of(problem, best.strategy, other.step_time_s)
    if not found.broken and interval_of(problem, found.strategy, own.step_time_s).overlaps(theirs):
        yield Text(say("Their 80 % intervals overlap: a tie within what is known."), style="yellow")


def _differing_parts(own: Evaluation, other: Evaluation, size: float) -> list[tuple[str, float, float]]:
    """The parts that differ by enough to be shown, by name, and all others as one, so that the rows add up."""
    names = dict.fromkeys([*own.breakdown_s, *other.breakdown_s])
    parts = [(name, own.breakdown_s.get(name, 0.0), other.breakdown_s.get(name, 0.0)) for name in names]
    large = [part for part in parts if abs(part[1] - part[2]) > _PART * size]
    rest = [part for part in parts if part not in large]
    named = [(part_name(name), mine, its) for name, mine, its in large]
    return [*named, (say("all else"), sum(part[1] for part in rest), sum(part[2] for part in rest))] if rest else named


def _one_change(problem: Problem, found: Favourite) -> Iterator[RenderableType]:
    if not found.changes:
        better = "legal" if found.broken else better_word(problem)
        yield Text(say("No group of its decisions, freed alone, makes it {better}.", better=better))
        return
    s = found.strategy
    odd = (
        say(", but with 1F1B and microbatches of one size")
        if s.schedule not in SEARCHED_SCHEDULES or (s.dynamic and not searches_sizes(problem))
        else ""
    )
    yield Text(say("With all else as yours{odd}, one group of decisions freed:", odd=odd))
    for change in found.changes:
        step = change.plan.evaluation.step_time_s
        gain = (
            "" if change.gain is None or change.gain <= 0 else say(" ({gain} less)", gain=seconds(change.gain, of=step))
        )
        told = f"{seconds(step)}{gain}{_goal(problem, change.plan)}"
        yield item(f"{say(change.freed)}: {told}: {strategy_text(change.plan.strategy)}")


def favourite_document(problem: Problem, found: Favourite) -> dict[str, Any]:
    """The same for machines."""
    return {
        "status": "favourite",
        "legal": not found.broken,
        "violations": [{"rule": one.rule, "message": one.message} for one in found.broken],
        "step_time_s": found.evaluation and found.evaluation.step_time_s,
        "breakdown_s": found.evaluation and dict(found.evaluation.breakdown_s),
        "compute_s": found.evaluation and _operators(problem, found.strategy, found.evaluation),
        "strategy": strategy_to_dict(found.strategy),
        "best": found.best and _best(problem, found.best),
        "changes": [{"freed": c.freed, "gain_s": c.gain, **_plan(c.plan)} for c in found.changes],
        "all_settled": found.in_time,
    }


def _best(problem: Problem, plan: Plan) -> dict[str, Any]:
    return {**_plan(plan), "compute_s": _operators(problem, plan.strategy, plan.evaluation)}


def _plan(plan: Plan) -> dict[str, Any]:
    evaluation = plan.evaluation
    return {
        "step_time_s": evaluation.step_time_s,
        "breakdown_s": dict(evaluation.breakdown_s),
        "proven": plan.proven,
        "strategy": strategy_to_dict(plan.strategy),
    }


def _operators(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> dict[str, float]:
    """The slowest stage's compute by operator, which sums to the breakdown's."""
    return {part.name: part.seconds for part in compute_by_operator(problem, strategy, evaluation).parts}
