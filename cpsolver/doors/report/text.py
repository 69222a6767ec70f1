"""How parts of a plan are called in a report, and what its numbers rest on that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence

from cpsolver.inputs.text import runs
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.problem import Problem
from hw_specs import Chip

PART_NAMES = {
    "compute": "compute",
    "tensor_parallel": "communication in layers",
    "recompute": "recomputation",
    "sharding": "sharded weights and gradients",
    "pipeline_p2p": "pipeline transfers (p2p)",
    "bubble": "pipeline bubble",
    "data_parallel": "data-parallel communication",
    "optimizer": "optimizer step",
}
"""What the parts of a step's time are called."""


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
    """Whether plans of the problem rest on that efficiency; no 16-bit training does on that of fp32 GEMMs."""
    return chip.uses_efficiency(efficiency) and (efficiency != "gemm_fp32" or problem.element_bytes == 4)


def assumptions(problem: Problem, chips: Sequence[str]) -> list[str]:
    """What the prediction rests on that nobody measured or published."""
    lines = []
    for name in chips:
        chip = problem.supply(name).chip
        figures = [figure for figure_name, figure in chip.efficiency.items() if _rests_on(problem, chip, figure_name)]
        doubtful = (figure for figure in figures if figure.confidence == "assumed")
        assumed = sum(figure.source != "given by the user" for figure in doubtful)
        if assumed:
            lines.append(f"{name}: {assumed} of {len(figures)} catalogued efficiencies are assumed, not measured.")
    longest = problem.model.max_positions
    if longest is not None and problem.sequence > longest:
        published = f"{problem.model.name} was published for {longest:,} positions"
        lines.append(f"{published}; the sequence has {problem.sequence:,}.")
    vendors = dict.fromkeys(problem.supply(name).chip.vendor for name in chips)
    if len(vendors) > 1:
        mixed = f"Chips of {' and '.join(vendors)} in one job"
        lines.append(f"{mixed}: the launcher must bridge their communication libraries.")
    if problem.model.proposal:
        lines.append(f"{problem.model.name}: the shape is a proposal; nobody has published one.")
    return lines
