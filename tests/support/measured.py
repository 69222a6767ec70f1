"""Tables of measured runs for tests, and a predictor that needs no cost model."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from cpsolver.evidence.runs.columns import COLUMNS
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.evidence.runs.score import Scored
from cpsolver.evidence.runs.table import read_runs

SOUND: dict[str, Any] = {
    "id": "run1",
    "source": "a lab",
    "source_ref": "arXiv 1",
    "model": "llama2-7b",
    "layers": 32,
    "hidden": 4096,
    "ffn": 11008,
    "heads": 32,
    "kv_heads": 32,
    "vocab": 32000,
    "seq_len": 4096,
    "gated_mlp": 1,
    "moe_experts": 0,
    "chip": "a100",
    "gpus_per_node": 8,
    "num_gpus": 16,
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "ep": 1,
    "dp": 4,
    "vpp": 1,
    "mbs": 1,
    "gbs": 64,
    "recompute": "none",
    "sequence_parallel": 1,
    "sharding": "zero1",
    "flash_attention": 1,
    "precision": "bf16",
    "framework": "NeMo 24.07",
    "step_time_s": 10.0,
    "peak_mem_gib": 50,
    "peak_mem_kind": "device",
    "complete": 1,
}
"""A complete row."""


def table(*rows: dict[str, Any], without: tuple[str, ...] = ()) -> str:
    """A CSV text: a row of SOUND with changes for each of `rows`; `without` leaves out columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [name for name in COLUMNS if name not in without]
    writer.writerow(names)
    for row in rows:
        writer.writerow([{**SOUND, **row}.get(name, "") for name in names])
    return text.getvalue()


def runs(tmp_path: Path, *rows: dict[str, Any]) -> list[MeasuredRun]:
    """The runs of such a table, which has no troubles."""
    path = tmp_path / "runs.csv"
    path.write_text(table(*rows), encoding="utf-8")
    found = read_runs(path)
    assert found.troubles == ()
    return list(found.runs)


def prediction(step_s: float, memory_gib: float = 50.0, planned_gib: float | None = None) -> Prediction:
    """A prediction whose range is 10 % either way."""
    planned = memory_gib if planned_gib is None else planned_gib
    parts = {"compute": step_s * 0.9, "bubble": step_s * 0.1}
    return Prediction(step_s, step_s * 0.9, step_s * 1.1, memory_gib, planned, parts, "nemo", "hopper")


def scored(tmp_path: Path, *cases: tuple[dict[str, Any], float]) -> list[Scored]:
    """Runs (changes of SOUND) with their predicted seconds."""
    rows = [{"id": f"run{number}", **row} for number, (row, _) in enumerate(cases)]
    found = runs(tmp_path, *rows)
    return [Scored(run, prediction(step)) for run, (_, step) in zip(found, cases, strict=True)]
