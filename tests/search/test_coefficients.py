"""Stage coefficients against seconds worked out by hand."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.cost.stage import ChipTimes, Pipelines
from cpsolver.cost.tables import time_table
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.space import enumerate_rows
from tests.support.mixtures import mixture_problem
from tests.support.networks import on_network
from tests.support.problems import ideal, model_spec, strategy_of

LINK = 2 * 1024 * 1024 / 100e9
"""Seconds of the hidden states of a sequence over a link inside a node; one between nodes takes 8 times as long."""


@pytest.mark.parametrize(
    ("forward", "layer", "repeated", "seconds"),
    [
        # Weights of 4 layers and the ends: 4 * 1 + 0.5 = 4.5 s to gather, gradients 4 * 2 + 1 = 9 s to scatter.
        # Forward, 4 * 1 s, hides 4 of 4.5; backward, 4 * 2 - 4 + 1 = 5, hides 5 of 13.5: 18 - 0.75 * (4 + 5).
        (1.0, 2.0, 1.0, 11.25),
        # Forward of 4 * 3 s and backward of 4 * 12 - 12 hide all 4.5 and 13.5 that they may: 18 - 0.75 * 18.
        (3.0, 12.0, 0.0, 4.5),
    ],
)
def test_sharding_that_compute_does_not_hide(forward: float, layer: float, repeated: float, seconds: float) -> None:
    problem, _ = ideal(stack={"sharding_overlap": 0.75})
    plan = strategy_of(sharded="parameters")
    row = Candidates.one(plan, problem.batch)
    known = {
        "recompute": forward,
        "layer": layer,
        "gather": 1.0,
        "gather_ends": 0.5,
        "scatter": 2.0,
        "scatter_ends": 1.0,
    }
    columns = {name: np.array([value]) for name, value in known.items()}
    table = replace(time_table(problem, problem.supplies[0], row), **columns)
    tables = ChipTimes.of(problem, list(problem.supplies), row, [table])
    stage = Pipelines(tables, np.array([0]), np.zeros((1, 1), dtype=np.int64))
    assert stage.sharding(4.0, np.array([[repeated]])) == pytest.approx(seconds)
    coefficients = Coefficients(problem, row)
    coefficients.tables = tables
    assert coefficients.sharding(np.array([0]), 0, np.array([[repeated]])) == pytest.approx(seconds)
    assert set(known) < {field.name for field in fields(table)}


def test_links_of_interleaving_go_round() -> None:
    """4 stages of a device, 2 in a node, 3 chunks: see test_evaluate for the same by the judge."""
    problem, _ = ideal(model=model_spec(layers=12), node=2, stack={"pipeline_overlap_interleaved": 0.5})
    row = Candidates.one(strategy_of("x:3,3,3,3", dp=1, vpp=3), problem.batch)
    stages = Pipelines(Coefficients(problem, row).tables, np.array([0]), np.zeros((1, 4), dtype=np.int64))
    assert stages.p2p()[0] / LINK == pytest.approx([9.5, 13.5, 13.5, 9.5], rel=1e-6)


@pytest.mark.parametrize(("groups", "slots"), [("x:3,4", (1, 0)), ("x:4,3", (0, 1)), ("x:3,3", (1, 1))])
def test_embedding_and_head_take_a_layers_time_in_a_layers_place(groups: str, slots: tuple[int, int]) -> None:
    """A layer takes 2 s, of the host: 4 places of a stage 8 s, and ends in places of their own some microseconds."""
    layers = 8 - sum(slots)
    problem, _ = ideal(model=model_spec(layers=layers), stack={"host_layer_us": 1e6})
    row = Candidates.one(strategy_of(groups, dp=2, vpp=2), problem.batch)
    table, at, chips = Coefficients(problem, row), np.array([0]), np.zeros((1, 2), dtype=np.int64)
    stages = table.stages(at, chips)
    seconds = (4 * stages.layer + stages.fixed - Pipelines(table.tables, at, chips).p2p())[0]
    ends = [table.time.embedding[0, 0], table.time.head[0, 0]]
    assert 0 < max(ends) < 0.01
    assert seconds == pytest.approx([8 + (not slot) * end for slot, end in zip(slots, ends, strict=True)], rel=1e-9)


def assert_same(one: Any, other: Any) -> None:
    """All that two tables hold, whatever it is called: a column that is forgotten shows."""
    if isinstance(one, np.ndarray):
        assert one.tolist() == other.tolist()
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict | list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(*(list(x.values()) if isinstance(x, dict) else x for x in (one, other)), strict=True):
            assert_same(mine, theirs)
    elif not isinstance(one, int | float | str | None):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_of_some_rows_are_those_of_these_alone(seed: int) -> None:
    problem = mixture_problem(seed)
    first, second, *_ = problem.chip_names
    levels = [{"name": "rack", "devices": 2}, {"name": "all", "oversubscription": 4}]
    problem = on_network(problem, {"levels": levels, "links": [{"between": [first, second], "gbit_s": 1}]})
    table = Coefficients(problem, enumerate_rows(problem).rows)
    assert table.tables.far is not None
    rows = np.random.default_rng(seed).permutation(len(table.rows))[: len(table.rows) // 2]
    assert_same(_held(table.take(rows)), _held(Coefficients(problem, table.rows.take(rows))))


def _held(table: Coefficients) -> dict[str, Any]:
    """All that a table holds but for the problem, which both have."""
    held = {**vars(table), "tables": {f.name: getattr(table.tables, f.name) for f in fields(table.tables)}}
    del held["problem"], held["tables"]["problem"]
    return held
