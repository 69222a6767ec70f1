"""Tables of runs on a cluster that differs from the published ones in ways that are known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.constants import Values
from cpsolver.evidence.runs.columns import COLUMNS
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.table import read_runs
from cpsolver.profiles.constants import load_calibration

TRUTH = {("a800", "gemm"): 0.85, ("a800", "network"): 0.6, ("megatron-core", "step_overhead_ms"): 30.0}
"""What is so on the cluster: factors of a chip, values of a stack."""
_MODEL = {"model": "llama2-13b", "layers": 40, "hidden": 5120, "ffn": 13824, "heads": 40, "kv_heads": 40}
_TASK = {"vocab": 32000, "seq_len": 4096, "gated_mlp": 1, "chip": "a800", "gpus_per_node": 8, "gbs": 64}
_REST = {
    "cp": 1,
    "ep": 1,
    "vpp": 1,
    "recompute": "none",
    "sequence_parallel": 1,
    "sharding": "zero1",
    "flash_attention": 1,
    "precision": "bf16",
}
LAYOUTS = tuple(
    {"num_gpus": gpus, "tp": tp, "pp": pp, "mbs": mbs}
    for gpus, tp, pp, mbs in ((16, 2, 1, 1), (16, 4, 1, 1), (16, 2, 2, 1), (32, 4, 2, 2), (16, 8, 1, 2), (32, 2, 4, 1))
)


def row(name: str, layout: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A row without a measurement."""
    return {"id": name, **_MODEL, **_TASK, **_REST, "framework": "megatron-core", **layout, **more}


def text_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as a table; cells that they lack are empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@lru_cache
def _seconds(text: str, truth: tuple[tuple[tuple[str, str], float], ...]) -> float:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "row.csv"
        path.write_text(text, encoding="utf-8")
        (run,) = read_runs(path).runs
    case = placed_plan(run)
    problem = case.problem.with_constants(load_calibration(), Values(dict(truth), "a test"))
    return evaluate(problem, case.strategy).step_time_s


def measured(rows: Iterable[Mapping[str, Any]], truth: Mapping[tuple[str, str], float] = TRUTH) -> list[dict[str, Any]]:
    """The rows with the step times of that cluster, without noise."""
    known = tuple(truth.items())
    return [{**each, "step_time_s": round(_seconds(text_of([{**each, "step_time_s": 1}]), known), 5)} for each in rows]


def cluster_rows(count: int = len(LAYOUTS), **more: Any) -> list[dict[str, Any]]:
    """So many layouts, measured on the cluster."""
    return measured(row(f"run-{place}", layout, **more) for place, layout in enumerate(LAYOUTS[:count]))
