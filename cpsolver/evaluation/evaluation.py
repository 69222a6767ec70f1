"""What an evaluation says: a step and its stages in seconds and bytes, with breakdowns that sum to the totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpsolver.cost.memory import StageBytes
from cpsolver.cost.modules import Modules
from cpsolver.plans.strategy import RecomputeKind

PARTS = ("compute", "tensor_parallel", "recompute", "sharding", "pipeline_p2p", "bubble", "data_parallel", "optimizer")
"""The parts of a step's time; they sum to it."""


@dataclass(frozen=True)
class StageEvaluation:
    """One pipeline stage: seconds per microbatch, seconds per step outside the pipeline, bytes per device.

    `tensor_parallel_s` is all communication inside the layers; `sharding_s` gathers sharded parameters and scatters
    their gradients. `forward_s` is the forward pass within `microbatch_s`, communication included, transfers not.
    `to_next_s` is how long a microbatch's activations travel to the next stage, whichever of the two waits.
    `weight_gradients_s` is what of the backward pass nothing waits for, where a schedule splits it. Of a V `later_s`,
    `later_forward_s` and `later_weight_gradients_s` are by how much the second chunk takes longer than the first.
    Where microbatches differ in size, seconds per microbatch are one's of the mean size, and `sized` is the same stage
    with each one's own.
    """

    chip: str
    layers: int
    recompute: RecomputeKind
    recompute_layers: int
    compute_s: float
    tensor_parallel_s: float
    recompute_s: float
    sharding_s: float
    pipeline_p2p_s: float
    data_parallel_s: float
    optimizer_s: float
    memory: StageBytes
    capacity_bytes: float
    forward_s: float
    recompute_modules: Modules = ()
    sized: tuple[StageEvaluation, ...] = ()
    weight_gradients_s: float = 0.0
    to_next_s: float = 0.0
    later_s: float = 0.0
    later_forward_s: float = 0.0
    later_weight_gradients_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """The rest of `microbatch_s` but for the transfers: backward pass and recomputation."""
        return self.work_s - self.forward_s

    @property
    def work_s(self) -> float:
        """`microbatch_s` but for the transfers."""
        return self.microbatch_s - self.pipeline_p2p_s

    @property
    def microbatch_s(self) -> float:
        """Forward and backward of one microbatch, with all that the stage waits for."""
        return self.compute_s + self.tensor_parallel_s + self.recompute_s + self.sharding_s + self.pipeline_p2p_s

    @property
    def after_s(self) -> float:
        """What follows the pipeline in a step."""
        return self.data_parallel_s + self.optimizer_s


@dataclass(frozen=True)
class Evaluation:
    """A strategy's predicted numbers. `breakdown_s` has the names of PARTS and sums to `step_time_s`.

    `formula_s`: the step time by the closed form: on one chip type by chains of passes, of which some may be missing;
    over several that of 1F1B, by which plans are found.
    `tokens_per_s` leaves padding out, which `mfu` counts as what is computed.
    """

    step_time_s: float
    formula_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    breakdown_s: Mapping[str, float]
    stages: tuple[StageEvaluation, ...]

    @property
    def memory_bytes_by_chip(self) -> dict[str, float]:
        """The fullest stage of each chip type used, in pipeline order."""
        worst: dict[str, float] = {}
        for stage in self.stages:
            worst[stage.chip] = max(worst.get(stage.chip, 0.0), stage.memory.total)
        return worst
