"""A plan that was tried, a plan that is proposed, and who proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from cpsolver.plans.strategy import Strategy

Outcome = Literal["running", "ok", "oom", "failed", "timeout", "interrupted"]
"""How a trial ended: well; out of device memory; otherwise on its own; at its time limit; by the user or a reboot."""

TrialMemory = Literal["allocated", "reserved", "device"]
"""allocated, reserved: the framework's own counts; device: as the driver shows it."""
TRIAL_MEMORIES: tuple[str, ...] = get_args(TrialMemory)


@dataclass(frozen=True)
class Trial:
    """One run of the user's command. Times in seconds, memory in GiB; None: not known.

    `step_time_s` is the median of `iterations` measured iterations, of which the middle half (or all, of fewer than
    four) lie within `spread`, a share of the median. `predicted_s`, `low_s`, `high_s`: the prediction before the trial
    and its 80 % interval. `seconds`: what the whole run took. `asked`: its number was given out by --ask, and who
    asked runs it. `command`: what was or is to be run, in words. `candidates`: those of its proposal.
    """

    number: int
    strategy: Strategy
    outcome: Outcome
    step_time_s: float | None
    peak_memory_gib: float | None
    memory_kind: TrialMemory | None
    seconds: float | None
    note: str
    directory: Path
    why: str
    predicted_s: float
    low_s: float
    high_s: float
    iterations: int = 0
    spread: float | None = None
    asked: bool = False
    command: tuple[str, ...] = ()
    candidates: tuple[Strategy, ...] = ()

    @property
    def measured(self) -> bool:
        """Its step time counts: the run ended well, or was ended from outside after enough iterations."""
        return self.step_time_s is not None and self.outcome in ("ok", "timeout", "interrupted")

    @property
    def settled(self) -> bool:
        """There is nothing to gain from trying the plan again: measured, out of memory, or failed by itself."""
        return self.measured or self.outcome in ("oom", "failed", "timeout")


@dataclass(frozen=True)
class Proposal:
    """A plan worth trying, why, and its step time in seconds before the trial, with the 80 % interval.

    `candidates`: all that the chooser found for it; they are kept with the trial, for a resumed tuning to choose from.
    """

    strategy: Strategy
    why: str
    predicted_s: float
    low_s: float
    high_s: float
    candidates: tuple[Strategy, ...] = ()


@dataclass(frozen=True)
class Stop:
    """There is nothing left worth trying."""

    reason: str


@dataclass(frozen=True)
class PlanEstimate:
    """A plan's step time as estimated after all trials: seconds with an 80 % interval.

    `chance_best`: that it is the fastest of all, None where the chooser does not say.
    """

    strategy: Strategy
    predicted_s: float
    low_s: float
    high_s: float
    chance_best: float | None = None


class Chooser(Protocol):
    """Decides which plan is tried next. It is given every trial, in order, those that still run included."""

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop:
        """The next plan, other than those that run; one whose trial was interrupted unmeasured may come again."""
        ...

    def estimates(self, trials: Sequence[Trial]) -> Sequence[PlanEstimate]:
        """Estimates of plans, tried and not, the fastest first."""
        ...

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The measured trial of the plan that is taken to be the fastest of those measured."""
        ...


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The measured trial with the least step time; the first of equals."""
    measured = [trial for trial in trials if trial.measured]
    return min(measured, key=lambda trial: (trial.step_time_s or 0.0, trial.number), default=None)
