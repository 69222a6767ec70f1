"""The fit behind the calibration: it finds constants that it should find, and says when runs say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit_margin import FEWEST, fit_margins
from benchmarks.fit_memory import Reading, _solve
from benchmarks.fit_model import Fit, Free, Predictor, bent, calibration, load_free, positions_of
from benchmarks.fit_residuals import residual_groups
from cpsolver.evidence.intervals import EVERY, UNSEEN
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import predict
from cpsolver.profiles.constants import load_calibration
from cpsolver.profiles.stack import load_stack
from tests.support.checkout import ROOT

FREE = [
    Free("chips", "*", "gemm", 1.0, 0.2),
    Free("stacks", "megatron-2022", "norm_traffic", 2.0, 0.8),
    Free("stacks", "nemo", "tensor_overlap", 0.4, 1.0, share=True),
]
TRUTH = np.array([-0.8, 0.9, 0.7])


def runs(start: str) -> list[MeasuredRun]:
    return [run for run in read_runs(PUBLISHED).runs if run.complete and run.id.startswith(start)]


@pytest.mark.full
def test_constants_are_found_where_runs_tell_them_and_left_at_their_start_where_not() -> None:
    cases = [placed_plan(run) for run in runs("kort22")]
    truth = calibration(FREE, TRUTH)
    fit = Fit(cases, [Predictor(truth).step_time_s(case) for case in cases], FREE, workers=1)
    found = fit.run(rounds=8)
    assert found[0] == pytest.approx(TRUTH[0], abs=0.1)
    assert found[1] == pytest.approx(TRUTH[1], abs=0.25)
    assert found[2] == pytest.approx(0.0, abs=1e-6)
    assert fit.standard_errors()[2] == pytest.approx(1.0)
    assert fit.rows_that_feel(found, 0.002) == [5, 5, 0]


def test_a_calibration_gives_its_positions_back() -> None:
    assert positions_of(FREE, calibration(FREE, TRUTH)) == pytest.approx(TRUTH)


def test_a_constant_of_a_stack_starts_at_that_of_all_stacks() -> None:
    free = [Free("stacks", group, "elementwise_traffic", start, 0.3) for group, start in (("*", 1.5), ("nemo", None))]
    found = calibration(free, [1.0, 0.0]).stacks
    assert found["nemo"]["elementwise_traffic"].value == found["*"]["elementwise_traffic"].value > 1.5


def test_outliers_pull_less_than_their_square() -> None:
    near, far = bent(np.array([0.01, 1.0]))
    assert near == pytest.approx(0.2, rel=0.01)
    assert far < 20 / 1.5


def test_every_constant_says_what_it_explains() -> None:
    free = load_free(ROOT / "benchmarks" / "fit_constants.yaml")
    shared = {(each.kind, each.name): each.why for each in free if each.group == "*"}
    assert all(each.why or shared[each.kind, each.name] for each in free)


def test_saying_too_little_memory_costs_more_than_too_much() -> None:
    readings = [Reading("any", "device", measured, 10e9, 1e9) for measured in (12e9, 13e9, 14e9)]
    found = _solve(np.ones((3, 1)), readings, np.array([1e9]))[0]
    assert 10e9 + found > 13.5e9


def test_intervals_are_of_publishers_left_out_and_groups_of_the_fit_s_own_errors() -> None:
    chosen = runs("kort22") + runs("internevo_tgs")
    cases = [placed_plan(run) for run in chosen]
    errors = [0.3 if run.id.startswith("kort22") else 0.01 for run in chosen]
    groups = residual_groups(chosen, cases, errors, {run.id: 0.2 for run in chosen})
    assert (groups[UNSEEN["dense"]].low, groups[UNSEEN["dense"]].high) == (-0.2, -0.2)
    assert UNSEEN["experts"] not in groups
    assert not any("megatron-2022" in key for key in groups)
    assert groups["internevo/ampere"].low == groups["internevo/ampere"].high == -0.01
    assert groups[EVERY].rows == len(chosen)


def test_cases_keep_what_the_row_says() -> None:
    run = runs("internevo_tgs_tp2_hyb_1024")[0] if runs("internevo_tgs_tp2_hyb_1024") else runs("internevo_tgs")[0]
    case = placed_plan(run)
    assert case.problem.supplies[0].chip.scale_out.bandwidth_gbit_s == run.internode_gbps_per_gpu
    assert (case.strategy.tp, case.strategy.dp) == (run.tp, run.dp)
    assert case.strategy.sharding_group == (run.sharding_group or 0)
    other = placed_plan(replace(run, sharding="none"))
    assert not other.strategy.distributed_optimizer


def test_the_margin_of_a_stack_is_the_least_that_its_worst_reading_asks_for() -> None:
    found, start = runs("zb_1F1B_")[:FEWEST], load_stack("zero-bubble").memory_margin
    cases = [placed_plan(run) for run in found]
    assert fit_margins(found, cases, load_calibration()) == {}  # none is above the margin of all stacks
    assert found[0].peak_mem_gib is not None
    worst = replace(found[0], peak_mem_gib=found[0].peak_mem_gib * 2)
    said = predict(worst)
    assert said.memory_gib is not None
    assert worst.peak_mem_gib is not None
    margin = fit_margins([worst, *found[1:]], cases, load_calibration())["zero-bubble"]
    assert (margin.start, margin.rows) == (start, FEWEST)
    assert said.memory_gib / (1 - margin.value) >= worst.peak_mem_gib > said.memory_gib / (1 - margin.value + 0.001)
    assert fit_margins([worst, *found[2:]], [cases[0], *cases[2:]], load_calibration()) == {}  # too few readings


@pytest.mark.full
def test_a_fit_without_some_runs_is_that_of_the_others() -> None:
    cases = [placed_plan(run) for run in runs("kort22")]
    odd = [1.05, 1.0, 0.97, 1.1, 1.0]
    measured = [
        each * Predictor(calibration(FREE, TRUTH)).step_time_s(case) for each, case in zip(odd, cases, strict=True)
    ]
    whole = Fit(cases, measured, FREE, workers=1)
    begin = whole.run()
    alone = Fit([cases[at] for at in (0, 2, 4)], [measured[at] for at in (0, 2, 4)], FREE, workers=1).run()
    assert np.abs(alone - begin).max() > 0.2
    (left,) = whole.without([(1, 3)], begin)
    assert left == pytest.approx(alone, abs=0.03)
