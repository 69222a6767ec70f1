"""Experts that keep little for the backward pass: what `training.moe_zero_memory` drops, and its making again.

MindSpeed's --moe-zero-memory (028de58, core/transformer/moe/moe_feature): overlap/ with --moe-alltoall-overlap-comm,
fb_overlap/ with --moe-fb-overlap. Both apply the router's probabilities inside the experts, so that no results of
theirs are kept. level0 drops the experts' inputs, which are sent to them once more, and their activations' results;
level1 the results of gate and up projection too, and all that shared experts keep inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost import compute, gemms
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.compute import Traffic
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.routing import dispatch_seconds, expert_tensor_seconds, reordered_rows
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from hw_specs import Chip


@dataclass(frozen=True)
class Dropped:
    """Bytes a layer and microbatch that are not kept, of each sort; arrays with one entry a candidate.

    inputs: of routed experts. results: of their last product. routed, shared: of activation functions, and of level1
    also of the products before them.
    """

    inputs: Floats
    results: Floats
    routed: Floats
    shared: Floats

    @property
    def all(self) -> Floats:
        """All of them."""
        return self.inputs + self.results + self.routed + self.shared

    @property
    def inside(self) -> dict[str, Floats]:
        """What a recomputed module would drop anyway, by its name of MODULES."""
        return {"moe": self.all, "moe_act": self.routed, "shared_experts": self.shared}

    @property
    def held(self) -> Floats:
        """Bytes there at once while a layer runs backward. Results are not made again."""
        figures = techniques()
        return np.asarray(
            figures.expert_inputs_held * self.inputs + figures.function_results_held * (self.routed + self.shared)
        )


def dropped(problem: Problem, shard: Shard, kind: LayerKind, input_bytes: float) -> Dropped | None:
    """What a layer of that kind does not keep; None without the switch or experts. `input_bytes`: of an element of a
    product's input. What the switch for activation functions drops is not dropped again."""
    training, moe = problem.spec.training, problem.model.moe
    if training.moe_zero_memory is None or not kind.experts or moe is None:
        return None
    tokens, tp, width = shard.tokens(problem.sequence), shard.tp.astype(np.float64), problem.model.expert_width
    load = gemms.routed_load(problem)
    gates = (2 if problem.model.gated_mlp else 1) * (training.moe_zero_memory == "level1")
    narrow = problem.stack.fp8_activation_inputs
    before = gates * (narrow * input_bytes + (1 - narrow) * problem.element_bytes)
    functions = 0.0 if training.recompute_activation_function else input_bytes
    of_shared = (before + functions) * bool(gates)
    weighted = 0.0 if training.recompute_activation_function else weighted_activations(problem, shard)
    return Dropped(
        inputs=input_bytes * tokens * load * moe.computed * width * shard.etp / tp,
        results=problem.element_bytes
        * tokens
        * (problem.stack.kept_expert_outputs * moe.computed * width / shard.sequence_split),
        routed=(before + functions) * tokens * load * moe.computed * moe.expert_ffn / tp + weighted,
        shared=of_shared * tokens * moe.shared_width / tp,
    )


def weighted_activations(problem: Problem, shard: Shard) -> Floats | float:
    """Bytes a layer and microbatch of routed experts' activations before the router's probabilities are applied, in 16
    bits, where a stack keeps these beside the results."""
    moe = problem.model.moe
    if moe is None or not problem.stack.kept_weighted_activations:
        return 0.0
    width = gemms.routed_load(problem) * moe.computed * moe.expert_ffn / shard.tp.astype(np.float64)
    kept = problem.stack.kept_weighted_activations * problem.element_bytes
    return np.asarray(kept * shard.tokens(problem.sequence) * width)


def restoring_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> Floats:
    """Seconds a layer and microbatch in which that is made again: permutation, all-to-all, activation functions, and
    with level1 the first products.

    The all-to-all runs beside the input gradient of gate and up projection, or with level1 beside shared experts' first
    product: what it takes longer counts.
    """
    training, moe, model = problem.spec.training, problem.model.moe, problem.model
    if training.moe_zero_memory is None or not kind.experts or moe is None:
        return np.zeros(len(shard.tp))
    device, tokens = ChipSpeeds(problem, chip), shard.tokens(problem.sequence)
    deep, gates = training.moe_zero_memory == "level1", 2 if model.gated_mlp else 1
    made_of = {gemm.name: gemm for gemm in gemms.expert_gemms(model, shard, gemms.routed_load(problem))}
    first, of_shared = (
        compute.part_seconds(problem, device, [made_of[name]], tokens, [])[0]
        if name in made_of
        else np.zeros(len(shard.tp))
        for name in ("experts up", "shared experts up")
    )
    sent = dispatch_seconds(problem, chip, shard) + expert_tensor_seconds(problem, chip, shard) / 2 * (shard.etp > 1)
    waits = np.maximum(0.0, sent - (of_shared if deep else first))
    moved = reordered_rows(problem, shard) / 2 * model.expert_width * tokens / shard.sequence_split
    functions = gemms.routed_load(problem) * moe.computed * moe.expert_ffn + moe.shared_width * deep
    functions *= not training.recompute_activation_function
    traffic = [Traffic("permutation", moved, 4), Traffic("activation", (gates + 1) * functions / shard.tp * tokens, 1)]
    again = sum(compute.stream(problem, device, each) for each in traffic if np.any(each.elements))
    return np.asarray(again + waits + (first + of_shared) * deep)
