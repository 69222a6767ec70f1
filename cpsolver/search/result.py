"""What a search returns: plans with their numbers, and the proof that nothing better was missed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.plans.strategy import Strategy

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""optimal: the K plans are proven; feasible: stopped early with plans; unknown: stopped early without one."""
StopReason = Literal["complete", "time_limit", "interrupted"]
Cell = tuple[int, int]
"""Where the map of a proof has a row: its tp and its pp."""
Verdict = Literal["confirmed", "contradicted", "unfinished", "not verified"]
"""unfinished: time ran out before all was looked at, and what was agrees; not verified: nothing was looked at."""


@dataclass(frozen=True)
class Plan:
    """One plan of the answer. `gap`: the most by which another plan could still be better, 0 when proven.

    With `search.diverse` that is another of its layout family, or one of a family without a plan. `added`: it is none
    of the K best, but the best under the stricter limits of a recommendation, and its gap is within these.
    """

    rank: int
    strategy: Strategy
    evaluation: Evaluation
    gap: float
    added: bool = False

    @property
    def proven(self) -> bool:
        """No plan outside the answer is better, and none of those ranked before it is out of order.

        Where plans are run event by event the first is so by that (`Proof.by_events`), the others by formula alone.
        """
        return self.gap == 0.0


@dataclass(frozen=True)
class DeviceCounts:
    """Where devices may idle: the numbers of devices, in whole nodes, each ended in exactly one of these ways.

    `cut` without a look at their rows: there is no layout, no plan can be good enough, or fewer devices will do.
    """

    considered: int
    cut: int
    searched: int
    open: int


@dataclass(frozen=True)
class MeshCounts:
    """Where chip types may have degrees of their own: how far the search over these went.

    `options`: rows and numbers of stages of the chip types; `combined`: combinations of them that were bounded one by
    one, `bounded` of these as plans, in their order; `solved` by CP-SAT; `open`: parts and plans left.
    """

    options: int
    combined: int
    bounded: int
    solved: int
    open: int


@dataclass(frozen=True)
class SizeCounts:
    """Where microbatches may differ in size: how far the search over these went, after the one with equal ones.

    `rows` that may have them, of which `searched` by a bound might have a better plan; `sequences` of sizes that these
    have in all; schedules that were `run` event by event; `open`: rows left.
    """

    rows: int
    sequences: int
    searched: int
    run: int
    open: int


@dataclass(frozen=True)
class EventsRun:
    """Where pipelines may span chip types, or stages be placed as a V: how many plans were `run` event by event, each
    with its best layers by formula. None of the others is faster so than the best one, but for those whose formula is
    this share (`within`) or more above it.
    """

    run: int
    within: float


@dataclass(frozen=True)
class Tallies:
    """What a search knew of its rows by cell, from which proof_map.py makes the map: rows by how they ended, as in
    `Proof`, and the `least` bound on the score of those that may fit. `devices`: the numbers of devices whose rows were
    made.
    """

    memory: Mapping[Cell, int]
    solved: Mapping[Cell, int]
    open: Mapping[Cell, int]
    least: Mapping[Cell, float]
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Proof:
    """The account of the whole space: every row considered ended in exactly one of these ways.

    `refused` counts rows by the rule that cut them, `memory` those of which no split of the layers fits, `bounded`
    those whose lower bound is not below the slowest plan of the answer, `solved` those of which the best split was
    found, `open` those not settled before the search stopped. `solver_calls` counts plans that CP-SAT was asked
    about: those that dynamic programming did not settle, and those in the answer. `bound_s` is a lower bound on what is
    still open. `combinations` counts the legal ones of pp, tp, dp, sequence parallelism, vpp and micro batch alone.
    `bound` is the bound on the objective's score: the step time, or for cost dollars per million tokens. Where devices
    may idle, rows are those of the numbers of devices that were searched; `device_counts` accounts for the others.
    """

    considered: int
    refused: Mapping[str, int]
    memory: int
    bounded: int
    solved: int
    open: int
    solver_calls: int
    arrangements: int
    bound_s: float
    stop: StopReason
    seconds: float
    solver_seconds: float
    combinations: int = 0
    bound: float = float("inf")
    device_counts: DeviceCounts | None = None
    meshes: MeshCounts | None = None
    sizes: SizeCounts | None = None
    by_events: EventsRun | None = None
    tallies: Tallies | None = field(default=None, repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """Every row is settled."""
        return self.stop == "complete"


@dataclass(frozen=True)
class Verification:
    """A second opinion on an answer (cpsolver/search/verification.py).

    `plans` that the bounds do not put beyond the K-th best by more than `margin` went into one CP-SAT model of so many
    `variables` and `constraints`, or where that took long into `models` of their own, of so many in all. `sampled`:
    candidates drawn from all there are, of which `solved` have a plan, which was held to its bound and to the answer.
    `findings` contradict the answer; `left_out` is what was not looked at, and why.
    """

    verdict: Verdict
    margin: float = 0.0
    plans: int = 0
    variables: int = 0
    constraints: int = 0
    models: int = 0
    sampled: int = 0
    solved: int = 0
    seconds: float = 0.0
    findings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recommendation:
    """Places in `Result.plans`, from 0: what to run, and the plans beside it (cpsolver/explanation/recommendation.py).

    None: no plan has the role.
    """

    run_this: int | None
    fastest: int | None
    safest: int | None
    simplest: int | None


@dataclass(frozen=True)
class Result:
    """A search's answer. Plans are in order of the objective, those that are `added` after the K best; `reasons` says
    why there is none. `verification`: a second opinion, where one was asked for. `settled`: what is recommended was
    looked for to the end.
    """

    status: Status
    plans: tuple[Plan, ...]
    proof: Proof
    reasons: tuple[str, ...] = field(default=())
    recommendation: Recommendation | None = None
    verification: Verification | None = None
    settled: bool = True


@dataclass(frozen=True)
class Progress:
    """How a running search stands: what it shows while one waits. Bound and best are scores, in `unit`."""

    bound_s: float
    best_s: float
    plans: int
    waiting: int
    solver_calls: int
    message: str
    unit: str = "s"


Listener = Callable[[Progress], None]
"""What is called as the search goes on."""
