"""A row may be dropped only by a bound that proves it: no bound may exceed the best step time of any plan below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import TimeTable, time_table
from cpsolver.problem.problem import Problem, Supply
from cpsolver.search.arrangements import next_counts
from cpsolver.search.bounds import coefficients
from cpsolver.search.bounds.bounds import mix_bound, plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.quick import frame_bound, quick_bound, too_large
from cpsolver.search.compile.data import plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel
from cpsolver.search.filters import may_mix, most_stages
from cpsolver.search.space import enumerate_rows
from tests.support.generated import random_problem
from tests.support.mixtures import mixture_problem
from tests.support.oracle import brute_force, grouped_key, small_enough
from tests.support.overlapping import overlap_problem
from tests.support.problems import chip_spec, problem_of
from tests.support.selection import full
from tests.support.tables import all_orders, plan_of, quick_tables


class Ladder:
    """All the bounds above every plan of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = enumerate_rows(problem)
        self.table = Coefficients(problem, self.space.rows)
        self.quick = quick_bound(self.table) if len(self.table.rows) else np.empty(0)
        self.too_large = too_large(self.table) if len(self.table.rows) else np.empty(0)
        self.frame = np.repeat(frame_bound(problem, self.space)[0], self.space.rows_of)

    def of(self, row: int, mix: tuple[int, ...], order: np.ndarray) -> list[float]:
        """Bounds of the frame, of the row, quick and good, of each beginning of the mix, and of the plan."""
        rows, at, wide = self.table.rows, np.array([row]), int(self.table.rows.stage_devices[row])
        pp = len(order)
        mixed = bool(may_mix(self.problem, rows.take([row]))[0])
        counts = np.array([most_stages(self.problem, wide, pp, mixed)])
        quick = np.inf if self.too_large[row] else float(self.quick[row])
        found = [float(self.frame[row]), quick, float(mix_bound(self.table, at, np.zeros_like(counts), counts)[0])]
        for known in range(len(mix)):
            least, most = next_counts(self.problem, wide, pp, mix[:known], mixed)
            same = np.nonzero(least[:, known] == mix[known])[0]
            found.append(float(mix_bound(self.table, at, least[same], most[same])[0]))
            found.append(float(quick_bound(self.table.take(at), most=most[same])[0]))
        assert rows.pp[row] == pp
        return [*found, float(plan_bound(self.table, at, order[None, :])[0])]

    def plans(self, row: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
        return all_orders(self.problem, self.table.rows, row)

    def key(self, row: int, chips: np.ndarray) -> tuple[object, ...]:
        return grouped_key(plan_of(self.problem, self.table.rows, row, chips))


def assert_below(bounds: list[float], true: float, what: object) -> None:
    wrong = [place for place, bound in enumerate(bounds) if not bound <= true * (1 + 1e-9)]  # nor is one nan
    assert not wrong, f"{what}: bounds {wrong} of {bounds} are above {true}"


def held_bounds(problem: Problem, seed: int) -> Iterator[tuple[bool, float, list[float]]]:
    """Whether each plan overlaps experts, its best seconds by brute force, and the bounds, none of which is above."""
    best, ladder = brute_force(problem, grouped_key), Ladder(problem)
    for row in range(len(ladder.table.rows)):
        for mix, chips in ladder.plans(row):
            key, bounds = ladder.key(row, chips), ladder.of(row, mix, chips)
            true = best.get(key, np.inf)
            assert_below(bounds, true, (seed, key))
            yield bool(ladder.table.rows.expert_overlap[row]), true, bounds


@pytest.mark.parametrize(
    ("start", "count", "bend"),
    [(1000, 14, True), full(1014, 26, True), full(1000, 40, False), full(1040, 60, True), full(1040, 60, False)],
    ids=["bent", "also bent", "real", "more bent", "more real"],
)
def test_no_bound_exceeds_brute_force(start: int, count: int, bend: bool) -> None:
    close: dict[str, int] = defaultdict(int)
    for seed in range(start + 200 * bend, start + count + 200 * bend):
        problem = random_problem(seed)
        if not small_enough(problem, 250):
            continue
        with quick_tables(seed if bend else None):
            for _, true, bounds in held_bounds(problem, seed):
                close["all"] += np.isfinite(true)
                close["tight"] += np.isfinite(true) and bounds[-1] > 0.9 * true
                close["cut"] += np.isinf(bounds[-1])
    assert close["all"] > 25 * count / 40
    assert close["cut"] > 0
    assert close["tight"] > 0.6 * close["all"]


@pytest.mark.parametrize(("start", "count"), [(1000, 6), full(1006, 6), *(full(start, 36) for start in (1012, 1048))])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force_with_overlap_of_experts(start: int, count: int, bend: bool) -> None:
    """120 problems with the cost model's tables, and with bent ones; every tenth by `make test`."""
    overlapping = 0
    for seed in range(start, start + count):
        problem = overlap_problem(seed)
        if not small_enough(problem, 400):
            continue
        with quick_tables(seed if bend else None):
            for overlaps, true, _ in held_bounds(problem, seed):
                overlapping += overlaps and bool(np.isfinite(true))
    assert overlapping >= count / 6


@pytest.mark.parametrize(("start", "count"), [(0, 6), full(6, 60)])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force_with_kinds_on_mixed_chips(start: int, count: int, bend: bool) -> None:
    close = 0
    for seed in range(start, start + count):
        problem = mixture_problem(seed)
        if not small_enough(problem, 1000):
            continue
        with quick_tables(seed if bend else None):
            for _, true, bounds in held_bounds(problem, seed):
                close += np.isfinite(true) and bounds[-1] > 0.9 * true
    assert close > count


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


@pytest.mark.parametrize(("one", "other"), [full(SLOW_LINKS, SLOW_CORES), full(SLOW_CORES, SLOW_LINKS)])
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


@pytest.mark.parametrize("name", ["llama2-13b", *(full(name) for name in REALISTIC if name != "llama2-13b")])
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
