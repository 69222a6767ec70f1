"""Reads a table of measured runs: every problem told by row and column, and the sound rows as runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cpsolver.evidence.runs.columns import COLUMNS, BadCell
from cpsolver.evidence.runs.layout import contradictions
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import say

PUBLISHED = Path(__file__).parent / "published_runs.csv"
"""The table shipped with the package; sources.yaml beside it says where its rows come from."""

MIXED = Path(__file__).parent / "mixed_runs.csv"
"""Runs on several chip types, which nothing is fitted to."""

_Row = tuple[int, list[str] | csv.Error]  # the line on which it starts, and its cells, or why it has none


@dataclass(frozen=True)
class Table:
    """The rows of a file: those without a trouble as runs, and the troubles of the others, in the order of the file.

    A trouble's `path` is (row id, column), or (row id,) where the whole row is at fault, with an empty id where the row
    cannot be read; its `line` is the row's.
    """

    runs: tuple[MeasuredRun, ...]
    troubles: tuple[Trouble, ...]


def read_runs(path: str | Path) -> Table:
    """The runs in a CSV file, or on standard input when `path` is "-". Sizes and units as in MeasuredRun.

    Empty cells mean unknown. Columns that no prediction uses are not read.

    Raises:
        InputError: when the file cannot be read, is no CSV, lacks columns or has no rows.
    """
    name, text = read_text(path)
    (start, first), *rows = list(_lines(text)) or [(1, [])]
    if isinstance(first, csv.Error):
        raise InputError(_no_csv(first, start, name))
    header = [cell.strip() for cell in first]
    _check_header(header, name)
    if not rows:
        raise InputError(Trouble("", say("has a header and no rows"), file=name))
    runs: list[MeasuredRun] = []
    troubles: list[Trouble] = []
    lines: dict[str, int] = {}
    for line, cells in rows:
        if isinstance(cells, csv.Error):
            troubles.append(_no_csv(cells, line, name))
            continue
        reader = _RowReader(header, line, cells, name)
        run = reader.run(lines)
        troubles += reader.troubles
        if run is not None:
            runs.append(run)
    return Table(tuple(runs), tuple(troubles))


def missing_columns(run: MeasuredRun) -> tuple[str, ...]:
    """The columns that a prediction needs and that the run leaves empty."""
    return _missing({name: getattr(run, name) for name in COLUMNS})


def _missing(values: Mapping[str, Any]) -> tuple[str, ...]:
    missing = [name for name, column in COLUMNS.items() if column.needed and values[name] in (None, "")]
    if values["outcome"] in ("oom", "failed"):
        missing = [name for name in missing if name != "step_time_s"]
    if values["moe_experts"] and values["moe_topk"] in (None, 0):
        missing.append("moe_topk")
    return tuple(missing)


def _lines(text: str) -> Iterator[_Row]:
    """The rows that are not blank. After one that is broken, reading goes on with the next line."""
    lines = list(io.StringIO(text, newline=""))
    start = 0
    while start < len(lines):
        reader = csv.reader(islice(lines, start, None), strict=True)
        done = 0
        try:
            for cells in reader:
                if any("\0" in cell for cell in cells):
                    raise csv.Error("line contains NUL")
                if any(cell.strip() for cell in cells):
                    yield start + done + 1, cells
                done = reader.line_num
            return
        except csv.Error as error:
            yield start + done + 1, error
            start += done + 1


def _no_csv(error: csv.Error, line: int, file: str) -> Trouble:
    return Trouble("", say("is no CSV: {error}", error=error), line=line, file=file, path=("",))


def _check_header(header: Sequence[str], name: str) -> None:
    """Raises InputError when there is no header, or columns are missing or written twice."""
    if not header:
        raise InputError(Trouble("", say("is empty: a header and a row for each run are expected"), file=name))
    for sign, called in ((";", say("semicolons")), ("\t", say("tabs"))):
        if len(header) == 1 and header[0].count(sign) > 1:
            raise InputError(
                Trouble("", say("is separated by {called}: commas are expected", called=called), file=name, line=1)
            )
    troubles = []
    unknown = [column for column in header if column not in COLUMNS]
    for column, kind in COLUMNS.items():
        if header.count(column) > 1:
            troubles.append(Trouble(column, say("the column is there twice"), file=name, line=1))
        elif column not in header and not kind.optional:
            nearest = nearest_names(column, unknown)
            troubles.append(Trouble(column, say("the column is missing"), nearest=nearest, file=name, line=1))
    if troubles:
        raise InputError(troubles)


class _RowReader:
    """Reads one row; what is wrong with it stands in `troubles`."""

    def __init__(self, header: Sequence[str], line: int, cells: Sequence[str], file: str) -> None:
        self.troubles: list[Trouble] = []
        self._line, self._file = line, file
        self._widths = len(header), len(cells)
        self._cells = {column: cell.strip() for column, cell in zip(header, cells, strict=False)}
        self._id = self._cells.get("id", "")

    def run(self, lines: dict[str, int]) -> MeasuredRun | None:
        """The run, or None with `troubles`. `lines`: id -> line of the rows before this one, which it joins."""
        if self._widths[0] != self._widths[1]:
            told = say(
                "has {cells} cells, and the header {heads} (is text with a comma quoted?)",
                cells=self._widths[1],
                heads=self._widths[0],
            )
            self._trouble("", told)
            return None
        if not self._id:
            self._trouble("id", say("must not be empty"))
        elif self._id in lines:
            self._trouble("id", say("is the id of line {line} too", line=lines[self._id]))
        lines.setdefault(self._id, self._line)
        values = {name: self._value(name) for name in COLUMNS}
        if values["dp"] is None:
            values["dp"] = _data_parallel(values)
        for column, message in contradictions(values):
            self._trouble(column, message, values[column])
        values["outcome"] = values["outcome"] or "ok"
        if values["outcome"] != "ok" and values["step_time_s"] is not None:
            message = say(
                "must be empty: the outcome is {outcome}, and only a run that is ok has a step time",
                outcome=values["outcome"],
            )
            self._trouble("step_time_s", message, values["step_time_s"])
        self._check_complete(values)
        return None if self.troubles else _run(self._line, values)

    def _value(self, name: str) -> Any:
        column = COLUMNS[name]
        if name not in self._cells:
            return column.absent
        if not self._cells[name]:
            return None
        try:
            return column.read(self._cells[name])
        except BadCell as bad:
            self._trouble(name, bad.message, self._cells[name], bad.allowed, bad.nearest)
            return None

    def _check_complete(self, values: dict[str, Any]) -> None:
        """Settles `complete`, which is whether all that is needed is known where the table does not say."""
        at_fault = {trouble.path[-1] for trouble in self.troubles}
        missing = [name for name in _missing(values) if name not in at_fault]
        if values["complete"] is None:
            values["complete"] = not missing
        elif values["complete"]:
            for name in missing:
                self._trouble(name, say("is empty, and the row is marked complete"))

    def _trouble(
        self,
        column: str,
        message: str,
        value: Any = None,
        allowed: str | None = None,
        nearest: tuple[str, ...] = (),
    ) -> None:
        row = say("row {id}", id=self._id or "?")
        where = f"{row}, {column}" if column else row
        path = (self._id, column) if column else (self._id,)
        self.troubles.append(
            Trouble(where, message, value, allowed, nearest, line=self._line, file=self._file, path=path)
        )


def _data_parallel(values: Mapping[str, Any]) -> int | None:
    """What dp must be; None where it is not known, or no whole number."""
    if values["stages"]:
        return max(map(len, values["stages"]))
    sizes = [values[name] for name in ("num_gpus", "tp", "pp", "cp")]
    if None in sizes or sizes[0] % (sizes[1] * sizes[2] * sizes[3]):
        return None
    return int(sizes[0] // (sizes[1] * sizes[2] * sizes[3]))


def _run(line: int, values: Mapping[str, Any]) -> MeasuredRun:
    texts = {name: values[name] or "" for name in ("id", "source", "source_ref", "model", "chip", "framework")}
    return MeasuredRun(line=line, **{**values, **texts})
