"""One step of a plan in time, for every picture of it: passes, what follows them, waiting, transfers.

A step is the pipeline, run event by event (`timeline.plan_timeline`), and then what the evaluation puts after it: the
gradients' reduction with the parameters' gathering as far as nothing hides them, and the optimizer. A stage's own
times stand there, from the pipeline's end on; the longest of them ends the step, as in the evaluation.
`Evaluation.step_time_s` has the pipeline by its closed form; docs/reports.md says by how much the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np

from cpsolver.cost.pipeline_events import FloatArray, Timeline
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.split_backward import V_MICROBATCHES
from cpsolver.evaluation.evaluation import Evaluation, StageEvaluation
from cpsolver.evaluation.timeline import link_delays_s, plan_timeline
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Strategy

SpanKind = Literal["forward", "recompute", "backward", "data_parallel", "optimizer", "idle"]

KINDS: dict[SpanKind, str] = {
    "forward": later("forward"),
    "recompute": later("recomputation"),
    "backward": later("backward"),
    "data_parallel": later("gradients and parameters exchanged"),
    "optimizer": later("optimizer step"),
    "idle": later("waiting"),
}
"""What a stage does at a time, and what a picture calls it."""

_NOTHING_S = 1e-12  # a shorter span is rounding


@dataclass(frozen=True)
class Span:
    """What one stage does from `start_s` to `end_s`; microbatch and chunk are -1 where they mean nothing.

    `weights`: of a backward pass that is split, the weights' gradients.
    """

    stage: int
    kind: SpanKind
    start_s: float
    end_s: float
    microbatch: int = -1
    chunk: int = -1
    weights: bool = False

    @property
    def label(self) -> str:
        """What a picture calls it."""
        return later("weights' gradients") if self.weights else KINDS[self.kind]


@dataclass(frozen=True)
class Transfer:
    """Activations on their way between two stages, or their gradients on the way back (`kind` "B")."""

    kind: Literal["F", "B"]
    source: int
    target: int
    start_s: float
    end_s: float
    microbatch: int


@dataclass(frozen=True, eq=False)
class PipelineRun:
    """A plan's step run through its schedule. `shown` of the step's `microbatches` are, all but for very long steps."""

    strategy: Strategy
    evaluation: Evaluation
    microbatches: int
    shown: int
    timeline: Timeline

    @property
    def whole(self) -> bool:
        """Every microbatch of the step was run."""
        return self.shown == self.microbatches

    @property
    def pipeline_s(self) -> float:
        """Seconds of the pipeline, event by event."""
        return self.timeline.makespan_s

    @property
    def end_s(self) -> float:
        """Seconds of the step: the pipeline and what follows it."""
        return self.pipeline_s + max(stage.after_s for stage in self.evaluation.stages)

    @property
    def step_s(self) -> float:
        """The same, but for devices that begin the next step while others end this one (split_backward.py)."""
        overlaps = not SCHEDULES[self.strategy.schedule].joins
        return self.end_s - (self.pipeline_s - self.timeline.longest_span_s) * overlaps

    @property
    def idle_share(self) -> FloatArray:
        """For each stage the share of the pipeline's time that it waits: for others' work, and for transfers."""
        return self.timeline.idle_s / self.pipeline_s

    @cached_property
    def by_stage(self) -> list[list[Span]]:
        """Every stage's spans in order of time; they leave no gap from 0 to `end_s` and do not overlap."""
        rows = groupby(_passes(self), key=lambda span: span.stage)
        return [list(self._row(stage, list(passes))) for stage, passes in rows]

    def _row(self, stage: int, passes: list[Span]) -> Iterator[Span]:
        of_stage = self.evaluation.stages[stage]
        reduced_s = self.pipeline_s + of_stage.data_parallel_s
        after = (
            Span(stage, "data_parallel", self.pipeline_s, reduced_s),
            Span(stage, "optimizer", reduced_s, reduced_s + of_stage.optimizer_s),
        )
        now = 0.0
        for span in (*passes, *after, Span(stage, "idle", self.end_s, self.end_s)):
            if span.start_s - now > _NOTHING_S:
                yield Span(stage, "idle", now, span.start_s)
            if span.end_s - span.start_s > _NOTHING_S:
                yield span
            now = span.end_s


