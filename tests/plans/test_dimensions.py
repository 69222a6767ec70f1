"""The table of decisions: what is typed elsewhere agrees with it, and nothing else lists decisions again."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.plans.dimensions import (
    ALWAYS_SHOWN,
    DEGREES,
    DIMENSIONS,
    FLAGS,
    PLAN_FIELDS,
    ROW,
    Group,
    differences,
    pins,
    shown_sizes,
)
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.spec.search import Decisions
from tests.support.checkout import ROOT
from tests.support.problems import strategy_of
from tools.decision_lists import PROBE, decision_lists, files_naming

PLAN = strategy_of("x:3,2", tp=2, dp=4, vpp=1, sharding_group=2)


def test_every_field_of_a_plan_is_a_decision_but_the_stages() -> None:
    assert {field.name for field in fields(Strategy)} - set(DIMENSIONS) == {"groups"}
    assert all(hasattr(PLAN, one.attribute) for one in DIMENSIONS.values() if not one.pin_only)


def test_a_spec_pins_what_the_table_says_and_in_the_order_of_plan_files() -> None:
    assert set(Decisions.model_fields) == {one.name for one in DIMENSIONS.values() if one.pinned}
    assert tuple(name for name in Decisions.model_fields if name in ROW) == ROW


def test_rows_have_a_column_for_each_decision_and_more_that_follows() -> None:
    more = {"microbatches", "embedding_slot", "loss_slot"}
    assert set(Candidates.__dataclass_fields__) == {*ROW, *more}


def test_defaults_are_those_of_a_plan() -> None:
    defaults = {field.name: field.default for field in fields(Strategy) if field.name in PLAN_FIELDS[8:]}
    assert defaults == {name: DIMENSIONS[name].default for name in PLAN_FIELDS[8:]}


def test_lines_of_text_name_the_devices_first() -> None:
    assert DEGREES == ("tp", "cp", "pp", "dp", "ep", "etp", "mbs", "vpp")
    assert ALWAYS_SHOWN == ("tp", "pp", "dp", "mbs")
    assert shown_sizes(replace(PLAN, tp=1, ep=2)) == {"tp": 1, "pp": 2, "dp": 4, "ep": 2, "mbs": 1}


def test_codes_are_flags_as_numbers_and_choices_counted_from_one() -> None:
    assert [DIMENSIONS["sharded"].code(value) for value in ("optimizer", "gradients", "parameters")] == [1, 2, 3]
    for name in ROW:
        value = getattr(PLAN, name)
        assert DIMENSIONS[name].decoded(DIMENSIONS[name].code(value)) == value
    assert FLAGS == ("sequence_parallel", "distributed_optimizer", "flash_attention", "expert_overlap", "cp_gather")


@pytest.mark.parametrize("group", get_args(Group))
def test_pins_leave_out_a_whole_group(group: Group) -> None:
    everything, left = pins(PLAN), pins(PLAN, but={group})
    assert {name: value for name, value in everything.items() if DIMENSIONS[name].group != group} == left


def test_pins_have_what_means_something_in_the_plan() -> None:
    stages = (StageGroup("x", (4, 4), "block", (1, 2)), StageGroup("y", (4,), "selective"))
    mixed = replace(PLAN, groups=stages, pp=3)
    pinned = pins(mixed)
    assert pinned["stage_chips"] == ["x", "x", "y"]
    assert pinned["recompute"] == {"x": ["block"], "y": ["selective"]}
    assert pinned["recompute_num_layers"] == {"x": [1, 2], "y": [0]}
    assert pinned["recompute_modules"] == {"y": [["core_attn"]]}
    assert pinned["sharding_group"] == 2
    assert not {"sharded", "sharding_group"} & set(pins(replace(mixed, distributed_optimizer=False)))
    assert not {"stage_chips", "recompute_modules"} & set(pins(PLAN, mixed=False))
    assert pinned["schedule"] == "1f1b"
    assert pins(replace(mixed, schedule="dualpipe"))["schedule"] == "dualpipe"
    assert not {"micro_batches", "stages", "chip_order"} & set(pinned)


def test_differences_come_in_the_order_of_the_table() -> None:
    other = replace(PLAN, vpp=2, mbs=2, schedule="zb1p", groups=(StageGroup("x", (2, 3)),), micro_batches=(1, 3))
    found = differences(PLAN, other)
    assert list(found) == ["mbs", "vpp", "schedule", "layers"]
    assert found["layers"] == ((3, 2), (2, 3))


def test_few_modules_list_decisions_by_name() -> None:
    """Each is a place to edit when a decision is added: derive it from the table, or say here why it cannot be."""
    assert len(decision_lists(ROOT, frozenset(DIMENSIONS))) <= 8
    assert len(files_naming(ROOT, PROBE)) <= 16  # facts of frameworks are one table in two modules
