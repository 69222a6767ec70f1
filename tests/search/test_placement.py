"""How far stages reach along a model of several kinds of layers, in numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.shard import Candidates
from cpsolver.cost.stored import Stored
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.placement import MixPlacement, Placement
from cpsolver.search.bounds.stages import Stages
from cpsolver.search.space import enumerate_rows
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of
from tests.support.tables import all_orders

NO_TIME_TOO_LONG = np.array([1e6])


def reaches(capacity: float, kind: str, full: float = 4.0, checkpoint: float = 1.0) -> bool:
    """Whether one stage holds 16 layers, the first one dense, whose activations alone take memory; bytes."""
    model = model_spec(layers=16, moe={"experts": 4, "top_k": 2, "expert_ffn": 512, "first_dense": 1})
    problem = problem_of(model=model, pin={"recompute": kind})
    table = Coefficients(problem, Candidates.one(strategy_of("x:16"), problem.batch))
    none = ("layer_states", "kind_states", "first_states", "last_states", "short", "buffer", "last_buffer")
    zeros = {name: np.zeros_like(getattr(table.memory, name)) for name in none}
    table.memory = replace(
        table.memory, full=np.array([full]), checkpoint=np.array([checkpoint]), fixed=0.0, overhead=0.0, **zeros
    )
    table.capacity = np.array([capacity])
    row, chips = np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    return bool(Placement(table, row, chips, table.stages(row, chips)).reaches(NO_TIME_TOO_LONG)[0])


def test_without_recomputation_every_layer_is_held_in_full() -> None:
    """16 * 4 = 64."""
    assert reaches(64, "none")
    assert not reaches(63.9, "none")


@pytest.mark.parametrize(
    ("full", "least"),
    [
        (4.0, 16.0),  # the best unit is sqrt(16 / 4) = 2 layers: 16 / 2 inputs and 2 * 4 at work; of 4 layers 4 + 16
        (1.0, 8.0),  # sqrt(16 / 1) = 4: 4 inputs and 4 * 1 at work; of 16 layers 1 + 16
        (25.0, 41.0),  # a unit has one layer at least: 16 inputs and 25 at work
    ],
)
def test_units_of_the_best_size_reach_as_far_as_such_a_plan_does(full: float, least: float) -> None:
    sizes = np.arange(1, 17)
    plans = activation_bytes(
        (Stored.alike(full), Stored.alike(0.0), 1.0), np.array(1), np.array(16), "uniform", sizes, 0.0
    )
    assert plans.min() == least
    assert reaches(least, "uniform", full)
    assert not reaches(least - 0.1, "uniform", full)


def test_a_mix_reaches_as_far_as_the_best_of_its_orders() -> None:
    """Three chip types of unlike speed and memory, and dense layers before experts: six orders of each mix. Of one that
    reaches the end every beginning may be one; of others some may not."""
    chips = {"a": chip_spec(100), "b": chip_spec(200), "c": chip_spec(300, gb=2)}
    model = model_spec(layers=12, moe={"experts": 4, "top_k": 2, "expert_ffn": 4096, "first_dense": 3})
    problem = problem_of(chips, model, 8, 2, 16, 512)
    rows = enumerate_rows(problem).rows
    rows = rows.take(np.nonzero(rows.pp == 8)[0])
    table, seen, left_out = Coefficients(problem, rows), set(), 0
    for row in range(0, len(rows), max(1, len(rows) // 3)):
        by_mix: dict[tuple[int, ...], list[np.ndarray]] = {}
        for mix, order in all_orders(problem, rows, row):
            by_mix.setdefault(mix, []).append(order)
        for mix, orders in by_mix.items():
            at, alone = np.array([row]), [np.full((1, 8), chip) for chip in range(3)]
            by_type = [table.stages(at, each, any_neighbours=True) for each in alone]
            whole = MixPlacement(table, at, np.array([mix]), Stages.side_by_side(by_type))
            parts = [
                Placement(table, at, order[None], table.stages(at, order[None], any_neighbours=True))
                for order in orders
            ]
            slowest = float(max(stages.layer.max() for stages in by_type))
            for longest in slowest * np.linspace(0.3, 2.5, 12)[:, None]:
                reached = bool(whole.reaches(longest)[0])
                assert reached == any(part.reaches(longest)[0] for part in parts)
                seen.add((reached, all(part.reaches(longest)[0] for part in parts), len(orders) > 1))
                may = whole.beginnings(longest)[0]
                for order, part in zip(orders, parts, strict=True):
                    begins = bool(may[np.bitwise_or.accumulate(1 << order)].all())
                    assert begins or not part.reaches(longest)[0]
                    left_out += reached and not begins
    assert left_out > 50
    assert {(True, False, True), (True, True, True), (False, False, True)} <= seen


@pytest.mark.parametrize(
    ("kinds", "period", "first"),
    [
        ({"moe": {"experts": 4, "top_k": 2, "expert_ffn": 4096, "first_dense": 3}}, 1, 3),
        ({"attention": {"sliding_window": 128, "full_every": 2}}, 2, 0),
    ],
)
def test_stages_reach_as_far_from_where_kinds_of_layers_repeat(kinds: dict[str, Any], period: int, first: int) -> None:
    """Five chip types that serve 1 to 3 of 8 stages: from every place behind the first that repeats a stage reaches as
    far as its stride says, or to the end."""
    chips = {name: chip_spec(100 * (at + 1), gb=4 + at) for at, name in enumerate("abcde")}
    problem = problem_of(chips, model_spec(layers=16, **kinds), 8, 2, 16, 512)
    rows = enumerate_rows(problem).rows
    rows = rows.take(np.nonzero((rows.pp == 8) & (rows.vpp == 1))[0][:1])
    table, at, mix = Coefficients(problem, rows), np.array([0]), np.array([[1, 1, 2, 1, 3]])
    by_type = [table.stages(at, np.full((1, 8), chip), any_neighbours=True) for chip in range(5)]
    whole = MixPlacement(table, at, mix, Stages.side_by_side(by_type))
    slowest, compared = float(max(stages.layer.max() for stages in by_type)), set()
    for longest in slowest * np.linspace(0.5, 4.0, 8)[:, None]:
        strides = whole._strides(longest)
        assert strides is not None
        assert strides.shape == (1, 5, 8, period)
        for chip, place, begin in product(range(5), range(8), range(first, 16)):
            [to] = whole._furthest(place, np.array([0]), np.array([chip]), np.array([begin]), longest)
            stride = strides[0, chip, place, (begin - first) % period]
            assert to == min(16, begin + stride)
            compared.add(int(stride))
    assert len(compared) > 3


def test_stages_hold_what_some_split_gives_them() -> None:
    """All splits of 14 layers over four stages on two chip types, dense layers before experts: the least and the most
    that each stage holds in any that is in time is what is said of it."""
    chips = {"a": chip_spec(100), "b": chip_spec(300)}
    model = model_spec(layers=14, moe={"experts": 4, "top_k": 2, "expert_ffn": 4096, "first_dense": 4})
    problem = problem_of(chips, model, 4, 2, 16, 512)
    rows = enumerate_rows(problem).rows
    table = Coefficients(problem, rows.take(np.nonzero((rows.pp == 4) & (rows.vpp == 1))[0][:3]))
    splits = [np.diff((0, *cuts, 14)) for cuts in combinations(range(1, 14), 3)]
    narrow = 0
    for row, order in product(range(len(table.rows)), ((0, 0, 1, 1), (1, 1, 0, 0))):
        at, chips_at = np.array([row]), np.array([order])
        lanes = np.array([_prefix(table, row, chip) for chip in range(2)])
        stages = table.stages(at, chips_at)
        fixed = (stages.fixed + stages.saving)[0]
        placed = Placement(table, at, chips_at, stages)
        for longest in np.linspace(0.6, 1.5, 7) * lanes.max() / 4:
            begin = [np.concatenate([[0], split.cumsum()]) for split in splits]
            time = [lanes[list(order), ends[1:]] - lanes[list(order), ends[:-1]] + fixed for ends in begin]
            good = np.array([split for split, of in zip(splits, time, strict=True) if of.max() <= longest])
            least, most = placed.held(np.array([longest]))
            if not len(good):
                assert most.max() == -1
                continue
            assert (least[0] <= good.min(axis=0)).all()
            assert (most[0] >= good.max(axis=0)).all()
            narrow += int((most[0] == good.max(axis=0)).all() and most.sum() < 4 * 11)
    assert narrow > 5


def _prefix(table: Coefficients, row: int, chip: int) -> np.ndarray:
    """Seconds of the layers before each place."""
    beyond = table.beyond_mean(table.time.kind_layer[chip], np.array([row]))[0]
    return np.asarray(beyond + table.time.layer[chip, row] * np.arange(len(beyond)))
