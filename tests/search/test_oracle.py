"""The search against brute force: the same feasibility, the same K best values, legal and different plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.data import PlanData, plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from models_zoo import Architecture
from tests.support.compared import KEY, assert_same, compared
from tests.support.generated import random_problem
from tests.support.oracle import brute_force, grouped_key, small_enough
from tests.support.overlapping import overlap_problem
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host, with_stack
from tests.support.selection import first, full, night, only
from tests.support.short_chunks import short_chunk_problem
from tests.support.tables import all_orders, quick_tables

LARGEST = 300
"""Strategies that brute force may have to judge for one problem."""

_problem = cache(random_problem)


@lru_cache
def seeds(start: int, count: int) -> tuple[int, ...]:
    """The first seeds from `start` whose problems are small enough."""
    found: list[int] = []
    while len(found) < count:
        found += [start] if small_enough(_problem(start), LARGEST) else []
        start += 1
    return tuple(found)


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What the problems of all blocks were like."""
    return Counter()


@pytest.mark.parametrize("part", first(1, range(16)))
@pytest.mark.parametrize("bend", [False, True], ids=["real", "bent"])
def test_search_agrees_with_brute_force(part: int, bend: bool, tally: Counter[str]) -> None:
    """6 problems each: 96 with the cost model's tables, 96 with tables bent at random."""
    block, quarter = divmod(part, 4)
    small = seeds(5000 + 1000 * block + 500 * bend, 6 * (quarter + 1))[-6:]
    for problem, best in compared(_problem, small, None, bend):
        tally["problems"] += 1
        tally["mixed"] += problem.mixed
        tally["feasible"] += bool(best)
        tally["launcher"] += problem.launcher is not None and bool(best)
        plans: list[dict[str, Any]] = [dict(zip(KEY, key, strict=True)) for key in best]
        usual = {"1", "False", "optimizer", "1f1b"}
        found = {name for plan in plans for name, value in plan.items() if name != "chips" and str(value) not in usual}
        several = len(layer_kinds(problem.model)) > 1
        both = {"kinds": several, "kinds interleaved": several and "vpp" in found}
        both["kinds on mixed chips"] = several and any(len(set(plan["chips"])) > 1 for plan in plans)
        both["sharded, any recomputation"] = "sharded" in found and problem.spec.search.pin.recompute is None
        tally.update({*found, *(name for name, true in both.items() if true and best)})


LEAST = {
    "mixed": 0.5,
    "vpp": 0.1,
    "cp": 0.15,
    "ulysses": 0.08,
    "cp_gather": 0.1,
    "ep": 0.1,
    "etp": 0.08,
    "sharded": 0.06,
    "sharded, any recomputation": 0.03,
    "launcher": 0.08,
    "kinds": 0.2,
    "kinds on mixed chips": 0.05,
    "kinds interleaved": 0.05,
}
"""Shares of the generated problems of each kind, at least."""
LATER = 2 * 13 * 11
"""Problems of the parts after the first."""


@pytest.mark.full
def test_the_generated_problems_are_worth_solving(tally: Counter[str]) -> None:
    """Of all problems, or of those that `make test` leaves out."""
    total = tally["problems"]
    if total < LATER:
        pytest.skip("not all of them ran")
    assert 0.6 * total <= tally["feasible"] <= 0.9 * total
    assert {name: tally[name] for name, share in LEAST.items() if tally[name] < share * total} == {}


def without_pipeline(seed: int) -> Problem:
    """The random problem with what its pins and bans say of stages and recomputation left out, some layers away."""
    problem, free = random_problem(seed), {"pp": None, "vpp": None, "recompute": None, "recompute_num_layers": None}
    free |= {"recompute_modules": None, "stages": None, "chip_order": None}
    asked = problem.spec.search
    pin, forbid = (part.model_copy(update=free) for part in (asked.pin, asked.forbid))
    problem = problem.with_(search={"pin": pin, "forbid": forbid})
    return with_host(problem, offload_layers=1 + seed % (problem.model.layers - 1))


def with_functions_again(seed: int) -> Problem:
    """A random problem whose activation functions run again."""
    return with_host(random_problem(seed), recompute_activation_function=True)


