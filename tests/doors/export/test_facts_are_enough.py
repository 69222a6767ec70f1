"""No exporter refuses what its target's profile allows: facts are stated once, in profiles/facts.py.

Plans at random for three models on 16 devices, most of them illegal in some way, each with all targets.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from cpsolver.doors.export.judge import reasons_against
from cpsolver.doors.export.launch import EXPORTERS, CannotExpress, exporter
from cpsolver.plans.strategy import MODULES, Schedule, Sharded, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import full, night

DEVICES, BATCH = 16, 48
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}
MODELS = {
    "dense": model_spec(layers=12, kv_heads=2),
    "experts": model_spec(layers=12, kv_heads=4, heads=16, bias_mlp=True, moe={**EXPERTS, "first_dense": 1}),
    "prediction": model_spec(layers=11, kv_heads=8, mtp_layers=1),
}
NO_FACTS = ("a node of 4 devices would have", "needs equal rounds")
"""What exporters do refuse: nodes shared by two chip types, and what no plan's decision alone decides."""


@cache
def problem(name: str) -> Problem:
    return problem_of({"x": chip_spec(), "y": chip_spec(50)}, MODELS[name], gpus=DEVICES, node=4, batch=BATCH)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def layers(rng: random.Random, total: int, pp: int) -> list[int]:
    """Equal stages where there are such, equal ones but for the ends, or any."""
    kind = rng.random()
    if kind < 0.5 and total % pp == 0:
        return [total // pp] * pp
    if kind < 0.7 and pp > 2:
        first = rng.randint(1, total - (pp - 2) - 1)
        middle = rng.randint(1, max(1, (total - first - 1) // (pp - 2)))
        return [first, *[middle] * (pp - 2), max(1, total - first - middle * (pp - 2))]
    cuts = sorted(rng.sample(range(1, total), pp - 1))
    return [after - before for before, after in zip([0, *cuts], [*cuts, total], strict=True)]


def group(rng: random.Random, chip: str, counts: list[int]) -> StageGroup:
    kind = rng.choice(["none", "none", "selective", "block", "uniform"])
    amounts = tuple(rng.choice([1, 1, 2]) if kind in ("block", "uniform") else 0 for _ in counts)
    modules = tuple(rng.sample(MODULES, rng.randint(0, 2))) if kind == "selective" else ()
    return StageGroup(chip, tuple(counts), kind, amounts, modules)  # type: ignore[arg-type]


def groups(rng: random.Random, counts: list[int]) -> tuple[StageGroup, ...]:
    """The stages on one chip type or two, recomputing alike or not."""
    border = rng.randint(1, len(counts) - 1) if len(counts) > 1 and rng.random() < 0.3 else len(counts)
    blocks = [(chip, some) for chip, some in (("x", counts[:border]), ("y", counts[border:])) if some]
    if rng.random() < 0.3:
        return tuple(group(rng, chip, [one]) for chip, some in blocks for one in some)
    one = group(rng, "x", [1])
    return tuple(
        StageGroup(chip, tuple(some), one.recompute, one.recompute_layers * len(some), one.modules)
        for chip, some in blocks
    )


def plan(rng: random.Random, model: str) -> Strategy:
    """A plan for all devices: any degrees, flags, layers and recomputation."""
    tp, cp = rng.choice([1, 1, 2, 4]), rng.choice([1, 1, 1, 2, 4])
    pp = rng.choice([size for size in (1, 1, 2, 4, 8) if DEVICES % (tp * cp * size) == 0])
    dp = DEVICES // (tp * cp * pp)
    zero, ulysses = rng.random() < 0.7, rng.choice(divisors(cp))
    sharded: Sharded = rng.choice(["optimizer", "gradients", "parameters"]) if zero else "optimizer"
    schedules: list[Schedule] = ["zb1p", "zb2p", "breadth_first"]
    mbs, dense = rng.choice([1, 1, 2, 3]), model != "experts"
    sizes = tuple(rng.choice([1, 2]) for _ in range(max(1, BATCH // (mbs * dp)))) if rng.random() < 0.04 else ()
    return Strategy(
        *(tp, pp, dp, mbs, rng.choice([1, 1, 2, 3])),
        *(tp > 1 and rng.random() < 0.6, zero, rng.random() < 0.75),
        groups(rng, layers(rng, problem(model).model.layers, pp)),
        *(cp, ulysses, cp > 1 and ulysses == 1 and rng.random() < 0.5),
        *((1, 1) if dense else (rng.choice([1, 2, 4]), rng.choice([1, 1, 2]))),
        sharded=sharded,
        sharding_group=rng.choice([0, 0, *divisors(dp * cp)]) if zero else 0,
        schedule=rng.choice(schedules) if rng.random() < 0.2 else "1f1b",
        micro_batches=sizes,
    )


@pytest.mark.parametrize("plans", [17, full(150), night(667)])
def test_no_exporter_refuses_what_the_profile_allows(plans: int) -> None:
    rng, exported = random.Random(20261122), Counter[str]()
    for model in MODELS:
        for strategy in (plan(rng, model) for _ in range(plans)):
            for target in EXPORTERS:
                if reasons_against(problem(model), strategy, target):
                    continue
                exported[target] += 1
                try:
                    exporter(target)(problem(model), strategy)
                except CannotExpress as refused:
                    wrong = [reason for reason in refused.reasons if not any(some in reason for some in NO_FACTS)]
                    assert not wrong, (target, wrong, strategy)
    assert len(exported) == len(EXPORTERS) or plans < 100
    assert sum(exported.values()) > plans / 2
