"""The problem statement without a solver: every rule a plan must keep, each (problem, strategy) -> violations.

The solver's side of a rule has the same name: a filter in space.py, a pattern in plans.py or a constraint family in
compile/constraints.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cpsolver.decisions import forbidden_for, pinned_for
from cpsolver.evaluate import stage_memory
from cpsolver.plans import chip_blocks
from cpsolver.problem import Problem
from cpsolver.strategy import Strategy
from hw_specs.units import GIB


@dataclass(frozen=True)
class Violation:
    """One broken rule, with the numbers that break it."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


Rule = Callable[[Problem, Strategy], Iterator[str]]


def degrees(problem: Problem, s: Strategy) -> Iterator[str]:
    """Every device is used exactly once: tp * pp * dp = GPUs, and there are pp stages."""
    if s.tp * s.pp * s.dp != problem.num_gpus:
        yield f"tp {s.tp} x pp {s.pp} x dp {s.dp} = {s.tp * s.pp * s.dp} devices, not {problem.num_gpus}"
    if len(s.layers) != s.pp:
        yield f"{len(s.layers)} stages are described, pp is {s.pp}"


def heads(problem: Problem, s: Strategy) -> Iterator[str]:
    """Attention heads are split evenly over tp."""
    if problem.model.heads % s.tp:
        yield f"{problem.model.heads} attention heads are not a multiple of tp {s.tp}"


def kv_groups(problem: Problem, s: Strategy) -> Iterator[str]:
    """Key-value heads are split over tp, or tp over them (Megatron since core 0.13)."""
    groups = problem.model.kv_heads
    if groups % s.tp and s.tp % groups:
        yield f"{groups} key-value heads and tp {s.tp}: neither divides the other"


def feed_forward(problem: Problem, s: Strategy) -> Iterator[str]:
    """The feed-forward width is split evenly over tp."""
    if problem.model.ffn % s.tp:
        yield f"feed-forward width {problem.model.ffn} is not a multiple of tp {s.tp}"


def tensor_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    """A tensor-parallel group fills nodes or divides one."""
    if problem.node % s.tp and s.tp % problem.node:
        yield f"tp {s.tp} neither divides nor is a multiple of the {problem.node} devices of a node"


def pipeline_depth(problem: Problem, s: Strategy) -> Iterator[str]:
    """There is a layer for every stage."""
    if s.pp > problem.model.layers:
        yield f"pp {s.pp} is more than the {problem.model.layers} layers"


def batch(problem: Problem, s: Strategy) -> Iterator[str]:
    """The global batch is a whole number of microbatches on every data-parallel rank."""
    if problem.batch % (s.mbs * s.dp):
        yield f"global batch {problem.batch} is not a multiple of mbs {s.mbs} x dp {s.dp} = {s.mbs * s.dp}"


def interleaving(problem: Problem, s: Strategy) -> Iterator[str]:
    """Interleaving needs a pipeline, and microbatches in whole groups of pp (Megatron's schedule)."""
    if s.vpp > 1 and s.pp == 1:
        yield f"vpp {s.vpp} needs a pipeline, and pp is 1"
    elif s.vpp > 1 and s.microbatches(problem.batch) % s.pp:
        yield f"vpp {s.vpp}: {s.microbatches(problem.batch)} microbatches are not a multiple of pp {s.pp}"


def even_chunks(problem: Problem, s: Strategy) -> Iterator[str]:
    """The chunks of a stage have equally many layers (uneven ones stall the interleaved schedule)."""
    for stage, count in enumerate(s.layers):
        if count % s.vpp:
            yield f"stage {stage} has {count} layers, not a multiple of vpp {s.vpp}"


