"""The best split by dynamic programming: against all splits of random integers, and against the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import BALANCE
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.step_form import PASS_PARTS
from cpsolver.plans.strategy import Schedule
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.facts import Split
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients, PassKind
from cpsolver.search.compile import chains, exact
from cpsolver.search.compile.chains import NEVER
from cpsolver.search.compile.data import PassSteps, PlanData, plan_data, scale_for
from cpsolver.search.compile.exact import Splitter
from cpsolver.search.compile.given import allowed_splits
from cpsolver.search.compile.model import CompiledModel, first_split, solve_plan
from cpsolver.search.compile.options import ChipOptions, Option
from cpsolver.search.compile.warm_start import warm_start
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.search import Search
from cpsolver.spec.spec import parse_spec
from tests.support.problems import model_spec, problem_of
from tests.support.selection import full, only
from tests.support.split_backward import form_of


def random_plan(rng: np.random.Generator, in_place: bool) -> PlanData:
    """Up to three stages on up to two chip types, few options, all numbers drawn at random; no launcher."""
    pp, longest, needed = int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 9))
    chips = tuple(sorted(rng.integers(0, 2, pp).tolist()))
    by_chip = {}
    odd = np.cumsum([0, *rng.integers(0, 2, needed)])
    for chip in dict.fromkeys(chips):
        options = tuple(Option("block", n, n) for n in rng.integers(0, longest + 1, rng.integers(1, 4)).tolist())
        shape = (chips.count(chip), len(options), int(odd[-1]) + 1)
        fits = rng.integers(0, longest + 2, shape).clip(max=longest)
        layer_steps, once = (rng.integers(0, 9, len(options)) for _ in range(2))
        beyond_mean = np.cumsum([0, *rng.integers(-9, 10, needed)]) * in_place
        places = tuple(p for p, own in enumerate(chips) if own == chip)
        tie = np.zeros(len(options), dtype=np.int64)
        by_chip[chip] = ChipOptions(places, options, fits, layer_steps, once, tie, beyond_mean)

    def steps(least: int, most: int) -> Ints:
        return np.asarray(rng.integers(least, most, pp))

    return PlanData(
        row=0,
        chips=chips,
        vpp=int(rng.integers(1, 3)),
        slots=(0, 0),
        needed=needed,
        microbatches=int(rng.integers(1, 6)),
        longest=longest,
        by_chip=by_chip,
        split="any",
        odd=odd if in_place else None,
        layer=steps(10, 60),
        recompute=steps(0, 30),
        fixed=steps(0, 100),
        after_layer=steps(0, 200),
        after_fixed=steps(0, 300),
        v_shaped=False,
        both_ways=False,
        form=None,
        passes={},
        degrees=(),
        meshes={},
        error_s=0.0,
    )


def every_split(plan: PlanData, choice: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(objective, slowest stage, chunks) of every split and choice of options that fits."""
    for chunk in product(range(1, plan.longest + 1), repeat=plan.pp):
        if sum(chunk) != plan.needed or any(length < plan.least(p) for p, length in enumerate(chunk)):
            continue
        for picks in product(*choice):
            stages = [stage_steps(plan, p, chunk, pick) for p, pick in enumerate(picks)]
            if None not in stages:
                times = [time for time in stages if time is not None]
                after = max(int(plan.after_layer[p] * n + plan.after_fixed[p]) for p, n in enumerate(chunk))
                yield pipeline_steps(plan, chunk, times) + plan.multiple * after, max(times), chunk


def pipeline_steps(plan: PlanData, chunk: tuple[int, ...], times: list[int]) -> int:
    """The objective but for what follows the pipeline."""
    if plan.form is None:
        return (plan.microbatches * plan.vpp - 1) * max(times) + sum(times)
    parts = np.zeros((PASS_PARTS, plan.pp))
    parts[0] = times
    for part, steps in enumerate(plan.passes.values(), 1):
        parts[part] = pass_steps(plan, steps, chunk)
    return round(plan.form.multiple * plan.form.step_s(parts))


def pass_steps(plan: PlanData, steps: PassSteps, chunk: tuple[int, ...]) -> Floats:
    ends, found = np.cumsum((0, *chunk)), steps.layer * np.array(chunk) + steps.fixed
    for p, chip in enumerate(plan.chips if plan.odd is not None else ()):
        found[p] += steps.beyond_mean[chip][ends[p + 1]] - steps.beyond_mean[chip][ends[p]]
    return np.asarray(found, dtype=np.float64)


