"""What is remembered of shards is what they take, in whatever order and company they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.shard import Floats, Shard
from cpsolver.cost.shard_seconds import KnownShards, known_shards, shard_columns
from cpsolver.search.space import enumerate_rows
from tests.support.generated import random_problem
from tests.support.problems import with_stack


def same(found: dict[str, Floats], made: dict[str, Floats]) -> None:
    assert found.keys() == made.keys()
    for name, column in made.items():
        np.testing.assert_allclose(found[name], column, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_a_shard_takes_what_it_takes_alone(seed: int) -> None:
    problem = random_problem(4000 + seed, special=seed % 2 == 0)
    rng, shards = np.random.default_rng(seed), enumerate_rows(problem).rows.shard.distinct()[0]
    for supply in problem.supplies:
        known = known_shards(problem, supply.chip)
        for _ in range(3):
            some = shards.take(rng.choice(len(shards.tp), min(7, len(shards.tp))))  # some of them twice
            same(known.of(some), shard_columns(problem, supply.chip, some))
        assert known is known_shards(problem, supply.chip)


def test_each_shard_is_worked_out_once() -> None:
    asked: list[int] = []

    def make(shard: Shard) -> dict[str, Floats]:
        asked.extend(shard.tp.tolist())
        return {"double": np.asarray(2.0 * shard.tp[None], dtype=np.float64)}

    known = KnownShards(make)
    for sizes in ([4, 2], [2, 8], [8, 4, 2]):
        shard = Shard.of(sizes, [1] * len(sizes), False, True)
        assert known.of(shard)["double"].tolist() == [[2.0 * size for size in sizes]]
    assert asked == [4, 2, 8]


def test_only_problems_whose_plans_take_as_long_share_what_was_worked_out() -> None:
    problem = random_problem(4000)
    for alike in (problem.with_(search={"top": 1}), problem.with_(cluster={"memory_margin": 0.3})):
        assert alike.worked_out is problem.worked_out
    others = (
        problem.with_(cluster={"num_gpus": problem.num_gpus}),
        problem.with_(supplies=problem.supplies),
        with_stack(problem, straggling=0.5),
    )
    assert all(other.worked_out is not problem.worked_out for other in others)
