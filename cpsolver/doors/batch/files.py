"""The cells as a document of JSON, a CSV file and a Parquet file."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from typing import Any

from cpsolver.doors.batch.lines import Done
from cpsolver.doors.batch.rows import COLUMNS, per_dollar, reasons_text
from cpsolver.doors.batch.run import SweepAnswer
from cpsolver.doors.report.document import versions
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.output import draft_of, file_error, write_file

_FLAT = tuple(column for column in COLUMNS if column.kind != "json")
_JSON = tuple(column.name for column in COLUMNS if column.kind == "json")


def document(answer: SweepAnswer) -> dict[str, Any]:
    """What `batch --json` prints: every cell's columns, labels, reasons, plans and proof."""
    return {
        "status": "interrupted" if answer.interrupted else "complete",
        "sweep": answer.sweep.file,
        "database": answer.database,
        "counts": dict(Counter(row["status"] for _, row in answer.done)),
        "solved": answer.solved,
        "seconds": answer.seconds,
        "cells": [_plain(case_row) for case_row in answer.done],
        "versions": versions(),
    }


def _plain(done: Done) -> dict[str, Any]:
    case, row = done
    unpacked = {name: None if row[name] is None else json.loads(row[name]) for name in _JSON}
    return {**row, **unpacked, "labels": dict(case.cell.labels)}


def write_csv(answer: SweepAnswer, path: str) -> None:
    """A row a cell: the axes' labels, then the columns but for plans and proof. Empty: not known or none."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(_names(answer))
    writer.writerows(_values(answer, done) for done in answer.done)
    write_file(path, text.getvalue())


def _names(answer: SweepAnswer) -> list[str]:
    axes = [f"axis:{name}" for name in answer.sweep.axes]
    return [*axes, *(column.name for column in _FLAT), "reasons", "tokens_per_s_per_dollar_per_hour"]


def _values(answer: SweepAnswer, done: Done) -> list[Any]:
    case, row = done
    labels = [case.cell.labels.get(name) for name in answer.sweep.axes]
    return [*labels, *(row[column.name] for column in _FLAT), reasons_text(row), per_dollar(row)]


def check_parquet() -> None:
    """Raises InputError when the package that writes Parquet is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(Trouble("--parquet", "needs pyarrow: pip install 'apss-cp[batch]'")) from None


def write_parquet(answer: SweepAnswer, path: str) -> None:
    """The same columns with their types, and plans and proof as JSON text."""
    import pyarrow
    import pyarrow.parquet

    kinds = {"text": pyarrow.string(), "json": pyarrow.string(), "int": pyarrow.int64(), "real": pyarrow.float64()}
    fields = [pyarrow.field(f"axis:{name}", pyarrow.string()) for name in answer.sweep.axes]
    fields += [pyarrow.field(c.name, kinds[c.kind], metadata={"meaning": c.meaning}) for c in COLUMNS]
    rows: Sequence[dict[str, Any]] = [
        {**{f"axis:{name}": case.cell.labels.get(name) for name in answer.sweep.axes}, **row}
        for case, row in answer.done
    ]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(fields))
    try:
        with draft_of(path) as draft:
            pyarrow.parquet.write_table(table, draft)
    except OSError as error:
        raise file_error(path, f"cannot be written: {error}") from None
