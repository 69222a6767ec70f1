"""The scores of predictions, on numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from cpsolver.evidence.runs.ranking import kendall_tau, rank_score, regret
from cpsolver.evidence.runs.score import (
    Scored,
    framework_year,
    memory_by_kind,
    memory_score,
    parallel_kind,
    time_score,
    times_by,
    worst,
)
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from tests.support.measured import prediction, runs, scored


def test_step_time_errors(tmp_path: Path) -> None:
    found = time_score(scored(tmp_path, ({}, 9.0), ({}, 9.5), ({}, 10.0), ({}, 13.0)))
    assert found is not None
    assert found.runs == 4
    assert found.mean == pytest.approx((0.1 + 0.05 + 0 + 0.3) / 4)
    assert found.median == pytest.approx(0.075)
    assert found.p90 == pytest.approx(0.1 + 0.7 * 0.2)
    assert found.bias == pytest.approx((-0.1 - 0.05 + 0 + 0.3) / 4)
    assert found.inside == 0.5  # 9.0 reaches up to 9.9 and 13.0 down to 11.7; measured: 10


def test_no_runs_no_score() -> None:
    assert time_score([]) is None
    assert memory_score([]) is None


def test_scores_by_dimension(tmp_path: Path) -> None:
    rows = scored(tmp_path, ({"source": "x"}, 9.0), ({"source": "y", "chip": "h100"}, 12.0), ({"source": "x"}, 8.0))
    assert {name: score.runs for name, score in times_by(rows, "source").items()} == {"x": 2, "y": 1}
    assert times_by(rows, "chip")["h100"].bias == pytest.approx(0.2)
    assert list(times_by(rows, "framework_year")) == ["2024"]
    assert list(times_by(rows, "stack")) == ["nemo"]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({}, "tp+pp+zero1"),
        ({"vpp": 2, "cp": 2, "dp": 2, "ep": 2, "sharding": "none"}, "tp+pp+vpp+cp+ep"),
        ({"tp": 1, "pp": 1, "dp": 16, "sharding": "zero3"}, "zero3"),
        ({"tp": 1, "pp": 1, "dp": 16, "sharding": "none"}, "dp"),
        ({"tp": 1, "pp": 1, "dp": 1, "num_gpus": 1, "sharding": "none"}, "one GPU"),
    ],
)
def test_kind_of_parallelism(tmp_path: Path, row: dict[str, Any], kind: str) -> None:
    (run,) = runs(tmp_path, row)
    assert parallel_kind(run) == kind


@pytest.mark.parametrize(
    ("name", "year"),
    [
        ("Megatron-LM (2021)", "2021"),
        ("DeepSpeed ZeRO-3 (2021)", "2021"),
        ("Megatron-LM (2022)", "2022"),
        ("Megatron-DeepSpeed (BigScience)", "2022"),
        ("Megatron-DeepSpeed", "2023"),
        ("Megatron-LM (zero-bubble fork) schedule=1F1B", "2023"),
        ("NeMo 24.12", "2024"),
        ("Megatron-Core 0.6", "2024"),
        ("Megatron-LM 0.14 (no overlap)", "2025"),
        ("Megatron-Bridge 25.09", "2025"),
        ("MindSpeed-LLM (Megatron, torch_npu)", "2024"),
        ("my own", "unknown"),
        ("", "unknown"),
    ],
)
def test_year_of_a_framework(name: str, year: str) -> None:
    assert framework_year(name) == year


def test_the_year_of_every_published_framework_is_known() -> None:
    assert not {run.framework for run in read_runs(PUBLISHED).runs if framework_year(run.framework) == "unknown"}


def test_memory_errors_by_kind_of_measurement(tmp_path: Path) -> None:
    cases = ((40.0, 48.0, "device"), (48.0, 60.0, "device"), (60.0, 60.0, "allocated"))
    found = runs(tmp_path, *({"id": str(number), "peak_mem_kind": case[2]} for number, case in enumerate(cases)))
    rows = [Scored(run, prediction(10.0, *case[:2])) for run, case in zip(found, cases, strict=True)]
    device = memory_by_kind(rows)["device"]
    assert (device.runs, device.mean, device.bias) == (2, pytest.approx(0.12), pytest.approx(-0.12))
    assert (device.short, device.short_with_margin) == (0.5, 0.0)  # measured: 50 GiB
    every = memory_score(rows)
    assert every is not None
    assert every.bias == pytest.approx((-0.2 - 0.04 + 0.2) / 3)
    unmeasured = [Scored(replace(one.run, peak_mem_gib=None), one.prediction) for one in rows]
    assert memory_score(unmeasured) is None


def test_the_worst_are_the_furthest_by_ratio(tmp_path: Path) -> None:
    rows = scored(tmp_path, ({}, 17.0), ({}, 5.0), ({}, 10.0))  # +70 % and half: half is further
    assert [one.run.id for one in worst(rows, 2)] == ["run1", "run0"]


# Order of layouts.


def test_kendall_tau() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert kendall_tau([1, 2, 2, 3], [1, 2, 3, 3]) == pytest.approx(4 / 5)  # each has one tie of six pairs
    assert kendall_tau([1, 1, 1], [1, 2, 3]) is None
    taus = [kendall_tau([1, 2, 3], list(order)) for order in permutations([1, 2, 3])]
    assert sum(tau or 0.0 for tau in taus) == pytest.approx(0)
    assert None not in taus


def test_regret_is_what_picking_the_predicted_best_costs() -> None:
    assert regret([10, 11, 12], [3, 2, 4]) == pytest.approx(0.1)
    assert regret([10, 11, 12], [2, 3, 4]) == 0
    assert regret([10, 12, 14], [2, 2 + 1e-12, 4]) == pytest.approx(0.1)  # a tie: either may be picked


LAYOUTS: tuple[dict[str, Any], ...] = ({"tp": 1, "dp": 8}, {"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}, {"tp": 8, "dp": 1})


def test_groups_differ_in_layout_alone(tmp_path: Path) -> None:
    cases = [({**layout, "step_time_s": 10 + place}, 20.0 + place) for place, layout in enumerate(LAYOUTS)]
    one = rank_score(scored(tmp_path, *cases))
    assert (len(one.groups), one.groups[0].layouts, one.kendall_tau, one.regret) == (1, 4, 1, 0)
    others: list[dict[str, Any]] = [{"gbs": 128}, {"chip": "h100"}, {"seq_len": 2048}, {"flash_attention": 0}]
    for other_task in [*others, {"hidden": 2048}]:
        changed = [*cases[:3], ({**cases[3][0], **other_task}, 23.0)]
        assert rank_score(scored(tmp_path, *changed)).groups == ()


def test_rows_of_one_layout_count_once_by_their_mean(tmp_path: Path) -> None:
    cases = [({**layout, "step_time_s": 10 + place}, 20.0 + place) for place, layout in enumerate(LAYOUTS)]
    slow_again = ({**LAYOUTS[0], "source": "elsewhere", "step_time_s": 14}, 20.0)  # 12 on average: behind one, with one
    found = rank_score(scored(tmp_path, *cases, slow_again)).groups[0]
    assert (found.layouts, len(found.ids)) == (4, 5)
    assert found.regret == pytest.approx(12 / 11 - 1)
    assert rank_score(scored(tmp_path, *cases[:3], slow_again)).groups == ()