@pytest.mark.parametrize(("bend", "count"), [full(True, 5), night(False, 12), night(True, 12)])
def test_activation_functions_made_again_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_functions_again, seeds(11000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 4


def with_projections_again(seed: int) -> Problem:
    """A random problem with latent attention whose projections run again."""
    problem = with_host(random_problem(seed), recompute_mla_up_proj=True)
    attention = {"kind": "mla", "q_lora": 64, "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v_head": 32}
    fields = problem.model.model_dump(exclude={"attention", "kv_heads", "head_dim"})
    return replace(problem, model=Architecture.model_validate({**fields, "attention": attention}))


@pytest.mark.parametrize(("bend", "count"), [full(True, 8), night(False, 16), night(True, 16)])
def test_projections_made_again_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_projections_again, seeds(13000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 8


def with_recomputed_blocks(seed: int) -> Problem:
    """A random problem of which some layers, as many of each stage, recompute their blocks beside swapped attention."""
    problem = random_problem(seed)
    count = 1 + seed % problem.model.layers
    problem = with_host(problem, activation_offload="attention", recompute_mlp_layers=count)
    return problem.with_(search={"layer_split": "even"})


@pytest.mark.parametrize(("bend", "count"), [full(True, 8), night(False, 24), night(True, 24)])
def test_recomputed_blocks_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_recomputed_blocks, seeds(15000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 8


def with_weights_away(seed: int) -> Problem:
    """A random problem whose sharded weights wait on the host, in two of three with the optimizer and gradients."""
    problem = with_host(random_problem(seed), parameter_offload=True, optimizer_offload=float(seed % 3 > 0))
    free = {"pp": None, "sharded": None, "distributed_optimizer": None}
    pin, forbid = (part.model_copy(update=free) for part in (problem.spec.search.pin, problem.spec.search.forbid))
    return with_stack(problem.with_(search={"pin": pin, "forbid": forbid}), host_gradients=1.0)


@pytest.mark.parametrize(("bend", "count"), [full(True, 6), night(False, 20), night(True, 20)])
def test_weights_on_the_host_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_weights_away, seeds(19000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 8


def with_shared_checkpoints(seed: int) -> Problem:
    """A random problem whose tensor-parallel ranks share out what recomputed layers keep, on the device or the host."""
    return with_host(random_problem(seed), distribute_saved_activations=seed % 3 > 0, cpu_checkpointing=seed % 3 < 2)


@pytest.mark.parametrize(("bend", "count"), [full(True, 6), night(False, 16), night(True, 16)])
def test_shared_checkpoints_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_shared_checkpoints, seeds(17000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 4


def with_little_kept(seed: int) -> Problem:
    """A random problem whose experts make their inputs and activations again, one in two of them more than that."""
    return with_host(random_problem(seed), moe_zero_memory=f"level{seed % 2}")


@pytest.mark.parametrize(("bend", "count"), [full(True, 12), night(False, 30), night(True, 30)])
def test_experts_that_keep_little_agree_with_brute_force(bend: bool, count: int) -> None:
    """Those without experts have no plan."""
    problems = compared(with_little_kept, seeds(12000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 10


def with_gathered_tokens(seed: int) -> Problem:
    """A random problem whose experts get all tokens."""
    return with_host(random_problem(seed), moe_dispatcher="allgather")


@pytest.mark.parametrize(("bend", "count"), [full(True, 8), night(False, 30), night(True, 30)])
def test_gathered_tokens_agree_with_brute_force(bend: bool, count: int) -> None:
    problems = compared(with_gathered_tokens, seeds(21000 + 1000 * bend, count), None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 4


@pytest.mark.parametrize(
    ("start", "count"), [(9000, 2), full(9002, 10), *(night(start, 30) for start in range(9100, 9300, 100))]
)
@pytest.mark.parametrize("bend", [False, True], ids=["real", "bent"])
def test_layers_on_the_host_agree_with_brute_force(start: int, count: int, bend: bool) -> None:
    """144 problems, half of them with bent tables."""
    problems = compared(without_pipeline, seeds(start + 1000 * bend, count)[bend::2], None, bend)
    assert sum(bool(best) for _, best in problems) >= count // 6


def best_by_key(
    best: Mapping[tuple[object, ...], float], told: Callable[[tuple[object, ...]], Any]
) -> dict[tuple[object, ...], tuple[float, Any]]:
    """Of the plans that share what the planner tells plans apart by: the fewest seconds, and what is `told` of that."""
    found: dict[tuple[object, ...], tuple[float, Any]] = {}
    for key, seconds in sorted(best.items(), key=lambda item: (item[1], told(item[0])), reverse=True):
        found[key[: len(KEY)]] = seconds, told(key)
    return found


OVERLAPPING = {"best overlaps": 0.12, "best does not": 0.3, "only without": 0.12}
"""Of the problems below: how many have plans whose best overlaps, or does not, or where memory or a launcher forbids it
though the degrees would do; shares at least."""


@pytest.mark.parametrize(("start", "count"), [(0, 3), full(0, 8), *(night(start, 24) for start in range(8, 104, 24))])
def test_overlap_of_experts_agrees_with_brute_force(start: int, count: int) -> None:
    """104 problems, half of them with bent tables."""
    tally: Counter[str] = Counter()
    for seed in range(start, start + count):
        problem = overlap_problem(seed)
        if not small_enough(problem, 600):
            continue
        with quick_tables(seed if seed % 2 else None):
            best = brute_force(problem, grouped_key)
            by_key = best_by_key(best, lambda key: bool(key[-2]))
            assert_same(problem, {plan: seconds for plan, (seconds, _) in by_key.items()})
        tally["problems"] += 1
        tally["best overlaps"] += any(overlaps for _, overlaps in by_key.values())
        tally["best does not"] += any(not overlaps for _, overlaps in by_key.values())
        told = [dict(zip(KEY, plan, strict=True)) for plan, (_, overlaps) in by_key.items() if not overlaps]
        tally["only without"] += any(one["ep"] != 1 and (one["pp"] == 1 or one["vpp"] != 1) for one in told)
    assert tally["problems"] >= 0.75 * count
    assert {name: tally[name] for name, share in OVERLAPPING.items() if tally[name] < share * tally["problems"]} == {}


SHORT = {"several": 0.15, "none or one": 0.25, "feasible": 0.6, "kinds": 0.1, "mixed": 0.05}
"""Of the problems below: how many have plans whose best puts the head in the place of several layers, or of fewer; and
of which kind they are; shares at least."""


@pytest.mark.parametrize(("start", "count"), [(0, 6), *(night(start, 20) for start in range(6, 86, 20))])
def test_short_last_chunks_agree_with_brute_force(start: int, count: int) -> None:
    """126 problems, half of them with bent tables."""
    tally: Counter[str] = Counter()
    for seed in range(start, start + count):
        problem = short_chunk_problem(seed)
        if not small_enough(problem, 3000):
            continue
        with quick_tables(seed if seed % 2 else None):
            best = brute_force(problem, grouped_key)
            by_key = best_by_key(best, lambda key: key[-1])
            assert_same(problem, {plan: seconds for plan, (seconds, _) in by_key.items()})
        tally["problems"] += 1
        tally["feasible"] += bool(by_key)
        tally["several"] += any(slots[1] > 1 for _, slots in by_key.values())
        tally["none or one"] += any(slots[1] < 2 for _, slots in by_key.values())
        tally["kinds"] += len(layer_kinds(problem.model)) > 1
        tally["mixed"] += problem.mixed
    assert tally["problems"] >= 0.75 * count
    if count > 6:
        assert {name: tally[name] for name, share in SHORT.items() if tally[name] < share * tally["problems"]} == {}


@pytest.mark.night
def test_memory_binds_in_many_of_the_generated_problems() -> None:
    binding = 0
    for seed in seeds(5000, 16):
        with quick_tables():
            best, roomy = brute_force(random_problem(seed)), brute_force(random_problem(seed, tight=False))
        binding += len(best) < len(roomy) or best != roomy
    assert binding >= 5


def whole_space(problem: Problem, upper_s: float) -> CompiledModel | None:
    """One model over every plan of a problem: every row, mix and order that space and plans leave."""
    space, scale = enumerate_rows(problem), scale_for(upper_s)
    table = Coefficients(problem, space.rows)
    data: list[PlanData] = []
    for row in range(len(space.rows)):
        orders = all_orders(problem, space.rows, row)
        data += [plan_data(table, row, order, scale, upper_s) for _, order in orders]
    data = [plan for plan in data if plan.possible]
    return CompiledModel(problem, data, scale, 0.0, upper_s) if data else None


@pytest.mark.parametrize("start", first(1, [20_000, 21_000, 22_000]))
def test_one_model_over_all_plans_finds_the_same_best(start: int) -> None:
    compared = 0
    for seed in seeds(start, 6):
        problem = random_problem(seed)
        result = search(problem)
        best = result.plans[0].evaluation.step_time_s if result.plans else None
        joint = whole_space(problem, 10.0 if best is None else 2 * best)
        solved = joint.solve() if joint else None
        if best is None:
            assert solved is None or solved.status == "infeasible"
            continue
        assert solved is not None
        assert solved.status == "optimal"
        assert solved.step_time_s == pytest.approx(best, rel=1e-6)
        assert solved.strategy is not None
        assert not violations(problem, solved.strategy)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("scope", ["stage", full("chip")])
@pytest.mark.parametrize("shape", [{"pp": 2, "vpp": 1}, full({"pp": 2, "vpp": 2})], ids=str)
@pytest.mark.parametrize("steps", [full(5), night(13)])
def test_every_capacity_between_none_and_ample_agrees(scope: str, shape: dict[str, int], steps: int) -> None:
    """From too small for one layer a stage to ample: each step takes some plans away, and others come to be best."""
    model = model_spec(layers=6 if shape["vpp"] == 2 else 5, hidden=512, ffn=1024)
    pin = {**shape, "mbs": 4, "tp": 1, "flash_attention": True, "distributed_optimizer": False}
    seen = set()
    for gb in np.linspace(4.15, 6.3, steps).tolist():
        problem = problem_of({"x": chip_spec(gb=gb)}, model, 2, 2, 16, 4096, recompute_scope=scope, pin=pin, top=3)
        with quick_tables():
            best = brute_force(problem)
            assert_same(problem, best)
        seen.add(min(best.values(), default=None))
    assert None in seen
    assert len(seen) >= (4 if steps > 5 else 3)


def test_a_stage_recomputes_what_it_must_and_the_next_one_nothing() -> None:
    """The first stage holds twice the activations: at some capacity it alone has no room without recomputation."""
    model = model_spec(layers=2, hidden=512, ffn=1024, vocab=256)
    pin: dict[str, Any] = {"pp": 2, "mbs": 4, "tp": 1, "vpp": 1, "recompute": ["none", "block"]}
    pin |= {"flash_attention": True, "distributed_optimizer": False}
    chosen = set()
    for gb in np.linspace(3.6, 5.6, 9).tolist():
        problem = problem_of({"x": chip_spec(gb=gb)}, model, 2, 2, 16, 8192, recompute_scope="stage", pin=pin)
        with quick_tables():
            assert_same(problem, brute_force(problem))
        chosen |= {plan.strategy.recompute for plan in search(problem).plans}
    assert chosen == {("block", "none"), ("none", "none")}


@pytest.mark.parametrize("kind", ["none", "block", "uniform"])
@pytest.mark.parametrize("vpp", [2, full(1)])
def test_a_plan_that_just_fits_is_found_and_one_that_just_does_not_is_not(kind: RecomputeKind, vpp: int) -> None:
    amount = 0 if kind == "none" else 1
    strategy = strategy_of("x:4,4", dp=2, vpp=vpp, recompute=kind, amount=amount)
    names = (*KEY[:8], "layers", "cp", "sharded", "sharding_group")
    pin = {name: getattr(strategy, name) for name in names}
    pin |= {"recompute": kind, "recompute_num_layers": amount, "layers": list(strategy.layers)}
    need = max(stage.total for stage in stage_memory(problem_of(model=model_spec(layers=8)), strategy))
    for factor, status in ((1 + 1e-7, "optimal"), (1 - 1e-7, "infeasible")):
        chips = {"x": chip_spec(gb=need * factor / 1e9)}
        assert search(problem_of(chips, model_spec(layers=8), margin=0.0, pin=pin)).status == status


STEERED: list[dict[str, Any]] = [
    {"pin": {"layers": [1, 3]}},
    {"forbid": {"layers": [2, 2]}, "pin": {"pp": 2}},
    {"pin": {"stage_chips": ["x", "y"]}},
    {"pin": {"stages": {"x": [1], "y": [1]}}},
    {"pin": {"chip_order": ["y", "x"], "pp": 2}},
    {"forbid": {"stage_chips": ["x", "x"]}},
    {"pin": {"recompute": "block", "recompute_num_layers": 4}},
    {"pin": {"recompute": {"x": "uniform", "y": "none"}}},
    {"layer_split": "even_per_chip", "pin": {"pp": [2, 4]}},
    {"layer_split": "even", "forbid": {"pp": 1}},
    {"recompute_scope": "stage", "pin": {"pp": 2, "vpp": 1}},
]
"""Wishes, one for every decision that may be pinned or forbidden."""


def _quick(search_for: dict[str, Any], chips: str) -> bool:
    return chips == "x" or "uniform" in str(search_for)


@pytest.mark.parametrize(("search_for", "chips"), only(_quick, product(STEERED, ("x", "xy"))), ids=str)
def test_every_decision_can_be_pinned_or_forbidden(search_for: dict[str, Any], chips: str) -> None:
    text = str(search_for)
    if chips == "x" and "'y'" in text:
        search_for = {**search_for, "pin": {"stages": {"x": [2]}}}
    pin = {"mbs": 1, "distributed_optimizer": False, "flash_attention": True, "cp": 1, **search_for.get("pin", {})}
    pin |= {"sequence_parallel": False}
    few = {"recompute_modules": [["mlp"], ["core_attn", "mlp"]]} | search_for.get("forbid", {})
    both = {"x": chip_spec(gb=5.0), "y": chip_spec(tflops=60, gb=4.5)}
    problem = problem_of(
        {name: both[name] for name in chips}, model_spec(), node=2, batch=4, **{**search_for, "pin": pin, "forbid": few}
    )
    with quick_tables():
        best = brute_force(problem)
        assert best
        assert_same(problem, best)


@pytest.mark.parametrize("layers", [4, full(5), full(6)])
@pytest.mark.parametrize("first", [1, full(2)])
def test_dense_layers_of_a_stage_agree_with_brute_force(first: int, layers: int) -> None:
    """MindSpeed-LLM wants fewer dense layers before the experts than layers // pp: with two of five, no pp 2."""
    experts = {"experts": 2, "top_k": 1, "expert_ffn": 512, "first_dense": first}
    model = model_spec(layers=layers, moe=experts)
    pin = {"tp": 1, "cp": 1, "ep": 1, "mbs": 1, "vpp": 1, "flash_attention": True, "distributed_optimizer": False}
    search_for: dict[str, Any] = {"top": 20, "diverse": False, "pin": {**pin, "recompute": "none"}}
    depths = {}
    for launcher in ("megatron-lm", "mindspeed-llm"):
        problem = problem_of(model=model, gpus=4, batch=4, launcher=launcher, stack="megatron-core", **search_for)
        best = brute_force(problem)
        assert_same(problem, best)
        depths[launcher] = {dict(zip(KEY, key, strict=True))["pp"] for key in best}
    assert depths["megatron-lm"] == {1, 2, 4}
    assert depths["mindspeed-llm"] == {pp for pp in (1, 2, 4) if pp == 1 or first < layers // pp}


def test_keys_that_are_repeated_before_an_exchange_are_searched_as_they_cost() -> None:
    """Two heads of keys and values among four ranks that exchange heads: MindSpeed-LLM alone runs that."""
    for launcher, runs in (("megatron-lm", False), ("mindspeed-llm", True)):
        pin = {"cp": 4, "ulysses": 4, "mbs": 1, "recompute": "none"}
        problem = problem_of(model=model_spec(layers=2, kv_heads=2), gpus=4, batch=2, launcher=launcher, pin=pin)
        best = brute_force(problem)
        assert bool(best) == runs
        assert_same(problem, best)
