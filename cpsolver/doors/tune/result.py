"""The result of a tuning, and as one document for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpsolver.doors.report.document import problem_document, versions
from cpsolver.doors.tune.display import command_words
from cpsolver.doors.tune.jobs import PLAN
from cpsolver.doors.tune.trial import PlanEstimate, Trial
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict


@dataclass(frozen=True)
class TuningResult:
    """Every trial of the state, what is believed of plans, why it stopped, how to go on, and the best measured plan."""

    problem: Problem
    trials: tuple[Trial, ...]
    estimates: tuple[PlanEstimate, ...]
    reason: str
    folder: Path
    resume: str
    best: Trial | None

    @property
    def untried(self) -> tuple[PlanEstimate, ...]:
        """What is believed of the plans that have no measurement."""
        measured = {trial.strategy for trial in self.trials if trial.settled}
        return tuple(plan for plan in self.estimates if plan.strategy not in measured)


def trial_document(trial: Trial) -> dict[str, Any]:
    """A trial in plain values; times in seconds, memory in GiB."""
    return {
        "number": trial.number,
        "outcome": trial.outcome,
        "strategy": strategy_to_dict(trial.strategy),
        "why": trial.why,
        "predicted_s": trial.predicted_s,
        "interval_80_s": [trial.low_s, trial.high_s],
        "step_time_s": trial.step_time_s,
        "iterations": trial.iterations,
        "spread": trial.spread,
        "peak_memory_gib": trial.peak_memory_gib,
        "memory_kind": trial.memory_kind,
        "seconds": trial.seconds,
        "note": trial.note,
        "asked": trial.asked,
        "directory": str(trial.directory),
        "plan": str(trial.directory / PLAN),
        "command": list(trial.command),
        "command_line": command_words(trial.command),
    }


def document(answer: TuningResult) -> dict[str, Any]:
    """What `tune --json` prints."""
    best = answer.best
    return {
        "status": "measured" if best else "nothing_measured",
        "problem": problem_document(answer.problem),
        "best": best and trial_document(best),
        "trials": [trial_document(trial) for trial in answer.trials],
        "counts": dict(Counter(trial.outcome for trial in answer.trials)),
        "believed": [_estimate_document(plan) for plan in answer.estimates],
        "stopped": answer.reason,
        "state": str(answer.folder),
        "resume": answer.resume,
        "versions": versions(),
    }


def asked_document(trials: Sequence[Trial], reason: str | None, folder: Path) -> dict[str, Any]:
    """What `tune --ask --json` prints."""
    return {
        "status": "asked" if trials else "nothing_left",
        "trials": [trial_document(trial) for trial in trials],
        "stopped": reason,
        "state": str(folder),
        "versions": versions(),
    }


def _estimate_document(plan: PlanEstimate) -> dict[str, Any]:
    return {
        "strategy": strategy_to_dict(plan.strategy),
        "predicted_s": plan.predicted_s,
        "interval_80_s": [plan.low_s, plan.high_s],
        "chance_best": plan.chance_best,
    }
