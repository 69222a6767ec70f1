"""How far published runs reach, and where a plan lies beyond all of them: what no measurement says anything of.

The ranges are taken from the table of published runs once, by benchmarks/measured_ranges.py; models with experts have
their own, as no dense run says how these behave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.inputs.data import package_schema
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

MEASURED = Path(__file__).parents[1] / "profiles" / "calibrations" / "measured.yaml"
Kind = Literal["dense", "experts"]
Ranges = dict[Kind, dict[str, float]]
"""Kind of model -> quantity of QUANTITIES -> the most, or the least, that a run had."""


@dataclass(frozen=True)
class Sizes:
    """What of a run or a plan has a range. `experts`: of the model, 0: none."""

    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    vpp: int
    devices: int
    node: int
    sequence: int
    experts: int

    @property
    def kind(self) -> Kind:
        """Whose ranges count."""
        return "experts" if self.experts else "dense"


@dataclass(frozen=True)
class Quantity:
    """One number that runs have a range of. `value`: None where it does not apply; `words`: around the number."""

    value: Callable[[Sizes], float | None]
    words: str
    end: Literal["most", "least"] = "most"

    def beyond(self, value: float, limit: float) -> bool:
        """Whether a plan's value is outside."""
        return value > limit if self.end == "most" else value < limit


QUANTITIES: Mapping[str, Quantity] = {
    "tp": Quantity(lambda s: s.tp, "tp {}"),
    "pp": Quantity(lambda s: s.pp, "pp {}"),
    "vpp": Quantity(lambda s: s.vpp, "vpp {}"),
    "cp": Quantity(lambda s: s.cp, "cp {}"),
    "cp_tokens": Quantity(lambda s: s.sequence // s.cp if s.cp > 1 else None, "{} tokens on a rank of cp", "least"),
    "ep": Quantity(lambda s: s.ep, "ep {}"),
    "ep_nodes": Quantity(lambda s: max(1, -(-s.ep * s.etp // s.node)), "experts over {} nodes"),
    "sequence": Quantity(lambda s: s.sequence, "sequences of {} tokens"),
    "devices": Quantity(lambda s: s.devices, "{} GPUs"),
}


def sizes_of_plan(problem: Problem, strategy: Strategy) -> Sizes:
    """A plan's sizes."""
    moe, s = problem.model.moe, strategy
    experts = 0 if moe is None else moe.experts
    return Sizes(s.tp, s.pp, s.cp, s.ep, s.etp, s.vpp, s.devices, problem.node, problem.sequence, experts)


def sizes_of_run(run: MeasuredRun) -> Sizes | None:
    """A run's sizes, a degree that is not known 1; None where it has no step time, or too little is known of it."""
    if run.step_time_s is None or run.num_gpus is None or run.seq_len is None:
        return None
    degrees = (run.tp or 1, run.pp or 1, run.cp or 1, run.ep or 1, run.etp or 1, run.vpp or 1)
    return Sizes(*degrees, run.num_gpus, run.gpus_per_node or 8, run.seq_len, run.moe_experts or 0)


def ranges_of(runs: Iterable[MeasuredRun]) -> Ranges:
    """How far these runs reach."""
    found: Ranges = {"dense": {}, "experts": {}}
    for run in runs:
        sizes = sizes_of_run(run)
        if sizes is None:
            continue
        reached = found[sizes.kind]
        for name, quantity in QUANTITIES.items():
            value = quantity.value(sizes)
            if value is not None and (name not in reached or quantity.beyond(value, reached[name])):
                reached[name] = value
    return found


def beyond_runs(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Where a plan lies beyond every published run of its kind of model, in words; none where it does not."""
    sizes, ranges = sizes_of_plan(problem, strategy), package_schema(MEASURED, Ranges)
    found = []
    for name, quantity in QUANTITIES.items():
        value, limit = quantity.value(sizes), ranges[sizes.kind].get(name)
        if value is None or limit is None or not quantity.beyond(value, limit):
            continue
        found.append(f"{quantity.words.format(f'{value:,.0f}')} ({quantity.end} measured: {limit:,.0f})")
    return tuple(found)
