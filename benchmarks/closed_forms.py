"""How far closed forms are off events: ``python -m benchmarks.closed_forms [--plans 120] [--seed 0]``.

Searches of random models, chips and batches, each with one schedule and number of stages alone, give the plans. A
closed form is chains of passes, some of which may be missing: it is never above the events.
"""

from __future__ import annotations

import argparse

import numpy as np

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Schedule
from cpsolver.problem.resolve import resolve
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec

_MODELS = ("llama2-7b", "llama3.1-8b", "llama2-70b", "qwen3-32b", "qwen2.5-7b", "qwen3-30b-a3b", "gpt-oss-120b")
_CHIPS = ("h100", "a100", "h800", "a800", "b200", "910b", "mi300x")
_TRIES = 10
"""Problems that are drawn for each plan wanted, at most: many have none."""


def off_by(name: Schedule, plans: int, seed: int) -> list[float]:
    """Closed form over events, less one, of so many plans with a schedule."""
    rng, found = np.random.default_rng(seed), list[float]()
    for _ in range(_TRIES * plans):
        if len(found) >= plans:
            break
        gpus = int(2 ** rng.integers(4, 9))
        spec = {
            "model": str(rng.choice(_MODELS)),
            "cluster": {"num_gpus": gpus, "chips": str(rng.choice(_CHIPS))},
            "training": {
                "global_batch_size": int(gpus * 2 ** rng.integers(0, 5)),
                "sequence_length": int(rng.choice([2048, 4096, 8192])),
            },
            "stack": str(rng.choice(SCHEDULES[name].stacks or ("megatron-core",))),
            "search": {"top": 5, "schedules": [name], "pin": {"pp": int(rng.choice([2, 4, 8, 16]))}},
        }
        try:
            problem = resolve(parse_spec(spec))
            plans_found = search(problem).plans
        except InputError:
            continue
        found += [each.evaluation.formula_s / each.evaluation.step_time_s - 1 for each in plans_found]
    return found


def main() -> None:
    """Print a line a schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("| schedule | plans | beyond 2 % | lowest | highest | mean, either way |\n|---|---|---|---|---|---|")
    for name in (name for name, schedule in SCHEDULES.items() if schedule.by_events):
        off = np.array(off_by(name, arguments.plans, arguments.seed))
        beyond = int((np.abs(off) > 0.02).sum())
        print(f"| {name} | {len(off)} | {beyond} | {off.min():.1%} | {off.max():.1%} | {np.abs(off).mean():.1%} |")


if __name__ == "__main__":
    main()
