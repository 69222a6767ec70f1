"""A training job on a cluster that is not there: what `apss-cp tune` runs when one wants to try it without hardware.

    apss-cp tune examples/simulated.yaml --max-trials 8 --run \\
      "python examples/simulated_cluster.py --spec examples/simulated.yaml --plan {plan} --seed 3 --trial {trial}"

It behaves like a job that trains with Megatron-LM: it starts, prints what it was started with, a line for every
iteration and a report of memory, and ends with 0. A plan that does not fit ends as PyTorch ends it, with 1; so does one
that no launcher takes. Times come from the cost model with other constants than the planner's: those of cluster
number `--seed`, which `--reveal` shows. A real command needs no more than this: it gets the plan as arguments
({arguments}) or as a file ({plan}), trains for some iterations and lets its log be read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from math import exp, pi, sqrt
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Literal

import numpy as np

from cpsolver.cost.memory import StageBytes
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.posterior.constants import UncertainConstant, moved, uncertain_constants
from cpsolver.evidence.posterior.misfit import load_spread, locations
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.load import load_problem
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import load_strategy
from cpsolver.rules import Violation, violations

MIB, GIB = 2**20, 2**30
START_UP = 4.0
"""The first iteration takes this many times as long as the others."""


def main() -> int:
    """Run the plan. Returns 0, or 1 where a job would end with an error, or 2 for files that cannot be read."""
    asked = parse()
    try:
        problem = load_problem(asked.spec)
        plan = load_strategy(asked.plan, problem)
    except InputError as error:
        print(*(f"error: {trouble}" for trouble in error.troubles), sep="\n", file=sys.stderr)
        return 2
    truth = hidden_truth(problem, asked.seed, asked.scale, asked.misfit)
    if asked.reveal:
        print(*describe(truth), f"step time: {truth.step_time_s(plan):.4f} s", sep="\n")
        return 0
    refused = truth.refusals(plan)
    if refused:
        print(*(f"AssertionError: {violation}" for violation in refused), sep="\n", file=sys.stderr)
        return 1
    cluster = SimulatedCluster(truth, asked.seed, asked.noise, asked.failures, asked.hangs, START_UP)
    return train(problem, plan, cluster.run(plan, asked.trial, asked.iterations), asked.seconds)


def parse() -> argparse.Namespace:
    """The command line."""
    scale = load_spread().scale
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--spec", type=Path, required=True, help="what is trained on which devices")
    option("--plan", type=Path, required=True, help="how: a file of `apss-cp tune` or `apss-cp solve --json`")
    option("--seed", type=int, default=0, help="number of the cluster (0)")
    option("--trial", type=int, default=1, help="number of the run: another one, another fate (1)")
    option("--iterations", type=within(1, 1_000_000, int), default=10, help="of training (10)")
    option("--seconds", type=within(0, 1e6), default=0.0, help="how long the whole run really takes (0)")
    option("--noise", type=within(0, 1), default=0.02, help="of step times, as a share (0.02)")
    option("--failures", type=within(0, 1), default=0.05, help="share of runs that fail, whatever the plan (0.05)")
    option("--hangs", type=within(0, 1), default=0.0, help="share of runs that never end (0)")
    option("--scale", type=within(0, 10), default=scale, help=f"how far constants are from the published ({scale})")
    option("--misfit", type=within(0, 10), default=0.0, help="of what no constant explains; usual: 0.25 to 2 (0)")
    option("--reveal", action="store_true", help="show the hidden constants and the plan's true step time")
    return parser.parse_args()


def within(least: float, most: float, kind: type = float) -> Callable[[str], float]:
    """A reader of numbers in that range."""

    def read(text: str) -> float:
        value: float = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    read.__name__ = "number"  # argparse calls it so where the text is none
    return read


def train(problem: Problem, plan: Strategy, run: SimulatedRun, seconds: float) -> int:
    """Print what the job prints, spread over so many seconds; returns its exit code."""
    arguments(problem, plan)
    say("> initializing torch distributed ...")
    if run.fate == "timeout":
        while True:
            time.sleep(3600)
    if run.fate == "failed":
        time.sleep(seconds)
        message = (
            "NCCL error in: ProcessGroupNCCL.cpp, unhandled system error\nncclSystemError: a connection was closed"
        )
        print(f"[rank{plan.devices - 1}]: torch.distributed.DistBackendError: {message}", file=sys.stderr)
        return 1
    if run.fate == "oom":
        out_of_memory(problem, plan, run)
        return 1
    for number, iteration_s in enumerate(run.iterations_s, 1):
        time.sleep(seconds / len(run.iterations_s))
        iteration(problem, number, len(run.iterations_s), iteration_s)
        if number == 2:  # by now the optimizer has its states
            report_memory(plan, run)
    return 0


def arguments(problem: Problem, plan: Strategy) -> None:
    """What it was started with, in Megatron-LM's form: `apss-cp tune` sees that it is the plan that it asked for."""
    told = {
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "global_batch_size": problem.batch,
        "micro_batch_size": plan.mbs,
        "pipeline_model_parallel_size": plan.pp,
        "seq_length": problem.sequence,
        "tensor_model_parallel_size": plan.tp,
        "world_size": plan.devices,
    }
    say("------------------------ arguments ------------------------")
    for name, value in told.items():
        say(f"  {name} {'.' * (48 - len(name))} {value}")


