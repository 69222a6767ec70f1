"""Thompson sampling: what is proposed, what is not, when it stops, and what it says of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from cpsolver.doors.tune.candidates import CandidatePlans, chance_of_running_out, facts
from cpsolver.doors.tune.choosers import ChooserSettings
from cpsolver.doors.tune.thompson import ThompsonChooser
from cpsolver.doors.tune.trial import Proposal, Stop, Trial, best_trial
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.meters import memory_bytes
from cpsolver.evidence.posterior.constants import Values
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from tests.support.believed import Menu, lean, menu, trial
from tests.support.checkout import ROOT

EAGER = ChooserSettings(chance=0.0)
"""Never stops while a plan is left."""


def chooser(
    problem: Problem | None = None, settings: ChooserSettings = EAGER, solve: Menu | None = None
) -> ThompsonChooser:
    return ThompsonChooser(problem or lean(), settings, solve or Menu())


def proposed(trials: Sequence[Trial], by: ThompsonChooser | None = None) -> Proposal:
    found = (by or chooser()).next(trials)
    assert isinstance(found, Proposal), found
    return found


def ranked(problem: Problem) -> list[Strategy]:
    return [plan.strategy for plan in Menu()(problem).plans]


def ranked_all() -> list[Strategy]:
    return sorted(menu(), key=seconds)


def seconds(plan: Strategy, problem: Problem | None = None) -> float:
    return evaluate(problem or lean(), plan).step_time_s


def measured(*plans: Strategy, problem: Problem | None = None) -> list[Trial]:
    """Trials on a cluster that is just as the problem says."""
    return [trial(at, plan, seconds(plan, problem)) for at, plan in enumerate(plans, 1)]


# What is proposed


@pytest.mark.full
def test_the_first_trial_is_the_best_plan_of_the_plain_search() -> None:
    found = proposed([])
    assert found.strategy == ranked(lean())[0]
    assert found.predicted_s == pytest.approx(seconds(found.strategy))
    assert found.low_s < found.predicted_s < found.high_s


@pytest.mark.full
def test_a_search_is_asked_for_several_plans_and_once_for_the_same_trials() -> None:
    solve = Menu()
    by = chooser(solve=solve)
    first = by.next([])
    assert by.next([]) == first
    assert [problem.spec.search.top for problem in solve.asked] == [facts()["plans_a_search"]]
    by.next(measured(menu()[0]))
    assert len(solve.asked) == 2


def _speed(problem: Problem) -> float:
    return problem.supplies[0].chip.efficiency["network"].value


@pytest.mark.full
def test_before_anything_is_measured_the_search_is_at_the_mean_and_then_at_a_draw() -> None:
    solve, crash = Menu(), trial(1, menu()[-1], outcome="failed")
    by, later = chooser(solve=solve), [crash, trial(2, menu()[0], seconds(menu()[0]))]
    for trials in ([], [crash], later):
        by.next(trials)
    speeds = [_speed(problem) for problem in solve.asked]
    assert speeds[:2] == [_speed(lean())] * 2
    assert speeds[2] not in (_speed(lean()), _speed(by.posterior(later).problem(lean())))


@pytest.mark.full
def test_the_same_trials_and_seed_give_the_same_proposal_to_whoever_asks() -> None:
    trials = measured(*ranked(lean())[-2:])
    by = chooser()
    assert proposed(trials) == proposed(trials, by) == proposed(trials, by)


@pytest.mark.full
def test_another_seed_draws_otherwise() -> None:
    drawn = []
    for seed in (1, 2):
        solve = Menu()
        chooser(settings=replace(EAGER, seed=seed), solve=solve).next(measured(menu()[0]))
        drawn.append(_speed(solve.asked[0]))
    assert drawn[0] != drawn[1]


@pytest.mark.full
def test_no_plan_that_was_measured_runs_ran_out_or_timed_out_is_proposed() -> None:
    by, trials, outcomes = chooser(), list[Trial](), ["ok", "oom", "timeout", "running"]
    while isinstance(found := by.next(trials), Proposal):
        assert found.strategy not in {each.strategy for each in trials}
        outcome = outcomes[len(trials) % 4]
        took = seconds(found.strategy) if outcome == "ok" else None
        trials.append(trial(len(trials) + 1, found, took, outcome=outcome))
    assert len(trials) > 6
    assert found == Stop("every plan that searches under what is believed found was tried")


@pytest.mark.full
def test_an_interrupted_trial_comes_again_and_one_with_a_measurement_does_not() -> None:
    first = proposed([])
    assert proposed([trial(1, first, outcome="interrupted")]).strategy == first.strategy
    assert proposed([trial(1, first, first.predicted_s, outcome="interrupted")]).strategy != first.strategy


@pytest.mark.full
def test_a_plan_that_failed_is_tried_again_and_not_a_third_time() -> None:
    assert facts()["tries"] == 2
    first = proposed([])
    once = [trial(1, first, outcome="failed")]
    assert proposed(once).strategy == first.strategy
    assert proposed([*once, trial(2, first, outcome="failed")]).strategy != first.strategy


def test_a_split_that_promises_next_to_nothing_is_no_new_trial() -> None:
    one = menu()[8]
    alike = replace(one, groups=(replace(one.groups[0], layers=(3, 1)),))
    assert one.pp == 2
    assert one.key() == alike.key()
    by = chooser(solve=Menu([one, alike]))
    assert isinstance(by.next(measured(one)), Stop)
    assert proposed(measured(alike), chooser(solve=Menu([one, alike]))).strategy == one


# Learning


FEW = [plan for plan in menu() if (plan.tp, plan.pp) != (1, 4)]
"""Without the plan that is best wherever the network stands."""


def _tried(network: float, count: int) -> list[Trial]:
    """Trials proposed on a cluster with a network so many times as fast as published."""
    true = lean().with_constants(Values({("x", "network"): network}, "a test"))
    by, own = chooser(solve=Menu(FEW)), list[Trial]()
    for number in range(1, count + 1):
        plan = proposed(own, by)
        own.append(trial(number, plan, seconds(plan.strategy, true)))
    return own


def _use_of_the_network(plan: Strategy) -> float:
    """-dlog(step time) by dlog(network speed)."""
    faster = lean().with_constants(Values({("x", "network"): 1.01}, "a test"))
    return float(-np.log(seconds(plan, faster) / seconds(plan)) / np.log(1.01))


@pytest.mark.full
def test_a_network_seen_to_be_slow_is_avoided() -> None:
    first, second = _tried(0.4, 2)
    assert _use_of_the_network(second.strategy) < _use_of_the_network(first.strategy) - 0.1


@pytest.mark.full
def test_it_finds_in_two_trials_what_trying_in_order_does_not() -> None:
    true = lean().with_constants(Values({("x", "network"): 0.4}, "a test"))
    best = min(seconds(plan, true) for plan in FEW)
    assert min(each.step_time_s or 0.0 for each in _tried(0.4, 2)) == best
    in_order = [plan.strategy for plan in Menu(FEW)(lean()).plans[:2]]
    assert min(seconds(plan, true) for plan in in_order) > 1.2 * best


@pytest.mark.full
def test_what_was_measured_moves_what_is_predicted() -> None:
    first, second = _tried(0.4, 2)
    slow = proposed([first], chooser(solve=Menu(FEW)))
    assert slow.strategy == second.strategy
    assert seconds(slow.strategy) < slow.predicted_s < slow.high_s
    assert slow.low_s < (second.step_time_s or 0.0) < slow.high_s


def _believed_need(by: ThompsonChooser, plan: Strategy, trials: Sequence[Trial] = ()) -> float:
    """log(memory needed / memory there), as believed after the trials."""
    return by.posterior(trials).fill(by._candidates.placed(plan))[0]


@pytest.mark.parametrize(("share", "suspected"), [(0.99, True), (0.5, False)])
def test_a_crash_of_a_plan_that_hardly_fits_counts_as_out_of_memory(share: float, suspected: bool) -> None:
    plan = menu()[0]
    by = chooser(lean(40 * exp(_believed_need(chooser(), plan)) / share, 0.0))
    place, crash = by._candidates.placed(plan), trial(1, plan, outcome="failed")
    assert (chance_of_running_out(by.posterior([]), place) >= facts()["suspect"]) == suspected
    assert [each.out_of_memory for each in by.posterior([crash]).observations] == [True] * suspected
    assert (_believed_need(by, plan, [crash]) > _believed_need(by, plan)) == suspected


def test_out_of_memory_raises_the_need_of_other_plans_too() -> None:
    by = chooser(lean(2, 0.0))
    out = trial(1, menu()[1], outcome="oom")
    for plan in menu()[:4]:
        assert _believed_need(by, plan, [out]) > _believed_need(by, plan)


# Memory's margin


def _margins(margin: float | None, readings: bool) -> tuple[float, float]:
    """Of the first search and of one after trials, with or without readings."""
    solve = Menu()
    by, own = chooser(lean(40, margin), solve=solve), []
    for number, plan in enumerate(menu()[:3], 1):
        peak = memory_bytes(lean(), plan, "allocated") / 2**30 if readings else None
        own.append(trial(number, plan, seconds(plan), peak_memory_gib=peak, memory_kind="allocated"))
    by.next([])
    by.next(own)
    first, last = solve.asked
    return first.memory_margin, last.memory_margin


@pytest.mark.full
def test_a_margin_that_the_spec_names_is_kept() -> None:
    assert _margins(0.3, readings=True) == (0.3, 0.3)


@pytest.mark.full
def test_without_one_it_shrinks_once_memory_was_read_and_never_grows() -> None:
    before, after = _margins(None, readings=True)
    assert before == lean(40, None).stack.memory_margin
    assert after < before
    blind = _margins(None, readings=False)
    assert blind[0] >= blind[1] >= after


def test_candidates_are_those_believed_to_fit_and_what_was_measured_stays() -> None:
    tight = lean(0.4, 0.0)
    by = chooser(tight, solve=Menu(menu()))
    for plan in menu():
        by._candidates.placed(plan)
    posterior = by.posterior([])
    kept = by._candidates.legal(posterior, [menu()[0]])
    assert kept[0] == menu()[0]
    assert kept[1:] == [plan for plan in menu()[1:] if not violations(posterior.problem(tight), plan)]
    assert 1 < len(kept) < len(menu())


def test_no_more_candidates_are_kept_than_asked_for_and_they_are_the_fastest() -> None:
    few = CandidatePlans(lean(), 8, 3, Menu())
    for plan in menu():
        few.placed(plan)
    slow, *_, least = reversed(ranked_all())
    kept = few.legal(chooser().posterior([]), [slow])
    assert (kept[0], kept[1], len(kept)) == (slow, least, 4)
    assert few.legal(chooser().posterior([]), []) == [least, *kept[2:]]


def test_where_nothing_fits_it_says_so() -> None:
    found = chooser(lean(0.1)).next([])
    assert isinstance(found, Stop)
    assert "no plan fits" in found.reason
    assert chooser(lean(0.1)).estimates([]) == ()


# Stopping


@pytest.mark.full
def test_it_stops_when_a_gain_is_unlikely_and_goes_on_while_it_is_likely() -> None:
    trials = measured(*ranked(lean())[:5])
    assert isinstance(chooser(settings=ChooserSettings(gain=0.03, chance=0.01)).next(measured(menu()[-1])), Proposal)
    found = chooser(settings=ChooserSettings(gain=0.5, chance=0.1)).next(trials)
    assert isinstance(found, Stop)
    assert "more than 50.0% faster is 0.0%, below 10.0%" in found.reason
    assert isinstance(chooser(settings=ChooserSettings(gain=0.5, chance=0.0)).next(trials), Proposal)


def test_ctrl_c_in_a_search_ends_the_tune_and_starts_no_other_search() -> None:
    solve = Menu(stop="interrupted")
    by = chooser(solve=solve)
    with pytest.raises(KeyboardInterrupt):
        by.next([])
    assert by.estimates([]) == ()
    assert by.best([]) is None
    assert len(solve.asked) == 1


# What it says


def test_of_two_that_measured_alike_the_one_believed_faster_is_best() -> None:
    """The second measurement is one per cent less, of a plan that should take far longer."""
    fast, *_, slow = ranked(lean())
    base = seconds(fast)
    assert seconds(slow) > 1.1 * base
    near = [trial(1, fast, base), trial(2, slow, 0.999 * base)]
    lucky = best_trial(near)
    assert lucky is not None
    assert lucky.strategy == slow
    found = chooser().best(near)
    assert found is not None
    assert found.strategy == fast
    clear = chooser().best([trial(1, fast, base), trial(2, slow, 0.7 * base)])
    assert clear is not None
    assert clear.strategy == slow
    assert chooser().best([trial(1, fast, outcome="oom")]) is None


@pytest.mark.full
def test_what_is_believed_is_in_order_and_its_chances_are_one() -> None:
    by, trials = chooser(), measured(*menu()[:3])
    found = by.estimates(trials)
    times = [each.predicted_s for each in found]
    assert times == sorted(times)
    assert sum(each.chance_best or 0.0 for each in found) == pytest.approx(1.0)
    assert all(each.low_s < each.predicted_s < each.high_s for each in found)
    assert {each.strategy for each in found} >= set(menu()[:3])
    tried = {each.strategy in menu()[:3]: each.high_s / each.low_s for each in reversed(found)}
    assert tried[True] < tried[False]


@pytest.mark.full
def test_a_plan_that_ran_out_of_memory_is_not_believed_in() -> None:
    first = proposed([])
    assert first.strategy not in {each.strategy for each in chooser().estimates([trial(1, first, outcome="oom")])}


def test_the_values_that_are_not_in_code_are_all_there_and_in_range() -> None:
    shares = ("may_run_out", "same_plan", "gain", "chance", "suspect")
    assert all(0.0 < facts()[name] < 1.0 for name in shares)
    counts = ("plans_a_search", "candidates", "redraws", "chance_draws", "tries")
    assert all(facts()[name] == int(facts()[name]) >= 1 for name in counts)
    assert set(facts()) == {*shares, *counts}


def test_the_document_says_what_is_in_the_files() -> None:
    text = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")
    told = " ".join(text.split("## How trials are chosen")[1].split("\n## ")[0].split())
    for words in (
        f"its {facts()['plans_a_search']} best plans",
        f"Where {facts()['redraws']} draws",
        f"a {facts()['may_run_out']:.0%} chance of running out",
        f"tried {facts()['tries']} times",
        f"a chance of {facts()['suspect']:.0%} or more",
        f"less than {facts()['same_plan']:.0%} over a measured plan",
        f"more than {facts()['gain']:.0%} faster",
        f"is below {facts()['chance']:.0%}",
    ):
        assert words.replace("%", " %") in told, words
