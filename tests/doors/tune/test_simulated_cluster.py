"""Simulated clusters: the hidden truth, what a run gives, the example that looks like a training job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from math import log
from pathlib import Path
from statistics import mean, stdev

import pytest

from cpsolver.doors.tune.logs import Expected, LogReading, default_skip, read_log
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.misfit import covariance, load_spread, locations
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.load import load_problem
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.search.search import search
from examples.simulated_cluster import Misfit, SimulatedCluster, Truth, describe, hidden_truth
from tests.support.checkout import ROOT
from tests.support.problems import chip_spec, problem_of, strategy_of
from tests.support.selection import full

PLAN = strategy_of("x:4", dp=4)
SPREAD = load_spread()


@cache
def small() -> Problem:
    return problem_of()


@cache
def example() -> tuple[Problem, Strategy]:
    problem = load_problem(ROOT / "examples" / "simulated.yaml", top=1)
    return problem, search(problem).plans[0].strategy


def cluster(**weather: float) -> SimulatedCluster:
    return SimulatedCluster(hidden_truth(small(), 7), 7, **weather)


# The truth


def test_the_same_seed_is_the_same_cluster() -> None:
    one, same, other = (hidden_truth(small(), seed) for seed in (7, 7, 8))
    assert one.positions == same.positions
    assert one.step_time_s(PLAN) == same.step_time_s(PLAN) != other.step_time_s(PLAN)
    assert not set(one.positions) & set(other.positions)


def test_constants_of_time_are_as_wide_as_the_scale_and_those_of_memory_are_not() -> None:
    one, wide = hidden_truth(small(), 7, scale=1.0), hidden_truth(small(), 7, scale=2.0)
    for each, narrow, far in zip(one.constants, one.positions, wide.positions, strict=True):
        assert far == pytest.approx(narrow * (1.0 if each.kind == "memory" else 2.0))


def test_positions_are_standard_normal() -> None:
    drawn = [at for seed in range(60) for at in hidden_truth(small(), seed).positions]
    assert abs(mean(drawn)) < 0.1
    assert 0.93 < stdev(drawn) < 1.07


def test_step_times_are_those_of_the_moved_constants_without_a_margin() -> None:
    truth = hidden_truth(small(), 7)
    assert truth.step_time_s(PLAN) == evaluate(truth.problem, PLAN).step_time_s != evaluate(small(), PLAN).step_time_s
    assert truth.problem.memory_margin == 0.0 != small().memory_margin


def test_a_stack_is_the_same_in_every_problem() -> None:
    one, other = hidden_truth(small(), 7), hidden_truth(problem_of(gpus=8, batch=16), 7)
    assert one.problem.stack.constants == other.problem.stack.constants


def test_what_is_revealed_is_what_is_hidden() -> None:
    truth = hidden_truth(small(), 7)
    told = {line.rsplit(": ", 2)[0]: line for line in describe(truth)}
    assert set(told) == {each.key for each in truth.constants}
    first, at = truth.constants[0], truth.positions[0]
    assert told[first.key] == f"{first.key}: {first.value(at):.4g} (published: {first.start:.4g})"


# Misfit


def test_misfit_multiplies_step_times_and_is_the_plans_own() -> None:
    plain, bent = hidden_truth(small(), 7), hidden_truth(small(), 7, misfit=1.0)
    other = replace(PLAN, mbs=2)
    errors = [log(bent.step_time_s(plan) / plain.step_time_s(plan)) for plan in (PLAN, other, PLAN)]
    assert errors[0] == errors[2] != errors[1]
    assert errors[0] == pytest.approx(Misfit(7, 1.0).log_error(plain.problem, PLAN))
    assert Misfit(7, 2.0).log_error(small(), PLAN) == pytest.approx(2 * Misfit(7, 1.0).log_error(small(), PLAN))


@pytest.mark.full
def test_misfit_has_the_covariance_that_the_belief_has() -> None:
    plans = [PLAN, strategy_of("x:4", dp=2, tp=2)]
    drawn = [[Misfit(seed, 1.0).log_error(small(), plan) for plan in plans] for seed in range(400)]
    places = [PlacedPlan(small(), plan) for plan in plans]
    expected = covariance(SPREAD, locations(places), locations(places))
    for i in (0, 1):
        for j in (0, 1):
            found = mean(each[i] * each[j] for each in drawn)
            assert found == pytest.approx(expected[i, j], rel=0.25)


@pytest.mark.full
def test_misfit_is_the_same_in_another_process() -> None:
    script = (
        "from tests.support.problems import problem_of, strategy_of; from examples.simulated_cluster import Misfit;"
        "print(Misfit(7, 1.0).log_error(problem_of(), strategy_of('x:4', dp=4)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "5"}
    told = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert float(told) == pytest.approx(Misfit(7, 1.0).log_error(small(), PLAN))


# Runs


@pytest.mark.full
def test_noise_is_as_wide_as_asked_for_between_runs_and_within_one() -> None:
    noisy, true = cluster(noise=0.02), hidden_truth(small(), 7).step_time_s(PLAN)
    logs = [[log(s / true) for s in noisy.run(PLAN, n, 10).iterations_s] for n in range(200)]
    assert stdev(each[0] for each in logs) == pytest.approx(0.02 * 2**0.5, rel=0.15)
    assert mean(stdev(each) for each in logs) == pytest.approx(0.02, rel=0.1)
    assert abs(mean(mean(each) for each in logs)) < 0.005


def test_a_run_is_the_same_again_and_another_is_not() -> None:
    noisy = cluster(noise=0.02)
    assert noisy.run(PLAN, 1, 5) == noisy.run(PLAN, 1, 5)
    assert noisy.run(PLAN, 1, 5) != noisy.run(PLAN, 2, 5)


def test_the_first_iteration_is_slow_and_the_median_does_not_see_it() -> None:
    run = cluster(start_up=4.0).run(PLAN, 1, 5)
    assert run.iterations_s[0] == pytest.approx(4 * run.iterations_s[1])
    assert run.step_time_s(skip=2) == pytest.approx(hidden_truth(small(), 7).step_time_s(PLAN))


@pytest.mark.full
def test_runs_fail_and_hang_at_their_rates() -> None:
    weather = cluster(failures=0.5, hangs=0.4)
    fates = [weather.run(PLAN, number, 1).fate for number in range(300)]
    assert fates.count("failed") == pytest.approx(150, abs=30)
    assert fates.count("timeout") == pytest.approx(120, abs=30)
    assert {cluster().run(PLAN, number, 1).fate for number in range(30)} == {"ok"}


def _with_memory(truth: Truth, size: float) -> Truth:
    supply = truth.problem.supplies[0]
    memory = supply.chip.memory.model_copy(update={"capacity_gb": size / 1e9})
    chip = supply.chip.model_copy(update={"memory": memory})
    return replace(truth, problem=replace(truth.problem, supplies=(replace(supply, chip=chip),)))


@pytest.mark.parametrize(("room", "fate"), [(1.000001, "ok"), (0.999999, "oom")])
def test_memory_runs_out_exactly_where_the_need_exceeds_it(room: float, fate: str) -> None:
    truth = hidden_truth(small(), 7)
    need = max(stage.total for stage in truth.memory(PLAN))
    run = SimulatedCluster(_with_memory(truth, need * room), 7).run(PLAN, 1, 1)
    assert (run.fate, run.full_stage) == (fate, None if fate == "ok" else 0)


def test_a_small_chip_in_a_mixed_pipeline_runs_out_first() -> None:
    problem = problem_of({"x": chip_spec(), "y": chip_spec(gb=2)}, gpus=4, node=2)
    plan = strategy_of("x:2 y:2", dp=2)
    assert hidden_truth(problem, 7).too_full(plan) == 1


def test_a_bad_plan_is_refused_and_memory_is_not_the_launchers_business() -> None:
    tiny = problem_of({"x": chip_spec(gb=1)})
    assert not hidden_truth(tiny, 7).refusals(PLAN)
    assert {found.rule for found in hidden_truth(small(), 7).refusals(replace(PLAN, mbs=3))} == {"batch"}


# The example


def _job(tmp_path: Path, plan: Strategy, *more: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(strategy_to_dict(plan)), encoding="utf-8")
    script, spec = ROOT / "examples" / "simulated_cluster.py", ROOT / "examples" / "simulated.yaml"
    command = [sys.executable, str(script), "--spec", str(spec), "--plan", str(file), "--seed", "3", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _read(tmp_path: Path, done: subprocess.CompletedProcess[str], plan: Strategy) -> LogReading:
    log_file = tmp_path / "log"
    log_file.write_text(done.stdout + done.stderr, encoding="utf-8")
    problem = example()[0]
    said = {"tp": plan.tp, "pp": plan.pp, "mbs": plan.mbs, "gbs": problem.batch, "num_gpus": plan.devices}
    values = {name: str(value) for name, value in said.items()}
    return read_log(log_file, Expected(problem.batch * problem.sequence, plan.devices, values), default_skip())


def test_the_log_of_a_run_is_read_back(tmp_path: Path) -> None:
    problem, plan = example()
    done = _job(tmp_path, plan, "--noise", "0", "--failures", "0")
    truth = hidden_truth(problem, 3, SPREAD.scale)
    reading = _read(tmp_path, done, plan)
    assert done.returncode == 0
    assert reading.step_time_s == pytest.approx(truth.step_time_s(plan), abs=1e-4)
    held = max(stage.allocated for stage in truth.memory(plan))
    assert (reading.memory_kind, reading.peak_memory_gib) == ("allocated", pytest.approx(held / 2**30, abs=1e-4))
    assert reading.wrong is None
    assert reading.iterations == 10 - default_skip()


@pytest.mark.full
def test_the_log_says_which_plan_was_run(tmp_path: Path) -> None:
    _, plan = example()
    done = _job(tmp_path, plan, "--failures", "0")
    assert "micro batch" not in done.stdout
    assert _read(tmp_path, done, replace(plan, mbs=7)).wrong is not None


def test_a_plan_that_does_not_fit_ends_as_pytorch_ends_it(tmp_path: Path) -> None:
    plan = strategy_of("a100:40", tp=1, dp=64, flags="zf", mbs=4)
    done = _job(tmp_path, plan, "--failures", "0")
    assert done.returncode == 1
    reading = _read(tmp_path, done, plan)
    assert reading.out_of_memory is not None
    assert reading.step_time_s is None


@pytest.mark.full
def test_a_failure_is_no_lack_of_memory(tmp_path: Path) -> None:
    _, plan = example()
    done = _job(tmp_path, plan, "--failures", "1")
    assert done.returncode == 1
    assert "NCCL" in done.stderr
    assert _read(tmp_path, done, plan).out_of_memory is None


@pytest.mark.full
def test_the_job_refuses_what_no_launcher_takes(tmp_path: Path) -> None:
    _, plan = example()
    done = _job(tmp_path, replace(plan, mbs=3))
    assert done.returncode == 1
    assert "mbs 3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_none_is_told_without_a_traceback(tmp_path: Path) -> None:
    _, plan = example()
    done = _job(tmp_path, plan, "--spec", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "none.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", [("--iterations", "0"), full(("--failures", "2")), full(("--seconds", "long"))])
def test_an_option_out_of_range_is_told(tmp_path: Path, more: tuple[str, str]) -> None:
    done = _job(tmp_path, PLAN, *more)
    assert done.returncode == 2
    assert more[0] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_reveal_shows_the_true_step_time(tmp_path: Path) -> None:
    problem, plan = example()
    done = _job(tmp_path, plan, "--reveal")
    seconds = hidden_truth(problem, 3, SPREAD.scale).step_time_s(plan)
    assert f"step time: {seconds:.4f} s" in done.stdout
