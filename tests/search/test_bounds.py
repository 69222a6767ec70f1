"""A row may be dropped only by a bound that proves it: no bound may exceed the best step time of any plan below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import TimeTable, time_table
from cpsolver.problem.problem import Problem, Supply
from cpsolver.search.bounds import coefficients, quick
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.data import plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel
from tests.support.generated import random_problem
from tests.support.ladder import Ladder, assert_below, held
from tests.support.mixtures import mixture_problem
from tests.support.overlapping import overlap_problem
from tests.support.problems import chip_spec, problem_of, with_stack
from tests.support.selection import full, night
from tests.support.tables import passes_of


@pytest.mark.parametrize(
    ("start", "count", "bend"),
    [
        (1000, 14, True),
        full(1014, 8, True),
        night(1022, 18, True),
        night(1000, 40, False),
        night(1040, 60, True),
        night(1040, 60, False),
    ],
    ids=["bent", "also bent", "again bent", "real", "more bent", "more real"],
)
def test_no_bound_exceeds_brute_force(start: int, count: int, bend: bool) -> None:
    tally = held(random_problem, range(start + 200 * bend, start + count + 200 * bend), 250, bend)
    assert tally["fit"] > 25 * count / 40
    assert tally["cut"] > 0
    assert tally["tight"] > 0.6 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [(1000, 2), full(1002, 10), night(1012, 36)])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force_with_overlap_of_experts(start: int, count: int, bend: bool) -> None:
    """48 problems with the cost model's tables, and with bent ones."""
    assert held(overlap_problem, range(start, start + count), 400, bend)["overlap"] >= count / 6


def one_by_one(seed: int) -> Problem:
    """As `random_problem`, with a stack whose transfers are operations of their own, some or all held by buffers."""
    rng = np.random.default_rng([seed, 29])
    held_mib, sends_first = float(rng.choice([0.05, 0.5, 2, 1e3])), float(rng.integers(2))
    buffers = {"pipeline_buffer_mib": held_mib, "pipeline_sends_first": sends_first}
    return with_stack(random_problem(seed), pipeline_transfers=4, **buffers)


@pytest.mark.parametrize(("start", "count"), [(4000, 12), full(4012, 20), night(4032, 60)])
def test_no_bound_exceeds_brute_force_with_transfers_one_by_one(start: int, count: int) -> None:
    assert held(one_by_one, range(start, start + count), 250, bend=True)["fit"] > 10


@pytest.mark.parametrize(("start", "count"), [(3, 3), full(10_009, 1), night(6, 12)])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force_with_kinds_on_mixed_chips(start: int, count: int, bend: bool) -> None:
    assert held(mixture_problem, range(start, start + count), 1000, bend)["tight"] > count


def optimum(table: Coefficients, row: int, chips: np.ndarray, upper: float) -> float:
    """The best step time of a plan up to `upper` by the solver alone, no bound given to it; infinite if there is none.

    Should the solver be stopped first, the best that it has: a bound may not exceed that either.
    """
    scale = scale_for(upper)
    data = plan_data(table, row, chips, scale, upper)
    if not data.possible:
        return float("inf")
    solved = CompiledModel(table.problem, [data], scale, 0.0, upper).solve(time_limit_s=10)
    return solved.step_time_s + data.error_s


SLOW_LINKS = chip_spec(tflops=200, up=4, out=400)
SLOW_CORES = chip_spec(tflops=60, up=400, out=400)
HALVES = {"max": 4}


