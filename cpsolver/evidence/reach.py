"""How far published runs reach, and where a plan lies beyond all of them: what no measurement says anything of.

The ranges are taken from the table of published runs once, by benchmarks/measured_ranges.py; models with experts have
their own, as no dense run says how these behave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cpsolver.inputs.data import package_schema
from cpsolver.inputs.language import later, say
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo.schema import SPECIAL_LAYERS, SpecialLayer, special_layers

MEASURED = Path(__file__).parents[1] / "profiles" / "calibrations" / "measured.yaml"
Kind = Literal["dense", "experts"]
Ranges = dict[Kind, dict[str, float]]
"""Kind of model -> quantity of QUANTITIES -> the most, or the least, that a run had."""


@dataclass(frozen=True)
class Sizes:
    """What of a run or a plan has a range. `degrees`: those of DEGREES by name; `experts`: of the model, 0: none."""

    degrees: Mapping[str, int]
    devices: int
    node: int
    sequence: int
    experts: int

    @property
    def kind(self) -> Kind:
        """Whose ranges count."""
        return "experts" if self.experts else "dense"

    @property
    def context_tokens(self) -> int | None:
        """Tokens of a sequence on a rank of context parallelism; None without it."""
        return self.sequence // self.degrees["cp"] if self.degrees["cp"] > 1 else None

    @property
    def expert_nodes(self) -> int:
        """Nodes that a group of experts' ranks spans."""
        return max(1, -(-self.degrees["ep"] * self.degrees["etp"] // self.node))


@dataclass(frozen=True)
class Quantity:
    """One number that runs have a range of. `value`: None where it does not apply; `words`: around the number."""

    value: Callable[[Sizes], float | None]
    words: str
    end: Literal["most", "least"] = "most"

    def beyond(self, value: float, limit: float) -> bool:
        """Whether a plan's value is outside."""
        return value > limit if self.end == "most" else value < limit


WITHOUT_RUNS: tuple[SpecialLayer, ...] = get_args(SpecialLayer)
"""Layers that no published run with a prediction has had."""
DEGREES = tuple(name for name in ROW if DIMENSIONS[name].kind == "size" and name not in ("mbs", "ulysses"))
"""The degrees that plans and the table of runs both have."""


def _degree(name: str) -> Quantity:
    return Quantity(lambda sizes: sizes.degrees[name], f"{name} {{}}")


QUANTITIES: Mapping[str, Quantity] = {
    **{name: _degree(name) for name in DEGREES if name not in ("dp", "etp")},
    "cp_tokens": Quantity(lambda s: s.context_tokens, later("{} tokens on a rank of cp"), "least"),
    "ep_nodes": Quantity(lambda s: s.expert_nodes, later("experts over {} nodes")),
    "sequence": Quantity(lambda s: s.sequence, later("sequences of {} tokens")),
    "devices": Quantity(lambda s: s.devices, later("{} GPUs")),
}


def sizes_of_plan(problem: Problem, strategy: Strategy) -> Sizes:
    """A plan's sizes."""
    moe, degrees = problem.model.moe, {name: getattr(strategy, name) for name in DEGREES}
    return Sizes(degrees, strategy.devices, problem.node, problem.sequence, 0 if moe is None else moe.experts)


def beyond_runs(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Where a plan lies beyond every published run of its kind of model, in words; none where it does not."""
    sizes, ranges = sizes_of_plan(problem, strategy), package_schema(MEASURED, Ranges)
    found = []
    for name, quantity in QUANTITIES.items():
        value, limit = quantity.value(sizes), ranges[sizes.kind].get(name)
        if value is None or limit is None or not quantity.beyond(value, limit):
            continue
        size = say(quantity.words).format(f"{value:,.0f}")
        most = quantity.end == "most"
        said = say("{size} (most measured: {limit})") if most else say("{size} (least measured: {limit})")
        found.append(said.format(size=size, limit=f"{limit:,.0f}"))
    unmeasured = (SPECIAL_LAYERS[name] for name in special_layers(problem.model) if name in WITHOUT_RUNS)
    training = problem.spec.training
    optimizer = (
        say("optimizer {optimizer}", optimizer=training.optimizer),
    ) * training.whole_matrices  # it takes time that Adam's does not
    images = (say("an encoder of images"),) * (problem.encoder is not None)
    return (*found, *unmeasured, *optimizer, *images, *_of_finetuning(problem), *_of_cluster(problem, strategy))


def _of_finetuning(problem: Problem) -> Iterator[str]:
    """Adapters and packed sequences: no published run that constants were fitted to has had these."""
    if problem.lora is not None:
        yield say("adapters beside frozen layers") + say(" in 4 bits") * (problem.lora.quantized_base is not None)
    if problem.spec.training.packs:
        yield say("attention within packed sequences")


def _of_cluster(problem: Problem, strategy: Strategy) -> Iterator[str]:
    """What no published run says of its cluster: NVLink taken away, levels that are narrower than an adapter."""
    requests = dict(zip(problem.chip_names, problem.spec.cluster.chips.values(), strict=False))
    for name in dict.fromkeys(strategy.stage_chips):
        if name in requests and requests[name].nvlink == "none":
            yield say("{name} without NVLink", name=name)
    if problem.network is None:
        return
    for name in dict.fromkeys(strategy.stage_chips):
        first, *others = problem.network.tiers(problem.supply(name).chip)
        narrow = (tier for tier in others if tier.bandwidth_bytes_s < first.bandwidth_bytes_s)
        crossed = next((tier for tier in narrow if tier.unit < strategy.devices), None)
        if crossed is not None:
            yield say("less bandwidth beyond {unit:,} devices of the network", unit=crossed.unit)
            return