def run_pipeline(strategy: Strategy, evaluation: Evaluation, microbatches: int, most_passes: int) -> PipelineRun:
    """Run a plan's step; one of more than `most_passes` forwards and backwards with its first microbatches only."""
    most = max(1, most_passes // (2 * strategy.pp * strategy.vpp))
    shown = microbatches if microbatches <= most else max(1, most // strategy.pp) * strategy.pp
    least = V_MICROBATCHES * strategy.pp if strategy.v_shaped or strategy.both_ways else 1
    shown = min(max(shown, least), microbatches)
    timeline = plan_timeline(strategy, evaluation.stages, shown)
    return PipelineRun(strategy, evaluation, microbatches, shown, timeline)


def _passes(run: PipelineRun) -> Iterator[Span]:
    """Forwards and backwards; what is recomputed stands before the backward that needs it."""
    again_s = [[each.recompute_s / run.strategy.vpp for each in row] for row in _each(run)]
    for stage, kind, microbatch, chunk, start_s, end_s in _events(run.timeline):
        if kind == "F":
            yield Span(stage, "forward", start_s, end_s, microbatch, chunk)
            continue
        if kind == "W":
            yield Span(stage, "backward", start_s, end_s, microbatch, chunk, weights=True)
            continue
        ready_s = min(end_s, start_s + again_s[stage][microbatch])
        yield Span(stage, "recompute", start_s, ready_s, microbatch, chunk)
        yield Span(stage, "backward", ready_s, end_s, microbatch, chunk)


def transfers(run: PipelineRun) -> Iterator[Transfer]:
    """Every transfer between stages that takes time: each starts when its pass ends and keeps no stage from working."""
    strategy, vpp = run.strategy, run.strategy.vpp
    sent = np.array([[each.to_next_s for each in row] for row in _each(run)])
    delays = [link_delays_s(sent[:, microbatch].tolist(), vpp) for microbatch in range(run.shown)]
    for stage, kind, microbatch, chunk, _, end_s in _events(run.timeline):
        if kind == "W":
            continue
        forward = kind == "F"
        back = (strategy.v_shaped and chunk == 1) or (strategy.both_ways and microbatch >= run.shown // 2)
        onward = forward != back
        target = _target(strategy, stage, chunk, forward, onward)
        delay_s = delays[microbatch][stage if onward else stage - 1]  # of stage 0's way back: the last entry
        if target is not None and delay_s > _NOTHING_S:
            yield Transfer("F" if forward else "B", stage, target, end_s, end_s + delay_s, microbatch)


def _target(strategy: Strategy, stage: int, chunk: int, forward: bool, onward: bool) -> int | None:
    """Where a pass sends what it makes; None: nowhere, or to the stage's own other chunk, where a V turns."""
    pp, last = strategy.pp, strategy.vpp - 1
    if not (strategy.v_shaped or strategy.both_ways):
        ends = (stage, chunk) == ((pp - 1, last) if forward else (0, 0))
        return None if ends else (stage + 1 if forward else stage - 1) % pp
    target = stage + 1 if onward else stage - 1
    return target if 0 <= target < pp else None


def _each(run: PipelineRun) -> list[tuple[StageEvaluation, ...]]:
    """Every stage with each of its microbatches."""
    return [stage.sized[: run.shown] or (stage,) * run.shown for stage in run.evaluation.stages]


def _events(timeline: Timeline) -> Iterator[tuple[int, str, int, int, float, float]]:
    """Stage, kind, microbatch, chunk, start and end of every pass, by stage and then by time."""
    columns = (timeline.stage, timeline.kind, timeline.microbatch, timeline.chunk, timeline.start_s, timeline.end_s)
    return zip(*(column.tolist() for column in columns), strict=True)
