"""Bytes of weights, gradients and optimizer states for each parameter, and the seconds of the optimizer's step.

A software stack's profile is of Adam with an fp32 master weight; what the training's switches change of it is in
techniques.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from cpsolver.cost.chip_speeds import FP32_BYTES, ChipSpeeds
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.problem.problem import Problem
from cpsolver.profiles.switches import OptimizerName
from cpsolver.profiles.techniques import Optimizer, techniques
from hw_specs import Chip


@dataclass(frozen=True)
class Held:
    """Bytes of one parameter before sharding: on the device, on its way once a step, and through memory in a step.

    `moved` is what the optimizer sends to the host and brings back in each direction, in a step.
    """

    weight: float
    gradient: float
    optimizer: float
    reduce: float
    gather: float
    step: float
    moved: float

    @property
    def each(self) -> float:
        """All that the device keeps."""
        return self.weight + self.gradient + self.optimizer


@dataclass(frozen=True)
class StateBytes:
    """Bytes of weight, gradient and optimizer state for each parameter that a device holds, before sharding."""

    weight: Floats
    gradient: Floats
    optimizer: Floats

    @property
    def each(self) -> Floats:
        """All three."""
        return self.weight + self.gradient + self.optimizer


def state_bytes(problem: Problem, rows: Candidates, shards: Ints) -> StateBytes:
    """State of each parameter that the optimizer takes by elements, its sharded part divided by `shards`."""
    depth, each = np.where(rows.distributed_optimizer, rows.sharded, 0), held(problem, _of_elements(problem))
    weight, gradient = (each.weight / np.where(depth >= 3, shards, 1), each.gradient / np.where(depth >= 2, shards, 1))
    if problem.spec.training.parameter_offload:
        stays = min(1.0, techniques().persistent_weights / problem.model.hidden)
        weight = np.where(depth >= 3, each.weight * stays, weight)
    return StateBytes(
        weight=weight,
        gradient=np.where(gradients_away(problem) & (depth >= 3), 0.0, gradient),
        optimizer=each.optimizer / np.where(depth >= 1, shards, 1),
    )


def gradients_away(problem: Problem) -> bool:
    """Gradients that are sharded with the weights wait on the host, as the optimizer does."""
    return bool(problem.stack.host_gradients) and problem.spec.training.optimizer_offload > 0


def link_seconds(problem: Problem, chip: Chip, weights: Floats) -> tuple[Floats, Floats]:
    """Seconds over the host's link for so many weights of a rank's own share each time they are gathered, and for their
    gradients in each microbatch; 0 of what stays on the device.

    DeepSpeed edaa7221, runtime/zero: partition_parameters.py, all_gather_coalesced; stage3.py, partition_grads.
    """
    each, none = held(problem), np.zeros(len(weights))
    if not (problem.spec.training.parameter_offload or gradients_away(problem)):
        return none, none
    link, trips = chip.host_bandwidth_bytes_s, techniques().host_gradient_trips
    gathered = weights * each.weight / link if problem.spec.training.parameter_offload else none
    return gathered, trips * weights * each.gradient / link if gradients_away(problem) else none


def saved_bytes(problem: Problem, rows: Candidates, shards: Ints) -> Floats:
    """State that an element of a matrix has less than `state_bytes` where the optimizer takes matrices whole."""
    less = held(problem, _of_elements(problem)).optimizer - held(problem).optimizer
    return np.asarray(less / np.where(rows.distributed_optimizer, shards, 1))


def factor_bytes(rows: Candidates, shards: Ints) -> Floats:
    """Bytes of SOAP's factors of an element of a matrix's squares, on each of the ranks that share them."""
    return np.asarray(techniques().soap_factor_bytes / np.where(rows.distributed_optimizer, shards, 1))


def _of_elements(problem: Problem) -> OptimizerName:
    """The optimizer of the weights that are taken by elements: Adam where it takes matrices alone."""
    training = problem.spec.training
    return "adam" if training.whole_matrices else training.optimizer


def held(problem: Problem, optimizer: OptimizerName | None = None) -> Held:
    """What the stack keeps, sends and moves of a parameter, as the training's switches change it.

    `optimizer`: instead of the training's own.
    """
    stack, training = problem.stack, problem.spec.training
    if training.precision == "fp32":
        return _held_in_fp32(problem)
    own, adam = techniques().optimizers[optimizer or training.optimizer], techniques().optimizers["adam"]
    most = inf if own.gradient_bytes is None else own.gradient_bytes
    if training.precision == "fp16":
        most = min(most, stack.fp16_gradient_bytes)
    gradient, reduce = min(stack.gradient_bytes, most), min(stack.gradient_reduce_bytes, most)
    states = stack.optimizer_bytes - adam.state_bytes + own.moment_bytes + _master_bytes(problem, own, adam)
    if training.release_fp32_gradients:
        states -= max(0.0, stack.optimizer_bytes - adam.state_bytes)
    step = stack.optimizer_step_bytes + _traffic(problem, own, adam) - 2 * (stack.gradient_bytes - gradient)
    moved, on_device = 0.0, (1.0 - training.optimizer_offload) * states
    if training.swap_optimizer:  # of states that wait on the host, a slice is on the device at a time
        moved, on_device = states, on_device / float(techniques().swap_slices)
    weight, gather = _weight_bytes(problem)
    return Held(weight, gradient, on_device, reduce, gather, step, moved)


def _held_in_fp32(problem: Problem) -> Held:
    """Weight, gradient and the optimizer's two moments in fp32, and no master beside them.

    A step reads all four and writes all but the gradient, which is cleared.
    """
    training = problem.spec.training
    states = (1.0 - training.optimizer_offload) * 2 * FP32_BYTES
    moved, on_device = 0.0, states
    if training.swap_optimizer:
        moved, on_device = states, states / float(techniques().swap_slices)
    return Held(FP32_BYTES, FP32_BYTES, on_device, FP32_BYTES, FP32_BYTES, 8 * FP32_BYTES, moved)


def _master_bytes(problem: Problem, own: Optimizer, adam: Optimizer) -> float:
    """The master weight; its 16-bit remainder only beside a bf16 weight (fused_adam.py, store_param_remainders)."""
    training = problem.spec.training
    if training.precision != "bf16":
        return adam.master_bytes
    return float(techniques().remainder_bytes) if training.reuse_fp32_parameters else own.master_bytes


def _traffic(problem: Problem, own: Optimizer, adam: Optimizer) -> float:
    """Bytes of memory traffic in a step beyond Adam's: states are read and written; a weight that is half of its
    master is read too."""
    master = _master_bytes(problem, own, adam)
    states = 2 * (own.moment_bytes - adam.moment_bytes) + 2 * (master - adam.master_bytes)
    joined = adam.master_bytes - master
    apart = techniques().remainder_traffic_bytes if problem.spec.training.reuse_fp32_parameters else 0.0
    return float(states + joined + apart)


def _weight_bytes(problem: Problem) -> tuple[float, float]:
    """Weights as the layers use them, and what the ranks of a sharded optimizer gather of each.

    Recipes keep narrow copies for both ways round; held in these only, the 16-bit weights are gone.
    """
    stack = problem.stack
    if problem.spec.training.precision == "fp32":
        return FP32_BYTES, FP32_BYTES
    if problem.recipe is None:
        return stack.parameter_bytes, stack.parameter_gather_bytes
    narrow = techniques().recipes[problem.recipe]
    copies = stack.fp8_weight_bytes * narrow.value_bytes / (2 if problem.one_weight_copy else 1)
    if problem.narrow_weights:
        return copies, min(stack.parameter_gather_bytes, narrow.gather_bytes)
    return stack.parameter_bytes + copies, stack.parameter_gather_bytes


def base_bytes(problem: Problem) -> float:
    """Of a frozen weight in 4 bits (QLoRA), its share of the blocks' constants with it; 0: frozen weights are held as
    the layers use them, or none is."""
    base = None if problem.lora is None else problem.lora.quantized_base
    return 0.0 if base is None else float(getattr(techniques(), f"{base}_bytes"))


def gathered_bytes(problem: Problem) -> float:
    """Of a parameter of a layer while it is gathered whole; embedding and head are gathered in 16 bits."""
    if problem.narrow_weights or problem.spec.training.precision == "fp32":
        return _weight_bytes(problem)[0]
    return float(problem.stack.parameter_bytes)


def optimizer_seconds(problem: Problem, chip: Chip, parameters: Floats) -> Floats:
    """One optimizer step over that many parameters held by a device, which are taken by elements.

    The device's own share takes its memory traffic. Swapped states come in and go out in turn, for the next slice
    waits for the last one. The host's share: gradients out, weights in, and the host's own update, which dominates;
    weights that wait on the host stay there, and those that the device updates go there.
    """
    training, each = problem.spec.training, held(problem, _of_elements(problem))
    share = training.optimizer_offload
    seconds = (1.0 - share) * each.step / ChipSpeeds(problem, chip).memory_rate
    if training.host_link:
        link, known = chip.host_bandwidth_bytes_s, techniques()
        seconds += 2 * each.moved / link
        host = 1e-9 * known.host_update_ns * problem.node / known.host_update_ranks
        back = 0.0 if training.parameter_offload else known.offload_weight_bytes
        seconds += share * ((known.offload_gradient_bytes + back) / link + host)
        seconds += (1.0 - share) * training.parameter_offload * each.weight / link
    return np.asarray(parameters * seconds)
