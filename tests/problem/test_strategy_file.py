import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cpsolver.inputs.document import Document, parse_yaml
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.problem.strategy_file import load_strategy, strategy_from, strategy_to_dict
from cpsolver.spec.spec import load_spec
from tests.support.checkout import ROOT

EXAMPLES = ROOT / "examples"
LINE = (
    "{'sim_throughput': 238013, 'sim_total_time_s': 17.6, 'max-use-mem-size': [25.0, 72.9], 'strategy': "
    "{'pipeline-model-parallel-size': 8, 'tensor-model-parallel-size': 2, 'micro-batch-size': 1, "
    "'use-flash-attn': '', 'sequence-parallel': '', 'use-distributed-optimizer': '', 'fused-rmsnorm': '', "
    "'apply-rotary-positional-embedding-kernel': '', 'pipeline-stage-chips': ['a800', 'h800', 'h800', 'h800', "
    "'h800', 'h800', 'h800', 'h800'], 'pipeline-stage-layers': [3, 11, 11, 11, 11, 11, 11, 11], "
    "'recompute-granularity': [None, 'full'], 'recompute-method': [None, 'block'], "
    "'recompute-num-layers': [None, 3]}}"
)
PLAN = """\
tp: 2
dp: 16
mbs: 1
stages:
  - {chip: a800, layers: [3]}
  - {chip: h800, layers: [11, 11], recompute: block, recompute_layers: 3}
"""


@pytest.fixture(scope="module")
def problem() -> Problem:
    return resolve(load_spec(EXAMPLES / "seed-published.yaml"))


def read(text: str, problem: Problem | None = None) -> Strategy:
    return strategy_from(parse_yaml(text, file="plan.yaml", collect=True), problem)


def mistakes(text: str, problem: Problem | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text, problem)
    return [str(trouble) for trouble in caught.value.troubles]


def test_what_is_left_out_has_its_default() -> None:
    plan = read(PLAN)
    assert (plan.pp, plan.vpp) == (3, 1)
    assert (plan.sequence_parallel, plan.distributed_optimizer, plan.flash_attention) == (True, True, True)
    assert plan.groups == (
        StageGroup("a800", (3,), "none", (0,)),
        StageGroup("h800", (11, 11), "block", (3, 3)),
    )
    alone = read(PLAN.replace("tp: 2", "tp: 1").replace("dp: 16", "dp: 1"))
    assert not alone.sequence_parallel
    assert not alone.distributed_optimizer


@pytest.mark.parametrize("amounts", [(2, 2, 2), (1, 2, 3)])
def test_round_trip(amounts: tuple[int, ...], tmp_path: Path) -> None:
    groups = (StageGroup("h800", (4, 4, 6), "block", amounts), StageGroup("a800", (2,), "selective", (0,)))
    plan = Strategy(4, 4, 2, 1, 2, False, True, False, groups)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(strategy_to_dict(plan)))
    assert load_strategy(path) == plan


KINDS: dict[str, Any] = {"cp": 8, "ulysses": 2, "cp_gather": False, "ep": 4, "etp": 2} | {
    "sharded": "parameters",
    "sharding_group": 4,
    "schedule": "zb1p",
}


def test_round_trip_of_every_kind_of_parallelism(tmp_path: Path) -> None:
    plan = Strategy(4, 4, 2, 1, 2, False, True, False, (StageGroup("h800", (4, 4, 4, 4), "none", (0,) * 4),), **KINDS)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(strategy_to_dict(plan)))
    assert load_strategy(path) == plan
    assert {name: strategy_to_dict(plan)[name] for name in KINDS} == KINDS
    assert set(strategy_to_dict(plan)) - {"stages"} == {field.name for field in fields(Strategy)} - {"groups"}


def test_kinds_of_parallelism_have_defaults() -> None:
    plain = read(PLAN)
    assert (plain.cp, plain.ulysses, plain.cp_gather, plain.ep, plain.etp) == (1, 1, False, 1, 1)
    assert (plain.sharded, plain.sharding_group, plain.schedule) == ("optimizer", 0, "1f1b")
    alone = PLAN.replace("dp: 16", "dp: 1")
    assert not read(alone).distributed_optimizer
    assert read(alone + "cp: 2\n").distributed_optimizer  # over context-parallel ranks


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cp: 0", "cp = 0: must be at least 1"),
        ("ulyses: 2", "did you mean 'ulysses'?"),
        ("cp_gather: 1", "cp_gather = 1: must be true or false"),
        ("etp: null", "etp"),
        ("sharded: parameter", "did you mean 'parameters'?"),
        ("sharding_group: -1", "sharding_group = -1: must be at least 0"),
        ("schedule: zb1", "schedule = 'zb1'"),
    ],
)
def test_mistakes_in_kinds_of_parallelism(line: str, said: str) -> None:
    found = mistakes(PLAN + line + "\n")
    assert any(said in text for text in found), found