def sequence_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Sequence parallelism needs tp > 1 and a sequence that tp divides."""
    if s.sequence_parallel and s.tp == 1:
        yield "sequence parallelism needs tp > 1"
    elif s.sequence_parallel and problem.sequence % s.tp:
        yield f"sequence length {problem.sequence} is not a multiple of tp {s.tp}"


def distributed_optimizer(problem: Problem, s: Strategy) -> Iterator[str]:
    """The distributed optimizer needs data parallelism: with dp 1 it is the plain one."""
    if s.distributed_optimizer and s.dp == 1:
        yield "the distributed optimizer has nothing to shard over: dp is 1"


def chip_count(problem: Problem, s: Strategy) -> Iterator[str]:
    """No chip type serves more devices than there are."""
    for chip in dict.fromkeys(s.stage_chips):
        used = s.stage_chips.count(chip) * s.tp * s.dp
        if chip not in problem.chip_names:
            yield f"chip {chip} is not in the cluster ({', '.join(problem.chip_names)})"
        elif used > problem.supply(chip).limit:
            yield f"{used} {chip} are used, at most {problem.supply(chip).limit} are there"


def whole_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    """Chip types do not share a node."""
    chips = dict.fromkeys(s.stage_chips)
    for chip in chips if len(chips) > 1 else ():
        used = s.stage_chips.count(chip) * s.tp * s.dp
        if used % problem.node:
            yield f"{used} {chip} do not fill nodes of {problem.node}"


def contiguous_chips(problem: Problem, s: Strategy) -> Iterator[str]:
    """Each chip type serves one block of neighbouring stages."""
    blocks = [chip for chip, _ in chip_blocks(s.stage_chips)]
    for chip in dict.fromkeys(blocks):
        if blocks.count(chip) > 1:
            yield f"{chip} serves {blocks.count(chip)} separate blocks of stages"


def layers(problem: Problem, s: Strategy) -> Iterator[str]:
    """Every layer is on one stage, and every chunk has one."""
    if sum(s.layers) != problem.model.layers:
        yield f"the stages have {sum(s.layers)} layers in all, the model {problem.model.layers}"
    for stage, count in enumerate(s.layers):
        if count < s.vpp:
            yield f"stage {stage} has {count} layers for {s.vpp} chunks"


def layer_split(problem: Problem, s: Strategy) -> Iterator[str]:
    """Stages are equal, in all or by chip type, where the spec asks for it."""
    split = problem.spec.search.layer_split
    groups = {"even": [s.layers], "even_per_chip": _layers_by_chip(s)}
    for counts in groups.get(split, []):
        if len(set(counts)) > 1:
            yield f"layers per stage {_listed(counts)} differ, layer_split is {split}"


def _layers_by_chip(s: Strategy) -> list[tuple[int, ...]]:
    pairs = list(zip(s.stage_chips, s.layers, strict=True))
    return [tuple(count for name, count in pairs if name == chip) for chip in dict.fromkeys(s.stage_chips)]


def recompute(problem: Problem, s: Strategy) -> Iterator[str]:
    """A number of recomputed layers goes with block and uniform only; with scope chip it is one a chip type."""
    for group in s.groups:
        amounts = group.stage_recompute_layers
        if len(amounts) != group.num_stages:
            yield f"{group.chip}: {len(amounts)} recompute numbers for {group.num_stages} stages"
        wrong = [n for n in amounts if (n < 1 if group.recompute in ("block", "uniform") else n != 0)]
        if wrong:
            yield f"{group.chip}: recompute {group.recompute} with {wrong[0]} layers"
    if problem.spec.search.recompute_scope == "chip":
        for chip in dict.fromkeys(s.stage_chips):
            told = {
                (kind, n)
                for name, kind, n in zip(s.stage_chips, s.recompute, s.recompute_layers, strict=False)
                if name == chip
            }
            if len(told) > 1:
                yield f"{chip}: stages recompute differently ({sorted(told)}), recompute_scope is chip"


def memory(problem: Problem, s: Strategy) -> Iterator[str]:
    """Every stage fits its device's memory less the margin."""
    for stage, (chip, need) in enumerate(zip(s.stage_chips, stage_memory(problem, s), strict=True)):
        room = problem.capacity_bytes(problem.supply(chip).chip)
        if need.total > room * (1 + 1e-9):
            yield f"stage {stage} on {chip} needs {need.total / GIB:.2f} GiB, {room / GIB:.2f} GiB are free for it"


