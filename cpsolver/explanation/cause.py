"""Why a problem has no plan: the cause with numbers, the plan that comes closest, and what would make one possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from cpsolver.cost.modules import applicable
from cpsolver.explanation.changes import Budget, Changer, Remedy, seconds_words, wrong_layer_sum
from cpsolver.explanation.closest import Closest, closest_plan, memory_lines
from cpsolver.explanation.conflict import Conflict, conflict_line, find_conflict
from cpsolver.explanation.remedies import remedies
from cpsolver.explanation.wishes import wishes
from cpsolver.inputs.language import capital, later, say
from cpsolver.plans.strategy import RECOMPUTE_KINDS
from cpsolver.problem.problem import Problem
from cpsolver.search.arrangements import arrangements, mixes
from cpsolver.search.bounds.coefficients import allowed_modules
from cpsolver.search.filters import may_mix
from cpsolver.search.objective import objective_of
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.search import forbidden_for, pinned_for

_FASTEST_S = 30.0  # for the fastest plan, where none meets a deadline
SECONDS = 12.0  # for all of an explanation
_CHIPS_S = 2.0  # of them for contradictions between chips
_CLOSEST_S = 5.0  # of them for the closest plan
_MIXES = 500  # mixes of chip types whose orders are tried for each layout


@dataclass
class Explanation:
    """Why there is no plan. `causes` are sentences, most important first; `remedies` are solved, smallest first.

    `in_time`: no change was left untried for want of time.
    """

    causes: list[str] = field(default_factory=list)
    conflict: Conflict | None = None
    closest: Closest | None = None
    remedies: list[Remedy] = field(default_factory=list)
    interrupted: bool = False
    in_time: bool = True

    def lines(self) -> tuple[str, ...]:
        """All of it for people."""
        said = [say("{said}.", said=capital(text)) for text in map(str, self.remedies)]
        if self.causes and not said and not self.interrupted:
            within = "" if self.in_time else say(" in the time given")
            said = [say("No single change that was tried{within} makes a plan possible.", within=within)]
        return (*self.causes, *said)


def explanation(problem: Problem, result: Result, seconds: float = SECONDS) -> Explanation:
    """Why an infeasible result has no plan, within that many seconds; on Ctrl-C what is known so far."""
    found = Explanation()
    if result.status != "infeasible":
        return found
    budget = Budget(seconds)
    try:
        _causes(problem, found, budget)
        factor = found.closest.factor if found.closest else None
        rules = found.conflict.rules if found.conflict else ()
        for remedy in remedies(Changer(problem, budget, factor is not None), factor, rules):
            found.remedies.append(remedy)
            found.remedies.sort(key=lambda remedy: remedy.size)
        found.in_time = budget.left > 0 and not budget.cut_short
    except KeyboardInterrupt:
        found.interrupted = True
        found.causes.append(say("Interrupted: there may be more to say."))
    return found


def _causes(problem: Problem, found: Explanation, budget: Budget) -> None:
    if wrong_layer_sum(problem):
        layers = problem.spec.search.pin.layers or ()
        total = say("search.pin.layers has {sum} layers in all", sum=sum(layers))
        found.causes.append(
            say(
                "{total}, the model {name} has {layers}.",
                total=total,
                name=problem.model.name,
                layers=problem.model.layers,
            )
        )
    elif not len(enumerate_rows(problem)):
        found.conflict = find_conflict(problem)
    if found.conflict is not None:
        found.causes.append(conflict_line(problem, found.conflict))
    if not found.causes:
        found.causes += _contradictions(problem, budget.part(_CHIPS_S))
    if not found.causes:
        found.closest = closest_plan(problem, budget.part(_CLOSEST_S))
    if found.closest is not None:
        found.causes.append(_no_fit(problem))
        found.causes += memory_lines(problem, found.closest)
    elif not found.causes:
        found.causes.append(_unknown(problem))


def _no_fit(problem: Problem) -> str:
    asked = [str(wish) for wish in wishes(problem)]
    under = say(" under {asked}", asked="; ".join(asked)) if asked else ""
    chips = ", ".join(problem.chip_names)
    return say(
        "Too little memory: {name} with sequences of {sequence:,} tokens does not fit on "
        "{num_gpus:,} GPUs ({chips}){under}.",
        name=problem.model.name,
        sequence=problem.sequence,
        num_gpus=problem.num_gpus,
        chips=chips,
        under=under,
    )


def _contradictions(problem: Problem, budget: Budget) -> Iterator[str]:
    """Wishes on chips and recomputation that leave nothing on any row."""
    for chip in problem.chip_names:
        yield from _no_kinds(problem, chip)
        yield from _no_modules(problem, chip)
        yield from _no_recompute(problem, chip)
    asked = "; ".join(str(wish) for wish in wishes(problem) if wish.name in ("stages", "chip_order", "stage_chips"))
    limits = ", ".join(f"{supply.name} {supply.limit:,}" for supply in problem.supplies)
    rows = enumerate_rows(problem).frames
    mixed = may_mix(problem, rows)
    shapes = dict.fromkeys(zip(rows.stage_devices.tolist(), rows.pp.tolist(), mixed.tolist(), strict=True))
    shared = False
    for shape in shapes:
        table = mixes(problem, *shape)
        shared = shared or len(table) > 0
        if budget.left <= 0 or any(len(arrangements(problem, mix)) for mix in table[:_MIXES]):
            return
    if shared:
        yield say(
            "No order of the chip types along the pipeline keeps {asked} within the limits {limits}.",
            asked=asked,
            limits=limits,
        )
    elif asked or problem.mixed:
        yield (
            say(
                "No share of the stages among the chip types is legal{asked}: limits {limits}, whole nodes "
                "of {node} where chips mix.",
                asked=say(" with {asked}", asked=asked) if asked else "",
                limits=limits,
                node=problem.node,
            )
        )


def _no_kinds(problem: Problem, chip: str) -> Iterator[str]:
    pinned = pinned_for(problem.spec.search.pin.recompute, chip) or ()
    for what, profile in ((later("launcher"), problem.named_launcher), (later("stack"), problem.stack.runs)):
        if pinned and profile is not None and not profile.kinds(pinned):
            yield (
                say(
                    "Recomputation on {chip} cannot be {pinned}: {what} {name} has {kinds}.",
                    chip=chip,
                    pinned=say(" or ").join(pinned),
                    what=say(what),
                    name=profile.name,
                    kinds=", ".join(("none", *profile.recompute)),
                )
            )


def _no_modules(problem: Problem, chip: str) -> Iterator[str]:
    pinned = pinned_for(problem.spec.search.pin.recompute_modules, chip)
    if pinned and not allowed_modules(problem, chip):
        wished = say(" or ").join(", ".join(names) for names in pinned)
        where = "" if problem.launcher is None else say(" that {name} recomputes", name=problem.launcher.name)
        yield (
            say(
                "Recomputation on {chip} cannot be of {wished} alone: the modules of {name}'s "
                "layers{where} are {applicable}.",
                chip=chip,
                wished=wished,
                name=problem.model.name,
                where=where,
                applicable=", ".join(applicable(problem)) or "none",
            )
        )


def _no_recompute(problem: Problem, chip: str) -> Iterator[str]:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    kinds = pinned_for(pin.recompute, chip) or RECOMPUTE_KINDS
    kinds = tuple(kind for kind in kinds if kind not in forbidden_for(forbid.recompute, chip))
    numbers = pinned_for(pin.recompute_num_layers, chip)
    if numbers is None:
        return
    numbered = any(kind in ("block", "uniform") for kind in kinds)
    plain = any(kind in ("none", "selective") for kind in kinds)
    if not (numbered and max(numbers) > 0) and not (plain and 0 in numbers):
        asked = "; ".join(str(wish) for wish in wishes(problem) if wish.name.startswith("recompute"))
        yield (
            say(
                "Recomputation on {chip} cannot be as wished ({asked}): block and uniform have a number of "
                "1 or more, none and selective have 0.",
                chip=chip,
                asked=asked,
            )
        )


def _unknown(problem: Problem) -> str:
    search = problem.spec.search
    asked = [str(wish) for wish in wishes(problem)]
    asked += [f"search.layer_split = {search.layer_split}"] if search.layer_split != "auto" else []
    if not asked:
        return say("No legal split of the layers over the stages was found, even with unlimited memory.")
    return say("No plan was found that keeps all of this, even with unlimited memory: {asked}.", asked="; ".join(asked))


def without_deadline(problem: Problem) -> Problem:
    """The problem of the single fastest plan on as many of the devices as it likes."""
    settings = {"objective": "throughput", "deadline": None, "top": 1, "time_limit_s": _FASTEST_S}
    return problem.with_(search=settings, cluster={"idle": problem.may_idle})


def explain_deadline(problem: Problem, seconds: float | None = None) -> tuple[str, ...]:
    """Lines for people on a problem with a deadline that no plan meets; empty where it is not the deadline, or where it
    takes more than so many seconds to see (None: those that it needs for most)."""
    wanted, limit = problem.spec.deadline, objective_of(problem).deadline_s
    if wanted is None or limit == inf:
        return ()
    fastest = without_deadline(problem)
    plans = search(fastest if seconds is None else fastest.with_(search={"time_limit_s": seconds})).plans
    if not plans:
        return ()
    step = plans[0].evaluation.step_time_s
    asked = say(
        "{tokens:,.0f} tokens in {days:g} days ask for steps of at most {seconds_words}",
        tokens=wanted.tokens,
        days=wanted.days,
        seconds_words=seconds_words(limit),
    )
    best = say(
        "the fastest plan takes {seconds_words}, on {devices:,} devices",
        seconds_words=seconds_words(step),
        devices=plans[0].strategy.devices,
    )
    return (say("{asked}; {best}: {days:,.1f} days.", asked=asked, best=best, days=wanted.days * step / limit),)