def test_neighbouring_groups_on_one_chip_are_one() -> None:
    split = PLAN.replace("[11, 11]", "[11]") + "  - {chip: h800, layers: 11, recompute: block, recompute_layers: 3}\n"
    assert read(split) == read(PLAN)


def test_every_mistake_is_listed_with_its_place(problem: Problem) -> None:
    text = PLAN.replace("tp: 2", "tp: two").replace("dp", "dpp").replace("a800", "a80").replace("block", "blok")
    found = mistakes(text, problem)
    assert [line.split(" ")[0] for line in found] == [
        "plan.yaml:1:1",  # the missing dp
        "plan.yaml:1:1",
        "plan.yaml:2:1",
        "plan.yaml:5:6",
        "plan.yaml:6:36",
    ]
    assert sum("did you mean" in line for line in found) == 3
    assert "'a80': is not a chip of the spec (allowed: a800, h800); did you mean 'a800'?" in found[3]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tp: 2", "tp: 0", "tp = 0: must be at least 1"),
        ("tp: 2", "tp: 2\ntp: 4", "written twice"),
        ("[3]", "[]", "stages[0].layers"),
        ("[3]", "[3, 'x']", "stages[0].layers[1] = 'x': must be a whole number"),
        ("recompute_layers: 3", "recompute_layers: [1, 2, 3]", "has 3 entries for the 2 stages"),
        ("{chip: a800, layers: [3]}", "a800", "stages[0] = 'a800': must be a mapping"),
        ("stages:", "stages: []\nother:", "stages"),
        ("stages:", "other:", "stages: [{chip: h100, layers: [20, 20]}]"),
        (
            "tp: 2",
            "tp: 2\nrecompute: full",
            "recompute = 'full': is not a known field; did you mean 'stages[0].recompute'?",
        ),
    ],
)
def test_single_mistakes(old: str, new: str, said: str) -> None:
    assert any(said in line for line in mistakes(PLAN.replace(old, new)))


def test_stages_that_are_all_wrong_are_not_also_missing() -> None:
    found = mistakes("tp: 2\npp: 1\ndp: 8\nmbs: 1\nstages: [{chip: a800, layers: [3], recompute: blok}]\n")
    assert len(found) == 1
    assert "stages[0].recompute = 'blok'" in found[0]


def test_the_seed_tools_line_is_the_published_plan(problem: Problem) -> None:
    assert read(LINE, problem) == load_strategy(EXAMPLES / "seed-published-strategy.yaml", problem)
    inner = LINE[LINE.index("'strategy': ") + 12 : -1]
    assert read(inner, problem) == read(LINE, problem)


def test_a_seed_line_without_layers_is_even(problem: Problem) -> None:
    text = LINE.replace("'pipeline-stage-layers': [3, 11, 11, 11, 11, 11, 11, 11], ", "")
    assert read(text, problem).layers == (10,) * 8
    text = text.replace("size': 8", "size': 32").replace("['a800', " + ", ".join(["'h800'"] * 7) + "]", "['a800']")
    text = text.replace("[None, 'full']", "[None]").replace("[None, 'block']", "[None]").replace("[None, 3]", "[None]")
    assert "80 layers do not split evenly over 32 stages" in mistakes(text, problem)[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'micro-batch-size': 1", "'micro-batch-size': 'x'", "strategy.micro-batch-size = 'x': must be a whole number"),
        ("'use-flash-attn'", "'use-flash-atn'", "did you mean 'use-flash-attn'?"),
        ("'a800', ", "", "has 7 entries for 8 stages"),
        ("[3, 11, ", "[11, ", "must list 8 numbers"),
        ("[None, 3]", "[3]", "has 1 entries for 2 chip types"),
        ("[None, 3]", "[None, 'x']", "must list whole numbers"),
        ("'a800'", "'a80'", "did you mean 'a800'?"),
        ("parallel-size': 2", "parallel-size': 3", "does not divide the 256 GPUs"),
    ],
)
def test_mistakes_in_a_seed_line(problem: Problem, old: str, new: str, said: str) -> None:
    found = mistakes(LINE.replace(old, new), problem)
    assert any(said in line for line in found), found


def test_a_seed_line_needs_a_spec() -> None:
    assert "only a spec gives a meaning" in mistakes(LINE)[0]


@pytest.mark.parametrize("number", [0, -1, 3])
def test_plans_are_counted_from_one(number: int) -> None:
    """Python's own lists would count from their end."""
    with pytest.raises(InputError, match="is no plan of the file"):
        strategy_from(Document({"plans": [{}, {}]}), None, number)
