"""The rows and their chips by position are exactly those that the rules allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.plans.strategy import chip_blocks
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import launcher_names
from cpsolver.search.arrangements import arrangements, mixes, next_counts
from cpsolver.search.filters import most_stages, stage_step
from cpsolver.search.search import search
from cpsolver.search.space import Spaces, divisors, enumerate_rows, sharding_groups
from tests.support.generated import random_problem
from tests.support.oracle import SPLIT_RULES, grouped_key, legal, rows
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import first, full, night
from tests.support.tables import all_orders, plan_of

SPEC = chip_spec()
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512, "shared_experts": 1}
SOME = {"mbs": 1, "flash_attention": True}
"""Pins that nothing here depends on."""
SPACES: dict[str, dict[str, Any]] = {
    "one chip": {"chips": {"x": SPEC}, "gpus": 8, "node": 4},
    "two chips": {"chips": {"x": {"max": 4, "spec": SPEC}, "y": {"max": 6, "spec": SPEC}}, "gpus": 8, "node": 2},
    "three chips": {"chips": {"x": {"max": 2, "spec": SPEC}, "y": SPEC, "z": SPEC}, "gpus": 4, "node": 1},
    "shared node": {"chips": {"x": SPEC, "y": SPEC}, "gpus": 8, "node": 8},
    "odd widths": {"model": model_spec(layers=6, heads=6, kv_heads=3, hidden=768), "gpus": 6, "node": 3, "batch": 6},
    "odd sequence": {"model": model_spec(layers=5), "sequence": 1022, "gpus": 4, "node": 4},
    "short sequence": {"sequence": 12, "gpus": 8, "node": 4, "pin": SOME},
    "key-value heads": {"model": model_spec(kv_heads=4), "gpus": 8, "node": 4, "pin": SOME},
    "experts": {"model": model_spec(moe=EXPERTS), "gpus": 8, "node": 4, "batch": 4, "pin": SOME},
    "uneven experts": {
        "model": model_spec(moe=EXPERTS | {"experts": 6, "expert_ffn": 7}),
        "gpus": 6,
        "node": 3,
        "batch": 12,
        "pin": SOME,
    },
    "dense and experts": {"model": model_spec(ffn=6, moe=EXPERTS | {"freq": 2, "shared_ffn": 6}), "pin": SOME},
    "groups of a node": {"gpus": 8, "node": 2, "pin": SOME},
    "groups asked for": {"gpus": 8, "node": 2, "pin": SOME | {"sharding_group": [0, 2, 3, 4]}},
    "groups and experts": {"model": model_spec(moe=EXPERTS), "gpus": 8, "node": 2, "pin": SOME | {"tp": 1}},
    "what nothing allows": {"pin": SOME | {"ulysses": [1, 3], "ep": [1, 2], "sharded": ["optimizer", "parameters"]}},
    **{
        f"launcher {name}": {"chips": {"x": {"max": 4, "spec": SPEC}, "y": SPEC}, "node": 2, "pin": SOME, **given}
        for name in launcher_names()
        for given in ({"launcher": name, "model": model_spec(layers=6, kv_heads=2, moe=EXPERTS)},)
        if name != "megatron-deepspeed"
    },
    "launcher megatron-deepspeed": {
        "chips": {"x": {"max": 4, "spec": SPEC}, "y": SPEC},
        "node": 2,
        "pin": SOME | {"flash_attention": False, "mbs": [1, 2]},
        "launcher": "megatron-deepspeed",
        "model": model_spec(layers=6),
    },
}


def plans_of(problem: Problem) -> list[tuple[object, ...]]:
    """Key and sharding group of every plan of the space."""
    rows_left = enumerate_rows(problem).rows
    orders = ((row, order) for row in range(len(rows_left)) for _, order in all_orders(problem, rows_left, row))
    return [grouped_key(plan_of(problem, rows_left, row, order)) for row, order in orders]


LATER = {
    "groups and experts",
    "odd sequence",
    "one chip",
    "two chips",
    "three chips",
    "shared node",
    "experts",
    "uneven experts",
    "odd widths",
    *(f"launcher {name}" for name in launcher_names()),
} - {"launcher megatron-lm"}
"""Spaces that `make test` leaves out: each is like one that stays."""
_LAUNCHERS = [f"launcher {name}" for name in launcher_names()]
AT_NIGHT = {"uneven experts", "odd widths", *_LAUNCHERS} - {"launcher megatron-lm"}
"""Of these, those that `make test-all` leaves out too."""


def _when(name: str) -> Any:
    return night(name) if name in AT_NIGHT else full(name) if name in LATER else name


@pytest.mark.parametrize("name", [_when(name) for name in SPACES])
def test_plans_are_exactly_those_that_the_rules_allow(name: str) -> None:
    problem = problem_of(**SPACES[name])
    found = plans_of(problem)
    wanted = {grouped_key(row) for row in rows(problem) if legal(problem, row, SPLIT_RULES)}
    assert set(found) == wanted
    assert len(found) == len(wanted) > 10


@pytest.mark.parametrize("name", SPACES)
def test_every_row_considered_is_kept_or_refused_by_one_rule(name: str) -> None:
    space = enumerate_rows(problem_of(**SPACES[name]))
    assert space.considered == len(space.rows) + sum(space.refused.values())
    assert all(count > 0 for count in space.refused.values())


def test_pins_take_rows_away_and_are_counted() -> None:
    free, pinned = enumerate_rows(problem_of()), enumerate_rows(problem_of(pin={"tp": 2}, forbid={"mbs": [2, 4]}))
    assert set(pinned.rows.tp.tolist()) == {2}
    assert set(pinned.rows.mbs.tolist()) == {1, 8} & set(free.rows.mbs.tolist())
    assert pinned.refused["pin"] > 0
    nothing = enumerate_rows(problem_of(pin={"tp": 3}))
    assert len(nothing.rows) == 0


@pytest.mark.parametrize("number", [1, 2, 36, 97, 1024, 1_048_576])
def test_divisors(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


@pytest.mark.parametrize("name", ["experts", "groups of a node", "odd widths"])
def test_rows_are_all_frames_with_all_variants_of_their_layout(name: str) -> None:
    space = enumerate_rows(problem_of(**SPACES[name]))
    each = [space.expand(np.array([frame])) for frame in range(len(space.frames))]
    assert [len(some) for some in each] == space.rows_of.tolist()
    assert len(space) == len(space.rows) == sum(map(len, each))
    degrees = ("tp", "cp", "pp", "dp", "mbs", "vpp", "microbatches", "ep", "ulysses", "sharded", "sharding_group")
    for column in degrees:
        assert getattr(space.rows, column).tolist() == [v for some in each for v in getattr(some, column).tolist()]


def test_states_are_shared_by_all_replicas_some_of_them_or_as_asked_for() -> None:
    problem = problem_of(gpus=16, node=4, batch=16)
    groups = {replicas: sharding_groups(problem, replicas) for replicas in (1, 2, 3, 4, 6, 12)}
    assert groups == {1: [0], 2: [0], 3: [0], 4: [0, 2], 6: [0, 3, 2], 12: [0, 6, 4, 3, 2]}
    assert sharding_groups(problem_of(pin={"sharding_group": [2, 0, 8]}), 16) == [0, 8, 2]


def test_whole_nodes_in_stages() -> None:
    assert [stage_step(8, width) for width in (1, 2, 6, 8, 16, 24)] == [8, 4, 4, 1, 1, 1]
    chips = {"x": {"max": 14, "spec": SPEC}, "y": {"max": 16, "spec": SPEC}}
    problem = problem_of(chips, gpus=16, node=4, batch=16)
    assert most_stages(problem, 2, 8) == [6, 8]
    assert most_stages(problem, 8, 2) == [1, 2]


def test_chip_blocks() -> None:
    assert list(chip_blocks(("x", "x", "y", "x"))) == [("x", 2), ("y", 1), ("x", 1)]
    assert list(chip_blocks(())) == []


def test_pinned_and_forbidden_orders() -> None:
    chips = dict.fromkeys(("x", "y", "z"), SPEC)
    mix = np.array([1, 2, 1])
    pinned = problem_of(chips, pin={"chip_order": ["z", "x", "y"]})
    assert arrangements(pinned, mix).tolist() == [[2, 0, 1, 1]]
    assert arrangements(pinned, np.array([0, 2, 2])).tolist() == [[2, 2, 1, 1]]
    banned = problem_of(chips, forbid={"stage_chips": ["z", "x", "y", "y"]})
    assert [2, 0, 1, 1] not in arrangements(banned, mix).tolist()
    assert len(arrangements(banned, mix)) == 5
    some = problem_of(chips, pin={"stages": {"x": [0, 2]}}, forbid={"stages": {"y": 1}}, gpus=4, node=1)
    assert mixes(some, 1, 4).tolist() == [[0, 0, 4], [0, 2, 2], [0, 3, 1], [0, 4, 0], [2, 0, 2], [2, 2, 0]]


def test_mixes_are_opened_type_by_type_with_room_for_the_rest() -> None:
    chips = {"x": {"max": 2, "spec": SPEC}, "y": {"max": 3, "spec": SPEC}, "z": {"max": 2, "spec": SPEC}}
    problem = problem_of(chips, gpus=4, node=1)
    least, most = next_counts(problem, 1, 4, ())
    assert least.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert most.tolist() == [[0, 3, 2], [1, 3, 2], [2, 2, 2]]
    least, most = next_counts(problem, 1, 4, (0,))
    assert least.tolist() == [[0, 2, 0], [0, 3, 0]]
    assert most.tolist() == [[0, 2, 2], [0, 3, 1]]
    assert next_counts(problem, 1, 4, (0, 3))[0].tolist() == [[0, 3, 1]]


@pytest.mark.parametrize(
    ("pins", "left"),
    [
        ({"pin": {"stages": {"x": [2]}}}, {2}),
        ({"forbid": {"stages": {"x": 2}}}, {1, 4}),
        ({"forbid": {"chip_order": ["x"]}}, set()),
        ({"pin": {"stage_chips": ["x", "x"]}}, {2}),
        ({"forbid": {"stage_chips": ["x", "x"]}}, {1, 4}),
        ({"pin": {"layers": [2, 2]}}, {2}),
    ],
    ids=str,
)
def test_pins_on_chips_hold_for_one_chip_type_too(pins: dict[str, Any], left: set[int]) -> None:
    assert set(enumerate_rows(problem_of(**pins)).rows.pp.tolist()) == left


@pytest.mark.parametrize("seed", first(1, range(30)))
def test_a_search_that_takes_over_another_ones_space_answers_alike(seed: int) -> None:
    """First with as much memory to be left free, then with more: what is known of the frames holds in both."""
    problem = random_problem(3000 + seed).with_(cluster={"memory_margin": 0.05})
    spaces = Spaces()
    space = spaces.of(problem)
    search(problem, spaces=spaces)
    for margin in (0.05, 0.2, 0.35):
        narrower = problem.with_(cluster={"memory_margin": margin}, search={"top": 2, "diverse": seed % 2 == 0})
        assert spaces.of(narrower) is space
        shared, alone = search(narrower, spaces=spaces), search(narrower)
        assert shared.status == alone.status
        assert [plan.evaluation.step_time_s for plan in shared.plans] == pytest.approx(
            [plan.evaluation.step_time_s for plan in alone.plans], rel=1e-9
        )


def _narrower(problem: Problem) -> list[Problem]:
    """Problems with a few of the plans of another."""
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    banned = {name: (*(getattr(forbid, name) or ()), 2) for name in ("cp", "mbs")}
    usual = {name: value for name, value in PLAIN.items() if not (getattr(pin, name) or getattr(forbid, name))}
    return [
        problem.with_(search={"forbid": forbid.model_copy(update=banned)}, cluster={"memory_margin": 0.1}),
        problem.with_(search={"pin": pin.model_copy(update=usual), "layer_split": "even"}),
    ]


PLAIN = {"vpp": (1,), "cp": (1,), "sharded": ("optimizer",), "sharding_group": (0,)}


@pytest.mark.parametrize("seed", first(1, range(30)))
def test_what_is_known_of_a_wider_problem_leaves_the_answers_of_narrower_ones_as_they_are(seed: int) -> None:
    problem = random_problem(3000 + seed).with_(cluster={"memory_margin": 0.05})
    spaces = Spaces()
    search(problem, spaces=spaces)
    known = spaces.of(problem).known.scores
    spaces.narrowed()
    for narrower in _narrower(problem):
        learned = spaces.of(narrower).known.scores
        assert np.isnan(known).any() or not np.isnan(learned).any()
        shared, alone = search(narrower, spaces=spaces), search(narrower)
        assert [plan.evaluation.step_time_s for plan in shared.plans] == pytest.approx(
            [plan.evaluation.step_time_s for plan in alone.plans], rel=1e-9
        )


def test_a_space_is_taken_over_where_nothing_that_its_frames_depend_on_is_another() -> None:
    problem = problem_of({"x": SPEC}, gpus=8, node=4).with_(cluster={"memory_margin": 0.1})
    spaces = Spaces()
    space = spaces.of(problem)
    assert spaces.of(problem.with_(search={"top": 7, "diverse": False, "time_limit_s": 9.0})) is space
    fewer_fit = problem.with_(cluster={"memory_margin": 0.2})
    assert spaces.of(fewer_fit) is space
    for other in (
        problem.with_(cluster={"memory_margin": 0.05}),  # more fit, some of which may be faster
        problem.with_(search={"objective": "cost"}),
        problem.with_(search={"schedules": ("1f1b",)}),
    ):
        assert spaces.of(other) is not space


def test_what_is_known_with_more_memory_free_is_not_taken_for_less() -> None:
    problem = problem_of({"x": SPEC}, gpus=8, node=4)
    spaces = Spaces()
    space = spaces.of(problem.with_(cluster={"memory_margin": 0.1}))
    assert spaces.of(problem.with_(cluster={"memory_margin": 0.3})) is space
    assert spaces.of(problem.with_(cluster={"memory_margin": 0.2})) is not space
