"""What must hold whatever the problem: more never hurts, names and order do not matter, units only scale."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpsolver.cost.pipeline_events import closed_form_s, simulate
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.plans.strategy import SEARCHED_SCHEDULES
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.search import search
from cpsolver.search.space import divisors
from cpsolver.spec.spec import parse_spec
from hw_specs.catalogue import complete_chip
from tests.support.generated import random_problem
from tests.support.pipelines import lower_bound_s
from tests.support.problems import HOST, problem_of, with_stack
from tests.support.selection import first, full, night

pytestmark = pytest.mark.usefixtures("by_formula")

SEEDS = st.integers(0, 2**31)
few = settings(max_examples=1)
blocks = pytest.mark.parametrize("block", [0, full(1), *map(night, range(2, 8))])
"""One example each."""
Change = Callable[[dict[str, Any]], None]


def changed(problem: Problem, *changes: Change) -> Problem:
    """The same problem after changes to its spec in plain values."""
    data = copy.deepcopy(problem.spec.model_dump(mode="json"))
    for change in changes:
        change(data)
    return replace(resolve(parse_spec(data)), stack=problem.stack)


def values(problem: Problem) -> list[float]:
    return [plan.evaluation.step_time_s for plan in search(problem).plans]


def assert_no_worse(before: list[float], after: list[float]) -> None:
    assert len(after) >= len(before)
    for old, new in zip(before, after, strict=False):
        assert new <= old * (1 + 1e-9)


def each_chip(*path: str, times: float) -> Change:
    def change(data: dict[str, Any]) -> None:
        for chip in data["cluster"]["chips"].values():
            fields = chip["spec"]
            for key in path[:-1]:
                fields = fields[key]
            fields[path[-1]] *= times

    return change


def more_chips(data: dict[str, Any]) -> None:
    for chip in data["cluster"]["chips"].values():
        chip["max"] = min(data["cluster"]["num_gpus"], chip["max"] + 1)


RACKS = {"gbit_s": 200, "levels": [{"name": "rack", "nodes": 4}, {"name": "cluster", "oversubscription": 2}]}
LINKED = {"links": [{"between": ["a800", "h800"], "gbit_s": 50}]}
REALISTIC = [
    ("llama3.1-8b", {"gb200": 128}, 4, None, ("sharding_group",)),
    ("llama2-70b", {"a800": 256}, 8, RACKS, ("cp",)),
    full("llama3.1-8b", {"gb200": 128}, 4, None, ("tp", "distributed_optimizer")),
    night("llama3.1-8b", {"gb200": 256}, 8, None, ("sharding_group", "mbs", "sharded")),
    full("qwen3-30b-a3b", {"gb300": 128}, 4, None, ("sharding_group", "ep", "etp", "expert_overlap")),
    night("llama2-13b", {"h100": 64}, 8, None, ROW),
    night("llama2-70b", {"a800": 256}, 8, RACKS, ROW),
    night("llama2-13b", {"a800": 32, "h800": 32}, 8, LINKED, ("tp", "cp", "mbs", "sharding_group")),
    night("mixtral-8x7b", {"a800": 32, "h800": 32}, 8, LINKED, ("tp", "ep", "pp", "vpp")),
]
"""Model, devices by chip, devices of a node, network, and what is pinned in turn."""


def some_values(rng: np.random.Generator, name: str, gpus: int) -> list[Any]:
    """Up to two values of a decision of rows, as a user might pin them."""
    dimension = DIMENSIONS[name]
    sizes = [size for size in divisors(gpus) if dimension.kind == "size_or_all" or size <= 16]
    given = SEARCHED_SCHEDULES if name == "schedule" else dimension.values
    values = list(given) or [*sizes, *[0] * (dimension.kind == "size_or_all")]
    return [values[i] for i in rng.permutation(len(values))[:2].tolist()]


@pytest.mark.parametrize(("model", "chips", "node", "network", "names"), REALISTIC)
def test_a_pin_never_makes_it_better(
    model: str, chips: dict[str, int], node: int, network: Any, names: tuple[str, ...]
) -> None:
    gpus = sum(chips.values())
    rng, given = np.random.default_rng(gpus + node), {"node": node, "network": network, "batch": 2 * gpus}
    free = values(problem_of(chips, model, gpus, **given, sequence=4096))
    for name in names:
        for value in some_values(rng, name, gpus):
            assert_no_worse(values(problem_of(chips, model, gpus, **given, sequence=4096, pin={name: value})), free)


@pytest.mark.full
@blocks
def test_a_pin_never_makes_a_tiny_problem_better(block: int) -> None:
    rng, problem = np.random.default_rng(block), random_problem(2000 + block)
    free, open_ones = values(problem), [n for n in ROW if getattr(problem.spec.search.pin, n) is None]
    for name in open_ones if block else open_ones[:4]:
        forbidden = getattr(problem.spec.search.forbid, name) or ()
        for value in some_values(rng, name, problem.num_gpus):
            if value in forbidden:
                continue
            pin = {name: [value]}

            def pinned(data: dict[str, Any], pin: dict[str, Any] = pin) -> None:
                data["search"]["pin"] |= pin

            assert_no_worse(values(changed(problem, pinned)), free)


def no_margin(data: dict[str, Any]) -> None:
    data["cluster"]["memory_margin"] = 0.0


MORE: dict[str, Change] = {
    "memory": each_chip("memory", "capacity_gb", times=1.3),
    "no margin": no_margin,
    "memory bandwidth": each_chip("memory", "bandwidth_gb_s", times=1.5),
    "fabric": each_chip("scale_up", "bandwidth_gb_s", times=1.5),
    "network": each_chip("scale_out", "bandwidth_gbit_s", times=1.5),
    "levels and links": lambda data: network_figures(data, bandwidth=1.5, latency=0.7),
    "compute": each_chip("peak_tflops", "bf16", times=1.5),
    "chips": more_chips,
}


@pytest.mark.parametrize("what", [what if what in ("memory", "compute") else full(what) for what in MORE])
@blocks
@few
@given(seed=SEEDS)
def test_more_never_hurts(what: str, block: int, seed: int) -> None:
    problem = random_problem(seed + block * 2**32)
    assert_no_worse(values(problem), values(changed(problem, MORE[what])))


@blocks
@few
@given(seed=SEEDS, place=st.sampled_from(["pin", "forbid"]), pick=st.integers(0, 99))
def test_a_relaxed_spec_keeps_the_old_optimum(block: int, seed: int, place: str, pick: int) -> None:
    def relax(data: dict[str, Any]) -> None:
        given_values = sorted(name for name, value in data["search"][place].items() if value is not None)
        if given_values:
            data["search"][place][given_values[pick % len(given_values)]] = None
        data["search"]["layer_split"] = "auto"
        data["search"]["recompute_scope"] = "stage"

    problem = random_problem(seed + block * 2**32)
    if len(problem.supplies) * problem.model.layers <= 8:
        assert_no_worse(values(problem), values(changed(problem, relax)))


@blocks
@few
@given(seed=SEEDS)
def test_pinning_what_was_found_finds_it_again(block: int, seed: int) -> None:
    problem = random_problem(seed + block * 2**32)
    for plan in search(problem).plans[:2]:
        s = plan.strategy

        def pin(data: dict[str, Any]) -> None:
            data["search"]["pin"] |= {name: getattr(s, name) for name in ROW}  # noqa: B023
            data["search"]["pin"] |= {"stage_chips": list(s.stage_chips), "layers": list(s.layers)}  # noqa: B023

        assert values(changed(problem, pin)) == pytest.approx([plan.evaluation.step_time_s], rel=1e-9)


def halved_rates(data: dict[str, Any]) -> None:
    """Everything that a chip does takes twice as long: half of each rate, twice each latency."""
    for name, chip in data["cluster"]["chips"].items():
        fields = chip["spec"]
        known = complete_chip({**fields, "name": name})
        fields["peak_tflops"] = {key: rate / 2 for key, rate in fields["peak_tflops"].items()}
        for part, key in (("memory", "bandwidth_gb_s"), ("scale_up", "bandwidth_gb_s")):
            fields[part][key] /= 2
        fields["scale_out"]["bandwidth_gbit_s"] /= 2
        latencies = ("collective_latency_us", "network_latency_us", "kernel_latency_us")
        fields["efficiency"] = {key: 2 * known.efficiency_value(key) for key in latencies}
    network_figures(data, bandwidth=0.5, latency=2.0)


def network_figures(data: dict[str, Any], bandwidth: float = 1.0, latency: float = 1.0) -> None:
    """Bandwidths and latencies of the network's levels and links, multiplied."""
    network = data["cluster"]["network"] or {}
    factors = {"gbit_s": bandwidth, "total_gbit_s": bandwidth, "latency_us": latency, "extra_latency_us": latency}
    for part in (*network.get("levels", ()), *network.get("links", ())):
        part.update({name: part[name] * times for name, times in factors.items() if part.get(name) is not None})


