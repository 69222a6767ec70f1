"""Thompson sampling with the exact solver in the loop: draw constants, solve, try the best plan, learn, repeat.

The first trial is the best plan before anything is measured. Every later one is the best candidate of a draw from
the posterior of the constants, with as much misfit as is expected. Candidates are the plans that exact
searches found, with constants as published or, once something is measured, drawn, in this round and those before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from cpsolver.doors.tune.candidates import CandidatePlans, chance_of_running_out, facts
from cpsolver.doors.tune.choosers import ChooserSettings, watched_search
from cpsolver.doors.tune.trial import PlanEstimate, Proposal, Stop, Trial
from cpsolver.evidence.intervals import WITHIN_80
from cpsolver.evidence.posterior.constants import uncertain_constants
from cpsolver.evidence.posterior.misfit import load_spread, locations
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.predictions import Floats, Lineariser, Observation
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result
from hw_specs.units import gib_to_bytes


def thompson(problem: Problem, settings: ChooserSettings) -> ThompsonChooser:
    """The chooser as the command line makes it."""
    return ThompsonChooser(problem, settings)


@dataclass(frozen=True)
class _State:
    """Candidates, tried ones first. `slope` (plans, constants) and, at each level of misfit, the moments of
    log(true step time).
    """

    posterior: Posterior
    plans: list[Strategy]
    tried: list[bool]
    slope: Floats
    moments: list[tuple[Floats, Floats]]


class ThompsonChooser:
    """A chooser that learns from trials; `solve` searches, by default with its progress on stderr.

    `candidates` replaces those of searches.
    """

    def __init__(
        self,
        problem: Problem,
        settings: ChooserSettings,
        solve: Callable[[Problem], Result] | None = None,
        candidates: CandidatePlans | None = None,
    ) -> None:
        self._problem, self._settings = problem, settings
        top = settings.top or max(int(facts()["plans_a_search"]), problem.spec.search.top)
        most = int(facts()["candidates"])
        self._candidates = candidates or CandidatePlans(problem, top, most, solve or watched_search)
        constants = [each for each in uncertain_constants([problem]) if each.kind != "memory"]
        self._lineariser = Lineariser(constants, at_origin=True)
        self._searched: dict[int, tuple[Strategy, ...]] = {}

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop:
        """The plan to try next, or that no other is likely enough to be better."""
        state = self._state(trials, searching=True)
        open_ = [at for at, tried in enumerate(state.tried) if not tried]
        if not open_:
            if not state.plans:
                return Stop(say("no plan fits, as far as is believed: `apss-cp solve` and `apss-cp explain` say why"))
            return Stop(say("every plan that searches under what is believed found was tried"))
        random = self._random(trials, 1)
        best = self._incumbent(state, trials)
        if best is None:
            mean, _ = state.posterior.times.mixed(state.moments)
            told = "the best plan left, before any trial is measured"
            return self._proposal(state, trials, min(open_, key=lambda at: float(mean[at])), told)
        gain, least = self._gain, self._chance
        chance = self._chance_of(state, best, open_, gain, random)
        if chance < least:
            told = say(
                "the chance that another plan is more than {gain:.1%} faster is {chance:.1%}, below {least:.1%}",
                gain=gain,
                chance=chance,
                least=least,
            )
            return Stop(told)
        at, told = self._draw(state, best, open_, random)
        return self._proposal(
            state, trials, at, f"{told}; a plan more than {gain:.1%} faster is left with chance {chance:.0%}"
        )

    def estimates(self, trials: Sequence[Trial]) -> Sequence[PlanEstimate]:
        """The candidates by what is believed of their true step times, with the chance of each to be the fastest."""
        state = self._state(trials, searching=False)
        if not state.plans:
            return ()
        mean, covariance = state.posterior.times.mixed(state.moments)
        draws = self._draws(state, int(facts()["chance_draws"]), self._random(trials, 2))
        wins = np.bincount(draws.argmin(axis=1), minlength=len(state.plans)) / len(draws)
        found = []
        for at in np.argsort(mean, kind="stable").tolist():
            off = WITHIN_80 * sqrt(covariance[at, at])
            low, high = exp(mean[at] - off), exp(mean[at] + off)
            found.append(PlanEstimate(state.plans[at], exp(mean[at]), low, high, float(wins[at])))
        return found

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The measured trial whose plan is believed fastest, of those within noise of the least step time.

        Of two that measured alike, one may have been lucky.
        """
        measured = [trial for trial in trials if trial.measured]
        if not measured:
            return None
        least, noise = min(trial.step_time_s or 0.0 for trial in measured), load_spread().noise
        measured = [trial for trial in measured if (trial.step_time_s or 0.0) <= least * exp(sqrt(2) * noise)]
        mean, _ = self.posterior(trials).step_times([self._candidates.placed(trial.strategy) for trial in measured])
        return measured[int(mean.argmin())]

    def posterior(self, trials: Sequence[Trial]) -> Posterior:
        """What the trials say of the constants."""
        observations = [*self._settings.earlier, *self._observations(trials)]
        found = learn(observations, [self._problem], lineariser=self._lineariser)
        suspects = self._suspects(found, trials)
        return learn([*observations, *suspects], [self._problem], lineariser=self._lineariser) if suspects else found

    @property
    def _gain(self) -> float:
        return facts()["gain"] if self._settings.gain is None else self._settings.gain

    @property
    def _chance(self) -> float:
        return facts()["chance"] if self._settings.chance is None else self._settings.chance

    def _random(self, trials: Sequence[Trial], purpose: int) -> np.random.Generator:
        """The same after the same trials, so that a resumed tune goes on as it would have."""
        return np.random.default_rng([self._settings.seed, len(trials), purpose])

    def _observations(self, trials: Sequence[Trial]) -> list[Observation]:
        found = []
        for trial in trials:
            placed = self._candidates.placed(trial.strategy)
            if trial.outcome == "oom":
                found.append(Observation(f"trial {trial.number}", placed, out_of_memory=True))
            elif trial.measured:
                peak = None if trial.peak_memory_gib is None else gib_to_bytes(trial.peak_memory_gib)
                found.append(Observation(f"trial {trial.number}", placed, trial.step_time_s, peak, trial.memory_kind))
        return found

    def _suspects(self, posterior: Posterior, trials: Sequence[Trial]) -> list[Observation]:
        """Trials that failed without saying why, of plans that were not unlikely to run out of memory."""
        places = {trial.number: self._candidates.placed(trial.strategy) for trial in trials if _unexplained(trial)}
        return [
            Observation(f"trial {number}", placed, out_of_memory=True)
            for number, placed in places.items()
            if chance_of_running_out(posterior, placed) >= facts()["suspect"]
        ]

    def _state(self, trials: Sequence[Trial], searching: bool) -> _State:
        for trial in trials:
            self._candidates.keep(trial.candidates)
        posterior = self.posterior(trials)
        if searching or not (self._searched or any(trial.candidates for trial in trials)):
            self._search(posterior, trials)
        gone = self._gone(trials)
        measured = [trial.strategy for trial in trials if trial.measured or trial.outcome == "running"]
        known = list(dict.fromkeys([*measured, *(plan for plan in gone if plan not in measured)]))
        plans = [plan for plan in self._candidates.legal(posterior, known) if plan in measured or plan not in gone]
        places = [self._candidates.placed(plan) for plan in plans]
        linear, where = posterior.linear(places), locations(places)
        moments = [posterior.times.at_level(level, where, linear) for level in posterior.times.levels]
        return _State(posterior, plans, self._tried(plans, measured, linear.value), linear.slope, moments)

    def _search(self, posterior: Posterior, trials: Sequence[Trial]) -> None:
        """A search under a draw, at the mean before anything is measured; once for the same trials."""
        if len(trials) in self._searched:
            return
        self._searched[len(trials)] = ()  # also where Ctrl-C ends the search: the report starts no other
        measured = any(trial.measured for trial in trials)
        drawn = posterior.draw(self._random(trials, 0)) if measured else None
        self._searched[len(trials)] = tuple(self._candidates.search(posterior, drawn))

    @staticmethod
    def _gone(trials: Sequence[Trial]) -> set[Strategy]:
        """Plans not tried again: out of memory, too slow, refused by the target, or failed as often as is allowed."""
        refused = {trial.strategy for trial in trials if _refused(trial)}
        failures = Counter(trial.strategy for trial in trials if trial.outcome == "failed")
        often = {plan for plan, count in failures.items() if count >= facts()["tries"]}
        return (
            refused
            | often
            | {trial.strategy for trial in trials if trial.outcome in ("oom", "timeout") and not trial.measured}
        )

    @staticmethod
    def _tried(plans: Sequence[Strategy], measured: Sequence[Strategy], value: Floats) -> list[bool]:
        """Whether each plan, or one as good that differs in its split alone, was measured or runs."""
        best: dict[tuple[object, ...], float] = {}
        for plan, seconds in zip(plans, value.tolist(), strict=True):
            if plan in measured:
                best[plan.key()] = min(seconds, best.get(plan.key(), seconds))
        least = facts()["same_plan"]
        return [
            plan in measured or (plan.key() in best and seconds > best[plan.key()] - least)
            for plan, seconds in zip(plans, value.tolist(), strict=True)
        ]

    def _incumbent(self, state: _State, trials: Sequence[Trial]) -> int | None:
        best = self.best(trials)
        return None if best is None else state.plans.index(best.strategy)

    def _draws(self, state: _State, count: int, random: np.random.Generator, misfit: bool = True) -> Floats:
        """Draws of all candidates' log(true step time), shape (count, plans); `misfit`: drawn too, else as expected."""
        levels = state.posterior.times.levels
        shares = random.multinomial(count, [level.weight for level in levels])
        drawn = []
        for level, share, (mean, covariance) in zip(levels, shares.tolist(), state.moments, strict=True):
            spread = covariance if misfit else state.slope @ level.covariance @ state.slope.T
            drawn.append(random.multivariate_normal(mean, spread, size=share, method="eigh"))
        return np.asarray(random.permutation(np.concatenate(drawn)))

    def _chance_of(
        self, state: _State, best: int, open_: Sequence[int], gain: float, random: np.random.Generator
    ) -> float:
        draws = self._draws(state, int(facts()["chance_draws"]), random)
        return float((draws[:, open_].min(axis=1) < draws[:, best] + np.log1p(-gain)).mean())

    def _draw(self, state: _State, best: int, open_: Sequence[int], random: np.random.Generator) -> tuple[int, str]:
        """The best of a draw, of the first of several in which it is not one that was tried already."""
        draws = self._draws(state, int(facts()["redraws"]), random, misfit=False)
        for count, draw in enumerate(draws, 1):
            at = int(draw.argmin())
            if not state.tried[at]:
                return at, f"best of draw {count} of constants, after {_trials_known(state)}"
        many = self._draws(state, int(facts()["chance_draws"]), random)
        gains = np.maximum(0.0, many[:, [best]] - many[:, open_]).mean(axis=0)
        return open_[int(gains.argmax())], f"likeliest to be better, after {_trials_known(state)}"

    def _proposal(self, state: _State, trials: Sequence[Trial], at: int, why: str) -> Proposal:
        mean, covariance = state.posterior.times.mixed(state.moments)
        off = WITHIN_80 * sqrt(covariance[at, at] + state.posterior.times.spread.noise**2)
        seconds = exp(mean[at])
        found = self._searched.get(len(trials), ())
        return Proposal(state.plans[at], why, seconds, exp(mean[at] - off), exp(mean[at] + off), found)


def _refused(trial: Trial) -> bool:
    """No command was made of the plan: its target cannot run it."""
    return trial.outcome == "failed" and not trial.command and not trial.asked and bool(trial.note)


def _unexplained(trial: Trial) -> bool:
    """Its command ended badly, and neither its log nor the user says why, the host's memory included."""
    if trial.outcome != "failed" or trial.asked or re.search(r"oom.kill|Killed process|out-of-memory", trial.note):
        return False
    return not trial.note or trial.note.startswith(("exit code", "signal"))


def _trials_known(state: _State) -> str:
    count = len(state.posterior.observations)
    return f"{count:,} {'run' if count == 1 else 'runs'} to learn from"
