"""The answer for machines: one JSON document with plain values, no NaN and no infinity."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cpsolver.doors.report.cluster import cluster_document
from cpsolver.doors.report.columns import ShownPlan, compared, plan_fields, shown_plan
from cpsolver.doors.report.finetuning import finetuning_fields
from cpsolver.doors.report.goals import objective_document
from cpsolver.doors.report.open_switches import open_document
from cpsolver.doors.report.operators import matrices_document, operators_document
from cpsolver.evaluation.evaluation import Evaluation, StageEvaluation
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.evaluation.timeline import simulated_step_s
from cpsolver.evidence.nearest import nearest_runs, unmeasured
from cpsolver.evidence.reach import beyond_runs
from cpsolver.explanation.open_switches import OpenSwitches
from cpsolver.inputs.errors import InputError
from cpsolver.plans.dimensions import family_name
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.profiles.default_stack import foreign_kernels
from cpsolver.rules import Violation
from cpsolver.search.result import Result
from hw_specs.units import bytes_to_gib

ANSWER_VERSION = 1
"""Of the shape of the answers of `solve` and `evaluate` (schema.py), which say it among their versions."""


def dumps(document: Any) -> str:
    """JSON text; numbers that JSON has no word for become null."""
    return _printable(json.dumps(_finite(document), indent=2, allow_nan=False))


def dumps_line(document: Any) -> str:
    """The same on one line."""
    return _printable(json.dumps(_finite(document), allow_nan=False))


def dumps_compact(document: Any) -> str:
    """The same without spaces."""
    return _printable(json.dumps(_finite(document), allow_nan=False, separators=(",", ":")))


def dumps_embedded(document: Any) -> str:
    """The same for a script element of a page: it has no `<`, `>` or `&`, which might end that."""
    return dumps_compact(document).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(text: str) -> str:
    """json leaves one character as it is that is ASCII and no letter, in texts only: delete, which terminals obey."""
    return text.replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def result_document(problem: Problem, result: Result, left_open: OpenSwitches | None = None) -> dict[str, Any]:
    """What `solve --json` prints. `left_open`: what the spec leaves open of the best plan's step time."""
    shown = compared(problem, [shown_plan(problem, "", plan.strategy, plan.evaluation) for plan in result.plans])
    return {
        "status": result.status,
        "problem": problem_document(problem),
        "plans": [
            {
                "rank": plan.rank,
                "proven": plan.proven,
                "gap": plan.gap,
                "added": plan.added,
                **_numbers(problem, columns),
            }
            for plan, columns in zip(result.plans, shown, strict=True)
        ],
        "recommendation": None if result.recommendation is None else asdict(result.recommendation),
        "open_switches": open_document(left_open),
        "proof": _proof(result),
        **({} if result.verification is None else {"verification": asdict(result.verification)}),
        "reasons": list(result.reasons),
        "versions": {**versions(), "answer": ANSWER_VERSION},
    }


def evaluation_document(
    problem: Problem,
    strategy: Strategy,
    evaluation: Evaluation | None,
    violations: Sequence[Violation],
    left_open: OpenSwitches | None = None,
) -> dict[str, Any]:
    """What `evaluate --json` prints: the shape of `result_document` with at most one plan, and the broken rules."""
    plans = []
    if evaluation is not None:
        plans = [{"rank": 1, **_numbers(problem, shown_plan(problem, "", strategy, evaluation))}]
    return {
        "status": "not_evaluated" if evaluation is None else "evaluated",
        "legal": not violations,
        "problem": problem_document(problem),
        "plans": plans,
        "open_switches": open_document(left_open),
        "violations": [{"rule": found.rule, "message": found.message} for found in violations],
        "versions": {**versions(), "answer": ANSWER_VERSION},
    }


def trouble_document(error: InputError) -> dict[str, Any]:
    """What a command with `--json` prints when its input is wrong."""
    return {"status": "bad_input", "troubles": [trouble.as_dict() for trouble in error.troubles]}


def problem_document(problem: Problem) -> dict[str, Any]:
    """The problem in names and sizes."""
    return {
        **problem.sizes(),
        "stack": problem.stack.name,
        "stack_why": problem.stack_why,
        "stack_foreign": foreign_kernels(problem.stack, (supply.chip for supply in problem.supplies)),
        **objective_document(problem),
        **cluster_document(problem),
        "launcher": problem.named_launcher and problem.named_launcher.name,
    }


def versions() -> dict[str, str | None]:
    """Versions of what made the answer."""
    return {"apss_cp": _version("apss-cp"), "ortools": _version("ortools"), "python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(problem: Problem, plan: ShownPlan) -> dict[str, Any]:
    strategy, evaluation = plan.strategy, plan.evaluation
    return {
        **plan_fields(problem, plan),
        **finetuning_fields(problem, strategy, evaluation),
        "family": family_name(strategy),
        "beyond_runs": list(beyond_runs(problem, strategy)),
        "unmeasured": unmeasured(problem, strategy),
        "evidence": [run.id for run in nearest_runs(problem, strategy)],
        "breakdown_s": dict(evaluation.breakdown_s),
        "operators": operators_document(compute_by_operator(problem, strategy, evaluation)),
        **matrices_document(problem, strategy),
        "simulated_step_time_s": simulated_step_s(strategy, evaluation, strategy.microbatches(problem.batch)),
        "stages": [_stage(stage) for stage in evaluation.stages],
        "strategy": strategy_to_dict(strategy),
    }


def _stage(stage: StageEvaluation) -> dict[str, Any]:
    memory = {name: bytes_to_gib(count) for name, count in asdict(stage.memory).items() if name != "cached"}
    return {
        "chip": stage.chip,
        "layers": stage.layers,
        "recompute": stage.recompute,
        "recompute_layers": stage.recompute_layers,
        "recompute_modules": list(stage.recompute_modules),
        "microbatch_s": {
            "compute": stage.compute_s,
            "tensor_parallel": stage.tensor_parallel_s,
            "recompute": stage.recompute_s,
            "sharding": stage.sharding_s,
            "pipeline_p2p": stage.pipeline_p2p_s,
            "total": stage.microbatch_s,
        },
        "after_pipeline_s": {"data_parallel": stage.data_parallel_s, "optimizer": stage.optimizer_s},
        "memory_gib": {**memory, "total": bytes_to_gib(stage.memory.total)},
        "device_memory_gib": bytes_to_gib(stage.memory.device),
        "capacity_gib": bytes_to_gib(stage.capacity_bytes),
    }


def _proof(result: Result) -> dict[str, Any]:
    proof, gap = result.proof, max((plan.gap for plan in result.plans), default=None)
    told = asdict(replace(proof, tallies=None))  # those are for the page's map
    del told["tallies"]
    if proof.sizes is None:  # few specs ask
        del told["sizes"]
    return {**told, "refused": dict(proof.refused), "complete": proof.complete, "gap": gap}