@pytest.mark.full
@blocks
@few
@given(seed=SEEDS)
def test_when_all_takes_twice_as_long_so_does_the_step(block: int, seed: int) -> None:
    problem = random_problem(seed + block * 2**32)
    host = {name: 2 * seconds for name, seconds in HOST.items()}
    host |= {name: 2 * float(getattr(problem.stack, name)) for name in ("ring_step_us", "ring_border_us")}
    slow = with_stack(changed(problem, halved_rates), **host)
    assert values(slow) == pytest.approx([2 * seconds for seconds in values(problem)], rel=1e-9)


def renamed(data: dict[str, Any]) -> None:
    """x, y, z become c, b, a everywhere, in reversed order."""
    names = {"x": "c", "y": "b", "z": "a", "*": "*"}
    chips = data["cluster"]["chips"]
    data["cluster"]["chips"] = {names[name]: chips[name] for name in reversed(chips)}
    for link in (data["cluster"]["network"] or {}).get("links", ()):
        link["between"] = [names[name] for name in link["between"]]
    for place in ("pin", "forbid"):
        for key, value in data["search"][place].items():
            if isinstance(value, dict):
                data["search"][place][key] = {names[name]: item for name, item in value.items()}
            elif value is not None and key in ("chip_order", "stage_chips"):
                data["search"][place][key] = [names[name] for name in value]


