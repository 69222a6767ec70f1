"""How parts of a plan are called in a report, and what its numbers rest on that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence

from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import runs
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.problem import Problem
from hw_specs import Chip

PART_NAMES = {
    "compute": later("compute"),
    "tensor_parallel": later("communication in layers"),
    "recompute": later("recomputation"),
    "sharding": later("sharded weights and gradients"),
    "pipeline_p2p": later("pipeline transfers (p2p)"),
    "bubble": later("pipeline bubble"),
    "data_parallel": later("data-parallel communication"),
    "optimizer": later("optimizer step"),
}
"""What the parts of a step's time are called."""

CONFIDENCE = {
    "verified": later("verified"),
    "secondary": later("secondary"),
    "assumed": later("assumed"),
    "measured": later("measured"),
    "fitted": later("fitted"),
}
"""How sure a value of a catalogue is."""


def part_name(part: str) -> str:
    """What a part of a step's time is called."""
    return say(PART_NAMES.get(part, part))


def part_names(traffic: str) -> dict[str, str]:
    """What all of them are called; `traffic`: between which ranks data moves inside layers (degrees.layer_traffic)."""
    within = say("{traffic} communication", traffic=traffic)
    return {**{part: say(name) for part, name in PART_NAMES.items()}, "tensor_parallel": within}


def recompute_text(strategy: Strategy, chip: str) -> str:
    """How a chip type's stages recompute: `none`, `selective`, `block 1`, stage by stage where they differ."""
    texts = []
    for stage in (stage for stage, name in enumerate(strategy.stage_chips) if name == chip):
        kind, amount = strategy.recompute[stage], strategy.recompute_layers[stage]
        modules = strategy.recompute_modules[stage]
        which = f": {', '.join(modules)}" if modules not in ((), CORE) else ""
        texts.append(f"{kind} {amount}" if amount else f"{kind}{which}")
    return texts[0] if len(set(texts)) == 1 else runs(texts)


def _rests_on(problem: Problem, chip: Chip, efficiency: str) -> bool:
    """Whether plans of the problem rest on that efficiency; on that of fp32 GEMMs few do."""
    in_fp32 = problem.element_bytes == 4 or problem.spec.training.optimizer == "soap"
    return chip.uses_efficiency(efficiency) and (efficiency != "gemm_fp32" or in_fp32)


def assumptions(problem: Problem, chips: Sequence[str]) -> list[str]:
    """What the prediction rests on that nobody measured or published."""
    lines = []
    for name in chips:
        chip = problem.supply(name).chip
        figures = [figure for figure_name, figure in chip.efficiency.items() if _rests_on(problem, chip, figure_name)]
        doubtful = (figure for figure in figures if figure.confidence == "assumed")
        assumed = sum(figure.source != "given by the user" for figure in doubtful)
        if assumed:
            lines.append(
                say(
                    "{name}: {assumed} of {figures} catalogued efficiencies are assumed, not measured.",
                    name=name,
                    assumed=assumed,
                    figures=len(figures),
                )
            )
    longest = problem.model.max_positions
    if longest is not None and problem.sequence > longest:
        published = say("{name} was published for {longest:,} positions", name=problem.model.name, longest=longest)
        lines.append(say("{published}; the sequence has {sequence:,}.", published=published, sequence=problem.sequence))
    vendors = dict.fromkeys(problem.supply(name).chip.vendor for name in chips)
    if len(vendors) > 1:
        mixed = say("Chips of {vendors} in one job", vendors=" and ".join(vendors))
        lines.append(say("{mixed}: the launcher must bridge their communication libraries.", mixed=mixed))
    if problem.model.proposal:
        lines.append(say("{name}: the shape is a proposal; nobody has published one.", name=problem.model.name))
    return lines
