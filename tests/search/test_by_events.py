"""Plans over several chip types, run event by event: the best of them by that, against every plan there is."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from cpsolver import make_problem
from cpsolver.cost.pipeline_events import closed_form_s, most_excess, simulate
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.timeline import least_step_s
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.bounds.bottleneck import ByEvents
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.mixes import mix_bound
from cpsolver.search.compile import chains
from cpsolver.search.compile.data import plan_data, scale_for
from cpsolver.search.compile.warm_start import may_run_within
from cpsolver.search.objective import MOST_EXCESS, objective_of
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.spec import parse_spec
from tests.support.mixtures import mixture_problem
from tests.support.oracle import legal, small_enough, strategies
from tests.support.problems import chip_spec
from tests.support.selection import later, night
from tests.support.split_backward import one_chip_problem, one_group_problem, v_problem
from tests.support.tables import all_orders, plan_of, quick_tables

LARGEST = 1500
CLOSE = 1e-9


def candidates(problem: Problem) -> dict[tuple[object, ...], tuple[float, float, float]]:
    """Of every plan's best layers by formula: its seconds by formula, and the least and most of equals by events."""
    best: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for s in (s for s in strategies(problem) if legal(problem, s)):
        found = evaluate(problem, s)
        assert least_step_s(s, found, s.microbatches(problem.batch)) <= found.step_time_s * (1 + CLOSE)
        best.setdefault(s.key(), []).append((found.formula_s, found.step_time_s))
    told = {}
    for key, both in best.items():
        formula = min(both)[0]
        ties = [true for seconds, true in both if seconds <= formula * (1 + CLOSE)]
        told[key] = formula, min(ties), max(ties)
    return told


@pytest.mark.parametrize(("seed", "count"), [(7006, 1), *later((seed, 6) for seed in range(7006, 15_000, 1000))])
def test_nothing_is_faster_by_events_than_the_best(seed: int, count: int) -> None:
    """Of problems from `seed` on; in the first one the formula's best plan is another."""
    found: Counter[str] = Counter()
    while found["problems"] < count:
        seed += 1
        problem = mixture_problem(seed).with_(search={"objective": "throughput"})
        if not small_enough(problem, LARGEST):
            continue
        with quick_tables(seed, by_events=True):
            every = candidates(problem)
            result = search(problem)
        found["problems"] += 1
        if not every:
            assert result.status == "infeasible"
            continue
        seconds = [plan.evaluation.step_time_s for plan in result.plans]
        close = [most for formula, _, most in every.values() if formula <= (1 + MOST_EXCESS) * seconds[0]]
        best = min(close, default=float("inf"))
        assert min(least for _, least, _ in every.values()) * (1 - CLOSE) <= seconds[0] <= best * (1 + CLOSE), seed
        assert all(one <= other for one, other in pairwise(seconds)), seed
        apart = [family(p.strategy) if problem.spec.search.diverse else p.strategy.key() for p in result.plans]
        assert len(set(apart)) == len(apart)
        for plan in result.plans:
            formula, least, most = every[plan.strategy.key()]
            assert plan.evaluation.formula_s == pytest.approx(formula, rel=CLOSE), seed
            assert least * (1 - CLOSE) <= plan.evaluation.step_time_s <= most * (1 + CLOSE), seed
        assert result.proof.by_events is not None
        assert result.proof.by_events.within == MOST_EXCESS
        found["moved"] += seconds[0] < min(every.values())[1] * (1 - 1e-6)
    assert count > 1 or found["moved"]


@pytest.mark.parametrize(("start", "count"), [(0, 5), *later((start, 24) for start in range(5, 605, 24))])
def test_nothing_is_faster_by_events_than_the_best_where_stages_are_placed_as_a_v(start: int, count: int) -> None:
    """On one chip type: of all splits of all plans, and so are the others of the answer."""
    checked = sum(agrees_by_events(v_problem(seed), seed) for seed in range(start, start + count))
    assert checked or count < 10


@pytest.mark.parametrize(("start", "count"), [(0, 6), *later((start, 20) for start in range(6, 606, 20))])
def test_nothing_is_faster_by_events_than_the_best_where_pipelines_are_breadth_first(start: int, count: int) -> None:
    assert any(agrees_by_events(one_group_problem(seed), seed) for seed in range(start, start + count))


