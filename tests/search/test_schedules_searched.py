"""Pipeline schedules as a decision of the search: against brute force, and what an answer says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.problem.problem import Problem
from cpsolver.search.device_counts import count_bounds
from cpsolver.search.objective import objective_of
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from models_zoo import Architecture
from tests.support.compared import KEY, assert_same, compared
from tests.support.ladder import held
from tests.support.oracle import brute_force, small_enough
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host, with_stack
from tests.support.selection import full, later, night
from tests.support.split_backward import (
    both_ways_problem,
    one_chip_problem,
    one_group_problem,
    split_problem,
    v_problem,
)
from tests.support.tables import quick_tables

SHARES = {"feasible": 0.35, "best zb1p": 0.03, "best zb2p": 0.05, "best 1f1b": 0.03, "mixed": 0.1}
"""Of the problems below: of how many it is so; shares at least."""


@pytest.mark.parametrize(("start", "count"), [(0, 4), full(4, 8), *later((start, 24) for start in range(12, 60, 24))])
def test_schedules_agree_with_brute_force(start: int, count: int) -> None:
    """60 problems, half of them with bent tables."""
    tally: Counter[str] = Counter()
    halves = [compared(split_problem, range(start + bend, start + count, 2), 1500, bool(bend)) for bend in (0, 1)]
    for problem, best in chain(*halves):
        tally["problems"] += 1
        tally["feasible"] += bool(best)
        tally["mixed"] += problem.mixed
        if best:
            fastest = min(best.items(), key=lambda item: item[1])[0]
            first = dict(zip(KEY, fastest, strict=True))
            tally[f"best {first['schedule']}"] += 1
    assert tally["problems"] >= 0.8 * count
    if count > 20:
        assert {name: tally[name] for name, share in SHARES.items() if tally[name] < share * tally["problems"]} == {}


def held_by_half(make: Callable[[int], Problem], start: int, count: int, largest: int) -> Counter[str]:
    """What `held` counts of so many problems, every other one with bent tables."""
    tally: Counter[str] = Counter()
    for bend in (0, 1):
        tally += held(make, range(start + bend, start + count, 2), largest, bool(bend))
    return tally


@pytest.mark.parametrize(("start", "count"), [(500, 8), full(508, 8), night(516, 36)])
def test_no_bound_of_a_schedule_exceeds_brute_force(start: int, count: int) -> None:
    """52 problems, half of them with bent tables."""
    tally = held_by_half(split_problem, start, count, 400)
    assert tally["fit"] > count / 2
    assert tally["tight"] > 0.6 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [(0, 16), full(16, 60), night(76, 900)])
def test_no_bound_of_1f1b_on_one_chip_type_exceeds_brute_force(start: int, count: int) -> None:
    tally = held_by_half(one_chip_problem, start, count, 400)
    assert tally["fit"] > count / 4
    assert tally["tight"] > 0.6 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [(0, 4), full(34, 8), night(42, 64)])
def test_stages_placed_as_a_v_agree_with_brute_force(start: int, count: int) -> None:
    """707 such problems, 184 of them with bent tables, agreed."""
    tally: Counter[str] = Counter()
    halves = [compared(v_problem, range(start + bend, start + count, 2), 2500, bool(bend)) for bend in (0, 1)]
    for _, best in chain(*halves):
        tally["problems"] += 1
        tally += Counter({str(dict(zip(KEY, key, strict=True))["schedule"]) for key in best})
    assert tally["problems"] >= 0.75 * count
    if count > 20:
        wanted = {"zbv": 3, "dualpipev": 4, "v_half": 2, "v_min": 2}
        assert not {name: tally[name] for name, least in wanted.items() if tally[name] < least}


def v_of_latent_attention(seed: int) -> Problem:
    """The same on a V or without, with latent attention whose projections run again but in the last chunk; every third
    with experts, and what attention's core gives on the host: DualPipeV alone has that."""
    away = seed % 3 == 0
    problem = with_host(v_problem(seed), recompute_mla_up_proj=True, mla_swap_core_attn_out=away)
    attention = {"kind": "mla", "q_lora": 64, "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v_head": 32}
    fields = problem.model.model_dump(exclude={"attention", "kv_heads", "head_dim"})
    if away:
        fields["moe"] = {"experts": 4, "expert_ffn": 256, "top_k": 2}
    pin = {"tp": (1,), "recompute": None, "flash_attention": (True,), **({"ep": (2,), "etp": (1,)} if away else {})}
    asked = problem.spec.search
    problem = problem.with_(search={"pin": asked.pin.model_copy(update=pin)})
    return replace(problem, model=Architecture.model_validate({**fields, "attention": attention}))


