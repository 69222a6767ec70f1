"""What a person reads at the end of a sweep: counts, the lines, the cells, the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cpsolver.doors.batch.lines import MEASURES, Done, Line, lines_of
from cpsolver.doors.batch.progress import duration
from cpsolver.doors.batch.rows import Row
from cpsolver.doors.batch.run import SweepAnswer
from cpsolver.doors.report.goals import dollars
from cpsolver.inputs.text import about, percent, plural, seconds

_STATUSES = ("optimal", "feasible", "infeasible", "unknown", "error")
_MOST_CELLS, _MOST_ERRORS, _WIDE = 60, 10, 120
Cells = Sequence[tuple[str, Callable[[Row], str]]]


def summary(answer: SweepAnswer) -> RenderableType:
    """The whole report."""
    lines = lines_of(answer.done)
    parts: list[RenderableType] = [Text(headline(answer), style="bold"), Text(run_line(answer)), ""]
    parts += [LineTable(lines), ""]
    if len(answer.done) <= _MOST_CELLS:
        parts += [CellTable(answer.done), ""]
    else:
        parts += [Text(f"{len(answer.done):,} cells: one by one in {answer.database}, or with --csv, --html, --json")]
    return Group(*parts, *errors(answer))


def headline(answer: SweepAnswer) -> str:
    """`120 cells: 118 optimal, 2 error`."""
    counts = Counter(row["status"] for _, row in answer.done)
    told = ", ".join(f"{counts[status]:,} {status}" for status in _STATUSES if counts[status])
    return f"{plural(len(answer.cases), 'cell')}: {told}"


def run_line(answer: SweepAnswer) -> str:
    """What this run did, what the database had already, and where all is kept."""
    known = len({case.key for case in answer.cases if case.problem is not None}) - answer.solved
    done = f"{answer.solved:,} solved in {duration(answer.seconds)}"
    return f"{done}, {known:,} taken from the database {answer.database}"


def errors(answer: SweepAnswer) -> list[RenderableType]:
    """The first failures, each once with the first of the cells that have it, and how many more there are."""
    failed = [(case, row) for case, row in answer.done if row["status"] == "error"]
    named: dict[str, list[str]] = {}
    for case, row in failed:
        named.setdefault(str(row["error"]), []).append(case.cell.name)
    parts: list[RenderableType] = [
        Text.from_markup(f"[red]error[/red] {escape(_cells(names))}: {escape(told)}")
        for told, names in list(named.items())[:_MOST_ERRORS]
    ]
    if len(named) > _MOST_ERRORS:
        parts.append(Text(f"and {len(named) - _MOST_ERRORS:,} errors more"))
    if any(case.problem is not None for case, _ in failed):
        parts.append(Text("--retry-failed solves again those that failed while they ran"))
    return parts


def _cells(names: Sequence[str]) -> str:
    more = f" and {plural(len(names) - 1, 'more cell')}" if len(names) > 1 else ""
    return f"{names[0]}{more}"


class LineTable:
    """A row for each line: how its cells ended, and where its best figures are."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        priced = any(line.best(MEASURES[2]) is not None for line in self._lines)
        shown = MEASURES if priced and options.max_width >= _WIDE else MEASURES[:2]
        table = _table()
        table.add_column("model, chips", ratio=1, overflow="fold")
        for name in ("plans", *(f"best {one.name if one.digits else one.unit}" for one in shown)):
            table.add_column(name, justify="right", no_wrap=True)
        for line in self._lines:
            cells = [f"{len(line.planned)} of {len(line.done)}"]
            for measure in shown:
                best = line.best(measure)
                cells.append("–" if best is None else f"{measure.text(best)} at {best['num_gpus']:,}")
            table.add_row(Text(line.name), *cells)
        yield table


_NARROW: Cells = (
    ("status", lambda row: row["status"]),
    ("GPUs", lambda row: "–" if row["devices"] is None else f"{row['devices']:,}"),
    ("step time", lambda row: _number(row, "step_time_s", seconds)),
    ("tokens/s", lambda row: MEASURES[0].text(row)),
    ("MFU", lambda row: _number(row, "mfu", percent)),
)
_MORE: Cells = (
    ("80 % interval", lambda row: _interval(row)),
    ("$/M tokens", lambda row: _number(row, "dollars_per_million_tokens", dollars)),
    ("memory", lambda row: _number(row, "memory_share", percent)),
)


class CellTable:
    """A row for each cell; what a wide terminal has room for: interval, dollars, memory and the plan in one line."""

    def __init__(self, done: Sequence[Done]) -> None:
        self._done = done

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _WIDE
        cells = [*_NARROW, *_MORE] if wide else list(_NARROW)
        if not any(row["dollars_per_million_tokens"] is not None for _, row in self._done):
            cells = [cell for cell in cells if not cell[0].startswith("$")]
        table = _table()
        table.add_column("cell", ratio=1, overflow="fold")
        for name, _ in cells:
            table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
        if wide:
            table.add_column("plan", ratio=2, overflow="fold")
        for case, row in self._done:
            plan = [Text(row["strategy"] or "–")] if wide else []
            table.add_row(Text(case.cell.name), *(cell(row) for _, cell in cells), *plan)
        yield table


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold")


def _number(row: Row, name: str, text: Callable[[float], str]) -> str:
    return "–" if row[name] is None else text(row[name])


def _interval(row: Row) -> str:
    step = row["step_time_s"]
    if step is None:
        return "–"
    return f"{about(row['step_time_low_s'], step)}–{about(row['step_time_high_s'], step)}"
