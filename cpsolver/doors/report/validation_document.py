"""Predictions against measured runs for machines: the scores, and every row with its prediction or its reason."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cpsolver.doors.report.document import versions
from cpsolver.evidence.runs.run import Prediction
from cpsolver.evidence.runs.score import MemoryScore, TimeScore, worst
from cpsolver.evidence.runs.validation import RowOutcome, Validation
from cpsolver.rules import RULES


def validation_document(validation: Validation, most: int = 5) -> dict[str, Any]:
    """What `validate --json` prints. Times in seconds, memory in GiB, errors as predicted / measured - 1.

    A row has null for what is not known or was not predicted; `skipped` is null for a predicted row. `rules_broken`:
    what the planner would have refused the run's plan for.
    """
    summary = {
        "rows": len(validation.outcomes),
        "predicted": len(validation.scored),
        "skipped": {reason: len(ids) for reason, ids in validation.skipped.items()},
        "step_time": {
            "overall": _score(validation.time),
            **{
                f"by_{dimension}": {name: _score(score) for name, score in groups.items()}
                for dimension, groups in validation.time_by.items()
            },
        },
        "memory": {
            "overall": _score(validation.memory),
            "by_kind": {kind: _score(score) for kind, score in validation.memory_by_kind.items()},
        },
        "rank": asdict(validation.rank),
        "rules_broken": {
            "runs": sum(bool(one.prediction.rules_broken) for one in validation.scored),
            "by_rule": {name: len(ids) for name, ids in validation.refused.items()},
        },
        "worst": [one.run.id for one in worst(validation.scored, most)],
    }
    return {
        "summary": summary,
        "rows": [_row(outcome) for outcome in validation.outcomes],
        "troubles": [trouble.as_dict() for trouble in validation.troubles],
        "versions": versions(),
    }


def _score(score: TimeScore | MemoryScore | None) -> dict[str, Any] | None:
    """The names say what is meant: mean_abs_error, and so on."""
    if score is None:
        return None
    shared = {"runs": score.runs, "mean_abs_error": score.mean, "bias": score.bias}
    if isinstance(score, MemoryScore):
        return {**shared, "under_predicted": score.short, "under_predicted_with_margin": score.short_with_margin}
    return {**shared, "median_abs_error": score.median, "p90_abs_error": score.p90, "measured_in_range": score.inside}


def _broken(prediction: Prediction) -> list[dict[str, Any]]:
    """A rule's name, what it asks for, and all that it finds in the run's plan."""
    return [
        {"rule": name, "words": RULES[name].words, "messages": list(messages)}
        for name, messages in prediction.rules_broken.items()
    ]


def _row(outcome: RowOutcome) -> dict[str, Any]:
    run, prediction, scored = outcome.run, outcome.prediction, outcome.scored
    return {
        "id": outcome.id,
        "line": outcome.line,
        "source": run and run.source,
        "chip": run and run.chip,
        "stack": prediction and prediction.stack,
        "architecture": prediction and prediction.architecture,
        "step_time_s_predicted": prediction and prediction.step_time_s,
        "step_time_s_low": prediction and prediction.low_s,
        "step_time_s_high": prediction and prediction.high_s,
        "step_time_s_measured": run and run.step_time_s,
        "error": scored and scored.error,
        "peak_mem_gib_predicted": prediction and prediction.memory_gib,
        "peak_mem_gib_with_margin": prediction and prediction.memory_with_margin_gib,
        "peak_mem_gib_measured": run and run.peak_mem_gib,
        "peak_mem_kind": run and run.peak_mem_kind,
        "breakdown_s": prediction and dict(prediction.breakdown_s),
        "rules_broken": prediction and _broken(prediction),
        "assumed": prediction and list(prediction.assumed),
        "skipped": outcome.skipped,
    }
