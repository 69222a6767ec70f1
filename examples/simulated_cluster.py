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
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from cpsolver.doors.tune.simulated import Cluster, Run, describe, hidden_truth
from cpsolver.evidence.posterior.misfit import load_spread
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.load import load_problem
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import load_strategy

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
    cluster = Cluster(truth, asked.seed, asked.noise, asked.failures, asked.hangs, START_UP)
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


def train(problem: Problem, plan: Strategy, run: Run, seconds: float) -> int:
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


def report_memory(plan: Strategy, run: Run) -> None:
    """Lines as Megatron-LM's report_memory has them, of the first rank of every pipeline stage."""
    for stage, need in enumerate(run.stages):
        reserved = need.device - need.framework
        say(
            f"[Rank {stage * plan.stage_devices}] (after 2 iterations) memory (MB)"
            f" | allocated: {(need.weights + need.gradients + need.optimizer) / MIB:.2f}"
            f" | max allocated: {need.allocated / MIB:.2f}"
            f" | reserved: {reserved / MIB:.2f} | max reserved: {reserved / MIB:.2f}"
        )


def out_of_memory(problem: Problem, plan: Strategy, run: Run) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
