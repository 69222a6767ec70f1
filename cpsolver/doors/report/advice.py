"""What `explain` says of small changes of a spec that gain: for people and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cpsolver.doors.report.goals import chance, cost_and_devices
from cpsolver.doors.report.layout import item
from cpsolver.evidence.chances import out_of_memory_probability
from cpsolver.explanation.advice import PAIRS, Advice, Suggestion
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import count, percent, plural, seconds
from cpsolver.plans.dimensions import sizes_text
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.search.result import Plan

_RISKIER = 0.05  # a chance of running out of memory that is higher by more is told
_GAINS = {
    "throughput": later("+{} tokens/s per GPU, to {}"),
    "cost": later("{} fewer dollars per token"),
    "fewest_chips": later("{} fewer GPUs"),
}
"""What a gain is of, by objective."""


def advice_report(problem: Problem, best: Plan, advice: Advice) -> Iterator[RenderableType]:
    """A line for each suggestion, the best first, what else there is to know of them, and what was not settled."""
    if advice.found:
        yield Text(say("Small changes of the spec that gain, alone and in pairs, each solved:"))
    for one in advice.found:
        degrees = sizes_text(one.plan.strategy)
        step, sure = seconds(one.plan.evaluation.step_time_s), "" if one.plan.proven else say("; not proven")
        yield item(
            say(
                "{claim} ({step} a step{goal}; {degrees}{sure})",
                claim=_claim(problem, best, one),
                step=step,
                goal=_goal(one),
                degrees=degrees,
                sure=sure,
            )
        )
    for note in dict.fromkeys(note for one in advice.found for note in one.notes):
        yield Text(_sentence(note), style="dim")
    if left := _left(advice):
        yield Text(left, style="dim")


def nothing_gains(advice: Advice) -> str:
    """What was tried in vain, to end a sentence; empty where something gains, or is not settled."""
    if advice.found or advice.left or advice.interrupted:
        return ""
    return say("and no other value nearby gains a percent ({settled})", settled=", ".join(advice.settled))


def _left(advice: Advice) -> str:
    """What was not settled, and why; empty where everything was."""
    pairs, left = advice.left.get(PAIRS, 0), {kind: number for kind, number in advice.left.items() if kind != PAIRS}
    why = say("Interrupted") if advice.interrupted else say("The time given was too short") if advice.left else ""
    parts = [
        say("{kind} ({left} of {all})", kind=say(kind), left=number, all=number + advice.settled.get(kind, 0))
        for kind, number in left.items()
    ]
    parts += [plural(pairs, "pair")] if pairs else []
    rest = (
        say(": not settled: {parts}", parts=", ".join(parts))
        if parts
        else say(": there may be more to say")
        if why
        else ""
    )
    return f"{why}{rest}." if why else ""


def advice_document(problem: Problem, best: Plan, advice: Advice, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """The same for machines; `changes`: of each suggestion the new values by place in the spec."""
    return {
        "advice": [
            {
                "changes": new_values,
                "text": suggestion_text(problem, best, one),
                "gain": one.gain,
                "tokens_per_s_per_gpu": one.plan.evaluation.tokens_per_s_per_gpu,
                "step_time_s": one.plan.evaluation.step_time_s,
                "out_of_memory_probability": _risk(one.problem, one.plan),
                "strategy": strategy_to_dict(one.plan.strategy),
                "proven": one.plan.proven,
            }
            for one, new_values in zip(advice.found, changes, strict=True)
        ],
        "advice_left": dict(advice.left),
        "advice_interrupted": advice.interrupted,
    }


def suggestion_text(problem: Problem, best: Plan, one: Suggestion) -> str:
    """The change, its gain, and what else there is to know of it."""
    return " ".join([f"{_claim(problem, best, one)}.", *map(_sentence, one.notes)])


def _claim(problem: Problem, best: Plan, one: Suggestion) -> str:
    gain = say(_GAINS[problem.spec.search.objective]).format(percent(one.gain), _rate(one.plan))
    return f"{one.text[:1].upper()}{one.text[1:]}: {gain}{_in_all(problem, best, one)}{_riskier(problem, best, one)}"


def _sentence(note: str) -> str:
    return say("{said}.", said=f"{note[:1].upper()}{note[1:]}")


def _in_all(problem: Problem, best: Plan, one: Suggestion) -> str:
    """How many more tokens a second the whole cluster does, where its devices are other ones."""
    if one.problem.num_gpus == problem.num_gpus:
        return ""
    more = one.plan.evaluation.tokens_per_s / best.evaluation.tokens_per_s - 1
    said = say(", {share} more tokens/s in all") if more > 0 else say(", {share} fewer tokens/s in all")
    return said.format(share=percent(abs(more)))


def _riskier(problem: Problem, best: Plan, one: Suggestion) -> str:
    """The chance of running out of memory, where that is what the change is about, or it is clearly higher."""
    own, other = _risk(problem, best), _risk(one.problem, one.plan)
    told = "memory margin" in one.kinds or other > own + _RISKIER
    return (
        say(", a chance of {other} to run out of memory instead of {own}", other=chance(other), own=chance(own))
        if told
        else ""
    )


def _risk(problem: Problem, plan: Plan) -> float:
    return out_of_memory_probability(problem, plan.strategy, plan.evaluation)


def _rate(plan: Plan) -> str:
    return count(plan.evaluation.tokens_per_s_per_gpu)


def _goal(one: Suggestion) -> str:
    """Dollars and devices, where the objective is not the step time alone."""
    plain = one.problem.spec.search.objective == "throughput"
    return "" if plain else cost_and_devices(one.problem, one.plan.strategy, one.plan.evaluation)
