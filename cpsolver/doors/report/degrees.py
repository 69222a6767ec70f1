"""A plan's parallel sizes and sharding in the field's words, a row each; what no plan uses has no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpsolver.inputs.text import count, runs
from cpsolver.plans.dimensions import DIMENSIONS, Dimension
from cpsolver.plans.strategy import Strategy

Row = tuple[str, Callable[[Strategy], str]]
"""A label of at most 18 columns, and what a plan has there."""


def size_rows(plans: Sequence[Strategy], experts: bool) -> list[Row]:
    """The sizes of the plans' parallel dimensions; `experts`: the model has some."""
    rows: list[Row] = [("tp × pp × dp", lambda s: f"{size_words(s, 'tp')} × {s.pp} × {size_words(s, 'dp')}")]
    if any(max(plan.by_mesh("cp")) > 1 for plan in plans):
        rows += [("context par. (cp)", lambda s: size_words(s, "cp")), ("  exchange", _exchange)]
    if any(1 < plan.ulysses < plan.cp for plan in plans):
        rows.append(("  a2a × p2p ranks", lambda s: f"{s.ulysses} × {s.cp // s.ulysses}" if s.cp > 1 else "–"))
    if experts:
        rows.append(("experts: ep × etp", lambda s: f"{size_words(s, 'ep')} × {size_words(s, 'etp')}"))
    return rows


def size_words(plan: Strategy, name: str) -> str:
    """A size; of chip types with degrees of their own that of each, in the order of the pipeline: `4/8`."""
    return "/".join(map(count, plan.by_mesh(name)))


def flag_rows(plans: Sequence[Strategy]) -> list[Row]:
    """Whether each of the flags is on that the table of decisions has a label for; of those that are off by default
    the ones that some plan has.
    """

    def row(one: Dimension) -> Row:
        return one.label, lambda s: "on" if getattr(s, one.name) else "off"

    rows: list[Row] = []
    for one in DIMENSIONS.values():
        if one.label and (one.default is not False or any(getattr(plan, one.name) for plan in plans)):
            rows += state_rows(plans) if one.name == "distributed_optimizer" else [row(one)]
    return rows


def state_rows(plans: Sequence[Strategy]) -> list[Row]:
    """What the plans' replicas share out."""
    rows: list[Row] = [
        (DIMENSIONS["distributed_optimizer"].label, lambda s: f"on: ZeRO-{s.zero_stage}" if s.zero_stage else "off")
    ]
    if any(plan.grouped for plan in plans):
        rows.append(("  sharding group", _group))
    return rows


def schedule_rows(plans: Sequence[Strategy]) -> list[Row]:
    """The pipelines' schedules, where one is not 1F1B, and sizes of microbatches, where they differ."""
    rows: list[Row] = [("schedule", lambda s: s.schedule)] if any(plan.schedule != "1f1b" for plan in plans) else []
    if any(plan.dynamic for plan in plans):
        rows.append(("  sizes in order", lambda s: runs(s.micro_batches or (s.mbs,))))
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
        return "tensor-parallel"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _exchange(plan: Strategy) -> str:
    return plan.cp_comm_type if max(plan.by_mesh("cp")) > 1 else "–"


def _group(plan: Strategy) -> str:
    if not plan.zero_stage:
        return "–"
    replicas = count(plan.replicas)
    return f"{count(plan.sharding_ranks)} of {replicas}" if plan.grouped else f"all {replicas}"
