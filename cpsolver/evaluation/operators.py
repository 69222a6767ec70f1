"""Compute of a plan's slowest stage by operator, with how close each comes to the chip's peak and what that rests on.

The operators are those that the cost model adds up (cost/compute.py); they are told apart only when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cpsolver.cost.activation_switches import recomputed_projection_seconds
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.compute import end_operators, host_constants, layer_operators
from cpsolver.cost.kinds import layer_kinds, module_counts, over_parts
from cpsolver.cost.layers import Layers
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import time_table
from cpsolver.evaluation.evaluate import slowest_stage, stage_kinds
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.plans.folding import folded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem, Supply
from cpsolver.profiles.constants import replacements
from cpsolver.profiles.provenance import BASES, Basis, Provenance, of_chip, of_stack
from hw_specs import Chip
from hw_specs.schema import EFFICIENCY_NAMES

_AT_PEAK = ("gemm_bf16", "gemm_fp16", "gemm_fp8", "attention_forward", "attention_backward", "memory")
_WITHOUT_LOSS = {
    **dict.fromkeys(("attention_speed", "grouped_gemm_speed", "uneven_grouped_gemm_speed", "misaligned_gemm_speed"), 1),
    **dict.fromkeys(("scan_speed", "sparse_attention_speed"), 1),
    **dict.fromkeys(("gemm_tile_rows", "gemm_tile_columns"), 1),
    **dict.fromkeys(("straggling", "gemm_half_depth", "masked_keys"), 0),
    **dict.fromkeys(("fp8_attention_speed", "mx_attention_speed"), 2),
    "fp8_latent_attention_speed": 1,
}
"""Constants of a stack with which kernels reach the peak, whatever their shape: that of 8 bits is twice that of 16."""
_NO_LATENCY_US = 1e-9
_NOTHING = 1e-12  # a part of compute smaller than this share is rounding


@dataclass(frozen=True)
class OperatorSeconds:
    """Kernels of one name, or what the device waits for: seconds a step.

    `of_peak`: the time at the chip's matrix peak or memory bandwidth over the time that it takes; None for what is no
    kernel. `rests_on`: the constants behind its speed.
    """

    name: str
    seconds: float
    of_peak: float | None
    rests_on: tuple[Provenance, ...]

    @property
    def weakest(self) -> Provenance | None:
        """The constant that is known least; None where it rests on none."""
        return min(self.rests_on, key=lambda each: (BASES.index(each.basis), each.runs or 0), default=None)

    @property
    def basis(self) -> Basis | None:
        """How sure the weakest of its constants is."""
        return None if self.weakest is None else self.weakest.basis


@dataclass(frozen=True)
class StageOperators:
    """Compute of one stage, the one that a step's breakdown tells of; `parts`, the longest first, sum to `seconds`."""

    stage: int
    chip: str
    parts: tuple[OperatorSeconds, ...]

    @property
    def seconds(self) -> float:
        """Compute a step: the breakdown's."""
        return sum(part.seconds for part in self.parts)

    @property
    def unmeasured(self) -> float:
        """Share of it that rests on a constant no measurement bears on."""
        return sum(part.seconds for part in self.parts if part.basis == "assumed") / self.seconds


@dataclass(frozen=True)
class _Part:
    """Seconds of one microbatch on a stage."""

    name: str
    seconds: float
    rests_on: tuple[str, ...]
    kernel: bool = True

    def times(self, count: float) -> _Part:
        """That many of them."""
        return replace(self, seconds=count * self.seconds)