@pytest.mark.parametrize(("start", "count"), [(0, 12), *later((start, 40) for start in range(12, 612, 40))])
def test_nothing_is_faster_by_events_than_the_best_on_one_chip_type(start: int, count: int) -> None:
    assert any(agrees_by_events(one_chip_problem(seed), seed) for seed in range(start, start + count))


@pytest.mark.parametrize(("start", "count"), [(0, 5), *later((start, 24) for start in range(5, 125, 24))])
def test_where_labels_are_too_few_the_solver_has_the_last_word(
    start: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "_MOST_LABELS", (1,))
    monkeypatch.setattr(chains, "_MEANS", 1)
    assert any(agrees_by_events(v_problem(seed), seed) for seed in range(start, start + count))


def agrees_by_events(problem: Problem, seed: int) -> bool:
    """Whether there is anything to compare: then the answer is what running every plan there is event by event says."""
    problem = problem.with_(search={"objective": "throughput"})
    if problem.mixed or not small_enough(problem, LARGEST):
        return False
    with quick_tables(seed, by_events=True):
        best: dict[tuple[object, ...], float] = {}
        for s in (s for s in strategies(problem) if legal(problem, s)):
            apart = family(s) if problem.spec.search.diverse else s.key()
            best[apart] = min(evaluate(problem, s).step_time_s, best.get(apart, float("inf")))
        result = search(problem)
    assert result.proof.by_events is None
    seconds = [plan.evaluation.step_time_s for plan in result.plans]
    assert seconds == pytest.approx(sorted(best.values())[: problem.spec.search.top], rel=CLOSE), seed
    return bool(best)


def test_the_formula_is_never_further_above_events_than_stated() -> None:
    rng = np.random.default_rng(5)
    closest = 0.0
    for _ in range(600):
        pp, vpp = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        m = pp * int(rng.integers(1, 5))
        forward, backward = (np.repeat(rng.uniform(0.1, 1, (pp, 1)), vpp, axis=1) for _ in range(2))
        forward[-1] *= rng.uniform(0.1, 1)
        makespan = simulate(forward, backward, m).makespan_s
        formula = closed_form_s((forward + backward).sum(axis=1), m, vpp)
        excess = float(most_excess(pp, vpp, m))
        assert formula <= makespan * (1 + excess) * (1 + CLOSE)
        closest = max(closest, (formula / makespan - 1) / excess)
    assert closest > 0.5


def on_one_order(problem: Problem, s: Strategy) -> tuple[object, ...]:
    return s.key(), s.sharding_group, s.sharded, s.expert_overlap, s.slots


@pytest.mark.parametrize(("start", "count"), [(7107, 4), *(night(start, 6) for start in range(7100, 7130, 6))])
def test_no_plan_is_left_out_that_may_run_in_time(start: int, count: int) -> None:
    """For every row and order of chips: the best of all its splits by events is within its own limit."""
    found: Counter[str] = Counter()
    for seed in range(start, start + count):
        problem = mixture_problem(seed).with_(search={"objective": "throughput"})
        if small_enough(problem, LARGEST):
            found.update(_within_their_limits(problem, seed))
    assert found["checked"] > 20
    assert found["refused"] > found["checked"] / 2
    assert found["bounded"] > found["checked"] / 2


def _within_their_limits(problem: Problem, seed: int) -> dict[str, int]:
    checked = refused = bounded = 0
    with quick_tables(seed, by_events=True):
        best: dict[tuple[object, ...], float] = {}
        for s in (s for s in strategies(problem) if legal(problem, s)):
            key = on_one_order(problem, s)
            best[key] = min(evaluate(problem, s).step_time_s, best.get(key, 1e9))
        table = Coefficients(problem, enumerate_rows(problem).rows)
        for row in range(len(table.rows)):
            for mix, order in all_orders(problem, table.rows, row):
                known = best.get(on_one_order(problem, plan_of(problem, table.rows, row, order)))
                if known is None:
                    continue
                scale = scale_for(4 * known)
                plan = plan_data(table, row, order, scale, 4 * known)
                steps = plan.vpp / scale.unit_s
                checked += 1
                assert may_run_within(plan, (known + plan.error_s) * steps), (row, order)
                refused += not may_run_within(plan, 0.6 * known * steps)
                assert of_use(table, row, mix, order, known * (1 + CLOSE)) == [True, True], (row, order)
                bounded += not all(of_use(table, row, mix, order, 0.8 * known))
    return {"checked": checked, "refused": refused, "bounded": bounded}


