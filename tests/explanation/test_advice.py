"""Advice: small changes of a spec that gain are found, each is solved, and nothing better of their kind is missed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from cpsolver.explanation import account, advice
from cpsolver.explanation.account import explain_spec
from cpsolver.explanation.advice import PAIRS, Advice, Suggestion, advise, merit_of, seconds_for
from cpsolver.explanation.alternatives import KINDS, Alternative
from cpsolver.explanation.changes import Budget, Changer, best_plan
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.framework import load_launcher
from cpsolver.profiles.stack import load_stack
from cpsolver.rules import violations
from cpsolver.search.objective import deadline_step_s
from cpsolver.search.result import Plan, Result
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.support.problems import chip_spec, spec_of
from tests.support.selection import full

LLAMA_13B: dict[str, Any] = {
    "model": "llama2-13b",
    "cluster": {"num_gpus": 64, "chips": "a100"},
    "training": {"global_batch_size": 509, "sequence_length": 4096},
}
LLAMA_70B: dict[str, Any] = {
    "model": "llama3.1-70b",
    "cluster": {"num_gpus": 240, "chips": "h100"},
    "training": {"global_batch_size": 512, "sequence_length": 8192},
}
SMALL: dict[str, Any] = {"vpp": 1, "flash_attention": True, "distributed_optimizer": True}


def problem(spec: dict[str, Any]) -> Problem:
    return resolve(parse_spec(spec))


def small(batch: int = 33, gpus: int = 8, cluster: dict[str, Any] | None = None, **given: Any) -> Problem:
    settings = {"pin": SMALL, **given}
    spec = spec_of({"x": chip_spec(gb=60)}, gpus=gpus, node=2, batch=batch, **settings)
    spec["cluster"].update(cluster or {})
    return problem(spec)


def best_of(problem: Problem) -> Plan:
    found = best_plan(problem, Budget(60.0), 60.0)
    assert found is not None
    return found


def advised(problem: Problem, **given: Any) -> Advice:
    return advise(problem, best_of(problem), **given)


@cache
def of_example(name: str) -> tuple[Problem, Plan, Advice]:
    asked = problem({"13b": LLAMA_13B, "70b": LLAMA_70B}[name])
    best = best_of(asked)
    return asked, best, advise(asked, best, seconds=300.0)


def one_change(found: Advice, kind: str, side: int = 0) -> Suggestion | None:
    return next((one for one in found.found if [(p.kind, p.side) for p in one.parts] == [(kind, side)]), None)


def batch_of(one: Suggestion | None) -> int | None:
    return None if one is None else one.problem.batch


# The examples.


def test_a_prime_batch_is_told_its_neighbour() -> None:
    _, _, found = of_example("13b")
    first = found.found[0]
    assert first.text == "a batch of 512 sequences instead of 509"
    assert first.gain == pytest.approx(0.29, abs=0.03)
    assert first.notes == ("a batch of 512 is another training than 509 by 0.59 %",)


@pytest.mark.full
def test_an_odd_number_of_devices_is_told_batches_and_devices_that_divide_better() -> None:
    _, _, found = of_example("70b")
    fewer = one_change(found, "batch", -1)
    assert fewer is not None
    assert (fewer.problem.batch, fewer.gain) == (510, pytest.approx(0.07, abs=0.02))
    more = one_change(found, "devices", 1)
    assert more is not None
    assert (more.problem.num_gpus, more.gain > 0.01) == (256, True)
    assert any(len(one.parts) == 2 for one in found.found)


@pytest.mark.parametrize("name", ["13b", full("70b")])
def test_what_is_advised_of_the_examples_is_sound(name: str) -> None:
    asked, best, found = of_example(name)
    assert not found.left
    assert not found.interrupted
    own = best.evaluation.tokens_per_s_per_gpu
    assert [one.gain for one in found.found] == sorted((one.gain for one in found.found), reverse=True)
    alone = {(part.kind, part.side): one.gain for one in found.found for part in one.parts if len(one.parts) == 1}
    for one in found.found:
        assert one.plan.proven
        assert violations(one.problem, one.plan.strategy) == []
        assert one.gain == pytest.approx(one.plan.evaluation.tokens_per_s_per_gpu / own - 1)
        assert one.gain >= 0.01
        if len(one.parts) == 2:
            singles = [alone.get((part.kind, part.side), 0.0) for part in one.parts]
            assert 1 + one.gain >= 1.01 * (1 + max(singles)) * (1 - 1e-12)
    best_one = found.found[0]
    assert search(resolve(best_one.problem.spec)).plans[0].evaluation.step_time_s == pytest.approx(
        best_one.plan.evaluation.step_time_s
    )
    assert asked.spec.training.global_batch_size in (509, 512)  # the spec itself stays as it is


# Nothing is missed, nothing is told in vain.


@pytest.mark.parametrize("objective", ["throughput", full("cost")])
@pytest.mark.parametrize("batch", [full(31), 33])
def test_the_best_of_each_kind_is_found(batch: int, objective: str) -> None:
    """Held against all alternatives solved to their end, without a bound that ends a search early."""
    asked = small(batch, objective=objective, cluster={"prices": 2.0})
    best = best_of(asked)
    found = advise(asked, best, seconds=300.0)
    changer, own = Changer(asked, Budget(300.0)), merit_of(asked, best)
    gains: dict[tuple[str, int], float] = {}
    for each in (each for alternatives in KINDS.values() for each in alternatives(asked)):
        other = changer.changed(each.changes)
        if other is not None and (plan := best_plan(other, changer.budget, 60.0)) is not None:
            place = each.kind, each.side
            gains[place] = max(gains.get(place, 0.0), merit_of(other, plan) / own)
    assert any(gain >= 1.01 for gain in gains.values())
    for place, gain in gains.items():
        told = one_change(found, *place)
        if gain < 1.01:
            assert told is None
        else:
            assert told is not None
            assert told.merit / own >= gain / 1.01 * (1 - 1e-12)


@pytest.mark.full
def test_a_gain_in_cost_is_what_is_saved() -> None:
    asked = small(33, objective="cost", cluster={"prices": 2.0})
    best = best_of(asked)
    found = advise(asked, best).found
    assert found
    for one in found:
        assert one.gain == pytest.approx(1 - merit_of(asked, best) / one.merit)


@pytest.mark.full
def test_the_fewest_devices_are_fewer_still_with_another_batch() -> None:
    spec = {**LLAMA_13B, "search": {"objective": "fewest_chips", "deadline": {"tokens": 1.0e11, "days": 15}}}
    asked = problem(spec)
    best = best_of(asked)
    found = advise(asked, best, seconds=300.0)
    assert found.found
    assert {kind for one in found.found for kind in one.kinds} <= {"batch", "stack", "memory margin", "sequence length"}
    assert not any(kind in found.settled for kind in ("devices", "launcher"))
    for one in found.found:
        assert one.gain == pytest.approx(1 - one.plan.strategy.devices / best.strategy.devices)
    assert batch_of(one_change(found, "batch", 1)) == 512  # not 520, which needs as many


def test_what_gains_nothing_is_no_advice() -> None:
    """Degrees by chip type are told however little they gain; as many devices as before are no gain."""
    spec = spec_of({"x": chip_spec(gb=60), "y": chip_spec(gb=60)}, gpus=8, node=2, batch=32, pin=SMALL)
    spec["cluster"] |= {"chips": {name: {"max": 4, "spec": chip_spec(gb=60)} for name in "xy"}, "idle": True}
    spec["search"] |= {"objective": "fewest_chips", "deadline": {"tokens": 1e9, "days": 30}}
    asked = problem(spec)
    kinds = [each.kind for each in KINDS["degrees"](asked)]
    assert kinds == ["degrees"]
    found = advised(asked)
    assert found.settled["degrees"] == 1
    assert one_change(found, "degrees") is None


@pytest.mark.full
def test_fewer_devices_that_miss_a_deadline_are_not_advised() -> None:
    plain = problem(LLAMA_13B)
    best, fewer = best_of(plain), one_change(of_example("13b")[2], "devices", -1)
    assert fewer is not None
    tokens = plain.batch * plain.sequence * 1000
    step = (best.evaluation.step_time_s + fewer.plan.evaluation.step_time_s) / 2  # between the two
    late = problem({**LLAMA_13B, "search": {"deadline": {"tokens": tokens, "days": step * 1000 / 86_400}}})
    found = advise(late, best)
    limit = deadline_step_s(late)
    assert limit is not None
    assert best.evaluation.step_time_s < limit < fewer.plan.evaluation.step_time_s
    assert one_change(found, "devices", -1) is None
    assert found.found


# What there is to try.


def of_kind(kind: str, asked: Problem) -> list[Alternative]:
    return list(KINDS[kind](asked))


def test_batches_are_near_and_few() -> None:
    found = of_kind("batch", problem(LLAMA_70B))
    batches = [each.changes["training", "global_batch_size"] for each in found]
    assert all(0 < abs(batch - 512) <= 0.03 * 512 for batch in batches)
    assert {504, 510} <= set(batches)
    for batch, each in zip(batches, found, strict=True):
        off = f"{100 * abs(batch / 512 - 1):.2g} %"
        assert each.note == f"a batch of {batch} is another training than 512 by {off}"
    assert [each.changes["training", "global_batch_size"] for each in of_kind("batch", small(33))] == [32, 34]


def test_pins_decide_which_batches_divide() -> None:
    pinned = {**LLAMA_13B, "search": {"pin": {"dp": 16, "mbs": 2}}, "cluster": {"num_gpus": 64, "chips": "a100"}}
    batches = {each.changes["training", "global_batch_size"] for each in of_kind("batch", problem(pinned))}
    assert batches == {512}


def test_devices_are_whole_nodes_and_the_round_number() -> None:
    asked = problem(LLAMA_70B)
    counts = [each.changes["cluster", "num_gpus"] for each in of_kind("devices", asked)]
    assert 256 in counts
    assert all(count % 8 == 0 and 0 < abs(count - 240) <= 24 for count in counts)
    limited = problem({**LLAMA_70B, "cluster": {"num_gpus": 240, "chips": {"h100": 240}}})
    more = [each for each in of_kind("devices", limited) if each.side > 0]
    assert all(each.changes["cluster", "chips", "h100", "max"] == each.changes["cluster", "num_gpus"] for each in more)
    assert all("chip limits raised" in each.text for each in more)
    assert Changer(limited, Budget(1.0)).changed(more[0].changes) is not None


def test_stacks_are_measured_on_the_chips() -> None:
    for chips, some in (("h100", "megatron-bridge"), ("ascend_910b", "mindformers")):
        asked = problem({**LLAMA_70B, "cluster": {"num_gpus": 240, "chips": chips}})
        found = of_kind("stack", asked)
        names = [each.changes["stack",] for each in found]
        assert some in names
        assert asked.stack.name not in names
        assert {load_stack(name).kernels for name in names} == {asked.supplies[0].chip.vendor}
        assert all(f"measured runs on {asked.supplies[0].chip.architecture}" in each.note for each in found)
    own_chip = problem(spec_of({"x": chip_spec()}))
    assert of_kind("stack", own_chip) == []


def test_a_stack_goes_with_the_launcher_that_is_named() -> None:
    asked = problem({**LLAMA_70B, "launcher": "megatron-bridge"})
    assert all(
        "megatron-bridge" in (each.changes["stack",], *load_stack(each.changes["stack",]).fitted_with)
        for each in of_kind("stack", asked)
    )


def test_launchers_bring_their_stack() -> None:
    assert of_kind("launcher", problem(LLAMA_70B)) == []  # no launcher is asked for
    asked = problem({**LLAMA_70B, "launcher": "megatron-lm"})
    found = {each.changes["launcher",]: each for each in of_kind("launcher", asked)}
    assert "megatron-lm" not in found
    assert found["megatron-bridge"].changes["stack",] == "megatron-bridge"
    assert ("stack",) not in found["megatron-core-0.13"].changes
    assert all(load_launcher(name).stack is not None for name in found)
    assert "mindspeed-llm" not in found  # its stack is for other chips


def test_margins_shrink_and_say_what_that_risks() -> None:
    found = of_kind("memory margin", small(cluster={"memory_margin": 0.1}))
    assert [each.changes["cluster", "memory_margin"] for each in found] == [0.05, 0.0]
    assert all("memory runs out" in each.note for each in found)
    assert of_kind("memory margin", small(cluster={"memory_margin": 0.0})) == []


@pytest.mark.full
def test_a_smaller_margin_helps_where_memory_is_what_is_short() -> None:
    spec = {**LLAMA_13B, "cluster": {"num_gpus": 8, "chips": "a100", "memory_margin": 0.4}}
    spec["training"] = {"global_batch_size": 64, "sequence_length": 4096}
    found = advised(problem(spec))
    margin = one_change(found, "memory margin", -1)
    assert margin is not None
    assert margin.problem.memory_margin in (0.2, 0.0)


def test_shorter_sequences_have_as_many_tokens() -> None:
    (found,) = of_kind("sequence length", problem(LLAMA_13B))
    assert found.changes == {("training", "sequence_length"): 2048, ("training", "global_batch_size"): 1018}
    assert "another training" in found.note
    short = {**LLAMA_13B, "training": {"global_batch_size": 509, "sequence_length": 512}}
    assert of_kind("sequence length", problem(short)) == []


@pytest.mark.parametrize("name", ["13b", full("70b")])
def test_no_pair_changes_one_thing_twice(name: str) -> None:
    found = of_example(name)[2].found
    for one in found:
        paths = [path for part in one.parts for path in part.changes]
        assert len(paths) == len(set(paths))
        assert "sequence length" not in one.kinds or len(one.parts) == 1


# Too little time, and Ctrl-C.


def test_without_time_all_is_left() -> None:
    asked = small()
    found = advise(asked, best_of(asked), seconds=0.0)
    assert found.found == ()
    assert sum(found.left.values()) == sum(len(of_kind(kind, asked)) for kind in KINDS)
    assert not found.interrupted


def test_slow_specs_get_more_time() -> None:
    assert seconds_for(0.1) == 20.0
    assert 20.0 < seconds_for(10.0) < seconds_for(1000.0) == 60.0


@pytest.mark.full
def test_progress_is_told_and_comes_to_an_end() -> None:
    told: list[tuple[int, int]] = []
    asked = small()
    found = advise(asked, best_of(asked), lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert told[-1] == (sum(found.settled.values()), sum(found.settled.values()))


@pytest.mark.full
def test_an_interruption_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small()
    best, whole = best_of(asked), advised(asked)
    solved: list[Problem] = []

    def interrupted(problem: Problem, *given: Any) -> Plan | None:
        if len(solved) == 3:
            raise KeyboardInterrupt
        solved.append(problem)
        return best_plan(problem, *given)

    monkeypatch.setattr(advice, "best_plan", interrupted)
    found = advise(asked, best)
    assert found.interrupted
    assert sum(found.settled.values()) == 3
    assert sum(found.left.values()) + 3 == sum(n for kind, n in whole.settled.items() if kind != PAIRS)
    assert found.found
    assert all(one.gain >= 0.01 and len(one.parts) == 1 for one in found.found)


def test_after_an_interruption_nothing_more_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small(pin={**SMALL, "tp": 1})

    def interrupted(*_: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(Changer, "remedy", interrupted)
    found = explain_spec(asked)
    assert found.prices is not None
    assert (found.prices.found, found.prices.settled, found.prices.interrupted) == ((), False, True)
    assert found.advice == advice.INTERRUPTED


def test_an_interrupted_search_of_the_spec_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(problem: Problem, *_: object) -> Result:
        whole = search(problem)
        return replace(whole, proof=replace(whole.proof, stop="interrupted"))

    monkeypatch.setattr(account, "search", cut_short)
    found = explain_spec(small())
    assert found.result.plans
    assert found.advice == advice.INTERRUPTED
