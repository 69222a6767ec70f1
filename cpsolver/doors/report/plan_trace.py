"""A plan's step as a trace file: a track a stage, and one for each direction of each link between stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.doors.report.pipeline_run import PipelineRun, Span, SpanKind, Transfer, run_pipeline, transfers
from cpsolver.doors.report.trace import Slice, Track, chrome_trace, write_chrome_trace
from cpsolver.inputs.text import plural
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Plan, Result

MOST_EVENTS = 200_000
"""The most slices that a trace file holds: what a timeline viewer still opens."""
_A_PASS = 5  # slices that a pass brings at most: itself, its recomputation, a transfer, a wait, and room to spare

_LETTERS: dict[SpanKind, str] = {"forward": "F", "recompute": "R", "backward": "B"}
_COLOURS: dict[SpanKind, str] = {
    "forward": "thread_state_running",
    "recompute": "rail_animation",
    "backward": "rail_response",
    "data_parallel": "thread_state_iowait",
    "optimizer": "rail_load",
    "idle": "grey",
}
"""Reserved colour names of the viewer, so that passes of one kind look alike (Catapult's colour scheme)."""


def write_traces(problem: Problem, result: Result, folder: Path) -> Iterator[str]:
    """Write a trace of every plan, `plan-<rank>.json`; yields a line about each. Raises OSError."""
    for plan in result.plans:
        path, trace = folder / f"plan-{plan.rank}.json", plan_trace(problem, plan)
        write_chrome_trace(path, trace)
        shown, wanted = trace["otherData"]["microbatches_shown"], trace["otherData"]["microbatches"]
        yield f"wrote {path}" + (f" (the first {shown:,} of {wanted:,} microbatches)" if shown < wanted else "")


def plan_trace(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The trace of one plan's step; a step of too many passes is cut to its first microbatches."""
    wanted = plan.strategy.microbatches(problem.batch)
    run = run_pipeline(plan.strategy, plan.evaluation, wanted, MOST_EVENTS // _A_PASS)
    tracks = [Track(f"{problem.model.name}, plan {plan.rank}", _label(run, stage)) for stage in range(run.strategy.pp)]
    slices = [_slice(run, span) for row in run.by_stage for span in row]
    for name, lane in _lanes(transfers(run)):
        slices += [_sent(transfer, len(tracks)) for transfer in lane]
        tracks.append(Track("transfers between stages", name))
    return chrome_trace(tracks, slices, _metadata(problem, plan, run))


def cut_note(trace: dict[str, Any]) -> str:
    """That a trace shows the first microbatches only; empty where it shows all."""
    shown, wanted = trace["otherData"]["microbatches_shown"], trace["otherData"]["microbatches"]
    return "" if shown == wanted else f"the first {shown:,} of {wanted:,} microbatches are in"


def _label(run: PipelineRun, stage: int) -> str:
    of_stage = run.evaluation.stages[stage]
    return f"stage {stage}: {of_stage.chip}, {plural(of_stage.layers, 'layer')}"


def _slice(run: PipelineRun, span: Span) -> Slice:
    name, args = span.label, {}
    if span.kind in _LETTERS:
        chunk = f" c{span.chunk}" if run.strategy.vpp > 1 else ""
        name = f"{'W' if span.weights else _LETTERS[span.kind]}{span.microbatch}{chunk}"
        args = {"microbatch": span.microbatch, "chunk": span.chunk}
    return Slice(span.stage, name, span.kind, span.start_s, span.end_s, _COLOURS[span.kind], args)


def _sent(sent: Transfer, track: int) -> Slice:
    args = {"microbatch": sent.microbatch, "from_stage": sent.source, "to_stage": sent.target}
    return Slice(track, f"{sent.kind}{sent.microbatch}", "p2p", sent.start_s, sent.end_s, "rail_idle", args)


def _lanes(sent: Iterator[Transfer]) -> Iterator[tuple[str, list[Transfer]]]:
    """(name, transfers one after the other) of every link and direction; where some overlap it has several lanes."""
    links: dict[tuple[int, int, str], list[list[Transfer]]] = {}
    for transfer in sorted(sent, key=lambda transfer: (transfer.kind != "F", transfer.source, transfer.start_s)):
        lanes = links.setdefault((transfer.source, transfer.target, transfer.kind), [])
        free = next((lane for lane in lanes if lane[-1].end_s <= transfer.start_s), None)
        if free is None:
            lanes.append(free := [])
        free.append(transfer)
    for (source, target, kind), lanes in links.items():
        what = "activations" if kind == "F" else "gradients"
        for number, lane in enumerate(lanes):
            yield f"{what}, stage {source} to {target}" + (f" ({number + 1})" if number else ""), lane


def _metadata(problem: Problem, plan: Plan, run: PipelineRun) -> dict[str, Any]:
    """Both step times (docs/reports.md), the plan's sizes, and each stage's parts of a microbatch."""
    strategy, evaluation = plan.strategy, plan.evaluation
    after_s = run.end_s - run.pipeline_s
    parts = ("compute_s", "tensor_parallel_s", "recompute_s", "sharding_s", "pipeline_p2p_s")
    return {
        "model": problem.model.name,
        "rank": plan.rank,
        **{name: getattr(strategy, name) for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "schedule")},
        "drawn_as": SCHEDULES[strategy.schedule].drawn_as,
        "microbatches": run.microbatches,
        "microbatches_shown": run.shown,
        "step_time_s": evaluation.step_time_s,
        "pipeline_closed_form_s": evaluation.formula_s - after_s,
        "pipeline_simulated_s": run.pipeline_s if run.whole else None,
        "simulated_step_time_s": run.step_s if run.whole else None,
        "after_pipeline_s": after_s,
        "trace_end_s": run.end_s,
        "stage_idle_share": [round(share, 6) for share in run.idle_share.tolist()],
        "stage_microbatch_s": [{name: getattr(stage, name) for name in parts} for stage in evaluation.stages],
    }
