"""Plans whose replicas are of different kinds: each kind's share, what it takes, and the options that start it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cpsolver.doors.report.document import problem_document, versions
from cpsolver.doors.report.layout import figure_table, section
from cpsolver.doors.report.text import part_name
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evidence.intervals import replicas_interval
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import percent, seconds
from cpsolver.plans.replicas import ReplicaKind
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.search.replicas import Counts, ReplicasPlan
from hw_specs.units import bytes_to_gib

_RUNS = {
    "own": "SynerFuse (USAGE.md, a40219c)",
    "common": later("FlagScale 0.3 (--hetero-mode dp; without --micro-batch-size)"),
}
"""The launcher that runs such a plan, none of those that a spec can name."""
_NONE = "no launcher that is known here: those with unequal shares shard the optimizer's states only"


_HEADS = (
    *(later("chip"), later("replicas"), later("micro batch"), later("microbatches")),
    *(later("sequences"), later("pipeline"), "GiB", later("of ")),
)


def _run_by(found: ReplicasPlan, counts: Counts) -> str:
    return _RUNS[counts] if found.plan.kinds[0].strategy.zero_stage < 2 else _NONE


def replicas_report(problem: Problem, found: ReplicasPlan, counts: Counts) -> RenderableType:
    """The plan in a screen."""
    parts = list(_headline(problem, found))
    table = figure_table(*(say(head).strip() for head in _HEADS))
    for kind, evaluation in _kinds(found):
        stage = evaluation.stages[0]
        table.add_row(
            stage.chip,
            f"{kind.replicas:,}",
            str(kind.strategy.mbs),
            str(_number(kind)),
            str(kind.sequences),
            seconds(_pipeline_s(evaluation)),
            f"{bytes_to_gib(stage.memory.total):.1f}",
            f"{bytes_to_gib(stage.capacity_bytes):.1f}",
        )
    parts += section(say("Shares of the batch"), table)
    step = found.evaluation
    shown = ((part_name(part), step.breakdown_s[part]) for part in PARTS if step.breakdown_s[part] > 0)
    told = say(", ").join(f"{name} {percent(part / step.step_time_s)}" for name, part in shown)
    parts += section(say("Where the time goes"), Text(told))
    parts += section(_run_title(found, counts), *(Text(line) for line in launch_lines(found, counts)))
    return Group(*parts)


def _run_title(found: ReplicasPlan, counts: Counts) -> str:
    launcher = _run_by(found, counts)
    if launcher == _NONE:
        return say("Run by no launcher that is known here: those with unequal shares shard the optimizer's states only")
    return say("Run by {launcher}", launcher=say(launcher))


def _headline(problem: Problem, found: ReplicasPlan) -> Iterator[RenderableType]:
    step, plan = found.evaluation.step_time_s, found.plan.kinds[0].strategy
    low, high = replicas_interval(problem, found.plan, step)
    tokens = problem.useful_tokens / step
    yield Text.assemble(
        (say("{step} a step", step=seconds(step)), "bold green"),
        say(
            " ({low} to {high}, four times in five), {tokens:,.0f} tokens/s",
            low=seconds(low, of=step),
            high=seconds(high, of=step),
            tokens=tokens,
        ),
    )
    if found.even_s is not None:
        more = percent(found.even_s / step - 1)
        yield Text(say("with equal shares {even}: {more} more", even=seconds(found.even_s), more=more))
    sp = say(" with sequence parallelism") if plan.sequence_parallel else ""
    sizes = f"tp {plan.tp}{sp}{say(', ')}ZeRO-{plan.zero_stage}"
    every = plan.recompute[0] == "uniform"
    yield Text(sizes + (say(", recomputes every layer") if every else say(", recomputes nothing")))


def _kinds(found: ReplicasPlan) -> Iterator[tuple[ReplicaKind, Evaluation]]:
    return zip(found.plan.kinds, found.evaluation.kinds, strict=True)


def _number(kind: ReplicaKind) -> int:
    assert kind.sequences is not None, "every kind was given its share"
    return kind.sequences // kind.strategy.mbs


def _pipeline_s(evaluation: Evaluation) -> float:
    return sum(evaluation.breakdown_s[part] for part in PARTS[:6])


def launch_lines(found: ReplicasPlan, counts: Counts) -> list[str]:
    """The options for the shares: numbers of data-parallel ranks, each with its micro batch (and how many)."""
    if _run_by(found, counts) == _NONE:
        return []
    sizes = " ".join(f"{kind.replicas} {kind.strategy.mbs}" for kind in found.plan.kinds)
    if counts == "own":
        numbers = " ".join(f"{kind.replicas} {_number(kind)}" for kind in found.plan.kinds)
        ranks = f"--use-tp-pp-dp-mapping --micro-batch-size-per-dp {sizes}"
        return [ranks, f"--num-micro-batches-per-dp {numbers}"]
    types = " ".join(kind.strategy.stage_chips[0] for kind in found.plan.kinds)
    return [f"--hetero-mode dp --hetero-device-types {types}", f"--hetero-micro-batch-sizes {sizes}"]


def replicas_document(problem: Problem, found: ReplicasPlan, counts: Counts) -> dict[str, Any]:
    """What `replicas --json` prints. `strategy` is the plan as if all replicas were of that kind; times in seconds."""
    step = found.evaluation.step_time_s
    low, high = replicas_interval(problem, found.plan, step)
    kinds = [
        {
            "chip": kind.strategy.stage_chips[0],
            "replicas": kind.replicas,
            "micro_batch": kind.strategy.mbs,
            "microbatches": _number(kind),
            "sequences": kind.sequences,
            "pipeline_s": _pipeline_s(evaluation),
            "memory_gib": bytes_to_gib(evaluation.stages[0].memory.total),
            "capacity_gib": bytes_to_gib(evaluation.stages[0].capacity_bytes),
            "strategy": strategy_to_dict(kind.strategy),
        }
        for kind, evaluation in _kinds(found)
    ]
    return {
        "problem": problem_document(problem),
        "step_time_s": step,
        "step_time_s_low": low,
        "step_time_s_high": high,
        "even_shares_s": found.even_s,
        "breakdown_s": dict(found.evaluation.breakdown_s),
        "kinds": kinds,
        "counts": counts,
        "run_by": _run_by(found, counts),
        "options": launch_lines(found, counts),
        "versions": versions(),
    }
