"""A tune that is resumed chooses as one that was never interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpsolver.doors.tune.choosers import ChooserSettings
from cpsolver.doors.tune.state import State
from cpsolver.doors.tune.thompson import ThompsonChooser
from cpsolver.doors.tune.trial import Proposal, Stop, Trial
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.constants import Values
from tests.support.believed import Menu, lean, menu, trial

FEW = ChooserSettings(top=3, chance=0.0)


def _run(fresh: bool) -> list[object]:
    """What is proposed on a cluster with half the network, by one chooser or by a new one for every trial."""
    truth = lean().with_constants(Values({("x", "network"): 0.5}, "a test"))
    kept, trials, found = ThompsonChooser(lean(), FEW, Menu()), list[Trial](), list[object]()
    for number in range(1, 7):
        by = ThompsonChooser(lean(), FEW, Menu()) if fresh else kept
        proposal = by.next(trials)
        if isinstance(proposal, Stop):
            return [*found, proposal]
        found.append(proposal)
        ended = trial(number, proposal, evaluate(truth, proposal.strategy).step_time_s)
        trials.append(replace(ended, candidates=proposal.candidates))
    return found


@pytest.mark.full
def test_a_new_chooser_goes_on_like_the_old_one() -> None:
    whole = _run(fresh=False)
    assert len(whole) > 2
    assert _run(fresh=True) == whole


def test_the_report_of_a_resumed_tune_searches_nothing() -> None:
    solve = Menu()
    first = ThompsonChooser(lean(), FEW, Menu()).next([])
    assert isinstance(first, Proposal)
    ended = replace(trial(1, first, 1.0), candidates=first.candidates)
    estimates = ThompsonChooser(lean(), FEW, solve).estimates([ended])
    assert {plan.strategy for plan in estimates} == set(first.candidates)
    assert solve.asked == []


def test_candidates_are_kept_with_the_trial(tmp_path: Path) -> None:
    proposal = Proposal(menu()[0], "a test", 1.0, 0.9, 1.1, menu()[:3])
    with State(tmp_path / "state") as state:
        state.begin(1, proposal, ("train",), False)
    with State(tmp_path / "state") as state:
        assert [each.candidates for each in state.trials()] == [menu()[:3]]
