"""What may be uncertain, how far it is moved, and what predictions make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.posterior import predictions
from cpsolver.evidence.posterior.constants import UncertainConstant, Values, moved, uncertain_constants
from cpsolver.evidence.posterior.predictions import Lineariser, PlacedPlan, memories
from cpsolver.profiles.constants import CHIP_FACTORS, uncertain
from cpsolver.profiles.stack import Constants
from hw_specs import Chip
from tests.support.believed import menu, places, small
from tests.support.problems import chip_spec, problem_of, strategy_of, with_stack

KINDS = [
    UncertainConstant("chips", "x", "factor", 1.0, 0.2),
    UncertainConstant("stacks", "s", "overlap", 0.9, 0.8, share=True),
    UncertainConstant("memory", "s", "overhead", 0.05, 0.04, more_than_one=True),
]
ALL = uncertain_constants([small()])
TIMES = [each for each in ALL if each.kind != "memory"]
MEMORY = [each for each in ALL if each.kind == "memory"]


# Scales


@pytest.mark.parametrize("each", KINDS, ids=lambda each: each.name)
@pytest.mark.parametrize("at", [-1.0, 0.0, 0.3, 4.0])
def test_position_is_the_inverse_of_value(each: UncertainConstant, at: float) -> None:
    assert each.position(each.value(at)) == pytest.approx(at, abs=1e-9)
    assert each.value(0.0) == pytest.approx(each.start)


@pytest.mark.parametrize("each", KINDS, ids=lambda each: each.name)
def test_a_constant_rises_with_its_position(each: UncertainConstant) -> None:
    values = [each.value(at) for at in (-1.0, 0.0, 1.0, 2.0)]
    assert values == sorted(set(values))


def test_one_standard_deviation_is_the_spread_as_a_logarithm() -> None:
    factor, share, more = (each.value(1.0) for each in KINDS)
    assert factor == pytest.approx(np.exp(0.2))
    assert share / (1 - share) == pytest.approx(9 * np.exp(0.8))
    assert 1 + more == pytest.approx(1.05 * np.exp(0.04))


def test_a_share_stays_one_and_what_is_more_than_one_never_turns_negative() -> None:
    assert all(0.0 < KINDS[1].value(at) < 1.0 for at in (-20.0, 20.0))
    assert KINDS[2].value(-20.0) == 0.0


# Which are uncertain


def test_every_name_is_one_of_the_planner_s_and_its_spread_is_a_number() -> None:
    entries = uncertain()
    assert set(entries) == {"chips", "stacks", "memory"}
    assert set(entries["chips"]) <= set(CHIP_FACTORS)
    assert {*entries["stacks"], *entries["memory"]} <= set(Constants.model_fields)
    for entry in (entry for names in entries.values() for entry in names.values()):
        assert entry["spread"] > 0.0
        assert entry["why"]
        assert not (entry.get("share") and entry.get("more_than_one"))


def test_a_problem_has_those_of_its_chips_and_of_its_stack() -> None:
    assert {each.group for each in ALL} == {"x", small().stack.name}
    assert {each.name for each in ALL} == {name for names in uncertain().values() for name in names}
    two = problem_of({"x": chip_spec(), "y": chip_spec()})
    gemm = [each.group for each in uncertain_constants([two, two]) if each.name == "gemm"]
    assert sorted(gemm) == ["x", "y"]


@pytest.mark.parametrize(("name", "value"), [("tensor_overlap", 0.0), ("tensor_overlap", 1.0), ("host_layer_us", 0.0)])
def test_what_a_stack_does_not_have_is_a_fact(name: str, value: float) -> None:
    found = uncertain_constants([with_stack(small(), **{name: value})])
    assert {each.name for each in ALL} - {each.name for each in found} == {name}


# Moving


def _efficiency(chip: Chip) -> dict[str, float]:
    return {name: value.value for name, value in chip.efficiency.items()}


def test_only_the_named_chip_is_scaled() -> None:
    problem = problem_of({"x": chip_spec(), "y": chip_spec()})
    found = problem.with_constants(Values({("y", "network"): 0.5, ("z", "gemm"): 0.5}, "a test"))
    (old_x, old_y), (x, y) = ([_efficiency(supply.chip) for supply in each.supplies] for each in (problem, found))
    assert x == old_x
    assert y == {**old_y, "network": old_y["network"] * 0.5}
    assert found.stack.constants == problem.stack.constants


def test_only_the_named_stack_is_changed() -> None:
    stack = small().stack
    values = {(stack.name, "host_layer_us"): 7.0, ("another", "straggling"): 7.0}
    found = small().with_constants(Values(values, "a test"))
    assert (found.stack.host_layer_us, found.stack.straggling) == (7.0, stack.straggling)
    assert found.stack.constants.host_layer_us.source == "a test"


def test_a_factor_lifts_no_efficiency_above_its_peak() -> None:
    values = {("x", name): 100.0 for name in ("gemm", "memory", "network")}
    chip = small().with_constants(Values(values, "a test")).supplies[0]
    found = _efficiency(chip.chip)
    assert (found["gemm_bf16"], found["memory"], found["network"]) == (1.0, 1.0, 1.0)


def test_positions_of_nought_change_nothing() -> None:
    found = moved(small(), ALL, np.zeros(len(ALL)), "a test")
    assert (found.stack, found.supplies) == (small().stack, small().supplies)


# Predictions


@pytest.mark.parametrize("each", MEMORY, ids=lambda each: each.name)
def test_constants_of_memory_move_no_step_time(each: UncertainConstant) -> None:
    far = moved(small(), [each], [2.0], "a test")
    for plan in menu():
        assert evaluate(far, plan).step_time_s == evaluate(small(), plan).step_time_s


@pytest.mark.parametrize("each", TIMES, ids=lambda each: each.name)
def test_constants_of_step_times_move_no_memory(each: UncertainConstant) -> None:
    far = moved(small(), [each], [2.0], "a test")
    for plan in menu():
        assert stage_memory(far, plan) == stage_memory(small(), plan)


@pytest.mark.full
def test_slopes_are_those_of_central_differences() -> None:
    own, at = places(small(), 5), np.linspace(-0.5, 0.5, len(TIMES))
    found, step = Lineariser(TIMES)(own, at), 0.02
    exact = Lineariser(TIMES, at_origin=True)  # slopes once; values anywhere
    for index in range(len(TIMES)):
        by = step * np.eye(len(TIMES))[index]
        central = (exact(own, at + by).value - exact(own, at - by).value) / (2 * step)
        assert found.slope[:, index] == pytest.approx(central, abs=0.005, rel=0.05), TIMES[index].key
    assert np.abs(found.slope).max() > 0.05


@pytest.mark.full
def test_lines_serve_close_by() -> None:
    own, at = places(small(), 5), np.zeros(len(TIMES))
    there = np.random.default_rng(1).normal(0.0, 0.3, len(TIMES))
    line, true = Lineariser(TIMES)(own, at).near(there), Lineariser(TIMES)(own, there).value
    assert line == pytest.approx(true, abs=0.01)
    assert np.abs(true - Lineariser(TIMES)(own, at).value).max() > 0.03


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def counting(*args: Any) -> Any:
        calls.append(args)
        return evaluate(*args)

    monkeypatch.setattr(predictions, "evaluate", counting)
    return calls


@pytest.mark.full
def test_slopes_are_kept_while_constants_are_near_and_values_are_always_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, own = _counted(monkeypatch), places(small(), 3)
    lineariser, zero = Lineariser(TIMES), np.zeros(len(TIMES))
    first = lineariser(own, zero)
    assert len(calls) == 3 * (1 + len(TIMES))
    calls.clear()
    near = lineariser(own, zero + 0.4)
    assert len(calls) == 3
    assert (near.slope == first.slope).all()
    exact = [np.log(evaluate(moved(small(), TIMES, zero + 0.4, "a test"), place.strategy).step_time_s) for place in own]
    assert near.value == pytest.approx(exact, rel=1e-12)
    far = lineariser(own, zero + 0.6)
    assert len(calls) == 3 + 3 * (1 + len(TIMES))
    assert (far.slope != first.slope).any()


def test_an_equal_plan_is_a_place_of_its_own() -> None:
    lineariser, (one, same) = Lineariser(TIMES), (PlacedPlan(small(), menu()[0]) for _ in range(2))
    found = lineariser([one, same], np.zeros(len(TIMES)))
    assert found.value[0] == found.value[1]
    assert one != same


def test_constants_of_another_chip_have_no_slope() -> None:
    other = replace(TIMES[0], group="another")
    assert Lineariser([other, TIMES[0]])(places(small(), 1), np.zeros(2)).slope[0, 0] == 0.0


@pytest.mark.parametrize("kind", ["allocated", "reserved", "device", "need"])
def test_memory_is_in_the_terms_of_its_kind(kind: str) -> None:
    plan = strategy_of("x:4", dp=8)
    found = memories([PlacedPlan(small(), plan)], [kind], MEMORY, np.zeros(len(MEMORY)))
    (stage,) = stage_memory(small(), plan)
    terms = {"allocated": stage.allocated, "reserved": stage.device - stage.framework, "device": stage.device}
    assert found.value[0] == pytest.approx(np.log(terms.get(kind, stage.total / 40e9)))
    felt = {each.name for each, slope in zip(MEMORY, found.slope[0], strict=True) if slope}
    assert ("framework_bytes" in felt) == (kind in ("device", "need"))
    assert ("cached_bytes" in felt) == (kind in ("reserved", "device"))