def iteration(problem: Problem, number: int, last: int, seconds: float) -> None:
    """A line as Megatron-LM's training_log has it."""
    say(
        f" [{datetime.now():%Y-%m-%d %H:%M:%S.%f}] iteration {number:8d}/{last:8d} |"
        f" consumed samples: {number * problem.batch:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} |"
        f" learning rate: {1e-4:.6E} | global batch size: {problem.batch:5d} | lm loss: {10.5 / number**0.1:.6E} |"
        f" loss scale: 1.0 | grad norm: 1.000 |"
        f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
    )


def report_memory(plan: Strategy, run: SimulatedRun) -> None:
    """Lines as Megatron-LM's report_memory has them, of the first rank of every pipeline stage."""
    for stage, need in enumerate(run.stages):
        reserved = need.device - need.framework
        say(
            f"[Rank {stage * plan.stage_devices}] (after 2 iterations) memory (MB)"
            f" | allocated: {(need.weights + need.gradients + need.optimizer) / MIB:.2f}"
            f" | max allocated: {need.allocated / MIB:.2f}"
            f" | reserved: {reserved / MIB:.2f} | max reserved: {reserved / MIB:.2f}"
        )


def out_of_memory(problem: Problem, plan: Strategy, run: SimulatedRun) -> None:
    """The end of the traceback with which PyTorch gives up."""
    assert run.full_stage is not None
    need = run.stages[run.full_stage]
    capacity = problem.supply(plan.stage_chips[run.full_stage]).chip.memory_capacity_bytes
    last = min(need.total, max(need.total - capacity, 0.1 * (need.activations + need.buffers)))
    print(
        "Traceback (most recent call last):\n"
        f'[rank{run.full_stage * plan.stage_devices}]:   File "pretrain_gpt.py", in <module>\n'
        f"[rank{run.full_stage * plan.stage_devices}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
        f" {last / GIB:.2f} GiB. GPU 0 has a total capacity of {capacity / GIB:.2f} GiB of which"
        f" {max(0.0, capacity - need.total + last) / GIB:.2f} GiB is free.",
        file=sys.stderr,
    )


def say(line: str) -> None:
    """A line of the log, at once: who reads it may not wait for the end."""
    print(line, flush=True)


# The cluster: hidden constants near the published ones, and what a plan's run would give with them. The cost model with
# other constants stands for the cluster, so what that model cannot describe is not seen here. Every number is drawn
# from the seed and the name of what it belongs to, whatever else was drawn before. Benchmarks study `tune` on it.

_WAVES = 256
"""Cosines that make a field: their sum is as good as Gaussian, and its covariance near the kernel's
(Rahimi and Recht, Random Features for Large-Scale Kernel Machines, 2007)."""

Fate = Literal["ok", "oom", "failed", "timeout"]
"""How a run ends: well; out of memory; by an error that has nothing to do with the plan; not at all."""


@dataclass(frozen=True)
class Misfit:
    """By how much step times differ from the cost model, whatever its constants: a smooth field over layouts, drawn
    from the Gaussian process of posterior/misfit.py, and each plan's own rest. `level`: how much of both there is.
    """

    seed: int
    level: float

    def log_error(self, problem: Problem, strategy: Strategy) -> float:
        """log(step time / what the cost model says) of a plan."""
        spread, spot = load_spread(), locations([PlacedPlan(problem, strategy)])
        at = spot.coordinates[0]
        waves, phases = _waves(self.seed, spot.clusters[0], len(at))
        smooth = spread.misfit * sqrt(2 / _WAVES) * float(np.cos(waves @ at / spread.reach + phases).sum())
        own = _random(self.seed, "leftover", spot.identities[0]).gauss(0.0, spread.leftover)
        return self.level * (smooth + own)


