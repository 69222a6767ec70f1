"""Tables of measured runs: trials written as one, for `calibrate` and `validate`, and runs from before the tuning."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cpsolver.doors.tune.trial import Trial
from cpsolver.evidence.calibrate.observations import ObservedRun, evidence_of
from cpsolver.evidence.posterior.predictions import Observation
from cpsolver.evidence.runs.columns import COLUMNS, BadCell
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import read_runs
from cpsolver.inputs.english_sentences import as_messages
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.inputs.output import write_file
from cpsolver.plans.dimensions import DIMENSIONS, PLAN_FIELDS, ROW
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.problem import Problem
from models_zoo.schema import DESCRIPTIVE_FIELDS

OUTCOME = "outcome"
"""The column that says ok, or oom for a plan that ran out of device memory."""
_HEADER = (*COLUMNS, *(() if OUTCOME in COLUMNS else (OUTCOME,)))
_SHARDING = ("none", "zero1", "zero2", "zero3")
_HELD = (
    *(name for name in PLAN_FIELDS if name != "micro_batches"),
    *(one.attribute for one in DIMENSIONS.values() if one.part == "stages" and one.group != "chips"),
)
"""What a row must hold of a plan."""


def write_runs(problem: Problem, trials: Sequence[Trial], path: str) -> list[str]:
    """Write the measured and the out-of-memory trials; returns a word on each that no row can say, which is left out.

    Raises InputError where the file cannot be written.
    """
    text, left_out = runs_table(problem, trials)
    write_file(path, text)
    return left_out


def runs_table(problem: Problem, trials: Sequence[Trial]) -> tuple[str, list[str]]:
    """The table as CSV, and what was left out and why."""
    text, left_out = io.StringIO(newline=""), list[str]()
    writer = csv.DictWriter(text, _HEADER, lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        if not trial.measured and trial.outcome != "oom":
            continue
        row = row_of(problem, trial)
        if (reason := _unreadable(row, problem, trial.strategy)) is None:
            writer.writerow(row)
        else:
            told = say("trial {number} is not in the table: {reason}", number=trial.number, reason=reason)
            left_out.append(told)
    return text.getvalue(), left_out


def row_of(problem: Problem, trial: Trial) -> dict[str, Any]:
    """The trial's row; an empty cell: not known."""
    s, model = trial.strategy, problem.model
    tokens = problem.batch * problem.sequence
    rate = None if trial.step_time_s is None else tokens / trial.step_time_s / s.devices
    return dict.fromkeys(_HEADER, "") | {
        "id": f"{trial.directory.parent.stem}-{trial.number:03d}",
        "source": "apss-cp tune",
        "source_ref": str(trial.directory),
        "model": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocab": model.vocab,
        "seq_len": problem.sequence,
        "gated_mlp": int(model.gated_mlp),
        **_experts(problem),
        "mtp_layers": model.mtp_layers,
        "chip": s.stage_chips[0],
        "gpus_per_node": problem.node,
        "num_gpus": s.devices,
        "internode_gbps_per_gpu": _network(problem, s),
        **{name: _cell(s, name) for name in ROW if name in COLUMNS},
        "gbs": problem.batch,
        "layers_per_stage": " ".join(map(str, s.layers)),
        "recompute": _recompute(s),
        "recompute_modules": " ".join(s.recompute_modules[0]),
        "sharding": _SHARDING[s.zero_stage],
        "precision": problem.spec.training.precision,
        "framework": problem.stack.name,
        "step_time_s": _figure(trial.step_time_s),
        "tokens_per_s_per_gpu": _figure(rate),
        "peak_mem_gib": _figure(trial.peak_memory_gib),
        "peak_mem_kind": trial.memory_kind or "",
        OUTCOME: "oom" if trial.outcome == "oom" else "ok",
    }


def _cell(s: Strategy, name: str) -> Any:
    """A decision's cell; an empty one stands for all."""
    value = int(getattr(s, name))
    return "" if DIMENSIONS[name].kind == "size_or_all" and not value else value


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _experts(problem: Problem) -> dict[str, Any]:
    moe = problem.model.moe
    if moe is None:
        return {"moe_experts": 0, "moe_topk": 0}
    shared = moe.shared_width if moe.shared_experts else ""
    return {
        "moe_experts": moe.experts,
        "moe_topk": moe.top_k,
        "moe_ffn": moe.expert_ffn,
        "shared_expert_ffn": shared,
    }


