"""A chip's speeds in SI units, for one problem's precision and software stack."""

from __future__ import annotations

from functools import cached_property
from math import log2, prod

import numpy as np

from cpsolver.cost.shard import Floats
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import Stack
from cpsolver.profiles.switches import DTYPES, Recipe
from hw_specs import Chip, Dtype

FP32_BYTES = 4.0
"""Of a value in fp32."""


def attention_constants(problem: Problem, chip: Chip) -> tuple[str, ...]:
    """The stack's constants that the rate of fused attention on that chip is scaled by."""
    names = ["attention_speed"]
    if chip.architecture == "hopper":
        names.append("hopper_attention_speed")
    if problem.fp8_attention:
        names.append("mx_attention_speed" if problem.recipe == "mx" else "fp8_attention_speed")
        names += ["fp8_latent_attention_speed"] * (problem.model.attention.kind == "mla")
    return tuple(names)


class ChipSpeeds:
    """Seconds of kernels: GEMMs by shape, attention by kernel, the rest by memory traffic.

    All compute slows a little with the number of nodes: a step waits for the slowest device of all. `gemm_efficiency`
    and `layer_gemm_efficiency` are the names of the chip's efficiencies that the two rates rest on.
    """

    def __init__(self, problem: Problem, chip: Chip) -> None:
        precision = problem.spec.training.precision
        stack = problem.stack
        wide: Dtype = precision if precision in ("fp16", "fp32") else "bf16"
        self.casts, self.element_bytes = problem.recipe is not None, problem.element_bytes
        nodes = max(1.0, problem.num_gpus / problem.node)
        self.slowdown = 1.0 + stack.straggling * log2(nodes)
        self.gemm_efficiency = self.layer_gemm_efficiency = f"gemm_{wide}"
        self.gemm_rate = chip.peak_flops(wide) * chip.efficiency_value(self.gemm_efficiency) / self.slowdown
        self.layer_gemm_rate = self.gemm_rate
        if problem.recipe is not None:
            dtype = DTYPES[precision]
            self.layer_gemm_efficiency = f"gemm_{dtype}"
            rate = chip.peak_flops(dtype) * chip.efficiency_value(self.layer_gemm_efficiency) / self.slowdown
            self.layer_gemm_rate = rate * self._recipe_speed(problem.recipe, stack)
        speeds = (float(getattr(stack, name)) for name in attention_constants(problem, chip))
        attention = chip.peak_flops(wide) * prod(speeds) / self.slowdown
        self.forward_attention_rate = attention * chip.efficiency_value("attention_forward")
        self.backward_attention_rate = attention * chip.efficiency_value("attention_backward")
        self.scan_rate = chip.peak_flops(wide) * stack.scan_speed / self.slowdown
        self.memory_rate = chip.memory_bandwidth_bytes_s * chip.efficiency_value("memory") / self.slowdown
        self.kernel_latency = chip.kernel_latency_s
        self.units = chip.compute_units
        self.tile = (stack.gemm_tile_rows, stack.gemm_tile_columns)
        self.half_depth = stack.gemm_half_depth
        self.misaligned_speed = stack.misaligned_gemm_speed
        self._chip = chip

    def _recipe_speed(self, recipe: Recipe, stack: Stack) -> float:
        """GEMMs against the rate that the chip has for their type, which is of one scale a tensor where that is fp8."""
        speeds = {
            "current": stack.current_gemm_speed,
            "blockwise": stack.blockwise_gemm_speed,
            "mx": stack.mx_gemm_speed,
        }
        return float(speeds.get(recipe, 1.0))

    def gemm(self, m: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0) -> Floats:
        """Seconds of `batch` (m, k) x (k, n) GEMMs in one kernel: roofline, tiles that fill the device, depth."""
        return self._gemm(m, n, k, self.gemm_rate, self.element_bytes, batch)

    def layer_gemm(self, m: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0, summed: bool = False) -> Floats:
        """As `gemm` in the precision of the layers' GEMMs; `summed`: the result is added to fp32 in place."""
        return self._gemm(m, n, k, self.layer_gemm_rate, 8 if summed else self.element_bytes, batch)

    def fp32_gemm(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """As `gemm` of fp32 values, which matrix units multiply in TF32 where the chip has that."""
        seconds = 2.0 * m * n * k / (self._tf32_rate * self._tile_use(m, n, 1.0) * k / (k + self.half_depth))
        traffic = FP32_BYTES * (m * k + k * n + m * n) / self.memory_rate
        return np.asarray(np.maximum(seconds, traffic) + self.kernel_latency)

    @cached_property
    def fp32_rate(self) -> float:
        """The peak of fp32 in vector units, slowed as all else. Raises UnknownFigureError for a chip without one."""
        return float(self._chip.peak_flops("fp32") / self.slowdown)

    @cached_property
    def _tf32_rate(self) -> float:
        dtype: Dtype = "fp32" if self._chip.peak_tflops.tf32 is None else "tf32"
        return float(self._chip.peak_flops(dtype) * self._chip.efficiency_value("gemm_fp32") / self.slowdown)

    def _gemm(self, m: Floats, n: Floats, k: Floats, rate: float, result_bytes: float, batch: Floats | float) -> Floats:
        shape = self._tile_use(m, n, batch) * k / (k + self.half_depth)
        aligned = (n % 8 == 0) & (k % 8 == 0)  # 16-byte loads, which tensor cores need
        speed = rate * shape * np.where(aligned, 1.0, self.misaligned_speed)
        traffic = self.element_bytes * (m * k + k * n) + result_bytes * m * n
        seconds = batch * np.maximum(2.0 * m * n * k / speed, traffic / self.memory_rate)
        return np.asarray(seconds + self.kernel_latency)

    def stream(self, traffic_bytes: Floats, kernels: float) -> Floats:
        """Seconds of `kernels` memory-bound kernels that together move that many bytes."""
        return np.asarray(traffic_bytes / self.memory_rate + kernels * self.kernel_latency)

    def _tile_use(self, m: Floats, n: Floats, batch: Floats | float) -> Floats:
        """Useful share of the tiles computed, the better of the large tile (either way round) and half of it."""
        rows, columns = self.tile
        by_rows, by_columns = ((np.ceil(m / side), np.ceil(n / side)) for side in (rows, columns))
        cut = (
            (by_rows[0] * by_columns[1], columns),
            (by_columns[0] * by_rows[1], columns),
            (by_rows[0] * by_rows[1], rows),
        )
        computed = np.inf
        for tiles, side in cut:
            slots = batch * tiles if self.units is None else np.ceil(batch * tiles / self.units) * self.units
            computed = np.minimum(computed, slots * (rows * side))
        return np.asarray(batch * m * n / computed)