def pin(problem: Problem, s: Strategy) -> Iterator[str]:
    """What the user pinned is so, and what was forbidden is not."""
    pins, bans = problem.spec.search.pin, problem.spec.search.forbid
    flags = ("sequence_parallel", "distributed_optimizer", "flash_attention")
    for name in ("tp", "pp", "dp", "mbs", "vpp", *flags):
        value, wanted, banned = getattr(s, name), getattr(pins, name), getattr(bans, name)
        if wanted is not None and value not in wanted:
            yield f"{name} is {value}, pinned to {_listed(wanted)}"
        if banned is not None and value in banned:
            yield f"{name} {value} is forbidden"
    blocks = tuple(chip for chip, _ in chip_blocks(s.stage_chips))
    whole = {"chip_order": blocks, "stage_chips": s.stage_chips, "layers": s.layers}
    for name, found in whole.items():
        wanted, banned = getattr(pins, name), getattr(bans, name)
        if name == "chip_order" and wanted is not None:
            wanted = tuple(chip for chip in wanted if chip in blocks)
        if wanted is not None and found != wanted:
            yield f"{name} is {_listed(found)}, pinned to {_listed(wanted)}"
        if banned is not None and found == banned:
            yield f"{name} {_listed(found)} is forbidden"
    yield from _pinned_by_chip(problem, s)


def _pinned_by_chip(problem: Problem, s: Strategy) -> Iterator[str]:
    pins, bans = problem.spec.search.pin, problem.spec.search.forbid
    for chip in problem.chip_names:
        here = [index for index, name in enumerate(s.stage_chips) if name == chip]
        found: dict[str, set[object]] = {
            "stages": {len(here)},
            "recompute": {s.recompute[index] for index in here},
            "recompute_num_layers": {s.recompute_layers[index] for index in here},
        }
        for name, values in found.items():
            wanted = pinned_for(getattr(pins, name), chip)
            banned = forbidden_for(getattr(bans, name), chip)
            for value in sorted(values, key=repr):
                if wanted is not None and value not in wanted:
                    yield f"{name} of {chip} is {value}, pinned to {_listed(wanted)}"
                if value in banned:
                    yield f"{name} {value} of {chip} is forbidden"


def _listed(values: object) -> str:
    return ", ".join(str(value) for value in values) if isinstance(values, tuple) else str(values)


STRUCTURE: dict[str, Rule] = {
    "degrees": degrees,
    "chip_count": chip_count,
    "batch": batch,
    "layers": layers,
    "even_chunks": even_chunks,
    "interleaving": interleaving,
    "recompute": recompute,
}
"""Rules that a plan must keep for its time and memory to mean anything."""

RULES: dict[str, Rule] = {
    **STRUCTURE,
    "pin": pin,
    "heads": heads,
    "kv_groups": kv_groups,
    "feed_forward": feed_forward,
    "tensor_nodes": tensor_nodes,
    "pipeline_depth": pipeline_depth,
    "sequence_parallel": sequence_parallel,
    "distributed_optimizer": distributed_optimizer,
    "whole_nodes": whole_nodes,
    "contiguous_chips": contiguous_chips,
    "layer_split": layer_split,
    "memory": memory,
}
"""Every rule by name."""


def structure_violations(problem: Problem, strategy: Strategy) -> list[Violation]:
    """Violations of the rules of STRUCTURE: with any of these a plan cannot be evaluated."""
    return [Violation(name, message) for name, rule in STRUCTURE.items() for message in rule(problem, strategy)]


def violations(problem: Problem, strategy: Strategy) -> list[Violation]:
    """Every violation of every rule; memory is judged only for plans that are structurally sound."""
    found = structure_violations(problem, strategy)
    rest = [name for name in RULES if name not in STRUCTURE and not (found and name == "memory")]
    return found + [Violation(name, message) for name in rest for message in RULES[name](problem, strategy)]
