"""The search against brute force where Muon or SOAP takes matrices whole: padded buffers, seconds and bytes of each."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import SHARDED
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from cpsolver.profiles.switches import MuonTpMode
from cpsolver.rules import violations
from cpsolver.search.search import search
from tests.support.compared import compared
from tests.support.generated import random_problem
from tests.support.ladder import held
from tests.support.problems import model_spec, problem_of, strategy_of
from tests.support.selection import full, night

LARGEST = 400
"""Strategies that brute force may have to judge for one problem."""


def muon_problem(seed: int) -> Problem:
    """A random problem whose matrices are orthogonalized, whole or in shares, on any launcher or one that can; or
    preconditioned, every third."""
    problem, rng = random_problem(seed), np.random.default_rng((seed, 7))
    changes = {"optimizer": "muon", "muon_tp_mode": str(rng.choice(get_args(MuonTpMode)))}
    changes = changes if seed % 3 else {"optimizer": "soap"}
    training = problem.spec.training.model_copy(update=changes)
    launcher = load_launcher("megatron-lm") if problem.spec.launcher == "megatron-lm" else None
    name = None if launcher is None else launcher.name
    spec = problem.spec.model_copy(update={"training": training, "launcher": name})
    return replace(problem, spec=spec, launcher=launcher)


@pytest.mark.parametrize(
    ("block", "count", "bend"), [(0, 2, True), full(1, 5, False), night(1, 14, False), night(2, 14, True)]
)
def test_the_search_agrees_with_brute_force(block: int, count: int, bend: bool) -> None:
    """Up to 14 problems a block, with the cost model's tables or with bent ones."""
    start = 90_000 + 100 * block + 50 * bend
    problems = compared(muon_problem, range(start, start + count), LARGEST, bend)
    assert sum(bool(best) for _, best in problems) > count // 7


@pytest.mark.full
@pytest.mark.parametrize(("start", "count"), [(91_004, 4), night(91_008, 20)])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force(start: int, count: int, bend: bool) -> None:
    tally = held(muon_problem, range(start, start + count), 250, bend)
    assert tally["tight"] > 0.5 * tally["fit"] > 0


def test_states_are_sharded_over_all_replicas_or_not_at_all() -> None:
    problem = problem_of(model=model_spec(), gpus=4, training={"optimizer": "muon"})
    for sharded in SHARDED:
        found = violations(problem, strategy_of(dp=4, flags="fz", sharded=sharded))
        told = [each.message for each in found if each.rule == "optimizer"]
        assert bool(told) == (sharded != "optimizer")
    grouped = violations(problem, strategy_of(dp=4, flags="fz", sharding_group=2))
    assert any("muon shards the optimizer's states alone, over all replicas" in each.message for each in grouped)
    assert not violations(problem, strategy_of(dp=4, flags="f"))


def test_few_matrices_for_many_ranks_are_better_not_sharded_out() -> None:
    """One layer has four matrices: of eight ranks four have nothing, and buffers are padded to eight of the longest.

    Adam shards the same states, with less memory for it."""
    sizes = {"layers": 1, "hidden": 2048, "ffn": 8192, "heads": 16, "vocab": 1000}
    pins = {"tp": 1, "pp": 1, "cp": 1, "mbs": 1}
    adam, muon = (
        problem_of(model=model_spec(**sizes), gpus=8, node=8, training={"optimizer": name}, pin=pins)
        for name in ("adam", "muon")
    )
    plain, shared = (strategy_of("x:1", dp=8, flags=flags) for flags in ("f", "fz"))
    by_memory = [
        [evaluate(problem, plan).stages[0].memory.total for plan in (plain, shared)] for problem in (adam, muon)
    ]
    assert by_memory[0][1] < by_memory[0][0]
    assert by_memory[1][1] > by_memory[1][0]
    (best,) = search(muon.with_(search={"top": 1})).plans
    assert best.evaluation.step_time_s == min(evaluate(muon, plan).step_time_s for plan in (plain, shared))