def _network(problem: Problem, s: Strategy) -> Any:
    """Where more than one node takes part; a single one has no network to name."""
    bandwidth = problem.supply(s.stage_chips[0]).chip.scale_out.bandwidth_gbit_s
    return "" if s.devices <= problem.node or bandwidth is None else f"{bandwidth:g}"


def _recompute(s: Strategy) -> str:
    """The table's word for the first stage's recomputation; `_unreadable` finds out if the others differ."""
    kind, amount = s.recompute[0], s.recompute_layers[0]
    return f"{kind}:{amount}" if kind in ("block", "uniform") and amount else kind


def _unreadable(row: dict[str, Any], problem: Problem, strategy: Strategy) -> str | None:
    """Why the row, read back, is not the plan, model and training that were run; None where it is."""
    values: dict[str, Any] = {}
    for name, column in COLUMNS.items():
        try:
            values[name] = column.read(str(row[name])) if row.get(name) not in ("", None) else column.absent
        except BadCell as bad:
            return f"{name} {row[name]!r} {bad.message}"
    texts = {name: values[name] or "" for name in ("id", "source", "source_ref", "model", "chip", "framework")}
    if len(set(strategy.stage_chips)) > 1:
        return say("a row has one chip type, and the plan several")
    try:
        case = placed_plan(MeasuredRun(line=0, **{**values, **texts, "complete": False}))
    except Unpredictable as error:
        return say("a row cannot say it: {reason}", reason=error.reason)
    except ValidationError as error:
        reason = as_messages(error.errors()[0]["msg"].removeprefix("Value error, "))
        return say("a row cannot say its model: {reason}", reason=reason)
    except (ValueError, ArithmeticError) as error:
        return say("a row cannot say it: {reason}", reason=error)
    read = case.strategy
    differ = [name for name in _HELD if _value(read, name) != _value(strategy, name)]
    differ += _different(
        problem.model.model_dump(exclude=DESCRIPTIVE_FIELDS), case.problem.model.model_dump(exclude=DESCRIPTIVE_FIELDS)
    )
    differ += _different(problem.spec.training.model_dump(), case.problem.spec.training.model_dump())
    differ += ["stack"] if problem.stack.name != case.problem.stack.name else []
    return say("a row has no word for its {names}", names=", ".join(differ)) if differ else None


def _different(run: dict[str, Any], read: dict[str, Any]) -> list[str]:
    return [name for name in run if run[name] != read[name]]


def _value(s: Strategy, name: str) -> Any:
    if name in DIMENSIONS and not DIMENSIONS[name].matters(s):
        return None
    if name == "recompute_modules":
        return tuple(modules or CORE for modules in s.recompute_modules)
    return getattr(s, name)


@dataclass(frozen=True)
class EarlierRuns:
    """What a table says of a problem's chips and stack, and a word on each row that is left out."""

    observations: tuple[Observation, ...]
    notes: tuple[str, ...]


def read_earlier_runs(path: str, problem: Problem) -> EarlierRuns:
    """The rows of a table with the problem's stack and chips of its own.

    Raises InputError with all that is wrong in the table, where no row is of these chips and this stack, and for chips
    that the spec describes itself: runs are of the catalogue's.
    """
    for name, request in problem.spec.cluster.chips.items():
        if request.spec is not None or request.file is not None:
            message = later("has runs on chips of the catalogue, and the spec describes this one itself")
            raise InputError(Trouble("--runs", message, name))
    table = read_runs(path)
    if table.troubles:
        raise InputError(table.troubles)
    found = evidence_of(table)
    mine = [row for row in found.rows if _fits(row, problem)]
    here = say("{chip} with {stack}", chip=say(" and ").join(problem.chip_names), stack=problem.stack.name)
    if not mine:
        groups = sorted({row.group for row in found.rows}, key=" with ".join)
        there = say("; ").join(say("{chip} with {stack}", chip=chip, stack=stack) for chip, stack in groups)
        message = say("has no run on {here} that can be learnt from", here=here)
        allowed = say("such runs; it has: {there}", there=there or say("none"))
        raise InputError(Trouble("--runs", message, path, allowed))
    others = [row.run.id for row in found.rows if row not in mine]
    reasons = {**found.left_out, **({say("not on {here}", here=here): others} if others else {})}
    notes = [
        say("{path}: {ids}: left out, {reason}", path=path, ids=", ".join(ids), reason=reason)
        for reason, ids in reasons.items()
    ]
    return EarlierRuns(tuple(row.observation for row in mine), tuple(notes))


def _fits(row: ObservedRun, problem: Problem) -> bool:
    chip, stack = row.group
    return chip in problem.chip_names and stack == problem.stack.name
