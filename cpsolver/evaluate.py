"""What a strategy gives: seconds and bytes with a breakdown that sums to the total. Independent of the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpsolver.cost import memory
from cpsolver.cost.comm import fast_domain
from cpsolver.cost.compute import model_flops_per_step
from cpsolver.cost.memory import StageBytes
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import TimeTable, crosses_domain, memory_table, time_table
from cpsolver.problem import Problem
from cpsolver.schedule import closed_form_s, peak_live_total
from cpsolver.strategy import RecomputeKind, Strategy

PARTS = ("compute", "tensor_parallel", "recompute", "pipeline_p2p", "bubble", "data_parallel", "optimizer")
"""The parts of a step's time; they sum to it."""


@dataclass(frozen=True)
class StageEvaluation:
    """One pipeline stage: seconds per microbatch, seconds per step outside the pipeline, bytes per device.

    `forward_s` is the forward pass within `microbatch_s`, tensor-parallel communication included, transfers not.
    """

    chip: str
    layers: int
    recompute: RecomputeKind
    recompute_layers: int
    compute_s: float
    tensor_parallel_s: float
    recompute_s: float
    pipeline_p2p_s: float
    data_parallel_s: float
    optimizer_s: float
    memory: StageBytes
    capacity_bytes: float
    forward_s: float

    @property
    def backward_s(self) -> float:
        """The rest of `microbatch_s` but for the transfers: backward pass and recomputation."""
        return self.microbatch_s - self.pipeline_p2p_s - self.forward_s

    @property
    def microbatch_s(self) -> float:
        """Forward and backward of one microbatch, with all that the stage waits for."""
        return self.compute_s + self.tensor_parallel_s + self.recompute_s + self.pipeline_p2p_s

    @property
    def after_s(self) -> float:
        """What follows the pipeline in a step."""
        return self.data_parallel_s + self.optimizer_s


@dataclass(frozen=True)
class Evaluation:
    """A strategy's predicted numbers. `breakdown_s` has the names of PARTS and sums to `step_time_s`."""

    step_time_s: float
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


def evaluate(problem: Problem, strategy: Strategy) -> Evaluation:
    """Predict a structurally sound strategy (see rules.structure); whether it fits in memory is for the rules to say.

    Step time: (m - 1/vpp) * slowest stage + sum of stages / vpp, then the slowest stage's exposed data-parallel
    communication and optimizer step.
    """
    stages = stage_evaluations(problem, strategy)
    m = strategy.microbatches(problem.batch)
    times = np.array([stage.microbatch_s for stage in stages])
    slowest = stages[int(times.argmax())]
    last = max(stages, key=lambda stage: stage.after_s)
    bubble = closed_form_s(times, m, strategy.vpp) - m * slowest.microbatch_s
    breakdown = {
        "compute": m * slowest.compute_s,
        "tensor_parallel": m * slowest.tensor_parallel_s,
        "recompute": m * slowest.recompute_s,
        "pipeline_p2p": m * slowest.pipeline_p2p_s,
        "bubble": bubble,
        "data_parallel": last.data_parallel_s,
        "optimizer": last.optimizer_s,
    }
    step = sum(breakdown.values())
    tokens = problem.batch * problem.sequence
    peak = sum(
        problem.supply(chip).chip.peak_flops(problem.spec.training.precision) * strategy.tp * strategy.dp
        for chip in strategy.stage_chips
    )
    return Evaluation(
        step_time_s=step,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=tokens / step / problem.num_gpus,
        mfu=model_flops_per_step(problem) / (step * peak),
        breakdown_s=breakdown,
        stages=tuple(stages),
    )


