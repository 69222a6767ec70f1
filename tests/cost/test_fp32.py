"""Training in fp32: twice the bytes of everything that is moved, GEMMs at the rate of fp32, no master weights."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.states import held
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, problem_of, strategy_of

CHIP = chip_spec(peak_tflops={"bf16": 100, "fp32": 25})
PLAN = strategy_of("x:2,2", dp=2)


def in_precision(precision: str) -> Problem:
    return problem_of({"x": CHIP}, training={"precision": precision})


def test_gemms_run_at_the_fp32_rate() -> None:
    problem = in_precision("fp32")
    chip = problem.supply("x").chip
    speeds = ChipSpeeds(problem, chip)
    assert speeds.gemm_rate * speeds.slowdown == pytest.approx(25e12 * chip.efficiency_value("gemm_fp32"))
    thin = np.array([4096.0])  # two operands of 4096 x 1 and a result of 4096 x 4096: memory is what it waits for
    moved = (speeds.gemm(thin, thin, np.array([1.0])) - speeds.kernel_latency) * speeds.memory_rate
    assert moved >= (2 * 4096 + 4096**2) * 4


def test_states_are_sixteen_bytes_without_a_master() -> None:
    states = held(in_precision("fp32"))
    assert (states.weight, states.gradient, states.optimizer) == (4, 4, 8)
    assert (states.reduce, states.gather) == (4, 4)


def test_activations_and_weights_double() -> None:
    wide, half = in_precision("fp32"), in_precision("bf16")
    for one, other in zip(stage_memory(wide, PLAN), stage_memory(half, PLAN), strict=True):
        assert other.activations < one.activations <= 2 * other.activations
        assert one.weights == 2 * other.weights


def test_transfers_double_but_for_their_latency() -> None:
    def seconds(precision: str, sequence: int) -> float:
        problem = problem_of({"x": CHIP}, sequence=sequence, training={"precision": precision})
        return evaluate(problem, PLAN).stages[0].pipeline_p2p_s

    more = [seconds(precision, 2048) - seconds(precision, 1024) for precision in ("fp32", "bf16")]
    assert more[0] == pytest.approx(2 * more[1])