def split_plan(seed: int, in_place: bool) -> PlanData:
    """The same with backward split: F and W take no more than a third of a layer each; a head may need places."""
    rng = np.random.default_rng(seed)
    plan, times = random_plan(rng, in_place), int(rng.integers(1, 4))
    plan = replace(plan, slots=(0, int(rng.integers(0, 3))), v_shaped=times == 3)
    beyond = {chip: np.asarray(own.beyond_mean // 3) for chip, own in plan.by_chip.items()}
    weight = PassSteps(np.asarray(plan.layer // rng.integers(3, 6)), np.asarray(plan.fixed // 3), beyond)
    forward = PassSteps(np.asarray(plan.layer // 3), np.asarray(plan.fixed // 3), beyond)
    passes: dict[PassKind, PassSteps] = {"forward": forward, "weight": weight}
    if times < 3:
        form = form_of("zb1p" if times == 1 else "zb2p", plan.pp, plan.microbatches)
        return replace(plan, vpp=1, form=form, passes=passes)
    names: tuple[Schedule, ...] = ("zbv", "dualpipev", "v_half", "v_min")
    name, m = names[int(rng.integers(4))], 2 * plan.pp + plan.microbatches
    longer = np.where(np.arange(plan.pp) == 0, rng.integers(-50, 50), 0)
    kinds: tuple[PassKind, ...] = ("later", "later_forward", "later_weight")
    for kind, share in zip(kinds, (1, 3, 4), strict=True):
        ends = {chip: np.asarray(own.beyond_mean // (2 * share)) for chip, own in plan.by_chip.items()}
        passes[kind] = PassSteps(0 * plan.layer, longer // share, ends)
    return replace(plan, vpp=2, microbatches=m, form=form_of(name, plan.pp, m), passes=passes)


@pytest.mark.parametrize("in_place", [False, True], ids=["alike", "kinds"])
@pytest.mark.parametrize("count", [80, full(600)])
def test_best_split_with_split_backwards_is_the_best_of_all(
    in_place: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stages hold a step up together; with few labels what it says is still a bound and a plan's objective."""
    some = 0
    for seed in range(count):
        rng, plan = np.random.default_rng(seed), split_plan(seed, in_place)
        free = {chip: tuple(range(len(own))) for chip, own in plan.by_chip.items()}
        every = list(every_split(plan, tuple(tuple(range(len(plan.by_chip[chip]))) for chip in plan.chips)))
        splitter = Splitter(plan)
        slowest = splitter.slowest(free)
        if not every:
            assert slowest >= NEVER or splitter.best(free, slowest).objective >= NEVER
            continue
        some += 1
        true = min(objective for objective, *_ in every)
        assert splitter.least_objective(free, slowest) <= true, seed
        found = splitter.best(free, slowest)
        assert (found.objective, found.lower) == (true, true), seed
        chosen = tuple((int(pick),) for pick in found.option)
        assert true in [one for one, _, chunk in every_split(plan, chosen) if chunk == tuple(found.chunk)]
        known = true + int(rng.integers(-50, 50))
        other = splitter.best(free, slowest, known)
        assert other.lower == min(true, known)
        assert other.objective == true or known <= true <= other.objective
        with monkeypatch.context() as few:
            few.setattr(chains, "_MOST_LABELS", (int(rng.integers(1, 4)),))
            few.setattr(chains, "_MEANS", 1)
            hasty = splitter.best(free, slowest)
        assert hasty.lower <= true <= hasty.objective, seed
    assert some > 0.3 * count


def stage_steps(plan: PlanData, p: int, chunk: tuple[int, ...], pick: int) -> int | None:
    """A stage's steps; None where it does not fit."""
    own, begin, length = plan.by_chip[plan.chips[p]], sum(chunk[:p]), chunk[p]
    place, option = own.places.index(p), own.options[pick]
    steps = plan.fixed[p] + plan.layer[p] * length + plan.recompute[p] * min(option.recomputed, length)
    steps += own.layer_steps[pick] * length + own.steps[pick]
    most = own.most[place, pick]
    if plan.odd is not None:
        most = own.fits[place, pick, plan.odd[begin + length] - plan.odd[begin]]
        steps += own.beyond_mean[begin + length] - own.beyond_mean[begin]
    return int(steps) if length <= most else None


@pytest.mark.parametrize("in_place", [False, True], ids=["alike", "kinds"])
def test_best_split_is_the_best_of_all(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    none = some = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        plan = random_plan(rng, in_place)
        choice = tuple(tuple(range(len(plan.by_chip[chip]))) for chip in plan.chips)
        every, splitter = list(every_split(plan, choice)), Splitter(plan)
        free = {chip: tuple(range(len(own))) for chip, own in plan.by_chip.items()}
        slowest = splitter.slowest(free)
        fits = slowest < NEVER
        none, some = none + (not fits), some + fits
        assert fits == bool(every), seed
        if not fits:
            continue
        found = splitter.best(free, slowest)
        true = min(objective for objective, *_ in every)
        assert splitter.least_objective(free, slowest) <= true, seed
        assert (found.objective, found.lower) == (true, true), seed
        assert found.slowest == min(slowest for _, slowest, _ in every)
        chosen = [(int(pick),) for pick in found.option]
        assert true in [one for one, _, chunk in every_split(plan, tuple(chosen)) if chunk == tuple(found.chunk)]
        known = true + int(rng.integers(-50, 50))
        other = splitter.best(free, slowest, known)
        assert other.lower == min(true, known)
        assert other.objective == true or known <= true <= other.objective
        with monkeypatch.context() as few:
            few.setattr(exact, "_TRIES", int(rng.integers(1, 4)))
            hasty = splitter.best(free, slowest)
        assert hasty.lower <= true <= hasty.objective, seed
    assert none > 50
    assert some > 200


@pytest.mark.parametrize("in_place", [False, True], ids=["alike", "kinds"])
def test_start_with_an_option_shared_by_the_stages_of_a_chip_type_is_the_best_of_all(in_place: bool) -> None:
    """Where stages share nothing it is too; the bounds hold in both cases."""
    some = 0
    for seed in range(1000, 1300):
        plan = random_plan(np.random.default_rng(seed), in_place)
        shared = product(*(range(len(own)) for own in plan.by_chip.values()))
        by_type = [dict(zip(plan.by_chip, picks, strict=True)) for picks in shared]
        choices = [tuple((picks[chip],) for chip in plan.chips) for picks in by_type]
        free = tuple(tuple(range(len(plan.by_chip[chip]))) for chip in plan.chips)
        for by_stage, allowed in ((False, choices), (True, [free])):
            every = [split for choice in allowed for split in every_split(plan, choice)]
            found = warm_start(plan, by_stage)
            assert (found is None) == (not every), seed
            if found is not None:
                true = min(objective for objective, *_ in every)
                assert (found.objective, found.lower) == (true, true), seed
                assert found.slowest <= min(slowest for _, slowest, _ in every)
                chosen = tuple((pick,) for pick in found.option)
                assert true in [one for one, _, chunk in every_split(plan, chosen) if chunk == tuple(found.chunk)]
                some += 1
    assert some > 100


def _ruled(plan: PlanData, search: Search, chunk: tuple[int, ...]) -> bool:
    """Whether the spec and the launcher allow these chunks."""
    layers = [plan.vpp * length - plan.slot(p) for p, length in enumerate(chunk)]
    by_chip = [{layers[p] for p in own.places} for own in plan.by_chip.values()]
    equal = {"auto": [], "even": [set(layers)], "even_per_chip": by_chip}[search.layer_split]
    of_launcher = {"any": (), "none": chunk, "first_last": chunk[1:-1]}[plan.split]
    pinned, banned = search.pin.layers, search.forbid.layers
    free = (pinned is None or tuple(layers) == pinned) and tuple(layers) != banned
    return free and all(len(values) == 1 for values in equal) and len(set(of_launcher)) < 2


def _with_rules(rng: np.random.Generator, plan: PlanData, some: list[tuple[int, ...]]) -> tuple[PlanData, Problem]:
    """A plan whose launcher may want stages alike, and a problem that does, or that pins one of some chunks."""
    splits: list[Split] = ["any", "none", "first_last"]
    plan = replace(plan, split=splits[int(rng.integers(plan.pp))])  # the last wants three stages or more
    asked: dict[str, Any] = {"layer_split": str(rng.choice(["auto", "even", "even_per_chip"]))}
    if some and rng.random() < 0.4:
        chunk = some[int(rng.integers(len(some)))]
        layers = [max(1, plan.vpp * length - plan.slot(p)) for p, length in enumerate(chunk)]
        asked[str(rng.choice(["pin", "forbid"]))] = {"layers": layers}
    return plan, problem_of(model=model_spec(layers=8), **asked)


@pytest.mark.parametrize("in_place", [False, True], ids=["alike", "kinds"])
@pytest.mark.parametrize("make", [random_plan, split_plan], ids=["1f1b", "split"])
def test_splits_that_are_allowed_are_all_tried(make: Callable[..., PlanData], in_place: bool) -> None:
    """By spec, launcher and pin, with options shared by the stages of a chip type or not."""
    tried = none = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        plan = make(rng if make is random_plan else seed, in_place)
        lengths = product(range(1, plan.longest + 1), repeat=plan.pp)
        plan, problem = _with_rules(rng, plan, [chunk for chunk in lengths if sum(chunk) == plan.needed])
        search, given = problem.spec.search, allowed_splits(problem, plan)
        if given is None:
            assert search.layer_split == "auto"
            assert plan.split == "any"
            continue
        lengths = product(range(1, plan.longest + 1), repeat=plan.pp)
        placed = [chunk for chunk in lengths if sum(chunk) == plan.needed and _ruled(plan, search, chunk)]
        assert sorted(map(tuple, given.tolist())) == [
            chunk for chunk in placed if all(length >= plan.least(p) for p, length in enumerate(chunk))
        ], seed
        shared = product(*(range(len(own)) for own in plan.by_chip.values()))
        by_type = [dict(zip(plan.by_chip, picks, strict=True)) for picks in shared]
        tied = [tuple((picks[chip],) for chip in plan.chips) for picks in by_type]
        free = tuple(tuple(range(len(plan.by_chip[chip]))) for chip in plan.chips)
        for by_stage, allowed in ((False, tied), (True, [free])):
            every = [split for choice in allowed for split in every_split(plan, choice)]
            every = [split for split in every if _ruled(plan, search, split[2])]
            found = warm_start(plan, by_stage, given=given)
            assert (found is None) == (not every), seed
            none += found is None
            if found is not None:
                tried += 1
                true = min(objective for objective, *_ in every)
                assert (found.objective, found.lower) == (true, true), seed
                assert found.slowest <= min(slowest for _, slowest, _ in every)
                assert true in [one for one, _, chunk in every if chunk == tuple(found.chunk)]
    assert tried > 60
    assert none > 60


FREE = {"mbs": 2, "cp": 1, "flash_attention": True}
TIGHT: dict[str, dict[str, Any]] = {
    "llama2-7b": {"chips": {"a100_40g": 8}, "margin": 0.4, "pin": FREE | {"pp": 4, "tp": 2, "dp": 1}},
    "llama2-13b": {"chips": {"a100_40g": 16}, "margin": 0.15, "pin": FREE | {"pp": 4, "tp": 2, "dp": 2, "vpp": 2}},
    "deepseek-v2-lite": {"chips": {"a800": 8}, "margin": 0.35, "pin": FREE | {"pp": 4, "tp": 1, "ep": 2}},
}
"""Memory so tight that stages recompute in different ways; the last has layers of two kinds."""


@pytest.mark.parametrize(
    ("name", "scope"),
    only(lambda name, scope: name == "llama2-7b", product(TIGHT, ("stage", "chip"))),
)
def test_best_split_is_what_the_solver_finds_alone(name: str, scope: str) -> None:
    """The solver is given no start and no bound; modules, blocks and uniform recomputation are free."""
    spec: dict[str, Any] = {"gpus": sum(TIGHT[name]["chips"].values()), "node": 8, "batch": 32, "sequence": 4096}
    problem = problem_of(model=name, recompute_scope=scope, **spec, **TIGHT[name])
    table, compared = Coefficients(problem, enumerate_rows(problem).rows), 0
    ways = 0
    for row in range(len(table.rows)):
        chips = np.zeros(int(table.rows.pp[row]), dtype=np.int64)
        bound = float(plan_bound(table, np.array([row]), chips[None, :])[0])
        if np.isinf(bound) or compared == (3 if scope == "stage" else 1):
            continue
        scale = scale_for(2 * bound, float(sum(part[0] for part in table.weights(np.array([row])))))
        data = plan_data(table, row, chips, scale, 2 * bound)
        data, known = first_split(table, data, lambda: False, NEVER)
        assert known is not None
        assert known.lower == known.objective
        ways += len({data.by_chip[0].options[option].kind for option in known.option}) > 1
        solved = CompiledModel(problem, [data], scale, 0.0, 2 * bound).solve(time_limit_s=10)
        best = known.objective * scale.unit_s / data.vpp
        assert solved.status in ("optimal", "feasible")
        assert solved.bound_s <= best * (1 + 1e-12)
        assert best <= solved.step_time_s * (1 + 1e-12)
        narrowed = solve_plan(table, row, chips, bound, np.inf, 20)
        assert narrowed is not None
        assert narrowed.status == "optimal"
        assert abs(narrowed.step_time_s - best) <= 2 * data.error_s
        compared += 1
    assert compared > 0
    assert (ways > 0) == (scope == "stage")


@pytest.mark.parametrize("name", BALANCE)
def test_balancing_eighty_layers_is_proven_at_once(name: str) -> None:
    """Sixteen stages, each with recomputation of its own by layers and by modules."""
    result = search(resolve(parse_spec(BALANCE[name])))
    assert result.status == "optimal"
    assert result.proof.solver_seconds < 5