def stage_evaluations(problem: Problem, strategy: Strategy) -> list[StageEvaluation]:
    """Every stage on its own, first to last."""
    row = Candidates.one(strategy, problem.batch)
    chips = dict.fromkeys(strategy.stage_chips)
    tables = {chip: time_table(problem, problem.supply(chip), row) for chip in chips}
    bytes_needed = stage_memory(problem, strategy)
    hops = _hops(problem, strategy, tables)
    stages = []
    for index, chip in enumerate(strategy.stage_chips):
        table, layers = tables[chip], strategy.layers[index]
        first, last = index == 0, index == strategy.pp - 1
        ends = first * table.embedding[0] + last * table.head[0]
        end_tp = (first + last) * table.end_tp[0]
        tensor = layers * table.layer_tp[0] + end_tp
        sync = layers * table.sync_layer[0] + table.sync_stage[0]
        sync += first * table.sync_first[0] + last * table.sync_last[0]
        update = layers * table.update_layer[0] + first * table.update_first[0] + last * table.update_last[0]
        stages.append(
            StageEvaluation(
                chip=chip,
                layers=layers,
                recompute=strategy.recompute[index],
                recompute_layers=strategy.recompute_layers[index],
                compute_s=float(layers * table.layer[0] + ends - tensor),
                tensor_parallel_s=float(tensor),
                recompute_s=float(_recompute_s(strategy, index, table)),
                pipeline_p2p_s=hops[index],
                data_parallel_s=float(sync),
                optimizer_s=float(update),
                memory=bytes_needed[index],
                capacity_bytes=problem.capacity_bytes(problem.supply(chip).chip),
                # A recomputed layer runs its forward again; of embedding and head, forward is a third.
                forward_s=float(layers * table.recompute[0] + ends / 3.0),
            )
        )
    return stages


def _recompute_s(strategy: Strategy, index: int, table: TimeTable) -> float:
    kind, layers, amount = strategy.recompute[index], strategy.layers[index], strategy.recompute_layers[index]
    if kind == "selective":
        return layers * float(table.selective[0])
    if kind == "uniform":
        return layers * float(table.recompute[0])
    if kind == "block":
        return min(layers, strategy.vpp * amount) * float(table.recompute[0])
    return 0.0


def _hops(problem: Problem, strategy: Strategy, tables: Mapping[str, TimeTable]) -> list[float]:
    """Seconds per microbatch that each stage spends on transfers from and to its neighbours.

    A transfer between chip types takes the slower end's time. Interleaving sends every chunk's activations, also
    from the last stage back to the first; part of that is hidden.
    """
    pp, vpp, width = strategy.pp, strategy.vpp, strategy.tp * strategy.dp
    if pp == 1:
        return [0.0]
    chips = strategy.stage_chips

    def link(stage: int, to: int) -> float:
        ends = [tables[chips[stage]], tables[chips[to]]]
        domain = fast_domain(problem, problem.supply(chips[stage]).chip)
        if chips[stage] != chips[to]:
            far = True
        elif to == stage + 1:
            far = bool(crosses_domain(np.array(stage), width, domain))
        else:
            far = pp * width > domain
        return max(float(table.hop_far[0] if far else table.hop_near[0]) for table in ends)

    links = [link(stage, stage + 1) for stage in range(pp - 1)]
    wrap = link(pp - 1, 0) * (vpp - 1)
    share = 1.0 if vpp == 1 else 1.0 - problem.stack.pipeline_overlap_interleaved
    into = [wrap, *(vpp * seconds for seconds in links)]
    out = [*(vpp * seconds for seconds in links), wrap]
    return [share * (a + b) for a, b in zip(into, out, strict=True)]


def stage_memory(problem: Problem, strategy: Strategy) -> list[StageBytes]:
    """Bytes per device of every stage, first to last."""
    row = Candidates.one(strategy, problem.batch)
    table = memory_table(problem, row)
    parameters = memory.stage_parameters(problem, row)
    per_parameter = memory.state_bytes_per_parameter(problem, row)
    live = peak_live_total(strategy.pp, strategy.vpp, strategy.microbatches(problem.batch))
    layer = (float(table.full[0]), float(table.selective[0]), float(table.checkpoint[0]))
    stages = []
    for index in range(strategy.pp):
        first, last = index == 0, index == strategy.pp - 1
        held = strategy.layers[index] * parameters.layer[0]
        held += first * parameters.first[0] + last * parameters.last[0]
        activations = memory.activation_bytes(
            layer,
            live[index],
            np.array(strategy.layers[index] // strategy.vpp),
            strategy.recompute[index],
            np.array(strategy.recompute_layers[index]),
        )
        buffers = (table.last_buffer if last else table.buffer)[0]
        stages.append(
            StageBytes(
                weights=float(held * per_parameter[0]),
                gradients=float(held * per_parameter[1]),
                optimizer=float(held * per_parameter[2][0]),
                activations=float(activations * (1 + table.overhead)),
                buffers=float(buffers * (1 + table.overhead)),
                framework=table.fixed,
            )
        )
    return stages
