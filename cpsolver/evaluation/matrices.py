"""What it costs that an optimizer takes matrices whole: seconds of the step, padding of the buffers, SOAP's factors."""

from __future__ import annotations

from dataclasses import dataclass

from cpsolver.cost import memory, states, whole_matrices
from cpsolver.cost.shard import Candidates
from cpsolver.plans.folding import folded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class MatrixCosts:
    """Of one pipeline stage, on the fullest rank.

    `matrices_s`: seconds of a step for its matrices, iterations and momentum; `padding_bytes`: of the buffers of
    weights and gradients what is there so that every rank's part is as long as the longest; `padded`: the buffers of
    dense matrices against the matrices in them. `factors_bytes`: of SOAP's factors and eigenbases, 0 with Muon.
    """

    stage: int
    matrices_s: float
    padding_bytes: float
    padded: float
    factors_bytes: float


def matrix_costs(problem: Problem, strategy: Strategy) -> MatrixCosts | None:
    """Of the stage whose matrices take longest; None where the optimizer takes no matrices whole."""
    if not problem.spec.training.whole_matrices:
        return None
    strategy = folded(strategy)
    problem = problem.of_size(strategy.devices)
    return max(
        (_of_stage(problem, strategy, index) for index in range(strategy.pp)), key=lambda costs: costs.matrices_s
    )


def _of_stage(problem: Problem, strategy: Strategy, index: int) -> MatrixCosts:
    rows, layers = Candidates.one(strategy, problem.batch), strategy.layers[index]
    chip, last = problem.supply(strategy.stage_chips[index]).chip, index == strategy.head_stage
    matrices = whole_matrices.matrix_seconds(problem, chip, rows)
    parts = memory.stage_parameters(problem, rows)
    in_buffers = whole_matrices.buffers(problem, rows, parts)
    held = in_buffers.held
    more = layers * (held.layer + held.experts - parts.layer - parts.experts)
    if index == 0:
        more = more + held.encoder
    if last:
        more = more + (held.last + held.last_experts - parts.last - parts.last_experts)
    each = states.state_bytes(problem, rows, rows.shards)
    seconds = layers * matrices.layer + (index == 0) * matrices.first + last * matrices.last
    padding = more * (each.weight + each.gradient)
    matrices_of_layer = whole_matrices.LayerMatrices(problem, rows)
    padded = matrices_of_layer.padding(matrices_of_layer.sizes, False)
    factors = 0.0 if in_buffers.factors is None else _factors(rows, in_buffers.factors, layers, index == 0, last)
    return MatrixCosts(index, float(seconds[0]), float(padding[0]), float(padded[0]), factors)


def _factors(rows: Candidates, elements: memory.StageParameters, layers: int, first: bool, last: bool) -> float:
    """Bytes of SOAP's factors on the fullest rank of a stage with so many layers."""
    dense = layers * elements.layer + first * elements.encoder + last * elements.last
    routed = layers * elements.experts + last * elements.last_experts
    of_dense, of_routed = (states.factor_bytes(rows, ranks) for ranks in (rows.shards, rows.expert_shards))
    return float((dense * of_dense + routed * of_routed)[0])
