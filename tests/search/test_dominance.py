"""Sharding groups that are left out are never better than those that stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.dominance import undominated
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.support.oracle import brute_force, grouped_key
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of
from tests.support.selection import full, later
from tests.support.tables import all_orders, plan_of

pytestmark = pytest.mark.usefixtures("by_formula")

PLAIN = {"mbs": 1, "cp": 1, "flash_attention": True, "recompute": "none", "vpp": 1, "sequence_parallel": False}


GROUP = -3
"""Where a grouped key has the sharding group."""


def grouped_problem(seed: int) -> Problem:
    """Eight devices whose states may lie in groups of any size, with fast domains of any size, in nodes or beyond."""
    rng = np.random.default_rng(seed)
    chips = {
        name: chip_spec(
            tflops=float(rng.uniform(10, 400)),
            gb=FRAMEWORK_GB + float(rng.choice([0.3, 0.6, 2.0, 40.0])),
            gb_s=float(rng.uniform(100, 3000)),
            up=float(rng.uniform(20, 900)),
            out=float(rng.uniform(10, 800)),
            scale_up={
                "domain_size": int(rng.choice([2, 3, 4, 6, 8])),
                "spans_nodes": bool(rng.random() < 0.5),
                "topology": str(rng.choice(["switched", "mesh"])),
            },
            efficiency={
                "collective_latency_us": float(rng.choice([0.1, 5.0, 50.0])),
                "network_latency_us": float(rng.choice([0.1, 10.0, 300.0])),
            },
        )
        for name in ("x", "y")[: int(rng.choice([1, 1, 2]))]
    }
    experts = {"experts": 4, "top_k": 2, "expert_ffn": 512}
    model = model_spec(layers=2, **({"moe": experts} if rng.random() < 0.4 else {}))
    pin: dict[str, Any] = {**PLAIN, "distributed_optimizer": True, "tp": [1, 2], "etp": 1}
    stack = str(rng.choice(["megatron-core", "internevo", "megatron-deepspeed"]))
    return problem_of(
        chips, model, 8, int(rng.choice([1, 2, 4, 8])), 8, 512, stack=stack, pin=pin, top=4, diverse=False
    )


def fastest(times: dict[tuple[object, ...], float], but_for: int) -> dict[tuple[object, ...], float]:
    """The least of all whose keys differ in that entry only."""
    best: dict[tuple[object, ...], float] = {}
    for key, seconds in times.items():
        rest = (*key[:but_for], *key[but_for + 1 :])
        best[rest] = min(seconds, best.get(rest, np.inf))
    return best


@pytest.mark.parametrize(("start", "count"), [(0, 1), full(1, 5), *later((start, 6) for start in range(6, 54, 6))])
def test_a_group_that_is_left_out_is_never_better(start: int, count: int) -> None:
    left_out = 0
    for seed in range(start, start + count):
        problem = grouped_problem(seed)
        every = enumerate_rows(problem).rows
        places, stands_for = undominated(every, Coefficients(problem, every).time)
        kept = every.take(places)
        assert stands_for.sum() == len(every)
        left_out += len(every) - len(kept)
        orders = ((row, order) for row in range(len(kept)) for _, order in all_orders(problem, kept, row))
        keys = {grouped_key(plan_of(problem, kept, row, order)) for row, order in orders}
        times = brute_force(problem, grouped_key)
        best, wanted = fastest({key: times[key] for key in keys & times.keys()}, GROUP), fastest(times, GROUP)
        assert best.keys() == wanted.keys()
        assert [best[key] for key in wanted] == pytest.approx(list(wanted.values()), rel=1e-12)
        found = [plan.evaluation.step_time_s for plan in search(problem).plans]
        assert found == pytest.approx(sorted(wanted.values())[: problem.spec.search.top], rel=1e-6)
    assert left_out > 0


@pytest.mark.parametrize(("seed", "group"), [(20, 2), (31, 2), full(13, 4), full(29, 4)])
def test_groups_of_any_size_may_be_best(seed: int, group: int) -> None:
    """Also some of a node's devices, as with seeds 13, 20 and 29: no size can be left out beforehand."""
    assert search(grouped_problem(seed)).plans[0].strategy.sharding_group == group
