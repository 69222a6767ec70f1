"""The problem statement without a solver: every rule a plan must keep, each (problem, strategy) -> violations.

The solver's side of a rule has the same name: a filter in space.py, a pattern in plans.py or a constraint family in
compile/constraints.py. Rules stand by theme in the modules here; no module has the name of a rule, so that
`cpsolver.rules.<rule>` is the rule.

Imports from evaluation and what stands before it; never from search.
"""

from __future__ import annotations

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import Rule, Violation
from cpsolver.rules.capacity import memory, recompute
from cpsolver.rules.chips import chip_count, contiguous_chips, tensor_nodes, whole_nodes
from cpsolver.rules.launching import launcher, stack
from cpsolver.rules.layout import batch, context_parallel, degrees
from cpsolver.rules.model import (
    context_exchange,
    expert_sequence_parallel,
    experts,
    feed_forward,
    heads,
    kv_groups,
    sequence_parallel,
)
from cpsolver.rules.pins import pin
from cpsolver.rules.pipeline import even_chunks, interleaving, layer_split, layers, pipeline_depth, schedule
from cpsolver.rules.sharding import distributed_optimizer, optimizer, sharding

__all__ = ["RULES", "STRUCTURE", "Rule", "Violation", "structure_violations", "violations"]

_SIZES: dict[str, Rule] = {"degrees": degrees, "context_parallel": context_parallel, "experts": experts}
"""Rules that can be asked whatever the sizes are; all others divide by them."""

STRUCTURE: dict[str, Rule] = {
    **_SIZES,
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
    "launcher": launcher,
    "stack": stack,
    "heads": heads,
    "kv_groups": kv_groups,
    "context_exchange": context_exchange,
    "feed_forward": feed_forward,
    "tensor_nodes": tensor_nodes,
    "pipeline_depth": pipeline_depth,
    "sequence_parallel": sequence_parallel,
    "expert_sequence_parallel": expert_sequence_parallel,
    "distributed_optimizer": distributed_optimizer,
    "optimizer": optimizer,
    "sharding": sharding,
    "schedule": schedule,
    "whole_nodes": whole_nodes,
    "contiguous_chips": contiguous_chips,
    "layer_split": layer_split,
    "memory": memory,
}
"""Every rule by name."""


def structure_violations(problem: Problem, strategy: Strategy) -> list[Violation]:
    """Violations of the rules of STRUCTURE: with any of these a plan cannot be evaluated."""
    return _broken(_SIZES if _sizes_are_wrong(strategy) else STRUCTURE, problem, strategy)


def violations(problem: Problem, strategy: Strategy) -> list[Violation]:
    """Every violation of every rule; memory is judged only for plans that are structurally sound."""
    found = structure_violations(problem, strategy)
    if _sizes_are_wrong(strategy):
        return found
    rest = {name: rule for name, rule in RULES.items() if name not in STRUCTURE and not (found and name == "memory")}
    return found + _broken(rest, problem, strategy)


def _broken(rules: dict[str, Rule], problem: Problem, strategy: Strategy) -> list[Violation]:
    return [Violation(name, message) for name, rule in rules.items() for message in rule(problem, strategy)]


def _sizes_are_wrong(s: Strategy) -> bool:
    """A size below 1, which nothing can be divided by."""
    return min(s.tp, s.pp, s.dp, s.mbs, s.vpp, s.cp, s.ulysses, s.ep, s.etp) < 1
