"""What Megatron itself holds and runs (data/megatron.yaml, written by benchmarks/megatron.py), and our numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from cpsolver.cost.pipeline_events import check_sizes, peak_live_total
from cpsolver.evaluation.evaluate import stage_parameters
from models_zoo import load_architecture
from tests.support.pipelines import peak_live, stage_order
from tests.support.problems import problem_of, strategy_of

DATA: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parent / "data" / "megatron.yaml")
STAGES: list[dict[str, Any]] = DATA["stages"]
SCHEDULES: list[dict[str, Any]] = DATA["schedules"]
SIZES = ("pp", "vpp", "microbatches", "group")


@pytest.mark.parametrize("case", STAGES, ids=lambda case: f"{case['model']}: {case['name']}")
def test_parameters_of_every_stage_are_megatrons(case: dict[str, Any]) -> None:
    """To the last parameter. A router's bias is one of ours, of Megatron's a buffer: it has no gradient."""
    problem = replace(problem_of(), model=load_architecture(case["model"]))
    degrees = {name: case[name] for name in ("tp", "dp", "vpp", "ep", "etp")}
    strategy = strategy_of("x:" + ",".join(map(str, case["layers"])), **degrees)
    assert strategy.pp == case["pp"]
    held = [round(count, 3) for count in stage_parameters(problem, strategy)]
    assert held == np.add(case["parameters"], case["router_bias"]).tolist()


def test_the_cases_are_of_every_kind() -> None:
    models = [load_architecture(case["model"]) for case in STAGES]
    kinds = {(model.attention.kind, model.moe is not None, model.tied_embeddings) for model in models}
    assert {("mha", False, False), ("mha", False, True), ("gqa", False, False)} <= kinds
    assert {("gqa", True, False), ("mla", True, False)} <= kinds
    assert any(len(set(case["layers"])) > 1 for case in STAGES)
    assert {case["vpp"] for case in STAGES} >= {1, 2, 4}
    assert any(case["etp"] > 1 for case in STAGES)


@pytest.mark.parametrize("case", SCHEDULES, ids=lambda case: "-".join(str(case[name]) for name in SIZES))
def test_activations_in_flight_are_megatrons(case: dict[str, Any]) -> None:
    pp, vpp, m, group = (case[name] for name in SIZES)
    assert peak_live_total(pp, vpp, m, group).tolist() == case["live"]
    rising = np.tile(np.arange(1, vpp + 1), (pp, 1))
    assert peak_live(rising, m, group).tolist() == case["rising"]
    assert peak_live(rising[:, ::-1], m, group).tolist() == case["falling"]


def test_megatron_still_builds_what_the_file_says() -> None:
    pytest.importorskip("megatron.core")
    from benchmarks.megatron import CASES, count

    small = {case.name: case for case in CASES if case.model in ("llama2-7b", "qwen3-30b-a3b", "deepseek-v2-lite")}
    assert len(small) > 4
    for recorded in STAGES:
        if recorded["name"] in small:
            found = count(small[recorded["name"]])
            assert found == {name: recorded[name] for name in found}, recorded["name"]


def test_megatron_still_runs_the_order_that_the_file_says() -> None:
    pytest.importorskip("megatron.core")
    from megatron.core.pipeline_parallel.schedules import get_schedule_table

    from benchmarks.megatron import in_flight, sizes

    for case, recorded in zip(sizes(), SCHEDULES, strict=True):
        assert recorded == {**{name: getattr(case, name) for name in SIZES}, **in_flight(case)}
        check_sizes(case.pp, case.vpp, case.microbatches, case.group)
        order = stage_order(case.pp, 0, case.vpp, case.microbatches, case.group)
        table = get_schedule_table(case.microbatches, case.vpp, case.group)
        assert [(microbatch, chunk) for kind, microbatch, chunk in order if kind == "F"] == table
        assert [(microbatch, case.vpp - 1 - chunk) for kind, microbatch, chunk in order if kind == "B"] == table