@pytest.mark.parametrize(("start", "count"), [(0, 4), full(4, 8), night(12, 60)])
def test_a_last_chunk_that_keeps_its_projections_agrees_with_brute_force(start: int, count: int) -> None:
    tally: Counter[str] = Counter()
    make = v_of_latent_attention
    halves = [compared(make, range(start + bend, start + count, 2), 2500, bool(bend)) for bend in (0, 1)]
    for problem, best in chain(*halves):
        tally["problems"] += 1
        tally += Counter({str(dict(zip(KEY, key, strict=True))["schedule"]) for key in best})
        tally["away"] += bool(best) and problem.spec.training.mla_swap_core_attn_out
    assert tally["problems"] >= 0.5 * count
    if count > 20:
        assert tally["dualpipev"] > 3
        assert tally["away"] > 1


@pytest.mark.parametrize(("start", "count"), [(1000, 3), full(1003, 7), night(1010, 22)])
def test_no_bound_of_a_v_exceeds_brute_force(start: int, count: int) -> None:
    tally = held_by_half(v_problem, start, count, 600)
    assert tally["fit"] > count / 4
    assert tally["tight"] > 0.5 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [full(2000, 8), night(2008, 40)])
def test_no_bound_of_a_last_chunk_exceeds_brute_force(start: int, count: int) -> None:
    assert held_by_half(v_of_latent_attention, start, count, 600)["fit"] > count / 8


@pytest.mark.parametrize(("start", "count"), [(0, 2), full(2, 8), night(10, 56)])
def test_both_ways_agree_with_brute_force(start: int, count: int) -> None:
    """DualPipe: 766 such problems agreed, half of them with bent tables."""
    tally: Counter[str] = Counter()
    halves = [compared(both_ways_problem, range(start + bend, start + count, 2), 2500, bool(bend)) for bend in (0, 1)]
    for _, best in chain(*halves):
        plans = [dict(zip(KEY, key, strict=True))["schedule"] for key in sorted(best, key=lambda key: best[key])]
        tally["problems"] += 1
        tally["there"] += "dualpipe" in plans
        tally["best"] += plans[:1] == ["dualpipe"]
    assert tally["problems"] >= 0.9 * count
    if count > 20:
        assert tally["there"] > 0.15 * count
        assert tally["best"] > 0.08 * count


@pytest.mark.parametrize("seed", [236, 593])
def test_plans_that_differ_in_the_last_stage_alone_have_times_of_their_own(seed: int) -> None:
    """Either has the head in the place of one layer or of three; once both had the times of the first."""
    assert list(compared(both_ways_problem, [seed], None, bool(seed % 2)))


@pytest.mark.parametrize(("start", "count"), [(1000, 2), full(1002, 8), night(1010, 50)])
def test_no_bound_of_both_ways_exceeds_brute_force(start: int, count: int) -> None:
    tally = held_by_half(both_ways_problem, start, count, 800)
    assert tally["fit"] > count / 4
    assert tally["tight"] > 0.5 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [(0, 4), full(4, 12), night(16, 44)])
