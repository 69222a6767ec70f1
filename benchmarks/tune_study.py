"""One simulated cluster of the study: its truth, the trials of a policy on it, and how good the belief then is."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from math import log
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.tune_policies import POLICIES, TASKS, TRIALS, first_search, problem_of, random_plans, with_search
from cpsolver.doors.tune.logs import default_skip
from cpsolver.doors.tune.trial import Proposal, Trial
from cpsolver.evidence.intervals import WITHIN_80
from cpsolver.evidence.posterior.misfit import load_spread
from cpsolver.evidence.posterior.posterior import learn
from cpsolver.evidence.posterior.predictions import Observation, PlacedPlan
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import PUBLISHED_FIT, SPREAD, UNCERTAIN
from cpsolver.search.search import search
from examples.simulated_cluster import SimulatedCluster, Truth, hidden_truth

NOISE, FAILURES, ITERATIONS = 0.02, 0.05, 10
LEARNT = 5
"""Trials after which the belief is held against the truth."""
DEEP = 40
"""With misfit no search finds the fastest plan: that many of the best without it are looked at."""
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A cluster of the study. `misfit`: its step times also have errors that no constant explains."""

    seed: int
    misfit: bool

    @property
    def task(self) -> str:
        """What is trained on it."""
        return list(TASKS)[self.seed % len(TASKS)]


def truth_of(case: Case) -> Truth:
    """Constants as the prior has them, and a level of misfit as spread.yaml says how many clusters have it."""
    spread, level = load_spread(), 0.0
    if case.misfit:
        draw = Random(f"level {case.seed}")
        level = draw.choices(list(spread.levels), weights=list(spread.levels.values()))[0]
    return hidden_truth(problem_of(case.task), case.seed, spread.scale, level)


def best_s(case: Case, truth: Truth) -> float:
    """The true step time of the fastest plan: proven without misfit, else of the best few without it."""
    result = search(with_search(truth.problem, top=DEEP if case.misfit else 1))
    return min(truth.step_time_s(plan.strategy) for plan in result.plans)


def run_case(case: Case, policies: tuple[str, ...], best: float | None = None) -> list[dict[str, Any]]:
    """The records of these policies on a cluster; `best` where `best_s` is known."""
    truth = truth_of(case)
    best = best_s(case, truth) if best is None else best
    return [_record(case, truth, best, policy) for policy in policies]


def inputs(task: str) -> str:
    """A short name for the task's spec and the files that truths are drawn from: with others, records are of others."""
    files = (UNCERTAIN, SPREAD, PUBLISHED_FIT)
    spec = repr(TASKS.get(task)).encode()
    return sha256(b"".join([spec, *(path.read_bytes() for path in files)])).hexdigest()[:12]


def _record(case: Case, truth: Truth, best: float, policy: str) -> dict[str, Any]:
    started = time.process_time()
    trials, settled, stopped = run_trials(case, truth, policy)
    ran = [(t.outcome, t.step_time_s, _true_s(truth, t), _true_s(truth, settled[at])) for at, t in enumerate(trials)]
    seconds = time.process_time() - started
    record = {
        "inputs": inputs(case.task),
        "seed": case.seed,
        "misfit": case.misfit,
        "task": case.task,
        "policy": policy,
        "best_s": best,
    }
    learnt = coverage(case, truth, trials[:LEARNT]) if policy == "thompson" else None
    return {**record, "trials": ran, "stopped": stopped, "cpu_s": round(seconds, 2), "coverage": learnt}


def run_trials(case: Case, truth: Truth, policy: str) -> tuple[list[Trial], list[Trial | None], str | None]:
    """What the policy tried, what it would settle for after each trial, and why it stopped early, if it did."""
    cluster = SimulatedCluster(truth, case.seed, NOISE, FAILURES)
    chooser, trials, settled = POLICIES[policy](case.task, case.seed), list[Trial](), list[Trial | None]()
    for number in range(1, TRIALS + 1):
        proposal = chooser.next(trials)
        if not isinstance(proposal, Proposal):
            return trials, settled, proposal.reason
        trials.append(_trial(cluster, proposal, number))
        settled.append(chooser.best(trials))
    return trials, settled, None