@dataclass(frozen=True)
class Truth:
    """What nobody knows of a cluster. `positions`: where its constants lie, in standard deviations of their prior.

    `problem` has these constants, and no margin: a plan runs if it fits. `misfit`: what no constant explains, if any.
    """

    problem: Problem
    constants: tuple[UncertainConstant, ...]
    positions: tuple[float, ...]
    misfit: Misfit | None = None

    def step_time_s(self, strategy: Strategy) -> float:
        """Seconds that a step takes, without noise."""
        error = 0.0 if self.misfit is None else self.misfit.log_error(self.problem, strategy)
        return evaluate(self.problem, strategy).step_time_s * exp(error)

    def memory(self, strategy: Strategy) -> list[StageBytes]:
        """Bytes that each stage needs on a device."""
        return stage_memory(self.problem, strategy)

    def too_full(self, strategy: Strategy, memory: Sequence[StageBytes] | None = None) -> int | None:
        """The first stage that needs more than its device has, None where all fit. `memory` spares its count."""
        for index, (chip, need) in enumerate(zip(strategy.stage_chips, memory or self.memory(strategy), strict=True)):
            if need.total > self.problem.supply(chip).chip.memory_capacity_bytes:
                return index
        return None

    def refusals(self, strategy: Strategy) -> list[Violation]:
        """Rules but that on memory which the plan breaks: what a launcher refuses, before any device is asked."""
        return [found for found in violations(self.problem, strategy) if found.rule != "memory"]


def hidden_truth(problem: Problem, seed: int, scale: float = 1.0, misfit: float = 0.0) -> Truth:
    """A cluster as likely as any: its constants are drawn from the prior.

    `scale` widens the prior of constants of step times, not of memory. A constant has the same value in every problem
    with that chip or stack. `misfit`: how much of the misfit of spread.yaml there is, 1 for all of it.
    """
    constants = uncertain_constants([problem])
    positions = tuple(
        _random(seed, "constant", each.key).gauss(0.0, 1.0 if each.kind == "memory" else scale) for each in constants
    )
    true = moved(problem, constants, positions, f"simulated cluster {seed}")
    field = Misfit(seed, misfit) if misfit else None
    return Truth(true.with_(cluster={"memory_margin": 0.0}), constants, positions, field)


@dataclass(frozen=True)
class SimulatedRun:
    """One run: how it ended, seconds of its iterations in order, and bytes by stage where it came so far.

    `full_stage`: the stage that ran out of memory.
    """

    fate: Fate
    iterations_s: tuple[float, ...] = ()
    stages: tuple[StageBytes, ...] = ()
    full_stage: int | None = None

    def step_time_s(self, skip: int) -> float:
        """Median of the iterations after the first `skip`."""
        return median(self.iterations_s[skip:])

    @cached_property
    def fullest(self) -> StageBytes:
        """The stage that needs most memory."""
        return max(self.stages, key=lambda stage: stage.total)


@dataclass(frozen=True)
class SimulatedCluster:
    """A truth with its weather. `noise`: standard deviation of the logarithm of a run's speed, and of each iteration's
    in the run. `failures`, `hangs`: share of the runs that end with an error, or not at all, whatever the plan.
    `start_up`: how many times as long the first iteration takes, which loads kernels.
    """

    truth: Truth
    seed: int
    noise: float = 0.0
    failures: float = 0.0
    hangs: float = 0.0
    start_up: float = 1.0

    def run(self, strategy: Strategy, trial: int, iterations: int) -> SimulatedRun:
        """What the plan's run number `trial` gives; the same again for the same number. The plan must be legal."""
        drawn = _random(self.seed, "fate", trial).random()
        if drawn < self.failures:
            return SimulatedRun("failed")
        stages = tuple(self.truth.memory(strategy))
        full = self.truth.too_full(strategy, stages)
        if full is not None:
            return SimulatedRun("oom", stages=stages, full_stage=full)
        if drawn < self.failures + self.hangs:
            return SimulatedRun("timeout", stages=stages)
        return SimulatedRun("ok", self._iterations(strategy, trial, iterations), stages)

    def _iterations(self, strategy: Strategy, trial: int, count: int) -> tuple[float, ...]:
        draw = _random(self.seed, "noise", trial)
        usual = self.truth.step_time_s(strategy) * exp(draw.gauss(0.0, self.noise))
        times = [usual * exp(draw.gauss(0.0, self.noise)) for _ in range(count)]
        return (times[0] * self.start_up, *times[1:])


def describe(truth: Truth) -> Sequence[str]:
    """The hidden constants in words, those furthest from the published values first."""
    pairs = sorted(zip(truth.constants, truth.positions, strict=True), key=lambda pair: -abs(pair[1]))
    return [f"{each.key}: {each.value(at):.4g} (published: {each.start:.4g})" for each, at in pairs]


@lru_cache
def _waves(seed: int, cluster: str, size: int) -> tuple[Any, Any]:
    """Directions, shape (waves, coordinates), and phases of a field's cosines; other chips have another field."""
    draw = _random(seed, "misfit", cluster)
    waves = np.array([[draw.gauss(0.0, 1.0) for _ in range(size)] for _ in range(_WAVES)])
    return waves, np.array([draw.uniform(0.0, 2 * pi) for _ in range(_WAVES)])


def _random(seed: int, *what: str | int) -> Random:
    return Random(" ".join(map(str, (seed, *what))))


if __name__ == "__main__":
    sys.exit(main())