def compute_by_operator(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> StageOperators:
    """`evaluation.breakdown_s["compute"]` by operator."""
    problem = problem.of_size(strategy.devices)
    index = slowest_stage(problem, strategy, evaluation.stages, strategy.microbatches(problem.batch))
    chip = problem.supply(strategy.stage_chips[index]).chip
    ideal, peaks = _at_peak(problem, chip)
    sizes = Counter(strategy.micro_batches) or {strategy.mbs: strategy.microbatches(problem.batch)}
    found: dict[str, tuple[float, float, _Part]] = {}
    for size, count in sizes.items():
        plan = replace(strategy, mbs=size, micro_batches=())
        both = zip(_on_device(problem, chip, plan, index), _on_device(ideal, peaks, plan, index), strict=True)
        for part, best in both:
            seconds, least, known = found.get(part.name, (0.0, 0.0, part))
            names = tuple(dict.fromkeys((*known.rests_on, *part.rests_on)))
            told = replace(known, rests_on=names)
            found[part.name] = seconds + count * part.seconds, least + count * best.seconds, told
    longest = sorted(found.values(), key=lambda each: -each[0])
    rounding = _NOTHING * sum(seconds for seconds, _, _ in longest)
    parts = (_operator(problem, chip, *each) for each in longest if each[0] > rounding)
    return StageOperators(index, chip.name, tuple(parts))


def _operator(problem: Problem, chip: Chip, seconds: float, least: float, part: _Part) -> OperatorSeconds:
    """A factor of 1 changes nothing, and is not named among what an operator rests on."""
    rests_on = [
        of_chip(chip, name, problem.overlay)
        if name in EFFICIENCY_NAMES
        else of_stack(problem.stack, name, problem.overlay)
        for name in part.rests_on
        if name in EFFICIENCY_NAMES or getattr(problem.stack, name) != 1
    ]
    return OperatorSeconds(part.name, seconds, least / seconds if part.kernel else None, tuple(rests_on))


def _at_peak(problem: Problem, chip: Chip) -> tuple[Problem, Chip]:
    """The same work on a chip whose kernels reach the peaks."""
    best = dict.fromkeys(_AT_PEAK, 1.0) | {"kernel_latency_us": _NO_LATENCY_US}
    entries = {name: chip.efficiency[name].model_copy(update={"value": value}) for name, value in best.items()}
    constants = problem.stack.constants.model_copy(update=replacements(_WITHOUT_LOSS))
    ideal = replace(problem, stack=problem.stack.model_copy(update={"constants": constants}))
    return ideal, chip.model_copy(update={"efficiency": {**chip.efficiency, **entries}, "compute_units": None})


def _on_device(problem: Problem, chip: Chip, strategy: Strategy, index: int) -> Iterator[_Part]:
    """What a stage's devices compute for a microbatch: of BOTH_WAYS half of both stages' (plans/folding.py)."""
    if not strategy.both_ways:
        yield from _parts(problem, chip, strategy, index)
        return
    yield from (part.times(0.5) for part in _parts(problem, chip, folded(strategy), index))


def _parts(problem: Problem, chip: Chip, strategy: Strategy, index: int) -> Iterator[_Part]:
    """All that a stage computes for a microbatch: StageEvaluation.compute_s."""
    row, model = Candidates.one(strategy, problem.batch), problem.model
    layers, ends = _layers(problem, chip, row), end_operators(problem, chip, row.shard)
    for kind, count in enumerate(stage_kinds(problem, strategy)[:, index].tolist()):
        yield from (part.times(count) for part in layers[kind])
    time = time_table(problem, Supply(chip, strategy.devices), row)
    waits = 0.0
    if index == 0:
        yield from (_Part(each.name, float(np.sum(each.passes)), each.rests_on) for each in ends.embedding)
        waits += max(0.0, float(row.embedding_slot[0] * time.layer[0] - time.embedding[0]))
        if problem.encoder is not None:
            before = sum(float(np.sum(each.passes)) for each in ends.embedding) + float(time.end_tp[0])
            yield _Part("encoder of images", float(time.embedding[0] - time.encoder_tp[0]) - before, ())
    if index == strategy.head_stage:
        yield from (_Part(each.name, float(np.sum(each.passes)), each.rests_on) for each in ends.head)
        module = [_Part(each.name, float(np.sum(each.passes)), each.rests_on) for each in ends.module]
        for kind, count in enumerate(module_counts(model)):
            module += [part.times(count) for part in layers[kind] if count]
        yield from (part.times(model.mtp_layers) for part in module)
        waits += max(0.0, float(row.loss_slot[0] * time.layer[0] - time.head[0]))
    yield _Part("waiting in a layer's place", waits, (), kernel=False)
    turns = ("host_expert_chunk_us",) if strategy.expert_overlap and strategy.vpp > 1 and not strategy.v_shaped else ()
    starts = strategy.vpp * float(time.chunk[0])
    yield _Part("start of microbatches", starts, ("microbatch_overhead_us", *turns), kernel=False)


def _layers(problem: Problem, chip: Chip, row: Candidates) -> list[list[_Part]]:
    """What one layer of each kind computes for a microbatch."""
    shard, timed = row.shard, Layers.of(problem, chip, row.shard)
    gemms = ChipSpeeds(problem, chip).layer_gemm_efficiency
    found = []
    for index, kind in enumerate(layer_kinds(problem.model)):
        operators = layer_operators(problem, chip, shard, kind)
        parts = [_Part(each.name, float(np.sum(each.passes)), each.rests_on) for each in operators]
        host = host_constants(problem, kind, bool((shard.ep > 1) & ~shard.expert_overlap))
        parts.append(_Part("waiting for the host", float(timed.waits[index, 0]), host, kernel=False))
        parts.append(_Part("trips to the host", float(timed.offload[index, 0]), ("host_link",), kernel=False))
        projected = float(np.sum(over_parts(kind, partial(recomputed_projection_seconds, problem, chip, shard))))
        parts.append(_Part("projections made again", projected, (gemms, "memory")))
        parts.append(_Part("activation function made again", float(timed.again[index, 0]) - projected, ("memory",)))
        parts.append(_Part("experts' activations made again", float(timed.restored[index, 0]), ("memory",)))
        found.append(parts)
    return found
