"""The cells as a document of JSON, a CSV file and a Parquet file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cpsolver.doors.batch.cases import SweepCase
from cpsolver.doors.batch.front import fronts_document
from cpsolver.doors.batch.rows import COLUMNS, Row, per_dollar, reasons_text
from cpsolver.doors.batch.run import SweepAnswer
from cpsolver.doors.report.document import versions
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.inputs.output import draft_of, file_error
from cpsolver.inputs.text import csv_text

_FOR_MACHINES = tuple(column for column in COLUMNS if column.name != "reasons_translated")
"""What machines read."""
_FLAT = tuple(column.name for column in _FOR_MACHINES if column.kind != "json")


def document(answer: SweepAnswer) -> dict[str, Any]:
    """What `batch --json` prints: every cell's columns, labels, reasons, plans and proof; fronts and winners."""
    return {
        "status": "interrupted" if answer.interrupted else "complete",
        "sweep": answer.sweep.file,
        "database": answer.database,
        "counts": dict(Counter(row["status"] for _, row in answer.done)),
        "solved": answer.solved,
        "seconds": answer.seconds,
        "cells": [cell_document(case, row) for case, row in answer.done],
        "fronts": fronts_document(answer.done),
        "versions": versions(),
    }


def cell_document(case: SweepCase, row: Row) -> dict[str, Any]:
    """A cell's columns in plain values."""
    columns = {column.name: _unpacked(row[column.name], column.kind) for column in _FOR_MACHINES}
    return {**columns, "labels": dict(case.cell.labels)}


def record_columns(axes: Sequence[str]) -> list[str]:
    """The names of what `cell_record` has."""
    return [*(f"axis:{name}" for name in axes), *_FLAT, "reasons", "tokens_per_s_per_dollar_per_hour"]


def cell_record(axes: Sequence[str], case: SweepCase, row: Row) -> dict[str, Any]:
    """A cell as a row of a table: the axes' labels, then the columns but for those in JSON."""
    labels = {f"axis:{name}": case.cell.labels.get(name) for name in axes}
    more = {"reasons": reasons_text(row), "tokens_per_s_per_dollar_per_hour": per_dollar(row)}
    return {**labels, **{name: row[name] for name in _FLAT}, **more}


def _unpacked(value: Any, kind: str) -> Any:
    return json.loads(value) if kind == "json" and value is not None else value


def sweep_csv(answer: SweepAnswer) -> str:
    """A row a cell: the axes' labels, then the columns but for plans and proof. Empty: not known or none."""
    axes = answer.sweep.axes
    return csv_text(record_columns(axes), (cell_record(axes, case, row).values() for case, row in answer.done))


def check_parquet() -> None:
    """Raises InputError when the package that writes Parquet is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(Trouble("--parquet", later("needs pyarrow: pip install 'apss-cp[batch]'"))) from None


def write_parquet(answer: SweepAnswer, path: str) -> None:
    """The same columns with their types, and plans and proof as JSON text."""
    import pyarrow
    import pyarrow.parquet

    kinds = {"text": pyarrow.string(), "json": pyarrow.string(), "int": pyarrow.int64(), "real": pyarrow.float64()}
    fields = [pyarrow.field(f"axis:{name}", pyarrow.string()) for name in answer.sweep.axes]
    fields += [pyarrow.field(c.name, kinds[c.kind], metadata={"meaning": c.meaning}) for c in _FOR_MACHINES]
    rows: Sequence[dict[str, Any]] = [
        {**{f"axis:{name}": case.cell.labels.get(name) for name in answer.sweep.axes}, **row}
        for case, row in answer.done
    ]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(fields))
    try:
        with draft_of(path) as draft:
            pyarrow.parquet.write_table(table, draft)
    except OSError as error:
        raise file_error(path, say("cannot be written: {why}", why=error)) from None