@pytest.mark.full
@blocks
@few
@given(seed=SEEDS)
def test_names_and_order_of_chips_change_no_value(block: int, seed: int) -> None:
    problem = random_problem(seed + block * 2**32)
    assert values(changed(problem, renamed)) == pytest.approx(values(problem), rel=1e-9)


@pytest.mark.full
@blocks
@few
@given(seed=SEEDS)
def test_larger_k_only_appends(block: int, seed: int) -> None:
    def one_more(data: dict[str, Any]) -> None:
        data["search"]["top"] += 2

    problem = random_problem(seed + block * 2**32)
    few, many = values(problem), values(changed(problem, one_more))
    assert many[: len(few)] == pytest.approx(few, rel=1e-9)


REAL = {
    "llama2-70b": ({"a800": 64, "h800": 64}, 128, 256, 4096),
    "llama2-7b": ({"a100": 16}, 16, 64, 4096),
    "gpt3-175b": ({"a100": 128}, 128, 192, 2048),
}


@pytest.mark.full
@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("name", first(2, REAL))
def test_returned_plans_take_about_as_long_as_their_simulated_schedule(name: str, vpp: int) -> None:
    """Within what closed_form_s states: not below the makespan (8 % if interleaved), at most 15 % above."""
    chips, gpus, batch, sequence = REAL[name]
    pins = {"vpp": vpp, "pp": [2, 4, 8]}
    problem = problem_of(chips, name, gpus, 8, batch, sequence, top=5, pin=pins)
    plans = search(problem).plans
    assert len(plans) == 5
    for plan in plans:
        stages, m = plan.evaluation.stages, plan.strategy.microbatches(batch)
        forward = np.array([[stage.forward_s / vpp] * vpp for stage in stages])
        backward = np.array([[stage.backward_s / vpp] * vpp for stage in stages])
        makespan = simulate(forward, backward, m).makespan_s
        closed = closed_form_s((forward + backward).sum(axis=1), m, vpp)
        assert (
            lower_bound_s(forward, backward, m) * (1 - 1e-9) <= makespan <= closed * (1 + (1e-9 if vpp == 1 else 0.08))
        )
        assert closed <= 1.15 * makespan
        assert plan.evaluation.step_time_s >= makespan * (1 - 0.08 * (vpp > 1))


@blocks
@few
@given(seed=SEEDS)
def test_step_time_is_above_what_no_schedule_can_beat(block: int, seed: int) -> None:
    problem = random_problem(seed + block * 2**32)
    for plan in search(problem).plans:
        stages, m = plan.evaluation.stages, plan.strategy.microbatches(problem.batch)
        slowest = max(stage.microbatch_s for stage in stages)
        assert plan.evaluation.step_time_s >= m * slowest
        assert plan.evaluation.step_time_s >= sum(stage.microbatch_s for stage in stages) / plan.strategy.vpp
        assert evaluate(problem, plan.strategy) == plan.evaluation
