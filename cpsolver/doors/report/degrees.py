"""A plan's parallel sizes and sharding in the field's words, a row each; what no plan uses has no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cpsolver.inputs.language import say
from cpsolver.inputs.text import count, runs
from cpsolver.plans.dimensions import DIMENSIONS, Dimension
from cpsolver.plans.strategy import Strategy

Row = tuple[str, Callable[[Strategy], str]]
"""A label of at most 18 columns, and what a plan has there."""


def size_rows(plans: Sequence[Strategy], experts: bool) -> list[Row]:
    """The sizes of the plans' parallel dimensions; `experts`: the model has some."""
    rows: list[Row] = [("tp × pp × dp", lambda s: f"{size_words(s, 'tp')} × {s.pp} × {size_words(s, 'dp')}")]
    if any(max(plan.by_mesh("cp")) > 1 for plan in plans):
        rows += [(say("context par. (cp)"), lambda s: size_words(s, "cp")), (say("  exchange"), _exchange)]
    if any(1 < plan.ulysses < plan.cp for plan in plans):
        rows.append((say("  a2a × p2p ranks"), lambda s: f"{s.ulysses} × {s.cp // s.ulysses}" if s.cp > 1 else "–"))
    if experts:
        rows.append((say("experts: ep × etp"), lambda s: f"{size_words(s, 'ep')} × {size_words(s, 'etp')}"))
    return rows


def size_words(plan: Strategy, name: str) -> str:
    """A size; of chip types with degrees of their own that of each, in the order of the pipeline: `4/8`."""
    return "/".join(map(count, plan.by_mesh(name)))


def flag_rows(plans: Sequence[Strategy]) -> list[Row]:
    """Whether each of the flags is on that the table of decisions has a label for; of those that are off by default
    the ones that some plan has.
    """

    rows: list[Row] = []
    for one in DIMENSIONS.values():
        if one.label and (one.default is not False or any(getattr(plan, one.name) for plan in plans)):
            rows += (
                state_rows(plans)
                if one.name == "distributed_optimizer"
                else [(say(one.label), partial(on_or_off, one))]
            )
    return rows


def on_or_off(flag: Dimension, plan: Strategy) -> str:
    """Whether the plan has the flag."""
    return say("on") if getattr(plan, flag.name) else say("off")


def state_rows(plans: Sequence[Strategy]) -> list[Row]:
    """What the plans' replicas share out."""
    rows: list[Row] = [
        (
            say(DIMENSIONS["distributed_optimizer"].label),
            lambda s: say("on: ZeRO-{zero_stage}", zero_stage=s.zero_stage) if s.zero_stage else say("off"),
        )
    ]
    if any(plan.grouped for plan in plans):
        rows.append((say("  sharding group"), _group))
    return rows


def schedule_rows(plans: Sequence[Strategy]) -> list[Row]:
    """The pipelines' schedules, where one is not 1F1B, and sizes of microbatches, where they differ."""
    rows: list[Row] = (
        [(say("schedule"), lambda s: s.schedule)] if any(plan.schedule != "1f1b" for plan in plans) else []
    )
    if any(plan.dynamic for plan in plans):
        rows.append((say("  sizes in order"), lambda s: runs(s.micro_batches or (s.mbs,))))
    return rows


def layer_traffic(plans: Sequence[Strategy]) -> str:
    """Between which ranks data moves inside the plans' layers: `tensor-parallel`, `tp, cp and ep`."""
    used = {
        "tp": any(max(plan.by_mesh("tp")) > 1 for plan in plans),
        "cp": any(max(plan.by_mesh("cp")) > 1 for plan in plans),
        "ep": any(max(plan.by_mesh("ep") + plan.by_mesh("etp")) > 1 for plan in plans),
    }
    names = [name for name, there in used.items() if there]
    if names in ([], ["tp"]):
        return say("tensor-parallel")
    return say(" and ").join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _exchange(plan: Strategy) -> str:
    return plan.cp_comm_type if max(plan.by_mesh("cp")) > 1 else "–"


def _group(plan: Strategy) -> str:
    if not plan.zero_stage:
        return "–"
    replicas = count(plan.replicas)
    return (
        say("{sharding_ranks} of {replicas}", sharding_ranks=count(plan.sharding_ranks), replicas=replicas)
        if plan.grouped
        else say("all {replicas}", replicas=replicas)
    )
