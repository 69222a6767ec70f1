"""Microbatches of different sizes by brute force: what a sequence of them is by definition, and every plan that has
one; and tiny problems at random on the stack that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.oracle import legal, strategies
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of, with_stack

ONE = (1, 2, 3, 4, *(5,) * 9, 4, 3, 2)
TWO = (1, 2, 2, 3, 4, *(5,) * 13, 4, 4, 3, 3, 3, 2)
"""AscendSpeed's example-config-1, for 4 stages and 64 sequences, and -2, for 8 and 96; both for a mean of 4."""


def is_ramps(sizes: tuple[int, ...]) -> bool:
    """Whether sizes go up, stay and go down as docs/space.md has it."""
    peak, mean = max(sizes), sum(sizes) / len(sizes)
    begin, end = sizes.index(peak), len(sizes) - sizes[::-1].index(peak)
    up, down = sizes[:begin], sizes[end:][::-1]
    if set(sizes[begin:end]) != {peak} or min(sizes) == peak or peak > mean + 3:
        return False
    if list(up) != sorted(up) or list(down) != sorted(down):
        return False
    for climb, fall in ((up, down), (down, up)):
        for more in range(climb.count(peak - 1) + 1):
            if _is_ramp(list(climb[: len(climb) - more]), peak) and _is_ramp(list(fall), peak):
                return True
    return False


def _is_ramp(sizes: list[int], peak: int) -> bool:
    others = [sizes.count(size) for size in range(min(sizes, default=peak), peak) if sizes.count(size) != 1]
    return not others or others in ([0], [2], [3])


@cache
def all_ramps(microbatches: int, mean: int) -> list[tuple[int, ...]]:
    """Every sequence of so many sizes with that mean that is one."""
    every = product(range(1, mean + 4), repeat=microbatches - 1)
    closed = ((*sizes, microbatches * mean - sum(sizes)) for sizes in every)
    return [sizes for sizes in closed if 1 <= sizes[-1] <= mean + 3 and is_ramps(sizes)]


def sized_strategies(problem: Problem) -> Iterator[Strategy]:
    """Every strategy, with equal microbatches and with all sequences of sizes that a 1F1B pipeline may have."""
    for s in strategies(problem):
        yield s
        m = s.microbatches(problem.batch)
        if s.pp > 1 and s.vpp == 1 and s.schedule == "1f1b" and 1 < s.mbs <= 4 and 1 < m <= 8 * s.pp:
            yield from (replace(s, micro_batches=sizes) for sizes in all_ramps(m, s.mbs))


def apart(problem: Problem, s: Strategy) -> tuple[object, ...]:
    """What tells two plans apart: the sizes are each plan's own best."""
    if problem.spec.search.diverse:
        return family(s)
    return (*replace(s, micro_batches=()).key(), s.dynamic)


def best_of_each(problem: Problem) -> dict[tuple[object, ...], float]:
    """The best step time of each, by brute force."""
    best: dict[tuple[object, ...], float] = {}
    for s in sized_strategies(problem):
        if legal(problem, s):
            key = apart(problem, s)
            best[key] = min(evaluate(problem, s).step_time_s, best.get(key, float("inf")))
    return best


def sized_problem(seed: int) -> Problem:
    """Pipelines of few stages and microbatches that small ones slow down; memory binds in many."""
    rng = np.random.default_rng((16, seed))
    gpus, pp = [(2, 2), (2, 2), (3, 3), (4, 4), (4, 2)][int(rng.integers(5))]
    layers, hidden = int(rng.choice([pp, pp + 1, pp + 2, 2 * pp])), int(rng.choice([512, 1024]))
    sequence = int(rng.choice([512, 1024, 2048]))
    model = model_spec(layers=layers, hidden=hidden, ffn=2 * hidden, vocab=int(rng.choice([4000, 32000])))
    states = 20e-9 * total_parameters(Architecture.model_validate({"name": "any", **model})) / gpus
    room = (states + 0.15e-3 * layers * sequence) * float(np.exp(rng.uniform(0.3, 3)))
    links = {"up": float(np.exp(rng.uniform(2, 6))), "out": float(rng.uniform(10, 100))}
    chip = chip_spec(tflops=float(rng.uniform(50, 300)), gb=FRAMEWORK_GB + room, **links)
    pin: dict[str, Any] = {"cp": 1, "sharding_group": 0, "flash_attention": bool(rng.random() < 0.6), "vpp": 1}
    pin |= {"tp": 1, "distributed_optimizer": bool(rng.random() < 0.5) and pp < gpus, "pp": pp}
    kinds = ["none", "selective", "block", "uniform"]
    pin["recompute"] = [kinds[i] for i in rng.permutation(4)[: int(rng.choice([1, 2, 2]))].tolist()]
    forbid = {"recompute_modules": [["layernorm"], ["mlp"], ["core_attn", "layernorm"]]} if rng.random() < 0.8 else {}
    if rng.random() < 0.1:
        pin["layers"] = [layers - pp + 1, *[1] * (pp - 1)]
    search: dict[str, Any] = {"top": int(rng.integers(1, 5)), "diverse": bool(rng.random() < 0.3)}
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even"]))
    batch = int(rng.choice([4, 6, 8, 8, 9, 12, 12]))
    problem = problem_of({"x": chip}, model, gpus, gpus, batch, sequence, pin=pin, forbid=forbid, **search)
    return with_sizes(with_stack(problem, host_layer_us=float(np.exp(rng.uniform(2, 8)))))


def with_sizes(problem: Problem) -> Problem:
    """The problem on the stack that has microbatches of different sizes, which it asks for."""
    stack = problem.stack.model_copy(update={"name": "ascendspeed"})
    asked = problem.spec.search.model_copy(update={"dynamic_micro_batches": True})
    return replace(problem, stack=stack, spec=problem.spec.model_copy(update={"search": asked}))