@pytest.mark.parametrize(("one", "other"), [full(SLOW_LINKS, SLOW_CORES), night(SLOW_CORES, SLOW_LINKS)])
def test_bounds_hold_where_the_better_chip_depends_on_the_row(one: object, other: object) -> None:
    """One chip is better without tensor parallelism, the other with it."""
    chips = {"x": {"spec": one, **HALVES}, "y": {"spec": other, **HALVES}}
    model = {"layers": 4, "hidden": 1024, "ffn": 4096, "heads": 8, "vocab": 4000}
    pinned = {"distributed_optimizer": False, "flash_attention": True, "mbs": 1}
    ladder = Ladder(problem_of(chips, model, gpus=8, node=4, batch=4, pin=pinned))
    plans = [(row, *way) for row in range(len(ladder.table.rows)) for way in ladder.plans(row)]
    assert len(plans) > 20
    for row, mix, order in plans:
        bounds = ladder.of(row, mix, order)
        assert np.isfinite(bounds[-1])
        assert_below(bounds, optimum(ladder.table, row, order, 2 * bounds[-1]), ladder.key(row, order))


def test_bounds_hold_where_one_chip_is_for_the_embedding_and_one_for_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """x takes long for the head, y for the embedding: x first and y last has neither."""

    def table(problem: Problem, supply: Supply, rows: Candidates) -> TimeTable:
        made, one = time_table(problem, supply, rows), np.ones(len(rows))
        first, last = (0.0, 1.0) if supply.name == "x" else (1.0, 0.0)
        return replace(made, embedding=first * one, head=last * one)

    monkeypatch.setattr(coefficients, "time_table", table)
    monkeypatch.setattr(quick, "pass_seconds", passes_of(table))
    chips = {"x": {"spec": chip_spec(), **HALVES}, "y": {"spec": chip_spec(), **HALVES}}
    ladder = Ladder(problem_of(chips, gpus=8, node=4, batch=1, pin={"pp": 2, "vpp": 1, "cp": 1}))
    for row in range(len(ladder.table.rows)):
        for mix, order in ladder.plans(row):
            bounds = ladder.of(row, mix, order)
            true = optimum(ladder.table, row, order, 10.0)
            assert (true < 0.5) == (order.tolist() == [0, 1])
            assert_below(bounds, true, order)


FEW = {"mbs": 1, "cp": 1, "flash_attention": True, "sharding_group": 0, "tp": [1, 4], "ep": [1, 8]}
REALISTIC: dict[str, tuple[dict[str, int], int, int, int, dict[str, Any]]] = {
    "llama2-70b": ({"a800": 48, "h800": 48}, 64, 128, 4096, {}),
    "gpt3-175b": ({"a100": 128}, 128, 96, 2048, {}),
    "llama2-7b": ({"a100_40g": 16, "rtx4090": 16, "ascend_910b": 16}, 32, 64, 4096, {}),
    "llama2-13b": ({"a800": 16}, 16, 32, 8192, {"layer_split": "even", "forbid": {"recompute": ["block"]}}),
    "deepseek-v2-lite": ({"a800": 16, "h800": 16}, 32, 64, 4096, {"pin": FEW}),
    "mixtral-8x7b": ({"h100": 32}, 32, 64, 4096, {"pin": FEW | {"cp": [1, 2]}}),
}


@pytest.mark.parametrize("name", ["llama2-13b", *(night(name) for name in REALISTIC if name != "llama2-13b")])
def test_no_bound_exceeds_the_solver_on_real_models(name: str) -> None:
    chips, gpus, batch, sequence, search = REALISTIC[name]
    ladder = Ladder(problem_of(chips, name, gpus, 8, batch, sequence, **search))
    rng = np.random.default_rng(7)
    infinite = finite = 0
    for row in rng.permutation(len(ladder.table.rows)).tolist():
        if finite == 15:
            break
        ways = ladder.plans(row) if ladder.table.rows.pp[row] <= 8 else []
        if not ways:
            continue
        mix, order = ways[int(rng.integers(len(ways)))]
        bounds = ladder.of(row, mix, order)
        impossible = bool(np.isinf(bounds[-1]))
        if impossible and infinite == 15:
            continue
        infinite, finite = infinite + impossible, finite + (not impossible)
        true = optimum(ladder.table, row, order, 1e3 if impossible else 2 * bounds[-1])
        assert_below(bounds, true, ladder.key(row, order))
    assert finite == 15
