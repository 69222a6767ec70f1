"""A plan's pipeline run through the exact schedule: its trace, and a check of the closed form that ranks plans."""

from __future__ import annotations

from collections.abc import Sequence

from cpsolver.evaluate import Evaluation, StageEvaluation
from cpsolver.schedule import Timeline, simulate
from cpsolver.strategy import Strategy

_MOST_EVENTS = 100_000  # passes that a check simulates: some tenths of a second


def plan_timeline(strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> Timeline:
    """The schedule of that many microbatches, event by event; transfers are delays between the stages."""
    vpp = strategy.vpp
    forward = [[stage.forward_s / vpp] * vpp for stage in stages]
    backward = [[stage.backward_s / vpp] * vpp for stage in stages]
    return simulate(forward, backward, microbatches, _link_delays_s(stages, vpp))


def simulated_step_s(strategy: Strategy, evaluation: Evaluation, microbatches: int) -> float | None:
    """Step time with the pipeline simulated instead of by formula; None for a step of too many passes.

    What follows the pipeline is the evaluation's. The two differ where stages are unequal: the formula charges the
    slowest stage with every other stage's time, the events only with the time that it waits for.
    """
    if 2 * strategy.pp * strategy.vpp * microbatches > _MOST_EVENTS:
        return None
    after = evaluation.breakdown_s["data_parallel"] + evaluation.breakdown_s["optimizer"]
    return plan_timeline(strategy, evaluation.stages, microbatches).makespan_s + after


def _link_delays_s(stages: Sequence[StageEvaluation], vpp: int) -> list[float]:
    """Seconds of one transfer from each stage to the next: a stage's p2p time is its link in plus its link out."""
    delays: list[float] = []
    before = 0.0
    for stage in stages:
        before = max(0.0, stage.pipeline_p2p_s / vpp - before)
        delays.append(before)
    delays[-1] = 0.0 if vpp == 1 else sum(delays[:-1]) / max(1, len(delays) - 1)
    return delays
