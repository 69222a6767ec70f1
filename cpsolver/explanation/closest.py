"""The plan that comes closest when none fits in memory, and what is short where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cpsolver.cost.adapters import trained_in_all
from cpsolver.cost.states import base_bytes, held
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import StageEvaluation
from cpsolver.explanation.changes import Budget, best_plan, leanest
from cpsolver.inputs.language import later, say
from cpsolver.plans.dimensions import sizes_text
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Plan
from hw_specs.units import GIB
from models_zoo.params import total_parameters

_UNLIMITED = 1e6  # times the memory: no limit in practice
_CLOSE = 1.01  # the search for the closest plan ends when it is known this well

_PARTS = (
    later("weights"),
    later("gradients"),
    later("optimizer"),
    later("activations"),
    later("buffers"),
    later("framework"),
)
"""Of a stage's memory, as `StageMemory` has them."""


@dataclass(frozen=True)
class Closest:
    """The plan found that overfills its fullest stage least: by `factor` times the memory that is free for it.

    `settled`: the search for it was not cut short.
    """

    strategy: Strategy
    stages: tuple[StageEvaluation, ...]
    factor: float
    settled: bool = False

    @property
    def fullest(self) -> int:
        """Index of the stage that is over its memory most."""
        return max(range(len(self.stages)), key=lambda index: _share(self.stages[index]))


def _share(stage: StageEvaluation) -> float:
    return stage.memory.total / stage.capacity_bytes


def closest_plan(problem: Problem, budget: Budget) -> Closest | None:
    """The plan that fits with the least more memory; None where no memory is enough (then memory is not the cause).

    Among the plans of `leanest`, or all if those have none. Each search is exact, so the factor is bisected from both
    sides; it is known within a per cent unless the budget runs out.
    """
    plan = _with_memory(leanest(problem), _UNLIMITED, budget)
    if plan is not None:
        problem = leanest(problem)
    else:
        plan = _with_memory(problem, _UNLIMITED, budget)
    if plan is None:
        return None
    best, too_small = _judged(problem, plan.strategy), 1.0
    while best.factor > too_small * _CLOSE and budget.left > 0:
        middle = (best.factor * too_small) ** 0.5
        plan = _with_memory(problem, middle, budget)
        if plan is None:
            too_small = middle
        else:
            best = _judged(problem, plan.strategy)
    return replace(best, settled=best.factor <= too_small * _CLOSE)


def _with_memory(problem: Problem, factor: float, budget: Budget) -> Plan | None:
    supplies = []
    for supply in problem.supplies:
        chip = supply.chip
        gib = chip.memory_capacity_bytes / GIB * factor
        memory = chip.memory.model_copy(update={"usable_gib": gib})
        supplies.append(replace(supply, chip=chip.model_copy(update={"memory": memory})))
    return best_plan(replace(problem, supplies=tuple(supplies)), budget)


def _judged(problem: Problem, strategy: Strategy) -> Closest:
    stages = evaluate(problem, strategy).stages
    return Closest(strategy, stages, max(_share(stage) for stage in stages))


def memory_lines(problem: Problem, closest: Closest) -> Iterator[str]:
    """What the closest plan needs where against what there is, and what the states alone need."""
    index, margin = closest.fullest, problem.memory_margin
    stage = closest.stages[index]
    need = stage.memory
    each = say(", ").join(say("{part} {gib:.1f}", part=say(name), gib=getattr(need, name) / GIB) for name in _PARTS)
    chip = problem.supply(stage.chip).chip
    less = (
        say(
            " ({memory_capacity_bytes:.1f} less the margin of {margin:g} %)",
            memory_capacity_bytes=chip.memory_capacity_bytes / GIB,
            margin=margin * 100,
        )
        if margin
        else ""
    )
    found = say("Closest plan found") if closest.settled else say("Closest plan found in the time given")
    over = (need.total - stage.capacity_bytes) / GIB
    yield (
        say(
            "{found}: {strategy_text}. Its stage {index} on {chip} needs {total:.1f} GiB on each "
            "device ({each}); {capacity_bytes:.1f} GiB are free for it{less}: {over:.1f} GiB too much.",
            found=found,
            strategy_text=strategy_text(closest.strategy),
            index=index,
            chip=stage.chip,
            total=need.total / GIB,
            each=each,
            capacity_bytes=stage.capacity_bytes / GIB,
            less=less,
            over=over,
        )
    )
    yield _states_line(problem)


def strategy_text(strategy: Strategy) -> str:
    """A strategy's degrees and recomputation in one line."""
    degrees = sizes_text(strategy)
    if strategy.cp > 1:
        degrees = degrees.replace(f"cp {strategy.cp}", f"cp {strategy.cp} ({strategy.cp_comm_type})", 1)
    recomputed = []
    for group in strategy.groups:
        amounts = sorted(set(group.stage_recompute_layers))
        number = f" {'/'.join(map(str, amounts))}" if amounts != [0] else ""
        number += f" ({', '.join(group.modules)})" if group.modules not in ((), CORE) else ""
        chip = say(" on {chip}", chip=group.chip) if len(strategy.groups) > 1 else ""
        recomputed.append(
            say("recompute {recompute}{number}{chip}", recompute=group.recompute, number=number, chip=chip)
        )
    sharded = ""
    if strategy.zero_stage:
        within = (
            say(" in groups of {sharding_ranks}", sharding_ranks=strategy.sharding_ranks) if strategy.grouped else ""
        )
        sharded = say(
            ", distributed optimizer (ZeRO-{zero_stage}{within})", zero_stage=strategy.zero_stage, within=within
        )
    recompute = say(", ").join(recomputed)
    return say("{degrees}, {recompute}{sharded}", degrees=degrees, recompute=recompute, sharded=sharded)


def states_share(problem: Problem) -> float:
    """Bytes of one copy of weights, gradients and optimizer state, relative to all the memory that is free."""
    need, have = _states_bytes(problem)
    return need / have


def _states_bytes(problem: Problem) -> tuple[float, float]:
    """What one copy of the states needs, and what is free on the devices with most memory."""
    left, have = problem.num_gpus, 0.0
    for supply in sorted(problem.supplies, key=lambda supply: -supply.chip.memory_capacity_bytes):
        count = min(left, supply.limit)
        have += count * problem.capacity_bytes(supply.chip)
        left -= count
    return _one_copy(problem), have


def _one_copy(problem: Problem) -> float:
    """Bytes of one copy of all states: of adapters, and of the weights that are frozen beside them."""
    parameters, each = total_parameters(problem.model), held(problem)
    trained = trained_in_all(problem)
    if trained is None:
        return parameters * each.each
    return parameters * (base_bytes(problem) or each.weight) + trained * each.each


def _states_line(problem: Problem) -> str:
    parameters, each = total_parameters(problem.model), _one_copy(problem) / total_parameters(problem.model)
    need, have = _states_bytes(problem)
    verdict = say("more than") if need > have else say("of")
    return say(
        "Weights, gradients and optimizer state of {parameters:,.1f} billion parameters need "
        "{need:,.0f} GiB ({each:g} bytes each, one copy), {verdict} the {have:,.0f} GiB free on "
        "{num_gpus:,} GPUs; activations, buffers and the framework come on top.",
        parameters=parameters / 1e9,
        need=need / GIB,
        each=each,
        verdict=verdict,
        have=have / GIB,
        num_gpus=problem.num_gpus,
    )
