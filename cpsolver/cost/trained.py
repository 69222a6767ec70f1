"""Which of the parameters that a device holds are trained, and what the others weigh beside them.

With adapters (LoRA) only these have gradients, optimizer states and communication of replicas; frozen weights are
there, and gathered where they are shared out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpsolver.cost.adapters import layer_adapter_parameters
from cpsolver.cost.kinds import examples, kind_shares
from cpsolver.cost.memory import StageParameters, stage_parameters
from cpsolver.cost.shard import Candidates, Floats
from cpsolver.cost.states import base_bytes
from cpsolver.problem.problem import Problem
from models_zoo.params import layer_parameters


def trained_parameters(problem: Problem, rows: Candidates) -> StageParameters:
    """Of what is trained: all that a device holds, or the adapters, of whose matrices each rank has its share."""
    if problem.lora is None:
        return stage_parameters(problem, rows)
    layers = np.array(layer_adapter_parameters(problem), dtype=np.float64)[:, None] / rows.tp
    layer, none = _mean(problem, layers), np.zeros(len(rows))
    return StageParameters(layer, none, layers - layer, 0 * layers, none, none, none)


def weighed_parameters(problem: Problem, rows: Candidates, each: float) -> StageParameters:
    """All that a device holds, counted in trained parameters of `each` bytes a weight: trained ones, and as many more
    as frozen weights take the bytes of. Linear layers may be in 4 bits, all else is as it is without adapters."""
    held = stage_parameters(problem, rows)
    if problem.lora is None:
        return held
    adapters, narrow = trained_parameters(problem, rows), base_bytes(problem) / each or 1.0
    layers = narrow * (held.layer + held.kind_layer) + (1 - narrow) * _not_linear(problem)[:, None]
    layers = layers + adapters.layer + adapters.kind_layer
    layer = _mean(problem, layers)
    experts = {"experts": narrow * held.experts, "kind_experts": narrow * held.kind_experts}
    return replace(held, layer=layer, kind_layer=layers - layer, **experts)


def _not_linear(problem: Problem) -> Floats:
    """Parameters of a layer of each kind that are in no linear layer: norms."""
    counted = [layer_parameters(problem.model, index) for index in examples(problem.model)]
    return np.array([each.norms + each.attention_norms for each in counted], dtype=np.float64)


def _mean(problem: Problem, of_kinds: Floats) -> Floats:
    """The mean over the model's layers of values (kinds, rows)."""
    return np.asarray((np.array(kind_shares(problem.model))[:, None] * of_kinds).sum(axis=0))
