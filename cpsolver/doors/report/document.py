"""The answer for machines: one JSON document with plain values, no NaN and no infinity."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cpsolver.doors.report.goals import comparable, goal_numbers, objective_document
from cpsolver.doors.report.interval import Interval, interval_of, ties
from cpsolver.evaluation.evaluation import Evaluation, StageEvaluation
from cpsolver.evaluation.timeline import simulated_step_s
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.rules import Violation
from cpsolver.search.result import Plan, Proof, Result
from hw_specs.units import bytes_to_gib


def dumps(document: Any) -> str:
    """JSON text; numbers that JSON has no word for become null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def dumps_line(document: Any) -> str:
    """The same on one line."""
    return json.dumps(_finite(document), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def result_document(problem: Problem, result: Result) -> dict[str, Any]:
    """What `solve --json` prints."""
    intervals = [interval_of(problem, plan.strategy, plan.evaluation.step_time_s) for plan in result.plans]
    tied = ties(comparable(problem, [plan.strategy for plan in result.plans], intervals))
    told = zip(result.plans, intervals, tied, strict=True)
    return {
        "status": result.status,
        "problem": problem_document(problem),
        "plans": [_plan(problem, plan, interval, tie) for plan, interval, tie in told],
        "proof": _proof(result),
        "reasons": list(result.reasons),
        "versions": versions(),
    }


def evaluation_document(
    problem: Problem, strategy: Strategy, evaluation: Evaluation | None, violations: Sequence[Violation]
) -> dict[str, Any]:
    """What `evaluate --json` prints: the shape of `result_document` with at most one plan, and the broken rules."""
    plans = []
    if evaluation is not None:
        interval = interval_of(problem, strategy, evaluation.step_time_s)
        plans = [{"rank": 1, **_numbers(problem, strategy, evaluation, interval, tie=True)}]
    return {
        "status": "not_evaluated" if evaluation is None else "evaluated",
        "legal": not violations,
        "problem": problem_document(problem),
        "plans": plans,
        "violations": [{"rule": found.rule, "message": found.message} for found in violations],
        "versions": versions(),
    }


def trouble_document(error: InputError) -> dict[str, Any]:
    """What a command with `--json` prints when its input is wrong."""
    return {"status": "bad_input", "troubles": [trouble.as_dict() for trouble in error.troubles]}


def problem_document(problem: Problem) -> dict[str, Any]:
    """The problem in names and sizes."""
    return {
        "model": problem.model.name,
        "num_gpus": problem.num_gpus,
        "gpus_per_node": problem.node,
        "chips": {supply.name: supply.limit for supply in problem.supplies},
        "global_batch_size": problem.batch,
        "sequence_length": problem.sequence,
        "precision": problem.spec.training.precision,
        "stack": problem.stack.name,
        **objective_document(problem),
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


def _plan(problem: Problem, plan: Plan, interval: Interval, tie: bool) -> dict[str, Any]:
    numbers = _numbers(problem, plan.strategy, plan.evaluation, interval, tie)
    return {"rank": plan.rank, "proven": plan.proven, "gap": plan.gap, **numbers}


def _numbers(
    problem: Problem, strategy: Strategy, evaluation: Evaluation, interval: Interval, tie: bool
) -> dict[str, Any]:
    used = evaluation.memory_bytes_by_chip
    capacity = {name: problem.capacity_bytes(problem.supply(name).chip) for name in used}
    return {
        "step_time_s": evaluation.step_time_s,
        "step_time_low_s": interval.low_s,
        "step_time_high_s": interval.high_s,
        "interval_basis": interval.basis,
        "tie_with_best": tie,
        "throughput_tokens_per_s": evaluation.tokens_per_s,
        "throughput_tokens_per_s_per_gpu": evaluation.tokens_per_s_per_gpu,
        "mfu": evaluation.mfu,
        **goal_numbers(problem, strategy, evaluation.step_time_s),
        "microbatches": strategy.microbatches(problem.batch),
        "memory_gib": {name: bytes_to_gib(count) for name, count in used.items()},
        "capacity_gib": {name: bytes_to_gib(count) for name, count in capacity.items()},
        "breakdown_s": dict(evaluation.breakdown_s),
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
    proof: Proof = result.proof
    fields = asdict(proof)
    fields["refused"] = dict(proof.refused)
    fields["complete"] = proof.complete
    fields["gap"] = worst_gap(result.plans)
    return fields


def worst_gap(plans: Iterable[Plan]) -> float | None:
    """The largest gap of the plans; None without plans."""
    return max((plan.gap for plan in plans), default=None)