def test_breadth_first_agrees_with_brute_force(start: int, count: int) -> None:
    """386 such problems agreed, half of them with bent tables."""
    tally: Counter[str] = Counter()
    halves = [compared(one_group_problem, range(start + bend, start + count, 2), 3000, bool(bend)) for bend in (0, 1)]
    for _, best in chain(*halves):
        plans = [dict(zip(KEY, key, strict=True))["schedule"] for key in sorted(best, key=lambda key: best[key])]
        tally["problems"] += 1
        tally["there"] += "breadth_first" in plans
        tally["best"] += plans[:1] == ["breadth_first"]
    assert tally["problems"] >= 0.9 * count
    if count > 20:
        assert tally["there"] > 0.3 * count
        assert 0.15 * count < tally["best"] < 0.5 * count


@pytest.mark.parametrize(("start", "count"), [(1002, 2), full(1004, 10)])
def test_no_bound_of_breadth_first_exceeds_brute_force(start: int, count: int) -> None:
    tally = held_by_half(one_group_problem, start, count, 600)
    assert tally["fit"] > 0
    assert tally["tight"] > 0.4 * tally["fit"]


@pytest.mark.parametrize(("start", "count"), [(304, 2), night(306, 14)])
def test_breadth_first_on_fewer_devices_agrees_with_brute_force(start: int, count: int) -> None:
    """Where devices may idle: the bound of every number of them, and the best plan on any. 40 problems agreed."""
    there = 0
    for seed in range(start, start + count):
        spec = one_group_problem(seed).spec
        idle = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"idle": True})})
        problem = replace(one_group_problem(seed), spec=idle)
        counts, bounds = (each.tolist() for each in count_bounds(problem, objective_of(problem)))
        if not all(small_enough(problem.of_size(size), 1500) for size in counts):
            continue
        with quick_tables():
            best = [brute_force(problem.of_size(size)) for size in counts]
            found = search(problem)
        for bound, plans in zip(bounds, best, strict=True):
            assert bound <= min(plans.values(), default=np.inf) * (1 + 1e-12)
            there += any("breadth_first" in key for key in plans)
        fastest = sorted(seconds for plans in best for seconds in plans.values())[:1]
        assert [plan.evaluation.step_time_s for plan in found.plans][:1] == pytest.approx(fastest, rel=1e-6)
    assert there > 0


def test_breadth_first_is_left_to_those_who_ask() -> None:
    """Interleaved as 1F1B is, with pp microbatches at least, which pp need not divide: 3 of them on two stages."""
    pin = {"pp": 2, "tp": 1, "dp": [1, 2], "mbs": 1, "vpp": [1, 2]}
    plain = enumerate_rows(problem_of(stack="megatron-core", batch=6, pin=pin))
    assert set(plain.frames.schedule.tolist()) == {1}
    asked = enumerate_rows(problem_of(stack="megatron-core", batch=6, pin=pin, schedules=["1f1b", "breadth_first"]))
    frames = np.stack([asked.frames.schedule, asked.frames.vpp, asked.frames.microbatches], axis=1)
    assert set(map(tuple, frames.tolist())) == {(1, 1, 6), (1, 2, 6), (1, 1, 3), (4, 2, 6), (4, 2, 3)}
    lacking = enumerate_rows(problem_of(stack="megatron-2021", batch=6, pin=pin, schedules=["1f1b", "breadth_first"]))
    assert set(lacking.frames.schedule.tolist()) == {1}
    assert lacking.refused["schedule"] > 0


def test_breadth_first_wins_where_gradients_are_slow_and_memory_is_there() -> None:
    """Two replicas with slow links between: gradients of three chunks of four travel under 8 microbatches' passes and
    not under 2. 5 GB hold the 4.4 of 1F1B and not the 5.04 of that."""
    pin = {"pp": 2, "tp": 1, "dp": 2, "mbs": 1, "vpp": 4, "recompute": "none", "distributed_optimizer": False}

    def found(gb: float) -> list[str]:
        chips = {"x": {"max": 4, "spec": chip_spec(gb=gb, up=3, out=3)}}
        asked = {"pin": pin, "schedules": ["1f1b", "breadth_first"], "diverse": False}
        problem = problem_of(chips, model_spec(layers=8), 4, 4, 16, stack="megatron-core", **asked)
        plans = search(with_stack(problem, gradient_overlap=0.6)).plans
        return list(dict.fromkeys(plan.strategy.schedule for plan in plans))

    assert found(40.0) == ["breadth_first", "1f1b"]
    assert found(5.0) == ["1f1b"]


