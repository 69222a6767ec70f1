"""Rules on which chips serve what."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.plans.strategy import Strategy, chip_blocks
from cpsolver.problem.problem import Problem


def tensor_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    """A tensor-parallel group fills nodes or divides one."""
    if problem.node % s.tp and s.tp % problem.node:
        yield f"tp {s.tp} neither divides nor is a multiple of the {problem.node} devices of a node"


def chip_count(problem: Problem, s: Strategy) -> Iterator[str]:
    """No chip type serves more devices than there are."""
    for chip in dict.fromkeys(s.stage_chips):
        used = s.stage_chips.count(chip) * s.stage_devices
        if chip not in problem.chip_names:
            yield f"chip {chip} is not in the cluster ({', '.join(problem.chip_names)})"
        elif used > problem.supply(chip).limit:
            yield f"{used} {chip} are used, at most {problem.supply(chip).limit} are there"


def whole_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    """Chip types do not share a node."""
    chips = dict.fromkeys(s.stage_chips)
    for chip in chips if len(chips) > 1 else ():
        used = s.stage_chips.count(chip) * s.stage_devices
        if used % problem.node:
            yield f"{used} {chip} do not fill nodes of {problem.node}"


def contiguous_chips(problem: Problem, s: Strategy) -> Iterator[str]:
    """Each chip type serves one block of neighbouring stages."""
    blocks = [chip for chip, _ in chip_blocks(s.stage_chips)]
    for chip in dict.fromkeys(blocks):
        if blocks.count(chip) > 1:
            yield f"{chip} serves {blocks.count(chip)} separate blocks of stages"