def of_use(table: Coefficients, row: int, mix: tuple[int, ...], order: np.ndarray, events_s: float) -> list[bool]:
    """Whether the bounds of a mix and of a plan leave it where only what is faster than that by events is of use."""
    at, wanted = np.array([row]), ByEvents(np.zeros(1), np.array([events_s]))
    counts = np.array([mix])
    bounds = mix_bound(table, at, counts, counts, wanted), plan_bound(table, at, order[None, :], wanted=wanted)
    return [bool(bound[0] < 1e20) for bound in bounds]


@pytest.mark.full
def test_what_the_formula_thinks_slower_may_be_the_fastest() -> None:
    chips = {"ascend_910b": 96, "h100": 96, "b200": 64}
    problem = make_problem(model="gemma2-27b", num_gpus=256, chips=chips, global_batch_size=512, sequence_length=4096)
    with quick_tables():
        by_formula = search(problem).plans[0]
    result = search(problem)
    assert result.plans[0].evaluation.formula_s > by_formula.evaluation.formula_s
    assert result.plans[0].evaluation.step_time_s < 0.97 * evaluate(problem, by_formula.strategy).step_time_s
    assert result.proof.by_events is not None
    assert result.proof.by_events.run > 3


def test_a_plan_that_is_late_by_formula_alone_is_in_time() -> None:
    """By formula two devices miss the deadline; that charges a pipeline of unequal stages too much."""
    chips = {
        "one": {"spec": chip_spec(688.8, 64.0, 1500, 450, 400)},
        "two": {"spec": chip_spec(785.3, 3.31258, 4000, 16, 400)},
    }
    experts = {"expert_ffn": 128, "experts": 6, "freq": 2, "top_k": 1}
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 997, "moe": experts}
    whole = {"distributed_optimizer": False, "flash_attention": True, "recompute": ["none"]}
    problem = make_problem(
        model=model,
        num_gpus=12,
        gpus_per_node=1,
        chips=chips,
        global_batch_size=12,
        sequence_length=2048,
        objective="fewest_chips",
        deadline={"days": 0.048, "tokens": 1e9},
        pin={"mbs": 1, "pp": 2, "vpp": 1, "ep": 1, "etp": 1, **whole},
    )
    best = search(problem).plans[0]
    assert best.strategy.devices == 2
    assert best.evaluation.step_time_s <= objective_of(problem).deadline_s < best.evaluation.formula_s


@pytest.mark.parametrize("time_limit_s", [None, 60.0])
def test_a_plan_that_is_far_too_late_by_formula_is_found_before_there_is_none(time_limit_s: float | None) -> None:
    """Its formula is a fifth above its events, and beyond what is looked at where others are in time."""
    beside = {"memory": {"bandwidth_gb_s": 1500, "capacity_gb": 5.9}}
    one = {"peak_tflops": {"bf16": 685.9}, "scale_out": {"bandwidth_gbit_s": 10}, "scale_up": {"bandwidth_gb_s": 16}}
    two = {"peak_tflops": {"bf16": 145.7}, "scale_out": {"bandwidth_gbit_s": 400}, "scale_up": {"bandwidth_gb_s": 100}}
    experts = {"expert_ffn": 128, "experts": 6, "first_dense": 1, "top_k": 1}
    cluster = {
        "num_gpus": 4,
        "gpus_per_node": 1,
        "chips": {"one": {"spec": one | beside}, "two": {"max": 1, "spec": two | beside}},
        "prices": {"one": 4.58, "two": 3.96},
    }
    pin = {"mbs": 1, "vpp": 1, "distributed_optimizer": False, "recompute": "block", "recompute_num_layers": 2}
    wishes = {"time_limit_s": time_limit_s, "objective": "cost", "pin": pin}

    def within(days: float) -> Problem:
        spec = {
            "model": {"ffn": 256, "heads": 8, "hidden": 512, "layers": 6, "vocab": 64_000, "moe": experts},
            "cluster": cluster,
            "training": {"global_batch_size": 4, "sequence_length": 512},
            "search": {**wishes, "deadline": {"days": days, "tokens": 1e9}},
        }
        return resolve(parse_spec(spec))

    problem = within(0.683)
    result, deadline_s = search(problem), objective_of(problem).deadline_s
    assert result.status == "optimal"
    best = result.plans[0].evaluation
    assert best.step_time_s <= deadline_s
    assert best.formula_s > deadline_s * (1 + MOST_EXCESS)
    assert search(within(0.4)).status == "infeasible"