def test_schedules_that_split_backward_are_left_to_those_who_have_them() -> None:
    """No other spec's space grows; what is asked for and not there is refused by its rule, and counted."""
    plain = enumerate_rows(problem_of())
    assert set(plain.frames.schedule.tolist()) == {1}
    assert "schedule" not in plain.refused
    asked = enumerate_rows(problem_of(schedules=["1f1b", "zb1p"]))
    assert len(asked) == len(plain)
    assert asked.refused["schedule"] > 0
    assert set(enumerate_rows(problem_of(stack="zero-bubble")).frames.schedule.tolist()) == {1, 2, 3, 6, 8, 9}


@pytest.mark.parametrize(("gb", "best"), [(5.0, "zbv"), (4.8, "v_half"), (4.7, "v_min")])
def test_less_memory_leaves_v_half_and_then_v_min(gb: float, best: str) -> None:
    chips = {"x": {"max": 4, "spec": chip_spec(gb=gb)}}
    names = ["zbv", "v_half", "v_min"]
    pin = {"pp": 4, "recompute": "none", "schedule": names}
    problem = problem_of(chips, model_spec(layers=16), 4, 4, 16, stack="zero-bubble", pin=pin)
    found = search(problem)
    assert [plan.strategy.schedule for plan in found.plans][:1] == [best]
    assert evaluate(problem, found.plans[0].strategy).step_time_s == pytest.approx(
        found.plans[0].evaluation.step_time_s, rel=1e-9
    )


def test_an_answer_is_what_the_judge_says() -> None:
    problem = problem_of(stack="zero-bubble", gpus=8, batch=32, pin={"pp": [4, 8], "dp": [1, 2]}, diverse=False)
    found = search(problem)
    assert found.status == "optimal"
    assert {plan.strategy.schedule for plan in found.plans} & {"zb1p", "zb2p"}
    for plan in found.plans:
        assert evaluate(problem, plan.strategy).step_time_s == pytest.approx(plan.evaluation.step_time_s, rel=1e-9)
    pinned = search(problem.with_(search={"pin": problem.spec.search.pin.model_copy(update={"schedule": ("1f1b",)})}))
    assert pinned.plans[0].evaluation.step_time_s > found.plans[0].evaluation.step_time_s


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_what_the_last_chunk_keeps_decides_what_fits(share: float) -> None:
    """Devices that hold the first stage's four layers but for its last chunk's projections, or a part of them."""
    attention = {"kind": "mla", "q_lora": 128, "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
    model = model_spec(layers=8, attention=attention, vocab=512)
    pin = {"pp": 2, "vpp": 2, "tp": 1, "mbs": 1, "schedule": "dualpipev", "recompute": ["none", "block"]}
    pin |= {"flash_attention": True, "distributed_optimizer": False}
    base = problem_of({"x": chip_spec()}, model, 2, 2, 16, 2048, pin=pin, training={"recompute_mla_up_proj": True})
    base = replace(base, stack=base.stack.model_copy(update={"name": "deepseek"}))
    plan = strategy_of("x:4,4", vpp=2, schedule="dualpipev", flags="f")
    first, second = (need.total for need in stage_memory(base, plan))
    assert first > second
    room = second + share * (first - second)
    supply = base.supplies[0]
    memory = supply.chip.memory.model_copy(update={"usable_gib": room / 2**30 / (1 - base.memory_margin)})
    chip = supply.chip.model_copy(update={"memory": memory})
    problem = replace(base, supplies=(replace(supply, chip=chip),))
    best = brute_force(problem)
    assert best
    assert_same(problem, best)