def _true_s(truth: Truth, trial: Trial | None) -> float | None:
    return truth.step_time_s(trial.strategy) if trial is not None and trial.measured else None


def _trial(cluster: SimulatedCluster, proposal: Proposal, number: int) -> Trial:
    run = cluster.run(proposal.strategy, number, ITERATIONS)
    trial = Trial(
        number=number,
        strategy=proposal.strategy,
        outcome=run.fate,
        step_time_s=None,
        peak_memory_gib=None,
        memory_kind=None,
        seconds=None,
        note="",
        directory=Path(),
        why=proposal.why,
        predicted_s=proposal.predicted_s,
        low_s=proposal.low_s,
        high_s=proposal.high_s,
    )
    if run.fate != "ok":
        return trial
    seconds, bytes_held = run.step_time_s(default_skip()), max(stage.allocated for stage in run.stages)
    return replace(trial, step_time_s=seconds, peak_memory_gib=bytes_held / GIB, memory_kind="allocated")


def seen_of(problem: Problem, trials: list[Trial]) -> list[Observation]:
    """What the trials say: those that were measured, and those that ran out of memory."""
    found = []
    for trial in trials:
        place, name = PlacedPlan(problem, trial.strategy), str(trial.number)
        if trial.outcome == "oom":
            found.append(Observation(name, place, out_of_memory=True))
        elif trial.measured:
            held = None if trial.peak_memory_gib is None else trial.peak_memory_gib * GIB
            found.append(Observation(name, place, trial.step_time_s, held, trial.memory_kind))
    return found


def coverage(case: Case, truth: Truth, trials: list[Trial]) -> dict[str, Any]:
    """How often 80 % intervals hold the truth: of constants, and of step times of plans that were not tried."""
    problem = problem_of(case.task)
    posterior = learn(seen_of(problem, trials), [problem])
    true = dict(zip((each.key for each in truth.constants), truth.positions, strict=True))
    at = np.array([true[each.key] for each in posterior.constants])
    spreads = np.sqrt(np.diag(posterior.covariance))
    prior = np.array([1.0 if each.kind == "memory" else load_spread().scale for each in posterior.constants])
    inside = np.abs(at - posterior.mean) <= WITHIN_80 * spreads
    told = spreads < 0.9 * prior
    plans = untried(case, trials)
    mean, covariance = posterior.step_times([PlacedPlan(problem, plan) for plan in plans])
    before = learn([], [problem]).step_times([PlacedPlan(problem, plan) for plan in plans])
    logs = np.array([log(truth.step_time_s(plan)) for plan in plans])
    return {
        "constants": [int(inside.sum()), len(inside)],
        "told": [int((inside & told).sum()), int(told.sum())],
        "times": _held(logs, mean, covariance),
        "times_before": _held(logs, *before),
        "error": float(np.median(np.abs(logs - mean))),
        "error_before": float(np.median(np.abs(logs - before[0]))),
    }


def _held(logs: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> list[float]:
    """Plans inside their interval, plans, and the median width of the intervals, largest over smallest less 1."""
    wide = WITHIN_80 * np.sqrt(np.diag(covariance))
    return [int((np.abs(logs - mean) <= wide).sum()), len(logs), float(np.median(np.exp(2 * wide) - 1))]


def untried(case: Case, trials: list[Trial]) -> list[Strategy]:
    """Five plans believed fast before any trial, and five drawn from all that fit; none of those tried."""
    tried = {trial.strategy for trial in trials}
    fast = (plan.strategy for plan in first_search(case.task).plans)
    drawn = random_plans(case.task, 10_000 + case.seed)
    chosen = [list(islice((plan for plan in plans if plan not in tried), 5)) for plans in (fast, drawn)]
    return list(dict.fromkeys(chosen[0] + chosen[1]))
